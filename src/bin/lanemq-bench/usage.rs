//! What the server's process used, as the kernel counts it.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::wire::Fault;

/// Figures of one process since its start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    pub user: Duration,
    pub system: Duration,
    pub rss_bytes: u64,
    pub written_bytes: u64,
    pub context_switches: u64,
}

impl Usage {
    pub fn of(pid: u32) -> Result<Self, Fault> {
        let (user, system) = cpu(&read(&format!("/proc/{pid}/stat"))?)
            .ok_or_else(|| Fault::new(format!("/proc/{pid}/stat cannot be understood")))?;
        let status = read(&format!("/proc/{pid}/status"))?;
        let io = read(&format!("/proc/{pid}/io"))?;
        let mut context_switches = 0;
        for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may have ended since the folder was read.
            let Ok(status) = fs::read_to_string(entry?.path().join("status")) else { continue };
            for key in ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"] {
                context_switches += field(&status, key);
            }
        }
        Ok(Self {
            user,
            system,
            rss_bytes: field(&status, "VmRSS") << 10,
            written_bytes: field(&io, "write_bytes"),
            context_switches,
        })
    }

    /// All processes that `pid` has started and that still run, itself, and the processor time of
    /// those that have ended. Memory that several of them share counts once.
    pub fn of_family(pid: u32) -> Result<Self, Fault> {
        let mut sum = Self::of(pid)?;
        let (user, system) = times(&read(&format!("/proc/{pid}/stat"))?, CHILDREN)
            .ok_or_else(|| Fault::new(format!("/proc/{pid}/stat cannot be understood")))?;
        sum.user += user;
        sum.system += system;
        sum.rss_bytes = share_of_memory(pid);
        for entry in fs::read_dir("/proc")? {
            let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            if parent(&stat) != Some(pid) {
                continue;
            }
            // It may have ended since; its time is then the parent's.
            let Ok(usage) = Self::of(child) else { continue };
            sum.user += usage.user;
            sum.system += usage.system;
            sum.rss_bytes += share_of_memory(child);
            sum.written_bytes += usage.written_bytes;
            sum.context_switches += usage.context_switches;
        }
        Ok(sum)
    }

    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }

    /// What was used from `earlier` to this. The memory is that of now.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            rss_bytes: self.rss_bytes,
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
        }
    }
}

fn read(path: &str) -> Result<String, Fault> {
    fs::read_to_string(path).map_err(|error| Fault::new(format!("{path}: {error}")))
}

/// A process's own memory and its part of what it shares; 0 where it has ended.
fn share_of_memory(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    field(&rollup, "Pss") << 10
}

/// User and system time of a `stat` file.
fn cpu(stat: &str) -> Option<(Duration, Duration)> {
    times(stat, OWN)
}

/// Where the times stand in a `stat` file: its own, and those of children that have ended.
const OWN: usize = 11;
const CHILDREN: usize = 13;

/// The fields behind the name, which stands in parentheses and may hold anything.
fn stat_fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect())
}

fn parent(stat: &str) -> Option<u32> {
    stat_fields(stat)?.get(1)?.parse().ok()
}

fn times(stat: &str, at: usize) -> Option<(Duration, Duration)> {
    let fields = stat_fields(stat)?;
    let per_second = rustix::param::clock_ticks_per_second();
    let time = |field: &str| {
        let ticks: u64 = field.parse().ok()?;
        Some(Duration::from_micros(ticks * 1_000_000 / per_second))
    };
    Some((time(fields.get(at)?)?, time(fields.get(at + 1)?)?))
}

/// The number behind `key:`, 0 where there is none.
fn field(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The process that listens on the port of `address`, on this machine.
pub fn listener(address: SocketAddr) -> Option<u32> {
    let mut sockets = HashSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(|line| listening(line, address.port())));
    }
    let processes = fs::read_dir("/proc").ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    pids.into_iter().find(|pid| holds(*pid, &sockets))
}

/// The socket of a line of the kernel's table, if it listens on `port`.
fn listening(line: &str, port: u16) -> Option<String> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let local = fields.get(1)?.rsplit(':').next()?;
    let found = u16::from_str_radix(local, 16).ok()? == port && *fields.get(3)? == LISTEN;
    found.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
}

fn holds(pid: u32, sockets: &HashSet<String>) -> bool {
    let Ok(files) = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")) else {
        return false;
    };
    let mut links = files.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
}

/// Counts a process's system calls with `perf stat`.
pub struct SyscallCounter {
    perf: Child,
}

impl SyscallCounter {
    pub fn start(pid: u32) -> Result<Self, Fault> {
        let mut perf = Command::new("perf")
            .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Fault::new(format!("perf cannot be started: {error}")))?;
        // It says nothing once it counts; attaching takes some milliseconds.
        std::thread::sleep(Duration::from_millis(300));
        match perf.try_wait()? {
            None => Ok(Self { perf }),
            Some(status) => Err(Fault::new(format!("perf stat ended with {status}"))),
        }
    }

    pub fn finish(self) -> Result<u64, Fault> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.perf.id().cast_signed()) {
            rustix::process::kill_process(pid, rustix::process::Signal::INT)
                .map_err(std::io::Error::from)?;
        }
        let output = self.perf.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("sys_enter"));
        line.and_then(|line| line.split(',').next()?.parse().ok())
            .ok_or_else(|| Fault::new(format!("perf stat said: {}", text.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_port_and_measured() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let pid = std::process::id();
        assert_eq!(listener(socket.local_addr().unwrap()), Some(pid));
        let usage = Usage::of(pid).unwrap();
        assert!(usage.rss_bytes > 0);
        assert_eq!(usage.since(&usage).cpu(), Duration::ZERO);
    }

    #[test]
    fn a_family_is_its_processes_and_those_that_have_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let me = std::process::id();
        let with_child = Usage::of_family(me).unwrap();
        let of_child = Usage::of(child.id()).unwrap();
        assert!(with_child.cpu() >= Usage::default().cpu() + of_child.cpu());
        assert!(with_child.rss_bytes > 0 && share_of_memory(child.id()) > 0);
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        assert_eq!(parent(&stat), Some(me));
        child.kill().unwrap();
        child.wait().unwrap();
        // What it used has gone over to this process, whatever the others in it do.
        assert!(Usage::of_family(me).unwrap().cpu() >= of_child.cpu());
        assert_eq!(share_of_memory(child.id()), 0);
    }

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0";
        let ticks =
            |n: u64| Duration::from_micros(n * 1_000_000 / rustix::param::clock_ticks_per_second());
        assert_eq!(cpu(stat), Some((ticks(250), ticks(50))));
    }
}

//! What the broker needs of its host, checked before anything is opened; each lack is one line
//! that says what is wrong and the command that mends it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use super::settings::{Settings, parse_cpus};
use super::sys::{self, Limit};

/// Exit code of a start that was refused.
pub const EXIT_REFUSED: u8 = 2;

/// Why the broker does not start, in one line for the person at the terminal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartRefused {
    pub what: String,
    pub mend: String,
}

impl StartRefused {
    pub fn new(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { what: what.into(), mend: mend.into() }
    }
}

impl fmt::Display for StartRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |text: &str| text.replace('\n', " ");
        write!(f, "lanemq: {}; mend it with: {}", one_line(&self.what), one_line(&self.mend))
    }
}

impl std::error::Error for StartRefused {}

/// io_uring at all, and a kernel that glommio can work with.
pub fn check_kernel() -> Result<(), StartRefused> {
    check_release(&sys::kernel_release())?;
    sys::probe_io_uring().map_err(|error| explain_io_uring(&error))
}

/// Oldest kernel with every operation of io_uring that is used here, and with epoll_pwait2.
const KERNEL_LEAST: (u32, u32) = (5, 11);

fn check_release(release: &str) -> Result<(), StartRefused> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        // A release that cannot be read proves nothing; the probe of io_uring follows.
        return Ok(());
    };
    if (major, minor) < KERNEL_LEAST {
        return Err(StartRefused::new(
            format!("kernel {release} is too old: it must be 5.11 or newer"),
            "an upgrade of the kernel to 5.15 or newer",
        ));
    }
    Ok(())
}

fn explain_io_uring(error: &io::Error) -> StartRefused {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            if sysctl.is_ok_and(|text| text.trim() != "0") {
                StartRefused::new(
                    "io_uring is switched off on this host (EPERM, kernel.io_uring_disabled)",
                    "sysctl -w kernel.io_uring_disabled=0",
                )
            } else {
                StartRefused::new(
                    "io_uring is forbidden here (EPERM), most likely by the container's seccomp \
                     profile",
                    "docker run --security-opt seccomp=unconfined …, or a profile that allows \
                     io_uring_setup, io_uring_enter and io_uring_register",
                )
            }
        }
        Some(libc::ENOSYS) => StartRefused::new(
            "this kernel has no io_uring (ENOSYS), or a seccomp profile hides it",
            "a kernel built with CONFIG_IO_URING=y, or a profile that allows io_uring_setup, \
             io_uring_enter and io_uring_register",
        ),
        Some(libc::ENOMEM) => memlock_too_low(0),
        _ => StartRefused::new(
            format!("io_uring does not work here ({error})"),
            "a look at the kernel's log: dmesg",
        ),
    }
}

fn memlock_too_low(limit: u64) -> StartRefused {
    StartRefused::new(
        format!(
            "the limit of locked memory ({} KiB) is too low for one io_uring executor, which \
             takes {} KiB of it",
            limit >> 10,
            MEMLOCK_LEAST >> 10
        ),
        "ulimit -l 8192, or LimitMEMLOCK=8M in the systemd unit, or docker run --ulimit \
         memlock=8388608",
    )
}

/// An executor that could not be made although the plan said it could: something else of the
/// same user holds locked memory.
pub fn explain_executor(error: &str) -> StartRefused {
    StartRefused::new(
        format!("an io_uring executor could not be made ({error})"),
        "ulimit -l unlimited (other processes of this user count towards the limit of locked \
         memory), or fewer cores with --cpus",
    )
}

/// How many executors there will be, how deep their rings are, what they may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// One executor on each.
    pub cpus: Vec<usize>,
    pub ring_depth: usize,
    pub io_memory: usize,
    pub connections_max: usize,
}

impl Plan {
    /// Connections of one executor: its share, rounded up.
    pub fn connections_each(&self) -> usize {
        self.connections_max.div_ceil(self.cpus.len())
    }
}

const CONNECTIONS_DEFAULT: usize = 20_000;
/// Ring entries are for file operations, which wait for an entry where there is none, and for a
/// handful of others: connections lie in the epoll set ([`super::sockets`]).
const RING_DEPTH_MAX: usize = 4_096;
const RING_DEPTH_MIN: usize = 1_024;
/// Measured: three rings together take this much locked memory an entry.
const RING_ENTRY_BYTES: usize = 300;
/// glommio registers its I/O memory in three rings.
const IO_MEMORY_TIMES: usize = 3;
const IO_MEMORY_PRIVILEGED: usize = 16 << 20;
const IO_MEMORY_MIN: usize = 64 << 10;
const IO_MEMORY_MAX: usize = 1 << 20;
/// Least that one executor needs, and least glommio accepts as the limit.
const MEMLOCK_LEAST: u64 = 1 << 20;
/// Descriptors of an executor: its rings, eventfds, and files of the shards on it.
const FILES_EACH: u64 = 96;
const FILES_PROCESS: u64 = 64;

/// Everything the plan is made from.
#[derive(Clone, Debug)]
struct Means {
    cpus: Vec<usize>,
    shards: usize,
    /// `None`: the limit does not bind this process.
    memlock: Option<u64>,
    files: u64,
    connections: Option<u32>,
}

/// Raises the limits as far as they go and plans with what is there.
pub fn plan(settings: &Settings, shards: usize) -> Result<Plan, StartRefused> {
    let read = |limit| {
        sys::raise_limit(limit).map_err(|error| {
            StartRefused::new(format!("a resource limit cannot be read ({error})"), "ulimit -a")
        })
    };
    let memlock = read(Limit::LockedMemory)?;
    let files = read(Limit::OpenFiles)?;
    // glommio looks at the limit whoever asks.
    if memlock < MEMLOCK_LEAST / 2 {
        return Err(memlock_too_low(memlock));
    }
    plan_with(&Means {
        cpus: cpus(settings)?,
        shards,
        memlock: (!may_lock_memory()).then_some(memlock),
        files,
        connections: settings.max_connections,
    })
}

/// The cores to use, before other limits.
pub fn cpus(settings: &Settings) -> Result<Vec<usize>, StartRefused> {
    choose_cpus(settings.cpus.as_deref(), &allowed_cpus())
}

fn plan_with(means: &Means) -> Result<Plan, StartRefused> {
    let wanted = means.cpus.len().min(means.shards);
    let asked = means.connections.map_or(CONNECTIONS_DEFAULT, |n| n as usize);
    let (executors, ring_depth, io_memory) = match means.memlock {
        None => (wanted, RING_DEPTH_MAX, IO_MEMORY_PRIVILEGED),
        Some(limit) => share_memlock(limit, wanted)?,
    };
    let connections_max = connections(means, asked, executors)?;
    let cpus = means.cpus[..executors].to_vec();
    Ok(Plan { cpus, ring_depth, io_memory, connections_max })
}

/// Divides what may be locked, a quarter kept back because the limit counts for all processes
/// of the user. Returns executors, ring depth and I/O memory of each.
fn share_memlock(limit: u64, wanted: usize) -> Result<(usize, usize, usize), StartRefused> {
    let usable = usize::try_from(limit - limit / 4).unwrap_or(usize::MAX);
    let least = RING_DEPTH_MIN * RING_ENTRY_BYTES + IO_MEMORY_TIMES * IO_MEMORY_MIN;
    let executors = wanted.min(usable / least);
    if executors == 0 {
        return Err(memlock_too_low(limit));
    }
    let each = usable / executors;
    let mut ring = RING_DEPTH_MIN;
    while ring < RING_DEPTH_MAX
        && 2 * ring * RING_ENTRY_BYTES + IO_MEMORY_TIMES * IO_MEMORY_MIN <= each
    {
        ring *= 2;
    }
    let io_memory = (each - ring * RING_ENTRY_BYTES) / IO_MEMORY_TIMES;
    // Whole pages of 64 KiB, and not all that is left: the formula was fitted to measurements.
    let io_memory =
        (io_memory / 2 / IO_MEMORY_MIN * IO_MEMORY_MIN).clamp(IO_MEMORY_MIN, IO_MEMORY_MAX);
    Ok((executors, ring, io_memory))
}

/// Connections that the open-file limit carries.
fn connections(means: &Means, asked: usize, executors: usize) -> Result<usize, StartRefused> {
    let reserved = FILES_PROCESS + FILES_EACH * executors as u64 + 4 * means.shards as u64;
    let least = reserved + 64;
    if means.files < least {
        return Err(StartRefused::new(
            format!("the limit of open files ({}) is too low, {least} are needed", means.files),
            format!("ulimit -n {}", (reserved as usize + asked).next_power_of_two()),
        ));
    }
    let by_files = usize::try_from(means.files - reserved).unwrap_or(usize::MAX);
    if means.connections.is_some() && asked > by_files {
        return Err(StartRefused::new(
            format!("the limit of open files ({}) does not carry {asked} connections", means.files),
            format!("ulimit -n {}", reserved as usize + asked),
        ));
    }
    Ok(asked.min(by_files))
}

fn choose_cpus(asked: Option<&[usize]>, allowed: &[usize]) -> Result<Vec<usize>, StartRefused> {
    let Some(asked) = asked else { return Ok(allowed.to_vec()) };
    match asked.iter().find(|cpu| !allowed.contains(cpu)) {
        None => Ok(asked.to_vec()),
        Some(cpu) => Err(StartRefused::new(
            format!("core {cpu} of --cpus is not one this process may run on"),
            format!("--cpus {}", as_list(allowed)),
        )),
    }
}

fn as_list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Cores of this process's affinity mask.
pub fn allowed_cpus() -> Vec<usize> {
    let listed = status_field("Cpus_allowed_list")
        .and_then(|text| parse_cpus(&text).ok())
        .unwrap_or_default();
    if listed.is_empty() { vec![0] } else { listed }
}

/// Number of CAP_IPC_LOCK, which lifts the limit of locked memory.
const CAP_IPC_LOCK: u32 = 14;

fn may_lock_memory() -> bool {
    let effective = status_field("CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok());
    effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

fn status_field(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Memory of the machine or of the control group, whichever is less.
pub fn machine_memory() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let total = total.map_or(1 << 30, |kib| kib << 10);
    group.map_or(total, |limit| limit.min(total))
}

/// Takes the port without opening it.
pub fn bind(address: SocketAddr) -> Result<TcpListener, StartRefused> {
    sys::bind(address).map_err(|error| explain_port(address, &error))
}

/// Opens it, once every shard is ready. Returns the address clients reach, whose port the
/// system has chosen where it was 0.
pub fn open_port(socket: &TcpListener, address: SocketAddr) -> Result<SocketAddr, StartRefused> {
    sys::listen(socket, 4_096)
        .and_then(|()| socket.local_addr())
        .map_err(|error| explain_port(address, &error))
}

fn explain_port(address: SocketAddr, error: &io::Error) -> StartRefused {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => StartRefused::new(
            format!("port {} is taken by another process ({address})", address.port()),
            format!(
                "--listen with another port, or find it: ss -ltnp 'sport = :{}'",
                address.port()
            ),
        ),
        Some(libc::EACCES) => StartRefused::new(
            format!("this user may not listen on port {}", address.port()),
            "--listen with a port from 1024 on, or setcap cap_net_bind_service=+ep on the binary",
        ),
        _ => StartRefused::new(
            format!("{address} cannot be listened on ({error})"),
            "--listen 0.0.0.0:6632, or an address of this host: ip addr",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(cpus: usize, shards: usize, memlock: Option<u64>, files: u64) -> Means {
        Means { cpus: (0..cpus).collect(), shards, memlock, files, connections: None }
    }

    fn locked_bytes(plan: &Plan) -> u64 {
        let each = plan.ring_depth * RING_ENTRY_BYTES + IO_MEMORY_TIMES * plan.io_memory;
        (plan.cpus.len() * each) as u64
    }

    #[test]
    fn connections_are_limited_by_files_alone() {
        let plan = plan_with(&means(2, 2, None, 1 << 20)).unwrap();
        assert_eq!((plan.cpus.len(), plan.ring_depth), (2, RING_DEPTH_MAX));
        assert_eq!(plan.connections_max, 20_000);
        assert_eq!(plan.connections_each(), 10_000);
        let ordinary = plan_with(&means(2, 2, Some(8 << 20), 1 << 20)).unwrap();
        assert_eq!(ordinary.connections_max, 20_000);
    }

    #[test]
    fn executors_are_limited_by_cores_shards_and_memlock() {
        assert_eq!(plan_with(&means(8, 3, None, 1 << 20)).unwrap().cpus, [0, 1, 2]);
        assert_eq!(plan_with(&means(2, 7, None, 1 << 20)).unwrap().cpus, [0, 1]);
        let plan = plan_with(&means(64, 64, Some(8 << 20), 1 << 20)).unwrap();
        assert!(plan.cpus.len() < 16 && plan.ring_depth == RING_DEPTH_MIN);
    }

    #[test]
    fn an_ordinary_users_eight_mib_carry_what_is_planned() {
        for cores in 1..=64 {
            let plan = plan_with(&means(cores, cores, Some(8 << 20), 1 << 20)).unwrap();
            assert!(locked_bytes(&plan) <= 6 << 20, "{plan:?}");
            assert!(plan.io_memory >= IO_MEMORY_MIN);
        }
        let two = plan_with(&means(2, 2, Some(8 << 20), 1 << 20)).unwrap();
        assert_eq!((two.cpus.len(), two.ring_depth), (2, RING_DEPTH_MAX));
    }

    #[test]
    fn too_little_is_refused_with_a_command() {
        let refused = plan_with(&means(2, 2, Some(512 << 10), 1 << 20)).unwrap_err();
        assert!(refused.mend.contains("ulimit -l"), "{refused}");
        let refused = plan_with(&means(2, 2, None, 128)).unwrap_err();
        assert!(refused.mend.contains("ulimit -n"), "{refused}");
        let asked = Means { connections: Some(50_000), ..means(2, 2, None, 4_096) };
        assert!(plan_with(&asked).unwrap_err().what.contains("50000"));
        let unasked = plan_with(&means(2, 2, None, 4_096)).unwrap();
        assert!(unasked.connections_max < 4_096);
    }

    #[test]
    fn old_kernels_are_named() {
        for old in ["2.6.78", "4.19.0-amd64", "5.10.0-30-amd64"] {
            assert!(check_release(old).is_err(), "{old}");
        }
        for new in ["5.11.0", "5.15.0-91-generic", "6.18", "10.0.1", "weird"] {
            assert!(check_release(new).is_ok(), "{new}");
        }
    }

    #[test]
    fn refusals_are_one_line() {
        let text = StartRefused::new("a\nb", "c").to_string();
        assert_eq!(text, "lanemq: a b; mend it with: c");
        for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM, libc::EIO] {
            let text = explain_io_uring(&io::Error::from_raw_os_error(errno)).to_string();
            assert!(!text.contains("  ") && text.contains("mend it with: "), "{text}");
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        assert_eq!(choose_cpus(Some(&[1]), &[0, 1]), Ok(vec![1]));
        assert_eq!(choose_cpus(None, &[0, 1]), Ok(vec![0, 1]));
        let refused = choose_cpus(Some(&[0, 1, 2]), &[0, 1]).unwrap_err();
        assert_eq!(refused.mend, "--cpus 0,1");
        assert!(!allowed_cpus().is_empty());
        assert!(machine_memory() > 1 << 20);
    }
}

//! What a process uses, as the kernel counts it.

use std::fs;
use std::time::Duration;

/// A moment's figures of one process.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub rss_bytes: u64,
    /// Processor time in user and system mode since its start.
    pub cpu: Duration,
    pub open_files: usize,
}

impl Usage {
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let rss_kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The name in parentheses may hold anything; the fields behind it are numbers.
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // SAFETY: sysconf takes an integer and touches no memory.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let per_second = u64::try_from(per_second).unwrap();
        Self {
            rss_bytes: rss_kib << 10,
            cpu: Duration::from_micros(ticks * 1_000_000 / per_second),
            open_files: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        }
    }
}

//! What this process uses, read from procfs.

#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    pub rss_bytes: u64,
    pub virtual_bytes: u64,
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
}

/// Clock ticks of procfs are hundredths of a second on every Linux of today.
const TICK_US: u64 = 10_000;

pub fn usage() -> Usage {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut usage = parse_stat(&stat);
    usage.rss_bytes = parse_kib(&status, "VmRSS:");
    usage.virtual_bytes = parse_kib(&status, "VmSize:");
    usage
}

pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "lanemq".to_owned() } else { name.to_owned() }
}

/// User and system time are fields 14 and 15; the name in field 2 may hold anything, so the
/// count begins behind its closing bracket.
fn parse_stat(stat: &str) -> Usage {
    let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = behind.split_ascii_whitespace().skip(11).map(|f| f.parse().unwrap_or(0u64));
    let mut ticks = || fields.next().unwrap_or(0) * TICK_US;
    Usage { cpu_user_us: ticks(), cpu_system_us: ticks(), ..Usage::default() }
}

fn parse_kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procfs_is_read_past_strange_names() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        let usage = parse_stat(stat);
        assert_eq!((usage.cpu_user_us, usage.cpu_system_us), (2_500_000, 500_000));
        assert_eq!(parse_kib("VmPeak:\t1 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), 12 << 10);
        assert!(super::usage().rss_bytes > 0);
    }
}

//! Settings: read once from flags and environment into checked types.
//!
//! A flag wins over its `LANEMQ_…` variable, which wins over the variable that the published
//! brokers of this wire use, where there is an obvious one. A value that cannot be read stops
//! the start: a setting that silently does nothing is worse than none.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};

use crate::base::limits;
use crate::server::settings::{Settings, parse_cpus};

/// A single-node message broker: one ordered partition per entity, durable before the answer.
#[derive(Clone, Debug, Parser)]
#[command(name = "lanemq", version, about)]
pub struct Config {
    /// Address and port to listen on.
    #[arg(long, env = "LANEMQ_LISTEN", default_value = "0.0.0.0:6632")]
    pub listen: SocketAddr,

    /// Where everything is kept. Made if it is not there.
    #[arg(long, env = "LANEMQ_DATA_DIR", default_value = "./data")]
    pub data_dir: PathBuf,

    /// Shards of a new data directory; an existing one keeps its own number. One per core
    /// if not given.
    #[arg(long, env = "LANEMQ_SHARDS", value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::SHARDS_MAX)))]
    pub shards: Option<u16>,

    /// Cores to use, such as `0-3,6`. All that the process may use if not given.
    #[arg(long, env = "LANEMQ_CPUS")]
    pub cpus: Option<CpuList>,

    /// Size of one file of the log, such as `256MiB`.
    #[arg(long, env = "LANEMQ_SEGMENT_BYTES", default_value = "256MiB", value_parser = segment_bytes)]
    pub segment_bytes: ByteSize,

    /// Memory for work in flight over all shards; over it requests are refused with 429. Half
    /// of the machine's if not given.
    #[arg(long, env = "LANEMQ_MEMORY_LIMIT", value_parser = memory_limit)]
    pub memory_limit: Option<ByteSize>,

    /// Connections at once; over it a new one is answered 503 and closed. 20,000, or fewer
    /// where the open-file or locked-memory limit carries fewer, if not given.
    #[arg(long, env = "LANEMQ_MAX_CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: Option<u32>,

    /// Least severe log lines to write: error, warn, info, debug, trace, or a filter such as
    /// `info,lanemq=debug`.
    #[arg(long, env = "LANEMQ_LOG_LEVEL", default_value = "info")]
    pub log_level: String,

    #[arg(long, env = "LANEMQ_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Largest request body; set only through `QUEEN_MAX_BODY_BYTES`, the name it has on the
    /// published brokers.
    #[arg(long, hide = true, env = "QUEEN_MAX_BODY_BYTES", default_value = "67108864", value_parser = body_bytes)]
    pub max_body_bytes: ByteSize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Config {
    /// Reads the process's own arguments and environment. Ends the process with code 2 where
    /// they cannot be read, 0 after `--help` and `--version`.
    pub fn from_process() -> Self {
        let aliased = with_aliases(std::env::args_os().collect(), |name| std::env::var(name).ok());
        Self::parse_from(aliased)
    }
}

/// Turns the published brokers' variables into flags where neither the flag nor our own
/// variable is there.
fn with_aliases(mut args: Vec<OsString>, env: impl Fn(&str) -> Option<String>) -> Vec<OsString> {
    let given = |flag: &str, own: &str| {
        env(own).is_some()
            || args.iter().any(|arg| {
                arg.to_str().is_some_and(|a| a == flag || a.starts_with(&format!("{flag}=")))
            })
    };
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    let mut more: Vec<OsString> = Vec::new();
    if !given("--listen", "LANEMQ_LISTEN") {
        let (host, port) = (set("QUEEN_BIND_ADDR"), set("PORT"));
        if host.is_some() || port.is_some() {
            let host = host.unwrap_or_else(|| "0.0.0.0".to_owned());
            let port = port.unwrap_or_else(|| "6632".to_owned());
            more.push(format!("--listen={host}:{port}").into());
        }
    }
    for (flag, own, theirs) in [
        ("--data-dir", "LANEMQ_DATA_DIR", "QUEEN_RAFT_DIR"),
        ("--log-level", "LANEMQ_LOG_LEVEL", "LOG_LEVEL"),
    ] {
        if let (false, Some(value)) = (given(flag, own), set(theirs)) {
            more.push(format!("{flag}={value}").into());
        }
    }
    args.append(&mut more);
    args
}

/// A number of bytes, written plain or with a unit: `1048576`, `256MiB`, `64k`, `1.5GiB` is
/// refused. `K`, `M`, `G`, `T` count in 1,024s with and without `iB`; `kB`, `MB`, … in 1,000s.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number
            .parse()
            .map_err(|error| format!("{text:?} does not begin with a whole number: {error}"))?;
        let factor = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            other => return Err(format!("unknown unit {other:?}; use KiB, MiB, GiB or TiB")),
        };
        number.checked_mul(factor).map(Self).ok_or_else(|| format!("{text:?} is too large"))
    }
}

fn bounded(text: &str, least: u64, most: u64, step: u64) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if size.0 < least || size.0 > most {
        return Err(format!("must lie between {least} and {most} bytes"));
    }
    if !size.0.is_multiple_of(step) {
        return Err(format!("must be a multiple of {step} bytes"));
    }
    Ok(size)
}

fn segment_bytes(text: &str) -> Result<ByteSize, String> {
    bounded(text, limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX, 1 << 20)
}

fn memory_limit(text: &str) -> Result<ByteSize, String> {
    bounded(text, 64 << 20, u64::MAX, 1)
}

fn body_bytes(text: &str) -> Result<ByteSize, String> {
    bounded(text, 1 << 10, limits::BODY_BYTES_MAX as u64, 1)
}

/// Cores by number: `0-3,6`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_cpus(text).map(Self)
    }
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Self {
            listen: config.listen,
            data_dir: config.data_dir.clone(),
            shards: config.shards,
            cpus: config.cpus.as_ref().map(|list| list.0.clone()),
            segment_bytes: config.segment_bytes.0,
            memory_limit: config.memory_limit.map(|size| size.0),
            max_connections: config.max_connections,
            max_body_bytes: usize::try_from(config.max_body_bytes.0).unwrap_or(usize::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Config, clap::Error> {
        Config::try_parse_from(std::iter::once("lanemq").chain(args.iter().copied()))
    }

    #[test]
    fn sizes_have_units() {
        let size = |text: &str| text.parse::<ByteSize>().map(|s| s.0);
        assert_eq!(size("4096"), Ok(4_096));
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("256 m"), Ok(256 << 20));
        assert_eq!(size("2GB"), Ok(2_000_000_000));
        for bad in ["", "MiB", "1.5GiB", "-1", "1 parsec", "99999999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_are_checked() {
        let config = parse(&["--shards", "4", "--cpus=0-1", "--segment-bytes", "4MiB"]).unwrap();
        assert_eq!(config.shards, Some(4));
        assert_eq!(config.segment_bytes, ByteSize(4 << 20));
        assert_eq!(config.log_format, LogFormat::Text);
        for bad in [
            ["--shards", "0"],
            ["--shards", "9000"],
            ["--segment-bytes", "1MiB"],
            ["--segment-bytes", "4194305"],
            ["--listen", "6632"],
            ["--log-format", "xml"],
            ["--max-connections", "0"],
            ["--memory-limit", "1"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_published_brokers_variables_count_where_ours_are_not_there() {
        let args = |given: &[&str], env: &[(&str, &str)]| {
            let given = given.iter().map(OsString::from).collect();
            let read = |name: &str| {
                env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            with_aliases(given, read)
        };
        assert_eq!(args(&["lanemq"], &[("PORT", "7")]), ["lanemq", "--listen=0.0.0.0:7"]);
        assert_eq!(args(&["lanemq"], &[("PORT", "")]), ["lanemq"]);
        let own = args(&["lanemq"], &[("PORT", "7"), ("LANEMQ_LISTEN", "[::]:8")]);
        assert_eq!(own, ["lanemq"]);
        let flag = args(&["lanemq", "--listen=[::]:8"], &[("QUEEN_BIND_ADDR", "::1")]);
        assert_eq!(flag, ["lanemq", "--listen=[::]:8"]);
        let dir = args(&["lanemq"], &[("QUEEN_RAFT_DIR", "/x y")]);
        assert_eq!(dir, ["lanemq", "--data-dir=/x y"]);
    }
}

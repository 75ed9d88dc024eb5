//! Settings: read once from flags and environment into checked types.
//!
//! A flag wins over its `LANEMQ_…` variable, which wins over the variable that the published
//! brokers of this wire use, where there is an obvious one. A value that cannot be read stops
//! the start: a setting that silently does nothing is worse than none.

mod auth;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Parser, ValueEnum};

use crate::base::cipher::Keys;
use crate::base::limits;
use crate::model::command::Subscription;
use crate::server::host::StartRefused;
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

    /// Store batches that came as JSON compressed, from this many bytes on, such as `4KiB`: a
    /// smaller log against more CPU for each push and pop. Off if not given.
    #[arg(long, env = "LANEMQ_COMPRESS_JSON", value_parser = compress_json)]
    pub compress_json: Option<ByteSize>,

    /// File with the key for the payloads of queues that encrypt: 64 hexadecimal digits. The
    /// key itself may stand in `LANEMQ_ENCRYPTION_KEY`, an older one that is still read in
    /// `LANEMQ_ENCRYPTION_KEY_PREVIOUS`.
    #[arg(long, env = "LANEMQ_ENCRYPTION_KEY_FILE")]
    pub encryption_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub auth: auth::AuthConfig,

    /// Queues with samples of their own in `/metrics/prometheus`; the others are summed up.
    #[arg(long, env = "LANEMQ_METRICS_QUEUES", default_value_t = limits::METRICS_QUEUES_DEFAULT, value_parser = clap::value_parser!(u32).range(0..=i64::from(limits::METRICS_QUEUES_MAX)))]
    pub metrics_queues: u32,

    /// Show the metrics under the names that boards made for the published brokers read, too.
    #[arg(long, env = "LANEMQ_QUEEN_METRICS")]
    pub queen_metrics: bool,

    /// Name of this broker in its status; the host's if not given.
    #[arg(long, env = "LANEMQ_SERVER_ID")]
    pub server_id: Option<String>,

    /// How long trace events are kept, in seconds.
    #[arg(long, env = "LANEMQ_TRACE_RETENTION_SECONDS", default_value_t = limits::TRACE_RETENTION_SECONDS_DEFAULT)]
    pub trace_retention_seconds: u64,

    /// Where a group starts that says nothing of it at its first pop: `new` for messages from
    /// then on, `all` for everything stored. Any word but `new`, `new-only`, `new_only` and
    /// `newonly` means `all`.
    #[arg(long, env = "LANEMQ_DEFAULT_SUBSCRIPTION_MODE", default_value = "new", value_parser = subscription_mode)]
    pub default_subscription_mode: Subscription,

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

    /// What the driver is told, with the keys that the process was given.
    pub fn settings(&self) -> Result<Settings, StartRefused> {
        Ok(Settings {
            listen: self.listen,
            data_dir: self.data_dir.clone(),
            shards: self.shards,
            cpus: self.cpus.as_ref().map(|list| list.0.clone()),
            segment_bytes: self.segment_bytes.0,
            memory_limit: self.memory_limit.map(|size| size.0),
            max_connections: self.max_connections,
            max_body_bytes: in_memory(self.max_body_bytes),
            compress_bytes: self.compress_json.map(in_memory),
            trace_retention_seconds: self.trace_retention_seconds,
            default_subscription: self.default_subscription_mode,
            keys: keys(self.encryption_key_file.as_deref(), |name| std::env::var(name).ok())
                .map_err(bad_key)?,
            auth: self.auth.settings(|name| std::env::var(name).ok()).map_err(bad_auth)?,
            metrics_queues: self.metrics_queues as usize,
            queen_metrics: self.queen_metrics,
            server_id: self.server_id.clone(),
        })
    }
}

fn bad_key(text: String) -> StartRefused {
    StartRefused::new(text, "openssl rand -hex 32 >key, and --encryption-key-file key")
}

fn bad_auth(text: String) -> StartRefused {
    StartRefused::new(text, "the settings of authentication that lanemq --help lists")
}

/// The keys of the environment, or of the named file. Not a flag: the arguments of a process are
/// everybody's to read.
fn keys(file: Option<&Path>, env: impl Fn(&str) -> Option<String>) -> Result<Keys, String> {
    let from_env = |own: &str, theirs: &str| {
        [own, theirs].iter().find_map(|name| env(name).filter(|text| !text.is_empty()))
    };
    let current = match file {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|error| format!("the key file {}: {error}", path.display()))?,
        ),
        None => from_env("LANEMQ_ENCRYPTION_KEY", "QUEEN_ENCRYPTION_KEY"),
    };
    let previous = from_env("LANEMQ_ENCRYPTION_KEY_PREVIOUS", "QUEEN_ENCRYPTION_KEY_PREVIOUS");
    Keys::from_hex(current.as_deref(), previous.as_deref())
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
        ("--server-id", "LANEMQ_SERVER_ID", "QUEEN_SERVER_ID"),
        (
            "--trace-retention-seconds",
            "LANEMQ_TRACE_RETENTION_SECONDS",
            "QUEEN_RAFT_TRACE_RETENTION_S",
        ),
        (
            "--default-subscription-mode",
            "LANEMQ_DEFAULT_SUBSCRIPTION_MODE",
            "DEFAULT_SUBSCRIPTION_MODE",
        ),
    ]
    .into_iter()
    .chain(auth::ALIASES)
    {
        // The skipped paths say something by being empty.
        let value = if flag == auth::SKIP_PATHS { env(theirs) } else { set(theirs) };
        if let (false, Some(value)) = (given(flag, own), value) {
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

/// The words of the published brokers, and what they make of any other.
fn subscription_mode(text: &str) -> Result<Subscription, String> {
    const NEW: [&str; 4] = ["new", "new-only", "new_only", "newonly"];
    let word = text.trim();
    // Empty is not set.
    let new = word.is_empty() || NEW.iter().any(|new| word.eq_ignore_ascii_case(new));
    Ok(if new { Subscription::New } else { Subscription::All })
}

fn segment_bytes(text: &str) -> Result<ByteSize, String> {
    bounded(text, limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX, 1 << 20)
}

fn memory_limit(text: &str) -> Result<ByteSize, String> {
    bounded(text, 64 << 20, u64::MAX, 1)
}

fn compress_json(text: &str) -> Result<ByteSize, String> {
    bounded(text, 64, limits::COMPRESS_BYTES_MAX as u64, 1)
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

fn in_memory(size: ByteSize) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
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
    fn the_default_subscription_has_the_published_words() {
        let mode = |word: &str| {
            let given = ["--default-subscription-mode", word];
            parse(&given).unwrap().default_subscription_mode
        };
        assert_eq!(parse(&[]).unwrap().default_subscription_mode, Subscription::New);
        for word in ["new", "NEW", "new-only", "new_only", "newonly", ""] {
            assert_eq!(mode(word), Subscription::New, "{word}");
        }
        for word in ["all", "All", "latest"] {
            assert_eq!(mode(word), Subscription::All, "{word}");
        }
    }

    #[test]
    fn a_key_comes_from_its_file_or_the_environment_and_is_checked() {
        let key = "0f".repeat(32);
        let env = |name: &str| (name == "QUEEN_ENCRYPTION_KEY").then(|| key.clone());
        assert!(keys(None, env).unwrap().can_seal());
        assert!(!keys(None, |_| None).unwrap().can_seal());
        assert!(keys(None, |_| Some("0f".to_owned())).unwrap_err().contains("64"));
        let missing = keys(Some(Path::new("/no/such/key")), env).unwrap_err();
        assert!(missing.contains("/no/such/key"), "{missing}");
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

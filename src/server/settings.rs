//! What a person may set, as the driver wants it: checked numbers, no text.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::auth::AuthSettings;
use crate::base::cipher::Keys;
use crate::model::command::Subscription;

#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    pub data_dir: PathBuf,
    /// `None`: what the directory has, or one per core.
    pub shards: Option<u16>,
    /// `None`: all that the process may use.
    pub cpus: Option<Vec<usize>>,
    pub segment_bytes: u64,
    /// `None`: half of the machine's.
    pub memory_limit: Option<u64>,
    /// `None`: as many as are usual and the limits carry.
    pub max_connections: Option<u32>,
    pub max_body_bytes: usize,
    /// Batches that the broker frames are stored compressed from this many bytes on; `None`:
    /// never.
    pub compress_bytes: Option<usize>,
    /// Queues with samples of their own in the text form of the metrics.
    pub metrics_queues: usize,
    /// Show the metrics under the published brokers' names too.
    pub queen_metrics: bool,
    /// Name of this broker; `None`: the host's.
    pub server_id: Option<String>,
    /// For the payloads of queues that encrypt. Shows itself by check value only.
    pub keys: Keys,
    /// `None`: everybody may do everything.
    pub auth: Option<AuthSettings>,
    /// How long trace events are kept.
    pub trace_retention_seconds: u64,
    /// How a group subscribes that does not say how: new messages only, or all.
    pub default_subscription: Subscription,
}

/// No machine has more; a range beyond it is a slip of the pen.
const CPU_MAX: usize = 8_191;

/// Cores by number, ascending, each once: `0-3,6`, as people and the kernel write it.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, String> {
    let number = |part: &str| -> Result<usize, String> {
        let cpu: usize =
            part.trim().parse().map_err(|e| format!("{part:?} is no number of a core: {e}"))?;
        if cpu > CPU_MAX { Err(format!("core {cpu} is beyond {CPU_MAX}")) } else { Ok(cpu) }
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => cpus.push(number(part)?),
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if from > to {
                    return Err(format!("the range {part:?} runs backwards"));
                }
                cpus.extend(from..=to);
            }
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::parse_cpus;

    #[test]
    fn cpu_lists_are_ranges_and_numbers() {
        assert_eq!(parse_cpus("0-3,6"), Ok(vec![0, 1, 2, 3, 6]));
        assert_eq!(parse_cpus("6, 1-2,2"), Ok(vec![1, 2, 6]));
        for bad in ["", "a", "3-1", "1-", "-1", "1,,2", "9000", "0-99999999999"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }
}

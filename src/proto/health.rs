//! Whether this broker is fit to serve.

use super::json::Fields;
use crate::model::reply::ShardStats;

/// Version of the upstream wire this broker answers like.
pub(super) const WIRE_VERSION: &str = "2.2";
pub(super) const ENGINE: &str = "lanemq";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition<'a> {
    Healthy,
    /// Stopping: new work is refused.
    Draining,
    /// A shard's log takes no writes any more, and why.
    Failed(&'a str),
}

impl<'a> Condition<'a> {
    /// A fault outweighs a drain: it is what an operator must see. A full disk is no fault,
    /// since reads, acks and deletes go on.
    pub fn of(shards: &'a [ShardStats], draining: bool) -> Self {
        match shards.iter().find_map(|shard| shard.fault.as_deref()) {
            Some(fault) => Self::Failed(fault),
            None if draining => Self::Draining,
            None => Self::Healthy,
        }
    }

    /// 200 when true, 503 otherwise.
    pub fn is_healthy(self) -> bool {
        self == Self::Healthy
    }

    fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Draining => "draining",
            Self::Failed(_) => "unhealthy",
        }
    }
}

/// What the process adds to the shards' condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub uptime_seconds: u64,
    /// Payloads of queues that encrypt can be encrypted.
    pub encryption_key: bool,
    /// Of the file system that holds the log, as it was seen last.
    pub disk_used_pct: Option<u64>,
}

pub fn encode(
    condition: Condition<'_>,
    shards: &[ShardStats],
    process: Process,
    out: &mut Vec<u8>,
) {
    let full = shards.iter().any(|shard| shard.storage_full);
    let commit_us = shards.iter().map(|shard| shard.last_commit_us).max().unwrap_or(0);
    let mut fields = Fields::begin(out);
    fields
        .text("status", condition.word())
        .text("engine", ENGINE)
        .text("version", env!("CARGO_PKG_VERSION"))
        .text("compat", WIRE_VERSION)
        .integer("uptimeSeconds", process.uptime_seconds)
        .integer("shards", shards.len())
        .object("storage", |storage| {
            let ready = !matches!(condition, Condition::Failed(_));
            storage
                .boolean("ready", ready)
                .boolean("writable", ready && !full)
                .integer_or_null("diskUsedPct", process.disk_used_pct)
                .decimal("lastFsyncMs", commit_us as f64 / 1_000.0)
                .integer("walPending", shards.iter().map(|s| s.pending_bytes).sum::<u64>());
        })
        .object("security", |security| {
            security.boolean("encryptionKey", process.encryption_key);
        });
    if let Condition::Failed(fault) = condition {
        fields.text("error", fault);
    }
    fields.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::metrics::tests::shard;

    fn text(shards: &[ShardStats], draining: bool) -> (bool, String) {
        let mut out = Vec::new();
        let condition = Condition::of(shards, draining);
        let process = Process { uptime_seconds: 5, encryption_key: true, disk_used_pct: Some(61) };
        encode(condition, shards, process, &mut out);
        (condition.is_healthy(), String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_three_conditions() {
        let version = env!("CARGO_PKG_VERSION");
        let middle = format!(
            "\"engine\":\"lanemq\",\"version\":\"{version}\",\"compat\":\"2.2\",\
             \"uptimeSeconds\":5,\"shards\":1,\"storage\":"
        );
        let mut s = [shard(0)];
        let rest = ",\"diskUsedPct\":61,\"lastFsyncMs\":1.5,\"walPending\":21},\
                    \"security\":{\"encryptionKey\":true}";
        let good = format!("{{\"ready\":true,\"writable\":true{rest}}}");
        assert_eq!(text(&s, false), (true, format!("{{\"status\":\"healthy\",{middle}{good}")));
        assert_eq!(text(&s, true), (false, format!("{{\"status\":\"draining\",{middle}{good}")));
        s[0].storage_full = true;
        let (healthy, body) = text(&s, false);
        assert!(healthy && body.contains("{\"ready\":true,\"writable\":false,"));
        s[0].fault = Some("fdatasync failed".into());
        let bad =
            format!("{{\"ready\":false,\"writable\":false{rest},\"error\":\"fdatasync failed\"}}");
        assert_eq!(text(&s, true), (false, format!("{{\"status\":\"unhealthy\",{middle}{bad}")));
    }
}

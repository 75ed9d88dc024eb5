//! The counters of the process and of its shards, and `/metrics`, which is JSON. The text form for
//! Prometheus is in `exposition`.

use super::health::ENGINE;
use super::json::Fields;
use super::system::Delay;
use crate::base::histogram::Micros;
use crate::model::reply::ShardStats;

/// What the process knows beside its shards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    pub uptime_seconds: u64,
    /// Open now / accepted since the start.
    pub connections: u64,
    pub connections_total: u64,
    /// Turned away because there were too many.
    pub connections_refused: u64,
    pub requests_total: u64,
    pub open_requests: u64,
    pub rss_bytes: u64,
    pub virtual_bytes: u64,
    /// Processor time since the start, in microseconds.
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
    pub disk_used_pct: Option<u64>,
    pub routes: Vec<RouteStats>,
    pub executors: Vec<ExecutorStats>,
}

/// Answers as the metrics tell them apart: all that is no failure but an empty pop, empty pops,
/// and the refusals.
pub const ANSWER_CODES: [&str; 7] = ["ok", "204", "4xx", "429", "5xx", "503", "507"];

/// Answers of some routes, and how long they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteStats {
    pub route: &'static str,
    /// In the order of [`ANSWER_CODES`].
    pub answers: [u64; ANSWER_CODES.len()],
    pub us: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExecutorStats {
    /// The longest turn of its tasks in each 10 ms with work.
    pub reactor_us: Micros,
    pub recovery_us: u64,
}

impl ExecutorStats {
    fn delay(&self) -> Delay {
        let (count, sum_us) = (self.reactor_us.count(), self.reactor_us.sum);
        Delay { count, sum_us, ..Delay::default() }
    }
}

/// The body of `/metrics`, which on this wire is JSON.
pub fn encode_json(shards: &[ShardStats], server: &ServerStats, out: &mut Vec<u8>) {
    let pushed: u64 = shards.iter().map(|shard| shard.pushed).sum();
    Fields::begin(out)
        .integer("uptime", server.uptime_seconds)
        .object("requests", |f| {
            f.integer("total", server.requests_total).integer("rate", 0);
        })
        .object("messages", |f| {
            f.integer("total", pushed).integer("rate", 0);
        })
        .object("memory", |f| {
            f.integer("rss", server.rss_bytes);
            // Parts of a runtime that this process does not have.
            for key in ["heapTotal", "heapUsed", "external", "arrayBuffers"] {
                f.integer(key, 0);
            }
        })
        .object("cpu", |f| {
            f.integer("user", server.cpu_user_us).integer("system", server.cpu_system_us);
        })
        .text("engine", ENGINE)
        .integer("connections", server.connections)
        .objects("shards", shards, |shard, f| {
            f.integer("shard", shard.shard.0);
            for family in &FAMILIES {
                f.integer(family.key, (family.value)(shard));
            }
        })
        .objects("executors", &server.executors, |executor, f| {
            f.decimal("reactorDelayMs", executor.delay().avg_ms())
                .integer("recoveryMs", executor.recovery_us / 1_000);
        })
        .objects("routes", &server.routes, |route, f| {
            f.text("route", route.route).integer("answers", route.us.count());
            f.decimal("avgMs", route.us.sum as f64 / route.us.count().max(1) as f64 / 1_000.0);
            for (code, count) in ANSWER_CODES.into_iter().zip(route.answers).skip(3) {
                f.integer(code, count);
            }
        })
        .end();
}

/// One number of a shard under its two names.
pub(super) struct Family {
    pub key: &'static str,
    pub name: &'static str,
    pub kind: &'static str,
    pub help: &'static str,
    pub value: Read,
}

pub(super) const COUNTER: &str = "counter";
pub(super) const GAUGE: &str = "gauge";

type Read = fn(&ShardStats) -> u64;

const fn counter(key: &'static str, name: &'static str, help: &'static str, value: Read) -> Family {
    Family { key, name, kind: COUNTER, help, value }
}

const fn gauge(key: &'static str, name: &'static str, help: &'static str, value: Read) -> Family {
    Family { key, name, kind: GAUGE, help, value }
}

#[rustfmt::skip]
pub(super) const FAMILIES: [Family; 39] = [
    counter("pushed", "lanemq_pushed_messages_total", "Messages stored.", |s| s.pushed),
    counter("duplicates", "lanemq_duplicate_messages_total",
        "Pushed messages answered with their original.", |s| s.duplicates),
    counter("popped", "lanemq_popped_messages_total", "Messages delivered.", |s| s.popped),
    counter("acked", "lanemq_acked_messages_total", "Messages settled by an ack.", |s| s.acked),
    counter("ackFailed", "lanemq_failed_acks_total",
        "Acks that were refused or that said the work had failed.", |s| s.traffic.ack_failed),
    counter("deadLettered", "lanemq_dead_lettered_messages_total",
        "Messages filed as dead letters.", |s| s.dead_lettered),
    counter("conflated", "lanemq_conflated_messages_total",
        "Messages that a newer one took the place of.", |s| s.traffic.conflated),
    counter("pushRequests", "lanemq_push_requests_total",
        "Pushes taken in, by the shard of the connection.", |s| s.traffic.push_requests),
    counter("popRequests", "lanemq_pop_requests_total",
        "Pops taken in, by the shard of the connection.", |s| s.traffic.pop_requests),
    counter("emptyPops", "lanemq_empty_pops_total",
        "Pops answered without a message.", |s| s.traffic.pop_empty),
    counter("ackRequests", "lanemq_ack_requests_total",
        "Requests with acks, by the shard of the connection.", |s| s.traffic.ack_requests),
    counter("transactions", "lanemq_transactions_total",
        "Transactions taken in, by the shard of the connection.", |s| s.traffic.transactions),
    counter("claims", "lanemq_claims_total", "Claims of a partition that were tried.", |s| s.claims),
    counter("emptyClaims", "lanemq_empty_claims_total",
        "Claims for a parked pop that found nothing.", |s| s.empty_claims),
    counter("groupsKept", "lanemq_push_groups_kept_total",
        "Groups that a client compressed, stored as they came.", |s| s.groups_kept),
    counter("groupsRecoded", "lanemq_push_groups_recoded_total",
        "Groups that a client compressed, written anew.", |s| s.groups_recoded),
    counter("batchesCompressed", "lanemq_batches_compressed_total",
        "Batches that the broker framed and compressed.", |s| s.batches_compressed),
    counter("partitionsCreated", "lanemq_partitions_created_total",
        "Partitions made.", |s| s.traffic.partitions_created),
    counter("partitionsDeleted", "lanemq_partitions_deleted_total",
        "Partitions that went with their queue.", |s| s.traffic.partitions_deleted),
    counter("retentionMessages", "lanemq_retention_expired_messages_total",
        "Messages dropped for their age.", |s| s.traffic.retention_messages),
    counter("completedRetentionMessages", "lanemq_retention_completed_messages_total",
        "Messages dropped after every reader was through.",
        |s| s.traffic.completed_retention_messages),
    counter("evictedMessages", "lanemq_retention_evicted_messages_total",
        "Messages dropped because they had waited too long.", |s| s.traffic.evicted_messages),
    counter("appendedBytes", "lanemq_log_appended_bytes_total",
        "Bytes of records appended to the log.", |s| s.appended_bytes),
    counter("writtenBytes", "lanemq_log_written_bytes_total",
        "Bytes written to the log, padding included.", |s| s.written_bytes),
    counter("writes", "lanemq_log_writes_total", "Writes to the log.", |s| s.writes),
    counter("reads", "lanemq_log_reads_total",
        "Reads of what the log no longer holds in memory.", |s| s.reads),
    counter("readBytes", "lanemq_log_read_bytes_total", "Bytes of those reads.", |s| s.read_bytes),
    counter("syncs", "lanemq_log_syncs_total", "Syncs of the log.", |s| s.syncs),
    gauge("queues", "lanemq_queues", "Queues; each shard knows all.", |s| s.queues),
    gauge("partitions", "lanemq_partitions", "Partitions.", |s| s.partitions),
    gauge("parked", "lanemq_parked_pops", "Pops that wait for a message.", |s| s.parked),
    gauge("leases", "lanemq_leases", "Leases.", |s| s.leases),
    gauge("leasedPartitions", "lanemq_leased_partitions",
        "Partitions under a lease, once for each group.", |s| s.leased_partitions),
    gauge("segments", "lanemq_log_segments", "Segments of the log.", |s| s.segments),
    gauge("logBytes", "lanemq_log_bytes", "Bytes that the log holds.", |s| s.log_bytes),
    gauge("pendingBytes", "lanemq_log_pending_bytes",
        "Bytes appended and not yet durable.", |s| s.pending_bytes),
    gauge("dedupIds", "lanemq_dedup_ids",
        "Transaction ids kept to recognise repeats.", |s| s.dedup_ids),
    gauge("storageFull", "lanemq_storage_full",
        "1 when growing writes are refused for lack of space.", |s| u64::from(s.storage_full)),
    gauge("faulted", "lanemq_shard_faulted",
        "1 when the shard takes no writes since its disk failed.",
        |s| u64::from(s.fault.is_some())),
];

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::histogram::{Numbers, Sizes};
    use crate::base::ids::{SegmentId, ShardId};
    use crate::model::traffic::Traffic;

    pub(in crate::proto) fn shard(n: u16) -> ShardStats {
        ShardStats {
            shard: ShardId(n),
            pushed: 10,
            duplicates: 1,
            popped: 9,
            acked: 8,
            dead_lettered: 2,
            queues: 3,
            partitions: 4,
            parked: 5,
            leases: 6,
            segments: 7,
            active_segment: SegmentId(1),
            appended_bytes: 4096,
            syncs: 11,
            dedup_ids: 12,
            claims: 13,
            empty_claims: 14,
            groups_kept: 15,
            groups_recoded: 16,
            batches_compressed: 17,
            traffic: Traffic { push_requests: 18, ..Traffic::default() },
            leased_partitions: 19,
            log_bytes: 20,
            pending_bytes: 21,
            written_bytes: 22,
            writes: 23,
            reads: 24,
            read_bytes: 25,
            commit_us: Micros { sum: 2_500_000, counts: std::array::from_fn(|i| i as u64) },
            last_commit_us: 1_500,
            commit_records: Numbers::default(),
            commit_bytes: Sizes::default(),
            fault: None,
            storage_full: n == 1,
        }
    }

    #[test]
    fn the_json_body_has_the_keys_clients_ask_for() {
        let server = ServerStats { uptime_seconds: 3, requests_total: 70, ..Default::default() };
        let mut out = Vec::new();
        encode_json(&[shard(0), shard(1)], &server, &mut out);
        let start = concat!(
            r#"{"uptime":3,"requests":{"total":70,"rate":0},"messages":{"total":20,"rate":0},"#,
            r#""memory":{"rss":0,"heapTotal":0,"heapUsed":0,"external":0,"arrayBuffers":0},"#,
            r#""cpu":{"user":0,"system":0},"engine":"lanemq","connections":0,"#,
            r#""shards":[{"shard":0,"pushed":10,"duplicates":1,"#
        );
        assert!(out.starts_with(start.as_bytes()), "{}", String::from_utf8_lossy(&out));
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["shards"][1]["storageFull"], 1);
        assert_eq!(value["shards"].as_array().unwrap().len(), 2);
    }
}

//! Counters, as JSON and as Prometheus text.

use super::health::ENGINE;
use super::json::{self, Fields};
use crate::model::reply::ShardStats;

/// What the process knows beside its shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    pub uptime_seconds: u64,
    /// Open now / accepted since the start.
    pub connections: u64,
    pub connections_total: u64,
    pub requests_total: u64,
    pub rss_bytes: u64,
    /// Processor time since the start, in microseconds.
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
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
        .end();
}

/// One number of a shard under its two names.
struct Family {
    key: &'static str,
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: Read,
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

type Read = fn(&ShardStats) -> u64;

const fn counter(key: &'static str, name: &'static str, help: &'static str, value: Read) -> Family {
    Family { key, name, kind: COUNTER, help, value }
}

const fn gauge(key: &'static str, name: &'static str, help: &'static str, value: Read) -> Family {
    Family { key, name, kind: GAUGE, help, value }
}

const FAMILIES: [Family; 20] = [
    counter("pushed", "lanemq_pushed_messages_total", "Messages stored.", |s| s.pushed),
    counter(
        "duplicates",
        "lanemq_duplicate_messages_total",
        "Pushed messages answered with their original.",
        |s| s.duplicates,
    ),
    counter("popped", "lanemq_popped_messages_total", "Messages delivered.", |s| s.popped),
    counter("acked", "lanemq_acked_messages_total", "Messages settled by an ack.", |s| s.acked),
    counter(
        "deadLettered",
        "lanemq_dead_lettered_messages_total",
        "Messages filed as dead letters.",
        |s| s.dead_lettered,
    ),
    counter("claims", "lanemq_claims_total", "Claims of a partition that delivered.", |s| s.claims),
    counter(
        "emptyClaims",
        "lanemq_empty_claims_total",
        "Claims of a partition that found nothing.",
        |s| s.empty_claims,
    ),
    counter(
        "groupsKept",
        "lanemq_push_groups_kept_total",
        "Groups that a client compressed, stored as they came.",
        |s| s.groups_kept,
    ),
    counter(
        "groupsRecoded",
        "lanemq_push_groups_recoded_total",
        "Groups that a client compressed, written anew.",
        |s| s.groups_recoded,
    ),
    counter(
        "batchesCompressed",
        "lanemq_batches_compressed_total",
        "Batches that the broker framed and compressed.",
        |s| s.batches_compressed,
    ),
    counter(
        "appendedBytes",
        "lanemq_log_appended_bytes_total",
        "Bytes appended to the log.",
        |s| s.appended_bytes,
    ),
    counter("syncs", "lanemq_log_syncs_total", "Completed syncs of the log.", |s| s.syncs),
    gauge("queues", "lanemq_queues", "Queues.", |s| s.queues),
    gauge("partitions", "lanemq_partitions", "Partitions.", |s| s.partitions),
    gauge("parked", "lanemq_parked_pops", "Pops that wait for a message.", |s| s.parked),
    gauge("leases", "lanemq_leases", "Live leases.", |s| s.leases),
    gauge("segments", "lanemq_log_segments", "Segments of the log.", |s| s.segments),
    gauge("dedupIds", "lanemq_dedup_ids", "Transaction ids kept to recognise repeats.", |s| {
        s.dedup_ids
    }),
    gauge(
        "storageFull",
        "lanemq_storage_full",
        "1 when growing writes are refused for lack of space.",
        |s| u64::from(s.storage_full),
    ),
    gauge(
        "faulted",
        "lanemq_shard_faulted",
        "1 when the shard takes no writes since its disk failed.",
        |s| u64::from(s.fault.is_some()),
    ),
];

/// The exposition format, version 0.0.4: each family with its help and type, one sample for
/// each shard. The only label is the shard's number, so the set is bounded.
pub fn encode_prometheus(shards: &[ShardStats], server: &ServerStats, out: &mut Vec<u8>) {
    let process = [
        ("lanemq_uptime_seconds", GAUGE, "Time since the start.", server.uptime_seconds),
        ("lanemq_process_resident_memory_bytes", GAUGE, "Resident memory.", server.rss_bytes),
        ("lanemq_connections", GAUGE, "Open connections.", server.connections),
        ("lanemq_connections_total", COUNTER, "Accepted connections.", server.connections_total),
        ("lanemq_requests_total", COUNTER, "Requests answered.", server.requests_total),
    ];
    for (name, kind, help, value) in process {
        write_head(name, kind, help, out);
        out.extend_from_slice(name.as_bytes());
        out.push(b' ');
        json::write_integer(out, value);
        out.push(b'\n');
    }
    write_head("lanemq_process_cpu_seconds_total", COUNTER, "Processor time.", out);
    for (mode, us) in [("user", server.cpu_user_us), ("system", server.cpu_system_us)] {
        let (seconds, millis) = (us / 1_000_000, us / 1_000 % 1_000);
        let line =
            format!("lanemq_process_cpu_seconds_total{{mode=\"{mode}\"}} {seconds}.{millis:03}\n");
        out.extend_from_slice(line.as_bytes());
    }
    for family in &FAMILIES {
        write_head(family.name, family.kind, family.help, out);
        for shard in shards {
            out.extend_from_slice(family.name.as_bytes());
            out.extend_from_slice(b"{shard=\"");
            json::write_integer(out, shard.shard.0);
            out.extend_from_slice(b"\"} ");
            json::write_integer(out, (family.value)(shard));
            out.push(b'\n');
        }
    }
}

fn write_head(name: &str, kind: &str, help: &str, out: &mut Vec<u8>) {
    for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::ids::{SegmentId, ShardId};

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

    #[test]
    fn the_text_form_declares_each_family_once() {
        let server = ServerStats { cpu_user_us: 1_234_567, ..Default::default() };
        let mut out = Vec::new();
        encode_prometheus(&[shard(0), shard(1)], &server, &mut out);
        let text = String::from_utf8(out).unwrap();
        let family = concat!(
            "# HELP lanemq_pushed_messages_total Messages stored.\n",
            "# TYPE lanemq_pushed_messages_total counter\n",
            "lanemq_pushed_messages_total{shard=\"0\"} 10\n",
            "lanemq_pushed_messages_total{shard=\"1\"} 10\n"
        );
        assert!(text.contains(family));
        assert!(text.contains("lanemq_process_cpu_seconds_total{mode=\"user\"} 1.234\n"));
        let mut names: Vec<&str> =
            text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let declared = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), declared), (26, 26));
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(names.binary_search(&name).is_ok(), "{line}");
        }
        assert!(text.ends_with('\n'));
    }
}

//! `/metrics/prometheus`: the text exposition format, version 0.0.4.
//!
//! Each family comes once, with its help and its type, and has a sample from the first moment on.
//! Labels are numbers of shards and executors, our own words, and names of queues; of those a
//! bounded number, the rest are summed up under `_other`.

use std::collections::BTreeSet;

use super::json;
use super::metrics::{ANSWER_CODES, COUNTER, FAMILIES, GAUGE, ServerStats};
use crate::base::histogram::{self, BUCKETS, Histogram};
use crate::model::reply::ShardStats;
use crate::model::traffic::{OTHER_QUEUES, QueueTotals, Traffic};

const HISTOGRAM: &str = "histogram";

/// Everything that is shown.
#[derive(Clone, Copy)]
pub struct Exposed<'a> {
    pub shards: &'a [ShardStats],
    pub server: &'a ServerStats,
    /// The named queues, and the sum of the others.
    pub queues: &'a [QueueTotals],
    pub other: &'a QueueTotals,
}

/// What the names of the published brokers need beside.
pub struct Aliases<'a> {
    /// Queues in the minute that was over last.
    pub minute: &'a [(String, Traffic)],
}

type Label<'a> = (&'a str, &'a str);

/// Writes one family after the other.
struct Text<'o> {
    out: &'o mut Vec<u8>,
    name: &'static str,
}

impl Text<'_> {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"] {
            self.out.extend_from_slice(part.as_bytes());
        }
    }

    fn sample(&mut self, suffix: &str, labels: &[Label<'_>], write: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(self.name.as_bytes());
        self.out.extend_from_slice(suffix.as_bytes());
        for (at, (key, value)) in labels.iter().enumerate() {
            self.out.push(if at == 0 { b'{' } else { b',' });
            self.out.extend_from_slice(key.as_bytes());
            self.out.extend_from_slice(b"=\"");
            write_label(self.out, value);
            self.out.push(b'"');
        }
        if !labels.is_empty() {
            self.out.push(b'}');
        }
        self.out.push(b' ');
        write(self.out);
        self.out.push(b'\n');
    }

    fn integer(&mut self, labels: &[Label<'_>], n: u64) {
        self.sample("", labels, |out| json::write_integer(out, n));
    }

    fn seconds(&mut self, labels: &[Label<'_>], us: u64) {
        self.sample("", labels, |out| write_millionths(out, us));
    }

    /// All buckets, cumulative, then sum and count. `write` shows a value in the family's unit.
    fn histogram<const LEAST: u32>(
        &mut self,
        labels: &[Label<'_>],
        seen: &Histogram<LEAST>,
        write: fn(&mut Vec<u8>, u64),
    ) {
        let mut below = 0;
        for (bucket, count) in seen.counts.iter().enumerate().take(BUCKETS) {
            below += count;
            let mut most = Vec::new();
            match histogram::bound(LEAST, bucket) {
                Some(bound) => write(&mut most, bound),
                None => most.extend_from_slice(b"+Inf"),
            }
            let mut labels: Vec<Label<'_>> = labels.to_vec();
            let most = String::from_utf8_lossy(&most);
            labels.push(("le", &most));
            self.sample("_bucket", &labels, |out| json::write_integer(out, below));
        }
        self.sample("_sum", labels, |out| write(out, seen.sum));
        self.sample("_count", labels, |out| json::write_integer(out, below));
    }
}

/// A label's value: backslash, quote and line end are escaped, nothing else is.
fn write_label(out: &mut Vec<u8>, value: &str) {
    for byte in value.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\n' => out.extend_from_slice(b"\\n"),
            other => out.push(other),
        }
    }
}

fn write_plain(out: &mut Vec<u8>, n: u64) {
    json::write_integer(out, n);
}

/// Microseconds as seconds, exactly.
fn write_millionths(out: &mut Vec<u8>, us: u64) {
    json::write_integer(out, us / 1_000_000);
    let mut rest = us % 1_000_000;
    if rest == 0 {
        return;
    }
    out.push(b'.');
    let mut digit = 100_000;
    while rest > 0 {
        out.push(b'0' + (rest / digit) as u8);
        rest %= digit;
        digit /= 10;
    }
}

/// Writes all families.
pub fn encode(exposed: &Exposed<'_>, out: &mut Vec<u8>) {
    let mut text = Text { out, name: "" };
    write_process(exposed.server, &mut text);
    write_http(exposed.server, &mut text);
    write_executors(exposed.server, &mut text);
    write_shards(exposed.shards, &mut text);
    write_queues(exposed, &mut text);
}

fn write_process(server: &ServerStats, text: &mut Text<'_>) {
    text.family("lanemq_build_info", GAUGE, "1, with the version of the broker.");
    text.integer(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let numbers = [
        ("lanemq_uptime_seconds", GAUGE, "Time since the start.", server.uptime_seconds),
        ("lanemq_process_resident_memory_bytes", GAUGE, "Resident memory.", server.rss_bytes),
        ("lanemq_process_virtual_memory_bytes", GAUGE, "Address space.", server.virtual_bytes),
        ("lanemq_connections", GAUGE, "Open connections.", server.connections),
        ("lanemq_connections_total", COUNTER, "Accepted connections.", server.connections_total),
        (
            "lanemq_connections_refused_total",
            COUNTER,
            "Connections turned away because there were too many.",
            server.connections_refused,
        ),
        ("lanemq_requests_total", COUNTER, "Requests taken in.", server.requests_total),
        ("lanemq_open_requests", GAUGE, "Requests without an answer.", server.open_requests),
    ];
    for (name, kind, help, value) in numbers {
        text.family(name, kind, help);
        text.integer(&[], value);
    }
    text.family("lanemq_process_cpu_seconds_total", COUNTER, "Processor time.");
    text.seconds(&[("mode", "user")], server.cpu_user_us);
    text.seconds(&[("mode", "system")], server.cpu_system_us);
    text.family("lanemq_disk_used_ratio", GAUGE, "Use of the file system that holds the log.");
    let used = server.disk_used_pct.unwrap_or(0);
    text.sample("", &[], |out| json::write_decimal(out, used as f64 / 100.0));
}

fn write_http(server: &ServerStats, text: &mut Text<'_>) {
    text.family("lanemq_http_answers_total", COUNTER, "Answers by route and kind of status.");
    for route in &server.routes {
        for (code, count) in ANSWER_CODES.into_iter().zip(route.answers) {
            text.integer(&[("route", route.route), ("code", code)], count);
        }
    }
    let help = "Time from a whole request to its answer.";
    text.family("lanemq_http_request_seconds", HISTOGRAM, help);
    for route in &server.routes {
        text.histogram(&[("route", route.route)], &route.us, write_millionths);
    }
}

fn write_executors(server: &ServerStats, text: &mut Text<'_>) {
    let help = "The longest turn of an executor's tasks in each 10 ms with work.";
    text.family("lanemq_reactor_delay_seconds", HISTOGRAM, help);
    for (at, executor) in server.executors.iter().enumerate() {
        let number = at.to_string();
        text.histogram(&[("executor", &number)], &executor.reactor_us, write_millionths);
    }
    text.family("lanemq_recovery_seconds", GAUGE, "What reading the logs at the start took.");
    for (at, executor) in server.executors.iter().enumerate() {
        text.seconds(&[("executor", &at.to_string())], executor.recovery_us);
    }
}

fn write_shards(shards: &[ShardStats], text: &mut Text<'_>) {
    let numbers: Vec<String> = shards.iter().map(|shard| shard.shard.0.to_string()).collect();
    let each = || shards.iter().zip(numbers.iter().map(|number| [("shard", number.as_str())]));
    for family in &FAMILIES {
        text.family(family.name, family.kind, family.help);
        each().for_each(|(shard, labels)| text.integer(&labels, (family.value)(shard)));
    }
    let help = "Time from push to delivery, summed over the delivered messages.";
    text.family("lanemq_delivery_lag_seconds_total", COUNTER, help);
    each().for_each(|(shard, labels)| text.seconds(&labels, shard.traffic.lag_us_sum));
    text.family("lanemq_log_commit_seconds", HISTOGRAM, "Time of a commit: write and sync.");
    for (shard, labels) in each() {
        text.histogram(&labels, &shard.commit_us, write_millionths);
    }
    text.family("lanemq_log_commit_records", HISTOGRAM, "Records that shared a commit.");
    each().for_each(|(shard, labels)| text.histogram(&labels, &shard.commit_records, write_plain));
    text.family("lanemq_log_commit_bytes", HISTOGRAM, "Bytes of a commit, padding included.");
    each().for_each(|(shard, labels)| text.histogram(&labels, &shard.commit_bytes, write_plain));
}

/// One number of a queue.
struct QueueFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&QueueTotals) -> u64,
}

const fn queue(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&QueueTotals) -> u64,
) -> QueueFamily {
    QueueFamily { name, kind, help, value }
}

#[rustfmt::skip]
const QUEUE_FAMILIES: [QueueFamily; 15] = [
    queue("lanemq_queue_pushed_messages_total", COUNTER, "Messages stored, by queue.",
        |q| q.traffic.push_messages),
    queue("lanemq_queue_popped_messages_total", COUNTER, "Messages delivered, by queue.",
        |q| q.traffic.pop_messages),
    queue("lanemq_queue_acked_messages_total", COUNTER, "Acks that settled a message, by queue.",
        |q| q.traffic.ack_success),
    queue("lanemq_queue_failed_acks_total", COUNTER,
        "Acks that were refused or that said the work had failed, by queue.",
        |q| q.traffic.ack_failed),
    queue("lanemq_queue_empty_pops_total", COUNTER, "Pops without a message, by queue.",
        |q| q.traffic.pop_empty),
    queue("lanemq_queue_dead_lettered_messages_total", COUNTER,
        "Messages filed as dead letters, by queue.", |q| q.traffic.dead_letters),
    queue("lanemq_queue_conflated_messages_total", COUNTER,
        "Messages that a newer one took the place of, by queue.", |q| q.traffic.conflated),
    queue("lanemq_queue_partitions_created_total", COUNTER, "Partitions made, by queue.",
        |q| q.traffic.partitions_created),
    queue("lanemq_queue_partitions", GAUGE, "Partitions, by queue.", |q| q.partitions),
    queue("lanemq_queue_messages", GAUGE, "Messages kept, by queue.", |q| q.messages),
    queue("lanemq_queue_pending_messages", GAUGE,
        "Messages that the slowest group has not settled, by queue.", |q| q.unconsumed),
    queue("lanemq_queue_leased_messages", GAUGE, "Messages under a lease, by queue.",
        |q| q.processing),
    queue("lanemq_queue_dead_letters", GAUGE, "Dead letters, by queue.", |q| q.dead_letters),
    queue("lanemq_queue_retained_bytes", GAUGE, "Bytes of stored messages, by queue.",
        |q| q.retained_bytes),
    queue("lanemq_queue_parked_pops", GAUGE, "Pops that wait for a message, by queue.",
        |q| q.parked),
];

fn write_queues(exposed: &Exposed<'_>, text: &mut Text<'_>) {
    for family in &QUEUE_FAMILIES {
        text.family(family.name, family.kind, family.help);
        for queue in exposed.queues {
            text.integer(&[("queue", &queue.queue)], (family.value)(queue));
        }
        text.integer(&[("queue", OTHER_QUEUES)], (family.value)(exposed.other));
    }
    let help = "Time from push to delivery, summed over the delivered messages, by queue.";
    text.family("lanemq_queue_delivery_lag_seconds_total", COUNTER, help);
    for queue in exposed.queues {
        text.seconds(&[("queue", &queue.queue)], queue.traffic.lag_us_sum);
    }
    text.seconds(&[("queue", OTHER_QUEUES)], exposed.other.traffic.lag_us_sum);
}

/// Name and help of a family, and its number in a `T`.
type Alias<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Writes what boards made for the published brokers read, under the names they have there.
pub fn encode_aliases(exposed: &Exposed<'_>, aliases: &Aliases<'_>, out: &mut Vec<u8>) {
    let mut text = Text { out, name: "" };
    let server = exposed.server;
    text.family("queen_uptime_seconds", GAUGE, "Time since the start.");
    text.integer(&[], server.uptime_seconds);
    text.family("queen_process_resident_memory_bytes", GAUGE, "Resident memory.");
    text.integer(&[], server.rss_bytes);
    let counts: [Alias<Traffic>; 6] = [
        ("queen_process_push_requests_total", "Pushes.", |t| t.push_requests),
        ("queen_process_push_messages_total", "Messages stored.", |t| t.push_messages),
        ("queen_process_pop_requests_total", "Pops.", |t| t.pop_requests),
        ("queen_process_pop_messages_total", "Messages delivered.", |t| t.pop_messages),
        ("queen_process_ack_requests_total", "Requests with acks.", |t| t.ack_requests),
        ("queen_process_ack_messages_total", "Acks.", |t| t.ack_success + t.ack_failed),
    ];
    for (name, help, count) in counts {
        text.family(name, COUNTER, help);
        text.integer(&[], exposed.shards.iter().map(|shard| count(&shard.traffic)).sum());
    }
    text.family("queen_raft_storage_full", GAUGE, "1 when pushes are refused for lack of space.");
    text.integer(&[], u64::from(exposed.shards.iter().any(|shard| shard.storage_full)));
    let help = "Mean of the longest turns of an executor's tasks in each 10 ms, in milliseconds.";
    text.family("queen_event_loop_lag_avg_milliseconds", GAUGE, help);
    for (at, executor) in server.executors.iter().enumerate() {
        let mean = executor.reactor_us.sum as f64 / executor.reactor_us.count().max(1) as f64;
        let number = at.to_string();
        text.sample("", &[("worker", &number)], |out| json::write_decimal(out, mean / 1_000.0));
    }
    let gauges: [Alias<QueueTotals>; 2] = [
        ("queen_parked_long_polls", "Pops that wait, by queue.", |q| q.parked),
        ("queen_dlq_depth_by_queue", "Dead letters, by queue.", |q| q.dead_letters),
    ];
    for (name, help, value) in gauges {
        text.family(name, GAUGE, help);
        for queue in exposed.queues {
            text.integer(&[("queue", &queue.queue)], value(queue));
        }
        text.integer(&[("queue", OTHER_QUEUES)], value(exposed.other));
    }
    write_minute(exposed, aliases, &mut text);
}

fn write_minute(exposed: &Exposed<'_>, aliases: &Aliases<'_>, text: &mut Text<'_>) {
    let named: BTreeSet<&str> = exposed.queues.iter().map(|q| q.queue.as_str()).collect();
    let mut other = Traffic::default();
    let unnamed = aliases.minute.iter().filter(|(name, _)| !named.contains(&**name));
    unnamed.for_each(|(_, traffic)| other.add(traffic));
    let rows = || {
        let rows = aliases.minute.iter().filter(|(name, _)| named.contains(&**name));
        rows.map(|(name, traffic)| (name.as_str(), traffic)).chain([(OTHER_QUEUES, &other)])
    };
    let help = "Time from push to delivery in the last minute, in milliseconds.";
    text.family("queen_queue_pop_lag_milliseconds", GAUGE, help);
    for (queue, traffic) in rows() {
        let mean = traffic.lag_us_mean().unwrap_or(0) / 1_000;
        text.integer(&[("queue", queue), ("stat", "avg")], mean);
        text.integer(&[("queue", queue), ("stat", "max")], traffic.lag_us_max / 1_000);
    }
    text.family("queen_queue_conflated_per_minute", GAUGE, "Replaced in the last minute.");
    rows().for_each(|(queue, traffic)| text.integer(&[("queue", queue)], traffic.conflated));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::metrics::tests::shard;
    use crate::proto::metrics::{ExecutorStats, RouteStats};

    fn exposed(queues: &[QueueTotals]) -> String {
        let route = RouteStats { route: "push", ..RouteStats::default() };
        let server = ServerStats {
            cpu_user_us: 1_234_567,
            routes: vec![route],
            executors: vec![ExecutorStats::default(); 2],
            ..ServerStats::default()
        };
        let (shards, other) = ([shard(0), shard(1)], QueueTotals::default());
        let exposed = Exposed { shards: &shards, server: &server, queues, other: &other };
        let mut out = Vec::new();
        encode(&exposed, &mut out);
        let minute = [("q".to_owned(), Traffic::default())];
        encode_aliases(&exposed, &Aliases { minute: &minute }, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_text_form_declares_each_family_once() {
        let text = exposed(&[]);
        let family = concat!(
            "# HELP lanemq_pushed_messages_total Messages stored.\n",
            "# TYPE lanemq_pushed_messages_total counter\n",
            "lanemq_pushed_messages_total{shard=\"0\"} 10\n",
            "lanemq_pushed_messages_total{shard=\"1\"} 10\n"
        );
        assert!(text.contains(family));
        assert!(text.contains("lanemq_process_cpu_seconds_total{mode=\"user\"} 1.234567\n"));
        assert!(text.contains("lanemq_http_answers_total{route=\"push\",code=\"429\"} 0\n"));
        let mut names: Vec<&str> =
            text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let declared = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), declared);
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_sum", "_count"].into_iter().find_map(|s| name.strip_suffix(s));
            let known = |name: &str| names.binary_search(&name).is_ok();
            assert!(known(name) || base.is_some_and(known), "{line}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let text = exposed(&[]);
        let of = |suffix: &str| {
            let start = format!("lanemq_log_commit_seconds{suffix}");
            text.lines().find_map(|l| l.strip_prefix(&start).map(str::to_owned)).unwrap()
        };
        assert_eq!(of("_bucket{shard=\"0\",le=\"0.000016\"}"), " 0");
        assert_eq!(of("_bucket{shard=\"0\",le=\"0.000064\"}"), " 3");
        assert_eq!(of("_bucket{shard=\"0\",le=\"+Inf\"}"), " 276");
        assert_eq!(of("_count{shard=\"0\"}"), " 276");
        assert_eq!(of("_sum{shard=\"0\"}"), " 2.5");
    }

    #[test]
    fn names_of_queues_are_escaped() {
        let queue =
            QueueTotals {
                queue: "a\"b\\c\nd é".to_owned(), messages: 7, ..QueueTotals::default()
            };
        let text = exposed(&[queue]);
        assert!(text.contains("lanemq_queue_messages{queue=\"a\\\"b\\\\c\\nd é\"} 7\n"));
        assert!(text.contains("lanemq_queue_messages{queue=\"_other\"} 0\n"));
    }
}

//! The series of `/api/v1/analytics`, by queue and by label.

use std::collections::{BTreeMap, BTreeSet};

use super::json::{self, Fields};
use super::query::Query;
use super::series::{Labels, Point, Points, Series, sum_of};
use super::status::millis;
use super::system::{VitalsMinute, by_bucket};
use super::window::Window;
use crate::base::ids::PartitionId;
use crate::base::limits;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::QueueRow;
use crate::model::traffic::{Failure, QueueLiveness, QueueTotals, Traffic};

/// What rows are put together by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupBy {
    Namespace,
    Task,
    Queue,
}

impl GroupBy {
    pub fn decode(query: &Query<'_>) -> Result<Option<Self>, Refusal> {
        match query.text("groupBy").map(|value| &**value) {
            None => Ok(None),
            Some("namespace") => Ok(Some(Self::Namespace)),
            Some("task") => Ok(Some(Self::Task)),
            Some("queue") => Ok(Some(Self::Queue)),
            Some(_) => Err(Refusal::new(ErrorCode::BadRequest, "bad groupBy")),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Task => "task",
            Self::Queue => "queue",
        }
    }

    fn key<'l>(self, labels: &'l Labels, queue: &'l str) -> &'l str {
        let (namespace, task) = labels.get(queue);
        match self {
            Self::Namespace => namespace,
            Self::Task => task,
            Self::Queue => queue,
        }
    }
}

fn begin<'o>(series: &Series, out: &'o mut Vec<u8>) -> Fields<'o> {
    let mut fields = Fields::begin(out);
    series.window.write_range(&mut fields);
    fields.integer("bucketMinutes", series.window.bucket_minutes);
    fields
}

fn write_bucket(at: u64, fields: &mut Fields<'_>) {
    json::write_seconds(fields.key("bucket"), Window::minute_us(at));
}

/// Null where nothing was delivered.
fn write_lag(traffic: &Traffic, fields: &mut Fields<'_>) {
    let mean = traffic.lag_us_mean();
    fields
        .integer_or_null("avgLagMs", millis(mean))
        .integer_or_null("maxLagMs", millis(mean.map(|_| traffic.lag_us_max)));
}

/// `queue-lag`: a bare array, newest bucket first.
pub fn encode_queue_lag(series: &Series, out: &mut Vec<u8>) {
    let mut points = series.points();
    points.retain(|(_, _, point)| point.traffic.pop_messages > 0);
    points.sort_by_key(|(at, _, _)| std::cmp::Reverse(*at));
    out.push(b'[');
    for (index, (at, queue, point)) in points.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let mut fields = Fields::begin(out);
        fields.text("queueName", queue).integer("popCount", point.traffic.pop_messages);
        write_lag(&point.traffic, &mut fields);
        fields.integer("bucketMinutes", series.window.bucket_minutes);
        json::write_seconds(fields.key("bucketTime"), Window::minute_us(at));
        fields.end();
    }
    out.push(b']');
}

/// `queue-ops`.
pub fn encode_queue_ops(series: &Series, out: &mut Vec<u8>) {
    let seconds = series.window.bucket_seconds() as f64;
    let points = series.points();
    let mut fields = begin(series, out);
    fields.integer("pointCount", points.len());
    fields.objects("series", points, |(at, queue, point), f| {
        let traffic = &point.traffic;
        write_bucket(at, f);
        f.text("queueName", queue)
            .integer("pushRequests", traffic.push_requests)
            .integer("pushMessages", traffic.push_messages)
            .integer("popRequests", traffic.pop_requests)
            .integer("popMessages", traffic.pop_messages)
            .integer("popEmpty", traffic.pop_empty)
            .integer("ackRequests", traffic.ack_requests)
            .integer("ackSuccess", traffic.ack_success)
            .integer("ackFailed", traffic.ack_failed)
            .integer("dlqCount", traffic.dead_letters)
            .integer("transactions", traffic.transactions)
            .integer("conflated", traffic.conflated)
            .integer("partitionsCreated", traffic.partitions_created)
            .integer("partitionsDeleted", traffic.partitions_deleted)
            .null("partitionCount");
        write_lag(traffic, f);
        let acks = traffic.ack_success + traffic.ack_failed;
        f.decimal("pushPerSecond", traffic.push_messages as f64 / seconds)
            .decimal("popPerSecond", traffic.pop_messages as f64 / seconds)
            .decimal("ackPerSecond", acks as f64 / seconds)
            .decimal("emptyPerSecond", traffic.pop_empty as f64 / seconds)
            .integer("parkedCount", point.parked());
    });
    fields.texts("queues", series.queues.keys()).end();
}

/// `queue-parked-replicas`: who holds the parked pops, by shard.
pub fn encode_parked(series: &Series, hostname: &str, out: &mut Vec<u8>) {
    let points = series.points();
    let rows: Vec<(u64, &str, u16, u64)> = points
        .iter()
        .flat_map(|(at, queue, point)| {
            point.parked.iter().map(|(shard, parked)| (*at, *queue, *shard, *parked))
        })
        .collect();
    let shards: BTreeSet<u16> = rows.iter().map(|row| row.2).collect();
    let mut fields = begin(series, out);
    fields
        .objects("series", rows, |(at, queue, shard, parked), f| {
            write_bucket(at, f);
            f.text("queueName", queue)
                .text("hostname", hostname)
                .integer("workerId", shard)
                .integer("parkedCount", parked);
        })
        .objects("replicas", shards, |shard, f| {
            f.text("hostname", hostname).integer("workerId", shard);
        })
        .end();
}

fn write_retention(traffic: &Traffic, fields: &mut Fields<'_>) {
    let total = traffic.retention_messages
        + traffic.completed_retention_messages
        + traffic.evicted_messages;
    fields
        .integer("retentionMsgs", traffic.retention_messages)
        .integer("completedRetentionMsgs", traffic.completed_retention_messages)
        .integer("evictionMsgs", traffic.evicted_messages)
        .integer("totalMsgs", total)
        .integer("eventCount", traffic.retention_steps);
}

/// `retention`: what retention dropped.
pub fn encode_retention(
    series: &Series,
    labels: &Labels,
    group_by: Option<GroupBy>,
    out: &mut Vec<u8>,
) {
    let mut fields = begin(series, out);
    let dropping = series.total.iter().filter(|(_, traffic)| traffic.retention_steps > 0);
    fields
        .objects("series", dropping, |(at, traffic), f| {
            write_bucket(*at, f);
            write_retention(traffic, f);
        })
        .object("totals", |f| write_retention(&series.sum(), f));
    if let Some(group_by) = group_by {
        let groups = series.by_key(|queue| group_by.key(labels, queue));
        let rows = groups
            .into_iter()
            .map(|(key, (queues, points))| (key, queues, sum_of(&points)))
            .filter(|(_, _, traffic)| traffic.retention_steps > 0);
        fields.objects("rows", rows, |(key, queues, traffic), f| {
            f.text("key", key).integer("queues", queues);
            f.object("totals", |f| write_retention(&traffic, f));
        });
    }
    fields.end();
}

/// `worker-metrics`.
pub fn encode_worker_metrics(
    series: &Series,
    (vitals, executors): (&[VitalsMinute], usize),
    (began, pending): (u64, u64),
    hostname: &str,
    out: &mut Vec<u8>,
) {
    let points = series.filled_since(began);
    let buckets = by_bucket(vitals, &series.window);
    let seconds = series.window.bucket_seconds() as f64;
    let mut fields = Fields::begin(out);
    series.window.write_range(&mut fields);
    series.window.write_buckets(points.len(), &mut fields);
    fields.objects("timeSeries", &points, |(at, traffic), f| {
        let vitals = buckets.iter().find(|bucket| bucket.minute == *at);
        write_work((*at, traffic), vitals, seconds, f);
    });
    let latest = vitals.last();
    fields.objects("workers", 0..executors, |worker, f| {
        let delay = latest.and_then(|v| v.delays.get(worker)).copied().unwrap_or_default();
        f.text("hostname", hostname)
            .integer("workerId", worker)
            .decimal("avgEventLoopLagMs", delay.avg_ms())
            .decimal("maxEventLoopLagMs", delay.max_ms())
            .integer("requests", delay.requests);
    });
    let delivered = series.queues.iter().map(|(queue, points)| (queue, sum_of(points)));
    let delivered = delivered.filter(|(_, traffic)| traffic.pop_messages > 0);
    fields.objects("queues", delivered, |(queue, traffic), f| {
        f.text("queueName", queue).integer("popCount", traffic.pop_messages);
        write_lag(&traffic, f);
    });
    let sum = series.sum();
    fields.object("summary", |f| {
        f.integer("totalPushMessages", sum.push_messages)
            .integer("totalPopMessages", sum.pop_messages)
            .integer("totalAckMessages", sum.ack_success + sum.ack_failed)
            .integer("totalPushRequests", sum.push_requests)
            .integer("totalPopRequests", sum.pop_requests)
            .integer("totalAckRequests", sum.ack_requests)
            .integer("totalDbErrors", 0)
            .integer("totalAckFailed", sum.ack_failed)
            .integer("totalDlq", sum.dead_letters)
            .integer("pendingMessages", pending);
    });
    fields.end();
}

fn write_work(
    (at, traffic): (u64, &Traffic),
    vitals: Option<&VitalsMinute>,
    seconds: f64,
    fields: &mut Fields<'_>,
) {
    let acks = traffic.ack_success + traffic.ack_failed;
    json::write_seconds(fields.key("timestamp"), Window::minute_us(at));
    fields
        .integer("pushMessages", traffic.push_messages)
        .integer("popMessages", traffic.pop_messages)
        .integer("ackMessages", acks)
        .integer("pushRequests", traffic.push_requests)
        .integer("popRequests", traffic.pop_requests)
        .integer("ackRequests", traffic.ack_requests)
        .decimal("pushPerSecond", traffic.push_messages as f64 / seconds)
        .decimal("popPerSecond", traffic.pop_messages as f64 / seconds)
        .decimal("ackPerSecond", acks as f64 / seconds)
        .decimal("avgEventLoopLagMs", vitals.map_or(0.0, |v| v.delay().avg_ms()))
        .decimal("maxEventLoopLagMs", vitals.map_or(0.0, |v| v.delay().max_ms()));
    write_lag(traffic, fields);
    fields
        .integer("lagCount", traffic.pop_messages)
        .integer("dbErrors", 0)
        .integer("ackSuccess", traffic.ack_success)
        .integer("ackFailed", traffic.ack_failed)
        .integer("dlqCount", traffic.dead_letters)
        .integer("jobsDone", traffic.push_requests + traffic.pop_requests + traffic.ack_requests);
}

// ---- workload

/// What queues of one key hold now, and which of them were touched.
#[derive(Default)]
struct Held {
    totals: QueueTotals,
    queues: u64,
    without_group: u64,
    pending_without_group: u64,
    touched: u64,
    active: u64,
}

impl Held {
    fn take(&mut self, totals: &QueueTotals, points: Option<&Points>) {
        let seen = points.map(sum_of).unwrap_or_default();
        self.totals.add(totals);
        self.queues += 1;
        if totals.groups == 0 {
            self.without_group += 1;
            self.pending_without_group += totals.unconsumed;
        }
        self.touched += u64::from(points.is_some());
        self.active += u64::from(seen.push_messages + seen.pop_messages > 0);
    }

    fn write(&self, fields: &mut Fields<'_>) {
        let totals = &self.totals;
        fields
            .integer("pending", totals.unconsumed.saturating_sub(totals.processing))
            .integer("processing", totals.processing)
            .integer("deadLetter", totals.dead_letters)
            .integer("retainedBytes", totals.retained_bytes)
            .integer("partitions", totals.partitions)
            .integer("groups", totals.groups)
            .integer("queuesWithoutGroup", self.without_group)
            .integer("pendingWithoutGroup", self.pending_without_group)
            .integer("queuesTouched", self.touched)
            .integer("queuesActive", self.active);
    }
}

/// `workload`: rows by label or by queue, with series aligned to `buckets`.
pub fn encode_workload(
    series: &Series,
    (labels, group_by, began): (&Labels, GroupBy, u64),
    totals: &[QueueTotals],
    out: &mut Vec<u8>,
) {
    let mut held: BTreeMap<&str, Held> = BTreeMap::new();
    let mut all = Held::default();
    for queue in totals {
        let points = series.queues.get(&queue.queue);
        held.entry(group_by.key(labels, &queue.queue)).or_default().take(queue, points);
        all.take(queue, points);
    }
    let mut moved = series.by_key(|queue| group_by.key(labels, queue));
    held.keys().for_each(|key| _ = moved.entry(key).or_default());
    let everything = series.by_key(|_| "").remove("").unwrap_or_default().1;
    let buckets: Vec<u64> = series.window.buckets_since(began).collect();
    let mut fields = begin(series, out);
    fields.text("groupBy", group_by.word());
    let list = fields.key("buckets");
    json::write_array(list, &buckets, |out, at| json::write_seconds(out, Window::minute_us(*at)));
    let none = Held::default();
    fields.objects("rows", &moved, |(key, (_, points)), f| {
        f.text("key", key);
        write_load(points, held.get(key).unwrap_or(&none), &buckets, f);
        if group_by == GroupBy::Queue {
            let (namespace, task) = labels.get(key);
            f.text("namespace", namespace).text("task", task);
        }
    });
    fields.object("tenant", |f| write_load(&everything, &all, &buckets, f)).end();
}

/// A number of a bucket, where there is one.
type Column = fn(&Point) -> Option<u64>;

fn write_load(points: &Points, held: &Held, buckets: &[u64], fields: &mut Fields<'_>) {
    let sum = sum_of(points);
    fields
        .integer("queues", held.queues)
        .object("window", |f| {
            f.integer("push", sum.push_messages)
                .integer("pop", sum.pop_messages)
                .integer("popEmpty", sum.pop_empty)
                .integer("ackSuccess", sum.ack_success)
                .integer("ackFailed", sum.ack_failed)
                .integer("deadLetter", sum.dead_letters);
            write_lag(&sum, f);
        })
        .object("series", |f| {
            let columns: [(&'static str, Column); 7] = [
                ("push", |p| Some(p.traffic.push_messages)),
                ("pop", |p| Some(p.traffic.pop_messages)),
                ("popEmpty", |p| Some(p.traffic.pop_empty)),
                ("ackFailed", |p| Some(p.traffic.ack_failed)),
                ("parked", |p| Some(p.parked())),
                ("avgLagMs", |p| millis(p.traffic.lag_us_mean())),
                ("maxLagMs", |p| millis(p.traffic.lag_us_mean().map(|_| p.traffic.lag_us_max))),
            ];
            for (key, value) in columns {
                json::write_array(f.key(key), buckets, |out, at| {
                    match points.get(at).and_then(value) {
                        Some(n) => json::write_integer(out, n),
                        None => out.extend_from_slice(b"null"),
                    }
                });
            }
        })
        .object("now", |f| held.write(f));
}

// ---- partitions

/// `partition-liveness`: the queues with most partitions. `cut`: not all partitions were seen.
pub fn encode_liveness(
    seen: &BTreeMap<String, QueueLiveness>,
    queues: &[QueueRow],
    (limit, cut, now_us): (usize, bool, i64),
    out: &mut Vec<u8>,
) {
    let mut rows: Vec<&QueueRow> = queues.iter().filter(|row| row.partitions > 0).collect();
    rows.sort_by(|a, b| b.partitions.cmp(&a.partitions).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(limit);
    let mut fields = Fields::begin(out);
    json::write_millis(fields.key("capturedAt"), now_us);
    fields.objects("rows", rows, |row, f| {
        let none = QueueLiveness::default();
        let live = seen.get(&row.name).unwrap_or(&none);
        f.text("queue", &row.name)
            .text("namespace", &row.options.namespace)
            .text("task", &row.options.task)
            .integer("partitions", row.partitions)
            .integer("live1h", live.live_1h)
            .integer("live24h", live.live_24h)
            .integer("live7d", live.live_7d)
            .integer("created24h", live.created_24h)
            .micros_or_null("oldestWriteAt", live.oldest_write_us)
            .micros_or_null("newestWriteAt", live.newest_write_us)
            .integer("pending", row.counts.unconsumed.saturating_sub(row.counts.processing));
    });
    if cut {
        fields.boolean("truncated", true);
    }
    fields.end();
}

// ---- dead letters

/// Dead letters of one cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    pub text: String,
    pub count: u64,
}

/// What a walk over dead letters has gathered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    pub sample: u64,
    causes: BTreeMap<String, u64>,
    retries: BTreeMap<u32, u64>,
    groups: BTreeMap<String, u64>,
    days: BTreeMap<i64, u64>,
    partitions: BTreeSet<PartitionId>,
    oldest_us: Option<i64>,
    newest_us: Option<i64>,
    bytes: u64,
}

const DAY_US: i64 = 86_400_000_000;

impl Failures {
    pub fn take(&mut self, failure: &Failure) {
        self.sample += 1;
        *self.causes.entry(signature(&failure.error)).or_default() += 1;
        *self.retries.entry(failure.retry_count).or_default() += 1;
        *self.groups.entry(failure.group.clone()).or_default() += 1;
        *self.days.entry(failure.failed_at_us.div_euclid(DAY_US)).or_default() += 1;
        self.partitions.insert(failure.partition);
        let at = Some(failure.failed_at_us);
        self.oldest_us = self.oldest_us.into_iter().chain(at).min();
        self.newest_us = self.newest_us.max(at);
        self.bytes += failure.bytes;
    }

    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// The most frequent causes, most frequent first.
    pub fn causes(&self, limit: usize) -> Vec<Cause> {
        let mut causes: Vec<Cause> = self
            .causes
            .iter()
            .map(|(text, count)| Cause { text: text.clone(), count: *count })
            .collect();
        causes.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.text.cmp(&b.text)));
        causes.truncate(limit);
        causes
    }
}

/// The answer where no queue is named.
pub fn queue_required() -> Refusal {
    Refusal::new(ErrorCode::BadRequest, "queue required")
}

/// `dlq-signatures` of one queue, which has `rows_now` dead letters.
pub fn encode_signatures(queue: &str, rows_now: u64, seen: &Failures, out: &mut Vec<u8>) {
    let share = |n: u64| n as f64 / seen.sample.max(1) as f64;
    let mut fields = Fields::begin(out);
    fields
        .text("queue", queue)
        .integer("rowsNow", rows_now)
        .integer("sample", seen.sample)
        .objects("retryCounts", &seen.retries, |(retries, n), f| {
            f.integer("retryCount", *retries).integer("n", *n);
        })
        .objects("groups", &seen.groups, |(group, n), f| {
            f.text("group", group).integer("n", *n);
        })
        .micros_or_null("oldest", seen.oldest_us)
        .micros_or_null("newest", seen.newest_us)
        .integer("avgBytes", seen.bytes / seen.sample.max(1))
        .objects("signatures", seen.causes(8), |cause, f| {
            f.text("text", &cause.text)
                .integer("n", cause.count)
                .decimal("share", share(cause.count));
        })
        .objects("byDay", &seen.days, |(day, n), f| {
            f.text("day", &day_text(*day)).integer("n", *n);
        })
        .end();
}

fn day_text(day: i64) -> String {
    crate::base::time::millis_text(day.saturating_mul(DAY_US))[..10].to_owned()
}

/// An error text without what differs from one failure to the next: ids, dates and numbers are
/// named by their kind, white space is one space, and the end is cut.
pub fn signature(error: &str) -> String {
    let mut text = String::new();
    for word in error.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        match kind_of(core) {
            Some(kind) => {
                let at = core.as_ptr() as usize - word.as_ptr() as usize;
                text.push_str(&word[..at]);
                text.push_str(kind);
                text.push_str(&word[at + core.len()..]);
            }
            None => text.push_str(word),
        }
        if text.len() > 4 * limits::SIGNATURE_CHARS_MAX {
            break;
        }
    }
    match text.char_indices().nth(limits::SIGNATURE_CHARS_MAX) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

fn kind_of(word: &str) -> Option<&'static str> {
    let hex = |word: &str| word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 {
        return None;
    }
    if word.len() >= 10 && crate::base::time::parse_iso8601(word).is_some() {
        return Some("<date>");
    }
    if word.len() >= 12 && hex(word) && digits < word.len() {
        return Some("<id>");
    }
    let numeric = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b',' | b':' | b'-' | b'_');
    word.bytes().all(numeric).then_some("<n>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ShardId;
    use crate::model::traffic::{MinuteRow, QueueMinute};
    use crate::proto::query::query;

    fn value(encode: impl FnOnce(&mut Vec<u8>)) -> serde_json::Value {
        let mut out = Vec::new();
        encode(&mut out);
        serde_json::from_slice(&out)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out)))
    }

    fn series() -> Series {
        let text = "from=1970-01-01T01:40:00Z&to=1970-01-01T01:43:00Z";
        let mut series = Series::new(Window::decode(&query(text), i64::MAX).unwrap());
        let rows = [(100, "a", 6, 2), (102, "a", 0, 4), (102, "b", 3, 0)];
        for (minute, queue, push_messages, pop_messages) in rows {
            let traffic = Traffic {
                push_messages,
                pop_messages,
                lag_us_sum: pop_messages * 5_000,
                lag_us_max: pop_messages * 7_000,
                retention_messages: push_messages,
                retention_steps: u64::from(push_messages > 0),
                ..Traffic::default()
            };
            let seen = QueueMinute { queue: queue.to_owned(), traffic, parked: pop_messages };
            series.take(ShardId(1), MinuteRow { minute, total: traffic, queues: vec![seen] });
        }
        series
    }

    #[test]
    fn queue_lag_is_newest_first_and_only_where_something_was_delivered() {
        let v = value(|out| encode_queue_lag(&series(), out));
        let rows = v.as_array().unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (&rows[0]["bucketTime"], &rows[0]["popCount"]),
            (&"1970-01-01T01:42:00Z".into(), &4.into())
        );
        assert_eq!((&rows[1]["avgLagMs"], &rows[1]["maxLagMs"]), (&5.into(), &14.into()));
    }

    #[test]
    fn queue_ops_have_rates_and_null_lag_without_pops() {
        let v = value(|out| encode_queue_ops(&series(), out));
        let rows = v["series"].as_array().unwrap();
        assert_eq!((rows.len(), &v["queues"]), (3, &serde_json::json!(["a", "b"])));
        assert_eq!((&rows[0]["pushPerSecond"], &rows[0]["parkedCount"]), (&0.1.into(), &2.into()));
        assert_eq!((&rows[2]["queueName"], &rows[2]["avgLagMs"]), (&"b".into(), &().into()));
    }

    #[test]
    fn parked_pops_are_told_by_shard_and_retention_by_key() {
        let v = value(|out| encode_parked(&series(), "h", out));
        assert_eq!(v["series"].as_array().unwrap().len(), 2);
        assert_eq!(v["replicas"], serde_json::json!([{"hostname": "h", "workerId": 1}]));
        let labels = Labels::default();
        let v = value(|out| encode_retention(&series(), &labels, Some(GroupBy::Queue), out));
        assert_eq!((&v["totals"]["totalMsgs"], &v["totals"]["eventCount"]), (&9.into(), &2.into()));
        assert_eq!(
            (&v["rows"][1]["key"], &v["rows"][1]["totals"]["retentionMsgs"]),
            (&"b".into(), &3.into())
        );
        assert!(GroupBy::decode(&query("groupBy=color")).is_err());
    }

    #[test]
    fn workload_series_are_aligned_and_have_holes() {
        let held = [
            QueueTotals { queue: "a".into(), unconsumed: 4, groups: 1, ..QueueTotals::default() },
            QueueTotals { queue: "c".into(), unconsumed: 9, ..QueueTotals::default() },
        ];
        let labels = Labels::default();
        let v = value(|out| {
            encode_workload(&series(), (&labels, GroupBy::Queue, 0), &held, out);
        });
        assert_eq!(v["buckets"].as_array().unwrap().len(), 4);
        let keys: Vec<&str> =
            v["rows"].as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap()).collect();
        assert_eq!(keys, ["a", "b", "c"]);
        assert_eq!(v["rows"][0]["series"]["push"], serde_json::json!([6, null, 0, null]));
        assert_eq!(v["rows"][0]["series"]["avgLagMs"], serde_json::json!([5, null, 5, null]));
        let now = &v["tenant"]["now"];
        assert_eq!((&now["pendingWithoutGroup"], &now["queuesTouched"]), (&9.into(), &1.into()));
        assert_eq!(v["tenant"]["window"]["push"], 9);
    }

    #[test]
    fn failures_of_one_cause_have_one_signature() {
        let of = signature;
        assert_eq!(of("timeout after 3000 ms"), "timeout after <n> ms");
        assert_eq!(of("user 0192f7a2-6f0e-7abc-8def-0123456789ab  gone"), "user <id> gone");
        assert_eq!(of("at 2026-10-02T09:14:03.5Z, (id=7)"), "at <date>, (id=7)");
        assert_eq!(of("  no\tnumbers\nhere "), "no numbers here");
        assert_eq!(of(&"é".repeat(500)).chars().count(), limits::SIGNATURE_CHARS_MAX);
        assert_eq!(of("code 404:"), "code <n>:");
    }

    #[test]
    fn signatures_count_what_was_seen() {
        let mut seen = Failures::default();
        for n in 0..3 {
            seen.take(&Failure {
                queue: "q".into(),
                group: "g".into(),
                partition: PartitionId(n % 2),
                error: format!("bad row {n}"),
                retry_count: 3,
                failed_at_us: n as i64 * DAY_US,
                bytes: 10,
            });
        }
        let v = value(|out| encode_signatures("q", 3, &seen, out));
        assert_eq!(
            v["signatures"],
            serde_json::json!([{"text": "bad row <n>", "n": 3, "share": 1}])
        );
        assert_eq!((v["byDay"].as_array().unwrap().len(), seen.partitions()), (3, 2));
        assert_eq!((&v["byDay"][1]["day"], &v["avgBytes"]), (&"1970-01-02".into(), &10.into()));
    }
}

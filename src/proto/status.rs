//! `/api/v1/status` and its kin: what the broker did in a window, and what it holds now.

use super::analytics::{self, Cause};
use super::health::ENGINE;
use super::json::{self, Fields};
use super::series::{Filter, Series};
use super::system::{VitalsMinute, by_bucket};
use super::window::Window;
use crate::model::reply::{Counts, QueueRow, ShardStats};
use crate::model::traffic::Traffic;

/// Queues listed in a status, the fullest ones.
const QUEUES_MAX: usize = 1_000;

/// All that a status is made of.
pub struct Status<'a> {
    pub series: &'a Series,
    pub vitals: &'a [VitalsMinute],
    /// The first minute that is known of.
    pub began: u64,
    pub filter: &'a Filter,
    pub queues: &'a [QueueRow],
    pub shards: &'a [ShardStats],
    pub executors: usize,
    pub hostname: &'a str,
    pub failures: &'a analytics::Failures,
}

/// `/status`.
pub fn encode_ok(out: &mut Vec<u8>) {
    Fields::begin(out)
        .text("status", "ok")
        .text("engine", ENGINE)
        .text("version", env!("CARGO_PKG_VERSION"))
        .end();
}

/// The answer to a refresh of statistics, which are always fresh.
pub fn encode_refreshed(out: &mut Vec<u8>) {
    Fields::begin(out)
        .boolean("success", true)
        .boolean("refreshed", false)
        .text("engine", ENGINE)
        .end();
}

pub fn encode(status: &Status<'_>, out: &mut Vec<u8>) {
    let series = status.series;
    let mut points = series.filled_since(status.began);
    points.reverse();
    let buckets = by_bucket(status.vitals, &series.window);
    let traffic = series.sum();
    let rows: Vec<&QueueRow> =
        status.queues.iter().filter(|row| status.filter.matches(&row.name, &row.options)).collect();
    let mut counts = Counts::default();
    rows.iter().for_each(|row| counts.add(&row.counts));
    let mut fields = Fields::begin(out);
    series.window.write_range(&mut fields);
    series.window.write_buckets(points.len(), &mut fields);
    fields.objects("throughput", &points, |(at, traffic), f| {
        let vitals = buckets.iter().find(|bucket| bucket.minute == *at);
        write_point((*at, traffic), vitals, series.window.bucket_seconds(), f);
    });
    write_queues(&rows, &mut fields);
    fields
        .object("messages", |f| write_messages(&counts, &traffic, f))
        .object("leases", |f| write_leases(status, &counts, f))
        .object("deadLetterQueue", |f| write_dead_letters(status, &counts, f));
    write_workers(status, &mut fields);
    fields
        .object("errors", |f| {
            f.integer("dbErrors", 0)
                .integer("ackFailed", traffic.ack_failed)
                .integer("dlqMessages", traffic.dead_letters);
        })
        .integer("statsAge", 0)
        .text("engine", ENGINE)
        .end();
}

/// Milliseconds, `None` where nothing was measured.
pub fn millis(us: Option<u64>) -> Option<u64> {
    us.map(|us| us / 1_000)
}

fn write_point(
    (at, traffic): (u64, &Traffic),
    vitals: Option<&VitalsMinute>,
    seconds: u64,
    fields: &mut Fields<'_>,
) {
    let rate = |n: u64| n as f64 / seconds as f64;
    json::write_seconds(fields.key("timestamp"), Window::minute_us(at));
    fields
        .integer("ingested", traffic.push_messages)
        .integer("processed", traffic.ack_success)
        .integer("popMessages", traffic.pop_messages)
        .decimal("ingestedPerSecond", rate(traffic.push_messages))
        .decimal("processedPerSecond", rate(traffic.ack_success))
        .decimal("popPerSecond", rate(traffic.pop_messages))
        .integer_or_null("avgLagMs", millis(traffic.lag_us_mean()))
        .integer_or_null("maxLagMs", millis(traffic.lag_us_mean().map(|_| traffic.lag_us_max)))
        .decimal("avgEventLoopLagMs", vitals.map_or(0.0, |v| v.delay().avg_ms()))
        .decimal("maxEventLoopLagMs", vitals.map_or(0.0, |v| v.delay().max_ms()))
        .null("minFreeSlots")
        .integer("dbErrors", 0)
        .integer("ackFailed", traffic.ack_failed)
        .integer("dlqCount", traffic.dead_letters);
    let share = |of: fn(&VitalsMinute) -> u64| vitals.map_or(0.0, |v| of(v) as f64 / 100.0);
    fields
        .decimal("queenCpuUserPct", share(|v| v.cpu_user.avg()))
        .decimal("queenCpuSysPct", share(|v| v.cpu_system.avg()))
        .integer("queenRssMb", vitals.map_or(0, |v| v.rss_bytes.avg() >> 20))
        .null("dbPoolSize")
        .null("dbPoolIdle")
        .null("dbPoolActive");
}

fn write_queues(rows: &[&QueueRow], fields: &mut Fields<'_>) {
    let mut holding: Vec<&QueueRow> =
        rows.iter().copied().filter(|row| row.counts.total > 0).collect();
    holding.sort_by_key(|row| std::cmp::Reverse(row.counts.total));
    holding.truncate(QUEUES_MAX);
    fields.objects("queues", holding, |row, f| {
        f.uuid("id", &row.id)
            .text("name", &row.name)
            .text("namespace", &row.options.namespace)
            .text("task", &row.options.task)
            .integer("partitions", row.partitions)
            .integer("totalConsumed", row.counts.total.saturating_sub(row.counts.unconsumed));
    });
}

fn write_messages(counts: &Counts, traffic: &Traffic, fields: &mut Fields<'_>) {
    let settled = counts.total.saturating_sub(counts.unconsumed);
    let per = |messages: u64, requests: u64| messages as f64 / requests.max(1) as f64;
    let acks = traffic.ack_success + traffic.ack_failed;
    fields
        .integer("total", counts.total)
        .integer("pending", counts.unconsumed.saturating_sub(counts.processing))
        .integer("processing", counts.processing)
        .integer("completed", settled.saturating_sub(counts.dead_lettered))
        .integer("failed", 0)
        .integer("deadLetter", counts.dead_lettered)
        .object("requests", |f| {
            f.integer("push", traffic.push_requests)
                .integer("pop", traffic.pop_requests)
                .integer("ack", traffic.ack_requests);
        })
        .object("batchEfficiency", |f| {
            let filled = traffic.pop_requests.saturating_sub(traffic.pop_empty);
            f.decimal("push", per(traffic.push_messages, traffic.push_requests))
                .decimal("pop", per(traffic.pop_messages, filled))
                .decimal("ack", per(acks, traffic.ack_requests));
        });
}

fn write_leases(status: &Status<'_>, counts: &Counts, fields: &mut Fields<'_>) {
    let sum = |of: fn(&ShardStats) -> u64| status.shards.iter().map(of).sum::<u64>();
    fields
        .integer("active", sum(|shard| shard.leases))
        .integer("partitionsWithLeases", sum(|shard| shard.leased_partitions))
        .integer("totalBatchSize", counts.processing)
        .integer("totalAcked", 0);
}

fn write_dead_letters(status: &Status<'_>, counts: &Counts, fields: &mut Fields<'_>) {
    let filed: u64 = status.shards.iter().map(|shard| shard.dead_lettered).sum();
    fields
        .integer("totalMessages", filed.max(counts.dead_lettered))
        .integer("currentMessages", counts.dead_lettered)
        .integer("affectedPartitions", status.failures.partitions())
        .objects("topErrors", status.failures.causes(5), |cause: Cause, f| {
            f.text("error", &cause.text).integer("count", cause.count);
        });
}

fn write_workers(status: &Status<'_>, fields: &mut Fields<'_>) {
    let latest = status.vitals.last();
    fields.objects("workers", 0..status.executors, |worker, f| {
        let delay = latest.and_then(|v| v.delays.get(worker)).copied().unwrap_or_default();
        let here = status.shards.iter().filter(|s| s.shard.index() % status.executors == worker);
        let processed: u64 = here.map(|shard| shard.popped + shard.pushed).sum();
        f.text("hostname", status.hostname)
            .integer("workerId", worker)
            .decimal("avgEventLoopLagMs", delay.avg_ms())
            .decimal("maxEventLoopLagMs", delay.max_ms())
            .integer("messagesProcessed", processed)
            .null("freeSlots")
            .null("dbConnections")
            .null("jobQueueSize");
    });
}

/// `/api/v1/status/analytics`: messages stored, by the hour.
pub fn encode_hours(series: &Series, began: u64, out: &mut Vec<u8>) {
    let points = series.filled_since(began);
    let mut fields = Fields::begin(out);
    fields
        .objects("dataPoints", &points, |(at, traffic), f| {
            json::write_seconds(f.key("timestamp"), Window::minute_us(*at));
            f.integer("messages", traffic.push_messages);
        })
        .text("interval", "hour");
    json::write_millis(fields.key("from"), series.window.from_us);
    json::write_millis(fields.key("to"), series.window.to_us);
    fields.end();
}

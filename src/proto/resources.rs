//! What the broker holds: queues, their partitions, their labels.

use std::collections::BTreeMap;

use super::configure::write_options;
use super::json::{self, Fields};
use super::query::Query;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::{Counts, PartitionRow, QueueDetail, QueueRow};

/// The answer for a queue that is not there.
pub fn queue_not_found() -> Refusal {
    Refusal::new(ErrorCode::NotFound, "Queue not found")
}

/// Writes the list of queues, newest first. The parameters `namespace`, `task` and `search`
/// filter it, `limit` and `offset` cut it, `stats=lanes` leaves the counts out.
pub fn encode_queues(mut rows: Vec<QueueRow>, query: &Query<'_>, out: &mut Vec<u8>) {
    let keep = |filter: &str, value: &str| query.text(filter).is_none_or(|want| want == value);
    rows.retain(|row| {
        keep("namespace", &row.options.namespace)
            && keep("task", &row.options.task)
            && query.text("search").is_none_or(|part| row.name.contains(&**part))
    });
    rows.sort_by(|a, b| b.created_at_us.cmp(&a.created_at_us).then_with(|| a.name.cmp(&b.name)));
    let limit = query.page("limit", usize::MAX, 1..=usize::MAX);
    let offset = query.page("offset", 0, 0..=usize::MAX);
    let page = rows.iter().skip(offset).take(limit);
    let lanes = query.text("stats").is_some_and(|stats| stats == "lanes");
    let mut fields = Fields::begin(out);
    if lanes {
        fields.text("stats", "lanes").objects("queues", page, write_lanes);
    } else {
        fields.objects("queues", page, write_row);
    }
    for key in ["kvRows", "kvBytes", "timerRows", "timerBytes"] {
        fields.integer(key, 0);
    }
    fields.end();
}

fn write_lanes(row: &QueueRow, fields: &mut Fields<'_>) {
    fields
        .uuid("id", &row.id)
        .text("name", &row.name)
        .text("queue", &row.name)
        .integer("partitions", row.partitions)
        .micros("createdAt", row.created_at_us);
}

fn write_row(row: &QueueRow, fields: &mut Fields<'_>) {
    fields
        .uuid("id", &row.id)
        .text("name", &row.name)
        .text("queue", &row.name)
        .text("namespace", &row.options.namespace)
        .text("task", &row.options.task)
        .text("storage", "segments")
        .integer("partitions", row.partitions)
        .object("segments", |f| write_segments(row, f))
        .object("messages", |f| write_counts(&row.counts, Pending::WithoutLeased, f))
        .integer("retainedBytes", row.counts.retained_bytes)
        .object("options", |f| write_options(&row.options, f))
        .micros("createdAt", row.created_at_us);
}

fn write_segments(row: &QueueRow, fields: &mut Fields<'_>) {
    fields.integer("segments", row.segments).integer("messages", row.counts.total);
}

/// Lists and details of this wire count differently.
#[derive(Clone, Copy)]
enum Pending {
    WithLeased,
    WithoutLeased,
}

fn pending(counts: &Counts, pending: Pending) -> u64 {
    match pending {
        Pending::WithLeased => counts.unconsumed,
        Pending::WithoutLeased => counts.unconsumed.saturating_sub(counts.processing),
    }
}

fn completed(counts: &Counts) -> u64 {
    counts.total.saturating_sub(counts.unconsumed).saturating_sub(counts.dead_lettered)
}

fn write_counts(counts: &Counts, kind: Pending, fields: &mut Fields<'_>) {
    fields
        .integer("total", counts.total)
        .integer("pending", pending(counts, kind))
        .integer("processing", counts.processing)
        .integer("completed", completed(counts))
        .integer("deadLetter", counts.dead_lettered);
}

fn write_detail_counts(counts: &Counts, fields: &mut Fields<'_>) {
    fields
        .integer("total", counts.total)
        .integer("pending", pending(counts, Pending::WithLeased))
        .integer("processing", counts.processing)
        .integer("completed", completed(counts))
        .null("failed")
        .integer("deadLetter", counts.dead_lettered);
}

/// Writes one queue with its partitions.
pub fn encode_queue(detail: &QueueDetail, out: &mut Vec<u8>) {
    let row = &detail.row;
    let mut fields = Fields::begin(out);
    fields
        .uuid("id", &row.id)
        .text("name", &row.name)
        .text("namespace", &row.options.namespace)
        .text("task", &row.options.task)
        .micros("createdAt", row.created_at_us)
        .object("options", |f| write_options(&row.options, f))
        .objects("partitions", &detail.partitions, write_partition)
        .object("segments", |f| write_segments(row, f))
        .object("totals", |f| write_detail_counts(&row.counts, f))
        .integer("retainedBytes", row.counts.retained_bytes);
    if detail.truncated {
        fields.boolean("partitionsTruncated", true);
    }
    fields.end();
}

/// Writes one queue as the status pages read it: its options with its partitions.
pub fn encode_queue_status(detail: &QueueDetail, out: &mut Vec<u8>) {
    let row = &detail.row;
    let mut fields = Fields::begin(out);
    fields
        .object("queue", |f| {
            f.uuid("id", &row.id)
                .text("name", &row.name)
                .text("namespace", &row.options.namespace)
                .text("task", &row.options.task)
                .integer("priority", row.options.priority)
                .micros("createdAt", row.created_at_us)
                .object("config", |f| write_options(&row.options, f));
        })
        .objects("partitions", &detail.partitions, write_partition)
        .object("totals", |f| {
            f.object("messages", |f| write_detail_counts(&row.counts, f));
        });
    if detail.truncated {
        fields.boolean("partitionsTruncated", true);
    }
    fields.end();
}

fn write_partition(row: &PartitionRow, fields: &mut Fields<'_>) {
    let id = fields.key("id");
    id.push(b'"');
    json::write_integer(id, row.id.0);
    id.push(b'"');
    fields
        .text("name", &row.name)
        .micros("createdAt", row.created_at_us)
        .object("messages", |f| write_counts(&row.counts, Pending::WithLeased, f))
        .object("stats", |f| write_detail_counts(&row.counts, f))
        .object("cursor", |f| {
            // Batches are not counted apart from their messages.
            f.integer("totalConsumed", row.consumed).integer("batchesConsumed", 0);
        })
        .micros_or_null("lastActivity", row.newest_us)
        .micros_or_null("oldestMessage", row.oldest_us)
        .micros_or_null("newestMessage", row.newest_us)
        .integer("retainedBytes", row.counts.retained_bytes);
}

/// Sums over the queues that carry one label.
#[derive(Default)]
struct LabelSums {
    queues: u64,
    partitions: u64,
    counts: Counts,
}

/// Only labels that are not empty, in their own order.
fn by_label<'r>(
    rows: &'r [QueueRow],
    label: impl Fn(&'r QueueRow) -> &'r str,
) -> BTreeMap<&'r str, LabelSums> {
    let mut sums: BTreeMap<&str, LabelSums> = BTreeMap::new();
    for row in rows.iter().filter(|row| !label(row).is_empty()) {
        let sum = sums.entry(label(row)).or_default();
        sum.queues += 1;
        sum.partitions += row.partitions;
        sum.counts.add(&row.counts);
    }
    sums
}

pub fn encode_namespaces(rows: &[QueueRow], out: &mut Vec<u8>) {
    let sums = by_label(rows, |row| &row.options.namespace);
    encode_labels(["namespaces", "namespace"], &sums, out);
}

pub fn encode_tasks(rows: &[QueueRow], out: &mut Vec<u8>) {
    encode_labels(["tasks", "task"], &by_label(rows, |row| &row.options.task), out);
}

fn encode_labels(
    [list, label]: [&'static str; 2],
    sums: &BTreeMap<&str, LabelSums>,
    out: &mut Vec<u8>,
) {
    let write = |(name, sum): (&&str, &LabelSums), fields: &mut Fields<'_>| {
        fields
            .text(label, name)
            .integer("queues", sum.queues)
            .integer("partitions", sum.partitions)
            .object("messages", |f| {
                f.integer("total", sum.counts.total)
                    .integer("pending", pending(&sum.counts, Pending::WithoutLeased));
            });
    };
    Fields::begin(out).objects(list, sums, write).end();
}

/// Writes the totals of the broker. Both lags are over the queues that lag; that in time is the
/// age in seconds of the oldest message that a queue's slowest reader owes. `oldest_owed` tells
/// when it was pushed; `cut` that not all partitions were looked at for it.
pub fn encode_overview(
    rows: &[QueueRow],
    oldest_owed: impl Fn(&QueueRow) -> Option<i64>,
    cut: bool,
    now_us: i64,
    out: &mut Vec<u8>,
) {
    let mut counts = Counts::default();
    rows.iter().for_each(|row| counts.add(&row.counts));
    let mut lags: Vec<u64> =
        rows.iter().map(|row| row.counts.unconsumed).filter(|lag| *lag > 0).collect();
    lags.sort_unstable();
    let age = |owed_us: i64| u64::try_from(now_us.saturating_sub(owed_us)).unwrap_or(0);
    let mut ages: Vec<u64> =
        rows.iter().filter_map(&oldest_owed).map(|us| age(us) / 1_000_000).collect();
    ages.sort_unstable();
    let mut fields = Fields::begin(out);
    fields
        .integer("queues", rows.len())
        .integer("partitions", rows.iter().map(|row| row.partitions).sum::<u64>())
        .integer("namespaces", by_label(rows, |row| &row.options.namespace).len())
        .integer("tasks", by_label(rows, |row| &row.options.task).len())
        .object("messages", |f| {
            f.integer("total", counts.total)
                .integer("pending", pending(&counts, Pending::WithoutLeased))
                .integer("processing", counts.processing)
                .integer("completed", completed(&counts))
                .integer("failed", 0)
                .integer("deadLetter", counts.dead_lettered);
        })
        .object("lag", |f| {
            f.object("time", |f| write_spread(&ages, f))
                .object("offset", |f| write_spread(&lags, f));
            if cut {
                f.boolean("truncated", true);
            }
        });
    json::write_millis(fields.key("timestamp"), now_us);
    fields.integer("statsAge", 0).end();
}

fn write_spread(sorted: &[u64], fields: &mut Fields<'_>) {
    let average = sorted.iter().sum::<u64>() / (sorted.len() as u64).max(1);
    fields
        .integer("avg", average)
        .integer("median", sorted.get(sorted.len() / 2).copied().unwrap_or(0))
        .integer("min", sorted.first().copied().unwrap_or(0))
        .integer("max", sorted.last().copied().unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::PartitionId;
    use crate::model::options::QueueOptions;
    use crate::proto::query::query;

    fn row(name: &str, created_at_us: i64) -> QueueRow {
        let counts = Counts {
            total: 10,
            unconsumed: 6,
            processing: 2,
            dead_lettered: 1,
            retained_bytes: 999,
        };
        let options = QueueOptions::implicit(name);
        QueueRow {
            id: [7; 16],
            name: name.into(),
            options,
            created_at_us,
            partitions: 2,
            segments: 1,
            counts,
        }
    }

    fn value(encode: impl FnOnce(&mut Vec<u8>)) -> serde_json::Value {
        let mut out = Vec::new();
        encode(&mut out);
        serde_json::from_slice(&out).unwrap()
    }

    fn names(text: &'static str) -> Vec<String> {
        let rows = vec![row("a.x.1", 1), row("b.x.2", 3), row("a.y.3", 2)];
        let list = value(|out| encode_queues(rows, &query(text), out));
        assert_eq!(list["kvRows"], 0);
        let rows = list["queues"].as_array().unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn queues_are_listed_filtered_and_cut() {
        assert_eq!(names(""), ["b.x.2", "a.y.3", "a.x.1"]);
        assert_eq!(names("limit=500&offset=0"), ["b.x.2", "a.y.3", "a.x.1"]);
        assert_eq!(names("limit=1&offset=1"), ["a.y.3"]);
        assert_eq!(names("limit=x&offset=9"), Vec::<String>::new());
        assert_eq!(names("namespace=a&task="), ["a.y.3", "a.x.1"]);
        assert_eq!(names("namespace=a&task=x"), ["a.x.1"]);
        assert_eq!(names("search=.2"), ["b.x.2"]);
    }

    #[test]
    fn a_queue_row_has_the_wires_keys() {
        let mut out = Vec::new();
        encode_queues(vec![row("n.t.q", 0)], &query(""), &mut out);
        let text = String::from_utf8(out).unwrap();
        let start = concat!(
            r#"{"queues":[{"id":"07070707-0707-0707-0707-070707070707","name":"n.t.q","#,
            r#""queue":"n.t.q","namespace":"n","task":"t","storage":"segments","partitions":2,"#,
            r#""segments":{"segments":1,"messages":10},"messages":{"total":10,"pending":4,"#,
            r#""processing":2,"completed":3,"deadLetter":1},"retainedBytes":999,"options":{"#
        );
        assert!(text.starts_with(start), "{text}");
        let end = concat!(
            r#"},"createdAt":"1970-01-01T00:00:00.000000Z"}],"#,
            r#""kvRows":0,"kvBytes":0,"timerRows":0,"timerBytes":0}"#
        );
        assert!(text.ends_with(end), "{text}");
        let lanes = value(|out| encode_queues(vec![row("q", 0)], &query("stats=lanes"), out));
        assert_eq!(lanes["stats"], "lanes");
        assert_eq!(lanes["queues"][0].as_object().unwrap().len(), 5);
    }

    #[test]
    fn a_queue_shows_its_partitions() {
        let partition = PartitionRow {
            id: PartitionId(5),
            name: "p".into(),
            created_at_us: 0,
            counts: row("q", 0).counts,
            consumed: 4,
            oldest_us: None,
            newest_us: Some(1_000_001),
        };
        let mut detail =
            QueueDetail { row: row("q", 0), partitions: vec![partition], truncated: false };
        let v = value(|out| encode_queue(&detail, out));
        assert_eq!((&v["name"], &v["segments"]["messages"]), (&"q".into(), &10.into()));
        assert_eq!((&v["totals"]["pending"], &v["totals"]["failed"]), (&6.into(), &().into()));
        assert_eq!(v.get("partitionsTruncated"), None);
        let mut out = Vec::new();
        let p = &detail.partitions[0];
        let mut fields = Fields::begin(&mut out);
        write_partition(p, &mut fields);
        fields.end();
        let want = concat!(
            r#"{"id":"5","name":"p","createdAt":"1970-01-01T00:00:00.000000Z","messages":"#,
            r#"{"total":10,"pending":6,"processing":2,"completed":3,"deadLetter":1},"stats":"#,
            r#"{"total":10,"pending":6,"processing":2,"completed":3,"failed":null,"#,
            r#""deadLetter":1},"cursor":{"totalConsumed":4,"batchesConsumed":0},"#,
            r#""lastActivity":"1970-01-01T00:00:01.000001Z","oldestMessage":null,"#,
            r#""newestMessage":"1970-01-01T00:00:01.000001Z","retainedBytes":999}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), want);
        detail.truncated = true;
        assert_eq!(value(|out| encode_queue(&detail, out))["partitionsTruncated"], true);
        let v = value(|out| encode_queue_status(&detail, out));
        assert_eq!(v["queue"]["config"]["leaseTime"], 60);
        assert_eq!(
            (&v["totals"]["messages"]["pending"], &v["partitions"][0]["id"]),
            (&6.into(), &"5".into())
        );
        assert_eq!(queue_not_found().text, "Queue not found");
    }

    #[test]
    fn labels_are_summed() {
        let rows = [row("a.x.1", 1), row("a.y.2", 1), row("b", 1), row("", 1)];
        let mut out = Vec::new();
        encode_namespaces(&rows, &mut out);
        let want = concat!(
            r#"{"namespaces":[{"namespace":"a","queues":2,"partitions":4,"messages":"#,
            r#"{"total":20,"pending":8}},{"namespace":"b","queues":1,"partitions":2,"messages":"#,
            r#"{"total":10,"pending":4}}]}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let tasks = value(|out| encode_tasks(&rows, out));
        assert_eq!(tasks["tasks"].as_array().unwrap().len(), 2);
        assert_eq!(value(|out| encode_tasks(&[], out)).to_string(), r#"{"tasks":[]}"#);
    }

    #[test]
    fn the_overview_adds_up() {
        let mut second = row("b", 1);
        second.counts.unconsumed = 0;
        let mut out = Vec::new();
        let now_us = 1_700_000_000_123_456;
        let rows = [row("a.x.1", 1), second];
        let owed = |row: &QueueRow| (row.name != "b").then_some(now_us - 7_999_999);
        encode_overview(&rows, owed, false, now_us, &mut out);
        let want = concat!(
            r#"{"queues":2,"partitions":4,"namespaces":2,"tasks":1,"messages":{"total":20,"#,
            r#""pending":2,"processing":4,"completed":12,"failed":0,"deadLetter":2},"#,
            r#""lag":{"time":{"avg":7,"median":7,"min":7,"max":7},"#,
            r#""offset":{"avg":6,"median":6,"min":6,"max":6}},"#,
            r#""timestamp":"2023-11-14T22:13:20.123Z","statsAge":0}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let empty = value(|out| encode_overview(&[], |_| None, true, 0, out));
        assert_eq!(empty["lag"]["truncated"], true);
        assert_eq!(empty["lag"]["time"]["avg"], 0);
    }
}

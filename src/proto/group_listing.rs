//! Consumer groups: their list, one of them, those that lag.

use super::json::{self, Fields};
use super::loads::{page, seconds_since, write_bounded};
use super::messages::write_partition_id;
use super::query::Query;
use crate::base::limits;
use crate::model::command::QUEUE_MODE;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::inspect::{CursorOrder, CursorQuery, CursorRow, GroupRow};
use crate::model::peer::Subscribed;

/// From this lag on a group counts as lagging.
const LAGGING_SECONDS: u64 = 300;

/// Writes the list: a bare array, by group and queue. `limit`, `offset` and `queue` cut it.
pub fn encode_list(rows: &[GroupRow], query: &Query<'_>, now_us: i64, out: &mut Vec<u8>) {
    let limit = query.page("limit", usize::MAX, 1..=usize::MAX);
    let offset = query.page("offset", 0, 0..=usize::MAX);
    let wanted = |row: &&GroupRow| query.text("queue").is_none_or(|queue| **queue == *row.queue);
    let rows: Vec<&GroupRow> = rows.iter().filter(wanted).skip(offset).take(limit).collect();
    out.push(b'[');
    write_bounded(out, &rows, |row, out| write_group(row, now_us, out));
    out.push(b']');
}

fn write_group(row: &GroupRow, now_us: i64, out: &mut Vec<u8>) {
    let lag = row.oldest_us.map_or(0, |us| seconds_since(us, now_us));
    let state = match (lag > LAGGING_SECONDS, row.consumed) {
        (true, _) => "Lagging",
        (false, true) => "Stable",
        (false, false) => "Dead",
    };
    let mut fields = Fields::begin(out);
    fields.text("name", &row.group);
    let topics = fields.key("topics");
    topics.push(b'[');
    json::write_string(topics, &row.queue);
    topics.push(b']');
    fields
        .text("queueName", &row.queue)
        .integer("members", row.cursors)
        .integer("partitionCursors", row.cursors)
        .integer("partitionsWithLag", row.partitions_behind)
        .integer("totalLag", row.behind)
        .integer("maxTimeLag", lag)
        .text("state", state)
        .text("storage", "segments")
        .text("kind", "queen");
    match row.registration.filter(|_| row.group != QUEUE_MODE) {
        Some(registration) => {
            let (mode, from_us) = match registration.subscribed {
                Subscribed::All => ("all", None),
                Subscribed::New(us) => ("new", Some(us)),
                Subscribed::Timestamp(us) => ("timestamp", Some(us)),
            };
            fields
                .text("subscriptionMode", mode)
                .micros_or_null("subscriptionTimestamp", from_us)
                .micros("subscriptionCreatedAt", registration.created_at_us);
        }
        None => {
            fields
                .null("subscriptionMode")
                .null("subscriptionTimestamp")
                .null("subscriptionCreatedAt");
        }
    }
    fields.boolean("conflation", row.registration.is_some_and(|r| r.conflation)).end();
}

/// One group's partitions.
pub fn decode_detail(group: &str, query: &Query<'_>) -> CursorQuery {
    CursorQuery {
        group: Some(group.to_owned()),
        queue: query.text("queue").map(|queue| queue.clone().into_owned()),
        order: CursorOrder::Name,
        page: page(query, limits::CURSORS_LIMIT_DEFAULT),
    }
}

/// Writes one group: an object by queue, partitions by name. A queue whose partitions go on
/// beyond this page, or beyond what fits, says so.
pub fn encode_detail(
    rows: &[CursorRow],
    truncated: bool,
    now_us: i64,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    if rows.is_empty() {
        return Err(Refusal::new(ErrorCode::NotFound, "Consumer group not found"));
    }
    out.push(b'{');
    let mut queues = rows.chunk_by(|a, b| a.queue == b.queue).peekable();
    let mut first = true;
    while let Some(rows) = queues.next() {
        if !std::mem::replace(&mut first, false) {
            out.push(b',');
        }
        json::write_string(out, &rows[0].queue);
        let conflation = if rows[0].conflation { "true" } else { "false" };
        out.extend_from_slice(b":{\"conflation\":");
        out.extend_from_slice(conflation.as_bytes());
        out.extend_from_slice(b",\"kind\":\"queen\",\"partitions\":[");
        let shown = write_bounded(out, rows, |row, out| write_cursor(row, now_us, out));
        out.push(b']');
        let full = shown < rows.len() || out.len() > limits::LISTING_BYTES_MAX - 4_096;
        if full || truncated && queues.peek().is_none() {
            out.extend_from_slice(b",\"partitionsTruncated\":true");
        }
        out.push(b'}');
        if full {
            break;
        }
    }
    out.push(b'}');
    Ok(())
}

fn write_cursor(row: &CursorRow, now_us: i64, out: &mut Vec<u8>) {
    Fields::begin(out)
        .text("partition", &row.partition)
        // Consumers do not name themselves on this wire.
        .null("workerId")
        .micros_or_null("lastConsumedAt", row.consumed_at_us)
        .integer("totalConsumed", row.next.0)
        .integer("offsetLag", row.behind)
        .integer("timeLagSeconds", row.oldest_us.map_or(0, |us| seconds_since(us, now_us)))
        .boolean("leaseActive", row.leased)
        .end();
}

/// Partitions where a group lags.
pub fn decode_lagging(query: &Query<'_>) -> Result<CursorQuery, Refusal> {
    let seconds = query.integer("minLagSeconds")?;
    let seconds = seconds.map_or(limits::LAG_SECONDS_DEFAULT, |s| u64::try_from(s).unwrap_or(0));
    Ok(CursorQuery {
        group: None,
        queue: query.text("queue").map(|queue| queue.clone().into_owned()),
        order: CursorOrder::Lag { seconds },
        page: page(query, limits::PARTITIONS_LIMIT_MAX),
    })
}

/// Writes a bare array, the oldest first.
pub fn encode_lagging(rows: &[CursorRow], now_us: i64, out: &mut Vec<u8>) {
    out.push(b'[');
    write_bounded(out, rows, |row, out| {
        let seconds = row.oldest_us.map_or(0, |us| seconds_since(us, now_us));
        let mut fields = Fields::begin(out);
        fields
            .text("consumer_group", &row.group)
            .text("queue_name", &row.queue)
            .text("partition_name", &row.partition);
        write_partition_id(fields.key("partition_id"), row.partition_id);
        fields
            .null("worker_id")
            .text("kind", "queen")
            .integer("offset_lag", row.behind)
            .integer("time_lag_seconds", seconds);
        // Hours with two decimals, out of whole numbers.
        let hundredths = seconds / 36;
        let hours = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        fields
            .literal("lag_hours", &hours)
            .micros_or_null("oldest_unconsumed_at", row.oldest_us)
            .micros_or_null("last_consumed_at", row.consumed_at_us)
            .end();
    });
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Offset, PartitionId};
    use crate::model::peer::Registration;
    use crate::proto::query::query;

    fn cursor(queue: &str, partition: &str) -> CursorRow {
        CursorRow {
            group: "g".into(),
            queue: queue.into(),
            partition: partition.into(),
            partition_id: PartitionId(4),
            next: Offset(6),
            behind: 2,
            oldest_us: Some(0),
            consumed_at_us: None,
            leased: true,
            conflation: false,
        }
    }

    #[test]
    fn the_list_has_the_wires_keys() {
        let mut row = GroupRow {
            group: "g".into(),
            queue: "q".into(),
            cursors: 2,
            partitions_behind: 1,
            behind: 5,
            oldest_us: Some(0),
            consumed: true,
            registration: Some(Registration {
                subscribed: Subscribed::New(7),
                created_at_us: 7,
                conflation: false,
            }),
        };
        let mut out = Vec::new();
        encode_list(&[row.clone()], &query(""), 301_000_000, &mut out);
        let want = concat!(
            r#"[{"name":"g","topics":["q"],"queueName":"q","members":2,"partitionCursors":2,"#,
            r#""partitionsWithLag":1,"totalLag":5,"maxTimeLag":301,"state":"Lagging","#,
            r#""storage":"segments","kind":"queen","subscriptionMode":"new","#,
            r#""subscriptionTimestamp":"1970-01-01T00:00:00.000007Z","#,
            r#""subscriptionCreatedAt":"1970-01-01T00:00:00.000007Z","conflation":false}]"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        (row.oldest_us, row.registration) = (None, None);
        let state = |row: &GroupRow, text| {
            let mut out = Vec::new();
            encode_list(std::slice::from_ref(row), &query(text), 0, &mut out);
            let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
            v.get(0).map(|v| (v["state"].to_string(), v["subscriptionMode"].to_string()))
        };
        assert_eq!(state(&row, ""), Some(("\"Stable\"".into(), "null".into())));
        assert_eq!((state(&row, "queue=x"), state(&row, "offset=1")), (None, None));
        row.consumed = false;
        row.registration = Some(Registration {
            subscribed: Subscribed::Timestamp(1),
            created_at_us: 7,
            conflation: true,
        });
        assert_eq!(state(&row, "queue=q"), Some(("\"Dead\"".into(), "\"timestamp\"".into())));
    }

    #[test]
    fn a_group_is_an_object_by_queue() {
        let mut out = Vec::new();
        let rows = [cursor("a", "p"), cursor("b", "p"), cursor("b", "r")];
        encode_detail(&rows, true, 5_000_000, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let start = concat!(
            r#"{"a":{"conflation":false,"kind":"queen","partitions":[{"partition":"p","#,
            r#""workerId":null,"lastConsumedAt":null,"totalConsumed":6,"offsetLag":2,"#,
            r#""timeLagSeconds":5,"leaseActive":true}]},"b":{"#
        );
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("}],\"partitionsTruncated\":true}}"), "{text}");
        let none = encode_detail(&[], false, 0, &mut Vec::new()).unwrap_err();
        assert_eq!((none.code, &*none.text), (ErrorCode::NotFound, "Consumer group not found"));
    }

    #[test]
    fn lagging_partitions_are_told_in_seconds_and_hours() {
        let mut out = Vec::new();
        encode_lagging(&[cursor("q", "p")], 5_436_000_000, &mut out);
        let want = concat!(
            r#"[{"consumer_group":"g","queue_name":"q","partition_name":"p","partition_id":"4","#,
            r#""worker_id":null,"kind":"queen","offset_lag":2,"time_lag_seconds":5436,"#,
            r#""lag_hours":1.51,"oldest_unconsumed_at":"1970-01-01T00:00:00.000000Z","#,
            r#""last_consumed_at":null}]"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        let order = |text| decode_lagging(&query(text)).map(|query| query.order);
        assert_eq!(order(""), Ok(CursorOrder::Lag { seconds: 3_600 }));
        assert_eq!(order("minLagSeconds=-4"), Ok(CursorOrder::Lag { seconds: 0 }));
        assert!(order("minLagSeconds=x").is_err());
    }
}

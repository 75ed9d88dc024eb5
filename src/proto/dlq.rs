//! Listing, purging and replaying dead letters.

use serde::Deserialize;

use super::check_budget;
use super::json::{self, Fields, Text};
use super::messages::write_partition_id;
use super::opener::Opener;
use super::pop::{payload_or_null, unshowable};
use super::query::Query;
use crate::base::buf::IoBuf;
use crate::base::ids::{MessageId, Offset};
use crate::base::{limits, uuid};
use crate::model::command::DeadLetterQuery;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame;
use crate::model::reply::DeadLetter;

/// Reads the filters. A time that is none is refused: taken as absent it would show, and to a
/// tool that then deletes, offer, more than was asked for.
pub fn decode(query: &Query<'_>) -> Result<DeadLetterQuery, Refusal> {
    let text = |key| query.text(key).map(|value| value.clone().into_owned());
    Ok(DeadLetterQuery {
        queue: text("queue"),
        partition: text("partition"),
        group: text("consumerGroup"),
        from_us: query.instant("from")?,
        to_us: query.instant("to")?,
        limit: query.page("limit", limits::DLQ_LIMIT_DEFAULT, 1..=limits::DLQ_LIMIT_MAX),
        offset: query.page("offset", 0, 0..=limits::LISTING_OFFSET_MAX),
    })
}

/// The queue to purge, and the group if only one's rows go. `None` without a queue: a purge of
/// everything is not to be had.
pub fn decode_purge(query: &Query<'_>) -> Option<(String, Option<String>)> {
    let text = |key| query.text(key).map(|value| value.clone().into_owned());
    Some((text("queue")?, text("consumerGroup")))
}

pub fn encode_no_queue(out: &mut Vec<u8>) {
    Fields::begin(out)
        .boolean("success", false)
        .text("error", "queue is required")
        .text("code", ErrorCode::BadRequest.word())
        .text("message", "name the queue whose dead letters are to go")
        .end();
}

pub fn encode_purged(queue: &str, group: Option<&str>, deleted: u64, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields.boolean("success", true).text("queue", queue);
    match group {
        Some(group) => fields.text("consumerGroup", group),
        None => fields.null("consumerGroup"),
    };
    fields.integer("deleted", deleted).end();
}

/// Writes one page. `total` counts all matches; a page whose payloads are as large as an answer
/// may be ends early and says so. Fails, with `out` as it was, when a stored
/// message cannot be shown.
pub fn encode<B: IoBuf>(
    rows: &[DeadLetter<B>],
    total: u64,
    truncated: bool,
    query: &DeadLetterQuery,
    opener: &mut Opener,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let start = out.len();
    out.extend_from_slice(b"{\"messages\":[");
    for (i, row) in rows.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        if let Err(refusal) = write_row(row, opener, out) {
            out.truncate(start);
            return Err(refusal);
        }
    }
    out.extend_from_slice(b"],\"total\":");
    json::write_integer(out, total);
    out.extend_from_slice(b",\"pagination\":");
    Fields::begin(out).integer("limit", query.limit).integer("offset", query.offset).end();
    if truncated {
        out.extend_from_slice(b",\"truncated\":true");
    }
    out.push(b'}');
    Ok(())
}

fn write_row<B: IoBuf>(
    row: &DeadLetter<B>,
    opener: &mut Opener,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let bytes = row.frame.contiguous();
    let Some((frame, [])) = frame::split_frame(&bytes) else {
        return Err(unshowable("a dead letter is not one whole message"));
    };
    let payload = payload_or_null(opener.decrypting.payload(row.partition_id, &frame)?);
    let mut fields = Fields::begin(out);
    fields.uuid("id", &row.id).text("queue", &row.queue).text("partition", &row.partition);
    write_partition_id(fields.key("partitionId"), row.partition_id);
    fields
        .micros("createdAt", row.created_at_us)
        .text("consumerGroup", &row.group)
        .integer("offset", row.offset.0)
        .uuid("messageId", &frame.id.0);
    write_bytes(fields.key("transactionId"), frame.transaction_id);
    // The same value twice: older clients read one key, newer ones the other.
    fields.key("data").extend_from_slice(payload);
    fields.key("payload").extend_from_slice(payload);
    match frame.producer {
        Some(producer) => write_bytes(fields.key("producerSub"), producer),
        None => _ = fields.null("producerSub"),
    }
    fields
        .text("errorMessage", &row.error)
        .integer("retryCount", row.retry_count)
        .micros("failedAt", row.failed_at_us)
        .end();
    Ok(())
}

/// Where a dead letter goes that is replayed: another queue or partition, if the body names one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    pub queue: Option<String>,
    pub partition: Option<String>,
}

#[derive(Deserialize)]
struct WireDestination<'a> {
    #[serde(borrow)]
    queue: Option<Text<'a>>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
}

/// Reads the body of a replay, which may be empty.
pub fn decode_destination(body: &[u8]) -> Result<Destination, Refusal> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let wire: WireDestination<'_> = json::read_object(body)?;
    let own = |name: Option<Text<'_>>| name.map(|Text(name)| name.into_owned());
    let destination = Destination { queue: own(wire.queue), partition: own(wire.partition) };
    let empty = |name: &Option<String>| name.as_ref().is_some_and(String::is_empty);
    if empty(&destination.queue) || empty(&destination.partition) {
        return Err(Refusal::new(ErrorCode::BadRequest, "queue and partition may not be empty"));
    }
    let (queue, partition) = (&destination.queue, &destination.partition);
    check_budget(queue.as_deref().unwrap_or(""), [partition.as_deref().unwrap_or(""), ""])?;
    Ok(destination)
}

/// What a replay pushes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replay {
    pub transaction_id: String,
    pub payload: Vec<u8>,
    pub producer: Option<String>,
    pub original_transaction_id: Vec<u8>,
}

/// The message of a row as it is pushed again: with an id that only this row gives.
pub fn replay_of<B: IoBuf>(row: &DeadLetter<B>, opener: &mut Opener) -> Result<Replay, Refusal> {
    let bytes = row.frame.contiguous();
    let Some((frame, [])) = frame::split_frame(&bytes) else {
        return Err(unshowable("a dead letter is not one whole message"));
    };
    let payload = payload_or_null(opener.decrypting.payload(row.partition_id, &frame)?);
    Ok(Replay {
        transaction_id: format!("dlq:{}", uuid::to_string(&row.id)),
        payload: payload.to_vec(),
        producer: frame.producer.map(|sub| String::from_utf8_lossy(sub).into_owned()),
        original_transaction_id: frame.transaction_id.to_vec(),
    })
}

/// Writes what became of a replay. Where the derived id is stored already nothing is written and
/// the row stays.
pub fn encode_replayed<B: IoBuf>(
    row: &DeadLetter<B>,
    replay: &Replay,
    (queue, partition): (&str, &str),
    (moved, id, offset): (bool, MessageId, Offset),
    out: &mut Vec<u8>,
) {
    let mut fields = Fields::begin(out);
    fields
        .boolean("success", true)
        .text("result", if moved { "moved" } else { "duplicate" })
        .text("queue", queue)
        .text("partition", partition)
        .text("consumerGroup", &row.group)
        .uuid("dlqId", &row.id);
    write_bytes(fields.key("originalTransactionId"), &replay.original_transaction_id);
    fields.object("replayedAs", |pushed| {
        pushed
            .integer("index", 0)
            .uuid("message_id", &id.0)
            .text("transaction_id", &replay.transaction_id)
            .text("queueName", queue)
            .text("status", if moved { "queued" } else { "duplicate" })
            .integer("offset", offset.0);
    });
    fields.boolean("dlqRowRemoved", moved).end();
}

/// There is no such dead letter.
pub fn encode_gone(out: &mut Vec<u8>) {
    Fields::begin(out)
        .boolean("success", false)
        .text("result", "gone")
        .text("error", "Message not found")
        .end();
}

/// The replay cannot be done as asked.
pub fn encode_not_replayed(reason: &str, text: &str, out: &mut Vec<u8>) {
    Fields::begin(out)
        .boolean("success", false)
        .text("error", text)
        .text("reason", reason)
        .boolean("dlqRowRemoved", false)
        .end();
}

fn write_bytes(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    json::write_escaped(out, text);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::{Gather, HeapBuf};
    use crate::base::ids::{MessageId, Offset, PartitionId};
    use crate::proto::query::query;

    #[test]
    fn filters_are_read_with_their_defaults() {
        let all = decode(&query("queue=&consumerGroup=")).unwrap();
        assert_eq!(all, DeadLetterQuery { limit: 100, ..Default::default() });
        let text = "queue=q&partition=p&consumerGroup=g&from=1970-01-01&to=1970-01-02&limit=5000\
                    &offset=-3";
        let want = DeadLetterQuery {
            queue: Some("q".into()),
            partition: Some("p".into()),
            group: Some("g".into()),
            from_us: Some(0),
            to_us: Some(86_400_000_000),
            limit: 1_000,
            offset: 0,
        };
        assert_eq!(decode(&query(text)).unwrap(), want);
        assert_eq!(decode(&query("limit=x&offset=x")).unwrap(), all);
        assert_eq!(decode(&query("from=x")).unwrap_err().code, ErrorCode::BadRequest);
    }

    fn row(frame: Vec<u8>) -> DeadLetter<HeapBuf> {
        DeadLetter {
            id: [0x44; 16],
            queue: "q".into(),
            partition: "p".into(),
            partition_id: PartitionId(7),
            group: "__QUEUE_MODE__".into(),
            offset: Offset(9),
            created_at_us: 1_700_000_000_123_456,
            failed_at_us: 1_700_000_001_000_000,
            error: "why \"so\"".into(),
            retry_count: 3,
            frame: Gather::Owned(frame),
        }
    }

    #[test]
    fn a_page_has_the_wires_keys_in_order() {
        let mut bytes = Vec::new();
        frame::write_frame(&mut bytes, MessageId([0x55; 16]), b"t-1", b"{\"n\": 1}");
        let query = DeadLetterQuery { limit: 100, offset: 2, ..Default::default() };
        let mut out = Vec::new();
        let mut opener = Opener::default();
        encode(&[row(bytes.clone())], 5, false, &query, &mut opener, &mut out).unwrap();
        let want = concat!(
            r#"{"messages":[{"id":"44444444-4444-4444-4444-444444444444","queue":"q","#,
            r#""partition":"p","partitionId":"7","createdAt":"2023-11-14T22:13:20.123456Z","#,
            r#""consumerGroup":"__QUEUE_MODE__","offset":9,"#,
            r#""messageId":"55555555-5555-5555-5555-555555555555","transactionId":"t-1","#,
            r#""data":{"n": 1},"payload":{"n": 1},"producerSub":null,"#,
            r#""errorMessage":"why \"so\"","retryCount":3,"#,
            r#""failedAt":"2023-11-14T22:13:21.000000Z"}],"total":5,"#,
            r#""pagination":{"limit":100,"offset":2}}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        let read: queen_protocol::DlqResponse = serde_json::from_slice(&out).unwrap();
        assert_eq!((read.total, read.messages[0].error.as_deref()), (5, Some("why \"so\"")));

        bytes.push(0);
        let before = out.len();
        assert!(encode(&[row(bytes)], 5, false, &query, &mut opener, &mut out).is_err());
        assert_eq!(out.len(), before);
        out.clear();
        encode::<HeapBuf>(&[], 0, false, &query, &mut opener, &mut out).unwrap();
        let want = br#"{"messages":[],"total":0,"pagination":{"limit":100,"offset":2}}"#;
        assert_eq!(out, want);
    }
}

//! Listing messages and showing one of them.

use std::collections::BTreeMap;

use super::configure::write_options;
use super::json::{self, Fields};
use super::opener::{Decrypting, Inflating, Opener};
use super::pop::{payload_or_null, unshowable};
use super::query::Query;
use crate::base::hash;
use crate::base::ids::PartitionId;
use crate::base::limits;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{self, BATCH_HEAD_BYTES, BatchHead, FLAG_ENCRYPTED, Frame};
use crate::model::inspect::{
    Bodies, MessageDetail, MessageKey, MessageQuery, MessageRow, MessageStatus, Page, ReaderMode,
    StatusFilter,
};

/// What a page shows of payloads, inflated; its first message it shows whatever its size.
const SHOWN_BYTES_MAX: usize = 16 << 20;

/// Reads the filters of the listing.
pub fn decode(query: &Query<'_>) -> Result<MessageQuery, Refusal> {
    let text = |key| query.text(key).map(|value| value.clone().into_owned());
    let status = match query.text("status").map(|word| &**word) {
        None => StatusFilter::Any,
        Some("pending") => StatusFilter::Only(MessageStatus::Pending),
        Some("processing") => StatusFilter::Only(MessageStatus::Processing),
        Some("completed") => StatusFilter::Only(MessageStatus::Completed),
        Some("dead_letter") => StatusFilter::Only(MessageStatus::DeadLetter),
        // A word of the command line tools for what this wire calls a dead letter or pending.
        Some("failed") => StatusFilter::Nothing,
        Some(_) => {
            let text = "status is none of pending, processing, completed, dead_letter";
            return Err(Refusal::new(ErrorCode::BadRequest, text));
        }
    };
    Ok(MessageQuery {
        queue: text("queue"),
        partition: text("partition"),
        namespace: text("namespace"),
        task: text("task"),
        status,
        from_us: query.instant("from")?,
        to_us: query.instant("to")?,
        page: page(query, limits::MESSAGES_LIMIT_DEFAULT, limits::MESSAGES_LIMIT_MAX),
    })
}

/// `limit` and `offset` of a listing.
pub(super) fn page(query: &Query<'_>, default: usize, most: usize) -> Page {
    Page {
        limit: query.page("limit", default, 1..=most),
        offset: query.page("offset", 0, 0..=limits::LISTING_OFFSET_MAX),
    }
}

/// A partition's id out of a path or a body: its decimal digits.
pub fn partition_id(text: &str) -> Option<PartitionId> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok().map(PartitionId)).flatten()
}

/// The answer for a message that is not there.
pub fn not_found() -> Refusal {
    Refusal::new(ErrorCode::NotFound, "Message not found")
}

/// Writes one page. A page whose payloads outgrow an answer ends early and says so.
pub fn encode_list(
    rows: &[MessageRow],
    bodies: &Bodies,
    mode: ReaderMode,
    truncated: bool,
    page: Page,
    opener: &mut Opener,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let frames = frames_of(rows, bodies, &mut opener.inflating)?;
    let shown = frames.iter().take_while(|frame| frame.is_some()).count();
    out.extend_from_slice(b"{\"messages\":[");
    for (at, (row, bytes)) in rows.iter().zip(frames.iter().flatten()).take(shown).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let Some((frame, _)) = frame::split_frame(bytes) else {
            return Err(unshowable("a stored message is not whole"));
        };
        write_row(row, &frame, &mut opener.decrypting, out);
    }
    out.extend_from_slice(b"],\"total\":");
    json::write_integer(out, shown);
    out.extend_from_slice(b",\"pagination\":");
    Fields::begin(out).integer("limit", page.limit).integer("offset", page.offset).end();
    out.extend_from_slice(b",\"mode\":");
    write_mode(mode, out);
    if truncated || shown < rows.len() {
        out.extend_from_slice(b",\"truncated\":true");
    }
    out.push(b'}');
    Ok(())
}

/// The frame of each row, each batch inflated once. `None` for those that no longer fit.
fn frames_of(
    rows: &[MessageRow],
    bodies: &Bodies,
    inflating: &mut Inflating,
) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
    let mut wanted: BTreeMap<u32, BTreeMap<u32, usize>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        wanted.entry(row.place.body).or_default().insert(row.place.index, at);
    }
    let mut frames: Vec<Option<Vec<u8>>> = vec![None; rows.len()];
    let mut bytes = 0;
    for (body, indexes) in wanted {
        let body = bodies.0.get(body as usize).ok_or_else(|| unshowable("a batch is missing"))?;
        let mut rest = inflate(body, inflating)?;
        let mut at = 0;
        for (index, row) in indexes {
            let mut found = None;
            while at <= index {
                let Some((_, after)) = frame::split_frame(rest) else {
                    return Err(unshowable("a stored batch is shorter than its count"));
                };
                found = Some(&rest[..rest.len() - after.len()]);
                (rest, at) = (after, at + 1);
            }
            let Some(found) = found else { continue };
            if row == 0 || bytes + found.len() <= SHOWN_BYTES_MAX {
                bytes += found.len();
                frames[row] = Some(found.to_vec());
            }
        }
    }
    Ok(frames)
}

fn inflate<'a>(body: &'a [u8], inflating: &'a mut Inflating) -> Result<&'a [u8], Refusal> {
    let head = BatchHead::decode(body);
    let stored = body.get(BATCH_HEAD_BYTES..);
    let (Some(head), Some(stored)) = (head, stored) else {
        return Err(unshowable("a stored batch is shorter than its head"));
    };
    inflating.frames(&head, stored)
}

fn write_mode(mode: ReaderMode, out: &mut Vec<u8>) {
    let kind = match (mode.queue_mode, mode.groups > 0) {
        (false, false) => "none",
        (true, false) => "queue",
        (false, true) => "bus",
        (true, true) => "hybrid",
    };
    Fields::begin(out)
        .boolean("hasQueueMode", mode.queue_mode)
        .integer("busGroupsCount", mode.groups)
        .text("type", kind)
        .end();
}

pub(super) fn write_partition_id(out: &mut Vec<u8>, id: PartitionId) {
    out.push(b'"');
    json::write_integer(out, id.0);
    out.push(b'"');
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    json::write_escaped(out, text);
    out.push(b'"');
}

fn write_path(out: &mut Vec<u8>, queue: &str, partition: &str) {
    out.push(b'"');
    json::write_escaped(out, queue.as_bytes());
    out.push(b'/');
    json::write_escaped(out, partition.as_bytes());
    out.push(b'"');
}

/// What a message's own bytes say, the payload twice: clients read either key. One that cannot
/// be decrypted does not hide the others: it shows as `null`.
fn write_frame(
    key: MessageKey,
    frame: &Frame<'_>,
    decrypting: &mut Decrypting,
    fields: &mut Fields<'_>,
) -> bool {
    fields.uuid("id", &frame.id.0);
    write_text(fields.key("transactionId"), frame.transaction_id);
    let payload = decrypting.payload(key.partition, frame);
    let available = payload.is_ok();
    let payload = payload_or_null(payload.unwrap_or_default());
    fields.key("data").extend_from_slice(payload);
    fields.key("payload").extend_from_slice(payload);
    match &frame.trace_id {
        Some(id) => fields.uuid("traceId", id),
        None => fields.null("traceId"),
    };
    match frame.producer {
        Some(producer) => write_text(fields.key("producerSub"), producer),
        None => _ = fields.null("producerSub"),
    }
    available
}

fn write_row(row: &MessageRow, frame: &Frame<'_>, decrypting: &mut Decrypting, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    let available = write_frame(row.key, frame, decrypting, &mut fields);
    let hash = hash::text_hash(frame.transaction_id);
    let out = fields.key("txnHash");
    out.push(b'"');
    for byte in hash {
        out.extend([byte >> 4, byte & 15].map(|n| b"0123456789abcdef"[usize::from(n)]));
    }
    out.push(b'"');
    json::write_millis(fields.key("createdAt"), row.key.created_at_us);
    fields
        .integer("offset", row.key.offset.0)
        .text("queue", &row.queue)
        .text("partition", &row.partition);
    write_partition_id(fields.key("partitionId"), row.key.partition);
    write_path(fields.key("queuePath"), &row.queue, &row.partition);
    fields
        .text("namespace", &row.namespace)
        .text("task", &row.task)
        .integer("queuePriority", row.priority)
        .text("status", row.status.word())
        .text("queueStatus", row.queue_status.word())
        .object("busStatus", |f| {
            f.integer("consumedBy", row.consumed_by).integer("totalGroups", row.groups);
        })
        .object("segment", |f| {
            f.integer("seq", row.segment).integer("frameIdx", row.place.index);
        })
        .boolean("isEncrypted", frame.flags & FLAG_ENCRYPTED != 0)
        .boolean("payloadAvailable", available)
        .micros_or_null("leaseExpiresAt", row.lease_expires_us)
        .end();
}

/// Writes one message in full. Refused where it is another one after all: the index knows
/// messages by fingerprints.
pub fn encode_detail(
    detail: &MessageDetail,
    transaction_id: &str,
    opener: &mut Opener,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let Opener { inflating, decrypting, .. } = opener;
    let frames = inflate(&detail.body, inflating)?;
    let frame = frame::frames(frames).nth(detail.index as usize);
    let frame = frame.ok_or_else(|| unshowable("a stored batch is shorter than its count"))?;
    if frame.transaction_id != transaction_id.as_bytes() {
        return Err(not_found());
    }
    // One message is asked for: what keeps it from being shown is the answer.
    decrypting.payload(detail.key.partition, &frame)?;
    let mut fields = Fields::begin(out);
    write_frame(detail.key, &frame, decrypting, &mut fields);
    fields.micros("createdAt", detail.key.created_at_us).integer("offset", detail.key.offset.0);
    write_partition_id(fields.key("partitionId"), detail.key.partition);
    fields.text("partition", &detail.partition).text("queue", &detail.queue);
    write_path(fields.key("queuePath"), &detail.queue, &detail.partition);
    fields
        .text("namespace", &detail.options.namespace)
        .text("task", &detail.options.task)
        .text("status", detail.status.word());
    match &detail.error {
        Some(error) => fields.text("errorMessage", error),
        None => fields.null("errorMessage"),
    };
    fields
        .integer("retryCount", detail.retry_count)
        .boolean("isEncrypted", frame.flags & FLAG_ENCRYPTED != 0)
        .object("queueConfig", |f| write_options(&detail.options, f));
    write_mode(detail.mode, fields.key("mode"));
    fields
        .objects("consumerGroups", &detail.readers, |reader, f| {
            f.text("name", &reader.group)
                .integer("committed", reader.committed)
                .boolean("consumed", reader.consumed)
                .micros_or_null("leaseExpiresAt", reader.lease_expires_us);
        })
        .end();
    Ok(())
}

/// The answer to the deletion of a message's dead letters; `deleted` is 0 where there are none.
pub fn encode_deleted(partition: &str, transaction_id: &str, deleted: u64, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields
        .boolean("success", deleted > 0)
        .text("partitionId", partition)
        .text("transactionId", transaction_id);
    if deleted > 0 {
        fields.integer("deleted", deleted).end();
        return;
    }
    fields
        .text("error", "Message not found")
        .text("code", ErrorCode::NotFound.word())
        .text("message", "there is no dead letter at this address; live messages are not deleted")
        .end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{MessageId, Offset};
    use crate::model::inspect::{BodyPlace, ReaderRow};
    use crate::model::options::QueueOptions;
    use crate::proto::query::query;

    fn body(payloads: &[&str]) -> Vec<u8> {
        let mut frames = Vec::new();
        for (at, payload) in payloads.iter().enumerate() {
            let id = format!("t{at}");
            let message = MessageId([at as u8; 16]);
            frame::write_frame(&mut frames, message, id.as_bytes(), payload.as_bytes());
        }
        let head = BatchHead {
            base_offset: Offset(4),
            created_at_us: 1_700_000_000_123_456,
            count: payloads.len() as u32,
            codec: frame::CODEC_RAW,
            len: frames.len() as u32,
        };
        [&head.encode()[..], &frames].concat()
    }

    fn key(offset: u64) -> MessageKey {
        let created_at_us = 1_700_000_000_123_456;
        MessageKey { created_at_us, offset: Offset(offset), partition: PartitionId(7) }
    }

    fn row(body: u32, index: u32) -> MessageRow {
        MessageRow {
            key: key(4 + u64::from(index)),
            queue: "q\"".into(),
            partition: "p".into(),
            namespace: "n".into(),
            task: String::new(),
            priority: 5,
            status: MessageStatus::Processing,
            queue_status: MessageStatus::Pending,
            consumed_by: 1,
            groups: 2,
            lease_expires_us: Some(0),
            segment: 3,
            place: BodyPlace { body, index },
        }
    }

    #[test]
    fn filters_are_read_and_unknown_words_refused() {
        let all = decode(&query("queue=&status=")).unwrap();
        assert_eq!((all.status, all.page), (StatusFilter::Any, Page { limit: 200, offset: 0 }));
        let some = decode(&query("queue=q&status=failed&limit=9999&offset=999999")).unwrap();
        assert_eq!(some.queue.as_deref(), Some("q"));
        assert_eq!(some.status, StatusFilter::Nothing);
        assert_eq!((some.page.limit, some.page.offset), (1_000, limits::LISTING_OFFSET_MAX));
        for bad in ["status=lost", "from=x", "to=x"] {
            assert_eq!(decode(&query(bad)).unwrap_err().code, ErrorCode::BadRequest);
        }
    }

    #[test]
    fn a_page_shows_its_rows_in_order_out_of_several_batches() {
        let bodies = Bodies(vec![body(&["1", "{\"a\": 2}"]), body(&["3"])]);
        let rows = [row(0, 1), row(1, 0), row(0, 0)];
        let mut out = Vec::new();
        let (page, mode) =
            (Page { limit: 3, offset: 0 }, ReaderMode { queue_mode: true, groups: 2 });
        let mut opener = Opener::default();
        encode_list(&rows, &bodies, mode, false, page, &mut opener, &mut out).unwrap();
        let text = String::from_utf8(out.clone()).unwrap();
        let first = concat!(
            r#"{"messages":[{"id":"01010101-0101-0101-0101-010101010101","transactionId":"t1","#,
            r#""data":{"a": 2},"payload":{"a": 2},"traceId":null,"producerSub":null,"txnHash":""#
        );
        assert!(text.starts_with(first), "{text}");
        let end = concat!(
            r#"],"total":3,"pagination":{"limit":3,"offset":0},"#,
            r#""mode":{"hasQueueMode":true,"busGroupsCount":2,"type":"hybrid"}}"#
        );
        assert!(text.ends_with(end), "{text}");
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let data: Vec<String> =
            v["messages"].as_array().unwrap().iter().map(|m| m["data"].to_string()).collect();
        assert_eq!(data, [r#"{"a":2}"#, "3", "1"]);
        let m = &v["messages"][0];
        assert_eq!(
            (&m["queuePath"], &m["createdAt"]),
            (&"q\"/p".into(), &"2023-11-14T22:13:20.123Z".into())
        );
        assert_eq!(m["txnHash"].as_str().unwrap().len(), 32);
        assert_ne!(m["txnHash"], v["messages"][1]["txnHash"]);
        assert_eq!((&m["status"], &m["queueStatus"]), (&"processing".into(), &"pending".into()));
        assert_eq!(m["segment"].to_string(), r#"{"frameIdx":1,"seq":3}"#);
    }

    #[test]
    fn a_page_that_grows_too_large_ends_early_and_says_so() {
        let large = format!("\"{}\"", "x".repeat(SHOWN_BYTES_MAX - 100));
        let bodies = Bodies(vec![body(&[&large, &large]), body(&["1"])]);
        let rows = [row(0, 1), row(0, 0), row(1, 0)];
        let mut out = Vec::new();
        let page = Page { limit: 3, offset: 0 };
        let mut opener = Opener::default();
        let mode = ReaderMode::default();
        encode_list(&rows, &bodies, mode, false, page, &mut opener, &mut out).unwrap();
        assert!(out.ends_with(b",\"truncated\":true}"));
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&v["total"], v["messages"][0]["offset"].as_u64()), (&2.into(), Some(5)));
    }

    #[test]
    fn a_message_has_all_its_keys_and_another_one_is_refused() {
        let mut detail = MessageDetail {
            key: key(5),
            queue: "q".into(),
            partition: "p".into(),
            options: QueueOptions::default(),
            status: MessageStatus::DeadLetter,
            error: Some("why".into()),
            retry_count: 3,
            mode: ReaderMode::default(),
            readers: vec![ReaderRow {
                group: "g".into(),
                committed: -1,
                consumed: false,
                lease_expires_us: None,
            }],
            body: body(&["1", "2"]),
            index: 1,
        };
        let mut out = Vec::new();
        encode_detail(&detail, "t1", &mut Opener::default(), &mut out).unwrap();
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        for key in ["id", "data", "payload", "traceId", "producerSub", "isEncrypted", "mode"] {
            assert!(v.get(key).is_some(), "{key}");
        }
        assert_eq!((&v["partitionId"], &v["retryCount"]), (&"7".into(), &3.into()));
        assert_eq!(v["queueConfig"]["leaseTime"], 300);
        assert_eq!(v["consumerGroups"][0]["committed"], -1);
        assert_eq!(v["errorMessage"], "why");
        detail.index = 0;
        let other = encode_detail(&detail, "t1", &mut Opener::default(), &mut out);
        assert_eq!(other.unwrap_err().code, ErrorCode::NotFound);
        detail.index = 2;
        assert!(encode_detail(&detail, "t1", &mut Opener::default(), &mut out).is_err());
    }

    #[test]
    fn only_digits_are_a_partition() {
        assert_eq!(partition_id("12"), Some(PartitionId(12)));
        for bad in ["", "+1", "-1", "1 ", "x", "99999999999999999999999"] {
            assert_eq!(partition_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn both_answers_to_a_deletion() {
        let mut out = Vec::new();
        encode_deleted("5", "t", 2, &mut out);
        let want = br#"{"success":true,"partitionId":"5","transactionId":"t","deleted":2}"#;
        assert_eq!(out, want);
        out.clear();
        encode_deleted("5", "t", 0, &mut out);
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&v["success"], &v["error"]), (&false.into(), &"Message not found".into()));
    }
}

//! Pushing messages.
//!
//! The hot path of the broker: a plain body is read in one pass, names and ids borrow from it, and a
//! payload is the range of bytes it came in. Reading a payload only walks it (without recursion, so
//! depth costs no stack), checks its grammar and that it is UTF-8. Any other body goes to the general
//! reader, where names and ids with an escape are copied.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::check_names;
use super::json::{self, Items, Objects, Text};
use super::json_scan::{Scan, once};
use crate::base::{limits, uuid};
use crate::model::command::{DEFAULT_PARTITION, PushItem};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame;
use crate::model::reply::PushResult;

/// Reads a JSON push body.
pub fn decode(body: &[u8]) -> Result<Items<PushItem<'_>>, Refusal> {
    scan(body).map_or_else(|| decode_any(body), Ok)
}

/// A plain body within the limits.
fn scan(body: &[u8]) -> Option<Items<PushItem<'_>>> {
    Scan::all(body, |scan| {
        let mut items = None;
        scan.object(|scan, key| match key {
            "items" => once(&mut items, scan.items(scan_item)?),
            _ => scan.value().map(drop),
        })?;
        items
    })
}

fn scan_item<'a>(scan: &mut Scan<'a>) -> Option<PushItem<'a>> {
    let (mut queue, mut partition, mut transaction_id, mut payload) = (None, None, None, None);
    scan.object(|scan, key| match key {
        "queue" => once(&mut queue, scan.text()?),
        "partition" => once(&mut partition, scan.text_or_null()?),
        "transactionId" => once(&mut transaction_id, scan.text_or_null()?),
        "payload" => once(&mut payload, scan.value()?),
        _ => scan.value().map(drop),
    })?;
    let text = |given: Option<Option<&'a str>>| given.flatten().map(Text::from);
    check_item(queue?.into(), text(partition), text(transaction_id), payload?).ok()
}

/// Any body, and what is wrong with it.
fn decode_any(body: &[u8]) -> Result<Items<PushItem<'_>>, Refusal> {
    let wire: WirePush<'_> = json::read_object(body)?;
    // Collecting results would not know how many there are, and grow step by step.
    let mut items = Items::with_capacity(wire.items.0.len());
    for item in wire.items.0 {
        items.push(item.check()?);
    }
    Ok(items)
}

#[derive(Deserialize)]
struct WirePush<'a> {
    #[serde(borrow)]
    items: Objects<WireItem<'a>>,
}

/// Trace ids and producer names of an item are among the keys that are not read: a plain push
/// cannot set them.
#[derive(Deserialize)]
struct WireItem<'a> {
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    #[serde(borrow, rename = "transactionId")]
    transaction_id: Option<Text<'a>>,
    // Not an `Option`: a payload of `null` is a payload, a missing one is an error.
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl<'a> WireItem<'a> {
    fn check(self) -> Result<PushItem<'a>, Refusal> {
        check_item(self.queue, self.partition, self.transaction_id, self.payload.get())
    }
}

/// One item within the limits, with its defaults.
pub(super) fn check_item<'a>(
    queue: Cow<'a, str>,
    partition: Option<Text<'a>>,
    transaction_id: Option<Text<'a>>,
    payload: &'a str,
) -> Result<PushItem<'a>, Refusal> {
    let partition = match partition {
        Some(Text(name)) if !name.is_empty() => name,
        _ => Cow::Borrowed(DEFAULT_PARTITION),
    };
    check_names(&queue, [&partition, ""])?;
    let transaction_id = transaction_id.map(|Text(id)| id).filter(|id| !id.is_empty());
    let id_bytes = transaction_id.as_ref().map_or(0, |id| id.len());
    if id_bytes > limits::TRANSACTION_ID_BYTES_MAX {
        let text = format!(
            "a transactionId takes {id_bytes} bytes, the limit is {}",
            limits::TRANSACTION_ID_BYTES_MAX
        );
        return Err(Refusal::new(ErrorCode::BadRequest, text));
    }
    Ok(PushItem { queue, partition, transaction_id, payload: payload.as_bytes() })
}

/// Bounds what the stamps of a push add to it: many small messages with a long producer would
/// otherwise grow tenfold behind the limit of the body.
pub fn check_stamps(messages: usize, producer: Option<&str>) -> Result<(), Refusal> {
    let each = frame::stamp_bytes(producer.map(str::as_bytes));
    if each.saturating_mul(messages) <= limits::STAMPS_BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "{messages} messages stamped with a producer of {each} bytes are over the limit of {}",
        limits::STAMPS_BYTES_MAX
    );
    Err(Refusal::new(ErrorCode::PayloadTooLarge, text))
}

/// What an answer repeats of an item: its queue, and its transaction id where it came with one.
pub type Label<'a> = (&'a str, Option<&'a [u8]>);

/// The labels of items that were read from a body.
pub fn labels<'a>(items: &'a [PushItem<'_>]) -> impl ExactSizeIterator<Item = Label<'a>> {
    items.iter().map(label)
}

pub(super) fn label<'a>(item: &'a PushItem<'_>) -> Label<'a> {
    (&*item.queue, item.transaction_id.as_ref().map(|id| id.as_bytes()))
}

/// Writes the answer: one object per item, in request order.
pub fn encode<'a>(
    labels: impl ExactSizeIterator<Item = Label<'a>>,
    results: &[PushResult],
    out: &mut Vec<u8>,
) {
    assert_eq!(labels.len(), results.len(), "one result per item");
    // 36 bytes of id twice, some 90 of keys, room for names.
    out.reserve(2 + results.len() * 224);
    out.push(b'[');
    for (index, (label, result)) in labels.zip(results).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        encode_one(index, label, result, out);
    }
    out.push(b']');
}

fn encode_one(index: usize, label: Label<'_>, result: &PushResult, out: &mut Vec<u8>) {
    let (queue, transaction_id) = label;
    let id = uuid::to_text(&result.id().0);
    out.extend_from_slice(b"{\"index\":");
    json::write_integer(out, index);
    out.extend_from_slice(b",\"message_id\":\"");
    out.extend_from_slice(&id);
    out.extend_from_slice(b"\",\"transaction_id\":\"");
    match transaction_id {
        Some(given) => json::write_escaped(out, given),
        // The minted one is the text of the message id.
        None => out.extend_from_slice(&id),
    }
    out.extend_from_slice(b"\",\"queueName\":\"");
    json::write_escaped(out, queue.as_bytes());
    match result {
        PushResult::Queued { offset, .. } => {
            out.extend_from_slice(b"\",\"status\":\"queued\",\"offset\":");
            json::write_integer(out, offset.0);
        }
        PushResult::Duplicate { offset, .. } => {
            out.extend_from_slice(b"\",\"status\":\"duplicate\",\"offset\":");
            json::write_integer(out, offset.0);
        }
        PushResult::Error { text, .. } => {
            out.extend_from_slice(b"\",\"status\":\"error\",\"error\":");
            json::write_string(out, text);
        }
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::super::json_check::tests::mutations;
    use super::*;
    use crate::base::ids::{MessageId, Offset};

    fn code(body: impl AsRef<[u8]>) -> ErrorCode {
        decode(body.as_ref()).unwrap_err().code
    }

    fn payload_survives(payload: &str) {
        let body = format!("{{\"items\":[{{\"queue\":\"q\",\"payload\": {payload} }}]}}");
        let items = decode(body.as_bytes()).unwrap();
        assert_eq!(items[0].payload, payload.as_bytes());
    }

    #[test]
    fn items_are_read_with_their_defaults_and_borrow() {
        let body = br#" {"other":[1,{"items":2}],"items":[
            {"queue":"orders","partition":"eu","payload":{"a": 1.50},"transactionId":"t-1",
             "traceId":"x","producerSub":7},
            {"payload":null,"queue":"q\u00e9","partition":null,"transactionId":null},
            {"queue":"q","partition":"","transactionId":"","payload":0}]} "#;
        let items = decode(body).unwrap();
        let [a, b, c] = items.as_slice() else { panic!("three items") };
        assert_eq!((&*a.queue, &*a.partition), ("orders", "eu"));
        assert_eq!(a.transaction_id.as_deref(), Some("t-1"));
        assert_eq!(a.payload, b"{\"a\": 1.50}");
        assert!(matches!(a.queue, Cow::Borrowed(_)) && matches!(a.partition, Cow::Borrowed(_)));
        assert!(matches!(a.transaction_id, Some(Cow::Borrowed(_))));
        assert!(body.as_ptr_range().contains(&a.payload.as_ptr()));
        assert_eq!((&*b.queue, &*b.partition, b.payload), ("qé", "Default", &b"null"[..]));
        assert_eq!(b.transaction_id, None);
        assert_eq!((&*c.partition, &c.transaction_id), ("Default", &None));
        assert!(decode(b"{\"items\":[]}").unwrap().is_empty());
    }

    #[test]
    fn what_is_scanned_is_what_the_general_reader_reads() {
        let item = r#"{"queue":"orders","partition":"é","payload":{"a":[1.5e-3,"\u00e9 \\"]},"transactionId":"t-1"}"#;
        let bare = r#"{"payload":null,"more":[true,{}],"queue":"q","partition":null}"#;
        let bodies = [
            format!(r#"{{"items":[{item}]}}"#),
            format!(r#" {{ "items" : [ {bare} , {item},{bare} ] }} "#),
            r#"{"items":[],"more":{"items":[1]}}"#.to_owned(),
        ];
        bodies.iter().for_each(|body| assert!(scan(body.as_bytes()).is_some(), "{body}"));
        let bodies = bodies.each_ref().map(String::as_str);
        let mut scanned = 0;
        for body in mutations(&bodies, 60_000) {
            // Whatever it is: an answer.
            let _ = decode(&body);
            if let Some(read) = scan(&body) {
                assert_eq!(Ok(read), decode_any(&body), "{}", body.escape_ascii());
                scanned += 1;
            }
        }
        assert!(scanned > 10_000, "{scanned}");
    }

    #[test]
    fn the_published_request_is_read() {
        let request = queen_protocol::PushRequest::new(vec![
            queen_protocol::PushItem::new("q", serde_json::json!({"n": [1, null]}))
                .partition("p/1")
                .transaction_id("t"),
        ]);
        let body = serde_json::to_vec(&request).unwrap();
        let items = decode(&body).unwrap();
        assert_eq!((&*items[0].partition, items[0].payload), ("p/1", &b"{\"n\":[1,null]}"[..]));
    }

    #[test]
    fn payloads_are_kept_byte_for_byte() {
        for payload in [
            "null",
            "-0.0e+00",
            "123456789012345678901234567890.123456789012345678901",
            "\"\"",
            r#""\u0000\ud800\"""#,
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"{"$serde_json::private::RawValue":"[1]"}"#,
            "{ \"a\" : [ ] ,\n\t\"a\" : { } }",
            "\"é 🦀\"",
        ] {
            payload_survives(payload);
        }
    }

    #[test]
    fn depth_costs_no_stack() {
        payload_survives(&("[".repeat(100_000) + &"]".repeat(100_000)));
        payload_survives(&("{\"a\":".repeat(100_000) + "1" + &"}".repeat(100_000)));
        let open = "[".repeat(100_000);
        for body in [
            open.clone(),
            format!("{{\"items\":{open}"),
            format!("{{\"x\":{open}"),
            format!("{{\"items\":[{{\"queue\":\"q\",\"payload\":{open}"),
        ] {
            assert_eq!(code(body), ErrorCode::BadBody);
        }
    }

    #[test]
    fn malformed_bodies_are_refused_whole() {
        for body in [
            "",
            "null",
            "[]",
            "{}",
            "{\"items\":null}",
            "{\"items\":{}}",
            "{\"items\":[]} x",
            "{\"items\":[null]}",
            "[[[\"q\",null,null,1]]]",
            "{\"items\":[[\"q\",null,null,1]]}",
            r#"{"items":[{"payload":1}]}"#,
            r#"{"items":[{"queue":"q"}]}"#,
            r#"{"items":[{"queue":"q","data":1}]}"#,
            r#"{"items":[{"queue":null,"payload":1}]}"#,
            r#"{"items":[{"queue":"q","payload":1,"transactionId":5}]}"#,
            r#"{"items":[{"queue":"q","payload":1,"partition":5}]}"#,
            r#"{"items":[{"queue":"q","payload":1,"payload":2}]}"#,
            r#"{"items":[{"queue":"q","payload":1,"transactionId":"\ud800"}]}"#,
            r#"{"items":[{"queue":"q","payload":tru}]}"#,
            r#"{"items":[{"queue":"q","payload":01}]}"#,
            r#"{"items":[{"queue":"q","payload":NaN}]}"#,
            r#"{"items":[{"queue":"q","payload":}]}"#,
        ] {
            assert_eq!(code(body), ErrorCode::BadBody, "{body}");
        }
        assert_eq!(
            code(b"{\"items\":[{\"queue\":\"q\",\"payload\":\"\xff\"}]}"),
            ErrorCode::BadBody
        );
        assert_eq!(code(b"{\"items\":[{\"queue\":\"\xff\",\"payload\":1}]}"), ErrorCode::BadBody);
        assert_eq!(code(b"{\"items\":[{\"queue\":\"q\",\"payload\":\"\n\"}]}"), ErrorCode::BadBody);
    }

    #[test]
    fn names_and_ids_have_limits() {
        let body = |queue: usize, partition: usize, id: usize| {
            format!(
                "{{\"items\":[{{\"queue\":\"{}\",\"partition\":\"{}\",\"transactionId\":\"{}\",\
                 \"payload\":1}}]}}",
                "q".repeat(queue),
                "p".repeat(partition),
                "t".repeat(id)
            )
        };
        assert_eq!(code(body(0, 1, 1)), ErrorCode::BadRequest);
        assert!(decode(body(211, 200, 65_535).as_bytes()).is_ok());
        assert_eq!(code(body(212, 200, 1)), ErrorCode::NameTooLong);
        assert_eq!(code(body(405, 0, 1)), ErrorCode::NameTooLong);
        assert_eq!(code(body(1, 1, 65_536)), ErrorCode::BadRequest);
    }

    #[test]
    fn the_answer_has_the_wires_keys_and_casing() {
        let item = |id: Option<&'static str>| PushItem {
            queue: "or\"ders".into(),
            partition: "p".into(),
            transaction_id: id.map(Cow::Borrowed),
            payload: b"1",
        };
        let items = [item(Some("t\\1")), item(None), item(Some("t"))];
        let id = MessageId([0x11; 16]);
        let results = [
            PushResult::Queued { id, offset: Offset(41) },
            PushResult::Duplicate { id: MessageId::default(), offset: Offset(u64::MAX) },
            PushResult::Error { id, text: "too large" },
        ];
        let mut out = Vec::new();
        encode(labels(&items), &results, &mut out);
        let want = concat!(
            r#"[{"index":0,"message_id":"11111111-1111-1111-1111-111111111111","#,
            r#""transaction_id":"t\\1","queueName":"or\"ders","status":"queued","offset":41},"#,
            r#"{"index":1,"message_id":"00000000-0000-0000-0000-000000000000","#,
            r#""transaction_id":"00000000-0000-0000-0000-000000000000","queueName":"or\"ders","#,
            r#""status":"duplicate","offset":18446744073709551615},"#,
            r#"{"index":2,"message_id":"11111111-1111-1111-1111-111111111111","#,
            r#""transaction_id":"t","queueName":"or\"ders","status":"error","error":"too large"}]"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode(labels(&items[..1]), &results[..1], &mut out);
        let read: Vec<queen_protocol::PushResult> = serde_json::from_slice(&out).unwrap();
        assert_eq!(read[0].status, queen_protocol::PushStatus::Queued);
        assert_eq!((read[0].index, read[0].offset.map(|n| n as u64)), (0, Some(41)));
        out.clear();
        encode(labels(&[]), &[], &mut out);
        assert_eq!(out, b"[]");
    }
}

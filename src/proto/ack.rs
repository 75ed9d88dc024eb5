//! Acknowledging messages, one or many.
//!
//! An ack should settle wherever it can be understood: losing one means the message is delivered
//! again. So a partition id that is none fails its item only, and the error text of a nack is
//! taken whatever it is.

use std::borrow::Cow;

use serde::Deserialize;
use smallvec::smallvec;

use super::check_budget;
use super::json::{self, Items, Objects, Text};
use super::json_scan::{self, Scan, once};
use crate::base::ids::PartitionId;
use crate::base::limits;
use crate::model::command::{AckItem, AckRequest, AckStatus, QUEUE_MODE};
use crate::model::error::Refusal;
use crate::model::reply::AckResult;

#[derive(Deserialize, PartialEq, Debug)]
struct WireItem<'a> {
    #[serde(borrow, rename = "transactionId")]
    transaction_id: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "json::raw", rename = "partitionId")]
    partition_id: Option<&'a str>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    #[serde(borrow, rename = "leaseId")]
    lease_id: Option<Text<'a>>,
    // Raw, because a lone surrogate in it would fail the strict reader and with it the ack.
    #[serde(borrow, default, deserialize_with = "json::raw")]
    error: Option<&'a str>,
    // Only the single form has a group here; in a batch the key is nobody's.
    #[serde(borrow, default, deserialize_with = "json::raw", rename = "consumerGroup")]
    group: Option<&'a str>,
}

#[derive(Deserialize)]
struct WireBatch<'a> {
    #[serde(borrow)]
    acknowledgments: Objects<WireItem<'a>>,
    #[serde(borrow, rename = "consumerGroup")]
    group: Option<Text<'a>>,
}

/// What a body asks for, in either form.
#[derive(PartialEq, Eq, Debug)]
pub struct AckBody<'a> {
    pub group: Cow<'a, str>,
    pub items: Items<AckItem<'a>>,
}

impl AckBody<'_> {
    pub fn request(&self) -> AckRequest<'_> {
        AckRequest { group: Cow::Borrowed(&self.group), items: &self.items }
    }
}

/// The body of a single ack.
pub fn decode_one(body: &[u8]) -> Result<AckBody<'_>, Refusal> {
    let wire = json_scan::read(body, WireItem::scan)?;
    let named = match wire.group {
        None => None,
        Some(raw) => match serde_json::from_str::<Text<'_>>(raw) {
            Ok(group) => Some(group),
            Err(error) => return Err(json::bad_body(&error)),
        },
    };
    Ok(AckBody { group: check_group(named)?, items: smallvec![wire.into_item()] })
}

/// The body of a batch: one group for all items.
pub fn decode_batch(body: &[u8]) -> Result<AckBody<'_>, Refusal> {
    scan_batch(body).map_or_else(|| decode_any_batch(body), Ok)
}

/// A plain batch within the limits.
fn scan_batch(body: &[u8]) -> Option<AckBody<'_>> {
    Scan::all(body, |scan| {
        let (mut items, mut group) = (None, None);
        scan.object(|scan, key| match key {
            "acknowledgments" => {
                once(&mut items, scan.items(|scan| Some(WireItem::scan(scan)?.into_item()))?)
            }
            "consumerGroup" => once(&mut group, scan.text_or_null()?),
            _ => scan.value().map(drop),
        })?;
        Some(AckBody { group: check_group(group.flatten().map(Text::from)).ok()?, items: items? })
    })
}

/// Any batch, and what is wrong with it.
fn decode_any_batch(body: &[u8]) -> Result<AckBody<'_>, Refusal> {
    let wire: WireBatch<'_> = json::read_object(body)?;
    let group = check_group(wire.group)?;
    let items = wire.acknowledgments.0.into_iter().map(WireItem::into_item).collect();
    Ok(AckBody { group, items })
}

pub(super) fn check_group(named: Option<Text<'_>>) -> Result<Cow<'_, str>, Refusal> {
    let group = match named {
        Some(Text(group)) if !group.is_empty() => group,
        _ => Cow::Borrowed(QUEUE_MODE),
    };
    check_budget("", [&group, ""])?;
    Ok(group)
}

impl<'a> WireItem<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        let (mut transaction_id, mut partition_id, mut status) = (None, None, None);
        let (mut lease_id, mut error, mut group) = (None, None, None);
        scan.object(|scan, key| match key {
            "transactionId" => once(&mut transaction_id, scan.text()?),
            "partitionId" => once(&mut partition_id, scan.value_or_null()?),
            "status" => once(&mut status, scan.text_or_null()?),
            "leaseId" => once(&mut lease_id, scan.text_or_null()?),
            "error" => once(&mut error, scan.value_or_null()?),
            "consumerGroup" => once(&mut group, scan.value_or_null()?),
            _ => scan.value().map(drop),
        })?;
        Some(Self {
            transaction_id: transaction_id?.into(),
            partition_id: partition_id.flatten(),
            status: status.flatten().map(Text::from),
            lease_id: lease_id.flatten().map(Text::from),
            error: error.flatten(),
            group: group.flatten(),
        })
    }

    fn into_item(self) -> AckItem<'a> {
        AckItem {
            transaction_id: self.transaction_id,
            partition_id: self.partition_id.and_then(partition_id),
            status: status(self.status.as_ref().map(|Text(word)| &**word)),
            lease_id: self.lease_id.map_or(Cow::Borrowed(""), |Text(id)| id),
            error: self.error.map(|raw| cut(json::lenient_text(raw))),
        }
    }
}

/// Exact words; any other, other case included, is a failure. Taking an unknown word for a
/// success would lose the message.
pub(super) fn status(word: Option<&str>) -> AckStatus {
    match word {
        None | Some("completed" | "success" | "acked" | "ok") => AckStatus::Completed,
        Some("retry") => AckStatus::Retry,
        Some("dlq") => AckStatus::DeadLetter,
        Some(_) => AckStatus::Failed,
    }
}

/// Decimal digits, as a string or as a number.
pub(super) fn partition_id(raw: &str) -> Option<PartitionId> {
    let text = json::lenient_text(raw);
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().map(PartitionId)
}

/// Shortens an error text to its limit, at a character boundary.
pub(super) fn cut(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= limits::ERROR_TEXT_BYTES_MAX {
        return text;
    }
    let mut end = limits::ERROR_TEXT_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..end]),
        Cow::Owned(mut text) => {
            text.truncate(end);
            Cow::Owned(text)
        }
    }
}

/// Writes the answer of both forms: one object per item, in request order, every key always.
pub fn encode(items: &[AckItem<'_>], results: &[AckResult], out: &mut Vec<u8>) {
    assert_eq!(items.len(), results.len(), "one result per item");
    out.reserve(2 + results.len() * 176);
    out.push(b'[');
    for (index, (item, result)) in items.iter().zip(results).enumerate() {
        out.extend_from_slice(if index == 0 { b"{\"index\":" } else { b",{\"index\":" });
        json::write_integer(out, index);
        out.extend_from_slice(b",\"transactionId\":\"");
        json::write_escaped(out, item.transaction_id.as_bytes());
        out.extend_from_slice(b"\",\"success\":");
        write_bool(out, result.success);
        out.extend_from_slice(b",\"error\":");
        match result.error {
            // Some clients take any error that is not null for a failure.
            Some(text) if !result.success => json::write_string(out, text),
            _ => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"leaseReleased\":");
        write_bool(out, result.lease_released);
        out.extend_from_slice(b",\"dlq\":");
        write_bool(out, result.dead_lettered);
        out.extend_from_slice(b",\"noop\":");
        write_bool(out, result.noop);
        if let Some(conflated) = result.conflated {
            out.extend_from_slice(b",\"conflated\":");
            json::write_integer(out, conflated);
        }
        out.push(b'}');
    }
    out.push(b']');
}

fn write_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

#[cfg(test)]
mod tests {
    use super::super::json_check::tests::mutations;
    use super::*;
    use crate::model::error::ErrorCode;

    fn one(body: &str) -> AckItem<'_> {
        decode_one(body.as_bytes()).unwrap().items.remove(0)
    }

    #[test]
    fn both_published_forms_are_read() {
        let mut single = queen_protocol::AckRequest {
            transaction_id: "t-1".into(),
            partition_id: "7".into(),
            status: queen_protocol::AckStatus::Failed,
            consumer_group: Some("g".into()),
            lease_id: Some("l".into()),
            error: Some("why".into()),
        };
        let body = serde_json::to_vec(&single).unwrap();
        let read = decode_one(&body).unwrap();
        let want = AckItem {
            transaction_id: "t-1".into(),
            partition_id: Some(PartitionId(7)),
            status: AckStatus::Failed,
            lease_id: "l".into(),
            error: Some("why".into()),
        };
        assert_eq!(read, AckBody { group: "g".into(), items: smallvec![want.clone()] });
        let item = queen_protocol::AckBatchItem {
            transaction_id: single.transaction_id.clone(),
            partition_id: single.partition_id.clone(),
            status: single.status,
            lease_id: single.lease_id.take(),
            error: single.error.take(),
        };
        let batch = queen_protocol::AckBatchRequest {
            acknowledgments: vec![item.clone(), item],
            consumer_group: None,
        };
        let body = serde_json::to_vec(&batch).unwrap();
        let read = decode_batch(&body).unwrap();
        assert_eq!(read.group, QUEUE_MODE);
        assert_eq!(*read.items, [want.clone(), want]);
        assert!(decode_batch(b"{\"acknowledgments\":[]}").unwrap().items.is_empty());
    }

    fn scan_one(body: &[u8]) -> Option<WireItem<'_>> {
        Scan::all(body, WireItem::scan)
    }

    #[test]
    fn what_is_scanned_is_what_the_general_reader_reads() {
        let item = r#"{"transactionId":"t","partitionId":"7","status":"retry","leaseId":"l",
            "error":{"a":[1,"\u0041"]},"consumerGroup":"g","more":[null,-1.5e3]}"#;
        let plain = r#"{"transactionId":"é","partitionId":12,"error":"why\n","status":null}"#;
        let batch =
            format!(r#"{{"consumerGroup":"g","acknowledgments":[{item},{plain}],"x":{{}}}}"#);
        assert!(scan_one(item.as_bytes()).is_some() && scan_batch(batch.as_bytes()).is_some());
        let mut scanned = 0;
        for body in mutations(&[item, plain, &batch], 60_000) {
            // Whatever they are: an answer.
            let _ = (decode_one(&body), decode_batch(&body));
            if let Some(read) = scan_one(&body) {
                assert_eq!(Ok(read), json::read_object(&body), "{}", body.escape_ascii());
                scanned += 1;
            }
            if let Some(read) = scan_batch(&body) {
                assert_eq!(Ok(read), decode_any_batch(&body), "{}", body.escape_ascii());
                scanned += 1;
            }
        }
        assert!(scanned > 10_000, "{scanned}");
    }

    #[test]
    fn null_equals_absent_and_an_empty_group_is_queue_mode() {
        for body in [
            r#"{"transactionId":"t"}"#,
            r#"{"transactionId":"t","partitionId":null,"status":null,"consumerGroup":null,
                "leaseId":null,"error":null}"#,
            r#"{"transactionId":"t","consumerGroup":"","leaseId":""}"#,
        ] {
            let read = decode_one(body.as_bytes()).unwrap();
            assert_eq!(read.group, QUEUE_MODE);
            let item = &read.items[0];
            assert_eq!((item.partition_id, item.status), (None, AckStatus::Completed));
            assert_eq!((&*item.lease_id, &item.error), ("", &None));
        }
    }

    #[test]
    fn status_words_are_exact() {
        for (word, want) in [
            ("completed", AckStatus::Completed),
            ("success", AckStatus::Completed),
            ("acked", AckStatus::Completed),
            ("ok", AckStatus::Completed),
            ("retry", AckStatus::Retry),
            ("dlq", AckStatus::DeadLetter),
            ("failed", AckStatus::Failed),
            ("COMPLETED", AckStatus::Failed),
            ("", AckStatus::Failed),
            ("nope", AckStatus::Failed),
        ] {
            let body = format!(r#"{{"transactionId":"t","status":"{word}"}}"#);
            assert_eq!(one(&body).status, want, "{word}");
        }
    }

    #[test]
    fn partition_ids_come_as_text_or_number() {
        for (json, want) in [
            ("\"7\"", Some(7)),
            ("7", Some(7)),
            ("\"18446744073709551615\"", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("1e3", None),
            ("7.0", None),
            ("\"+7\"", None),
            ("\"\"", None),
            ("\"x\"", None),
            ("[7]", None),
            ("true", None),
        ] {
            let body = format!(r#"{{"transactionId":"t","partitionId":{json}}}"#);
            assert_eq!(one(&body).partition_id, want.map(PartitionId), "{json}");
        }
    }

    #[test]
    fn error_texts_never_fail_the_ack() {
        for (json, want) in [
            (r#""a\ud800b""#, "a\u{FFFD}b"),
            (r#""\u0000""#, "\0"),
            (r#""plain""#, "plain"),
            (r#"{"why":1}"#, r#"{"why":1}"#),
            ("5", "5"),
        ] {
            let body = format!(r#"{{"transactionId":"t","status":"failed","error":{json}}}"#);
            assert_eq!(one(&body).error.as_deref(), Some(want));
        }
        // Two-byte characters after one byte put a boundary inside the limit.
        let long = format!("x{}", "é".repeat(limits::ERROR_TEXT_BYTES_MAX));
        for escape in ["", "\\n"] {
            let body = format!(r#"{{"transactionId":"t","error":"{long}{escape}"}}"#);
            let item = one(&body);
            let text = item.error.unwrap();
            assert_eq!(text.len(), limits::ERROR_TEXT_BYTES_MAX - 1);
            assert!(long.starts_with(&*text));
        }
    }

    #[test]
    fn malformed_bodies_are_refused() {
        for body in [
            "",
            "{}",
            "[]",
            r#"{"transactionId":5}"#,
            r#"{"transactionId":null}"#,
            r#"{"transactionId":"\ud800"}"#,
            r#"{"transactionId":"t","status":true}"#,
            r#"{"transactionId":"t","leaseId":5}"#,
            r#"{"transactionId":"t","consumerGroup":5}"#,
            r#"{"transactionId":"t","transactionId":"u"}"#,
        ] {
            assert_eq!(decode_one(body.as_bytes()).unwrap_err().code, ErrorCode::BadBody, "{body}");
        }
        for body in [
            "{}",
            r#"{"acknowledgments":null}"#,
            r#"{"acknowledgments":{}}"#,
            r#"{"acknowledgments":[{}]}"#,
            r#"{"acknowledgments":[["t"]]}"#,
            r#"{"acknowledgments":[],"consumerGroup":1}"#,
        ] {
            assert_eq!(
                decode_batch(body.as_bytes()).unwrap_err().code,
                ErrorCode::BadBody,
                "{body}"
            );
        }
        let in_batch = r#"{"acknowledgments":[{"transactionId":"t","consumerGroup":5}]}"#;
        assert!(decode_batch(in_batch.as_bytes()).is_ok());
        let group = "g".repeat(412);
        let body = format!(r#"{{"acknowledgments":[],"consumerGroup":"{group}"}}"#);
        assert_eq!(decode_batch(body.as_bytes()).unwrap_err().code, ErrorCode::NameTooLong);
    }

    #[test]
    fn the_answer_has_all_keys_always() {
        let request = decode_batch(
            br#"{"acknowledgments":[{"transactionId":"t\"1"},{"transactionId":"u"}]}"#,
        )
        .unwrap();
        let good = AckResult {
            success: true,
            error: None,
            lease_released: true,
            dead_lettered: false,
            noop: true,
            conflated: None,
        };
        let bad = AckResult {
            success: false,
            error: Some("invalid or expired lease"),
            lease_released: false,
            dead_lettered: true,
            noop: false,
            conflated: None,
        };
        let mut out = Vec::new();
        encode(&request.items, &[good, bad], &mut out);
        let want = concat!(
            r#"[{"index":0,"transactionId":"t\"1","success":true,"error":null,"#,
            r#""leaseReleased":true,"dlq":false,"noop":true},"#,
            r#"{"index":1,"transactionId":"u","success":false,"error":"invalid or expired lease","#,
            r#""leaseReleased":false,"dlq":true,"noop":false}]"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        let read: Vec<queen_protocol::AckResult> = serde_json::from_slice(&out).unwrap();
        assert!(read[0].success && read[0].noop && read[1].dlq);
        out.clear();
        encode(&[], &[], &mut out);
        assert_eq!(out, b"[]");
    }
}

//! Changes of consumer groups: where a seek or a moved subscription points, and the answers.

use serde::Deserialize;

use super::json::{self, Fields};
use super::query::Query;
use super::{check_budget, check_names};
use crate::base::time;
use crate::model::command::SeekTo;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::GroupChanged;

/// Where a seek goes, with the time as the client wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seek {
    pub to: SeekTo,
    pub timestamp: Option<String>,
}

/// Names of a path: the group, and the queue and partition where it has them.
pub fn check(group: &str, queue: Option<&str>, partition: Option<&str>) -> Result<(), Refusal> {
    if group.is_empty() {
        return Err(Refusal::new(ErrorCode::BadRequest, "the group name is empty"));
    }
    match queue {
        Some(queue) => check_names(queue, [group, partition.unwrap_or_default()]),
        None => check_budget("", [group, ""]),
    }
}

/// Reads a seek's body. None at all, or `null`, asks for the end.
pub fn decode_seek(body: &[u8]) -> Result<Seek, Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wire {
        to_end: Option<bool>,
        timestamp: Option<String>,
    }
    let end = Seek { to: SeekTo::End, timestamp: None };
    if matches!(body.trim_ascii(), b"" | b"null") {
        return Ok(end);
    }
    let wire: Wire = json::read_object(body)?;
    match (wire.to_end, wire.timestamp) {
        (Some(true), _) => Ok(end),
        (_, Some(text)) => {
            let to = SeekTo::Time(instant(&text, "timestamp")?);
            Ok(Seek { to, timestamp: Some(text) })
        }
        (_, None) => {
            let text = "a seek needs toEnd: true or a timestamp";
            Err(Refusal::new(ErrorCode::BadRequest, text))
        }
    }
}

/// Reads a moved subscription: the time as it came, and what it means in microseconds.
pub fn decode_subscription(body: &[u8]) -> Result<(String, i64), Refusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wire {
        subscription_timestamp: Option<String>,
    }
    let wire: Wire = json::read_object(body)?;
    let Some(text) = wire.subscription_timestamp else {
        return Err(Refusal::new(ErrorCode::BadRequest, "subscriptionTimestamp is missing"));
    };
    let us = instant(&text, "subscriptionTimestamp")?;
    Ok((text, us))
}

fn instant(text: &str, key: &str) -> Result<i64, Refusal> {
    time::parse_iso8601(text).ok_or_else(|| {
        Refusal::new(ErrorCode::BadRequest, format!("{key} is not an ISO-8601 time"))
    })
}

/// Whether the registration goes with the cursors: it does unless the query says exactly
/// `false`.
pub fn deletes_registration(query: &Query<'_>) -> bool {
    query.text("deleteMetadata").is_none_or(|value| *value != "false")
}

pub fn encode_seek(
    group: &str,
    queue: &str,
    partition: Option<&str>,
    seek: &Seek,
    changed: &GroupChanged,
    out: &mut Vec<u8>,
) {
    let mut fields = Fields::begin(out);
    fields.boolean("success", true).text("consumerGroup", group).text("queueName", queue);
    text_or_null(&mut fields, "partitionName", partition);
    fields.boolean("seekToEnd", seek.to == SeekTo::End);
    text_or_null(&mut fields, "targetTimestamp", seek.timestamp.as_deref());
    fields.integer("partitionsUpdated", changed.partitions).boolean("updated", true).end();
}

/// A seek of what is not there.
pub fn encode_seek_nowhere(group: &str, queue: &str, partition: Option<&str>, out: &mut Vec<u8>) {
    let error = if partition.is_some() { "Partition not found" } else { "Queue not found" };
    let mut fields = Fields::begin(out);
    fields.boolean("success", false).text("error", error);
    fields.text("code", ErrorCode::NotFound.word());
    fields.text("consumerGroup", group).text("queueName", queue);
    fields.integer("partitionsUpdated", 0).end();
}

/// A refusal, in the shape of these routes.
pub fn encode_refused(refusal: &Refusal, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields.boolean("success", false).text("error", &refusal.text);
    fields.text("code", refusal.code.word()).end();
}

pub fn encode_deleted(
    group: &str,
    queue: Option<&str>,
    registration: bool,
    changed: &GroupChanged,
    out: &mut Vec<u8>,
) {
    let mut fields = Fields::begin(out);
    fields.boolean("success", true).text("consumerGroup", group);
    text_or_null(&mut fields, "queueName", queue);
    fields.integer("deletedPartitions", changed.partitions);
    fields.boolean("metadataDeleted", registration);
    fields.texts("queues", &changed.queues).end();
}

pub fn encode_subscription(
    group: &str,
    timestamp: &str,
    changed: &GroupChanged,
    out: &mut Vec<u8>,
) {
    let mut fields = Fields::begin(out);
    fields.boolean("success", true).text("consumerGroup", group).text("newTimestamp", timestamp);
    fields.integer("rowsUpdated", changed.queues.len()).end();
}

fn text_or_null(fields: &mut Fields<'_>, key: &'static str, text: Option<&str>) {
    match text {
        Some(text) => fields.text(key, text),
        None => fields.null(key),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::query::query;

    #[test]
    fn a_seek_names_an_end_or_a_time() {
        for body in ["", " ", "null", r#"{"toEnd":true}"#, r#"{"toEnd":true,"timestamp":"x"}"#] {
            assert_eq!(decode_seek(body.as_bytes()).unwrap().to, SeekTo::End, "{body}");
        }
        let seek = decode_seek(br#"{"toEnd":false,"timestamp":"1970-01-01T00:00:01Z"}"#).unwrap();
        assert_eq!(seek.to, SeekTo::Time(1_000_000));
        assert_eq!(seek.timestamp.as_deref(), Some("1970-01-01T00:00:01Z"));
        for body in [
            "{}",
            r#"{"position":"earliest"}"#,
            r#"{"position":7}"#,
            r#"{"toEnd":false}"#,
            r#"{"timestamp":"soon"}"#,
        ] {
            let refusal = decode_seek(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::BadRequest, "{body}");
        }
        for body in ["[", r#"{"timestamp":5}"#, r#"{"toEnd":1}"#, "true"] {
            let refusal = decode_seek(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::BadBody, "{body}");
        }
    }

    #[test]
    fn a_moved_subscription_names_a_time() {
        let body = br#"{"subscriptionTimestamp":"1970-01-01T00:00:02Z"}"#;
        let (text, us) = decode_subscription(body).unwrap();
        assert_eq!((text.as_str(), us), ("1970-01-01T00:00:02Z", 2_000_000));
        for body in ["{}", r#"{"subscriptionTimestamp":null}"#, r#"{"subscriptionTimestamp":"x"}"#]
        {
            let refusal = decode_subscription(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::BadRequest, "{body}");
        }
        assert_eq!(decode_subscription(b"").unwrap_err().code, ErrorCode::BadBody);
    }

    #[test]
    fn a_registration_stays_only_on_the_literal_false() {
        for (text, want) in [
            ("", true),
            ("deleteMetadata=true", true),
            ("deleteMetadata=0", true),
            ("deleteMetadata=False", true),
            ("deleteMetadata=false", false),
        ] {
            assert_eq!(deletes_registration(&query(text)), want, "{text}");
        }
    }

    #[test]
    fn answers_have_every_key() {
        let mut out = Vec::new();
        let changed = GroupChanged { queues: vec!["a".into(), "b".into()], partitions: 3 };
        let seek = Seek { to: SeekTo::End, timestamp: None };
        encode_seek("g", "a", None, &seek, &changed, &mut out);
        let want = concat!(
            r#"{"success":true,"consumerGroup":"g","queueName":"a","partitionName":null,"#,
            r#""seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":3,"updated":true}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode_deleted("g", None, true, &changed, &mut out);
        let want = concat!(
            r#"{"success":true,"consumerGroup":"g","queueName":null,"deletedPartitions":3,"#,
            r#""metadataDeleted":true,"queues":["a","b"]}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode_subscription("g", "t", &changed, &mut out);
        let want = r#"{"success":true,"consumerGroup":"g","newTimestamp":"t","rowsUpdated":2}"#;
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode_seek_nowhere("g", "a", Some("p"), &mut out);
        let want = concat!(
            r#"{"success":false,"error":"Partition not found","code":"not_found","#,
            r#""consumerGroup":"g","queueName":"a","partitionsUpdated":0}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
    }
}

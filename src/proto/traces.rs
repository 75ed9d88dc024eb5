//! Trace events: recording one, and the listings.

use serde::Deserialize;

use super::json::{self, Fields, Text};
use super::messages::{page, partition_id, write_partition_id};
use super::query::Query;
use crate::base::limits;
use crate::model::command::QUEUE_MODE;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::inspect::{NewTrace, Page, TraceName, TraceQuery, TraceRow, TraceSubject};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(borrow, alias = "transaction_id")]
    transaction_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "json::raw", alias = "partition_id")]
    partition_id: Option<&'a str>,
    #[serde(borrow, alias = "consumer_group")]
    consumer_group: Option<Text<'a>>,
    #[serde(
        borrow,
        default,
        deserialize_with = "json::raw",
        alias = "trace_names",
        alias = "names"
    )]
    trace_names: Option<&'a str>,
    #[serde(borrow, alias = "event_type", alias = "type")]
    event_type: Option<Text<'a>>,
    #[serde(borrow, alias = "workerId", alias = "worker_id")]
    worker: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "json::present")]
    data: Option<&'a str>,
}

fn bad(text: &'static str) -> Refusal {
    Refusal::new(ErrorCode::BadRequest, text)
}

/// What a body asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recording {
    New(NewTrace),
    /// Its partition is no partition's id.
    NoPartition,
}

pub fn decode(body: &[u8]) -> Result<Recording, Refusal> {
    let body: Body<'_> = json::read_object(body)?;
    let transaction_id = body.transaction_id.map(|text| text.0).unwrap_or_default();
    let partition = body.partition_id.map(json::lenient_text).unwrap_or_default();
    if transaction_id.is_empty() || partition.is_empty() {
        return Err(bad("transactionId and partitionId are required"));
    }
    let Some(data) = body.data else { return Err(bad("data is required")) };
    let bounded = |text: Option<Text<'_>>, default: Option<&str>| -> Result<_, Refusal> {
        let text = text.map(|text| text.0.into_owned()).filter(|text| !text.is_empty());
        let text = text.or_else(|| default.map(str::to_owned));
        if text.as_ref().is_some_and(|text| text.len() > limits::TRACE_TEXT_BYTES_MAX) {
            return Err(bad("a text of the trace is longer than 255 bytes"));
        }
        Ok(text)
    };
    let trace = NewTrace {
        partition: crate::base::ids::PartitionId(0),
        transaction_id: transaction_id.into_owned(),
        group: bounded(body.consumer_group, Some(QUEUE_MODE))?.unwrap_or_default(),
        event_type: bounded(body.event_type, Some("info"))?.unwrap_or_default(),
        worker: bounded(body.worker, None)?,
        names: names(body.trace_names)?,
        data: data.as_bytes().to_vec(),
    };
    if trace.transaction_id.len() > limits::TRANSACTION_ID_BYTES_MAX {
        return Err(bad("transactionId is longer than 65535 bytes"));
    }
    if trace.data.len() > limits::TRACE_DATA_BYTES_MAX {
        return Err(Refusal::new(ErrorCode::PayloadTooLarge, "data is longer than 65536 bytes"));
    }
    Ok(match partition_id(&partition) {
        Some(partition) => Recording::New(NewTrace { partition, ..trace }),
        None => Recording::NoPartition,
    })
}

/// An array of texts, or one text; anything else is ignored, as clients send what they like.
fn names(raw: Option<&str>) -> Result<Vec<String>, Refusal> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    let mut names = match serde_json::from_str::<serde_json::Value>(raw) {
        Ok(serde_json::Value::String(name)) => vec![name],
        Ok(serde_json::Value::Array(names)) => {
            names.into_iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(),
    };
    names.retain(|name| !name.is_empty());
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if names.len() > limits::TRACE_NAMES_MAX {
        return Err(bad("a trace has more than 16 names"));
    }
    if names.iter().any(|name| name.len() > limits::TRACE_TEXT_BYTES_MAX) {
        return Err(bad("a name of the trace is longer than 255 bytes"));
    }
    Ok(names)
}

pub fn encode_recorded(id: &[u8; 16], out: &mut Vec<u8>) {
    Fields::begin(out).boolean("success", true).uuid("traceId", id).end();
}

pub fn encode_no_partition(out: &mut Vec<u8>) {
    Fields::begin(out)
        .boolean("success", false)
        .text("error", "Partition not found")
        .text("code", ErrorCode::NotFound.word())
        .end();
}

fn listing(query: &Query<'_>) -> Page {
    page(query, limits::TRACES_LIMIT_DEFAULT, limits::TRACES_LIMIT_MAX)
}

/// The traces of one message; `None` for what is no partition, which has none.
pub fn decode_message(
    partition: &str,
    transaction_id: &str,
    query: &Query<'_>,
) -> (Page, Option<TraceQuery>) {
    let page = listing(query);
    let of = partition_id(partition).map(|partition| TraceSubject::Message {
        partition,
        transaction_id: transaction_id.to_owned(),
    });
    (page, of.map(|of| TraceQuery { of, page }))
}

pub fn decode_name(name: &str, query: &Query<'_>) -> TraceQuery {
    TraceQuery { of: TraceSubject::Name(name.to_owned()), page: listing(query) }
}

pub fn decode_names(query: &Query<'_>) -> Page {
    page(query, limits::TRACE_NAMES_LIMIT_DEFAULT, limits::TRACES_LIMIT_MAX)
}

/// Writes a page of traces, twice: older clients read one key, newer ones the other.
pub fn encode(rows: &[TraceRow], total: u64, truncated: bool, page: Page, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"traces\":[");
    let start = out.len();
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_trace(row, out);
    }
    let end = out.len();
    out.extend_from_slice(b"],\"events\":[");
    out.extend_from_within(start..end);
    out.extend_from_slice(b"],\"total\":");
    json::write_integer(out, total);
    out.extend_from_slice(b",\"pagination\":");
    Fields::begin(out).integer("limit", page.limit).integer("offset", page.offset).end();
    if truncated {
        out.extend_from_slice(b",\"truncated\":true");
    }
    out.push(b'}');
}

fn write_texts(out: &mut Vec<u8>, texts: &[String]) {
    out.push(b'[');
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::write_string(out, text);
    }
    out.push(b']');
}

/// Both spellings of each key.
fn write_trace(row: &TraceRow, out: &mut Vec<u8>) {
    let trace = &row.trace;
    let mut fields = Fields::begin(out);
    for key in ["id", "traceId", "trace_id"] {
        fields.uuid(key, &row.id);
    }
    for key in ["partitionId", "partition_id"] {
        write_partition_id(fields.key(key), trace.partition);
    }
    // The message need not exist, so its id is not known.
    fields.null("messageId").null("message_id");
    for (key, text) in [
        ("transactionId", &trace.transaction_id),
        ("transaction_id", &trace.transaction_id),
        ("consumerGroup", &trace.group),
        ("consumer_group", &trace.group),
        ("eventType", &trace.event_type),
        ("event_type", &trace.event_type),
    ] {
        fields.text(key, text);
    }
    fields.key("data").extend_from_slice(&trace.data);
    for key in ["worker", "worker_id"] {
        match &trace.worker {
            Some(worker) => fields.text(key, worker),
            None => fields.null(key),
        };
    }
    for key in ["names", "trace_names"] {
        write_texts(fields.key(key), &trace.names);
    }
    for key in ["createdAt", "created_at"] {
        fields.micros(key, row.key.created_at_us);
    }
    fields
        .text("queue_name", &row.queue)
        .text("partition_name", &row.partition)
        .null("message_payload")
        .end();
}

pub fn encode_names(rows: &[(TraceName, String)], total: u64, page: Page, out: &mut Vec<u8>) {
    Fields::begin(out)
        .objects("trace_names", rows, |(name, text), f| {
            f.text("trace_name", text)
                .integer("trace_count", name.traces)
                .integer("message_count", name.messages)
                .micros("last_seen", name.last_us);
        })
        .integer("total", total)
        .object("pagination", |f| {
            f.integer("limit", page.limit).integer("offset", page.offset);
        })
        .end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::PartitionId;
    use crate::model::inspect::TraceKey;

    fn read(body: &str) -> Result<NewTrace, ErrorCode> {
        match decode(body.as_bytes()) {
            Ok(Recording::New(trace)) => Ok(trace),
            Ok(Recording::NoPartition) => Err(ErrorCode::NotFound),
            Err(refusal) => Err(refusal.code),
        }
    }

    #[test]
    fn a_body_is_read_in_both_spellings_with_its_defaults() {
        let trace = read(r#"{"transactionId":"t","partitionId":"5","data":null}"#).unwrap();
        assert_eq!((trace.partition, &*trace.data), (PartitionId(5), &b"null"[..]));
        assert_eq!((&*trace.group, &*trace.event_type), ("__QUEUE_MODE__", "info"));
        let body = r#"{"transaction_id":"t","partition_id":5,"names":["a","",7,"a","b"],
            "type":"step","consumerGroup":"g","worker":"w","data":{"x": 1}}"#;
        let trace = read(body).unwrap();
        assert_eq!((trace.names.join(","), &*trace.event_type), ("a,b".to_owned(), "step"));
        assert_eq!((trace.worker.as_deref(), &*trace.data), (Some("w"), &br#"{"x": 1}"#[..]));
        let one = r#"{"transactionId":"t","partitionId":"5","data":1,"traceNames":"n"}"#;
        assert_eq!(read(one).unwrap().names, ["n"]);
        let odd = r#"{"transactionId":"t","partitionId":"5","data":1,"traceNames":{}}"#;
        assert!(read(odd).unwrap().names.is_empty());
    }

    #[test]
    fn what_is_missing_or_too_long_is_refused() {
        let with = |more: &str| format!(r#"{{"transactionId":"t","partitionId":"5"{more}}}"#);
        let long = "x".repeat(256);
        for body in [
            "{}".to_owned(),
            r#"{"transactionId":"","partitionId":"5","data":1}"#.to_owned(),
            r#"{"transactionId":"t","data":1}"#.to_owned(),
            with(""),
            with(&format!(r#","data":1,"eventType":"{long}""#)),
            with(&format!(r#","data":1,"traceNames":["{long}"]"#)),
            with(&format!(
                r#","data":1,"traceNames":{:?}"#,
                (0..17).map(|n| n.to_string()).collect::<Vec<_>>()
            )),
            format!(r#"{{"transactionId":"{}","partitionId":"5","data":1}}"#, "t".repeat(65_536)),
        ] {
            assert_eq!(read(&body), Err(ErrorCode::BadRequest), "{:.90}", body);
        }
        assert_eq!(read("[]"), Err(ErrorCode::BadBody));
        let data = format!(r#","data":"{}""#, "d".repeat(limits::TRACE_DATA_BYTES_MAX));
        assert_eq!(read(&with(&data)), Err(ErrorCode::PayloadTooLarge));
        let other = r#"{"transactionId":"t","partitionId":"x","data":1}"#;
        assert_eq!(read(other), Err(ErrorCode::NotFound));
    }

    #[test]
    fn a_page_shows_every_trace_under_both_keys() {
        let trace =
            read(r#"{"transactionId":"t","partitionId":"5","data":{"s": 1},"traceNames":"n"}"#);
        let row = TraceRow {
            key: TraceKey { created_at_us: 7, number: 1, shard: 0 },
            id: [2; 16],
            queue: "q".into(),
            partition: "p".into(),
            trace: trace.unwrap(),
        };
        let mut out = Vec::new();
        encode(&[row], 4, true, Page { limit: 2, offset: 1 }, &mut out);
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&v["traces"], &v["total"]), (&v["events"], &4.into()));
        assert_eq!(v["truncated"], true);
        let t = &v["traces"][0];
        for (a, b) in [
            ("traceId", "trace_id"),
            ("partitionId", "partition_id"),
            ("transactionId", "transaction_id"),
            ("eventType", "event_type"),
            ("names", "trace_names"),
            ("createdAt", "created_at"),
        ] {
            assert!(!t[a].is_null() && t[a] == t[b], "{a}: {t}");
        }
        assert_eq!((&t["partition_id"], &t["data"]["s"]), (&"5".into(), &1.into()));
    }
}

//! Creating a queue or changing its options.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::check_names;
use super::json::{self, Fields};
use crate::base::limits;
use crate::model::command::ConfigureRequest;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::options::{OptionsPatch, QueueOptions, Setting};

/// Spans of time given in seconds: a century, far from overflow in microseconds.
const SECONDS_MAX: u64 = 3_155_760_000;
const MIN_POP_WAIT_MS_MAX: u64 = 60_000;
const HOLD_NAME_BYTES_MAX: usize = 64;
const HOLD_SECONDS: std::ops::RangeInclusive<u64> = 60..=31_536_000;

/// Reads a configure body. An option that is absent keeps its value, `null` resets it; the
/// options stand under `options` or, without that key, beside `queue`.
pub fn decode(body: &[u8]) -> Result<ConfigureRequest<'_>, Refusal> {
    let top: Map<String, Value> = json::read_object(body)?;
    let queue = match top.get("queue") {
        Some(Value::String(queue)) => queue.clone(),
        _ => return Err(bad_request("queue is required and must be a string")),
    };
    check_names(&queue, ["", ""])?;
    let replace = match top.get("mode") {
        None | Some(Value::Null) => false,
        Some(Value::String(mode)) if mode == "merge" => false,
        Some(Value::String(mode)) if mode == "replace" => true,
        Some(_) => return Err(bad_request("mode is neither merge nor replace")),
    };
    let mut options = match top.get("options") {
        Some(Value::Object(nested)) => patch(&Options(nested))?,
        None | Some(Value::Null) => {
            let mut beside = top.clone();
            // Here a label of null is a key a client had no value for, not a wish to reset.
            beside.retain(|key, value| !is_label(key) || label(value).is_some());
            patch(&Options(&beside))?
        }
        Some(_) => return Err(bad_request("options is not an object")),
    };
    options.replace = replace;
    for (key, setting) in [("namespace", &mut options.namespace), ("task", &mut options.task)] {
        if let (Setting::Keep, Some(text)) = (&*setting, top.get(key).and_then(label)) {
            *setting = Setting::Set(text.to_owned());
        }
    }
    Ok(ConfigureRequest { queue: Cow::Owned(queue), options })
}

fn is_label(key: &str) -> bool {
    matches!(key, "namespace" | "task")
}

/// A label beside `queue` counts only when it is text and not empty.
fn label(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn bad_request(text: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(ErrorCode::BadRequest, text)
}

fn patch(options: &Options<'_>) -> Result<OptionsPatch, Refusal> {
    let seconds = |key| options.count(key, SECONDS_MAX);
    let patch = OptionsPatch {
        replace: false,
        lease_seconds: options.small_count("leaseTime", limits::LEASE_SECONDS_MAX)?,
        retry_limit: options.small_count("retryLimit", u32::MAX)?,
        dead_letter_queue: options.boolean("deadLetterQueue")?,
        dlq_after_max_retries: options.boolean("dlqAfterMaxRetries")?,
        dedup_window_seconds: seconds("dedupWindowSeconds")?,
        delayed_processing_seconds: seconds("delayedProcessing")?,
        window_buffer_seconds: seconds("windowBuffer")?,
        retention_enabled: options.boolean("retentionEnabled")?,
        retention_seconds: seconds("retentionSeconds")?,
        completed_retention_seconds: seconds("completedRetentionSeconds")?,
        max_wait_seconds: seconds("maxWaitTimeSeconds")?,
        encryption_enabled: options.boolean("encryptionEnabled")?,
        namespace: options.text("namespace")?,
        task: options.text("task")?,
        priority: options.integer("priority")?,
        retry_delay_ms: options.integer("retryDelay")?,
        ttl_seconds: options.integer("ttl")?,
        max_size: options.integer("maxSize")?,
        min_pop_wait_ms: options.small_count("minPopWaitTime", MIN_POP_WAIT_MS_MAX as u32)?,
        retention_sink_hold: options.text("retentionSinkHold")?,
        retention_sink_hold_max_seconds: options.count("retentionSinkHoldMaxSeconds", u64::MAX)?,
    };
    if let Setting::Set(name) = &patch.retention_sink_hold {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.len() > HOLD_NAME_BYTES_MAX || !name.bytes().all(legal) {
            return Err(bad_request("retentionSinkHold is not up to 64 of A-Z a-z 0-9 . _ -"));
        }
    }
    match patch.retention_sink_hold_max_seconds {
        Setting::Set(seconds) if !HOLD_SECONDS.contains(&seconds) => {
            Err(bad_request("retentionSinkHoldMaxSeconds is not within 60 to 31536000"))
        }
        _ => Ok(patch),
    }
}

/// Reads options by key, each strictly of its type.
struct Options<'a>(&'a Map<String, Value>);

impl Options<'_> {
    fn setting<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Setting<T>, Refusal> {
        match self.0.get(key) {
            None => Ok(Setting::Keep),
            Some(Value::Null) => Ok(Setting::Reset),
            Some(value) => match read(value) {
                Some(value) => Ok(Setting::Set(value)),
                None => Err(bad_request(format!("option {key} is not {expected}"))),
            },
        }
    }

    fn boolean(&self, key: &'static str) -> Result<Setting<bool>, Refusal> {
        self.setting(key, "a boolean", Value::as_bool)
    }

    fn text(&self, key: &'static str) -> Result<Setting<String>, Refusal> {
        self.setting(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn integer(&self, key: &'static str) -> Result<Setting<i64>, Refusal> {
        self.setting(key, "an integer", Value::as_i64)
    }

    /// An integer moved into `0..=max`.
    fn count(&self, key: &'static str, max: u64) -> Result<Setting<u64>, Refusal> {
        self.setting(key, "an integer", |value| {
            value.as_i64().map(|n| u64::try_from(n).unwrap_or(0).min(max))
        })
    }

    fn small_count(&self, key: &'static str, max: u32) -> Result<Setting<u32>, Refusal> {
        self.setting(key, "an integer", |value| {
            value.as_i64().map(|n| n.clamp(0, max.into()) as u32)
        })
    }
}

/// The answer: the options as they stand now.
pub fn encode(queue: &str, queue_id: &[u8; 16], options: &QueueOptions, out: &mut Vec<u8>) {
    Fields::begin(out)
        .boolean("configured", true)
        .uuid("queueId", queue_id)
        .null("partitionId")
        .text("queue", queue)
        .text("namespace", &options.namespace)
        .text("task", &options.task)
        .text("storage", "segments")
        .object("options", |fields| write_options(options, fields))
        .end();
}

/// All options under their wire names.
pub(super) fn write_options(o: &QueueOptions, fields: &mut Fields<'_>) {
    fields
        .integer("leaseTime", o.lease_seconds)
        .integer("retryLimit", o.retry_limit)
        .boolean("deadLetterQueue", o.dead_letter_queue)
        .boolean("dlqAfterMaxRetries", o.dlq_after_max_retries)
        .integer("dedupWindowSeconds", o.dedup_window_seconds)
        .integer("delayedProcessing", o.delayed_processing_seconds)
        .integer("windowBuffer", o.window_buffer_seconds)
        .boolean("retentionEnabled", o.retention_enabled)
        .integer("retentionSeconds", o.retention_seconds)
        .integer("completedRetentionSeconds", o.completed_retention_seconds)
        .integer("maxWaitTimeSeconds", o.max_wait_seconds)
        .boolean("encryptionEnabled", o.encryption_enabled)
        .text("namespace", &o.namespace)
        .text("task", &o.task)
        .integer("priority", o.priority)
        .integer("retryDelay", o.retry_delay_ms)
        .integer("ttl", o.ttl_seconds)
        .integer("maxSize", o.max_size)
        .integer("maxQueueSize", o.max_size)
        .integer("minPopWaitTime", o.min_pop_wait_ms)
        .text("retentionSinkHold", &o.retention_sink_hold)
        .integer("retentionSinkHoldMaxSeconds", o.retention_sink_hold_max_seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> OptionsPatch {
        decode(body.as_bytes()).unwrap().options
    }

    fn code(body: &str) -> ErrorCode {
        decode(body.as_bytes()).unwrap_err().code
    }

    #[test]
    fn options_are_kept_reset_and_set() {
        let options = read(
            r#"{"queue":"q","options":{"leaseTime":null,"retryLimit":0,"deadLetterQueue":false,
                "namespace":null,"task":"t","unknown":{}}}"#,
        );
        let want = OptionsPatch {
            lease_seconds: Setting::Reset,
            retry_limit: Setting::Set(0),
            dead_letter_queue: Setting::Set(false),
            namespace: Setting::Reset,
            task: Setting::Set("t".into()),
            ..OptionsPatch::keep()
        };
        assert_eq!(options, want);
        assert_eq!(read(r#"{"queue":"q"}"#), OptionsPatch::keep());
    }

    #[test]
    fn options_may_stand_beside_the_queue() {
        let options = read(r#"{"queue":"q","priority":-5,"ttl":null,"namespace":null,"task":""}"#);
        let want = OptionsPatch {
            priority: Setting::Set(-5),
            ttl_seconds: Setting::Reset,
            ..OptionsPatch::keep()
        };
        assert_eq!(options, want);
        assert_eq!(read(r#"{"queue":"q","options":null,"priority":1}"#).priority, Setting::Set(1));
        assert_eq!(read(r#"{"queue":"q","options":{},"priority":1}"#).priority, Setting::Keep);
    }

    #[test]
    fn labels_beside_the_queue_yield_to_the_options() {
        let set = |text: &str| Setting::Set(text.to_owned());
        let o = read(r#"{"queue":"q","namespace":"n","task":null,"options":{"task":"t"}}"#);
        assert_eq!((o.namespace, o.task), (set("n"), set("t")));
        let o = read(r#"{"queue":"q","namespace":"n","task":"t","options":{"namespace":null}}"#);
        assert_eq!((o.namespace, o.task), (Setting::Reset, set("t")));
        let o = read(r#"{"queue":"q","namespace":"","task":5}"#);
        assert_eq!((o.namespace, o.task), (Setting::Keep, Setting::Keep));
    }

    #[test]
    fn the_published_request_is_read() {
        let options = queen_protocol::QueueOptions {
            lease_time: Some(7),
            min_pop_wait_time: Some(99_999),
            dedup_window_seconds: Some(-1),
            max_wait_time_seconds: Some(3),
            ..Default::default()
        };
        let request = queen_protocol::ConfigureRequest::new("q").options(options).replace(true);
        let o = read(&serde_json::to_string(&request).unwrap());
        assert!(o.replace);
        assert_eq!((o.lease_seconds, o.min_pop_wait_ms), (Setting::Set(7), Setting::Set(60_000)));
        assert_eq!(o.dedup_window_seconds, Setting::Set(0));
        assert_eq!(o.max_wait_seconds, Setting::Set(3));
    }

    #[test]
    fn extremes_are_moved_into_range() {
        let o = read(
            r#"{"queue":"q","options":{"leaseTime":-4,"retryLimit":9223372036854775807,
                "retentionSeconds":9223372036854775807,"maxSize":-9223372036854775808}}"#,
        );
        assert_eq!((o.lease_seconds, o.retry_limit), (Setting::Set(0), Setting::Set(u32::MAX)));
        assert_eq!(o.retention_seconds, Setting::Set(SECONDS_MAX));
        assert_eq!(o.max_size, Setting::Set(i64::MIN));
    }

    #[test]
    fn wrong_bodies_are_refused() {
        for body in ["", "[]", "{", "null", "{\"queue\":\"\\ud800\"}"] {
            assert_eq!(code(body), ErrorCode::BadBody, "{body}");
        }
        for rest in [
            r#""mode":"other""#,
            r#""mode":5"#,
            r#""options":[]"#,
            r#""options":{"leaseTime":"5"}"#,
            r#""options":{"leaseTime":1.5}"#,
            r#""options":{"leaseTime":true}"#,
            r#""options":{"leaseTime":18446744073709551615}"#,
            r#""options":{"deadLetterQueue":1}"#,
            r#""options":{"namespace":1}"#,
            r#""priority":"1""#,
            r#""options":{"retentionSinkHold":"a b"}"#,
            r#""options":{"retentionSinkHold":"é"}"#,
            r#""options":{"retentionSinkHoldMaxSeconds":59}"#,
            r#""options":{"retentionSinkHoldMaxSeconds":31536001}"#,
        ] {
            let body = format!("{{\"queue\":\"q\",{rest}}}");
            assert_eq!(code(&body), ErrorCode::BadRequest, "{body}");
        }
        for body in ["{}", r#"{"queue":null}"#, r#"{"queue":5}"#, r#"{"queue":""}"#] {
            assert_eq!(code(body), ErrorCode::BadRequest, "{body}");
        }
        let long = format!("{{\"queue\":\"{}\"}}", "q".repeat(412));
        assert_eq!(code(&long), ErrorCode::NameTooLong);
        let hold = format!(
            "{{\"queue\":\"q\",\"options\":{{\"retentionSinkHold\":\"{}\",\
             \"retentionSinkHoldMaxSeconds\":60}}}}",
            "a".repeat(64)
        );
        assert_eq!(read(&hold).retention_sink_hold_max_seconds, Setting::Set(60));
    }

    #[test]
    fn the_answer_echoes_every_option() {
        let options = QueueOptions { max_size: 9, namespace: "n".into(), ..Default::default() };
        let mut out = Vec::new();
        encode("q\"", &[0x33; 16], &options, &mut out);
        let want = concat!(
            r#"{"configured":true,"queueId":"33333333-3333-3333-3333-333333333333","#,
            r#""partitionId":null,"queue":"q\"","namespace":"n","task":"","storage":"segments","#,
            r#""options":{"leaseTime":300,"retryLimit":3,"deadLetterQueue":true,"#,
            r#""dlqAfterMaxRetries":true,"dedupWindowSeconds":3600,"delayedProcessing":0,"#,
            r#""windowBuffer":0,"retentionEnabled":false,"retentionSeconds":0,"#,
            r#""completedRetentionSeconds":0,"maxWaitTimeSeconds":0,"encryptionEnabled":false,"#,
            r#""namespace":"n","task":"","priority":0,"retryDelay":1000,"ttl":3600,"maxSize":9,"#,
            r#""maxQueueSize":9,"minPopWaitTime":0,"retentionSinkHold":"","#,
            r#""retentionSinkHoldMaxSeconds":604800}}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        let read: queen_protocol::ConfigureResponse = serde_json::from_slice(&out).unwrap();
        assert!(read.configured && read.error.is_none());
        let echo: queen_protocol::QueueOptions =
            serde_json::from_value(read.rest["options"].clone()).unwrap();
        assert_eq!((echo.max_size, echo.lease_time), (Some(9), Some(300)));
    }
}

//! Popping messages: query parameters in, one of two answers out.
//!
//! The JSON answer copies each payload once, into the body. The framed answer copies none: its
//! own head and the heads of its claims are bytes, the stored batches follow as they lie.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::opener::Around;
pub use super::opener::Opener;
pub use super::pop_frames::{Piece, encode_frames, fits_frames};

use super::json;
use super::query::Query;
use super::{check_budget, check_names};
use crate::base::buf::{Gather, IoBuf};
use crate::base::{limits, time, uuid};
use crate::model::command::{DEFAULT_PARTITION, PopRequest, PopTarget, QUEUE_MODE, Subscription};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{self, BATCH_HEAD_BYTES, BatchHead, FRAME_BYTES_MIN, Frame};
use crate::model::reply::{Autopilot, Claim, Conflation, PopReply};

/// A pop, and in which form it wants its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PopParams<'a> {
    pub request: PopRequest<'a>,
    /// The client reads the framed answer; it reads the JSON one as well.
    pub frames: bool,
}

/// The target of a discovery pop. `None` when it names neither label; the answer to that is
/// [`encode_no_labels`].
pub fn labels<'a>(query: &Query<'a>) -> Option<PopTarget<'a>> {
    let label = |key| query.text(key).cloned().unwrap_or_default();
    let (namespace, task) = (label("namespace"), label("task"));
    let named = !namespace.is_empty() || !task.is_empty();
    named.then_some(PopTarget::Labels { namespace, task })
}

/// The 400 body for a discovery pop without a label, in the shape of a pop's own failures.
pub fn encode_no_labels(out: &mut Vec<u8>) {
    let body = br#"{"success":false,"error":"namespace or task is required","messages":[]}"#;
    out.extend_from_slice(body);
}

/// Reads the parameters of a pop. What does not parse is refused, what is out of range is moved
/// into it. `default` is how a group subscribes that does not say how.
pub fn decode<'a>(
    target: PopTarget<'a>,
    query: &Query<'a>,
    default: Subscription,
) -> Result<PopParams<'a>, Refusal> {
    let target = default_partition(target);
    let named = query.text("consumerGroup").cloned();
    let auto_ack = query.flag("autoAck")? | query.flag("commitOnDelivery")?;
    let conflation = query.flag("conflation")?;
    let queue_mode = named.as_ref().is_none_or(|group| *group == QUEUE_MODE);
    if conflation {
        check_conflation(!queue_mode, auto_ack)?;
    }
    let group = named.unwrap_or(Cow::Borrowed(QUEUE_MODE));
    check_target(&target, &group)?;

    let autopilot = query.flag("autopilot")?;
    // Within the range after the clamp, so the cast keeps the value.
    let count = |key, max: u32| -> Result<Option<u32>, Refusal> {
        Ok(query.integer(key)?.map(|n| n.clamp(1, max.into()) as u32))
    };
    let batch = count("batch", limits::POP_BATCH_MAX)?;
    let mut partitions = count("partitions", limits::POP_PARTITIONS_MAX)?;
    if matches!(target, PopTarget::Partition { .. }) {
        partitions = Some(1);
    }
    let timeout = query.integer("timeout")?.map_or(limits::POP_TIMEOUT_MS_DEFAULT, |ms| {
        ms.clamp(1, limits::POP_TIMEOUT_MS_MAX.cast_signed()).cast_unsigned()
    });
    let lease_seconds = query
        .integer("leaseSeconds")?
        .filter(|seconds| *seconds > 0)
        .map(|seconds| seconds.min(limits::LEASE_SECONDS_MAX.into()) as u32);
    let request = PopRequest {
        subscription: subscription(query, &group, default),
        target,
        group,
        batch,
        partitions,
        auto_ack,
        wait_ms: query.flag("wait")?.then_some(timeout),
        lease_seconds,
        autopilot,
        conflation,
    };
    Ok(PopParams { request, frames: query.flag("frames")? })
}

fn default_partition(target: PopTarget<'_>) -> PopTarget<'_> {
    match target {
        PopTarget::Partition { queue, partition } if partition.is_empty() => {
            PopTarget::Partition { queue, partition: Cow::Borrowed(DEFAULT_PARTITION) }
        }
        target => target,
    }
}

fn check_target(target: &PopTarget<'_>, group: &str) -> Result<(), Refusal> {
    match target {
        PopTarget::Queue(queue) => check_names(queue, [group, ""]),
        PopTarget::Partition { queue, partition } => check_names(queue, [group, partition]),
        PopTarget::Labels { .. } => check_budget("", [group, ""]),
    }
}

/// A group that conflates commits more than it delivers, so it is named and it acks.
fn check_conflation(has_group: bool, auto_ack: bool) -> Result<(), Refusal> {
    let text = match (has_group, auto_ack) {
        (false, _) => "conflation needs a consumerGroup",
        (true, true) => "conflation cannot be combined with autoAck",
        (true, false) => return Ok(()),
    };
    Err(Refusal::new(ErrorCode::BadRequest, text))
}

/// Where a group starts on first contact. Pops without a group never skip what is stored,
/// whatever they ask for.
fn subscription(query: &Query<'_>, group: &str, default: Subscription) -> Subscription {
    if group == QUEUE_MODE {
        return Subscription::All;
    }
    match query.text("subscriptionFrom").map(|from| (&**from, time::parse_iso8601(from))) {
        Some((_, Some(us))) => return Subscription::From(us),
        Some(("now", None)) => return Subscription::New,
        // Text that is no time is as good as none.
        Some((_, None)) | None => {}
    }
    match query.text("subscriptionMode") {
        Some(mode) if mode.eq_ignore_ascii_case("all") => Subscription::All,
        Some(mode) if mode.eq_ignore_ascii_case("new") => Subscription::New,
        _ => default,
    }
}

/// Writes the JSON answer. On a discovery pop each message names its queue, because the answer
/// as a whole has none. Fails, with `out` as it was, when a stored batch cannot be shown.
pub fn encode_json<B: IoBuf>(
    reply: &PopReply<B>,
    discovery: bool,
    opener: &mut Opener,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let start = out.len();
    let result = write_reply(reply, discovery, opener, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn write_reply<B: IoBuf>(
    reply: &PopReply<B>,
    discovery: bool,
    opener: &mut Opener,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let lease = lease_text(reply);
    let first = reply.claims.first();
    out.extend_from_slice(b"{\"success\":true,\"queue\":");
    json::write_string(out, if discovery { "" } else { &reply.queue });
    out.extend_from_slice(b",\"partition\":");
    json::write_string(out, first.map_or("", |claim| &claim.partition));
    out.extend_from_slice(b",\"partitionId\":\"");
    if let Some(claim) = first {
        json::write_integer(out, claim.partition_id.0);
    }
    out.extend_from_slice(b"\",\"leaseId\":\"");
    out.extend_from_slice(&lease);
    out.extend_from_slice(b"\",\"consumerGroup\":");
    json::write_string(out, &reply.group);
    out.extend_from_slice(b",\"messages\":[");
    let messages_start = out.len();
    for claim in &reply.claims {
        let mut messages = MessageWriter { claim, around: std::mem::take(&mut opener.around) };
        messages.begin(reply, &lease, discovery);
        let mut batches = claim.batches.iter();
        let written =
            batches.try_for_each(|batch| messages.write_batch(batch, messages_start, opener, out));
        opener.around = messages.around;
        written?;
    }
    out.extend_from_slice(b"],\"partitionsClaimed\":");
    json::write_integer(out, reply.claims.len());
    write_echoes(reply, out);
    out.push(b'}');
    Ok(())
}

fn lease_text<B>(reply: &PopReply<B>) -> SmallVec<[u8; 36]> {
    reply.lease_id.map_or_else(SmallVec::new, |id| uuid::to_text(&id.0).into())
}

/// What both forms of the answer say of the pop itself.
pub(super) fn write_echoes<B>(reply: &PopReply<B>, out: &mut Vec<u8>) {
    match reply.conflation {
        Conflation::Off => {}
        Conflation::On => out.extend_from_slice(b",\"conflation\":true"),
        Conflation::Refused => out.extend_from_slice(b",\"conflationConflict\":true"),
    }
    if let Some(chosen) = reply.autopilot {
        out.push(b',');
        write_autopilot(chosen, out);
    }
}

fn write_autopilot(chosen: Autopilot, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"autopilot\":{\"partitions\":");
    json::write_integer(out, chosen.partitions);
    out.extend_from_slice(b",\"batch\":");
    json::write_integer(out, chosen.batch);
    out.push(b'}');
}

/// Room that is asked for ahead of the batch that will need it.
const RESERVE_AHEAD: usize = 64 << 10;

/// Keys, id and time of a message in JSON, beside what its frame and its claim bring.
const MESSAGE_BYTES: usize = 160;

/// Writes the messages of one claim. What is the same for all of them is put to text once.
struct MessageWriter<'c, B> {
    claim: &'c Claim<B>,
    around: Around,
}

impl<B: IoBuf> MessageWriter<'_, B> {
    fn begin(&mut self, reply: &PopReply<B>, lease: &[u8], discovery: bool) {
        let (claim, Around { middle, end, .. }) = (self.claim, &mut self.around);
        middle.clear();
        end.clear();
        middle.extend_from_slice(b"\",\"partitionId\":\"");
        json::write_integer(middle, claim.partition_id.0);
        middle.extend_from_slice(b"\",\"partition\":");
        json::write_string(middle, &claim.partition);
        middle.extend_from_slice(b",\"leaseId\":\"");
        middle.extend_from_slice(lease);
        middle.extend_from_slice(b"\",\"consumerGroup\":");
        json::write_string(middle, &reply.group);
        middle.extend_from_slice(b",\"deliveryAttempt\":");
        json::write_integer(middle, claim.attempt);
        middle.extend_from_slice(b",\"offset\":");
        if discovery {
            end.extend_from_slice(b",\"queue\":");
            json::write_string(end, &claim.queue);
        }
        end.push(b'}');
    }

    /// `messages_start`: where the array of messages begins in `out`.
    fn write_batch(
        &mut self,
        batch: &Gather<B>,
        messages_start: usize,
        opener: &mut Opener,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let Opener { inflating, decrypting, .. } = opener;
        let bytes = batch.contiguous();
        let (head, stored) = split_batch(&bytes)?;
        let mut rest = inflating.frames(&head, stored)?;
        // Checked before the count sizes anything.
        if rest.len() / FRAME_BYTES_MIN < head.count as usize {
            return Err(unshowable("a stored batch is shorter than its count"));
        }
        self.around.created_at.clear();
        time::write_millis(&mut self.around.created_at, head.created_at_us);
        let (first, end) =
            (head.base_offset.0, head.base_offset.0.saturating_add(head.count.into()));
        let (start, last) = (self.claim.start.0, self.claim.end.0);
        // All of the batch is the common case; of one that overhangs, its share.
        let shown = end.min(last.saturating_add(1)).saturating_sub(first.max(start)) as usize;
        let each = rest.len() / (head.count as usize).max(1)
            + self.around.middle.len()
            + self.around.end.len()
            + MESSAGE_BYTES;
        // The claim's later batches are probably like this one, and asking once is cheaper.
        let later = last.saturating_add(1).saturating_sub(end.max(start)) as usize;
        out.reserve(shown * each + later.saturating_mul(each).min(RESERVE_AHEAD));
        for offset in first..end {
            if offset > last {
                break;
            }
            let Some((frame, after)) = frame::split_frame(rest) else {
                return Err(unshowable("a stored batch is shorter than its count"));
            };
            rest = after;
            if offset >= start {
                if out.len() > messages_start {
                    out.push(b',');
                }
                let payload = decrypting.payload(self.claim.partition_id, &frame)?;
                self.write_message(&frame, payload, offset, out);
            }
        }
        Ok(())
    }

    fn write_message(&self, frame: &Frame<'_>, payload: &[u8], offset: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":\"");
        out.extend_from_slice(&uuid::to_text(&frame.id.0));
        out.extend_from_slice(b"\",\"transactionId\":\"");
        json::write_escaped(out, frame.transaction_id);
        match &frame.trace_id {
            None => out.extend_from_slice(b"\",\"traceId\":null,\"data\":"),
            Some(id) => {
                out.extend_from_slice(b"\",\"traceId\":");
                json::write_uuid(out, id);
                out.extend_from_slice(b",\"data\":");
            }
        }
        out.extend_from_slice(payload_or_null(payload));
        match frame.producer {
            None => out.extend_from_slice(b",\"producerSub\":null,\"createdAt\":\""),
            Some(producer) => {
                out.extend_from_slice(b",\"producerSub\":\"");
                json::write_escaped(out, producer);
                out.extend_from_slice(b"\",\"createdAt\":\"");
            }
        }
        out.extend_from_slice(&self.around.created_at);
        out.extend_from_slice(&self.around.middle);
        json::write_integer(out, offset);
        out.extend_from_slice(&self.around.end);
    }
}

pub(super) fn payload_or_null(payload: &[u8]) -> &[u8] {
    if payload.is_empty() { b"null" } else { payload }
}

fn split_batch(bytes: &[u8]) -> Result<(BatchHead, &[u8]), Refusal> {
    let head = BatchHead::decode(bytes);
    let split = head.and_then(|head| {
        let end = BATCH_HEAD_BYTES.checked_add(head.len as usize)?;
        Some((head, bytes.get(BATCH_HEAD_BYTES..end)?))
    });
    split.ok_or_else(|| unshowable("a stored batch is shorter than its head says"))
}

pub(super) fn unshowable(text: &'static str) -> Refusal {
    Refusal::new(ErrorCode::Internal, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::HeapBuf;
    use crate::base::ids::{LeaseId, MessageId, Offset, PartitionId};
    use crate::proto::query::query;

    fn queue() -> PopTarget<'static> {
        PopTarget::Queue("q".into())
    }

    fn read(text: &'static str) -> PopRequest<'static> {
        decode(queue(), &query(text), Subscription::New).unwrap().request
    }

    fn read_named(target: PopTarget<'static>) -> Result<PopParams<'static>, Refusal> {
        decode(target, &query("consumerGroup=g"), Subscription::New)
    }

    fn refused(text: &'static str) -> ErrorCode {
        decode(queue(), &query(text), Subscription::New).unwrap_err().code
    }

    #[test]
    fn a_bare_pop_has_the_defaults() {
        let params = decode(queue(), &query("unknown=1"), Subscription::New).unwrap();
        let want = PopRequest {
            target: queue(),
            group: QUEUE_MODE.into(),
            batch: None,
            partitions: None,
            auto_ack: false,
            wait_ms: None,
            lease_seconds: None,
            subscription: Subscription::All,
            autopilot: false,
            conflation: false,
        };
        assert_eq!(params, PopParams { request: want, frames: false });
    }

    #[test]
    fn every_parameter_is_read() {
        let text = "batch=7&partitions=3&autoAck=true&wait=1&timeout=1500&leaseSeconds=9\
                    &consumerGroup=g&subscriptionMode=ALL&frames=true&namespace=x";
        let params = decode(queue(), &query(text), Subscription::New).unwrap();
        let want = PopRequest {
            target: queue(),
            group: "g".into(),
            batch: Some(7),
            partitions: Some(3),
            auto_ack: true,
            wait_ms: Some(1_500),
            lease_seconds: Some(9),
            subscription: Subscription::All,
            autopilot: false,
            conflation: false,
        };
        assert_eq!(params, PopParams { request: want, frames: true });
    }

    #[test]
    fn numbers_are_moved_into_their_range() {
        let r = read("batch=0&partitions=-3&wait=true&timeout=0&leaseSeconds=0");
        assert_eq!((r.batch, r.partitions, r.wait_ms), (Some(1), Some(1), Some(1)));
        assert_eq!(r.lease_seconds, None);
        let r =
            read("batch=99999&partitions=999&wait=true&timeout=99999999&leaseSeconds=9999999999");
        assert_eq!((r.batch, r.partitions, r.wait_ms), (Some(10_000), Some(64), Some(60_000)));
        assert_eq!(r.lease_seconds, Some(limits::LEASE_SECONDS_MAX));
        assert_eq!(read("wait=true").wait_ms, Some(30_000));
        assert_eq!(read("wait=false&timeout=5").wait_ms, None);
        assert_eq!(read("leaseSeconds=-1&batch=").lease_seconds, None);
        assert!(read("commitOnDelivery=true").auto_ack);
    }

    #[test]
    fn autopilot_leaves_open_what_is_not_sent() {
        let r = read("autopilot=true");
        assert_eq!((r.batch, r.partitions, r.autopilot), (None, None, true));
        let r = read("autopilot=true&batch=5");
        assert_eq!((r.batch, r.partitions), (Some(5), None));
        let pinned = PopTarget::Partition { queue: "q".into(), partition: "".into() };
        let r = decode(pinned, &query("autopilot=true&partitions=9"), Subscription::New)
            .unwrap()
            .request;
        assert_eq!((r.batch, r.partitions), (None, Some(1)));
        let PopTarget::Partition { partition, .. } = r.target else { panic!("pinned") };
        assert_eq!(partition, "Default");
    }

    #[test]
    fn subscriptions_follow_the_first_contact_table() {
        for (text, want) in [
            ("consumerGroup=g", Subscription::New),
            ("consumerGroup=g&subscriptionMode=new", Subscription::New),
            ("consumerGroup=g&subscriptionMode=All", Subscription::All),
            ("consumerGroup=g&subscriptionMode=oldest", Subscription::New),
            ("consumerGroup=g&subscriptionMode=all&subscriptionFrom=now", Subscription::New),
            ("consumerGroup=g&subscriptionMode=all&subscriptionFrom=soon", Subscription::All),
            ("consumerGroup=g&subscriptionFrom=soon", Subscription::New),
            (
                "consumerGroup=g&subscriptionMode=all&subscriptionFrom=2023-11-14T22:13:20Z",
                Subscription::From(1_700_000_000_000_000),
            ),
            ("consumerGroup=&subscriptionMode=new", Subscription::All),
            ("consumerGroup=__QUEUE_MODE__&subscriptionFrom=now", Subscription::All),
        ] {
            assert_eq!(read(text).subscription, want, "{text}");
        }
        let all = |text| decode(queue(), &query(text), Subscription::All).unwrap().request;
        for (text, want) in [
            ("consumerGroup=g", Subscription::All),
            ("consumerGroup=g&subscriptionMode=oldest", Subscription::All),
            ("consumerGroup=g&subscriptionMode=NEW", Subscription::New),
            ("consumerGroup=g&subscriptionFrom=now", Subscription::New),
        ] {
            assert_eq!(all(text).subscription, want, "{text}");
        }
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for text in [
            "batch=x",
            "partitions=1.5",
            "timeout=soon",
            "leaseSeconds=99999999999999999999",
            "wait=yes",
            "autoAck=TRUE",
            "commitOnDelivery=2",
            "autopilot=on",
            "frames=f",
            "conflation=maybe",
            "conflation=true",
            "conflation=true&consumerGroup=g&autoAck=true",
        ] {
            assert_eq!(refused(text), ErrorCode::BadRequest, "{text}");
        }
        assert_eq!(refused("conflation=true&consumerGroup=__QUEUE_MODE__"), ErrorCode::BadRequest);
        assert!(read("conflation=true&consumerGroup=g").conflation);
        assert!(!read("conflation=false").conflation);
    }

    #[test]
    fn names_are_checked() {
        let code = |target| read_named(target).unwrap_err().code;
        assert_eq!(code(PopTarget::Queue("".into())), ErrorCode::BadRequest);
        assert_eq!(code(PopTarget::Queue("q".repeat(411).into())), ErrorCode::NameTooLong);
        assert!(read_named(PopTarget::Queue("q".repeat(410).into())).is_ok());
        let (queue, partition) = ("q".into(), "p".repeat(411).into());
        assert_eq!(code(PopTarget::Partition { queue, partition }), ErrorCode::NameTooLong);
    }

    #[test]
    fn discovery_needs_a_label() {
        assert_eq!(labels(&query("namespace=&task=&batch=1")), None);
        let (namespace, task) = ("n".into(), "".into());
        let target = labels(&query("namespace=n")).unwrap();
        assert_eq!(target, PopTarget::Labels { namespace, task });
        assert!(decode(target, &query("namespace=n"), Subscription::New).is_ok());
        let mut out = Vec::new();
        encode_no_labels(&mut out);
        let read: queen_protocol::PopResponse = serde_json::from_slice(&out).unwrap();
        assert!(!read.success && read.messages.is_empty());
    }

    fn stored(base: u64, messages: &[(&str, &str)]) -> Gather<HeapBuf> {
        let mut bytes = Vec::new();
        for (n, (txn, payload)) in messages.iter().enumerate() {
            let id = MessageId([n as u8; 16]);
            frame::write_frame(&mut bytes, id, txn.as_bytes(), payload.as_bytes());
        }
        let head = BatchHead {
            base_offset: Offset(base),
            created_at_us: 1_700_000_000_123_999,
            count: messages.len() as u32,
            codec: frame::CODEC_RAW,
            len: bytes.len() as u32,
        };
        Gather::Owned([&head.encode()[..], &bytes].concat())
    }

    fn reply(start: u64, end: u64, batches: Vec<Gather<HeapBuf>>) -> PopReply<HeapBuf> {
        let claim = Claim {
            queue: "orders".into(),
            partition: "p\"7".into(),
            partition_id: PartitionId(7),
            since: Offset(start),
            start: Offset(start),
            end: Offset(end),
            epoch: 0,
            attempt: 2,
            batches,
        };
        let lease_id = Some(LeaseId([0x22; 16]));
        let (queue, group) = ("orders".into(), "g".into());
        PopReply {
            queue,
            group,
            lease_id,
            claims: vec![claim],
            autopilot: None,
            conflation: Conflation::Off,
        }
    }

    fn json(reply: &PopReply<HeapBuf>, discovery: bool) -> String {
        let mut out = Vec::new();
        encode_json(reply, discovery, &mut Opener::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_answer_has_the_wires_keys_in_order() {
        let batches = vec![stored(10, &[("t\n", " {\"a\" :1.0}"), ("u", ""), ("v", "3")])];
        let mut r = reply(10, 11, batches);
        r.autopilot = Some(Autopilot { partitions: 4, batch: 50 });
        let lease = "22222222-2222-2222-2222-222222222222";
        let tail = format!(
            "\"producerSub\":null,\"createdAt\":\"2023-11-14T22:13:20.123Z\",\"partitionId\":\"7\",\
             \"partition\":\"p\\\"7\",\"leaseId\":\"{lease}\",\"consumerGroup\":\"g\",\
             \"deliveryAttempt\":2,\"offset\":"
        );
        let want = format!(
            "{{\"success\":true,\"queue\":\"orders\",\"partition\":\"p\\\"7\",\
             \"partitionId\":\"7\",\
             \"leaseId\":\"{lease}\",\"consumerGroup\":\"g\",\"messages\":[\
             {{\"id\":\"00000000-0000-0000-0000-000000000000\",\"transactionId\":\"t\\n\",\
             \"traceId\":null,\"data\": {{\"a\" :1.0}},{tail}10}},\
             {{\"id\":\"01010101-0101-0101-0101-010101010101\",\"transactionId\":\"u\",\
             \"traceId\":null,\"data\":null,{tail}11}}],\
             \"partitionsClaimed\":1,\"autopilot\":{{\"partitions\":4,\"batch\":50}}}}"
        );
        assert_eq!(json(&r, false), want);
        let read: queen_protocol::PopResponse = serde_json::from_str(&want).unwrap();
        assert_eq!((read.messages.len(), read.autopilot.unwrap().batch), (2, 50));
    }

    #[test]
    fn a_discovery_answer_names_queues_per_message() {
        let mut r = reply(0, 0, vec![stored(0, &[("t", "1")])]);
        r.queue.clear();
        let value: serde_json::Value = serde_json::from_str(&json(&r, true)).unwrap();
        assert_eq!(
            (&value["queue"], &value["messages"][0]["queue"]),
            (&"".into(), &"orders".into())
        );
        r.lease_id = None;
        let value: serde_json::Value = serde_json::from_str(&json(&r, false)).unwrap();
        assert_eq!((&value["leaseId"], &value["messages"][0]["leaseId"]), (&"".into(), &"".into()));
        assert_eq!(value["messages"][0].get("queue"), None);
        r.claims.clear();
        let want = concat!(
            r#"{"success":true,"queue":"","partition":"","partitionId":"","leaseId":"","#,
            r#""consumerGroup":"g","messages":[],"partitionsClaimed":0}"#
        );
        assert_eq!(json(&r, false), want);
    }

    #[test]
    fn only_claimed_messages_are_shown() {
        let batches = vec![
            stored(5, &[("a", "5"), ("b", "6")]),
            stored(7, &[("c", "7")]),
            stored(8, &[("d", "8"), ("e", "9"), ("f", "10")]),
        ];
        for (start, end) in [(5, 10), (6, 8), (7, 7), (6, 9), (0, 99), (3, 4)] {
            let text = json(&reply(start, end, batches.clone()), false);
            let read: queen_protocol::PopResponse = serde_json::from_str(&text).unwrap();
            let got: Vec<u64> = read.messages.iter().map(|m| m.data.as_u64().unwrap()).collect();
            let want: Vec<u64> = (5..=10).filter(|n| (start..=end).contains(n)).collect();
            assert_eq!(got, want);
        }
    }

    #[test]
    fn what_cannot_be_shown_fails_and_leaves_the_output_alone() {
        let whole = stored(0, &[("t", "1"), ("u", "2")]).to_vec();
        let changed = |at: usize, to: u8| {
            let mut bytes = whole.clone();
            bytes[at] = to;
            bytes
        };
        let count_three = changed(16, 3);
        let compressed = changed(20, frame::CODEC_ZSTD);
        let unknown = changed(20, 9);
        let long = changed(21, 200);
        let encrypted = changed(BATCH_HEAD_BYTES + 4, frame::FLAG_ENCRYPTED);
        for bytes in [count_three, compressed, unknown, long, encrypted, whole[..20].to_vec()] {
            let mut out = b"before".to_vec();
            let reply = reply(0, 9, vec![Gather::Owned(bytes)]);
            let refusal = encode_json(&reply, false, &mut Opener::default(), &mut out).unwrap_err();
            let named = [ErrorCode::Internal, ErrorCode::CannotDecrypt];
            assert!(named.contains(&refusal.code), "{refusal:?}");
            assert_eq!(out, b"before");
        }
    }
}

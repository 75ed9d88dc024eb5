//! Transactions: acks and pushes that happen together or not at all.
//!
//! ```text
//! JSON:    {"operations":[{"type":"push",…},{"type":"ack",…}],"requiredLeases":[…],…}
//! binary:  "QTB1" | u8 flags | u32 len, JSON as above without its pushes | u32 groups | groups
//! flags:   2 answer with counts only
//! ```
//! The groups are those of a framed push. Little-endian. A transaction has an answer of its own
//! shape, also where its body is refused; only limits and the state of the broker answer with the
//! plain error body.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ack;
use super::json::{self, Fields, Object, Text};
use super::json_scan::{self, Scan, once};
use super::push::{self, Label};
use super::push_binary::{FramedBody, Labels};
use crate::base::uuid;
use crate::model::command::{AckItem, FrameGroup};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::PushResult;
use crate::model::transaction::{
    Committed, RolledBack, TransactionAck, TransactionItem, TransactionReply, TransactionRequest,
};

const MAGIC: &[u8; 4] = b"QTB1";
const FLAG_COUNTS: u8 = 2;

/// Why a body is no transaction.
#[derive(Debug)]
pub enum Unusable {
    /// Answered with the plain error body.
    Refused(Refusal),
    /// Answered in the shape of a transaction, reason `bad_request`.
    Malformed(Cow<'static, str>),
    /// The same where the body could be read and its parts make no sense: HTTP 200.
    Senseless(&'static str),
}

impl Unusable {
    /// What is wrong with the bytes of a body is said in the transaction's shape.
    pub fn of(refusal: Refusal) -> Self {
        match refusal.code {
            ErrorCode::BadBody => Self::Malformed(refusal.text),
            _ => Self::Refused(refusal),
        }
    }
}

/// One operation's place in the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Ack(usize),
    Push(usize),
}

/// A transaction as its body has it.
#[derive(Debug)]
pub struct Transaction<'a> {
    pub request: TransactionRequest<'a>,
    /// Operations in the order of the answer; messages of groups come behind them.
    slots: Vec<Slot>,
    pub counts: bool,
}

/// Reads a JSON body.
pub fn decode(body: &[u8]) -> Result<Transaction<'_>, Unusable> {
    let wire = json_scan::read(body, WireTransaction::scan).map_err(Unusable::of)?;
    if wire.is_empty() {
        return Err(Unusable::Senseless("the transaction has no parts"));
    }
    wire.read()
}

/// The binary form: its head read, its groups still to come.
pub struct Framed<'a> {
    pub transaction: Transaction<'a>,
    pub groups: FramedBody<'a>,
}

impl<'a> Framed<'a> {
    /// `None`: not the binary form at all. The frames of its groups are stamped with `producer`.
    pub fn read(body: &'a Bytes, producer: Option<&'a str>) -> Option<Result<Self, Unusable>> {
        body.starts_with(MAGIC).then(|| Self::read_head(body, producer))
    }

    fn read_head(body: &'a Bytes, producer: Option<&'a str>) -> Result<Self, Unusable> {
        let malformed = |text: &'static str| Unusable::Malformed(text.into());
        let flags = *body.get(4).ok_or_else(|| malformed("the body ends before its flags"))?;
        if flags & !FLAG_COUNTS != 0 {
            return Err(malformed("flags that are not known here"));
        }
        let short = || malformed("the body ends inside its head");
        let head_bytes = body.get(5..9).and_then(|b| b.first_chunk::<4>()).ok_or_else(short)?;
        let behind = (u32::from_le_bytes(*head_bytes) as usize).saturating_add(9);
        let head = body.get(9..behind).ok_or_else(short)?;
        let head = if head.is_empty() { &b"{}"[..] } else { head };
        let wire = json_scan::read(head, WireTransaction::scan).map_err(Unusable::of)?;
        let groups = FramedBody::behind(body, behind, producer).map_err(Unusable::of)?;
        let transaction = wire.read()?;
        let counts = flags & FLAG_COUNTS != 0;
        Ok(Self { transaction: Transaction { counts, ..transaction }, groups })
    }
}

impl<'a> Transaction<'a> {
    /// Adds the groups of the binary form, all of them read.
    pub fn add_groups(&mut self, groups: Vec<FrameGroup<'a>>) -> Result<(), Unusable> {
        if self.slots.is_empty() && groups.is_empty() {
            return Err(Unusable::Senseless("the transaction has no parts"));
        }
        self.request.frames = groups;
        Ok(())
    }

    /// What the answer repeats, to be kept while the transaction goes its way.
    pub fn labels(&self) -> TransactionLabels<'a> {
        let ack = |ack: &TransactionAck<'a>| ack.item.transaction_id.clone();
        let push = |item: &TransactionItem<'a>| {
            let id = item.item.transaction_id.clone();
            (item.item.queue.clone(), id)
        };
        TransactionLabels {
            slots: self.slots.clone(),
            acks: self.request.acks.iter().map(ack).collect(),
            pushes: self.request.items.iter().map(push).collect(),
            groups: Labels::of(&self.request.frames),
            counts: self.counts,
        }
    }
}

/// What an answer repeats of a transaction.
pub struct TransactionLabels<'a> {
    slots: Vec<Slot>,
    acks: Vec<Cow<'a, str>>,
    pushes: Vec<(Cow<'a, str>, Option<Cow<'a, str>>)>,
    groups: Labels<'a>,
    counts: bool,
}

#[derive(Deserialize, Default, PartialEq, Debug)]
struct WireTransaction<'a> {
    #[serde(borrow)]
    operations: Option<Vec<Object<WireOperation<'a>>>>,
    #[serde(borrow, rename = "requiredLeases")]
    required_leases: Option<Vec<Text<'a>>>,
    kv: Option<Vec<IgnoredAny>>,
    timers: Option<Vec<IgnoredAny>>,
    positions: Option<Vec<IgnoredAny>>,
}

/// An operation, or an item of a push: a push may hold its one item inline.
#[derive(Deserialize, Default, PartialEq, Debug)]
struct WireOperation<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    items: Option<Vec<Object<WireOperation<'a>>>>,
    #[serde(borrow)]
    queue: Option<Text<'a>>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    // Present and `null` is a payload; absent is none.
    #[serde(borrow, default, deserialize_with = "json::present")]
    payload: Option<&'a str>,
    #[serde(borrow, default, deserialize_with = "json::present")]
    data: Option<&'a str>,
    #[serde(borrow, rename = "transactionId")]
    transaction_id: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "json::raw", rename = "traceId")]
    trace_id: Option<&'a str>,
    #[serde(borrow, default, deserialize_with = "json::raw", rename = "partitionId")]
    partition_id: Option<&'a str>,
    #[serde(borrow, rename = "consumerGroup")]
    group: Option<Text<'a>>,
    #[serde(borrow, rename = "leaseId")]
    lease_id: Option<Text<'a>>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "json::raw")]
    error: Option<&'a str>,
}

impl<'a> WireTransaction<'a> {
    /// A plain one without riders.
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        let mut wire = Self::default();
        scan.object(|scan, key| match key {
            "operations" => {
                let operations = WireOperation::scan_all(scan, WireOperation::scan_field)?;
                once(&mut wire.operations, operations)
            }
            "requiredLeases" => {
                let mut leases = Vec::new();
                scan.array(|scan| {
                    leases.push(Text::from(scan.text()?));
                    Some(())
                })?;
                once(&mut wire.required_leases, leases)
            }
            "kv" | "timers" | "positions" => None,
            _ => scan.value().map(drop),
        })?;
        Some(wire)
    }

    fn is_empty(&self) -> bool {
        self.operations.as_ref().is_none_or(Vec::is_empty) && self.rider().is_none()
    }

    /// A part that this build does not have.
    fn rider(&self) -> Option<&'static str> {
        let riders = [
            (&self.kv, "kv in a transaction"),
            (&self.timers, "timers in a transaction"),
            (&self.positions, "positions in a transaction"),
        ];
        let given =
            riders.into_iter().find(|(rider, _)| rider.as_ref().is_some_and(|r| !r.is_empty()));
        given.map(|(_, name)| name)
    }

    fn read(self) -> Result<Transaction<'a>, Unusable> {
        if let Some(name) = self.rider() {
            let text = format!("{name}: this build does not have it yet");
            return Err(Unusable::Refused(Refusal::new(ErrorCode::NotImplemented, text)));
        }
        let mut request = TransactionRequest::default();
        let mut slots = Vec::new();
        for Object(operation) in self.operations.unwrap_or_default() {
            match operation.kind.as_ref().map(|Text(kind)| &**kind) {
                Some("push") => {
                    for item in operation.items() {
                        slots.push(Slot::Push(request.items.len()));
                        request.items.push(item.pushed()?);
                    }
                }
                Some("ack") => {
                    slots.push(Slot::Ack(request.acks.len()));
                    request.acks.push(operation.acked()?);
                }
                _ => {
                    return Err(Unusable::Malformed("an operation is a push or an ack".into()));
                }
            }
        }
        let required = self.required_leases.unwrap_or_default();
        fence(&mut request.acks, required.into_iter().map(|Text(id)| id));
        Ok(Transaction { request, slots, counts: false })
    }
}

impl<'a> WireOperation<'a> {
    /// An array of them, each key read by `field`.
    fn scan_all(
        scan: &mut Scan<'a>,
        field: fn(&mut Self, &mut Scan<'a>, &str) -> Option<()>,
    ) -> Option<Vec<Object<Self>>> {
        let mut all = Vec::new();
        scan.array(|scan| {
            let mut one = Self::default();
            scan.object(|scan, key| field(&mut one, scan, key))?;
            all.push(Object(one));
            Some(())
        })?;
        Some(all)
    }

    fn scan_field(&mut self, scan: &mut Scan<'a>, key: &str) -> Option<()> {
        match key {
            "items" => once(&mut self.items, Self::scan_all(scan, Self::scan_item_field)?),
            _ => self.scan_item_field(scan, key),
        }
    }

    /// Without items of its own. A null is given up on, but for a payload's.
    fn scan_item_field(&mut self, scan: &mut Scan<'a>, key: &str) -> Option<()> {
        let text = match key {
            "type" => &mut self.kind,
            "queue" => &mut self.queue,
            "partition" => &mut self.partition,
            "transactionId" => &mut self.transaction_id,
            "consumerGroup" => &mut self.group,
            "leaseId" => &mut self.lease_id,
            "status" => &mut self.status,
            "payload" => return once(&mut self.payload, scan.value()?),
            "data" => return once(&mut self.data, scan.value()?),
            "traceId" => return once(&mut self.trace_id, scan.value_or_null()??),
            "partitionId" => return once(&mut self.partition_id, scan.value_or_null()??),
            "error" => return once(&mut self.error, scan.value_or_null()??),
            "items" => return None,
            _ => return scan.value().map(drop),
        };
        once(text, scan.text()?.into())
    }

    /// Several items, or the one that stands inline.
    fn items(mut self) -> Vec<Self> {
        match self.items.take() {
            Some(items) => items.into_iter().map(|Object(item)| item).collect(),
            None => vec![self],
        }
    }

    fn pushed(self) -> Result<TransactionItem<'a>, Unusable> {
        let (Some(Text(queue)), Some(payload)) = (self.queue, self.payload.or(self.data)) else {
            return Err(Unusable::Senseless("a push needs a queue and a payload"));
        };
        let item = push::check_item(queue, self.partition, self.transaction_id, payload);
        // Any other text is dropped, as the wire has it.
        let trace_id = self.trace_id.and_then(|raw| uuid::parse(&json::lenient_text(raw)));
        Ok(TransactionItem { item: item.map_err(Unusable::Refused)?, trace_id })
    }

    fn acked(self) -> Result<TransactionAck<'a>, Unusable> {
        let (Some(Text(transaction_id)), Some(raw)) = (self.transaction_id, self.partition_id)
        else {
            return Err(Unusable::Senseless("an ack needs a transactionId and a partitionId"));
        };
        let Some(partition_id) = ack::partition_id(raw) else {
            return Err(Unusable::Senseless("a partitionId is a number"));
        };
        let group = ack::check_group(self.group).map_err(Unusable::Refused)?;
        let item = AckItem {
            transaction_id,
            partition_id: Some(partition_id),
            status: ack::status(self.status.as_ref().map(|Text(word)| &**word)),
            lease_id: self.lease_id.map_or(Cow::Borrowed(""), |Text(id)| id),
            error: self.error.map(|raw| ack::cut(json::lenient_text(raw))),
        };
        Ok(TransactionAck { group, item })
    }
}

/// An ack without a lease of its own is fenced by the one lease that the whole transaction names,
/// if it names just one.
fn fence<'a>(acks: &mut [TransactionAck<'a>], required: impl Iterator<Item = Cow<'a, str>>) {
    let own = acks.iter().map(|ack| ack.item.lease_id.clone());
    let mut named: Vec<Cow<'a, str>> = own.chain(required).filter(|id| !id.is_empty()).collect();
    named.sort_unstable();
    named.dedup();
    let [only] = named.as_slice() else { return };
    for ack in acks.iter_mut().filter(|ack| ack.item.lease_id.is_empty()) {
        ack.item.lease_id = only.clone();
    }
}

/// Writes the answer.
pub fn encode(labels: &TransactionLabels<'_>, reply: &TransactionReply, out: &mut Vec<u8>) {
    match &reply.outcome {
        Ok(committed) => encode_committed(labels, reply, committed, out),
        Err(RolledBack { reason, text, .. }) => {
            encode_failure(Some(&reply.id.0), reason.word(), text, out);
        }
    }
}

/// A transaction that did not happen.
pub fn encode_failure(id: Option<&[u8; 16]>, reason: &str, text: &str, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    match id {
        Some(id) => fields.uuid("transactionId", id),
        None => fields.null("transactionId"),
    };
    fields
        .boolean("success", false)
        .text("reason", reason)
        .text("error", text)
        .literal("results", "[]")
        .end();
}

fn encode_committed(
    labels: &TransactionLabels<'_>,
    reply: &TransactionReply,
    committed: &Committed,
    out: &mut Vec<u8>,
) {
    if labels.counts {
        let repeats = committed.pushes.iter().filter(|r| matches!(r, PushResult::Duplicate { .. }));
        let duplicate = repeats.count();
        Fields::begin(out)
            .uuid("transactionId", &reply.id.0)
            .boolean("success", true)
            .integer("pushed", committed.pushes.len() - duplicate)
            .integer("duplicate", duplicate)
            .integer("acked", committed.acks.len())
            .literal("results", "[]")
            .end();
        return;
    }
    let pushed =
        |(queue, id): &(Cow<'_, str>, Option<Cow<'_, str>>), result, fields: &mut Fields<'_>| {
            encode_push((queue, id.as_ref().map(|id| id.as_bytes())), result, fields);
        };
    let operations = labels.slots.iter().map(|slot| Row::Operation(*slot));
    let framed = &committed.pushes[labels.pushes.len()..];
    let framed = labels.groups.iter().zip(framed).map(|(label, result)| Row::Framed(label, result));
    let mut index = 0usize;
    let mut fields = Fields::begin(out);
    fields.uuid("transactionId", &reply.id.0).boolean("success", true);
    fields.objects("results", operations.chain(framed), |row, fields| {
        fields.integer("index", index);
        index += 1;
        match row {
            Row::Operation(Slot::Push(at)) => {
                pushed(&labels.pushes[at], &committed.pushes[at], fields);
            }
            Row::Framed(label, result) => encode_push(label, result, fields),
            Row::Operation(Slot::Ack(at)) => {
                fields
                    .text("type", "ack")
                    .boolean("success", true)
                    .text("transactionId", &labels.acks[at])
                    .null("error")
                    .boolean("dlq", committed.acks[at]);
            }
        }
    });
    fields.end();
}

enum Row<'a> {
    Operation(Slot),
    Framed(Label<'a>, &'a PushResult),
}

fn encode_push(label: Label<'_>, result: &PushResult, fields: &mut Fields<'_>) {
    let (queue, given) = label;
    let id = uuid::to_text(&result.id().0);
    fields.text("type", "push").boolean("success", true);
    let out = fields.key("transactionId");
    out.push(b'"');
    json::write_escaped(out, given.unwrap_or(&id));
    out.push(b'"');
    fields.uuid("messageId", &result.id().0).text("queueName", queue);
    match result {
        PushResult::Duplicate { offset, .. } => {
            fields.boolean("duplicate", true).integer("offset", offset.0);
        }
        PushResult::Queued { offset, .. } => _ = fields.integer("offset", offset.0),
        PushResult::Error { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::json_check::tests::mutations;
    use super::*;
    use crate::base::ids::{MessageId, Offset, PartitionId};
    use crate::model::command::AckStatus;
    use crate::model::transaction::{Rollback, TransactionId};

    fn scan(body: &[u8]) -> Option<WireTransaction<'_>> {
        Scan::all(body, WireTransaction::scan)
    }

    #[test]
    fn what_is_scanned_is_what_the_general_reader_reads() {
        let push = r#"{"type":"push","items":[{"queue":"q","payload":{"a":1},"transactionId":"t"},{"queue":"é","partition":"p","data":null,"traceId":"x"}]}"#;
        let ack = r#"{"type":"ack","transactionId":"t","partitionId":"7","consumerGroup":"g","leaseId":"l","status":"completed","error":"e\\"}"#;
        let bodies = [
            format!(r#"{{"operations":[{push},{ack}],"requiredLeases":["a","b"]}}"#),
            format!(
                r#"{{"requiredLeases":[],"operations":[{ack}, {{"type":"push","queue":"q","payload":1,"x":[]}}]}}"#
            ),
            r#"{"more":{"operations":1}}"#.to_owned(),
        ];
        bodies.iter().for_each(|body| assert!(scan(body.as_bytes()).is_some(), "{body}"));
        let bodies = bodies.each_ref().map(String::as_str);
        let mut scanned = 0;
        for body in mutations(&bodies, 60_000) {
            // Whatever it is: an answer.
            let _ = decode(&body);
            if let Some(read) = scan(&body) {
                let other = json::read_object::<WireTransaction<'_>>(&body);
                assert_eq!(Ok(read), other, "{}", body.escape_ascii());
                scanned += 1;
            }
        }
        assert!(scanned > 10_000, "{scanned}");
    }

    fn read(body: &str) -> Transaction<'_> {
        decode(body.as_bytes()).unwrap()
    }

    #[test]
    fn operations_are_read_in_their_order_with_their_defaults() {
        let trace = "0191a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
        let body = format!(
            r#"{{"operations":[
            {{"type":"push","items":[{{"queue":"a","payload":null}},
                {{"queue":"b","partition":"p","data":[1.0],"transactionId":"t","traceId":"{trace}"}}]}},
            {{"type":"ack","transactionId":"i","partitionId":"7"}},
            {{"type":"push","queue":"c","payload":{{"items":1}},"traceId":"no uuid"}},
            {{"type":"push","items":[]}},
            {{"type":"ack","transactionId":"j","partitionId":8,"consumerGroup":"g",
              "status":"dlq","error":"why","leaseId":"L"}}],
            "requiredLeases":null,"kv":[],"timers":null,"other":1}}"#
        );
        let read = read(&body);
        let items = &read.request.items;
        let shape: Vec<_> =
            items.iter().map(|i| (&*i.item.queue, &*i.item.partition, i.item.payload)).collect();
        let want: [(_, _, &[u8]); 3] =
            [("a", "Default", b"null"), ("b", "p", b"[1.0]"), ("c", "Default", b"{\"items\":1}")];
        assert_eq!(shape, want);
        assert_eq!(
            items.iter().map(|i| i.trace_id.is_some()).collect::<Vec<_>>(),
            [false, true, false]
        );
        let [first, second] = read.request.acks.as_slice() else { panic!("two acks") };
        assert_eq!(
            (&*first.group, first.item.partition_id),
            ("__QUEUE_MODE__", Some(PartitionId(7)))
        );
        assert_eq!(second.item.status, AckStatus::DeadLetter);
        // The second names the only lease there is, so it fences the first too.
        assert_eq!((&*first.item.lease_id, &*second.item.lease_id), ("L", "L"));
        let slots = [Slot::Push(0), Slot::Push(1), Slot::Ack(0), Slot::Push(2), Slot::Ack(1)];
        assert_eq!(read.slots, slots);
    }

    #[test]
    fn only_one_lease_is_lent_to_acks_that_name_none() {
        let lease_of = |own: &str, required: &str| {
            let body = format!(
                r#"{{"operations":[{{"type":"ack","transactionId":"a","partitionId":"1"}},
                {{"type":"ack","transactionId":"b","partitionId":"2","leaseId":"{own}"}}],
                "requiredLeases":[{required}]}}"#
            );
            decode(body.as_bytes()).unwrap().request.acks[0].item.lease_id.to_string()
        };
        assert_eq!(lease_of("", ""), "");
        assert_eq!(lease_of("L", ""), "L");
        assert_eq!(lease_of("", r#""M""#), "M");
        assert_eq!(lease_of("L", r#""L","L""#), "L");
        assert_eq!(lease_of("L", r#""M""#), "");
        assert_eq!(lease_of("", r#""L","M""#), "");
    }

    #[test]
    fn what_is_no_transaction_is_said_in_its_shape() {
        for body in [
            "[]",
            "{",
            r#"{"operations":{}}"#,
            r#"{"operations":[{"type":"kv"}]}"#,
            r#"{"operations":[{"queue":"q","payload":1}]}"#,
            r#"{"operations":[{"type":"push","items":[{"queue":"q","payload":1,"transactionId":5}]}]}"#,
            r#"{"operations":[],"kv":{}}"#,
        ] {
            let refused = decode(body.as_bytes());
            assert!(matches!(refused, Err(Unusable::Malformed(_))), "{body}: {refused:?}");
        }
        for body in [
            "{}",
            r#"{"operations":[]}"#,
            r#"{"operations":[{"type":"push","queue":"q"}]}"#,
            r#"{"operations":[{"type":"push","payload":1}]}"#,
            r#"{"operations":[{"type":"ack","transactionId":"t","partitionId":"no number"}]}"#,
            r#"{"operations":[{"type":"ack","partitionId":"1"}]}"#,
        ] {
            let refused = decode(body.as_bytes());
            assert!(matches!(refused, Err(Unusable::Senseless(_))), "{body}: {refused:?}");
        }
        let long = "x".repeat(500);
        let code = |body: String| match decode(body.as_bytes()) {
            Err(Unusable::Refused(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        };
        let push = format!(r#"{{"operations":[{{"type":"push","queue":"{long}","payload":1}}]}}"#);
        assert_eq!(code(push), ErrorCode::NameTooLong);
        assert_eq!(code(r#"{"operations":[],"kv":[{}]}"#.into()), ErrorCode::NotImplemented);
    }

    #[test]
    fn answers_read_back_with_the_published_type() {
        let body = r#"{"operations":[{"type":"push","queue":"q","payload":1},
            {"type":"ack","transactionId":"i","partitionId":"7"},
            {"type":"push","queue":"q","payload":1,"transactionId":"t"}]}"#;
        let transaction = read(body);
        let labels = transaction.labels();
        let reply = TransactionReply {
            id: TransactionId([7; 16]),
            outcome: Ok(Committed {
                acks: vec![true],
                pushes: vec![
                    PushResult::Queued { id: MessageId([1; 16]), offset: Offset(4) },
                    PushResult::Duplicate { id: MessageId([2; 16]), offset: Offset(5) },
                ],
            }),
        };
        let mut out = Vec::new();
        encode(&labels, &reply, &mut out);
        let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let types: Vec<_> = read["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["type"].as_str().unwrap())
            .collect();
        assert_eq!(types, ["push", "ack", "push"]);
        assert_eq!(read["results"][2]["duplicate"], true);
        assert_eq!(read["results"][0].get("duplicate"), None);
        assert_eq!(read["results"][1]["dlq"], true);
        assert_eq!(read["results"][0]["transactionId"], read["results"][0]["messageId"]);
        let published: queen_protocol::TransactionResponse = serde_json::from_slice(&out).unwrap();
        assert!(published.success);
        let why = RolledBack {
            reason: Rollback::RejectedAck,
            text: "QTXN invalid or expired lease".into(),
            original: None,
        };
        let reply = TransactionReply { id: TransactionId([7; 16]), outcome: Err(why) };
        out.clear();
        encode(&labels, &reply, &mut out);
        let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&read["success"], &read["reason"]), (&false.into(), &"rejected_ack".into()));
        let published: queen_protocol::TransactionResponse = serde_json::from_slice(&out).unwrap();
        assert!(!published.success);
    }
}

//! Trace events of one shard. They lie in its log; memory holds a small entry for each, with its
//! place, and the orders they are found in. Their number and their age are bounded, the oldest go
//! first, and a segment stays as long as a trace in it is kept.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::inspect::{Progress, Work};
use super::partition::Slot;
use super::records::{self, Malformed, Reader, Writer};
use super::shard::Shard;
use crate::base::buf::{Gather, IoBuf};
use crate::base::hash::partition_hash;
use crate::base::ids::{LogPosition, PartitionId, SegmentId};
use crate::base::limits;
use crate::base::time::Now;
use crate::base::uuid;
use crate::log::ReadError;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::inspect::{
    InspectPart, Missing, NewTrace, TraceKey, TraceName, TraceQuery, TraceRow, TraceSubject,
};

/// Expired traces dropped in one step of the clock.
const EXPIRED_PER_STEP: usize = 256;

/// A name as it is found, on every shard alike. A hit is compared with the text once it is read.
pub(super) fn name_hash(name: &str) -> u64 {
    partition_hash("", name)
}

#[derive(Debug)]
struct Entry {
    created_at_us: i64,
    at: LogPosition,
    bytes: u32,
    slot: Slot,
    /// Fingerprint of the transaction id.
    transaction: u64,
    names: Box<[u64]>,
}

#[derive(Debug)]
struct NameUse {
    traces: u64,
    messages: u64,
    /// Number of its newest trace.
    last: u64,
}

/// Traces by number: they are counted from the start of the process on.
#[derive(Debug)]
pub(super) struct Traces {
    pub retention_us: i64,
    entries: VecDeque<Entry>,
    /// Number of the oldest entry.
    first: u64,
    messages: BTreeSet<(Slot, u64, u64)>,
    message_counts: HashMap<(Slot, u64), u64, ahash::RandomState>,
    names: HashMap<u64, NameUse, ahash::RandomState>,
    name_order: BTreeSet<(u64, u64)>,
    named: BTreeSet<(u64, u64)>,
    /// Traces of one name on one message.
    pairs: BTreeMap<(u64, Slot, u64), u64>,
}

impl Default for Traces {
    fn default() -> Self {
        let hasher = || ahash::RandomState::with_seeds(33, 34, 35, 36);
        Self {
            retention_us: retention_us(limits::TRACE_RETENTION_SECONDS_DEFAULT),
            entries: VecDeque::new(),
            first: 0,
            messages: BTreeSet::new(),
            message_counts: HashMap::with_hasher(hasher()),
            names: HashMap::with_hasher(hasher()),
            name_order: BTreeSet::new(),
            named: BTreeSet::new(),
            pairs: BTreeMap::new(),
        }
    }
}

pub(super) fn retention_us(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

impl Traces {
    fn get(&self, number: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn insert(&mut self, entry: Entry) {
        let number = self.first + self.entries.len() as u64;
        let message = (entry.slot, entry.transaction);
        self.messages.insert((message.0, message.1, number));
        *self.message_counts.entry(message).or_default() += 1;
        for hash in &entry.names {
            self.named.insert((*hash, number));
            let pair = self.pairs.entry((*hash, message.0, message.1)).or_default();
            *pair += 1;
            let new_message = u64::from(*pair == 1);
            let name =
                self.names.entry(*hash).or_insert(NameUse { traces: 0, messages: 0, last: number });
            self.name_order.remove(&(name.last, *hash));
            self.name_order.insert((number, *hash));
            name.traces += 1;
            name.messages += new_message;
            name.last = number;
        }
        self.entries.push_back(entry);
        while self.names.len() > limits::TRACE_NAMES_KEPT_MAX {
            let Some((_, hash)) = self.name_order.first().copied() else { break };
            self.forget_name(hash);
        }
    }

    /// Its traces stay, and are found by their messages.
    fn forget_name(&mut self, hash: u64) {
        let numbers: Vec<u64> =
            self.named.range((hash, 0)..=(hash, u64::MAX)).map(|(_, number)| *number).collect();
        for number in numbers {
            if let Some(entry) = self.get(number) {
                let (slot, transaction) = (entry.slot, entry.transaction);
                self.unname(hash, number, slot, transaction);
            }
        }
    }

    fn unname(&mut self, hash: u64, number: u64, slot: Slot, transaction: u64) {
        if !self.named.remove(&(hash, number)) {
            return;
        }
        let mut messages = 0;
        if let Some(pair) = self.pairs.get_mut(&(hash, slot, transaction)) {
            *pair -= 1;
            if *pair == 0 {
                self.pairs.remove(&(hash, slot, transaction));
                messages = 1;
            }
        }
        let Some(name) = self.names.get_mut(&hash) else { return };
        name.traces -= 1;
        name.messages -= messages;
        if name.traces == 0 {
            let last = name.last;
            self.name_order.remove(&(last, hash));
            self.names.remove(&hash);
        }
    }

    /// Drops the oldest; returns the segment it lay in.
    fn remove_oldest(&mut self) -> Option<SegmentId> {
        let entry = self.entries.pop_front()?;
        let number = self.first;
        self.first += 1;
        self.messages.remove(&(entry.slot, entry.transaction, number));
        let message = (entry.slot, entry.transaction);
        if let Some(count) = self.message_counts.get_mut(&message) {
            *count -= 1;
            if *count == 0 {
                self.message_counts.remove(&message);
            }
        }
        for hash in &entry.names {
            self.unname(*hash, number, entry.slot, entry.transaction);
        }
        Some(entry.at.segment())
    }

    /// Takes a stored trace. Returns the segments of those that had to go for it.
    fn keep(&mut self, entry: Entry) -> Option<SegmentId> {
        self.insert(entry);
        if self.entries.len() > limits::TRACES_MAX { self.remove_oldest() } else { None }
    }

    fn oldest_expired(&self, now: Now) -> bool {
        let limit = now.wall_us.saturating_sub(self.retention_us);
        self.entries.front().is_some_and(|entry| entry.created_at_us < limit)
    }
}

// ---- the record

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TraceRecord {
    id: [u8; 16],
    created_at_us: i64,
    /// Fingerprint of the transaction id.
    transaction: u64,
    trace: NewTrace,
}

impl TraceRecord {
    fn encode(&self) -> records::Body {
        let trace = &self.trace;
        let mut w = Writer::default();
        w.id(&self.id)
            .i64(self.created_at_us)
            .u64(self.transaction)
            .text(&trace.transaction_id)
            .text(&trace.group)
            .text(&trace.event_type)
            .u8(u8::from(trace.worker.is_some()))
            .text(trace.worker.as_deref().unwrap_or_default())
            .u8(trace.names.len() as u8);
        for name in &trace.names {
            w.text(name);
        }
        w.0.extend_from_slice(&trace.data);
        w.0
    }

    fn decode(partition: PartitionId, body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let (id, created_at_us, transaction) = (r.id()?, r.i64()?, r.u64()?);
        let [transaction_id, group, event_type] =
            [r.text()?.to_owned(), r.text()?.to_owned(), r.text()?.to_owned()];
        let has_worker = r.u8()? != 0;
        let worker = r.text()?.to_owned();
        let count = r.u8()?;
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(r.text()?.to_owned());
        }
        let trace = NewTrace {
            partition,
            transaction_id,
            group,
            event_type,
            worker: has_worker.then_some(worker),
            names,
            data: r.0.to_vec(),
        };
        Ok(Self { id, created_at_us, transaction, trace })
    }
}

impl super::state::State {
    /// Takes a trace of the log, unless it is too old or its partition is gone.
    pub(super) fn replay_trace(
        &mut self,
        record: &crate::log::Record<'_>,
        slot: Slot,
        now: Now,
    ) -> Result<(), Malformed> {
        let id = PartitionId(record.key);
        let stored = TraceRecord::decode(id, record.body)?;
        let limit = now.wall_us.saturating_sub(self.traces.retention_us);
        if self.parts.get(slot).is_none() || stored.created_at_us < limit {
            return Ok(());
        }
        self.keep_trace(slot, &stored, record.at, record.bytes);
        Ok(())
    }

    fn keep_trace(&mut self, slot: Slot, stored: &TraceRecord, at: LogPosition, bytes: u32) {
        let mut names: Vec<u64> = stored.trace.names.iter().map(|n| name_hash(n)).collect();
        names.sort_unstable();
        names.dedup();
        let (created_at_us, transaction) = (stored.created_at_us, stored.transaction);
        let names = names.into_boxed_slice();
        self.segments.add(at.segment());
        let entry = Entry { created_at_us, at, bytes, slot, transaction, names };
        if let Some(segment) = self.traces.keep(entry) {
            self.segments.remove(segment);
        }
    }

    /// Drops traces whose time is over.
    pub(super) fn expire_traces(&mut self, now: Now) {
        for _ in 0..EXPIRED_PER_STEP {
            if !self.traces.oldest_expired(now) {
                break;
            }
            if let Some(segment) = self.traces.remove_oldest() {
                self.segments.remove(segment);
            }
        }
    }
}

// ---- requests

impl<B: IoBuf> Shard<B> {
    pub(super) fn record_trace(
        &mut self,
        now: Now,
        trace: &NewTrace,
    ) -> Result<InspectPart, Refusal> {
        let Some((slot, transaction)) = self.address(trace.partition, &trace.transaction_id) else {
            return Ok(InspectPart::Missing(Missing::Partition));
        };
        let id = uuid::mint_v7(now.wall_us, &mut self.prng);
        let (created_at_us, trace) = (now.wall_us, trace.clone());
        let key = trace.partition.0;
        let record = TraceRecord { id, created_at_us, transaction, trace };
        let appended = self.append(records::TRACE, key, &[&record.encode()])?;
        self.state.keep_trace(slot, &record, appended.at, appended.bytes);
        Ok(InspectPart::Trace(id))
    }

    fn trace_key(&self, number: u64) -> Option<TraceKey> {
        let created_at_us = self.state.traces.get(number)?.created_at_us;
        Some(TraceKey { created_at_us, number, shard: self.config.shard.0 })
    }

    pub(super) fn trace_keys(&self, query: &TraceQuery) -> InspectPart {
        let traces = &self.state.traces;
        let reach = query.page.reach();
        let (numbers, total): (Vec<u64>, u64) = match &query.of {
            TraceSubject::Message { partition, transaction_id } => {
                let Some((slot, transaction)) = self.address(*partition, transaction_id) else {
                    return InspectPart::TraceKeys { keys: Vec::new(), total: 0 };
                };
                let range = (slot, transaction, 0)..=(slot, transaction, u64::MAX);
                let numbers = traces.messages.range(range).rev().map(|entry| entry.2);
                let total = traces.message_counts.get(&(slot, transaction));
                (numbers.take(reach).collect(), total.copied().unwrap_or(0))
            }
            TraceSubject::Name(name) => {
                let hash = name_hash(name);
                let numbers = traces.named.range((hash, 0)..=(hash, u64::MAX)).rev().map(|n| n.1);
                let total = traces.names.get(&hash).map_or(0, |name| name.traces);
                (numbers.take(reach).collect(), total)
            }
        };
        let keys = numbers.into_iter().filter_map(|number| self.trace_key(number)).collect();
        InspectPart::TraceKeys { keys, total }
    }

    pub(super) fn trace_names(&self) -> InspectPart {
        let traces = &self.state.traces;
        let names = traces.name_order.iter().rev().filter_map(|(number, hash)| {
            let name = traces.names.get(hash)?;
            let last_us = traces.get(*number)?.created_at_us;
            let (traces, messages) = (name.traces, name.messages);
            Some(TraceName { hash: *hash, traces, messages, last_us })
        });
        InspectPart::TraceNames { shard: self.config.shard, names: names.collect() }
    }

    fn trace_place(&self, number: u64) -> Option<(LogPosition, u32, PartitionId)> {
        let entry = self.state.traces.get(number)?;
        Some((entry.at, entry.bytes, self.state.id_of(entry.slot)))
    }
}

/// A record that was read, or why it could not be.
#[derive(Default, Debug)]
struct Taken(Option<Result<Vec<u8>, Refusal>>);

impl Taken {
    fn put<B: IoBuf>(&mut self, body: Result<Gather<B>, ReadError>) {
        let unreadable =
            |error| Refusal::new(ErrorCode::Internal, format!("a trace cannot be read: {error}"));
        self.0 = Some(body.map(|body| body.to_vec()).map_err(unreadable));
    }

    fn decode(&mut self, partition: PartitionId) -> Option<Result<TraceRecord, Refusal>> {
        let body = self.0.take()?;
        Some(body.and_then(|body| {
            TraceRecord::decode(partition, &body).map_err(|_malformed| {
                let text = "a stored trace is not what its kind promises";
                Refusal::new(ErrorCode::Internal, text)
            })
        }))
    }
}

/// Reads a page of traces, one after the other, until the answer is full.
#[derive(Debug)]
pub(super) struct Rows {
    keys: Vec<TraceKey>,
    at: usize,
    bytes: usize,
    budget: usize,
    rows: Vec<TraceRow>,
    taken: Taken,
}

impl Rows {
    pub(super) fn new(keys: Vec<TraceKey>, budget: usize) -> Self {
        Self { keys, at: 0, bytes: 0, budget, rows: Vec::new(), taken: Taken::default() }
    }
}

impl<B: IoBuf> Work<B> for Rows {
    fn step(&mut self, shard: &mut Shard<B>, _now: Now) -> Progress {
        while let Some(key) = self.keys.get(self.at).copied() {
            let place = shard.trace_place(key.number);
            let names = place.and_then(|(_, _, id)| {
                let partition = shard.state.parts.get(shard.state.slot_of(id)?)?;
                let queue = shard.state.queue_of(partition)?;
                Some((queue.image.name.clone(), partition.name.to_string()))
            });
            // Expired, or its queue is gone.
            let (Some((at, bytes, id)), Some((queue, partition))) = (place, names) else {
                (self.at, self.taken) = (self.at + 1, Taken::default());
                continue;
            };
            let record = match self.taken.decode(id) {
                Some(Ok(record)) => record,
                Some(Err(refusal)) => return Progress::Done(Err(refusal)),
                None if self.bytes > 0 && self.bytes + bytes as usize > self.budget => {
                    let (rows, cut) = (std::mem::take(&mut self.rows), Some(key));
                    return Progress::Done(Ok(InspectPart::Traces { rows, cut }));
                }
                None => return Progress::Read(at, bytes),
            };
            self.bytes += bytes as usize;
            let (id, trace) = (record.id, record.trace);
            self.rows.push(TraceRow { key, id, queue, partition, trace });
            self.at += 1;
        }
        let rows = std::mem::take(&mut self.rows);
        Progress::Done(Ok(InspectPart::Traces { rows, cut: None }))
    }

    fn take(&mut self, body: Result<Gather<B>, ReadError>) {
        self.taken.put(body);
    }
}

/// Reads one trace of each name, for its text.
#[derive(Debug)]
pub(super) struct NameRows {
    hashes: Vec<u64>,
    at: usize,
    texts: Vec<(u64, String)>,
    taken: Taken,
}

impl NameRows {
    pub(super) fn new(hashes: Vec<u64>) -> Self {
        Self { hashes, at: 0, texts: Vec::new(), taken: Taken::default() }
    }
}

impl<B: IoBuf> Work<B> for NameRows {
    fn step(&mut self, shard: &mut Shard<B>, _now: Now) -> Progress {
        while let Some(hash) = self.hashes.get(self.at).copied() {
            let last = shard.state.traces.names.get(&hash).map(|name| name.last);
            let Some((at, bytes, id)) = last.and_then(|last| shard.trace_place(last)) else {
                (self.at, self.taken) = (self.at + 1, Taken::default());
                continue;
            };
            let record = match self.taken.decode(id) {
                Some(Ok(record)) => record,
                Some(Err(refusal)) => return Progress::Done(Err(refusal)),
                None => return Progress::Read(at, bytes),
            };
            let text = record.trace.names.into_iter().find(|name| name_hash(name) == hash);
            self.texts.extend(text.map(|text| (hash, text)));
            self.at += 1;
        }
        let texts = std::mem::take(&mut self.texts);
        Progress::Done(Ok(InspectPart::TraceNameTexts(texts)))
    }

    fn take(&mut self, body: Result<Gather<B>, ReadError>) {
        self.taken.put(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: Slot, transaction: u64, names: &[u64]) -> Entry {
        let at = LogPosition::new(SegmentId(slot), 0);
        let names = names.to_vec().into_boxed_slice();
        Entry { created_at_us: 0, at, bytes: 1, slot, transaction, names }
    }

    #[test]
    fn counts_follow_what_is_kept_and_nothing_is_left_of_what_is_not() {
        let mut traces = Traces::default();
        traces.insert(entry(1, 10, &[7, 8]));
        traces.insert(entry(1, 10, &[7]));
        traces.insert(entry(2, 20, &[7]));
        let counts = |t: &Traces, hash| t.names.get(&hash).map(|n| (n.traces, n.messages, n.last));
        assert_eq!(counts(&traces, 7), Some((3, 2, 2)));
        assert_eq!(counts(&traces, 8), Some((1, 1, 0)));
        assert_eq!(traces.message_counts[&(1, 10)], 2);
        assert_eq!(traces.remove_oldest(), Some(SegmentId(1)));
        assert_eq!((counts(&traces, 7), counts(&traces, 8)), (Some((2, 2, 2)), None));
        assert!(traces.get(0).is_none() && traces.get(1).is_some());
        traces.remove_oldest();
        traces.remove_oldest();
        assert_eq!(traces.remove_oldest(), None);
        assert!(traces.messages.is_empty() && traces.message_counts.is_empty());
        assert!(traces.names.is_empty() && traces.named.is_empty() && traces.pairs.is_empty());
        assert!(traces.name_order.is_empty());
    }

    #[test]
    fn number_and_names_are_bounded_and_the_oldest_go_first() {
        let mut traces = Traces::default();
        let mut gone = 0;
        for number in 0..limits::TRACES_MAX as u64 + 5 {
            gone += usize::from(traces.keep(entry(1, number, &[number])).is_some());
        }
        assert_eq!((gone, traces.entries.len(), traces.first), (5, limits::TRACES_MAX, 5));
        assert_eq!(traces.names.len(), limits::TRACE_NAMES_KEPT_MAX);
        assert_eq!(traces.named.len(), limits::TRACE_NAMES_KEPT_MAX);
        assert!(traces.names.contains_key(&(limits::TRACES_MAX as u64 + 4)));
        assert_eq!(traces.messages.len(), limits::TRACES_MAX);
    }

    #[test]
    fn a_record_round_trips_and_every_truncation_of_its_head_is_malformed() {
        let trace = NewTrace {
            partition: PartitionId(9),
            transaction_id: "t".into(),
            group: "g".into(),
            event_type: "step".into(),
            worker: Some("w".into()),
            names: vec!["a".into(), "b".into()],
            data: b"{}".to_vec(),
        };
        let record = TraceRecord { id: [3; 16], created_at_us: 5, transaction: 6, trace };
        let bytes = record.encode();
        assert_eq!(TraceRecord::decode(PartitionId(9), &bytes), Ok(record));
        for end in 0..bytes.len() - 2 {
            assert_eq!(TraceRecord::decode(PartitionId(9), &bytes[..end]), Err(Malformed));
        }
    }
}

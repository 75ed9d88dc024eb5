//! Messages for the operator: the newest that match, found by walking the partitions' lists of
//! batches without a read; a page of them, read batch by batch; and one message by its
//! transaction id.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::dlq::BodyNumbers;
use super::inspect::{Progress, Work};
use super::partition::{BatchRef, Slot};
use super::queue::Queue;
use super::readers::{Place, lease_over};
use super::records;
use super::shard::Shard;
use super::state::State;
use super::survey::{Scope, Survey, Walk};
use crate::base::buf::{Gather, IoBuf};
use crate::base::ids::{LogPosition, Offset, PartitionId};
use crate::base::limits;
use crate::base::time::Now;
use crate::log::ReadError;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{BATCH_HEAD_BYTES, BatchHead};
use crate::model::inspect::{
    Bodies, BodyPlace, InspectPart, MessageDetail, MessageKey, MessageQuery, MessageRow,
    MessageStatus, ReaderMode, ReaderRow, StatusFilter,
};

const HOUR_US: i64 = 3_600_000_000;
const MINUTE_US: i64 = 60_000_000;

// ---- finding the newest

#[derive(Debug)]
struct Newest {
    query: MessageQuery,
    from_us: i64,
    to_us: i64,
    /// The newest so far, the oldest of them on top.
    keys: BinaryHeap<Reverse<MessageKey>>,
    mode: ReaderMode,
}

pub(super) fn list<B: IoBuf>(shard: &Shard<B>, now: Now, query: MessageQuery) -> Box<dyn Work<B>> {
    let scope = Scope { queue: query.queue.clone(), partition: query.partition.clone() };
    let from_us = query.from_us.unwrap_or(now.wall_us - HOUR_US);
    // The minute that the end lies in belongs to the span.
    let end = query.to_us.unwrap_or(now.wall_us);
    let to_us = end.saturating_sub(end.rem_euclid(MINUTE_US)).saturating_add(MINUTE_US);
    let (keys, mode) = (BinaryHeap::new(), ReaderMode::default());
    Walk::begin(shard, scope, Newest { query, from_us, to_us, keys, mode })
}

impl Newest {
    /// Offers one message. False: those before it in its partition are too old as well.
    fn offer(&mut self, key: MessageKey) -> bool {
        if self.keys.len() < self.query.page.reach() {
            self.keys.push(Reverse(key));
            return true;
        }
        match self.keys.peek_mut() {
            Some(mut oldest) if oldest.0 < key => {
                *oldest = Reverse(key);
                true
            }
            _ => false,
        }
    }

    /// Offers the messages of `from..to`, the newest first. Returns how many it looked at.
    fn offer_range(
        &mut self,
        state: &State,
        place: Place<'_>,
        from: Offset,
        to: Offset,
        dead: bool,
    ) -> usize {
        if from >= to {
            return 0;
        }
        let partition = state.id_of(place.slot);
        let spared = !dead && state.dead_letters.count_of(place.slot) > 0;
        let batches = place.partition.batches_between(from, Offset(to.0 - 1));
        let in_time = batches.partition_point(|batch| batch.created_at_us < self.to_us);
        let mut looks = 0;
        for batch in batches[..in_time].iter().rev() {
            if batch.created_at_us < self.from_us {
                break;
            }
            for offset in (batch.base.max(from).0..batch.end().min(to).0).rev().map(Offset) {
                looks += 1;
                if spared && state.dead_letters.by_offset(place.slot, offset).next().is_some() {
                    continue;
                }
                let created_at_us = batch.created_at_us;
                if !self.offer(MessageKey { created_at_us, offset, partition }) {
                    return looks;
                }
            }
        }
        looks
    }

    fn offer_dead(&mut self, state: &State, place: Place<'_>) -> usize {
        if state.dead_letters.count_of(place.slot) == 0 {
            return 0;
        }
        let (mut looks, mut last) = (0, None);
        let end = place.partition.high_watermark();
        for offset in state.dead_letters.offsets_below(place.slot, end) {
            if last.replace(offset) == Some(offset) {
                continue;
            }
            looks += 1;
            if offset < place.partition.log_start || self.is_too_old(place, offset) {
                break;
            }
            self.offer_range(state, place, offset, Offset(offset.0 + 1), true);
        }
        looks
    }

    fn is_too_old(&self, place: Place<'_>, offset: Offset) -> bool {
        let created = place.partition.batch_of(offset).map(|batch| batch.created_at_us);
        created.is_none_or(|us| us < self.from_us)
    }
}

impl Survey for Newest {
    fn enter(&mut self, _state: &State, queue: &Queue) -> bool {
        let options = &queue.image.options;
        let keep = |wanted: &Option<String>, label: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == label)
        };
        let wanted = keep(&self.query.namespace, &options.namespace)
            && keep(&self.query.task, &options.task);
        if wanted {
            let named = queue.groups.iter().skip(1).flatten();
            self.mode.groups += named.filter(|g| g.start.is_some()).count() as u64;
            self.mode.queue_mode |= queue.group(0).is_some_and(|g| !g.cursors.is_empty());
        }
        wanted && self.query.status != StatusFilter::Nothing
    }

    fn visit(&mut self, state: &State, now: Now, place: Place<'_>) -> usize {
        let (start, end) = (place.partition.log_start, place.partition.high_watermark());
        let full = self.keys.len() >= self.query.page.reach();
        let oldest = self.keys.peek().filter(|_| full).map(|key| key.0.created_at_us);
        if place.partition.last_created_us < oldest.unwrap_or(self.from_us).max(self.from_us) {
            return 1;
        }
        let settled = || place.slowest().min(end);
        let looks = match self.query.status {
            StatusFilter::Nothing => 0,
            StatusFilter::Any => self.offer_range(state, place, start, end, true),
            StatusFilter::Only(MessageStatus::DeadLetter) => self.offer_dead(state, place),
            StatusFilter::Only(MessageStatus::Completed) => {
                self.offer_range(state, place, start, settled(), false)
            }
            StatusFilter::Only(open) => {
                let leased = place.is_leased(now);
                if leased == (open == MessageStatus::Processing) {
                    self.offer_range(state, place, settled(), end, false)
                } else {
                    0
                }
            }
        };
        1 + looks + place.queue.groups.len()
    }

    fn finish(&mut self) -> InspectPart {
        let mut keys: Vec<MessageKey> =
            std::mem::take(&mut self.keys).into_iter().map(|key| key.0).collect();
        keys.sort_unstable_by_key(|key| Reverse(*key));
        InspectPart::MessageKeys { keys, mode: self.mode }
    }
}

// ---- reading a page

/// Reads the batches of a page's messages, each once, until the answer is full.
#[derive(Debug)]
pub(super) struct Rows {
    keys: Vec<MessageKey>,
    at: usize,
    bytes: usize,
    budget: usize,
    rows: Vec<MessageRow>,
    bodies: Vec<Vec<u8>>,
    numbers: BodyNumbers,
    wanted: Option<LogPosition>,
    failure: Option<String>,
}

impl Rows {
    pub(super) fn new(keys: Vec<MessageKey>, budget: usize) -> Self {
        Self {
            keys,
            at: 0,
            bytes: 0,
            budget,
            rows: Vec::new(),
            bodies: Vec::new(),
            numbers: BodyNumbers::new(),
            wanted: None,
            failure: None,
        }
    }

    fn done(&mut self, cut: Option<MessageKey>) -> Progress {
        let bodies = Bodies(std::mem::take(&mut self.bodies));
        let rows = std::mem::take(&mut self.rows);
        Progress::Done(Ok(InspectPart::MessageRows { rows, bodies, cut }))
    }
}

/// The partition of a key with its queue, if both are still there.
fn place_of(state: &State, id: PartitionId) -> Option<Place<'_>> {
    let slot = state.slot_of(id)?;
    let partition = state.parts.get(slot)?;
    Some(Place { queue: state.catalog.get(partition.queue)?, slot, partition })
}

impl<B: IoBuf> Work<B> for Rows {
    fn step(&mut self, shard: &mut Shard<B>, now: Now) -> Progress {
        if let Some(text) = self.failure.take() {
            return Progress::Done(Err(Refusal::new(ErrorCode::Internal, text)));
        }
        while let Some(key) = self.keys.get(self.at).copied() {
            let place = place_of(&shard.state, key.partition);
            let batch = place.and_then(|place| place.partition.batch_of(key.offset).copied());
            // Retention or a deletion was faster.
            let (Some(place), Some(batch)) = (place, batch) else {
                self.at += 1;
                continue;
            };
            let Some(body) = self.numbers.get(&batch.at).copied() else {
                if self.bytes > 0 && self.bytes + batch.bytes as usize > self.budget {
                    return self.done(Some(key));
                }
                self.wanted = Some(batch.at);
                return Progress::Read(batch.at, batch.bytes);
            };
            let index = (key.offset.0 - batch.base.0) as u32;
            let (groups, consumed_by) = place.consumed_by(key.offset);
            let options = &place.queue.image.options;
            self.rows.push(MessageRow {
                key,
                queue: place.queue.image.name.clone(),
                partition: place.partition.name.to_string(),
                namespace: options.namespace.clone(),
                task: options.task.clone(),
                priority: options.priority,
                status: place.status(now, key.offset, &shard.state.dead_letters),
                queue_status: place.queue_status(now, key.offset),
                consumed_by,
                groups,
                lease_expires_us: place.leased_until(now, key.offset),
                segment: u64::from(batch.at.segment().0),
                place: BodyPlace { body, index },
            });
            self.at += 1;
        }
        self.done(None)
    }

    fn take(&mut self, body: Result<Gather<B>, ReadError>) {
        let Some(at) = self.wanted.take() else { return };
        match body {
            Ok(body) => {
                let body = without_id_table(&body);
                self.bytes += body.len();
                self.numbers.insert(at, self.bodies.len() as u32);
                self.bodies.push(body);
            }
            Err(error) => {
                self.failure = Some(format!("a message of the page cannot be read: {error}"));
            }
        }
    }
}

fn without_id_table<B: IoBuf>(body: &Gather<B>) -> Vec<u8> {
    let mut bytes = body.to_vec();
    if let Some(head) = BatchHead::decode(&bytes) {
        bytes.truncate(BATCH_HEAD_BYTES + head.len as usize);
    }
    bytes
}

// ---- one message

/// Looks for the newest message of an address: where the dedup index and the dead letters say,
/// then, for an id that was minted with a time in it, in the batches of that time, then in all
/// that are kept, from the newest on.
#[derive(Debug)]
pub(super) struct Find {
    id: PartitionId,
    slot: Slot,
    fingerprint: u64,
    /// Known places, the oldest first.
    known: Vec<(LogPosition, u32)>,
    /// Where the search goes on: batches that begin before this offset.
    before: Offset,
    left: usize,
    found: Option<(Offset, i64, Vec<u8>, u32)>,
    failure: Option<String>,
}

impl Find {
    pub(super) fn begin<B: IoBuf>(
        shard: &Shard<B>,
        id: PartitionId,
        transaction_id: String,
    ) -> Option<Self> {
        let (slot, fingerprint) = shard.address(id, &transaction_id)?;
        let place = place_of(&shard.state, id)?;
        let mut hits = Vec::new();
        // Only the offsets matter, not their times.
        shard.state.dedup.find(id, fingerprint, 0, &mut hits);
        let mut known: Vec<(LogPosition, u32)> = shard
            .state
            .dead_letters
            .by_transaction(slot, fingerprint)
            .map(|row| (row.record.batch_at, row.record.batch_bytes))
            .take(limits::GROUP_ROWS_MAX)
            .collect();
        let stored = |(offset, _): &(Offset, i64)| place.partition.batch_of(*offset).copied();
        known.extend(hits.iter().filter_map(stored).map(|batch| (batch.at, batch.bytes)));
        if known.is_empty() {
            let near = super::ack::minted_near(place.partition, &transaction_id);
            known.extend(near.map(|batch| (batch.at, batch.bytes)));
        }
        known.sort_unstable();
        known.dedup();
        Some(Self {
            id,
            slot,
            fingerprint,
            known,
            before: place.partition.high_watermark(),
            left: limits::FIND_BATCHES_MAX,
            found: None,
            failure: None,
        })
    }

    fn next_batch<B: IoBuf>(&mut self, shard: &Shard<B>) -> Option<(LogPosition, u32)> {
        if let Some(known) = self.known.pop() {
            return Some(known);
        }
        self.left = self.left.checked_sub(1)?;
        let last = Offset(self.before.0.checked_sub(1)?);
        let batch: BatchRef = *shard.state.parts.get(self.slot)?.batch_of(last)?;
        self.before = batch.base;
        Some((batch.at, batch.bytes))
    }
}

impl<B: IoBuf> Work<B> for Find {
    fn step(&mut self, shard: &mut Shard<B>, now: Now) -> Progress {
        if let Some(text) = self.failure.take() {
            return Progress::Done(Err(Refusal::new(ErrorCode::Internal, text)));
        }
        if let Some((offset, created_at_us, body, index)) = self.found.take() {
            let key = MessageKey { created_at_us, offset, partition: self.id };
            let detail = detail(&shard.state, now, key, body, index);
            return Progress::Done(Ok(InspectPart::Message(detail.map(Box::new))));
        }
        match self.next_batch(shard) {
            Some((at, bytes)) => Progress::Read(at, bytes),
            None => Progress::Done(Ok(InspectPart::Message(None))),
        }
    }

    fn take(&mut self, body: Result<Gather<B>, ReadError>) {
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                self.failure = Some(format!("a batch of the partition cannot be read: {error}"));
                return;
            }
        };
        let bytes = body.contiguous();
        let Some(head) = BatchHead::decode(&bytes) else { return };
        let Some(table) = records::id_table(&bytes, head.count) else { return };
        let same = |entry: &u64| records::table_fingerprint(*entry) == self.fingerprint;
        let hit = table.enumerate().filter(|(_, entry)| same(entry)).last();
        if let Some((index, _)) = hit {
            let offset = Offset(head.base_offset.0 + index as u64);
            let kept = without_id_table(&body);
            self.found = Some((offset, head.created_at_us, kept, index as u32));
        }
    }
}

fn detail(
    state: &State,
    now: Now,
    key: MessageKey,
    body: Vec<u8>,
    index: u32,
) -> Option<MessageDetail> {
    let place = place_of(state, key.partition)?;
    let dead = state.dead_letters.by_offset(place.slot, key.offset).next();
    let named = place.queue.groups.iter().skip(1).flatten();
    let groups = named.filter(|g| g.start.is_some() || g.cursors.contains_key(&place.slot));
    let written = |g: &&super::group::Group| {
        g.start.is_some() && *g.name != *crate::model::command::QUEUE_MODE
            || g.cursors.contains_key(&place.slot)
    };
    let readers = place.queue.groups.iter().flatten().filter(written);
    let readers = readers.take(limits::GROUP_ROWS_MAX).map(|group| {
        let cursor = group.cursors.get(&place.slot);
        let next = place.next_of(group).unwrap_or(Offset(0));
        ReaderRow {
            group: group.name.to_string(),
            committed: next.0.cast_signed() - 1,
            consumed: next > key.offset,
            lease_expires_us: cursor.and_then(|cursor| lease_over(cursor, now, key.offset)),
        }
    });
    Some(MessageDetail {
        queue: place.queue.image.name.clone(),
        partition: place.partition.name.to_string(),
        options: place.queue.image.options.clone(),
        status: place.status(now, key.offset, &state.dead_letters),
        error: dead.map(|row| row.record.error.clone()),
        retry_count: dead.map_or(0, |row| row.record.retry_count),
        mode: ReaderMode {
            queue_mode: place.queue.group(0).is_some_and(|g| g.cursors.contains_key(&place.slot)),
            groups: groups.count() as u64,
        },
        readers: readers.collect(),
        key,
        body,
        index,
    })
}

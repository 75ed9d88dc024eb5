//! Everything a shard knows that its log can rebuild: the one set of tables that replay and the
//! running broker change through the same methods.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;

use super::dead_letters::{DeadLetters, Row};
use super::deadlines::Deadlines;
use super::dedup::Dedup;
use super::group::{Cursor, CursorKey, Group, Lease};
use super::group_state::Grave;
use super::partition::{BatchRef, Partition, Partitions, Slot};
use super::queue::{Catalog, Queue};
use super::records::{
    self, CursorRecord, DeadLetterRecord, LeaseRecord, Malformed, PartitionRecord, ReleasedRecord,
};
use super::segments::Segments;
use super::shard::Event;
use super::traces::Traces;
use super::undecided::Undecided;
use crate::base::ids::{LeaseId, LogPosition, Offset, PartitionId, SegmentId, ShardId};
use crate::base::limits;
use crate::base::spare::Spare;
use crate::base::time::{Deadline, Now};
use crate::log::Record;
use crate::model::frame::BatchHead;
use crate::model::peer::{GroupStart, QueueImage};

/// The tables of one shard.
pub(super) struct State {
    pub shard: ShardId,
    pub catalog: Catalog,
    pub parts: Partitions,
    pub dedup: Dedup,
    pub deadlines: Deadlines<Event>,
    /// Which cursors a lease is on.
    pub leases: HashMap<LeaseId, SmallVec<[CursorKey; 1]>, ahash::RandomState>,
    /// Cursors in `leases`.
    pub leased_partitions: u64,
    /// Memory for the next ones.
    pub spare_leases: Spare<Rc<Lease>>,
    pub spare_released: Spare<Rc<ReleasedRecord>>,
    /// Released leases in the order of their release, so that the oldest are forgotten first.
    pub released: VecDeque<(CursorKey, LeaseId, i64)>,
    pub segments: Segments,
    pub dead_letters: DeadLetters,
    pub traces: Traces,
    /// Cursors that count no more and whose memory, timers and segments are to be given back.
    pub graves: VecDeque<Grave>,
    /// Groups whose start rule is still to be counted out over their queue's partitions.
    pub uncounted: VecDeque<(u32, u32)>,
    /// The next slice of the two has its event.
    pub sweeping: bool,
    /// Partitions of deleted queues whose memory is still to be given back.
    pub reaping: VecDeque<Slot>,
    /// No incarnation up to here is given out again.
    pub incarnation: u64,
    /// What the log knows of transactions across shards.
    pub undecided: Undecided,
}

impl State {
    pub fn new(shard: ShardId) -> Self {
        Self {
            shard,
            catalog: Catalog::default(),
            parts: Partitions::default(),
            dedup: Dedup::default(),
            deadlines: Deadlines::default(),
            leases: HashMap::with_hasher(ahash::RandomState::with_seeds(9, 10, 11, 12)),
            leased_partitions: 0,
            spare_leases: Spare::default(),
            spare_released: Spare::default(),
            released: VecDeque::new(),
            segments: Segments::default(),
            dead_letters: DeadLetters::default(),
            traces: Traces::default(),
            graves: VecDeque::new(),
            uncounted: VecDeque::new(),
            sweeping: false,
            reaping: VecDeque::new(),
            incarnation: 0,
            undecided: Undecided::default(),
        }
    }

    pub fn id_of(&self, slot: Slot) -> PartitionId {
        PartitionId::new(self.shard, u64::from(slot))
    }

    pub fn slot_of(&self, id: PartitionId) -> Option<Slot> {
        self.parts.slot_of(self.shard, id)
    }

    // ---- queues and groups

    /// Makes a queue image true, replacing an older incarnation. Returns its slot.
    pub fn install_queue(&mut self, image: &QueueImage, at: SegmentId) -> u32 {
        self.incarnation = self.incarnation.max(image.incarnation);
        let known = self.catalog.find(&image.name).filter(|slot| {
            self.catalog.get(*slot).is_some_and(|q| q.image.incarnation == image.incarnation)
        });
        let slot = known.unwrap_or_else(|| {
            if let Some(old) = self.catalog.by_name(&image.name).map(|q| q.image.incarnation) {
                self.remove_queue(&image.name, old);
            }
            self.catalog.insert(image.clone())
        });
        let queue = self.catalog.get_mut(slot).expect("found or inserted");
        queue.image = image.clone();
        self.segments.moved(queue.segment.replace(at), at);
        if queue.birth_segment.is_none() {
            queue.birth_segment = Some(at);
            self.segments.add(at);
        }
        slot
    }

    /// Forgets a queue, if it is still this incarnation. Its partitions go to the reaper, so
    /// that deleting ten million of them stalls nobody.
    pub fn remove_queue(&mut self, name: &str, incarnation: u64) {
        self.incarnation = self.incarnation.max(incarnation);
        let Some(slot) = self.catalog.find(name) else { return };
        if self.catalog.get(slot).is_none_or(|q| q.image.incarnation != incarnation) {
            return;
        }
        let Some(queue) = self.catalog.remove(slot) else { return };
        let records = queue.groups.iter().flatten().filter_map(|g| g.segment);
        let own = [queue.segment, queue.birth_segment];
        own.into_iter().flatten().chain(records).for_each(|s| self.segments.remove(s));
        for (group, state) in queue.groups.into_iter().enumerate() {
            if let Some(state) = state {
                self.bury(slot, group as u32, state.cursors);
            }
        }
        for row in self.dead_letters.remove_queue(slot) {
            self.release_row(&row);
        }
        self.reaping.extend(queue.partitions);
    }

    pub fn queue_of(&self, partition: &Partition) -> Option<&Queue> {
        self.catalog.get(partition.queue)
    }

    // ---- partitions and batches

    pub fn add_partition(
        &mut self,
        slot: Slot,
        queue: u32,
        name: &str,
        created_us: i64,
        at: SegmentId,
    ) {
        let Some(q) = self.catalog.get_mut(queue) else { return };
        let place = q.partitions.len() as u32;
        q.partitions.push(slot);
        // It is empty: nothing of it can be passed over yet.
        let done = q.groups.iter_mut().flatten().filter(|g| g.counted == place as usize);
        done.for_each(|g| g.counted += 1);
        self.parts.insert(slot, queue, place, name, created_us);
        let partition = self.parts.get_mut(slot).expect("just inserted");
        partition.birth_segment = at;
        self.segments.add(at);
    }

    /// A stored batch, not yet deliverable.
    fn add_batch(&mut self, slot: Slot, batch: BatchRef, decided_at: LogPosition) {
        let Some(partition) = self.parts.get_mut(slot) else { return };
        if partition.batches.is_empty() && partition.next_offset < batch.base {
            // Everything before it was dropped by retention.
            let queue = partition.queue;
            self.recount(slot, queue, |partition| {
                partition.log_start = batch.base;
                partition.next_offset = batch.base;
            });
        }
        self.pin_sought(slot, batch, decided_at);
        let Some(partition) = self.parts.get_mut(slot) else { return };
        partition.next_offset = batch.end();
        partition.last_created_us = batch.created_at_us;
        partition.batches.push(batch);
        self.segments.add(batch.at.segment());
        let place = partition.place as usize;
        let Some(queue) = self.catalog.get_mut(partition.queue) else { return };
        queue.messages += u64::from(batch.count);
        queue.bytes += u64::from(batch.bytes);
        for group in queue.groups.iter_mut().flatten() {
            // A group that starts in the future passes over what comes before.
            let passes = match group.start {
                Some(GroupStart::From(us)) => us > batch.created_at_us,
                Some(GroupStart::Seek(us)) => us > batch.created_at_us && batch.at < group.cut,
                _ => false,
            };
            if passes && place < group.counted && !group.cursors.contains_key(&slot) {
                group.passed_over += u64::from(batch.count);
            }
        }
    }

    /// A transaction's messages lie in the log before it was decided. Where a seek came in
    /// between, they are behind it although they lie before its cut: the group gets a cursor in
    /// front of them, here and at each replay.
    fn pin_sought(&mut self, slot: Slot, batch: BatchRef, decided_at: LogPosition) {
        if decided_at <= batch.at {
            return;
        }
        let Some(partition) = self.parts.get(slot) else { return };
        let queue = partition.queue;
        let Some(q) = self.catalog.get(queue) else { return };
        let sought = |g: &Group| {
            matches!(g.start, Some(GroupStart::Seek(_)))
                && batch.at < g.cut
                && decided_at >= g.cut
                && !g.cursors.contains_key(&slot)
        };
        let groups = q.groups.iter().enumerate();
        let wanted: SmallVec<[(u32, Offset); 4]> = groups
            .filter_map(|(at, g)| Some((at as u32, g.as_ref().filter(|g| sought(g))?)))
            .map(|(at, g)| (at, g.settled_to(slot, partition)))
            .collect();
        for (group, next) in wanted {
            self.put_cursor(CursorKey { queue, group, slot }, Cursor::at(next));
        }
    }

    /// Drops whole batches below `to`; consumers skip the gap.
    pub fn move_log_start(&mut self, slot: Slot, to: Offset, record: Option<SegmentId>) {
        let Some(partition) = self.parts.get_mut(slot) else { return };
        let from = partition.log_start;
        if let Some(at) = record {
            let old = partition.start_segment.replace(at);
            self.segments.moved(old, at);
        }
        if to <= from {
            return;
        }
        let queue = partition.queue;
        let mut dropped: SmallVec<[BatchRef; 4]> = SmallVec::new();
        self.recount(slot, queue, |partition| {
            partition.log_start = to;
            partition.next_offset = partition.next_offset.max(to);
            let gone = partition.batches.partition_point(|b| b.end() <= to);
            dropped.extend(partition.batches.drain(..gone));
        });
        let keep = self.catalog.get(queue).map(|q| id_keep_seconds(&q.image.options));
        if let (Some(keep), Some(partition)) = (keep, self.parts.get_mut(slot)) {
            let keep = i64::try_from(keep).unwrap_or(i64::MAX);
            partition.remember_dropped(&dropped, keep.saturating_mul(1_000_000));
        }
        dropped.iter().for_each(|b| self.segments.remove(b.at.segment()));
        let Some(queue) = self.catalog.get_mut(queue) else { return };
        queue.messages -= dropped.iter().map(|b| u64::from(b.count)).sum::<u64>();
        queue.bytes -= dropped.iter().map(|b| u64::from(b.bytes)).sum::<u64>();
    }

    /// Changes what a partition retains, keeping the sums of all groups true.
    fn recount(&mut self, slot: Slot, queue: u32, change: impl FnOnce(&mut Partition)) {
        let settled = |group: &Group, partition: &Partition| match group.cursors.get(&slot) {
            Some(cursor) => (cursor.next.max(partition.log_start).0 - partition.log_start.0, 0),
            None if (partition.place as usize) < group.counted => (0, group.passes_over(partition)),
            None => (0, 0),
        };
        let Some(partition) = self.parts.get_mut(slot) else { return };
        let Some(queue) = self.catalog.get_mut(queue) else { return change(partition) };
        for group in queue.groups.iter_mut().flatten() {
            let (settled, passed) = settled(group, partition);
            group.settled -= settled;
            group.passed_over -= passed;
        }
        change(partition);
        for group in queue.groups.iter_mut().flatten() {
            let (settled, passed) = settled(group, partition);
            group.settled += settled;
            group.passed_over += passed;
        }
    }

    /// Gives back the memory and segments of a partition whose queue is gone.
    pub fn reap(&mut self, slot: Slot) {
        let Some(partition) = self.parts.remove(slot) else { return };
        self.segments.remove(partition.birth_segment);
        partition.start_segment.into_iter().for_each(|s| self.segments.remove(s));
        partition.batches.iter().for_each(|b| self.segments.remove(b.at.segment()));
    }

    // ---- cursors

    pub fn cursor(&self, key: CursorKey) -> Option<&Cursor> {
        self.catalog.get(key.queue)?.group(key.group)?.cursors.get(&key.slot)
    }

    /// Changes what is not durable about a cursor: its place in the ready list and its timers.
    pub fn cursor_mut(&mut self, key: CursorKey) -> Option<&mut Cursor> {
        self.catalog.get_mut(key.queue)?.group_mut(key.group)?.cursors.get_mut(&key.slot)
    }

    pub fn group(&self, key: CursorKey) -> Option<&Group> {
        self.catalog.get(key.queue)?.group(key.group)
    }

    pub fn group_mut(&mut self, key: CursorKey) -> Option<&mut Group> {
        self.catalog.get_mut(key.queue)?.group_mut(key.group)
    }

    /// Puts a cursor in place, keeping the group's sums and the lease index true.
    pub fn put_cursor(&mut self, key: CursorKey, cursor: Cursor) {
        let Some(partition) = self.parts.get(key.slot) else { return };
        let log_start = partition.log_start;
        let Some(group) =
            self.catalog.get_mut(key.queue).and_then(|queue| queue.group_mut(key.group))
        else {
            return;
        };
        let settled = |c: &Cursor| c.next.max(log_start).0 - log_start.0;
        group.settled += settled(&cursor);
        group.leased += cursor.leased_count();
        let lease = cursor.lease.as_ref().map(|l| l.record.id);
        let old = group.cursors.insert(key.slot, cursor);
        if let Some(old) = &old {
            group.settled -= settled(old);
            group.leased -= old.leased_count();
        } else if (partition.place as usize) < group.counted {
            group.passed_over -= group.passes_over(partition);
        }
        let before = old.as_ref().and_then(|c| c.lease.as_ref()).map(|l| l.record.id);
        if before != lease {
            before.into_iter().for_each(|id| self.unindex_lease(id, key));
            if let Some(id) = lease {
                self.leases.entry(id).or_default().push(key);
                self.leased_partitions += 1;
            }
        }
        if let Some(old) = old {
            old.lease.into_iter().for_each(|lease| self.spare_leases.put(lease));
            old.released.into_iter().for_each(|released| self.spare_released.put(released));
        }
    }

    pub fn unindex_lease(&mut self, id: LeaseId, key: CursorKey) {
        if let Some(keys) = self.leases.get_mut(&id) {
            let before = keys.len();
            keys.retain(|k| *k != key);
            self.leased_partitions -= (before - keys.len()) as u64;
            if keys.is_empty() {
                self.leases.remove(&id);
            }
        }
    }

    // ---- dead letters

    /// Files a dead letter; its message's segment stays as long as the row does.
    pub fn file(&mut self, key: CursorKey, record: DeadLetterRecord, at: SegmentId) {
        let Some(queue) = self.catalog.get_mut(key.queue) else { return };
        let Some(group) = queue.group(key.group).map(|g| g.name.to_string()) else { return };
        queue.dead_letters += 1;
        self.segments.add(record.batch_at.segment());
        self.segments.add(at);
        self.dead_letters.insert(Row { queue: key.queue, slot: key.slot, group, record, at });
    }

    /// Deletes a row: its message no longer counts as live on its account.
    pub fn unfile(&mut self, id: &[u8; 16]) -> bool {
        let Some(row) = self.dead_letters.remove(id) else { return false };
        if let Some(queue) = self.catalog.get_mut(row.queue) {
            queue.dead_letters -= 1;
        }
        self.release_row(&row);
        true
    }

    fn release_row(&mut self, row: &Row) {
        self.segments.remove(row.record.batch_at.segment());
        self.segments.remove(row.at);
    }

    // ---- replay

    /// Takes one record of the log, in log order.
    pub fn replay(&mut self, record: &Record<'_>, now: Now) -> Result<(), Malformed> {
        let at = record.at.segment();
        match record.kind {
            records::QUEUE => {
                self.install_queue(&records::decode_queue(record.body)?, at);
            }
            records::QUEUE_DELETED => {
                let (name, incarnation) = records::decode_queue_deleted(record.body)?;
                self.remove_queue(name, incarnation);
            }
            records::GROUP => {
                let (image, here) = records::decode_group(record.body)?;
                self.install_group(&image, here, at);
            }
            records::PARTITION => {
                let body = PartitionRecord::decode(record.body)?;
                let slot = slot_of_key(record.key)?;
                let queue = self.catalog.find(body.queue).filter(|slot| {
                    self.catalog.get(*slot).is_some_and(|q| q.image.incarnation == body.incarnation)
                });
                self.parts.raise_next_counter(u64::from(slot) + 1);
                if let Some(queue) = queue {
                    self.add_partition(slot, queue, body.partition, body.created_at_us, at);
                }
            }
            records::BATCH => self.replay_batch(record, now)?,
            records::CURSOR => self.replay_cursor(record, now)?,
            records::LOG_START => {
                let mut body = records::Reader(record.body);
                self.move_log_start(slot_of_key(record.key)?, Offset(body.u64()?), Some(at));
            }
            records::TRANSACTION
            | records::PREPARE
            | records::COMMIT
            | records::END
            | records::TRANSACTION_BATCH => self.replay_transaction(record, now)?,
            records::DEAD_LETTERS_DELETED => {
                // A row of a queue that was deleted since is gone already.
                for id in records::decode_dead_letters_deleted(record.body)? {
                    self.unfile(&id);
                }
            }
            records::TRACE => self.replay_trace(record, slot_of_key(record.key)?, now)?,
            _ => return Err(Malformed),
        }
        Ok(())
    }

    fn replay_batch(&mut self, record: &Record<'_>, now: Now) -> Result<(), Malformed> {
        let (stored, table) = batch_of(record)?;
        self.take_batch(slot_of_key(record.key)?, stored, table, record.at, now);
        Ok(())
    }

    /// A batch that the log holds: its messages can be had.
    pub(super) fn take_batch(
        &mut self,
        slot: Slot,
        stored: BatchRef,
        table: &[u8],
        decided_at: LogPosition,
        now: Now,
    ) {
        let Some(partition) = self.parts.get(slot) else { return };
        let window = self.queue_of(partition).map_or(0, |q| id_keep_seconds(&q.image.options));
        let keep_us = i64::try_from(window).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let in_window = stored.created_at_us.saturating_add(keep_us) >= now.wall_us;
        self.install_batch(slot, stored, if in_window { table } else { &[] }, decided_at);
        if let Some(partition) = self.parts.get_mut(slot) {
            partition.raise_high_watermark(partition.next_offset);
        }
    }

    /// A stored batch with the ids it is to be known by, not yet deliverable. It counts from
    /// `decided_at`: a transaction's lies in the log before that.
    pub fn install_batch(
        &mut self,
        slot: Slot,
        stored: BatchRef,
        table: &[u8],
        decided_at: LogPosition,
    ) {
        self.add_batch(slot, stored, decided_at);
        let id = self.id_of(slot);
        for (i, entry) in records::table_entries(table).enumerate() {
            if !records::is_minted(entry) {
                let offset = Offset(stored.base.0 + i as u64);
                let fingerprint = records::table_fingerprint(entry);
                self.dedup.insert(id, fingerprint, offset, stored.created_at_us);
            }
        }
        if !table.is_empty() {
            self.segments.saw_ids(stored.at.segment(), stored.created_at_us);
        }
    }

    fn replay_cursor(&mut self, record: &Record<'_>, now: Now) -> Result<(), Malformed> {
        let body = CursorRecord::decode(record.body)?;
        self.take_cursor(slot_of_key(record.key)?, body, record.at.segment(), now);
        Ok(())
    }

    /// The state of a cursor as the log holds it, with the dead letters of the same step.
    pub(super) fn take_cursor(&mut self, slot: Slot, body: CursorRecord, at: SegmentId, now: Now) {
        let Some(queue) = self.parts.get(slot).map(|p| p.queue) else { return };
        let Some(q) = self.catalog.get_mut(queue) else { return };
        let inserted = q.group_slot(&body.group).is_none();
        let key = CursorKey { queue, group: q.group_slot_or_insert(&body.group), slot };
        if self.is_outlived(key, body.epoch, inserted) {
            return;
        }
        let old = self.cursor(key).and_then(|c| c.segment);
        self.segments.moved(old, at);
        let mut cursor = Cursor::at(body.next);
        cursor.attempt_offset = body.attempt_offset;
        cursor.attempt_count = body.attempt_count;
        cursor.retry_count = body.retry_count;
        cursor.lease = body.lease.map(|record| Rc::new(revived(record, now)));
        cursor.released = body.released.map(Rc::new);
        cursor.segment = Some(at);
        self.put_cursor(key, cursor);
        if let Some(released) = body.released {
            self.released.push_back((key, released.id, released.at_us));
        }
        for filed in body.filed {
            self.file(key, filed, at);
        }
    }
}

/// What a batch record says: where it lies, and its id table.
pub(super) fn batch_of<'a>(record: &Record<'a>) -> Result<(BatchRef, &'a [u8]), Malformed> {
    let head = BatchHead::decode(record.body).ok_or(Malformed)?;
    let table = records::id_table_bytes(record.body, head.count).ok_or(Malformed)?;
    let stored = BatchRef {
        at: record.at,
        base: head.base_offset,
        created_at_us: head.created_at_us,
        bytes: record.bytes,
        count: head.count,
    };
    Ok((stored, table))
}

pub(super) fn slot_of_key(key: u64) -> Result<Slot, Malformed> {
    Slot::try_from(PartitionId(key).counter()).or(Err(Malformed))
}

/// How long transaction ids are kept: the dedup window, and at least as long as a settled
/// message must be recognised by a late ack.
pub(super) fn id_keep_seconds(options: &crate::model::options::QueueOptions) -> u64 {
    options.dedup_window_seconds.max(limits::RELEASED_LEASE_MS / 1_000)
}

/// A lease after a restart lasts what was left of it: never longer than its length, and all of
/// it when the clock went back behind its grant.
fn revived(record: LeaseRecord, now: Now) -> Lease {
    let passed = u64::try_from(now.wall_us.saturating_sub(record.granted_us)).unwrap_or(0);
    let left = record.length_us.saturating_sub(passed);
    Lease {
        record,
        expires: Deadline(now.mono_us.saturating_add(left)),
        timer: None,
        reserved: false,
        attempt_before: (Offset(0), 0),
        ids: Vec::new(),
    }
}

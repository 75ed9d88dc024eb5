//! Ack: items scatter to the shards of their partitions; there they are grouped by (partition,
//! lease), their transaction ids found, and each group settled in one durable step.
//!
//! An id is looked for where it is cheapest: the fingerprints a live lease keeps in memory, then
//! the dedup index, then the id tables of stored batches (after a restart, or for an id the
//! broker minted, whose own time says which batches to look at). Tables that are not in memory
//! are read first; the request then runs on the state it finds.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use smallvec::SmallVec;

use super::dead_letters::head_of;
use super::effect::Effects;
use super::group::{Cursor, CursorKey, End, Lease};
use super::leased_ids::LeasedIds;
use super::partition::{BatchRef, Partition, Slot};
use super::records::{self, DeadLetterRecord, LeaseRecord, ReleasedRecord};
use super::settle::{Batch, CursorChange, Place, Settled, settle};
use super::shard::{ReadUse, Shard};
use super::task::Task;
use super::turns::{Resource, Resources, Waiting};
use crate::base::buf::{Gather, IoBuf};
use crate::base::ids::{LeaseId, LogPosition, Offset, PartitionId, ShardId, Token};
use crate::base::limits;
use crate::base::time::Now;
use crate::base::uuid;
use crate::model::command::{AckRequest, AckStatus};
use crate::model::error::Refusal;
use crate::model::frame::BatchHead;
use crate::model::peer::{AckTarget, GivenLease, GroupStart, PeerAck, PeerAcks, PeerMsg, TaskId};
use crate::model::reply::{AckResult, Reply};

/// Released leases remembered at once; beyond, the oldest are forgotten before their time.
const RELEASED_MAX: usize = 65_536;
/// Batches looked through for one minted id: those stored within this time of its minting.
const MINTED_SEARCH_US: i64 = 30_000_000;
/// Batches looked through for one minted id at most.
const MINTED_SEARCH_MAX: usize = 1_024;

pub(super) const LEASE_REFUSED: &str = "invalid or expired lease";
pub(super) const NO_PARTITION: &str = "unresolvable: no such partition";
pub(super) const UNRESOLVED: &str = "unresolved transaction id";
const COMMITTED: &str = "already committed";
const NO_LEASE: &str = "no leased batch";

/// An ack at the shard of its client.
#[derive(Debug)]
pub(super) struct AckTask {
    token: Token,
    results: Vec<AckResult>,
    left: usize,
    refusal: Option<Refusal>,
}

/// An ack on the shard of its partitions, while id tables are read.
#[derive(Debug)]
pub(super) struct AckJob {
    from: ShardId,
    task: TaskId,
    group: String,
    acks: Box<PeerAcks>,
    /// Of each item's transaction id.
    fingerprints: SmallVec<[u64; 4]>,
    missing: usize,
    tables: Tables,
}

/// One item of a target, as it is settled.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub index: u32,
    pub status: AckStatus,
    pub id: &'a str,
    pub error: Option<&'a str>,
    pub fingerprint: u64,
}

/// Id tables by the place of their batch; empty where a batch could not be read.
pub(super) type Tables = BTreeMap<LogPosition, Vec<u64>>;

/// What becomes of the items of one target.
pub(super) enum Judgement {
    /// One result an item, `dead_lettered` still to be set.
    Settles(Vec<AckResult>, Settled),
    /// The lease that was given is not the cursor's, or has lapsed.
    NotCurrent(Option<LeaseId>),
}

/// Places of the items, those of one target together, targets in order of appearance.
pub(super) fn by_target(acks: &PeerAcks) -> SmallVec<[u32; 4]> {
    let mut order: SmallVec<[u32; 4]> = (0..acks.items.len() as u32).collect();
    order.sort_by_key(|at| acks.items[*at as usize].target);
    order
}

/// Notes which items' messages are filed.
pub(super) fn mark_filed(results: &mut [AckResult], settled: &Settled, files: bool) {
    if files {
        settled.spent.iter().for_each(|(_, item)| results[*item].dead_lettered = true);
    }
}

/// The fingerprints of a stored batch's id table.
pub(super) fn table_of<B: IoBuf>(body: Option<&Gather<B>>) -> Vec<u64> {
    let table = body.and_then(|body| {
        let body = body.contiguous();
        let head = BatchHead::decode(&body)?;
        let entries = records::id_table(&body, head.count)?;
        Some(entries.map(records::table_fingerprint).collect())
    });
    table.unwrap_or_default()
}

impl AckJob {
    fn target_of(&self, at: u32) -> usize {
        self.acks.items[at as usize].target as usize
    }

    fn item(&self, at: usize) -> Item<'_> {
        item_of(&self.acks, at, self.fingerprints[at])
    }
}

pub(super) fn item_of(acks: &PeerAcks, at: usize, fingerprint: u64) -> Item<'_> {
    let item = &acks.items[at];
    let (id, error) = (acks.id(item), acks.error(item));
    Item { index: item.index, status: item.status, id, error, fingerprint }
}

pub(super) fn given_lease(text: &str) -> GivenLease {
    match uuid::parse(text) {
        _ if text.is_empty() => GivenLease::None,
        Some(id) => GivenLease::Id(LeaseId(id)),
        None => GivenLease::Unknown,
    }
}

fn refused(error: &'static str) -> AckResult {
    AckResult {
        success: false,
        error: Some(error),
        lease_released: false,
        dead_lettered: false,
        noop: false,
        conflated: None,
    }
}

impl<B: IoBuf> Shard<B> {
    // ---- at the shard of the client

    pub(super) fn ack(
        &mut self,
        now: Now,
        request: &AckRequest<'_>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        self.history.total.ack_requests += 1;
        let mut parts: SmallVec<[(ShardId, Box<PeerAcks>); 2]> = SmallVec::new();
        let mut results = self.spares.ack_results.take();
        results.resize(request.items.len(), refused(NO_PARTITION));
        // Neighbours mostly name one lease: its text is read once.
        let (mut lease_text, mut lease) = ("", GivenLease::None);
        for (index, item) in request.items.iter().enumerate() {
            let Some(partition_id) = item.partition_id else { continue };
            let Some(shard) = partition_id.shard().filter(|s| s.0 < self.config.shards) else {
                continue;
            };
            let at = parts.iter().position(|(known, _)| *known == shard).unwrap_or_else(|| {
                let mut acks = self.spares.acks.take();
                acks.reserve(request.items.len());
                parts.push((shard, acks));
                parts.len() - 1
            });
            if *lease_text != *item.lease_id {
                (lease_text, lease) = (&item.lease_id, given_lease(&item.lease_id));
            }
            let target = AckTarget { partition_id, lease };
            let error = item.error.as_deref();
            parts[at].1.push(index as u32, target, item.status, &item.transaction_id, error);
        }
        if parts.is_empty() {
            return self.reply_durable(token, Reply::Ack(results));
        }
        parts.sort_unstable_by_key(|(shard, _)| *shard);
        let left = parts.len();
        let task = self.new_task(Task::Ack(AckTask { token, results, left, refusal: None }));
        for (shard, acks) in parts {
            let group = self.spares.texts.text(&request.group);
            if shard == self.config.shard {
                self.ack_owned(now, shard, task, group, acks, fx);
            } else {
                fx.send(shard, PeerMsg::Ack { task, group, acks });
            }
        }
    }

    pub(super) fn acked(
        &mut self,
        task: TaskId,
        result: Result<Vec<(u32, AckResult)>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Ack(ack)) = self.tasks.get_mut(&task) else { return };
        ack.left -= 1;
        match result {
            Ok(mut results) => {
                for (index, result) in results.drain(..) {
                    ack.results[index as usize] = result;
                }
                self.spares.placed_results.put(results);
            }
            Err(refusal) => ack.refusal = Some(refusal),
        }
        if ack.left > 0 {
            return;
        }
        let Some(Task::Ack(ack)) = self.tasks.remove(&task) else { return };
        let reply = match ack.refusal {
            Some(refusal) => Reply::Refused(refusal),
            None => Reply::Ack(ack.results),
        };
        fx.reply(ack.token, reply);
    }

    // ---- at the shard of the partitions

    pub(super) fn ack_owned(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        group: String,
        acks: Box<PeerAcks>,
        fx: &mut Effects<B>,
    ) {
        let fingerprints = self.ack_fingerprints(&acks);
        let mut needed: Vec<BatchRef> = Vec::new();
        self.tables_needed(&acks, &fingerprints, &group, &mut needed);
        needed.sort_unstable_by_key(|b| b.at);
        needed.dedup_by_key(|b| b.at);
        let missing = needed.len();
        let job = AckJob { from, task, group, acks, fingerprints, missing, tables: Tables::new() };
        if needed.is_empty() {
            return self.ack_now(now, job, fx);
        }
        let id = self.new_id();
        self.ack_jobs.insert(id, job);
        for batch in needed {
            let read = self.new_id();
            self.reads.insert(read, ReadUse::Ack { job: id, key: batch.at });
            if let Some(body) = self.log.read(batch.at, batch.bytes, read, &mut self.io) {
                self.reads.remove(&read);
                self.ack_read(now, id, batch.at, Some(&body), fx);
            }
        }
    }

    pub(super) fn ack_fingerprints(&self, acks: &PeerAcks) -> SmallVec<[u64; 4]> {
        let key = self.log.fingerprint_key();
        let fingerprint =
            |item: &PeerAck| records::table_fingerprint(key.fingerprint(acks.id(item).as_bytes()));
        acks.items.iter().map(fingerprint).collect()
    }

    pub(super) fn ack_read(
        &mut self,
        now: Now,
        job: u64,
        at: LogPosition,
        body: Option<&Gather<B>>,
        fx: &mut Effects<B>,
    ) {
        let Some(waiting) = self.ack_jobs.get_mut(&job) else { return };
        waiting.tables.insert(at, table_of(body));
        waiting.missing -= 1;
        if waiting.missing == 0
            && let Some(job) = self.ack_jobs.remove(&job)
        {
            self.ack_now(now, job, fx);
        }
    }

    /// Settles the request, or waits for its turn where a transaction holds one of its cursors.
    fn ack_now(&mut self, now: Now, job: AckJob, fx: &mut Effects<B>) {
        if !self.turns.is_empty() {
            let touched = self.cursors_of(&job.acks, &job.group);
            if self.must_wait(touched.iter().copied()) {
                self.stand_in_line(touched, Waiting::Ack(Box::new(job)));
                return;
            }
        }
        self.settle_acks(now, job, fx);
    }

    /// The cursors that acks of a group touch.
    pub(super) fn cursors_of(&self, acks: &PeerAcks, group: &str) -> Resources {
        let keys = acks.targets.iter().filter_map(|t| self.cursor_key(t.partition_id, group));
        keys.map(Resource::Cursor).collect()
    }

    /// Settles every (partition, lease) of the request, in order of appearance.
    pub(super) fn settle_acks(&mut self, now: Now, job: AckJob, fx: &mut Effects<B>) {
        let mut results = self.spares.placed_results.take();
        results.reserve(job.acks.items.len());
        let mut refusal = None;
        let mut items: SmallVec<[Item<'_>; 4]> = SmallVec::new();
        for places in by_target(&job.acks).chunk_by(|a, b| job.target_of(*a) == job.target_of(*b)) {
            items.clear();
            items.extend(places.iter().map(|at| job.item(*at as usize)));
            let target = job.acks.targets[job.target_of(places[0])];
            match self.ack_target(now, target, &job.group, &items, &job.tables, fx) {
                Ok(mut judged) => {
                    self.counters.acked += judged.iter().filter(|r| r.success).count() as u64;
                    let done = items.iter().zip(&judged).map(|(item, result)| {
                        result.success && item.status == AckStatus::Completed
                    });
                    let conflated = judged.iter().filter_map(|result| result.conflated).max();
                    self.count_acks((job.from, job.task), target.partition_id, done, conflated);
                    results.extend(items.iter().map(|i| i.index).zip(judged.drain(..)));
                    self.spares.ack_results.put(judged);
                }
                Err(error) => refusal = Some(error),
            }
        }
        drop(items);
        self.spares.acks.put(job.acks);
        self.spares.texts.put(job.group);
        let result = refusal.map_or(Ok(results), Err);
        self.send_durable(job.from, PeerMsg::Acked { task: job.task, result });
    }

    fn ack_target(
        &mut self,
        now: Now,
        target: AckTarget,
        group: &str,
        items: &[Item<'_>],
        tables: &Tables,
        fx: &mut Effects<B>,
    ) -> Result<Vec<AckResult>, Refusal> {
        let Some(key) = self.cursor_key(target.partition_id, group) else {
            return Ok(vec![refused(NO_PARTITION); items.len()]);
        };
        let Some(cursor) = self.ack_cursor(key) else {
            return Ok(vec![refused(UNRESOLVED); items.len()]);
        };
        let (mut results, settled) =
            match self.judge_target(now, key, &cursor, target.lease, items, tables) {
                Judgement::Settles(results, settled) => (results, settled),
                Judgement::NotCurrent(given) => {
                    return Ok(self.ack_repeated(key, &cursor, given, items, tables));
                }
            };
        if let Some(change) = self.cursor_change(now, key, &cursor, &settled, items) {
            mark_filed(&mut results, &settled, self.files_dead_letters(key));
            self.store_change(now, key, cursor, change, fx)?;
        }
        Ok(results)
    }

    /// What the items of one target would do to a cursor that stands as given.
    pub(super) fn judge_target(
        &mut self,
        now: Now,
        key: CursorKey,
        cursor: &Cursor,
        lease: GivenLease,
        items: &[Item<'_>],
        tables: &Tables,
    ) -> Judgement {
        let held = cursor.lease.as_ref().filter(|l| !l.reserved);
        if lease != GivenLease::None {
            let given = match lease {
                GivenLease::Id(id) => Some(id),
                GivenLease::None | GivenLease::Unknown => None,
            };
            let current = held.filter(|l| Some(l.record.id) == given && !l.expires.passed(now));
            if current.is_none() {
                return Judgement::NotCurrent(given);
            }
        }
        let partition = self.state.parts.get(key.slot).expect("its cursor exists");
        let first = cursor.next.max(partition.log_start);
        let last = held
            .map(|l| l.record.end)
            .or_else(|| partition.high_watermark().0.checked_sub(1).map(Offset));
        let places = self.resolve_all(key, cursor, items, last, tables);
        let conflating = held.filter(|l| l.record.conflating).map(|l| l.record.end);
        let judged: SmallVec<[(AckStatus, Place); 4]> = items
            .iter()
            .zip(&places)
            .map(|(item, place)| match (conflating, place) {
                // The delivered message stands for all before it.
                (Some(end), Place::At(_)) => (item.status, Place::At(end)),
                _ => (item.status, *place),
            })
            .collect();
        let options = &self.state.catalog.get(key.queue).expect("its cursor exists").image.options;
        let batch = Batch {
            next: cursor.next,
            end: held.map(|l| l.record.end),
            retry_count: cursor.retry_count,
            retry_limit: options.retry_limit,
        };
        let settled = settle(batch, &judged);
        // How many messages went undelivered with the one that was acked.
        let acked = settled.complete && settled.spent.is_empty();
        let conflated = conflating.filter(|_| acked).map(|end| end.0.saturating_sub(first.0));
        let mut results = self.spares.ack_results.take();
        results.extend(judged.iter().map(|(status, place)| AckResult {
            lease_released: settled.release,
            conflated: conflated.filter(|_| matches!(place, Place::At(_))),
            ..verdict(*status, *place, held.is_some())
        }));
        Judgement::Settles(results, settled)
    }

    /// The cursor an ack is judged by. One that was never written only says that the partition
    /// was looked at: nothing was delivered to the group there, so it has nothing to ack. But a
    /// seek has put the group somewhere on every partition.
    pub(super) fn ack_cursor(&self, key: CursorKey) -> Option<Cursor> {
        let group = self.state.catalog.get(key.queue)?.group(key.group)?;
        let cursor = group.cursors.get(&key.slot);
        if let Some(written) = cursor.filter(|c| c.segment.is_some()) {
            return Some(written.clone());
        }
        if !matches!(group.start, Some(GroupStart::Seek(_))) {
            return None;
        }
        let partition = self.state.parts.get(key.slot)?;
        let sought = || Cursor::at(group.settled_to(key.slot, partition));
        Some(cursor.cloned().unwrap_or_else(sought))
    }

    pub(super) fn files_dead_letters(&self, key: CursorKey) -> bool {
        self.state.catalog.get(key.queue).is_some_and(|q| q.image.options.files_dead_letters())
    }

    /// What settling changes about a cursor; `None`: nothing.
    pub(super) fn cursor_change(
        &mut self,
        now: Now,
        key: CursorKey,
        cursor: &Cursor,
        settled: &Settled,
        items: &[Item<'_>],
    ) -> Option<CursorChange> {
        let moved = settled.next != cursor.next
            || settled.release
            || settled.retry_count != cursor.retry_count;
        if !moved {
            return None;
        }
        let files = self.files_dead_letters(key);
        let filed =
            if files { self.dead_letters(now, key, cursor, settled, items) } else { vec![] };
        let conflating = cursor.lease.as_ref().is_some_and(|l| l.record.conflating);
        let attempt = match (settled.clear_attempt, cursor.attempt_count) {
            (true, _) => (Offset(0), 0),
            (false, 0) => (cursor.attempt_offset, 0),
            // The newest message is another one, or the same as before.
            (false, count) if conflating => (cursor.attempt_offset, count),
            // Redelivery starts at the cursor and counts on from what was delivered before.
            (false, count) => (settled.next, count),
        };
        let completes = cursor.lease.as_ref().filter(|_| settled.release && settled.complete);
        let released = completes.map(|lease| {
            let LeaseRecord { id, first, end, .. } = lease.record;
            let mut released = self.state.spare_released.take();
            let fresh = Rc::get_mut(&mut released).expect("what is kept has no other holder");
            *fresh = ReleasedRecord { id, first, end, at_us: now.wall_us };
            released
        });
        let (next, retry_count) = (settled.next, settled.retry_count);
        Some(CursorChange { next, retry_count, attempt, release: settled.release, released, filed })
    }

    fn store_change(
        &mut self,
        now: Now,
        key: CursorKey,
        mut cursor: Cursor,
        mut change: CursorChange,
        fx: &mut Effects<B>,
    ) -> Result<(), Refusal> {
        let before = cursor.next;
        let ended = change.make(&mut cursor);
        let filed = std::mem::take(&mut change.filed);
        let dead = filed.len() as u64;
        self.counters.dead_lettered += dead;
        if dead > 0 {
            self.count(key.queue, |t| t.dead_letters += dead);
        }
        self.store_cursor(key, cursor, filed)?;
        if let (Some(lease), Some(group)) = (&ended, self.state.group_mut(key)) {
            let passed_us = now.wall_us.saturating_sub(lease.record.granted_us);
            group.note_acked(change.next.0 - before.0, passed_us);
        }
        self.cursor_changed(now, key, change.released, ended, fx);
        Ok(())
    }

    /// What follows from a change that is made: its lease's timer goes, its repeat is recognised,
    /// its partition may be claimed.
    pub(super) fn cursor_changed(
        &mut self,
        now: Now,
        key: CursorKey,
        released: Option<Rc<ReleasedRecord>>,
        ended: Option<Rc<Lease>>,
        fx: &mut Effects<B>,
    ) {
        if let Some(lease) = ended {
            self.clear_timer(lease.timer);
            self.state.spare_leases.put(lease);
        }
        if let Some(released) = released {
            self.remember_released(key, released.id, released.at_us);
        }
        self.make_ready(now, key, End::Back, fx);
    }

    fn dead_letters(
        &mut self,
        now: Now,
        key: CursorKey,
        cursor: &Cursor,
        settled: &Settled,
        items: &[Item<'_>],
    ) -> Vec<DeadLetterRecord> {
        let Some(partition) = self.state.parts.get(key.slot) else { return Vec::new() };
        let mut rows = Vec::with_capacity(settled.spent.len());
        for (offset, item) in &settled.spent {
            // Retention may have dropped the message under its lease: there is nothing to file.
            let Some(batch) = partition.batch_of(*offset) else { continue };
            let error = items[*item].error.unwrap_or("Retries exhausted");
            rows.push(DeadLetterRecord {
                id: uuid::mint_v7(now.wall_us, &mut self.prng),
                offset: *offset,
                created_at_us: batch.created_at_us,
                failed_at_us: now.wall_us,
                retry_count: cursor.retry_count,
                batch_at: batch.at,
                batch_bytes: batch.bytes,
                transaction: items[*item].fingerprint,
                error: head_of(error, limits::ERROR_TEXT_BYTES_MAX).to_owned(),
            });
        }
        rows
    }

    fn remember_released(&mut self, key: CursorKey, id: LeaseId, at_us: i64) {
        self.state.released.push_back((key, id, at_us));
        while self.state.released.len() > RELEASED_MAX {
            self.forget_oldest_released();
        }
    }

    pub(super) fn forget_oldest_released(&mut self) {
        let Some((key, id, _)) = self.state.released.pop_front() else { return };
        if let Some(cursor) = self.state.cursor_mut(key)
            && let Some(released) = cursor.released.take_if(|r| r.id == id)
        {
            self.state.spare_released.put(released);
        }
    }

    /// A lease that is not current: refused, unless it settled its whole batch and this is the
    /// same ack again.
    fn ack_repeated(
        &mut self,
        key: CursorKey,
        cursor: &Cursor,
        given: Option<LeaseId>,
        items: &[Item<'_>],
        tables: &Tables,
    ) -> Vec<AckResult> {
        let released = cursor.released.as_deref().filter(|r| Some(r.id) == given);
        let Some(released) = released.copied() else {
            return vec![refused(LEASE_REFUSED); items.len()];
        };
        items
            .iter()
            .map(|item| {
                let offsets = self.offsets_of(key.slot, item.fingerprint, tables);
                let inside =
                    offsets.iter().any(|o| (released.first.0..=released.end.0).contains(&o.0));
                if inside {
                    AckResult {
                        success: true,
                        error: None,
                        lease_released: true,
                        dead_lettered: false,
                        noop: false,
                        conflated: None,
                    }
                } else {
                    refused(UNRESOLVED)
                }
            })
            .collect()
    }

    // ---- finding ids

    pub(super) fn cursor_key(&self, id: PartitionId, group: &str) -> Option<CursorKey> {
        let slot = self.state.slot_of(id)?;
        let queue = self.state.parts.get(slot)?.queue;
        let group = self.state.catalog.get(queue)?.group_slot(group)?;
        Some(CursorKey { queue, group, slot })
    }

    /// Places of all items; the same id named twice takes the next message that carries it.
    fn resolve_all(
        &mut self,
        key: CursorKey,
        cursor: &Cursor,
        items: &[Item<'_>],
        last: Option<Offset>,
        tables: &Tables,
    ) -> SmallVec<[Place; 4]> {
        let mut places: SmallVec<[Place; 4]> = SmallVec::with_capacity(items.len());
        let mut search = LeasedIds::of(cursor);
        let settled = search.settled;
        // So far each item named the next message of the lease: nothing was named twice.
        let mut in_step = true;
        let mut seen: HashSet<u64, ahash::RandomState> =
            HashSet::with_hasher(ahash::RandomState::with_seeds(25, 26, 27, 28));
        for (at, item) in items.iter().enumerate() {
            let taken = |o: Offset, places: &[Place]| {
                items[..at].iter().zip(places).any(|(i, p)| *p == Place::At(o) && i.id == item.id)
            };
            let lease = cursor.lease.as_ref().filter(|l| !l.ids.is_empty());
            if in_step && !lease.is_some_and(|l| search.is_next(&l.ids, item.fingerprint)) {
                in_step = false;
                seen.extend(items[..at].iter().map(|item| item.fingerprint));
            }
            let repeated = !in_step && !seen.insert(item.fingerprint);
            if let Some(lease) = lease.filter(|_| !repeated)
                && let Some(index) = search.find(&lease.ids, item.fingerprint)
            {
                let offset = Offset(lease.record.first.0 + index as u64);
                places.push(if index < settled { Place::Below } else { Place::At(offset) });
                continue;
            }
            let offsets = self.offsets_of(key.slot, item.fingerprint, tables);
            let place = offsets
                .iter()
                .copied()
                .find(|o| {
                    *o >= cursor.next
                        && last.is_some_and(|l| *o <= l)
                        && !(repeated && taken(*o, &places))
                })
                .map(Place::At)
                .or_else(|| offsets.iter().any(|o| *o < cursor.next).then_some(Place::Below));
            places.push(place.unwrap_or(Place::Unknown));
        }
        places
    }

    /// Offsets that carry an id, ascending, as far as memory and `tables` know.
    fn offsets_of(&self, slot: Slot, fingerprint: u64, tables: &Tables) -> Vec<Offset> {
        let mut found = Vec::new();
        // Only the offsets matter here, not their times.
        self.state.dedup.find(self.state.id_of(slot), fingerprint, 0, &mut found);
        let mut offsets: Vec<Offset> = found.into_iter().map(|(offset, _)| offset).collect();
        if let Some(partition) = self.state.parts.get(slot) {
            for (at, table) in tables {
                let Some(batch) = partition.batches.iter().find(|b| b.at == *at) else { continue };
                let hits = table.iter().enumerate().filter(|(_, f)| **f == fingerprint);
                offsets.extend(hits.map(|(i, _)| Offset(batch.base.0 + i as u64)));
            }
        }
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// Adds the batches whose id tables must be looked at to find the items.
    pub(super) fn tables_needed(
        &self,
        acks: &PeerAcks,
        fingerprints: &[u64],
        group: &str,
        needed: &mut Vec<BatchRef>,
    ) {
        type Search = (CursorKey, Option<Cursor>, LeasedIds);
        let mut searches: SmallVec<[Option<Search>; 1]> = acks
            .targets
            .iter()
            .map(|target| {
                let key = self.cursor_key(target.partition_id, group)?;
                // Where a seek put it without saying so for this partition.
                let sought =
                    if self.state.cursor(key).is_none() { self.ack_cursor(key) } else { None };
                let cursor = self.state.cursor(key).or(sought.as_ref())?;
                let search = LeasedIds::of(cursor);
                Some((key, sought, search))
            })
            .collect();
        for (item, fingerprint) in acks.items.iter().zip(fingerprints) {
            let Some((key, sought, search)) = &mut searches[item.target as usize] else { continue };
            let Some(cursor) = self.state.cursor(*key).or(sought.as_ref()) else { continue };
            let leased = cursor.lease.as_ref().map_or(&[][..], |lease| &lease.ids);
            if search.find(leased, *fingerprint).is_none() {
                self.tables_of(*key, cursor, *fingerprint, acks.id(item), needed);
            }
        }
    }

    /// The batches that may hold a message which no live lease is known to.
    fn tables_of(
        &self,
        key: CursorKey,
        cursor: &Cursor,
        fingerprint: u64,
        id: &str,
        needed: &mut Vec<BatchRef>,
    ) {
        let Some(partition) = self.state.parts.get(key.slot) else { return };
        if let Some(lease) = cursor.lease.as_ref().filter(|lease| lease.ids.is_empty()) {
            let (first, end) = (lease.record.first, lease.record.end);
            needed.extend_from_slice(partition.batches_between(first, end));
        }
        let mut found = Vec::new();
        self.state.dedup.find(self.state.id_of(key.slot), fingerprint, 0, &mut found);
        if !found.is_empty() {
            return;
        }
        needed.extend(minted_near(partition, id));
    }
}

/// The batches that may hold a message whose id the broker minted.
pub(super) fn minted_near<'p>(
    partition: &'p Partition,
    id: &str,
) -> impl Iterator<Item = &'p BatchRef> {
    // The id was minted before its batch was stamped, on the same clock.
    let minted_us = uuid::parse(id).map(minted_at_us);
    let from = minted_us.map_or(partition.batches.len(), |us| {
        partition.batches.partition_point(|b| b.created_at_us < us)
    });
    let until = minted_us.unwrap_or(i64::MIN).saturating_add(MINTED_SEARCH_US);
    partition.batches[from..]
        .iter()
        .take_while(move |b| b.created_at_us <= until)
        .take(MINTED_SEARCH_MAX)
}

/// The milliseconds a version 7 UUID begins with, as microseconds.
fn minted_at_us(id: [u8; 16]) -> i64 {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&id[..6]);
    i64::from_be_bytes(millis).saturating_mul(1_000)
}

/// What one item is told.
fn verdict(status: AckStatus, place: Place, leased: bool) -> AckResult {
    let completed = status == AckStatus::Completed;
    let done = |noop| AckResult {
        success: true,
        error: None,
        lease_released: false,
        dead_lettered: false,
        noop,
        conflated: None,
    };
    match place {
        Place::At(_) if leased || completed => done(false),
        Place::At(_) => refused(NO_LEASE),
        Place::Below if completed => done(true),
        Place::Below => refused(COMMITTED),
        Place::Unknown => refused(UNRESOLVED),
    }
}

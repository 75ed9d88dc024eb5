//! One shard's share of a transaction: reserving what it touches, judging it, making it durable,
//! applying it.
//!
//! A share stands in line for everything it touches and is judged when it heads all of it. From
//! then on nothing else can change what it was judged on, so the judgement holds until it is
//! applied or dropped. **Applying it, its end in the log and its leaving the line are one step.**
//! Where a queue is deleted meanwhile, the share counts as before the deletion: what it would do
//! there is nothing.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::ack::{self, Item, Judgement, LEASE_REFUSED, NO_PARTITION, Tables, UNRESOLVED};
use super::append::{Fate, Judged, ReadBodies, result_of};
use super::effect::Effects;
use super::group::{Cursor, CursorKey};
use super::partition::{BatchRef, Slot};
use super::records;
use super::settle::CursorChange;
use super::shard::{Deferred, ReadUse, Shard, refusal_of};
use super::turns::{Resource, Resources, Ticket, Waiting};
use super::undecided::{
    CommitRecord, EffectRecord, Prepares, TransactionRecord, encode_end, encode_place,
};
use crate::base::buf::{Gather, IoBuf};
use crate::base::ids::{LogPosition, Offset, PartitionId, SegmentId, ShardId};
use crate::base::mutant::Mutant;
use crate::base::time::Now;
use crate::log::{AppendError, Class};
use crate::model::error::Refusal;
use crate::model::peer::{PeerAcks, PeerMsg, PushBatch, TaskId};
use crate::model::reply::PushResult;
use crate::model::transaction::{
    DeadLetterId, GuardPlace, Mark, Rollback, RolledBack, ShareFailure, ShareOutcome, SharePush,
    SharedShare, TransactionId,
};

/// A share on this shard.
#[derive(Debug)]
pub(super) struct ShareJob<B> {
    coordinator: ShardId,
    role: Role,
    share: SharedShare,
    ticket: Ticket,
    /// Reads without an end.
    missing: usize,
    read: ReadBodies<B>,
    tables: Tables,
    judged: JudgedShare,
    /// Its effects and where their record lies, once it is written.
    prepared: Option<(Vec<u8>, SegmentId)>,
}

/// What a share is of the transaction, and how its judgement is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// All of it, for this request of its coordinator.
    Whole(TaskId),
    /// One of several: a vote, with what it does written to the log.
    Prepares,
    /// One of several: a vote, and nothing written. The coordinator's own share, which goes into
    /// the commit record, and any that is only asked for its failure.
    Votes,
}

/// What a share does.
#[derive(Default, Debug)]
struct JudgedShare {
    cursors: Vec<CursorDone>,
    pushes: Vec<JudgedPush>,
    /// Dead letters that go, with their partitions.
    takes: Vec<(PartitionId, DeadLetterId)>,
}

/// A cursor's change, and the epoch it was judged under: under a later one it is void, as if a
/// seek or a deletion of the group had come right behind it.
#[derive(Debug)]
struct CursorDone {
    key: CursorKey,
    epoch: u64,
    change: CursorChange,
}

/// What one of its pushes stores.
#[derive(Debug)]
struct JudgedPush {
    /// Place in the share.
    at: usize,
    queue: u32,
    slot: Option<Slot>,
    items: Vec<Judged>,
    /// Batches written and not yet part of the partition, each with its id table.
    written: Vec<(BatchRef, Vec<u8>)>,
}

/// Why a share cannot be judged now.
enum NotNow {
    /// These must be read first: place and length of records.
    Reads(Vec<(LogPosition, u32)>),
    Fails(ShareFailure),
}

impl From<ShareFailure> for NotNow {
    fn from(failure: ShareFailure) -> Self {
        Self::Fails(failure)
    }
}

impl<B: IoBuf> Shard<B> {
    // ---- reserving

    /// Reserves what a share touches, or stands in line for it.
    pub(super) fn take_share(
        &mut self,
        transaction: TransactionId,
        coordinator: ShardId,
        role: Role,
        share: SharedShare,
    ) {
        let mut touched: Resources = share
            .pushes
            .iter()
            .map(|push| Resource::append(&push.batch.queue, &push.batch.partition))
            .collect();
        for (group, acks) in &share.acks {
            touched.extend(self.cursors_of(acks, group));
        }
        touched.extend(share.takes.iter().map(|id| Resource::DeadLetter(*id)));
        let ticket = self.stand_in_line(touched, Waiting::Share(transaction));
        let job = ShareJob {
            coordinator,
            role,
            share,
            ticket,
            missing: 0,
            read: BTreeMap::new(),
            tables: Tables::new(),
            judged: JudgedShare::default(),
            prepared: None,
        };
        self.shares.insert(transaction, Box::new(job));
    }

    /// A delivery that commits has ended: shares that waited for it look again.
    pub(super) fn deliveries_ended(&mut self) {
        let waiting = self.waiting.iter().filter(|(ticket, work)| {
            matches!(work, Waiting::Share(_)) && self.turns.has_come(**ticket)
        });
        let mut due: SmallVec<[Ticket; 8]> = waiting.map(|(ticket, _)| *ticket).collect();
        // First come, first served; the table has no order.
        due.sort_unstable();
        self.due.extend(due);
    }

    /// The share heads all of its lines.
    pub(super) fn share_turn(&mut self, now: Now, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(job) = self.shares.get(&transaction) else { return };
        let ticket = job.ticket;
        let delivering = self.turns.resources(ticket).iter().any(|resource| match resource {
            Resource::Cursor(key) => self.is_delivering(*key),
            Resource::Append(..) | Resource::DeadLetter(_) => false,
        });
        if delivering {
            // A commit at delivery that still reads: its end calls again.
            self.waiting.insert(ticket, Waiting::Share(transaction));
            return;
        }
        self.judge_share(now, transaction, fx);
    }

    fn is_delivering(&self, key: CursorKey) -> bool {
        let lease = self.state.cursor(key).and_then(|cursor| cursor.lease.as_ref());
        lease.is_some_and(|lease| lease.reserved)
    }

    // ---- judging

    fn judge_share(&mut self, now: Now, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(mut job) = self.shares.remove(&transaction) else { return };
        match self.try_judge(now, &mut job) {
            Ok(outcome) => match job.role {
                Role::Whole(task) => self.do_whole(now, (transaction, task), job, outcome, fx),
                Role::Prepares => self.prepare(now, transaction, job, outcome, fx),
                Role::Votes => {
                    let msg = PeerMsg::Vote { transaction, result: Ok(outcome), prepare: None };
                    self.send(job.coordinator, msg, fx);
                    self.shares.insert(transaction, job);
                }
            },
            Err(NotNow::Reads(needed)) => {
                job.missing = needed.len();
                self.shares.insert(transaction, job);
                self.read_for_share(now, transaction, needed, fx);
            }
            Err(NotNow::Fails(failure)) => self.share_fails(now, transaction, &job, failure, fx),
        }
    }

    fn share_fails(
        &mut self,
        now: Now,
        transaction: TransactionId,
        job: &ShareJob<B>,
        failure: ShareFailure,
        fx: &mut Effects<B>,
    ) {
        let result = Err(failure);
        // What it shows is state, so it waits for that to be durable.
        self.send_durable(
            job.coordinator,
            match job.role {
                Role::Whole(task) => PeerMsg::Transacted { task, transaction, result },
                Role::Prepares | Role::Votes => {
                    PeerMsg::Vote { transaction, result, prepare: None }
                }
            },
        );
        self.leave(now, job.ticket, fx);
    }

    fn read_for_share(
        &mut self,
        now: Now,
        transaction: TransactionId,
        needed: Vec<(LogPosition, u32)>,
        fx: &mut Effects<B>,
    ) {
        for (at, bytes) in needed {
            let read = self.new_id();
            self.reads.insert(read, ReadUse::Share { transaction, key: at });
            if let Some(body) = self.log.read(at, bytes, read, &mut self.io) {
                self.reads.remove(&read);
                self.share_read(now, transaction, at, Some(body), fx);
            }
        }
    }

    pub(super) fn share_read(
        &mut self,
        now: Now,
        transaction: TransactionId,
        at: LogPosition,
        body: Option<Gather<B>>,
        fx: &mut Effects<B>,
    ) {
        let Some(job) = self.shares.get_mut(&transaction) else { return };
        job.tables.insert(at, ack::table_of(body.as_ref()));
        job.read.insert(at, body);
        job.missing -= 1;
        if job.missing == 0 {
            self.judge_share(now, transaction, fx);
        }
    }

    fn try_judge(&mut self, now: Now, job: &mut ShareJob<B>) -> Result<ShareOutcome, NotNow> {
        let share = job.share.clone();
        let mut needed = Vec::new();
        let mut fingerprints = Vec::new();
        for (group, acks) in &share.acks {
            let found = self.ack_fingerprints(acks);
            let mut batches = Vec::new();
            self.tables_needed(acks, &found, group, &mut batches);
            needed.extend(batches.iter().map(|batch| (batch.at, batch.bytes)));
            fingerprints.push(found);
        }
        let mut pushes = Vec::new();
        for (at, push) in share.pushes.iter().enumerate() {
            let judged = self.judge_share_push(now, at, &push.batch, &job.read, &mut needed)?;
            pushes.push(judged);
        }
        needed.retain(|(at, _)| !job.read.contains_key(at));
        needed.sort_unstable();
        needed.dedup();
        if !needed.is_empty() {
            return Err(NotNow::Reads(needed));
        }
        let mut outcome = ShareOutcome::default();
        let takes = self.judge_takes(&share.takes, &mut outcome)?;
        let mut cursors = Vec::new();
        for ((group, acks), found) in share.acks.iter().zip(&fingerprints) {
            self.judge_acks(now, group, acks, found, &job.tables, &mut cursors, &mut outcome)?;
        }
        for (push, judged) in share.pushes.iter().zip(&pushes) {
            let results = self.push_outcome(push, judged)?;
            outcome.pushes.push(results);
            let queue = self.state.catalog.queue_name(&push.batch.queue);
            outcome.marks.push(Mark { queue, group: None, number: push.batch.incarnation });
        }
        outcome.marks.sort_unstable();
        outcome.marks.dedup();
        let cursors = cursors.into_iter().map(|(key, cursor, change)| {
            let group = self.state.group(key);
            let epoch = group.map_or(0, |group| group.claim_epoch(&cursor));
            CursorDone { key, epoch, change }
        });
        let cursors = cursors.collect();
        job.judged = JudgedShare { cursors, pushes, takes };
        Ok(outcome)
    }

    fn judge_takes(
        &self,
        takes: &[DeadLetterId],
        outcome: &mut ShareOutcome,
    ) -> Result<Vec<(PartitionId, DeadLetterId)>, ShareFailure> {
        let mut found = Vec::with_capacity(takes.len());
        for id in takes {
            let row = self.state.dead_letters.by_id(id);
            let queue = row.and_then(|row| self.state.catalog.get(row.queue));
            let (Some(row), Some(queue)) = (row, queue) else {
                let text = "the dead letter is not there any more".into();
                let why = RolledBack { reason: Rollback::Gone, text, original: None };
                return Err(ShareFailure::RolledBack { place: GuardPlace::Take, why });
            };
            let (queue, number) = (queue.name.clone(), queue.image.incarnation);
            outcome.marks.push(Mark { queue, group: None, number });
            found.push((self.state.id_of(row.slot), *id));
        }
        Ok(found)
    }

    fn judge_share_push(
        &mut self,
        now: Now,
        at: usize,
        batch: &PushBatch,
        read: &ReadBodies<B>,
        needed: &mut Vec<(LogPosition, u32)>,
    ) -> Result<JudgedPush, ShareFailure> {
        let Some(queue) = self.queue_as_of(batch) else {
            return Err(ShareFailure::Stale { queue: batch.queue.clone() });
        };
        let slot = self.state.parts.find(queue, &batch.partition);
        let mut scratch = self.scratch.take().unwrap_or_default();
        self.judge(now, queue, slot, batch, read, &mut scratch, needed);
        let items = std::mem::take(&mut scratch.items);
        self.put_back(scratch);
        Ok(JudgedPush { at, queue, slot, items, written: Vec::new() })
    }

    /// What the messages of one push will be answered, unless one is stored already.
    fn push_outcome(
        &self,
        push: &SharePush,
        judged: &JudgedPush,
    ) -> Result<Vec<PushResult>, ShareFailure> {
        let partition = judged.slot.and_then(|slot| self.state.parts.get(slot));
        let mut next = Some(partition.map_or(Offset(0), |partition| partition.next_offset));
        let mut results = Vec::with_capacity(judged.items.len());
        for (i, item) in judged.items.iter().enumerate() {
            if let Fate::Original { id, offset } = item.fate {
                let text = "QDUP a message with this transaction id is stored already";
                let original = Some((id, offset));
                let why = RolledBack { reason: Rollback::Duplicate, text: text.into(), original };
                let place = GuardPlace::Push(push.first + i as u32);
                return Err(ShareFailure::RolledBack { place, why });
            }
            let result = result_of(item, &mut next, &results);
            results.push(result);
        }
        Ok(results)
    }

    /// Judges the acks of one group, each target on what the targets before it leave behind.
    #[expect(clippy::too_many_arguments, reason = "one group with all that is known of it")]
    fn judge_acks(
        &mut self,
        now: Now,
        group: &str,
        acks: &PeerAcks,
        fingerprints: &[u64],
        tables: &Tables,
        cursors: &mut Vec<(CursorKey, Cursor, CursorChange)>,
        outcome: &mut ShareOutcome,
    ) -> Result<(), ShareFailure> {
        let order = ack::by_target(acks);
        for places in
            order.chunk_by(|a, b| acks.items[*a as usize].target == acks.items[*b as usize].target)
        {
            let items: Vec<Item<'_>> = places
                .iter()
                .map(|at| ack::item_of(acks, *at as usize, fingerprints[*at as usize]))
                .collect();
            let target = acks.targets[acks.items[places[0] as usize].target as usize];
            let rejected = |at: usize, text| rejected(items[at].index, text);
            let Some(key) = self.cursor_key(target.partition_id, group) else {
                return Err(rejected(0, NO_PARTITION));
            };
            let known = cursors.iter().position(|(known, ..)| *known == key);
            let cursor = match known {
                Some(at) => cursors[at].1.clone(),
                None => match self.ack_cursor(key) {
                    Some(cursor) => cursor,
                    None => return Err(rejected(0, UNRESOLVED)),
                },
            };
            let judgement = self.judge_target(now, key, &cursor, target.lease, &items, tables);
            let (mut results, settled) = match judgement {
                Judgement::Settles(results, settled) => (results, settled),
                Judgement::NotCurrent(_) => return Err(rejected(0, LEASE_REFUSED)),
            };
            if let Some(at) = results.iter().position(|result| !result.success) {
                return Err(rejected(at, results[at].error.unwrap_or(UNRESOLVED)));
            }
            ack::mark_filed(&mut results, &settled, self.files_dead_letters(key));
            let filed = items.iter().zip(&results).map(|(i, r)| (i.index, r.dead_lettered));
            outcome.acks.extend(filed);
            let queue = self.state.catalog.get(key.queue).expect("its cursor exists");
            let (queue, number) = (queue.name.clone(), queue.image.incarnation);
            let (group, epoch) = self
                .state
                .group(key)
                .map_or_else(|| (group.into(), 0), |group| (group.name.clone(), group.reset_epoch));
            outcome.marks.push(Mark { queue: queue.clone(), group: None, number });
            outcome.marks.push(Mark { queue, group: Some(group), number: epoch });
            let Some(change) = self.cursor_change(now, key, &cursor, &settled, &items) else {
                continue;
            };
            let mut after = cursor;
            change.make(&mut after);
            match known {
                Some(at) => {
                    let before = &mut cursors[at].2;
                    before.followed_by(change);
                    cursors[at].1 = after;
                }
                None => cursors.push((key, after, change)),
            }
        }
        Ok(())
    }

    // ---- doing it

    /// All of the transaction lies here: one record decides it.
    fn do_whole(
        &mut self,
        now: Now,
        (transaction, task): (TransactionId, TaskId),
        mut job: Box<ShareJob<B>>,
        outcome: ShareOutcome,
        fx: &mut Effects<B>,
    ) {
        let written = self.write_share(now, &mut job).and_then(|effects| {
            let record =
                TransactionRecord { id: transaction, coordinator: None, effects: &effects };
            let class = job.class();
            self.log.append(records::TRANSACTION, 0, &[&record.encode()], class)
        });
        match written {
            Ok(appended) => {
                let at = appended.at;
                self.apply_share(now, &mut job.judged, (at.segment(), at), false, fx);
                let result = Ok(outcome);
                self.send_durable(
                    job.coordinator,
                    PeerMsg::Transacted { task, transaction, result },
                );
                self.leave(now, job.ticket, fx);
            }
            Err(error) => {
                let failure = failure_of(&error);
                self.share_fails(now, transaction, &job, failure, fx);
            }
        }
    }

    /// Writes the share to the log and votes for it at once: the coordinator's commit record is then
    /// on its way to the disk at the same time.
    fn prepare(
        &mut self,
        now: Now,
        transaction: TransactionId,
        mut job: Box<ShareJob<B>>,
        outcome: ShareOutcome,
        fx: &mut Effects<B>,
    ) {
        match self.write_share_record(now, transaction, &mut job, None) {
            Ok(at) => {
                let prepare = Some(at);
                let vote = PeerMsg::Vote { transaction, result: Ok(outcome), prepare };
                self.send(job.coordinator, vote, fx);
                let prepared = PeerMsg::Prepared { transaction, result: Ok(()) };
                if Mutant::PreparedBeforeDurable.active() {
                    self.send(job.coordinator, prepared, fx);
                } else {
                    self.send_durable(job.coordinator, prepared);
                }
                self.shares.insert(transaction, job);
            }
            Err(error) => self.share_fails(now, transaction, &job, failure_of(&error), fx),
        }
    }

    /// The coordinator's own share goes into its commit record. Returns the record's segment.
    pub(super) fn write_commit(
        &mut self,
        now: Now,
        transaction: TransactionId,
        prepares: Prepares,
    ) -> Result<SegmentId, Refusal> {
        let mut job = self.shares.remove(&transaction).expect("the coordinator has a share");
        let written = self.write_share_record(now, transaction, &mut job, Some(prepares));
        self.shares.insert(transaction, job);
        written.map(LogPosition::segment).map_err(|error| refusal_of(&error))
    }

    /// Writes what a share does: as a commit record that names these prepares, else as a prepare.
    /// Where that fails, nothing is in the log that means anything.
    fn write_share_record(
        &mut self,
        now: Now,
        id: TransactionId,
        job: &mut ShareJob<B>,
        prepares: Option<Prepares>,
    ) -> Result<LogPosition, AppendError> {
        let effects = self.write_share(now, job)?;
        let appended = match prepares {
            Some(prepares) => {
                let record = CommitRecord { id, prepares, effects: &effects };
                // The others are prepared already, so it may use the reserve.
                self.log.append(records::COMMIT, 0, &[&record.encode()], Class::Essential)?
            }
            None => {
                let coordinator = Some(job.coordinator);
                let record = TransactionRecord { id, coordinator, effects: &effects };
                self.log.append(records::PREPARE, 0, &[&record.encode()], job.class())?
            }
        };
        let at = appended.at.segment();
        self.state.pin_prepared(&effects, at);
        job.prepared = Some((effects, at));
        Ok(appended.at)
    }

    /// Writes the messages of a share, and lists what it does.
    fn write_share(&mut self, now: Now, job: &mut ShareJob<B>) -> Result<Vec<u8>, AppendError> {
        let share = job.share.clone();
        let mut effects = Vec::new();
        for push in &mut job.judged.pushes {
            self.write_share_push(now, &share.pushes[push.at].batch, push)?;
            let slot = push.slot.map(|slot| self.state.id_of(slot));
            for ((stored, _), partition) in push.written.iter().zip(slot.into_iter().cycle()) {
                let body = &encode_place(stored);
                EffectRecord { kind: records::BATCH, partition, body }.write(&mut effects);
            }
        }
        for (partition, id) in &job.judged.takes {
            let (kind, partition) = (records::DEAD_LETTERS_DELETED, *partition);
            let body = &records::encode_dead_letters_deleted(&[*id]);
            EffectRecord { kind, partition, body }.write(&mut effects);
        }
        for CursorDone { key, epoch, change } in &job.judged.cursors {
            let Some(mut cursor) = self.ack_cursor(*key) else { continue };
            if self.state.group(*key).is_none_or(|group| group.claim_epoch(&cursor) != *epoch) {
                continue;
            }
            let Some(group) = self.state.catalog.get(key.queue).and_then(|q| q.group(key.group))
            else {
                continue;
            };
            change.make(&mut cursor);
            let body = &cursor.record(group, change.filed.clone()).encode();
            let partition = self.state.id_of(key.slot);
            EffectRecord { kind: records::CURSOR, partition, body }.write(&mut effects);
        }
        Ok(effects)
    }

    fn write_share_push(
        &mut self,
        now: Now,
        batch: &PushBatch,
        push: &mut JudgedPush,
    ) -> Result<(), AppendError> {
        push.written.clear();
        if !push.items.iter().any(|item| item.fate == Fate::Store) {
            return Ok(());
        }
        if self.state.catalog.get(push.queue).is_none() {
            // Deleted since it was judged, which counts as after it.
            return Ok(());
        }
        let slot = match push.slot {
            Some(slot) => slot,
            None => *push.slot.insert(self.create_partition(now, push.queue, &batch.partition)?),
        };
        let Some(partition) = self.state.parts.get(slot) else { return Ok(()) };
        let (mut base, mut stamp_us) = (partition.next_offset, partition.next_stamp(now));
        let mut scratch = self.scratch.take().unwrap_or_default();
        let mut written = Ok(());
        let pieces = push.items.chunk_by(|a, b| a.piece == b.piece);
        for (piece, items) in batch.pieces.iter().zip(pieces) {
            if !items.iter().any(|item| item.fate == Fate::Store) {
                continue;
            }
            let kind = records::TRANSACTION_BATCH;
            match self.write_batch(kind, slot, base, stamp_us, piece, items, &mut scratch) {
                Ok(stored) => {
                    push.written.push((stored, scratch.table.clone()));
                    (base, stamp_us) = (stored.end(), stamp_us + 1);
                }
                Err(error) => {
                    written = Err(error);
                    break;
                }
            }
        }
        self.put_back(scratch);
        written
    }

    /// The coordinator has decided: apply the share or drop it, note that in the log, and let go
    /// of what it held, all in one step. Where the log has no room now, later.
    pub(super) fn end_share(
        &mut self,
        now: Now,
        transaction: TransactionId,
        commits: bool,
        fx: &mut Effects<B>,
    ) {
        let Some(mut job) = self.shares.remove(&transaction) else { return };
        if let Some((effects, at)) = job.prepared.take() {
            let ended = match self.append_end(transaction, commits) {
                Ok(ended) => ended,
                Err(refusal) => {
                    tracing::debug!(?refusal, "the end of a transaction waits for room in the log");
                    job.prepared = Some((effects, at));
                    self.shares.insert(transaction, job);
                    return self.stalled_ends.push_back((transaction, commits));
                }
            };
            if commits {
                let mine = job.coordinator == self.config.shard;
                if mine || !Mutant::CommitsOnOneShard.active() {
                    self.apply_share(now, &mut job.judged, (at, ended), true, fx);
                }
                self.send(job.coordinator, PeerMsg::Applied { transaction }, fx);
                let coordinator = job.coordinator;
                self.await_silently(Deferred::Ended { coordinator, transaction });
            }
            self.state.unpin_prepared(&effects, at);
        }
        self.leave(now, job.ticket, fx);
    }

    /// Returns where it lies. Behind nothing but other ends it is in no hurry.
    pub(super) fn append_end(
        &mut self,
        transaction: TransactionId,
        committed: bool,
    ) -> Result<LogPosition, Refusal> {
        let rests = !self.log.has_pending() || self.resting == self.log.appended();
        let body = encode_end(transaction, committed);
        let appended = self.append(records::END, 0, &[&body])?;
        if rests {
            self.resting = self.log.appended();
        }
        Ok(appended.at)
    }

    pub(super) fn retry_stalled_ends(&mut self, now: Now, fx: &mut Effects<B>) {
        for (transaction, commits) in std::mem::take(&mut self.stalled_ends) {
            self.end_share(now, transaction, commits, fx);
        }
    }

    /// Makes true what a share does: `at` is the segment of the record that says so, and where
    /// the log stood when it was decided.
    fn apply_share(
        &mut self,
        now: Now,
        judged: &mut JudgedShare,
        (at, decided_at): (SegmentId, LogPosition),
        durable: bool,
        fx: &mut Effects<B>,
    ) {
        let pushed = judged.pushes.iter().map(|push| push.queue);
        let mut queues: SmallVec<[u32; 4]> =
            pushed.chain(judged.cursors.iter().map(|done| done.key.queue)).collect();
        queues.sort_unstable();
        queues.dedup();
        queues.iter().for_each(|queue| self.count_queue(*queue, |t| t.transactions += 1));
        for push in &mut judged.pushes {
            let Some(slot) = push.slot else { continue };
            for (stored, table) in std::mem::take(&mut push.written) {
                if self.state.parts.get(slot).is_none() {
                    continue;
                }
                let count = u64::from(stored.count);
                self.counters.pushed += count;
                self.count(push.queue, |t| t.push_messages += count);
                self.state.install_batch(slot, stored, &table, decided_at);
                if durable {
                    self.visible(now, slot, stored.end(), fx);
                } else {
                    self.shows_when_durable(slot, stored);
                }
            }
        }
        for (_, id) in std::mem::take(&mut judged.takes) {
            self.state.unfile(&id);
        }
        for done in std::mem::take(&mut judged.cursors) {
            self.apply_change_at(now, done, at, fx);
        }
    }

    fn apply_change_at(&mut self, now: Now, done: CursorDone, at: SegmentId, fx: &mut Effects<B>) {
        let CursorDone { key, epoch, mut change } = done;
        let Some(mut cursor) = self.ack_cursor(key) else { return };
        if self.state.group(key).is_none_or(|group| group.claim_epoch(&cursor) != epoch) {
            return;
        }
        let before = cursor.next;
        let ended = change.make(&mut cursor);
        let (passed, filed) = (cursor.next.0.saturating_sub(before.0), change.filed.len() as u64);
        self.count(key.queue, |t| {
            t.ack_success += passed.saturating_sub(filed);
            t.ack_failed += filed;
            t.dead_letters += filed;
        });
        self.state.segments.moved(cursor.segment.replace(at), at);
        self.state.put_cursor(key, cursor);
        for row in std::mem::take(&mut change.filed) {
            if self.state.is_stored(key.slot, &row) {
                self.counters.dead_lettered += 1;
                self.state.file(key, row, at);
            }
        }
        self.counters.acked += 1;
        self.cursor_changed(now, key, change.released, ended, fx);
    }
}

impl<B> ShareJob<B> {
    /// A share that only settles goes through on a full disk, as an ack does.
    fn class(&self) -> Class {
        if self.judged.pushes.is_empty() { Class::Essential } else { Class::Growing }
    }
}

fn rejected(ack: u32, text: &str) -> ShareFailure {
    let text = format!("QTXN {text}").into();
    let why = RolledBack { reason: Rollback::RejectedAck, text, original: None };
    ShareFailure::RolledBack { place: GuardPlace::Ack(ack), why }
}

fn failure_of(error: &AppendError) -> ShareFailure {
    match error {
        AppendError::TooLarge => {
            let text = "a message takes more than one append may".into();
            let why = RolledBack { reason: Rollback::TooLarge, text, original: None };
            ShareFailure::RolledBack { place: GuardPlace::Push(u32::MAX), why }
        }
        error => ShareFailure::Refused(refusal_of(error)),
    }
}

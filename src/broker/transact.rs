//! Transactions, at the shard of the client: splitting a request into one share a shard, and
//! deciding it.
//!
//! A transaction whole on one shard is one record there. Across shards this shard coordinates:
//! it reserves shard by shard in ascending order, so that two transactions never wait for each
//! other in a circle, and each writes its share to its log with its vote. When all have voted for
//! it, this shard writes the commit record, with its own share in it and the places of the others'.
//! **It is committed once all of these records are durable**, in whatever order they get there; only
//! then does anyone apply. At a start a commit record counts if all that it names is in the logs.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::ack::given_lease;
use super::effect::Effects;
use super::owner::vanishing_queue;
use super::push::Parts;
use super::shard::{Deferred, Shard};
use super::task::Task;
use super::undecided::Prepares;
use crate::base::buf::IoBuf;
use crate::base::hash::partition_hash;
use crate::base::ids::{LogPosition, PartitionId, SegmentId, ShardId, Token};
use crate::base::mutant::Mutant;
use crate::base::time::Now;
use crate::base::uuid;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::Marks;
use crate::model::peer::{AckTarget, PeerAcks, PeerMsg, TaskId};
use crate::model::reply::{PushResult, Reply};
use crate::model::transaction::{
    Committed, DeadLetterId, GuardPlace, Mark, Rollback, RolledBack, Share, ShareFailure,
    ShareOutcome, SharePush, SharedShare, TransactionAck, TransactionId, TransactionReply,
    TransactionRequest,
};

/// How often a transaction is tried anew because a queue was deleted or made under it.
const RETRIES_MAX: u32 = 8;

/// Where each run of a push's messages begins in the request, and its length.
type Runs = SmallVec<[(u32, u32); 2]>;
/// Those of a share's pushes.
type ShareRuns = SmallVec<[Runs; 1]>;
/// Ascending by shard.
type Shares = SmallVec<[(ShardId, SharedShare); 2]>;
/// In the order of the shares.
type Outcomes = SmallVec<[ShareOutcome; 2]>;

/// A transaction at the shard of its client.
#[derive(Debug)]
pub(super) struct TransactionTask {
    token: Token,
    acks: usize,
    pushes: usize,
    shares: Shares,
    /// For each share and each of its pushes: where runs of its messages stand in the request.
    runs: SmallVec<[ShareRuns; 2]>,
    retries: u32,
    /// A queue whose owner must be asked before the next attempt.
    stale: Option<String>,
}

/// A transaction across shards that this shard decides.
#[derive(Debug)]
pub(super) struct Coordinated {
    task: TaskId,
    shares: Shares,
    /// Shares reserved or asked to be.
    asked: usize,
    outcomes: Outcomes,
    failures: Vec<(ShardId, ShareFailure)>,
    /// Where the shares of the others are written.
    prepares: Prepares,
    /// Of those and our commit record: how many are durable.
    durable: usize,
    /// Participants that have applied, and ended.
    applied: usize,
    ended: usize,
    /// Segment of the commit record, once there is one.
    committed: Option<SegmentId>,
}

impl Coordinated {
    /// Shards that hold their share: all that were asked and have not failed.
    fn holders(&self) -> Vec<ShardId> {
        let asked = self.shares[..self.asked].iter().map(|(shard, _)| *shard);
        asked.filter(|shard| !self.failures.iter().any(|(failed, _)| failed == shard)).collect()
    }
}

/// The shares of a request while it is scattered.
#[derive(Default)]
struct Drafts {
    /// Ascending by shard.
    list: SmallVec<[(ShardId, Draft); 2]>,
}

#[derive(Default)]
struct Draft {
    share: Share,
    /// As in [`TransactionTask`].
    runs: ShareRuns,
}

impl Drafts {
    fn of(&mut self, shard: ShardId) -> &mut Draft {
        let found = self.list.binary_search_by_key(&shard, |(shard, _)| *shard);
        let at = found.unwrap_or_else(|at| {
            self.list.insert(at, (shard, Draft::default()));
            at
        });
        &mut self.list[at].1
    }
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn transact(
        &mut self,
        now: Now,
        request: TransactionRequest<'_>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        self.history.total.transactions += 1;
        let pushes = !request.items.is_empty() || !request.frames.is_empty();
        if pushes && !self.admits_push(token, fx) {
            return;
        }
        let (acks, mut drafts) = (request.acks.len(), Drafts::default());
        self.share_takes(&request.takes, &mut drafts);
        if let Err(why) = self.share_acks(&request.acks, &mut drafts) {
            let id = self.new_transaction(now);
            let reply = TransactionReply { id, outcome: Err(why) };
            return self.reply_durable(token, Reply::Transaction(reply));
        }
        let pushes = self.share_pushes(now, request, &mut drafts);
        if drafts.list.is_empty() {
            let id = self.new_transaction(now);
            let reply = TransactionReply { id, outcome: Ok(Committed::default()) };
            return self.reply_durable(token, Reply::Transaction(reply));
        }
        if drafts.list.len() > 1 {
            // Who coordinates takes part, if only with its commit record.
            drafts.of(self.config.shard);
        }
        let (shares, runs) = drafts
            .list
            .into_iter()
            .map(|(shard, draft)| ((shard, Arc::new(draft.share)), draft.runs))
            .unzip();
        let (retries, stale) = (0, None);
        let task = TransactionTask { token, acks, pushes, shares, runs, retries, stale };
        let task = self.new_task(Task::Transaction(Box::new(task)));
        self.transact_begin(now, task, fx);
    }

    fn new_transaction(&mut self, now: Now) -> TransactionId {
        TransactionId(uuid::mint_v7(now.wall_us, &mut self.prng))
    }

    fn share_takes(&self, takes: &[(DeadLetterId, PartitionId)], drafts: &mut Drafts) {
        for (id, partition) in takes {
            // The row was found there.
            let Some(shard) = partition.shard().filter(|s| s.0 < self.config.shards) else {
                continue;
            };
            drafts.of(shard).share.takes.push(*id);
        }
    }

    /// Scatters the acks to the shards of their partitions.
    fn share_acks(
        &self,
        acks: &[TransactionAck<'_>],
        drafts: &mut Drafts,
    ) -> Result<(), RolledBack> {
        for (index, TransactionAck { group, item }) in acks.iter().enumerate() {
            let home = item.partition_id.and_then(|id| Some((id, id.shard()?)));
            let Some((partition_id, shard)) = home.filter(|(_, s)| s.0 < self.config.shards) else {
                let text = "QTXN unresolvable: no such partition".into();
                return Err(RolledBack { reason: Rollback::RejectedAck, text, original: None });
            };
            let share = &mut drafts.of(shard).share;
            let at = share.acks.iter().position(|(known, _)| *known == **group);
            let at = at.unwrap_or_else(|| {
                share.acks.push((group.to_string(), PeerAcks::with_capacity(1)));
                share.acks.len() - 1
            });
            let target = AckTarget { partition_id, lease: given_lease(&item.lease_id) };
            let (id, error) = (&item.transaction_id, item.error.as_deref());
            share.acks[at].1.push(index as u32, target, item.status, id, error);
        }
        Ok(())
    }

    /// Scatters the messages to the shards of their partitions. Returns how many there are.
    fn share_pushes(
        &mut self,
        now: Now,
        request: TransactionRequest<'_>,
        drafts: &mut Drafts,
    ) -> usize {
        let mut parts = Parts::default();
        let producer = request.producer.map(str::as_bytes);
        for (place, item) in request.items.iter().enumerate() {
            let marks = Marks { trace_id: item.trace_id, producer };
            self.add_item(now, &mut parts, place, &item.item, marks, || 0);
        }
        let mut pushes = request.items.len() as u32;
        for group in request.frames {
            pushes = parts.add_group(pushes, group);
        }
        for part in parts.parts {
            let Some(batch) = part.batch else { continue };
            let hash = partition_hash(&batch.queue, &batch.partition);
            let shard = ShardId((hash % u64::from(self.config.shards)) as u16);
            let first = part.runs.first().map_or(0, |(from, _)| *from);
            let draft = drafts.of(shard);
            draft.share.pushes.push(SharePush { first, batch });
            draft.runs.push(part.runs);
        }
        pushes as usize
    }

    /// Makes sure all queues exist, then tries.
    fn transact_begin(&mut self, now: Now, task: TaskId, fx: &mut Effects<B>) {
        let Some(Task::Transaction(waiting)) = self.tasks.get_mut(&task) else { return };
        let mut unknown = waiting.stale.take();
        for (_, share) in &mut waiting.shares {
            for push in &mut Arc::make_mut(share).pushes {
                match self.state.catalog.by_name(&push.batch.queue) {
                    Some(queue) => push.batch.incarnation = queue.image.incarnation,
                    None => unknown = unknown.or(Some(push.batch.queue.clone())),
                }
            }
        }
        if let Some(queue) = unknown {
            // One at a time: its answer comes back here.
            let owner = self.owner_of(&queue);
            return self.send(owner, PeerMsg::EnsureQueue { task, queue }, fx);
        }
        let shares = waiting.shares.clone();
        let id = self.new_transaction(now);
        if let [(shard, share)] = shares.as_slice() {
            let (shard, share) = (*shard, share.clone());
            return self.send(shard, PeerMsg::Transact { task, transaction: id, share }, fx);
        }
        let coordinated = Coordinated {
            task,
            shares,
            asked: 0,
            outcomes: Outcomes::new(),
            failures: Vec::new(),
            prepares: Prepares::new(),
            durable: 0,
            applied: 0,
            ended: 0,
            committed: None,
        };
        self.coordinated.insert(id, Box::new(coordinated));
        self.reserve_next(id, fx);
    }

    /// A queue that a transaction asked for is there, or could not be made.
    pub(super) fn transaction_queue_ready(
        &mut self,
        now: Now,
        task: TaskId,
        refusal: Option<Refusal>,
        fx: &mut Effects<B>,
    ) {
        match refusal {
            Some(refusal) => self.transact_refused(task, refusal, fx),
            None => self.transact_begin(now, task, fx),
        }
    }

    // ---- all on one shard

    pub(super) fn transacted(
        &mut self,
        now: Now,
        task: TaskId,
        transaction: TransactionId,
        result: Result<ShareOutcome, ShareFailure>,
        fx: &mut Effects<B>,
    ) {
        match result {
            Ok(outcome) => self.transact_done(task, transaction, smallvec![outcome], fx),
            Err(failure) => self.transact_failed(now, task, transaction, failure, fx),
        }
    }

    // ---- across shards

    fn reserve_next(&mut self, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        let Some((shard, share)) = coordinated.shares.get(coordinated.asked).cloned() else {
            return;
        };
        coordinated.asked += 1;
        let prepare = shard != self.config.shard && coordinated.failures.is_empty();
        self.send(shard, PeerMsg::Reserve { transaction, share, prepare }, fx);
    }

    /// A failed guard does not stop the later ones: the first in the order of the wire is told.
    pub(super) fn voted(
        &mut self,
        now: Now,
        from: ShardId,
        transaction: TransactionId,
        (result, prepare): (Result<ShareOutcome, ShareFailure>, Option<LogPosition>),
        fx: &mut Effects<B>,
    ) {
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.prepares.extend(prepare.map(|at| (from, at)));
        match result {
            Ok(outcome) => coordinated.outcomes.push(outcome),
            Err(failure) => coordinated.failures.push((from, failure)),
        }
        if coordinated.asked < coordinated.shares.len() {
            return self.reserve_next(transaction, fx);
        }
        match coordinated.verdict() {
            Some(failure) => self.abort(now, transaction, failure, fx),
            None => self.commit(now, transaction, fx),
        }
    }

    fn abort(
        &mut self,
        now: Now,
        transaction: TransactionId,
        failure: ShareFailure,
        fx: &mut Effects<B>,
    ) {
        let Some(coordinated) = self.coordinated.remove(&transaction) else { return };
        for shard in coordinated.holders() {
            self.send(shard, PeerMsg::Abort { transaction }, fx);
        }
        self.transact_failed(now, coordinated.task, transaction, failure, fx);
    }

    /// All have voted for it and written their shares: writes ours, with where theirs are.
    fn commit(&mut self, now: Now, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(coordinated) = self.coordinated.get(&transaction) else { return };
        let prepares = coordinated.prepares.clone();
        match self.write_commit(now, transaction, prepares) {
            Ok(at) => {
                self.state.segments.add(at);
                if let Some(coordinated) = self.coordinated.get_mut(&transaction) {
                    coordinated.committed = Some(at);
                }
                if Mutant::CommitBeforeDurable.active() {
                    return self.part_durable(transaction, fx);
                }
                self.commit.push(self.log.appended(), Deferred::Committed(transaction));
            }
            Err(refusal) => self.abort(now, transaction, refused(refusal), fx),
        }
    }

    /// The share of another is durable, or its disk has failed.
    pub(super) fn prepared(
        &mut self,
        transaction: TransactionId,
        result: Result<(), Refusal>,
        fx: &mut Effects<B>,
    ) {
        match result {
            Ok(()) => self.part_durable(transaction, fx),
            Err(refusal) => self.transaction_failed(transaction, &refusal, fx),
        }
    }

    /// One more of its records is durable. With the last it is committed: all apply.
    pub(super) fn part_durable(&mut self, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.durable += 1;
        if coordinated.durable <= coordinated.prepares.len() || coordinated.committed.is_none() {
            return;
        }
        let shards: SmallVec<[ShardId; 4]> =
            coordinated.shares.iter().map(|(shard, _)| *shard).collect();
        for shard in shards {
            self.send(shard, PeerMsg::Commit { transaction }, fx);
        }
    }

    pub(super) fn applied(&mut self, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.applied += 1;
        if coordinated.applied == coordinated.shares.len() {
            let (task, outcomes) = (coordinated.task, std::mem::take(&mut coordinated.outcomes));
            self.transact_done(task, transaction, outcomes, fx);
        }
    }

    pub(super) fn ended(&mut self, transaction: TransactionId) {
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.ended += 1;
        if coordinated.ended == coordinated.shares.len()
            && let Some(coordinated) = self.coordinated.remove(&transaction)
            && let Some(at) = coordinated.committed
        {
            self.state.segments.remove(at);
        }
    }

    /// One of its records may or may not be on the disk: the next start decides.
    pub(super) fn transaction_failed(
        &mut self,
        transaction: TransactionId,
        refusal: &Refusal,
        fx: &mut Effects<B>,
    ) {
        let Some(coordinated) = self.coordinated.get(&transaction) else { return };
        self.transact_refused(coordinated.task, refusal.clone(), fx);
    }

    // ---- the answer

    fn transact_failed(
        &mut self,
        now: Now,
        task: TaskId,
        transaction: TransactionId,
        failure: ShareFailure,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Transaction(waiting)) = self.tasks.get_mut(&task) else { return };
        match failure {
            ShareFailure::RolledBack { why, .. } => {
                let token = waiting.token;
                self.tasks.remove(&task);
                let reply = TransactionReply { id: transaction, outcome: Err(why) };
                fx.reply(token, Reply::Transaction(reply));
            }
            ShareFailure::Stale { queue } => {
                waiting.retries += 1;
                if waiting.retries > RETRIES_MAX {
                    return self.transact_refused(task, vanishing_queue(), fx);
                }
                waiting.stale = Some(queue);
                self.transact_begin(now, task, fx);
            }
            ShareFailure::Refused(refusal) => self.transact_refused(task, refusal, fx),
        }
    }

    fn transact_refused(&mut self, task: TaskId, refusal: Refusal, fx: &mut Effects<B>) {
        if let Some(Task::Transaction(waiting)) = self.tasks.remove(&task) {
            fx.reply(waiting.token, Reply::Refused(refusal));
        }
    }

    /// Everything has happened.
    fn transact_done(
        &mut self,
        task: TaskId,
        transaction: TransactionId,
        outcomes: Outcomes,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Transaction(waiting)) = self.tasks.remove(&task) else { return };
        let mut committed = Committed {
            acks: vec![false; waiting.acks],
            pushes: vec![super::push::UNKNOWN; waiting.pushes],
        };
        for (outcome, runs) in outcomes.iter().zip(&waiting.runs) {
            for (index, filed) in &outcome.acks {
                committed.acks[*index as usize] = *filed;
            }
            for (results, runs) in outcome.pushes.iter().zip(runs) {
                spread(results, runs, &mut committed.pushes);
            }
        }
        let reply = TransactionReply { id: transaction, outcome: Ok(committed) };
        fx.reply(waiting.token, Reply::Transaction(reply));
    }
}

/// Puts the results of one partition's messages where these stand in the request.
fn spread(results: &[PushResult], runs: &[(u32, u32)], all: &mut [PushResult]) {
    let mut rest = results;
    for (from, len) in runs {
        let (run, after) = rest.split_at(*len as usize);
        let from = *from as usize;
        all[from..from + run.len()].clone_from_slice(run);
        rest = after;
    }
}

fn refused(refusal: Refusal) -> ShareFailure {
    if refusal.code == ErrorCode::PayloadTooLarge {
        let why = RolledBack { reason: Rollback::TooLarge, text: refusal.text, original: None };
        return ShareFailure::RolledBack { place: GuardPlace::Push(u32::MAX), why };
    }
    ShareFailure::Refused(refusal)
}

impl Coordinated {
    /// Why it cannot be done, once all have voted.
    fn verdict(&mut self) -> Option<ShareFailure> {
        let failures = self.failures.iter().map(|(_, failure)| failure);
        let rank = |failure: &ShareFailure| match failure {
            ShareFailure::RolledBack { place, .. } => (0, Some(*place)),
            ShareFailure::Refused(_) => (1, None),
            ShareFailure::Stale { .. } => (2, None),
        };
        if let Some(first) = failures.min_by_key(|failure| rank(failure)) {
            return Some(first.clone());
        }
        let mut marks: Vec<_> = self.outcomes.iter().flat_map(|o| &o.marks).collect();
        marks.sort_unstable();
        marks.dedup();
        let of_one = |a: &Mark, b: &Mark| (&a.queue, &a.group) == (&b.queue, &b.group);
        let two = marks.windows(2).find(|pair| of_one(pair[0], pair[1]))?;
        Some(ShareFailure::Stale { queue: two[0].queue.to_string() })
    }
}

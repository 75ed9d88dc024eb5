//! Transactions, at the shard of the client: splitting a request into one share a shard, and
//! deciding it.
//!
//! A transaction whole on one shard is one record there. Across shards this shard coordinates:
//! it reserves shard by shard in ascending order, so that two transactions never wait for each
//! other in a circle; when all have voted for it, the shares of the others are made durable (that
//! of a single other shard with its vote); then **the durable commit record, with our own share in
//! it, is the decision**, and only then does anyone apply. A share that is found prepared at a start
//! without that record is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::ack::given_lease;
use super::effect::Effects;
use super::owner::vanishing_queue;
use super::push::Parts;
use super::records;
use super::shard::{Deferred, Shard};
use super::task::Task;
use super::undecided::TransactionRecord;
use crate::base::buf::IoBuf;
use crate::base::hash::partition_hash;
use crate::base::ids::{PartitionId, SegmentId, ShardId, Token};
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

/// A transaction at the shard of its client.
#[derive(Debug)]
pub(super) struct TransactionTask {
    token: Token,
    acks: usize,
    pushes: usize,
    /// Ascending by shard.
    shares: Vec<(ShardId, SharedShare)>,
    /// For each share and each of its pushes: where runs of its messages stand in the request.
    runs: Vec<Vec<Runs>>,
    retries: u32,
    /// A queue whose owner must be asked before the next attempt.
    stale: Option<String>,
}

/// A transaction across shards that this shard decides.
#[derive(Debug)]
pub(super) struct Coordinated {
    task: TaskId,
    shares: Vec<(ShardId, SharedShare)>,
    /// Shares reserved or asked to be.
    asked: usize,
    outcomes: Vec<ShareOutcome>,
    failures: Vec<(ShardId, ShareFailure)>,
    /// Participants but for this shard that have prepared, applied, and ended.
    prepared: usize,
    applied: usize,
    ended: usize,
    /// Segment of the commit record, once there is one.
    committed: Option<SegmentId>,
}

impl Coordinated {
    fn others(&self, me: ShardId) -> impl Iterator<Item = ShardId> + '_ {
        self.shares.iter().map(|(shard, _)| *shard).filter(move |shard| *shard != me)
    }

    /// Shards that hold their share: all that were asked and have not failed.
    fn holders(&self) -> Vec<ShardId> {
        let asked = self.shares[..self.asked].iter().map(|(shard, _)| *shard);
        asked.filter(|shard| !self.failures.iter().any(|(failed, _)| failed == shard)).collect()
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
        let (acks, mut shares) = (request.acks.len(), BTreeMap::new());
        self.share_takes(&request.takes, &mut shares);
        if let Err(why) = self.share_acks(&request.acks, &mut shares) {
            let id = self.new_transaction(now);
            let reply = TransactionReply { id, outcome: Err(why) };
            return self.reply_durable(token, Reply::Transaction(reply));
        }
        let (pushes, runs) = self.share_pushes(now, request, &mut shares);
        let shares: Vec<_> =
            shares.into_iter().map(|(shard, share)| (shard, Arc::new(share))).collect();
        if shares.is_empty() {
            let id = self.new_transaction(now);
            let reply = TransactionReply { id, outcome: Ok(Committed::default()) };
            return self.reply_durable(token, Reply::Transaction(reply));
        }
        let (retries, stale) = (0, None);
        let task = TransactionTask { token, acks, pushes, shares, runs, retries, stale };
        let task = self.new_task(Task::Transaction(Box::new(task)));
        self.transact_begin(now, task, fx);
    }

    fn new_transaction(&mut self, now: Now) -> TransactionId {
        TransactionId(uuid::mint_v7(now.wall_us, &mut self.prng))
    }

    fn share_takes(
        &self,
        takes: &[(DeadLetterId, PartitionId)],
        shares: &mut BTreeMap<ShardId, Share>,
    ) {
        for (id, partition) in takes {
            // The row was found there.
            let Some(shard) = partition.shard().filter(|s| s.0 < self.config.shards) else {
                continue;
            };
            shares.entry(shard).or_default().takes.push(*id);
        }
    }

    /// Scatters the acks to the shards of their partitions.
    fn share_acks(
        &self,
        acks: &[TransactionAck<'_>],
        shares: &mut BTreeMap<ShardId, Share>,
    ) -> Result<(), RolledBack> {
        for (index, TransactionAck { group, item }) in acks.iter().enumerate() {
            let home = item.partition_id.and_then(|id| Some((id, id.shard()?)));
            let Some((partition_id, shard)) = home.filter(|(_, s)| s.0 < self.config.shards) else {
                let text = "QTXN unresolvable: no such partition".into();
                return Err(RolledBack { reason: Rollback::RejectedAck, text, original: None });
            };
            let share = shares.entry(shard).or_default();
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

    /// Scatters the messages to the shards of their partitions. Returns how many there are, and
    /// where each share's stand in the request.
    fn share_pushes(
        &mut self,
        now: Now,
        request: TransactionRequest<'_>,
        shares: &mut BTreeMap<ShardId, Share>,
    ) -> (usize, Vec<Vec<Runs>>) {
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
        let mut runs: BTreeMap<ShardId, Vec<_>> = BTreeMap::new();
        for part in parts.parts {
            let Some(batch) = part.batch else { continue };
            let hash = partition_hash(&batch.queue, &batch.partition);
            let shard = ShardId((hash % u64::from(self.config.shards)) as u16);
            let first = part.runs.first().map_or(0, |(from, _)| *from);
            shares.entry(shard).or_default().pushes.push(SharePush { first, batch });
            runs.entry(shard).or_default().push(part.runs);
        }
        let runs = shares.keys().map(|shard| runs.remove(shard).unwrap_or_default()).collect();
        (pushes as usize, runs)
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
            outcomes: Vec::new(),
            failures: Vec::new(),
            prepared: 0,
            applied: 0,
            ended: 0,
            committed: None,
        };
        self.coordinated.insert(id, coordinated);
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
            Ok(outcome) => self.transact_done(task, transaction, vec![outcome], fx),
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
        // With one other shard its vote is all that our commit record waits for. With more, each
        // would be prepared after the one before instead of all at once.
        let me = self.config.shard;
        let alone = shard != me && coordinated.others(me).count() == 1;
        let prepare = alone && coordinated.failures.is_empty();
        self.send(shard, PeerMsg::Reserve { transaction, share, prepare }, fx);
    }

    /// A failed guard does not stop the later ones: the first in the order of the wire is told.
    pub(super) fn voted(
        &mut self,
        now: Now,
        from: ShardId,
        transaction: TransactionId,
        (result, prepared): (Result<ShareOutcome, ShareFailure>, bool),
        fx: &mut Effects<B>,
    ) {
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.prepared += usize::from(prepared);
        match result {
            Ok(outcome) => coordinated.outcomes.push(outcome),
            Err(failure) => coordinated.failures.push((from, failure)),
        }
        if coordinated.asked < coordinated.shares.len() {
            return self.reserve_next(transaction, fx);
        }
        if let Some(failure) = coordinated.verdict() {
            return self.abort(now, transaction, failure, fx);
        }
        let others: Vec<ShardId> = coordinated.others(self.config.shard).collect();
        if coordinated.prepared == others.len() {
            return self.decide(now, transaction, others, fx);
        }
        for shard in others {
            self.send(shard, PeerMsg::Prepare { transaction }, fx);
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

    pub(super) fn prepared(
        &mut self,
        now: Now,
        transaction: TransactionId,
        result: Result<(), Refusal>,
        fx: &mut Effects<B>,
    ) {
        let me = self.config.shard;
        // Another's refusal may have ended it.
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        if let Err(refusal) = result {
            return self.abort(now, transaction, refused(refusal), fx);
        }
        coordinated.prepared += 1;
        let others: Vec<ShardId> = coordinated.others(me).collect();
        if coordinated.prepared == others.len() {
            self.decide(now, transaction, others, fx);
        }
    }

    /// All others are prepared: writes the record that decides it.
    fn decide(
        &mut self,
        now: Now,
        transaction: TransactionId,
        others: Vec<ShardId>,
        fx: &mut Effects<B>,
    ) {
        let decided = self.own_effects(now, transaction).and_then(|effects| {
            let record = TransactionRecord { id: transaction, shards: others, effects: &effects };
            self.append(records::COMMIT, 0, &[&record.encode()])
        });
        match decided {
            Ok(appended) => {
                let at = appended.at.segment();
                self.state.segments.add(at);
                if let Some(coordinated) = self.coordinated.get_mut(&transaction) {
                    coordinated.committed = Some(at);
                }
                if Mutant::CommitBeforeDurable.active() {
                    return self.committed(now, transaction, fx);
                }
                self.commit.push(self.log.appended(), Deferred::Committed(transaction));
            }
            Err(refusal) => self.abort(now, transaction, refused(refusal), fx),
        }
    }

    /// Our commit record is durable: it is decided, and everybody applies.
    pub(super) fn committed(&mut self, now: Now, transaction: TransactionId, fx: &mut Effects<B>) {
        let Some(coordinated) = self.coordinated.get(&transaction) else { return };
        let Some(at) = coordinated.committed else { return };
        let others: Vec<ShardId> = coordinated.others(self.config.shard).collect();
        self.apply_own(now, transaction, at, fx);
        for shard in others {
            self.send(shard, PeerMsg::Commit { transaction }, fx);
        }
    }

    pub(super) fn applied(&mut self, _now: Now, transaction: TransactionId, fx: &mut Effects<B>) {
        let me = self.config.shard;
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.applied += 1;
        if coordinated.applied == coordinated.others(me).count() {
            let (task, outcomes) = (coordinated.task, std::mem::take(&mut coordinated.outcomes));
            self.transact_done(task, transaction, outcomes, fx);
        }
    }

    pub(super) fn ended(&mut self, transaction: TransactionId) {
        let me = self.config.shard;
        let Some(coordinated) = self.coordinated.get_mut(&transaction) else { return };
        coordinated.ended += 1;
        if coordinated.ended == coordinated.others(me).count()
            && let Some(coordinated) = self.coordinated.remove(&transaction)
            && let Some(at) = coordinated.committed
        {
            self.state.segments.remove(at);
        }
    }

    /// The commit record may or may not be on the disk: the next start decides.
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

    /// Everything has happened. Outcomes are in the order of the shares.
    fn transact_done(
        &mut self,
        task: TaskId,
        transaction: TransactionId,
        outcomes: Vec<ShareOutcome>,
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
        let of = |mark: &Mark| (mark.queue.clone(), mark.group.clone());
        let two = marks.windows(2).find(|pair| of(pair[0]) == of(pair[1]))?;
        Some(ShareFailure::Stale { queue: two[0].queue.clone() })
    }
}

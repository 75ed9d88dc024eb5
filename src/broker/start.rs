//! Opening a shard: replaying its log, then agreeing with the other shards on queue-level state.
//!
//! At start the owner's log wins: each owner sends every queue and registration it knows; a
//! shard drops what its owner does not know, takes what it lacks, and reports once that is
//! durable. The port opens when all have.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use super::append::Nonces;
use super::commit::CommitQueue;
use super::effect::Effects;
use super::group::{CursorKey, Group};
use super::history::History;
use super::line::Lines;
use super::owner::Owner;
use super::pinned::Pinned;
use super::queue::Queue;
use super::shard::{Counters, Deferred, Event, OpenRefused, OpenReport, Shard, ShardConfig};
use super::spares::Spares;
use super::state::State;
use super::turns::Turns;
use crate::base::buf::IoBuf;
use crate::base::extent::Extent;
use crate::base::ids::{LogPosition, ShardId};
use crate::base::mutant::Mutant;
use crate::base::prng::Prng;
use crate::base::time::Now;
use crate::log::storage::Storage;
use crate::log::{Log, LogConfig, Marks, Record};
use crate::model::command::QUEUE_MODE;
use crate::model::error::Refusal;
use crate::model::peer::{CatalogChange, GroupImage, GroupStart, PeerMsg, QueueImage};
use crate::model::transaction::TransactionId;

/// Which peers this shard still waits for.
#[derive(Default, Debug)]
pub(super) struct Start {
    started: bool,
    /// Peers whose catalog has not been applied here.
    unheard: BTreeSet<ShardId>,
    /// Peers that have not reported our catalog durable.
    unsynced: BTreeSet<ShardId>,
    /// Peers that have not said what became of transactions they coordinated.
    undecided: BTreeSet<ShardId>,
    /// Peers that may still ask what became of transactions this shard coordinated.
    asking: BTreeSet<ShardId>,
    /// How far this shard's log reached when it was opened.
    extent: Extent,
    /// What each peer asked about, and how far its log reached.
    asked: BTreeMap<ShardId, (Vec<TransactionId>, Extent)>,
}

impl Start {
    pub(super) fn synced(&mut self, from: ShardId) {
        self.unsynced.remove(&from);
    }
}

impl<B: IoBuf> Shard<B> {
    /// Recovers the shard from its directory. Blocking, before anything is served.
    pub fn open<S: Storage>(
        config: ShardConfig,
        storage: &mut S,
        now: Now,
    ) -> Result<(Self, OpenReport), OpenRefused> {
        let log_config = LogConfig {
            shard: config.shard,
            shards: config.shards,
            directory: config.directory,
            segment_bytes: config.segment_bytes,
            tail_bytes: config.tail_bytes,
            read_ahead_bytes: config.read_ahead_bytes,
            entropy: config.entropy,
        };
        let mut state = State::new(config.shard);
        state.traces.retention_us = super::traces::retention_us(config.trace_retention_seconds);
        let mut malformed = None;
        let (mut log, recovery) = Log::open(storage, log_config, &mut |record: Record<'_>| {
            if malformed.is_none() && state.replay(&record, now).is_err() {
                malformed = Some((record.kind, record.at));
            }
        })
        .map_err(|error| OpenRefused(error.to_string()))?;
        if let Some((kind, at)) = malformed {
            return Err(OpenRefused(format!(
                "segment {} holds a record of kind {kind} at byte {} that this version cannot \
                 read; start the version that wrote it",
                at.segment().0,
                at.byte()
            )));
        }
        state.parts.raise_next_counter(recovery.marks.partition_counter);
        // The records it was raised from may go before another partition is made.
        log.set_marks(Marks { partition_counter: state.parts.next_counter(), ..Marks::default() });
        state.undecided.forget_loose();
        let mut shard = Self::assemble(config, log, state, now);
        shard.start.extent = recovery.extent;
        shard.state.deadlines.insert(now.after_ms(super::retention::STEP_MS), Event::Housekeeping);
        while shard.state.empty_graves(usize::MAX) > 0 {}
        shard.revive_timers();
        let report = OpenReport {
            clean: recovery.clean,
            notices: recovery.notices,
            records: recovery.records,
            bytes: recovery.bytes,
        };
        Ok((shard, report))
    }

    fn assemble(config: ShardConfig, log: Log<B>, state: State, now: Now) -> Self {
        let hasher = || ahash::RandomState::with_seeds(13, 14, 15, 16);
        let others: BTreeSet<ShardId> =
            (0..config.shards).map(ShardId).filter(|s| *s != config.shard).collect();
        Self {
            nonces: Nonces::new(config.entropy),
            // The log mixes the same entropy into its salt; a different stream for ids.
            prng: Prng::new(config.entropy).fork(0x1D5),
            config,
            log,
            state,
            io: Vec::new(),
            inbox: VecDeque::new(),
            commit: CommitQueue::default(),
            next_id: 0,
            visit_turn: 0,
            tasks: HashMap::with_hasher(hasher()),
            pops: HashMap::with_hasher(hasher()),
            claim_jobs: HashMap::with_hasher(hasher()),
            waiting_pushes: BTreeMap::new(),
            turns: Turns::default(),
            waiting: HashMap::with_hasher(hasher()),
            due: VecDeque::new(),
            shares: HashMap::with_hasher(hasher()),
            coordinated: HashMap::with_hasher(hasher()),
            stalled_ends: VecDeque::new(),
            ack_jobs: BTreeMap::new(),
            inspection: Default::default(),
            reads: HashMap::with_hasher(hasher()),
            owner: Owner::default(),
            stalled: VecDeque::new(),
            lines: Lines::default(),
            pinned: Pinned::default(),
            start: Start {
                started: false,
                unheard: others.clone(),
                unsynced: others.clone(),
                undecided: others.clone(),
                asking: others,
                extent: Extent::default(),
                asked: BTreeMap::new(),
            },
            draining: false,
            stopping: false,
            counters: Counters::default(),
            history: History::new(now),
            retention_queue: 0,
            undurable_bytes: 0,
            silent: 0,
            resting: LogPosition::ZERO,
            scratch: None,
            spares: Spares::default(),
        }
    }

    /// Gives recovered leases their timers.
    fn revive_timers(&mut self) {
        let mut keys: Vec<CursorKey> = self.state.leases.values().flatten().copied().collect();
        keys.sort_unstable();
        for key in keys {
            let lease = self.state.cursor(key).and_then(|c| c.lease.as_ref());
            let Some(expires) = lease.filter(|l| l.timer.is_none()).map(|l| l.expires) else {
                continue;
            };
            let timer = self.state.deadlines.insert(expires, Event::LeaseExpires(key));
            if let Some(lease) = self.state.cursor_mut(key).and_then(|c| c.lease.as_mut()) {
                Rc::make_mut(lease).timer = Some(timer);
            }
        }
    }

    /// Begins the start-up exchange with the other shards: every shard's `start` runs, then
    /// effects and peer messages flow until all are [`Shard::is_ready`]. Only then is the port
    /// opened.
    pub fn start(&mut self, now: Now, fx: &mut Effects<B>) {
        self.start.started = true;
        let mut queues = Vec::new();
        let mut groups = Vec::new();
        for (_, queue) in self.state.catalog.iter() {
            if self.owner_of(&queue.image.name) != self.config.shard {
                continue;
            }
            queues.push(queue.image.clone());
            groups.extend(owned_groups(queue));
        }
        for peer in self.others() {
            let (queues, groups) = (queues.clone(), groups.clone());
            fx.send(peer, PeerMsg::CatalogSync { queues, groups });
            let transactions = self.state.undecided.prepared_for(peer);
            let extent = self.start.extent.clone();
            fx.send(peer, PeerMsg::Unresolved { transactions, extent });
        }
        if self.config.shards == 1 {
            self.state.forget_commits();
        }
        // What replay left to be counted.
        self.sweep(now, fx);
        self.settle(now, fx);
    }

    pub fn is_ready(&self) -> bool {
        let start = &self.start;
        start.started
            && start.unheard.is_empty()
            && start.unsynced.is_empty()
            && start.undecided.is_empty()
            && start.asking.is_empty()
            && self.log.has_begun()
    }

    // ---- transactions found prepared

    /// A peer found shares prepared for transactions this shard coordinated, and says how far its
    /// log reaches. When all have, this shard ends what hangs in its own log, and answers once that
    /// is durable: from then on nobody asks for an extent again.
    pub(super) fn unresolved(
        &mut self,
        now: Now,
        from: ShardId,
        transactions: Vec<TransactionId>,
        extent: Extent,
    ) {
        self.start.asked.insert(from, (transactions, extent));
        if self.start.asked.len() < self.others().count() {
            return;
        }
        for (id, prepares) in self.state.undecided.hanging() {
            let held = |(shard, at): &(ShardId, LogPosition)| {
                self.start.asked.get(shard).is_some_and(|(_, extent)| extent.holds(*at))
            };
            let committed = prepares.iter().all(held) || Mutant::CommitCountsAlone.active();
            if self.end_found(now, id, committed).is_err() {
                // No room in the log now: this message again, later.
                let Some((transactions, extent)) = self.start.asked.remove(&from) else { return };
                let msg = PeerMsg::Unresolved { transactions, extent };
                return self.stalled.push_back((from, msg));
            }
        }
        self.revive_timers();
        for (peer, (transactions, _)) in std::mem::take(&mut self.start.asked) {
            // Without a commit record it never happened.
            let outcome = |id| (id, self.state.undecided.is_committed(id));
            let transactions = transactions.into_iter().map(outcome).collect();
            self.send_durable(peer, PeerMsg::Resolved { transactions });
        }
    }

    /// Ends a share that replay found prepared.
    fn end_found(&mut self, now: Now, id: TransactionId, committed: bool) -> Result<(), Refusal> {
        let at = self.append_end(id, committed)?;
        let ended = self.state.end_prepared(id, committed, at, now);
        assert!(ended.is_ok(), "its effects were read when they were replayed");
        Ok(())
    }

    /// Ends them here. What the log has no room for now is tried again; until then this shard
    /// is not ready.
    pub(super) fn resolved(
        &mut self,
        now: Now,
        from: ShardId,
        transactions: Vec<(TransactionId, bool)>,
    ) {
        let mut rest = transactions.into_iter();
        while let Some((id, committed)) = rest.next() {
            if self.end_found(now, id, committed).is_err() {
                let transactions = std::iter::once((id, committed)).chain(rest).collect();
                let msg = PeerMsg::Resolved { transactions };
                return self.stalled.push_back((from, msg));
            }
        }
        self.revive_timers();
        self.start.undecided.remove(&from);
        self.send_durable(from, PeerMsg::AllEnded);
    }

    /// A peer will not ask again.
    pub(super) fn all_ended(&mut self, from: ShardId) {
        self.start.asking.remove(&from);
        if self.start.asking.is_empty() {
            self.state.forget_commits();
        }
    }

    /// What another shard owns, as its log has it. Where the log has no room now, it is tried
    /// again; until then this shard is not ready.
    pub(super) fn catalog_sync(
        &mut self,
        now: Now,
        from: ShardId,
        queues: &[QueueImage],
        groups: &[GroupImage],
        fx: &mut Effects<B>,
    ) {
        if self.adopt(now, from, queues, groups, fx).is_err() {
            let (queues, groups) = (queues.to_vec(), groups.to_vec());
            return self.stalled.push_back((from, PeerMsg::CatalogSync { queues, groups }));
        }
        self.start.unheard.remove(&from);
        self.commit.push(self.log.appended(), Deferred::CatalogSynced { from });
    }

    fn adopt(
        &mut self,
        now: Now,
        from: ShardId,
        queues: &[QueueImage],
        groups: &[GroupImage],
        fx: &mut Effects<B>,
    ) -> Result<(), Refusal> {
        let known: BTreeMap<&str, &QueueImage> =
            queues.iter().map(|image| (image.name.as_str(), image)).collect();
        let stale: Vec<(String, u64)> = self
            .state
            .catalog
            .iter()
            .map(|(_, q)| &q.image)
            .filter(|image| self.owner_of(&image.name) == from)
            .filter(|image| {
                known.get(image.name.as_str()).is_none_or(|k| k.incarnation != image.incarnation)
            })
            .map(|image| (image.name.clone(), image.incarnation))
            .collect();
        for (name, incarnation) in stale {
            self.apply_change(now, &CatalogChange::QueueDeleted { name, incarnation }, fx)?;
        }
        for image in queues {
            if self.state.catalog.by_name(&image.name).is_none_or(|q| q.image != *image) {
                self.apply_change(now, &CatalogChange::Queue(image.clone()), fx)?;
            }
        }
        self.adopt_groups(now, from, groups, fx)
    }

    fn adopt_groups(
        &mut self,
        now: Now,
        from: ShardId,
        groups: &[GroupImage],
        fx: &mut Effects<B>,
    ) -> Result<(), Refusal> {
        let named: BTreeSet<(&str, &str)> =
            groups.iter().map(|image| (image.queue.as_str(), image.group.as_str())).collect();
        let mut stale = Vec::new();
        for (_, queue) in self.state.catalog.iter() {
            if self.owner_of(&queue.image.name) != from {
                continue;
            }
            // Groups of pinned pops only are nobody's business but their shard's.
            stale.extend(owned_groups(queue).filter(|image| {
                !image.is_gone() && !named.contains(&(image.queue.as_str(), image.group.as_str()))
            }));
        }
        for image in stale {
            let epoch = image.epoch.max(image.reset_epoch) + 1;
            let start = (image.group == QUEUE_MODE).then_some(GroupStart::Oldest);
            let gone = GroupImage { epoch, reset_epoch: epoch, start, registration: None, ..image };
            self.apply_change(now, &CatalogChange::Group(gone), fx)?;
        }
        for image in groups {
            let Some(queue) = self.state.catalog.by_name(&image.queue) else { continue };
            let known = queue.group_slot(&image.group).and_then(|slot| queue.group(slot));
            let same = match known {
                // One of that name that came after the deletion stays.
                known if image.is_gone() => {
                    known.is_none_or(|group| group.cursors_epoch >= image.reset_epoch)
                }
                known => known.is_some() && queue.group_image(&image.group).as_ref() == Some(image),
            };
            if !same {
                self.apply_change(now, &CatalogChange::Group(image.clone()), fx)?;
            }
        }
        Ok(())
    }
}

/// The groups that a queue's owner decides about, the lately deleted ones too.
fn owned_groups(queue: &Queue) -> impl Iterator<Item = GroupImage> + '_ {
    let decided = |group: &Group| group.registration.is_some() || group.epoch > 0;
    let live = queue.groups.iter().flatten().filter(move |group| decided(group));
    let live = live.filter_map(|group| queue.group_image(&group.name));
    let gone = queue.gone.iter().filter(move |(name, _)| {
        let named = queue.group_slot(name).and_then(|slot| queue.group(slot));
        !named.is_some_and(decided)
    });
    live.chain(gone.map(|(name, epoch)| GroupImage {
        queue: queue.image.name.clone(),
        incarnation: queue.image.incarnation,
        group: name.clone(),
        epoch: *epoch,
        reset_epoch: *epoch,
        start: None,
        registration: None,
    }))
}

//! One shard: the only door to everything the broker knows. Dispatch only; the operations live
//! in the files named after them.
//!
//! Invariants: every I/O effect gets exactly one completion and every token exactly one reply;
//! `now` never goes back; a message to this very shard goes through the inbox (but for a push's and
//! an ack's, which are handled on the spot), and is handled before the call that sent it returns.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::ack::AckJob;
use super::append::{Nonces, PeerPush, Scratch, WaitingPush};
use super::claim::ClaimJob;
use super::commit::CommitQueue;
use super::effect::{Done, Effect, Effects};
use super::group::CursorKey;
use super::groups::PartitionSeek;
use super::history::History;
use super::inspect::Inspection;
use super::line::Lines;
use super::owner::Owner;
use super::partition::Slot;
use super::pinned::Pinned;
use super::records;
use super::share::{Role, ShareJob};
use super::spares::Spares;
use super::start::Start;
use super::state::State;
use super::task::Task;
use super::transact::Coordinated;
use super::turns::{Ticket, Turns, Waiting};
use crate::base::buf::IoBuf;
use crate::base::cipher::Keys;
use crate::base::hash::queue_hash;
use crate::base::ids::{LogPosition, Offset, ShardId, Token};
use crate::base::prng::Prng;
use crate::base::time::{Deadline, Now};
use crate::log::io::LogIo;
use crate::log::{AppendError, Appended, Class, Completion, Log};
use crate::model::command::Command;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::peer::{PeerMsg, TaskId};
use crate::model::reply::{PopReply, Reply};
use crate::model::transaction::TransactionId;

/// What a shard is told once, at its start.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub shard: ShardId,
    pub shards: u16,
    /// Identity of the data directory: files of another one are refused.
    pub directory: [u8; 16],
    pub segment_bytes: u64,
    /// Bytes this shard may hold in memory for work in flight; over it 429.
    pub memory_bytes: usize,
    /// Bytes of the log's newest part kept in memory for pops.
    pub tail_bytes: usize,
    /// Bytes kept of what pops behind the tail read from the disk.
    pub read_ahead_bytes: usize,
    /// Batches that the broker frames are stored compressed from this many bytes on.
    pub compress_bytes: Option<usize>,
    /// For the payloads of queues that encrypt.
    pub keys: Keys,
    pub trace_retention_seconds: u64,
    /// Seed of ids and salts: from the system's entropy in production, fixed in the simulation.
    pub entropy: u64,
}

/// What opening a shard found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// The log ended with the marker of a clean stop.
    pub clean: bool,
    /// Things a person should know: a torn tail that was cut, a suspected bit flip at the cut.
    pub notices: Vec<String>,
    pub records: u64,
    pub bytes: u64,
}

/// Why a shard's log cannot be opened. The text names the file and the place.
#[derive(Clone, Debug)]
pub struct OpenRefused(pub String);

/// What happens at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    LeaseExpires(CursorKey),
    HoldEnds(CursorKey),
    PopTimesOut(TaskId),
    /// A walk's next step.
    InspectionGoesOn,
    /// The next slice of what grows with a queue's partitions.
    Sweep,
    /// The clock's own step: retention, dedup expiry, forgetting.
    Housekeeping,
}

/// What waits for a log position.
#[derive(Debug)]
pub(super) enum Deferred<B> {
    Reply {
        token: Token,
        reply: Reply<B>,
    },
    Send {
        to: ShardId,
        msg: PeerMsg,
    },
    /// Messages of a partition below this offset may be delivered.
    Visible {
        slot: Slot,
        to: Offset,
        bytes: u32,
    },
    /// A catalog change of ours can go to the other shards.
    ChangeDurable(u64),
    /// A claim with all its data.
    Claimed(ClaimJob<B>),
    CatalogSynced {
        from: ShardId,
    },
    /// Our commit record of a transaction.
    Committed(TransactionId),
    /// The end of a transaction here, for its coordinator.
    Ended {
        coordinator: ShardId,
        transaction: TransactionId,
    },
}

/// What a finished read of the log is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadUse {
    Claim { job: u64, claim: usize, batch: usize },
    Push { job: u64, key: LogPosition },
    Ack { job: u64, key: LogPosition },
    Share { transaction: TransactionId, key: LogPosition },
    Inspect,
}

/// Counters since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counters {
    pub pushed: u64,
    pub duplicates: u64,
    pub popped: u64,
    pub acked: u64,
    pub dead_lettered: u64,
    pub claims: u64,
    pub empty_claims: u64,
    /// Client-compressed groups stored as they came, and those written anew.
    pub groups_kept: u64,
    pub groups_recoded: u64,
    /// Batches that the broker compressed by itself.
    pub batches_compressed: u64,
}

pub struct Shard<B: IoBuf> {
    pub(super) config: ShardConfig,
    pub(super) log: Log<B>,
    pub(super) io: Vec<LogIo<B>>,
    pub(super) prng: Prng,
    pub(super) inbox: VecDeque<PeerMsg>,
    pub(super) state: State,
    pub(super) commit: CommitQueue<Deferred<B>>,
    pub(super) next_id: u64,
    /// Which shard the next pop visits first that has no better reason for one.
    pub(super) visit_turn: usize,
    pub(super) tasks: HashMap<TaskId, Task<B>, ahash::RandomState>,
    /// Waiting or visiting pops by the token of their client.
    pub(super) pops: HashMap<Token, TaskId, ahash::RandomState>,
    pub(super) claim_jobs: HashMap<u64, ClaimJob<B>, ahash::RandomState>,
    pub(super) waiting_pushes: BTreeMap<u64, WaitingPush<B>>,
    /// Always there but inside the step that uses it.
    pub(super) scratch: Option<Box<Scratch>>,
    pub(super) spares: Spares<B>,
    pub(super) nonces: Nonces,
    /// Work in line behind transactions and pushes that read, and whose turn has come.
    pub(super) turns: Turns,
    pub(super) waiting: HashMap<Ticket, Waiting, ahash::RandomState>,
    pub(super) due: VecDeque<Ticket>,
    pub(super) shares: HashMap<TransactionId, Box<ShareJob<B>>, ahash::RandomState>,
    pub(super) coordinated: HashMap<TransactionId, Box<Coordinated>, ahash::RandomState>,
    /// Ends of transactions that the log had no room for: applied when it has.
    pub(super) stalled_ends: VecDeque<(TransactionId, bool)>,
    pub(super) ack_jobs: BTreeMap<u64, AckJob>,
    pub(super) inspection: Inspection<B>,
    pub(super) reads: HashMap<u64, ReadUse, ahash::RandomState>,
    pub(super) owner: Owner,
    /// Changes of owners that the log had no room for, in the order they came.
    pub(super) stalled: VecDeque<(ShardId, PeerMsg)>,
    pub(super) lines: Lines,
    pub(super) pinned: Pinned,
    pub(super) start: Start,
    pub(super) draining: bool,
    pub(super) stopping: bool,
    pub(super) counters: Counters,
    pub(super) history: History,
    pub(super) retention_queue: u32,
    /// Bytes of batches appended and not yet durable, for admission.
    pub(super) undurable_bytes: usize,
    /// What waits for the log without anybody's answer: those batches, ends of transactions.
    pub(super) silent: usize,
    /// Where the log stood when its newest records, as far as they are not on their way to the
    /// disk, were ends of transactions only.
    pub(super) resting: LogPosition,
}

impl<B: IoBuf> Shard<B> {
    /// A client's command. Exactly one `Effect::Reply` with `token` follows, now or later.
    pub fn handle(&mut self, now: Now, command: Command<'_>, token: Token, fx: &mut Effects<B>) {
        if self.draining {
            let refusal = Refusal::new(ErrorCode::Draining, "the broker is shutting down");
            fx.reply(token, Reply::Refused(refusal));
            return;
        }
        match command {
            Command::Push { items, producer } => self.push(now, items, producer, token, fx),
            Command::PushFrames(groups) => self.push_frames(now, groups, token, fx),
            Command::Pop(request) => self.pop(now, &request, token, fx),
            Command::Ack(request) => self.ack(now, request, token, fx),
            Command::Transact(request) => self.transact(now, request, token, fx),
            Command::ExtendLease { lease_id, seconds } => {
                self.extend(lease_id, seconds, token, fx);
            }
            Command::Configure(request) => self.configure(&request, token, fx),
            Command::DeleteQueue { queue } => self.delete_queue(queue, token, fx),
            Command::Group(request) => self.change_group(&request, token, fx),
            Command::Read(request) => self.read(request, token, fx),
            Command::Inspect(request) => self.inspect(request, token, fx),
        }
        self.settle(now, fx);
    }

    /// A message of another shard.
    pub fn deliver(&mut self, now: Now, from: ShardId, msg: PeerMsg, fx: &mut Effects<B>) {
        self.receive(now, from, msg, fx);
        self.settle(now, fx);
    }

    /// An I/O effect has ended.
    pub fn complete(&mut self, now: Now, done: Done<B>, fx: &mut Effects<B>) {
        match self.log.complete(now, done, &mut self.io) {
            Completion::Quiet | Completion::Durable => {}
            Completion::Reads(ended) => {
                ended.into_iter().for_each(|read| self.read_ended(now, read.key, read.result, fx));
            }
            Completion::Poisoned => self.poisoned(fx),
        }
        self.settle(now, fx);
    }

    /// The client of `token` is gone. The reply still comes (and is thrown away); a parked pop
    /// is answered empty at once and claims nothing.
    pub fn cancel(&mut self, now: Now, token: Token, fx: &mut Effects<B>) {
        if let Some(task) = self.pops.get(&token).copied() {
            self.pop_gone(task, fx);
        }
        self.settle(now, fx);
    }

    /// A pop's reply could not be sent: its claims are given back with their attempt, at the
    /// front of the ready list.
    pub fn undelivered(&mut self, now: Now, reply: &PopReply<B>, fx: &mut Effects<B>) {
        self.give_back(&reply.group, reply.lease_id, &reply.claims, fx);
        self.settle(now, fx);
    }

    /// A reply that is out, for its memory. What is not handed back costs only speed.
    pub fn spent(&mut self, reply: Reply<B>) {
        self.spares.put_reply(reply);
    }

    /// To be called once [`Shard::next_deadline`] has passed.
    pub fn tick(&mut self, now: Now, fx: &mut Effects<B>) {
        self.log.tick(now, &mut self.io);
        // Bounded, so that a burst of expiries does not stall the core; what is left has passed
        // and asks for the next call at once.
        for _ in 0..EVENTS_PER_TICK {
            let Some(event) = self.state.deadlines.pop_passed(now) else { break };
            match event {
                Event::LeaseExpires(key) => self.lease_expired(now, key, fx),
                Event::HoldEnds(key) => self.hold_ended(now, key, fx),
                Event::PopTimesOut(task) => self.pop_timed_out(task, fx),
                Event::InspectionGoesOn => self.inspection_goes_on(now),
                Event::Sweep => self.sweep_on(now, fx),
                Event::Housekeeping => self.housekeeping(now, fx),
            }
        }
        self.settle(now, fx);
        self.flush(now, fx);
    }

    /// When `tick` is next wanted. May change after every call of any other method.
    pub fn next_deadline(&self) -> Option<Deadline> {
        match (self.state.deadlines.next(), self.log.next_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Stops taking new work: parked pops get their empty answer, new commands 503 `draining`.
    /// Open requests finish.
    pub fn drain(&mut self, now: Now, fx: &mut Effects<B>) {
        self.draining = true;
        for task in self.open_pops() {
            self.pop_gone(task, fx);
        }
        self.settle(now, fx);
    }

    /// After `drain`, when all replies are out: writes the clean-stop marker.
    pub fn stop(&mut self, now: Now, fx: &mut Effects<B>) {
        self.stopping = true;
        self.log.stop(now, &mut self.io);
        self.settle(now, fx);
    }

    /// The marker of `stop` is durable and no I/O is in flight.
    pub fn is_stopped(&self) -> bool {
        self.stopping && self.log.is_stopped()
    }

    /// Why this shard takes no writes, if so. The driver exits the process once it has sent
    /// what replies it can: the truth is on the media, not in memory.
    pub fn fault(&self) -> Option<&str> {
        self.log.fault()
    }

    /// Handles what the call stirred up until nothing is left to do without I/O.
    pub(super) fn settle(&mut self, now: Now, fx: &mut Effects<B>) {
        loop {
            let mut moved = false;
            while let Some(msg) = self.inbox.pop_front() {
                self.receive(now, self.config.shard, msg, fx);
                moved = true;
            }
            while let Some(ticket) = self.due.pop_front() {
                self.turn_came(now, ticket, fx);
                moved = true;
            }
            while let Some(deferred) = self.commit.pop_durable(self.answerable()) {
                self.durable(now, deferred, fx);
                moved = true;
            }
            if !moved {
                break;
            }
        }
        fx.list.extend(self.io.drain(..).map(Effect::Io));
    }

    /// Sends out what the calls before it have appended. To be called soon after any other
    /// call, best once for all calls that are at hand together: their records then share one
    /// write.
    pub fn flush(&mut self, now: Now, fx: &mut Effects<B>) {
        self.log.pump(now, &mut self.io);
        fx.list.extend(self.io.drain(..).map(Effect::Io));
    }

    /// A write of the log is on its way: what is appended now waits for its end.
    pub fn is_committing(&self) -> bool {
        self.log.is_committing()
    }

    /// [`Shard::flush`] would begin a write now, and nothing is lost but time if it is called later.
    pub fn may_gather(&self) -> bool {
        self.log.may_wait() && !self.draining
    }

    /// Nothing is lost either if that is called much later: all there is to write are ends of
    /// transactions, which the next start would find out by itself.
    pub fn may_rest(&self) -> bool {
        self.may_gather() && self.waiting() == 0 && self.resting == self.log.appended()
    }

    /// What waits for the log's next writes: answers, also to other shards.
    pub fn waiting(&self) -> usize {
        self.commit.len() - self.silent
    }

    /// The position up to which effects may be shown.
    fn answerable(&self) -> LogPosition {
        if crate::base::mutant::Mutant::ReplyBeforeDurable.active() {
            return self.log.appended();
        }
        self.log.durable()
    }

    fn durable(&mut self, now: Now, deferred: Deferred<B>, fx: &mut Effects<B>) {
        match deferred {
            Deferred::Reply { token, reply } => fx.reply(token, reply),
            Deferred::Send { to, msg } => self.send(to, msg, fx),
            Deferred::Visible { slot, to, bytes } => {
                self.undurable_bytes -= bytes as usize;
                self.silent -= 1;
                self.visible(now, slot, to, fx);
            }
            Deferred::ChangeDurable(id) => self.change_durable(now, id, fx),
            Deferred::Claimed(job) => self.claim_durable(now, job, fx),
            Deferred::CatalogSynced { from } => self.send(from, PeerMsg::CatalogSynced, fx),
            Deferred::Committed(transaction) => self.part_durable(transaction, fx),
            Deferred::Ended { coordinator, transaction } => {
                self.silent -= 1;
                self.send(coordinator, PeerMsg::Ended { transaction }, fx);
            }
        }
    }

    /// The log takes no more writes: nothing that waits for it is answered as stored.
    fn poisoned(&mut self, fx: &mut Effects<B>) {
        let refusal = Refusal::new(
            ErrorCode::OutcomeUnknown,
            "the disk failed under this write; whether it was stored is not known",
        );
        let waiting: Vec<Deferred<B>> = self.commit.take_all().collect();
        self.silent = 0;
        for deferred in waiting {
            match deferred {
                Deferred::Reply { token, .. } => fx.reply(token, Reply::Refused(refusal.clone())),
                Deferred::Send { to, msg } => {
                    if let Some(msg) = super::task::failed(msg, &refusal) {
                        self.send(to, msg, fx);
                    }
                }
                Deferred::Claimed(job) => self.claim_failed(job, &refusal, fx),
                Deferred::Committed(transaction) => {
                    self.transaction_failed(transaction, &refusal, fx);
                }
                Deferred::Visible { .. }
                | Deferred::Ended { .. }
                | Deferred::ChangeDurable(_)
                | Deferred::CatalogSynced { .. } => {}
            }
        }
        self.fail_catalog_tasks(&refusal, fx);
    }

    fn receive(&mut self, now: Now, from: ShardId, msg: PeerMsg, fx: &mut Effects<B>) {
        match msg {
            PeerMsg::CatalogSync { queues, groups } => {
                self.catalog_sync(now, from, &queues, &groups, fx);
            }
            PeerMsg::CatalogSynced => self.start.synced(from),
            PeerMsg::EnsureQueue { task, queue } => self.ensure_queue(now, from, task, &queue, fx),
            PeerMsg::Configure { task, queue, patch } => {
                self.configure_owned(now, from, task, &queue, *patch, fx);
            }
            PeerMsg::DeleteQueue { task, queue } => {
                self.delete_owned(now, from, task, &queue, fx);
            }
            PeerMsg::RegisterGroup { task, queue, group, subscription, conflation } => {
                let asked = (subscription, conflation);
                self.register_group(now, from, task, &queue, &group, asked, fx);
            }
            PeerMsg::ChangeGroup { task, queue, group, change } => {
                self.change_group_owned(now, (from, task), queue, &group, change, fx);
            }
            PeerMsg::CatalogDone { task, result } => self.catalog_done(now, task, result, fx),
            PeerMsg::Replicate { change_id, change } => {
                self.replicate(now, from, change_id, &change, fx);
            }
            PeerMsg::Replicated { change_id, partitions } => {
                self.replicated(now, change_id, partitions, fx);
            }
            PeerMsg::FindGroup { task, group, queue } => {
                self.find_group(from, task, &group, queue.as_deref());
            }
            PeerMsg::GroupFound { task, result } => self.group_found(task, result, fx),
            PeerMsg::SeekPartition { task, queue, partition, group, to } => {
                let seek = PartitionSeek { from, task, queue, partition, group, to };
                self.seek_partition(now, seek, fx);
            }
            PeerMsg::PartitionSought { task, result } => self.partition_sought(task, result),
            PeerMsg::Push { task, part, batch } => {
                self.push_owned(now, PeerPush { from, task, part, batch }, fx);
            }
            PeerMsg::Pushed { task, part, result } => self.pushed(task, part, result, fx),
            PeerMsg::PushStale { task, part, batch } => {
                self.push_stale(task, part, batch, fx);
            }
            msg => self.receive_pop(now, from, msg, fx),
        }
    }

    fn receive_pop(&mut self, now: Now, from: ShardId, msg: PeerMsg, fx: &mut Effects<B>) {
        match msg {
            PeerMsg::Claim { arrival, queue, group, spec, mode } => {
                self.claim(now, arrival, queue, group, spec, mode, fx);
            }
            PeerMsg::Claimed { task, queue, group, lease_id, claims, oldest_us } => {
                self.heard_of(now, from, (&queue, &group), oldest_us);
                self.claimed_by_peer(now, task, &queue, &group, lease_id, claims, fx);
            }
            PeerMsg::Empty { task, queue } => self.claim_empty(now, from, task, queue, fx),
            PeerMsg::Park { arrival, queue, group, spec, until } => {
                self.park(now, arrival, queue, group, spec, until, fx);
            }
            PeerMsg::Unpark { arrival, queue, group } => self.unpark(arrival, queue, group),
            PeerMsg::ParkPinned(park) => self.park_pinned(now, *park, fx),
            PeerMsg::UnparkPinned { arrival, queue, partition } => {
                self.pinned.remove(&queue, &partition, arrival);
            }
            PeerMsg::Arm { queue, group } => self.arm(now, &queue, &group, fx),
            PeerMsg::Ready { queue, group, count, oldest_us } => {
                self.ready(now, from, queue, group, count, oldest_us, fx);
            }
            PeerMsg::GiveBack { queue, group, lease_id, claims } => {
                self.given_back(now, queue, group, lease_id, claims, fx);
            }
            PeerMsg::Unparked { task, queue } => self.unparked(task, &queue, fx),
            PeerMsg::Ack { task, group, acks } => self.ack_owned(now, from, task, group, acks, fx),
            PeerMsg::Acked { task, result } => self.acked(task, result, fx),
            PeerMsg::Transact { task, transaction, share } => {
                self.take_share(transaction, from, Role::Whole(task), share);
            }
            PeerMsg::Transacted { task, transaction, result } => {
                self.transacted(now, task, transaction, result, fx);
            }
            PeerMsg::Reserve { transaction, share, prepare } => {
                let role = if prepare { Role::Prepares } else { Role::Votes };
                self.take_share(transaction, from, role, share);
            }
            PeerMsg::Vote { transaction, result, prepare } => {
                self.voted(now, from, transaction, (result, prepare), fx);
            }
            PeerMsg::Prepared { transaction, result } => self.prepared(transaction, result, fx),
            PeerMsg::Commit { transaction } => self.end_share(now, transaction, true, fx),
            PeerMsg::Abort { transaction } => self.end_share(now, transaction, false, fx),
            PeerMsg::Applied { transaction } => self.applied(transaction, fx),
            PeerMsg::Ended { transaction } => self.ended(transaction),
            PeerMsg::Unresolved { transactions, extent } => {
                self.unresolved(now, from, transactions, extent);
            }
            PeerMsg::Resolved { transactions } => self.resolved(now, from, transactions),
            PeerMsg::AllEnded => self.all_ended(from),
            PeerMsg::Extend { task, lease_id, seconds } => {
                self.extend_owned(now, from, task, lease_id, seconds);
            }
            PeerMsg::ExtendedPart { task, result } => self.extended(task, result, fx),
            PeerMsg::Read { task, request } => self.read_owned(now, from, task, &request, fx),
            PeerMsg::ReadDone { task, result } => self.read_part(task, result, fx),
            PeerMsg::Inspect { task, step } => self.inspect_owned(now, from, task, *step),
            PeerMsg::InspectDone { task, result } => self.inspect_done(task, result, fx),
            msg => unreachable!("{msg:?} is handled in receive"),
        }
    }

    /// Sends to a shard; to this one through the inbox.
    pub(super) fn send(&mut self, to: ShardId, msg: PeerMsg, fx: &mut Effects<B>) {
        if to == self.config.shard {
            self.inbox.push_back(msg);
        } else {
            fx.send(to, msg);
        }
    }

    /// Sends once everything appended so far is durable.
    pub(super) fn send_durable(&mut self, to: ShardId, msg: PeerMsg) {
        self.commit.push(self.log.appended(), Deferred::Send { to, msg });
    }

    /// Waits for everything appended so far; it answers nobody.
    pub(super) fn await_silently(&mut self, deferred: Deferred<B>) {
        self.silent += 1;
        self.commit.push(self.log.appended(), deferred);
    }

    pub(super) fn others(&self) -> impl Iterator<Item = ShardId> + use<B> {
        let me = self.config.shard;
        (0..self.config.shards).map(ShardId).filter(move |s| *s != me)
    }

    pub(super) fn owner_of(&self, queue: &str) -> ShardId {
        ShardId((queue_hash(queue) % u64::from(self.config.shards)) as u16)
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn append(
        &mut self,
        kind: u8,
        key: u64,
        body: &[&[u8]],
    ) -> Result<Appended, Refusal> {
        let grows = matches!(kind, records::BATCH | records::TRACE);
        let class = if grows { Class::Growing } else { Class::Essential };
        self.log.append(kind, key, body, class).map_err(|error| refusal_of(&error))
    }
}

const EVENTS_PER_TICK: usize = 256;

pub(super) fn refusal_of(error: &AppendError) -> Refusal {
    match error {
        AppendError::TooLarge => {
            Refusal::new(ErrorCode::PayloadTooLarge, "larger than one append may be")
        }
        AppendError::NoSpace => Refusal::new(ErrorCode::StorageFull, "no space left for the log"),
        AppendError::Busy => {
            Refusal::new(ErrorCode::Retry, "the log is preparing its next segment; try again")
        }
        AppendError::Stopped => Refusal::new(ErrorCode::Retry, "this shard takes no writes"),
    }
}

//! What shards tell each other. Owned and `Send`: it crosses cores.
//!
//! Every request carries the asking shard's [`TaskId`]; its answer carries it back. Messages
//! between two shards arrive in the order sent.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::command::{AckStatus, GroupChange, ReadRequest, SeekTo, Subscription};
use super::error::Refusal;
use super::inspect::{InspectPart, InspectStep};
use super::options::{OptionsPatch, QueueOptions};
use super::reply::{AckResult, Counts, PushResult, ShardStats};
use super::traffic::WalkStep;
use super::transaction::{ShareFailure, ShareOutcome, SharedShare, TransactionId};
use crate::base::extent::Extent;
use crate::base::ids::{LeaseId, LogPosition, Offset, PartitionId};
use crate::base::spare::Reuse;
use crate::base::time::Deadline;

/// The name of a queue, a partition or a group that messages share instead of copying it.
pub type Name = Arc<str>;

/// A request that waits at the shard its client is connected to. Unique per shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u64);

/// A queue's own state, as its owner decides it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueImage {
    pub name: String,
    pub id: [u8; 16],
    /// Which creation of this name; grows with each.
    pub incarnation: u64,
    pub created_at_us: i64,
    pub options: QueueOptions,
}

/// A consumer group on a queue, as the queue's owner decides it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupImage {
    pub queue: String,
    pub incarnation: u64,
    pub group: String,
    /// Which change of this group this is; grows with each.
    pub epoch: u64,
    /// The change that last began its cursors anew: those of an older epoch are gone.
    pub reset_epoch: u64,
    /// `None`: only partitions it has a cursor on are its business.
    pub start: Option<GroupStart>,
    /// `None`: its next pop is its first contact.
    pub registration: Option<Registration>,
}

impl GroupImage {
    /// Nothing is left of the group: it was deleted with its registration.
    pub fn is_gone(&self) -> bool {
        self.start.is_none() && self.registration.is_none()
    }
}

/// The start rule of a group for partitions it has no cursor on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupStart {
    Oldest,
    /// Messages created at or after this wall time in microseconds.
    From(i64),
    /// A seek: the same, and in any case messages stored after the seek.
    Seek(i64),
}

/// What a group's first contact stored. Only a deletion changes it, and the time a request that
/// moves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    pub subscribed: Subscribed,
    pub created_at_us: i64,
    /// Deliver the newest message only.
    pub conflation: bool,
}

/// How a group subscribed, with the instant it counts from where there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subscribed {
    All,
    New(i64),
    Timestamp(i64),
}

impl Subscribed {
    pub fn start(self) -> GroupStart {
        match self {
            Self::All => GroupStart::Oldest,
            Self::New(us) | Self::Timestamp(us) => GroupStart::From(us),
        }
    }
}

/// One change of queue-level state, made durable by its owner before any other shard sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CatalogChange {
    Queue(QueueImage),
    QueueDeleted { name: String, incarnation: u64 },
    Group(GroupImage),
}

/// The items of one push that go to one partition, framed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PushBatch {
    pub queue: String,
    pub incarnation: u64,
    pub partition: String,
    /// Each becomes a stored batch of its own, in this order.
    pub pieces: SmallVec<[PushPiece; 1]>,
    /// Items over all pieces.
    pub count: u32,
    /// Bit i: the broker minted item i's transaction id, so no other message can carry it.
    pub minted: Vec<u64>,
}

impl Reuse for PushBatch {
    fn empty(&mut self) -> usize {
        self.pieces.clear();
        (self.incarnation, self.count) = (0, 0);
        self.queue.empty() + self.partition.empty() + self.minted.empty()
    }
}

/// Frames that are stored together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PushPiece {
    /// `count` frames back to back (`model::frame`).
    pub frames: Vec<u8>,
    pub count: u32,
    /// The client's one zstd frame over exactly `frames`: stored as it came where nothing of it
    /// has to change. Empty where the broker framed the items itself.
    pub packed: Bytes,
    /// The frames were stamped since: `packed` only says that they are to be compressed again.
    pub recode: bool,
}

impl PushBatch {
    pub fn is_minted(&self, index: usize) -> bool {
        self.minted.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    pub fn set_minted(&mut self, index: usize) {
        if self.minted.len() <= index / 64 {
            self.minted.resize(index / 64 + 1, 0);
        }
        self.minted[index / 64] |= 1 << (index % 64);
    }
}

/// What a claim wants. Owned by the pop that asked; shards take from the budget as they claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimSpec {
    pub lease_id: LeaseId,
    pub batch: u32,
    pub partitions: u32,
    pub auto_ack: bool,
    pub lease_seconds: Option<u32>,
    /// Only from a group that is registered: the pop asked for conflation.
    pub registered_only: bool,
}

/// One claimed partition on its way to another shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerClaim {
    pub partition: String,
    pub partition_id: PartitionId,
    pub since: Offset,
    pub start: Offset,
    pub end: Offset,
    pub epoch: u64,
    pub attempt: u32,
    /// Batch heads and bytes, as `reply::Claim` has them.
    pub batches: SmallVec<[Vec<u8>; 1]>,
}

/// A waiting pop's place in line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arrival {
    /// Monotonic microseconds at which the pop parked first.
    pub since_us: u64,
    pub entry: u16,
    pub task: TaskId,
}

/// The items of one ack that go to one shard. All texts lie in one buffer: an ack of a thousand
/// messages is a handful of allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerAcks {
    text: String,
    /// In order of appearance.
    pub targets: SmallVec<[AckTarget; 1]>,
    /// Their places, once there are many.
    known: Option<HashMap<AckTarget, usize, ahash::RandomState>>,
    /// In request order.
    pub items: Vec<PeerAck>,
}

/// What items are settled together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AckTarget {
    pub partition_id: PartitionId,
    pub lease: GivenLease,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GivenLease {
    /// No fence.
    None,
    Id(LeaseId),
    /// A text that is no lease's id.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAck {
    /// Place in the client's request.
    pub index: u32,
    /// Place in [`PeerAcks::targets`].
    pub target: u32,
    pub status: AckStatus,
    id: TextRange,
    error: Option<TextRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TextRange {
    from: u32,
    to: u32,
}

impl PeerAcks {
    pub fn with_capacity(items: usize) -> Self {
        let mut acks = Self::default();
        acks.reserve(items);
        acks
    }

    /// Makes room for this many items with ids of the usual length.
    pub fn reserve(&mut self, items: usize) {
        self.text.reserve(items * 40);
        self.items.reserve(items);
    }

    pub fn push(
        &mut self,
        index: u32,
        target: AckTarget,
        status: AckStatus,
        id: &str,
        error: Option<&str>,
    ) {
        let at = self.target_at(target);
        let id = self.keep(id);
        let error = error.map(|text| self.keep(text));
        self.items.push(PeerAck { index, target: at as u32, status, id, error });
    }

    /// Items of one target are one, wherever they stand in the request.
    fn target_at(&mut self, target: AckTarget) -> usize {
        const MANY: usize = 16;
        let next = self.targets.len();
        // An ack of what one pop brought names one target, or one after the other.
        if next <= MANY
            && let Some(at) = self.targets.iter().rposition(|known| *known == target)
        {
            return at;
        }
        if next >= MANY {
            let targets = &self.targets;
            let known = self.known.get_or_insert_with(|| {
                let hasher = ahash::RandomState::with_seeds(29, 30, 31, 32);
                let mut known = HashMap::with_capacity_and_hasher(4 * MANY, hasher);
                known.extend(targets.iter().enumerate().map(|(at, target)| (*target, at)));
                known
            });
            let at = *known.entry(target).or_insert(next);
            if at < next {
                return at;
            }
        }
        self.targets.push(target);
        next
    }

    fn keep(&mut self, text: &str) -> TextRange {
        let from = self.text.len() as u32;
        self.text.push_str(text);
        TextRange { from, to: self.text.len() as u32 }
    }

    pub fn id(&self, item: &PeerAck) -> &str {
        &self.text[item.id.from as usize..item.id.to as usize]
    }

    pub fn error(&self, item: &PeerAck) -> Option<&str> {
        item.error.map(|error| &self.text[error.from as usize..error.to as usize])
    }
}

impl Reuse for PeerAcks {
    fn empty(&mut self) -> usize {
        self.targets.clear();
        self.known = None;
        self.text.empty() + self.items.empty()
    }
}

/// A dead letter on its way to another shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerDeadLetter {
    pub id: [u8; 16],
    pub queue: String,
    pub partition: String,
    pub partition_id: PartitionId,
    pub group: String,
    pub offset: Offset,
    pub created_at_us: i64,
    pub failed_at_us: i64,
    pub error: String,
    pub retry_count: u32,
    pub frame: Vec<u8>,
}

/// One shard's part of a queue in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuePart {
    pub name: String,
    pub partitions: u64,
    pub segments: u64,
    pub counts: Counts,
}

impl QueuePart {
    pub fn add(&mut self, other: &Self) {
        self.partitions += other.partitions;
        self.segments += other.segments;
        self.counts.add(&other.counts);
    }
}

/// One shard's part of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadPart {
    Queues(Vec<QueuePart>),
    Shard(Box<ShardStats>),
    Walk(Box<WalkStep>),
}

/// One message of the mesh. What is large and travels often is boxed, and its memory used again: a
/// message is moved from queue to queue on its way.
#[derive(Clone, Debug)]
pub enum PeerMsg {
    // Start: each owner's queues as its log has them; it wins.
    CatalogSync {
        queues: Vec<QueueImage>,
        groups: Vec<GroupImage>,
    },
    CatalogSynced,

    // Queue-level changes, asked of the queue's owner.
    EnsureQueue {
        task: TaskId,
        queue: String,
    },
    Configure {
        task: TaskId,
        queue: String,
        patch: Box<OptionsPatch>,
    },
    DeleteQueue {
        task: TaskId,
        queue: String,
    },
    RegisterGroup {
        task: TaskId,
        queue: String,
        group: String,
        subscription: Subscription,
        conflation: bool,
    },
    ChangeGroup {
        task: TaskId,
        queue: String,
        group: String,
        change: GroupChange,
    },
    /// The change asked for is durable on every shard.
    CatalogDone {
        task: TaskId,
        result: Result<CatalogOutcome, Refusal>,
    },
    Replicate {
        change_id: u64,
        change: Box<CatalogChange>,
    },
    Replicated {
        change_id: u64,
        /// Partitions it touched there.
        partitions: u64,
    },

    // Consumer groups beyond their owner: who knows a group, and one partition's cursor.
    FindGroup {
        task: TaskId,
        group: String,
        /// `None`: every queue.
        queue: Option<String>,
    },
    GroupFound {
        task: TaskId,
        result: Result<Vec<String>, Refusal>,
    },
    SeekPartition {
        task: TaskId,
        queue: String,
        partition: String,
        group: String,
        to: SeekTo,
    },
    PartitionSought {
        task: TaskId,
        /// False: no such partition.
        result: Result<bool, Refusal>,
    },

    // Push.
    Push {
        task: TaskId,
        part: u32,
        batch: Box<PushBatch>,
    },
    Pushed {
        task: TaskId,
        part: u32,
        result: Result<Vec<PushResult>, Refusal>,
    },
    /// The queue's incarnation is not the one here; find out and try again.
    PushStale {
        task: TaskId,
        part: u32,
        batch: Box<PushBatch>,
    },

    // Pop.
    /// Claim now, from any partition of the queue or the named one.
    Claim {
        arrival: Arrival,
        queue: Name,
        group: Name,
        spec: ClaimSpec,
        mode: ClaimMode,
    },
    Claimed {
        task: TaskId,
        queue: Name,
        group: Name,
        lease_id: Option<LeaseId>,
        claims: Result<Vec<PeerClaim>, Refusal>,
        /// Since when the oldest ready partition waits there, in monotonic microseconds.
        oldest_us: Option<u64>,
    },
    /// Nothing was there for this claim.
    Empty {
        task: TaskId,
        queue: Name,
    },
    Park {
        arrival: Arrival,
        queue: Name,
        group: Name,
        spec: ClaimSpec,
        until: Deadline,
    },
    Unpark {
        arrival: Arrival,
        queue: Name,
        group: Name,
    },
    ParkPinned(Box<PinnedPark>),
    UnparkPinned {
        arrival: Arrival,
        queue: Name,
        partition: Name,
    },
    Arm {
        queue: Name,
        group: Name,
    },
    Ready {
        queue: Name,
        group: Name,
        count: u32,
        oldest_us: u64,
    },
    GiveBack {
        queue: Name,
        group: Name,
        lease_id: Option<LeaseId>,
        claims: Vec<GivenBack>,
    },
    /// The queue is gone: the parked pop answers empty.
    Unparked {
        task: TaskId,
        queue: Name,
    },

    // Ack and lease.
    Ack {
        task: TaskId,
        group: String,
        acks: Box<PeerAcks>,
    },
    Acked {
        task: TaskId,
        result: Result<Vec<(u32, AckResult)>, Refusal>,
    },
    Extend {
        task: TaskId,
        lease_id: LeaseId,
        seconds: u32,
    },
    ExtendedPart {
        task: TaskId,
        result: Result<(u32, Option<i64>), Refusal>,
    },

    // Transactions.
    /// All of it lies on this shard: do it.
    Transact {
        task: TaskId,
        transaction: TransactionId,
        share: SharedShare,
    },
    Transacted {
        task: TaskId,
        transaction: TransactionId,
        result: Result<ShareOutcome, ShareFailure>,
    },
    /// Reserve what the share touches and judge it; the sender coordinates.
    Reserve {
        transaction: TransactionId,
        share: SharedShare,
        /// With a vote for it, write it to the log, to be applied or not.
        prepare: bool,
    },
    Vote {
        transaction: TransactionId,
        result: Result<ShareOutcome, ShareFailure>,
        /// Where it was written; not durable yet.
        prepare: Option<LogPosition>,
    },
    /// That record is durable, or may never be.
    Prepared {
        transaction: TransactionId,
        result: Result<(), Refusal>,
    },
    Commit {
        transaction: TransactionId,
    },
    Abort {
        transaction: TransactionId,
    },
    /// The share is applied and can be seen.
    Applied {
        transaction: TransactionId,
    },
    /// That it is applied is durable: the commit record is not needed for it any more.
    Ended {
        transaction: TransactionId,
    },
    // Start: what became of transactions that a shard found prepared.
    Unresolved {
        transactions: Vec<TransactionId>,
        /// How far the log of the shard that asks reached when it was opened.
        extent: Extent,
    },
    /// Each with whether it was committed.
    Resolved {
        transactions: Vec<(TransactionId, bool)>,
    },
    /// The ends of all that was asked about are durable.
    AllEnded,

    // Reads over all shards.
    Read {
        task: TaskId,
        request: Box<ReadRequest>,
    },
    ReadDone {
        task: TaskId,
        result: Result<ReadPart, Refusal>,
    },

    // Reads and deletions of the operator.
    Inspect {
        task: TaskId,
        step: Box<InspectStep>,
    },
    InspectDone {
        task: TaskId,
        result: Result<Box<InspectPart>, Refusal>,
    },
}

/// A pop that waits for one partition, at that partition's shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PinnedPark {
    pub arrival: Arrival,
    pub queue: Name,
    pub partition: Name,
    pub group: Name,
    pub spec: ClaimSpec,
    pub subscription: Subscription,
    pub until: Deadline,
}

/// How a claim came about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimMode {
    /// A pop that does not wait visits this shard.
    Visit,
    /// The queue's owner sends a parked pop; with `arm`, announce the next ready partition.
    Parked {
        arm: bool,
    },
    Pinned {
        partition: Name,
        subscription: Subscription,
    },
}

/// One undelivered claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenBack {
    pub partition_id: PartitionId,
    /// Where its group stood before the claim.
    pub since: Offset,
    pub start: Offset,
    pub end: Offset,
    /// The epoch of the cursor it was claimed on.
    pub epoch: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CatalogOutcome {
    Done,
    /// A group's change, and how many partitions it touched; `None`: there was nothing to change.
    Group {
        queue: String,
        touched: Option<u64>,
    },
    Configured {
        id: [u8; 16],
        options: Box<QueueOptions>,
    },
    Deleted {
        existed: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to this size a move is a few instructions; beyond it is a call.
    #[test]
    fn a_message_is_moved_without_a_call() {
        assert!(size_of::<PeerMsg>() <= 128, "{}", size_of::<PeerMsg>());
    }

    #[test]
    fn items_of_one_target_are_one_wherever_they_stand() {
        let target = |n: u64| AckTarget { partition_id: PartitionId(n), lease: GivenLease::None };
        for targets in [3, 15, 16, 17, 18, 200] {
            let mut acks = PeerAcks::with_capacity(1);
            for round in 0..2 {
                for n in 0..targets {
                    acks.push(round, target(n), AckStatus::Completed, "t", None);
                }
            }
            let places: Vec<u32> = acks.items.iter().map(|item| item.target).collect();
            let once = || 0..targets as u32;
            assert_eq!(places, once().chain(once()).collect::<Vec<_>>(), "{targets}");
            assert_eq!(acks.targets.len() as u64, targets);
        }
    }
}

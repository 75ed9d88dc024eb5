//! What a shard can answer. Replies own what they carry: names, and slices of log buffers.

use super::error::Refusal;
use super::inspect::Inspected;
use super::options::QueueOptions;
use super::traffic::{Traffic, WalkStep};
use super::transaction::TransactionReply;
use crate::base::buf::Gather;
use crate::base::histogram::{Micros, Numbers, Sizes};
use crate::base::ids::{LeaseId, MessageId, Offset, PartitionId, SegmentId, ShardId};

#[derive(Clone, Debug)]
pub enum Reply<B> {
    /// One result per item, in request order.
    Push(Vec<PushResult>),
    Pop(PopReply<B>),
    /// One result per item, in request order.
    Ack(Vec<AckResult>),
    Transaction(TransactionReply),
    Extended(Extended),
    Configured {
        queue_id: [u8; 16],
        options: Box<QueueOptions>,
    },
    Deleted {
        existed: bool,
    },
    Group(GroupChanged),
    Queues(Vec<QueueRow>),
    /// `None`: no such queue.
    Queue(Option<Box<QueueDetail>>),
    DeadLetters {
        rows: Vec<DeadLetter<B>>,
        total: u64,
        /// The page ended early: its payloads are as large as an answer may be.
        truncated: bool,
    },
    Shards(Vec<ShardStats>),
    /// What each shard found, in their order.
    Walked(Vec<WalkStep>),
    Inspected(Box<Inspected>),
    Refused(Refusal),
}

/// Outcome of one pushed item. `id` is what an answer shows as `message_id`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PushResult {
    Queued {
        id: MessageId,
        offset: Offset,
    },
    /// The original's id (nil when retention removed it) and offset.
    Duplicate {
        id: MessageId,
        offset: Offset,
    },
    /// The id that would have been used.
    Error {
        id: MessageId,
        text: &'static str,
    },
}

impl PushResult {
    pub fn id(&self) -> MessageId {
        match self {
            Self::Queued { id, .. } | Self::Duplicate { id, .. } | Self::Error { id, .. } => *id,
        }
    }
}

#[derive(Clone, Debug)]
pub struct PopReply<B> {
    /// Empty for a discovery pop; each claim names its own.
    pub queue: String,
    pub group: String,
    /// `None` on commit-at-delivery and on an empty answer.
    pub lease_id: Option<LeaseId>,
    /// Empty: nothing was there.
    pub claims: Vec<Claim<B>>,
    /// Values chosen by the broker, echoed where the request asked for it.
    pub autopilot: Option<Autopilot>,
    pub conflation: Conflation,
}

/// What a pop's answer says about conflation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conflation {
    /// Nothing.
    #[default]
    Off,
    /// The group delivers newest messages only.
    On,
    /// The pop asked for it, and the group was registered without.
    Refused,
}

/// What became of a change of a consumer group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupChanged {
    /// Queues it happened on, in order of name. A seek of no such queue or partition: none.
    pub queues: Vec<String>,
    /// Cursors that went, or were put somewhere.
    pub partitions: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Autopilot {
    pub partitions: u32,
    pub batch: u32,
}

/// Messages `start..=end` of one partition, with every stored batch that overlaps them.
#[derive(Clone, Debug)]
pub struct Claim<B> {
    pub queue: String,
    pub partition: String,
    pub partition_id: PartitionId,
    /// Where its group stood: before `start` where the group conflates and older messages are
    /// passed over.
    pub since: Offset,
    pub start: Offset,
    pub end: Offset,
    /// The epoch of the cursor it was claimed on; a claim of an older one is not given back.
    pub epoch: u64,
    /// 1 for a first delivery.
    pub attempt: u32,
    /// Each the 25-byte batch head followed by its bytes (`model::frame`), ascending.
    pub batches: Vec<Gather<B>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AckResult {
    pub success: bool,
    /// `Some` exactly when `success` is false.
    pub error: Option<&'static str>,
    pub lease_released: bool,
    pub dead_lettered: bool,
    pub noop: bool,
    /// Of a conflating group: messages that were settled without being delivered.
    pub conflated: Option<u64>,
}

/// Answer to a lease extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extended {
    /// Partitions whose lease was extended.
    pub renewed: u32,
    /// Earliest new expiry as wall time in microseconds; `None` when nothing was renewed.
    pub expires_at_us: Option<i64>,
}

/// Message counts of a queue or a partition. `unconsumed` includes leased messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Retained messages.
    pub total: u64,
    pub unconsumed: u64,
    /// Under a live lease.
    pub processing: u64,
    pub dead_lettered: u64,
    pub retained_bytes: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.unconsumed += other.unconsumed;
        self.processing += other.processing;
        self.dead_lettered += other.dead_lettered;
        self.retained_bytes += other.retained_bytes;
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRow {
    pub id: [u8; 16],
    pub name: String,
    pub options: QueueOptions,
    pub created_at_us: i64,
    pub partitions: u64,
    pub segments: u64,
    pub counts: Counts,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueDetail {
    pub row: QueueRow,
    /// Sorted by name; at most [`QueueDetail::PARTITIONS_MAX`].
    pub partitions: Vec<PartitionRow>,
    pub truncated: bool,
}

impl QueueDetail {
    pub const PARTITIONS_MAX: usize = 1_000;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionRow {
    pub id: PartitionId,
    pub name: String,
    pub created_at_us: i64,
    pub counts: Counts,
    /// Messages any group has settled.
    pub consumed: u64,
    pub oldest_us: Option<i64>,
    pub newest_us: Option<i64>,
}

/// A dead letter. The message's bytes are one frame (`model::frame`).
#[derive(Clone, Debug)]
pub struct DeadLetter<B> {
    pub id: [u8; 16],
    pub queue: String,
    pub partition: String,
    pub partition_id: PartitionId,
    pub group: String,
    pub offset: Offset,
    /// When the message was pushed / when it was filed, in microseconds of wall time.
    pub created_at_us: i64,
    pub failed_at_us: i64,
    pub error: String,
    pub retry_count: u32,
    pub frame: Gather<B>,
}

/// One shard's counters and condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardStats {
    pub shard: ShardId,
    pub pushed: u64,
    pub duplicates: u64,
    pub popped: u64,
    pub acked: u64,
    pub dead_lettered: u64,
    pub queues: u64,
    pub partitions: u64,
    pub parked: u64,
    pub leases: u64,
    pub segments: u64,
    pub active_segment: SegmentId,
    pub appended_bytes: u64,
    pub syncs: u64,
    pub dedup_ids: u64,
    pub claims: u64,
    pub empty_claims: u64,
    /// Client-compressed groups stored as they came / written anew; batches that the broker
    /// compressed by itself.
    pub groups_kept: u64,
    pub groups_recoded: u64,
    pub batches_compressed: u64,
    pub traffic: Traffic,
    /// Partitions under a lease, once for each group.
    pub leased_partitions: u64,
    /// What the log holds, and what of it is not durable yet.
    pub log_bytes: u64,
    pub pending_bytes: u64,
    pub written_bytes: u64,
    pub writes: u64,
    /// Operations that read the log, and what they read.
    pub reads: u64,
    pub read_bytes: u64,
    /// From the start of a commit to its end, and the last one.
    pub commit_us: Micros,
    pub last_commit_us: u64,
    /// Records and bytes of a commit.
    pub commit_records: Numbers,
    pub commit_bytes: Sizes,
    /// Why the shard takes no writes, if it does not.
    pub fault: Option<String>,
    pub storage_full: bool,
}

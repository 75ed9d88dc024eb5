//! What a client can ask of a shard. Commands borrow from the request they were read from.

use std::borrow::Cow;

use super::inspect::InspectRequest;
use super::options::OptionsPatch;
use super::peer::PushPiece;
use super::traffic::Walk;
use super::transaction::TransactionRequest;
use crate::base::ids::{Offset, PartitionId};

/// The group of a pop or an ack that names none.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";
/// The partition of a push that names none.
pub const DEFAULT_PARTITION: &str = "Default";

/// One request, checked as far as it can be without the broker's state.
#[derive(Debug)]
pub enum Command<'a> {
    Push {
        items: &'a [PushItem<'a>],
        /// Stamped into every message: who pushes, as the broker knows it and not as the body says.
        producer: Option<&'a str>,
    },
    /// Frames that the client built, checked and stamped: one group for each run of one partition.
    PushFrames(Vec<FrameGroup<'a>>),
    Pop(PopRequest<'a>),
    Ack(&'a AckRequest<'a>),
    Transact(TransactionRequest<'a>),
    ExtendLease {
        lease_id: &'a str,
        seconds: u32,
    },
    Configure(ConfigureRequest<'a>),
    DeleteQueue {
        queue: &'a str,
    },
    Group(GroupRequest<'a>),
    Read(ReadRequest),
    Inspect(InspectRequest),
}

/// One item of a push, in request order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushItem<'a> {
    pub queue: Cow<'a, str>,
    /// [`DEFAULT_PARTITION`] when the item named none.
    pub partition: Cow<'a, str>,
    /// `None`: the broker mints one, the text of the message id.
    pub transaction_id: Option<Cow<'a, str>>,
    /// One JSON document, byte for byte as it came.
    pub payload: &'a [u8],
}

/// Neighbouring messages of a push that go to one partition, framed by the client.
#[derive(Debug)]
pub struct FrameGroup<'a> {
    pub queue: &'a str,
    /// [`DEFAULT_PARTITION`] when the group named none.
    pub partition: &'a str,
    pub piece: PushPiece,
}

/// Where a pop looks for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PopTarget<'a> {
    /// Any partition of the queue.
    Queue(Cow<'a, str>),
    Partition {
        queue: Cow<'a, str>,
        partition: Cow<'a, str>,
    },
    /// Any queue with these labels; an empty label matches all. Never both empty.
    Labels {
        namespace: Cow<'a, str>,
        task: Cow<'a, str>,
    },
}

/// Where a group that meets a queue for the first time starts to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subscription {
    /// From the oldest retained message.
    All,
    /// From messages created at or after the moment of registration.
    New,
    /// From messages created at or after this wall time, in microseconds.
    From(i64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PopRequest<'a> {
    pub target: PopTarget<'a>,
    /// [`QUEUE_MODE`] when the pop named none.
    pub group: Cow<'a, str>,
    /// Messages over all claims. `None`: the default, or what autopilot chooses.
    pub batch: Option<u32>,
    /// Partitions claimed at most. `None`: the default, or what autopilot chooses.
    pub partitions: Option<u32>,
    /// Commit at delivery, take no lease.
    pub auto_ack: bool,
    /// Park this long when there is nothing. `None`: answer at once.
    pub wait_ms: Option<u64>,
    /// Overrides the queue's lease time.
    pub lease_seconds: Option<u32>,
    pub subscription: Subscription,
    /// The broker chooses what is not given, and says what it chose.
    pub autopilot: bool,
    /// Ask for the newest message of each partition only, on the group's first contact.
    pub conflation: bool,
}

/// A change of a consumer group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRequest<'a> {
    pub group: &'a str,
    /// `None`: every queue that knows the group.
    pub queue: Option<&'a str>,
    /// A seek of one partition only.
    pub partition: Option<&'a str>,
    pub change: GroupChange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupChange {
    Seek(SeekTo),
    /// Its cursors go; with `registration`, what its first contact stored goes too.
    Delete {
        registration: bool,
    },
    /// Moves the instant it subscribed from, in microseconds of wall time.
    Subscribe(i64),
}

/// Where a seek puts a cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    /// Behind everything stored.
    End,
    /// Before the first message created at or after this wall time in microseconds; behind
    /// everything if there is none.
    Time(i64),
}

/// What a client says of a delivered message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AckStatus {
    Completed,
    Retry,
    Failed,
    /// Straight to the dead letters.
    DeadLetter,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AckItem<'a> {
    pub transaction_id: Cow<'a, str>,
    /// `None` when the text was no partition id at all: the item fails, the request does not.
    pub partition_id: Option<PartitionId>,
    pub status: AckStatus,
    /// Empty: no fence.
    pub lease_id: Cow<'a, str>,
    pub error: Option<Cow<'a, str>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AckRequest<'a> {
    pub group: Cow<'a, str>,
    pub items: &'a [AckItem<'a>],
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigureRequest<'a> {
    pub queue: Cow<'a, str>,
    pub options: OptionsPatch,
}

/// Reads that look at every shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadRequest {
    /// One row per queue.
    Queues,
    /// One queue with its partitions.
    Queue {
        queue: String,
    },
    DeadLetters(DeadLetterQuery),
    /// Counters of every shard, for `/metrics` and `/health`.
    Shards,
    /// One step of a walk.
    Walk(Walk),
}

/// Filters of the dead letter listing; `None` matches all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadLetterQuery {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub group: Option<String>,
    /// Failed at or after / before this wall time in microseconds.
    pub from_us: Option<i64>,
    pub to_us: Option<i64>,
    pub limit: usize,
    pub offset: usize,
}

/// Names one message of one partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MessageAddress {
    pub partition: PartitionId,
    pub offset: Offset,
}

//! What an operator can ask of the stored data, and what comes back: plain, owned, fit to cross
//! cores. A listing is found first by its keys, over all shards; only its page is then read.

use super::command::DeadLetterQuery;
use super::options::QueueOptions;
use super::peer::{PeerDeadLetter, QueuePart, Registration};
use super::reply::PartitionRow;
use super::transaction::DeadLetterId;
use crate::base::ids::{LeaseId, Offset, PartitionId, ShardId};

/// One request of an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InspectRequest {
    Messages(MessageQuery),
    Message {
        partition: PartitionId,
        transaction_id: String,
    },
    DeadLetters(DeadLetterQuery),
    /// One row with its message, answered as a listing of none or one.
    DeadLetter(DeadLetterAddress),
    /// Rows of one message's address, all groups'.
    DeleteDeadLetters {
        partition: PartitionId,
        transaction_id: String,
    },
    /// Rows of one queue, or of one group in it.
    PurgeDeadLetters {
        queue: String,
        group: Option<String>,
    },
    /// One queue with the first of its partitions.
    Queue {
        queue: String,
    },
    Loads(LoadQuery),
    /// One row for each group on each queue.
    Groups,
    /// Where groups stand in partitions.
    Cursors(CursorQuery),
    Why {
        queue: String,
        partition: String,
        group: String,
    },
    RecordTrace(NewTrace),
    Traces(TraceQuery),
    TraceNames(Page),
}

/// How a dead letter is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeadLetterAddress {
    Id(DeadLetterId),
    /// Of several groups' rows the newest.
    Message {
        partition: PartitionId,
        transaction_id: String,
    },
}

/// What a listing's second step reads: the page's rows on one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InspectStep {
    Find(InspectRequest),
    MessageRows(Vec<MessageKey>),
    DeadLetterRows(Vec<DeadLetterKey>),
    TraceRows(Vec<TraceKey>),
    /// One trace for each name, to learn its text.
    TraceNameRows(Vec<u64>),
}

/// One shard's part of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InspectPart {
    MessageKeys {
        keys: Vec<MessageKey>,
        mode: ReaderMode,
    },
    /// `cut`: the first of the asked that did not fit.
    MessageRows {
        rows: Vec<MessageRow>,
        bodies: Bodies,
        cut: Option<MessageKey>,
    },
    Message(Option<Box<MessageDetail>>),
    DeadLetterKeys {
        keys: Vec<DeadLetterKey>,
        total: u64,
    },
    DeadLetterRows {
        rows: Vec<PeerDeadLetter>,
        cut: Option<DeadLetterKey>,
    },
    Deleted(u64),
    Queue {
        part: Option<QueuePart>,
        partitions: Vec<PartitionRow>,
        truncated: bool,
    },
    Loads(Loads),
    Groups(Vec<GroupRow>),
    Cursors {
        rows: Vec<CursorRow>,
        truncated: bool,
    },
    Why(Box<Why>),
    Parked(u64),
    Trace([u8; 16]),
    TraceKeys {
        keys: Vec<TraceKey>,
        total: u64,
    },
    Traces {
        rows: Vec<TraceRow>,
        cut: Option<TraceKey>,
    },
    TraceNames {
        shard: ShardId,
        names: Vec<TraceName>,
    },
    TraceNameTexts(Vec<(u64, String)>),
    /// What was asked for is not there.
    Missing(Missing),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    Queue,
    Partition,
    Group,
}

/// The whole answer, as the shard of the client joined it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inspected {
    Messages { rows: Vec<MessageRow>, bodies: Bodies, mode: ReaderMode, truncated: bool },
    Message(Option<Box<MessageDetail>>),
    Deleted(u64),
    Loads(Loads),
    Groups(Vec<GroupRow>),
    Cursors { rows: Vec<CursorRow>, truncated: bool },
    Why(Box<Why>),
    Trace([u8; 16]),
    Traces { rows: Vec<TraceRow>, total: u64, truncated: bool },
    TraceNames { rows: Vec<(TraceName, String)>, total: u64 },
    Missing(Missing),
}

/// A page of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Page {
    pub limit: usize,
    pub offset: usize,
}

impl Page {
    /// Rows up to the page's end: what every shard has to offer.
    pub fn reach(self) -> usize {
        self.offset.saturating_add(self.limit)
    }
}

// ---- messages

/// Filters of the message listing; `None` matches all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageQuery {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    pub status: StatusFilter,
    /// Created at or after / before, in microseconds of wall time. `from_us` is `None` for the
    /// hour before the request, `to_us` for everything up to it.
    pub from_us: Option<i64>,
    pub to_us: Option<i64>,
    pub page: Page,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusFilter {
    Any,
    Only(MessageStatus),
    /// A status that clients know and no message here has.
    Nothing,
}

/// What has become of a message, over all readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageStatus {
    Pending,
    Processing,
    Completed,
    DeadLetter,
}

impl MessageStatus {
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::DeadLetter => "dead_letter",
        }
    }
}

/// Newest first is the greatest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MessageKey {
    pub created_at_us: i64,
    pub offset: Offset,
    pub partition: PartitionId,
}

/// Which kinds of readers the listed queues have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReaderMode {
    pub queue_mode: bool,
    pub groups: u64,
}

/// Stored batches that rows refer to, each the 25-byte head and its bytes (`model::frame`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bodies(pub Vec<Vec<u8>>);

/// A message's place in an answer's [`Bodies`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyPlace {
    pub body: u32,
    pub index: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageRow {
    pub key: MessageKey,
    pub queue: String,
    pub partition: String,
    pub namespace: String,
    pub task: String,
    pub priority: i64,
    pub status: MessageStatus,
    /// As the readers without a group see it.
    pub queue_status: MessageStatus,
    pub consumed_by: u64,
    pub groups: u64,
    pub lease_expires_us: Option<i64>,
    pub segment: u64,
    pub place: BodyPlace,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageDetail {
    pub key: MessageKey,
    pub queue: String,
    pub partition: String,
    pub options: QueueOptions,
    pub status: MessageStatus,
    /// Of its newest dead letter.
    pub error: Option<String>,
    pub retry_count: u32,
    pub mode: ReaderMode,
    pub readers: Vec<ReaderRow>,
    /// The stored batch, and the message's place in it.
    pub body: Vec<u8>,
    pub index: u32,
}

/// One group's view of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReaderRow {
    pub group: String,
    /// The last settled offset; -1: none.
    pub committed: i64,
    pub consumed: bool,
    pub lease_expires_us: Option<i64>,
}

// ---- dead letters

/// Newest failure first is the greatest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeadLetterKey {
    pub failed_at_us: i64,
    pub id: [u8; 16],
    pub partition: PartitionId,
}

// ---- partitions

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadQuery {
    /// `None`: all queues.
    pub queue: Option<String>,
    /// Counts for this reader alone; `None`: for the slowest.
    pub group: Option<String>,
    pub order: LoadOrder,
    pub page: Page,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadOrder {
    /// Most pending first, then by name.
    Pending,
    Name,
}

/// Sums over all partitions walked, and the page's rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loads {
    pub sums: LoadSums,
    pub rows: Vec<PartitionLoad>,
    pub walked: u64,
    pub truncated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadSums {
    pub pending: u64,
    pub processing: u64,
    pub partitions_pending: u64,
    pub partitions_ready: u64,
    /// The group that is asked about gets the newest message of a partition only.
    pub conflation: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionLoad {
    pub queue: String,
    pub partition: String,
    pub id: PartitionId,
    /// Not settled; with what is leased.
    pub pending: u64,
    pub processing: u64,
    /// When the oldest message that is not settled was created.
    pub oldest_us: Option<i64>,
    pub retained_bytes: u64,
}

impl PartitionLoad {
    /// Where it stands in an order.
    pub fn key(&self, order: LoadOrder) -> (std::cmp::Reverse<u64>, String, String) {
        let pending = if order == LoadOrder::Pending { self.pending } else { 0 };
        (std::cmp::Reverse(pending), self.queue.clone(), self.partition.clone())
    }
}

// ---- consumer groups

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRow {
    pub group: String,
    pub queue: String,
    /// Partitions it has a written cursor on.
    pub cursors: u64,
    pub partitions_behind: u64,
    pub behind: u64,
    /// When the oldest message it has not settled was created.
    pub oldest_us: Option<i64>,
    pub consumed: bool,
    pub registration: Option<Registration>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CursorQuery {
    /// `None`: all groups.
    pub group: Option<String>,
    pub queue: Option<String>,
    pub order: CursorOrder,
    pub page: Page,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CursorOrder {
    /// By queue, then partition.
    Name,
    /// Only those whose oldest message not settled is older than this many seconds, the oldest
    /// first.
    Lag { seconds: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CursorRow {
    pub group: String,
    pub queue: String,
    pub partition: String,
    pub partition_id: PartitionId,
    pub next: Offset,
    pub behind: u64,
    pub oldest_us: Option<i64>,
    /// When it last settled a whole batch, as long as that is remembered.
    pub consumed_at_us: Option<i64>,
    pub leased: bool,
    /// The group gets the newest message only.
    pub conflation: bool,
}

impl CursorRow {
    /// Where it stands in an order.
    pub fn key(&self, order: CursorOrder) -> (i64, String, String, String) {
        let oldest = match order {
            CursorOrder::Name => 0,
            CursorOrder::Lag { .. } => self.oldest_us.unwrap_or(i64::MAX),
        };
        (oldest, self.queue.clone(), self.partition.clone(), self.group.clone())
    }
}

// ---- why a partition does not deliver

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    pub partition_id: PartitionId,
    pub state: WhyState,
    /// First offset the group has not settled; `None`: its start rule leaves it nothing here.
    pub next: Option<Offset>,
    pub log_start: Offset,
    /// First offset that is not durable yet.
    pub high_watermark: Offset,
    /// Delivery attempts of the message at `next`, and what its failures have cost.
    pub attempts: u32,
    pub retry_count: u32,
    pub retry_limit: u32,
    /// Pops that wait for any partition of the queue / for this one.
    pub parked: u64,
    pub parked_here: u64,
}

/// The one thing that decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WhyState {
    /// Everything there is settled.
    Nothing,
    Leased {
        id: LeaseId,
        first: Offset,
        last: Offset,
        since_us: i64,
        until_us: i64,
    },
    /// The queue delays its messages.
    Delayed {
        until_us: i64,
    },
    /// The queue waits for the partition to be quiet.
    Window {
        until_us: i64,
    },
    /// Deliverable now, but only the newest: the others are settled by its ack.
    Conflated {
        first: Offset,
        newest: Offset,
    },
    /// A claim that commits at delivery is being read, or a transaction holds the group's place.
    Reserved {
        first: Offset,
        last: Offset,
    },
    /// The group starts behind what is there.
    SeededAfter {
        start_us: i64,
        newest_us: i64,
    },
    /// What is next could not be read.
    Damaged {
        first: Offset,
        last: Offset,
        error: String,
    },
    /// Deliverable now, for another time.
    Retrying(Deliverable),
    Ready(Deliverable),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deliverable {
    pub messages: u64,
    /// Its place among the ready partitions, the next one 0. `None`: it is found by the next
    /// claim's look at partitions never looked at, or stands too far back to be counted.
    pub place: Option<u64>,
    pub ready: u64,
}

// ---- traces

/// A trace event as it came, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTrace {
    pub partition: PartitionId,
    pub transaction_id: String,
    pub group: String,
    pub event_type: String,
    pub worker: Option<String>,
    pub names: Vec<String>,
    /// One JSON document.
    pub data: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceQuery {
    pub of: TraceSubject,
    pub page: Page,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TraceSubject {
    Message { partition: PartitionId, transaction_id: String },
    Name(String),
}

/// Newest first is the greatest first. `number` counts the traces of one shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TraceKey {
    pub created_at_us: i64,
    pub number: u64,
    pub shard: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceRow {
    pub key: TraceKey,
    pub id: [u8; 16],
    pub queue: String,
    pub partition: String,
    pub trace: NewTrace,
}

/// One name's traces on one shard, or on all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceName {
    pub hash: u64,
    pub traces: u64,
    pub messages: u64,
    pub last_us: i64,
}

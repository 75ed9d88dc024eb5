//! Transactions: several acks and pushes that happen together or not at all, as a client asks
//! for them and as shards speak of them.

use std::borrow::Cow;
use std::sync::Arc;

use super::command::{AckItem, FrameGroup, PushItem};
use super::error::Refusal;
use super::peer::{Name, PeerAcks, PushBatch};
use super::reply::PushResult;
use crate::base::ids::{MessageId, Offset, PartitionId};

/// A dead letter's row: a UUID of version 7.
pub type DeadLetterId = [u8; 16];

/// One attempt of a transaction: a UUID of version 7, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransactionId(pub [u8; 16]);

/// What a client wants to happen together.
#[derive(Debug, Default)]
pub struct TransactionRequest<'a> {
    pub acks: Vec<TransactionAck<'a>>,
    pub items: Vec<TransactionItem<'a>>,
    /// Messages that the client framed; they count behind `items`.
    pub frames: Vec<FrameGroup<'a>>,
    /// Dead letters that are taken out of the listing: their ids, and the partitions they are of.
    pub takes: Vec<(DeadLetterId, PartitionId)>,
    /// Stamped into `items`, and into `frames` already.
    pub producer: Option<&'a str>,
}

/// An ack with the group whose cursor it moves. Its lease is the one that fences it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionAck<'a> {
    pub group: Cow<'a, str>,
    pub item: AckItem<'a>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionItem<'a> {
    pub item: PushItem<'a>,
    /// Kept with the message and shown by pops.
    pub trace_id: Option<[u8; 16]>,
}

/// The one answer to a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionReply {
    pub id: TransactionId,
    pub outcome: Result<Committed, RolledBack>,
}

/// Everything happened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Committed {
    /// For each ack, whether its message was filed as a dead letter.
    pub acks: Vec<bool>,
    /// For each message, items before frames. A duplicate is a repeat inside the transaction.
    pub pushes: Vec<PushResult>,
}

/// Nothing happened, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RolledBack {
    pub reason: Rollback,
    pub text: Cow<'static, str>,
    /// Where a message with the pushed id is stored already.
    pub original: Option<(MessageId, Offset)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rollback {
    /// A dead letter is not there any more.
    Gone,
    /// Lease wrong or expired, message unknown, outside its batch or settled.
    RejectedAck,
    /// A pushed id is stored already.
    Duplicate,
    /// A message takes more than one append may.
    TooLarge,
}

impl Rollback {
    /// The `reason` of the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::RejectedAck => "rejected_ack",
            Self::Duplicate => "duplicate",
            Self::TooLarge => "too_large",
        }
    }
}

/// One shard's share of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Acks by group, in order of appearance. An item's index is the ack's place in the request.
    pub acks: Vec<(String, PeerAcks)>,
    pub pushes: Vec<SharePush>,
    pub takes: Vec<DeadLetterId>,
}

/// The messages of a transaction for one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharePush {
    /// Place of its first message among all pushes of the request.
    pub first: u32,
    pub batch: Box<PushBatch>,
}

/// What a shard would do, or has done, for its share.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShareOutcome {
    /// Place in the request, and whether its message is filed.
    pub acks: Vec<(u32, bool)>,
    /// For each of the share's pushes, one result a message.
    pub pushes: Vec<Vec<PushResult>>,
    /// The state of queue-level things that this was judged under. Two shards that judged one
    /// queue under different ones must judge again.
    pub marks: Vec<Mark>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark {
    pub queue: Name,
    /// A group's epoch; without one the queue's incarnation.
    pub group: Option<Name>,
    pub number: u64,
}

/// Why a share cannot be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShareFailure {
    /// A guard failed: the least place decides what the client is told.
    RolledBack {
        place: GuardPlace,
        why: RolledBack,
    },
    /// The queue's incarnation is not the one here: find out and try again.
    Stale {
        queue: String,
    },
    Refused(Refusal),
}

/// The order in which guards count: dead letters, acks, pushes, each in request order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GuardPlace {
    Take,
    Ack(u32),
    Push(u32),
}

/// A share on its way; the coordinator keeps it for another attempt.
pub type SharedShare = Arc<Share>;

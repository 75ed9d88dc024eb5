//! Requests that wait at the shard their client is connected to, by [`TaskId`].

use super::ack::AckTask;
use super::groups::GroupTask;
use super::inspect::InspectTask;
use super::lease::ExtendTask;
use super::pop::PopTask;
use super::push::PushTask;
use super::read::ReadTask;
use super::shard::{Deferred, Shard};
use super::transact::TransactionTask;
use crate::base::buf::IoBuf;
use crate::base::ids::Token;
use crate::model::error::Refusal;
use crate::model::peer::{PeerMsg, TaskId};
use crate::model::reply::Reply;
use crate::model::transaction::ShareFailure;

/// What waits, by operation.
#[derive(Debug)]
pub(super) enum Task<B> {
    Push(PushTask),
    Pop(PopTask<B>),
    Ack(AckTask),
    Transaction(Box<TransactionTask>),
    Extend(ExtendTask),
    /// A configure or delete, answered as soon as the owner says so.
    Catalog(Token),
    Group(Box<GroupTask>),
    Read(Box<ReadTask>),
    Inspect(Box<InspectTask>),
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn new_task(&mut self, task: Task<B>) -> TaskId {
        let id = TaskId(self.new_id());
        self.tasks.insert(id, task);
        id
    }

    /// Answers once everything this shard has appended so far is durable.
    pub(super) fn reply_durable(&mut self, token: Token, reply: Reply<B>) {
        self.commit.push(self.log.appended(), Deferred::Reply { token, reply });
    }
}

/// The answer a peer gets in place of `msg` when the log below it failed. `None` for messages
/// nobody waits for.
pub(super) fn failed(msg: PeerMsg, refusal: &Refusal) -> Option<PeerMsg> {
    let refusal = refusal.clone();
    Some(match msg {
        PeerMsg::Pushed { task, part, .. } => PeerMsg::Pushed { task, part, result: Err(refusal) },
        PeerMsg::Claimed { task, queue, group, lease_id, oldest_us, .. } => {
            PeerMsg::Claimed { task, queue, group, lease_id, claims: Err(refusal), oldest_us }
        }
        PeerMsg::Empty { task, queue } => PeerMsg::Empty { task, queue },
        PeerMsg::Acked { task, .. } => PeerMsg::Acked { task, result: Err(refusal) },
        PeerMsg::Transacted { task, transaction, .. } => {
            let result = Err(ShareFailure::Refused(refusal));
            PeerMsg::Transacted { task, transaction, result }
        }
        PeerMsg::Vote { transaction, .. } => {
            let result = Err(ShareFailure::Refused(refusal));
            PeerMsg::Vote { transaction, result, prepare: None }
        }
        PeerMsg::Prepared { transaction, .. } => {
            PeerMsg::Prepared { transaction, result: Err(refusal) }
        }
        PeerMsg::ExtendedPart { task, .. } => PeerMsg::ExtendedPart { task, result: Err(refusal) },
        PeerMsg::ReadDone { task, .. } => PeerMsg::ReadDone { task, result: Err(refusal) },
        PeerMsg::InspectDone { task, .. } => PeerMsg::InspectDone { task, result: Err(refusal) },
        PeerMsg::CatalogDone { task, .. } => PeerMsg::CatalogDone { task, result: Err(refusal) },
        PeerMsg::GroupFound { task, .. } => PeerMsg::GroupFound { task, result: Err(refusal) },
        PeerMsg::PartitionSought { task, .. } => {
            PeerMsg::PartitionSought { task, result: Err(refusal) }
        }
        _ => return None,
    })
}

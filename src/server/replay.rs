//! Replay of a dead letter: one transaction that takes the row out and pushes its message again.
//! Its transaction id comes from the row, so sent twice it happens once.

use std::rc::Rc;

use super::answer::Answer;
use super::node::Node;
use super::operate::unexpected;
use super::shard::ShardHandle;
use crate::base::uuid;
use crate::http::{Method, Request};
use crate::model::command::{Command, PushItem};
use crate::model::error::Refusal;
use crate::model::inspect::{DeadLetterAddress, InspectRequest};
use crate::model::reply::{DeadLetter, Reply};
use crate::model::transaction::{
    Rollback, RolledBack, TransactionItem, TransactionReply, TransactionRequest,
};
use crate::proto::{dlq, messages};

/// The row that the rest of a path names. `None`: no such route.
pub fn find<'a>(method: Method, path: &[&'a str]) -> Option<ReplayRoute<'a>> {
    match (method, path) {
        (Method::Post, ["dlq", id, "replay"]) => Some(ReplayRoute::Row(id)),
        (Method::Post, ["messages", partition, id, "retry"]) => {
            Some(ReplayRoute::Message(partition, id))
        }
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayRoute<'a> {
    Row(&'a str),
    /// By partition id and transaction id.
    Message(&'a str, &'a str),
}

impl ReplayRoute<'_> {
    fn address(self) -> Option<DeadLetterAddress> {
        match self {
            Self::Row(id) => uuid::parse(id).map(DeadLetterAddress::Id),
            Self::Message(partition, id) => {
                let (partition, transaction_id) =
                    (messages::partition_id(partition)?, id.to_owned());
                Some(DeadLetterAddress::Message { partition, transaction_id })
            }
        }
    }
}

pub(super) async fn replay(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    route: ReplayRoute<'_>,
    request: &Request,
) -> Result<Answer, Refusal> {
    let destination = dlq::decode_destination(&request.body)?;
    let Some(address) = route.address() else { return Ok(gone()) };
    let read = Command::Inspect(InspectRequest::DeadLetter(address));
    let row = match shard.handle(read).await {
        Reply::DeadLetters { mut rows, .. } => rows.pop(),
        other => return Err(unexpected(&other)),
    };
    let Some(row) = row else { return Ok(gone()) };
    let replay = dlq::replay_of(&row, &mut node.opener())?;
    let queue = destination.queue.unwrap_or_else(|| row.queue.clone());
    let partition = destination.partition.unwrap_or_else(|| row.partition.clone());
    let transaction = TransactionRequest {
        items: vec![TransactionItem {
            item: PushItem {
                queue: queue.as_str().into(),
                partition: partition.as_str().into(),
                transaction_id: Some(replay.transaction_id.as_str().into()),
                payload: &replay.payload,
            },
            trace_id: None,
        }],
        takes: vec![(row.id, row.partition_id)],
        producer: replay.producer.as_deref(),
        ..TransactionRequest::default()
    };
    match shard.handle(Command::Transact(transaction)).await {
        Reply::Transaction(reply) => Ok(show(&row, &replay, (&queue, &partition), &reply)),
        other => Err(unexpected(&other)),
    }
}

fn show<B: crate::base::buf::IoBuf>(
    row: &DeadLetter<B>,
    replay: &dlq::Replay,
    home: (&str, &str),
    reply: &TransactionReply,
) -> Answer {
    use crate::model::reply::PushResult::{Duplicate, Error, Queued};
    let pushed = match &reply.outcome {
        Ok(committed) => committed.pushes.first().and_then(|pushed| match pushed {
            Queued { id, offset } | Duplicate { id, offset } => Some((true, *id, *offset)),
            Error { .. } => None,
        }),
        Err(RolledBack { reason: Rollback::Gone, .. }) => return gone(),
        Err(RolledBack { original, .. }) => original.map(|(id, offset)| (false, id, offset)),
    };
    match (pushed, &reply.outcome) {
        (Some(pushed), _) => {
            Answer::json(200, |out| dlq::encode_replayed(row, replay, home, pushed, out))
        }
        (None, Err(why)) => {
            let (reason, text) = (why.reason.word(), &why.text);
            Answer::json(409, |out| dlq::encode_not_replayed(reason, text, out))
        }
        (None, Ok(_)) => gone(),
    }
}

fn gone() -> Answer {
    Answer::json(404, dlq::encode_gone)
}

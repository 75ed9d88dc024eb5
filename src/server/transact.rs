//! The transaction route: two forms of body, one answer.

use std::rc::Rc;

use super::answer::Answer;
use super::auth::{self, Caller};
use super::node::Node;
use super::operate::{is_binary, read_groups, unexpected};
use super::shard::ShardHandle;
use crate::http::Request;
use crate::model::command::Command;
use crate::model::error::Refusal;
use crate::model::reply::Reply;
use crate::proto::push;
use crate::proto::transact::{self, Framed, Transaction, Unusable};

pub(super) async fn transact(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    request: &Request,
    caller: Option<&Caller>,
) -> Result<Answer, Refusal> {
    let producer = auth::producer(caller)?;
    let transaction = match Framed::read(&request.body, producer) {
        Some(framed) => read_framed(node, framed).await,
        None if is_binary(request) => {
            Err(Unusable::Malformed("a binary transaction begins with QTB1".into()))
        }
        None => transact::decode(&request.body),
    };
    let mut transaction = match transaction {
        Ok(transaction) => transaction,
        Err(Unusable::Refused(refusal)) => return Err(refusal),
        Err(Unusable::Malformed(text)) => return Ok(bad_request(400, &text)),
        Err(Unusable::Senseless(text)) => return Ok(bad_request(200, text)),
    };
    push::check_stamps(transaction.request.items.len(), producer)?;
    transaction.request.producer = producer;
    let labels = transaction.labels();
    match shard.handle(Command::Transact(transaction.request)).await {
        Reply::Transaction(reply) => {
            Ok(Answer::json(200, |out| transact::encode(&labels, &reply, out)))
        }
        other => Err(unexpected(&other)),
    }
}

async fn read_framed<'a>(
    node: &Node,
    framed: Result<Framed<'a>, Unusable>,
) -> Result<Transaction<'a>, Unusable> {
    let Framed { mut transaction, mut groups } = framed?;
    let groups = read_groups(node, &mut groups).await.map_err(Unusable::of)?;
    transaction.add_groups(groups)?;
    Ok(transaction)
}

fn bad_request(status: u16, text: &str) -> Answer {
    Answer::json(status, |out| transact::encode_failure(None, "bad_request", text, out))
}

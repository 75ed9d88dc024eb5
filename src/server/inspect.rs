//! The operator's routes: reads of what is stored, dead letters, traces.

use std::rc::Rc;

use super::answer::{Answer, JSON};
use super::node::Node;
use super::operate::{query, queue_rows, unexpected};
use super::replay::{self, ReplayRoute};
use super::shard::ShardHandle;
use crate::http::{Method, Request};
use crate::model::command::Command;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::inspect::{InspectRequest, Inspected, LoadQuery, Loads, Missing};
use crate::model::reply::Reply;
use crate::proto::query::Query;
use crate::proto::{dlq, group_listing, loads, messages, resources, traces, why};

/// What an operator asks for. Names borrow from the request's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InspectRoute<'a> {
    Messages,
    /// By partition id and transaction id.
    Message(&'a str, &'a str),
    DeleteMessage(&'a str, &'a str),
    PurgeDeadLetters,
    Depth(&'a str),
    Sizes(&'a str),
    Partitions,
    QueueStatuses,
    QueueStatus(&'a str),
    Groups,
    Group(&'a str),
    LaggingGroups,
    Why,
    RecordTrace,
    TraceNames,
    TracesByName(&'a str),
    Traces(&'a str, &'a str),
    Replay(ReplayRoute<'a>),
}

pub fn find<'a>(method: Method, path: &[&'a str]) -> Option<InspectRoute<'a>> {
    use InspectRoute as R;
    use Method::{Delete, Get, Head, Post};
    let ["api", "v1", path @ ..] = path else { return None };
    Some(match (method, path) {
        (Get | Head, ["messages"]) => R::Messages,
        (Get | Head, ["messages", partition, id]) => R::Message(partition, id),
        (Delete, ["messages", partition, id]) => R::DeleteMessage(partition, id),
        (Delete, ["dlq"]) => R::PurgeDeadLetters,
        (Get | Head, ["resources", "queues", queue, "depth"]) => R::Depth(queue),
        (Get | Head, ["resources", "queues", queue, "sizes"]) => R::Sizes(queue),
        (Get | Head, ["resources", "partitions"]) => R::Partitions,
        (Get | Head, ["status", "queues"]) => R::QueueStatuses,
        (Get | Head, ["status", "queues", queue]) => R::QueueStatus(queue),
        (Get | Head, ["consumer-groups"]) => R::Groups,
        (Get | Head, ["consumer-groups", "lagging"]) => R::LaggingGroups,
        (Get | Head, ["consumer-groups", group]) => R::Group(group),
        (Get | Head, ["why"]) => R::Why,
        (Post, ["traces"]) => R::RecordTrace,
        (Get | Head, ["traces", "names"]) => R::TraceNames,
        (Get | Head, ["traces", "by-name", name]) => R::TracesByName(name),
        (Get | Head, ["traces", partition, id]) => R::Traces(partition, id),
        _ => return replay::find(method, path).map(R::Replay),
    })
}

pub async fn answer(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    route: InspectRoute<'_>,
    request: &Request,
) -> Result<Answer, Refusal> {
    let query = query(&request.target)?;
    match route {
        InspectRoute::Messages => list_messages(node, shard, &query).await,
        InspectRoute::Message(partition, id) => show_message(node, shard, partition, id).await,
        InspectRoute::DeleteMessage(partition, id) => delete_message(shard, partition, id).await,
        InspectRoute::PurgeDeadLetters => purge(shard, &query).await,
        InspectRoute::Replay(route) => replay::replay(node, shard, route, request).await,
        InspectRoute::Depth(queue) => {
            let wanted = loads::decode_depth(queue, &query);
            let found = read_loads(shard, wanted.clone()).await?;
            Ok(Answer::json(200, |out| loads::encode_depth(&wanted, &found, out)))
        }
        InspectRoute::Sizes(queue) => {
            let wanted = loads::decode_sizes(queue, &query);
            let found = read_loads(shard, wanted.clone()).await?;
            Ok(Answer::json(200, |out| loads::encode_sizes(&wanted, &found, out)))
        }
        InspectRoute::Partitions => {
            let found = read_loads(shard, loads::decode_partitions(&query)).await?;
            let now_us = shard.now().wall_us;
            Ok(Answer::json(200, |out| loads::encode_partitions(&found, now_us, out)))
        }
        InspectRoute::QueueStatuses => {
            let rows = queue_rows(shard).await?;
            Ok(Answer::json(200, |out| resources::encode_queues(rows, &query, out)))
        }
        InspectRoute::QueueStatus(queue) => {
            let detail = super::operate::read_queue(shard, queue).await?;
            Ok(Answer::json(200, |out| resources::encode_queue_status(&detail, out)))
        }
        InspectRoute::Groups | InspectRoute::Group(_) | InspectRoute::LaggingGroups => {
            show_groups(shard, route, &query).await
        }
        InspectRoute::Why => explain(shard, &query).await,
        InspectRoute::RecordTrace => record_trace(shard, &request.body).await,
        InspectRoute::TraceNames | InspectRoute::TracesByName(_) | InspectRoute::Traces(..) => {
            show_traces(shard, route, &query).await
        }
    }
}

async fn inspect(shard: &Rc<ShardHandle>, request: InspectRequest) -> Result<Inspected, Refusal> {
    match shard.handle(Command::Inspect(request)).await {
        Reply::Inspected(answer) => match *answer {
            Inspected::Missing(Missing::Queue) => Err(resources::queue_not_found()),
            answer => Ok(answer),
        },
        other => Err(unexpected(&other)),
    }
}

/// An answer of another request's kind: a fault of ours.
fn wrong(answer: &Inspected) -> Refusal {
    tracing::error!(?answer, "a shard answered with an answer to another request");
    Refusal::new(ErrorCode::Internal, "the answer was of the wrong kind")
}

async fn list_messages(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    query: &Query<'_>,
) -> Result<Answer, Refusal> {
    let wanted = messages::decode(query)?;
    let page = wanted.page;
    match inspect(shard, InspectRequest::Messages(wanted)).await? {
        Inspected::Messages { rows, bodies, mode, truncated } => {
            let mut body = Vec::with_capacity(1 << 10);
            let opener = &mut node.opener();
            messages::encode_list(&rows, &bodies, mode, truncated, page, opener, &mut body)?;
            Ok(Answer::new(200, JSON, body))
        }
        other => Err(wrong(&other)),
    }
}

async fn show_message(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    partition: &str,
    id: &str,
) -> Result<Answer, Refusal> {
    let partition = messages::partition_id(partition).ok_or_else(messages::not_found)?;
    let request = InspectRequest::Message { partition, transaction_id: id.to_owned() };
    match inspect(shard, request).await? {
        Inspected::Message(Some(detail)) => {
            let mut body = Vec::with_capacity(1 << 10);
            messages::encode_detail(&detail, id, &mut node.opener(), &mut body)?;
            Ok(Answer::new(200, JSON, body))
        }
        Inspected::Message(None) => Err(messages::not_found()),
        other => Err(wrong(&other)),
    }
}

async fn delete_message(
    shard: &Rc<ShardHandle>,
    partition: &str,
    id: &str,
) -> Result<Answer, Refusal> {
    let deleted = match messages::partition_id(partition) {
        None => 0,
        Some(partition) => {
            let transaction_id = id.to_owned();
            let request = InspectRequest::DeleteDeadLetters { partition, transaction_id };
            match inspect(shard, request).await? {
                Inspected::Deleted(deleted) => deleted,
                other => return Err(wrong(&other)),
            }
        }
    };
    let status = if deleted > 0 { 200 } else { 404 };
    Ok(Answer::json(status, |out| messages::encode_deleted(partition, id, deleted, out)))
}

async fn purge(shard: &Rc<ShardHandle>, query: &Query<'_>) -> Result<Answer, Refusal> {
    let Some(wanted) = dlq::decode_purge(query) else {
        return Ok(Answer::json(400, dlq::encode_no_queue));
    };
    let (queue, group) = wanted.clone();
    match inspect(shard, InspectRequest::PurgeDeadLetters { queue, group }).await? {
        Inspected::Deleted(deleted) => {
            let (queue, group) = (&wanted.0, wanted.1.as_deref());
            Ok(Answer::json(200, |out| dlq::encode_purged(queue, group, deleted, out)))
        }
        other => Err(wrong(&other)),
    }
}

async fn read_loads(shard: &Rc<ShardHandle>, query: LoadQuery) -> Result<Loads, Refusal> {
    match inspect(shard, InspectRequest::Loads(query)).await? {
        Inspected::Loads(loads) => Ok(loads),
        other => Err(wrong(&other)),
    }
}

async fn show_groups(
    shard: &Rc<ShardHandle>,
    route: InspectRoute<'_>,
    query: &Query<'_>,
) -> Result<Answer, Refusal> {
    let request = match route {
        InspectRoute::Group(group) => {
            InspectRequest::Cursors(group_listing::decode_detail(group, query))
        }
        InspectRoute::LaggingGroups => {
            InspectRequest::Cursors(group_listing::decode_lagging(query)?)
        }
        _ => InspectRequest::Groups,
    };
    let found = inspect(shard, request).await?;
    let now_us = shard.now().wall_us;
    match (route, found) {
        (InspectRoute::Group(_), Inspected::Cursors { rows, truncated }) => {
            let mut body = Vec::with_capacity(1 << 10);
            group_listing::encode_detail(&rows, truncated, now_us, &mut body)?;
            Ok(Answer::new(200, JSON, body))
        }
        (_, Inspected::Cursors { rows, .. }) => {
            Ok(Answer::json(200, |out| group_listing::encode_lagging(&rows, now_us, out)))
        }
        (_, Inspected::Groups(rows)) => {
            Ok(Answer::json(200, |out| group_listing::encode_list(&rows, query, now_us, out)))
        }
        (_, other) => Err(wrong(&other)),
    }
}

async fn explain(shard: &Rc<ShardHandle>, query: &Query<'_>) -> Result<Answer, Refusal> {
    let names = why::decode(query)?;
    match shard.handle(Command::Inspect(names.request())).await {
        Reply::Inspected(answer) => match *answer {
            Inspected::Why(why) => Ok(Answer::json(200, |out| why::encode(&names, &why, out))),
            Inspected::Missing(missing) => {
                Ok(Answer::json(404, |out| why::encode_missing(&names, missing, out)))
            }
            other => Err(wrong(&other)),
        },
        other => Err(unexpected(&other)),
    }
}

async fn record_trace(shard: &Rc<ShardHandle>, body: &[u8]) -> Result<Answer, Refusal> {
    let traces::Recording::New(trace) = traces::decode(body)? else {
        return Ok(Answer::json(404, traces::encode_no_partition));
    };
    match inspect(shard, InspectRequest::RecordTrace(trace)).await? {
        Inspected::Trace(id) => Ok(Answer::json(201, |out| traces::encode_recorded(&id, out))),
        Inspected::Missing(_) => Ok(Answer::json(404, traces::encode_no_partition)),
        other => Err(wrong(&other)),
    }
}

async fn show_traces(
    shard: &Rc<ShardHandle>,
    route: InspectRoute<'_>,
    query: &Query<'_>,
) -> Result<Answer, Refusal> {
    let (page, request) = match route {
        InspectRoute::Traces(partition, id) => {
            let (page, wanted) = traces::decode_message(partition, id, query);
            (page, wanted.map(InspectRequest::Traces))
        }
        InspectRoute::TracesByName(name) => {
            let wanted = traces::decode_name(name, query);
            (wanted.page, Some(InspectRequest::Traces(wanted)))
        }
        _ => {
            let page = traces::decode_names(query);
            (page, Some(InspectRequest::TraceNames(page)))
        }
    };
    let Some(request) = request else {
        return Ok(Answer::json(200, |out| traces::encode(&[], 0, false, page, out)));
    };
    match inspect(shard, request).await? {
        Inspected::Traces { rows, total, truncated } => {
            Ok(Answer::json(200, |out| traces::encode(&rows, total, truncated, page, out)))
        }
        Inspected::TraceNames { rows, total } => {
            Ok(Answer::json(200, |out| traces::encode_names(&rows, total, page, out)))
        }
        other => Err(wrong(&other)),
    }
}

//! Routes that change consumer groups.

use std::rc::Rc;

use super::answer::Answer;
use super::operate::unexpected;
use super::route::{self, Route};
use super::shard::ShardHandle;
use crate::model::command::{Command, GroupChange, GroupRequest};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::{GroupChanged, Reply};
use crate::proto::groups;
use crate::proto::query::Query;

/// Answers the routes that change a group.
pub async fn answer(
    shard: &Rc<ShardHandle>,
    route: &Route<'_>,
    query: &Query<'_>,
    body: &[u8],
) -> Answer {
    match route {
        Route::Seek(group, queue, partition) => seek(shard, group, queue, *partition, body).await,
        Route::DeleteGroup(group, queue) => delete(shard, group, *queue, query).await,
        Route::MoveSubscription(group) => subscribe(shard, group, body).await,
        other => unreachable!("{other:?} changes no group"),
    }
}

async fn change(
    shard: &Rc<ShardHandle>,
    request: GroupRequest<'_>,
) -> Result<GroupChanged, Refusal> {
    groups::check(request.group, request.queue, request.partition)?;
    match shard.handle(Command::Group(request)).await {
        Reply::Group(changed) => Ok(changed),
        other => Err(unexpected(&other)),
    }
}

/// These routes say `success: false` beside what every refusal says.
fn shown(result: Result<Answer, Refusal>) -> Answer {
    result.unwrap_or_else(|refusal| {
        let (status, retry_after) = route::status_of(refusal.code);
        let mut answer = Answer::json(status, |out| groups::encode_refused(&refusal, out));
        answer.retry_after = retry_after;
        answer
    })
}

async fn seek(
    shard: &Rc<ShardHandle>,
    group: &str,
    queue: &str,
    partition: Option<&str>,
    body: &[u8],
) -> Answer {
    let answer = async {
        let seek = groups::decode_seek(body)?;
        let change_to = GroupChange::Seek(seek.to);
        let request = GroupRequest { group, queue: Some(queue), partition, change: change_to };
        let changed = change(shard, request).await?;
        Ok(if changed.queues.is_empty() {
            let (status, _) = route::status_of(ErrorCode::NotFound);
            Answer::json(status, |out| groups::encode_seek_nowhere(group, queue, partition, out))
        } else {
            Answer::json(200, |out| {
                groups::encode_seek(group, queue, partition, &seek, &changed, out);
            })
        })
    };
    shown(answer.await)
}

async fn delete(
    shard: &Rc<ShardHandle>,
    group: &str,
    queue: Option<&str>,
    query: &Query<'_>,
) -> Answer {
    let registration = groups::deletes_registration(query);
    let deletion = GroupChange::Delete { registration };
    let request = GroupRequest { group, queue, partition: None, change: deletion };
    let changed = change(shard, request).await;
    shown(changed.map(|changed| {
        Answer::json(200, |out| {
            groups::encode_deleted(group, queue, registration, &changed, out);
        })
    }))
}

async fn subscribe(shard: &Rc<ShardHandle>, group: &str, body: &[u8]) -> Answer {
    let answer = async {
        let (text, us) = groups::decode_subscription(body)?;
        let move_to = GroupChange::Subscribe(us);
        let request = GroupRequest { group, queue: None, partition: None, change: move_to };
        let changed = change(shard, request).await?;
        Ok(Answer::json(200, |out| groups::encode_subscription(group, &text, &changed, out)))
    };
    shown(answer.await)
}

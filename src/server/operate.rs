//! From a request to its answer: decode the body, hand the command to the shard, wait, encode.
//!
//! A command borrows from the request it was read from; the shard copies what must outlive the
//! call. So the request lives here, across the wait, exactly where the answer needs it again.

use std::cell::Cell;
use std::rc::Rc;

use super::answer::{self, Answer, JSON, TEXT};
use super::auth::{self, Caller};
use super::dma::DmaBuf;
use super::groups;
use super::inspect;
use super::meters::Kind;
use super::node::Node;
use super::observe;
use super::route::{self, Route};
use super::shard::{Answering, Claimed, ShardHandle};
use super::transact;
use crate::http::{Request, Target};
use crate::model::command::{Command, FrameGroup, PopTarget, PushItem, ReadRequest};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::{Conflation, PopReply, QueueDetail, QueueRow, Reply};
use crate::proto::pop::Piece;
use crate::proto::query::Query;
use crate::proto::{ack, configure, dlq, error, lease, pop, push, push_binary, queues, resources};

const FRAMED_POP: &str = "application/x-queen-pop";
const BINARY_PUSH: &[u8] = b"application/x-queen-push";

/// Resolves with the one answer to `request`. Dropped before: the client is gone.
pub async fn answer(node: Rc<Node>, shard: Rc<ShardHandle>, request: Request) -> Answer {
    let kind = Cell::new(Kind::Other);
    let answer = match operate(&node, &shard, request, &kind).await {
        Ok(answer) => answer,
        Err(refusal) => Answer::refused(&refusal),
    };
    Answer { kind: kind.get(), ..answer }
}

async fn operate(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    request: Request,
    kind: &Cell<Kind>,
) -> Result<Answer, Refusal> {
    let segments = request.target.segments();
    let path = segments.as_deref().ok();
    let caller = match &node.auth {
        None => None,
        Some(auth) => match auth.admit(&request, path, || node.now()).await {
            Ok(caller) => caller,
            Err(denial) => return Ok(Answer::denied(denial)),
        },
    };
    refuse_codings(&request)?;
    let segments = segments.map_err(|bad| Refusal::new(ErrorCode::BadRequest, bad.text()))?;
    let found = route::find(request.method, &segments);
    kind.set(Kind::of(&found));
    match found {
        Route::Push => push(node, shard, &request, caller.as_deref()).await,
        route @ (Route::Pop(_) | Route::PopByLabels) => {
            let target = if let Route::Pop(target) = route { Some(target) } else { None };
            let begun = begin_pop(node, shard, &request, target)?;
            drop(segments);
            drop(request);
            end_pop(node, shard, begun).await
        }
        Route::Transact => transact::transact(node, shard, &request, caller.as_deref()).await,
        Route::Ack => {
            let body = ack::decode_one(&request.body)?;
            ack(shard, body).await
        }
        Route::AckBatch => {
            let body = ack::decode_batch(&request.body)?;
            ack(shard, body).await
        }
        Route::ExtendLease(lease_id) => extend(shard, lease_id, &request.body).await,
        Route::Configure => configure(node, shard, &request.body).await,
        Route::DeleteQueue(queue) => delete_queue(shard, queue).await,
        Route::Queue(queue) => queue_detail(shard, queue).await,
        Route::Queues | Route::Namespaces | Route::Tasks => {
            let rows = queue_rows(shard).await?;
            resources(&route::find(request.method, &segments), rows, &request.target)
        }
        Route::DeadLetters => dead_letters(node, shard, &request.target).await,
        route @ (Route::Seek(..) | Route::DeleteGroup(..) | Route::MoveSubscription(_)) => {
            let query = query(&request.target)?;
            Ok(groups::answer(shard, &route, &query, &request.body).await)
        }
        Route::Observe(wanted) => observe::answer(node, shard, wanted, &request.target).await,
        Route::Inspect(route) => inspect::answer(node, shard, route, &request).await,
        Route::Front => Ok(Answer::new(200, TEXT, FRONT.as_bytes().to_vec())),
        Route::Unbuilt(name) => {
            let text = format!("{name}: this build does not have it yet");
            Err(Refusal::new(ErrorCode::NotImplemented, text))
        }
        Route::Unknown => Ok(unknown(&request.target)),
    }
}

const FRONT: &str = concat!(
    "LaneMQ ",
    env!("CARGO_PKG_VERSION"),
    ", a message broker with one ordered partition for each entity.\n",
    "\n",
    "POST /api/v1/push              GET /health\n",
    "GET  /api/v1/pop/queue/:queue  GET /metrics\n",
    "POST /api/v1/ack               GET /metrics/prometheus\n",
);

fn unknown(target: &Target) -> Answer {
    let path = String::from_utf8_lossy(target.path());
    Answer::json(404, |out| error::encode_no_such_route(&path, out))
}

/// Bodies come as they are; a coding we would have to undo is refused, not stored by mistake.
fn refuse_codings(request: &Request) -> Result<(), Refusal> {
    match &request.content_encoding {
        Some(coding) if !coding.trim_ascii().eq_ignore_ascii_case(b"identity") => {
            let text = "this broker takes bodies without a content coding";
            Err(Refusal::new(ErrorCode::BadRequest, text))
        }
        _ => Ok(()),
    }
}

/// A shard answers a command with its own kind of reply or a refusal.
pub(super) fn unexpected(reply: &Reply<DmaBuf>) -> Refusal {
    match reply {
        Reply::Refused(refusal) => refusal.clone(),
        other => {
            tracing::error!(?other, "a shard answered with a reply of another command");
            Refusal::new(ErrorCode::Internal, "the answer was of the wrong kind")
        }
    }
}

pub(super) fn query(target: &Target) -> Result<Query<'_>, Refusal> {
    target
        .query()
        .collect::<Result<Query<'_>, _>>()
        .map_err(|bad| Refusal::new(ErrorCode::BadRequest, bad.text()))
}

async fn push(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    request: &Request,
    caller: Option<&Caller>,
) -> Result<Answer, Refusal> {
    let producer = auth::producer(caller)?;
    match push_binary::Form::read(&request.body) {
        Some(form) => {
            let form = form?;
            if form.is_framed() {
                push_frames(node, shard, request, form, producer).await
            } else {
                push_plain(node, shard, request, form, producer).await
            }
        }
        None if is_binary(request) => {
            Err(Refusal::new(ErrorCode::BadBody, "a binary push begins with QPB1"))
        }
        None => {
            let items = push::decode(&request.body)?;
            push_items(shard, &items, producer, false).await
        }
    }
}

async fn push_items(
    shard: &Rc<ShardHandle>,
    items: &[PushItem<'_>],
    producer: Option<&str>,
    counts: bool,
) -> Result<Answer, Refusal> {
    push::check_stamps(items.len(), producer)?;
    let labels = (!counts).then(|| push::labels(items));
    let reply = shard.handle(Command::Push { items, producer }).await;
    let answer = show_push(&reply, labels);
    shard.spent(reply);
    answer
}

/// Without labels the answer holds counts only.
fn show_push<'a>(
    reply: &Reply<DmaBuf>,
    labels: Option<impl ExactSizeIterator<Item = push::Label<'a>>>,
) -> Result<Answer, Refusal> {
    let Reply::Push(results) = reply else { return Err(unexpected(reply)) };
    Ok(Answer::json(201, |out| match labels {
        Some(labels) => push::encode(labels, results, out),
        None => push_binary::encode_counts(results, out),
    }))
}

async fn push_plain(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    request: &Request,
    form: push_binary::Form,
    producer: Option<&str>,
) -> Result<Answer, Refusal> {
    let mut inflated = Vec::new();
    let plain = form.plain(&request.body, node.opener().inflater(), &mut inflated)?;
    let items = form.items(plain)?;
    push_items(shard, &items, producer, form.wants_counts()).await
}

/// A body being inflated in slices. Only one of an executor's gives way to others between two
/// groups: what waits half inflated is then one body, however many connections bring one.
struct Inflating<'a>(&'a Node);

impl<'a> Inflating<'a> {
    fn begin(node: &'a Node) -> Self {
        node.inflating.set(node.inflating.get() + 1);
        Self(node)
    }

    fn is_only_one(&self) -> bool {
        self.0.inflating.get() == 1
    }
}

impl Drop for Inflating<'_> {
    fn drop(&mut self) {
        self.0.inflating.set(self.0.inflating.get() - 1);
    }
}

/// Groups that the client framed: all of them are checked before any is handed in.
async fn push_frames(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    request: &Request,
    form: push_binary::Form,
    producer: Option<&str>,
) -> Result<Answer, Refusal> {
    let mut body = push_binary::FramedBody::new(&request.body, producer)?;
    let groups = read_groups(node, &mut body).await?;
    let labels = (!form.wants_counts()).then(|| push_binary::Labels::of(&groups));
    let reply = shard.handle(Command::PushFrames(groups)).await;
    let answer = show_push(&reply, labels.as_ref().map(|labels| labels.iter()));
    shard.spent(reply);
    answer
}

/// Inflates and checks all groups of a body.
pub(super) async fn read_groups<'a>(
    node: &Node,
    body: &mut push_binary::FramedBody<'a>,
) -> Result<Vec<FrameGroup<'a>>, Refusal> {
    let inflating = Inflating::begin(node);
    let mut groups = Vec::new();
    loop {
        // A statement of its own: what inflates is not held across the wait.
        let group = body.next_group(node.opener().inflater(), Vec::new())?;
        let Some(group) = group else { return Ok(groups) };
        groups.push(group);
        if inflating.is_only_one() {
            node.reactor.yield_if_due().await;
        }
    }
}

/// The content type says that the body is one of the binary forms.
pub(super) fn is_binary(request: &Request) -> bool {
    request.content_type.as_deref().is_some_and(|content_type| {
        let name = content_type.split(|b| *b == b';').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(BINARY_PUSH)
    })
}

/// A pop that the shard has. It holds nothing of its request: one that is parked for a minute must
/// not hold on to its receive buffer.
struct BegunPop {
    /// `None`: it names no label.
    answering: Option<Answering>,
    discovery: bool,
    frames: bool,
}

/// Without a target it goes by the labels of its query.
fn begin_pop(
    node: &Node,
    shard: &Rc<ShardHandle>,
    request: &Request,
    target: Option<PopTarget<'_>>,
) -> Result<BegunPop, Refusal> {
    let discovery = target.is_none();
    let query = query(&request.target)?;
    let Some(target) = target.or_else(|| pop::labels(&query)) else {
        return Ok(BegunPop { answering: None, discovery, frames: false });
    };
    let params = pop::decode(target, &query, node.default_subscription)?;
    let waits = params.request.wait_ms.is_some();
    let answering = shard.handle(Command::Pop(params.request));
    node.note_parked(waits);
    Ok(BegunPop { answering: Some(answering), discovery, frames: params.frames })
}

async fn end_pop(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    begun: BegunPop,
) -> Result<Answer, Refusal> {
    let BegunPop { answering, discovery, frames } = begun;
    let Some(answering) = answering else {
        return Ok(Answer::json(400, pop::encode_no_labels));
    };
    match answering.await {
        Reply::Pop(reply) if reply.claims.is_empty() => {
            let answer = show_empty(node, &reply, discovery);
            shard.spent(Reply::Pop(reply));
            answer
        }
        Reply::Pop(reply) => {
            show_claims(node, Claimed::new(shard.clone(), reply), discovery, frames)
        }
        other => Err(unexpected(&other)),
    }
}

/// An empty answer has no body unless it has something to say: a client that asked for
/// conflation goes by that.
fn show_empty(node: &Node, reply: &PopReply<DmaBuf>, discovery: bool) -> Result<Answer, Refusal> {
    if reply.conflation == Conflation::Off {
        return Ok(Answer::nothing());
    }
    let mut body = answer::empty_body();
    pop::encode_json(reply, discovery, &mut node.opener(), &mut body)?;
    Ok(Answer::new(200, JSON, body))
}

fn show_claims(
    node: &Node,
    claimed: Claimed,
    discovery: bool,
    frames: bool,
) -> Result<Answer, Refusal> {
    let Some(reply) = claimed.reply() else { return Ok(Answer::nothing()) };
    let answer = if frames && pop::fits_frames(reply) {
        let pieces: Vec<Piece<DmaBuf>> = pop::encode_frames(reply);
        Answer { pieces, ..Answer::new(200, FRAMED_POP, Vec::new()) }
    } else {
        let mut body = answer::empty_body();
        pop::encode_json(reply, discovery, &mut node.opener(), &mut body)?;
        Answer::new(200, JSON, body)
    };
    Ok(Answer { claimed: Some(claimed), ..answer })
}

async fn ack(shard: &Rc<ShardHandle>, body: ack::AckBody<'_>) -> Result<Answer, Refusal> {
    match shard.handle(Command::Ack(&body.request())).await {
        // The answer names the items again.
        Reply::Ack(results) => {
            let answer = Answer::json(200, |out| ack::encode(&body.items, &results, out));
            shard.spent(Reply::Ack(results));
            Ok(answer)
        }
        other => Err(unexpected(&other)),
    }
}

async fn extend(shard: &Rc<ShardHandle>, lease_id: &str, body: &[u8]) -> Result<Answer, Refusal> {
    let seconds = lease::decode(body)?;
    match shard.handle(Command::ExtendLease { lease_id, seconds }).await {
        Reply::Extended(extended) => {
            Ok(Answer::json(200, |out| lease::encode(lease_id, extended, out)))
        }
        other => Err(unexpected(&other)),
    }
}

async fn configure(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let request = configure::decode(body)?;
    let queue = request.queue.clone();
    match shard.handle(Command::Configure(request)).await {
        Reply::Configured { queue_id, options } => {
            if options.encryption_enabled && !node.opener().can_seal() {
                tracing::warn!(%queue, "encrypts, but there is no encryption key: kept in clear");
            }
            Ok(Answer::json(200, |out| configure::encode(&queue, &queue_id, &options, out)))
        }
        other => Err(unexpected(&other)),
    }
}

async fn delete_queue(shard: &Rc<ShardHandle>, queue: &str) -> Result<Answer, Refusal> {
    match shard.handle(Command::DeleteQueue { queue }).await {
        Reply::Deleted { existed } => {
            Ok(Answer::json(200, |out| queues::encode_deleted(queue, existed, out)))
        }
        other => Err(unexpected(&other)),
    }
}

async fn queue_detail(shard: &Rc<ShardHandle>, queue: &str) -> Result<Answer, Refusal> {
    let detail = read_queue(shard, queue).await?;
    Ok(Answer::json(200, |out| resources::encode_queue(&detail, out)))
}

pub(super) async fn read_queue(
    shard: &Rc<ShardHandle>,
    queue: &str,
) -> Result<Box<QueueDetail>, Refusal> {
    let read = ReadRequest::Queue { queue: queue.to_owned() };
    match shard.handle(Command::Read(read)).await {
        Reply::Queue(Some(detail)) => Ok(detail),
        Reply::Queue(None) => Err(resources::queue_not_found()),
        other => Err(unexpected(&other)),
    }
}

pub(super) async fn queue_rows(shard: &Rc<ShardHandle>) -> Result<Vec<QueueRow>, Refusal> {
    match shard.handle(Command::Read(ReadRequest::Queues)).await {
        Reply::Queues(rows) => Ok(rows),
        other => Err(unexpected(&other)),
    }
}

/// The listings over all queues.
fn resources(route: &Route<'_>, rows: Vec<QueueRow>, target: &Target) -> Result<Answer, Refusal> {
    let query = query(target)?;
    Ok(Answer::json(200, |out| match route {
        Route::Namespaces => resources::encode_namespaces(&rows, out),
        Route::Tasks => resources::encode_tasks(&rows, out),
        _ => resources::encode_queues(rows, &query, out),
    }))
}

async fn dead_letters(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    target: &Target,
) -> Result<Answer, Refusal> {
    let wanted = dlq::decode(&query(target)?)?;
    let read = ReadRequest::DeadLetters(wanted.clone());
    match shard.handle(Command::Read(read)).await {
        Reply::DeadLetters { rows, total, truncated } => {
            let mut body = Vec::with_capacity(1 << 10);
            dlq::encode(&rows, total, truncated, &wanted, &mut node.opener(), &mut body)?;
            Ok(Answer::new(200, JSON, body))
        }
        other => Err(unexpected(&other)),
    }
}

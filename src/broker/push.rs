//! Push, at the shard of its client: one request scatters into one batch for each partition it
//! names, and the answers of the partitions' shards (see `append`) are gathered.
//!
//! Payload copies: one into the batch's frames, one into the log's chunk; of frames that the
//! client built and compressed, only the second.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use smallvec::{SmallVec, smallvec};

use super::append::PeerPush;
use super::effect::Effects;
use super::owner::vanishing_queue;
use super::shard::Shard;
use super::task::Task;
use crate::base::buf::IoBuf;
use crate::base::hash::partition_hash;
use crate::base::ids::{MessageId, ShardId, Token};
use crate::base::spare::Spare;
use crate::base::time::Now;
use crate::base::uuid;
use crate::model::command::{FrameGroup, PushItem};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{self, Marks};
use crate::model::peer::{PeerMsg, PushBatch, PushPiece, TaskId};
use crate::model::reply::{PushResult, Reply};

/// How often a batch is sent again because its queue was deleted and made anew under it.
const RETRIES_MAX: u32 = 8;

/// A push at the shard of its client.
#[derive(Debug)]
pub(super) struct PushTask {
    token: Token,
    parts: SmallVec<[PushPart; 1]>,
    /// Items of the request.
    items: usize,
    /// One for each item, once there is a first answer.
    results: Vec<PushResult>,
    /// Parts without an answer.
    left: usize,
    refusal: Option<Refusal>,
    /// The queue whose owner was asked and has not answered.
    asked: Option<String>,
}

#[derive(Debug)]
pub(super) struct PushPart {
    /// Places of its items in the request: where each run of neighbours begins, and its length.
    pub runs: SmallVec<[(u32, u32); 2]>,
    /// Its queue's owner must be asked before it is sent again.
    stale: bool,
    /// How often it has come back stale.
    retries: u32,
    /// The batch while it is here: waiting for its queue to exist.
    pub batch: Option<Box<PushBatch>>,
}

impl PushPart {
    /// The batch comes empty.
    fn new(mut batch: Box<PushBatch>, queue: &str, partition: &str) -> Self {
        batch.queue.push_str(queue);
        batch.partition.push_str(partition);
        Self { runs: SmallVec::new(), stale: false, retries: 0, batch: Some(batch) }
    }

    /// Notes that the next `count` items of the batch are the request's from `index` on.
    fn takes(&mut self, index: u32, count: u32) {
        match self.runs.last_mut() {
            Some((from, len)) if *from + *len == index => *len += count,
            _ => self.runs.push((index, count)),
        }
    }
}

/// The parts of a request, by partition in first-seen order.
#[derive(Default)]
pub(super) struct Parts<'a> {
    pub parts: SmallVec<[PushPart; 1]>,
    /// Batches to fill.
    spare: Spare<Box<PushBatch>>,
    /// Made with the second partition: most requests name one.
    by_name: Option<HashMap<(&'a str, &'a str), usize, ahash::RandomState>>,
    last: Option<((&'a str, &'a str), usize)>,
}

impl<'a> Parts<'a> {
    /// Adds neighbouring messages that the client framed; returns the place behind them.
    pub(super) fn add_group(&mut self, place: u32, group: FrameGroup<'a>) -> u32 {
        let FrameGroup { queue, partition, piece } = group;
        let part = self.of((queue, partition));
        part.takes(place, piece.count);
        let behind = place + piece.count;
        let batch = part.batch.as_mut().expect("filled when it was made");
        batch.count += piece.count;
        batch.pieces.push(piece);
        behind
    }

    /// The part of a partition.
    fn of(&mut self, name: (&'a str, &'a str)) -> &mut PushPart {
        let at = match self.last {
            Some((same, at)) if same == name => at,
            _ => self.find(name),
        };
        self.last = Some((name, at));
        &mut self.parts[at]
    }

    fn find(&mut self, name: (&'a str, &'a str)) -> usize {
        let new = self.parts.len();
        if new > 0 {
            let by_name = self.by_name.get_or_insert_with(|| {
                let hasher = ahash::RandomState::with_seeds(17, 18, 19, 20);
                let mut by_name = HashMap::with_hasher(hasher);
                by_name.extend(self.last);
                by_name
            });
            match by_name.entry(name) {
                Entry::Occupied(known) => return *known.get(),
                Entry::Vacant(place) => _ = place.insert(new),
            }
        }
        self.parts.push(PushPart::new(self.spare.take(), name.0, name.1));
        new
    }
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn push(
        &mut self,
        now: Now,
        items: &[PushItem<'_>],
        producer: Option<&str>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        if self.admits_push(token, fx) {
            let parts = self.split(now, items, producer);
            self.push_parts(now, token, parts, items.len(), fx);
        }
    }

    pub(super) fn push_frames(
        &mut self,
        now: Now,
        groups: Vec<FrameGroup<'_>>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        if !self.admits_push(token, fx) {
            return;
        }
        let mut parts =
            Parts { spare: std::mem::take(&mut self.spares.batches), ..Parts::default() };
        let mut items = 0;
        for group in groups {
            items = parts.add_group(items, group);
        }
        self.spares.batches = parts.spare;
        self.push_parts(now, token, parts.parts, items as usize, fx);
    }

    /// False: refused, because too much waits for the disk already.
    pub(super) fn admits_push(&mut self, token: Token, fx: &mut Effects<B>) -> bool {
        if self.undurable_bytes <= self.config.memory_bytes {
            return true;
        }
        let refusal = Refusal::new(ErrorCode::Overloaded, "too much waits for the disk");
        fx.reply(token, Reply::Refused(refusal));
        false
    }

    fn push_parts(
        &mut self,
        now: Now,
        token: Token,
        parts: SmallVec<[PushPart; 1]>,
        items: usize,
        fx: &mut Effects<B>,
    ) {
        self.history.total.push_requests += 1;
        if parts.is_empty() {
            return fx.reply(token, Reply::Push(Vec::new()));
        }
        let left = parts.len();
        let results = Vec::new();
        let task = PushTask { token, parts, items, results, left, refusal: None, asked: None };
        let task = self.new_task(Task::Push(task));
        self.send_parts(now, task, fx);
    }

    /// Groups the items by partition and frames them, stamped with their producer.
    fn split(
        &mut self,
        now: Now,
        items: &[PushItem<'_>],
        producer: Option<&str>,
    ) -> SmallVec<[PushPart; 1]> {
        let producer = producer.map(str::as_bytes);
        let marks = Marks { producer, ..Marks::default() };
        let mut parts =
            Parts { spare: std::mem::take(&mut self.spares.batches), ..Parts::default() };
        for (place, item) in items.iter().enumerate() {
            let bytes = || framed_bytes(items, place, producer);
            self.add_item(now, &mut parts, place, item, marks, bytes);
        }
        self.spares.batches = parts.spare;
        parts.parts
    }

    /// Frames one item of a request. `bytes` says how much room its partition will want.
    pub(super) fn add_item<'a>(
        &mut self,
        now: Now,
        parts: &mut Parts<'a>,
        place: usize,
        item: &'a PushItem<'_>,
        marks: Marks<'_>,
        bytes: impl FnOnce() -> usize,
    ) {
        let part = parts.of((&*item.queue, &*item.partition));
        part.takes(place as u32, 1);
        let batch = part.batch.as_mut().expect("filled when it was made");
        let index = batch.count as usize;
        batch.count += 1;
        if batch.pieces.is_empty() {
            let mut frames = self.spares.bytes.take();
            frames.reserve(bytes());
            batch.pieces = smallvec![PushPiece { frames, ..PushPiece::default() }];
        }
        let id = MessageId(uuid::mint_v7(now.wall_us, &mut self.prng));
        let minted = uuid::to_text(&id.0);
        let transaction_id = match &item.transaction_id {
            Some(given) => given.as_bytes(),
            None => {
                batch.set_minted(index);
                &minted
            }
        };
        let piece = &mut batch.pieces[0];
        piece.count += 1;
        if marks == Marks::default() {
            frame::write_frame(&mut piece.frames, id, transaction_id, item.payload);
        } else {
            frame::write_marked(&mut piece.frames, id, transaction_id, marks, item.payload);
        }
    }

    /// Sends every part that is still here and whose queue exists; asks about the other queues.
    fn send_parts(&mut self, now: Now, task: TaskId, fx: &mut Effects<B>) {
        let shards = u64::from(self.config.shards);
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        let mut ready: SmallVec<[(u32, u32, Box<PushBatch>); 1]> = SmallVec::new();
        let mut unknown: Option<String> = None;
        for (at, part) in push.parts.iter_mut().enumerate() {
            let Some(batch) = &mut part.batch else { continue };
            let slot = self.state.catalog.find(&batch.queue).filter(|_| !part.stale);
            let known = slot.and_then(|slot| Some((slot, self.state.catalog.get(slot)?)));
            match known {
                Some((slot, queue)) => {
                    batch.incarnation = queue.image.incarnation;
                    ready.extend(part.batch.take().map(|batch| (slot, at as u32, batch)));
                }
                // One queue at a time: the answer comes back here and asks for the next.
                None => unknown = unknown.or(Some(batch.queue.clone())),
            }
        }
        for (slot, part, batch) in ready {
            self.count_request(slot, task.0, |t| t.push_requests += 1);
            let hash = partition_hash(&batch.queue, &batch.partition);
            let to = ShardId((hash % shards) as u16);
            if to == self.config.shard {
                self.push_owned(now, PeerPush { from: to, task, part, batch }, fx);
            } else {
                fx.send(to, PeerMsg::Push { task, part, batch });
            }
        }
        if let Some(queue) = unknown {
            self.push_asks(task, queue, fx);
        }
    }

    /// Asks a queue's owner to make it, or to say when all shards know it. One question at a
    /// time: its answer sends the parts that have come back meanwhile, and asks the next.
    fn push_asks(&mut self, task: TaskId, queue: String, fx: &mut Effects<B>) {
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        if push.asked.is_none() {
            push.asked = Some(queue.clone());
            let owner = self.owner_of(&queue);
            self.send(owner, PeerMsg::EnsureQueue { task, queue }, fx);
        }
    }

    /// The queue a push asked for exists on every shard, or could not be made.
    pub(super) fn push_queue_ready(
        &mut self,
        now: Now,
        task: TaskId,
        refusal: Option<Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        let answered = push.asked.take();
        for part in &mut push.parts {
            part.stale &= part.batch.as_ref().map(|batch| &batch.queue) != answered.as_ref();
        }
        let Some(refusal) = refusal else { return self.send_parts(now, task, fx) };
        let kept = push.parts.iter_mut().filter_map(|part| part.batch.take()).count();
        push.left -= kept;
        push.refusal = Some(refusal);
        self.push_finished(task, fx);
    }

    /// The partition's shard knows another incarnation of the queue: ask its owner, which
    /// answers once all shards agree, and send again.
    pub(super) fn push_stale(
        &mut self,
        task: TaskId,
        part: u32,
        batch: Box<PushBatch>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        // Each part counts for itself: a thousand that find a new queue not yet there are one
        // round, not a thousand.
        let returned = &mut push.parts[part as usize];
        returned.retries += 1;
        if returned.retries > RETRIES_MAX {
            return self.pushed(task, part, Err(vanishing_queue()), fx);
        }
        let queue = batch.queue.clone();
        returned.batch = Some(batch);
        returned.stale = true;
        self.push_asks(task, queue, fx);
    }

    pub(super) fn pushed(
        &mut self,
        task: TaskId,
        part: u32,
        result: Result<Vec<PushResult>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        push.left -= 1;
        match result {
            Ok(results) if push.parts.len() == 1 => push.results = results,
            Ok(results) => {
                if push.results.is_empty() {
                    push.results = self.spares.push_results.take();
                    push.results.resize(push.items, UNKNOWN);
                }
                let mut rest = results.as_slice();
                for (from, len) in &push.parts[part as usize].runs {
                    let (run, after) = rest.split_at(*len as usize);
                    let from = *from as usize;
                    push.results[from..from + run.len()].clone_from_slice(run);
                    rest = after;
                }
                self.spares.push_results.put(results);
            }
            Err(refusal) => push.refusal = Some(refusal),
        }
        self.push_finished(task, fx);
    }

    fn push_finished(&mut self, task: TaskId, fx: &mut Effects<B>) {
        let Some(Task::Push(push)) = self.tasks.get(&task) else { return };
        if push.left > 0 {
            return;
        }
        let Some(Task::Push(push)) = self.tasks.remove(&task) else { return };
        let reply = match push.refusal {
            Some(refusal) => Reply::Refused(refusal),
            None => Reply::Push(push.results),
        };
        fx.reply(push.token, reply);
    }
}

/// Bytes of the frames from the item at `from` to the end of its run of neighbours of one
/// partition: mostly all that the partition gets.
fn framed_bytes(items: &[PushItem<'_>], from: usize, producer: Option<&[u8]>) -> usize {
    const MINTED_BYTES: usize = 36;
    let stamp = frame::stamp_bytes(producer);
    let first = &items[from];
    items[from..]
        .iter()
        .take_while(|item| item.partition == first.partition && item.queue == first.queue)
        .map(|item| {
            let id = item.transaction_id.as_ref().map_or(MINTED_BYTES, |id| id.len());
            frame::FRAME_BYTES_MIN + id + stamp + item.payload.len()
        })
        .sum()
}

/// Stands where an answer is still to come; none is left when all parts have answered.
pub(super) const UNKNOWN: PushResult = PushResult::Error { id: MessageId([0; 16]), text: "" };

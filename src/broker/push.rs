//! Push: one request scatters into one batch for each partition it names, each batch is checked
//! for duplicates and appended as one record on the shard that owns the partition, and the
//! answers are gathered.
//!
//! Payload copies: one into the batch's frames, one into the log's chunk.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::effect::Effects;
use super::owner::vanishing_queue;
use super::partition::{BatchRef, Slot};
use super::records::{self, NIL_MESSAGE, PartitionRecord};
use super::shard::{Deferred, ReadUse, Shard};
use super::task::Task;
use crate::base::buf::{Gather, IoBuf};
use crate::base::hash::{FingerprintKey, partition_hash};
use crate::base::ids::{LogPosition, MessageId, Offset, PartitionId, ShardId, Token};
use crate::base::mutant::Mutant;
use crate::base::time::Now;
use crate::base::uuid;
use crate::log::{AppendError, Class, Marks};
use crate::model::command::PushItem;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{self, BatchHead, CODEC_RAW};
use crate::model::peer::{PeerMsg, PushBatch, TaskId};
use crate::model::reply::{PushResult, Reply};

/// How often a batch is sent again because its queue was deleted and made anew under it.
const RETRIES_MAX: u32 = 8;

/// A push at the shard of its client.
#[derive(Debug)]
pub(super) struct PushTask {
    token: Token,
    parts: Vec<PushPart>,
    results: Vec<Option<PushResult>>,
    /// Parts without an answer.
    left: usize,
    refusal: Option<Refusal>,
    /// The queue whose owner was asked and has not answered.
    asked: Option<String>,
}

#[derive(Debug)]
struct PushPart {
    /// Places of its items in the request.
    items: Vec<u32>,
    /// Its queue's owner must be asked before it is sent again.
    stale: bool,
    /// How often it has come back stale.
    retries: u32,
    /// The batch while it is here: waiting for its queue to exist.
    batch: Option<PushBatch>,
}

/// A batch that has reached the shard of its partition.
#[derive(Debug)]
pub(super) struct PeerPush {
    pub from: ShardId,
    pub task: TaskId,
    pub part: u32,
    pub batch: PushBatch,
}

/// A batch that waits until suspected originals are read from the disk.
#[derive(Debug)]
pub(super) struct WaitingPush<B> {
    push: PeerPush,
    missing: usize,
    read: ReadBodies<B>,
}

/// Bodies of batches read to verify suspected duplicates; `None`: they could not be read.
type ReadBodies<B> = BTreeMap<LogPosition, Option<Gather<B>>>;

/// What becomes of one item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Store,
    /// Item of this batch that carries the same id.
    Follows(usize),
    Original {
        id: MessageId,
        offset: Offset,
    },
}

impl<B: IoBuf> Shard<B> {
    // ---- at the shard of the client

    pub(super) fn push(
        &mut self,
        now: Now,
        items: &[PushItem<'_>],
        token: Token,
        fx: &mut Effects<B>,
    ) {
        if items.is_empty() {
            return fx.reply(token, Reply::Push(Vec::new()));
        }
        if self.undurable_bytes > self.config.memory_bytes {
            let refusal = Refusal::new(ErrorCode::Overloaded, "too much waits for the disk");
            return fx.reply(token, Reply::Refused(refusal));
        }
        let parts = self.split(now, items);
        let left = parts.len();
        let results = vec![None; items.len()];
        let task = PushTask { token, parts, results, left, refusal: None, asked: None };
        let task = self.new_task(Task::Push(task));
        self.send_parts(task, fx);
    }

    /// Groups the items by partition, in first-seen order, and frames them.
    fn split(&mut self, now: Now, items: &[PushItem<'_>]) -> Vec<PushPart> {
        let mut parts: Vec<PushPart> = Vec::new();
        let mut by_name: HashMap<(&str, &str), usize, ahash::RandomState> =
            HashMap::with_hasher(ahash::RandomState::with_seeds(17, 18, 19, 20));
        let mut last: Option<((&str, &str), usize)> = None;
        for (index, item) in items.iter().enumerate() {
            let name = (&*item.queue, &*item.partition);
            let at = match last {
                Some((same, at)) if same == name => at,
                _ => match by_name.entry(name) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        parts.push(PushPart {
                            items: Vec::new(),
                            stale: false,
                            retries: 0,
                            batch: Some(PushBatch {
                                queue: name.0.to_owned(),
                                incarnation: 0,
                                partition: name.1.to_owned(),
                                frames: Vec::new(),
                                count: 0,
                                minted: Vec::new(),
                            }),
                        });
                        *new.insert(parts.len() - 1)
                    }
                },
            };
            last = Some((name, at));
            let part = &mut parts[at];
            part.items.push(index as u32);
            let batch = part.batch.as_mut().expect("filled above");
            let id = MessageId(uuid::mint_v7(now.wall_us, &mut self.prng));
            match &item.transaction_id {
                Some(given) => {
                    frame::write_frame(&mut batch.frames, id, given.as_bytes(), item.payload);
                }
                None => {
                    batch.set_minted(batch.count as usize);
                    let text = uuid::to_text(&id.0);
                    frame::write_frame(&mut batch.frames, id, &text, item.payload);
                }
            }
            batch.count += 1;
        }
        parts
    }

    /// Sends every part that is still here and whose queue exists; asks about the other queues.
    fn send_parts(&mut self, task: TaskId, fx: &mut Effects<B>) {
        let shards = u64::from(self.config.shards);
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        let mut ready = Vec::new();
        let mut unknown: Option<String> = None;
        for (at, part) in push.parts.iter_mut().enumerate() {
            let Some(batch) = &mut part.batch else { continue };
            match self.state.catalog.by_name(&batch.queue).filter(|_| !part.stale) {
                Some(queue) => {
                    batch.incarnation = queue.image.incarnation;
                    ready.extend(part.batch.take().map(|batch| (at as u32, batch)));
                }
                // One queue at a time: the answer comes back here and asks for the next.
                None => unknown = unknown.or(Some(batch.queue.clone())),
            }
        }
        for (part, batch) in ready {
            let hash = partition_hash(&batch.queue, &batch.partition);
            let to = ShardId((hash % shards) as u16);
            self.send(to, PeerMsg::Push { task, part, batch }, fx);
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
        task: TaskId,
        refusal: Option<Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Push(push)) = self.tasks.get_mut(&task) else { return };
        let answered = push.asked.take();
        for part in &mut push.parts {
            part.stale &= part.batch.as_ref().map(|batch| &batch.queue) != answered.as_ref();
        }
        let Some(refusal) = refusal else { return self.send_parts(task, fx) };
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
        batch: PushBatch,
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
            Ok(results) => {
                for (item, result) in push.parts[part as usize].items.iter().zip(results) {
                    push.results[*item as usize] = Some(result);
                }
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
            None => Reply::Push(push.results.into_iter().flatten().collect()),
        };
        fx.reply(push.token, reply);
    }

    // ---- at the shard of the partition

    pub(super) fn push_owned(&mut self, now: Now, push: PeerPush, fx: &mut Effects<B>) {
        let name = (push.batch.queue.clone(), push.batch.partition.clone());
        if let Some(behind) = self.blocked_pushes.get_mut(&name) {
            return behind.push_back(push);
        }
        self.judge_push(now, push, ReadBodies::new(), fx);
    }

    /// Decides each item's fate and stores what is new, all in one step. If an original must be
    /// read first, the batch waits and the partition's later pushes wait behind it.
    fn judge_push(&mut self, now: Now, push: PeerPush, read: ReadBodies<B>, fx: &mut Effects<B>) {
        let queue = self.state.catalog.find(&push.batch.queue).filter(|slot| {
            let q = self.state.catalog.get(*slot);
            q.is_some_and(|q| q.image.incarnation == push.batch.incarnation)
        });
        let Some(queue) = queue else {
            let PeerPush { from, task, part, batch } = push;
            return self.send(from, PeerMsg::PushStale { task, part, batch }, fx);
        };
        let slot = self.state.parts.find(queue, &push.batch.partition);
        let mut needed = Vec::new();
        let fates = self.fates(now, queue, slot, &push.batch, &read, &mut needed);
        if !needed.is_empty() {
            return self.wait_for_originals(now, push, read, needed, fx);
        }
        let early = Mutant::DuplicateBeforeDurable.active()
            && fates.iter().any(|f| matches!(f, Fate::Original { .. }));
        let PeerPush { from, task, part, batch } = push;
        let result = self.store(now, queue, slot, &batch, &fates);
        let msg = PeerMsg::Pushed { task, part, result };
        if early || matches!(&msg, PeerMsg::Pushed { result: Err(_), .. }) {
            self.send(from, msg, fx);
        } else {
            self.send_durable(from, msg);
        }
    }

    /// What becomes of each item. Positions of batches that must be read before a fate is known
    /// are added to `needed`; those fates are then not to be used.
    fn fates(
        &mut self,
        now: Now,
        queue: u32,
        slot: Option<Slot>,
        batch: &PushBatch,
        read: &ReadBodies<B>,
        needed: &mut Vec<(LogPosition, u32)>,
    ) -> Vec<Fate> {
        let window =
            self.state.catalog.get(queue).map_or(0, |q| q.image.options.dedup_window_seconds);
        let window_us = i64::try_from(window).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let oldest_us = now.wall_us.saturating_sub(window_us);
        let key = self.log.fingerprint_key();
        let mut seen: HashMap<&[u8], usize, ahash::RandomState> =
            HashMap::with_hasher(ahash::RandomState::with_seeds(21, 22, 23, 24));
        let mut found = Vec::new();
        let mut fates = Vec::with_capacity(batch.count as usize);
        for (index, frame) in frame::frames(&batch.frames).enumerate() {
            if batch.is_minted(index) {
                fates.push(Fate::Store);
                continue;
            }
            match seen.entry(frame.transaction_id) {
                Entry::Occupied(first) => {
                    fates.push(Fate::Follows(*first.get()));
                    continue;
                }
                Entry::Vacant(new) => {
                    new.insert(index);
                }
            }
            let mut fate = Fate::Store;
            if let Some(slot) = slot.filter(|_| window > 0) {
                let id = self.state.id_of(slot);
                let fingerprint = records::table_fingerprint(key.fingerprint(frame.transaction_id));
                self.state.dedup.find(id, fingerprint, now.wall_us, &mut found);
                for (offset, stored_us) in &found {
                    if *stored_us < oldest_us - super::dedup::TICK_US {
                        continue;
                    }
                    let suspect = Suspect { offset: *offset, stored_us: *stored_us, oldest_us };
                    match self.original(slot, suspect, frame.transaction_id, read) {
                        Original::No => {}
                        Original::Is(id) => {
                            fate = Fate::Original { id, offset: *offset };
                            break;
                        }
                        Original::Unread(at, bytes) => needed.push((at, bytes)),
                    }
                }
            }
            fates.push(fate);
        }
        fates
    }

    /// Whether the message at `offset` carries this id and is inside the window.
    fn original(
        &mut self,
        slot: Slot,
        suspect: Suspect,
        transaction_id: &[u8],
        read: &ReadBodies<B>,
    ) -> Original {
        let Suspect { offset, stored_us, oldest_us } = suspect;
        let Some(partition) = self.state.parts.get(slot) else { return Original::No };
        if offset < partition.log_start {
            // Removed by retention: the id itself is gone, its keyed 63-bit fingerprint is the
            // evidence left. A duplicate only while its window surely runs: a false one would
            // be a lost message.
            let inside = stored_us >= oldest_us;
            return if inside { Original::Is(NIL_MESSAGE) } else { Original::No };
        }
        let Some(batch) = partition.batch_of(offset).copied() else { return Original::No };
        if batch.created_at_us < oldest_us {
            return Original::No;
        }
        let body = match read.get(&batch.at) {
            Some(Some(body)) => body.clone(),
            // Damaged: it cannot be verified, and storing a second copy would be worse than
            // naming the first.
            Some(None) => return Original::Is(NIL_MESSAGE),
            None if self.log.in_tail(batch.at) => {
                match self.log.read(batch.at, batch.bytes, 0, &mut self.io) {
                    Some(body) => body,
                    None => unreachable!("records in the tail are answered at once"),
                }
            }
            None => return Original::Unread(batch.at, batch.bytes),
        };
        let body = body.contiguous();
        let frames = body.get(frame::BATCH_HEAD_BYTES..).unwrap_or_default();
        let index = (offset.0 - batch.base.0) as usize;
        match frame::frames(frames).nth(index) {
            Some(stored) if stored.transaction_id == transaction_id => Original::Is(stored.id),
            _ => Original::No,
        }
    }

    fn wait_for_originals(
        &mut self,
        now: Now,
        push: PeerPush,
        read: ReadBodies<B>,
        mut needed: Vec<(LogPosition, u32)>,
        fx: &mut Effects<B>,
    ) {
        needed.sort_unstable();
        needed.dedup();
        let job = self.new_id();
        let name = (push.batch.queue.clone(), push.batch.partition.clone());
        self.blocked_pushes.entry(name).or_default();
        self.waiting_pushes.insert(job, WaitingPush { push, missing: needed.len(), read });
        for (at, bytes) in needed {
            let id = self.new_id();
            self.reads.insert(id, ReadUse::Push { job, key: at });
            if let Some(body) = self.log.read(at, bytes, id, &mut self.io) {
                self.reads.remove(&id);
                self.push_read(now, job, at, Some(body), fx);
            }
        }
    }

    /// An original's batch was read, or could not be.
    pub(super) fn push_read(
        &mut self,
        now: Now,
        job: u64,
        at: LogPosition,
        body: Option<Gather<B>>,
        fx: &mut Effects<B>,
    ) {
        let Some(waiting) = self.waiting_pushes.get_mut(&job) else { return };
        waiting.read.insert(at, body);
        waiting.missing -= 1;
        if waiting.missing > 0 {
            return;
        }
        let Some(waiting) = self.waiting_pushes.remove(&job) else { return };
        let name = (waiting.push.batch.queue.clone(), waiting.push.batch.partition.clone());
        let behind = self.blocked_pushes.remove(&name).unwrap_or_default();
        self.judge_push(now, waiting.push, waiting.read, fx);
        for push in behind {
            // If the first had to wait again, these queue up behind it once more.
            self.push_owned(now, push, fx);
        }
    }

    /// Appends the batch with the items that are new, and answers for all.
    fn store(
        &mut self,
        now: Now,
        queue: u32,
        slot: Option<Slot>,
        batch: &PushBatch,
        fates: &[Fate],
    ) -> Result<Vec<PushResult>, Refusal> {
        let ids: Vec<MessageId> = frame::frames(&batch.frames).map(|f| f.id).collect();
        let stored = fates.iter().filter(|f| **f == Fate::Store).count();
        let mut base = Ok(Offset(0));
        if stored > 0 {
            base = self.append_batch(now, queue, slot, batch, fates, stored);
        }
        let base = match base {
            Ok(base) => Some(base),
            Err(AppendError::TooLarge) => None,
            Err(error) => return Err(super::shard::refusal_of(&error)),
        };
        let mut results: Vec<PushResult> = Vec::with_capacity(fates.len());
        let mut next = base;
        for (index, fate) in fates.iter().enumerate() {
            results.push(match (*fate, next) {
                (Fate::Store, Some(offset)) => {
                    next = Some(Offset(offset.0 + 1));
                    PushResult::Queued { id: ids[index], offset }
                }
                (Fate::Store, None) => {
                    PushResult::Error { id: ids[index], text: "larger than one append may be" }
                }
                (Fate::Original { id, offset }, _) => PushResult::Duplicate { id, offset },
                (Fate::Follows(first), _) => match results[first] {
                    PushResult::Queued { id, offset } | PushResult::Duplicate { id, offset } => {
                        PushResult::Duplicate { id, offset }
                    }
                    PushResult::Error { text, .. } => PushResult::Error { id: ids[index], text },
                },
            });
        }
        if base.is_some() {
            self.counters.pushed += stored as u64;
            self.counters.duplicates += (fates.len() - stored) as u64;
        }
        Ok(results)
    }

    /// One record: head, frames, id table. Returns its first offset.
    fn append_batch(
        &mut self,
        now: Now,
        queue: u32,
        slot: Option<Slot>,
        batch: &PushBatch,
        fates: &[Fate],
        stored: usize,
    ) -> Result<Offset, AppendError> {
        let slot = match slot {
            Some(slot) => slot,
            None => self.create_partition(now, queue, &batch.partition)?,
        };
        let id = self.state.id_of(slot);
        let partition = self.state.parts.get(slot).expect("found or created");
        let base = partition.next_offset;
        let created_at_us = now.wall_us.max(partition.last_created_us.saturating_add(1));
        let (pieces, table) = kept(batch, fates, self.log.fingerprint_key());
        let bytes: usize = pieces.iter().map(|p| p.len()).sum();
        let head = BatchHead {
            base_offset: base,
            created_at_us,
            count: stored as u32,
            codec: CODEC_RAW,
            len: u32::try_from(bytes).or(Err(AppendError::TooLarge))?,
        }
        .encode();
        let mut body: Vec<&[u8]> = Vec::with_capacity(pieces.len() + 2);
        body.push(&head);
        body.extend_from_slice(&pieces);
        body.push(&table);
        let appended = self.log.append(records::BATCH, id.0, &body, Class::Growing)?;
        let batch_ref = BatchRef {
            at: appended.at,
            base,
            created_at_us,
            bytes: appended.bytes,
            count: stored as u32,
        };
        self.state.add_batch(slot, batch_ref);
        self.remember_ids(id, &batch_ref, &table);
        self.undurable_bytes += appended.bytes as usize;
        let visible = Deferred::Visible { slot, to: batch_ref.end(), bytes: appended.bytes };
        self.commit.push(self.log.appended(), visible);
        Ok(base)
    }

    fn create_partition(&mut self, now: Now, queue: u32, name: &str) -> Result<Slot, AppendError> {
        let image = &self.state.catalog.get(queue).expect("checked by the caller").image;
        let record = PartitionRecord {
            queue: &image.name,
            incarnation: image.incarnation,
            partition: name,
            created_at_us: now.wall_us,
        }
        .encode();
        if self.state.parts.is_full() {
            return Err(AppendError::NoSpace);
        }
        let slot = self.state.parts.next_counter() as Slot;
        let id = self.state.id_of(slot);
        // A Growing append, like the batch it belongs to: a full disk takes neither.
        let appended = self.log.append(records::PARTITION, id.0, &[&record], Class::Growing)?;
        self.state.add_partition(slot, queue, name, now.wall_us, appended.at.segment());
        self.log.set_marks(Marks {
            partition_counter: self.state.parts.next_counter(),
            clock_us: now.wall_us,
            ..Marks::default()
        });
        Ok(slot)
    }

    fn remember_ids(&mut self, id: PartitionId, batch: &BatchRef, table: &[u8]) {
        self.state.segments.saw_ids(batch.at.segment(), batch.created_at_us);
        for (i, entry) in records::id_table(table, batch.count).into_iter().flatten().enumerate() {
            if !records::is_minted(entry) {
                let offset = Offset(batch.base.0 + i as u64);
                let fingerprint = records::table_fingerprint(entry);
                self.state.dedup.insert(id, fingerprint, offset, batch.created_at_us);
            }
        }
    }
}

/// A fingerprint hit: where, stored when at the earliest, and where the window begins.
#[derive(Clone, Copy)]
struct Suspect {
    offset: Offset,
    stored_us: i64,
    oldest_us: i64,
}

/// Whether a fingerprint hit is the original of a pushed id.
enum Original {
    No,
    Is(MessageId),
    /// Its batch must be read first: place and length of the record.
    Unread(LogPosition, u32),
}

/// The frames that are stored, neighbours as one piece, and their id table.
fn kept<'a>(
    batch: &'a PushBatch,
    fates: &[Fate],
    key: FingerprintKey,
) -> (SmallVec<[&'a [u8]; 4]>, Vec<u8>) {
    let mut pieces = SmallVec::new();
    let mut table = Vec::with_capacity(fates.len() * 8);
    let (mut run_start, mut at) = (0, 0);
    for (index, fate) in fates.iter().enumerate() {
        let Some((frame, rest)) = frame::split_frame(&batch.frames[at..]) else { break };
        let end = batch.frames.len() - rest.len();
        if *fate == Fate::Store {
            let fingerprint = key.fingerprint(frame.transaction_id);
            let entry = records::table_entry(fingerprint, batch.is_minted(index));
            table.extend_from_slice(&entry.to_le_bytes());
        } else {
            if run_start < at {
                pieces.push(&batch.frames[run_start..at]);
            }
            run_start = end;
        }
        at = end;
    }
    if run_start < at {
        pieces.push(&batch.frames[run_start..at]);
    }
    (pieces, table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_frames_join_into_runs_and_carry_their_ids() {
        let mut batch = PushBatch {
            queue: "q".into(),
            incarnation: 1,
            partition: "p".into(),
            frames: Vec::new(),
            count: 5,
            minted: Vec::new(),
        };
        let mut ends = vec![0];
        for i in 0..5u8 {
            frame::write_frame(&mut batch.frames, MessageId([i; 16]), &[b'a' + i], b"1");
            ends.push(batch.frames.len());
        }
        batch.set_minted(4);
        let fates = [Fate::Store, Fate::Store, Fate::Follows(0), Fate::Store, Fate::Store];
        let (pieces, table) = kept(&batch, &fates, FingerprintKey(9));
        assert_eq!(pieces.as_slice(), [&batch.frames[..ends[2]], &batch.frames[ends[3]..ends[5]],]);
        let minted: Vec<bool> =
            records::id_table(&table, 4).unwrap().map(records::is_minted).collect();
        assert_eq!(minted, [false, false, false, true]);
    }
}

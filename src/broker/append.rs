//! Push, at the shard of the partition: deciding which messages are new, and storing those.
//!
//! A batch is judged and appended in one step, so that of racing pushes of one transaction id
//! exactly one is stored. What a client compressed is stored as it came while nothing of it has
//! to change: no duplicate to leave out, nothing to encrypt. Else its frames are written anew.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use smallvec::smallvec;

use super::effect::Effects;
use super::partition::{BatchRef, Slot};
use super::records::{self, NIL_MESSAGE, PartitionRecord};
use super::shard::{Deferred, ReadUse, Shard};
use super::turns::{Resource, Ticket, Waiting};
use crate::base::buf::{Gather, IoBuf};
use crate::base::compress::{self, Compressor, Inflater};
use crate::base::ids::{LogPosition, MessageId, Offset, PartitionId, ShardId};
use crate::base::limits;
use crate::base::mutant::Mutant;
use crate::base::time::Now;
use crate::log::{AppendError, Class, Marks};
use crate::model::error::Refusal;
use crate::model::frame::{self, BATCH_HEAD_BYTES, BatchHead, CODEC_RAW, CODEC_ZSTD};
use crate::model::peer::{PeerMsg, PushBatch, PushPiece, TaskId};
use crate::model::reply::PushResult;

/// A batch that has reached the shard of its partition.
#[derive(Debug)]
pub(super) struct PeerPush {
    pub from: ShardId,
    pub task: TaskId,
    pub part: u32,
    pub batch: Box<PushBatch>,
}

/// A batch that waits until suspected originals are read from the disk.
#[derive(Debug)]
pub(super) struct WaitingPush<B> {
    push: PeerPush,
    missing: usize,
    read: ReadBodies<B>,
}

/// Bodies of batches read to verify suspected duplicates; `None`: they could not be read.
pub(super) type ReadBodies<B> = BTreeMap<LogPosition, Option<Gather<B>>>;

/// What becomes of one item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Store,
    /// Item of this batch that carries the same id.
    Follows(u32),
    Original {
        id: MessageId,
        offset: Offset,
    },
}

/// One item with what its frame says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub fate: Fate,
    id: MessageId,
    /// Its entry of the id table.
    entry: u64,
    /// Its piece, and where in it its frame begins and ends.
    pub piece: u32,
    from: u32,
    to: u32,
}

impl Judged {
    /// It came with an id of its own and repeats none of its batch.
    fn is_looked_up(&self) -> bool {
        matches!(self.fate, Fate::Store) && !records::is_minted(self.entry)
    }
}

/// Memory that judging and storing a batch take, kept from one to the next.
#[derive(Default)]
pub(super) struct Scratch {
    pub items: Vec<Judged>,
    /// Places in `items`, by fingerprint.
    seen: HashTable<u32>,
    found: Vec<(Offset, i64)>,
    pub table: Vec<u8>,
    /// Frames written anew, and those compressed.
    frames: Vec<u8>,
    packed: Vec<u8>,
    compressor: Compressor,
    originals: Originals,
}

/// The stored batch looked into last: the items of a repeated push lie in one.
#[derive(Default)]
struct Originals {
    at: Option<LogPosition>,
    inflater: Inflater,
    frames: Vec<u8>,
    /// Where each frame begins.
    starts: Vec<u32>,
}

impl Originals {
    /// Looks into the batch at `at`, whose body is `body`.
    fn open<B: IoBuf>(&mut self, at: LogPosition, body: &Gather<B>) {
        self.at = Some(at);
        self.starts.clear();
        open_batch(&body.contiguous(), &mut self.inflater, &mut self.frames);
        let mut rest = self.frames.as_slice();
        while let Some((_, after)) = frame::split_frame(rest) {
            self.starts.push((self.frames.len() - rest.len()) as u32);
            rest = after;
        }
    }

    fn nth(&self, index: usize) -> Option<frame::Frame<'_>> {
        let from = *self.starts.get(index)? as usize;
        frame::split_frame(&self.frames[from..]).map(|(frame, _)| frame)
    }

    fn forget(&mut self) {
        self.at = None;
        if self.frames.capacity() > limits::SCRATCH_RETAIN_MAX {
            self.frames = Vec::new();
        }
    }
}

/// Puts the frames of a batch record's body in place of what `frames` holds; none where they
/// cannot be read.
pub(super) fn open_batch(body: &[u8], inflater: &mut Inflater, frames: &mut Vec<u8>) {
    frames.clear();
    let Some(head) = BatchHead::decode(body) else { return };
    let end = BATCH_HEAD_BYTES + head.len as usize;
    let Some(stored) = body.get(BATCH_HEAD_BYTES..end) else { return };
    match head.codec {
        CODEC_ZSTD => {
            // A failure leaves no frames: nobody is told that he is a duplicate of damage.
            if let Some(size) = compress::content_bytes(stored, limits::INFLATED_BYTES_MAX) {
                let _ = inflater.inflate(stored, size, frames);
            }
        }
        _ => frames.extend_from_slice(stored),
    }
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn push_owned(&mut self, now: Now, push: PeerPush, fx: &mut Effects<B>) {
        // Names are only hashed where somebody holds something: order inside a partition.
        if !self.turns.is_empty() {
            let partition = Resource::append(&push.batch.queue, &push.batch.partition);
            if self.turns.is_held(partition) {
                self.stand_in_line(smallvec![partition], Waiting::Push(push));
                return;
            }
        }
        self.judge_push(now, None, push, ReadBodies::new(), fx);
    }

    /// Decides each item's fate and stores what is new, all in one step. If an original must be
    /// read first, the batch waits and the partition's later pushes wait behind it.
    pub(super) fn judge_push(
        &mut self,
        now: Now,
        ticket: Option<Ticket>,
        push: PeerPush,
        read: ReadBodies<B>,
        fx: &mut Effects<B>,
    ) {
        let Some(queue) = self.queue_as_of(&push.batch) else {
            let PeerPush { from, task, part, batch } = push;
            self.send(from, PeerMsg::PushStale { task, part, batch }, fx);
            return ticket.into_iter().for_each(|ticket| self.leave(now, ticket, fx));
        };
        let slot = self.state.parts.find(queue, &push.batch.partition);
        let mut needed = Vec::new();
        let mut scratch = self.scratch.take().unwrap_or_default();
        self.judge(now, queue, slot, &push.batch, &read, &mut scratch, &mut needed);
        let waits = !needed.is_empty();
        if waits {
            self.wait_for_originals(now, ticket, push, read, needed, fx);
        } else {
            self.store(now, queue, slot, push, &mut scratch, fx);
        }
        self.put_back(scratch);
        if let Some(ticket) = ticket.filter(|_| !waits) {
            self.leave(now, ticket, fx);
        }
    }

    /// The queue of a batch, if it is still the incarnation that the batch was made for.
    pub(super) fn queue_as_of(&self, batch: &PushBatch) -> Option<u32> {
        self.state.catalog.find(&batch.queue).filter(|slot| {
            let queue = self.state.catalog.get(*slot);
            queue.is_some_and(|queue| queue.image.incarnation == batch.incarnation)
        })
    }

    pub(super) fn put_back(&mut self, mut scratch: Box<Scratch>) {
        scratch.originals.forget();
        scratch.trim();
        self.scratch = Some(scratch);
    }

    /// What becomes of each item. Positions of batches that must be read before a fate is known
    /// are added to `needed`; those fates are then not to be used.
    #[expect(clippy::too_many_arguments, reason = "one batch with all that is known of it")]
    pub(super) fn judge(
        &mut self,
        now: Now,
        queue: u32,
        slot: Option<Slot>,
        batch: &PushBatch,
        read: &ReadBodies<B>,
        scratch: &mut Scratch,
        needed: &mut Vec<(LogPosition, u32)>,
    ) {
        let window =
            self.state.catalog.get(queue).map_or(0, |q| q.image.options.dedup_window_seconds);
        let window_us = i64::try_from(window).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let oldest_us = now.wall_us.saturating_sub(window_us);
        let key = self.log.fingerprint_key();
        scratch.items.clear();
        scratch.seen.clear();
        for (at, piece) in batch.pieces.iter().enumerate() {
            let mut rest = piece.frames.as_slice();
            while let Some((frame, after)) = frame::split_frame(rest) {
                let index = scratch.items.len();
                let minted = batch.is_minted(index);
                let fingerprint = key.fingerprint(frame.transaction_id);
                let end = piece.frames.len();
                scratch.items.push(Judged {
                    fate: Fate::Store,
                    id: frame.id,
                    entry: records::table_entry(fingerprint, minted),
                    piece: at as u32,
                    from: (end - rest.len()) as u32,
                    to: (end - after.len()) as u32,
                });
                rest = after;
                if !minted && let Some(first) = scratch.follows(batch, frame.transaction_id) {
                    scratch.items[index].fate = Fate::Follows(first);
                }
            }
        }
        if let Some(slot) = slot.filter(|_| window > 0) {
            let id = self.state.id_of(slot);
            let looked_up = scratch.items.iter().filter(|item| item.is_looked_up());
            let fingerprints = looked_up.map(|item| records::table_fingerprint(item.entry));
            self.state.dedup.warm(id, fingerprints);
            for index in 0..scratch.items.len() {
                if scratch.items[index].is_looked_up() {
                    scratch.items[index].fate = self
                        .find_original(now, slot, batch, index, oldest_us, read, scratch, needed);
                }
            }
        }
    }

    /// Looks an item up among what is stored.
    #[expect(clippy::too_many_arguments, reason = "one item with all that is known of it")]
    fn find_original(
        &mut self,
        now: Now,
        slot: Slot,
        batch: &PushBatch,
        index: usize,
        oldest_us: i64,
        read: &ReadBodies<B>,
        scratch: &mut Scratch,
        needed: &mut Vec<(LogPosition, u32)>,
    ) -> Fate {
        let id = self.state.id_of(slot);
        let fingerprint = records::table_fingerprint(scratch.items[index].entry);
        self.state.dedup.find(id, fingerprint, now.wall_us, &mut scratch.found);
        if scratch.found.is_empty() {
            return Fate::Store;
        }
        let transaction_id = id_of(batch, &scratch.items[index]);
        for (offset, stored_us) in &scratch.found {
            if *stored_us < oldest_us - super::dedup::TICK_US {
                continue;
            }
            let suspect = Suspect { offset: *offset, stored_us: *stored_us, oldest_us };
            match self.original(slot, suspect, transaction_id, read, &mut scratch.originals) {
                Original::No => {}
                Original::Is(id) => return Fate::Original { id, offset: *offset },
                Original::Unread(at, bytes) => needed.push((at, bytes)),
            }
        }
        Fate::Store
    }

    /// Whether the message at `offset` carries this id and is inside the window.
    fn original(
        &mut self,
        slot: Slot,
        suspect: Suspect,
        transaction_id: &[u8],
        read: &ReadBodies<B>,
        originals: &mut Originals,
    ) -> Original {
        let Suspect { offset, stored_us, oldest_us } = suspect;
        let Some(partition) = self.state.parts.get(slot) else { return Original::No };
        if offset < partition.log_start {
            // Removed by retention: the id itself is gone, its keyed 63-bit fingerprint is the
            // evidence left. Where its time is not known to the microsecond it is a duplicate
            // only while its window surely runs: a false one would be a lost message.
            let created_us = partition.dropped_created_us(offset).unwrap_or(stored_us);
            let inside = created_us >= oldest_us;
            return if inside { Original::Is(NIL_MESSAGE) } else { Original::No };
        }
        let Some(batch) = partition.batch_of(offset).copied() else { return Original::No };
        if batch.created_at_us < oldest_us {
            return Original::No;
        }
        if originals.at != Some(batch.at) {
            match read.get(&batch.at) {
                Some(Some(body)) => originals.open(batch.at, body),
                // Damaged: it cannot be verified, and storing a second copy would be worse than
                // naming the first.
                Some(None) => return Original::Is(NIL_MESSAGE),
                None if self.log.in_tail(batch.at) => {
                    match self.log.read(batch.at, batch.bytes, 0, &mut self.io) {
                        Some(body) => originals.open(batch.at, &body),
                        None => unreachable!("records in the tail are answered at once"),
                    }
                }
                None => return Original::Unread(batch.at, batch.bytes),
            }
        }
        match originals.nth((offset.0 - batch.base.0) as usize) {
            Some(stored) if stored.transaction_id == transaction_id => Original::Is(stored.id),
            _ => Original::No,
        }
    }

    /// The partition is held until they are read.
    fn wait_for_originals(
        &mut self,
        now: Now,
        ticket: Option<Ticket>,
        push: PeerPush,
        read: ReadBodies<B>,
        mut needed: Vec<(LogPosition, u32)>,
        fx: &mut Effects<B>,
    ) {
        needed.sort_unstable();
        needed.dedup();
        let job = ticket.unwrap_or_else(|| {
            let ticket = self.new_id();
            let partition = Resource::append(&push.batch.queue, &push.batch.partition);
            self.turns.enter(ticket, smallvec![partition]);
            ticket
        });
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
        self.judge_push(now, Some(job), waiting.push, waiting.read, fx);
    }

    /// Appends the pieces with the items that are new, and answers for all. Where the log
    /// refuses a later piece the whole is refused; who sends it again finds duplicates of what
    /// the earlier ones stored.
    fn store(
        &mut self,
        now: Now,
        queue: u32,
        slot: Option<Slot>,
        push: PeerPush,
        scratch: &mut Scratch,
        fx: &mut Effects<B>,
    ) {
        let early = Mutant::DuplicateBeforeDurable.active()
            && scratch.items.iter().any(|item| matches!(item.fate, Fate::Original { .. }));
        let PeerPush { from, task, part, batch } = push;
        let result = self.store_pieces(now, queue, slot, &batch, scratch);
        self.spares.put_batch(batch);
        let failed = result.is_err();
        let msg = PeerMsg::Pushed { task, part, result };
        if early || failed {
            self.send(from, msg, fx);
        } else {
            self.send_durable(from, msg);
        }
    }

    fn store_pieces(
        &mut self,
        now: Now,
        queue: u32,
        mut slot: Option<Slot>,
        batch: &PushBatch,
        scratch: &mut Scratch,
    ) -> Result<Vec<PushResult>, Refusal> {
        let items = std::mem::take(&mut scratch.items);
        let mut results = self.spares.push_results.take();
        results.reserve(items.len());
        for (piece, of_piece) in batch.pieces.iter().zip(items.chunk_by(|a, b| a.piece == b.piece))
        {
            let stored = of_piece.iter().filter(|item| item.fate == Fate::Store).count();
            let mut next = Some(Offset(0));
            if stored > 0 {
                next = match self
                    .append_piece(now, queue, &mut slot, batch, piece, of_piece, scratch)
                {
                    Ok(base) => Some(base),
                    Err(AppendError::TooLarge) => None,
                    Err(error) => {
                        scratch.items = items;
                        return Err(super::shard::refusal_of(&error));
                    }
                };
            }
            if next.is_some() {
                self.counters.pushed += stored as u64;
                self.count(queue, |t| t.push_messages += stored as u64);
                self.counters.duplicates += (of_piece.len() - stored) as u64;
            }
            for item in of_piece {
                let result = result_of(item, &mut next, &results);
                results.push(result);
            }
        }
        scratch.items = items;
        Ok(results)
    }

    /// Stores a piece and makes it part of its partition. Returns its first offset.
    #[expect(clippy::too_many_arguments, reason = "one piece with all that is known of it")]
    fn append_piece(
        &mut self,
        now: Now,
        queue: u32,
        slot: &mut Option<Slot>,
        batch: &PushBatch,
        piece: &PushPiece,
        items: &[Judged],
        scratch: &mut Scratch,
    ) -> Result<Offset, AppendError> {
        let slot = match *slot {
            Some(slot) => slot,
            None => *slot.insert(self.create_partition(now, queue, &batch.partition)?),
        };
        let partition = self.state.parts.get(slot).expect("found or created");
        let (base, created_at_us) = (partition.next_offset, partition.next_stamp(now));
        let stored =
            self.write_batch(records::BATCH, slot, base, created_at_us, piece, items, scratch)?;
        self.state.install_batch(slot, stored, &scratch.table, stored.at);
        self.shows_when_durable(slot, stored);
        Ok(base)
    }

    /// The messages of a batch can be had once what is appended now is durable.
    pub(super) fn shows_when_durable(&mut self, slot: Slot, stored: BatchRef) {
        self.undurable_bytes += stored.bytes as usize;
        let visible = Deferred::Visible { slot, to: stored.end(), bytes: stored.bytes };
        self.await_silently(visible);
    }

    /// One record: head, frames, id table. The table stays in `scratch`.
    #[expect(clippy::too_many_arguments, reason = "one piece with all that is known of it")]
    pub(super) fn write_batch(
        &mut self,
        kind: u8,
        slot: Slot,
        base: Offset,
        created_at_us: i64,
        piece: &PushPiece,
        items: &[Judged],
        scratch: &mut Scratch,
    ) -> Result<BatchRef, AppendError> {
        let id = self.state.id_of(slot);
        let queue = self.state.parts.get(slot).map(|partition| partition.queue);
        let encrypts = queue
            .and_then(|queue| self.state.catalog.get(queue))
            .is_some_and(|q| q.image.options.encryption_enabled);
        let seals = encrypts && self.config.keys.can_seal();
        let (codec, bytes) = self.encode_piece(id, piece, items, seals, scratch);
        scratch.table.clear();
        let mut count = 0;
        for item in items.iter().filter(|item| item.fate == Fate::Store) {
            scratch.table.extend_from_slice(&item.entry.to_le_bytes());
            count += 1;
        }
        let stored_bytes: &[u8] = match bytes {
            Source::Packed => &piece.packed,
            Source::Frames => &piece.frames,
            Source::Rewritten => &scratch.frames,
            Source::Compressed => &scratch.packed,
        };
        let len = u32::try_from(stored_bytes.len()).or(Err(AppendError::TooLarge))?;
        let head = BatchHead { base_offset: base, created_at_us, count, codec, len }.encode();
        let body = [&head[..], stored_bytes, &scratch.table];
        let appended = self.log.append(kind, id.0, &body, Class::Growing)?;
        self.count_source(piece, bytes);
        Ok(BatchRef { at: appended.at, base, created_at_us, bytes: appended.bytes, count })
    }

    fn count_source(&mut self, piece: &PushPiece, source: Source) {
        match source {
            Source::Packed => self.counters.groups_kept += 1,
            _ if !piece.packed.is_empty() => self.counters.groups_recoded += 1,
            Source::Compressed => self.counters.batches_compressed += 1,
            Source::Frames | Source::Rewritten => {}
        }
    }

    /// What is stored of a piece: as it came where it can be, else written into `scratch`.
    fn encode_piece(
        &mut self,
        partition: PartitionId,
        piece: &PushPiece,
        items: &[Judged],
        seals: bool,
        scratch: &mut Scratch,
    ) -> (u8, Source) {
        let whole = items.iter().all(|item| item.fate == Fate::Store)
            || Mutant::KeepsRepeats.active() && !piece.packed.is_empty();
        if whole && !seals && !piece.packed.is_empty() && !piece.recode {
            return (CODEC_ZSTD, Source::Packed);
        }
        let mut source = Source::Frames;
        if !whole || seals {
            source = Source::Rewritten;
            scratch.frames.clear();
            for item in items.iter().filter(|item| item.fate == Fate::Store) {
                let bytes = &piece.frames[item.from as usize..item.to as usize];
                if seals {
                    self.seal(partition, bytes, &mut scratch.frames);
                } else {
                    scratch.frames.extend_from_slice(bytes);
                }
            }
        }
        let frames = if source == Source::Frames { &piece.frames } else { &scratch.frames };
        let wanted = !piece.packed.is_empty()
            || self.config.compress_bytes.is_some_and(|least| frames.len() >= least);
        // Ciphertext does not shrink.
        if wanted && !seals && frames.len() <= limits::COMPRESS_BYTES_MAX {
            scratch.compressor.compress(frames, &mut scratch.packed);
            if scratch.packed.len() < frames.len() {
                return (CODEC_ZSTD, Source::Compressed);
            }
        }
        (CODEC_RAW, source)
    }

    /// Appends a frame with its payload encrypted.
    fn seal(&mut self, partition: PartitionId, bytes: &[u8], out: &mut Vec<u8>) {
        let Some((frame, _)) = frame::split_frame(bytes) else { return };
        let nonce = self.nonces.next();
        let place = frame::sealed_place(partition, frame.id);
        frame::write_encrypted(out, &frame, |out| {
            let sealed = self.config.keys.seal(nonce, &place, frame.payload, out);
            assert!(sealed, "only called where there is a key");
        });
    }

    pub(super) fn create_partition(
        &mut self,
        now: Now,
        queue: u32,
        name: &str,
    ) -> Result<Slot, AppendError> {
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
        self.count(queue, |t| t.partitions_created += 1);
        self.log.set_marks(Marks {
            partition_counter: self.state.parts.next_counter(),
            clock_us: now.wall_us,
            ..Marks::default()
        });
        Ok(slot)
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

/// Where the stored bytes of a piece come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// The client's own compressed bytes.
    Packed,
    /// The piece's frames.
    Frames,
    Rewritten,
    Compressed,
}

impl Scratch {
    /// One large batch does not keep its memory for good.
    fn trim(&mut self) {
        for buffer in [&mut self.frames, &mut self.packed] {
            if buffer.capacity() > limits::SCRATCH_RETAIN_MAX {
                *buffer = Vec::new();
            }
        }
    }

    /// The first item of this batch with the id of the item added last; if there is none, that
    /// item is remembered as the first.
    fn follows(&mut self, batch: &PushBatch, transaction_id: &[u8]) -> Option<u32> {
        let index = self.items.len() - 1;
        let fingerprint = self.items[index].entry;
        let same = |first: &u32| {
            let item = &self.items[*first as usize];
            item.entry == fingerprint && id_of(batch, item) == transaction_id
        };
        if let Some(first) = self.seen.find(fingerprint, same) {
            return Some(*first);
        }
        let items = &self.items;
        self.seen.insert_unique(fingerprint, index as u32, |other| items[*other as usize].entry);
        None
    }
}

fn id_of<'a>(batch: &'a PushBatch, item: &Judged) -> &'a [u8] {
    let piece = &batch.pieces[item.piece as usize];
    let bytes = &piece.frames[item.from as usize..item.to as usize];
    frame::split_frame(bytes).map_or(&[], |(frame, _)| frame.transaction_id)
}

/// What one item is told. `next` is the offset of the piece's next stored item; `None` where
/// the piece was not stored. An item may follow one of an earlier piece.
pub(super) fn result_of(
    item: &Judged,
    next: &mut Option<Offset>,
    earlier: &[PushResult],
) -> PushResult {
    const TOO_LARGE: &str = "larger than one append may be";
    match (item.fate, *next) {
        (Fate::Store, Some(offset)) => {
            *next = Some(Offset(offset.0 + 1));
            PushResult::Queued { id: item.id, offset }
        }
        (Fate::Store, None) => PushResult::Error { id: item.id, text: TOO_LARGE },
        (Fate::Original { id, offset }, _) => PushResult::Duplicate { id, offset },
        (Fate::Follows(first), _) => match earlier[first as usize] {
            PushResult::Queued { id, offset } | PushResult::Duplicate { id, offset } => {
                PushResult::Duplicate { id, offset }
            }
            PushResult::Error { text, .. } => PushResult::Error { id: item.id, text },
        },
    }
}

/// Nonces of this process: never the same twice under any key. The first part is random for
/// each start, the rest counts.
pub(super) struct Nonces {
    salt: u64,
    count: u32,
}

impl Nonces {
    pub(super) fn new(salt: u64) -> Self {
        Self { salt, count: 0 }
    }

    fn next(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.salt.to_le_bytes());
        nonce[8..].copy_from_slice(&self.count.to_le_bytes());
        self.count = self.count.wrapping_add(1);
        if self.count == 0 {
            self.salt = self.salt.wrapping_add(1);
        }
        nonce
    }
}

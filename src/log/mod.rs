//! Layer 2: the segment log of one shard. Synchronous, without I/O: it asks for disk operations
//! ([`io::LogIo`]) and is told how they ended ([`io::IoDone`]). Bytes and crash arguments:
//! `FORMAT.md` beside this.
//!
//! ```text
//!  append ──▶ chunk (filling) ──pump──▶ group (one write+sync in flight) ──▶ durable
//!                │ full segment            │ buffers shared
//!                ▼                         ▼
//!              roll ── manifest          tail ──▶ read          segment files ──▶ read
//! ```
//!
//! Owned by its shard, on whose core all of it runs. Invariants: appended ≥ written ≥ durable
//! (`positions`); one group in flight; no byte of a segment before the manifest that seals its
//! predecessor; a durable byte is never rewritten; after poison nothing is durable any more.
//! Payload copies: one, into the chunk; reads share buffers, except of the chunk being filled.
//! A read of a file brings neighbours with it where they are likely to be wanted (`read_ahead`).

mod chunk;
mod error;
mod footer;
mod format;
mod group;
mod inflight;
pub mod io;
mod manifest;
mod positions;
mod read;
mod read_ahead;
mod recovery;
mod roll;
mod segment;
pub mod storage;
mod suspect;
mod tail;
mod walk;

pub use error::{AppendError, OpenError, ReadError};
pub use format::Marks;
pub use recovery::{Record, Recovery};
pub use segment::SegmentInfo;

use crate::base::buf::{Gather, IoBuf};
use crate::base::checksum::crc32c;
use crate::base::fault::DiskError;
use crate::base::hash::FingerprintKey;
use crate::base::histogram::{Micros, Numbers, Sizes};
use crate::base::ids::{LogPosition, SegmentId, ShardId};
use crate::base::time::{Deadline, Now};
use chunk::Chunk;
use footer::Entry;
use format::{
    Geometry, KIND_BROKER_MIN, KIND_CLOSE, KIND_FINAL, KIND_WITNESS, RECORD_HEADER_BYTES,
    RecordHeader, Salt,
};
use group::Group;
use inflight::{InFlight, Purpose};
use io::{IoDone, LogIo};
use positions::Positions;
use read_ahead::ReadAhead;
use roll::{ManifestWriter, Roll};
use segment::{Active, Phase, Segments, Spares};
use smallvec::SmallVec;
use tail::Tail;

/// Bytes that may wait in memory for the disk. The broker's admission refuses long before; this
/// only keeps a stalled disk from taking all memory. Two of the largest appends fit.
const PENDING_BYTES_MAX: usize = 208 << 20;
/// Appends of this size have nothing to gain from more company.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// When nothing was appended for this long after a sync, the sync is witnessed.
const WITNESS_AFTER_MS: u64 = 20;
/// A write that found no space is tried again after this.
const REDO_AFTER_MS: u64 = 100;

const _: () = assert!(PENDING_BYTES_MAX >= 2 * crate::base::limits::APPEND_BYTES_MAX);

#[derive(Clone, Debug)]
pub struct LogConfig {
    pub shard: ShardId,
    pub shards: u16,
    /// Identity of the data directory: files of another one are refused.
    pub directory: [u8; 16],
    pub segment_bytes: u64,
    /// Bytes of newest buffers kept in memory.
    pub tail_bytes: usize,
    /// Bytes kept of what was read from the disk.
    pub read_ahead_bytes: usize,
    /// From the system's entropy; used when the log is created.
    pub entropy: u64,
}

/// Where a record went and how long it is, header included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    pub at: LogPosition,
    pub bytes: u32,
}

/// What an append is for: who gets the last room on a full disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Pushes: they fill the disk.
    Growing,
    /// Acks, leases, cursor moves, deletes: they let it become empty.
    Essential,
}

/// What a completion meant.
#[derive(Debug)]
pub enum Completion<B> {
    Quiet,
    /// [`Log::durable`] has moved.
    Durable,
    /// Reads of [`Log::read`] have ended, or none yet: one that fails for many goes on for each.
    Reads(SmallVec<[EndedRead<B>; 1]>),
    /// From now on nothing becomes durable: see [`Log::fault`].
    Poisoned,
}

/// A read of [`Log::read`] that took a while.
#[derive(Debug)]
pub struct EndedRead<B> {
    pub key: u64,
    pub result: Result<Gather<B>, ReadError>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LogStats {
    /// Bytes of records appended, headers included.
    pub appended_bytes: u64,
    /// Bytes handed to writes of chunks, padding included.
    pub written_bytes: u64,
    pub syncs: u64,
    pub writes: u64,
    /// Operations that read, and what they read.
    pub reads: u64,
    pub read_bytes: u64,
    pub segments: u64,
    /// Bytes that the segments hold.
    pub bytes: u64,
    /// Appended and not durable.
    pub pending_bytes: u64,
    /// From the submission of a chunk to its durability, and the last one.
    pub commit_us: Micros,
    pub last_commit_us: u64,
    /// Records and bytes of one chunk.
    pub commit_records: Numbers,
    pub commit_bytes: Sizes,
}

/// The last record of the chain: what the next one names.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Chain {
    checksum: u32,
    /// Number of the next record.
    next_number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stopping {
    No,
    /// What was appended is on its way.
    Draining,
    /// The final marker is on its way.
    Marking,
    Stopped,
}

pub struct Log<B: IoBuf> {
    config: LogConfig,
    geometry: Geometry,
    salt: Salt,
    next_segment: u32,
    epoch: u64,
    marks: Marks,
    chain: Chain,
    positions: Positions,
    /// `None` after opening, until the first append takes a spare.
    active: Option<Active>,
    filling: Chunk<B>,
    /// About the largest chunk of late, in bytes.
    usual_chunk: usize,
    group: Option<Group<B>>,
    roll: Option<Roll<B>>,
    segments: Segments,
    spares: Spares,
    manifest: ManifestWriter<B>,
    tail: Tail<B>,
    ahead: ReadAhead<B>,
    in_flight: InFlight,
    /// Operations that found no space, and when to ask for them again.
    redo: Vec<Purpose>,
    redo_at: Option<Deadline>,
    /// Set while a durable chunk has no witness: when to write one.
    witness_at: Option<Deadline>,
    growing_refused: bool,
    stopping: Stopping,
    fault: Option<String>,
    stats: LogStats,
    /// Monotonic time of the call that runs.
    now_us: u64,
    /// Records in the chunk being filled, for the statistics.
    records: u64,
}

impl<B: IoBuf> Log<B> {
    /// Notes the shard's high-water marks; the next segment header and manifest carry them.
    pub fn set_marks(&mut self, marks: Marks) {
        self.marks = self.marks.max(marks);
    }

    /// Takes a record into memory. It is durable once [`Log::durable`] has reached what
    /// [`Log::appended`] is now. The parts of `body` lie one behind the other in the file.
    pub fn append(
        &mut self,
        kind: u8,
        key: u64,
        body: &[&[u8]],
        class: Class,
    ) -> Result<Appended, AppendError> {
        assert!(kind >= KIND_BROKER_MIN, "kinds below 16 are the log's own");
        if self.fault.is_some() || self.stopping != Stopping::No {
            return Err(AppendError::Stopped);
        }
        let body_bytes: usize = body.iter().map(|part| part.len()).sum();
        if body_bytes > self.geometry.body_bytes_max() {
            return Err(AppendError::TooLarge);
        }
        if class == Class::Growing && self.is_reserve_only() {
            return Err(AppendError::NoSpace);
        }
        if self.pending_bytes() + body_bytes > PENDING_BYTES_MAX {
            return Err(AppendError::Busy);
        }
        if !self.fits(body_bytes) {
            self.roll_over(class)?;
        }
        Ok(self.put(kind, key, body))
    }

    /// Just past the newest record: a reply that shows what is in memory now waits for this.
    pub fn appended(&self) -> LogPosition {
        self.positions.appended()
    }

    /// Everything before it is durable.
    pub fn durable(&self) -> LogPosition {
        self.positions.durable()
    }

    /// A group is in flight.
    pub fn is_committing(&self) -> bool {
        self.group.is_some()
    }

    /// There are appends that are not on their way to the disk.
    pub fn has_pending(&self) -> bool {
        !self.filling.is_empty()
    }

    /// There are appends, [`Log::pump`] would write them now, and they may as well wait for more.
    pub fn may_wait(&self) -> bool {
        let pending = !self.filling.is_empty() && self.filling.len() < WAITING_BYTES_MAX;
        pending && self.group.is_none() && self.roll.is_none() && self.stopping == Stopping::No
    }

    /// Asks for what can be asked for. To be called once for all appends that are at hand
    /// together, so that they share a chunk, and at once, so that a lone one does not wait.
    pub fn pump(&mut self, now: Now, io: &mut Vec<LogIo<B>>) {
        self.now_us = now.mono_us;
        if self.fault.is_some() {
            return;
        }
        self.submit(io);
        self.drive_roll(io);
        self.drive_manifest(io);
        self.drive_recycling(io);
        self.drive_spares(now, io);
        self.drive_stop(io);
    }

    /// An operation has ended. What directly follows it is asked for at once.
    pub fn complete(&mut self, now: Now, done: IoDone<B>, io: &mut Vec<LogIo<B>>) -> Completion<B> {
        self.now_us = now.mono_us;
        let purpose = self.in_flight.take(done.id);
        if let Purpose::Read(read) = purpose {
            return self.complete_read(read, done.result, io);
        }
        if self.fault.is_some() {
            return Completion::Quiet;
        }
        match done.result {
            Ok(_) => self.succeeded(now, purpose, io),
            Err(error) => self.failed(now, purpose, error, io),
        }
    }

    /// To be called once [`Log::next_deadline`] has passed.
    pub fn tick(&mut self, now: Now, io: &mut Vec<LogIo<B>>) {
        self.now_us = now.mono_us;
        if self.fault.is_some() {
            return;
        }
        if self.redo_at.is_some_and(|at| at.passed(now)) {
            self.redo_at = None;
            for purpose in std::mem::take(&mut self.redo) {
                self.issue(purpose, io);
            }
        }
        if self.is_idle() && self.witness_at.is_some_and(|at| at.passed(now)) {
            self.witness_at = None;
            self.witness(io);
        }
        self.pump(now, io);
    }

    /// When [`Log::tick`] is next wanted; may change with every call of another method.
    pub fn next_deadline(&self) -> Option<Deadline> {
        if self.fault.is_some() {
            return None;
        }
        let witness = self.witness_at.filter(|_| self.is_idle());
        let spare = self.spares.retry_at.filter(|_| self.wants_spare());
        [witness, spare, self.redo_at].into_iter().flatten().min()
    }

    /// Takes no more appends; writes out what there is and then the marker of a clean stop.
    pub fn stop(&mut self, now: Now, io: &mut Vec<LogIo<B>>) {
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Draining;
        }
        self.pump(now, io);
    }

    /// The final marker is durable and nothing is in flight. After a fault: only the latter.
    pub fn is_stopped(&self) -> bool {
        let ended = self.stopping == Stopping::Stopped
            || self.stopping != Stopping::No && self.fault.is_some();
        ended && self.in_flight.is_empty()
    }

    /// Why this log takes nothing any more, if so.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Growing appends are refused for want of space (small ones may still find room at the
    /// end of the active segment).
    pub fn no_space(&self) -> bool {
        self.is_reserve_only() || self.spares.no_space && self.growing_refused
    }

    /// Appends need not wait for a new log's first files, or waiting would not help.
    pub fn has_begun(&self) -> bool {
        self.active.is_some()
            || self.spares.ready.len() >= segment::SPARES_WANTED
            || self.spares.retry_at.is_some()
    }

    pub fn stats(&self) -> LogStats {
        LogStats {
            segments: self.segments.len() as u64,
            bytes: self.segments().map(|segment| segment.bytes).sum(),
            pending_bytes: self.pending_bytes() as u64,
            ..self.stats
        }
    }

    /// The segments that count, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> {
        let counted = self.segments.iter().filter(|segment| segment.phase <= Phase::Live);
        counted.map(|segment| {
            let (bytes, sealed) = match segment.entry.state {
                manifest::SegmentState::Sealed(seal) => (seal.data_bytes, true),
                manifest::SegmentState::Open => (self.open_bytes(segment.entry.segment), false),
            };
            SegmentInfo { id: segment.entry.segment, bytes, sealed }
        })
    }

    /// Key of transaction id fingerprints: fixed for the life of the directory, as unguessable
    /// as the salt, and not the salt.
    pub fn fingerprint_key(&self) -> FingerprintKey {
        let mut mix = crate::base::prng::Prng::new(format::u64_at(&self.salt.0, 0));
        let mut key = mix.fork(format::u64_at(&self.salt.0, 8));
        FingerprintKey(key.next_u64())
    }

    fn open_bytes(&self, segment: SegmentId) -> u64 {
        if self.filling.segment() == segment {
            return self.filling.end();
        }
        self.roll.as_ref().map_or(0, |roll| roll.old_data_bytes(segment))
    }

    /// The disk is full and the reserve is in use, or a write waits for space.
    fn is_reserve_only(&self) -> bool {
        self.spares.no_space && self.spares.ready.is_empty() || !self.redo.is_empty()
    }

    fn fits(&self, body_bytes: usize) -> bool {
        self.active.as_ref().is_some_and(|a| a.geometry.fits(self.filling.end(), body_bytes))
    }

    fn pending_bytes(&self) -> usize {
        let rolling = self.roll.as_ref().map_or(0, Roll::pending_bytes);
        let group = self.group.as_ref().map_or(0, |group| group.bytes() as usize);
        self.filling.len() + rolling + group
    }

    /// Nothing waits to be written and nothing is being written.
    fn is_idle(&self) -> bool {
        let quiet = self.group.is_none() && self.roll.is_none() && self.filling.is_empty();
        quiet && self.stopping == Stopping::No
    }

    /// Puts one record at the end of the chunk. The caller has seen that it fits.
    fn put(&mut self, kind: u8, key: u64, body: &[&[u8]]) -> Appended {
        let body_bytes: usize = body.iter().map(|part| part.len()).sum();
        self.filling.prepare(2 * RECORD_HEADER_BYTES + body_bytes);
        let at = self.filling.align();
        let segment = self.filling.segment();
        let active = self.active.as_mut().unwrap_or_else(|| panic!("a record needs a segment"));
        let seed = active.place.seed(at);
        let header = RecordHeader {
            kind,
            key,
            synced: self.positions.durable(),
            prev: self.chain.checksum,
            number: self.chain.next_number,
            body_bytes: body_bytes as u32,
            body_crc: body.iter().fold(seed, |crc, part| crc32c(crc, part)),
        };
        let (bytes, checksum) = header.encode(seed);
        self.filling.put(&bytes);
        body.iter().for_each(|part| self.filling.put(part));
        self.chain = Chain { checksum, next_number: self.chain.next_number.wrapping_add(1) };
        if kind >= KIND_BROKER_MIN {
            self.records += 1;
            active.index.push(Entry { kind, at, body_bytes: body_bytes as u32, key });
        }
        active.data_bytes = self.filling.end();
        self.stats.appended_bytes += (RECORD_HEADER_BYTES + body_bytes) as u64;
        self.positions.set_appended(LogPosition::new(segment, self.filling.end()));
        Appended {
            at: LogPosition::new(segment, at),
            bytes: (RECORD_HEADER_BYTES + body_bytes) as u32,
        }
    }

    /// One empty record in a chunk of its own, to say that all before it is durable.
    fn put_marker(&mut self, kind: u8, io: &mut Vec<LogIo<B>>) {
        assert!(self.filling.is_empty() && self.group.is_none(), "a marker follows everything");
        self.filling = Chunk::marker(self.filling.segment(), self.filling.end());
        self.put(kind, 0, &[]);
        self.launch_filling(io);
    }

    fn witness(&mut self, io: &mut Vec<LogIo<B>>) {
        let Some(active) = &self.active else { return };
        if self.filling.end() + format::BLOCK <= active.geometry.chunks_end() {
            self.put_marker(KIND_WITNESS, io);
        } else {
            // No room is left: sealing the segment witnesses even more. Without a spare to
            // take over, the next roll does it.
            let _ = self.roll_over(Class::Growing);
        }
    }

    fn drive_stop(&mut self, io: &mut Vec<LogIo<B>>) {
        let quiet = self.group.is_none() && self.roll.is_none() && self.filling.is_empty();
        if self.stopping != Stopping::Draining || !quiet {
            return;
        }
        if self.active.is_some() {
            self.stopping = Stopping::Marking;
            self.put_marker(KIND_FINAL, io);
        } else {
            self.stopping = Stopping::Stopped;
        }
    }

    /// Ends the chunk being filled with its closing record.
    fn close_filling(&mut self) -> chunk::Closed<B> {
        self.put(KIND_CLOSE, 0, &[]);
        self.take_filling()
    }

    fn take_filling(&mut self) -> chunk::Closed<B> {
        let segment = self.filling.segment();
        let chunk = std::mem::replace(&mut self.filling, Chunk::new(segment, 0, 0));
        // A little less than the largest of late: what does not fit is a write more and a sync.
        self.usual_chunk = chunk.len().max(self.usual_chunk - self.usual_chunk / 8);
        let expected = self.usual_chunk;
        let closed = chunk.close();
        self.filling = Chunk::new(segment, closed.end().byte(), expected);
        self.tail.push(&closed);
        self.positions.set_appended(closed.end());
        closed
    }

    fn poison(&mut self, what: String, error: DiskError) -> Completion<B> {
        self.fault = Some(format!("{what}: {error}"));
        Completion::Poisoned
    }
}

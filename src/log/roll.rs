//! Rolling over to the next segment, the manifest, spares, and what becomes of released
//! segments: the sequences of `FORMAT.md` 6, one operation after the other.
//!
//! The roll is a chain of stages; each completion asks for the next operation. The manifest
//! writer is shared by rolls and releases: a change marks it dirty, and one write to both slots
//! carries all changes that wait for one.

use super::chunk::{Chunk, Closed};
use super::footer::FooterEnd;
use super::format::{KIND_SEGMENT, Place, SegmentHeader};
use super::inflight::Purpose;
use super::io::{FileId, LogIo};
use super::manifest::{Manifest, ManifestEntry, SEGMENTS_MAX, SLOT_BYTES, Seal, SegmentState};
use super::segment::{Active, Phase, SPARES_MAX, SPARES_WANTED, Segments};
use super::{AppendError, Class, Log, Stopping};
use crate::base::buf::IoBuf;
use crate::base::ids::{LogPosition, SegmentId};
use crate::base::mutant::Mutant;
use crate::base::time::Now;

/// Segment numbers end where positions do.
pub const SEGMENT_NUMBER_MAX: u32 = (1 << 28) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The old segment's chunks are still on their way.
    Draining,
    /// Footer, rename, directory: one operation of the sequence is in flight.
    Working,
    /// Everything is in place for a manifest that seals the old and names the new.
    Ready,
    /// That manifest is being written.
    InManifest,
}

/// A roll from its decision in memory to its manifest.
pub struct Roll<B> {
    stage: Stage,
    spare: u32,
    new: SegmentId,
    old: Option<Old<B>>,
}

/// The segment being left.
struct Old<B> {
    active: Active,
    seal: Seal,
    last: Option<Closed<B>>,
    footer: Option<B>,
}

impl<B: IoBuf> Roll<B> {
    pub fn take_last_chunk(&mut self) -> Option<Closed<B>> {
        self.old.as_mut().and_then(|old| old.last.take())
    }

    pub fn old_data_bytes(&self, segment: SegmentId) -> u64 {
        let old = self.old.as_ref().filter(|old| old.active.id == segment);
        old.map_or(0, |old| old.seal.data_bytes)
    }

    pub fn pending_bytes(&self) -> usize {
        let last = self.old.as_ref().and_then(|old| old.last.as_ref());
        last.map_or(0, |chunk| chunk.len as usize)
    }
}

/// Writes a manifest to both slots, one after the other, each synced.
pub struct ManifestWriter<B> {
    pub sequence: u64,
    /// Something changed that no manifest in flight carries.
    pub dirty: bool,
    writing: Option<Writing<B>>,
}

struct Writing<B> {
    slot: usize,
    buf: B,
}

impl<B> ManifestWriter<B> {
    pub fn new(sequence: u64) -> Self {
        Self { sequence, dirty: false, writing: None }
    }
}

impl<B: IoBuf> Log<B> {
    /// Sealed segments before `segment` are no longer needed. Their files are free once a
    /// manifest without them is durable and no read pins them. The last one with something durable
    /// in it stays: see [`Extent`](crate::base::extent::Extent).
    pub fn release_before(&mut self, segment: SegmentId, io: &mut Vec<LogIo<B>>) {
        if self.fault.is_some() {
            return;
        }
        let segment = segment.min(self.positions.durable().segment());
        for old in self.segments.iter_mut() {
            let free = old.phase == Phase::Live && Segments::is_sealed(&old.entry);
            if free && old.entry.segment < segment {
                old.phase = Phase::Leaving;
                self.manifest.dirty = true;
            }
        }
        self.drive_manifest(io);
    }

    /// Takes a spare for the next segment, in memory, so that appends go on at once.
    pub(super) fn roll_over(&mut self, class: Class) -> Result<(), AppendError> {
        let wanted = match class {
            Class::Growing => SPARES_WANTED,
            Class::Essential => 1,
        };
        let full = self.segments.len() >= SEGMENTS_MAX || self.next_segment > SEGMENT_NUMBER_MAX;
        if full || self.roll.is_some() || self.spares.ready.len() < wanted {
            if class == Class::Growing && self.spares.no_space {
                self.growing_refused = true;
            }
            let space = full || self.spares.no_space && self.spares.ready.len() < wanted;
            return Err(if space { AppendError::NoSpace } else { AppendError::Busy });
        }
        let Some(spare) = self.spares.ready.pop_front() else { return Err(AppendError::Busy) };
        let old = self.leave_segment();
        let new = self.enter_segment();
        self.roll = Some(Roll { stage: Stage::Draining, spare, new, old });
        self.growing_refused = false;
        Ok(())
    }

    /// Closes the active segment in memory.
    fn leave_segment(&mut self) -> Option<Old<B>> {
        let last = (!self.filling.is_empty()).then(|| self.close_filling());
        let active = self.active.take()?;
        let seal = Seal {
            data_bytes: active.data_bytes,
            last_checksum: self.chain.checksum,
            last_number: self.chain.next_number.wrapping_sub(1),
        };
        Some(Old { active, seal, last, footer: None })
    }

    /// Opens the next segment in memory: number, epoch, header record.
    fn enter_segment(&mut self) -> SegmentId {
        let id = SegmentId(self.next_segment);
        let previous = self.segments.iter().last().map_or(SegmentId(0), |s| s.entry.segment);
        self.next_segment += 1;
        self.epoch += 1;
        let entry = ManifestEntry {
            segment: id,
            epoch: self.epoch,
            file_bytes: self.config.segment_bytes,
            state: SegmentState::Open,
        };
        self.segments.push(entry, Phase::Coming);
        self.active = Some(Active {
            id,
            place: Place::new(self.salt, id, self.epoch),
            geometry: self.geometry,
            index: super::footer::FooterIndex::new(self.geometry),
            data_bytes: 0,
        });
        self.filling = Chunk::new(id, 0, 0);
        let header = SegmentHeader {
            shard: self.config.shard,
            shards: self.config.shards,
            segment: id,
            previous,
            epoch: self.epoch,
            directory: self.config.directory,
            marks: self.marks,
        };
        self.positions.set_appended(LogPosition::new(id, 0));
        self.put(KIND_SEGMENT, 0, &[&header.encode()]);
        id
    }

    /// Begins the work on the files once the old segment is durable in full.
    pub(super) fn drive_roll(&mut self, io: &mut Vec<LogIo<B>>) {
        let Some(roll) = &mut self.roll else { return };
        let drained = self.group.is_none() && roll.old.as_ref().is_none_or(|o| o.last.is_none());
        if roll.stage != Stage::Draining || !drained {
            return;
        }
        roll.stage = Stage::Working;
        let first = match &mut roll.old {
            None => Purpose::RollRename,
            Some(old) => {
                let mut footer = B::alloc(old.active.geometry.footer_bytes() as usize);
                let end = FooterEnd { data_bytes: old.seal.data_bytes, marks: self.marks };
                let (place, geometry) = (old.active.place, old.active.geometry);
                old.active.index.encode(footer.bytes_mut(), place, geometry, end);
                old.footer = Some(footer);
                Purpose::FooterWrite
            }
        };
        self.issue(first, io);
    }

    /// The operation behind a purpose of a sequence.
    pub(super) fn describe(&mut self, purpose: Purpose) -> LogIo<B> {
        let roll = |log: &Self| -> (u32, SegmentId) {
            log.roll.as_ref().map(|r| (r.spare, r.new)).unwrap_or_else(|| panic!("no roll"))
        };
        let id = self.in_flight.put(purpose.clone());
        match purpose {
            Purpose::FooterWrite => {
                let (file, at, buf) = self.footer_write();
                let len = buf.bytes().len();
                LogIo::Write { id, file, at, buf, len, durable: false }
            }
            Purpose::FooterSync => {
                let (file, ..) = self.footer_write();
                self.stats.syncs += 1;
                LogIo::Sync { id, file }
            }
            Purpose::RollRename => {
                let (spare, new) = roll(self);
                LogIo::Rename { id, from: FileId::Spare(spare), to: FileId::Segment(new) }
            }
            Purpose::RollSyncDir => LogIo::SyncDir { id },
            Purpose::ManifestWrite => {
                let writing = self.writing();
                let (at, buf) = ((writing.slot * SLOT_BYTES) as u64, writing.buf.clone());
                let len = buf.bytes().len();
                LogIo::Write { id, file: FileId::Manifest, at, buf, len, durable: false }
            }
            Purpose::ManifestSync => {
                self.stats.syncs += 1;
                LogIo::Sync { id, file: FileId::Manifest }
            }
            Purpose::SpareCreate { number } => {
                LogIo::Create { id, file: FileId::Spare(number), bytes: self.config.segment_bytes }
            }
            Purpose::SpareSync { number } => LogIo::Sync { id, file: FileId::Spare(number) },
            other => panic!("{other:?} is asked for elsewhere"),
        }
    }

    fn footer_write(&self) -> (FileId, u64, B) {
        let old = self.roll.as_ref().and_then(|roll| roll.old.as_ref());
        let parts = old.and_then(|old| {
            let footer = old.footer.clone()?;
            Some((FileId::Segment(old.active.id), old.active.geometry.data_end(), footer))
        });
        parts.unwrap_or_else(|| panic!("no segment is being left"))
    }

    fn writing(&self) -> &Writing<B> {
        self.manifest.writing.as_ref().unwrap_or_else(|| panic!("no manifest is being written"))
    }

    /// An operation of a sequence has succeeded: on to the next.
    pub(super) fn step_succeeded(&mut self, purpose: Purpose, io: &mut Vec<LogIo<B>>) {
        match purpose {
            Purpose::FooterWrite => self.issue(Purpose::FooterSync, io),
            Purpose::FooterSync => self.issue(Purpose::RollRename, io),
            Purpose::RollRename if Mutant::NoDirectorySync.active() => self.roll_ready(io),
            Purpose::RollRename => self.issue(Purpose::RollSyncDir, io),
            Purpose::RollSyncDir => self.roll_ready(io),
            Purpose::ManifestWrite if Mutant::NoManifestSync.active() => self.slot_durable(io),
            Purpose::ManifestWrite => self.issue(Purpose::ManifestSync, io),
            Purpose::ManifestSync => self.slot_durable(io),
            Purpose::SpareCreate { number } => self.issue(Purpose::SpareSync { number }, io),
            Purpose::SpareSync { number } | Purpose::Recycle { number } => {
                self.spares.arrived(number);
                self.growing_refused &= self.spares.ready.len() < SPARES_WANTED;
            }
            Purpose::Remove => {}
            other => panic!("{other:?} ends elsewhere"),
        }
    }

    /// The old segment is complete and the new file has its name: the manifest may say so.
    fn roll_ready(&mut self, io: &mut Vec<LogIo<B>>) {
        let Some(roll) = &mut self.roll else { return };
        roll.stage = Stage::Ready;
        let (new, old) = (roll.new, roll.old.as_ref().map(|old| (old.active.id, old.seal)));
        if let Some((id, seal)) = old
            && let Some(segment) = self.segments.find(id)
        {
            segment.entry.state = SegmentState::Sealed(seal);
        }
        if let Some(segment) = self.segments.find(new) {
            segment.phase = Phase::Live;
        }
        self.manifest.dirty = true;
        self.drive_manifest(io);
    }

    /// Begins to write a manifest if one is wanted and none is being written.
    pub(super) fn drive_manifest(&mut self, io: &mut Vec<LogIo<B>>) {
        if !self.manifest.dirty || self.manifest.writing.is_some() {
            return;
        }
        self.manifest.dirty = false;
        self.manifest.sequence += 1;
        self.segments.exclude_leaving();
        if let Some(roll) = self.roll.as_mut().filter(|roll| roll.stage == Stage::Ready) {
            roll.stage = Stage::InManifest;
        }
        let encoded = self.manifest_now().encode();
        let mut buf = B::alloc(encoded.len());
        buf.bytes_mut().copy_from_slice(&encoded);
        self.manifest.writing = Some(Writing { slot: 0, buf });
        self.issue(Purpose::ManifestWrite, io);
    }

    fn manifest_now(&self) -> Manifest {
        Manifest {
            sequence: self.manifest.sequence,
            directory: self.config.directory,
            shard: self.config.shard,
            shards: self.config.shards,
            salt: self.salt,
            next_segment: self.next_segment,
            epoch: self.epoch,
            marks: self.marks,
            segments: self.segments.manifest_entries(),
        }
    }

    fn slot_durable(&mut self, io: &mut Vec<LogIo<B>>) {
        let Some(writing) = &mut self.manifest.writing else { return };
        if writing.slot == 0 {
            writing.slot = 1;
            return self.issue(Purpose::ManifestWrite, io);
        }
        self.manifest.writing = None;
        self.segments.excluded_are_gone();
        if self.roll.as_ref().is_some_and(|roll| roll.stage == Stage::InManifest) {
            self.roll = None;
        }
        self.drive_recycling(io);
        self.drive_manifest(io);
    }

    /// Files of released segments become spares, up to a bound, or go.
    pub(super) fn drive_recycling(&mut self, io: &mut Vec<LogIo<B>>) {
        while let Some(entry) = self.segments.take_gone() {
            let from = FileId::Segment(entry.segment);
            if entry.file_bytes == self.config.segment_bytes && self.spares.total() < SPARES_MAX {
                let number = self.spares.take_number();
                self.spares.coming += 1;
                let id = self.in_flight.put(Purpose::Recycle { number });
                io.push(LogIo::Rename { id, from, to: FileId::Spare(number) });
            } else {
                let id = self.in_flight.put(Purpose::Remove);
                io.push(LogIo::Remove { id, file: from });
            }
        }
    }

    pub(super) fn wants_spare(&self) -> bool {
        self.stopping == Stopping::No && self.spares.total() < SPARES_WANTED
    }

    pub(super) fn drive_spares(&mut self, now: Now, io: &mut Vec<LogIo<B>>) {
        // One after the other: the first, which a new log begins in, is there sooner.
        if self.spares.coming == 0
            && self.wants_spare()
            && self.spares.retry_at.is_none_or(|at| at.passed(now))
        {
            let number = self.spares.take_number();
            self.spares.coming += 1;
            self.spares.retry_at = None;
            self.issue(Purpose::SpareCreate { number }, io);
        }
    }
}

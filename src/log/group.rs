//! Group commit: the chunk in flight. A chunk of one buffer goes out as one durable write; of
//! several, all are written at once and one fdatasync follows the last. Then everything up to the
//! chunk's end is durable. The next chunk fills meanwhile and goes out with the first `pump`
//! after that.

use super::chunk::Closed;
use super::inflight::Purpose;
use super::io::{FileId, LogIo};
use super::{Completion, Log, REDO_AFTER_MS, Stopping, WITNESS_AFTER_MS};
use crate::base::buf::IoBuf;
use crate::base::fault::DiskError;
use crate::base::ids::LogPosition;
use crate::base::mutant::Mutant;
use crate::base::time::Now;

/// The one chunk between submission and sync.
pub struct Group<B> {
    chunk: Closed<B>,
    writes_left: usize,
    /// A witness or final marker: needs no witness itself.
    marker: bool,
    /// Monotonic time of its submission.
    since_us: u64,
}

impl<B: IoBuf> Group<B> {
    pub fn bytes(&self) -> u64 {
        self.chunk.len
    }

    fn end(&self) -> LogPosition {
        self.chunk.end()
    }

    fn is_one_write(&self) -> bool {
        self.chunk.pieces.len() == 1
    }
}

impl<B: IoBuf> Log<B> {
    /// Sends out the chunk whose turn it is, if none is in flight. The new segment of a roll
    /// waits until the roll is done.
    pub(super) fn submit(&mut self, io: &mut Vec<LogIo<B>>) {
        if self.group.is_some() {
            return;
        }
        if let Some(roll) = &mut self.roll {
            if let Some(last) = roll.take_last_chunk() {
                self.launch(last, false, io);
            }
            return;
        }
        if !self.filling.is_empty() {
            let chunk = self.close_filling();
            self.launch(chunk, false, io);
        }
    }

    /// Sends out a marker's chunk, which has no closing record.
    pub(super) fn launch_filling(&mut self, io: &mut Vec<LogIo<B>>) {
        let chunk = self.take_filling();
        self.launch(chunk, true, io);
    }

    fn launch(&mut self, chunk: Closed<B>, marker: bool, io: &mut Vec<LogIo<B>>) {
        assert!(self.group.is_none(), "one group in flight");
        let pieces = chunk.pieces.len();
        self.stats.written_bytes += chunk.len;
        self.witness_at = None;
        let records = std::mem::take(&mut self.records);
        if !marker {
            self.stats.commit_records.record(records);
            self.stats.commit_bytes.record(chunk.len);
        }
        self.group = Some(Group { chunk, writes_left: pieces, marker, since_us: self.now_us });
        for piece in 0..pieces {
            self.issue(Purpose::ChunkWrite { piece }, io);
        }
    }

    /// Asks for one operation; also again, for those that found no space.
    pub(super) fn issue(&mut self, purpose: Purpose, io: &mut Vec<LogIo<B>>) {
        let op = match &purpose {
            Purpose::ChunkWrite { piece } => {
                let group = self.group.as_ref().unwrap_or_else(|| panic!("no group in flight"));
                let piece = &group.chunk.pieces[*piece];
                let (file, at) = (FileId::Segment(group.chunk.segment), piece.at);
                let (buf, len) = (piece.buf.clone(), piece.len);
                let durable = group.is_one_write() && !Mutant::NoDataSync.active();
                self.stats.writes += 1;
                self.stats.syncs += u64::from(durable);
                let id = self.in_flight.put(purpose);
                LogIo::Write { id, file, at, buf, len, durable }
            }
            Purpose::ChunkSync => {
                let group = self.group.as_ref().unwrap_or_else(|| panic!("no group in flight"));
                let file = FileId::Segment(group.chunk.segment);
                self.stats.syncs += 1;
                LogIo::Sync { id: self.in_flight.put(purpose), file }
            }
            _ => self.describe(purpose),
        };
        io.push(op);
    }

    pub(super) fn succeeded(
        &mut self,
        now: Now,
        purpose: Purpose,
        io: &mut Vec<LogIo<B>>,
    ) -> Completion<B> {
        match purpose {
            Purpose::ChunkWrite { .. } => self.complete_write(now, io),
            Purpose::ChunkSync => self.complete_sync(now),
            other => {
                self.step_succeeded(other, io);
                Completion::Quiet
            }
        }
    }

    fn complete_write(&mut self, now: Now, io: &mut Vec<LogIo<B>>) -> Completion<B> {
        let group = self.group.as_mut().unwrap_or_else(|| panic!("a write of no group"));
        group.writes_left -= 1;
        if group.writes_left > 0 {
            return Completion::Quiet;
        }
        self.positions.set_written(group.chunk.end());
        if group.is_one_write() || Mutant::NoDataSync.active() {
            return self.complete_sync(now);
        }
        self.issue(Purpose::ChunkSync, io);
        Completion::Quiet
    }

    fn complete_sync(&mut self, now: Now) -> Completion<B> {
        let group = self.group.take().unwrap_or_else(|| panic!("a sync of no group"));
        assert!(group.writes_left == 0, "synced before all was written");
        self.positions.set_durable(group.end());
        self.tail.evict(self.positions.durable());
        if !group.marker {
            self.stats.last_commit_us = now.mono_us.saturating_sub(group.since_us);
            self.stats.commit_us.record(self.stats.last_commit_us);
            self.witness_at = Some(now.after_ms(WITNESS_AFTER_MS));
        }
        if self.stopping == Stopping::Marking {
            self.stopping = Stopping::Stopped;
        }
        Completion::Durable
    }

    /// Sorts failures: want of space is redone, a spare is thrown away, the rest is poison.
    pub(super) fn failed(
        &mut self,
        now: Now,
        purpose: Purpose,
        error: DiskError,
        io: &mut Vec<LogIo<B>>,
    ) -> Completion<B> {
        match purpose {
            Purpose::SpareCreate { number } | Purpose::SpareSync { number } => {
                self.spares.failed(now, error.is_no_space());
                let id = self.in_flight.put(Purpose::Remove);
                io.push(LogIo::Remove { id, file: FileId::Spare(number) });
                Completion::Quiet
            }
            // The file keeps the name of a segment that no manifest knows; the next opening
            // makes a spare of it.
            Purpose::Recycle { .. } => {
                self.spares.failed(now, false);
                Completion::Quiet
            }
            Purpose::Remove => Completion::Quiet,
            Purpose::ChunkWrite { .. }
            | Purpose::FooterWrite
            | Purpose::ManifestWrite
            | Purpose::RollRename
                if error.is_no_space() =>
            {
                self.redo.push(purpose);
                self.redo_at.get_or_insert(now.after_ms(REDO_AFTER_MS));
                Completion::Quiet
            }
            Purpose::ChunkWrite { .. } => {
                self.poison("a write or its sync to the active segment failed".into(), error)
            }
            Purpose::ChunkSync => self.poison("a sync of the active segment failed".into(), error),
            Purpose::FooterWrite | Purpose::FooterSync => {
                self.poison("writing the footer of a segment failed".into(), error)
            }
            Purpose::RollRename => self.poison("renaming a spare failed".into(), error),
            Purpose::RollSyncDir => self.poison("a sync of the directory failed".into(), error),
            Purpose::ManifestWrite | Purpose::ManifestSync => {
                self.poison("writing the manifest failed".into(), error)
            }
            Purpose::Read(_) => unreachable!("reads end elsewhere"),
        }
    }
}

//! Reading one record's body: from the tail at once, else from its file, verified before it is
//! handed out. A read pins its segment.

use super::format::{BLOCK, RECORD_HEADER_BYTES, RecordHeader};
use super::inflight::{Purpose, Read};
use super::io::{FileId, LogIo};
use super::{Completion, Log, ReadError};
use crate::base::buf::{Gather, IoBuf, Slice, align_down, align_up};
use crate::base::checksum::crc32c;
use crate::base::fault::DiskError;
use crate::base::ids::LogPosition;

impl<B: IoBuf> Log<B> {
    /// The body of the record at `at`, which is `bytes` long with its header. `None`: it is
    /// being read, and [`Completion::Read`] with `key` follows.
    pub fn read(
        &mut self,
        at: LogPosition,
        bytes: u32,
        key: u64,
        io: &mut Vec<LogIo<B>>,
    ) -> Option<Gather<B>> {
        assert!(bytes as usize >= RECORD_HEADER_BYTES, "a record has a header");
        if let Some(body) = self.read_memory(at, bytes as usize - RECORD_HEADER_BYTES) {
            return Some(body);
        }
        let place = self.segments.place(self.salt, at.segment());
        if let Some(segment) = self.segments.find(at.segment()) {
            segment.pins += 1;
        }
        let from = align_down(at.byte(), BLOCK);
        let len = (align_up(at.byte() + u64::from(bytes), BLOCK) - from) as usize;
        let id = self.in_flight.put(Purpose::Read(Read { at, bytes, key, place }));
        io.push(LogIo::Read { id, file: FileId::Segment(at.segment()), at: from, len });
        None
    }

    /// Whether [`Log::read`] answers at once.
    pub fn in_tail(&self, at: LogPosition) -> bool {
        self.tail.holds(at) || self.filling.segment() == at.segment() && self.is_filling(at)
    }

    fn is_filling(&self, at: LogPosition) -> bool {
        self.filling.copy(at.byte(), RECORD_HEADER_BYTES).is_some()
    }

    fn read_memory(&self, at: LogPosition, body: usize) -> Option<Gather<B>> {
        let from = at.advance(RECORD_HEADER_BYTES as u64);
        if self.filling.segment() == at.segment()
            && let Some(copy) = self.filling.copy(from.byte(), body)
        {
            return Some(Gather::Owned(copy));
        }
        if !self.tail.holds(at) {
            return None;
        }
        if body == 0 {
            return Some(Gather::Slices(smallvec::SmallVec::new()));
        }
        self.tail.slices(from, body)
    }

    pub(super) fn complete_read(
        &mut self,
        read: Read,
        result: Result<Option<B>, DiskError>,
        io: &mut Vec<LogIo<B>>,
    ) -> Completion<B> {
        if read.place.is_some()
            && let Some(segment) = self.segments.find(read.segment())
        {
            segment.pins -= 1;
        }
        if self.fault.is_none() {
            self.drive_recycling(io);
        }
        let result = match result {
            Err(error) => Err(ReadError::Device { at: read.at, error }),
            Ok(None) => Err(ReadError::Damaged { at: read.at }),
            Ok(Some(buf)) => verify(&read, buf).ok_or(ReadError::Damaged { at: read.at }),
        };
        Completion::Read { key: read.key, result }
    }
}

/// The record's body in the buffer, if the record is the one that was asked for.
fn verify<B: IoBuf>(read: &Read, buf: B) -> Option<Gather<B>> {
    let seed = read.place?.seed(read.at.byte());
    let from = (read.at.byte() - align_down(read.at.byte(), BLOCK)) as usize;
    let bytes = buf.bytes().get(from..from + read.bytes as usize)?;
    let (header, _) = RecordHeader::decode(bytes.first_chunk::<RECORD_HEADER_BYTES>()?, seed)?;
    let body = &bytes[RECORD_HEADER_BYTES..];
    if header.record_bytes() != u64::from(read.bytes) || header.body_crc != crc32c(seed, body) {
        return None;
    }
    let (from, to) = (from + RECORD_HEADER_BYTES, from + read.bytes as usize);
    Some(Gather::Slices(std::iter::once(Slice::new(buf, from, to)).collect()))
}

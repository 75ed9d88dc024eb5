//! Reading one record's body: from the tail at once, else from what was read around another, else
//! from its file. Verified before it is handed out, unless it comes from the tail. A read pins its
//! segment.
//!
//! Errors are those of a read of the record alone: where a longer one failed, or brought something
//! wrong, the record is read once more for itself.

use super::format::{BLOCK, Place, RECORD_HEADER_BYTES, RecordHeader};
use super::inflight::{Purpose, Read};
use super::io::{FileId, LogIo};
use super::manifest::SegmentState;
use super::read_ahead::{Look, Waiting, Wanted};
use super::{Completion, EndedRead, Log, ReadError};
use crate::base::buf::{Gather, IoBuf, Slice, align_down, align_up};
use crate::base::checksum::crc32c;
use crate::base::fault::DiskError;
use crate::base::ids::{LogPosition, SegmentId};
use smallvec::SmallVec;

impl<B: IoBuf> Log<B> {
    /// The body of the record at `at`, which is `bytes` long with its header. `None`: it is
    /// being read, and `key` will be among the [`Completion::Reads`].
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
        let wanted = Wanted { at, bytes, key };
        let end = self.readable_end(at.segment());
        match self.ahead.look(wanted, end.unwrap_or(0)) {
            Look::Coming => {}
            Look::Missing(len) => self.begin_read(wanted.from(), len, None, io),
            Look::Alone => self.read_alone(wanted, io),
            Look::Here(buf, from) => {
                let place = self.segments.place(self.salt, at.segment());
                if let Some(body) = verify(place, wanted, &buf, from) {
                    return Some(body);
                }
                self.read_alone(wanted, io);
            }
        }
        None
    }

    /// Up to where the bytes of a segment will not change any more. `None`: not known.
    fn readable_end(&mut self, segment: SegmentId) -> Option<u64> {
        let durable = self.positions.durable();
        if segment == durable.segment() {
            return Some(align_down(durable.byte(), BLOCK));
        }
        match self.segments.find(segment)?.entry.state {
            SegmentState::Sealed(seal) => Some(align_up(seal.data_bytes, BLOCK)),
            SegmentState::Open => None,
        }
    }

    fn read_alone(&mut self, wanted: Wanted, io: &mut Vec<LogIo<B>>) {
        let (from, to) = (wanted.from(), wanted.to());
        self.begin_read(from, to - from.byte(), Some(wanted), io);
    }

    fn begin_read(
        &mut self,
        from: LogPosition,
        len: u64,
        alone: Option<Wanted>,
        io: &mut Vec<LogIo<B>>,
    ) {
        let place = self.segments.place(self.salt, from.segment());
        if let Some(segment) = self.segments.find(from.segment()) {
            segment.pins += 1;
        }
        let id = self.in_flight.put(Purpose::Read(Read { from, place, alone }));
        let file = FileId::Segment(from.segment());
        io.push(LogIo::Read { id, file, at: from.byte(), len: len as usize });
        self.stats.reads += 1;
        self.stats.read_bytes += len;
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
        let ended = match read.alone {
            Some(wanted) => {
                let result = ended_alone(read.place, wanted, result);
                std::iter::once(EndedRead { key: wanted.key, result }).collect()
            }
            None => self.complete_span(&read, result, io),
        };
        if self.fault.is_none() {
            self.drive_recycling(io);
        }
        Completion::Reads(ended)
    }

    fn complete_span(
        &mut self,
        read: &Read,
        result: Result<Option<B>, DiskError>,
        io: &mut Vec<LogIo<B>>,
    ) -> SmallVec<[EndedRead<B>; 1]> {
        let (waiting, buf): (Waiting, _) = match result {
            Ok(Some(buf)) => (self.ahead.arrived(read.from, &buf), Some(buf)),
            Ok(None) | Err(_) => (self.ahead.failed(read.from), None),
        };
        let mut ended = SmallVec::new();
        for wanted in waiting {
            let found = buf.as_ref().and_then(|buf| verify(read.place, wanted, buf, read.from));
            match found {
                Some(body) => ended.push(EndedRead { key: wanted.key, result: Ok(body) }),
                None => self.read_alone(wanted, io),
            }
        }
        ended
    }
}

fn ended_alone<B: IoBuf>(
    place: Option<Place>,
    wanted: Wanted,
    result: Result<Option<B>, DiskError>,
) -> Result<Gather<B>, ReadError> {
    let buf = result.map_err(|error| ReadError::Device { at: wanted.at, error })?;
    let body = buf.and_then(|buf| verify(place, wanted, &buf, wanted.from()));
    body.ok_or(ReadError::Damaged { at: wanted.at })
}

/// The record's body in a buffer that begins at `from`, if the record is the one that was asked
/// for.
fn verify<B: IoBuf>(
    place: Option<Place>,
    wanted: Wanted,
    buf: &B,
    from: LogPosition,
) -> Option<Gather<B>> {
    let seed = place?.seed(wanted.at.byte());
    let from = (wanted.at.byte() - from.byte()) as usize;
    let to = from + wanted.bytes as usize;
    let bytes = buf.bytes().get(from..to)?;
    let (header, _) = RecordHeader::decode(bytes.first_chunk::<RECORD_HEADER_BYTES>()?, seed)?;
    let body = &bytes[RECORD_HEADER_BYTES..];
    if header.record_bytes() != u64::from(wanted.bytes) || header.body_crc != crc32c(seed, body) {
        return None;
    }
    let body = Slice::new(buf.clone(), from + RECORD_HEADER_BYTES, to);
    Some(Gather::Slices(std::iter::once(body).collect()))
}

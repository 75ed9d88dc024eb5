//! Walking the records of a segment file as recovery finds it. Every byte here is the disk's
//! and is believed only after its checksum; a length counts only once the header that holds it
//! has been verified, so a flipped one allocates nothing.

use super::Chain;
use super::error::OpenError;
use super::format::{BLOCK, Place, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader};
use super::io::FileId;
use super::storage::Storage;
use crate::base::buf::{align_down, align_up};
use crate::base::checksum::crc32c;
use crate::base::ids::{LogPosition, SegmentId};
use crate::base::limits::APPEND_BYTES_MAX;
use crate::base::mutant::Mutant;

/// Read ahead: large enough to stream, small beside a shard's memory.
const READ_BYTES: u64 = 1 << 20;

/// A part of one file in memory.
struct Window {
    file: FileId,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn get<S: Storage>(&mut self, storage: &mut S, at: u64, len: u64) -> Result<&[u8], OpenError> {
        assert!(at + len <= self.file_bytes, "a read beyond the file");
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at + len > end {
            self.load(storage, at, at + len)?;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + len as usize])
    }

    fn load<S: Storage>(&mut self, storage: &mut S, from: u64, to: u64) -> Result<(), OpenError> {
        let start = align_down(from, BLOCK);
        let end = align_up(to, BLOCK).max(start + READ_BYTES).min(self.file_bytes);
        let have = self.start + self.bytes.len() as u64;
        if start >= self.start && start < have {
            self.bytes.drain(..(start - self.start) as usize);
        } else {
            self.bytes.clear();
        }
        self.start = start;
        let kept = self.bytes.len();
        self.bytes.resize((end - start) as usize, 0);
        let read = storage.read(self.file, start + kept as u64, &mut self.bytes[kept..]);
        if read.is_err() {
            self.bytes.clear();
        }
        read.map_err(|error| OpenError::Device { doing: "read", file: self.file.name(), error })
    }
}

pub struct Walk<'s, S> {
    storage: &'s mut S,
    window: Window,
    segment: SegmentId,
    place: Place,
    /// No record reaches beyond.
    limit: u64,
}

/// A record that is valid at its place.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub at: u64,
    pub header: RecordHeader,
    pub checksum: u32,
}

impl Found {
    pub fn end(&self) -> u64 {
        self.at + self.header.record_bytes()
    }

    fn follows(&self, chain: Option<Chain>) -> bool {
        Mutant::NoChain.active()
            || chain.is_none_or(|chain| {
                chain.checksum == self.header.prev && chain.next_number == self.header.number
            })
    }
}

/// What comes behind the last good record.
pub enum Next {
    Record(Found),
    /// No record that follows. What is bad begins at `at`.
    Bad {
        at: u64,
    },
}

/// What the rest of an open segment holds.
pub struct Rest {
    /// The highest position any valid record says is durable.
    pub witnessed: LogPosition,
    /// End of the last valid record, if there is any.
    pub records_end: Option<u64>,
}

impl<'s, S: Storage> Walk<'s, S> {
    pub fn new(storage: &'s mut S, segment: SegmentId, place: Place, bounds: (u64, u64)) -> Self {
        let (limit, file_bytes) = bounds;
        assert!(limit <= file_bytes, "data beyond the file");
        let file = FileId::Segment(segment);
        let window = Window { file, file_bytes, start: 0, bytes: Vec::new() };
        Self { storage, window, segment, place, limit }
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn position(&self, at: u64) -> LogPosition {
        LogPosition::new(self.segment, at)
    }

    /// The record behind `end`: at once, or at the next block if only zeros lie between.
    pub fn next(&mut self, end: u64, chain: Option<Chain>) -> Result<Next, OpenError> {
        let (near, block) = (align_up(end, RECORD_ALIGN), align_up(end, BLOCK));
        if self.zeros(end, near)?
            && let Some(found) = self.record(near)?
            && found.follows(chain)
        {
            return Ok(Next::Record(found));
        }
        if !self.zeros(end, block)? {
            return Ok(Next::Bad { at: end });
        }
        match self.record(block)? {
            Some(found) if found.follows(chain) => Ok(Next::Record(found)),
            // A valid record that does not follow: what lay before it is what is missing.
            Some(_) => Ok(Next::Bad { at: end }),
            None => Ok(Next::Bad { at: block }),
        }
    }

    /// The record at `at`, if there is a valid one.
    pub fn record(&mut self, at: u64) -> Result<Option<Found>, OpenError> {
        let Some(header) = self.header(at)? else { return Ok(None) };
        let (fields, checksum) = header;
        let seed = self.place.seed(at);
        let body = self.body(at, &fields)?;
        let whole = fields.body_crc == crc32c(seed, body) || Mutant::NoChecksum.active();
        Ok(whole.then_some(Found { at, header: fields, checksum }))
    }

    /// The header at `at`, if it is valid and its record would fit; its body may be torn.
    pub fn header(&mut self, at: u64) -> Result<Option<(RecordHeader, u32)>, OpenError> {
        let Some(bytes) = self.header_bytes(at)? else { return Ok(None) };
        // Cheap refusals first: recovery asks this of every eighth byte of a torn tail.
        if bytes[12] == 0 || bytes[13..16] != [0; 3] {
            return Ok(None);
        }
        let decoded = if Mutant::NoChecksum.active() {
            Some((RecordHeader::fields(&bytes), super::format::u32_at(&bytes, 0)))
        } else {
            RecordHeader::decode(&bytes, self.place.seed(at))
        };
        Ok(decoded.filter(|(header, _)| self.fits(at, header)))
    }

    pub fn header_bytes(
        &mut self,
        at: u64,
    ) -> Result<Option<[u8; RECORD_HEADER_BYTES]>, OpenError> {
        if at + RECORD_HEADER_BYTES as u64 > self.limit {
            return Ok(None);
        }
        let bytes = self.window.get(self.storage, at, RECORD_HEADER_BYTES as u64)?;
        Ok(bytes.first_chunk().copied())
    }

    pub fn fits(&self, at: u64, header: &RecordHeader) -> bool {
        header.body_bytes as usize <= APPEND_BYTES_MAX && at + header.record_bytes() <= self.limit
    }

    /// The body of the record with `header` at `at`; the header is verified and fits.
    pub fn body(&mut self, at: u64, header: &RecordHeader) -> Result<&[u8], OpenError> {
        let from = at + RECORD_HEADER_BYTES as u64;
        self.window.get(self.storage, from, u64::from(header.body_bytes))
    }

    pub fn bytes(&mut self, from: u64, to: u64) -> Result<&[u8], OpenError> {
        self.window.get(self.storage, from, to.saturating_sub(from))
    }

    pub fn zeros(&mut self, from: u64, to: u64) -> Result<bool, OpenError> {
        let to = to.min(self.window.file_bytes);
        Ok(self.bytes(from.min(to), to)?.iter().all(|byte| *byte == 0))
    }

    /// Looks at every place from `from` on where a record could stand.
    pub fn rest(&mut self, from: u64) -> Result<Rest, OpenError> {
        let mut rest = Rest { witnessed: LogPosition::ZERO, records_end: None };
        let mut at = align_up(from, RECORD_ALIGN);
        while at + RECORD_HEADER_BYTES as u64 <= self.limit {
            match self.record(at)? {
                Some(found) => {
                    rest.witnessed = rest.witnessed.max(found.header.synced);
                    rest.records_end = Some(found.end());
                    at = align_up(found.end(), RECORD_ALIGN);
                }
                None => at += RECORD_ALIGN,
            }
        }
        Ok(rest)
    }
}

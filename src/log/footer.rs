//! The index behind a sealed segment's data: where its records are, compactly. A reader's
//! short cut, never evidence. Bounded: the room is 1/64 of the file, and what does not fit is
//! left to a scan.

use super::format::{Geometry, MARKS_BYTES, Marks, Place};
use crate::base::checksum::crc32c;

const MAGIC: &[u8; 8] = b"LANEFOOT";
const HEADER_BYTES: usize = 72;
/// The most one entry takes: kind, and three varints of at most ten bytes.
const ENTRY_BYTES_MAX: usize = 31;

/// Fills while the segment fills.
#[derive(Clone, Debug)]
pub struct FooterIndex {
    entries: Vec<u8>,
    room: usize,
    records: u64,
    indexed: u64,
    /// End of the last indexed record.
    reaches: u64,
    full: bool,
    previous: Entry,
}

/// One record of the index.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Entry {
    pub kind: u8,
    pub at: u64,
    pub body_bytes: u32,
    pub key: u64,
}

impl FooterIndex {
    pub fn new(geometry: Geometry) -> Self {
        Self {
            entries: Vec::new(),
            room: geometry.footer_bytes() as usize - HEADER_BYTES,
            records: 0,
            indexed: 0,
            reaches: 0,
            full: false,
            previous: Entry::default(),
        }
    }

    /// Notes a record; they come in the order of the log.
    pub fn push(&mut self, entry: Entry) {
        self.records += 1;
        if self.full || self.entries.len() + ENTRY_BYTES_MAX > self.room {
            self.full = true;
            return;
        }
        let delta = entry.key.wrapping_sub(self.previous.key) as i64;
        let mut packed = [0; ENTRY_BYTES_MAX];
        packed[0] = entry.kind;
        let mut len = 1;
        for value in [
            (entry.at - self.previous.at) / 8,
            u64::from(entry.body_bytes),
            (delta << 1 ^ delta >> 63) as u64,
        ] {
            len += put_varint(&mut packed[len..], value);
        }
        self.entries.extend_from_slice(&packed[..len]);
        self.indexed += 1;
        self.reaches =
            entry.at + super::format::RECORD_HEADER_BYTES as u64 + u64::from(entry.body_bytes);
        self.previous = entry;
    }

    /// Writes the footer into `out`, which is the whole footer room; zeros behind it.
    pub fn encode(&self, out: &mut [u8], place: Place, geometry: Geometry, end: FooterEnd) {
        out.fill(0);
        let used = HEADER_BYTES + self.entries.len();
        assert!(used <= out.len(), "footer beyond its room");
        out[4..8].copy_from_slice(&(used as u32).to_le_bytes());
        out[8..16].copy_from_slice(MAGIC);
        out[16..24].copy_from_slice(&self.records.to_le_bytes());
        out[24..32].copy_from_slice(&end.data_bytes.to_le_bytes());
        out[32..40].copy_from_slice(&self.indexed.to_le_bytes());
        out[40..48].copy_from_slice(&self.reaches.to_le_bytes());
        out[48..48 + MARKS_BYTES].copy_from_slice(&end.marks.encode());
        out[HEADER_BYTES..used].copy_from_slice(&self.entries);
        let checksum = crc32c(place.seed(geometry.data_end()), &out[4..used]);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// What is known when a segment ends.
#[derive(Clone, Copy, Debug)]
pub struct FooterEnd {
    pub data_bytes: u64,
    pub marks: Marks,
}

/// Returns how many bytes it takes.
fn put_varint(out: &mut [u8], mut value: u64) -> usize {
    let mut len = 0;
    while value >= 0x80 {
        out[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    out[len] = value as u8;
    len + 1
}

#[cfg(test)]
mod tests {
    use super::super::format::{Salt, u32_at, u64_at};
    use super::*;
    use crate::base::ids::SegmentId;
    use crate::base::prng::Prng;

    #[test]
    fn an_index_reads_back_as_far_as_its_room_reaches() {
        let geometry = Geometry::new(64 << 10).unwrap();
        let place = Place::new(Salt([1; 16]), SegmentId(5), 6);
        for count in [0u64, 3, 2_000] {
            let mut prng = Prng::new(count);
            let mut index = FooterIndex::new(geometry);
            let mut wanted = Vec::new();
            let mut at = 0;
            for _ in 0..count {
                let entry = Entry {
                    kind: 16 + prng.below(9) as u8,
                    at,
                    body_bytes: prng.below(90) as u32,
                    key: prng.next_u64() >> prng.below(64),
                };
                index.push(entry);
                wanted.push(entry);
                at += 136;
            }
            let mut out = vec![0xA5; geometry.footer_bytes() as usize];
            let end = FooterEnd { data_bytes: at, marks: Marks::default() };
            index.encode(&mut out, place, geometry, end);
            let footer = Footer::decode(&out, place, geometry).unwrap();
            assert_eq!(footer.records, count);
            assert_eq!(footer.entries[..], wanted[..footer.entries.len()]);
            assert_eq!(footer.entries.len() == wanted.len(), count < 100);
            let elsewhere = Place::new(Salt([1; 16]), SegmentId(5), 7);
            assert_eq!(Footer::decode(&out, elsewhere, geometry), None);
        }
    }

    /// A footer as read back.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Footer {
        pub records: u64,
        pub data_bytes: u64,
        /// The index covers the data up to here.
        pub reaches: u64,
        pub entries: Vec<Entry>,
    }

    impl Footer {
        /// The footer in `bytes`; `None` when there is none of this place.
        pub fn decode(bytes: &[u8], place: Place, geometry: Geometry) -> Option<Self> {
            if bytes.len() < HEADER_BYTES || &bytes[8..16] != MAGIC {
                return None;
            }
            let used = u32_at(bytes, 4) as usize;
            let body = bytes.get(4..used).filter(|_| used >= HEADER_BYTES)?;
            if crc32c(place.seed(geometry.data_end()), body) != u32_at(bytes, 0) {
                return None;
            }
            let mut rest = &bytes[HEADER_BYTES..used];
            let mut entries = Vec::new();
            let mut previous = Entry::default();
            while let Some((kind, after)) = rest.split_first() {
                rest = after;
                let gap = take_varint(&mut rest)?.checked_mul(8)?;
                let body_bytes = u32::try_from(take_varint(&mut rest)?).ok()?;
                let zigzag = take_varint(&mut rest)?;
                let delta = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
                previous = Entry {
                    kind: *kind,
                    at: previous.at.checked_add(gap)?,
                    body_bytes,
                    key: previous.key.wrapping_add(delta),
                };
                entries.push(previous);
            }
            let footer = Self {
                records: u64_at(bytes, 16),
                data_bytes: u64_at(bytes, 24),
                reaches: u64_at(bytes, 40),
                entries,
            };
            (footer.entries.len() as u64 == u64_at(bytes, 32)).then_some(footer)
        }
    }

    fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

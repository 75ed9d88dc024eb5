//! The bytes of records and segment headers, as `FORMAT.md` draws them, and the geometry of a
//! segment file. Only this file and `manifest`, `footer` know byte offsets. Pure functions.

use crate::base::buf::{ALIGN, align_up};
use crate::base::checksum::crc32c;
use crate::base::ids::{LogPosition, SegmentId, ShardId};
use crate::base::limits::APPEND_BYTES_MAX;

pub const FORMAT_VERSION: u32 = 1;
/// Feature bits of this version: none yet. A reader refuses bits it does not know.
pub const FEATURES: u32 = 0;

/// The header before every record's body.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Every record starts on a multiple of this.
pub const RECORD_ALIGN: u64 = 8;
/// Every chunk starts and ends on a multiple of this.
pub const BLOCK: u64 = ALIGN as u64;
/// Body of the segment header record.
pub const SEGMENT_HEADER_BYTES: usize = 64;

/// The log's own kinds; the broker's begin at [`KIND_BROKER_MIN`].
pub const KIND_SEGMENT: u8 = 1;
pub const KIND_CLOSE: u8 = 2;
pub const KIND_WITNESS: u8 = 3;
pub const KIND_FINAL: u8 = 4;
pub const KIND_BROKER_MIN: u8 = 16;

const _: () = assert!(BLOCK.is_multiple_of(RECORD_ALIGN));
const _: () = assert!((RECORD_HEADER_BYTES as u64).is_multiple_of(RECORD_ALIGN));

/// Random per directory and shard, in the manifest, unknown to every client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salt(pub [u8; 16]);

/// High-water marks of the shard, kept in every segment header and in the manifest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Marks {
    pub partition_counter: u64,
    pub kv_version: u64,
    pub clock_us: i64,
}

pub const MARKS_BYTES: usize = 24;

impl Marks {
    pub fn max(self, other: Self) -> Self {
        Self {
            partition_counter: self.partition_counter.max(other.partition_counter),
            kv_version: self.kv_version.max(other.kv_version),
            clock_us: self.clock_us.max(other.clock_us),
        }
    }

    pub fn encode(self) -> [u8; MARKS_BYTES] {
        let mut out = [0; MARKS_BYTES];
        out[..8].copy_from_slice(&self.partition_counter.to_le_bytes());
        out[8..16].copy_from_slice(&self.kv_version.to_le_bytes());
        out[16..].copy_from_slice(&self.clock_us.to_le_bytes());
        out
    }

    /// From the first [`MARKS_BYTES`] of `bytes`.
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            partition_counter: u64_at(bytes, 0),
            kv_version: u64_at(bytes, 8),
            clock_us: u64_at(bytes, 16) as i64,
        }
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Everything of a record's place but its byte offset: what both checksums begin from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u32);

impl Place {
    pub fn new(salt: Salt, segment: SegmentId, epoch: u64) -> Self {
        let mut bytes = [0; 28];
        bytes[..16].copy_from_slice(&salt.0);
        bytes[16..20].copy_from_slice(&segment.0.to_le_bytes());
        bytes[20..].copy_from_slice(&epoch.to_le_bytes());
        Self(crc32c(0, &bytes))
    }

    /// The value both checksums of the record at byte `at` begin from.
    pub fn seed(self, at: u64) -> u32 {
        crc32c(self.0, &at.to_le_bytes())
    }
}

/// A record's header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    pub kind: u8,
    pub key: u64,
    pub synced: LogPosition,
    /// Header checksum of the record before.
    pub prev: u32,
    /// Number of the record, lower 32 bits.
    pub number: u32,
    pub body_bytes: u32,
    pub body_crc: u32,
}

impl RecordHeader {
    /// The bytes, and their checksum for the next record's `prev`.
    pub fn encode(&self, seed: u32) -> ([u8; RECORD_HEADER_BYTES], u32) {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[4..8].copy_from_slice(&self.body_crc.to_le_bytes());
        out[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[12] = self.kind;
        out[16..24].copy_from_slice(&self.key.to_le_bytes());
        out[24..32].copy_from_slice(&self.synced.to_bits().to_le_bytes());
        out[32..36].copy_from_slice(&self.prev.to_le_bytes());
        out[36..40].copy_from_slice(&self.number.to_le_bytes());
        let checksum = crc32c(seed, &out[4..]);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
        (out, checksum)
    }

    /// The header in `bytes` and its checksum, if it is one of this place. Says nothing of
    /// the body.
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES], seed: u32) -> Option<(Self, u32)> {
        let checksum = u32_at(bytes, 0);
        if bytes[12] == 0 || checksum != crc32c(seed, &bytes[4..]) {
            return None;
        }
        Some((Self::fields(bytes), checksum))
    }

    /// The fields as they stand, unchecked.
    pub fn fields(bytes: &[u8; RECORD_HEADER_BYTES]) -> Self {
        Self {
            kind: bytes[12],
            key: u64_at(bytes, 16),
            synced: LogPosition::from_bits(u64_at(bytes, 24)),
            prev: u32_at(bytes, 32),
            number: u32_at(bytes, 36),
            body_bytes: u32_at(bytes, 8),
            body_crc: u32_at(bytes, 4),
        }
    }

    pub fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }
}

/// What a segment's first record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    pub shard: ShardId,
    pub shards: u16,
    pub segment: SegmentId,
    /// The segment whose last record this one's first follows; 0 where nothing was before.
    pub previous: SegmentId,
    pub epoch: u64,
    pub directory: [u8; 16],
    pub marks: Marks,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[4..6].copy_from_slice(&self.shard.0.to_le_bytes());
        out[6..8].copy_from_slice(&self.shards.to_le_bytes());
        out[8..12].copy_from_slice(&self.segment.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.previous.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        out[24..40].copy_from_slice(&self.directory);
        out[40..].copy_from_slice(&self.marks.encode());
        out
    }

    /// The marks and the previous segment of a segment header's body; the rest repeats what the
    /// checksums' place and the manifest already vouch for.
    pub fn decode(body: &[u8]) -> Option<(Marks, SegmentId)> {
        let body: &[u8; SEGMENT_HEADER_BYTES] = body.try_into().ok()?;
        let previous = u32::from_le_bytes([body[12], body[13], body[14], body[15]]);
        Some((Marks::decode(&body[40..]), SegmentId(previous)))
    }
}

/// Where things lie in a segment file of one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    pub file_bytes: u64,
}

impl Geometry {
    /// Smallest file the format allows (the product's own minimum is far higher).
    pub const FILE_BYTES_MIN: u64 = 32 << 10;

    pub fn new(file_bytes: u64) -> Option<Self> {
        let bounds = Self::FILE_BYTES_MIN..=crate::base::limits::SEGMENT_BYTES_MAX;
        let fits = bounds.contains(&file_bytes) && file_bytes.is_multiple_of(BLOCK);
        fits.then_some(Self { file_bytes })
    }

    pub fn footer_bytes(self) -> u64 {
        align_up((self.file_bytes / 64).max(1), BLOCK)
    }

    /// No record reaches beyond this.
    pub fn data_end(self) -> u64 {
        self.file_bytes - self.footer_bytes()
    }

    /// Chunks of ordinary records end here: the block behind is for the final marker.
    pub fn chunks_end(self) -> u64 {
        self.data_end() - BLOCK
    }

    /// Whether a record of `body` bytes and the closing record behind it fit when the record
    /// would start at or after byte `at`.
    pub fn fits(self, at: u64, body: usize) -> bool {
        let end = align_up(at, RECORD_ALIGN) + (RECORD_HEADER_BYTES + body) as u64;
        align_up(end, RECORD_ALIGN) + RECORD_HEADER_BYTES as u64 <= self.chunks_end()
    }

    /// The longest body an empty segment takes.
    pub fn body_bytes_max(self) -> usize {
        let before = (RECORD_HEADER_BYTES + SEGMENT_HEADER_BYTES) as u64;
        let overhead = before + 2 * RECORD_HEADER_BYTES as u64 + RECORD_ALIGN;
        usize::try_from(self.chunks_end() - overhead).unwrap_or(usize::MAX).min(APPEND_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            kind: 16,
            key: 0x0102_0304_0506_0708,
            synced: LogPosition::new(SegmentId(3), 8_192),
            prev: 0xAABB_CCDD,
            number: 9,
            body_bytes: 5,
            body_crc: crc32c(0x1111_2222, b"hello"),
        }
    }

    #[test]
    fn the_bytes_of_a_record_header_are_pinned() {
        let seed = Place::new(Salt([7; 16]), SegmentId(3), 4).seed(4_096);
        let (bytes, checksum) = header().encode(seed);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN_RECORD);
        assert_eq!(RecordHeader::decode(&bytes, seed), Some((header(), checksum)));
    }

    const GOLDEN_RECORD: &str = "301ab56a4b603d6005000000100000000807060504030201\
                                 0020000030000000ddccbbaa09000000";

    #[test]
    fn every_flipped_bit_and_every_other_place_is_no_record() {
        let place = Place::new(Salt([7; 16]), SegmentId(3), 4);
        let (bytes, _) = header().encode(place.seed(4_096));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bad, place.seed(4_096)), None, "bit {bit}");
        }
        for other in [
            place.seed(4_104),
            Place::new(Salt([8; 16]), SegmentId(3), 4).seed(4_096),
            Place::new(Salt([7; 16]), SegmentId(2), 4).seed(4_096),
            Place::new(Salt([7; 16]), SegmentId(3), 5).seed(4_096),
        ] {
            assert_eq!(RecordHeader::decode(&bytes, other), None);
        }
    }

    #[test]
    fn the_largest_body_fits_an_empty_segment_and_one_more_byte_does_not() {
        for bytes in [32 << 10, 64 << 10, 4 << 20] {
            let geometry = Geometry::new(bytes).unwrap();
            let first = (RECORD_HEADER_BYTES + SEGMENT_HEADER_BYTES) as u64;
            assert!(geometry.fits(first, geometry.body_bytes_max()));
            assert!(!geometry.fits(first, geometry.body_bytes_max() + 9));
            assert!(geometry.chunks_end() + BLOCK + geometry.footer_bytes() == bytes);
        }
        assert_eq!(Geometry::new(4_096), None);
        assert_eq!(Geometry::new((64 << 10) + 1), None);
    }
}

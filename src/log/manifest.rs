//! The manifest: which segments exist, and what identifies this log. Its bytes, two slots, and
//! which of the two counts. Who writes it when: `roll` while running, `recovery` before.

use super::format::{BLOCK, FEATURES, FORMAT_VERSION, MARKS_BYTES, Marks, Salt, u32_at, u64_at};
use crate::base::buf::align_up;
use crate::base::checksum::crc32c;
use crate::base::ids::{SegmentId, ShardId};

const MAGIC: &[u8; 8] = b"LANEMQLG";
const HEADER_BYTES: usize = 128;
const ENTRY_BYTES: usize = 40;

/// Segments one log can have at once: 1 TiB at the default segment size. Room for them is
/// reserved in each slot when the manifest is created, so a roll never has to grow it.
pub const SEGMENTS_MAX: usize = 4_096;
pub const SLOT_BYTES: usize =
    (HEADER_BYTES + SEGMENTS_MAX * ENTRY_BYTES).next_multiple_of(BLOCK as usize);
pub const MANIFEST_BYTES: u64 = 2 * SLOT_BYTES as u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentState {
    Open,
    Sealed(Seal),
}

/// What vouches for a sealed segment: its length and the chain's last link in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    pub data_bytes: u64,
    pub last_checksum: u32,
    pub last_number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManifestEntry {
    pub segment: SegmentId,
    pub epoch: u64,
    pub file_bytes: u64,
    pub state: SegmentState,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    pub sequence: u64,
    pub directory: [u8; 16],
    pub shard: ShardId,
    pub shards: u16,
    pub salt: Salt,
    pub next_segment: u32,
    /// The last epoch given out.
    pub epoch: u64,
    pub marks: Marks,
    pub segments: Vec<ManifestEntry>,
}

/// Why a slot cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotError {
    /// No manifest, or one that is torn or damaged.
    Invalid,
    /// A whole manifest of a format this program does not know.
    Newer { version: u32, features: u32 },
}

impl Manifest {
    /// The used part of a slot: whole blocks, zeros behind the entries.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.segments.len() <= SEGMENTS_MAX, "more segments than a manifest slot holds");
        let used = HEADER_BYTES + self.segments.len() * ENTRY_BYTES;
        let mut out = vec![0; align_up(used as u64, BLOCK) as usize];
        let bytes = out.len() as u32;
        out[4..8].copy_from_slice(&bytes.to_le_bytes());
        out[8..16].copy_from_slice(MAGIC);
        out[16..20].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[20..24].copy_from_slice(&FEATURES.to_le_bytes());
        out[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        out[32..48].copy_from_slice(&self.directory);
        out[48..50].copy_from_slice(&self.shard.0.to_le_bytes());
        out[50..52].copy_from_slice(&self.shards.to_le_bytes());
        out[52..56].copy_from_slice(&(self.segments.len() as u32).to_le_bytes());
        out[56..72].copy_from_slice(&self.salt.0);
        out[72..76].copy_from_slice(&self.next_segment.to_le_bytes());
        out[80..88].copy_from_slice(&self.epoch.to_le_bytes());
        out[88..88 + MARKS_BYTES].copy_from_slice(&self.marks.encode());
        for (entry, at) in self.segments.iter().zip((HEADER_BYTES..).step_by(ENTRY_BYTES)) {
            entry.encode(&mut out[at..at + ENTRY_BYTES]);
        }
        let checksum = crc32c(0, &out[4..]);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads a slot of [`SLOT_BYTES`].
    pub fn decode(slot: &[u8]) -> Result<Self, SlotError> {
        if slot.len() < HEADER_BYTES || &slot[8..16] != MAGIC {
            return Err(SlotError::Invalid);
        }
        let used = u32_at(slot, 4) as usize;
        if used < HEADER_BYTES || used > slot.len() || u32_at(slot, 0) != crc32c(0, &slot[4..used])
        {
            return Err(SlotError::Invalid);
        }
        let (version, features) = (u32_at(slot, 16), u32_at(slot, 20));
        if version != FORMAT_VERSION || features & !FEATURES != 0 {
            return Err(SlotError::Newer { version, features });
        }
        let count = u32_at(slot, 52) as usize;
        if count > SEGMENTS_MAX || HEADER_BYTES + count * ENTRY_BYTES > used {
            return Err(SlotError::Invalid);
        }
        let entries = slot[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count);
        let segments: Option<Vec<_>> = entries.map(ManifestEntry::decode).collect();
        let mut identity = ([0; 16], [0; 16]);
        identity.0.copy_from_slice(&slot[32..48]);
        identity.1.copy_from_slice(&slot[56..72]);
        Ok(Self {
            sequence: u64_at(slot, 24),
            directory: identity.0,
            shard: ShardId(u32_at(slot, 48) as u16),
            shards: (u32_at(slot, 48) >> 16) as u16,
            salt: Salt(identity.1),
            next_segment: u32_at(slot, 72),
            epoch: u64_at(slot, 80),
            marks: Marks::decode(&slot[88..]),
            segments: segments.ok_or(SlotError::Invalid)?,
        })
    }
}

impl ManifestEntry {
    fn encode(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.segment.0.to_le_bytes());
        let (state, seal) = match self.state {
            SegmentState::Open => (1u32, None),
            SegmentState::Sealed(seal) => (2, Some(seal)),
        };
        out[4..8].copy_from_slice(&state.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.file_bytes.to_le_bytes());
        if let Some(seal) = seal {
            out[24..32].copy_from_slice(&seal.data_bytes.to_le_bytes());
            out[32..36].copy_from_slice(&seal.last_checksum.to_le_bytes());
            out[36..40].copy_from_slice(&seal.last_number.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let state = match u32_at(bytes, 4) {
            1 => SegmentState::Open,
            2 => SegmentState::Sealed(Seal {
                data_bytes: u64_at(bytes, 24),
                last_checksum: u32_at(bytes, 32),
                last_number: u32_at(bytes, 36),
            }),
            _ => return None,
        };
        Some(Self {
            segment: SegmentId(u32_at(bytes, 0)),
            epoch: u64_at(bytes, 8),
            file_bytes: u64_at(bytes, 16),
            state,
        })
    }
}

/// The manifest that counts, and the order in which its slots are to be rewritten.
pub struct Chosen {
    pub manifest: Manifest,
    /// The older or invalid slot first: the other one must survive a torn write of this.
    pub order: [usize; 2],
}

/// The valid slot with the higher sequence.
pub fn choose(slots: [&[u8]; 2]) -> Result<Chosen, SlotError> {
    let decoded = slots.map(Manifest::decode);
    let newer = decoded.iter().find_map(|slot| match slot {
        Err(error @ SlotError::Newer { .. }) => Some(*error),
        _ => None,
    });
    if let Some(error) = newer {
        return Err(error);
    }
    match decoded {
        [Ok(a), Ok(b)] => {
            let (manifest, order) = if a.sequence > b.sequence { (a, [1, 0]) } else { (b, [0, 1]) };
            Ok(Chosen { manifest, order })
        }
        [Ok(manifest), Err(_)] => Ok(Chosen { manifest, order: [1, 0] }),
        [Err(_), Ok(manifest)] => Ok(Chosen { manifest, order: [0, 1] }),
        [Err(error), Err(_)] => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(sequence: u64) -> Manifest {
        let seal = Seal { data_bytes: 4_321, last_checksum: 0xDEAD_BEEF, last_number: 77 };
        let entry = |segment, epoch, state| ManifestEntry {
            segment: SegmentId(segment),
            epoch,
            file_bytes: 65_536,
            state,
        };
        Manifest {
            sequence,
            directory: *b"directory-id-016",
            shard: ShardId(2),
            shards: 4,
            salt: Salt([9; 16]),
            next_segment: 12,
            epoch: 34,
            marks: Marks { partition_counter: 5, kv_version: 6, clock_us: -7 },
            segments: vec![
                entry(10, 33, SegmentState::Sealed(seal)),
                entry(11, 34, SegmentState::Open),
            ],
        }
    }

    fn slot(manifest: &Manifest) -> Vec<u8> {
        let mut slot = manifest.encode();
        slot.resize(SLOT_BYTES, 0xA5);
        slot
    }

    #[test]
    fn the_bytes_of_a_manifest_are_pinned_and_round_trip() {
        let bytes = manifest(3).encode();
        let hex: String = bytes[..208].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN_MANIFEST);
        assert!(bytes[208..].iter().all(|b| *b == 0));
        assert_eq!(bytes.len(), 4_096);
        assert_eq!(Manifest::decode(&slot(&manifest(3))), Ok(manifest(3)));
        assert_eq!(SLOT_BYTES, 167_936);
    }

    const GOLDEN_MANIFEST: &str = "\
        f619ba79001000004c414e454d514c47010000000000000003000000000000006469726563746f72\
        792d69642d3031360200040002000000090909090909090909090909090909090c00000000000000\
        220000000000000005000000000000000600000000000000f9ffffffffffffff0000000000000000\
        00000000000000000a0000000200000021000000000000000000010000000000e110000000000000\
        efbeadde4d0000000b00000001000000220000000000000000000100000000000000000000000000\
        0000000000000000";

    #[test]
    fn no_single_flipped_bit_of_a_slot_is_taken() {
        let mut slot = slot(&manifest(3));
        for bit in 0..4_096 * 8 {
            slot[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&slot).is_err(), "bit {bit}");
            slot[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_newer_valid_slot_counts_and_the_other_is_rewritten_first() {
        let (old, new, none) = (slot(&manifest(3)), slot(&manifest(4)), vec![0; SLOT_BYTES]);
        for (slots, sequence, order) in [
            ([&old, &new], 4, [0, 1]),
            ([&new, &old], 4, [1, 0]),
            ([&none, &new], 4, [0, 1]),
            ([&old, &none], 3, [1, 0]),
            ([&new, &new], 4, [0, 1]),
        ] {
            let chosen = choose([slots[0], slots[1]]).ok().unwrap();
            assert_eq!((chosen.manifest.sequence, chosen.order), (sequence, order));
        }
        assert_eq!(choose([&none, &none]).err(), Some(SlotError::Invalid));
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = manifest(3).encode();
        bytes[16] = 9;
        let checksum = crc32c(0, &bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Manifest::decode(&bytes), Err(SlotError::Newer { version: 9, features: 0 }));
    }
}

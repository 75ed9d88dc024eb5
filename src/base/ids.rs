//! Newtypes for every number whose meaning could be mistaken for another's.

use std::fmt;

/// One core's shard: its executor, its log, its part of the partitions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

impl ShardId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Number of bits of a [`PartitionId`] that count within a shard.
const PARTITION_COUNTER_BITS: u32 = 40;

/// A partition for ever: the shard in the bits above 40, a counter of that shard below.
/// Below 2^53 so that JavaScript clients read it exactly; never reused, not even after a
/// queue is deleted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartitionId(pub u64);

impl PartitionId {
    pub fn new(shard: ShardId, counter: u64) -> Self {
        assert!(counter < 1 << PARTITION_COUNTER_BITS, "partition counter exhausted");
        Self(u64::from(shard.0) << PARTITION_COUNTER_BITS | counter)
    }

    pub fn counter(self) -> u64 {
        self.0 & ((1 << PARTITION_COUNTER_BITS) - 1)
    }

    /// The shard that owns the partition, if the number can name one at all.
    pub fn shard(self) -> Option<ShardId> {
        u16::try_from(self.0 >> PARTITION_COUNTER_BITS).ok().map(ShardId)
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Index of a message in its partition: 0, 1, 2, … without gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Offset(pub u64);

/// Number of a segment in its shard's log. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId(pub u32);

/// A byte place in a shard's log: segment number, then byte offset in that segment.
/// Ordered as the log is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPosition(u64);

/// Number of bits of a [`LogPosition`] for the byte offset: segments stay under 64 GiB.
const POSITION_OFFSET_BITS: u32 = 36;

impl LogPosition {
    pub const ZERO: Self = Self(0);

    pub fn new(segment: SegmentId, byte: u64) -> Self {
        assert!(byte < 1 << POSITION_OFFSET_BITS, "byte offset beyond a segment");
        assert!(segment.0 < 1 << (64 - POSITION_OFFSET_BITS), "segment numbers exhausted");
        Self(u64::from(segment.0) << POSITION_OFFSET_BITS | byte)
    }

    pub fn segment(self) -> SegmentId {
        SegmentId((self.0 >> POSITION_OFFSET_BITS) as u32)
    }

    pub fn byte(self) -> u64 {
        self.0 & ((1 << POSITION_OFFSET_BITS) - 1)
    }

    /// The packed form that records carry.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The position `bytes` further in the same segment.
    pub fn advance(self, bytes: u64) -> Self {
        Self::new(self.segment(), self.byte() + bytes)
    }
}

/// 16 bytes of a UUID version 7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MessageId(pub [u8; 16]);

/// One pop's lease over all partitions it claimed; a UUIDv7 on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LeaseId(pub [u8; 16]);

/// Joins a reply to the request that asked for it. Chosen by the driver, unique per shard
/// while the request is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Joins an I/O completion to its effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

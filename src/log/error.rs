//! How the log says no. Each error names whose fault it is and, for files, which and where.

use super::io::FileId;
use crate::base::fault::DiskError;
use crate::base::ids::{LogPosition, SegmentId, ShardId};
use std::fmt;

/// Why an append was refused. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendError {
    /// Longer than any segment takes.
    TooLarge,
    /// The disk is full (or the segment table is): try again once something was released.
    NoSpace,
    /// The next segment is not ready yet, or too much waits to be written: try again soon.
    Busy,
    /// Poisoned or stopping: this log takes nothing any more.
    Stopped,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "record larger than a segment takes",
            Self::NoSpace => "no space left for the log",
            Self::Busy => "the log is waiting for its disk",
            Self::Stopped => "the log takes no more writes",
        })
    }
}

impl std::error::Error for AppendError {}

/// Why a read of one record failed. Other records are not affected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// The device refused.
    Device { at: LogPosition, error: DiskError },
    /// The bytes came, and are not the record that was written there.
    Damaged { at: LogPosition },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |at: &LogPosition| FileId::Segment(at.segment()).name();
        match self {
            Self::Device { at, error } => {
                write!(f, "cannot read {} at byte {}: {error}", name(at), at.byte())
            }
            Self::Damaged { at } => {
                write!(f, "damaged record in {} at byte {}", name(at), at.byte())
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// Why a log cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The device refused: neither torn nor damaged, perhaps only busy failing.
    Device { doing: &'static str, file: String, error: DiskError },
    /// The settings make no log.
    Config { why: &'static str },
    /// The files belong to another data directory.
    Foreign { found: [u8; 16], wanted: [u8; 16] },
    /// The files belong to another shard of a data directory.
    WrongShard { found: ShardId, wanted: ShardId },
    /// The directory was made for another number of shards.
    ShardCount { found: u16, wanted: u16 },
    /// A newer program wrote this.
    NewerFormat { version: u32, features: u32, known: u32 },
    /// Segments without a manifest: somebody removed it.
    ManifestMissing { segment: SegmentId },
    /// The manifest has a wrong length, or neither of its slots is whole.
    ManifestDamaged { why: &'static str },
    /// The manifest names a file that is not there.
    SegmentMissing { segment: SegmentId },
    /// A segment file is shorter than it was made.
    SegmentShort { segment: SegmentId, bytes: u64, wanted: u64 },
    /// A sealed segment is not what was sealed: flipped bits, a swapped or a foreign file.
    Damaged { segment: SegmentId, at: u64, why: &'static str },
    /// Something durable is missing in the open segment.
    Corrupt { segment: SegmentId, at: u64, durable: LogPosition },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |segment: &SegmentId| FileId::Segment(*segment).name();
        match self {
            Self::Device { doing, file, error } => write!(f, "cannot {doing} {file}: {error}"),
            Self::Config { why } => f.write_str(why),
            Self::Foreign { found, wanted } => write!(
                f,
                "manifest belongs to another data directory ({}, this is {})",
                Hex(found),
                Hex(wanted)
            ),
            Self::WrongShard { found, wanted } => {
                write!(f, "manifest belongs to shard {}, this is shard {}", found.0, wanted.0)
            }
            Self::ShardCount { found, wanted } => {
                write!(f, "directory was made for {found} shards, not {wanted}")
            }
            Self::NewerFormat { version, features, known } => write!(
                f,
                "manifest is of format {version} (features {features:#x}); this program knows \
                 format {known}: use a newer one"
            ),
            Self::ManifestMissing { segment } => {
                write!(f, "manifest is missing although {} exists", name(segment))
            }
            Self::ManifestDamaged { why } => write!(f, "manifest is damaged: {why}"),
            Self::SegmentMissing { segment } => {
                write!(f, "{} is missing although the manifest names it", name(segment))
            }
            Self::SegmentShort { segment, bytes, wanted } => {
                write!(f, "{} has {bytes} bytes instead of {wanted}", name(segment))
            }
            Self::Damaged { segment, at, why } => {
                write!(f, "{} is damaged at byte {at}: {why}", name(segment))
            }
            Self::Corrupt { segment, at, durable } => write!(
                f,
                "{} is damaged at byte {at}, although it was durable up to byte {} of {}",
                name(segment),
                durable.byte(),
                name(&durable.segment())
            ),
        }
    }
}

impl std::error::Error for OpenError {}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

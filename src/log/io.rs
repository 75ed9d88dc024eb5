//! The seam below the log: what it asks of a disk while it runs.
//!
//! The driver (glommio in `server::disk`, a seeded fault disk in the simulation) performs each
//! operation and hands back exactly one [`IoDone`] for it, in any order. Operations on one file
//! may run concurrently, except where the log itself waits for a completion before it asks for
//! the next.

use crate::base::fault::DiskError;
use crate::base::ids::{IoId, SegmentId};

/// A file of a shard's directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileId {
    Manifest,
    Segment(SegmentId),
    /// A preallocated file that waits to become a segment.
    Spare(u32),
    /// Bytes cut off a torn tail, kept aside for a person.
    Cut(SegmentId),
}

impl FileId {
    /// The name inside the shard's directory.
    pub fn name(self) -> String {
        match self {
            Self::Manifest => "manifest".to_owned(),
            Self::Segment(id) => format!("{:010}.seg", id.0),
            Self::Spare(n) => format!("{n:010}.spare"),
            Self::Cut(id) => format!("{:010}.cut", id.0),
        }
    }

    /// The file a name stands for; `None` for names the log never makes.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "manifest" {
            return Some(Self::Manifest);
        }
        let (number, kind) = name.split_once('.')?;
        if number.len() != 10 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number: u32 = number.parse().ok()?;
        match kind {
            "seg" => Some(Self::Segment(SegmentId(number))),
            "spare" => Some(Self::Spare(number)),
            "cut" => Some(Self::Cut(SegmentId(number))),
            _ => None,
        }
    }
}

/// One disk operation the log wants done.
#[derive(Debug)]
pub enum LogIo<B> {
    /// Write the first `len` bytes of `buf` at byte `at`; both are multiples of
    /// [`crate::base::buf::ALIGN`]. Done only when all of it is written: the driver loops over
    /// short writes. The buffer stays shared with the tail of the log. `durable`: done only when
    /// these bytes would survive a loss of power, as if a `Sync` had followed; one operation
    /// then costs the driver one turn instead of two.
    Write {
        id: IoId,
        file: FileId,
        at: u64,
        buf: B,
        len: usize,
        durable: bool,
    },
    /// fdatasync. Never repeated by the driver.
    Sync {
        id: IoId,
        file: FileId,
    },
    /// Read `len` bytes at `at` (both aligned) into a new buffer of that length. A file that
    /// ends earlier is an error.
    Read {
        id: IoId,
        file: FileId,
        at: u64,
        len: usize,
    },
    /// Create a file of exactly `bytes` of zeros, its blocks written, not only reserved.
    Create {
        id: IoId,
        file: FileId,
        bytes: u64,
    },
    /// Close, rename; the file is opened anew on its next use.
    Rename {
        id: IoId,
        from: FileId,
        to: FileId,
    },
    Remove {
        id: IoId,
        file: FileId,
    },
    /// fsync of the shard's directory.
    SyncDir {
        id: IoId,
    },
}

impl<B> LogIo<B> {
    pub fn id(&self) -> IoId {
        match self {
            Self::Write { id, .. }
            | Self::Sync { id, .. }
            | Self::Read { id, .. }
            | Self::Create { id, .. }
            | Self::Rename { id, .. }
            | Self::Remove { id, .. }
            | Self::SyncDir { id } => *id,
        }
    }
}

/// How one operation ended. `Ok(Some(_))` exactly for a read.
#[derive(Debug)]
pub struct IoDone<B> {
    pub id: IoId,
    pub result: Result<Option<B>, DiskError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_foreign_names_are_no_files_of_ours() {
        let files = [
            FileId::Manifest,
            FileId::Segment(SegmentId(7)),
            FileId::Spare(u32::MAX),
            FileId::Cut(SegmentId(0)),
        ];
        for file in files {
            assert_eq!(FileId::parse(&file.name()), Some(file));
        }
        for foreign in [".DS_Store", "1.bak", "99999999999999999999.seg", "1.seg", "+000000001.seg"]
        {
            assert_eq!(FileId::parse(foreign), None, "{foreign}");
        }
    }
}

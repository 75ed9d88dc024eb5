//! What the log is waiting for: one purpose for each operation handed to the driver.

use super::format::Place;
use super::read_ahead::Wanted;
use crate::base::ids::{IoId, LogPosition, SegmentId};

/// Why an operation was asked for, and all it takes to ask again.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// Piece `piece` of the chunk in flight.
    ChunkWrite {
        piece: usize,
    },
    ChunkSync,
    FooterWrite,
    FooterSync,
    RollRename,
    RollSyncDir,
    ManifestWrite,
    ManifestSync,
    SpareCreate {
        number: u32,
    },
    SpareSync {
        number: u32,
    },
    /// A released segment becomes a spare.
    Recycle {
        number: u32,
    },
    /// The file is not needed; whether it goes does not matter.
    Remove,
    Read(Read),
}

/// A part of a segment that is being read.
#[derive(Clone, Debug)]
pub struct Read {
    pub from: LogPosition,
    /// `None` when the segment is not known: what is read then cannot be verified.
    pub place: Option<Place>,
    /// The one record it is for. `None`: a span of [`super::read_ahead::ReadAhead`].
    pub alone: Option<Wanted>,
}

impl Read {
    pub fn segment(&self) -> SegmentId {
        self.from.segment()
    }
}

/// A slab whose slots are named by id; the upper half of an id counts, so that an id is never
/// seen twice.
#[derive(Default)]
pub struct InFlight {
    slots: Vec<Option<(IoId, Purpose)>>,
    free: Vec<u32>,
    count: u32,
}

impl InFlight {
    pub fn put(&mut self, purpose: Purpose) -> IoId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.count = self.count.wrapping_add(1);
        let id = IoId(u64::from(self.count) << 32 | u64::from(slot));
        self.slots[slot as usize] = Some((id, purpose));
        id
    }

    /// The purpose of `id`. Each is completed once.
    pub fn take(&mut self, id: IoId) -> Purpose {
        let slot = id.0 as u32;
        let found = self.slots.get_mut(slot as usize).and_then(Option::take);
        let (known, purpose) = found.unwrap_or_else(|| panic!("completion of no operation"));
        assert!(known == id, "completion of an operation that has ended");
        self.free.push(slot);
        purpose
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

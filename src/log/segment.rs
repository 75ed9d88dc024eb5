//! The segments of the log and the files that wait to become one: plain bookkeeping. What is
//! done to them, in which order, is in `roll`.

use super::format::{Geometry, Place, Salt};
use super::manifest::{ManifestEntry, SegmentState};
use crate::base::ids::SegmentId;
use crate::base::time::Deadline;
use std::collections::VecDeque;

/// Where a segment stands between its birth in memory and the reuse of its file. In order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Takes appends in memory; the manifest may not name it before its file has its name.
    Coming,
    /// In the manifest.
    Live,
    /// Released: the next manifest is without it.
    Leaving,
    /// The manifest being written is without it.
    Excluded,
    /// The durable manifest is without it; its file may go once no read pins it.
    Gone,
}

#[derive(Clone, Debug)]
pub struct Segment {
    pub entry: ManifestEntry,
    pub phase: Phase,
    /// Reads in flight.
    pub pins: u32,
}

/// A segment as the owner of the log sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    pub id: SegmentId,
    /// Bytes of data: all of a sealed segment, what was appended so far of the active one.
    pub bytes: u64,
    pub sealed: bool,
}

/// All segments whose files are not free again, oldest first.
#[derive(Default)]
pub struct Segments {
    list: VecDeque<Segment>,
}

impl Segments {
    pub fn push(&mut self, entry: ManifestEntry, phase: Phase) {
        assert!(
            self.list.back().is_none_or(|last| last.entry.segment < entry.segment),
            "segment numbers rise"
        );
        self.list.push_back(Segment { entry, phase, pins: 0 });
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.list.iter_mut()
    }

    pub fn find(&mut self, id: SegmentId) -> Option<&mut Segment> {
        let index = self.list.binary_search_by_key(&id, |segment| segment.entry.segment).ok()?;
        self.list.get_mut(index)
    }

    pub fn place(&self, salt: Salt, id: SegmentId) -> Option<Place> {
        let index = self.list.binary_search_by_key(&id, |segment| segment.entry.segment).ok()?;
        Some(Place::new(salt, id, self.list[index].entry.epoch))
    }

    /// What a manifest written now names.
    pub fn manifest_entries(&self) -> Vec<ManifestEntry> {
        let live = self.list.iter().filter(|segment| segment.phase == Phase::Live);
        live.map(|segment| segment.entry).collect()
    }

    /// A manifest without the leaving segments begins to be written.
    pub fn exclude_leaving(&mut self) {
        for segment in self.list.iter_mut().filter(|segment| segment.phase == Phase::Leaving) {
            segment.phase = Phase::Excluded;
        }
    }

    /// That manifest is durable.
    pub fn excluded_are_gone(&mut self) {
        for segment in self.list.iter_mut().filter(|segment| segment.phase == Phase::Excluded) {
            segment.phase = Phase::Gone;
        }
    }

    /// Takes one segment whose file nobody needs.
    pub fn take_gone(&mut self) -> Option<ManifestEntry> {
        let free = |segment: &Segment| segment.phase == Phase::Gone && segment.pins == 0;
        let index = self.list.iter().position(free)?;
        self.list.remove(index).map(|segment| segment.entry)
    }

    pub fn is_sealed(entry: &ManifestEntry) -> bool {
        matches!(entry.state, SegmentState::Sealed(_))
    }
}

/// Spares wanted: one for any append, one in reserve for what must go on when the disk is
/// full.
pub const SPARES_WANTED: usize = 2;
/// Released segments kept as spares beyond that save the next creates.
pub const SPARES_MAX: usize = 4;
/// After a failed create: space rarely comes back within less, and a person notices more.
const RETRY_MS_FIRST: u64 = 100;
const RETRY_MS_MAX: u64 = 2_000;

pub struct Spares {
    pub ready: VecDeque<u32>,
    /// Being created, or being renamed from a released segment.
    pub coming: usize,
    pub next: u32,
    /// The last create said that the disk is full.
    pub no_space: bool,
    pub retry_at: Option<Deadline>,
    retry_ms: u64,
}

impl Spares {
    pub fn new(ready: VecDeque<u32>, next: u32, no_space: bool) -> Self {
        Self { ready, coming: 0, next, no_space, retry_at: None, retry_ms: RETRY_MS_FIRST }
    }

    pub fn total(&self) -> usize {
        self.ready.len() + self.coming
    }

    pub fn take_number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    pub fn arrived(&mut self, number: u32) {
        self.coming -= 1;
        self.ready.push_back(number);
        self.no_space = false;
        self.retry_at = None;
        self.retry_ms = RETRY_MS_FIRST;
    }

    pub fn failed(&mut self, now: crate::base::time::Now, no_space: bool) {
        self.coming -= 1;
        self.no_space |= no_space;
        self.retry_at = Some(now.after_ms(self.retry_ms));
        self.retry_ms = (self.retry_ms * 2).min(RETRY_MS_MAX);
    }
}

/// The segment that takes appends.
pub struct Active {
    pub id: SegmentId,
    pub place: Place,
    pub geometry: Geometry,
    pub index: super::footer::FooterIndex,
    /// End of the last record.
    pub data_bytes: u64,
}

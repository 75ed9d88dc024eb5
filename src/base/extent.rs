//! What of a log outlived its last process: whether a record that was appended once is in it.

use super::ids::{LogPosition, SegmentId};

/// The segments a log was opened with, and how far each reaches.
///
/// Its word holds for any position that any process ever had from this log, also after more
/// starts, as long as nothing is released: a number is given to a segment once, even where a
/// crash leaves nothing of it; a segment that was found open ends where it was cut; and a
/// segment names the one before it, so that one that is missing was released if it is at or
/// before that, and never was durable if not. (The last segment with something durable in it is
/// never released.)
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Extent {
    /// The one before the oldest.
    released: SegmentId,
    /// Ascending, each with its end.
    segments: Vec<(SegmentId, u64)>,
}

impl Extent {
    pub fn new(released: SegmentId, segments: impl Iterator<Item = (SegmentId, u64)>) -> Self {
        Self { released, segments: segments.collect() }
    }

    /// Whether the record that was appended at this position is in the log, or was and its
    /// segment has been released since.
    pub fn holds(&self, at: LogPosition) -> bool {
        match self.segments.binary_search_by_key(&at.segment(), |(segment, _)| *segment) {
            Ok(index) => at.byte() < self.segments[index].1,
            Err(0) => at.segment() <= self.released,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, byte: u64) -> LogPosition {
        LogPosition::new(SegmentId(segment), byte)
    }

    #[test]
    fn a_record_is_held_up_to_its_segments_cut_and_in_what_was_released() {
        let segments = [(SegmentId(5), 4_096), (SegmentId(9), 800)];
        let extent = Extent::new(SegmentId(3), segments.into_iter());
        for held in [at(1, 64), at(3, 1 << 20), at(5, 0), at(5, 4_088), at(9, 792)] {
            assert!(extent.holds(held), "{held:?}");
        }
        for lost in [at(4, 0), at(5, 4_096), at(7, 64), at(9, 800), at(10, 0)] {
            assert!(!extent.holds(lost), "{lost:?}");
        }
        assert!(!Extent::default().holds(at(1, 64)), "a log without segments never held one");
    }
}

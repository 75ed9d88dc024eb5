//! What keeps a segment of the log alive: how many retained batches and newest records of live
//! state lie in it, and the newest stamp of its transaction ids.

use std::collections::BTreeMap;

use crate::base::ids::SegmentId;

#[derive(Clone, Copy, Default, Debug)]
struct Use {
    live: u64,
    newest_id_us: i64,
}

/// Uses by segment, oldest first.
#[derive(Default, Debug)]
pub struct Segments {
    uses: BTreeMap<SegmentId, Use>,
}

impl Segments {
    pub fn add(&mut self, segment: SegmentId) {
        self.uses.entry(segment).or_default().live += 1;
    }

    pub fn remove(&mut self, segment: SegmentId) {
        let entry = self.uses.get_mut(&segment).expect("a use is removed once");
        entry.live = entry.live.checked_sub(1).expect("a use is removed once");
    }

    /// The newest record of a key moved.
    pub fn moved(&mut self, from: Option<SegmentId>, to: SegmentId) {
        self.add(to);
        if let Some(from) = from {
            self.remove(from);
        }
    }

    pub fn saw_ids(&mut self, segment: SegmentId, us: i64) {
        let entry = self.uses.entry(segment).or_default();
        entry.newest_id_us = entry.newest_id_us.max(us);
    }

    /// The oldest segment still needed, if ids older than `ids_until_us` are not.
    pub fn oldest_needed(&mut self, ids_until_us: i64) -> Option<SegmentId> {
        while let Some((segment, entry)) = self.uses.first_key_value() {
            if entry.live > 0 || entry.newest_id_us >= ids_until_us {
                return Some(*segment);
            }
            let segment = *segment;
            self.uses.remove(&segment);
        }
        None
    }

    pub fn len(&self) -> usize {
        self.uses.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_use_holds_its_segment_and_all_behind_it() {
        let mut s = Segments::default();
        s.add(SegmentId(1));
        s.moved(None, SegmentId(2));
        s.saw_ids(SegmentId(2), 100);
        assert_eq!(s.oldest_needed(0), Some(SegmentId(1)));
        s.moved(Some(SegmentId(1)), SegmentId(3));
        s.remove(SegmentId(2));
        assert_eq!(s.oldest_needed(100), Some(SegmentId(2)));
        assert_eq!(s.oldest_needed(101), Some(SegmentId(3)));
    }
}

//! Transaction ids among the messages of one lease.

use std::collections::HashMap;

use super::group::Cursor;

/// Looks ids of one request up in a lease's list. An id may stand there twice (its queue has no
/// dedup window); the lowest message that is not settled is meant.
pub(super) struct LeasedIds {
    /// Messages of the lease already settled.
    pub settled: usize,
    /// Where an ack of the whole batch in its order stands.
    next: usize,
    /// So far the items named one message after the other: an id seen before would be an
    /// earlier item's, so the next message is the lowest that can be meant.
    in_step: bool,
    /// Lowest place of each id, made when the items are not in step.
    first: Option<HashMap<u64, usize, ahash::RandomState>>,
}

impl LeasedIds {
    pub fn of(cursor: &Cursor) -> Self {
        let settled = cursor.lease.as_ref().map_or(0, |lease| {
            (cursor.next.0.saturating_sub(lease.record.first.0) as usize).min(lease.ids.len())
        });
        Self { settled, next: settled, in_step: true, first: None }
    }

    /// The items so far and this one name one message after the other.
    pub fn is_next(&self, ids: &[u64], wanted: u64) -> bool {
        self.in_step && ids.get(self.next) == Some(&wanted)
    }

    pub fn find(&mut self, ids: &[u64], wanted: u64) -> Option<usize> {
        if self.is_next(ids, wanted) {
            self.next += 1;
            return Some(self.next - 1);
        }
        self.in_step = false;
        let settled = self.settled;
        let first = self.first.get_or_insert_with(|| {
            let hasher = ahash::RandomState::with_seeds(25, 26, 27, 28);
            let mut first = HashMap::with_capacity_and_hasher(ids.len(), hasher);
            for at in (settled..ids.len()).chain(0..settled) {
                first.entry(ids[at]).or_insert(at);
            }
            first
        });
        first.get(&wanted).copied()
    }
}

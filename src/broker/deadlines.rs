//! One queue of deadlines for a whole shard, with removal: leases, holds and waiters share it.

use std::collections::BTreeMap;

use crate::base::time::{Deadline, Now};

/// Names one entry for its removal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeadlineKey(Deadline, u64);

impl DeadlineKey {
    pub fn passed(self, now: Now) -> bool {
        self.0.passed(now)
    }
}

/// Entries by time, then by arrival.
#[derive(Debug)]
pub struct Deadlines<T> {
    entries: BTreeMap<DeadlineKey, T>,
    arrivals: u64,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), arrivals: 0 }
    }
}

impl<T> Deadlines<T> {
    pub fn insert(&mut self, at: Deadline, entry: T) -> DeadlineKey {
        let key = DeadlineKey(at, self.arrivals);
        self.arrivals += 1;
        self.entries.insert(key, entry);
        key
    }

    pub fn remove(&mut self, key: DeadlineKey) -> Option<T> {
        self.entries.remove(&key)
    }

    pub fn next(&self) -> Option<Deadline> {
        self.entries.first_key_value().map(|(key, _)| key.0)
    }

    /// Takes the first entry whose time has come.
    pub fn pop_passed(&mut self, now: Now) -> Option<T> {
        let key = *self.entries.first_key_value()?.0;
        if key.0.passed(now) { self.entries.remove(&key) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_in_order_of_time_and_removed_ones_never() {
        let mut d = Deadlines::default();
        let late = d.insert(Deadline(30), "late");
        d.insert(Deadline(10), "first");
        d.insert(Deadline(10), "second");
        assert_eq!(d.remove(late), Some("late"));
        assert_eq!(d.next(), Some(Deadline(10)));
        assert_eq!(d.pop_passed(Now { mono_us: 9, wall_us: 0 }), None);
        let now = Now { mono_us: 10, wall_us: 0 };
        assert_eq!((d.pop_passed(now), d.pop_passed(now)), (Some("first"), Some("second")));
        assert_eq!(d.pop_passed(now), None);
    }
}

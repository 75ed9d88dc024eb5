//! One queue of deadlines for a whole shard, with removal: leases, holds and waiters share it.
//!
//! A binary heap in which each entry knows its place. Its memory is used again, where a tree would ask
//! for nodes and give them back with each lease; that of a crowd is given back when none is left.

use crate::base::time::{Deadline, Now};

/// Places kept for reuse when no entry is left.
const KEPT_MAX: usize = 16 << 10;

/// Names one entry for its removal. Ordered by time, then by arrival. Small, as each cursor may hold
/// two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeadlineKey {
    at: Deadline,
    /// Begins anew after 2³² of them, when two of one time may change places.
    arrival: u32,
    slot: u32,
}

impl DeadlineKey {
    pub fn passed(self, now: Now) -> bool {
        self.at.passed(now)
    }
}

/// Entries by time, then by arrival.
#[derive(Debug)]
pub struct Deadlines<T> {
    /// No key is before that at half its place.
    heap: Vec<DeadlineKey>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    arrivals: u32,
}

#[derive(Debug)]
struct Slot<T> {
    /// Of its key in the heap.
    place: u32,
    /// `None`: the slot is free.
    entry: Option<T>,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self { heap: Vec::new(), slots: Vec::new(), free: Vec::new(), arrivals: 0 }
    }
}

impl<T> Deadlines<T> {
    pub fn insert(&mut self, at: Deadline, entry: T) -> DeadlineKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { place: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize].entry = Some(entry);
        let key = DeadlineKey { at, arrival: self.arrivals, slot };
        self.arrivals = self.arrivals.wrapping_add(1);
        self.heap.push(key);
        self.rise(self.heap.len() - 1);
        key
    }

    pub fn remove(&mut self, key: DeadlineKey) -> Option<T> {
        let slot = self.slots.get(key.slot as usize).filter(|slot| slot.entry.is_some())?;
        let place = slot.place as usize;
        // Another entry may have the slot by now.
        if self.heap[place] == key { self.take(place) } else { None }
    }

    pub fn next(&self) -> Option<Deadline> {
        self.heap.first().map(|key| key.at)
    }

    /// Takes the first entry whose time has come.
    pub fn pop_passed(&mut self, now: Now) -> Option<T> {
        if self.heap.first()?.passed(now) { self.take(0) } else { None }
    }

    fn take(&mut self, place: usize) -> Option<T> {
        let key = self.heap.swap_remove(place);
        if place < self.heap.len() {
            // The last of all is here now, and may belong above or below.
            self.sink(place);
            self.rise(place);
        }
        self.free.push(key.slot);
        let entry = self.slots[key.slot as usize].entry.take();
        if self.heap.is_empty() && self.slots.len() > KEPT_MAX {
            *self = Self { arrivals: self.arrivals, ..Self::default() };
        }
        entry
    }

    /// Moves a key up to where none before it is below.
    fn rise(&mut self, mut place: usize) {
        let key = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above] <= key {
                break;
            }
            self.set(place, self.heap[above]);
            place = above;
        }
        self.set(place, key);
    }

    /// Moves a key down to where none after it is above.
    fn sink(&mut self, mut place: usize) {
        let key = self.heap[place];
        while let Some(first) = self.heap.get(2 * place + 1) {
            let second = self.heap.get(2 * place + 2).filter(|second| *second < first);
            let below = 2 * place + 1 + usize::from(second.is_some());
            if key <= self.heap[below] {
                break;
            }
            self.set(place, self.heap[below]);
            place = below;
        }
        self.set(place, key);
    }

    fn set(&mut self, place: usize, key: DeadlineKey) {
        self.heap[place] = key;
        self.slots[key.slot as usize].place = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::prng::Prng;
    use std::collections::BTreeMap;

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_us: 0 }
    }

    #[test]
    fn entries_leave_in_order_of_time_and_removed_ones_never() {
        let mut d = Deadlines::default();
        let late = d.insert(Deadline(30), "late");
        d.insert(Deadline(10), "first");
        d.insert(Deadline(10), "second");
        assert_eq!(d.remove(late), Some("late"));
        assert_eq!(d.next(), Some(Deadline(10)));
        assert_eq!(d.pop_passed(at(9)), None);
        assert_eq!((d.pop_passed(at(10)), d.pop_passed(at(10))), (Some("first"), Some("second")));
        assert_eq!(d.pop_passed(at(10)), None);
    }

    #[test]
    fn a_key_whose_entry_has_left_removes_nothing() {
        let mut d = Deadlines::default();
        let old = d.insert(Deadline(10), "old");
        assert_eq!(d.remove(old), Some("old"));
        assert_eq!(d.remove(old), None);
        // In the same slot, at the same time.
        let new = d.insert(Deadline(10), "new");
        assert_eq!(d.remove(old), None);
        assert_eq!(d.remove(new), Some("new"));
    }

    #[test]
    fn a_crowds_memory_goes_with_its_last_entry() {
        let mut d = Deadlines::default();
        let crowd = KEPT_MAX + 1;
        let keys: Vec<_> = (0..crowd).map(|n| d.insert(Deadline(7), n)).collect();
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(d.remove(*key), Some(n));
        }
        assert_eq!(d.heap.capacity() + d.slots.capacity() + d.free.capacity(), 0);
        assert_eq!((d.remove(keys[0]), d.next()), (None, None));
        let key = d.insert(Deadline(8), 1);
        assert_eq!((d.remove(keys[0]), d.remove(key)), (None, Some(1)));
    }

    #[test]
    fn it_does_what_a_sorted_map_does() {
        let mut prng = Prng::new(7);
        let (mut d, mut map) = (Deadlines::default(), BTreeMap::new());
        let mut most = 0;
        for n in 0..200_000u64 {
            let now = at(n / 4);
            match prng.below(5) {
                0 | 1 => {
                    let key = d.insert(Deadline(n / 4 + prng.below(400)), n);
                    map.insert((key.at, key.arrival), (key, n));
                }
                2 if !map.is_empty() => {
                    let nth = prng.below(map.len() as u64) as usize;
                    let (key, entry) = *map.values().nth(nth).unwrap();
                    map.remove(&(key.at, key.arrival));
                    assert_eq!(d.remove(key), Some(entry));
                }
                _ => {
                    let first = map.first_key_value().filter(|(key, _)| key.0.passed(now));
                    let first = first.map(|(key, (_, entry))| (*key, *entry));
                    map.retain(|key, _| first.is_none_or(|(first, _)| *key != first));
                    assert_eq!(d.pop_passed(now), first.map(|(_, entry)| entry));
                }
            }
            most = most.max(map.len());
            assert_eq!(d.next(), map.first_key_value().map(|(key, _)| key.0));
        }
        assert!(most > 20);
        assert_eq!(d.slots.len(), most);
    }
}

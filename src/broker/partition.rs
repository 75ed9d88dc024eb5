//! Partitions of one shard: ordered logs of batches, and the two tables that find them.
//!
//! A partition's slot is the counter of its id: pages of slots are allocated as ids are given
//! out and freed when every partition of a page is gone, so a slot is never another partition's.
//! Only this file moves a high watermark.

use std::collections::VecDeque;

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::base::hash::partition_hash;
use crate::base::ids::{LogPosition, Offset, PartitionId, SegmentId, ShardId};
use crate::base::time::Now;

/// Place of a partition in its shard's tables: the counter of its id.
pub type Slot = u32;

/// Where one stored batch lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRef {
    pub at: LogPosition,
    pub base: Offset,
    pub created_at_us: i64,
    /// Whole length of its record in bytes.
    pub bytes: u32,
    pub count: u32,
}

impl BatchRef {
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.count))
    }
}

/// One ordered partition.
#[derive(Debug)]
pub struct Partition {
    pub name: Box<str>,
    /// Slot of its queue.
    pub queue: u32,
    /// Place in its queue's list.
    pub place: u32,
    /// The offset the next message gets.
    pub next_offset: Offset,
    /// First offset not yet deliverable: the end of what is durable.
    high_watermark: Offset,
    /// Oldest offset still kept.
    pub log_start: Offset,
    /// Stamp of the newest append; stamps grow strictly.
    pub last_created_us: i64,
    pub created_at_us: i64,
    /// Retained batches, ascending.
    pub batches: SmallVec<[BatchRef; 1]>,
    /// Batches that retention has dropped and whose ids a repeat may still carry: where each
    /// ended and when it was created, ascending. Few partitions have any.
    #[expect(clippy::box_collection, reason = "one word in each partition that has none")]
    dropped: Option<Box<VecDeque<(Offset, i64)>>>,
    /// Segments of its newest birth and log-start records.
    pub birth_segment: SegmentId,
    pub start_segment: Option<SegmentId>,
}

impl Partition {
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Messages below `to` are durable and may be delivered.
    pub fn raise_high_watermark(&mut self, to: Offset) {
        assert!(to >= self.high_watermark && to <= self.next_offset, "high watermark out of order");
        self.high_watermark = to;
    }

    /// The stamp of an append made now: stamps of one partition grow strictly.
    pub fn next_stamp(&self, now: Now) -> i64 {
        now.wall_us.max(self.last_created_us.saturating_add(1))
    }

    /// The retained batches that overlap `from..=to`.
    pub fn batches_between(&self, from: Offset, to: Offset) -> &[BatchRef] {
        let rest = &self.batches[self.first_beyond(from)..];
        // Mostly few overlap, and each look beyond them is at memory that nobody used of late.
        let mut most = 1;
        while most < rest.len() && rest[most].base <= to {
            most *= 2;
        }
        let rest = &rest[..most.min(rest.len())];
        &rest[..rest.partition_point(|b| b.base <= to)]
    }

    /// Place of the first retained batch that ends behind `offset`. Batches of one partition are
    /// mostly of about one length, so the search begins where it would be then.
    fn first_beyond(&self, offset: Offset) -> usize {
        let ends_before = |at: usize| self.batches[at].end() <= offset;
        let len = self.batches.len();
        let before = offset.0.saturating_sub(self.log_start.0);
        let guess = u128::from(before) * len as u128 / u128::from(self.retained().max(1));
        let guess = usize::try_from(guess).unwrap_or(len).min(len);
        // The place lies in `low..=high`.
        let (mut low, mut high, mut step) = (0, len, 1);
        if guess < len && ends_before(guess) {
            low = guess + 1;
            while low + step <= len {
                let probe = low + step - 1;
                if !ends_before(probe) {
                    high = probe;
                    break;
                }
                (low, step) = (probe + 1, step * 2);
            }
        } else {
            high = guess;
            while high > 0 {
                let probe = high.saturating_sub(step);
                if ends_before(probe) {
                    low = probe + 1;
                    break;
                }
                (high, step) = (probe, step * 2);
            }
        }
        low + self.batches[low..high].partition_point(|b| b.end() <= offset)
    }

    pub fn batch_of(&self, offset: Offset) -> Option<&BatchRef> {
        self.batches_between(offset, offset).first()
    }

    /// First deliverable offset whose batch was created at or after `us`; the tail if none.
    pub fn first_created_from(&self, us: i64) -> Offset {
        let at = self.batches.partition_point(|b| b.created_at_us < us);
        self.batches.get(at).map_or(self.next_offset, |b| b.base)
    }

    /// The same, but what was stored at or behind `cut` is never passed over.
    pub fn first_created_from_or_stored_at(&self, us: i64, cut: LogPosition) -> Offset {
        // Both times and places grow, so the batches passed over are the first ones.
        let at = self.batches.partition_point(|b| b.created_at_us < us && b.at < cut);
        self.batches.get(at).map_or(self.next_offset, |b| b.base)
    }

    /// The retained batch that holds the newest deliverable message.
    pub fn newest_visible(&self) -> Option<&BatchRef> {
        let at = self.batches.partition_point(|b| b.end() <= self.high_watermark);
        self.batches.get(..at)?.last()
    }

    /// Remembers dropped batches for as long as a repeat of their messages is recognised.
    pub fn remember_dropped(&mut self, batches: &[BatchRef], keep_us: i64) {
        let Some(newest) = batches.last().filter(|_| keep_us > 0) else { return };
        let dropped = self.dropped.get_or_insert_default();
        dropped.extend(batches.iter().map(|batch| (batch.end(), batch.created_at_us)));
        // It is that late at least.
        let oldest_us = newest.created_at_us.saturating_sub(keep_us);
        while dropped.front().is_some_and(|(_, created_us)| *created_us < oldest_us) {
            dropped.pop_front();
        }
    }

    /// When the dropped message at `offset` was created, if that is still known.
    pub fn dropped_created_us(&self, offset: Offset) -> Option<i64> {
        let dropped = self.dropped.as_ref()?;
        let at = dropped.partition_point(|(end, _)| *end <= offset);
        dropped.get(at).map(|(_, created_us)| *created_us)
    }

    pub fn retained(&self) -> u64 {
        self.next_offset.0 - self.log_start.0
    }

    pub fn retained_bytes(&self) -> u64 {
        self.batches.iter().map(|b| u64::from(b.bytes)).sum()
    }
}

const PAGE: usize = 256;
type Page = Box<[Option<Partition>]>;

/// All partitions of a shard, by slot and by (queue, name).
#[derive(Default)]
pub struct Partitions {
    pages: Vec<Option<Page>>,
    names: HashTable<Slot>,
    live: usize,
    next: Slot,
}

fn name_hash(queue: u32, name: &str) -> u64 {
    // The queue's slot stands for its name: cheaper, and slots are never reused in a run.
    partition_hash("", name) ^ u64::from(queue).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Partitions {
    pub fn len(&self) -> usize {
        self.live
    }

    /// The counter the next partition takes. Kept in every segment's header, so that an id is
    /// never given out twice.
    pub fn next_counter(&self) -> u64 {
        u64::from(self.next)
    }

    pub fn raise_next_counter(&mut self, counter: u64) {
        self.next = self.next.max(Slot::try_from(counter).unwrap_or(Slot::MAX));
    }

    /// Whether another partition can be made.
    pub fn is_full(&self) -> bool {
        self.next == Slot::MAX
    }

    pub fn find(&self, queue: u32, name: &str) -> Option<Slot> {
        self.names
            .find(name_hash(queue, name), |slot| {
                self.get(*slot).is_some_and(|p| p.queue == queue && *p.name == *name)
            })
            .copied()
    }

    pub fn get(&self, slot: Slot) -> Option<&Partition> {
        self.pages.get(slot as usize / PAGE)?.as_ref()?.get(slot as usize % PAGE)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Partition> {
        self.pages.get_mut(slot as usize / PAGE)?.as_mut()?.get_mut(slot as usize % PAGE)?.as_mut()
    }

    /// The slot of an id of this shard, if that partition lives.
    pub fn slot_of(&self, shard: ShardId, id: PartitionId) -> Option<Slot> {
        if id.shard() != Some(shard) {
            return None;
        }
        let slot = Slot::try_from(id.counter()).ok()?;
        self.get(slot).map(|_| slot)
    }

    /// Puts a new, empty partition at `slot`.
    pub fn insert(&mut self, slot: Slot, queue: u32, place: u32, name: &str, created_at_us: i64) {
        let page = slot as usize / PAGE;
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page]
            .get_or_insert_with(|| (0..PAGE).map(|_| None).collect::<Vec<_>>().into_boxed_slice());
        let entry = &mut page[slot as usize % PAGE];
        assert!(entry.is_none(), "partition slots are used once");
        *entry = Some(Partition {
            name: name.into(),
            queue,
            place,
            next_offset: Offset(0),
            high_watermark: Offset(0),
            log_start: Offset(0),
            dropped: None,
            last_created_us: i64::MIN,
            created_at_us,
            batches: SmallVec::new(),
            birth_segment: SegmentId(0),
            start_segment: None,
        });
        self.live += 1;
        self.next = self.next.max(slot + 1);
        let pages = &self.pages;
        self.names.insert_unique(name_hash(queue, name), slot, |slot| {
            let page = pages[*slot as usize / PAGE].as_ref().expect("named slots are live");
            let p = page[*slot as usize % PAGE].as_ref().expect("named slots are live");
            name_hash(p.queue, &p.name)
        });
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Partition> {
        let hash = self.get(slot).map(|p| name_hash(p.queue, &p.name))?;
        if let Ok(entry) = self.names.find_entry(hash, |s| *s == slot) {
            entry.remove();
        }
        let place = self.pages.get_mut(slot as usize / PAGE)?;
        let page = place.as_mut()?;
        let partition = page[slot as usize % PAGE].take();
        if page.iter().all(Option::is_none) {
            *place = None;
        }
        self.live -= usize::from(partition.is_some());
        partition
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::prng::Prng;

    fn batch(base: u64, count: u32, created_at_us: i64) -> BatchRef {
        BatchRef { at: LogPosition::ZERO, base: Offset(base), created_at_us, bytes: 10, count }
    }

    #[test]
    fn slots_are_found_by_name_and_never_reused() {
        let mut table = Partitions::default();
        for i in 0..1_000u32 {
            table.insert(i, i % 3, 0, &format!("p{}", i / 3), 0);
        }
        assert_eq!(table.find(1, "p0"), Some(1));
        assert_eq!(table.find(3, "p0"), None);
        assert!(table.remove(1).is_some() && table.remove(1).is_none());
        assert_eq!(table.find(1, "p0"), None);
        assert_eq!((table.len(), table.next_counter()), (999, 1_000));
        for i in 0..1_000u32 {
            table.remove(i);
        }
        assert!(table.pages.iter().all(Option::is_none));
    }

    #[test]
    fn ranges_and_times_find_batches() {
        let mut table = Partitions::default();
        table.insert(0, 0, 0, "p", 0);
        let p = table.get_mut(0).unwrap();
        p.batches.extend([batch(0, 3, 10), batch(3, 1, 20), batch(4, 6, 30)]);
        p.next_offset = Offset(10);
        p.raise_high_watermark(Offset(4));
        assert_eq!(p.batches_between(Offset(2), Offset(3)).len(), 2);
        assert_eq!(p.batch_of(Offset(9)).unwrap().base, Offset(4));
        assert!(p.batch_of(Offset(10)).is_none());
        assert_eq!(p.first_created_from(11), Offset(3));
        assert_eq!(p.first_created_from(31), Offset(10));
        assert_eq!(p.newest_visible().unwrap().base, Offset(3));
    }

    #[test]
    fn batches_of_any_lengths_are_found_as_by_looking_at_each() {
        let mut prng = Prng::new(5);
        for round in 0..200 {
            let mut table = Partitions::default();
            table.insert(0, 0, 0, "p", 0);
            let p = table.get_mut(0).unwrap();
            let mut end = prng.below(40);
            p.log_start = Offset(end);
            for _ in 0..prng.below(70) {
                // Of one length, of many, with one that dwarfs the rest.
                let count = match round % 3 {
                    0 => 5,
                    1 => 1 + prng.below(30) as u32,
                    _ => [1, 1, 1, 4_000][prng.below(4) as usize],
                };
                p.batches.push(batch(end, count, 0));
                end += u64::from(count);
            }
            p.next_offset = Offset(end + prng.below(3));
            for _ in 0..50 {
                let from = Offset(prng.below(p.next_offset.0 + 10));
                let most = 1 + prng.below(500);
                let to = Offset(from.0 + prng.below(most));
                let overlaps = |b: &&BatchRef| b.end() > from && b.base <= to;
                let wanted: Vec<_> = p.batches.iter().filter(overlaps).copied().collect();
                assert_eq!(p.batches_between(from, to), wanted, "{from:?} {to:?}");
            }
        }
    }

    #[test]
    fn a_partition_stays_small() {
        assert!(size_of::<Option<Partition>>() <= 136, "{}", size_of::<Option<Partition>>());
    }

    /// The times of dropped batches were once known to 16 seconds only, and a repeat near the end
    /// of the dedup window was stored a second time.
    #[test]
    fn dropped_batches_keep_their_exact_times_while_their_ids_count() {
        let mut table = Partitions::default();
        table.insert(0, 0, 0, "p", 0);
        let p = table.get_mut(0).unwrap();
        p.remember_dropped(&[batch(0, 3, 10), batch(3, 1, 20)], 0);
        assert_eq!(p.dropped_created_us(Offset(0)), None);
        p.remember_dropped(&[batch(0, 3, 10), batch(3, 1, 20)], 100);
        let times = [0, 2, 3, 4].map(|offset| p.dropped_created_us(Offset(offset)));
        assert_eq!(times, [Some(10), Some(10), Some(20), None]);
        p.remember_dropped(&[batch(4, 6, 120)], 100);
        let times = [2, 3, 9].map(|offset| p.dropped_created_us(Offset(offset)));
        assert_eq!(times, [Some(20), Some(20), Some(120)]);
    }
}

//! Which transaction ids were stored lately: fingerprints to offsets, kept by time.
//!
//! A hash table split into independent parts, so that growing touches one part at a time and no step
//! of the core stalls on a rehash of everything. A part grows by a half: all parts fill alike, and
//! with doubling all of them would stand half empty at once; by less, and an entry is moved more often
//! than it is worth. An entry is 16 bytes: 8 of key (fingerprint mixed with the partition), 8 of offset
//! and coarse time. Entries leave by a sweep that follows the clock, without anybody touching their
//! partition.
//!
//! Sixteen entries are a group, with a byte of each one's key beside it: its tag. An id that is not
//! there, as nearly all are not, is known by the tags of one group, which are one line of memory; and
//! [`Dedup::warm`] fetches those of a whole batch side by side.
//!
//! A hit is only a hint: whoever asks verifies it against the stored id, because a false
//! duplicate would be a lost message.

use crate::base::ids::{Offset, PartitionId};

/// Seconds one unit of an entry's time stands for. Entries stay up to this much longer.
const TICK_SECONDS: i64 = 16;
/// The same in microseconds.
pub const TICK_US: i64 = TICK_SECONDS * 1_000_000;
const OFFSET_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << (64 - OFFSET_BITS)) - 1;
const PARTS: usize = 256;
const GROUP: usize = 16;
/// Of sixteen places in a part, at most these are taken. More, and ids overflow into the groups
/// behind their own, whose memory nobody has fetched; fewer, and memory lies idle.
const FULL: usize = 14;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Entry {
    key: u64,
    packed: u64,
}

/// Of each entry of a group a byte of its key; 0: the place is empty.
type Tags = [u8; GROUP];

#[derive(Clone, Copy, Default)]
struct Group {
    tags: Tags,
    entries: [Entry; GROUP],
}

impl Entry {
    fn offset(self) -> Offset {
        Offset(self.packed & ((1 << OFFSET_BITS) - 1))
    }

    /// Ticks since it was stored. The stored tick is the low bits of the clock's: half of their
    /// range (four years) reads as the past, the other half as a stamp ahead of the clock,
    /// which counts as now.
    fn age(self, now_tick: u64) -> u64 {
        let age = now_tick.wrapping_sub(self.packed >> OFFSET_BITS) & TIME_MASK;
        if age > TIME_MASK / 2 { 0 } else { age }
    }
}

/// Any number of groups, or none; never full. An entry lies in the first group from its home on that
/// had room.
#[derive(Default)]
struct Part {
    groups: Vec<Group>,
    used: usize,
}

/// The dedup index of one shard.
pub struct Dedup {
    parts: Vec<Part>,
    /// Next part the sweep looks at.
    sweep: usize,
    used: usize,
}

impl Default for Dedup {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Part::default()).collect(), sweep: 0, used: 0 }
    }
}

fn key_of(partition: PartitionId, fingerprint: u64) -> u64 {
    let mut k = fingerprint ^ partition.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    k = (k ^ (k >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    k ^ k >> 32
}

fn tick_of(wall_us: i64) -> u64 {
    wall_us.max(0).cast_unsigned() / TICK_US.cast_unsigned()
}

impl Dedup {
    pub fn len(&self) -> usize {
        self.used
    }

    pub fn insert(&mut self, partition: PartitionId, fingerprint: u64, offset: Offset, us: i64) {
        let key = key_of(partition, fingerprint);
        let packed = offset.0 & ((1 << OFFSET_BITS) - 1) | (tick_of(us) & TIME_MASK) << OFFSET_BITS;
        self.parts[part_of(key)].insert(Entry { key, packed });
        self.used += 1;
    }

    /// Offsets stored under this id in this partition, lowest first, each with the wall time in
    /// microseconds at which its tick began: it was stored then or up to [`TICK_US`] later.
    pub fn find(
        &self,
        partition: PartitionId,
        fingerprint: u64,
        wall_us: i64,
        out: &mut Vec<(Offset, i64)>,
    ) {
        out.clear();
        let key = key_of(partition, fingerprint);
        self.parts[part_of(key)].find(key, tick_of(wall_us), out);
        out.sort_unstable();
    }

    /// Fetches what [`Self::find`] will look at for these ids. Their places are all over memory, and
    /// the processor waits for many of them at once where nothing else stands in between.
    pub fn warm(&self, partition: PartitionId, fingerprints: impl Iterator<Item = u64>) {
        let touched = fingerprints.fold(0, |touched, fingerprint| {
            let key = key_of(partition, fingerprint);
            let part = &self.parts[part_of(key)];
            touched ^ part.groups.get(part.home(key)).map_or(0, |group| group.tags[0])
        });
        std::hint::black_box(touched);
    }

    /// Drops entries older than `keep_seconds` from the next part in turn. Called once for each
    /// step of the clock, it walks the whole table in [`PARTS`] calls.
    pub fn sweep(&mut self, wall_us: i64, keep_seconds: u64) {
        // One tick more: an entry may have been stored at the very end of its own.
        let keep = keep_seconds / TICK_SECONDS.cast_unsigned() + 1;
        let now_tick = tick_of(wall_us);
        let part = &mut self.parts[self.sweep];
        let before = part.used;
        part.retain(|e| e.age(now_tick) <= keep);
        self.used -= before - part.used;
        self.sweep = (self.sweep + 1) % PARTS;
    }
}

fn part_of(key: u64) -> usize {
    (key >> 56) as usize % PARTS
}

/// Never 0.
fn tag_of(key: u64) -> u8 {
    ((key >> 48) as u8).max(1)
}

/// Which places of a group have this tag: the highest bit of each such byte. All sixteen at once:
/// a byte of `different` is zero, exactly if neither its low seven bits carry into the eighth when
/// they are added to as many ones, nor the eighth is set.
fn places_of(tag: u8, tags: &Tags) -> u128 {
    const LOW: u128 = u128::from_le_bytes([0x7f; GROUP]);
    let different = u128::from_le_bytes(*tags) ^ u128::from_le_bytes([tag; GROUP]);
    !(((different & LOW) + LOW) | different | LOW)
}

/// The first of some places.
fn first_of(places: u128) -> usize {
    places.trailing_zeros() as usize / 8
}

impl Part {
    fn insert(&mut self, entry: Entry) {
        if self.used + 1 > self.groups.len() * FULL {
            self.rebuild(self.groups.len() + (self.groups.len() / 2).max(1), |_| true);
        }
        self.place(entry);
    }

    fn place(&mut self, entry: Entry) {
        let mut at = self.home(entry.key);
        let room = loop {
            match places_of(0, &self.groups[at].tags) {
                0 => at = self.after(at),
                places => break first_of(places),
            }
        };
        self.groups[at].tags[room] = tag_of(entry.key);
        self.groups[at].entries[room] = entry;
        self.used += 1;
    }

    /// The group where the search for a key begins: its low half, scaled to their number.
    fn home(&self, key: u64) -> usize {
        ((u64::from(key as u32) * self.groups.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.groups.len() { 0 } else { at + 1 }
    }

    fn find(&self, key: u64, now_tick: u64, out: &mut Vec<(Offset, i64)>) {
        if self.groups.is_empty() {
            return;
        }
        let mut at = self.home(key);
        loop {
            let group = &self.groups[at];
            let mut places = places_of(tag_of(key), &group.tags);
            while places != 0 {
                let entry = group.entries[first_of(places)];
                if entry.key == key {
                    let stored = now_tick - entry.age(now_tick).min(now_tick);
                    out.push((entry.offset(), stored.cast_signed() * TICK_US));
                }
                places &= places - 1;
            }
            if places_of(0, &group.tags) != 0 {
                return;
            }
            at = self.after(at);
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let places = self.groups.iter().flat_map(|group| group.tags.iter().zip(&group.entries));
        places.filter(|(tag, _)| **tag != 0).map(|(_, entry)| *entry)
    }

    /// A rebuild is simpler than deletion marks, and as cheap: the sweep visits every entry
    /// anyway.
    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        let kept = self.entries().filter(|e| keep(e)).count();
        if kept == self.used {
            return;
        }
        self.rebuild((kept * 8).div_ceil(5 * GROUP), keep);
    }

    fn rebuild(&mut self, groups: usize, keep: impl Fn(&Entry) -> bool) {
        let new = Self { groups: vec![Group::default(); groups], used: 0 };
        let old = std::mem::replace(self, new);
        old.entries().filter(|e| keep(e)).for_each(|entry| self.place(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_plain_map_under_inserts_and_sweeps() {
        let mut prng = Prng::new(3);
        let mut table = Dedup::default();
        let mut model: BTreeMap<(u64, u64), Vec<(u64, i64)>> = BTreeMap::new();
        let mut found = Vec::new();
        let mut wall_us = 1_700_000_000_000_000i64;
        for step in 0..60_000u64 {
            wall_us += 20_000;
            let (partition, id) = (prng.below(40), prng.below(3_000) << 1 | 2);
            if prng.chance(60) {
                table.insert(PartitionId(partition), id, Offset(step), wall_us);
                model.entry((partition, id)).or_default().push((step, wall_us));
            } else {
                table.find(PartitionId(partition), id, wall_us, &mut found);
                let newest = wall_us - 300_000_000;
                let wanted: Vec<u64> = model
                    .get(&(partition, id))
                    .map(|v| v.iter().filter(|(_, us)| *us >= newest).map(|(o, _)| *o).collect())
                    .unwrap_or_default();
                for offset in wanted {
                    assert!(
                        found.iter().any(|(o, _)| o.0 == offset),
                        "an id inside the window was lost"
                    );
                }
                for (offset, _) in &found {
                    let known = model.get(&(partition, id)).is_some_and(|v| {
                        v.iter().any(|(o, us)| {
                            *o == offset.0 && *us >= wall_us - (300 + 3 * 16 + 60) * 1_000_000
                        })
                    });
                    assert!(known, "an id that never was, or long after its window");
                }
            }
            if step % 8 == 0 {
                table.sweep(wall_us, 300);
            }
        }
        for _ in 0..PARTS {
            table.sweep(wall_us + 1_000_000_000, 300);
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_stored_id_is_found_with_its_time_at_any_date() {
        for wall_us in [0, 1_800_000_000_000_000, 4_102_444_800_000_000] {
            let mut table = Dedup::default();
            table.insert(PartitionId(7), 2, Offset(5), wall_us);
            let mut found = Vec::new();
            for later_us in [0, 3_600_000_000] {
                table.find(PartitionId(7), 2, wall_us + later_us, &mut found);
                assert_eq!(found.len(), 1);
                let (offset, stored_us) = found[0];
                assert_eq!(offset, Offset(5));
                assert!(stored_us <= wall_us && stored_us > wall_us - TICK_US);
            }
            // The clock went back behind the stamp: it counts as stored now.
            table.find(PartitionId(7), 2, wall_us - 60_000_000, &mut found);
            assert_eq!(found.len(), 1);
        }
    }
}

//! Dead letters of one shard, newest failure first, and the orders they are looked up in. A row
//! refers to the stored message, which then counts as live: its segment stays as long as the row
//! does.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::partition::Slot;
use super::records::DeadLetterRecord;
use crate::base::ids::{Offset, SegmentId};

/// One dead letter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub queue: u32,
    pub slot: Slot,
    pub group: String,
    pub record: DeadLetterRecord,
    /// Segment of the record that filed it.
    pub at: SegmentId,
}

/// Time of failure, then id: the order of the listing.
pub(super) type RowKey = (i64, [u8; 16]);

/// Rows by [`RowKey`], and which of them belong together. A deletion touches every order.
#[derive(Debug)]
pub(super) struct DeadLetters {
    rows: BTreeMap<RowKey, Row>,
    failed: HashMap<[u8; 16], i64, ahash::RandomState>,
    queues: BTreeSet<(u32, RowKey)>,
    offsets: BTreeSet<(Slot, Offset, RowKey)>,
    /// By fingerprint of the transaction id. It is keyed and has 63 bits: acks find messages by
    /// it as well.
    transactions: BTreeSet<(Slot, u64, RowKey)>,
    counts: HashMap<Slot, u32, ahash::RandomState>,
}

impl Default for DeadLetters {
    fn default() -> Self {
        let hasher = || ahash::RandomState::with_seeds(29, 30, 31, 32);
        Self {
            rows: BTreeMap::new(),
            failed: HashMap::with_hasher(hasher()),
            queues: BTreeSet::new(),
            offsets: BTreeSet::new(),
            transactions: BTreeSet::new(),
            counts: HashMap::with_hasher(hasher()),
        }
    }
}

const FIRST: RowKey = (i64::MIN, [0; 16]);
const LAST: RowKey = (i64::MAX, [255; 16]);

impl DeadLetters {
    pub(super) fn insert(&mut self, row: Row) {
        let key = (row.record.failed_at_us, row.record.id);
        self.failed.insert(row.record.id, key.0);
        self.queues.insert((row.queue, key));
        self.offsets.insert((row.slot, row.record.offset, key));
        self.transactions.insert((row.slot, row.record.transaction, key));
        *self.counts.entry(row.slot).or_default() += 1;
        self.rows.insert(key, row);
    }

    pub(super) fn remove(&mut self, id: &[u8; 16]) -> Option<Row> {
        let key = (self.failed.remove(id)?, *id);
        let row = self.rows.remove(&key)?;
        self.queues.remove(&(row.queue, key));
        self.offsets.remove(&(row.slot, row.record.offset, key));
        self.transactions.remove(&(row.slot, row.record.transaction, key));
        if let Some(count) = self.counts.get_mut(&row.slot) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&row.slot);
            }
        }
        Some(row)
    }

    pub(super) fn remove_queue(&mut self, queue: u32) -> Vec<Row> {
        let ids: Vec<[u8; 16]> =
            self.queues.range((queue, FIRST)..=(queue, LAST)).map(|(_, key)| key.1).collect();
        ids.iter().filter_map(|id| self.remove(id)).collect()
    }

    pub(super) fn by_id(&self, id: &[u8; 16]) -> Option<&Row> {
        self.rows.get(&(*self.failed.get(id)?, *id))
    }

    /// Rows of one message's address, all groups', newest first.
    pub(super) fn by_transaction(
        &self,
        slot: Slot,
        fingerprint: u64,
    ) -> impl Iterator<Item = &Row> {
        let range = (slot, fingerprint, FIRST)..=(slot, fingerprint, LAST);
        self.transactions.range(range).rev().filter_map(|(_, _, key)| self.rows.get(key))
    }

    /// Rows of one message, newest first.
    pub(super) fn by_offset(&self, slot: Slot, offset: Offset) -> impl Iterator<Item = &Row> {
        let range = (slot, offset, FIRST)..=(slot, offset, LAST);
        self.offsets.range(range).rev().filter_map(|(_, _, key)| self.rows.get(key))
    }

    /// Offsets of a partition with a row, below `end`, descending. One that several groups filed
    /// comes once for each.
    pub(super) fn offsets_below(&self, slot: Slot, end: Offset) -> impl Iterator<Item = Offset> {
        self.offsets.range((slot, Offset(0), FIRST)..(slot, end, FIRST)).rev().map(|o| o.1)
    }

    pub(super) fn count_of(&self, slot: Slot) -> u64 {
        self.counts.get(&slot).copied().unwrap_or(0).into()
    }

    /// Rows older than `before`, newest first: all, or those of one queue.
    pub(super) fn older_than(
        &self,
        queue: Option<u32>,
        before: RowKey,
    ) -> Box<dyn Iterator<Item = &Row> + '_> {
        match queue {
            None => Box::new(self.rows.range(..before).rev().map(|(_, row)| row)),
            Some(queue) => Box::new(
                self.queues
                    .range((queue, FIRST)..(queue, before))
                    .rev()
                    .filter_map(|(_, key)| self.rows.get(key)),
            ),
        }
    }
}

/// The first `bytes` of an error text, up to a whole character.
pub(super) fn head_of(error: &str, bytes: usize) -> &str {
    let mut end = error.len().min(bytes);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::LogPosition;

    fn row(id: u8, queue: u32, slot: Slot, offset: u64, failed_at_us: i64) -> Row {
        let record = DeadLetterRecord {
            id: [id; 16],
            offset: Offset(offset),
            created_at_us: 0,
            failed_at_us,
            retry_count: 0,
            batch_at: LogPosition::ZERO,
            batch_bytes: 0,
            transaction: offset * 2,
            error: String::new(),
        };
        Row { queue, slot, group: "g".into(), record, at: SegmentId(0) }
    }

    fn ids<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<u8> {
        rows.map(|row| row.record.id[0]).collect()
    }

    #[test]
    fn every_order_finds_a_row_until_it_is_removed() {
        let mut letters = DeadLetters::default();
        let rows =
            [row(1, 0, 5, 7, 10), row(2, 0, 5, 7, 30), row(3, 1, 6, 0, 20), row(4, 0, 5, 9, 40)];
        rows.into_iter().for_each(|row| letters.insert(row));
        assert_eq!(ids(letters.older_than(None, LAST)), [4, 2, 3, 1]);
        assert_eq!(ids(letters.older_than(Some(0), (40, [4; 16]))), [2, 1]);
        assert_eq!(ids(letters.by_transaction(5, 14)), [2, 1]);
        assert_eq!(ids(letters.by_offset(5, Offset(9))), [4]);
        let below: Vec<u64> = letters.offsets_below(5, Offset(9)).map(|o| o.0).collect();
        assert_eq!(below, [7, 7]);
        assert_eq!((letters.count_of(5), letters.count_of(6), letters.count_of(7)), (3, 1, 0));
        assert!(letters.remove(&[2; 16]).is_some() && letters.remove(&[2; 16]).is_none());
        assert_eq!((letters.by_id(&[2; 16]), letters.count_of(5)), (None, 2));
        assert_eq!(letters.by_id(&[1; 16]).map(|row| row.record.failed_at_us), Some(10));
        assert_eq!(ids(letters.by_transaction(5, 14)), [1]);
        assert_eq!(letters.remove_queue(0).len(), 2);
        assert_eq!(ids(letters.older_than(None, LAST)), [3]);
        assert!(letters.offsets.len() == 1 && letters.transactions.len() == 1);
        assert!(
            letters.queues.len() == 1 && letters.failed.len() == 1 && letters.counts.len() == 1
        );
    }
}

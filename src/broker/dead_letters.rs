//! Dead letters of one shard, newest failure first. A row refers to the stored message, which
//! then counts as live: its segment stays as long as the row does.

use std::collections::BTreeMap;

use super::partition::Slot;
use super::records::DeadLetterRecord;
use crate::base::ids::SegmentId;

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

/// Rows by time of failure, then id.
#[derive(Default, Debug)]
pub(super) struct DeadLetters {
    rows: BTreeMap<(i64, [u8; 16]), Row>,
}

impl DeadLetters {
    pub(super) fn insert(&mut self, row: Row) {
        self.rows.insert((row.record.failed_at_us, row.record.id), row);
    }

    pub(super) fn remove_queue(&mut self, queue: u32) -> Vec<Row> {
        let keys: Vec<(i64, [u8; 16])> =
            self.rows.iter().filter(|(_, row)| row.queue == queue).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.rows.remove(key)).collect()
    }

    /// Rows that failed before this one, newest first.
    pub(super) fn older_than(&self, key: (i64, [u8; 16])) -> impl Iterator<Item = &Row> {
        self.rows.range(..key).rev().map(|(_, row)| row)
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Row> {
        self.rows.values().rev()
    }
}

//! Where the readers of a partition stand, as the listings count it. One rule for all of them:
//! the slowest registered group counts, by its start rule where it has no cursor (a cursor that
//! was never written only says that somebody looked, so having one must not make a difference);
//! groups that only ever popped this partition by name count where no group is registered;
//! readers without a group where there is no other.

use super::dead_letters::DeadLetters;
use super::group::{Cursor, Group};
use super::partition::{Partition, Slot};
use super::queue::Queue;
use super::state::State;
use crate::base::ids::Offset;
use crate::base::time::Now;
use crate::model::inspect::MessageStatus;
use crate::model::peer::{GroupStart, QueuePart};
use crate::model::reply::{Counts, PartitionRow};

/// One partition of one queue.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub queue: &'a Queue,
    pub slot: Slot,
    pub partition: &'a Partition,
}

impl<'a> Place<'a> {
    fn cursor(&self, group: &'a Group) -> Option<&'a Cursor> {
        group.cursors.get(&self.slot)
    }

    fn named(&self) -> impl Iterator<Item = &'a Group> {
        self.queue.groups.iter().skip(1).flatten()
    }

    /// First offset that a group has not settled, as far as messages are kept.
    fn from(&self, next: Option<Offset>) -> Offset {
        next.unwrap_or(self.partition.log_start).max(self.partition.log_start)
    }

    /// First offset that a group has not settled. `None`: it has nothing to do with the
    /// partition.
    pub(super) fn next_of(&self, group: &Group) -> Option<Offset> {
        match group.cursors.get(&self.slot) {
            Some(cursor) => Some(cursor.next),
            None if group.start.is_none() => None,
            // What comes later will be for it; of what is there it owes nothing.
            None => Some(group.first_contact(self.partition).unwrap_or(self.partition.next_offset)),
        }
    }

    /// First offset that the slowest reader has not settled.
    pub(super) fn slowest(&self) -> Offset {
        let next = |group: &'a Group| self.cursor(group).map(|c| c.next);
        let registered =
            self.named().filter(|g| g.start.is_some()).map(|g| self.from(self.next_of(g))).min();
        let pinned = || self.named().filter_map(next).min();
        registered.unwrap_or_else(|| self.from(pinned().or_else(|| self.groupless())))
    }

    /// First offset that the readers without a group have not settled. `None`: neither a claim
    /// nor a seek has put them anywhere.
    fn groupless(&self) -> Option<Offset> {
        let group = self.queue.group(0)?;
        match group.start {
            Some(GroupStart::Seek(_)) => self.next_of(group),
            _ => self.cursor(group).map(|cursor| cursor.next),
        }
    }

    /// First offset that one group has not settled; a group that nobody knows owes everything.
    pub(super) fn position(&self, group: &str) -> Offset {
        let slot = self.queue.group_slot(group).and_then(|slot| self.queue.group(slot));
        self.from(slot.and_then(|g| self.next_of(g)))
    }

    /// Messages that come at or after `next`, stored or about to be.
    pub(super) fn behind(&self, next: Offset) -> u64 {
        self.partition.next_offset.0.saturating_sub(self.from(Some(next)).0)
    }

    /// When the oldest message at or after `next` was created.
    pub(super) fn oldest_us(&self, next: Offset) -> Option<i64> {
        self.partition.batch_of(self.from(Some(next))).map(|batch| batch.created_at_us)
    }

    /// Messages under live leases: of one group, or the most that any has.
    pub(super) fn processing(&self, now: Now, group: Option<&str>) -> u64 {
        let leased =
            |cursor: &Cursor| if cursor.is_leased(now) { cursor.leased_count() } else { 0 };
        let groups = self.queue.groups.iter().flatten();
        groups
            .filter(|g| group.is_none_or(|name| *g.name == *name))
            .filter_map(|g| self.cursor(g))
            .map(leased)
            .max()
            .unwrap_or(0)
    }

    pub(super) fn is_leased(&self, now: Now) -> bool {
        let cursors = self.queue.groups.iter().flatten().filter_map(|g| self.cursor(g));
        cursors.into_iter().any(|cursor| cursor.is_leased(now))
    }

    /// Wall time at which the last lease over `offset` ends.
    pub(super) fn leased_until(&self, now: Now, offset: Offset) -> Option<i64> {
        let cursors = self.queue.groups.iter().flatten().filter_map(|g| self.cursor(g));
        cursors.filter_map(|cursor| lease_over(cursor, now, offset)).max()
    }

    /// How many named groups read the partition, and how many have settled `offset`.
    pub(super) fn consumed_by(&self, offset: Offset) -> (u64, u64) {
        let readers = self.named().filter(|g| g.start.is_some() || self.cursor(g).is_some());
        readers.fold((0, 0), |(groups, consumed), group| {
            let past = self.next_of(group).is_some_and(|next| next > offset);
            (groups + 1, consumed + u64::from(past))
        })
    }

    pub(super) fn status(&self, now: Now, offset: Offset, letters: &DeadLetters) -> MessageStatus {
        if letters.by_offset(self.slot, offset).next().is_some() {
            MessageStatus::DeadLetter
        } else if offset < self.slowest() {
            MessageStatus::Completed
        } else if self.is_leased(now) {
            MessageStatus::Processing
        } else {
            MessageStatus::Pending
        }
    }

    /// As the readers without a group see it.
    pub(super) fn queue_status(&self, now: Now, offset: Offset) -> MessageStatus {
        if self.groupless().is_some_and(|next| next > offset) {
            return MessageStatus::Completed;
        }
        match self.queue.group(0).and_then(|g| self.cursor(g)) {
            Some(cursor) if cursor.is_leased(now) => MessageStatus::Processing,
            _ => MessageStatus::Pending,
        }
    }
}

impl State {
    /// This shard's part of a queue in a listing.
    pub(super) fn queue_part(&self, queue: &Queue) -> QueuePart {
        QueuePart {
            name: queue.image.name.clone(),
            partitions: queue.partitions.len() as u64,
            segments: self.segments.len() as u64,
            counts: Counts {
                total: queue.messages,
                unconsumed: queue.unconsumed(),
                processing: queue.leased(),
                dead_lettered: queue.dead_letters,
                retained_bytes: queue.bytes,
            },
        }
    }

    pub(super) fn partition_row(&self, place: Place<'_>) -> PartitionRow {
        let partition = place.partition;
        let cursors = || place.queue.groups.iter().flatten().filter_map(|g| place.cursor(g));
        PartitionRow {
            id: self.id_of(place.slot),
            name: partition.name.to_string(),
            created_at_us: partition.created_at_us,
            counts: Counts {
                total: partition.retained(),
                unconsumed: place.behind(place.slowest()),
                processing: cursors().map(Cursor::leased_count).max().unwrap_or(0),
                dead_lettered: self.dead_letters.count_of(place.slot),
                retained_bytes: partition.retained_bytes(),
            },
            consumed: cursors().map(|c| c.next.0).max().unwrap_or(0),
            oldest_us: partition.batches.first().map(|b| b.created_at_us),
            newest_us: partition.batches.last().map(|b| b.created_at_us),
        }
    }
}

/// Wall time at which a cursor's live lease over `offset` ends.
pub(super) fn lease_over(cursor: &Cursor, now: Now, offset: Offset) -> Option<i64> {
    let lease = cursor.lease.as_ref().filter(|lease| !lease.reserved)?;
    let covers = cursor.is_leased(now) && offset >= cursor.next && offset <= lease.record.end;
    covers.then(|| now.wall_at(lease.expires))
}

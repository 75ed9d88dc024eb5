//! Consumer groups of a queue on one shard: cursors, leases, and the list of partitions that
//! can be claimed.
//!
//! A group registers in O(1): partitions it never touched have no cursor. They stand behind
//! `scan`, a mark in the queue's list of partitions, and are looked at when a claim or an
//! announcement needs more than the ready list holds. Only what is claimed (or held back by a
//! delay) gets a cursor.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::deadlines::DeadlineKey;
use super::partition::{Partition, Slot};
use super::records::{CursorRecord, DeadLetterRecord, LeaseRecord, ReleasedRecord};
use crate::base::ids::{Offset, SegmentId};
use crate::base::time::{Deadline, Now};
use crate::model::options::QueueOptions;
use crate::model::peer::GroupStart;

/// Names one cursor of a shard. Queue and group slots are not reused in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CursorKey {
    pub queue: u32,
    pub group: u32,
    pub slot: Slot,
}

/// A claim on a partition's next messages, live or lapsed, until it is released or replaced.
#[derive(Clone, Debug)]
pub struct Lease {
    pub record: LeaseRecord,
    pub expires: Deadline,
    pub timer: Option<DeadlineKey>,
    /// A commit-at-delivery claim whose data is still being read: never logged, never acked.
    pub reserved: bool,
    /// Attempt marker before this claim, for giving it back.
    pub attempt_before: (Offset, u32),
    /// Id table fingerprints of `first..=end`; empty after a restart, then read from the log.
    pub ids: Rc<[u64]>,
}

/// Where a group stands in one partition.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// First offset not settled.
    pub next: Offset,
    pub attempt_offset: Offset,
    pub attempt_count: u32,
    pub retry_count: u32,
    pub lease: Option<Box<Lease>>,
    pub released: Option<Box<ReleasedRecord>>,
    /// Segment of its newest record; `None`: never written.
    pub segment: Option<SegmentId>,
    /// Stands in the ready list.
    pub queued: bool,
    /// Timer of a delay or window.
    pub hold: Option<DeadlineKey>,
}

impl Cursor {
    pub fn at(next: Offset) -> Self {
        Self {
            next,
            attempt_offset: Offset(0),
            attempt_count: 0,
            retry_count: 0,
            lease: None,
            released: None,
            segment: None,
            queued: false,
            hold: None,
        }
    }

    pub fn is_leased(&self, now: Now) -> bool {
        self.lease.as_ref().is_some_and(|l| !l.expires.passed(now))
    }

    /// Messages under a lease, live or not.
    pub fn leased_count(&self) -> u64 {
        self.lease.as_ref().map_or(0, |l| (l.record.end.0 + 1).saturating_sub(self.next.0))
    }

    pub fn record(&self, group: &str, filed: Vec<DeadLetterRecord>) -> CursorRecord {
        CursorRecord {
            group: group.to_owned(),
            next: self.next,
            attempt_offset: self.attempt_offset,
            attempt_count: self.attempt_count,
            retry_count: self.retry_count,
            lease: self.lease.as_ref().filter(|l| !l.reserved).map(|l| l.record),
            released: self.released.as_deref().copied(),
            filed,
        }
    }
}

/// Whether a partition can be claimed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimable {
    /// Messages from here up to, not including, there.
    Yes {
        from: Offset,
        to: Offset,
    },
    /// A delay or a window holds it until this wall time in microseconds.
    HeldUntil(i64),
    No,
}

/// A window that never closes under constant writes is capped at this many windows, and at
/// least a minute, after the oldest undelivered message.
const WINDOW_CAP: i64 = 10;
const WINDOW_CAP_US_MIN: i64 = 60_000_000;

/// What of `partition` a group that has settled everything below `next` may be given.
/// A stamp ahead of the clock (the host's clock went back) holds nothing.
pub fn claimable(
    partition: &Partition,
    next: Offset,
    options: &QueueOptions,
    now: Now,
) -> Claimable {
    let from = next.max(partition.log_start);
    let to = partition.high_watermark();
    if from >= to {
        return Claimable::No;
    }
    let seconds =
        |s: u64| i64::try_from(s).unwrap_or(i64::MAX / 1_000_000).saturating_mul(1_000_000);
    let (delay, window) =
        (seconds(options.delayed_processing_seconds), seconds(options.window_buffer_seconds));
    if delay == 0 && window == 0 {
        return Claimable::Yes { from, to };
    }
    let oldest = partition.batch_of(from).map_or(now.wall_us, |b| b.created_at_us);
    if window > 0 {
        let newest = partition.newest_visible().map_or(now.wall_us, |b| b.created_at_us);
        let cap = window.saturating_mul(WINDOW_CAP).max(WINDOW_CAP_US_MIN);
        let until = newest.saturating_add(window).min(oldest.saturating_add(cap));
        if newest <= now.wall_us && until > now.wall_us {
            return Claimable::HeldUntil(until);
        }
    }
    let ripe = |created: i64| created > now.wall_us || created.saturating_add(delay) <= now.wall_us;
    if !ripe(oldest) {
        return Claimable::HeldUntil(oldest.saturating_add(delay));
    }
    let batches = partition.batches_between(from, Offset(to.0 - 1));
    let ripe_count = batches.partition_point(|b| ripe(b.created_at_us));
    let to = batches[..ripe_count].last().map_or(to, |b| b.end().min(to));
    Claimable::Yes { from, to }
}

/// One group of one queue on one shard.
#[derive(Debug)]
pub struct Group {
    pub name: Box<str>,
    /// Start rule for partitions without a cursor. `None`: only pinned pops so far, so only
    /// partitions with a cursor are its business.
    pub start: Option<GroupStart>,
    pub registered_us: Option<i64>,
    /// Segment of the registration's newest record.
    pub segment: Option<SegmentId>,
    pub cursors: HashMap<Slot, Cursor, ahash::RandomState>,
    /// Claimable partitions and since when (monotonic microseconds), oldest first.
    pub ready: VecDeque<(Slot, u64)>,
    /// Partitions of the queue's list from here on were never looked at.
    pub scan: usize,
    /// Claims alternate between `ready` and `scan`, so that neither starves the other.
    pub scan_turn: bool,
    /// The queue's owner wants to hear of the next ready partition.
    pub armed: bool,
    /// Retained messages this group has settled, over all its cursors.
    pub settled: u64,
    /// Messages under leases.
    pub leased: u64,
}

impl Group {
    pub fn new(name: &str, start: Option<GroupStart>) -> Self {
        Self {
            name: name.into(),
            start,
            registered_us: None,
            segment: None,
            cursors: HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4)),
            ready: VecDeque::new(),
            scan: 0,
            scan_turn: false,
            armed: false,
            settled: 0,
            leased: 0,
        }
    }

    /// Where the group starts in a partition it has no cursor on. `None`: nothing there is for
    /// it yet, and what comes will be judged when it comes.
    pub fn first_contact(&self, partition: &Partition) -> Option<Offset> {
        match self.start? {
            GroupStart::Oldest => Some(partition.log_start),
            GroupStart::From(us) => {
                let first = partition.first_created_from(us);
                (first < partition.next_offset).then_some(first)
            }
        }
    }

    /// The group's position in a partition, with or without a cursor.
    pub fn position(&self, slot: Slot, partition: &Partition) -> Option<Offset> {
        match self.cursors.get(&slot) {
            Some(cursor) => Some(cursor.next),
            None => self.first_contact(partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::LogPosition;
    use crate::broker::partition::{BatchRef, Partitions};

    fn partition_with(stamps: &[i64]) -> Partitions {
        let mut table = Partitions::default();
        table.insert(0, 0, 0, "p", 0);
        let p = table.get_mut(0).unwrap();
        for (i, created_at_us) in stamps.iter().enumerate() {
            p.batches.push(BatchRef {
                at: LogPosition::ZERO,
                base: Offset(i as u64),
                created_at_us: *created_at_us,
                bytes: 1,
                count: 1,
            });
        }
        p.next_offset = Offset(stamps.len() as u64);
        p.raise_high_watermark(p.next_offset);
        table
    }

    fn at(wall_us: i64) -> Now {
        Now { mono_us: 0, wall_us }
    }

    const S: i64 = 1_000_000;

    #[test]
    fn a_delay_holds_each_batch_on_its_own() {
        let table = partition_with(&[10 * S, 12 * S]);
        let p = table.get(0).unwrap();
        let options = QueueOptions { delayed_processing_seconds: 5, ..Default::default() };
        let judge = |us| claimable(p, Offset(0), &options, at(us));
        assert_eq!(judge(15 * S - 1), Claimable::HeldUntil(15 * S));
        assert_eq!(judge(15 * S), Claimable::Yes { from: Offset(0), to: Offset(1) });
        assert_eq!(judge(17 * S), Claimable::Yes { from: Offset(0), to: Offset(2) });
        assert_eq!(claimable(p, Offset(2), &options, at(99 * S)), Claimable::No);
        // The clock went back behind both stamps: nothing is held for it.
        assert_eq!(judge(5 * S), Claimable::Yes { from: Offset(0), to: Offset(2) });
    }

    #[test]
    fn a_window_waits_for_quiet_but_not_for_ever() {
        let options = QueueOptions { window_buffer_seconds: 2, ..Default::default() };
        let table = partition_with(&[10 * S, 11 * S]);
        let p = table.get(0).unwrap();
        assert_eq!(claimable(p, Offset(0), &options, at(12 * S)), Claimable::HeldUntil(13 * S));
        let all = Claimable::Yes { from: Offset(0), to: Offset(2) };
        assert_eq!(claimable(p, Offset(0), &options, at(13 * S)), all);
        let busy = partition_with(&[10 * S, 69 * S + S / 2]);
        let p = busy.get(0).unwrap();
        assert_eq!(
            claimable(p, Offset(0), &options, at(69 * S + S / 2)),
            Claimable::HeldUntil(70 * S)
        );
        assert_eq!(claimable(p, Offset(0), &options, at(70 * S)), all);
    }

    #[test]
    fn first_contact_follows_the_start_rule() {
        let table = partition_with(&[10, 20]);
        let p = table.get(0).unwrap();
        let start = |s| Group::new("g", s).first_contact(p);
        assert_eq!(start(Some(GroupStart::Oldest)), Some(Offset(0)));
        assert_eq!(start(Some(GroupStart::From(11))), Some(Offset(1)));
        assert_eq!(start(Some(GroupStart::From(21))), None);
        assert_eq!(start(None), None);
    }

    #[test]
    fn a_cursor_stays_small() {
        assert!(size_of::<Cursor>() <= 80, "{}", size_of::<Cursor>());
    }
}

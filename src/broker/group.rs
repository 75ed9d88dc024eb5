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
use super::nearby::Heard;
use super::partition::{Partition, Slot};
use super::records::{CursorRecord, DeadLetterRecord, LeaseRecord, ReleasedRecord};
use crate::base::ids::{LogPosition, Offset, SegmentId};
use crate::base::spare::Reuse;
use crate::base::time::{Deadline, Now};
use crate::model::options::QueueOptions;
use crate::model::peer::{GroupStart, Name, Registration};

/// Names one cursor of a shard. Queue and group slots are not reused in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CursorKey {
    pub queue: u32,
    pub group: u32,
    pub slot: Slot,
}

/// A claim on a partition's next messages, live or lapsed, until it is released or replaced.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    pub record: LeaseRecord,
    pub expires: Deadline,
    pub timer: Option<DeadlineKey>,
    /// A commit-at-delivery claim whose data is still being read: never logged, never acked.
    pub reserved: bool,
    /// Attempt marker before this claim, for giving it back.
    pub attempt_before: (Offset, u32),
    /// Id table fingerprints of `first..=end`; empty after a restart, then read from the log.
    pub ids: Vec<u64>,
}

impl Reuse for Lease {
    fn empty(&mut self) -> usize {
        self.ids.empty()
    }
}

/// Where a group stands in one partition.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// First offset not settled.
    pub next: Offset,
    pub attempt_offset: Offset,
    pub attempt_count: u32,
    pub retry_count: u32,
    /// Retries before the last commit at delivery, for taking it back.
    pub retry_before: u32,
    /// Shared, as a cursor is copied for each step that may change it.
    pub lease: Option<Rc<Lease>>,
    pub released: Option<Rc<ReleasedRecord>>,
    /// Segment of its newest record; `None`: never written.
    pub segment: Option<SegmentId>,
    /// Ready, and has an entry in the ready list.
    pub queued: bool,
    /// Has an entry in the ready list, perhaps one that no longer counts.
    pub listed: bool,
    /// How often it was sought by itself.
    pub seeks: u8,
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
            retry_before: 0,
            lease: None,
            released: None,
            segment: None,
            queued: false,
            listed: false,
            seeks: 0,
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

    /// Something was said of it in the log: not only looked at.
    pub fn is_written(&self) -> bool {
        self.segment.is_some() || self.lease.is_some()
    }

    pub fn record(&self, group: &Group, filed: Vec<DeadLetterRecord>) -> CursorRecord {
        CursorRecord {
            group: group.name.clone(),
            epoch: group.cursors_epoch,
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

/// Stamps of one partition grow even where the clock stands still, so they run ahead of it by
/// microseconds. Only beyond this does a stamp mean that the host's clock went back.
const AHEAD_US: i64 = 1_000_000;

/// What of `partition` a group that has settled everything below `next` may be given.
/// A stamp far ahead of the clock (the host's clock went back) holds nothing.
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
    let ahead = |created: i64| created > now.wall_us.saturating_add(AHEAD_US);
    let oldest = partition.batch_of(from).map_or(now.wall_us, |b| b.created_at_us);
    if window > 0 {
        let newest = partition.newest_visible().map_or(now.wall_us, |b| b.created_at_us);
        let cap = window.saturating_mul(WINDOW_CAP).max(WINDOW_CAP_US_MIN);
        let until = newest.saturating_add(window).min(oldest.saturating_add(cap));
        if !ahead(newest) && until > now.wall_us {
            return Claimable::HeldUntil(until);
        }
    }
    let ripe =
        |created: i64| delay == 0 || ahead(created) || created.saturating_add(delay) <= now.wall_us;
    if !ripe(oldest) {
        return Claimable::HeldUntil(oldest.saturating_add(delay));
    }
    let batches = partition.batches_between(from, Offset(to.0 - 1));
    let ripe_count = batches.partition_point(|b| ripe(b.created_at_us));
    let to = batches[..ripe_count].last().map_or(to, |b| b.end().min(to));
    Claimable::Yes { from, to }
}

/// Which end of the ready list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Back,
    Front,
}

pub type Cursors = HashMap<Slot, Cursor, ahash::RandomState>;

pub fn no_cursors() -> Cursors {
    HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4))
}

/// One group of one queue on one shard.
#[derive(Debug)]
pub struct Group {
    pub name: Name,
    /// Start rule for partitions without a cursor. `None`: only pinned pops so far, so only
    /// partitions with a cursor are its business.
    pub start: Option<GroupStart>,
    pub registration: Option<Registration>,
    /// Which change of the group made it what it is, and which began its cursors anew.
    pub epoch: u64,
    pub reset_epoch: u64,
    /// The newest change of the queue's groups when its cursors began here.
    pub cursors_epoch: u64,
    /// Where this shard's log stood when a seek came: what was stored from here on is for the
    /// group, whatever the seek's time.
    pub cut: LogPosition,
    /// Segment of its newest record.
    pub segment: Option<SegmentId>,
    pub cursors: Cursors,
    /// Claimable partitions and since when (monotonic microseconds), oldest first.
    /// Entries whose cursor is not `queued` any more do not count.
    pub ready: VecDeque<(Slot, u64)>,
    /// Entries that count.
    pub ready_count: usize,
    /// Partitions of the queue's list from here on were never looked at.
    pub scan: usize,
    /// Claims alternate between `ready` and `scan`, so that neither starves the other.
    pub scan_turn: bool,
    /// The queue's owner wants to hear of the next ready partition.
    pub armed: bool,
    /// The owner was told of one, and nobody it sent has come yet.
    pub promised: bool,
    /// What other shards have said of their ready partitions, by shard; none if nothing yet.
    pub(super) heard: Vec<Heard>,
    /// Retained messages this group has settled, over all its cursors.
    pub settled: u64,
    /// Retained messages that its start rule passes over, in partitions it has no cursor on:
    /// those of the queue's first `counted`. The others are being looked through.
    pub passed_over: u64,
    pub counted: usize,
    /// Cursors of the queue's first partitions, up to here and from `scan` on, that were never
    /// written: a start rule that has changed since put them where they are.
    pub outdated: usize,
    /// Messages under leases.
    pub leased: u64,
    /// Pops under way that came to this shard.
    pub pops: u32,
    /// Messages acked per second of a lease, lately; 0: not known.
    pub ack_rate: u32,
}

impl Group {
    pub fn new(name: &str, start: Option<GroupStart>) -> Self {
        Self {
            name: name.into(),
            start,
            registration: None,
            epoch: 0,
            reset_epoch: 0,
            cursors_epoch: 0,
            cut: LogPosition::ZERO,
            segment: None,
            cursors: no_cursors(),
            ready: VecDeque::new(),
            ready_count: 0,
            scan: 0,
            scan_turn: false,
            armed: false,
            promised: false,
            heard: Vec::new(),
            settled: 0,
            passed_over: 0,
            counted: 0,
            outdated: 0,
            leased: 0,
            pops: 0,
            ack_rate: 0,
        }
    }

    pub fn conflates(&self) -> bool {
        self.registration.is_some_and(|r| r.conflation)
    }

    /// A lease ended `passed_us` after it was granted, and so many messages were acked under it.
    pub fn note_acked(&mut self, messages: u64, passed_us: i64) {
        let passed_us = u64::try_from(passed_us).unwrap_or(0).max(1_000);
        let rate = messages.saturating_mul(1_000_000) / passed_us;
        let rate = u32::try_from(rate).unwrap_or(u32::MAX);
        // A quarter of each new value: a slow batch among fast ones does not show at once.
        self.ack_rate = match self.ack_rate {
            0 => rate,
            old => (old / 4).saturating_mul(3).saturating_add(rate / 4),
        };
    }

    /// Tells claims on a partition from those before its cursor was last put elsewhere.
    pub fn claim_epoch(&self, cursor: &Cursor) -> u64 {
        // Epochs are times in microseconds, and small beside the upper bits.
        self.cursors_epoch ^ u64::from(cursor.seeks) << 56
    }

    /// Partitions it has a cursor on. A seek gave it one on each.
    pub fn cursor_count(&self, partitions: usize) -> u64 {
        let sought = matches!(self.start, Some(GroupStart::Seek(_)));
        (if sought { partitions } else { self.cursors.len() }) as u64
    }

    /// Makes a partition ready. It has a cursor that is not queued.
    pub fn push_ready(&mut self, slot: Slot, since_us: u64, end: End) {
        let Some(cursor) = self.cursors.get_mut(&slot) else { return };
        assert!(!cursor.queued, "a ready partition is not made ready again");
        cursor.queued = true;
        self.ready_count += 1;
        let listed = std::mem::replace(&mut cursor.listed, true);
        match end {
            // An entry left from before counts again: one is enough.
            End::Back if listed => {}
            End::Back => self.ready.push_back((slot, since_us)),
            End::Front => self.ready.push_front((slot, since_us)),
        }
    }

    /// Takes the oldest ready partition.
    pub fn pop_ready(&mut self) -> Option<Slot> {
        self.oldest_ready()?;
        let (slot, _) = self.ready.pop_front()?;
        let cursor = self.cursors.get_mut(&slot)?;
        (cursor.queued, cursor.listed) = (false, false);
        self.ready_count -= 1;
        Some(slot)
    }

    /// Since when the oldest ready partition is ready. Drops entries that no longer count.
    pub fn oldest_ready(&mut self) -> Option<u64> {
        loop {
            let (slot, since_us) = *self.ready.front()?;
            match self.cursors.get_mut(&slot) {
                Some(cursor) if cursor.queued => return Some(since_us),
                Some(cursor) => cursor.listed = false,
                None => {}
            }
            self.ready.pop_front();
        }
    }

    /// A partition was claimed past the ready list. Its entry stays until it reaches the front:
    /// taking it out of the middle would cost a walk.
    pub fn unlist(&mut self, slot: Slot) {
        let Some(cursor) = self.cursors.get_mut(&slot) else { return };
        if std::mem::take(&mut cursor.queued) {
            self.ready_count -= 1;
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
            GroupStart::Seek(us) => {
                let first = partition.first_created_from_or_stored_at(us, self.cut);
                (first < partition.next_offset).then_some(first)
            }
        }
    }

    /// Everything below is settled for the group, with or without a cursor.
    pub fn settled_to(&self, slot: Slot, partition: &Partition) -> Offset {
        match (self.cursors.get(&slot), self.start) {
            (Some(cursor), _) => cursor.next.max(partition.log_start),
            (None, Some(GroupStart::From(_) | GroupStart::Seek(_))) => {
                self.first_contact(partition).unwrap_or(partition.next_offset)
            }
            (None, Some(GroupStart::Oldest) | None) => partition.log_start,
        }
    }

    /// Retained messages of a partition that the start rule alone passes over.
    pub fn passes_over(&self, partition: &Partition) -> u64 {
        match self.start {
            Some(GroupStart::From(_) | GroupStart::Seek(_)) => {
                let first = self.first_contact(partition).unwrap_or(partition.next_offset);
                first.0 - partition.log_start.0
            }
            Some(GroupStart::Oldest) | None => 0,
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
    fn ready_partitions_leave_in_order_and_unlisted_ones_do_not_count() {
        let mut g = Group::new("g", None);
        for slot in 0..4 {
            g.cursors.insert(slot, Cursor::at(Offset(0)));
            g.push_ready(slot, u64::from(slot), End::Back);
        }
        g.unlist(0);
        g.unlist(2);
        assert_eq!((g.ready_count, g.oldest_ready()), (2, Some(1)));
        g.push_ready(2, 9, End::Back);
        assert_eq!(g.ready.len(), 3, "its old entry counts again");
        g.push_ready(0, 9, End::Front);
        let order: Vec<_> = std::iter::from_fn(|| g.pop_ready()).collect();
        assert_eq!((order, g.ready_count), (vec![0, 1, 2, 3], 0));
        assert!(g.cursors.values().all(|c| !c.queued && !c.listed));
    }

    #[test]
    fn a_cursor_stays_small() {
        assert!(size_of::<Cursor>() <= 80, "{}", size_of::<Cursor>());
    }
}

//! Which partitions a group can claim: entering and leaving the ready list, holds, announcements.
//!
//! A partition enters the list at the back when it becomes claimable: an append while idle, a
//! lease released or expired, a hold over, or more left after a commit at delivery. A claim given
//! back enters at the front. A partition's pinned waiters are served before it enters.

use std::rc::Rc;

use super::effect::Effects;
use super::group::{Claimable, Cursor, CursorKey, End, claimable};
use super::partition::Slot;
use super::shard::{Event, Shard};
use crate::base::buf::IoBuf;
use crate::base::ids::Offset;
use crate::base::limits;
use crate::base::time::{Deadline, Now};
use crate::model::peer::PeerMsg;

impl<B: IoBuf> Shard<B> {
    /// Messages of a partition below `to` are durable.
    pub(super) fn visible(&mut self, now: Now, slot: Slot, to: Offset, fx: &mut Effects<B>) {
        let Some(partition) = self.state.parts.get_mut(slot) else { return };
        partition.raise_high_watermark(to);
        let queue = partition.queue;
        let Some(groups) = self.state.catalog.get(queue).map(|q| q.groups.len()) else { return };
        self.serve_pinned_of(now, slot, fx);
        for group in 0..groups as u32 {
            self.make_ready(now, CursorKey { queue, group, slot }, End::Back, fx);
        }
    }

    fn serve_pinned_of(&mut self, now: Now, slot: Slot, fx: &mut Effects<B>) {
        if self.pinned.is_empty() {
            return;
        }
        let Some(partition) = self.state.parts.get(slot) else { return };
        let Some(queue) = self.state.queue_of(partition) else { return };
        let (queue, partition) = (queue.name.clone(), partition.name.to_string());
        self.serve_pinned(now, &queue, &partition, fx);
    }

    /// Puts a partition into a group's ready list if the group can claim it now, or sets the
    /// timer of what holds it back.
    pub(super) fn make_ready(&mut self, now: Now, key: CursorKey, end: End, fx: &mut Effects<B>) {
        self.serve_pinned_of(now, key.slot, fx);
        if !self.list_if_claimable(now, key, end) {
            return;
        }
        self.announce(now, key.queue, key.group, fx);
    }

    /// Returns whether there is something new to announce.
    fn list_if_claimable(&mut self, now: Now, key: CursorKey, end: End) -> bool {
        let Some(queue) = self.state.catalog.get(key.queue) else { return false };
        let Some(group) = queue.group(key.group) else { return false };
        let Some(partition) = self.state.parts.get(key.slot) else { return false };
        let cursor = group.cursors.get(&key.slot);
        if cursor.is_none() && group.start.is_some() && partition.place as usize >= group.scan {
            // Not looked at yet: it is found by the scan, and that is news too.
            return true;
        }
        if cursor.is_some_and(|c| c.queued || c.is_leased(now)) || self.is_reserved(key) {
            return false;
        }
        let Some(next) = group.position(key.slot, partition) else { return false };
        match claimable(partition, next, &queue.image.options, now) {
            Claimable::No => false,
            Claimable::HeldUntil(until_us) => {
                self.hold(now, key, next, until_us);
                false
            }
            Claimable::Yes { .. } => {
                self.list(now, key, next, end);
                true
            }
        }
    }

    fn list(&mut self, now: Now, key: CursorKey, next: Offset, end: End) {
        self.ensure_cursor(key, next);
        if let Some(group) = self.state.group_mut(key) {
            group.push_ready(key.slot, now.mono_us, end);
        }
    }

    /// A first look at a partition leaves a cursor, which is written once something is claimed.
    fn ensure_cursor(&mut self, key: CursorKey, next: Offset) {
        if self.state.cursor(key).is_none() {
            self.state.put_cursor(key, Cursor::at(next));
        }
    }

    fn hold(&mut self, now: Now, key: CursorKey, next: Offset, until_us: i64) {
        self.ensure_cursor(key, next);
        let ahead = u64::try_from(until_us.saturating_sub(now.wall_us)).unwrap_or(0);
        let timer = self.state.deadlines.insert(now.after_us(ahead), Event::HoldEnds(key));
        let old = self.state.cursor_mut(key).and_then(|c| c.hold.replace(timer));
        old.into_iter().for_each(|old| {
            self.state.deadlines.remove(old);
        });
    }

    pub(super) fn hold_ended(&mut self, now: Now, key: CursorKey, fx: &mut Effects<B>) {
        // The timer of a cursor that was put elsewhere since may still come.
        let passed = |c: &&mut Cursor| c.hold.is_some_and(|hold| hold.passed(now));
        if let Some(cursor) = self.state.cursor_mut(key).filter(passed) {
            cursor.hold = None;
            self.make_ready(now, key, End::Back, fx);
        }
    }

    pub(super) fn lease_expired(&mut self, now: Now, key: CursorKey, fx: &mut Effects<B>) {
        let Some(lease) = self.state.cursor_mut(key).and_then(|c| c.lease.as_mut()) else { return };
        if !lease.expires.passed(now) {
            return;
        }
        // The lapsed lease stays until it is replaced: an ack without a lease may settle it.
        Rc::make_mut(lease).timer = None;
        self.make_ready(now, key, End::Back, fx);
    }

    /// Options of a queue changed: what was held may be free, and the other way round.
    pub(super) fn recheck_queue(&mut self, now: Now, queue: u32, fx: &mut Effects<B>) {
        let Some(q) = self.state.catalog.get(queue) else { return };
        let mut held: Vec<CursorKey> = Vec::new();
        for (group, state) in q.groups.iter().enumerate() {
            let cursors = state.iter().flat_map(|g| g.cursors.iter());
            held.extend(cursors.filter(|(_, c)| c.hold.is_some()).map(|(slot, _)| CursorKey {
                queue,
                group: group as u32,
                slot: *slot,
            }));
        }
        held.sort_unstable();
        for key in held {
            self.make_ready(now, key, End::Back, fx);
        }
    }

    /// The next partition the group can claim, off the front of its list or from the part of
    /// the queue it never looked at, in turn.
    pub(super) fn next_ready(&mut self, now: Now, queue: u32, group: u32) -> Option<Slot> {
        let turn = {
            let g = self.state.catalog.get_mut(queue)?.group_mut(group)?;
            g.scan_turn = !g.scan_turn;
            g.scan_turn
        };
        if turn {
            self.scan(now, queue, group, 1);
        }
        if self.state.catalog.get(queue)?.group(group)?.ready_count == 0 {
            self.scan(now, queue, group, 1);
        }
        self.state.catalog.get_mut(queue)?.group_mut(group)?.pop_ready()
    }

    /// Looks at partitions never looked at until `want` more can be claimed.
    fn scan(&mut self, now: Now, queue: u32, group: u32, want: usize) {
        let mut found = 0;
        while found < want {
            let Some(q) = self.state.catalog.get_mut(queue) else { return };
            let slot_at = q.partitions.get(q.group(group).map_or(usize::MAX, |g| g.scan)).copied();
            let (Some(slot), Some(g)) = (slot_at, q.group(group)) else { return };
            if g.start.is_none() {
                return;
            }
            let key = CursorKey { queue, group, slot };
            self.state.forget_outdated(key);
            let Some(g) = self.state.group_mut(key) else { return };
            g.scan += 1;
            found += usize::from(self.list_if_claimable(now, key, End::Back));
        }
    }

    /// Lists some partitions that were never looked at, where few are in the list: what is told of
    /// it to others is of the list alone.
    pub(super) fn scan_ahead(&mut self, now: Now, queue: u32, group: u32) {
        let listed = self.state.catalog.get(queue).and_then(|q| q.group(group));
        let ready = listed.map_or(0, |g| g.ready_count);
        if ready < limits::READY_COUNT_MAX as usize {
            self.scan(now, queue, group, limits::READY_COUNT_MAX as usize - ready);
        }
    }

    /// Tells the queue's owner of ready partitions, if it waits for that.
    pub(super) fn announce(&mut self, now: Now, queue: u32, group: u32, fx: &mut Effects<B>) {
        let armed = |g: &super::group::Group| g.armed;
        let Some(q) = self.state.catalog.get(queue) else { return };
        if !q.group(group).is_some_and(armed) {
            return;
        }
        self.scan_ahead(now, queue, group);
        let Some(q) = self.state.catalog.get_mut(queue) else { return };
        let name = q.name.clone();
        let Some(g) = q.group_mut(group) else { return };
        let Some(oldest_us) = g.oldest_ready() else { return };
        (g.armed, g.promised) = (false, true);
        let count = (g.ready_count as u32).min(limits::READY_COUNT_MAX);
        let group = g.name.clone();
        let owner = self.owner_of(&name);
        self.send(owner, PeerMsg::Ready { queue: name, group, count, oldest_us }, fx);
    }

    /// The queue's owner has waiters: announce now or with the next ready partition.
    pub(super) fn arm(&mut self, now: Now, queue: &str, group: &str, fx: &mut Effects<B>) {
        let Some(queue) = self.state.catalog.find(queue) else { return };
        let Some(q) = self.state.catalog.get_mut(queue) else { return };
        let Some(slot) = q.group_slot(group) else { return };
        if let Some(g) = q.group_mut(slot) {
            g.armed = true;
        }
        self.announce(now, queue, slot, fx);
    }

    /// Undoes a hold or lease timer.
    pub(super) fn clear_timer(&mut self, timer: Option<super::deadlines::DeadlineKey>) {
        timer.into_iter().for_each(|t| {
            self.state.deadlines.remove(t);
        });
    }

    pub(super) fn lease_timer(
        &mut self,
        key: CursorKey,
        at: Deadline,
    ) -> super::deadlines::DeadlineKey {
        self.state.deadlines.insert(at, Event::LeaseExpires(key))
    }
}

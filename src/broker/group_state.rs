//! What a change of a group does to a shard's tables, in a running broker and at replay alike.
//!
//! A seek or a deletion is O(1): the group gets an empty table of cursors and a new start rule,
//! under a new epoch. The old table goes to a grave, which is emptied in slices; so is the count
//! of what the new start rule passes over. Records stand in one log in the order things
//! happened, so replay comes to the same tables.

use super::group::{Cursor, CursorKey, Cursors, Group};
use super::partition::Slot;
use super::records::GroupHere;
use super::state::State;
use crate::base::ids::SegmentId;
use crate::model::peer::{GroupImage, GroupStart};

/// Cursors of a group that count no more.
pub struct Grave {
    queue: u32,
    group: u32,
    cursors: std::collections::hash_map::IntoIter<Slot, Cursor>,
}

impl State {
    /// Makes a group's image true, if its queue is still that incarnation. Returns how many
    /// partitions it touched.
    pub fn install_group(&mut self, image: &GroupImage, here: GroupHere, at: SegmentId) -> u64 {
        let Some(queue_slot) = self.catalog.find(&image.queue) else { return 0 };
        let Some(queue) = self.catalog.get_mut(queue_slot) else { return 0 };
        if queue.image.incarnation != image.incarnation {
            return 0;
        }
        queue.group_epoch = queue.group_epoch.max(image.epoch);
        if image.is_gone() {
            return self.remove_group(queue_slot, image);
        }
        let partitions = queue.partitions.len();
        let inserted = queue.group_slot(&image.group).is_none();
        let slot = queue.group_slot_or_insert(&image.group);
        let group = queue.group_mut(slot).expect("found or inserted");
        let resets = inserted || image.reset_epoch > group.cursors_epoch;
        let touched = match image.start {
            _ if !resets => 0,
            Some(GroupStart::Seek(_)) => partitions as u64,
            _ => group.cursor_count(partitions),
        };
        let old = resets.then(|| {
            let mut fresh = Group::new(&group.name, None);
            (fresh.armed, fresh.pops, fresh.ack_rate) = (group.armed, group.pops, group.ack_rate);
            fresh.segment = group.segment;
            std::mem::replace(group, fresh).cursors
        });
        if group.start != image.start || old.is_some() {
            // Without a cursor on a partition, the group looks at it again. What it only looked
            // at so far is as good as without.
            group.outdated = if group.start.is_some() { partitions } else { 0 };
            (group.start, group.cut, group.scan) = (image.start, here.cut, 0);
            (group.passed_over, group.counted) = (0, 0);
        }
        (group.registration, group.epoch) = (image.registration, image.epoch);
        (group.reset_epoch, group.cursors_epoch) = (image.reset_epoch, here.cursors_epoch);
        let before = group.segment.replace(at);
        self.segments.moved(before, at);
        if let Some(cursors) = old {
            self.bury(queue_slot, slot, cursors);
        }
        self.begin_count(queue_slot, slot, image.epoch == image.reset_epoch);
        touched
    }

    /// Whether a cursor's record is of cursors that count no more: a transaction's share is
    /// applied after it was judged, and a seek may lie between.
    pub fn is_outlived(&mut self, key: CursorKey, epoch: u64, inserted: bool) -> bool {
        let Some(group) = self.group_mut(key) else { return true };
        if epoch < group.cursors_epoch && !inserted {
            return true;
        }
        group.cursors_epoch = epoch;
        false
    }

    fn remove_group(&mut self, queue_slot: u32, image: &GroupImage) -> u64 {
        let Some(queue) = self.catalog.get_mut(queue_slot) else { return 0 };
        queue.gone.insert(image.group.clone(), image.epoch);
        let Some(slot) = queue.group_slot(&image.group) else { return 0 };
        // A group of this name that came after the deletion stays.
        let older = |g: &mut Group| g.cursors_epoch < image.reset_epoch;
        let Some(group) = queue.groups[slot as usize].take_if(older) else { return 0 };
        let touched = group.cursor_count(queue.partitions.len());
        group.segment.into_iter().for_each(|segment| self.segments.remove(segment));
        self.bury(queue_slot, slot, group.cursors);
        touched
    }

    // ---- cursors that count no more

    pub fn bury(&mut self, queue: u32, group: u32, cursors: Cursors) {
        if !cursors.is_empty() {
            self.graves.push_back(Grave { queue, group, cursors: cursors.into_iter() });
        }
    }

    /// Lets go of what up to `most` buried cursors hold outside their group: timers, the lease
    /// index, the segments of their records. Returns how many there were.
    pub fn empty_graves(&mut self, most: usize) -> usize {
        let mut done = 0;
        while let Some(mut grave) = self.graves.pop_front() {
            let (queue, group) = (grave.queue, grave.group);
            while done < most {
                let Some((slot, cursor)) = grave.cursors.next() else { break };
                self.forget_cursor(CursorKey { queue, group, slot }, &cursor);
                done += 1;
            }
            if grave.cursors.len() > 0 {
                self.graves.push_front(grave);
                break;
            }
        }
        done
    }

    fn forget_cursor(&mut self, key: CursorKey, cursor: &Cursor) {
        let timers = cursor.hold.into_iter().chain(cursor.lease.as_ref().and_then(|l| l.timer));
        for timer in timers {
            self.deadlines.remove(timer);
        }
        if let Some(lease) = &cursor.lease {
            self.unindex_lease(lease.record.id, key);
        }
        if let Some(segment) = cursor.segment {
            self.segments.remove(segment);
        }
    }

    /// Forgets a cursor that only says that its partition was looked at, under a start rule that
    /// has changed since. The group looks again.
    pub fn forget_outdated(&mut self, key: CursorKey) {
        let Some(place) = self.parts.get(key.slot).map(|p| p.place as usize) else { return };
        let Some(group) = self.group_mut(key) else { return };
        if !(group.scan..group.outdated).contains(&place)
            || group.cursors.get(&key.slot).is_none_or(Cursor::is_written)
        {
            return;
        }
        group.unlist(key.slot);
        let Some(cursor) = group.cursors.remove(&key.slot) else { return };
        let Some(partition) = self.parts.get(key.slot) else { return };
        let Some(group) = self.catalog.get_mut(key.queue).and_then(|q| q.group_mut(key.group))
        else {
            return;
        };
        group.settled -= cursor.next.max(partition.log_start).0 - partition.log_start.0;
        if place < group.counted {
            group.passed_over += group.passes_over(partition);
        }
        self.forget_cursor(key, &cursor);
    }

    // ---- what a start rule passes over

    /// `now`: the rule begins with this very record, so nothing is stored behind its cut.
    fn begin_count(&mut self, queue: u32, group: u32, now: bool) {
        let Some(q) = self.catalog.get_mut(queue) else { return };
        let (partitions, messages) = (q.partitions.len(), q.messages);
        let Some(g) = q.group_mut(group) else { return };
        if g.counted == partitions {
            return;
        }
        match g.start {
            None | Some(GroupStart::Oldest) => g.counted = partitions,
            Some(GroupStart::Seek(i64::MAX)) if now && g.cursors.is_empty() => {
                (g.passed_over, g.counted) = (messages, partitions);
            }
            Some(_) => self.uncounted.push_back((queue, group)),
        }
    }

    /// Looks at up to `most` partitions for groups that have not counted them. Returns at how
    /// many.
    pub fn count_passed_over(&mut self, most: usize) -> usize {
        let mut done = 0;
        while let Some((queue, group)) = self.uncounted.front().copied() {
            let slots: Vec<Slot> = self.uncounted_slots(queue, group, most - done);
            if slots.is_empty() {
                self.uncounted.pop_front();
                continue;
            }
            done += slots.len();
            for slot in slots {
                self.count_one(CursorKey { queue, group, slot });
            }
            if done >= most {
                break;
            }
        }
        done
    }

    fn uncounted_slots(&self, queue: u32, group: u32, most: usize) -> Vec<Slot> {
        let Some(q) = self.catalog.get(queue) else { return Vec::new() };
        let Some(g) = q.group(group) else { return Vec::new() };
        q.partitions.iter().skip(g.counted).take(most).copied().collect()
    }

    fn count_one(&mut self, key: CursorKey) {
        self.forget_outdated(key);
        let Some(partition) = self.parts.get(key.slot) else { return };
        let Some(group) = self.catalog.get_mut(key.queue).and_then(|q| q.group_mut(key.group))
        else {
            return;
        };
        group.counted += 1;
        if !group.cursors.contains_key(&key.slot) {
            group.passed_over += group.passes_over(partition);
        }
    }
}

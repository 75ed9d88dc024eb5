//! Why a partition does not deliver to a group now: the one thing that decides, with its numbers,
//! found by the same rules as a claim's.

use super::group::{Claimable, CursorKey, Group, claimable};
use super::partition::{Partition, Slot};
use super::readers::Place;
use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::hash::partition_hash;
use crate::base::ids::Offset;
use crate::base::limits;
use crate::base::time::Now;
use crate::model::inspect::{Deliverable, InspectPart, Missing, Why, WhyState};
use crate::model::options::QueueOptions;
use crate::model::peer::GroupStart;

impl<B: IoBuf> Shard<B> {
    /// This shard's part: the state where the partition lives, the waiting pops at the queue's
    /// owner.
    pub(super) fn why(&self, now: Now, queue: &str, partition: &str, group: &str) -> InspectPart {
        let parked = self.lines.waiting(queue, group);
        let home = partition_hash(queue, partition) % u64::from(self.config.shards);
        if home != u64::from(self.config.shard.0) {
            return InspectPart::Parked(parked);
        }
        let Some(queue_slot) = self.state.catalog.find(queue) else {
            return InspectPart::Missing(Missing::Queue);
        };
        let Some(slot) = self.state.parts.find(queue_slot, partition) else {
            return InspectPart::Missing(Missing::Partition);
        };
        let place = self
            .state
            .catalog
            .get(queue_slot)
            .zip(self.state.parts.get(slot))
            .map(|(queue, partition)| Place { queue, slot, partition });
        let Some(place) = place else { return InspectPart::Missing(Missing::Partition) };
        let group_slot = place.queue.group_slot(group);
        let known =
            group_slot.and_then(|at| Some((at, place.queue.group(at)?))).filter(|(_, g)| {
                // A group that popped other partitions by name has no business here yet.
                g.start.is_some() || g.cursors.contains_key(&slot)
            });
        let Some((group_slot, group)) = known else {
            return InspectPart::Missing(Missing::Group);
        };
        let key = CursorKey { queue: queue_slot, group: group_slot, slot };
        let next = group.position(slot, place.partition);
        let cursor = self.state.cursor(key);
        let attempts = cursor.filter(|c| Some(c.attempt_offset) == next);
        InspectPart::Why(Box::new(Why {
            partition_id: self.state.id_of(slot),
            state: self.why_state(now, key, place, group),
            next,
            log_start: place.partition.log_start,
            high_watermark: place.partition.high_watermark(),
            attempts: attempts.map_or(0, |c| c.attempt_count),
            retry_count: cursor.map_or(0, |c| c.retry_count),
            retry_limit: place.queue.image.options.retry_limit,
            parked,
            parked_here: self.pinned.waiting(queue, partition, &group.name),
        }))
    }

    fn why_state(&self, now: Now, key: CursorKey, place: Place<'_>, group: &Group) -> WhyState {
        let (slot, partition) = (place.slot, place.partition);
        let options = &place.queue.image.options;
        let cursor = group.cursors.get(&slot);
        if self.is_reserved(key) {
            // A transaction holds the cursor, whatever stands behind it.
            let first = group.position(slot, partition).unwrap_or(partition.log_start);
            let last = cursor.and_then(|c| c.lease.as_ref()).map(|l| l.record.end);
            let last = last.unwrap_or(Offset(partition.high_watermark().0.saturating_sub(1)));
            return WhyState::Reserved { first, last };
        }
        if let Some(lease) = cursor.filter(|c| c.is_leased(now)).and_then(|c| c.lease.as_ref()) {
            let (first, last) = (lease.record.first, lease.record.end);
            if lease.reserved {
                return WhyState::Reserved { first, last };
            }
            return WhyState::Leased {
                id: lease.record.id,
                first: first.max(cursor.map_or(first, |c| c.next)),
                last,
                since_us: lease.record.granted_us,
                until_us: now.wall_at(lease.expires),
            };
        }
        let Some(next) = group.position(slot, partition) else {
            return starts_behind(group, partition);
        };
        match claimable(partition, next, options, now) {
            Claimable::No => WhyState::Nothing,
            Claimable::HeldUntil(until_us) => held(partition, next, options, now, until_us),
            Claimable::Yes { from, to } => {
                let damage = self.inspection.damages.get(&self.state.id_of(slot));
                if let Some((first, last, error)) =
                    damage.filter(|(first, last, _)| (*first..=*last).contains(&from))
                {
                    return WhyState::Damaged { first: *first, last: *last, error: error.clone() };
                }
                if group.conflates() && to.0 - from.0 > 1 {
                    return WhyState::Conflated { first: from, newest: Offset(to.0 - 1) };
                }
                let deliverable = Deliverable {
                    messages: to.0 - from.0,
                    place: place_in_line(group, slot),
                    ready: group.ready_count as u64,
                };
                let again = cursor.is_some_and(|c| {
                    c.retry_count > 0 || c.attempt_offset == from && c.attempt_count > 0
                });
                if again { WhyState::Retrying(deliverable) } else { WhyState::Ready(deliverable) }
            }
        }
    }
}

/// The start rule gives the group nothing of what is stored.
fn starts_behind(group: &Group, partition: &Partition) -> WhyState {
    match (group.start, partition.batches.last()) {
        (Some(GroupStart::From(start_us) | GroupStart::Seek(start_us)), Some(newest)) => {
            WhyState::SeededAfter { start_us, newest_us: newest.created_at_us }
        }
        _ => WhyState::Nothing,
    }
}

/// Which of the two holds: the window is judged before the delay.
fn held(
    partition: &Partition,
    next: Offset,
    options: &QueueOptions,
    now: Now,
    until_us: i64,
) -> WhyState {
    let window_only = QueueOptions { delayed_processing_seconds: 0, ..options.clone() };
    match claimable(partition, next, &window_only, now) {
        Claimable::HeldUntil(until_us) => WhyState::Window { until_us },
        _ => WhyState::Delayed { until_us },
    }
}

/// Ready partitions in front of this one.
fn place_in_line(group: &Group, slot: Slot) -> Option<u64> {
    let is_ready = |slot: &Slot| group.cursors.get(slot).is_some_and(|c| c.queued);
    if !is_ready(&slot) {
        return None;
    }
    let counted = group.ready.iter().take(limits::READY_PLACE_MAX).map(|(slot, _)| slot);
    let place = counted.filter(|slot| is_ready(slot)).position(|ready| *ready == slot);
    place.map(|place| place as u64)
}

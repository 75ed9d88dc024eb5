//! The clock's own work, in small steps: retention, expiry of ids, forgetting of released
//! leases, the memory of deleted queues, and letting go of log segments.

use super::effect::Effects;
use super::group::Group;
use super::partition::{Partition, Slot};
use super::queue::Queue;
use super::records::{self, Writer};
use super::shard::{Event, Shard};
use super::state::id_keep_seconds;
use crate::base::buf::IoBuf;
use crate::base::ids::Offset;
use crate::base::limits;
use crate::base::time::Now;
use crate::model::peer::GroupStart;

/// Time between two steps. Even an idle shard pays for it: a wake-up of its executor.
pub(super) const STEP_MS: u64 = 250;
/// Partitions looked at for retention in one step.
const RETENTION_PER_STEP: usize = 2_500;
/// Deleted partitions whose memory is given back in one step.
const REAP_PER_STEP: usize = 5_000;
/// Released leases forgotten in one step.
const RELEASED_PER_STEP: usize = 2_500;

impl<B: IoBuf> Shard<B> {
    pub(super) fn housekeeping(&mut self, now: Now, fx: &mut Effects<B>) {
        self.state.deadlines.insert(now.after_ms(STEP_MS), Event::Housekeeping);
        self.turn_minute(now);
        for _ in 0..REAP_PER_STEP {
            let Some(slot) = self.state.reaping.pop_front() else { break };
            self.state.reap(slot);
        }
        let forget_us = now.wall_us - (limits::RELEASED_LEASE_MS as i64) * 1_000;
        for _ in 0..RELEASED_PER_STEP {
            if self.state.released.front().is_none_or(|(_, _, at_us)| *at_us >= forget_us) {
                break;
            }
            self.forget_oldest_released();
        }
        if self.log.fault().is_some() || self.stopping {
            return;
        }
        self.retry_stalled(now, fx);
        self.retry_stalled_ends(now, fx);
        let keep = self
            .state
            .catalog
            .iter()
            .map(|(_, queue)| id_keep_seconds(&queue.image.options))
            .max()
            .unwrap_or(0);
        self.state.dedup.sweep(now.wall_us, keep);
        self.state.expire_traces(now);
        self.retain(now);
        let keep_us = i64::try_from(keep).unwrap_or(i64::MAX / 2_000_000).saturating_mul(1_000_000);
        self.release_segments(now.wall_us.saturating_sub(keep_us));
    }

    /// Looks at the next partitions of queues that have retention rules.
    fn retain(&mut self, now: Now) {
        let mut left = RETENTION_PER_STEP;
        let queues = self.state.catalog.len();
        for _ in 0..queues.min(RETENTION_PER_STEP) {
            let Some(at) = self.state.catalog.next_slot(self.retention_queue) else { return };
            let Some(queue) = self.state.catalog.get_mut(at) else { return };
            let from = queue.retention_at;
            let to = (from + left).min(queue.partitions.len());
            let has_rules = rules(queue).is_some();
            let slots: Vec<Slot> =
                if has_rules { queue.partitions[from..to].to_vec() } else { Vec::new() };
            if !has_rules || to == queue.partitions.len() {
                queue.retention_at = 0;
                self.retention_queue = at + 1;
            } else {
                queue.retention_at = to;
            }
            left -= slots.len();
            for slot in slots {
                self.retain_partition(now, at, slot);
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Moves a partition's log start past batches that its queue's rules give up. A log that
    /// refuses the record leaves them for the next round.
    fn retain_partition(&mut self, now: Now, queue: u32, slot: Slot) {
        let Some(q) = self.state.catalog.get(queue) else { return };
        let Some(partition) = self.state.parts.get(slot) else { return };
        let Some(start) = new_log_start(q, slot, partition, now) else { return };
        let to = start.to;
        let id = self.state.id_of(slot);
        let body = Writer::default().u64(to.0).body();
        if let Ok(appended) = self.append(records::LOG_START, id.0, &[&body]) {
            self.state.move_log_start(slot, to, Some(appended.at.segment()));
            self.count(queue, |t| {
                t.retention_messages += start.too_old;
                t.completed_retention_messages += start.settled;
                t.evicted_messages += start.waited;
                t.retention_steps += 1;
            });
        }
    }

    /// Segments nothing refers to any more go, oldest first. Not before all shards have resolved
    /// the transactions they found, which may need to know what is in this log.
    fn release_segments(&mut self, ids_until_us: i64) {
        if !self.is_ready() {
            return;
        }
        let needed = self.state.segments.oldest_needed(ids_until_us);
        let active = self.log.appended().segment();
        let before = needed.map_or(active, |segment| segment.min(active));
        if self.log.segments().next().is_some_and(|oldest| oldest.id < before) {
            self.log.release_before(before, &mut self.io);
        }
    }
}

/// Ages in seconds beyond which messages go: any message, one every reader has settled, and one
/// that has waited too long for its readers.
struct Rules {
    any: Option<u64>,
    settled: Option<u64>,
    waited: Option<u64>,
}

/// Where a log start moves to, and how many messages go by which rule.
struct NewStart {
    to: Offset,
    too_old: u64,
    settled: u64,
    waited: u64,
}

fn rules(queue: &Queue) -> Option<Rules> {
    let options = &queue.image.options;
    let on = |seconds: u64| (seconds > 0).then_some(seconds);
    let gated = |seconds: u64| on(seconds).filter(|_| options.retention_enabled);
    let rules = Rules {
        any: gated(options.retention_seconds),
        settled: gated(options.completed_retention_seconds),
        waited: on(options.max_wait_seconds),
    };
    let some = rules.any.is_some() || rules.settled.is_some() || rules.waited.is_some();
    some.then_some(rules)
}

/// Where the log start moves to, if it moves. Whole batches only, and only durable ones.
fn new_log_start(queue: &Queue, slot: Slot, partition: &Partition, now: Now) -> Option<NewStart> {
    let rules = rules(queue)?;
    let older = |created_us: i64, seconds: u64| {
        // A stamp ahead of the clock counts as now.
        let age = now.wall_us.saturating_sub(created_us).max(0);
        u64::try_from(age).unwrap_or(0) / 1_000_000 >= seconds
    };
    // A partition no group reads keeps what is kept until it is settled. A seek reads it.
    let reads =
        |g: &Group| g.cursors.contains_key(&slot) || matches!(g.start, Some(GroupStart::Seek(_)));
    let readers = || queue.groups.iter().flatten().filter(|g| reads(g));
    let unread_by_registered =
        queue.groups.iter().skip(1).flatten().any(|g| g.start.is_some() && !reads(g));
    let settled_to = match readers().map(|g| g.settled_to(slot, partition)).min() {
        Some(next) if !unread_by_registered => next,
        _ => Offset(0),
    };
    let mut start = NewStart { to: partition.log_start, too_old: 0, settled: 0, waited: 0 };
    for batch in partition.batches.iter().take_while(|b| b.end() <= partition.high_watermark()) {
        let over = |limit: Option<u64>| limit.is_some_and(|s| older(batch.created_at_us, s));
        let count = if over(rules.any) {
            &mut start.too_old
        } else if batch.end() <= settled_to && over(rules.settled) {
            &mut start.settled
        } else if over(rules.waited) {
            &mut start.waited
        } else {
            break;
        };
        *count += u64::from(batch.count);
        start.to = batch.end();
    }
    (start.to > partition.log_start).then_some(start)
}

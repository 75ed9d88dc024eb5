//! What was done, counted as it happens, and cut into minutes: one row a minute of the shard, one
//! of each queue that something was done with.
//!
//! Counting touches two small tables of the shard and allocates nothing. The minutes are kept in
//! memory only, for a day, and bounded in rows: `base::limits` says by how much.

use std::collections::VecDeque;
use std::rc::Rc;

use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::ids::{PartitionId, ShardId};
use crate::base::limits;
use crate::base::time::Now;
use crate::model::peer::TaskId;
use crate::model::traffic::{OTHER_QUEUES, Traffic};

const MINUTE_US: i64 = 60_000_000;

/// The counts of one queue on one shard.
#[derive(Debug, Default)]
pub(super) struct QueueTraffic {
    pub total: Traffic,
    /// `total` when the queue was first touched in this minute; only where it is `listed`.
    begun: Traffic,
    /// It gets a row of its own in this minute.
    listed: bool,
    /// Pops of this shard's clients that wait for it.
    pub parked: u64,
    /// The request that was counted last, so that its parts count once.
    pub last_request: u64,
}

/// One closed minute.
#[derive(Debug)]
pub(super) struct Minute {
    pub minute: u64,
    pub total: Traffic,
    pub queues: Vec<Row>,
}

/// One queue in one minute.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub queue: Rc<str>,
    pub traffic: Traffic,
    pub parked: u64,
}

/// All counts of a shard.
#[derive(Debug)]
pub(super) struct History {
    /// Since the start.
    pub total: Traffic,
    /// `total` when the running minute began.
    begun: Traffic,
    /// The running minute.
    minute: u64,
    /// Queues with a row in it, by slot.
    active: Vec<u32>,
    /// Rows of queues that were deleted in it.
    gone: Vec<Row>,
    /// What queues without a row did in it.
    other: Traffic,
    closed: VecDeque<Minute>,
    /// Rows of queues in `closed`.
    rows: usize,
}

pub(super) fn minute_of(wall_us: i64) -> u64 {
    u64::try_from(wall_us.div_euclid(MINUTE_US)).unwrap_or(0)
}

impl History {
    pub(super) fn new(now: Now) -> Self {
        Self {
            total: Traffic::default(),
            begun: Traffic::default(),
            minute: minute_of(now.wall_us),
            active: Vec::with_capacity(limits::HISTORY_QUEUES_MAX),
            gone: Vec::new(),
            other: Traffic::default(),
            closed: VecDeque::new(),
            rows: 0,
        }
    }

    /// Closed minutes from `from` on, oldest first.
    pub(super) fn closed_from(&self, from: u64) -> impl Iterator<Item = &Minute> {
        let first = self.closed.partition_point(|minute| minute.minute < from);
        self.closed.range(first..)
    }

    fn close(&mut self, minute: Minute) {
        self.rows += minute.queues.len();
        match self.closed.back_mut() {
            // The clock went back: the newest row takes it, so that minutes stay ascending.
            Some(newest) if newest.minute >= minute.minute => {
                newest.total.add(&minute.total);
                newest.queues.extend(minute.queues);
            }
            _ => self.closed.push_back(minute),
        }
        self.trim();
    }

    fn trim(&mut self) {
        let oldest = self.minute.saturating_sub(limits::HISTORY_MINUTES);
        while self.closed.front().is_some_and(|minute| minute.minute < oldest) {
            self.rows -= self.closed.pop_front().map_or(0, |minute| minute.queues.len());
        }
        while self.rows > limits::HISTORY_ROWS_MAX {
            let Some(minute) = self.closed.iter_mut().find(|minute| !minute.queues.is_empty())
            else {
                return;
            };
            self.rows -= std::mem::take(&mut minute.queues).len();
        }
    }
}

impl<B: IoBuf> Shard<B> {
    /// Counts for the shard and for one of its queues.
    #[inline]
    pub(super) fn count(&mut self, queue: u32, add: impl Fn(&mut Traffic)) {
        add(&mut self.history.total);
        self.count_queue(queue, add);
    }

    /// Counts for a queue only.
    pub(super) fn count_queue(&mut self, slot: u32, add: impl Fn(&mut Traffic)) {
        let Some(queue) = self.state.catalog.get_mut(slot) else { return };
        let (traffic, history) = (&mut *queue.traffic, &mut self.history);
        if !traffic.listed {
            traffic.total.lag_us_max = 0;
            if history.active.len() == limits::HISTORY_QUEUES_MAX {
                let before = traffic.total;
                add(&mut traffic.total);
                return history.other.add(&traffic.total.since(&before));
            }
            history.active.push(slot);
            traffic.listed = true;
            traffic.begun = traffic.total;
        }
        add(&mut traffic.total);
    }

    /// Counts a request for a queue, once however often it is told of it.
    pub(super) fn count_request(&mut self, slot: u32, request: u64, add: impl Fn(&mut Traffic)) {
        let Some(queue) = self.state.catalog.get_mut(slot) else { return };
        if std::mem::replace(&mut queue.traffic.last_request, request) != request {
            self.count_queue(slot, add);
        }
    }

    /// Counts acks of one partition, which are part of a request: of each, whether it settled its
    /// message as done.
    pub(super) fn count_acks(
        &mut self,
        (from, task): (ShardId, TaskId),
        partition: PartitionId,
        done: impl Iterator<Item = bool>,
        conflated: Option<u64>,
    ) {
        let (mut success, mut failed) = (0, 0);
        done.for_each(|done| *(if done { &mut success } else { &mut failed }) += 1);
        let add = |t: &mut Traffic| {
            t.ack_success += success;
            t.ack_failed += failed;
            t.conflated += conflated.unwrap_or(0);
        };
        let slot = self.state.slot_of(partition);
        match slot.and_then(|slot| self.state.parts.get(slot)).map(|partition| partition.queue) {
            Some(queue) => {
                // Task numbers of shards repeat among each other; here they must not.
                let request = task.0.wrapping_mul(1 << 13) + u64::from(from.0);
                self.count_request(queue, request, |t| t.ack_requests += 1);
                self.count(queue, add);
            }
            None => add(&mut self.history.total),
        }
    }

    /// A pop waits for a queue.
    pub(super) fn count_parked(&mut self, queue: &str) {
        let slot = self.state.catalog.find(queue);
        if let Some(queue) = slot.and_then(|slot| self.state.catalog.get_mut(slot)) {
            queue.traffic.parked += 1;
        }
    }

    /// It does not any more. The queue may have been made anew meanwhile.
    pub(super) fn count_unparked(&mut self, queue: &str) {
        let slot = self.state.catalog.find(queue);
        if let Some(queue) = slot.and_then(|slot| self.state.catalog.get_mut(slot)) {
            queue.traffic.parked = queue.traffic.parked.saturating_sub(1);
        }
    }

    /// A queue is about to be forgotten here: what it did in this minute stays.
    pub(super) fn count_deleted(&mut self, name: &str, incarnation: u64) {
        let Some(slot) = self.state.catalog.find(name) else { return };
        let Some(queue) = self.state.catalog.get(slot) else { return };
        if queue.image.incarnation != incarnation {
            return;
        }
        let partitions = queue.partitions.len() as u64;
        self.count(slot, |t| t.partitions_deleted += partitions);
        let row = self.row_of(slot);
        if let Some(row) = row.filter(|_| self.history.gone.len() < limits::HISTORY_QUEUES_MAX) {
            self.history.gone.push(row);
        }
    }

    /// The row of a queue in the running minute.
    fn row_of(&self, slot: u32) -> Option<Row> {
        let traffic = &self.state.catalog.get(slot).filter(|queue| queue.traffic.listed)?.traffic;
        let queue = self.state.catalog.get(slot)?;
        Some(Row {
            queue: queue.image.name.as_str().into(),
            traffic: traffic.total.since(&traffic.begun),
            parked: traffic.parked,
        })
    }

    /// The minute that runs, as far as it has come.
    pub(super) fn running_minute(&self) -> Minute {
        let history = &self.history;
        let mut queues = history.gone.clone();
        queues.extend(history.active.iter().filter_map(|slot| self.row_of(*slot)));
        if !history.other.is_idle() {
            queues.push(Row { queue: OTHER_QUEUES.into(), traffic: history.other, parked: 0 });
        }
        let total = history.total.since(&history.begun);
        Minute { minute: history.minute, total, queues }
    }

    /// Closes the running minute if it is over.
    pub(super) fn turn_minute(&mut self, now: Now) {
        let minute = minute_of(now.wall_us);
        if minute == self.history.minute {
            return;
        }
        let closed = self.running_minute();
        for slot in std::mem::take(&mut self.history.active) {
            if let Some(queue) = self.state.catalog.get_mut(slot) {
                queue.traffic.listed = false;
            }
        }
        let history = &mut self.history;
        history.active = Vec::with_capacity(limits::HISTORY_QUEUES_MAX);
        history.gone = Vec::new();
        history.other = Traffic::default();
        history.total.lag_us_max = 0;
        history.begun = history.total;
        history.minute = minute;
        if !closed.total.is_idle() {
            history.close(closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u64) -> Now {
        Now { mono_us: 0, wall_us: minute as i64 * MINUTE_US + 5 }
    }

    fn closed(minute: u64, pushed: u64, queues: usize) -> Minute {
        let total = Traffic { push_messages: pushed, ..Traffic::default() };
        let row = Row { queue: "q".into(), traffic: total, parked: 0 };
        Minute { minute, total, queues: vec![row; queues] }
    }

    #[test]
    fn minutes_are_kept_for_a_day_and_stay_ascending() {
        let mut history = History::new(at(10_000));
        for minute in 10_000..10_000 + 2 * limits::HISTORY_MINUTES {
            history.minute = minute + 1;
            history.close(closed(minute, 1, 1));
        }
        assert_eq!(history.closed.len() as u64, limits::HISTORY_MINUTES);
        assert_eq!(history.rows, history.closed.len());
        let newest = history.closed.back().unwrap().minute;
        history.close(closed(newest - 7, 5, 2));
        assert_eq!(history.closed.back().unwrap().total.push_messages, 6);
        assert_eq!(history.closed_from(newest).count(), 1);
        assert_eq!(history.closed_from(newest + 1).count(), 0);
        assert!(history.closed.iter().is_sorted_by_key(|minute| minute.minute));
    }

    #[test]
    fn too_many_rows_cost_the_oldest_minutes_their_queues() {
        let mut history = History::new(at(500));
        let minutes = limits::HISTORY_ROWS_MAX / limits::HISTORY_QUEUES_MAX + 3;
        for minute in 0..minutes as u64 {
            history.minute = 500 + minute + 1;
            history.close(closed(500 + minute, 1, limits::HISTORY_QUEUES_MAX));
        }
        assert!(history.rows <= limits::HISTORY_ROWS_MAX);
        assert_eq!(history.closed.len(), minutes, "totals stay");
        let bare = history.closed.iter().take_while(|minute| minute.queues.is_empty()).count();
        assert_eq!(bare, 3);
        assert_eq!(history.rows, (minutes - bare) * limits::HISTORY_QUEUES_MAX);
    }
}

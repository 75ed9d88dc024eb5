//! Walks over much of the state, one short step at a time. A step looks at a bounded number of
//! rows on each shard and says where it stopped; whoever walks hands that back for the next one.
//! Between two steps anything may change: a walk is a survey, not a snapshot.

use super::dead_letters::head_of;
use super::effect::Effects;
use super::group::Group;
use super::history::{Minute, Row};
use super::partition::{Partition, Slot};
use super::queue::Queue;
use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::ids::ShardId;
use crate::base::limits::{self, WALK_STEP_ROWS};
use crate::base::time::Now;
use crate::model::peer::{PeerMsg, ReadPart, TaskId};
use crate::model::reply::Reply;
use crate::model::traffic::{
    Failure, MinuteRow, QueueLiveness, QueueMinute, QueueRows, QueueTotals, Walk, WalkAt,
    WalkFound, WalkOver, WalkStep,
};

/// Empty places of the catalog looked at in one step.
const PLACES_MAX: usize = 8 * WALK_STEP_ROWS;
/// Error text of a dead letter that a step carries, in bytes.
const ERROR_BYTES_MAX: usize = 4 * limits::SIGNATURE_CHARS_MAX;

const HOUR_US: i64 = 3_600_000_000;

impl<B: IoBuf> Shard<B> {
    pub(super) fn walk(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        walk: &Walk,
        fx: &mut Effects<B>,
    ) {
        let at = walk.at.get(self.config.shard.index()).copied().unwrap_or(WalkAt::Start);
        let (major, minor) = match at {
            WalkAt::Start => (None, 0),
            WalkAt::At(major, minor) => (Some(major), minor),
            WalkAt::End => (Some(u64::MAX), u128::MAX),
        };
        let ended = at == WalkAt::End;
        let (found, next) = match &walk.over {
            WalkOver::Minutes { from, to, queues } => {
                let from = if ended { u64::MAX } else { major.unwrap_or(*from) };
                self.walk_minutes(from, *to, queues)
            }
            WalkOver::Totals { limit } => {
                self.walk_totals(major.unwrap_or(0), (minor as usize, *limit))
            }
            WalkOver::Liveness => self.walk_liveness(now, major.unwrap_or(0), minor as usize),
            WalkOver::Failures { .. } if ended => (WalkFound::Failures(Vec::new()), WalkAt::End),
            WalkOver::Failures { queue } => {
                let key = major.map(|at| (at as i64, minor.to_be_bytes()));
                self.walk_failures(key.unwrap_or((i64::MAX, [0xFF; 16])), queue.as_deref())
            }
        };
        let step = WalkStep { shard: self.config.shard, next, found };
        let msg = PeerMsg::ReadDone { task, result: Ok(ReadPart::Walk(Box::new(step))) };
        match walk.over {
            // Counts of the process promise nothing.
            WalkOver::Minutes { .. } | WalkOver::Totals { .. } => self.send(from, msg, fx),
            WalkOver::Liveness | WalkOver::Failures { .. } => self.send_durable(from, msg),
        }
    }

    fn walk_minutes(&self, from: u64, to: u64, queues: &QueueRows) -> (WalkFound, WalkAt) {
        let mut found = Vec::new();
        let mut looked = 0;
        for minute in self.history.closed_from(from).take_while(|minute| minute.minute <= to) {
            looked += 1 + minute.queues.len();
            found.push(shown(minute, queues));
            if looked >= WALK_STEP_ROWS {
                return (WalkFound::Minutes(found), WalkAt::At(minute.minute + 1, 0));
            }
        }
        let running = self.running_minute();
        if (from..=to).contains(&running.minute) && !running.total.is_idle() {
            found.push(shown(&running, queues));
        }
        (WalkFound::Minutes(found), WalkAt::End)
    }

    fn walk_totals(&self, from: u64, (mut rank, limit): (usize, usize)) -> (WalkFound, WalkAt) {
        let (mut named, mut other) = (Vec::new(), None::<Box<QueueTotals>>);
        let mut next = WalkAt::End;
        let begun = rank;
        for (looked, (slot, queue)) in self.state.catalog.places_from(from).enumerate() {
            if looked == PLACES_MAX || rank - begun == WALK_STEP_ROWS {
                next = WalkAt::At(u64::from(slot), rank as u128);
                break;
            }
            let Some(queue) = queue else { continue };
            let totals = totals_of(queue);
            if rank < limit {
                named.push(totals);
            } else {
                other.get_or_insert_default().add(&totals);
            }
            rank += 1;
        }
        (WalkFound::Totals { named, other }, next)
    }

    fn walk_liveness(&self, now: Now, from: u64, mut first: usize) -> (WalkFound, WalkAt) {
        let mut found = Vec::new();
        let mut looked = 0;
        for (slot, queue) in self.state.catalog.places_from(from) {
            looked += 1;
            let Some(queue) = queue else { continue };
            if u64::from(slot) != from {
                first = 0;
            }
            let mut seen = QueueLiveness::default();
            let each = 1 + queue.groups.len();
            for (index, partition) in queue.partitions.iter().enumerate().skip(first) {
                if looked >= WALK_STEP_ROWS {
                    found.extend(named(queue, seen));
                    let at = WalkAt::At(u64::from(slot), index as u128);
                    return (WalkFound::Liveness(found), at);
                }
                looked += each;
                if let Some(stored) = self.state.parts.get(*partition) {
                    see(&mut seen, now, queue, *partition, stored);
                }
            }
            found.extend(named(queue, seen));
            if looked >= WALK_STEP_ROWS {
                return (WalkFound::Liveness(found), WalkAt::At(u64::from(slot) + 1, 0));
            }
        }
        (WalkFound::Liveness(found), WalkAt::End)
    }

    fn walk_failures(&self, key: (i64, [u8; 16]), queue: Option<&str>) -> (WalkFound, WalkAt) {
        let mut found = Vec::new();
        let mut next = WalkAt::End;
        let rows = self.state.dead_letters.older_than(None, key);
        for (looked, row) in rows.enumerate() {
            if looked == WALK_STEP_ROWS {
                break;
            }
            let record = &row.record;
            if looked == WALK_STEP_ROWS - 1 {
                let id = u128::from_be_bytes(record.id);
                next = WalkAt::At(record.failed_at_us as u64, id);
            }
            let Some(of) = self.state.catalog.get(row.queue) else { continue };
            if queue.is_some_and(|wanted| wanted != of.image.name) {
                continue;
            }
            found.push(Failure {
                queue: of.image.name.clone(),
                group: row.group.clone(),
                partition: self.state.id_of(row.slot),
                error: head_of(&record.error, ERROR_BYTES_MAX).to_owned(),
                retry_count: record.retry_count,
                failed_at_us: record.failed_at_us,
                bytes: u64::from(record.batch_bytes),
            });
        }
        (WalkFound::Failures(found), next)
    }
}

fn shown(minute: &Minute, queues: &QueueRows) -> MinuteRow {
    let wanted = |row: &&Row| match queues {
        QueueRows::None => false,
        QueueRows::One(queue) => *row.queue == **queue,
        QueueRows::All => true,
    };
    let queues = minute.queues.iter().filter(wanted).map(|row| QueueMinute {
        queue: row.queue.to_string(),
        traffic: row.traffic,
        parked: row.parked,
    });
    MinuteRow { minute: minute.minute, total: minute.total, queues: queues.collect() }
}

fn totals_of(queue: &Queue) -> QueueTotals {
    let registered = |group: &&Group| group.start.is_some();
    QueueTotals {
        queue: queue.image.name.clone(),
        traffic: queue.traffic.total,
        partitions: queue.partitions.len() as u64,
        messages: queue.messages,
        unconsumed: queue.unconsumed(),
        processing: queue.leased(),
        retained_bytes: queue.bytes,
        dead_letters: queue.dead_letters,
        parked: queue.traffic.parked,
        groups: queue.groups.iter().skip(1).flatten().filter(registered).count() as u64,
    }
}

fn named(queue: &Queue, seen: QueueLiveness) -> Option<QueueLiveness> {
    let any = seen.partitions > 0;
    any.then(|| QueueLiveness { queue: queue.image.name.clone(), ..seen })
}

fn see(seen: &mut QueueLiveness, now: Now, queue: &Queue, slot: Slot, partition: &Partition) {
    let written_us = match partition.last_created_us {
        i64::MIN => partition.created_at_us,
        stamp => stamp,
    };
    // A stamp ahead of the clock counts as now.
    let age_us = now.wall_us.saturating_sub(written_us);
    let made_us = now.wall_us.saturating_sub(partition.created_at_us);
    seen.add(&QueueLiveness {
        queue: String::new(),
        partitions: 1,
        live_1h: u64::from(age_us <= HOUR_US),
        live_24h: u64::from(age_us <= 24 * HOUR_US),
        live_7d: u64::from(age_us <= 7 * 24 * HOUR_US),
        created_24h: u64::from(made_us <= 24 * HOUR_US),
        oldest_write_us: Some(written_us),
        newest_write_us: Some(written_us),
        oldest_owed_us: oldest_owed(queue, slot, partition),
    });
}

/// When the oldest message was pushed that the slowest reader has not settled: named groups if
/// there are any, else queue mode.
fn oldest_owed(queue: &Queue, slot: Slot, partition: &Partition) -> Option<i64> {
    let position = |group: &Group| group.position(slot, partition).unwrap_or(partition.next_offset);
    let named = queue.groups.iter().skip(1).flatten().filter(|group| group.start.is_some());
    let first = named.map(position).min().or_else(|| queue.group(0).map(position))?;
    partition.batch_of(first.max(partition.log_start)).map(|batch| batch.created_at_us)
}

pub(super) fn join<B>(parts: Vec<ReadPart>) -> Reply<B> {
    let step = |part| if let ReadPart::Walk(step) = part { Some(*step) } else { None };
    let mut steps: Vec<WalkStep> = parts.into_iter().filter_map(step).collect();
    steps.sort_unstable_by_key(|step| step.shard);
    Reply::Walked(steps)
}

//! Lines of parked queue-wide pops, kept by each queue's owner.
//!
//! The owner knows, per shard, either that it is *armed* (it will announce its next ready
//! partition once) or how many ready partitions it announced and how old the oldest is. While
//! there are waiters and announced partitions, the oldest waiter goes as a claim to the shard
//! whose announcement is oldest; the claim that uses up an announcement arms the shard again.
//! With waiters left, every shard that is neither armed nor announced gets armed. A claim that
//! finds nothing sends its waiter back here under its old place. So no wake-up is lost, at most
//! one claim goes out for each announced partition, and an idle line costs nothing.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::effect::Effects;
use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::ids::ShardId;
use crate::base::limits;
use crate::base::time::{Deadline, Now};
use crate::model::peer::{Arrival, ClaimMode, ClaimSpec, Name, PeerMsg};

/// Empty lines are kept for the next waiter up to this many; beyond, they start over.
const IDLE_LINES_MAX: usize = 4_096;

#[derive(Clone, Copy, Default, Debug)]
struct Standing {
    armed: bool,
    /// Announced and not yet claimed partitions.
    available: u32,
    oldest_us: u64,
}

#[derive(Debug)]
struct Waiter {
    spec: ClaimSpec,
    until: Deadline,
}

#[derive(Default, Debug)]
struct Line {
    waiters: BTreeMap<Arrival, Waiter>,
    shards: Vec<Standing>,
}

/// All lines of the queues this shard owns, by queue and group.
#[derive(Default, Debug)]
pub(super) struct Lines {
    lines: BTreeMap<(Name, Name), Line>,
}

impl Lines {
    pub(super) fn parked(&self) -> usize {
        self.lines.values().map(|line| line.waiters.len()).sum()
    }

    /// Pops of one group that wait for any partition of a queue of this shard's.
    pub(super) fn waiting(&self, queue: &str, group: &str) -> u64 {
        let line = self.lines.get(&(queue.into(), group.into()));
        line.map_or(0, |line| line.waiters.len() as u64)
    }

    fn of_queue(&self, queue: &str) -> Vec<(Name, Name)> {
        let from = self.lines.range((queue.into(), Name::default())..);
        from.take_while(|((q, _), _)| **q == *queue).map(|(name, _)| name.clone()).collect()
    }
}

impl<B: IoBuf> Shard<B> {
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn park(
        &mut self,
        now: Now,
        arrival: Arrival,
        queue: Name,
        group: Name,
        spec: ClaimSpec,
        until: Deadline,
        fx: &mut Effects<B>,
    ) {
        let task = arrival.task;
        if self.state.catalog.find(&queue).is_none() {
            return self.send(ShardId(arrival.entry), PeerMsg::Unparked { task, queue }, fx);
        }
        let knows = self.state.catalog.by_name(&queue).is_some_and(|q| q.knows_group(&group));
        if !knows && !self.is_changing(&queue) {
            // Its group was deleted since it looked, everywhere: it registers anew.
            return self.send(ShardId(arrival.entry), PeerMsg::Empty { task, queue }, fx);
        }
        if self.lines.lines.len() > IDLE_LINES_MAX {
            self.lines.lines.retain(|_, line| !line.waiters.is_empty());
        }
        let name = (queue, group);
        let shards = usize::from(self.config.shards);
        let line = self.lines.lines.entry(name.clone()).or_default();
        line.shards.resize(shards, Standing::default());
        line.waiters.insert(arrival, Waiter { spec, until });
        self.serve_line(now, &name, fx);
    }

    pub(super) fn unpark(&mut self, arrival: Arrival, queue: Name, group: Name) {
        if let Some(line) = self.lines.lines.get_mut(&(queue, group)) {
            line.waiters.remove(&arrival);
        }
    }

    /// A shard announces ready partitions; it is no longer armed.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn ready(
        &mut self,
        now: Now,
        from: ShardId,
        queue: Name,
        group: Name,
        count: u32,
        oldest_us: u64,
        fx: &mut Effects<B>,
    ) {
        let name = (queue, group);
        let Some(line) = self.lines.lines.get_mut(&name) else { return };
        line.shards[from.index()] = Standing { armed: false, available: count, oldest_us };
        self.serve_line(now, &name, fx);
    }

    fn serve_line(&mut self, now: Now, name: &(Name, Name), fx: &mut Effects<B>) {
        loop {
            let Some(line) = self.lines.lines.get_mut(name) else { return };
            let available = line.shards.iter().enumerate().filter(|(_, s)| s.available > 0);
            let Some(at) = available.min_by_key(|(_, s)| s.oldest_us).map(|(at, _)| at) else {
                break;
            };
            let Some((arrival, waiter)) = line.waiters.pop_first() else { return };
            if waiter.until.0 <= now.after_ms(limits::POP_LATE_MS).0 {
                // Its answer would come too late: its own shard times it out.
                continue;
            }
            let standing = &mut line.shards[at];
            standing.available = standing.available.saturating_sub(waiter.spec.partitions);
            standing.armed = standing.available == 0;
            let mode = ClaimMode::Parked { arm: standing.armed };
            let (queue, group) = name.clone();
            let msg = PeerMsg::Claim { arrival, queue, group, spec: waiter.spec, mode };
            self.send(ShardId(at as u16), msg, fx);
        }
        let Some(line) = self.lines.lines.get_mut(name) else { return };
        if line.waiters.is_empty() {
            return;
        }
        let mut arm: SmallVec<[ShardId; 8]> = SmallVec::new();
        for (at, standing) in line.shards.iter_mut().enumerate() {
            if !standing.armed && standing.available == 0 {
                standing.armed = true;
                arm.push(ShardId(at as u16));
            }
        }
        for to in arm {
            let (queue, group) = name.clone();
            self.send(to, PeerMsg::Arm { queue, group }, fx);
        }
    }

    /// A change of the queue is on its way to every shard. Whoever was armed before it may not
    /// have known the queue or the group, or forgets it with the old incarnation: all are armed
    /// anew, behind the change.
    pub(super) fn rearm_lines(&mut self, now: Now, queue: &str, fx: &mut Effects<B>) {
        for name in self.lines.of_queue(queue) {
            if let Some(line) = self.lines.lines.get_mut(&name) {
                line.shards.iter_mut().for_each(|standing| standing.armed = false);
                self.serve_line(now, &name, fx);
            }
        }
    }

    /// A group is gone on every shard: its waiters look again, and register.
    pub(super) fn requeue_line(&mut self, queue: &str, group: &str, fx: &mut Effects<B>) {
        let name: (Name, Name) = (queue.into(), group.into());
        let Some(line) = self.lines.lines.remove(&name) else { return };
        for arrival in line.waiters.into_keys() {
            let msg = PeerMsg::Empty { task: arrival.task, queue: name.0.clone() };
            self.send(ShardId(arrival.entry), msg, fx);
        }
    }

    /// The queue is gone: its waiters answer empty.
    pub(super) fn drop_lines(&mut self, queue: &str, fx: &mut Effects<B>) {
        for name in self.lines.of_queue(queue) {
            let Some(line) = self.lines.lines.remove(&name) else { continue };
            for arrival in line.waiters.into_keys() {
                let msg = PeerMsg::Unparked { task: arrival.task, queue: name.0.clone() };
                self.send(ShardId(arrival.entry), msg, fx);
            }
        }
    }
}

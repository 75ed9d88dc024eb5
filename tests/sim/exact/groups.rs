//! Changes of consumer groups, judged exactly.

use super::{Exact, LATE_US};
use crate::model::{Cursor, Group, Partition, Queue, Start};
use crate::world::Step;
use lanemq::base::hash::partition_hash;
use lanemq::model::command::{Command, GroupChange, GroupRequest, PopTarget, QUEUE_MODE, SeekTo};
use lanemq::model::reply::Reply;

impl Exact {
    pub(super) fn change_group(&mut self) -> Step {
        match self.work.prng.below(10) {
            0..=3 => self.seek(),
            4..=5 => self.seek_partition(),
            6..=7 => self.delete_group(),
            _ => self.subscribe(),
        }
    }

    fn seek_to(&mut self) -> SeekTo {
        let now_us = self.now_us();
        match self.work.prng.below(10) {
            0..=3 => SeekTo::End,
            4..=5 => SeekTo::Time(0),
            6 => SeekTo::Time(now_us),
            7 => SeekTo::Time(now_us + 1_000_000_000),
            _ => SeekTo::Time(now_us - self.work.prng.below(30_000_000) as i64),
        }
    }

    fn seek(&mut self) -> Step {
        let (queue, group, to) = (self.work.queue(), self.work.group(), self.seek_to());
        self.say(|| format!("seek {group} on {queue} to {to:?}"));
        let touched = self.model.queues.get_mut(&queue).map(|q| {
            let g = q.groups.entry(group.clone()).or_default();
            g.cursors = q.partitions.iter().map(|(name, p)| (name.clone(), at(p, to))).collect();
            // A partition that comes later holds nothing but what was stored after the seek.
            (g.start, g.sought) = (Some(Start::Oldest), true);
            q.partitions.len() as u64
        });
        let change = GroupChange::Seek(to);
        let request = GroupRequest { group: &group, queue: Some(&queue), partition: None, change };
        match self.command(Command::Group(request))? {
            Reply::Group(done)
                if done.partitions == touched.unwrap_or(0)
                    && done.queues.len() == usize::from(touched.is_some()) =>
            {
                self.rest()
            }
            other => Err(format!("a seek is answered {other:?}, not {touched:?}")),
        }
    }

    fn seek_partition(&mut self) -> Step {
        let (queue, group, to) = (self.work.queue(), self.work.group(), self.seek_to());
        let partition = self.work.partition();
        self.say(|| format!("seek {group} on {queue}/{partition} to {to:?}"));
        let q = self.model.queues.get_mut(&queue);
        let stored = q.and_then(|q| {
            let cursor = at(q.partitions.get(&partition)?, to);
            q.groups
                .entry(group.clone())
                .or_default()
                .cursors
                .insert(partition.clone(), cursor)
                .map_or(Some(()), |_| Some(()))
        });
        let change = GroupChange::Seek(to);
        let (group, queue, name) = (group.as_str(), Some(queue.as_str()), partition.as_str());
        let request = GroupRequest { group, queue, partition: Some(name), change };
        match self.command(Command::Group(request))? {
            Reply::Group(done) if done.partitions == u64::from(stored.is_some()) => self.rest(),
            other => Err(format!("a partition's seek is answered {other:?}, not {stored:?}")),
        }
    }

    fn delete_group(&mut self) -> Step {
        let group = self.work.group();
        let queue = self.work.prng.chance(60).then(|| self.work.queue());
        let registration = self.work.prng.chance(70);
        // Waiters of a deleted group register anew; which of several is first is a race.
        let waiting = self.waiters.values().filter(|w| w.request.group == group);
        let asked: Vec<_> = waiting
            .map(|w| {
                let pinned = matches!(w.request.target, PopTarget::Partition { .. });
                (w.request.subscription, w.request.conflation, pinned)
            })
            .collect();
        if asked.windows(2).any(|pair| pair[0] != pair[1]) {
            return Ok(());
        }
        self.say(|| format!("delete {group} on {queue:?}, registration {registration}"));
        let mut named = Vec::new();
        let mut least = 0;
        let queues = self.model.queues.iter_mut();
        for (name, q) in queues.filter(|(name, _)| queue.as_ref().is_none_or(|q| q == *name)) {
            let Some(g) = q.groups.get_mut(&group) else { continue };
            if g.registration.is_some() || g.sought || !g.cursors.is_empty() {
                named.push(name.clone());
            }
            least += g.cursors.len() as u64;
            forget(g, &group, registration);
        }
        let change = GroupChange::Delete { registration };
        let request =
            GroupRequest { group: &group, queue: queue.as_deref(), partition: None, change };
        let late = self.now_us() + LATE_US;
        let strangers: Vec<_> = self
            .waiters
            .values()
            .filter(|w| !w.excused && w.until_us > late && w.request.group == group)
            .map(|w| (w.request.clone(), w.since_us))
            .collect();
        for (request, since_us) in strangers {
            let now_us = self.now_us();
            let pinned = matches!(request.target, PopTarget::Partition { .. });
            if !pinned {
                self.model.register(now_us, &request);
            }
            self.model.pin(now_us, &request, since_us);
        }
        match self.command(Command::Group(request))? {
            Reply::Group(done)
                if done.partitions >= least && named.iter().all(|q| done.queues.contains(q)) =>
            {
                self.rest()
            }
            other => Err(format!("a deletion is answered {other:?}, not {named:?}, {least}")),
        }
    }

    fn subscribe(&mut self) -> Step {
        let group = self.work.group();
        // A claim of it that went back unseen may have left a cursor, which does not move.
        if self.unseen.contains(&group) {
            return Ok(());
        }
        let us = match self.work.prng.below(4) {
            0 => 0,
            1 => self.now_us() + 5_000_000,
            _ => self.now_us() - self.work.prng.below(20_000_000) as i64,
        };
        self.say(|| format!("subscribe {group} from {us}"));
        let mut named = Vec::new();
        for (name, q) in &mut self.model.queues {
            let Some(g) = q.groups.get_mut(&group) else { continue };
            let Some(registration) = &mut g.registration else { continue };
            registration.start = Start::From(us);
            if !g.sought {
                g.start = Some(Start::From(us));
            }
            named.push(name.clone());
        }
        let change = GroupChange::Subscribe(us);
        let request = GroupRequest { group: &group, queue: None, partition: None, change };
        match self.command(Command::Group(request))? {
            Reply::Group(done) if done.queues == named => self.rest(),
            other => Err(format!("a subscription is answered {other:?}, not {named:?}")),
        }
    }

    /// What the slowest reader of a queue owes, as its shards add it up.
    pub(super) fn unconsumed(&self, name: &str, q: &Queue) -> u64 {
        let shards = u64::from(self.world.shape.shards);
        let shard_of = |partition: &str| partition_hash(name, partition) % shards;
        let readers: Vec<&Group> = {
            let named =
                q.groups.iter().filter(|(name, g)| *name != QUEUE_MODE && g.start.is_some());
            let named: Vec<&Group> = named.map(|(_, g)| g).collect();
            if named.is_empty() { vec![&q.groups[QUEUE_MODE]] } else { named }
        };
        let owed = |g: &Group, shard: u64| {
            let here = q.partitions.iter().filter(|(name, _)| shard_of(name) == shard);
            here.map(|(name, p)| p.messages.len() as u64 - g.settled_to(name, p)).sum::<u64>()
        };
        let most = |shard| readers.iter().map(|g| owed(g, shard)).max().unwrap_or(0);
        (0..shards).map(most).sum()
    }
}

fn at(stored: &Partition, to: SeekTo) -> Cursor {
    let next = match to {
        SeekTo::End => stored.messages.len(),
        SeekTo::Time(us) => stored.messages.partition_point(|m| m.created_us < us),
    };
    Cursor::at(next as u64)
}

fn forget(group: &mut Group, name: &str, registration: bool) {
    (group.cursors, group.sought) = (Default::default(), false);
    if registration {
        group.registration = None;
    }
    group.start = match group.registration {
        Some(kept) => Some(kept.start),
        None => (name == QUEUE_MODE).then_some(Start::Oldest),
    };
}

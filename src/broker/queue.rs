//! Queues as one shard knows them: the replicated image, and this shard's part of partitions
//! and groups.

use std::collections::{BTreeMap, HashMap};

use super::group::Group;
use super::history::QueueTraffic;
use super::partition::Slot;
use crate::base::ids::SegmentId;
use crate::model::command::QUEUE_MODE;
use crate::model::peer::{GroupImage, GroupStart, Name, QueueImage};

/// One queue's part on this shard.
#[derive(Debug)]
pub struct Queue {
    /// That of the image, to be shared.
    pub name: Name,
    pub image: QueueImage,
    /// This shard's partitions of it, in order of creation.
    pub partitions: Vec<Slot>,
    /// By group slot. Slot 0 is queue mode.
    pub groups: Vec<Option<Group>>,
    /// Segment of its newest image record.
    pub segment: Option<SegmentId>,
    /// Segment of the first record of this incarnation. It stays as long as the queue does:
    /// replay takes the records of its partitions and groups only behind it.
    pub birth_segment: Option<SegmentId>,
    /// Retained messages and bytes.
    pub messages: u64,
    pub bytes: u64,
    pub dead_letters: u64,
    /// Where the retention sweep stands in `partitions`.
    pub retention_at: usize,
    pub(super) traffic: Box<QueueTraffic>,
    /// The newest epoch of a change of a group here.
    pub group_epoch: u64,
    /// At the queue's owner: groups that are gone, while a shard may not know it yet.
    pub gone: BTreeMap<String, u64>,
}

impl Queue {
    fn new(name: Name, image: QueueImage) -> Self {
        Self {
            name,
            image,
            partitions: Vec::new(),
            // Queue mode is a group that needs no registration and starts at the oldest message.
            groups: vec![Some(Group::new(QUEUE_MODE, Some(GroupStart::Oldest)))],
            segment: None,
            birth_segment: None,
            messages: 0,
            bytes: 0,
            dead_letters: 0,
            retention_at: 0,
            traffic: Box::default(),
            group_epoch: 0,
            gone: BTreeMap::new(),
        }
    }

    pub fn group_slot(&self, name: &str) -> Option<u32> {
        let at = self.groups.iter().position(|g| g.as_ref().is_some_and(|g| *g.name == *name))?;
        Some(at as u32)
    }

    pub fn group_slot_or_insert(&mut self, name: &str) -> u32 {
        self.group_slot(name).unwrap_or_else(|| {
            let mut group = Group::new(name, None);
            // Whatever was deleted here before, this group came later.
            group.cursors_epoch = self.group_epoch;
            self.groups.push(Some(group));
            self.groups.len() as u32 - 1
        })
    }

    /// A group as this shard has it.
    pub fn group_image(&self, name: &str) -> Option<GroupImage> {
        let group = self.group(self.group_slot(name)?)?;
        Some(GroupImage {
            queue: self.image.name.clone(),
            incarnation: self.image.incarnation,
            group: name.to_owned(),
            epoch: group.epoch,
            reset_epoch: group.reset_epoch,
            start: group.start,
            registration: group.registration,
        })
    }

    pub fn group(&self, slot: u32) -> Option<&Group> {
        self.groups.get(slot as usize)?.as_ref()
    }

    pub fn group_mut(&mut self, slot: u32) -> Option<&mut Group> {
        self.groups.get_mut(slot as usize)?.as_mut()
    }

    /// Whether a queue-wide pop of this group needs no registration first.
    pub fn knows_group(&self, name: &str) -> bool {
        name == QUEUE_MODE
            || self.groups.iter().flatten().any(|g| *g.name == *name && g.registration.is_some())
    }

    /// Messages the slowest reader has not settled: named groups if there are any, else queue
    /// mode; without any reader, everything.
    pub fn unconsumed(&self) -> u64 {
        let owed = |g: &Group| self.messages.saturating_sub(g.settled + g.passed_over);
        let named = self.groups.iter().skip(1).flatten().filter(|g| g.start.is_some());
        named.map(owed).max().unwrap_or_else(|| {
            self.groups.first().and_then(Option::as_ref).map_or(self.messages, owed)
        })
    }

    pub fn leased(&self) -> u64 {
        self.groups.iter().flatten().map(|g| g.leased).max().unwrap_or(0)
    }
}

/// All queues of a shard. Slots are not reused in a run, so a stale slot finds nothing.
#[derive(Debug)]
pub struct Catalog {
    queues: Vec<Option<Queue>>,
    names: HashMap<Name, u32, ahash::RandomState>,
}

impl Default for Catalog {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            names: HashMap::with_hasher(ahash::RandomState::with_seeds(5, 6, 7, 8)),
        }
    }
}

impl Catalog {
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub fn get(&self, slot: u32) -> Option<&Queue> {
        self.queues.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Queue> {
        self.queues.get_mut(slot as usize)?.as_mut()
    }

    pub fn by_name(&self, name: &str) -> Option<&Queue> {
        self.get(self.find(name)?)
    }

    /// The name of a queue, shared where the queue is known.
    pub fn queue_name(&self, name: &str) -> Name {
        self.by_name(name).map_or_else(|| name.into(), |queue| queue.name.clone())
    }

    /// The name of a group, shared where the queue knows the group.
    pub fn group_name(&self, queue: &str, name: &str) -> Name {
        let queue = self.by_name(queue);
        let group = queue.and_then(|queue| queue.group(queue.group_slot(name)?));
        group.map_or_else(|| name.into(), |group| group.name.clone())
    }

    pub fn insert(&mut self, image: QueueImage) -> u32 {
        let slot = self.queues.len() as u32;
        let name: Name = image.name.as_str().into();
        self.names.insert(name.clone(), slot);
        self.queues.push(Some(Queue::new(name, image)));
        slot
    }

    pub fn remove(&mut self, slot: u32) -> Option<Queue> {
        let queue = self.queues.get_mut(slot as usize)?.take()?;
        self.names.remove(queue.image.name.as_str());
        Some(queue)
    }

    /// Slots given out so far; those of deleted queues find nothing.
    pub fn slots(&self) -> u32 {
        self.queues.len() as u32
    }

    /// Queues in order of creation on this shard.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.queues.iter().enumerate().filter_map(|(i, q)| Some((i as u32, q.as_ref()?)))
    }

    /// All slots from `from` on, with the queue where there still is one.
    pub fn places_from(&self, from: u64) -> impl Iterator<Item = (u32, Option<&Queue>)> {
        let first = usize::try_from(from).unwrap_or(usize::MAX).min(self.queues.len());
        self.queues[first..].iter().zip(first..).map(|(queue, at)| (at as u32, queue.as_ref()))
    }

    /// The next live slot at or after `from`, wrapping once; for sweeps that go on next tick.
    pub fn next_slot(&self, from: u32) -> Option<u32> {
        let n = self.queues.len();
        (0..n)
            .map(|i| (from as usize + i) % n)
            .find(|i| self.queues[*i].is_some())
            .map(|i| i as u32)
    }
}

//! Changes of consumer groups that a client asks for: seek, deletion, a moved subscription.
//!
//! What concerns a whole queue is one record of the queue's owner, replicated like every change
//! of the catalog. A group that is changed on every queue is first looked for on every shard,
//! since a pinned pop leaves cursors that only its partition's shard knows. A seek of one
//! partition is one cursor record at that partition's shard.

use std::collections::{BTreeSet, VecDeque};

use smallvec::smallvec;

use super::effect::Effects;
use super::group::{Cursor, CursorKey, End};
use super::owner::next_image;
use super::queue::Queue;
use super::records::{self, GroupHere};
use super::shard::Shard;
use super::task::Task;
use super::turns::{Resource, Waiting};
use crate::base::buf::IoBuf;
use crate::base::hash::partition_hash;
use crate::base::ids::{LogPosition, ShardId, Token};
use crate::base::limits;
use crate::base::mutant::Mutant;
use crate::base::time::Now;
use crate::model::command::{GroupChange, GroupRequest, QUEUE_MODE, SeekTo};
use crate::model::error::Refusal;
use crate::model::peer::{
    CatalogChange, CatalogOutcome, GroupImage, GroupStart, PeerMsg, Subscribed, TaskId,
};
use crate::model::reply::{GroupChanged, Reply};

/// A change of a group at the shard of its client.
#[derive(Debug)]
pub(super) struct GroupTask {
    token: Token,
    group: String,
    change: GroupChange,
    /// Shards that have not said on which queues they know the group.
    unheard: usize,
    found: BTreeSet<String>,
    /// Queues whose owner is still to be asked, and how many were asked and have not answered.
    left: VecDeque<String>,
    asked: usize,
    done: GroupChanged,
    refusal: Option<Refusal>,
}

/// A seek of one partition, at that partition's shard.
#[derive(Debug)]
pub(super) struct PartitionSeek {
    pub from: ShardId,
    pub task: TaskId,
    pub queue: String,
    pub partition: String,
    pub group: String,
    pub to: SeekTo,
}

impl<B: IoBuf> Shard<B> {
    // ---- at the shard of the client

    pub(super) fn change_group(
        &mut self,
        request: &GroupRequest<'_>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        let (group, change) = (request.group.to_owned(), request.change);
        let done = GroupChanged { queues: Vec::new(), partitions: 0 };
        let mut task = GroupTask {
            token,
            group: group.clone(),
            change,
            unheard: 0,
            found: BTreeSet::new(),
            left: VecDeque::new(),
            asked: 0,
            done,
            refusal: None,
        };
        let queue = request.queue.map(str::to_owned);
        match (change, queue, request.partition) {
            (GroupChange::Seek(to), Some(queue), Some(partition)) => {
                let hash = partition_hash(&queue, partition) % u64::from(self.config.shards);
                task.left.push_back(queue.clone());
                let task = self.new_task(Task::Group(Box::new(task)));
                let partition = partition.to_owned();
                let msg = PeerMsg::SeekPartition { task, queue, partition, group, to };
                self.send(ShardId(hash as u16), msg, fx);
            }
            (GroupChange::Seek(_), Some(queue), None) => {
                task.left.push_back(queue);
                let task = self.new_task(Task::Group(Box::new(task)));
                self.ask_owners(task, fx);
            }
            (_, queue, _) => {
                task.unheard = usize::from(self.config.shards);
                let task = self.new_task(Task::Group(Box::new(task)));
                for shard in (0..self.config.shards).map(ShardId) {
                    let (group, queue) = (group.clone(), queue.clone());
                    self.send(shard, PeerMsg::FindGroup { task, group, queue }, fx);
                }
            }
        }
    }

    fn group_task(&mut self, task: TaskId) -> Option<&mut GroupTask> {
        match self.tasks.get_mut(&task) {
            Some(Task::Group(group)) => Some(group),
            _ => None,
        }
    }

    pub(super) fn group_found(
        &mut self,
        task: TaskId,
        result: Result<Vec<String>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(group) = self.group_task(task) else { return };
        group.unheard -= 1;
        match result {
            Ok(queues) => group.found.extend(queues),
            Err(refusal) => group.refusal = Some(refusal),
        }
        if group.unheard == 0 {
            group.left = std::mem::take(&mut group.found).into_iter().collect();
            self.ask_owners(task, fx);
        }
    }

    /// Asks the owners of the next queues, a few at a time; answers when none is left.
    fn ask_owners(&mut self, task: TaskId, fx: &mut Effects<B>) {
        loop {
            let Some(group) = self.group_task(task) else { return };
            if group.refusal.is_some() {
                group.left.clear();
            }
            if group.asked >= limits::GROUP_QUEUES_AT_ONCE {
                return;
            }
            let Some(queue) = group.left.pop_front() else { break };
            group.asked += 1;
            let (name, change) = (group.group.clone(), group.change);
            let owner = self.owner_of(&queue);
            self.send(owner, PeerMsg::ChangeGroup { task, queue, group: name, change }, fx);
        }
        if self.group_task(task).is_some_and(|group| group.asked == 0) {
            self.group_done(task);
        }
    }

    pub(super) fn group_changed(
        &mut self,
        task: TaskId,
        result: Result<CatalogOutcome, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(group) = self.group_task(task) else { return };
        group.asked -= 1;
        match result {
            Ok(CatalogOutcome::Group { queue, touched: Some(partitions) }) => {
                group.done.queues.push(queue);
                group.done.partitions += partitions;
            }
            Ok(_) => {}
            Err(refusal) => group.refusal = Some(refusal),
        }
        self.ask_owners(task, fx);
    }

    pub(super) fn partition_sought(&mut self, task: TaskId, result: Result<bool, Refusal>) {
        let Some(group) = self.group_task(task) else { return };
        match (result, group.left.pop_front()) {
            (Ok(true), Some(queue)) => {
                group.done = GroupChanged { queues: vec![queue], partitions: 1 };
            }
            (Ok(_), _) => {}
            (Err(refusal), _) => group.refusal = Some(refusal),
        }
        self.group_done(task);
    }

    fn group_done(&mut self, task: TaskId) {
        let Some(Task::Group(mut group)) = self.tasks.remove(&task) else { return };
        group.done.queues.sort_unstable();
        let reply = match group.refusal {
            Some(refusal) => Reply::Refused(refusal),
            None => Reply::Group(group.done),
        };
        self.reply_durable(group.token, reply);
    }

    // ---- at the queue's owner

    pub(super) fn change_group_owned(
        &mut self,
        now: Now,
        waiter: (ShardId, TaskId),
        queue: String,
        group: &str,
        change: GroupChange,
        fx: &mut Effects<B>,
    ) {
        let image = self.state.catalog.by_name(&queue).and_then(|known| {
            let mut image = next_image(now, known, group);
            changed(&mut image, change).then_some(image)
        });
        let (to, task) = waiter;
        match image {
            Some(image) => {
                let outcome = CatalogOutcome::Group { queue, touched: Some(0) };
                self.make_change(now, CatalogChange::Group(image), (to, task, outcome), fx);
            }
            None => {
                let outcome = CatalogOutcome::Group { queue: queue.clone(), touched: None };
                self.wait_for_newest(&queue, (to, task, outcome), fx);
            }
        }
    }

    /// A deletion has reached every shard. Pops that wait for the group come as strangers now:
    /// they register anew.
    pub(super) fn group_gone(&mut self, image: &GroupImage, fx: &mut Effects<B>) {
        let known = self.state.catalog.find(&image.queue);
        if let Some(queue) = known.and_then(|slot| self.state.catalog.get_mut(slot))
            && queue.gone.get(&image.group) == Some(&image.epoch)
        {
            queue.gone.remove(&image.group);
        }
        self.requeue_line(&image.queue, &image.group, fx);
    }

    // ---- at every shard

    /// Logs a group's image and makes it true here.
    pub(super) fn apply_group(
        &mut self,
        now: Now,
        image: &GroupImage,
        fx: &mut Effects<B>,
    ) -> Result<u64, Refusal> {
        let known = self.state.catalog.by_name(&image.queue);
        let known = known.and_then(|q| q.group(q.group_slot(&image.group)?));
        // What this shard's log holds so far lies before the seek, and nothing that comes.
        let fresh = GroupHere { cut: self.log.appended(), cursors_epoch: image.epoch };
        let here = match known.filter(|group| image.reset_epoch <= group.cursors_epoch) {
            Some(g) => GroupHere { cut: g.cut, cursors_epoch: g.cursors_epoch },
            None => fresh,
        };
        let forgotten = Mutant::SeekForgetsCut.active();
        let kept = GroupHere { cut: LogPosition::ZERO, ..here };
        let body = records::encode_group(image, if forgotten { kept } else { here });
        let at = self.append(records::GROUP, 0, &[&body])?.at.segment();
        let touched = self.state.install_group(image, here, at);
        let Some(slot) = self.state.catalog.find(&image.queue) else { return Ok(touched) };
        if self.owner_of(&image.queue) != self.config.shard
            && let Some(queue) = self.state.catalog.get_mut(slot)
        {
            queue.gone.clear();
        }
        self.pinned_look_again(&image.queue, &image.group);
        self.sweep(now, fx);
        let queue = self.state.catalog.get(slot);
        if let Some(group) = queue.and_then(|q| q.group_slot(&image.group)) {
            self.announce(now, slot, group, fx);
        }
        Ok(touched)
    }

    pub(super) fn find_group(
        &mut self,
        from: ShardId,
        task: TaskId,
        group: &str,
        queue: Option<&str>,
    ) {
        let knows = |queue: &Queue| {
            let known = queue.group_slot(group).and_then(|slot| queue.group(slot));
            known.is_some_and(|g| {
                let sought = matches!(g.start, Some(GroupStart::Seek(_)));
                g.registration.is_some() || sought || !g.cursors.is_empty()
            })
        };
        let queues = match queue {
            Some(name) => {
                let found = self.state.catalog.by_name(name).filter(|q| knows(q));
                found.map(|q| q.image.name.clone()).into_iter().collect()
            }
            None => {
                let known = self.state.catalog.iter().filter(|(_, queue)| knows(queue));
                known.map(|(_, queue)| queue.image.name.clone()).collect()
            }
        };
        self.send_durable(from, PeerMsg::GroupFound { task, result: Ok(queues) });
    }

    /// Puts one cursor where it shall stand, or waits for its turn where a transaction holds it.
    pub(super) fn seek_partition(&mut self, now: Now, seek: PartitionSeek, fx: &mut Effects<B>) {
        match self.sought_key(&seek) {
            Some(key) if self.is_reserved(key) => {
                let work = Waiting::Seek(Box::new(seek));
                self.stand_in_line(smallvec![Resource::Cursor(key)], work);
            }
            _ => self.seek_now(now, &seek, fx),
        }
    }

    pub(super) fn seek_now(&mut self, now: Now, seek: &PartitionSeek, fx: &mut Effects<B>) {
        let result = match self.sought_key(seek) {
            Some(key) => self.seek_one(now, key, seek.to, fx),
            None => Ok(false),
        };
        self.send_durable(seek.from, PeerMsg::PartitionSought { task: seek.task, result });
    }

    /// `None`: there is no such partition.
    fn sought_key(&mut self, seek: &PartitionSeek) -> Option<CursorKey> {
        let queue = self.state.catalog.find(&seek.queue)?;
        let slot = self.state.parts.find(queue, &seek.partition)?;
        let group = self.state.catalog.get_mut(queue)?.group_slot_or_insert(&seek.group);
        Some(CursorKey { queue, group, slot })
    }

    fn seek_one(
        &mut self,
        now: Now,
        key: CursorKey,
        to: SeekTo,
        fx: &mut Effects<B>,
    ) -> Result<bool, Refusal> {
        let slot = key.slot;
        let Some(stored) = self.state.parts.get(slot) else { return Ok(false) };
        let mut cursor = Cursor::at(match to {
            SeekTo::End => stored.next_offset,
            SeekTo::Time(us) => stored.first_created_from(us),
        });
        if let Some(group) = self.state.group_mut(key) {
            group.unlist(slot);
        }
        let old = self.state.cursor(key);
        let (segment, listed, seeks) =
            old.map_or((None, false, 0), |c| (c.segment, c.listed, c.seeks));
        (cursor.segment, cursor.listed, cursor.seeks) = (segment, listed, seeks.wrapping_add(1));
        let hold = old.and_then(|c| c.hold);
        let timer = old.and_then(|c| c.lease.as_ref()).and_then(|l| l.timer);
        let stored = self.store_cursor(key, cursor, Vec::new());
        if stored.is_ok() {
            self.clear_timer(hold);
            self.clear_timer(timer);
        }
        // Also where the log refused: it was taken off the list.
        self.make_ready(now, key, End::Back, fx);
        stored.map(|()| true)
    }
}

/// What a change makes of a group. False: there is nothing to change.
fn changed(image: &mut GroupImage, change: GroupChange) -> bool {
    match (change, &mut image.registration) {
        (GroupChange::Seek(to), _) => {
            image.reset_epoch = image.epoch;
            image.start = Some(GroupStart::Seek(match to {
                SeekTo::End => i64::MAX,
                SeekTo::Time(us) => us,
            }));
        }
        (GroupChange::Delete { registration: false }, Some(kept)) => {
            image.reset_epoch = image.epoch;
            image.start = Some(kept.subscribed.start());
        }
        (GroupChange::Delete { .. }, registration) => {
            image.reset_epoch = image.epoch;
            *registration = None;
            image.start = (image.group == QUEUE_MODE).then_some(GroupStart::Oldest);
        }
        (GroupChange::Subscribe(_), None) => return false,
        (GroupChange::Subscribe(us), Some(registration)) => {
            registration.subscribed = Subscribed::Timestamp(us);
            // A seek has put a cursor on every partition, and those do not move.
            if !matches!(image.start, Some(GroupStart::Seek(_))) {
                image.start = Some(GroupStart::From(us));
            }
        }
    }
    true
}

//! Queue-level state: each queue has one owner shard, which decides, logs and replicates every
//! change of its existence, options and group registrations.
//!
//! A change is made durable in the owner's log **before** any other shard hears of it: a message
//! stored anywhere under an incarnation implies that the owner's log knows that incarnation. It
//! is answered when the last shard has it durable. Changes reach each shard in the order the
//! owner made them.

use std::collections::BTreeMap;

use super::queue::Queue;
use super::records;
use super::shard::{Deferred, Shard};
use super::task::Task;
use crate::base::buf::IoBuf;
use crate::base::ids::{ShardId, Token};
use crate::base::time::Now;
use crate::base::uuid;
use crate::model::command::{ConfigureRequest, Subscription};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::options::{OptionsPatch, QueueOptions};
use crate::model::peer::{
    CatalogChange, CatalogOutcome, GroupImage, PeerMsg, QueueImage, Registration, Subscribed,
    TaskId,
};
use crate::model::reply::Reply;

use super::effect::Effects;

/// A change on its way to every shard.
#[derive(Debug)]
struct Change {
    change: CatalogChange,
    /// Shards that have not reported it durable.
    missing: u16,
    /// Partitions it touched, over the shards that have reported.
    partitions: u64,
    waiters: Vec<(ShardId, TaskId, CatalogOutcome)>,
}

/// The changes this shard is making as an owner.
#[derive(Default, Debug)]
pub(super) struct Owner {
    next_change: u64,
    changes: BTreeMap<u64, Change>,
    /// The newest unfinished change of a queue: who finds the queue waits for it.
    newest: BTreeMap<String, u64>,
}

impl<B: IoBuf> Shard<B> {
    // ---- at the shard of the client

    pub(super) fn configure(
        &mut self,
        request: &ConfigureRequest<'_>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        let task = self.new_task(Task::Catalog(token));
        let queue = request.queue.clone().into_owned();
        let owner = self.owner_of(&queue);
        let msg = PeerMsg::Configure { task, queue, patch: Box::new(request.options.clone()) };
        self.send(owner, msg, fx);
    }

    pub(super) fn delete_queue(&mut self, queue: &str, token: Token, fx: &mut Effects<B>) {
        let task = self.new_task(Task::Catalog(token));
        let owner = self.owner_of(queue);
        self.send(owner, PeerMsg::DeleteQueue { task, queue: queue.to_owned() }, fx);
    }

    pub(super) fn catalog_done(
        &mut self,
        now: Now,
        task: TaskId,
        result: Result<CatalogOutcome, Refusal>,
        fx: &mut Effects<B>,
    ) {
        match self.tasks.get(&task) {
            Some(Task::Push(_)) => self.push_queue_ready(now, task, result.err(), fx),
            Some(Task::Pop(_)) => self.pop_catalog_ready(now, task, result.err(), fx),
            Some(Task::Transaction(_)) => self.transaction_queue_ready(now, task, result.err(), fx),
            Some(Task::Catalog(token)) => {
                let token = *token;
                self.tasks.remove(&task);
                fx.reply(
                    token,
                    match result {
                        Ok(CatalogOutcome::Configured { id, options }) => {
                            Reply::Configured { queue_id: id, options }
                        }
                        Ok(CatalogOutcome::Deleted { existed }) => Reply::Deleted { existed },
                        Ok(CatalogOutcome::Done | CatalogOutcome::Group { .. }) => {
                            Reply::Deleted { existed: false }
                        }
                        Err(refusal) => Reply::Refused(refusal),
                    },
                );
            }
            Some(Task::Group(_)) => self.group_changed(task, result, fx),
            // A pop whose client is gone.
            _ => {}
        }
    }

    // ---- at the owner

    pub(super) fn ensure_queue(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        queue: &str,
        fx: &mut Effects<B>,
    ) {
        let waiter = (from, task, CatalogOutcome::Done);
        if self.state.catalog.find(queue).is_some() {
            self.wait_for_newest(queue, waiter, fx);
        } else {
            let image = self.new_image(now, queue, QueueOptions::implicit(queue));
            self.make_change(now, CatalogChange::Queue(image), waiter, fx);
        }
    }

    pub(super) fn configure_owned(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        queue: &str,
        patch: OptionsPatch,
        fx: &mut Effects<B>,
    ) {
        let stored = self.state.catalog.by_name(queue).map(|q| q.image.clone());
        let options = patch.apply(stored.as_ref().map(|image| &image.options));
        let image = match stored {
            Some(image) => QueueImage { options, ..image },
            None => self.new_image(now, queue, options),
        };
        let options = Box::new(image.options.clone());
        let outcome = CatalogOutcome::Configured { id: image.id, options };
        self.make_change(now, CatalogChange::Queue(image), (from, task, outcome), fx);
    }

    pub(super) fn delete_owned(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        queue: &str,
        fx: &mut Effects<B>,
    ) {
        let Some(incarnation) = self.state.catalog.by_name(queue).map(|q| q.image.incarnation)
        else {
            let waiter = (from, task, CatalogOutcome::Deleted { existed: false });
            return self.wait_for_newest(queue, waiter, fx);
        };
        let change = CatalogChange::QueueDeleted { name: queue.to_owned(), incarnation };
        let waiter = (from, task, CatalogOutcome::Deleted { existed: true });
        self.make_change(now, change, waiter, fx);
        self.drop_lines(queue, fx);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn register_group(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        queue: &str,
        group: &str,
        (subscription, conflation): (Subscription, bool),
        fx: &mut Effects<B>,
    ) {
        let waiter = (from, task, CatalogOutcome::Done);
        let Some(known) = self.state.catalog.by_name(queue) else {
            // Deleted since the pop saw it: whoever asked looks again, once its shard has heard
            // of the deletion. Before, it would ask again at once, and again.
            return self.wait_for_newest(queue, waiter, fx);
        };
        if known.knows_group(group) {
            return self.wait_for_newest(queue, waiter, fx);
        }
        let mut image = next_image(now, known, group);
        let subscribed = match subscription {
            Subscription::All => Subscribed::All,
            Subscription::New => Subscribed::New(now.wall_us),
            Subscription::From(us) => Subscribed::Timestamp(us),
        };
        // A seek may have said before where it starts.
        image.start = image.start.or(Some(subscribed.start()));
        let created_at_us = now.wall_us;
        image.registration = Some(Registration { subscribed, created_at_us, conflation });
        self.make_change(now, CatalogChange::Group(image), waiter, fx);
    }

    fn new_image(&mut self, now: Now, queue: &str, options: QueueOptions) -> QueueImage {
        let floor = u64::try_from(now.wall_us).unwrap_or(0);
        self.state.incarnation = (self.state.incarnation + 1).max(floor);
        QueueImage {
            name: queue.to_owned(),
            id: uuid::mint_v7(now.wall_us, &mut self.prng),
            incarnation: self.state.incarnation,
            created_at_us: now.wall_us,
            options,
        }
    }

    /// Answers once the newest change of this queue has reached every shard.
    pub(super) fn wait_for_newest(
        &mut self,
        queue: &str,
        waiter: (ShardId, TaskId, CatalogOutcome),
        fx: &mut Effects<B>,
    ) {
        let newest = self.owner.newest.get(queue);
        match newest.and_then(|id| self.owner.changes.get_mut(id)) {
            Some(change) => change.waiters.push(waiter),
            None => {
                let (to, task, outcome) = waiter;
                self.send(to, PeerMsg::CatalogDone { task, result: Ok(outcome) }, fx);
            }
        }
    }

    pub(super) fn make_change(
        &mut self,
        now: Now,
        change: CatalogChange,
        waiter: (ShardId, TaskId, CatalogOutcome),
        fx: &mut Effects<B>,
    ) {
        let partitions = match self.apply_change(now, &change, fx) {
            Ok(partitions) => partitions,
            Err(refusal) => {
                let (to, task, _) = waiter;
                return self.send(to, PeerMsg::CatalogDone { task, result: Err(refusal) }, fx);
            }
        };
        self.owner.next_change += 1;
        let id = self.owner.next_change;
        self.owner.newest.insert(queue_of(&change).to_owned(), id);
        let missing = self.config.shards - 1;
        let waiters = vec![waiter];
        self.owner.changes.insert(id, Change { change, missing, partitions, waiters });
        self.commit.push(self.log.appended(), Deferred::ChangeDurable(id));
    }

    /// Our own record of a change is durable: the others may hear of it.
    pub(super) fn change_durable(&mut self, now: Now, id: u64, fx: &mut Effects<B>) {
        let Some(change) = self.owner.changes.get(&id) else { return };
        let message = change.change.clone();
        let alone = change.missing == 0;
        for peer in self.others() {
            fx.send(peer, PeerMsg::Replicate { change_id: id, change: Box::new(message.clone()) });
        }
        self.rearm_lines(now, queue_of(&message), fx);
        if alone {
            self.change_complete(now, id, fx);
        }
    }

    pub(super) fn replicated(&mut self, now: Now, id: u64, partitions: u64, fx: &mut Effects<B>) {
        let Some(change) = self.owner.changes.get_mut(&id) else { return };
        change.missing -= 1;
        change.partitions += partitions;
        if change.missing == 0 {
            self.change_complete(now, id, fx);
        }
    }

    fn change_complete(&mut self, now: Now, id: u64, fx: &mut Effects<B>) {
        let Some(change) = self.owner.changes.remove(&id) else { return };
        let queue = queue_of(&change.change);
        if self.owner.newest.get(queue) == Some(&id) {
            self.owner.newest.remove(queue);
        }
        for (to, task, outcome) in change.waiters {
            let outcome = match outcome {
                CatalogOutcome::Group { queue, touched: Some(_) } => {
                    CatalogOutcome::Group { queue, touched: Some(change.partitions) }
                }
                other => other,
            };
            self.send(to, PeerMsg::CatalogDone { task, result: Ok(outcome) }, fx);
        }
        // Once more, for a shard that had no room for the change when it came.
        self.rearm_lines(now, queue_of(&change.change), fx);
        match &change.change {
            CatalogChange::Queue(image) => self.queue_appeared(now, image, fx),
            CatalogChange::Group(image) if image.is_gone() => self.group_gone(image, fx),
            CatalogChange::Group(_) | CatalogChange::QueueDeleted { .. } => {}
        }
    }

    /// A change of this queue is on its way to the other shards.
    pub(super) fn is_changing(&self, queue: &str) -> bool {
        self.owner.newest.contains_key(queue)
    }

    /// Whoever waits for a change that can no longer become durable is told.
    pub(super) fn fail_catalog_tasks(&mut self, refusal: &Refusal, fx: &mut Effects<B>) {
        for change in std::mem::take(&mut self.owner.changes).into_values() {
            for (to, task, _) in change.waiters {
                self.send(to, PeerMsg::CatalogDone { task, result: Err(refusal.clone()) }, fx);
            }
        }
        self.owner.newest.clear();
    }

    // ---- at every shard

    pub(super) fn replicate(
        &mut self,
        now: Now,
        owner: ShardId,
        change_id: u64,
        change: &CatalogChange,
        fx: &mut Effects<B>,
    ) {
        // Behind a change that still waits: a shard takes an owner's changes in their order.
        let stalled = !self.stalled.is_empty();
        let applied = if stalled { None } else { self.apply_change(now, change, fx).ok() };
        let Some(partitions) = applied else {
            let msg = PeerMsg::Replicate { change_id, change: Box::new(change.clone()) };
            return self.stalled.push_back((owner, msg));
        };
        self.send_durable(owner, PeerMsg::Replicated { change_id, partitions });
        if let CatalogChange::Queue(image) = change {
            self.queue_appeared(now, image, fx);
        }
    }

    /// Tries again what the log had no room for. The owner answers nobody until every shard has
    /// a change, so giving up would leave its client waiting for ever.
    pub(super) fn retry_stalled(&mut self, now: Now, fx: &mut Effects<B>) {
        for (from, msg) in std::mem::take(&mut self.stalled) {
            match msg {
                PeerMsg::Replicate { change_id, change } => {
                    self.replicate(now, from, change_id, &change, fx);
                }
                PeerMsg::CatalogSync { queues, groups } => {
                    self.catalog_sync(now, from, &queues, &groups, fx);
                }
                PeerMsg::Resolved { transactions } => self.resolved(now, from, transactions),
                other => unreachable!("{other:?} does not stall"),
            }
        }
    }

    /// Logs a change and makes it true here; says how many partitions a group's change touched.
    /// Nothing changes where the log refuses.
    pub(super) fn apply_change(
        &mut self,
        now: Now,
        change: &CatalogChange,
        fx: &mut Effects<B>,
    ) -> Result<u64, Refusal> {
        match change {
            CatalogChange::Queue(image) => {
                let body = records::encode_queue(image);
                let at = self.append(records::QUEUE, 0, &[&body])?.at.segment();
                let slot = self.state.install_queue(image, at);
                // Options may have ended a hold or changed what can be claimed.
                self.recheck_queue(now, slot, fx);
            }
            CatalogChange::QueueDeleted { name, incarnation } => {
                let body = records::encode_queue_deleted(name, *incarnation);
                self.append(records::QUEUE_DELETED, 0, &[&body])?;
                self.count_deleted(name, *incarnation);
                self.state.remove_queue(name, *incarnation);
                self.sweep(now, fx);
            }
            CatalogChange::Group(image) => return self.apply_group(now, image, fx),
        }
        Ok(0)
    }
}

fn queue_of(change: &CatalogChange) -> &str {
    match change {
        CatalogChange::Queue(image) => &image.name,
        CatalogChange::QueueDeleted { name, .. } => name,
        CatalogChange::Group(image) => &image.queue,
    }
}

/// The image of a group's next change, which so far changes nothing but the epoch.
pub(super) fn next_image(now: Now, queue: &Queue, group: &str) -> GroupImage {
    let floor = u64::try_from(now.wall_us).unwrap_or(0);
    let mut image = queue.group_image(group).unwrap_or_else(|| GroupImage {
        queue: queue.image.name.clone(),
        incarnation: queue.image.incarnation,
        group: group.to_owned(),
        epoch: 0,
        reset_epoch: 0,
        start: None,
        registration: None,
    });
    image.epoch = (queue.group_epoch + 1).max(floor);
    // A shard that has not heard that the group is gone begins it anew, too.
    image.reset_epoch = image.reset_epoch.max(queue.gone.get(group).copied().unwrap_or(0));
    image
}

/// The refusal of a request whose queue keeps vanishing under it.
pub(super) fn vanishing_queue() -> Refusal {
    Refusal::new(ErrorCode::Retry, "the queue was deleted under this request; try again")
}

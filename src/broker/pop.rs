//! Pop, seen from the shard of its client: where to look, waiting, and gathering what was
//! claimed. The claims themselves are made in `claim`.
//!
//! A pop that does not wait visits every shard, the first in rotation, until its budget is
//! spent. A pop that waits goes at once to the queue's owner (see `line`); a pinned one to its
//! partition's shard. A discovery pop does this for every queue with its labels under one id:
//! the first claim wins, later ones are given back.

use smallvec::{SmallVec, smallvec};

use super::autopilot::Asked;
use super::deadlines::DeadlineKey;
use super::effect::Effects;
use super::shard::{Event, Shard};
use super::task::Task;
use crate::base::buf::IoBuf;
use crate::base::hash::partition_hash;
use crate::base::ids::{LeaseId, ShardId, Token};
use crate::base::limits;
use crate::base::time::{Deadline, Now};
use crate::base::uuid;
use crate::model::command::{PopRequest, PopTarget, QUEUE_MODE, Subscription};
use crate::model::error::Refusal;
use crate::model::peer::{
    Arrival, ClaimMode, ClaimSpec, GivenBack, Name, PeerClaim, PeerMsg, PinnedPark, QueueImage,
    TaskId,
};
use crate::model::reply::{Autopilot, Claim, Conflation, PopReply, Reply};

/// What a pop looks at, owned.
#[derive(Clone, Debug)]
enum Target {
    Queue(Name),
    Partition { queue: Name, partition: Name },
    Labels { namespace: Name, task: Name },
}

/// A pop at the shard of its client.
#[derive(Debug)]
pub(super) struct PopTask<B> {
    token: Token,
    target: Target,
    group: Name,
    /// What is left of the budget.
    spec: ClaimSpec,
    subscription: Subscription,
    arrival: Arrival,
    until: Option<Deadline>,
    timer: Option<DeadlineKey>,
    conflation: bool,
    asks_autopilot: bool,
    /// What was chosen for it, to be told.
    autopilot: Option<Autopilot>,
    /// What it asks for is settled.
    budgeted: bool,
    /// Queue and group, by slot, that count it as under way.
    counted: Option<(u32, u32)>,
    /// Of a pop that does not wait.
    plan: Plan,
    /// Queues in whose lines it stands.
    parked: Queues,
    claims: Vec<Claim<B>>,
    refusal: Option<Refusal>,
}

/// Mostly one.
type Queues = SmallVec<[Name; 1]>;

/// The visits of a pop: where it does not wait, of each queue every shard; where it does, of its one
/// queue the first shard and the pop's own, before it stands in line.
#[derive(Default, Debug)]
struct Plan {
    queues: Queues,
    first: usize,
    /// Visits so far.
    made: usize,
}

impl Plan {
    fn next(&mut self, shards: u16, waits_at: Option<ShardId>) -> Option<(Name, ShardId)> {
        let shards = usize::from(shards);
        if let Some(here) = waits_at {
            let shard = [self.first, here.index()].get(self.made).copied()?;
            self.made = if self.first == here.index() { 2 } else { self.made + 1 };
            return Some((self.queues.first()?.clone(), ShardId(shard as u16)));
        }
        let queue = self.queues.get(self.made / shards)?.clone();
        let shard = (self.first + self.made) % shards;
        self.made += 1;
        Some((queue, ShardId(shard as u16)))
    }
}

impl<B> PopTask<B> {
    fn is_pinned(&self) -> bool {
        matches!(self.target, Target::Partition { .. })
    }
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn pop(
        &mut self,
        now: Now,
        request: &PopRequest<'_>,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        let catalog = &self.state.catalog;
        let target = match &request.target {
            PopTarget::Queue(queue) => Target::Queue(catalog.queue_name(queue)),
            PopTarget::Partition { queue, partition } => Target::Partition {
                queue: catalog.queue_name(queue),
                partition: (&**partition).into(),
            },
            PopTarget::Labels { namespace, task } => {
                Target::Labels { namespace: (&**namespace).into(), task: (&**task).into() }
            }
        };
        let group = match &target {
            Target::Queue(queue) | Target::Partition { queue, .. } => {
                catalog.group_name(queue, &request.group)
            }
            Target::Labels { .. } => (&*request.group).into(),
        };
        // What is not given is chosen once the group is known.
        let spec = ClaimSpec {
            lease_id: LeaseId(uuid::mint_v7(now.wall_us, &mut self.prng)),
            batch: request.batch.unwrap_or(0),
            partitions: request.partitions.unwrap_or(0),
            auto_ack: request.auto_ack,
            lease_seconds: request.lease_seconds,
            registered_only: request.conflation,
        };
        let until = request.wait_ms.map(|ms| now.after_ms(ms.min(limits::POP_TIMEOUT_MS_MAX)));
        let task = TaskId(self.new_id());
        let timer = until.map(|until| self.state.deadlines.insert(until, Event::PopTimesOut(task)));
        let arrival = Arrival { since_us: now.mono_us, entry: self.config.shard.0, task };
        let pop = PopTask {
            token,
            target,
            group,
            spec,
            subscription: request.subscription,
            arrival,
            until,
            timer,
            conflation: request.conflation,
            asks_autopilot: request.autopilot,
            autopilot: None,
            budgeted: false,
            counted: None,
            plan: Plan::default(),
            parked: Queues::new(),
            claims: Vec::new(),
            refusal: None,
        };
        self.history.total.pop_requests += 1;
        self.tasks.insert(task, Task::Pop(pop));
        self.pops.insert(token, task);
        self.pop_begin(now, task, fx);
    }

    fn pop_task(&mut self, task: TaskId) -> Option<&mut PopTask<B>> {
        match self.tasks.get_mut(&task) {
            Some(Task::Pop(pop)) => Some(pop),
            _ => None,
        }
    }

    /// Makes sure queue and registration exist, then looks.
    fn pop_begin(&mut self, now: Now, task: TaskId, fx: &mut Effects<B>) {
        let Some(pop) = self.pop_task(task) else { return };
        let (target, group) = (pop.target.clone(), pop.group.clone());
        let (subscription, conflation) = (pop.subscription, pop.conflation);
        let queues = match target {
            Target::Partition { queue, partition } => {
                let known = self.state.catalog.by_name(&queue);
                let registers = conflation && known.is_some_and(|q| !q.knows_group(&group));
                if !registers {
                    self.pop_budget(task, std::slice::from_ref(&queue));
                    return self.pop_pinned(task, queue, partition, fx);
                }
                smallvec![queue]
            }
            Target::Queue(queue) => {
                if self.state.catalog.find(&queue).is_none() {
                    let owner = self.owner_of(&queue);
                    let queue = queue.to_string();
                    return self.send(owner, PeerMsg::EnsureQueue { task, queue }, fx);
                }
                smallvec![queue]
            }
            Target::Labels { namespace, task } => self.queues_with(&namespace, &task),
        };
        // One registration at a time; its answer comes back here.
        let unknown = queues.iter().find(|queue| {
            self.state.catalog.by_name(queue).is_some_and(|q| !q.knows_group(&group))
        });
        if let Some(queue) = unknown {
            let owner = self.owner_of(queue);
            let (queue, group) = (queue.to_string(), group.to_string());
            let msg = PeerMsg::RegisterGroup { task, queue, group, subscription, conflation };
            return self.send(owner, msg, fx);
        }
        self.pop_budget(task, &queues);
        self.pop_look(now, task, queues, fx);
    }

    /// Settles how much the pop asks for, once.
    fn pop_budget(&mut self, task: TaskId, queues: &[Name]) {
        let Some(Task::Pop(pop)) = self.tasks.get_mut(&task) else { return };
        if std::mem::replace(&mut pop.budgeted, true) {
            return;
        }
        let asked = Asked {
            batch: (pop.spec.batch > 0).then_some(pop.spec.batch),
            partitions: (pop.spec.partitions > 0).then_some(pop.spec.partitions),
            autopilot: pop.asks_autopilot && !matches!(pop.target, Target::Labels { .. }),
            pinned: matches!(pop.target, Target::Partition { .. }),
        };
        let (chosen, counted) = self.state.catalog.begin_pop(asked, queues, &pop.group);
        (pop.spec.batch, pop.spec.partitions) = (chosen.batch, chosen.partitions);
        pop.counted = counted;
        pop.autopilot = chosen.told;
    }

    /// The queue or registration a pop asked for is there, or could not be made.
    pub(super) fn pop_catalog_ready(
        &mut self,
        now: Now,
        task: TaskId,
        refusal: Option<Refusal>,
        fx: &mut Effects<B>,
    ) {
        match refusal {
            Some(refusal) => self.pop_refused(task, refusal, fx),
            None => self.pop_begin(now, task, fx),
        }
    }

    fn queues_with(&self, namespace: &str, task: &str) -> Queues {
        let queues = self.state.catalog.iter().map(|(_, queue)| queue);
        queues
            .filter(|queue| has_labels(&queue.image, namespace, task))
            .map(|queue| queue.name.clone())
            .collect()
    }

    fn pop_pinned(&mut self, task: TaskId, queue: Name, partition: Name, fx: &mut Effects<B>) {
        let hash = partition_hash(&queue, &partition) % u64::from(self.config.shards);
        let to = ShardId(hash as u16);
        let Some(pop) = self.pop_task(task) else { return };
        let (arrival, group, spec) = (pop.arrival, pop.group.clone(), pop.spec.clone());
        let subscription = pop.subscription;
        let msg = match pop.until {
            Some(until) => {
                pop.parked.push(queue.clone());
                self.count_parked(&queue);
                PeerMsg::ParkPinned(Box::new(PinnedPark {
                    arrival,
                    queue,
                    partition,
                    group,
                    spec,
                    subscription,
                    until,
                }))
            }
            None => {
                let mode = ClaimMode::Pinned { partition, subscription };
                PeerMsg::Claim { arrival, queue, group, spec, mode }
            }
        };
        self.send(to, msg, fx);
    }

    fn pop_look(&mut self, now: Now, task: TaskId, queues: Queues, fx: &mut Effects<B>) {
        self.visit_turn = (self.visit_turn + 1) % usize::from(self.config.shards);
        let turn = self.visit_turn;
        let Some(pop) = self.pop_task(task) else { return };
        let (until, group) = (pop.until, pop.group.clone());
        // A line keeps those from a claim whose answer would come too late.
        let in_time = until.is_none_or(|until| until > now.after_ms(limits::POP_LATE_MS));
        let first = match &*queues {
            [queue] if in_time => self.first_look(now, queue, &group).map(ShardId::index),
            _ => None,
        };
        if until.is_none() || first.is_some() {
            let plan = Plan { queues, first: first.unwrap_or(turn), made: 0 };
            if let Some(pop) = self.pop_task(task) {
                pop.plan = plan;
            }
            return self.pop_visit(now, task, fx);
        }
        for queue in queues {
            self.pop_park(task, queue, fx);
        }
    }

    /// Stands in a queue's line, under the pop's first arrival.
    fn pop_park(&mut self, task: TaskId, queue: Name, fx: &mut Effects<B>) {
        let owner = self.owner_of(&queue);
        let Some(pop) = self.pop_task(task) else { return };
        let Some(until) = pop.until else { return };
        let parks = !pop.parked.contains(&queue);
        if parks {
            pop.parked.push(queue.clone());
        }
        let (arrival, group, spec) = (pop.arrival, pop.group.clone(), pop.spec.clone());
        if parks {
            self.count_parked(&queue);
        }
        let msg = PeerMsg::Park { arrival, queue, group, spec, until };
        self.send(owner, msg, fx);
    }

    fn pop_visit(&mut self, now: Now, task: TaskId, fx: &mut Effects<B>) {
        let (shards, here) = (self.config.shards, self.config.shard);
        let Some(pop) = self.pop_task(task) else { return };
        let spent = pop.spec.batch == 0 || pop.spec.partitions == 0 || pop.refusal.is_some();
        let waits_at = pop.until.map(|_| here);
        let next = if spent { None } else { pop.plan.next(shards, waits_at) };
        let (arrival, group, spec) = (pop.arrival, pop.group.clone(), pop.spec.clone());
        match next {
            Some((queue, shard)) if shard == here => {
                self.claim(now, arrival, queue, group, spec, ClaimMode::Visit, fx);
            }
            Some((queue, shard)) => {
                let mode = ClaimMode::Visit;
                self.send(shard, PeerMsg::Claim { arrival, queue, group, spec, mode }, fx);
            }
            None if waits_at.is_some() && !spent => {
                for queue in std::mem::take(&mut pop.plan.queues) {
                    self.pop_park(task, queue, fx);
                }
            }
            None => self.pop_finish(task, fx),
        }
    }

    // ---- what comes back

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn claimed_by_peer(
        &mut self,
        now: Now,
        task: TaskId,
        queue: &str,
        group: &str,
        lease_id: Option<LeaseId>,
        claims: Result<Vec<PeerClaim>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let claims = claims.map(|mut claims| {
            let mut out = self.spares.claims.take();
            out.extend(claims.drain(..).map(|claim| self.spares.received_claim(queue, claim)));
            self.spares.peer_claims.put(claims);
            out
        });
        self.claimed(now, task, group, lease_id, claims, fx);
    }

    /// Claims for a pop of ours, durable and with their data.
    pub(super) fn claimed(
        &mut self,
        now: Now,
        task: TaskId,
        group: &str,
        lease_id: Option<LeaseId>,
        claims: Result<Vec<Claim<B>>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(pop) = self.pop_task(task) else {
            // Its client is gone, or another claim won.
            if let Ok(claims) = claims {
                self.give_back(group, lease_id, &claims, fx);
            }
            return;
        };
        match claims {
            Ok(claims) => {
                let taken: u64 = claims.iter().map(|c| c.end.0 + 1 - c.start.0).sum();
                let taken = u32::try_from(taken).unwrap_or(u32::MAX);
                pop.spec.batch = pop.spec.batch.saturating_sub(taken);
                pop.spec.partitions = pop.spec.partitions.saturating_sub(claims.len() as u32);
                if pop.claims.is_empty() {
                    pop.claims = claims;
                } else {
                    pop.claims.extend(claims);
                }
            }
            Err(refusal) => pop.refusal = Some(refusal),
        }
        if pop.until.is_none() {
            self.pop_visit(now, task, fx);
        } else {
            self.pop_finish(task, fx);
        }
    }

    pub(super) fn claim_empty(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        queue: Name,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Pop(pop)) = self.tasks.get(&task) else { return };
        let (group, until, pinned) = (pop.group.clone(), pop.until, pop.is_pinned());
        let visits = !pop.plan.queues.is_empty();
        self.heard_of(now, from, (&queue, &group), None);
        match until {
            None => self.pop_visit(now, task, fx),
            // Too close to its deadline to be served: it times out on its own.
            Some(until) if until <= now.after_ms(limits::POP_LATE_MS) => {}
            Some(_) => {
                let known = self.state.catalog.by_name(&queue);
                if !pinned && known.is_some_and(|q| !q.knows_group(&group)) {
                    // Its group was deleted meanwhile: it is a first contact again.
                    return self.pop_begin(now, task, fx);
                }
                if visits {
                    return self.pop_visit(now, task, fx);
                }
                self.pop_park(task, queue, fx);
            }
        }
    }

    /// A queue the pop waited on is gone.
    pub(super) fn unparked(&mut self, task: TaskId, queue: &str, fx: &mut Effects<B>) {
        let Some(pop) = self.pop_task(task) else { return };
        let before = pop.parked.len();
        pop.parked.retain(|parked| **parked != *queue);
        if pop.parked.len() < before {
            self.count_unparked(queue);
        }
        let Some(pop) = self.pop_task(task) else { return };
        if pop.parked.is_empty() && !matches!(pop.target, Target::Labels { .. }) {
            self.pop_finish(task, fx);
        }
    }

    pub(super) fn pop_timed_out(&mut self, task: TaskId, fx: &mut Effects<B>) {
        if let Some(pop) = self.pop_task(task) {
            pop.timer = None;
            self.pop_finish(task, fx);
        }
    }

    pub(super) fn pop_gone(&mut self, task: TaskId, fx: &mut Effects<B>) {
        let Some(pop) = self.pop_task(task) else { return };
        let claims = std::mem::take(&mut pop.claims);
        let lease_id = (!pop.spec.auto_ack).then_some(pop.spec.lease_id);
        let group = pop.group.clone();
        self.give_back(&group, lease_id, &claims, fx);
        self.pop_finish(task, fx);
    }

    /// All that wait or visit, in the order of their tokens.
    pub(super) fn open_pops(&self) -> Vec<TaskId> {
        let mut pops: Vec<_> = self.pops.iter().collect();
        pops.sort_unstable();
        pops.into_iter().map(|(_, task)| *task).collect()
    }

    /// A queue was made: discovery pops that wait for its labels stand in its line too, and
    /// pinned ones that want conflation register.
    pub(super) fn queue_appeared(&mut self, now: Now, image: &QueueImage, fx: &mut Effects<B>) {
        for task in self.open_pops() {
            let Some(pop) = self.pop_task(task) else { continue };
            let looks = match &pop.target {
                Target::Labels { namespace, task: label } => {
                    has_labels(image, namespace, label)
                        && !pop.parked.iter().any(|parked| **parked == *image.name)
                }
                // It can register only now.
                Target::Partition { queue, .. } => pop.conflation && **queue == *image.name,
                Target::Queue(_) => false,
            };
            if pop.until.is_some() && looks {
                self.pop_begin(now, task, fx);
            }
        }
    }

    fn pop_refused(&mut self, task: TaskId, refusal: Refusal, fx: &mut Effects<B>) {
        let Some(pop) = self.pop_remove(task, fx) else { return };
        fx.reply(pop.token, Reply::Refused(refusal));
    }

    /// Takes the pop out of every line and table.
    fn pop_remove(&mut self, task: TaskId, fx: &mut Effects<B>) -> Option<PopTask<B>> {
        let Some(Task::Pop(pop)) = self.tasks.remove(&task) else { return None };
        self.pops.remove(&pop.token);
        self.clear_timer(pop.timer);
        pop.counted.into_iter().for_each(|counted| self.state.catalog.end_pop(counted));
        for queue in &pop.parked {
            self.count_unparked(queue);
            let (arrival, queue, group) = (pop.arrival, queue.clone(), pop.group.clone());
            if let Target::Partition { partition, .. } = &pop.target {
                let hash = partition_hash(&queue, partition) % u64::from(self.config.shards);
                let partition = partition.clone();
                let msg = PeerMsg::UnparkPinned { arrival, queue, partition };
                self.send(ShardId(hash as u16), msg, fx);
            } else {
                let owner = self.owner_of(&queue);
                self.send(owner, PeerMsg::Unpark { arrival, queue, group }, fx);
            }
        }
        Some(pop)
    }

    fn pop_finish(&mut self, task: TaskId, fx: &mut Effects<B>) {
        let Some(pop) = self.pop_remove(task, fx) else { return };
        self.count_pop(&pop.target, &pop.claims);
        let conflation = self.conflation_of(&pop);
        if let (Some(refusal), true) = (pop.refusal, pop.claims.is_empty()) {
            return self.reply_durable(pop.token, Reply::Refused(refusal));
        }
        let queue = match pop.target {
            Target::Queue(queue) | Target::Partition { queue, .. } => queue,
            Target::Labels { .. } => Name::default(),
        };
        let leased = !pop.spec.auto_ack && !pop.claims.is_empty();
        let reply = PopReply {
            queue: self.spares.texts.text(&queue),
            group: self.spares.texts.text(&pop.group),
            lease_id: leased.then_some(pop.spec.lease_id),
            claims: pop.claims,
            autopilot: pop.autopilot,
            conflation,
        };
        self.reply_durable(pop.token, Reply::Pop(reply));
    }

    /// Counts an answered pop for its queue. One by labels counts where it found something.
    fn count_pop(&mut self, target: &Target, claims: &[Claim<B>]) {
        let empty = u64::from(claims.is_empty());
        self.history.total.pop_empty += empty;
        let queue = match target {
            Target::Queue(queue) | Target::Partition { queue, .. } => Some(&**queue),
            Target::Labels { .. } => claims.first().map(|claim| &*claim.queue),
        };
        if let Some(slot) = queue.and_then(|queue| self.state.catalog.find(queue)) {
            self.count_queue(slot, |t| {
                t.pop_requests += 1;
                t.pop_empty += empty;
            });
        }
    }

    /// What the answer says of conflation: the policy its group has stored on what it looked at.
    fn conflation_of(&self, pop: &PopTask<B>) -> Conflation {
        if *pop.group == *QUEUE_MODE {
            return Conflation::Off;
        }
        let stored = |queue: &str| {
            let queue = self.state.catalog.by_name(queue)?;
            Some(queue.group(queue.group_slot(&pop.group)?)?.registration?.conflation)
        };
        let stored = match &pop.target {
            Target::Queue(queue) | Target::Partition { queue, .. } => stored(queue),
            Target::Labels { namespace, task } if pop.claims.is_empty() => {
                let queues = self.queues_with(namespace, task);
                queues.iter().filter_map(|queue| stored(queue)).max()
            }
            Target::Labels { .. } => pop.claims.iter().filter_map(|c| stored(&c.queue)).max(),
        };
        match (stored, pop.conflation) {
            (Some(true), _) | (None, true) => Conflation::On,
            (Some(false), true) => Conflation::Refused,
            (Some(false) | None, false) => Conflation::Off,
        }
    }

    /// Claims nobody received go back to the shards they came from.
    pub(super) fn give_back(
        &mut self,
        group: &str,
        lease_id: Option<LeaseId>,
        claims: &[Claim<B>],
        fx: &mut Effects<B>,
    ) {
        for claim in claims {
            let Some(to) = claim.partition_id.shard() else { continue };
            let given = GivenBack {
                partition_id: claim.partition_id,
                since: claim.since,
                start: claim.start,
                end: claim.end,
                epoch: claim.epoch,
            };
            let msg = PeerMsg::GiveBack {
                queue: self.state.catalog.queue_name(&claim.queue),
                group: self.state.catalog.group_name(&claim.queue, group),
                lease_id,
                claims: vec![given],
            };
            self.send(to, msg, fx);
        }
    }
}

fn has_labels(image: &QueueImage, namespace: &str, task: &str) -> bool {
    (namespace.is_empty() || image.options.namespace == namespace)
        && (task.is_empty() || image.options.task == task)
}

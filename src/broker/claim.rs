//! Claims, at the shard of the partition: taking messages for a pop, leasing them, reading them.
//!
//! **The claim is made in the core first; its lease record is durable before the reply leaves.**
//! The record and the data's reads go out together. A pop that commits at delivery reserves its
//! partitions in memory, reads, and only then moves the cursors: what cannot be read is not
//! acked.

use std::rc::Rc;

use smallvec::SmallVec;

use super::effect::Effects;
use super::group::{Claimable, Cursor, CursorKey, End, Group, Lease, claimable};
use super::partition::BatchRef;
use super::records::{self, LeaseRecord};
use super::shard::{Deferred, ReadUse, Shard};
use super::turns::{Resource, Resources, Waiting};
use crate::base::buf::{Gather, IoBuf};
use crate::base::ids::{LeaseId, Offset, PartitionId, ShardId};
use crate::base::limits;
use crate::base::mutant::Mutant;
use crate::base::time::{Deadline, Now};
use crate::log::ReadError;
use crate::model::command::Subscription;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{BATCH_HEAD_BYTES, BatchHead};
use crate::model::peer::{Arrival, ClaimMode, ClaimSpec, GivenBack, Name, PeerMsg, TaskId};
use crate::model::reply::Claim;
use crate::model::traffic::Traffic;

/// A pop's claims on this shard, until they are durable and their data is here.
#[derive(Debug)]
pub(super) struct ClaimJob<B> {
    to: ShardId,
    task: TaskId,
    queue: Name,
    group: Name,
    spec: ClaimSpec,
    claims: Vec<Claiming<B>>,
    missing: usize,
    /// The first read that failed.
    failure: Option<Refusal>,
}

#[derive(Debug)]
pub(super) struct Claiming<B> {
    key: CursorKey,
    id: PartitionId,
    partition: String,
    since: Offset,
    start: Offset,
    end: Offset,
    epoch: u64,
    attempt: u32,
    batches: SmallVec<[BatchRef; 2]>,
    /// Bodies of `batches`, as they come; empty until then.
    bodies: Vec<Gather<B>>,
    unreadable: bool,
}

/// What can be taken of one partition.
struct Take {
    start: Offset,
    end: Offset,
    batches: SmallVec<[BatchRef; 2]>,
    bytes: usize,
}

impl<B: IoBuf> Shard<B> {
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn claim(
        &mut self,
        now: Now,
        arrival: Arrival,
        queue: Name,
        group: Name,
        spec: ClaimSpec,
        mode: ClaimMode,
        fx: &mut Effects<B>,
    ) {
        let arm = mode == ClaimMode::Parked { arm: true };
        if matches!(mode, ClaimMode::Parked { .. }) {
            self.promise_kept(&queue, &group);
        }
        if !self.try_claim(now, arrival, &queue, &group, spec, &mode, fx) {
            self.counters.empty_claims += u64::from(matches!(mode, ClaimMode::Parked { .. }));
            let msg = PeerMsg::Empty { task: arrival.task, queue: queue.clone() };
            // Emptiness is an effect of what others took: it waits for that to be durable.
            self.send_durable(ShardId(arrival.entry), msg);
        }
        if arm {
            self.arm(now, &queue, &group, fx);
        }
    }

    /// Claims what there is. False: nothing, and nobody has been told.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn try_claim(
        &mut self,
        now: Now,
        arrival: Arrival,
        queue: &Name,
        group: &Name,
        spec: ClaimSpec,
        mode: &ClaimMode,
        fx: &mut Effects<B>,
    ) -> bool {
        self.counters.claims += 1;
        let Some(queue_slot) = self.state.catalog.find(queue) else { return false };
        let knows = |queue: &super::queue::Queue| queue.knows_group(group);
        if spec.registered_only && !self.state.catalog.get(queue_slot).is_some_and(knows) {
            return false;
        }
        let pinned = match mode {
            ClaimMode::Pinned { partition, subscription } => {
                let since_us = now.wall_at(Deadline(arrival.since_us));
                match self.pin(since_us, queue_slot, group, partition, *subscription) {
                    Some(key) => Some(key),
                    None => return false,
                }
            }
            _ => None,
        };
        let Some(group_slot) = self.state.catalog.get(queue_slot).and_then(|q| q.group_slot(group))
        else {
            return false;
        };
        let mut job = ClaimJob {
            to: ShardId(arrival.entry),
            task: arrival.task,
            queue: queue.clone(),
            group: group.clone(),
            spec,
            claims: self.spares.claimings.take(),
            missing: 0,
            failure: None,
        };
        match pinned {
            Some(key) => {
                let batch = job.spec.batch;
                self.claim_one(now, key, &mut job, batch, fx);
            }
            None => self.claim_ready(now, queue_slot, group_slot, &mut job, fx),
        }
        if job.claims.is_empty() && job.failure.is_none() {
            self.spares.claimings.put(job.claims);
            return false;
        }
        self.fetch(now, job, fx);
        true
    }

    /// Takes partitions off the ready list until the budget is spent.
    fn claim_ready(
        &mut self,
        now: Now,
        queue: u32,
        group: u32,
        job: &mut ClaimJob<B>,
        fx: &mut Effects<B>,
    ) {
        let (mut left, mut bytes) = (job.spec.batch, 0);
        while left > 0 && job.claims.len() < job.spec.partitions as usize {
            if bytes >= limits::POP_BYTES_MAX || job.failure.is_some() {
                break;
            }
            let Some(slot) = self.next_ready(now, queue, group) else { break };
            let key = CursorKey { queue, group, slot };
            self.state.forget_outdated(key);
            bytes += self.claim_one(now, key, job, left, fx);
            let taken = job.claims.iter().map(|c| c.end.0 + 1 - c.start.0).sum::<u64>();
            left = job.spec.batch.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        }
    }

    /// Claims up to `batch` messages of one partition and returns their bytes. Leaves the job as
    /// it was when there is nothing to take.
    fn claim_one(
        &mut self,
        now: Now,
        key: CursorKey,
        job: &mut ClaimJob<B>,
        batch: u32,
        fx: &mut Effects<B>,
    ) -> usize {
        let Some(cursor) = self.state.cursor(key).cloned() else { return 0 };
        if cursor.is_leased(now) || self.is_reserved(key) {
            return 0;
        }
        let Some(take) = self.take(now, key, cursor.next, batch) else {
            if self.skip_to_tail(key, &cursor) {
                return 0;
            }
            // A window closed again over a partition that stands in the list: out of it, so
            // that the end of the hold is waited for and wakes a pinned pop too.
            if let Some(group) = self.state.group_mut(key) {
                group.unlist(key.slot);
            }
            self.make_ready(now, key, End::Back, fx);
            return 0;
        };
        let (leased, attempt) = self.leased(now, key, cursor, &take, &job.spec);
        let timer = leased.lease.as_ref().and_then(|l| l.timer);
        let stored = if job.spec.auto_ack || Mutant::LeaseNotDurable.active() {
            self.state.put_cursor(key, leased);
            Ok(())
        } else {
            self.store_cursor(key, leased, Vec::new())
        };
        if let Err(refusal) = stored {
            self.clear_timer(timer);
            self.make_ready(now, key, End::Front, fx);
            job.failure = Some(refusal);
            return 0;
        }
        if let Some(group) = self.state.group_mut(key) {
            group.unlist(key.slot);
        }
        let partition = self.state.parts.get(key.slot).expect("a cursor's partition lives");
        let group = self.state.catalog.get(key.queue).and_then(|q| q.group(key.group));
        let cursor = self.state.cursor(key);
        let conflates = group.is_some_and(Group::conflates);
        let mut bodies = self.spares.gathers.take();
        bodies.resize_with(take.batches.len(), Gather::default);
        job.claims.push(Claiming {
            epoch: group.zip(cursor).map_or(0, |(group, cursor)| group.claim_epoch(cursor)),
            key,
            id: self.state.id_of(key.slot),
            partition: self.spares.texts.text(&partition.name),
            since: cursor.filter(|_| conflates).map_or(take.start, |cursor| cursor.next),
            start: take.start,
            end: take.end,
            attempt,
            bodies,
            batches: take.batches,
            unreadable: false,
        });
        take.bytes
    }

    /// The first messages of a partition a group may have, up to `batch` of them; of a
    /// conflating group the last one alone.
    fn take(&self, now: Now, key: CursorKey, next: Offset, batch: u32) -> Option<Take> {
        let partition = self.state.parts.get(key.slot)?;
        let queue = self.state.catalog.get(key.queue)?;
        let options = &queue.image.options;
        let Claimable::Yes { from, to } = claimable(partition, next, options, now) else {
            return None;
        };
        let from = if self.conflates(key) { Offset(to.0 - 1) } else { from };
        let to = to.min(Offset(from.0 + u64::from(batch)));
        let mut take = Take { start: from, end: from, batches: SmallVec::new(), bytes: 0 };
        for stored in partition.batches_between(from, Offset(to.0 - 1)) {
            if take.bytes >= limits::POP_BYTES_MAX {
                break;
            }
            take.bytes += stored.bytes as usize;
            take.batches.push(*stored);
            take.end = Offset(stored.end().min(to).0 - 1);
        }
        (!take.batches.is_empty()).then_some(take)
    }

    fn conflates(&self, key: CursorKey) -> bool {
        let queue = self.state.catalog.get(key.queue);
        queue.and_then(|q| q.group(key.group)).is_some_and(Group::conflates)
    }

    /// Retention has removed all that a cursor stood before: it moves to the tail, so that it
    /// tells what can still come. A log that refuses leaves it for the next claim.
    fn skip_to_tail(&mut self, key: CursorKey, cursor: &Cursor) -> bool {
        let Some(partition) = self.state.parts.get(key.slot) else { return false };
        let tail = partition.next_offset;
        if partition.log_start < tail || cursor.next >= tail || !cursor.is_written() {
            return false;
        }
        let mut moved = cursor.clone();
        moved.next = tail;
        let timer = moved.lease.take().and_then(|lease| lease.timer);
        if self.store_cursor(key, moved, Vec::new()).is_ok() {
            self.clear_timer(timer);
        }
        if let Some(group) = self.state.group_mut(key) {
            group.unlist(key.slot);
        }
        true
    }

    /// The cursor with a lease over what was taken, and the delivery attempt this is.
    fn leased(
        &mut self,
        now: Now,
        key: CursorKey,
        mut cursor: Cursor,
        take: &Take,
        spec: &ClaimSpec,
    ) -> (Cursor, u32) {
        let options = self.state.catalog.get(key.queue).map(|q| q.image.options.lease_seconds);
        let seconds = spec.lease_seconds.or(options).unwrap_or(limits::LEASE_SECONDS_DEFAULT);
        let length_us = u64::from(seconds.clamp(1, limits::LEASE_SECONDS_MAX)) * 1_000_000;
        let old_timer = cursor.lease.as_ref().and_then(|l| l.timer);
        self.clear_timer(old_timer);
        let hold = cursor.hold.take();
        self.clear_timer(hold);
        let before = (cursor.attempt_offset, cursor.attempt_count);
        let again = cursor.attempt_offset == take.start && cursor.attempt_count > 0;
        let attempt = if again && !spec.auto_ack { cursor.attempt_count + 1 } else { 1 };
        (cursor.attempt_offset, cursor.attempt_count) = (take.start, attempt);
        let conflating = self.conflates(key);
        let expires = now.after_us(length_us);
        let reserved = spec.auto_ack;
        let timer = (!reserved).then(|| self.lease_timer(key, expires));
        let mut lease = self.state.spare_leases.take();
        let fresh = Rc::get_mut(&mut lease).expect("what is kept has no other holder");
        *fresh = Lease {
            record: LeaseRecord {
                id: spec.lease_id,
                first: take.start,
                end: take.end,
                granted_us: now.wall_us,
                length_us,
                conflating,
            },
            expires: if reserved { Deadline::NEVER } else { expires },
            timer,
            reserved,
            attempt_before: before,
            ids: std::mem::take(&mut fresh.ids),
        };
        cursor.lease = Some(lease);
        (cursor, attempt)
    }

    /// The cursor of a pinned pop, seeded by its own parameters where its group never met the
    /// partition and is not registered. `None`: no such partition, or nothing in it for it yet.
    /// `New` counts from when the pop came, `since_us`: what it waited for may be older than now.
    fn pin(
        &mut self,
        since_us: i64,
        queue: u32,
        group: &str,
        partition: &str,
        subscription: Subscription,
    ) -> Option<CursorKey> {
        let slot = self.state.parts.find(queue, partition)?;
        let group = self.state.catalog.get_mut(queue)?.group_slot_or_insert(group);
        let key = CursorKey { queue, group, slot };
        self.state.forget_outdated(key);
        if self.state.cursor(key).is_some() {
            return Some(key);
        }
        let stored = self.state.parts.get(slot)?;
        let registered = self.state.catalog.get(queue)?.group(group)?;
        let next = if registered.start.is_some() {
            registered.first_contact(stored)?
        } else {
            match subscription {
                Subscription::All => stored.log_start,
                Subscription::New => stored.first_created_from(since_us),
                Subscription::From(us) => stored.first_created_from(us),
            }
        };
        let seeded = Cursor::at(next);
        if registered.start.is_none() {
            // Its start comes from this one request, so it must outlive a restart.
            self.store_cursor(key, seeded, Vec::new()).ok()?;
        } else {
            self.state.put_cursor(key, seeded);
        }
        Some(key)
    }

    // ---- data

    fn fetch(&mut self, now: Now, mut job: ClaimJob<B>, fx: &mut Effects<B>) {
        let id = self.new_id();
        for at in 0..job.claims.len() {
            for batch in 0..job.claims[at].batches.len() {
                let stored = job.claims[at].batches[batch];
                let read = self.new_id();
                match self.log.read(stored.at, stored.bytes, read, &mut self.io) {
                    Some(body) => job.claims[at].bodies[batch] = body,
                    None => {
                        self.reads.insert(read, ReadUse::Claim { job: id, claim: at, batch });
                        job.missing += 1;
                    }
                }
            }
        }
        if job.missing == 0 {
            self.claim_fetched(now, job, fx);
        } else {
            self.claim_jobs.insert(id, job);
        }
    }

    pub(super) fn claim_read(
        &mut self,
        now: Now,
        job: u64,
        claim: usize,
        batch: usize,
        result: Result<Gather<B>, ReadError>,
        fx: &mut Effects<B>,
    ) {
        let Some(waiting) = self.claim_jobs.get_mut(&job) else { return };
        waiting.missing -= 1;
        let claiming = &mut waiting.claims[claim];
        match result {
            Ok(body) => claiming.bodies[batch] = body,
            Err(error) => {
                claiming.unreadable = true;
                let text = format!(
                    "queue {}, partition {}: offsets {} to {} cannot be read: {error}",
                    waiting.queue, claiming.partition, claiming.start.0, claiming.end.0
                );
                let (id, first, last) = (claiming.id, claiming.start, claiming.end);
                self.inspection.note_damage(id, first, last, error.to_string());
                waiting.failure = Some(Refusal::new(ErrorCode::Internal, text));
            }
        }
        if waiting.missing == 0
            && let Some(job) = self.claim_jobs.remove(&job)
        {
            self.claim_fetched(now, job, fx);
        }
    }

    /// All reads have ended: release what could not be read, commit at delivery what was asked
    /// to be, and answer once it is durable.
    fn claim_fetched(&mut self, now: Now, mut job: ClaimJob<B>, fx: &mut Effects<B>) {
        let mut claims = std::mem::take(&mut job.claims);
        claims.retain(|claiming| self.holds_good(now, claiming, &mut job, fx));
        job.claims = claims;
        if job.spec.auto_ack {
            self.deliveries_ended();
        }
        self.commit.push(self.log.appended(), Deferred::Claimed(job));
    }

    /// Makes a claim good whose reads have ended. False: it was given back.
    fn holds_good(
        &mut self,
        now: Now,
        claiming: &Claiming<B>,
        job: &mut ClaimJob<B>,
        fx: &mut Effects<B>,
    ) -> bool {
        let lease_id = job.spec.lease_id;
        if claiming.unreadable {
            self.release_claim(now, claiming.key, lease_id, claiming.start, fx);
            return false;
        }
        if !self.inspection.damages.is_empty() {
            self.inspection.damages.remove(&claiming.id);
        }
        if !job.spec.auto_ack {
            self.remember_lease_ids(claiming, lease_id);
            return true;
        }
        match self.commit_delivered(now, claiming, lease_id, fx) {
            Ok(()) => true,
            Err(refusal) => {
                job.failure = Some(refusal);
                false
            }
        }
    }

    /// Keeps the fingerprints of leased messages, so that acks find their offsets in memory.
    fn remember_lease_ids(&mut self, claiming: &Claiming<B>, lease_id: LeaseId) {
        let lease = self.state.cursor_mut(claiming.key).and_then(|c| c.lease.as_mut());
        let Some(lease) = lease.filter(|l| l.record.id == lease_id) else { return };
        let ids = &mut Rc::make_mut(lease).ids;
        ids.clear();
        for (stored, body) in claiming.batches.iter().zip(&claiming.bodies) {
            let body = body.contiguous();
            // Without a table there are no ids: those of some messages would stand for all.
            let Some(table) = records::id_table(&body, stored.count) else { return ids.clear() };
            let offsets = stored.base.0..;
            ids.extend(
                offsets
                    .zip(table)
                    .filter(|(offset, _)| (claiming.start.0..=claiming.end.0).contains(offset))
                    .map(|(_, entry)| records::table_fingerprint(entry)),
            );
        }
    }

    /// Moves the cursor past what is about to be delivered; no lease, no attempt.
    fn commit_delivered(
        &mut self,
        now: Now,
        claiming: &Claiming<B>,
        lease_id: LeaseId,
        fx: &mut Effects<B>,
    ) -> Result<(), Refusal> {
        let Some(mut cursor) = self.state.cursor(claiming.key).cloned() else { return Ok(()) };
        if cursor.lease.as_ref().is_none_or(|l| l.record.id != lease_id) {
            return Ok(());
        }
        let Some(lease) = cursor.lease.take() else { return Ok(()) };
        let owed = self.state.parts.get(claiming.key.slot).map_or(Offset(0), |p| p.log_start);
        let passed_over = claiming.start.0.saturating_sub(cursor.next.max(owed).0);
        // An ack without a lease may have come meanwhile and gone further.
        cursor.next = cursor.next.max(Offset(claiming.end.0 + 1));
        // The old attempt marker stays: it means nothing while the cursor is past it, and holds
        // again if this delivery is taken back.
        (cursor.attempt_offset, cursor.attempt_count) = lease.attempt_before;
        cursor.retry_before = std::mem::take(&mut cursor.retry_count);
        let conflating = lease.record.conflating;
        if let Err(refusal) = self.store_cursor(claiming.key, cursor, Vec::new()) {
            self.release_claim(now, claiming.key, lease_id, claiming.start, fx);
            return Err(refusal);
        }
        self.state.spare_leases.put(lease);
        if conflating {
            self.count(claiming.key.queue, |t| t.conflated += passed_over);
        }
        self.make_ready(now, claiming.key, End::Back, fx);
        Ok(())
    }

    // ---- answers

    pub(super) fn claim_durable(&mut self, now: Now, mut job: ClaimJob<B>, fx: &mut Effects<B>) {
        let lease_id = (!job.spec.auto_ack).then_some(job.spec.lease_id);
        if job.claims.is_empty() {
            let refusal = job.failure.unwrap_or_else(|| {
                Refusal::new(ErrorCode::Retry, "the claim was given back; try again")
            });
            return self.send_claims(
                now,
                job.queue,
                job.group,
                lease_id,
                job.to,
                job.task,
                Err(refusal),
                fx,
            );
        }
        let queue = job.queue;
        self.counters.popped += job.claims.iter().map(|c| c.end.0 + 1 - c.start.0).sum::<u64>();
        job.claims.iter().for_each(|claiming| self.count_delivered(now, claiming));
        let mut claims = self.spares.claims.take();
        claims.extend(job.claims.drain(..).map(|mut c| {
            c.bodies.iter_mut().for_each(|body| *body = without_id_table(std::mem::take(body)));
            Claim {
                queue: self.spares.texts.text(&queue),
                partition: c.partition,
                partition_id: c.id,
                since: c.since,
                start: c.start,
                end: c.end,
                epoch: c.epoch,
                attempt: c.attempt,
                batches: c.bodies,
            }
        }));
        self.spares.claimings.put(job.claims);
        self.send_claims(now, queue, job.group, lease_id, job.to, job.task, Ok(claims), fx);
    }

    /// Counts a claim's messages, and how long each had waited since its push.
    fn count_delivered(&mut self, now: Now, claiming: &Claiming<B>) {
        let mut delivered = Traffic::default();
        for batch in &claiming.batches {
            let from = batch.base.max(claiming.start).0;
            let messages = batch.end().0.min(claiming.end.0 + 1).saturating_sub(from);
            // A stamp ahead of the clock counts as now.
            let lag_us = u64::try_from(now.wall_us.saturating_sub(batch.created_at_us));
            let lag_us = lag_us.unwrap_or(0);
            delivered.pop_messages += messages;
            delivered.lag_us_sum += lag_us.saturating_mul(messages);
            delivered.lag_us_max = delivered.lag_us_max.max(lag_us);
        }
        self.count(claiming.key.queue, |t| t.add(&delivered));
    }

    pub(super) fn claim_failed(
        &mut self,
        job: ClaimJob<B>,
        refusal: &Refusal,
        fx: &mut Effects<B>,
    ) {
        let lease_id = (!job.spec.auto_ack).then_some(job.spec.lease_id);
        let msg = PeerMsg::Claimed {
            task: job.task,
            queue: job.queue,
            group: job.group,
            lease_id,
            claims: Err(refusal.clone()),
            oldest_us: None,
        };
        self.send(job.to, msg, fx);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn send_claims(
        &mut self,
        now: Now,
        queue: Name,
        group: Name,
        lease_id: Option<LeaseId>,
        to: ShardId,
        task: TaskId,
        claims: Result<Vec<Claim<B>>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        if to == self.config.shard {
            // Stays here: the slices of the log's buffers go into the reply as they are.
            return self.claimed(now, task, &group, lease_id, claims, fx);
        }
        let claims = claims.map(|mut claims| {
            let mut out = self.spares.peer_claims.take();
            out.extend(claims.drain(..).map(|claim| self.spares.sent_claim(claim)));
            self.spares.claims.put(claims);
            out
        });
        let oldest_us = self.oldest_ready(now, &queue, &group);
        let msg = PeerMsg::Claimed { task, queue, group, lease_id, claims, oldest_us };
        fx.send(to, msg);
    }

    // ---- giving back

    pub(super) fn given_back(
        &mut self,
        now: Now,
        queue: Name,
        group: Name,
        lease_id: Option<LeaseId>,
        claims: Vec<GivenBack>,
        fx: &mut Effects<B>,
    ) {
        if !self.turns.is_empty() {
            let keys =
                claims.iter().filter_map(|given| self.cursor_key(given.partition_id, &group));
            let touched: Resources = keys.map(Resource::Cursor).collect();
            if self.must_wait(touched.iter().copied()) {
                let work = Waiting::GiveBack { queue, group, lease_id, claims };
                self.stand_in_line(touched, work);
                return;
            }
        }
        self.take_back(now, &queue, &group, lease_id, &claims, fx);
    }

    pub(super) fn take_back(
        &mut self,
        now: Now,
        queue: &str,
        group: &str,
        lease_id: Option<LeaseId>,
        claims: &[GivenBack],
        fx: &mut Effects<B>,
    ) {
        let Some(queue_slot) = self.state.catalog.find(queue) else { return };
        let Some(group) = self.state.catalog.get(queue_slot).and_then(|q| q.group_slot(group))
        else {
            return;
        };
        for given in claims {
            let Some(slot) = self.state.slot_of(given.partition_id) else { continue };
            let key = CursorKey { queue: queue_slot, group, slot };
            match lease_id {
                Some(id) => self.release_claim(now, key, id, given.start, fx),
                None => self.uncommit(now, key, *given, fx),
            }
        }
    }

    /// Undoes a claim, its delivery attempt included; the partition goes to the front. A record
    /// the log refuses leaves the lease to its expiry: late, but nothing is lost.
    fn release_claim(
        &mut self,
        now: Now,
        key: CursorKey,
        lease_id: LeaseId,
        start: Offset,
        fx: &mut Effects<B>,
    ) {
        let Some(mut cursor) = self.state.cursor(key).cloned() else { return };
        // Nobody else can end a reservation, even where an ack without a lease went past it.
        let untouched = cursor.next <= start;
        let Some(lease) =
            cursor.lease.take_if(|l| l.record.id == lease_id && (untouched || l.reserved))
        else {
            return;
        };
        (cursor.attempt_offset, cursor.attempt_count) = lease.attempt_before;
        if lease.reserved {
            self.state.put_cursor(key, cursor);
        } else if self.store_cursor(key, cursor, Vec::new()).is_err() {
            return;
        }
        self.clear_timer(lease.timer);
        self.make_ready(now, key, End::Front, fx);
    }

    /// A commit at delivery that was not delivered: back to where it was, unless somebody has
    /// claimed since.
    fn uncommit(&mut self, now: Now, key: CursorKey, given: GivenBack, fx: &mut Effects<B>) {
        let Some(mut cursor) = self.state.cursor(key).cloned() else { return };
        let group = self.state.catalog.get(key.queue).and_then(|q| q.group(key.group));
        let same = group.is_some_and(|group| group.claim_epoch(&cursor) == given.epoch);
        if !same || cursor.next.0 != given.end.0 + 1 || cursor.lease.is_some() {
            return;
        }
        cursor.next = given.since;
        cursor.retry_count = cursor.retry_before;
        if self.store_cursor(key, cursor, Vec::new()).is_ok() {
            if let Some(group) = self.state.group_mut(key) {
                group.unlist(key.slot);
            }
            self.make_ready(now, key, End::Front, fx);
        }
    }

    /// Writes a cursor's record and makes it true. Nothing changes where the log refuses.
    pub(super) fn store_cursor(
        &mut self,
        key: CursorKey,
        mut cursor: Cursor,
        filed: Vec<records::DeadLetterRecord>,
    ) -> Result<(), Refusal> {
        let Some(group) = self.state.catalog.get(key.queue).and_then(|q| q.group(key.group)) else {
            return Ok(());
        };
        let record = cursor.record(group, filed);
        let id = self.state.id_of(key.slot);
        let at = self.append(records::CURSOR, id.0, &[&record.encode()])?.at.segment();
        self.state.segments.moved(cursor.segment.replace(at), at);
        self.state.put_cursor(key, cursor);
        for row in record.filed {
            self.state.file(key, row, at);
        }
        Ok(())
    }
}

/// The body of a batch record without what is not sent: the id table behind its bytes.
fn without_id_table<B: IoBuf>(body: Gather<B>) -> Gather<B> {
    let head = match body.pieces().next() {
        Some(piece) if piece.len() >= BATCH_HEAD_BYTES => BatchHead::decode(piece),
        _ => BatchHead::decode(&body.contiguous()),
    };
    let len = head.map_or(0, |h| BATCH_HEAD_BYTES + h.len as usize);
    body.truncated(len)
}

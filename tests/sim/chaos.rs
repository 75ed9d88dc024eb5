//! Everything at once: many commands on their way, disks that fail, crashes in the middle of
//! anything. What was answered is held against the ledger; at the end everything is read.

mod crowd;
mod transact;

use crate::disk::{Crash, Faults};
use crate::for_seeds;
use crate::ledger::{Ledger, PopSent};
use crate::stored::Opener;
use crate::workload::{Delivery, Group, Held, Item, Workload};
use crate::world::{Shape, Step, World, all_keys, summary};
use lanemq::base::buf::HeapBuf;
use lanemq::base::ids::{LeaseId, MessageId, PartitionId};
use lanemq::base::prng::Prng;
use lanemq::base::uuid;
use lanemq::broker::records;
use lanemq::model::command::{
    AckItem, AckRequest, Command, ConfigureRequest, DeadLetterQuery, PopRequest, PopTarget,
    PushItem, QUEUE_MODE, ReadRequest, Subscription,
};
use lanemq::model::error::ErrorCode;
use lanemq::model::options::{OptionsPatch, Setting};
use lanemq::model::reply::{AckResult, PopReply, PushResult, Reply, ShardStats};
use std::collections::BTreeMap;

/// A command without an answer.
enum Sent {
    Push { items: Vec<Item>, numbers: Vec<u64> },
    Pop { shard: usize, sent: Box<PopSent>, cancelled: bool },
    Ack { group: String, items: Vec<AckItem<'static>> },
    Extend { lease: LeaseId, seconds: u32, at_us: i64 },
    Transaction { number: usize },
    Delete { queue: String, partitions: Vec<PartitionId> },
    Other,
}

/// What a seed likes.
#[derive(Clone, Copy, Debug)]
struct Flavor {
    #[expect(dead_code, reason = "printed with a red seed")]
    shape: Shape,
    faults: bool,
    space: bool,
    deletes: bool,
    retention: bool,
    transactions: bool,
    /// Answers looked up on the durable image, in percent.
    looks: u64,
}

struct Chaos {
    world: World,
    flavor: Flavor,
    work: Workload,
    ledger: Ledger,
    open: BTreeMap<u64, Sent>,
    /// Pushes that may be sent again.
    again: Vec<Vec<Item>>,
    transactions: transact::Book,
    step: u64,
    talk: bool,
}

fn chaos_of(seed: u64, salt: u64) -> Chaos {
    let mut root = Prng::new(seed.wrapping_mul(0x9E37_79B9) ^ salt);
    let mut prng = root.fork(1);
    let shape = Shape::pick(&mut prng);
    let flavor = Flavor {
        shape,
        faults: prng.chance(25),
        space: prng.chance(15),
        deletes: prng.chance(25),
        retention: prng.chance(15),
        transactions: prng.chance(60),
        looks: 2,
    };
    Chaos {
        world: World::new(shape, root.fork(2), root.fork(3)),
        flavor,
        work: Workload::new(prng),
        ledger: Ledger::new(flavor.faults),
        open: BTreeMap::new(),
        again: Vec::new(),
        transactions: transact::Book::default(),
        step: 0,
        talk: std::env::var_os("SIM_TALK").is_some(),
    }
}

fn run(seed: u64) -> Result<u64, String> {
    let mut chaos = chaos_of(seed, 0xC405);
    let flavor = chaos.flavor;
    chaos.world.boot(false)?;
    for (queue, patch) in chaos.work.encrypting() {
        chaos.send_configure(queue, patch)?;
    }
    let steps = 80 + chaos.work.prng.below(320);
    let told = |chaos: &Chaos, why: String| format!("step {} of {flavor:?}: {why}", chaos.step);
    for _ in 0..steps {
        chaos.step().map_err(|why| told(&chaos, why))?;
    }
    chaos.finish().map_err(|why| told(&chaos, why))?;
    Ok(chaos.world.trace())
}

impl Chaos {
    fn step(&mut self) -> Step {
        self.step += 1;
        match self.work.prng.below(100) {
            0..=14 => self.push()?,
            15..=26 => {
                let waits = self.work.prng.chance(40);
                self.pop(waits)?;
            }
            27..=36 => self.ack()?,
            37 => self.extend()?,
            38 => self.configure()?,
            39 if self.flavor.deletes => self.delete()?,
            40..=44 => {
                let us = [50, 1_000, 30_000, 2_000_000][self.work.prng.below(4) as usize];
                let us = self.work.prng.below(us);
                self.world.advance(us);
                if self.work.prng.chance(80) {
                    self.world.tick()?;
                }
            }
            45..=46 => self.world.step_to_deadline()?,
            47 => self.cancel()?,
            48 if self.work.prng.chance(40) => self.crash(None)?,
            49 => self.change_faults(),
            50 if self.work.prng.chance(40) => self.quiet()?,
            51..=58 if self.flavor.transactions => self.transact()?,
            _ => {
                for _ in 0..self.work.prng.below(8) {
                    let us = self.work.prng.below(300);
                    self.world.advance(us);
                    self.world.move_one()?;
                }
            }
        }
        self.take_replies()?;
        if let Some(fault) = self.world.fault() {
            // The process sends what it can and exits.
            self.say(|| format!("fault: {fault}"));
            self.crash(None)?;
        }
        Ok(())
    }

    fn say(&self, what: impl Fn() -> String) {
        if self.talk {
            let us = self.world.now.wall_us - 1_700_000_000_000_000;
            eprintln!("{:>4} {us:>11} {}", self.step, what());
        }
    }

    fn shard(&mut self) -> usize {
        self.work.prng.below(u64::from(self.world.shape.shards)) as usize
    }

    // ---- commands

    fn push(&mut self) -> Step {
        let retry = !self.again.is_empty() && self.work.prng.chance(25);
        let items = if retry {
            let at = self.work.prng.below(self.again.len() as u64) as usize;
            let again = self.again.swap_remove(at);
            again.into_iter().map(|item| self.work.renewed(item)).collect()
        } else {
            self.work.push()
        };
        self.send_push(items)
    }

    fn send_push(&mut self, mut items: Vec<Item>) -> Step {
        let groups = self.work.framed(self.world.now.wall_us, &mut items);
        let numbers = self.ledger.push(&items, groups.as_deref());
        let shard = self.shard();
        let borrowed: Vec<PushItem<'_>> = items.iter().map(Item::borrowed).collect();
        let command = match &groups {
            None => Command::Push { items: &borrowed, producer: None },
            Some(groups) => {
                Command::PushFrames(groups.iter().map(|g| g.borrowed(&items)).collect())
            }
        };
        let token = self.world.command(shard, command)?;
        self.say(|| {
            let show = |i: &Item| format!("{}/{} {:?}", i.queue, i.partition, i.transaction_id);
            let places = |groups: &Vec<Group>| -> Vec<_> {
                groups.iter().map(|g| g.places.clone()).collect()
            };
            let (cuts, items) = (groups.as_ref().map(places), items.iter().map(show));
            format!("{token} push {cuts:?} {numbers:?} {:?}", items.collect::<Vec<_>>())
        });
        self.open.insert(token, Sent::Push { items, numbers });
        Ok(())
    }

    fn pop(&mut self, waits: bool) -> Step {
        let mut request = self.work.pop(self.world.now.wall_us, waits);
        if self.work.prng.chance(80) {
            request.lease_seconds.get_or_insert(10);
        }
        request.auto_ack &= self.work.prng.chance(60);
        let shard = self.shard();
        self.send_pop(shard, request).map(drop)
    }

    fn send_pop(&mut self, shard: usize, request: PopRequest<'static>) -> Result<u64, String> {
        let token = self.world.command(shard, Command::Pop(request.clone()))?;
        self.say(|| format!("{token} at {shard}: {request:?}"));
        let sent = PopSent { request, step: self.step, at_us: self.world.now.wall_us };
        let sent = Sent::Pop { shard, sent: Box::new(sent), cancelled: false };
        self.open.insert(token, sent);
        Ok(token)
    }

    fn ack(&mut self) -> Step {
        let Some((group, items)) = self.work.ack() else { return Ok(()) };
        for item in &items {
            if let Some(partition) = item.partition_id {
                let (id, lease) = (&item.transaction_id, &item.lease_id);
                self.ledger.ack_sent(self.step, &group, partition, lease, id);
            }
        }
        let shard = self.shard();
        let request = AckRequest { group: group.clone().into(), items: &items };
        let token = self.world.command(shard, Command::Ack(&request))?;
        self.say(|| format!("{token} ack {group} {items:?}"));
        self.open.insert(token, Sent::Ack { group, items });
        Ok(())
    }

    fn extend(&mut self) -> Step {
        let Some(lease) = self.work.held.back().and_then(|held| held.lease) else { return Ok(()) };
        let seconds = 1 + self.work.prng.below(20) as u32;
        let (shard, at_us) = (self.shard(), self.world.now.wall_us);
        let lease_id = uuid::to_string(&lease.0);
        let command = Command::ExtendLease { lease_id: &lease_id, seconds };
        let token = self.world.command(shard, command)?;
        self.open.insert(token, Sent::Extend { lease, seconds, at_us });
        Ok(())
    }

    fn configure(&mut self) -> Step {
        let (queue, mut patch) = (self.work.queue(), self.work.options());
        if self.flavor.retention && self.work.prng.chance(50) {
            patch.retention_enabled = Setting::Set(true);
            match self.work.prng.below(3) {
                0 => patch.retention_seconds = Setting::Set(1 + self.work.prng.below(5)),
                1 => patch.completed_retention_seconds = Setting::Set(1),
                _ => patch.max_wait_seconds = Setting::Set(2),
            }
            self.ledger.retained.insert(queue.clone());
        }
        self.send_configure(queue, patch)
    }

    fn send_configure(&mut self, queue: String, patch: OptionsPatch) -> Step {
        if let Setting::Set(seconds) = patch.dedup_window_seconds {
            let window = self.ledger.windows.entry(queue.clone()).or_insert(3_600);
            *window = (*window).min(seconds);
        }
        self.say(|| format!("configure {queue}"));
        let shard = self.shard();
        let request = ConfigureRequest { queue: queue.into(), options: patch };
        let token = self.world.command(shard, Command::Configure(request))?;
        self.open.insert(token, Sent::Other);
        Ok(())
    }

    fn delete(&mut self) -> Step {
        let queue = self.work.queue();
        let partitions = self.ledger.delete_sent(&queue);
        self.say(|| format!("delete {queue}"));
        let shard = self.shard();
        let token = self.world.command(shard, Command::DeleteQueue { queue: &queue })?;
        self.open.insert(token, Sent::Delete { queue, partitions });
        Ok(())
    }

    fn cancel(&mut self) -> Step {
        let pops = self.open.iter_mut().filter_map(|(token, sent)| match sent {
            Sent::Pop { shard, cancelled, .. } => Some((*token, *shard, cancelled)),
            _ => None,
        });
        let mut pops: Vec<_> = pops.collect();
        if pops.is_empty() {
            return Ok(());
        }
        let at = self.work.prng.below(pops.len() as u64) as usize;
        let (token, shard, cancelled) = &mut pops[at];
        **cancelled = true;
        let (token, shard) = (*token, *shard);
        self.say(|| format!("cancel {token}"));
        self.world.cancel(shard, token)
    }

    fn change_faults(&mut self) {
        let shard = self.shard();
        let mut faults = Faults::default();
        if self.flavor.faults {
            match self.work.prng.below(6) {
                0 => faults.write_error_percent = 3,
                1 => faults.sync_error_percent = 5,
                2..=3 => faults.read_error_percent = 30,
                _ => {}
            }
        }
        if self.flavor.space {
            match self.work.prng.below(3) {
                0 => faults.no_space = true,
                1 => faults.write_no_space_percent = 30,
                _ => {}
            }
        }
        self.world.set_faults(shard, faults);
    }

    // ---- answers

    fn take_replies(&mut self) -> Step {
        while let Some((token, reply)) = self.world.replies.pop_front() {
            self.say(|| summary(token, &reply));
            let sent = self.open.remove(&token).ok_or("an answer nobody waits for")?;
            self.answered(sent, reply).map_err(|why| format!("{why}\n  {token}"))?;
        }
        Ok(())
    }

    fn answered(&mut self, sent: Sent, reply: Reply<HeapBuf>) -> Step {
        match (sent, reply) {
            (Sent::Push { items, numbers }, Reply::Push(results)) => {
                let durable = self.ledger.push_answered(&numbers, &results)?;
                if self.work.prng.chance(20) {
                    self.again.push(items);
                }
                for (id, duplicate) in durable {
                    let percent = if duplicate { 10 } else { self.flavor.looks };
                    if self.work.prng.chance(percent) {
                        self.look_message(id)?;
                    }
                }
                Ok(())
            }
            (Sent::Push { items, .. }, Reply::Refused(_)) => {
                self.again.push(items);
                Ok(())
            }
            (Sent::Pop { shard, sent, cancelled }, reply) => {
                self.popped(shard, &sent, cancelled, reply)
            }
            (Sent::Ack { group, items }, Reply::Ack(results)) => {
                self.acked(&group, &items, &results)
            }
            (Sent::Ack { group, items }, Reply::Refused(_)) => {
                self.ack_ended(&group, &items, None);
                Ok(())
            }
            (Sent::Extend { lease, seconds, at_us }, Reply::Extended(extended)) => {
                let until_us = at_us + i64::from(seconds) * 1_000_000;
                self.ledger.extended(lease, until_us, extended.renewed as usize);
                Ok(())
            }
            (Sent::Delete { queue, partitions }, Reply::Deleted { .. }) => {
                self.ledger.deleted(self.step, partitions);
                self.ledger.delete_ended(&queue);
                Ok(())
            }
            (Sent::Transaction { number }, reply) => self.transacted(number, reply),
            (Sent::Other, Reply::Configured { .. }) => Ok(()),
            // A deletion that was refused may still come to pass with the next start.
            (Sent::Extend { .. } | Sent::Delete { .. } | Sent::Other, Reply::Refused(_)) => Ok(()),
            (_, other) => Err(format!("an answer of another kind: {other:?}")),
        }
    }

    fn popped(
        &mut self,
        shard: usize,
        sent: &PopSent,
        cancelled: bool,
        reply: Reply<HeapBuf>,
    ) -> Step {
        let pop = match reply {
            Reply::Pop(pop) => pop,
            Reply::Refused(refusal) => {
                // What was claimed on other shards before one refused may be committed.
                self.lost_pop(sent);
                let fits = matches!(
                    refusal.code,
                    ErrorCode::Internal
                        | ErrorCode::Retry
                        | ErrorCode::OutcomeUnknown
                        | ErrorCode::StorageFull
                        | ErrorCode::Draining
                );
                return if fits { Ok(()) } else { Err(format!("{refusal:?}")) };
            }
            other => return Err(format!("a pop is answered {other:?}")),
        };
        if cancelled {
            self.lost_pop(sent);
            return Ok(());
        }
        let now_us = self.world.now.wall_us;
        self.ledger.delivered(now_us, sent, self.step, &pop)?;
        if let (Some(lease), Some(claim)) = (pop.lease_id, pop.claims.first())
            && self.work.prng.chance(self.flavor.looks * 2)
            && !self.flavor.deletes
        {
            self.look_lease(lease, claim.partition_id)?;
        }
        if !pop.claims.is_empty() && self.work.prng.chance(6) {
            self.say(|| "  not delivered".into());
            self.ledger.gave_back(&pop);
            return self.world.undelivered(shard, &pop);
        }
        self.hold(&pop);
        Ok(())
    }

    fn hold(&mut self, pop: &PopReply<HeapBuf>) {
        for claim in &pop.claims {
            if pop.lease_id.is_none() && self.work.prng.chance(85) {
                continue;
            }
            let messages = (claim.start.0..=claim.end.0).filter_map(|offset| {
                let transaction_id = self.ledger.transaction_id(claim.partition_id, offset)?;
                Some(Held { partition: claim.partition_id, transaction_id, offset })
            });
            let messages = messages.collect();
            let delivery = Delivery { group: pop.group.clone(), lease: pop.lease_id, messages };
            self.work.held.push_back(delivery);
            if self.work.held.len() > 12 {
                self.work.held.pop_front();
            }
        }
    }

    /// A discovery pop may have committed in any queue.
    fn lost_pop(&mut self, sent: &PopSent) {
        match &sent.request.target {
            PopTarget::Queue(queue) | PopTarget::Partition { queue, .. } => {
                self.ledger.pop_lost(&[queue], sent);
            }
            PopTarget::Labels { .. } => self.ledger.pop_lost(self.work.queue_names(), sent),
        }
    }

    fn ack_ended(&mut self, group: &str, items: &[AckItem<'_>], results: Option<&[AckResult]>) {
        for (at, item) in items.iter().enumerate() {
            if let Some(partition) = item.partition_id {
                let kept = results.is_some_and(|r| r[at].success && !r[at].lease_released);
                self.ledger.ack_ended(self.step, group, partition, &item.lease_id, kept);
            }
        }
    }

    fn acked(&mut self, group: &str, items: &[AckItem<'_>], results: &[AckResult]) -> Step {
        if items.len() != results.len() {
            return Err("an ack answers another number of items".into());
        }
        self.ack_ended(group, items, Some(results));
        let mut targets: BTreeMap<(PartitionId, &str), Vec<usize>> = BTreeMap::new();
        for (at, (item, result)) in items.iter().zip(results).enumerate() {
            let Some(partition) = item.partition_id else { continue };
            targets.entry((partition, &item.lease_id)).or_default().push(at);
            if result.dead_lettered {
                self.ledger.filed(partition, group, &item.transaction_id);
            }
        }
        for ((partition, lease), places) in targets {
            if places.iter().all(|at| results[*at].success) {
                let settled: Vec<_> = places
                    .iter()
                    .map(|at| {
                        let item = &items[*at];
                        (item.transaction_id.clone().into_owned(), item.status, results[*at].noop)
                    })
                    .collect();
                self.ledger.acked(self.step, group, partition, lease, &settled);
            }
        }
        Ok(())
    }

    // ---- what must be durable when it is answered

    fn look_message(&self, id: MessageId) -> Step {
        let mut opener = Opener::new(all_keys());
        let mut found = Ok(false);
        for shard in 0..usize::from(self.world.shape.shards) {
            self.world.durable_records(shard, &mut |record| {
                let holds = [records::BATCH, records::TRANSACTION_BATCH].contains(&record.kind);
                if holds && found == Ok(false) {
                    let batch = opener.record(PartitionId(record.key), record.body);
                    found = batch.map(|batch| batch.messages.iter().any(|m| m.id == id));
                }
            })?;
        }
        match found? {
            true => Ok(()),
            false => Err(format!("NOT DURABLE: message {id:?} is answered")),
        }
    }

    fn look_lease(&self, id: LeaseId, partition: PartitionId) -> Step {
        let shard = partition.shard().ok_or("an id without a shard")?.index();
        let mut found = false;
        self.world.durable_records(shard, &mut |record| {
            let cursor = record.kind == records::CURSOR && record.key == partition.0;
            found |= cursor && record.body.windows(16).any(|bytes| *bytes == id.0);
        })?;
        match found {
            true => Ok(()),
            false => Err(format!("NOT DURABLE: lease {id:?} is answered")),
        }
    }

    // ---- rest and death

    fn crash(&mut self, kind: Option<Crash>) -> Step {
        let power = self.work.prng.chance(70);
        let kind = kind.unwrap_or(if power { Crash::Power } else { Crash::Kill });
        self.say(|| format!("crash {kind:?}"));
        for (_, sent) in std::mem::take(&mut self.open) {
            match sent {
                Sent::Push { items, .. } => self.again.push(items),
                Sent::Pop { sent, .. } => self.lost_pop(&sent),
                Sent::Transaction { number } => self.transaction_lost(number),
                _ => {}
            }
        }
        self.ledger.crashed();
        self.world.crash(kind);
        self.world.boot(true).map(drop)
    }

    /// Nothing fails any more and everything on its way arrives: all is answered but pops that
    /// may wait, and none of those waits beside something to claim.
    fn quiet(&mut self) -> Step {
        for shard in 0..usize::from(self.world.shape.shards) {
            self.world.set_faults(shard, Faults::default());
        }
        // A log that had no space asks for some again after two seconds at the most, and what
        // waits for it is tried again soon after.
        for round in 0..40 {
            let waits = self.open.values().any(|sent| !matches!(sent, Sent::Pop { .. }));
            if round >= 8 && !waits {
                break;
            }
            self.world.settle()?;
            self.world.advance(110_000);
            self.world.tick()?;
            self.take_replies()?;
        }
        self.world.settle()?;
        self.take_replies()?;
        // A give-back of the last round may have stirred something up.
        while !self.world.is_still() {
            self.world.settle()?;
            self.take_replies()?;
        }
        if self.world.fault().is_some() {
            return Ok(());
        }
        let now_us = self.world.now.wall_us;
        let mut waiting = Vec::new();
        for (token, sent) in &self.open {
            match sent {
                Sent::Pop { sent, .. } => {
                    let until_us = sent.at_us + sent.request.wait_ms.unwrap_or(0) as i64 * 1_000;
                    if until_us <= now_us {
                        return Err(format!(
                            "{token} is answered late or never: {:?}",
                            sent.request
                        ));
                    }
                    if until_us > now_us + 60_000 {
                        waiting.push(sent.request.clone());
                    }
                }
                _ => return Err(format!("{token} is never answered")),
            }
        }
        self.probe(waiting)
    }

    fn probe(&mut self, waiting: Vec<PopRequest<'static>>) -> Step {
        for request in waiting.into_iter().take(3) {
            if !matches!(request.target, PopTarget::Queue(_)) || self.flavor.deletes {
                continue;
            }
            let shard = self.shard();
            let probe = PopRequest { wait_ms: None, partitions: Some(64), ..request.clone() };
            let token = self.send_pop(shard, probe)?;
            self.world.settle()?;
            let reply = self.world.replies.iter().find(|(t, _)| *t == token);
            if let Some((_, Reply::Pop(pop))) = reply
                && !pop.claims.is_empty()
            {
                let what = summary(token, &Reply::Pop(pop.clone()));
                return Err(format!("LOST WAKE-UP of {request:?}: {what}"));
            }
            self.take_replies()?;
        }
        Ok(())
    }

    fn ask(&mut self, command: Command<'_>) -> Result<Reply<HeapBuf>, String> {
        let shard = self.shard();
        let token = self.world.command(shard, command)?;
        for _ in 0..50 {
            self.world.settle()?;
            if let Some(at) = self.world.replies.iter().position(|(t, _)| *t == token) {
                return self.world.replies.remove(at).map(|r| r.1).ok_or("just found".into());
            }
            self.world.step_to_deadline()?;
        }
        Err("a command is never answered".into())
    }

    fn finish(&mut self) -> Step {
        if self.work.prng.chance(50) {
            self.quiet()?;
        }
        self.crash(Some(Crash::Power))?;
        self.step += 1;
        self.heal()?;
        for queue in self.work.queue_names() {
            self.check_dead_letters(queue)?;
        }
        // Every lease ends, nothing is held back any more.
        self.world.advance(400_000_000);
        self.world.tick()?;
        let mut live = BTreeMap::new();
        let listed = self.listed()?;
        let exists = |queue: &&&str| listed.iter().any(|name| name == *queue);
        let queues: Vec<&str> = self.work.queue_names().iter().filter(exists).copied().collect();
        for queue in &queues {
            self.ungate(queue)?;
            live.extend(self.read_all(queue, "the last reader")?);
        }
        self.judge_transactions()?;
        for queue in &queues {
            for (partition, start) in self.read_all(queue, QUEUE_MODE)? {
                self.ledger.resumes(QUEUE_MODE, queue, partition, start)?;
            }
        }
        self.ledger.complete(&live)
    }

    fn listed(&mut self) -> Result<Vec<String>, String> {
        match self.ask(Command::Read(ReadRequest::Queues))? {
            Reply::Queues(rows) => Ok(rows.into_iter().map(|row| row.name).collect()),
            other => Err(format!("a listing is answered {other:?}")),
        }
    }

    fn stats(&mut self) -> Result<Vec<ShardStats>, String> {
        match self.ask(Command::Read(ReadRequest::Shards))? {
            Reply::Shards(stats) => Ok(stats),
            other => Err(format!("a listing of shards is {other:?}")),
        }
    }

    /// A push goes through now that nothing fails.
    fn heal(&mut self) -> Step {
        for _ in 0..20 {
            let items = [Item {
                queue: "healed".into(),
                partition: "p".into(),
                transaction_id: None,
                payload: b"[0,\"\"]".to_vec(),
                id: None,
            }];
            let borrowed: Vec<PushItem<'_>> = items.iter().map(Item::borrowed).collect();
            match self.ask(Command::Push { items: &borrowed, producer: None })? {
                Reply::Push(results) if matches!(results[0], PushResult::Queued { .. }) => {
                    return Ok(());
                }
                Reply::Refused(_) => self.world.step_to_deadline()?,
                other => return Err(format!("a push is answered {other:?}")),
            }
        }
        Err("pushes do not go through again".into())
    }

    fn ungate(&mut self, queue: &str) -> Step {
        let mut patch = OptionsPatch::keep();
        patch.delayed_processing_seconds = Setting::Set(0);
        patch.window_buffer_seconds = Setting::Set(0);
        let request = ConfigureRequest { queue: queue.to_owned().into(), options: patch };
        match self.ask(Command::Configure(request))? {
            Reply::Configured { .. } => Ok(()),
            other => Err(format!("configure is answered {other:?}")),
        }
    }

    /// Reads all there is for a group; the first offset by partition.
    fn read_all(&mut self, queue: &str, group: &str) -> Result<BTreeMap<PartitionId, u64>, String> {
        let mut first = BTreeMap::new();
        loop {
            self.step += 1;
            let request = PopRequest {
                target: PopTarget::Queue(queue.to_owned().into()),
                group: group.to_owned().into(),
                batch: Some(40),
                partitions: Some(64),
                auto_ack: true,
                wait_ms: None,
                lease_seconds: None,
                subscription: Subscription::All,
                autopilot: false,
                conflation: false,
            };
            let sent = PopSent {
                request: request.clone(),
                step: self.step,
                at_us: self.world.now.wall_us,
            };
            let pop = match self.ask(Command::Pop(request))? {
                Reply::Pop(pop) => pop,
                other => return Err(format!("a pop is answered {other:?}")),
            };
            if pop.claims.is_empty() {
                return Ok(first);
            }
            self.say(|| summary(0, &Reply::Pop(pop.clone())));
            self.ledger.delivered(self.world.now.wall_us, &sent, self.step, &pop)?;
            for claim in &pop.claims {
                first.entry(claim.partition_id).or_insert(claim.start.0);
            }
        }
    }

    fn check_dead_letters(&mut self, queue: &str) -> Step {
        if self.flavor.retention {
            return Ok(());
        }
        let query =
            DeadLetterQuery { queue: Some(queue.into()), limit: 1_000, ..Default::default() };
        match self.ask(Command::Read(ReadRequest::DeadLetters(query)))? {
            Reply::DeadLetters { rows, .. } => {
                let row = |r: &lanemq::model::reply::DeadLetter<HeapBuf>| {
                    (r.partition_id, r.group.clone(), r.offset.0, r.frame.to_vec())
                };
                let rows: Vec<_> = rows.iter().map(row).collect();
                self.ledger.dead_letters(queue, &rows)
            }
            other => Err(format!("a listing of dead letters is {other:?}")),
        }
    }
}

#[test]
fn broker_survives() {
    for_seeds("broker_survives", 200, run);
}

#[test]
fn broker_same_seed_same_trace() {
    for seed in 0..3 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

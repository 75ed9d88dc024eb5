//! Reads and deletions of the operator. Each shard works on its part in small steps, so that a
//! walk over ten million partitions holds nobody up; the shard of the client joins the parts. A
//! listing first finds the keys of its page, over all shards, and then reads only those rows.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use super::effect::Effects;
use super::inspect_join::{Found, Joined, join};
use super::shard::{Event, ReadUse, Shard};
use super::task::Task;
use super::{dlq, messages, survey, traces};
use crate::base::buf::{Gather, IoBuf};
use crate::base::hash::partition_hash;
use crate::base::ids::{LogPosition, Offset, PartitionId, ShardId, Token};
use crate::base::limits;
use crate::base::time::Now;
use crate::log::ReadError;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::inspect::{
    DeadLetterAddress, InspectPart, InspectRequest, InspectStep, Inspected, Missing, TraceSubject,
};
use crate::model::peer::{PeerMsg, TaskId};
use crate::model::reply::{DeadLetter, QueueDetail, Reply};

/// Reads of the log in one step, where they are answered from memory.
const READS_PER_STEP: usize = 8;
/// Unreadable places remembered.
const DAMAGES_MAX: usize = 1_024;

/// One shard's share of a request, worked off in steps of at most a millisecond.
pub(super) trait Work<B: IoBuf>: Debug {
    fn step(&mut self, shard: &mut Shard<B>, now: Now) -> Progress;

    /// The body of the record that the last step wanted.
    fn take(&mut self, _body: Result<Gather<B>, ReadError>) {}
}

pub(super) enum Progress {
    /// To be called again, behind others.
    More,
    /// Wants this record: its place and whole length.
    Read(LogPosition, u32),
    Done(Result<InspectPart, Refusal>),
}

#[derive(Debug)]
struct Job<B> {
    from: ShardId,
    task: TaskId,
    work: Box<dyn Work<B>>,
}

/// Work under way on one shard.
#[derive(Debug)]
pub(super) struct Inspection<B> {
    /// Wait for their next step.
    jobs: VecDeque<Job<B>>,
    armed: bool,
    /// Wait for a read, by its key.
    reading: BTreeMap<u64, Job<B>>,
    /// Where a claim could not read: offsets and the fault, by partition.
    pub damages: BTreeMap<PartitionId, (Offset, Offset, String)>,
}

impl<B> Default for Inspection<B> {
    fn default() -> Self {
        Self {
            jobs: VecDeque::new(),
            armed: false,
            reading: BTreeMap::new(),
            damages: BTreeMap::new(),
        }
    }
}

impl<B> Inspection<B> {
    /// A claim could not read these messages.
    pub(super) fn note_damage(
        &mut self,
        id: PartitionId,
        first: Offset,
        last: Offset,
        error: String,
    ) {
        if self.damages.len() >= DAMAGES_MAX {
            self.damages.pop_first();
        }
        self.damages.insert(id, (first, last, error));
    }
}

/// A request at the shard of its client.
#[derive(Debug)]
pub(super) struct InspectTask {
    token: Token,
    request: InspectRequest,
    left: usize,
    parts: Vec<InspectPart>,
    refusal: Option<Refusal>,
    /// What the first step found, while the page is read.
    found: Option<Found>,
}

impl<B: IoBuf> Shard<B> {
    // ---- at the shard of the client

    pub(super) fn inspect(&mut self, request: InspectRequest, token: Token, fx: &mut Effects<B>) {
        let targets = match self.targets(&request) {
            Ok(targets) => targets,
            Err(answer) => {
                return self.reply_durable(token, Reply::Inspected(Box::new(answer)));
            }
        };
        let steps: Vec<(ShardId, InspectStep)> =
            targets.into_iter().map(|shard| (shard, InspectStep::Find(request.clone()))).collect();
        let task = InspectTask {
            token,
            request,
            left: steps.len(),
            parts: Vec::new(),
            refusal: None,
            found: None,
        };
        let task = self.new_task(Task::Inspect(Box::new(task)));
        self.send_steps(task, steps, fx);
    }

    fn send_steps(
        &mut self,
        task: TaskId,
        steps: Vec<(ShardId, InspectStep)>,
        fx: &mut Effects<B>,
    ) {
        for (shard, step) in steps {
            self.send(shard, PeerMsg::Inspect { task, step: Box::new(step) }, fx);
        }
    }

    /// Who has a part in the answer; the answer itself where it is plain from here.
    fn targets(&self, request: &InspectRequest) -> Result<Vec<ShardId>, Inspected> {
        let one = |partition: PartitionId, answer: Inspected| {
            let shard = partition.shard().filter(|shard| shard.0 < self.config.shards);
            shard.map(|shard| vec![shard]).ok_or(answer)
        };
        let all = || (0..self.config.shards).map(ShardId).collect();
        match request {
            InspectRequest::Message { partition, .. } => one(*partition, Inspected::Message(None)),
            InspectRequest::DeadLetter(DeadLetterAddress::Message { partition, .. }) => {
                let shard = partition.shard().filter(|shard| shard.0 < self.config.shards);
                Ok(vec![shard.unwrap_or(self.config.shard)])
            }
            InspectRequest::DeleteDeadLetters { partition, .. } => {
                one(*partition, Inspected::Deleted(0))
            }
            InspectRequest::RecordTrace(trace) => {
                one(trace.partition, Inspected::Missing(Missing::Partition))
            }
            InspectRequest::Traces(query) => match &query.of {
                TraceSubject::Message { partition, .. } => {
                    let none = Inspected::Traces { rows: Vec::new(), total: 0, truncated: false };
                    one(*partition, none)
                }
                TraceSubject::Name(_) => Ok(all()),
            },
            InspectRequest::Why { queue, partition, .. } => {
                self.known_queue(queue)?;
                let shards = u64::from(self.config.shards);
                let home = ShardId((partition_hash(queue, partition) % shards) as u16);
                let mut targets = vec![home, self.owner_of(queue)];
                targets.dedup();
                Ok(targets)
            }
            InspectRequest::Loads(query) => {
                if let Some(queue) = &query.queue {
                    self.known_queue(queue)?;
                }
                Ok(all())
            }
            InspectRequest::Messages(_)
            | InspectRequest::DeadLetters(_)
            | InspectRequest::DeadLetter(DeadLetterAddress::Id(_))
            | InspectRequest::PurgeDeadLetters { .. }
            | InspectRequest::Queue { .. }
            | InspectRequest::Groups
            | InspectRequest::Cursors(_)
            | InspectRequest::TraceNames(_) => Ok(all()),
        }
    }

    /// Every shard knows every queue.
    fn known_queue(&self, queue: &str) -> Result<(), Inspected> {
        let known = self.state.catalog.find(queue).is_some();
        if known { Ok(()) } else { Err(Inspected::Missing(Missing::Queue)) }
    }

    pub(super) fn inspect_done(
        &mut self,
        task: TaskId,
        result: Result<Box<InspectPart>, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Inspect(waiting)) = self.tasks.get_mut(&task) else { return };
        waiting.left -= 1;
        match result {
            Ok(part) => waiting.parts.push(*part),
            Err(refusal) => waiting.refusal = Some(refusal),
        }
        if waiting.left > 0 {
            return;
        }
        let Some(Task::Inspect(mut done)) = self.tasks.remove(&task) else { return };
        if let Some(refusal) = done.refusal {
            return fx.reply(done.token, Reply::Refused(refusal));
        }
        let parts = std::mem::take(&mut done.parts);
        match join(&done.request, done.found.take(), parts) {
            Joined::Answer(answer) => fx.reply(done.token, Reply::Inspected(Box::new(answer))),
            Joined::DeadLetters { rows, total, truncated } => {
                let rows = rows.into_iter().map(shown).collect();
                fx.reply(done.token, Reply::DeadLetters { rows, total, truncated });
            }
            Joined::Queue { sum, partitions, truncated } => {
                let row = sum.and_then(|sum| self.queue_row(&sum));
                let detail = row.map(|row| Box::new(QueueDetail { row, partitions, truncated }));
                fx.reply(done.token, Reply::Queue(detail));
            }
            Joined::Next(found, steps) => {
                (done.left, done.found) = (steps.len(), Some(found));
                self.tasks.insert(task, Task::Inspect(done));
                self.send_steps(task, steps, fx);
            }
        }
    }

    // ---- at the shards with a part in it

    pub(super) fn inspect_owned(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        step: InspectStep,
    ) {
        let under_way = self.inspection.jobs.len() + self.inspection.reading.len();
        if under_way >= limits::INSPECTIONS_MAX {
            let text = "too many listings are under way";
            return self.answer(from, task, Err(Refusal::new(ErrorCode::Overloaded, text)));
        }
        match self.begin(now, step) {
            Ok(work) => self.run(now, Job { from, task, work }),
            Err(result) => self.answer(from, task, result),
        }
    }

    fn answer(&mut self, to: ShardId, task: TaskId, result: Result<InspectPart, Refusal>) {
        let result = result.map(Box::new);
        self.send_durable(to, PeerMsg::InspectDone { task, result });
    }

    /// The work of a step, or its result where one look is enough.
    fn begin(
        &mut self,
        now: Now,
        step: InspectStep,
    ) -> Result<Box<dyn Work<B>>, Result<InspectPart, Refusal>> {
        let budget = limits::INSPECT_PAGE_BYTES_MAX / usize::from(self.config.shards);
        Ok(match step {
            InspectStep::Find(request) => return self.begin_request(now, request),
            InspectStep::MessageRows(keys) => Box::new(messages::Rows::new(keys, budget)),
            InspectStep::DeadLetterRows(keys) => Box::new(dlq::Rows::new(keys, budget)),
            InspectStep::TraceRows(keys) => Box::new(traces::Rows::new(keys, budget)),
            InspectStep::TraceNameRows(hashes) => Box::new(traces::NameRows::new(hashes)),
        })
    }

    fn begin_request(
        &mut self,
        now: Now,
        request: InspectRequest,
    ) -> Result<Box<dyn Work<B>>, Result<InspectPart, Refusal>> {
        Ok(match request {
            InspectRequest::Messages(query) => messages::list(self, now, query),
            InspectRequest::Message { partition, transaction_id } => {
                match messages::Find::begin(self, partition, transaction_id) {
                    Some(find) => Box::new(find),
                    None => return Err(Ok(InspectPart::Message(None))),
                }
            }
            InspectRequest::DeadLetters(query) => Box::new(dlq::List::new(self, query)),
            InspectRequest::DeadLetter(address) => {
                return Err(Ok(self.find_dead_letter(&address)));
            }
            InspectRequest::DeleteDeadLetters { partition, transaction_id } => {
                match dlq::Delete::begin(self, partition, &transaction_id) {
                    Some(delete) => Box::new(delete),
                    None => return Err(Ok(InspectPart::Deleted(0))),
                }
            }
            InspectRequest::PurgeDeadLetters { queue, group } => {
                match dlq::Purge::begin(self, &queue, group) {
                    Some(purge) => Box::new(purge),
                    None => return Err(Ok(InspectPart::Deleted(0))),
                }
            }
            InspectRequest::Queue { queue } => survey::queue(self, queue),
            InspectRequest::Loads(query) => survey::loads(self, query),
            InspectRequest::Groups => survey::groups(self),
            InspectRequest::Cursors(query) => survey::cursors(self, query),
            InspectRequest::Why { queue, partition, group } => {
                return Err(Ok(self.why(now, &queue, &partition, &group)));
            }
            InspectRequest::RecordTrace(trace) => return Err(self.record_trace(now, &trace)),
            InspectRequest::Traces(query) => return Err(Ok(self.trace_keys(&query))),
            InspectRequest::TraceNames(_) => return Err(Ok(self.trace_names())),
        })
    }

    fn run(&mut self, now: Now, mut job: Job<B>) {
        for _ in 0..READS_PER_STEP {
            match job.work.step(self, now) {
                Progress::More => break,
                Progress::Done(result) => return self.answer(job.from, job.task, result),
                Progress::Read(at, bytes) => {
                    let key = self.new_id();
                    match self.log.read(at, bytes, key, &mut self.io) {
                        Some(body) => job.work.take(Ok(body)),
                        None => {
                            self.reads.insert(key, ReadUse::Inspect);
                            self.inspection.reading.insert(key, job);
                            return;
                        }
                    }
                }
            }
        }
        self.inspection.jobs.push_back(job);
        self.arm_inspection(now);
    }

    /// The next step comes with the next turn of the clock, behind whatever waits now.
    fn arm_inspection(&mut self, now: Now) {
        if !self.inspection.armed && !self.inspection.jobs.is_empty() {
            self.inspection.armed = true;
            self.state.deadlines.insert(now.after_us(1), Event::InspectionGoesOn);
        }
    }

    pub(super) fn inspection_goes_on(&mut self, now: Now) {
        self.inspection.armed = false;
        if let Some(job) = self.inspection.jobs.pop_front() {
            self.run(now, job);
        }
        self.arm_inspection(now);
    }

    pub(super) fn inspect_read(&mut self, now: Now, key: u64, body: Result<Gather<B>, ReadError>) {
        if let Some(mut job) = self.inspection.reading.remove(&key) {
            job.work.take(body);
            self.run(now, job);
        }
    }
}

fn shown<B>(row: crate::model::peer::PeerDeadLetter) -> DeadLetter<B> {
    DeadLetter {
        id: row.id,
        queue: row.queue,
        partition: row.partition,
        partition_id: row.partition_id,
        group: row.group,
        offset: row.offset,
        created_at_us: row.created_at_us,
        failed_at_us: row.failed_at_us,
        error: row.error,
        retry_count: row.retry_count,
        frame: Gather::Owned(row.frame),
    }
}

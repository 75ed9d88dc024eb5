//! Reads over all shards: each answers for its part, the shard of the client joins the parts.
//! Also the place where finished reads of the log find whoever asked for them.

use std::collections::BTreeMap;

use super::effect::Effects;
use super::group::{Cursor, Group};
use super::queue::Queue;
use super::shard::{ReadUse, Shard};
use super::task::Task;
use crate::base::buf::{Gather, IoBuf};
use crate::base::compress::Inflater;
use crate::base::ids::{ShardId, Token};
use crate::base::time::Now;
use crate::log::ReadError;
use crate::model::command::{DeadLetterQuery, ReadRequest};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame;
use crate::model::peer::{PeerDeadLetter, PeerMsg, QueuePart, ReadPart, TaskId};
use crate::model::reply::{
    Counts, DeadLetter, PartitionRow, QueueDetail, QueueRow, Reply, ShardStats,
};

/// A read at the shard of its client.
#[derive(Debug)]
pub(super) struct ReadTask {
    token: Token,
    request: ReadRequest,
    left: usize,
    parts: Vec<ReadPart>,
    refusal: Option<Refusal>,
}

/// Dead letters on their way from the log.
#[derive(Debug)]
pub(super) struct ReadJob {
    from: ShardId,
    task: TaskId,
    rows: Vec<PeerDeadLetter>,
    total: u64,
    missing: usize,
    failure: Option<Refusal>,
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn read(&mut self, request: ReadRequest, token: Token, fx: &mut Effects<B>) {
        let left = usize::from(self.config.shards);
        let read =
            ReadTask { token, request: request.clone(), left, parts: Vec::new(), refusal: None };
        let task = self.new_task(Task::Read(Box::new(read)));
        for shard in (0..self.config.shards).map(ShardId) {
            self.send(shard, PeerMsg::Read { task, request: request.clone() }, fx);
        }
    }

    pub(super) fn read_owned(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        request: &ReadRequest,
        fx: &mut Effects<B>,
    ) {
        let part = match request {
            ReadRequest::Queues => {
                let queues = self.state.catalog.iter().map(|(_, queue)| self.queue_part(queue));
                ReadPart::Queues(queues.collect())
            }
            ReadRequest::Queue { queue } => self.queue_detail_part(queue),
            ReadRequest::Shards => {
                // Counters of the process promise nothing, and /health must answer while the
                // disk does not.
                let part = ReadPart::Shard(Box::new(self.shard_stats()));
                return self.send(from, PeerMsg::ReadDone { task, result: Ok(part) }, fx);
            }
            ReadRequest::DeadLetters(query) => {
                return self.read_dead_letters(from, task, query, fx);
            }
            ReadRequest::Walk(walk) => return self.walk(now, from, task, walk, fx),
        };
        self.send_durable(from, PeerMsg::ReadDone { task, result: Ok(part) });
    }

    fn queue_part(&self, queue: &Queue) -> QueuePart {
        QueuePart {
            name: queue.image.name.clone(),
            partitions: queue.partitions.len() as u64,
            segments: self.state.segments.len() as u64,
            counts: Counts {
                total: queue.messages,
                unconsumed: queue.unconsumed(),
                processing: queue.leased(),
                dead_lettered: queue.dead_letters,
                retained_bytes: queue.bytes,
            },
        }
    }

    fn queue_detail_part(&self, name: &str) -> ReadPart {
        let Some(queue) = self.state.catalog.by_name(name) else {
            return ReadPart::Queue { part: None, partitions: Vec::new(), truncated: false };
        };
        // The first rows by name, in one pass and bounded memory.
        let mut rows: BTreeMap<&str, u32> = BTreeMap::new();
        for slot in &queue.partitions {
            let Some(partition) = self.state.parts.get(*slot) else { continue };
            rows.insert(&partition.name, *slot);
            if rows.len() > QueueDetail::PARTITIONS_MAX {
                rows.pop_last();
            }
        }
        let truncated = queue.partitions.len() > rows.len();
        let partitions =
            rows.values().filter_map(|slot| self.partition_row(queue, *slot)).collect();
        ReadPart::Queue { part: Some(self.queue_part(queue)), partitions, truncated }
    }

    fn partition_row(&self, queue: &Queue, slot: u32) -> Option<PartitionRow> {
        let partition = self.state.parts.get(slot)?;
        let retained = partition.retained();
        let owed = |g: &Group| partition.next_offset.0 - g.settled_to(slot, partition).0;
        let named = queue.groups.iter().skip(1).flatten().filter(|g| g.start.is_some());
        let unconsumed =
            named.map(owed).max().unwrap_or_else(|| queue.group(0).map_or(retained, owed));
        let cursors = || queue.groups.iter().flatten().filter_map(|g| g.cursors.get(&slot));
        Some(PartitionRow {
            id: self.state.id_of(slot),
            name: partition.name.to_string(),
            created_at_us: partition.created_at_us,
            counts: Counts {
                total: retained,
                unconsumed,
                processing: cursors().map(Cursor::leased_count).max().unwrap_or(0),
                dead_lettered: self
                    .state
                    .dead_letters
                    .newest_first()
                    .filter(|row| row.slot == slot)
                    .count() as u64,
                retained_bytes: partition.retained_bytes(),
            },
            consumed: cursors().map(|c| c.next.0).max().unwrap_or(0),
            oldest_us: partition.batches.first().map(|b| b.created_at_us),
            newest_us: partition.batches.last().map(|b| b.created_at_us),
        })
    }

    fn shard_stats(&self) -> ShardStats {
        let log = self.log.stats();
        ShardStats {
            shard: self.config.shard,
            pushed: self.counters.pushed,
            duplicates: self.counters.duplicates,
            popped: self.counters.popped,
            acked: self.counters.acked,
            dead_lettered: self.counters.dead_lettered,
            queues: self.state.catalog.len() as u64,
            partitions: self.state.parts.len() as u64,
            parked: (self.lines.parked() + self.pinned.len()) as u64,
            leases: self.state.leases.len() as u64,
            segments: log.segments,
            active_segment: self.log.appended().segment(),
            appended_bytes: log.appended_bytes,
            syncs: log.syncs,
            dedup_ids: self.state.dedup.len() as u64,
            claims: self.counters.claims,
            groups_kept: self.counters.groups_kept,
            groups_recoded: self.counters.groups_recoded,
            batches_compressed: self.counters.batches_compressed,
            empty_claims: self.counters.empty_claims,
            traffic: self.history.total,
            leased_partitions: self.state.leased_partitions,
            log_bytes: log.bytes,
            pending_bytes: log.pending_bytes,
            written_bytes: log.written_bytes,
            writes: log.writes,
            commit_us: log.commit_us,
            last_commit_us: log.last_commit_us,
            commit_records: log.commit_records,
            commit_bytes: log.commit_bytes,
            fault: self.log.fault().map(str::to_owned),
            storage_full: self.log.no_space(),
        }
    }

    // ---- dead letters

    /// The newest rows that match, as many as the page could need, with their messages.
    fn read_dead_letters(
        &mut self,
        from: ShardId,
        task: TaskId,
        query: &DeadLetterQuery,
        fx: &mut Effects<B>,
    ) {
        let want = query.offset.saturating_add(query.limit);
        let mut total = 0;
        let (mut rows, mut reads) = (Vec::new(), Vec::new());
        for row in self.state.dead_letters.newest_first() {
            let Some(partition) = self.state.parts.get(row.slot) else { continue };
            let Some(queue) = self.state.catalog.get(row.queue) else { continue };
            let record = &row.record;
            let wanted = query.queue.as_ref().is_none_or(|q| *q == queue.image.name)
                && query.partition.as_ref().is_none_or(|p| **p == *partition.name)
                && query.group.as_ref().is_none_or(|g| *g == row.group)
                && query.from_us.is_none_or(|us| record.failed_at_us >= us)
                && query.to_us.is_none_or(|us| record.failed_at_us < us);
            if !wanted {
                continue;
            }
            total += 1;
            if rows.len() >= want {
                continue;
            }
            rows.push(PeerDeadLetter {
                id: record.id,
                queue: queue.image.name.clone(),
                partition: partition.name.to_string(),
                partition_id: self.state.id_of(row.slot),
                group: row.group.clone(),
                offset: record.offset,
                created_at_us: record.created_at_us,
                failed_at_us: record.failed_at_us,
                error: record.error.clone(),
                retry_count: record.retry_count,
                frame: Vec::new(),
            });
            reads.push((record.batch_at, record.batch_bytes));
        }
        let missing = rows.len();
        let job = ReadJob { from, task, rows, total, missing, failure: None };
        let id = self.new_id();
        self.read_jobs.insert(id, job);
        for (row, (at, bytes)) in reads.into_iter().enumerate() {
            let read = self.new_id();
            self.reads.insert(read, ReadUse::DeadLetter { job: id, row });
            if let Some(body) = self.log.read(at, bytes, read, &mut self.io) {
                self.reads.remove(&read);
                self.dead_letter_read(id, row, Ok(&body), fx);
            }
        }
        if missing == 0 {
            self.dead_letters_done(id, fx);
        }
    }

    fn dead_letter_read(
        &mut self,
        job: u64,
        row: usize,
        body: Result<&Gather<B>, &ReadError>,
        fx: &mut Effects<B>,
    ) {
        let Some(waiting) = self.read_jobs.get_mut(&job) else { return };
        waiting.missing -= 1;
        match body {
            Ok(body) => {
                let body = body.contiguous();
                let base = frame::BatchHead::decode(&body).map_or(0, |h| h.base_offset.0);
                let target = &mut waiting.rows[row];
                let index = target.offset.0.saturating_sub(base) as usize;
                target.frame = nth_frame(&body, index).unwrap_or_default();
            }
            Err(error) => {
                let text = format!("a dead letter's message cannot be read: {error}");
                waiting.failure = Some(Refusal::new(ErrorCode::Internal, text));
            }
        }
        if waiting.missing == 0 {
            self.dead_letters_done(job, fx);
        }
    }

    fn dead_letters_done(&mut self, job: u64, _fx: &mut Effects<B>) {
        let Some(job) = self.read_jobs.remove(&job) else { return };
        let part = ReadPart::DeadLetters { rows: job.rows, total: job.total };
        let result = job.failure.map_or(Ok(part), Err);
        self.send_durable(job.from, PeerMsg::ReadDone { task: job.task, result });
    }

    // ---- joining

    pub(super) fn read_part(
        &mut self,
        task: TaskId,
        result: Result<ReadPart, Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Read(read)) = self.tasks.get_mut(&task) else { return };
        read.left -= 1;
        match result {
            Ok(part) => read.parts.push(part),
            Err(refusal) => read.refusal = Some(refusal),
        }
        if read.left > 0 {
            return;
        }
        let Some(Task::Read(read)) = self.tasks.remove(&task) else { return };
        let reply = match (read.refusal, &read.request) {
            (Some(refusal), _) => Reply::Refused(refusal),
            (None, ReadRequest::Queues) => Reply::Queues(self.join_queues(read.parts)),
            (None, ReadRequest::Queue { queue }) => {
                Reply::Queue(self.join_queue(queue, read.parts).map(Box::new))
            }
            (None, ReadRequest::DeadLetters(query)) => join_dead_letters(query, read.parts),
            (None, ReadRequest::Walk(_)) => super::walk::join(read.parts),
            (None, ReadRequest::Shards) => {
                let mut stats: Vec<ShardStats> = read
                    .parts
                    .into_iter()
                    .filter_map(
                        |p| if let ReadPart::Shard(stats) = p { Some(*stats) } else { None },
                    )
                    .collect();
                stats.sort_unstable_by_key(|s| s.shard);
                Reply::Shards(stats)
            }
        };
        fx.reply(read.token, reply);
    }

    fn join_queues(&self, parts: Vec<ReadPart>) -> Vec<QueueRow> {
        let mut sums: BTreeMap<String, QueuePart> = BTreeMap::new();
        for part in parts {
            let ReadPart::Queues(queues) = part else { continue };
            for part in queues {
                match sums.get_mut(&part.name) {
                    Some(sum) => add_part(sum, &part),
                    None => {
                        sums.insert(part.name.clone(), part);
                    }
                }
            }
        }
        let mut rows: Vec<QueueRow> =
            sums.into_values().filter_map(|sum| self.queue_row(&sum)).collect();
        rows.sort_by(|a, b| b.created_at_us.cmp(&a.created_at_us).then(a.name.cmp(&b.name)));
        rows
    }

    fn queue_row(&self, part: &QueuePart) -> Option<QueueRow> {
        let image = &self.state.catalog.by_name(&part.name)?.image;
        Some(QueueRow {
            id: image.id,
            name: image.name.clone(),
            options: image.options.clone(),
            created_at_us: image.created_at_us,
            partitions: part.partitions,
            segments: part.segments,
            counts: part.counts,
        })
    }

    fn join_queue(&self, name: &str, parts: Vec<ReadPart>) -> Option<QueueDetail> {
        let mut sum: Option<QueuePart> = None;
        let (mut rows, mut cut) = (Vec::new(), false);
        for part in parts {
            let ReadPart::Queue { part, partitions, truncated } = part else { continue };
            rows.extend(partitions);
            cut |= truncated;
            match (&mut sum, part) {
                (Some(sum), Some(part)) => add_part(sum, &part),
                (None, part) => sum = part,
                (Some(_), None) => {}
            }
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        cut |= rows.len() > QueueDetail::PARTITIONS_MAX;
        rows.truncate(QueueDetail::PARTITIONS_MAX);
        debug_assert!(sum.as_ref().is_none_or(|s| s.name == name));
        Some(QueueDetail { row: self.queue_row(&sum?)?, partitions: rows, truncated: cut })
    }

    // ---- finished reads of the log

    pub(super) fn read_ended(
        &mut self,
        now: Now,
        key: u64,
        result: Result<Gather<B>, ReadError>,
        fx: &mut Effects<B>,
    ) {
        match self.reads.remove(&key) {
            Some(ReadUse::Claim { job, claim, batch }) => {
                self.claim_read(now, job, claim, batch, result, fx);
            }
            Some(ReadUse::Push { job, key }) => self.push_read(now, job, key, result.ok(), fx),
            Some(ReadUse::Ack { job, key }) => {
                self.ack_read(now, job, key, result.as_ref().ok(), fx);
            }
            Some(ReadUse::Share { transaction, key }) => {
                self.share_read(now, transaction, key, result.ok(), fx);
            }
            Some(ReadUse::DeadLetter { job, row }) => {
                self.dead_letter_read(job, row, result.as_ref(), fx);
            }
            None => unreachable!("every read of the log is asked for by somebody"),
        }
    }
}

fn add_part(sum: &mut QueuePart, part: &QueuePart) {
    sum.partitions += part.partitions;
    sum.segments += part.segments;
    sum.counts.add(&part.counts);
}

/// The bytes of one frame of a batch.
fn nth_frame(body: &[u8], index: usize) -> Option<Vec<u8>> {
    let mut frames = Vec::new();
    super::append::open_batch(body, &mut Inflater::default(), &mut frames);
    let mut bytes = frames.as_slice();
    for _ in 0..index {
        bytes = frame::split_frame(bytes)?.1;
    }
    let (_, rest) = frame::split_frame(bytes)?;
    Some(bytes[..bytes.len() - rest.len()].to_vec())
}

fn join_dead_letters<B>(query: &DeadLetterQuery, parts: Vec<ReadPart>) -> Reply<B> {
    let (mut all, mut sum) = (Vec::new(), 0);
    for part in parts {
        let ReadPart::DeadLetters { rows, total } = part else { continue };
        all.extend(rows);
        sum += total;
    }
    all.sort_by_key(|row| std::cmp::Reverse((row.failed_at_us, row.id)));
    let rows = all
        .into_iter()
        .skip(query.offset)
        .take(query.limit)
        .map(|row| DeadLetter {
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
        })
        .collect();
    Reply::DeadLetters { rows, total: sum }
}

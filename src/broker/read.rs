//! Reads over all shards: each answers for its part, the shard of the client joins the parts.
//! Also the place where finished reads of the log find whoever asked for them.

use std::collections::BTreeMap;

use super::effect::Effects;
use super::shard::{ReadUse, Shard};
use super::task::Task;
use crate::base::buf::{Gather, IoBuf};
use crate::base::ids::{ShardId, Token};
use crate::base::time::Now;
use crate::log::ReadError;
use crate::model::command::ReadRequest;
use crate::model::error::Refusal;
use crate::model::inspect::InspectRequest;
use crate::model::peer::{PeerMsg, QueuePart, ReadPart, TaskId};
use crate::model::reply::{QueueRow, Reply, ShardStats};

/// A read at the shard of its client.
#[derive(Debug)]
pub(super) struct ReadTask {
    token: Token,
    request: ReadRequest,
    left: usize,
    parts: Vec<ReadPart>,
    refusal: Option<Refusal>,
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn read(&mut self, request: ReadRequest, token: Token, fx: &mut Effects<B>) {
        match request {
            ReadRequest::DeadLetters(query) => {
                return self.inspect(InspectRequest::DeadLetters(query), token, fx);
            }
            ReadRequest::Queue { queue } => {
                return self.inspect(InspectRequest::Queue { queue }, token, fx);
            }
            ReadRequest::Queues | ReadRequest::Shards | ReadRequest::Walk(_) => {}
        }
        let left = usize::from(self.config.shards);
        let read =
            ReadTask { token, request: request.clone(), left, parts: Vec::new(), refusal: None };
        let task = self.new_task(Task::Read(Box::new(read)));
        for shard in (0..self.config.shards).map(ShardId) {
            self.send(shard, PeerMsg::Read { task, request: Box::new(request.clone()) }, fx);
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
                let queues =
                    self.state.catalog.iter().map(|(_, queue)| self.state.queue_part(queue));
                ReadPart::Queues(queues.collect())
            }
            ReadRequest::Shards => {
                // Counters of the process promise nothing, and /health must answer while the
                // disk does not.
                let part = ReadPart::Shard(Box::new(self.shard_stats()));
                return self.send(from, PeerMsg::ReadDone { task, result: Ok(part) }, fx);
            }
            ReadRequest::Queue { .. } | ReadRequest::DeadLetters(_) => {
                unreachable!("worked off in steps")
            }
            ReadRequest::Walk(walk) => return self.walk(now, from, task, walk, fx),
        };
        self.send_durable(from, PeerMsg::ReadDone { task, result: Ok(part) });
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
            reads: log.reads,
            read_bytes: log.read_bytes,
            commit_us: log.commit_us,
            last_commit_us: log.last_commit_us,
            commit_records: log.commit_records,
            commit_bytes: log.commit_bytes,
            fault: self.log.fault().map(str::to_owned),
            storage_full: self.log.no_space(),
        }
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
            (None, ReadRequest::Walk(_)) => super::walk::join(read.parts),
            (None, _) => {
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
                    Some(sum) => sum.add(&part),
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

    pub(super) fn queue_row(&self, part: &QueuePart) -> Option<QueueRow> {
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
            Some(ReadUse::Inspect) => self.inspect_read(now, key, result),
            None => unreachable!("every read of the log is asked for by somebody"),
        }
    }
}

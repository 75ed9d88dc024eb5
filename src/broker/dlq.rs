//! Dead letters of one shard: listing, reading a page of them, deletion of one message's, and
//! the purge of a queue's. What is deleted is a record: one for each step of a purge.

use std::collections::BTreeMap;

use super::dead_letters::{Row, RowKey};
use super::inspect::{Progress, Work};
use super::partition::Slot;
use super::records;
use super::shard::Shard;
use crate::base::buf::{Gather, IoBuf};
use crate::base::compress::Inflater;
use crate::base::ids::{LogPosition, PartitionId};
use crate::base::time::Now;
use crate::log::ReadError;
use crate::model::command::DeadLetterQuery;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{self, BatchHead};
use crate::model::inspect::{DeadLetterAddress, DeadLetterKey, InspectPart};
use crate::model::peer::PeerDeadLetter;

/// Rows looked at in one step.
const LOOKS_PER_STEP: usize = 1_000;
/// Rows deleted by one record.
const DELETED_PER_STEP: usize = 256;

/// Everything that is there when it begins.
const START: RowKey = (i64::MAX, [255; 16]);

// ---- finding rows

#[derive(Debug)]
pub(super) struct List {
    query: DeadLetterQuery,
    /// `Some(None)`: a queue that is not there.
    queue: Option<Option<u32>>,
    before: RowKey,
    keys: Vec<DeadLetterKey>,
    total: u64,
}

impl List {
    pub(super) fn new<B: IoBuf>(shard: &Shard<B>, query: DeadLetterQuery) -> Self {
        let queue = query.queue.as_ref().map(|name| shard.state.catalog.find(name));
        Self { query, queue, before: START, keys: Vec::new(), total: 0 }
    }

    fn wants<B: IoBuf>(&self, shard: &Shard<B>, row: &Row) -> bool {
        let (query, record) = (&self.query, &row.record);
        let partition = |name: &String| {
            shard.state.parts.get(row.slot).is_some_and(|partition| *partition.name == **name)
        };
        query.group.as_ref().is_none_or(|group| *group == row.group)
            && query.partition.as_ref().is_none_or(partition)
            && query.from_us.is_none_or(|us| record.failed_at_us >= us)
            && query.to_us.is_none_or(|us| record.failed_at_us < us)
    }
}

impl<B: IoBuf> Work<B> for List {
    fn step(&mut self, shard: &mut Shard<B>, _now: Now) -> Progress {
        let letters = &shard.state.dead_letters;
        let queue = match self.queue {
            Some(None) => None,
            Some(Some(queue)) => Some(Some(queue)),
            None => Some(None),
        };
        let mut looks = 0;
        let rows = queue.map(|queue| letters.older_than(queue, self.before));
        for row in rows.into_iter().flatten().take(LOOKS_PER_STEP) {
            looks += 1;
            self.before = (row.record.failed_at_us, row.record.id);
            if !self.wants(shard, row) {
                continue;
            }
            self.total += 1;
            if self.keys.len() < self.query.offset.saturating_add(self.query.limit) {
                self.keys.push(DeadLetterKey {
                    failed_at_us: row.record.failed_at_us,
                    id: row.record.id,
                    partition: shard.state.id_of(row.slot),
                });
            }
        }
        if looks == LOOKS_PER_STEP {
            return Progress::More;
        }
        let keys = std::mem::take(&mut self.keys);
        Progress::Done(Ok(InspectPart::DeadLetterKeys { keys, total: self.total }))
    }
}

// ---- reading a page

/// Reads the messages of rows, batch by batch, until the answer is full.
#[derive(Debug)]
pub(super) struct Rows {
    keys: Vec<DeadLetterKey>,
    at: usize,
    bytes: usize,
    budget: usize,
    rows: Vec<PeerDeadLetter>,
    read: Option<Result<Vec<u8>, Refusal>>,
}

impl Rows {
    pub(super) fn new(keys: Vec<DeadLetterKey>, budget: usize) -> Self {
        Self { keys, at: 0, bytes: 0, budget, rows: Vec::new(), read: None }
    }

    fn done(&mut self, cut: Option<DeadLetterKey>) -> Progress {
        let rows = std::mem::take(&mut self.rows);
        Progress::Done(Ok(InspectPart::DeadLetterRows { rows, cut }))
    }
}

impl<B: IoBuf> Work<B> for Rows {
    fn step(&mut self, shard: &mut Shard<B>, _now: Now) -> Progress {
        while let Some(key) = self.keys.get(self.at).copied() {
            let row = shard.state.dead_letters.by_id(&key.id);
            let seen = row.and_then(|row| {
                let partition = shard.state.parts.get(row.slot)?;
                Some((row, partition, shard.state.catalog.get(row.queue)?))
            });
            // Deleted since it was found.
            let Some((row, partition, queue)) = seen else {
                (self.at, self.read) = (self.at + 1, None);
                continue;
            };
            let record = &row.record;
            let body = match self.read.take() {
                Some(Ok(body)) => body,
                Some(Err(refusal)) => return Progress::Done(Err(refusal)),
                None if self.bytes >= self.budget => return self.done(Some(key)),
                None => return Progress::Read(record.batch_at, record.batch_bytes),
            };
            let base = BatchHead::decode(&body).map_or(0, |head| head.base_offset.0);
            let frame = nth_frame(&body, record.offset.0.saturating_sub(base) as usize);
            let row = PeerDeadLetter {
                id: record.id,
                queue: queue.image.name.clone(),
                partition: partition.name.to_string(),
                partition_id: key.partition,
                group: row.group.clone(),
                offset: record.offset,
                created_at_us: record.created_at_us,
                failed_at_us: record.failed_at_us,
                error: record.error.clone(),
                retry_count: record.retry_count,
                frame: frame.unwrap_or_default(),
            };
            self.bytes += row.frame.len() + row.error.len();
            self.rows.push(row);
            self.at += 1;
        }
        self.done(None)
    }

    fn take(&mut self, body: Result<Gather<B>, ReadError>) {
        let unreadable = |error| {
            let text = format!("a dead letter's message cannot be read: {error}");
            Refusal::new(ErrorCode::Internal, text)
        };
        self.read = Some(body.map(|body| body.to_vec()).map_err(unreadable));
    }
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

// ---- deletion

impl<B: IoBuf> Shard<B> {
    /// Deletes rows durably. Nothing changes where the log refuses.
    pub(super) fn delete_dead_letters(&mut self, ids: &[[u8; 16]]) -> Result<(), Refusal> {
        if ids.is_empty() {
            return Ok(());
        }
        let body = records::encode_dead_letters_deleted(ids);
        self.append(records::DEAD_LETTERS_DELETED, 0, &[&body])?;
        for id in ids {
            self.state.unfile(id);
        }
        Ok(())
    }

    /// The partition and the fingerprint of a message's address.
    pub(super) fn address(
        &self,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Option<(Slot, u64)> {
        let slot = self.state.slot_of(partition)?;
        let fingerprint = self.log.fingerprint_key().fingerprint(transaction_id.as_bytes());
        Some((slot, records::table_fingerprint(fingerprint)))
    }
}

impl<B: IoBuf> Shard<B> {
    /// The key of the row that is named, if it is here.
    pub(super) fn find_dead_letter(&self, address: &DeadLetterAddress) -> InspectPart {
        let letters = &self.state.dead_letters;
        let row = match address {
            DeadLetterAddress::Id(id) => letters.by_id(id),
            DeadLetterAddress::Message { partition, transaction_id } => self
                .address(*partition, transaction_id)
                .and_then(|(slot, fingerprint)| letters.by_transaction(slot, fingerprint).next()),
        };
        let keys: Vec<DeadLetterKey> = row
            .into_iter()
            .map(|row| DeadLetterKey {
                failed_at_us: row.record.failed_at_us,
                id: row.record.id,
                partition: self.state.id_of(row.slot),
            })
            .collect();
        InspectPart::DeadLetterKeys { total: keys.len() as u64, keys }
    }
}

/// Deletes the rows of one message's address.
#[derive(Debug)]
pub(super) struct Delete {
    slot: Slot,
    fingerprint: u64,
    deleted: u64,
}

impl Delete {
    pub(super) fn begin<B: IoBuf>(
        shard: &Shard<B>,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Option<Self> {
        let (slot, fingerprint) = shard.address(partition, transaction_id)?;
        Some(Self { slot, fingerprint, deleted: 0 })
    }
}

impl<B: IoBuf> Work<B> for Delete {
    fn step(&mut self, shard: &mut Shard<B>, _now: Now) -> Progress {
        let rows = shard.state.dead_letters.by_transaction(self.slot, self.fingerprint);
        let ids: Vec<[u8; 16]> = rows.take(DELETED_PER_STEP).map(|row| row.record.id).collect();
        if let Err(refusal) = shard.delete_dead_letters(&ids) {
            return Progress::Done(Err(refusal));
        }
        self.deleted += ids.len() as u64;
        if ids.len() == DELETED_PER_STEP {
            return Progress::More;
        }
        Progress::Done(Ok(InspectPart::Deleted(self.deleted)))
    }
}

/// Deletes a queue's rows, or one group's of it.
#[derive(Debug)]
pub(super) struct Purge {
    queue: u32,
    group: Option<String>,
    before: RowKey,
    deleted: u64,
}

impl Purge {
    pub(super) fn begin<B: IoBuf>(
        shard: &Shard<B>,
        queue: &str,
        group: Option<String>,
    ) -> Option<Self> {
        let queue = shard.state.catalog.find(queue)?;
        Some(Self { queue, group, before: START, deleted: 0 })
    }
}

impl<B: IoBuf> Work<B> for Purge {
    fn step(&mut self, shard: &mut Shard<B>, _now: Now) -> Progress {
        let rows = shard.state.dead_letters.older_than(Some(self.queue), self.before);
        let (mut ids, mut looks) = (Vec::new(), 0);
        for row in rows {
            looks += 1;
            self.before = (row.record.failed_at_us, row.record.id);
            if self.group.as_ref().is_none_or(|group| *group == row.group) {
                ids.push(row.record.id);
            }
            if looks == LOOKS_PER_STEP || ids.len() == DELETED_PER_STEP {
                break;
            }
        }
        if let Err(refusal) = shard.delete_dead_letters(&ids) {
            return Progress::Done(Err(refusal));
        }
        self.deleted += ids.len() as u64;
        if looks == LOOKS_PER_STEP || ids.len() == DELETED_PER_STEP {
            return Progress::More;
        }
        Progress::Done(Ok(InspectPart::Deleted(self.deleted)))
    }
}

/// For the reading of one batch after another.
pub(super) type BodyNumbers = BTreeMap<LogPosition, u32>;

//! Records of transactions, and what replay keeps of them until it knows how each ended.
//!
//! A transaction's messages lie in records of their own (`TRANSACTION_BATCH`) in front of the one
//! that decides them; a pop reads them there as it reads any batch. That one lists *effects*:
//! for each cursor its whole new state, for each batch its place. It is a `TRANSACTION` where all
//! lies on one shard. Across shards it is a `PREPARE` on every shard but the coordinator's, where
//! it is the `COMMIT`. That one names the places of all the prepares: the transaction is committed
//! if these are in the logs. Each share is applied at its `END`.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::partition::Slot;
use super::records::{self, CursorRecord, Malformed, Reader, Writer};
use super::state::{State, batch_of, slot_of_key};
use crate::base::ids::{LogPosition, PartitionId, SegmentId, ShardId};
use crate::base::time::Now;
use crate::broker::partition::BatchRef;
use crate::log::Record;
use crate::model::transaction::TransactionId;

/// The body of `TRANSACTION` and `PREPARE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionRecord<'a> {
    pub id: TransactionId,
    /// Of a `PREPARE`.
    pub coordinator: Option<ShardId>,
    pub effects: &'a [u8],
}

impl<'a> TransactionRecord<'a> {
    pub fn encode(&self) -> records::Body {
        let mut w = Writer::default();
        w.id(&self.id.0).u32(self.coordinator.is_some().into());
        if let Some(shard) = self.coordinator {
            w.u32(shard.0.into());
        }
        w.0.extend_from_slice(self.effects);
        w.0
    }

    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let id = TransactionId(r.id()?);
        let coordinator = match r.u32()? {
            0 => None,
            1 => Some(shard_id(&mut r)?),
            _ => return Err(Malformed),
        };
        Ok(Self { id, coordinator, effects: r.0 })
    }
}

/// Where the shares of a transaction's other participants are prepared.
pub type Prepares = SmallVec<[(ShardId, LogPosition); 4]>;

/// The body of `COMMIT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitRecord<'a> {
    pub id: TransactionId,
    pub prepares: Prepares,
    pub effects: &'a [u8],
}

impl<'a> CommitRecord<'a> {
    pub fn encode(&self) -> records::Body {
        let mut w = Writer::default();
        w.id(&self.id.0).u32(self.prepares.len() as u32);
        for (shard, at) in &self.prepares {
            w.u32(shard.0.into()).u64(at.to_bits());
        }
        w.0.extend_from_slice(self.effects);
        w.0
    }

    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let id = TransactionId(r.id()?);
        let count = r.u32()?;
        let mut prepares = Prepares::new();
        for _ in 0..count {
            prepares.push((shard_id(&mut r)?, LogPosition::from_bits(r.u64()?)));
        }
        Ok(Self { id, prepares, effects: r.0 })
    }
}

fn shard_id(r: &mut Reader<'_>) -> Result<ShardId, Malformed> {
    u16::try_from(r.u32()?).map(ShardId).or(Err(Malformed))
}

pub fn encode_end(id: TransactionId, committed: bool) -> records::Body {
    Writer::default().id(&id.0).u8(committed.into()).body()
}

pub fn decode_end(body: &[u8]) -> Result<(TransactionId, bool), Malformed> {
    let mut r = Reader(body);
    let out = (TransactionId(r.id()?), r.u8()? != 0);
    r.end()?;
    Ok(out)
}

/// One effect: the kind of the record that would have it by itself, its key, and its body; of a
/// batch the place and length of its record instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EffectRecord<'a> {
    pub kind: u8,
    pub partition: PartitionId,
    pub body: &'a [u8],
}

impl<'a> EffectRecord<'a> {
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut head = Writer::default();
        head.u8(self.kind).u64(self.partition.0).u32(self.body.len() as u32);
        out.extend_from_slice(&head.0);
        out.extend_from_slice(self.body);
    }

    fn read(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (kind, partition) = (r.u8()?, PartitionId(r.u64()?));
        let bytes = r.u32()? as usize;
        let (body, rest) = r.0.split_at_checked(bytes).ok_or(Malformed)?;
        r.0 = rest;
        Ok(Self { kind, partition, body })
    }
}

/// The effects of a record, in order.
pub fn effects(bytes: &[u8]) -> impl Iterator<Item = Result<EffectRecord<'_>, Malformed>> {
    let mut r = Reader(bytes);
    std::iter::from_fn(move || {
        (!r.0.is_empty()).then(|| {
            let effect = EffectRecord::read(&mut r);
            if effect.is_err() {
                r.0 = &[];
            }
            effect
        })
    })
}

pub fn encode_place(stored: &BatchRef) -> records::Body {
    Writer::default().u64(stored.at.to_bits()).u32(stored.bytes).body()
}

/// Messages of a transaction that replay has seen and nothing has decided yet.
#[derive(Debug)]
struct Loose {
    slot: Slot,
    stored: BatchRef,
    table: Vec<u8>,
}

/// A share that replay found prepared and not ended.
#[derive(Debug)]
struct Prepared {
    coordinator: ShardId,
    effects: Vec<u8>,
    at: SegmentId,
}

/// A transaction that this shard coordinates, whose commit record replay found.
#[derive(Debug)]
struct Coordinated {
    at: SegmentId,
    fate: Fate,
}

#[derive(Debug)]
enum Fate {
    /// No end was found: it is committed if these are in the logs. Boxed, as of all commit records
    /// in the log only the newest hang.
    Hangs(Box<Prepares>),
    Ended {
        committed: bool,
    },
}

/// What the log knows of transactions whose end it has not.
#[derive(Default, Debug)]
pub(super) struct Undecided {
    loose: BTreeMap<LogPosition, Loose>,
    prepared: BTreeMap<TransactionId, Prepared>,
    /// Until all participants have ended.
    coordinated: BTreeMap<TransactionId, Coordinated>,
}

impl Undecided {
    /// Shares found prepared, by coordinator.
    pub(super) fn prepared_for(&self, coordinator: ShardId) -> Vec<TransactionId> {
        let of = self.prepared.iter().filter(|(_, share)| share.coordinator == coordinator);
        of.map(|(id, _)| *id).collect()
    }

    /// Transactions this shard coordinates whose end is not known, each with what must be in the
    /// logs for it to be committed.
    pub(super) fn hanging(&self) -> Vec<(TransactionId, Prepares)> {
        let hanging = self.coordinated.iter().filter_map(|(id, found)| match &found.fate {
            Fate::Hangs(prepares) => Some((*id, (**prepares).clone())),
            Fate::Ended { .. } => None,
        });
        hanging.collect()
    }

    pub(super) fn is_committed(&self, id: TransactionId) -> bool {
        let found = self.coordinated.get(&id);
        found.is_some_and(|found| matches!(found.fate, Fate::Ended { committed: true }))
    }

    /// Replay has ended: messages that no record refers to are nothing.
    pub(super) fn forget_loose(&mut self) {
        let mut wanted = std::collections::BTreeSet::new();
        for share in self.prepared.values() {
            wanted.extend(batch_places(&share.effects));
        }
        self.loose.retain(|at, _| wanted.contains(at));
    }
}

fn batch_places(bytes: &[u8]) -> impl Iterator<Item = LogPosition> + '_ {
    effects(bytes)
        .flatten()
        .filter(|effect| effect.kind == records::BATCH)
        .filter_map(|effect| Reader(effect.body).u64().ok())
        .map(LogPosition::from_bits)
}

impl State {
    pub(super) fn replay_transaction(
        &mut self,
        record: &Record<'_>,
        now: Now,
    ) -> Result<(), Malformed> {
        let at = record.at.segment();
        match record.kind {
            records::TRANSACTION_BATCH => {
                let (stored, table) = batch_of(record)?;
                let slot = slot_of_key(record.key)?;
                let loose = Loose { slot, stored, table: table.to_vec() };
                self.undecided.loose.insert(stored.at, loose);
            }
            records::TRANSACTION => {
                let body = TransactionRecord::decode(record.body)?;
                self.apply_effects(body.effects, at, record.at, now)?;
            }
            records::PREPARE => {
                let body = TransactionRecord::decode(record.body)?;
                let coordinator = body.coordinator.ok_or(Malformed)?;
                self.found_prepared(body.id, coordinator, body.effects, at);
            }
            records::COMMIT => {
                let body = CommitRecord::decode(record.body)?;
                self.segments.add(at);
                let found = Coordinated { at, fate: Fate::Hangs(Box::new(body.prepares)) };
                self.undecided.coordinated.insert(body.id, found);
                self.found_prepared(body.id, self.shard, body.effects, at);
            }
            _ => {
                let (id, committed) = decode_end(record.body)?;
                self.end_prepared(id, committed, record.at, now)?;
            }
        }
        Ok(())
    }

    fn found_prepared(
        &mut self,
        id: TransactionId,
        coordinator: ShardId,
        effects: &[u8],
        at: SegmentId,
    ) {
        self.pin_prepared(effects, at);
        let share = Prepared { coordinator, effects: effects.to_vec(), at };
        self.undecided.prepared.insert(id, share);
    }

    /// A prepared share keeps its record and its messages until its end is known.
    pub(super) fn pin_prepared(&mut self, effects: &[u8], at: SegmentId) {
        self.segments.add(at);
        batch_places(effects).for_each(|place| self.segments.add(place.segment()));
    }

    pub(super) fn unpin_prepared(&mut self, effects: &[u8], at: SegmentId) {
        self.segments.remove(at);
        batch_places(effects).for_each(|place| self.segments.remove(place.segment()));
    }

    /// Applies or forgets a share that replay found prepared.
    pub(super) fn end_prepared(
        &mut self,
        id: TransactionId,
        committed: bool,
        ended_at: LogPosition,
        now: Now,
    ) -> Result<(), Malformed> {
        if let Some(found) = self.undecided.coordinated.get_mut(&id) {
            found.fate = Fate::Ended { committed };
        }
        // Its record may be gone with the segments before this one: then so is what it did.
        let Some(share) = self.undecided.prepared.remove(&id) else { return Ok(()) };
        if committed {
            self.apply_effects(&share.effects, share.at, ended_at, now)?;
        }
        for place in batch_places(&share.effects) {
            self.undecided.loose.remove(&place);
        }
        self.unpin_prepared(&share.effects, share.at);
        Ok(())
    }

    /// All participants of the commits that replay found have ended.
    pub(super) fn forget_commits(&mut self) {
        for found in std::mem::take(&mut self.undecided.coordinated).into_values() {
            self.segments.remove(found.at);
        }
    }

    fn apply_effects(
        &mut self,
        bytes: &[u8],
        at: SegmentId,
        decided_at: LogPosition,
        now: Now,
    ) -> Result<(), Malformed> {
        for effect in effects(bytes) {
            let effect = effect?;
            match effect.kind {
                records::CURSOR => {
                    let slot = slot_of_key(effect.partition.0)?;
                    let mut body = CursorRecord::decode(effect.body)?;
                    body.filed.retain(|row| self.is_stored(slot, row));
                    self.take_cursor(slot, body, at, now);
                }
                records::BATCH => {
                    let place = LogPosition::from_bits(Reader(effect.body).u64()?);
                    // Gone where retention dropped its messages and then its segment.
                    if let Some(loose) = self.undecided.loose.remove(&place) {
                        self.take_batch(loose.slot, loose.stored, &loose.table, decided_at, now);
                    }
                }
                records::DEAD_LETTERS_DELETED => {
                    for id in records::decode_dead_letters_deleted(effect.body)? {
                        self.unfile(&id);
                    }
                }
                _ => return Err(Malformed),
            }
        }
        Ok(())
    }

    /// Whether a dead letter's message is still there: retention may have dropped it between the
    /// judgement and its end.
    pub(super) fn is_stored(&self, slot: Slot, row: &records::DeadLetterRecord) -> bool {
        let partition = self.parts.get(slot);
        partition.and_then(|p| p.batch_of(row.offset)).is_some_and(|b| b.at == row.batch_at)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn bodies_round_trip_and_every_truncation_is_malformed_or_shorter() {
        let mut bytes = Vec::new();
        let first = EffectRecord { kind: 22, partition: PartitionId(7), body: b"abc" };
        let second = EffectRecord { kind: 21, partition: PartitionId(9), body: b"" };
        first.write(&mut bytes);
        second.write(&mut bytes);
        assert_eq!(effects(&bytes).collect::<Result<Vec<_>, _>>(), Ok(vec![first, second]));
        for end in 0..bytes.len() {
            let read: Result<Vec<_>, _> = effects(&bytes[..end]).collect();
            let whole = end == 0 || end == 16;
            assert_eq!(read.is_ok(), whole, "{end}");
        }
        let record = TransactionRecord {
            id: TransactionId([4; 16]),
            coordinator: Some(ShardId(3)),
            effects: &bytes,
        };
        let body = record.encode();
        assert_eq!(TransactionRecord::decode(&body), Ok(record));
        for end in 0..24 {
            assert_eq!(TransactionRecord::decode(&body[..end]), Err(Malformed), "{end}");
        }
        let whole =
            TransactionRecord { id: TransactionId([4; 16]), coordinator: None, effects: &[] };
        assert_eq!(TransactionRecord::decode(&whole.encode()), Ok(whole));
        let place = |segment| LogPosition::new(SegmentId(segment), 4_104);
        let commit = CommitRecord {
            id: TransactionId([4; 16]),
            prepares: smallvec![(ShardId(0), place(7)), (ShardId(3), place(1))],
            effects: &bytes,
        };
        let body = commit.encode();
        assert_eq!(CommitRecord::decode(&body), Ok(commit));
        for end in 0..44 {
            assert_eq!(CommitRecord::decode(&body[..end]), Err(Malformed), "{end}");
        }
        for committed in [true, false] {
            let end = encode_end(TransactionId([5; 16]), committed);
            assert_eq!(decode_end(&end), Ok((TransactionId([5; 16]), committed)));
            assert_eq!(decode_end(&end[..16]), Err(Malformed));
        }
    }
}

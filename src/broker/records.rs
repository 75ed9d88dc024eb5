//! Bodies of the broker's log records: encode and decode. The byte tables stand in
//! `src/log/FORMAT.md`; every integer is little-endian, a string is `u16 length | UTF-8`.

use crate::base::ids::{LeaseId, LogPosition, MessageId, Offset};
use crate::base::spare::Reuse;
use smallvec::SmallVec;

use crate::model::peer::{GroupImage, GroupStart, Name, QueueImage, Registration, Subscribed};

/// Record kinds of the broker; the log keeps those below 16 for itself.
pub const QUEUE: u8 = 16;
pub const QUEUE_DELETED: u8 = 17;
pub const GROUP: u8 = 18;
pub const PARTITION: u8 = 20;
pub const BATCH: u8 = 21;
pub const CURSOR: u8 = 22;
pub const LOG_START: u8 = 23;
pub const DEAD_LETTERS_DELETED: u8 = 24;
pub const TRACE: u8 = 25;
/// A transaction whole on this shard.
pub const TRANSACTION: u8 = 26;
/// This shard's share of a transaction across shards, to be applied or not.
pub const PREPARE: u8 = 27;
/// What became of a share that was to be applied or not.
pub const END: u8 = 29;
/// Messages that a transaction's record refers to. Without that record they are nothing.
pub const TRANSACTION_BATCH: u8 = 30;
/// The coordinator's own share, and where the shares of the others are prepared: if all are in
/// the logs, it is committed.
pub const COMMIT: u8 = 31;

/// The body of a record is not what its kind promises. Its checksum was right, so this is a
/// bug or a newer writer, not damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// A body being written. Those of nearly all records fit without an allocation.
pub type Body = SmallVec<[u8; 256]>;

/// Appends fields.
#[derive(Default)]
pub struct Writer(pub Body);

impl Writer {
    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }

    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub fn i64(&mut self, v: i64) -> &mut Self {
        self.u64(v.cast_unsigned())
    }

    pub fn id(&mut self, v: &[u8; 16]) -> &mut Self {
        self.0.extend_from_slice(v);
        self
    }

    /// `v` is at most 65,535 bytes: names and cut error texts are far shorter.
    pub fn text(&mut self, v: &str) -> &mut Self {
        let len = u16::try_from(v.len()).expect("texts in records are bounded");
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(v.as_bytes());
        self
    }

    /// What was written.
    pub fn body(&mut self) -> Body {
        std::mem::take(&mut self.0)
    }
}

/// Takes fields off the front.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.take().map(i64::from_le_bytes)
    }

    pub fn id(&mut self) -> Result<[u8; 16], Malformed> {
        self.take()
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        std::str::from_utf8(head).or(Err(Malformed))
    }

    pub fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

pub fn encode_queue(queue: &QueueImage) -> Body {
    let options = serde_json::to_vec(&queue.options).expect("options are plain data");
    let mut body = Writer::default()
        .text(&queue.name)
        .id(&queue.id)
        .u64(queue.incarnation)
        .i64(queue.created_at_us)
        .body();
    body.extend_from_slice(&options);
    body
}

pub fn decode_queue(body: &[u8]) -> Result<QueueImage, Malformed> {
    let mut r = Reader(body);
    Ok(QueueImage {
        name: r.text()?.to_owned(),
        id: r.id()?,
        incarnation: r.u64()?,
        created_at_us: r.i64()?,
        options: serde_json::from_slice(r.0).or(Err(Malformed))?,
    })
}

pub fn encode_queue_deleted(name: &str, incarnation: u64) -> Body {
    Writer::default().text(name).u64(incarnation).body()
}

pub fn decode_queue_deleted(body: &[u8]) -> Result<(&str, u64), Malformed> {
    let mut r = Reader(body);
    let out = (r.text()?, r.u64()?);
    r.end()?;
    Ok(out)
}

/// What a shard alone decides about a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupHere {
    /// Where its log stood when a seek came.
    pub cut: LogPosition,
    /// Under which of the queue's epochs its cursors began.
    pub cursors_epoch: u64,
}

pub fn encode_group(group: &GroupImage, here: GroupHere) -> Body {
    let (rule, from_us) = match group.start {
        Some(GroupStart::Oldest) => (0, 0),
        Some(GroupStart::From(us)) => (1, us),
        Some(GroupStart::Seek(us)) => (2, us),
        None => (3, 0),
    };
    let registered = group.registration.as_ref();
    let (subscribed, subscribed_us) = match registered.map(|r| r.subscribed) {
        None => (0, 0),
        Some(Subscribed::All) => (1, 0),
        Some(Subscribed::New(us)) => (2, us),
        Some(Subscribed::Timestamp(us)) => (3, us),
    };
    Writer::default()
        .text(&group.queue)
        .u64(group.incarnation)
        .text(&group.group)
        .u8(rule)
        .i64(from_us)
        .i64(registered.map_or(0, |r| r.created_at_us))
        .u64(group.epoch)
        .u64(group.reset_epoch)
        .u8(subscribed)
        .i64(subscribed_us)
        .u8(u8::from(registered.is_some_and(|r| r.conflation)))
        .u64(here.cut.to_bits())
        .u64(here.cursors_epoch)
        .body()
}

pub fn decode_group(body: &[u8]) -> Result<(GroupImage, GroupHere), Malformed> {
    let mut r = Reader(body);
    let (queue, incarnation, group) = (r.text()?, r.u64()?, r.text()?);
    let (rule, from_us, created_at_us) = (r.u8()?, r.i64()?, r.i64()?);
    let start = match rule {
        0 => Some(GroupStart::Oldest),
        1 => Some(GroupStart::From(from_us)),
        2 => Some(GroupStart::Seek(from_us)),
        3 => None,
        _ => return Err(Malformed),
    };
    let mut image = GroupImage {
        queue: queue.to_owned(),
        incarnation,
        group: group.to_owned(),
        epoch: 0,
        reset_epoch: 0,
        start,
        registration: None,
    };
    if r.0.is_empty() {
        // An older record: a registration, and nothing else, was one.
        let subscribed = match start {
            Some(GroupStart::From(us)) if us == created_at_us => Subscribed::New(us),
            Some(GroupStart::From(us)) => Subscribed::Timestamp(us),
            Some(GroupStart::Oldest) => Subscribed::All,
            _ => return Err(Malformed),
        };
        image.registration = Some(Registration { subscribed, created_at_us, conflation: false });
        return Ok((image, GroupHere::default()));
    }
    (image.epoch, image.reset_epoch) = (r.u64()?, r.u64()?);
    let (subscribed, subscribed_us) = (r.u8()?, r.i64()?);
    let conflation = r.u8()? != 0;
    let subscribed = match subscribed {
        0 => None,
        1 => Some(Subscribed::All),
        2 => Some(Subscribed::New(subscribed_us)),
        3 => Some(Subscribed::Timestamp(subscribed_us)),
        _ => return Err(Malformed),
    };
    image.registration =
        subscribed.map(|subscribed| Registration { subscribed, created_at_us, conflation });
    let cut = LogPosition::from_bits(r.u64()?);
    let here = GroupHere { cut, cursors_epoch: r.u64()? };
    r.end()?;
    Ok((image, here))
}

/// A partition's birth. The record's key is its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionRecord<'a> {
    pub queue: &'a str,
    pub incarnation: u64,
    pub partition: &'a str,
    pub created_at_us: i64,
}

impl<'a> PartitionRecord<'a> {
    pub fn encode(&self) -> Body {
        Writer::default()
            .text(self.queue)
            .u64(self.incarnation)
            .text(self.partition)
            .i64(self.created_at_us)
            .body()
    }

    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let record = Self {
            queue: r.text()?,
            incarnation: r.u64()?,
            partition: r.text()?,
            created_at_us: r.i64()?,
        };
        r.end()?;
        Ok(record)
    }
}

/// A lease as the log keeps it. Time is (granted, length), so that a restart can shorten what
/// is left but a clock that went back cannot lengthen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseRecord {
    pub id: LeaseId,
    pub first: Offset,
    pub end: Offset,
    pub granted_us: i64,
    pub length_us: u64,
    /// Of a conflating group: it is on the message at `end` and, with it, on all before.
    pub conflating: bool,
}

/// The lease that was released last by settling its whole batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReleasedRecord {
    pub id: LeaseId,
    pub first: Offset,
    pub end: Offset,
    pub at_us: i64,
}

impl Reuse for ReleasedRecord {
    fn empty(&mut self) -> usize {
        0
    }
}

/// One dead letter: a row, and where its message lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetterRecord {
    pub id: [u8; 16],
    pub offset: Offset,
    pub created_at_us: i64,
    pub failed_at_us: i64,
    pub retry_count: u32,
    /// The batch that holds the message: place and whole length of its record.
    pub batch_at: LogPosition,
    pub batch_bytes: u32,
    /// Table fingerprint of the message's transaction id, so that a row is found by its address
    /// without a read.
    pub transaction: u64,
    pub error: String,
}

/// Rows that were deleted by one step. It lies behind the records that filed them, so it is
/// there as long as they are: segments go oldest first.
pub fn encode_dead_letters_deleted(ids: &[[u8; 16]]) -> Body {
    let mut w = Writer::default();
    w.u32(ids.len() as u32);
    for id in ids {
        w.id(id);
    }
    w.0
}

pub fn decode_dead_letters_deleted(body: &[u8]) -> Result<Vec<[u8; 16]>, Malformed> {
    let mut r = Reader(body);
    let count = r.u32()?;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(r.id()?);
    }
    r.end()?;
    Ok(ids)
}

/// The whole state of a (partition, group); the newest record of a key is the truth. Dead
/// letters filed by the same step ride along, so that the cursor never moves without them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CursorRecord {
    pub group: Name,
    /// The epoch of the group's cursors it belongs to.
    pub epoch: u64,
    /// First offset not settled.
    pub next: Offset,
    pub attempt_offset: Offset,
    pub attempt_count: u32,
    pub retry_count: u32,
    pub lease: Option<LeaseRecord>,
    pub released: Option<ReleasedRecord>,
    pub filed: Vec<DeadLetterRecord>,
}

// Flags of a cursor record.
const LEASED: u8 = 1;
const RELEASED: u8 = 2;
const LATER_EPOCH: u8 = 4;
const CONFLATING: u8 = 8;

impl CursorRecord {
    pub fn encode(&self) -> Body {
        let mut w = Writer::default();
        w.text(&self.group)
            .u64(self.next.0)
            .u64(self.attempt_offset.0)
            .u32(self.attempt_count)
            .u32(self.retry_count)
            .u8(self.flags());
        if self.epoch > 0 {
            w.u64(self.epoch);
        }
        if let Some(l) = &self.lease {
            w.id(&l.id.0).u64(l.first.0).u64(l.end.0).i64(l.granted_us).u64(l.length_us);
        }
        if let Some(l) = &self.released {
            w.id(&l.id.0).u64(l.first.0).u64(l.end.0).i64(l.at_us);
        }
        w.u32(self.filed.len() as u32);
        for d in &self.filed {
            w.id(&d.id)
                .u64(d.offset.0)
                .i64(d.created_at_us)
                .i64(d.failed_at_us)
                .u32(d.retry_count)
                .u64(d.batch_at.to_bits())
                .u32(d.batch_bytes)
                .u64(d.transaction)
                .text(&d.error);
        }
        w.0
    }

    fn flags(&self) -> u8 {
        let conflating = self.lease.as_ref().is_some_and(|l| l.conflating);
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        flag(self.lease.is_some(), LEASED)
            | flag(self.released.is_some(), RELEASED)
            | flag(self.epoch > 0, LATER_EPOCH)
            | flag(conflating, CONFLATING)
    }

    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let group = r.text()?.into();
        let (next, attempt_offset) = (Offset(r.u64()?), Offset(r.u64()?));
        let (attempt_count, retry_count) = (r.u32()?, r.u32()?);
        let flags = r.u8()?;
        if flags & !(LEASED | RELEASED | LATER_EPOCH | CONFLATING) != 0 {
            return Err(Malformed);
        }
        let epoch = if flags & LATER_EPOCH != 0 { r.u64()? } else { 0 };
        let lease = if flags & LEASED != 0 {
            Some(LeaseRecord {
                id: LeaseId(r.id()?),
                first: Offset(r.u64()?),
                end: Offset(r.u64()?),
                granted_us: r.i64()?,
                length_us: r.u64()?,
                conflating: flags & CONFLATING != 0,
            })
        } else {
            None
        };
        let released = if flags & RELEASED != 0 {
            Some(ReleasedRecord {
                id: LeaseId(r.id()?),
                first: Offset(r.u64()?),
                end: Offset(r.u64()?),
                at_us: r.i64()?,
            })
        } else {
            None
        };
        let count = r.u32()?;
        let mut filed = Vec::new();
        for _ in 0..count {
            filed.push(DeadLetterRecord {
                id: r.id()?,
                offset: Offset(r.u64()?),
                created_at_us: r.i64()?,
                failed_at_us: r.i64()?,
                retry_count: r.u32()?,
                batch_at: LogPosition::from_bits(r.u64()?),
                batch_bytes: r.u32()?,
                transaction: r.u64()?,
                error: r.text()?.to_owned(),
            });
        }
        r.end()?;
        Ok(Self {
            group,
            epoch,
            next,
            attempt_offset,
            attempt_count,
            retry_count,
            lease,
            released,
            filed,
        })
    }
}

/// The id table at the end of a batch's body: one fingerprint per message, in offset order.
/// The lowest bit says whether the broker minted the id, which then needs no dedup entry.
pub fn id_table(body: &[u8], count: u32) -> Option<impl Iterator<Item = u64> + '_> {
    id_table_bytes(body, count).map(table_entries)
}

pub fn id_table_bytes(body: &[u8], count: u32) -> Option<&[u8]> {
    let bytes = count as usize * 8;
    body.get(body.len().checked_sub(bytes)?..)
}

pub fn table_entries(table: &[u8]) -> impl Iterator<Item = u64> + '_ {
    table.chunks_exact(8).map(|c| {
        let mut word = [0; 8];
        word.copy_from_slice(c);
        u64::from_le_bytes(word)
    })
}

/// Bit of an id table entry that marks a minted id.
const MINTED: u64 = 1;

pub fn table_entry(fingerprint: u64, minted: bool) -> u64 {
    fingerprint & !MINTED | if minted { MINTED } else { 0 }
}

/// The fingerprint as tables compare it: 63 bits.
pub fn table_fingerprint(entry: u64) -> u64 {
    entry & !MINTED
}

pub fn is_minted(entry: u64) -> bool {
    entry & MINTED != 0
}

/// Nil id of a duplicate whose original can no longer be read.
pub const NIL_MESSAGE: MessageId = MessageId([0; 16]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SegmentId;
    use crate::model::options::QueueOptions;

    fn cursor() -> CursorRecord {
        CursorRecord {
            group: "g".into(),
            epoch: 12,
            next: Offset(7),
            attempt_offset: Offset(7),
            attempt_count: 2,
            retry_count: 1,
            lease: Some(LeaseRecord {
                id: LeaseId([1; 16]),
                first: Offset(7),
                end: Offset(9),
                granted_us: 5,
                length_us: 6,
                conflating: true,
            }),
            released: Some(ReleasedRecord {
                id: LeaseId([2; 16]),
                first: Offset(1),
                end: Offset(6),
                at_us: 4,
            }),
            filed: vec![DeadLetterRecord {
                id: [3; 16],
                offset: Offset(6),
                created_at_us: 1,
                failed_at_us: 2,
                retry_count: 3,
                batch_at: LogPosition::new(SegmentId(4), 4096),
                batch_bytes: 77,
                transaction: 6,
                error: "no \u{0} good".into(),
            }],
        }
    }

    #[test]
    fn every_body_round_trips_and_every_truncation_is_malformed() {
        let record = cursor();
        let bytes = record.encode();
        assert_eq!(CursorRecord::decode(&bytes), Ok(record));
        for end in 0..bytes.len() {
            assert_eq!(CursorRecord::decode(&bytes[..end]), Err(Malformed), "{end}");
        }
        let queue = QueueImage {
            name: "orders".into(),
            id: [9; 16],
            incarnation: 3,
            created_at_us: 11,
            options: QueueOptions { retry_limit: 1, ..QueueOptions::default() },
        };
        assert_eq!(decode_queue(&encode_queue(&queue)), Ok(queue));
        for (start, subscribed) in [
            (Some(GroupStart::Oldest), Some(Subscribed::All)),
            (Some(GroupStart::From(-4)), Some(Subscribed::New(-4))),
            (Some(GroupStart::Seek(i64::MAX)), Some(Subscribed::Timestamp(9))),
            (None, None),
        ] {
            let registration = subscribed.map(|subscribed| Registration {
                subscribed,
                created_at_us: 12,
                conflation: true,
            });
            let group = GroupImage {
                queue: "orders".into(),
                incarnation: 3,
                group: "g".into(),
                epoch: 8,
                reset_epoch: 7,
                start,
                registration,
            };
            let here = GroupHere { cut: LogPosition::new(SegmentId(3), 4_104), cursors_epoch: 5 };
            assert_eq!(decode_group(&encode_group(&group, here)), Ok((group, here)));
        }
        assert_eq!(decode_queue_deleted(&encode_queue_deleted("q", 8)), Ok(("q", 8)));
        let part =
            PartitionRecord { queue: "q", incarnation: 2, partition: "p", created_at_us: 10 };
        assert_eq!(PartitionRecord::decode(&part.encode()), Ok(part));
    }

    #[test]
    fn a_registration_without_an_epoch_is_read_as_what_it_was() {
        let body = |rule: u8, from_us| {
            let mut w = Writer::default();
            w.text("q").u64(3).text("g").u8(rule).i64(from_us).i64(12);
            decode_group(&w.0).map(|(image, _)| (image.start, image.registration))
        };
        let registered =
            |subscribed| Some(Registration { subscribed, created_at_us: 12, conflation: false });
        let (oldest, from) = (Some(GroupStart::Oldest), |us| Some(GroupStart::From(us)));
        assert_eq!(body(0, 0), Ok((oldest, registered(Subscribed::All))));
        assert_eq!(body(1, 12), Ok((from(12), registered(Subscribed::New(12)))));
        assert_eq!(body(1, 5), Ok((from(5), registered(Subscribed::Timestamp(5)))));
        assert_eq!(body(3, 0), Err(Malformed));
    }

    #[test]
    fn options_of_an_older_record_take_defaults_for_what_they_lack() {
        let mut body = Writer::default().text("q").id(&[0; 16]).u64(1).i64(2).body();
        body.extend_from_slice(br#"{"retry_limit":9}"#);
        let queue = decode_queue(&body).unwrap();
        assert_eq!((queue.options.retry_limit, queue.options.lease_seconds), (9, 300));
    }

    #[test]
    fn id_tables_mark_minted_ids() {
        let mut body = vec![1, 2, 3];
        body.extend_from_slice(&table_entry(0xF1, true).to_le_bytes());
        body.extend_from_slice(&table_entry(0xF3, false).to_le_bytes());
        let entries: Vec<u64> = id_table(&body, 2).unwrap().collect();
        assert_eq!(entries.iter().map(|e| is_minted(*e)).collect::<Vec<_>>(), [true, false]);
        assert_eq!(table_fingerprint(entries[1]), 0xF2);
        assert!(id_table(&body, 3).is_none());
    }
}

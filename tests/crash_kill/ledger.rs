//! What the clients know: every message sent and answered, every acknowledgement, every lease.
//!
//! The ledger lives in the test's process, so a crash of the broker cannot touch it. It panics at
//! the first thing that no correct broker can say; the text names the queue and the message.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const PUSHERS: usize = 8;
/// Four partitions for each pusher, whose order is then fully known, and one that all push to.
pub const PARTITIONS: usize = PUSHERS * 4 + 1;
pub const SHARED: usize = PARTITIONS - 1;
/// The groups that work on each queue; the empty name is queue mode.
pub const GROUPS: [&str; 2] = ["work", ""];
pub const LEASE: Duration = Duration::from_secs(2);

/// A message's name: partition, pusher, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub partition: usize,
    pub pusher: usize,
    pub number: usize,
}

impl Key {
    pub fn transaction_id(self) -> String {
        format!("k-{}-{}-{}", self.partition, self.pusher, self.number)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("k-")?.split('-').map(str::parse);
        let mut next = || parts.next()?.ok();
        let key = Self { partition: next()?, pusher: next()?, number: next()? };
        (key.transaction_id() == text).then_some(key)
    }
}

pub fn partition_name(index: usize) -> String {
    format!("p{index}")
}

fn partition_index(name: &str) -> Option<usize> {
    let index = name.strip_prefix('p')?.parse().ok()?;
    (index < PARTITIONS && partition_name(index) == name).then_some(index)
}

/// Where the broker says a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub offset: u64,
    pub id: u128,
}

/// The message id's 16 bytes as a number.
pub fn parse_id(text: &str) -> u128 {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    u128::from_str_radix(&digits, 16).unwrap_or_else(|error| panic!("id {text}: {error}"))
}

/// A delivered message.
pub struct Delivered {
    pub transaction_id: String,
    pub partition: String,
    pub place: Place,
    pub payload: String,
}

/// How far a group is on a partition. Offsets are of the last settled message, -1 for none.
#[derive(Clone, Copy)]
struct Cursor {
    /// Answered: never again delivered.
    acked: i64,
    /// Sent, and perhaps not answered: may or may not be delivered again.
    perhaps: i64,
    /// The last lease: its last offset, and an instant before which it has not lapsed.
    lease: Option<(i64, Instant)>,
}

struct Partition {
    /// `sent[pusher][number]`: where it is, once an answer or a delivery has said so.
    sent: Vec<Vec<Option<Place>>>,
    cursors: [Cursor; GROUPS.len()],
}

/// One queue.
pub struct Ledger {
    pub queue: String,
    seed: u64,
    partitions: Vec<Mutex<Partition>>,
}

impl Ledger {
    pub fn new(queue: String, seed: u64) -> Self {
        let cursor = Cursor { acked: -1, perhaps: -1, lease: None };
        let partition =
            || Partition { sent: vec![Vec::new(); PUSHERS], cursors: [cursor; GROUPS.len()] };
        let partitions = (0..PARTITIONS).map(|_| Mutex::new(partition())).collect();
        Self { queue, seed, partitions }
    }

    /// A client that failed has said why; the others' complaints about its lock would bury that.
    fn locked(&self, partition: usize) -> MutexGuard<'_, Partition> {
        self.partitions[partition].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new message's name.
    pub fn new_key(&self, pusher: usize, partition: usize) -> Key {
        let mut state = self.locked(partition);
        let numbers = &mut state.sent[pusher];
        numbers.push(None);
        Key { partition, pusher, number: numbers.len() - 1 }
    }

    pub fn place(&self, key: Key) -> Option<Place> {
        self.locked(key.partition).sent[key.pusher][key.number]
    }

    /// The payload of a message: a function of its name, so that the ledger need not keep it.
    /// Its shape shows a broker that stores something else than the bytes: escapes, a number's
    /// spelling, spaces, key order.
    pub fn payload(&self, key: Key) -> String {
        let mut bits = self.seed ^ (key.number as u64) << 16 ^ (key.partition as u64) << 8;
        bits = (bits ^ key.pusher as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits ^= bits >> 29;
        let size = if bits.is_multiple_of(61) { 9_000 } else { bits % 300 } as usize;
        let pad: String =
            (0..size).map(|i| char::from(b'a' + ((bits as usize + i) % 26) as u8)).collect();
        let id = key.transaction_id();
        format!(r#"{{"z":1.50e+3,"id": "{id}","text":"\u00e9é\n","bits":{bits},"pad":"{pad}"}}"#)
    }

    /// The broker answered a push: `expected` is the only status that is right, if that is known.
    pub fn answered(&self, key: Key, status: &str, place: Place, expected: Option<&str>) {
        assert!(matches!(status, "queued" | "duplicate"), "{}: {key:?} {status}", self.queue);
        if let Some(expected) = expected {
            assert_eq!(status, expected, "{}: {key:?} at {place:?}", self.queue);
        }
        self.learn(key, place);
    }

    /// Notes a message's place; one transaction id has one place for ever.
    fn learn(&self, key: Key, place: Place) {
        let mut state = self.locked(key.partition);
        let known = &mut state.sent[key.pusher][key.number];
        if let Some(known) = known {
            assert_eq!(*known, place, "{}: {key:?} has two places", self.queue);
        }
        *known = Some(place);
    }

    /// A message came out of a pop: one we sent, its payload byte for byte, at its place. From
    /// here on it is held to be stored, answered or not: a consumer has seen it.
    pub fn delivered(&self, message: &Delivered) -> Key {
        let key = Key::parse(&message.transaction_id)
            .filter(|key| key.partition < PARTITIONS && key.pusher < PUSHERS)
            .unwrap_or_else(|| panic!("{}: never sent {}", self.queue, message.transaction_id));
        let sent = self.locked(key.partition).sent[key.pusher].len();
        assert!(key.number < sent, "{}: {key:?} was never sent", self.queue);
        let partition = partition_index(&message.partition);
        assert_eq!(partition, Some(key.partition), "{}: {key:?} in another partition", self.queue);
        assert_eq!(message.payload, self.payload(key), "{}: payload of {key:?}", self.queue);
        self.learn(key, message.place);
        key
    }

    /// What `group` has surely acknowledged, for each partition.
    pub fn acked(&self, group: usize) -> Vec<i64> {
        (0..PARTITIONS).map(|index| self.locked(index).cursors[group].acked).collect()
    }

    /// One partition's part of a leasing pop. `before` is `acked` as it was when the pop was sent.
    pub fn claimed(&self, group: usize, partition: usize, span: (i64, i64), pop: &Popped<'_>) {
        let (first, last) = span;
        let mut state = self.locked(partition);
        let cursor = &mut state.cursors[group];
        let what =
            format!("{} p{partition} group '{}' {first}..={last}", self.queue, GROUPS[group]);
        let acked = pop.acked_before[partition];
        assert!(first > acked, "{what}: an acked message came back, {acked} was acked");
        assert!(first <= cursor.perhaps + 1, "{what}: skipped from {}", cursor.perhaps + 1);
        // A lease that began when the pop was sent may have lapsed before we got to look at it,
        // and then another consumer may rightly hold the messages.
        let until = pop.sent + LEASE;
        if until <= Instant::now() {
            return;
        }
        if let Some((held_last, held_until)) = cursor.lease {
            let released = cursor.perhaps >= held_last;
            assert!(
                released || held_until <= pop.received,
                "{what}: handed out while the lease up to {held_last} had {:?} to run",
                held_until - pop.received
            );
        }
        cursor.lease = Some((last, until));
    }

    /// An acknowledgement up to `offset` leaves for the broker.
    pub fn ack_sent(&self, group: usize, partition: usize, offset: i64) {
        let mut state = self.locked(partition);
        let cursor = &mut state.cursors[group];
        cursor.perhaps = cursor.perhaps.max(offset);
    }

    /// It was answered with success; returns how many messages that settled.
    pub fn ack_answered(&self, group: usize, partition: usize, offset: i64) -> u64 {
        let mut state = self.locked(partition);
        let cursor = &mut state.cursors[group];
        let settled = (offset - cursor.acked).max(0);
        cursor.acked += settled;
        settled.unsigned_abs()
    }

    /// Compares the whole log, partition by partition in the order of delivery, with what was
    /// sent; returns how many answered messages were in it.
    pub fn check_log(&self, log: &[Vec<Delivered>]) -> u64 {
        let mut answered = 0;
        for (index, messages) in log.iter().enumerate() {
            let known = self.known(index);
            let mut seen = HashSet::new();
            let mut last_number = [None; PUSHERS];
            for (offset, message) in messages.iter().enumerate() {
                let at = format!("{} p{index} offset {offset}", self.queue);
                assert_eq!(message.place.offset, offset as u64, "{at}: a gap or a repeat");
                let key = self.delivered(message);
                assert!(seen.insert(key), "{at}: {key:?} twice");
                let last = &mut last_number[key.pusher];
                assert!(*last < Some(key.number), "{at}: {key:?} after {last:?}");
                *last = Some(key.number);
            }
            let lost: Vec<&Key> = known.iter().filter(|key| !seen.contains(key)).collect();
            assert!(lost.is_empty(), "{} p{index}: LOST {}: {lost:?}", self.queue, lost.len());
            answered += known.len() as u64;
        }
        answered
    }

    /// The messages of a partition whose place is known.
    fn known(&self, partition: usize) -> Vec<Key> {
        let state = self.locked(partition);
        let numbered = state.sent.iter().enumerate().flat_map(|(pusher, places)| {
            places.iter().enumerate().map(move |(number, place)| (pusher, number, place))
        });
        numbered
            .filter(|(_, _, place)| place.is_some())
            .map(|(pusher, number, _)| Key { partition, pusher, number })
            .collect()
    }

    /// How many messages of a partition have a known place: its length, once none is open.
    pub fn length(&self, partition: usize) -> i64 {
        i64::try_from(self.known(partition).len()).unwrap()
    }

    /// Up to where a group may have acknowledged.
    pub fn perhaps(&self, group: usize, partition: usize) -> i64 {
        self.locked(partition).cursors[group].perhaps
    }

    /// Whether a group surely, or perhaps, has nothing left on a partition.
    pub fn finished(&self, group: usize, partition: usize) -> (bool, bool) {
        let last = self.length(partition) - 1;
        let cursor = self.locked(partition).cursors[group];
        (cursor.acked >= last, cursor.perhaps >= last)
    }
}

/// When a pop was sent and answered, and what was acknowledged before it was sent.
pub struct Popped<'a> {
    pub acked_before: &'a [i64],
    pub sent: Instant,
    pub received: Instant,
}

//! A naive broker for one command at a time: maps and vectors, no log, no shards, no waiting.
//!
//! It is written from the rules of the wire, not from the code it judges. The exact world asks it
//! what each answer must be; where the rules leave a choice (which claimable partition a pop
//! gets), it judges the choice that was made.

use bytes::Bytes;
use lanemq::base::ids::{LeaseId, MessageId, PartitionId};
use lanemq::model::command::{AckItem, AckStatus, PopRequest, PopTarget, QUEUE_MODE, Subscription};
use lanemq::model::options::QueueOptions;
use lanemq::model::reply::AckResult;
use std::collections::{BTreeMap, BTreeSet};

const SECOND_US: i64 = 1_000_000;
/// A released lease is recognised at least this long.
pub const REMEMBERED_US: i64 = 14 * 60 * SECOND_US;

/// One stored message.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: MessageId,
    pub transaction_id: String,
    pub payload: Vec<u8>,
    pub created_us: i64,
    /// First offset of the append that stored it.
    pub base: u64,
    /// It lies encrypted.
    pub sealed: bool,
    /// Its client built the frame.
    pub framed: bool,
    /// The client's compressed group that its batch is, byte for byte.
    pub kept: Option<Bytes>,
}

#[derive(Clone, Default, Debug)]
pub struct Partition {
    pub id: Option<PartitionId>,
    pub messages: Vec<Message>,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub id: LeaseId,
    pub first: u64,
    pub end: u64,
    pub expires_us: i64,
    /// It stands for all messages before the one delivered.
    pub conflating: bool,
    /// What giving the claim back restores.
    before: (u64, u32),
}

#[derive(Clone, Default, Debug)]
pub struct Cursor {
    pub next: u64,
    attempt: (u64, u32),
    pub retries: u32,
    pub lease: Option<Lease>,
    /// Attempt, retries and place before the last commit at delivery.
    undo: ((u64, u32), u32, u64),
    /// Lease, first, last, when.
    released: Option<(LeaseId, u64, u64, i64)>,
}

impl Cursor {
    pub fn at(next: u64) -> Self {
        Self { next, ..Self::default() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    Oldest,
    From(i64),
}

/// What a group's first contact stored.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    pub start: Start,
    pub conflation: bool,
}

#[derive(Clone, Default, Debug)]
pub struct Group {
    /// Where it starts in partitions it has no cursor on.
    pub start: Option<Start>,
    pub registration: Option<Registration>,
    /// A seek gave it a cursor on every partition, and no start moves it any more.
    pub sought: bool,
    pub cursors: BTreeMap<String, Cursor>,
}

impl Group {
    /// Everything below is settled in a partition, or passed over by the start.
    pub fn settled_to(&self, name: &str, stored: &Partition) -> u64 {
        let all = stored.messages.len() as u64;
        Model::position(Some(self), name, stored).unwrap_or(all)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dead {
    pub partition: String,
    pub group: String,
    pub offset: u64,
    pub error: String,
    pub retry_count: u32,
    pub failed_us: i64,
}

#[derive(Clone, Debug)]
pub struct Queue {
    pub options: QueueOptions,
    pub partitions: BTreeMap<String, Partition>,
    pub groups: BTreeMap<String, Group>,
    pub dead: Vec<Dead>,
}

impl Queue {
    pub fn new(options: QueueOptions) -> Self {
        let queue_mode = Group { start: Some(Start::Oldest), ..Group::default() };
        Self {
            options,
            partitions: BTreeMap::new(),
            groups: BTreeMap::from([(QUEUE_MODE.to_owned(), queue_mode)]),
            dead: Vec::new(),
        }
    }

    fn has_labels(&self, namespace: &str, task: &str) -> bool {
        (namespace.is_empty() || self.options.namespace == namespace)
            && (task.is_empty() || self.options.task == task)
    }
}

#[derive(Default, Debug)]
pub struct Model {
    pub queues: BTreeMap<String, Queue>,
    /// One past the end of each append of the push under way: queue, partition, offset. Each
    /// becomes visible by itself, so a pop that waits may be given the first and not the next.
    pub cuts: BTreeSet<(String, String, u64)>,
    /// The broker has a key: what queues that encrypt store is sealed.
    pub has_key: bool,
    /// Every partition id ever seen, and whose it was.
    pub ids: BTreeMap<PartitionId, (String, String, u64)>,
    /// How often each name was deleted.
    pub deletions: BTreeMap<String, u64>,
}

/// What becomes of one pushed item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    Queued(u64),
    Duplicate(u64, MessageId),
    /// Of the item at this place in the same request.
    DuplicateOf(usize),
}

/// What a claim gave, as the answer shows it.
#[derive(Debug)]
pub struct Taken {
    pub queue: String,
    pub partition: String,
    pub start: u64,
    pub end: u64,
    pub attempt: u32,
}

impl Model {
    // ---- push

    /// Judges items of one partition, in order; `mark` says which item each is.
    pub fn push(
        &self,
        now_us: i64,
        queue: &str,
        partition: &str,
        items: &[(usize, Option<&str>)],
    ) -> Vec<Expected> {
        let window = self.queues.get(queue).map_or(3_600, |q| q.options.dedup_window_seconds);
        let stored = self.queues.get(queue).and_then(|q| q.partitions.get(partition));
        let oldest = now_us - window as i64 * SECOND_US;
        let mut next = stored.map_or(0, |p| p.messages.len() as u64);
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut out = Vec::new();
        for (place, id) in items {
            let first = id.and_then(|id| seen.get(id).copied());
            let original = id.filter(|_| window > 0).and_then(|id| {
                let messages = stored.iter().flat_map(|p| p.messages.iter()).enumerate();
                let mut same = messages
                    .filter(|(_, m)| m.transaction_id == id && m.created_us >= oldest)
                    .map(|(offset, m)| Expected::Duplicate(offset as u64, m.id));
                same.next()
            });
            out.push(match (first, original) {
                (Some(place), _) => Expected::DuplicateOf(place),
                (None, Some(original)) => original,
                (None, None) => {
                    next += 1;
                    Expected::Queued(next - 1)
                }
            });
            if let Some(id) = id {
                seen.entry(id).or_insert(*place);
            }
        }
        out
    }

    /// Stores what one append stored. `packed` is the client's compressed group, if all of it is
    /// new: kept as it came unless it must be encrypted.
    pub fn append(
        &mut self,
        now_us: i64,
        queue: &str,
        partition: &str,
        new: Vec<Message>,
        packed: Option<Bytes>,
    ) {
        let implicit = || Queue::new(QueueOptions::implicit(queue));
        let stored = self.queues.entry(queue.to_owned()).or_insert_with(implicit);
        let sealed = self.has_key && stored.options.encryption_enabled;
        let kept = packed.filter(|_| !sealed);
        let name = partition;
        let partition = stored.partitions.entry(name.to_owned()).or_default();
        let last = partition.messages.last().map_or(i64::MIN, |m| m.created_us);
        let (created_us, base) =
            (now_us.max(last.saturating_add(1)), partition.messages.len() as u64);
        let stored = |m| Message { created_us, base, sealed, kept: kept.clone(), ..m };
        partition.messages.extend(new.into_iter().map(stored));
        let end = partition.messages.len() as u64;
        self.cuts.insert((queue.to_owned(), name.to_owned(), end));
    }

    // ---- pop

    /// What a pop does before it looks: queues and registrations.
    pub fn register(&mut self, now_us: i64, request: &PopRequest<'_>) {
        let start = match request.subscription {
            Subscription::All => Start::Oldest,
            Subscription::New => Start::From(now_us),
            Subscription::From(us) => Start::From(us),
        };
        if let PopTarget::Queue(queue) = &request.target {
            let implicit = || Queue::new(QueueOptions::implicit(queue));
            self.queues.entry(queue.clone().into_owned()).or_insert_with(implicit);
        }
        for name in self.looked_at(request) {
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            if !matches!(request.target, PopTarget::Partition { .. }) || request.conflation {
                let group = queue.groups.entry(request.group.clone().into_owned()).or_default();
                if *request.group != *QUEUE_MODE {
                    let registration = Registration { start, conflation: request.conflation };
                    group.registration.get_or_insert(registration);
                }
                group.start.get_or_insert(start);
            }
        }
    }

    pub fn looked_at(&self, request: &PopRequest<'_>) -> Vec<String> {
        match &request.target {
            PopTarget::Queue(queue) | PopTarget::Partition { queue, .. } => {
                vec![queue.clone().into_owned()]
            }
            PopTarget::Labels { namespace, task } => self
                .queues
                .iter()
                .filter(|(_, q)| q.has_labels(namespace, task))
                .map(|(name, _)| name.clone())
                .collect(),
        }
    }

    /// Where a group stands in a partition; `None`: nothing there is for it.
    fn position(group: Option<&Group>, name: &str, stored: &Partition) -> Option<u64> {
        let group = group?;
        if let Some(cursor) = group.cursors.get(name) {
            return Some(cursor.next);
        }
        match group.start? {
            Start::Oldest => Some(0),
            Start::From(us) => {
                let first = stored.messages.partition_point(|m| m.created_us < us);
                (first < stored.messages.len()).then_some(first as u64)
            }
        }
    }

    /// The offsets a pop can be given of a partition now, first and one past the last.
    pub fn claimable(
        &self,
        now_us: i64,
        request: &PopRequest<'_>,
        since_us: i64,
        queue: &str,
        partition: &str,
    ) -> Option<(u64, u64)> {
        let q = self.queues.get(queue)?;
        let stored = q.partitions.get(partition)?;
        let group = q.groups.get(&*request.group);
        let pinned = matches!(request.target, PopTarget::Partition { .. });
        if request.conflation && group.is_none_or(|g| g.registration.is_none()) {
            return None;
        }
        let known = group.is_some_and(|g| g.start.is_some() || g.cursors.contains_key(partition));
        let from = if pinned && !known {
            match request.subscription {
                Subscription::All => 0,
                Subscription::New => first_from(stored, since_us),
                Subscription::From(us) => first_from(stored, us),
            }
        } else {
            Self::position(group, partition, stored)?
        };
        let cursor = group.and_then(|g| g.cursors.get(partition));
        if cursor.and_then(|c| c.lease.as_ref()).is_some_and(|l| l.expires_us > now_us) {
            return None;
        }
        let to = ripe_until(now_us, &q.options, stored, from);
        (from < to).then_some((from, to))
    }

    /// All partitions a pop could be given something of.
    pub fn claimable_all(
        &self,
        now_us: i64,
        request: &PopRequest<'_>,
        since_us: i64,
    ) -> BTreeSet<(String, String)> {
        let mut out = BTreeSet::new();
        for queue in self.looked_at(request) {
            for partition in self.queues.get(&queue).iter().flat_map(|q| q.partitions.keys()) {
                if let PopTarget::Partition { partition: wanted, .. } = &request.target
                    && **wanted != **partition
                {
                    continue;
                }
                if self.claimable(now_us, request, since_us, &queue, partition).is_some() {
                    out.insert((queue.clone(), partition.clone()));
                }
            }
        }
        out
    }

    /// A pinned pop of a group that is not registered settles where that group starts.
    pub fn pin(&mut self, now_us: i64, request: &PopRequest<'_>, since_us: i64) {
        let PopTarget::Partition { queue, partition } = &request.target else { return };
        let Some(q) = self.queues.get_mut(&**queue) else { return };
        let Some(stored) = q.partitions.get(&**partition) else { return };
        let group = q.groups.entry(request.group.clone().into_owned()).or_default();
        if request.conflation && group.registration.is_none() {
            return;
        }
        if group.start.is_some() || group.cursors.contains_key(&**partition) {
            return;
        }
        let next = match request.subscription {
            Subscription::All => 0,
            Subscription::New => first_from(stored, since_us.min(now_us)),
            Subscription::From(us) => first_from(stored, us),
        };
        let cursor = Cursor { next, ..Cursor::default() };
        group.cursors.insert(partition.clone().into_owned(), cursor);
    }

    /// Judges one claim and makes it true. `left` is the pop's budget of messages.
    pub fn take(
        &mut self,
        now_us: i64,
        request: &PopRequest<'_>,
        since_us: i64,
        lease_id: Option<LeaseId>,
        left: u64,
        taken: &Taken,
    ) -> Result<(), String> {
        let (queue, partition) = (taken.queue.as_str(), taken.partition.as_str());
        let (from, to) = self
            .claimable(now_us, request, since_us, queue, partition)
            .ok_or_else(|| format!("{queue}/{partition} was not claimable, {taken:?}"))?;
        let cut = self.cuts.contains(&(queue.to_owned(), partition.to_owned(), taken.end + 1));
        let to = if cut { to.min(taken.end + 1) } else { to };
        let span = from;
        let conflating = self.conflates(queue, &request.group);
        let from = if conflating { to - 1 } else { from };
        let to = to.min(from + left);
        if (taken.start, taken.end + 1) != (from, to) {
            return Err(format!("{taken:?} should be {from}..={}", to - 1));
        }
        let q = self.queues.get_mut(queue).expect("claimable");
        let lease_seconds = request.lease_seconds.unwrap_or(q.options.lease_seconds).max(1);
        let group = q.groups.entry(request.group.clone().into_owned()).or_default();
        let cursor = group.cursors.entry(partition.to_owned()).or_default();
        cursor.next = cursor.next.max(span);
        if request.auto_ack {
            if taken.attempt != 1 {
                return Err(format!("a commit at delivery is attempt 1, not {}", taken.attempt));
            }
            cursor.undo = (cursor.attempt, cursor.retries, cursor.next);
            (cursor.next, cursor.attempt, cursor.retries, cursor.lease) = (to, (0, 0), 0, None);
            return Ok(());
        }
        let again = cursor.attempt.0 == from && cursor.attempt.1 > 0;
        let attempt = if again { cursor.attempt.1 + 1 } else { 1 };
        if attempt != taken.attempt {
            return Err(format!("{taken:?} is attempt {attempt}"));
        }
        let before = std::mem::replace(&mut cursor.attempt, (from, attempt));
        cursor.lease = Some(Lease {
            id: lease_id.ok_or("a claim without a lease id")?,
            first: from,
            end: to - 1,
            conflating,
            expires_us: now_us + i64::from(lease_seconds) * SECOND_US,
            before,
        });
        Ok(())
    }

    /// A claim that was not delivered.
    pub fn give_back(&mut self, group: &str, lease_id: Option<LeaseId>, taken: &Taken) {
        let Some(cursor) = self.cursor_mut(&taken.queue, group, &taken.partition) else { return };
        match lease_id {
            None if cursor.next == taken.end + 1 && cursor.lease.is_none() => {
                (cursor.attempt, cursor.retries, cursor.next) = cursor.undo;
            }
            None => {}
            Some(id) => {
                if let Some(lease) = cursor.lease.take_if(|l| l.id == id) {
                    cursor.attempt = lease.before;
                }
            }
        }
    }

    pub fn conflates(&self, queue: &str, group: &str) -> bool {
        let group = self.queues.get(queue).and_then(|q| q.groups.get(group));
        group.and_then(|g| g.registration).is_some_and(|r| r.conflation)
    }

    fn cursor_mut(&mut self, queue: &str, group: &str, partition: &str) -> Option<&mut Cursor> {
        self.queues.get_mut(queue)?.groups.get_mut(group)?.cursors.get_mut(partition)
    }

    // ---- lease and ack

    /// How many partitions an extension reaches, and the earliest new expiry.
    pub fn extend(&mut self, now_us: i64, id: LeaseId, seconds: u32) -> (u32, Option<i64>) {
        let groups = self.queues.values_mut().flat_map(|q| q.groups.values_mut());
        let leases = groups.flat_map(|g| g.cursors.values_mut()).filter_map(|c| c.lease.as_mut());
        let (mut renewed, mut earliest) = (0, None);
        for lease in leases.filter(|l| l.id == id && l.expires_us > now_us) {
            let wanted = now_us + i64::from(seconds.max(1)) * SECOND_US;
            lease.expires_us = lease.expires_us.max(wanted);
            renewed += 1;
            earliest = Some(earliest.map_or(lease.expires_us, |e: i64| e.min(lease.expires_us)));
        }
        (renewed, earliest)
    }

    /// All items of one (partition, lease), settled together. `None` as a result: the rules
    /// leave the answer open.
    pub fn ack(
        &mut self,
        now_us: i64,
        group: &str,
        lease: Option<LeaseId>,
        items: &[&AckItem<'_>],
    ) -> Vec<Option<AckResult>> {
        let fail = |text| Some(result(false, Some(text)));
        let home = items[0].partition_id.and_then(|id| self.ids.get(&id)).cloned();
        let home = home.filter(|(queue, partition, generation)| {
            self.deletions.get(queue).copied().unwrap_or(0) == *generation
                && self.queues.get(queue).is_some_and(|q| q.partitions.contains_key(partition))
        });
        let Some((queue, partition, _)) = home else { return vec![fail("unresolv"); items.len()] };
        let q = self.queues.get_mut(&queue).expect("checked");
        let stored = &q.partitions[&partition];
        let Some(cursor) = q.groups.get_mut(group).and_then(|g| g.cursors.get_mut(&partition))
        else {
            // A claim that was given back unseen may have left a cursor: any refusal is right.
            return vec![fail(""); items.len()];
        };
        if let Some(id) = lease
            && cursor.lease.as_ref().is_none_or(|l| l.id != id || l.expires_us <= now_us)
        {
            return repeated(now_us, cursor, stored, id, items);
        }
        let mut places = resolve(cursor, stored, items);
        let conflating = cursor.lease.as_ref().filter(|l| l.conflating).map(|l| l.end);
        if let Some(end) = conflating {
            places.iter_mut().flatten().for_each(|place| *place = end);
        }
        let before = cursor.next;
        let found: Vec<(AckStatus, Option<u64>)> =
            items.iter().map(|i| i.status).zip(places.iter().map(|p| p.ok())).collect();
        let leased = cursor.lease.is_some();
        let (released, spent) = settle(now_us, cursor, &found, q.options.retry_limit);
        let passed = conflating.filter(|_| released && spent.is_empty() && cursor.next > before);
        let files = q.options.dead_letter_queue || q.options.dlq_after_max_retries;
        for (offset, item, retry_count) in spent.iter().filter(|_| files) {
            q.dead.push(Dead {
                partition: partition.clone(),
                group: group.to_owned(),
                offset: *offset,
                error: items[*item].error.as_deref().unwrap_or("Retries exhausted").to_owned(),
                retry_count: *retry_count,
                failed_us: now_us,
            });
        }
        items
            .iter()
            .zip(places)
            .enumerate()
            .map(|(at, (item, place))| {
                let completed = item.status == AckStatus::Completed;
                let (success, noop, error) = match place {
                    Ok(_) if leased || completed => (true, false, None),
                    Ok(_) => (false, false, Some("no leased batch")),
                    Err(true) if completed => (true, true, None),
                    Err(true) => (false, false, Some("committed")),
                    Err(false) => (false, false, Some("unresolv")),
                };
                Some(AckResult {
                    success,
                    error,
                    lease_released: released,
                    dead_lettered: files && spent.iter().any(|(_, i, _)| *i == at),
                    noop,
                    conflated: passed.filter(|_| place.is_ok()).map(|end| end - before),
                })
            })
            .collect()
    }
}

fn first_from(stored: &Partition, us: i64) -> u64 {
    stored.messages.partition_point(|m| m.created_us < us) as u64
}

fn result(success: bool, error: Option<&'static str>) -> AckResult {
    AckResult {
        success,
        error,
        lease_released: false,
        dead_lettered: false,
        noop: false,
        conflated: None,
    }
}

/// One past the last message that neither a delay nor a window holds back.
fn ripe_until(now_us: i64, options: &QueueOptions, stored: &Partition, from: u64) -> u64 {
    let Some(oldest) = stored.messages.get(from as usize) else { return from };
    let newest = stored.messages.last().map_or(0, |m| m.created_us);
    let window = options.window_buffer_seconds as i64 * SECOND_US;
    let cap = (window * 10).max(60 * SECOND_US);
    if window > 0 && (newest + window).min(oldest.created_us + cap) > now_us {
        return from;
    }
    let delay = options.delayed_processing_seconds as i64 * SECOND_US;
    let ripe = |m: &&Message| delay == 0 || m.created_us + delay <= now_us;
    from + stored.messages[from as usize..].iter().take_while(ripe).count() as u64
}

/// An ack under a lease that is not current.
fn repeated(
    now_us: i64,
    cursor: &Cursor,
    stored: &Partition,
    id: LeaseId,
    items: &[&AckItem<'_>],
) -> Vec<Option<AckResult>> {
    let Some((_, first, last, at_us)) = cursor.released.filter(|r| r.0 == id) else {
        return vec![Some(result(false, Some("invalid or expired lease"))); items.len()];
    };
    if at_us + REMEMBERED_US < now_us {
        return vec![None; items.len()];
    }
    let inside = |item: &AckItem<'_>| {
        stored.messages[first as usize..=last as usize]
            .iter()
            .any(|m| m.transaction_id == *item.transaction_id)
    };
    items
        .iter()
        .map(|item| {
            Some(match inside(item) {
                true => AckResult { lease_released: true, ..result(true, None) },
                false => result(false, Some("unresolv")),
            })
        })
        .collect()
}

/// The offset each item names; `Err(true)`: settled before, `Err(false)`: nowhere.
fn resolve(cursor: &Cursor, stored: &Partition, items: &[&AckItem<'_>]) -> Vec<Result<u64, bool>> {
    let end = match &cursor.lease {
        Some(lease) => lease.end + 1,
        None => stored.messages.len() as u64,
    };
    let mut places: Vec<Result<u64, bool>> = Vec::new();
    for item in items {
        let same =
            |offset: &u64| stored.messages[*offset as usize].transaction_id == *item.transaction_id;
        let taken: Vec<u64> = places.iter().filter_map(|p| p.ok()).collect();
        let free = (cursor.next..end).filter(same).find(|offset| !taken.contains(offset));
        places.push(free.ok_or_else(|| (0..cursor.next).any(|offset| same(&offset))));
    }
    places
}

/// The rules of settling. Returns whether the lease ended, and what was spent: offset, item,
/// retries charged before.
fn settle(
    now_us: i64,
    cursor: &mut Cursor,
    items: &[(AckStatus, Option<u64>)],
    limit: u32,
) -> (bool, Vec<(u64, usize, u32)>) {
    let named = || items.iter().filter_map(|(s, o)| o.map(|o| (*s, o)));
    let before = cursor.next;
    let Some(end) = cursor.lease.as_ref().map(|l| l.end) else {
        let done = named().filter(|(s, _)| *s == AckStatus::Completed).map(|(_, o)| o + 1).max();
        cursor.next = cursor.next.max(done.unwrap_or(0));
        if cursor.next > before {
            cursor.attempt = (0, 0);
        }
        return (false, Vec::new());
    };
    let head = named().filter(|(s, _)| *s != AckStatus::Completed).map(|(_, o)| o).min();
    let done = named()
        .filter(|(s, o)| *s == AckStatus::Completed && head.is_none_or(|h| *o < h))
        .map(|(_, o)| o + 1)
        .max();
    cursor.next = cursor.next.max(done.unwrap_or(0));
    let (mut spent, mut cleared) = (Vec::new(), false);
    let retries = cursor.retries;
    let worst = head.and_then(|h| named().filter(|(_, o)| *o == h).map(|(s, _)| s).max());
    if let (Some(head), Some(worst)) = (head, worst) {
        let exhausted = retries >= limit;
        match worst {
            AckStatus::Failed if !exhausted => cursor.retries += 1,
            AckStatus::Failed | AckStatus::DeadLetter => {
                let (next, stopped) = upward(items, head, end, exhausted, retries, &mut spent);
                cursor.next = next;
                let keeps = worst == AckStatus::DeadLetter && stopped;
                cursor.retries = if keeps { retries } else { 0 };
                cleared = worst == AckStatus::Failed;
            }
            AckStatus::Retry | AckStatus::Completed => {}
        }
    }
    let complete = cursor.next > end;
    if complete && head.is_none() {
        cursor.retries = 0;
    }
    if complete || cleared {
        cursor.attempt = (0, 0);
    } else if cursor.lease.as_ref().is_some_and(|l| l.conflating) {
        // The next delivery is of a message of its own.
    } else if cursor.attempt.1 > 0 && (cursor.next > before || head.is_some()) {
        cursor.attempt.0 = cursor.next;
    }
    let released = head.is_some() || complete;
    if released
        && let Some(lease) = cursor.lease.take()
        && complete
    {
        cursor.released = Some((lease.id, lease.first, lease.end, now_us));
    }
    (released, spent)
}

/// Settles position by position from a spent head. Returns the new cursor and whether a failed
/// message stopped it.
fn upward(
    items: &[(AckStatus, Option<u64>)],
    head: u64,
    end: u64,
    exhausted: bool,
    retries: u32,
    spent: &mut Vec<(u64, usize, u32)>,
) -> (u64, bool) {
    let done = items.iter().filter(|(s, _)| *s == AckStatus::Completed).filter_map(|(_, o)| *o);
    let done = done.max();
    for offset in head..=end {
        let here = items.iter().enumerate().filter(|(_, (_, o))| *o == Some(offset));
        match here.max_by_key(|(_, (status, _))| *status) {
            Some((at, (AckStatus::DeadLetter, _))) => spent.push((offset, at, retries)),
            Some((at, (AckStatus::Failed, _))) if exhausted || offset == head => {
                spent.push((offset, at, retries));
            }
            Some((_, (AckStatus::Failed, _))) => return (offset, true),
            Some((_, (AckStatus::Completed, _))) => {}
            None if done.is_some_and(|done| done > offset) => {}
            Some((_, (AckStatus::Retry, _))) | None => return (offset, false),
        }
    }
    (end + 1, false)
}

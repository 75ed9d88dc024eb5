//! Joins the shards' parts of an operator's request into the answer, or into the second step
//! that reads the page.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::ids::ShardId;
use crate::model::inspect::{
    Bodies, DeadLetterKey, GroupRow, InspectPart, InspectRequest, InspectStep, Inspected,
    LoadQuery, Loads, MessageKey, MessageRow, Missing, Page, ReaderMode, TraceKey, TraceName,
    TraceQuery, TraceRow, TraceSubject, Why,
};
use crate::model::peer::{PeerDeadLetter, QueuePart};
use crate::model::reply::{PartitionRow, QueueDetail};

/// What the first step found.
#[derive(Debug)]
pub(super) enum Found {
    Messages(ReaderMode),
    DeadLetters { total: u64 },
    Traces { total: u64 },
    TraceNames { rows: Vec<TraceName>, total: u64 },
}

pub(super) enum Joined {
    Answer(Inspected),
    DeadLetters { rows: Vec<PeerDeadLetter>, total: u64, truncated: bool },
    Queue { sum: Option<QueuePart>, partitions: Vec<PartitionRow>, truncated: bool },
    Next(Found, Vec<(ShardId, InspectStep)>),
}

pub(super) fn join(
    request: &InspectRequest,
    found: Option<Found>,
    parts: Vec<InspectPart>,
) -> Joined {
    if let Some(missing) = missing(&parts) {
        return Joined::Answer(Inspected::Missing(missing));
    }
    match (request, found) {
        (InspectRequest::Messages(query), None) => message_keys(query.page, parts),
        (InspectRequest::DeadLetters(query), None) => {
            let page = Page { limit: query.limit, offset: query.offset };
            dead_letter_keys(page, parts)
        }
        (InspectRequest::DeadLetter(_), None) => {
            dead_letter_keys(Page { limit: 1, offset: 0 }, parts)
        }
        (InspectRequest::Traces(query), None) => trace_keys(query.page, parts),
        (InspectRequest::TraceNames(page), None) => trace_names(*page, parts),
        (InspectRequest::Queue { .. }, None) => queue(parts),
        (_, Some(Found::Messages(mode))) => Joined::Answer(message_rows(mode, parts)),
        (_, Some(Found::DeadLetters { total })) => dead_letter_rows(total, parts),
        (request, Some(Found::Traces { total })) => {
            Joined::Answer(trace_rows(request, total, parts))
        }
        (_, Some(Found::TraceNames { rows, total })) => {
            Joined::Answer(trace_name_rows(rows, total, parts))
        }
        (request, None) => Joined::Answer(one_step(request, parts)),
    }
}

fn missing(parts: &[InspectPart]) -> Option<Missing> {
    parts.iter().find_map(|part| match part {
        InspectPart::Missing(missing) => Some(*missing),
        _ => None,
    })
}

fn one_step(request: &InspectRequest, parts: Vec<InspectPart>) -> Inspected {
    match request {
        InspectRequest::Loads(query) => Inspected::Loads(loads(query, parts)),
        InspectRequest::Groups => Inspected::Groups(groups(parts)),
        InspectRequest::Cursors(query) => {
            let mut first = First::new(query.page.reach());
            for part in parts {
                let InspectPart::Cursors { rows, truncated } = part else { continue };
                first.over |= truncated;
                rows.into_iter().for_each(|row| first.put(row.key(query.order), row));
            }
            Inspected::Cursors { truncated: first.over, rows: first.page(query.page) }
        }
        InspectRequest::Why { .. } => why(parts),
        InspectRequest::Message { .. } => {
            let found = parts.into_iter().find_map(|part| match part {
                InspectPart::Message(found) => found,
                _ => None,
            });
            Inspected::Message(found)
        }
        InspectRequest::RecordTrace(_) => {
            let id = parts.into_iter().find_map(|part| match part {
                InspectPart::Trace(id) => Some(id),
                _ => None,
            });
            id.map_or(Inspected::Missing(Missing::Partition), Inspected::Trace)
        }
        _ => {
            let deleted = parts.iter().map(|part| match part {
                InspectPart::Deleted(count) => *count,
                _ => 0,
            });
            Inspected::Deleted(deleted.sum())
        }
    }
}

/// The page of the greatest keys, without ever holding more than it reaches.
fn greatest<K: Ord + Copy>(page: Page, parts: impl IntoIterator<Item = Vec<K>>) -> Vec<K> {
    let mut all: BTreeSet<K> = BTreeSet::new();
    for key in parts.into_iter().flatten() {
        all.insert(key);
        if all.len() > page.reach() {
            all.pop_first();
        }
    }
    all.into_iter().rev().skip(page.offset).take(page.limit).collect()
}

/// The page's keys by the shard that has them.
fn by_shard<K: Copy>(
    keys: impl IntoIterator<Item = K>,
    shard: impl Fn(&K) -> Option<ShardId>,
) -> BTreeMap<ShardId, Vec<K>> {
    let mut shards: BTreeMap<ShardId, Vec<K>> = BTreeMap::new();
    for key in keys {
        if let Some(shard) = shard(&key) {
            shards.entry(shard).or_default().push(key);
        }
    }
    shards
}

// ---- messages

fn message_keys(page: Page, parts: Vec<InspectPart>) -> Joined {
    let (mut all, mut mode) = (Vec::new(), ReaderMode::default());
    for part in parts {
        let InspectPart::MessageKeys { keys, mode: here } = part else { continue };
        all.push(keys);
        mode.queue_mode |= here.queue_mode;
        mode.groups = mode.groups.max(here.groups);
    }
    let keys: Vec<MessageKey> = greatest(page, all);
    let steps: Vec<(ShardId, InspectStep)> = by_shard(keys, |key| key.partition.shard())
        .into_iter()
        .map(|(shard, keys)| (shard, InspectStep::MessageRows(keys)))
        .collect();
    if steps.is_empty() {
        return Joined::Answer(message_rows(mode, Vec::new()));
    }
    Joined::Next(Found::Messages(mode), steps)
}

fn message_rows(mode: ReaderMode, parts: Vec<InspectPart>) -> Inspected {
    let (mut all, mut bodies, mut cut) = (Vec::new(), Bodies::default(), None);
    for part in parts {
        let InspectPart::MessageRows { rows, bodies: more, cut: here } = part else { continue };
        let before = bodies.0.len() as u32;
        bodies.0.extend(more.0);
        all.extend(rows.into_iter().map(|mut row: MessageRow| {
            row.place.body += before;
            row
        }));
        cut = cut.max(here);
    }
    // A page that one shard had to end early ends there as a whole.
    all.retain(|row| cut.is_none_or(|cut| row.key > cut));
    all.sort_unstable_by_key(|row| std::cmp::Reverse(row.key));
    Inspected::Messages { rows: all, bodies, mode, truncated: cut.is_some() }
}

// ---- dead letters

fn dead_letter_keys(page: Page, parts: Vec<InspectPart>) -> Joined {
    let (mut all, mut sum) = (Vec::new(), 0);
    for part in parts {
        let InspectPart::DeadLetterKeys { keys, total } = part else { continue };
        all.push(keys);
        sum += total;
    }
    let keys: Vec<DeadLetterKey> = greatest(page, all);
    let steps: Vec<(ShardId, InspectStep)> = by_shard(keys, |key| key.partition.shard())
        .into_iter()
        .map(|(shard, keys)| (shard, InspectStep::DeadLetterRows(keys)))
        .collect();
    if steps.is_empty() {
        return Joined::DeadLetters { rows: Vec::new(), total: sum, truncated: false };
    }
    Joined::Next(Found::DeadLetters { total: sum }, steps)
}

fn dead_letter_rows(total: u64, parts: Vec<InspectPart>) -> Joined {
    let key = |row: &PeerDeadLetter| DeadLetterKey {
        failed_at_us: row.failed_at_us,
        id: row.id,
        partition: row.partition_id,
    };
    let (mut all, mut cut) = (Vec::new(), None);
    for part in parts {
        let InspectPart::DeadLetterRows { rows, cut: here } = part else { continue };
        all.extend(rows);
        cut = cut.max(here);
    }
    all.retain(|row| cut.is_none_or(|cut| key(row) > cut));
    all.sort_unstable_by_key(|row| std::cmp::Reverse(key(row)));
    Joined::DeadLetters { rows: all, total, truncated: cut.is_some() }
}

// ---- partitions and groups

fn queue(parts: Vec<InspectPart>) -> Joined {
    let mut sum: Option<QueuePart> = None;
    let mut first = First::new(QueueDetail::PARTITIONS_MAX);
    for part in parts {
        let InspectPart::Queue { part, partitions, truncated } = part else { continue };
        first.over |= truncated;
        partitions.into_iter().for_each(|row| first.put(row.name.clone(), row));
        match (&mut sum, part) {
            (Some(sum), Some(part)) => sum.add(&part),
            (None, part) => sum = part,
            (Some(_), None) => {}
        }
    }
    let truncated = first.over;
    Joined::Queue { sum, partitions: first.take(), truncated }
}

fn loads(query: &LoadQuery, parts: Vec<InspectPart>) -> Loads {
    let (mut all, mut first) = (Loads::default(), First::new(query.page.reach()));
    for part in parts {
        let InspectPart::Loads(loads) = part else { continue };
        all.sums.pending += loads.sums.pending;
        all.sums.processing += loads.sums.processing;
        all.sums.partitions_pending += loads.sums.partitions_pending;
        all.sums.partitions_ready += loads.sums.partitions_ready;
        all.sums.conflation |= loads.sums.conflation;
        all.walked += loads.walked;
        first.over |= loads.truncated;
        loads.rows.into_iter().for_each(|row| first.put(row.key(query.order), row));
    }
    (all.truncated, all.rows) = (first.over, first.page(query.page));
    all
}

/// By group, then queue.
fn groups(parts: Vec<InspectPart>) -> Vec<GroupRow> {
    let mut all: BTreeMap<(String, String), GroupRow> = BTreeMap::new();
    for part in parts {
        let InspectPart::Groups(rows) = part else { continue };
        for row in rows {
            let name = (row.group.clone(), row.queue.clone());
            match all.get_mut(&name) {
                None => _ = all.insert(name, row),
                Some(sum) => {
                    sum.cursors += row.cursors;
                    sum.partitions_behind += row.partitions_behind;
                    sum.behind += row.behind;
                    sum.consumed |= row.consumed;
                    sum.oldest_us = match (sum.oldest_us, row.oldest_us) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                }
            }
        }
    }
    all.into_values().collect()
}

fn why(parts: Vec<InspectPart>) -> Inspected {
    let (mut answer, mut parked) = (None::<Box<Why>>, 0);
    for part in parts {
        match part {
            InspectPart::Why(why) => {
                parked += why.parked;
                answer = Some(why);
            }
            InspectPart::Parked(here) => parked += here,
            _ => {}
        }
    }
    match answer {
        Some(mut why) => {
            why.parked = parked;
            Inspected::Why(why)
        }
        None => Inspected::Missing(Missing::Partition),
    }
}

// ---- traces

fn trace_keys(page: Page, parts: Vec<InspectPart>) -> Joined {
    let (mut all, mut sum) = (Vec::new(), 0);
    for part in parts {
        let InspectPart::TraceKeys { keys, total } = part else { continue };
        all.push(keys);
        sum += total;
    }
    let keys: Vec<TraceKey> = greatest(page, all);
    let steps: Vec<(ShardId, InspectStep)> = by_shard(keys, |key| Some(ShardId(key.shard)))
        .into_iter()
        .map(|(shard, keys)| (shard, InspectStep::TraceRows(keys)))
        .collect();
    if steps.is_empty() {
        let none = Inspected::Traces { rows: Vec::new(), total: sum, truncated: false };
        return Joined::Answer(none);
    }
    Joined::Next(Found::Traces { total: sum }, steps)
}

fn trace_rows(request: &InspectRequest, total: u64, parts: Vec<InspectPart>) -> Inspected {
    // Names and ids are found by fingerprints; what carries another one is not shown.
    let asked = |row: &TraceRow| match request {
        InspectRequest::Traces(TraceQuery { of: TraceSubject::Name(name), .. }) => {
            row.trace.names.contains(name)
        }
        InspectRequest::Traces(TraceQuery {
            of: TraceSubject::Message { transaction_id, .. },
            ..
        }) => row.trace.transaction_id == *transaction_id,
        _ => false,
    };
    let (mut all, mut cut) = (Vec::new(), None);
    for part in parts {
        let InspectPart::Traces { rows, cut: here } = part else { continue };
        all.extend(rows);
        cut = cut.max(here);
    }
    all.retain(|row: &TraceRow| asked(row) && cut.is_none_or(|cut| row.key > cut));
    all.sort_unstable_by_key(|row| std::cmp::Reverse(row.key));
    Inspected::Traces { rows: all, total, truncated: cut.is_some() }
}

/// Names last seen newest first. One name may have traces on several shards.
fn trace_names(page: Page, parts: Vec<InspectPart>) -> Joined {
    let mut sums: BTreeMap<u64, (TraceName, Vec<ShardId>)> = BTreeMap::new();
    for part in parts {
        let InspectPart::TraceNames { shard, names } = part else { continue };
        for name in names {
            let (sum, shards) = sums.entry(name.hash).or_insert_with(|| {
                let none = TraceName { traces: 0, messages: 0, last_us: i64::MIN, ..name };
                (none, Vec::new())
            });
            sum.traces += name.traces;
            sum.messages += name.messages;
            sum.last_us = sum.last_us.max(name.last_us);
            shards.push(shard);
        }
    }
    let total = sums.len() as u64;
    let mut first = First::new(page.reach());
    for (name, shards) in sums.into_values() {
        first.put((std::cmp::Reverse(name.last_us), name.hash), (name, shards));
    }
    let rows: Vec<(TraceName, Vec<ShardId>)> = first.page(page);
    let wanted = rows.iter().flat_map(|(name, shards)| shards.iter().map(|s| (*s, name.hash)));
    let steps: Vec<(ShardId, InspectStep)> = by_shard(wanted, |(shard, _)| Some(*shard))
        .into_iter()
        .map(|(shard, hashes)| {
            let hashes = hashes.into_iter().map(|(_, hash)| hash).collect();
            (shard, InspectStep::TraceNameRows(hashes))
        })
        .collect();
    if steps.is_empty() {
        return Joined::Answer(Inspected::TraceNames { rows: Vec::new(), total });
    }
    let rows = rows.into_iter().map(|(name, _)| name).collect();
    Joined::Next(Found::TraceNames { rows, total }, steps)
}

fn trace_name_rows(rows: Vec<TraceName>, total: u64, parts: Vec<InspectPart>) -> Inspected {
    let mut texts: BTreeMap<u64, String> = BTreeMap::new();
    for part in parts {
        if let InspectPart::TraceNameTexts(more) = part {
            texts.extend(more);
        }
    }
    // A name whose last trace went between the two steps is left out.
    let rows = rows.into_iter().filter_map(|row| Some((row, texts.remove(&row.hash)?))).collect();
    Inspected::TraceNames { rows, total }
}

/// Keeps the first `reach` of an order while more come than fit.
#[derive(Debug)]
pub(super) struct First<K: Ord, V> {
    reach: usize,
    rows: BTreeMap<K, V>,
    /// Some did not fit.
    pub over: bool,
}

impl<K: Ord, V> First<K, V> {
    pub(super) fn new(reach: usize) -> Self {
        Self { reach, rows: BTreeMap::new(), over: false }
    }

    /// The last that is kept, once there are as many as are wanted: what comes behind it need
    /// not be made.
    pub(super) fn last_of_full(&self) -> Option<&K> {
        self.rows.last_key_value().filter(|_| self.rows.len() >= self.reach).map(|(key, _)| key)
    }

    pub(super) fn put(&mut self, key: K, value: V) {
        self.rows.insert(key, value);
        if self.rows.len() > self.reach {
            self.rows.pop_last();
            self.over = true;
        }
    }

    pub(super) fn page(self, page: Page) -> Vec<V> {
        self.rows.into_values().skip(page.offset).take(page.limit).collect()
    }

    pub(super) fn take(&mut self) -> Vec<V> {
        std::mem::take(&mut self.rows).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Offset, PartitionId};
    use crate::model::inspect::{BodyPlace, MessageStatus};

    fn key(shard: u16, at: i64) -> MessageKey {
        let partition = PartitionId::new(ShardId(shard), 1);
        MessageKey { created_at_us: at, offset: Offset(0), partition }
    }

    fn row(key: MessageKey) -> MessageRow {
        MessageRow {
            key,
            queue: String::new(),
            partition: String::new(),
            namespace: String::new(),
            task: String::new(),
            priority: 0,
            status: MessageStatus::Pending,
            queue_status: MessageStatus::Pending,
            consumed_by: 0,
            groups: 0,
            lease_expires_us: None,
            segment: 0,
            place: BodyPlace { body: 0, index: 0 },
        }
    }

    #[test]
    fn a_page_is_cut_from_all_shards_and_read_where_its_rows_are() {
        let keys = |shard, times: &[i64]| InspectPart::MessageKeys {
            keys: times.iter().map(|at| key(shard, *at)).collect(),
            mode: ReaderMode::default(),
        };
        let page = Page { limit: 3, offset: 1 };
        let joined = message_keys(page, vec![keys(0, &[9, 5, 1]), keys(1, &[8, 7, 2])]);
        let Joined::Next(_, steps) = joined else { panic!("rows are read") };
        let want = vec![
            (ShardId(0), InspectStep::MessageRows(vec![key(0, 5)])),
            (ShardId(1), InspectStep::MessageRows(vec![key(1, 8), key(1, 7)])),
        ];
        assert_eq!(steps, want);
    }

    #[test]
    fn a_page_that_one_shard_ended_early_ends_there() {
        let part = |rows: Vec<MessageKey>, cut| InspectPart::MessageRows {
            bodies: Bodies(vec![Vec::new()]),
            rows: rows.into_iter().map(row).collect(),
            cut,
        };
        let parts =
            vec![part(vec![key(0, 9)], Some(key(0, 6))), part(vec![key(1, 8), key(1, 4)], None)];
        let answer = message_rows(ReaderMode::default(), parts);
        let Inspected::Messages { rows, truncated, bodies, .. } = answer else { panic!() };
        let kept: Vec<_> = rows.iter().map(|row| (row.key, row.place.body)).collect();
        assert_eq!(kept, [(key(0, 9), 0), (key(1, 8), 1)]);
        assert!(truncated && bodies.0.len() == 2);
    }

    #[test]
    fn the_first_of_an_order_are_kept_and_the_rest_is_noticed() {
        let mut first = First::new(2);
        for n in [5, 1, 9, 3] {
            first.put(n, n);
        }
        assert_eq!((first.last_of_full(), first.over), (Some(&3), true));
        assert_eq!(first.take(), [1, 3]);
    }
}

//! What clients know when many things happen at once: which pushes were answered, what was
//! delivered under which lease, what was acked. Nothing here knows how a broker works; each
//! rule is one that a client could check by itself.
//!
//! Where an outcome is not known (no answer came before a crash, a refusal) the ledger allows
//! both. Times are wall time in microseconds; a step is one choice of the world.

use crate::stored::{Opener, Stored};
use crate::workload::{Group, Item};
use crate::world::all_keys;
use lanemq::base::buf::HeapBuf;
use lanemq::base::ids::{LeaseId, MessageId, PartitionId};
use lanemq::base::uuid;
use lanemq::model::command::{AckStatus, PopRequest};
use lanemq::model::frame::BatchHead;
use lanemq::model::reply::{Claim, PopReply, PushResult};
use std::collections::{BTreeMap, BTreeSet};

type Step = Result<(), String>;

/// What became of one pushed item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Unknown,
    Stored(u64, MessageId),
    Duplicate(u64, MessageId),
}

#[derive(Debug)]
struct Pushed {
    item: Item,
    /// What is stored whole or not at all: the request's items of its partition, or its group.
    unit: u64,
    /// Deletions of its queue begun before it was sent; `None`: one was on its way.
    deletions: Option<u64>,
    fate: Fate,
}

/// A message as it was delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    number: u64,
    id: MessageId,
    created_us: i64,
    base: u64,
}

#[derive(Debug)]
struct LeaseSeen {
    id: LeaseId,
    start: u64,
    #[expect(dead_code, reason = "printed with a red seed")]
    end: u64,
    /// It lives at least until then.
    sure_until_us: i64,
    answered_us: i64,
    /// Something has ended it, or may have.
    over: bool,
    /// Acks under it without an answer, by item.
    open: usize,
}

impl LeaseSeen {
    fn is_sure(&self) -> bool {
        !self.over && self.open == 0
    }
}

#[derive(Default, Debug)]
struct Reader {
    leases: Vec<LeaseSeen>,
    /// Everything below was settled for sure, and since which step.
    floors: Vec<(u64, u64)>,
    /// Nothing at or above was ever settled.
    ceiling: u64,
    /// The last step at which an ack without a lease was on its way.
    unfenced: Option<u64>,
    /// Items of such acks without an answer.
    unfenced_open: usize,
}

/// A pop as it was sent.
#[derive(Clone, Debug)]
pub struct PopSent {
    pub request: PopRequest<'static>,
    pub step: u64,
    pub at_us: i64,
}

pub struct Ledger {
    pushed: BTreeMap<u64, Pushed>,
    seen: BTreeMap<PartitionId, BTreeMap<u64, Seen>>,
    homes: BTreeMap<PartitionId, (String, String)>,
    places: BTreeMap<u64, (PartitionId, u64)>,
    readers: BTreeMap<(PartitionId, String), Reader>,
    /// Deletions begun, by queue.
    deletions: BTreeMap<String, u64>,
    /// Queues with a deletion on its way, once for each.
    deleting: Vec<String>,
    /// Partitions of deleted queues, and the step the deletion was answered.
    dead: BTreeMap<PartitionId, u64>,
    /// Queues whose retention may have removed something.
    pub retained: BTreeSet<String>,
    /// The shortest dedup window a queue ever had.
    pub windows: BTreeMap<String, u64>,
    /// Commits at delivery whose answer was lost may have skipped messages.
    blind: BTreeSet<(String, String)>,
    /// Dead letters that an ack reported.
    filed: BTreeSet<(PartitionId, String, String)>,
    units: u64,
    reads_fail: bool,
    opener: Opener,
}

/// The number each payload begins with.
pub fn number_of(payload: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(payload.get(1..)?).ok()?;
    text.split(',').next()?.parse().ok()
}

impl Ledger {
    /// With `reads_fail`, an original may be unreadable when its duplicate comes.
    pub fn new(reads_fail: bool) -> Self {
        Self {
            pushed: BTreeMap::new(),
            seen: BTreeMap::new(),
            homes: BTreeMap::new(),
            places: BTreeMap::new(),
            readers: BTreeMap::new(),
            deletions: BTreeMap::new(),
            deleting: Vec::new(),
            dead: BTreeMap::new(),
            retained: BTreeSet::new(),
            windows: BTreeMap::new(),
            blind: BTreeSet::new(),
            filed: BTreeSet::new(),
            units: 0,
            reads_fail,
            opener: Opener::new(all_keys()),
        }
    }

    // ---- pushes

    pub fn push(&mut self, items: &[Item], groups: Option<&[Group]>) -> Vec<u64> {
        self.units += 1;
        let mut numbers = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let begins = |g: &Group| at > 0 && g.places.start == at;
            self.units += u64::from(groups.is_some_and(|groups| groups.iter().any(begins)));
            let number = number_of(&item.payload).expect("payloads are numbered");
            let begun = self.deletions.get(&item.queue).copied().unwrap_or(0);
            let deletions = (!self.deleting.contains(&item.queue)).then_some(begun);
            let unit = self.units;
            let pushed = Pushed { item: item.clone(), unit, deletions, fate: Fate::Unknown };
            self.pushed.insert(number, pushed);
            numbers.push(number);
        }
        numbers
    }

    /// Takes the answer; returns ids that must be durable now.
    pub fn push_answered(
        &mut self,
        numbers: &[u64],
        results: &[PushResult],
    ) -> Result<Vec<(MessageId, bool)>, String> {
        if numbers.len() != results.len() {
            return Err(format!("{} results for {} items", results.len(), numbers.len()));
        }
        let mut durable = Vec::new();
        for (number, result) in numbers.iter().zip(results) {
            let pushed = self.pushed.get_mut(number).expect("sent");
            let begun = self.deletions.get(&pushed.item.queue).copied().unwrap_or(0);
            let intact =
                Some(begun) == pushed.deletions && !self.retained.contains(&pushed.item.queue);
            match result {
                PushResult::Queued { id, .. } if pushed.item.id.is_some_and(|own| own != *id) => {
                    return Err(format!("{:?} is answered with id {id:?}", pushed.item));
                }
                PushResult::Queued { id, offset } => {
                    pushed.fate = Fate::Stored(offset.0, *id);
                    if intact {
                        durable.push((*id, false));
                    }
                }
                PushResult::Duplicate { id, offset } => {
                    pushed.fate = Fate::Duplicate(offset.0, *id);
                    if intact && *id != MessageId::default() {
                        durable.push((*id, true));
                    }
                }
                PushResult::Error { text, .. } => return Err(format!("a push fails: {text}")),
            }
        }
        for number in numbers {
            if let Some(place) = self.places.get(number).copied() {
                self.agrees(*number, place)?;
            }
        }
        Ok(durable)
    }

    /// A message stands where its answer says.
    fn agrees(&self, number: u64, (partition, offset): (PartitionId, u64)) -> Step {
        let pushed = &self.pushed[&number];
        let seen = &self.seen[&partition][&offset];
        match pushed.fate {
            Fate::Stored(o, id) if (o, id) != (offset, seen.id) => Err(format!(
                "message {number} was answered as {o} {id:?}, but is {offset} {:?}",
                seen.id
            )),
            Fate::Duplicate(o, _) => Err(format!("{number} is {offset}, yet a duplicate of {o}")),
            _ => Ok(()),
        }
    }

    // ---- deliveries

    fn see(
        &mut self,
        claim: &Claim<HeapBuf>,
        offset: u64,
        stored: &Stored,
        head: &BatchHead,
    ) -> Step {
        let number = number_of(&stored.payload).ok_or("a payload nobody pushed")?;
        let pushed = self.pushed.get(&number).ok_or("a message nobody pushed")?;
        let id_text = uuid::to_string(&stored.id.0);
        let id = pushed.item.transaction_id.as_deref().unwrap_or(&id_text);
        if pushed.item.payload != stored.payload
            || pushed.item.id.is_some_and(|own| own != stored.id)
            || id.as_bytes() != stored.transaction_id
            || (&pushed.item.queue, &pushed.item.partition) != (&claim.queue, &claim.partition)
        {
            return Err(format!("message {number} is not what was pushed: {:?}", pushed.item));
        }
        let home = (claim.queue.clone(), claim.partition.clone());
        if *self.homes.entry(claim.partition_id).or_insert_with(|| home.clone()) != home {
            return Err(format!("partition id {} has two homes", claim.partition_id));
        }
        let (created_us, base) = (head.created_at_us, head.base_offset.0);
        let seen = Seen { number, id: stored.id, created_us, base };
        let place = (claim.partition_id, offset);
        if *self.places.entry(number).or_insert(place) != place {
            return Err(format!("message {number} is at {place:?} and {:?}", self.places[&number]));
        }
        let partition = self.seen.entry(claim.partition_id).or_default();
        let before = partition.range(..offset).next_back().map(|(_, s)| (s.created_us, s.base));
        if before.is_some_and(|(us, b)| us > created_us || us == created_us && b != base) {
            return Err(format!("createdAt does not rise at {place:?}"));
        }
        if *partition.entry(offset).or_insert_with(|| seen.clone()) != seen {
            return Err(format!("{place:?} was another message"));
        }
        self.agrees(number, place)
    }

    pub fn delivered(
        &mut self,
        now_us: i64,
        sent: &PopSent,
        step: u64,
        pop: &PopReply<HeapBuf>,
    ) -> Step {
        for claim in &pop.claims {
            let mut next = claim.start.0;
            for batch in &claim.batches {
                let batch = self.opener.delivered(claim.partition_id, &batch.contiguous())?;
                for (offset, stored) in (batch.head.base_offset.0..).zip(&batch.messages) {
                    self.see(claim, offset, stored, &batch.head)?;
                    next += u64::from(offset == next && offset <= claim.end.0);
                }
            }
            if next != claim.end.0 + 1 {
                return Err(format!("a claim's batches end at {next}, not {}", claim.end.0));
            }
            self.judge_claim(now_us, sent, step, pop.lease_id, claim)
                .map_err(|why| format!("{why}\n  {} {:?}", claim.partition_id, sent.request))?;
        }
        Ok(())
    }

    fn judge_claim(
        &mut self,
        now_us: i64,
        sent: &PopSent,
        step: u64,
        lease: Option<LeaseId>,
        claim: &Claim<HeapBuf>,
    ) -> Step {
        if self.dead.get(&claim.partition_id).is_some_and(|died| *died < sent.step) {
            return Err("a message of a deleted queue".into());
        }
        let (start, end) = (claim.start.0, claim.end.0);
        let key = (claim.partition_id, sent.request.group.clone().into_owned());
        let reader = self.readers.entry(key).or_default();
        let floor = reader.floors.iter().filter(|(s, _)| *s < sent.step).map(|(_, f)| *f).max();
        if floor.is_some_and(|floor| start < floor) {
            return Err(format!("{start} is delivered again, settled up to {floor:?}"));
        }
        // Without a given length, the shortest that any queue is configured with here.
        let length_us = i64::from(sent.request.lease_seconds.unwrap_or(1)) * 1_000_000;
        let mine_until_us = sent.at_us + length_us;
        // An ack without a lease may have ended this one before its answer came.
        let over = reader.unfenced_open > 0 || reader.unfenced.is_some_and(|s| s >= sent.step);
        for other in &reader.leases {
            let live = other.is_sure() && other.sure_until_us > now_us;
            let clash = match lease {
                // Its own lease may have ended before the other was granted.
                Some(id) => other.id != id && !over && mine_until_us > other.answered_us,
                None => end >= other.start,
            };
            if live && clash {
                return Err(format!("{start}..={end} beside the live lease {other:?}"));
            }
        }
        match lease {
            Some(id) => {
                reader.leases.retain(|l| l.sure_until_us > now_us);
                reader.leases.push(LeaseSeen {
                    id,
                    start,
                    end,
                    sure_until_us: mine_until_us,
                    answered_us: now_us,
                    over,
                    open: 0,
                });
            }
            None => {
                reader.floors.push((step, end + 1));
                reader.ceiling = reader.ceiling.max(end + 1);
            }
        }
        Ok(())
    }

    /// A pop's answer will never be known, or was not delivered: what it committed is skipped.
    pub fn pop_lost(&mut self, queues: &[&str], sent: &PopSent) {
        if sent.request.auto_ack {
            for queue in queues {
                let group = sent.request.group.clone().into_owned();
                self.blind.insert(((*queue).to_owned(), group));
            }
        }
    }

    /// The claims of an answer that is about to be given back.
    pub fn gave_back(&mut self, pop: &PopReply<HeapBuf>) {
        for claim in &pop.claims {
            let key = (claim.partition_id, pop.group.clone());
            if let Some(reader) = self.readers.get_mut(&key) {
                reader.leases.retain(|l| Some(l.id) != pop.lease_id);
                reader.floors.retain(|(_, f)| pop.lease_id.is_some() || *f != claim.end.0 + 1);
            }
        }
    }

    pub fn transaction_id(&self, partition: PartitionId, offset: u64) -> Option<String> {
        let seen = self.seen.get(&partition)?.get(&offset)?;
        let minted = || uuid::to_string(&seen.id.0);
        Some(self.pushed[&seen.number].item.transaction_id.clone().unwrap_or_else(minted))
    }

    // ---- acks

    /// Offsets an ack may mean, ascending.
    fn offsets_of(&self, partition: PartitionId, id: &str) -> Vec<u64> {
        let offsets = self.seen.get(&partition).into_iter().flat_map(BTreeMap::keys);
        offsets
            .copied()
            .filter(|o| self.transaction_id(partition, *o).as_deref() == Some(id))
            .collect()
    }

    pub fn ack_sent(
        &mut self,
        step: u64,
        group: &str,
        partition: PartitionId,
        lease: &str,
        id: &str,
    ) {
        self.may_settle(group, partition, id);
        self.ack_opens(step, group, partition, lease);
    }

    /// An ack of this id may have been taken.
    pub fn may_settle(&mut self, group: &str, partition: PartitionId, id: &str) {
        let offsets = self.offsets_of(partition, id);
        let reader = self.readers.entry((partition, group.to_owned())).or_default();
        let last = offsets.last().map_or(u64::MAX, |o| o + 1);
        // A second message of the same id may be meant, one that nobody saw.
        let ceiling = if offsets.len() == 1 { last } else { u64::MAX };
        reader.ceiling = reader.ceiling.max(ceiling);
    }

    pub fn ack_opens(&mut self, step: u64, group: &str, partition: PartitionId, lease: &str) {
        let reader = self.readers.entry((partition, group.to_owned())).or_default();
        for held in &mut reader.leases {
            held.over |= lease.is_empty();
            held.open += usize::from(uuid::parse(lease) == Some(held.id.0));
        }
        if lease.is_empty() {
            reader.unfenced = Some(step);
            reader.unfenced_open += 1;
        }
    }

    /// An ack's item was answered; `kept`: for sure its lease goes on.
    pub fn ack_ended(
        &mut self,
        step: u64,
        group: &str,
        partition: PartitionId,
        lease: &str,
        kept: bool,
    ) {
        let Some(reader) = self.readers.get_mut(&(partition, group.to_owned())) else { return };
        if lease.is_empty() {
            reader.unfenced = Some(step);
            reader.unfenced_open -= 1;
        }
        for held in reader.leases.iter_mut().filter(|l| uuid::parse(lease) == Some(l.id.0)) {
            // It may have been granted to us while the ack was on its way.
            held.open = held.open.saturating_sub(1);
            held.over |= !kept;
        }
    }

    /// All commands without an answer are gone.
    pub fn crashed(&mut self) {
        for reader in self.readers.values_mut() {
            reader.unfenced_open = 0;
            reader.leases.iter_mut().for_each(|l| l.over |= l.open > 0);
        }
        self.deleting.clear();
    }

    /// All items of one target were answered with success. Only completions settle for sure.
    pub fn acked(
        &mut self,
        step: u64,
        group: &str,
        partition: PartitionId,
        lease: &str,
        items: &[(String, AckStatus, bool)],
    ) {
        let mut floor = 0;
        if items.iter().all(|(_, status, _)| *status == AckStatus::Completed) {
            for (id, _, noop) in items {
                let offsets = self.offsets_of(partition, id);
                if let ([offset], true) = (offsets.as_slice(), !noop || !lease.is_empty()) {
                    floor = floor.max(offset + 1);
                }
            }
        }
        let reader = self.readers.entry((partition, group.to_owned())).or_default();
        if floor > 0 {
            reader.floors.push((step, floor));
        }
    }

    pub fn filed(&mut self, partition: PartitionId, group: &str, id: &str) {
        self.filed.insert((partition, group.to_owned(), id.to_owned()));
    }

    pub fn extended(&mut self, id: LeaseId, until_us: i64, renewed: usize) {
        let held = || self.readers.values().flat_map(|r| &r.leases).filter(|l| l.id == id);
        if held().count() == renewed && held().all(LeaseSeen::is_sure) {
            let all = self.readers.values_mut().flat_map(|r| r.leases.iter_mut());
            all.filter(|l| l.id == id)
                .for_each(|l| l.sure_until_us = l.sure_until_us.max(until_us));
        }
    }

    // ---- queues

    pub fn delete_sent(&mut self, queue: &str) -> Vec<PartitionId> {
        *self.deletions.entry(queue.to_owned()).or_default() += 1;
        self.deleting.push(queue.to_owned());
        let homes = self.homes.iter().filter(|(_, home)| home.0 == queue);
        let known: Vec<PartitionId> = homes.map(|(id, _)| *id).collect();
        for id in &known {
            for (_, reader) in self.readers.iter_mut().filter(|((p, _), _)| p == id) {
                reader.leases.iter_mut().for_each(|l| l.over = true);
            }
        }
        known
    }

    pub fn delete_ended(&mut self, queue: &str) {
        if let Some(at) = self.deleting.iter().position(|name| name == queue) {
            self.deleting.swap_remove(at);
        }
    }

    pub fn deleted(&mut self, step: u64, partitions: Vec<PartitionId>) {
        for id in partitions {
            self.dead.entry(id).or_insert(step);
        }
    }

    // ---- the end

    /// Whether a message was seen stored; `None`: its queue was deleted or retention works there,
    /// so that nobody can say.
    pub fn is_stored(&self, number: u64) -> Option<bool> {
        let pushed = &self.pushed[&number];
        let begun = self.deletions.get(&pushed.item.queue).copied().unwrap_or(0);
        let intact = Some(begun) == pushed.deletions && !self.retained.contains(&pushed.item.queue);
        let seen = self.places.contains_key(&number);
        (seen || intact).then_some(seen)
    }

    /// What a group finds first at the end: nothing unacked may lie before it.
    pub fn resumes(&self, group: &str, queue: &str, partition: PartitionId, start: u64) -> Step {
        if self.blind.contains(&(queue.to_owned(), group.to_owned()))
            || self.retained.contains(queue)
        {
            return Ok(());
        }
        let reader = self.readers.get(&(partition, group.to_owned()));
        match reader.map_or(0, |r| r.ceiling) {
            ceiling if start > ceiling => Err(format!(
                "{group} resumes {partition} at {start}, acked at most up to {ceiling}"
            )),
            _ => Ok(()),
        }
    }

    /// Everything was read, each partition from its first message: `heads` by partition.
    pub fn complete(&self, live: &BTreeMap<PartitionId, u64>) -> Step {
        for (number, pushed) in &self.pushed {
            let queue = &pushed.item.queue;
            let begun = self.deletions.get(queue).copied().unwrap_or(0);
            let intact = Some(begun) == pushed.deletions;
            if !intact || self.retained.contains(queue) {
                continue;
            }
            let place = self.places.get(number).filter(|(p, _)| live.contains_key(p));
            match (pushed.fate, place) {
                (Fate::Stored(offset, _), None) => {
                    return Err(format!(
                        "LOST message {number}, answered as {offset}: {:?}",
                        pushed.item
                    ));
                }
                (Fate::Duplicate(offset, id), _) => self.has_original(pushed, offset, id)?,
                (Fate::Unknown, _) | (Fate::Stored(..), Some(_)) => {}
            }
        }
        for (partition, first) in live {
            self.check_partition(*partition, *first)?;
        }
        self.check_whole(live)
    }

    fn has_original(&self, pushed: &Pushed, offset: u64, id: MessageId) -> Step {
        // An original that the disk would not show is named by its offset alone.
        let home = (pushed.item.queue.clone(), pushed.item.partition.clone());
        let unread = id == MessageId::default() && self.reads_fail;
        let found = self.homes.iter().any(|(partition, h)| {
            *h == home
                && self.seen[partition].get(&offset).is_some_and(|s| s.id == id || unread)
                && self.transaction_id(*partition, offset) == self.id_of(pushed, id)
        });
        match found {
            true => Ok(()),
            false => {
                Err(format!("{:?} is a duplicate of {offset} {id:?}: no such message", pushed.item))
            }
        }
    }

    fn id_of(&self, pushed: &Pushed, id: MessageId) -> Option<String> {
        pushed.item.transaction_id.clone().or(Some(uuid::to_string(&id.0)))
    }

    fn check_partition(&self, partition: PartitionId, first: u64) -> Step {
        let (queue, _) = &self.homes[&partition];
        if first != 0 && !self.retained.contains(queue) {
            return Err(format!("{partition} begins at {first}"));
        }
        let seen = &self.seen[&partition];
        for ((a, _), (b, _)) in seen.range(first..).zip(seen.range(first..).skip(1)) {
            if a + 1 != *b {
                return Err(format!("{partition} has a gap between {a} and {b}"));
            }
        }
        let window_us = self.windows.get(queue).copied().unwrap_or(3_600) as i64 * 1_000_000;
        let mut last: BTreeMap<String, i64> = BTreeMap::new();
        for (offset, message) in seen {
            let id = self.transaction_id(partition, *offset).ok_or("seen")?;
            let before = last.insert(id.clone(), message.created_us);
            if before.is_some_and(|us| message.created_us - us < window_us) {
                return Err(format!("{partition}: {id} is stored twice, again at {offset}"));
            }
        }
        Ok(())
    }

    /// The items of one unit for one partition are all there or none is, but for duplicates.
    fn check_whole(&self, live: &BTreeMap<PartitionId, u64>) -> Step {
        let mut parts: BTreeMap<(u64, &str, &str), Vec<u64>> = BTreeMap::new();
        // Retention may have taken a part before anybody saw it.
        let kept = self.pushed.iter().filter(|(_, p)| !self.retained.contains(&p.item.queue));
        for (number, pushed) in kept {
            let key = (pushed.unit, pushed.item.queue.as_str(), pushed.item.partition.as_str());
            parts.entry(key).or_default().push(*number);
        }
        for numbers in parts.values() {
            let places: Vec<_> = numbers.iter().filter_map(|n| self.places.get(n)).collect();
            let Some((partition, first)) =
                places.first().copied().filter(|p| live.contains_key(&p.0))
            else {
                continue;
            };
            let base = self.seen[partition][first].base;
            let apart = places.iter().any(|(p, o)| p != partition || self.seen[p][o].base != base);
            let missing = numbers.iter().filter(|n| !self.places.contains_key(n)).find(|n| {
                let id = self.pushed[n].item.transaction_id.as_deref();
                id.is_none_or(|id| self.offsets_of(*partition, id).is_empty())
            });
            if apart || missing.is_some() {
                return Err(format!("a request is torn in {partition}: {numbers:?}, {missing:?}"));
            }
        }
        Ok(())
    }

    /// Rows of the dead letter listing: partition, group, offset, frame.
    pub fn dead_letters(
        &mut self,
        queue: &str,
        rows: &[(PartitionId, String, u64, Vec<u8>)],
    ) -> Step {
        let mut listed = BTreeSet::new();
        for (partition, group, offset, bytes) in rows {
            if !listed.insert((*partition, group, *offset)) {
                return Err(format!("{partition} {offset} is filed twice for {group}"));
            }
            let stored = self.opener.frame(*partition, bytes)?;
            let seen = self.seen.get(partition).and_then(|s| s.get(offset));
            let same = |s: &Seen| {
                s.id == stored.id && self.pushed[&s.number].item.payload == stored.payload
            };
            // A nack without a lease may have named a message that was not delivered yet.
            if !seen.is_none_or(same) {
                return Err(format!("the dead letter {partition} {offset} is not its message"));
            }
        }
        for (partition, group, id) in &self.filed {
            let lives = self.homes.get(partition).is_some_and(|h| h.0 == queue)
                && !self.deletions.contains_key(queue);
            let found = listed.iter().any(|(p, g, o)| {
                p == partition
                    && *g == group
                    && self.transaction_id(*p, *o).as_deref() == Some(id.as_str())
            });
            if lives && !found {
                return Err(format!("the dead letter of {id} in {partition} is not listed"));
            }
        }
        Ok(())
    }
}

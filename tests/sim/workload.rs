//! What clients ask for: small names, many repeats, so that everything meets everything.

use bytes::Bytes;
use lanemq::base::ids::{LeaseId, MessageId, PartitionId};
use lanemq::base::prng::Prng;
use lanemq::base::uuid;
use lanemq::model::command::{
    AckItem, AckStatus, FrameGroup, PopRequest, PopTarget, PushItem, QUEUE_MODE, Subscription,
};
use lanemq::model::frame;
use lanemq::model::options::{OptionsPatch, Setting};
use lanemq::model::peer::PushPiece;
use std::collections::VecDeque;
use std::ops::Range;

const QUEUES: [&str; 5] = ["a.x.1", "a.y.2", "b.x.3", "plain", "a.x.4"];
const PARTITIONS: [&str; 6] = ["Default", "p1", "p2", "p3", "p4", "p5"];
const GROUPS: [&str; 4] = [QUEUE_MODE, "g1", "g2", "g3"];
const RECENT: usize = 24;

/// An item of a push, owned.
#[derive(Clone)]
pub struct Item {
    pub queue: String,
    pub partition: String,
    pub transaction_id: Option<String>,
    pub payload: Vec<u8>,
    /// The message id, where the client made it: in a frame.
    pub id: Option<MessageId>,
}

/// Neighbouring items of one partition, framed and compressed by the client.
pub struct Group {
    /// Places in the push.
    pub places: Range<usize>,
    pub frames: Vec<u8>,
    pub packed: Bytes,
}

impl Group {
    pub fn borrowed<'a>(&self, items: &'a [Item]) -> FrameGroup<'a> {
        let first = &items[self.places.start];
        let (frames, packed) = (self.frames.clone(), self.packed.clone());
        let piece = PushPiece { frames, count: self.places.len() as u32, packed, recode: false };
        FrameGroup { queue: &first.queue, partition: &first.partition, piece }
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = String::from_utf8_lossy(&self.payload[..self.payload.len().min(8)]);
        write!(f, "{}/{} {:?} {start}", self.queue, self.partition, self.transaction_id)
    }
}

impl Item {
    pub fn borrowed(&self) -> PushItem<'_> {
        PushItem {
            queue: self.queue.as_str().into(),
            partition: self.partition.as_str().into(),
            transaction_id: self.transaction_id.as_deref().map(Into::into),
            payload: &self.payload,
        }
    }
}

/// A delivered message a client may still ack.
#[derive(Clone, Debug)]
pub struct Held {
    pub partition: PartitionId,
    pub transaction_id: String,
    pub offset: u64,
}

/// A delivery: one claim under one lease.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub group: String,
    pub lease: Option<LeaseId>,
    pub messages: Vec<Held>,
}

pub struct Workload {
    pub prng: Prng,
    pub queues: u64,
    pub partitions: u64,
    pub groups: u64,
    next: u64,
    /// Pushes that come as frames, in percent.
    framed: u64,
    packer: zstd::bulk::Compressor<'static>,
    /// Ids pushed lately, with their queue and partition.
    recent: VecDeque<(String, String, String)>,
    /// Claims that clients hold.
    pub held: VecDeque<Delivery>,
}

impl Workload {
    pub fn new(mut prng: Prng) -> Self {
        Self {
            queues: 1 + prng.below(QUEUES.len() as u64),
            partitions: 1 + prng.below(PARTITIONS.len() as u64),
            groups: 1 + prng.below(GROUPS.len() as u64),
            framed: [10, 40, 80][prng.below(3) as usize],
            packer: zstd::bulk::Compressor::new(1).unwrap(),
            prng,
            next: 0,
            recent: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    pub fn queue(&mut self) -> String {
        QUEUES[self.prng.below(self.queues) as usize].to_owned()
    }

    pub fn queue_names(&self) -> &'static [&'static str] {
        &QUEUES[..self.queues as usize]
    }

    pub fn partition(&mut self) -> String {
        PARTITIONS[self.prng.below(self.partitions) as usize].to_owned()
    }

    pub fn group(&mut self) -> String {
        GROUPS[self.prng.below(self.groups) as usize].to_owned()
    }

    /// Every payload is unlike every other: it begins with a number.
    fn payload(&mut self) -> (u64, Vec<u8>) {
        self.next += 1;
        let bytes = match self.prng.below(20) {
            0 => 2_000 + self.prng.below(8_000),
            1..=4 => 200 + self.prng.below(800),
            _ => self.prng.below(60),
        };
        let fill = "x".repeat(bytes as usize);
        (self.next, format!("[{},\"{fill}\"]", self.next).into_bytes())
    }

    pub fn push(&mut self) -> Vec<Item> {
        let count = match self.prng.below(10) {
            0..=4 => 1,
            5..=8 => 2 + self.prng.below(5),
            _ => 5 + self.prng.below(30),
        };
        let (mut queue, mut partition) = (self.queue(), self.partition());
        let mut items: Vec<Item> = Vec::new();
        for _ in 0..count {
            if self.prng.chance(30) {
                partition = self.partition();
            }
            if self.prng.chance(10) {
                queue = self.queue();
            }
            items.push(self.item(&queue, &partition));
        }
        items
    }

    /// The same item sent again: another payload, so that it shows which of them was stored.
    pub fn renewed(&mut self, item: Item) -> Item {
        let (_, payload) = self.payload();
        Item { payload, id: None, ..item }
    }

    /// Sometimes a push comes as frames that its client built: cut into groups, the same
    /// partition often in several of them. Its items get the ids that a client mints.
    pub fn framed(&mut self, now_us: i64, items: &mut [Item]) -> Option<Vec<Group>> {
        if !self.prng.chance(self.framed) {
            return None;
        }
        let (mut groups, mut from) = (Vec::new(), 0);
        while from < items.len() {
            let home = |item: &Item| (item.queue.clone(), item.partition.clone());
            let mut to = from + 1;
            while to < items.len() && home(&items[to]) == home(&items[from]) {
                if self.prng.chance(15) {
                    break;
                }
                to += 1;
            }
            groups.push(self.pack(now_us, from..to, items));
            from = to;
        }
        Some(groups)
    }

    fn pack(&mut self, now_us: i64, places: Range<usize>, items: &mut [Item]) -> Group {
        let mut frames = Vec::new();
        for item in &mut items[places.clone()] {
            let id = MessageId(uuid::mint_v7(now_us, &mut self.prng));
            item.id = Some(id);
            let given = item.transaction_id.get_or_insert_with(|| uuid::to_string(&id.0));
            frame::write_frame(&mut frames, id, given.as_bytes(), &item.payload);
        }
        let packed = self.packer.compress(&frames).unwrap();
        Group { places, frames, packed: packed.into() }
    }

    fn item(&mut self, queue: &str, partition: &str) -> Item {
        let (number, payload) = self.payload();
        let mut item = Item {
            queue: queue.to_owned(),
            partition: partition.to_owned(),
            transaction_id: None,
            payload,
            id: None,
        };
        match self.prng.below(100) {
            0..=24 => {}
            25..=49 if !self.recent.is_empty() => {
                let at = self.prng.below(self.recent.len() as u64) as usize;
                let (queue, partition, id) = self.recent[at].clone();
                item.transaction_id = Some(id);
                // Sometimes the same id elsewhere, where it is another message.
                if self.prng.chance(80) {
                    (item.queue, item.partition) = (queue, partition);
                }
            }
            _ => item.transaction_id = Some(format!("t{number}")),
        }
        if let Some(id) = &item.transaction_id {
            self.recent.push_back((item.queue.clone(), item.partition.clone(), id.clone()));
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        }
        item
    }

    pub fn pop(&mut self, now_us: i64, waits: bool) -> PopRequest<'static> {
        let target = match self.prng.below(10) {
            0..=5 => PopTarget::Queue(self.queue().into()),
            6..=7 => PopTarget::Partition {
                queue: self.queue().into(),
                partition: self.partition().into(),
            },
            _ => {
                let labels =
                    [("a", ""), ("a", "x"), ("", "x"), ("b", ""), ("plain", ""), ("none", "")];
                let (namespace, task) = labels[self.prng.below(6) as usize];
                PopTarget::Labels { namespace: namespace.into(), task: task.into() }
            }
        };
        let (group, auto_ack) = (self.group(), self.prng.chance(25));
        let conflation = group != QUEUE_MODE && !auto_ack && self.prng.chance(15);
        PopRequest {
            target,
            group: group.into(),
            batch: [None, Some(1), Some(3), Some(10), Some(200)][self.prng.below(5) as usize],
            partitions: [None, Some(1), Some(64), Some(3)][self.prng.below(4) as usize],
            auto_ack,
            wait_ms: waits.then(|| [500, 1_000, 5_000, 30_000][self.prng.below(4) as usize]),
            lease_seconds: [None, Some(1), Some(5), Some(30)][self.prng.below(4) as usize],
            subscription: match self.prng.below(10) {
                0..=5 => Subscription::All,
                6..=7 => Subscription::New,
                _ => Subscription::From(now_us - self.prng.below(20_000_000) as i64),
            },
            autopilot: self.prng.chance(20),
            conflation,
        }
    }

    /// An ack of one held delivery, or nonsense. The lease is given as text.
    pub fn ack(&mut self) -> Option<(String, Vec<AckItem<'static>>)> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.prng.below(self.held.len() as u64) as usize;
        let held = self.held[at].clone();
        if self.prng.chance(70) {
            self.held.remove(at);
        }
        let count = held.messages.len() as u64;
        let (from, to) = match self.prng.below(10) {
            0..=4 => (0, count),
            5 => (count - 1, count),
            6..=7 => (0, 1 + self.prng.below(count)),
            _ => {
                let from = self.prng.below(count);
                (from, from + 1 + self.prng.below(count - from))
            }
        };
        let mood = self.prng.below(10);
        let lease = match self.prng.below(20) {
            0 => String::new(),
            1 => uuid::to_string(&uuid::mint_v7(1, &mut self.prng)),
            _ => held.lease.map(|l| uuid::to_string(&l.0)).unwrap_or_default(),
        };
        let mut items = Vec::new();
        for message in &held.messages[from as usize..to as usize] {
            if mood == 9 && self.prng.chance(50) {
                continue;
            }
            items.push(self.ack_item(message, mood, &lease));
        }
        if self.prng.chance(3) {
            let mut odd = self.ack_item(&held.messages[0], mood, &lease);
            match self.prng.below(3) {
                0 => odd.partition_id = None,
                1 => odd.transaction_id = "never pushed".into(),
                _ => odd.partition_id = Some(PartitionId(77)),
            }
            items.push(odd);
        }
        let group =
            if self.prng.chance(3) && !lease.is_empty() { self.group() } else { held.group };
        Some((group, items))
    }

    fn ack_item(&mut self, message: &Held, mood: u64, lease: &str) -> AckItem<'static> {
        let odd = |prng: &mut Prng| {
            [AckStatus::Retry, AckStatus::Failed, AckStatus::Failed, AckStatus::DeadLetter]
                [prng.below(4) as usize]
        };
        let status = match mood {
            0..=4 => AckStatus::Completed,
            5 => AckStatus::Failed,
            6 => AckStatus::Retry,
            _ if self.prng.chance(70) => AckStatus::Completed,
            _ => odd(&mut self.prng),
        };
        AckItem {
            transaction_id: message.transaction_id.clone().into(),
            partition_id: Some(message.partition),
            status,
            lease_id: lease.to_owned().into(),
            error: self.prng.chance(50).then(|| format!("bad {}", message.offset).into()),
        }
    }

    /// The queues of this seed that encrypt from the start.
    pub fn encrypting(&mut self) -> Vec<(String, OptionsPatch)> {
        let names = self.queue_names().iter().filter(|_| self.prng.chance(40));
        let patch = |name: &&'static str| {
            let mut patch = OptionsPatch::keep();
            patch.encryption_enabled = Setting::Set(true);
            ((*name).to_owned(), patch)
        };
        names.map(patch).collect()
    }

    /// Options that matter to the path of messages; labels stay as they are.
    pub fn options(&mut self) -> OptionsPatch {
        let mut patch = OptionsPatch::keep();
        let p = &mut self.prng;
        match p.below(9) {
            0 => patch.retry_limit = Setting::Set(p.below(3) as u32),
            1 => patch.lease_seconds = Setting::Set(1 + p.below(20) as u32),
            2 => patch.dedup_window_seconds = Setting::Set([0, 2, 60, 3_600][p.below(4) as usize]),
            3 => patch.delayed_processing_seconds = Setting::Set([0, 1, 3][p.below(3) as usize]),
            4 => patch.window_buffer_seconds = Setting::Set([0, 1, 2][p.below(3) as usize]),
            5 => {
                let files = p.chance(50);
                patch.dead_letter_queue = Setting::Set(files);
                patch.dlq_after_max_retries = Setting::Set(p.chance(20));
            }
            6 => patch.retry_limit = Setting::Reset,
            7 => patch.encryption_enabled = Setting::Set(p.chance(60)),
            _ => {
                patch.delayed_processing_seconds = Setting::Set(0);
                patch.window_buffer_seconds = Setting::Reset;
            }
        }
        patch
    }
}

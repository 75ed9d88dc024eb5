//! The clients of a run: producers and consumers, each on its own connection, that work, dawdle,
//! fail and hang up by chance, and write down what they send and get.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::event::{
    Answer, Claim, Event, Extend, Micros, Outcome, Pop, Product, Push, Pushed, Settle, Span,
    Status, Transaction, Verdict,
};
use crate::support::{Client, Message, Request, Response, quoted};

pub const QUEUE: &str = "history";
pub const PRODUCTS: &str = "products";
pub const PARTITIONS: u32 = 100;
pub const PRODUCT_PARTITIONS: u32 = 20;
/// Queue mode, a named group, and the one whose acks are transactions.
pub const GROUPS: [&str; 3] = ["", "all", "relay"];
pub const RELAY: usize = 2;
pub const RETRY_LIMIT: u64 = 2;
/// The longest lease that anybody takes or extends to.
pub const LEASE_MAX: Duration = Duration::from_secs(3);

/// How long a group may take to settle what the load has left it.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// What all clients of a run share.
pub struct Stage {
    address: SocketAddr,
    start: Instant,
    pub stop: AtomicBool,
    /// Kills begun and done: a connection made before a kill was done may break from its begin on.
    pub kills: AtomicU64,
    pub killed: AtomicU64,
    numbers: AtomicU64,
}

impl Stage {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            start: Instant::now(),
            stop: AtomicBool::new(false),
            kills: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
        }
    }

    pub fn now(&self) -> Micros {
        Micros::try_from(self.start.elapsed().as_micros()).unwrap()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Randomness of the clients' choices (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// One client and its notes.
pub struct Actor<'a> {
    stage: &'a Stage,
    client: Client,
    /// `Stage::killed` when it connected.
    epoch: u64,
    random: Random,
    pub events: Vec<Event>,
}

impl<'a> Actor<'a> {
    pub fn new(stage: &'a Stage, seed: u64) -> Self {
        let (client, epoch) = connect(stage);
        Self { stage, client, epoch, random: Random(seed), events: Vec::new() }
    }

    /// Sends a request. `None`: no answer, and the connection is a new one.
    fn exchange(&mut self, request: &Request<'_>) -> (Span, Option<Response>) {
        let sent = self.stage.now();
        let outcome = self.client.request(request);
        let span = Span { sent, ended: self.stage.now() };
        match outcome {
            Ok(answer) if matches!(answer.status, 429 | 503) => {
                std::thread::sleep(Duration::from_millis(50));
                (span, None)
            }
            Ok(answer) => (span, Some(answer)),
            Err(error) => {
                let given_up = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                let killed = self.stage.kills.load(Ordering::SeqCst) > self.epoch;
                assert!(given_up || killed, "a connection broke: {error}");
                (self.client, self.epoch) = connect(self.stage);
                (span, None)
            }
        }
    }

    /// A producer, until the run stops: batches over partitions chosen by chance.
    pub fn produce(&mut self, name: u64) {
        let mut number = 0;
        while !self.stage.stopped() {
            let count = 1 + self.random.below(20);
            let first = number;
            number += count;
            let items: Vec<(u32, String)> = (first..number)
                .map(|n| (self.random.below(u64::from(PARTITIONS)) as u32, format!("{name}-{n}")))
                .collect();
            // What got no answer is mostly sent again, as a client does, and sometimes left.
            let mut again = false;
            while !self.push(&items, again) && self.random.below(4) > 0 {
                again = true;
            }
            std::thread::sleep(Duration::from_millis(self.random.below(30)));
        }
    }

    fn push(&mut self, items: &[(u32, String)], again: bool) -> bool {
        let item = |(partition, id): &(u32, String)| {
            let text = quoted(id);
            format!(
                "{{\"queue\":\"{QUEUE}\",\"partition\":\"{partition}\",\
                 \"transactionId\":{text},\"payload\":{text}}}"
            )
        };
        let texts: Vec<String> = items.iter().map(item).collect();
        let body = format!("{{\"items\":[{}]}}", texts.join(","));
        let (span, answer) = self.exchange(&Request::post("/api/v1/push", body.as_bytes()));
        let results = answer.map(|answer| {
            assert_eq!(answer.status, 201, "{}", answer.text());
            answer.json()
        });
        let pushed = |(at, (partition, id)): (usize, &(u32, String))| {
            let answer = results.as_ref().map(|results| {
                let result = &results[at];
                assert_eq!(result["transaction_id"], id.as_str(), "{results}");
                let status = result["status"].as_str().unwrap();
                assert!(matches!(status, "queued" | "duplicate"), "{results}");
                (status == "queued", result["offset"].as_u64().unwrap())
            });
            Pushed { partition: *partition, id: id.clone(), answer }
        };
        let items = items.iter().enumerate().map(pushed).collect();
        self.events.push(Event::Push(Push { span, again, items }));
        results.is_some()
    }

    /// A consumer of a group, until the run stops.
    pub fn consume(&mut self, group: usize, auto: bool) {
        while !self.stage.stopped() {
            let length = 1 + self.random.below(LEASE_MAX.as_secs());
            let wish = Wish {
                group,
                auto,
                batch: 1 + self.random.below(12),
                partitions: 1 + self.random.below(3),
                lease_seconds: length,
                wait_ms: 200 + self.random.below(300),
            };
            // One pop in eight is given up while it waits.
            let hangs_up = self.random.below(8) == 0;
            if hangs_up {
                let limit = Duration::from_millis(1 + self.random.below(wish.wait_ms));
                self.client.set_read_timeout(limit).unwrap();
            }
            let popped = self.pop(&wish);
            if hangs_up {
                self.client.set_read_timeout(Duration::from_secs(75)).unwrap();
            }
            if let Some(popped) = popped.filter(|_| !auto) {
                self.handle(group, &popped);
            }
        }
    }

    /// Takes and settles all that a group has left, until nothing came for longer than any lease.
    pub fn drain(&mut self, group: usize) {
        // A broker that brings the same messages for ever must not hold the judgement up.
        let limit = Instant::now() + DRAIN_LIMIT;
        let mut last = Instant::now();
        while last.elapsed() < LEASE_MAX + Duration::from_millis(500) && Instant::now() < limit {
            let wish = Wish {
                group,
                auto: false,
                batch: 300,
                partitions: 64,
                lease_seconds: LEASE_MAX.as_secs(),
                wait_ms: 500,
            };
            if let Some(popped) = self.pop(&wish) {
                last = Instant::now();
                let plans = popped.claims.iter().map(|c| (c.partition, all_of(c))).collect();
                self.settle(group, &popped, plans, false);
            }
        }
    }

    fn pop(&mut self, wish: &Wish) -> Option<Popped> {
        let number = self.stage.numbers.fetch_add(1, Ordering::Relaxed);
        let group = match GROUPS[wish.group] {
            "" => String::new(),
            name => format!("&consumerGroup={name}&subscriptionMode=all"),
        };
        let target = format!(
            "/api/v1/pop/queue/{QUEUE}?batch={}&partitions={}&leaseSeconds={}&wait=true\
             &timeout={}&autoAck={}{group}",
            wish.batch, wish.partitions, wish.lease_seconds, wish.wait_ms, wish.auto
        );
        let (span, answer) = self.exchange(&Request::get(&target));
        let messages = answer.map(|answer| Message::all(&answer));
        let claims = messages.as_deref().map(claims);
        self.events.push(Event::Pop(Pop {
            span,
            number,
            group: wish.group,
            batch: wish.batch,
            partitions: wish.partitions,
            auto: wish.auto,
            length: wish.lease_seconds * 1_000_000,
            claims: claims.clone(),
        }));
        let messages = messages.filter(|messages| !messages.is_empty())?;
        let ids = messages.iter().map(|m| (m.partition.parse().unwrap(), m.partition_id.clone()));
        Some(Popped {
            number,
            length: wish.lease_seconds,
            lease: messages[0].lease_id.clone(),
            partition_ids: ids.collect(),
            claims: claims.unwrap_or_default(),
        })
    }

    /// What a consumer does with what it got.
    fn handle(&mut self, group: usize, popped: &Popped) {
        if self.random.below(10) == 0 {
            self.extend(popped);
        }
        let nap_ms = match self.random.below(20) {
            0 => popped.length * (500 + self.random.below(700)),
            1..=4 => self.random.below(200),
            _ => self.random.below(10),
        };
        std::thread::sleep(Duration::from_millis(nap_ms));
        let mut plans: Vec<(u32, Vec<(u64, Status)>)> = Vec::new();
        for claim in &popped.claims {
            let plan = plan(&mut self.random, claim, group == RELAY);
            plans.push((claim.partition, plan));
        }
        plans.retain(|(_, items)| !items.is_empty());
        let spoiled = group == RELAY && self.random.below(12) == 0;
        if plans.is_empty() {
            return;
        }
        let answered = self.settle(group, popped, plans.clone(), spoiled);
        let completes = |(_, items): &(u32, Vec<(u64, Status)>)| {
            items.iter().all(|(_, status)| *status == Status::Completed)
        };
        // A client that got no answer asks again under the same lease.
        if !answered && group != RELAY && plans.iter().all(completes) {
            self.settle(group, popped, plans, false);
        }
    }

    fn extend(&mut self, popped: &Popped) {
        let seconds = 1 + self.random.below(LEASE_MAX.as_secs());
        let target = format!("/api/v1/lease/{}/extend", popped.lease);
        let body = json!({"seconds": seconds}).to_string();
        let (span, answer) = self.exchange(&Request::post(&target, body.as_bytes()));
        let renewed = answer.map(|answer| {
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()["renewed"].as_u64().unwrap()
        });
        let length = seconds * 1_000_000;
        self.events.push(Event::Extend(Extend { span, pop: popped.number, length, renewed }));
    }

    /// Sends the acks of several partitions in one request. False: no answer.
    fn settle(
        &mut self,
        group: usize,
        popped: &Popped,
        plans: Vec<(u32, Vec<(u64, Status)>)>,
        spoiled: bool,
    ) -> bool {
        if group == RELAY {
            return self.transact(popped, plans, spoiled);
        }
        let acks: Vec<Value> = popped.acks(&plans);
        let body = json!({"acknowledgments": acks, "consumerGroup": GROUPS[group]}).to_string();
        let (span, answer) = self.exchange(&Request::post("/api/v1/ack/batch", body.as_bytes()));
        let results = answer.map(|answer| {
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json().as_array().unwrap().clone()
        });
        let answered = results.is_some();
        let mut results = results.map(Vec::into_iter);
        for (partition, items) in plans {
            let verdicts = results.as_mut().map(|results| {
                results.by_ref().take(items.len()).map(|result| verdict(&result)).collect()
            });
            self.events.push(Event::Settle(Settle {
                span,
                pop: popped.number,
                partition,
                items,
                answer: verdicts.map_or(Answer::Unknown, Answer::Judged),
                transaction: None,
            }));
        }
        answered
    }

    /// The acks, and for each message they complete one product, or none of it.
    fn transact(
        &mut self,
        popped: &Popped,
        plans: Vec<(u32, Vec<(u64, Status)>)>,
        spoiled: bool,
    ) -> bool {
        let number = self.stage.numbers.fetch_add(1, Ordering::Relaxed);
        let acks = popped.acks(&plans).into_iter().map(|mut ack| {
            ack["type"] = json!("ack");
            ack["consumerGroup"] = json!(GROUPS[RELAY]);
            ack
        });
        let mut operations: Vec<Value> = acks.collect();
        let acks = operations.len();
        let mut results = Vec::new();
        for (partition, items) in &plans {
            for (offset, _) in items.iter().filter(|(_, s)| *s == Status::Completed) {
                let id = format!("{number}:{partition}:{offset}");
                let to = (u64::from(*partition) + offset) % u64::from(PRODUCT_PARTITIONS);
                operations.push(json!({"type": "push", "items": [{"queue": PRODUCTS,
                    "partition": to.to_string(), "transactionId": id, "payload": id}]}));
                results.push(Product { id, source: (*partition, *offset), offset: None });
            }
        }
        if spoiled {
            let mut nothing = operations[0].clone();
            nothing["transactionId"] = json!("nobody's");
            operations.push(nothing);
        }
        let body = json!({"operations": operations}).to_string();
        let (span, answer) = self.exchange(&Request::post("/api/v1/transaction", body.as_bytes()));
        let answer = answer.map(|answer| {
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()
        });
        let outcome = match &answer {
            None => Outcome::Unknown,
            Some(body) if body["success"] == true => Outcome::Committed,
            Some(body) => Outcome::RolledBack(body["reason"].as_str().unwrap().to_owned()),
        };
        let said = answer.as_ref().filter(|_| outcome == Outcome::Committed);
        for (at, product) in results.iter_mut().enumerate() {
            product.offset = said.and_then(|body| body["results"][acks + at]["offset"].as_u64());
        }
        let mut at = 0;
        for (partition, items) in plans {
            let verdict = |result: &Value| Verdict {
                success: result["success"] == true,
                lease_refused: false,
                dead_lettered: result["dlq"] == true,
                released: None,
            };
            let judged = said.map(|body| {
                let own = at..at + items.len();
                Answer::Judged(own.map(|index| verdict(&body["results"][index])).collect())
            });
            at += items.len();
            let otherwise = match outcome {
                Outcome::Unknown => Answer::Unknown,
                _ => Answer::RolledBack,
            };
            self.events.push(Event::Settle(Settle {
                span,
                pop: popped.number,
                partition,
                items,
                answer: judged.unwrap_or(otherwise),
                transaction: Some(number),
            }));
        }
        let pop = popped.number;
        let happened = Transaction { span, number, pop, outcome, spoiled, results };
        self.events.push(Event::Transaction(happened));
        answer.is_some()
    }
}

struct Wish {
    group: usize,
    auto: bool,
    batch: u64,
    partitions: u64,
    lease_seconds: u64,
    wait_ms: u64,
}

/// What a consumer holds.
struct Popped {
    number: u64,
    length: u64,
    lease: String,
    partition_ids: Vec<(u32, String)>,
    claims: Vec<Claim>,
}

impl Popped {
    fn acks(&self, plans: &[(u32, Vec<(u64, Status)>)]) -> Vec<Value> {
        let mut acks = Vec::new();
        for (partition, items) in plans {
            let claim = self.claims.iter().find(|claim| claim.partition == *partition).unwrap();
            let (_, id) = self.partition_ids.iter().find(|(p, _)| p == partition).unwrap();
            for (offset, status) in items {
                acks.push(json!({
                    "transactionId": claim.ids[(offset - claim.first) as usize],
                    "partitionId": id,
                    "leaseId": self.lease,
                    "status": status.word(),
                }));
            }
        }
        acks
    }
}

/// Connects, as often as it takes while the broker is down.
fn connect(stage: &Stage) -> (Client, u64) {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let epoch = stage.killed.load(Ordering::SeqCst);
        match Client::connect(stage.address) {
            Ok(client) => return (client, epoch),
            Err(error) => assert!(Instant::now() < limit, "no connection: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn claims(messages: &[Message]) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for part in messages.chunk_by(|a, b| a.partition == b.partition) {
        let first = part[0].offset;
        for (at, message) in part.iter().enumerate() {
            assert_eq!(message.offset, first + at as u64, "{part:?}");
            assert_eq!(message.attempt, part[0].attempt, "{part:?}");
            assert_eq!(message.data, quoted(&message.transaction_id), "{part:?}");
        }
        claims.push(Claim {
            partition: part[0].partition.parse().unwrap(),
            first,
            ids: part.iter().map(|message| message.transaction_id.clone()).collect(),
            attempt: part[0].attempt,
        });
    }
    claims
}

fn all_of(claim: &Claim) -> Vec<(u64, Status)> {
    (claim.first..=claim.last()).map(|offset| (offset, Status::Completed)).collect()
}

/// Which verdicts a consumer gives on a claim. In a transaction (`plain`) every message that its
/// acks settle is named, so that each has its product.
fn plan(random: &mut Random, claim: &Claim, plain: bool) -> Vec<(u64, Status)> {
    let mut items = all_of(claim);
    let at = random.below(items.len() as u64) as usize;
    let signal = match random.below(100) {
        0..50 => return items,
        50..58 if !plain => return items.split_off(items.len() - 1),
        50..66 => {
            items.truncate(at);
            return items;
        }
        66..72 => return Vec::new(),
        72..84 => Status::Failed,
        84..92 => Status::Retry,
        _ => Status::DeadLetter,
    };
    items[at].1 = signal;
    if plain || random.below(2) == 0 {
        items.truncate(at + 1);
    }
    items
}

fn verdict(result: &Value) -> Verdict {
    let error = result["error"].as_str().unwrap_or_default();
    Verdict {
        success: result["success"] == true,
        lease_refused: error.contains("lease"),
        dead_lettered: result["dlq"] == true,
        released: result["leaseReleased"].as_bool(),
    }
}

/// Reads a queue to its end with a group that nobody used before.
pub fn read_all(client: &mut Client, queue: &str, group: &str) -> io::Result<Vec<Message>> {
    let target = format!(
        "/api/v1/pop/queue/{queue}?batch=5000&partitions=64&autoAck=true&consumerGroup={group}\
         &subscriptionMode=all"
    );
    let mut all = Vec::new();
    loop {
        let messages = Message::all(&client.get(&target)?);
        if messages.is_empty() {
            return Ok(all);
        }
        all.extend(messages);
    }
}

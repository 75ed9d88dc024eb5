//! The load: pushers and consumers, each on its own connection, until the broker is killed.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ledger::{Delivered, GROUPS, Key, LEASE, Ledger, Place, Popped, SHARED};
use crate::ledger::{parse_id, partition_name};
use crate::support::{Client, Request, Response};

/// Enough in one cycle; above it the pushers slow down, so that the logs stay quick to check.
const PLENTY: u64 = 4_000;

/// Counters that the main thread watches.
#[derive(Default)]
pub struct Progress {
    /// The broker is being killed: errors of connections are expected from here on.
    pub killed: AtomicBool,
    pub answered: AtomicU64,
    pub acked: AtomicU64,
    /// Requests sent and not answered yet.
    pub open: AtomicU64,
}

/// Randomness of the test's choices (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// An index of something that has `bound` elements.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }
}

/// One push request. It is sent again, the same, until it is answered.
pub struct Batch {
    pub items: Vec<Item>,
    /// It was sent before, without an answer.
    pub attempted: bool,
}

pub struct Item {
    pub key: Key,
    /// It was answered before, and is sent once more on purpose.
    pub again: bool,
    /// The only right status, where there is only one.
    pub expected: Option<&'static str>,
}

#[derive(Deserialize)]
struct Pushed {
    index: usize,
    message_id: String,
    transaction_id: String,
    status: String,
    offset: Option<u64>,
}

/// A pusher: one batch at a time, over its own partitions and the shared one. Returns the batch
/// that was open when the connection broke.
pub fn push_until_killed(
    ledger: &Ledger,
    progress: &Progress,
    pusher: usize,
    client: &mut Client,
    random: &mut Random,
) -> Batch {
    loop {
        if progress.answered.load(Ordering::Relaxed) > PLENTY {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut batch = new_batch(ledger, pusher, random);
        if push(ledger, progress, &mut batch, client).is_err() {
            return batch;
        }
    }
}

fn new_batch(ledger: &Ledger, pusher: usize, random: &mut Random) -> Batch {
    let mut items = Vec::new();
    for _ in 0..1 + random.index(30) {
        let own = pusher * 4 + random.index(4);
        let partition = if random.below(8) == 0 { SHARED } else { own };
        let key = ledger.new_key(pusher, partition);
        // Now and then an earlier message once more, as a client does that missed its answer.
        let earlier = Key { number: random.index(key.number + 1), ..key };
        if random.below(16) == 0 && ledger.place(earlier).is_some() {
            items.push(Item { key: earlier, again: true, expected: Some("duplicate") });
        }
        items.push(Item { key, again: false, expected: Some("queued") });
    }
    Batch { items, attempted: false }
}

/// Sends a batch until it has an answer; an error is the connection's.
pub fn push(
    ledger: &Ledger,
    progress: &Progress,
    batch: &mut Batch,
    client: &mut Client,
) -> io::Result<()> {
    let body = push_body(ledger, batch);
    loop {
        let response = exchange(progress, client, &Request::post("/api/v1/push", &body))?;
        let first = !std::mem::replace(&mut batch.attempted, true);
        if response.status == 201 {
            take_answers(ledger, batch, first, &response);
            progress.answered.fetch_add(batch.items.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        // Parts of it may be stored: what was certain before is no longer.
        for item in &mut batch.items {
            item.expected = None;
        }
        wait_out(&response);
    }
}

fn push_body(ledger: &Ledger, batch: &Batch) -> Vec<u8> {
    let items: Vec<String> = batch
        .items
        .iter()
        .map(|item| {
            format!(
                r#"{{"queue":"{}","partition":"{}","transactionId":"{}","payload":{}}}"#,
                ledger.queue,
                partition_name(item.key.partition),
                item.key.transaction_id(),
                ledger.payload(item.key)
            )
        })
        .collect();
    format!(r#"{{"items":[{}]}}"#, items.join(",")).into_bytes()
}

fn take_answers(ledger: &Ledger, batch: &Batch, first: bool, response: &Response) {
    let answers: Vec<Pushed> = parse(response);
    assert_eq!(answers.len(), batch.items.len(), "answers of a push: {}", response.text());
    for (index, (item, answer)) in batch.items.iter().zip(&answers).enumerate() {
        assert_eq!(answer.index, index);
        assert_eq!(answer.transaction_id, item.key.transaction_id());
        let offset = answer.offset.unwrap_or_else(|| panic!("no offset: {}", response.text()));
        let place = Place { offset, id: parse_id(&answer.message_id) };
        let expected = item.expected.filter(|_| first);
        ledger.answered(item.key, &answer.status, place, expected);
    }
}

#[derive(Deserialize)]
struct Pop<'a> {
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    id: String,
    transaction_id: String,
    partition: String,
    partition_id: String,
    lease_id: String,
    offset: u64,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Message<'_> {
    fn delivered(&self) -> Delivered {
        Delivered {
            transaction_id: self.transaction_id.clone(),
            partition: self.partition.clone(),
            place: Place { offset: self.offset, id: parse_id(&self.id) },
            payload: self.data.get().to_owned(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Acked {
    index: usize,
    transaction_id: String,
    success: bool,
    error: Option<String>,
}

/// A message to acknowledge, and what that settles.
struct Ack {
    partition: usize,
    offset: i64,
    body: String,
    transaction_id: String,
    /// Until then the lease surely holds.
    until: Instant,
}

/// A consumer of one group: pops with a lease, acknowledges all or a part of each claim.
pub fn consume_until_killed(
    ledger: &Ledger,
    progress: &Progress,
    group: usize,
    client: &mut Client,
    random: &mut Random,
) {
    loop {
        let Ok(acks) = pop(ledger, progress, group, client, random) else { return };
        if !acks.is_empty() && acknowledge(ledger, progress, group, client, &acks).is_err() {
            return;
        }
    }
}

fn pop(
    ledger: &Ledger,
    progress: &Progress,
    group: usize,
    client: &mut Client,
    random: &mut Random,
) -> io::Result<Vec<Ack>> {
    let target = format!(
        "/api/v1/pop/queue/{}?batch={}&partitions={}&wait=true&timeout=1000&leaseSeconds={}{}",
        ledger.queue,
        1 + random.below(100),
        1 + random.below(8),
        LEASE.as_secs(),
        group_parameters(GROUPS[group]),
    );
    let acked_before = ledger.acked(group);
    let sent = Instant::now();
    let response = exchange(progress, client, &Request::get(&target))?;
    let pop = Popped { acked_before: &acked_before, sent, received: Instant::now() };
    match response.status {
        200 => Ok(take_claims(ledger, group, &pop, &response, random)),
        204 => Ok(Vec::new()),
        _ => {
            wait_out(&response);
            Ok(Vec::new())
        }
    }
}

fn take_claims(
    ledger: &Ledger,
    group: usize,
    pop: &Popped<'_>,
    response: &Response,
    random: &mut Random,
) -> Vec<Ack> {
    let answer: Pop<'_> = parse(response);
    let mut acks = Vec::new();
    for claim in answer.messages.chunk_by(|a, b| a.partition == b.partition) {
        let offsets: Vec<u64> = claim.iter().map(|message| message.offset).collect();
        let dense = offsets.windows(2).all(|two| two[0] + 1 == two[1]);
        assert!(dense, "{} {}: claimed {offsets:?}", ledger.queue, claim[0].partition);
        let keys: Vec<Key> =
            claim.iter().map(|message| ledger.delivered(&message.delivered())).collect();
        let partition = keys[0].partition;
        let span = (signed(offsets[0]), signed(offsets[offsets.len() - 1]));
        ledger.claimed(group, partition, span, pop);
        // An ack settles what is before it in its claim. A quarter of the claims are left with a
        // part unsettled, which must come back; half of the acks name only the last message.
        let count = if random.below(4) == 0 { random.index(claim.len()) + 1 } else { claim.len() };
        let from = if random.below(2) == 0 { count - 1 } else { 0 };
        for message in &claim[from..count] {
            acks.push(Ack {
                partition,
                offset: signed(message.offset),
                body: format!(
                    r#"{{"transactionId":"{}","partitionId":"{}","leaseId":"{}","status":"completed"}}"#,
                    message.transaction_id, message.partition_id, message.lease_id
                ),
                transaction_id: message.transaction_id.clone(),
                until: pop.sent + LEASE,
            });
        }
    }
    acks
}

fn acknowledge(
    ledger: &Ledger,
    progress: &Progress,
    group: usize,
    client: &mut Client,
    acks: &[Ack],
) -> io::Result<()> {
    let bodies: Vec<&str> = acks.iter().map(|ack| ack.body.as_str()).collect();
    let group_key = match GROUPS[group] {
        "" => String::new(),
        name => format!(r#","consumerGroup":"{name}""#),
    };
    let body = format!(r#"{{"acknowledgments":[{}]{group_key}}}"#, bodies.join(","));
    for ack in acks {
        ledger.ack_sent(group, ack.partition, ack.offset);
    }
    let request = Request::post("/api/v1/ack/batch", body.as_bytes());
    let response = exchange(progress, client, &request)?;
    let received = Instant::now();
    if response.status != 200 {
        wait_out(&response);
        return Ok(());
    }
    let results: Vec<Acked> = parse(&response);
    assert_eq!(results.len(), acks.len(), "answers of an ack: {}", response.text());
    for (index, (ack, result)) in acks.iter().zip(&results).enumerate() {
        assert_eq!((result.index, &result.transaction_id), (index, &ack.transaction_id));
        if result.success {
            let settled = ledger.ack_answered(group, ack.partition, ack.offset);
            progress.acked.fetch_add(settled, Ordering::Relaxed);
        } else {
            // Only a consumer that was too slow may be refused.
            let error = result.error.as_deref().unwrap_or_default();
            assert!(error.contains("lease") && ack.until <= received, "refused: {error}");
        }
    }
    Ok(())
}

/// Reads a queue from a group's position to its end by pops that commit at delivery. `wait_ms` is
/// how long the queue must have nothing to give before that counts as the end.
pub fn drain(ledger: &Ledger, client: &mut Client, group: &str, wait_ms: u64) -> Vec<Delivered> {
    let wait = if wait_ms == 0 { String::new() } else { format!("&wait=true&timeout={wait_ms}") };
    let target = format!(
        "/api/v1/pop/queue/{}?batch=2000&partitions=64&autoAck=true{wait}{}",
        ledger.queue,
        group_parameters(group)
    );
    let mut messages = Vec::new();
    loop {
        let response = client.get(&target).unwrap();
        match response.status {
            200 => {
                let answer: Pop<'_> = parse(&response);
                assert!(!answer.messages.is_empty(), "an empty answer with a body");
                messages.extend(answer.messages.iter().map(Message::delivered));
            }
            204 => return messages,
            status => panic!("pop answered {status}: {}", response.text()),
        }
    }
}

fn group_parameters(group: &str) -> String {
    match group {
        "" => String::new(),
        name => format!("&consumerGroup={name}&subscriptionMode=all"),
    }
}

fn exchange(
    progress: &Progress,
    client: &mut Client,
    request: &Request<'_>,
) -> io::Result<Response> {
    progress.open.fetch_add(1, Ordering::SeqCst);
    let response = client.request(request);
    progress.open.fetch_sub(1, Ordering::SeqCst);
    if let Err(error) = &response {
        let expected = progress.killed.load(Ordering::SeqCst);
        assert!(expected, "a connection broke before the kill: {error}");
        assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
    response
}

/// 429 and 503 mean "again, later"; no other refusal is right here.
fn wait_out(response: &Response) {
    let known = matches!(response.status, 429 | 503) && response.header("retry-after").is_some();
    assert!(known, "status {}: {}", response.status, response.text());
    std::thread::sleep(Duration::from_millis(50));
}

fn parse<'a, T: Deserialize<'a>>(response: &'a Response) -> T {
    serde_json::from_slice(&response.body)
        .unwrap_or_else(|error| panic!("{error} in {}", response.text()))
}

fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap()
}

//! Consumers that fall silent though there are messages.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Broker, Client, Message, Wire, number, within};
use crate::{broker, item};

const LEASE: Duration = Duration::from_secs(1);
const EACH: u64 = 5;
/// So many of them are there from the start, the others come shortly before the quiet.
const FIRST: u64 = 3;

/// What the readers know of each message by its partition and offset.
#[derive(Default)]
struct Known {
    settled: Mutex<HashSet<(String, u64)>>,
    /// Of an ack without an answer nobody can tell.
    perhaps: Mutex<HashSet<(String, u64)>>,
    stop: AtomicBool,
    abandoned: AtomicU64,
}

fn note(to: &Mutex<HashSet<(String, u64)>>, messages: &[Message]) {
    let keys = messages.iter().map(|m| (m.partition.clone(), m.offset));
    to.lock().unwrap().extend(keys);
}

/// A reader that may do anything with what it gets, until it is told to stop. The broker is
/// killed meanwhile, so every call may fail.
fn misbehave(address: std::net::SocketAddr, known: &Known, mut random: u64) {
    let connect = || loop {
        match Client::connect(address) {
            Ok(client) => return client,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut client = connect();
    while !known.stop.load(Ordering::Relaxed) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let choice = (random >> 33) % 100;
        let target = format!(
            "/api/v1/pop/queue/stuck?batch=200&partitions={}&wait=true&timeout=500&leaseSeconds=1",
            1 + choice % 20
        );
        if choice < 10 {
            // Hangs up while it waits, perhaps with the answer under way.
            let request = format!("GET {target} HTTP/1.1\r\nHost: l\r\n\r\n");
            let _ = client.send_raw(request.as_bytes());
            std::thread::sleep(Duration::from_millis(choice));
            client = connect();
            continue;
        }
        let Ok(answer) = client.get(&target) else {
            client = connect();
            continue;
        };
        let popped = Message::all(&answer);
        let Some(first) = popped.first() else { continue };
        match choice {
            10..25 => {
                known.abandoned.fetch_add(1, Ordering::Relaxed);
            }
            25..50 => {
                let status = if choice < 40 { "failed" } else { "retry" };
                let body = json!({"transactionId": first.transaction_id, "status": status,
                    "partitionId": first.partition_id, "leaseId": first.lease_id});
                if client.post("/api/v1/ack", body.to_string()).is_err() {
                    client = connect();
                }
            }
            _ => {
                // All of it, or the first message alone.
                let done = if choice < 70 { &popped[..] } else { &popped[..1] };
                if !complete(&mut client, done, known) {
                    client = connect();
                }
            }
        }
    }
}

fn complete(client: &mut Client, messages: &[Message], known: &Known) -> bool {
    let item = |m: &Message| {
        json!({"transactionId": m.transaction_id, "partitionId": m.partition_id,
            "leaseId": m.lease_id})
    };
    let items: Vec<_> = messages.iter().map(item).collect();
    let body = json!({"acknowledgments": items}).to_string();
    note(&known.perhaps, messages);
    let Ok(answer) = client.post("/api/v1/ack/batch", body) else { return false };
    assert_eq!(answer.status, 200, "{}", answer.text());
    let results = answer.json();
    for (message, result) in messages.iter().zip(results.as_array().unwrap()) {
        if result["success"] == true {
            note(&known.settled, std::slice::from_ref(message));
        }
    }
    true
}

fn fill(client: &mut Client, partitions: u64, numbers: std::ops::Range<u64>) {
    for number in numbers {
        for first in (0..partitions).step_by(1_000) {
            let to = partitions.min(first + 1_000);
            let items: Vec<String> =
                (first..to).map(|p| item("stuck", &format!("p{p}"), number)).collect();
            client.push_items(&items.join(","));
        }
    }
}

/// Quiet readers take the rest; returns when nothing came for longer than any lease.
fn drain_quietly(broker: &Broker) -> (Vec<Message>, Duration) {
    let start = Instant::now();
    let mut client = broker.client();
    let (mut all, mut last) = (Vec::new(), Duration::ZERO);
    loop {
        let wait = (LEASE * 2).as_millis();
        let target =
            format!("stuck?batch=2000&partitions=64&autoAck=true&wait=true&timeout={wait}");
        let popped = client.pop(&target);
        if popped.is_empty() {
            return (all, last);
        }
        last = start.elapsed();
        all.extend(popped);
    }
}

#[test]
fn after_crashes_nacks_and_lapses_everything_left_drains_within_two_leases() {
    let mut broker = broker();
    let partitions = number("STUCK_PARTITIONS", 1_500);
    let seconds = Duration::from_secs(number("STUCK_SECONDS", 6));
    broker.client().configure("stuck", json!({"retryLimit": 1_000_000}));
    fill(&mut broker.client(), partitions, 0..FIRST);
    let known = Known::default();
    let address = broker.address();
    std::thread::scope(|scope| {
        for reader in 0..24 {
            let known = &known;
            scope.spawn(move || misbehave(address, known, reader * 7_919 + 3));
        }
        std::thread::sleep(seconds / 2);
        broker.kill9();
        broker.restart();
        std::thread::sleep(seconds / 2);
        fill(&mut broker.client(), partitions, FIRST..EACH);
        known.stop.store(true, Ordering::Relaxed);
    });
    let (rest, took) = drain_quietly(&broker);
    let settled = known.settled.into_inner().unwrap();
    let perhaps = known.perhaps.into_inner().unwrap();
    println!(
        "settled={} rest={} abandoned={} drained_in={took:?}",
        settled.len(),
        rest.len(),
        known.abandoned.load(Ordering::Relaxed)
    );
    let mut found = HashSet::new();
    for message in &rest {
        let key = (message.partition.clone(), message.offset);
        assert!(!settled.contains(&key), "{key:?} was settled");
        assert!(found.insert(key), "{message:?} came twice");
    }
    for partition in 0..partitions {
        for offset in 0..EACH {
            let key = (format!("p{partition}"), offset);
            // An ack of a later message settles what is before it.
            let later = (offset..EACH).any(|o| perhaps.contains(&(key.0.clone(), o)));
            assert!(later || found.contains(&key), "{key:?} is stuck");
        }
    }
    assert!(took < within(LEASE * 2), "{took:?}");
    assert!(!rest.is_empty() && !settled.is_empty(), "too little happened");
}

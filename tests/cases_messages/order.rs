//! Order inside a partition, retention at the front of it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Message, Wire};
use crate::{broker, sleep_ms};

const PARTITIONS: u64 = 40;
const EACH: u64 = 10;

/// What was settled of each partition; a message below it or past the next one is a breach.
#[derive(Default)]
struct Ledger {
    next: Mutex<HashMap<String, u64>>,
    settled: AtomicU64,
}

impl Ledger {
    /// Called between the pop and the ack: nobody else may hold the partition meanwhile.
    fn check(&self, messages: &[Message]) {
        let next = self.next.lock().unwrap();
        let mut expected: HashMap<&str, u64> = HashMap::new();
        for message in messages {
            let from = next.get(&message.partition).copied().unwrap_or(0);
            let wanted = expected.entry(&message.partition).or_insert(from);
            assert_eq!(message.offset, *wanted, "partition {}", message.partition);
            assert_eq!(message.data, message.offset.to_string());
            *wanted += 1;
        }
    }

    fn settle(&self, messages: &[Message]) {
        let mut next = self.next.lock().unwrap();
        for message in messages {
            next.insert(message.partition.clone(), message.offset + 1);
        }
        self.settled.fetch_add(messages.len() as u64, Ordering::Relaxed);
    }
}

/// Readers that nack at random, and leave and join, over many partitions.
#[test]
fn order_holds_for_many_readers_that_nack_leave_and_join() {
    let broker = broker();
    let mut client = broker.client();
    for number in 0..EACH {
        let item = |p| format!("{{\"queue\":\"churn\",\"partition\":\"p{p}\",\"payload\":{number}}}");
        client.push_items(&(0..PARTITIONS).map(item).collect::<Vec<_>>().join(","));
    }
    client.configure("churn", json!({"retryLimit": 1_000_000}));
    let ledger = Ledger::default();
    let total = PARTITIONS * EACH;
    let limit = Instant::now() + Duration::from_secs(30);
    std::thread::scope(|scope| {
        for reader in 0..16u64 {
            let (broker, ledger) = (&broker, &ledger);
            scope.spawn(move || {
                let mut random = reader * 7_919 + 1;
                let mut client = broker.client();
                while ledger.settled.load(Ordering::Relaxed) < total {
                    assert!(Instant::now() < limit, "stuck at {:?}", ledger.settled);
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let choice = random >> 33;
                    if choice % 11 == 0 {
                        client = broker.client();
                    }
                    let popped = client.pop("churn?batch=5&partitions=2&wait=true&timeout=300");
                    ledger.check(&popped);
                    let Some(first) = popped.first() else { continue };
                    if choice % 4 == 0 {
                        // Everything from the nacked one on comes again; other partitions of the
                        // claim are settled.
                        let others: Vec<_> =
                            popped.iter().filter(|m| m.partition != first.partition).cloned().collect();
                        ledger.settle(&others);
                        client.ack_all(&others, "");
                        assert_eq!(client.ack(first, "failed")["success"], true);
                    } else {
                        ledger.settle(&popped);
                        let results = client.ack_all(&popped, "");
                        assert!(results.iter().all(|result| result["success"] == true));
                    }
                }
            });
        }
    });
    assert!(client.pop("churn").is_empty());
    assert_eq!(ledger.settled.load(Ordering::Relaxed), total);
}

#[test]
fn offsets_stay_dense_while_batches_of_all_sizes_are_pushed_and_read() {
    let broker = broker();
    let sizes = [1, 1_000, 2, 7, 512, 3, 64, 999, 1, 130];
    let total: u64 = sizes.iter().sum();
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = broker.client();
            let mut next = 0;
            for size in sizes {
                let item = |n| format!("{{\"queue\":\"dense\",\"partition\":\"p\",\"payload\":{n}}}");
                let items: Vec<_> = (next..next + size).map(item).collect();
                let results = client.push_items(&items.join(","));
                let offsets: Vec<u64> = results.iter().map(|r| r["offset"].as_u64().unwrap()).collect();
                assert_eq!(offsets, (next..next + size).collect::<Vec<_>>());
                next += size;
            }
        });
        let mut client = broker.client();
        let mut batch = 1;
        while (seen.len() as u64) < total {
            let popped = client.pop(&format!("dense?autoAck=true&wait=true&timeout=5000&batch={batch}"));
            assert!(!popped.is_empty(), "stuck at {}", seen.len());
            seen.extend(popped.into_iter().map(|m| (m.offset, m.data)));
            batch = batch * 3 % 1_001 + 1;
        }
    });
    let wanted: Vec<_> = (0..total).map(|n| (n, n.to_string())).collect();
    assert_eq!(seen, wanted);
}

#[test]
fn a_nack_in_the_middle_of_a_batch_brings_back_that_message_and_what_is_behind_it() {
    let broker = broker();
    let mut client = broker.client();
    for number in 0..6 {
        client.push_one("mid", "p", &format!("t{number}"), &number.to_string());
    }
    let popped = client.pop("mid?batch=5");
    let body = json!({"acknowledgments": popped.iter().map(|m| json!({
        "transactionId": m.transaction_id, "partitionId": m.partition_id, "leaseId": m.lease_id,
        "status": if m.offset == 2 { "failed" } else { "completed" },
    })).collect::<Vec<_>>()});
    let answer = client.post("/api/v1/ack/batch", body.to_string()).unwrap().json();
    assert!(answer.as_array().unwrap().iter().all(|item| item["success"] == true), "{answer}");
    let again = client.pop("mid?batch=5");
    let found: Vec<_> = again.iter().map(|m| (m.offset, m.attempt)).collect();
    assert_eq!(found, [(2, 2), (3, 2), (4, 2), (5, 2)]);
}

#[test]
fn a_backlog_inside_its_retention_is_kept_however_often_the_sweep_passes() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("keep", json!({"retentionEnabled": true, "retentionSeconds": 3_600}));
    for number in 0..50 {
        client.push_one("keep", "p", "", &number.to_string());
    }
    sleep_ms(4_000);
    let popped = client.pop("keep?batch=100");
    assert_eq!(popped.iter().map(|m| m.offset).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
}

#[test]
fn offsets_go_on_after_everything_has_expired_also_over_a_kill() {
    let mut broker = broker();
    let mut client = broker.client();
    client.configure("gone", json!({"retentionEnabled": true, "retentionSeconds": 1}));
    for number in 0..5 {
        client.push_one("gone", "p", &format!("t{number}"), &number.to_string());
    }
    let limit = Instant::now() + Duration::from_secs(20);
    let left = |client: &mut crate::support::Client, group: &str| {
        let target = format!("gone/partition/p?consumerGroup={group}&subscriptionMode=all&autoAck=true");
        client.pop(&target).len()
    };
    let mut look = 0;
    while left(&mut client, &format!("look{look}")) > 0 {
        assert!(Instant::now() < limit, "nothing was removed");
        look += 1;
        sleep_ms(500);
    }
    let pushed = client.push_one("gone", "p", "next", "5");
    assert_eq!((&pushed["status"], &pushed["offset"]), (&json!("queued"), &json!(5)));
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    let pushed = client.push_one("gone", "p", "after", "6");
    assert_eq!((&pushed["status"], &pushed["offset"]), (&json!("queued"), &json!(6)));
    let again = client.push_one("gone", "p", "t0", "0");
    assert_eq!((&again["status"], &again["offset"]), (&json!("duplicate"), &json!(0)));
    let popped = client.pop("gone?batch=10");
    assert!(popped.iter().all(|m| m.offset >= 5), "{popped:?}");
    assert_eq!(popped.last().map(|m| m.offset), Some(6));
}

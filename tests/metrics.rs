//! What the broker shows of itself, over HTTP from brokers with two shards: the exposition read
//! by a strict reader, counters that agree with the traffic made, series, status, bad windows.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "metrics/analytics.rs"]
mod analytics;
#[path = "metrics/exposition.rs"]
mod exposition;
#[path = "metrics/status.rs"]
mod status;
mod support;

use serde_json::{Value, json};
use support::{Broker, Client, Options};

/// Pushes `count` messages, spread over `partitions`.
fn push(client: &mut Client, queue: &str, partitions: usize, count: usize) {
    let items: Vec<Value> = (0..count)
        .map(|n| json!({"queue": queue, "partition": format!("p{}", n % partitions), "payload": n}))
        .collect();
    let answer = client.post("/api/v1/push", json!({ "items": items }).to_string()).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Messages of one pop, which does not wait.
fn pop(client: &mut Client, queue: &str, batch: usize) -> Vec<Value> {
    let target = format!("/api/v1/pop/queue/{queue}?batch={batch}&partitions=64");
    let answer = client.get(&target).unwrap();
    match answer.status {
        204 => Vec::new(),
        200 => answer.json()["messages"].as_array().unwrap().clone(),
        other => panic!("{other}: {}", answer.text()),
    }
}

fn ack(client: &mut Client, messages: &[Value], status: &str, error: Option<&str>) {
    let acks: Vec<Value> = messages
        .iter()
        .map(|m| {
            json!({
                "transactionId": m["transactionId"],
                "partitionId": m["partitionId"],
                "leaseId": m["leaseId"],
                "status": status,
                "error": error,
            })
        })
        .collect();
    let body = json!({ "acknowledgments": acks }).to_string();
    let answer = client.post("/api/v1/ack/batch", body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn get(client: &mut Client, target: &str) -> Value {
    let answer = client.get(target).unwrap();
    assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    answer.json()
}

/// A broker that has seen this: 20 messages pushed to `work` over eight partitions in two
/// requests, 12 of them settled, one filed as a dead letter; an empty pop of `idle`.
struct Used {
    broker: Broker,
    client: Client,
    /// Settled by a completed ack.
    settled: u64,
    popped: u64,
}

fn used(options: Options) -> Used {
    let broker = Broker::start(options);
    let mut client = broker.client();
    let body = json!({"queue": "work", "options": {"retryLimit": 0, "leaseTime": 60}}).to_string();
    assert_eq!(client.post("/api/v1/configure", body).unwrap().status, 200);
    push(&mut client, "work", 8, 12);
    push(&mut client, "work", 8, 8);
    assert!(pop(&mut client, "idle", 1).is_empty());
    // Two messages lie in the first partitions: the second of one is acked as dead.
    let messages = pop(&mut client, "work", 20);
    assert_eq!(messages.len(), 20);
    let last = messages.last().unwrap()["partitionId"].clone();
    let (dead, done): (Vec<Value>, Vec<Value>) =
        messages.into_iter().partition(|m| m["partitionId"] == last);
    ack(&mut client, &done, "completed", None);
    ack(&mut client, &dead[..1], "dlq", Some("order 4711 is gone"));
    Used { broker, client, settled: done.len() as u64, popped: 20 }
}

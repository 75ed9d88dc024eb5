//! Transactions from outside: acks and pushes on several shards happen together or not at all.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "transactions/atomic.rs"]
mod atomic;
#[path = "transactions/bodies.rs"]
mod bodies;
#[path = "transactions/concurrent.rs"]
mod concurrent;
mod support;

use serde_json::{Value, json};

use support::{Broker, Client, Message, Options, Wire};

fn broker() -> Broker {
    Broker::start(Options::default())
}

/// Partitions of a queue on two different shards. Each gets one message to be found by.
fn apart(client: &mut Client, queue: &str) -> (String, String) {
    let mut homes: Vec<(String, u64)> = Vec::new();
    for i in 0..64 {
        let name = format!("p{i}");
        client.push_one(queue, &name, &format!("first-{i}"), "0");
        let popped = client.pop(&format!("{queue}/partition/{name}?autoAck=true"));
        let shard = popped[0].partition_id.parse::<u64>().unwrap() >> 40;
        if let Some((other, _)) = homes.iter().find(|(_, home)| *home != shard) {
            return (other.clone(), name);
        }
        homes.push((name, shard));
    }
    panic!("64 partitions on one shard of two");
}

fn transact(client: &mut Client, body: &Value) -> Value {
    let answer = client.post("/api/v1/transaction", body.to_string()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn ack_of(message: &Message, status: &str) -> Value {
    json!({
        "type": "ack", "transactionId": message.transaction_id,
        "partitionId": message.partition_id, "leaseId": message.lease_id, "status": status,
    })
}

fn push_of(queue: &str, partition: &str, tx: &str, payload: i64) -> Value {
    json!({"type": "push", "items": [
        {"queue": queue, "partition": partition, "transactionId": tx, "payload": payload}
    ]})
}

/// The payloads of everything a fresh group finds in a partition.
fn all_of(client: &mut Client, queue: &str, partition: &str, group: &str) -> Vec<String> {
    let target = format!(
        "{queue}/partition/{partition}?batch=10000&autoAck=true&consumerGroup={group}\
         &subscriptionMode=all"
    );
    client.pop(&target).into_iter().map(|message| message.data).collect()
}

//! What an operator reads and deletes, over HTTP against a broker of two shards: dead letters,
//! messages, depths, groups, traces, and why a partition does not deliver; also after a clean
//! restart and after kill -9.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "operator_reads/dead_letters.rs"]
mod dead_letters;
#[path = "operator_reads/groups.rs"]
mod groups;
#[path = "operator_reads/loads.rs"]
mod loads;
#[path = "operator_reads/messages.rs"]
mod messages;
#[path = "operator_reads/replay.rs"]
mod replay;
mod support;
#[path = "operator_reads/traces.rs"]
mod traces;
#[path = "operator_reads/why.rs"]
mod why;

use std::time::Duration;

use serde_json::Value;
use support::{Broker, Client, Message, Options, Wire};

fn broker() -> Broker {
    Broker::start(Options::default())
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// A GET that answers 200.
fn read(client: &mut Client, target: &str) -> Value {
    let answer = client.get(target).unwrap();
    assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    answer.json()
}

/// A clean stop and start, or a kill.
fn restart(broker: &mut Broker, clean: bool) -> Client {
    if clean {
        assert!(broker.terminate().success());
    } else {
        broker.kill9();
    }
    broker.restart();
    broker.client()
}

/// Pushes and files one message, with an error text.
fn dead_letter(
    client: &mut Client,
    queue: &str,
    partition: &str,
    tx: &str,
    payload: &str,
    error: &str,
) -> Message {
    client.push_one(queue, partition, tx, payload);
    let message = client.pop(&format!("{queue}/partition/{partition}?batch=1")).remove(0);
    assert_eq!(message.transaction_id, tx);
    let settled = client.ack_with(&message, "dlq", serde_json::json!({ "error": error }));
    assert_eq!(settled["success"], true, "{settled}");
    message
}

//! Faults that users of brokers have met with consumers: dead letters that vanish in a crash,
//! positions that are forgotten, logs that are damaged or cannot grow, retention that bites a reader, consumers that fall silent.
//!
//! Each test names what must hold instead. `MOVE_KILLS` (default 24) is the number of kills inside
//! moves to the dead letters, `STUCK_PARTITIONS` (default 1,500) and `STUCK_SECONDS` (default 6) the
//! size of the run that then has to drain, `RETENTION_SECONDS` (default 10) that of the pushes
//! against retention.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "cases_consumers/crashes.rs"]
mod crashes;
#[path = "cases_consumers/damage.rs"]
mod damage;
#[path = "cases_consumers/dead_letters.rs"]
mod dead_letters;
#[path = "cases_consumers/retention.rs"]
mod retention;
#[path = "cases_consumers/stuck.rs"]
mod stuck;
mod support;

use std::time::Duration;

use serde_json::Value;
use support::{Broker, Client, Message, Options, Wire, encode, quoted};

fn broker() -> Broker {
    Broker::start(Options::default())
}

/// With the smallest segments.
fn small_segments() -> Broker {
    let arguments = vec!["--segment-bytes=4MiB".to_owned()];
    Broker::start(Options { arguments, ..Options::default() })
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
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

/// An item of a push whose id and payload are its number.
fn item(queue: &str, partition: &str, number: u64) -> String {
    format!(
        "{{\"queue\":{},\"partition\":{},\"transactionId\":\"t{number}\",\"payload\":{number}}}",
        quoted(queue),
        quoted(partition)
    )
}

/// Takes everything that a pop finds, committing at delivery.
fn drain(client: &mut Client, queue: &str) -> Vec<Message> {
    let mut all = Vec::new();
    loop {
        let popped = client.pop(&format!("{queue}?batch=5000&partitions=64&autoAck=true"));
        if popped.is_empty() {
            return all;
        }
        all.extend(popped);
    }
}

fn detail(client: &mut Client, queue: &str) -> Value {
    let answer = client.get(&format!("/api/v1/resources/queues/{}", encode(queue))).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn offsets(messages: &[Message]) -> Vec<u64> {
    messages.iter().map(|message| message.offset).collect()
}

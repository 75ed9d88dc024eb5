//! Consumer groups over HTTP: where they start, how they are moved and deleted, what conflation
//! and autopilot say, on two shards and over restarts.
//!
//! `STUCK_SECONDS` (default 6) sets how long consumers misbehave before everything must drain.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "groups/conflation.rs"]
mod conflation;
#[path = "groups/lifecycle.rs"]
mod lifecycle;
#[path = "groups/seek.rs"]
mod seek;
#[path = "groups/stuck.rs"]
mod stuck;
mod support;

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Broker, Client, Message, Response, Wire};

/// Enough that both shards have some.
const PARTITIONS: usize = 8;

/// Pushes `n` messages to each partition, numbered on from `from`.
fn fill(client: &mut Client, queue: &str, from: usize, n: usize) {
    for partition in 0..PARTITIONS {
        for message in from..from + n {
            let tx = format!("{partition}-{message}");
            client.push_one(queue, &format!("p{partition}"), &tx, &message.to_string());
        }
    }
}

/// Pops everything there is for a group, without acking.
fn take_all(client: &mut Client, queue: &str, group: &str, more: &str) -> Vec<Message> {
    let target = format!(
        "{queue}?consumerGroup={group}&batch=1000&partitions=64&subscriptionMode=all{more}"
    );
    let mut all = Vec::new();
    loop {
        let messages = client.pop(&target);
        if messages.is_empty() {
            return all;
        }
        all.extend(messages);
    }
}

/// Pops everything there is for a group and acks it.
fn consume_all(client: &mut Client, queue: &str, group: &str) -> usize {
    let messages = take_all(client, queue, group, "");
    for result in client.ack_all(&messages, group) {
        assert_eq!(result["success"], true, "{result}");
    }
    messages.len()
}

fn group_path(group: &str, rest: &str) -> String {
    format!("/api/v1/consumer-groups/{group}{rest}")
}

fn seek(client: &mut Client, group: &str, queue: &str, body: Value) -> Value {
    let path = group_path(group, &format!("/queues/{queue}/seek"));
    let answer = client.post(&path, body.to_string()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn delete(client: &mut Client, target: &str) -> Value {
    let answer = client.delete(&group_path(target, "")).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn refused(answer: &Response, status: u16, code: &str) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    let body = answer.json();
    assert_eq!((body["success"].as_bool(), body["code"].as_str()), (Some(false), Some(code)));
    assert!(body["error"].is_string(), "{body}");
    body
}

/// Messages of a queue that its slowest group has not settled.
fn pending(client: &mut Client, queue: &str) -> u64 {
    let answer = client.get(&format!("/api/v1/resources/queues/{queue}")).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    let total = body["totals"]["pending"].as_u64();
    let rows = body["partitions"].as_array().unwrap();
    let by_row: u64 = rows.iter().map(|row| row["messages"]["pending"].as_u64().unwrap()).sum();
    let total = total.unwrap_or(by_row);
    assert_eq!(by_row, total, "{body}");
    total
}

/// Parks a pop, runs `event`, and returns what the pop got and how long after the event.
fn woken_by(broker: &Broker, path: &str, event: impl FnOnce(&mut Client)) -> (Response, Duration) {
    let mut waiting = broker.client();
    let path = path.to_owned();
    let parked = thread::spawn(move || (waiting.get(&path).unwrap(), Instant::now()));
    thread::sleep(Duration::from_millis(400));
    assert!(!parked.is_finished(), "it was to wait");
    event(&mut broker.client());
    let start = Instant::now();
    let (answer, woken) = parked.join().unwrap();
    (answer, woken.saturating_duration_since(start))
}

#[test]
fn how_a_group_starts_that_says_nothing_is_a_setting() {
    for (word, wanted) in [("all", PARTITIONS), ("new_only", 0)] {
        let environment = vec![("DEFAULT_SUBSCRIPTION_MODE".to_owned(), word.to_owned())];
        let broker = Broker::start(support::Options { environment, ..Default::default() });
        let mut client = broker.client();
        fill(&mut client, "q", 0, 1);
        let messages = client.pop("q?consumerGroup=g&batch=100&partitions=64");
        assert_eq!(messages.len(), wanted, "{word}");
        assert_eq!(client.pop("q?batch=100&partitions=64").len(), PARTITIONS, "{word}");
    }
}

#[test]
fn autopilot_tells_what_it_chose_and_keeps_what_was_given() {
    let broker = Broker::start(support::Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 1);
    let mut told = |query: &str| {
        let path = format!("/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all{query}");
        let answer = client.get(&path).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let body = answer.json();
        let messages = body["messages"].as_array().unwrap().len();
        (body["autopilot"].clone(), messages)
    };
    assert_eq!(told("&autopilot=true&batch=1&partitions=1").0, Value::Null);
    let (chosen, messages) = told("&autopilot=true&batch=2");
    assert_eq!((chosen["batch"].as_u64(), messages <= 2), (Some(2), true));
    let (chosen, _) = told("&autopilot=true&partitions=1");
    assert_eq!((chosen["partitions"].as_u64(), chosen["batch"].as_u64()), (Some(1), Some(100)));
    let (chosen, messages) = told("&autopilot=true");
    let width = chosen["partitions"].as_u64().unwrap();
    assert!((1..=64).contains(&width) && messages as u64 <= width, "{chosen} for {messages}");
    assert_eq!(told("").0, Value::Null);
}

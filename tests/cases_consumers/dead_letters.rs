//! Dead letters over crashes and retention.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, Message, Wire, number};
use crate::{broker, detail, drain, item, restart, sleep_ms};

const PARTITIONS: u64 = 8;
const EACH: u64 = 5;

/// The nacks of one partition's batch, to be sent on a connection of their own.
struct Move {
    client: Client,
    partition: String,
    request: String,
}

/// Nacks a whole batch: by hand, or as exhausted.
fn prepare_move(client: Client, batch: &[Message], by_hand: bool) -> Move {
    let status = if by_hand { "dlq" } else { "failed" };
    let nacks: Vec<Value> = batch
        .iter()
        .map(|m| {
            json!({"transactionId": m.transaction_id, "partitionId": m.partition_id,
                "leaseId": m.lease_id, "status": status, "error": format!("why {}", m.offset)})
        })
        .collect();
    let body = json!({"acknowledgments": nacks}).to_string();
    let head = "POST /api/v1/ack/batch HTTP/1.1\r\nHost: l\r\nContent-Length: ";
    let request = format!("{head}{}\r\n\r\n{body}", body.len());
    Move { client, partition: batch[0].partition.clone(), request }
}

/// Whether the move was answered, and said that every message was filed.
fn answered(moving: &mut Move) -> bool {
    let Ok(answer) = moving.client.read_response(false) else { return false };
    assert_eq!(answer.status, 200, "{}", answer.text());
    let results = answer.json();
    assert!(results.as_array().unwrap().iter().all(|r| r["dlq"] == true), "{results}");
    true
}

#[test]
fn a_kill_inside_the_move_leaves_a_message_in_the_queue_or_in_the_dead_letters() {
    let mut broker = broker();
    let (kills, mut random) = (number("MOVE_KILLS", 24), number("SEED", 7));
    let mut told: Vec<Vec<String>> = Vec::new();
    for round in 0..kills {
        let queue = format!("move-{round}");
        let mut client = broker.client();
        client.configure(&queue, json!({"retryLimit": 0}));
        let of = |n: u64| item(&queue, &format!("p{}", n % PARTITIONS), n);
        client.push_items(&(0..PARTITIONS * EACH).map(of).collect::<Vec<_>>().join(","));
        let mut moves: Vec<Move> = (0..PARTITIONS)
            .map(|p| {
                let batch = client.pop(&format!("{queue}/partition/p{p}?leaseSeconds=4"));
                assert_eq!(batch.len() as u64, EACH);
                prepare_move(broker.client(), &batch, p % 2 == 0)
            })
            .collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for moving in &mut moves {
            moving.client.send_raw(moving.request.as_bytes()).unwrap();
        }
        std::thread::sleep(Duration::from_micros((random >> 33) % 1_000));
        broker.kill9();
        let done = moves.iter_mut().filter_map(|m| answered(m).then(|| m.partition.clone()));
        told.push(done.collect());
        broker.restart();
    }
    sleep_ms(4_200);
    let mut client = broker.client();
    let (mut filed, mut left) = (0, 0);
    for (round, told) in told.iter().enumerate() {
        let queue = format!("move-{round}");
        let mut places: BTreeMap<(String, u64), (u64, u64)> = BTreeMap::new();
        for row in client.dead_letters(&queue) {
            let (partition, offset) = (row["partition"].as_str().unwrap(), &row["offset"]);
            let key = (partition.to_owned(), offset.as_u64().unwrap());
            assert_eq!(row["errorMessage"], format!("why {}", key.1));
            places.entry(key).or_default().0 += 1;
        }
        for message in drain(&mut client, &queue) {
            places.entry((message.partition, message.offset)).or_default().1 += 1;
        }
        assert_eq!(places.len() as u64, PARTITIONS * EACH, "{queue}: neither here nor there");
        for ((partition, offset), place) in &places {
            let dead = *place == (1, 0);
            assert!(dead || *place == (0, 1), "{queue} {partition} {offset}: {place:?}");
            assert!(dead || !told.contains(partition), "{queue} {partition}: was answered");
            // The five nacks of one batch are one step.
            let first = places[&(partition.clone(), 0)] == (1, 0);
            assert_eq!(dead, first, "{queue} {partition}: a part of the batch is filed");
            (filed, left) = (filed + u64::from(dead), left + u64::from(!dead));
        }
        assert!(drain(&mut client, &queue).is_empty());
    }
    println!("kills={kills} filed={filed} left={left} answered={}", told.concat().len());
}

#[test]
fn the_retry_budget_is_spent_exactly_although_the_broker_dies_between_the_nacks() {
    let mut broker = broker();
    let mut client = broker.client();
    client.configure("budget", json!({"retryLimit": 3}));
    client.push_items(&[item("budget", "p", 0), item("budget", "p", 1)].join(","));
    for failure in 1..=4u64 {
        let held = client.pop("budget?batch=1").remove(0);
        assert_eq!((held.offset, held.attempt), (0, failure));
        let nack = client.ack_with(&held, "failed", json!({"error": format!("no {failure}")}));
        assert_eq!(nack["dlq"], failure == 4, "{nack}");
        client = restart(&mut broker, failure % 2 == 0);
    }
    let rows = client.dead_letters("budget");
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["errorMessage"], &rows[0]["retryCount"]), (&json!("no 4"), &json!(3)));
    let next = client.pop("budget?batch=10").remove(0);
    assert_eq!((next.offset, next.attempt), (1, 1));
}

#[test]
fn a_dead_letter_keeps_its_payload_when_retention_has_taken_the_message() {
    let mut broker = broker();
    let mut client = broker.client();
    let payload = format!("{{ \"k\": 1.50, \"t\": \"{}\" }}", "x".repeat(3_000));
    client.push_one("old", "p", "a", &payload);
    client.push_one("old", "p", "b", "2");
    let held = client.pop("old?batch=1").remove(0);
    assert_eq!(client.ack_with(&held, "dlq", json!({"error": "kept"}))["dlq"], true);
    client.configure("old", json!({"retentionEnabled": true, "retentionSeconds": 1}));
    let limit = Instant::now() + Duration::from_secs(20);
    while detail(&mut client, "old")["totals"]["total"] != 0 {
        assert!(Instant::now() < limit, "nothing was removed");
        sleep_ms(100);
    }
    for clean in [false, true] {
        let mut client = restart(&mut broker, clean);
        let text = client.get("/api/v1/dlq?queue=old").unwrap().text();
        assert!(text.contains(&payload), "{}", &text[..text.len().min(400)]);
        assert!(client.pop("old").is_empty());
    }
}

#[test]
fn a_nack_in_a_transaction_files_odd_error_texts_too() {
    let broker = broker();
    let mut client = broker.client();
    client.push_items(&(0..2).map(|n| item("odd", "p", n)).collect::<Vec<_>>().join(","));
    for text in ["a\0b".to_owned(), "é".repeat(1 << 19)] {
        let held = client.pop("odd?batch=1").remove(0);
        let body = json!({"operations": [{"type": "ack", "transactionId": held.transaction_id,
            "partitionId": held.partition_id, "leaseId": held.lease_id, "status": "dlq",
            "error": text}]});
        let answer = client.post("/api/v1/transaction", body.to_string()).unwrap().json();
        assert_eq!(answer["success"], true, "{answer}");
        assert_eq!(answer["results"][0]["dlq"], true, "{answer}");
        let row = client.dead_letters("odd").remove(0);
        let kept = row["errorMessage"].as_str().unwrap();
        assert!(!kept.is_empty() && text.starts_with(kept), "{} bytes", kept.len());
    }
    assert!(client.pop("odd").is_empty());
}

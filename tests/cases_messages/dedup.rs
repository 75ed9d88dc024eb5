//! Repeats of a push.

use std::collections::HashSet;
use std::sync::Barrier;

use serde_json::{Value, json};

use crate::support::{Request, Wire};
use crate::{broker, sleep_ms};

/// What makes two answers name the same stored message.
fn place(result: &Value) -> (String, u64) {
    (result["message_id"].as_str().unwrap().to_owned(), result["offset"].as_u64().unwrap())
}

#[test]
fn an_id_is_known_after_its_message_was_consumed_and_the_broker_restarted() {
    let mut broker = broker();
    let first = broker.client().push_one("q", "p", "a", "1");
    assert_eq!(first["status"], "queued");
    let popped = broker.client().pop("q");
    assert_eq!(broker.client().ack(&popped[0], "completed")["success"], true);
    for kill in [true, false] {
        if kill { broker.kill9() } else { assert!(broker.terminate().success()) }
        broker.restart();
        let again = broker.client().push_one("q", "p", "a", "2");
        assert_eq!(again["status"], "duplicate");
        assert_eq!(place(&again), place(&first));
        assert!(broker.client().pop("q").is_empty());
    }
}

#[test]
fn the_window_counts_from_the_first_store_and_a_repeat_does_not_renew_it() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("w", json!({"dedupWindowSeconds": 2}));
    let first = client.push_one("w", "p", "a", "1");
    sleep_ms(1_300);
    let again = client.push_one("w", "p", "a", "2");
    assert_eq!((&again["status"], place(&again)), (&json!("duplicate"), place(&first)));
    sleep_ms(1_200);
    let later = client.push_one("w", "p", "a", "3");
    assert_eq!((&later["status"], &later["offset"]), (&json!("queued"), &json!(1)));
}

#[test]
fn a_deleted_queue_takes_its_ids_with_it() {
    let mut broker = broker();
    for round in 0..3 {
        let mut client = broker.client();
        let pushed = client.push_one("del", "p", "a", &round.to_string());
        assert_eq!((&pushed["status"], &pushed["offset"]), (&json!("queued"), &json!(0)));
        let gone = client.delete("/api/v1/resources/queues/del").unwrap().json();
        assert_eq!((&gone["deleted"], &gone["existed"]), (&json!(true), &json!(true)));
        assert!(client.pop("del").is_empty());
        if round == 1 {
            broker.kill9();
            broker.restart();
        }
    }
}

#[test]
fn ids_are_compared_byte_by_byte() {
    let broker = broker();
    let mut client = broker.client();
    let ids = ["a", " a", "a ", "A", "xa", "a\u{0}", "\u{e9}", "e\u{301}", "a\u{feff}"];
    for (offset, id) in ids.iter().enumerate() {
        let pushed = client.push_one("b", "p", id, "0");
        assert_eq!((&pushed["status"], &pushed["offset"]), (&json!("queued"), &json!(offset)));
    }
    let popped = client.pop("b");
    let found: Vec<&str> = popped.iter().map(|m| m.transaction_id.as_str()).collect();
    assert_eq!(found, ids);
}

#[test]
fn an_id_counts_within_one_partition_of_one_queue() {
    let broker = broker();
    let mut client = broker.client();
    for (queue, partition) in [("s1", "p1"), ("s1", "p2"), ("s2", "p1"), ("s1p", "1")] {
        assert_eq!(client.push_one(queue, partition, "same", "0")["status"], "queued");
        assert_eq!(client.push_one(queue, partition, "same", "0")["status"], "duplicate");
    }
    // A group that settled the message changes nothing for the window, nor does another group.
    assert_eq!(client.pop("s2?autoAck=true&consumerGroup=g&subscriptionMode=all").len(), 1);
    assert_eq!(client.push_one("s2", "p1", "same", "0")["status"], "duplicate");
}

/// An id whose message did not become durable must not block the repeat for ever, and a stored one
/// must not be stored twice: the answer of the repeat and the log agree after each crash.
#[test]
fn after_a_crash_inside_a_push_the_repeat_is_stored_exactly_once() {
    let mut broker = broker();
    for round in 0..8u64 {
        let push = |number: u64| {
            let partition = number % 5;
            format!("{{\"items\":[{{\"queue\":\"c\",\"partition\":\"{partition}\",\
                      \"transactionId\":\"{round}-{number}\",\"payload\":{number}}}]}}")
        };
        let mut open: Vec<_> = (0..40).map(|_| broker.client()).collect();
        for (number, client) in open.iter_mut().enumerate() {
            let body = push(number as u64);
            let head = format!("POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Length: {}\r\n\r\n", body.len());
            client.send_raw((head + &body).as_bytes()).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_micros(300 * round));
        broker.kill9();
        broker.restart();
        let mut client = broker.client();
        for number in 0..40 {
            let answer = client.post("/api/v1/push", push(number)).unwrap().json();
            let again = client.post("/api/v1/push", push(number)).unwrap().json();
            assert_eq!(again[0]["status"], "duplicate");
            assert_eq!(place(&again[0]), place(&answer[0]));
        }
        let mut ids = HashSet::new();
        loop {
            let popped = client.pop("c?batch=1000&partitions=64&autoAck=true");
            if popped.is_empty() {
                break;
            }
            for message in popped {
                assert!(ids.insert(message.transaction_id), "stored twice");
            }
        }
        assert_eq!(ids.len(), 40);
    }
}

#[test]
fn a_thousand_pushes_whose_answers_were_lost_are_stored_once_each() {
    let broker = broker();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let broker = &broker;
            scope.spawn(move || {
                for number in 0..250 {
                    let body = format!("{{\"items\":[{{\"queue\":\"lost\",\"partition\":\"{worker}\",\
                                        \"transactionId\":\"{number}\",\"payload\":{number}}}]}}");
                    let head = format!("POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Length: {}\r\n\r\n", body.len());
                    let mut client = broker.client();
                    client.send_raw((head + &body).as_bytes()).unwrap();
                    drop(client);
                    let answer = broker.client().post("/api/v1/push", &body).unwrap().json();
                    let status = answer[0]["status"].as_str().unwrap();
                    assert!(matches!(status, "queued" | "duplicate"), "{status}");
                }
            });
        }
    });
    for worker in 0..4 {
        let target = format!("lost/partition/{worker}?batch=1000&autoAck=true");
        let popped = broker.client().pop(&target);
        assert_eq!(popped.len(), 250);
        for (at, message) in popped.iter().enumerate() {
            assert_eq!((message.offset, message.transaction_id.clone()), (at as u64, at.to_string()));
        }
    }
}

#[test]
fn of_64_concurrent_pushes_of_one_id_one_is_stored() {
    let broker = broker();
    for round in 0..5 {
        let barrier = Barrier::new(64);
        let results: Vec<Value> = std::thread::scope(|scope| {
            let push = || {
                let mut client = broker.client();
                barrier.wait();
                client.push_one("race", "p", &format!("a{round}"), "1")
            };
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(push)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let queued = results.iter().filter(|result| result["status"] == "queued").count();
        let duplicates = results.iter().filter(|result| result["status"] == "duplicate").count();
        assert_eq!((queued, duplicates), (1, 63), "round {round}");
        let places: HashSet<_> = results.iter().map(place).collect();
        assert_eq!(places.len(), 1, "all name the one message");
    }
}

#[test]
fn the_id_of_a_dead_letter_is_answered_as_duplicate_not_dropped_in_silence() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("poison", json!({"retryLimit": 0}));
    let first = client.push_one("poison", "p", "a", "1");
    let popped = client.pop("poison");
    assert_eq!(client.ack(&popped[0], "failed")["dlq"], true);
    let again = client.push_one("poison", "p", "a", "1");
    assert_eq!((&again["status"], place(&again)), (&json!("duplicate"), place(&first)));
    assert_eq!(client.dead_letters("poison").len(), 1);
}

#[test]
fn pushes_without_an_id_are_messages_of_their_own() {
    let broker = broker();
    let mut client = broker.client();
    let item = |tx: &str| format!("{{\"queue\":\"m\",\"payload\":1{tx}}}");
    let forms = ["", ",\"transactionId\":null", ",\"transactionId\":\"\""];
    let mut ids = HashSet::new();
    for tx in forms {
        for _ in 0..2 {
            let result = client.push_items(&item(tx)).remove(0);
            assert_eq!(result["status"], "queued");
            assert_eq!(result["message_id"], result["transaction_id"], "the minted id is the message's");
            assert!(ids.insert(result["transaction_id"].as_str().unwrap().to_owned()));
        }
    }
    let popped = client.pop("m?batch=100");
    assert_eq!(popped.len(), 6);
}

/// Two first pushes of a queue that name many partitions, at once, to both shards.
#[test]
fn producers_that_meet_on_a_new_queue_are_all_served() {
    let broker = broker();
    for round in 0..6 {
        let barrier = Barrier::new(8);
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let (broker, barrier) = (&broker, &barrier);
                scope.spawn(move || {
                    let item = |n: u32| format!("{{\"queue\":\"new{round}-{}\",\"partition\":\"{worker}-{n}\",\"payload\":0}}", n % 3);
                    let items: Vec<String> = (0..100).map(item).collect();
                    let body = format!("{{\"items\":[{}]}}", items.join(","));
                    let mut client = broker.client();
                    barrier.wait();
                    let answer = client.request(&Request::post("/api/v1/push", body.as_bytes())).unwrap();
                    assert_eq!(answer.status, 201, "{}", answer.text());
                });
            }
        });
    }
}

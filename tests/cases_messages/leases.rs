//! Leases, acks and dead letters.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, Wire, within};
use crate::{broker, sleep_ms};

/// Success, the error text and whether it was a repeat.
fn verdict(result: &Value) -> (bool, bool, &str) {
    let flag = |key: &str| result[key].as_bool().unwrap();
    (flag("success"), flag("noop"), result["error"].as_str().unwrap_or(""))
}

fn push_numbers(client: &mut Client, queue: &str, partition: &str, count: u64) {
    for number in 0..count {
        client.push_one(queue, partition, &format!("t{number}"), &number.to_string());
    }
}

#[test]
fn a_reader_that_commits_at_delivery_gets_each_message_once_without_a_pause() {
    let broker = broker();
    let mut client = broker.client();
    push_numbers(&mut client, "aa", "p", 11);
    let start = Instant::now();
    for number in 0..11 {
        let popped = client.pop("aa?autoAck=true&batch=1");
        assert_eq!((popped.len(), popped[0].data.clone()), (1, number.to_string()));
        assert_eq!(popped[0].lease_id, "");
    }
    assert!(client.pop("aa?autoAck=true&batch=1").is_empty());
    assert!(start.elapsed() < within(Duration::from_secs(3)), "{:?}", start.elapsed());
}

#[test]
fn an_ack_of_a_lapsed_lease_is_refused_and_the_next_holder_keeps_the_message() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("late", "p", "a", "1");
    let first = client.pop("late?leaseSeconds=1").remove(0);
    sleep_ms(1_300);
    let lapsed = client.ack(&first, "completed");
    assert_eq!(verdict(&lapsed), (false, false, "invalid or expired lease"));
    let second = client.pop("late?leaseSeconds=30").remove(0);
    assert_eq!((second.attempt, &second.id), (2, &first.id));
    assert_ne!(second.lease_id, first.lease_id);
    for status in ["completed", "failed", "retry", "dlq"] {
        let refused = client.ack(&first, status);
        assert_eq!(verdict(&refused), (false, false, "invalid or expired lease"), "{status}");
        assert_eq!(refused["leaseReleased"], false);
    }
    assert!(client.pop("late").is_empty(), "the second lease is intact");
    let settled = client.ack(&second, "completed");
    assert_eq!(verdict(&settled), (true, false, ""));
    assert_eq!(settled["leaseReleased"], true);
}

#[test]
fn acked_messages_do_not_come_back_after_a_kill_and_the_rest_does() {
    let mut broker = broker();
    let mut client = broker.client();
    for partition in 0..4 {
        push_numbers(&mut client, "acked", &format!("p{partition}"), 50);
    }
    let mut acked = HashSet::new();
    for _ in 0..4 {
        let popped = client.pop("acked?batch=25&leaseSeconds=1");
        let results = client.ack_all(&popped, "");
        assert!(results.iter().all(|result| result["success"] == true));
        acked.extend(popped.into_iter().map(|m| m.id));
    }
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    let mut rest = HashSet::new();
    loop {
        let popped = client.pop("acked?batch=1000&partitions=64&autoAck=true");
        if popped.is_empty() {
            break;
        }
        for message in popped {
            assert!(!acked.contains(&message.id), "it was acked");
            rest.insert(message.id);
        }
    }
    assert_eq!((acked.len(), rest.len()), (100, 100));
}

#[test]
fn double_acks_are_repeats_and_no_counter_goes_below_zero() {
    let broker = broker();
    let mut client = broker.client();
    push_numbers(&mut client, "twice", "p", 3);
    let popped = client.pop("twice?batch=1");
    assert_eq!(verdict(&client.ack(&popped[0], "completed")), (true, false, ""));
    // The batch that this settled is still known: a lost answer's repeat.
    assert!(verdict(&client.ack(&popped[0], "completed")).0);
    let mut bare = popped[0].clone();
    bare.lease_id = String::new();
    assert_eq!(verdict(&client.ack(&bare, "completed")), (true, true, ""));
    let nack = client.ack(&bare, "failed");
    assert!(!verdict(&nack).0 && verdict(&nack).2.contains("committed"), "{nack}");
    let next = client.pop("twice?batch=1");
    assert!(verdict(&client.ack(&next[0], "failed")).0);
    let after_nack = client.ack(&next[0], "completed");
    assert_eq!(verdict(&after_nack), (false, false, "invalid or expired lease"));
    let mut unknown = bare.clone();
    unknown.transaction_id = "never pushed".to_owned();
    let refused = client.ack(&unknown, "completed");
    assert!(!verdict(&refused).0 && verdict(&refused).2.contains("unresolv"), "{refused}");
    unknown.partition_id = "no number".to_owned();
    assert!(!verdict(&client.ack(&unknown, "completed")).0);
    let again = client.pop("twice?batch=10");
    assert_eq!(again.iter().map(|m| m.offset).collect::<Vec<_>>(), [1, 2]);
    assert!(client.ack_all(&again, "").iter().all(|result| result["success"] == true));
    for key in ["acked", "leases", "popped", "partitions"] {
        let value = client.metric(key);
        assert!(value < 1_000, "{key} = {value}");
    }
    let queue = client.get("/api/v1/resources/queues/twice").unwrap();
    assert!(!queue.text().contains(":-"), "{}", queue.text());
}

#[test]
fn only_failed_acks_count_against_the_retry_limit_and_it_is_reached_exactly() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("limit", json!({"retryLimit": 3}));
    client.push_one("limit", "p", "a", "{\"n\":1}");
    client.push_one("limit", "p", "b", "2");
    let mut attempts = 0;
    let mut take = |client: &mut Client, lease: u32| {
        attempts += 1;
        let popped = client.pop(&format!("limit?batch=1&leaseSeconds={lease}")).remove(0);
        assert_eq!((popped.attempt, popped.offset), (attempts, 0));
        popped
    };
    // Expiry, a lost connection and an explicit retry cost nothing.
    take(&mut client, 1);
    sleep_ms(1_200);
    let mut gone = broker.client();
    take(&mut gone, 1);
    drop(gone);
    sleep_ms(1_200);
    let held = take(&mut client, 30);
    assert!(client.ack(&held, "retry")["success"] == true);
    for failure in 1..=4 {
        let held = take(&mut client, 30);
        let result = client.ack_with(&held, "failed", json!({"error": format!("no {failure}")}));
        assert_eq!((&result["success"], &result["dlq"]), (&json!(true), &json!(failure == 4)));
    }
    let rows = client.dead_letters("limit");
    assert_eq!(rows.len(), 1, "once");
    assert_eq!(rows[0]["errorMessage"], "no 4");
    assert_eq!(rows[0]["payload"], json!({"n": 1}));
    assert_eq!(rows[0]["transactionId"], "a");
    let next = client.pop("limit?batch=10");
    assert_eq!(next.iter().map(|m| m.offset).collect::<Vec<_>>(), [1], "it has left the queue");
    assert_eq!(next[0].attempt, 1);
}

#[test]
fn a_lease_that_lapses_while_the_broker_is_stopped_ends_when_it_goes_on() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("stop", "p", "a", "1");
    assert_eq!(client.pop("stop?leaseSeconds=1").len(), 1);
    let pid = libc::pid_t::try_from(broker.pid().unwrap()).unwrap();
    let signal = |number: i32| {
        // SAFETY: kill takes two integers; the broker has not been waited for, the pid is its own.
        assert_eq!(unsafe { libc::kill(pid, number) }, 0);
    };
    signal(libc::SIGSTOP);
    sleep_ms(5_000);
    signal(libc::SIGCONT);
    let start = Instant::now();
    let popped = client.pop("stop?wait=true&timeout=5000");
    assert_eq!((popped.len(), popped[0].attempt), (1, 2));
    assert!(
        start.elapsed() < within(Duration::from_secs(1)),
        "{:?} after it went on",
        start.elapsed()
    );
}

#[test]
fn later_messages_do_not_pass_a_leased_one() {
    let broker = broker();
    let mut client = broker.client();
    push_numbers(&mut client, "hide", "p", 3);
    let first = client.pop("hide?batch=1&leaseSeconds=1").remove(0);
    assert!(broker.client().pop("hide").is_empty());
    assert!(broker.client().pop("hide/partition/p?autoAck=true").is_empty());
    sleep_ms(1_200);
    let again = broker.client().pop("hide?batch=10");
    assert_eq!(again.iter().map(|m| m.offset).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(again[0].id, first.id);
}

#[test]
fn a_nack_in_a_pop_of_three_partitions_releases_only_its_own() {
    let broker = broker();
    let mut client = broker.client();
    for partition in ["a", "b", "c"] {
        push_numbers(&mut client, "three", partition, 2);
    }
    let popped = client.pop("three?partitions=3&batch=100");
    assert_eq!(popped.len(), 6);
    let nacked = popped.iter().find(|m| m.partition == "b").unwrap();
    assert_eq!(client.ack(nacked, "failed")["leaseReleased"], true);
    let again = client.pop("three?partitions=3&batch=100");
    assert_eq!(again.iter().map(|m| m.partition.as_str()).collect::<Vec<_>>(), ["b", "b"]);
    assert_eq!((again[0].offset, again[0].attempt), (0, 2));
    let others: Vec<_> = popped.iter().filter(|m| m.partition != "b").cloned().collect();
    assert!(client.ack_all(&others, "").iter().all(|result| result["success"] == true));
}

#[test]
fn a_dropped_connection_keeps_the_lease_until_its_time() {
    let broker = broker();
    broker.client().push_one("drop", "p", "a", "1");
    let start = Instant::now();
    let mut holder = broker.client();
    assert_eq!(holder.pop("drop?leaseSeconds=2").len(), 1);
    drop(holder);
    assert!(broker.client().pop("drop").is_empty(), "a lease is by time, not by socket");
    let popped = broker.client().pop("drop?wait=true&timeout=5000");
    assert_eq!((popped.len(), popped[0].attempt), (1, 2));
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
}

#[test]
fn a_dead_letters_payload_is_byte_equal_after_a_kill() {
    let mut broker = broker();
    let payload = format!("{{\"k\": 1.50, \"t\":\"{}\\u0000\",\"k\":2}}", "x".repeat(5_000));
    let mut client = broker.client();
    client.push_one("dead", "p", "a", &payload);
    let popped = client.pop("dead");
    let result = client.ack_with(&popped[0], "dlq", json!({"error": "by hand"}));
    assert_eq!((&result["success"], &result["dlq"]), (&json!(true), &json!(true)));
    for _ in 0..2 {
        broker.kill9();
        broker.restart();
        let mut client = broker.client();
        assert!(client.pop("dead").is_empty());
        let raw = client.get("/api/v1/dlq?queue=dead").unwrap().text();
        assert!(raw.contains(&payload), "not the same bytes: {}", &raw[..300.min(raw.len())]);
        assert!(raw.contains("\"errorMessage\":\"by hand\""), "{raw}");
    }
}

#[test]
fn an_odd_error_text_does_not_keep_a_message_from_settling() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("text", json!({"retryLimit": 0}));
    let long = "é".repeat(1 << 19);
    let texts = ["\"a\\u0000b\"".to_owned(), format!("\"{long}\""), "\"x\\ud800y\"".to_owned()];
    for (number, text) in texts.iter().enumerate() {
        client.push_one("text", "p", &format!("t{number}"), "1");
        let held = client.pop("text?batch=1").remove(0);
        let body = format!(
            "{{\"transactionId\":\"t{number}\",\"partitionId\":\"{}\",\"leaseId\":\"{}\",\
             \"status\":\"failed\",\"error\":{text}}}",
            held.partition_id, held.lease_id
        );
        let answer = client.post("/api/v1/ack", body).unwrap();
        if answer.status == 400 {
            // Half a character is no text in JSON; the message is then settled without it.
            assert!(text.contains("ud800"), "{}", answer.text());
            assert_eq!(client.ack(&held, "failed")["dlq"], true);
            continue;
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()[0]["dlq"], true);
    }
    let rows = client.dead_letters("text");
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[2]["errorMessage"], "a\0b");
    assert!(client.pop("text").is_empty());
}

/// Expiry never charges the budget by this wire's contract: a message whose consumer always dies
/// comes back without end, until somebody nacks it. It must not stop the other partitions.
#[test]
fn a_message_that_kills_its_consumer_does_not_hold_up_other_partitions() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("crash", json!({"retryLimit": 1}));
    client.push_one("crash", "bad", "poison", "0");
    for attempt in 1..=3 {
        let mut victim = broker.client();
        let popped = victim.pop("crash/partition/bad?leaseSeconds=1&wait=true&timeout=4000");
        assert_eq!((popped.len(), popped[0].attempt), (1, attempt));
        drop(victim);
        push_numbers(&mut client, "crash", &format!("good{attempt}"), 2);
        assert_eq!(client.pop("crash?autoAck=true&batch=10").len(), 2);
    }
    sleep_ms(1_100);
    for failure in 0..2 {
        let held = client.pop("crash?batch=1").remove(0);
        assert_eq!(client.ack(&held, "failed")["dlq"], failure == 1);
    }
    assert_eq!(client.dead_letters("crash").len(), 1);
}

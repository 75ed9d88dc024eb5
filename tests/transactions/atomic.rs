//! What one transaction does, and what it leaves when it does not happen.

use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Broker, Client, Message, Options, Wire};
use super::{ack_of, all_of, apart, broker, push_of, transact};

/// A message of `partition` under a lease.
fn leased(client: &mut Client, queue: &str, partition: &str, tx: &str) -> Message {
    client.push_one(queue, partition, tx, "1");
    client.pop(&format!("{queue}/partition/{partition}")).remove(0)
}

#[test]
fn an_ack_and_a_push_on_two_shards_happen_together_and_survive_a_kill() {
    let mut broker = broker();
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    let message = leased(&mut client, "q", &here, "job");
    let body = json!({"operations": [
        ack_of(&message, "completed"), push_of("q", &there, "next", 2), push_of("new.queue", "p", "", 3),
    ]});
    let answer = transact(&mut client, &body);
    assert_eq!(answer["success"], true, "{answer}");
    let results = answer["results"].as_array().unwrap();
    let shape: Vec<_> = results.iter().map(|r| (r["index"].as_u64(), r["type"].as_str())).collect();
    assert_eq!(shape, [(Some(0), Some("ack")), (Some(1), Some("push")), (Some(2), Some("push"))]);
    assert_eq!((&results[0]["transactionId"], &results[0]["dlq"]), (&json!("job"), &json!(false)));
    assert_eq!((&results[1]["transactionId"], &results[1]["offset"]), (&json!("next"), &json!(1)));
    assert_eq!(results[2]["transactionId"], results[2]["messageId"]);
    drop(client);
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    assert!(client.pop(&format!("q/partition/{here}")).is_empty(), "the ack survived");
    assert_eq!(all_of(&mut client, "q", &there, "g"), ["0", "2"]);
    assert_eq!(all_of(&mut client, "new.queue", "p", "g"), ["3"]);
    // What it stored is known by its id: sent again, it is a duplicate.
    assert_eq!(client.push_one("q", &there, "next", "9")["status"], "duplicate");
}

/// They wait for company, which a lone transaction does not get.
#[test]
fn the_ends_of_a_lone_transaction_reach_the_disk() {
    let arguments = vec!["--segment-bytes".into(), "4MiB".into()];
    let broker = Broker::start(Options { arguments, ..Options::default() });
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    let message = leased(&mut client, "q", &here, "job");
    let operations = [ack_of(&message, "completed"), push_of("q", &there, "next", 2)];
    let answer = transact(&mut client, &json!({"operations": operations}));
    assert_eq!(answer["success"], true, "{answer}");
    let id = answer["transactionId"].as_str().unwrap().replace('-', "");
    let id: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect();
    let finder = memchr::memmem::Finder::new(&id);
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let files = walk(&broker.data_dir());
        let records =
            files.iter().map(|file| finder.find_iter(&std::fs::read(file).unwrap()).count());
        // The commit, the prepare, and an end on each shard.
        let records: usize = records.sum();
        if records == 4 {
            break;
        }
        assert!(Instant::now() < until, "{records} records of the transaction");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_failed_guard_on_one_shard_leaves_nothing_on_the_other() {
    let broker = broker();
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    for (ack_in, push_in) in [(&here, &there), (&there, &here), (&here, &here)] {
        let message = leased(&mut client, "q", ack_in, &format!("job-{ack_in}-{push_in}"));
        let before = all_of(&mut client, "q", push_in, &format!("before-{ack_in}-{push_in}"));
        let mut foreign = ack_of(&message, "completed");
        foreign["leaseId"] = json!("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b");
        let mut unknown = ack_of(&message, "completed");
        unknown["transactionId"] = json!("never pushed");
        for bad in [foreign, unknown] {
            let body = json!({"operations": [push_of("q", push_in, "", 5), bad]});
            let answer = transact(&mut client, &body);
            assert_eq!(
                (&answer["success"], &answer["reason"]),
                (&json!(false), &json!("rejected_ack"))
            );
            assert_eq!(answer["results"], json!([]));
            assert!(answer["error"].as_str().unwrap().starts_with("QTXN "), "{answer}");
        }
        // A pushed id that is there already: the ack does not happen either.
        let body = json!({"operations": [ack_of(&message, "completed"), push_of("q", push_in, "first", 6),
            push_of("q", push_in, &message.transaction_id, 7)]});
        client.push_one("q", push_in, "first", "4");
        let answer = transact(&mut client, &body);
        assert_eq!(answer["reason"], "duplicate", "{answer}");
        assert!(answer["error"].as_str().unwrap().starts_with("QDUP "), "{answer}");
        let after = all_of(&mut client, "q", push_in, &format!("after-{ack_in}-{push_in}"));
        let mut wanted = before;
        if !after.iter().eq(&wanted) {
            wanted.push("4".into());
        }
        assert_eq!(after, wanted, "only the plain push is there");
        // The lease is as it was: its ack still counts.
        assert_eq!(client.ack(&message, "completed")["success"], true);
    }
}

#[test]
fn the_lapse_of_a_lease_is_named_in_the_rollback() {
    let broker = broker();
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    client.push_one("q", &here, "late", "1");
    let message = client.pop(&format!("q/partition/{here}?leaseSeconds=1")).remove(0);
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    let body = json!({"operations": [ack_of(&message, "completed"), push_of("q", &there, "x", 2)]});
    let answer = transact(&mut client, &body);
    assert_eq!(answer["reason"], "rejected_ack");
    assert!(answer["error"].as_str().unwrap().contains("lease"), "{answer}");
    assert_eq!(all_of(&mut client, "q", &there, "g"), ["0"]);
    // Without a lease it is unfenced, and settles what has lapsed.
    let mut unfenced = ack_of(&message, "completed");
    unfenced.as_object_mut().unwrap().remove("leaseId");
    let body = json!({"operations": [unfenced, push_of("q", &there, "x", 2)]});
    assert_eq!(transact(&mut client, &body)["success"], true);
    assert!(client.pop(&format!("q/partition/{here}")).is_empty());
}

#[test]
fn a_repeat_inside_the_transaction_is_stored_once() {
    let broker = broker();
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    let body = json!({"operations": [push_of("q", &here, "a", 1), push_of("q", &there, "a", 2),
        push_of("q", &here, "a", 3), push_of("q", &here, "b", 4)]});
    let answer = transact(&mut client, &body);
    let results = answer["results"].as_array().unwrap();
    let repeats: Vec<bool> = results.iter().map(|r| r["duplicate"] == true).collect();
    assert_eq!(repeats, [false, false, true, false]);
    assert_eq!(results[2]["messageId"], results[0]["messageId"]);
    assert_eq!((&results[2]["offset"], &results[3]["offset"]), (&json!(1), &json!(2)));
    assert_eq!(all_of(&mut client, "q", &here, "g"), ["0", "1", "4"]);
    assert_eq!(all_of(&mut client, "q", &there, "g"), ["0", "2"]);
}

#[test]
fn acks_are_judged_as_plain_ones_and_their_dead_letters_carry_the_reason() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("q", json!({"retryLimit": 1}));
    let (here, there) = apart(&mut client, "q");
    let message = leased(&mut client, "q", &here, "poison");
    let mut nack = ack_of(&message, "failed");
    nack["error"] = json!("it burned");
    let body = json!({"operations": [nack, push_of("q", &there, "noted", 1)]});
    let answer = transact(&mut client, &body);
    assert_eq!((&answer["success"], &answer["results"][0]["dlq"]), (&json!(true), &json!(false)));
    // Redelivered at once, and spent with the second failure.
    let again = client.pop(&format!("q/partition/{here}")).remove(0);
    assert_eq!((again.attempt, &again.transaction_id), (2, &message.transaction_id));
    let mut nack = ack_of(&again, "failed");
    nack["error"] = json!("it burned twice");
    let answer = transact(&mut client, &json!({"operations": [nack, push_of("q", &there, "", 2)]}));
    assert_eq!(answer["results"][0]["dlq"], true, "{answer}");
    let rows = client.dead_letters("q");
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (&rows[0]["errorMessage"], &rows[0]["data"]),
        (&json!("it burned twice"), &json!(1))
    );
    // A signal for what is settled already is no harmless repeat.
    let answer = transact(&mut client, &json!({"operations": [ack_of(&again, "retry")]}));
    assert_eq!(answer["reason"], "rejected_ack");
}

#[test]
fn groups_move_each_for_itself_and_a_trace_id_comes_back() {
    let broker = broker();
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    client.push_one("q", &here, "shared", "1");
    let pop = |client: &mut Client, group: &str| {
        client
            .pop(&format!("q/partition/{here}?consumerGroup={group}&subscriptionMode=all&batch=10"))
    };
    let (first, second) = (pop(&mut client, "g1"), pop(&mut client, "g2"));
    assert_eq!((first.len(), second.len()), (2, 2));
    let mut ack = ack_of(&first[1], "completed");
    ack["consumerGroup"] = json!("g1");
    let trace = "0191a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
    let mut push = push_of("q", &there, "traced", 2);
    push["items"][0]["traceId"] = json!(trace);
    let mut odd = push_of("q", &there, "odd", 3);
    odd["items"][0]["traceId"] = json!("no uuid");
    let answer = transact(&mut client, &json!({"operations": [ack, push, odd]}));
    assert_eq!(answer["success"], true, "{answer}");
    assert!(pop(&mut client, "g1").is_empty(), "g1 is done");
    assert_eq!(client.ack_all(&second, "g2")[1]["noop"], false, "g2 holds its own");
    let answer = client.get(&format!("/api/v1/pop/queue/q/partition/{there}?batch=10")).unwrap();
    let traces: Vec<_> = answer.json()["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["traceId"].clone())
        .collect();
    assert_eq!(traces, [json!(trace), json!(null)]);
}

#[test]
fn a_transaction_wakes_a_pop_that_waits_on_another_shard() {
    let broker = broker();
    let mut client = broker.client();
    let (here, there) = apart(&mut client, "q");
    let message = leased(&mut client, "q", &here, "job");
    let address = broker.address();
    let waiting = std::thread::spawn(move || {
        let mut client = Client::connect(address).unwrap();
        client.pop("q?wait=true&timeout=30000")
    });
    while client.metric("parked") == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let body =
        json!({"operations": [ack_of(&message, "completed"), push_of("q", &there, "woken", 7)]});
    assert_eq!(transact(&mut client, &body)["success"], true);
    let woken = waiting.join().unwrap();
    assert_eq!(woken.iter().map(|m| m.data.as_str()).collect::<Vec<_>>(), ["7"]);
}

#[test]
fn messages_of_a_transaction_are_encrypted_where_their_queue_is() {
    let key = "11".repeat(32);
    let environment = vec![("LANEMQ_ENCRYPTION_KEY".to_owned(), key)];
    let mut broker = Broker::start(Options { environment, ..Options::default() });
    let mut client = broker.client();
    client.configure("sealed", json!({"encryptionEnabled": true}));
    let secret = 123_456_789_987_654_321_i64;
    let body = json!({"operations": [push_of("sealed", "a", "s", secret), push_of("sealed", "b", "t", secret)]});
    assert_eq!(transact(&mut client, &body)["success"], true);
    drop(client);
    broker.terminate();
    let text = secret.to_string();
    for entry in walk(&broker.data_dir()) {
        let bytes = std::fs::read(&entry).unwrap();
        let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!found, "{} holds the payload in clear", entry.display());
    }
    broker.restart();
    let mut client = broker.client();
    for partition in ["a", "b"] {
        assert_eq!(all_of(&mut client, "sealed", partition, "g"), std::slice::from_ref(&text));
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

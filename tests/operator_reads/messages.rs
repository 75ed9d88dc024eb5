//! Listing messages and showing one.

use serde_json::{Value, json};

use crate::support::{Broker, Client, Options, Wire};
use crate::{broker, dead_letter, read, restart};

fn numbers(client: &mut Client, query: &str) -> Vec<u64> {
    let body = read(client, &format!("/api/v1/messages?{query}"));
    let rows = body["messages"].as_array().unwrap();
    assert_eq!(body["total"], rows.len(), "the total is the page's");
    rows.iter().map(|row| row["data"]["n"].as_u64().unwrap()).collect()
}

fn fill(client: &mut Client, queue: &str, count: u64) {
    for n in 0..count {
        let payload = json!({ "n": n }).to_string();
        client.push_one(queue, &format!("p{}", n % 3), &format!("t{n}"), &payload);
    }
}

#[test]
fn the_newest_messages_come_first_over_all_partitions_and_pages_join() {
    let mut broker = broker();
    let mut client = broker.client();
    fill(&mut client, "list.labelled.q", 20);
    client.push_one("other", "p", "t", "{\"n\":99}");
    for _ in 0..2 {
        let queue = "queue=list.labelled.q";
        assert_eq!(numbers(&mut client, queue), (0..20).rev().collect::<Vec<_>>());
        assert_eq!(numbers(&mut client, &format!("{queue}&limit=4&offset=3")), [16, 15, 14, 13]);
        assert_eq!(numbers(&mut client, &format!("{queue}&partition=p1&limit=2")), [19, 16]);
        assert_eq!(numbers(&mut client, "namespace=list&task=labelled&limit=2"), [19, 18]);
        assert_eq!(numbers(&mut client, "limit=2"), [99, 19]);
        assert!(numbers(&mut client, "queue=none").is_empty());
        assert!(numbers(&mut client, &format!("{queue}&to=2000-01-01")).is_empty());
        assert!(numbers(&mut client, &format!("{queue}&from=2100-01-01")).is_empty());
        client = restart(&mut broker, false);
    }
    let row = read(&mut client, "/api/v1/messages?queue=list.labelled.q&limit=1");
    assert_eq!(row["pagination"], json!({"limit": 1, "offset": 0}));
    assert_eq!(row["mode"]["type"], "none");
    let row = &row["messages"][0];
    assert_eq!(
        (&row["queuePath"], &row["namespace"]),
        (&"list.labelled.q/p1".into(), &"list".into())
    );
    assert_eq!((&row["status"], &row["payloadAvailable"]), (&"pending".into(), &true.into()));
    assert_eq!(client.get("/api/v1/messages?status=lost").unwrap().status, 400);
}

#[test]
fn each_status_lists_its_own_messages() {
    let broker = broker();
    let mut client = broker.client();
    for n in 0..6 {
        let payload = json!({ "n": n }).to_string();
        client.push_one("st", "p", &format!("t{n}"), &payload);
    }
    let first = client.pop("st?batch=3&consumerGroup=g&subscriptionMode=all");
    client.ack_with(&first[1], "dlq", json!({"consumerGroup": "g"}));
    let leased = client.pop("st?batch=2&consumerGroup=g");
    assert_eq!(leased.len(), 2, "what follows the dead letter");
    let mut of = |status: &str| numbers(&mut client, &format!("queue=st&status={status}"));
    assert_eq!(of("dead_letter"), [1]);
    assert_eq!(of("completed"), [0]);
    assert_eq!(of("processing"), [5, 4, 3, 2], "one live lease marks the partition");
    assert!(of("pending").is_empty() && of("failed").is_empty());
    let body = read(&mut client, "/api/v1/messages?queue=st");
    let words: Vec<&str> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["status"].as_str().unwrap())
        .collect();
    let open = "processing";
    assert_eq!(words, [open, open, open, open, "dead_letter", "completed"]);
    assert_eq!(body["mode"], json!({"hasQueueMode": false, "busGroupsCount": 1, "type": "bus"}));
    let rows = body["messages"].as_array().unwrap();
    assert!(rows[2]["leaseExpiresAt"].is_string() && rows[0]["leaseExpiresAt"].is_null());
    assert_eq!(rows[5]["busStatus"], json!({"consumedBy": 1, "totalGroups": 1}));
    client.ack_all(&leased, "g");
    assert_eq!(numbers(&mut client, "queue=st&status=pending"), [5, 4]);
    // A reader without a group does not undo what the group has done.
    assert_eq!(client.pop("st?batch=1").len(), 1);
    assert_eq!(numbers(&mut client, "queue=st&status=completed"), [3, 2, 0]);
}

#[test]
fn one_message_is_shown_in_full_before_and_after_a_restart() {
    let mut broker = broker();
    let mut client = broker.client();
    client.configure("det.ail", json!({"leaseTime": 77}));
    fill(&mut client, "det.ail", 5);
    let minted = client.push_items(r#"{"queue":"det.ail","partition":"p0","payload":{"n":5}}"#);
    let minted = minted[0]["transaction_id"].as_str().unwrap().to_owned();
    let popped = client.pop("det.ail/partition/p0?consumerGroup=g&subscriptionMode=all");
    let id = popped[0].partition_id.clone();
    for clean in [true, false] {
        let detail = read(&mut client, &format!("/api/v1/messages/{id}/t3"));
        assert_eq!((&detail["data"], &detail["payload"]), (&json!({"n": 3}), &json!({"n": 3})));
        assert_eq!((&detail["status"], &detail["offset"]), (&"processing".into(), &1.into()));
        assert_eq!(detail["queueConfig"]["leaseTime"], 77);
        assert_eq!((&detail["retryCount"], &detail["errorMessage"]), (&0.into(), &Value::Null));
        let group = &detail["consumerGroups"][0];
        assert_eq!((&group["name"], &group["committed"]), (&"g".into(), &json!(-1)));
        assert!(group["leaseExpiresAt"].is_string(), "{group}");
        let of_broker = read(&mut client, &format!("/api/v1/messages/{id}/{minted}"));
        assert_eq!(of_broker["data"]["n"], 5, "found by an id that no index keeps");
        for missing in ["t1", "nothing"] {
            let answer = client.get(&format!("/api/v1/messages/{id}/{missing}")).unwrap();
            assert_eq!(
                (answer.status, &answer.json()["error"]),
                (404, &"Message not found".into())
            );
        }
        assert_eq!(client.get("/api/v1/messages/nowhere/t3").unwrap().status, 404);
        client = restart(&mut broker, clean);
    }
}

#[test]
fn a_message_is_found_without_a_dedup_window_and_the_newest_of_several_is_shown() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("again", json!({"dedupWindowSeconds": 0}));
    for n in 0..3 {
        client.push_one("again", "p", "same", &json!({ "n": n }).to_string());
        client.push_one("again", "p", &format!("x{n}"), "0");
    }
    let id = client.pop("again?batch=1").remove(0).partition_id;
    assert_eq!(read(&mut client, &format!("/api/v1/messages/{id}/same"))["data"]["n"], 2);
    assert_eq!(read(&mut client, &format!("/api/v1/messages/{id}/x0"))["offset"], 1);
}

#[test]
fn a_dead_letter_shows_its_error_and_its_message_outlives_retention() {
    let broker = broker();
    let mut client = broker.client();
    let dead = dead_letter(&mut client, "kept", "p", "t", "{\"n\":7}", "broken");
    let target = format!("/api/v1/messages/{}/t", dead.partition_id);
    let detail = read(&mut client, &target);
    assert_eq!(
        (&detail["status"], &detail["errorMessage"]),
        (&"dead_letter".into(), &"broken".into())
    );
    client.configure("kept", json!({"retentionEnabled": true, "retentionSeconds": 1}));
    let limit =
        std::time::Instant::now() + crate::support::within(std::time::Duration::from_secs(5));
    while read(&mut client, "/api/v1/resources/queues/kept")["totals"]["total"] != 0 {
        assert!(std::time::Instant::now() < limit, "retention did not come");
        crate::sleep_ms(50);
    }
    let detail = read(&mut client, &target);
    assert_eq!((&detail["data"]["n"], &detail["status"]), (&7.into(), &"dead_letter".into()));
    assert!(numbers(&mut client, "queue=kept").is_empty(), "the list shows what is retained");
    assert_eq!(client.delete(&target).unwrap().status, 200);
    assert_eq!(client.get(&target).unwrap().status, 404);
}

#[test]
fn encrypted_payloads_are_opened_and_compressed_batches_too() {
    let key = ("LANEMQ_ENCRYPTION_KEY".to_owned(), "0f".repeat(32));
    let broker = Broker::start(Options {
        environment: vec![key],
        arguments: vec!["--compress-json=64".into()],
        ..Options::default()
    });
    let mut client = broker.client();
    client.configure("sealed", json!({"encryptionEnabled": true}));
    for queue in ["sealed", "packed"] {
        let items: Vec<String> = (0..10)
            .map(|n| {
                let payload = json!({"n": n, "fill": "x".repeat(50)});
                format!(
                    "{{\"queue\":\"{queue}\",\"transactionId\":\"t{n}\",\"payload\":{payload}}}"
                )
            })
            .collect();
        client.push_items(&items.join(","));
        assert_eq!(numbers(&mut client, &format!("queue={queue}&limit=3&offset=2")), [7, 6, 5]);
        let id = client.pop(&format!("{queue}?batch=1")).remove(0).partition_id;
        let detail = read(&mut client, &format!("/api/v1/messages/{id}/t4"));
        assert_eq!(detail["data"]["n"], 4);
        assert_eq!(detail["isEncrypted"], queue == "sealed");
    }
}

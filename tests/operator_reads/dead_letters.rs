//! Dead letters: filed once, listed by their filters, deleted for good.

use serde_json::{Value, json};

use crate::support::Wire;
use crate::{broker, dead_letter, read, restart};

#[test]
fn an_exhausted_message_is_filed_once_with_its_error_and_leaves_the_queue() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("spent", json!({"retryLimit": 3}));
    client.push_one("spent", "p", "t", "{\"n\":1}");
    for attempt in 1..=4 {
        let message = client.pop("spent").remove(0);
        assert_eq!(message.attempt, attempt);
        let nack = client.ack_with(&message, "failed", json!({"error": "no luck"}));
        assert_eq!(nack["success"], true, "{nack}");
    }
    assert!(client.pop("spent").is_empty());
    let rows = client.dead_letters("spent");
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["errorMessage"], &rows[0]["data"]), (&"no luck".into(), &json!({"n": 1})));
    assert_eq!(rows[0]["retryCount"], 3);
}

#[test]
fn odd_error_texts_settle_their_message() {
    let broker = broker();
    let mut client = broker.client();
    let dead = dead_letter(&mut client, "odd", "p", "nul", "1", "a\u{0}b");
    let large = "x".repeat(1 << 20);
    dead_letter(&mut client, "odd", "p", "large", "2", &large);
    client.push_one("odd", "p", "lone", "3");
    let message = client.pop("odd").remove(0);
    let body = format!(
        "{{\"transactionId\":\"lone\",\"partitionId\":\"{}\",\"leaseId\":\"{}\",\
         \"status\":\"dlq\",\"error\":\"x\\ud800y\"}}",
        message.partition_id, message.lease_id
    );
    let answer = client.post("/api/v1/ack", body).unwrap();
    assert_eq!((answer.status, &answer.json()[0]["success"]), (200, &true.into()));
    let rows = client.dead_letters("odd");
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["errorMessage"], "x\u{FFFD}y");
    assert_eq!(rows[1]["errorMessage"].as_str().unwrap().len(), 16 << 10);
    assert_eq!(rows[2]["errorMessage"], "a\u{0}b");
    assert_eq!(rows[2]["partitionId"], dead.partition_id.as_str());
}

#[test]
fn a_deleted_dead_letter_stays_deleted_and_the_others_keep_their_payload() {
    for clean in [true, false] {
        let mut broker = broker();
        let mut client = broker.client();
        let payload = "{ \"kept\" : \"as it came\" }";
        let mut dead = Vec::new();
        for at in 0..6 {
            let (partition, tx) = (format!("p{}", at % 3), format!("t{at}"));
            dead.push(dead_letter(&mut client, "gone", &partition, &tx, payload, "why"));
        }
        let target = |at: usize| {
            format!("/api/v1/messages/{}/{}", dead[at].partition_id, dead[at].transaction_id)
        };
        let answer = client.delete(&target(1)).unwrap();
        let want = json!({
            "success": true, "partitionId": dead[1].partition_id, "transactionId": "t1",
            "deleted": 1,
        });
        assert_eq!((answer.status, answer.json()), (200, want));
        let mut client = restart(&mut broker, clean);
        let again = client.delete(&target(1)).unwrap();
        assert_eq!((again.status, &again.json()["success"]), (404, &false.into()));
        let left: Vec<Value> = client.dead_letters("gone");
        let mut ids: Vec<&str> =
            left.iter().map(|r| r["transactionId"].as_str().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["t0", "t2", "t3", "t4", "t5"]);
        let page = client.get("/api/v1/dlq?queue=gone").unwrap().text();
        assert_eq!(page.matches(&format!("\"data\":{payload}")).count(), 5, "{page}");
        assert_eq!(client.delete(&target(2)).unwrap().status, 200, "found after a restart");
        assert_eq!(client.dead_letters("gone").len(), 4);
        let detail = read(&mut client, "/api/v1/resources/queues/gone");
        assert_eq!(detail["totals"]["deadLetter"], 4);
        let counts: u64 = detail["partitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["stats"]["deadLetter"].as_u64().unwrap())
            .sum();
        assert_eq!(counts, 4);
    }
}

#[test]
fn a_live_message_is_not_deleted_and_neither_is_what_is_no_address() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("live", "p", "dlq:a/b", "1");
    let message = client.pop("live?leaseSeconds=1").remove(0);
    let id = &message.partition_id;
    for target in [format!("{id}/dlq:a%2Fb"), "x/t".into(), "99999999999999/t".into(), "7/t".into()]
    {
        let answer = client.delete(&format!("/api/v1/messages/{target}")).unwrap();
        assert_eq!((answer.status, &answer.json()["success"]), (404, &false.into()), "{target}");
    }
    client.ack(&message, "dlq");
    let answer = client.delete(&format!("/api/v1/messages/{id}/dlq:a%2Fb")).unwrap();
    assert_eq!((answer.status, &answer.json()["transactionId"]), (200, &"dlq:a/b".into()));
}

#[test]
fn the_list_filters_pages_and_counts_over_all_shards() {
    let broker = broker();
    let mut client = broker.client();
    for at in 0..12 {
        let partition = format!("p{}", at % 4);
        dead_letter(&mut client, "many", &partition, &format!("t{at}"), &at.to_string(), "e");
    }
    dead_letter(&mut client, "other", "p0", "t", "0", "e");
    let mut ids = |query: &str| {
        let body = read(&mut client, &format!("/api/v1/dlq?{query}"));
        let rows = body["messages"].as_array().unwrap();
        let data: Vec<u64> = rows.iter().map(|row| row["data"].as_u64().unwrap()).collect();
        (data, body["total"].as_u64().unwrap())
    };
    assert_eq!(ids("queue=many&limit=5"), (vec![11, 10, 9, 8, 7], 12));
    assert_eq!(ids("queue=many&limit=5&offset=10"), (vec![1, 0], 12));
    assert_eq!(ids("queue=many&partition=p1"), (vec![9, 5, 1], 3));
    assert_eq!(ids("consumerGroup=__QUEUE_MODE__").1, 13);
    assert_eq!(ids("consumerGroup=nobody"), (vec![], 0));
    assert_eq!(ids("queue=none"), (vec![], 0));
    assert_eq!(ids("queue=many&to=2000-01-01"), (vec![], 0));
    assert_eq!(ids("queue=many&from=2000-01-01&limit=1"), (vec![11], 12));
    assert_eq!(client.get("/api/v1/dlq?from=soon").unwrap().status, 400);
}

#[test]
fn a_purge_takes_one_queues_or_one_groups_rows_and_never_all() {
    let mut broker = broker();
    let mut client = broker.client();
    for at in 0..300 {
        client.push_one("purge", &format!("p{}", at % 2), &format!("t{at}"), "1");
    }
    for group in ["", "&consumerGroup=g&subscriptionMode=all"] {
        for _ in 0..2 {
            let batch = client.pop(&format!("purge?batch=1000{group}"));
            assert_eq!(batch.len(), 150);
            let items: Vec<Value> = batch
                .iter()
                .map(|m| {
                    json!({
                        "transactionId": m.transaction_id, "partitionId": m.partition_id,
                        "leaseId": m.lease_id, "status": "dlq",
                    })
                })
                .collect();
            let name = if group.is_empty() { "" } else { "g" };
            let body = json!({"acknowledgments": items, "consumerGroup": name});
            assert_eq!(client.post("/api/v1/ack/batch", body.to_string()).unwrap().status, 200);
        }
    }
    dead_letter(&mut client, "spared", "p", "t", "1", "e");
    let none = client.delete("/api/v1/dlq?queue=").unwrap();
    assert_eq!((none.status, &none.json()["error"]), (400, &"queue is required".into()));
    let total = |client: &mut crate::support::Client| {
        read(client, "/api/v1/dlq?limit=1")["total"].as_u64().unwrap()
    };
    assert_eq!(total(&mut client), 601);
    let group = client.delete("/api/v1/dlq?queue=purge&consumerGroup=g").unwrap().json();
    let want = json!({"success": true, "queue": "purge", "consumerGroup": "g", "deleted": 300});
    assert_eq!(group, want);
    assert_eq!(total(&mut client), 301);
    let rest = client.delete("/api/v1/dlq?queue=purge").unwrap().json();
    assert_eq!((&rest["deleted"], &rest["consumerGroup"]), (&300.into(), &Value::Null));
    assert_eq!(client.delete("/api/v1/dlq?queue=nothing").unwrap().json()["deleted"], 0);
    let mut client = restart(&mut broker, false);
    assert_eq!(total(&mut client), 1);
    assert_eq!(client.dead_letters("spared").len(), 1);
}

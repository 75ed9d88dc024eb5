//! Bodies of transactions: the published binary ones, and those that are refused.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::support::{Client, Wire};
use super::{all_of, broker};

fn vectors() -> BTreeMap<&'static str, Vec<u8>> {
    let mut all = BTreeMap::new();
    for block in include_str!("vectors.txt").split("\n\n").skip(1) {
        let mut lines = block.lines();
        let name = lines.next().and_then(|title| title.split(' ').next()).unwrap();
        let digits: String = lines.collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        all.insert(name, (0..digits.len()).step_by(2).map(byte).collect());
    }
    assert_eq!(all.len(), 6);
    all
}

fn send(client: &mut Client, body: &[u8]) -> (u16, Value) {
    let answer = client.post("/api/v1/transaction", body).unwrap();
    (answer.status, answer.json())
}

/// The same groups behind another head.
fn with_head(vector: &[u8], flags: u8, head: &str) -> Vec<u8> {
    let old = u32::from_le_bytes(vector[5..9].try_into().unwrap()) as usize;
    let mut body = b"QTB1".to_vec();
    body.push(flags);
    body.extend_from_slice(&(head.len() as u32).to_le_bytes());
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&vector[9 + old..]);
    body
}

#[test]
fn the_published_binary_transactions_are_read() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    // Its ack names a partition nobody has: nothing happens.
    let (status, answer) = send(&mut client, &vectors["D1"]);
    assert_eq!((status, &answer["reason"]), (200, &json!("rejected_ack")), "{answer}");
    assert!(all_of(&mut client, "out", "p1", "g").is_empty());
    // The same messages beside an ack that counts: head first, groups behind it.
    client.push_one("in", "p", "in-1", "1");
    let message = client.pop("in/partition/p").remove(0);
    let head = json!({"operations": [{"type": "ack", "transactionId": "in-1",
        "partitionId": message.partition_id, "leaseId": message.lease_id}]});
    let (status, answer) = send(&mut client, &with_head(&vectors["D1"], 0, &head.to_string()));
    assert_eq!((status, &answer["success"]), (200, &json!(true)), "{answer}");
    let rows = answer["results"].as_array().unwrap();
    let shape: Vec<_> = rows.iter().map(|r| (r["index"].as_u64(), r["type"].as_str())).collect();
    assert_eq!(shape, [(Some(0), Some("ack")), (Some(1), Some("push")), (Some(2), Some("push"))]);
    assert_eq!((&rows[1]["transactionId"], &rows[1]["queueName"]), (&json!("tx-a"), &json!("out")));
    // Without an id of its own a message carries its own id's text, in the frame already.
    assert_eq!(rows[2]["transactionId"], rows[2]["messageId"]);
    assert_eq!(all_of(&mut client, "out", "p1", "g"), ["{\"n\":1}"]);
    assert_eq!(all_of(&mut client, "out", "p2", "g"), ["\"text\""]);
    let (kept, recoded) = (client.metric("groupsKept"), client.metric("groupsRecoded"));
    assert_eq!((kept, recoded), (2, 0), "stored as they came");
}

#[test]
fn counts_and_empty_heads() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    let (status, answer) = send(&mut client, &vectors["D2"]);
    assert_eq!(status, 200);
    let id = answer["transactionId"].clone();
    assert!(id.as_str().is_some_and(|id| id.len() == 36));
    let want = json!({"transactionId": id, "success": true, "pushed": 1, "duplicate": 0,
        "acked": 0, "results": []});
    assert_eq!(answer, want);
    let (status, answer) = send(&mut client, &vectors["D2"]);
    assert_eq!((status, &answer["reason"]), (200, &json!("duplicate")), "sent twice: {answer}");
    let (status, answer) = send(&mut client, &vectors["D3"]);
    assert_eq!((status, &answer["reason"]), (200, &json!("bad_request")), "no parts: {answer}");
    // A push in the head comes before the groups.
    let head =
        json!({"operations": [{"type": "push", "queue": "q", "partition": "p", "payload": 5}]});
    let mut other = with_head(&vectors["D1"], 0, &head.to_string());
    let (_, answer) = send(&mut client, &other);
    let queues: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|r| r["queueName"].clone()).collect();
    assert_eq!(queues, ["q", "out", "out"], "{answer}");
    other[4] = 2;
    assert_eq!(send(&mut client, &other).1["reason"], "duplicate");
}

#[test]
fn malformed_bodies_are_refused_in_the_transactions_own_shape() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    let mut bad: Vec<Vec<u8>> = ["N35", "N36", "N37"].iter().map(|n| vectors[n].clone()).collect();
    let whole = &vectors["D2"];
    bad.extend((4..whole.len()).map(|end| whole[..end].to_vec()));
    bad.push([whole.as_slice(), b"x"].concat());
    bad.push(b"QPB1\x00\x00\x00\x00\x00".to_vec());
    bad.push(b"{\"operations\":[{\"type\":\"timer\"}]}".to_vec());
    bad.push(b"{\"operations\":1}".to_vec());
    for body in bad {
        let (status, answer) = send(&mut client, &body);
        let shape = (status, &answer["success"], &answer["reason"], &answer["results"]);
        assert_eq!(
            shape,
            (400, &json!(false), &json!("bad_request"), &json!([])),
            "{}",
            body.escape_ascii()
        );
        assert!(answer["error"].is_string());
    }
    // On the route of pushes it is no push.
    let answer = client.post("/api/v1/push", whole).unwrap();
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("bad_body")));
    // What this build lacks is said by name.
    let answer = client.post("/api/v1/transaction", r#"{"kv":[{"op":"put"}]}"#).unwrap();
    assert_eq!((answer.status, &answer.json()["code"]), (501, &json!("not_implemented")));
    let long = json!({"operations": [{"type": "push", "queue": "x".repeat(500), "payload": 1}]});
    let answer = client.post("/api/v1/transaction", long.to_string()).unwrap();
    assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("name_too_long")));
    assert!(
        client.get("/api/v1/resources/queues").unwrap().json()["queues"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

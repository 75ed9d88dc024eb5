//! The published encoder's bodies, and bodies that must be refused, from `vectors.txt`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::broker;
use super::support::{Client, Wire};

fn vectors() -> BTreeMap<&'static str, (&'static str, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for block in include_str!("vectors.txt").split("\n\n") {
        let mut lines = block.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let Some((name, title)) = lines.next().and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let digits: String = lines.collect();
        let bytes = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        all.insert(name, (title, bytes));
    }
    assert_eq!(all.len(), 47);
    all
}

/// Pushes a vector; status and body.
fn push(client: &mut Client, body: &[u8]) -> (u16, Value) {
    let answer = client.post("/api/v1/push", body).unwrap();
    (answer.status, answer.json())
}

/// Index, status and offset of each item.
fn fates(answer: &Value) -> Vec<(u64, &str, u64)> {
    answer
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            let number = |key: &str| item[key].as_u64().unwrap();
            (number("index"), item["status"].as_str().unwrap(), number("offset"))
        })
        .collect()
}

fn delete_queue(client: &mut Client) {
    client.delete("/api/v1/resources/queues/q").unwrap();
}

#[test]
fn plain_bodies_are_answered_as_json_pushes_are() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    for name in ["A1", "B1"] {
        let (status, answer) = push(&mut client, &vectors[name].1);
        assert_eq!(status, 201, "{answer}");
        assert_eq!(fates(&answer), [(0, "queued", 0), (1, "queued", 1)]);
        assert_eq!(answer[0]["transaction_id"], answer[0]["message_id"]);
        assert_eq!(answer[0]["queueName"], "q");
        let popped = client.pop("q/partition/p");
        let data: Vec<&str> = popped.iter().map(|m| m.data.as_str()).collect();
        assert_eq!(data, ["1", "{\"a\":2}"]);
        delete_queue(&mut client);
    }
    let counts = json!({"count": 2, "queued": 2, "duplicate": 0, "error": 0});
    for name in ["A2", "B2"] {
        assert_eq!(push(&mut client, &vectors[name].1), (201, counts.clone()), "{name}");
        delete_queue(&mut client);
    }
}

#[test]
fn transaction_ids_of_a_plain_body_make_retries_safe() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    let (_, first) = push(&mut client, &vectors["A3"].1);
    assert_eq!(fates(&first), [(0, "queued", 0), (1, "queued", 1)]);
    assert_eq!(first[0]["transaction_id"], "t-1");
    assert_eq!(first[1]["transaction_id"], first[1]["message_id"]);
    let (_, again) = push(&mut client, &vectors["A3"].1);
    assert_eq!(fates(&again), [(0, "duplicate", 0), (1, "queued", 2)]);
    assert_eq!(again[0]["message_id"], first[0]["message_id"]);
    delete_queue(&mut client);

    let (_, answer) = push(&mut client, &vectors["A4"].1);
    assert_eq!(fates(&answer), [(0, "queued", 0), (1, "queued", 0)]);
    assert_eq!(answer[0]["transaction_id"], "t-1");
    let popped = client.pop("q/partition/Default");
    assert_eq!((popped.len(), popped[0].data.as_str()), (1, "null"));
}

#[test]
fn a_body_without_messages_creates_nothing() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    for name in ["A5", "A6", "C3"] {
        assert_eq!(push(&mut client, &vectors[name].1), (201, json!([])), "{name}");
    }
    assert_eq!(client.get("/api/v1/resources/queues/q").unwrap().status, 404);
}

#[test]
fn client_built_frames_keep_their_ids() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    let second = "01a22781-2005-7001-8f9a-edaecbad2f22";
    let (status, answer) = push(&mut client, &vectors["C1"].1);
    assert_eq!((status, fates(&answer)), (201, vec![(0, "queued", 0), (1, "queued", 1)]));
    assert_eq!(answer[0]["message_id"], "01a22781-2005-7000-82e2-414724f3d8e9");
    assert_eq!(answer[0]["transaction_id"], "t-1");
    assert_eq!(
        (&answer[1]["message_id"], &answer[1]["transaction_id"]),
        (&json!(second), &json!(second))
    );
    let (_, again) = push(&mut client, &vectors["C1"].1);
    assert_eq!(fates(&again), [(0, "duplicate", 0), (1, "duplicate", 1)]);
    assert_eq!(again[1]["message_id"], second);
    assert_eq!(client.metric("groupsKept"), 1);
    assert_eq!(client.metric("groupsRecoded"), 0);
    delete_queue(&mut client);

    let counts = |queued, duplicate| json!({"count": 2, "queued": queued, "duplicate": duplicate, "error": 0});
    assert_eq!(push(&mut client, &vectors["C2"].1), (201, counts(2, 0)));
    assert_eq!(push(&mut client, &vectors["C2"].1), (201, counts(0, 2)));
    delete_queue(&mut client);

    let (_, answer) = push(&mut client, &vectors["N0"].1);
    assert_eq!(answer[0]["message_id"], "01900000-0000-7000-8000-000000000001");
    assert_eq!(answer[1]["message_id"], "01900000-0000-7000-8000-000000000002");
}

#[test]
fn a_repeat_inside_a_group_is_left_out_of_what_is_stored() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    let (_, answer) = push(&mut client, &vectors["R1"].1);
    assert_eq!(fates(&answer), [(0, "queued", 0), (1, "duplicate", 0)]);
    assert_eq!(answer[0]["message_id"], answer[1]["message_id"]);
    assert_eq!(client.metric("groupsRecoded"), 1);
    let popped = client.pop("q/partition/p");
    assert_eq!((popped.len(), popped[0].data.as_str()), (1, "1"));
}

#[test]
fn damaged_and_dishonest_bodies_are_refused_whole() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    let refused = vectors.iter().filter(|(name, _)| name.starts_with('N') && **name != "N0");
    let mut count = 0;
    for (name, (title, body)) in refused {
        count += 1;
        let (status, answer) = push(&mut client, body);
        let expected = match *name {
            "N28" => (413, "payload_too_large"),
            // Not the magic of this form: read as JSON, which it is not either.
            _ => (400, "bad_body"),
        };
        assert_eq!((status, answer["code"].as_str().unwrap()), expected, "{name}: {title}");
        assert!(answer["error"].as_str().unwrap().len() > 10, "{name}: {answer}");
    }
    assert_eq!(count, 34);
    assert_eq!(client.get("/api/v1/resources/queues/q").unwrap().status, 404, "something stored");
    assert_eq!(client.metric("pushed"), 0);
}

#[test]
fn every_truncation_and_every_byte_more_is_refused() {
    let (vectors, broker) = (vectors(), broker());
    let mut client = broker.client();
    for name in ["A4", "B2", "C1"] {
        let body = &vectors[name].1;
        for end in 0..body.len() {
            let (status, _) = push(&mut client, &body[..end]);
            assert_eq!(status, 400, "{name} cut at {end}");
        }
        let longer = [&body[..], b"\0"].concat();
        assert_eq!(push(&mut client, &longer).0, 400, "{name} with a byte more");
    }
    assert_eq!(client.metric("pushed"), 0);
}

//! The name stamped into messages: the token's, whatever the body says, in every form of a push.

use serde_json::{Value, json};

use super::support::{Broker, Client, Options, Wire};
use super::{SECRET, ask, bearer, broker, hs256, refused, token, with_secret};

#[allow(dead_code, reason = "the tests of the binary forms read framed answers with it, too")]
#[path = "../binary_push/bodies.rs"]
mod bodies;

use bodies::{COUNTS, IDS, Item, ZSTD, framed, item, plain};

fn token_of(sub: &Value) -> String {
    bearer(&hs256(json!({ "sub": sub, "role": "read-write" })))
}

fn items(queue: &str) -> Vec<Item> {
    (0..30)
        .map(|n| {
            let partition = ["a", "b", "c"][n / 10];
            item(queue, partition, &format!("t{n}"), &format!("{{\"n\":{n}}}"))
        })
        .collect()
}

fn json_body(items: &[Item]) -> Vec<u8> {
    let items: Vec<Value> = items
        .iter()
        .map(|item| {
            json!({
                "queue": item.queue, "partition": item.partition, "transactionId": item.transaction_id,
                "payload": serde_json::from_str::<Value>(&item.payload).unwrap(),
                "producerSub": "mallory", "producer": "mallory", "sub": "mallory",
            })
        })
        .collect();
    json!({ "items": items, "producerSub": "mallory" }).to_string().into_bytes()
}

/// Every form of a push, by name.
fn forms(queue: &str) -> Vec<(&'static str, Vec<u8>)> {
    let items = items(queue);
    vec![
        ("json", json_body(&items)),
        ("plain", plain(&items, IDS)),
        ("plain zstd", plain(&items, IDS | ZSTD)),
        ("framed", framed(&items, 0, 1).0),
        ("framed counts", framed(&items, COUNTS, 1).0),
    ]
}

fn popped(client: &mut Client, queue: &str, authorization: &str) -> Vec<Value> {
    let target = format!("/api/v1/pop/queue/{queue}?batch=100&partitions=10&autoAck=true");
    let mut all = Vec::new();
    loop {
        let answer = ask(client, "GET", &target, Some(authorization), b"");
        if answer.status == 204 {
            return all;
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        all.extend(answer.json()["messages"].as_array().unwrap().iter().cloned());
    }
}

/// That all messages are there, in order, whole, and of this producer.
fn check(form: &str, messages: &[Value], producer: &Value) {
    assert_eq!(messages.len(), 30, "{form}");
    for partition in ["a", "b", "c"] {
        let of: Vec<&Value> = messages.iter().filter(|m| m["partition"] == partition).collect();
        for (at, message) in of.iter().enumerate() {
            let n = 10 * (partition.as_bytes()[0] - b'a') as usize + at;
            assert_eq!(message["data"], json!({ "n": n }), "{form}");
            assert_eq!(message["transactionId"], format!("t{n}"), "{form}");
            assert_eq!(message["offset"], at, "{form}");
            assert_eq!(&message["producerSub"], producer, "{form}: {message}");
        }
    }
}

#[test]
fn every_form_of_a_push_is_stamped_with_the_tokens_sub() {
    let mut broker = with_secret();
    let mut client = broker.client();
    let ann = token_of(&json!("ann \"A\" é"));
    for (form, body) in forms("stamped") {
        let queue = form.replace(' ', "-");
        let body = match form {
            "json" => json_body(&items(&queue)),
            _ => forms(&queue).into_iter().find(|(name, _)| *name == form).map_or(body, |(_, b)| b),
        };
        let answer = ask(&mut client, "POST", "/api/v1/push", Some(&ann), &body);
        assert_eq!(answer.status, 201, "{form}: {}", answer.text());
        check(form, &popped(&mut client, &queue, &ann), &json!("ann \"A\" é"));
    }
    // Six groups came framed; each had to be written anew, and is kept compressed.
    assert_eq!((client.metric("groupsKept"), client.metric("groupsRecoded")), (0, 6));
    // What is stored is stamped: a message that nobody has taken yet tells it after a restart.
    let body = framed(&items("kept"), 0, 100).0;
    assert_eq!(ask(&mut client, "POST", "/api/v1/push", Some(&ann), &body).status, 201);
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    check("after a restart", &popped(&mut client, "kept", &ann), &json!("ann \"A\" é"));
}

#[test]
fn a_token_without_a_sub_stamps_nothing_and_its_frames_are_kept() {
    let broker = with_secret();
    let mut client = broker.client();
    for (n, sub) in [json!(null), json!("")].into_iter().enumerate() {
        let nobody = token_of(&sub);
        for (form, _) in forms("x") {
            let queue = format!("{}-{n}", form.replace(' ', "-"));
            let (_, body) = forms(&queue).into_iter().find(|(name, _)| *name == form).unwrap();
            let answer = ask(&mut client, "POST", "/api/v1/push", Some(&nobody), &body);
            assert_eq!(answer.status, 201, "{form}: {}", answer.text());
            check(form, &popped(&mut client, &queue, &nobody), &Value::Null);
        }
    }
    assert_eq!((client.metric("groupsKept"), client.metric("groupsRecoded")), (12, 0));
}

#[test]
fn a_skipped_path_has_no_producer_even_with_a_token() {
    let broker = broker(&[("JWT_SECRET", SECRET), ("JWT_SKIP_PATHS", "/api/v1/push")]);
    let mut client = broker.client();
    let ann = token_of(&json!("ann"));
    for authorization in [None, Some("garbage"), Some(ann.as_str())] {
        let body = br#"{"items":[{"queue":"q","payload":1,"producerSub":"mallory"}]}"#;
        assert_eq!(ask(&mut client, "POST", "/api/v1/push", authorization, body).status, 201);
    }
    let messages = popped(&mut client, "q", &ann);
    assert_eq!(messages.len(), 3);
    assert!(messages.iter().all(|message| message["producerSub"].is_null()), "{messages:?}");
}

#[test]
fn framed_pops_carry_the_stamp_in_the_stored_frames() {
    let broker = with_secret();
    let mut client = broker.client();
    let ann = token_of(&json!("ann"));
    for (form, _) in forms("x") {
        let queue = form.replace(' ', "-");
        let (_, body) = forms(&queue).into_iter().find(|(name, _)| *name == form).unwrap();
        assert_eq!(ask(&mut client, "POST", "/api/v1/push", Some(&ann), &body).status, 201);
        let target =
            format!("/api/v1/pop/queue/{queue}/partition/a?batch=10&autoAck=true&frames=true");
        let answer = ask(&mut client, "GET", &target, Some(&ann), b"");
        assert_eq!(answer.header("content-type"), Some("application/x-queen-pop"), "{form}");
        let bytes = match form.starts_with("framed") {
            // The one zstd frame of the one batch is the end of the answer.
            true => {
                let magic = [0x28, 0xB5, 0x2F, 0xFD];
                let at = answer.body.windows(4).position(|four| four == magic).unwrap();
                zstd::stream::decode_all(&answer.body[at..]).unwrap()
            }
            false => answer.body.clone(),
        };
        // flags 2 | id | u16 len, "t0" | u16 len, "ann" | payload, ten times.
        let stamp = b"\x03\x00ann{\"n\":";
        let count = bytes.windows(stamp.len()).filter(|window| window == stamp).count();
        assert_eq!(count, 10, "{form}");
    }
}

#[test]
fn duplicates_and_encryption_keep_the_stamp() {
    let environment = [
        ("JWT_ENABLED", "true".to_owned()),
        ("JWT_SECRET", SECRET.to_owned()),
        ("QUEEN_ENCRYPTION_KEY", "0f".repeat(32)),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let broker = Broker::start(Options { environment, ..Options::default() });
    let mut client = broker.client();
    let admin = bearer(&token("admin"));
    let body = br#"{"queue":"sealed","options":{"encryptionEnabled":true}}"#;
    let answer = ask(&mut client, "POST", "/api/v1/configure", Some(&admin), body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    for queue in ["sealed", "clear"] {
        let all = items(queue);
        // The first half by ann, then everything by bob: the first half is a duplicate.
        let first = framed(&all[..15], 0, 1).0;
        let (ann, bob) = (token_of(&json!("ann")), token_of(&json!("bob")));
        assert_eq!(ask(&mut client, "POST", "/api/v1/push", Some(&ann), &first).status, 201);
        let all = framed(&all, COUNTS, 100).0;
        let counts = ask(&mut client, "POST", "/api/v1/push", Some(&bob), &all).json();
        assert_eq!((&counts["queued"], &counts["duplicate"]), (&json!(15), &json!(15)));
        let messages = popped(&mut client, queue, &bob);
        assert_eq!(messages.len(), 30);
        for message in messages {
            let n = message["data"]["n"].as_u64().unwrap();
            let by = if n < 15 { "ann" } else { "bob" };
            assert_eq!(message["producerSub"], by, "{queue} {n}");
        }
    }
}

#[test]
fn a_sub_is_stamped_whole_or_the_push_is_refused() {
    let broker = with_secret();
    let mut client = broker.client();
    let body = br#"{"items":[{"queue":"q","payload":1}]}"#;
    let long = token_of(&json!("s".repeat(255)));
    assert_eq!(ask(&mut client, "POST", "/api/v1/push", Some(&long), body).status, 201);
    let longer = token_of(&json!("s".repeat(256)));
    let answer = ask(&mut client, "POST", "/api/v1/push", Some(&longer), body);
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("bad_request")));
    assert!(answer.text().contains("256"), "{}", answer.text());
    // It may read all the same.
    let messages = popped(&mut client, "q", &longer);
    assert_eq!(messages[0]["producerSub"], "s".repeat(255));
    // A million small messages under a long name are more than a push may grow to.
    let many = vec![item("q", "a", "t", "1"); 300_000];
    for body in [plain(&many, IDS), framed(&many, 0, 1).0] {
        let answer = ask(&mut client, "POST", "/api/v1/push", Some(&long), &body);
        assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("payload_too_large")));
    }
    refused(
        &ask(&mut client, "POST", "/api/v1/push", Some(&bearer(&token("read-only"))), body),
        403,
        "Insufficient permissions",
    );
}

/// The binary form of a transaction: `framed` groups behind an empty head.
fn binary_transaction(items: &[Item]) -> Vec<u8> {
    let pushed = framed(items, 0, 1).0;
    [b"QTB1\0".as_slice(), &0u32.to_le_bytes(), &pushed[5..]].concat()
}

#[test]
fn what_a_transaction_pushes_is_stamped() {
    let broker = with_secret();
    let mut client = broker.client();
    let ann = token_of(&json!("ann"));
    let pushes: Vec<Value> = items("json")
        .iter()
        .map(|item| {
            json!({
                "queue": item.queue, "partition": item.partition, "transactionId": item.transaction_id,
                "payload": serde_json::from_str::<Value>(&item.payload).unwrap(),
                "producerSub": "mallory", "traceId": "00000000-0000-4000-8000-000000000001",
            })
        })
        .collect();
    let body = json!({ "operations": [{ "type": "push", "items": pushes }] }).to_string();
    let binary = binary_transaction(&items("binary"));
    for (queue, body) in [("json", body.into_bytes()), ("binary", binary)] {
        let answer = ask(&mut client, "POST", "/api/v1/transaction", Some(&ann), &body);
        assert_eq!((answer.status, &answer.json()["success"]), (200, &json!(true)), "{queue}");
        check(queue, &popped(&mut client, queue, &ann), &json!("ann"));
    }
    assert_eq!((client.metric("groupsKept"), client.metric("groupsRecoded")), (0, 3));
    let longer = token_of(&json!("s".repeat(256)));
    let body = br#"{"operations":[{"type":"push","queue":"q","payload":1}]}"#;
    let answer = ask(&mut client, "POST", "/api/v1/transaction", Some(&longer), body);
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("bad_request")));
}

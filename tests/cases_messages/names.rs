//! Names are opaque: any text, compared by its bytes, up to their budget.

use serde_json::json;

use crate::support::{Wire, encode, quoted};
use crate::broker;

#[test]
fn any_text_is_a_name_and_no_bad_utf8_is() {
    let broker = broker();
    let mut client = broker.client();
    let names = [
        "queue-🐇", "orders/../../api/overview", "q?x=1", "q#f", "..", ".", "a b", "%41", "a+b", "\u{0}",
        "\"", "\\", "Ünïcödé", "e\u{301}", "\u{e9}", "//", "a;b", "\r\n",
    ];
    for (number, name) in names.iter().enumerate() {
        let pushed = client.push_one(name, name, "t", &number.to_string());
        assert_eq!((&pushed["queueName"], &pushed["offset"]), (&json!(name), &json!(0)));
    }
    for (number, name) in names.iter().enumerate() {
        let name = encode(name);
        let popped = client.pop(&format!("{name}/partition/{name}?autoAck=true"));
        assert_eq!((popped.len(), popped[0].data.clone()), (1, number.to_string()), "{name}");
        assert_eq!(client.get(&format!("/api/v1/resources/queues/{name}")).unwrap().status, 200);
        let gone = client.delete(&format!("/api/v1/resources/queues/{name}")).unwrap().json();
        assert_eq!(gone["existed"], true, "{name}");
    }
    for bad in ["%FF", "%C0%AF", "%ED%A0%80", "%F5%80%80%80", "%", "%2", "%zz", "a%"] {
        for target in [
            format!("/api/v1/pop/queue/{bad}"),
            format!("/api/v1/pop/queue/q/partition/{bad}"),
            format!("/api/v1/pop/queue/q?consumerGroup={bad}"),
        ] {
            let status = client.get(&target).unwrap().status;
            assert!(status == 400 || (target.contains('?') && status < 300), "{status}: {target}");
        }
    }
    let answer = client.post("/api/v1/push", b"{\"items\":[{\"queue\":\"\xc0\xaf\",\"payload\":1}]}");
    assert_eq!(answer.unwrap().status, 400);
    // No name became a path on the disk.
    let mut found = Vec::new();
    for entry in std::fs::read_dir(broker.data_dir()).unwrap() {
        found.push(entry.unwrap().file_name().into_string().unwrap());
    }
    assert!(!found.iter().any(|name| names.contains(&name.as_str())), "{found:?}");
}

#[test]
fn a_name_over_the_budget_is_413_for_that_request_and_nothing_stops() {
    let broker = broker();
    let mut client = broker.client();
    let name = |bytes: usize| "n".repeat(bytes);
    let push = |queue: &str, partition: &str, tx: &str| {
        format!("{{\"items\":[{{\"queue\":\"ok\",\"payload\":1}},{{\"queue\":{},\"partition\":{},\
                 \"transactionId\":{},\"traceId\":{},\"payload\":1}}]}}",
            quoted(queue), quoted(partition), quoted(tx), quoted(tx))
    };
    // The budget is 447 bytes with the 36 of the tenant: 411 are left.
    for (queue, partition, status) in [
        (1, 410, 201), (1, 411, 413), (200, 211, 201), (200, 212, 413), (411, 0, 413), (404, 7, 201),
        (446, 1, 413), (447, 1, 413), (448, 1, 413), (511, 1, 413), (512, 1, 413), (65_535, 1, 413),
        (1, 65_536, 413),
    ] {
        let body = push(&name(queue), &name(partition), "t");
        let answer = client.post("/api/v1/push", body).unwrap();
        assert_eq!(answer.status, status, "{queue} + {partition}: {}", answer.text());
        if status == 413 {
            assert_eq!(answer.json()["code"], "name_too_long");
        }
    }
    let stored = client.pop("ok?batch=1000&autoAck=true").len();
    assert_eq!(stored, 3, "a refused request stores none of its items");
    let group = |bytes| format!("/api/v1/pop/queue/q?consumerGroup={}", name(bytes));
    assert_eq!(client.get(&group(410)).unwrap().status, 204);
    for bytes in [411, 447, 512, 15_000] {
        let answer = client.get(&group(bytes)).unwrap();
        assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("name_too_long")));
    }
    let popped = client.get(&format!("/api/v1/pop/queue/{}", name(500))).unwrap();
    assert_eq!(popped.status, 413);
    let configured = client.post("/api/v1/configure", json!({"queue": name(500)}).to_string());
    assert_eq!(configured.unwrap().status, 413);
    for bytes in [65_535, 65_536, 100_000] {
        let tx = name(bytes);
        let answer = client.post("/api/v1/push", push("tx", "p", &tx)).unwrap();
        let wanted = if bytes == 65_535 { 201 } else { 400 };
        assert_eq!(answer.status, wanted, "a transaction id of {bytes}: {}", answer.text());
    }
    let popped = client.pop("tx");
    assert_eq!((popped.len(), popped[0].transaction_id.len()), (1, 65_535));
    assert_eq!(client.ack(&popped[0], "completed")["success"], true);
    for bytes in [447, 65_535, 100_000] {
        let mut held = popped[0].clone();
        held.lease_id = name(bytes);
        assert_eq!(client.ack(&held, "completed")["success"], false);
        let target = format!("/api/v1/lease/{}/extend", name(bytes.min(10_000)));
        let answer = client.post(&target, "{}").unwrap();
        assert_eq!((answer.status, &answer.json()["success"]), (200, &json!(false)));
    }
    assert_eq!(client.get("/health").unwrap().status, 200);
}

#[test]
fn foreign_files_in_the_data_directory_do_not_stop_the_start() {
    let mut broker = broker();
    broker.client().push_one("f", "p", "a", "1");
    assert!(broker.terminate().success());
    let names = [".DS_Store", "1.bak", "99999999999999999999.log", "99999999999999999999.seg", "x.seg"];
    for name in names {
        std::fs::write(broker.data_dir().join(name), b"foreign").unwrap();
        std::fs::write(broker.data_dir().join("shard-0000").join(name), b"foreign").unwrap();
    }
    broker.restart();
    assert_eq!(broker.client().pop("f").len(), 1);
    for name in names {
        let kept = std::fs::read(broker.data_dir().join("shard-0000").join(name)).unwrap();
        assert_eq!(kept, b"foreign", "{name} is not ours to touch");
    }
}

#[test]
fn names_that_read_the_same_when_joined_stay_apart() {
    let broker = broker();
    let mut client = broker.client();
    let mut pairs = Vec::new();
    for separator in ["/", "\u{0}", ":", "|", ".", " "] {
        pairs.push(("a".to_owned(), format!("b{separator}c")));
        pairs.push((format!("a{separator}b"), "c".to_owned()));
    }
    pairs.push(("ab".to_owned(), "c".to_owned()));
    pairs.push(("a".to_owned(), "bc".to_owned()));
    for (number, (queue, partition)) in pairs.iter().enumerate() {
        let pushed = client.push_one(queue, partition, "same", &number.to_string());
        assert_eq!((&pushed["status"], &pushed["offset"]), (&json!("queued"), &json!(0)));
    }
    for (number, (queue, partition)) in pairs.iter().enumerate() {
        let target = format!("{}/partition/{}?autoAck=true", encode(queue), encode(partition));
        let popped = client.pop(&target);
        assert_eq!(popped.iter().map(|m| m.data.clone()).collect::<Vec<_>>(), [number.to_string()]);
        assert_eq!(popped[0].partition, *partition);
    }
}

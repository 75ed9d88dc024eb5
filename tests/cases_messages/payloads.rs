//! Payloads of every size and shape come back as the bytes that were pushed.

use serde_json::json;

use crate::broker;
use crate::support::{Broker, Options, Wire};

#[test]
fn every_json_value_is_popped_as_the_bytes_that_were_pushed() {
    let mut broker = broker();
    let mut client = broker.client();
    let payloads = [
        r#"{"a":"\u0000"}"#,
        r#"{"\u0000":1,"":2}"#,
        r#"{"$serde_json::private::Number":"1"}"#,
        r#"{"$serde_json::private::RawValue":"[1"}"#,
        r#"{"a":1,"a":2}"#,
        "null",
        r#""""#,
        "0",
        "-0.0",
        "1e400",
        "123456789012345678901234567890.1234567890123456789",
        "false",
        "[]",
        "{}",
        r#"{ "spaced" :	[ 1 , 2 ] }"#,
        r#""\ud83d\udc07 🐇 \/ \u2028""#,
        r#""lone \ud800 half""#,
    ];
    for (number, payload) in payloads.iter().enumerate() {
        let result = client.push_one("odd", "p", &format!("t{number}"), payload);
        assert_eq!(result["status"], "queued", "{payload}");
    }
    for kill in [false, true] {
        if kill {
            broker.kill9();
            broker.restart();
        }
        let target =
            format!("odd?batch=100&autoAck=true&consumerGroup=g{kill}&subscriptionMode=all");
        let popped = broker.client().pop(&target);
        let found: Vec<&str> = popped.iter().map(|m| m.data.as_str()).collect();
        assert_eq!(found, payloads);
    }
}

#[test]
fn a_bad_envelope_is_400_and_stores_nothing() {
    let broker = broker();
    let mut client = broker.client();
    let bad = [
        "",
        "[]",
        "{",
        "{}",
        "{\"items\":{}}",
        "{\"items\":[{\"queue\":\"bad\"}]}",
        "{\"items\":[{\"payload\":1}]}",
        "{\"items\":[{\"queue\":1,\"payload\":1}]}",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":}]}",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":01}]}",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":1,}]}",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":1,\"transactionId\":7}]}",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":1}]} x",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":\"\u{1}\"}]}",
        "{\"items\":[{\"queue\":\"bad\",\"payload\":1},{\"queue\":\"bad\"}]}",
    ];
    for body in bad {
        let answer = client.post("/api/v1/push", body).unwrap();
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("bad_body")), "{body}");
    }
    let unnamed = client.post("/api/v1/push", "{\"items\":[{\"queue\":\"\",\"payload\":1}]}");
    assert_eq!(unnamed.unwrap().status, 400, "no name");
    let answer =
        client.post("/api/v1/push", b"{\"items\":[{\"queue\":\"bad\",\"payload\":\"\xff\"}]}");
    assert_eq!(answer.unwrap().status, 400, "not UTF-8");
    assert!(client.pop("bad").is_empty(), "nothing was stored");
    // The envelope's keys twice: refused, or one of them counts; never half of each.
    let twice = "{\"items\":[{\"queue\":\"tw\",\"payload\":1,\"payload\":2}]}";
    let answer = client.post("/api/v1/push", twice).unwrap();
    match answer.status {
        400 => assert!(client.pop("tw").is_empty()),
        status => {
            assert_eq!(status, 201);
            assert_eq!(client.pop("tw")[0].data, "2", "the last one counts, as JSON readers do");
        }
    }
}

#[test]
fn deep_nesting_is_refused_or_stored_and_never_kills_the_process() {
    let broker = broker();
    let mut client = broker.client();
    let deep = [
        ("[".repeat(100_000), false),
        (format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), true),
        (format!("{}1{}", "{\"a\":".repeat(1_200), "}".repeat(1_200)), true),
        ("{\"a\":".repeat(1_200), false),
    ];
    for (number, (payload, valid)) in deep.iter().enumerate() {
        let body = format!("{{\"items\":[{{\"queue\":\"deep{number}\",\"payload\":{payload}}}]}}");
        let answer = client.post("/api/v1/push", body).unwrap();
        println!("nesting {number}: {}", answer.status);
        match answer.status {
            201 => {
                assert!(valid, "no JSON was stored");
                assert!(client.pop(&format!("deep{number}"))[0].data == *payload);
            }
            status => assert_eq!(status, 400),
        }
    }
    for target in ["/api/v1/ack", "/api/v1/ack/batch", "/api/v1/configure"] {
        let answer = client.post(target, "[".repeat(100_000)).unwrap();
        assert_eq!(answer.status, 400, "{target}");
        let keyed = format!("{{\"queue\":{}", "[".repeat(100_000));
        assert_eq!(client.post(target, keyed).unwrap().status, 400, "{target}");
    }
    assert_eq!(client.get("/health").unwrap().status, 200);
}

#[test]
fn payloads_around_every_block_size_are_byte_equal_after_a_restart() {
    let arguments = vec!["--segment-bytes".to_owned(), (8 << 20).to_string()];
    let mut broker = Broker::start(Options { arguments, ..Options::default() });
    let mut sizes: Vec<usize> = Vec::new();
    for power in [12, 13, 16, 18, 20, 22] {
        let size = 1usize << power;
        sizes.extend([size - 1, size, size + 1]);
    }
    let payload =
        |size: usize| format!("\"{}\"", "abcdefgh".repeat(size / 8 + 1).get(..size - 2).unwrap());
    for (number, size) in sizes.iter().enumerate() {
        let mut client = broker.client();
        let body = format!(
            "{{\"items\":[{{\"queue\":\"big\",\"partition\":\"p{}\",\"transactionId\":\"{number}\",\"payload\":{}}}]}}",
            number % 3,
            payload(*size)
        );
        let answer = client.post("/api/v1/push", body).unwrap();
        assert_eq!(answer.status, 201);
        assert_eq!(answer.json()[0]["status"], "queued", "{size}");
    }
    for kill in [false, true] {
        if kill {
            broker.kill9();
            broker.restart();
        }
        let mut seen = 0;
        for partition in 0..3 {
            let target = format!(
                "big/partition/p{partition}?batch=100&autoAck=true&consumerGroup=g{kill}&subscriptionMode=all"
            );
            for message in broker.client().pop(&target) {
                let size = sizes[message.transaction_id.parse::<usize>().unwrap()];
                assert!(message.data == payload(size), "{size} bytes came back changed");
                seen += 1;
            }
        }
        assert_eq!(seen, sizes.len());
    }
}

#[test]
fn an_item_larger_than_a_segment_is_refused_and_the_rest_of_the_push_is_stored() {
    let arguments = vec!["--segment-bytes".to_owned(), (4 << 20).to_string()];
    let mut broker = Broker::start(Options { arguments, ..Options::default() });
    let mut client = broker.client();
    for mib in [5usize, 17, 40] {
        let body = format!(
            "{{\"items\":[{{\"queue\":\"huge\",\"partition\":\"a\",\"payload\":\"{}\"}},\
             {{\"queue\":\"huge\",\"partition\":\"b\",\"payload\":{mib}}}]}}",
            "x".repeat(mib << 20)
        );
        let answer = client.post("/api/v1/push", body).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
        let results = answer.json();
        println!("{mib} MiB in a 4 MiB segment: {}", results[0]["status"]);
        assert_eq!(results[1]["status"], "queued");
        let popped = client.pop("huge/partition/a?autoAck=true");
        match results[0]["status"].as_str().unwrap() {
            "queued" => assert_eq!(popped[0].data.len(), (mib << 20) + 2),
            "error" => {
                assert!(results[0]["error"].is_string() && results[0].get("offset").is_none());
                assert!(popped.is_empty());
            }
            status => panic!("{status}"),
        }
    }
    broker.kill9();
    broker.restart();
    assert_eq!(broker.client().pop("huge/partition/b").len(), 3);
}

#[test]
fn binary_pushes_are_refused_and_store_nothing() {
    let broker = broker();
    let mut client = broker.client();
    let group = |count: u32, length: u32| {
        let mut body = b"QPB1\0\x01\0\0\0\x03\0bin\x01\0p".to_vec();
        body.extend(count.to_le_bytes());
        body.extend(length.to_le_bytes());
        body.push(b'1');
        body
    };
    let mut trailing = group(1, 1);
    trailing.extend(b"more");
    let forms = [
        group(1, 2),
        group(1_000_000, 1),
        group(1, u32::MAX),
        group(u32::MAX, u32::MAX),
        group(0, 0),
        trailing,
        b"QPB1".to_vec(),
        b"QPB1\xff".to_vec(),
        b"QTB1\0\0\0\0\0".to_vec(),
        b"QPX".to_vec(),
        Vec::new(),
    ];
    for body in &forms {
        let head = format!(
            "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Type: application/x-queen-push\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        client.send_raw(head.as_bytes()).unwrap();
        client.send_raw(body).unwrap();
        let answer = client.read_response(false).unwrap();
        assert_eq!(answer.status, 400, "to {}", body.escape_ascii());
        assert!(answer.json()["error"].is_string());
    }
    assert!(client.pop("bin").is_empty(), "nothing stored, and the connection goes on");
}

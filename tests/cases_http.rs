//! Requests that no well-behaved client sends, on real sockets: framing that two parsers may read
//! differently, pipelines, heads and bodies over their limits, odd starts, half-closed and slow
//! clients, too many connections and too few descriptors.
//!
//! Each gets the right status, and the connection goes on or ends as HTTP/1.1 says; what is behind
//! a refused request is never run as a request.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

mod support;

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Broker, Client, Options, Request, Response, Usage, Wire, within};

const SOON: Duration = Duration::from_secs(3);

fn start(arguments: &[&str]) -> Broker {
    let arguments = arguments.iter().map(|&a| a.to_owned()).collect();
    Broker::start(Options { arguments, ..Options::default() })
}

/// A push of one message as raw bytes, to stand behind something that must not let it run.
fn smuggled(queue: &str) -> String {
    let body = format!("{{\"items\":[{{\"queue\":\"{queue}\",\"payload\":1}}]}}");
    format!("POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends bytes on a fresh connection and reads one answer.
fn ask(broker: &Broker, bytes: impl AsRef<[u8]>) -> (Response, Client) {
    let mut client = broker.client();
    client.set_read_timeout(Duration::from_secs(15)).unwrap();
    // The broker may answer and close before it has taken everything.
    let sent = client.send_raw(bytes.as_ref());
    let answer = client.read_response(false);
    let answer = answer.unwrap_or_else(|error| panic!("{error}, sent {sent:?}: no answer"));
    (answer, client)
}

fn assert_refused(broker: &Broker, bytes: impl AsRef<[u8]>, status: u16) {
    let bytes = bytes.as_ref();
    let shown = bytes[..bytes.len().min(120)].escape_ascii().to_string();
    let (answer, mut client) = ask(broker, bytes);
    assert_eq!(answer.status, status, "{shown}: {}", answer.text());
    assert_eq!(answer.header("connection"), Some("close"), "{shown}");
    assert!(client.closed_within(SOON).unwrap(), "still open after {shown}");
}

#[test]
fn two_readings_of_one_body_length_are_refused_and_nothing_behind_them_runs() {
    let broker = start(&[]);
    let next = smuggled("smuggled");
    let heads = [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, chunked",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: -1",
        "Content-Length: ",
        "Content-Length: 99999999999999999999",
        "Content-Length : 5",
        "Transfer-Encoding : chunked",
        " Content-Length: 5",
        "Content-Length: 5\n\n",
    ];
    for head in heads {
        let bytes =
            format!("POST /api/v1/push HTTP/1.1\r\nHost: l\r\n{head}\r\n\r\n0\r\n\r\n{next}");
        let (answer, mut client) = ask(&broker, bytes);
        // One length said twice alike may be read as one, a huge one is a body too large, a coding
        // that is not known is not implemented; each but the first ends the connection.
        assert!(matches!(answer.status, 400 | 413 | 501), "{head}: {}", answer.status);
        assert_eq!(answer.header("connection"), Some("close"), "{head}");
        assert!(client.closed_within(SOON).unwrap(), "{head}");
    }
    let on_10 =
        format!("POST /api/v1/push HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{next}");
    assert_refused(&broker, on_10, 400);
    assert!(broker.client().pop("smuggled").is_empty(), "a smuggled request was run");
}

#[test]
fn malformed_chunks_are_400_and_split_ones_are_read() {
    let broker = start(&[]);
    let head = "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n";
    let bad = [
        "x\r\n",
        "-1\r\n",
        "\r\n",
        "5\r\nhelloX\r\n",
        "ffffffffffffffff\r\n",
        "1 \r\n{\r\n",
        "5\nhello\r\n",
        "0x5\r\nhello\r\n",
    ];
    for chunk in bad {
        let (answer, mut client) = ask(&broker, format!("{head}{chunk}{}", smuggled("chunk")));
        assert!(matches!(answer.status, 400 | 413), "{chunk:?}: {}", answer.status);
        assert!(client.closed_within(SOON).unwrap(), "{chunk:?}");
    }
    assert!(broker.client().pop("chunk").is_empty());
    let body = "{\"items\":[{\"queue\":\"split\",\"payload\":\"body in pieces\"}]}";
    let mut bytes = head.to_owned();
    for piece in body.as_bytes().chunks(7) {
        bytes += &format!("{:X};ext=\"v\"\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece));
    }
    bytes += "0\r\nTrailer: dropped\r\n\r\n";
    let mut client = broker.client();
    for byte in bytes.as_bytes().chunks(11) {
        client.send_raw(byte).unwrap();
        thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(client.read_response(false).unwrap().status, 201);
    assert_eq!(client.pop("split").len(), 1);
}

#[test]
fn a_hundred_pipelined_pushes_get_a_hundred_answers_in_order() {
    let broker = start(&[]);
    let body = |n: usize| {
        format!(
            "{{\"items\":[{{\"queue\":\"pipe\",\"partition\":\"p{}\",\"transactionId\":\"{n}\",\"payload\":{n}}}]}}",
            n % 3
        )
    };
    let bodies: Vec<String> = (0..100).map(body).collect();
    let requests: Vec<_> =
        bodies.iter().map(|b| Request::post("/api/v1/push", b.as_bytes())).collect();
    let mut client = broker.client();
    let answers = client.pipeline(&requests).unwrap();
    for (number, answer) in answers.iter().enumerate() {
        let result = &answer.json()[0];
        assert_eq!(
            (&result["transaction_id"], &result["offset"]),
            (&json!(number.to_string()), &json!(number / 3))
        );
    }
    assert_eq!(client.get("/health").unwrap().status, 200);
}

#[test]
fn answers_come_in_the_order_of_the_requests_also_behind_a_long_poll() {
    let broker = start(&[]);
    let mut client = broker.client();
    let push = "{\"items\":[{\"queue\":\"other\",\"payload\":1}]}";
    let start = Instant::now();
    let answers = client.pipeline(&[
        Request::get("/api/v1/pop/queue/empty?wait=true&timeout=700"),
        Request::post("/api/v1/push", push.as_bytes()),
        Request::get("/nowhere"),
        Request::get("/health"),
    ]);
    let statuses: Vec<u16> = answers.unwrap().iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [204, 201, 404, 200]);
    assert!(start.elapsed() >= Duration::from_millis(600), "the pop waits its time");
    assert_eq!(client.pop("other").len(), 1);
}

#[test]
fn heads_over_a_limit_are_431_or_414_and_the_connection_ends() {
    let broker = start(&[]);
    let get =
        |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\nHost: l\r\n{headers}\r\n");
    assert_refused(&broker, get("/health", &format!("X: {}\r\n", "v".repeat(64 << 10))), 431);
    assert_refused(&broker, get("/health", &"a: b\r\n".repeat(10_000)), 431);
    assert_refused(&broker, get("/health", &"a: b\r\n".repeat(97)), 431);
    assert_refused(&broker, get(&format!("/{}", "p".repeat(1 << 20)), ""), 414);
    assert_refused(&broker, get(&format!("/health?{}", "q".repeat(17 << 10)), ""), 414);
    let (answer, mut client) = ask(&broker, get(&format!("/{}", "/a".repeat(2_000)), ""));
    assert!(matches!(answer.status, 400 | 404 | 414), "{}", answer.status);
    drop(client.closed_within(Duration::from_millis(10)));
}

#[test]
fn a_body_over_the_limit_is_413_before_it_is_read_and_never_becomes_a_request() {
    let broker = start(&["--max-body-bytes", "65536"]);
    let next = smuggled("inside");
    let head = |length: usize| {
        format!("POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Length: {length}\r\n\r\n")
    };
    assert_refused(&broker, head(65_537), 413);
    assert_refused(&broker, head(1 << 40), 413);
    assert_refused(&broker, format!("{}{next}{}", head(65_537), " ".repeat(70_000)), 413);
    let chunked = "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n";
    let pieces = format!("4000\r\n{}\r\n", "x".repeat(0x4000)).repeat(5);
    assert_refused(&broker, format!("{chunked}{pieces}0\r\n\r\n{next}"), 413);
    let expecting = "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Length: 65537\r\nExpect: 100-continue\r\n\r\n";
    assert_refused(&broker, expecting, 413);
    assert!(broker.client().pop("inside").is_empty(), "a body was run as a request");
    let mut client = broker.client();
    let exact = format!(
        "{{\"items\":[{{\"queue\":\"fits\",\"payload\":\"{}\"}}]}}",
        "x".repeat(65_536 - 43)
    );
    assert!(exact.len() <= 65_536 && exact.len() > 65_500);
    assert_eq!(client.post("/api/v1/push", &exact).unwrap().status, 201);
}

#[test]
fn a_client_that_expects_100_gets_it_once_before_the_answer() {
    let broker = start(&[]);
    let mut client = broker.client();
    let body = "{\"items\":[{\"queue\":\"exp\",\"payload\":1}]}";
    let head = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nExpect: 100-Continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send_raw(head.as_bytes()).unwrap();
    assert_eq!(client.read_response(false).unwrap().status, 100);
    client.send_raw(body.as_bytes()).unwrap();
    assert_eq!(client.read_response(false).unwrap().status, 201);
    // With the body behind the head nobody waits for it.
    client.send_raw(format!("{head}{body}").as_bytes()).unwrap();
    let first = client.read_response(false).unwrap().status;
    let last = if first == 100 { client.read_response(false).unwrap().status } else { first };
    assert_eq!(last, 201);
    let (answer, _client) = ask(
        &broker,
        format!(
            "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nExpect: tea\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    );
    assert!(matches!(answer.status, 417 | 400), "{}", answer.status);
}

#[test]
fn every_method_is_answered_with_a_length_and_head_without_a_body() {
    let broker = start(&[]);
    for method in ["OPTIONS", "TRACE", "BREW", "get", "PATCH", "PUT", "CONNECT"] {
        for target in ["*", "/api/v1/push", "/health", "host:1"] {
            let (answer, _client) =
                ask(&broker, format!("{method} {target} HTTP/1.1\r\nHost: l\r\n\r\n"));
            assert!(
                matches!(answer.status, 400 | 404 | 405 | 501),
                "{method} {target}: {}",
                answer.status
            );
            assert!(answer.header("content-length").is_some(), "{method} {target}");
        }
    }
    let mut client = broker.client();
    for target in ["/health", "/metrics", "/", "/api/v1/resources/queues", "/nowhere"] {
        let get = client.get(target).unwrap();
        let head = client.request(&Request { method: "HEAD", target, body: None }).unwrap();
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{target}");
        assert!(head.header("content-length").is_some(), "{target}");
    }
    client.push_one("heads", "p", "a", "1");
    let head = Request { method: "HEAD", target: "/api/v1/pop/queue/heads", body: None };
    assert_eq!(client.request(&head).unwrap().status, 404);
    assert_eq!(client.pop("heads").len(), 1, "a HEAD takes no message");
}

#[test]
fn an_unknown_route_is_named_and_an_unbuilt_one_says_what_it_is() {
    let broker = start(&[]);
    let mut client = broker.client();
    let answer = client.get("/api/v2/no%20where?x=1").unwrap();
    assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("no_such_route")));
    assert_eq!(answer.json()["path"], "/api/v2/no%20where");
    for (method, target, name) in [
        ("POST", "/api/v1/kv", "kv"),
        ("GET", "/api/v1/kv/ns/key", "kv"),
        ("POST", "/api/v1/timers", "timers"),
        ("POST", "/api/v1/locks", "locks"),
        ("POST", "/api/v1/fetch", "fetch"),
        ("POST", "/streams/v1/cycle", "streams"),
        ("GET", "/api/v1/ephemeral/queues", "ephemeral"),
    ] {
        let body = (method == "POST").then_some(b"{}".as_slice());
        let answer = client.request(&Request { method, target, body }).unwrap();
        assert_eq!(answer.status, 501, "{target}");
        assert!(answer.text().contains(name), "{target}: {}", answer.text());
    }
}

#[test]
fn a_slow_head_and_a_slow_body_are_cut_and_others_are_served_meanwhile() {
    let broker = start(&[]);
    let mut crowd: Vec<Client> = (0..200).map(|_| broker.client()).collect();
    let begun = Instant::now();
    for client in &mut crowd {
        client.send_raw(b"GET /health HTTP/1.1\r\nHost: l\r\nX: ").unwrap();
    }
    let mut other = broker.client();
    let mut slowest = Duration::ZERO;
    let mut slow = crowd.remove(0);
    slow.set_read_timeout(Duration::from_millis(1)).unwrap();
    let answer = loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "a byte a second goes on for ever");
        let _ = slow.send_raw(b"a");
        let start = Instant::now();
        assert_eq!(other.get("/health").unwrap().status, 200);
        slowest = slowest.max(start.elapsed());
        thread::sleep(Duration::from_millis(400));
        match slow.read_response(false) {
            Ok(answer) => break answer,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((answer.status, answer.header("connection")), (408, Some("close")));
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(slowest < within(Duration::from_millis(500)), "others waited {slowest:?}");
    for client in &mut crowd {
        client.set_read_timeout(SOON).unwrap();
        assert_eq!(client.read_response(false).unwrap().status, 408);
    }
}

#[test]
fn without_a_free_descriptor_accepting_pauses_and_goes_on_later() {
    let broker = start(&[]);
    let pid = broker.pid().unwrap();
    let mut first = broker.client();
    assert_eq!(first.get("/health").unwrap().status, 200);
    limit_open_files(pid, Usage::of(pid).open_files as u64 + 30);
    let crowd: Vec<_> = (0..500).filter_map(|_| broker.connect().ok()).collect();
    thread::sleep(Duration::from_millis(500));
    let before = Usage::of(pid);
    // A connection that is in is served: a push may have to wait for a file's descriptor.
    assert_eq!(first.get("/health").unwrap().status, 200);
    let push = "{\"items\":[{\"queue\":\"fd\",\"partition\":\"p\",\"payload\":1}]}";
    first
        .send_raw(
            format!(
                "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Length: {}\r\n\r\n{push}",
                push.len()
            )
            .as_bytes(),
        )
        .unwrap();
    thread::sleep(Duration::from_secs(2));
    let after = Usage::of(pid);
    let used = after.cpu - before.cpu;
    println!("files={} cpu of 2 s at the limit: {used:?}", after.open_files);
    assert!(used < Duration::from_millis(1_200), "{used:?}: it spins");
    drop(crowd);
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let served = broker.connect().and_then(|mut client| {
            client.set_read_timeout(Duration::from_secs(2))?;
            client.get("/health")
        });
        if served.is_ok_and(|answer| answer.status == 200) {
            break;
        }
        assert!(Instant::now() < limit, "accepting did not go on:\n{}", broker.log_tail());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(first.read_response(false).unwrap().status, 201);
    assert_eq!(first.pop("fd").len(), 1);
}

/// Lowers the limit of a running process, as its checks at start would not have let it begin.
fn limit_open_files(pid: u32, files: u64) {
    let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
    let pid = libc::pid_t::try_from(pid).unwrap();
    // SAFETY: the new limit is a live struct, the old one is not asked for.
    let done =
        unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

#[test]
fn over_the_connection_limit_it_is_503_and_close_until_one_leaves() {
    let broker = start(&["--max-connections", "20"]);
    thread::sleep(Duration::from_millis(200));
    let mut served = Vec::new();
    let mut refused = 0;
    for _ in 0..60 {
        let mut client = broker.client();
        client.set_read_timeout(SOON).unwrap();
        let answer = client.get("/health").unwrap();
        match answer.status {
            200 => served.push(client),
            status => {
                assert_eq!(status, 503, "{}", answer.text());
                assert_eq!(answer.header("retry-after"), Some("1"));
                assert_eq!(answer.header("connection"), Some("close"));
                assert!(client.closed_within(SOON).unwrap());
                refused += 1;
            }
        }
    }
    assert_eq!((served.len(), refused), (20, 40));
    assert!(served.iter_mut().all(|client| client.get("/health").unwrap().status == 200));
    served.pop();
    let limit = Instant::now() + SOON;
    while broker.client().get("/health").unwrap().status != 200 {
        assert!(Instant::now() < limit, "a place that is free is given");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn odd_but_legal_starts_are_served_and_foreign_protocols_are_closed() {
    let broker = start(&[]);
    let (answer, mut client) = ask(&broker, "GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(answer.status, 200);
    assert!(client.closed_within(SOON).unwrap(), "1.0 closes");
    let (answer, mut client) =
        ask(&broker, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(answer.status, 200);
    if answer.header("connection") == Some("keep-alive") {
        assert_eq!(client.get("/health").unwrap().status, 200);
    }
    let (answer, _c) = ask(&broker, "GET http://l:6632/health?x=1 HTTP/1.1\r\nHost: l\r\n\r\n");
    assert_eq!(answer.status, 200, "absolute form");
    let (answer, _c) = ask(&broker, "\r\n\r\nGET /health HTTP/1.1\r\nhOST: l\r\n\r\n");
    assert_eq!(answer.status, 200, "empty lines before a request");
    let (answer, mut client) =
        ask(&broker, "GET /health HTTP/1.1\r\nHost: l\r\nConnection: close\r\n\r\n");
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(client.closed_within(SOON).unwrap());
    assert_refused(&broker, "GET /health HTTP/1.1\r\n\r\n", 400);
    assert_refused(&broker, "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
    assert_refused(&broker, "GET /health HTTP/1.1\r\nHost: l\r\nBad Name: x\r\n\r\n", 400);
    assert_refused(&broker, "GET /health HTTP/1.1\r\nHost: l\r\nX: a\r\n folded\r\n\r\n", 400);
    assert_refused(&broker, "GET /he\0alth HTTP/1.1\r\nHost: l\r\n\r\n", 400);
    for (bytes, what) in [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), "HTTP/2 preface"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), "TLS hello"),
        (b"\0\0\0\0\0\0\0\0".as_slice(), "zeros"),
        (b"GET /health HTTP/3.7\r\nHost: l\r\n\r\n".as_slice(), "unknown version"),
    ] {
        let (answer, mut client) = ask(&broker, bytes);
        assert!(matches!(answer.status, 400 | 501 | 505), "{what}: {}", answer.status);
        assert!(client.closed_within(SOON).unwrap(), "{what}");
    }
    assert_eq!(broker.client().get("/health").unwrap().status, 200);
}

#[test]
fn a_half_closed_client_gets_its_full_answer() {
    let broker = start(&[]);
    let mut client = broker.client();
    let payload = format!("\"{}\"", "x".repeat(3 << 20));
    client.send_raw(smuggled("half").as_bytes()).unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.read_response(false).unwrap().status, 201);
    assert!(client.closed_within(SOON).unwrap());
    broker.client().push_one("half", "big", "b", &payload);
    let mut client = broker.client();
    client
        .send_raw(b"GET /api/v1/pop/queue/half/partition/big HTTP/1.1\r\nHost: l\r\n\r\n")
        .unwrap();
    client.finish_sending().unwrap();
    thread::sleep(Duration::from_millis(200));
    let answer = client.read_response(false).unwrap();
    assert_eq!((answer.status, answer.text().contains(&payload)), (200, true));
    // Cut inside a request there is no request.
    let mut client = broker.client();
    client.send_raw(b"GET /health HTTP/1.1\r\nHo").unwrap();
    client.finish_sending().unwrap();
    client.set_read_timeout(SOON).unwrap();
    match client.read_response(false) {
        Ok(answer) => assert_eq!(answer.status, 400),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
    }
}

#[test]
fn an_encoded_body_is_refused_and_stores_nothing() {
    let broker = start(&[]);
    for encoding in ["gzip", "GZIP", "zstd", "br", "gzip, zstd", "x", "deflate"] {
        let body = "{\"items\":[{\"queue\":\"enc\",\"payload\":1}]}";
        let bytes = format!(
            "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Encoding: {encoding}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (answer, _client) = ask(&broker, bytes);
        assert!(matches!(answer.status, 400 | 415), "{encoding}: {}", answer.status);
    }
    assert!(broker.client().pop("enc").is_empty());
    let body = "{\"items\":[{\"queue\":\"enc\",\"payload\":1}]}";
    let plain = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: l\r\nContent-Encoding: identity\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (answer, _client) = ask(&broker, plain);
    assert!(matches!(answer.status, 201 | 415), "{}", answer.status);
}

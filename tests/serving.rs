//! The real binary on a real socket: what the driver promises of HTTP connections, of clients
//! that leave, of limits, and of its end.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

mod support;

use std::time::Duration;

use support::{Broker, Client, Options, Request, Response};

const SOON: Duration = Duration::from_secs(5);

fn start(shards: u32, arguments: &[&str]) -> Broker {
    let mut arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
    arguments.push("--segment-bytes=4MiB".to_owned());
    Broker::start(Options { shards, arguments, ..Options::default() })
}

fn send(client: &mut Client, text: &str) {
    client.send_raw(text.as_bytes()).unwrap();
}

fn answer(client: &mut Client) -> Response {
    client.read_response(false).unwrap()
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
}

fn item(queue: &str, n: u32) -> String {
    format!(r#"{{"items":[{{"queue":"{queue}","partition":"p","payload":{n}}}]}}"#)
}

fn push(client: &mut Client, queue: &str, n: u32) {
    assert_eq!(client.post("/api/v1/push", item(queue, n)).unwrap().status, 201);
}

#[test]
fn pipelined_requests_are_answered_in_order_and_the_table_is_kept() {
    let broker = start(2, &[]);
    let mut client = broker.client();
    let mut burst = String::new();
    for n in 0..100 {
        burst += &post("/api/v1/push", &item("line", n));
        burst += &get("/nowhere");
    }
    send(&mut client, &burst);
    for n in 0..100 {
        let pushed = answer(&mut client);
        assert_eq!(pushed.status, 201, "{}", pushed.text());
        assert!(pushed.text().contains(&format!("\"offset\":{n}")), "{}", pushed.text());
        let unknown = answer(&mut client);
        assert_eq!(unknown.status, 404);
        assert!(unknown.text().contains("no_such_route"));
    }
    let popped = client.get("/api/v1/pop/queue/line?batch=1000&autoAck=true").unwrap();
    assert_eq!(popped.text().matches("\"data\":").count(), 100);
    let unbuilt = client.post("/api/v1/locks", "{}").unwrap();
    assert_eq!(unbuilt.status, 501);
    assert!(unbuilt.text().contains("not_implemented") && unbuilt.text().contains("locks"));
    let head = Request { method: "HEAD", target: "/health", body: None };
    assert_eq!(client.request(&head).unwrap().status, 200);
    assert_eq!(client.post("/api/v1/stats/refresh", "").unwrap().status, 200);
}

#[test]
fn a_body_that_is_announced_is_asked_for_and_bytes_may_trickle() {
    let broker = start(1, &[]);
    let mut client = broker.client();
    let body = item("slow", 1);
    let head = "POST /api/v1/push HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n";
    send(&mut client, &format!("{head}content-length: {}\r\n\r\n", body.len()));
    assert_eq!(answer(&mut client).status, 100);
    for byte in body.as_bytes() {
        client.send_raw(&[*byte]).unwrap();
    }
    assert_eq!(answer(&mut client).status, 201);
    send(
        &mut client,
        "POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
    );
    let refused = answer(&mut client);
    assert_eq!(refused.status, 413);
    assert_eq!(refused.header("connection"), Some("close"));
    assert!(refused.header("content-type").unwrap().starts_with("text/plain"));
    assert!(client.closed_within(SOON).unwrap());
}

#[test]
fn a_client_that_leaves_a_parked_pop_takes_nothing_with_it() {
    let broker = start(2, &[]);
    let mut producer = broker.client();
    push(&mut producer, "left", 0);
    assert_eq!(producer.get("/api/v1/pop/queue/left?autoAck=true").unwrap().status, 200);
    for round in 1..6 {
        let mut gone: Vec<Client> = (0..4).map(|_| broker.client()).collect();
        for client in &mut gone {
            send(client, &get("/api/v1/pop/queue/left?wait=true&timeout=30000"));
        }
        std::thread::sleep(Duration::from_millis(50));
        // Half of them say that they have finished, half of them vanish.
        for client in &mut gone[..2] {
            client.finish_sending().unwrap();
            assert_eq!(answer(client).status, 204);
            assert!(client.closed_within(SOON).unwrap());
        }
        drop(gone);
        std::thread::sleep(Duration::from_millis(50));
        push(&mut producer, "left", round);
        let popped = producer.get("/api/v1/pop/queue/left?autoAck=true").unwrap();
        assert_eq!(popped.status, 200, "round {round}: someone who left has the message");
        assert!(popped.text().contains("\"deliveryAttempt\":1"), "{}", popped.text());
    }
}

#[test]
fn a_client_that_closes_its_side_still_gets_full_answers() {
    let broker = start(2, &[]);
    let mut client = broker.client();
    send(&mut client, &post("/api/v1/push", &item("half", 1)));
    send(&mut client, &get("/api/v1/pop/queue/half"));
    client.finish_sending().unwrap();
    assert_eq!(answer(&mut client).status, 201);
    assert!(matches!(answer(&mut client).status, 200 | 204));
    assert!(client.closed_within(SOON).unwrap());
}

#[test]
fn connections_over_the_limit_are_told_so_and_places_come_free() {
    let broker = start(2, &["--max-connections=8"]);
    // The starting helper's own connection may still be on its way out.
    std::thread::sleep(Duration::from_millis(100));
    let mut held: Vec<Client> = (0..8).map(|_| broker.client()).collect();
    for client in &mut held {
        assert_eq!(client.get("/").unwrap().status, 200);
    }
    let mut late = broker.client();
    let refused = answer(&mut late);
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(late.closed_within(SOON).unwrap());
    held.truncate(4);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(broker.client().get("/").unwrap().status, 200);
}

#[test]
fn a_term_signal_answers_what_is_open_and_the_next_start_is_clean() {
    let mut broker = start(2, &[]);
    let mut producer = broker.client();
    push(&mut producer, "kept", 1);
    let mut parked = broker.client();
    send(&mut parked, &get("/api/v1/pop/queue/other?wait=true&timeout=60000"));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(broker.terminate().code(), Some(0));
    assert_eq!(answer(&mut parked).status, 204);
    assert!(parked.closed_within(SOON).unwrap());
    broker.restart();
    assert!(broker.log_tail().contains("clean=true"), "{}", broker.log_tail());
    assert_eq!(broker.client().get("/api/v1/pop/queue/kept").unwrap().status, 200);
}

//! The real binary on a real socket: what the driver promises of HTTP connections, of clients
//! that leave, of limits, and of its end.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running broker with a data directory of its own; killed with the value.
struct Broker {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Broker {
    fn start(name: &str, flags: &[&str]) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("serving-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let child = Self::spawn(&folder, flags);
        Self::announced(child, folder)
    }

    fn spawn(folder: &PathBuf, flags: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_lanemq"))
            .args(["--listen", "127.0.0.1:0", "--segment-bytes", "4MiB", "--data-dir"])
            .arg(folder)
            .args(flags)
            .env("LANEMQ_LOG_LEVEL", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn announced(mut child: Child, folder: PathBuf) -> Self {
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        while !line.ends_with('\n') {
            let mut byte = [0];
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "it ended before it listened");
            line.push(byte[0].into());
        }
        let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { child, port, folder }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client { stream, rest: Vec::new() }
    }

    fn signal(&self, signal: i32) {
        let sent = Command::new("kill")
            .args([format!("-{signal}"), self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Waits for its end and returns the exit code.
    fn ended(&mut self, within: Duration) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < within {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("still running after {within:?}");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Client {
    stream: TcpStream,
    rest: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Client {
    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    fn post(&mut self, path: &str, body: &str) -> Answer {
        self.send(&post(path, body));
        self.answer()
    }

    fn get(&mut self, path: &str) -> Answer {
        self.send(&get(path));
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        self.answer_to("GET")
    }

    fn answer_to(&mut self, method: &str) -> Answer {
        let end = loop {
            if let Some(at) = self.rest.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            self.more();
        };
        let head = String::from_utf8(self.rest.drain(..end).collect()).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |text| text.parse::<usize>().unwrap());
        let length = if method == "HEAD" { 0 } else { length };
        while self.rest.len() < length {
            self.more();
        }
        let body = String::from_utf8(self.rest.drain(..length).collect()).unwrap();
        Answer { status: head[9..12].parse().unwrap(), head, body }
    }

    fn more(&mut self) {
        let mut bytes = [0; 4_096];
        let n = self.stream.read(&mut bytes).unwrap();
        assert!(n > 0, "closed in the middle of an answer: {:?}", self.rest);
        self.rest.extend_from_slice(&bytes[..n]);
    }

    fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0))
    }
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

#[test]
fn pipelined_requests_are_answered_in_order_and_the_table_is_kept() {
    let broker = Broker::start("pipeline", &["--shards", "2"]);
    let mut client = broker.connect();
    let mut burst = String::new();
    for n in 0..100 {
        burst += &post("/api/v1/push", &item("line", n));
        burst += &get("/nowhere");
    }
    client.send(&burst);
    for n in 0..100 {
        let pushed = client.answer();
        assert_eq!(pushed.status, 201, "{pushed:?}");
        assert!(pushed.body.contains(&format!("\"offset\":{n}")), "{pushed:?}");
        let unknown = client.answer();
        assert_eq!(unknown.status, 404);
        assert!(unknown.body.contains("no_such_route"));
    }
    let popped = client.get("/api/v1/pop/queue/line?batch=1000&autoAck=true");
    assert_eq!(popped.body.matches("\"data\":").count(), 100);
    let unbuilt = client.post("/api/v1/transaction", "{}");
    assert_eq!(unbuilt.status, 501);
    assert!(unbuilt.body.contains("not_implemented") && unbuilt.body.contains("transaction"));
    client.send("HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(client.answer_to("HEAD").status, 200);
    assert_eq!(client.post("/api/v1/stats/refresh", "").status, 200);
}

#[test]
fn a_body_that_is_announced_is_asked_for_and_bytes_may_trickle() {
    let broker = Broker::start("continue", &["--shards", "1"]);
    let mut client = broker.connect();
    let body = item("slow", 1);
    client.send(&format!(
        "POST /api/v1/push HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.answer().status, 100);
    for byte in body.chars() {
        client.send(&byte.to_string());
    }
    assert_eq!(client.answer().status, 201);
    client.send("POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n");
    let refused = client.answer();
    assert_eq!(refused.status, 413);
    assert!(refused.head.contains("text/plain") && refused.head.contains("connection: close"));
    assert!(client.is_closed());
}

#[test]
fn a_client_that_leaves_a_parked_pop_takes_nothing_with_it() {
    let broker = Broker::start("gone", &["--shards", "2"]);
    let mut producer = broker.connect();
    assert_eq!(producer.post("/api/v1/push", &item("left", 0)).status, 201);
    assert_eq!(producer.get("/api/v1/pop/queue/left?autoAck=true").status, 200);
    for round in 1..6 {
        let mut gone: Vec<Client> = (0..4).map(|_| broker.connect()).collect();
        for client in &mut gone {
            client.send(&get("/api/v1/pop/queue/left?wait=true&timeout=30000"));
        }
        std::thread::sleep(Duration::from_millis(50));
        // Half of them say that they have finished, half of them vanish.
        for client in &gone[..2] {
            client.stream.shutdown(Shutdown::Write).unwrap();
        }
        for client in &mut gone[..2] {
            assert_eq!(client.answer().status, 204);
            assert!(client.is_closed());
        }
        drop(gone);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(producer.post("/api/v1/push", &item("left", round)).status, 201);
        let popped = producer.get("/api/v1/pop/queue/left?autoAck=true");
        assert_eq!(popped.status, 200, "round {round}: someone who left has the message");
        assert!(popped.body.contains("\"deliveryAttempt\":1"), "{}", popped.body);
    }
}

#[test]
fn a_client_that_closes_its_side_still_gets_full_answers() {
    let broker = Broker::start("half", &["--shards", "2"]);
    let mut client = broker.connect();
    client.send(&post("/api/v1/push", &item("half", 1)));
    client.send(&get("/api/v1/pop/queue/half"));
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.answer().status, 201);
    assert!(matches!(client.answer().status, 200 | 204));
    assert!(client.is_closed());
}

#[test]
fn connections_over_the_limit_are_told_so_and_places_come_free() {
    let broker = Broker::start("limit", &["--shards", "2", "--max-connections", "8"]);
    let mut held: Vec<Client> = (0..8).map(|_| broker.connect()).collect();
    for client in &mut held {
        assert_eq!(client.get("/").status, 200);
    }
    let mut late = broker.connect();
    let refused = late.answer();
    assert_eq!(refused.status, 503);
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    assert!(late.is_closed());
    held.truncate(4);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(broker.connect().get("/").status, 200);
}

#[test]
fn a_term_signal_answers_what_is_open_and_the_next_start_is_clean() {
    let mut broker = Broker::start("drain", &["--shards", "2"]);
    let mut producer = broker.connect();
    assert_eq!(producer.post("/api/v1/push", &item("kept", 1)).status, 201);
    let mut parked = broker.connect();
    parked.send(&get("/api/v1/pop/queue/other?wait=true&timeout=60000"));
    std::thread::sleep(Duration::from_millis(100));
    broker.signal(libc::SIGTERM);
    assert_eq!(parked.answer().status, 204);
    assert!(parked.is_closed());
    assert_eq!(broker.ended(Duration::from_secs(15)), Some(0));

    broker.child = Broker::spawn(&broker.folder, &["--shards", "2"]);
    let stdout = broker.child.stdout.as_mut().unwrap();
    let mut text = [0; 64];
    let n = stdout.read(&mut text).unwrap();
    let line = String::from_utf8_lossy(&text[..n]).into_owned();
    broker.port = line.lines().next().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    let popped = broker.connect().get("/api/v1/pop/queue/kept");
    assert_eq!(popped.status, 200);
    broker.signal(libc::SIGINT);
    assert_eq!(broker.ended(Duration::from_secs(15)), Some(0));
}

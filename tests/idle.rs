//! Idle keep-alive connections and parked pops, many of both at once: what they cost while nothing
//! happens. The clients are in a process of their own, this test's binary started again.
//!
//! `IDLE_CONNECTIONS` (default 300) sets the number of each, `IDLE_SECONDS` (default 3) how long
//! the processor time is watched. From 9,000 on, over at least 60 s and with `BROKER_BIN` a
//! release build, the figures are held to their bounds.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{Broker, Client, Options, Usage, Wire, number};

const FULL: u64 = 9_000;
const SHARDS: u32 = 2;
/// Of one core, for each executor.
const CPU_PERCENT_MAX: f64 = 1.5;
const KIB_EACH_MAX: f64 = 10.0;

/// Tells the second process what it is: `<address> <idle> <parked>`.
const CROWD: &str = "IDLE_CROWD";

#[test]
fn idle_connections_and_parked_pops_cost_little() {
    if let Ok(order) = std::env::var(CROWD) {
        return be_the_crowd(&order);
    }
    let count = number("IDLE_CONNECTIONS", 300);
    let seconds = number("IDLE_SECONDS", 3);
    let broker = Broker::start(Options { shards: SHARDS, ..Options::default() });
    let pid = broker.pid().unwrap();
    let mut client = broker.client();
    client.push_one("warm", "p", "a", "1");
    let empty = settled(pid);
    let mut crowds: Vec<Child> = Vec::new();
    for (idle, parked) in [(count, 0), (0, count)] {
        crowds.push(start_crowd(&format!("{} {idle} {parked}", broker.address())));
    }
    wait_for(&mut client, count);
    let full = settled(pid);
    let begun = Instant::now();
    thread::sleep(Duration::from_secs(seconds));
    let (watched, end) = (begun.elapsed(), Usage::of(pid));
    let used = (end.cpu - full.cpu).as_secs_f64() / watched.as_secs_f64();
    let percent = used * 100.0 / f64::from(SHARDS);
    let kib = end.rss_bytes.saturating_sub(empty.rss_bytes) as f64 / 1024.0 / (2 * count) as f64;
    println!(
        "connections={} cpu_percent_of_a_core_each={percent:.2} kib_each={kib:.2} files={}",
        2 * count,
        end.open_files
    );
    let pushed = client.push_one("parked", "p", "a", "1");
    assert_eq!(pushed["status"], "queued");
    let limit = Instant::now() + Duration::from_secs(5);
    while client.metric("popped") == 0 {
        assert!(Instant::now() < limit, "a parked pop is still served");
    }
    for crowd in &mut crowds {
        crowd.kill().unwrap();
        crowd.wait().unwrap();
    }
    if count >= FULL && seconds >= 60 {
        assert!(percent <= CPU_PERCENT_MAX, "{percent:.2} % of a core for each executor");
        assert!(kib <= KIB_EACH_MAX, "{kib:.2} KiB for each connection");
    }
}

fn start_crowd(order: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "idle_connections_and_parked_pops_cost_little", "--nocapture"])
        .env(CROWD, order)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_for(client: &mut Client, count: u64) {
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        let connections = client.get("/metrics").unwrap().json()["connections"].as_u64().unwrap();
        let parked = client.metric("parked");
        if connections > 2 * count && parked >= count {
            return;
        }
        assert!(Instant::now() < limit, "{connections} connections, {parked} parked");
        thread::sleep(Duration::from_millis(100));
    }
}

/// The figures once quiet connections have given their buffers back.
fn settled(pid: u32) -> Usage {
    thread::sleep(Duration::from_millis(3_500));
    Usage::of(pid)
}

/// The second process: connections that each made one request and are idle, or have a pop parked
/// that is asked for again when it times out. It ends when it is killed.
fn be_the_crowd(order: &str) {
    let mut words = order.split(' ');
    let address: SocketAddr = words.next().unwrap().parse().unwrap();
    let idle: usize = words.next().unwrap().parse().unwrap();
    let parked: usize = words.next().unwrap().parse().unwrap();
    let connect = |request: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        stream
    };
    let ask = b"GET /health HTTP/1.1\r\nHost: l\r\n\r\n";
    let wait = b"GET /api/v1/pop/queue/parked?autoAck=true&wait=true&timeout=60000 HTTP/1.1\r\n\
                 Host: l\r\n\r\n";
    let mut idle: Vec<TcpStream> = (0..idle).map(|_| connect(ask)).collect();
    for stream in &mut idle {
        let mut answer = [0; 1024];
        assert!(stream.read(&mut answer).unwrap() > 0);
    }
    let mut parked: Vec<TcpStream> = (0..parked).map(|_| connect(wait)).collect();
    loop {
        // A pop waits for a minute at most; all of them come back as they were sent, in order.
        for stream in &mut parked {
            let mut answer = [0; 1024];
            assert!(stream.read(&mut answer).unwrap() > 0, "closed while it waited");
            stream.write_all(wait).unwrap();
        }
        if parked.is_empty() {
            thread::sleep(Duration::from_secs(3_600));
        }
    }
}

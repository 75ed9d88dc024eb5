//! The same requests to a whole broker of two shards, served by its executors in this process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use lanemq::config::Config;
use lanemq::server::serve;
use lanemq::server::sys::StopSignals;

use crate::counted::{exempt, of_others};

const CONNECTIONS: usize = 32;
/// Rounds of a push, a pop and an ack on each connection; the first are not counted.
const WARM: usize = 400;
const ROUNDS: usize = 400;

struct Connection {
    sends: TcpStream,
    reads: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let sends = TcpStream::connect(address).unwrap();
        sends.set_nodelay(true).unwrap();
        sends.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let reads = BufReader::new(sends.try_clone().unwrap());
        Self { sends, reads }
    }

    /// The body of the next answer, which has one of a known length.
    fn answer(&mut self) -> serde_json::Value {
        let (mut status, mut length) = (String::new(), 0);
        self.reads.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            self.reads.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.reads.read_exact(&mut body).unwrap();
        assert!(status.starts_with("HTTP/1.1 20"), "{status}{}", body.escape_ascii());
        serde_json::from_slice(&body).unwrap()
    }
}

/// Allocations of one request.
#[derive(Debug)]
pub struct Allocations {
    pub mean: f64,
    /// Of the round that is at a quarter of all, the fewest first. What is asked for each
    /// millisecond, whatever is done, weighs little there.
    pub quartile: f64,
}

impl Allocations {
    fn of(mut rounds: Vec<usize>) -> Self {
        rounds.sort_unstable();
        let each = |count: usize, rounds: usize| count as f64 / (rounds * CONNECTIONS) as f64;
        Self {
            mean: each(rounds.iter().sum(), rounds.len()),
            quartile: each(rounds[rounds.len() / 4], 1),
        }
    }
}

/// Removed at the end, under the broker.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts it and leaves it to the end of the process.
fn start(folder: &Path) -> SocketAddr {
    let _ = fs::remove_dir_all(folder);
    let folder = folder.to_str().unwrap();
    let mut arguments = vec!["lanemq", "--listen", "127.0.0.1:0", "--data-dir", folder];
    arguments.extend(["--shards", "2", "--segment-bytes", "16MiB"]);
    let settings = Config::parse_from(arguments).settings().unwrap();
    let (told, address) = mpsc::channel();
    thread::spawn(move || {
        let signals = StopSignals::block().unwrap();
        serve::run(&settings, signals, |address| told.send(address).unwrap()).unwrap();
    });
    address.recv_timeout(Duration::from_secs(60)).expect("the broker starts")
}

/// Sends each connection's request, then reads the answers. Returns them and how often the broker
/// asked for memory meanwhile.
fn round(
    connections: &mut [Connection],
    request: impl Fn(usize) -> Vec<u8>,
) -> (Vec<serde_json::Value>, usize) {
    let requests: Vec<_> = (0..connections.len()).map(request).collect();
    let before = of_others();
    for (connection, request) in connections.iter_mut().zip(&requests) {
        connection.sends.write_all(request).unwrap();
    }
    let answers = connections.iter_mut().map(Connection::answer).collect();
    (answers, of_others() - before)
}

/// Of one push, pop and ack of one message.
pub fn measure() -> [Allocations; 3] {
    exempt();
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("allocations-{}", std::process::id()));
    let address = start(&folder);
    let _folder = Folder(folder);
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| Connection::open(address)).collect();
    let mut counts = [const { Vec::new() }; 3];
    let payload = "x".repeat(200);
    for number in 0..WARM + ROUNDS {
        let (pushed, pushes) = round(&mut connections, |at| {
            let partition = (at * 7 + number) % 64;
            let items = format!(
                "{{\"items\":[{{\"queue\":\"q\",\"partition\":\"p{partition}\",\
                 \"transactionId\":\"{number}-{at}\",\"payload\":{{\"pad\":\"{payload}\"}}}}]}}"
            );
            crate::post("/api/v1/push", &items)
        });
        assert!(pushed.iter().all(|answer| answer[0]["status"] == "queued"), "{pushed:?}");
        let (popped, pops) = round(&mut connections, |_| {
            let target = "/api/v1/pop/queue/q?batch=1&wait=true&timeout=20000";
            format!("GET {target} HTTP/1.1\r\nHost: l\r\n\r\n").into()
        });
        let (acked, acks) = round(&mut connections, |at| {
            let message = &popped[at]["messages"][0];
            assert!(message.is_object(), "{popped:?}");
            let ack = format!(
                "{{\"transactionId\":{},\"partitionId\":{},\"leaseId\":{},\
                 \"status\":\"completed\"}}",
                message["transactionId"], message["partitionId"], message["leaseId"]
            );
            crate::post("/api/v1/ack", &ack)
        });
        assert!(acked.iter().all(|answer| answer[0]["success"] == true), "{acked:?}");
        if number >= WARM {
            for (all, one) in counts.iter_mut().zip([pushes, pops, acks]) {
                all.push(one);
            }
        }
    }
    counts.map(Allocations::of)
}

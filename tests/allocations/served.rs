//! The same requests to a whole broker of two shards, served by its executors in this process.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use lanemq::config::Config;
use lanemq::server::serve;
use lanemq::server::sys::StopSignals;

use crate::counted::{exempt, of_others};
use crate::support::Client;

const CONNECTIONS: usize = 32;
/// Rounds of a push, a pop and an ack on each connection; the first are not counted.
const WARM: usize = 400;
const ROUNDS: usize = 400;

/// Allocations of one request.
#[derive(Debug)]
pub struct Allocations {
    pub mean: f64,
    /// Of the round that is at a quarter of all, the fewest first. What is asked for each 10 ms,
    /// whatever is done, weighs little there.
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

/// Sends each client's request, then reads the answers. Returns them and how often the broker asked
/// for memory meanwhile.
fn round(
    clients: &mut [Client],
    request: impl Fn(usize) -> Vec<u8>,
) -> (Vec<serde_json::Value>, usize) {
    let requests: Vec<_> = (0..clients.len()).map(request).collect();
    let before = of_others();
    for (client, request) in clients.iter_mut().zip(&requests) {
        client.send_raw(request).unwrap();
    }
    let answer = |client: &mut Client| {
        let answer = client.read_response(false).unwrap();
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        answer.json()
    };
    let answers = clients.iter_mut().map(answer).collect();
    (answers, of_others() - before)
}

/// Of one push, pop and ack of one message.
pub fn measure() -> [Allocations; 3] {
    exempt();
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("allocations-{}", std::process::id()));
    let address = start(&folder);
    let _folder = Folder(folder);
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Client::connect(address).unwrap()).collect();
    let mut counts = [const { Vec::new() }; 3];
    for number in 0..WARM + ROUNDS {
        let (pushed, pushes) = round(&mut clients, |at| {
            let item = crate::item((at * 7 + number) % 64, &format!("{number}-{at}"));
            crate::post("/api/v1/push", &format!("{{\"items\":[{item}]}}"))
        });
        assert!(pushed.iter().all(|answer| answer[0]["status"] == "queued"), "{pushed:?}");
        let (popped, pops) = round(&mut clients, |_| {
            let target = "/api/v1/pop/queue/q?batch=1&wait=true&timeout=20000";
            format!("GET {target} HTTP/1.1\r\nHost: l\r\n\r\n").into()
        });
        let (acked, acks) = round(&mut clients, |at| {
            let message = &popped[at]["messages"][0];
            assert!(message.is_object(), "{popped:?}");
            crate::post("/api/v1/ack", &crate::ack(message))
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

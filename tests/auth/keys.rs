//! Key sets that change while the broker runs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jsonwebtoken::Algorithm;
use serde_json::json;

use super::{QUEUES, RSA, RSA_ROTATED, broker, get, refused, signed};

const KEY_SET: &[u8] = include_bytes!("../fixtures/auth/jwks.json");
const ROTATED: &[u8] = include_bytes!("../fixtures/auth/jwks-rotated.json");

fn by(key: &[u8], id: &str) -> String {
    signed(Algorithm::RS256, key, id, &json!({ "sub": "ann", "role": "read-only" }))
}

struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, text: &[u8]) -> Self {
        let name = format!("jwks-{name}-{}", std::process::id());
        let file = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        file.replace(text);
        file
    }

    fn replace(&self, text: &[u8]) {
        let next = self.0.with_extension("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, &self.0).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_token_under_a_new_key_is_good_at_once_and_one_under_a_removed_key_is_not() {
    let file = KeyFile::new("rotate", KEY_SET);
    let path = file.0.to_str().unwrap();
    let broker = broker(&[("JWT_ALGORITHM", "RS256"), ("LANEMQ_JWT_JWKS_FILE", path)]);
    // On both executors.
    let mut clients: Vec<_> = (0..4).map(|_| broker.client()).collect();
    for client in &mut clients {
        assert_eq!(get(client, QUEUES, &by(RSA, "k1")).status, 200);
        refused(&get(client, QUEUES, &by(RSA, "enc")), 401, "Unknown key ID");
    }
    // The refusals above have had the file looked at; the next look is allowed after 5 s.
    std::thread::sleep(Duration::from_millis(5_200));
    file.replace(ROTATED);
    let answer = get(&mut clients[0], QUEUES, &by(RSA_ROTATED, "k2"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    for client in &mut clients {
        let limit = Instant::now() + Duration::from_secs(30);
        // The other executor hears of it a moment later.
        while get(client, QUEUES, &by(RSA, "k1")).status != 401 {
            assert!(Instant::now() < limit, "a removed key still opens");
        }
        refused(&get(client, QUEUES, &by(RSA, "k1")), 401, "Unknown key ID");
        assert_eq!(get(client, QUEUES, &by(RSA_ROTATED, "k2")).status, 200);
        // The one key there is needs no name.
        assert_eq!(get(client, QUEUES, &by(RSA_ROTATED, "")).status, 200);
    }
    // A set that cannot be read leaves the last good one in use.
    file.replace(b"{");
    std::thread::sleep(Duration::from_millis(5_200));
    refused(&get(&mut clients[0], QUEUES, &by(RSA, "k9")), 401, "Unknown key ID");
    assert_eq!(get(&mut clients[0], QUEUES, &by(RSA_ROTATED, "k2")).status, 200);
    assert!(broker.log().contains("the keys read before stay in use"), "{}", broker.log_tail());
}

/// Serves `KEY_SET` to whoever asks, until the value is dropped with the test's process.
fn serve_keys(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", KEY_SET.len());
            let _ = stream.write_all(&[head.as_bytes(), KEY_SET].concat());
        }
    });
}

#[test]
fn a_key_set_behind_an_address_may_come_up_after_the_broker() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let url = format!("http://{address}/keys");
    let broker = broker(&[("JWT_ALGORITHM", "RS256"), ("JWT_JWKS_URL", &url)]);
    let mut client = broker.client();
    refused(&get(&mut client, QUEUES, &by(RSA, "k1")), 401, "Unknown key ID");
    serve_keys(TcpListener::bind(address).unwrap());
    let limit = Instant::now() + Duration::from_secs(60);
    while get(&mut client, QUEUES, &by(RSA, "k1")).status != 200 {
        assert!(Instant::now() < limit, "the key set was not fetched:\n{}", broker.log_tail());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(get(&mut broker.client(), QUEUES, &by(RSA, "k1")).status, 200);
}

#[test]
fn a_request_waits_for_a_slow_key_set_while_others_are_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let rotated = std::thread::spawn(move || {
        for (turn, set) in [(0, KEY_SET), (1, ROTATED)] {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            std::thread::sleep(Duration::from_millis(turn * 1_000));
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
            stream.write_all(set).unwrap();
        }
    });
    let broker = broker(&[("JWT_ALGORITHM", "RS256"), ("JWT_JWKS_URL", &url)]);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let mut client = broker.client();
            std::thread::spawn(move || get(&mut client, QUEUES, &by(RSA_ROTATED, "k2")).status)
        })
        .collect();
    // Known keys do not wait with them.
    let begun = Instant::now();
    let mut client = broker.client();
    let mut served = 0;
    while waiting.iter().any(|thread| !thread.is_finished()) {
        let status = get(&mut client, QUEUES, &by(RSA, "k1")).status;
        served += usize::from(status == 200);
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody answers those that wait");
    }
    assert!(served > 0);
    for thread in waiting {
        assert_eq!(thread.join().unwrap(), 200);
    }
    rotated.join().unwrap();
}

//! Encryption at rest: nothing of a payload in the files, everything in the answers.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::bodies::{Item, framed, item};
use super::support::{Broker, Client, Options, Wire};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const SECRET: &str = "the-secret-of-this-message";

fn with_key(key: &str) -> Options {
    let environment = vec![("LANEMQ_ENCRYPTION_KEY".to_owned(), key.to_owned())];
    Options { environment, ..Options::default() }
}

fn holds(folder: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, bytes),
            false => memchr::memmem::find(&fs::read(&path).unwrap(), bytes).is_some(),
        }
    })
}

fn encrypting(client: &mut Client) {
    client.configure("q", json!({"encryptionEnabled": true}));
}

#[test]
fn payloads_are_nowhere_in_clear_and_everywhere_in_answers() {
    let broker = Broker::start(with_key(KEY));
    let mut client = broker.client();
    encrypting(&mut client);
    let payload = format!("{{\"x\" : \"{SECRET}\"}}");
    client.push_one("q", "json", "t-1", &payload);
    let items: Vec<Item> =
        (0..5).map(|n| item("q", "framed", &format!("t{n}"), &payload)).collect();
    let (body, packed) = framed(&items, 0, 7);
    let first = client.post("/api/v1/push", &body).unwrap().json();
    assert_eq!(client.metric("groupsRecoded"), 1);
    assert!(!holds(&broker.data_dir(), SECRET.as_bytes()));
    assert!(!holds(&broker.data_dir(), &packed[0]));

    let again = client.post("/api/v1/push", &body).unwrap().json();
    for (first, again) in first.as_array().unwrap().iter().zip(again.as_array().unwrap()) {
        assert_eq!((&again["status"], &again["offset"]), (&json!("duplicate"), &first["offset"]));
    }
    assert_eq!(client.push_one("q", "json", "t-1", &payload)["status"], "duplicate");

    // Clients refuse a framed answer with an encrypted frame: they get JSON.
    for partition in ["json", "framed"] {
        let target =
            format!("/api/v1/pop/queue/q/partition/{partition}?frames=true&leaseSeconds=1");
        let answer = client.get(&target).unwrap();
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(answer.text().contains(&payload));
    }
    assert!(!holds(&broker.data_dir(), SECRET.as_bytes()));
}

#[test]
fn dead_letters_of_an_encrypting_queue_are_encrypted_and_shown() {
    let broker = Broker::start(with_key(KEY));
    let mut client = broker.client();
    encrypting(&mut client);
    client.push_one("q", "p", "t", &format!("\"{SECRET}\""));
    let messages = client.pop("q/partition/p");
    client.ack(&messages[0], "dlq");
    assert_eq!(client.dead_letters("q")[0]["data"], SECRET);
    assert!(!holds(&broker.data_dir(), SECRET.as_bytes()));
}

#[test]
fn another_key_is_named_and_delivers_nothing() {
    let mut broker = Broker::start(with_key(KEY));
    let mut client = broker.client();
    encrypting(&mut client);
    client.push_one("q", "p", "t", &format!("\"{SECRET}\""));
    assert!(broker.terminate().success());

    for environment in [with_key(OTHER).environment, Vec::new()] {
        broker.set_environment(environment);
        broker.restart();
        let answer = broker.client().get("/api/v1/pop/queue/q/partition/p").unwrap();
        assert_eq!((answer.status, &answer.json()["code"]), (500, &json!("cannot_decrypt")));
        assert!(answer.json()["error"].as_str().unwrap().contains("another key"));
        assert!(broker.terminate().success());
    }

    // The old key beside a new one: both are read.
    let mut environment = with_key(OTHER).environment;
    environment.push(("LANEMQ_ENCRYPTION_KEY_PREVIOUS".to_owned(), KEY.to_owned()));
    broker.set_environment(environment);
    broker.restart();
    client = broker.client();
    client.push_one("q", "p", "u", "\"new\"");
    let seen: Vec<String> = client.pop("q/partition/p").into_iter().map(|m| m.data).collect();
    assert_eq!(seen, [format!("\"{SECRET}\""), "\"new\"".to_owned()]);
}

#[test]
fn without_a_key_an_encrypting_queue_works_in_clear_and_says_so() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    encrypting(&mut client);
    client.push_one("q", "p", "t", &format!("\"{SECRET}\""));
    assert_eq!(client.pop("q/partition/p")[0].data, format!("\"{SECRET}\""));
    let health = client.get("/health").unwrap().json();
    assert_eq!(health["security"]["encryptionKey"], false);
    assert!(broker.log().contains("no encryption key"), "{}", broker.log());
}

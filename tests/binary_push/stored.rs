//! The bytes of a group are the client's own from the socket to the disk and back.

use std::fs;
use std::path::Path;

use super::bodies::{Item, framed, item, read_framed};
use super::broker;
use super::support::Wire;

/// Seeded noise, so that groups differ in size and in how far they shrink.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn group(noise: &mut Noise, partition: &str, number: usize) -> Vec<Item> {
    (0..=noise.next(40))
        .map(|n| {
            let words: Vec<String> =
                (0..noise.next(60)).map(|_| noise.next(1 << 30).to_string()).collect();
            let payload = format!("{{\"n\":{n},\"words\":[{}]}}", words.join(", "));
            item("q", partition, &format!("{number}-{n}"), &payload)
        })
        .collect()
}

/// Whether the files below `folder` hold these bytes in one piece.
fn on_disk(folder: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => on_disk(&path, bytes),
            false => {
                let file = fs::read(&path).unwrap();
                memchr::memmem::find(&file, bytes).is_some()
            }
        }
    })
}

#[test]
fn a_kept_group_lies_on_the_disk_and_leaves_as_it_came() {
    let seed = super::support::number("SEED", 1);
    let mut noise = Noise(seed);
    let mut broker = super::Broker::start(super::Options {
        arguments: vec!["--segment-bytes".into(), "4MiB".into()],
        ..Default::default()
    });
    let mut client = broker.client();
    let mut pushed: Vec<(String, Vec<u8>)> = Vec::new();
    for number in 0..60 {
        let partition = format!("p{}", noise.next(7));
        let items = group(&mut noise, &partition, number);
        let (body, packed) = framed(&items, 0, 1_000 * number as u64);
        assert_eq!(client.post("/api/v1/push", body).unwrap().status, 201);
        pushed.push((partition, packed.into_iter().next().unwrap()));
    }
    assert_eq!(client.metric("groupsKept"), 60);
    for (_, packed) in &pushed {
        assert!(on_disk(&broker.data_dir(), packed), "seed {seed}");
    }
    // Once out of memory, once read from the disk.
    for (round, group) in ["a", "b"].into_iter().enumerate() {
        if round == 1 {
            assert!(broker.terminate().success());
            broker.restart();
            client = broker.client();
        }
        for number in 0..7 {
            let mut records = Vec::new();
            loop {
                let target = format!(
                    "/api/v1/pop/queue/q/partition/p{number}?consumerGroup={group}\
                     &subscriptionMode=all&batch=10000&autoAck=true&frames=true"
                );
                let answer = client.get(&target).unwrap();
                if answer.status == 204 {
                    break;
                }
                records.extend(read_framed(&answer.body).1);
            }
            let own = format!("p{number}");
            let wanted: Vec<&Vec<u8>> =
                pushed.iter().filter(|(p, _)| *p == own).map(|(_, packed)| packed).collect();
            assert_eq!(records.iter().collect::<Vec<_>>(), wanted, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn a_repeat_of_a_group_is_recognised_after_a_restart_too() {
    let mut broker = broker();
    let mut client = broker.client();
    let items: Vec<Item> = (0..300).map(|n| item("q", "p", &format!("t{n}"), "[1]")).collect();
    let (body, _) = framed(&items, 0, 1);
    let first = client.post("/api/v1/push", &body).unwrap().json();
    broker.kill9();
    broker.restart();
    client = broker.client();
    let again = client.post("/api/v1/push", &body).unwrap().json();
    for (first, again) in first.as_array().unwrap().iter().zip(again.as_array().unwrap()) {
        assert_eq!((&first["status"], &again["status"]), (&"queued".into(), &"duplicate".into()));
        assert_eq!(first["message_id"], again["message_id"]);
        assert_eq!(first["offset"], again["offset"]);
    }
    let messages = client.pop("q/partition/p?batch=1000");
    assert_eq!(messages.len(), 300);
    let acked = client.ack_all(&messages, "__QUEUE_MODE__");
    assert!(acked.iter().all(|result| result["success"] == true));
}

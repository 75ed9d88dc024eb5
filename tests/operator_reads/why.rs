//! Why a partition does not deliver now: each state is brought about and told.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, Wire, within};
use crate::{broker, restart, sleep_ms};

fn ask(client: &mut Client, query: &str) -> (u16, Value) {
    let answer = client.get(&format!("/api/v1/why?{query}")).unwrap();
    (answer.status, answer.json())
}

fn why(client: &mut Client, query: &str) -> Value {
    let (status, body) = ask(client, query);
    assert_eq!(status, 200, "{body}");
    body
}

#[test]
fn what_is_not_there_is_a_404_of_the_same_shape() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("w", "p", "t", "1");
    for (query, state) in [
        ("queue=none&partition=p", "no_such_queue"),
        ("queue=w&partition=none", "no_such_partition"),
        ("queue=w&partition=p&group=nobody", "no_such_group"),
    ] {
        let (status, body) = ask(&mut client, query);
        assert_eq!((status, &body["state"]), (404, &state.into()));
        assert!(body["queue"].is_string() && body["error"].is_string(), "{body}");
    }
    assert_eq!(ask(&mut client, "partition=p").0, 400);
}

#[test]
fn ready_leased_retrying_and_nothing_follow_a_message_through_its_life() {
    let mut broker = broker();
    let mut client = broker.client();
    client.configure("life", json!({"retryLimit": 5}));
    for n in 0..3 {
        client.push_one("life", "p", &format!("t{n}"), "1");
    }
    let query = "queue=life&partition=p";
    let ready = why(&mut client, query);
    assert_eq!((&ready["state"], &ready["deliverable"]), (&"ready".into(), &3.into()));
    assert_eq!((&ready["next"], &ready["highWatermark"]), (&0.into(), &3.into()));
    let batch = client.pop("life?batch=2&leaseSeconds=60");
    let leased = why(&mut client, query);
    assert_eq!(
        (&leased["state"], &leased["leaseId"]),
        (&"leased".into(), &batch[0].lease_id.as_str().into())
    );
    assert_eq!((&leased["firstOffset"], &leased["lastOffset"]), (&0.into(), &1.into()));
    assert!(leased["since"].as_str().unwrap() < leased["until"].as_str().unwrap());
    let mut client = restart(&mut broker, false);
    let again = why(&mut client, query);
    assert_eq!((&again["state"], &again["leaseId"]), (&leased["state"], &leased["leaseId"]));
    client.ack(&batch[0], "failed");
    let retrying = why(&mut client, query);
    assert_eq!((&retrying["state"], &retrying["retryCount"]), (&"retrying".into(), &1.into()));
    assert_eq!((&retrying["attempts"], &retrying["retryLimit"]), (&1.into(), &5.into()));
    assert_eq!((&retrying["readyPlace"], &retrying["readyPartitions"]), (&0.into(), &1.into()));
    assert_eq!(client.pop("life?autoAck=true&batch=9").len(), 3);
    let nothing = why(&mut client, query);
    assert_eq!(
        (&nothing["state"], &nothing["next"], &nothing["logStart"]),
        (&"nothing".into(), &3.into(), &0.into())
    );
}

#[test]
fn a_place_in_line_counts_the_partitions_before_it() {
    let broker = broker();
    let mut client = broker.client();
    for partition in ["a", "b", "c", "d", "e", "f"] {
        client.push_one("line", partition, "t", "1");
    }
    let batch = client.pop("line?batch=6&partitions=6");
    assert_eq!(batch.len(), 6);
    for message in &batch {
        client.ack(message, "retry");
    }
    let mut places: Vec<(u64, u64)> = batch
        .iter()
        .map(|message| {
            let body = why(&mut client, &format!("queue=line&partition={}", message.partition));
            assert_eq!(body["state"], "retrying", "{body}");
            (body["readyPlace"].as_u64().unwrap(), body["readyPartitions"].as_u64().unwrap())
        })
        .collect();
    places.sort_unstable();
    let (ready, sum) = (places.last().unwrap().1, places.len());
    // Two shards, each with its own line.
    assert_eq!(sum, 6);
    assert!(ready < 6 && places.iter().filter(|(place, _)| *place == 0).count() == 2, "{places:?}");
}

#[test]
fn a_delay_and_a_window_are_told_apart() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("held", json!({"delayedProcessing": 60}));
    client.configure("quiet", json!({"windowBuffer": 60, "delayedProcessing": 60}));
    for (queue, state) in [("held", "delayed"), ("quiet", "window")] {
        client.push_one(queue, "p", "t", "1");
        let body = why(&mut client, &format!("queue={queue}&partition=p"));
        assert_eq!(body["state"], state);
        assert!(body["until"].is_string(), "{body}");
    }
    client.configure("quiet", json!({"windowBuffer": 0}));
    assert_eq!(why(&mut client, "queue=quiet&partition=p")["state"], "delayed");
}

#[test]
fn a_group_that_starts_behind_everything_is_told_so() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("late", "p", "t", "1");
    sleep_ms(5);
    assert!(client.pop("late?consumerGroup=g&subscriptionMode=new").is_empty());
    let body = why(&mut client, "queue=late&partition=p&group=g");
    assert_eq!((&body["state"], &body["next"]), (&"seeded_after".into(), &Value::Null));
    assert!(body["newestMessage"].as_str().unwrap() < body["start"].as_str().unwrap(), "{body}");
    client.push_one("late", "p", "u", "1");
    let body = why(&mut client, "queue=late&partition=p&group=g");
    assert_eq!((&body["state"], &body["next"]), (&"ready".into(), &1.into()));
}

#[test]
fn what_cannot_be_read_is_named_until_it_can() {
    let mut broker = broker();
    let mut client = broker.client();
    let marker = "the only text of its kind";
    client.push_one("dmg", "p", "t", &format!("\"{marker}\""));
    // After a restart nothing of the log is in memory, so the pop reads the file.
    let mut client = restart(&mut broker, true);
    let flipped = flip_first_byte_of(&broker.data_dir(), marker.as_bytes());
    let failed = client.get("/api/v1/pop/queue/dmg").unwrap();
    assert_eq!(failed.status, 500, "{}", failed.text());
    let body = why(&mut client, "queue=dmg&partition=p");
    assert_eq!((&body["state"], &body["firstOffset"]), (&"damaged".into(), &0.into()));
    assert!(body["damage"].is_string(), "{body}");
    flip_back(&flipped);
    let message = client.pop("dmg").remove(0);
    assert_eq!(message.data, format!("\"{marker}\""));
    client.ack(&message, "retry");
    assert_eq!(why(&mut client, "queue=dmg&partition=p")["state"], "retrying");
}

/// Flips a bit where `text` begins, in whatever file holds it.
fn flip_first_byte_of(folder: &Path, text: &[u8]) -> (PathBuf, u64) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
                let place = (path, at as u64);
                flip_back(&place);
                return place;
            }
        }
    }
    panic!("no file holds the text");
}

fn flip_back((path, at): &(PathBuf, u64)) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, *at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], *at).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn parked_pops_are_counted_with_what_they_wait_for() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("park", "p", "t", "1");
    assert_eq!(client.pop("park?autoAck=true").len(), 1);
    let mut waiting = [broker.client(), broker.client()];
    for (client, target) in waiting.iter_mut().zip(["park", "park/partition/p"]) {
        let request = format!(
            "GET /api/v1/pop/queue/{target}?wait=true&timeout=60000 HTTP/1.1\r\nHost: x\r\n\r\n"
        );
        client.send_raw(request.as_bytes()).unwrap();
    }
    let limit = Instant::now() + within(Duration::from_secs(1));
    loop {
        let body = why(&mut client, "queue=park&partition=p");
        assert_eq!(body["state"], "nothing");
        if body["parkedPops"] == 1 && body["parkedPopsOfPartition"] == 1 {
            break;
        }
        assert!(Instant::now() < limit, "{body}");
        sleep_ms(10);
    }
}

#[test]
fn a_conflating_group_is_told_what_it_will_get() {
    let broker = broker();
    let mut client = broker.client();
    let pop = "news?consumerGroup=g&conflation=true&subscriptionMode=all";
    assert!(client.get(&format!("/api/v1/pop/queue/{pop}")).unwrap().status == 200);
    for n in 0..3 {
        client.push_one("news", "p", &format!("t{n}"), "1");
    }
    let query = "queue=news&partition=p&group=g";
    let told = why(&mut client, query);
    assert_eq!((&told["state"], &told["firstOffset"]), (&"conflated".into(), &0.into()), "{told}");
    assert_eq!(told["newestOffset"], 2);
    let depth = client.get("/api/v1/resources/queues/news/depth?group=g").unwrap().json();
    let counts = [&depth["pending"], &depth["effectivePending"], &depth["conflation"]];
    assert_eq!(counts, [&json!(3), &json!(1), &json!(true)], "{depth}");
    let newest = client.pop(pop);
    assert_eq!(newest.iter().map(|m| m.offset).collect::<Vec<_>>(), [2]);
    assert_eq!(why(&mut client, query)["state"], "leased");
}

//! Retention against those who read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Client, Wire, number};
use crate::{broker, detail, drain, item, offsets, restart, sleep_ms, small_segments};

/// How late the sweep may come on a busy machine; it comes four times a second.
const LATE: Duration = Duration::from_secs(3);

/// Pushes messages `from..to` of one partition in one append each.
fn push_each(client: &mut Client, queue: &str, from: u64, to: u64) {
    for n in from..to {
        let result = client.push_items(&item(queue, "p", n)).remove(0);
        assert_eq!(result["offset"], n);
    }
}

fn wait_for_total(client: &mut Client, queue: &str, wanted: u64) {
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        let total = detail(client, queue)["totals"]["total"].as_u64().unwrap();
        if total == wanted {
            return;
        }
        assert!(Instant::now() < limit, "{queue}: {total} are left, not {wanted}");
        sleep_ms(50);
    }
}

#[test]
fn twenty_sweeps_take_nothing_of_an_unread_backlog_inside_its_retention() {
    let mut broker = broker();
    let mut client = broker.client();
    client.configure(
        "young",
        json!({"retentionEnabled": true, "retentionSeconds": 3_600,
        "completedRetentionSeconds": 1}),
    );
    // A group that settled half of it, and one that has read nothing: nothing is settled by all.
    assert!(client.pop("young?consumerGroup=idle&subscriptionMode=all").is_empty());
    push_each(&mut client, "young", 0, 40);
    let popped = client.pop("young?consumerGroup=busy&subscriptionMode=all&batch=20");
    client.ack_all(&popped, "busy");
    for clean in [false, true] {
        // Sweeps come four times a second, and over a restart.
        sleep_ms(3_000);
        client = restart(&mut broker, clean);
        assert_eq!(detail(&mut client, "young")["totals"]["total"], 40);
    }
    let unread = client.pop("young?consumerGroup=idle&batch=100");
    assert_eq!(offsets(&unread), (0..40).collect::<Vec<_>>());
    assert_eq!(offsets(&client.pop("young?consumerGroup=busy&batch=1")), [20]);
}

#[test]
fn a_leased_message_that_retention_takes_is_skipped_when_it_would_come_again() {
    let mut broker = broker();
    let mut client = broker.client();
    for (queue, lapses) in [("acked", false), ("lapsed", true)] {
        push_each(&mut client, queue, 0, 5);
        let lease = if lapses { 1 } else { 60 };
        let held = client.pop(&format!("{queue}?batch=3&leaseSeconds={lease}"));
        assert_eq!(offsets(&held), [0, 1, 2]);
        client.configure(queue, json!({"retentionEnabled": true, "retentionSeconds": 1}));
        wait_for_total(&mut client, queue, 0);
        if lapses {
            sleep_ms(1_100);
        }
        let results = client.ack_all(&held, "");
        for result in &results {
            // Under its lease an ack counts though the message is gone; a lapsed one is refused.
            assert_eq!(result["success"], !lapses, "{result}");
        }
        assert_eq!(results[2]["leaseReleased"], !lapses, "{results:?}");
        client = restart(&mut broker, false);
        client.configure(queue, json!({"retentionSeconds": 3_600}));
        push_each(&mut client, queue, 5, 7);
        let next = client.pop(&format!("{queue}?batch=10"));
        assert_eq!(offsets(&next), [5, 6], "{queue}");
        assert!(next.iter().all(|m| m.attempt == 1 && m.data == m.offset.to_string()), "{next:?}");
        assert!(client.ack_all(&next, "").iter().all(|result| result["success"] == true));
        assert!(client.pop(queue).is_empty());
    }
}

#[test]
fn a_group_that_was_idle_longer_than_retention_goes_on_where_it_was() {
    let mut broker = broker();
    let mut client = broker.client();
    push_each(&mut client, "idle", 0, 4);
    let popped = client.pop("idle?consumerGroup=g&subscriptionMode=all&batch=4");
    client.ack_all(&popped, "g");
    let popped = client.pop("idle?consumerGroup=behind&subscriptionMode=all&batch=2");
    client.ack_all(&popped, "behind");
    client.configure("idle", json!({"retentionEnabled": true, "retentionSeconds": 1}));
    wait_for_total(&mut client, "idle", 0);
    client.configure("idle", json!({"retentionSeconds": 3_600}));
    push_each(&mut client, "idle", 4, 6);
    for clean in [false, true] {
        client = restart(&mut broker, clean);
        // Behind its cursor, or at the earliest that is kept; never what it has acked.
        for group in ["g", "behind", "fresh"] {
            let target = format!("idle?consumerGroup={group}&subscriptionMode=all&batch=10");
            let popped = client.pop(&target);
            assert_eq!(offsets(&popped), [4, 5], "{group}");
            let retry = json!({"consumerGroup": group});
            assert_eq!(client.ack_with(&popped[0], "retry", retry)["success"], true);
        }
    }
}

/// The files of the log on the disk, spares included.
fn segment_files(broker: &crate::support::Broker) -> u64 {
    let mut folders = vec![broker.data_dir()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.metadata().unwrap().len() == 4 << 20 {
                files += 1;
            }
        }
    }
    files
}

#[test]
fn retention_keeps_up_with_single_pushes_to_one_partition() {
    let broker = small_segments();
    let mut client = broker.client();
    client.configure("fast", json!({"retentionEnabled": true, "retentionSeconds": 1}));
    let (stop, pushed) = (AtomicBool::new(false), AtomicU64::new(0));
    let seconds = number("RETENTION_SECONDS", 10);
    let mut most = 0;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (mut client, text) = (broker.client(), "x".repeat(500));
                while !stop.load(Ordering::Relaxed) {
                    let item = format!(
                        "{{\"queue\":\"fast\",\"partition\":\"p\",\"payload\":\"{text}\"}}"
                    );
                    assert_eq!(client.push_items(&item)[0]["status"], "queued");
                    pushed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // What was pushed at each look: retained may be what the last seconds brought, no more.
        let mut looks = Vec::new();
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            let before = (Instant::now(), pushed.load(Ordering::Relaxed));
            looks.push(before);
            let total = detail(&mut client, "fast")["totals"]["total"].as_u64().unwrap();
            let recent = Duration::from_secs(1) + LATE;
            let old = looks.iter().rev().find(|(at, _)| at.elapsed() > recent);
            let floor = old.map_or(0, |(_, count)| *count);
            let now = pushed.load(Ordering::Relaxed) + 8;
            assert!(total <= now - floor, "{total} retained, {} are younger", now - floor);
            most = most.max(total);
            sleep_ms(100);
        }
        stop.store(true, Ordering::Relaxed);
    });
    wait_for_total(&mut client, "fast", 0);
    let (pushed, segments) = (pushed.load(Ordering::Relaxed), client.metric("segments"));
    println!("pushed={pushed} most_retained={most} segments={segments}");
    assert_eq!(detail(&mut client, "fast")["retainedBytes"], 0);
    assert!(most < pushed, "retention took nothing while pushes came");
    let result = client.push_items(&item("fast", "p", pushed)).remove(0);
    assert_eq!(result["offset"], pushed);
}

/// What one unread message keeps on the disk is told, and everything works on.
#[test]
fn what_an_old_message_pins_is_reported() {
    let mut broker = small_segments();
    let mut client = broker.client();
    let rules = json!({"retentionEnabled": true, "completedRetentionSeconds": 1});
    client.configure("pin", rules);
    let read = "pin?consumerGroup=g&subscriptionMode=all&partitions=64&batch=10000";
    assert!(client.pop(read).is_empty());
    client.push_one("pin", "old", "old", "\"kept\"");
    let text = "y".repeat(100_000);
    let mut settled = 0;
    for _ in 0..12 {
        let item = format!("{{\"queue\":\"pin\",\"partition\":\"busy\",\"payload\":\"{text}\"}}");
        client.push_items(&vec![item; 20].join(","));
        let popped = client.pop("pin/partition/busy?consumerGroup=g&batch=100");
        settled += client.ack_all(&popped, "g").len();
    }
    assert_eq!(settled, 240);
    wait_for_total(&mut client, "pin", 1);
    let told = client.metric("segments");
    let files = segment_files(&broker);
    println!("segments told={told} files={files}");
    // 24 MB lie in at least six segments of 4 MiB; the spares are files without being segments.
    assert!(told >= 6, "{told} segments are told");
    assert!(told <= files && files <= told + 8, "{told} told, {files} there");
    assert!(detail(&mut client, "pin")["retainedBytes"].as_u64().unwrap() < 1_000);
    client = restart(&mut broker, false);
    let old = client.pop("pin?consumerGroup=g&batch=10");
    assert_eq!(
        (old.len(), old[0].partition.as_str(), old[0].data.as_str()),
        (1, "old", "\"kept\"")
    );
    assert!(drain(&mut client, "pin").len() == 1, "queue mode finds what is retained");
}

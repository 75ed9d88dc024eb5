//! A consumer must never be silent while messages are there for it.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::Options;

const QUEUE: &str = "many";
const PARTITION_COUNT: usize = 1_000;
const LEASE_SECONDS: u64 = 2;

/// Consumers that nack, forget their leases, hang up and are moved about by seeks; then quiet
/// ones, and every message must come.
#[test]
fn after_consumers_misbehaved_quiet_ones_drain_everything() {
    let seconds = std::env::var("STUCK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    let mut broker = Broker::start(Options::default());
    let mut client = broker.client();
    for chunk in 0..PARTITION_COUNT / 100 {
        let items: Vec<String> = (0..100)
            .map(|n| {
                let partition = chunk * 100 + n;
                let id = |k| format!("{partition}-{k}");
                let item = |k| {
                    let (queue, tx) = (QUEUE, id(k));
                    format!(
                        r#"{{"queue":"{queue}","partition":"p{partition}","transactionId":"{tx}","payload":{k}}}"#
                    )
                };
                (0..3).map(item).collect::<Vec<_>>().join(",")
            })
            .collect();
        client.push_items(&items.join(","));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let unruly: Vec<_> = (0..6)
        .map(|n| {
            let (client, stop) = (broker.client(), stop.clone());
            thread::spawn(move || misbehave(client, n, &stop))
        })
        .collect();
    for second in 0..seconds {
        thread::sleep(Duration::from_secs(1));
        if second == seconds / 2 {
            seek(&mut client, "g", QUEUE, json!({"timestamp": "1970-01-01T00:00:00Z"}));
        }
    }
    stop.store(true, Ordering::Relaxed);
    unruly.into_iter().for_each(|worker| worker.join().unwrap());
    broker.kill9();
    broker.restart();
    drain(&mut broker.client());
}

fn misbehave(mut client: Client, n: usize, stop: &AtomicBool) {
    let target = format!(
        "{QUEUE}?consumerGroup=g&subscriptionMode=all&batch=20&partitions=5\
         &leaseSeconds={LEASE_SECONDS}&wait=true&timeout=500"
    );
    let mut round = n;
    while !stop.load(Ordering::Relaxed) {
        let messages = client.pop(&target);
        round += 1;
        let Some(first) = messages.first() else { continue };
        match round % 4 {
            0 => _ = client.ack_with(first, "retry", json!({"consumerGroup": "g"})),
            1 => _ = client.ack_with(first, "completed", json!({"consumerGroup": "g"})),
            2 => _ = client.ack_all(&messages, "g"),
            _ => {}
        }
    }
}

/// Within two leases all of it has been delivered and settled.
fn drain(client: &mut Client) {
    let target = format!(
        "{QUEUE}?consumerGroup=g&batch=500&partitions=64&wait=true&timeout=500\
         &leaseSeconds={LEASE_SECONDS}"
    );
    let limit = Instant::now() + support::within(Duration::from_secs(2 * LEASE_SECONDS));
    while pending(client, QUEUE) > 0 {
        assert!(Instant::now() < limit, "{} messages do not come", pending(client, QUEUE));
        let messages = client.pop(&target);
        client.ack_all(&messages, "g");
    }
}

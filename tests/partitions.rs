//! Many partitions of one message each: what one costs in memory, and how fast they are made.
//!
//! `PARTITIONS` (default 20,000) sets the number. With a million, and `BROKER_BIN` set to a
//! release build, the memory of one is held to its bound; small runs measure mostly the pages
//! that a broker touches first.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

mod support;

use std::fmt::Write;
use std::time::{Duration, Instant};

use support::{Broker, Client, Options, Usage, Wire, number};

const PER_PUSH: u64 = 1_000;
const PRODUCERS: u64 = 4;
const FULL: u64 = 1_000_000;
/// Resident bytes of one partition with its message, over the empty broker.
const BYTES_EACH_MAX: u64 = 300;

#[test]
fn a_partition_of_one_message_is_small_and_survives_a_restart() {
    let count = number("PARTITIONS", 20_000).next_multiple_of(PER_PUSH);
    let mut broker = Broker::start(Options::default());
    warm_up(&mut broker.client());
    let empty = Usage::of(broker.pid().unwrap());
    let start = Instant::now();
    make(&broker, count);
    let took = start.elapsed();
    assert_eq!(broker.client().metric("partitions"), count + 1);
    // Buffers of the load and the newest part of the log are on the books for a moment.
    std::thread::sleep(Duration::from_secs(3));
    let full = Usage::of(broker.pid().unwrap());
    let each = full.rss_bytes.saturating_sub(empty.rss_bytes) / count;
    println!(
        "partitions={count} bytes_each={each} created_per_second={:.0} cpu_us_each={:.2}",
        count as f64 / took.as_secs_f64(),
        (full.cpu - empty.cpu).as_secs_f64() * 1e6 / count as f64,
    );
    if count >= FULL {
        assert!(each <= BYTES_EACH_MAX, "{each} bytes for each partition");
    }

    assert!(broker.terminate().success());
    let start = Instant::now();
    broker.restart();
    let took = start.elapsed();
    let mut client = broker.client();
    assert_eq!(client.metric("partitions"), count + 1);
    let again = Usage::of(broker.pid().unwrap());
    println!(
        "restart={took:?} bytes_each_after={}",
        again.rss_bytes.saturating_sub(empty.rss_bytes) / count
    );
    let sample = count / 2 + 1;
    let found = client.pop(&format!("many/partition/{}?autoAck=true", name(sample)));
    assert_eq!(found.len(), 1, "one message in a partition");
    assert_eq!((found[0].offset, found[0].data.as_str()), (0, sample.to_string().as_str()));
    let again = client.push_one("many", &name(sample), &format!("t-{sample}"), "0");
    assert_eq!((&again["status"], &again["offset"]), (&"duplicate".into(), &0.into()));
}

/// Names of an entity as people make them.
fn name(number: u64) -> String {
    format!("customer-{number}")
}

/// The first messages of every producer's connection, so that the empty broker is a used one.
fn warm_up(client: &mut Client) {
    for _ in 0..20 {
        client.push_one("warm", "p", "", "0");
        assert_eq!(client.pop("warm?autoAck=true").len(), 1);
    }
}

fn make(broker: &Broker, count: u64) {
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            scope.spawn(move || {
                let mut client = broker.client();
                for batch in (producer..count / PER_PUSH).step_by(PRODUCERS as usize) {
                    push_batch(&mut client, batch * PER_PUSH);
                }
            });
        }
    });
}

fn push_batch(client: &mut Client, first: u64) {
    let mut items = String::new();
    for number in first..first + PER_PUSH {
        let comma = if number == first { "" } else { "," };
        write!(
            items,
            "{comma}{{\"queue\":\"many\",\"partition\":\"{}\",\"transactionId\":\"t-{number}\",\
             \"payload\":{number}}}",
            name(number)
        )
        .unwrap();
    }
    let results = client.push_items(&items);
    assert_eq!(results.len() as u64, PER_PUSH);
    assert!(results.iter().all(|result| result["status"] == "queued"), "{:?}", results[0]);
}

//! Pops that wait: what wakes them, how soon, how many at once, and what becomes of a message when
//! the one it was meant for has gone.
//!
//! `WAKE_PUSHES` (default 300) sets the length of the wake-up proof.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

mod support;
#[path = "long_poll/waiters.rs"]
mod waiters;

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Broker, Client, Message, Options, Usage, Wire, number, within};
use waiters::Waiters;

/// Within this after the event the answer must be there. The test machine shares its cores.
const WOKEN: Duration = Duration::from_millis(250);

/// Runs `event` while a pop is parked; returns what it got and how long after the event.
fn woken_by<T>(
    broker: &Broker,
    target: &str,
    event: impl FnOnce(&mut Client) -> T,
) -> (Vec<Message>, Duration) {
    let mut waiting = broker.client();
    let target = target.to_owned();
    let parked = thread::spawn(move || (waiting.pop(&target), Instant::now()));
    thread::sleep(Duration::from_millis(300));
    assert!(!parked.is_finished(), "it was to wait");
    event(&mut broker.client());
    let start = Instant::now();
    let (messages, woken) = parked.join().unwrap();
    (messages, woken.saturating_duration_since(start))
}

#[test]
fn a_push_a_nack_an_expiry_and_a_delay_wake_a_waiting_pop() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    let wait = "batch=10&wait=true&timeout=20000";
    let (got, late) = woken_by(&broker, &format!("wq?{wait}"), |c| c.push_one("wq", "p", "a", "1"));
    assert_eq!(got.len(), 1);
    assert!(late < within(WOKEN), "{late:?} after the push");

    let held = got[0].clone();
    let (got, late) = woken_by(&broker, &format!("wq?{wait}"), |c| c.ack(&held, "failed"));
    assert_eq!((got.len(), got[0].attempt), (1, 2));
    assert!(late < within(WOKEN), "{late:?} after the nack");
    client.ack(&got[0], "completed");

    client.push_one("wq", "p", "b", "2");
    let start = Instant::now();
    assert_eq!(client.pop("wq?batch=1&leaseSeconds=1").len(), 1);
    let got = client.pop(&format!("wq?{wait}"));
    let late = start.elapsed().checked_sub(Duration::from_secs(1)).expect("the lease holds");
    assert_eq!((got.len(), got[0].attempt), (1, 2));
    assert!(late < within(WOKEN), "{late:?} after the expiry");

    client.configure("dq", json!({"delayedProcessing": 1}));
    client.push_one("dq", "p", "a", "1");
    let start = Instant::now();
    assert_eq!(client.pop(&format!("dq/partition/p?{wait}")).len(), 1);
    let took = start.elapsed();
    assert!(took > Duration::from_millis(800), "{took:?}: the delay was not kept");
    assert!(took < Duration::from_secs(1) + within(WOKEN), "{took:?} after the push");
}

#[test]
fn an_empty_long_poll_answers_204_in_time_and_keeps_the_connection() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    for target in ["e?wait=true&timeout=1000", "e/partition/p?wait=true&timeout=1000"] {
        let start = Instant::now();
        let answer = client.get(&format!("/api/v1/pop/queue/{target}")).unwrap();
        let took = start.elapsed();
        assert_eq!((answer.status, answer.body.len()), (204, 0));
        assert_eq!(answer.header("content-type"), None);
        assert!(
            took >= Duration::from_millis(900) && took < Duration::from_millis(1_400),
            "{took:?}"
        );
    }
    client.push_one("e", "p", "a", "1");
    assert_eq!(client.pop("e").len(), 1, "the same connection goes on");
}

#[test]
fn a_dead_poller_takes_no_message_and_the_next_in_line_gets_it() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    for round in 0..20 {
        let queue = format!("dead{}", round % 4);
        for target in [queue.clone(), format!("{queue}/partition/p")] {
            let dead = waiters::parked(broker.address(), &target, 10);
            thread::sleep(Duration::from_millis(20));
            let mut alive = broker.client();
            let target = format!("{target}?wait=true&timeout=10000&leaseSeconds=60");
            let next = thread::spawn(move || (alive.pop(&target), alive));
            thread::sleep(Duration::from_millis(20));
            dead.into_iter().for_each(waiters::reset);
            client.push_one(&queue, "p", "", "1");
            let start = Instant::now();
            let (got, mut alive) = next.join().unwrap();
            assert_eq!((got.len(), got[0].attempt), (1, 1), "round {round}");
            assert!(start.elapsed() < within(WOKEN * 2), "{:?} in round {round}", start.elapsed());
            assert_eq!(alive.ack(&got[0], "completed")["success"], true);
        }
    }
}

#[test]
fn a_thousand_dead_pollers_leave_neither_files_nor_work_behind() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    let pid = broker.pid().unwrap();
    let before = Usage::of(pid).open_files;
    let parked = waiters::parked(broker.address(), "gone", 1_000);
    wait_until(|| client.metric("parked") == 1_000);
    for (number, stream) in parked.into_iter().enumerate() {
        if number % 2 == 0 { waiters::reset(stream) } else { drop(stream) }
    }
    wait_until(|| client.metric("parked") == 0 && Usage::of(pid).open_files <= before + 16);
    let start = Usage::of(pid);
    thread::sleep(Duration::from_secs(3));
    let used = Usage::of(pid).cpu - start.cpu;
    println!("cpu of 3 s after 1,000 dead pollers: {used:?}");
    assert!(used < Duration::from_millis(900), "{used:?} of processor time for nothing");
}

#[test]
fn every_parked_group_gets_the_first_message_of_a_new_partition() {
    let broker = Broker::start(Options::default());
    for round in 0..10 {
        let pops = ["g1", "g2", ""].map(|group| {
            let mut client = broker.client();
            let target = format!("born?wait=true&timeout=10000&consumerGroup={group}&autoAck=true");
            thread::spawn(move || client.pop(&target))
        });
        // One more group, that waits for this partition alone before it is there.
        let mut client = broker.client();
        let target = format!(
            "born/partition/p{round}?wait=true&timeout=10000&consumerGroup=pin{round}&autoAck=true"
        );
        let pinned = thread::spawn(move || client.pop(&target));
        let pops = pops.into_iter().chain([pinned]);
        thread::sleep(Duration::from_millis(100));
        broker.client().push_one("born", &format!("p{round}"), "", &round.to_string());
        for pop in pops {
            let got = pop.join().unwrap();
            assert_eq!((got.len(), got[0].data.clone()), (1, round.to_string()));
        }
    }
}

#[test]
fn of_two_waiting_pops_the_second_is_served_when_the_first_dies() {
    let broker = Broker::start(Options::default());
    let first = waiters::parked(broker.address(), "two", 1);
    thread::sleep(Duration::from_millis(100));
    let (got, late) = woken_by(&broker, "two?wait=true&timeout=20000", |client| {
        first.into_iter().for_each(drop);
        client.push_one("two", "p", "a", "1")
    });
    assert_eq!((got.len(), got[0].attempt), (1, 1));
    assert!(late < within(WOKEN * 2), "{late:?}");
}

/// One push at a time, a thousand waiters that come and go: each message reaches one of them soon
/// after its answer, and hardly any claim is tried in vain.
#[test]
fn a_thousand_changing_waiters_get_each_message_at_once() {
    let pushes = number("WAKE_PUSHES", 300) as usize;
    let broker = Broker::start(Options { shards: 4, ..Options::default() });
    let mut client = broker.client();
    let waiters = Waiters::start(broker.address(), "wake", 1_000, number("SEED", 1));
    wait_until(|| client.metric("parked") >= 700);
    let (mut times, mut empty) = (Vec::new(), Vec::new());
    for number in 0..pushes {
        let before = client.metric("emptyClaims");
        let partition = format!("p{}", number % 97);
        client.push_one("wake", &partition, &format!("t{number}"), &number.to_string());
        let answered = Instant::now();
        let (data, arrived) = waiters.next(Duration::from_secs(10)).expect("it is delivered");
        assert_eq!(data, number.to_string(), "each message once, in the order of the pushes");
        times.push(arrived.saturating_duration_since(answered));
        empty.push(client.metric("emptyClaims") - before);
    }
    let left = waiters.stop();
    assert!(left.is_empty(), "delivered twice: {left:?}");
    times.sort_unstable();
    empty.sort_unstable();
    let at = |share: usize| times[(pushes * share / 100).min(pushes - 1)];
    println!(
        "pushes={pushes} delivered_after p50={:?} p99={:?} max={:?} empty_claims p99={} max={}",
        at(50),
        at(99),
        at(100),
        empty[pushes * 99 / 100],
        empty[pushes - 1],
    );
    assert!(at(99) <= within(Duration::from_millis(50)), "p99 {:?}", at(99));
    assert!(at(100) <= within(Duration::from_millis(50)), "max {:?}", at(100));
    assert!(empty[pushes * 99 / 100] <= 1, "claims without a result");
}

fn wait_until(mut reached: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !reached() {
        assert!(Instant::now() < limit, "not reached in time");
        thread::sleep(Duration::from_millis(20));
    }
}

//! Counts by the minute and walks over the state, on a shard whose clock the test moves: what a
//! broker would take hours for.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "../benches/harness/mod.rs"]
mod harness;

use std::borrow::Cow;
use std::collections::BTreeMap;

use harness::Harness;
use lanemq::base::limits;
use lanemq::model::command::{Command, PopRequest, PopTarget, PushItem, ReadRequest, Subscription};
use lanemq::model::reply::Reply;
use lanemq::model::traffic::{
    MinuteRow, OTHER_QUEUES, QueueRows, Walk, WalkAt, WalkFound, WalkOver,
};

const MINUTE_US: u64 = 60_000_000;

/// Pushes one message to each of these (queue, partition).
fn push(core: &mut Harness, places: &[(String, String)]) {
    let items: Vec<PushItem<'_>> = places
        .iter()
        .map(|(queue, partition)| PushItem {
            queue: Cow::Borrowed(queue),
            partition: Cow::Borrowed(partition),
            transaction_id: None,
            payload: b"1",
        })
        .collect();
    let Reply::Push(results) = core.run(Command::Push { items: &items, producer: None }) else {
        panic!("a push")
    };
    assert_eq!(results.len(), places.len());
}

fn push_to(core: &mut Harness, queue: &str, count: usize) {
    let place = (queue.to_owned(), "p".to_owned());
    push(core, &vec![place; count]);
}

/// Takes everything there is, committed at delivery.
fn pop_all(core: &mut Harness, queue: &str) {
    let request = PopRequest {
        target: PopTarget::Queue(queue.into()),
        group: "g".into(),
        batch: Some(1_000),
        partitions: Some(64),
        auto_ack: true,
        wait_ms: None,
        lease_seconds: None,
        subscription: Subscription::All,
        autopilot: false,
        conflation: false,
    };
    let Reply::Pop(reply) = core.run(Command::Pop(request)) else { panic!("a pop") };
    assert!(!reply.claims.is_empty());
}

/// All steps of a walk.
fn walk(core: &mut Harness, over: &WalkOver) -> Vec<WalkFound> {
    let (mut at, mut found) = (Vec::new(), Vec::new());
    loop {
        let step = ReadRequest::Walk(Walk { over: over.clone(), at });
        let Reply::Walked(mut steps) = core.run(Command::Read(step)) else { panic!("a walk") };
        let step = steps.pop().unwrap();
        assert!(steps.is_empty(), "there is one shard");
        found.push(step.found);
        assert!(found.len() < 10_000, "the walk does not end");
        if step.next == WalkAt::End {
            return found;
        }
        at = vec![step.next];
    }
}

/// Rows of all minutes, and how many steps they took.
fn minutes(core: &mut Harness, queues: QueueRows) -> (Vec<MinuteRow>, usize) {
    let found = walk(core, &WalkOver::Minutes { from: 0, to: u64::MAX, queues });
    let steps = found.len();
    let rows = found.into_iter().flat_map(|found| match found {
        WalkFound::Minutes(rows) => rows,
        other => panic!("{other:?}"),
    });
    (rows.collect(), steps)
}

#[test]
fn each_minute_has_what_was_done_in_it() {
    let mut core = Harness::new(64 << 20);
    push_to(&mut core, "a", 3);
    push_to(&mut core, "b", 1);
    core.pass(MINUTE_US);
    push_to(&mut core, "a", 5);
    core.pass(10 * MINUTE_US);
    pop_all(&mut core, "a");
    let (rows, steps) = minutes(&mut core, QueueRows::All);
    assert_eq!((rows.len(), steps), (3, 1), "minutes in which nothing was done have no row");
    let pushed: Vec<u64> = rows.iter().map(|row| row.total.push_messages).collect();
    assert_eq!(pushed, [4, 5, 0]);
    assert_eq!((rows[1].minute - rows[0].minute, rows[2].minute - rows[1].minute), (1, 10));
    let names: Vec<&str> = rows[0].queues.iter().map(|row| row.queue.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let last = rows[2].queues[0].traffic;
    assert_eq!((last.pop_messages, last.pop_requests, last.push_messages), (8, 1, 0));
    assert!(last.lag_us_max >= 11 * MINUTE_US && last.lag_us_max < 12 * MINUTE_US);
    let mean = last.lag_us_mean().unwrap();
    assert!(mean < last.lag_us_max && mean >= 10 * MINUTE_US);

    core.pass(MINUTE_US);
    push_to(&mut core, "a", 1);
    let (rows, _) = minutes(&mut core, QueueRows::One("a".to_owned()));
    assert_eq!((rows.len(), rows[3].queues.len()), (4, 1));
    assert_eq!(rows[3].queues[0].traffic.lag_us_max, 0, "the longest lag is that minute's own");
    assert_eq!(rows[3].total.lag_us_max, 0);
}

#[test]
fn minutes_are_kept_for_a_day() {
    let mut core = Harness::new(64 << 20);
    for _ in 0..3 {
        push_to(&mut core, "a", 1);
        core.pass(MINUTE_US * limits::HISTORY_MINUTES / 2 - 5 * MINUTE_US);
    }
    let (rows, _) = minutes(&mut core, QueueRows::All);
    assert_eq!(rows.len(), 3, "one minute less than a day old");
    push_to(&mut core, "a", 1);
    core.pass(11 * MINUTE_US);
    let (rows, _) = minutes(&mut core, QueueRows::All);
    assert_eq!(rows.len(), 3, "the first is forgotten");
    assert!(rows.iter().all(|row| row.total.push_messages == 1));
}

/// More queues than a minute has rows for: the rest share one, and nothing is lost.
#[test]
fn a_crowd_of_queues_is_bounded_and_adds_up() {
    let mut core = Harness::new(256 << 20);
    let queues = limits::HISTORY_QUEUES_MAX + 300;
    let all: Vec<(String, String)> =
        (0..queues).map(|n| (format!("q{n}"), "p".to_owned())).collect();
    let mut pushed = 0;
    for _ in 0..4 {
        for some in all.chunks(500) {
            push(&mut core, some);
            pushed += some.len() as u64;
        }
        core.pass(MINUTE_US);
    }
    let (rows, steps) = minutes(&mut core, QueueRows::All);
    assert!(steps >= 4, "{steps} steps");
    assert!(rows.iter().all(|row| row.queues.len() <= limits::HISTORY_QUEUES_MAX + 1));
    let total: u64 = rows.iter().map(|row| row.total.push_messages).sum();
    let mut by_queue: BTreeMap<&str, u64> = BTreeMap::new();
    for seen in rows.iter().flat_map(|row| &row.queues) {
        *by_queue.entry(&seen.queue).or_default() += seen.traffic.push_messages;
    }
    assert_eq!((total, by_queue.values().sum::<u64>()), (pushed, pushed));
    assert!(by_queue[OTHER_QUEUES] >= 300);

    let mut named = 0;
    let mut messages = 0;
    for found in walk(&mut core, &WalkOver::Totals { limit: 700 }) {
        let WalkFound::Totals { named: rows, other } = found else { panic!("{found:?}") };
        named += rows.len();
        messages += rows.iter().map(|row| row.messages).sum::<u64>();
        messages += other.map_or(0, |other| other.messages);
    }
    assert_eq!((named, messages), (700, pushed));
}

#[test]
fn partitions_are_walked_in_steps_and_each_is_seen_once() {
    let mut core = Harness::new(256 << 20);
    let many = 3 * limits::WALK_STEP_ROWS;
    for (queue, partitions) in [("few", 3), ("many", many), ("last", 1)] {
        let places: Vec<(String, String)> =
            (0..partitions).map(|n| (queue.to_owned(), format!("p{n}"))).collect();
        for some in places.chunks(1_000) {
            push(&mut core, some);
        }
    }
    core.pass(90 * MINUTE_US);
    push_to(&mut core, "many", 2);
    pop_all(&mut core, "last");
    let found = walk(&mut core, &WalkOver::Liveness);
    assert!(found.len() >= 6, "a queue mode is one more look at each: {}", found.len());
    let mut seen: BTreeMap<String, lanemq::model::traffic::QueueLiveness> = BTreeMap::new();
    for step in found {
        let WalkFound::Liveness(rows) = step else { panic!("{step:?}") };
        let partitions: u64 = rows.iter().map(|row| row.partitions).sum();
        assert!(partitions <= limits::WALK_STEP_ROWS as u64);
        rows.iter().for_each(|row| seen.entry(row.queue.clone()).or_default().add(row));
    }
    let many_seen = &seen["many"];
    assert_eq!(many_seen.partitions, many as u64 + 1);
    assert_eq!((many_seen.live_1h, many_seen.live_24h), (1, many as u64 + 1));
    let (oldest, newest) = (many_seen.oldest_write_us, many_seen.newest_write_us);
    assert!(newest.unwrap() - oldest.unwrap() >= 90 * MINUTE_US as i64);
    assert!(many_seen.oldest_owed_us.unwrap() < newest.unwrap());
    assert_eq!((seen["few"].partitions, seen["last"].partitions), (3, 1));
    assert_eq!(seen["last"].oldest_owed_us, None, "its reader is through");
}

//! Histories: what 64 consumers of three groups and two producers see of a real broker that is
//! killed in between, judged by a checker that knows the wire's contract and nothing of the broker.
//!
//! Consumers nack in every way, let leases lapse, extend them, settle by transactions that push
//! products to a second queue, commit at delivery, and hang up while they wait. The checker's own
//! tests plant one violation of each rule.
//!
//! `HISTORY_SECONDS` (default 10) of load, `HISTORY_KILLS` (default 1) in it, `SEED` for the
//! clients' choices, `HISTORY_SHARDS` (default 2).

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "histories/check.rs"]
mod check;
#[path = "histories/cursor.rs"]
mod cursor;
#[path = "histories/event.rs"]
mod event;
#[path = "histories/load.rs"]
mod load;
#[path = "histories/planted.rs"]
mod planted;
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use check::{History, check};
use event::{Answer, Event, Outcome, Pop, Remains, Span};
use load::{Actor, GROUPS, PARTITIONS, PRODUCTS, QUEUE, RELAY, RETRY_LIMIT, Random, Stage};
use support::{Broker, Client, Options, Wire, number};

const CONSUMERS: u64 = 64;
const PRODUCERS: u64 = 2;

#[test]
fn a_history_of_64_consumers_over_kills_breaks_no_rule() {
    let seed = number("SEED", u64::from(std::process::id()));
    let (seconds, kills) = (number("HISTORY_SECONDS", 10), number("HISTORY_KILLS", 1));
    println!("SEED={seed} HISTORY_SECONDS={seconds} HISTORY_KILLS={kills}");
    let shards = u32::try_from(number("HISTORY_SHARDS", 2)).unwrap();
    let mut broker = Broker::start(Options { shards, ..Options::default() });
    let mut client = broker.client();
    client.configure(QUEUE, json!({"retryLimit": RETRY_LIMIT}));
    client.configure(PRODUCTS, json!({}));
    let stage = Stage::new(broker.address());
    let mut events = run(&mut broker, &stage, seed, Duration::from_secs(seconds), kills);
    // All leases lapse; then each group has its backlog, as the listing must show.
    std::thread::sleep(load::LEASE_MAX + Duration::from_millis(500));
    let listed = queue(&mut broker.client());
    let mut drained = drain(&stage, seed);
    let owed = backlog(&drained);
    events.append(&mut drained);
    events.sort_by_key(|event| event.span().ended);
    let mut client = broker.client();
    let remains = remains(&mut client);
    check_listing(&listed, &remains, &owed);
    let history = History {
        groups: GROUPS.len(),
        partitions: PARTITIONS as usize,
        retry_limit: RETRY_LIMIT,
        relay: Some(RELAY),
        events,
    };
    let (violations, accounts) = check(&history, &remains);
    print_counts(&history.events);
    let pushed: u64 = remains.log.iter().map(|log| log.len() as u64).sum();
    for (group, [acked, dead, missed]) in GROUPS.iter().zip(&accounts) {
        println!("group '{group}': pushed={pushed} acked={acked} dead={dead} unseen={missed}");
    }
    let mut shown: BTreeMap<_, u64> = BTreeMap::new();
    for violation in &violations {
        let times = shown.entry(violation.rule).or_default();
        *times += 1;
        if *times <= 2 {
            println!("{violation}");
        }
    }
    assert!(violations.is_empty(), "violations: {shown:?}, {}", broker.log_tail());
    for [acked, dead, missed] in accounts {
        assert_eq!(acked + dead + missed, pushed);
    }
    check_end(&queue(&mut client), &remains);
    let least = 20 * seconds;
    assert!(pushed > least, "{pushed} messages are too few to show anything");
}

/// The load with its kills, evenly spread but for some chance.
fn run(broker: &mut Broker, stage: &Stage, seed: u64, length: Duration, kills: u64) -> Vec<Event> {
    let mut random = Random(seed);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for producer in 0..PRODUCERS {
            let seed = random.below(u64::MAX);
            threads.push(scope.spawn(move || {
                let mut actor = Actor::new(stage, seed);
                actor.produce(producer);
                actor.events
            }));
        }
        for consumer in 0..CONSUMERS {
            let seed = random.below(u64::MAX);
            let group = consumer as usize % GROUPS.len();
            // Two consumers in each of the groups without transactions.
            let auto = group != RELAY && consumer < 6;
            threads.push(scope.spawn(move || {
                let mut actor = Actor::new(stage, seed);
                actor.consume(group, auto);
                actor.events
            }));
        }
        let mut events = Vec::new();
        let part = length / u32::try_from(kills + 1).unwrap();
        for _ in 0..kills {
            std::thread::sleep(part.mul_f64(0.7 + 0.3 * random.below(1_000) as f64 / 1_000.0));
            stage.kills.fetch_add(1, Ordering::SeqCst);
            let sent = stage.now();
            broker.kill9();
            stage.killed.fetch_add(1, Ordering::SeqCst);
            broker.restart();
            events.push(Event::Kill(Span { sent, ended: stage.now() }));
        }
        std::thread::sleep(part);
        stage.stop.store(true, Ordering::SeqCst);
        for thread in threads {
            let notes = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            events.extend(notes);
        }
        events
    })
}

fn drain(stage: &Stage, seed: u64) -> Vec<Event> {
    std::thread::scope(|scope| {
        let drain = |group| {
            let mut actor = Actor::new(stage, seed);
            actor.drain(group);
            actor.events
        };
        let threads: Vec<_> =
            (0..GROUPS.len()).map(|group| scope.spawn(move || drain(group))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Where each group stood on each partition when the drain began: the first offset it got, if any.
fn backlog(drained: &[Event]) -> BTreeMap<(usize, u32), u64> {
    let mut first = BTreeMap::new();
    for event in drained {
        let Event::Pop(Pop { group, claims: Some(claims), .. }) = event else { continue };
        for claim in claims {
            first.entry((*group, claim.partition)).or_insert(claim.first);
        }
    }
    first
}

fn queue(client: &mut Client) -> Value {
    client.get(&format!("/api/v1/resources/queues/{QUEUE}")).unwrap().json()
}

/// The listing before the drain: what is retained, and what the slowest named group still owes.
fn check_listing(listed: &Value, remains: &Remains, owed: &BTreeMap<(usize, u32), u64>) {
    let rows = listed["partitions"].as_array().unwrap();
    let known = remains.log.iter().filter(|log| !log.is_empty()).count();
    assert_eq!(rows.len(), known, "partitions");
    for row in rows {
        let partition: u32 = row["name"].as_str().unwrap().parse().unwrap();
        let length = remains.log[partition as usize].len() as u64;
        let named = (1..GROUPS.len()).filter_map(|group| owed.get(&(group, partition)));
        let pending = named.map(|first| length - first).max().unwrap_or(0);
        let dead = remains.dead_letters.iter().filter(|(_, p, _)| *p == partition).count();
        let messages = &row["messages"];
        assert_eq!(messages["total"], length, "p{partition}: {row}");
        assert_eq!(messages["pending"], pending, "p{partition}: {row}");
        assert_eq!(messages["deadLetter"], dead, "p{partition}: {row}");
    }
}

/// At the end nobody owes anything.
fn check_end(listed: &Value, remains: &Remains) {
    let total: usize = remains.log.iter().map(Vec::len).sum();
    let totals = &listed["totals"];
    assert_eq!(totals["total"], total, "{totals}");
    assert_eq!(totals["pending"], 0, "{totals}");
    assert_eq!(totals["processing"], 0, "{totals}");
    assert_eq!(totals["deadLetter"], remains.dead_letters.len(), "{totals}");
}

fn remains(client: &mut Client) -> Remains {
    let mut remains = Remains { log: vec![Vec::new(); PARTITIONS as usize], ..Remains::default() };
    for message in load::read_all(client, QUEUE, "reader").unwrap() {
        let log = &mut remains.log[message.partition.parse::<usize>().unwrap()];
        assert_eq!(message.offset, log.len() as u64, "{message:?}: a gap or a repeat");
        log.push(message.transaction_id);
    }
    for message in load::read_all(client, PRODUCTS, "reader").unwrap() {
        remains.products.push((message.transaction_id, message.offset));
    }
    let mut offset = 0;
    loop {
        let target = format!("/api/v1/dlq?queue={QUEUE}&limit=1000&offset={offset}");
        let body = client.get(&target).unwrap().json();
        let rows = body["messages"].as_array().unwrap();
        if rows.is_empty() {
            assert_eq!(body["total"], remains.dead_letters.len(), "dead letters");
            return remains;
        }
        offset += rows.len();
        for row in rows {
            let name = row["consumerGroup"].as_str().unwrap();
            let name = if name == "__QUEUE_MODE__" { "" } else { name };
            let group = GROUPS.iter().position(|group| *group == name).unwrap();
            let partition = row["partition"].as_str().unwrap().parse().unwrap();
            remains.dead_letters.push((group, partition, row["offset"].as_u64().unwrap()));
        }
    }
}

fn print_counts(events: &[Event]) {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = |name: &str, more: usize| {
        *counts.entry(name.to_owned()).or_default() += more as u64;
    };
    for event in events {
        match event {
            Event::Push(push) => count("pushes", usize::from(!push.again)),
            Event::Pop(pop) => match &pop.claims {
                None => count("pops without an answer", 1),
                Some(claims) => {
                    count("pops", 1);
                    count("claims", claims.len());
                    count("claims again", claims.iter().filter(|c| c.attempt > 1).count());
                    count("claims committed", if pop.auto { claims.len() } else { 0 });
                }
            },
            Event::Settle(settle) => match &settle.answer {
                Answer::Judged(verdicts) if verdicts.iter().all(|v| v.lease_refused) => {
                    count("acks refused", 1);
                }
                Answer::Judged(_) => count("acks", 1),
                Answer::RolledBack => count("acks rolled back", 1),
                Answer::Unknown => count("acks without an answer", 1),
            },
            Event::Extend(extend) => {
                let renewed = extend.renewed.is_some_and(|renewed| renewed > 0);
                count(if renewed { "extensions" } else { "extensions refused" }, 1);
            }
            Event::Transaction(transaction) => match &transaction.outcome {
                Outcome::Committed => count("transactions", 1),
                Outcome::RolledBack(why) => count(&format!("transactions {why}"), 1),
                Outcome::Unknown => count("transactions without an answer", 1),
            },
            Event::Kill(_) => count("kills", 1),
        }
    }
    for (name, number) in counts {
        println!("{number:>8} {name}");
    }
}

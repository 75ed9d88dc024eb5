//! Many transactions over the same partitions at once: every one is answered, and what they move
//! between partitions is neither lost nor doubled.

use std::collections::BTreeMap;

use serde_json::json;

use super::support::{Broker, Client, Message, Options, Wire, number};
use super::{ack_of, broker, push_of, transact};

const PARTITIONS: u64 = 6;
const TOKENS: usize = 60;

/// Takes tokens from wherever they lie and moves each, with its ack, to the next partition. A
/// sixth of the transactions is made to fail.
fn mover(address: std::net::SocketAddr, who: u64, rounds: u64) -> (u64, u64) {
    let mut client = Client::connect(address).unwrap();
    let (mut moved, mut failed) = (0, 0);
    for round in 0..rounds {
        let popped = client.pop("ring?batch=3&partitions=2&wait=true&timeout=2000");
        if popped.is_empty() {
            continue;
        }
        let to = |message: &Message, more: u64| {
            let from: u64 = message.partition.parse().unwrap();
            ((from + 1 + (who + round + more) % (PARTITIONS - 1)) % PARTITIONS).to_string()
        };
        let mut operations = Vec::new();
        for (i, message) in popped.iter().enumerate() {
            operations.push(ack_of(message, "completed"));
            let id = format!("{}-{who}-{round}-{i}", message.data);
            let token = message.data.parse().unwrap();
            operations.push(push_of("ring", &to(message, i as u64), &id, token));
        }
        let fails = (who + round).is_multiple_of(6);
        if fails {
            operations.push(json!({"type": "ack", "transactionId": "nobody's",
                "partitionId": popped[0].partition_id, "leaseId": popped[0].lease_id}));
        }
        let answer = transact(&mut client, &json!({"operations": operations}));
        assert_eq!(answer["success"], !fails, "{answer}");
        if fails {
            failed += 1;
            for message in &popped {
                client.ack(message, "retry");
            }
        } else {
            moved += popped.len() as u64;
        }
    }
    (moved, failed)
}

fn tokens_left(client: &mut Client) -> BTreeMap<String, u64> {
    let mut left = BTreeMap::new();
    loop {
        let popped = client.pop("ring?batch=1000&partitions=64&autoAck=true");
        if popped.is_empty() {
            return left;
        }
        for message in popped {
            *left.entry(message.data).or_default() += 1;
        }
    }
}

#[test]
fn what_transactions_move_around_a_ring_is_there_once_at_the_end() {
    let mut broker = broker();
    let mut client = broker.client();
    for token in 0..TOKENS {
        let partition = (token as u64 % PARTITIONS).to_string();
        client.push_one("ring", &partition, &format!("start-{token}"), &token.to_string());
    }
    let (address, rounds) = (broker.address(), number("ROUNDS", 30));
    let movers: Vec<_> =
        (0..12).map(|who| std::thread::spawn(move || mover(address, who, rounds))).collect();
    let sums =
        movers.into_iter().map(|m| m.join().unwrap()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert!(sums.0 > 60 && sums.1 > 5, "too little happened: {sums:?}");
    drop(client);
    broker.kill9();
    broker.restart();
    let left = tokens_left(&mut broker.client());
    let once: BTreeMap<String, u64> = (0..TOKENS).map(|token| (token.to_string(), 1)).collect();
    assert_eq!(left, once);
}

#[test]
fn one_shard_and_four_do_the_same() {
    for shards in [1, 4] {
        let broker = Broker::start(Options { shards, ..Options::default() });
        let mut client = broker.client();
        for i in 0..8 {
            client.push_one("in", &format!("p{i}"), &format!("t{i}"), "1");
        }
        let popped = client.pop("in?batch=100&partitions=64");
        assert_eq!(popped.len(), 8);
        let mut operations: Vec<_> = popped.iter().map(|m| ack_of(m, "completed")).collect();
        operations.extend((0..8).map(|i| push_of("out", &format!("p{i}"), "", i)));
        let answer = transact(&mut client, &json!({"operations": operations}));
        assert_eq!(answer["success"], true, "{answer}");
        assert!(client.pop("in?batch=100&partitions=64").is_empty());
        assert_eq!(client.pop("out?batch=100&partitions=64").len(), 8);
    }
}

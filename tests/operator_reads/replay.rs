//! Dead letters that are pushed again: out of the listing and back into a partition in one step.

use serde_json::{Value, json};

use crate::support::{Client, Message, Wire};
use crate::{broker, dead_letter, restart};

fn row_id(client: &mut Client, queue: &str) -> String {
    client.dead_letters(queue)[0]["id"].as_str().unwrap().to_owned()
}

fn replay(client: &mut Client, id: &str, body: &str) -> (u16, Value) {
    let answer = client.post(&format!("/api/v1/dlq/{id}/replay"), body).unwrap();
    (answer.status, answer.json())
}

#[test]
fn a_replayed_dead_letter_comes_at_the_end_of_its_partition_for_every_group() {
    let mut broker = broker();
    let mut client = broker.client();
    let payload = "{ \"kept\" : 1.0 }";
    let dead = dead_letter(&mut client, "q", "p", "poison", payload, "why");
    client.push_one("q", "p", "behind", "2");
    let id = row_id(&mut client, "q");
    let (status, answer) = replay(&mut client, &id, "");
    assert_eq!((status, &answer["result"]), (200, &json!("moved")), "{answer}");
    assert_eq!((&answer["dlqRowRemoved"], &answer["dlqId"]), (&json!(true), &json!(id)));
    assert_eq!(answer["originalTransactionId"], "poison");
    assert_eq!(answer["replayedAs"]["transaction_id"], format!("dlq:{id}"));
    assert_eq!(
        (&answer["replayedAs"]["offset"], &answer["replayedAs"]["status"]),
        (&json!(2), &json!("queued"))
    );
    assert_ne!(answer["replayedAs"]["message_id"], dead.id);
    // Sent again, as a client does that had no answer: it happened once.
    let (status, answer) = replay(&mut client, &id, "{}");
    assert_eq!(
        (status, &answer["result"], &answer["error"]),
        (404, &json!("gone"), &json!("Message not found"))
    );
    drop(client);
    let mut client = restart(&mut broker, false);
    assert!(client.dead_letters("q").is_empty());
    let bodies = |messages: Vec<Message>| messages.into_iter().map(|m| m.data).collect::<Vec<_>>();
    assert_eq!(bodies(client.pop("q/partition/p")), ["2", payload]);
    let other = client.pop("q/partition/p?consumerGroup=g&subscriptionMode=all");
    assert_eq!(bodies(other), [payload, "2", payload]);
}

#[test]
fn by_its_address_and_to_another_queue_on_another_shard() {
    let broker = broker();
    let mut client = broker.client();
    for i in 0..8 {
        let (tx, partition) = (format!("t/{i}"), format!("p{i}"));
        let dead = dead_letter(&mut client, "from", "p", &tx, &i.to_string(), "why");
        let target = format!("/api/v1/messages/{}/t%2F{i}/retry", dead.partition_id);
        let body = json!({"queue": "to.there", "partition": partition}).to_string();
        let answer = client.post(&target, &body).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        assert_eq!(
            (&answer["queue"], &answer["partition"]),
            (&json!("to.there"), &json!(partition))
        );
        assert_eq!(answer["consumerGroup"], "__QUEUE_MODE__");
        assert_eq!(client.pop(&format!("to.there/partition/{partition}"))[0].data, i.to_string());
        assert_eq!(client.post(&target, &body).unwrap().status, 404);
    }
    assert!(client.dead_letters("from").is_empty());
    assert!(client.pop("from").is_empty());
}

#[test]
fn what_is_no_dead_letter_is_not_replayed() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("q", "p", "alive", "1");
    let live = client.pop("q").remove(0);
    let retry = |client: &mut Client, partition: &str, tx: &str| {
        client.post(&format!("/api/v1/messages/{partition}/{tx}/retry"), "{}").unwrap().status
    };
    assert_eq!(retry(&mut client, &live.partition_id, "alive"), 404);
    assert_eq!(retry(&mut client, "77", "alive"), 404);
    assert_eq!(retry(&mut client, "none", "alive"), 404);
    assert_eq!(replay(&mut client, "0191a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "").0, 404);
    assert_eq!(replay(&mut client, "no-id", "").0, 404);
    dead_letter(&mut client, "r", "p", "t", "1", "why");
    let id = row_id(&mut client, "r");
    for body in [r#"{"queue":""}"#, r#"{"partition":""}"#, "[]", "{"] {
        assert_eq!(replay(&mut client, &id, body).0, 400, "{body}");
    }
    assert_eq!(client.dead_letters("r").len(), 1, "still there");
}

#[test]
fn an_id_that_is_stored_already_keeps_the_row() {
    let broker = broker();
    let mut client = broker.client();
    dead_letter(&mut client, "q", "p", "t", "1", "why");
    let id = row_id(&mut client, "q");
    let stored = client.push_one("q", "p", &format!("dlq:{id}"), "9");
    let (status, answer) = replay(&mut client, &id, "");
    assert_eq!((status, &answer["result"]), (200, &json!("duplicate")), "{answer}");
    assert_eq!(
        (&answer["dlqRowRemoved"], &answer["replayedAs"]["offset"]),
        (&json!(false), &stored["offset"])
    );
    assert_eq!(answer["replayedAs"]["message_id"], stored["message_id"]);
    assert_eq!(client.dead_letters("q").len(), 1);
}

#[test]
fn of_many_replays_of_one_row_to_different_places_one_happens() {
    let broker = broker();
    let mut client = broker.client();
    for round in 0..5 {
        dead_letter(&mut client, "q", "p", &format!("t{round}"), "1", "why");
        let id = row_id(&mut client, "q");
        let address = broker.address();
        let racers: Vec<_> = (0..8)
            .map(|i| {
                let id = id.clone();
                std::thread::spawn(move || {
                    let mut client = Client::connect(address).unwrap();
                    let body = json!({"queue": "out", "partition": format!("{round}-{i}")});
                    replay(&mut client, &id, &body.to_string()).0
                })
            })
            .collect();
        let mut outcomes: Vec<u16> = racers.into_iter().map(|r| r.join().unwrap()).collect();
        outcomes.sort_unstable();
        assert_eq!(outcomes, [200, 404, 404, 404, 404, 404, 404, 404]);
    }
    assert_eq!(client.pop("out?batch=100&partitions=64").len(), 5);
}

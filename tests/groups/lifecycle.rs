//! First contact, deletion, moved subscriptions, and queues that appear.

use super::*;
use support::{Options, within};

#[test]
fn a_deleted_group_is_a_stranger_again() {
    let mut broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 2);
    let held = take_all(&mut client, "q", "g", "&leaseSeconds=600");
    assert_eq!(held.len(), 2 * PARTITIONS);
    let done = delete(&mut client, "g/queues/q");
    let wanted = json!({
        "success": true, "consumerGroup": "g", "queueName": "q",
        "deletedPartitions": PARTITIONS, "metadataDeleted": true, "queues": ["q"],
    });
    assert_eq!(done, wanted);
    assert!(client.ack_all(&held, "g").iter().all(|r| r["success"] == false));
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    // Its next pop says where it starts, and this time it is the end.
    let target = "q?consumerGroup=g&batch=100&partitions=64&subscriptionMode=new";
    assert!(client.pop(target).is_empty());
    fill(&mut client, "q", 2, 1);
    assert_eq!(client.pop(target).len(), PARTITIONS);
    delete(&mut client, "g");
    assert_eq!(take_all(&mut client, "q", "g", "").len(), 3 * PARTITIONS);
    let nothing = delete(&mut client, "nobody");
    assert_eq!((nothing["deletedPartitions"].as_u64(), &nothing["queues"]), (Some(0), &json!([])));
}

#[test]
fn a_deletion_reaches_every_queue_and_cursors_of_pinned_pops() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    for queue in ["a", "b", "c"] {
        fill(&mut client, queue, 0, 1);
    }
    assert_eq!(consume_all(&mut client, "a", "g"), PARTITIONS);
    let pinned = "b/partition/p2?consumerGroup=g&subscriptionMode=all&autoAck=true";
    assert_eq!(client.pop(pinned).len(), 1);
    assert!(client.pop(pinned).is_empty());
    let done = delete(&mut client, "g");
    assert_eq!((done["queueName"].is_null(), &done["queues"]), (true, &json!(["a", "b"])));
    assert_eq!(done["deletedPartitions"], PARTITIONS + 1);
    assert_eq!(client.pop(pinned).len(), 1);
    assert_eq!(consume_all(&mut client, "a", "g"), PARTITIONS);
}

#[test]
fn a_registration_that_is_kept_seeds_the_next_contact() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 1);
    let new = "q?consumerGroup=g&batch=100&partitions=64&subscriptionMode=new";
    assert!(client.pop(new).is_empty());
    fill(&mut client, "q", 1, 1);
    assert_eq!(consume_all(&mut client, "q", "g"), PARTITIONS);
    let done = delete(&mut client, "g?deleteMetadata=false");
    assert_eq!(done["metadataDeleted"], false);
    let again = take_all(&mut client, "q", "g", "");
    assert!(again.len() == PARTITIONS && again.iter().all(|m| m.offset == 1), "{again:?}");
}

#[test]
fn a_moved_subscription_counts_where_nothing_was_delivered() {
    let mut broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 2);
    let first = client.pop("q/partition/p0?consumerGroup=g&subscriptionMode=all&autoAck=true");
    assert_eq!(first.len(), 2);
    assert!(client.pop("q?consumerGroup=g&subscriptionMode=new&batch=100").is_empty());
    let path = group_path("g", "/subscription");
    let body = r#"{"subscriptionTimestamp":"1970-01-01T00:00:00Z"}"#;
    let moved = client.post(&path, body).unwrap();
    let wanted = json!({
        "success": true, "consumerGroup": "g", "newTimestamp": "1970-01-01T00:00:00Z",
        "rowsUpdated": 1,
    });
    assert_eq!((moved.status, moved.json()), (200, wanted));
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    let messages = take_all(&mut client, "q", "g", "");
    assert_eq!(messages.len(), 2 * (PARTITIONS - 1), "cursors stay where they are");
    let none = client.post(&group_path("nobody", "/subscription"), body).unwrap().json();
    assert_eq!(none["rowsUpdated"], 0);
    for body in ["{}", r#"{"subscriptionTimestamp":"soon"}"#] {
        refused(&client.post(&path, body).unwrap(), 400, "bad_request");
    }
}

#[test]
fn a_pop_that_waits_while_its_group_is_deleted_registers_anew() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 1);
    assert_eq!(consume_all(&mut client, "q", "g"), PARTITIONS);
    let path = "/api/v1/pop/queue/q?consumerGroup=g&batch=10&wait=true&timeout=20000\
                &subscriptionMode=all";
    let (answer, late) = woken_by(&broker, path, |c| _ = delete(c, "g"));
    assert_eq!(Message::all(&answer).len(), 1);
    assert!(late < within(Duration::from_millis(250)), "{late:?} after the deletion");
}

#[test]
fn a_discovery_pop_waits_and_a_new_queue_wakes_it() {
    let broker = Broker::start(Options::default());
    let path = "/api/v1/pop?namespace=orders&consumerGroup=g&batch=10&wait=true&timeout=20000\
                &subscriptionMode=all";
    let (answer, late) = woken_by(&broker, path, |c| {
        c.push_one("other.eu", "p", "a", "1");
        c.push_one("orders.eu", "p", "b", "2");
    });
    let messages = Message::all(&answer);
    assert_eq!(messages.iter().map(|m| m.transaction_id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(late < within(Duration::from_millis(250)), "{late:?} after the push");
}

/// A second group once missed the first message of a new partition.
#[test]
fn two_groups_that_wait_both_get_the_first_message_of_a_new_partition() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    client.configure("q", json!({}));
    for round in 0..6 {
        let waiting: Vec<_> = ["g1", "g2"]
            .map(|group| {
                let mut client = broker.client();
                let target = format!("q?consumerGroup={group}&batch=10&wait=true&timeout=20000");
                thread::spawn(move || client.pop(&format!("{target}&autoAck=true")))
            })
            .into();
        thread::sleep(Duration::from_millis(200));
        client.push_one("q", &format!("new{round}"), "t", "1");
        for waiter in waiting {
            assert_eq!(waiter.join().unwrap().len(), 1, "round {round}");
        }
    }
}

#[test]
fn the_second_of_two_that_wait_is_served_when_the_first_dies() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    client.configure("q", json!({}));
    let path = "/api/v1/pop/queue/q?batch=10&wait=true&timeout=20000&leaseSeconds=600";
    for round in 0..4 {
        let mut first = broker.client();
        first.send_raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(150));
        let (answer, late) = woken_by(&broker, path, |c| {
            drop(first);
            thread::sleep(Duration::from_millis(150));
            c.push_one("q", "p", &format!("t{round}"), "1");
        });
        let messages = Message::all(&answer);
        assert_eq!(messages.len(), 1, "round {round}");
        assert!(late < within(Duration::from_millis(250)), "{late:?} after the push");
        client.ack(&messages[0], "completed");
    }
}

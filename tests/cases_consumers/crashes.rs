//! Positions and deletions over crashes.

use std::time::Duration;

use serde_json::json;

use crate::support::{Wire, number};
use crate::{broker, detail, drain, item, offsets, restart};

#[test]
fn a_consumer_goes_on_behind_its_last_ack_after_a_kill() {
    let mut broker = broker();
    let mut client = broker.client();
    client.push_items(&(0..1_000).map(|n| item("half", "p", n)).collect::<Vec<_>>().join(","));
    for _ in 0..5 {
        let popped = client.pop("half?batch=100");
        assert!(client.ack_all(&popped, "").iter().all(|result| result["success"] == true));
    }
    for clean in [false, true, false] {
        client = restart(&mut broker, clean);
        let next = client.pop("half?batch=1").remove(0);
        assert_eq!((next.offset, next.data.as_str()), (500, "500"));
        assert_eq!(client.ack(&next, "retry")["success"], true);
    }
    assert_eq!(offsets(&drain(&mut client, "half")), (500..1_000).collect::<Vec<_>>());
}

#[test]
fn a_hundred_groups_keep_their_positions_over_restarts() {
    let mut broker = broker();
    let mut client = broker.client();
    for partition in ["a", "b"] {
        let of = |n| item("groups", partition, n);
        client.push_items(&(0..20).map(of).collect::<Vec<_>>().join(","));
    }
    // A group that starts at new messages, and one for each position there is.
    assert!(client.pop("groups?consumerGroup=late&subscriptionMode=new").is_empty());
    let target = |group: u64, partition: &str, batch: u64| {
        format!(
            "groups/partition/{partition}?consumerGroup=g{group}&subscriptionMode=all&batch={batch}"
        )
    };
    for group in 0..100 {
        let (done, name) = (group % 20, format!("g{group}"));
        for partition in ["a", "b"] {
            if done > 0 {
                let popped = client.pop(&target(group, partition, done));
                assert_eq!(client.ack_all(&popped, &name).len() as u64, done);
            }
        }
    }
    for clean in [false, true] {
        client = restart(&mut broker, clean);
        for group in 0..100 {
            for partition in ["a", "b"] {
                let popped = client.pop(&target(group, partition, 1));
                assert_eq!(offsets(&popped), [group % 20], "g{group} on {partition}");
                let group = json!({"consumerGroup": format!("g{group}")});
                assert_eq!(client.ack_with(&popped[0], "retry", group)["success"], true);
            }
        }
        assert!(client.pop("groups?consumerGroup=late").is_empty(), "it reads no backlog");
    }
    client.push_items(&item("groups", "a", 20));
    assert_eq!(offsets(&client.pop("groups?consumerGroup=late")), [20]);
}

#[test]
fn a_kill_inside_the_deletion_of_a_queue_leaves_all_of_it_or_nothing() {
    let mut broker = broker();
    let (mut gone, mut kept) = (0, 0);
    let mut random = number("SEED", 11);
    for round in 0..number("DELETE_KILLS", 8) {
        let mut client = broker.client();
        let of = |n: u64| item("cut", &format!("p{n}"), n);
        client.push_items(&(0..1_000).map(of).collect::<Vec<_>>().join(","));
        let held = client.pop("cut?batch=1&consumerGroup=g&subscriptionMode=all").remove(0);
        let nack = json!({"consumerGroup": "g"});
        assert_eq!(client.ack_with(&held, "dlq", nack)["dlq"], true);
        let mut deleting = broker.client();
        deleting
            .send_raw(b"DELETE /api/v1/resources/queues/cut HTTP/1.1\r\nHost: l\r\n\r\n")
            .unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((random >> 33) % 500));
        broker.kill9();
        let answered = deleting.read_response(false).is_ok_and(|answer| answer.status == 200);
        broker.restart();
        let mut client = broker.client();
        let path = "/api/v1/resources/queues/cut";
        let there = client.get(path).unwrap().status == 200;
        assert!(!(there && answered), "round {round}: it is back");
        if there {
            kept += 1;
            assert_eq!(detail(&mut client, "cut")["totals"]["total"], 1_000);
            assert_eq!(client.dead_letters("cut").len(), 1);
            assert_eq!(drain(&mut client, "cut").len(), 1_000);
        } else {
            gone += 1;
            assert!(client.dead_letters("cut").is_empty(), "its dead letters went with it");
        }
        let deleted = client.delete(path).unwrap().json();
        assert_eq!((&deleted["deleted"], &deleted["existed"]), (&json!(there), &json!(there)));
        assert!(client.pop("cut/partition/p7").is_empty());
        // Nothing of the old queue is in the next one: no ids, no offsets, no positions.
        let again = client.push_one("cut", "p7", "t7", "7");
        assert_eq!((&again["status"], &again["offset"]), (&json!("queued"), &json!(0)));
        let read = client.pop("cut/partition/p7?consumerGroup=g&subscriptionMode=all");
        assert_eq!(offsets(&read), [0]);
        client.delete(path).unwrap();
    }
    println!("gone={gone} kept={kept}");
}

//! Moving a group's cursors: to the end, to a time, past it, on one partition.

use super::*;
use support::{Options, within};

const EPOCH: &str = "1970-01-01T00:00:00Z";

#[test]
fn a_seek_moves_every_partition_and_outlives_a_restart() {
    let mut broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 3);
    assert_eq!(consume_all(&mut client, "q", "g"), 3 * PARTITIONS);
    assert_eq!(pending(&mut client, "q"), 0);

    let done = seek(&mut client, "g", "q", json!({"timestamp": EPOCH}));
    let wanted = json!({
        "success": true, "consumerGroup": "g", "queueName": "q", "partitionName": null,
        "seekToEnd": false, "targetTimestamp": EPOCH, "partitionsUpdated": PARTITIONS,
        "updated": true,
    });
    assert_eq!(done, wanted);
    assert_eq!(pending(&mut client, "q"), 3 * PARTITIONS as u64);
    assert_eq!(take_all(&mut client, "q", "g", "&leaseSeconds=600").len(), 3 * PARTITIONS);

    let done = seek(&mut client, "g", "q", json!({"toEnd": true}));
    assert_eq!(
        (done["seekToEnd"].as_bool(), done["targetTimestamp"].is_null()),
        (Some(true), true)
    );
    assert_eq!(pending(&mut client, "q"), 0);
    fill(&mut client, "q", 3, 1);
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(pending(&mut client, "q"), PARTITIONS as u64);
    let messages = take_all(&mut client, "q", "g", "");
    assert_eq!(messages.len(), PARTITIONS, "only what came after the seek");
    assert!(messages.iter().all(|m| m.offset == 3 && m.attempt == 1));
}

#[test]
fn a_seek_ends_live_leases_and_their_acks_fail() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 2);
    let held = take_all(&mut client, "q", "g", "&leaseSeconds=600");
    assert_eq!(held.len(), 2 * PARTITIONS);
    seek(&mut client, "g", "q", json!({"timestamp": EPOCH}));
    for result in client.ack_all(&held, "g") {
        assert_eq!(
            (result["success"].as_bool(), result["noop"].as_bool()),
            (Some(false), Some(false))
        );
        let error = result["error"].as_str().unwrap();
        assert!(error.contains("invalid or expired lease"), "{error}");
    }
    let extended = client.post(&format!("/api/v1/lease/{}/extend", held[0].lease_id), "{}");
    assert_eq!(extended.unwrap().json()["renewed"], 0);
    let again = take_all(&mut client, "q", "g", "");
    assert_eq!(again.len(), 2 * PARTITIONS);
    assert!(again.iter().all(|m| m.attempt == 1 && m.lease_id != held[0].lease_id));
    assert!(client.ack_all(&again, "g").iter().all(|r| r["success"] == true));
    assert!(take_all(&mut client, "q", "g", "").is_empty());
}

/// A position behind everything that is stored was once kept as it came, and such a group never
/// read again.
#[test]
fn a_seek_past_the_end_reads_what_comes_next() {
    let mut broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 2);
    seek(&mut client, "g", "q", json!({"timestamp": "2999-01-01T00:00:00Z"}));
    let one = group_path("one", "/queues/q/partitions/p1/seek");
    let answer = client.post(&one, r#"{"timestamp":"9999-12-31T23:59:59Z"}"#).unwrap();
    assert_eq!(answer.json()["partitionName"], "p1");
    assert!(take_all(&mut client, "q", "g", "").is_empty());
    fill(&mut client, "q", 2, 1);
    assert_eq!(take_all(&mut client, "q", "g", "").len(), PARTITIONS);
    let pinned = "q/partition/p1?consumerGroup=one&batch=10";
    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    let messages = client.pop(pinned);
    assert_eq!(messages.iter().map(|m| m.offset).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_seek_of_one_partition_moves_that_one() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 2);
    assert_eq!(consume_all(&mut client, "q", "g"), 2 * PARTITIONS);
    let path = group_path("g", "/queues/q/partitions/p3/seek");
    let answer = client.post(&path, format!("{{\"timestamp\":\"{EPOCH}\"}}")).unwrap();
    let body = answer.json();
    assert_eq!(
        (body["partitionName"].as_str(), body["partitionsUpdated"].as_u64()),
        (Some("p3"), Some(1))
    );
    assert_eq!(pending(&mut client, "q"), 2);
    let again = take_all(&mut client, "q", "g", "");
    assert!(again.len() == 2 && again.iter().all(|m| m.partition == "p3"), "{again:?}");
    assert!(client.post(&path, "").unwrap().json()["seekToEnd"].as_bool().unwrap());
    assert!(take_all(&mut client, "q", "g", "").is_empty());
}

#[test]
fn queue_mode_is_a_group_that_can_be_sought() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 1);
    seek(&mut client, "__QUEUE_MODE__", "q", json!({"toEnd": true}));
    assert!(client.pop("q?batch=100&partitions=64").is_empty());
    delete(&mut client, "__QUEUE_MODE__/queues/q");
    assert_eq!(client.pop("q?batch=100&partitions=64").len(), PARTITIONS);
}

#[test]
fn what_a_seek_cannot_mean_is_refused() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    client.push_one("q", "p", "a", "1");
    let path = group_path("g", "/queues/q/seek");
    for body in [r#"{"position":"earliest"}"#, "{}", r#"{"timestamp":"soon"}"#] {
        refused(&client.post(&path, body).unwrap(), 400, "bad_request");
    }
    refused(&client.post(&path, "[").unwrap(), 400, "bad_body");
    for (rest, partition) in
        [("/queues/none/seek", None), ("/queues/q/partitions/none/seek", Some("none"))]
    {
        let body = refused(&client.post(&group_path("g", rest), "").unwrap(), 404, "not_found");
        assert_eq!(
            (body["consumerGroup"].as_str(), body["partitionsUpdated"].as_u64()),
            (Some("g"), Some(0)),
            "{partition:?}"
        );
    }
    let long = "g".repeat(500);
    let path = group_path(&long, "/queues/q/seek");
    refused(&client.post(&path, "").unwrap(), 413, "name_too_long");
}

#[test]
fn a_seek_wakes_pops_that_wait() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 1);
    assert_eq!(consume_all(&mut client, "q", "g"), PARTITIONS);
    for target in ["q?consumerGroup=g", "q/partition/p1?consumerGroup=g"] {
        let path = format!("/api/v1/pop/queue/{target}&batch=10&wait=true&timeout=20000");
        let (answer, late) = woken_by(&broker, &path, |c| {
            seek(c, "g", "q", json!({"timestamp": EPOCH}));
        });
        assert_eq!(answer.status, 200, "{target}");
        assert!(late < within(Duration::from_millis(250)), "{late:?} after the seek, {target}");
        seek(&mut client, "g", "q", json!({"toEnd": true}));
    }
}

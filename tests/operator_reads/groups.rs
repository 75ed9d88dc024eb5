//! Consumer groups: the list, one group, the lagging ones.

use serde_json::Value;

use crate::support::Wire;
use crate::{broker, read, restart, sleep_ms};

#[test]
fn groups_are_listed_and_shown_with_where_they_stand_also_after_a_kill() {
    let mut broker = broker();
    let mut client = broker.client();
    for n in 0..8 {
        client.push_one("cg", &format!("p{}", n % 4), &format!("t{n}"), "1");
    }
    let all = "subscriptionMode=all";
    let popped = client.pop(&format!("cg?batch=100&partitions=64&consumerGroup=g1&{all}"));
    assert_eq!(popped.len(), 8);
    client.ack_all(&popped, "g1");
    let first = client.pop(&format!("cg/partition/p0?batch=1&consumerGroup=g2&{all}"));
    client.ack_all(&first, "g2");
    client.pop("cg/partition/p1?batch=1&leaseSeconds=60");
    for clean in [true, false] {
        let list = read(&mut client, "/api/v1/consumer-groups");
        let names: Vec<&str> =
            list.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["__QUEUE_MODE__", "g1", "g2"]);
        let g1 = &list[1];
        assert_eq!(
            (&g1["members"], &g1["totalLag"], &g1["state"]),
            (&4.into(), &0.into(), &"Stable".into())
        );
        assert_eq!((&g1["subscriptionMode"], &g1["topics"][0]), (&"all".into(), &"cg".into()));
        assert_eq!((&list[2]["totalLag"], &list[2]["subscriptionMode"]), (&1.into(), &Value::Null));
        assert_eq!((&list[0]["totalLag"], &list[0]["state"]), (&2.into(), &"Dead".into()));
        let group = read(&mut client, "/api/v1/consumer-groups/g2");
        let lane = &group["cg"]["partitions"][0];
        assert_eq!((&lane["partition"], &lane["totalConsumed"]), (&"p0".into(), &1.into()));
        assert_eq!((&lane["offsetLag"], &lane["leaseActive"]), (&1.into(), &false.into()));
        assert!(lane.as_object().unwrap().contains_key("workerId"));
        let mode = read(&mut client, "/api/v1/consumer-groups/__QUEUE_MODE__");
        assert_eq!(mode["cg"]["partitions"][0]["leaseActive"], true);
        client = restart(&mut broker, clean);
    }
    let page = read(&mut client, "/api/v1/consumer-groups/g1?limit=2&offset=1");
    let names: Vec<&str> = page["cg"]["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["partition"].as_str().unwrap())
        .collect();
    assert_eq!((names, &page["cg"]["partitionsTruncated"]), (vec!["p1", "p2"], &true.into()));
    let missing = client.get("/api/v1/consumer-groups/nobody").unwrap();
    assert_eq!(
        (missing.status, &missing.json()["error"]),
        (404, &"Consumer group not found".into())
    );
    assert_eq!(
        read(&mut client, "/api/v1/consumer-groups?limit=1&offset=1").as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_group_that_is_behind_lags_the_oldest_first() {
    let broker = broker();
    let mut client = broker.client();
    for partition in ["old", "new"] {
        client.push_one("lag", partition, "a", "1");
        client.push_one("lag", partition, "b", "1");
        sleep_ms(1_100);
        let popped = client.pop(&format!(
            "lag/partition/{partition}?batch=1&consumerGroup=g&subscriptionMode=all"
        ));
        client.ack_all(&popped, "g");
    }
    let rows = read(&mut client, "/api/v1/consumer-groups/lagging?minLagSeconds=0");
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["partition_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["old", "new"]);
    assert_eq!((&rows[0]["offset_lag"], &rows[0]["consumer_group"]), (&1.into(), &"g".into()));
    assert!(rows[0]["time_lag_seconds"].as_u64().unwrap() >= 2, "{}", rows[0]);
    assert!(rows[0]["lag_hours"].is_number() && rows[0]["oldest_unconsumed_at"].is_string());
    assert_eq!(read(&mut client, "/api/v1/consumer-groups/lagging"), serde_json::json!([]));
    assert_eq!(client.get("/api/v1/consumer-groups/lagging?minLagSeconds=x").unwrap().status, 400);
}

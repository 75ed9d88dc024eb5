//! What waits where: depth, sizes, partitions by pending, the status pages.

use serde_json::{Value, json};

use crate::support::{Client, Wire};
use crate::{broker, read};

fn fill(client: &mut Client, queue: &str, counts: &[(&str, u64)]) {
    for (partition, count) in counts {
        for n in 0..*count {
            client.push_one(queue, partition, &format!("t{n}"), "{\"a\":1}");
        }
    }
}

#[test]
fn the_depth_is_the_slowest_readers_or_one_groups() {
    let broker = broker();
    let mut client = broker.client();
    fill(&mut client, "deep", &[("a", 4), ("b", 2), ("c", 1)]);
    let depth = |client: &mut Client, query: &str| {
        let body = read(client, &format!("/api/v1/resources/queues/deep/depth{query}"));
        let number = |key: &str| body[key].as_u64().unwrap();
        let counts = ["pending", "processing", "ready", "partitionsPending", "partitionsReady"];
        (counts.map(number), body)
    };
    let (counts, body) = depth(&mut client, "");
    assert_eq!(counts, [7, 0, 7, 3, 3]);
    assert_eq!((&body["group"], &body["conflation"]), (&Value::Null, &false.into()));
    let names: Vec<&str> = body["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["partition"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    for (group, batch) in [("fast", 4), ("slow", 1)] {
        let query = format!("consumerGroup={group}&subscriptionMode=all");
        let popped = client.pop(&format!("deep/partition/a?{query}&batch={batch}"));
        assert_eq!(client.ack_all(&popped, group).len(), batch);
        // A queue-wide pop registers the group.
        let held = client.pop(&format!("deep?{query}&batch=1&leaseSeconds=30"));
        assert_eq!(held.len(), 1);
    }
    let (counts, _) = depth(&mut client, "?group=fast");
    assert_eq!(counts[..4], [3, 1, 2, 2]);
    assert_eq!(depth(&mut client, "?group=slow").0[0], 6);
    assert_eq!(depth(&mut client, "").0[0], 6, "the slowest counts");
    assert_eq!(depth(&mut client, "?group=nobody").0, [7, 0, 7, 3, 3], "it owes everything");
    let (_, body) = depth(&mut client, "?limit=1");
    assert_eq!(
        (body["partitions"].as_array().unwrap().len(), &body["partitionsTruncated"]),
        (1, &true.into())
    );
    for page in ["depth", "sizes"] {
        let answer = client.get(&format!("/api/v1/resources/queues/none/{page}")).unwrap();
        assert_eq!((answer.status, &answer.json()["error"]), (404, &"Queue not found".into()));
    }
}

#[test]
fn partitions_are_ranked_by_pending_and_sizes_go_by_name() {
    let broker = broker();
    let mut client = broker.client();
    fill(&mut client, "rank", &[("b", 2), ("a", 2), ("c", 5), ("d", 1)]);
    fill(&mut client, "more", &[("z", 3)]);
    let mut names = |query: &str| -> Vec<String> {
        let body = read(&mut client, &format!("/api/v1/resources/partitions{query}"));
        let rows = body["partitions"].as_array().unwrap();
        rows.iter()
            .map(|row| format!("{}:{}", row["partition"].as_str().unwrap(), row["pending"]))
            .collect()
    };
    assert_eq!(names("?queue=rank"), ["c:5", "a:2", "b:2", "d:1"]);
    assert_eq!(names(""), ["c:5", "z:3", "a:2", "b:2", "d:1"]);
    assert_eq!(names("?limit=2&offset=1"), ["z:3", "a:2"]);
    let drained = client.pop("more?autoAck=true&batch=10");
    assert_eq!(drained.len(), 3);
    let body = read(&mut client, "/api/v1/resources/partitions?queue=more");
    assert_eq!(
        (&body["partitions"][0]["pending"], &body["partitions"][0]["lagSeconds"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!((&body["walked"], &body["truncated"]), (&1.into(), &false.into()));
    assert_eq!(client.get("/api/v1/resources/partitions?queue=none").unwrap().status, 404);
    let sizes = client.get("/api/v1/resources/queues/rank/sizes").unwrap().text();
    let places: Vec<usize> = ["\"a\":", "\"b\":", "\"c\":", "\"d\":"]
        .iter()
        .map(|key| sizes.find(key).unwrap())
        .collect();
    assert!(places.is_sorted(), "{sizes}");
    let sizes: Value = serde_json::from_str(&sizes).unwrap();
    let bytes = |name: &str| sizes["partitions"][name].as_u64().unwrap();
    assert!(bytes("c") > bytes("a") && bytes("a") == bytes("b") && bytes("d") > 0, "{sizes}");
}

#[test]
fn a_walk_over_many_partitions_goes_in_steps_and_finds_them_all() {
    let broker = broker();
    let mut client = broker.client();
    for block in 0..20 {
        let items: Vec<String> = (0..1_000)
            .map(|n| {
                let partition = format!("p{:05}", block * 1_000 + n);
                format!("{{\"queue\":\"wide\",\"partition\":\"{partition}\",\"payload\":1}}")
            })
            .collect();
        client.push_items(&items.join(","));
    }
    let depth = read(&mut client, "/api/v1/resources/queues/wide/depth?limit=3");
    assert_eq!((&depth["pending"], &depth["partitionsReady"]), (&20_000.into(), &20_000.into()));
    let last = &depth["partitions"][2]["partition"];
    assert_eq!(last, "p00002");
    let answer = client.get("/api/v1/resources/partitions?limit=5000").unwrap();
    assert!(answer.body.len() <= 1 << 20);
    assert_eq!(
        (&answer.json()["walked"], &answer.json()["truncated"]),
        (&20_000.into(), &true.into())
    );
    let newest = read(&mut client, "/api/v1/messages?queue=wide&limit=2");
    assert_eq!(newest["messages"][0]["partition"], "p19999");
    let sizes = read(&mut client, "/api/v1/resources/queues/wide/sizes");
    assert_eq!(
        (sizes["partitions"].as_object().unwrap().len(), &sizes["truncated"]),
        (5_000, &true.into())
    );
}

#[test]
fn the_status_pages_show_queues_with_their_options() {
    let broker = broker();
    let mut client = broker.client();
    client.configure("stat", json!({"retryDelay": 2_500, "ttl": 4_242, "priority": 3}));
    fill(&mut client, "stat", &[("a", 2)]);
    let list = read(&mut client, "/api/v1/status/queues?limit=10");
    assert_eq!(list["queues"][0]["name"], "stat");
    let status = read(&mut client, "/api/v1/status/queues/stat?includePartitions=true");
    let queue = &status["queue"];
    assert_eq!(
        (&queue["config"]["retryDelay"], &queue["config"]["ttl"]),
        (&2_500.into(), &4_242.into())
    );
    assert_eq!(
        (&queue["priority"], &status["totals"]["messages"]["pending"]),
        (&3.into(), &2.into())
    );
    assert_eq!(status["partitions"][0]["name"], "a");
    assert_eq!(client.get("/api/v1/status/queues/none").unwrap().status, 404);
}

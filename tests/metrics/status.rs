//! Health, status, the overview, and what a cluster of one says.

use std::time::{Duration, Instant};

use super::{Options, Used, get, pop, push, used};
use crate::support::Broker;

#[test]
fn health_shows_the_storage() {
    let Used { broker: _broker, mut client, .. } = used(Options::default());
    let health = get(&mut client, "/health");
    assert_eq!((&health["status"], &health["engine"]), (&"healthy".into(), &"lanemq".into()));
    assert_eq!(health["compat"], "2.2");
    assert!(health["uptimeSeconds"].is_u64() && health["version"].is_string());
    let storage = &health["storage"];
    assert_eq!((&storage["ready"], &storage["writable"]), (&true.into(), &true.into()));
    assert!(storage["diskUsedPct"].as_u64().unwrap() <= 100, "{storage}");
    assert!(storage["lastFsyncMs"].as_f64().unwrap() > 0.0, "{storage}");
    assert!(storage["walPending"].is_u64(), "{storage}");
    assert!(health.get("database").is_none());
}

#[test]
fn the_status_agrees_with_the_traffic() {
    let Used { broker: _broker, mut client, settled, popped } = used(Options::default());
    let status = get(&mut client, "/api/v1/status");
    assert!(status["timeRange"]["from"].is_string());
    assert_eq!((&status["bucketMinutes"], &status["statsAge"]), (&1.into(), &0.into()));
    let points = status["throughput"].as_array().unwrap();
    assert_eq!(points.len() as u64, status["pointCount"].as_u64().unwrap());
    let sum = |key: &str| points.iter().map(|p| p[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("ingested"), sum("popMessages")), (20, popped));
    assert_eq!((sum("processed"), sum("ackFailed"), sum("dlqCount")), (settled, 1, 1));
    assert!(points.is_sorted_by(|a, b| a["timestamp"].as_str() > b["timestamp"].as_str()));
    let requests = &status["messages"]["requests"];
    assert_eq!(*requests, serde_json::json!({"push": 2, "pop": 2, "ack": 2}));
    assert_eq!(status["messages"]["batchEfficiency"]["push"], 10);
    assert_eq!(status["messages"]["batchEfficiency"]["pop"], 20);
    let dead = &status["deadLetterQueue"];
    assert_eq!((&dead["currentMessages"], &dead["affectedPartitions"]), (&1.into(), &1.into()));
    let top = serde_json::json!([{"error": "order <n> is gone", "count": 1}]);
    assert_eq!(dead["topErrors"], top);
    assert_eq!(status["errors"]["dlqMessages"], 1);
    let queues = status["queues"].as_array().unwrap();
    assert_eq!((queues.len(), &queues[0]["name"]), (1, &"work".into()), "idle holds nothing");
    assert!(!status["workers"].as_array().unwrap().is_empty());

    let other = get(&mut client, "/api/v1/status?queue=idle");
    let points = other["throughput"].as_array().unwrap();
    assert!(points.iter().all(|point| point["ingested"] == 0));
    assert_eq!(other["messages"]["requests"]["pop"], 1);
    assert_eq!(other["messages"]["total"], 0);
}

#[test]
fn a_virgin_status_has_its_shape() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    let status = get(&mut client, "/api/v1/status");
    for key in ["bucketMinutes", "pointCount", "statsAge"] {
        assert!(status[key].is_u64(), "{key}: {status}");
    }
    for key in ["throughput", "workers", "queues"] {
        assert!(status[key].is_array(), "{key}: {status}");
    }
    let points = status["throughput"].as_array().unwrap();
    assert!(points.iter().all(|point| point["ingested"] == 0 && point["avgLagMs"].is_null()));
    assert_eq!(status["leases"]["active"], 0);
    assert_eq!(get(&mut client, "/status")["status"], "ok");
    let overview = get(&mut client, "/api/v1/resources/overview");
    assert_eq!(overview["lag"]["time"]["avg"], 0);
    assert_eq!(overview["lag"]["offset"]["max"], 0);
}

#[test]
fn leases_are_counted_with_their_partitions() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "work", 6, 12);
    let messages = pop(&mut client, "work", 12);
    let status = get(&mut client, "/api/v1/status");
    assert_eq!(messages.len(), 12);
    assert_eq!(status["leases"]["partitionsWithLeases"], 6);
    assert_eq!(status["leases"]["totalBatchSize"], 12);
    assert_eq!(status["messages"]["processing"], 12);
    super::ack(&mut client, &messages, "completed", None);
    let status = get(&mut client, "/api/v1/status");
    assert_eq!(status["leases"]["partitionsWithLeases"], 0);
    assert_eq!(status["leases"]["active"], 0);
}

#[test]
fn the_overview_knows_how_old_the_oldest_unread_message_is() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    for queue in ["sales.mail.a", "sales.post.b", "plain"] {
        push(&mut client, queue, 3, 6);
    }
    let read = pop(&mut client, "plain", 6);
    super::ack(&mut client, &read, "completed", None);
    let limit = Instant::now() + Duration::from_secs(20);
    let overview = loop {
        let overview = get(&mut client, "/api/v1/resources/overview");
        if overview["lag"]["time"]["min"].as_u64().unwrap() >= 1 {
            break overview;
        }
        assert!(Instant::now() < limit, "{overview}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(
        overview["lag"]["offset"],
        serde_json::json!({"avg": 6, "median": 6, "min": 6, "max": 6})
    );
    assert!(overview["lag"]["time"]["max"].as_u64().unwrap() < 25, "{overview}");
    assert_eq!((&overview["namespaces"], &overview["tasks"]), (&2.into(), &2.into()));
    let namespaces = get(&mut client, "/api/v1/resources/namespaces");
    let want = serde_json::json!([
        {
            "namespace": "plain", "queues": 1, "partitions": 3,
            "messages": {"total": 6, "pending": 0},
        },
        {
            "namespace": "sales", "queues": 2, "partitions": 6,
            "messages": {"total": 12, "pending": 12},
        },
    ]);
    assert_eq!(namespaces["namespaces"], want);
    let tasks = get(&mut client, "/api/v1/resources/tasks");
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 2);
}

#[test]
fn a_cluster_of_one_answers_for_itself() {
    let arguments = vec!["--server-id=node-7".to_owned()];
    let broker = Broker::start(Options { arguments, ..Options::default() });
    let mut client = broker.client();
    let status = get(&mut client, "/api/v1/raft/status");
    assert_eq!((&status["singleNode"], &status["state"]), (&true.into(), &"leader".into()));
    assert!(status["host"]["rssBytes"].as_u64().unwrap() > 1 << 20);
    let members = get(&mut client, "/api/v1/raft/members");
    assert_eq!(members["members"].as_array().unwrap().len(), 1);
    assert_eq!(members["clusterId"], status["clusterId"]);
    let liveness = get(&mut client, "/api/v1/raft/liveness");
    assert_eq!(liveness["members"][0]["lastAckMs"], 0);
    let me = get(&mut client, "/auth/me");
    assert_eq!(
        (&me["standalone"], &me["clusters"][0]["cell_slug"]),
        (&true.into(), &"node-7".into())
    );
    let login = client.get("/auth/login").unwrap();
    assert_eq!((login.status, login.header("location")), (302, Some("/")));
    let logout = client.post("/auth/logout", "").unwrap();
    assert_eq!((logout.status, logout.text()), (200, r#"{"ok":true}"#.to_owned()));
    let refreshed = client.post("/api/v1/stats/refresh", "{}").unwrap().json();
    assert_eq!((&refreshed["success"], &refreshed["refreshed"]), (&true.into(), &false.into()));
    assert_eq!(client.get("/api/v1/analytics/postgres-stats").unwrap().status, 404);
}

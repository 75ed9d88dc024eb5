//! The series of `/api/v1/analytics` and `/api/v1/status/analytics`.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Options, Used, ack, get, pop, push, used};
use crate::support::Broker;

/// The sum of a key over rows, of one queue where one is named.
fn sum(rows: &Value, queue: Option<&str>, key: &str) -> u64 {
    let rows = rows.as_array().unwrap_or_else(|| panic!("no rows: {rows}"));
    let of = rows.iter().filter(|row| queue.is_none_or(|queue| row["queueName"] == queue));
    of.map(|row| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"))).sum()
}

#[test]
fn series_by_queue_agree_with_the_traffic() {
    let Used { broker: _broker, mut client, settled, popped } = used(Options::default());
    let ops = get(&mut client, "/api/v1/analytics/queue-ops");
    let of = |key: &str| sum(&ops["series"], Some("work"), key);
    assert_eq!((of("pushMessages"), of("pushRequests")), (20, 2));
    assert_eq!((of("popMessages"), of("popEmpty")), (popped, 0));
    assert_eq!((of("ackSuccess"), of("ackFailed")), (settled, 1));
    assert_eq!(of("partitionsCreated"), 8);
    assert_eq!(sum(&ops["series"], Some("idle"), "popEmpty"), 1);
    let idle = ops["series"].as_array().unwrap().iter().find(|row| row["queueName"] == "idle");
    assert!(idle.unwrap()["avgLagMs"].is_null(), "no pop brought anything");
    assert_eq!(ops["queues"], serde_json::json!(["idle", "work"]));

    let one = get(&mut client, "/api/v1/analytics/queue-ops?queue=idle");
    assert_eq!(one["queues"], serde_json::json!(["idle"]));

    let lag = get(&mut client, "/api/v1/analytics/queue-lag");
    assert_eq!(sum(&lag, Some("work"), "popCount"), popped);
    let row = &lag.as_array().unwrap()[0];
    assert!(row["maxLagMs"].as_u64().unwrap() >= row["avgLagMs"].as_u64().unwrap());
    assert!(row["maxLagMs"].as_u64().unwrap() < 30_000, "{row}");

    let hours = get(&mut client, "/api/v1/status/analytics");
    let messages = hours["dataPoints"].as_array().unwrap().iter();
    assert_eq!(messages.map(|point| point["messages"].as_u64().unwrap()).sum::<u64>(), 20);
    assert_eq!(hours["interval"], "hour");
    assert!(hours["from"].is_string() && hours["to"].is_string());
}

#[test]
fn worker_and_system_metrics_agree_with_the_traffic() {
    let Used { broker: _broker, mut client, settled, popped } = used(Options::default());
    let workers = get(&mut client, "/api/v1/analytics/worker-metrics");
    let summary = &workers["summary"];
    assert_eq!(
        (&summary["totalPushMessages"], &summary["totalPushRequests"]),
        (&20.into(), &2.into())
    );
    assert_eq!(
        (&summary["totalPopMessages"], &summary["totalPopRequests"]),
        (&popped.into(), &2.into())
    );
    assert_eq!(
        (&summary["totalAckMessages"], &summary["totalAckFailed"]),
        (&(settled + 1).into(), &1.into())
    );
    assert_eq!(summary["totalDlq"], 1);
    assert_eq!(sum(&workers["timeSeries"], None, "pushMessages"), 20);
    assert_eq!(sum(&workers["queues"], Some("work"), "popCount"), popped);

    let system = get(&mut client, "/api/v1/analytics/system-metrics");
    assert_eq!(system["replicas"].as_array().unwrap().len(), 1);
    let point = &system["replicas"][0]["timeSeries"][0];
    let rss = &point["metrics"]["memory"]["rss_bytes"];
    assert!(rss["min"].as_u64().unwrap() > 1 << 20, "{point}");
    assert!(rss["max"].as_u64() >= rss["avg"].as_u64() && rss["last"].is_u64());
    assert!(point["metrics"]["cpu"]["user_us"]["avg"].is_u64());
}

#[test]
fn workload_is_told_by_label_and_by_queue() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "sales.mail.a", 2, 3);
    push(&mut client, "sales.mail.b", 2, 4);
    push(&mut client, "plain", 1, 5);
    let load = get(&mut client, "/api/v1/analytics/workload");
    assert_eq!(load["groupBy"], "namespace");
    let buckets = load["buckets"].as_array().unwrap().len();
    let row = |load: &Value, key: &str| {
        let rows = load["rows"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}: {load}"))
    };
    let sales = row(&load, "sales");
    assert_eq!((&sales["queues"], &sales["window"]["push"]), (&2.into(), &7.into()));
    assert_eq!((&sales["now"]["pending"], &sales["now"]["partitions"]), (&7.into(), &4.into()));
    assert_eq!(sales["now"]["queuesWithoutGroup"], 2);
    let pushes = sales["series"]["push"].as_array().unwrap();
    assert_eq!(pushes.len(), buckets);
    assert_eq!(pushes.iter().filter_map(Value::as_u64).sum::<u64>(), 7);
    assert_eq!(load["tenant"]["window"]["push"], 12);

    let load = get(&mut client, "/api/v1/analytics/workload?groupBy=queue&namespace=sales");
    assert_eq!(load["rows"].as_array().unwrap().len(), 2);
    assert_eq!(row(&load, "sales.mail.b")["task"], "mail");
    let load = get(&mut client, "/api/v1/analytics/workload?groupBy=queue&task=");
    assert_eq!(load["rows"].as_array().unwrap().len(), 1, "without a task is a filter too");
    assert_eq!(row(&load, "plain")["window"]["push"], 5);
}

#[test]
fn a_deleted_queue_leaves_its_series_behind() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "gone", 6, 9);
    assert_eq!(client.delete("/api/v1/resources/queues/gone").unwrap().status, 200);
    push(&mut client, "gone", 2, 2);
    let ops = get(&mut client, "/api/v1/analytics/queue-ops");
    let of = |key: &str| sum(&ops["series"], Some("gone"), key);
    assert_eq!((of("pushMessages"), of("partitionsCreated")), (11, 8));
    assert_eq!(of("partitionsDeleted"), 6);
    assert_eq!(client.delete("/api/v1/resources/queues/gone").unwrap().status, 200);
    let ops = get(&mut client, "/api/v1/analytics/queue-ops?queue=gone");
    assert_eq!(sum(&ops["series"], None, "partitionsDeleted"), 8);
}

#[test]
fn a_transaction_counts_for_each_of_its_queues() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "from", 1, 2);
    let message = pop(&mut client, "from", 2).remove(1);
    let body = serde_json::json!({ "operations": [
        {
            "type": "ack", "transactionId": message["transactionId"], "status": "completed",
            "partitionId": message["partitionId"], "leaseId": message["leaseId"],
        },
        { "type": "push", "items": [{"queue": "to", "partition": "p", "payload": 1}] },
    ]});
    let answer = client.post("/api/v1/transaction", body.to_string()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["success"], true, "{}", answer.text());
    let ops = get(&mut client, "/api/v1/analytics/queue-ops");
    let of = |queue: &str, key: &str| sum(&ops["series"], Some(queue), key);
    assert_eq!((of("from", "transactions"), of("from", "ackSuccess")), (1, 2));
    assert_eq!((of("to", "transactions"), of("to", "pushMessages")), (1, 1));
}

/// Of five messages in one partition a conflating group is given the last; the others count as
/// passed over, whether it acks or commits at delivery.
#[test]
fn messages_that_conflation_passes_over_are_counted() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "news", 1, 5);
    let target = "/api/v1/pop/queue/news?subscriptionMode=all&consumerGroup=latest";
    let read = client.get(&format!("{target}&conflation=true")).unwrap().json();
    let messages = read["messages"].as_array().unwrap().clone();
    assert_eq!(messages.len(), 1, "{read}");
    let body = serde_json::json!({ "consumerGroup": "latest", "acknowledgments": [{
        "transactionId": messages[0]["transactionId"], "status": "completed",
        "partitionId": messages[0]["partitionId"], "leaseId": messages[0]["leaseId"],
    }]});
    let acked = client.post("/api/v1/ack/batch", body.to_string()).unwrap();
    assert_eq!(acked.status, 200, "{}", acked.text());
    let conflated = |client: &mut crate::support::Client| {
        let ops = get(client, "/api/v1/analytics/queue-ops");
        sum(&ops["series"], Some("news"), "conflated")
    };
    assert_eq!(conflated(&mut client), 4, "{}", acked.text());
    push(&mut client, "news", 1, 3);
    let read = client.get(&format!("{target}&autoAck=true")).unwrap();
    assert_eq!((read.status, read.json()["messages"].as_array().unwrap().len()), (200, 1));
    assert_eq!(conflated(&mut client), 6);
}

#[test]
fn parked_pops_are_seen_and_gone_when_they_end() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "wait", 1, 1);
    assert_eq!(pop(&mut client, "wait", 1).len(), 1);
    let parked = |client: &mut crate::support::Client| {
        let text = client.get("/metrics/prometheus").unwrap().text();
        let line = text.lines().find(|l| l.starts_with("lanemq_queue_parked_pops{queue=\"wait\"}"));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse::<u64>().unwrap()
    };
    let mut waiting = broker.client();
    waiting
        .send_raw(b"GET /api/v1/pop/queue/wait?wait=true&timeout=20000 HTTP/1.1\r\nHost: l\r\n\r\n")
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    while parked(&mut client) != 1 {
        assert!(Instant::now() < limit, "the pop does not park");
        std::thread::sleep(Duration::from_millis(20));
    }
    push(&mut client, "wait", 1, 1);
    // The partition is leased: another one wakes the pop.
    let body = r#"{"items":[{"queue":"wait","partition":"other","payload":1}]}"#;
    assert_eq!(client.post("/api/v1/push", body).unwrap().status, 201);
    assert_eq!(waiting.read_response(false).unwrap().status, 200);
    assert_eq!(parked(&mut client), 0);
    let series = get(&mut client, "/api/v1/analytics/queue-parked-replicas");
    assert!(series["series"].is_array() && series["replicas"].is_array(), "{series}");
}

#[test]
fn what_retention_drops_is_counted_by_its_rule() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    let options = r#"{"retentionEnabled":true,"retentionSeconds":1}"#;
    let body = format!(r#"{{"queue":"short.lived.q","options":{options}}}"#);
    assert_eq!(client.post("/api/v1/configure", body).unwrap().status, 200);
    push(&mut client, "short.lived.q", 4, 10);
    let limit = Instant::now() + Duration::from_secs(30);
    let seen = loop {
        let seen = get(&mut client, "/api/v1/analytics/retention?groupBy=queue");
        if seen["totals"]["totalMsgs"] == 10 {
            break seen;
        }
        assert!(Instant::now() < limit, "{seen}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(
        (&seen["totals"]["retentionMsgs"], &seen["totals"]["evictionMsgs"]),
        (&10.into(), &0.into())
    );
    assert_eq!(
        (&seen["rows"][0]["key"], &seen["rows"][0]["totals"]["eventCount"]),
        (&"short.lived.q".into(), &4.into())
    );
    let answer = client.get("/api/v1/analytics/retention?groupBy=color").unwrap();
    assert_eq!((answer.status, &answer.json()["error"]), (400, &"bad groupBy".into()));
}

#[test]
fn causes_of_dead_letters_are_put_together() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    push(&mut client, "failing", 6, 6);
    for (n, message) in pop(&mut client, "failing", 6).into_iter().enumerate() {
        let error = match n {
            0..4 => format!("timeout after {n}00 ms"),
            _ => "no such customer".to_owned(),
        };
        ack(&mut client, &[message], "dlq", Some(&error));
    }
    let seen = get(&mut client, "/api/v1/analytics/dlq-signatures?queue=failing");
    assert_eq!((&seen["rowsNow"], &seen["sample"]), (&6.into(), &6.into()));
    let want = serde_json::json!([
        {"text": "timeout after <n> ms", "n": 4, "share": 0.67},
        {"text": "no such customer", "n": 2, "share": 0.33},
    ]);
    assert_eq!(seen["signatures"], want);
    assert_eq!(seen["byDay"].as_array().unwrap().len(), 1);
    let none = get(&mut client, "/api/v1/analytics/dlq-signatures?queue=other");
    assert_eq!((&none["sample"], &none["signatures"]), (&0.into(), &serde_json::json!([])));
    let answer = client.get("/api/v1/analytics/dlq-signatures").unwrap();
    assert_eq!((answer.status, &answer.json()["error"]), (400, &"queue required".into()));
}

#[test]
fn liveness_walks_over_more_partitions_than_one_step_takes() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    for _ in 0..2 {
        push(&mut client, "wide", 6_000, 6_000);
    }
    push(&mut client, "narrow", 3, 3);
    let seen = get(&mut client, "/api/v1/analytics/partition-liveness?limit=1");
    let rows = seen["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["queue"]), (1, &"wide".into()));
    for key in ["partitions", "live1h", "live24h", "live7d", "created24h"] {
        assert_eq!(rows[0][key], 6_000, "{key}: {}", rows[0]);
    }
    assert_eq!(rows[0]["pending"], 12_000);
    assert!(rows[0]["oldestWriteAt"].as_str() <= rows[0]["newestWriteAt"].as_str());
    assert!(seen.get("truncated").is_none());
}

#[test]
fn windows_that_are_none_are_refused_and_empty_ones_are_empty() {
    let Used { broker: _broker, mut client, .. } = used(Options::default());
    let routes = [
        "status",
        "status/analytics",
        "analytics/system-metrics",
        "analytics/worker-metrics",
        "analytics/queue-lag",
        "analytics/queue-ops",
        "analytics/queue-parked-replicas",
        "analytics/retention",
        "analytics/workload",
    ];
    for route in routes {
        for bad in ["from=yesterday", "to=2026-13-45", "from=2026-02-02&to=2026-02-01"] {
            let answer = client.get(&format!("/api/v1/{route}?{bad}")).unwrap();
            assert_eq!(answer.status, 400, "{route} {bad}");
            let body = answer.json();
            assert!(body["error"].is_string() && body["code"].is_string(), "{body}");
        }
        let past = client.get(&format!("/api/v1/{route}?from=2001-01-01&to=2001-01-03")).unwrap();
        assert_eq!(past.status, 200, "{route}: {}", past.text());
    }
    let past = get(&mut client, "/api/v1/analytics/queue-ops?from=2001-01-01&to=2001-01-03");
    assert_eq!((&past["series"], &past["bucketMinutes"]), (&serde_json::json!([]), &60.into()));
    let long = get(&mut client, "/api/v1/status?from=1990-01-01&to=2100-01-01");
    assert_eq!(long["bucketMinutes"], 360);
    assert!(long["pointCount"].as_u64().unwrap() <= 2, "nothing is known of before and after");
    assert_eq!(sum(&long["throughput"], None, "ingested"), 20);
}

//! Trace events: recorded durably, found by message and by name, gone after their time.

use serde_json::{Value, json};

use crate::support::{Broker, Client, Options, Wire};
use crate::{broker, read, restart, sleep_ms};

fn record(client: &mut Client, partition: &str, tx: &str, names: &[&str], step: u64) -> String {
    let body = json!({
        "transactionId": tx, "partitionId": partition, "traceNames": names,
        "eventType": "step", "consumerGroup": "g", "data": {"step": step},
    });
    let answer = client.post("/api/v1/traces", body.to_string()).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(answer.json()["success"], true);
    answer.json()["traceId"].as_str().unwrap().to_owned()
}

fn steps(body: &Value) -> Vec<u64> {
    let rows = body["traces"].as_array().unwrap();
    rows.iter().map(|row| row["data"]["step"].as_u64().unwrap()).collect()
}

#[test]
fn a_trace_is_found_by_its_message_and_its_names_also_after_a_restart() {
    let mut broker = broker();
    let mut client = broker.client();
    let mut ids = Vec::new();
    for n in 0..4 {
        client.push_one("tr", &format!("p{n}"), &format!("t{n}"), "1");
        let message = client.pop(&format!("tr/partition/p{n}")).remove(0);
        ids.push(message.partition_id);
    }
    for step in 0..12 {
        let at = (step % 4) as usize;
        let own = format!("only {at}/x");
        record(&mut client, &ids[at], &format!("t{at}"), &["shared", &own], step);
    }
    for clean in [true, false] {
        let of_message = read(&mut client, &format!("/api/v1/traces/{}/t1", ids[1]));
        assert_eq!((steps(&of_message), &of_message["total"]), (vec![9, 5, 1], &3.into()));
        let row = &of_message["traces"][0];
        assert_eq!(
            (&row["partition_id"], &row["transaction_id"]),
            (&ids[1].as_str().into(), &"t1".into())
        );
        assert_eq!((&row["queue_name"], &row["event_type"]), (&"tr".into(), &"step".into()));
        let named = read(&mut client, "/api/v1/traces/by-name/shared?limit=5&offset=2");
        assert_eq!((steps(&named), &named["total"]), (vec![9, 8, 7, 6, 5], &12.into()));
        let own = read(&mut client, "/api/v1/traces/by-name/only%202%2Fx");
        assert_eq!(steps(&own), [10, 6, 2]);
        let names = read(&mut client, "/api/v1/traces/names?limit=2");
        assert_eq!(
            (&names["total"], names["trace_names"].as_array().unwrap().len()),
            (&5.into(), 2)
        );
        let shared = names["trace_names"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["trace_name"] == "shared")
            .unwrap();
        assert_eq!((&shared["trace_count"], &shared["message_count"]), (&12.into(), &4.into()));
        client = restart(&mut broker, clean);
    }
    for none in ["by-name/nothing", "77/t", "x/t"] {
        let body = read(&mut client, &format!("/api/v1/traces/{none}"));
        assert_eq!((&body["total"], &body["traces"]), (&0.into(), &json!([])));
    }
}

#[test]
fn a_trace_needs_a_partition_that_is_there_but_no_message() {
    let broker = broker();
    let mut client = broker.client();
    client.push_one("tr", "p", "t", "1");
    let id = client.pop("tr").remove(0).partition_id;
    record(&mut client, &id, "never pushed", &[], 1);
    let unknown = r#"{"transactionId":"t","partitionId":"123456","data":1}"#;
    let answer = client.post("/api/v1/traces", unknown).unwrap();
    assert_eq!((answer.status, &answer.json()["error"]), (404, &"Partition not found".into()));
    for bad in
        [r#"{"partitionId":"1","data":1}"#, r#"{"transactionId":"t","partitionId":"1"}"#, "[]"]
    {
        assert_eq!(client.post("/api/v1/traces", bad).unwrap().status, 400, "{bad}");
    }
    let large = json!({"transactionId": "t", "partitionId": id, "data": "x".repeat(70_000)});
    assert_eq!(client.post("/api/v1/traces", large.to_string()).unwrap().status, 413);
    assert_eq!(client.delete("/api/v1/resources/queues/tr").unwrap().status, 200);
    let gone = read(&mut client, &format!("/api/v1/traces/{id}/never%20pushed"));
    assert_eq!(gone["traces"], json!([]), "its queue is gone");
}

#[test]
fn traces_go_after_their_time_before_and_after_a_restart() {
    let mut broker = Broker::start(Options {
        arguments: vec!["--trace-retention-seconds=2".into()],
        ..Options::default()
    });
    let mut client = broker.client();
    client.push_one("tr", "p", "t", "1");
    let id = client.pop("tr").remove(0).partition_id;
    record(&mut client, &id, "t", &["n"], 1);
    let target = format!("/api/v1/traces/{id}/t");
    assert_eq!(steps(&read(&mut client, &target)), [1]);
    let limit =
        std::time::Instant::now() + crate::support::within(std::time::Duration::from_secs(4));
    while read(&mut client, &target)["total"] != 0 {
        assert!(std::time::Instant::now() < limit, "the trace did not go");
        sleep_ms(50);
    }
    assert_eq!(read(&mut client, "/api/v1/traces/names")["total"], 0);
    let mut client = restart(&mut broker, false);
    assert_eq!(read(&mut client, &target)["total"], 0);
}

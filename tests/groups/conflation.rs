//! Groups that are given the newest message only.

use super::*;
use support::Options;

fn pop(client: &mut Client, query: &str) -> Response {
    client.get(&format!("/api/v1/pop/queue/{query}")).unwrap()
}

#[test]
fn a_conflating_group_gets_the_newest_message_and_commits_the_span() {
    let mut broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 5);
    let target = "q?consumerGroup=g&conflation=true&subscriptionMode=all&batch=100&frames=true";
    let answer = pop(&mut client, target);
    assert_eq!(answer.header("content-type"), Some("application/json"), "told in JSON");
    assert_eq!(answer.json()["conflation"], true);
    let messages = Message::all(&answer);
    assert_eq!(messages.len(), PARTITIONS, "one of each partition");
    assert!(messages.iter().all(|m| m.offset == 4 && m.attempt == 1), "{messages:?}");

    // Handed back, and a newer one has come: that is the one to deliver.
    let nacked = client.ack_with(&messages[0], "failed", json!({"consumerGroup": "g"}));
    assert_eq!(
        (nacked["success"].as_bool(), nacked["leaseReleased"].as_bool()),
        (Some(true), Some(true))
    );
    assert_eq!(nacked.get("conflated"), None);
    client.push_one("q", &messages[0].partition, "newer", "9");
    let newer = Message::all(&pop(&mut client, target));
    assert_eq!(newer.iter().map(|m| (m.offset, m.attempt)).collect::<Vec<_>>(), [(5, 1)]);

    broker.kill9();
    broker.restart();
    let mut client = broker.client();
    let acked = client.ack_all(&newer, "g").remove(0);
    assert_eq!((acked["success"].as_bool(), acked["conflated"].as_u64()), (Some(true), Some(5)));
    for result in client.ack_all(&messages[1..], "g") {
        assert_eq!(
            (result["success"].as_bool(), result["conflated"].as_u64()),
            (Some(true), Some(4))
        );
    }
    let empty = pop(&mut client, "q?consumerGroup=g&conflation=true");
    let wanted = json!({
        "success": true, "queue": "q", "partition": "", "partitionId": "", "leaseId": "",
        "consumerGroup": "g", "messages": [], "partitionsClaimed": 0, "conflation": true,
    });
    assert_eq!((empty.status, empty.json()), (200, wanted));
    assert_eq!(pending(&mut client, "q"), 0);
}

#[test]
fn a_poison_message_of_a_conflating_group_is_filed_with_its_span() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    client.configure("q", json!({"retryLimit": 1}));
    for n in 0..3 {
        client.push_one("q", "p", &format!("t{n}"), "1");
    }
    let target = "q?consumerGroup=g&conflation=true&subscriptionMode=all";
    for attempt in 1..=2 {
        let messages = Message::all(&pop(&mut client, target));
        assert_eq!((messages.len(), messages[0].offset, messages[0].attempt), (1, 2, attempt));
        let nacked = client.ack_with(&messages[0], "failed", json!({"consumerGroup": "g"}));
        assert_eq!(nacked["dlq"], attempt == 2);
    }
    assert!(Message::all(&pop(&mut client, target)).is_empty());
    assert_eq!(client.dead_letters("q").len(), 1);
}

#[test]
fn the_first_registration_decides_and_others_are_told() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    fill(&mut client, "q", 0, 2);
    let echo = |answer: &Response| {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let body = answer.json();
        let key = |name: &str| body.get(name).and_then(Value::as_bool).unwrap_or(false);
        (key("conflation"), key("conflationConflict"))
    };
    assert_eq!(pop(&mut client, "q?consumerGroup=plain").status, 204);
    let asked = pop(&mut client, "q?consumerGroup=plain&conflation=true");
    assert_eq!(echo(&asked), (false, true));
    assert_eq!(asked.json()["messages"], json!([]));

    let first = pop(&mut client, "q?consumerGroup=c&conflation=true&subscriptionMode=all&batch=3");
    assert_eq!((echo(&first), Message::all(&first).len()), ((true, false), 3));
    let silent = pop(&mut client, "q?consumerGroup=c&batch=1");
    assert_eq!((echo(&silent), Message::all(&silent).len()), ((true, false), 1));
    let unknown = pop(&mut client, "none/partition/p?consumerGroup=c&conflation=true");
    assert_eq!(echo(&unknown), (true, false));

    // A pinned pop that asks for it registers the group, on all partitions.
    let pinned =
        pop(&mut client, "q/partition/p1?consumerGroup=d&conflation=true&subscriptionMode=all");
    assert_eq!((echo(&pinned), Message::all(&pinned)[0].offset), ((true, false), 1));
    let rest = pop(&mut client, "q?consumerGroup=d&batch=100");
    assert_eq!((echo(&rest), Message::all(&rest).len()), ((true, false), PARTITIONS - 1));

    for query in ["conflation=true", "conflation=true&consumerGroup=x&autoAck=true"] {
        assert_eq!(pop(&mut client, &format!("q?{query}")).status, 400, "{query}");
    }
    // Deleted and made again, the group is another.
    delete(&mut client, "c");
    assert_eq!(pop(&mut client, "q?consumerGroup=c").status, 204);
}

#[test]
fn a_pinned_pop_that_waits_for_a_queue_conflates_when_it_appears() {
    let broker = Broker::start(Options::default());
    let path = "/api/v1/pop/queue/q/partition/p?consumerGroup=g&conflation=true&wait=true\
                &timeout=20000&subscriptionMode=all";
    let (answer, _) = woken_by(&broker, path, |c| {
        c.push_items(
            r#"{"queue":"q","partition":"p","payload":1},{"queue":"q","partition":"p","payload":2}"#,
        );
    });
    assert_eq!(answer.json()["conflation"], true);
    assert_eq!(Message::all(&answer).iter().map(|m| m.offset).collect::<Vec<_>>(), [1]);
}

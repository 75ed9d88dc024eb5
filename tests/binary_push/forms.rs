//! Every form of a push gives, through every form of a pop, the messages that JSON gives.

use super::bodies::{COUNTS, IDS, Item, Seen, ZSTD, framed, item, plain, read_framed};
use super::broker;
use super::support::{Broker, Client, Message, Options, Wire, quoted};

#[derive(Clone, Copy, Debug)]
enum Push {
    Json,
    Plain(u8),
    Framed(u8),
}

const PUSHES: [Push; 5] =
    [Push::Json, Push::Plain(IDS), Push::Plain(IDS | ZSTD), Push::Framed(0), Push::Framed(COUNTS)];

impl Push {
    fn body(self, items: &[Item], first_id: u64) -> Vec<u8> {
        match self {
            Self::Json => {
                let items: Vec<String> = items
                    .iter()
                    .map(|item| {
                        format!(
                            "{{\"queue\":{},\"partition\":{},\"transactionId\":{},\"payload\":{}}}",
                            quoted(&item.queue),
                            quoted(&item.partition),
                            quoted(&item.transaction_id),
                            item.payload
                        )
                    })
                    .collect();
                format!("{{\"items\":[{}]}}", items.join(",")).into_bytes()
            }
            Self::Plain(flags) => plain(items, flags),
            Self::Framed(flags) => framed(items, flags, first_id).0,
        }
    }
}

fn push(client: &mut Client, form: Push, items: &[Item], first_id: u64) {
    let answer = client.post("/api/v1/push", form.body(items, first_id)).unwrap();
    assert_eq!(answer.status, 201, "{form:?}: {}", answer.text());
    let answer = answer.json();
    match form {
        Push::Framed(COUNTS) => assert_eq!(answer["queued"], items.len()),
        _ => {
            let queued = |item: &serde_json::Value| item["status"] == "queued";
            assert!(answer.as_array().unwrap().iter().all(queued), "{form:?}: {answer}");
        }
    }
}

/// Odd payloads among plain ones, over partitions of both shards, some partitions twice.
fn items(queue: &str) -> Vec<Item> {
    let odd = [
        "null",
        "0",
        "\"\"",
        "{\"a\" : [1,\t2 ]}",
        "-1.50e+3",
        "\"é 🦀 \\u0000 \\ud800\"",
        "[]",
        "{\"encrypted\":\"eA==\",\"iv\":\"eA==\",\"authTag\":\"eA==\"}",
    ];
    let mut items = Vec::new();
    for n in 0..120 {
        let partition = ["one", "two", "città/3", "four", "five", "one"][n / 20];
        let payload = odd.get(n % 20).map_or_else(|| format!("{{\"n\":{n}}}"), |p| (*p).to_owned());
        items.push(item(queue, partition, &format!("id \"{n}\""), &payload));
    }
    items
}

fn wanted(items: &[Item]) -> Vec<Seen> {
    let mut next = std::collections::BTreeMap::new();
    let mut seen: Vec<Seen> = items
        .iter()
        .map(|item| {
            let offset: &mut u64 = next.entry(item.partition.clone()).or_default();
            *offset += 1;
            let (partition, id) = (item.partition.clone(), item.transaction_id.clone());
            (partition, *offset - 1, id, item.payload.clone())
        })
        .collect();
    seen.sort();
    seen
}

fn seen_in_json(messages: Vec<Message>) -> Vec<Seen> {
    messages.into_iter().map(|m| (m.partition, m.offset, m.transaction_id, m.data)).collect()
}

/// Pops until nothing is left, small batches first, so that claims cut through batches.
fn drain(client: &mut Client, target: &str) -> (Vec<Seen>, usize) {
    let (mut all, mut framed_answers) = (Vec::new(), 0);
    for batch in [1, 7, 13].into_iter().chain(std::iter::repeat(50)) {
        let separator = if target.contains('?') { '&' } else { '?' };
        let answer = client.get(&format!("{target}{separator}batch={batch}&partitions=9")).unwrap();
        if answer.status == 204 {
            break;
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        let seen = if answer.body.starts_with(b"QPF1") {
            assert_eq!(answer.header("content-type"), Some("application/x-queen-pop"));
            framed_answers += 1;
            read_framed(&answer.body).0
        } else {
            seen_in_json(Message::all(&answer))
        };
        assert!(seen.len() <= batch && !seen.is_empty());
        all.extend(seen);
    }
    all.sort();
    (all, framed_answers)
}

#[test]
fn every_form_of_push_gives_the_same_messages_through_every_form_of_pop() {
    let broker = broker();
    let mut client = broker.client();
    for (at, form) in PUSHES.into_iter().enumerate() {
        for frames in [false, true] {
            for discovery in [false, true] {
                let queue = format!("forms{at}{frames}{discovery}.task.q");
                let items = items(&queue);
                push(&mut client, form, &items, 1_000);
                let target = match discovery {
                    false => format!("/api/v1/pop/queue/{queue}?autoAck=true&frames={frames}"),
                    true => format!(
                        "/api/v1/pop?namespace=forms{at}{frames}{discovery}&task=task\
                         &autoAck=true&frames={frames}"
                    ),
                };
                let (seen, framed) = drain(&mut client, &target);
                assert_eq!(seen, wanted(&items), "{form:?}, frames {frames}, {discovery}");
                assert_eq!(framed > 0, frames);
            }
        }
    }
}

#[test]
fn a_pinned_framed_pop_and_a_leased_one_show_what_json_shows() {
    let broker = broker();
    let mut client = broker.client();
    let items: Vec<Item> = (0..10).map(|n| item("q", "p", &format!("t{n}"), "{}")).collect();
    push(&mut client, Push::Framed(0), &items, 1);
    for (group, frames) in [("a", true), ("b", false)] {
        let target = format!(
            "/api/v1/pop/queue/q/partition/p?consumerGroup={group}&subscriptionMode=all\
             &batch=4&frames={frames}"
        );
        let answer = client.get(&target).unwrap();
        let seen = match frames {
            true => read_framed(&answer.body).0,
            false => seen_in_json(Message::all(&answer)),
        };
        assert_eq!(seen, wanted(&items)[..4]);
    }
}

#[test]
fn one_partition_in_many_groups_keeps_its_order_and_its_repeats_apart() {
    let broker = broker();
    let mut client = broker.client();
    client
        .post("/api/v1/configure", br#"{"queue":"w","options":{"dedupWindowSeconds":0}}"#)
        .unwrap();
    for queue in ["q", "w"] {
        let mut items = Vec::new();
        for n in 0..40 {
            items.push(item(queue, ["a", "b"][n % 2], &format!("t{}", n % 30), &n.to_string()));
        }
        let (body, packed) = framed(&items, 0, 1);
        assert_eq!(packed.len(), 40);
        let answer = client.post("/api/v1/push", body).unwrap().json();
        let answer = answer.as_array().unwrap();
        for (n, result) in answer.iter().enumerate() {
            // t0 to t9 come twice, each time in the same partition: also where no window runs.
            let (status, first) = if n < 30 { ("queued", n) } else { ("duplicate", n - 30) };
            assert_eq!(result["status"], status, "{queue} {n}");
            assert_eq!(result["offset"], first / 2, "{queue} {n}");
            assert_eq!(result["message_id"], answer[first]["message_id"]);
        }
        let target = format!("/api/v1/pop/queue/{queue}?autoAck=true");
        let (seen, _) = drain(&mut client, &target);
        assert_eq!(seen, wanted(&items[..30]));
    }
}

#[test]
fn batches_that_the_broker_compresses_read_back_the_same() {
    let arguments = vec!["--compress-json".to_owned(), "256".to_owned()];
    let broker = Broker::start(Options { arguments, ..Options::default() });
    let mut client = broker.client();
    for (queue, frames) in [("a", false), ("b", true)] {
        let items = items(queue);
        push(&mut client, Push::Json, &items, 0);
        let target = format!("/api/v1/pop/queue/{queue}?autoAck=true&frames={frames}");
        let (seen, _) = drain(&mut client, &target);
        assert_eq!(seen, wanted(&items));
    }
    assert!(client.metric("batchesCompressed") >= 8);
}

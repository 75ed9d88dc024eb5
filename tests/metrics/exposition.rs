//! `/metrics` and `/metrics/prometheus`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Options, Used, get, push, used};
use crate::support::{Broker, Client};

type Labels = Vec<(String, String)>;

/// One family as it was exposed.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// By name and labels, as `name{a="b"}` with the labels in their order.
    samples: BTreeMap<(String, Labels), f64>,
}

type Families = BTreeMap<String, Family>;

/// Reads an exposition and refuses whatever the format does not have: a sample of no family, a
/// family told twice or without samples, a name of strange characters, an unknown escape.
fn read(text: &str) -> Families {
    assert!(text.ends_with('\n'), "the last line has an end");
    let mut families = Families::new();
    let mut helped: Option<String> = None;
    let mut current: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help has a text");
            assert!(!help.trim().is_empty(), "{line}");
            helped = Some(check_name(name));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type has a kind");
            assert_eq!(helped.take().as_deref(), Some(name), "help comes before the type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "twice: {name}");
            current = Some(name.to_owned());
        } else {
            let (name, labels, value) = read_sample(line);
            let of = current.clone().expect("a sample follows its family's head");
            let family = families.get_mut(&of).unwrap();
            let suffix = name.strip_prefix(of.as_str()).unwrap_or_else(|| panic!("{line}"));
            let fits = match family.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                _ => suffix.is_empty(),
            };
            assert!(fits, "{line} is no sample of {of}");
            assert!(family.samples.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name} has no sample");
        assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
        if family.kind == "histogram" {
            check_histogram(name, family);
        }
    }
    families
}

fn check_name(name: &str) -> String {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let good = name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit());
    assert!(good, "{name:?} is no name");
    name.to_owned()
}

fn read_sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect("a sample has a value");
    let name = check_name(&line[..end]);
    let mut labels = Vec::new();
    let mut rest = &line[end..];
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (key, after) = inside.split_once("=\"").expect("a label has a value");
            let (value, after) = read_value(after);
            labels.push((check_name(key), value));
            match after.strip_prefix(',') {
                Some(next) => inside = next,
                None => {
                    rest = after.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    let keys: BTreeSet<&String> = labels.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), labels.len(), "{line}");
    (name, labels, value.parse().unwrap_or_else(|e| panic!("{e}: {line}")))
}

/// A label's value up to its closing quote, and what follows.
fn read_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('\\') => value.push('\\'),
                Some('"') => value.push('"'),
                Some('n') => value.push('\n'),
                other => panic!("an escape that does not exist: {other:?}"),
            },
            c => value.push(c),
        }
    }
    panic!("a label's value does not end: {text}");
}

/// Buckets grow, end with the infinite one, and agree with the count.
fn check_histogram(name: &str, family: &Family) {
    let mut last: BTreeMap<Labels, (f64, f64)> = BTreeMap::new();
    let mut buckets: Vec<(Labels, f64, f64)> = Vec::new();
    for ((sample, labels), value) in &family.samples {
        if sample.ends_with("_bucket") {
            let (le, others): (Vec<_>, Vec<_>) =
                labels.iter().cloned().partition(|(key, _)| key == "le");
            let le = if le[0].1 == "+Inf" { f64::INFINITY } else { le[0].1.parse().unwrap() };
            buckets.push((others, le, *value));
        }
    }
    buckets.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    for (labels, le, value) in buckets {
        let before = last.insert(labels, (le, value));
        assert!(before.is_none_or(|(_, lower)| lower <= value), "{name} falls at {le}");
    }
    for (labels, (le, value)) in last {
        assert_eq!(le, f64::INFINITY, "{name}");
        assert_eq!(family.samples[&(format!("{name}_count"), labels.clone())], value, "{name}");
        assert!(family.samples.contains_key(&(format!("{name}_sum"), labels)), "{name}");
    }
}

fn scrape(client: &mut Client) -> Families {
    let answer = client.get("/metrics/prometheus").unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    read(&answer.text())
}

/// The sum of a family's samples that carry these labels.
fn sum(families: &Families, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = families.get(name).unwrap_or_else(|| panic!("no family {name}"));
    let carries = |of: &[(String, String)]| {
        labels.iter().all(|(key, value)| of.iter().any(|(k, v)| k == key && v == value))
    };
    let samples = family.samples.iter().filter(|((n, of), _)| n == name && carries(of));
    samples.map(|(_, value)| value).sum()
}

#[test]
fn a_virgin_broker_exposes_every_family_at_zero() {
    let broker = Broker::start(Options::default());
    let families = scrape(&mut broker.client());
    for name in [
        "lanemq_pushed_messages_total",
        "lanemq_popped_messages_total",
        "lanemq_acked_messages_total",
        "lanemq_failed_acks_total",
        "lanemq_dead_lettered_messages_total",
        "lanemq_conflated_messages_total",
        "lanemq_retention_expired_messages_total",
        "lanemq_partitions_deleted_total",
        "lanemq_delivery_lag_seconds_total",
        "lanemq_queue_pushed_messages_total",
        "lanemq_queue_pending_messages",
        "lanemq_queue_delivery_lag_seconds_total",
        "lanemq_parked_pops",
        "lanemq_storage_full",
        "lanemq_connections_refused_total",
    ] {
        assert_eq!(sum(&families, name, &[]), 0.0, "{name}");
    }
    for code in ["429", "503", "507"] {
        assert_eq!(sum(&families, "lanemq_http_answers_total", &[("code", code)]), 0.0);
    }
    assert!(sum(&families, "lanemq_process_resident_memory_bytes", &[]) > 1e6);
    assert!(families.contains_key("lanemq_log_commit_seconds"));
    assert!(families.contains_key("lanemq_reactor_delay_seconds"));
    assert!(families.keys().all(|name| name.starts_with("lanemq_")), "no aliases unasked");
}

#[test]
fn counters_agree_with_the_traffic_and_only_grow() {
    let Used { broker: _broker, mut client, settled, popped } = used(Options::default());
    let first = scrape(&mut client);
    let total = |name: &str| sum(&first, name, &[]);
    assert_eq!(total("lanemq_pushed_messages_total"), 20.0);
    assert_eq!(total("lanemq_push_requests_total"), 2.0);
    assert_eq!(total("lanemq_popped_messages_total"), popped as f64);
    assert_eq!(total("lanemq_pop_requests_total"), 2.0);
    assert_eq!(total("lanemq_empty_pops_total"), 1.0);
    assert_eq!(total("lanemq_ack_requests_total"), 2.0);
    assert_eq!(total("lanemq_failed_acks_total"), 1.0);
    assert_eq!(total("lanemq_dead_lettered_messages_total"), 1.0);
    assert_eq!(total("lanemq_partitions_created_total"), 8.0);
    let work = [("queue", "work")];
    assert_eq!(sum(&first, "lanemq_queue_pushed_messages_total", &work), 20.0);
    assert_eq!(sum(&first, "lanemq_queue_popped_messages_total", &work), popped as f64);
    assert_eq!(sum(&first, "lanemq_queue_acked_messages_total", &work), settled as f64);
    assert_eq!(sum(&first, "lanemq_queue_dead_letters", &work), 1.0);
    assert_eq!(sum(&first, "lanemq_queue_partitions", &work), 8.0);
    assert_eq!(sum(&first, "lanemq_queue_empty_pops_total", &[("queue", "idle")]), 1.0);
    let route = |name: &str| [("route".to_owned(), name.to_owned())].to_vec();
    let requests = &first["lanemq_http_request_seconds"].samples;
    let count = |name: &str| requests[&("lanemq_http_request_seconds_count".into(), route(name))];
    assert_eq!((count("push"), count("pop"), count("ack")), (2.0, 2.0, 2.0));
    assert!(sum(&first, "lanemq_log_bytes", &[]) > 4096.0);

    push(&mut client, "work", 8, 5);
    let second = scrape(&mut client);
    assert_eq!(sum(&second, "lanemq_pushed_messages_total", &[]), 25.0);
    for (name, family) in first.iter().filter(|(_, family)| family.kind == "counter") {
        for (sample, value) in &family.samples {
            assert!(second[name].samples[sample] >= *value, "{sample:?} fell");
        }
    }
}

#[test]
fn names_of_queues_are_escaped_and_beyond_the_limit_summed_up() {
    let arguments = vec!["--metrics-queues=3".to_owned()];
    let broker = Broker::start(Options { arguments, ..Options::default() });
    let mut client = broker.client();
    let names = ["a\"quote", "back\\slash", "line\nend", "plain", "äöü"];
    for (count, name) in names.iter().enumerate() {
        push(&mut client, name, 1, count + 1);
    }
    let families = scrape(&mut client);
    let of = |name: &str| sum(&families, "lanemq_queue_messages", &[("queue", name)]);
    assert_eq!([of(names[0]), of(names[1]), of(names[2])], [1.0, 2.0, 3.0]);
    assert_eq!((of("plain"), of("_other")), (0.0, 9.0));
    assert_eq!(sum(&families, "lanemq_queue_pushed_messages_total", &[]), 15.0);
    assert_eq!(families["lanemq_queue_messages"].samples.len(), 4);
}

#[test]
fn the_published_brokers_names_are_there_when_asked_for() {
    let arguments = vec!["--queen-metrics".to_owned()];
    let Used { broker: _broker, mut client, .. } =
        used(Options { arguments, ..Options::default() });
    let families = scrape(&mut client);
    assert_eq!(sum(&families, "queen_process_push_messages_total", &[]), 20.0);
    assert_eq!(sum(&families, "queen_dlq_depth_by_queue", &[("queue", "work")]), 1.0);
    assert_eq!(sum(&families, "queen_raft_storage_full", &[]), 0.0);
    for name in ["queen_queue_pop_lag_milliseconds", "queen_parked_long_polls"] {
        assert!(families.contains_key(name), "{name}");
    }
}

#[test]
fn the_json_form_has_its_keys_and_numbers() {
    let Used { broker: _broker, mut client, .. } = used(Options::default());
    let metrics = get(&mut client, "/metrics");
    for key in ["uptime", "requests", "messages", "memory", "cpu"] {
        assert!(!metrics[key].is_null(), "{key}: {metrics}");
    }
    assert_eq!(metrics["messages"]["total"], 20);
    assert_eq!(metrics["shards"].as_array().unwrap().len(), 2);
    let routes = metrics["routes"].as_array().unwrap();
    let push = routes.iter().find(|route| route["route"] == "push").unwrap();
    assert_eq!((&push["answers"], &push["429"]), (&2.into(), &0.into()));
}

/// A refusal shows up under its route and status.
#[test]
fn refusals_are_counted_by_route_and_status() {
    let broker = Broker::start(Options::default());
    let mut client = broker.client();
    assert_eq!(client.post("/api/v1/push", "{").unwrap().status, 400);
    assert_eq!(client.get("/api/v1/nothing").unwrap().status, 404);
    let families = scrape(&mut client);
    let of =
        |route| sum(&families, "lanemq_http_answers_total", &[("route", route), ("code", "4xx")]);
    assert_eq!((of("push"), of("other"), of("pop")), (1.0, 1.0, 0.0));
}

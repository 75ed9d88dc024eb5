//! Seeded mutations of valid bodies and queries through every decoder of `proto`.
//!
//! No input may panic, and what is accepted must hold what the decoders promise. `SEED` and
//! `ITER` choose the run; a failure names the seed of its iteration.

use std::borrow::Cow;

use lanemq::base::buf::{Gather, HeapBuf};
use lanemq::base::ids::{LeaseId, MessageId, Offset, PartitionId};
use lanemq::base::limits;
use lanemq::base::prng::Prng;
use lanemq::model::command::{PopTarget, Subscription};
use lanemq::model::error::Refusal;
use lanemq::model::frame::{self, BatchHead};
use lanemq::model::reply::{AckResult, Claim, Conflation, PopReply, PushResult};
use lanemq::proto::query::Query;
use lanemq::proto::{ack, configure, dlq, error, lease, pop, push};

const BODIES: &[&str] = &[
    concat!(
        r#"{"items":[{"queue":"orders","partition":"eu","payload":{"a":[1,-2.5e3,null,true,"#,
        r#""x\u00e9\n"]},"transactionId":"t-1","traceId":"z"},{"queue":"q","payload":null}]"#,
        r#"}"#,
    ),
    concat!(
        r#"{"items":[{"payload":"\ud83e\udd80\u0000","queue":"\u0041","partition":null,"tra"#,
        r#"nsactionId":""}],"x":{"y":[[[]]]}}"#,
    ),
    concat!(
        r#"{"transactionId":"t","partitionId":"7","status":"failed","consumerGroup":"g","le"#,
        r#"aseId":"l","error":"why \ud800\udc00 \ud800"}"#,
    ),
    concat!(
        r#"{"acknowledgments":[{"transactionId":"t","partitionId":7,"status":"retry"},{"tra"#,
        r#"nsactionId":"é","error":{"a":1}}],"consumerGroup":null}"#,
    ),
    concat!(
        r#"{"queue":"q","namespace":"n","task":null,"mode":"merge","options":{"leaseTime":5"#,
        r#","retryLimit":null,"deadLetterQueue":false,"retentionSinkHold":"a.b","retentionS"#,
        r#"inkHoldMaxSeconds":60,"priority":-1}}"#,
    ),
    r#"{"queue":"q","leaseTime":60,"ttl":9223372036854775807}"#,
    r#"{"seconds":60}"#,
    "{}",
    "",
];

const QUERIES: &[&str] = &[
    "autopilot=true&wait=true&timeout=30000&consumerGroup=workers&subscriptionMode=new",
    "batch=10&partitions=4&autoAck=true&leaseSeconds=30&frames=true&namespace=n&task=t",
    "conflation=true&consumerGroup=g&subscriptionFrom=2023-11-14T22:13:20.123%2B02:00",
    "queue=q&consumerGroup=g&partition=p&from=2023-11-14&to=2024-01-01T00:00:00Z&limit=5&offset=9",
];

/// Bytes that mean something to a JSON reader, put in more often than chance would.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"\\udfff",
    b"null",
    b"true",
    b"-",
    b"1e999",
    b"18446744073709551616",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b" ",
    b"QPB1",
    b"\"payload\":",
    b"\"transactionId\":",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":",
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn mutate(body: &mut Vec<u8>, prng: &mut Prng) {
    for _ in 0..=prng.below(4) {
        let len = body.len() as u64;
        let at = prng.below(len + 1) as usize;
        let end = at + prng.below(len - at as u64 + 1) as usize;
        match prng.below(6) {
            0 => body.truncate(at),
            1 => drop(body.drain(at..end)),
            2 if at < body.len() => body[at] ^= 1 << prng.below(8),
            3 => {
                let copy = body[at..end].to_vec();
                body.splice(at..at, copy);
            }
            _ => {
                let piece = PIECES[prng.below(PIECES.len() as u64) as usize];
                let times = if prng.chance(2) { 2_000 } else { 1 };
                body.splice(at..at, piece.repeat(times));
            }
        }
        body.truncate(64 << 10);
    }
}

fn must_encode(refusal: &Refusal) {
    let mut out = Vec::new();
    error::encode(refusal, &mut out);
    serde_json::from_slice::<queen_protocol::ErrorBody>(&out).expect("a readable refusal");
}

/// A push that was accepted is answered, stored and popped, all in readable JSON.
fn check_push(body: &[u8]) {
    let items = match push::decode(body) {
        Ok(items) => items,
        Err(refusal) => return must_encode(&refusal),
    };
    let mut out = Vec::new();
    let results: Vec<PushResult> = (0..items.len())
        .map(|n| PushResult::Queued { id: MessageId::default(), offset: Offset(n as u64) })
        .collect();
    push::encode(push::labels(&items), &results, &mut out);
    let read: Vec<queen_protocol::PushResult> = serde_json::from_slice(&out).expect("an answer");
    assert_eq!(read.len(), items.len());

    let mut frames = Vec::new();
    for (item, read) in items.iter().zip(&read) {
        assert!(!item.queue.is_empty() && !item.partition.is_empty() && !item.payload.is_empty());
        assert!(item.queue.len() + item.partition.len() <= limits::NAMES_BYTES_MAX);
        assert_eq!(item.queue, read.queue_name);
        assert!(body.as_ptr_range().contains(&item.payload.as_ptr()), "a payload is borrowed");
        let id = item.transaction_id.as_deref().unwrap_or("minted");
        frame::write_frame(&mut frames, MessageId::default(), id.as_bytes(), item.payload);
    }
    let head = BatchHead {
        base_offset: Offset(0),
        created_at_us: 0,
        count: items.len() as u32,
        codec: frame::CODEC_RAW,
        len: frames.len() as u32,
    };
    check_pop_answer([&head.encode()[..], &frames].concat(), items.len());
}

fn check_pop_answer(batch: Vec<u8>, messages: usize) {
    let claim = Claim {
        queue: "q".to_owned(),
        partition: "p".to_owned(),
        partition_id: PartitionId(1),
        since: Offset(0),
        start: Offset(0),
        end: Offset(u64::MAX),
        epoch: 0,
        attempt: 1,
        batches: vec![Gather::<HeapBuf>::Owned(batch)],
    };
    let reply = PopReply {
        queue: "q".to_owned(),
        group: "g".to_owned(),
        lease_id: Some(LeaseId::default()),
        claims: vec![claim],
        autopilot: None,
        conflation: Conflation::Off,
    };
    let mut out = Vec::new();
    pop::encode_json(&reply, false, &mut pop::Opener::default(), &mut out)
        .expect("stored messages can be shown");
    #[derive(serde::Deserialize)]
    struct Shown<'a> {
        // Payloads may be deeper or larger than a value holds; they are not looked into.
        #[serde(borrow)]
        messages: Vec<&'a serde_json::value::RawValue>,
    }
    let shown: Shown<'_> = serde_json::from_slice(&out).expect("a readable answer");
    assert_eq!(shown.messages.len(), messages);
    assert!(pop::fits_frames(&reply));
}

fn check_acks(body: &[u8]) {
    for decoded in [ack::decode_one(body), ack::decode_batch(body)] {
        let request = match decoded {
            Ok(request) => request,
            Err(refusal) => {
                must_encode(&refusal);
                continue;
            }
        };
        assert!(!request.group.is_empty());
        let texts = request.items.iter().filter_map(|item| item.error.as_ref());
        assert!(texts.clone().all(|text| text.len() <= limits::ERROR_TEXT_BYTES_MAX));
        let done = AckResult {
            success: true,
            error: None,
            lease_released: true,
            dead_lettered: false,
            noop: false,
            conflated: None,
        };
        let mut out = Vec::new();
        ack::encode(&request.items, &vec![done; request.items.len()], &mut out);
        let read: Vec<queen_protocol::AckResult> = serde_json::from_slice(&out).expect("an answer");
        assert!(read.iter().zip(&request.items).all(|(r, i)| r.transaction_id == i.transaction_id));
    }
}

fn check_configure(body: &[u8]) {
    match configure::decode(body) {
        Err(refusal) => must_encode(&refusal),
        Ok(request) => {
            let options = request.options.apply(None);
            let mut out = Vec::new();
            configure::encode(&request.queue, &[0; 16], &options, &mut out);
            let read: queen_protocol::ConfigureResponse =
                serde_json::from_slice(&out).expect("an answer");
            assert_eq!(read.queue.as_deref(), Some(&*request.queue));
        }
    }
}

fn check_query(text: &str) {
    let query: Query<'_> = text
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (Cow::Borrowed(key), Cow::Borrowed(value)))
        .collect();
    let mut targets = vec![
        PopTarget::Queue("q".into()),
        PopTarget::Partition { queue: "q".into(), partition: "p".into() },
    ];
    targets.extend(pop::labels(&query));
    for target in targets {
        match pop::decode(target, &query, Subscription::New) {
            Err(refusal) => must_encode(&refusal),
            Ok(pop::PopParams { request, .. }) => {
                assert!(request.batch.is_none_or(|n| (1..=limits::POP_BATCH_MAX).contains(&n)));
                let partitions = 1..=limits::POP_PARTITIONS_MAX;
                assert!(request.partitions.is_none_or(|n| partitions.contains(&n)));
                let wait = 1..=limits::POP_TIMEOUT_MS_MAX;
                assert!(request.wait_ms.is_none_or(|ms| wait.contains(&ms)));
                assert!(request.lease_seconds != Some(0) && !request.group.is_empty());
            }
        }
    }
    match dlq::decode(&query) {
        Err(refusal) => must_encode(&refusal),
        Ok(query) => assert!((1..=limits::DLQ_LIMIT_MAX).contains(&query.limit)),
    }
}

#[test]
fn mutated_bodies_and_queries_never_panic() {
    let (seed, iterations) = (setting("SEED", 1), setting("ITER", 20_000));
    for n in 0..iterations {
        let seed = seed.wrapping_add(n);
        let run = std::panic::catch_unwind(|| {
            let mut prng = Prng::new(seed);
            let mut body = BODIES[prng.below(BODIES.len() as u64) as usize].as_bytes().to_vec();
            if prng.chance(95) {
                mutate(&mut body, &mut prng);
            }
            check_push(&body);
            check_acks(&body);
            check_configure(&body);
            match lease::decode(&body) {
                Err(refusal) => must_encode(&refusal),
                Ok(seconds) => assert!((1..=limits::LEASE_SECONDS_MAX).contains(&seconds)),
            }
            let mut text = QUERIES[prng.below(QUERIES.len() as u64) as usize].as_bytes().to_vec();
            mutate(&mut text, &mut prng);
            check_query(&String::from_utf8_lossy(&text));
        });
        assert!(run.is_ok(), "failed with SEED={seed} ITER=1");
    }
}

//! What a message costs between the wire and the model: one push of 100 messages of 256 bytes
//! read and answered, one pop of the same messages in both forms.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lanemq::base::buf::{Gather, HeapBuf, Slice};
use lanemq::base::ids::{LeaseId, MessageId, Offset, PartitionId};
use lanemq::model::frame::{self, BatchHead};
use lanemq::model::reply::{Claim, Conflation, PopReply, PushResult};
use lanemq::proto::{ack, pop, push};

const MESSAGES: usize = 100;
const PAYLOAD_BYTES: usize = 256;

fn payload(n: usize) -> String {
    let start = format!("{{\"order\":{n},\"customer\":\"c-{n:04}\",\"note\":\"");
    let fill = "x".repeat(PAYLOAD_BYTES - start.len() - 2);
    format!("{start}{fill}\"}}")
}

fn transaction_id(n: usize) -> String {
    format!("0190f3c2-7a10-7000-8000-{n:012x}")
}

fn push_body() -> Vec<u8> {
    let items: Vec<String> = (0..MESSAGES)
        .map(|n| {
            format!(
                "{{\"queue\":\"orders\",\"partition\":\"customer-{:02}\",\"payload\":{},\
                 \"transactionId\":\"{}\"}}",
                n % 10,
                payload(n),
                transaction_id(n)
            )
        })
        .collect();
    format!("{{\"items\":[{}]}}", items.join(",")).into_bytes()
}

fn ack_body() -> Vec<u8> {
    let items: Vec<String> = (0..MESSAGES)
        .map(|n| {
            format!(
                "{{\"transactionId\":\"{}\",\"partitionId\":\"7\",\"status\":\"completed\",\
                 \"leaseId\":\"{}\"}}",
                transaction_id(n),
                transaction_id(9)
            )
        })
        .collect();
    format!("{{\"acknowledgments\":[{}],\"consumerGroup\":\"g\"}}", items.join(",")).into_bytes()
}

fn pop_reply() -> PopReply<HeapBuf> {
    let mut frames = Vec::new();
    for n in 0..MESSAGES {
        let id = MessageId([n as u8; 16]);
        frame::write_frame(&mut frames, id, transaction_id(n).as_bytes(), payload(n).as_bytes());
    }
    let head = BatchHead {
        base_offset: Offset(1_000),
        created_at_us: 1_700_000_000_123_456,
        count: MESSAGES as u32,
        codec: frame::CODEC_RAW,
        len: frames.len() as u32,
    };
    let stored = HeapBuf::from([&head.encode()[..], &frames].concat());
    let len = lanemq::base::buf::IoBuf::bytes(&stored).len();
    let claim = Claim {
        queue: "orders".into(),
        partition: "customer-01".into(),
        partition_id: PartitionId(7),
        since: Offset(1_000),
        start: Offset(1_000),
        end: Offset(1_000 + MESSAGES as u64 - 1),
        epoch: 0,
        attempt: 1,
        batches: vec![Gather::Slices([Slice::new(stored, 0, len)].into_iter().collect())],
    };
    PopReply {
        queue: "orders".into(),
        group: "workers".into(),
        lease_id: Some(LeaseId([3; 16])),
        claims: vec![claim],
        autopilot: None,
        conflation: Conflation::Off,
    }
}

fn codec(c: &mut Criterion) {
    let mut group = c.benchmark_group("json_codec");
    group.throughput(Throughput::Elements(MESSAGES as u64));

    let body = push_body();
    group.bench_function("push_decode", |b| b.iter(|| push::decode(black_box(&body)).is_ok()));

    let items = push::decode(&body).expect("a good body");
    let results: Vec<PushResult> = (0..MESSAGES as u64)
        .map(|n| PushResult::Queued { id: MessageId([n as u8; 16]), offset: Offset(n) })
        .collect();
    let mut out = Vec::with_capacity(64 << 10);
    group.bench_function("push_encode", |b| {
        b.iter(|| {
            out.clear();
            push::encode(push::labels(black_box(&items)), &results, &mut out);
            out.len()
        });
    });

    let acks = ack_body();
    group.bench_function("ack_decode", |b| b.iter(|| ack::decode_batch(black_box(&acks)).is_ok()));

    let reply = pop_reply();
    let mut opener = pop::Opener::default();
    group.bench_function("pop_encode_json", |b| {
        b.iter(|| {
            out.clear();
            pop::encode_json(black_box(&reply), false, &mut opener, &mut out).is_ok()
        });
    });
    group.bench_function("pop_encode_frames", |b| {
        b.iter(|| (pop::fits_frames(black_box(&reply)), pop::encode_frames(&reply).len()));
    });

    let stored = reply.claims[0].batches[0].to_vec();
    group.bench_function("frame_walk", |b| {
        b.iter(|| {
            let frames = frame::frames(black_box(&stored[frame::BATCH_HEAD_BYTES..]));
            frames.map(|f| f.payload.len()).sum::<usize>()
        });
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);

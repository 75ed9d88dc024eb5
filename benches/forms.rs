//! The inner loops of the binary forms: checking what clients framed, answering with frames and
//! with JSON, remembering ids. `cargo bench --bench forms` measures time;
//! `scripts/instructions.sh` runs the same loops under callgrind (`--count NAME TIMES`) and
//! counts instructions, which a busy machine does not change.

// Private to their layers, so these two are compiled here once more, tests and all.
#[path = "../src/broker/dedup.rs"]
#[allow(unused, reason = "not all of it is measured")]
mod dedup;
#[path = "../src/proto/json_check.rs"]
#[allow(unused, reason = "not all of it is measured")]
mod json_check;

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use dedup::Dedup;
use json_check::is_document;
use lanemq::base;
use lanemq::base::buf::{Gather, HeapBuf, Slice};
use lanemq::base::compress::{Compressor, Inflater};
use lanemq::base::ids::{LeaseId, MessageId, Offset, PartitionId};
use lanemq::base::prng::Prng;
use lanemq::base::uuid;
use lanemq::model::frame::{self, BatchHead};
use lanemq::model::reply::{Claim, Conflation, PopReply};
use lanemq::proto::pop;
use lanemq::proto::push_binary::{Form, FramedBody};

/// As in the broker's process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MESSAGES: usize = 100;
const PAYLOAD_BYTES: usize = 256;
const NOW_US: i64 = 1_700_000_000_123_456;

/// One loop, with what a run of it works on.
struct Kernel {
    name: &'static str,
    /// What one run does so many times.
    unit: &'static str,
    units: u64,
    make: fn() -> Box<dyn FnMut()>,
}

const KERNELS: [Kernel; 14] = [
    // Inflating is most of the first; the second is the same messages by themselves.
    of_messages("check a zstd group", check_group),
    of_messages("read a plain body", read_plain),
    of_messages("pop as JSON, raw batch", || pop_json(false)),
    of_messages("pop as JSON, zstd batch", || pop_json(true)),
    of("QPF1, 1 claim of 1 batch", "answer", 1, || qpf1(1, 1)),
    of("QPF1, 10 claims of 4 batches", "answer", 1, || qpf1(10, 4)),
    of("dedup insert", "id", DEDUP_IDS, dedup_insert),
    of("dedup probe, hit", "id", DEDUP_PROBES, || dedup_probe(true)),
    of("dedup probe, miss", "id", DEDUP_PROBES, || dedup_probe(false)),
    of("is_document, 40 B", "document", 1, || {
        document(br#"{"id":"a-1234","total":12.5,"paid":true}"#.to_vec())
    }),
    of("is_document, 256 B, text", "document", 1, || document(payload(&mut Prng::new(1)))),
    of("is_document, 4 KiB, text", "document", 1, || document(text(4 << 10))),
    of("is_document, 4 KiB, numbers", "document", 1, || document(numbers(4 << 10))),
    of("is_document, 4 KiB, beyond ASCII", "document", 1, || document(accents(4 << 10))),
];

const DEDUP_IDS: u64 = 20_000;
const DEDUP_PROBES: u64 = 1_000;
/// Ids in the table that is probed: beyond any cache.
const DEDUP_HELD: u64 = 1 << 20;

const fn of(
    name: &'static str,
    unit: &'static str,
    units: u64,
    make: fn() -> Box<dyn FnMut()>,
) -> Kernel {
    Kernel { name, unit, units, make }
}

const fn of_messages(name: &'static str, make: fn() -> Box<dyn FnMut()>) -> Kernel {
    of(name, "message", MESSAGES as u64, make)
}

/// An object of 256 bytes: a few fields, words, a number.
fn payload(prng: &mut Prng) -> Vec<u8> {
    const WORDS: [&str; 8] =
        ["delivered", "to", "the", "customer", "order", "of", "yesterday", "pending"];
    let number = prng.below(1_000_000);
    let mut out =
        format!("{{\"order\":{number},\"customer\":\"c-{:08x}\",\"note\":\"", prng.below(1 << 32));
    while out.len() < PAYLOAD_BYTES - 2 {
        out += WORDS[prng.below(8) as usize];
        out.push(' ');
    }
    out.truncate(PAYLOAD_BYTES - 2);
    out += "\"}";
    out.into_bytes()
}

fn text(bytes: usize) -> Vec<u8> {
    format!("{{\"text\":\"{}\"}}", "some words of it ".repeat(bytes / 17)).into_bytes()
}

fn numbers(bytes: usize) -> Vec<u8> {
    let row = "{\"x\":-12.5,\"y\":[1,20,300],\"z\":{\"a\":null}},";
    format!("[{}0]", row.repeat(bytes / row.len())).into_bytes()
}

fn accents(bytes: usize) -> Vec<u8> {
    format!("[\"{}\"]", "città é 🦀 ".repeat(bytes / 15)).into_bytes()
}

fn document(bytes: Vec<u8>) -> Box<dyn FnMut()> {
    Box::new(move || assert!(is_document(black_box(&bytes))))
}

fn id(n: u64) -> MessageId {
    MessageId(uuid::mint_v7(NOW_US, &mut Prng::new(n)))
}

fn frames() -> Vec<u8> {
    let (mut out, mut prng) = (Vec::new(), Prng::new(7));
    for n in 0..MESSAGES as u64 {
        let id = id(n);
        frame::write_frame(&mut out, id, &uuid::to_text(&id.0), &payload(&mut prng));
    }
    out
}

fn packed() -> Vec<u8> {
    let mut out = Vec::new();
    Compressor::default().compress(&frames(), &mut out);
    out
}

fn check_group() -> Box<dyn FnMut()> {
    let packed = packed();
    let mut body = b"QPB1\x0A\x01\0\0\0\x06\0orders\x04\0c-17".to_vec();
    body.extend((MESSAGES as u32).to_le_bytes());
    body.extend((packed.len() as u32).to_le_bytes());
    body.extend(packed);
    let (body, mut inflater) = (Bytes::from(body), Inflater::default());
    Box::new(move || {
        let mut framed = FramedBody::new(black_box(&body), None).expect("a good body");
        let group = framed.next_group(&mut inflater, Vec::new()).expect("a good group");
        assert_eq!(group.map(|group| group.piece.count), Some(MESSAGES as u32));
    })
}

fn read_plain() -> Box<dyn FnMut()> {
    let mut body = b"QPB1\x06\x01\0\0\0\x06\0orders\x04\0c-17".to_vec();
    body.extend((MESSAGES as u32).to_le_bytes());
    for frame in frame::frames(&frames()) {
        body.extend((frame.transaction_id.len() as u16).to_le_bytes());
        body.extend(frame.transaction_id);
        body.extend((frame.payload.len() as u32).to_le_bytes());
        body.extend(frame.payload);
    }
    let mut inflater = Inflater::default();
    Box::new(move || {
        let form = Form::read(black_box(&body)).expect("binary").expect("known flags");
        let mut unused = Vec::new();
        let plain = form.plain(&body, &mut inflater, &mut unused).expect("a good body");
        assert_eq!(form.items(plain).expect("good items").len(), MESSAGES);
    })
}

/// A claim of so many stored batches of 100 messages, in one slice each.
fn claim(partition: u64, batches: u64, zstd: bool) -> Claim<HeapBuf> {
    let (codec, bytes) = match zstd {
        true => (frame::CODEC_ZSTD, packed()),
        false => (frame::CODEC_RAW, frames()),
    };
    let batch = |n: u64| {
        let head = BatchHead {
            base_offset: Offset(n * MESSAGES as u64),
            created_at_us: NOW_US,
            count: MESSAGES as u32,
            codec,
            len: bytes.len() as u32,
        };
        let stored = [&head.encode()[..], &bytes].concat();
        let len = stored.len();
        Gather::Slices([Slice::new(HeapBuf::from(stored), 0, len)].into_iter().collect())
    };
    Claim {
        queue: "orders".into(),
        partition: format!("customer-{partition:02}"),
        partition_id: PartitionId(partition),
        since: Offset(0),
        start: Offset(0),
        end: Offset(batches * MESSAGES as u64 - 1),
        epoch: 0,
        attempt: 1,
        batches: (0..batches).map(batch).collect(),
    }
}

fn reply(claims: u64, batches: u64, zstd: bool) -> PopReply<HeapBuf> {
    PopReply {
        queue: "orders".into(),
        group: "workers".into(),
        lease_id: Some(LeaseId([3; 16])),
        claims: (0..claims).map(|n| claim(n, batches, zstd)).collect(),
        autopilot: None,
        conflation: Conflation::Off,
    }
}

fn pop_json(zstd: bool) -> Box<dyn FnMut()> {
    let reply = reply(1, 1, zstd);
    let (mut opener, mut out) = (pop::Opener::default(), Vec::with_capacity(128 << 10));
    Box::new(move || {
        out.clear();
        pop::encode_json(black_box(&reply), false, &mut opener, &mut out).expect("shown");
        assert!(out.len() > MESSAGES * PAYLOAD_BYTES);
    })
}

/// Frames that clients compressed, as the answer is put together for sending.
fn qpf1(claims: u64, batches: u64) -> Box<dyn FnMut()> {
    let reply = reply(claims, batches, true);
    Box::new(move || {
        assert!(pop::fits_frames(black_box(&reply)));
        black_box(pop::encode_frames(&reply));
    })
}

fn insert_all(dedup: &mut Dedup, ids: u64) {
    for n in 0..ids {
        // As spread as a keyed fingerprint is.
        let fingerprint = Prng::new(n).next_u64();
        dedup.insert(PartitionId(n % 64), fingerprint, Offset(n / 64), NOW_US);
    }
}

/// Growth included: from nothing.
fn dedup_insert() -> Box<dyn FnMut()> {
    Box::new(|| {
        let mut dedup = Dedup::default();
        insert_all(&mut dedup, black_box(DEDUP_IDS));
        assert_eq!(dedup.len() as u64, DEDUP_IDS);
    })
}

fn dedup_probe(hit: bool) -> Box<dyn FnMut()> {
    let mut dedup = Dedup::default();
    insert_all(&mut dedup, DEDUP_HELD);
    let (mut found, mut from) = (Vec::new(), 0);
    let first = if hit { 0 } else { DEDUP_HELD };
    Box::new(move || {
        for probe in from..from + DEDUP_PROBES {
            // Steps over the table, so that each is a line that was not looked at lately.
            let n = probe * 7_919 % DEDUP_HELD;
            let fingerprint = Prng::new(first + n).next_u64();
            dedup.find(PartitionId(n % 64), black_box(fingerprint), NOW_US, &mut found);
            assert_eq!(found.len(), usize::from(hit));
        }
        from += DEDUP_PROBES;
    })
}

/// What callgrind counts: `scripts/instructions.sh` names this function.
#[inline(never)]
fn counted(run: &mut dyn FnMut(), times: u64) {
    for _ in 0..times {
        run();
    }
}

/// `--kernels` lists them, `--count NAME TIMES` runs one; all else is criterion's.
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["--kernels", ..] => {
            for Kernel { name, unit, units, .. } in &KERNELS {
                println!("{name}\t{unit}\t{units}");
            }
        }
        ["--count", name, times] => {
            let kernel = KERNELS.iter().find(|k| k.name == *name).expect("a kernel of the list");
            let mut run = (kernel.make)();
            // Contexts and buffers that are made once are not what is counted.
            run();
            counted(&mut *run, times.parse().expect("a number of times"));
        }
        _ => measure(&mut Criterion::default().configure_from_args()),
    }
}

fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("forms");
    for kernel in &KERNELS {
        group.throughput(Throughput::Elements(kernel.units));
        let mut run = (kernel.make)();
        group.bench_function(kernel.name, |b| b.iter(&mut run));
    }
    group.finish();
    criterion.final_summary();
}

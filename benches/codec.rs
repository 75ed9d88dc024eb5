//! Micro-benches of the sans-IO codecs, one criterion group for each area.
//! `cargo bench --bench codec`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lanemq::http::{Decoder, Limits, ResponseHead, Step, format_date, write_head};

/// As the published client sends a push.
fn push_request(body_bytes: usize) -> Vec<u8> {
    let mut request = format!(
        "POST /api/v1/push HTTP/1.1\r\ncontent-type: application/json\r\naccept: */*\r\n\
         user-agent: queen-mq-rust/2.7.0\r\nhost: 127.0.0.1:6632\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
    .into_bytes();
    request.resize(request.len() + body_bytes, b'x');
    request
}

/// Feeds `wire` as one stream, as large reads as the decoder offers; the requests it gave out.
fn decode(decoder: &mut Decoder, mut wire: &[u8]) -> usize {
    let mut count = 0;
    while !wire.is_empty() {
        let space = decoder.recv_space();
        let len = space.len().min(wire.len());
        space[..len].copy_from_slice(&wire[..len]);
        wire = &wire[len..];
        decoder.received(len);
        loop {
            match decoder.next() {
                Step::Request(request) => count += usize::from(black_box(&request).keep_alive),
                Step::NeedMore => break,
                other => panic!("{other:?}"),
            }
        }
    }
    count
}

fn http(c: &mut Criterion) {
    let mut group = c.benchmark_group("http");
    for (name, body_bytes, pipelined) in [
        ("decode one 300 B push", 300, 1),
        ("decode 16 pipelined 300 B pushes", 300, 16),
        ("decode one 30 KB push", 30_000, 1),
        ("decode one 1 MB push", 1_000_000, 1),
    ] {
        let wire = push_request(body_bytes).repeat(pipelined);
        group.throughput(Throughput::Bytes(wire.len() as u64));
        group.bench_function(name, |b| {
            let mut decoder = Decoder::new(Limits::default());
            b.iter(|| assert_eq!(decode(&mut decoder, black_box(&wire)), pipelined));
        });
    }
    group.throughput(Throughput::Elements(1));
    let date = format_date(1_700_000_000);
    group.bench_function("write a response head", |b| {
        let mut out = Vec::with_capacity(1_024);
        b.iter(|| {
            out.clear();
            let head = ResponseHead {
                content_type: Some("application/json"),
                content_length: 1_234,
                ..ResponseHead::new(201, &date)
            };
            write_head(&mut out, black_box(&head));
            black_box(out.len())
        });
    });
    group.finish();
}

criterion_group!(http_codec, http);
criterion_main!(http_codec);

//! What the broker's core costs without I/O: push, pop and ack of one batch of 100 messages on
//! one shard, over a disk that answers at once.

mod harness;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lanemq::base::buf::HeapBuf;
use lanemq::model::command::{
    AckItem, AckRequest, AckStatus, Command, PopRequest, PopTarget, PushItem, QUEUE_MODE,
    Subscription,
};
use lanemq::model::frame;
use lanemq::model::reply::{PopReply, Reply};

use harness::Harness;

const BATCH: usize = 100;

struct Bench(Harness);

impl Bench {
    fn new() -> Self {
        Self(Harness::new(16 << 20))
    }

    fn push(&mut self, payload: &[u8], ids: bool) {
        let first = self.0.commands;
        let items: Vec<PushItem<'_>> = (0..BATCH)
            .map(|i| PushItem {
                queue: "bench".into(),
                partition: "p".into(),
                transaction_id: ids.then(|| format!("order-{first}-{i}").into()),
                payload,
            })
            .collect();
        let reply = self.0.run(Command::Push { items: &items, producer: None });
        assert!(matches!(reply, Reply::Push(results) if results.len() == BATCH));
    }

    fn pop(&mut self) -> PopReply<HeapBuf> {
        let request = PopRequest {
            target: PopTarget::Queue("bench".into()),
            group: QUEUE_MODE.into(),
            batch: Some(BATCH as u32),
            partitions: Some(1),
            auto_ack: false,
            wait_ms: None,
            lease_seconds: None,
            subscription: Subscription::All,
            autopilot: false,
            conflation: false,
        };
        match self.0.run(Command::Pop(request)) {
            Reply::Pop(reply) if reply.claims.len() == 1 => reply,
            other => panic!("a batch was pushed: {other:?}"),
        }
    }

    fn ack(&mut self, popped: &PopReply<HeapBuf>) {
        let claim = &popped.claims[0];
        let lease = lanemq::base::uuid::to_string(&popped.lease_id.expect("leased").0);
        let body = claim.batches[0].contiguous();
        let items: Vec<AckItem<'_>> = frame::frames(&body[frame::BATCH_HEAD_BYTES..])
            .map(|f| AckItem {
                transaction_id: String::from_utf8_lossy(f.transaction_id),
                partition_id: Some(claim.partition_id),
                status: AckStatus::Completed,
                lease_id: lease.as_str().into(),
                error: None,
            })
            .collect();
        let request = AckRequest { group: QUEUE_MODE.into(), items: &items };
        let reply = self.0.run(Command::Ack(&request));
        assert!(matches!(reply, Reply::Ack(r) if r.iter().all(|a| a.success)));
    }
}

fn ops(c: &mut Criterion) {
    let payload = format!("{{\"pad\":\"{}\"}}", "x".repeat(246));
    let mut group = c.benchmark_group("broker_ops");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut bench = Bench::new();
    group.bench_function("push 100, minted ids", |b| {
        b.iter(|| bench.push(payload.as_bytes(), false));
    });
    let mut bench = Bench::new();
    group.bench_function("push 100, client ids", |b| {
        b.iter(|| bench.push(payload.as_bytes(), true));
    });
    let mut bench = Bench::new();
    group.bench_function("push, pop and ack 100", |b| {
        b.iter(|| {
            bench.push(payload.as_bytes(), true);
            let popped = bench.pop();
            bench.ack(&popped);
        });
    });
    group.finish();
}

criterion_group!(benches, ops);
criterion_main!(benches);

//! What the broker's core costs without I/O: push, pop and ack of one batch of 100 messages on
//! one shard, over a disk that answers at once.

mod disk;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lanemq::base::buf::HeapBuf;
use lanemq::base::cipher::Keys;
use lanemq::base::ids::{ShardId, Token};
use lanemq::base::time::Now;
use lanemq::broker::effect::{Effect, Effects};
use lanemq::broker::shard::{Shard, ShardConfig};
use lanemq::log::io::{IoDone, LogIo};
use lanemq::model::command::{
    AckItem, AckRequest, AckStatus, Command, PopRequest, PopTarget, PushItem, QUEUE_MODE,
    Subscription,
};
use lanemq::model::frame;
use lanemq::model::reply::{PopReply, Reply};

use disk::NullDisk;

const BATCH: usize = 100;

struct Bench {
    shard: Shard<HeapBuf>,
    fx: Effects<HeapBuf>,
    now: Now,
    token: u64,
}

impl Bench {
    fn new() -> Self {
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            directory: [1; 16],
            segment_bytes: 1 << 30,
            memory_bytes: 1 << 30,
            tail_bytes: 16 << 20,
            compress_bytes: None,
            keys: Keys::default(),
            entropy: 1,
        };
        let now = Now { mono_us: 1, wall_us: 1_700_000_000_000_000 };
        let (mut shard, _) =
            Shard::open(config, &mut NullDisk::default(), now).expect("a new shard opens");
        let mut fx = Effects::default();
        shard.start(now, &mut fx);
        Self { shard, fx, now, token: 0 }
    }

    /// Hands a command in and answers the disk until its reply is there.
    fn run(&mut self, command: Command<'_>) -> Reply<HeapBuf> {
        self.token += 1;
        self.now.mono_us += 10;
        self.now.wall_us += 10;
        self.shard.handle(self.now, command, Token(self.token), &mut self.fx);
        self.shard.flush(self.now, &mut self.fx);
        let mut reply = None;
        while reply.is_none() {
            for effect in std::mem::take(&mut self.fx.list) {
                match effect {
                    Effect::Io(LogIo::Read { .. }) => unreachable!("the tail answers every read"),
                    Effect::Io(io) => {
                        let done = IoDone { id: io.id(), result: Ok(None) };
                        self.shard.complete(self.now, done, &mut self.fx);
                        self.shard.flush(self.now, &mut self.fx);
                    }
                    Effect::Reply { reply: r, .. } => reply = Some(r),
                    Effect::Send { .. } => unreachable!("there is one shard"),
                }
            }
        }
        reply.expect("the loop ends with a reply")
    }

    fn push(&mut self, payload: &[u8], ids: bool) {
        let first = self.token;
        let items: Vec<PushItem<'_>> = (0..BATCH)
            .map(|i| PushItem {
                queue: "bench".into(),
                partition: "p".into(),
                transaction_id: ids.then(|| format!("order-{first}-{i}").into()),
                payload,
            })
            .collect();
        let reply = self.run(Command::Push(&items));
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
        };
        match self.run(Command::Pop(request)) {
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
        let request = AckRequest { group: QUEUE_MODE.into(), items };
        let reply = self.run(Command::Ack(&request));
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

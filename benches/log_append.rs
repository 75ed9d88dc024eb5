//! Append and group commit of the log over a disk that answers at once: what the log itself
//! costs per record, and per chunk.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use lanemq::base::buf::HeapBuf;
use lanemq::base::ids::ShardId;
use lanemq::base::time::Now;
use lanemq::log::io::{IoDone, LogIo};
use lanemq::log::{Class, Log, LogConfig};
mod disk;

use disk::NullDisk;

struct Bench {
    log: Log<HeapBuf>,
    io: Vec<LogIo<HeapBuf>>,
    next: Vec<LogIo<HeapBuf>>,
}

impl Bench {
    fn new() -> Self {
        let config = LogConfig {
            shard: ShardId(0),
            shards: 1,
            directory: [1; 16],
            segment_bytes: 256 << 20,
            tail_bytes: 16 << 20,
            read_ahead_bytes: 0,
            entropy: 1,
        };
        let mut disk = NullDisk::default();
        let (log, _) = Log::open(&mut disk, config, &mut |_| {}).expect("a new log");
        let mut bench = Self { log, io: Vec::new(), next: Vec::new() };
        bench.settle();
        bench
    }

    /// Answers every operation at once until none is asked for.
    fn settle(&mut self) {
        let now = Now::default();
        self.log.pump(now, &mut self.io);
        while !self.io.is_empty() {
            for op in self.io.drain(..) {
                self.log.complete(now, IoDone { id: op.id(), result: Ok(None) }, &mut self.next);
            }
            std::mem::swap(&mut self.io, &mut self.next);
            self.log.pump(now, &mut self.io);
        }
        let keep = self.log.segments().last().map(|info| info.id);
        if let Some(keep) = keep.filter(|_| self.log.stats().segments > 4) {
            self.log.release_before(keep, &mut self.io);
        }
    }

    fn append(&mut self, body: &[u8]) {
        while self.log.append(20, 1, &[&[7; 25], body], Class::Growing).is_err() {
            self.settle();
        }
    }
}

fn appends(c: &mut Criterion) {
    for (name, body, per_chunk) in [
        ("one of 256 B a chunk", 256usize, 1u64),
        ("100 of 256 B a chunk", 256, 100),
        ("100 of 4 KiB a chunk", 4_096, 100),
        ("16 of 64 KiB a chunk", 64 << 10, 16),
    ] {
        let mut group = c.benchmark_group("log_append");
        group.throughput(Throughput::Elements(per_chunk));
        group.sample_size(20);
        let body = vec![0x5A; body];
        let mut bench = Bench::new();
        group.bench_function(name, |b| {
            b.iter_batched(
                || (),
                |()| {
                    (0..per_chunk).for_each(|_| bench.append(&body));
                    bench.settle();
                },
                BatchSize::SmallInput,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, appends);
criterion_main!(benches);

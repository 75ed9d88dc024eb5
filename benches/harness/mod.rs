//! One shard without I/O: commands in, replies out, over a disk that answers at once.

#[path = "../disk/mod.rs"]
mod disk;

use lanemq::base::buf::HeapBuf;
use lanemq::base::cipher::Keys;
use lanemq::base::ids::{ShardId, Token};
use lanemq::base::time::Now;
use lanemq::broker::effect::{Effect, Effects};
use lanemq::broker::shard::{Shard, ShardConfig};
use lanemq::log::io::{IoDone, LogIo};
use lanemq::model::command::Command;
use lanemq::model::reply::Reply;

use disk::NullDisk;

pub struct Harness {
    shard: Shard<HeapBuf>,
    fx: Effects<HeapBuf>,
    /// An emptied list, kept for its memory: whoever counts allocations wants the core's alone.
    spare: Vec<Effect<HeapBuf>>,
    now: Now,
    /// Commands so far.
    pub commands: u64,
}

impl Harness {
    /// A new shard that keeps this much of its log's tail in memory, so that no read goes further.
    pub fn new(tail_bytes: usize) -> Self {
        let config = ShardConfig {
            shard: ShardId(0),
            shards: 1,
            directory: [1; 16],
            segment_bytes: 1 << 30,
            memory_bytes: 1 << 30,
            tail_bytes,
            read_ahead_bytes: 0,
            compress_bytes: None,
            keys: Keys::default(),
            trace_retention_seconds: 604_800,
            entropy: 1,
        };
        let now = Now { mono_us: 1, wall_us: 1_700_000_000_000_000 };
        let (mut shard, _) =
            Shard::open(config, &mut NullDisk::default(), now).expect("a new shard opens");
        let mut fx = Effects::default();
        shard.start(now, &mut fx);
        Self { shard, fx, spare: Vec::new(), now, commands: 0 }
    }

    /// Hands a command in and answers the disk until its reply is there.
    pub fn run(&mut self, command: Command<'_>) -> Reply<HeapBuf> {
        self.commands += 1;
        self.now.mono_us += 10;
        self.now.wall_us += 10;
        self.shard.handle(self.now, command, Token(self.commands), &mut self.fx);
        self.shard.flush(self.now, &mut self.fx);
        let mut reply = None;
        while reply.is_none() {
            std::mem::swap(&mut self.spare, &mut self.fx.list);
            for effect in self.spare.drain(..) {
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

    /// Hands a reply back for its memory.
    #[allow(dead_code, reason = "not all who use this count allocations")]
    pub fn spent(&mut self, reply: Reply<HeapBuf>) {
        self.shard.spent(reply);
    }

    /// Lets time pass, with every tick that the shard asks for.
    #[allow(dead_code, reason = "not all who use this wait")]
    pub fn pass(&mut self, us: u64) {
        let end = self.now.mono_us + us;
        loop {
            let next = self.shard.next_deadline().map_or(u64::MAX, |deadline| deadline.0);
            let step = next.clamp(self.now.mono_us, end) - self.now.mono_us;
            self.now.mono_us += step;
            self.now.wall_us += step as i64;
            if next > end {
                return;
            }
            self.shard.tick(self.now, &mut self.fx);
            while !self.fx.list.is_empty() {
                std::mem::swap(&mut self.spare, &mut self.fx.list);
                for effect in self.spare.drain(..) {
                    if let Effect::Io(io) = effect {
                        let done = IoDone { id: io.id(), result: Ok(None) };
                        self.shard.complete(self.now, done, &mut self.fx);
                    }
                }
            }
        }
    }
}

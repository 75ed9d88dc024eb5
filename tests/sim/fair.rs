//! One consumer, on one shard, where every shard has more than it can take: a shard that answers its
//! own pops alone must not leave the others' partitions behind.

use crate::for_seeds;
use crate::world::{Shape, World};
use lanemq::base::buf::HeapBuf;
use lanemq::base::prng::Prng;
use lanemq::model::command::{Command, PopRequest, PopTarget, PushItem, Subscription};
use lanemq::model::reply::{PopReply, Reply};
use std::collections::BTreeMap;

const QUEUE: &str = "q";
const PARTITIONS: usize = 12;
const POPS: usize = 240;
/// Between two pops, in microseconds.
const PACE_US: u64 = 1_000;
/// Were all shards one list, a partition would come again after as many pops as there are partitions.
/// A shard may put its own first for some 20 ms (`broker/nearby.rs`), and later for what that leaves
/// behind.
const GAP_MAX: usize = PARTITIONS + 2 * 20;

struct Run {
    world: World,
    names: Vec<String>,
}

impl Run {
    fn command(&mut self, shard: usize, command: Command<'_>) -> Result<Reply<HeapBuf>, String> {
        let token = self.world.command(shard, command)?;
        self.world.settle()?;
        let at = self.world.replies.iter().position(|(t, _)| *t == token);
        let at = at.ok_or("a command at rest without an answer")?;
        self.world.replies.remove(at).map(|(_, reply)| reply).ok_or_else(|| "no reply".into())
    }

    fn push(&mut self, partition: usize, messages: usize) -> Result<(), String> {
        let items: Vec<_> = (0..messages)
            .map(|_| PushItem {
                queue: QUEUE.into(),
                partition: self.names[partition].clone().into(),
                transaction_id: None,
                payload: b"1",
            })
            .collect();
        match self.command(0, Command::Push { items: &items, producer: None })? {
            Reply::Push(_) => Ok(()),
            other => Err(format!("a push is answered {other:?}")),
        }
    }

    fn pop(&mut self, shard: usize, waits: bool) -> Result<PopReply<HeapBuf>, String> {
        let request = PopRequest {
            target: PopTarget::Queue(QUEUE.into()),
            group: "g".into(),
            batch: Some(1),
            partitions: Some(1),
            auto_ack: true,
            wait_ms: waits.then_some(30_000),
            lease_seconds: None,
            subscription: Subscription::All,
            autopilot: false,
            conflation: false,
        };
        match self.command(shard, Command::Pop(request))? {
            Reply::Pop(pop) => Ok(pop),
            other => Err(format!("a pop is answered {other:?}")),
        }
    }
}

fn run(seed: u64) -> Result<u64, String> {
    let mut root = Prng::new(seed.wrapping_mul(0x9E37_79B9) ^ 0xFA1);
    let mut prng = root.fork(1);
    let shape = Shape { shards: 2 + prng.below(3) as u16, ..Shape::pick(&mut prng) };
    let shards = u64::from(shape.shards);
    let names = (0..PARTITIONS).map(|n| format!("p{n}")).collect();
    let mut run = Run { world: World::new(shape, root.fork(2), root.fork(3)), names };
    run.world.boot(false)?;
    for partition in 0..PARTITIONS {
        run.push(partition, POPS)?;
    }
    let entry = prng.below(shards) as usize;
    let waits = prng.chance(50);
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..POPS {
        run.world.advance(PACE_US);
        run.world.tick()?;
        let pop = run.pop(entry, waits)?;
        let [claim] = &*pop.claims else {
            return Err(format!("pop {n} claimed {} partitions", pop.claims.len()));
        };
        last.insert(claim.partition.to_string(), n);
        for name in &run.names {
            let gap = n - last.get(name).copied().unwrap_or(0);
            if gap > GAP_MAX {
                return Err(format!("{name} was passed over for {gap} pops, at pop {n}"));
            }
        }
    }
    Ok(run.world.trace())
}

#[test]
fn no_shards_partitions_are_left_behind() {
    for_seeds("no_shards_partitions_are_left_behind", 60, run);
}

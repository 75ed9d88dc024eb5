//! What a push costs when many wait for it: claims that find nothing.

use super::chaos_of;
use crate::for_seeds;
use lanemq::model::command::{PopRequest, PopTarget, Subscription};

/// Many consumers wait, one message comes at a time: the most claims without a result that any
/// push set off, and how often it was more than one.
fn crowd(seed: u64) -> Result<u64, String> {
    let mut chaos = chaos_of(seed, 0xC20D);
    let (queues, groups, waiters) = (1 + seed % 2, 1 + seed % 3, 10 + seed % 40);
    (chaos.work.queues, chaos.work.groups) = (queues, groups);
    chaos.world.boot(false)?;
    let (mut worst, mut many, pushes) = (0, 0, 100);
    let mut before = 0;
    for push in 0..pushes {
        // An answer is judged against what was known when its pop was sent.
        chaos.step += 1;
        while (chaos.open.len() as u64) < waiters {
            let request = PopRequest {
                target: PopTarget::Queue(chaos.work.queue().into()),
                group: chaos.work.group().into(),
                batch: Some(1),
                partitions: Some(1),
                auto_ack: chaos.work.prng.chance(50),
                wait_ms: Some(60_000),
                lease_seconds: Some(30),
                subscription: Subscription::All,
                autopilot: false,
                conflation: false,
            };
            let shard = chaos.shard();
            chaos.send_pop(shard, request)?;
            for _ in 0..chaos.work.prng.below(6) {
                chaos.world.move_one()?;
            }
        }
        let items = chaos.work.push().into_iter().take(1).collect();
        chaos.send_push(items)?;
        chaos.world.settle()?;
        chaos.take_replies()?;
        chaos.world.settle()?;
        let empty: u64 = chaos.stats()?.iter().map(|s| s.empty_claims).sum();
        chaos.take_replies()?;
        // The first pushes make queues and registrations.
        if push >= 10 {
            worst = worst.max(empty - before);
            many += u64::from(empty - before > 1);
        }
        before = empty;
    }
    if many > pushes / 100 {
        return Err(format!(
            "{many} of {pushes} pushes had more than one empty claim, up to {worst}"
        ));
    }
    Ok(chaos.world.trace())
}

#[test]
fn claims_are_few() {
    for_seeds("claims_are_few", 20, crowd);
}

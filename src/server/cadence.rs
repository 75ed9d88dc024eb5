//! What waits for commits in all shards, so that these commit in step.
//!
//! A client that was answered by one shard comes back to any. If each shard waits only for those
//! that it answered itself, some of them are always with another, and the shards commit by turns:
//! every client waits for a part of two commits, every commit serves fewer, and every end of one
//! wakes an executor for a few answers. So a shard's commit waits for those that any shard has
//! answered, and whoever sees that all of them are back begins for all.
//!
//! Each shard writes its own [`Beat`] once a turn and reads those of the others; nothing is locked.
//! A number that is a moment old makes a commit begin a moment earlier or later, no more.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::base::ids::ShardId;
use crate::base::time::Now;

/// For so long a count of the clients is believed, in microseconds.
const FRESH_US: u64 = 10_000;

/// Of all shards of the process.
pub struct Cadence {
    beats: Box<[Beat]>,
}

/// Of one shard, which alone writes it, but for `holds`. In a cache line of its own (two, as
/// processors fetch them in pairs).
#[derive(Default)]
#[repr(align(128))]
struct Beat {
    /// Answers that wait for a commit, and those of them that the one in flight is for.
    waiting: AtomicUsize,
    in_flight: AtomicUsize,
    /// What waited in all shards when the last commit of this one had ended, and when that was, in
    /// monotonic microseconds.
    seen: AtomicUsize,
    seen_us: AtomicU64,
    /// It holds its commit back, and is to be told when the others begin theirs.
    holds: AtomicBool,
}

impl Cadence {
    pub fn new(shards: u16) -> Self {
        Self { beats: (0..shards).map(|_| Beat::default()).collect() }
    }

    /// A commit of the shard has begun that so many answers wait for.
    pub fn begun(&self, shard: ShardId, waiting: usize) {
        let beat = &self.beats[shard.index()];
        beat.waiting.store(waiting, Ordering::Relaxed);
        beat.in_flight.store(waiting, Ordering::Relaxed);
        beat.holds.store(false, Ordering::Relaxed);
    }

    /// It has ended: so many waited until now, so many wait on.
    pub fn ended(&self, now: Now, shard: ShardId, waited: usize, waiting: usize) {
        let beat = &self.beats[shard.index()];
        // Before the answers leave: a client waits in one place at a time, so none counts twice.
        beat.waiting.store(waited, Ordering::Relaxed);
        let seen = self.beats.iter().map(|beat| beat.waiting.load(Ordering::Relaxed)).sum();
        beat.seen.store(seen, Ordering::Relaxed);
        beat.seen_us.store(now.mono_us, Ordering::Relaxed);
        beat.waiting.store(waiting, Ordering::Relaxed);
        beat.in_flight.store(0, Ordering::Relaxed);
    }

    /// So many answers wait now, with those that the commit in flight is for.
    pub fn waits(&self, shard: ShardId, waiting: usize) {
        self.beats[shard.index()].waiting.store(waiting, Ordering::SeqCst);
    }

    /// The shard could begin a commit, and holds it back until [`Self::begun`] or until another
    /// calls it. To be followed by a look at [`Self::gathered`]: of two shards that come here at
    /// once, at least one then sees what both have, and that the other holds.
    pub fn holds(&self, shard: ShardId) {
        self.beats[shard.index()].holds.store(true, Ordering::SeqCst);
    }

    /// Answers that wait for commits which have not begun.
    pub fn gathered(&self) -> usize {
        let gathered = |beat: &Beat| {
            let waiting = beat.waiting.load(Ordering::SeqCst);
            waiting.saturating_sub(beat.in_flight.load(Ordering::Relaxed))
        };
        self.beats.iter().map(gathered).sum()
    }

    /// Those that may wait at a time, going by the last commits: a closed circle of clients.
    pub fn expected(&self, now: Now) -> usize {
        let fresh = |beat: &&Beat| {
            let seen_us = beat.seen_us.load(Ordering::Relaxed);
            seen_us > 0 && now.mono_us.saturating_sub(seen_us) < FRESH_US
        };
        let counts = self.beats.iter().filter(fresh);
        counts.map(|beat| beat.seen.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// The other shards that hold their commits back. Each is named once for each time it does.
    pub fn call_others(&self, shard: ShardId) -> impl Iterator<Item = ShardId> {
        let others = (0..).map(ShardId).zip(&self.beats).filter(move |(other, _)| *other != shard);
        let held = others.filter(|(_, beat)| {
            beat.holds.load(Ordering::SeqCst) && beat.holds.swap(false, Ordering::SeqCst)
        });
        held.map(|(other, _)| other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    const A: ShardId = ShardId(0);
    const B: ShardId = ShardId(1);

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_us: 0 }
    }

    fn hold(cadence: &Cadence, shard: ShardId, waiting: usize) {
        cadence.waits(shard, waiting);
        cadence.holds(shard);
    }

    fn called(cadence: &Cadence, by: ShardId) -> Vec<ShardId> {
        cadence.call_others(by).collect()
    }

    #[test]
    fn two_shards_count_their_clients_together() {
        let cadence = Cadence::new(2);
        assert_eq!((cadence.gathered(), cadence.expected(at(1))), (0, 0));
        cadence.begun(A, 10);
        cadence.begun(B, 6);
        cadence.ended(at(500), A, 10, 0);
        // Four of ten have come back, to B, whose six are still on their way.
        cadence.waits(B, 10);
        cadence.ended(at(600), B, 10, 4);
        assert_eq!((cadence.gathered(), cadence.expected(at(700))), (4, 16));
        hold(&cadence, B, 7);
        hold(&cadence, A, 9);
        assert_eq!((cadence.gathered(), cadence.expected(at(700))), (16, 16));
    }

    #[test]
    fn what_a_commit_in_flight_is_for_is_not_gathered() {
        let cadence = Cadence::new(2);
        cadence.begun(A, 8);
        hold(&cadence, B, 3);
        assert_eq!(cadence.gathered(), 3);
        hold(&cadence, A, 10);
        assert_eq!(cadence.gathered(), 5);
        cadence.ended(at(100), A, 10, 2);
        assert_eq!(cadence.gathered(), 5);
    }

    #[test]
    fn clients_that_have_left_are_expected_no_longer() {
        let cadence = Cadence::new(2);
        cadence.begun(A, 50);
        cadence.ended(at(1_000), A, 50, 0);
        cadence.begun(B, 2);
        cadence.ended(at(2_000), B, 2, 0);
        assert_eq!(cadence.expected(at(2_000)), 50);
        assert_eq!(cadence.expected(at(1_000 + FRESH_US)), 2);
        assert_eq!(cadence.expected(at(2_000 + FRESH_US)), 0);
    }

    #[test]
    fn whoever_holds_is_called_once() {
        let cadence = Cadence::new(3);
        assert_eq!(called(&cadence, A), []);
        hold(&cadence, A, 1);
        hold(&cadence, B, 1);
        assert_eq!(called(&cadence, A), [B]);
        assert_eq!(called(&cadence, A), []);
        // It has begun by itself.
        hold(&cadence, B, 2);
        cadence.begun(B, 2);
        assert_eq!(called(&cadence, ShardId(2)), [A]);
    }

    /// Each adds its half at the same moment: one that sees both halves must find the other
    /// holding, or the other one sees them itself.
    #[test]
    fn two_that_hold_at_once_do_not_miss_each_other() {
        const ROUNDS: usize = 20_000;
        let cadence = Cadence::new(2);
        let barrier = Barrier::new(2);
        // Returns in which rounds it began a commit, its own or by the other's call.
        let run = |me: ShardId| {
            let mut begun = vec![0u8; ROUNDS];
            for round in &mut begun {
                barrier.wait();
                hold(&cadence, me, 1);
                if cadence.gathered() == 2 {
                    *round = 1 + cadence.call_others(me).count() as u8;
                }
                barrier.wait();
                cadence.begun(me, 0);
            }
            begun
        };
        let (mine, others) = thread::scope(|scope| {
            let other = scope.spawn(|| run(B));
            (run(A), other.join().unwrap())
        });
        for (mine, other) in mine.iter().zip(&others) {
            // 1 + called: both began, by themselves or one of them called.
            assert!(*mine + *other >= 2, "{mine} {other}");
        }
    }
}

//! A real broker under load, killed with SIGKILL again and again.
//!
//! Each cycle: eight pushers and eight consumers work on one queue over sixteen connections. When
//! at least 1,000 pushes are answered and 200 messages acknowledged, the broker is killed at a
//! random moment with requests open, and started again on its directory. Then the ledger that the
//! clients kept is compared with what the broker has:
//!
//! - every answered push is in the log exactly once, at the offset and with the message id of its
//!   answer, its payload byte for byte; offsets are dense, each pusher's order is kept;
//! - of a push without an answer, each partition's part is there whole or not at all; sent again
//!   it is a duplicate at the same place, or queued;
//! - no acknowledged message comes back to its group, and every other one does;
//! - no message is handed out twice within one lease, the crash in between notwithstanding.
//!
//! SIGKILL leaves the kernel's page cache alone, so this shows the process's own order of things;
//! what a power cut leaves is the simulation's business.
//!
//! `KILL_CYCLES` (default 3) sets the length. `SEED` repeats the choices of a run (sizes, moments);
//! the kernel's scheduling stays its own. `KEEP_DATA=1` keeps the directory of a failed run.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "crash_kill/ledger.rs"]
mod ledger;
#[path = "crash_kill/load.rs"]
mod load;
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ledger::{Delivered, GROUPS, LEASE, Ledger, PARTITIONS, PUSHERS};
use load::{Batch, Progress, Random};
use support::{Broker, Options};

const CONSUMERS: usize = 8;
const ANSWERED_MIN: u64 = 1_000;
const ACKED_MIN: u64 = 200;
/// A queue is worked on for this many cycles: its cursors and leases live through as many crashes.
const QUEUE_CYCLES: u64 = 3;
const CYCLE_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn nothing_answered_is_lost_when_the_process_is_killed() {
    let cycles = number("KILL_CYCLES").unwrap_or(3);
    let seed = number("SEED").unwrap_or_else(|| {
        u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos())
    });
    println!("SEED={seed} KILL_CYCLES={cycles}");
    let mut run = Run::new(seed);
    for cycle in 0..cycles {
        run.cycle(cycle);
    }
    run.finish();
    println!("{}", run.totals);
    println!("lost=0 duplicated=0 reordered=0 returned_after_ack=0");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[derive(Default)]
struct Totals {
    cycles: u64,
    answered: u64,
    acked: u64,
    open_at_kill: u64,
    retried: u64,
    found_stored: u64,
    killed_in_recovery: u64,
    slowest_restart: Duration,
}

impl std::fmt::Display for Totals {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "cycles={} answered={} acked={} open_at_kill={} retried={} found_stored={} \
             killed_in_recovery={} slowest_restart={:?}",
            self.cycles,
            self.answered,
            self.acked,
            self.open_at_kill,
            self.retried,
            self.found_stored,
            self.killed_in_recovery,
            self.slowest_restart
        )
    }
}

struct Run {
    broker: Broker,
    random: Random,
    seed: u64,
    /// The queue under load, and those that are done with.
    current: Arc<Ledger>,
    retired: Vec<Arc<Ledger>>,
    checks: u64,
    totals: Totals,
}

impl Run {
    fn new(seed: u64) -> Self {
        // The smallest segments, so that kills also hit the change from one to the next.
        let arguments = vec!["--segment-bytes".to_owned(), (4 << 20).to_string()];
        let broker = Broker::start(Options { arguments, ..Options::default() });
        let current = Arc::new(Ledger::new("kill-0".to_owned(), seed));
        let (random, totals) = (Random(seed), Totals::default());
        Self { broker, random, seed, current, retired: Vec::new(), checks: 0, totals }
    }

    fn cycle(&mut self, cycle: u64) {
        let open = self.load_and_kill(cycle);
        self.restart();
        self.check_log(&self.current.clone());
        self.retry(open);
        if !self.retired.is_empty() {
            let earlier = self.retired[self.random.index(self.retired.len())].clone();
            self.check_log(&earlier);
        }
        if cycle % QUEUE_CYCLES == QUEUE_CYCLES - 1 {
            let name = format!("kill-{}", cycle + 1);
            let next = Arc::new(Ledger::new(name, self.seed));
            let done = std::mem::replace(&mut self.current, next);
            self.check_remainders(&done);
            self.retired.push(done);
        }
        self.totals.cycles += 1;
    }

    /// Returns the batches that were open when the broker died.
    fn load_and_kill(&mut self, cycle: u64) -> Vec<Batch> {
        let progress = Arc::new(Progress::default());
        let (pushers, consumers) = self.spawn_load(cycle, &progress);
        let limit = Instant::now() + CYCLE_LIMIT;
        let enough = || {
            progress.answered.load(Ordering::Relaxed) >= ANSWERED_MIN
                && progress.acked.load(Ordering::Relaxed) >= ACKED_MIN
        };
        let failed = || {
            pushers.iter().any(JoinHandle::is_finished)
                || consumers.iter().any(JoinHandle::is_finished)
        };
        while !enough() && !failed() {
            assert!(Instant::now() < limit, "too slow:\n{}", self.broker.log_tail());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(self.random.below(300_000)));
        while progress.open.load(Ordering::SeqCst) == 0 && !failed() {
            std::hint::spin_loop();
        }
        if failed() {
            eprintln!("the broker's last lines:\n{}", self.broker.log_tail());
            join(pushers.into_iter().filter(JoinHandle::is_finished).collect());
            join(consumers.into_iter().filter(JoinHandle::is_finished).collect());
            panic!("a client ended before the kill");
        }
        self.totals.open_at_kill += progress.open.load(Ordering::SeqCst);
        progress.killed.store(true, Ordering::SeqCst);
        self.broker.kill9();
        let open = join(pushers);
        join(consumers);
        self.totals.answered += progress.answered.load(Ordering::SeqCst);
        self.totals.acked += progress.acked.load(Ordering::SeqCst);
        open
    }

    fn spawn_load(
        &mut self,
        cycle: u64,
        progress: &Arc<Progress>,
    ) -> (Vec<JoinHandle<Batch>>, Vec<JoinHandle<()>>) {
        let mut pushers = Vec::new();
        let mut consumers = Vec::new();
        for index in 0..PUSHERS + CONSUMERS {
            let (ledger, progress) = (self.current.clone(), progress.clone());
            let mut client = self.broker.client();
            let mut random = Random(self.seed ^ (cycle << 8) ^ (index as u64));
            if index < PUSHERS {
                pushers.push(std::thread::spawn(move || {
                    load::push_until_killed(&ledger, &progress, index, &mut client, &mut random)
                }));
            } else {
                let group = index % GROUPS.len();
                consumers.push(std::thread::spawn(move || {
                    load::consume_until_killed(&ledger, &progress, group, &mut client, &mut random);
                }));
            }
        }
        (pushers, consumers)
    }

    /// Starts the broker again; one time in four it is killed once more while it recovers.
    fn restart(&mut self) {
        if self.random.below(4) == 0 {
            self.broker.spawn();
            std::thread::sleep(Duration::from_micros(self.random.below(100_000)));
            self.broker.kill9();
            self.totals.killed_in_recovery += 1;
        }
        let start = Instant::now();
        self.broker.restart();
        self.totals.slowest_restart = self.totals.slowest_restart.max(start.elapsed());
    }

    /// Reads a whole queue with a group that nobody used before, and compares.
    fn check_log(&mut self, ledger: &Ledger) {
        self.checks += 1;
        let group = format!("check-{}", self.checks);
        let mut client = self.broker.client();
        let mut log: Vec<Vec<Delivered>> = (0..PARTITIONS).map(|_| Vec::new()).collect();
        for message in load::drain(ledger, &mut client, &group, 0) {
            let key = ledger.delivered(&message);
            log[key.partition].push(message);
        }
        ledger.check_log(&log);
    }

    /// The open pushes again: what the log holds must be called a duplicate, the rest queued.
    fn retry(&mut self, open: Vec<Batch>) {
        let progress = Progress::default();
        let mut client = self.broker.client();
        for mut batch in open {
            let mut whole: HashMap<usize, bool> = HashMap::new();
            for item in &mut batch.items {
                let stored = self.current.place(item.key).is_some();
                if !item.again {
                    let first = *whole.entry(item.key.partition).or_insert(stored);
                    assert_eq!(first, stored, "{:?}: a part of an append is stored", item.key);
                    self.totals.found_stored += u64::from(stored);
                }
                item.expected = Some(if stored { "duplicate" } else { "queued" });
            }
            batch.attempted = false;
            self.totals.retried += batch.items.len() as u64;
            load::push(&self.current, &progress, &mut batch, &mut client).unwrap();
        }
        self.totals.answered += progress.answered.load(Ordering::SeqCst);
    }

    /// What the working groups have not acknowledged comes, all of it and nothing else, once the
    /// leases of the dead consumers have lapsed.
    fn check_remainders(&mut self, ledger: &Ledger) {
        let mut client = self.broker.client();
        for (group, name) in GROUPS.into_iter().enumerate() {
            let limit = Instant::now() + LEASE + Duration::from_secs(3);
            let unfinished = |surely: bool| -> Vec<usize> {
                let done = |partition| match ledger.finished(group, partition) {
                    (acked, _) if surely => acked,
                    (_, perhaps) => perhaps,
                };
                (0..PARTITIONS).filter(|&partition| !done(partition)).collect()
            };
            while !unfinished(true).is_empty() && Instant::now() < limit {
                let before = ledger.acked(group);
                let messages = load::drain(ledger, &mut client, name, 300);
                take_remainder(ledger, group, &before, &messages);
            }
            let missing = unfinished(false);
            assert!(missing.is_empty(), "{} '{name}': NOT delivered {missing:?}", ledger.queue);
        }
    }

    /// Everything once more at the end, then a regular stop.
    fn finish(&mut self) {
        let mut queues = std::mem::take(&mut self.retired);
        if self.current.length(0) > 0 {
            self.check_remainders(&self.current.clone());
            queues.push(self.current.clone());
        }
        for ledger in &queues {
            self.check_log(ledger);
            let mut client = self.broker.client();
            for name in GROUPS {
                let back = load::drain(ledger, &mut client, name, 0);
                assert!(back.is_empty(), "{} '{name}': {} came back", ledger.queue, back.len());
            }
        }
        let status = self.broker.terminate();
        assert!(status.success(), "{status} after SIGTERM:\n{}", self.broker.log_tail());
    }
}

/// Messages that a working group had left: each partition goes on where its acks ended.
fn take_remainder(ledger: &Ledger, group: usize, before: &[i64], messages: &[Delivered]) {
    let mut next: HashMap<usize, i64> = HashMap::new();
    for message in messages {
        let partition = ledger.delivered(message).partition;
        let offset = i64::try_from(message.place.offset).unwrap();
        let at = format!("{} p{partition} '{}' offset {offset}", ledger.queue, GROUPS[group]);
        match next.insert(partition, offset + 1) {
            Some(expected) => assert_eq!(offset, expected, "{at}: a gap or a repeat"),
            None => {
                assert!(offset > before[partition], "{at}: an acked message came back");
                let skipped = offset > ledger.perhaps(group, partition) + 1;
                assert!(!skipped, "{at}: messages before it were skipped");
            }
        }
    }
    for (partition, next) in next {
        ledger.ack_sent(group, partition, next - 1);
        ledger.ack_answered(group, partition, next - 1);
    }
}

/// Waits for threads; a panic in one of them is this test's.
fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    let join = |thread: JoinHandle<T>| {
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    };
    threads.into_iter().map(join).collect()
}

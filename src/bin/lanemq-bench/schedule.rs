//! Which push comes next, and when.

use std::time::Duration;

use crate::args::Args;
use crate::wire::Batch;

pub struct Schedule {
    args: Args,
    next: u64,
    /// After so many pushes it is over.
    count: Option<u64>,
    /// Or at this time, which the end of the warm-up sets.
    end_ns: Option<u64>,
    /// From one push to the next, where the rate is given.
    interval_ns: Option<f64>,
    over: bool,
}

impl Schedule {
    pub fn new(args: &Args) -> Self {
        let interval_ns = args.rate.map(|rate| 1e9 * f64::from(args.batch) / rate);
        // On a schedule everything that was meant to be sent is sent, however late.
        let in_time = interval_ns.map(|interval_ns| {
            let warmup = args.warmup.div_ceil(u64::from(args.batch));
            warmup + ((args.push_time().as_nanos() as f64 / interval_ns) as u64).max(1)
        });
        let count = args.pushes().or(in_time);
        let over = !args.pushes_anything();
        Self { args: args.clone(), next: 0, count, end_ns: None, interval_ns, over }
    }

    /// The time that pushing is to take counts from here.
    pub fn begin_measuring(&mut self, now_ns: u64) {
        if self.count.is_none() {
            self.end_ns = Some(now_ns + self.args.push_time().as_nanos() as u64);
        }
    }

    /// The next push, if it is due, with the time it was meant for if there is one.
    pub fn next(&mut self, now_ns: u64) -> Option<(Batch, Option<u64>)> {
        let reached = self.count.is_some_and(|count| self.next >= count);
        if reached || self.end_ns.is_some_and(|end_ns| now_ns >= end_ns) {
            self.over = true;
        }
        if self.over {
            return None;
        }
        let intended_ns = self.intended_ns();
        if intended_ns.is_some_and(|at_ns| at_ns > now_ns) {
            return None;
        }
        let batch = batch_at(&self.args, self.next);
        self.next += 1;
        Some((batch, intended_ns))
    }

    fn intended_ns(&self) -> Option<u64> {
        self.interval_ns.map(|interval_ns| (self.next as f64 * interval_ns) as u64)
    }

    /// How long until a push is due; `None` where none waits for its time.
    pub fn until_due(&self, now_ns: u64) -> Option<Duration> {
        if self.over {
            return None;
        }
        self.intended_ns().map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }

    /// Nothing more will be pushed.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

/// The push of that index. Pushes go round the partitions.
pub fn batch_at(args: &Args, index: u64) -> Batch {
    let first = index * u64::from(args.spread);
    Batch {
        index,
        first_seq: index * u64::from(args.batch),
        count: args.batch,
        partition: (first % u64::from(args.partitions)) as u32,
    }
}

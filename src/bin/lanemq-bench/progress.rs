//! A line each second on stderr, once a run takes longer than a glance.

use std::time::Duration;

use crate::args::Workload;
use crate::ledger::Counts;

const QUIET: Duration = Duration::from_secs(3);

pub struct Progress {
    workload: Workload,
    shown: Duration,
    counts: Counts,
}

impl Progress {
    pub fn new(workload: Workload) -> Self {
        Self { workload, shown: Duration::ZERO, counts: Counts::default() }
    }

    pub fn show(&mut self, now: Duration, counts: &Counts) {
        let since = now - self.shown;
        if since < Duration::from_secs(1) {
            return;
        }
        let new = counts.since(&self.counts);
        if now >= QUIET {
            let rate = |count: u64| count as f64 / since.as_secs_f64();
            let pushed = format!("pushed {} ({:.0}/s)", counts.pushed, rate(new.pushed));
            let acked = format!("acked {} ({:.0}/s)", counts.acked, rate(new.acked));
            match self.workload {
                Workload::Push => eprintln!("{:>4} s  {pushed}", now.as_secs()),
                Workload::Pop => eprintln!("{:>4} s  {acked}", now.as_secs()),
                Workload::PushPop | Workload::Jobs => {
                    eprintln!("{:>4} s  {pushed}  {acked}", now.as_secs());
                }
            }
        }
        self.shown = now;
        self.counts = *counts;
    }
}

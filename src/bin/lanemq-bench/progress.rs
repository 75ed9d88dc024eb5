//! A line each second on stderr, once a run takes longer than a glance; and whether it moves.

use std::time::Duration;

use crate::args::Workload;
use crate::ledger::Counts;
use crate::wire::Fault;

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
                Workload::Push | Workload::Txn => eprintln!("{:>4} s  {pushed}", now.as_secs()),
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

/// Without any progress for so long a run is given up.
const STALLED: Duration = Duration::from_secs(30);
/// The longest that one turn of the driver may take where nothing is wrong with the machine.
const TURN_MAX: Duration = Duration::from_secs(2);

/// Looks on after each turn of the driver, which comes at least once a second.
pub struct Watch {
    counts: Counts,
    looked: Duration,
    /// How long the driver ran without seeing progress.
    idle: Duration,
    stood_still: Duration,
}

impl Watch {
    pub fn new(counts: Counts) -> Self {
        let zero = Duration::ZERO;
        Self { counts, looked: zero, idle: zero, stood_still: zero }
    }

    pub fn look(&mut self, now: Duration, counts: &Counts) -> Result<(), Fault> {
        let turn = now - self.looked;
        self.looked = now;
        if turn > TURN_MAX {
            // A stopped process or a paused machine: no time that the server had, either.
            self.stood_still += turn;
        }
        if self.counts != *counts {
            self.counts = *counts;
            self.idle = Duration::ZERO;
            return Ok(());
        }
        self.idle += turn.min(TURN_MAX);
        if self.idle > STALLED {
            let seconds = STALLED.as_secs();
            return Err(Fault::new(format!("nothing moved for {seconds} s; {counts:?}")));
        }
        Ok(())
    }

    pub fn stood_still(&self) -> Duration {
        self.stood_still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_from_a_server_that_does_not_answer() {
        let seconds = Duration::from_secs;
        let counts = Counts::default();
        let mut watch = Watch::new(counts);
        watch.look(seconds(1), &counts).unwrap();
        watch.look(seconds(61), &counts).unwrap();
        assert_eq!(watch.stood_still(), seconds(60));

        let mut watch = Watch::new(counts);
        let stalled = (1..60).find(|n| watch.look(seconds(*n), &counts).is_err());
        assert_eq!(stalled, Some(31));
        assert_eq!(watch.stood_still(), Duration::ZERO);
    }
}

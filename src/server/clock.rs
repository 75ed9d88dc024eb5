//! The broker's clocks: the only place that reads time.
//!
//! Wall time is the host's wall time at start plus what the monotonic clock has moved. A step
//! of the host's clock (an administrator, a virtual machine that was moved) is followed only
//! after it has held for a minute: a clock that jumps and comes back moves no stamp.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::base::time::Now;

/// How long a step must hold before it is followed.
const STEP_HOLDS_US: u64 = 60_000_000;
/// Differences below this are the noise of reading two clocks on a busy machine.
const STEP_LEAST_US: i64 = 50_000;

/// Shared by all executors, so that a monotonic time means the same on each.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// Wall time minus monotonic time, in microseconds.
    offset_us: AtomicI64,
    step: Mutex<Option<Step>>,
}

/// A step of the host's clock that is not followed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    by_us: i64,
    since_us: u64,
}

impl Clock {
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            offset_us: AtomicI64::new(host_wall_us()),
            step: Mutex::new(None),
        }
    }

    pub fn now(&self) -> Now {
        let mono_us = self.mono_us();
        Now { mono_us, wall_us: self.wall_us(mono_us) }
    }

    /// How long until a monotonic moment; zero when it has passed.
    pub fn until(&self, mono_us: u64) -> Duration {
        Duration::from_micros(mono_us.saturating_sub(self.mono_us()))
    }

    /// Compares with the host's clock; to be called about once a second. Returns a step that
    /// is followed from now on.
    pub fn check_host(&self) -> Option<i64> {
        let now = self.now();
        self.observe(now, host_wall_us())
    }

    /// By how much the host's clock is ahead of ours, where that is a step not yet followed.
    pub fn pending_step_us(&self) -> i64 {
        self.step.lock().unwrap_or_else(PoisonError::into_inner).map_or(0, |step| step.by_us)
    }

    fn observe(&self, now: Now, host_us: i64) -> Option<i64> {
        let by_us = host_us - now.wall_us;
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |s: &Step| (s.by_us - by_us).abs() < STEP_LEAST_US;
        *step = match *step {
            _ if by_us.abs() < STEP_LEAST_US => None,
            Some(held) if same(&held) && now.mono_us - held.since_us >= STEP_HOLDS_US => {
                self.offset_us.fetch_add(by_us, Ordering::Relaxed);
                *step = None;
                return Some(by_us);
            }
            Some(held) if same(&held) => Some(held),
            _ => Some(Step { by_us, since_us: now.mono_us }),
        };
        None
    }

    fn mono_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn wall_us(&self, mono_us: u64) -> i64 {
        let offset = self.offset_us.load(Ordering::Relaxed);
        offset.saturating_add(i64::try_from(mono_us).unwrap_or(i64::MAX))
    }
}

fn host_wall_us() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(clock: &Clock, second: u64) -> Now {
        let mono_us = second * 1_000_000;
        Now { mono_us, wall_us: clock.wall_us(mono_us) }
    }

    #[test]
    fn a_step_is_followed_only_after_it_held_a_minute() {
        let clock = Clock::start();
        let hour = 3_600_000_000;
        for second in 0..60 {
            let now = at(&clock, second);
            assert_eq!(clock.observe(now, now.wall_us + hour), None);
        }
        assert_eq!(clock.pending_step_us(), hour);
        let now = at(&clock, 60);
        assert_eq!(clock.observe(now, now.wall_us + hour + 1_000), Some(hour + 1_000));
        assert_eq!(at(&clock, 60).wall_us - now.wall_us, hour + 1_000);
        assert_eq!(clock.pending_step_us(), 0);
    }

    #[test]
    fn a_step_that_goes_back_or_changes_starts_anew_and_noise_is_no_step() {
        let clock = Clock::start();
        let day = -86_400_000_000;
        let now = at(&clock, 1);
        assert_eq!(clock.observe(now, now.wall_us + 49_000), None);
        assert_eq!(clock.pending_step_us(), 0);
        clock.observe(now, now.wall_us + day);
        let now = at(&clock, 30);
        clock.observe(now, now.wall_us + 2 * day);
        let now = at(&clock, 62);
        assert_eq!(clock.observe(now, now.wall_us + 2 * day), None);
        let now = at(&clock, 63);
        clock.observe(now, now.wall_us);
        assert_eq!(clock.pending_step_us(), 0);
        let now = at(&clock, 200);
        assert_eq!(clock.observe(now, now.wall_us + 2 * day), None);
    }

    #[test]
    fn time_moves_forward() {
        let clock = Clock::start();
        let first = clock.now();
        let second = clock.now();
        assert!(second.mono_us >= first.mono_us && second.wall_us >= first.wall_us);
        assert_eq!(clock.until(0), Duration::ZERO);
    }
}

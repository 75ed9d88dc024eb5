//! How long a commit waits for company: when the driver flushes a shard.
//!
//! Clients that have just been answered mostly come back at once. If the log commits whatever is
//! there the moment the disk is free, two groups of clients take turns: each commit carries one
//! of them while the other waits for it, so that every client pays for two commits and every
//! commit, with all it costs the processor, serves half of them. So a commit waits for those that
//! the last ones answered, whichever shard that was ([`super::cadence`] counts them), for no longer
//! than two commits take: one that comes from another executor has waited for a turn of that.
//!
//! Where they do not come back (arrivals that know nothing of each other), waiting is in vain: it
//! is then left out, for longer each time it is tried again.

use crate::base::time::{Deadline, Now};

/// The wait is at most so many times what a commit usually takes.
const COMMITS: u64 = 2;
/// Bound of the wait in microseconds, for slow disks.
const WAIT_US_MAX: u64 = 1_000;
/// Of those expected, all but this part are enough.
const STRAGGLERS: usize = 8;
/// What nobody waits for is written with what somebody does, or by itself after this many
/// microseconds.
const REST_US: u64 = 5_000;
/// Commits without a wait after a vain one, doubled with each further.
const SKIP_MIN: u32 = 4;
const SKIP_MAX: u32 = 256;

#[derive(Debug, Default)]
pub struct Pace {
    /// When the commit in flight was begun, in monotonic microseconds.
    begun_us: u64,
    /// What a commit takes, smoothed.
    usual_us: u64,
    wait: Wait,
    /// What rests is flushed then, in monotonic microseconds.
    rest_until: Option<u64>,
    /// Commits still to be left without a wait, and how many after the next vain one.
    skip: u32,
    next_skip: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Wait {
    /// Nobody is expected.
    #[default]
    No,
    /// From the next time that appends could be written: by then the answers have gone out.
    Next,
    /// Until then, in monotonic microseconds.
    Until(u64),
}

/// When to begin a commit that could begin now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    Later,
    /// Now, whatever others do.
    Alone,
    /// Now, and so are the shards that hold theirs.
    Together,
}

impl Pace {
    /// A commit has begun.
    pub fn begun(&mut self, now: Now) {
        self.begun_us = now.mono_us;
        self.wait = Wait::No;
        self.rest_until = None;
    }

    /// A commit has ended, and may have released answers.
    pub fn ended(&mut self, now: Now, released: bool) {
        let took_us = now.mono_us.saturating_sub(self.begun_us);
        self.usual_us =
            if self.usual_us == 0 { took_us } else { (self.usual_us * 7 + took_us) / 8 };
        if self.skip > 0 {
            self.skip -= 1;
        } else if released {
            self.wait = Wait::Next;
        }
    }

    /// Another shard begins and calls.
    pub fn called(&mut self) {
        self.wait = Wait::No;
    }

    /// Whether to begin. `count` is asked, where it matters, how many answers wait for that in all
    /// shards, and of how many that are expected.
    pub fn start(&mut self, now: Now, count: impl FnOnce() -> (usize, usize)) -> Start {
        // What rested has company: its time does not count any more.
        self.rest_until = None;
        if self.wait == Wait::No {
            return Start::Alone;
        }
        let (gathered, expected) = count();
        match self.wait {
            _ if gathered >= expected - expected / STRAGGLERS => self.next_skip = SKIP_MIN,
            Wait::Next => {
                let most_us = (self.usual_us * COMMITS).min(WAIT_US_MAX);
                self.wait = Wait::Until(now.mono_us + most_us);
                return Start::Later;
            }
            Wait::Until(until) if now.mono_us < until => return Start::Later,
            // One of two is not enough: a client that comes back each time must not wait for
            // another that never does.
            Wait::Until(_) if gathered * 3 < expected * 2 => {
                self.skip = self.next_skip.max(SKIP_MIN);
                self.next_skip = (self.skip * 2).min(SKIP_MAX);
            }
            Wait::Until(_) | Wait::No => {}
        }
        self.wait = Wait::No;
        Start::Together
    }

    /// Whether what is appended, which nobody waits for, is to wait for company still.
    pub fn rests(&mut self, now: Now) -> bool {
        now.mono_us < *self.rest_until.get_or_insert(now.mono_us + REST_US)
    }

    /// When to flush at the latest.
    pub fn deadline(&self) -> Option<Deadline> {
        let wait = match self.wait {
            Wait::Until(until) => Some(until),
            Wait::No | Wait::Next => None,
        };
        [wait, self.rest_until].into_iter().flatten().min().map(Deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_us: 0 }
    }

    /// One commit of 400 µs that ends at `end` and releases answers.
    fn commit(pace: &mut Pace, end: u64) {
        pace.begun(at(end - 400));
        pace.ended(at(end), true);
    }

    #[test]
    fn a_lone_client_never_waits() {
        let mut pace = Pace::default();
        assert_eq!(pace.start(at(0), || (1, 0)), Start::Alone);
        for end in [1_000, 2_000, 3_000] {
            commit(&mut pace, end);
            assert_eq!(pace.start(at(end + 50), || (1, 1)), Start::Together);
            assert_eq!(pace.deadline(), None);
        }
        // It has been away for long.
        commit(&mut pace, 4_000);
        assert_eq!(pace.start(at(60_000_000), || (1, 0)), Start::Together);
    }

    #[test]
    fn what_nobody_waits_for_rests_until_the_next_commit_or_its_time() {
        let mut pace = Pace::default();
        assert!(pace.rests(at(1_000)) && pace.rests(at(1_000 + REST_US - 1)));
        assert_eq!(pace.deadline(), Some(Deadline(1_000 + REST_US)));
        assert!(!pace.rests(at(1_000 + REST_US)));
        pace.begun(at(7_000));
        assert_eq!(pace.deadline(), None);
        assert!(pace.rests(at(9_000)));
        // With company it waits as that does: a deadline that has passed would be looked at
        // without end.
        pace.ended(at(13_900), true);
        assert_eq!(pace.start(at(13_950), || (1, 8)), Start::Later);
        assert_eq!(pace.deadline(), Some(Deadline(13_950 + WAIT_US_MAX)));
    }

    #[test]
    fn a_client_does_not_wait_for_one_that_is_slow() {
        let mut pace = Pace::default();
        let mut waits = 0;
        for n in 1..=1_000 {
            pace.ended(at(n * 2_000), true);
            if pace.start(at(n * 2_000), || (1, 2)) == Start::Later {
                waits += 1;
                assert_eq!(pace.start(at(n * 2_000 + WAIT_US_MAX), || (1, 2)), Start::Together);
            }
            pace.begun(at(n * 2_000 + WAIT_US_MAX));
        }
        assert!((5..=12).contains(&waits), "{waits}");
    }

    #[test]
    fn a_commit_waits_for_those_that_are_expected_but_for_a_few() {
        let mut pace = Pace::default();
        commit(&mut pace, 1_000);
        assert_eq!(pace.start(at(1_300), || (16, 32)), Start::Later);
        assert_eq!(pace.start(at(1_350), || (27, 32)), Start::Later);
        assert_eq!(pace.start(at(1_400), || (28, 32)), Start::Together);
        pace.begun(at(1_400));
        assert_eq!(pace.deadline(), None);
    }

    #[test]
    fn the_wait_ends_after_two_commits_and_is_bounded() {
        let mut pace = Pace::default();
        commit(&mut pace, 1_000);
        assert_eq!(pace.start(at(1_300), || (5, 8)), Start::Later);
        assert_eq!(pace.deadline(), Some(Deadline(2_100)));
        assert_eq!(pace.start(at(2_099), || (5, 8)), Start::Later);
        assert_eq!(pace.start(at(2_100), || (5, 8)), Start::Together);
        assert_eq!(pace.deadline(), None);
        let mut slow = Pace::default();
        slow.begun(at(0));
        slow.ended(at(90_000), true);
        assert_eq!(slow.start(at(90_000), || (1, 8)), Start::Later);
        assert_eq!(slow.deadline(), Some(Deadline(90_000 + WAIT_US_MAX)));
    }

    #[test]
    fn one_that_is_called_begins_and_calls_nobody() {
        let mut pace = Pace::default();
        commit(&mut pace, 1_000);
        assert_eq!(pace.start(at(1_300), || (5, 8)), Start::Later);
        pace.called();
        assert_eq!(pace.start(at(1_310), || (0, 8)), Start::Alone);
    }

    #[test]
    fn where_nobody_comes_back_waits_become_rare() {
        let mut pace = Pace::default();
        let mut waits = 0;
        for n in 1..=1_000 {
            commit(&mut pace, n * 2_000);
            if pace.start(at(n * 2_000), || (2, 8)) == Start::Later {
                waits += 1;
                assert_eq!(pace.start(at(n * 2_000 + 800), || (2, 8)), Start::Together);
            }
            pace.begun(at(n * 2_000 + 800));
        }
        assert!((5..=12).contains(&waits), "{waits}");
        // They come back: from the next try on each commit waits for them.
        let mut end = 3_000_000;
        let mut tries = 0;
        while tries <= SKIP_MAX {
            commit(&mut pace, end);
            if pace.start(at(end), || (2, 8)) == Start::Later {
                break;
            }
            (end, tries) = (end + 1_000, tries + 1);
        }
        assert!(tries <= SKIP_MAX);
        assert_eq!(pace.start(at(end + 10), || (8, 8)), Start::Together);
        commit(&mut pace, end + 1_000);
        assert_eq!(pace.start(at(end + 1_000), || (2, 8)), Start::Later);
    }
}

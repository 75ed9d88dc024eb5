//! How long a commit waits for company: when the driver flushes a shard.
//!
//! Clients that have just been answered mostly come back at once. If the log commits whatever is
//! there the moment the disk is free, two groups of clients take turns: each commit carries one
//! of them while the other waits for it, so that every client pays for two commits and every
//! commit, with all it costs the processor, serves half of them. So a commit waits for those that
//! the last one answered, for no longer than two commits take: one that comes from another
//! executor has waited for a turn of that.
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
    /// Answers that the last commit released, and those that waited for the next already.
    released: usize,
    left: usize,
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

impl Pace {
    /// A commit has begun, and so many answers wait for it.
    pub fn begun(&mut self, now: Now, waiting: usize) {
        self.begun_us = now.mono_us;
        let came = waiting.saturating_sub(self.left);
        // One of two is not enough: a client that comes back each time must not wait for another
        // that never does.
        let vain = came * 3 < self.released * 2;
        if matches!(self.wait, Wait::Until(_)) && vain {
            self.skip = self.next_skip.max(SKIP_MIN);
            self.next_skip = (self.skip * 2).min(SKIP_MAX);
        }
        self.wait = Wait::No;
        self.rest_until = None;
    }

    /// A commit has ended: it released so many answers, and others wait for the next.
    pub fn ended(&mut self, now: Now, released: usize, waiting: usize) {
        let took_us = now.mono_us.saturating_sub(self.begun_us);
        self.usual_us =
            if self.usual_us == 0 { took_us } else { (self.usual_us * 7 + took_us) / 8 };
        (self.released, self.left) = (released, waiting);
        if self.skip > 0 {
            self.skip -= 1;
        } else if released > 0 {
            self.wait = Wait::Next;
        }
    }

    /// Whether what is appended is to wait still, given the answers that wait for it.
    pub fn holds(&mut self, now: Now, waiting: usize) -> bool {
        // What rested has company: its time does not count any more.
        self.rest_until = None;
        let expected = self.left + self.released;
        if self.wait != Wait::No && waiting >= expected - expected / STRAGGLERS {
            self.next_skip = SKIP_MIN;
            self.wait = Wait::No;
        }
        match self.wait {
            Wait::No => false,
            Wait::Next => {
                let most_us = (self.usual_us * COMMITS).min(WAIT_US_MAX);
                self.wait = Wait::Until(now.mono_us + most_us);
                true
            }
            Wait::Until(until) => now.mono_us < until,
        }
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

    /// One commit of 400 µs that ends at `end`.
    fn commit(pace: &mut Pace, end: u64, released: usize, waiting: usize) {
        pace.begun(at(end - 400), 0);
        pace.ended(at(end), released, waiting);
    }

    #[test]
    fn a_lone_client_never_waits() {
        let mut pace = Pace::default();
        assert!(!pace.holds(at(0), 1));
        for end in [1_000, 2_000, 3_000] {
            commit(&mut pace, end, 1, 0);
            assert!(!pace.holds(at(end + 50), 1));
            assert_eq!(pace.deadline(), None);
        }
    }

    #[test]
    fn what_nobody_waits_for_rests_until_the_next_commit_or_its_time() {
        let mut pace = Pace::default();
        assert!(pace.rests(at(1_000)) && pace.rests(at(1_000 + REST_US - 1)));
        assert_eq!(pace.deadline(), Some(Deadline(1_000 + REST_US)));
        assert!(!pace.rests(at(1_000 + REST_US)));
        pace.begun(at(7_000), 1);
        assert_eq!(pace.deadline(), None);
        assert!(pace.rests(at(9_000)));
        // With company it waits as that does: a deadline that has passed would be looked at
        // without end.
        pace.ended(at(13_900), 8, 0);
        assert!(pace.holds(at(13_950), 1));
        assert_eq!(pace.deadline(), Some(Deadline(13_950 + WAIT_US_MAX)));
    }

    #[test]
    fn a_client_does_not_wait_for_one_that_is_slow() {
        let mut pace = Pace::default();
        let mut waits = 0;
        for n in 1..=1_000 {
            pace.ended(at(n * 1_000), 2, 0);
            waits += u32::from(pace.holds(at(n * 1_000), 1));
            pace.begun(at(n * 1_000 + 600), 1);
        }
        assert!((5..=12).contains(&waits), "{waits}");
    }

    #[test]
    fn two_groups_of_clients_become_one() {
        let mut pace = Pace::default();
        commit(&mut pace, 1_000, 16, 16);
        assert!(pace.holds(at(1_300), 16) && pace.holds(at(1_350), 20));
        // A few stragglers hold up nobody.
        assert!(!pace.holds(at(1_400), 28));
        commit(&mut pace, 2_000, 28, 2);
        assert!(pace.holds(at(2_100), 10) && !pace.holds(at(2_200), 30));
    }

    #[test]
    fn the_wait_ends_after_two_commits_and_is_bounded() {
        let mut pace = Pace::default();
        commit(&mut pace, 1_000, 8, 0);
        assert!(pace.holds(at(1_300), 5));
        assert_eq!(pace.deadline(), Some(Deadline(2_100)));
        assert!(pace.holds(at(2_099), 5) && !pace.holds(at(2_100), 5));
        pace.begun(at(2_100), 5);
        assert_eq!(pace.deadline(), None);
        let mut slow = Pace::default();
        slow.begun(at(0), 0);
        slow.ended(at(90_000), 8, 0);
        assert!(slow.holds(at(90_000), 1));
        assert_eq!(slow.deadline(), Some(Deadline(90_000 + WAIT_US_MAX)));
    }

    #[test]
    fn where_nobody_comes_back_waits_become_rare() {
        let mut pace = Pace::default();
        let mut waits = 0;
        for n in 1..=1_000 {
            commit(&mut pace, n * 2_000, 8, 0);
            if pace.holds(at(n * 2_000), 2) {
                waits += 1;
                assert!(!pace.holds(at(n * 2_000 + 800), 2));
            }
            pace.begun(at(n * 2_000 + 800), 2);
        }
        assert!((5..=12).contains(&waits), "{waits}");
        // They come back: from the next try on each commit waits for them.
        let mut end = 3_000_000;
        let mut tries = 0;
        while tries <= SKIP_MAX {
            commit(&mut pace, end, 8, 0);
            if pace.holds(at(end), 2) {
                break;
            }
            (end, tries) = (end + 1_000, tries + 1);
        }
        assert!(tries <= SKIP_MAX && !pace.holds(at(end + 10), 8));
        commit(&mut pace, end + 1_000, 8, 0);
        assert!(pace.holds(at(end + 1_000), 2));
    }
}

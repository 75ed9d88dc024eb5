//! What the wire's contract says about one group on one partition, as a function of what is asked
//! of it. The checker runs it along the history, over every state that the unanswered requests
//! leave possible.

use super::event::{Claim, Status, Verdict};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// First offset that is not settled.
    pub next: u64,
    /// Where the last delivery began and the how many-th it was.
    attempt: (u64, u64),
    retries: u64,
    /// The pop that holds the lease, and its last offset.
    lease: Option<(u64, u64)>,
    /// The pop whose batch was settled last: its first and last offset.
    released: Option<(u64, u64, u64)>,
    pub dead_letters: Vec<u64>,
}

/// What pops without an answer may have done before a claim.
#[derive(Clone, Copy, Default, Debug)]
pub struct Lost {
    /// Deliveries under a lease that count as attempts.
    pub attempts: u64,
    /// Messages that were committed at a delivery that nobody saw.
    pub messages: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It begins at a settled message.
    Settled,
    /// It begins behind messages that are not settled.
    Skipped,
    /// The attempt is not the documented one.
    Attempt,
}

impl Cursor {
    pub fn new() -> Self {
        Self {
            next: 0,
            attempt: (0, 0),
            retries: 0,
            lease: None,
            released: None,
            dead_letters: Vec::new(),
        }
    }

    /// A delivery. Returns the state after it, and how much of `lost` it took to explain it.
    pub fn claim(
        &self,
        pop: u64,
        auto: bool,
        claim: &Claim,
        lost: Lost,
    ) -> Result<(Self, Lost), Fault> {
        let Some(gap) = claim.first.checked_sub(self.next) else { return Err(Fault::Settled) };
        if gap > lost.messages {
            return Err(Fault::Skipped);
        }
        let mut after = self.clone();
        if gap > 0 {
            (after.attempt, after.retries) = ((0, 0), 0);
        }
        let again = after.attempt.0 == claim.first && after.attempt.1 > 0 && !auto;
        let expected = if again { after.attempt.1 + 1 } else { 1 };
        // A lost pop that committed may have been taken back: what it cleared was cleared.
        let least = if lost.messages > 0 { 1 } else { expected };
        let most = if auto { 1 } else { expected + lost.attempts };
        if claim.attempt < least || claim.attempt > most {
            return Err(Fault::Attempt);
        }
        let used = Lost { attempts: claim.attempt.saturating_sub(expected), messages: gap };
        after.attempt = (claim.first, claim.attempt);
        if auto {
            (after.next, after.lease, after.retries) = (claim.last() + 1, None, 0);
        } else {
            (after.next, after.lease) = (claim.first, Some((pop, claim.last())));
        }
        Ok((after, used))
    }

    pub fn holds(&self, pop: u64) -> bool {
        self.lease.is_some_and(|(holder, _)| holder == pop)
    }

    /// An ack under the lease of `pop`: what it answers and leaves.
    pub fn settle(
        &self,
        pop: u64,
        items: &[(u64, Status)],
        retry_limit: u64,
    ) -> (Self, Vec<Verdict>) {
        let verdict = |success, lease_refused, released| Verdict {
            success,
            lease_refused,
            dead_lettered: false,
            released: Some(released),
        };
        let Some((_, end)) = self.lease.filter(|(holder, _)| *holder == pop) else {
            // The repeat of an ack that settled its batch is known; other leases are void.
            let known = |(offset, _): &(u64, Status)| {
                self.released.is_some_and(|(p, a, b)| p == pop && (a..=b).contains(offset))
            };
            let answers = items.iter().map(|i| verdict(known(i), !known(i), known(i)));
            return (self.clone(), answers.collect());
        };
        let mut after = self.clone();
        let open: Vec<_> = items.iter().copied().filter(|(o, _)| *o >= self.next).collect();
        let signals = open.iter().filter(|(_, s)| *s != Status::Completed);
        let head = signals.min_by_key(|(offset, _)| *offset).copied();
        let below = |offset: u64| head.is_none_or(|(h, _)| offset < h);
        let done = open.iter().filter(|(o, s)| *s == Status::Completed && below(*o));
        after.next = done.map(|(o, _)| o + 1).max().unwrap_or(0).max(self.next);
        let mut clear = false;
        if let Some((head, status)) = head {
            after.lease = None;
            let spent = self.retries >= retry_limit;
            match status {
                Status::DeadLetter => {
                    let stopped = after.upward(head, end, &open, spent);
                    after.retries = if stopped { self.retries } else { 0 };
                }
                Status::Failed if spent => {
                    after.upward(head, end, &open, true);
                    (after.retries, clear) = (0, true);
                }
                Status::Failed => after.retries += 1,
                _ => {}
            }
        }
        if after.next > end {
            (after.lease, clear) = (None, true);
            let first = self.attempt.0.min(self.next);
            after.released = Some((pop, first, end));
            if head.is_none() {
                after.retries = 0;
            }
        }
        after.attempt = match (clear, self.attempt.1) {
            (true, _) => (0, 0),
            (false, count) => (after.next, count),
        };
        let released = after.lease.is_none();
        let answer = |(offset, status): &(u64, Status)| Verdict {
            dead_lettered: after.dead_letters[self.dead_letters.len()..].contains(offset),
            ..verdict(*offset >= self.next || *status == Status::Completed, false, released)
        };
        let answers = items.iter().map(answer).collect();
        (after, answers)
    }

    /// Files the head and goes on position by position. Returns whether a failed message with
    /// budget left stopped it.
    fn upward(&mut self, head: u64, end: u64, items: &[(u64, Status)], spent: bool) -> bool {
        self.dead_letters.push(head);
        self.next = head + 1;
        let highest_done = items
            .iter()
            .filter(|(_, status)| *status == Status::Completed)
            .map(|(offset, _)| *offset)
            .max();
        while self.next <= end {
            let named = items.iter().filter(|(o, _)| *o == self.next).map(|(_, s)| *s).max();
            match named {
                Some(Status::DeadLetter) => self.dead_letters.push(self.next),
                Some(Status::Failed) if spent => self.dead_letters.push(self.next),
                Some(Status::Failed) => return true,
                Some(Status::Completed) => {}
                None if highest_done.is_some_and(|done| done > self.next) => {}
                Some(Status::Retry) | None => return false,
            }
            self.next += 1;
        }
        false
    }
}

//! What an ack request does to one leased batch: the rules, as a function without state.
//!
//! An ack is a commit: completing offset N settles everything of the batch up to N. The lowest
//! refused message (the *head*) clamps: nothing at or above it is settled, unless it is filed as
//! a dead letter, and then settling goes on upward from it.

use std::rc::Rc;

use super::group::{Cursor, Lease};
use super::records::{DeadLetterRecord, ReleasedRecord};
use crate::base::ids::Offset;
use crate::base::mutant::Mutant;
use crate::model::command::AckStatus;

/// Where an item's transaction id was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the span that can be settled.
    At(Offset),
    /// Settled before.
    Below,
    Unknown,
}

/// One partition's batch and its retry budget, as the ack finds them.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// First offset not settled.
    pub next: Offset,
    /// Last offset of the lease; `None`: nothing is leased.
    pub end: Option<Offset>,
    pub retry_count: u32,
    pub retry_limit: u32,
}

/// What becomes of the cursor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    pub next: Offset,
    pub retry_count: u32,
    /// The lease ends.
    pub release: bool,
    /// The whole batch was settled, so a repeat of this ack must be recognised.
    pub complete: bool,
    /// The delivery attempt starts over.
    pub clear_attempt: bool,
    /// Spent messages, with the item that named each: filed or dropped by the queue's options.
    pub spent: Vec<(Offset, usize)>,
}

/// Severity at one offset: dead letter over failed over retry.
fn is_signal(status: AckStatus) -> bool {
    status != AckStatus::Completed
}

/// Judges all items of one (partition, lease) together.
pub fn settle(batch: Batch, items: &[(AckStatus, Place)]) -> Settled {
    let at = |place: Place| match place {
        Place::At(offset) => Some(offset),
        Place::Below | Place::Unknown => None,
    };
    let named = || items.iter().filter_map(|(status, place)| Some((*status, at(*place)?)));
    let head = named().filter(|(s, _)| is_signal(*s)).map(|(_, o)| o).min();
    let mut out = Settled {
        next: batch.next,
        retry_count: batch.retry_count,
        release: false,
        complete: false,
        clear_attempt: false,
        spent: Vec::new(),
    };
    let Some(end) = batch.end else {
        // Nothing is leased: completions advance, signals change nothing.
        let done = named().filter(|(s, _)| !is_signal(*s)).map(|(_, o)| o).max();
        out.next = done.map_or(batch.next, |o| batch.next.max(Offset(o.0 + 1)));
        out.clear_attempt = out.next > batch.next;
        return out;
    };
    let below_head = |o: Offset| head.is_none_or(|h| o < h);
    let done = named().filter(|(s, o)| !is_signal(*s) && below_head(*o)).map(|(_, o)| o).max();
    out.next = done.map_or(batch.next, |o| batch.next.max(Offset(o.0 + 1)));
    let Some(head) = head else {
        if out.next > end {
            (out.release, out.complete, out.clear_attempt, out.retry_count) = (true, true, true, 0);
        }
        return out;
    };
    out.release = true;
    let worst = named().filter(|(_, o)| *o == head).map(|(s, _)| s).max();
    match worst {
        Some(AckStatus::DeadLetter) => {
            let exhausted = batch.retry_count >= batch.retry_limit;
            let stopped_at_failed = settle_upward(&mut out, head, end, items, exhausted);
            out.retry_count = if stopped_at_failed { batch.retry_count } else { 0 };
        }
        Some(AckStatus::Failed) if batch.retry_count >= batch.retry_limit => {
            settle_upward(&mut out, head, end, items, true);
            out.clear_attempt = true;
            out.retry_count = 0;
        }
        Some(AckStatus::Failed) => out.retry_count = batch.retry_count + 1,
        _ => {}
    }
    out.complete = out.next > end;
    out.clear_attempt |= out.complete;
    out
}

/// Spends the head and goes on position by position. Returns whether it stopped at a failed
/// message whose budget is not spent.
fn settle_upward(
    out: &mut Settled,
    head: Offset,
    end: Offset,
    items: &[(AckStatus, Place)],
    exhausted: bool,
) -> bool {
    let item_at = |offset: Offset| {
        items
            .iter()
            .enumerate()
            .filter(|(_, (_, place))| *place == Place::At(offset))
            .max_by_key(|(_, (status, _))| *status)
            .map(|(index, (status, _))| (index, *status))
    };
    let highest_done = items
        .iter()
        .filter(|(status, _)| *status == AckStatus::Completed)
        .filter_map(|(_, place)| if let Place::At(o) = place { Some(*o) } else { None })
        .max();
    let mut offset = head;
    loop {
        match item_at(offset) {
            Some((index, AckStatus::DeadLetter)) => out.spent.push((offset, index)),
            Some((index, AckStatus::Failed)) if exhausted || offset == head => {
                out.spent.push((offset, index));
            }
            Some((_, AckStatus::Failed)) => return true,
            Some((_, AckStatus::Completed)) => {}
            None if highest_done.is_some_and(|done| done > offset) => {}
            None if Mutant::SettleSkips.active() => {}
            Some((_, AckStatus::Retry)) | None => return false,
        }
        out.next = Offset(offset.0 + 1);
        if offset == end {
            return false;
        }
        offset = Offset(offset.0 + 1);
    }
}

/// What an ack changes about a cursor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CursorChange {
    pub next: Offset,
    pub retry_count: u32,
    /// Offset and count of the delivery attempt.
    pub attempt: (Offset, u32),
    /// The lease ends.
    pub release: bool,
    pub released: Option<Rc<ReleasedRecord>>,
    pub filed: Vec<DeadLetterRecord>,
}

impl CursorChange {
    /// Changes the cursor; returns the lease that ended by it.
    pub(super) fn make(&self, cursor: &mut Cursor) -> Option<Rc<Lease>> {
        cursor.next = self.next;
        cursor.retry_count = self.retry_count;
        (cursor.attempt_offset, cursor.attempt_count) = self.attempt;
        if let Some(released) = &self.released {
            cursor.released = Some(released.clone());
        }
        if self.release { cursor.lease.take() } else { None }
    }

    /// This change and then another one of the same cursor.
    pub(super) fn followed_by(&mut self, next: Self) {
        let (released, mut filed) = (self.released.take(), std::mem::take(&mut self.filed));
        filed.extend(next.filed);
        let release = self.release || next.release;
        *self = Self { release, released: next.released.or(released), filed, ..next };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AckStatus::{Completed, DeadLetter, Failed, Retry};

    fn batch(retry_count: u32) -> Batch {
        Batch { next: Offset(10), end: Some(Offset(14)), retry_count, retry_limit: 1 }
    }

    fn run(b: Batch, items: &[(AckStatus, u64)]) -> Settled {
        let items: Vec<_> = items.iter().map(|(s, o)| (*s, Place::At(Offset(*o)))).collect();
        settle(b, &items)
    }

    #[test]
    fn acking_the_last_completes_the_batch_and_a_middle_one_only_what_is_before() {
        let all = run(batch(1), &[(Completed, 14)]);
        assert_eq!(
            (all.next, all.release, all.complete, all.retry_count),
            (Offset(15), true, true, 0)
        );
        let middle = run(batch(1), &[(Completed, 12)]);
        assert_eq!(
            (middle.next, middle.release, middle.retry_count),
            (Offset(13), false, 1),
            "a partial ack keeps the lease and the budget"
        );
    }

    #[test]
    fn a_failed_head_clamps_and_charges_one() {
        let s = run(batch(0), &[(Completed, 10), (Failed, 11), (Failed, 12), (Completed, 14)]);
        assert_eq!((s.next, s.release, s.retry_count), (Offset(11), true, 1));
        assert!(s.spent.is_empty() && !s.complete);
    }

    #[test]
    fn retry_charges_nothing_and_weighs_less_than_failed() {
        let s = run(batch(0), &[(Retry, 11), (Completed, 14)]);
        assert_eq!((s.next, s.release, s.retry_count), (Offset(10), true, 0));
        let s = run(batch(0), &[(Retry, 11), (Failed, 11)]);
        assert_eq!(s.retry_count, 1);
    }

    #[test]
    fn an_exhausted_head_is_spent_and_settling_goes_on() {
        let s = run(batch(1), &[(Failed, 10), (Completed, 12), (Failed, 13)]);
        assert_eq!(s.spent, [(Offset(10), 0), (Offset(13), 2)]);
        assert_eq!((s.next, s.release, s.retry_count), (Offset(14), true, 0));
        assert!(!s.complete && s.clear_attempt);
    }

    #[test]
    fn a_dead_letter_in_the_middle_needs_no_budget() {
        let s = run(batch(0), &[(DeadLetter, 12)]);
        assert_eq!(s.spent, [(Offset(12), 0)]);
        assert_eq!((s.next, s.retry_count), (Offset(13), 0));
        // A failed message above it stops there while the budget lasts.
        let b = Batch { retry_limit: 5, ..batch(2) };
        let s = run(b, &[(DeadLetter, 10), (Failed, 11), (Completed, 12)]);
        assert_eq!((s.next, s.retry_count), (Offset(11), 2));
        let whole = run(batch(0), &[(DeadLetter, 14), (Completed, 13)]);
        assert!(whole.complete && whole.next == Offset(15));
    }

    #[test]
    fn without_a_lease_only_completions_move() {
        let b = Batch { end: None, ..batch(0) };
        let s = run(b, &[(Completed, 11), (Failed, 13)]);
        assert_eq!((s.next, s.release, s.retry_count), (Offset(12), false, 0));
    }

    #[test]
    fn unresolved_items_change_nothing() {
        let s = settle(batch(0), &[(Completed, Place::Below), (Failed, Place::Unknown)]);
        assert_eq!((s.next, s.release), (Offset(10), false));
    }
}

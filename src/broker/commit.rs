//! What waits for durability, in log order.
//!
//! **An answer waits for the highest position whose effect it shows**, not only for its own
//! record: a duplicate, a no-op ack, an empty pop show state too. So each waits for all that was
//! appended when it was computed. Positions only grow, so the queue is first in, first out.

use std::collections::VecDeque;

use crate::base::ids::LogPosition;

/// Waiters ordered by the position they need.
#[derive(Debug)]
pub struct CommitQueue<T> {
    waiting: VecDeque<(LogPosition, T)>,
}

impl<T> Default for CommitQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<T> CommitQueue<T> {
    pub fn push(&mut self, needs: LogPosition, waiter: T) {
        assert!(
            self.waiting.back().is_none_or(|(last, _)| *last <= needs),
            "commit waiters arrive in log order"
        );
        self.waiting.push_back((needs, waiter));
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The next waiter that `durable` satisfies.
    pub fn pop_durable(&mut self, durable: LogPosition) -> Option<T> {
        if self.waiting.front()?.0 > durable {
            return None;
        }
        self.waiting.pop_front().map(|(_, waiter)| waiter)
    }

    /// Everything still waiting, for the day its log is poisoned.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, waiter)| waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SegmentId;

    #[test]
    fn waiters_leave_in_order_and_only_when_durable() {
        let at = |byte| LogPosition::new(SegmentId(1), byte);
        let mut q = CommitQueue::default();
        q.push(at(8), 'a');
        q.push(at(8), 'b');
        q.push(at(16), 'c');
        assert_eq!(q.pop_durable(at(7)), None);
        assert_eq!((q.pop_durable(at(8)), q.pop_durable(at(8))), (Some('a'), Some('b')));
        assert_eq!(q.pop_durable(at(15)), None);
        assert_eq!(q.take_all().collect::<Vec<_>>(), ['c']);
    }
}

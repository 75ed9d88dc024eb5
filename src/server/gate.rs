//! The gate before the inbox: while the disk works on a commit, the other executors' messages
//! wait.
//!
//! What a message asks for would mostly wait for the commit in flight anyway: one goes at a time.
//! Taken at once, each costs the executor a turn of its own, with a sleep, a wake-up and some dozen
//! microseconds of system calls; taken together when the commit ends, all of them cost one turn
//! and share the next commit. When nothing is being committed the gate is open.
//!
//! The watchdog opens the gate too, each few milliseconds, so that a slow disk holds up nobody
//! who does not need it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[derive(Default)]
pub struct InboxGate {
    /// How often it was opened.
    opened: Cell<u64>,
    held: RefCell<Vec<Waker>>,
    /// An emptied list, kept for its memory.
    spare: RefCell<Vec<Waker>>,
}

impl InboxGate {
    /// To be passed to [`Self::holds`] later.
    fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// True, and whoever asks is woken at the next opening, where there was none since `opened`.
    fn holds(&self, opened: u64, waker: &Waker) -> bool {
        let holds = self.opened.get() == opened;
        if holds {
            self.held.borrow_mut().push(waker.clone());
        }
        holds
    }

    /// Resolves at the next opening.
    pub async fn pass(&self) {
        let opened = self.opened();
        poll_fn(|cx| if self.holds(opened, cx.waker()) { Poll::Pending } else { Poll::Ready(()) })
            .await;
    }

    pub fn open(&self) {
        self.opened.set(self.opened.get() + 1);
        let mut held = self.spare.take();
        std::mem::swap(&mut held, &mut self.held.borrow_mut());
        held.drain(..).for_each(Waker::wake);
        self.spare.replace(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::replies::tests::Count;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn who_was_held_is_woken_once_and_passes() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let gate = InboxGate::default();
        let seen = gate.opened();
        assert!(gate.holds(seen, &waker));
        gate.open();
        gate.open();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(!gate.holds(seen, &waker));
        assert!(gate.holds(gate.opened(), &waker));
    }
}

//! Deadlines of connections, looked at once a second for all of an executor's at once.
//!
//! A timer for each connection would cost two trips into glommio's timer tree for each request;
//! nobody needs an idle connection to end on the millisecond.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// Whom to wake when something changes. Setting the same one again costs no clone.
#[derive(Default)]
pub struct WakerCell(RefCell<Option<Waker>>);

impl WakerCell {
    pub fn set(&self, waker: &Waker) {
        let mut known = self.0.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    pub fn wake(&self) {
        if let Some(waker) = &*self.0.borrow() {
            waker.wake_by_ref();
        }
    }

    pub fn clear(&self) {
        self.0.replace(None);
    }
}

/// A waker's other end, for tests: how often it was woken.
#[cfg(test)]
#[derive(Default)]
pub struct Woken(std::sync::atomic::AtomicUsize);

#[cfg(test)]
impl Woken {
    pub fn times(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[cfg(test)]
impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// What the sweep and one connection know of each other.
#[derive(Default)]
pub struct Watch {
    /// Monotonic microseconds; 0 is never.
    deadline_us: Cell<u64>,
    expired: Cell<bool>,
    /// Something has arrived since the last sweep.
    busy: Cell<bool>,
    /// A whole round passed without anything: memory may go.
    quiet: Cell<bool>,
    waker: WakerCell,
}

impl Watch {
    pub fn set_deadline(&self, mono_us: u64) {
        self.deadline_us.set(mono_us);
    }

    pub fn clear_deadline(&self) {
        self.deadline_us.set(0);
    }

    /// Whether the deadline has passed since the last time this was asked.
    pub fn take_expired(&self) -> bool {
        self.expired.take()
    }

    pub fn note_busy(&self) {
        self.busy.set(true);
        self.quiet.set(false);
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet.get()
    }

    /// Whom to wake when something above changes.
    pub fn set_waker(&self, waker: &Waker) {
        self.waker.set(waker);
    }

    fn wake(&self) {
        self.waker.wake();
    }

    fn look(&self, mono_us: u64) {
        let deadline = self.deadline_us.get();
        if deadline != 0 && deadline <= mono_us {
            self.deadline_us.set(0);
            self.expired.set(true);
            self.wake();
        }
        if !self.busy.take() && !self.quiet.replace(true) {
            self.wake();
        }
    }
}

/// The watches of one executor.
#[derive(Default)]
pub struct Watches {
    slots: RefCell<Vec<Option<Rc<Watch>>>>,
    free: RefCell<Vec<usize>>,
}

impl Watches {
    /// A watch that is looked at until [`Watches::remove`].
    pub fn add(&self) -> (usize, Rc<Watch>) {
        let watch = Rc::new(Watch::default());
        watch.note_busy();
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(None);
            slots.len() - 1
        });
        slots[index] = Some(watch.clone());
        (index, watch)
    }

    pub fn remove(&self, index: usize) {
        let removed = self.slots.borrow_mut()[index].take();
        assert!(removed.is_some(), "a watch is removed twice");
        self.free.borrow_mut().push(index);
    }

    pub fn sweep(&self, mono_us: u64) {
        self.slots.borrow().iter().flatten().for_each(|watch| watch.look(mono_us));
    }

    pub fn wake_all(&self) {
        self.slots.borrow().iter().flatten().for_each(|watch| watch.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_once_and_quiet_needs_a_whole_round() {
        let watches = Watches::default();
        let (index, watch) = watches.add();
        watch.set_deadline(1_000);
        watches.sweep(999);
        assert!(!watch.take_expired() && !watch.is_quiet());
        watches.sweep(1_000);
        assert!(watch.take_expired() && !watch.take_expired() && watch.is_quiet());
        watch.note_busy();
        assert!(!watch.is_quiet());
        watches.remove(index);
        watches.sweep(2_000);
        assert!(!watch.take_expired());
        assert_eq!(watches.add().0, index);
    }
}

//! The watchdog: one plain thread that each 10 ms wakes every executor that shows no sign of life.
//!
//! glommio 0.9 can go to sleep with runnable tasks: where the preempt timer fires before any
//! task queue ran (the thread was descheduled), its loop takes "nothing ran" for "nothing to
//! run" and parks, for ever. A timer inside the executor does not help, because the turn that
//! loses the tasks may be the one that took the timer's expiry. A wake-up from another thread
//! does: it comes through the eventfd, which glommio re-arms before every park.
//!
//! Before the root future was polled for the first time there is no waker to use. Until then
//! the executor's thread gets SIGURG with an empty handler, which interrupts the system call
//! it would otherwise sleep in for ever.
//!
//! Cost: 60 to 200 µs of CPU a wake-up, at 10 ms one to two percent of a core. An executor that has
//! turned since the last look is not parked, and is spared it. One whose shards have had nothing to
//! do for a second is woken each 30 ms only: the loss needs work to strike, and whoever brings the
//! first piece waits at most that long.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::sys::{self, ThreadHandle};

pub const PERIOD: Duration = Duration::from_millis(10);

/// Unanswered wake-ups after which they come only each [`SLOW_EACH`] periods. glommio counts
/// the references that queued wake-ups hold in 16 bits; an executor that sits in one long step
/// must not overflow them. They never stop: an unanswered one is the case to cure.
const UNANSWERED_FAST: u32 = 1_000;
const SLOW_EACH: u32 = 100;

/// Periods without activity after which an executor counts as idle, and how often it is then
/// woken.
const IDLE_AFTER: u32 = 100;
const IDLE_EACH: u32 = 3;

thread_local! {
    /// The watchdog's slot of this thread's executor.
    static HERE: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Tells the watchdog that this executor has work.
pub fn note_activity() {
    HERE.with_borrow(|slot| slot.iter().for_each(|s| s.idle_periods.store(0, Ordering::Relaxed)));
}

/// Tells the watchdog that this executor runs its tasks in turn.
pub fn note_turn() {
    HERE.with_borrow(|slot| slot.iter().for_each(|s| s.turned.store(true, Ordering::Relaxed)));
}

/// What the watchdog knows of one executor.
#[derive(Default)]
pub struct Slot {
    target: Mutex<Target>,
    unanswered: AtomicU32,
    /// Periods since the last activity.
    idle_periods: AtomicU32,
    /// It has run its tasks in turn since the watchdog last looked.
    turned: AtomicBool,
    finished: AtomicBool,
}

#[derive(Default)]
enum Target {
    /// Not yet on its thread, or gone.
    #[default]
    None,
    /// Between [`Slot::before_run`] and the root future's first poll.
    Starting(ThreadHandle),
    Running(Waker),
}

impl Slot {
    /// To be called on the executor's own thread, right before its `run`.
    pub fn before_run(&self) {
        self.set(Target::Starting(ThreadHandle::current()));
    }

    /// The executor could not be made or has ended: nothing to wake any more.
    pub fn finish(&self) {
        self.set(Target::None);
        self.finished.store(true, Ordering::Release);
    }

    /// The first await of the executor's root future. When it resolves, the watchdog wakes a
    /// task of this executor instead of kicking its thread. The value is kept to the root's
    /// end, so that the waker is dropped on the executor it belongs to.
    pub async fn attach(self: &Arc<Self>) -> Attached {
        HERE.set(Some(self.clone()));
        // The root's own waker at once: a spawned task's first poll may be what gets lost.
        poll_fn(|cx| {
            self.set(Target::Running(cx.waker().clone()));
            Poll::Ready(())
        })
        .await;
        // From then on that of a small task: waking the root each time would poll all of it.
        let slot = self.clone();
        let mut first = true;
        glommio::spawn_local(poll_fn(move |cx| {
            slot.unanswered.store(0, Ordering::Relaxed);
            if std::mem::take(&mut first) {
                slot.set(Target::Running(cx.waker().clone()));
            }
            Poll::<()>::Pending
        }))
        .detach();
        Attached(self.clone())
    }

    fn set(&self, target: Target) {
        let mut held = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *held, target);
        // Dropping a waker may run code of its task: not under the lock.
        drop(held);
        drop(old);
    }

    fn wake(&self) {
        match &*self.target.lock().unwrap_or_else(PoisonError::into_inner) {
            Target::None => {}
            Target::Starting(thread) => thread.kick(),
            Target::Running(_) if self.turned.swap(false, Ordering::Relaxed) => {}
            Target::Running(waker) => {
                let idle = self.idle_periods.fetch_add(1, Ordering::Relaxed);
                if idle >= IDLE_AFTER && !idle.is_multiple_of(IDLE_EACH) {
                    return;
                }
                let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed);
                if unanswered < UNANSWERED_FAST || unanswered.is_multiple_of(SLOW_EACH) {
                    waker.wake_by_ref();
                }
            }
        }
    }
}

/// Keeps the watchdog on an executor; dropped at the end of its root future.
pub struct Attached(Arc<Slot>);

impl Drop for Attached {
    fn drop(&mut self) {
        HERE.set(None);
        self.0.finish();
    }
}

/// Starts the watchdog over these executors; it ends when all of them have finished. To be
/// called once, before the first executor runs.
pub fn start(slots: Vec<Arc<Slot>>, period: Duration) -> io::Result<JoinHandle<()>> {
    sys::install_kick()?;
    thread::Builder::new().name("unpark".to_owned()).spawn(move || {
        loop {
            thread::sleep(period);
            if slots.iter().all(|slot| slot.finished.load(Ordering::Acquire)) {
                return;
            }
            slots.iter().for_each(|slot| slot.wake());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::watch::Woken;

    #[test]
    fn an_executor_that_turns_is_left_alone_and_one_that_stops_is_woken() {
        let woken = Arc::new(Woken::default());
        let slot = Slot::default();
        slot.set(Target::Running(Waker::from(woken.clone())));
        let looks = |turning: bool| {
            slot.turned.store(turning, Ordering::Relaxed);
            slot.wake();
            woken.times()
        };
        assert_eq!([true, true, false, false, true].map(looks), [0, 0, 1, 2, 2]);
    }
}

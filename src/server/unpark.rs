//! The watchdog: one plain thread that wakes the executors each 10 ms, idle ones each 40 ms.
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
//! A wake-up costs the executor 60 to 180 µs. One that has used next to no processor time since
//! the last wake-up has had hardly a turn in which to lose a task, so it is woken only each
//! 40 ms: an idle executor then costs about 0.4 % of a core instead of 1.6 %.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::sys::{self, ThreadHandle};

pub const PERIOD: Duration = Duration::from_millis(10);

/// Periods between two wake-ups of an executor that is idle.
const IDLE_PERIODS: u32 = 4;
/// Processor time since the last wake-up, its own included, up to which it is.
const IDLE_CPU: Duration = Duration::from_micros(400);

/// Unanswered wake-ups after which they come only each [`SLOW_EACH`] periods. glommio counts
/// the references that queued wake-ups hold in 16 bits; an executor that sits in one long step
/// must not overflow them. They never stop: an unanswered one is the case to cure.
const UNANSWERED_FAST: u32 = 1_000;
const SLOW_EACH: u32 = 100;

/// What the watchdog knows of one executor.
#[derive(Default)]
pub struct Slot {
    target: Mutex<Target>,
    unanswered: AtomicU32,
    finished: AtomicBool,
}

#[derive(Default)]
enum Target {
    /// Not yet on its thread, or gone.
    #[default]
    None,
    /// Between [`Slot::before_run`] and the root future's first poll.
    Starting(ThreadHandle),
    Running(Waker, ThreadHandle),
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
        // The root's own waker at once: a spawned task's first poll may be what gets lost.
        poll_fn(|cx| {
            self.set(Target::Running(cx.waker().clone(), ThreadHandle::current()));
            Poll::Ready(())
        })
        .await;
        // From then on that of a small task: waking the root each time would poll all of it.
        let slot = self.clone();
        let mut first = true;
        glommio::spawn_local(poll_fn(move |cx| {
            slot.unanswered.store(0, Ordering::Relaxed);
            if std::mem::take(&mut first) {
                slot.set(Target::Running(cx.waker().clone(), ThreadHandle::current()));
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

    fn look(&self, seen: &mut Seen) {
        match &*self.target.lock().unwrap_or_else(PoisonError::into_inner) {
            Target::None => {}
            Target::Starting(thread) => thread.kick(),
            Target::Running(waker, thread) => {
                seen.periods += 1;
                let cpu = thread.cpu_time();
                if cpu.saturating_sub(seen.cpu) < IDLE_CPU && seen.periods < IDLE_PERIODS {
                    return;
                }
                *seen = Seen { periods: 0, cpu };
                let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed);
                if unanswered < UNANSWERED_FAST || unanswered.is_multiple_of(SLOW_EACH) {
                    waker.wake_by_ref();
                }
            }
        }
    }
}

/// What the watchdog remembers of an executor's last wake-up.
#[derive(Clone, Copy, Default)]
struct Seen {
    periods: u32,
    /// The processor time it had used by then.
    cpu: Duration,
}

/// Keeps the watchdog on an executor; dropped at the end of its root future.
pub struct Attached(Arc<Slot>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Starts the watchdog over these executors; it ends when all of them have finished. To be
/// called once, before the first executor runs.
pub fn start(slots: Vec<Arc<Slot>>, period: Duration) -> io::Result<JoinHandle<()>> {
    sys::install_kick()?;
    thread::Builder::new().name("unpark".to_owned()).spawn(move || {
        let mut seen = vec![Seen::default(); slots.len()];
        loop {
            thread::sleep(period);
            if slots.iter().all(|slot| slot.finished.load(Ordering::Acquire)) {
                return;
            }
            slots.iter().zip(&mut seen).for_each(|(slot, seen)| slot.look(seen));
        }
    })
}

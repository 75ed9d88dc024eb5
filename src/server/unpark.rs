//! The watchdog: one plain thread that wakes every executor each 10 ms.
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
//! Cost: 60 to 200 µs of CPU a wake-up, at 10 ms one to two percent of a core for each executor.
//! An executor whose shards have had nothing to do for a second is woken each 30 ms only: the
//! loss needs work to strike, and whoever brings the first piece waits at most that long.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// What is done at a wake-up, and is told how long it waited where that is known.
type OnWake = dyn Fn(Option<u64>);

thread_local! {
    /// The watchdog's slot of this thread's executor.
    static HERE: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
    static ON_WAKE: RefCell<Option<Box<OnWake>>> = const { RefCell::new(None) };
}

/// Tells the watchdog that this executor has work.
pub fn note_activity() {
    HERE.with_borrow(|slot| {
        if let Some(slot) = slot {
            slot.idle_periods.store(0, Ordering::Relaxed);
        }
    });
}

/// Has `action` run on this executor at each of the watchdog's wake-ups. It is told how long the
/// wake-up has waited for its turn, in microseconds: that long any other task waits too.
pub fn on_wake(action: impl Fn(Option<u64>) + 'static) {
    ON_WAKE.set(Some(Box::new(action)));
}

/// Never 0, which stands for never.
fn since_start_us() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_add(1)
}

/// What the watchdog knows of one executor.
#[derive(Default)]
pub struct Slot {
    target: Mutex<Target>,
    unanswered: AtomicU32,
    /// Periods since the last activity.
    idle_periods: AtomicU32,
    /// When the oldest unanswered wake-up was sent; 0 when there is none.
    woken_us: AtomicU64,
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
            let woken_us = slot.woken_us.swap(0, Ordering::Relaxed);
            let delay_us = (woken_us > 0).then(|| since_start_us().saturating_sub(woken_us));
            ON_WAKE.with_borrow(|action| action.iter().for_each(|action| action(delay_us)));
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
            Target::Running(waker) => {
                let idle = self.idle_periods.fetch_add(1, Ordering::Relaxed);
                if idle >= IDLE_AFTER && !idle.is_multiple_of(IDLE_EACH) {
                    return;
                }
                let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed);
                if unanswered == 0 {
                    self.woken_us.store(since_start_us(), Ordering::Relaxed);
                }
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
        ON_WAKE.set(None);
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

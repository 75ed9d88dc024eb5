//! Where an executor waits.
//!
//! A turn of glommio with a sleep in it costs eight `io_uring_enter` and a membarrier, more than
//! everything else that a request of one message costs. So while there is work, the executor does not
//! go there: when all its tasks wait, one task, [`Reactor::run`], waits for them inside its own
//! poll, in a single `epoll_wait` over all that can bring news: the sockets, the ring of the log's
//! reads and writes, and the bell that other executors ring. Deadlines bound that wait.
//!
//! What glommio does by itself (files are opened, renamed and removed there, and timers of seconds
//! run there) is seen only in its own turns. They come with its preemption timer, each 10 ms; while an
//! operation of a file is on its way, and once nothing has come for some milliseconds, the executor
//! sleeps in glommio as any other.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_lite::future::yield_now;
use glommio::Task;
use glommio::timer::Timer;

use super::clock::Clock;
use super::mesh::{Bell, Inbox};
use super::ring::Ring;
use super::sockets::{Sockets, Waiting};
use super::unpark;
use super::watch::WakerCell;

/// So long after the last news the executor sleeps in glommio.
const DOZE_US: u64 = 3_000;
/// When to offer the kernel again what it did not take, in microseconds.
const RETRY_US: u64 = 1_000;
/// While tasks go on working, the sockets are looked at once in so many microseconds.
const LOOK_US: u64 = 50;
/// A task that has more to do lets others have their turn once a turn takes so many microseconds.
const TURN_US: u64 = 1_000;
/// How often the longest turn is reported, in microseconds.
const REPORT_US: u64 = 10_000;

thread_local! {
    /// How often tasks of this executor were polled.
    static POLLS: Cell<u64> = const { Cell::new(0) };
}

/// Spawns a task that the reactor knows of. One that it does not know of runs as well, but may wait
/// for its next poll while the executor dozes.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    glommio::spawn_local(counted(future))
}

/// The future, its polls counted.
pub async fn counted<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| {
        POLLS.set(POLLS.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

/// True if another task ran meanwhile. The queue is served in its order: if none did, none is in it.
async fn others_ran() -> bool {
    let before = POLLS.get();
    yield_now().await;
    POLLS.get() != before
}

pub struct Reactor {
    pub sockets: Rc<Sockets>,
    pub ring: Rc<Ring>,
    clock: Arc<Clock>,
    inbox: Arc<Inbox>,
    alarms: RefCell<Vec<Rc<Alarm>>>,
    /// Who sleeps in glommio: [`Self::run`], if anybody.
    sleeper: Rc<WakerCell>,
    /// Operations of glommio's own that are on their way.
    errands: Cell<usize>,
    /// When something last came, in monotonic microseconds.
    news_us: Cell<u64>,
    /// When this turn of the tasks began.
    turn_us: Cell<u64>,
}

/// A time at which a task wants to be woken.
#[derive(Default)]
pub struct Alarm {
    /// In monotonic microseconds.
    at_us: Cell<Option<u64>>,
    task: WakerCell,
    /// Wakes the reactor where it sleeps.
    sleeper: Rc<WakerCell>,
}

/// What a look at all but the sockets has shown.
struct Noticed {
    any: bool,
    /// When that was, in monotonic microseconds.
    at_us: u64,
}

/// Kept while glommio does something that only its own turns show the end of.
pub struct Errand<'a>(&'a Reactor);

impl Reactor {
    /// On its executor. `inbox` is that of the executor.
    pub fn new(clock: Arc<Clock>, inbox: Arc<Inbox>) -> io::Result<Rc<Self>> {
        let ring = Rc::new(Ring::new()?);
        let sockets = Rc::new(Sockets::new(clock.clone())?);
        let bell = Bell::new()?;
        sockets.watch_ring(&*ring)?;
        sockets.watch_bell(&bell)?;
        inbox.attend(bell);
        let news_us = Cell::new(clock.now().mono_us);
        Ok(Rc::new(Self {
            sockets,
            ring,
            clock,
            inbox,
            alarms: RefCell::default(),
            sleeper: Rc::default(),
            errands: Cell::new(0),
            turn_us: news_us.clone(),
            news_us,
        }))
    }

    /// An alarm of this executor, for ever.
    pub fn alarm(&self) -> Rc<Alarm> {
        let alarm = Rc::new(Alarm { sleeper: self.sleeper.clone(), ..Alarm::default() });
        self.alarms.borrow_mut().push(alarm.clone());
        alarm
    }

    pub fn errand(&self) -> Errand<'_> {
        self.errands.set(self.errands.get() + 1);
        Errand(self)
    }

    /// Waits for whatever wakes the tasks of this executor, for ever. One task for each.
    ///
    /// `report` is told each 10 ms, while there is work, how long the longest turn since was, in
    /// microseconds: a task that had something to do waited so long for its own at most.
    pub async fn run(self: Rc<Self>, report: impl Fn(u64)) {
        let (mut longest_us, mut reported_us) = (0, 0);
        loop {
            unpark::note_turn();
            self.turn_us.set(self.notice().at_us);
            let busy = others_ran().await;
            let now_us = self.clock.now().mono_us;
            longest_us = longest_us.max(now_us - self.turn_us.get());
            if now_us - reported_us >= REPORT_US {
                report(std::mem::take(&mut longest_us));
                reported_us = now_us;
            }
            if busy {
                if now_us - self.sockets.looked_us() >= LOOK_US {
                    self.sockets.look(Duration::ZERO);
                }
                continue;
            }
            let until_us = self.news_us.get() + DOZE_US;
            if self.ring.is_behind() {
                self.doze(now_us, now_us + RETRY_US);
            } else if self.errands.get() == 0 && now_us < until_us {
                self.doze(now_us, until_us);
            } else {
                self.sleep().await;
                self.news_us.set(self.clock.now().mono_us);
            }
        }
    }

    /// Lets the other tasks have their turn if this one takes long already.
    pub async fn yield_if_due(&self) {
        if self.clock.now().mono_us - self.turn_us.get() >= TURN_US {
            yield_now().await;
        }
    }

    /// Wakes the tasks that something has come for.
    fn notice(&self) -> Noticed {
        let (ended, written) = (self.ring.harvest(), self.inbox.look());
        let now_us = self.clock.now().mono_us;
        let mut due = false;
        for alarm in &*self.alarms.borrow() {
            if alarm.at_us.get().is_some_and(|at_us| at_us <= now_us) {
                alarm.at_us.set(None);
                alarm.task.wake();
                due = true;
            }
        }
        Noticed { any: ended || written || due, at_us: now_us }
    }

    /// All tasks wait: waits with them.
    fn doze(&self, now_us: u64, until_us: u64) {
        if self.inbox.doze() {
            return;
        }
        let until_us = self.next_alarm().unwrap_or(u64::MAX).min(until_us);
        let most = Duration::from_micros(until_us.saturating_sub(now_us));
        let news = self.sockets.look(most);
        let noticed = self.notice();
        if noticed.any || news {
            self.news_us.set(noticed.at_us);
        }
    }

    /// As [`Self::doze`], in glommio.
    async fn sleep(&self) {
        if self.inbox.sleep() {
            return;
        }
        let mut waiting = Waiting::new(&self.sockets);
        let mut timer: Option<(u64, Timer)> = None;
        poll_fn(|cx| {
            self.sleeper.set(cx.waker());
            if waiting.poll(cx).is_ready() {
                return Poll::Ready(());
            }
            self.poll_alarm(&mut timer, cx)
        })
        .await;
        self.sleeper.clear();
    }

    fn poll_alarm(&self, timer: &mut Option<(u64, Timer)>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(next) = self.next_alarm() else {
            *timer = None;
            return Poll::Pending;
        };
        match timer {
            Some((at_us, timer)) if *at_us == next => Pin::new(timer).poll(cx).map(drop),
            _ => {
                let timer = timer.insert((next, Timer::new(self.clock.until(next))));
                Pin::new(&mut timer.1).poll(cx).map(drop)
            }
        }
    }

    fn next_alarm(&self) -> Option<u64> {
        self.alarms.borrow().iter().filter_map(|alarm| alarm.at_us.get()).min()
    }
}

impl Alarm {
    /// When to wake the task, instead of what was said before.
    pub fn set(&self, at_us: Option<u64>) {
        let old_us = self.at_us.replace(at_us);
        if at_us.is_some_and(|at_us| old_us.is_none_or(|old_us| at_us < old_us)) {
            self.sleeper.wake();
        }
    }

    /// Whom to wake.
    pub fn set_waker(&self, cx: &Context<'_>) {
        self.task.set(cx.waker());
    }
}

impl Drop for Errand<'_> {
    fn drop(&mut self) {
        self.0.errands.set(self.0.errands.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::executor::{self, Settings};
    use crate::server::host;
    use crate::server::mesh::Message;
    use std::sync::mpsc;
    use std::thread;

    thread_local! {
        /// The longest turn that the reactor of this thread has reported.
        static LONGEST_US: Cell<u64> = const { Cell::new(0) };
    }

    /// Runs `task` on an executor that nobody but its reactor wakes, and `outside` beside it.
    fn with_reactor<F: Future<Output = ()>>(
        task: impl FnOnce(Rc<Reactor>) -> F + Send + 'static,
        outside: impl FnOnce(&Inbox),
    ) {
        let inbox = Arc::<Inbox>::default();
        let (ended, end) = mpsc::channel();
        let mut settings = Settings::new(host::allowed_cpus()[0], 128, 64 << 10);
        // Nothing but the reactor ends a doze.
        settings.preempt = Duration::from_millis(100);
        let there = inbox.clone();
        let thread = executor::spawn("reactor".to_owned(), settings, None, move || async move {
            let reactor = Reactor::new(Arc::new(Clock::start()), there).unwrap();
            let report = |us| LONGEST_US.set(LONGEST_US.get().max(us));
            glommio::spawn_local(reactor.clone().run(report)).detach();
            counted(task(reactor)).await;
            ended.send(()).unwrap();
        });
        outside(&inbox);
        end.recv_timeout(Duration::from_secs(20)).expect("nothing woke the task");
        thread.unwrap().join().unwrap().unwrap();
    }

    /// Waits for an alarm; how late it came, in microseconds.
    async fn late_us(reactor: &Reactor, alarm: &Alarm, after_us: u64) -> u64 {
        let at_us = reactor.clock.now().mono_us + after_us;
        alarm.set(Some(at_us));
        poll_fn(|cx| {
            alarm.set_waker(cx);
            let now_us = reactor.clock.now().mono_us;
            if now_us >= at_us { Poll::Ready(now_us - at_us) } else { Poll::Pending }
        })
        .await
    }

    #[test]
    fn an_alarm_wakes_its_task_out_of_a_doze_and_out_of_sleep() {
        with_reactor(
            |reactor| async move {
                let (alarm, other) = (reactor.alarm(), reactor.alarm());
                // Another task's later one must not stand in its way.
                other.set(Some(u64::MAX));
                for round in 0..40 {
                    let after_us = if round % 2 == 0 { 200 } else { 4 * DOZE_US };
                    let late_us = late_us(&reactor, &alarm, after_us).await;
                    assert!(late_us < 1_000_000, "{late_us}");
                }
            },
            |_| {},
        );
    }

    #[test]
    fn an_alarm_that_is_moved_forward_while_the_executor_sleeps_comes_in_time() {
        with_reactor(
            |reactor| async move {
                let alarm = reactor.alarm();
                alarm.set(Some(reactor.clock.now().mono_us + 60_000_000));
                // A timer of glommio's runs this task while the reactor sleeps.
                glommio::timer::sleep(Duration::from_micros(10 * DOZE_US)).await;
                let late_us = late_us(&reactor, &alarm, 3 * DOZE_US).await;
                assert!(late_us < 1_000_000, "{late_us}");
            },
            |_| {},
        );
    }

    #[test]
    fn a_task_with_much_to_do_lets_others_have_their_turn_and_a_long_turn_is_reported() {
        const STEPS: u32 = 100;
        with_reactor(
            |reactor| async move {
                let turns = Rc::new(Cell::new(0));
                let counter = turns.clone();
                let others = spawn(async move {
                    loop {
                        counter.set(counter.get() + 1);
                        yield_now().await;
                    }
                });
                yield_now().await;
                let before = turns.get();
                for _ in 0..STEPS {
                    thread::sleep(Duration::from_micros(TURN_US / 5));
                    reactor.yield_if_due().await;
                }
                // A step may take longer than it was told to, never less.
                let turns = turns.get() - before;
                assert!((STEPS / 5 - 1..=STEPS).contains(&turns), "{turns}");
                others.cancel().await;
                let alarm = reactor.alarm();
                late_us(&reactor, &alarm, REPORT_US).await;
                thread::sleep(Duration::from_micros(3 * REPORT_US));
                late_us(&reactor, &alarm, 2 * REPORT_US).await;
                assert!(LONGEST_US.get() >= 3 * REPORT_US, "{}", LONGEST_US.get());
            },
            |_| {},
        );
    }

    #[test]
    fn messages_reach_an_executor_that_works_dozes_or_sleeps() {
        const MESSAGES: usize = 300;
        with_reactor(
            |reactor| async move {
                let (mut batch, mut seen) = (Vec::new(), 0);
                while seen < MESSAGES {
                    reactor.inbox.receive(&mut batch).await;
                    seen += batch.drain(..).count();
                }
            },
            |inbox| {
                for n in 0..MESSAGES {
                    inbox.send(Message::Begin);
                    let pause_us = [0, 20, 300, 2 * DOZE_US][n % 4];
                    thread::sleep(Duration::from_micros(pause_us));
                }
            },
        );
    }
}

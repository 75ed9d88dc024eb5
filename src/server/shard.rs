//! [`ShardHandle`]: the one door to a shard, and the pump that performs what it asks for.
//!
//! The shard sits in a private cell that is borrowed only inside synchronous steps: no borrow
//! can live across an await, and no other file can reach it. After each step the pump takes
//! the effects: I/O becomes a task, a peer's message goes to the mesh, a reply to the request
//! that waits for it.
//!
//! A panic inside the shard aborts the process after naming itself: its state is no longer to
//! be trusted, and the log is whole on the disk.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::cadence::Cadence;
use super::clock::Clock;
use super::control::Control;
use super::disk::Disk;
use super::dma::DmaBuf;
use super::fs_storage::FsStorage;
use super::mesh::{Mesh, Message, Outgoing};
use super::pace::{Pace, Start};
use super::reactor::{self, Alarm, Reactor};
use super::replies::{Filled, Look, Replies};
use super::unpark;
use super::watch::WakerCell;
use crate::base::ids::{ShardId, Token};
use crate::base::time::Now;
use crate::broker::effect::{Effect, Effects};
use crate::broker::shard::{OpenReport, Shard, ShardConfig};
use crate::log::io::LogIo;
use crate::model::command::Command;
use crate::model::peer::PeerMsg;
use crate::model::reply::{PopReply, Reply};

/// What every shard of an executor is given.
#[derive(Clone)]
pub struct Surroundings {
    pub clock: Arc<Clock>,
    pub mesh: Mesh,
    pub cadence: Arc<Cadence>,
    pub control: Arc<Control>,
}

pub struct ShardHandle {
    id: ShardId,
    core: RefCell<Core>,
    replies: RefCell<Replies>,
    disk: Disk,
    around: Surroundings,
    /// When the shard next wants its tick.
    alarm: Rc<Alarm>,
    flusher: Flusher,
    /// Those that have nothing to do.
    hands: RefCell<Vec<Rc<Hand>>>,
    pace: RefCell<Pace>,
    outgoing: Rc<Outgoing>,
    /// The pump is at work further up the stack; it will find what this step asked for.
    pumping: Cell<bool>,
    /// An emptied list, kept for its memory.
    spare: RefCell<Vec<Effect<DmaBuf>>>,
    /// Who waits for the shard to be ready or stopped.
    watcher: RefCell<Option<Waker>>,
    faulty: Cell<bool>,
    /// The executor ends: no step is taken any more.
    closed: Cell<bool>,
}

struct Core {
    shard: Shard<DmaBuf>,
    fx: Effects<DmaBuf>,
}

/// A task that performs the log's reads and writes, one after the other.
#[derive(Default)]
struct Hand {
    io: Cell<Option<LogIo<DmaBuf>>>,
    task: WakerCell,
}

/// Hands kept for reuse; each has some kilobytes.
const HANDS_MAX: usize = 64;

/// Flushes the shard behind the tasks that are ready to run now, so that what they append goes
/// out in one write, and looks once for all of them at what has become of it.
#[derive(Default)]
struct Flusher {
    wanted: Cell<bool>,
    task: WakerCell,
}

impl ShardHandle {
    /// Recovers a shard. Blocks its executor, which serves nothing yet. The error is in words.
    pub fn open(
        config: ShardConfig,
        folder: &Path,
        around: Surroundings,
        outgoing: Rc<Outgoing>,
        reactor: &Rc<Reactor>,
    ) -> Result<(Rc<Self>, OpenReport), String> {
        let id = config.shard;
        let now = around.clock.now();
        let mut storage = FsStorage::new(folder);
        let opened = guarded(id, "open", || Shard::open(config, &mut storage, now));
        let (shard, report) = opened.map_err(|refused| refused.0)?;
        let disk = Disk::open(folder, reactor.clone())
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let handle = Self {
            id,
            core: RefCell::new(Core { shard, fx: Effects::default() }),
            replies: RefCell::default(),
            disk,
            around,
            alarm: reactor.alarm(),
            flusher: Flusher::default(),
            hands: RefCell::default(),
            pace: RefCell::default(),
            outgoing,
            pumping: Cell::new(false),
            spare: RefCell::default(),
            watcher: RefCell::default(),
            faulty: Cell::new(false),
            closed: Cell::new(false),
        };
        Ok((Rc::new(handle), report))
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    pub fn now(&self) -> Now {
        self.around.clock.now()
    }

    /// Hands a command in. The answer is the future's; dropping it says that the client is
    /// gone.
    pub fn handle(self: &Rc<Self>, command: Command<'_>) -> Answering {
        unpark::note_activity();
        let token = self.replies.borrow_mut().open();
        self.step("handle", |shard, now, fx| shard.handle(now, command, token, fx));
        Answering { shard: self.clone(), token, open: true }
    }

    pub fn start(self: &Rc<Self>) {
        self.step("start", |shard, now, fx| shard.start(now, fx));
    }

    /// Messages that came together, in one step.
    pub fn deliver(self: &Rc<Self>, messages: impl Iterator<Item = (ShardId, PeerMsg)>) {
        unpark::note_activity();
        self.step("deliver", |shard, now, fx| {
            messages.for_each(|(from, msg)| shard.deliver(now, from, msg, fx));
        });
    }

    pub fn drain(self: &Rc<Self>) {
        self.step("drain", |shard, now, fx| shard.drain(now, fx));
    }

    pub fn stop(self: &Rc<Self>) {
        self.step("stop", |shard, now, fx| shard.stop(now, fx));
    }

    /// From here on nothing reaches the shard. What is dropped with the executor would.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Resolves when the shard is ready for clients.
    pub async fn ready(&self) {
        self.watch(Shard::is_ready).await;
    }

    /// Resolves when the marker of a clean stop is durable.
    pub async fn stopped(&self) {
        self.watch(Shard::is_stopped).await;
    }

    /// Ticks the shard at its deadlines, for ever. One task for each shard.
    pub async fn keep_time(self: Rc<Self>) {
        poll_fn(|cx| self.poll_time(cx)).await;
    }

    /// Flushes the shard whenever it was called, for ever. One task for each shard.
    pub async fn keep_flushing(self: Rc<Self>) {
        poll_fn(|cx| {
            let flusher = &self.flusher;
            flusher.task.set(cx.waker());
            if flusher.wanted.replace(false) {
                // Ahead of the log: what others do for these requests takes longer.
                self.outgoing.flush();
                if !self.gathers() {
                    self.call("flush", |shard, now, fx| shard.flush(now, fx));
                }
                self.look_around();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// What is appended waits for more to come. If so the timer looks again.
    fn gathers(&self) -> bool {
        let shard = &self.core.borrow().shard;
        let (cadence, now) = (&self.around.cadence, self.now());
        cadence.waits(self.id, shard.waiting());
        let holds = if shard.may_rest() {
            self.pace.borrow_mut().rests(now)
        } else if shard.may_gather() {
            let start = self.pace.borrow_mut().start(now, || {
                cadence.holds(self.id);
                (cadence.gathered(), cadence.expected(now))
            });
            if start == Start::Together {
                self.call_others();
            }
            start == Start::Later
        } else {
            false
        };
        if holds {
            self.alarm.set(self.ticks_at());
        }
        holds
    }

    /// Those that this shard's clients go to as well begin their commits now.
    fn call_others(&self) {
        let mesh = &self.around.mesh;
        for other in self.around.cadence.call_others(self.id) {
            mesh.inbox(mesh.executor_of(other)).send(Message::Flush(other));
        }
    }

    /// Another shard begins a commit, and this one is to do so too.
    pub fn flush(&self) {
        self.pace.borrow_mut().called();
        self.want_flush();
    }

    fn poll_time(self: &Rc<Self>, cx: &Context<'_>) -> Poll<()> {
        self.alarm.set_waker(cx);
        if self.ticks_at().is_some_and(|at_us| at_us <= self.now().mono_us) {
            self.step("tick", |shard, now, fx| shard.tick(now, fx));
            // Once more, behind the tasks that wait: long work comes in slices.
            cx.waker().wake_by_ref();
        } else {
            self.alarm.set(self.ticks_at());
        }
        Poll::Pending
    }

    /// When the shard next wants its tick, in monotonic microseconds.
    fn ticks_at(&self) -> Option<u64> {
        let shard = &self.core.borrow().shard;
        let held = self.pace.borrow().deadline().filter(|_| shard.may_gather());
        let wanted = [shard.next_deadline(), held].into_iter().flatten().map(|at| at.0).min();
        wanted.filter(|wanted| *wanted != u64::MAX)
    }

    fn cancel(self: &Rc<Self>, token: Token) {
        self.step("cancel", |shard, now, fx| shard.cancel(now, token, fx));
    }

    /// A reply that has been put to bytes, for its memory.
    pub fn spent(&self, reply: Reply<DmaBuf>) {
        self.core.borrow_mut().shard.spent(reply);
    }

    fn undelivered(self: &Rc<Self>, reply: &PopReply<DmaBuf>) {
        self.step("undelivered", |shard, now, fx| shard.undelivered(now, reply, fx));
    }

    /// A reply that reaches nobody: what it claimed goes back.
    fn give_back(self: &Rc<Self>, reply: &Reply<DmaBuf>) {
        match reply {
            Reply::Pop(pop) if !pop.claims.is_empty() => self.undelivered(pop),
            _ => {}
        }
    }

    /// A call of the shard, with a flush to follow.
    fn step(
        self: &Rc<Self>,
        name: &str,
        step: impl FnOnce(&mut Shard<DmaBuf>, Now, &mut Effects<DmaBuf>),
    ) {
        self.call(name, step);
        self.want_flush();
    }

    fn want_flush(&self) {
        if !self.flusher.wanted.replace(true) {
            self.flusher.task.wake();
        }
    }

    /// The door: one synchronous step, then everything it asked for.
    fn call(
        self: &Rc<Self>,
        name: &str,
        step: impl FnOnce(&mut Shard<DmaBuf>, Now, &mut Effects<DmaBuf>),
    ) {
        if self.closed.get() {
            return;
        }
        let now = self.now();
        {
            let Core { shard, fx } = &mut *self.core.borrow_mut();
            let (was, waited) = (shard.is_committing(), shard.waiting());
            guarded(self.id, name, || step(shard, now, fx));
            let waiting = shard.waiting();
            match (was, shard.is_committing()) {
                (false, true) => {
                    self.around.cadence.begun(self.id, waiting);
                    self.pace.borrow_mut().begun(now);
                }
                (true, false) => {
                    self.around.cadence.ended(now, self.id, waited, waiting);
                    self.pace.borrow_mut().ended(now, waited > waiting);
                }
                _ => {}
            }
        }
        self.pump();
    }

    fn pump(self: &Rc<Self>) {
        if self.pumping.replace(true) {
            return;
        }
        loop {
            let mut list = self.spare.take();
            std::mem::swap(&mut list, &mut self.core.borrow_mut().fx.list);
            if list.is_empty() {
                self.spare.replace(list);
                break;
            }
            list.drain(..).for_each(|effect| self.perform(effect));
            self.spare.replace(list);
        }
        self.pumping.set(false);
    }

    fn perform(self: &Rc<Self>, effect: Effect<DmaBuf>) {
        match effect {
            Effect::Io(io) => self.begin_io(io),
            Effect::Send { to, msg } => self.outgoing.send(self.id, to, msg),
            Effect::Reply { token, reply } => {
                let filled = self.replies.borrow_mut().fill(token, reply);
                if let Filled::Unwanted(reply) = filled {
                    self.give_back(&reply);
                }
            }
        }
    }

    fn begin_io(self: &Rc<Self>, io: LogIo<DmaBuf>) {
        unpark::note_activity();
        let idle = self.hands.borrow_mut().pop();
        if let Some(hand) = idle {
            hand.io.set(Some(io));
            hand.task.wake();
        } else {
            let hand = Rc::new(Hand { io: Cell::new(Some(io)), ..Hand::default() });
            reactor::spawn(self.clone().lend(hand)).detach();
        }
    }

    /// The task of a hand.
    async fn lend(self: Rc<Self>, hand: Rc<Hand>) {
        loop {
            let io = poll_fn(|cx| {
                hand.task.set(cx.waker());
                hand.io.take().map_or(Poll::Pending, Poll::Ready)
            })
            .await;
            let done = self.disk.perform(io).await;
            self.call("complete", |core, now, fx| core.complete(now, done, fx));
            // At once: clients of other executors wait for it.
            self.outgoing.flush();
            self.want_flush();
            let mut idle = self.hands.borrow_mut();
            if idle.len() == HANDS_MAX {
                return;
            }
            idle.push(hand.clone());
        }
    }

    /// After each turn's steps: the deadline may have moved, the shard may have come to an end.
    fn look_around(&self) {
        self.alarm.set(self.ticks_at());
        let core = self.core.borrow();
        if let Some(fault) = core.shard.fault().filter(|_| !self.faulty.replace(true)) {
            let text = format!("shard {}: {fault}", self.id.0);
            tracing::error!(shard = self.id.0, fault, "the shard takes no writes any more");
            self.around.control.report(|progress| progress.fault = Some(text));
        }
        drop(core);
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }

    async fn watch(&self, reached: impl Fn(&Shard<DmaBuf>) -> bool) {
        poll_fn(|cx| {
            if reached(&self.core.borrow().shard) {
                return Poll::Ready(());
            }
            self.watcher.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// Runs a step of the core. Nothing in it is expected to panic; if it does, this process has
/// no say any more.
fn guarded<T>(shard: ShardId, step: &str, run: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => value,
        Err(_) => {
            // The panic's own text was printed by the hook.
            tracing::error!(shard = shard.0, step, "panic inside the core: aborting");
            std::process::abort();
        }
    }
}

/// The reply to one command. Dropped before it resolved: the client is gone.
pub struct Answering {
    shard: Rc<ShardHandle>,
    token: Token,
    open: bool,
}

impl Future for Answering {
    type Output = Reply<DmaBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let look = self.shard.replies.borrow_mut().look(self.token, cx.waker());
        match look {
            Look::Waiting => Poll::Pending,
            Look::Ready(reply) => {
                self.open = false;
                Poll::Ready(reply)
            }
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if !self.open || self.shard.closed.get() {
            return;
        }
        let early = self.shard.replies.borrow_mut().abandon(self.token);
        match early {
            Some(reply) => self.shard.give_back(&reply),
            None => self.shard.cancel(self.token),
        }
    }
}

/// A pop's answer on its way out. Dropped before [`Claimed::sent`]: what it claimed goes back.
pub struct Claimed {
    shard: Rc<ShardHandle>,
    reply: Option<PopReply<DmaBuf>>,
}

impl Claimed {
    pub fn new(shard: Rc<ShardHandle>, reply: PopReply<DmaBuf>) -> Self {
        Self { shard, reply: Some(reply) }
    }

    pub fn reply(&self) -> Option<&PopReply<DmaBuf>> {
        self.reply.as_ref()
    }

    /// The socket has taken all of it.
    pub fn sent(mut self) {
        if let Some(reply) = self.reply.take() {
            self.shard.spent(Reply::Pop(reply));
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take().filter(|reply| !reply.claims.is_empty()) {
            self.shard.undelivered(&reply);
        }
    }
}

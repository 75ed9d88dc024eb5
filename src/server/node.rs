//! One executor's part of the broker: its shards, its connections, its clock work.

use std::cell::{Cell, RefCell, RefMut};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::vec::Drain;

use super::answer::{Answer, Outbox};
use super::auth::{Auth, AuthPart};
use super::clock::Clock;
use super::conn;
use super::control::{Control, Gauges};
use super::executor;
use super::mesh::{Inbox, Message, Outgoing};
use super::meters::Kind;
use super::observe::About;
use super::operation::{self, Operation};
use super::reactor::{self, Reactor};
use super::shard::{ShardHandle, Surroundings};
use super::watch::Watches;
use crate::base::cipher::Keys;
use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::broker::shard::ShardConfig;
use crate::http::{self, Limits};
use crate::model::command::Subscription;
use crate::proto::pop::Opener;

/// What an executor is given at its start. It goes to the executor's thread.
pub struct Part {
    pub index: usize,
    /// A file for glommio's look at the device, see [`executor::warm_up`].
    pub probe: PathBuf,
    /// The shards to open here, each with its folder.
    pub shards: Vec<(ShardConfig, PathBuf)>,
    pub around: Surroundings,
    pub limits: Limits,
    /// To show what is encrypted at rest.
    pub keys: Keys,
    /// `None`: everybody may do everything.
    pub auth: Option<AuthPart>,
    pub about: Arc<About>,
    /// Of all executors.
    pub shards_total: u16,
    pub default_subscription: Subscription,
}

pub struct Node {
    index: usize,
    shards: Vec<Rc<ShardHandle>>,
    around: Surroundings,
    pub limits: Limits,
    pub about: Arc<About>,
    shards_total: u16,
    /// How a group subscribes that does not say how.
    pub default_subscription: Subscription,
    pub watches: Watches,
    pub reactor: Rc<Reactor>,
    /// The `Date` of answers, formatted once a second.
    date: Cell<[u8; 29]>,
    /// Set by a pop that waits, read by its connection right after: both in one poll.
    parked: Cell<bool>,
    /// Every connection ends now.
    closing: Cell<bool>,
    next_shard: Cell<usize>,
    refusing: Cell<usize>,
    outboxes: RefCell<Vec<Outbox>>,
    operations: RefCell<Vec<Box<dyn Operation>>>,
    opener: RefCell<Opener>,
    /// Compressed bodies being inflated.
    pub inflating: Cell<usize>,
    pub auth: Option<Auth>,
}

/// Outboxes kept for reuse.
const OUTBOXES_MAX: usize = 32;
/// Operations kept for reuse; each has some kilobytes.
const OPERATIONS_MAX: usize = 256;
/// An outbox whose heads outgrew this is not kept.
const OUTBOX_BYTES_MAX: usize = 64 << 10;
/// Connections over the limit that are being told so at once; more are closed unheard.
const REFUSING_MAX: usize = 64;
/// Messages worked off before other tasks get their turn.
const RUN_MAX: usize = 64;

/// The root future of an executor.
pub async fn run(part: Part) {
    let control = part.around.control.clone();
    let node = match open(part).await {
        Ok(node) => Rc::new(node),
        Err(text) => {
            control.report(|progress| {
                progress.refused.get_or_insert(text);
            });
            return;
        }
    };
    control.report(|progress| progress.opened += 1);
    for shard in &node.shards {
        reactor::spawn(shard.clone().keep_time()).detach();
        reactor::spawn(shard.clone().keep_flushing()).detach();
    }
    reactor::spawn(node.clone().sweep()).detach();
    let report = {
        let node = node.clone();
        move |us| node.gauges().meters.reactor_delayed(us)
    };
    glommio::spawn_local(node.reactor.clone().run(report)).detach();
    reactor::counted(node.work()).await;
    // What is dropped with the executor must not reach the shards any more.
    node.shards.iter().for_each(|shard| shard.close());
}

async fn open(part: Part) -> Result<Node, String> {
    executor::warm_up(&part.probe).await?;
    let inbox = part.around.mesh.inbox(part.index).clone();
    let reactor = Reactor::new(part.around.clock.clone(), inbox)
        .map_err(|error| format!("an io_uring or an epoll set cannot be made: {error}"))?;
    let outgoing = Rc::new(Outgoing::new(part.around.mesh.clone()));
    let begun_us = part.around.clock.now().mono_us;
    let mut shards = Vec::with_capacity(part.shards.len());
    for (config, folder) in part.shards {
        let id = config.shard;
        let (shard, report) =
            ShardHandle::open(config, &folder, part.around.clone(), outgoing.clone(), &reactor)?;
        for notice in &report.notices {
            tracing::warn!(shard = id.0, "{notice}");
        }
        tracing::info!(
            shard = id.0,
            clean = report.clean,
            records = report.records,
            bytes = report.bytes,
            "shard recovered"
        );
        shards.push(shard);
    }
    let now = part.around.clock.now();
    part.around.control.gauges[part.index].meters.recovery_us.set(now.mono_us - begun_us);
    Ok(Node {
        index: part.index,
        shards,
        around: part.around,
        limits: part.limits,
        about: part.about,
        shards_total: part.shards_total,
        default_subscription: part.default_subscription,
        watches: Watches::default(),
        reactor,
        date: Cell::new(http::format_date(now.wall_us.div_euclid(1_000_000))),
        parked: Cell::new(false),
        closing: Cell::new(false),
        next_shard: Cell::new(0),
        refusing: Cell::new(0),
        outboxes: RefCell::default(),
        operations: RefCell::default(),
        opener: RefCell::new(Opener::new(part.keys)),
        inflating: Cell::new(0),
        auth: part.auth.map(Auth::new),
    })
}

impl Node {
    /// What inflates and decrypts here. Borrowed for one synchronous step at a time.
    pub fn opener(&self) -> RefMut<'_, Opener> {
        self.opener.borrow_mut()
    }

    /// Works off the inbox until the end of the process.
    async fn work(self: &Rc<Self>) {
        let inbox: Arc<Inbox> = self.around.mesh.inbox(self.index).clone();
        let mut batch = Vec::new();
        loop {
            inbox.receive(&mut batch).await;
            let mut messages = batch.drain(..);
            while let Some(message) = messages.next() {
                if !self.obey(message, &mut messages) {
                    return;
                }
                self.reactor.yield_if_due().await;
            }
        }
    }

    /// Takes with a peer's message those for the same shard right behind it. False at the end.
    fn obey(self: &Rc<Self>, message: Message, behind: &mut Drain<'_, Message>) -> bool {
        match message {
            Message::Peer { from, to, msg } => {
                let shard = self.shard(to);
                let follow = behind.as_slice().iter().take(RUN_MAX - 1);
                let count = follow.take_while(|next| next.is_for(to)).count();
                let run = behind.by_ref().take(count).filter_map(Message::of_peer);
                shard.deliver(std::iter::once((from, msg)).chain(run));
            }
            Message::Flush(shard) => self.shard(shard).flush(),
            Message::Connection(stream) => conn::begin(self, stream),
            Message::Refuse(stream) => conn::refuse(self, stream),
            Message::Keys(keys) => {
                if let Some(auth) = &self.auth {
                    auth.keys_seen(keys, self.now().mono_us);
                }
            }
            Message::Begin => {
                self.shards.iter().for_each(|shard| shard.start());
                self.when_all(|shard| async move { shard.ready().await }, |p| p.ready += 1);
            }
            Message::Drain => self.shards.iter().for_each(|shard| shard.drain()),
            Message::Stop => {
                self.closing.set(true);
                self.watches.wake_all();
                self.shards.iter().for_each(|shard| shard.stop());
                self.when_all(|shard| async move { shard.stopped().await }, |p| p.stopped += 1);
            }
            Message::Exit => return false,
        }
        true
    }

    /// Reports once every shard here has got somewhere.
    fn when_all<F: Future<Output = ()>>(
        self: &Rc<Self>,
        reach: impl Fn(Rc<ShardHandle>) -> F + 'static,
        report: fn(&mut super::control::Progress),
    ) {
        let node = self.clone();
        reactor::spawn(async move {
            for shard in &node.shards {
                reach(shard.clone()).await;
            }
            node.around.control.report(report);
        })
        .detach();
    }

    /// Once a second: the date, the host's clock, connections that are late or quiet.
    async fn sweep(self: Rc<Self>) {
        loop {
            glommio::timer::sleep(Duration::from_secs(1)).await;
            // One of the executors looks after the clock all share.
            if self.index == 0
                && let Some(step_us) = self.around.clock.check_host()
            {
                tracing::warn!(step_us, "the host's clock has moved for good: following it");
            }
            let now = self.now();
            self.date.set(http::format_date(now.wall_us.div_euclid(1_000_000)));
            self.watches.sweep(now.mono_us);
        }
    }

    fn shard(&self, id: ShardId) -> &Rc<ShardHandle> {
        let shard = &self.shards[id.index() / self.around.mesh.executors()];
        assert!(shard.id() == id, "a message for {id:?} came to {:?}", shard.id());
        shard
    }

    /// The shard of the next connection.
    pub fn next_shard(&self) -> &Rc<ShardHandle> {
        let next = self.next_shard.get();
        self.next_shard.set((next + 1) % self.shards.len());
        &self.shards[next]
    }

    pub fn note_parked(&self, parked: bool) {
        self.parked.set(parked);
    }

    pub fn take_parked(&self) -> bool {
        self.parked.take()
    }

    /// A place among the connections that are told that there are too many.
    pub fn begin_refusing(&self) -> bool {
        let free = self.refusing.get() < REFUSING_MAX;
        if free {
            self.refusing.set(self.refusing.get() + 1);
        }
        free
    }

    pub fn end_refusing(&self) {
        self.refusing.set(self.refusing.get() - 1);
    }

    pub fn take_operation(&self) -> Box<dyn Operation> {
        self.operations.borrow_mut().pop().unwrap_or_else(operation::new)
    }

    /// Takes one back that has given its answer.
    pub fn return_operation(&self, operation: Box<dyn Operation>) {
        let mut kept = self.operations.borrow_mut();
        if kept.len() < OPERATIONS_MAX {
            kept.push(operation);
        }
    }

    pub fn take_outbox(&self) -> Outbox {
        self.outboxes.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes an emptied one back.
    pub fn return_outbox(&self, outbox: Outbox) {
        let mut kept = self.outboxes.borrow_mut();
        if outbox.is_empty() && outbox.held_bytes() <= OUTBOX_BYTES_MAX && kept.len() < OUTBOXES_MAX
        {
            kept.push(outbox);
        }
    }

    /// Shards of the broker, here and on other executors.
    pub fn shards_total(&self) -> u16 {
        self.shards_total
    }

    pub fn is_closing(&self) -> bool {
        self.closing.get()
    }

    pub fn date(&self) -> [u8; 29] {
        self.date.get()
    }

    pub fn now(&self) -> Now {
        self.around.clock.now()
    }

    pub fn clock(&self) -> &Clock {
        &self.around.clock
    }

    pub fn control(&self) -> &Control {
        &self.around.control
    }

    pub fn gauges(&self) -> &Gauges {
        &self.around.control.gauges[self.index]
    }

    /// Counts an answer that is about to leave.
    pub fn count_answer(&self, answer: &Answer, parked: bool, since_us: u64) {
        let kind = if parked { Kind::ParkedPop } else { answer.kind };
        let us = self.now().mono_us.saturating_sub(since_us);
        self.gauges().meters.answered(kind, answer.status, us);
    }

    /// Counts requests in (positive) and answers out (negative).
    pub fn count_open(&self, opened: usize, closed: usize) {
        let gauges = self.gauges();
        if opened > 0 {
            gauges.open_requests.fetch_add(opened, Ordering::AcqRel);
            gauges.requests.fetch_add(opened as u64, Ordering::Relaxed);
        }
        if closed > 0 {
            gauges.open_requests.fetch_sub(closed, Ordering::AcqRel);
        }
    }
}

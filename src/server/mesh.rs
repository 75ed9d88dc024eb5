//! What reaches an executor from other threads: peers' messages, connections, orders.
//!
//! Each executor has one [`Inbox`]. Senders append under a short lock and wake the reader once
//! for each time it ran dry; the reader takes everything at once. Two messages from one sender
//! keep their order. Unbounded: the core sends requests only against credits of its own, so a
//! mesh that waited could deadlock and one that does not cannot grow.

use std::future::poll_fn;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::base::ids::ShardId;
use crate::model::peer::PeerMsg;

#[derive(Debug)]
pub enum Message {
    /// For a shard of the receiving executor.
    Peer {
        from: ShardId,
        to: ShardId,
        msg: PeerMsg,
    },
    /// A connection to serve, already counted against the limit of this executor.
    Connection(TcpStream),
    /// One over the limit: to be told so and closed.
    Refuse(TcpStream),
    /// Every shard of every executor is open: begin the exchange between them.
    Begin,
    /// Take no new work, finish the open requests.
    Drain,
    /// All requests are answered: close what is left and stop the shards.
    Stop,
}

#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Message>,
    reader: Option<Waker>,
}

impl Inbox {
    pub fn send(&self, message: Message) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(message);
        // The reader leaves its waker when it finds nothing: one wake-up until it comes again.
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Swaps everything that waits into the empty `batch`; resolves once there is something.
    /// One task reads an inbox.
    pub async fn receive(&self, batch: &mut Vec<Message>) {
        assert!(batch.is_empty(), "the last batch was not worked off");
        poll_fn(|cx| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.waiting.is_empty() {
                let old = state.reader.replace(cx.waker().clone());
                drop(state);
                drop(old);
                return Poll::Pending;
            }
            std::mem::swap(&mut state.waiting, batch);
            Poll::Ready(())
        })
        .await;
    }
}

/// The way to every shard.
#[derive(Clone)]
pub struct Mesh {
    inboxes: Arc<[Arc<Inbox>]>,
}

impl Mesh {
    pub fn new(executors: usize) -> Self {
        Self { inboxes: (0..executors).map(|_| Arc::default()).collect() }
    }

    pub fn executors(&self) -> usize {
        self.inboxes.len()
    }

    /// The executor a shard lives on.
    pub fn executor_of(&self, shard: ShardId) -> usize {
        shard.index() % self.inboxes.len()
    }

    pub fn inbox(&self, executor: usize) -> &Arc<Inbox> {
        &self.inboxes[executor]
    }

    /// Also to a shard of the same executor: it is delivered in a later step, never inside the
    /// step that sent it.
    pub fn send(&self, from: ShardId, to: ShardId, msg: PeerMsg) {
        self.inbox(self.executor_of(to)).send(Message::Peer { from, to, msg });
    }

    /// The same order to every executor.
    pub fn tell_all(&self, order: impl Fn() -> Message) {
        self.inboxes.iter().for_each(|inbox| inbox.send(order()));
    }
}

//! What reaches an executor from other threads: peers' messages, connections, orders.
//!
//! Each executor has one [`Inbox`]. Senders append under a short lock and, where the executor does
//! not look by itself, wake the reader once for each time it ran dry; the reader takes everything at
//! once. Two messages from one sender keep their order. Unbounded: a message answers another or is
//! bounded by a client's open request, so a mesh that waited could deadlock and one that does not
//! cannot grow without end.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use rustix::event::{EventfdFlags, eventfd};

use super::jwks::KeySet;
use crate::base::ids::ShardId;
use crate::model::peer::PeerMsg;

/// As large as the largest peer's message, which is also the most frequent kind.
#[derive(Debug)]
pub enum Message {
    /// For a shard of the receiving executor.
    Peer { from: ShardId, to: ShardId, msg: PeerMsg },
    /// That shard is to begin the commit that it holds back.
    Flush(ShardId),
    /// A connection to serve, already counted against the limit of this executor.
    Connection(TcpStream),
    /// One over the limit: to be told so and closed.
    Refuse(TcpStream),
    /// Every shard of every executor is open: begin the exchange between them.
    Begin,
    /// The key set was looked at; with it where it is another than before.
    Keys(Option<Arc<KeySet>>),
    /// Take no new work, finish the open requests.
    Drain,
    /// All requests are answered: close what is left and stop the shards.
    Stop,
    /// Every shard of every executor has stopped: end.
    Exit,
}

impl Message {
    /// A peer's, for that shard.
    pub fn is_for(&self, shard: ShardId) -> bool {
        matches!(self, Self::Peer { to, .. } if *to == shard)
    }

    /// From whom, and what it says, if a peer sent it.
    pub fn of_peer(self) -> Option<(ShardId, PeerMsg)> {
        match self {
            Self::Peer { from, msg, .. } => Some((from, msg)),
            _ => None,
        }
    }
}

/// How its executor hears of what comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Attention {
    /// Through the reader's waker, which reaches glommio where it sleeps.
    #[default]
    Sleeps,
    /// It looks by itself, soon.
    Looks,
    /// It waits for its own epoll set, in which the bell lies.
    Dozes,
}

#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Message>,
    reader: Option<Waker>,
    /// The reader was woken where its executor sleeps, and has not come yet.
    woken: bool,
    attention: Attention,
    bell: Option<Bell>,
}

/// Wakes an executor that dozes.
#[derive(Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    fn ring(&self) {
        // It fails only where it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Inbox {
    pub fn send(&self, message: Message) {
        self.add(|waiting| waiting.push(message));
    }

    /// As many at once: one lock and at most one wake-up. Leaves `messages` empty.
    fn send_all(&self, messages: &mut Vec<Message>) {
        self.add(|waiting| waiting.append(messages));
    }

    fn add(&self, add: impl FnOnce(&mut Vec<Message>)) {
        let mut state = self.lock();
        add(&mut state.waiting);
        match state.attention {
            Attention::Looks => {}
            // Once: from now on it is awake.
            Attention::Dozes if state.reader.is_some() => {
                state.attention = Attention::Looks;
                let bell = state.bell.clone();
                drop(state);
                bell.iter().for_each(Bell::ring);
            }
            // It reads already.
            Attention::Dozes => {}
            // Once until it comes. Its waker stays: glommio passes such a wake-up on in a turn of its
            // own, and an executor that is woken by something else looks before that.
            Attention::Sleeps => {
                if !std::mem::replace(&mut state.woken, true) {
                    state.reader.iter().for_each(Waker::wake_by_ref);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on its executor looks by itself, and while it dozes the bell wakes it.
    pub fn attend(&self, bell: Bell) {
        let mut state = self.lock();
        state.bell = Some(bell);
        state.attention = Attention::Looks;
    }

    /// On its executor: wakes the reader where something waits for it.
    pub fn look(&self) -> bool {
        self.turn_to(Attention::Looks)
    }

    /// Before its executor waits for its epoll set. True if it must not: something is here.
    pub fn doze(&self) -> bool {
        self.turn_to(Attention::Dozes)
    }

    /// Before its executor sleeps in glommio. True if it must not: something is here.
    pub fn sleep(&self) -> bool {
        self.turn_to(Attention::Sleeps)
    }

    fn turn_to(&self, attention: Attention) -> bool {
        let mut state = self.lock();
        let reader = if state.waiting.is_empty() { None } else { state.reader.take() };
        state.attention = if reader.is_some() { Attention::Looks } else { attention };
        drop(state);
        let any = reader.is_some();
        reader.into_iter().for_each(Waker::wake);
        any
    }

    /// Swaps everything that waits into the empty `batch`; resolves once there is something.
    /// One task reads an inbox.
    pub async fn receive(&self, batch: &mut Vec<Message>) {
        assert!(batch.is_empty(), "the last batch was not worked off");
        poll_fn(|cx| {
            let mut state = self.lock();
            state.woken = false;
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

    /// The same order to every executor.
    pub fn tell_all(&self, order: impl Fn() -> Message) {
        self.inboxes.iter().for_each(|inbox| inbox.send(order()));
    }
}

/// What the shards of one executor have to say to others, gathered until [`Outgoing::flush`].
///
/// Sent one by one, the first message of a turn wakes its receiver, which begins a commit for it
/// alone while the others are still being written; together they are one wake-up and one commit.
pub struct Outgoing {
    mesh: Mesh,
    /// By receiving executor.
    waiting: RefCell<Vec<Vec<Message>>>,
}

impl Outgoing {
    pub fn new(mesh: Mesh) -> Self {
        let waiting = RefCell::new((0..mesh.executors()).map(|_| Vec::new()).collect());
        Self { mesh, waiting }
    }

    /// Also to a shard of the same executor: it is delivered in a later step, never inside the
    /// step that sent it.
    pub fn send(&self, from: ShardId, to: ShardId, msg: PeerMsg) {
        let executor = self.mesh.executor_of(to);
        self.waiting.borrow_mut()[executor].push(Message::Peer { from, to, msg });
    }

    /// To be called soon after each step of a shard, best once for all that are at hand together.
    pub fn flush(&self) {
        for (executor, messages) in self.waiting.borrow_mut().iter_mut().enumerate() {
            if !messages.is_empty() {
                self.mesh.inbox(executor).send_all(messages);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::executor::{self, Settings};
    use crate::server::host;
    use crate::server::unpark::{self, Slot};
    use crate::server::watch::Woken;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn shards_lie_on_executors_in_turn() {
        let mesh = Mesh::new(3);
        let places: Vec<_> = (0..7).map(|s| mesh.executor_of(ShardId(s))).collect();
        assert_eq!(places, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn what_is_gathered_leaves_together_and_in_order() {
        let mesh = Mesh::new(2);
        let outgoing = Outgoing::new(mesh.clone());
        let senders = |executor: usize| -> Vec<u16> {
            let state = mesh.inbox(executor).state.lock().unwrap();
            let from = |message: &Message| match message {
                Message::Peer { from, .. } => from.0,
                other => panic!("{other:?}"),
            };
            state.waiting.iter().map(from).collect()
        };
        for (from, to) in [(4, 1), (2, 3), (6, 0), (8, 1)] {
            outgoing.send(ShardId(from), ShardId(to), PeerMsg::CatalogSynced);
        }
        assert!(senders(0).is_empty() && senders(1).is_empty());
        outgoing.flush();
        outgoing.flush();
        assert_eq!((senders(0), senders(1)), (vec![6], vec![4, 2, 8]));
    }

    #[test]
    fn a_reader_that_was_woken_in_its_sleep_is_found_by_a_look() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let inbox = Inbox::default();
        inbox.attend(Bell::new().unwrap());
        let mut batch = Vec::new();
        for round in 0..2 {
            {
                let mut receiving = pin!(inbox.receive(&mut batch));
                assert!(receiving.as_mut().poll(&mut cx).is_pending());
                assert!(!inbox.sleep());
                inbox.send(Message::Begin);
                inbox.send(Message::Drain);
                assert_eq!(woken.times(), 2 * round + 1, "once for both");
                // Something else has woken the executor.
                assert!(inbox.look());
                assert_eq!(woken.times(), 2 * round + 2);
                assert!(receiving.as_mut().poll(&mut cx).is_ready());
            }
            assert_eq!(batch.drain(..).count(), 2);
        }
    }

    #[test]
    fn what_other_threads_send_arrives_whole_and_in_order() {
        const EACH: usize = 20_000;
        let mesh = Mesh::new(1);
        let inbox = mesh.inbox(0).clone();
        let slot = Arc::<Slot>::default();
        unpark::start(vec![slot.clone()], unpark::PERIOD).unwrap();
        let settings = Settings::new(host::allowed_cpus()[0], 128, 64 << 10);
        let reader =
            executor::spawn("reader".to_owned(), settings, Some(slot), move || async move {
                let (mut batch, mut seen, mut drains) = (Vec::new(), 0, 0);
                while seen < 2 * EACH {
                    inbox.receive(&mut batch).await;
                    for message in batch.drain(..) {
                        seen += 1;
                        // One sender says Begin and Drain in turn, the other only Stop.
                        match message {
                            Message::Begin => assert_eq!(drains % 2, 0),
                            Message::Drain => assert_eq!(drains % 2, 1),
                            _ => continue,
                        }
                        drains += 1;
                    }
                }
            });
        let senders = [0, 1].map(|kind| {
            let mesh = mesh.clone();
            std::thread::spawn(move || {
                for i in 0..EACH {
                    mesh.inbox(0).send(match (kind, i % 2) {
                        (0, 0) => Message::Begin,
                        (0, _) => Message::Drain,
                        _ => Message::Stop,
                    });
                    if i % 1_000 == 0 {
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                }
            })
        });
        for sender in senders {
            sender.join().unwrap();
        }
        reader.unwrap().join().unwrap().unwrap();
    }
}

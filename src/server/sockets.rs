//! The sockets of one executor, and which of them have something to read or room to write.
//!
//! glommio asks the ring anew for each wait of each socket, and every answer interrupts the
//! executor while it computes: at one message a request that was a fifth of all processor time.
//! Here each socket is put once into the executor's epoll set, edge-triggered. A look at the set finds
//! all sockets with news at once; while there is work, news collect in it and interrupt nobody. When
//! to look, and how to wait, is [`super::reactor`]'s.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_lite::AsyncRead;
use glommio::timer::Timer;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::clock::Clock;
use super::sys;
use super::watch::WakerCell;

/// Sockets with news that one look returns.
const EVENTS_MAX: usize = 256;
/// How old a look may be for [`Socket::has_left`].
const FRESH_US: u64 = 100;
/// Stands in the set for what is no socket.
const NO_SOCKET: u64 = u64::MAX;
/// Between two looks while there is no descriptor to wait with.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(5);

/// The epoll set of one executor.
pub struct Sockets {
    set: OwnedFd,
    slots: RefCell<Slots>,
    /// Of the last look, kept for its memory.
    events: RefCell<Vec<Event>>,
    clock: Arc<Clock>,
    /// When the last look was, in monotonic microseconds.
    looked_us: Cell<u64>,
}

#[derive(Default)]
struct Slots {
    news: Vec<Option<Rc<News>>>,
    free: Vec<usize>,
}

/// What the set has said of one socket.
struct News {
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// The peer has sent its end, or the connection has failed: reading will say which.
    ended: Cell<bool>,
    waker: WakerCell,
}

impl Sockets {
    pub fn new(clock: Arc<Clock>) -> io::Result<Self> {
        Ok(Self {
            set: epoll::create(CreateFlags::CLOEXEC)?,
            slots: RefCell::default(),
            events: RefCell::new(Vec::with_capacity(EVENTS_MAX)),
            clock,
            looked_us: Cell::new(0),
        })
    }

    /// Takes a connected socket into the set.
    pub fn adopt(self: &Rc<Self>, stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        // It fails where the peer has gone already, which reading will show.
        let _ = stream.set_nodelay(true);
        let news = Rc::new(News {
            readable: Cell::new(false),
            writable: Cell::new(true),
            ended: Cell::new(false),
            waker: WakerCell::default(),
        });
        let index = {
            let slots = &mut *self.slots.borrow_mut();
            let index = slots.free.pop().unwrap_or_else(|| {
                slots.news.push(None);
                slots.news.len() - 1
            });
            slots.news[index] = Some(news.clone());
            index
        };
        let socket = Socket { sockets: self.clone(), index, news, stream };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.set, &socket.stream, EventData::new_u64(index as u64), flags)?;
        Ok(socket)
    }

    /// Takes the log's ring into the set: it has news while an end in it was not looked at.
    pub fn watch_ring(&self, ring: &impl AsFd) -> io::Result<()> {
        epoll::add(&self.set, ring, EventData::new_u64(NO_SOCKET), EventFlags::IN)?;
        Ok(())
    }

    /// Takes a bell into the set: it has news each time it is rung.
    pub fn watch_bell(&self, bell: &impl AsFd) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.set, bell, EventData::new_u64(NO_SOCKET), flags)?;
        Ok(())
    }

    /// Wakes whoever has news, and waits for news until `most` has passed. False when there were
    /// none, or a signal or the kernel's own work came in between.
    pub fn look(&self, most: Duration) -> bool {
        let events = &mut *self.events.borrow_mut();
        events.clear();
        let most = Timespec::try_from(most).expect("waits are of milliseconds");
        let looked = epoll::wait(&self.set, spare_capacity(events), Some(&most));
        self.looked_us.set(self.clock.now().mono_us);
        match looked {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the sockets' epoll set failed: {error}"),
        }
        let slots = self.slots.borrow();
        for event in &*events {
            let (data, flags) = (event.data, event.flags);
            let index = usize::try_from(data.u64()).unwrap_or(usize::MAX);
            // A closed socket has left the set, so that its place is empty or another's.
            if let Some(Some(news)) = slots.news.get(index) {
                news.note(flags);
            }
        }
        !events.is_empty()
    }

    /// When the last look was, in monotonic microseconds.
    pub fn looked_us(&self) -> u64 {
        self.looked_us.get()
    }
}

/// A wait for the set in glommio.
///
/// glommio has no call to wait for a descriptor of another kind than its own. But a stream
/// of its asks for the readiness of the descriptor it is made over before it reads from it,
/// whatever that is. The read that follows fails, as the set is no socket, and that is the
/// sign. The stream closes its descriptor, so it gets a copy.
pub enum Waiting {
    Stream(glommio::net::TcpStream),
    /// There was no descriptor for the copy.
    Pause(Timer),
}

impl Waiting {
    pub fn new(sockets: &Sockets) -> Self {
        match sockets.set.try_clone() {
            Ok(copy) => Self::Stream(sys::stream_over(copy)),
            Err(_) => Self::Pause(Timer::new(DESCRIPTOR_PAUSE)),
        }
    }

    /// Ready when the set has news, or may have.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Stream(stream) => Pin::new(stream).poll_read(cx, &mut [0]).map(drop),
            Self::Pause(timer) => Pin::new(timer).poll(cx).map(drop),
        }
    }
}

impl News {
    fn note(&self, flags: EventFlags) {
        let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if failed || flags.contains(EventFlags::RDHUP) {
            self.ended.set(true);
        }
        let mut wakes = false;
        if (failed || flags.intersects(EventFlags::IN | EventFlags::RDHUP))
            && !self.readable.replace(true)
        {
            wakes = true;
        }
        if (failed || flags.contains(EventFlags::OUT)) && !self.writable.replace(true) {
            wakes = true;
        }
        if wakes {
            self.waker.wake();
        }
    }
}

/// A connected socket of this executor. One task uses it.
pub struct Socket {
    sockets: Rc<Sockets>,
    index: usize,
    news: Rc<News>,
    stream: TcpStream,
}

impl Socket {
    /// Whether there may be something to read, or who is to be told of it.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.news.readable.get() {
            return Poll::Ready(());
        }
        self.news.waker.set(cx.waker());
        Poll::Pending
    }

    /// As many bytes as there are and `space` takes; `Ok(0)` is the peer's end.
    pub fn poll_read(&self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.news.readable.get() {
            match sys::receive(&self.stream, space) {
                Ok(n) => {
                    // Not all of the space was wanted: nothing more is there, and what comes
                    // later is news again. But an end is said only once.
                    if n < space.len() && !self.news.ended.get() {
                        self.news.readable.set(false);
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.news.readable.set(false);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.news.waker.set(cx.waker());
        Poll::Pending
    }

    /// How many bytes of `parts` the kernel has taken.
    pub fn poll_send(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        while self.news.writable.get() {
            match sys::send_vectored(&self.stream, parts) {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.news.writable.set(false);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.news.waker.set(cx.waker());
        Poll::Pending
    }

    /// Whether the peer has closed or reset, and nothing it sent is left to read.
    pub fn has_left(&self) -> bool {
        let age_us = self.sockets.clock.now().mono_us - self.sockets.looked_us.get();
        if age_us > FRESH_US {
            self.sockets.look(Duration::ZERO);
        }
        self.news.ended.get() && sys::has_left(&self.stream)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Closing takes it out of the set as well, as this is the only descriptor.
        let slots = &mut *self.sockets.slots.borrow_mut();
        slots.news[self.index] = None;
        slots.free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::executor::{self, Settings};
    use crate::server::host;
    use crate::server::reactor::Reactor;
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    /// Runs `task` with a socket on an executor that nobody but the socket wakes.
    fn with_socket<F: Future<Output = ()>>(
        task: impl FnOnce(Socket) -> F + Send + 'static,
        client: impl FnOnce(TcpStream),
    ) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (stream, _) = server.accept().unwrap();
        let mut settings = Settings::new(host::allowed_cpus()[0], 128, 64 << 10);
        settings.preempt = Duration::from_millis(100);
        let (ended, end) = mpsc::channel();
        let thread = executor::spawn("sockets".to_owned(), settings, None, move || async move {
            let clock = Arc::new(Clock::start());
            let reactor = Reactor::new(clock, Arc::default()).unwrap();
            let sockets = reactor.sockets.clone();
            let socket = sockets.adopt(stream).unwrap();
            glommio::spawn_local(reactor.run(|_| {})).detach();
            task(socket).await;
            assert!(sockets.slots.borrow().news.iter().all(Option::is_none));
            ended.send(()).unwrap();
        });
        client(peer);
        end.recv_timeout(Duration::from_secs(20)).expect("the socket's news never came");
        thread.unwrap().join().unwrap().unwrap();
    }

    async fn read(socket: &Socket, space: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| socket.poll_read(cx, space)).await
    }

    #[test]
    fn what_comes_while_the_executor_sleeps_is_read_and_so_is_the_end_behind_it() {
        const PIECES: u8 = 50;
        with_socket(
            |socket| async move {
                let mut space = [0; 8];
                for piece in 0..PIECES {
                    assert_eq!(read(&socket, &mut space).await.unwrap(), 1);
                    assert_eq!(space[0], piece);
                    assert!(!socket.has_left());
                    sys::send_vectored(&socket, &[IoSlice::new(b"+")]).unwrap();
                }
                // Three bytes and the end came at once: one piece of news for both.
                assert_eq!(read(&socket, &mut space[..2]).await.unwrap(), 2);
                assert!(!socket.has_left());
                assert_eq!(read(&socket, &mut space).await.unwrap(), 1);
                while !socket.has_left() {
                    glommio::timer::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(read(&socket, &mut space).await.unwrap(), 0);
            },
            |mut peer| {
                for piece in 0..PIECES {
                    peer.write_all(&[piece]).unwrap();
                    peer.read_exact(&mut [0]).unwrap();
                    std::thread::sleep(Duration::from_millis(u64::from(piece % 5)));
                }
                peer.write_all(b"end").unwrap();
            },
        );
    }

    #[test]
    fn a_full_socket_takes_the_rest_when_its_peer_reads() {
        const BYTES: usize = 32 << 20;
        let (full, seen_full) = std::sync::mpsc::channel();
        with_socket(
            |socket| async move {
                let bytes = vec![7; BYTES];
                let mut sent = 0;
                while sent < BYTES {
                    let parts = [IoSlice::new(&bytes[sent..])];
                    sent += poll_fn(|cx| {
                        let taken = socket.poll_send(cx, &parts);
                        if taken.is_pending() {
                            full.send(()).unwrap();
                        }
                        taken
                    })
                    .await
                    .unwrap();
                }
            },
            |mut peer| {
                seen_full.recv().expect("it was never full");
                let (mut seen, mut space) = (0, vec![0; 64 << 10]);
                while seen < BYTES {
                    seen += peer.read(&mut space).unwrap();
                }
            },
        );
    }

    #[test]
    fn a_reset_is_an_error_of_the_read() {
        with_socket(
            |socket| async move {
                sys::send_vectored(&socket, &[IoSlice::new(b"unread")]).unwrap();
                let error = read(&socket, &mut [0; 8]).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                assert!(socket.has_left());
            },
            |peer| {
                // Closing with something unread resets.
                peer.peek(&mut [0]).unwrap();
            },
        );
    }
}

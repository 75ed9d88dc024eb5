//! Many parked pops from one thread, over nonblocking sockets and epoll.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that each have a pop waiting, to be ended by whoever asked for them.
pub fn parked(address: SocketAddr, target: &str, count: usize) -> Vec<TcpStream> {
    let request = request(target, 60_000);
    let park = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&request).unwrap();
        stream
    };
    (0..count).map(park).collect()
}

fn request(target: &str, timeout_ms: u64) -> Vec<u8> {
    let query = format!("batch=1&autoAck=true&wait=true&timeout={timeout_ms}");
    format!("GET /api/v1/pop/queue/{target}?{query} HTTP/1.1\r\nHost: l\r\n\r\n").into_bytes()
}

/// Ends a connection with a reset instead of a FIN.
#[expect(clippy::needless_pass_by_value, reason = "the connection ends here")]
pub fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap();
    let (fd, option) = (stream.as_raw_fd(), (&raw const linger).cast());
    // SAFETY: the descriptor is open, the option points to a live struct of the given length.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, option, length) };
    assert_eq!(done, 0);
}

/// Pops on one queue that wait, are given up after a random while, or are cut off with a FIN or a
/// reset while they wait, and come back.
pub struct Waiters {
    received: Receiver<(String, Instant)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Waiters {
    pub fn start(address: SocketAddr, queue: &str, count: usize, seed: u64) -> Self {
        let (sender, received) = channel();
        let stop = Arc::<AtomicBool>::default();
        let mut crowd = Crowd {
            address,
            queue: queue.to_owned(),
            epoll: Epoll::new(),
            streams: HashMap::new(),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            sender,
        };
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            (0..count).for_each(|_| crowd.join());
            crowd.run(&stopping);
        });
        Self { received, stop, thread }
    }

    /// The payload of the next message that reaches one of them, and when it did.
    pub fn next(&self, limit: Duration) -> Option<(String, Instant)> {
        match self.received.recv_timeout(limit) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the waiters have ended"),
        }
    }

    /// Ends them all; what reached them that nobody took.
    pub fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.received.try_iter().map(|(data, _)| data).collect()
    }
}

struct Crowd {
    address: SocketAddr,
    queue: String,
    epoll: Epoll,
    streams: HashMap<i32, (TcpStream, Vec<u8>)>,
    random: u64,
    sender: Sender<(String, Instant)>,
}

impl Crowd {
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// One more connection with a pop that waits between one and five seconds.
    fn join(&mut self) {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.epoll.add(stream.as_raw_fd());
        let fd = stream.as_raw_fd();
        self.streams.insert(fd, (stream, Vec::new()));
        self.ask(fd);
    }

    fn ask(&mut self, fd: i32) {
        let timeout_ms = 1_000 + self.below(4_000);
        let request = request(&self.queue, timeout_ms);
        let (stream, _) = self.streams.get_mut(&fd).unwrap();
        stream.write_all(&request).unwrap();
    }

    fn run(&mut self, stop: &AtomicBool) {
        let mut next_leaver = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            for fd in self.epoll.wait(5) {
                self.read(fd);
            }
            // Some 100 a second are cut off while they wait, and as many come.
            if Instant::now() >= next_leaver {
                next_leaver += Duration::from_millis(10);
                self.replace_one();
            }
        }
    }

    fn replace_one(&mut self) {
        let at = self.below(self.streams.len() as u64) as usize;
        let fd = *self.streams.keys().nth(at).unwrap();
        // An answer may be on its way to it: that one is still read, or it would be lost.
        self.read(fd);
        let Some((stream, pending)) = self.streams.remove(&fd) else { return };
        assert!(pending.is_empty(), "cut off inside an answer");
        self.leave(stream);
        self.join();
    }

    /// Half with a FIN, whose answer (empty, or a message that was faster) is awaited; half of
    /// the rest keep the FIN's promise with a reset behind it.
    fn leave(&mut self, mut stream: TcpStream) {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        let now = Instant::now();
        while let Some((answer, length)) = answer(&rest) {
            self.report(answer, now);
            rest.drain(..length);
        }
        assert!(end.is_ok() && rest.is_empty(), "{end:?}: {}", rest.escape_ascii());
    }

    fn report(&self, message: Option<String>, at: Instant) {
        if let Some(data) = message {
            // The test has ended when nobody listens any more.
            let _ = self.sender.send((data, at));
        }
    }

    fn read(&mut self, fd: i32) {
        let now = Instant::now();
        let Some((stream, pending)) = self.streams.get_mut(&fd) else { return };
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the broker closed a waiting connection"),
            Ok(n) => pending.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
        let Some((message, length)) = answer(pending) else { return };
        pending.drain(..length);
        self.report(message, now);
        self.ask(fd);
    }
}

/// The payload in the first whole answer of `bytes`, if it has one, and the answer's length.
fn answer(bytes: &[u8]) -> Option<(Option<String>, usize)> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    if text.starts_with("http/1.1 204") {
        return Some((None, head));
    }
    assert!(text.starts_with("http/1.1 200"), "{text}");
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
    let body = bytes.get(head..head + length.trim().parse::<usize>().unwrap())?;
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(value["messages"].as_array().unwrap().len(), 1, "{value}");
    Some((Some(value["messages"][0]["data"].to_string()), head + body.len()))
}

struct Epoll(i32);

impl Epoll {
    fn new() -> Self {
        // SAFETY: takes a flag, returns a descriptor.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        Self(fd)
    }

    fn add(&self, fd: i32) {
        let events = u32::try_from(libc::EPOLLIN).unwrap();
        let mut event = libc::epoll_event { events, u64: u64::try_from(fd).unwrap() };
        // SAFETY: both descriptors are open; the event is read before the call returns.
        let done = unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        assert_eq!(done, 0);
    }

    fn wait(&self, ms: i32) -> Vec<i32> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let room = i32::try_from(events.len()).unwrap();
        // SAFETY: the kernel writes at most `room` events into the array.
        let count = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), room, ms) };
        let ready = events.iter().take(usize::try_from(count).unwrap_or(0));
        ready.map(|event| i32::try_from(event.u64).unwrap()).collect()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, closed once.
        unsafe { libc::close(self.0) };
    }
}

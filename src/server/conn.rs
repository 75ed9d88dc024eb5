//! One connection: bytes in, requests to the shard, answers out in the order of the requests.
//!
//! All requests that came in one read are handed in at once (up to
//! [`limits::PIPELINE_MAX`]), and what is ready leaves in one send: in the plain case a request
//! costs one recv and one send. While requests are worked on the socket is still read, which is
//! how the end of a client that waits for a message is noticed.
//!
//! The end of the stream means *gone* to a parked pop: it is cancelled and claims nothing. Any
//! other complete request still gets its full answer. A panic in here ends this connection and
//! no other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use futures_lite::FutureExt;

use super::answer::{Answer, Asked, Outbox};
use super::node::Node;
use super::operation::Operation;
use super::reactor;
use super::shard::ShardHandle;
use super::sockets::Socket;
use super::sys;
use super::token::Denial;
use super::watch::Watch;
use crate::base::limits;
use crate::http::{CONTINUE, Decoder, Method, Reject, Request, Step};

/// A keep-alive connection without a request: longer than any client's pool and the usual
/// balancers' 60 s keep theirs.
const IDLE_US: u64 = 75_000_000;
/// From a request's first byte to the end of its head.
const HEAD_US: u64 = 10_000_000;
/// For a body, and a second more for each [`BODY_BYTES_SECOND`] of it that has come.
const BODY_US: u64 = 30_000_000;
const BODY_BYTES_SECOND: u64 = 16 << 10;
/// A client that takes nothing of its answer for this long has lost interest.
const SEND_US: u64 = 30_000_000;
/// After a refusal the rest of what the client sends is read and dropped for a moment, or the
/// kernel would answer it with a reset that may overtake the refusal.
const LINGER_US: u64 = 1_000_000;
const LINGER_BYTES: usize = 256 << 10;
/// Answers after which other tasks get their turn.
const ANSWERS_A_TURN: usize = 32;
/// Answers of one send stay about within this; one larger answer goes alone.
const SEND_BYTES: usize = 256 << 10;

/// Serves an accepted connection on this executor until its end.
pub fn begin(node: &Rc<Node>, stream: TcpStream) {
    let counted = Counted(node.clone());
    match node.reactor.sockets.adopt(stream) {
        Ok(socket) => drop(reactor::spawn(serve(counted, socket)).detach()),
        Err(error) => tracing::debug!(%error, "a connection could not be taken up"),
    }
}

async fn serve(counted: Counted, socket: Socket) {
    let mut conn = Conn::new(counted.0.clone(), socket);
    // The state is dropped as it is: claims go back, requests are cancelled.
    match AssertUnwindSafe(conn.run()).catch_unwind().await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "connection ended"),
        Err(_) => tracing::error!("a connection task panicked; its connection is closed"),
    }
}

/// Counts the connection down, whichever way it ends.
struct Counted(Rc<Node>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.gauges().connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Tells a client over the connection limit so.
pub fn refuse(node: &Rc<Node>, stream: TcpStream) {
    if !node.begin_refusing() {
        return;
    }
    let Ok(socket) = node.reactor.sockets.adopt(stream) else { return node.end_refusing() };
    let node = node.clone();
    reactor::spawn(async move {
        let mut conn = Conn::new(node.clone(), socket);
        let answer = Answer::rejected(&Reject {
            status: 503,
            code: "retry",
            text: "too many connections".into(),
        });
        conn.end_with(Answer { retry_after: Some(1), ..answer });
        let _ = conn.run().await;
        node.end_refusing();
    })
    .detach();
}

struct Conn {
    node: Rc<Node>,
    shard: Rc<ShardHandle>,
    socket: Socket,
    decoder: Decoder,
    /// Requests without an answer on its way, in order.
    open: VecDeque<Open>,
    watch: Rc<Watch>,
    watch_index: usize,
    /// When the current wait began: for a head, a body, or the next request.
    waiting: Waiting,
    since_us: u64,
    /// No further request is read.
    last: bool,
    /// The peer has sent FIN.
    peer_done: bool,
    /// The request whose body is awaited was found good by its head.
    admitted: bool,
    /// There may be unread bytes at the end.
    linger: bool,
    /// Requests that were counted as open and not yet as answered.
    counted: usize,
    /// Answers since others last had their turn.
    answered: usize,
}

struct Open {
    state: State,
    asked: Asked,
    /// A pop that waits for messages: the end of the stream ends it.
    parked: bool,
    /// When it was taken up, in monotonic microseconds.
    since_us: u64,
}

impl Open {
    /// Ready once there is something to send.
    fn poll(&mut self, node: &Node, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Working(operation) = &mut self.state {
            let answer = ready!(operation.poll(cx));
            let state = std::mem::replace(&mut self.state, State::Done(answer));
            if let State::Working(operation) = state {
                node.return_operation(operation);
            }
        }
        Poll::Ready(())
    }
}

enum State {
    Working(Box<dyn Operation>),
    Done(Answer),
    /// An interim answer, as it goes out.
    Raw(&'static [u8]),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Request,
    Head,
    Body,
    Answer,
}

enum Event {
    /// The first open request has its answer.
    Answer,
    Bytes,
    Fin,
    Expired,
}

impl Conn {
    fn new(node: Rc<Node>, socket: Socket) -> Self {
        let (watch_index, watch) = node.watches.add();
        Self {
            shard: node.next_shard().clone(),
            socket,
            decoder: Decoder::new(node.limits),
            open: VecDeque::new(),
            watch,
            watch_index,
            waiting: Waiting::Request,
            since_us: node.now().mono_us,
            last: false,
            peer_done: false,
            admitted: false,
            linger: false,
            counted: 0,
            answered: 0,
            node,
        }
    }

    /// Ends with `Err` when the socket does not take or give bytes any more.
    async fn run(&mut self) -> io::Result<()> {
        loop {
            poll_fn(|cx| {
                self.take_requests(cx);
                Poll::Ready(())
            })
            .await;
            if self.send_ready().await? {
                continue;
            }
            if self.open.is_empty() && (self.last || self.node.is_closing()) {
                break;
            }
            match self.wait().await? {
                Event::Answer => {}
                // Reads never wait while there is something to read.
                Event::Bytes => self.node.reactor.yield_if_due().await,
                Event::Fin => self.on_fin(),
                Event::Expired => self.on_expired(),
            }
        }
        if self.linger && !self.peer_done {
            self.drain_input().await;
        }
        Ok(())
    }

    /// Hands in every request that is completely here, in order.
    fn take_requests(&mut self, cx: &mut Context<'_>) {
        while !self.last && self.open.len() < limits::PIPELINE_MAX {
            match self.decoder.next() {
                Step::NeedMore => {
                    self.refuse_body();
                    return;
                }
                Step::Continue if self.refuse_body() => return,
                Step::Continue => self.push(State::Raw(CONTINUE), Self::plain(true)),
                Step::Request(request) => {
                    self.admitted = false;
                    self.begin(request, cx);
                }
                Step::Reject(reject) => {
                    self.linger = true;
                    self.end_with(Answer::rejected(&reject));
                }
            }
        }
    }

    /// Refuses a request before its body is taken, where its head is enough for that. A client
    /// that may not push is not let to send 64 MiB first.
    fn refuse_body(&mut self) -> bool {
        let Some(auth) = self.node.auth.as_ref().filter(|_| !self.admitted) else { return false };
        let Some(pending) = self.decoder.pending() else { return false };
        let now_us = self.node.now().wall_us;
        let method = pending.method;
        let refused = auth.refuses(method, &pending.target, pending.authorization, now_us);
        self.admitted = refused.is_none();
        if let Some(denial) = refused {
            self.deny(method, denial);
        }
        refused.is_some()
    }

    fn deny(&mut self, method: Method, denial: Denial) {
        self.end_with(Answer::denied(denial));
        if let Some(open) = self.open.back_mut() {
            open.asked.method = method;
        }
    }

    fn begin(&mut self, request: Request, cx: &mut Context<'_>) {
        let asked = Asked {
            method: request.method,
            keep_alive: request.keep_alive,
            http10: request.http10,
        };
        self.last = !request.keep_alive;
        self.count_request();
        let mut operation = self.node.take_operation();
        operation.begin(self.node.clone(), self.shard.clone(), request);
        self.push(State::Working(operation), asked);
        let Some(open) = self.open.back_mut() else { return };
        // Polled here, so that requests reach the shard in the order they came.
        let works = open.poll(&self.node, cx).is_pending();
        open.parked = self.node.take_parked() && works;
    }

    fn push(&mut self, state: State, asked: Asked) {
        let since_us = self.node.now().mono_us;
        self.open.push_back(Open { state, asked, parked: false, since_us });
    }

    fn count_request(&mut self) {
        self.counted += 1;
        self.node.count_open(1, 0);
    }

    fn plain(keep_alive: bool) -> Asked {
        Asked { method: Method::Get, keep_alive, http10: false }
    }

    /// The connection ends behind this answer.
    fn end_with(&mut self, answer: Answer) {
        self.decoder.close();
        self.last = true;
        self.linger = true;
        self.count_request();
        self.push(State::Done(answer), Self::plain(false));
    }

    fn on_fin(&mut self) {
        self.peer_done = true;
        self.last = true;
        self.decoder.finish();
        for open in &mut self.open {
            if open.parked && matches!(open.state, State::Working(_)) {
                // Dropping the operation cancels it. Requests behind it still get theirs.
                open.state = State::Done(Answer::nothing());
            }
        }
    }

    fn on_expired(&mut self) {
        match self.waiting {
            Waiting::Request | Waiting::Answer => self.last = true,
            Waiting::Head | Waiting::Body => self.end_with(Answer::rejected(&Reject {
                status: 408,
                code: "timeout",
                text: "the request took too long to arrive".into(),
            })),
        }
    }

    /// Sends the answers that are ready, from the first on. False if the first is not.
    async fn send_ready(&mut self) -> io::Result<bool> {
        if self.open.is_empty() {
            return Ok(false);
        }
        let mut outbox = self.node.take_outbox();
        poll_fn(|cx| {
            self.collect(&mut outbox, cx);
            Poll::Ready(())
        })
        .await;
        if outbox.is_empty() {
            self.node.return_outbox(outbox);
            return Ok(false);
        }
        // An error drops the outbox: what its answers claimed goes back.
        self.send(&outbox).await?;
        let requests = outbox.requests();
        self.counted -= requests;
        self.node.count_open(0, requests);
        outbox.all_sent();
        self.node.return_outbox(outbox);
        self.answered += requests;
        if self.answered >= ANSWERS_A_TURN {
            self.answered = 0;
            self.node.reactor.yield_if_due().await;
        }
        Ok(true)
    }

    fn collect(&mut self, outbox: &mut Outbox, cx: &mut Context<'_>) {
        let date = self.node.date();
        while outbox.len() < SEND_BYTES {
            let Some(first) = self.open.front_mut() else { return };
            if first.poll(&self.node, cx).is_pending() {
                return;
            }
            let Some(mut first) = self.open.pop_front() else { return };
            if first.parked && self.took_claims_too_late(&first.state) {
                // Dropping the answer gives its claims back.
                first.state = State::Done(Answer::nothing());
                self.peer_done = true;
                self.last = true;
            }
            // A drain lets every connection end at its next pause.
            if self.open.is_empty()
                && self.node.control().is_draining()
                && !self.decoder.is_mid_request()
            {
                first.asked.keep_alive = false;
                self.last = true;
            }
            match first.state {
                State::Raw(bytes) => outbox.push_raw(bytes),
                State::Done(answer) => {
                    self.node.count_answer(&answer, first.parked, first.since_us);
                    outbox.push(answer, first.asked, &date);
                }
                State::Working(_) => unreachable!("it was just seen to be done"),
            }
        }
    }

    /// Messages for a client that has gone while its pop was parked: the kernel would take the
    /// answer and nobody would read it.
    fn took_claims_too_late(&self, state: &State) -> bool {
        matches!(state, State::Done(answer) if answer.claimed.is_some())
            && (self.peer_done || self.socket.has_left())
    }

    /// Resolves when the kernel has all of it.
    async fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        let mut sent = 0;
        // Where it stood when the deadline was last set: only progress moves it.
        let mut stuck_at = usize::MAX;
        poll_fn(|cx| {
            while sent < outbox.len() {
                match self.socket.poll_send(cx, &outbox.rest(sent)) {
                    Poll::Ready(Ok(n)) => sent += n,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending if self.watch.take_expired() => {
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    Poll::Pending => {
                        self.watch.set_waker(cx.waker());
                        if stuck_at != sent {
                            stuck_at = sent;
                            self.watch.set_deadline(self.node.now().mono_us + SEND_US);
                        }
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    async fn wait(&mut self) -> io::Result<Event> {
        self.set_deadline();
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        if let Some(first) = self.open.front_mut()
            && first.poll(&self.node, cx).is_ready()
        {
            return Poll::Ready(Ok(Event::Answer));
        }
        self.watch.set_waker(cx.waker());
        if self.watch.take_expired() || (self.open.is_empty() && self.node.is_closing()) {
            return Poll::Ready(Ok(Event::Expired));
        }
        if !self.reads_ahead() {
            return Poll::Pending;
        }
        // Before there is anything no room is made for it: the request that is worked on may still
        // hold the memory.
        if self.socket.poll_readable(cx).is_pending() {
            return self.poll_quiet();
        }
        let space = self.decoder.recv_space();
        match self.socket.poll_read(cx, space) {
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(Event::Fin)),
            Poll::Ready(Ok(n)) => {
                self.decoder.received(n);
                self.watch.note_busy();
                Poll::Ready(Ok(Event::Bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_quiet(),
        }
    }

    /// Nothing came.
    fn poll_quiet(&mut self) -> Poll<io::Result<Event>> {
        if self.watch.is_quiet() {
            self.decoder.release();
        }
        Poll::Pending
    }

    /// Whether more of the socket is wanted. Behind a closed decoder or a full pipeline bytes
    /// stay in the kernel, and with them the client's pace.
    fn reads_ahead(&self) -> bool {
        !self.peer_done
            && if self.open.is_empty() {
                !self.last
            } else {
                // A parked request's client may only be seen to go by reading.
                self.open.len() < limits::PIPELINE_MAX
                    && self.decoder.buffer_bytes() <= limits::RECV_RETAIN_MAX
            }
    }

    fn set_deadline(&mut self) {
        let waiting = if !self.open.is_empty() {
            Waiting::Answer
        } else if self.decoder.is_in_body() {
            Waiting::Body
        } else if self.decoder.is_in_head() {
            Waiting::Head
        } else {
            Waiting::Request
        };
        // Bytes of a head do not move its deadline, bytes of a body do below.
        if waiting != self.waiting || waiting == Waiting::Request {
            self.waiting = waiting;
            // An answer is waited for as long as it takes.
            if waiting != Waiting::Answer {
                self.since_us = self.node.now().mono_us;
            }
        }
        let body_us = || self.decoder.body_received() as u64 * 1_000_000 / BODY_BYTES_SECOND;
        match waiting {
            Waiting::Answer => self.watch.clear_deadline(),
            Waiting::Request => self.watch.set_deadline(self.since_us + IDLE_US),
            Waiting::Head => self.watch.set_deadline(self.since_us + HEAD_US),
            Waiting::Body => self.watch.set_deadline(self.since_us + BODY_US + body_us()),
        }
    }

    async fn drain_input(&mut self) {
        sys::finish_sending(&self.socket);
        self.watch.set_deadline(self.node.now().mono_us + LINGER_US);
        let mut scratch = vec![0; 4 << 10];
        let mut dropped = 0;
        poll_fn(|cx| {
            self.watch.set_waker(cx.waker());
            loop {
                if self.watch.take_expired() || dropped > LINGER_BYTES {
                    return Poll::Ready(());
                }
                match self.socket.poll_read(cx, &mut scratch) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(n)) => dropped += n,
                }
            }
        })
        .await;
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.node.count_open(0, self.counted);
        self.node.watches.remove(self.watch_index);
    }
}

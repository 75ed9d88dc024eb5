//! The request side of one connection: a state machine over its receive buffer.
//!
//! ```text
//!   Head ──blank line──▶ Body ──last byte──▶ (Request) ──keep-alive──▶ Head
//!     └──────────────refusal, or the last request──────────────▶ Closed
//! ```
//!
//! `Closed` is final: whatever arrives after it is dropped unread, so bytes behind a refused body
//! are never taken for a request (RFC 9112 9.6).

use bytes::Bytes;

use super::body::ChunkDecoder;
use super::buffer::RecvBuffer;
use super::head::{self, Framing, Head, HeadScan};
use super::{Finish, Limits, Method, Reject, Request, Step, Target};
use crate::base::limits::{BLANK_BYTES_MAX, RECV_BODY_STEP, RECV_SPACE_LOW, RECV_SPACE_MIN};

/// Decodes the requests of one connection.
pub struct Decoder {
    limits: Limits,
    buffer: RecvBuffer,
    state: State,
}

/// `Body` is large and yet not boxed: a box would be an allocation for each request.
enum State {
    Head { scan: HeadScan, blank_bytes: usize },
    Body(Awaited),
    Closed,
}

/// What is known of a request whose body is awaited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending<'a> {
    pub method: Method,
    pub target: Target,
    pub authorization: Option<&'a [u8]>,
}

/// A request whose head is read and whose body is not all there.
struct Awaited {
    head: Head,
    head_bytes: usize,
    body: Body,
    /// The client was not yet told to go on.
    continue_due: bool,
}

enum Body {
    Length(usize),
    Chunked(ChunkDecoder),
}

impl Decoder {
    pub fn new(limits: Limits) -> Self {
        Self { limits, buffer: RecvBuffer::default(), state: State::new_head() }
    }

    /// Where the next bytes of the socket go: at least `RECV_SPACE_MIN` between requests, and
    /// inside one `RECV_SPACE_LOW` or what is left of the body. A body that outgrows the buffer
    /// is given as much again as has arrived; a claimed length only ever makes that less.
    pub fn recv_space(&mut self) -> &mut [u8] {
        let have = self.buffer.len();
        let need = match &self.state {
            State::Head { .. } | State::Closed if have == 0 => {
                return self.buffer.space_idle(RECV_SPACE_MIN);
            }
            State::Head { .. } | State::Closed => RECV_SPACE_MIN,
            State::Body(awaited) => awaited.need(have).max(1),
        };
        let want = need.min(have.max(RECV_BODY_STEP)).max(RECV_SPACE_MIN);
        // A whole body is not moved to make room for more than its own last bytes.
        self.buffer.space(want, need.min(RECV_SPACE_LOW))
    }

    /// The first `count` bytes of the last `recv_space` were filled.
    pub fn received(&mut self, count: usize) {
        if !matches!(self.state, State::Closed) {
            self.buffer.commit(count);
        }
    }

    /// The next thing to do. Call until it says `NeedMore`.
    #[expect(clippy::should_implement_trait, reason = "a decoder does not end like an iterator")]
    pub fn next(&mut self) -> Step {
        match self.advance() {
            Ok(step) => step,
            Err(reject) => {
                self.close();
                Step::Reject(reject)
            }
        }
    }

    /// Reads no further request: what arrives from now on is dropped. For a driver that has
    /// answered a request before its body was there.
    pub fn close(&mut self) {
        self.state = State::Closed;
        self.buffer = RecvBuffer::default();
    }

    /// The peer has sent FIN. Requests already given out still want their answers.
    pub fn finish(&mut self) -> Finish {
        let finish = if self.is_mid_request() { Finish::Truncated } else { Finish::Clean };
        self.close();
        finish
    }

    /// Gives back the memory of a connection that has been quiet for a while.
    pub fn release(&mut self) {
        if !self.is_mid_request() {
            self.buffer.release();
        }
    }

    /// Whether some but not all bytes of a request are here.
    pub fn is_mid_request(&self) -> bool {
        self.is_in_head() || self.is_in_body()
    }

    pub fn is_in_head(&self) -> bool {
        matches!(self.state, State::Head { .. }) && self.buffer.len() > 0
    }

    pub fn is_in_body(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    /// No further request will come out.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Bytes of the current body that have arrived, chunk headers not counted.
    pub fn body_received(&self) -> usize {
        match &self.state {
            State::Body(awaited) => awaited.body_received(self.buffer.len()),
            State::Head { .. } | State::Closed => 0,
        }
    }

    /// Memory held by the receive buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.allocated()
    }

    /// The request whose body is awaited, so that the driver can refuse it (and `close`) before
    /// it takes the body.
    pub fn pending(&self) -> Option<Pending<'_>> {
        let State::Body(awaited) = &self.state else {
            return None;
        };
        let head = &awaited.head;
        let bytes = &self.buffer.data()[..awaited.head_bytes];
        Some(Pending {
            method: head.method,
            target: Target::new(Bytes::copy_from_slice(head.target.in_bytes(bytes)), head.parts),
            authorization: head.authorization.map(|span| span.in_bytes(bytes)),
        })
    }

    fn advance(&mut self) -> Result<Step, Reject> {
        if matches!(self.state, State::Head { .. }) && !self.read_head()? {
            return Ok(Step::NeedMore);
        }
        let State::Body(awaited) = &mut self.state else {
            return Ok(Step::NeedMore);
        };
        if awaited.read_body(&mut self.buffer, self.limits.body_bytes)? {
            return Ok(self.give_out());
        }
        // RFC 9110 10.1.1: no interim answer where the body is already on its way.
        let unsent = self.buffer.len() == awaited.head_bytes;
        if std::mem::take(&mut awaited.continue_due) && unsent {
            return Ok(Step::Continue);
        }
        Ok(Step::NeedMore)
    }

    /// True once a head is complete and the state is `Body`.
    fn read_head(&mut self) -> Result<bool, Reject> {
        let State::Head { scan, blank_bytes } = &mut self.state else {
            return Ok(false);
        };
        if !skip_blank_lines(&mut self.buffer, blank_bytes)? {
            return Ok(false);
        }
        let Some(head_bytes) = scan.advance(self.buffer.data(), &self.limits)? else {
            return Ok(false);
        };
        let head = head::parse(&self.buffer.data()[..head_bytes], &self.limits)?;
        let body = match head.framing {
            // Before a byte of it is read; and since the decoder closes, none of it ever is.
            Framing::Length(length) if length > self.limits.body_bytes => {
                return Err(Reject::body_too_large(self.limits.body_bytes));
            }
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Chunked(ChunkDecoder::new(head_bytes)),
        };
        let continue_due = head.expects_continue;
        self.state = State::Body(Awaited { head, head_bytes, body, continue_due });
        Ok(true)
    }

    /// Splits the whole request in state `Body` off the buffer.
    fn give_out(&mut self) -> Step {
        let State::Body(awaited) = std::mem::replace(&mut self.state, State::new_head()) else {
            unreachable!("only called with a whole body");
        };
        let Awaited { head, head_bytes, body, .. } = awaited;
        let (body_start, body_end, request_end) = match &body {
            Body::Length(length) => (head_bytes, head_bytes + length, head_bytes + length),
            Body::Chunked(chunks) => chunks.bounds(),
        };
        let bytes = self.buffer.take(request_end);
        let slice = |span: Option<head::Span>| span.map(|s| bytes.slice(s.start..s.end));
        let request = Request {
            method: head.method,
            target: Target::new(bytes.slice(head.target.start..head.target.end), head.parts),
            keep_alive: head.keep_alive,
            http10: head.http10,
            content_type: slice(head.content_type),
            authorization: slice(head.authorization),
            content_encoding: slice(head.content_encoding),
            body: body_slice(&bytes, body_start, body_end),
        };
        if !request.keep_alive {
            self.close();
        }
        Step::Request(request)
    }
}

impl State {
    fn new_head() -> Self {
        Self::Head { scan: HeadScan::default(), blank_bytes: 0 }
    }
}

impl Awaited {
    /// True once the body is whole.
    fn read_body(&mut self, buffer: &mut RecvBuffer, body_max: usize) -> Result<bool, Reject> {
        match &mut self.body {
            Body::Length(length) => Ok(buffer.len() - self.head_bytes >= *length),
            Body::Chunked(chunks) => {
                if chunks.decode(buffer.data_mut(), body_max)? {
                    return Ok(true);
                }
                let (_, end, read) = chunks.bounds();
                if end < read {
                    buffer.cut(end, read);
                    chunks.compacted();
                }
                Ok(false)
            }
        }
    }

    fn body_received(&self, have: usize) -> usize {
        match &self.body {
            Body::Length(length) => (have - self.head_bytes).min(*length),
            Body::Chunked(chunks) => chunks.data_bytes(),
        }
    }

    /// Bytes that are known or likely to come, with `have` in the buffer.
    fn need(&self, have: usize) -> usize {
        match &self.body {
            Body::Length(length) => (self.head_bytes + length).saturating_sub(have),
            // How many chunks follow is not known: as much again, like any growing list.
            Body::Chunked(chunks) => chunks.known_need().max(have),
        }
    }
}

/// RFC 9112 2.2: a server should pass over a CRLF before the request line. True once something
/// else is there.
fn skip_blank_lines(buffer: &mut RecvBuffer, skipped: &mut usize) -> Result<bool, Reject> {
    loop {
        match buffer.data() {
            [] | [b'\r'] => return Ok(false),
            [b'\r', b'\n', ..] if *skipped < BLANK_BYTES_MAX => {
                buffer.skip(2);
                *skipped += 2;
            }
            [b'\r' | b'\n', ..] => {
                return Err(Reject::bad_request("stray line ends before a request"));
            }
            _ => return Ok(true),
        }
    }
}

/// Without a share in the buffer where there is nothing to share.
fn body_slice(bytes: &Bytes, start: usize, end: usize) -> Bytes {
    if start == end { Bytes::new() } else { bytes.slice(start..end) }
}

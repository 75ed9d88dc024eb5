//! Layer 2: the HTTP/1.1 server codec, sans-IO. Bytes in, requests out; answers in, bytes out.
//!
//! The driver in `server` owns the socket. It reads into [`Decoder::recv_space`], says how much
//! arrived, and calls [`Decoder::next`] until that wants more. Answers are written with
//! [`write_head`] into a buffer of the driver's.
//!
//! ```text
//!  socket ──▶ buffer ──▶ head (scan for the blank line, then httparse) ──▶ body (length | chunks)
//!                              └── target: path segments, query pairs          │
//!  socket ◀── response ◀── …the product…  ◀──────────────────── Request ◀──────┘
//! ```
//!
//! Invariants:
//! - **Where a message ends is never in doubt.** Anything two parsers could read differently (two
//!   lengths, a length beside chunks, bare CR or LF, folded lines) is refused, and a refusal ends
//!   the connection: no later byte of it is read as a request.
//! - **What comes out does not depend on how the bytes were cut**, except for [`Step::Continue`].
//! - **Memory follows bytes received, never bytes claimed.**
//! - Copies of a payload: none with Content-Length in a buffer that is already large enough;
//!   growth copies at most once per byte in sum (doubling); a chunked body moves once, in place.
//!
//! The rules are those of RFC 9112; comments name the section where a line implements one.

mod body;
mod buffer;
mod decoder;
mod head;
mod response;
mod target;

use std::borrow::Cow;

use bytes::Bytes;

use crate::base::limits;

pub use decoder::{Decoder, Pending};
pub use response::{CONTINUE, ResponseHead, format_date, has_body, reason, write_head};
pub use target::{BadTarget, Query, Segments, Target};

/// The bounds a deployment may move. The others are constants of `base::limits`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A body, after chunks are taken apart; over it 413.
    pub body_bytes: usize,
    /// Request line and headers; over it 431.
    pub head_bytes: usize,
    /// The request target; over it 414.
    pub target_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: limits::BODY_BYTES_MAX,
            head_bytes: limits::HEAD_BYTES_MAX,
            target_bytes: limits::TARGET_BYTES_MAX,
        }
    }
}

/// What the bytes received so far amount to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing more can be said before more bytes arrive.
    NeedMore,
    /// The client holds its body back until it is told to go on: send [`CONTINUE`] now.
    Continue,
    Request(Request),
    /// Answer with this, then close. No further step but `NeedMore` will come.
    Reject(Reject),
}

/// How a stream ended when the peer sent FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// Between two requests: what came before it still deserves its answers.
    Clean,
    /// Inside a request, which is lost and gets no answer.
    Truncated,
}

/// Method names are case-sensitive (RFC 9110 9.1): `get` is `Other`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    /// The router decides how it refuses this one.
    Other,
}

/// One whole request. Its pieces share the receive buffer: keep none of them for long, or the
/// connection must take another buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub method: Method,
    pub target: Target,
    /// Whether the connection goes on after this one. If not, the decoder is done.
    pub keep_alive: bool,
    pub http10: bool,
    pub body: Bytes,
    pub content_type: Option<Bytes>,
    pub authorization: Option<Bytes>,
    /// As sent, `identity` included; whether it is a coding we know is the router's to say.
    pub content_encoding: Option<Bytes>,
}

/// A refusal by the codec, always the last answer of its connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    pub status: u16,
    pub code: &'static str,
    pub text: Cow<'static, str>,
}

impl Reject {
    const fn new(status: u16, code: &'static str, text: &'static str) -> Self {
        Self { status, code, text: Cow::Borrowed(text) }
    }

    const fn bad_request(text: &'static str) -> Self {
        Self::new(400, "bad_request", text)
    }

    fn body_too_large(limit: usize) -> Self {
        Self {
            status: 413,
            code: "payload_too_large",
            text: Cow::Owned(format!("the request body is over the limit of {limit} bytes")),
        }
    }
}

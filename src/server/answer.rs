//! One answer, and how several of them leave in one send.

use std::cell::RefCell;
use std::io::IoSlice;
use std::ops::Range;

use smallvec::SmallVec;

use super::dma::DmaBuf;
use super::meters::Kind;
use super::route;
use super::shard::Claimed;
use super::token::Denial;
use crate::base::spare::Spare;
use crate::http::{self, Method, Reject, ResponseHead};
use crate::model::error::Refusal;
use crate::proto::error;
use crate::proto::pop::Piece;

pub const JSON: &str = "application/json";
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The answer to one request, without what the connection adds.
pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
    /// Follows `body`: a framed pop's batches, as they lie in the log's buffers.
    pub pieces: Vec<Piece<DmaBuf>>,
    pub retry_after: Option<u32>,
    /// Further fields of the head.
    pub fields: &'static [(&'static str, &'static str)],
    /// What it answers, for the metrics.
    pub kind: Kind,
    /// What goes back to the shard unless all of the answer is sent.
    pub claimed: Option<Claimed>,
}

impl Answer {
    pub fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type,
            body,
            pieces: Vec::new(),
            retry_after: None,
            fields: &[],
            kind: Kind::Other,
            claimed: None,
        }
    }

    pub fn json(status: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut body = empty_body();
        fill(&mut body);
        Self::new(status, JSON, body)
    }

    /// The answer of an empty pop.
    pub fn nothing() -> Self {
        Self::new(204, JSON, Vec::new())
    }

    pub fn refused(refusal: &Refusal) -> Self {
        let (status, retry_after) = route::status_of(refusal.code);
        let answer = Self::json(status, |out| error::encode(refusal, out));
        Self { retry_after, ..answer }
    }

    /// A refusal for want of a good token or of a role. Its body has no code on this wire.
    pub fn denied(denial: Denial) -> Self {
        let answer = Self::json(denial.status(), |out| {
            crate::proto::json::Fields::begin(out).text("error", denial.text()).end();
        });
        // RFC 9110 11.6.1: a 401 says how to do better.
        let challenge: &[_] = &[("www-authenticate", "Bearer")];
        Self { fields: if answer.status == 401 { challenge } else { &[] }, ..answer }
    }

    /// A refusal of the codec. An oversized body's is plain text on this wire.
    pub fn rejected(reject: &Reject) -> Self {
        if reject.code == "payload_too_large" {
            return Self::new(reject.status, TEXT, reject.text.as_bytes().to_vec());
        }
        Self::json(reject.status, |out| {
            let mut fields = crate::proto::json::Fields::begin(out);
            fields.text("error", &reject.text).text("code", reject.code).end();
        })
    }

    fn len(&self) -> usize {
        self.body.len() + self.pieces.iter().map(Piece::len).sum::<usize>()
    }
}

/// Room that an answer's body has at least.
const BODY_BYTES: usize = 1 << 10;

thread_local! {
    /// Bodies that have been sent from this executor.
    static BODIES: RefCell<Spare<Vec<u8>>> = RefCell::default();
}

/// For an answer's body, with the memory of an earlier one where there is some.
pub fn empty_body() -> Vec<u8> {
    let mut body = BODIES.with_borrow_mut(Spare::take);
    body.reserve(BODY_BYTES);
    body
}

/// A body that has been sent, for its memory.
fn spent_body(body: Vec<u8>) {
    BODIES.with_borrow_mut(|kept| kept.put(body));
}

/// What of the request shapes the answer's head.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub method: Method,
    pub keep_alive: bool,
    pub http10: bool,
}

/// A body of at most this length lies behind its head.
const JOINED_BYTES_MAX: usize = 1 << 10;
/// Most parts that one sendmsg takes.
const PARTS_MAX: usize = 1_024;

/// Answers on their way out, in order. Reused, so that it allocates nothing once it has grown.
#[derive(Default)]
pub struct Outbox {
    heads: Vec<u8>,
    items: Vec<Item>,
    bytes: usize,
}

struct Item {
    /// In [`Outbox::heads`], with a short body.
    head: Range<usize>,
    answer: Option<Answer>,
}

impl Outbox {
    /// An interim answer, head and all.
    pub fn push_raw(&mut self, bytes: &[u8]) {
        let from = self.heads.len();
        self.heads.extend_from_slice(bytes);
        self.bytes += bytes.len();
        self.items.push(Item { head: from..self.heads.len(), answer: None });
    }

    pub fn push(&mut self, answer: Answer, asked: Asked, date: &[u8; 29]) {
        let from = self.heads.len();
        let mut head = ResponseHead::new(answer.status, date);
        head.content_type = Some(answer.content_type);
        head.content_length = answer.len() as u64;
        head.keep_alive = asked.keep_alive;
        head.http10 = asked.http10;
        head.retry_after = answer.retry_after;
        head.extra = answer.fields;
        http::write_head(&mut self.heads, &head);
        let mut answer = answer;
        if !http::has_body(asked.method, answer.status) {
            answer.body = Vec::new();
            answer.pieces = Vec::new();
        }
        // A copy of a few bytes costs the kernel less than a second part.
        if answer.body.len() <= JOINED_BYTES_MAX {
            self.heads.extend_from_slice(&answer.body);
            spent_body(std::mem::take(&mut answer.body));
        }
        let head = from..self.heads.len();
        self.bytes += head.len() + answer.len();
        self.items.push(Item { head, answer: Some(answer) });
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Memory it keeps when it is empty.
    pub fn held_bytes(&self) -> usize {
        self.heads.capacity()
    }

    /// What is left behind the first `sent` bytes, as many parts as one send takes.
    pub fn rest(&self, sent: usize) -> SmallVec<[IoSlice<'_>; 8]> {
        let mut parts = SmallVec::new();
        let mut skip = sent;
        for part in self.parts() {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            parts.push(IoSlice::new(&part[skip..]));
            skip = 0;
            if parts.len() == PARTS_MAX {
                break;
            }
        }
        parts
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().flat_map(|item| {
            let answer = item.answer.as_ref();
            let body = answer.map_or(&[][..], |answer| &answer.body);
            let pieces = answer.map_or(&[][..], |answer| &answer.pieces);
            [&self.heads[item.head.clone()], body]
                .into_iter()
                .chain(pieces.iter().flat_map(bytes_of))
        })
    }

    /// Requests that are answered in here.
    pub fn requests(&self) -> usize {
        self.items.iter().filter(|item| item.answer.is_some()).count()
    }

    /// The socket has taken everything: claims are delivered. Ready for the next answers.
    pub fn all_sent(&mut self) {
        for item in self.items.drain(..) {
            let Some(answer) = item.answer else { continue };
            spent_body(answer.body);
            if let Some(claimed) = answer.claimed {
                claimed.sent();
            }
        }
        self.heads.clear();
        self.bytes = 0;
    }
}

fn bytes_of(piece: &Piece<DmaBuf>) -> SmallVec<[&[u8]; 2]> {
    match piece {
        Piece::Bytes(bytes) => SmallVec::from_slice(&[bytes.as_slice()]),
        Piece::Stored(gather) => gather.pieces().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn asked(method: Method) -> Asked {
        Asked { method, keep_alive: true, http10: false }
    }

    fn text(outbox: &Outbox, sent: usize) -> String {
        let parts = outbox.rest(sent);
        String::from_utf8(parts.iter().flat_map(|part| part.to_vec()).collect()).unwrap()
    }

    #[test]
    fn answers_leave_in_order_from_any_byte_on() {
        let mut outbox = Outbox::default();
        outbox.push_raw(http::CONTINUE);
        outbox.push(Answer::json(201, |out| out.extend(b"[1]")), asked(Method::Post), DATE);
        outbox.push(Answer::nothing(), asked(Method::Get), DATE);
        outbox.push(Answer::new(200, TEXT, b"unseen".to_vec()), asked(Method::Head), DATE);
        let whole = text(&outbox, 0);
        assert_eq!(whole.len(), outbox.len());
        assert!(whole.contains("\r\n\r\n[1]HTTP/1.1 204"));
        assert!(whole.contains("content-length: 6\r\n") && !whole.contains("unseen"));
        for sent in 0..=whole.len() {
            assert_eq!(text(&outbox, sent), whole[sent..]);
        }
        assert_eq!(outbox.requests(), 3);
        outbox.all_sent();
        assert!(outbox.is_empty() && outbox.rest(0).is_empty());
    }

    #[test]
    fn an_oversized_body_is_refused_in_plain_text() {
        let reject = Reject { status: 413, code: "payload_too_large", text: "too large".into() };
        let answer = Answer::rejected(&reject);
        assert_eq!((answer.content_type, &*answer.body), (TEXT, &b"too large"[..]));
        let reject = Reject { status: 400, code: "bad_request", text: "a \"b\"".into() };
        let answer = Answer::rejected(&reject);
        assert_eq!(answer.body, br#"{"error":"a \"b\"","code":"bad_request"}"#);
    }
}

//! Request heads: finding where one ends, and what it says.
//!
//! Two passes, on purpose. [`HeadScan`] looks only for line ends, each byte once however slowly
//! they arrive, and enforces sizes and CRLF. When the blank line is there, httparse runs once
//! over the whole head and checks the grammar.

use std::mem::MaybeUninit;

use httparse::Status;
use memchr::memchr;

use super::target::TargetParts;
use super::{Limits, Method, Reject};
use crate::base::limits::{HEADERS_MAX, REQUEST_LINE_SLACK};

/// A piece of a head, as places in the receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    /// Where `part`, a slice of `whole`, lies in it.
    pub fn of(part: &[u8], whole: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        assert!(start <= whole.len() && part.len() <= whole.len() - start, "not a part of it");
        Self { start, end: start + part.len() }
    }

    pub fn in_bytes(self, whole: &[u8]) -> &[u8] {
        &whole[self.start..self.end]
    }
}

/// How long a body is (RFC 9112 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
}

/// A parsed head; spans count from its first byte.
#[derive(Debug)]
pub(super) struct Head {
    pub method: Method,
    pub target: Span,
    pub parts: TargetParts,
    pub http10: bool,
    pub keep_alive: bool,
    pub framing: Framing,
    pub expects_continue: bool,
    pub content_type: Option<Span>,
    pub authorization: Option<Span>,
    pub content_encoding: Option<Span>,
}

/// Progress of the search for the blank line.
#[derive(Default, Debug)]
pub(super) struct HeadScan {
    seen: usize,
    line_start: usize,
    lines: usize,
}

impl HeadScan {
    /// Looks at the bytes not yet seen; the head's length once its blank line is there.
    pub fn advance(&mut self, data: &[u8], limits: &Limits) -> Result<Option<usize>, Reject> {
        if let Some(first) = data.first() {
            check_first_byte(*first)?;
        }
        while let Some(ahead) = memchr(b'\n', &data[self.seen..]) {
            let line_end = self.seen + ahead;
            self.check_size(line_end + 1, limits)?;
            if line_end == self.line_start || data[line_end - 1] != b'\r' {
                // RFC 9112 2.2 allows a bare LF as a line end; two readers that differ in
                // this see two different heads.
                return Err(Reject::bad_request("bare LF in the request head"));
            }
            if line_end - 1 == self.line_start {
                return Ok(Some(line_end + 1));
            }
            self.lines += 1;
            if self.lines > HEADERS_MAX + 1 {
                return Err(too_large("too many headers"));
            }
            self.line_start = line_end + 1;
            self.seen = self.line_start;
        }
        self.seen = data.len();
        self.check_size(data.len(), limits)?;
        Ok(None)
    }

    /// `so_far` grows byte by byte whatever the cuts, so the first bound it passes is the same.
    fn check_size(&self, so_far: usize, limits: &Limits) -> Result<(), Reject> {
        let line_max = limits.head_bytes.min(limits.target_bytes + REQUEST_LINE_SLACK);
        if self.lines == 0 && so_far > line_max {
            return Err(uri_too_long());
        }
        if so_far > limits.head_bytes {
            return Err(too_large("the request head is over the limit"));
        }
        Ok(())
    }
}

/// Parses a whole head, blank line included.
pub(super) fn parse(bytes: &[u8], limits: &Limits) -> Result<Head, Reject> {
    if bytes.starts_with(b"PRI * HTTP/2") {
        return Err(Reject::bad_request("HTTP/2 is not spoken here: use HTTP/1.1"));
    }
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(Status::Complete(len)) if len == bytes.len() => {}
        // The scan and httparse disagree on where the head ends: trust neither.
        Ok(_) => return Err(Reject::bad_request("malformed request head")),
        Err(error) => return Err(refuse(error, bytes)),
    }
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Reject::bad_request("malformed request line"));
    };
    let method = Method::from_name(method.as_bytes())?;
    if target.len() > limits.target_bytes {
        return Err(uri_too_long());
    }
    let parts = TargetParts::parse(target.as_bytes(), method)?;
    let mut fields = Fields::default();
    for header in request.headers.iter() {
        fields.read(header.name, header.value)?;
    }
    let http10 = version == 0;
    fields.check_host(http10)?;
    let span = |value: Option<&[u8]>| value.map(|part| Span::of(part, bytes));
    Ok(Head {
        method,
        target: Span::of(target.as_bytes(), bytes),
        parts,
        http10,
        // RFC 9112 9.3: 1.1 persists unless told otherwise, 1.0 only if asked to.
        keep_alive: !fields.close && (!http10 || fields.keep_alive),
        framing: fields.framing(http10)?,
        expects_continue: fields.expects_continue(http10)?,
        content_type: span(fields.content_type),
        authorization: span(fields.authorization),
        content_encoding: span(fields.content_encoding),
    })
}

/// Bytes of a token (RFC 9110 5.6.2), thus of a method or a header name.
pub(super) fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl Method {
    fn from_name(name: &[u8]) -> Result<Self, Reject> {
        Ok(match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            // What follows a CONNECT may be a tunnel's bytes, so the connection cannot go on.
            b"CONNECT" => {
                return Err(Reject::new(501, "not_implemented", "CONNECT is not offered"));
            }
            _ => Self::Other,
        })
    }
}

/// The few headers we read. Everything else is ignored.
#[derive(Default)]
struct Fields<'a> {
    hosts: usize,
    content_length: Option<&'a [u8]>,
    transfer_encoding: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    content_encoding: Option<&'a [u8]>,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    expects_other: bool,
}

impl<'a> Fields<'a> {
    fn read(&mut self, name: &str, value: &'a [u8]) -> Result<(), Reject> {
        let value = trim(value);
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is("host") => {
                self.hosts += 1;
                if !value.iter().all(|b| is_host_byte(*b)) {
                    return Err(Reject::bad_request("malformed Host"));
                }
            }
            6 if is("expect") => self.read_expect(value),
            10 if is("connection") => self.read_connection(value),
            12 if is("content-type") => same_or_once(&mut self.content_type, value)?,
            13 if is("authorization") => same_or_once(&mut self.authorization, value)?,
            14 if is("content-length") => once(&mut self.content_length, value)?,
            16 if is("content-encoding") => once(&mut self.content_encoding, value)?,
            17 if is("transfer-encoding") => once(&mut self.transfer_encoding, value)?,
            _ => {}
        }
        Ok(())
    }

    fn read_connection(&mut self, value: &[u8]) {
        for token in value.split(|b| *b == b',').map(trim) {
            self.close |= token.eq_ignore_ascii_case(b"close");
            self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn read_expect(&mut self, value: &[u8]) {
        if value.eq_ignore_ascii_case(b"100-continue") {
            self.expects_continue = true;
        } else {
            self.expects_other = true;
        }
    }

    /// RFC 9112 3.2: exactly one Host in 1.1. 1.0 may lack it, but not have two.
    fn check_host(&self, http10: bool) -> Result<(), Reject> {
        match self.hosts {
            1 => Ok(()),
            0 if http10 => Ok(()),
            0 => Err(Reject::bad_request("missing Host")),
            _ => Err(Reject::bad_request("more than one Host")),
        }
    }

    /// RFC 9110 10.1.1: a 1.0 client cannot mean it; an expectation we do not know fails.
    fn expects_continue(&self, http10: bool) -> Result<bool, Reject> {
        if http10 {
            return Ok(false);
        }
        if self.expects_other {
            return Err(Reject::new(417, "expectation_failed", "unknown expectation"));
        }
        Ok(self.expects_continue)
    }

    /// The length of the body, by the steps of RFC 9112 6.3 that concern a request.
    fn framing(&self, http10: bool) -> Result<Framing, Reject> {
        match (self.transfer_encoding, self.content_length) {
            // Step 3: with both, one of the hops is being lied to. The RFC lets a server go by
            // the transfer coding; we do not.
            (Some(_), Some(_)) => {
                Err(Reject::bad_request("both Transfer-Encoding and Content-Length"))
            }
            // 6.1: a 1.0 sender cannot have meant it.
            (Some(_), None) if http10 => Err(Reject::bad_request("Transfer-Encoding in HTTP/1.0")),
            // Step 4: chunked, and nothing before it.
            (Some(coding), None) => check_transfer_coding(coding),
            // Steps 5 and 6.
            (None, Some(length)) => parse_length(length).map(Framing::Length),
            // Step 7: no body, whatever the method.
            (None, None) => Ok(Framing::Length(0)),
        }
    }
}

/// Digits only: no sign, no list (not even of equal numbers), no white space inside.
fn parse_length(value: &[u8]) -> Result<usize, Reject> {
    let bad = || Reject::bad_request("malformed Content-Length");
    if value.is_empty() {
        return Err(bad());
    }
    let mut length = 0usize;
    for byte in value {
        if !byte.is_ascii_digit() {
            return Err(bad());
        }
        let digit = usize::from(byte - b'0');
        length = length.checked_mul(10).and_then(|n| n.checked_add(digit)).ok_or_else(bad)?;
    }
    Ok(length)
}

fn check_transfer_coding(value: &[u8]) -> Result<Framing, Reject> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(Framing::Chunked);
    }
    // Well-formed but beyond us is 501 (RFC 9112 6.1); where chunked is not the last coding,
    // or occurs twice, the end of the body is unknown and it is 400 (6.3 step 4).
    let mut codings = value.split(|b| *b == b',').map(trim).rev();
    let chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let ends_chunked = codings.next().is_some_and(chunked);
    let token = |coding: &[u8]| !coding.is_empty() && coding.iter().all(|b| is_tchar(*b));
    if ends_chunked && codings.all(|coding| token(coding) && !chunked(coding)) {
        return Err(Reject::new(501, "not_implemented", "transfer coding not implemented"));
    }
    Err(Reject::bad_request("malformed Transfer-Encoding"))
}

/// For headers of which a second one changes the meaning of the message.
fn once<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Reject> {
    if field.replace(value).is_some() {
        return Err(Reject::bad_request("a header that may occur once occurs twice"));
    }
    Ok(())
}

/// For headers that client libraries are known to set twice, once by default and once by hand.
fn same_or_once<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Reject> {
    if field.replace(value).is_some_and(|before| before != value) {
        return Err(Reject::bad_request("a header that may occur once has two values"));
    }
    Ok(())
}

/// Without the optional white space around it (RFC 9110 5.6.3).
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Bytes of `uri-host [":" port]` (RFC 9112 3.2), without checking their order: we ignore the
/// host, and only refuse what cannot be one.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// Not even the start of a method. Told at the first byte, since what speaks another protocol
/// may never send a line end.
fn check_first_byte(byte: u8) -> Result<(), Reject> {
    match byte {
        byte if is_tchar(byte) => Ok(()),
        0x16 => Err(Reject::bad_request("TLS on a plain HTTP port")),
        _ => Err(Reject::bad_request("not an HTTP request")),
    }
}

fn refuse(error: httparse::Error, bytes: &[u8]) -> Reject {
    match error {
        httparse::Error::HeaderName => Reject::bad_request("malformed header name"),
        httparse::Error::HeaderValue => Reject::bad_request("malformed header value"),
        httparse::Error::TooManyHeaders => too_large("too many headers"),
        httparse::Error::Version if names_other_version(bytes) => {
            Reject::new(505, "version_not_supported", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        }
        _ => Reject::bad_request("malformed request line"),
    }
}

/// Whether the request line ends in a well-formed HTTP version (RFC 9112 2.3) that we do not
/// speak. httparse also blames the version where there is a space too many before it.
fn names_other_version(bytes: &[u8]) -> bool {
    let line = &bytes[..memchr(b'\r', bytes).unwrap_or(0)];
    let version = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
    matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit()
            && !matches!((major, minor), (b'1', b'0' | b'1')))
}

fn too_large(text: &'static str) -> Reject {
    Reject::new(431, "headers_too_large", text)
}

fn uri_too_long() -> Reject {
    Reject::new(414, "uri_too_long", "the request target is over the limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Head, Reject> {
        let bytes = text.as_bytes();
        let len = HeadScan::default().advance(bytes, &Limits::default())?;
        parse(&bytes[..len.expect("a blank line")], &Limits::default())
    }

    fn with(fields: &str) -> Result<Head, Reject> {
        head(&format!("POST /x HTTP/1.1\r\nHost: h\r\n{fields}\r\n"))
    }

    fn status(result: Result<Head, Reject>, what: &str) -> u16 {
        result.expect_err(what).status
    }

    #[test]
    fn a_head_gives_its_fields() {
        let text = "POST /a/b?c=d HTTP/1.1\r\nhOST: h:1\r\ncontent-TYPE: \t a/b \t\r\n\
             Authorization:Bearer x\r\nContent-Encoding: ZSTD\r\nContent-Length: 012\r\nX: \r\n\r\n";
        let h = head(text).unwrap();
        let at = |span: Option<Span>| span.map(|s| s.in_bytes(text.as_bytes()));
        assert_eq!(h.method, Method::Post);
        assert_eq!(at(Some(h.target)), Some(b"/a/b?c=d".as_slice()));
        assert_eq!(at(h.content_type), Some(b"a/b".as_slice()));
        assert_eq!(at(h.authorization), Some(b"Bearer x".as_slice()));
        assert_eq!(at(h.content_encoding), Some(b"ZSTD".as_slice()));
        assert_eq!(h.framing, Framing::Length(12));
        assert!(h.keep_alive && !h.http10 && !h.expects_continue);
    }

    #[test]
    fn methods_are_case_sensitive() {
        for (name, method) in [
            ("GET", Method::Get),
            ("HEAD", Method::Head),
            ("PUT", Method::Put),
            ("DELETE", Method::Delete),
            ("get", Method::Other),
            ("TRACE", Method::Other),
            ("PATCH", Method::Other),
            ("M-SEARCH", Method::Other),
        ] {
            let text = format!("{name} / HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(head(&text).unwrap().method, method, "{name}");
        }
        assert_eq!(status(head("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"), "CONNECT"), 501);
    }

    #[test]
    fn lengths_are_digits_and_single() {
        for (value, length) in [("0", 0), ("5", 5), (" 5 ", 5), ("0005", 5)] {
            let h = with(&format!("Content-Length:{value}\r\n")).unwrap();
            assert_eq!(h.framing, Framing::Length(length), "{value:?}");
        }
        for value in [
            "",
            "+5",
            "-5",
            "5 5",
            "5,5",
            "5, 5",
            "5, 6",
            "0x5",
            "5a",
            "5.0",
            "1e3",
            "\u{665}",
            "18446744073709551616",
            "99999999999999999999999999",
        ] {
            let result = with(&format!("Content-Length: {value}\r\n"));
            assert_eq!(status(result, value), 400, "{value:?}");
        }
        assert_eq!(status(with("Content-Length: 5\r\nContent-Length: 6\r\n"), "two"), 400);
        assert_eq!(status(with("Content-Length: 5\r\ncontent-length: 5\r\n"), "equal"), 400);
        assert_eq!(with("").unwrap().framing, Framing::Length(0));
    }

    #[test]
    fn transfer_encoding_is_chunked_or_refused() {
        for value in ["chunked", "Chunked", " CHUNKED\t"] {
            let h = with(&format!("Transfer-Encoding:{value}\r\n")).unwrap();
            assert_eq!(h.framing, Framing::Chunked, "{value:?}");
        }
        for (value, expected) in [
            ("gzip, chunked", 501),
            ("identity, chunked", 501),
            ("", 400),
            ("identity", 400),
            ("gzip", 400),
            ("chunked, gzip", 400),
            ("chunked, chunked", 400),
            ("chunked,", 400),
            (", chunked", 400),
            ("xchunked", 400),
            ("chunkedx", 400),
            ("\"chunked\"", 400),
            ("chunked;q=1", 400),
            ("chunk ed", 400),
            ("\u{b}chunked", 400),
        ] {
            let result = with(&format!("Transfer-Encoding: {value}\r\n"));
            assert_eq!(status(result, value), expected, "{value:?}");
        }
        let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
        assert_eq!(status(with(twice), "twice"), 400);
    }

    #[test]
    fn length_beside_chunks_is_refused_in_any_order() {
        let both = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n";
        assert_eq!(status(with(both), "both"), 400);
        let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
        assert_eq!(status(with(both), "both"), 400);
        let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(status(head(old), "1.0"), 400);
    }

    #[test]
    fn ambiguous_lines_are_refused() {
        for fields in [
            "A: b\r\n c\r\n",
            "A: b\r\n\tc\r\n",
            " A: b\r\n",
            "A : b\r\n",
            "A\t: b\r\n",
            "A b: c\r\n",
            ": b\r\n",
            "A\r\n",
            "A: b\rC: d\r\n",
            "A: b\r\r\n",
            "A: b\0\r\n",
            "A\r: b\r\n",
            "A: b\n",
            "A: b\r\n\n",
            "Content-Length\u{a0}: 5\r\n",
        ] {
            assert_eq!(status(with(fields), fields), 400, "{fields:?}");
        }
        for line in [
            "GET  / HTTP/1.1",
            "GET /  HTTP/1.1",
            "GET / HTTP/1.1 ",
            "GET /\tHTTP/1.1",
            "GET /a b HTTP/1.1",
            "GET / HTTP/1.1\r",
            "GET /",
            "GET",
            "G(T / HTTP/1.1",
            "GET / http/1.1",
            "GET / HTTP/11",
            "GET /\r/ HTTP/1.1",
            "GET / HTTP/1.1\nX: y",
        ] {
            let result = head(&format!("{line}\r\nHost: h\r\n\r\n"));
            assert_eq!(status(result, line), 400, "{line:?}");
        }
    }

    #[test]
    fn versions_we_do_not_speak() {
        for version in ["HTTP/2.0", "HTTP/0.9", "HTTP/3.0", "HTTP/1.2"] {
            let result = head(&format!("GET / {version}\r\nHost: h\r\n\r\n"));
            assert_eq!(status(result, version), 505, "{version}");
        }
    }

    #[test]
    fn exactly_one_host() {
        assert_eq!(status(head("GET / HTTP/1.1\r\n\r\n"), "none"), 400);
        assert_eq!(status(with("Host: h\r\n"), "equal"), 400);
        assert!(head("GET / HTTP/1.0\r\n\r\n").is_ok());
        assert_eq!(status(head("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), "two"), 400);
        for (host, ok) in [
            ("", true),
            ("[::1]:80", true),
            ("a b", false),
            ("a/b", false),
            ("a@b", false),
            ("a, b", false),
        ] {
            let result = head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(result.is_ok(), ok, "{host:?}");
        }
    }

    #[test]
    fn persistence_by_version_and_tokens() {
        for (version, connection, keep_alive) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: foo, CLOSE ,bar\r\n", false),
            ("1.1", "Connection: foo\r\nConnection: Close\r\n", false),
            ("1.1", "Connection: keep-alive, close\r\n", false),
            ("1.1", "Connection: closed\r\n", true),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: x,keep-alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            let h = head(&format!("GET / HTTP/{version}\r\nHost: h\r\n{connection}\r\n")).unwrap();
            assert_eq!(h.keep_alive, keep_alive, "{version} {connection:?}");
        }
    }

    #[test]
    fn expectations() {
        assert!(with("Expect: 100-Continue\r\n").unwrap().expects_continue);
        for value in ["", "200-ok", "100-continue, x", "100-continue=1"] {
            assert_eq!(status(with(&format!("Expect: {value}\r\n")), value), 417);
        }
        let old = head("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").unwrap();
        assert!(!old.expects_continue);
    }

    #[test]
    fn repeated_fields_must_agree() {
        assert!(with("Content-Type: a/b\r\nContent-Type: a/b\r\n").is_ok());
        assert_eq!(status(with("Content-Type: a/b\r\nContent-Type: a/c\r\n"), "type"), 400);
        assert_eq!(status(with("Authorization: a\r\nAuthorization: b\r\n"), "auth"), 400);
        assert_eq!(status(with("Content-Encoding: zstd\r\nContent-Encoding: zstd\r\n"), "ce"), 400);
    }

    #[test]
    fn each_byte_is_searched_once() {
        let mut scan = HeadScan::default();
        let text = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        for cut in 1..text.len() {
            assert_eq!(scan.advance(&text[..cut], &Limits::default()), Ok(None));
            assert_eq!(scan.seen, cut);
        }
        assert_eq!(scan.advance(text, &Limits::default()), Ok(Some(text.len())));
    }
}

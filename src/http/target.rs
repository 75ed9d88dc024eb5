//! Request targets (RFC 9112 3.2): path segments and query pairs, decoded on demand.
//!
//! A path is split on `/` first and each segment is percent-decoded after, once, so `%2F` stays
//! inside a name. `+` is itself in a path and a space in a query. Dot segments are not resolved:
//! no route reaches a file system, and `..` is a legal name.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::{memchr, memchr2};
use smallvec::SmallVec;

use super::head::Span;
use super::{Method, Reject};
use crate::base::limits::PATH_SEGMENTS_MAX;

/// Decoded segments; eight hold every route of the broker.
pub type Segments<'a> = SmallVec<[Cow<'a, str>; 8]>;

/// Why a target cannot be read. All of them are the client's fault: 400.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadTarget {
    /// A `%` without two hexadecimal digits.
    Percent,
    /// Decoded bytes that are no UTF-8.
    Utf8,
    TooManySegments,
}

impl BadTarget {
    pub fn text(self) -> &'static str {
        match self {
            Self::Percent => "malformed percent-encoding in the request target",
            Self::Utf8 => "the request target is not UTF-8",
            Self::TooManySegments => "too many path segments",
        }
    }
}

impl std::fmt::Display for BadTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for BadTarget {}

/// Where path and query lie in a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TargetParts {
    path: Span,
    query: Option<Span>,
}

impl TargetParts {
    pub fn parse(raw: &[u8], method: Method) -> Result<Self, Reject> {
        if memchr(b'#', raw).is_some() {
            return Err(Reject::bad_request("a fragment in the request target"));
        }
        let path_start = match raw {
            [b'/', ..] => 0,
            b"*" if method == Method::Options => 0,
            _ => after_authority(raw)?,
        };
        let question = memchr(b'?', &raw[path_start..]).map(|at| path_start + at);
        let path = Span { start: path_start, end: question.unwrap_or(raw.len()) };
        let query = question.map(|at| Span { start: at + 1, end: raw.len() });
        Ok(Self { path, query })
    }
}

/// Absolute-form (3.2.2), which a server must accept: the place after scheme and authority. The
/// authority is dropped, since we serve whatever host we are called by.
fn after_authority(raw: &[u8]) -> Result<usize, Reject> {
    let bad = || Reject::bad_request("malformed request target");
    let scheme = [b"http://".as_slice(), b"https://"]
        .into_iter()
        .find(|scheme| raw.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme)))
        .ok_or_else(bad)?
        .len();
    let authority = memchr2(b'/', b'?', &raw[scheme..]).unwrap_or(raw.len() - scheme);
    if authority == 0 {
        return Err(bad());
    }
    Ok(scheme + authority)
}

/// The target of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    raw: Bytes,
    parts: TargetParts,
}

impl Target {
    pub(super) fn new(raw: Bytes, parts: TargetParts) -> Self {
        Self { raw, parts }
    }

    /// As sent, without authority and query; `/` where an absolute target has no path.
    pub fn path(&self) -> &[u8] {
        match self.parts.path.in_bytes(&self.raw) {
            b"" => b"/",
            path => path,
        }
    }

    /// As sent, without the `?`; empty where there is none.
    pub fn raw_query(&self) -> &[u8] {
        self.parts.query.map_or(b"", |query| query.in_bytes(&self.raw))
    }

    /// `OPTIONS *`: the server as a whole.
    pub fn is_asterisk(&self) -> bool {
        self.path() == b"*"
    }

    /// `/a/b%2Fc` gives `a` and `b/c`; the root gives none; a slash at the end gives an empty
    /// last segment, two in a row an empty one between; `*` gives none.
    pub fn segments(&self) -> Result<Segments<'_>, BadTarget> {
        let mut segments = Segments::new();
        let Some(path) = self.path().strip_prefix(b"/") else {
            return Ok(segments);
        };
        if path.is_empty() {
            return Ok(segments);
        }
        for segment in path.split(|b| *b == b'/') {
            if segments.len() == PATH_SEGMENTS_MAX {
                return Err(BadTarget::TooManySegments);
            }
            segments.push(decode(segment, Plus::Literal)?);
        }
        Ok(segments)
    }

    /// The pairs of the query in order, empty ones left out; a key without `=` has the value "".
    pub fn query(&self) -> Query<'_> {
        Query { rest: self.raw_query() }
    }
}

/// Iterator over the pairs of a query.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Query<'a> {
    type Item = Result<(Cow<'a, str>, Cow<'a, str>), BadTarget>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let (pair, rest) = cut(self.rest, b'&');
            self.rest = rest;
            if pair.is_empty() {
                continue;
            }
            let (key, value) = cut(pair, b'=');
            let key = match decode(key, Plus::Space) {
                Ok(key) => key,
                Err(bad) => return Some(Err(bad)),
            };
            return Some(decode(value, Plus::Space).map(|value| (key, value)));
        }
        None
    }
}

/// What is before the first `at`, and what is after it.
fn cut(bytes: &[u8], at: u8) -> (&[u8], &[u8]) {
    match memchr(at, bytes) {
        Some(place) => (&bytes[..place], &bytes[place + 1..]),
        None => (bytes, b""),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Literal,
    Space,
}

/// Percent-decodes once. Borrows where nothing is encoded.
fn decode(raw: &[u8], plus: Plus) -> Result<Cow<'_, str>, BadTarget> {
    let encoded =
        memchr(b'%', raw).is_some() || (plus == Plus::Space && memchr(b'+', raw).is_some());
    if !encoded {
        return match std::str::from_utf8(raw) {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(_) => Err(BadTarget::Utf8),
        };
    }
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let [high, low, tail @ ..] = tail else {
                    return Err(BadTarget::Percent);
                };
                bytes.push(hex(*high)? << 4 | hex(*low)?);
                rest = tail;
            }
            b'+' if plus == Plus::Space => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Cow::Owned(text)),
        Err(_) => Err(BadTarget::Utf8),
    }
}

fn hex(digit: u8) -> Result<u8, BadTarget> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(BadTarget::Percent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(raw: &'static str) -> Result<Target, Reject> {
        let parts = TargetParts::parse(raw.as_bytes(), Method::Get)?;
        Ok(Target::new(Bytes::from_static(raw.as_bytes()), parts))
    }

    fn segments(raw: &'static str) -> Result<Vec<String>, BadTarget> {
        let target = target(raw).unwrap();
        target.segments().map(|s| s.iter().map(ToString::to_string).collect())
    }

    fn pairs(raw: &'static str) -> Result<Vec<(String, String)>, BadTarget> {
        let target = target(raw).unwrap();
        target.query().map(|p| p.map(|(k, v)| (k.into_owned(), v.into_owned()))).collect()
    }

    #[test]
    fn segments_are_split_before_they_are_decoded() {
        for (raw, expected) in [
            ("/", vec![]),
            ("/a", vec!["a"]),
            ("/a/", vec!["a", ""]),
            ("/a//b", vec!["a", "", "b"]),
            ("/a%2Fb/c", vec!["a/b", "c"]),
            ("/a%2fb%252F", vec!["a/b%2F"]),
            ("/a+b", vec!["a+b"]),
            ("/a%20b:c%3A", vec!["a b:c:"]),
            ("/%F0%9F%98%80", vec!["\u{1F600}"]),
            ("/../.", vec!["..", "."]),
            ("/a?b/c", vec!["a"]),
            ("/%00", vec!["\0"]),
        ] {
            assert_eq!(segments(raw).unwrap(), expected, "{raw}");
        }
    }

    #[test]
    fn bad_encodings_are_told() {
        for (raw, bad) in [
            ("/%", BadTarget::Percent),
            ("/%2", BadTarget::Percent),
            ("/%2/a", BadTarget::Percent),
            ("/%zz", BadTarget::Percent),
            ("/%+1", BadTarget::Percent),
            ("/%FF", BadTarget::Utf8),
            ("/a%C3/%A4", BadTarget::Utf8),
            ("/%ED%A0%80", BadTarget::Utf8),
        ] {
            assert_eq!(segments(raw), Err(bad), "{raw}");
        }
        let deep: &'static str = Box::leak("/a".repeat(65).into_boxed_str());
        assert_eq!(segments(deep), Err(BadTarget::TooManySegments));
        assert_eq!(segments(&deep[2..]).unwrap().len(), 64);
    }

    #[test]
    fn query_pairs() {
        let own = |list: &[(&str, &str)]| {
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>()
        };
        for (raw, expected) in [
            ("/", own(&[])),
            ("/?", own(&[])),
            ("/?a=1&b=2", own(&[("a", "1"), ("b", "2")])),
            ("/?&&a&=b&", own(&[("a", ""), ("", "b")])),
            ("/?a=b=c;d", own(&[("a", "b=c;d")])),
            ("/?a+b=c+d%2B", own(&[("a b", "c d+")])),
            ("/?a%26b=%3D", own(&[("a&b", "=")])),
            ("/?a=1&a=2", own(&[("a", "1"), ("a", "2")])),
            ("/?a=/b?c", own(&[("a", "/b?c")])),
        ] {
            assert_eq!(pairs(raw).unwrap(), expected, "{raw}");
        }
        assert_eq!(pairs("/?a=%g0"), Err(BadTarget::Percent));
        assert_eq!(pairs("/?%ff=a"), Err(BadTarget::Utf8));
    }

    #[test]
    fn plain_parts_are_borrowed() {
        let target = target("/api/v1/push?a=b").unwrap();
        assert!(target.segments().unwrap().iter().all(|s| matches!(s, Cow::Borrowed(_))));
        let pair = target.query().next().unwrap().unwrap();
        assert!(matches!(pair, (Cow::Borrowed("a"), Cow::Borrowed("b"))));
        assert!(!target.segments().unwrap().spilled());
    }

    #[test]
    fn forms_of_a_target() {
        for (raw, path, query) in [
            ("/a?b", "/a", "b"),
            ("http://h:1/a?b", "/a", "b"),
            ("HTTPS://h/a", "/a", ""),
            ("http://h", "/", ""),
            ("http://h?b", "/", "b"),
            ("//h/a", "//h/a", ""),
        ] {
            let target = target(raw).unwrap();
            assert_eq!(target.path(), path.as_bytes(), "{raw}");
            assert_eq!(target.raw_query(), query.as_bytes(), "{raw}");
        }
        for raw in ["*", "a", "h:80", "ftp://h/", "http:///a", "http://", "http:/a", "/a#b", "?a"] {
            assert_eq!(target(raw).expect_err(raw).status, 400, "{raw}");
        }
        let parts = TargetParts::parse(b"*", Method::Options).unwrap();
        let star = Target::new(Bytes::from_static(b"*"), parts);
        assert!(star.is_asterisk() && star.segments().unwrap().is_empty());
    }
}

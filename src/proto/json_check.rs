//! Whether bytes are one JSON document (RFC 8259), and nothing else about them.
//!
//! Every payload that a client frames itself passes here, so this is one of the hot loops: one
//! pass, no recursion (depth costs a bit each, not stack), no allocation up to a depth of
//! [`INLINE_DEPTH`], and strings, which most payload bytes are, sixteen bytes a step. Bytes beyond
//! ASCII can only stand in strings and do not look like anything else there, so UTF-8 is checked
//! afterwards, and only where there were any.

use smallvec::SmallVec;
use wide::{CmpEq, CmpLt, i8x16};

/// Nesting that is kept track of without an allocation.
const INLINE_DEPTH: usize = 256;

/// True exactly for one document, white space around it included.
pub fn is_document(bytes: &[u8]) -> bool {
    let mut high = 0;
    document(bytes, &mut high).is_some() && (high == 0 || std::str::from_utf8(bytes).is_ok())
}

/// The containers that stand open around the innermost: a bit for each, set for an object.
#[derive(Default)]
struct Open {
    words: SmallVec<[u64; INLINE_DEPTH / 64]>,
    depth: usize,
}

impl Open {
    /// Puts what was innermost until now below a new one.
    fn push(&mut self, object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.words.len() {
            self.words.push(0);
        }
        self.words[word] = self.words[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
    }

    /// The innermost has ended: what it stood in, if in anything.
    fn pop(&mut self) -> Option<bool> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.words[self.depth / 64] >> (self.depth % 64) & 1 == 1)
    }
}

// The functions below take a place and return the one behind what they have read: passed by
// value it stays in a register, where a field of a struct would be written back at each byte.

/// `high` gets a bit set where a string held one beyond ASCII.
fn document(bytes: &[u8], high: &mut u64) -> Option<()> {
    let mut open = Open::default();
    // Whether the innermost container is an object; `None` outside of all.
    let mut object: Option<bool> = None;
    let mut at = 0;
    loop {
        // A value begins here.
        at = space(bytes, at);
        let first = *bytes.get(at)?;
        at += 1;
        match first {
            b'{' => {
                at = space(bytes, at);
                if bytes.get(at) == Some(&b'}') {
                    at += 1;
                } else {
                    object.replace(true).into_iter().for_each(|outer| open.push(outer));
                    at = key(bytes, at, high)?;
                    continue;
                }
            }
            b'[' => {
                at = space(bytes, at);
                if bytes.get(at) == Some(&b']') {
                    at += 1;
                } else {
                    object.replace(false).into_iter().for_each(|outer| open.push(outer));
                    continue;
                }
            }
            b'"' => at = string(bytes, at, high)?,
            b't' => at = word(bytes, at, b"rue")?,
            b'f' => at = word(bytes, at, b"alse")?,
            b'n' => at = word(bytes, at, b"ull")?,
            b'-' | b'0'..=b'9' => at = number(bytes, at, first)?,
            _ => return None,
        }
        // One has ended: what may follow depends on what it stood in.
        loop {
            at = space(bytes, at);
            let Some(in_object) = object else {
                return (at == bytes.len()).then_some(());
            };
            let next = *bytes.get(at)?;
            at += 1;
            match next {
                b',' if in_object => {
                    at = key(bytes, at, high)?;
                    break;
                }
                b',' => break,
                b'}' if in_object => object = open.pop(),
                b']' if !in_object => object = open.pop(),
                _ => return None,
            }
        }
    }
}

#[inline]
fn space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// A name and its colon.
#[inline]
fn key(bytes: &[u8], at: usize, high: &mut u64) -> Option<usize> {
    let at = space(bytes, at);
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let at = space(bytes, string(bytes, at + 1, high)?);
    (*bytes.get(at)? == b':').then_some(at + 1)
}

fn word(bytes: &[u8], at: usize, rest: &[u8]) -> Option<usize> {
    let end = at + rest.len();
    (bytes.get(at..end)? == rest).then_some(end)
}

/// The rest of a string, its closing quote included.
#[inline]
fn string(bytes: &[u8], mut at: usize, high: &mut u64) -> Option<usize> {
    let mut seen = 0;
    loop {
        // The place of the next special byte, as far as whole blocks reach.
        for block in bytes.get(at..)?.as_chunks::<BLOCK>().0 {
            let found = block_of(block);
            if found.special == 0 {
                seen |= found.high;
                at += BLOCK;
                continue;
            }
            // Bytes before the first special one; what lies behind it is seen again.
            seen |= found.high & (found.special ^ (found.special - 1));
            at += found.special.trailing_zeros() as usize;
            break;
        }
        let byte = *bytes.get(at)?;
        at += 1;
        match byte {
            b'"' => {
                *high |= seen;
                return Some(at);
            }
            b'\\' => at = escape(bytes, at)?,
            0..0x20 => return None,
            _ => seen |= u64::from(byte >> 7),
        }
    }
}

/// What some bytes are, a bit for each, the lowest for the first.
struct Found {
    /// A quote, a backslash or a control character.
    special: u64,
    /// Beyond ASCII. Exact up to the first special byte.
    high: u64,
}

/// Bytes of a string that are looked at in one step.
const BLOCK: usize = 16;

#[inline]
fn block_of(block: &[u8; BLOCK]) -> Found {
    let all = i8x16::new(block.map(u8::cast_signed));
    let equal = |byte: u8| all.cmp_eq(i8x16::splat(byte.cast_signed()));
    let bits = |lanes: i8x16| u64::from(lanes.move_mask().cast_unsigned());
    let high = bits(all);
    // Signed, so that what is beyond ASCII is below as well.
    let below = bits(all.cmp_lt(i8x16::splat(0x20))) & !high;
    Found { special: bits(equal(b'"') | equal(b'\\')) | below, high }
}

fn escape(bytes: &[u8], at: usize) -> Option<usize> {
    match *bytes.get(at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => {
            let digits = bytes.get(at + 1..at + 5)?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(at + 5)
        }
        _ => None,
    }
}

fn number(bytes: &[u8], mut at: usize, mut first: u8) -> Option<usize> {
    if first == b'-' {
        first = *bytes.get(at)?;
        at += 1;
    }
    match first {
        b'0' => {}
        b'1'..=b'9' => at = digits(bytes, at),
        _ => return None,
    }
    if bytes.get(at) == Some(&b'.') {
        at = some_digits(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = bytes.get(at) {
            at += 1;
        }
        at = some_digits(bytes, at)?;
    }
    Some(at)
}

#[inline]
fn digits(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// One digit or more.
fn some_digits(bytes: &[u8], at: usize) -> Option<usize> {
    let end = digits(bytes, at);
    (end > at).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::prng::Prng;

    /// A slower reading of the same grammar by others.
    fn reference(bytes: &[u8]) -> bool {
        std::str::from_utf8(bytes).is_ok()
            && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
    }

    #[test]
    fn documents_and_others() {
        for good in [
            "0",
            "-0",
            "10.25e-3",
            "1E+9",
            "null",
            " true ",
            "\t\"\"\r\n",
            "[]",
            "[ ]",
            "{ }",
            "[[],{},[1,2 , 3]]",
            r#"{"a":{"b":[null,"\u00e9\ud800"]},"a":1}"#,
            "\"é🦀\"",
            "\"12345678\\\"90\"",
            "{\"long key without an escape\":\"and a longer value still\"}",
        ] {
            assert!(is_document(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            " ",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "tru",
            "nulls",
            "1 2",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "[1}",
            "{\"a\":1]",
            "]",
            "[",
            "{",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u123",
            "\"a\nb\"",
            "'a'",
            "NaN",
            "\u{feff}1",
            "[1]]",
        ] {
            assert!(!is_document(bad.as_bytes()), "{bad}");
        }
        assert!(!is_document(b"\"\xff\"") && !is_document(b"\"1234567\xc3\""));
        assert!(!is_document(b"\xc3\xa9") && is_document(b"\"\x7f\""));
    }

    #[test]
    fn depth_costs_no_stack() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let depth = 100_000;
            let good = open.repeat(depth) + "1" + &close.repeat(depth);
            assert!(is_document(good.as_bytes()));
            assert!(!is_document(&good.as_bytes()[..good.len() - 1]));
        }
        assert!(!is_document(("[".repeat(65) + "{\"a\":1]" + &"]".repeat(65)).as_bytes()));
    }

    #[test]
    fn every_mutation_is_judged_as_by_the_reference() {
        let seeds = [
            r#"{"order":12,"lines":[{"sku":"A-1","n":-3.5e2},{"sku":"B \" \\ \n","ok":true}]}"#,
            r#"[null, "\u12Ab", {"": [false, [], {}]}, 0.0, "ééééééééé", 123456789]"#,
            r#""a plain string, long enough for several words of eight bytes""#,
        ];
        let alphabet = b"{}[]\",:\\ 0123456789.eE+-truefalsn/u\n\x00\x7f\x80\xc3\xa9\xff";
        let mut prng = Prng::new(11);
        for round in 0..40_000 {
            let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
            for _ in 0..=prng.below(3) {
                let at = prng.below(bytes.len() as u64 - 1) as usize;
                let byte = alphabet[prng.below(alphabet.len() as u64) as usize];
                match prng.below(4) {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => _ = bytes.remove(at),
                    _ => bytes.truncate(at.max(2)),
                }
            }
            assert_eq!(is_document(&bytes), reference(&bytes), "{}", bytes.escape_ascii());
        }
    }
}

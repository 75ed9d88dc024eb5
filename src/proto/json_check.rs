//! Whether bytes are one JSON document (RFC 8259), and nothing else about them.
//!
//! Every payload that a client frames itself passes here, so this is one of the hot loops: one
//! pass, no recursion (depth costs a bit each, not stack), no allocation up to a depth of
//! [`INLINE_DEPTH`]. Strings, which most payload bytes are, are not read: where they end is known
//! from a bit for each of the next sixty-four bytes, made from sixteen at a time ([`Marks`]), so
//! that the processor need not wait for one string's bytes to know where to look for the next's.
//! Bytes beyond ASCII can only stand in strings and do not look like anything else there, so UTF-8
//! is checked afterwards, and only where there were any.

use smallvec::SmallVec;
use wide::{CmpEq, CmpLt, i8x16};

/// Nesting that is kept track of without an allocation.
const INLINE_DEPTH: usize = 256;

/// True exactly for one document, white space around it included.
pub fn is_document(bytes: &[u8]) -> bool {
    let mut marks = Marks::of(bytes);
    let end = value(bytes, 0, &mut marks).map(|end| space(bytes, end));
    end == Some(bytes.len()) && (!marks.beyond_ascii() || std::str::from_utf8(bytes).is_ok())
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

/// A value that begins at `at`, white space before it included.
pub(super) fn value(bytes: &[u8], mut at: usize, marks: &mut Marks<'_>) -> Option<usize> {
    let mut open = Open::default();
    // Whether the innermost container is an object; `None` outside of all.
    let mut object: Option<bool> = None;
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
                    at = key(bytes, at, marks)?;
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
            b'"' => at = string(bytes, at, marks)?,
            b't' => at = word(bytes, at, b"rue")?,
            b'f' => at = word(bytes, at, b"alse")?,
            b'n' => at = word(bytes, at, b"ull")?,
            b'-' | b'0'..=b'9' => at = number(bytes, at, first)?,
            _ => return None,
        }
        // One has ended: what may follow depends on what it stood in.
        loop {
            let Some(in_object) = object else { return Some(at) };
            at = space(bytes, at);
            let next = *bytes.get(at)?;
            at += 1;
            match next {
                b',' if in_object => {
                    at = key(bytes, at, marks)?;
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

#[inline(always)]
pub(super) fn space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// A name and its colon.
#[inline(always)]
fn key(bytes: &[u8], at: usize, marks: &mut Marks<'_>) -> Option<usize> {
    let at = space(bytes, at);
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let at = space(bytes, string(bytes, at + 1, marks)?);
    (*bytes.get(at)? == b':').then_some(at + 1)
}

pub(super) fn word(bytes: &[u8], at: usize, rest: &[u8]) -> Option<usize> {
    let end = at + rest.len();
    (bytes.get(at..end)? == rest).then_some(end)
}

/// The rest of a string, its closing quote included.
#[inline(always)]
fn string(bytes: &[u8], mut at: usize, marks: &mut Marks<'_>) -> Option<usize> {
    loop {
        at = marks.next(at)?;
        match *bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at = escape(bytes, at + 1)?,
            // A control character.
            _ => return None,
        }
    }
}

/// Bytes that are marked together.
const BLOCK: usize = 64;
/// Bytes of a vector.
const LANES: usize = 16;

/// Where in some bytes those stand that mean something inside a string: quotes, backslashes and
/// control characters. One block is known at a time, and the next looked at when it is asked for.
pub(super) struct Marks<'a> {
    bytes: &'a [u8],
    /// Which block is known.
    block: usize,
    /// Of its bytes a bit each, the lowest for the first.
    special: u64,
    /// The highest bit of each is set where a byte of a known block had it.
    high: i8x16,
}

impl<'a> Marks<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let mut marks = Self { bytes, block: 0, special: 0, high: i8x16::splat(0) };
        marks.look(0);
        marks
    }

    /// The first such byte at `at` or behind it.
    #[inline(always)]
    pub(super) fn next(&mut self, at: usize) -> Option<usize> {
        if at / BLOCK != self.block {
            self.look(at / BLOCK)?;
        }
        let mut special = self.special & u64::MAX << (at % BLOCK);
        while special == 0 {
            self.look(self.block + 1)?;
            special = self.special;
        }
        Some(self.block * BLOCK + special.trailing_zeros() as usize)
    }

    /// Gets to know a block, if there is one.
    #[inline(always)]
    fn look(&mut self, block: usize) -> Option<()> {
        let rest = self.bytes.get(block * BLOCK..).filter(|rest| !rest.is_empty())?;
        self.block = block;
        self.special = match rest.first_chunk() {
            Some(whole) => self.mark(whole),
            // The end of the bytes: read with what stands before it, or else with nothing behind.
            None => match self.bytes.last_chunk() {
                Some(last) => self.mark(last) >> (BLOCK - rest.len()),
                None => {
                    let mut padded = [b' '; BLOCK];
                    padded[..rest.len()].copy_from_slice(rest);
                    self.mark(&padded)
                }
            },
        };
        Some(())
    }

    #[inline(always)]
    fn mark(&mut self, block: &[u8; BLOCK]) -> u64 {
        // From the last to the first, one after the other: for a sum of four shifted masks the
        // compiler takes each mask apart into its bits.
        let parts = block.as_chunks::<LANES>().0.iter().rev();
        parts.fold(0, |special, lanes| special << LANES | u64::from(self.mark_lanes(lanes)))
    }

    #[inline(always)]
    fn mark_lanes(&mut self, lanes: &[u8; LANES]) -> u32 {
        let all = i8x16::new(lanes.map(u8::cast_signed));
        let equal = |byte: u8| all.cmp_eq(i8x16::splat(byte.cast_signed()));
        // Without the bytes beyond ASCII, which are less than nothing here.
        let below = all.cmp_lt(i8x16::splat(0x20)) & !all;
        self.high |= all;
        (equal(b'"') | equal(b'\\') | below).move_mask().cast_unsigned()
    }

    /// A known block held a byte beyond ASCII. All of them are known to who has read all strings;
    /// elsewhere no such byte can stand.
    fn beyond_ascii(&self) -> bool {
        self.high.move_mask() != 0
    }
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
pub(super) mod tests {
    use super::*;
    use crate::base::prng::Prng;

    /// Bodies that differ from one of `seeds` in a few bytes.
    pub fn mutations(seeds: &[&str], count: usize) -> impl Iterator<Item = Vec<u8>> {
        const BYTES: &[u8] = b"{}[]\",:\\ 0123456789.eE+-truefalsn/u\n\x00\x7f\x80\xc3\xa9\xff";
        let mut prng = Prng::new(11);
        (0..count).map(move |round| {
            let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
            for _ in 0..=prng.below(3) {
                if bytes.len() < 2 {
                    break;
                }
                let at = prng.below(bytes.len() as u64 - 1) as usize;
                let byte = BYTES[prng.below(BYTES.len() as u64) as usize];
                match prng.below(5) {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => _ = bytes.remove(at),
                    3 => bytes.swap(at, at + 1),
                    _ if prng.chance(10) => bytes.truncate(at.max(2)),
                    _ => {}
                }
            }
            bytes
        })
    }

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
    fn each_byte_of_a_string_counts_wherever_it_stands() {
        for len in 0..200 {
            let plain = format!("[\"{}\"]", "a".repeat(len)).into_bytes();
            assert!(is_document(&plain), "{len}");
            for at in 2..2 + len {
                for byte in [b'"', b'\\', 0x1f, 0x00, 0x80, b' ', 0x7f] {
                    let mut bytes = plain.clone();
                    bytes[at] = byte;
                    assert_eq!(
                        is_document(&bytes),
                        reference(&bytes),
                        "{byte:#x} at {at} of {len}"
                    );
                }
            }
        }
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
            r#"{"a string that ends in the second block of sixty-four bytes":"and one that ends in the third of them, behind an \"escape\"", "é":[1.5]}"#,
        ];
        for bytes in mutations(&seeds, 60_000) {
            assert_eq!(is_document(&bytes), reference(&bytes), "{}", bytes.escape_ascii());
        }
    }
}

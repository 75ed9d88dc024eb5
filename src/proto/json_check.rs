//! Whether bytes are one JSON document (RFC 8259), and nothing else about them.
//!
//! Every payload that a client frames itself passes here, so this is one of the hot loops: one
//! pass, no recursion (depth costs a bit each, not stack), no allocation up to a depth of
//! [`INLINE_DEPTH`], and strings, which most payload bytes are, eight bytes a step. Bytes beyond
//! ASCII can only stand in strings and do not look like anything else there, so UTF-8 is checked
//! afterwards, and only where there were any.

use smallvec::SmallVec;

/// Nesting that is kept track of without an allocation.
const INLINE_DEPTH: usize = 256;

/// True exactly for one document, white space around it included.
pub fn is_document(bytes: &[u8]) -> bool {
    let mut check = Check { bytes, at: 0, high: 0 };
    check.document().is_some() && (check.high == 0 || std::str::from_utf8(bytes).is_ok())
}

struct Check<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Has the high bit of a byte set where a string held one beyond ASCII.
    high: u64,
}

/// What containers stand open: a bit for each, set for an object.
#[derive(Default)]
struct Open {
    words: SmallVec<[u64; INLINE_DEPTH / 64]>,
    depth: usize,
}

impl Open {
    fn push(&mut self, object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.words.len() {
            self.words.push(0);
        }
        self.words[word] = self.words[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
    }

    /// Whether the innermost is an object; `None` outside of all.
    fn innermost(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.words[last / 64] >> (last % 64) & 1 == 1)
    }
}

impl Check<'_> {
    fn document(&mut self) -> Option<()> {
        let mut open = Open::default();
        loop {
            // A value begins here.
            match self.significant()? {
                b'{' => {
                    if self.significant_is(b'}') {
                        self.at += 1;
                    } else {
                        open.push(true);
                        self.key()?;
                        continue;
                    }
                }
                b'[' => {
                    if self.significant_is(b']') {
                        self.at += 1;
                    } else {
                        open.push(false);
                        continue;
                    }
                }
                b'"' => self.string()?,
                b't' => self.word(b"rue")?,
                b'f' => self.word(b"alse")?,
                b'n' => self.word(b"ull")?,
                first @ (b'-' | b'0'..=b'9') => self.number(first)?,
                _ => return None,
            }
            // One has ended: what may follow depends on what it stood in.
            loop {
                let Some(object) = open.innermost() else {
                    self.skip_space();
                    return (self.at == self.bytes.len()).then_some(());
                };
                match self.significant()? {
                    b',' if object => {
                        self.key()?;
                        break;
                    }
                    b',' => break,
                    b'}' if object => open.depth -= 1,
                    b']' if !object => open.depth -= 1,
                    _ => return None,
                }
            }
        }
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// Takes the next byte that is not white space.
    #[inline]
    fn significant(&mut self) -> Option<u8> {
        self.skip_space();
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn significant_is(&mut self, wanted: u8) -> bool {
        self.skip_space();
        self.bytes.get(self.at) == Some(&wanted)
    }

    /// A name and its colon.
    #[inline]
    fn key(&mut self) -> Option<()> {
        if self.significant()? != b'"' {
            return None;
        }
        self.string()?;
        (self.significant()? == b':').then_some(())
    }

    fn word(&mut self, rest: &[u8]) -> Option<()> {
        let end = self.at + rest.len();
        if self.bytes.get(self.at..end)? != rest {
            return None;
        }
        self.at = end;
        Some(())
    }

    /// The rest of a string, its closing quote included.
    #[inline]
    fn string(&mut self) -> Option<()> {
        loop {
            while let Some(word) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<8>) {
                let word = u64::from_le_bytes(*word);
                let special = special_bytes(word);
                if special == 0 {
                    self.high |= word & HIGH_BITS;
                    self.at += 8;
                    continue;
                }
                // Bytes before the first special one; what lies behind it is seen again.
                let skipped = special.trailing_zeros() / 8;
                self.high |= word & HIGH_BITS & ((1 << (8 * skipped)) - 1);
                self.at += skipped as usize;
                break;
            }
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                0..0x20 => return None,
                _ => self.high |= u64::from(byte) & HIGH_BITS,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let kind = *self.bytes.get(self.at)?;
        self.at += 1;
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.bytes.get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn number(&mut self, first: u8) -> Option<()> {
        let first = if first == b'-' {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            byte
        } else {
            first
        };
        match first {
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn skip_digits(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    /// One digit or more.
    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        self.skip_digits();
        (self.at > from).then_some(())
    }
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// The high bit of each byte that is a quote, a backslash or a control character. Exact up to
/// the lowest such byte: a borrow can only reach the bytes above it.
#[inline]
fn special_bytes(word: u64) -> u64 {
    let equal = |byte: u8| {
        let differing = word ^ (LOW_BITS * u64::from(byte));
        differing.wrapping_sub(LOW_BITS) & !differing
    };
    let control = word.wrapping_sub(LOW_BITS * 0x20) & !word;
    (equal(b'"') | equal(b'\\') | control) & HIGH_BITS
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

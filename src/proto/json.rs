//! Reading and writing JSON by hand where a serializer would cost or decide too much.
//!
//! Written text is escaped in one pass with a fast path for the common case (nothing to escape),
//! numbers go out without a formatter, and a payload is never touched: the bytes that came in are
//! the bytes that go out.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::base::{time, uuid};
use crate::model::error::{ErrorCode, Refusal};

/// A string that borrows from the body unless it holds an escape. `Option<Text>` borrows too,
/// which `Option<Cow<str>>` does not: serde's borrowing stops at the `Option`.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

/// A value that must be a JSON object. A derived struct alone also reads an array, field by
/// field, which no client of this wire means.
#[derive(PartialEq, Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnlyMaps<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyMaps<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            #[inline]
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(OnlyMaps(PhantomData)).map(Self)
    }
}

/// A list that is mostly of length one: that one allocates nothing, and many not often.
pub type Items<T> = SmallVec<[T; 1]>;

/// A JSON array of objects.
pub struct Objects<T>(pub Items<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Objects<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnlyLists<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyLists<T> {
            type Value = Items<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items<T>, A::Error> {
                const STEP: usize = 8;
                let mut items = Items::new();
                while let Some(Object(item)) = list.next_element()? {
                    if items.len() == items.capacity() {
                        items.reserve_exact(items.len() * (STEP - 1));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }
        deserializer.deserialize_seq(OnlyLists(PhantomData)).map(Self)
    }
}

/// Reads a body that must be one object.
pub fn read_object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    // Bytes that are no text fail only where they are read, which the reader of bytes knows. All
    // others are looked at once, and not string by string.
    let read = match std::str::from_utf8(body) {
        Ok(text) => serde_json::from_str::<Object<T>>(text),
        Err(_) => serde_json::from_slice(body),
    };
    match read {
        Ok(Object(value)) => Ok(value),
        Err(error) => Err(bad_body(&error)),
    }
}

pub fn bad_body(error: &serde_json::Error) -> Refusal {
    Refusal::new(ErrorCode::BadBody, format!("the body cannot be read: {error}"))
}

/// The JSON text of a value; `None` for a null, as where there is none.
pub fn raw<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de str>, D::Error> {
    Ok(<Option<&RawValue>>::deserialize(from)?.map(RawValue::get))
}

/// The JSON text of a value, of a null too: only a key that is absent has none.
pub fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de str>, D::Error> {
    <&RawValue>::deserialize(from).map(|value| Some(value.get()))
}

/// The text of a JSON value, for keys where any answer beats a refusal: a string is
/// unescaped with lone surrogates replaced by U+FFFD, any other value is its own JSON text.
pub fn lenient_text(json: &str) -> Cow<'_, str> {
    let Some(inner) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Cow::Borrowed(json);
    };
    let Some(first) = inner.find('\\') else {
        return Cow::Borrowed(inner);
    };
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    let mut next = Some(first);
    while let Some(at) = next {
        out.push_str(&rest[..at]);
        rest = unescape_one(&rest[at..], &mut out);
        next = rest.find('\\');
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Consumes the escape that `text` begins with. The grammar was checked when the value was read.
fn unescape_one<'a>(text: &'a str, out: &mut String) -> &'a str {
    let mut chars = text.chars();
    chars.next();
    match chars.next() {
        Some('u') => {
            let (unit, rest) = hex4(chars.as_str());
            let low = rest.strip_prefix("\\u").map(hex4);
            let (c, rest) = match (unit, low) {
                (0xD800..=0xDBFF, Some((low @ 0xDC00..=0xDFFF, after))) => {
                    (0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00), after)
                }
                _ => (unit, rest),
            };
            out.push(char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER));
            return rest;
        }
        Some('b') => out.push('\u{8}'),
        Some('f') => out.push('\u{c}'),
        Some('n') => out.push('\n'),
        Some('r') => out.push('\r'),
        Some('t') => out.push('\t'),
        Some(c) => out.push(c),
        None => {}
    }
    chars.as_str()
}

fn hex4(text: &str) -> (u32, &str) {
    let (digits, rest) = text.split_at_checked(4).unwrap_or((text, ""));
    (u32::from_str_radix(digits, 16).unwrap_or(0xFFFD), rest)
}

/// An array, each item written by `write`.
pub fn write_array<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Appends `text` as a JSON string.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    write_escaped(out, text.as_bytes());
    out.push(b'"');
}

/// Appends UTF-8 text as the inside of a JSON string.
#[inline]
pub fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    // No early exit: the loop over all bytes vectorizes, one that may stop does not.
    let clean =
        text.iter().fold(true, |clean, &b| clean & (b >= 0x20) & (b != b'"') & (b != b'\\'));
    if clean {
        out.extend_from_slice(text);
    } else {
        escape_slow(out, text);
    }
}

#[cold]
fn escape_slow(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &b in text {
        let short = match b {
            b'"' | b'\\' => b,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0C => b'f',
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(b >> 4)]);
                out.push(HEX[usize::from(b & 15)]);
                continue;
            }
            _ => {
                out.push(b);
                continue;
            }
        };
        out.push(b'\\');
        out.push(short);
    }
}

#[inline]
pub fn write_integer(out: &mut Vec<u8>, n: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Appends a UUID as a JSON string.
#[inline]
pub fn write_uuid(out: &mut Vec<u8>, id: &[u8; 16]) {
    out.push(b'"');
    out.extend_from_slice(&uuid::to_text(id));
    out.push(b'"');
}

/// Appends an instant as a JSON string with three fraction digits.
pub fn write_millis(out: &mut Vec<u8>, wall_us: i64) {
    out.push(b'"');
    time::write_millis(out, wall_us);
    out.push(b'"');
}

/// Appends an instant as a JSON string with six fraction digits.
pub fn write_micros(out: &mut Vec<u8>, wall_us: i64) {
    out.push(b'"');
    time::write_millis(out, wall_us);
    out.pop();
    let below_milli = wall_us.rem_euclid(1_000) as u16;
    out.extend(
        [below_milli / 100, below_milli / 10 % 10, below_milli % 10].map(|d| b'0' + d as u8),
    );
    out.extend_from_slice(b"Z\"");
}

/// Appends an instant as a JSON string in whole seconds.
pub fn write_seconds(out: &mut Vec<u8>, wall_us: i64) {
    out.push(b'"');
    time::write_millis(out, wall_us);
    out.truncate(out.len() - ".000Z".len());
    out.extend_from_slice(b"Z\"");
}

/// Appends a number with up to two digits behind the point; what is no number as 0.
pub fn write_decimal(out: &mut Vec<u8>, n: f64) {
    let hundredths = (n * 100.0).round() as i64;
    if hundredths < 0 {
        out.push(b'-');
    }
    let hundredths = hundredths.unsigned_abs();
    write_integer(out, hundredths / 100);
    let rest = hundredths % 100;
    if rest > 0 {
        out.extend_from_slice(&[b'.', b'0' + (rest / 10) as u8]);
        if !rest.is_multiple_of(10) {
            out.push(b'0' + (rest % 10) as u8);
        }
    }
}

/// Writes one object, key by key in the order of the calls. For answers that are not hot.
pub struct Fields<'o> {
    out: &'o mut Vec<u8>,
    any: bool,
}

impl<'o> Fields<'o> {
    pub fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, any: false }
    }

    /// Writes the key; the caller writes its value into what is returned.
    pub fn key(&mut self, key: &'static str) -> &mut Vec<u8> {
        if std::mem::replace(&mut self.any, true) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    pub fn text(&mut self, key: &'static str, text: &str) -> &mut Self {
        write_string(self.key(key), text);
        self
    }

    pub fn integer(&mut self, key: &'static str, n: impl itoa::Integer) -> &mut Self {
        write_integer(self.key(key), n);
        self
    }

    pub fn decimal(&mut self, key: &'static str, n: f64) -> &mut Self {
        write_decimal(self.key(key), n);
        self
    }

    pub fn integer_or_null(&mut self, key: &'static str, n: Option<u64>) -> &mut Self {
        match n {
            Some(n) => self.integer(key, n),
            None => self.null(key),
        }
    }

    /// An array of strings.
    pub fn texts<T: AsRef<str>>(
        &mut self,
        key: &'static str,
        values: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        write_array(self.key(key), values, |out, value| write_string(out, value.as_ref()));
        self
    }

    pub fn boolean(&mut self, key: &'static str, value: bool) -> &mut Self {
        self.literal(key, if value { "true" } else { "false" })
    }

    pub fn null(&mut self, key: &'static str) -> &mut Self {
        self.literal(key, "null")
    }

    /// JSON text that is written as it stands.
    pub fn literal(&mut self, key: &'static str, json: &str) -> &mut Self {
        self.key(key).extend_from_slice(json.as_bytes());
        self
    }

    pub fn uuid(&mut self, key: &'static str, id: &[u8; 16]) -> &mut Self {
        write_uuid(self.key(key), id);
        self
    }

    pub fn micros(&mut self, key: &'static str, wall_us: i64) -> &mut Self {
        write_micros(self.key(key), wall_us);
        self
    }

    pub fn micros_or_null(&mut self, key: &'static str, wall_us: Option<i64>) -> &mut Self {
        match wall_us {
            Some(us) => self.micros(key, us),
            None => self.null(key),
        }
    }

    /// A nested object.
    pub fn object(&mut self, key: &'static str, fill: impl FnOnce(&mut Fields<'_>)) -> &mut Self {
        let mut nested = Fields::begin(self.key(key));
        fill(&mut nested);
        nested.end();
        self
    }

    /// An array of objects.
    pub fn objects<T>(
        &mut self,
        key: &'static str,
        items: impl IntoIterator<Item = T>,
        mut fill: impl FnMut(T, &mut Fields<'_>),
    ) -> &mut Self {
        let out = self.key(key);
        out.push(b'[');
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let mut nested = Fields::begin(out);
            fill(item, &mut nested);
            nested.end();
        }
        out.push(b']');
        self
    }

    pub fn end(&mut self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_reads_back_as_itself() {
        for text in
            ["", "plain", "q\"b\\s/", "\u{0}\u{1}\u{8}\t\n\u{c}\r\u{1f}\u{7f}", "é 🦀 \u{2028}"]
        {
            let mut out = Vec::new();
            write_string(&mut out, text);
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
        let mut out = Vec::new();
        write_string(&mut out, "a\u{1}\n\"");
        assert_eq!(out, br#""a\u0001\n\"""#);
    }

    #[test]
    fn micros_have_six_digits() {
        let mut out = Vec::new();
        write_micros(&mut out, 1_700_000_000_123_045);
        write_micros(&mut out, -1);
        let want = "\"2023-11-14T22:13:20.123045Z\"\"1969-12-31T23:59:59.999999Z\"";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn lenient_text_agrees_with_the_strict_reader_and_replaces_lone_surrogates() {
        let text = |json: &str| lenient_text(json).into_owned();
        let escapes = r#""a\"\\\/\b\f\n\r\tz""#;
        for json in ["\"\"", escapes, r#""\u00e9\ud83e\udd80x\u0000""#, "\"é\""] {
            assert_eq!(text(json), serde_json::from_str::<String>(json).unwrap(), "{json}");
        }
        assert_eq!(text(r#""a\ud800b""#), "a\u{FFFD}b");
        assert_eq!(text(r#""\udc00\ud800""#), "\u{FFFD}\u{FFFD}");
        assert_eq!(text(r#""\ud800\ud83e\udd80""#), "\u{FFFD}🦀");
        assert_eq!(text("{\"a\":1}"), "{\"a\":1}");
    }

    #[test]
    fn objects_are_not_read_from_arrays() {
        #[derive(Deserialize)]
        struct One<'a> {
            #[serde(borrow)]
            a: Option<Text<'a>>,
        }
        assert!(read_object::<One<'_>>(b"[\"x\"]").is_err());
        let one = read_object::<One<'_>>(b" {\"b\":[[]],\"a\":\"x\"} ").unwrap();
        assert!(matches!(one.a, Some(Text(Cow::Borrowed("x")))));
        assert!(read_object::<One<'_>>(b"{}").unwrap().a.is_none());
        assert_eq!(read_object::<One<'_>>(b"{").err().unwrap().code, ErrorCode::BadBody);
    }

    #[test]
    fn fields_write_nested_objects() {
        let mut out = Vec::new();
        Fields::begin(&mut out)
            .text("a", "x\"")
            .integer("b", -3)
            .boolean("c", true)
            .null("d")
            .object("e", |f| {
                f.objects("f", [1, 2], |n, f| {
                    f.integer("n", n);
                });
            })
            .end();
        let want = r#"{"a":"x\"","b":-3,"c":true,"d":null,"e":{"f":[{"n":1},{"n":2}]}}"#;
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}

//! A reader of bodies that come by the thousand, before the general one.
//!
//! It knows the plain case: no escape in a text that is asked for, no key twice, nothing where
//! something else belongs. Whatever is not plain it gives up on (`None`); `serde_json` then reads
//! the body, decides what it is and finds the words for what is wrong with it. So all there is to
//! get right here is that what is taken is what the other would have taken.

use serde::Deserialize;

use super::json::{self, Items};
use super::json_check::{self, Marks, space};
use crate::model::error::Refusal;

/// A place in a body.
pub struct Scan<'a> {
    text: &'a str,
    marks: Marks<'a>,
    at: usize,
}

/// A body that must be one object: read by `plain`, and where that gives up by the general reader.
pub fn read<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    plain: impl FnOnce(&mut Scan<'a>) -> Option<T>,
) -> Result<T, Refusal> {
    Scan::all(body, plain).map_or_else(|| json::read_object(body), Ok)
}

/// Fills a field that has no value yet.
pub fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.is_none().then(|| *field = Some(value))
}

impl<'a> Scan<'a> {
    /// Reads a whole body.
    pub fn all<T>(body: &'a [u8], read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let text = std::str::from_utf8(body).ok()?;
        let mut scan = Self { text, marks: Marks::of(body), at: 0 };
        let value = read(&mut scan)?;
        (space(body, scan.at) == body.len()).then_some(value)
    }

    /// Behind white space.
    fn next(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        let at = space(bytes, self.at);
        self.at = at + 1;
        bytes.get(at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.next()? == wanted).then_some(())
    }

    /// Moves behind `wanted` if it comes next.
    fn skip(&mut self, wanted: u8) -> bool {
        let bytes = self.text.as_bytes();
        let at = space(bytes, self.at);
        let is_next = bytes.get(at) == Some(&wanted);
        self.at = at + usize::from(is_next);
        is_next
    }

    /// An object. `field` is called with each key and reads its value.
    #[inline]
    pub fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, &'a str) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.skip(b'}') {
            return Some(());
        }
        loop {
            let key = self.text()?;
            self.expect(b':')?;
            field(self, key)?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// An array. `item` is called where each of its values begins, and reads it.
    #[inline]
    pub fn array(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.skip(b']') {
            return Some(());
        }
        loop {
            item(self)?;
            match self.next()? {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    /// An array, kept.
    #[inline]
    pub fn items<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Items<T>> {
        let mut items = Items::new();
        let from = self.at;
        self.array(|scan| {
            let next = item(scan)?;
            if items.len() == items.capacity() {
                items.reserve_exact(scan.still_to_come(from, items.len() + 1));
            }
            items.push(next);
            Some(())
        })?;
        Some(items)
    }

    /// How many items the rest of the body holds if they are like those read since `from`, the last
    /// of them included. Bounded by what is there, so that a body cannot ask for much more memory
    /// than it fills.
    fn still_to_come(&self, from: usize, read: usize) -> usize {
        const FEW: usize = 128;
        let each = (self.at - from) / read + 1;
        let left = (self.text.len() - self.at) / each + 1;
        left.min(FEW.max(4 * read))
    }

    /// A text.
    #[inline]
    pub fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let from = self.at;
        // Exactly there: a line's end is what may stand between two texts, not in one.
        let end =
            self.marks.next(from).filter(|end| self.text.as_bytes().get(*end) == Some(&b'"'))?;
        self.at = end + 1;
        self.text.get(from..end)
    }

    /// A text, or a null.
    #[inline]
    pub fn text_or_null(&mut self) -> Option<Option<&'a str>> {
        if self.skip(b'n') {
            self.at = json_check::word(self.text.as_bytes(), self.at, b"ull")?;
            return Some(None);
        }
        self.text().map(Some)
    }

    /// The JSON text of any value.
    #[inline]
    pub fn value(&mut self) -> Option<&'a str> {
        let from = space(self.text.as_bytes(), self.at);
        self.at = json_check::value(self.text.as_bytes(), from, &mut self.marks)?;
        self.text.get(from..self.at)
    }

    /// The same; `None` inside for a null, as where there is none.
    #[inline]
    pub fn value_or_null(&mut self) -> Option<Option<&'a str>> {
        self.value().map(|json| Some(json).filter(|json| *json != "null"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(body: &str) -> Option<Vec<&str>> {
        Scan::all(body.as_bytes(), |scan| scan.items(Scan::text)).map(|items| items.into_vec())
    }

    #[test]
    fn plain_bodies_are_taken_and_all_others_given_up_on() {
        assert_eq!(texts(" [ \"a\" ,\"\", \"é\"\n] "), Some(vec!["a", "", "é"]));
        assert_eq!(texts("[]"), Some(vec![]));
        for other in [
            "",
            "[",
            "[\"a\"",
            "[\"a\",]",
            "[,\"a\"]",
            "[\"a\"]]",
            "[\"a\\n\"]",
            "[\"a\n\"]",
            "[\"a\" \"b\"]",
            "[1]",
            "[null]",
            "{}",
        ] {
            assert_eq!(texts(other), None, "{other}");
        }
        assert!(Scan::all(b"[\"\xff\"]", |scan| scan.items(Scan::text)).is_none());
    }

    #[test]
    fn values_are_the_bytes_they_came_in() {
        let body = r#"{"a" : {"x":[1, "\u0041"]} ,"b":null,"c":"d"}"#;
        let mut seen = Vec::new();
        let read = Scan::all(body.as_bytes(), |scan| {
            scan.object(|scan, key| {
                seen.push((key, scan.value_or_null()?));
                Some(())
            })
        });
        assert_eq!(read, Some(()));
        let wanted = [("a", Some(r#"{"x":[1, "\u0041"]}"#)), ("b", None), ("c", Some("\"d\""))];
        assert_eq!(seen, wanted);
        let null = Scan::all(b" null", Scan::text_or_null);
        assert_eq!((null, Scan::all(b"nul", Scan::text_or_null)), (Some(None), None));
    }

    #[test]
    fn a_field_is_filled_once() {
        let mut field = None;
        assert_eq!((once(&mut field, 1), once(&mut field, 2)), (Some(()), None));
        assert_eq!(field, Some(1));
    }

    #[test]
    fn room_for_items_is_bounded_by_what_was_read() {
        // A short item before a long text that looks like many.
        let body = format!("[\"\",\"{}\"]", "x".repeat(1 << 20));
        let items = Scan::all(body.as_bytes(), |scan| scan.items(Scan::text)).unwrap();
        assert!(items.capacity() <= 129, "{}", items.capacity());
        let many = format!("[{}\"x\"]", "\"x\",".repeat(9_999));
        let items = Scan::all(many.as_bytes(), |scan| scan.items(Scan::text)).unwrap();
        assert!(items.len() == 10_000 && items.capacity() <= 50_000, "{}", items.capacity());
    }
}

//! Query parameters with the wire's rules of reading them.
//!
//! Keys nobody asks for are ignored. A key given twice counts once, the first time. An empty
//! value equals an absent key: clients send keys they have no value for.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use smallvec::SmallVec;

use crate::base::time;
use crate::model::error::{ErrorCode, Refusal};

/// The decoded pairs of one query string.
#[derive(Clone, Debug, Default)]
pub struct Query<'a> {
    pairs: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>,
}

impl<'a> FromIterator<(Cow<'a, str>, Cow<'a, str>)> for Query<'a> {
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>>(pairs: I) -> Self {
        Self { pairs: pairs.into_iter().collect() }
    }
}

impl<'a> Query<'a> {
    /// The value of a key; `None` when it is absent or empty.
    pub fn text(&self, key: &str) -> Option<&Cow<'a, str>> {
        let (_, value) = self.pairs.iter().find(|(name, _)| name == key)?;
        (!value.is_empty()).then_some(value)
    }

    /// The value of a key where an empty one means something; `None` when it is absent.
    pub fn given(&self, key: &str) -> Option<&Cow<'a, str>> {
        self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// `true`, `false`, `1` or `0`; false when absent, refused when it is anything else.
    pub fn flag(&self, key: &'static str) -> Result<bool, Refusal> {
        match self.text(key).map(|value| &**value) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(_) => Err(unreadable(key, "true or false")),
        }
    }

    /// An integer, refused when it is none.
    pub fn integer(&self, key: &'static str) -> Result<Option<i64>, Refusal> {
        match self.text(key).map(|value| value.parse::<i64>()) {
            None => Ok(None),
            Some(Ok(n)) => Ok(Some(n)),
            Some(Err(_)) => Err(unreadable(key, "an integer")),
        }
    }

    /// An ISO-8601 instant in microseconds of wall time, refused when it is none.
    pub fn instant(&self, key: &'static str) -> Result<Option<i64>, Refusal> {
        match self.text(key) {
            None => Ok(None),
            Some(value) => match time::parse_iso8601(value) {
                Some(us) => Ok(Some(us)),
                None => Err(unreadable(key, "an ISO-8601 time")),
            },
        }
    }

    /// A paging number of an administrative route: the default when it is absent or no number,
    /// moved into the range when it is outside.
    pub fn page(&self, key: &str, default: usize, range: RangeInclusive<usize>) -> usize {
        let Some(Ok(n)) = self.text(key).map(|value| value.parse::<i64>()) else {
            return default;
        };
        usize::try_from(n).unwrap_or(0).clamp(*range.start(), *range.end())
    }
}

fn unreadable(key: &'static str, expected: &str) -> Refusal {
    Refusal::new(ErrorCode::BadRequest, format!("query parameter {key} is not {expected}"))
}

#[cfg(test)]
pub(super) fn query(text: &'static str) -> Query<'static> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (Cow::Borrowed(key), Cow::Borrowed(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_equals_absent_and_the_first_of_two_counts() {
        let q = query("a=&b=1&b=2&c");
        assert_eq!(q.text("a"), None);
        assert_eq!(q.given("a").map(|v| &**v), Some(""));
        assert_eq!(q.given("z"), None);
        assert_eq!(q.text("c"), None);
        assert_eq!(q.text("z"), None);
        assert_eq!(q.text("b").map(|v| &**v), Some("1"));
    }

    #[test]
    fn flags_and_integers_are_strict() {
        let q = query("t=true&o=1&f=false&z=0&bad=TRUE&n=-5&x=1.5&e=");
        for (key, want) in [("t", true), ("o", true), ("f", false), ("z", false), ("e", false)] {
            assert_eq!(q.flag(key), Ok(want));
        }
        assert_eq!(q.flag("bad").unwrap_err().code, ErrorCode::BadRequest);
        assert_eq!(q.integer("n"), Ok(Some(-5)));
        assert_eq!(q.integer("e"), Ok(None));
        assert_eq!(q.integer("x").unwrap_err().text, "query parameter x is not an integer");
    }

    #[test]
    fn paging_falls_back_and_clamps() {
        let q = query("a=x&b=-3&c=0&d=99999&e=7&f=99999999999999999999");
        for (key, want) in [("a", 100), ("b", 1), ("c", 1), ("d", 1_000), ("e", 7), ("f", 100)] {
            assert_eq!(q.page(key, 100, 1..=1_000), want, "{key}");
        }
    }

    #[test]
    fn instants_are_read_or_refused() {
        let q = query("a=2023-11-14T22:13:20Z&b=yesterday");
        assert_eq!(q.instant("a"), Ok(Some(1_700_000_000_000_000)));
        assert_eq!(q.instant("b").unwrap_err().code, ErrorCode::BadRequest);
        assert_eq!(q.instant("c"), Ok(None));
    }
}

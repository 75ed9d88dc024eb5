//! The time an analytics answer is about, and the buckets it is cut into.

use super::json::{self, Fields};
use super::query::Query;
use crate::model::error::{ErrorCode, Refusal};

const MINUTE_US: i64 = 60_000_000;
const DEFAULT_US: i64 = 60 * MINUTE_US;
/// Spans up to so many minutes have buckets of so many; longer ones have the last width.
const WIDTHS: [(u64, u64); 4] = [(60, 1), (360, 5), (1_440, 15), (10_080, 60)];
const WIDTH_MAX: u64 = 360;

/// Both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub from_us: i64,
    pub to_us: i64,
    pub bucket_minutes: u64,
    /// There is nothing to tell of what lies behind it.
    now_us: i64,
}

impl Window {
    /// Reads `from` and `to`; the last hour where they are not given. A time that is none is
    /// refused: another window than the one asked for would be taken for it.
    pub fn decode(query: &Query<'_>, now_us: i64) -> Result<Self, Refusal> {
        let to_us = query.instant("to")?.unwrap_or(now_us);
        let from_us = query.instant("from")?.unwrap_or_else(|| to_us.saturating_sub(DEFAULT_US));
        if from_us > to_us {
            return Err(Refusal::new(ErrorCode::BadRequest, "from lies behind to"));
        }
        let minutes = u64::try_from((to_us - from_us) / MINUTE_US).unwrap_or(0);
        let width = WIDTHS.iter().find(|(most, _)| minutes <= *most);
        let bucket_minutes = width.map_or(WIDTH_MAX, |(_, width)| *width);
        Ok(Self { from_us, to_us, bucket_minutes, now_us })
    }

    /// The same time in buckets of another width.
    pub fn in_buckets_of(self, bucket_minutes: u64) -> Self {
        Self { bucket_minutes, ..self }
    }

    /// The first and the last minute of it.
    pub fn minutes(&self) -> (u64, u64) {
        (minute_of(self.from_us), minute_of(self.to_us))
    }

    /// The first minute of a minute's bucket.
    pub fn bucket_of(&self, minute: u64) -> u64 {
        minute - minute % self.bucket_minutes
    }

    /// All buckets from the one of minute `began` up to now, oldest first.
    pub fn buckets_since(&self, began: u64) -> impl Iterator<Item = u64> + use<> {
        let (from, to) = self.minutes();
        let width = self.bucket_minutes;
        let first = self.bucket_of(from.max(began));
        (first..=to.min(minute_of(self.now_us))).step_by(usize::try_from(width).unwrap_or(1))
    }

    pub fn bucket_seconds(&self) -> u64 {
        self.bucket_minutes * 60
    }

    pub fn minute_us(minute: u64) -> i64 {
        i64::try_from(minute).unwrap_or(i64::MAX / MINUTE_US).saturating_mul(MINUTE_US)
    }

    pub fn write_range(&self, fields: &mut Fields<'_>) {
        fields.object("timeRange", |f| {
            json::write_millis(f.key("from"), self.from_us);
            json::write_millis(f.key("to"), self.to_us);
        });
    }

    pub fn write_buckets(&self, points: usize, fields: &mut Fields<'_>) {
        fields.integer("bucketMinutes", self.bucket_minutes).integer("pointCount", points);
    }
}

fn minute_of(us: i64) -> u64 {
    u64::try_from(us.div_euclid(MINUTE_US)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::query::query;

    fn width(text: &'static str) -> u64 {
        Window::decode(&query(text), 0).unwrap().bucket_minutes
    }

    #[test]
    fn the_span_decides_the_buckets() {
        assert_eq!(width("from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z"), 1);
        assert_eq!(width("from=2026-01-01T00:00:00Z&to=2026-01-01T01:01:00Z"), 5);
        assert_eq!(width("from=2026-01-01T00:00:00Z&to=2026-01-01T06:01:00Z"), 15);
        assert_eq!(width("from=2026-01-01&to=2026-01-08"), 60);
        assert_eq!(width("from=2026-01-01&to=2026-02-01"), 360);
    }

    #[test]
    fn the_last_hour_is_the_default_and_bad_times_are_refused() {
        let now_us = 1_700_000_000_000_000;
        let window = Window::decode(&query(""), now_us).unwrap();
        assert_eq!((window.to_us - window.from_us, window.to_us), (DEFAULT_US, now_us));
        let window = Window::decode(&query("to=2023-01-01"), now_us).unwrap();
        assert_eq!(window.to_us - window.from_us, DEFAULT_US);
        for bad in ["from=yesterday", "to=2026-13-01", "from=2026-01-02&to=2026-01-01"] {
            let refusal = Window::decode(&query(bad), now_us).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::BadRequest, "{bad}");
        }
    }

    #[test]
    fn buckets_begin_on_whole_multiples() {
        let text = "from=1970-01-01T00:07:00Z&to=1970-01-01T02:00:00Z";
        let window = Window::decode(&query(text), i64::MAX).unwrap();
        assert_eq!((window.bucket_minutes, window.bucket_of(14)), (5, 10));
        let buckets: Vec<u64> = window.buckets_since(0).collect();
        assert_eq!((buckets[0], buckets.len(), buckets.last()), (5, 24, Some(&120)));
        assert_eq!(window.buckets_since(118).collect::<Vec<_>>(), [115, 120]);
        assert_eq!(window.buckets_since(500).count(), 0);
        let window = Window::decode(&query("from=1970-01-01&to=9999-01-01"), 0).unwrap();
        assert_eq!(window.buckets_since(0).count(), 1, "what is to come has no buckets");
    }
}

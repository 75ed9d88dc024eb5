//! Time as a value. Nothing below `server` reads a clock.

/// One reading of the broker's clocks. `mono_us` never goes back; `wall_us` is the wall time
/// at start plus what the monotonic clock has moved, so a step of the host's clock does not
/// move deadlines or stamps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Now {
    /// Microseconds of the monotonic clock, from an arbitrary start.
    pub mono_us: u64,
    /// Microseconds since 1970-01-01T00:00:00Z.
    pub wall_us: i64,
}

/// A moment of the monotonic clock, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Deadline(pub u64);

impl Deadline {
    pub const NEVER: Self = Self(u64::MAX);

    pub fn passed(self, now: Now) -> bool {
        self.0 <= now.mono_us
    }
}

impl Now {
    pub fn after_ms(self, ms: u64) -> Deadline {
        Deadline(self.mono_us.saturating_add(ms.saturating_mul(1_000)))
    }

    pub fn after_us(self, us: u64) -> Deadline {
        Deadline(self.mono_us.saturating_add(us))
    }

    /// The wall time at which a deadline falls.
    pub fn wall_at(self, deadline: Deadline) -> i64 {
        let ahead = i128::from(deadline.0) - i128::from(self.mono_us);
        i64::try_from(i128::from(self.wall_us) + ahead).unwrap_or(i64::MAX)
    }
}

/// A civil date and time of day in UTC, for the text forms of the wire.
pub struct Civil {
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    pub second_of_day: i64,
}

/// Days since 1970-01-01 to a proleptic Gregorian date (Hinnant's algorithm: eras of 400
/// years that begin on 1 March, so the leap day is the last of its year).
pub fn civil(wall_us: i64) -> Civil {
    let seconds = wall_us.div_euclid(1_000_000);
    let days = seconds.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    Civil {
        year: year_of_era + era * 400 + i64::from(month <= 2),
        month: month as u32,
        day: (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32,
        second_of_day: seconds.rem_euclid(86_400),
    }
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Appends `YYYY-MM-DDTHH:MM:SS.mmmZ`, truncated from microseconds.
pub fn write_millis(out: &mut Vec<u8>, wall_us: i64) {
    let c = civil(wall_us);
    let millis = wall_us.rem_euclid(1_000_000) / 1_000;
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut put = |at: usize, width: usize, mut value: i64| {
        for i in (0..width).rev() {
            text[at + i] = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    put(0, 4, c.year.clamp(0, 9999));
    put(5, 2, i64::from(c.month));
    put(8, 2, i64::from(c.day));
    put(11, 2, c.second_of_day / 3_600);
    put(14, 2, c.second_of_day / 60 % 60);
    put(17, 2, c.second_of_day % 60);
    put(20, 3, millis);
    out.extend_from_slice(&text);
}

pub fn millis_text(wall_us: i64) -> String {
    let mut out = Vec::with_capacity(24);
    write_millis(&mut out, wall_us);
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads an ISO-8601 instant: date, optional time, optional fraction of up to nine digits,
/// optional `Z` or `±hh[:]mm`. Without a zone it is UTC. `None` for anything else.
pub fn parse_iso8601(text: &str) -> Option<i64> {
    let b = text.trim().as_bytes();
    let digits = |from: usize, count: usize| -> Option<i64> {
        let part = b.get(from..from + count)?;
        part.iter().try_fold(0i64, |n, c| c.is_ascii_digit().then(|| n * 10 + i64::from(c - b'0')))
    };
    let (year, month, day) = (digits(0, 4)?, digits(5, 2)?, digits(8, 2)?);
    if b.get(4) != Some(&b'-') || b.get(7) != Some(&b'-') {
        return None;
    }
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let midnight = days_from_civil(year, month, day) * 86_400;
    if b.len() == 10 {
        return Some(midnight * 1_000_000);
    }
    if !matches!(b.get(10), Some(b'T' | b't' | b' ')) || b.get(13) != Some(&b':') {
        return None;
    }
    let (hour, minute) = (digits(11, 2)?, digits(14, 2)?);
    let mut at = 16;
    let mut second = 0;
    if b.get(at) == Some(&b':') {
        second = digits(17, 2)?;
        at = 19;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut micros = 0i64;
    if matches!(b.get(at), Some(b'.' | b',')) {
        at += 1;
        let first = at;
        while b.get(at).is_some_and(u8::is_ascii_digit) {
            if at - first < 6 {
                micros = micros * 10 + i64::from(b[at] - b'0');
            }
            at += 1;
        }
        if at == first || at - first > 9 {
            return None;
        }
        micros *= 10i64.pow(6 - (at - first).min(6) as u32);
    }
    let zone = match b.get(at) {
        None => 0,
        Some(b'Z' | b'z') if at + 1 == b.len() => 0,
        Some(sign @ (b'+' | b'-')) => {
            let hours = digits(at + 1, 2)?;
            let minutes_at = if b.get(at + 3) == Some(&b':') { at + 4 } else { at + 3 };
            let minutes = if minutes_at == b.len() { 0 } else { digits(minutes_at, 2)? };
            if minutes_at != b.len() && minutes_at + 2 != b.len() {
                return None;
            }
            let offset = hours * 3_600 + minutes * 60;
            if *sign == b'+' { offset } else { -offset }
        }
        Some(_) => return None,
    };
    let seconds = midnight + hour * 3_600 + minute * 60 + second - zone;
    Some(seconds * 1_000_000 + micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn millis_are_truncated_not_rounded() {
        assert_eq!(millis_text(1_700_000_000_123_999), "2023-11-14T22:13:20.123Z");
        assert_eq!(millis_text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(millis_text(951_782_400_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(millis_text(-1), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn iso_text_round_trips_and_odd_forms_are_read() {
        for us in [0, 1_700_000_000_123_000, 4_102_444_799_999_000, 951_782_400_000_000] {
            assert_eq!(parse_iso8601(&millis_text(us)), Some(us));
        }
        let base = Some(1_700_000_000_000_000);
        assert_eq!(parse_iso8601("2023-11-14T22:13:20Z"), base);
        assert_eq!(parse_iso8601("2023-11-14 22:13:20"), base);
        assert_eq!(parse_iso8601("2023-11-15T00:13:20+02:00"), base);
        assert_eq!(parse_iso8601("2023-11-14T17:13:20-0500"), base);
        assert_eq!(parse_iso8601("2023-11-14T22:13:20.000000001Z"), base);
        assert_eq!(parse_iso8601("2023-11-14"), Some(1_699_920_000_000_000));
        for bad in ["", "now", "2023-13-01", "2023-11-14T25:00:00Z", "2023-11-14T22:13:20.Z"] {
            assert_eq!(parse_iso8601(bad), None, "{bad}");
        }
    }

    #[test]
    fn deadlines_map_to_wall_time() {
        let now = Now { mono_us: 1_000, wall_us: 5_000_000 };
        assert_eq!(now.wall_at(now.after_ms(2)), 5_002_000);
        assert!(!now.after_us(1).passed(now));
        assert!(Deadline(1_000).passed(now));
    }
}

//! Heads of answers: written into the driver's buffer, in front of whatever body it sends.
//!
//! The `date` line is passed in: the driver formats it once a second, not once an answer.

use super::Method;
use crate::base::time::civil;

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What stands above the body of an answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    pub status: u16,
    pub content_type: Option<&'a str>,
    /// Bytes of the body that a GET would get; a HEAD is told the same number. Not written
    /// where the status forbids a body.
    pub content_length: u64,
    pub keep_alive: bool,
    /// The request was HTTP/1.0, whose clients must be told that the connection stays.
    pub http10: bool,
    pub date: &'a [u8; 29],
    /// Whole seconds.
    pub retry_after: Option<u32>,
    /// Further fields. Names and values are our own words and never hold line ends.
    pub extra: &'a [(&'static str, &'a str)],
}

impl<'a> ResponseHead<'a> {
    pub fn new(status: u16, date: &'a [u8; 29]) -> Self {
        Self {
            status,
            content_type: None,
            content_length: 0,
            keep_alive: true,
            http10: false,
            date,
            retry_after: None,
            extra: &[],
        }
    }
}

/// Appends status line, fields and the blank line.
pub fn write_head(out: &mut Vec<u8>, head: &ResponseHead<'_>) {
    write_status_line(out, head.status);
    put(out, &[b"date: ", head.date, b"\r\n"]);
    if allows_body(head.status) {
        if let Some(content_type) = head.content_type {
            put_field(out, "content-type", content_type);
        }
        let mut digits = itoa::Buffer::new();
        let length = digits.format(head.content_length).as_bytes();
        put(out, &[b"content-length: ", length, b"\r\n"]);
    } else {
        // RFC 9110 8.6: no length on a 204; strict clients reset the connection over one.
        assert!(head.content_length == 0, "a {} with a body", head.status);
    }
    match (head.keep_alive, head.http10) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, false) => {}
    }
    if let Some(seconds) = head.retry_after {
        let mut digits = itoa::Buffer::new();
        put(out, &[b"retry-after: ", digits.format(seconds).as_bytes(), b"\r\n"]);
    }
    for (name, value) in head.extra {
        put_field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether body bytes follow the head of this answer on the wire.
pub fn has_body(method: Method, status: u16) -> bool {
    method != Method::Head && allows_body(status)
}

/// The words of a status; empty for one we do not use, which the grammar allows.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

/// An IMF-fixdate (RFC 9110 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`. Years are cut to what four
/// digits can say.
pub fn format_date(wall_seconds: i64) -> [u8; 29] {
    const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
    const MONTHS: [&[u8; 3]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    const YEAR_ZERO: i64 = -62_167_219_200;
    const YEAR_9999_END: i64 = 253_402_300_799;
    let seconds = wall_seconds.clamp(YEAR_ZERO, YEAR_9999_END);
    let c = civil(seconds * 1_000_000);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    // 1970-01-01 was a Thursday.
    text[..3].copy_from_slice(DAYS[seconds.div_euclid(86_400).rem_euclid(7) as usize]);
    text[8..11].copy_from_slice(MONTHS[c.month as usize - 1]);
    let mut two = |at: usize, value: i64| {
        text[at] = b'0' + (value / 10) as u8;
        text[at + 1] = b'0' + (value % 10) as u8;
    };
    two(5, i64::from(c.day));
    two(12, c.year / 100);
    two(14, c.year % 100);
    two(17, c.second_of_day / 3_600);
    two(20, c.second_of_day / 60 % 60);
    two(23, c.second_of_day % 60);
    text
}

/// 1xx, 204 and 304 end with their head (RFC 9112 6.3 step 1).
fn allows_body(status: u16) -> bool {
    status >= 200 && status != 204 && status != 304
}

fn write_status_line(out: &mut Vec<u8>, status: u16) {
    // The answers of a healthy broker, as one copy each.
    match status {
        200 => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
        201 => out.extend_from_slice(b"HTTP/1.1 201 Created\r\n"),
        204 => out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n"),
        _ => {
            assert!((100..1_000).contains(&status), "status {status}");
            let mut digits = itoa::Buffer::new();
            let code = digits.format(status).as_bytes();
            put(out, &[b"HTTP/1.1 ", code, b" ", reason(status).as_bytes(), b"\r\n"]);
        }
    }
}

fn put_field(out: &mut Vec<u8>, name: &str, value: &str) {
    let one_line = |text: &str| !text.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0));
    assert!(one_line(name) && one_line(value), "a field of an answer with a line end: {name}");
    put(out, &[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(head: &ResponseHead<'_>) -> String {
        let mut out = Vec::new();
        write_head(&mut out, head);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_head_line_by_line() {
        let date = format_date(784_111_777);
        let head = ResponseHead {
            content_type: Some("application/json"),
            content_length: 17,
            retry_after: Some(1),
            keep_alive: false,
            extra: &[("etag", "\"7\"")],
            ..ResponseHead::new(429, &date)
        };
        assert_eq!(
            written(&head),
            "HTTP/1.1 429 Too Many Requests\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             content-type: application/json\r\ncontent-length: 17\r\nconnection: close\r\n\
             retry-after: 1\r\netag: \"7\"\r\n\r\n"
        );
    }

    #[test]
    fn no_content_has_no_length() {
        let date = format_date(0);
        let head = ResponseHead { content_type: Some("a/b"), ..ResponseHead::new(204, &date) };
        let text = written(&head);
        assert_eq!(text, "HTTP/1.1 204 No Content\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n");
        assert!(written(&ResponseHead::new(200, &date)).contains("content-length: 0\r\n"));
        assert!(!written(&ResponseHead::new(103, &date)).contains("content-length"));
    }

    #[test]
    fn a_head_request_gets_the_length_and_no_body() {
        assert!(has_body(Method::Get, 200) && has_body(Method::Other, 501));
        assert!(!has_body(Method::Head, 200) && !has_body(Method::Get, 204));
    }

    #[test]
    fn persistence_is_said_where_it_is_not_the_default() {
        let date = format_date(0);
        for (keep_alive, http10, line) in [
            (true, false, None),
            (true, true, Some("connection: keep-alive\r\n")),
            (false, false, Some("connection: close\r\n")),
            (false, true, Some("connection: close\r\n")),
        ] {
            let text =
                written(&ResponseHead { keep_alive, http10, ..ResponseHead::new(200, &date) });
            match line {
                Some(line) => assert!(text.contains(line), "{text}"),
                None => assert!(!text.contains("connection"), "{text}"),
            }
        }
    }

    #[test]
    #[should_panic(expected = "line end")]
    fn a_field_cannot_start_another() {
        let date = format_date(0);
        let head =
            ResponseHead { content_type: Some("a\r\nb: c"), ..ResponseHead::new(200, &date) };
        written(&head);
    }

    #[test]
    fn every_status_we_use_has_its_words() {
        for status in [
            200, 201, 204, 400, 401, 403, 404, 405, 408, 409, 411, 413, 414, 415, 417, 429, 431,
            500, 501, 503, 505, 507,
        ] {
            assert!(!reason(status).is_empty(), "{status}");
            let date = format_date(0);
            let text = written(&ResponseHead::new(status, &date));
            assert!(text.starts_with(&format!("HTTP/1.1 {status} {}\r\n", reason(status))));
        }
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_700_000_000, "Tue, 14 Nov 2023 22:13:20 GMT"),
            (-1, "Wed, 31 Dec 1969 23:59:59 GMT"),
            (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (i64::MIN, "Sat, 01 Jan 0000 00:00:00 GMT"),
        ] {
            assert_eq!(String::from_utf8_lossy(&format_date(seconds)), text);
        }
    }
}

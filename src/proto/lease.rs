//! Extending a lease.

use serde::Deserialize;

use super::json::{self, Fields};
use crate::base::limits;
use crate::model::error::Refusal;
use crate::model::reply::Extended;

/// What an extension asks for when it names no time.
const SECONDS_DEFAULT: u32 = 60;

/// Seconds from now until the lease shall end. An empty body asks for the default.
pub fn decode(body: &[u8]) -> Result<u32, Refusal> {
    #[derive(Deserialize)]
    struct Wire {
        seconds: Option<i64>,
    }
    if body.trim_ascii().is_empty() {
        return Ok(SECONDS_DEFAULT);
    }
    let wire: Wire = json::read_object(body)?;
    let seconds = wire.seconds.unwrap_or(SECONDS_DEFAULT.into());
    Ok(seconds.clamp(1, limits::LEASE_SECONDS_MAX.into()) as u32)
}

/// The new expiry stands under three keys because clients look for it under three.
pub fn encode(lease_id: &str, extended: Extended, out: &mut Vec<u8>) {
    let mut fields = Fields::begin(out);
    fields
        .text("leaseId", lease_id)
        .boolean("success", extended.renewed > 0)
        .integer("renewed", extended.renewed);
    for key in ["newExpiresAt", "expiresAt", "lease_expires_at"] {
        match extended.expires_at_us {
            Some(us) => json::write_millis(fields.key(key), us),
            None => _ = fields.null(key),
        }
    }
    fields.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::error::ErrorCode;

    #[test]
    fn seconds_are_defaulted_and_clamped() {
        for (body, want) in [
            ("", 60),
            (" \n", 60),
            ("{}", 60),
            ("{\"seconds\":null}", 60),
            ("{\"seconds\":5,\"x\":[]}", 5),
            ("{\"seconds\":0}", 1),
            ("{\"seconds\":-9}", 1),
            ("{\"seconds\":9000000000000}", limits::LEASE_SECONDS_MAX),
        ] {
            assert_eq!(decode(body.as_bytes()), Ok(want), "{body}");
        }
        for body in ["{\"seconds\":\"5\"}", "{\"seconds\":1.5}", "[5]", "5", "{", "{} x", "null"] {
            assert_eq!(decode(body.as_bytes()).unwrap_err().code, ErrorCode::BadBody, "{body}");
        }
    }

    #[test]
    fn answers_read_back_with_the_published_type() {
        let mut out = Vec::new();
        let extended = Extended { renewed: 2, expires_at_us: Some(1_700_000_000_123_999) };
        encode("l-1", extended, &mut out);
        let want = concat!(
            r#"{"leaseId":"l-1","success":true,"renewed":2,"#,
            r#""newExpiresAt":"2023-11-14T22:13:20.123Z","expiresAt":"2023-11-14T22:13:20.123Z","#,
            r#""lease_expires_at":"2023-11-14T22:13:20.123Z"}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), want);
        out.clear();
        encode("l-1", Extended { renewed: 0, expires_at_us: None }, &mut out);
        let read: queen_protocol::RenewLeaseResponse = serde_json::from_slice(&out).unwrap();
        assert!(!read.success && read.renewed == 0 && read.expires_at().is_none());
        assert!(
            out.ends_with(br#","newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}"#)
        );
    }
}

//! The body of a refusal.

use super::json::Fields;
use crate::model::error::{ErrorCode, Refusal};

/// `{"error","code"}`.
pub fn encode(refusal: &Refusal, out: &mut Vec<u8>) {
    Fields::begin(out).text("error", &refusal.text).text("code", refusal.code.word()).end();
}

/// The body for a path that is no route. Clients read the pair of status and code as "this
/// broker does not have it", so the code is part of the contract.
pub fn encode_no_such_route(path: &str, out: &mut Vec<u8>) {
    Fields::begin(out)
        .text("error", "not found")
        .text("code", ErrorCode::NoSuchRoute.word())
        .text("path", path)
        .end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_back_with_the_published_type() {
        let mut out = Vec::new();
        encode(&Refusal::new(ErrorCode::Overloaded, "a \"full\" house"), &mut out);
        assert_eq!(out, br#"{"error":"a \"full\" house","code":"overloaded"}"#);
        let body: queen_protocol::ErrorBody = serde_json::from_slice(&out).unwrap();
        assert_eq!(body.message(), "a \"full\" house");
        assert_eq!(body.code.unwrap().as_str(), "overloaded");
    }

    #[test]
    fn an_unknown_route_names_its_path() {
        let mut out = Vec::new();
        encode_no_such_route("/api/v1/nö\n", &mut out);
        let want =
            "{\"error\":\"not found\",\"code\":\"no_such_route\",\"path\":\"/api/v1/nö\\n\"}";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}

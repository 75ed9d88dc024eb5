//! Authentication of the real binary, from outside: which tokens are good, what each role may do,
//! and whose name is stamped into what is pushed.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "auth/keys.rs"]
mod keys;
#[path = "auth/producer.rs"]
mod producer;
#[path = "auth/roles.rs"]
mod roles;
#[path = "auth/start.rs"]
mod start;
mod support;
#[path = "auth/tokens.rs"]
mod tokens;

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use support::{Broker, Client, Options, Response};

const SECRET: &str = "open sesame";
const RSA: &[u8] = include_bytes!("fixtures/auth/rsa.pem");
const RSA_ROTATED: &[u8] = include_bytes!("fixtures/auth/rsa2.pem");
const ED25519: &[u8] = include_bytes!("fixtures/auth/ed.pem");

/// A broker with these settings of authentication, `JWT_ENABLED` among them.
fn broker(environment: &[(&str, &str)]) -> Broker {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let environment = [("JWT_ENABLED", "true")].iter().chain(environment).map(own).collect();
    Broker::start(Options { environment, ..Options::default() })
}

/// The plain case: HS256 with [`SECRET`].
fn with_secret() -> Broker {
    broker(&[("JWT_SECRET", SECRET)])
}

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

fn hs256(claims: Value) -> String {
    hmac(Algorithm::HS256, &claims)
}

fn hmac(algorithm: Algorithm, claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    encode(&Header::new(algorithm), claims, &key).unwrap()
}

fn signed(algorithm: Algorithm, key: &[u8], id: &str, claims: &Value) -> String {
    let key = match algorithm {
        Algorithm::EdDSA => EncodingKey::from_ed_pem(key).unwrap(),
        _ => EncodingKey::from_rsa_pem(key).unwrap(),
    };
    let header = Header { kid: Some(id.to_owned()), ..Header::new(algorithm) };
    encode(&header, claims, &key).unwrap()
}

fn token(role: &str) -> String {
    hs256(json!({ "sub": "ann", "role": role, "exp": now_s() + 600 }))
}

/// Sends one request with this `Authorization`, if any, and reads its answer.
fn ask(
    client: &mut Client,
    method: &str,
    target: &str,
    authorization: Option<&str>,
    body: &[u8],
) -> Response {
    let field =
        authorization.map_or_else(String::new, |value| format!("Authorization: {value}\r\n"));
    let length = body.len();
    let head =
        format!("{method} {target} HTTP/1.1\r\nHost: x\r\n{field}Content-Length: {length}\r\n\r\n");
    let bytes = [head.as_bytes(), body].concat();
    client.send_raw(&bytes).unwrap();
    client.read_response(method == "HEAD").unwrap()
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// A request without a body, under a token.
fn get(client: &mut Client, target: &str, token: &str) -> Response {
    ask(client, "GET", target, Some(&bearer(token)), b"")
}

const QUEUES: &str = "/api/v1/resources/queues";

/// That a request is refused with exactly this.
fn refused(answer: &Response, status: u16, text: &str) {
    assert_eq!((answer.status, answer.json()), (status, json!({ "error": text })));
    let challenge = (status == 401).then_some("Bearer");
    assert_eq!(answer.header("www-authenticate"), challenge);
}

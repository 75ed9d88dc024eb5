//! Good tokens and bad ones, and what is said of each.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::json;

use super::support::{Broker, Options, Wire};
use super::{
    ED25519, QUEUES, RSA, SECRET, ask, bearer, broker, get, hmac, hs256, now_s, refused, signed,
    token, with_secret,
};

const ALL: [(&str, Algorithm); 7] = [
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("EdDSA", Algorithm::EdDSA),
];

fn by(algorithm: Algorithm) -> String {
    let claims = json!({ "role": "read-only", "exp": now_s() + 600 });
    match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => hmac(algorithm, &claims),
        Algorithm::EdDSA => signed(algorithm, ED25519, "ed", &claims),
        _ => signed(algorithm, RSA, "k1", &claims),
    }
}

#[test]
fn every_algorithm_is_taken_where_it_is_set_and_nowhere_else() {
    let rsa = include_str!("../fixtures/auth/rsa.pub");
    let ed = include_str!("../fixtures/auth/ed.pub");
    let key_set = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/auth/jwks.json");
    let secret = ("JWT_SECRET", SECRET);
    for (setting, more) in [
        ("auto", vec![secret, ("LANEMQ_JWT_JWKS_FILE", key_set)]),
        ("HS256", vec![secret]),
        ("HS384", vec![secret]),
        ("HS512", vec![secret]),
        ("RS256", vec![("JWT_PUBLIC_KEY", rsa)]),
        ("RS384", vec![("JWT_PUBLIC_KEY", rsa)]),
        ("RS512", vec![("LANEMQ_JWT_JWKS_FILE", key_set)]),
        ("EdDSA", vec![("JWT_PUBLIC_KEY", ed)]),
    ] {
        let environment = [&[("JWT_ALGORITHM", setting)], more.as_slice()].concat();
        let broker = broker(&environment);
        let mut client = broker.client();
        for (name, algorithm) in ALL {
            let answer = get(&mut client, QUEUES, &by(algorithm));
            let family = setting == "RS256" && name.starts_with("RS");
            if setting == name || setting == "auto" || family {
                assert_eq!(answer.status, 200, "{setting} {name}: {}", answer.text());
            } else {
                refused(&answer, 401, "Unsupported token algorithm");
            }
        }
    }
}

#[test]
fn a_public_key_passed_off_as_the_secret_opens_nothing() {
    let rsa = include_str!("../fixtures/auth/rsa.pub");
    let confused: Vec<&str> = include_str!("../fixtures/auth/tokens.txt")
        .lines()
        .filter_map(|line| line.strip_prefix("confused "))
        .collect();
    assert_eq!(confused.len(), 2);
    let both =
        broker(&[("JWT_ALGORITHM", "auto"), ("JWT_PUBLIC_KEY", rsa), ("JWT_SECRET", SECRET)]);
    let mut client = both.client();
    for token in &confused {
        refused(&get(&mut client, QUEUES, token), 401, "Invalid token signature");
    }
    assert_eq!(get(&mut client, QUEUES, &by(Algorithm::RS384)).status, 200);
    let no_secret = broker(&[("JWT_ALGORITHM", "auto"), ("JWT_PUBLIC_KEY", rsa)]);
    let answer = get(&mut no_secret.client(), QUEUES, confused[0]);
    refused(&answer, 500, "No secret is configured for this token's algorithm");
}

#[test]
fn each_fault_of_a_token_has_its_answer() {
    let broker =
        broker(&[("JWT_SECRET", SECRET), ("JWT_ISSUER", "me"), ("JWT_AUDIENCE", "lanemq")]);
    let mut client = broker.client();
    let good = json!({ "role": "read-only", "iss": "me", "aud": ["x", "lanemq"] });
    let with = |key: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        claims[key] = value;
        hs256(claims)
    };
    assert_eq!(get(&mut client, QUEUES, &hs256(good.clone())).status, 200);
    let none = format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
        URL_SAFE_NO_PAD.encode(good.to_string())
    );
    let mut forged = hs256(good.clone());
    forged.replace_range(forged.len() - 8..forged.len() - 4, "AAAA");
    for (token, text) in [
        ("x".to_owned(), "Bad token header"),
        (none, "Unsupported token algorithm"),
        (hmac(Algorithm::HS512, &good), "Unsupported token algorithm"),
        (forged, "Invalid token signature"),
        (with("exp", json!(now_s() - 31)), "Token has expired"),
        (with("nbf", json!(now_s() + 60)), "Token not yet valid"),
        (with("iat", json!(now_s() + 60)), "Token issued in the future"),
        (with("exp", json!("never")), "Bad token claims"),
        (with("iss", json!("you")), "Invalid token issuer"),
        (with("aud", json!("you")), "Invalid token audience"),
    ] {
        refused(&get(&mut client, QUEUES, &token), 401, text);
    }
    refused(
        &get(&mut client, QUEUES, &with("role", json!("reader"))),
        403,
        "Insufficient permissions",
    );
    for none in [None, Some(""), Some("Bearer"), Some("Bearer  ")] {
        refused(&ask(&mut client, "GET", QUEUES, none, b""), 401, "Authentication required");
    }
    let basic = ask(&mut client, "GET", QUEUES, Some("Basic YTpi"), b"");
    refused(&basic, 401, "Bad token header");
    // All of it on one connection, and it still serves; with and without the scheme.
    for authorization in [hs256(good.clone()), format!("bEARER {}", hs256(good.clone()))] {
        let answer = ask(&mut client, "GET", QUEUES, Some(&authorization), b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let head = ask(&mut client, "HEAD", QUEUES, None, b"");
    assert_eq!((head.status, head.body.len()), (401, 0));
}

#[test]
fn a_token_that_was_good_is_refused_once_it_has_expired() {
    let broker = with_secret();
    let mut client = broker.client();
    let claims = json!({ "role": "read-only", "exp": now_s() - 27 });
    let token = hs256(claims);
    assert_eq!(get(&mut client, QUEUES, &token).status, 200);
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = get(&mut client, QUEUES, &token);
        if answer.status != 200 {
            break refused(&answer, 401, "Token has expired");
        }
        assert!(Instant::now() < limit, "a remembered token outlives its end");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn more_tokens_than_are_remembered_are_as_good_as_few() {
    let broker = with_secret();
    let mut client = broker.client();
    let tokens: Vec<String> =
        (0..2_500).map(|n| hs256(json!({ "sub": format!("s{n}"), "role": "read-only" }))).collect();
    for round in 0..2 {
        for (n, token) in tokens.iter().enumerate() {
            let answer = ask(&mut client, "HEAD", "/api/v1/dlq", Some(&bearer(token)), b"");
            assert_eq!(answer.status, 200, "round {round}, token {n}");
        }
    }
}

#[test]
fn a_large_body_is_refused_by_its_head() {
    let broker = with_secret();
    let head = |authorization: &str, more: &str| {
        format!(
            "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n{more}\
             Content-Length: 60000000\r\n\r\n"
        )
    };
    let reader = bearer(&token("read-only"));
    for (authorization, more, status, text) in [
        ("", "", 401, "Authentication required"),
        ("x", "Expect: 100-continue\r\n", 401, "Bad token header"),
        (reader.as_str(), "", 403, "Insufficient permissions"),
    ] {
        let mut client = broker.client();
        client.send_raw(head(authorization, more).as_bytes()).unwrap();
        let answer = client.read_response(false).unwrap();
        refused(&answer, status, text);
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.closed_within(Duration::from_secs(10)).unwrap());
    }
    let writer = bearer(&token("write-only"));
    let mut client = broker.client();
    client.send_raw(head(&writer, "Expect: 100-continue\r\n").as_bytes()).unwrap();
    assert_eq!(client.read_response(false).unwrap().status, 100);
    // A body that comes in pieces, behind a request that is still worked on.
    let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
    let pushed = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nAuthorization: {writer}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut client = broker.client();
    client.send_raw(format!("{pushed}{body}{pushed}").as_bytes()).unwrap();
    assert_eq!(client.read_response(false).unwrap().status, 201);
    client.send_raw(body.as_bytes()).unwrap();
    assert_eq!(client.read_response(false).unwrap().status, 201);
}

#[test]
fn with_authentication_off_a_token_is_not_looked_at() {
    let environment = [("JWT_SECRET", SECRET), ("JWT_ENABLED", "false")];
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let environment = environment.iter().map(own).collect();
    let broker = Broker::start(Options { environment, ..Options::default() });
    let mut client = broker.client();
    let sub = bearer(&token("read-only"));
    for authorization in [None, Some("Bearer garbage"), Some("\u{e9}"), Some(sub.as_str())] {
        let body = br#"{"items":[{"queue":"q","payload":1,"producerSub":"mallory"}]}"#;
        assert_eq!(ask(&mut client, "POST", "/api/v1/push", authorization, body).status, 201);
        let answer = ask(&mut client, "DELETE", "/api/v1/resources/queues/x", authorization, b"");
        assert_eq!(answer.status, 200);
    }
    let popped = client.get("/api/v1/pop/queue/q?batch=10&autoAck=true").unwrap().json();
    let messages = popped["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 4);
    assert!(messages.iter().all(|message| message["producerSub"].is_null()), "{popped}");
    assert_eq!(client.metric("pushed"), 4);
}

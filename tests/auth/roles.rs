//! Roles against routes, and the paths that need none.

use serde_json::json;

use super::support::Client;
use super::{QUEUES, SECRET, ask, bearer, broker, get, hs256, refused, token, with_secret};

/// Method, path, and whether read-only, write-only, read-write and admin reach it. Bodies are
/// empty: what is let in fails or not, but not for want of permission.
const ROUTES: &[(&str, &str, [bool; 4])] = &[
    ("GET", QUEUES, [true, false, true, true]),
    ("HEAD", QUEUES, [true, false, true, true]),
    ("GET", "/api/v1/resources/queues/q", [true, false, true, true]),
    ("GET", "/api/v1/dlq?queue=q", [true, false, true, true]),
    ("GET", "/api/v1/status", [true, false, true, true]),
    ("GET", "/api/v1/messages", [true, false, true, true]),
    ("GET", "/api/v1/kv/ns/a/b", [true, false, true, true]),
    ("POST", "/api/v1/fetch", [true, false, true, true]),
    ("POST", "/streams/v1/state/get", [true, false, true, true]),
    ("POST", "/api/v1/push", [false, true, true, true]),
    ("POST", "/api/v1/timers", [false, true, true, true]),
    ("POST", "/api/v1/ephemeral/push", [false, true, true, true]),
    ("GET", "/api/v1/pop/queue/q", [false, false, true, true]),
    ("GET", "/api/v1/pop?namespace=n", [false, false, true, true]),
    ("POST", "/api/v1/ack", [false, false, true, true]),
    ("POST", "/api/v1/transaction", [false, false, true, true]),
    ("POST", "/api/v1/lease/x/extend", [false, false, true, true]),
    ("POST", "/api/v1/configure", [false, false, true, true]),
    ("POST", "/api/v1/messages/1/t/retry", [false, false, true, true]),
    ("POST", "/api/v1/dlq/1/replay", [false, false, true, true]),
    ("DELETE", "/api/v1/messages/1/t", [false, false, true, true]),
    ("PUT", "/api/v1/kv/ns/a", [false, false, true, true]),
    ("GET", "/nowhere", [false, false, true, true]),
    ("GET", "//api/v1/resources/queues", [false, false, true, true]),
    ("GET", "/api/v1/RESOURCES/queues", [false, false, true, true]),
    ("GET", "/api/v1/%zz", [false, false, true, true]),
    ("DELETE", "/api/v1/resources/queues/q", [false, false, false, true]),
    ("DELETE", "/api/v1/consumer-groups/g", [false, false, false, true]),
    ("DELETE", "/api/v1/dlq?queue=q", [false, false, false, true]),
    // What the router decodes, the level sees decoded.
    ("DELETE", "/api/v1/%64lq?queue=q", [false, false, false, true]),
    ("DELETE", "/%61pi/v1/resources/queues/q", [false, false, false, true]),
    ("POST", "/api/v1/stats/refresh", [false, false, false, true]),
    ("GET", "/api/v1/system/shared-state", [false, false, false, true]),
    ("GET", "/internal/x", [false, false, false, true]),
    ("GET", "/health", [true; 4]),
    ("GET", "/metrics", [true; 4]),
    ("GET", "/metrics/prometheus", [true; 4]),
    ("GET", "/", [true; 4]),
    ("GET", "/favicon.ico", [true; 4]),
];

fn check(client: &mut Client, tokens: &[String; 4]) {
    for (method, path, reached) in ROUTES {
        let is_public = *reached == [true; 4] && !path.contains("/api/");
        for (token, reached) in tokens.iter().zip(reached) {
            let answer = ask(client, method, path, Some(&bearer(token)), b"");
            if *reached {
                assert!(![401, 403].contains(&answer.status), "{method} {path}: {}", answer.text());
            } else if *method == "HEAD" {
                assert_eq!(answer.status, 403, "{method} {path}");
            } else {
                refused(&answer, 403, "Insufficient permissions");
            }
        }
        let answer = ask(client, method, path, None, b"");
        match (is_public, *method) {
            (true, _) => assert_ne!(answer.status, 401, "{method} {path}"),
            (false, "HEAD") => assert_eq!(answer.status, 401, "{method} {path}"),
            (false, _) => refused(&answer, 401, "Authentication required"),
        }
    }
}

#[test]
fn each_role_reaches_its_routes_and_no_other() {
    let broker = with_secret();
    let tokens = ["read-only", "write-only", "read-write", "admin"].map(token);
    check(&mut broker.client(), &tokens);
}

#[test]
fn roles_and_their_claims_can_be_called_otherwise() {
    let broker = broker(&[
        ("JWT_SECRET", SECRET),
        ("JWT_ROLES_CLAIM", "https://x/role"),
        ("JWT_ROLES_ARRAY_CLAIM", "groups"),
        ("JWT_ROLE_READ_ONLY", "viewer"),
        ("JWT_ROLE_WRITE_ONLY", "producer"),
        ("JWT_ROLE_READ_WRITE", "worker"),
        ("LANEMQ_JWT_ROLE_ADMIN", "operator"),
    ]);
    let named = |role: &str| hs256(json!({ "https://x/role": role, "role": "admin" }));
    let listed = |role: &str| hs256(json!({ "groups": ["other", role], "roles": ["admin"] }));
    let mut client = broker.client();
    check(&mut client, &["viewer", "producer", "worker", "operator"].map(named));
    check(&mut client, &["viewer", "producer", "worker", "operator"].map(listed));
    let both = hs256(json!({ "https://x/role": "viewer", "groups": ["producer"] }));
    assert_eq!(get(&mut client, QUEUES, &both).status, 200);
    let pushed = br#"{"items":[{"queue":"q","payload":1}]}"#;
    let answer = ask(&mut client, "POST", "/api/v1/push", Some(&bearer(&both)), pushed);
    assert_eq!(answer.status, 201);
    refused(&get(&mut client, "/api/v1/pop/queue/q", &both), 403, "Insufficient permissions");
    refused(&get(&mut client, QUEUES, &token("admin")), 403, "Insufficient permissions");
}

#[test]
fn skipped_paths_need_no_token_and_public_ones_never_do() {
    let skipping =
        broker(&[("JWT_SECRET", SECRET), ("JWT_SKIP_PATHS", "/api/v1/status, /api/v1/resources/")]);
    let mut client = skipping.client();
    for (path, open) in [
        ("/api/v1/resources/queues", true),
        ("/api/v1/resources/queues?search=a", true),
        ("/api/v1/status", true),
        ("/api/v1/status/queues", false),
        ("/api/v1/dlq?queue=q", false),
        ("/health", true),
        ("/metrics", true),
        ("/", true),
    ] {
        let answer = ask(&mut client, "GET", path, None, b"");
        assert_eq!(answer.status == 401, !open, "{path}: {}", answer.text());
    }
    // A skipped path is open to everybody, whatever the method.
    assert_eq!(ask(&mut client, "DELETE", "/api/v1/resources/queues/q", None, b"").status, 200);
    let none = broker(&[("JWT_SECRET", SECRET), ("JWT_SKIP_PATHS", "")]);
    let mut client = none.client();
    for path in ["/health", "/metrics", "/metrics/prometheus", "/"] {
        assert_eq!(ask(&mut client, "GET", path, Some("garbage"), b"").status, 200, "{path}");
    }
}

//! Settings that cannot be meant stop the start, by name and without showing a secret.

use std::process::{Command, Stdio};

/// The one line of a start that is refused.
fn refusal(environment: &[(&str, &str)]) -> String {
    let data = format!("{}/auth-start-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let output = Command::new(env!("CARGO_BIN_EXE_lanemq"))
        .args(["--listen", "127.0.0.1:0", "--segment-bytes=4MiB", "--data-dir", &data])
        .env("LANEMQ_LOG_LEVEL", "error")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(data);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{environment:?}: {text}");
    text
}

#[test]
fn a_broker_that_would_let_nobody_or_everybody_in_does_not_start() {
    const ON: (&str, &str) = ("JWT_ENABLED", "true");
    for (environment, named) in [
        (&[ON][..], "JWT_SECRET"),
        (&[ON, ("JWT_SECRET", "")], "JWT_SECRET"),
        (&[ON, ("JWT_ALGORITHM", "RS256"), ("JWT_SECRET", "s")], "JWT_PUBLIC_KEY"),
        (&[ON, ("JWT_ALGORITHM", "none"), ("JWT_SECRET", "s")], "--jwt-algorithm"),
        (&[ON, ("JWT_ALGORITHM", "EdDSA"), ("JWT_PUBLIC_KEY", "-----BEGIN")], "JWT_PUBLIC_KEY"),
        (&[ON, ("JWT_ALGORITHM", "auto"), ("JWT_JWKS_URL", "https://x/")], "JWT_JWKS_URL"),
        (&[ON, ("JWT_ALGORITHM", "auto"), ("LANEMQ_JWT_JWKS_FILE", "/no/file")], "/no/file"),
        (&[ON, ("JWT_SECRET", "s"), ("JWT_CLOCK_SKEW", "a while")], "--jwt-clock-skew"),
        (&[ON, ("JWT_SECRET", "s"), ("JWT_ROLE_ADMIN", "read-only")], "JWT_ROLE"),
        (&[("JWT_ENABLED", "yes")], "--jwt-enabled"),
        (&[("QUEEN_TENANCY_HEADER", "true")], "QUEEN_TENANCY_HEADER"),
    ] {
        let text = refusal(environment);
        assert!(text.contains(named), "{environment:?}: {text}");
    }
}

#[test]
fn the_secret_is_in_no_line_of_the_log() {
    let broker = super::broker(&[("JWT_SECRET", "open sesame"), ("LANEMQ_LOG_LEVEL", "trace")]);
    let mut client = broker.client();
    let token = super::token("admin");
    assert_eq!(super::get(&mut client, super::QUEUES, &token).status, 200);
    let log = broker.log();
    assert!(log.contains("secret set"), "the settings are logged: {log}");
    assert!(!log.contains("sesame") && !log.contains(&token));
}

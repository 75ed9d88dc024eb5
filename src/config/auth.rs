//! Settings of authentication. Secrets and keys come from files or the environment, never from
//! flags: the arguments of a process are everybody's to read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jsonwebtoken::DecodingKey;

use crate::server::access::RoleNames;
use crate::server::auth::{AuthSettings, SkipPaths};
use crate::server::jwks::{HttpUrl, Refresh, Source};
use crate::server::token::{Accepted, FixedKeys, Rules, public_key};

/// Flags, their variables, and the variables of the published brokers for them.
pub(super) const ALIASES: [(&str, &str, &str); 17] = [
    ("--jwt-enabled", "LANEMQ_JWT_ENABLED", "JWT_ENABLED"),
    ("--jwt-algorithm", "LANEMQ_JWT_ALGORITHM", "JWT_ALGORITHM"),
    ("--jwt-jwks-url", "LANEMQ_JWT_JWKS_URL", "JWT_JWKS_URL"),
    (
        "--jwt-jwks-refresh-interval",
        "LANEMQ_JWT_JWKS_REFRESH_INTERVAL",
        "JWT_JWKS_REFRESH_INTERVAL",
    ),
    ("--jwt-jwks-timeout-ms", "LANEMQ_JWT_JWKS_TIMEOUT_MS", "JWT_JWKS_TIMEOUT_MS"),
    ("--jwt-issuer", "LANEMQ_JWT_ISSUER", "JWT_ISSUER"),
    ("--jwt-audience", "LANEMQ_JWT_AUDIENCE", "JWT_AUDIENCE"),
    ("--jwt-clock-skew", "LANEMQ_JWT_CLOCK_SKEW", "JWT_CLOCK_SKEW"),
    ("--jwt-require-exp", "LANEMQ_JWT_REQUIRE_EXP", "JWT_REQUIRE_EXP"),
    (SKIP_PATHS, "LANEMQ_JWT_SKIP_PATHS", "JWT_SKIP_PATHS"),
    ("--jwt-roles-claim", "LANEMQ_JWT_ROLES_CLAIM", "JWT_ROLES_CLAIM"),
    ("--jwt-roles-array-claim", "LANEMQ_JWT_ROLES_ARRAY_CLAIM", "JWT_ROLES_ARRAY_CLAIM"),
    ("--jwt-role-admin", "LANEMQ_JWT_ROLE_ADMIN", "JWT_ROLE_ADMIN"),
    ("--jwt-role-read-write", "LANEMQ_JWT_ROLE_READ_WRITE", "JWT_ROLE_READ_WRITE"),
    ("--jwt-role-read-only", "LANEMQ_JWT_ROLE_READ_ONLY", "JWT_ROLE_READ_ONLY"),
    ("--jwt-role-write-only", "LANEMQ_JWT_ROLE_WRITE_ONLY", "JWT_ROLE_WRITE_ONLY"),
    ("--tenancy-header", "LANEMQ_TENANCY_HEADER", "QUEEN_TENANCY_HEADER"),
];

/// The one setting that says something when it is set and empty.
pub(super) const SKIP_PATHS: &str = "--jwt-skip-paths";

/// Who may do what.
#[derive(Clone, Debug, Args)]
pub struct AuthConfig {
    /// Ask every request for a bearer token (JWT): `true` or `false`. The secret stands in
    /// `LANEMQ_JWT_SECRET`, a PEM public key may stand in `LANEMQ_JWT_PUBLIC_KEY`.
    #[arg(long, env = "LANEMQ_JWT_ENABLED", default_value = "false", value_parser = strict_bool, action = clap::ArgAction::Set)]
    pub jwt_enabled: bool,

    /// Algorithms that are taken: HS256, HS384, HS512, RS256 (with RS384 and RS512), RS384,
    /// RS512, EdDSA, or auto for all of them.
    #[arg(long, env = "LANEMQ_JWT_ALGORITHM", default_value = "HS256", value_parser = Accepted::from_name)]
    pub jwt_algorithm: Accepted,

    /// File with the secret of HS256, HS384 and HS512; a line end behind it does not count.
    #[arg(long, env = "LANEMQ_JWT_SECRET_FILE")]
    pub jwt_secret_file: Option<PathBuf>,

    /// File with the public key (RSA or Ed25519) in PEM.
    #[arg(long, env = "LANEMQ_JWT_PUBLIC_KEY_FILE")]
    pub jwt_public_key_file: Option<PathBuf>,

    /// File with a key set (JWKS); looked at every five seconds.
    #[arg(long, env = "LANEMQ_JWT_JWKS_FILE")]
    pub jwt_jwks_file: Option<PathBuf>,

    /// Address of a key set (JWKS), plain http only.
    #[arg(long, env = "LANEMQ_JWT_JWKS_URL")]
    pub jwt_jwks_url: Option<String>,

    /// Seconds between two fetches of the key set's address.
    #[arg(long, env = "LANEMQ_JWT_JWKS_REFRESH_INTERVAL", default_value = "3600", value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub jwt_jwks_refresh_interval: u64,

    /// Milliseconds that one fetch may take.
    #[arg(long, env = "LANEMQ_JWT_JWKS_TIMEOUT_MS", default_value = "5000", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub jwt_jwks_timeout_ms: u64,

    /// The issuer (`iss`) that tokens must have. Any if not given.
    #[arg(long, env = "LANEMQ_JWT_ISSUER")]
    pub jwt_issuer: Option<String>,

    /// The audience (`aud`) that tokens must name. Any if not given.
    #[arg(long, env = "LANEMQ_JWT_AUDIENCE")]
    pub jwt_audience: Option<String>,

    /// Seconds that the clocks of issuer and broker may differ.
    #[arg(long, env = "LANEMQ_JWT_CLOCK_SKEW", default_value = "30", value_parser = clap::value_parser!(i64).range(0..=3_600))]
    pub jwt_clock_skew: i64,

    /// Refuse tokens without `exp`: `true` or `false`.
    #[arg(long, env = "LANEMQ_JWT_REQUIRE_EXP", default_value = "false", value_parser = strict_bool, action = clap::ArgAction::Set)]
    pub jwt_require_exp: bool,

    /// Paths that need no token, with commas; one that ends in `/` stands for all below it.
    #[arg(
        long,
        env = "LANEMQ_JWT_SKIP_PATHS",
        default_value = "/health,/metrics/prometheus,/metrics,/"
    )]
    pub jwt_skip_paths: String,

    /// Claim with one role.
    #[arg(long, env = "LANEMQ_JWT_ROLES_CLAIM", default_value = "role", value_parser = word)]
    pub jwt_roles_claim: String,

    /// Claim with a list of roles.
    #[arg(long, env = "LANEMQ_JWT_ROLES_ARRAY_CLAIM", default_value = "roles", value_parser = word)]
    pub jwt_roles_array_claim: String,

    /// What the role that may do everything is called.
    #[arg(long, env = "LANEMQ_JWT_ROLE_ADMIN", default_value = "admin", value_parser = word)]
    pub jwt_role_admin: String,

    /// What the role of producers that also consume is called.
    #[arg(long, env = "LANEMQ_JWT_ROLE_READ_WRITE", default_value = "read-write", value_parser = word)]
    pub jwt_role_read_write: String,

    /// What the role that only looks is called.
    #[arg(long, env = "LANEMQ_JWT_ROLE_READ_ONLY", default_value = "read-only", value_parser = word)]
    pub jwt_role_read_only: String,

    /// What the role that only pushes is called.
    #[arg(long, env = "LANEMQ_JWT_ROLE_WRITE_ONLY", default_value = "write-only", value_parser = word)]
    pub jwt_role_write_only: String,

    /// There is one tenant: who sets this expects what is not there, and is told so.
    #[arg(long, hide = true, env = "LANEMQ_TENANCY_HEADER", default_value = "false", value_parser = strict_bool, action = clap::ArgAction::Set)]
    pub tenancy_header: bool,
}

impl AuthConfig {
    /// `None` with authentication off. The error is in words, and holds no secret.
    pub fn settings(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<AuthSettings>, String> {
        if self.tenancy_header {
            return Err("QUEEN_TENANCY_HEADER: this broker keeps no tenants apart".to_owned());
        }
        if !self.jwt_enabled {
            return Ok(None);
        }
        let rules = Rules {
            accepted: self.jwt_algorithm,
            fixed: self.fixed_keys(env)?,
            has_key_set: self.source()?.is_some(),
            issuer: given(self.jwt_issuer.as_ref()),
            audience: given(self.jwt_audience.as_ref()),
            clock_skew_s: self.jwt_clock_skew,
            require_expiry: self.jwt_require_exp,
            role_claim: self.jwt_roles_claim.clone(),
            roles_claim: self.jwt_roles_array_claim.clone(),
        };
        rules.check_keys()?;
        let refresh = self.source()?.map(|source| Refresh {
            source,
            every: Duration::from_secs(self.jwt_jwks_refresh_interval),
            timeout: Duration::from_millis(self.jwt_jwks_timeout_ms),
        });
        Ok(Some(AuthSettings {
            rules,
            refresh,
            roles: self.role_names()?,
            skips: SkipPaths::parse(&self.jwt_skip_paths),
        }))
    }

    fn fixed_keys(&self, env: impl Fn(&str) -> Option<String>) -> Result<FixedKeys, String> {
        let text = |file: Option<&Path>, own: &str, theirs: &str| match file {
            Some(path) => std::fs::read_to_string(path)
                .map(|text| Some(text.trim_end_matches(['\r', '\n']).to_owned()))
                .map_err(|error| format!("{}: {error}", path.display())),
            None => {
                Ok([own, theirs].iter().find_map(|name| env(name).filter(|text| !text.is_empty())))
            }
        };
        let secret = text(self.jwt_secret_file.as_deref(), "LANEMQ_JWT_SECRET", "JWT_SECRET")?;
        let public =
            text(self.jwt_public_key_file.as_deref(), "LANEMQ_JWT_PUBLIC_KEY", "JWT_PUBLIC_KEY")?;
        let secret = secret.map(|secret| {
            DecodingKey::from_secret(secret.as_bytes())
                .map_err(|error| format!("JWT_SECRET: {error}"))
        });
        // In a variable the line ends of a PEM text are often written out.
        let public = public.map(|pem| {
            public_key(&pem.replace("\\n", "\n"))
                .map_err(|error| format!("JWT_PUBLIC_KEY: {error}"))
        });
        Ok(FixedKeys { secret: secret.transpose()?, public: public.transpose()? })
    }

    fn source(&self) -> Result<Option<Source>, String> {
        match (&self.jwt_jwks_file, given(self.jwt_jwks_url.as_ref())) {
            (Some(_), Some(_)) => Err("a key set has one place: JWT_JWKS_URL or a file".to_owned()),
            (Some(path), None) => Ok(Some(Source::File(path.clone()))),
            (None, Some(url)) => HttpUrl::parse(&url)
                .map(|url| Some(Source::Url(url)))
                .map_err(|error| format!("JWT_JWKS_URL: {error}")),
            (None, None) => Ok(None),
        }
    }

    fn role_names(&self) -> Result<RoleNames, String> {
        let names = RoleNames {
            admin: self.jwt_role_admin.clone(),
            read_write: self.jwt_role_read_write.clone(),
            read_only: self.jwt_role_read_only.clone(),
            write_only: self.jwt_role_write_only.clone(),
        };
        let all = [&names.admin, &names.read_write, &names.read_only, &names.write_only];
        for (at, name) in all.iter().enumerate() {
            if all[..at].contains(name) {
                return Err(format!("JWT_ROLE_…: two roles are called {name:?}"));
            }
        }
        Ok(names)
    }
}

fn given(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.is_empty()).cloned()
}

/// A switch that means off when it is mistyped would leave a broker open.
fn strict_bool(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// An empty name of a role would be matched by an empty claim.
fn word(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::Config;

    const ED25519: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
        -----END PUBLIC KEY-----\n";

    fn config(args: &[&str]) -> Result<AuthConfig, clap::Error> {
        let all = std::iter::once("lanemq").chain(args.iter().copied());
        Config::try_parse_from(all).map(|config| config.auth)
    }

    fn settings(args: &[&str], env: &[(&str, &str)]) -> Result<Option<AuthSettings>, String> {
        let read = |name: &str| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        config(args).unwrap().settings(read)
    }

    #[test]
    fn it_is_off_unless_asked_for_and_a_switch_is_true_or_false() {
        assert!(settings(&[], &[("JWT_SECRET", "s")]).unwrap().is_none());
        assert!(settings(&["--jwt-enabled=1"], &[("JWT_SECRET", "s")]).unwrap().is_some());
        for bad in ["--jwt-enabled=yes", "--jwt-enabled=", "--jwt-require-exp=on"] {
            assert!(config(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_algorithm_needs_its_kind_of_key_and_the_refusal_names_it() {
        let on = |algorithm: &str, env: &[(&str, &str)]| {
            let algorithm = format!("--jwt-algorithm={algorithm}");
            settings(&["--jwt-enabled=true", &algorithm], env).map(|_| ())
        };
        let (secret, public) = (("JWT_SECRET", "s"), ("JWT_PUBLIC_KEY", ED25519));
        let url = ("JWT_JWKS_URL", "unused");
        for algorithm in ["HS256", "HS384", "HS512"] {
            assert_eq!(on(algorithm, &[secret]), Ok(()), "{algorithm}");
            assert!(on(algorithm, &[public, url]).unwrap_err().contains("JWT_SECRET"));
        }
        for algorithm in ["RS256", "RS384", "RS512"] {
            // A key of the other family is no key.
            assert!(on(algorithm, &[secret, public]).unwrap_err().contains("RSA"), "{algorithm}");
        }
        assert_eq!(on("EdDSA", &[public]), Ok(()));
        assert!(on("EdDSA", &[secret]).unwrap_err().contains("Ed25519"));
        assert_eq!(on("auto", &[secret]), Ok(()));
        assert_eq!(on("auto", &[public]), Ok(()));
        assert!(on("auto", &[]).is_err());
        for bad in ["none", "hs256", "ES256", "PS256", ""] {
            assert!(config(&[&format!("--jwt-algorithm={bad}")]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_broken_key_or_address_is_refused_by_name() {
        let on = |args: &[&str], env: &[(&str, &str)]| {
            let args: Vec<&str> = ["--jwt-enabled=true", "--jwt-algorithm=auto"]
                .iter()
                .chain(args)
                .copied()
                .collect();
            settings(&args, env).unwrap_err()
        };
        let broken = ED25519.replace("MCow", "MCox");
        for pem in [&broken, "x", "-----BEGIN PRIVATE KEY-----\nMCow\n-----END PRIVATE KEY-----"] {
            let error = on(&[], &[("JWT_PUBLIC_KEY", pem)]);
            assert!(error.starts_with("JWT_PUBLIC_KEY"), "{error}");
        }
        let escaped = ED25519.replace('\n', "\\n");
        let env = [("JWT_PUBLIC_KEY", escaped.as_str())];
        assert!(settings(&["--jwt-enabled=true", "--jwt-algorithm=EdDSA"], &env).is_ok());
        assert!(on(&["--jwt-jwks-url=https://x/jwks"], &[]).contains("http://"));
        assert!(on(&["--jwt-jwks-url=http://"], &[]).contains("JWT_JWKS_URL"));
        let both = on(&["--jwt-jwks-url=http://x/", "--jwt-jwks-file=/x"], &[]);
        assert!(both.contains("one place"), "{both}");
        assert!(on(&["--jwt-secret-file=/no/such/file"], &[]).contains("/no/such/file"));
        let same = on(&["--jwt-role-admin=x", "--jwt-role-read-only=x"], &[("JWT_SECRET", "s")]);
        assert!(same.contains("\"x\""), "{same}");
        assert!(settings(&["--tenancy-header=true"], &[]).unwrap_err().contains("TENANCY"));
        assert!(config(&["--jwt-role-admin="]).is_err());
    }

    #[test]
    fn no_secret_shows_when_settings_are_printed() {
        let env = [("JWT_SECRET", "open sesame"), ("JWT_PUBLIC_KEY", ED25519)];
        let shown = format!("{:?}", settings(&["--jwt-enabled=true"], &env).unwrap().unwrap());
        assert!(shown.contains("secret set, public key set"), "{shown}");
        assert!(!shown.contains("sesame") && !shown.contains("111, 112, 101, 110"), "{shown}");
    }
}

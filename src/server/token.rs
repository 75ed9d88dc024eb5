//! Bearer tokens (JWT, RFC 7519): what makes one valid. No I/O and no clock: keys and the time
//! are arguments.
//!
//! The order of the checks is part of the wire, since the first that fails is what the client is
//! told: header, algorithm, key, signature, then the times, then issuer and audience. **A key is
//! chosen by the family of the algorithm**: an HMAC is only ever computed with the secret, so a
//! public key cannot be passed off as one.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, crypto};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::jwks::KeySet;

/// Every algorithm that a token may be signed with, by its name on the wire. The one list: what
/// is configured and what is verified are both looked up here.
const ALGORITHMS: [(&str, Algorithm); 7] = [
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("EdDSA", Algorithm::EdDSA),
];

/// Why a request is not let in; what the client is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denial {
    NoToken,
    BadHeader,
    UnsupportedAlgorithm,
    UnknownKey,
    BadSignature,
    BadClaims,
    Expired,
    NoExpiry,
    NotYetValid,
    IssuedInFuture,
    WrongIssuer,
    WrongAudience,
    /// The token is good, its roles do not reach.
    Forbidden,
    /// The broker lacks the key that this kind of token needs: not the client's fault.
    NoSecret,
}

impl Denial {
    pub fn status(self) -> u16 {
        match self {
            Self::Forbidden => 403,
            Self::NoSecret => 500,
            _ => 401,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::NoToken => "Authentication required",
            Self::BadHeader => "Bad token header",
            Self::UnsupportedAlgorithm => "Unsupported token algorithm",
            Self::UnknownKey => "Unknown key ID",
            Self::BadSignature => "Invalid token signature",
            Self::BadClaims => "Bad token claims",
            Self::Expired => "Token has expired",
            Self::NoExpiry => "Token without an expiry",
            Self::NotYetValid => "Token not yet valid",
            Self::IssuedInFuture => "Token issued in the future",
            Self::WrongIssuer => "Invalid token issuer",
            Self::WrongAudience => "Invalid token audience",
            Self::Forbidden => "Insufficient permissions",
            Self::NoSecret => "No secret is configured for this token's algorithm",
        }
    }
}

/// Which algorithms are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    One(Algorithm),
    /// What `RS256` has always meant on this wire: RS256, RS384 and RS512.
    RsaFamily,
    All,
}

impl Accepted {
    /// Reads the setting. Names are those of the wire, in their own spelling.
    pub fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "auto" => return Ok(Self::All),
            "RS256" => return Ok(Self::RsaFamily),
            _ => {}
        }
        let known = ALGORITHMS.iter().find(|(known, _)| *known == name);
        known.map(|(_, algorithm)| Self::One(*algorithm)).ok_or_else(|| {
            let names: Vec<&str> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
            format!("{name:?} is none of {} and auto", names.join(", "))
        })
    }

    fn takes(self, algorithm: Algorithm) -> bool {
        match self {
            Self::One(one) => one == algorithm,
            Self::RsaFamily => algorithm.family() == AlgorithmFamily::Rsa,
            Self::All => true,
        }
    }

    /// The family of the one kind of key it needs; `None` where any will do.
    fn family(self) -> Option<AlgorithmFamily> {
        match self {
            Self::One(one) => Some(one.family()),
            Self::RsaFamily => Some(AlgorithmFamily::Rsa),
            Self::All => None,
        }
    }
}

/// The secret and the public key that the broker was given. Shows neither.
#[derive(Clone, Default)]
pub struct FixedKeys {
    pub secret: Option<DecodingKey>,
    pub public: Option<DecodingKey>,
}

impl fmt::Debug for FixedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = |key: &Option<DecodingKey>| if key.is_some() { "set" } else { "none" };
        write!(f, "secret {}, public key {}", there(&self.secret), there(&self.public))
    }
}

/// Reads an RSA or Ed25519 public key in PEM.
pub fn public_key(pem: &str) -> Result<DecodingKey, String> {
    let pem = pem.trim();
    let is_public = ["PUBLIC KEY", "RSA PUBLIC KEY"]
        .iter()
        .any(|name| pem.starts_with(&format!("-----BEGIN {name}-----")));
    if !is_public {
        return Err("the public key does not begin with -----BEGIN PUBLIC KEY-----".to_owned());
    }
    let key = DecodingKey::from_ed_pem(pem.as_bytes())
        .or_else(|_not_ed25519| DecodingKey::from_rsa_pem(pem.as_bytes()))
        .map_err(|error| format!("the public key is neither RSA nor Ed25519 in PEM: {error}"))?;
    let bytes = key.try_get_as_bytes().map_or(0, <[u8]>::len);
    let enough = match key.family() {
        AlgorithmFamily::Rsa => bytes > RSA_BYTES_MIN,
        _ => bytes == ED25519_BYTES,
    };
    if enough {
        Ok(key)
    } else {
        Err("the public key is too short: RSA needs 2,048 bits".to_owned())
    }
}

/// A modulus of 2,048 bits, the least that RSA signatures are verified with.
pub const RSA_BYTES_MIN: usize = 256;
pub const ED25519_BYTES: usize = 32;

/// What a token must satisfy.
#[derive(Clone, Debug)]
pub struct Rules {
    pub accepted: Accepted,
    pub fixed: FixedKeys,
    /// There are keys that change: a key set from a file or a URL.
    pub has_key_set: bool,
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub clock_skew_s: i64,
    /// A token without `exp` is refused.
    pub require_expiry: bool,
    /// The claims with one role, and with a list of them.
    pub role_claim: String,
    pub roles_claim: String,
}

impl Rules {
    /// Whether there is a key for what is accepted. The error names what is missing.
    pub fn check_keys(&self) -> Result<(), String> {
        let public = self.fixed.public.as_ref().map(DecodingKey::family);
        let (enough, needs) = match self.accepted.family() {
            Some(AlgorithmFamily::Hmac) => (self.fixed.secret.is_some(), "JWT_SECRET"),
            Some(AlgorithmFamily::Rsa) => (
                public == Some(AlgorithmFamily::Rsa) || self.has_key_set,
                "JWT_PUBLIC_KEY with an RSA key, or a key set",
            ),
            Some(_) => (
                public == Some(AlgorithmFamily::Ed) || self.has_key_set,
                "JWT_PUBLIC_KEY with an Ed25519 key, or a key set",
            ),
            None => (
                self.fixed.secret.is_some() || public.is_some() || self.has_key_set,
                "JWT_SECRET, JWT_PUBLIC_KEY or a key set",
            ),
        };
        if enough { Ok(()) } else { Err(format!("this JWT_ALGORITHM needs {needs}")) }
    }

    /// Checks a token against the keys there are now.
    pub fn verify(&self, token: &[u8], keys: &KeySet, now_s: i64) -> Result<Claims, Denial> {
        let parts = Parts::split(token).ok_or(Denial::BadHeader)?;
        let header = parts.header().ok_or(Denial::BadHeader)?;
        let algorithm = ALGORITHMS.iter().find(|(name, _)| *name == header.alg);
        let algorithm = algorithm.map(|(_, algorithm)| *algorithm);
        let algorithm = algorithm
            .filter(|algorithm| self.accepted.takes(*algorithm))
            .ok_or(Denial::UnsupportedAlgorithm)?;
        let key = self.key(algorithm.family(), header.kid.as_deref().unwrap_or(""), keys)?;
        let good = crypto::verify(parts.signature, parts.signed.as_bytes(), key, algorithm);
        // Also where the signature is no base64.
        if !good.unwrap_or(false) {
            return Err(Denial::BadSignature);
        }
        let claims = parts.claims().and_then(|claims| self.read(&claims));
        let claims = claims.ok_or(Denial::BadClaims)?;
        claims.times.check(now_s, self)?;
        self.check_parties(&claims)?;
        Ok(claims)
    }

    fn key<'a>(
        &'a self,
        family: AlgorithmFamily,
        id: &str,
        keys: &'a KeySet,
    ) -> Result<&'a DecodingKey, Denial> {
        if family == AlgorithmFamily::Hmac {
            return self.fixed.secret.as_ref().ok_or(Denial::NoSecret);
        }
        let public = self.fixed.public.as_ref().filter(|key| key.family() == family);
        public.or_else(|| keys.find(id, family)).ok_or(Denial::UnknownKey)
    }

    /// `None` where a claim has a type that it cannot have.
    fn read(&self, claims: &Map<String, Value>) -> Option<Claims> {
        let text = |name: &str| match claims.get(name) {
            None | Some(Value::Null) => Some(None),
            Some(Value::String(text)) => Some(Some(text.clone())),
            Some(_) => None,
        };
        let seconds = |name: &str| match claims.get(name) {
            None | Some(Value::Null) => Some(None),
            // A NumericDate may have a fraction; the cast saturates.
            Some(Value::Number(number)) => number.as_f64().map(|at| Some(at.floor() as i64)),
            Some(_) => None,
        };
        let list = |value: Option<&Value>| -> Vec<String> {
            match value {
                Some(Value::String(one)) => vec![one.clone()],
                Some(Value::Array(many)) => {
                    many.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
                }
                _ => Vec::new(),
            }
        };
        let one_role = claims.get(&self.role_claim).filter(|role| role.is_string());
        let many_roles = claims.get(&self.roles_claim).filter(|roles| roles.is_array());
        let mut roles = list(one_role);
        roles.extend(list(many_roles));
        Some(Claims {
            subject: text("sub")?.filter(|sub| !sub.is_empty()),
            roles,
            times: Times {
                expires_s: seconds("exp")?,
                not_before_s: seconds("nbf")?,
                issued_s: seconds("iat")?,
            },
            issuer: text("iss")?,
            audience: list(claims.get("aud")),
        })
    }

    fn check_parties(&self, claims: &Claims) -> Result<(), Denial> {
        if self.issuer.is_some() && claims.issuer != self.issuer {
            return Err(Denial::WrongIssuer);
        }
        if let Some(audience) = &self.audience
            && !claims.audience.contains(audience)
        {
            return Err(Denial::WrongAudience);
        }
        Ok(())
    }
}

/// What a valid token says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claims {
    /// Never empty.
    pub subject: Option<String>,
    pub roles: Vec<String>,
    pub times: Times,
    issuer: Option<String>,
    audience: Vec<String>,
}

/// When a token is good, in seconds of Unix time; all three are optional.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    expires_s: Option<i64>,
    not_before_s: Option<i64>,
    issued_s: Option<i64>,
}

impl Times {
    /// To be asked again each time the token is used: time goes on.
    pub fn check(&self, now_s: i64, rules: &Rules) -> Result<(), Denial> {
        let skew = rules.clock_skew_s;
        if self.expires_s.is_some_and(|at| now_s >= at.saturating_add(skew)) {
            return Err(Denial::Expired);
        }
        if self.expires_s.is_none() && rules.require_expiry {
            return Err(Denial::NoExpiry);
        }
        let ahead = |at: Option<i64>| at.is_some_and(|at| at > now_s.saturating_add(skew));
        if ahead(self.not_before_s) {
            return Err(Denial::NotYetValid);
        }
        if ahead(self.issued_s) {
            return Err(Denial::IssuedInFuture);
        }
        Ok(())
    }
}

/// A token in the compact form, taken apart.
struct Parts<'a> {
    header: &'a str,
    claims: &'a str,
    signature: &'a str,
    /// Header and claims with the dot between them.
    signed: &'a str,
}

/// The fields of a header that we go by. `crit` names extensions that must be understood
/// (RFC 7515 4.1.11), and none is.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl<'a> Parts<'a> {
    fn split(token: &'a [u8]) -> Option<Self> {
        let token = std::str::from_utf8(token).ok()?;
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        (!claims.contains('.')).then_some(Self { header, claims, signature, signed })
    }

    fn header(&self) -> Option<Header> {
        let bytes = URL_SAFE_NO_PAD.decode(self.header).ok()?;
        // A derived reader takes a list for an object.
        let object: Map<String, Value> = serde_json::from_slice(&bytes).ok()?;
        let header: Header = serde_json::from_value(Value::Object(object)).ok()?;
        header.crit.is_none().then_some(header)
    }

    fn claims(&self) -> Option<Map<String, Value>> {
        let bytes = URL_SAFE_NO_PAD.decode(self.claims).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use jsonwebtoken::{EncodingKey, encode};
    use serde_json::json;

    use super::*;

    const TOKENS: &str = include_str!("../../tests/fixtures/auth/tokens.txt");
    const RSA: &str = include_str!("../../tests/fixtures/auth/rsa.pub");
    const ED: &str = include_str!("../../tests/fixtures/auth/ed.pub");
    const KEY_SET: &str = include_str!("../../tests/fixtures/auth/jwks.json");
    const SECRET: &[u8] = b"open sesame";
    const NOW_S: i64 = 1_700_000_000;

    fn rules(accepted: &str) -> Rules {
        Rules {
            accepted: Accepted::from_name(accepted).unwrap(),
            fixed: FixedKeys {
                secret: Some(DecodingKey::from_secret(SECRET).unwrap()),
                public: None,
            },
            has_key_set: false,
            issuer: None,
            audience: None,
            clock_skew_s: 30,
            require_expiry: false,
            role_claim: "role".to_owned(),
            roles_claim: "roles".to_owned(),
        }
    }

    fn tokens() -> impl Iterator<Item = (&'static str, &'static str)> {
        TOKENS.lines().map(|line| line.split_once(' ').unwrap())
    }

    fn token_of(algorithm: &str) -> &'static str {
        tokens().find(|(name, _)| *name == algorithm).unwrap().1
    }

    fn hs256(claims: &Value) -> String {
        let key = EncodingKey::from_secret(SECRET).unwrap();
        encode(&jsonwebtoken::Header::default(), claims, &key).unwrap()
    }

    fn judged(rules: &Rules, claims: &Value) -> Result<Claims, Denial> {
        rules.verify(hs256(claims).as_bytes(), &KeySet::default(), NOW_S)
    }

    #[test]
    fn tokens_signed_by_another_tool_are_good_and_say_what_they_say() {
        let keys = KeySet::parse(KEY_SET.as_bytes()).unwrap();
        let mut seen = String::new();
        for (algorithm, token) in tokens().filter(|(name, _)| *name != "confused") {
            let mut rules = rules("auto");
            if algorithm == "EdDSA" {
                rules.fixed.public = Some(public_key(ED).unwrap());
            }
            let claims = rules.verify(token.as_bytes(), &keys, NOW_S).unwrap();
            assert_eq!(claims.subject.as_deref(), Some("ann"), "{algorithm}");
            assert_eq!(claims.roles, ["read-only", "write-only"], "{algorithm}");
            assert_eq!((claims.audience.len(), claims.issuer.as_deref()), (2, Some("me")));
            let damaged = token.replace("YW5u", "YW5v");
            let denial = rules.verify(damaged.as_bytes(), &keys, NOW_S).unwrap_err();
            assert_eq!(denial, Denial::BadSignature, "{algorithm}");
            let (signed, _) = token.rsplit_once('.').unwrap();
            for signature in ["", "AAAA", "!", "====", token] {
                let forged = format!("{signed}.{signature}");
                let denial = rules.verify(forged.as_bytes(), &keys, NOW_S).unwrap_err();
                let expected =
                    if signature == token { Denial::BadHeader } else { Denial::BadSignature };
                assert_eq!(denial, expected, "{algorithm}");
            }
            write!(seen, "{algorithm} ").unwrap();
        }
        assert_eq!(seen, "HS256 HS384 HS512 RS256 RS384 RS512 EdDSA ");
    }

    #[test]
    fn each_setting_takes_its_own_algorithms_and_no_other() {
        let keys = KeySet::default();
        for setting in ["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "EdDSA", "auto"] {
            let mut rules = rules(setting);
            rules.fixed.public =
                Some(public_key(if setting == "EdDSA" { ED } else { RSA }).unwrap());
            for (algorithm, token) in tokens().filter(|(name, _)| *name != "confused") {
                let wanted = setting == algorithm
                    || setting == "RS256" && algorithm.starts_with("RS")
                    || setting == "auto" && algorithm != "EdDSA";
                let got = rules.verify(token.as_bytes(), &keys, NOW_S);
                let denial = match setting {
                    // The one public key is an RSA key.
                    "auto" => Denial::UnknownKey,
                    _ => Denial::UnsupportedAlgorithm,
                };
                assert_eq!(got.err(), (!wanted).then_some(denial), "{setting} {algorithm}");
            }
        }
        for bad in ["none", "None", "hs256", "ES256", "PS256", "HS1", ""] {
            assert!(Accepted::from_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn headers_that_ask_for_less_are_refused() {
        let rules = rules("auto");
        let token = |header: &str| {
            let header = URL_SAFE_NO_PAD.encode(header);
            format!("{header}.{}.AAAA", URL_SAFE_NO_PAD.encode("{}"))
        };
        for (header, denial) in [
            (r#"{"alg":"none"}"#, Denial::UnsupportedAlgorithm),
            (r#"{"alg":"ES256"}"#, Denial::UnsupportedAlgorithm),
            (r#"{"alg":"PS256"}"#, Denial::UnsupportedAlgorithm),
            (r#"{"alg":"hs256"}"#, Denial::UnsupportedAlgorithm),
            (r#"{"alg":"RS256"}"#, Denial::UnknownKey),
            (r#"{"alg":"HS256"}"#, Denial::BadSignature),
            (r#"{"alg":"HS256","crit":["exp"]}"#, Denial::BadHeader),
            (r#"{"alg":5}"#, Denial::BadHeader),
            (r#"{"alg":"HS256","kid":5}"#, Denial::BadHeader),
            (r#"["HS256",null,null]"#, Denial::BadHeader),
            ("{}", Denial::BadHeader),
            ("", Denial::BadHeader),
        ] {
            let got = rules.verify(token(header).as_bytes(), &KeySet::default(), NOW_S);
            assert_eq!(got, Err(denial), "{header}");
        }
        for text in ["", ".", "..", "a", "a.b", "a.b.c.d", "e30.e30.", "\u{e9}.x.y", "a b.c.d"] {
            let got = rules.verify(text.as_bytes(), &KeySet::default(), NOW_S);
            assert_eq!(got, Err(Denial::BadHeader), "{text}");
        }
        assert_eq!(rules.verify(b"\xff.x.y", &KeySet::default(), NOW_S), Err(Denial::BadHeader));
    }

    #[test]
    fn a_token_with_any_character_changed_opens_nothing() {
        let (rules, keys) = (rules("auto"), KeySet::parse(KEY_SET.as_bytes()).unwrap());
        for algorithm in ["HS256", "HS512", "RS256"] {
            let good = token_of(algorithm);
            assert!(rules.verify(good.as_bytes(), &keys, NOW_S).is_ok());
            for at in 0..good.len() {
                for other in *b"Aa0-_.=\x00\xff" {
                    let mut token = good.as_bytes().to_vec();
                    if std::mem::replace(&mut token[at], other) != other {
                        let got = rules.verify(&token, &keys, NOW_S);
                        assert!(got.is_err(), "{algorithm}: {other:#x} at {at}");
                    }
                }
                assert!(rules.verify(&good.as_bytes()[..at], &keys, NOW_S).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_public_key_is_no_secret() {
        let mut rules = rules("auto");
        rules.fixed.public = Some(public_key(RSA).unwrap());
        for (_, token) in tokens().filter(|(name, _)| *name == "confused") {
            let got = rules.verify(token.as_bytes(), &KeySet::default(), NOW_S);
            assert_eq!(got, Err(Denial::BadSignature));
        }
        rules.fixed.secret = None;
        let got = rules.verify(token_of("confused").as_bytes(), &KeySet::default(), NOW_S);
        assert_eq!(got, Err(Denial::NoSecret));
        assert_eq!(Denial::NoSecret.status(), 500);
    }

    #[test]
    fn times_are_judged_in_order_and_with_the_skew() {
        let mut rules = rules("HS256");
        let at = |claim: &str, s: i64| json!({ claim: NOW_S + s });
        for (claims, wanted) in [
            (json!({}), Ok(())),
            (at("exp", -29), Ok(())),
            (at("exp", -30), Err(Denial::Expired)),
            (json!({"exp": 1.5}), Err(Denial::Expired)),
            (json!({"exp": NOW_S as f64 + 0.5}), Ok(())),
            (json!({"exp": 1e300}), Ok(())),
            (json!({"exp": -1e300}), Err(Denial::Expired)),
            (json!({"exp": null}), Ok(())),
            (json!({"exp": (NOW_S + 5).to_string()}), Err(Denial::BadClaims)),
            (json!({"exp": true}), Err(Denial::BadClaims)),
            (json!({"nbf": [1]}), Err(Denial::BadClaims)),
            (json!({"sub": 7}), Err(Denial::BadClaims)),
            (at("nbf", 30), Ok(())),
            (at("nbf", 31), Err(Denial::NotYetValid)),
            (at("iat", 30), Ok(())),
            (at("iat", 31), Err(Denial::IssuedInFuture)),
            (json!({"exp": 1, "nbf": NOW_S + 99, "iat": NOW_S + 99}), Err(Denial::Expired)),
            (json!({"nbf": NOW_S + 99, "iat": NOW_S + 99}), Err(Denial::NotYetValid)),
        ] {
            assert_eq!(judged(&rules, &claims).map(|_| ()), wanted, "{claims}");
        }
        rules.require_expiry = true;
        assert_eq!(judged(&rules, &json!({})).unwrap_err(), Denial::NoExpiry);
        assert!(judged(&rules, &at("exp", 1)).is_ok());
    }

    #[test]
    fn issuer_and_audience_count_where_they_are_set() {
        let mut rules = rules("HS256");
        assert!(judged(&rules, &json!({"iss": "x", "aud": ["y"]})).is_ok());
        rules.issuer = Some("me".to_owned());
        rules.audience = Some("lanemq".to_owned());
        for (claims, wanted) in [
            (json!({"iss": "me", "aud": "lanemq"}), Ok(())),
            (json!({"iss": "me", "aud": ["a", "lanemq"]}), Ok(())),
            (json!({"iss": "me", "aud": ["a"]}), Err(Denial::WrongAudience)),
            (json!({"iss": "me", "aud": "lanemq2"}), Err(Denial::WrongAudience)),
            (json!({"iss": "me"}), Err(Denial::WrongAudience)),
            (json!({"aud": "lanemq"}), Err(Denial::WrongIssuer)),
            (json!({"iss": "you"}), Err(Denial::WrongIssuer)),
            (json!({"iss": "you", "exp": 1}), Err(Denial::Expired)),
        ] {
            assert_eq!(judged(&rules, &claims).map(|_| ()), wanted, "{claims}");
        }
    }

    #[test]
    fn roles_come_from_both_claims_and_their_names_can_be_set() {
        let mut rules = rules("HS256");
        let roles = |rules: &Rules, claims: Value| judged(rules, &claims).unwrap().roles;
        assert_eq!(roles(&rules, json!({"role": "a", "roles": ["b", "c"]})), ["a", "b", "c"]);
        // Each claim has its own type; the other's is not read.
        assert!(roles(&rules, json!({"role": ["a"], "roles": "b"})).is_empty());
        rules.role_claim = "https://x/role".to_owned();
        rules.roles_claim = "groups".to_owned();
        let claims = json!({"https://x/role": "a", "groups": ["b"], "role": "z", "roles": ["z"]});
        assert_eq!(roles(&rules, claims), ["a", "b"]);
        assert_eq!(judged(&rules, &json!({"sub": ""})).unwrap().subject, None);
    }

    #[test]
    fn public_keys_are_checked_when_they_are_read() {
        assert!(public_key(RSA).is_ok() && public_key(&format!("\n{ED}\n\n")).is_ok());
        let small = include_str!("../../tests/fixtures/auth/small.pub");
        assert!(public_key(small).unwrap_err().contains("2,048"));
        let private = include_str!("../../tests/fixtures/auth/rsa.pem");
        assert!(public_key(private).unwrap_err().contains("BEGIN PUBLIC KEY"));
        assert!(public_key("").is_err());
        assert!(public_key(&RSA.replace("MIIB", "MIIC")).is_err());
    }
}

//! Letting requests in, or not: one executor's view of the tokens it has seen.
//!
//! With authentication off there is no [`Auth`] at all, and an `Authorization` header is not
//! looked at. With it on, a request is judged once its head is there, before its body is taken,
//! and again with its body, when the answer comes from the memory of verified tokens.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use jsonwebtoken::crypto::CryptoProvider;
use jsonwebtoken::jwk::ThumbprintHash;

use super::access::{self, Level, RoleNames, Roles};
use super::jwks::{Asking, KeySet, REFETCH_MIN, Refresh};
use super::token::{Denial, Rules, Times};
use crate::base::limits;
use crate::http::{Method, Request, Target};
use crate::model::error::{ErrorCode, Refusal};

/// How authentication is set up. Shows no secret.
#[derive(Clone, Debug)]
pub struct AuthSettings {
    pub rules: Rules,
    pub refresh: Option<Refresh>,
    pub roles: RoleNames,
    pub skips: SkipPaths,
}

/// Paths that need no token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SkipPaths(Vec<String>);

impl SkipPaths {
    /// A list with commas. An entry that ends in `/` is a prefix, except for the root.
    pub fn parse(text: &str) -> Self {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        Self(entries.map(str::to_owned).collect())
    }

    fn hold(&self, path: &[u8]) -> bool {
        self.0.iter().map(String::as_bytes).any(|entry| {
            path == entry || entry.len() > 1 && entry.ends_with(b"/") && path.starts_with(entry)
        })
    }
}

/// Who makes a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    subject: Option<Box<str>>,
    roles: Roles,
    times: Times,
}

/// The name that pushes of this request are stamped with.
///
/// A longer one is refused here and not where the token is checked: it can read, and a refusal
/// by name is worth more than a stamp cut short, which would be another's name.
pub fn producer(caller: Option<&Caller>) -> Result<Option<&str>, Refusal> {
    match caller.and_then(|caller| caller.subject.as_deref()) {
        Some(sub) if sub.len() > limits::PRODUCER_BYTES_MAX => {
            let text = format!(
                "the token's sub takes {} bytes, the limit of a producer is {}",
                sub.len(),
                limits::PRODUCER_BYTES_MAX
            );
            Err(Refusal::new(ErrorCode::BadRequest, text))
        }
        sub => Ok(sub),
    }
}

/// What one look at a request says.
enum Verdict {
    /// Public paths have no caller.
    Admitted(Option<Rc<Caller>>),
    Denied(Denial),
    /// Its key is not known; it may be one that was made since the set was read.
    UnknownKey,
}

/// What an executor is given of it at its start.
#[derive(Clone)]
pub struct AuthPart {
    pub settings: Arc<AuthSettings>,
    /// The key set as it was read at the start.
    pub keys: Arc<KeySet>,
    /// `None` without a key set that can be read again.
    pub asking: Option<Asking>,
}

pub struct Auth {
    settings: Arc<AuthSettings>,
    keys: RefCell<Arc<KeySet>>,
    verified: RefCell<Verified>,
    asking: Option<Asking>,
    /// A question to the key set's thread is on its way.
    asked: Cell<bool>,
    /// When its last answer came.
    looked_us: Cell<Option<u64>>,
    /// Answers so far.
    looks: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Auth {
    pub fn new(part: AuthPart) -> Self {
        Self {
            settings: part.settings,
            keys: RefCell::new(part.keys),
            verified: RefCell::default(),
            asking: part.asking,
            asked: Cell::new(false),
            looked_us: Cell::new(None),
            looks: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    /// The key set was looked at again, and perhaps changed.
    pub fn keys_seen(&self, keys: Option<Arc<KeySet>>, now_us: u64) {
        if let Some(keys) = keys {
            // A token whose key is gone is not good any more.
            *self.keys.borrow_mut() = keys;
            self.verified.take();
        }
        self.asked.set(false);
        self.looked_us.set(Some(now_us));
        self.looks.set(self.looks.get() + 1);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Whether a request may be made. Waits only for a key that is not known yet, and for one
    /// look at the key set.
    pub async fn admit(
        &self,
        request: &Request,
        path: Option<&[Cow<'_, str>]>,
        now: impl Fn() -> crate::base::time::Now,
    ) -> Result<Option<Rc<Caller>>, Denial> {
        let authorization = request.authorization.as_deref();
        for last in [false, true] {
            let at = now();
            let verdict =
                self.judge(request.method, &request.target, path, authorization, at.wall_us);
            match verdict {
                Verdict::Admitted(caller) => return Ok(caller),
                Verdict::Denied(denial) => return Err(denial),
                Verdict::UnknownKey if last || !self.ask(at.mono_us) => break,
                Verdict::UnknownKey => self.looked().await,
            }
        }
        Err(Denial::UnknownKey)
    }

    /// Whether a request whose body is still to come is refused already. One with an unknown key
    /// is not yet: the key set may have to be looked at, and the body can come meanwhile.
    pub fn refuses(
        &self,
        method: Method,
        target: &Target,
        authorization: Option<&[u8]>,
        now_us: i64,
    ) -> Option<Denial> {
        let segments = target.segments().ok();
        match self.judge(method, target, segments.as_deref(), authorization, now_us) {
            Verdict::Denied(denial) => Some(denial),
            Verdict::Admitted(_) | Verdict::UnknownKey => None,
        }
    }

    /// `path` is `None` where the target could not be decoded: no route, so no weak level.
    fn judge(
        &self,
        method: Method,
        target: &Target,
        path: Option<&[Cow<'_, str>]>,
        authorization: Option<&[u8]>,
        now_us: i64,
    ) -> Verdict {
        let level = path.map_or(Level::ReadWrite, |path| access::level(method, path));
        if level == Level::Public || self.settings.skips.hold(target.path()) {
            return Verdict::Admitted(None);
        }
        let Some(token) = authorization.map(bearer).filter(|token| !token.is_empty()) else {
            return Verdict::Denied(Denial::NoToken);
        };
        match self.caller(token, now_us.div_euclid(1_000_000)) {
            Ok(caller) if caller.roles.reach(level) => Verdict::Admitted(Some(caller)),
            Ok(_) => Verdict::Denied(Denial::Forbidden),
            Err(Denial::UnknownKey) => Verdict::UnknownKey,
            Err(denial) => Verdict::Denied(denial),
        }
    }

    /// Whom a token stands for: from memory, or verified now.
    fn caller(&self, token: &[u8], now_s: i64) -> Result<Rc<Caller>, Denial> {
        let rules = &self.settings.rules;
        let hash = hash(token);
        if let Some(caller) = self.verified.borrow_mut().find(&hash) {
            caller.times.check(now_s, rules)?;
            return Ok(caller);
        }
        let claims = rules.verify(token, &self.keys.borrow(), now_s)?;
        let roles = self.settings.roles.of(&claims.roles);
        let subject = claims.subject.map(String::into_boxed_str);
        let short = subject.as_ref().is_none_or(|sub| sub.len() <= limits::PRODUCER_BYTES_MAX);
        let caller = Rc::new(Caller { subject, roles, times: claims.times });
        // What is remembered is bounded in bytes, not only in number.
        if short {
            self.verified.borrow_mut().remember(hash, caller.clone());
        }
        Ok(caller)
    }

    /// Has the key set looked at, unless that was done a moment ago. False: it was, or there is
    /// none.
    fn ask(&self, now_us: u64) -> bool {
        let Some(asking) = &self.asking else { return false };
        let pause = REFETCH_MIN.as_micros() as u64;
        let lately = |at: u64| now_us.saturating_sub(at) < pause;
        if self.asked.get() {
            return true;
        }
        if self.looked_us.get().is_some_and(lately) || asking.send(()).is_err() {
            return false;
        }
        self.asked.set(true);
        true
    }

    /// Resolves with the next answer of the key set's thread.
    async fn looked(&self) {
        let before = self.looks.get();
        // The list is emptied when `looks` moves, and only then.
        let mut place = None;
        poll_fn(|cx| {
            if self.looks.get() != before {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            match place {
                Some(at) => Waker::clone_from(&mut waiting[at], cx.waker()),
                None => {
                    place = Some(waiting.len());
                    waiting.push(cx.waker().clone());
                }
            }
            Poll::Pending
        })
        .await;
    }
}

/// The token of an `Authorization` header, with or without its scheme.
fn bearer(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ if value.eq_ignore_ascii_case(b"bearer") => b"",
        _ => value,
    }
}

type Hash = [u8; 32];

/// SHA-256: tokens themselves are not kept.
fn hash(token: &[u8]) -> Hash {
    let provider = CryptoProvider::try_get_default().expect("one backend is built in");
    let hash = (provider.key_utils.compute_digest)(token, ThumbprintHash::SHA256);
    let hash = hash.expect("a digest of bytes in memory cannot fail");
    hash.try_into().expect("SHA-256 has 32 bytes")
}

/// Tokens that were verified, in two generations: when the younger is full the older is
/// forgotten, and what is used meanwhile moves over. So the bound costs nothing to keep.
#[derive(Default)]
struct Verified {
    young: HashMap<Hash, Rc<Caller>, ahash::RandomState>,
    old: HashMap<Hash, Rc<Caller>, ahash::RandomState>,
}

impl Verified {
    fn find(&mut self, hash: &Hash) -> Option<Rc<Caller>> {
        if let Some(caller) = self.young.get(hash) {
            return Some(caller.clone());
        }
        let caller = self.old.remove(hash)?;
        self.remember(*hash, caller.clone());
        Some(caller)
    }

    fn remember(&mut self, hash: Hash, caller: Rc<Caller>) {
        if self.young.len() >= limits::TOKENS_CACHED_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_with_or_without_its_scheme() {
        for (value, token) in [
            ("Bearer abc", "abc"),
            ("bearer abc", "abc"),
            ("BEARER   abc ", "abc"),
            ("abc", "abc"),
            ("Basic abc", "Basic abc"),
            ("Bearer", ""),
            ("Bearer ", ""),
            ("", ""),
        ] {
            assert_eq!(bearer(value.as_bytes()), token.as_bytes(), "{value:?}");
        }
    }

    #[test]
    fn skipped_paths_are_exact_or_end_in_a_slash() {
        let skips = SkipPaths::parse("/health, /metrics,/,/open/,,");
        for (path, held) in [
            ("/health", true),
            ("/health/", false),
            ("/healthy", false),
            ("/", true),
            ("/x", false),
            ("/open/", true),
            ("/open/a/b", true),
            ("/open", false),
            ("//open/", false),
        ] {
            assert_eq!(skips.hold(path.as_bytes()), held, "{path}");
        }
        assert!(!SkipPaths::parse("").hold(b"/"));
    }

    #[test]
    fn no_more_tokens_are_remembered_than_the_bound_and_those_in_use_stay() {
        let mut verified = Verified::default();
        let times = Times::default();
        let caller = Rc::new(Caller { subject: None, roles: Roles::default(), times });
        verified.remember(hash(b"in use"), caller.clone());
        for n in 0..3 * limits::TOKENS_CACHED_MAX {
            verified.remember(hash(&n.to_le_bytes()), caller.clone());
            assert!(verified.young.len() + verified.old.len() <= limits::TOKENS_CACHED_MAX);
            assert!(n % 500 != 0 || verified.find(&hash(b"in use")).is_some(), "{n}");
        }
        assert!(verified.find(&hash(&0usize.to_le_bytes())).is_none());
    }

    #[test]
    fn a_producer_is_stamped_whole_or_not_at_all() {
        let caller = |bytes: usize| Caller {
            subject: Some("s".repeat(bytes).into()),
            roles: Roles::default(),
            times: Times::default(),
        };
        assert_eq!(producer(None), Ok(None));
        assert_eq!(producer(Some(&caller(255))), Ok(Some("s".repeat(255).as_str())));
        assert_eq!(producer(Some(&caller(256))).unwrap_err().code, ErrorCode::BadRequest);
    }
}

//! Key sets (JWKS, RFC 7517): public keys by id, from a file or over plain HTTP, and the thread
//! that keeps them fresh.
//!
//! The thread does all reading; executors get each new set as a message and never wait for it,
//! except for a request whose key is unknown: that one waits for a single look at the source, as
//! a rotated key is first heard of through a token that carries it.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use jsonwebtoken::{AlgorithmFamily, DecodingKey};
use serde::Deserialize;

use super::mesh::{Mesh, Message};
use super::token::{ED25519_BYTES, RSA_BYTES_MIN};
use crate::base::limits;

/// Between two looks that unknown keys ask for, and between two at a file.
pub const REFETCH_MIN: Duration = Duration::from_secs(5);

/// Public keys that change.
#[derive(Clone, Default)]
pub struct KeySet {
    keys: Vec<(Option<String>, DecodingKey)>,
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<&str> = self.keys.iter().map(|(id, _)| id.as_deref().unwrap_or("")).collect();
        write!(f, "{ids:?}")
    }
}

#[derive(Deserialize)]
struct WireSet {
    keys: Vec<serde_json::Value>,
}

/// Only RSA and Ed25519 keys have what is read here; others are passed over.
#[derive(Deserialize)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
}

impl KeySet {
    /// Reads a set. Keys of kinds we do not verify with are left out; a set without any that we
    /// do is an error, since it would lock everybody out.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let set: WireSet =
            serde_json::from_slice(text).map_err(|error| format!("no key set: {error}"))?;
        if set.keys.len() > limits::JWKS_KEYS_MAX {
            return Err(format!("more than {} keys", limits::JWKS_KEYS_MAX));
        }
        let keys: Vec<_> = set.keys.into_iter().filter_map(read_key).collect();
        if keys.is_empty() {
            return Err("no RSA key of 2,048 bits and no Ed25519 key in it".to_owned());
        }
        Ok(Self { keys })
    }

    /// The key of that id; without an id the only one there is.
    pub fn find(&self, id: &str, family: AlgorithmFamily) -> Option<&DecodingKey> {
        let fits = |key: &&DecodingKey| key.family() == family;
        match (id, self.keys.as_slice()) {
            ("", [(_, only)]) => Some(only).filter(fits),
            ("", _) => None,
            (id, keys) => {
                let named = |(known, _): &&(Option<String>, _)| known.as_deref() == Some(id);
                keys.iter().filter(named).map(|(_, key)| key).find(fits)
            }
        }
    }
}

fn read_key(value: serde_json::Value) -> Option<(Option<String>, DecodingKey)> {
    let key: WireKey = serde_json::from_value(value).ok()?;
    if key.usage.is_some_and(|usage| usage != "sig") {
        return None;
    }
    let public = match key.kty.as_str() {
        "RSA" => {
            // Six bits a character.
            let modulus = key.n.filter(|n| n.len() * 6 / 8 >= RSA_BYTES_MIN)?;
            DecodingKey::from_rsa_components(&modulus, &key.e?).ok()?
        }
        "OKP" if key.crv.as_deref() == Some("Ed25519") => {
            let public = DecodingKey::from_ed_components(&key.x?).ok()?;
            public.try_get_as_bytes().is_ok_and(|x| x.len() == ED25519_BYTES).then_some(public)?
        }
        _ => return None,
    };
    Some((key.kid.filter(|id| !id.is_empty()), public))
}

/// Where a key set comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    File(PathBuf),
    Url(HttpUrl),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) => write!(f, "http://{}{}", url.authority, url.path),
        }
    }
}

/// A plain HTTP address, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpUrl {
    authority: String,
    path: String,
}

impl HttpUrl {
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(format!(
                "{text:?}: only http:// addresses are fetched; behind https keep the set in a file \
                 with a job of yours and name that"
            ));
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let odd = |b: u8| b.is_ascii_control() || b == b' ';
        if authority.is_empty() || authority.contains('@') || text.bytes().any(odd) {
            return Err(format!("{text:?} is no address of the form http://host:port/path"));
        }
        Ok(Self { authority: authority.to_owned(), path: path.to_owned() })
    }

    /// Host and port as the resolver takes them.
    fn host_and_port(&self) -> String {
        let name = self.authority.rsplit(']').next().unwrap_or_default();
        if name.contains(':') { self.authority.clone() } else { format!("{}:80", self.authority) }
    }

    /// One GET in HTTP/1.0, whose answer ends with the connection and has no chunks.
    fn fetch(&self, limit: Duration) -> Result<Vec<u8>, String> {
        let end = Instant::now() + limit;
        let left = || match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err("it took too long".to_owned()),
            left => Ok(left),
        };
        let say = |error: std::io::Error| error.to_string();
        let address = self.host_and_port().to_socket_addrs().map_err(say)?.next();
        let address = address.ok_or_else(|| "the host has no address".to_owned())?;
        let mut stream = TcpStream::connect_timeout(&address, left()?).map_err(say)?;
        let request = format!(
            "GET {} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
            self.path, self.authority
        );
        stream.set_write_timeout(Some(left()?)).map_err(say)?;
        stream.write_all(request.as_bytes()).map_err(say)?;
        let mut answer = Vec::new();
        let mut buffer = [0; 8 << 10];
        loop {
            stream.set_read_timeout(Some(left()?)).map_err(say)?;
            match stream.read(&mut buffer).map_err(say)? {
                0 => return body_of(&answer),
                n => answer.extend_from_slice(&buffer[..n]),
            }
            if answer.len() > limits::JWKS_BYTES_MAX {
                return Err(too_large());
            }
        }
    }
}

/// The body of a whole 200 answer.
fn body_of(answer: &[u8]) -> Result<Vec<u8>, String> {
    let mut fields = [httparse::EMPTY_HEADER; limits::HEADERS_MAX];
    let mut head = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(head_bytes)) = head.parse(answer) else {
        return Err("the answer is no HTTP".to_owned());
    };
    if head.code != Some(200) {
        return Err(format!("the answer is {}", head.code.unwrap_or(0)));
    }
    let field = |name: &str| head.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
    if field("transfer-encoding").is_some() {
        return Err("the answer to HTTP/1.0 has a transfer coding".to_owned());
    }
    let body = &answer[head_bytes..];
    let claimed = field("content-length").map(|field| field.value);
    if claimed.is_some_and(|claimed| claimed != body.len().to_string().as_bytes()) {
        return Err("the answer is cut short".to_owned());
    }
    Ok(body.to_vec())
}

fn too_large() -> String {
    format!("it is larger than {} bytes", limits::JWKS_BYTES_MAX)
}

impl Source {
    fn read(&self, limit: Duration) -> Result<Vec<u8>, String> {
        match self {
            Self::Url(url) => url.fetch(limit),
            Self::File(path) => {
                let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
                let mut text = Vec::new();
                let most = limits::JWKS_BYTES_MAX as u64 + 1;
                file.take(most).read_to_end(&mut text).map_err(|error| error.to_string())?;
                if text.len() as u64 == most { Err(too_large()) } else { Ok(text) }
            }
        }
    }
}

/// What keeps a key set fresh.
#[derive(Clone, Debug)]
pub struct Refresh {
    pub source: Source,
    /// How often a URL is asked; a file is looked at every [`REFETCH_MIN`].
    pub every: Duration,
    pub timeout: Duration,
}

/// Asks the thread for a look at the source. Cloned to every executor.
pub type Asking = Sender<()>;

/// The thread's end, before it is started.
pub struct Refresher {
    refresh: Refresh,
    asked: Receiver<()>,
    /// What the set in use was read from.
    text: Vec<u8>,
    failed: bool,
}

/// Reads the set for the first time. A file must be good; a URL may come up after the broker.
pub fn begin(refresh: Refresh) -> Result<(Arc<KeySet>, Asking, Refresher), String> {
    let (asking, asked) = channel();
    let mut refresher = Refresher { refresh, asked, text: Vec::new(), failed: false };
    let keys = match refresher.look() {
        Ok(keys) => keys.unwrap_or_default(),
        Err(error) if matches!(refresher.refresh.source, Source::File(_)) => return Err(error),
        Err(error) => {
            refresher.failed = true;
            tracing::warn!("{error}: nobody is let in with a key of that set until it can be read");
            Arc::default()
        }
    };
    Ok((keys, asking, refresher))
}

impl Refresher {
    /// The set, if it is another than before.
    fn look(&mut self) -> Result<Option<Arc<KeySet>>, String> {
        let Refresh { source, timeout, .. } = &self.refresh;
        let text = source.read(*timeout).map_err(|error| format!("key set {source}: {error}"))?;
        if text == self.text {
            return Ok(None);
        }
        let keys = KeySet::parse(&text).map_err(|error| format!("key set {source}: {error}"))?;
        self.text = text;
        Ok(Some(Arc::new(keys)))
    }

    /// Until every executor is gone. Each question gets an answer, also where there is nothing
    /// new: somebody waits for it.
    pub fn run(mut self, mesh: &Mesh) {
        loop {
            let hurry = self.failed || matches!(self.refresh.source, Source::File(_));
            let pause = if hurry { REFETCH_MIN } else { self.refresh.every };
            let asked = match self.asked.recv_timeout(pause) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // One look answers all who have asked until now.
            while self.asked.try_recv().is_ok() {}
            let seen = self.look();
            match &seen {
                Ok(Some(keys)) => tracing::info!(?keys, source = %self.refresh.source, "key set"),
                Ok(None) => {}
                Err(error) if self.failed => tracing::debug!("{error}"),
                Err(error) => tracing::warn!("{error}: the keys read before stay in use"),
            }
            self.failed = seen.is_err();
            let keys = seen.unwrap_or(None);
            if asked || keys.is_some() {
                mesh.tell_all(|| Message::Keys(keys.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const KEY_SET: &[u8] = include_bytes!("../../tests/fixtures/auth/jwks.json");

    #[test]
    fn keys_are_found_by_id_and_family_and_unfit_ones_are_left_out() {
        let keys = KeySet::parse(KEY_SET).unwrap();
        assert_eq!(format!("{keys:?}"), r#"["k1", "ed"]"#);
        assert!(keys.find("k1", AlgorithmFamily::Rsa).is_some());
        assert!(keys.find("ed", AlgorithmFamily::Ed).is_some());
        assert!(keys.find("ed", AlgorithmFamily::Rsa).is_none());
        assert!(keys.find("enc", AlgorithmFamily::Rsa).is_none());
        // Two keys: without an id it is not known which.
        assert!(keys.find("", AlgorithmFamily::Rsa).is_none());
        let one = include_bytes!("../../tests/fixtures/auth/jwks-rotated.json");
        let one = KeySet::parse(one).unwrap();
        assert!(one.find("", AlgorithmFamily::Rsa).is_some());
        assert!(one.find("", AlgorithmFamily::Ed).is_none());
    }

    #[test]
    fn what_is_no_key_set_is_refused() {
        let many = format!(r#"{{"keys":[{}null]}}"#, "null,".repeat(limits::JWKS_KEYS_MAX));
        for bad in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[]}"#, &many] {
            assert!(KeySet::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let odd = r#"{"keys":[null,{"kty":"OKP","crv":"Ed25519","x":"AAAA"},{"kty":"RSA"}]}"#;
        assert!(KeySet::parse(odd.as_bytes()).unwrap_err().contains("Ed25519"));
    }

    #[test]
    fn addresses_are_plain_http() {
        let url = |text: &str| HttpUrl::parse(text).unwrap();
        assert_eq!(url("http://idp/keys?x=1").host_and_port(), "idp:80");
        assert_eq!(url("http://idp:81/keys").host_and_port(), "idp:81");
        assert_eq!(url("http://[::1]/k").host_and_port(), "[::1]:80");
        assert_eq!(url("http://[::1]:81").host_and_port(), "[::1]:81");
        assert_eq!(Source::Url(url("http://idp")).to_string(), "http://idp/");
        for bad in
            ["https://x/", "idp/keys", "", "http://", "http:///k", "http://u@x/", "http://x/ y"]
        {
            assert!(HttpUrl::parse(bad).is_err(), "{bad}");
        }
    }

    /// Answers one connection with `answer`, then closes it.
    fn fetched(answer: &'static [u8], limit: Duration) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = HttpUrl::parse(&format!("http://{}/k", listener.local_addr().unwrap())).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let got = stream.read(&mut request).unwrap();
            assert!(request[..got].starts_with(b"GET /k HTTP/1.0\r\nHost: 127.0.0.1:"));
            stream.write_all(answer).unwrap();
            if answer.is_empty() {
                // Silent until the other side gives up.
                let _ = stream.read(&mut request);
            }
        });
        let fetched = url.fetch(limit);
        server.join().unwrap();
        fetched
    }

    #[test]
    fn a_fetch_takes_a_whole_answer_and_nothing_less() {
        let second = Duration::from_secs(20);
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(fetched(whole, second), Ok(b"{}".to_vec()));
        assert_eq!(fetched(b"HTTP/1.0 200 OK\r\n\r\n{}", second), Ok(b"{}".to_vec()));
        for bad in [
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}".as_slice(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\n\r\n{}",
            b"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nConte",
            b"{}",
        ] {
            assert!(fetched(bad, second).is_err(), "{}", bad.escape_ascii());
        }
        assert!(fetched(b"", Duration::from_millis(50)).is_err());
    }
}

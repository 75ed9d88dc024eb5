//! Encryption of payloads at rest: AES-256-GCM under a key that the operator keeps.
//!
//! ```text
//! envelope: 4 key check value | 12 nonce | ciphertext | 16 tag
//! ```
//! The key check value is the first bytes of AES over a zero block: it names the key without
//! telling of it, so that a wrong key is said by name instead of failing as damage. A second,
//! older key only reads.

use std::fmt;
use std::sync::Arc;

use aes_gcm::aead::AeadInPlace;
use aes_gcm::aes::cipher::BlockEncrypt;
use aes_gcm::aes::{Aes256, Block};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, Tag};

const KEY_BYTES: usize = 32;
const CHECK_BYTES: usize = 4;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// What an envelope takes beside its payload.
pub const ENVELOPE_BYTES: usize = CHECK_BYTES + NONCE_BYTES + TAG_BYTES;

/// The keys of this process. Cloning shares them.
#[derive(Clone, Default)]
pub struct Keys {
    /// Seals, and reads what it sealed.
    current: Option<Arc<Key>>,
    /// Reads only.
    previous: Option<Arc<Key>>,
}

struct Key {
    check: [u8; CHECK_BYTES],
    cipher: Aes256Gcm,
}

/// Why an envelope was not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CannotOpen {
    /// Too short to be an envelope.
    Truncated,
    /// Sealed under a key that is not here.
    UnknownKey,
    /// Not what was sealed, or not where it was sealed.
    Damaged,
}

impl CannotOpen {
    pub fn text(self) -> &'static str {
        match self {
            Self::Truncated => "an encrypted payload is cut short",
            Self::UnknownKey => "a payload was encrypted with another key than this broker's",
            Self::Damaged => "an encrypted payload is damaged",
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |key: &Option<Arc<Key>>| key.as_ref().map(|key| u32::from_be_bytes(key.check));
        write!(f, "Keys({:08x?}, {:08x?})", name(&self.current), name(&self.previous))
    }
}

impl Keys {
    /// Keys as 64 hexadecimal digits each. The error says what is wrong with the text, never
    /// what it holds.
    pub fn from_hex(current: Option<&str>, previous: Option<&str>) -> Result<Self, String> {
        let key = |text: Option<&str>| -> Result<Option<Arc<Key>>, String> {
            text.map(|text| Ok(Arc::new(Key::new(&from_hex(text.trim())?)))).transpose()
        };
        Ok(Self { current: key(current)?, previous: key(previous)? })
    }

    /// Whether there is a key to seal with.
    pub fn can_seal(&self) -> bool {
        self.current.is_some()
    }

    /// Appends the envelope of `payload`. `place` must be given again to open it; `nonce` must
    /// never repeat under one key. Without a key nothing is written and false returned.
    pub fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        place: &[u8],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(key) = &self.current else { return false };
        out.reserve(payload.len() + ENVELOPE_BYTES);
        out.extend_from_slice(&key.check);
        out.extend_from_slice(&nonce);
        let from = out.len();
        out.extend_from_slice(payload);
        let tag = key
            .cipher
            .encrypt_in_place_detached(Nonce::from_slice(&nonce), place, &mut out[from..])
            .expect("a payload is far below the 64 GiB of one nonce");
        out.extend_from_slice(&tag);
        true
    }

    /// Puts the payload of an envelope in place of what `out` holds.
    pub fn open(&self, place: &[u8], envelope: &[u8], out: &mut Vec<u8>) -> Result<(), CannotOpen> {
        out.clear();
        let (check, rest) =
            envelope.split_first_chunk::<CHECK_BYTES>().ok_or(CannotOpen::Truncated)?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(CannotOpen::Truncated)?;
        let (sealed, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(CannotOpen::Truncated)?;
        let mut keys = self.current.iter().chain(&self.previous);
        let key = keys.find(|key| key.check == *check).ok_or(CannotOpen::UnknownKey)?;
        out.extend_from_slice(sealed);
        let (nonce, tag) = (Nonce::from_slice(nonce), Tag::from_slice(tag));
        let opened = key.cipher.decrypt_in_place_detached(nonce, place, out, tag);
        if opened.is_err() {
            out.clear();
            return Err(CannotOpen::Damaged);
        }
        Ok(())
    }
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut block = Block::default();
        Aes256::new(bytes.into()).encrypt_block(&mut block);
        let mut check = [0; CHECK_BYTES];
        check.copy_from_slice(&block[..CHECK_BYTES]);
        Self { check, cipher: Aes256Gcm::new(bytes.into()) }
    }
}

fn from_hex(text: &str) -> Result<[u8; KEY_BYTES], String> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits.ok_or("an encryption key is written in hexadecimal digits only")?;
    if digits.len() != 2 * KEY_BYTES {
        return Err(format!(
            "an encryption key has {} hexadecimal digits, this one has {}",
            2 * KEY_BYTES,
            digits.len()
        ));
    }
    let mut key = [0; KEY_BYTES];
    key.iter_mut().zip(digits.chunks(2)).for_each(|(byte, pair)| *byte = pair[0] << 4 | pair[1]);
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(current: u8, previous: Option<u8>) -> Keys {
        let text = |byte: u8| format!("{byte:02x}").repeat(KEY_BYTES);
        let previous = previous.map(text);
        Keys::from_hex(Some(&text(current)), previous.as_deref()).unwrap()
    }

    #[test]
    fn an_envelope_opens_only_whole_at_its_place_and_under_its_key() {
        let (mut sealed, mut out) = (Vec::new(), Vec::new());
        assert!(keys(1, None).seal([7; 12], b"here", b"{\"a\":1}", &mut sealed));
        assert_eq!(sealed.len(), 7 + ENVELOPE_BYTES);
        assert!(!sealed.windows(3).any(|w| w == b"\"a\""));
        keys(1, None).open(b"here", &sealed, &mut out).unwrap();
        assert_eq!(out, b"{\"a\":1}");
        keys(2, Some(1)).open(b"here", &sealed, &mut out).unwrap();
        assert_eq!(out, b"{\"a\":1}");

        let open = |keys: Keys, place: &[u8], bytes: &[u8]| keys.open(place, bytes, &mut vec![]);
        assert_eq!(open(keys(2, None), b"here", &sealed), Err(CannotOpen::UnknownKey));
        assert_eq!(open(Keys::default(), b"here", &sealed), Err(CannotOpen::UnknownKey));
        assert_eq!(open(keys(1, None), b"there", &sealed), Err(CannotOpen::Damaged));
        for at in CHECK_BYTES..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(open(keys(1, None), b"here", &bad), Err(CannotOpen::Damaged), "{at}");
        }
        for end in 0..ENVELOPE_BYTES {
            assert_eq!(open(keys(1, None), b"here", &sealed[..end]), Err(CannotOpen::Truncated));
        }
    }

    #[test]
    fn a_key_is_64_digits_and_is_never_shown() {
        for bad in ["", "zz", &"a".repeat(63), &"a".repeat(65), &"ä".repeat(64)] {
            let error = Keys::from_hex(Some(bad), None).unwrap_err();
            assert!(bad.len() < 10 || !error.contains(bad), "{error}");
        }
        let keys = Keys::from_hex(Some(&format!(" {}\n", "aB".repeat(32))), None).unwrap();
        assert!(keys.can_seal() && !Keys::default().can_seal());
        assert!(!format!("{keys:?}").to_lowercase().contains("abab"));
        assert!(!Keys::default().seal([0; 12], b"", b"x", &mut vec![]));
    }
}

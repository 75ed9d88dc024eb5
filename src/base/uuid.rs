//! UUID version 7: minting from a passed time and generator, and the text form.

use super::prng::Prng;

/// A version 7 UUID for `wall_us`: 48 bits of milliseconds, then random bits.
pub fn mint_v7(wall_us: i64, prng: &mut Prng) -> [u8; 16] {
    let millis = u64::try_from(wall_us / 1_000).unwrap_or(0);
    let mut id = [0; 16];
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id[6..8].copy_from_slice(&(prng.next_u64() as u16).to_be_bytes());
    id[8..].copy_from_slice(&prng.next_u64().to_be_bytes());
    id[6] = 0x70 | id[6] & 0x0F;
    id[8] = 0x80 | id[8] & 0x3F;
    id
}

/// The 36 characters of the hyphenated lower-case text.
pub fn to_text(id: &[u8; 16]) -> [u8; 36] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (i, byte) in id.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = HEX[usize::from(byte >> 4)];
        text[at + 1] = HEX[usize::from(byte & 15)];
        at += 2;
    }
    text
}

pub fn to_string(id: &[u8; 16]) -> String {
    to_text(id).iter().map(|b| char::from(*b)).collect()
}

/// Reads the hyphenated text, either case. `None` for any other form.
pub fn parse(text: &str) -> Option<[u8; 16]> {
    let b = text.as_bytes();
    if b.len() != 36 {
        return None;
    }
    let mut id = [0; 16];
    let mut at = 0;
    for (i, byte) in id.iter_mut().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            if b[at] != b'-' {
                return None;
            }
            at += 1;
        }
        let nibble = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        *byte = nibble(b[at])? << 4 | nibble(b[at + 1])?;
        at += 2;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_ids_are_version_7_and_round_trip() {
        let mut prng = Prng::new(1);
        let id = mint_v7(1_700_000_000_123_456, &mut prng);
        let text = to_string(&id);
        assert_eq!(&text[14..15], "7");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"));
        assert_eq!(parse(&text), Some(id));
        assert_eq!(parse(&text.to_uppercase()), Some(id));
        assert_ne!(mint_v7(1_700_000_000_123_456, &mut prng), id);
        for bad in ["", "x", &text[1..], &text.replace('-', "_")] {
            assert_eq!(parse(bad), None);
        }
    }
}

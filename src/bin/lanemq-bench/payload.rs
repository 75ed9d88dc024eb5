//! What the messages hold: JSON documents that look like business data, numbered.
//!
//! Each document begins with the message's number in 16 hexadecimal digits, so that a consumer
//! can tell which message it has without parsing, and a template can be made into the next
//! message by writing over those digits. Field names, dates and words repeat from one document to
//! the next as they do in real traffic; ids and amounts do not.

use std::ops::Range;

use lanemq::base::prng::Prng;

/// Every document begins so; then follows its number.
pub const START: &[u8] = b"{\"seq\":\"";
pub const SEQ_DIGITS: usize = 16;
/// Documents made ahead. Batches take theirs from here in turn.
const DOCUMENTS: usize = 1_024;

const WORDS: [&str; 24] = [
    "order",
    "payment",
    "invoice",
    "shipment",
    "customer",
    "address",
    "pending",
    "confirmed",
    "delayed",
    "warehouse",
    "carrier",
    "refund",
    "partial",
    "express",
    "priority",
    "standard",
    "return",
    "exchange",
    "gift",
    "wrapped",
    "fragile",
    "signed",
    "delivery",
    "pickup",
];

/// Where the number of a document stands in it.
pub fn seq_range() -> Range<usize> {
    START.len()..START.len() + SEQ_DIGITS
}

pub struct Documents {
    all: Vec<Vec<u8>>,
}

impl Documents {
    pub fn new(size: usize, prng: &mut Prng) -> Self {
        // Large documents are different enough by their length.
        let count = DOCUMENTS.min((64 << 20) / size).max(1);
        Self { all: (0..count).map(|_| document(size, prng)).collect() }
    }

    pub fn get(&self, index: u64) -> &[u8] {
        let count = self.all.len() as u64;
        &self.all[(index % count) as usize]
    }
}

/// A document of `size` bytes, at least 32, its number all zeros.
fn document(size: usize, prng: &mut Prng) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(START).into_owned();
    text.push_str("0000000000000000\"");
    let fields = [
        format!(",\"customer\":\"c-{:06}\"", prng.below(1_000_000)),
        format!(",\"type\":\"order.{}\"", word(prng)),
        format!(
            ",\"at\":\"2026-11-{:02}T{:02}:{:02}:{:02}.{:03}Z\"",
            1 + prng.below(30),
            prng.below(24),
            prng.below(60),
            prng.below(60),
            prng.below(1_000)
        ),
        format!(",\"total\":{}.{:02}", prng.below(1_000), prng.below(100)),
        format!(
            ",\"items\":[{{\"sku\":\"{:08X}\",\"quantity\":{},\"price\":{}}}]",
            prng.below(1 << 32),
            1 + prng.below(9),
            prng.below(10_000)
        ),
    ];
    for field in fields {
        if text.len() + field.len() < size {
            text.push_str(&field);
        }
    }
    let frame = ",\"note\":\"\"}".len();
    if text.len() + frame <= size {
        text.push_str(",\"note\":\"");
        let end = size - "\"}".len();
        while text.len() < end {
            text.push_str(word(prng));
            text.push(' ');
        }
        text.truncate(end);
        text.push('"');
    }
    // Too short for one more field: white space is as good a filler as any.
    while text.len() + 1 < size {
        text.push(' ');
    }
    text.push('}');
    text.into_bytes()
}

fn word(prng: &mut Prng) -> &'static str {
    WORDS[prng.below(WORDS.len() as u64) as usize]
}

/// Writes `seq` over the digits that `out` is.
pub fn write_seq(out: &mut [u8], seq: u64) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (index, digit) in out.iter_mut().rev().enumerate() {
        *digit = HEX[(seq >> (4 * index) & 15) as usize];
    }
}

/// The number of the message that `payload` begins.
pub fn read_seq(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(START)?.get(..SEQ_DIGITS)?;
    digits.iter().try_fold(0, |seq, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(seq << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_json_of_the_size_asked_for() {
        let mut prng = Prng::new(1);
        for size in [32, 33, 40, 64, 65, 100, 128, 200, 255, 256, 257, 1_000, 65_536] {
            for _ in 0..50 {
                let mut text = document(size, &mut prng);
                assert_eq!(text.len(), size);
                write_seq(&mut text[seq_range()], 0xfeed_0123_4567_89ab);
                let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(value["seq"], "feed0123456789ab");
                assert_eq!(read_seq(&text), Some(0xfeed_0123_4567_89ab));
            }
        }
        assert_eq!(read_seq(b"{\"seq\":\"00"), None);
        assert_eq!(read_seq(b"{\"seq\":\"000000000000000x\"}"), None);
    }
}

//! The fixed hash of placement, and keyed fingerprints of transaction ids.

/// FNV-1a over bytes, finished with a full avalanche. **Part of the on-disk format**: it places
/// partitions on shards, so it never changes for an existing directory.
fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325u64;
    for part in parts {
        // The length goes first, so ("a", "bc") and ("ab", "c") differ whatever the bytes are.
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part.iter()) {
            h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
    h ^= h >> 32;
    h = h.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    h ^= h >> 32;
    h = h.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    h ^ h >> 32
}

/// The placement hash of a partition.
pub fn partition_hash(queue: &str, partition: &str) -> u64 {
    stable_hash(&[queue.as_bytes(), partition.as_bytes()])
}

/// The placement hash of a queue's own state.
pub fn queue_hash(queue: &str) -> u64 {
    stable_hash(&[queue.as_bytes()])
}

/// A name for a text that has no other short one, the same on every broker.
pub fn text_hash(text: &[u8]) -> [u8; 16] {
    let half = |which: &[u8]| stable_hash(&[which, text]).to_be_bytes();
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&half(b"high"));
    hash[8..].copy_from_slice(&half(b"low"));
    hash
}

/// Key of transaction id fingerprints; one a data directory, random, never shown to clients,
/// so that nobody can craft two ids that collide.
#[derive(Clone, Copy, Debug)]
pub struct FingerprintKey(pub u64);

impl FingerprintKey {
    /// 64-bit fingerprint of a transaction id. **Part of the on-disk format** (id tables).
    pub fn fingerprint(self, transaction_id: &[u8]) -> u64 {
        // Two multiply-fold lanes over 8-byte words (the wyhash family's step), keyed at both
        // ends; 0 is reserved for "no id in this slot".
        const A: u64 = 0xA076_1D64_78BD_642F;
        const B: u64 = 0xE703_7ED1_A0B4_28DB;
        let fold = |x: u64, y: u64| {
            let wide = u128::from(x) * u128::from(y);
            (wide as u64) ^ (wide >> 64) as u64
        };
        let mut h = fold(self.0 ^ A, (transaction_id.len() as u64) ^ B);
        let mut words = transaction_id.chunks_exact(8);
        for word in &mut words {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            h = fold(h ^ u64::from_le_bytes(bytes) ^ self.0, A ^ h.rotate_left(32));
        }
        h = fold(h ^ last_word(transaction_id), B ^ self.0);
        h ^= h >> 29;
        h = fold(h ^ B, self.0 ^ A ^ 1);
        if h == 0 { 1 } else { h }
    }
}

/// The bytes behind the last whole word of eight, as one, zeros behind them.
fn last_word(bytes: &[u8]) -> u64 {
    let behind = bytes.len() % 8;
    match bytes.last_chunk() {
        _ if behind == 0 => 0,
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * behind),
        None => {
            let mut last = [0; 8];
            last[..behind].copy_from_slice(bytes);
            u64::from_le_bytes(last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_join_to_the_same_text_hash_apart() {
        assert_ne!(partition_hash("a", "b/c"), partition_hash("a/b", "c"));
        assert_ne!(partition_hash("ab", "c"), partition_hash("a", "bc"));
        // Pinned: a change of the function would strand every partition of existing directories.
        assert_eq!(partition_hash("orders", "eu") % 4, partition_hash("orders", "eu") & 3);
    }

    #[test]
    fn fingerprints_differ_for_near_ids_and_for_keys() {
        let key = FingerprintKey(42);
        let ids: [&[u8]; 9] =
            [b"a", b" a", b"a ", b"A", b"xa", b"a\0", b"", b"aaaaaaaa", b"aaaaaaaaa"];
        for (i, a) in ids.iter().enumerate() {
            for b in &ids[i + 1..] {
                assert_ne!(key.fingerprint(a), key.fingerprint(b));
            }
            assert_ne!(key.fingerprint(a), FingerprintKey(43).fingerprint(a));
        }
    }

    /// Part of the on-disk format: with others, every stored id would be unknown.
    #[test]
    fn fingerprints_are_pinned() {
        let id = b"order-2026-11-30";
        let all = (0..=id.len())
            .fold(0u64, |all, len| all.rotate_left(7) ^ FingerprintKey(42).fingerprint(&id[..len]));
        assert_eq!(all, 8_306_895_346_680_662_873);
    }

    #[test]
    fn fingerprints_of_sequential_ids_do_not_collide() {
        let key = FingerprintKey(0x1234_5678_9ABC_DEF1);
        let mut seen: Vec<u64> =
            (0..200_000).map(|n| key.fingerprint(format!("order-{n}").as_bytes())).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 200_000);
    }
}

//! Is the place where a log was cut one flipped bit away from a valid record? A torn write
//! hardly ever is; a decayed bit always is. Only for the notice a person reads: nothing is
//! repaired.

use super::error::OpenError;
use super::format::{BLOCK, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader};
use super::storage::Storage;
use super::walk::Walk;
use crate::base::buf::align_up;
use crate::base::checksum::crc32c;

/// crc32c's polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// What one flipped bit behind `end` would explain, if it would.
pub fn one_bit<S: Storage>(
    walk: &mut Walk<'_, S>,
    end: u64,
) -> Result<Option<&'static str>, OpenError> {
    let (near, block) = (align_up(end, RECORD_ALIGN), align_up(end, BLOCK));
    for to in [near, block] {
        let padding = walk.bytes(end, to)?;
        if padding.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1 {
            return Ok(Some("one bit is set in the padding before it"));
        }
    }
    for at in [near, block] {
        if record_one_bit_off(walk, at)? {
            return Ok(Some("the record there is one bit from valid"));
        }
    }
    Ok(None)
}

fn record_one_bit_off<S: Storage>(walk: &mut Walk<'_, S>, at: u64) -> Result<bool, OpenError> {
    let Some(mut bytes) = walk.header_bytes(at)? else { return Ok(false) };
    let seed = walk.place().seed(at);
    if let Some((header, _)) = RecordHeader::decode(&bytes, seed) {
        if !walk.fits(at, &header) {
            return Ok(false);
        }
        let body = walk.body(at, &header)?;
        return Ok(flips_one_bit(crc32c(seed, body) ^ header.body_crc, body.len()));
    }
    for bit in 0..RECORD_HEADER_BYTES * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Some((header, _)) = RecordHeader::decode(&bytes, seed)
            && walk.fits(at, &header)
            && crc32c(seed, walk.body(at, &header)?) == header.body_crc
        {
            return Ok(true);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    Ok(false)
}

/// Whether flipping one of `len` bytes' bits changes a crc32c by `difference`. The checksum is
/// linear: a flip k bits before the end changes it by the register 1 shifted k times. So the
/// difference is shifted back until it is 1 or the bytes are used up.
fn flips_one_bit(difference: u32, len: usize) -> bool {
    let mut register = difference;
    for _ in 0..len * 8 {
        register = if register & 0x8000_0000 != 0 {
            (register ^ POLYNOMIAL) << 1 | 1
        } else {
            register << 1
        };
        if register == 1 {
            return true;
        }
    }
    // A flip in the stored checksum itself would show as one bit of difference.
    difference.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_flip_is_recognised_and_two_are_not() {
        let body: Vec<u8> = (0..200u8).collect();
        let good = crc32c(7, &body);
        for bit in 0..body.len() * 8 {
            let mut bad = body.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(flips_one_bit(crc32c(7, &bad) ^ good, body.len()), "bit {bit}");
            let other = (bit * 7 + 13) % (body.len() * 8);
            if other != bit {
                bad[other / 8] ^= 1 << (other % 8);
                assert!(!flips_one_bit(crc32c(7, &bad) ^ good, body.len()), "bits {bit} {other}");
            }
        }
    }
}

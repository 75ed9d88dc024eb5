//! crc32c, continued over several parts.

/// Continues `crc` (0 to begin) over `bytes`.
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn matches_the_published_check_value_in_one_and_in_two_parts() {
        assert_eq!(crc32c(0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xE306_9283);
    }
}

//! Chunked bodies (RFC 9112 7.1), taken apart in place.
//!
//! The decoder works on the receive buffer: `end` is where the data decoded so far ends, `read`
//! how far the raw bytes are consumed, `end <= read`. Bytes between the two are dead and are cut
//! out before the buffer grows, so chunks of one byte do not cost six in memory.

use memchr::memchr;

use super::Reject;
use crate::base::limits::{CHUNK_EXTENSION_BYTES_MAX, CHUNK_LINE_BYTES_MAX, TRAILER_BYTES_MAX};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Before a chunk-size line.
    Size,
    /// Inside chunk data, with so many bytes to come.
    Data { left: usize },
    /// Before the CRLF that ends chunk data.
    DataEnd,
    /// After the last chunk.
    Trailers,
}

#[derive(Debug)]
pub(super) struct ChunkDecoder {
    phase: Phase,
    start: usize,
    end: usize,
    read: usize,
    extension_bytes: usize,
    trailer_bytes: usize,
}

impl ChunkDecoder {
    /// For a body that begins at `start` of the buffer.
    pub fn new(start: usize) -> Self {
        Self {
            phase: Phase::Size,
            start,
            end: start,
            read: start,
            extension_bytes: 0,
            trailer_bytes: 0,
        }
    }

    /// Consumes what it can of `buffer`; true once the body is whole.
    pub fn decode(&mut self, buffer: &mut [u8], body_bytes_max: usize) -> Result<bool, Reject> {
        loop {
            match self.phase {
                Phase::Size => {
                    let Some(line) = next_line(&buffer[self.read..], CHUNK_LINE_BYTES_MAX)? else {
                        return Ok(false);
                    };
                    let (size, extension_bytes) = parse_size(line)?;
                    self.read += line.len() + 2;
                    self.begin_chunk(size, extension_bytes, body_bytes_max)?;
                }
                Phase::Data { left } => {
                    let count = left.min(buffer.len() - self.read);
                    if self.read != self.end {
                        buffer.copy_within(self.read..self.read + count, self.end);
                    }
                    self.end += count;
                    self.read += count;
                    if count < left {
                        self.phase = Phase::Data { left: left - count };
                        return Ok(false);
                    }
                    self.phase = Phase::DataEnd;
                }
                Phase::DataEnd => match buffer[self.read..] {
                    [b'\r', b'\n', ..] => {
                        self.read += 2;
                        self.phase = Phase::Size;
                    }
                    [] | [b'\r'] => return Ok(false),
                    _ => return Err(Reject::bad_request("chunk data does not end with its size")),
                },
                Phase::Trailers => {
                    let left = TRAILER_BYTES_MAX - self.trailer_bytes;
                    let Some(line) = next_line(&buffer[self.read..], left)? else {
                        return Ok(false);
                    };
                    self.read += line.len() + 2;
                    self.trailer_bytes += line.len() + 2;
                    if line.is_empty() {
                        return Ok(true);
                    }
                    check_trailer(line)?;
                }
            }
        }
    }

    /// The caller has cut the dead bytes `end..read` out of the buffer.
    pub fn compacted(&mut self) {
        self.read = self.end;
    }

    /// Where the data begins and ends, and where the raw bytes of the body end.
    pub fn bounds(&self) -> (usize, usize, usize) {
        (self.start, self.end, self.read)
    }

    pub fn data_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Bytes that are known to come: the rest of the current chunk.
    pub fn known_need(&self) -> usize {
        if let Phase::Data { left } = self.phase { left } else { 0 }
    }

    fn begin_chunk(
        &mut self,
        size: usize,
        extension_bytes: usize,
        body_bytes_max: usize,
    ) -> Result<(), Reject> {
        self.extension_bytes += extension_bytes;
        if self.extension_bytes > CHUNK_EXTENSION_BYTES_MAX {
            return Err(Reject::bad_request("chunk extensions over the limit"));
        }
        // As a subtraction: a chunk size may be anything up to the largest integer.
        if size > body_bytes_max - self.data_bytes() {
            return Err(Reject::body_too_large(body_bytes_max));
        }
        self.phase = if size == 0 { Phase::Trailers } else { Phase::Data { left: size } };
        Ok(())
    }
}

/// The line at the front of `bytes` without its CRLF, if it is all there. `max` counts the CRLF
/// and is checked first, so that the verdict does not depend on how the bytes were cut.
fn next_line(bytes: &[u8], max: usize) -> Result<Option<&[u8]>, Reject> {
    let window = &bytes[..bytes.len().min(max)];
    match memchr(b'\n', window) {
        Some(0) => Err(Reject::bad_request("bare LF in a chunked body")),
        Some(at) if window[at - 1] == b'\r' => Ok(Some(&window[..at - 1])),
        Some(_) => Err(Reject::bad_request("bare LF in a chunked body")),
        None if bytes.len() >= max => {
            Err(Reject::bad_request("chunk header or trailers over the limit"))
        }
        None => Ok(None),
    }
}

/// `chunk-size [chunk-ext]` (RFC 9112 7.1.1): the size, and the bytes of the extensions. No
/// white space is taken before the `;`, no sign, no `0x`.
fn parse_size(line: &[u8]) -> Result<(usize, usize), Reject> {
    let bad = || Reject::bad_request("malformed chunk size");
    let digits = line.iter().position(|b| *b == b';').unwrap_or(line.len());
    let (number, extension) = line.split_at(digits);
    if number.is_empty() || number.len() > 16 {
        return Err(bad());
    }
    let mut size = 0usize;
    for byte in number {
        let digit = char::from(*byte).to_digit(16).ok_or_else(bad)?;
        // 16 hexadecimal digits are 64 bits: nothing is shifted out.
        size = size << 4 | digit as usize;
    }
    if !extension.iter().all(|b| is_text(*b)) {
        return Err(bad());
    }
    Ok((size, extension.len()))
}

/// Trailers are dropped unread (RFC 9110 6.5.1), yet a line that is no field could be the start
/// of something another parser takes for a request.
fn check_trailer(line: &[u8]) -> Result<(), Reject> {
    let name = line.iter().position(|b| *b == b':').map(|colon| &line[..colon]);
    let named = name.is_some_and(|n| !n.is_empty() && n.iter().all(|b| super::head::is_tchar(*b)));
    if named && line.iter().all(|b| is_text(*b)) {
        Ok(())
    } else {
        Err(Reject::bad_request("malformed trailer"))
    }
}

/// Bytes of a field value: no controls but the tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7F)
}

const _: () = assert!(usize::BITS == 64);

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1_000;

    /// Decodes `raw` as it stands, with `pad` bytes of a head before it.
    fn decode(raw: &[u8]) -> Result<Option<(Vec<u8>, usize)>, Reject> {
        let mut buffer = [b"head".as_slice(), raw].concat();
        let mut decoder = ChunkDecoder::new(4);
        let done = decoder.decode(&mut buffer, MAX)?;
        let (start, end, read) = decoder.bounds();
        Ok(done.then(|| (buffer[start..end].to_vec(), read - 4)))
    }

    fn refused(raw: &[u8]) -> u16 {
        decode(raw).expect_err(&String::from_utf8_lossy(raw)).status
    }

    #[test]
    fn chunks_are_joined_and_trailers_dropped() {
        let raw = b"4\r\nWiki\r\n0005;a=\"b\"\r\npedia\r\nE\r\n in\r\n\r\nchunks.\r\n0\r\nX-Y: z\r\n\r\nGET";
        let (body, consumed) = decode(raw).unwrap().unwrap();
        assert_eq!(body, b"Wikipedia in\r\n\r\nchunks.");
        assert_eq!(consumed, raw.len() - 3);
        assert_eq!(decode(b"0\r\n\r\n").unwrap().unwrap(), (Vec::new(), 5));
    }

    #[test]
    fn every_prefix_wants_more() {
        let raw = b"4;x=y\r\nWiki\r\na\r\n0123456789\r\n0\r\nA: b\r\n\r\n";
        for cut in 0..raw.len() {
            assert_eq!(decode(&raw[..cut]).unwrap(), None, "{cut}");
        }
        assert!(decode(raw).unwrap().is_some());
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for raw in [
            "\r\n",
            "x\r\n",
            "+1\r\n",
            "-1\r\n",
            "0x1\r\n",
            "1 \r\n",
            " 1\r\n",
            "1\t\r\n",
            "1 ;a\r\n",
            "1\n",
            "\n",
            "1\ra\n",
            "1;a\rb\r\n",
            "1;a\0\r\n",
            ";a\r\n",
            "00000000000000001\r\n",
            "FFFFFFFFFFFFFFFFF\r\n",
        ] {
            assert_eq!(refused(raw.as_bytes()), 400, "{raw:?}");
        }
    }

    #[test]
    fn data_must_end_where_its_size_says() {
        for raw in ["1\r\nab\r\n", "1\r\na\n", "1\r\na\ra", "3\r\na\r\n0\r\n\r\n"] {
            assert_eq!(refused(raw.as_bytes()), 400, "{raw:?}");
        }
    }

    #[test]
    fn bodies_over_the_limit_are_refused_at_the_size_line() {
        assert_eq!(refused(b"3e9\r\n"), 413);
        assert_eq!(refused(b"ffffffffffffffff\r\n"), 413);
        let fits = [b"3e8\r\n".as_slice(), &[b'a'; 1_000], b"\r\n1\r\n"].concat();
        assert_eq!(refused(&fits), 413);
        assert_eq!(decode(&fits[..fits.len() - 3]).unwrap(), None);
    }

    #[test]
    fn lines_extensions_and_trailers_are_bounded() {
        assert_eq!(refused(&[b"1;".as_slice(), &[b'a'; 254]].concat()), 400);
        let extension = [b"1;".as_slice(), &[b'a'; 200], b"\r\nb\r\n"].concat();
        assert_eq!(refused(&extension.repeat(90)), 400);
        let trailer = [b"0\r\n".as_slice(), b"a: b\r\n".repeat(1_000).as_slice()].concat();
        assert_eq!(refused(&trailer), 400);
        assert_eq!(refused(&[b"0\r\na:".as_slice(), &[b'a'; TRAILER_BYTES_MAX]].concat()), 400);
        for raw in ["0\r\nnocolon\r\n\r\n", "0\r\n a: b\r\n\r\n", "0\r\na : b\r\n\r\n", "0\r\n\n"] {
            assert_eq!(refused(raw.as_bytes()), 400, "{raw:?}");
        }
    }
}

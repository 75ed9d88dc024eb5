//! zstd, one frame at a time, with nothing allocated because of what a frame claims.
//!
//! Whether bytes are exactly one whole frame, and how much it can inflate to, is read off its
//! header and its block headers (RFC 8878, 3.1.1) before a byte of output is reserved: a frame
//! of forty bytes that announces 4 GiB is refused by arithmetic.

use zstd::zstd_safe::{CCtx, CParameter, DCtx};

/// The level of everything compressed here: fast, and within some percent of the next ones on
/// small JSON.
const LEVEL: i32 = 1;
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// No block holds or inflates to more, nor to more than its frame's window (RFC 8878, 3.1.1.2.4).
const BLOCK_BYTES_MAX: u64 = 128 << 10;

/// Why bytes were not taken for a zstd frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadFrame {
    /// Not exactly one whole frame.
    NotOne,
    /// The header does not say how long the content is.
    NoContentSize,
    /// The content is damaged, or not as long as announced.
    Content,
}

impl BadFrame {
    pub fn text(self) -> &'static str {
        match self {
            Self::NotOne => "not exactly one zstd frame",
            Self::NoContentSize => "a zstd frame without its content size",
            Self::Content => "a zstd frame whose content is damaged or not as long as it says",
        }
    }
}

/// What the headers of one whole frame say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameInfo {
    /// As announced; `None` where the header leaves it out.
    pub content_bytes: Option<u64>,
    /// What the blocks can inflate to at the most.
    pub content_bytes_max: u64,
}

impl FrameInfo {
    /// Reads the headers of `bytes`, which must be one frame and nothing else. Blocks over their
    /// maximum are refused although the library inflates them from memory: from a stream it does
    /// not, and what is stored as it came must be readable by every consumer.
    pub fn read(bytes: &[u8]) -> Result<Self, BadFrame> {
        let Header { len, content_bytes, block_bytes_max } =
            read_header(bytes).ok_or(BadFrame::NotOne)?;
        let checksum_bytes = if bytes[4] & 4 != 0 { 4 } else { 0 };
        let (mut at, mut content_bytes_max) = (len, 0);
        loop {
            let block = bytes.get(at..at + 3).ok_or(BadFrame::NotOne)?;
            let head = u32::from_le_bytes([block[0], block[1], block[2], 0]);
            let (last, kind, size) = (head & 1 == 1, head >> 1 & 3, head >> 3);
            let (stored, inflated) = match kind {
                0 => (size, u64::from(size)),
                1 => (1, u64::from(size)),
                2 => (size, block_bytes_max),
                _ => return Err(BadFrame::NotOne),
            };
            if u64::from(size) > block_bytes_max {
                return Err(BadFrame::NotOne);
            }
            at += 3 + stored as usize;
            content_bytes_max += inflated;
            if last {
                break;
            }
        }
        if at + checksum_bytes != bytes.len() {
            return Err(BadFrame::NotOne);
        }
        if content_bytes.is_some_and(|announced| announced > content_bytes_max) {
            return Err(BadFrame::Content);
        }
        Ok(Self { content_bytes, content_bytes_max })
    }
}

/// How much `bytes` inflate to, where they are one whole frame that says so and it is at most
/// `bytes_max`.
pub fn content_bytes(bytes: &[u8], bytes_max: usize) -> Option<usize> {
    let announced = FrameInfo::read(bytes).ok()?.content_bytes?;
    usize::try_from(announced).ok().filter(|size| *size <= bytes_max)
}

struct Header {
    /// Bytes up to the first block.
    len: usize,
    content_bytes: Option<u64>,
    block_bytes_max: u64,
}

fn read_header(bytes: &[u8]) -> Option<Header> {
    if bytes.get(..4)? != MAGIC {
        return None;
    }
    let descriptor = *bytes.get(4)?;
    let single_segment = descriptor >> 5 & 1 == 1;
    let window_bytes = usize::from(!single_segment);
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let at = 5 + window_bytes + dictionary_bytes;
    let mut word = [0; 8];
    word[..size_bytes].copy_from_slice(bytes.get(at..at + size_bytes)?);
    // The two-byte form counts from 256.
    let size = u64::from_le_bytes(word) + if size_bytes == 2 { 256 } else { 0 };
    let window = match single_segment {
        true => size,
        // Five bits of exponent, three of eighths (RFC 8878, 3.1.1.1.2).
        false => (8 + u64::from(bytes[5] & 7)) << (7 + (bytes[5] >> 3)),
    };
    Some(Header {
        len: at + size_bytes,
        content_bytes: (size_bytes > 0).then_some(size),
        block_bytes_max: window.min(BLOCK_BYTES_MAX),
    })
}

/// Inflates frames with one reused context.
pub struct Inflater(DCtx<'static>);

impl Default for Inflater {
    fn default() -> Self {
        Self(DCtx::create())
    }
}

impl Inflater {
    /// Puts the content of the one frame `bytes` in place of what `out` holds. The caller has
    /// bounded `content_bytes`; a frame that holds more or less is refused.
    pub fn inflate(
        &mut self,
        bytes: &[u8],
        content_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), BadFrame> {
        out.clear();
        if content_bytes > out.capacity() {
            out.reserve_exact(content_bytes);
        }
        let got = self.0.decompress(out, bytes);
        if got == Ok(content_bytes) {
            return Ok(());
        }
        out.clear();
        Err(BadFrame::Content)
    }
}

/// Compresses into single frames, content size and all, with one reused context.
pub struct Compressor(CCtx<'static>);

impl Default for Compressor {
    fn default() -> Self {
        let mut context = CCtx::create();
        context
            .set_parameter(CParameter::CompressionLevel(LEVEL))
            .expect("a level in range is taken");
        Self(context)
    }
}

impl Compressor {
    /// Puts one frame over `bytes` in place of what `out` holds.
    pub fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.0.compress2(out, bytes).expect("the output has the room that the bound asks for");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::base::prng::Prng;

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Compressor::default().compress(bytes, &mut out);
        out
    }

    #[test]
    fn frames_of_all_sizes_round_trip() {
        let mut prng = Prng::new(1);
        let mut inflater = Inflater::default();
        let mut out = Vec::new();
        for len in [0, 1, 255, 256, 257, 65_791, 65_792, 131_072, 131_073, 1 << 20] {
            for noise in [false, true] {
                let bytes: Vec<u8> = (0..len)
                    .map(|i| if noise { prng.next_u64() as u8 } else { (i / 99) as u8 })
                    .collect();
                let frame = compressed(&bytes);
                let info = FrameInfo::read(&frame).unwrap();
                assert_eq!(info.content_bytes, Some(len as u64));
                assert!(info.content_bytes_max >= len as u64);
                inflater.inflate(&frame, len, &mut out).unwrap();
                assert_eq!(out, bytes);
                assert_eq!(inflater.inflate(&frame, len + 1, &mut out), Err(BadFrame::Content));
            }
        }
    }

    #[test]
    fn what_is_not_one_whole_frame_is_refused() {
        let frame = compressed(&[b'x'; 1_000]);
        for end in 0..frame.len() {
            assert_eq!(FrameInfo::read(&frame[..end]), Err(BadFrame::NotOne), "{end}");
        }
        let longer = [&frame[..], &[0]].concat();
        assert_eq!(FrameInfo::read(&longer), Err(BadFrame::NotOne));
        assert_eq!(FrameInfo::read(&frame.repeat(2)), Err(BadFrame::NotOne));
        // A skippable frame is no data frame.
        assert_eq!(FrameInfo::read(b"\x50\x2A\x4D\x18\0\0\0\0"), Err(BadFrame::NotOne));
    }

    #[test]
    fn an_announced_size_beyond_the_blocks_is_refused_before_anything_is_reserved() {
        // Single segment, four-byte content size of 4 GiB - 1, one empty raw block.
        let bomb = b"\x28\xB5\x2F\xFD\xA0\xFF\xFF\xFF\xFF\x01\0\0";
        assert_eq!(FrameInfo::read(bomb), Err(BadFrame::Content));
        let honest = b"\x28\xB5\x2F\xFD\xA0\0\0\0\0\x01\0\0";
        assert_eq!(FrameInfo::read(honest).unwrap().content_bytes, Some(0));
    }

    fn inflates_as_a_stream(frame: &[u8]) -> bool {
        let mut decoder = zstd::stream::write::Decoder::new(Vec::new()).unwrap();
        frame.chunks(1).all(|byte| decoder.write_all(byte).is_ok())
    }

    /// The library inflates these from memory and refuses them from a stream.
    #[test]
    fn blocks_over_their_maximum_are_refused() {
        // Window descriptor 0: 1 KiB. The size field of a block reaches 2 MiB.
        let window = b"\x28\xB5\x2F\xFD\x80\0".as_slice();
        let single = b"\x28\xB5\x2F\xFD\xA0".as_slice();
        for (start, good, bad) in [
            (window, 1_024u32, 1_025u32),
            (single, 131_072, 131_073),
            (single, 131_072, (1 << 21) - 1),
        ] {
            let run = |size: u32| {
                let block = &(1 | 1 << 1 | size << 3).to_le_bytes()[..3];
                [start, &size.to_le_bytes(), block, b"x"].concat()
            };
            let content_bytes_max = u64::from(good);
            let info = FrameInfo { content_bytes: Some(content_bytes_max), content_bytes_max };
            assert_eq!(FrameInfo::read(&run(good)), Ok(info));
            assert_eq!(FrameInfo::read(&run(bad)), Err(BadFrame::NotOne));
            let mut out = Vec::new();
            Inflater::default().inflate(&run(good), good as usize, &mut out).unwrap();
            assert!(inflates_as_a_stream(&run(good)) && !inflates_as_a_stream(&run(bad)));
        }
    }

    #[test]
    fn damage_is_found_or_changes_only_the_content() {
        let frame = compressed(&(0..3_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        let mut prng = Prng::new(7);
        let (mut inflater, mut out) = (Inflater::default(), Vec::new());
        for _ in 0..2_000 {
            let mut bad = frame.clone();
            let at = prng.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << prng.below(8);
            let Ok(FrameInfo { content_bytes: Some(size), content_bytes_max }) =
                FrameInfo::read(&bad)
            else {
                continue;
            };
            assert!(size <= content_bytes_max);
            if inflater.inflate(&bad, size as usize, &mut out).is_ok() {
                assert_eq!(out.len() as u64, size);
            }
        }
    }
}

//! The chunk being filled: what is appended between two submissions. The only place that
//! writes payload bytes into buffers; one copy each.
//!
//! It starts on a block of its segment and lies in several buffers, all full but the last, so
//! that byte `n` of the chunk is byte `start + n` of the file.

use super::format::{BLOCK, RECORD_ALIGN};
use crate::base::buf::{IoBuf, align_up};
use crate::base::ids::{LogPosition, SegmentId};
use smallvec::SmallVec;

/// A lone small append should not pin a big buffer in the tail; a busy log should not make
/// many small writes, so the first buffer of a chunk is as large as the last chunks were.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;

pub struct Chunk<B> {
    segment: SegmentId,
    start: u64,
    len: usize,
    full: Pieces<B>,
    filling: Option<Piece<B>>,
    next_bytes: usize,
}

pub type Pieces<B> = SmallVec<[Piece<B>; 4]>;

/// One buffer of a chunk and how much of it is filled.
#[derive(Clone)]
pub struct Piece<B> {
    /// Its place in the segment file.
    pub at: u64,
    pub buf: B,
    pub len: usize,
}

impl<B: IoBuf> Chunk<B> {
    /// `expected`: about how many bytes it will take.
    pub fn new(segment: SegmentId, start: u64, expected: usize) -> Self {
        assert!(start.is_multiple_of(BLOCK), "a chunk starts on a block");
        Self {
            segment,
            start,
            len: 0,
            full: Pieces::new(),
            filling: None,
            next_bytes: expected.next_power_of_two().clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX),
        }
    }

    /// For a chunk of one empty record: a buffer of one block.
    pub fn marker(segment: SegmentId, start: u64) -> Self {
        Self { next_bytes: BLOCK as usize, ..Self::new(segment, start, 0) }
    }

    pub fn segment(&self) -> SegmentId {
        self.segment
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Where in the file the next byte goes.
    pub fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// The next record takes `bytes`: where no buffer is being filled, one that holds all of it
    /// spares a second write and a record in two pieces.
    pub fn prepare(&mut self, bytes: usize) {
        if self.filling.is_none() {
            let whole = (bytes + BLOCK as usize).next_power_of_two();
            self.next_bytes = self.next_bytes.max(whole.min(BUFFER_BYTES_MAX));
        }
    }

    /// Copies `bytes` behind what is there.
    pub fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let take = room.len().min(bytes.len());
            room[..take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            self.filled(take);
        }
    }

    /// Zeros up to the next multiple of `to`.
    pub fn pad(&mut self, to: u64) {
        let mut left = (align_up(self.end(), to) - self.end()) as usize;
        while left > 0 {
            let room = self.room();
            let take = room.len().min(left);
            room[..take].fill(0);
            left -= take;
            self.filled(take);
        }
    }

    /// Pads to where the next record may start, and says where that is.
    pub fn align(&mut self) -> u64 {
        self.pad(RECORD_ALIGN);
        self.end()
    }

    /// Ends the chunk: zeros up to the block, the pieces for writing.
    pub fn close(mut self) -> Closed<B> {
        let content = self.len;
        self.pad(BLOCK);
        let mut pieces = self.full;
        pieces.extend(self.filling);
        let closed =
            Closed { segment: self.segment, start: self.start, len: self.len as u64, pieces };
        closed.assert_padding(content as u64);
        closed
    }

    /// Copies `len` bytes at file byte `at` out of the chunk: buffers being filled are never
    /// shared.
    pub fn copy(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        if at < self.start || at + len as u64 > self.end() {
            return None;
        }
        let mut out = Vec::with_capacity(len);
        let (mut at, end) = (at, at + len as u64);
        for piece in self.full.iter().chain(&self.filling) {
            let piece_end = piece.at + piece.len as u64;
            if at < piece_end && at < end {
                let (from, to) = (at - piece.at, end.min(piece_end) - piece.at);
                out.extend_from_slice(&piece.buf.bytes()[from as usize..to as usize]);
                at = piece.at + to;
            }
        }
        Some(out)
    }

    fn room(&mut self) -> &mut [u8] {
        let (bytes, at) = (self.next_bytes, self.start + self.len as u64);
        let mut grew = false;
        let piece = self.filling.get_or_insert_with(|| {
            grew = true;
            Piece { at, buf: B::alloc(bytes), len: 0 }
        });
        if grew {
            self.next_bytes = (bytes * 4).min(BUFFER_BYTES_MAX);
        }
        let from = piece.len;
        &mut piece.buf.bytes_mut()[from..]
    }

    fn filled(&mut self, bytes: usize) {
        self.len += bytes;
        if let Some(piece) = &mut self.filling {
            piece.len += bytes;
            if piece.len == piece.buf.bytes().len() {
                self.full.extend(self.filling.take());
            }
        }
    }
}

/// A chunk that is complete: whole blocks, ready to be written.
pub struct Closed<B> {
    pub segment: SegmentId,
    pub start: u64,
    pub len: u64,
    pub pieces: Pieces<B>,
}

impl<B: IoBuf> Closed<B> {
    pub fn end(&self) -> LogPosition {
        LogPosition::new(self.segment, self.start + self.len)
    }

    /// Another tenant's bytes must never reach the file.
    fn assert_padding(&self, content: u64) {
        let content_end = self.start + content;
        for piece in &self.pieces {
            assert!((piece.len as u64).is_multiple_of(BLOCK), "a piece is whole blocks");
            let from = content_end.clamp(piece.at, piece.at + piece.len as u64) - piece.at;
            let padding = &piece.buf.bytes()[from as usize..piece.len];
            assert!(padding.iter().all(|byte| *byte == 0), "padding is not zero");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::HeapBuf;
    use crate::base::prng::Prng;

    #[test]
    fn pieces_lie_one_behind_the_other_and_end_in_zeros() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let mut chunk = Chunk::<HeapBuf>::new(SegmentId(1), 8_192, 0);
            let mut wanted = Vec::new();
            for _ in 0..1 + prng.below(40) {
                let bytes = vec![prng.next_u64() as u8 | 1; prng.below(60_000) as usize];
                let at = chunk.align();
                wanted.resize((at - 8_192) as usize, 0);
                chunk.put(&bytes);
                wanted.extend_from_slice(&bytes);
                assert_eq!(chunk.copy(at, bytes.len()), Some(bytes));
            }
            let closed = chunk.close();
            wanted.resize(wanted.len().next_multiple_of(4_096), 0);
            let mut bytes = Vec::new();
            for piece in &closed.pieces {
                assert_eq!(piece.at, 8_192 + bytes.len() as u64);
                bytes.extend_from_slice(&piece.buf.bytes()[..piece.len]);
            }
            assert_eq!(bytes, wanted);
            assert_eq!(closed.len, wanted.len() as u64);
        }
    }

    #[test]
    fn a_lone_record_takes_a_small_buffer_and_a_marker_one_block() {
        let mut chunk = Chunk::<HeapBuf>::new(SegmentId(1), 0, 0);
        chunk.put(b"x");
        assert_eq!(chunk.close().pieces[0].buf.bytes().len(), BUFFER_BYTES_MIN);
        let mut chunk = Chunk::<HeapBuf>::marker(SegmentId(1), 0);
        chunk.put(b"x");
        assert_eq!(chunk.close().pieces[0].buf.bytes().len(), 4_096);
    }
}

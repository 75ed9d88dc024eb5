//! The newest buffers of the log, kept after they were written so that pops near the head
//! read memory. Bounded by the memory the buffers hold; what is not durable yet is never let go.

use super::chunk::{Closed, Piece};
use crate::base::buf::{Gather, IoBuf, Slice};
use crate::base::ids::LogPosition;
use std::collections::VecDeque;

pub struct Tail<B> {
    /// In the order of the log, without gaps inside a segment.
    pieces: VecDeque<(LogPosition, Piece<B>)>,
    bytes: usize,
    bytes_max: usize,
}

impl<B: IoBuf> Tail<B> {
    pub fn new(bytes_max: usize) -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub fn push(&mut self, chunk: &Closed<B>) {
        for piece in &chunk.pieces {
            self.bytes += piece.buf.bytes().len();
            self.pieces.push_back((LogPosition::new(chunk.segment, piece.at), piece.clone()));
        }
    }

    /// Lets the oldest durable buffers go until the bound holds.
    pub fn evict(&mut self, durable: LogPosition) {
        while let Some((at, piece)) = self.pieces.front() {
            if self.bytes <= self.bytes_max || at.advance(piece.len as u64) > durable {
                return;
            }
            self.bytes -= piece.buf.bytes().len();
            self.pieces.pop_front();
        }
    }

    /// Whether the byte at `at`, and so everything behind it, is here.
    pub fn holds(&self, at: LogPosition) -> bool {
        self.find(at).is_some()
    }

    /// The `bytes` from `at`, shared.
    pub fn slices(&self, at: LogPosition, bytes: usize) -> Option<Gather<B>> {
        let mut index = self.find(at)?;
        let mut out = smallvec::SmallVec::new();
        let (mut byte, mut left) = (at.byte(), bytes);
        while left > 0 {
            let (place, piece) = self.pieces.get(index)?;
            if place.segment() != at.segment() {
                return None;
            }
            let from = (byte - piece.at) as usize;
            let to = (from + left).min(piece.len);
            out.push(Slice::new(piece.buf.clone(), from, to));
            left -= to - from;
            byte = piece.at + piece.len as u64;
            index += 1;
        }
        Some(Gather::Slices(out))
    }

    fn find(&self, at: LogPosition) -> Option<usize> {
        let after = self.pieces.partition_point(|(place, _)| *place <= at);
        let (place, piece) = self.pieces.get(after.checked_sub(1)?)?;
        (at < place.advance(piece.len as u64)).then(|| after - 1)
    }
}

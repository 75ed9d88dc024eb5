//! Aligned buffers as the log sees them.
//!
//! The log is generic over [`IoBuf`]: in tests a plain heap vector, in `server` a shared
//! glommio DMA buffer. A buffer is filled by its one owner, then shared for reading: by the
//! write in flight, by the tail of the log, by replies on their way out.

use std::rc::Rc;

/// Every write and read of a segment is a multiple of this, at a multiple of this.
pub const ALIGN: usize = 4096;

pub const fn align_up(n: u64, to: u64) -> u64 {
    n.div_ceil(to) * to
}

pub const fn align_down(n: u64, to: u64) -> u64 {
    n / to * to
}

/// A reference-counted buffer whose bytes start at an [`ALIGN`]ed address where the driver
/// needs that. Cloning shares the bytes.
pub trait IoBuf: Clone + 'static {
    /// A buffer of exactly `len` bytes. **Its content is arbitrary**: recycled memory holds
    /// other tenants' bytes, so whoever fills it zeroes what it does not fill.
    fn alloc(len: usize) -> Self;

    fn bytes(&self) -> &[u8];

    /// The bytes for writing. Panics when the buffer is shared: only the chunk being filled
    /// is ever written to.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// The heap-backed buffer of tests and benches. Filled with a pattern at allocation so that
/// padding nobody zeroed shows.
#[derive(Clone, Debug)]
pub struct HeapBuf(Rc<Vec<u8>>);

impl From<Vec<u8>> for HeapBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Rc::new(bytes))
    }
}

impl IoBuf for HeapBuf {
    fn alloc(len: usize) -> Self {
        Self(Rc::new(vec![0xA5; len]))
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Rc::get_mut(&mut self.0).expect("a buffer is written only before it is shared")
    }
}

/// A range of a shared buffer.
#[derive(Clone, Debug)]
pub struct Slice<B> {
    buf: B,
    from: usize,
    to: usize,
}

impl<B: IoBuf> Slice<B> {
    pub fn new(buf: B, from: usize, to: usize) -> Self {
        assert!(from <= to && to <= buf.bytes().len(), "slice beyond its buffer");
        Self { buf, from, to }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buf.bytes()[self.from..self.to]
    }

    pub fn len(&self) -> usize {
        self.to - self.from
    }

    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// The part `from..to` of this slice.
    pub fn sub(&self, from: usize, to: usize) -> Self {
        assert!(from <= to && to <= self.len(), "slice beyond its slice");
        Self { buf: self.buf.clone(), from: self.from + from, to: self.from + to }
    }
}

/// Bytes that lie in one or more pieces: slices of the log's buffers on the shard that owns
/// them, one owned vector once they have crossed to another shard.
#[derive(Clone, Debug)]
pub enum Gather<B> {
    Slices(smallvec::SmallVec<[Slice<B>; 2]>),
    Owned(Vec<u8>),
}

/// No bytes.
impl<B> Default for Gather<B> {
    fn default() -> Self {
        Self::Slices(smallvec::SmallVec::new())
    }
}

impl<B: IoBuf> Gather<B> {
    pub fn len(&self) -> usize {
        match self {
            Self::Slices(slices) => slices.iter().map(Slice::len).sum(),
            Self::Owned(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (slices, owned) = match self {
            Self::Slices(slices) => (slices.as_slice(), None),
            Self::Owned(bytes) => (&[][..], Some(bytes.as_slice())),
        };
        slices.iter().map(Slice::bytes).chain(owned)
    }

    /// The bytes in one piece, copied only where they lie in several.
    pub fn contiguous(&self) -> std::borrow::Cow<'_, [u8]> {
        match self {
            Self::Slices(slices) if slices.len() == 1 => slices[0].bytes().into(),
            Self::Slices(_) => self.to_vec().into(),
            Self::Owned(bytes) => bytes.into(),
        }
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| out.extend_from_slice(piece));
        out
    }

    /// The first `len` bytes.
    pub fn truncated(mut self, len: usize) -> Self {
        match &mut self {
            Self::Owned(bytes) => bytes.truncate(len),
            Self::Slices(slices) => {
                let mut left = len;
                slices.retain_mut(|slice| {
                    let keep = slice.len().min(left);
                    left -= keep;
                    *slice = slice.sub(0, keep);
                    keep > 0
                });
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_joins_and_truncates_pieces() {
        let a = HeapBuf::from(b"hello ".to_vec());
        let b = HeapBuf::from(b"..world".to_vec());
        let g = Gather::Slices(
            [Slice::new(a, 0, 6), Slice::new(b, 2, 7)]
                .into_iter()
                .collect::<smallvec::SmallVec<_>>(),
        );
        assert_eq!(g.to_vec(), b"hello world");
        assert_eq!(&*g.contiguous(), b"hello world");
        assert_eq!(g.clone().truncated(8).to_vec(), b"hello wo");
        assert_eq!(g.truncated(6).pieces().count(), 1);
        assert_eq!(align_up(4097, 4096), 8192);
        assert_eq!(align_down(4097, 4096), 4096);
    }
}

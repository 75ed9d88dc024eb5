//! The receive buffer of one connection.
//!
//! `bytes` is initialised over its whole length, of which the first `filled` bytes were received;
//! a safe `&mut [u8]` can thus be lent to the driver. Requests are split off the front without a
//! copy. Once they are dropped their memory is taken back, so a quiet exchange of requests and
//! answers allocates nothing.

use bytes::{Buf, Bytes, BytesMut};

use crate::base::limits::{RECV_RETAIN_MAX, RECV_SPACE_LOW, RECV_SPACE_MIN};

#[derive(Default)]
pub(super) struct RecvBuffer {
    bytes: BytesMut,
    filled: usize,
    /// Size of the allocation behind `bytes`, of which `bytes` may be only the rear.
    allocated: usize,
    /// What the next receive will probably fill: by the size of the last request and by how
    /// full the last receives were, since a pipelining client sends many small ones at once.
    hint: usize,
}

impl RecvBuffer {
    /// Room between two requests: at least `enough` bytes, more where the last request of this
    /// connection says that it will be used.
    pub fn space_idle(&mut self, enough: usize) -> &mut [u8] {
        assert!(self.filled == 0 && enough > 0);
        let want = enough.max(self.hint.min(RECV_RETAIN_MAX));
        if self.bytes.len() < want {
            // With nothing received, taking the memory back moves no bytes.
            self.bytes.clear();
            if !self.bytes.try_reclaim(want) && self.bytes.capacity() < enough {
                self.reallocate(want);
            }
            let granted = want.min(self.bytes.capacity());
            self.bytes.resize(granted, 0);
        }
        &mut self.bytes[..]
    }

    /// Room inside a request: what there is if it is `enough`, or else `want` more. Growing only
    /// when the room is used up keeps the copies to one per byte, however small the receives.
    pub fn space(&mut self, want: usize, enough: usize) -> &mut [u8] {
        assert!(0 < enough && enough <= want, "{enough} of {want}");
        if self.bytes.len() - self.filled < enough {
            self.bytes.truncate(self.filled);
            let in_place = self.bytes.capacity() - self.filled;
            if in_place < enough && !self.bytes.try_reclaim(want) {
                self.reallocate(self.filled + want);
            }
            let granted = want.min(self.bytes.capacity() - self.filled);
            self.bytes.resize(self.filled + granted, 0);
        }
        &mut self.bytes[self.filled..]
    }

    pub fn commit(&mut self, count: usize) {
        let offered = self.bytes.len() - self.filled;
        assert!(count <= offered, "more received than there was room");
        if count == offered {
            self.hint = self.hint.max(2 * offered);
        } else if count < offered / 4 {
            self.hint /= 2;
        }
        self.filled += count;
    }

    /// Splits the first `count` bytes off.
    pub fn take(&mut self, count: usize) -> Bytes {
        assert!(count <= self.filled);
        let front = self.bytes.split_to(count).freeze();
        self.filled -= count;
        // Room to spare: a receive that fills it all asks for another one, and a small request may
        // come before the next as large as this.
        self.hint = self.hint.max(count + RECV_SPACE_LOW);
        if self.allocated > RECV_RETAIN_MAX {
            // The few bytes behind a large request move out, so that its memory goes with it.
            self.hint = 0;
            self.bytes.truncate(self.filled);
            self.reallocate(if self.filled == 0 { 0 } else { self.filled + RECV_SPACE_MIN });
        }
        front
    }

    /// Drops the first `count` bytes.
    pub fn skip(&mut self, count: usize) {
        assert!(count <= self.filled);
        self.bytes.advance(count);
        self.filled -= count;
    }

    /// Drops the bytes `from..to` and closes the gap.
    pub fn cut(&mut self, from: usize, to: usize) {
        assert!(from <= to && to <= self.filled);
        self.bytes.copy_within(to..self.filled, from);
        self.filled -= to - from;
    }

    /// Gives the memory back if nothing received is in it.
    pub fn release(&mut self) {
        if self.filled == 0 {
            *self = Self::default();
        }
    }

    pub fn data(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.filled]
    }

    pub fn len(&self) -> usize {
        self.filled
    }

    pub fn allocated(&self) -> usize {
        self.allocated
    }

    fn reallocate(&mut self, size: usize) {
        let mut fresh = BytesMut::with_capacity(size);
        fresh.extend_from_slice(&self.bytes[..self.filled]);
        self.allocated = fresh.capacity();
        self.bytes = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(buffer: &mut RecvBuffer, data: &[u8]) {
        let enough = RECV_SPACE_MIN.max(data.len());
        buffer.space_idle(enough)[..data.len()].copy_from_slice(data);
        buffer.commit(data.len());
    }

    #[test]
    fn memory_of_a_dropped_request_is_used_again() {
        let mut buffer = RecvBuffer::default();
        receive(&mut buffer, b"first");
        let place = buffer.data().as_ptr();
        for _ in 0..100 {
            let len = buffer.len();
            drop(buffer.take(len));
            receive(&mut buffer, b"again");
            assert_eq!(buffer.data(), b"again");
            assert_eq!(buffer.allocated(), RECV_SPACE_MIN);
        }
        assert_eq!(buffer.data().as_ptr(), place);
    }

    #[test]
    fn a_large_request_after_a_small_one_fits_in_one_receive_with_room_to_spare() {
        const SMALL: usize = 125;
        const LARGE: usize = 13_734;
        let mut buffer = RecvBuffer::default();
        let mut room = Vec::new();
        for _ in 0..10 {
            for size in [SMALL, LARGE] {
                while buffer.len() < size {
                    let left = size - buffer.len();
                    let space = match buffer.len() {
                        0 => buffer.space_idle(RECV_SPACE_MIN),
                        _ => buffer.space(left.max(RECV_SPACE_MIN), left.min(RECV_SPACE_LOW)),
                    };
                    room.push(space.len());
                    let came = space.len().min(left);
                    buffer.commit(came);
                }
                drop(buffer.take(size));
            }
        }
        // The first large one had to show its size.
        let usual = &room[room.len() - 18..];
        assert!(usual.iter().skip(1).step_by(2).all(|room| *room > LARGE), "{room:?}");
        assert!(room.len() <= 22, "{room:?}");
    }

    #[test]
    fn a_held_request_keeps_its_bytes() {
        let mut buffer = RecvBuffer::default();
        let mut held = Vec::new();
        for n in 0..100u8 {
            receive(&mut buffer, &[n; 1_000]);
            held.push(buffer.take(1_000));
        }
        for (n, bytes) in held.iter().enumerate() {
            assert!(bytes.iter().all(|b| usize::from(*b) == n));
        }
        assert_eq!(buffer.allocated(), RECV_SPACE_MIN);
    }

    #[test]
    fn a_large_request_takes_its_memory_along() {
        let mut buffer = RecvBuffer::default();
        receive(&mut buffer, &vec![7; RECV_RETAIN_MAX + 1]);
        let request = buffer.take(RECV_RETAIN_MAX);
        assert_eq!(buffer.data(), [7]);
        assert!(buffer.allocated() <= 2 * RECV_SPACE_MIN);
        assert_eq!(request.len(), RECV_RETAIN_MAX);
        buffer.skip(1);
        buffer.release();
        assert_eq!(buffer.allocated(), 0);
    }

    #[test]
    fn growth_is_geometric_however_small_the_receives() {
        let mut buffer = RecvBuffer::default();
        buffer.space_idle(RECV_SPACE_MIN);
        let mut sizes = vec![buffer.allocated()];
        for _ in 0..1_000_000 {
            let want = buffer.len().max(RECV_SPACE_MIN);
            buffer.space(want, RECV_SPACE_LOW)[0] = 1;
            buffer.commit(1);
            if sizes.last() != Some(&buffer.allocated()) {
                sizes.push(buffer.allocated());
            }
        }
        assert!(sizes.len() < 20, "{} sizes", sizes.len());
        assert!(buffer.allocated() < 2_100_000);
    }

    #[test]
    fn cut_closes_the_gap() {
        let mut buffer = RecvBuffer::default();
        receive(&mut buffer, b"abcdef");
        buffer.cut(1, 4);
        assert_eq!(buffer.data(), b"aef");
    }
}

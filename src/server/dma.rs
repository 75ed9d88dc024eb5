//! [`DmaBuf`]: the log's buffers in memory that O_DIRECT and io_uring take.

use std::fmt;
use std::rc::Rc;

use glommio::io::DmaBuffer;

use crate::base::buf::{ALIGN, IoBuf};

/// A shared buffer of the executor it was made on, or what a read brought.
#[derive(Clone)]
pub struct DmaBuf(Rc<DmaBuffer>);

impl DmaBuf {
    pub fn from_read(read: DmaBuffer) -> Self {
        Self(Rc::new(read))
    }

    /// The buffer in the form that a write takes.
    pub fn to_write(&self) -> Rc<DmaBuffer> {
        self.0.clone()
    }
}

impl IoBuf for DmaBuf {
    /// Only on an executor's thread. From its registered memory while there is some, else from
    /// the heap.
    fn alloc(len: usize) -> Self {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "a buffer of {len} bytes is no whole blocks");
        let buffer = glommio::allocate_dma_buffer(len);
        assert!(buffer.len() == len, "asked for {len} bytes, got {}", buffer.len());
        Self(Rc::new(buffer))
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Rc::get_mut(&mut self.0)
            .expect("a buffer is written only before it is shared")
            .as_bytes_mut()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({} bytes)", self.bytes().len())
    }
}

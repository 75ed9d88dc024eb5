//! [`DmaBuf`]: the log's buffers in memory that O_DIRECT and io_uring take.

use std::fmt;
use std::rc::Rc;

use glommio::io::{DmaBuffer, ReadResult};

use crate::base::buf::{ALIGN, IoBuf};

/// A shared buffer of the executor it was made on. Only [`IoBuf::alloc`]ed ones can be
/// written to; what a read brought is handed on without a copy.
#[derive(Clone)]
pub struct DmaBuf(Memory);

#[derive(Clone)]
enum Memory {
    Filled(Rc<DmaBuffer>),
    Read(ReadResult),
}

impl DmaBuf {
    pub fn from_read(read: ReadResult) -> Self {
        Self(Memory::Read(read))
    }

    /// The buffer in the form that a write takes. A buffer that came from a read is copied;
    /// the log writes only what it filled.
    pub fn to_write(&self) -> Rc<DmaBuffer> {
        match &self.0 {
            Memory::Filled(buffer) => buffer.clone(),
            Memory::Read(read) => {
                let mut buffer = glommio::allocate_dma_buffer(read.len());
                buffer.as_bytes_mut().copy_from_slice(read);
                Rc::new(buffer)
            }
        }
    }
}

impl IoBuf for DmaBuf {
    /// Only on an executor's thread. From its registered memory while there is some, else from
    /// the heap.
    fn alloc(len: usize) -> Self {
        assert!(len > 0 && len.is_multiple_of(ALIGN), "a buffer of {len} bytes is no whole blocks");
        let buffer = glommio::allocate_dma_buffer(len);
        assert!(buffer.len() == len, "asked for {len} bytes, got {}", buffer.len());
        Self(Memory::Filled(Rc::new(buffer)))
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Filled(buffer) => buffer.as_bytes(),
            Memory::Read(read) => read,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Filled(buffer) => Rc::get_mut(buffer)
                .expect("a buffer is written only before it is shared")
                .as_bytes_mut(),
            Memory::Read(_) => panic!("what a read brought is never written to"),
        }
    }

    fn trim(&mut self, len: usize) {
        match &mut self.0 {
            Memory::Filled(buffer) => Rc::get_mut(buffer)
                .expect("a buffer is trimmed only before it is shared")
                .trim_to_size(len),
            Memory::Read(_) => panic!("what a read brought is never written to"),
        }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({} bytes)", self.bytes().len())
    }
}

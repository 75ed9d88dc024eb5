//! Opens what is stored for being shown as JSON: inflates a batch, decrypts a payload.

use super::pop::unshowable;
use crate::base::cipher::Keys;
use crate::base::compress::{self, Inflater};
use crate::base::ids::PartitionId;
use crate::base::limits;
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame::{self, BatchHead, Frame};

/// One for each executor: its buffers are reused from answer to answer.
#[derive(Default)]
pub struct Opener {
    pub(super) inflating: Inflating,
    pub(super) decrypting: Decrypting,
    pub(super) around: Around,
}

/// What is the same around all messages of a claim, or of a batch.
#[derive(Default)]
pub(super) struct Around {
    pub created_at: Vec<u8>,
    /// From the end of `createdAt` to the offset.
    pub middle: Vec<u8>,
    /// What follows the offset.
    pub end: Vec<u8>,
}

/// Beside [`Decrypting`], so that a payload can be decrypted out of an inflated batch.
#[derive(Default)]
pub(super) struct Inflating {
    inflater: Inflater,
    frames: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Decrypting {
    keys: Keys,
    payload: Vec<u8>,
}

impl Opener {
    pub fn new(keys: Keys) -> Self {
        let decrypting = Decrypting { keys, payload: Vec::new() };
        Self { decrypting, ..Self::default() }
    }

    /// Whether there is a key to encrypt with.
    pub fn can_seal(&self) -> bool {
        self.decrypting.keys.can_seal()
    }

    /// For bodies that come compressed.
    pub fn inflater(&mut self) -> &mut Inflater {
        &mut self.inflating.inflater
    }
}

impl Inflating {
    /// The frames of a stored batch whose bytes are `stored`.
    pub fn frames<'a>(
        &'a mut self,
        head: &BatchHead,
        stored: &'a [u8],
    ) -> Result<&'a [u8], Refusal> {
        match head.codec {
            frame::CODEC_RAW => Ok(stored),
            frame::CODEC_ZSTD => {
                self.trim();
                let size = compress::content_bytes(stored, limits::INFLATED_BYTES_MAX)
                    .ok_or_else(|| unshowable("a stored batch is no zstd frame"))?;
                self.inflater
                    .inflate(stored, size, &mut self.frames)
                    .map_err(|error| unshowable(error.text()))?;
                Ok(&self.frames)
            }
            _ => Err(unshowable("a stored batch has a codec that this version does not know")),
        }
    }

    /// One large batch does not keep its memory for good.
    fn trim(&mut self) {
        if self.frames.capacity() > limits::SCRATCH_RETAIN_MAX {
            self.frames = Vec::new();
        }
    }
}

impl Decrypting {
    /// The payload of a frame as it was pushed.
    pub fn payload<'a>(
        &'a mut self,
        partition: PartitionId,
        frame: &Frame<'a>,
    ) -> Result<&'a [u8], Refusal> {
        if frame.flags & frame::FLAG_ENCRYPTED == 0 {
            return Ok(frame.payload);
        }
        let place = frame::sealed_place(partition, frame.id);
        self.keys
            .open(&place, frame.payload, &mut self.payload)
            .map_err(|error| Refusal::new(ErrorCode::CannotDecrypt, error.text()))?;
        Ok(&self.payload)
    }
}

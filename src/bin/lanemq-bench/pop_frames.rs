//! Reads framed pop answers. All integers are little-endian.
//!
//! ```text
//! answer: "QPF1" | u8 version 1 | u32 len, own keys | u16 len, queue | u16 len, lease id
//!       | u16 len, group | u32 claims | claims
//! claim:  u64 partition id | u16 len, partition | u64 start | u64 end, inclusive
//!       | u32 attempt | u32 records | records
//! ```
//! A record is a stored batch (`lanemq::model::frame`), and may reach beyond its claim.

use lanemq::model::frame::{self, BATCH_HEAD_BYTES, BatchHead};

use crate::acks::Acks;
use crate::payload;
use crate::wire::{Fault, Message, Place, excerpt};

/// A record that would inflate to more is refused.
const RECORD_BYTES_MAX: u64 = 128 << 20;

pub struct PopFrames {
    inflater: zstd::bulk::Decompressor<'static>,
    inflated: Vec<u8>,
}

impl PopFrames {
    pub fn new() -> Result<Self, Fault> {
        Ok(Self { inflater: zstd::bulk::Decompressor::new()?, inflated: Vec::new() })
    }

    pub fn read(
        &mut self,
        body: &[u8],
        messages: &mut Vec<Message>,
        acks: &mut Acks,
    ) -> Result<(), Fault> {
        let mut reader = Reader { rest: body };
        match self.read_answer(&mut reader, messages, acks) {
            Some(()) if reader.rest.is_empty() => Ok(()),
            _ => Err(Fault::new(format!(
                "a framed answer that cannot be read at byte {} of {}: {}",
                body.len() - reader.rest.len(),
                body.len(),
                excerpt(body)
            ))),
        }
    }

    fn read_answer(
        &mut self,
        reader: &mut Reader<'_>,
        messages: &mut Vec<Message>,
        acks: &mut Acks,
    ) -> Option<()> {
        if reader.take(5)? != b"QPF1\x01" {
            return None;
        }
        let own = reader.u32()?;
        reader.take(own as usize)?;
        reader.short()?;
        let lease = reader.short()?;
        reader.short()?;
        for _ in 0..reader.u32()? {
            let partition_id = reader.u64()?;
            reader.short()?;
            let (start, end) = (reader.u64()?, reader.u64()?);
            let attempt = reader.u32()?;
            // Nothing is nacked here and no lease ends: a second delivery is a fault.
            if attempt != 1 {
                return None;
            }
            let mut next = start;
            for _ in 0..reader.u32()? {
                let head = BatchHead::decode(reader.take(BATCH_HEAD_BYTES)?)?;
                let stored = reader.take(head.len as usize)?;
                let mut offset = head.base_offset.0;
                for frame in frame::frames(self.inflate(&head, stored)?) {
                    if (start..=end).contains(&offset) {
                        let seq = payload::read_seq(frame.payload)?;
                        let place = Some(Place { partition_id, offset });
                        messages.push(Message { seq, place });
                        acks.add(frame.transaction_id, partition_id, lease);
                        next = offset + 1;
                    }
                    offset += 1;
                }
                if offset != head.base_offset.0 + u64::from(head.count) {
                    return None;
                }
            }
            if next != end + 1 {
                return None;
            }
        }
        Some(())
    }

    fn inflate<'a>(&'a mut self, head: &BatchHead, stored: &'a [u8]) -> Option<&'a [u8]> {
        if head.codec == frame::CODEC_RAW {
            return Some(stored);
        }
        if head.codec != frame::CODEC_ZSTD {
            return None;
        }
        let size = zstd::zstd_safe::get_frame_content_size(stored).ok()??;
        if size > RECORD_BYTES_MAX {
            return None;
        }
        self.inflated.clear();
        self.inflated.reserve(size as usize);
        self.inflater.decompress_to_buffer(stored, &mut self.inflated).ok()?;
        Some(&self.inflated)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(front)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let len = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        self.take(usize::from(len))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

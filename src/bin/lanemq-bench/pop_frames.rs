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

#[cfg(test)]
mod tests {
    use lanemq::base::ids::{MessageId, Offset};

    use super::*;

    fn short(out: &mut Vec<u8>, text: &[u8]) {
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text);
    }

    /// A stored batch of messages whose numbers are their offsets.
    fn record(base: u64, count: u32, codec: u8) -> Vec<u8> {
        let mut frames = Vec::new();
        for offset in base..base + u64::from(count) {
            let payload = format!("{{\"seq\":\"{offset:016x}\"}}");
            let id = format!("t-{offset}");
            frame::write_frame(&mut frames, MessageId([7; 16]), id.as_bytes(), payload.as_bytes());
        }
        if codec == frame::CODEC_ZSTD {
            frames = zstd::bulk::compress(&frames, 1).unwrap();
        }
        let base_offset = Offset(base);
        let len = frames.len() as u32;
        let head = BatchHead { base_offset, created_at_us: 1, count, codec, len };
        [&head.encode()[..], &frames].concat()
    }

    /// One claim of partition 7.
    fn answer(span: (u64, u64), attempt: u32, records: &[Vec<u8>]) -> Vec<u8> {
        let mut out = b"QPF1\x01".to_vec();
        let own = b"{\"frames\":true}";
        out.extend((own.len() as u32).to_le_bytes());
        out.extend(own);
        [&b"q"[..], b"L", b"g"].iter().for_each(|text| short(&mut out, text));
        out.extend(1u32.to_le_bytes());
        out.extend(7u64.to_le_bytes());
        short(&mut out, b"p");
        out.extend(span.0.to_le_bytes());
        out.extend(span.1.to_le_bytes());
        out.extend(attempt.to_le_bytes());
        out.extend((records.len() as u32).to_le_bytes());
        out.extend(records.concat());
        out
    }

    fn read(bytes: &[u8]) -> Result<(Vec<u64>, String), Fault> {
        let mut acks = Acks::new("127.0.0.1:1".parse().unwrap(), false);
        let (mut messages, mut request) = (Vec::new(), Vec::new());
        acks.begin();
        PopFrames::new()?.read(bytes, &mut messages, &mut acks)?;
        acks.finish(&mut request);
        for message in &messages {
            let place = Place { partition_id: 7, offset: message.seq };
            assert_eq!(message.place, Some(place));
        }
        let seqs = messages.iter().map(|message| message.seq).collect();
        Ok((seqs, String::from_utf8(request).unwrap()))
    }

    #[test]
    fn what_lies_in_the_claim_is_read_from_either_codec() {
        let records = [record(4, 3, frame::CODEC_ZSTD), record(7, 3, frame::CODEC_RAW)];
        let bytes = answer((5, 8), 1, &records);
        let (seqs, ack) = read(&bytes).unwrap();
        assert_eq!(seqs, [5, 6, 7, 8]);
        let first = r#"{"transactionId":"t-5","partitionId":"7","leaseId":"L"}"#;
        assert!(ack.contains(first), "{ack}");
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn answers_that_say_less_or_other_than_they_should_are_faults() {
        let whole = || vec![record(4, 3, frame::CODEC_RAW)];
        assert!(read(&answer((4, 6), 1, &whole())).is_ok());
        assert!(read(&answer((4, 7), 1, &whole())).is_err(), "the claim is longer");
        assert!(read(&answer((4, 6), 2, &whole())).is_err(), "a second delivery");
        let mut miscounted = whole();
        miscounted[0][16] = 4;
        assert!(read(&answer((4, 6), 1, &miscounted)).is_err(), "a frame is missing");
        let more = [&answer((4, 6), 1, &whole())[..], b"x"].concat();
        assert!(read(&more).is_err(), "bytes behind the answer");
    }
}

//! The stored frame of a message and the 25-byte head of a batch: bytes shared by the wire's
//! framed forms and the log, so they are defined once, below both.
//!
//! ```text
//! frame: u32 body_len | u8 flags | 16 message id | [16 trace id: flag 1] | u16 len, transaction id
//!        | [u16 len, producer: flag 2] | payload (the rest of body_len)
//! batch head: u64 base_offset | i64 created_at_us | u32 count | u8 codec | u32 len
//! ```
//! All integers are little-endian.

use crate::base::ids::{MessageId, Offset, PartitionId};

pub const FLAG_TRACE: u8 = 1;
pub const FLAG_PRODUCER: u8 = 2;
pub const FLAG_ENCRYPTED: u8 = 4;

/// Frames back to back.
pub const CODEC_RAW: u8 = 0;
/// One zstd frame over frames back to back.
pub const CODEC_ZSTD: u8 = 1;

pub const BATCH_HEAD_BYTES: usize = 25;

/// Bytes of a frame without optional fields, transaction id and payload.
pub const FRAME_BYTES_MIN: usize = 4 + 1 + 16 + 2;

/// Appends one frame as the broker makes them: no trace id, no producer.
#[inline]
pub fn write_frame(out: &mut Vec<u8>, id: MessageId, transaction_id: &[u8], payload: &[u8]) {
    let body_len = FRAME_BYTES_MIN - 4 + transaction_id.len() + payload.len();
    // One piece, one growth check: the fields in front are small and many.
    let mut head = [0; FRAME_BYTES_MIN];
    head[..4].copy_from_slice(&(body_len as u32).to_le_bytes());
    head[5..21].copy_from_slice(&id.0);
    head[21..].copy_from_slice(&(transaction_id.len() as u16).to_le_bytes());
    out.reserve(4 + body_len);
    out.extend_from_slice(&head);
    out.extend_from_slice(transaction_id);
    out.extend_from_slice(payload);
}

/// What a frame carries beside id, transaction id and payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks<'a> {
    pub trace_id: Option<[u8; 16]>,
    pub producer: Option<&'a [u8]>,
}

/// Appends one frame with its marks.
pub fn write_marked(
    out: &mut Vec<u8>,
    id: MessageId,
    transaction_id: &[u8],
    marks: Marks<'_>,
    payload: &[u8],
) {
    let flag = |flag, set: bool| if set { flag } else { 0 };
    let frame = Frame {
        flags: flag(FLAG_TRACE, marks.trace_id.is_some())
            | flag(FLAG_PRODUCER, marks.producer.is_some()),
        id,
        trace_id: marks.trace_id,
        transaction_id,
        producer: marks.producer,
        payload,
    };
    rewrite(out, &frame, frame.flags, |out| out.extend_from_slice(payload));
}

/// Bytes that the stamp of a producer adds to a frame.
pub fn stamp_bytes(producer: Option<&[u8]>) -> usize {
    producer.map_or(0, |producer| 2 + producer.len())
}

/// Appends `frame` again, stamped with `producer`.
pub fn write_stamped(out: &mut Vec<u8>, frame: &Frame<'_>, producer: &[u8]) {
    let flags = frame.flags | FLAG_PRODUCER;
    let stamped = Frame { producer: Some(producer), ..*frame };
    rewrite(out, &stamped, flags, |out| out.extend_from_slice(frame.payload));
}

/// Appends `frame` again with another payload, as it is kept at rest: flagged encrypted.
pub fn write_encrypted(out: &mut Vec<u8>, frame: &Frame<'_>, seal: impl FnOnce(&mut Vec<u8>)) {
    rewrite(out, frame, frame.flags | FLAG_ENCRYPTED, seal);
}

fn rewrite(out: &mut Vec<u8>, frame: &Frame<'_>, flags: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(flags);
    out.extend_from_slice(&frame.id.0);
    if let Some(trace_id) = &frame.trace_id {
        out.extend_from_slice(trace_id);
    }
    for text in [Some(frame.transaction_id), frame.producer].into_iter().flatten() {
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(text);
    }
    payload(out);
    let body_len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&body_len.to_le_bytes());
}

/// What an encrypted payload is bound to: it opens in the message it was sealed for, nowhere else.
pub fn sealed_place(partition: PartitionId, id: MessageId) -> [u8; 24] {
    let mut place = [0; 24];
    place[..8].copy_from_slice(&partition.0.to_le_bytes());
    place[8..].copy_from_slice(&id.0);
    place
}

/// One stored frame, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub flags: u8,
    pub id: MessageId,
    pub trace_id: Option<[u8; 16]>,
    pub transaction_id: &'a [u8],
    pub producer: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

/// Splits the next frame off `bytes`. `None` when the bytes are not a whole frame.
pub fn split_frame(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let body_len = u32::from_le_bytes(*len) as usize;
    let (mut body, rest) = rest.split_at_checked(body_len)?;
    let mut take = |n: usize| -> Option<&[u8]> {
        let (head, tail) = body.split_at_checked(n)?;
        body = tail;
        Some(head)
    };
    let flags = take(1)?[0];
    let id = MessageId(take(16)?.try_into().ok()?);
    let trace_id = if flags & FLAG_TRACE != 0 { Some(take(16)?.try_into().ok()?) } else { None };
    let id_len = u16::from_le_bytes(take(2)?.try_into().ok()?);
    let transaction_id = take(usize::from(id_len))?;
    let producer = if flags & FLAG_PRODUCER != 0 {
        let len = u16::from_le_bytes(take(2)?.try_into().ok()?);
        Some(take(usize::from(len))?)
    } else {
        None
    };
    Some((Frame { flags, id, trace_id, transaction_id, producer, payload: body }, rest))
}

/// Walks frames back to back; ends early at the first that is not whole.
pub fn frames(mut bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    std::iter::from_fn(move || {
        let (frame, rest) = split_frame(bytes)?;
        bytes = rest;
        Some(frame)
    })
}

/// What the framed pop answer wants in front of a batch's bytes, stored in that very form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHead {
    pub base_offset: Offset,
    pub created_at_us: i64,
    pub count: u32,
    pub codec: u8,
    /// Bytes that follow.
    pub len: u32,
}

impl BatchHead {
    pub fn encode(&self) -> [u8; BATCH_HEAD_BYTES] {
        let mut out = [0; BATCH_HEAD_BYTES];
        out[0..8].copy_from_slice(&self.base_offset.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.created_at_us.to_le_bytes());
        out[16..20].copy_from_slice(&self.count.to_le_bytes());
        out[20] = self.codec;
        out[21..25].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<BATCH_HEAD_BYTES>()?;
        let u32_at = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Self {
            base_offset: Offset(u64_at(0)),
            created_at_us: u64_at(8).cast_signed(),
            count: u32_at(16),
            codec: b[20],
            len: u32_at(21),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_round_trips_and_every_truncation_is_refused() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, MessageId([7; 16]), b"t-1", b"{\"a\":2}");
        assert_eq!(bytes.len(), 4 + 1 + 16 + 2 + 3 + 7);
        let (frame, rest) = split_frame(&bytes).unwrap();
        assert!(rest.is_empty());
        assert_eq!((frame.transaction_id, frame.payload), (&b"t-1"[..], &b"{\"a\":2}"[..]));
        for end in 0..bytes.len() {
            assert_eq!(split_frame(&bytes[..end]), None);
        }
    }

    #[test]
    fn marks_are_written_as_they_are_read() {
        let marks = [
            Marks::default(),
            Marks { trace_id: Some([3; 16]), producer: None },
            Marks { trace_id: Some([4; 16]), producer: Some(b"me") },
        ];
        for marks in marks {
            let mut bytes = Vec::new();
            write_marked(&mut bytes, MessageId([7; 16]), b"t-1", marks, b"[]");
            let (frame, rest) = split_frame(&bytes).unwrap();
            assert!(rest.is_empty());
            assert_eq!((frame.transaction_id, frame.payload), (&b"t-1"[..], &b"[]"[..]));
            assert_eq!(Marks { trace_id: frame.trace_id, producer: frame.producer }, marks);
        }
        let (mut plain, mut marked) = (Vec::new(), Vec::new());
        write_frame(&mut plain, MessageId([7; 16]), b"t", b"1");
        write_marked(&mut marked, MessageId([7; 16]), b"t", Marks::default(), b"1");
        assert_eq!(plain, marked);
    }

    #[test]
    fn optional_fields_are_read() {
        let mut body = vec![FLAG_TRACE | FLAG_PRODUCER];
        body.extend([1; 16]);
        body.extend([2; 16]);
        body.extend([1, 0, b't', 2, 0, b'm', b'e', b'1']);
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(body);
        let frame = frames(&bytes).next().unwrap();
        assert_eq!(frame.trace_id, Some([2; 16]));
        assert_eq!((frame.producer, frame.payload), (Some(&b"me"[..]), &b"1"[..]));
    }

    #[test]
    fn batch_heads_round_trip() {
        let head = BatchHead {
            base_offset: Offset(1 << 40),
            created_at_us: -5,
            count: 3,
            codec: CODEC_ZSTD,
            len: 99,
        };
        assert_eq!(BatchHead::decode(&head.encode()), Some(head));
        assert_eq!(BatchHead::decode(&[0; 24]), None);
    }
}

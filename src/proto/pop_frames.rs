//! The framed answer of a pop. All integers are little-endian.
//!
//! ```text
//! answer: "QPF1" | u8 version 1 | u32 len, own keys as a JSON object
//!       | u16 len, queue | u16 len, lease id | u16 len, group | u32 claims | claims
//! claim:  u64 partition id | u16 len, partition | u64 start | u64 end, inclusive
//!       | u32 attempt | u32 records | records
//! record: a stored batch, head and all (`model::frame`)
//! ```
//! A record is sent whole even when the claim takes only a part of it: clients drop what lies
//! outside.

use super::pop::write_echoes;
use crate::base::buf::{Gather, IoBuf};
use crate::base::uuid;
use crate::model::frame::{self, BATCH_HEAD_BYTES};
use crate::model::reply::{Claim, Conflation, PopReply};

/// A part of the answer, in the order of sending.
#[derive(Clone, Debug)]
pub enum Piece<B> {
    Bytes(Vec<u8>),
    /// A stored batch as it lies in the log's buffers.
    Stored(Gather<B>),
}

impl<B: IoBuf> Piece<B> {
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Stored(gather) => gather.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether the framed form can carry this answer: it names one queue, and clients refuse the whole answer over one
/// encrypted frame, even one outside its claim. What a conflating group gets is told in JSON. Reads only the heads of frames and copies
/// nothing, however the batches lie.
pub fn fits_frames<B: IoBuf>(reply: &PopReply<B>) -> bool {
    let one_queue = reply.claims.windows(2).all(|pair| pair[0].queue == pair[1].queue);
    let mut batches = reply.claims.iter().flat_map(|claim| &claim.batches);
    one_queue && reply.conflation != Conflation::On && batches.all(batch_is_clear)
}

/// False for a batch with an encrypted frame, and for one that cannot be looked into. Encrypted
/// frames are never compressed afterwards, so a compressed batch holds none.
fn batch_is_clear<B: IoBuf>(batch: &Gather<B>) -> bool {
    /// Place of the codec in a batch's head.
    const CODEC_AT: usize = 20;
    let codec = batch.pieces().flatten().nth(CODEC_AT).copied();
    if codec == Some(frame::CODEC_ZSTD) {
        return true;
    }
    const LEN_AND_FLAGS: usize = 5;
    let mut head = [0; BATCH_HEAD_BYTES];
    let mut head_have = 0;
    let mut frame_head = [0; LEN_AND_FLAGS];
    let mut have = 0;
    let mut skip = 0;
    for mut piece in batch.pieces() {
        head_have += take(&mut piece, &mut head[head_have..]);
        while !piece.is_empty() {
            let skipped = skip.min(piece.len());
            piece = &piece[skipped..];
            skip -= skipped;
            have += take(&mut piece, &mut frame_head[have..]);
            if have < LEN_AND_FLAGS {
                continue;
            }
            have = 0;
            let [len @ .., flags] = frame_head;
            if flags & frame::FLAG_ENCRYPTED != 0 {
                return false;
            }
            // The flags byte is part of the body that `len` counts.
            let Some(rest) = (u32::from_le_bytes(len) as usize).checked_sub(1) else {
                return false;
            };
            skip = rest;
        }
    }
    frame::BatchHead::decode(&head[..head_have]).is_some_and(|h| h.codec == frame::CODEC_RAW)
}

/// Moves bytes from the front of `from` into `to`, as many as both have room for.
fn take(from: &mut &[u8], to: &mut [u8]) -> usize {
    let n = to.len().min(from.len());
    let (front, rest) = from.split_at(n);
    to[..n].copy_from_slice(front);
    *from = rest;
    n
}

/// Puts the answer together: bytes of ours, stored batches between them.
pub fn encode_frames<B: IoBuf>(reply: &PopReply<B>) -> Vec<Piece<B>> {
    let batches: usize = reply.claims.iter().map(|claim| claim.batches.len()).sum();
    let mut pieces = Vec::with_capacity(1 + reply.claims.len() + batches);
    let mut bytes = Vec::with_capacity(256);
    write_head(reply, &mut bytes);
    for claim in &reply.claims {
        write_claim(claim, &mut bytes);
        for batch in &claim.batches {
            if !bytes.is_empty() {
                pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
            }
            pieces.push(Piece::Stored(batch.clone()));
        }
    }
    if !bytes.is_empty() {
        pieces.push(Piece::Bytes(bytes));
    }
    pieces
}

fn write_head<B>(reply: &PopReply<B>, out: &mut Vec<u8>) {
    let mut own = Vec::with_capacity(64);
    own.extend_from_slice(b"{\"frames\":true");
    write_echoes(reply, &mut own);
    own.push(b'}');
    out.extend_from_slice(b"QPF1\x01");
    out.extend_from_slice(&(own.len() as u32).to_le_bytes());
    out.extend_from_slice(&own);
    // A discovery pop's reply has no queue of its own.
    write_short(out, reply.claims.first().map_or(&reply.queue, |claim| &claim.queue).as_bytes());
    match reply.lease_id {
        Some(id) => write_short(out, &uuid::to_text(&id.0)),
        None => write_short(out, b""),
    }
    write_short(out, reply.group.as_bytes());
    out.extend_from_slice(&(reply.claims.len() as u32).to_le_bytes());
}

fn write_claim<B>(claim: &Claim<B>, out: &mut Vec<u8>) {
    out.extend_from_slice(&claim.partition_id.0.to_le_bytes());
    write_short(out, claim.partition.as_bytes());
    out.extend_from_slice(&claim.start.0.to_le_bytes());
    out.extend_from_slice(&claim.end.0.to_le_bytes());
    out.extend_from_slice(&claim.attempt.to_le_bytes());
    out.extend_from_slice(&(claim.batches.len() as u32).to_le_bytes());
}

/// A name with its length. Names are within their budget since they were read.
fn write_short(out: &mut Vec<u8>, text: &[u8]) {
    let len = u16::try_from(text.len()).expect("a name is within its budget");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::base::buf::{HeapBuf, Slice};
    use crate::base::ids::{LeaseId, Offset, PartitionId};
    use crate::model::reply::Autopilot;

    const CREATED_US: i64 = 1_700_000_000_123_456;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn uuid_of(last: u8) -> [u8; 16] {
        let mut id = [0; 16];
        (id[0], id[1], id[6], id[8], id[15]) = (0x01, 0x90, 0x70, 0x80, last);
        id
    }

    fn frame(id: u8, trace: Option<u8>, txn: &str, producer: &str, payload: &str) -> Vec<u8> {
        let producer_flag = if producer.is_empty() { 0 } else { frame::FLAG_PRODUCER };
        let mut body = vec![producer_flag | u8::from(trace.is_some())];
        body.extend(uuid_of(id));
        trace.inspect(|last| body.extend(uuid_of(*last)));
        write_short(&mut body, txn.as_bytes());
        if !producer.is_empty() {
            write_short(&mut body, producer.as_bytes());
        }
        body.extend(payload.as_bytes());
        let mut out = (body.len() as u32).to_le_bytes().to_vec();
        out.extend(body);
        out
    }

    fn batch(base: u64, created_at_us: i64, frames: &[Vec<u8>]) -> Vec<u8> {
        let bytes = frames.concat();
        let head = frame::BatchHead {
            base_offset: Offset(base),
            created_at_us,
            count: frames.len() as u32,
            codec: frame::CODEC_RAW,
            len: bytes.len() as u32,
        };
        [&head.encode()[..], &bytes].concat()
    }

    fn first_record() -> Vec<u8> {
        let second = frame(2, None, "t-11", "svc", "{\"n\":11,\"s\":\"x\"}");
        batch(10, CREATED_US, &[frame(1, None, "t-10", "", "{\"n\":10}"), second])
    }

    fn claim(id: u64, name: &str, span: (u64, u64), attempt: u32) -> Claim<HeapBuf> {
        Claim {
            queue: "orders".into(),
            partition: name.into(),
            partition_id: PartitionId(id),
            since: Offset(span.0),
            start: Offset(span.0),
            end: Offset(span.1),
            epoch: 0,
            attempt,
            batches: Vec::new(),
        }
    }

    fn reply(group: &str, claims: Vec<Claim<HeapBuf>>) -> PopReply<HeapBuf> {
        let (queue, group) = ("orders".into(), group.into());
        PopReply {
            queue,
            group,
            lease_id: None,
            claims,
            autopilot: None,
            conflation: Conflation::Off,
        }
    }

    fn joined(reply: &PopReply<HeapBuf>) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in encode_frames(reply) {
            let before = out.len();
            match &piece {
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
                Piece::Stored(gather) => gather.pieces().for_each(|p| out.extend_from_slice(p)),
            }
            assert_eq!(piece.len(), out.len() - before);
            assert!(!piece.is_empty());
        }
        out
    }

    /// An answer whose bytes were accepted by the published client: commit at delivery, a claim
    /// that ends inside its record.
    #[test]
    fn a_leaseless_answer_has_the_known_bytes() {
        let mut c = claim(7, "p7", (10, 10), 3);
        c.batches.push(Gather::Owned(first_record()));
        let want = hex("
            51504631 010f0000 007b2266 72616d65 73223a74 7275657d 06006f72 64657273
            00000100 67010000 00070000 00000000 00020070 370a0000 00000000 000a0000
            00000000 00030000 00010000 000a0000 00000000 00402220 18240a06 00020000
            00005300 00001f00 00000001 90000000 00700080 00000000 00000104 00742d31
            307b226e 223a3130 7d2c0000 00020190 00000000 70008000 00000000 00020400
            742d3131 03007376 637b226e 223a3131 2c227322 3a227822 7d");
        assert_eq!(joined(&reply("g", vec![c])), want);
    }

    #[test]
    fn an_answer_without_claims_has_the_known_bytes() {
        let want = hex("51504631 010f0000 007b2266 72616d65 73223a74 7275657d
                        06006f72 64657273 00000100 67000000 00");
        assert_eq!(joined(&reply("g", Vec::new())), want);
    }

    /// Two claims, records in several pieces, optional fields, the echo: the published decoder
    /// reads from it what our own JSON answer says.
    #[test]
    fn the_published_decoder_reads_what_the_json_answer_says() {
        let record = first_record();
        let middle = record.len() / 2;
        let (a, b) = record.split_at(middle);
        let slices: SmallVec<[Slice<HeapBuf>; 2]> = [a, b]
            .map(|part| Slice::new(HeapBuf::from(part.to_vec()), 0, part.len()))
            .into_iter()
            .collect();
        let mut first = claim(7, "p7", (10, 12), 1);
        first.batches.push(Gather::Slices(slices));
        let traced =
            [frame(3, Some(0xee), "t-12", "", ""), frame(4, Some(0xef), "t-13", "s", "[1]")];
        first.batches.push(Gather::Owned(batch(12, CREATED_US + 1, &traced)));
        let mut second = claim(9, "città", (0, 0), 1);
        second.batches.push(Gather::Owned(batch(
            0,
            CREATED_US,
            &[frame(1, None, "t-10", "", "1e2")],
        )));
        let mut reply = reply("g", vec![first, second]);
        reply.lease_id = Some(LeaseId(uuid_of(9)));
        reply.autopilot = Some(Autopilot { partitions: 4, batch: 50 });

        let bytes = joined(&reply);
        assert_eq!(&bytes[..5], b"QPF1\x01");
        let mut json = Vec::new();
        let mut opener = crate::proto::pop::Opener::default();
        crate::proto::pop::encode_json(&reply, false, &mut opener, &mut json).unwrap();
        let plain: queen_protocol::PopResponse = serde_json::from_slice(&json).unwrap();
        assert_eq!(plain.messages.len(), 4);
        assert!(fits_frames(&reply));
    }

    #[test]
    fn stored_batches_are_shared_not_copied() {
        let record = HeapBuf::from(first_record());
        let slice = Slice::new(record.clone(), 0, record.bytes().len());
        let mut c = claim(7, "p7", (10, 11), 1);
        c.batches.push(Gather::Slices([slice].into_iter().collect()));
        let pieces = encode_frames(&reply("g", vec![c]));
        let Piece::Stored(gather) = &pieces[1] else { panic!("head, then the record") };
        assert_eq!(gather.pieces().next().unwrap().as_ptr(), record.bytes().as_ptr());
        assert_eq!(pieces.len(), 2);
    }

    /// An encrypted frame is found wherever the cut between two pieces falls.
    #[test]
    fn encrypted_frames_do_not_fit_however_the_batch_lies() {
        for encrypted in [false, true] {
            let mut last = frame(2, None, "t", "", "1");
            last[4] |= if encrypted { frame::FLAG_ENCRYPTED } else { 0 };
            let bytes = batch(0, 0, &[frame(1, None, "t-1", "", "{}"), last]);
            for cut in 0..=bytes.len() {
                let (a, b) = bytes.split_at(cut);
                let slices = [a, b].map(|p| Slice::new(HeapBuf::from(p.to_vec()), 0, p.len()));
                let mut c = claim(1, "p", (0, 0), 1);
                c.batches.push(Gather::Slices(slices.into_iter().collect()));
                assert_eq!(fits_frames(&reply("g", vec![c])), !encrypted, "cut at {cut}");
            }
        }
        let mut bytes = batch(0, 0, &[]);
        bytes[20] = 9;
        let mut c = claim(1, "p", (0, 0), 1);
        c.batches.push(Gather::Owned(bytes));
        assert!(!fits_frames(&reply("g", vec![c])));
    }
}

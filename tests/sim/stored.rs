//! Reads what is stored as a client would that has the keys: inflates, decrypts, and holds it
//! against the rules of the form. It shares no code with the broker's own readers but the walk
//! over frames and the cipher.

use lanemq::base::buf::HeapBuf;
use lanemq::base::cipher::Keys;
use lanemq::base::ids::{MessageId, PartitionId};
use lanemq::model::frame::{self, BATCH_HEAD_BYTES, BatchHead, Frame};
use lanemq::model::reply::PopReply;
use lanemq::proto::pop;
use std::collections::BTreeMap;

/// Check value and nonce: what must never come twice.
const SEAL_BYTES: usize = 16;
/// Larger than any batch of a simulated push.
const BATCH_BYTES_MAX: u64 = 8 << 20;

/// A message as it was pushed, and whether it lay encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    pub id: MessageId,
    pub transaction_id: Vec<u8>,
    pub payload: Vec<u8>,
    pub sealed: bool,
}

/// A stored batch, opened.
#[derive(Debug)]
pub struct Batch {
    pub head: BatchHead,
    /// As they lie.
    pub bytes: Vec<u8>,
    pub messages: Vec<Stored>,
}

/// How many of what was opened: a simulation that never meets them proves nothing about them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Opened {
    pub plain: usize,
    pub compressed: usize,
    pub sealed: usize,
}

pub struct Opener {
    pub opened: Opened,
    keys: Keys,
    inflater: zstd::bulk::Decompressor<'static>,
    /// What each nonce was seen to seal.
    sealed: BTreeMap<[u8; SEAL_BYTES], (PartitionId, MessageId)>,
}

impl Opener {
    pub fn new(keys: Keys) -> Self {
        let inflater = zstd::bulk::Decompressor::new().unwrap();
        Self { opened: Opened::default(), keys, inflater, sealed: BTreeMap::new() }
    }

    /// Opens a batch as pops deliver it: nothing follows its bytes.
    pub fn delivered(&mut self, partition: PartitionId, body: &[u8]) -> Result<Batch, String> {
        let head = BatchHead::decode(body).ok_or("a batch without a head")?;
        if body.len() != BATCH_HEAD_BYTES + head.len as usize {
            return Err("a batch whose head lies about its length".into());
        }
        self.record(partition, body)
    }

    /// Opens a batch as the log keeps it, with its id table behind.
    pub fn record(&mut self, partition: PartitionId, body: &[u8]) -> Result<Batch, String> {
        let head = BatchHead::decode(body).ok_or("a batch without a head")?;
        let bytes = body.get(BATCH_HEAD_BYTES..).and_then(|b| b.get(..head.len as usize));
        let bytes = bytes.ok_or("a batch that is cut short")?.to_vec();
        let inflated = match head.codec {
            frame::CODEC_RAW => None,
            frame::CODEC_ZSTD => Some(self.inflate(&bytes)?),
            other => return Err(format!("a batch with codec {other}")),
        };
        let mut rest = inflated.as_deref().unwrap_or(&bytes);
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let (frame, after) = frame::split_frame(rest).ok_or("a frame that is cut short")?;
            messages.push(self.message(partition, &frame)?);
            rest = after;
        }
        if messages.len() != head.count as usize {
            return Err(format!("a batch of {} says it holds {}", messages.len(), head.count));
        }
        let sealed = messages.iter().any(|m| m.sealed);
        if inflated.is_some() && sealed {
            return Err("a compressed batch with an encrypted payload".into());
        }
        self.opened.plain += usize::from(inflated.is_none() && !sealed);
        self.opened.compressed += usize::from(inflated.is_some());
        self.opened.sealed += usize::from(sealed);
        Ok(Batch { head, bytes, messages })
    }

    /// Opens the one frame of a dead letter.
    pub fn frame(&mut self, partition: PartitionId, bytes: &[u8]) -> Result<Stored, String> {
        match frame::split_frame(bytes) {
            Some((frame, [])) => self.message(partition, &frame),
            _ => Err("not one whole frame".into()),
        }
    }

    fn message(&mut self, partition: PartitionId, frame: &Frame<'_>) -> Result<Stored, String> {
        if frame.flags & !frame::FLAG_ENCRYPTED != 0 {
            return Err(format!("a frame with flags {}", frame.flags));
        }
        let sealed = frame.flags & frame::FLAG_ENCRYPTED != 0;
        let payload = match sealed {
            true => self.unseal(partition, frame)?,
            false => frame.payload.to_vec(),
        };
        let transaction_id = frame.transaction_id.to_vec();
        Ok(Stored { id: frame.id, transaction_id, payload, sealed })
    }

    fn unseal(&mut self, partition: PartitionId, frame: &Frame<'_>) -> Result<Vec<u8>, String> {
        let seal = *frame.payload.first_chunk().ok_or("an envelope that is cut short")?;
        let here = (partition, frame.id);
        let before = *self.sealed.entry(seal).or_insert(here);
        if before != here {
            return Err(format!("one nonce sealed {before:?} and {here:?}"));
        }
        let mut payload = Vec::new();
        let place = frame::sealed_place(partition, frame.id);
        let opened = self.keys.open(&place, frame.payload, &mut payload);
        opened.map_err(|why| format!("{here:?}: {}", why.text()))?;
        Ok(payload)
    }

    /// Exactly one frame, which names its content size.
    fn inflate(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let whole = zstd::zstd_safe::find_frame_compressed_size(bytes) == Ok(bytes.len());
        let size = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten();
        match size.filter(|size| whole && *size <= BATCH_BYTES_MAX) {
            None => Err("a compressed batch that is not one frame with its size".into()),
            Some(size) => {
                let content = self.inflater.decompress(bytes, size as usize);
                content.map_err(|why| format!("a compressed batch: {why}"))
            }
        }
    }
}

/// A message as the JSON answer shows it: partition, offset, transaction id, payload.
pub type Shown = (String, u64, String, Vec<u8>);

/// What the JSON answer to a pop shows.
pub fn shown(
    reply: &PopReply<HeapBuf>,
    discovery: bool,
    opener: &mut pop::Opener,
) -> Result<Vec<Shown>, String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Row<'a> {
        partition: String,
        offset: u64,
        transaction_id: String,
        #[serde(borrow)]
        data: &'a serde_json::value::RawValue,
    }
    #[derive(serde::Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        messages: Vec<Row<'a>>,
    }
    let mut json = Vec::new();
    pop::encode_json(reply, discovery, opener, &mut json).map_err(|r| r.text.into_owned())?;
    let answer: Answer<'_> = serde_json::from_slice(&json).map_err(|why| why.to_string())?;
    let row = |row: Row<'_>| {
        (row.partition, row.offset, row.transaction_id, row.data.get().as_bytes().to_vec())
    };
    Ok(answer.messages.into_iter().map(row).collect())
}

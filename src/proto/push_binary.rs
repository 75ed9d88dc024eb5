//! The binary forms of a push. All integers are little-endian.
//!
//! ```text
//! body:   "QPB1" | u8 flags | [u32 raw length: flag 1] | rest, with flag 1 as one zstd frame
//! rest:   u32 groups | groups
//! group:  u16 len, queue | u16 len, partition | u32 messages | …
//!   plain:   … messages × ([u16 len, transaction id: flag 4] | u32 len, payload)
//!   framed (flag 8): … u32 len, one zstd frame over `messages` stored frames (`model::frame`)
//! flags:  1 zstd body, 2 answer with counts only, 4 transaction ids, 8 frames built by the client
//! ```
//! A framed group is inflated once, every frame of it is checked, and its own bytes go on to be
//! stored. A refused body has written nothing: all of it is checked before any of it is handed
//! on. **A length is a claim until its bytes are there**: nothing is reserved for a count, and for
//! a content size only what the blocks of the frame can really inflate to, within
//! [`limits::INFLATED_BYTES_MAX`] over the whole body.

use std::borrow::Cow;

use bytes::Bytes;

use super::check_budget;
use super::json::Fields;
use super::json_check::is_document;
use super::push::{Label, check_stamps};
use crate::base::compress::{FrameInfo, Inflater};
use crate::base::limits;
use crate::model::command::{DEFAULT_PARTITION, FrameGroup, PushItem};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::frame;
use crate::model::peer::PushPiece;
use crate::model::reply::PushResult;

const MAGIC: &[u8; 4] = b"QPB1";
const FLAG_ZSTD: u8 = 1;
const FLAG_COUNTS: u8 = 2;
const FLAG_IDS: u8 = 4;
const FLAG_FRAMES: u8 = 8;

/// What the first bytes of a body say about the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    flags: u8,
}

impl Form {
    /// Reads magic and flags. `None`: not a binary body at all.
    pub fn read(body: &[u8]) -> Option<Result<Self, Refusal>> {
        let (magic, rest) = body.split_first_chunk::<4>()?;
        if magic != MAGIC {
            return None;
        }
        let Some(flags) = rest.first().copied() else {
            return Some(Err(bad("the body ends before its flags")));
        };
        let known = FLAG_ZSTD | FLAG_COUNTS | FLAG_IDS | FLAG_FRAMES;
        let framed_and_plain = flags & FLAG_FRAMES != 0 && flags & (FLAG_ZSTD | FLAG_IDS) != 0;
        if flags & !known != 0 || framed_and_plain {
            return Some(Err(bad("flags that do not go together, or are not known")));
        }
        Some(Ok(Self { flags }))
    }

    /// The answer is to hold counts only.
    pub fn wants_counts(self) -> bool {
        self.flags & FLAG_COUNTS != 0
    }

    /// The groups are frames that the client built.
    pub fn is_framed(self) -> bool {
        self.flags & FLAG_FRAMES != 0
    }

    /// What follows the flags of a plain body, inflated into `scratch` where it is compressed.
    pub fn plain<'a>(
        self,
        body: &'a [u8],
        inflater: &mut Inflater,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Refusal> {
        let mut reader = Reader(body.get(5..).unwrap_or_default());
        if self.flags & FLAG_ZSTD == 0 {
            return Ok(reader.0);
        }
        let raw_bytes = reader.u32()?;
        let mut room = limits::INFLATED_BYTES_MAX;
        inflate(reader.0, Some(raw_bytes), &mut room, inflater, scratch)?;
        Ok(scratch)
    }

    /// Reads the items of a plain body, given what [`Self::plain`] returned.
    pub fn items(self, plain: &[u8]) -> Result<Vec<PushItem<'_>>, Refusal> {
        let mut reader = Reader(plain);
        let groups = reader.u32()?;
        let mut items = Vec::new();
        for _ in 0..groups {
            let (queue, partition) = reader.names()?;
            let count = reader.u32()?;
            for _ in 0..count {
                let transaction_id =
                    if self.flags & FLAG_IDS == 0 { "" } else { reader.short_text()? };
                let payload_bytes = reader.u32()?;
                let payload = reader.take(payload_bytes as usize)?;
                if !is_document(payload) {
                    return Err(bad("a payload is not one JSON document"));
                }
                count_message(items.len())?;
                items.push(PushItem {
                    queue: Cow::Borrowed(queue),
                    partition: Cow::Borrowed(partition),
                    transaction_id: (!transaction_id.is_empty())
                        .then_some(Cow::Borrowed(transaction_id)),
                    payload,
                });
            }
        }
        reader.end()?;
        Ok(items)
    }
}

/// Reads the groups of a framed body one by one.
pub struct FramedBody<'a> {
    body: &'a Bytes,
    /// Stamped into every frame.
    producer: Option<&'a str>,
    reader: Reader<'a>,
    /// Groups not yet read.
    left: u32,
    /// Bytes that may still be inflated.
    room: usize,
    messages: usize,
}

impl<'a> FramedBody<'a> {
    pub fn new(body: &'a Bytes, producer: Option<&'a str>) -> Result<Self, Refusal> {
        Self::behind(body, 5, producer)
    }

    /// The groups that begin with the count at `from`.
    pub(super) fn behind(
        body: &'a Bytes,
        from: usize,
        producer: Option<&'a str>,
    ) -> Result<Self, Refusal> {
        let mut reader = Reader(body.get(from..).unwrap_or_default());
        let left = reader.u32()?;
        Ok(Self { body, producer, reader, left, room: limits::INFLATED_BYTES_MAX, messages: 0 })
    }

    /// The next group that holds messages, inflated into `frames` and checked. `None` after the
    /// last, when nothing is left behind it.
    pub fn next_group(
        &mut self,
        inflater: &mut Inflater,
        mut frames: Vec<u8>,
    ) -> Result<Option<FrameGroup<'a>>, Refusal> {
        while self.left > 0 {
            self.left -= 1;
            let (queue, partition) = self.reader.names()?;
            let count = self.reader.u32()?;
            let packed_bytes = self.reader.u32()?;
            let packed = self.reader.take(packed_bytes as usize)?;
            inflate(packed, None, &mut self.room, inflater, &mut frames)?;
            check_frames(&frames, count)?;
            self.messages += count as usize;
            count_message(self.messages.saturating_sub(1))?;
            check_stamps(self.messages, self.producer)?;
            if count > 0 {
                if let Some(producer) = self.producer {
                    frames = stamp(&frames, count, producer.as_bytes());
                }
                let packed = self.body.slice_ref(packed);
                let recode = self.producer.is_some();
                let piece = PushPiece { frames, count, packed, recode };
                return Ok(Some(FrameGroup { queue, partition, piece }));
            }
        }
        self.reader.end()?;
        Ok(None)
    }
}

/// The frames again, each with its producer.
fn stamp(frames: &[u8], count: u32, producer: &[u8]) -> Vec<u8> {
    let each = frame::stamp_bytes(Some(producer));
    let mut stamped = Vec::with_capacity(frames.len() + count as usize * each);
    frame::frames(frames).for_each(|frame| frame::write_stamped(&mut stamped, &frame, producer));
    stamped
}

/// Inflates `packed`, which must be one zstd frame with its content size in the header, or of
/// `announced` bytes, and takes what that needs out of `room`.
fn inflate(
    packed: &[u8],
    announced: Option<u32>,
    room: &mut usize,
    inflater: &mut Inflater,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let too_large = |bytes: u64| {
        let text = format!(
            "the body inflates to {bytes} bytes or more, the limit is {}",
            limits::INFLATED_BYTES_MAX
        );
        Refusal::new(ErrorCode::PayloadTooLarge, text)
    };
    if let Some(bytes) = announced.filter(|bytes| *bytes as usize > *room) {
        return Err(too_large(bytes.into()));
    }
    let info = FrameInfo::read(packed).map_err(|error| bad(error.text()))?;
    let size = match (info.content_bytes, announced) {
        (Some(own), Some(announced)) if own != u64::from(announced) => {
            return Err(bad("the announced length is not the one of the compressed content"));
        }
        (Some(own), _) => own,
        (None, Some(announced)) => announced.into(),
        (None, None) => return Err(bad(crate::base::compress::BadFrame::NoContentSize.text())),
    };
    let size = match usize::try_from(size) {
        Ok(size) if size <= *room => size,
        _ => return Err(too_large(size)),
    };
    if size as u64 > info.content_bytes_max {
        return Err(bad("the announced length is not the one of the compressed content"));
    }
    *room -= size;
    inflater.inflate(packed, size, out).map_err(|error| bad(error.text()))
}

fn count_message(before: usize) -> Result<(), Refusal> {
    if before < limits::PUSH_MESSAGES_MAX {
        return Ok(());
    }
    let text = format!("more than {} messages in one push", limits::PUSH_MESSAGES_MAX);
    Err(Refusal::new(ErrorCode::PayloadTooLarge, text))
}

/// Checks that `frames` holds exactly `count` whole frames that a client may build: an id of
/// version 7, a transaction id, a payload of one JSON document, and none of the marks that only
/// the broker sets.
fn check_frames(frames: &[u8], count: u32) -> Result<(), Refusal> {
    let mut rest = frames;
    for _ in 0..count {
        let (frame, after) =
            frame::split_frame(rest).ok_or_else(|| bad("a frame does not end with its bytes"))?;
        rest = after;
        if frame.flags != 0 {
            return Err(bad("a frame with marks that only the broker sets"));
        }
        if frame.id.0[6] >> 4 != 7 || frame.id.0[8] >> 6 != 0b10 {
            return Err(bad("a message id that is no UUID of version 7"));
        }
        if frame.transaction_id.is_empty() {
            return Err(bad("a frame without a transaction id"));
        }
        if !frame.transaction_id.is_ascii() && std::str::from_utf8(frame.transaction_id).is_err() {
            return Err(bad("a transaction id that is not UTF-8"));
        }
        if !is_document(frame.payload) {
            return Err(bad("a payload is not one JSON document"));
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(bad("more frames than the group's count")) }
}

/// What the full answer repeats of each message, kept while its frames go their way.
pub struct Labels<'a> {
    /// Queue of each group and where its messages end in `ends`.
    groups: Vec<(&'a str, usize)>,
    ids: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> Labels<'a> {
    pub fn of(groups: &[FrameGroup<'a>]) -> Self {
        let mut labels = Self { groups: Vec::new(), ids: Vec::new(), ends: Vec::new() };
        for group in groups {
            for frame in frame::frames(&group.piece.frames) {
                labels.ids.extend_from_slice(frame.transaction_id);
                labels.ends.push(labels.ids.len());
            }
            labels.groups.push((group.queue, labels.ends.len()));
        }
        labels
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Label<'_>> {
        let (mut group, mut from) = (0, 0);
        self.ends.iter().enumerate().map(move |(at, end)| {
            while self.groups[group].1 <= at {
                group += 1;
            }
            let id = &self.ids[from..*end];
            from = *end;
            (self.groups[group].0, Some(id))
        })
    }
}

/// The answer that holds counts only.
pub fn encode_counts(results: &[PushResult], out: &mut Vec<u8>) {
    let (mut queued, mut duplicate, mut error) = (0u64, 0u64, 0u64);
    for result in results {
        match result {
            PushResult::Queued { .. } => queued += 1,
            PushResult::Duplicate { .. } => duplicate += 1,
            PushResult::Error { .. } => error += 1,
        }
    }
    Fields::begin(out)
        .integer("count", queued + duplicate + error)
        .integer("queued", queued)
        .integer("duplicate", duplicate)
        .integer("error", error)
        .end();
}

fn bad(text: &'static str) -> Refusal {
    Refusal::new(ErrorCode::BadBody, text)
}

/// Takes fields off the front; every one may be missing.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Refusal> {
        let (head, rest) =
            self.0.split_at_checked(bytes).ok_or_else(|| bad("the body ends inside a group"))?;
        self.0 = rest;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn short_text(&mut self) -> Result<&'a str, Refusal> {
        let len = self.take(2)?;
        let text = self.take(usize::from(u16::from_le_bytes([len[0], len[1]])))?;
        std::str::from_utf8(text)
            .map_err(|error| Refusal::new(ErrorCode::BadBody, format!("a name or id: {error}")))
    }

    /// A group's queue and partition, within their budget.
    fn names(&mut self) -> Result<(&'a str, &'a str), Refusal> {
        let queue = self.short_text()?;
        let partition = match self.short_text()? {
            "" => DEFAULT_PARTITION,
            name => name,
        };
        if queue.is_empty() {
            return Err(bad("a group without a queue"));
        }
        check_budget(queue, [partition, ""])?;
        Ok((queue, partition))
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(bad("bytes behind the last group")) }
    }
}

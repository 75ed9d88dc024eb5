//! A second, naive reading of binary push bodies, from the description of the wire: it copies
//! everything and asks others (`std`, `serde_json`, the zstd library) about texts, documents and
//! frames.

use lanemq::base::limits;
use zstd::zstd_safe::DCtx;

use crate::bodies::{FRAMES, IDS, ZSTD};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub queue: String,
    pub partition: String,
    /// Of a frame; a plain form has none.
    pub id: Option<[u8; 16]>,
    pub transaction_id: String,
    pub payload: Vec<u8>,
}

/// What a body holds, and what it makes its reader allocate.
#[derive(Default, Debug)]
pub struct Read {
    /// `None`: the body is to be refused.
    pub messages: Option<Vec<Message>>,
    /// Of each group with messages: compressed bytes and frames.
    pub packed: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes to which the blocks really there can inflate, over all frames that were reached.
    pub inflatable: usize,
    /// Bytes of the content in which the messages of a plain body lie.
    pub plain: usize,
}

/// Reads with one reused context and one reused buffer.
pub struct Reference {
    context: DCtx<'static>,
    content: Vec<u8>,
}

impl Reference {
    pub fn new() -> Self {
        Self { context: DCtx::create(), content: Vec::new() }
    }

    pub fn read(&mut self, body: &[u8]) -> Read {
        let mut read = Read::default();
        read.messages = self.messages(body, &mut read);
        read
    }

    fn messages(&mut self, body: &[u8], read: &mut Read) -> Option<Vec<Message>> {
        let (magic, mut rest) = (body.get(..4)?, body.get(5..)?);
        let flags = body[4];
        if magic != b"QPB1" || flags > 15 || flags & FRAMES != 0 && flags & (ZSTD | IDS) != 0 {
            return None;
        }
        let mut room = limits::INFLATED_BYTES_MAX;
        if flags & ZSTD != 0 {
            let announced = long(&mut rest)?;
            rest = self.inflate(rest, Some(announced), &mut room, read)?;
        }
        read.plain = if flags & FRAMES == 0 { rest.len() } else { 0 };
        // The inflated content lies in the buffer that the frames of groups are put into.
        let copy = rest.to_vec();
        let mut rest = copy.as_slice();
        let mut messages = Vec::new();
        for _ in 0..long(&mut rest)? {
            let (queue, partition) = (short(&mut rest)?, short(&mut rest)?);
            let partition = if partition.is_empty() { "Default".to_owned() } else { partition };
            if queue.is_empty() || queue.len() + partition.len() > limits::NAMES_BYTES_MAX {
                return None;
            }
            let count = long(&mut rest)?;
            let home = (queue.as_str(), partition.as_str());
            if flags & FRAMES == 0 {
                for _ in 0..count {
                    messages.push(item(&mut rest, flags, home)?);
                }
                continue;
            }
            let packed_bytes = long(&mut rest)? as usize;
            let packed = take(&mut rest, packed_bytes)?;
            let frames = self.inflate(packed, None, &mut room, read)?.to_vec();
            let mut left = frames.as_slice();
            for _ in 0..count {
                messages.push(frame(&mut left, home)?);
            }
            if !left.is_empty() {
                return None;
            }
            if count > 0 {
                read.packed.push((packed.to_vec(), frames));
            }
        }
        let fits = messages.len() <= limits::PUSH_MESSAGES_MAX;
        (rest.is_empty() && fits).then_some(messages)
    }

    fn inflate(
        &mut self,
        packed: &[u8],
        announced: Option<u32>,
        room: &mut usize,
        read: &mut Read,
    ) -> Option<&[u8]> {
        let walked = walk(packed)?;
        let announced = announced.map(u64::from);
        let size = walked.announced.or(announced)?;
        if announced.is_some_and(|announced| announced != size) || size > *room as u64 {
            return None;
        }
        let size = size as usize;
        read.inflatable += size.min(walked.inflates_to);
        // What else makes a frame is the library's to say.
        if zstd::zstd_safe::find_frame_compressed_size(packed) != Ok(packed.len()) {
            return None;
        }
        *room -= size;
        self.content.clear();
        self.content.reserve(size + 1);
        let got = self.context.decompress(&mut self.content, packed);
        (got == Ok(size)).then_some(&self.content)
    }
}

struct Walked {
    /// The content size of the header.
    announced: Option<u64>,
    /// What the blocks can inflate to: stored and run-length blocks say it, others give as much as
    /// a block may: the window, and 128 KiB.
    inflates_to: usize,
}

/// Walks the blocks of a frame. `None`: it is none, or a block says more than it may.
fn walk(frame: &[u8]) -> Option<Walked> {
    let mut rest = frame;
    if take(&mut rest, 4)? != b"\x28\xB5\x2F\xFD" {
        return None;
    }
    let marks = take(&mut rest, 1)?[0];
    let single = marks & 0x20 != 0;
    let window_byte = if single { 0 } else { take(&mut rest, 1)?[0] };
    take(&mut rest, [0, 1, 2, 4][usize::from(marks & 3)])?;
    let announced = match (marks >> 6, single) {
        (0, false) => None,
        (0, true) => Some(number(take(&mut rest, 1)?)),
        (1, _) => Some(number(take(&mut rest, 2)?) + 256),
        (wide, _) => Some(number(take(&mut rest, if wide == 2 { 4 } else { 8 })?)),
    };
    let eighth = 1u64 << (7 + (window_byte >> 3));
    let window = if single { announced? } else { eighth * (8 + u64::from(window_byte % 8)) };
    let block_max = window.min(128 << 10) as usize;
    let mut inflates_to = 0;
    loop {
        let head = number(take(&mut rest, 3)?);
        let (kind, size) = (head >> 1 & 3, (head >> 3) as usize);
        take(&mut rest, if kind == 1 { 1 } else { size })?;
        inflates_to += if kind == 2 { block_max } else { size };
        if size > block_max {
            return None;
        }
        if head & 1 == 1 {
            return Some(Walked { announced, inflates_to });
        }
    }
}

/// A little-endian number of any width.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn item(rest: &mut &[u8], flags: u8, (queue, partition): (&str, &str)) -> Option<Message> {
    let transaction_id = if flags & IDS != 0 { short(rest)? } else { String::new() };
    let payload_bytes = long(rest)? as usize;
    let payload = take(rest, payload_bytes)?;
    document(payload)?;
    Some(Message {
        queue: queue.to_owned(),
        partition: partition.to_owned(),
        id: None,
        transaction_id,
        payload: payload.to_vec(),
    })
}

fn frame(rest: &mut &[u8], (queue, partition): (&str, &str)) -> Option<Message> {
    let body_bytes = long(rest)? as usize;
    let mut body = take(rest, body_bytes)?;
    let flags = take(&mut body, 1)?[0];
    let id: [u8; 16] = take(&mut body, 16)?.try_into().ok()?;
    let version_7 = id[6] & 0xF0 == 0x70 && id[8] & 0xC0 == 0x80;
    let transaction_id = short(&mut body)?;
    document(body)?;
    (flags == 0 && version_7 && !transaction_id.is_empty()).then(|| Message {
        queue: queue.to_owned(),
        partition: partition.to_owned(),
        id: Some(id),
        transaction_id,
        payload: body.to_vec(),
    })
}

fn document(bytes: &[u8]) -> Option<()> {
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok().map(drop)
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(bytes)?;
    *rest = tail;
    Some(head)
}

fn long(rest: &mut &[u8]) -> Option<u32> {
    take(rest, 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn short(rest: &mut &[u8]) -> Option<String> {
    let len = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
    String::from_utf8(take(rest, usize::from(len))?.to_vec()).ok()
}

//! Push requests for LaneMQ's wire in its three forms.
//!
//! A load generator that shares its machine with the server must cost little: a JSON or binary
//! request is made from the connection's previous one by writing over names, ids and numbers in
//! place, all of which have fixed widths. Framed requests are compressed, so they are made whole,
//! and as many as reasonable before the clock starts. No two requests are the same, no
//! transaction id is used twice.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use lanemq::base::prng::Prng;
use lanemq::base::uuid;

use crate::args::Form;
use crate::http;
use crate::payload::{self, Documents};
use crate::wire::{Batch, Fault};

/// Length of an id's text.
const ID_TEXT: usize = 36;
/// Framed requests made ahead take no more memory than this.
const READY_BYTES_MAX: usize = 256 << 20;
/// Framed requests are compressed from one of so many bodies in turn, each with other documents.
const FRAME_TEMPLATES: u64 = 16;

const FLAG_COUNTS: u8 = 2;
const FLAG_IDS: u8 = 4;
const FLAG_FRAMES: u8 = 8;
/// What the published clients use.
const ZSTD_LEVEL: i32 = 1;

pub struct Settings {
    pub form: Form,
    pub counts: bool,
    pub transaction_ids: bool,
    pub queue: String,
    pub spread: u32,
    pub partitions: u32,
    /// The request's head up to the value of its content length.
    pub head: Vec<u8>,
}

pub struct PushBodies {
    settings: Settings,
    documents: Documents,
    prng: Prng,
    digits: usize,
    compressor: zstd::bulk::Compressor<'static>,
    /// The body while its length is not known.
    scratch: Vec<u8>,
    frames: Vec<Vec<u8>>,
    ready: VecDeque<(u64, Vec<u8>)>,
    shape: Shape,
}

/// Where the parts of a request stand that differ from one to the next.
#[derive(Clone, Copy, Default)]
struct Shape {
    /// Where the first group of items begins, and how far it is to the next.
    start: usize,
    group_stride: usize,
    /// From the begin of a group to its first item.
    group_head: usize,
    item_stride: usize,
    per_group: usize,
    /// Within a group.
    group_partition: Option<usize>,
    /// Within an item.
    item_partition: Option<usize>,
    id_bytes: Option<usize>,
    id_text: Option<usize>,
    seq: usize,
}

impl PushBodies {
    pub fn new(settings: Settings, documents: Documents, prng: Prng) -> Result<Self, Fault> {
        let digits = (settings.partitions - 1).to_string().len();
        let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        compressor.include_contentsize(true)?;
        Ok(Self {
            settings,
            documents,
            prng,
            digits,
            compressor,
            scratch: Vec::new(),
            frames: Vec::new(),
            ready: VecDeque::new(),
            shape: Shape::default(),
        })
    }

    /// Makes framed requests ahead, which `batch_at` numbers, up to `pushes` of them.
    pub fn prepare(&mut self, pushes: u64, batch_at: impl Fn(u64) -> Batch) -> Result<(), Fault> {
        if self.settings.form != Form::Framed {
            return Ok(());
        }
        let mut bytes = 0;
        for index in 0..pushes {
            let mut out = Vec::new();
            self.write_framed(&batch_at(index), &mut out)?;
            out.shrink_to_fit();
            bytes += out.len();
            self.ready.push_back((index, out));
            if bytes > READY_BYTES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Makes `out`, which is empty or an earlier request of this, the request for `batch`.
    pub fn write(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        match self.settings.form {
            Form::Json | Form::Binary => {
                if out.is_empty() {
                    self.build(batch, out);
                }
                let mut bytes = std::mem::take(out);
                self.patch(self.shape, batch, &mut bytes);
                *out = bytes;
            }
            Form::Framed => {
                if self.ready.front().is_some_and(|(index, _)| *index == batch.index)
                    && let Some((_, bytes)) = self.ready.pop_front()
                {
                    *out = bytes;
                    return;
                }
                out.clear();
                self.write_framed(batch, out).expect("a buffer large enough was given");
            }
        }
    }

    fn build(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        let mut shape = match self.settings.form {
            Form::Json => self.build_json(batch, &mut body),
            Form::Binary | Form::Framed => self.build_binary(batch, &mut body),
        };
        http::write_post(out, &self.settings.head, &body);
        shape.start += out.len() - body.len();
        self.shape = shape;
        self.scratch = body;
    }

    fn build_json(&self, batch: &Batch, body: &mut Vec<u8>) -> Shape {
        body.extend_from_slice(b"{\"items\":[");
        let mut shape = Shape { start: body.len(), ..Shape::default() };
        let name = "0".repeat(self.digits);
        for k in 0..u64::from(batch.count) {
            let item = body.len();
            body.extend_from_slice(b"{\"queue\":\"");
            body.extend_from_slice(self.settings.queue.as_bytes());
            body.extend_from_slice(b"\",\"partition\":\"p");
            shape.item_partition = Some(body.len() - item);
            body.extend_from_slice(name.as_bytes());
            if self.settings.transaction_ids {
                body.extend_from_slice(b"\",\"transactionId\":\"");
                shape.id_text = Some(body.len() - item);
                body.extend_from_slice(&[b'0'; ID_TEXT]);
            }
            body.extend_from_slice(b"\",\"payload\":");
            shape.seq = body.len() - item + payload::seq_range().start;
            body.extend_from_slice(self.documents.get(batch.first_seq + k));
            body.extend_from_slice(b"},");
            shape.item_stride = body.len() - item;
        }
        body.pop();
        body.extend_from_slice(b"]}");
        shape.per_group = (batch.count / self.settings.spread) as usize;
        shape.group_stride = shape.item_stride * shape.per_group;
        shape
    }

    fn build_binary(&self, batch: &Batch, body: &mut Vec<u8>) -> Shape {
        let ids = self.settings.transaction_ids;
        body.extend_from_slice(b"QPB1");
        body.push(if ids { FLAG_IDS } else { 0 } | self.counts_flag());
        body.extend_from_slice(&self.settings.spread.to_le_bytes());
        let mut shape = Shape { start: body.len(), ..Shape::default() };
        let per_group = batch.count / self.settings.spread;
        let mut seq = batch.first_seq;
        for _ in 0..self.settings.spread {
            let group = body.len();
            shape.group_partition = Some(self.write_names(body) - group);
            body.extend_from_slice(&per_group.to_le_bytes());
            shape.group_head = body.len() - group;
            for _ in 0..per_group {
                let item = body.len();
                if ids {
                    body.extend_from_slice(&(ID_TEXT as u16).to_le_bytes());
                    shape.id_text = Some(body.len() - item);
                    body.extend_from_slice(&[b'0'; ID_TEXT]);
                }
                let document = self.documents.get(seq);
                body.extend_from_slice(&(document.len() as u32).to_le_bytes());
                shape.seq = body.len() - item + payload::seq_range().start;
                body.extend_from_slice(document);
                shape.item_stride = body.len() - item;
                seq += 1;
            }
            shape.group_stride = body.len() - group;
        }
        shape.per_group = per_group as usize;
        shape
    }

    /// Writes the two names of a group; returns where the number of the partition stands.
    fn write_names(&self, body: &mut Vec<u8>) -> usize {
        let queue = self.settings.queue.as_bytes();
        body.extend_from_slice(&(queue.len() as u16).to_le_bytes());
        body.extend_from_slice(queue);
        body.extend_from_slice(&(1 + self.digits as u16).to_le_bytes());
        body.push(b'p');
        let at = body.len();
        body.resize(at + self.digits, b'0');
        at
    }

    fn counts_flag(&self) -> u8 {
        if self.settings.counts { FLAG_COUNTS } else { 0 }
    }

    /// Frames back to back, for all groups of a batch.
    fn build_frames(&self, batch: &Batch) -> (Vec<u8>, Shape) {
        let mut out = Vec::new();
        let mut shape = Shape::default();
        for k in 0..u64::from(batch.count) {
            let frame = out.len();
            let document = self.documents.get(batch.first_seq + k);
            let body_len = 1 + 16 + 2 + ID_TEXT + document.len();
            out.extend_from_slice(&(body_len as u32).to_le_bytes());
            out.push(0);
            shape.id_bytes = Some(out.len() - frame);
            out.extend_from_slice(&[0; 16]);
            out.extend_from_slice(&(ID_TEXT as u16).to_le_bytes());
            shape.id_text = Some(out.len() - frame);
            out.extend_from_slice(&[b'0'; ID_TEXT]);
            shape.seq = out.len() - frame + payload::seq_range().start;
            out.extend_from_slice(document);
            shape.item_stride = out.len() - frame;
        }
        shape.per_group = (batch.count / self.settings.spread) as usize;
        shape.group_stride = shape.item_stride * shape.per_group;
        (out, shape)
    }

    fn write_framed(&mut self, batch: &Batch, out: &mut Vec<u8>) -> Result<(), Fault> {
        let slot = (batch.index % FRAME_TEMPLATES) as usize;
        if slot == self.frames.len() {
            let (frames, shape) = self.build_frames(batch);
            self.frames.push(frames);
            self.shape = shape;
        }
        let mut frames = std::mem::take(&mut self.frames[slot]);
        let shape = self.shape;
        self.patch(shape, batch, &mut frames);

        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        body.extend_from_slice(b"QPB1");
        body.push(FLAG_FRAMES | self.counts_flag());
        body.extend_from_slice(&self.settings.spread.to_le_bytes());
        for (group, frames) in frames.chunks(shape.group_stride).enumerate() {
            let at = self.write_names(&mut body);
            let partition = (batch.partition + group as u32) % self.settings.partitions;
            write_decimal(&mut body[at..], partition);
            body.extend_from_slice(&(shape.per_group as u32).to_le_bytes());
            let z = self.compressor.compress(frames)?;
            body.extend_from_slice(&(z.len() as u32).to_le_bytes());
            body.extend_from_slice(&z);
        }
        http::write_post(out, &self.settings.head, &body);
        self.scratch = body;
        self.frames[slot] = frames;
        Ok(())
    }

    fn patch(&mut self, shape: Shape, batch: &Batch, bytes: &mut [u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_us = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let mut seq = batch.first_seq;
        for group in 0..self.settings.spread {
            let partition = (batch.partition + group) % self.settings.partitions;
            let at = shape.start + group as usize * shape.group_stride;
            if let Some(place) = shape.group_partition {
                write_decimal(&mut bytes[at + place..][..self.digits], partition);
            }
            for k in 0..shape.per_group {
                let item = &mut bytes[at + shape.group_head + k * shape.item_stride..];
                if let Some(place) = shape.item_partition {
                    write_decimal(&mut item[place..][..self.digits], partition);
                }
                if let Some(text) = shape.id_text {
                    let id = uuid::mint_v7(wall_us, &mut self.prng);
                    item[text..][..ID_TEXT].copy_from_slice(&uuid::to_text(&id));
                    if let Some(place) = shape.id_bytes {
                        item[place..][..16].copy_from_slice(&id);
                    }
                }
                payload::write_seq(&mut item[shape.seq..][..payload::SEQ_DIGITS], seq);
                seq += 1;
            }
        }
    }
}

/// Writes `number` over all of `out`, with zeros in front.
fn write_decimal(out: &mut [u8], mut number: u32) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use lanemq::model::frame;

    use super::*;
    use crate::payload::read_seq;

    fn bodies(form: Form, transaction_ids: bool) -> PushBodies {
        let settings = Settings {
            form,
            counts: true,
            transaction_ids,
            queue: "q".to_owned(),
            spread: 2,
            partitions: 30,
            head: b"Content-Length: ".to_vec(),
        };
        let mut prng = Prng::new(7);
        let documents = Documents::new(100, &mut prng);
        PushBodies::new(settings, documents, prng).unwrap()
    }

    fn batch(index: u64) -> Batch {
        let partition = (2 * index % 30) as u32;
        Batch { index, first_seq: 4 * index, count: 4, partition }
    }

    /// The body, which must be as long as the head says.
    fn body(request: &[u8]) -> &[u8] {
        let end = memchr::memmem::find(request, b"\r\n\r\n").unwrap();
        let head = std::str::from_utf8(&request[..end]).unwrap();
        let length: usize = head.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(request.len(), end + 4 + length);
        &request[end + 4..]
    }

    struct Cursor<'a>(&'a [u8]);

    impl<'a> Cursor<'a> {
        fn take(&mut self, count: usize) -> &'a [u8] {
            let (front, rest) = self.0.split_at(count);
            self.0 = rest;
            front
        }

        fn u16(&mut self) -> usize {
            usize::from(u16::from_le_bytes(self.take(2).try_into().unwrap()))
        }

        fn u32(&mut self) -> usize {
            u32::from_le_bytes(self.take(4).try_into().unwrap()) as usize
        }

        fn short(&mut self) -> String {
            let len = self.u16();
            String::from_utf8(self.take(len).to_vec()).unwrap()
        }
    }

    /// (partition, transaction id, number) of each message of a binary body.
    fn read_binary(body: &[u8]) -> Vec<(String, String, u64)> {
        let mut cursor = Cursor(body);
        assert_eq!(cursor.take(4), b"QPB1");
        let flags = cursor.take(1)[0];
        assert_eq!(flags & FLAG_COUNTS, FLAG_COUNTS);
        let mut found = Vec::new();
        for _ in 0..cursor.u32() {
            assert_eq!(cursor.short(), "q");
            let partition = cursor.short();
            let count = cursor.u32();
            if flags & FLAG_FRAMES == 0 {
                for _ in 0..count {
                    let id = if flags & FLAG_IDS != 0 { cursor.short() } else { String::new() };
                    let len = cursor.u32();
                    let seq = read_seq(cursor.take(len)).unwrap();
                    found.push((partition.clone(), id, seq));
                }
                continue;
            }
            let len = cursor.u32();
            let z = cursor.take(len);
            let size = zstd::zstd_safe::get_frame_content_size(z).unwrap().unwrap();
            let frames = zstd::bulk::decompress(z, size as usize).unwrap();
            assert_eq!(frames.len() as u64, size);
            let of_group: Vec<_> = frame::frames(&frames).collect();
            assert_eq!(of_group.len(), count);
            for frame in of_group {
                assert_eq!(frame.flags, 0);
                let id = uuid::to_string(&frame.id.0);
                assert_eq!(frame.transaction_id, id.as_bytes());
                found.push((partition.clone(), id, read_seq(frame.payload).unwrap()));
            }
        }
        assert!(cursor.0.is_empty());
        found
    }

    fn read_json(body: &[u8]) -> Vec<(String, String, u64)> {
        let request: queen_protocol::PushRequest = serde_json::from_slice(body).unwrap();
        let items = request.items.into_iter().map(|item| {
            assert_eq!(item.queue, "q");
            let digits = item.payload["seq"].as_str().unwrap();
            let seq = u64::from_str_radix(digits, 16).unwrap();
            (item.partition.unwrap(), item.transaction_id.unwrap_or_default(), seq)
        });
        items.collect()
    }

    #[test]
    fn every_form_says_the_same_and_no_id_comes_twice() {
        let cases = [
            (Form::Json, true),
            (Form::Json, false),
            (Form::Binary, true),
            (Form::Binary, false),
            (Form::Framed, true),
        ];
        for (form, with_ids) in cases {
            let mut bodies = bodies(form, with_ids);
            // Some framed requests are made ahead, the others when they are asked for.
            bodies.prepare(10, batch).unwrap();
            let mut ids = HashSet::new();
            let mut request = Vec::new();
            for index in 0..40 {
                bodies.write(&batch(index), &mut request);
                let body = body(&request);
                let found = if form == Form::Json { read_json(body) } else { read_binary(body) };
                let partition = |n: u64| format!("p{:02}", n % 30);
                let want = (0..4).map(|k| (partition(2 * index + k / 2), 4 * index + k));
                let places = found.iter().map(|(name, _, seq)| (name.clone(), *seq));
                assert!(places.eq(want), "{form:?} {found:?}");
                ids.extend(found.into_iter().map(|(_, id, _)| id));
            }
            let unique = if with_ids { 160 } else { 1 };
            assert_eq!(ids.len(), unique, "{form:?}");
            assert_eq!(ids.contains(""), !with_ids);
        }
    }
}

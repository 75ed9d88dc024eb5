//! Seeded fuzz of binary push bodies: lies in lengths and counts, broken rules, damage before and
//! after compression.
//!
//! Each body is read twice: by the broker's reader and by a naive one (`reference`). Both must
//! take it or both refuse it, and what is taken must be the same and survive being written again.
//! What the reader allocates is counted: it is bounded by bytes that are really there, however
//! large the numbers are that a body claims (`bombs` has the worst of them as cases).
//!
//! `SEED` and `ITER` choose the run; a failure names the seed of its iteration. By hand:
//! `ITER=20000000 cargo test --release --test fuzz_binary`.

#[path = "fuzz_binary/bodies.rs"]
mod bodies;
#[path = "fuzz_binary/bombs.rs"]
mod bombs;
#[path = "fuzz_binary/counted.rs"]
mod counted;
#[path = "fuzz_binary/reference.rs"]
mod reference;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use lanemq::base::compress::Inflater;
use lanemq::base::prng::Prng;
use lanemq::model::command::{FrameGroup, PushItem};
use lanemq::model::error::{ErrorCode, Refusal};
use lanemq::model::frame;
use lanemq::proto::error;
use lanemq::proto::push_binary::{Form, FramedBody, Labels};

use bodies::{FRAMES, IDS, Maker, ZSTD};
use reference::{Message, Read, Reference};

/// Iterations without `ITER`: about two seconds of the dev profile.
const ITERATIONS: u64 = 60_000;
/// From so many on, every refusal must have been met.
const ALL_MET: u64 = 20_000;

/// Every refusal by the beginning of its text; only the number of messages is left to a case.
const REFUSALS: [(&str, ErrorCode); 22] = [
    ("not a binary body", ErrorCode::BadBody),
    ("the body ends before its flags", ErrorCode::BadBody),
    ("flags that do not go together", ErrorCode::BadBody),
    ("a payload is not one JSON document", ErrorCode::BadBody),
    ("the body inflates to", ErrorCode::PayloadTooLarge),
    ("the announced length is not the one", ErrorCode::BadBody),
    ("not exactly one zstd frame", ErrorCode::BadBody),
    ("a zstd frame without its content size", ErrorCode::BadBody),
    ("a zstd frame whose content is damaged", ErrorCode::BadBody),
    ("a frame does not end with its bytes", ErrorCode::BadBody),
    ("a frame with marks that only", ErrorCode::BadBody),
    ("a message id that is no UUID", ErrorCode::BadBody),
    ("a frame without a transaction id", ErrorCode::BadBody),
    ("a transaction id that is not UTF-8", ErrorCode::BadBody),
    ("more frames than the group's count", ErrorCode::BadBody),
    ("the body ends inside a group", ErrorCode::BadBody),
    ("a name or id: invalid utf-8", ErrorCode::BadBody),
    ("a name or id: incomplete utf-8", ErrorCode::BadBody),
    ("a group without a queue", ErrorCode::BadBody),
    ("names take", ErrorCode::NameTooLong),
    ("bytes behind the last group", ErrorCode::BadBody),
    ("more than 1048576 messages", ErrorCode::PayloadTooLarge),
];

/// What a reader may allocate beside what it inflates and what it makes of messages that are
/// there: its first vectors, the text of a refusal.
const FIXED_BYTES: usize = 4 << 10;
/// A growing vector has its old and its new memory at once, the new one twice too large.
const GROWTH: usize = 3;
/// The smallest message of a plain body and the smallest group of a framed one.
const ITEM_BYTES_MIN: usize = 5;
const GROUP_BYTES_MIN: usize = 20;

fn bound(body: &[u8], read: &Read) -> usize {
    let items = read.plain / ITEM_BYTES_MIN * size_of::<PushItem<'_>>() * GROWTH;
    let groups = match body.get(4) {
        Some(flags) if flags & FRAMES != 0 => {
            body.len() / GROUP_BYTES_MIN * size_of::<FrameGroup<'_>>() * GROWTH
        }
        _ => 0,
    };
    // A document's depth is kept track of in a bit a level.
    let depth = (read.inflatable + read.plain) / 8 * GROWTH;
    FIXED_BYTES + read.inflatable + items + groups + depth
}

/// Everything that is made once and used for each body.
struct Judge {
    inflater: Inflater,
    reference: Reference,
}

impl Judge {
    fn new() -> Self {
        Self { inflater: Inflater::default(), reference: Reference::new() }
    }

    /// Reads a body both ways and holds the two against each other: how many messages were taken
    /// and the most bytes that were allocated.
    fn judge(&mut self, body: &Bytes) -> (Result<usize, Refusal>, usize) {
        let read = self.reference.read(body);
        let (taken, most) = match Form::read(body) {
            // The route takes what has another magic for JSON, or refuses it by its type.
            None => (Err(Refusal::new(ErrorCode::BadBody, "not a binary body")), 0),
            Some(Err(refusal)) => (Err(refusal), 0),
            Some(Ok(form)) if form.is_framed() => self.framed(body, &read),
            Some(Ok(form)) => self.plain(body, form, &read),
        };
        let bound = bound(body, &read);
        assert!(most <= bound, "{most} bytes were allocated, {bound} at the most: {taken:?}");
        let wanted = read.messages.as_ref().map(Vec::len);
        assert_eq!(taken.as_ref().ok().copied(), wanted, "{taken:?}");
        (taken, most)
    }

    fn plain(&mut self, body: &Bytes, form: Form, read: &Read) -> (Result<usize, Refusal>, usize) {
        let (mut content, inflater) = (Vec::new(), &mut self.inflater);
        let into = &mut content;
        let (items, most) = counted::peak(move || {
            let plain = form.plain(body, inflater, into)?;
            form.items(plain)
        });
        let items = match items {
            Ok(items) => items,
            Err(refusal) => return (Err(refusal), most),
        };
        let wanted = read.messages.as_deref().unwrap_or_default();
        assert!(items.iter().map(message_of).eq(wanted.iter().cloned()), "{items:?}");
        let again = write_plain(body[4] & !ZSTD | IDS, &items);
        let form = Form::read(&again).expect("binary").expect("known flags");
        let mut unused = Vec::new();
        let plain = form.plain(&again, &mut self.inflater, &mut unused).expect("not compressed");
        assert_eq!(form.items(plain).expect("written from items"), items);
        (Ok(items.len()), most)
    }

    fn framed(&mut self, body: &Bytes, read: &Read) -> (Result<usize, Refusal>, usize) {
        let (groups, most) = counted::peak(|| groups_of(body, &mut self.inflater));
        let groups = match groups {
            Ok(groups) => groups,
            Err(refusal) => return (Err(refusal), most),
        };
        let pieces = groups.iter().map(|g| (g.piece.packed.to_vec(), g.piece.frames.clone()));
        assert!(pieces.eq(read.packed.iter().cloned()), "not the groups that were sent");
        let inside = |g: &FrameGroup<'_>| body.as_ptr_range().contains(&g.piece.packed.as_ptr());
        assert!(groups.iter().all(inside), "a group's bytes are copied");
        let wanted = read.messages.as_deref().unwrap_or_default();
        assert!(groups.iter().flat_map(messages_of).eq(wanted.iter().cloned()));
        let labels = Labels::of(&groups);
        let named = wanted.iter().map(|m| (m.queue.as_str(), Some(m.transaction_id.as_bytes())));
        assert!(labels.iter().eq(named), "the answer would name other messages");
        let again = Bytes::from(write_framed(body[4], &groups));
        let groups_again = groups_of(&again, &mut self.inflater).expect("written from groups");
        let (a, b) = (groups.iter().flat_map(messages_of), groups_again.iter());
        assert!(a.eq(b.flat_map(messages_of)));
        (Ok(wanted.len()), most)
    }
}

fn groups_of<'a>(body: &'a Bytes, inflater: &mut Inflater) -> Result<Vec<FrameGroup<'a>>, Refusal> {
    let mut framed = FramedBody::new(body, None)?;
    let mut groups = Vec::new();
    while let Some(group) = framed.next_group(inflater, Vec::new())? {
        groups.push(group);
    }
    Ok(groups)
}

fn message_of(item: &PushItem<'_>) -> Message {
    Message {
        queue: item.queue.to_string(),
        partition: item.partition.to_string(),
        id: None,
        transaction_id: item.transaction_id.as_deref().unwrap_or_default().to_owned(),
        payload: item.payload.to_vec(),
    }
}

/// As the broker will walk them.
fn messages_of(group: &FrameGroup<'_>) -> Vec<Message> {
    let frames = frame::frames(&group.piece.frames);
    let messages: Vec<Message> = frames
        .map(|frame| Message {
            queue: group.queue.to_owned(),
            partition: group.partition.to_owned(),
            id: Some(frame.id.0),
            transaction_id: String::from_utf8_lossy(frame.transaction_id).into_owned(),
            payload: frame.payload.to_vec(),
        })
        .collect();
    assert_eq!(messages.len(), group.piece.count as usize);
    messages
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A group for each item.
fn write_plain(flags: u8, items: &[PushItem<'_>]) -> Vec<u8> {
    let mut out = b"QPB1".to_vec();
    out.push(flags);
    out.extend((items.len() as u32).to_le_bytes());
    for item in items {
        put_text(&mut out, &item.queue);
        put_text(&mut out, &item.partition);
        out.extend(1u32.to_le_bytes());
        put_text(&mut out, item.transaction_id.as_deref().unwrap_or_default());
        out.extend((item.payload.len() as u32).to_le_bytes());
        out.extend(item.payload);
    }
    out
}

fn write_framed(flags: u8, groups: &[FrameGroup<'_>]) -> Vec<u8> {
    let mut out = b"QPB1".to_vec();
    out.push(flags);
    out.extend((groups.len() as u32).to_le_bytes());
    for group in groups {
        put_text(&mut out, group.queue);
        put_text(&mut out, group.partition);
        out.extend(group.piece.count.to_le_bytes());
        out.extend((group.piece.packed.len() as u32).to_le_bytes());
        out.extend(&group.piece.packed);
    }
    out
}

fn must_be_known(refusal: &Refusal) -> usize {
    let known = REFUSALS.iter().position(|(text, _)| refusal.text.starts_with(text));
    let known = known.unwrap_or_else(|| panic!("an unknown refusal: {refusal:?}"));
    assert_eq!(refusal.code, REFUSALS[known].1);
    let mut out = Vec::new();
    error::encode(refusal, &mut out);
    serde_json::from_slice::<queen_protocol::ErrorBody>(&out).expect("a readable refusal");
    known
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn mutated_bodies_are_read_as_they_are_described() {
    let (seed, iterations) = (setting("SEED", 1), setting("ITER", ITERATIONS));
    let (mut judge, mut maker) = (Judge::new(), Maker::new());
    // By flags: bodies taken that hold messages. By place in the list: refusals.
    let (mut taken, mut refused) = (BTreeMap::new(), [0u64; REFUSALS.len()]);
    for n in 0..iterations {
        let seed = seed.wrapping_add(n);
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let body = Bytes::from(maker.body(&mut Prng::new(seed)));
            match judge.judge(&body).0 {
                Ok(messages) => {
                    *taken.entry(body[4]).or_default() += u64::from(messages > 0);
                }
                Err(refusal) => refused[must_be_known(&refusal)] += 1,
            }
        }));
        let replay = "cargo test --test fuzz_binary mutated";
        assert!(run.is_ok(), "failed; replay: SEED={seed} ITER=1 {replay}");
    }
    println!("taken, by flags: {taken:?}\nrefused: {refused:?}");
    if iterations >= ALL_MET {
        let bodies: u64 = taken.values().sum();
        assert!(taken.len() == 10 && bodies > iterations / 5, "few are taken: {taken:?}");
        for ((text, _), count) in REFUSALS.iter().zip(refused).take(REFUSALS.len() - 1) {
            assert!(count > 0, "nothing was refused with '{text}'");
        }
    }
}

//! The worst claims, each with the answer it must get and what reading it may allocate.

use bytes::Bytes;
use lanemq::base::limits;
use lanemq::model::error::ErrorCode;

use crate::{FIXED_BYTES, Judge};

const LIMIT: usize = limits::INFLATED_BYTES_MAX;
/// Answered from the claims alone: hardly more than the text of the refusal is allocated.
const NOTHING: usize = 1 << 10;

/// What must become of a body.
enum Wanted {
    Taken(usize),
    Bad(&'static str),
    TooLarge(&'static str),
}

use Wanted::{Bad, Taken, TooLarge};

fn check(name: &str, body: Vec<u8>, wanted: Wanted, bytes_max: usize) {
    let (got, most) = Judge::new().judge(&Bytes::from(body));
    let got = got.map_err(|refusal| (refusal.code, refusal.text.into_owned()));
    let refused = |code, text: &str| {
        let same = |(c, t): &(ErrorCode, String)| *c == code && t.starts_with(text);
        got.as_ref().is_err_and(same)
    };
    let right = match wanted {
        Taken(messages) => got == Ok(messages),
        Bad(text) => refused(ErrorCode::BadBody, text),
        TooLarge(text) => refused(ErrorCode::PayloadTooLarge, text),
    };
    assert!(right, "{name}: {got:?}");
    assert!(most <= bytes_max, "{name}: {most} bytes were allocated, {bytes_max} at the most");
}

/// A frame of one segment that announces `content` bytes, and these blocks: kind, size, bytes.
fn zstd(content: u64, blocks: &[(u32, usize, &[u8])]) -> Vec<u8> {
    let mut out = b"\x28\xB5\x2F\xFD\xE0".to_vec();
    out.extend(content.to_le_bytes());
    for (at, (kind, size, bytes)) in blocks.iter().enumerate() {
        let last = u32::from(at + 1 == blocks.len());
        out.extend_from_slice(&(last | kind << 1 | (*size as u32) << 3).to_le_bytes()[..3]);
        out.extend_from_slice(bytes);
    }
    out
}

/// Run-length blocks of `byte` over `content` bytes in all: four bytes for each 128 KiB.
fn runs(content: usize, byte: u8) -> Vec<u8> {
    let byte = [byte];
    let full = (1u32, 128 << 10, &byte[..]);
    let mut blocks = vec![full; content / (128 << 10)];
    blocks.push((1, content % (128 << 10), &byte));
    zstd(content as u64, &blocks)
}

/// A framed body: the groups are count and compressed bytes.
fn framed(groups: &[(u32, &[u8])]) -> Vec<u8> {
    let mut body = b"QPB1\x08".to_vec();
    body.extend((groups.len() as u32).to_le_bytes());
    for (count, packed) in groups {
        body.extend(b"\x01\0q\x01\0p");
        body.extend(count.to_le_bytes());
        body.extend((packed.len() as u32).to_le_bytes());
        body.extend(*packed);
    }
    body
}

/// A compressed plain body that announces `raw` bytes.
fn plain(raw: u32, packed: &[u8]) -> Vec<u8> {
    [b"QPB1\x01", &raw.to_le_bytes()[..], packed].concat()
}

/// A plain body of one group with `count` messages of the payload `0`, not compressed.
fn many(count: u32) -> Vec<u8> {
    let head = [b"\x01\0\0\0\x01\0q\0\0", &count.to_le_bytes()[..]].concat();
    [&head[..], &b"\x01\0\0\x000".repeat(count as usize)].concat()
}

#[test]
fn content_sizes_beyond_the_blocks_reserve_nothing() {
    let damaged = "a zstd frame whose content is damaged or not as long";
    for content in [4_096, LIMIT as u64, u64::from(u32::MAX), 1 << 63, u64::MAX] {
        let empty = zstd(content, &[(0, 0, b"")]);
        check("an empty block", framed(&[(1, &empty)]), Bad(damaged), NOTHING);
        // One compressed block can be 128 KiB, whatever is announced.
        let one = zstd(content, &[(2, 4, b"\x15\0\0\0")]);
        check("a compressed block", framed(&[(1, &one)]), Bad(damaged), FIXED_BYTES);
    }
    // The four-byte form of the field.
    let four = b"\x28\xB5\x2F\xFD\xA0\xFF\xFF\xFF\xFF\x01\0\0";
    check("2^32 - 1 in four bytes", framed(&[(1, four)]), Bad(damaged), NOTHING);
}

#[test]
fn runs_within_the_limit_inflate_and_beyond_it_do_not() {
    let no_frame = "a frame does not end with its bytes";
    let room = LIMIT + FIXED_BYTES;
    check("64 MiB of zeros", framed(&[(1, &runs(LIMIT, 0))]), Bad(no_frame), room);
    let beyond = "the body inflates to";
    check("a byte more", framed(&[(1, &runs(LIMIT + 1, 0))]), TooLarge(beyond), NOTHING);
    check("4 GiB", framed(&[(1, &runs(4 << 30, 0))]), TooLarge(beyond), NOTHING);
    // What groups inflate to is counted over all of them: these hold no message, so that the
    // first is good.
    let nothing = zstd(0, &[(0, 0, b"")]);
    let groups = [(0, &nothing[..]), (1, &runs(LIMIT, 0))];
    check("all of it in the second", framed(&groups), Bad(no_frame), room);
    let frame =
        [&26u32.to_le_bytes()[..], b"\0\x01\x90\0\0\0\0\x70\0\x80\0\0\0\0\0\0\0", b"\x01\0t"]
            .concat();
    let message = [&frame[..], b" \x20\x20\x200\x20"].concat();
    let good = zstd(message.len() as u64, &[(0, message.len(), &message)]);
    let groups = [(1, &good[..]), (1, &runs(LIMIT - message.len() + 1, 0))];
    check("a byte too many in two", framed(&groups), TooLarge(beyond), FIXED_BYTES);
    check("the first alone", framed(&groups[..1]), Taken(1), FIXED_BYTES);
}

/// A run-length block may not say more than 128 KiB, yet its field can: 2 MiB in four bytes, and
/// the library inflates it.
#[test]
fn runs_longer_than_a_block_may_be_reserve_nothing() {
    for size in [(128 << 10) + 1, (1 << 21) - 1] {
        let long = zstd(size as u64, &[(1, size, b"\0")]);
        let text = "not exactly one zstd frame";
        check("one long run", framed(&[(1, &long)]), Bad(text), NOTHING);
    }
}

#[test]
fn announced_lengths_of_plain_bodies_reserve_nothing() {
    let lie = "the announced length is not the one";
    let beyond = "the body inflates to";
    let empty = zstd(0, &[(0, 0, b"")]);
    for raw in [1, LIMIT as u32] {
        check("more than there is", plain(raw, &empty), Bad(lie), NOTHING);
    }
    for raw in [LIMIT as u32 + 1, i32::MAX as u32, u32::MAX] {
        check("beyond the limit", plain(raw, &empty), TooLarge(beyond), NOTHING);
    }
    // No content size in the header: a window, and one empty block.
    let unsized_ = b"\x28\xB5\x2F\xFD\0\x50\x01\0\0";
    check("unsized, with a lie", plain(LIMIT as u32, unsized_), Bad(lie), NOTHING);
    check("unsized and honest", plain(0, unsized_), Bad("the body ends inside"), NOTHING);
    let zeros = runs(LIMIT, 0);
    let trailing = Bad("bytes behind the last group");
    check("64 MiB of zeros", plain(LIMIT as u32, &zeros), trailing, LIMIT + FIXED_BYTES);
}

#[test]
fn counts_and_lengths_reserve_nothing() {
    let short = "the body ends inside a group";
    let most = u32::MAX.to_le_bytes();
    for flags in 0..16u8 {
        let head = [b"QPB1", &[flags][..]].concat();
        let wanted = match flags {
            8 | 10 | 0 | 2 | 4 | 6 => Bad(short),
            1 | 3 | 5 | 7 => TooLarge("the body inflates to"),
            _ => Bad("flags that do not go together"),
        };
        check("2^32 - 1 groups", [&head[..], &most].concat(), wanted, NOTHING);
    }
    for flags in [0, 4, 8] {
        let group = [b"QPB1", &[flags][..], b"\x01\0\0\0\x01\0q\0\0", &most].concat();
        check("2^32 - 1 messages", group.clone(), Bad(short), NOTHING);
        check("and a length", [&group[..], &most].concat(), Bad(short), NOTHING);
    }
    let one = zstd(4, &[(0, 4, &most)]);
    let no_frame = Bad("a frame does not end with its bytes");
    check("a frame of 2^32 - 1 bytes", framed(&[(1, &one)]), no_frame, FIXED_BYTES);
    let one = zstd(0, &[(0, 0, b"")]);
    let no_frame = Bad("a frame does not end with its bytes");
    check("2^32 - 1 frames", framed(&[(u32::MAX, &one)]), no_frame, FIXED_BYTES);
}

/// The most messages that one push may hold are as many vector entries; one more is refused.
#[test]
fn messages_are_counted_before_they_grow_beyond_the_limit() {
    let most = limits::PUSH_MESSAGES_MAX as u32;
    let entries = 320 << 20;
    let text = "more than 1048576 messages";
    for (count, wanted) in [(most, Taken(most as usize)), (most + 1, TooLarge(text))] {
        let body = [b"QPB1\0", &many(count)[..]].concat();
        check("as they are", body, wanted, entries);
    }
    let content = many(most + 1);
    let packed = ::zstd::bulk::compress(&content, 1).expect("enough memory");
    let body = plain(content.len() as u32, &packed);
    check("compressed", body, TooLarge(text), entries);
}

#[test]
fn deep_documents_cost_a_bit_a_level() {
    let depth = 1_000_000;
    let payload = ["[".repeat(depth), "]".repeat(depth)].concat();
    let mut body = b"QPB1\0\x01\0\0\0\x01\0q\0\0\x01\0\0\0".to_vec();
    body.extend((payload.len() as u32).to_le_bytes());
    body.extend(payload.as_bytes());
    check("deep", body, Taken(1), 1 << 20);
}

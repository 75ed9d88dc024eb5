//! Binary push bodies: good ones of every form, ones that lie in one of their lengths or counts,
//! ones that break one rule, and damage to any of their bytes: before they are compressed, after,
//! and of the body as a whole.

use lanemq::base::limits;
use lanemq::base::prng::Prng;
use zstd::zstd_safe::{CCtx, CParameter};

pub const ZSTD: u8 = 1;
pub const IDS: u8 = 4;
pub const FRAMES: u8 = 8;
/// Every combination of flags that goes together.
const FLAGS: [u8; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10];

const PAYLOADS: [&str; 8] = [
    "null",
    "0",
    "{\"order\":12,\"lines\":[{\"sku\":\"A-1\",\"n\":-3.5e2},{\"ok\":true}]}",
    "\"a plain string, long enough for several words of eight bytes\"",
    "[[],{},\"\\u00e9 \\\" \\\\\"]",
    " \"\u{e9}\u{1f980}\" ",
    "1E-7",
    "{\"a\":{\"a\":{\"a\":[[[[null]]]]}}}",
];
const BAD_PAYLOADS: [&[u8]; 5] = [b"", b"01", b"{\"a\":}", b"1 2", b"\"\xff\""];
const NAMES: [&str; 4] = ["q", "orders", "citt\u{e0}/3", "customer-0001"];
const IDS_GIVEN: [&str; 4] =
    ["t", "t-1", "id \u{1f980} \"x\"", "0190f3c2-7a10-7000-8000-00000000000c"];

/// Writes lengths and counts; one of them may be a lie.
struct Lengths {
    /// Fields to go before the lie.
    countdown: u64,
    lie: u32,
}

impl Lengths {
    fn pick(prng: &mut Prng, percent: u64) -> Self {
        const CLAIMS: [u32; 10] = [
            0,
            1,
            0xFFFF,
            1 << 20,
            limits::INFLATED_BYTES_MAX as u32,
            limits::INFLATED_BYTES_MAX as u32 + 1,
            i32::MAX as u32,
            1 << 31,
            u32::MAX - 1,
            u32::MAX,
        ];
        let lies = prng.chance(percent);
        let countdown = if lies { prng.below(14) } else { u64::MAX };
        Self { countdown, lie: CLAIMS[prng.below(CLAIMS.len() as u64) as usize] }
    }

    fn of(&mut self, honest: usize) -> u32 {
        self.countdown = self.countdown.wrapping_sub(1);
        match (self.countdown, self.lie) {
            (u64::MAX, 0) => (honest as u32).wrapping_sub(1),
            (u64::MAX, 1) => honest as u32 + 1,
            (u64::MAX, lie) => lie,
            _ => honest as u32,
        }
    }

    fn long(&mut self, out: &mut Vec<u8>, honest: usize) {
        out.extend(self.of(honest).to_le_bytes());
    }

    fn text(&mut self, out: &mut Vec<u8>, text: &[u8]) {
        out.extend((self.of(text.len()) as u16).to_le_bytes());
        out.extend(text);
    }
}

/// A rule that one body breaks, in its first message or group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    Payload,
    Queue,
    Names,
    IdText,
    NoId,
    Marks,
    Version,
}

/// What goes wrong, in percent of the bodies.
#[derive(Clone, Copy)]
struct Plan {
    flags: u8,
    broken: Broken,
    inside: bool,
    packed: bool,
    outside: bool,
}

impl Plan {
    fn pick(prng: &mut Prng) -> Self {
        const RULES: [Broken; 7] = [
            Broken::Payload,
            Broken::Queue,
            Broken::Names,
            Broken::IdText,
            Broken::NoId,
            Broken::Marks,
            Broken::Version,
        ];
        let rule = RULES[prng.below(RULES.len() as u64) as usize];
        Self {
            flags: FLAGS[prng.below(FLAGS.len() as u64) as usize],
            broken: if prng.chance(15) { rule } else { Broken::Nothing },
            inside: prng.chance(30),
            packed: prng.chance(10),
            outside: prng.chance(20),
        }
    }
}

/// Makes bodies. Its compressors are reused: one writes the content size, one leaves it out, one
/// adds a checksum.
pub struct Maker {
    packers: [CCtx<'static>; 3],
}

impl Maker {
    pub fn new() -> Self {
        let packer = |parameters: &[CParameter]| {
            let mut context = CCtx::create();
            for parameter in parameters {
                context.set_parameter(*parameter).expect("known to the library");
            }
            context
        };
        let sized = packer(&[]);
        let unsized_ = packer(&[CParameter::ContentSizeFlag(false)]);
        let checked = packer(&[CParameter::ChecksumFlag(true), CParameter::CompressionLevel(1)]);
        Self { packers: [sized, unsized_, checked] }
    }

    pub fn body(&mut self, prng: &mut Prng) -> Vec<u8> {
        let plan = Plan::pick(prng);
        let mut lengths = Lengths::pick(prng, 30);
        let mut body = b"QPB1".to_vec();
        body.push(plan.flags);
        if plan.flags & FRAMES != 0 {
            self.framed(&mut body, plan, &mut lengths, prng);
        } else {
            self.plain(&mut body, plan, &mut lengths, prng);
        }
        if plan.outside {
            damage(&mut body, prng);
        }
        body
    }

    fn plain(&mut self, body: &mut Vec<u8>, plan: Plan, lengths: &mut Lengths, prng: &mut Prng) {
        let mut rest = Vec::new();
        let groups = some(prng);
        lengths.long(&mut rest, groups);
        for group in 0..groups {
            let broken = if group == 0 { plan.broken } else { Broken::Nothing };
            let messages = begin_group(&mut rest, broken, lengths, prng);
            for n in 0..messages {
                let broken = if n == 0 { broken } else { Broken::Nothing };
                if plan.flags & IDS != 0 {
                    let id = transaction_id(broken, prng);
                    // Here an empty one asks the broker for one.
                    let id = if prng.chance(20) { Vec::new() } else { id };
                    lengths.text(&mut rest, &id);
                }
                let payload = payload(broken, prng);
                lengths.long(&mut rest, payload.len());
                rest.extend(payload);
            }
        }
        if plan.inside {
            damage(&mut rest, prng);
        }
        if plan.flags & ZSTD == 0 {
            return body.extend(rest);
        }
        lengths.long(body, rest.len());
        body.extend(self.pack(&rest, plan, prng));
    }

    fn framed(&mut self, body: &mut Vec<u8>, plan: Plan, lengths: &mut Lengths, prng: &mut Prng) {
        let groups = some(prng);
        lengths.long(body, groups);
        for group in 0..groups {
            let first = group == 0;
            let broken = if first { plan.broken } else { Broken::Nothing };
            let messages = begin_group(body, broken, lengths, prng);
            let mut frames = Vec::new();
            for n in 0..messages {
                let broken = if n == 0 { broken } else { Broken::Nothing };
                frame(&mut frames, broken, lengths, prng);
            }
            if plan.inside && first {
                damage(&mut frames, prng);
            }
            let plan = Plan { packed: plan.packed && first, ..plan };
            let packed = self.pack(&frames, plan, prng);
            lengths.long(body, packed.len());
            body.extend(packed);
        }
    }

    fn pack(&mut self, bytes: &[u8], plan: Plan, prng: &mut Prng) -> Vec<u8> {
        let packer = match prng.below(20) {
            0..=1 => None,
            2 => Some(1),
            3..=4 => Some(2),
            _ => Some(0),
        };
        let packed = match packer {
            None => by_hand(bytes, prng),
            Some(packer) => {
                let mut out = Vec::with_capacity(zstd::zstd_safe::compress_bound(bytes.len()));
                self.packers[packer].compress2(&mut out, bytes).expect("the output has room");
                out
            }
        };
        if !plan.packed {
            return packed;
        }
        match prng.below(8) {
            0 => packed.repeat(2),
            1 => [b"\x50\x2A\x4D\x18\x02\0\0\0xx", &packed[..]].concat(),
            _ => {
                let mut packed = packed;
                damage(&mut packed, prng);
                packed
            }
        }
    }
}

fn some(prng: &mut Prng) -> usize {
    match prng.below(20) {
        0 => 0,
        1..=9 => 1,
        10..=18 => 2 + prng.below(3) as usize,
        _ => 30,
    }
}

/// Names and count of a group; how many messages it has.
fn begin_group(out: &mut Vec<u8>, broken: Broken, lengths: &mut Lengths, prng: &mut Prng) -> usize {
    let mut name = || NAMES[prng.below(NAMES.len() as u64) as usize].as_bytes().to_vec();
    let (mut queue, mut partition) = (name(), name());
    match broken {
        Broken::Queue => queue.clear(),
        // At the budget, or a byte beyond it.
        Broken::Names => {
            partition = vec![b'p'; limits::NAMES_BYTES_MAX - queue.len()];
            partition.resize(partition.len() + prng.below(2) as usize, b'p');
        }
        _ if prng.chance(20) => partition.clear(),
        _ => {}
    }
    lengths.text(out, &queue);
    lengths.text(out, &partition);
    let messages = some(prng);
    lengths.long(out, messages);
    messages
}

fn payload(broken: Broken, prng: &mut Prng) -> Vec<u8> {
    let one_of = |n: usize, prng: &mut Prng| prng.below(n as u64) as usize;
    match broken {
        Broken::Payload => BAD_PAYLOADS[one_of(BAD_PAYLOADS.len(), prng)].to_vec(),
        _ if prng.chance(1) => format!("\"{}\"", "y".repeat(one_of(9_000, prng))).into_bytes(),
        _ => PAYLOADS[one_of(PAYLOADS.len(), prng)].as_bytes().to_vec(),
    }
}

fn transaction_id(broken: Broken, prng: &mut Prng) -> Vec<u8> {
    match broken {
        Broken::IdText => b"\xE9t\xE9".to_vec(),
        Broken::NoId => Vec::new(),
        _ => IDS_GIVEN[prng.below(IDS_GIVEN.len() as u64) as usize].as_bytes().to_vec(),
    }
}

fn frame(out: &mut Vec<u8>, broken: Broken, lengths: &mut Lengths, prng: &mut Prng) {
    let mut id: Vec<u8> = (0..16).map(|_| prng.next_u64() as u8).collect();
    (id[6], id[8]) = (id[6] & 0x0F | 0x70, id[8] & 0x3F | 0x80);
    let mut body = vec![0];
    match broken {
        Broken::Marks => body[0] = 1 << prng.below(8),
        Broken::Version => id[[6, 8][prng.below(2) as usize]] ^= 0xC0,
        _ => {}
    }
    body.extend(id);
    lengths.text(&mut body, &transaction_id(broken, prng));
    body.extend(payload(broken, prng));
    lengths.long(out, body.len());
    out.extend(body);
}

/// One frame of raw and run-length blocks, its content size in a field of any width.
fn by_hand(bytes: &[u8], prng: &mut Prng) -> Vec<u8> {
    let mut out = b"\x28\xB5\x2F\xFD".to_vec();
    let len = bytes.len() as u64;
    match prng.below(4) {
        0 if len < 256 => out.extend([0x20, len as u8]),
        1 if (256..65_792).contains(&len) => {
            out.push(0x60);
            out.extend(((len - 256) as u16).to_le_bytes());
        }
        2 => {
            // With a window, and a dictionary id of none in one byte.
            out.extend([0x81, 0x88, 0]);
            out.extend((len as u32).to_le_bytes());
        }
        _ => {
            out.push(0xE0);
            out.extend(len.to_le_bytes());
        }
    }
    let mut rest = bytes;
    loop {
        let run = rest.iter().take_while(|byte| Some(*byte) == rest.first()).count();
        let (kind, size) = match run {
            4.. => (1u32, run),
            _ => (0, rest.len().min(1 + prng.below(64) as usize)),
        };
        let last = u32::from(size == rest.len());
        out.extend_from_slice(&(last | kind << 1 | (size as u32) << 3).to_le_bytes()[..3]);
        out.extend_from_slice(&rest[..if kind == 1 { 1 } else { size }]);
        rest = &rest[size..];
        if last == 1 {
            return out;
        }
    }
}

/// Changes, takes, repeats and adds bytes.
fn damage(bytes: &mut Vec<u8>, prng: &mut Prng) {
    const PIECES: [&[u8]; 8] = [
        b"\0",
        b"\xff\xff\xff\xff",
        b"\x28\xB5\x2F\xFD",
        b"QPB1",
        b"\x01\0\0\0",
        b"\"",
        b"{}",
        b"\0\0\0\x80",
    ];
    for _ in 0..=prng.below(3) {
        let len = bytes.len() as u64;
        let at = prng.below(len + 1) as usize;
        let end = at + prng.below((len - at as u64).min(24) + 1) as usize;
        let piece = PIECES[prng.below(PIECES.len() as u64) as usize];
        match prng.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let copy = bytes[at..end].to_vec();
                let to = prng.below(len + 1) as usize;
                bytes.splice(to..to, copy);
            }
            3 => drop(bytes.splice(at..at, piece.iter().copied())),
            4 if at + piece.len() <= bytes.len() => {
                bytes[at..at + piece.len()].copy_from_slice(piece);
            }
            5 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1),
            _ if at < bytes.len() => bytes[at] ^= 1 << prng.below(8),
            _ => {}
        }
    }
}

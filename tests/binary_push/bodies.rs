//! Building binary bodies and reading framed answers, by code that shares nothing with the
//! broker's own.

/// One message of a group.
#[derive(Clone, Debug)]
pub struct Item {
    pub queue: String,
    pub partition: String,
    /// Empty: the broker mints one.
    pub transaction_id: String,
    pub payload: String,
}

pub fn item(queue: &str, partition: &str, transaction_id: &str, payload: &str) -> Item {
    let own = str::to_owned;
    Item {
        queue: own(queue),
        partition: own(partition),
        transaction_id: own(transaction_id),
        payload: own(payload),
    }
}

/// Neighbours of one partition.
fn groups(items: &[Item]) -> Vec<&[Item]> {
    items.chunk_by(|a, b| (&a.queue, &a.partition) == (&b.queue, &b.partition)).collect()
}

fn short(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).unwrap()
}

pub const ZSTD: u8 = 1;
pub const COUNTS: u8 = 2;
pub const IDS: u8 = 4;
pub const FRAMES: u8 = 8;

/// A plain body with these flags.
pub fn plain(items: &[Item], flags: u8) -> Vec<u8> {
    let mut rest = Vec::new();
    let groups = groups(items);
    rest.extend((groups.len() as u32).to_le_bytes());
    for group in groups {
        short(&mut rest, &group[0].queue);
        short(&mut rest, &group[0].partition);
        rest.extend((group.len() as u32).to_le_bytes());
        for item in group {
            if flags & IDS != 0 {
                short(&mut rest, &item.transaction_id);
            }
            rest.extend((item.payload.len() as u32).to_le_bytes());
            rest.extend(item.payload.as_bytes());
        }
    }
    let mut body = b"QPB1".to_vec();
    body.push(flags);
    if flags & ZSTD != 0 {
        body.extend((rest.len() as u32).to_le_bytes());
        rest = zstd(&rest);
    }
    body.extend(rest);
    body
}

/// A message id of version 7 that is `n`'s own.
pub fn message_id(n: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[0] = 1;
    id[1] = 0x90;
    id[6] = 0x70;
    id[7] = (n >> 56) as u8;
    id[8] = 0x80;
    id[9..].copy_from_slice(&n.to_be_bytes()[1..]);
    id
}

/// The frames of a group, with message ids counted up from `first_id`.
pub fn frames(items: &[Item], first_id: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for (n, item) in items.iter().enumerate() {
        let body = 1 + 16 + 2 + item.transaction_id.len() + item.payload.len();
        out.extend((body as u32).to_le_bytes());
        out.push(0);
        out.extend(message_id(first_id + n as u64));
        short(&mut out, &item.transaction_id);
        out.extend(item.payload.as_bytes());
    }
    out
}

/// A body of client-built frames, and the compressed bytes of each group.
pub fn framed(items: &[Item], flags: u8, first_id: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut body = b"QPB1".to_vec();
    body.push(flags | FRAMES);
    let groups = groups(items);
    body.extend((groups.len() as u32).to_le_bytes());
    let (mut packed, mut id) = (Vec::new(), first_id);
    for group in groups {
        short(&mut body, &group[0].queue);
        short(&mut body, &group[0].partition);
        body.extend((group.len() as u32).to_le_bytes());
        let z = zstd(&frames(group, id));
        id += group.len() as u64;
        body.extend((z.len() as u32).to_le_bytes());
        body.extend(&z);
        packed.push(z);
    }
    (body, packed)
}

/// A message as any pop gives it: partition, offset, transaction id, payload text.
pub type Seen = (String, u64, String, String);

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    fn short(&mut self) -> String {
        let len = self.number(2) as usize;
        String::from_utf8(self.take(len).to_vec()).unwrap()
    }
}

/// Reads a framed answer: its messages, and the stored bytes of each record.
pub fn read_framed(body: &[u8]) -> (Vec<Seen>, Vec<Vec<u8>>) {
    let mut r = Reader(body);
    assert_eq!(r.take(5), b"QPF1\x01");
    let own = r.number(4) as usize;
    let own: serde_json::Value = serde_json::from_slice(r.take(own)).unwrap();
    assert_eq!(own["frames"], true);
    let (_queue, lease, _group) = (r.short(), r.short(), r.short());
    assert!(lease.is_empty() || lease.len() == 36);
    let (mut seen, mut records) = (Vec::new(), Vec::new());
    for _ in 0..r.number(4) {
        r.number(8);
        let partition = r.short();
        let (start, end, attempt) = (r.number(8), r.number(8), r.number(4));
        assert_eq!(attempt, 1);
        for _ in 0..r.number(4) {
            let (base, _created, count) = (r.number(8), r.number(8), r.number(4));
            let (codec, len) = (r.number(1), r.number(4) as usize);
            let bytes = r.take(len);
            records.push(bytes.to_vec());
            let frames = if codec == 1 { zstd::decode_all(bytes).unwrap() } else { bytes.to_vec() };
            let mut f = Reader(&frames);
            for offset in base..base + count {
                let body_len = f.number(4) as usize;
                let mut body = Reader(f.take(body_len));
                assert_eq!(body.number(1), 0);
                body.take(16);
                let id = body.short();
                let payload = String::from_utf8(body.0.to_vec()).unwrap();
                if (start..=end).contains(&offset) {
                    seen.push((partition.clone(), offset, id, payload));
                }
            }
            assert!(f.0.is_empty());
        }
    }
    assert!(r.0.is_empty());
    (seen, records)
}

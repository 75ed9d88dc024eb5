//! PostgreSQL with the same transactions: a job's row is marked as done and the next job's row is
//! inserted, both by primary key, in one durable commit.
//!
//! The two statements are prepared; a transaction is sent as one piece of the extended protocol up
//! to its Sync, which makes it one implicit transaction and one round trip: the cheapest way that
//! PostgreSQL has. The table has its primary key and nothing else: no index that a worker would
//! need to find a job, and no claiming of one. It is filled without a checkpoint behind it, so that
//! no pages have to go into the log whole: PostgreSQL's best case throughout.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::args::Args;
use crate::payload::{self, Documents};
use crate::wire::{Batch, Call, Fault, Message, Name, Next, Wait, Wire, excerpt, read_more};

/// Version 3.0, and whom to be: a server that trusts who connects.
const PROTOCOL: i32 = 196_608;
const WHO: &[u8] = b"user\0postgres\0database\0postgres\0\0";

const FINISH: &str = "UPDATE job SET state = 1 WHERE id = $1 AND state = 0";
const ADD: &str = "INSERT INTO job (id, state, payload) VALUES ($1, 0, $2)";
const INT8: i32 = 20;
const JSON: i32 = 114;

pub struct Postgres {
    args: Args,
    documents: Documents,
    /// By connection: transactions sent.
    used: Vec<u64>,
}

impl Postgres {
    pub fn new(args: &Args, documents: Documents) -> Self {
        Self { args: args.clone(), documents, used: vec![0; args.connections as usize] }
    }

    fn connect(&self) -> Result<TcpStream, Fault> {
        let mut stream = TcpStream::connect(self.args.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        greet(&mut stream)?;
        Ok(stream)
    }

    fn jobs(&self) -> u64 {
        u64::from(self.args.connections) * self.args.transactions_each()
    }
}

impl Wire for Postgres {
    /// Refuses a server that would answer before the commit is on the disk, and fills the table.
    fn prepare(&mut self, _pushes: Option<u64>) -> Result<(), Fault> {
        let mut stream = self.connect()?;
        for setting in ["synchronous_commit", "fsync", "full_page_writes"] {
            let value = query(&mut stream, &format!("SHOW {setting}"))?;
            if value != ["on"] {
                return Err(Fault::new(format!("{setting} is {value:?}: commits are not durable")));
            }
        }
        let document = String::from_utf8_lossy(self.documents.get(0)).into_owned();
        for statement in [
            "DROP TABLE IF EXISTS job".to_owned(),
            "CREATE TABLE job (id bigint PRIMARY KEY, state smallint NOT NULL, payload json NOT NULL)"
                .to_owned(),
            format!(
                "INSERT INTO job SELECT n, 0, '{document}' FROM generate_series(0, {}) n",
                self.jobs() - 1
            ),
            "VACUUM ANALYZE job".to_owned(),
        ] {
            query(&mut stream, &statement)?;
        }
        Ok(())
    }

    fn open(&mut self, _name: Name, stream: &mut TcpStream) -> Result<(), Fault> {
        greet(stream)?;
        let mut out = Vec::new();
        for (name, text, types) in [("f", FINISH, &[INT8][..]), ("a", ADD, &[INT8, JSON])] {
            message(&mut out, b'P', |out| {
                text_field(out, name);
                text_field(out, text);
                int2(out, types.len());
                types.iter().for_each(|oid| out.extend_from_slice(&oid.to_be_bytes()));
            });
        }
        message(&mut out, b'S', |_| {});
        stream.write_all(&out)?;
        let answer = whole_answer(stream)?;
        fail_on_error(&answer)
    }

    fn has_more(&self, name: Name) -> bool {
        self.used[name.number as usize] < self.args.transactions_each()
    }

    fn push(&mut self, name: Name, batch: &Batch, out: &mut Vec<u8>) {
        let used = &mut self.used[name.number as usize];
        let id = u64::from(name.number) * self.args.transactions_each() + *used;
        *used += 1;
        out.clear();
        message(out, b'B', |out| bind(out, "f", id, None));
        message(out, b'E', execute);
        let document = self.documents.get(batch.first_seq);
        let next = id + self.jobs();
        message(out, b'B', |out| bind(out, "a", next, Some((document, batch.first_seq))));
        message(out, b'E', execute);
        message(out, b'S', |_| {});
    }

    fn pop(&mut self, _name: Name, _wait: Wait, _out: &mut Vec<u8>) {
        unreachable!("a transaction names its job by its key");
    }

    fn answer_len(
        &mut self,
        _name: Name,
        _call: Call,
        bytes: &[u8],
    ) -> Result<Option<usize>, Fault> {
        answer_len(bytes)
    }

    /// One row was marked, one added, and the commit is over.
    fn check_push(&mut self, _batch: &Batch, answer: &[u8]) -> Result<(), Fault> {
        fail_on_error(answer)?;
        let (mut tags, mut idle) = (Vec::new(), false);
        for (kind, body) in Messages(answer) {
            match kind {
                b'C' => tags.push(body),
                b'Z' => idle = body == b"I",
                _ => {}
            }
        }
        if tags == [&b"UPDATE 1\0"[..], b"INSERT 0 1\0"] && idle {
            return Ok(());
        }
        Err(Fault::new(format!("not one row marked and one added: {}", excerpt(answer))))
    }

    fn read_pop(
        &mut self,
        _name: Name,
        _answer: &[u8],
        _messages: &mut Vec<Message>,
        _ack: &mut Vec<u8>,
    ) -> Result<Next, Fault> {
        unreachable!("a transaction names its job by its key");
    }

    fn check_ack(&mut self, _count: usize, _answer: &[u8]) -> Result<(), Fault> {
        unreachable!("a transaction acks by itself");
    }

    fn settle(&mut self, transactions: u64) -> Result<(), Fault> {
        let jobs = self.jobs();
        let counts = query(
            &mut self.connect()?,
            &format!(
                "SELECT count(*) FILTER (WHERE state = 1 AND id < {jobs}), \
                 count(*) FILTER (WHERE state = 0 AND id >= {jobs}), count(*) FROM job"
            ),
        )?;
        let wanted = [transactions, transactions, jobs + transactions].map(|n| n.to_string());
        if counts == wanted {
            return Ok(());
        }
        Err(Fault::new(format!(
            "{transactions} transactions were answered; marked, added and all are {counts:?}"
        )))
    }
}

/// Begins a session.
fn greet(stream: &mut TcpStream) -> Result<(), Fault> {
    let mut hello = Vec::new();
    let length = 8 + WHO.len() as i32;
    hello.extend_from_slice(&length.to_be_bytes());
    hello.extend_from_slice(&PROTOCOL.to_be_bytes());
    hello.extend_from_slice(WHO);
    stream.write_all(&hello)?;
    let answer = whole_answer(stream)?;
    fail_on_error(&answer)?;
    // Type 0 of an authentication request: nothing is asked for.
    let trusted = Messages(&answer).any(|(kind, body)| kind == b'R' && body == [0; 4]);
    if trusted {
        Ok(())
    } else {
        Err(Fault::new("the server asks for a password: trust is needed"))
    }
}

/// Runs one statement before or after what is measured; the fields of its rows.
fn query(stream: &mut TcpStream, text: &str) -> Result<Vec<String>, Fault> {
    let mut out = Vec::new();
    message(&mut out, b'Q', |out| text_field(out, text));
    stream.write_all(&out)?;
    let answer = whole_answer(stream)?;
    fail_on_error(&answer)?;
    let mut fields = Vec::new();
    for (_, row) in Messages(&answer).filter(|(kind, _)| *kind == b'D') {
        let mut rest = row.get(2..).unwrap_or_default();
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            // -1 is a null, which none of our statements gives.
            let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
            let Some((field, behind)) = behind.split_at_checked(length) else { break };
            fields.push(String::from_utf8_lossy(field).into_owned());
            rest = behind;
        }
    }
    Ok(fields)
}

/// Reads until the server is ready for the next query, or has no more to say than an error.
fn whole_answer(stream: &mut TcpStream) -> Result<Vec<u8>, Fault> {
    let mut answer = Vec::new();
    loop {
        read_more(stream, &mut answer)?;
        let asks = Messages(&answer).any(|(kind, body)| kind == b'R' && body != [0; 4]);
        if asks || answer_len(&answer)?.is_some() {
            return Ok(answer);
        }
        // Before a session has begun an error ends it without a word.
        if Messages(&answer).next().is_some_and(|(kind, _)| kind == b'E') {
            return Ok(answer);
        }
    }
}

/// Up to and with ReadyForQuery.
fn answer_len(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let mut messages = Messages(bytes);
    for (kind, _) in messages.by_ref() {
        if kind == b'Z' {
            return Ok(Some(bytes.len() - messages.0.len()));
        }
    }
    // The length counts itself.
    match messages.0.get(1..5).and_then(|length| length.first_chunk::<4>()) {
        Some(length) if i32::from_be_bytes(*length) < 4 => {
            Err(Fault::new(format!("not PostgreSQL's protocol: {}", excerpt(bytes))))
        }
        _ => Ok(None),
    }
}

fn fail_on_error(answer: &[u8]) -> Result<(), Fault> {
    let Some((_, body)) = Messages(answer).find(|(kind, _)| *kind == b'E') else { return Ok(()) };
    let mut fields = body.split(|byte| *byte == 0);
    let text = fields.find_map(|field| field.strip_prefix(b"M")).unwrap_or(body);
    Err(Fault::new(format!("PostgreSQL: {}", String::from_utf8_lossy(text))))
}

/// Whole messages from the front: kind and body.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.0.split_first()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?.checked_sub(4)?;
        let (body, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*kind, body))
    }
}

fn message(out: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let length = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn text_field(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

fn int2(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as i16).to_be_bytes());
}

/// A portal of a prepared statement: the key in binary, the document as text.
fn bind(out: &mut Vec<u8>, statement: &str, id: u64, document: Option<(&[u8], u64)>) {
    text_field(out, "");
    text_field(out, statement);
    let count = 1 + usize::from(document.is_some());
    int2(out, count);
    int2(out, 1);
    if document.is_some() {
        int2(out, 0);
    }
    int2(out, count);
    out.extend_from_slice(&8i32.to_be_bytes());
    out.extend_from_slice(&id.cast_signed().to_be_bytes());
    if let Some((document, seq)) = document {
        out.extend_from_slice(&(document.len() as i32).to_be_bytes());
        let start = out.len();
        out.extend_from_slice(document);
        payload::write_seq(&mut out[start..][payload::seq_range()], seq);
    }
    int2(out, 0);
}

/// The portal without a name, all rows.
fn execute(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 5]);
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::wire::Role;

    fn wire() -> Postgres {
        let words =
            ["bench", "txn", "--peer", "postgres", "--connections", "2", "--messages", "10"];
        let args = Args::try_parse_from(words).unwrap();
        Postgres::new(&args, Documents::new(64, &mut lanemq::base::prng::Prng::new(1)))
    }

    const DONE: &[u8] = b"2\0\0\0\x04C\0\0\0\x0DUPDATE 1\x002\0\0\0\x04C\0\0\0\x0FINSERT 0 1\0\
        Z\0\0\0\x05I";

    #[test]
    fn an_answer_is_whole_with_its_last_byte_and_both_rows_count() {
        for end in 0..DONE.len() {
            assert_eq!(answer_len(&DONE[..end]).unwrap(), None);
        }
        assert_eq!(answer_len(&[DONE, b"2"].concat()).unwrap(), Some(DONE.len()));
        assert!(answer_len(b"H\0\0\0\x03").is_err());
        let (mut wire, batch) = (wire(), Batch { index: 0, first_seq: 0, count: 1, partition: 0 });
        wire.check_push(&batch, DONE).unwrap();
        for (from, to) in [(b"UPDATE 1", b"UPDATE 0"), (b"INSERT 0", b"DELETE 0")] {
            let at = DONE.windows(8).position(|eight| eight == from).unwrap();
            let mut bad = DONE.to_vec();
            bad[at..at + 8].copy_from_slice(to);
            assert!(wire.check_push(&batch, &bad).is_err());
        }
        let mut open = DONE.to_vec();
        *open.last_mut().unwrap() = b'T';
        assert!(wire.check_push(&batch, &open).is_err(), "a transaction that is still open");
        let error = b"E\0\0\0\x15SERROR\0Mno room\0\0";
        assert!(wire.check_push(&batch, error).unwrap_err().0.contains("no room"));
    }

    #[test]
    fn every_transaction_names_rows_of_its_own() {
        let mut wire = wire();
        let mut seen = std::collections::HashSet::new();
        let mut out = Vec::new();
        for number in 0..2 {
            let name = Name { role: Role::Producer, number };
            for first_seq in 0..5 {
                assert!(wire.has_more(name));
                let batch = Batch { index: 0, first_seq, count: 1, partition: 0 };
                wire.push(name, &batch, &mut out);
                let kinds: Vec<u8> = Messages(&out).map(|(kind, _)| kind).collect();
                assert_eq!(kinds, b"BEBES");
                for (_, bind) in Messages(&out).filter(|(kind, _)| *kind == b'B') {
                    let at = bind.windows(4).position(|four| four == 8i32.to_be_bytes()).unwrap();
                    let id = i64::from_be_bytes(*bind[at + 4..].first_chunk().unwrap());
                    assert!(seen.insert(id), "row {id} twice");
                }
            }
            assert!(!wire.has_more(name));
        }
        assert_eq!(seen.len(), 20);
        assert_eq!((seen.iter().min(), seen.iter().max()), (Some(&0), Some(&19)));
    }
}

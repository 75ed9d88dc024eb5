//! Redis streams with the same load: a partition is a stream, a push is a pipeline of `XADD`, a
//! pop is an `XREADGROUP`, an ack an `XACK` of all ids that it brought.
//!
//! Redis has nothing that hands out whichever partition is ready, so each consumer has its own
//! partitions. One that drains looks into one after the other, which gives answers of the size
//! that LaneMQ's have; one that waits asks for all of them.

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use crate::args::{Args, Workload};
use crate::http::write_number;
use crate::payload::{self, Documents};
use crate::wire::{Batch, Call, Fault, Message, Name, Next, Wait, Wire, excerpt, read_more};

const GROUP: &[u8] = b"bench";
const WAIT_MS: &[u8] = b"5000";

pub struct Redis {
    args: Args,
    queue: String,
    documents: Documents,
    /// By consumer: the partitions that it reads, those found empty by a draining pop left out.
    partitions: Vec<Vec<u32>>,
    /// By consumer: how many commands its last ack was made of.
    acks: Vec<usize>,
    ids: Vec<Range<usize>>,
}

impl Redis {
    pub fn new(args: &Args, queue: &str, documents: Documents) -> Self {
        let consumers = match args.workload {
            Workload::PushPop => args.consumers.unwrap_or(args.connections),
            Workload::Push | Workload::Pop | Workload::Jobs | Workload::Txn => args.connections,
        };
        let own = |consumer| (consumer..args.partitions).step_by(consumers as usize).collect();
        Self {
            args: args.clone(),
            queue: queue.to_owned(),
            documents,
            partitions: (0..consumers).map(own).collect(),
            acks: vec![0; consumers as usize],
            ids: Vec::new(),
        }
    }

    fn key(&self, partition: u32) -> String {
        format!("{}:p{partition:06}", self.queue)
    }

    /// One stream of a pop's answer: its messages, and the ack of them.
    fn read_stream(
        &mut self,
        reader: &mut Reader<'_>,
        messages: &mut Vec<Message>,
        ack: &mut Vec<u8>,
    ) -> Option<()> {
        reader.array()?;
        let key = reader.bulk()?;
        self.ids.clear();
        for _ in 0..reader.array()? {
            reader.array()?;
            let id = reader.bulk()?;
            self.ids.push(reader.range_of(id));
            reader.array()?;
            reader.bulk()?;
            messages.push(Message { seq: payload::read_seq(reader.bulk()?)?, place: None });
        }
        write_array(ack, 3 + self.ids.len());
        write_bulk(ack, b"XACK");
        write_bulk(ack, key);
        write_bulk(ack, GROUP);
        for id in &self.ids {
            write_bulk(ack, &reader.bytes[id.clone()]);
        }
        Some(())
    }
}

impl Wire for Redis {
    /// Makes the streams and their groups.
    fn prepare(&mut self, _pushes: Option<u64>) -> Result<(), Fault> {
        if self.args.workload == Workload::Push {
            return Ok(());
        }
        let mut request = Vec::new();
        for partition in 0..self.args.partitions {
            write_array(&mut request, 6);
            for word in [&b"XGROUP"[..], b"CREATE", self.key(partition).as_bytes(), GROUP] {
                write_bulk(&mut request, word);
            }
            write_bulk(&mut request, b"0");
            write_bulk(&mut request, b"MKSTREAM");
        }
        let mut stream = TcpStream::connect(self.args.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(&request)?;
        let mut answer = Vec::new();
        while values(&answer, self.args.partitions as usize)?.is_none() {
            read_more(&mut stream, &mut answer)?;
        }
        Ok(())
    }

    fn push(&mut self, _name: Name, batch: &Batch, out: &mut Vec<u8>) {
        out.clear();
        let per_partition = batch.count / self.args.spread;
        for k in 0..batch.count {
            let seq = batch.first_seq + u64::from(k);
            let partition = (batch.partition + k / per_partition) % self.args.partitions;
            write_array(out, 5);
            write_bulk(out, b"XADD");
            write_bulk(out, self.key(partition).as_bytes());
            write_bulk(out, b"*");
            write_bulk(out, b"d");
            let document = self.documents.get(seq);
            write_bulk(out, document);
            let start = out.len() - b"\r\n".len() - document.len();
            payload::write_seq(&mut out[start..][payload::seq_range()], seq);
        }
    }

    fn pop(&mut self, name: Name, wait: Wait, out: &mut Vec<u8>) {
        out.clear();
        let all = &self.partitions[name.number as usize];
        let asked = match wait {
            Wait::Yes => all.as_slice(),
            Wait::No => &all[..1.min(all.len())],
        };
        let keys: Vec<String> = asked.iter().map(|partition| self.key(*partition)).collect();
        let waiting = if wait == Wait::Yes { 2 } else { 0 };
        write_array(out, 7 + waiting + 2 * keys.len());
        write_bulk(out, b"XREADGROUP");
        write_bulk(out, b"GROUP");
        write_bulk(out, GROUP);
        write_bulk(out, format!("c{}", name.number).as_bytes());
        write_bulk(out, b"COUNT");
        write_bulk(out, self.args.pop_batch().to_string().as_bytes());
        if wait == Wait::Yes {
            write_bulk(out, b"BLOCK");
            write_bulk(out, WAIT_MS);
        }
        write_bulk(out, b"STREAMS");
        keys.iter().for_each(|key| write_bulk(out, key.as_bytes()));
        keys.iter().for_each(|_| write_bulk(out, b">"));
    }

    fn answer_len(&mut self, name: Name, call: Call, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let wanted = match call {
            Call::Push => self.args.batch as usize,
            Call::Pop => 1,
            Call::Ack => self.acks[name.number as usize],
        };
        values(bytes, wanted)
    }

    fn check_push(&mut self, _batch: &Batch, answer: &[u8]) -> Result<(), Fault> {
        // As many values as messages are there; one that is not an id begins with a minus.
        refuse_errors(answer)
    }

    fn read_pop(
        &mut self,
        name: Name,
        answer: &[u8],
        messages: &mut Vec<Message>,
        ack: &mut Vec<u8>,
    ) -> Result<Next, Fault> {
        ack.clear();
        let mut reader = Reader { bytes: answer, at: 0 };
        let streams = reader.array().ok_or_else(|| not_an_answer(answer))?;
        for _ in 0..streams {
            self.read_stream(&mut reader, messages, ack).ok_or_else(|| not_an_answer(answer))?;
        }
        self.acks[name.number as usize] = streams;
        if streams > 0 {
            return Ok(Next::Ack);
        }
        if self.args.workload != Workload::Pop {
            return Ok(Next::Again);
        }
        let own = &mut self.partitions[name.number as usize];
        own.remove(0);
        Ok(if own.is_empty() { Next::Done } else { Next::Again })
    }

    fn check_ack(&mut self, count: usize, answer: &[u8]) -> Result<(), Fault> {
        let numbers = answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let acked: Option<usize> = numbers
            .map(|line| {
                std::str::from_utf8(line.strip_prefix(b":")?).ok()?.trim().parse::<usize>().ok()
            })
            .sum();
        if acked == Some(count) {
            return Ok(());
        }
        Err(Fault::new(format!("{acked:?} of {count} messages were acked: {}", excerpt(answer))))
    }
}

fn not_an_answer(answer: &[u8]) -> Fault {
    Fault::new(format!("not an answer to XREADGROUP: {}", excerpt(answer)))
}

fn refuse_errors(answer: &[u8]) -> Result<(), Fault> {
    let mut lines = answer.split(|byte| *byte == b'\n');
    match lines.find(|line| line.first() == Some(&b'-')) {
        None => Ok(()),
        Some(line) => Err(Fault::new(format!("redis answered {}", excerpt(line)))),
    }
}

/// The length of `count` values at the begin of `bytes`; `None` while they are not all there.
fn values(bytes: &[u8], count: usize) -> Result<Option<usize>, Fault> {
    let mut reader = Reader { bytes, at: 0 };
    let mut left = count;
    while left > 0 {
        match bytes.get(reader.at) {
            None => return Ok(None),
            Some(b'*') => match reader.array() {
                Some(items) => left += items,
                None => return Ok(None),
            },
            Some(b'$') => {
                if reader.bulk().is_none() {
                    return Ok(None);
                }
            }
            Some(b':' | b'+') => {
                if reader.line().is_none() {
                    return Ok(None);
                }
            }
            Some(b'-') => return Err(Fault::new(format!("redis answered {}", excerpt(bytes)))),
            Some(_) => return Err(Fault::new(format!("not RESP: {}", excerpt(bytes)))),
        }
        left -= 1;
    }
    Ok(Some(reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The rest of a line, behind its first byte.
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let end = memchr::memchr(b'\n', rest)?;
        self.at += end + 1;
        rest.get(1..end.checked_sub(1)?)
    }

    fn number(&mut self, kind: u8) -> Option<i64> {
        if self.bytes.get(self.at) != Some(&kind) {
            return None;
        }
        std::str::from_utf8(self.line()?).ok()?.parse().ok()
    }

    /// How many values follow; 0 for none at all.
    fn array(&mut self) -> Option<usize> {
        self.number(b'*').map(|count| usize::try_from(count).unwrap_or(0))
    }

    fn bulk(&mut self) -> Option<&'a [u8]> {
        let Ok(len) = usize::try_from(self.number(b'$')?) else { return Some(b"") };
        let value = self.bytes.get(self.at..self.at + len)?;
        self.bytes.get(self.at + len..self.at + len + 2)?;
        self.at += len + 2;
        Some(value)
    }

    /// Where a value that was just read stands.
    fn range_of(&self, value: &[u8]) -> Range<usize> {
        let end = self.at - b"\r\n".len();
        end - value.len()..end
    }
}

fn write_array(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    write_number(out, count as u64);
    out.extend_from_slice(b"\r\n");
}

fn write_bulk(out: &mut Vec<u8>, value: &[u8]) {
    out.push(b'$');
    write_number(out, value.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::wire::Role;

    #[test]
    fn a_pop_is_whole_only_with_its_last_byte_and_is_read() {
        let answer = b"*1\r\n*2\r\n$4\r\nq:p1\r\n*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nd\r\n$26\r\n\
            {\"seq\":\"0000000000000005\"}\r\n*2\r\n$4\r\n2-10\r\n*2\r\n$1\r\nd\r\n$26\r\n\
            {\"seq\":\"0000000000000006\"}\r\n";
        for end in 0..answer.len() {
            assert_eq!(values(&answer[..end], 1).unwrap(), None);
        }
        assert_eq!(values(answer, 1).unwrap(), Some(answer.len()));
        let args = Args::try_parse_from(["bench", "pop", "--queue", "q"]).unwrap();
        let documents = Documents::new(64, &mut lanemq::base::prng::Prng::new(1));
        let mut redis = Redis::new(&args, "q", documents);
        let (mut messages, mut ack) = (Vec::new(), Vec::new());
        let name = Name { role: Role::Consumer, number: 0 };
        assert_eq!(redis.read_pop(name, answer, &mut messages, &mut ack).unwrap(), Next::Ack);
        let message = |seq| Message { seq, place: None };
        assert_eq!(messages, [message(5), message(6)]);
        let want = "*5\r\n$4\r\nXACK\r\n$4\r\nq:p1\r\n$5\r\nbench\r\n$3\r\n1-0\r\n$4\r\n2-10\r\n";
        assert_eq!(String::from_utf8(ack).unwrap(), want);
        redis.check_ack(2, b":2\r\n").unwrap();
        assert!(redis.check_ack(2, b":1\r\n").is_err());
        assert!(values(b"-ERR x\r\n", 1).is_err());
        let empty = redis.read_pop(name, b"*-1\r\n", &mut messages, &mut Vec::new()).unwrap();
        assert_eq!(empty, Next::Again);
    }
}

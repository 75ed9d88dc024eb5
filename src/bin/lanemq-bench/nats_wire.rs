//! NATS JetStream with the same load: a queue is a stream on disk, a partition a subject of it.
//!
//! A push publishes its messages back to back and waits for the server's word on each. Consumers
//! share one durable pull consumer. An ack is a publish that JetStream does not answer; a ping
//! behind the acks of a pop tells that they arrived.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use memchr::memmem;

use lanemq::base::prng::Prng;
use lanemq::base::uuid;

use crate::args::{Args, Workload, YesNo};
use crate::http::write_number;
use crate::payload::{self, Documents};
use crate::wire::{Batch, Call, Fault, Message, Name, Next, Role, Wait, Wire, excerpt, read_more};

const CONNECT: &str = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\
                       \"no_responders\":true,\"lang\":\"rust\",\"version\":\"1\"}\r\n";
const CONSUMER: &str = "bench";
const WAIT_NS: u64 = 5_000_000_000;

pub struct Nats {
    args: Args,
    queue: String,
    documents: Documents,
    /// For message ids; the wall clock in them is of no use here.
    prng: Prng,
}

impl Nats {
    pub fn new(args: &Args, queue: &str, documents: Documents, prng: Prng) -> Self {
        let queue = queue.to_owned();
        Self { args: args.clone(), queue, documents, prng }
    }

    fn write_publish(&mut self, subject: &str, inbox: &str, seq: u64, out: &mut Vec<u8>) {
        let document = self.documents.get(seq);
        if self.args.transaction_ids == YesNo::Yes {
            let id = uuid::to_string(&uuid::mint_v7(0, &mut self.prng));
            let header = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
            out.extend_from_slice(format!("HPUB {subject} {inbox} {} ", header.len()).as_bytes());
            write_number(out, (header.len() + document.len()) as u64);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(header.as_bytes());
        } else {
            out.extend_from_slice(format!("PUB {subject} {inbox} ").as_bytes());
            write_number(out, document.len() as u64);
            out.extend_from_slice(b"\r\n");
        }
        let start = out.len();
        out.extend_from_slice(document);
        payload::write_seq(&mut out[start..][payload::seq_range()], seq);
        out.extend_from_slice(b"\r\n");
    }

    /// A call of JetStream's own API before the clock starts.
    fn call(&self, stream: &mut TcpStream, subject: &str, body: &str) -> Result<(), Fault> {
        let inbox = "_INBOX.setup";
        let length = body.len();
        write!(stream, "SUB {inbox} 1\r\nPUB {subject} {inbox} {length}\r\n{body}\r\n")?;
        let mut answer = Vec::new();
        let text = loop {
            let mut reader = Reader { bytes: &answer, at: 0 };
            if let Some(Event::Message(message)) = reader.next_event()? {
                break String::from_utf8_lossy(message.payload).into_owned();
            }
            read_more(stream, &mut answer)?;
        };
        if text.contains("\"error\"") || text.is_empty() {
            return Err(Fault::new(format!("{subject} was answered {text:?}")));
        }
        write!(stream, "UNSUB 1\r\n")?;
        Ok(())
    }
}

fn inbox(name: Name) -> String {
    let kind = if name.role == Role::Producer { 'p' } else { 'c' };
    format!("_INBOX.{}.{kind}{}", std::process::id(), name.number)
}

impl Wire for Nats {
    fn prepare(&mut self, _pushes: Option<u64>) -> Result<(), Fault> {
        let mut stream = TcpStream::connect(self.args.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(CONNECT.as_bytes())?;
        let queue = &self.queue;
        if self.args.pushes_anything() {
            let body = format!(
                "{{\"name\":\"{queue}\",\"subjects\":[\"{queue}.>\"],\"storage\":\"file\",\
                 \"retention\":\"limits\",\"discard\":\"old\",\"num_replicas\":1,\"max_msgs\":-1,\
                 \"max_bytes\":-1,\"max_consumers\":-1,\"max_age\":0}}"
            );
            self.call(&mut stream, &format!("$JS.API.STREAM.CREATE.{queue}"), &body)?;
        }
        if self.args.workload != Workload::Push {
            let body = format!(
                "{{\"stream_name\":\"{queue}\",\"config\":{{\"durable_name\":\"{CONSUMER}\",\
                 \"deliver_policy\":\"all\",\"ack_policy\":\"explicit\",\"replay_policy\":\
                 \"instant\",\"ack_wait\":60000000000,\"max_ack_pending\":1000000}}}}"
            );
            let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{queue}.{CONSUMER}");
            self.call(&mut stream, &subject, &body)?;
        }
        Ok(())
    }

    fn greeting(&self, name: Name) -> Vec<u8> {
        format!("{CONNECT}SUB {} 1\r\n", inbox(name)).into_bytes()
    }

    fn push(&mut self, name: Name, batch: &Batch, out: &mut Vec<u8>) {
        out.clear();
        let inbox = inbox(name);
        let per_partition = batch.count / self.args.spread;
        let mut subject = String::new();
        for k in 0..batch.count {
            if k % per_partition == 0 {
                let partition = (batch.partition + k / per_partition) % self.args.partitions;
                subject = format!("{}.p{partition:06}", self.queue);
            }
            self.write_publish(&subject, &inbox, batch.first_seq + u64::from(k), out);
        }
    }

    fn pop(&mut self, name: Name, wait: Wait, out: &mut Vec<u8>) {
        out.clear();
        let batch = self.args.pop_batch();
        let body = match wait {
            Wait::Yes => format!("{{\"batch\":{batch},\"expires\":{WAIT_NS}}}"),
            Wait::No => format!("{{\"batch\":{batch},\"no_wait\":true}}"),
        };
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{CONSUMER}", self.queue);
        let line = format!("PUB {subject} {} {}\r\n{body}\r\n", inbox(name), body.len());
        out.extend_from_slice(line.as_bytes());
    }

    fn answer_len(
        &mut self,
        _name: Name,
        call: Call,
        bytes: &[u8],
    ) -> Result<Option<usize>, Fault> {
        let mut reader = Reader { bytes, at: 0 };
        let wanted = match call {
            Call::Push => self.args.batch,
            Call::Pop => self.args.pop_batch(),
            Call::Ack => 1,
        };
        let mut had = 0;
        while had < wanted {
            match (reader.next_event()?, call) {
                (None, _) => return Ok(None),
                (Some(Event::Message(message)), _) if message.is_status => break,
                (Some(Event::Message(_)), Call::Push | Call::Pop) => had += 1,
                (Some(Event::Pong), Call::Ack) => had += 1,
                (Some(Event::Pong | Event::Message(_)), _) => {}
            }
        }
        Ok(Some(reader.at))
    }

    fn check_push(&mut self, batch: &Batch, answer: &[u8]) -> Result<(), Fault> {
        let stored = memmem::find_iter(answer, b"\"seq\":").count();
        let refused = [&b"\"error\""[..], b"\"duplicate\""];
        if stored == batch.count as usize
            && refused.iter().all(|word| memmem::find(answer, word).is_none())
        {
            return Ok(());
        }
        Err(Fault::new(format!(
            "{stored} of {} messages were stored: {}",
            batch.count,
            excerpt(answer)
        )))
    }

    fn read_pop(
        &mut self,
        _name: Name,
        answer: &[u8],
        messages: &mut Vec<Message>,
        ack: &mut Vec<u8>,
    ) -> Result<Next, Fault> {
        ack.clear();
        let mut reader = Reader { bytes: answer, at: 0 };
        while let Some(event) = reader.next_event()? {
            let Event::Message(message) = event else { continue };
            if message.is_status {
                break;
            }
            let seq = payload::read_seq(message.payload)
                .ok_or_else(|| Fault::new(format!("not ours: {}", excerpt(message.payload))))?;
            messages.push(Message { seq, place: None });
            ack.extend_from_slice(b"PUB ");
            ack.extend_from_slice(message.reply);
            ack.extend_from_slice(b" 0\r\n\r\n");
        }
        if ack.is_empty() {
            return Ok(Next::Done);
        }
        ack.extend_from_slice(b"PING\r\n");
        Ok(Next::Ack)
    }

    fn check_ack(&mut self, _count: usize, _answer: &[u8]) -> Result<(), Fault> {
        // Acks have no answer; that the ping has one is all there is to know.
        Ok(())
    }
}

enum Event<'a> {
    Message(Delivered<'a>),
    Pong,
}

struct Delivered<'a> {
    reply: &'a [u8],
    payload: &'a [u8],
    /// It has a header and no payload: the end of what a pull brings.
    is_status: bool,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next message or pong, if it is all there. What else the server says between them, the
    /// pings it sends on its own among it, may stay unanswered for minutes.
    fn next_event(&mut self) -> Result<Option<Event<'a>>, Fault> {
        loop {
            let rest = &self.bytes[self.at..];
            let Some(end) = memchr::memchr(b'\n', rest) else { return Ok(None) };
            let line = rest[..end].trim_ascii_end();
            let body = self.at + end + 1;
            if line.starts_with(b"MSG ") || line.starts_with(b"HMSG ") {
                let whole = message(line, &self.bytes[body..]);
                let (delivered, len) =
                    whole.ok_or_else(|| Fault::new(format!("nats said {}", excerpt(line))))?;
                let Some(delivered) = delivered else { return Ok(None) };
                self.at = body + len;
                return Ok(Some(Event::Message(delivered)));
            }
            self.at = body;
            match line {
                b"PONG" => return Ok(Some(Event::Pong)),
                b"PING" | b"+OK" => {}
                _ if line.starts_with(b"INFO ") => {}
                _ => return Err(Fault::new(format!("nats said {}", excerpt(line)))),
            }
        }
    }
}

/// Reads `MSG subject sid [reply] len` or `HMSG subject sid [reply] header-len len` and the bytes
/// that follow, whose length is the second of the result. The outer `None`: not such a line; the
/// inner one: the message is not all there.
fn message<'a>(line: &'a [u8], rest: &'a [u8]) -> Option<(Option<Delivered<'a>>, usize)> {
    let headed = line.starts_with(b"H");
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<usize>().ok();
    let numbers = if headed { 2 } else { 1 };
    let len = number(words.last()?)?;
    let header_len = if headed { number(words[words.len() - 2])? } else { 0 };
    let reply = if words.len() == 4 + numbers { words[3] } else { b"" };
    let taken = len + b"\r\n".len();
    if rest.len() < taken {
        return Some((None, taken));
    }
    let payload = rest.get(header_len..len)?;
    let is_status = headed && payload.is_empty();
    Some((Some(Delivered { reply, payload, is_status }), taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_only_with_their_last_byte() {
        let first = b"INFO {}\r\nPING\r\nMSG q.p1 1 $JS.ACK.x 5\r\nhello\r\n";
        let bytes = [&first[..], b"PONG\r\nHMSG _INBOX 1 14 14\r\nNATS/1.0 404\r\n\r\n"].concat();
        let mut reader = Reader { bytes: &bytes, at: 0 };
        let mut next = || reader.next_event().unwrap().expect("it is all there");
        let Event::Message(message) = next() else { panic!("not a message") };
        assert_eq!((message.reply, message.payload), (&b"$JS.ACK.x"[..], &b"hello"[..]));
        assert!(matches!(next(), Event::Pong));
        let Event::Message(message) = next() else { panic!("not a status") };
        assert!(message.is_status && message.reply.is_empty());
        assert_eq!(reader.at, bytes.len());
        for end in 0..first.len() {
            assert!(Reader { bytes: &first[..end], at: 0 }.next_event().unwrap().is_none());
        }
        assert!(Reader { bytes: b"-ERR 'x'\r\n", at: 0 }.next_event().is_err());
    }
}

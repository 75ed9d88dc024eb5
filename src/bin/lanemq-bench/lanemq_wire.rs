//! LaneMQ's own wire: push bodies in three forms, pop answers in two.

use std::net::SocketAddr;

use memchr::memmem;

use lanemq::base::prng::Prng;

use crate::acks::Acks;
use crate::args::{Args, Form, YesNo};
use crate::http;
use crate::payload::{self, Documents};
use crate::pop_frames::PopFrames;
use crate::push_body::{self, PushBodies};
use crate::schedule::batch_at;
use crate::wire::{Batch, Call, Fault, Message, Name, Next, Place, Wait, Wire, excerpt};

/// How long a waiting pop waits. A consumer sends the next one then.
const WAIT_MS: u32 = 5_000;

pub struct Lanemq {
    counts: bool,
    frames_asked: bool,
    pop_batch: usize,
    bodies: PushBodies,
    args: Args,
    pops: [Vec<u8>; 2],
    acks: Acks,
    frames: PopFrames,
}

impl Lanemq {
    pub fn new(args: &Args, queue: &str, documents: Documents, prng: Prng) -> Result<Self, Fault> {
        let host = args.address;
        let content_type = match args.form {
            Form::Json => "application/json",
            Form::Binary | Form::Framed => "application/x-queen-push",
        };
        let settings = push_body::Settings {
            form: args.form,
            counts: args.counts,
            transaction_ids: args.transaction_ids == YesNo::Yes,
            queue: queue.to_owned(),
            spread: args.spread,
            partitions: args.partitions,
            head: http::post_head(host, "/api/v1/push", content_type),
        };
        Ok(Self {
            counts: args.counts && args.form != Form::Json,
            frames_asked: args.form == Form::Framed,
            pop_batch: args.pop_batch() as usize,
            bodies: PushBodies::new(settings, documents, prng)?,
            args: args.clone(),
            pops: [Wait::Yes, Wait::No].map(|wait| pop_request(args, host, queue, wait)),
            acks: Acks::new(host, args.pop_batch() == 1),
            frames: PopFrames::new()?,
        })
    }
}

fn pop_request(args: &Args, host: SocketAddr, queue: &str, wait: Wait) -> Vec<u8> {
    let mut path = format!("/api/v1/pop/queue/{queue}?batch={}", args.pop_batch());
    if args.form == Form::Framed {
        path.push_str("&frames=true");
    }
    if wait == Wait::Yes {
        path.push_str(&format!("&wait=true&timeout={WAIT_MS}"));
    }
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

impl Wire for Lanemq {
    fn prepare(&mut self, pushes: Option<u64>) -> Result<(), Fault> {
        let args = &self.args;
        self.bodies.prepare(pushes.unwrap_or(u64::MAX), |index| batch_at(args, index))
    }

    fn push(&mut self, _name: Name, batch: &Batch, out: &mut Vec<u8>) {
        self.bodies.write(batch, out);
    }

    fn pop(&mut self, _name: Name, wait: Wait, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.pops[usize::from(wait == Wait::No)]);
    }

    fn answer_len(
        &mut self,
        _name: Name,
        _call: Call,
        bytes: &[u8],
    ) -> Result<Option<usize>, Fault> {
        http::answer_len(bytes)
    }

    fn check_push(&mut self, batch: &Batch, answer: &[u8]) -> Result<(), Fault> {
        let body = http::body(answer, 201)?.unwrap_or_default();
        let right = if self.counts {
            let count = batch.count;
            let want =
                format!("{{\"count\":{count},\"queued\":{count},\"duplicate\":0,\"error\":0}}");
            body == want.as_bytes()
        } else {
            occurrences(body, b"\"status\":\"queued\"") == batch.count as usize
                && occurrences(body, b"\"status\":\"") == batch.count as usize
        };
        if right {
            return Ok(());
        }
        Err(Fault::new(format!(
            "not all of {} messages were queued, each as a new one: {}",
            batch.count,
            shown_status(body)
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
        let Some(body) = http::body(answer, 200)? else { return Ok(Next::Park) };
        let before = messages.len();
        self.acks.begin();
        if self.frames_asked {
            // An answer in JSON is allowed on this wire, but it is not what is to be measured.
            self.frames.read(body, messages, &mut self.acks)?;
        } else {
            read_json(body, messages, &mut self.acks)
                .ok_or_else(|| Fault::new(format!("not a pop's answer: {}", excerpt(body))))?;
        }
        let count = messages.len() - before;
        if count > self.pop_batch {
            return Err(Fault::new(format!("one pop brought {count} messages")));
        }
        if count == 0 {
            return Ok(Next::Park);
        }
        self.acks.finish(ack);
        Ok(Next::Ack)
    }

    fn check_ack(&mut self, count: usize, answer: &[u8]) -> Result<(), Fault> {
        let body = http::body(answer, 200)?.unwrap_or_default();
        let acked = occurrences(body, b"\"success\":true");
        if acked == count && occurrences(body, b"\"success\":") == count {
            return Ok(());
        }
        Err(Fault::new(format!("{acked} of {count} messages were acked: {}", excerpt(body))))
    }
}

/// Finds in a JSON answer what acks and checks need. It looks for the keys in the order in which
/// they come, which costs a fraction of parsing; the payloads are ours and hold none of them.
fn read_json(body: &[u8], messages: &mut Vec<Message>, acks: &mut Acks) -> Option<()> {
    let mut rest = after(body, b"\"messages\":[")?;
    while let Some(id_on) = after(rest, b"\"transactionId\":\"") {
        let (id, id_end) = until_quote(id_on)?;
        let data = after(id_end, b"\"data\":")?;
        let seq = payload::read_seq(data)?;
        let (partition, partition_end) = until_quote(after(data, b"\"partitionId\":\"")?)?;
        let (lease, lease_end) = until_quote(after(partition_end, b"\"leaseId\":\"")?)?;
        rest = after(lease_end, b"\"offset\":")?;
        let place = Place { partition_id: number(partition)?, offset: number(rest)? };
        messages.push(Message { seq, place: Some(place) });
        acks.add(id, place.partition_id, lease);
    }
    Some(())
}

fn after<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    memmem::find(bytes, key).map(|at| &bytes[at + key.len()..])
}

fn until_quote(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr::memchr(b'"', bytes).map(|at| bytes.split_at(at))
}

/// The decimal number that `bytes` begin with.
fn number(bytes: &[u8]) -> Option<u64> {
    let len = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&bytes[..len]).ok()?.parse().ok()
}

fn occurrences(bytes: &[u8], text: &[u8]) -> usize {
    memmem::find_iter(bytes, text).count()
}

/// The first result that is not `queued`, or the begin of the answer.
fn shown_status(body: &[u8]) -> String {
    let bad = [&b"\"status\":\"duplicate\""[..], b"\"status\":\"error\""];
    let at = bad.iter().filter_map(|text| memmem::find(body, text)).min();
    let start = at.map_or(0, |at| memchr::memrchr(b'{', &body[..at]).unwrap_or(0));
    excerpt(&body[start..])
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn wire(words: &str) -> Lanemq {
        let args = Args::try_parse_from(words.split(' ')).unwrap();
        let mut prng = Prng::new(1);
        let documents = Documents::new(64, &mut prng);
        Lanemq::new(&args, "q", documents, prng).unwrap()
    }

    fn http(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[test]
    fn only_a_push_of_all_new_messages_is_right() {
        let batch = Batch { index: 0, first_seq: 0, count: 2, partition: 0 };
        let item = |status: &str| format!("{{\"index\":0,\"status\":\"{status}\",\"offset\":1}}");
        let (queued, duplicate) = (item("queued"), item("duplicate"));
        let mut wire_one = wire("bench push --batch 2");
        let mut check = |status: &str, body: &str| wire_one.check_push(&batch, &http(status, body));
        check("201 Created", &format!("[{queued},{queued}]")).unwrap();
        for items in [
            format!("[{queued},{duplicate}]"),
            format!("[{queued},{}]", item("error")),
            format!("[{queued}]"),
            format!("[{queued},{queued},{queued}]"),
            "[]".to_owned(),
        ] {
            assert!(check("201 Created", &items).is_err(), "{items}");
        }
        let fault = check("429 Too Many Requests", "{}").unwrap_err();
        assert!(fault.0.contains("429"), "{fault}");
        let mut wire_two = wire("bench push --batch 2 --form binary --counts");
        let mut counts = |body: &str| wire_two.check_push(&batch, &http("201 Created", body));
        counts(r#"{"count":2,"queued":2,"duplicate":0,"error":0}"#).unwrap();
        assert!(counts(r#"{"count":2,"queued":1,"duplicate":1,"error":0}"#).is_err());
    }

    #[test]
    fn every_ack_must_succeed() {
        let mut wire = wire("bench pop --queue q");
        let yes = r#"{"index":0,"success":true,"error":null}"#;
        let no = r#"{"index":1,"success":false,"error":"invalid or expired lease"}"#;
        wire.check_ack(2, &http("200 OK", &format!("[{yes},{yes}]"))).unwrap();
        assert!(wire.check_ack(2, &http("200 OK", &format!("[{yes},{no}]"))).is_err());
        assert!(wire.check_ack(2, &http("200 OK", &format!("[{yes}]"))).is_err());
    }

    #[test]
    fn a_json_answer_is_read() {
        let body = br#"{"success":true,"queue":"q","partition":"p1","partitionId":"7",
            "leaseId":"L","consumerGroup":"__QUEUE_MODE__","messages":[
            {"id":"i","transactionId":"t-1","traceId":null,"data":{"seq":"00000000000000ff","n":1},
            "producerSub":null,"createdAt":"x","partitionId":"7","partition":"p1","leaseId":"L",
            "consumerGroup":"__QUEUE_MODE__","deliveryAttempt":1,"offset":10},
            {"id":"j","transactionId":"t-2","traceId":null,"data":{"seq":"0000000000000100"},
            "producerSub":null,"createdAt":"x","partitionId":"7","partition":"p1","leaseId":"L",
            "consumerGroup":"__QUEUE_MODE__","deliveryAttempt":1,"offset":11}],
            "partitionsClaimed":1}"#;
        let mut acks = Acks::new("127.0.0.1:1".parse().unwrap(), false);
        let mut messages = Vec::new();
        acks.begin();
        read_json(body, &mut messages, &mut acks).unwrap();
        let place = |offset| Some(Place { partition_id: 7, offset });
        let want = [Message { seq: 255, place: place(10) }, Message { seq: 256, place: place(11) }];
        assert_eq!(messages, want);
        let mut ack = Vec::new();
        acks.finish(&mut ack);
        let text = String::from_utf8(ack).unwrap();
        let end = concat!(
            r#"{"acknowledgments":[{"transactionId":"t-1","partitionId":"7","leaseId":"L"},"#,
            r#"{"transactionId":"t-2","partitionId":"7","leaseId":"L"}]}"#
        );
        assert!(text.ends_with(end), "{text}");
        assert!(read_json(&body[..400], &mut messages, &mut acks).is_none());
    }
}

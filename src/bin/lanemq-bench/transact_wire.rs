//! LaneMQ's transactions: each acks one message and pushes one to a partition of another shard.
//!
//! The leases are taken before the clock starts: every connection has a partition of its own,
//! filled and popped once, and its transactions ack what that pop brought, in order. So what is
//! measured is the transaction, not the pop in front of it. The next message goes to a partition
//! that lies on another shard, where there is more than one: the general case, and the dear one.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use memchr::memmem;
use serde_json::Value;

use lanemq::base::hash::partition_hash;

use crate::args::Args;
use crate::http;
use crate::payload::{self, Documents};
use crate::wire::{Batch, Call, Fault, Message, Name, Next, Wait, Wire, excerpt};

/// Messages of one push of the preparation.
const FILL: u64 = 1_000;
/// Longer than any run: a lease that ends in it would be the driver's fault.
const LEASE_SECONDS: u32 = 7_200;

pub struct Transactions {
    args: Args,
    queue: String,
    /// The queue of the next messages.
    next_queue: String,
    documents: Documents,
    head: Vec<u8>,
    body: Vec<u8>,
    /// By connection.
    leases: Vec<Lease>,
}

/// What one connection's transactions are made of.
struct Lease {
    partition_id: String,
    lease_id: String,
    /// The partition of the next messages.
    target: String,
    used: u64,
}

impl Transactions {
    pub fn new(args: &Args, queue: &str, documents: Documents) -> Self {
        Self {
            args: args.clone(),
            queue: queue.to_owned(),
            next_queue: format!("{queue}-next"),
            documents,
            head: http::post_head(args.address, "/api/v1/transaction", "application/json"),
            body: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// Fills the partition of one connection and leases all of it.
    fn lease(&self, stream: &mut TcpStream, number: u32, shards: u64) -> Result<Lease, Fault> {
        let (queue, partition) = (&self.queue, format!("p{number:06}"));
        let each = self.args.transactions_each();
        let head = http::post_head(self.args.address, "/api/v1/push", "application/json");
        for from in (0..each).step_by(FILL as usize) {
            let mut body = b"{\"items\":[".to_vec();
            for n in from..each.min(from + FILL) {
                if n > from {
                    body.push(b',');
                }
                let id = message_id(number, n);
                write!(
                    body,
                    "{{\"queue\":\"{queue}\",\"partition\":\"{partition}\",\"transactionId\":\
                     \"{id}\",\"payload\":"
                )?;
                self.write_document(&mut body, n);
                body.push(b'}');
            }
            body.extend_from_slice(b"]}");
            let mut request = Vec::new();
            http::write_post(&mut request, &head, &body);
            http::exchange(stream, &request, 201)?;
        }
        let target = format!(
            "/api/v1/pop/queue/{queue}/partition/{partition}?batch={each}\
             &leaseSeconds={LEASE_SECONDS}"
        );
        let address = self.args.address;
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let answer = json(&http::exchange(stream, request.as_bytes(), 200)?)?;
        let messages = answer["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let in_order = |(n, message): (usize, &Value)| {
            message["transactionId"] == message_id(number, n as u64)
        };
        if messages.len() as u64 != each || !messages.iter().enumerate().all(in_order) {
            let count = messages.len();
            return Err(Fault::new(format!(
                "{count} messages of {each} were leased, or not those"
            )));
        }
        let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        let own = partition_hash(queue, &partition) % shards;
        let elsewhere =
            |name: &String| shards == 1 || partition_hash(&self.next_queue, name) % shards != own;
        let mut names = (0..).map(|n| format!("p{number:06}-{n}"));
        let target = names.find(elsewhere).expect("the hash reaches every shard");
        let (partition_id, lease_id) = (text("partitionId"), text("leaseId"));
        Ok(Lease { partition_id, lease_id, target, used: 0 })
    }

    fn write_document(&self, out: &mut Vec<u8>, seq: u64) {
        let start = out.len();
        out.extend_from_slice(self.documents.get(seq));
        payload::write_seq(&mut out[start..][payload::seq_range()], seq);
    }

    /// How many messages a queue has had, and how many of them are settled.
    fn totals(&self, queue: &str) -> Result<(u64, u64), Fault> {
        let path = format!("/api/v1/resources/queues/{queue}");
        let totals = &json(&http::get(self.args.address, &path)?)?["totals"];
        let number = |key: &str| {
            let missing = || Fault::new(format!("the totals of {queue} have no {key}: {totals}"));
            totals[key].as_u64().ok_or_else(missing)
        };
        Ok((number("total")?, number("completed")?))
    }
}

/// Transaction id of a connection's n-th message.
fn message_id(number: u32, n: u64) -> String {
    format!("j{number}-{n}")
}

fn json(body: &[u8]) -> Result<Value, Fault> {
    let bad = |error| Fault::new(format!("not JSON ({error}): {}", excerpt(body)));
    serde_json::from_slice(body).map_err(bad)
}

impl Wire for Transactions {
    fn prepare(&mut self, _pushes: Option<u64>) -> Result<(), Fault> {
        let metrics = json(&http::get(self.args.address, "/metrics")?)?;
        let shards = metrics["shards"].as_array().map_or(0, Vec::len) as u64;
        if shards == 0 {
            return Err(Fault::new("the server's /metrics names no shards"));
        }
        let mut stream = TcpStream::connect(self.args.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        for number in 0..self.args.connections {
            let lease = self.lease(&mut stream, number, shards)?;
            self.leases.push(lease);
        }
        Ok(())
    }

    fn has_more(&self, name: Name) -> bool {
        self.leases[name.number as usize].used < self.args.transactions_each()
    }

    fn push(&mut self, name: Name, batch: &Batch, out: &mut Vec<u8>) {
        let number = name.number;
        let lease = &mut self.leases[number as usize];
        let (n, next_queue) = (lease.used, &self.next_queue);
        lease.used += 1;
        let Lease { partition_id, lease_id, target, .. } = &self.leases[number as usize];
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let id = message_id(number, n);
        let parts = [
            "{\"operations\":[{\"type\":\"ack\",\"transactionId\":\"",
            &id,
            "\",\"partitionId\":\"",
            partition_id,
            "\",\"leaseId\":\"",
            lease_id,
            "\",\"status\":\"completed\"},{\"type\":\"push\",\"items\":[{\"queue\":\"",
            next_queue,
            "\",\"partition\":\"",
            target,
            "\",\"transactionId\":\"",
            &id,
            "\",\"payload\":",
        ];
        parts.iter().for_each(|part| body.extend_from_slice(part.as_bytes()));
        self.write_document(&mut body, batch.first_seq);
        body.extend_from_slice(b"}]}]}");
        out.clear();
        http::write_post(out, &self.head, &body);
        self.body = body;
    }

    fn pop(&mut self, _name: Name, _wait: Wait, _out: &mut Vec<u8>) {
        unreachable!("transactions pop before the clock starts");
    }

    fn answer_len(
        &mut self,
        _name: Name,
        _call: Call,
        bytes: &[u8],
    ) -> Result<Option<usize>, Fault> {
        http::answer_len(bytes)
    }

    /// The bundle and both of its parts succeeded, and the message was a new one.
    fn check_push(&mut self, _batch: &Batch, answer: &[u8]) -> Result<(), Fault> {
        let body = http::body(answer, 200)?.unwrap_or_default();
        let count = |text: &[u8]| memmem::find_iter(body, text).count();
        let right = count(b"\"success\":true") == 3
            && count(b"\"success\":") == 3
            && count(b"\"duplicate\":true") == 0;
        if right { Ok(()) } else { Err(Fault::new(format!("not committed: {}", excerpt(body)))) }
    }

    fn read_pop(
        &mut self,
        _name: Name,
        _answer: &[u8],
        _messages: &mut Vec<Message>,
        _ack: &mut Vec<u8>,
    ) -> Result<Next, Fault> {
        unreachable!("transactions pop before the clock starts");
    }

    fn check_ack(&mut self, _count: usize, _answer: &[u8]) -> Result<(), Fault> {
        unreachable!("transactions ack by themselves");
    }

    fn settle(&mut self, transactions: u64) -> Result<(), Fault> {
        let leased = u64::from(self.args.connections) * self.args.transactions_each();
        let (total, completed) = self.totals(&self.queue)?;
        let (pushed, _) = self.totals(&self.next_queue)?;
        if (total, completed, pushed) == (leased, transactions, transactions) {
            return Ok(());
        }
        Err(Fault::new(format!(
            "{transactions} transactions were answered; {completed} of {total} messages are acked \
             and {pushed} pushed"
        )))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::wire::Role;

    fn wire() -> Transactions {
        let args = Args::try_parse_from(["bench", "txn", "--connections", "2"]).unwrap();
        let documents = Documents::new(64, &mut lanemq::base::prng::Prng::new(1));
        Transactions::new(&args, "q", documents)
    }

    #[test]
    fn a_transaction_is_one_ack_and_one_push() {
        let mut wire = wire();
        let lease = |n: u32| Lease {
            partition_id: format!("{n}7"),
            lease_id: "L".to_owned(),
            target: "t".to_owned(),
            used: 4,
        };
        wire.leases = vec![lease(0), lease(1)];
        let name = Name { role: Role::Producer, number: 1 };
        let batch = Batch { index: 9, first_seq: 9, count: 1, partition: 0 };
        let mut out = Vec::new();
        wire.push(name, &batch, &mut out);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /api/v1/transaction HTTP/1.1\r\n"), "{head}");
        let body: Value = serde_json::from_str(body).unwrap();
        let [ack, push] = body["operations"].as_array().unwrap().as_slice() else { panic!() };
        assert_eq!((&ack["type"], &ack["transactionId"]), (&"ack".into(), &"j1-4".into()));
        assert_eq!((&ack["partitionId"], &ack["leaseId"]), (&"17".into(), &"L".into()));
        let item = &push["items"][0];
        assert_eq!((&item["queue"], &item["partition"]), (&"q-next".into(), &"t".into()));
        assert_eq!(item["payload"]["seq"], "0000000000000009");
        assert_eq!(wire.leases[1].used, 5);
    }

    #[test]
    fn only_a_whole_commit_is_right() {
        let mut wire = wire();
        let batch = Batch { index: 0, first_seq: 0, count: 1, partition: 0 };
        let mut check = |body: &str| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            wire.check_push(&batch, format!("{head}{body}").as_bytes())
        };
        let (yes, repeat) = (r#"{"success":true}"#, r#"{"success":true,"duplicate":true}"#);
        check(&format!(r#"{{"success":true,"results":[{yes},{yes}]}}"#)).unwrap();
        for bad in [
            r#"{"success":false,"reason":"rejected_ack","error":"QTXN","results":[]}"#.to_owned(),
            format!(r#"{{"success":true,"results":[{yes}]}}"#),
            format!(r#"{{"success":true,"results":[{yes},{repeat}]}}"#),
            format!(r#"{{"success":true,"results":[{yes},{yes},{{"success":false}}]}}"#),
        ] {
            assert!(check(&bad).is_err(), "{bad}");
        }
    }
}

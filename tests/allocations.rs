//! Heap allocations of a push, a pop and an ack in steady state.
//!
//! Of a whole broker (`served`): no request makes one of its own. What is left are two for each
//! commit (its buffer and the handle), those of glommio's timers each 10 ms, those of tables that grow
//! with what is stored, and what one of the two shards sends the other more than it gets.
//!
//! And of the codec, proto and core alone, from the received bytes to the answer's bytes, over a disk
//! that answers at once. The bounds are what was measured. Two allocations of each request are the
//! test's own: the heap buffer of the one write it makes, in place of the executor's registered
//! memory. A push also makes the broker's tables grow now and then. What is left besides are lists of
//! a request of many messages: their number does not grow with the messages.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

#[path = "allocations/counted.rs"]
mod counted;
#[path = "../benches/harness/mod.rs"]
mod harness;
#[path = "allocations/served.rs"]
mod served;
mod support;

use counted::allocations;
use harness::Harness;
use lanemq::http::{Decoder, Limits, Request, Step};
use lanemq::model::command::{Command, PopTarget, Subscription};
use lanemq::model::reply::Reply;
use lanemq::proto::pop::Opener;
use lanemq::proto::query::Query;
use lanemq::proto::{ack, pop, push};

/// Requests before measuring, so that every table and buffer has its size, and measured ones.
const WARM: usize = 300;
const MEASURED: usize = 200;

struct Server {
    core: Harness,
    decoder: Decoder,
    opener: Opener,
    out: Vec<u8>,
}

impl Server {
    fn new() -> Self {
        Self {
            core: Harness::new(4 << 20),
            decoder: Decoder::new(Limits::default()),
            opener: Opener::default(),
            out: Vec::with_capacity(1 << 20),
        }
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Request {
        loop {
            match self.decoder.next() {
                Step::Request(request) => return request,
                Step::NeedMore => {
                    let space = self.decoder.recv_space();
                    let take = space.len().min(bytes.len());
                    space[..take].copy_from_slice(&bytes[..take]);
                    bytes = &bytes[take..];
                    self.decoder.received(take);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let request = self.receive(bytes);
        let items = push::decode(&request.body).unwrap();
        let Reply::Push(results) = self.core.run(Command::Push { items: &items, producer: None })
        else {
            panic!("a push")
        };
        self.out.clear();
        push::encode(push::labels(&items), &results, &mut self.out);
        self.core.spent(Reply::Push(results));
    }

    fn pop(&mut self, bytes: &[u8]) {
        let request = self.receive(bytes);
        let command = {
            let query: Query<'_> = request.target.query().collect::<Result<_, _>>().unwrap();
            pop::decode(PopTarget::Queue("q".into()), &query, Subscription::New).unwrap().request
        };
        let Reply::Pop(reply) = self.core.run(Command::Pop(command)) else { panic!("a pop") };
        self.out.clear();
        pop::encode_json(&reply, false, &mut self.opener, &mut self.out).unwrap();
        self.core.spent(Reply::Pop(reply));
    }

    fn ack(&mut self, bytes: &[u8]) {
        let request = self.receive(bytes);
        let acks = ack::decode_batch(&request.body).unwrap();
        let Reply::Ack(results) = self.core.run(Command::Ack(&acks.request())) else {
            panic!("an ack")
        };
        assert!(results.iter().all(|result| result.success));
        self.out.clear();
        ack::encode(&acks.items, &results, &mut self.out);
        self.core.spent(Reply::Ack(results));
    }
}

fn post(target: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {target} HTTP/1.1\r\nHost: l\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

/// A pushed message of the queue `q`.
fn item(partition: usize, id: &str) -> String {
    let payload = "x".repeat(200);
    format!(
        "{{\"queue\":\"q\",\"partition\":\"p{partition}\",\
         \"transactionId\":\"{id}\",\"payload\":{{\"pad\":\"{payload}\"}}}}"
    )
}

/// The ack of a popped message.
fn ack(message: &serde_json::Value) -> String {
    format!(
        "{{\"transactionId\":{},\"partitionId\":{},\"leaseId\":{},\"status\":\"completed\"}}",
        message["transactionId"], message["partitionId"], message["leaseId"]
    )
}

/// Allocations of one push, pop and ack of `batch` messages each, on average.
fn measure(batch: usize) -> [f64; 3] {
    let mut server = Server::new();
    let mut sums = [0usize; 3];
    let pop = format!("GET /api/v1/pop/queue/q?batch={batch} HTTP/1.1\r\nHost: l\r\n\r\n");
    for round in 0..WARM + MEASURED {
        let partition = round % 20;
        let items: Vec<String> =
            (0..batch).map(|n| item(partition, &format!("{round}-{n}"))).collect();
        let body = post("/api/v1/push", &format!("{{\"items\":[{}]}}", items.join(",")));
        let pushed = allocations(|| server.push(&body));
        let popped = allocations(|| server.pop(pop.as_bytes()));
        let answer: serde_json::Value = serde_json::from_slice(&server.out).unwrap();
        let acks: Vec<String> = answer["messages"].as_array().unwrap().iter().map(ack).collect();
        assert_eq!(acks.len(), batch);
        let body =
            post("/api/v1/ack/batch", &format!("{{\"acknowledgments\":[{}]}}", acks.join(",")));
        let acked = allocations(|| server.ack(&body));
        if round >= WARM {
            for (sum, one) in sums.iter_mut().zip([pushed, popped, acked]) {
                *sum += one;
            }
        }
    }
    sums.map(|sum| sum as f64 / MEASURED as f64)
}

#[test]
fn a_requests_allocations_do_not_grow_with_its_messages() {
    counted::exempt();
    let (one, hundred) = (measure(1), measure(100));
    println!("allocations of a push, pop and ack of 1 message {one:.1?}, of 100 {hundred:.1?}");
    // Lists of more than a few are not kept inline, which is what a hundred may cost more.
    let bounds = [("push", 3.0, 6.5), ("pop", 2.5, 1.0), ("ack", 2.5, 9.0)];
    for (at, (name, most, growth)) in bounds.into_iter().enumerate() {
        assert!(one[at] <= most, "{name} of one message: {}", one[at]);
        let grown = hundred[at] - one[at];
        assert!(grown <= growth, "{name} of a hundred messages: {grown} more");
    }
}

#[test]
fn no_request_to_a_whole_broker_needs_memory_of_its_own() {
    let served = served::measure();
    for (name, allocations) in ["push", "pop", "ack"].iter().zip(&served) {
        let served::Allocations { mean, quartile } = allocations;
        println!("allocations of a {name}, served: {mean:.2}, at the first quartile {quartile:.2}");
    }
    // Four to six in a round of 32 requests: see above. One for every other request is over this.
    for (name, allocations) in ["push", "pop", "ack"].iter().zip(&served) {
        assert!(allocations.quartile < 0.5, "{name}: {allocations:?}");
    }
}

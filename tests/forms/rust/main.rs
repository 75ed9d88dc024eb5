//! The published Rust client judges the forms of the wire: what is pushed in each form, at once
//! and through the client's buffer, must be consumed in each form exactly as JSON alone gives it.
//!
//! usage: forms HOST:PORT (run by `scripts/forms.sh`, which builds it outside of the source tree)
//!
//! The client falls back to JSON where a form is not served and says nothing, so it talks through
//! a relay that counts the bodies of each form on the wire. That the broker kept the client's
//! compressed groups is read from its own counter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_mq::{BufferOptions, Config, Queen, StopReason};
use queen_mq::{Message, PushItem, PushResult, PushStatus, QueueOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MESSAGES: usize = 120;
/// Messages of one push.
const CHUNK: usize = 45;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Push {
    Json,
    Binary,
    Compressed,
}

/// One way through the broker.
#[derive(Clone, Copy, Debug)]
struct Way {
    push: Push,
    buffered: bool,
    framed: bool,
    encrypted: bool,
}

impl Way {
    fn all() -> Vec<Self> {
        let mut ways = Vec::new();
        // JSON in and out comes first: it is what the others are held against.
        for framed in [false, true] {
            for buffered in [false, true] {
                for push in [Push::Json, Push::Binary, Push::Compressed] {
                    ways.push(Self { push, buffered, framed, encrypted: false });
                }
            }
        }
        for push in [Push::Json, Push::Compressed] {
            ways.push(Self { push, buffered: false, framed: true, encrypted: true });
        }
        ways
    }

    fn queue(self) -> String {
        let Self { push, buffered, framed, encrypted } = self;
        format!("rust.forms.{push:?}-{buffered}-{framed}-{encrypted}")
    }

    fn config(self, address: &str) -> Config {
        Config::new(format!("http://{address}"))
            .binary_push(self.push != Push::Json)
            .push_compression(self.push == Push::Compressed)
            .framed_pop(self.framed)
    }
}

/// What went over the wire since the start.
#[derive(Default)]
struct Seen {
    binary: AtomicU64,
    compressed: AtomicU64,
    framed: AtomicU64,
}

impl Seen {
    fn counts(&self) -> [u64; 3] {
        [&self.binary, &self.compressed, &self.framed].map(|count| count.load(Relaxed))
    }
}

/// Listens on a port of its own and passes every byte on, counting marks that no payload has.
async fn relay(broker: String, seen: Arc<Seen>) -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (broker, seen) = (broker.clone(), seen.clone());
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(&broker).await else { return };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (client_reads, client_writes) = client.into_split();
                let (server_reads, server_writes) = server.into_split();
                let requests: [Mark<'_>; 2] =
                    [(b"QPB1", &seen.binary), (b"QPB1\x08", &seen.compressed)];
                let answers: [Mark<'_>; 1] = [(b"QPF1\x01", &seen.framed)];
                tokio::join!(
                    pass(client_reads, server_writes, &requests),
                    pass(server_reads, client_writes, &answers),
                );
            });
        }
    });
    Ok(address)
}

type Mark<'a> = (&'static [u8], &'a AtomicU64);

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, marks: &[Mark<'_>]) {
    const LONGEST: usize = 5;
    let mut buffer = vec![0; LONGEST + (64 << 10)];
    // The last bytes lie in front of the next, so that a mark may be cut anywhere.
    while let Ok(len @ 1..) = from.read(&mut buffer[LONGEST..]).await {
        for (mark, count) in marks {
            let new = &buffer[LONGEST + 1 - mark.len()..LONGEST + len];
            let found = new.windows(mark.len()).filter(|bytes| bytes == mark).count();
            count.fetch_add(found as u64, Relaxed);
        }
        if to.write_all(&buffer[LONGEST..LONGEST + len]).await.is_err() {
            return;
        }
        buffer.copy_within(len..LONGEST + len, 0);
    }
    let _ = to.shutdown().await;
}

/// A counter of the broker, over its shards.
async fn metric(broker: &str, key: &str) -> Result<u64, Failure> {
    let mut socket = TcpStream::connect(broker).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {broker}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or("an answer without a body")?;
    let body: Value = serde_json::from_str(body)?;
    let shards = body["shards"].as_array().ok_or("metrics without shards")?;
    Ok(shards.iter().map(|shard| shard[key].as_u64().unwrap_or_default()).sum())
}

/// Odd payloads among plain ones, in runs over partitions of both shards.
fn items(queue: &str) -> Vec<PushItem> {
    let odd = [
        json!(null),
        json!(0),
        json!(""),
        json!([]),
        json!({}),
        json!(-1.5e300),
        json!(u64::MAX),
        json!("é 🦀 \u{0} \" \\ \u{2028}"),
        json!({"a": {"b": [[[null, true]]]}, "": "x".repeat(9_000)}),
        json!({"encrypted": "eA==", "iv": "eA==", "authTag": "eA=="}),
    ];
    let partitions = ["one", "two", "città/3", "four", "one", "five"];
    (0..MESSAGES)
        .map(|n| PushItem {
            queue: queue.to_owned(),
            partition: Some(partitions[n / 7 % partitions.len()].to_owned()),
            payload: odd.get(n % 13).cloned().unwrap_or_else(|| json!({ "n": n })),
            transaction_id: Some(format!("id \"{n}\" é")),
        })
        .collect()
}

/// A message as it must be whatever way it came: partition, place in it, transaction id, data.
type Row = (String, usize, String, Value);

fn wanted(items: &[PushItem]) -> Vec<Row> {
    let messages = items.iter().map(|item| {
        let id = item.transaction_id.clone().unwrap_or_default();
        (item.partition.clone().unwrap_or_default(), id, item.payload.clone())
    });
    rows(messages)
}

fn rows(messages: impl Iterator<Item = (String, String, Value)>) -> Vec<Row> {
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let mut rows: Vec<Row> = messages
        .map(|(partition, id, data)| {
            let place = next.entry(partition.clone()).or_default();
            *place += 1;
            (partition, *place - 1, id, data)
        })
        .collect();
    rows.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    rows
}

/// Pushes at once, then again: the second time every message is a duplicate of the first.
async fn push_direct(queen: &Queen, items: &[PushItem]) -> Result<Vec<PushResult>, Failure> {
    let queue = queen.queue(&items[0].queue);
    let mut results = Vec::new();
    for chunk in items.chunks(CHUNK) {
        results.extend(queue.push_items(chunk.to_vec()).await?);
    }
    let queued = results.iter().all(|r| r.status == PushStatus::Queued);
    check(queued && results.len() == items.len(), || format!("pushes gave {results:?}"))?;
    for (chunk, first) in items.chunks(CHUNK).zip(results.chunks(CHUNK)) {
        let again = queue.push_items(chunk.to_vec()).await?;
        let named = again.iter().zip(first).all(|(again, first)| {
            again.status == PushStatus::Duplicate
                && (&again.message_id, again.offset) == (&first.message_id, first.offset)
        });
        check(named && again.len() == first.len(), || format!("repeats gave {again:?}"))?;
    }
    Ok(results)
}

async fn push_buffered(queen: &Queen, items: &[PushItem]) -> Result<(), Failure> {
    let options = BufferOptions { message_count: 16, ..BufferOptions::default() };
    let mut touched = Vec::new();
    for run in items.chunk_by(|a, b| a.partition == b.partition) {
        let partition = run[0].partition.clone().unwrap_or_default();
        let queue = queen.queue(&run[0].queue).partition(&partition).buffer(options);
        queue.push_items(run.to_vec()).await?;
        touched.push(queue);
    }
    for queue in touched {
        queue.flush_buffer().await?;
    }
    let waiting = queen.buffer_stats().total_buffered_messages;
    check(waiting == 0, || format!("{waiting} messages are still in the buffer"))
}

/// Consumes with acks until all have come, and looks that nothing is left.
async fn consume(queen: &Queen, way: Way) -> Result<Vec<Message>, Failure> {
    let got: Arc<Mutex<Vec<Message>>> = Arc::default();
    let queue = queen
        .queue(way.queue())
        .batch(17)
        .partitions(3)
        .limit(MESSAGES as u64)
        .idle(Duration::from_secs(20))
        .poll_timeout(Duration::from_millis(500));
    let into = got.clone();
    // One ack for each batch, or one for each message.
    let summary = if way.buffered {
        let handler = move |messages: Vec<Message>| {
            into.lock().expect("no handler panics").extend(messages);
            async { Ok::<(), String>(()) }
        };
        queue.consume_batch(handler).await?
    } else {
        let handler = move |message: Message| {
            into.lock().expect("no handler panics").push(message);
            async { Ok::<(), String>(()) }
        };
        queue.concurrency(2).consume(handler).await?
    };
    let all = MESSAGES as u64;
    let whole = (summary.processed, summary.acked, summary.nacked) == (all, all, 0)
        && summary.stopped_by == StopReason::Limit;
    check(whole, || format!("the consumer ended with {summary:?}"))?;
    let left = queen.queue(way.queue()).batch(10).partitions(9).wait(false).pop().await?;
    check(left.is_empty(), || format!("consumed and acked, yet left: {left:?}"))?;
    let got = std::mem::take(&mut *got.lock().expect("no handler panics"));
    Ok(got)
}

fn check(right: bool, wrong: impl FnOnce() -> String) -> Result<(), Failure> {
    if right { Ok(()) } else { Err(wrong().into()) }
}

struct Judge {
    broker: String,
    relayed: String,
    seen: Arc<Seen>,
}

impl Judge {
    /// Goes one way; the messages as they came out.
    async fn go(&self, way: Way) -> Result<Vec<Row>, Failure> {
        let queen = Queen::connect(way.config(&self.relayed))?;
        let items = items(&way.queue());
        if way.encrypted {
            let options =
                QueueOptions { encryption_enabled: Some(true), ..QueueOptions::default() };
            queen.queue(way.queue()).configure(options).await?;
        }
        let (kept, recoded) = (
            metric(&self.broker, "groupsKept").await?,
            metric(&self.broker, "groupsRecoded").await?,
        );
        let before = self.seen.counts();
        let results = match way.buffered {
            true => push_buffered(&queen, &items).await.map(|()| Vec::new())?,
            false => push_direct(&queen, &items).await?,
        };
        let kept = metric(&self.broker, "groupsKept").await? - kept;
        let recoded = metric(&self.broker, "groupsRecoded").await? - recoded;
        let messages = consume(&queen, way).await?;
        queen.close().await?;
        self.on_the_wire(way, before)?;
        let keeps = way.push == Push::Compressed && !way.encrypted;
        let recodes = way.push == Push::Compressed && way.encrypted;
        check((kept > 0, recoded > 0) == (keeps, recodes), || {
            format!("{kept} groups were kept and {recoded} written anew")
        })?;
        self.as_answered(&messages, &results)?;
        Ok(rows(messages.into_iter().map(|m| (m.partition, m.transaction_id, m.data))))
    }

    /// The client really spoke the form that it was asked to.
    fn on_the_wire(&self, way: Way, before: [u64; 3]) -> Result<(), Failure> {
        let now = self.seen.counts();
        let spoken = [0, 1, 2].map(|at| now[at] > before[at]);
        let wanted = [
            way.push != Push::Json,
            way.push == Push::Compressed,
            // A framed answer cannot carry what is encrypted: the broker answers in JSON.
            way.framed && !way.encrypted,
        ];
        check(spoken == wanted, || {
            format!("binary, compressed, framed on the wire: {spoken:?}, not {wanted:?}")
        })
    }

    /// Each message has the id that its push was told.
    fn as_answered(&self, messages: &[Message], results: &[PushResult]) -> Result<(), Failure> {
        let told: BTreeMap<&str, &str> =
            results.iter().map(|r| (r.transaction_id.as_str(), r.message_id.as_str())).collect();
        let other = messages.iter().find(|m| {
            told.get(m.transaction_id.as_str()).is_some_and(|id| *id != m.id)
                || m.trace_id.is_some()
                || m.producer_sub.is_some()
        });
        check(other.is_none(), || format!("not as it was answered: {other:?}"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let broker = std::env::args().nth(1).ok_or("usage: forms HOST:PORT")?;
    let seen = Arc::new(Seen::default());
    let relayed = relay(broker.clone(), seen.clone()).await?;
    let judge = Judge { broker, relayed, seen };
    let mut json: Option<Vec<Row>> = None;
    let ways = Way::all();
    for way in &ways {
        let rows = judge.go(*way).await.map_err(|why| format!("{way:?}: {why}"))?;
        let reference = json.get_or_insert_with(|| wanted(&items(&way.queue())));
        let other = rows.iter().zip(&*reference).find(|(row, wanted)| row != wanted);
        check(other.is_none() && rows.len() == reference.len(), || {
            format!("{way:?}: {} messages, the first that differs: {other:?}", rows.len())
        })?;
        *reference = rows;
    }
    println!("rust: {} ways of {MESSAGES} messages, all as JSON gives them", ways.len());
    Ok(())
}

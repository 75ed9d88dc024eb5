//! What the command line may say, checked once.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Loads a broker and prints what it did and what that cost the server. No figure is printed
/// unless every answer was right.
#[derive(Clone, Debug, Parser)]
#[command(name = "lanemq-bench", version)]
pub struct Args {
    pub workload: Workload,

    /// Where the server listens.
    #[arg(long, default_value = "127.0.0.1:6632")]
    pub address: SocketAddr,

    /// What the server is.
    #[arg(long, value_enum, default_value_t = Peer::Lanemq)]
    pub peer: Peer,

    /// How messages look on LaneMQ's wire. `framed` pushes frames built here, each partition's
    /// as one zstd frame, and pops stored records.
    #[arg(long, value_enum, default_value_t = Form::Json)]
    pub form: Form,

    /// Binary and framed pushes ask for counts instead of one answer for each message.
    #[arg(long)]
    pub counts: bool,

    /// Connections of each kind; `push-pop` opens as many producers as consumers.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,

    /// Consumers of `push-pop`, if not as many as producers.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub consumers: Option<u32>,

    /// Messages of a push.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,

    /// Most messages of a pop; as many as of a push if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub pop_batch: Option<u32>,

    /// Bytes of a payload, which is one JSON document.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(32..=16_777_216))]
    pub size: u32,

    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub partitions: u32,

    /// Partitions that one push is for.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub spread: u32,

    /// The queue; a new one with a random name if not given.
    #[arg(long)]
    pub queue: Option<String>,

    /// Messages to push, rounded up to whole batches. For `pop`: how many there must be.
    #[arg(long, conflicts_with = "seconds")]
    pub messages: Option<u64>,

    /// How long to push; 5 if neither this nor a number of messages is given.
    #[arg(long)]
    pub seconds: Option<f64>,

    /// Messages a second, sent on a fixed schedule whether or not the server keeps up; latency
    /// then counts from the intended time. Without it each connection sends when it is answered.
    #[arg(long)]
    pub rate: Option<f64>,

    /// Whether messages bring their own transaction ids. Framed ones always do.
    #[arg(long, value_enum, default_value_t = YesNo::Yes)]
    pub transaction_ids: YesNo,

    /// Messages answered before measuring begins.
    #[arg(long, default_value_t = 0)]
    pub warmup: u64,

    /// The server's process; found by its listening port if not given.
    #[arg(long)]
    pub pid: Option<u32>,

    /// Counts the server's system calls with `perf`, which makes each a little slower.
    #[arg(long)]
    pub syscalls: bool,

    /// Prints the figures once more as one line of JSON, the last.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Pushes only.
    Push,
    /// Pops and acks what a queue holds.
    Pop,
    /// Both at once; ends when everything pushed is acked.
    PushPop,
    /// Each connection in turn pushes one message, pops one and acks it.
    Jobs,
    /// Transactions: each acks one message, leased before the clock starts, and pushes one to
    /// another partition. With --seconds at most 10,000 for each connection.
    Txn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Peer {
    Lanemq,
    /// Streams; a partition is a key.
    Redis,
    /// JetStream; a partition is a subject.
    Nats,
    /// Transactions only: a row marked and a row inserted in one commit.
    Postgres,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Form {
    Json,
    Binary,
    Framed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum YesNo {
    Yes,
    No,
}

/// Most messages that one pop leases.
const TRANSACTIONS_EACH_MAX: u64 = 10_000;

impl Args {
    /// Reads the process's own arguments; ends the process where they make no sense.
    pub fn from_process() -> Self {
        let mut args = Self::parse();
        if matches!(args.workload, Workload::Jobs | Workload::Txn) {
            args.batch = 1;
            args.pop_batch = Some(1);
        }
        if let Err(text) = args.check() {
            eprintln!("lanemq-bench: {text}");
            std::process::exit(2);
        }
        args
    }

    fn check(&self) -> Result<(), &'static str> {
        if !self.batch.is_multiple_of(self.spread) || self.spread > self.partitions {
            return Err("--spread must divide --batch and be at most --partitions");
        }
        if self.workload == Workload::Pop && self.queue.is_none() {
            return Err("pop needs --queue: whose messages to pop");
        }
        let transacts = self.workload == Workload::Txn;
        if match self.peer {
            Peer::Lanemq => false,
            Peer::Postgres => !transacts,
            Peer::Redis | Peer::Nats => transacts,
        } {
            return Err("txn is for lanemq and postgres, and postgres for nothing else");
        }
        if transacts && self.form != Form::Json {
            return Err("txn is in JSON");
        }
        let most = u64::from(self.connections) * TRANSACTIONS_EACH_MAX;
        if transacts && self.messages.is_some_and(|messages| messages > most) {
            return Err("--messages of txn: at most 10,000 for each connection");
        }
        if self.messages == Some(0) || self.seconds.is_some_and(|s| s.is_nan() || s <= 0.0) {
            return Err("--messages and --seconds must be above 0");
        }
        if self.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
            return Err("--rate must be above 0");
        }
        Ok(())
    }

    pub fn pop_batch(&self) -> u32 {
        self.pop_batch.unwrap_or(self.batch)
    }

    /// How many pushes, if their number is what ends the run.
    pub fn pushes(&self) -> Option<u64> {
        self.messages.map(|messages| messages.div_ceil(u64::from(self.batch)))
    }

    /// Transactions that one connection can make: as many messages are leased for it.
    pub fn transactions_each(&self) -> u64 {
        const EACH_SECOND: f64 = 2_000.0;
        match self.messages {
            Some(messages) => messages.div_ceil(u64::from(self.connections)),
            None => {
                let wanted = (self.push_time().as_secs_f64() * EACH_SECOND) as u64
                    + self.warmup.div_ceil(u64::from(self.connections));
                wanted.clamp(1, TRANSACTIONS_EACH_MAX)
            }
        }
    }

    pub fn push_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(5.0))
    }

    pub fn pushes_anything(&self) -> bool {
        self.workload != Workload::Pop
    }
}

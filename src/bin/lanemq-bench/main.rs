//! `lanemq-bench`: loads a broker, checks every answer, and says what it did and what it cost.
//!
//! Exit codes: 0 with the figures, 1 when an answer was wrong or missing (the reason is one line
//! on stderr, and there are no figures), 2 for a command line that makes no sense.

mod acks;
mod args;
mod conn;
mod drive;
mod http;
mod lanemq_wire;
mod ledger;
mod meter;
mod nats_wire;
mod payload;
mod pop_frames;
mod postgres_wire;
mod progress;
mod push_body;
mod redis_wire;
mod report;
mod schedule;
mod transact_wire;
mod usage;
mod wire;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use lanemq::base::prng::Prng;

use args::{Args, Peer, Workload};
use drive::Drive;
use lanemq_wire::Lanemq;
use meter::Meter;
use nats_wire::Nats;
use payload::Documents;
use postgres_wire::Postgres;
use redis_wire::Redis;
use report::Report;
use transact_wire::Transactions;
use wire::{Fault, Wire};

fn main() -> ExitCode {
    let args = Args::from_process();
    match run(&args) {
        Ok(report) => {
            print!("{}", report.text());
            if args.json {
                println!("{}", report.json());
            }
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("lanemq-bench: no figures: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<Report, Fault> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut prng = Prng::new(now.as_nanos() as u64 ^ u64::from(std::process::id()) << 48);
    let random = prng.next_u64();
    let queue = args.queue.clone().unwrap_or_else(|| format!("bench-{random:016x}"));
    let documents = Documents::new(args.size as usize, &mut prng);
    let mut wire: Box<dyn Wire> = match args.peer {
        Peer::Lanemq if args.workload == Workload::Txn => {
            Box::new(Transactions::new(args, &queue, documents))
        }
        Peer::Lanemq => Box::new(Lanemq::new(args, &queue, documents, prng)?),
        Peer::Redis => Box::new(Redis::new(args, &queue, documents)),
        Peer::Nats => Box::new(Nats::new(args, &queue, documents, prng)),
        Peer::Postgres => Box::new(Postgres::new(args, documents)),
    };
    wire.prepare(if args.pushes_anything() { args.pushes() } else { Some(0) })?;
    let mut meter = Meter::new(args);
    let outcome = Drive::open(args, wire.as_mut(), &mut meter)?.run()?;
    let report = Report::new(args, &queue, &outcome, meter.used);
    if report.messages == 0 {
        return Err(Fault::new("there were no messages"));
    }
    Ok(report)
}

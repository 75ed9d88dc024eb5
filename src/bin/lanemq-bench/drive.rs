//! The load itself: one thread, all connections, readiness from epoll.
//!
//! The server is to have the machine, so this must cost little: no thread per connection, no
//! allocation in the steady state, and answers are looked through rather than parsed. How busy
//! the thread was is part of the report: at a full core the figures are its own, not the server's.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::args::{Args, Workload};
use crate::conn::Conn;
use crate::ledger::{Counts, Ledger};
use crate::meter::Meter;
use crate::progress::{Progress, Watch};
use crate::schedule::Schedule;
use crate::wire::{Call, Fault, Message, Name, Next, Role, Wait, Wire};

const TICK: Duration = Duration::from_secs(1);

/// The spans that are measured, all in nanoseconds.
pub struct Latencies {
    pub push: Histogram<u64>,
    pub pop: Histogram<u64>,
    pub ack: Histogram<u64>,
    /// From a pop's begin to its ack's answer.
    pub pop_ack: Histogram<u64>,
    /// A message's time from its push to the pop that brought it.
    pub end_to_end: Histogram<u64>,
    /// A job's time from its push to its ack's answer.
    pub job: Histogram<u64>,
}

impl Latencies {
    fn new() -> Self {
        const MAX_NS: u64 = 600_000_000_000;
        const DIGITS: u8 = 3;
        let new = || Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("bounds are in order");
        Self { push: new(), pop: new(), ack: new(), pop_ack: new(), end_to_end: new(), job: new() }
    }
}

/// What a whole and right run has to show.
pub struct Outcome {
    pub counts: Counts,
    pub elapsed: Duration,
    pub latencies: Latencies,
    /// For how long neither this driver nor, as likely as not, the server ran.
    pub stood_still: Duration,
}

pub struct Drive<'a> {
    args: &'a Args,
    wire: &'a mut dyn Wire,
    meter: &'a mut Meter,
    /// Producers first, then consumers. In `jobs` each is both.
    conns: Vec<Conn>,
    producers: usize,
    epoll: OwnedFd,
    schedule: Schedule,
    ledger: Ledger,
    latencies: Latencies,
    begin: Instant,
    /// Producers without a call under way.
    idle: VecDeque<usize>,
    /// Consumers that found nothing, until another consumer's ack may have made something free.
    empty: Vec<usize>,
    /// Calls under way that are not pops waiting at the server.
    in_flight: usize,
    messages: Vec<Message>,
    /// Calls sent before this are not measured; `None` during the warm-up.
    measured_from_ns: Option<u64>,
    counts_before: Counts,
    last_answer_ns: u64,
    stood_still: Duration,
}

impl<'a> Drive<'a> {
    pub fn open(
        args: &'a Args,
        wire: &'a mut dyn Wire,
        meter: &'a mut Meter,
    ) -> Result<Self, Fault> {
        let producers = if args.pushes_anything() { args.connections } else { 0 };
        let consumers = match args.workload {
            Workload::Push | Workload::Jobs | Workload::Txn => 0,
            Workload::Pop => args.connections,
            Workload::PushPop => args.consumers.unwrap_or(args.connections),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let mut conns = Vec::new();
        let producer = |number| Name { role: Role::Producer, number };
        let consumer = |number| Name { role: Role::Consumer, number };
        for name in (0..producers).map(producer).chain((0..consumers).map(consumer)) {
            let conn = Conn::open(args.address, name, wire)?;
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&epoll, &conn.stream, EventData::new_u64(conns.len() as u64), flags)
                .map_err(std::io::Error::from)?;
            conns.push(conn);
        }
        Ok(Self {
            args,
            wire,
            meter,
            conns,
            producers: producers as usize,
            epoll,
            schedule: Schedule::new(args),
            ledger: Ledger::new(args),
            latencies: Latencies::new(),
            begin: Instant::now(),
            idle: (0..producers as usize).collect(),
            empty: Vec::new(),
            in_flight: 0,
            messages: Vec::new(),
            measured_from_ns: None,
            counts_before: Counts::default(),
            last_answer_ns: 0,
            stood_still: Duration::ZERO,
        })
    }

    /// Runs to the end; an error where one answer was not right.
    pub fn run(mut self) -> Result<Outcome, Fault> {
        if self.args.warmup == 0 {
            self.meter.begin()?;
            self.measure_from(0);
        }
        self.begin = Instant::now();
        let mut progress = Progress::new(self.args.workload);
        let mut watch = Watch::new(self.ledger.counts);
        let mut events = Vec::with_capacity(self.conns.len());
        for index in self.producers..self.conns.len() {
            self.pop(index)?;
        }
        while !self.finished() {
            self.push_what_is_due()?;
            self.wait(&mut events)?;
            for event in events.drain(..) {
                self.advance(event.data.u64() as usize)?;
            }
            let now = self.begin.elapsed();
            progress.show(now, &self.ledger.counts);
            watch.look(now, &self.ledger.counts)?;
        }
        self.stood_still = watch.stood_still();
        self.finish()
    }

    fn finish(self) -> Result<Outcome, Fault> {
        let Some(from_ns) = self.measured_from_ns else {
            return Err(Fault::new("the run ended before its --warmup messages were answered"));
        };
        self.meter.end()?;
        match self.args.workload {
            Workload::Push => {}
            Workload::Txn => self.wire.settle(self.ledger.counts.pushed)?,
            Workload::Pop | Workload::PushPop | Workload::Jobs => self.ledger.settle(self.args)?,
        }
        Ok(Outcome {
            counts: self.ledger.counts.since(&self.counts_before),
            elapsed: Duration::from_nanos(self.last_answer_ns.saturating_sub(from_ns)),
            latencies: self.latencies,
            stood_still: self.stood_still,
        })
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn finished(&self) -> bool {
        let over = self.in_flight == 0 && self.schedule.is_over();
        match self.args.workload {
            Workload::PushPop => over && self.ledger.counts.acked >= self.ledger.counts.pushed,
            // Or all that was leased is acked.
            Workload::Txn => over || self.in_flight == 0 && self.idle.is_empty(),
            Workload::Push | Workload::Pop | Workload::Jobs => over,
        }
    }

    /// From here on everything counts. The clock of the run goes on.
    fn begin_measuring(&mut self) -> Result<(), Fault> {
        self.meter.begin()?;
        self.measure_from(self.now_ns());
        Ok(())
    }

    fn measure_from(&mut self, now_ns: u64) {
        self.counts_before = self.ledger.counts;
        self.measured_from_ns = Some(now_ns);
        self.schedule.begin_measuring(now_ns);
    }

    fn push_what_is_due(&mut self) -> Result<(), Fault> {
        while let Some(&index) = self.idle.front() {
            let now_ns = self.now_ns();
            let Some((batch, intended_ns)) = self.schedule.next(now_ns) else { break };
            self.idle.pop_front();
            let conn = &mut self.conns[index];
            self.wire.push(conn.name, &batch, &mut conn.push);
            // Making the request is not the server's time; waiting for a connection is.
            let sent_ns = intended_ns.unwrap_or_else(|| self.begin.elapsed().as_nanos() as u64);
            self.ledger.sent(&batch, sent_ns);
            conn.batch = batch;
            conn.begun_ns = sent_ns;
            self.in_flight += 1;
            conn.begin(Call::Push, sent_ns)?;
        }
        Ok(())
    }

    fn pop(&mut self, index: usize) -> Result<(), Fault> {
        let waits = self.args.workload != Workload::Pop;
        let wait = if waits { Wait::Yes } else { Wait::No };
        let now_ns = self.now_ns();
        let conn = &mut self.conns[index];
        self.wire.pop(conn.name, wait, &mut conn.request);
        if self.args.workload != Workload::Jobs {
            conn.begun_ns = now_ns;
        }
        // A consumer of `push-pop` always waits; the run does not end for it.
        self.in_flight += usize::from(self.args.workload != Workload::PushPop);
        conn.begin(Call::Pop, now_ns)
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), Fault> {
        let until_due = match self.idle.is_empty() {
            true => None,
            false => self.schedule.until_due(self.now_ns()),
        };
        let timeout = until_due.unwrap_or(TICK).min(TICK);
        let timeout = Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match epoll::wait(&self.epoll, spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }

    fn advance(&mut self, index: usize) -> Result<(), Fault> {
        // One answer is followed by the next call, whose answer may be there already.
        while let Some(len) = self.conns[index].advance(self.wire)? {
            let call = self.conns[index].call.expect("an answer belongs to a call");
            let now_ns = self.now_ns();
            self.ledger.counts.requests += 1;
            match call {
                Call::Push => self.pushed(index, len, now_ns)?,
                Call::Pop => self.popped(index, len, now_ns)?,
                Call::Ack => self.acked(index, len, now_ns)?,
            }
            if self.measured_from_ns.is_none() {
                let counts = &self.ledger.counts;
                let pushes = matches!(self.args.workload, Workload::Push | Workload::Txn);
                let done = if pushes { counts.pushed } else { counts.acked };
                if done >= self.args.warmup {
                    self.begin_measuring()?;
                }
            }
            if self.conns[index].call.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn pushed(&mut self, index: usize, len: usize, now_ns: u64) -> Result<(), Fault> {
        let conn = &mut self.conns[index];
        let batch = conn.batch;
        self.wire.check_push(&batch, conn.answer(len))?;
        let sent_ns = conn.sent_ns;
        conn.finish(len);
        self.in_flight -= 1;
        self.last_answer_ns = now_ns;
        self.ledger.pushed(&batch);
        record(self.measured_from_ns, &mut self.latencies.push, sent_ns, now_ns);
        if self.args.workload == Workload::Jobs {
            return self.pop(index);
        }
        if self.wire.has_more(self.conns[index].name) {
            self.idle.push_back(index);
        }
        self.push_what_is_due()
    }

    fn popped(&mut self, index: usize, len: usize, now_ns: u64) -> Result<(), Fault> {
        let conn = &mut self.conns[index];
        self.messages.clear();
        let mut ack = std::mem::take(&mut conn.request);
        let (name, answer) = (conn.name, conn.answer(len));
        let next = self.wire.read_pop(name, answer, &mut self.messages, &mut ack)?;
        conn.request = ack;
        let sent_ns = conn.sent_ns;
        conn.finish(len);
        self.in_flight -= usize::from(self.args.workload != Workload::PushPop);
        match next {
            Next::Ack => {}
            Next::Park if self.args.workload == Workload::Pop => {
                self.empty.push(index);
                return Ok(());
            }
            Next::Done if self.args.workload == Workload::Pop => return Ok(()),
            Next::Again | Next::Park | Next::Done => return self.pop(index),
        }
        self.last_answer_ns = now_ns;
        let from_ns = self.measured_from_ns;
        record(from_ns, &mut self.latencies.pop, sent_ns, now_ns);
        let (from_ns, latency) = (from_ns.unwrap_or(u64::MAX), &mut self.latencies.end_to_end);
        self.ledger.popped(&self.messages, now_ns, from_ns, latency)?;
        self.in_flight += 1;
        let now_ns = self.now_ns();
        let conn = &mut self.conns[index];
        conn.held = self.messages.len();
        conn.begin(Call::Ack, now_ns)
    }

    fn acked(&mut self, index: usize, len: usize, now_ns: u64) -> Result<(), Fault> {
        let conn = &mut self.conns[index];
        self.wire.check_ack(conn.held, conn.answer(len))?;
        let (sent_ns, begun_ns) = (conn.sent_ns, conn.begun_ns);
        self.ledger.counts.acked += conn.held as u64;
        conn.finish(len);
        self.in_flight -= 1;
        self.last_answer_ns = now_ns;
        let from_ns = self.measured_from_ns;
        record(from_ns, &mut self.latencies.ack, sent_ns, now_ns);
        if self.args.workload == Workload::Jobs {
            record(from_ns, &mut self.latencies.job, begun_ns, now_ns);
            self.idle.push_back(index);
            return self.push_what_is_due();
        }
        record(from_ns, &mut self.latencies.pop_ack, begun_ns, now_ns);
        self.pop(index)?;
        match self.empty.pop() {
            Some(other) => self.pop(other),
            None => Ok(()),
        }
    }
}

fn record(from_ns: Option<u64>, latency: &mut Histogram<u64>, sent_ns: u64, now_ns: u64) {
    if from_ns.is_some_and(|from_ns| sent_ns >= from_ns) {
        latency.saturating_record(now_ns.saturating_sub(sent_ns));
    }
}

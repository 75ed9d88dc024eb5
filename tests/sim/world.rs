//! One broker in one thread: real shards, one fault disk each, a mesh with a queue per ordered
//! pair of shards, and a clock that moves only when told.
//!
//! The world knows nothing of messages and groups. It runs what shards ask for, in an order the
//! seed chooses, and holds what must be true of any driver: each reply answers an open token
//! once, each disk operation completes once, a crash takes all shards down together.

use crate::disk::{Crash, FaultDisk, Faults};
use lanemq::base::buf::HeapBuf;
use lanemq::base::cipher::Keys;
use lanemq::base::ids::{ShardId, Token};
use lanemq::base::prng::Prng;
use lanemq::base::time::Now;
use lanemq::broker::effect::{Effect, Effects};
use lanemq::broker::shard::{OpenReport, Shard, ShardConfig};
use lanemq::log::{Log, LogConfig, Record};
use lanemq::model::command::Command;
use lanemq::model::peer::PeerMsg;
use lanemq::model::reply::{PopReply, Reply};
use std::collections::{BTreeMap, VecDeque};

pub type Step = Result<(), String>;

/// Identity of the simulated data directory.
const DIRECTORY: [u8; 16] = *b"a data directory";
/// The key of the first lives, and the one that may take its place.
const FIRST_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const SECOND_KEY: &str = "f0e0d0c0b0a090807060504030201000f0e0d0c0b0a090807060504030201000";
/// More moves than any settling takes; beyond, the shards are sending each other in circles.
const MOVES_MAX: usize = 200_000;

/// Both keys: opens whatever any life has sealed.
pub fn all_keys() -> Keys {
    Keys::from_hex(Some(SECOND_KEY), Some(FIRST_KEY)).expect("two keys")
}

/// What differs between worlds.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub shards: u16,
    pub segment_bytes: u64,
    pub tail_bytes: usize,
    /// Batches that the broker frames are compressed from this many bytes on.
    pub compress_bytes: Option<usize>,
    /// The broker has a key, so that queues can encrypt.
    pub has_key: bool,
    pub read_ahead_bytes: usize,
}

impl Shape {
    pub fn pick(prng: &mut Prng) -> Self {
        Self {
            shards: 1 + prng.below(4) as u16,
            segment_bytes: [64 << 10, 64 << 10, 128 << 10][prng.below(3) as usize],
            tail_bytes: [0, 8 << 10, 64 << 10, 1 << 20][prng.below(4) as usize],
            compress_bytes: [None, None, Some(1), Some(400)][prng.below(4) as usize],
            has_key: prng.chance(50),
            read_ahead_bytes: [0, 8 << 10, 32 << 10, 1 << 20][prng.below(4) as usize],
        }
    }
}

pub struct World {
    pub shape: Shape,
    pub now: Now,
    pub shards: Vec<Shard<HeapBuf>>,
    pub disks: Vec<FaultDisk>,
    /// Answers that have left the shards and nobody has looked at.
    pub replies: VecDeque<(u64, Reply<HeapBuf>)>,
    mesh: Vec<VecDeque<PeerMsg>>,
    order: Prng,
    power: Prng,
    fx: Effects<HeapBuf>,
    /// Shards that were called and not flushed since.
    unflushed: Vec<bool>,
    /// Tokens without an answer, with the shard that owes it.
    open: BTreeMap<u64, usize>,
    next_token: u64,
    /// The operator has put the second key in the place of the first.
    second_key: bool,
    trace: u64,
    /// Print what crosses the mesh: `SIM_MESH=1`.
    talk: bool,
}

impl World {
    pub fn new(shape: Shape, order: Prng, mut power: Prng) -> Self {
        let shards = usize::from(shape.shards);
        Self {
            shape,
            now: Now { mono_us: 5_000_000, wall_us: 1_700_000_000_000_000 },
            shards: Vec::new(),
            disks: (0..shards).map(|_| FaultDisk::new(&mut power)).collect(),
            replies: VecDeque::new(),
            mesh: vec![VecDeque::new(); shards * shards],
            order,
            power,
            fx: Effects::default(),
            unflushed: vec![false; shards],
            open: BTreeMap::new(),
            next_token: 0,
            second_key: false,
            trace: 0,
            talk: std::env::var_os("SIM_MESH").is_some(),
        }
    }

    // ---- lives

    /// Recovers all shards and runs the exchange of the start until the port could open. With
    /// `interrupts`, the power may go again meanwhile.
    pub fn boot(&mut self, interrupts: bool) -> Result<Vec<OpenReport>, String> {
        let mut left =
            if interrupts && self.power.chance(30) { 1 + self.power.below(2) } else { 0 };
        loop {
            let interrupted = left > 0;
            left = left.saturating_sub(1);
            if interrupted {
                for disk in &mut self.disks {
                    if self.power.chance(60) {
                        disk.crash_after(1 + self.power.below(80));
                    }
                }
            }
            let opened = self.open_all();
            if self.disks.iter().any(FaultDisk::has_crashed) {
                self.crash_again();
                continue;
            }
            let reports = opened?;
            let moves = interrupted.then(|| self.power.below(20));
            if self.exchange(moves)? {
                return Ok(reports);
            }
            self.crash_again();
        }
    }

    fn crash_again(&mut self) {
        let kind = if self.power.chance(70) { Crash::Power } else { Crash::Kill };
        self.crash(kind);
    }

    fn config(&mut self, shard: usize) -> ShardConfig {
        ShardConfig {
            shard: ShardId(shard as u16),
            shards: self.shape.shards,
            directory: DIRECTORY,
            segment_bytes: self.shape.segment_bytes,
            memory_bytes: 1 << 20,
            tail_bytes: self.shape.tail_bytes,
            read_ahead_bytes: self.shape.read_ahead_bytes,
            compress_bytes: self.shape.compress_bytes,
            trace_retention_seconds: 604_800,
            keys: self.keys(),
            entropy: self.power.next_u64(),
        }
    }

    fn keys(&self) -> Keys {
        match (self.shape.has_key, self.second_key) {
            (false, _) => Keys::default(),
            (true, false) => Keys::from_hex(Some(FIRST_KEY), None).expect("a key"),
            (true, true) => all_keys(),
        }
    }

    fn open_all(&mut self) -> Result<Vec<OpenReport>, String> {
        self.shards.clear();
        let mut reports = Vec::new();
        for shard in 0..self.disks.len() {
            let config = self.config(shard);
            let (opened, report) = Shard::open(config, &mut self.disks[shard], self.now)
                .map_err(|error| format!("shard {shard} refuses its own log: {}", error.0))?;
            self.shards.push(opened);
            reports.push(report);
        }
        self.disks.iter_mut().for_each(|disk| disk.crash_after(u64::MAX));
        Ok(reports)
    }

    /// False: interrupted after so many moves.
    fn exchange(&mut self, mut moves: Option<u64>) -> Result<bool, String> {
        for shard in 0..self.shards.len() {
            self.shards[shard].start(self.now, &mut self.fx);
            self.absorb(shard)?;
        }
        for _ in 0..MOVES_MAX {
            if self.shards.iter().all(Shard::is_ready) {
                return Ok(true);
            }
            if let Some(moves) = &mut moves {
                if *moves == 0 {
                    return Ok(false);
                }
                *moves -= 1;
            }
            if let Some(fault) = self.fault() {
                return Err(format!("a fault during the start: {fault}"));
            }
            if !self.move_one()? {
                self.step_to_deadline()?;
            }
        }
        Err("the shards never get ready".into())
    }

    /// All shards are gone at once. What disks do with unsynced bytes is up to `kind`; the
    /// monotonic clock of the next life starts anywhere.
    pub fn crash(&mut self, kind: Crash) {
        self.shards.clear();
        self.mesh.iter_mut().for_each(VecDeque::clear);
        self.fx.list.clear();
        self.unflushed.fill(false);
        self.open.clear();
        self.replies.clear();
        for disk in &mut self.disks {
            disk.crash(kind, &mut self.power);
        }
        self.second_key |= self.power.chance(20);
        self.now.mono_us = self.power.below(1 << 40);
        self.now.wall_us += 1_000 + self.power.below(20_000) as i64;
    }

    /// A clean stop: drain, answer everything, mark the logs.
    pub fn stop(&mut self) -> Step {
        self.drain()?;
        for shard in 0..self.shards.len() {
            self.shards[shard].stop(self.now, &mut self.fx);
            self.absorb(shard)?;
        }
        for _ in 0..MOVES_MAX {
            if self.shards.iter().all(Shard::is_stopped) {
                self.shards.clear();
                return Ok(());
            }
            if !self.move_one()? {
                self.step_to_deadline()?;
            }
        }
        Err("the shards never stop".into())
    }

    fn drain(&mut self) -> Step {
        for shard in 0..self.shards.len() {
            self.shards[shard].drain(self.now, &mut self.fx);
            self.absorb(shard)?;
        }
        for _ in 0..1_000 {
            self.settle()?;
            if self.open.is_empty() {
                return Ok(());
            }
            self.step_to_deadline()?;
        }
        Err(format!("{} commands are not answered by draining", self.open.len()))
    }

    pub fn fault(&self) -> Option<String> {
        self.shards.iter().find_map(|shard| shard.fault().map(str::to_owned))
    }

    pub fn set_faults(&mut self, shard: usize, faults: Faults) {
        self.disks[shard].faults = faults;
    }

    // ---- steps

    pub fn command(&mut self, shard: usize, command: Command<'_>) -> Result<u64, String> {
        let token = self.next_token;
        self.next_token += 1;
        self.open.insert(token, shard);
        self.shards[shard].handle(self.now, command, Token(token), &mut self.fx);
        self.absorb(shard)?;
        Ok(token)
    }

    pub fn cancel(&mut self, shard: usize, token: u64) -> Step {
        self.shards[shard].cancel(self.now, Token(token), &mut self.fx);
        self.absorb(shard)
    }

    pub fn undelivered(&mut self, shard: usize, reply: &PopReply<HeapBuf>) -> Step {
        self.shards[shard].undelivered(self.now, reply, &mut self.fx);
        self.absorb(shard)
    }

    /// Takes what a shard wished for. Its appends go out now, or with those of later calls.
    fn absorb(&mut self, shard: usize) -> Step {
        self.unflushed[shard] = true;
        self.take_effects(shard)?;
        if self.order.chance(60) { self.flush(shard) } else { Ok(()) }
    }

    fn flush(&mut self, shard: usize) -> Step {
        self.unflushed[shard] = false;
        self.shards[shard].flush(self.now, &mut self.fx);
        self.take_effects(shard)
    }

    fn take_effects(&mut self, shard: usize) -> Step {
        let n = self.shards.len();
        for effect in self.fx.list.drain(..) {
            match effect {
                Effect::Io(op) => self.disks[shard].perform(op),
                Effect::Send { to, msg } => {
                    if to.index() == shard || to.index() >= n {
                        return Err(format!("shard {shard} sends to {to:?}"));
                    }
                    self.mesh[shard * n + to.index()].push_back(msg);
                }
                Effect::Reply { token, reply } => {
                    if self.open.remove(&token.0) != Some(shard) {
                        return Err(format!("a second answer to {token:?}, or by another shard"));
                    }
                    self.trace = hash_text(self.trace, &summary(token.0, &reply));
                    self.replies.push_back((token.0, reply));
                }
            }
        }
        Ok(())
    }

    /// One disk operation completes, or one message of the mesh arrives. False: nothing moves.
    pub fn move_one(&mut self) -> Result<bool, String> {
        let disks = self.disks.iter().enumerate().filter(|(_, d)| d.in_flight() > 0);
        let pairs = self.mesh.iter().enumerate().filter(|(_, queue)| !queue.is_empty());
        let n = self.disks.len();
        let flushes = self.unflushed.iter().enumerate().filter(|(_, wanted)| **wanted);
        let moves: Vec<usize> = disks
            .map(|(at, _)| at)
            .chain(pairs.map(|(at, _)| n + at))
            .chain(flushes.map(|(at, _)| n + n * n + at))
            .collect();
        if moves.is_empty() {
            return Ok(false);
        }
        match moves[self.order.below(moves.len() as u64) as usize] {
            disk if disk < n => {
                let done = self.disks[disk].take_completion(&mut self.power);
                let done = done.ok_or("a disk lost an operation")?;
                self.shards[disk].complete(self.now, done, &mut self.fx);
                self.absorb(disk)?;
            }
            flush if flush >= n + n * n => self.flush(flush - n - n * n)?,
            pair => {
                let (from, to) = ((pair - n) / n, (pair - n) % n);
                let msg = self.mesh[pair - n].pop_front().ok_or("a message got lost")?;
                if self.talk {
                    eprintln!("{from} to {to}: {:.300}", format!("{msg:?}"));
                }
                self.shards[to].deliver(self.now, ShardId(from as u16), msg, &mut self.fx);
                self.absorb(to)?;
            }
        }
        Ok(true)
    }

    /// Moves until nothing moves. The clock stands still.
    pub fn settle(&mut self) -> Step {
        for _ in 0..MOVES_MAX {
            if !self.move_one()? {
                return Ok(());
            }
        }
        Err("the shards do not come to rest".into())
    }

    pub fn is_still(&self) -> bool {
        self.disks.iter().all(|d| d.in_flight() == 0)
            && self.mesh.iter().all(VecDeque::is_empty)
            && !self.unflushed.contains(&true)
    }

    /// The clock moves; timers stay late until [`World::tick`].
    pub fn advance(&mut self, us: u64) {
        self.now.mono_us += us;
        self.now.wall_us += us as i64;
    }

    /// Every shard does what its deadlines ask for by now.
    pub fn tick(&mut self) -> Step {
        for shard in 0..self.shards.len() {
            for _ in 0..10_000 {
                if self.shards[shard].next_deadline().is_none_or(|d| !d.passed(self.now)) {
                    break;
                }
                self.shards[shard].tick(self.now, &mut self.fx);
                self.absorb(shard)?;
            }
            if self.shards[shard].next_deadline().is_some_and(|d| d.passed(self.now)) {
                return Err(format!("shard {shard} asks for ticks without end"));
            }
        }
        Ok(())
    }

    pub fn step_to_deadline(&mut self) -> Step {
        let next = self.shards.iter().filter_map(Shard::next_deadline).min();
        let next = next.ok_or("nothing moves and nobody waits for the clock")?;
        self.advance(next.0.saturating_sub(self.now.mono_us));
        self.tick()
    }

    // ---- looking

    /// A hash over everything that was answered and written.
    pub fn trace(&self) -> u64 {
        self.disks.iter().fold(self.trace, |h, disk| h.rotate_left(9) ^ disk.trace())
    }

    /// Prints every durable record, for a person who looks at a failed seed.
    pub fn dump(&self) {
        for shard in 0..self.disks.len() {
            eprintln!("shard {shard}: {:?}", self.disks[shard].files());
            let dumped = self.durable_records(shard, &mut |r| {
                let text: String = String::from_utf8_lossy(&r.body[..r.body.len().min(80)])
                    .chars()
                    .map(|c| if c.is_ascii_graphic() { c } else { '.' })
                    .collect();
                let (segment, byte) = (r.at.segment().0, r.at.byte());
                eprintln!("  {segment}:{byte} kind {} key {} {text}", r.kind, r.key);
            });
            dumped.unwrap_or_else(|why| eprintln!("  {why}"));
        }
    }

    /// What recovery would find of a shard if the power went now and nothing unsynced landed:
    /// every record, given to `visit`.
    pub fn durable_records(&self, shard: usize, visit: &mut dyn FnMut(Record<'_>)) -> Step {
        let mut disk = self.disks[shard].durable_image();
        let config = LogConfig {
            shard: ShardId(shard as u16),
            shards: self.shape.shards,
            directory: DIRECTORY,
            segment_bytes: self.shape.segment_bytes,
            tail_bytes: 0,
            read_ahead_bytes: 0,
            entropy: 1,
        };
        Log::<HeapBuf>::open(&mut disk, config, visit)
            .map(drop)
            .map_err(|error| format!("the durable image of shard {shard} is refused: {error}"))
    }
}

fn hash_text(start: u64, text: &str) -> u64 {
    text.bytes().fold(start, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// A reply in words, without the buffers that a pop's slices share.
pub fn summary(token: u64, reply: &Reply<HeapBuf>) -> String {
    let Reply::Pop(pop) = reply else { return format!("{token} {reply:?}") };
    let claims: Vec<String> = pop
        .claims
        .iter()
        .map(|c| {
            let (start, end) = (c.start.0, c.end.0);
            format!("{}/{} {start}..={end} attempt {}", c.queue, c.partition, c.attempt)
        })
        .collect();
    format!("{token} pop {} {:?} {claims:?}", pop.group, pop.lease_id)
}

//! The log under a bad disk, against a naive model: a list of what was appended, and how much
//! of it was reported durable.
//!
//! What must hold after every crash: nothing that was reported durable is missing, nothing
//! appears that was not appended, nothing is out of order, every byte is the one appended, and
//! a log without damage always opens. A single flipped bit before what the log witnesses as
//! durable is always noticed, and no flip ever changes what is read.

use crate::disk::{Crash, FaultDisk, Faults};
use crate::for_seeds;
use lanemq::base::buf::HeapBuf;
use lanemq::base::extent::Extent;
use lanemq::base::ids::{LogPosition, SegmentId, ShardId};
use lanemq::base::prng::Prng;
use lanemq::base::time::Now;
use lanemq::log::io::{FileId, LogIo};
use lanemq::log::{
    AppendError, Class, Completion, Log, LogConfig, Marks, OpenError, ReadError, Record, Recovery,
};
use std::collections::BTreeMap;

/// One record, as appended and as found again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub kind: u8,
    pub key: u64,
    pub body: Vec<u8>,
    pub at: LogPosition,
    pub bytes: u32,
}

impl Entry {
    fn end(&self) -> LogPosition {
        self.at.advance(u64::from(self.bytes))
    }
}

/// Opens a log and collects what it shows.
pub fn open(
    disk: &mut FaultDisk,
    config: &LogConfig,
) -> Result<(Log<HeapBuf>, Recovery, Vec<Entry>), OpenError> {
    let mut found = Vec::new();
    let mut visit = |record: Record<'_>| {
        found.push(Entry {
            kind: record.kind,
            key: record.key,
            body: record.body.to_vec(),
            at: record.at,
            bytes: record.bytes,
        });
    };
    let (log, recovery) = Log::open(disk, config.clone(), &mut visit)?;
    Ok((log, recovery, found))
}

/// What is known to have been appended.
#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    /// The first so many were reported durable.
    answered: usize,
    /// The first so many were released: they may be gone.
    released: usize,
    /// The first so many were gone at the last opening.
    gone: usize,
    /// Where records were that crashes took, since the last release.
    lost: Vec<LogPosition>,
}

impl Model {
    fn durable(&mut self, durable: LogPosition) {
        while self.entries.get(self.answered).is_some_and(|entry| entry.end() <= durable) {
            self.answered += 1;
        }
    }

    /// The records a recovery found, judged. Returns the index of the first.
    fn check(&self, found: &[Entry]) -> Result<usize, String> {
        let Some(first) = found.first() else {
            if self.answered > self.released {
                return Err(format!("LOST all {} answered", self.answered - self.released));
            }
            return Ok(self.released.max(self.answered));
        };
        let base = self.entries.partition_point(|entry| entry.at < first.at);
        if base > self.released {
            return Err(format!("LOST head: begins at {base}, released {}", self.released));
        }
        if base + found.len() < self.answered {
            return Err(format!("LOST: has {}, answered {}", base + found.len(), self.answered));
        }
        for (index, entry) in found.iter().enumerate() {
            let index = base + index;
            match self.entries.get(index) {
                None => return Err(format!("PHANTOM at {index}")),
                Some(wanted) if wanted != entry => {
                    return Err(format!("WRONG at {index}: {:?} {:?}", wanted.at, entry.at));
                }
                Some(_) => {}
            }
        }
        Ok(base)
    }

    /// What an opening says of every record that there ever was, if its first `kept` are left.
    fn check_extent(&self, extent: &Extent, kept: usize) -> Result<(), String> {
        let (kept, cut) = self.entries.split_at(kept);
        if let Some(entry) = kept.iter().find(|entry| !extent.holds(entry.at)) {
            return Err(format!("{:?} is said not to be held: {extent:?}", entry.at));
        }
        let lost = cut.iter().map(|entry| &entry.at).chain(&self.lost);
        match lost.copied().find(|at| extent.holds(*at)) {
            Some(at) => Err(format!("{at:?} is said to be held: {extent:?}")),
            None => Ok(()),
        }
    }

    /// From now on the log is what was found.
    fn adopt(&mut self, base: usize, found: usize) {
        self.lost.extend(self.entries.drain(base + found..).map(|entry| entry.at));
        self.answered = self.entries.len();
        self.gone = base.min(self.entries.len());
        self.released = self.released.min(self.entries.len());
    }
}

/// How one seed likes it.
struct Flavor {
    /// Records whose ends fall on sectors, so that lost sectors leave clean holes.
    sectors: bool,
    faults: bool,
    space: bool,
    /// Few, so that rolls are frequent.
    segment_bytes: u64,
}

struct World {
    work: Prng,
    order: Prng,
    power: Prng,
    disk: FaultDisk,
    config: LogConfig,
    flavor: Flavor,
    model: Model,
    now: Now,
    marks: Marks,
    reads: BTreeMap<u64, usize>,
    next_read: u64,
    io: Vec<LogIo<HeapBuf>>,
    seen: Seen,
}

/// What the worlds came across: a world that never sees a fault proves nothing about it.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    torn_tails: u64,
    rolls: u64,
    released: u64,
    disk_reads: u64,
    tail_reads: u64,
    refused_for_space: u64,
    busy: u64,
    poisoned: u64,
    crashes_in_recovery: u64,
    /// Most records that one opening was asked about and earlier ones had lost.
    lost: u64,
    clean_stops: u64,
}

thread_local! {
    static SEEN: std::cell::RefCell<Seen> = std::cell::RefCell::default();
}

type Step = Result<(), String>;

fn run(seed: u64) -> Result<u64, String> {
    let mut world = World::new(seed);
    world.lives()?;
    SEEN.with_borrow_mut(|seen| seen.add(world.seen));
    Ok(world.disk.trace())
}

/// Records that end on sectors, written but not synced when the power goes: most sectors land,
/// so that what is missing is whole records in the middle, and what follows them is valid.
fn holes(seed: u64) -> Result<u64, String> {
    let mut world = World::new(seed);
    world.flavor = Flavor { sectors: true, faults: false, space: false, ..world.flavor };
    world.disk.sector = 512;
    world.disk.landing = vec![80, 90, 95];
    for life in 0..4 {
        let mut log = world.recover(false).map_err(|why| format!("life {life}: {why}"))?;
        world.append(&mut log, vec![1; 472], Class::Growing)?;
        world.settle(&mut log, false)?;
        for _ in 0..24 + world.work.below(60) {
            let body = world.body();
            let body = if world.work.chance(70) { vec![2; 472] } else { body };
            world.append(&mut log, body, Class::Growing)?;
        }
        let syncs = log.stats().syncs;
        for _ in 0..40 {
            log.pump(world.now, &mut world.io);
            world.perform();
            if log.stats().syncs > syncs {
                break;
            }
            world.complete_one(&mut log)?;
        }
        drop(log);
        world.disk.crash(Crash::Power, &mut world.power);
        world.probe()?;
    }
    world.recover(false)?;
    Ok(world.disk.trace())
}

impl World {
    fn new(seed: u64) -> Self {
        let mut root = Prng::new(seed.wrapping_mul(0x9E37_79B9) ^ 0x106);
        let mut work = root.fork(1);
        let flavor = Flavor {
            sectors: work.chance(40),
            faults: work.chance(20),
            space: work.chance(20),
            segment_bytes: [64 << 10, 64 << 10, 96 << 10, 256 << 10][work.below(4) as usize],
        };
        let config = LogConfig {
            shard: ShardId(3),
            shards: 8,
            directory: *b"a data directory",
            segment_bytes: flavor.segment_bytes,
            tail_bytes: [0, 64 << 10, 1 << 20][work.below(3) as usize],
            read_ahead_bytes: [0, 16 << 10, 1 << 20][work.below(3) as usize],
            entropy: seed,
        };
        let (order, mut power) = (root.fork(2), root.fork(3));
        let disk = FaultDisk::new(&mut power);
        let now = Now { mono_us: 0, wall_us: 1_700_000_000_000_000 };
        World {
            work,
            order,
            power,
            disk,
            config,
            flavor,
            model: Model::default(),
            now,
            marks: Marks::default(),
            reads: BTreeMap::new(),
            next_read: 0,
            io: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn lives(&mut self) -> Step {
        let lives = 2 + self.work.below(5);
        let mut clean = false;
        for life in 0..lives {
            let mut log = self.recover(clean).map_err(|why| format!("life {life}: {why}"))?;
            let steps = 5 + self.work.below(150);
            for _ in 0..steps {
                self.step(&mut log).map_err(|why| format!("life {life}: {why}"))?;
                if log.fault().is_some() {
                    break;
                }
            }
            clean = false;
            if log.fault().is_none() {
                match self.work.below(5) {
                    0 => self.settle(&mut log, true)?,
                    1 => clean = self.stop(&mut log)?,
                    2 => self.heal(&mut log).map_err(|why| format!("life {life}: {why}"))?,
                    _ => {}
                }
            }
            drop(log);
            self.reads.clear();
            let power = self.power.chance(70) || life + 1 == lives;
            let kind = if power { Crash::Power } else { Crash::Kill };
            self.disk.crash(kind, &mut self.power);
            if power {
                self.probe().map_err(|why| format!("life {life}: {why}"))?;
            }
        }
        self.recover(clean).map(drop).map_err(|why| format!("at the end: {why}"))
    }

    /// Opens the log, perhaps with the power going away meanwhile, and checks it.
    fn recover(&mut self, clean: bool) -> Result<Log<HeapBuf>, String> {
        let mut attempts = if self.power.chance(30) { 1 + self.power.below(3) } else { 0 };
        loop {
            if attempts > 0 {
                attempts -= 1;
                self.disk.crash_after(1 + self.power.below(80));
            }
            let opened = open(&mut self.disk, &self.config);
            if self.disk.has_crashed() {
                drop(opened);
                let kind = if self.power.chance(70) { Crash::Power } else { Crash::Kill };
                self.disk.crash(kind, &mut self.power);
                self.seen.crashes_in_recovery += 1;
                continue;
            }
            self.disk.crash_after(u64::MAX);
            let (log, recovery, found) =
                opened.map_err(|error| format!("FALSE ALARM without damage: {error}"))?;
            let base = self.model.check(&found)?;
            self.model.check_extent(&recovery.extent, base + found.len())?;
            self.seen.lost = self.seen.lost.max(self.model.lost.len() as u64);
            if clean && !recovery.clean {
                return Err("a clean stop was not recognised".into());
            }
            if recovery.records != found.len() as u64 {
                return Err("records are counted wrongly".into());
            }
            let known = recovery.marks;
            if known.partition_counter > self.marks.partition_counter {
                return Err("marks from nowhere".into());
            }
            self.seen.clean_stops += u64::from(clean);
            let torn = recovery.notices.iter().any(|notice| notice.contains("torn tail"));
            self.seen.torn_tails += u64::from(torn);
            let last = found.last().map_or(0, |entry| u64::from(entry.at.segment().0));
            self.seen.rolls = self.seen.rolls.max(last);
            self.model.adopt(base, found.len());
            return Ok(log);
        }
    }

    fn step(&mut self, log: &mut Log<HeapBuf>) -> Step {
        match self.work.below(20) {
            0..=7 => self.appends(log)?,
            8..=12 => {
                let count = 1 + self.work.below(6);
                for _ in 0..count {
                    self.complete_one(log)?;
                }
            }
            13..=14 => self.read(log)?,
            15 => self.release(log),
            16 => self.advance(log),
            17 if self.work.chance(20) => self.settle(log, self.flavor.sectors)?,
            18 => self.change_faults(),
            _ => {
                self.marks.partition_counter += 1;
                log.set_marks(self.marks);
            }
        }
        log.pump(self.now, &mut self.io);
        self.perform();
        self.observe(log)
    }

    fn perform(&mut self) {
        for op in self.io.drain(..) {
            self.disk.perform(op);
        }
    }

    fn observe(&mut self, log: &Log<HeapBuf>) -> Step {
        if log.appended() < log.durable() {
            return Err("durable beyond appended".into());
        }
        self.model.durable(log.durable());
        Ok(())
    }

    fn body(&mut self) -> Vec<u8> {
        let len = if self.flavor.sectors {
            [512, 512, 1_024, 3_584, 4_096][self.work.below(5) as usize] - 40
        } else {
            match self.work.below(20) {
                0 => 3_000 + self.work.below(12_000),
                1..=4 => 400 + self.work.below(700),
                5 => 4_096 - 40,
                6 => 0,
                7 if self.work.chance(20) => 20_000 + self.work.below(25_000),
                _ => self.work.below(300),
            }
        };
        let mut body = vec![0; len as usize];
        if self.work.chance(70) {
            let seed = self.work.next_u64();
            let mut bytes = Prng::new(seed);
            body.iter_mut().for_each(|byte| *byte = bytes.next_u64() as u8);
        }
        body
    }

    fn appends(&mut self, log: &mut Log<HeapBuf>) -> Step {
        for _ in 0..self.work.below(6) {
            let body = self.body();
            let class = if self.work.chance(80) { Class::Growing } else { Class::Essential };
            self.append(log, body, class)?;
        }
        Ok(())
    }

    fn append(&mut self, log: &mut Log<HeapBuf>, body: Vec<u8>, class: Class) -> Step {
        let (kind, key) = (16 + self.work.below(200) as u8, self.work.next_u64());
        let split = self.work.below(body.len() as u64 + 1) as usize;
        let (left, right) = body.split_at(split);
        match log.append(kind, key, &[left, right], class) {
            Ok(appended) => {
                let entry = Entry { kind, key, body, at: appended.at, bytes: appended.bytes };
                if log.appended() != entry.end() {
                    return Err("appended is not the end of the record".into());
                }
                if self.model.entries.last().is_some_and(|last| last.end() > entry.at) {
                    return Err("positions do not rise".into());
                }
                self.model.entries.push(entry);
                Ok(())
            }
            Err(AppendError::Busy) => {
                self.seen.busy += 1;
                Ok(())
            }
            Err(AppendError::NoSpace) if self.flavor.space => {
                self.seen.refused_for_space += 1;
                Ok(())
            }
            Err(AppendError::Stopped) if log.fault().is_some() => Ok(()),
            Err(error) => Err(format!("append refused: {error}")),
        }
    }

    fn complete_one(&mut self, log: &mut Log<HeapBuf>) -> Step {
        let Some(done) = self.disk.take_completion(&mut self.order) else { return Ok(()) };
        let before = log.durable();
        let completion = log.complete(self.now, done, &mut self.io);
        self.perform();
        match completion {
            Completion::Durable if log.durable() <= before => {
                return Err("told of durability that did not move".into());
            }
            Completion::Durable => {}
            _ if log.durable() != before => return Err("durable moved in silence".into()),
            Completion::Reads(ended) => {
                ended.into_iter().try_for_each(|read| self.complete_read(read.key, read.result))?;
            }
            Completion::Poisoned if !self.flavor.faults => {
                return Err(format!("poisoned without a fault: {:?}", log.fault()));
            }
            Completion::Poisoned => self.seen.poisoned += 1,
            Completion::Quiet => {}
        }
        self.observe(log)
    }

    fn complete_read(
        &mut self,
        key: u64,
        result: Result<lanemq::base::buf::Gather<HeapBuf>, ReadError>,
    ) -> Step {
        let index = self.reads.remove(&key).ok_or("a read ended twice")?;
        match result {
            Ok(body) if body.to_vec() == self.model.entries[index].body => {
                self.seen.disk_reads += 1;
                Ok(())
            }
            Ok(_) => Err(format!("read of {index} gave other bytes")),
            Err(ReadError::Device { .. }) if self.flavor.faults => Ok(()),
            Err(error) => Err(format!("read of {index}: {error}")),
        }
    }

    fn read(&mut self, log: &mut Log<HeapBuf>) -> Step {
        let first = self.model.released.max(self.model.gone);
        let kept = self.model.entries.len().saturating_sub(first);
        if kept == 0 {
            return Ok(());
        }
        let index = first + self.work.below(kept as u64) as usize;
        let entry = self.model.entries[index].clone();
        let key = self.next_read;
        self.next_read += 1;
        let in_tail = log.in_tail(entry.at);
        let read = log.read(entry.at, entry.bytes, key, &mut self.io);
        if in_tail && read.is_none() {
            return Err("not in the tail after all".into());
        }
        match read {
            Some(body) if body.to_vec() != entry.body => Err("the tail has other bytes".into()),
            Some(_) => {
                self.seen.tail_reads += 1;
                Ok(())
            }
            None => {
                self.reads.insert(key, index);
                Ok(())
            }
        }
    }

    /// Releases some sealed segments; reads of them may still be in flight.
    fn release(&mut self, log: &mut Log<HeapBuf>) {
        let sealed: Vec<SegmentId> =
            log.segments().take_while(|info| info.sealed).map(|info| info.id).collect();
        if sealed.len() < 2 {
            return;
        }
        let keep = sealed[self.work.below(sealed.len() as u64) as usize];
        let released = self.model.entries.partition_point(|entry| entry.at.segment() < keep);
        self.model.released = self.model.released.max(released);
        if keep > sealed[0] {
            self.model.lost.clear();
        }
        self.seen.released += sealed.iter().filter(|segment| **segment < keep).count() as u64;
        log.release_before(keep, &mut self.io);
    }

    fn advance(&mut self, log: &mut Log<HeapBuf>) {
        let random = self.now.mono_us + self.work.below(50_000);
        let next = log.next_deadline().map_or(random, |deadline| deadline.0);
        let to = if self.work.chance(50) { next } else { random };
        let by = to.saturating_sub(self.now.mono_us);
        self.now.mono_us += by;
        self.now.wall_us += by as i64;
        if log.next_deadline().is_some_and(|deadline| deadline.passed(self.now)) {
            log.tick(self.now, &mut self.io);
        }
    }

    fn change_faults(&mut self) {
        let mut faults = Faults::default();
        if self.flavor.space {
            faults.no_space = self.work.chance(60);
            faults.write_no_space_percent = if self.work.chance(30) { 20 } else { 0 };
        }
        if self.flavor.faults && self.work.chance(50) {
            match self.work.below(3) {
                0 => faults.read_error_percent = 30,
                1 => faults.sync_error_percent = 5,
                _ => faults.write_error_percent = 5,
            }
        }
        self.disk.faults = faults;
    }

    /// Lets everything come to rest; with `idle`, also what happens when nothing happens.
    fn settle(&mut self, log: &mut Log<HeapBuf>, idle: bool) -> Step {
        self.disk.faults = Faults::default();
        for _ in 0..10_000 {
            log.pump(self.now, &mut self.io);
            self.perform();
            if self.disk.in_flight() > 0 {
                self.complete_one(log)?;
            } else if let Some(deadline) = log.next_deadline().filter(|_| idle) {
                self.now.mono_us = self.now.mono_us.max(deadline.0);
                log.tick(self.now, &mut self.io);
                self.perform();
            } else if idle || !log.no_space() || log.next_deadline().is_none() {
                return self.at_rest(log);
            } else {
                self.now.mono_us += 100_000;
                log.tick(self.now, &mut self.io);
            }
        }
        Err("the log does not come to rest".into())
    }

    fn at_rest(&mut self, log: &Log<HeapBuf>) -> Step {
        if log.fault().is_none() && log.durable() != log.appended() {
            return Err("at rest, but not all is durable".into());
        }
        self.observe(log)
    }

    fn stop(&mut self, log: &mut Log<HeapBuf>) -> Result<bool, String> {
        self.disk.faults = Faults::default();
        log.stop(self.now, &mut self.io);
        for _ in 0..10_000 {
            self.perform();
            if log.is_stopped() {
                return match self.model.answered == self.model.entries.len() {
                    true => Ok(true),
                    false => Err("stopped before all was durable".into()),
                };
            }
            self.complete_one(log)?;
            log.pump(self.now, &mut self.io);
            self.perform();
            if self.disk.in_flight() == 0 {
                self.now.mono_us += 100_000;
                log.tick(self.now, &mut self.io);
            }
        }
        Err("the log does not stop".into())
    }

    /// Space is back and nothing fails: appends must go through again by themselves.
    fn heal(&mut self, log: &mut Log<HeapBuf>) -> Step {
        self.disk.faults = Faults::default();
        let before = self.model.entries.len();
        for _ in 0..500 {
            let body = self.body();
            self.append(log, body, Class::Growing)?;
            if self.model.entries.len() > before + 8 {
                return self.settle(log, true);
            }
            log.pump(self.now, &mut self.io);
            self.perform();
            self.complete_one(log)?;
            self.now.mono_us += 50_000;
            log.tick(self.now, &mut self.io);
            self.perform();
        }
        Err(format!("appends do not go through again, no_space {}", log.no_space()))
    }

    /// After a power cut: what would a recovery see, and does it notice flipped bits?
    fn probe(&mut self) -> Step {
        let mut disk = self.disk.clone();
        let (log, recovery, found) = open(&mut disk, &self.config)
            .map_err(|error| format!("FALSE ALARM without damage: {error}"))?;
        self.model.check(&found)?;
        let segments: Vec<_> = log.segments().collect();
        for _ in 0..4 {
            let mut disk = self.disk.clone();
            if self.power.chance(15) || segments.is_empty() {
                let bytes = disk.bytes(FileId::Manifest).len() as u64;
                if bytes > 0 {
                    let byte = if self.power.chance(80) {
                        self.power.below(2) * bytes / 2 + self.power.below(250)
                    } else {
                        self.power.below(bytes)
                    };
                    disk.flip(FileId::Manifest, (byte * 8 + self.power.below(8)) as usize);
                }
                if let Ok((_, _, flipped)) = open(&mut disk, &self.config) {
                    self.model.check(&flipped).map_err(|why| format!("manifest flip: {why}"))?;
                }
                continue;
            }
            let index = match self.power.chance(60) {
                true => segments.len() - 1,
                false => self.power.below(segments.len() as u64) as usize,
            };
            let info = segments[index];
            let byte = self.power.below(info.bytes);
            disk.flip(FileId::Segment(info.id), (byte * 8 + self.power.below(8)) as usize);
            let place = LogPosition::new(info.id, byte);
            match open(&mut disk, &self.config) {
                Ok(_) if place < recovery.witnessed => {
                    return Err(format!(
                        "flip at {place:?} before {:?} unnoticed",
                        recovery.witnessed
                    ));
                }
                Ok((_, _, flipped)) if !found.starts_with(&flipped) => {
                    return Err(format!("flip at {place:?} accepted wrongly"));
                }
                Ok(_) | Err(OpenError::Damaged { .. } | OpenError::Corrupt { .. }) => {}
                Err(error) => return Err(format!("flip at {place:?} misnamed: {error}")),
            }
        }
        Ok(())
    }
}

impl Seen {
    fn counts(&self) -> [u64; 11] {
        [
            self.torn_tails,
            self.rolls,
            self.released,
            self.disk_reads,
            self.tail_reads,
            self.refused_for_space,
            self.busy,
            self.poisoned,
            self.crashes_in_recovery,
            self.lost,
            self.clean_stops,
        ]
    }

    fn add(&mut self, other: Self) {
        *self = Self {
            torn_tails: self.torn_tails + other.torn_tails,
            rolls: self.rolls + other.rolls,
            released: self.released + other.released,
            disk_reads: self.disk_reads + other.disk_reads,
            tail_reads: self.tail_reads + other.tail_reads,
            refused_for_space: self.refused_for_space + other.refused_for_space,
            busy: self.busy + other.busy,
            poisoned: self.poisoned + other.poisoned,
            crashes_in_recovery: self.crashes_in_recovery + other.crashes_in_recovery,
            lost: self.lost.max(other.lost),
            clean_stops: self.clean_stops + other.clean_stops,
        };
    }
}

#[test]
fn log_worlds_meet_what_they_are_made_for() {
    for seed in 0..100 {
        run(seed).unwrap();
    }
    let seen = SEEN.with_borrow(|seen| *seen);
    println!("{seen:?}");
    assert!(seen.counts().iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn log_survives() {
    for_seeds("log_survives", 300, run);
}

#[test]
fn log_survives_holes() {
    for_seeds("log_survives_holes", 300, holes);
}

#[test]
fn log_same_seed_same_trace() {
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

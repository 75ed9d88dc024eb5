//! Damage to a log's files, one at a time and all of them: each must be named, or do no harm.

use crate::disk::{Crash, FaultDisk, Faults};
use crate::for_seeds;
use crate::log_world::{Entry, open};
use lanemq::base::buf::HeapBuf;
use lanemq::base::ids::{LogPosition, SegmentId, ShardId};
use lanemq::base::prng::Prng;
use lanemq::base::time::Now;
use lanemq::log::io::{FileId, LogIo};
use lanemq::log::{AppendError, Appended, Class, Completion, Log, LogConfig, OpenError, Recovery};

const NOW: Now = Now { mono_us: 0, wall_us: 0 };

fn config() -> LogConfig {
    LogConfig {
        shard: ShardId(0),
        shards: 1,
        directory: *b"0123456789abcdef",
        segment_bytes: 32 << 10,
        tail_bytes: 0,
        read_ahead_bytes: 0,
        entropy: 7,
    }
}

/// A log and the disk it runs on, for tests that go step by step.
struct Bench {
    disk: FaultDisk,
    log: Log<HeapBuf>,
    now: Now,
    order: Prng,
}

impl Bench {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: LogConfig) -> Self {
        let mut prng = Prng::new(1);
        let mut disk = FaultDisk::new(&mut prng);
        let (log, recovery, found) = open(&mut disk, &config).unwrap();
        assert!(found.is_empty() && recovery.clean && recovery.notices.is_empty());
        Self { disk, log, now: NOW, order: prng }
    }

    fn append(&mut self, body: &[u8], class: Class) -> Result<LogPosition, AppendError> {
        self.log.append(20, 1, &[body], class).map(|appended| appended.at)
    }

    /// Runs until nothing is in flight.
    fn settle(&mut self) {
        loop {
            let mut io: Vec<LogIo<HeapBuf>> = Vec::new();
            self.log.pump(self.now, &mut io);
            io.drain(..).for_each(|op| self.disk.perform(op));
            let Some(done) = self.disk.take_completion(&mut self.order) else { return };
            self.log.complete(self.now, done, &mut io);
            io.drain(..).for_each(|op| self.disk.perform(op));
        }
    }

    fn tick(&mut self) {
        let mut io = Vec::new();
        if let Some(deadline) = self.log.next_deadline() {
            self.now.mono_us = self.now.mono_us.max(deadline.0);
            self.log.tick(self.now, &mut io);
        }
        io.drain(..).for_each(|op| self.disk.perform(op));
        self.settle();
    }

    /// Durable records, one chunk each, the last one witnessed if `idle`.
    fn fill(&mut self, sizes: &[usize], idle: bool) {
        for (n, size) in sizes.iter().enumerate() {
            while self.append(&vec![n as u8 + 1; *size], Class::Growing).is_err() {
                self.settle();
            }
            self.settle();
        }
        if idle {
            self.tick();
        }
    }

    /// The first byte of each record's body, all asked for before any is there.
    fn read(&mut self, records: &[Appended]) -> Vec<Option<u8>> {
        let (mut io, mut found) = (Vec::new(), vec![None; records.len()]);
        for (key, record) in records.iter().enumerate() {
            let body = self.log.read(record.at, record.bytes, key as u64, &mut io);
            found[key] = body.map(|body| body.to_vec()[0]);
        }
        io.drain(..).for_each(|op| self.disk.perform(op));
        while let Some(done) = self.disk.take_completion(&mut self.order) {
            if let Completion::Reads(ended) = self.log.complete(self.now, done, &mut io) {
                for read in ended {
                    found[read.key as usize] = read.result.ok().map(|body| body.to_vec()[0]);
                }
            }
            io.drain(..).for_each(|op| self.disk.perform(op));
        }
        found
    }

    fn crash(mut self) -> FaultDisk {
        self.disk.crash(Crash::Kill, &mut self.order);
        self.disk
    }
}

fn reopen(disk: &FaultDisk) -> Result<(Recovery, Vec<Entry>), OpenError> {
    let mut disk = disk.clone();
    open(&mut disk, &config()).map(|(_, recovery, found)| (recovery, found))
}

/// Two sealed segments and an open one, with few bytes of data, all durable and witnessed.
fn small_log() -> FaultDisk {
    let mut bench = Bench::new();
    bench.fill(&[9_000, 9_000, 9_000, 100, 9_000, 300, 40], true);
    assert!(bench.log.segments().count() >= 2);
    bench.crash()
}

#[test]
fn every_single_bit_of_a_small_log_is_noticed() {
    let disk = small_log();
    let (before, found) = reopen(&disk).unwrap();
    let segments: Vec<SegmentId> = disk
        .files()
        .into_iter()
        .filter_map(|file| match file {
            FileId::Segment(id) => Some(id),
            _ => None,
        })
        .collect();
    // Every bit of headers and small records; of bulk and padding every 61st.
    for segment in segments {
        let file = FileId::Segment(segment);
        for bit in 0..disk.bytes(file).len() * 8 {
            let byte = bit as u64 / 8;
            let bulk = byte % 4_096 > 150;
            let place = LogPosition::new(segment, byte);
            if bulk && bit % 61 != 0 || place >= before.witnessed.advance(4_096) {
                continue;
            }
            let mut flipped = disk.clone();
            flipped.flip(file, bit);
            match reopen(&flipped) {
                Ok(_) if place < before.witnessed && !behind_data(&found, place) => {
                    panic!("flip at {place:?} before {:?} unnoticed", before.witnessed)
                }
                Ok((_, flipped)) => assert!(found.starts_with(&flipped), "flip at {place:?}"),
                Err(OpenError::Damaged { segment: named, .. }) => assert_eq!(named, segment),
                Err(OpenError::Corrupt { segment: named, .. }) => assert_eq!(named, segment),
                Err(error) => panic!("flip at {place:?}: {error}"),
            }
        }
    }
}

/// Behind the last record of a sealed segment nothing is claimed. The closing record follows
/// the last of ours.
fn behind_data(found: &[Entry], place: LogPosition) -> bool {
    let last = found.iter().rfind(|entry| entry.at.segment() == place.segment());
    let later = found.iter().any(|entry| entry.at.segment() > place.segment());
    later && last.is_some_and(|last| place >= last.at.advance(u64::from(last.bytes) + 40))
}

#[test]
fn a_file_of_any_other_length_is_named() {
    let disk = small_log();
    for file in disk.files() {
        let length = disk.bytes(file).len();
        let steps = (0..length).rev().take(3_000).chain((0..length).step_by(997));
        for to in steps.step_by(if file == FileId::Manifest { 499 } else { 37 }) {
            let mut cut = disk.clone();
            cut.damage(file, |bytes| bytes.truncate(to));
            match (file, reopen(&cut)) {
                (FileId::Manifest, Err(OpenError::ManifestDamaged { .. })) => {}
                (FileId::Segment(id), Err(OpenError::SegmentShort { segment, bytes, .. })) => {
                    assert_eq!((id, to as u64), (segment, bytes));
                }
                (FileId::Spare(_), Ok(_)) => {}
                (file, other) => panic!("{file:?} cut to {to}: {other:?}"),
            }
        }
    }
}

/// What a torn write leaves: the newest chunk up to some byte, zeros behind it.
#[test]
fn a_chunk_torn_at_any_byte_leaves_exactly_its_whole_records() {
    let mut bench = Bench::new();
    bench.fill(&[500], true);
    let durable = bench.log.durable().byte() as usize;
    for n in 0..5u8 {
        bench.append(&vec![n + 1; 100 + usize::from(n) * 333], Class::Growing).unwrap();
    }
    bench.settle();
    let file = FileId::Segment(SegmentId(1));
    let disk = bench.crash();
    let (_, whole) = reopen(&disk).unwrap();
    for byte in durable..durable + 8_192 {
        let mut torn = disk.clone();
        torn.damage(file, |bytes| bytes[byte..].fill(0));
        let (recovery, found) = reopen(&torn).unwrap();
        // A record that ends in zeros anyway may be whole before its last byte is reached.
        let fits = whole.iter().filter(|e| e.at.byte() + u64::from(e.bytes) <= byte as u64);
        assert_eq!(found, whole[..fits.count()], "torn at {byte}");
        assert!(!recovery.clean || byte >= durable + 4_096 || byte == durable);
    }
}

#[test]
fn missing_swapped_and_foreign_files_are_named() {
    let disk = small_log();
    let segment = |n| FileId::Segment(SegmentId(n));
    let damaged = |change: &dyn Fn(&mut FaultDisk)| {
        let mut disk = disk.clone();
        change(&mut disk);
        reopen(&disk)
    };
    let error = damaged(&|disk| disk.lose_file(segment(1))).unwrap_err();
    assert_eq!(error, OpenError::SegmentMissing { segment: SegmentId(1) });
    assert_eq!(error.to_string(), "0000000001.seg is missing although the manifest names it");
    let error = damaged(&|disk| disk.lose_file(FileId::Manifest)).unwrap_err();
    assert_eq!(error, OpenError::ManifestMissing { segment: SegmentId(1) });
    let error = damaged(&|disk| disk.swap_files(segment(1), segment(2))).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { segment: SegmentId(1), at: 0, .. }), "{error}");
    let error = damaged(&|disk| disk.damage(segment(1), |bytes| bytes.fill(0xFF))).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { segment: SegmentId(1), at: 0, .. }), "{error}");
    let error = damaged(&|disk| disk.damage(FileId::Manifest, |b| b.fill(0))).unwrap_err();
    assert!(matches!(error, OpenError::ManifestDamaged { .. }), "{error}");

    let mut other = disk.clone();
    let wrong = |change: &dyn Fn(&mut LogConfig)| {
        let mut config = config();
        change(&mut config);
        open(&mut disk.clone(), &config).err().unwrap()
    };
    let error = wrong(&|config| config.directory[3] ^= 1);
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    let error = wrong(&|config| config.shard = ShardId(4));
    assert_eq!(error, OpenError::WrongShard { found: ShardId(0), wanted: ShardId(4) });
    let error = wrong(&|config| config.shards = 2);
    assert_eq!(error, OpenError::ShardCount { found: 1, wanted: 2 });
    // Files of no manifest are leftovers, whatever their length.
    other.put_file(FileId::Segment(SegmentId(900)), vec![1; 10]);
    other.put_file(FileId::Segment(SegmentId(901)), vec![2; 32 << 10]);
    other.put_file(FileId::Spare(77), Vec::new());
    other.put_file(FileId::Cut(SegmentId(1)), Vec::new());
    assert_eq!(reopen(&other).unwrap().1, reopen(&disk).unwrap().1);
}

#[test]
fn another_segment_size_keeps_the_old_segments() {
    let disk = small_log();
    let mut larger = disk.clone();
    let config = LogConfig { segment_bytes: 64 << 10, ..config() };
    let (mut log, _, found) = open(&mut larger, &config).unwrap();
    assert_eq!(found, reopen(&disk).unwrap().1);
    log.append(20, 1, &[&[1; 40_000]], Class::Growing).unwrap();
}

#[test]
fn a_read_error_is_neither_torn_nor_damaged() {
    let mut disk = small_log();
    let whole = reopen(&disk).unwrap().1;
    disk.faults = Faults { read_error_percent: 20, ..Faults::default() };
    let mut refused = 0;
    for seed in 0..40 {
        disk.put_file(FileId::Cut(SegmentId(seed)), Vec::new());
        match reopen(&disk) {
            Ok((_, found)) => assert_eq!(found, whole),
            Err(OpenError::Device { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let _ = open(&mut disk, &config());
    }
    assert!(refused > 0);
}

/// Reads what a read around a record brought for its neighbours.
#[test]
fn a_record_that_cannot_be_read_harms_none_that_is_read_with_it() {
    let mut bench =
        Bench::with(LogConfig { segment_bytes: 256 << 10, read_ahead_bytes: 64 << 10, ..config() });
    bench.settle();
    let appended: Vec<_> = (0..5_u8)
        .map(|n| {
            let appended = bench.log.append(20, 1, &[&[n; 3_000][..]], Class::Growing).unwrap();
            bench.settle();
            appended
        })
        .collect();
    // The first is read alone, the next one with all behind it.
    assert_eq!(bench.read(&appended[..1]), [Some(0)]);
    let before = bench.log.stats();
    assert_eq!(bench.read(&appended[1..4]), [Some(1), Some(2), Some(3)]);
    assert_eq!(bench.read(&appended[1..]), [Some(1), Some(2), Some(3), Some(4)]);
    let after = bench.log.stats();
    assert_eq!((after.reads - before.reads, after.read_bytes - before.read_bytes), (1, 16 << 10));

    let file = FileId::Segment(appended[0].at.segment());
    let bit = 8 * (appended[2].at.byte() as usize + 900);
    for (damaged, faults) in [
        (true, Faults::default()),
        (false, Faults { read_error_percent: 100, ..Faults::default() }),
        (false, Faults::default()),
    ] {
        // What was read before is kept in memory, where damage to the file does not reach.
        let (mut disk, order) = (bench.crash(), Prng::new(3));
        disk.faults = Faults::default();
        let (log, _, _) =
            open(&mut disk, &LogConfig { read_ahead_bytes: 64 << 10, ..config() }).unwrap();
        bench = Bench { disk, log, now: NOW, order };
        if damaged {
            bench.disk.flip(file, bit);
        }
        bench.disk.faults = faults;
        let all = [Some(0), Some(1), Some(2), Some(3), Some(4)];
        let wanted = match (damaged, bench.disk.faults.read_error_percent) {
            (true, _) => [Some(0), Some(1), None, Some(3), Some(4)],
            (false, 0) => all,
            (false, _) => [None; 5],
        };
        let (first, rest) = (bench.read(&appended[..1]), bench.read(&appended[1..]));
        assert_eq!([&first[..], &rest[..]].concat(), wanted);
        if damaged {
            bench.disk.flip(file, bit);
            assert_eq!(bench.read(&appended[2..3]), [Some(2)], "it was read anew");
        }
    }
}

#[test]
fn pushes_stop_on_a_full_disk_acks_go_on_and_space_heals() {
    let mut bench = Bench::new();
    bench.settle();
    bench.disk.faults.no_space = true;
    let mut refused = None;
    for _ in 0..200 {
        match bench.append(&[1; 3_000], Class::Growing) {
            Ok(_) | Err(AppendError::Busy) => {}
            Err(error) => refused = Some(error),
        }
        bench.settle();
    }
    assert_eq!(refused, Some(AppendError::NoSpace));
    assert!(bench.log.no_space() && bench.log.fault().is_none());
    for n in 0..100 {
        while let Err(error) = bench.append(&[2; 60], Class::Essential) {
            assert_eq!(error, AppendError::Busy, "ack {n}");
            bench.settle();
        }
        assert_eq!(bench.append(&[1; 3_000], Class::Growing), Err(AppendError::NoSpace));
    }
    bench.settle();
    // Releasing what the acks made free is enough, though no create succeeds.
    let keep = bench.log.segments().last().map(|info| info.id).unwrap();
    let mut io = Vec::new();
    bench.log.release_before(keep, &mut io);
    io.drain(..).for_each(|op| bench.disk.perform(op));
    bench.settle();
    bench.append(&[1; 3_000], Class::Growing).unwrap();
    bench.settle();
    // And so is space that comes back, by itself.
    bench.disk.faults.no_space = false;
    (0..10).for_each(|_| bench.tick());
    assert!(!bench.log.no_space());
    bench.fill(&[3_000; 40], false);
    let appended = bench.log.appended();
    assert_eq!(bench.log.durable(), appended);
}

#[test]
fn a_full_disk_still_opens() {
    let mut disk = small_log();
    for file in disk.files() {
        if matches!(file, FileId::Spare(_)) {
            disk.lose_file(file);
        }
    }
    disk.faults.no_space = true;
    let (mut log, _, found) = open(&mut disk, &config()).unwrap();
    assert!(!found.is_empty() && log.no_space());
    let refused = log.append(20, 1, &[b"x"], Class::Essential);
    assert_eq!(refused.err(), Some(AppendError::NoSpace));
}

#[test]
fn a_failed_sync_poisons_and_the_next_opening_tells_the_truth() {
    let mut bench = Bench::new();
    bench.fill(&[100, 200], false);
    let durable = bench.log.durable();
    bench.append(&[3; 300], Class::Growing).unwrap();
    bench.disk.faults.sync_error_percent = 100;
    bench.settle();
    assert!(bench.log.fault().unwrap().contains("sync"));
    assert_eq!(bench.log.durable(), durable);
    assert_eq!(bench.append(b"more", Class::Essential), Err(AppendError::Stopped));
    let (_, found) = reopen(&bench.crash()).unwrap();
    assert!(found.len() >= 2);
}

#[test]
fn one_bit_at_the_cut_is_reported_and_the_cut_bytes_are_kept() {
    let mut bench = Bench::new();
    bench.fill(&[100, 200], false);
    let at = bench.log.durable().byte();
    bench.append(&[3; 300], Class::Growing).unwrap();
    bench.settle();
    let mut disk = bench.crash();
    disk.flip(FileId::Segment(SegmentId(1)), (at as usize + 60) * 8 + 3);
    let (_, recovery, found) = open(&mut disk, &config()).unwrap();
    assert_eq!(found.len(), 2);
    assert!(!recovery.clean);
    assert!(recovery.notices.iter().any(|n| n.contains("one bit")), "{:?}", recovery.notices);
    assert!(disk.bytes(FileId::Cut(SegmentId(1))).len() >= 4_096);
    // The second opening has nothing left to say.
    let (recovery, again) = reopen(&disk).unwrap();
    assert_eq!(again, found);
    assert!(recovery.clean && recovery.notices.is_empty());
}

/// Random bytes in place of files, or written into them: never a panic, never a record that
/// was not there.
fn fuzz(seed: u64) -> Result<u64, String> {
    thread_local! {
        static GOOD: (FaultDisk, Vec<Entry>) = {
            let disk = small_log();
            let found = reopen(&disk).unwrap().1;
            (disk, found)
        };
    }
    GOOD.with(|(good, whole)| {
        let mut prng = Prng::new(seed);
        let mut disk = good.clone();
        for _ in 0..1 + prng.below(3) {
            let files = disk.files();
            let file = files[prng.below(files.len() as u64) as usize];
            let length = disk.bytes(file).len() as u64;
            let (kind, value) = (prng.below(5), prng.next_u64());
            let at = prng.below(length.min(16 << 10) + 1) as usize;
            let len = 1 + prng.below(600) as usize;
            disk.damage(file, |bytes| {
                let to = (at + len).min(bytes.len());
                let from = at.min(to);
                let mut random = Prng::new(value);
                match kind {
                    0 => bytes[from..to].iter_mut().for_each(|b| *b = random.next_u64() as u8),
                    1 => bytes[from..to].fill(value as u8),
                    2 => bytes.truncate(from),
                    3 => bytes.iter_mut().for_each(|b| *b = random.next_u64() as u8),
                    _ => bytes[from..to].iter_mut().for_each(|b| *b = 0x80 | value as u8),
                }
            });
        }
        match reopen(&disk) {
            Ok((_, found)) if !whole.starts_with(&found) => Err("invented records".to_owned()),
            Ok(_) | Err(_) => Ok(0),
        }
    })
}

#[test]
fn log_fuzz() {
    for_seeds("log_fuzz", 3_000, fuzz);
}

/// A record in the middle of a chunk never landed, what was written behind it did, and begins
/// where the next chunk could: nothing but the chain says that something is missing between.
fn hole(seed: u64) -> Result<u64, String> {
    const RECORD_HEADER: usize = 40;
    let mut prng = Prng::new(seed ^ 0x401E);
    let mut bench = Bench::new();
    bench.fill(&[100], true);
    let first = RECORD_HEADER + 8 * prng.below(480) as usize;
    let mut places = Vec::new();
    for size in [first, 4_096 - first, 64 + 8 * prng.below(100) as usize] {
        let body = vec![7; size - RECORD_HEADER];
        let at = bench.append(&body, Class::Growing).map_err(|e| format!("{e:?}"))?;
        places.push(at);
    }
    bench.settle();
    let mut disk = bench.crash();
    let (_, whole) = reopen(&disk).map_err(|e| e.to_string())?;
    let file = FileId::Segment(places[1].segment());
    let (from, to) = (places[1].byte() as usize, places[2].byte() as usize);
    if to % 4_096 != 0 {
        return Err(format!("the hole ends at {to}"));
    }
    disk.damage(file, |bytes| bytes[from..to].fill(0));
    let (_, found) = reopen(&disk).map_err(|e| e.to_string())?;
    let before = whole.iter().take_while(|entry| entry.at < places[1]).count();
    match found == whole[..before] {
        true => Ok(disk.trace()),
        false => Err(format!("{} records of {before} before the hole", found.len())),
    }
}

#[test]
fn log_holes() {
    for_seeds("log_holes", 20, hole);
}

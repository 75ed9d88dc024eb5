//! Opening a log: create it, or find out what the last process left. The rules and why they
//! are right: `FORMAT.md` 7. Blocking, once, before anything is served.

use super::error::OpenError;
use super::footer::{Entry, FooterEnd, FooterIndex};
use super::format::{
    BLOCK, FEATURES, FORMAT_VERSION, Geometry, KIND_BROKER_MIN, KIND_FINAL, KIND_SEGMENT, Marks,
    Place, Salt, SegmentHeader,
};
use super::io::FileId;
use super::manifest::{
    self, Chosen, MANIFEST_BYTES, Manifest, ManifestEntry, SLOT_BYTES, Seal, SegmentState,
    SlotError,
};
use super::read_ahead::ReadAhead;
use super::roll::SEGMENT_NUMBER_MAX;
use super::segment::{Phase, SPARES_MAX, SPARES_WANTED, Segments, Spares};
use super::storage::Storage;
use super::suspect::one_bit;
use super::walk::{Found, Next, Walk};
use super::{
    Chain, Chunk, InFlight, Log, LogConfig, LogStats, ManifestWriter, Positions, Stopping, Tail,
};
use crate::base::buf::{IoBuf, align_down, align_up};
use crate::base::extent::Extent;
use crate::base::fault::DiskError;
use crate::base::ids::{LogPosition, SegmentId};
use crate::base::mutant::Mutant;
use crate::base::prng::Prng;
use std::collections::BTreeMap;

/// Cut tails kept for a person, and how much of one.
const CUTS_MAX: usize = 8;
const CUT_BYTES_MAX: u64 = 64 << 20;

/// A record as recovery shows it, in the order of the log.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub kind: u8,
    pub key: u64,
    pub body: &'a [u8],
    pub at: LogPosition,
    /// The whole record with its header, unpadded.
    pub bytes: u32,
}

/// What opening found.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    pub marks: Marks,
    /// How far the log reaches.
    pub extent: Extent,
    /// The log ended with a final marker, or with a sealed segment: there was no tail to judge.
    pub clean: bool,
    /// What a person should know: cut tails, suspected bit flips.
    pub notices: Vec<String>,
    pub records: u64,
    /// Of those records.
    pub bytes: u64,
    /// The highest position that something in the log says was durable.
    pub witnessed: LogPosition,
}

type Files = BTreeMap<FileId, u64>;

impl<B: IoBuf> Log<B> {
    /// Opens the log of a shard's directory: creates it when none of our files are there, else
    /// shows each of the broker's records to `visit` in the order they were appended.
    pub fn open<S: Storage>(
        storage: &mut S,
        config: LogConfig,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(Self, Recovery), OpenError> {
        let why = "segment bytes out of bounds or no multiple of 4096";
        let geometry = Geometry::new(config.segment_bytes).ok_or(OpenError::Config { why })?;
        let files = list(storage)?;
        if !files.contains_key(&FileId::Manifest) {
            create(storage, &config, &files)?;
        }
        let chosen = load_manifest(storage)?;
        check_identity(&chosen.manifest, &config)?;
        check_files(&chosen.manifest, &list(storage)?)?;
        let mut replay = Replay::new(chosen.manifest.salt, chosen.manifest.marks);
        for entry in &chosen.manifest.segments {
            replay.segment(storage, entry, visit)?;
        }
        let Chosen { manifest, order } = chosen;
        let (settled, no_space) = settle(storage, &config, manifest, order, &mut replay)?;
        let (manifest, spares) = settled;
        Ok(Self::assemble(
            config,
            geometry,
            manifest,
            Spares::new(spares.0.into(), spares.1, no_space),
            replay,
        ))
    }

    fn assemble(
        config: LogConfig,
        geometry: Geometry,
        manifest: Manifest,
        spares: Spares,
        replay: Replay,
    ) -> (Self, Recovery) {
        let mut segments = Segments::default();
        manifest.segments.iter().for_each(|entry| segments.push(*entry, Phase::Live));
        let extent = manifest.segments.iter().map(|entry| (entry.segment, sealed_bytes(entry)));
        let extent = Extent::new(replay.released.unwrap_or_default(), extent);
        let end = match manifest.segments.last() {
            Some(last) => LogPosition::new(last.segment, align_up(sealed_bytes(last), BLOCK)),
            None => LogPosition::new(SegmentId(manifest.next_segment - 1), 0),
        };
        let log = Self {
            geometry,
            salt: manifest.salt,
            next_segment: manifest.next_segment,
            epoch: manifest.epoch,
            marks: replay.recovery.marks,
            chain: replay.chain.unwrap_or_default(),
            positions: Positions::new(end),
            active: None,
            filling: Chunk::new(end.segment(), end.byte(), 0),
            usual_chunk: 0,
            group: None,
            roll: None,
            segments,
            spares,
            manifest: ManifestWriter::new(manifest.sequence),
            tail: Tail::new(config.tail_bytes),
            ahead: ReadAhead::new(config.read_ahead_bytes),
            in_flight: InFlight::default(),
            redo: Vec::new(),
            redo_at: None,
            witness_at: None,
            growing_refused: false,
            stopping: Stopping::No,
            fault: None,
            stats: LogStats::default(),
            now_us: 0,
            records: 0,
            config,
        };
        (log, Recovery { extent, ..replay.recovery })
    }
}

fn sealed_bytes(entry: &ManifestEntry) -> u64 {
    match entry.state {
        SegmentState::Sealed(seal) => seal.data_bytes,
        SegmentState::Open => 0,
    }
}

fn device(doing: &'static str, file: FileId) -> impl FnOnce(DiskError) -> OpenError {
    move |error| OpenError::Device { doing, file: file.name(), error }
}

fn device_dir(doing: &'static str) -> impl FnOnce(DiskError) -> OpenError {
    move |error| OpenError::Device { doing, file: "the directory".to_owned(), error }
}

fn list<S: Storage>(storage: &mut S) -> Result<Files, OpenError> {
    Ok(storage.list().map_err(device_dir("list"))?.into_iter().collect())
}

fn sync_dir<S: Storage>(storage: &mut S) -> Result<(), OpenError> {
    if Mutant::NoDirectorySync.active() {
        return Ok(());
    }
    storage.sync_dir().map_err(device_dir("sync"))
}

fn next_spare(files: &Files) -> u32 {
    let number = |file: &FileId| match file {
        FileId::Spare(number) => number.wrapping_add(1),
        _ => 0,
    };
    files.keys().map(number).max().unwrap_or(0)
}

/// Makes the manifest of an empty log. Under another name until it is whole and synced: see
/// `FORMAT.md` 4.
fn create<S: Storage>(storage: &mut S, config: &LogConfig, files: &Files) -> Result<(), OpenError> {
    let segment = files.keys().find_map(|file| match file {
        FileId::Segment(segment) => Some(*segment),
        _ => None,
    });
    if let Some(segment) = segment {
        return Err(OpenError::ManifestMissing { segment });
    }
    let manifest = Manifest {
        sequence: 1,
        directory: config.directory,
        shard: config.shard,
        shards: config.shards,
        salt: new_salt(config),
        next_segment: 1,
        epoch: 0,
        marks: Marks::default(),
        segments: Vec::new(),
    };
    let draft = FileId::Spare(next_spare(files));
    storage.create(draft, MANIFEST_BYTES).map_err(device("create", draft))?;
    write_slots(storage, draft, &manifest, [0, 1])?;
    storage.rename(draft, FileId::Manifest).map_err(device("rename", draft))?;
    sync_dir(storage)
}

fn new_salt(config: &LogConfig) -> Salt {
    let mut prng = Prng::new(config.entropy).fork(u64::from(config.shard.0) + 1);
    let mut salt = config.directory;
    for (bytes, word) in salt.chunks_exact_mut(8).zip([prng.next_u64(), prng.next_u64()]) {
        bytes.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, random)| *byte ^= random);
    }
    Salt(salt)
}

fn write_slots<S: Storage>(
    storage: &mut S,
    file: FileId,
    manifest: &Manifest,
    order: [usize; 2],
) -> Result<(), OpenError> {
    let bytes = manifest.encode();
    for slot in order {
        let at = (slot * SLOT_BYTES) as u64;
        storage.write(file, at, &bytes).map_err(device("write", file))?;
        if !Mutant::NoManifestSync.active() {
            storage.sync(file).map_err(device("sync", file))?;
        }
    }
    Ok(())
}

/// Reads the manifest that counts, durable before it is believed.
fn load_manifest<S: Storage>(storage: &mut S) -> Result<Chosen, OpenError> {
    if !Mutant::NoRecoverySync.active() {
        storage.sync(FileId::Manifest).map_err(device("sync", FileId::Manifest))?;
        sync_dir(storage)?;
    }
    let length = list(storage)?.get(&FileId::Manifest).copied().unwrap_or(0);
    if length != MANIFEST_BYTES {
        return Err(OpenError::ManifestDamaged { why: "its length is wrong" });
    }
    let mut bytes = vec![0; MANIFEST_BYTES as usize];
    storage.read(FileId::Manifest, 0, &mut bytes).map_err(device("read", FileId::Manifest))?;
    let (first, second) = bytes.split_at(SLOT_BYTES);
    manifest::choose([first, second]).map_err(|error| match error {
        SlotError::Invalid => OpenError::ManifestDamaged { why: "neither of its slots is whole" },
        SlotError::Newer { version, features } => {
            OpenError::NewerFormat { version, features, known: FORMAT_VERSION | FEATURES }
        }
    })
}

fn check_identity(manifest: &Manifest, config: &LogConfig) -> Result<(), OpenError> {
    if manifest.directory != config.directory {
        let (found, wanted) = (manifest.directory, config.directory);
        return Err(OpenError::Foreign { found, wanted });
    }
    if manifest.shard != config.shard {
        return Err(OpenError::WrongShard { found: manifest.shard, wanted: config.shard });
    }
    if manifest.shards != config.shards {
        return Err(OpenError::ShardCount { found: manifest.shards, wanted: config.shards });
    }
    Ok(())
}

/// Every segment the manifest names is there at its full length, and the names make sense.
fn check_files(manifest: &Manifest, files: &Files) -> Result<(), OpenError> {
    let damaged = |why| Err(OpenError::ManifestDamaged { why });
    if manifest.next_segment == 0 || manifest.next_segment > SEGMENT_NUMBER_MAX + 1 {
        return damaged("its segment counter is out of range");
    }
    let mut previous = None;
    for (index, entry) in manifest.segments.iter().enumerate() {
        let known = entry.segment.0 < manifest.next_segment && entry.epoch <= manifest.epoch;
        if !known || previous.is_some_and(|previous| previous >= entry.segment) {
            return damaged("its segments are out of order");
        }
        previous = Some(entry.segment);
        let Some(geometry) = Geometry::new(entry.file_bytes) else {
            return damaged("a segment has an impossible length");
        };
        let sealed = Segments::is_sealed(entry);
        if sealed_bytes(entry) > geometry.data_end() || sealed && sealed_bytes(entry) == 0 {
            return damaged("a segment has an impossible data length");
        }
        if !sealed && index + 1 < manifest.segments.len() {
            return damaged("a segment before the last is open");
        }
        let segment = entry.segment;
        match files.get(&FileId::Segment(segment)) {
            None => return Err(OpenError::SegmentMissing { segment }),
            Some(bytes) if *bytes < entry.file_bytes => {
                let (bytes, wanted) = (*bytes, entry.file_bytes);
                return Err(OpenError::SegmentShort { segment, bytes, wanted });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The walk over all segments and what it has learned.
struct Replay {
    salt: Salt,
    chain: Option<Chain>,
    recovery: Recovery,
    last_kind: u8,
    open: Option<OpenEnd>,
    /// The segment before the oldest.
    released: Option<SegmentId>,
}

/// How the open segment ended.
struct OpenEnd {
    entry: ManifestEntry,
    /// End of its last record; zero when it has none.
    end: u64,
    index: FooterIndex,
    /// What to keep aside.
    cut: Option<(u64, u64)>,
}

impl Replay {
    fn new(salt: Salt, marks: Marks) -> Self {
        let recovery = Recovery { marks, clean: true, ..Recovery::default() };
        Self { salt, chain: None, recovery, last_kind: 0, open: None, released: None }
    }

    fn segment<S: Storage>(
        &mut self,
        storage: &mut S,
        entry: &ManifestEntry,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), OpenError> {
        match entry.state {
            SegmentState::Sealed(seal) => self.sealed(storage, entry, seal, visit),
            SegmentState::Open => self.open(storage, entry, visit),
        }
    }

    fn sealed<S: Storage>(
        &mut self,
        storage: &mut S,
        entry: &ManifestEntry,
        seal: Seal,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), OpenError> {
        let segment = entry.segment;
        let damaged = |at, why| Err(OpenError::Damaged { segment, at, why });
        let place = Place::new(self.salt, segment, entry.epoch);
        let mut walk = Walk::new(storage, segment, place, (seal.data_bytes, entry.file_bytes));
        let mut end = 0;
        while end < seal.data_bytes {
            let Next::Record(found) = walk.next(end, self.chain)? else {
                return damaged(end, "no record that follows the one before");
            };
            self.show(&mut walk, &found, visit)?;
            end = found.end();
        }
        let last = Some(Chain {
            checksum: seal.last_checksum,
            next_number: seal.last_number.wrapping_add(1),
        });
        if end != seal.data_bytes || self.chain != last {
            return damaged(end, "its last record is not the one that was sealed");
        }
        self.witness(LogPosition::new(segment, end));
        Ok(())
    }

    fn open<S: Storage>(
        &mut self,
        storage: &mut S,
        entry: &ManifestEntry,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), OpenError> {
        let (segment, file) = (entry.segment, FileId::Segment(entry.segment));
        if !Mutant::NoRecoverySync.active() {
            storage.sync(file).map_err(device("sync", file))?;
        }
        let geometry = Geometry { file_bytes: entry.file_bytes };
        let place = Place::new(self.salt, segment, entry.epoch);
        let bounds = (geometry.data_end(), entry.file_bytes);
        let mut walk = Walk::new(storage, segment, place, bounds);
        let mut index = FooterIndex::new(geometry);
        let mut end = 0;
        let bad = loop {
            match walk.next(end, self.chain)? {
                Next::Bad { at } => break at,
                Next::Record(found) => {
                    self.show(&mut walk, &found, visit)?;
                    end = found.end();
                    let (kind, key) = (found.header.kind, found.header.key);
                    if kind >= KIND_BROKER_MIN {
                        let body_bytes = found.header.body_bytes;
                        index.push(Entry { kind, at: found.at, body_bytes, key });
                    }
                }
            }
        };
        self.recovery.clean = self.last_kind == KIND_FINAL && end > 0;
        let cut = self.judge(&mut walk, end, bad)?;
        self.open = Some(OpenEnd { entry: *entry, end, index, cut });
        Ok(())
    }

    /// Torn tail or corruption; for a torn tail, what of it to keep aside.
    fn judge<S: Storage>(
        &mut self,
        walk: &mut Walk<'_, S>,
        end: u64,
        bad: u64,
    ) -> Result<Option<(u64, u64)>, OpenError> {
        let rest = walk.rest(end)?;
        self.witness(rest.witnessed);
        let (at, durable) = (walk.position(bad), self.recovery.witnessed);
        if at < durable {
            return Err(OpenError::Corrupt { segment: at.segment(), at: bad, durable });
        }
        let file = FileId::Segment(at.segment()).name();
        if let Some(why) = one_bit(walk, end)? {
            self.recovery.clean = false;
            self.recovery.notices.push(format!(
                "{file} was cut at byte {end}: {why}; probably a flipped bit, and what followed \
                 is lost"
            ));
        }
        let block = align_up(end, BLOCK);
        let mut torn = rest.records_end.filter(|records_end| *records_end > end);
        for place in [align_up(end, super::format::RECORD_ALIGN), block] {
            if let Some((header, _)) = walk.header(place)? {
                torn = torn.max(Some(place + header.record_bytes()));
            }
        }
        if bad < block {
            torn = torn.max(Some(block));
        }
        let Some(torn) = torn else { return Ok(None) };
        self.recovery.clean = false;
        self.recovery.notices.push(format!(
            "{file} had a torn tail: cut at byte {end}, {} bytes of an unfinished write dropped",
            torn - end
        ));
        let from = align_down(end, BLOCK);
        Ok(Some((from, align_up(torn, BLOCK).min(walk.limit()).min(from + CUT_BYTES_MAX))))
    }

    fn witness(&mut self, durable: LogPosition) {
        self.recovery.witnessed = self.recovery.witnessed.max(durable);
    }

    /// Takes one good record in.
    fn show<S: Storage>(
        &mut self,
        walk: &mut Walk<'_, S>,
        found: &Found,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), OpenError> {
        let Found { at, header, checksum } = *found;
        let position = walk.position(at);
        self.witness(header.synced);
        self.chain = Some(Chain { checksum, next_number: header.number.wrapping_add(1) });
        self.last_kind = header.kind;
        let body = walk.body(at, &header)?;
        let said = SegmentHeader::decode(body).filter(|_| header.kind == KIND_SEGMENT);
        if let Some((marks, previous)) = said {
            self.recovery.marks = self.recovery.marks.max(marks);
            self.released.get_or_insert(previous);
        }
        if header.kind >= KIND_BROKER_MIN {
            self.recovery.records += 1;
            self.recovery.bytes += header.record_bytes();
            let bytes = header.record_bytes() as u32;
            let (kind, key) = (header.kind, header.key);
            visit(Record { kind, key, body, at: position, bytes });
        }
        Ok(())
    }
}

type Settled = ((Manifest, (Vec<u32>, u32)), bool);

/// Makes what the walk found the durable truth: seals the open segment, keeps its cut bytes,
/// and turns leftovers into spares.
fn settle<S: Storage>(
    storage: &mut S,
    config: &LogConfig,
    mut manifest: Manifest,
    order: [usize; 2],
    replay: &mut Replay,
) -> Result<Settled, OpenError> {
    let open = replay.open.take();
    if let Some(open) = &open {
        keep_cut(storage, open, &mut replay.recovery.notices);
        manifest.segments.pop();
        if let Some(chain) = replay.chain.filter(|_| open.end > 0) {
            let seal = Seal {
                data_bytes: open.end,
                last_checksum: chain.checksum,
                last_number: chain.next_number.wrapping_sub(1),
            };
            let state = SegmentState::Sealed(seal);
            manifest.segments.push(ManifestEntry { state, ..open.entry });
        }
    }
    manifest.marks = replay.recovery.marks;
    // The last process may have appended to a segment that no manifest names yet, and told others
    // where: that number is not given out again. At most one is under way. The first manifest,
    // sequence 1, is older than any process that appends.
    if manifest.sequence > 1 {
        manifest.next_segment = (manifest.next_segment + 1).min(SEGMENT_NUMBER_MAX + 1);
    }
    manifest.sequence += 1;
    write_slots(storage, FileId::Manifest, &manifest, order)?;
    if let Some(open) = open.as_ref().filter(|open| open.end > 0) {
        write_footer(storage, open, manifest.salt, manifest.marks)?;
    }
    let (spares, no_space) = settle_spares(storage, config, &manifest)?;
    Ok(((manifest, spares), no_space))
}

/// Copies the cut bytes aside. A person may want them; the log does not, so failing to keep
/// them is only said.
fn keep_cut<S: Storage>(storage: &mut S, open: &OpenEnd, notices: &mut Vec<String>) {
    let Some((from, to)) = open.cut else { return };
    let segment = open.entry.segment;
    let (source, cut) = (FileId::Segment(segment), FileId::Cut(segment));
    let mut copy = || -> Result<(), DiskError> {
        let files = storage.list()?;
        if files.iter().any(|(file, _)| *file == cut) {
            storage.remove(cut)?;
        }
        let mut cuts: Vec<FileId> =
            files.iter().map(|(f, _)| *f).filter(|f| matches!(f, FileId::Cut(_))).collect();
        cuts.sort_unstable();
        let surplus = (cuts.len() + 1).saturating_sub(CUTS_MAX);
        for old in cuts.iter().filter(|old| **old != cut).take(surplus) {
            storage.remove(*old)?;
        }
        storage.create(cut, to - from)?;
        let mut buf = vec![0; (to - from).min(1 << 20) as usize];
        let mut at = from;
        while at < to {
            let part = &mut buf[..(to - at).min(1 << 20) as usize];
            storage.read(source, at, part)?;
            storage.write(cut, at - from, part)?;
            at += part.len() as u64;
        }
        storage.sync(cut)
    };
    match copy() {
        Ok(()) => notices.push(format!("the cut bytes are kept in {}", cut.name())),
        Err(error) => notices.push(format!("the cut bytes could not be kept: {error}")),
    }
}

fn write_footer<S: Storage>(
    storage: &mut S,
    open: &OpenEnd,
    salt: Salt,
    marks: Marks,
) -> Result<(), OpenError> {
    let geometry = Geometry { file_bytes: open.entry.file_bytes };
    let place = Place::new(salt, open.entry.segment, open.entry.epoch);
    let mut footer = vec![0; geometry.footer_bytes() as usize];
    open.index.encode(&mut footer, place, geometry, FooterEnd { data_bytes: open.end, marks });
    let file = FileId::Segment(open.entry.segment);
    storage.write(file, geometry.data_end(), &footer).map_err(device("write", file))
}

/// Leftovers of full length become spares, others go; what is wanted beyond that is created,
/// as far as the disk has room.
fn settle_spares<S: Storage>(
    storage: &mut S,
    config: &LogConfig,
    manifest: &Manifest,
) -> Result<((Vec<u32>, u32), bool), OpenError> {
    let files = list(storage)?;
    let mut next = next_spare(&files);
    let mut ready = Vec::new();
    for (file, bytes) in files {
        let leftover = match file {
            FileId::Spare(_) => true,
            FileId::Segment(id) => manifest.segments.iter().all(|entry| entry.segment != id),
            FileId::Manifest | FileId::Cut(_) => false,
        };
        if !leftover {
            continue;
        }
        if bytes != config.segment_bytes || ready.len() >= SPARES_MAX {
            storage.remove(file).map_err(device("remove", file))?;
            continue;
        }
        let number = match file {
            FileId::Spare(number) => number,
            _ => {
                let spare = FileId::Spare(next);
                storage.rename(file, spare).map_err(device("rename", file))?;
                next = next.wrapping_add(1);
                next.wrapping_sub(1)
            }
        };
        let file = FileId::Spare(number);
        storage.sync(file).map_err(device("sync", file))?;
        ready.push(number);
    }
    let mut no_space = false;
    // One more than are wanted while running: the first append takes one.
    while ready.len() < SPARES_WANTED + 1 && !no_space {
        let file = FileId::Spare(next);
        match storage.create(file, config.segment_bytes) {
            Ok(()) => {
                storage.sync(file).map_err(device("sync", file))?;
                ready.push(next);
            }
            Err(error) if error.is_no_space() => {
                no_space = true;
                // Whatever of it exists is worth nothing; the next opening sees to it anyway.
                let _ = storage.remove(file);
            }
            Err(error) => return Err(device("create", file)(error)),
        }
        next = next.wrapping_add(1);
    }
    sync_dir(storage)?;
    Ok(((ready, next), no_space))
}

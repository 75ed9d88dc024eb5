//! A disk that behaves as badly as disks may.
//!
//! One [`FaultDisk`] is the directory of one shard. It keeps, for every file, what is durable
//! and what was written since; for the directory, the same for names. [`FaultDisk::crash`]
//! decides what of the rest survives:
//!
//! - each sector (512 or 4096 bytes) of each unsynced write lands or not, on its own; overlapping
//!   writes may land in another order;
//! - an unsynced create may leave no file, an empty one or the whole one; an unsynced rename or
//!   remove may be undone;
//! - operations queued but not completed may or may not have happened.
//!
//! A kill keeps everything that was written, unsynced as it is. While running, operations
//! complete in any order; a sync covers only what had completed when it was asked for. Faults
//! are switched on in [`Faults`].
//!
//! Blocking operations ([`Storage`]) serve recovery; [`FaultDisk::crash_after`] lets the power
//! go away in the middle of it.

use lanemq::base::buf::HeapBuf;
use lanemq::base::fault::DiskError;
use lanemq::base::prng::Prng;
use lanemq::log::io::{FileId, IoDone, LogIo};
use lanemq::log::storage::Storage;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What goes wrong from now on, in percent of operations where it is a number.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// Creates say that the disk is full.
    pub no_space: bool,
    pub write_no_space_percent: u64,
    pub write_error_percent: u64,
    pub sync_error_percent: u64,
    pub read_error_percent: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process dies; the kernel keeps what was written.
    Kill,
    /// The machine dies.
    Power,
}

#[derive(Clone)]
pub struct FaultDisk {
    inodes: Vec<Inode>,
    names: BTreeMap<FileId, usize>,
    durable_names: BTreeMap<FileId, usize>,
    dir_ops: Vec<(u64, DirOp)>,
    queue: Vec<Queued>,
    pub faults: Faults,
    /// What lands or does not land as one.
    pub sector: usize,
    /// Of how many percent one is drawn at a power cut: the chance of each unsynced sector.
    pub landing: Vec<u64>,
    /// Counts everything done; orders writes against syncs.
    clock: u64,
    /// Blocking operations left until the power goes.
    left: Option<u64>,
    crashed: bool,
    trace: u64,
}

#[derive(Clone)]
struct Inode {
    /// `None`: not even the length is durable. Shared between copies of a disk until written.
    durable: Option<Rc<Vec<u8>>>,
    bytes: Rc<Vec<u8>>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
struct Pending {
    when: u64,
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum DirOp {
    Create(FileId, usize),
    Rename(FileId, FileId),
    Remove(FileId),
}

struct Queued {
    op: LogIo<HeapBuf>,
    /// A sync covers what was done before this.
    asked: u64,
}

impl Clone for Queued {
    fn clone(&self) -> Self {
        panic!("a disk is copied only when nothing is in flight")
    }
}

impl FaultDisk {
    pub fn new(prng: &mut Prng) -> Self {
        Self {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            dir_ops: Vec::new(),
            queue: Vec::new(),
            faults: Faults::default(),
            landing: vec![0, 10, 50, 90, 100],
            sector: if prng.chance(70) { 512 } else { 4_096 },
            clock: 0,
            left: None,
            crashed: false,
            trace: 0,
        }
    }

    /// Takes an operation; it happens when [`FaultDisk::take_completion`] picks it.
    pub fn perform(&mut self, op: LogIo<HeapBuf>) {
        if let LogIo::Write { buf, at, len, .. } = &op {
            assert!(at.is_multiple_of(4_096) && len.is_multiple_of(4_096), "unaligned write");
            assert!(*len <= lanemq::base::buf::IoBuf::bytes(buf).len() && *len > 0);
        }
        if let LogIo::Read { at, len, .. } = &op {
            assert!(at.is_multiple_of(4_096) && len.is_multiple_of(4_096), "unaligned read");
        }
        self.queue.push(Queued { op, asked: self.clock });
    }

    /// Operations that have not completed.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Does one of the waiting operations, any of them, and says how it ended.
    pub fn take_completion(&mut self, prng: &mut Prng) -> Option<IoDone<HeapBuf>> {
        if self.queue.is_empty() {
            return None;
        }
        let index = prng.below(self.queue.len() as u64) as usize;
        let queued = self.queue.swap_remove(index);
        let id = queued.op.id();
        let result = self.execute(queued, prng);
        self.note(id.0 << 1 | u64::from(result.is_ok()));
        Some(IoDone { id, result })
    }

    /// The process or the machine dies. Afterwards nothing is in flight.
    pub fn crash(&mut self, kind: Crash, prng: &mut Prng) {
        self.faults = Faults::default();
        (self.left, self.crashed) = (None, false);
        while !self.queue.is_empty() {
            let index = prng.below(self.queue.len() as u64) as usize;
            let mut queued = self.queue.swap_remove(index);
            if let LogIo::Write { durable, .. } = &mut queued.op {
                // Not ended, so not promised: any of its sectors may be missing.
                *durable = false;
            }
            if prng.chance(50) {
                let _ = self.execute(queued, prng);
            }
        }
        if kind == Crash::Power {
            self.lose_names(prng);
            let percent = self.landing[prng.below(self.landing.len() as u64) as usize];
            for inode in &mut self.inodes {
                inode.lose(self.sector, percent, prng);
            }
        }
        self.forget_unnamed();
        self.note(0xC4A5);
    }

    fn forget_unnamed(&mut self) {
        for index in 0..self.inodes.len() {
            let named = |names: &BTreeMap<FileId, usize>| names.values().any(|i| *i == index);
            if !named(&self.names) && !named(&self.durable_names) {
                self.inodes[index] = Inode::new(None, Rc::default());
            }
        }
    }

    /// The power goes after `operations` more blocking operations: each one from then on
    /// fails, until [`FaultDisk::crash`].
    pub fn crash_after(&mut self, operations: u64) {
        self.left = Some(operations);
    }

    /// The directory as a power cut would leave it that lets nothing unsynced land.
    pub fn durable_image(&self) -> Self {
        let inodes = self.inodes.iter().map(|inode| {
            let bytes = inode.durable.clone().unwrap_or_default();
            Inode { durable: Some(bytes.clone()), bytes, pending: Vec::new() }
        });
        Self {
            inodes: inodes.collect(),
            names: self.durable_names.clone(),
            durable_names: self.durable_names.clone(),
            dir_ops: Vec::new(),
            queue: Vec::new(),
            faults: Faults::default(),
            left: None,
            landing: self.landing.clone(),
            ..*self
        }
    }

    pub fn has_crashed(&self) -> bool {
        self.crashed
    }

    /// A hash over everything that happened, in order.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    // ---- for looking and for damaging --------------------------------------------------

    pub fn bytes(&self, file: FileId) -> &[u8] {
        self.names.get(&file).map_or(&[], |inode| &self.inodes[*inode].bytes)
    }

    pub fn files(&self) -> Vec<FileId> {
        self.names.keys().copied().collect()
    }

    /// Changes a file on the media.
    pub fn damage(&mut self, file: FileId, change: impl Fn(&mut Vec<u8>)) {
        let inode = &mut self.inodes[self.names[&file]];
        change(Rc::make_mut(&mut inode.bytes));
        inode.pending.clear();
        inode.durable = Some(inode.bytes.clone());
    }

    pub fn flip(&mut self, file: FileId, bit: usize) {
        self.damage(file, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
    }

    pub fn lose_file(&mut self, file: FileId) {
        self.names.remove(&file);
        self.durable_names.remove(&file);
    }

    pub fn swap_files(&mut self, a: FileId, b: FileId) {
        for names in [&mut self.names, &mut self.durable_names] {
            let (x, y) = (names.remove(&a), names.remove(&b));
            names.extend(x.map(|inode| (b, inode)));
            names.extend(y.map(|inode| (a, inode)));
        }
    }

    pub fn put_file(&mut self, file: FileId, bytes: Vec<u8>) {
        let bytes = Rc::new(bytes);
        self.inodes.push(Inode::new(Some(bytes.clone()), bytes));
        self.names.insert(file, self.inodes.len() - 1);
        self.durable_names.insert(file, self.inodes.len() - 1);
    }

    // ---- the operations ----------------------------------------------------------------

    fn execute(&mut self, queued: Queued, prng: &mut Prng) -> Result<Option<HeapBuf>, DiskError> {
        let faults = self.faults;
        match queued.op {
            LogIo::Write { file, at, buf, len, durable, .. } => {
                let bytes = &lanemq::base::buf::IoBuf::bytes(&buf)[..len];
                let error = if prng.chance(faults.write_no_space_percent) {
                    Some(DiskError::NO_SPACE)
                } else {
                    let percent = faults.write_error_percent
                        + if durable { faults.sync_error_percent } else { 0 };
                    prng.chance(percent).then_some(DiskError::IO)
                };
                if error.is_none() || prng.chance(50) {
                    self.do_write(file, at, bytes)?;
                }
                if durable && error.is_none() {
                    self.inode(file)?.keep_last();
                }
                error.map_or(Ok(None), Err)
            }
            LogIo::Sync { file, .. } => {
                if prng.chance(faults.sync_error_percent) {
                    self.break_sync(file, prng);
                    return Err(DiskError::IO);
                }
                self.do_sync(file, queued.asked).map(|()| None)
            }
            LogIo::Read { file, at, len, .. } => {
                if prng.chance(faults.read_error_percent) {
                    return Err(DiskError::IO);
                }
                let mut bytes = vec![0; len];
                self.do_read(file, at, &mut bytes)?;
                Ok(Some(HeapBuf::from(bytes)))
            }
            LogIo::Create { file, bytes, .. } => {
                if faults.no_space {
                    // A failed create may leave a file that is too short.
                    if prng.chance(50) {
                        self.do_create(file, bytes / 2)?;
                    }
                    return Err(DiskError::NO_SPACE);
                }
                self.do_create(file, bytes).map(|()| None)
            }
            LogIo::Rename { from, to, .. } => self.do_rename(from, to).map(|()| None),
            LogIo::Remove { file, .. } => self.do_remove(file).map(|()| None),
            LogIo::SyncDir { .. } => {
                if prng.chance(faults.sync_error_percent) {
                    return Err(DiskError::IO);
                }
                self.do_sync_dir(queued.asked);
                Ok(None)
            }
        }
    }

    fn inode(&mut self, file: FileId) -> Result<&mut Inode, DiskError> {
        let index = *self.names.get(&file).ok_or(DiskError::NOT_FOUND)?;
        Ok(&mut self.inodes[index])
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    fn do_write(&mut self, file: FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let when = self.tick();
        self.note(at ^ bytes.iter().fold(7, |h: u64, b| h.wrapping_mul(31) + u64::from(*b)));
        let inode = self.inode(file)?;
        let at = at as usize;
        assert!(at + bytes.len() <= inode.bytes.len(), "write beyond the end of {}", file.name());
        Rc::make_mut(&mut inode.bytes)[at..at + bytes.len()].copy_from_slice(bytes);
        inode.pending.push(Pending { when, at, bytes: bytes.to_vec() });
        Ok(())
    }

    fn do_read(&mut self, file: FileId, at: u64, out: &mut [u8]) -> Result<(), DiskError> {
        let inode = self.inode(file)?;
        let (from, to) = (at as usize, at as usize + out.len());
        out.copy_from_slice(inode.bytes.get(from..to).ok_or(DiskError::IO)?);
        Ok(())
    }

    fn do_sync(&mut self, file: FileId, asked: u64) -> Result<(), DiskError> {
        let inode = self.inode(file)?;
        let length = inode.bytes.len();
        let durable = inode.durable.get_or_insert_with(|| Rc::new(vec![0; length]));
        if inode.pending.is_empty() {
            return Ok(());
        }
        let durable = Rc::make_mut(durable);
        inode.pending.retain(|write| {
            if write.when <= asked {
                durable[write.at..write.at + write.bytes.len()].copy_from_slice(&write.bytes);
            }
            write.when > asked
        });
        Ok(())
    }

    /// A sync that failed: part of what it should have saved is gone for good, and reading
    /// shows what the media holds.
    fn break_sync(&mut self, file: FileId, prng: &mut Prng) {
        let sector = self.sector;
        if let Ok(inode) = self.inode(file) {
            inode.lose(sector, 50, prng);
        }
    }

    fn do_create(&mut self, file: FileId, bytes: u64) -> Result<(), DiskError> {
        assert!(!self.names.contains_key(&file), "{} exists", file.name());
        let when = self.tick();
        self.inodes.push(Inode::new(None, Rc::new(vec![0; bytes as usize])));
        let index = self.inodes.len() - 1;
        self.names.insert(file, index);
        self.dir_ops.push((when, DirOp::Create(file, index)));
        Ok(())
    }

    fn do_rename(&mut self, from: FileId, to: FileId) -> Result<(), DiskError> {
        let when = self.tick();
        let index = self.names.remove(&from).ok_or(DiskError::NOT_FOUND)?;
        assert!(!self.names.contains_key(&to), "{} exists", to.name());
        self.names.insert(to, index);
        self.dir_ops.push((when, DirOp::Rename(from, to)));
        Ok(())
    }

    fn do_remove(&mut self, file: FileId) -> Result<(), DiskError> {
        let when = self.tick();
        self.names.remove(&file).ok_or(DiskError::NOT_FOUND)?;
        self.dir_ops.push((when, DirOp::Remove(file)));
        Ok(())
    }

    fn do_sync_dir(&mut self, asked: u64) {
        for (when, op) in std::mem::take(&mut self.dir_ops) {
            if when <= asked {
                op.apply(&mut self.durable_names);
            } else {
                self.dir_ops.push((when, op));
            }
        }
    }

    fn lose_names(&mut self, prng: &mut Prng) {
        for (_, op) in std::mem::take(&mut self.dir_ops) {
            if prng.chance(50) {
                op.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
    }

    /// One blocking operation; the power may go before it or after it.
    fn blocking<T>(
        &mut self,
        operation: impl FnOnce(&mut Self) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        self.count_down()?;
        let result = operation(self)?;
        self.count_down()?;
        Ok(result)
    }

    fn count_down(&mut self) -> Result<(), DiskError> {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            self.crashed |= *left == 0;
        }
        if self.crashed { Err(DiskError::IO) } else { Ok(()) }
    }
}

impl Inode {
    fn new(durable: Option<Rc<Vec<u8>>>, bytes: Rc<Vec<u8>>) -> Self {
        Self { durable, bytes, pending: Vec::new() }
    }

    /// The write done last is on the media, whatever becomes of those before it.
    fn keep_last(&mut self) {
        let Some(write) = self.pending.pop() else { return };
        let zeros = || Rc::new(vec![0; self.bytes.len()]);
        let durable = Rc::make_mut(self.durable.get_or_insert_with(zeros));
        durable[write.at..write.at + write.bytes.len()].copy_from_slice(&write.bytes);
        // Earlier writes of the same bytes can no longer land on top.
        let end = write.at + write.bytes.len();
        self.pending.retain(|old| old.at >= end || old.at + old.bytes.len() <= write.at);
    }

    fn lose(&mut self, sector: usize, percent: u64, prng: &mut Prng) {
        let mut pending = std::mem::take(&mut self.pending);
        if pending.is_empty() && self.durable.is_some() {
            return;
        }
        if prng.chance(30) {
            pending.reverse();
        }
        let durable = match &mut self.durable {
            Some(durable) => durable,
            none if prng.chance(50) => none.insert(Rc::new(vec![0; self.bytes.len()])),
            _ => {
                self.bytes = Rc::default();
                self.durable = Some(Rc::default());
                return;
            }
        };
        let durable = Rc::make_mut(durable);
        for write in pending {
            for (n, bytes) in write.bytes.chunks(sector).enumerate() {
                if prng.chance(percent) {
                    let at = write.at + n * sector;
                    durable[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        self.bytes = Rc::new(durable.clone());
        self.durable = Some(self.bytes.clone());
    }
}

impl DirOp {
    fn apply(self, names: &mut BTreeMap<FileId, usize>) {
        match self {
            Self::Create(file, inode) => {
                names.insert(file, inode);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(&from) {
                    names.insert(to, inode);
                }
            }
            Self::Remove(file) => {
                names.remove(&file);
            }
        }
    }
}

impl Storage for FaultDisk {
    fn list(&mut self) -> Result<Vec<(FileId, u64)>, DiskError> {
        self.blocking(|disk| {
            let length = |index: &usize| disk.inodes[*index].bytes.len() as u64;
            Ok(disk.names.iter().map(|(file, index)| (*file, length(index))).collect())
        })
    }

    fn read(&mut self, file: FileId, at: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        let percent = self.faults.read_error_percent;
        let fails = percent > 0 && Prng::new(self.tick() ^ self.trace).chance(percent);
        self.blocking(|disk| if fails { Err(DiskError::IO) } else { disk.do_read(file, at, buf) })
    }

    fn write(&mut self, file: FileId, at: u64, data: &[u8]) -> Result<(), DiskError> {
        self.blocking(|disk| disk.do_write(file, at, data))
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        self.blocking(|disk| {
            let now = disk.clock;
            disk.do_sync(file, now)
        })
    }

    fn create(&mut self, file: FileId, bytes: u64) -> Result<(), DiskError> {
        self.blocking(|disk| {
            if disk.faults.no_space {
                return Err(DiskError::NO_SPACE);
            }
            disk.do_create(file, bytes)
        })
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), DiskError> {
        self.blocking(|disk| disk.do_rename(from, to))
    }

    fn remove(&mut self, file: FileId) -> Result<(), DiskError> {
        self.blocking(|disk| disk.do_remove(file))
    }

    fn sync_dir(&mut self) -> Result<(), DiskError> {
        self.blocking(|disk| {
            let now = disk.clock;
            disk.do_sync_dir(now);
            Ok(())
        })
    }
}

//! Disk operations of the running log, on O_DIRECT files through io_uring.
//!
//! Reads, writes and syncs go through the executor's [`super::ring`]; what opens, renames and
//! removes files, through glommio. One [`Disk`] for each shard. Each [`LogIo`] is performed once and
//! answered once; nothing that has reached a file is retried here. Files are opened at their first
//! use and stay open until they are renamed or removed. Payload bytes are not copied, except where
//! a read is longer than one piece.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use glommio::GlommioError;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions};

use super::dma::DmaBuf;
use super::reactor::Reactor;
use crate::base::buf::{ALIGN, IoBuf};
use crate::base::fault::DiskError;
use crate::log::io::{FileId, IoDone, LogIo};

/// Between two tries to open a file while there is no free descriptor.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(10);
/// Zeros written at a time into a new file: enough for the disk's speed, short enough not to stand
/// in a commit's way.
const ZEROS_BYTES: u64 = 1 << 20;
/// Longest single read. Reads above a device's largest request were reported to hang.
const READ_PIECE: usize = 1 << 20;

pub struct Disk {
    folder: PathBuf,
    reactor: Rc<Reactor>,
    /// For fsync of the folder; shared with the thread that performs it.
    handle: Arc<File>,
    open: RefCell<AHashMap<FileId, Rc<DmaFile>>>,
    /// The same files opened with O_DSYNC, for durable writes.
    synced: RefCell<AHashMap<FileId, Rc<DmaFile>>>,
}

impl Disk {
    /// On the executor that will use it, after [`super::executor::warm_up`].
    pub fn open(folder: &Path, reactor: Rc<Reactor>) -> io::Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            reactor,
            handle: Arc::new(File::open(folder)?),
            open: RefCell::default(),
            synced: RefCell::default(),
        })
    }

    /// Resolves when the operation has ended, whichever way. Other operations may run
    /// meanwhile, on the same file too.
    pub async fn perform(&self, io: LogIo<DmaBuf>) -> IoDone<DmaBuf> {
        let id = io.id();
        let result = match io {
            LogIo::Write { file, at, buf, len, durable, .. } => {
                self.write(file, at, buf, len, durable).await.map(|()| None)
            }
            LogIo::Sync { file, .. } => self.sync(file).await.map(|()| None),
            LogIo::Read { file, at, len, .. } => self.read(file, at, len).await.map(Some),
            LogIo::Create { file, bytes, .. } => self.create(file, bytes).await.map(|()| None),
            LogIo::Rename { from, to, .. } => self.rename(from, to).await.map(|()| None),
            LogIo::Remove { file, .. } => self.remove(file).await.map(|()| None),
            LogIo::SyncDir { .. } => self.sync_folder().await.map(|()| None),
        };
        IoDone { id, result }
    }

    async fn write(
        &self,
        id: FileId,
        at: u64,
        buf: DmaBuf,
        len: usize,
        durable: bool,
    ) -> Result<(), DiskError> {
        assert!(len > 0 && len.is_multiple_of(ALIGN) && at.is_multiple_of(ALIGN as u64));
        let file = if durable { self.synced_file(id).await? } else { self.file(id).await? };
        self.write_all(&file, &buf.to_write(), len, at).await
    }

    /// Writes the first `len` bytes at byte `at` of the file. The kernel may take less at a time than
    /// it was given: full disks, signals.
    async fn write_all(
        &self,
        file: &Rc<DmaFile>,
        bytes: &Rc<DmaBuffer>,
        len: usize,
        at: u64,
    ) -> Result<(), DiskError> {
        let mut written = 0;
        while written < len {
            let rest = (bytes.clone(), written..len);
            match self.reactor.ring.write(file, rest, at + written as u64).await {
                Ok(more) if more > 0 && more.is_multiple_of(ALIGN) => written += more,
                Ok(_) => return Err(DiskError::IO),
                Err(error) => return Err(from_io(&error)),
            }
        }
        Ok(())
    }

    async fn sync(&self, id: FileId) -> Result<(), DiskError> {
        let file = self.file(id).await?;
        self.reactor.ring.data_sync(&file).await.map_err(of_ring)
    }

    async fn read(&self, id: FileId, at: u64, len: usize) -> Result<DmaBuf, DiskError> {
        assert!(len > 0 && len.is_multiple_of(ALIGN) && at.is_multiple_of(ALIGN as u64));
        let file = self.file(id).await?;
        if len <= READ_PIECE {
            let (read, piece) = self.read_piece(&file, at, len).await?;
            if read == len {
                return Ok(DmaBuf::from_read(piece));
            }
        }
        let mut whole = DmaBuf::alloc(len);
        let mut read = 0;
        while read < len {
            let want = (len - read).min(READ_PIECE);
            let (got, piece) = self.read_piece(&file, at + read as u64, want).await?;
            // Nothing, or no whole blocks: the file ends before what was asked for.
            if got == 0 || (got < want && !got.is_multiple_of(ALIGN)) {
                return Err(DiskError::IO);
            }
            whole.bytes_mut()[read..read + got].copy_from_slice(&piece.as_bytes()[..got]);
            read += got;
        }
        Ok(whole)
    }

    async fn read_piece(
        &self,
        file: &Rc<DmaFile>,
        at: u64,
        len: usize,
    ) -> Result<(usize, DmaBuffer), DiskError> {
        let into = glommio::allocate_dma_buffer(len);
        self.reactor.ring.read(file, into, at).await.map_err(of_ring)
    }

    async fn create(&self, id: FileId, bytes: u64) -> Result<(), DiskError> {
        let path = self.path(id);
        let errand = self.reactor.errand();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .dma_open(&path)
            .await
            .map_err(errno)?;
        let reserved = file.pre_allocate(bytes, true).await.map_err(errno);
        drop(errand);
        let file = Rc::new(file);
        let filled = match reserved {
            Ok(()) => self.fill_with_zeros(&file, bytes).await,
            refused => refused,
        };
        if let Err(error) = filled {
            // Not enough space: leave nothing behind that a later try would trip over.
            let _errand = self.reactor.errand();
            let _ = file.close_rc().await;
            let _ = glommio::io::remove(&path).await;
            return Err(error);
        }
        self.open.borrow_mut().insert(id, file);
        Ok(())
    }

    /// Really writes the blocks that were reserved. One that is only reserved is converted by
    /// the file system at its first write: on ext4 that doubles the time of a commit, and now and
    /// then frees a block of its own tree, which with the mount option `discard` was seen to hold
    /// up all commits for seconds. The length grows with the zeros, so that a crash on the way
    /// leaves no file that looks whole.
    async fn fill_with_zeros(&self, file: &Rc<DmaFile>, bytes: u64) -> Result<(), DiskError> {
        let mut zeros = glommio::allocate_dma_buffer(ZEROS_BYTES.min(bytes) as usize);
        zeros.as_bytes_mut().fill(0);
        let zeros = Rc::new(zeros);
        let mut at = 0;
        while at < bytes {
            let len = ZEROS_BYTES.min(bytes - at);
            self.write_all(file, &zeros, len as usize, at).await?;
            at += len;
        }
        Ok(())
    }

    async fn rename(&self, from: FileId, to: FileId) -> Result<(), DiskError> {
        self.close(from).await?;
        self.close(to).await?;
        let _errand = self.reactor.errand();
        glommio::io::rename(self.path(from), self.path(to)).await.map_err(errno)
    }

    async fn remove(&self, id: FileId) -> Result<(), DiskError> {
        self.close(id).await?;
        let _errand = self.reactor.errand();
        glommio::io::remove(self.path(id)).await.map_err(errno)
    }

    /// A full fsync: glommio has only fdatasync, and ext4 does not take a changed entry of a
    /// folder for data, so fdatasync may leave a rename in memory. On the blocking thread,
    /// which the folder's renames and removals use as well.
    async fn sync_folder(&self) -> Result<(), DiskError> {
        let handle = self.handle.clone();
        let _errand = self.reactor.errand();
        glommio::executor()
            .spawn_blocking(move || handle.sync_all())
            .await
            .map_err(|error| from_io(&error))
    }

    async fn close(&self, id: FileId) -> Result<(), DiskError> {
        let _errand = self.reactor.errand();
        let files = [self.open.borrow_mut().remove(&id), self.synced.borrow_mut().remove(&id)];
        for file in files.into_iter().flatten() {
            // An operation in flight keeps the descriptor until it ends.
            file.close_rc().await.map(drop).map_err(errno)?;
        }
        Ok(())
    }

    async fn file(&self, id: FileId) -> Result<Rc<DmaFile>, DiskError> {
        if let Some(file) = self.open.borrow().get(&id) {
            return Ok(file.clone());
        }
        let opened = Rc::new(self.open_file(id, 0).await?);
        // Another operation may have opened it meanwhile; then ours is closed again by itself.
        Ok(self.open.borrow_mut().entry(id).or_insert(opened).clone())
    }

    /// The file for writes that end only on the media. One is enough: the log writes one segment
    /// at a time, and a descriptor for each that it has left would add up.
    async fn synced_file(&self, id: FileId) -> Result<Rc<DmaFile>, DiskError> {
        if let Some(file) = self.synced.borrow().get(&id) {
            return Ok(file.clone());
        }
        let opened = Rc::new(self.open_file(id, libc::O_DSYNC).await?);
        let _errand = self.reactor.errand();
        let left = std::mem::take(&mut *self.synced.borrow_mut());
        self.synced.borrow_mut().insert(id, opened.clone());
        for file in left.into_values() {
            // It has nothing left to write, so nothing depends on how its close ends.
            let _ = file.close_rc().await;
        }
        Ok(opened)
    }

    /// Waits for a descriptor while there is none, in this process or on this host: nothing has
    /// reached the file yet, so it is no failure of the disk, and whoever waits behind it is only
    /// late.
    async fn open_file(&self, id: FileId, flags: libc::c_int) -> Result<DmaFile, DiskError> {
        let mut waits = false;
        let _errand = self.reactor.errand();
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags);
            let opened = options.dma_open(self.path(id)).await;
            match opened.map_err(errno) {
                Err(error) if matches!(error.errno, libc::EMFILE | libc::ENFILE) => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::warn!(file = id.name(), "no free descriptor to open it: waiting");
                    }
                    glommio::timer::sleep(DESCRIPTOR_PAUSE).await;
                }
                ended => return ended,
            }
        }
    }

    fn path(&self, id: FileId) -> PathBuf {
        self.folder.join(id.name())
    }
}

fn of_ring(error: io::Error) -> DiskError {
    from_io(&error)
}

fn errno(error: GlommioError<()>) -> DiskError {
    match error {
        GlommioError::IoError(source) | GlommioError::EnhancedIoError { source, .. } => {
            from_io(&source)
        }
        other => {
            tracing::error!(%other, "a disk operation failed without an error number");
            DiskError::IO
        }
    }
}

/// glommio turns ECANCELED into "timed out" without a number; both are the device's failure to
/// us, and neither is ever retried.
pub(super) fn from_io(error: &io::Error) -> DiskError {
    match error.raw_os_error() {
        Some(errno) => DiskError { errno },
        None if error.kind() == io::ErrorKind::TimedOut => DiskError { errno: libc::ETIMEDOUT },
        None => {
            tracing::error!(%error, "a disk operation failed without an error number");
            DiskError::IO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{IoId, SegmentId};
    use crate::server::clock::Clock;
    use crate::server::executor;

    /// A folder on the file system of the working directory: tmpfs would not do.
    fn folder(name: &str) -> PathBuf {
        let path = std::env::current_exe()
            .unwrap()
            .parent()
            .unwrap()
            .join(format!("lanemq-disk-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn on_executor<F: Future<Output = ()>>(
        name: &str,
        test: impl FnOnce(Rc<Disk>, PathBuf) -> F + Send + 'static,
    ) {
        let path = folder(name);
        glommio::LocalExecutorBuilder::default().io_memory(1 << 20).make().unwrap().run(async {
            std::fs::write(path.join("probe"), [1; 4_096]).unwrap();
            executor::warm_up(&path.join("probe")).await.unwrap();
            let clock = Arc::new(Clock::start());
            let reactor = Reactor::new(clock, Arc::default()).unwrap();
            glommio::spawn_local(reactor.clone().run(|_| {})).detach();
            let disk = Rc::new(Disk::open(&path, reactor).unwrap());
            test(disk, path.clone()).await;
        });
        std::fs::remove_dir_all(&path).unwrap();
    }

    fn filled(len: usize, seed: u8) -> DmaBuf {
        let mut buffer = DmaBuf::alloc(len);
        for (i, byte) in buffer.bytes_mut().iter_mut().enumerate() {
            *byte = seed.wrapping_add((i / 512) as u8);
        }
        buffer
    }

    async fn done(disk: &Disk, io: LogIo<DmaBuf>) -> Result<Option<DmaBuf>, DiskError> {
        let id = io.id();
        let done = disk.perform(io).await;
        assert_eq!(done.id, id);
        done.result
    }

    const ID: IoId = IoId(7);
    const FILE: FileId = FileId::Segment(SegmentId(1));

    #[test]
    fn what_is_written_is_read_back_in_one_piece_and_in_many() {
        on_executor("pieces", |disk, path| async move {
            let bytes = 4 << 20;
            done(&disk, LogIo::Create { id: ID, file: FILE, bytes }).await.unwrap();
            assert_eq!(std::fs::metadata(path.join(FILE.name())).unwrap().len(), bytes);
            let buf = filled(3 << 20, 1);
            let write = |buf: &DmaBuf, len| LogIo::Write {
                id: ID,
                file: FILE,
                at: 4_096,
                buf: buf.clone(),
                len,
                durable: false,
            };
            done(&disk, write(&buf, 3 << 20)).await.unwrap();
            done(&disk, write(&filled(8_192, 9), 4_096)).await.unwrap();
            done(&disk, LogIo::Sync { id: ID, file: FILE }).await.unwrap();
            let read = |at, len| LogIo::Read { id: ID, file: FILE, at, len };
            let seen = done(&disk, read(4_096, 3 << 20)).await.unwrap().unwrap();
            assert_eq!(seen.bytes()[..4_096], filled(4_096, 9).bytes()[..]);
            assert!(seen.bytes()[4_096..] == buf.bytes()[4_096..]);
            let small = done(&disk, read(8_192, 4_096)).await.unwrap().unwrap();
            assert!(small.bytes() == &buf.bytes()[4_096..8_192]);
            let zero = done(&disk, read(bytes - 4_096, 4_096)).await.unwrap().unwrap();
            assert!(zero.bytes().iter().all(|byte| *byte == 0));
            for (at, len) in [(bytes - 4_096, 8_192), (bytes, 4_096), (0, 5 << 20)] {
                assert!(done(&disk, read(at, len)).await.is_err(), "{at} {len}");
            }
        });
    }

    #[test]
    fn files_are_renamed_and_removed_and_errors_keep_their_number() {
        on_executor("names", |disk, _| async move {
            let (spare, bytes) = (FileId::Spare(1), 8_192);
            let create = || LogIo::Create { id: ID, file: spare, bytes };
            done(&disk, create()).await.unwrap();
            assert_eq!(done(&disk, create()).await.unwrap_err().errno, libc::EEXIST);
            let buf = filled(4_096, 3);
            let write = LogIo::Write {
                id: ID,
                file: spare,
                at: 0,
                buf: buf.clone(),
                len: 4_096,
                durable: true,
            };
            done(&disk, write).await.unwrap();
            done(&disk, LogIo::Rename { id: ID, from: spare, to: FILE }).await.unwrap();
            done(&disk, LogIo::SyncDir { id: ID }).await.unwrap();
            let read = |file| LogIo::Read { id: ID, file, at: 0, len: 4_096 };
            let seen = done(&disk, read(FILE)).await.unwrap().unwrap();
            assert!(seen.bytes() == buf.bytes());
            assert!(done(&disk, read(spare)).await.unwrap_err().is_not_found());
            done(&disk, LogIo::Remove { id: ID, file: FILE }).await.unwrap();
            assert!(done(&disk, read(FILE)).await.unwrap_err().is_not_found());
            let huge = LogIo::Create { id: ID, file: spare, bytes: 1 << 50 };
            let error = done(&disk, huge).await.unwrap_err();
            assert!(error.is_no_space() || error.errno == libc::EFBIG, "{error:?}");
            assert!(done(&disk, read(spare)).await.unwrap_err().is_not_found());
        });
    }

    #[test]
    fn operations_on_one_file_run_side_by_side() {
        on_executor("parallel", |disk, _| async move {
            done(&disk, LogIo::Create { id: ID, file: FILE, bytes: 1 << 20 }).await.unwrap();
            // Closed, so that all of them meet an unopened file.
            disk.close(FILE).await.unwrap();
            let tasks: Vec<_> = (0..64u64)
                .map(|n| {
                    let disk = disk.clone();
                    glommio::spawn_local(async move {
                        let buf = filled(4_096, n as u8);
                        let at = n * 4_096;
                        let write = LogIo::Write {
                            id: IoId(n),
                            file: FILE,
                            at,
                            buf,
                            len: 4_096,
                            durable: n % 2 == 0,
                        };
                        done(&disk, write).await.unwrap();
                        let read = LogIo::Read { id: IoId(n), file: FILE, at, len: 4_096 };
                        let seen = done(&disk, read).await.unwrap().unwrap();
                        assert!(seen.bytes() == filled(4_096, n as u8).bytes());
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
    }
}

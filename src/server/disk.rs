//! Disk operations of the running log, on O_DIRECT files through io_uring.
//!
//! One [`Disk`] for each shard. Each [`LogIo`] is performed once and answered once; nothing is
//! retried here. Files are opened at their first use and stay open until they are renamed or
//! removed. Payload bytes are not copied, except where a read is longer than one piece.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ahash::AHashMap;
use glommio::GlommioError;
use glommio::io::{DmaFile, OpenOptions};

use super::dma::DmaBuf;
use crate::base::buf::{ALIGN, IoBuf};
use crate::base::fault::DiskError;
use crate::log::io::{FileId, IoDone, LogIo};

/// Longest single read. Reads above a device's largest request were reported to hang.
const READ_PIECE: usize = 1 << 20;

pub struct Disk {
    folder: PathBuf,
    /// For fsync of the folder; shared with the thread that performs it.
    handle: Arc<File>,
    open: RefCell<AHashMap<FileId, Rc<DmaFile>>>,
}

impl Disk {
    /// On the executor that will use it, after [`super::executor::warm_up`].
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            handle: Arc::new(File::open(folder)?),
            open: RefCell::default(),
        })
    }

    /// Resolves when the operation has ended, whichever way. Other operations may run
    /// meanwhile, on the same file too.
    pub async fn perform(&self, io: LogIo<DmaBuf>) -> IoDone<DmaBuf> {
        let id = io.id();
        let result = match io {
            LogIo::Write { file, at, buf, len, .. } => {
                self.write(file, at, buf, len).await.map(|()| None)
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

    async fn write(&self, id: FileId, at: u64, buf: DmaBuf, len: usize) -> Result<(), DiskError> {
        assert!(len > 0 && len.is_multiple_of(ALIGN) && at.is_multiple_of(ALIGN as u64));
        let file = self.file(id).await?;
        let whole = buf.to_write();
        let whole = if whole.len() == len { whole } else { head_of(whole, len) };
        let mut written = file.write_rc_at(whole.clone(), at).await.map_err(errno)?;
        // The kernel may write less than it was given: full disks, signals.
        while written < len {
            if written == 0 || !written.is_multiple_of(ALIGN) {
                return Err(DiskError::IO);
            }
            let mut rest = glommio::allocate_dma_buffer(len - written);
            rest.as_bytes_mut().copy_from_slice(&whole.as_bytes()[written..len]);
            match file.write_at(rest, at + written as u64).await.map_err(errno)? {
                0 => return Err(DiskError::IO),
                more => written += more,
            }
        }
        Ok(())
    }

    async fn sync(&self, id: FileId) -> Result<(), DiskError> {
        self.file(id).await?.fdatasync().await.map_err(errno)
    }

    async fn read(&self, id: FileId, at: u64, len: usize) -> Result<DmaBuf, DiskError> {
        assert!(len > 0 && len.is_multiple_of(ALIGN) && at.is_multiple_of(ALIGN as u64));
        let file = self.file(id).await?;
        if len <= READ_PIECE {
            let piece = file.read_at_aligned(at, len).await.map_err(errno)?;
            if piece.len() == len {
                return Ok(DmaBuf::from_read(piece));
            }
        }
        let mut whole = DmaBuf::alloc(len);
        let mut read = 0;
        while read < len {
            let want = (len - read).min(READ_PIECE);
            let piece = file.read_at_aligned(at + read as u64, want).await.map_err(errno)?;
            // Nothing, or no whole blocks: the file ends before what was asked for.
            if piece.is_empty() || (piece.len() < want && !piece.len().is_multiple_of(ALIGN)) {
                return Err(DiskError::IO);
            }
            whole.bytes_mut()[read..read + piece.len()].copy_from_slice(&piece);
            read += piece.len();
        }
        Ok(whole)
    }

    async fn create(&self, id: FileId, bytes: u64) -> Result<(), DiskError> {
        let path = self.path(id);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .dma_open(&path)
            .await
            .map_err(errno)?;
        if let Err(error) = file.pre_allocate(bytes, false).await {
            // Not enough space: leave nothing behind that a later try would trip over.
            let _ = file.close().await;
            let _ = glommio::io::remove(&path).await;
            return Err(errno(error));
        }
        self.open.borrow_mut().insert(id, Rc::new(file));
        Ok(())
    }

    async fn rename(&self, from: FileId, to: FileId) -> Result<(), DiskError> {
        self.close(from).await?;
        self.close(to).await?;
        glommio::io::rename(self.path(from), self.path(to)).await.map_err(errno)
    }

    async fn remove(&self, id: FileId) -> Result<(), DiskError> {
        self.close(id).await?;
        glommio::io::remove(self.path(id)).await.map_err(errno)
    }

    /// A full fsync: glommio has only fdatasync, and ext4 does not take a changed entry of a
    /// folder for data, so fdatasync may leave a rename in memory. On the blocking thread,
    /// which the folder's renames and removals use as well.
    async fn sync_folder(&self) -> Result<(), DiskError> {
        let handle = self.handle.clone();
        glommio::executor()
            .spawn_blocking(move || handle.sync_all())
            .await
            .map_err(|error| from_io(&error))
    }

    async fn close(&self, id: FileId) -> Result<(), DiskError> {
        let file = self.open.borrow_mut().remove(&id);
        match file {
            // An operation in flight keeps the descriptor until it ends.
            Some(file) => file.close_rc().await.map(drop).map_err(errno),
            None => Ok(()),
        }
    }

    async fn file(&self, id: FileId) -> Result<Rc<DmaFile>, DiskError> {
        if let Some(file) = self.open.borrow().get(&id) {
            return Ok(file.clone());
        }
        let opened = OpenOptions::new().read(true).write(true).dma_open(self.path(id)).await;
        let opened = Rc::new(opened.map_err(errno)?);
        // Another operation may have opened it meanwhile; then ours is closed again by itself.
        Ok(self.open.borrow_mut().entry(id).or_insert(opened).clone())
    }

    fn path(&self, id: FileId) -> PathBuf {
        self.folder.join(id.name())
    }
}

/// The first `len` bytes as a buffer of their own: glommio writes whole buffers only.
fn head_of(whole: Rc<glommio::io::DmaBuffer>, len: usize) -> Rc<glommio::io::DmaBuffer> {
    let mut head = glommio::allocate_dma_buffer(len);
    head.as_bytes_mut().copy_from_slice(&whole.as_bytes()[..len]);
    Rc::new(head)
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

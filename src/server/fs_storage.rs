//! A shard's folder with blocking operations, for recovery.
//!
//! Reads go around the page cache (O_DIRECT): after a crash, and after a failed sync above
//! all, the truth is on the media. Writes do where they are whole blocks; others are written
//! through the cache, synced and dropped from it at once, so that no later direct read misses
//! them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::directory::sync_folder;
use super::disk::from_io;
use super::sys;
use crate::base::buf::{ALIGN, align_down, align_up};
use crate::base::fault::DiskError;
use crate::log::io::FileId;
use crate::log::storage::Storage;

/// Bytes moved with one call.
const BOUNCE: usize = 1 << 20;

pub struct FsStorage {
    folder: PathBuf,
    /// The file used last: recovery reads one after the other.
    open: Option<(FileId, File)>,
    bounce: Bounce,
}

/// A buffer with [`BOUNCE`] bytes at an aligned address.
struct Bounce {
    memory: Vec<u8>,
    from: usize,
}

impl Bounce {
    fn new() -> Self {
        let memory = vec![0; BOUNCE + ALIGN];
        let from = memory.as_ptr().align_offset(ALIGN);
        Self { memory, from }
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.from..self.from + len]
    }
}

impl FsStorage {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), open: None, bounce: Bounce::new() }
    }

    fn path(&self, file: FileId) -> PathBuf {
        self.folder.join(file.name())
    }

    /// The file, opened for O_DIRECT, with the buffer that its operations use.
    fn direct(&mut self, file: FileId) -> io::Result<(&File, &mut Bounce)> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != file) {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(self.path(file))?;
            self.open = Some((file, opened));
        }
        match &self.open {
            Some((_, opened)) => Ok((opened, &mut self.bounce)),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn read_direct(&mut self, file: FileId, mut at: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let (file, bounce) = self.direct(file)?;
        while !buf.is_empty() {
            let from = align_down(at, ALIGN as u64);
            let skip = (at - from) as usize;
            let hull = align_up((skip + buf.len()).min(BOUNCE) as u64, ALIGN as u64) as usize;
            let bytes = bounce.bytes(hull);
            let got = file.read_at(bytes, from)?;
            let useful = got.saturating_sub(skip).min(buf.len());
            if useful == 0 {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            buf[..useful].copy_from_slice(&bytes[skip..skip + useful]);
            buf = &mut buf[useful..];
            at += useful as u64;
        }
        Ok(())
    }

    fn write_direct(&mut self, file: FileId, mut at: u64, mut data: &[u8]) -> io::Result<()> {
        let (file, bounce) = self.direct(file)?;
        while !data.is_empty() {
            let len = data.len().min(BOUNCE);
            let bytes = bounce.bytes(len);
            bytes.copy_from_slice(&data[..len]);
            file.write_all_at(bytes, at)?;
            data = &data[len..];
            at += len as u64;
        }
        Ok(())
    }

    fn write_cached(&self, file: FileId, at: u64, data: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(file))?;
        file.write_all_at(data, at)?;
        file.sync_data()?;
        sys::forget_cached(&file);
        Ok(())
    }

    fn create_reserved(&mut self, file: FileId, bytes: u64) -> io::Result<()> {
        let path = self.path(file);
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)?;
        if let Err(error) = sys::reserve(&made, bytes) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.open = Some((file, made));
        Ok(())
    }

    fn close(&mut self, file: FileId) {
        if self.open.as_ref().is_some_and(|(open, _)| *open == file) {
            self.open = None;
        }
    }
}

fn told<T>(result: io::Result<T>) -> Result<T, DiskError> {
    result.map_err(|error| from_io(&error))
}

impl Storage for FsStorage {
    fn list(&mut self) -> Result<Vec<(FileId, u64)>, DiskError> {
        let mut files = Vec::new();
        for entry in told(fs::read_dir(&self.folder))? {
            let entry = told(entry)?;
            if let Some(file) = entry.file_name().to_str().and_then(FileId::parse) {
                files.push((file, told(entry.metadata())?.len()));
            }
        }
        Ok(files)
    }

    fn read(&mut self, file: FileId, at: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        told(self.read_direct(file, at, buf))
    }

    fn write(&mut self, file: FileId, at: u64, data: &[u8]) -> Result<(), DiskError> {
        let whole = at.is_multiple_of(ALIGN as u64) && data.len().is_multiple_of(ALIGN);
        told(if whole {
            self.write_direct(file, at, data)
        } else {
            self.write_cached(file, at, data)
        })
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        told(self.direct(file).and_then(|(file, _)| file.sync_all()))
    }

    fn create(&mut self, file: FileId, bytes: u64) -> Result<(), DiskError> {
        told(self.create_reserved(file, bytes))
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), DiskError> {
        self.close(from);
        self.close(to);
        told(fs::rename(self.path(from), self.path(to)))
    }

    fn remove(&mut self, file: FileId) -> Result<(), DiskError> {
        self.close(file);
        told(fs::remove_file(self.path(file)))
    }

    fn sync_dir(&mut self) -> Result<(), DiskError> {
        told(sync_folder(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SegmentId;

    fn fresh(name: &str) -> FsStorage {
        let folder = std::env::temp_dir().join(format!("lanemq-fs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        FsStorage::new(&folder)
    }

    #[test]
    fn created_files_have_their_length_and_read_as_zeros() {
        let mut storage = fresh("create");
        let file = FileId::Segment(SegmentId(3));
        storage.create(file, 3 << 20).unwrap();
        assert_eq!(storage.list().unwrap(), [(file, 3 << 20)]);
        let mut bytes = vec![1; 3 << 20];
        storage.read(file, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == 0));
        assert_eq!(storage.create(file, 1).unwrap_err().errno, libc::EEXIST);
        fs::remove_dir_all(&storage.folder).unwrap();
    }

    #[test]
    fn any_range_reads_back_what_was_written_there() {
        let mut storage = fresh("ranges");
        let file = FileId::Manifest;
        let len = (2 << 20) + 8_192;
        storage.create(file, len as u64).unwrap();
        let mut model = vec![0u8; len];
        let mut prng = crate::base::prng::Prng::new(5);
        for round in 0..60u8 {
            let at = prng.below(len as u64) as usize;
            let most = (len - at).min(if round % 2 == 0 { 300 } else { 2 << 20 });
            let count = prng.below(most as u64 + 1) as usize;
            let (at, count) = if round % 3 == 0 {
                (at / ALIGN * ALIGN, count / ALIGN * ALIGN)
            } else {
                (at, count)
            };
            model[at..at + count].fill(round + 1);
            storage.write(file, at as u64, &model[at..at + count]).unwrap();
            let from = prng.below(len as u64) as usize;
            let mut seen = vec![0; prng.below((len - from) as u64 + 1) as usize];
            storage.read(file, from as u64, &mut seen).unwrap();
            assert_eq!(seen, model[from..from + seen.len()]);
        }
        storage.sync(file).unwrap();
        let mut beyond = vec![0; 2];
        assert!(storage.read(file, len as u64 - 1, &mut beyond).is_err());
        fs::remove_dir_all(&storage.folder).unwrap();
    }

    #[test]
    fn renames_and_removals_reach_the_right_file_and_errors_keep_their_number() {
        let mut storage = fresh("rename");
        let (spare, segment) = (FileId::Spare(1), FileId::Segment(SegmentId(1)));
        storage.create(spare, 4_096).unwrap();
        storage.write(spare, 0, &[7; 4_096]).unwrap();
        storage.rename(spare, segment).unwrap();
        storage.sync_dir().unwrap();
        let mut byte = [0];
        storage.read(segment, 4_095, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        assert!(storage.read(spare, 0, &mut byte).unwrap_err().is_not_found());
        storage.remove(segment).unwrap();
        assert!(storage.remove(segment).unwrap_err().is_not_found());
        assert_eq!(storage.list().unwrap(), []);
        fs::remove_dir_all(&storage.folder).unwrap();
    }
}

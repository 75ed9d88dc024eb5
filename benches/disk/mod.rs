//! A disk without bytes, for benches: it keeps what opening a new log reads back, no more.

use std::collections::BTreeMap;

use lanemq::base::fault::DiskError;
use lanemq::log::io::FileId;
use lanemq::log::storage::Storage;

/// Keeps only what opening a new log reads back.
#[derive(Default)]
pub struct NullDisk {
    files: BTreeMap<FileId, u64>,
    manifest: Vec<u8>,
}

impl Storage for NullDisk {
    fn list(&mut self) -> Result<Vec<(FileId, u64)>, DiskError> {
        Ok(self.files.iter().map(|(file, bytes)| (*file, *bytes)).collect())
    }
    fn read(&mut self, _: FileId, at: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        buf.copy_from_slice(&self.manifest[at as usize..at as usize + buf.len()]);
        Ok(())
    }
    fn write(&mut self, _: FileId, at: u64, data: &[u8]) -> Result<(), DiskError> {
        let end = at as usize + data.len();
        self.manifest.resize(self.manifest.len().max(end), 0);
        self.manifest[at as usize..end].copy_from_slice(data);
        Ok(())
    }
    fn sync(&mut self, _: FileId) -> Result<(), DiskError> {
        Ok(())
    }
    fn create(&mut self, file: FileId, bytes: u64) -> Result<(), DiskError> {
        self.files.insert(file, bytes);
        self.manifest.resize(self.manifest.len().max(bytes.min(1 << 20) as usize), 0);
        Ok(())
    }
    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), DiskError> {
        let bytes = self.files.remove(&from).ok_or(DiskError::NOT_FOUND)?;
        self.files.insert(to, bytes);
        Ok(())
    }
    fn remove(&mut self, file: FileId) -> Result<(), DiskError> {
        self.files.remove(&file).map(|_| ()).ok_or(DiskError::NOT_FOUND)
    }
    fn sync_dir(&mut self) -> Result<(), DiskError> {
        Ok(())
    }
}

//! The seam below recovery: a directory with blocking operations, used once, before the shard
//! serves. `server::disk` implements it over the file system, the simulation over its fault
//! disk.

use super::io::FileId;
use crate::base::fault::DiskError;

/// The directory of one shard. Names the log does not make are not listed by it.
pub trait Storage {
    /// Every file of ours with its length in bytes, in no particular order.
    fn list(&mut self) -> Result<Vec<(FileId, u64)>, DiskError>;
    /// Fills `buf` from byte `at`. A file that ends earlier is an error.
    fn read(&mut self, file: FileId, at: u64, buf: &mut [u8]) -> Result<(), DiskError>;
    /// Writes all of `data` at byte `at`.
    fn write(&mut self, file: FileId, at: u64, data: &[u8]) -> Result<(), DiskError>;
    fn sync(&mut self, file: FileId) -> Result<(), DiskError>;
    /// A new file of exactly `bytes`, its blocks reserved, reading as zeros.
    fn create(&mut self, file: FileId, bytes: u64) -> Result<(), DiskError>;
    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), DiskError>;
    fn remove(&mut self, file: FileId) -> Result<(), DiskError>;
    fn sync_dir(&mut self) -> Result<(), DiskError>;
}

//! The data directory: its lock, its identity, one folder for each shard.
//!
//! ```text
//! <data-dir>/lock          flock held for the life of the process
//! <data-dir>/directory     what this directory is: 64 bytes, below
//! <data-dir>/probe         4 KiB, really written: glommio looks at it first (disk.rs)
//! <data-dir>/shard-0000/   files of the log (log/FORMAT.md)
//!
//! directory:  0 "LANEMQ\0D" | 8 u32 format | 12 u16 shards | 14 u16 zero | 16 identity [16]
//!             | 32 zero [28] | 60 u32 crc32c of 0..60          all little-endian
//! ```
//!
//! The file is written once, to a temporary name, synced and renamed, after the shards' folders
//! are durable. So a directory without it was never used, and one with it has all its folders:
//! a missing folder or a damaged file is refused by name, never taken for an empty broker.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::host::StartRefused;
use super::sys;
use crate::base::buf::ALIGN;
use crate::base::checksum::crc32c;
use crate::base::ids::ShardId;

const MAGIC: &[u8; 8] = b"LANEMQ\0D";
/// Version of everything below the data directory.
pub const FORMAT: u32 = 1;
const BYTES: usize = 64;

/// An opened data directory. The lock goes with the value.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    pub shards: u16,
    pub identity: [u8; 16],
    _lock: File,
}

impl Directory {
    /// Opens or creates. `wanted` is an explicit number of shards, `fresh` the number for a new
    /// directory without one.
    pub fn open(path: &Path, wanted: Option<u16>, fresh: u16) -> Result<Self, StartRefused> {
        fs::create_dir_all(path).map_err(|error| unusable(path, "created", &error))?;
        let path = &fs::canonicalize(path).map_err(|error| unusable(path, "found", &error))?;
        let lock = take_lock(path)?;
        write_probe(path)?;
        let (shards, identity) = match read(path)? {
            Some((shards, identity)) => {
                check_existing(path, wanted, shards)?;
                (shards, identity)
            }
            None => create(path, wanted.unwrap_or(fresh))?,
        };
        Ok(Self { path: path.clone(), shards, identity, _lock: lock })
    }

    pub fn shard(&self, shard: ShardId) -> PathBuf {
        shard_path(&self.path, shard.0)
    }

    /// A file whose 4 KiB are on the disk.
    pub fn probe(&self) -> PathBuf {
        self.path.join("probe")
    }
}

fn shard_path(path: &Path, shard: u16) -> PathBuf {
    path.join(format!("shard-{shard:04}"))
}

fn unusable(path: &Path, verb: &str, error: &io::Error) -> StartRefused {
    let shown = path.display();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => StartRefused::new(
            format!("the data directory {shown} is not writable for this user ({error})"),
            format!("chown -R $(id -u) {shown}, or --data-dir with another path"),
        ),
        Some(libc::EROFS) => StartRefused::new(
            format!("the data directory {shown} is on a read-only file system"),
            "mount -o remount,rw on it, or --data-dir with another path",
        ),
        Some(libc::ENOSPC | libc::EDQUOT) => StartRefused::new(
            format!("no space is left for the data directory {shown}"),
            format!("df -h {shown}, and making some"),
        ),
        _ => StartRefused::new(
            format!("{shown} cannot be {verb} ({error})"),
            "--data-dir with a path that can be written to",
        ),
    }
}

fn take_lock(path: &Path) -> Result<File, StartRefused> {
    let file = path.join("lock");
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&file)
        .map_err(|error| unusable(path, "written to", &error))?;
    match sys::lock_exclusively(&lock) {
        Ok(()) => {
            // Only for a person who asks who holds it.
            let _ = lock.set_len(0);
            let _ = writeln!(lock, "{}", std::process::id());
            Ok(lock)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            let holder = holder.trim();
            Err(StartRefused::new(
                format!(
                    "the data directory {} is locked by another process{}{holder}",
                    path.display(),
                    if holder.is_empty() { "" } else { ", number " },
                ),
                format!("stopping it ({}), or --data-dir with another path", kill_hint(holder)),
            ))
        }
        Err(error) => Err(unusable(&file, "locked", &error)),
    }
}

fn kill_hint(holder: &str) -> String {
    if holder.is_empty() { "pkill lanemq".to_owned() } else { format!("kill {holder}") }
}

/// A block for O_DIRECT, which wants its address aligned.
#[repr(align(4096))]
struct Block([u8; ALIGN]);

/// Writes the probe with O_DIRECT, reserves more blocks, reads it back: what every segment
/// will want of this file system.
fn write_probe(path: &Path) -> Result<(), StartRefused> {
    let name = path.join("probe");
    let no_direct = |error: &io::Error| {
        StartRefused::new(
            format!("no O_DIRECT on the file system of {} ({error})", path.display()),
            "--data-dir on ext4 or xfs (see: findmnt -T <dir>)",
        )
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(&name)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EOPNOTSUPP) => no_direct(&error),
            _ => unusable(path, "written to", &error),
        })?;
    let mut block = Box::new(Block([0x5A; ALIGN]));
    file.write_all_at(&block.0, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => no_direct(&error),
        _ => unusable(path, "written to", &error),
    })?;
    sys::reserve(&file, 2 * ALIGN as u64).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => StartRefused::new(
            format!("no fallocate on the file system of {} ({error})", path.display()),
            "--data-dir on ext4 or xfs (see: findmnt -T <dir>)",
        ),
        _ => unusable(path, "written to", &error),
    })?;
    file.set_len(ALIGN as u64).map_err(|error| unusable(path, "written to", &error))?;
    file.sync_all().map_err(|error| unusable(path, "synced", &error))?;
    block.0.fill(0);
    file.read_exact_at(&mut block.0, 0).map_err(|error| no_direct(&error))?;
    if block.0 != [0x5A; ALIGN] {
        return Err(no_direct(&io::Error::other("a block read back is not what was written")));
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<(u16, [u8; 16])>, StartRefused> {
    let name = path.join("directory");
    let bytes = match fs::read(&name) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&name, "read", &error)),
    };
    decode(&bytes).map(Some).map_err(|reason| match reason {
        Unreadable::Newer(format) => StartRefused::new(
            format!(
                "{} was written by a newer lanemq (format {format}, this one reads up to {FORMAT})",
                path.display()
            ),
            "the lanemq that wrote it, or a newer one",
        ),
        Unreadable::Damaged => StartRefused::new(
            format!("{} is damaged", name.display()),
            "restoring this one file from a backup; it never changes after the first start",
        ),
    })
}

#[derive(PartialEq, Eq, Debug)]
enum Unreadable {
    Newer(u32),
    Damaged,
}

fn encode(shards: u16, identity: &[u8; 16]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[12..14].copy_from_slice(&shards.to_le_bytes());
    bytes[16..32].copy_from_slice(identity);
    let crc = crc32c(0, &bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<(u16, [u8; 16]), Unreadable> {
    let (Some(magic), Some(format)) = (bytes.first_chunk::<8>(), array::<4>(bytes, 8)) else {
        return Err(Unreadable::Damaged);
    };
    // A newer format may be longer and checked otherwise; its number stays where it is.
    let format = u32::from_le_bytes(format);
    if magic == MAGIC && format > FORMAT {
        return Err(Unreadable::Newer(format));
    }
    let whole = bytes.len() == BYTES && magic == MAGIC && format == FORMAT;
    match (array::<2>(bytes, 12), array::<16>(bytes, 16), array::<4>(bytes, 60)) {
        (Some(shards), Some(identity), Some(crc))
            if whole && u32::from_le_bytes(crc) == crc32c(0, &bytes[..60]) =>
        {
            Ok((u16::from_le_bytes(shards), identity))
        }
        _ => Err(Unreadable::Damaged),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.first_chunk::<N>().copied()
}

fn check_existing(path: &Path, wanted: Option<u16>, shards: u16) -> Result<(), StartRefused> {
    if let Some(wanted) = wanted.filter(|wanted| *wanted != shards) {
        return Err(StartRefused::new(
            format!("{} has {shards} shards, not the {wanted} of --shards", path.display()),
            format!("--shards {shards}, or leaving it out: the number never changes"),
        ));
    }
    match (0..shards).map(|s| shard_path(path, s)).find(|folder| !folder.is_dir()) {
        None => Ok(()),
        Some(missing) => Err(StartRefused::new(
            format!("the folder {} is missing, its messages with it", missing.display()),
            "restoring it from a backup, or mounting what belongs there",
        )),
    }
}

/// A directory that was never used: folders first, then the file that says so.
fn create(path: &Path, shards: u16) -> Result<(u16, [u8; 16]), StartRefused> {
    let fail = |error: io::Error| unusable(path, "written to", &error);
    refuse_leftovers(path)?;
    for shard in 0..shards {
        fs::create_dir_all(shard_path(path, shard)).map_err(fail)?;
    }
    sync_folder(path).map_err(fail)?;
    let identity = random_bytes().map_err(fail)?;
    let temporary = path.join("directory.new");
    let mut file = File::create(&temporary).map_err(fail)?;
    file.write_all(&encode(shards, &identity)).map_err(fail)?;
    file.sync_all().map_err(fail)?;
    fs::rename(&temporary, path.join("directory")).map_err(fail)?;
    sync_folder(path).map_err(fail)?;
    Ok((shards, identity))
}

/// Folders with files in them but no directory file: somebody's data, not a new broker.
fn refuse_leftovers(path: &Path) -> Result<(), StartRefused> {
    let entries = fs::read_dir(path).map_err(|error| unusable(path, "read", &error))?;
    for entry in entries.flatten() {
        let used = entry.file_name().to_string_lossy().starts_with("shard-")
            && fs::read_dir(entry.path()).is_ok_and(|mut files| files.next().is_some());
        if used {
            return Err(StartRefused::new(
                format!(
                    "{} holds files but {} is missing",
                    entry.path().display(),
                    path.join("directory").display()
                ),
                "restoring that file from a backup, or --data-dir with an empty path",
            ));
        }
    }
    Ok(())
}

pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Bytes of the system's entropy.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes away with the value.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lanemq-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_directory_keeps_its_shards_and_identity() {
        let dir = Temporary::new("keeps");
        let first = Directory::open(&dir.0, None, 3).unwrap();
        assert_eq!(first.shards, 3);
        assert!(first.shard(ShardId(2)).is_dir());
        assert_eq!(fs::metadata(first.probe()).unwrap().len(), ALIGN as u64);
        let identity = first.identity;
        drop(first);
        let again = Directory::open(&dir.0, Some(3), 8).unwrap();
        assert_eq!((again.shards, again.identity), (3, identity));
        drop(again);
        let refused = Directory::open(&dir.0, Some(2), 8).unwrap_err();
        assert!(refused.mend.starts_with("--shards 3"), "{refused}");
    }

    #[test]
    fn a_second_holder_is_refused_by_number() {
        let dir = Temporary::new("lock");
        let held = Directory::open(&dir.0, None, 1).unwrap();
        // flock belongs to the open file, so a second open in this process is a second holder.
        let refused = Directory::open(&dir.0, None, 1).unwrap_err();
        assert!(refused.what.contains(&std::process::id().to_string()), "{refused}");
        drop(held);
        assert!(Directory::open(&dir.0, None, 1).is_ok());
    }

    #[test]
    fn what_is_missing_damaged_or_newer_is_never_an_empty_broker() {
        let dir = Temporary::new("missing");
        drop(Directory::open(&dir.0, None, 2).unwrap());
        let file = dir.0.join("directory");
        let whole = fs::read(&file).unwrap();

        fs::remove_dir(dir.0.join("shard-0001")).unwrap();
        let refused = Directory::open(&dir.0, None, 2).unwrap_err();
        assert!(refused.what.contains("shard-0001"), "{refused}");
        fs::create_dir(dir.0.join("shard-0001")).unwrap();

        for bit in 0..BYTES * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
        }
        for len in 0..BYTES {
            assert_eq!(decode(&whole[..len]), Err(Unreadable::Damaged));
        }
        let mut newer = whole.clone();
        newer[8] = 2;
        newer.push(0);
        fs::write(&file, &newer).unwrap();
        let refused = Directory::open(&dir.0, None, 2).unwrap_err();
        assert!(refused.what.contains("format 2"), "{refused}");

        fs::remove_file(&file).unwrap();
        fs::write(dir.0.join("shard-0000/manifest"), b"x").unwrap();
        let refused = Directory::open(&dir.0, None, 2).unwrap_err();
        assert!(refused.what.contains("shard-0000"), "{refused}");
    }

    #[test]
    fn a_start_that_was_cut_short_is_taken_up_again() {
        let dir = Temporary::new("cut");
        fs::create_dir(dir.0.join("shard-0000")).unwrap();
        fs::write(dir.0.join("directory.new"), b"half").unwrap();
        assert_eq!(Directory::open(&dir.0, None, 2).unwrap().shards, 2);
    }
}

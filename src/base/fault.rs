//! What a disk operation can fail with, free of any operating system's types.

use std::fmt;

/// A failed disk operation: the system's error number, kept so that the cause can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskError {
    pub errno: i32,
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

impl DiskError {
    pub const IO: Self = Self { errno: EIO };
    pub const NO_SPACE: Self = Self { errno: ENOSPC };
    pub const NOT_FOUND: Self = Self { errno: ENOENT };

    /// Out of space or over quota: the one kind that poisons nothing.
    pub fn is_no_space(self) -> bool {
        matches!(self.errno, ENOSPC | EDQUOT)
    }

    pub fn is_not_found(self) -> bool {
        self.errno == ENOENT
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for DiskError {}

//! Layer 2: the segment log of one shard. Synchronous, without I/O: it asks for disk operations
//! ([`io::LogIo`]) and is told how they ended ([`io::IoDone`]). Bytes: `FORMAT.md` beside this.

pub mod io;
pub mod storage;

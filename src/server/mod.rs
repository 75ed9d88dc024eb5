//! Layer 4: the driver. The only folder that knows glommio, sockets, files, threads and clocks.
//!
//! It hands commands to the shards, performs what they ask for, and gives the answers back.
//! One executor thread on each core; a connection and a shard stay on theirs. Nothing borrowed
//! from a shard lives across an await ([`shard::ShardHandle`] is the one door).

pub mod access;
pub mod answer;
pub mod auth;
pub mod cadence;
pub mod clock;
pub mod conn;
pub mod control;
pub mod directory;
pub mod disk;
pub mod dma;
pub mod executor;
pub mod fs_storage;
mod groups;
pub mod host;
mod inspect;
pub mod jwks;
pub mod listen;
pub mod mesh;
pub mod meters;
pub mod node;
pub mod observe;
pub mod operate;
pub mod operation;
pub mod pace;
pub mod process;
pub mod reactor;
mod replay;
pub mod replies;
pub mod ring;
pub mod route;
pub mod sampler;
pub mod serve;
pub mod settings;
pub mod shard;
pub mod sockets;
pub mod sys;
pub mod token;
mod transact;
pub mod unpark;
pub mod watch;

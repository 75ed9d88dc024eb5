//! LaneMQ: a single-node message broker, one ordered partition per entity.
//!
//! The crate is laid out in layers; a module imports only from layers below its own
//! (`tests/tidy.rs` enforces it):
//!
//! ```text
//!  5  main.rs, config      settings and process start
//!  4  server               glommio, sockets, files, threads, clocks: the driver
//!  3  broker               the product: partitions, cursors, leases, dedup, waiters, shards
//!  2  http  proto  log     HTTP codec, bodies <-> commands, segment log; siblings, no imports between
//!  1  model                commands, replies, peer messages, error codes: plain data
//!  0  base                 ids, time values, aligned buffers, checksums, limits, prng
//! ```
//!
//! Everything below `server` is synchronous and does no I/O: it takes commands, completions and
//! the time as arguments and returns effects. See `ARCHITECTURE.md` for the whole map.

pub mod base;
pub mod broker;
pub mod config;
pub mod http;
pub mod log;
pub mod model;
pub mod proto;
pub mod server;

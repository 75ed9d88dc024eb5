//! What integration tests share: the broker as a process, and a small blocking HTTP client.
//!
//! The client is deliberately naive. It reads HTTP/1.1 by its own few lines, so that a framing
//! fault of the broker is seen by code that shares nothing with the broker's own codec.

// Each test binary compiles this module for itself and uses a part of it.
#![allow(dead_code, unused_imports)]

mod broker;
mod client;
mod process;
mod wire;

pub use broker::{Broker, Options};
pub use client::{Client, Request, Response};
pub use process::Usage;
pub use wire::{Message, Wire, encode, number, quoted};

/// How long something may take that should take `strict`. On a busy machine, as a test run is,
/// a thread may not run for a while: without `STRICT_TIMES=1` there is twenty times the room,
/// which still tells late from never.
pub fn within(strict: std::time::Duration) -> std::time::Duration {
    match std::env::var_os("STRICT_TIMES") {
        Some(_) => strict,
        None => (strict * 20).max(std::time::Duration::from_secs(5)),
    }
}

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

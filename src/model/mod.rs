//! Layer 1: what can be asked, what can be answered, what shards tell each other. Plain data.

pub mod command;
pub mod error;
pub mod frame;
pub mod inspect;
pub mod options;
pub mod peer;
pub mod reply;
pub mod traffic;
pub mod transaction;

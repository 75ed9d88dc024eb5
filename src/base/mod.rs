//! Layer 0: values every other layer speaks in. No I/O, no clock; whoever owns memory keeps it.

pub mod buf;
pub mod checksum;
pub mod cipher;
pub mod compress;
pub mod extent;
pub mod fault;
pub mod hash;
pub mod histogram;
pub mod ids;
pub mod limits;
pub mod mutant;
pub mod prng;
pub mod spare;
pub mod time;
pub mod uuid;

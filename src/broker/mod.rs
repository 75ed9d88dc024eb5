//! Layer 3: the product. Synchronous, without I/O: commands, peers' messages, completions and
//! the time come in, [`effect::Effects`] go out.

pub mod effect;
pub mod shard;

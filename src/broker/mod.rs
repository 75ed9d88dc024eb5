//! Layer 3: the product. Synchronous, without I/O: commands, peers' messages, completions and
//! the time come in, [`effect::Effects`] go out. One file per operation, named as in `proto`.

mod ack;
mod append;
mod claim;
mod commit;
mod dead_letters;
mod deadlines;
mod dedup;
pub mod effect;
mod group;
mod history;
mod lease;
mod line;
mod owner;
mod partition;
mod pinned;
mod pop;
mod push;
mod queue;
mod read;
mod ready;
pub mod records;
mod retention;
mod segments;
mod settle;
pub mod shard;
mod share;
mod start;
mod state;
mod task;
mod transact;
mod turns;
pub mod undecided;
mod walk;

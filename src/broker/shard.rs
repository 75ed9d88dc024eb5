//! One shard: the only door to everything the broker knows. Dispatch only; the operations live
//! in the files named after them.

use super::effect::{Done, Effects};
use crate::base::buf::IoBuf;
use crate::base::ids::{ShardId, Token};
use crate::base::time::{Deadline, Now};
use crate::log::storage::Storage;
use crate::model::command::Command;
use crate::model::peer::PeerMsg;
use crate::model::reply::PopReply;

/// What a shard is told once, at its start.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub shard: ShardId,
    pub shards: u16,
    /// Identity of the data directory: files of another one are refused.
    pub directory: [u8; 16],
    pub segment_bytes: u64,
    /// Bytes this shard may hold in memory for work in flight; over it 429.
    pub memory_bytes: usize,
    /// Bytes of the log's newest part kept in memory for pops.
    pub tail_bytes: usize,
    /// Seed of ids and salts: from the system's entropy in production, fixed in the simulation.
    pub entropy: u64,
}

/// What opening a shard found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// The log ended with the marker of a clean stop.
    pub clean: bool,
    /// Things a person should know: a torn tail that was cut, a suspected bit flip at the cut.
    pub notices: Vec<String>,
    pub records: u64,
    pub bytes: u64,
}

/// Why a shard's log cannot be opened. The text names the file and the place.
#[derive(Clone, Debug)]
pub struct OpenRefused(pub String);

pub struct Shard<B: IoBuf> {
    _marker: std::marker::PhantomData<B>,
}

#[expect(unused_variables, reason = "signatures first; the bodies follow")]
impl<B: IoBuf> Shard<B> {
    /// Recovers the shard from its directory. Blocking, before anything is served.
    pub fn open<S: Storage>(
        config: ShardConfig,
        storage: &mut S,
        now: Now,
    ) -> Result<(Self, OpenReport), OpenRefused> {
        todo!("open")
    }

    /// Begins the start-up exchange with the other shards: every shard's `start` runs, then
    /// effects and peer messages flow until all are [`Shard::is_ready`]. Only then is the port
    /// opened.
    pub fn start(&mut self, now: Now, fx: &mut Effects<B>) {
        todo!("start")
    }

    pub fn is_ready(&self) -> bool {
        todo!("is_ready")
    }

    /// A client's command. Exactly one `Effect::Reply` with `token` follows, now or later.
    pub fn handle(&mut self, now: Now, command: Command<'_>, token: Token, fx: &mut Effects<B>) {
        todo!("handle")
    }

    /// A message of another shard.
    pub fn deliver(&mut self, now: Now, from: ShardId, msg: PeerMsg, fx: &mut Effects<B>) {
        todo!("deliver")
    }

    /// An I/O effect has ended.
    pub fn complete(&mut self, now: Now, done: Done<B>, fx: &mut Effects<B>) {
        todo!("complete")
    }

    /// The client of `token` is gone. The reply still comes (and is thrown away); a parked pop
    /// is answered empty at once and claims nothing.
    pub fn cancel(&mut self, now: Now, token: Token, fx: &mut Effects<B>) {
        todo!("cancel")
    }

    /// A pop's reply could not be sent: its claims are given back with their attempt, at the
    /// front of the ready list.
    pub fn undelivered(&mut self, now: Now, reply: &PopReply<B>, fx: &mut Effects<B>) {
        todo!("undelivered")
    }

    /// To be called once [`Shard::next_deadline`] has passed.
    pub fn tick(&mut self, now: Now, fx: &mut Effects<B>) {
        todo!("tick")
    }

    /// When `tick` is next wanted. May change after every call of any other method.
    pub fn next_deadline(&self) -> Option<Deadline> {
        todo!("next_deadline")
    }

    /// Stops taking new work: parked pops get their empty answer, new commands 503 `draining`.
    /// Open requests finish.
    pub fn drain(&mut self, now: Now, fx: &mut Effects<B>) {
        todo!("drain")
    }

    /// After `drain`, when all replies are out: writes the clean-stop marker.
    pub fn stop(&mut self, now: Now, fx: &mut Effects<B>) {
        todo!("stop")
    }

    /// The marker of `stop` is durable and no I/O is in flight.
    pub fn is_stopped(&self) -> bool {
        todo!("is_stopped")
    }

    /// Why this shard takes no writes, if so. The driver exits the process once it has sent
    /// what replies it can: the truth is on the media, not in memory.
    pub fn fault(&self) -> Option<&str> {
        todo!("fault")
    }
}

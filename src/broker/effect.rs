//! What a shard asks of its driver, and the reusable list it asks in.

use crate::base::ids::{ShardId, Token};
use crate::log::io::{IoDone, LogIo};
use crate::model::peer::PeerMsg;
use crate::model::reply::Reply;

/// One wish of a shard. Each `Io` is answered by exactly one [`Done`].
#[derive(Debug)]
pub enum Effect<B> {
    Io(LogIo<B>),
    /// Deliver to another shard's [`super::Shard::deliver`], in the order sent for each pair.
    Send {
        to: ShardId,
        msg: PeerMsg,
    },
    /// The one answer to the command handed in with `token`.
    Reply {
        token: Token,
        reply: Reply<B>,
    },
}

/// A completed I/O effect.
pub type Done<B> = IoDone<B>;

/// Effects in the order they were wished for; the driver drains it after every call.
#[derive(Debug)]
pub struct Effects<B> {
    pub list: Vec<Effect<B>>,
}

impl<B> Default for Effects<B> {
    fn default() -> Self {
        Self { list: Vec::new() }
    }
}

impl<B> Effects<B> {
    pub fn reply(&mut self, token: Token, reply: Reply<B>) {
        self.list.push(Effect::Reply { token, reply });
    }

    pub fn send(&mut self, to: ShardId, msg: PeerMsg) {
        self.list.push(Effect::Send { to, msg });
    }
}

//! Memory of a shard's requests that have ended, for those to come.

use crate::base::spare::{Reuse, Spare};
use crate::model::peer::PushBatch;
use crate::model::reply::{PushResult, Reply};

#[derive(Debug, Default)]
pub(super) struct Spares {
    pub batches: Spare<PushBatch>,
    /// Of pieces.
    pub frames: Spare<Vec<u8>>,
    /// Names in replies.
    pub texts: Spare<String>,
    pub push_results: Spare<Vec<PushResult>>,
}

impl Spares {
    /// A batch that is stored.
    pub(super) fn put_batch(&mut self, mut batch: PushBatch) {
        batch.pieces.drain(..).for_each(|piece| self.frames.put(piece.frames));
        self.batches.put(batch);
    }

    /// A reply that is out.
    pub(super) fn put_reply<B>(&mut self, reply: Reply<B>) {
        if let Reply::Push(results) = reply {
            self.push_results.put(results);
        }
    }
}

impl Reuse for PushBatch {
    fn empty(&mut self) -> usize {
        self.pieces.clear();
        (self.incarnation, self.count) = (0, 0);
        self.queue.empty() + self.partition.empty() + self.minted.empty()
    }
}

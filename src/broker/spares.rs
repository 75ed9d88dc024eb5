//! Memory of a shard's requests that have ended, for those to come.

use super::claim::Claiming;
use crate::base::buf::{Gather, IoBuf};
use crate::base::spare::Spare;
use crate::model::peer::{PeerAcks, PeerClaim, PushBatch};
use crate::model::reply::{AckResult, Claim, PushResult, Reply};

pub(super) struct Spares<B> {
    pub batches: Spare<Box<PushBatch>>,
    /// Frames of pieces, and batches on their way to another shard.
    pub bytes: Spare<Vec<u8>>,
    /// Names in claims, acks and replies.
    pub texts: Spare<String>,
    pub push_results: Spare<Vec<PushResult>>,
    pub acks: Spare<Box<PeerAcks>>,
    pub ack_results: Spare<Vec<AckResult>>,
    /// With the places of their items.
    pub placed_results: Spare<Vec<(u32, AckResult)>>,
    pub claimings: Spare<Vec<Claiming<B>>>,
    pub gathers: Spare<Vec<Gather<B>>>,
    pub claims: Spare<Vec<Claim<B>>>,
    pub peer_claims: Spare<Vec<PeerClaim>>,
}

impl<B> Default for Spares<B> {
    fn default() -> Self {
        Self {
            batches: Spare::default(),
            bytes: Spare::default(),
            texts: Spare::default(),
            push_results: Spare::default(),
            acks: Spare::default(),
            ack_results: Spare::default(),
            placed_results: Spare::default(),
            claimings: Spare::default(),
            gathers: Spare::default(),
            claims: Spare::default(),
            peer_claims: Spare::default(),
        }
    }
}

impl<B: IoBuf> Spares<B> {
    /// A batch that is stored.
    pub(super) fn put_batch(&mut self, mut batch: Box<PushBatch>) {
        batch.pieces.drain(..).for_each(|piece| self.bytes.put(piece.frames));
        self.batches.put(batch);
    }

    /// A reply that is out.
    pub(super) fn put_reply(&mut self, reply: Reply<B>) {
        match reply {
            Reply::Push(results) => self.push_results.put(results),
            Reply::Ack(results) => self.ack_results.put(results),
            Reply::Pop(mut pop) => {
                self.texts.put(pop.queue);
                self.texts.put(pop.group);
                pop.claims.drain(..).for_each(|claim| self.put_claim(claim));
                self.claims.put(pop.claims);
            }
            _ => {}
        }
    }

    fn put_claim(&mut self, claim: Claim<B>) {
        self.texts.put(claim.queue);
        self.texts.put(claim.partition);
        self.put_batches(claim.batches);
    }

    fn put_batches(&mut self, mut batches: Vec<Gather<B>>) {
        for batch in batches.drain(..) {
            if let Gather::Owned(bytes) = batch {
                self.bytes.put(bytes);
            }
        }
        self.gathers.put(batches);
    }

    /// A claim for another shard: its batches are copied.
    pub(super) fn sent_claim(&mut self, claim: Claim<B>) -> PeerClaim {
        let copied = claim.batches.iter().map(|batch| {
            let mut bytes = self.bytes.take();
            bytes.reserve(batch.len());
            batch.pieces().for_each(|piece| bytes.extend_from_slice(piece));
            bytes
        });
        let batches = copied.collect();
        self.put_batches(claim.batches);
        self.texts.put(claim.queue);
        PeerClaim {
            partition: claim.partition,
            partition_id: claim.partition_id,
            since: claim.since,
            start: claim.start,
            end: claim.end,
            epoch: claim.epoch,
            attempt: claim.attempt,
            batches,
        }
    }

    /// A claim of another shard.
    pub(super) fn received_claim(&mut self, queue: &str, claim: PeerClaim) -> Claim<B> {
        let mut batches = self.gathers.take();
        batches.extend(claim.batches.into_iter().map(Gather::Owned));
        Claim {
            queue: self.texts.text(queue),
            partition: claim.partition,
            partition_id: claim.partition_id,
            since: claim.since,
            start: claim.start,
            end: claim.end,
            epoch: claim.epoch,
            attempt: claim.attempt,
            batches,
        }
    }
}

//! What was pushed, popped and acked; the judge of whether a run's figures may be shown.

use std::collections::HashMap;

use hdrhistogram::Histogram;

use crate::args::{Args, Peer};
use crate::wire::{Batch, Fault, Message};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Messages whose push was answered.
    pub pushed: u64,
    pub popped: u64,
    pub acked: u64,
    /// Answers, whatever they brought.
    pub requests: u64,
}

impl Counts {
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            pushed: self.pushed - earlier.pushed,
            popped: self.popped - earlier.popped,
            acked: self.acked - earlier.acked,
            requests: self.requests - earlier.requests,
        }
    }
}

pub struct Ledger {
    batch: u64,
    /// By push: when it was sent, or meant to be.
    sent_ns: Vec<u64>,
    /// All messages that are popped were pushed by this run.
    own: bool,
    /// One bit for each number, set when it was popped. Not kept for a queue that earlier runs
    /// filled, which use the same numbers, where offsets tell messages apart.
    seen: Option<Vec<u64>>,
    /// By partition: the offset that its next message must have.
    next_offsets: HashMap<u64, u64, ahash::RandomState>,
    pub counts: Counts,
}

impl Ledger {
    pub fn new(args: &Args) -> Self {
        let own = args.pushes_anything();
        Self {
            batch: u64::from(args.batch),
            sent_ns: Vec::new(),
            own,
            seen: (own || args.peer != Peer::Lanemq).then(Vec::new),
            next_offsets: HashMap::default(),
            counts: Counts::default(),
        }
    }

    pub fn sent(&mut self, batch: &Batch, at_ns: u64) {
        assert_eq!(batch.index, self.sent_ns.len() as u64, "pushes are sent in order");
        self.sent_ns.push(at_ns);
    }

    pub fn pushed(&mut self, batch: &Batch) {
        self.counts.pushed += u64::from(batch.count);
    }

    /// Takes what a pop brought at `now_ns`. Each message must be new here and the next of its
    /// partition. `latency` gets the time since its push, for pushes sent at or after `from_ns`.
    pub fn popped(
        &mut self,
        messages: &[Message],
        now_ns: u64,
        from_ns: u64,
        latency: &mut Histogram<u64>,
    ) -> Result<(), Fault> {
        for message in messages {
            self.in_order(message)?;
            self.once(message.seq)?;
            if !self.own {
                continue;
            }
            let Some(&sent_ns) = self.sent_ns.get((message.seq / self.batch) as usize) else {
                let seq = message.seq;
                return Err(Fault::new(format!("message {seq} was popped but never pushed")));
            };
            if sent_ns >= from_ns {
                latency.saturating_record(now_ns.saturating_sub(sent_ns));
            }
        }
        self.counts.popped += messages.len() as u64;
        Ok(())
    }

    fn once(&mut self, seq: u64) -> Result<(), Fault> {
        let Some(seen) = &mut self.seen else { return Ok(()) };
        // A number is below what one run can push, or the message is not one of ours.
        const SEQ_MAX: u64 = 1 << 36;
        let (word, bit) = ((seq.min(SEQ_MAX) / 64) as usize, 1 << (seq % 64));
        if word >= seen.len() {
            seen.resize((word + 1).next_power_of_two(), 0);
        }
        if seq >= SEQ_MAX || seen[word] & bit != 0 {
            return Err(Fault::new(format!("message {seq} was popped twice or never pushed")));
        }
        seen[word] |= bit;
        Ok(())
    }

    fn in_order(&mut self, message: &Message) -> Result<(), Fault> {
        let Some(place) = message.place else { return Ok(()) };
        let first = if self.own { 0 } else { place.offset };
        let next = self.next_offsets.entry(place.partition_id).or_insert(first);
        if place.offset != *next {
            return Err(Fault::new(format!(
                "partition {} delivered offset {} where {} is next",
                place.partition_id, place.offset, next
            )));
        }
        *next += 1;
        Ok(())
    }

    /// The last word: everything pushed was popped and acked.
    pub fn settle(&self, args: &Args) -> Result<(), Fault> {
        let Counts { pushed, popped, acked, .. } = self.counts;
        if self.own && (popped != pushed || acked != pushed) {
            return Err(Fault::new(format!(
                "{pushed} messages were pushed, {popped} popped and {acked} acked"
            )));
        }
        if let (false, Some(wanted)) = (self.own, args.messages)
            && popped != wanted
        {
            return Err(Fault::new(format!("{popped} messages were there, not {wanted}")));
        }
        if popped != acked {
            return Err(Fault::new(format!("{popped} messages were popped but {acked} acked")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::wire::Place;

    fn message(seq: u64, offset: u64) -> Message {
        Message { seq, place: Some(Place { partition_id: 3, offset }) }
    }

    const RUN: &str = "bench push-pop --batch 2";

    fn args(words: &str) -> Args {
        Args::try_parse_from(words.split(' ')).unwrap()
    }

    fn ledger() -> (Ledger, Histogram<u64>) {
        let mut ledger = Ledger::new(&args(RUN));
        for index in 0..2 {
            let batch = Batch { index, first_seq: 2 * index, count: 2, partition: 0 };
            ledger.sent(&batch, 10 * index);
            ledger.pushed(&batch);
        }
        (ledger, Histogram::new_with_bounds(1, 1_000, 3).unwrap())
    }

    #[test]
    fn what_is_popped_once_and_in_order_settles() {
        let (mut ledger, mut latency) = ledger();
        ledger.popped(&[message(0, 0), message(1, 1)], 50, 10, &mut latency).unwrap();
        ledger.popped(&[message(3, 2), message(2, 3)], 50, 10, &mut latency).unwrap();
        assert!(ledger.settle(&args(RUN)).is_err());
        ledger.counts.acked = 4;
        ledger.settle(&args(RUN)).unwrap();
        // The first push was sent before measuring began.
        assert_eq!((latency.len(), latency.max()), (2, 40));
    }

    #[test]
    fn strange_repeated_and_disordered_messages_are_faults() {
        for bad in [
            [message(0, 0), message(0, 1)],
            [message(0, 0), message(4, 1)],
            [message(0, 0), message(1, 2)],
            [message(0, 0), message(1, 0)],
            [message(0, 1), message(1, 2)],
        ] {
            let (mut ledger, mut latency) = ledger();
            assert!(ledger.popped(&bad, 50, 0, &mut latency).is_err(), "{bad:?}");
        }
        // What an earlier run left may begin anywhere.
        let mut latency = Histogram::new_with_bounds(1, 1_000, 3).unwrap();
        let mut ledger = Ledger::new(&args("bench pop --batch 2 --queue q"));
        ledger.popped(&[message(9, 5), message(9, 6)], 50, 0, &mut latency).unwrap();
        assert!(ledger.popped(&[message(9, 6)], 50, 0, &mut latency).is_err());
    }
}

//! Pops that wait for one partition, at that partition's shard. They go before queue-wide ones,
//! and may wait for a partition, or a queue, that does not exist yet: so they are kept by name.

use std::collections::{BTreeMap, VecDeque};

use super::effect::Effects;
use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::limits;
use crate::base::time::Now;
use crate::model::peer::{Arrival, ClaimMode, Name, PinnedPark};

/// Waiters by queue and partition, oldest first.
#[derive(Default, Debug)]
pub(super) struct Pinned {
    waiters: BTreeMap<(Name, Name), VecDeque<PinnedPark>>,
    count: usize,
    /// Partitions whose waiters are still to look again, by queue and name.
    due: VecDeque<(Name, Name)>,
}

impl Pinned {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Pops of one group that wait for one partition.
    pub(super) fn waiting(&self, queue: &str, partition: &str, group: &str) -> u64 {
        let waiters = self.waiters.get(&(queue.into(), partition.into()));
        waiters.into_iter().flatten().filter(|waiter| *waiter.group == *group).count() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn remove(&mut self, queue: &str, partition: &str, arrival: Arrival) {
        let name: (Name, Name) = (queue.into(), partition.into());
        let Some(waiters) = self.waiters.get_mut(&name) else { return };
        let before = waiters.len();
        waiters.retain(|w| w.arrival != arrival);
        self.count -= before - waiters.len();
        if waiters.is_empty() {
            self.waiters.remove(&name);
        }
    }

    fn insert(&mut self, park: PinnedPark) {
        let waiters = self.waiters.entry((park.queue.clone(), park.partition.clone())).or_default();
        // A waiter whose claim found nothing comes back to its old place. One that registered
        // meanwhile may stand there already.
        let at = waiters.partition_point(|w| w.arrival < park.arrival);
        if waiters.get(at).is_none_or(|w| w.arrival != park.arrival) {
            waiters.insert(at, park);
            self.count += 1;
        }
    }

    /// Takes the oldest waiter of a group that can still be answered in time.
    fn take(&mut self, now: Now, queue: &str, partition: &str, group: &str) -> Option<PinnedPark> {
        let name: (Name, Name) = (queue.into(), partition.into());
        let waiters = self.waiters.get_mut(&name)?;
        let late = now.after_ms(limits::POP_LATE_MS);
        let at = waiters.iter().position(|w| *w.group == *group && w.until > late)?;
        let park = waiters.remove(at)?;
        self.count -= 1;
        if waiters.is_empty() {
            self.waiters.remove(&name);
        }
        Some(park)
    }

    /// The groups that wait for a partition, each once.
    fn groups(&self, queue: &str, partition: &str) -> Vec<Name> {
        let name: (Name, Name) = (queue.into(), partition.into());
        let mut groups: Vec<Name> = self
            .waiters
            .get(&name)
            .map(|waiters| waiters.iter().map(|w| w.group.clone()).collect())
            .unwrap_or_default();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The partitions of a queue that a group waits for.
    fn partitions(&self, queue: &str, group: &str) -> Vec<Name> {
        let from = self.waiters.range((queue.into(), Name::default())..);
        from.take_while(|((q, _), _)| **q == *queue)
            .filter(|(_, waiters)| waiters.iter().any(|w| *w.group == *group))
            .map(|((_, partition), _)| partition.clone())
            .collect()
    }
}

impl<B: IoBuf> Shard<B> {
    /// A group was put elsewhere: its pinned waiters look again, in slices of the sweep.
    pub(super) fn pinned_look_again(&mut self, queue: &str, group: &str) {
        let partitions = self.pinned.partitions(queue, group).into_iter();
        self.pinned.due.extend(partitions.map(|partition| (queue.into(), partition)));
    }

    /// Serves the next of them. Returns whether some are left.
    pub(super) fn serve_due(&mut self, now: Now, fx: &mut Effects<B>) -> bool {
        for _ in 0..limits::PINNED_SLICE {
            let Some((queue, partition)) = self.pinned.due.pop_front() else { break };
            self.serve_pinned(now, &queue, &partition, fx);
        }
        !self.pinned.due.is_empty()
    }

    /// Waits unless something is there already.
    pub(super) fn park_pinned(&mut self, now: Now, park: PinnedPark, fx: &mut Effects<B>) {
        if !self.claim_for_pinned(now, &park, fx) {
            self.pinned.insert(park);
        }
    }

    fn claim_for_pinned(&mut self, now: Now, park: &PinnedPark, fx: &mut Effects<B>) -> bool {
        let mode = ClaimMode::Pinned {
            partition: park.partition.clone(),
            subscription: park.subscription,
        };
        self.try_claim(now, park.arrival, &park.queue, &park.group, park.spec.clone(), &mode, fx)
    }

    /// Serves the waiters of one partition, if it can be claimed.
    pub(super) fn serve_pinned(
        &mut self,
        now: Now,
        queue: &str,
        partition: &str,
        fx: &mut Effects<B>,
    ) {
        if self.pinned.is_empty() {
            return;
        }
        for group in self.pinned.groups(queue, partition) {
            // A commit-at-delivery pop leaves the partition claimable for the next waiter.
            while let Some(park) = self.pinned.take(now, queue, partition, &group) {
                if !self.claim_for_pinned(now, &park, fx) {
                    self.pinned.insert(park);
                    break;
                }
            }
        }
    }
}

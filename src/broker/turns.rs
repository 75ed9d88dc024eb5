//! Whose turn it is: lines of work that must not overlap, by what it touches.
//!
//! A transaction holds what it touches (*reserves* it) while it is decided; a push that must read
//! its originals first holds its partition. What comes behind waits in line. **Who enters stands
//! in all of its lines in one step, and its turn has come when it heads all of them**, so two on
//! one shard never wait for each other.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use smallvec::SmallVec;

use super::ack::AckJob;
use super::append::PeerPush;
use super::effect::Effects;
use super::group::{CursorKey, End};
use super::groups::PartitionSeek;
use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::hash::{partition_hash, queue_hash};
use crate::base::ids::{LeaseId, ShardId};
use crate::base::time::Now;
use crate::model::peer::{GivenBack, Name, TaskId};
use crate::model::transaction::{DeadLetterId, TransactionId};

/// What can be held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Resource {
    /// Appending to a partition, which may not exist yet: two hashes of its names. Two partitions
    /// that share them would only wait for each other.
    Append(u64, u64),
    Cursor(CursorKey),
    DeadLetter(DeadLetterId),
}

impl Resource {
    pub(super) fn append(queue: &str, partition: &str) -> Self {
        Self::Append(partition_hash(queue, partition), queue_hash(queue))
    }
}

/// Names one that stands in line.
pub(super) type Ticket = u64;

/// Work that stands in line. A push that reads its originals and a transaction's share hold
/// their turn beyond the step in which it came.
#[derive(Debug)]
pub(super) enum Waiting {
    Push(PeerPush),
    Ack(Box<AckJob>),
    Extend { from: ShardId, task: TaskId, lease_id: LeaseId, seconds: u32 },
    GiveBack { queue: Name, group: Name, lease_id: Option<LeaseId>, claims: Vec<GivenBack> },
    Seek(Box<PartitionSeek>),
    Share(TransactionId),
}

/// All lines of a shard.
#[derive(Debug)]
pub(super) struct Turns {
    lines: HashMap<Resource, Line, ahash::RandomState>,
    entered: HashMap<Ticket, Resources, ahash::RandomState>,
}

impl Default for Turns {
    fn default() -> Self {
        let hasher = || ahash::RandomState::with_seeds(37, 38, 39, 40);
        Self { lines: HashMap::with_hasher(hasher()), entered: HashMap::with_hasher(hasher()) }
    }
}

/// What one stands in line for.
pub(super) type Resources = SmallVec<[Resource; 2]>;

/// A few of those in line.
type Tickets = SmallVec<[Ticket; 2]>;

/// Mostly nobody is behind the first.
#[derive(Debug)]
struct Line {
    head: Ticket,
    behind: VecDeque<Ticket>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.entered.is_empty()
    }

    pub(super) fn is_held(&self, resource: Resource) -> bool {
        self.lines.contains_key(&resource)
    }

    /// Stands in all these lines. Returns whether the turn has come already.
    pub(super) fn enter(&mut self, ticket: Ticket, mut resources: Resources) -> bool {
        resources.sort_unstable();
        resources.dedup();
        let mut heads_all = true;
        for resource in &resources {
            match self.lines.entry(*resource) {
                Entry::Occupied(mut line) => {
                    line.get_mut().behind.push_back(ticket);
                    heads_all = false;
                }
                Entry::Vacant(line) => {
                    line.insert(Line { head: ticket, behind: VecDeque::new() });
                }
            }
        }
        let before = self.entered.insert(ticket, resources);
        assert!(before.is_none(), "a ticket enters once");
        heads_all
    }

    /// Whether this one heads all of its lines.
    pub(super) fn has_come(&self, ticket: Ticket) -> bool {
        self.entered.get(&ticket).is_some_and(|resources| {
            resources.iter().all(|r| self.lines.get(r).is_some_and(|line| line.head == ticket))
        })
    }

    /// What this one holds or waits for.
    pub(super) fn resources(&self, ticket: Ticket) -> &[Resource] {
        self.entered.get(&ticket).map_or(&[], Resources::as_slice)
    }

    /// Ends the turn of one that heads its lines: leaves all of them. Returns what it held, and those
    /// whose turn has come by that, in the order of their lines.
    pub(super) fn leave(&mut self, ticket: Ticket) -> (Resources, Tickets) {
        let resources = self.entered.remove(&ticket).unwrap_or_default();
        let mut heads = Tickets::new();
        for resource in &resources {
            let Entry::Occupied(mut line) = self.lines.entry(*resource) else { continue };
            assert_eq!(line.get().head, ticket, "only who heads its lines leaves them");
            let Some(next) = line.get_mut().behind.pop_front() else {
                line.remove();
                continue;
            };
            line.get_mut().head = next;
            if !heads.contains(&next) {
                heads.push(next);
            }
        }
        heads.retain(|head| self.has_come(*head));
        (resources, heads)
    }
}

impl<B: IoBuf> Shard<B> {
    /// Whether one of these is held, so that who touches them must stand in line.
    pub(super) fn must_wait(&self, resources: impl IntoIterator<Item = Resource>) -> bool {
        !self.turns.is_empty() && resources.into_iter().any(|r| self.turns.is_held(r))
    }

    /// Whether a transaction, or somebody in line behind one, has a hold on this cursor.
    pub(super) fn is_reserved(&self, key: CursorKey) -> bool {
        self.must_wait([Resource::Cursor(key)])
    }

    /// Stands in line; partitions in it are out of the ready lists meanwhile. Work whose turn has
    /// come at once is done before the call that brought it returns.
    pub(super) fn stand_in_line(&mut self, resources: Resources, work: Waiting) -> Ticket {
        for resource in &resources {
            if let Resource::Cursor(key) = resource
                && let Some(group) = self.state.group_mut(*key)
            {
                group.unlist(key.slot);
            }
        }
        let ticket = self.new_id();
        self.waiting.insert(ticket, work);
        if self.turns.enter(ticket, resources) {
            self.due.push_back(ticket);
        }
        ticket
    }

    pub(super) fn turn_came(&mut self, now: Now, ticket: Ticket, fx: &mut Effects<B>) {
        match self.waiting.remove(&ticket) {
            Some(Waiting::Push(push)) => {
                return self.judge_push(now, Some(ticket), push, BTreeMap::new(), fx);
            }
            Some(Waiting::Share(transaction)) => {
                return self.share_turn(now, transaction, fx);
            }
            Some(Waiting::Ack(job)) => self.settle_acks(now, *job, fx),
            Some(Waiting::Seek(seek)) => self.seek_now(now, &seek, fx),
            Some(Waiting::Extend { from, task, lease_id, seconds }) => {
                self.extend_leases(now, from, task, lease_id, seconds);
            }
            Some(Waiting::GiveBack { queue, group, lease_id, claims }) => {
                self.take_back(now, &queue, &group, lease_id, &claims, fx);
            }
            // Called twice: it has had its turn.
            None => return,
        }
        self.leave(now, ticket, fx);
    }

    /// Ends a turn. Partitions nobody holds any more go back where they can be claimed.
    pub(super) fn leave(&mut self, now: Now, ticket: Ticket, fx: &mut Effects<B>) {
        let (held, heads) = self.turns.leave(ticket);
        self.due.extend(heads);
        for resource in held {
            if let Resource::Cursor(key) = resource
                && !self.turns.is_held(resource)
            {
                self.make_ready(now, key, End::Back, fx);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::prng::Prng;
    use smallvec::smallvec;
    use std::collections::BTreeSet;

    fn append(n: u64) -> Resource {
        Resource::Append(n, 0)
    }

    #[test]
    fn a_turn_comes_when_all_lines_are_headed() {
        let mut turns = Turns::default();
        assert!(turns.enter(1, smallvec![append(1), append(2)]));
        assert!(!turns.enter(2, smallvec![append(2), append(3)]));
        assert!(!turns.enter(3, smallvec![append(3)]), "behind one that waits itself");
        assert!(turns.enter(4, smallvec![append(4)]));
        assert!(turns.is_held(append(3)) && !turns.is_held(append(5)));
        let mut leave = |ticket| turns.leave(ticket).1.to_vec();
        assert_eq!((leave(1), leave(2)), (vec![2], vec![3]));
        assert!(leave(3).is_empty() && leave(4).is_empty());
        assert!(turns.is_empty() && !turns.is_held(append(3)));
    }

    #[test]
    fn whoever_enters_gets_a_turn_and_never_two_hold_one_thing() {
        let mut prng = Prng::new(7);
        let mut turns = Turns::default();
        let (mut holding, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        for ticket in 0..20_000u64 {
            let wants = (0..1 + prng.below(4)).map(|_| append(prng.below(12))).collect();
            let came = turns.enter(ticket, wants);
            if came {
                holding.insert(ticket)
            } else {
                waiting.insert(ticket)
            };
            while holding.len() > 3 || ticket == 19_999 && !holding.is_empty() {
                let at = prng.below(holding.len() as u64) as usize;
                let leaver = *holding.iter().nth(at).unwrap();
                holding.remove(&leaver);
                for next in turns.leave(leaver).1 {
                    assert!(waiting.remove(&next), "its turn came twice");
                    holding.insert(next);
                }
            }
            let held: Vec<Resource> =
                holding.iter().flat_map(|t| turns.resources(*t)).copied().collect();
            assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());
        }
        assert!(waiting.is_empty() && turns.is_empty());
    }
}

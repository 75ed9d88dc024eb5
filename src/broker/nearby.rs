//! Which shard a queue-wide pop looks at first.
//!
//! The shard that a pop came to can answer it alone: no other executor is woken, and messages go
//! from its own log's buffers into the answer. But no other shard's partitions may wait for that.
//! With its claims a shard says since when its oldest ready partition waits. A pop is served here
//! while nothing that others have said lately is notably older than what lies here; and who has
//! said nothing lately is asked first. So a partition waits at most some [`FRESH_US`] +
//! [`SLACK_US`] longer than it would if all shards were one list.
//!
//! Pops that stand in a line come first: where somebody waits for this shard's next ready partition,
//! or was told of one, nothing is taken past the line.

use super::group::Group;
use super::shard::Shard;
use crate::base::buf::IoBuf;
use crate::base::ids::ShardId;
use crate::base::time::Now;

/// How long what a shard said counts.
const FRESH_US: u64 = 10_000;
/// How much older another shard's oldest partition must be for a pop to go there.
const SLACK_US: u64 = 10_000;

/// What another shard has last said of a group.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Heard {
    /// When, or when it was last asked, in monotonic microseconds.
    at_us: Option<u64>,
    /// Since when its oldest ready partition waits; `None`: it has none.
    oldest_us: Option<u64>,
}

impl<B: IoBuf> Shard<B> {
    /// Where a pop of the queue is to look first. `None`: nothing is ready here, or the line comes
    /// first.
    pub(super) fn first_look(&mut self, now: Now, queue: &str, group: &str) -> Option<ShardId> {
        let here = self.config.shard;
        let shards = usize::from(self.config.shards);
        let group = self.group_scanned(now, queue, group)?;
        let oldest_us = group.oldest_ready()?;
        if group.armed || group.promised {
            return None;
        }
        group.heard.resize(shards, Heard::default());
        let others = group.heard.iter_mut().enumerate().filter(|(at, _)| *at != here.index());
        let Some((at, heard)) = others.min_by_key(|(_, heard)| heard.rank(now)) else {
            return Some(here);
        };
        let goes = match heard.rank(now) {
            Rank::Silent(_) => true,
            Rank::Heard(theirs_us) => theirs_us.saturating_add(SLACK_US) < oldest_us,
        };
        if !goes {
            return Some(here);
        }
        heard.asked(now);
        Some(ShardId(at as u16))
    }

    /// Somebody from the line has come for what the owner was told of.
    pub(super) fn promise_kept(&mut self, queue: &str, group: &str) {
        if let Some(group) = self.group_by_name(queue, group) {
            group.promised = false;
        }
    }

    /// What this shard tells of a group with its claims.
    pub(super) fn oldest_ready(&mut self, now: Now, queue: &str, group: &str) -> Option<u64> {
        self.group_scanned(now, queue, group)?.oldest_ready()
    }

    /// The group, some ready partitions listed that were never looked at.
    fn group_scanned(&mut self, now: Now, queue: &str, group: &str) -> Option<&mut Group> {
        let (queue, group) = self.group_place(queue, group)?;
        self.scan_ahead(now, queue, group);
        self.state.catalog.get_mut(queue)?.group_mut(group)
    }

    fn group_by_name(&mut self, queue: &str, group: &str) -> Option<&mut Group> {
        let (queue, group) = self.group_place(queue, group)?;
        self.state.catalog.get_mut(queue)?.group_mut(group)
    }

    fn group_place(&self, queue: &str, group: &str) -> Option<(u32, u32)> {
        let slot = self.state.catalog.find(queue)?;
        Some((slot, self.state.catalog.get(slot)?.group_slot(group)?))
    }

    /// What another shard tells.
    pub(super) fn heard_of(
        &mut self,
        now: Now,
        from: ShardId,
        (queue, group): (&str, &str),
        oldest_us: Option<u64>,
    ) {
        let group = self.group_by_name(queue, group);
        if let Some(heard) = group.and_then(|group| group.heard.get_mut(from.index())) {
            *heard = Heard { at_us: Some(now.mono_us), oldest_us };
        }
    }
}

/// In which order others are considered.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Nothing lately, and since when.
    Silent(Option<u64>),
    /// Since when its oldest partition waits.
    Heard(u64),
}

impl Heard {
    fn rank(&self, now: Now) -> Rank {
        match self.at_us {
            Some(at_us) if now.mono_us < at_us + FRESH_US => {
                Rank::Heard(self.oldest_us.unwrap_or(u64::MAX))
            }
            _ => Rank::Silent(self.at_us),
        }
    }

    /// A pop goes there. Until its answer says better, it is taken to serve the older half of what
    /// waits: the longer that is, the more pops are on their way at once.
    fn asked(&mut self, now: Now) {
        self.at_us = Some(now.mono_us);
        self.oldest_us = self.oldest_us.map(|oldest_us| oldest_us.midpoint(now.mono_us));
    }
}

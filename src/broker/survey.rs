//! Walks over the partitions of one shard, in steps, and what is counted on the way: loads of
//! partitions, where groups stand. A walk keeps only as many rows as its page reaches, so its
//! memory does not grow with the partitions.

use std::fmt::Debug;

use super::inspect::{Progress, Work};
use super::inspect_join::First;
use super::partition::Slot;
use super::queue::Queue;
use super::readers::Place;
use super::shard::Shard;
use super::state::State;
use crate::base::buf::IoBuf;
use crate::base::ids::PartitionId;
use crate::base::limits;
use crate::base::time::Now;
use crate::model::inspect::{
    CursorOrder, CursorQuery, CursorRow, GroupRow, InspectPart, LoadOrder, LoadQuery, Loads,
    PartitionLoad,
};
use crate::model::peer::QueuePart;
use crate::model::reply::{PartitionRow, QueueDetail};

/// Looks (at a partition, or at a cursor on one) in one step.
const LOOKS_PER_STEP: usize = 2_000;

/// What a walk is for.
pub(super) trait Survey: Debug {
    /// The walk comes to a queue. False: it passes it by.
    fn enter(&mut self, _state: &State, _queue: &Queue) -> bool {
        true
    }

    /// Returns how many looks it was.
    fn visit(&mut self, state: &State, now: Now, place: Place<'_>) -> usize;

    fn finish(&mut self) -> InspectPart;
}

/// Which partitions a walk visits; `None` is all.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub queue: Option<String>,
    pub partition: Option<String>,
}

/// A walk and where it stands.
#[derive(Debug)]
pub(super) struct Walk<S> {
    survey: S,
    partition: Option<String>,
    queue: u32,
    end: u32,
    /// Where it stands in the queue's list; `None`: before the queue.
    at: Option<usize>,
}

impl<S: Survey + 'static> Walk<S> {
    pub(super) fn begin<B: IoBuf>(shard: &Shard<B>, scope: Scope, survey: S) -> Box<dyn Work<B>> {
        let catalog = &shard.state.catalog;
        let (queue, end) = match &scope.queue {
            None => (0, catalog.slots()),
            Some(name) => catalog.find(name).map_or((0, 0), |slot| (slot, slot + 1)),
        };
        Box::new(Self { survey, partition: scope.partition, queue, end, at: None })
    }

    /// Goes on in the queue it stands in. Returns the looks that are left, or `None` when it
    /// has to stop inside the queue.
    fn through_queue(&mut self, state: &State, now: Now, mut left: usize) -> Option<usize> {
        let Some(queue) = state.catalog.get(self.queue) else { return Some(left) };
        if self.at.is_none() && !self.survey.enter(state, queue) {
            return Some(left);
        }
        if let Some(name) = &self.partition {
            if let Some(slot) = state.parts.find(self.queue, name) {
                let looks = self.look(state, now, queue, slot);
                left = left.saturating_sub(looks);
            }
            return Some(left);
        }
        let mut at = self.at.unwrap_or(0);
        while let Some(slot) = queue.partitions.get(at) {
            if left == 0 {
                self.at = Some(at);
                return None;
            }
            left = left.saturating_sub(self.look(state, now, queue, *slot));
            at += 1;
        }
        Some(left)
    }

    fn look(&mut self, state: &State, now: Now, queue: &Queue, slot: Slot) -> usize {
        match state.parts.get(slot) {
            Some(partition) => self.survey.visit(state, now, Place { queue, slot, partition }),
            None => 1,
        }
    }
}

impl<B: IoBuf, S: Survey + 'static> Work<B> for Walk<S> {
    fn step(&mut self, shard: &mut Shard<B>, now: Now) -> Progress {
        let mut left = LOOKS_PER_STEP;
        while self.queue < self.end {
            if left == 0 {
                return Progress::More;
            }
            match self.through_queue(&shard.state, now, left) {
                None => return Progress::More,
                // Also a queue without partitions is a look.
                Some(rest) => left = rest.saturating_sub(1),
            }
            (self.queue, self.at) = (self.queue + 1, None);
        }
        Progress::Done(Ok(self.survey.finish()))
    }
}

// ---- one queue

#[derive(Debug)]
struct QueueSurvey {
    part: Option<QueuePart>,
    rows: First<Box<str>, PartitionRow>,
}

pub(super) fn queue<B: IoBuf>(shard: &Shard<B>, queue: String) -> Box<dyn Work<B>> {
    let scope = Scope { queue: Some(queue), partition: None };
    let rows = First::new(QueueDetail::PARTITIONS_MAX);
    Walk::begin(shard, scope, QueueSurvey { part: None, rows })
}

impl Survey for QueueSurvey {
    fn enter(&mut self, state: &State, queue: &Queue) -> bool {
        self.part = Some(state.queue_part(queue));
        true
    }

    fn visit(&mut self, state: &State, _now: Now, place: Place<'_>) -> usize {
        let name = &place.partition.name;
        if self.rows.last_of_full().is_some_and(|last| last < name) {
            self.rows.over = true;
            return 1;
        }
        self.rows.put(name.clone(), state.partition_row(place));
        1 + place.queue.groups.len()
    }

    fn finish(&mut self) -> InspectPart {
        let (part, truncated) = (self.part.take(), self.rows.over);
        InspectPart::Queue { part, partitions: self.rows.take(), truncated }
    }
}

// ---- loads of partitions

#[derive(Debug)]
struct LoadSurvey {
    query: LoadQuery,
    loads: Loads,
    rows: First<(std::cmp::Reverse<u64>, String, String), PartitionLoad>,
}

pub(super) fn loads<B: IoBuf>(shard: &Shard<B>, query: LoadQuery) -> Box<dyn Work<B>> {
    let scope = Scope { queue: query.queue.clone(), partition: None };
    let rows = First::new(query.page.reach());
    Walk::begin(shard, scope, LoadSurvey { query, loads: Loads::default(), rows })
}

impl Survey for LoadSurvey {
    fn visit(&mut self, state: &State, now: Now, place: Place<'_>) -> usize {
        let group = self.query.group.as_deref();
        let next = group.map_or_else(|| place.slowest(), |group| place.position(group));
        let pending = place.behind(next);
        let processing = place.processing(now, group).min(pending);
        let asked = self.query.group.as_ref().and_then(|name| place.queue.group_slot(name));
        let asked = asked.and_then(|slot| place.queue.group(slot));
        let sums = &mut self.loads.sums;
        sums.conflation = asked.is_some_and(super::group::Group::conflates);
        sums.pending += pending;
        sums.processing += processing;
        sums.partitions_pending += u64::from(pending > 0);
        sums.partitions_ready += u64::from(pending > processing);
        self.loads.walked += 1;
        let order = self.query.order;
        let ranked = if order == LoadOrder::Pending { pending } else { 0 };
        let (queue, partition) = (&place.queue.image.name, &*place.partition.name);
        let rank = (std::cmp::Reverse(ranked), queue.as_str(), partition);
        let full = self.rows.last_of_full();
        if full.is_some_and(|last| (last.0, last.1.as_str(), last.2.as_str()) <= rank) {
            self.rows.over = true;
        } else {
            let key = (rank.0, queue.clone(), partition.to_owned());
            let row = PartitionLoad {
                queue: queue.clone(),
                partition: partition.to_owned(),
                id: state.id_of(place.slot),
                pending,
                processing,
                oldest_us: if pending > 0 { place.oldest_us(next) } else { None },
                retained_bytes: place.partition.retained_bytes(),
            };
            self.rows.put(key, row);
        }
        1 + place.queue.groups.len()
    }

    fn finish(&mut self) -> InspectPart {
        let mut loads = std::mem::take(&mut self.loads);
        loads.rows = self.rows.take();
        loads.truncated = self.rows.over;
        InspectPart::Loads(loads)
    }
}

// ---- consumer groups

#[derive(Default, Debug)]
struct GroupSurvey {
    rows: Vec<GroupRow>,
    /// Where the rows of the queue at hand begin, by group slot; none yet for most.
    here: Vec<Option<usize>>,
}

pub(super) fn groups<B: IoBuf>(shard: &Shard<B>) -> Box<dyn Work<B>> {
    Walk::begin(shard, Scope::default(), GroupSurvey::default())
}

impl Survey for GroupSurvey {
    fn enter(&mut self, _state: &State, queue: &Queue) -> bool {
        self.here.clear();
        self.here.resize(queue.groups.len(), None);
        queue.groups.iter().flatten().any(|group| !group.cursors.is_empty())
    }

    fn visit(&mut self, _state: &State, _now: Now, place: Place<'_>) -> usize {
        self.here.resize(place.queue.groups.len().max(self.here.len()), None);
        for (at, group) in place.queue.groups.iter().enumerate() {
            let Some(group) = group.as_ref().filter(|group| !group.cursors.is_empty()) else {
                continue;
            };
            // A cursor never written only says that the partition was looked at.
            let cursor = group.cursors.get(&place.slot).filter(|c| c.segment.is_some());
            let Some(cursor) = cursor else { continue };
            // Groups may be more than an answer holds; the first of each shard are shown.
            if self.here[at].is_none() && self.rows.len() >= limits::GROUP_ROWS_MAX {
                continue;
            }
            let row = *self.here[at].get_or_insert_with(|| {
                self.rows.push(GroupRow {
                    group: group.name.to_string(),
                    queue: place.queue.image.name.clone(),
                    cursors: 0,
                    partitions_behind: 0,
                    behind: 0,
                    oldest_us: None,
                    consumed: false,
                    registration: group.registration,
                });
                self.rows.len() - 1
            });
            let row = &mut self.rows[row];
            let behind = place.behind(cursor.next);
            row.cursors += 1;
            row.partitions_behind += u64::from(behind > 0);
            row.behind += behind;
            row.consumed |= cursor.next.0 > 0;
            if behind > 0 {
                let oldest = place.oldest_us(cursor.next);
                row.oldest_us = match (row.oldest_us, oldest) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        1 + place.queue.groups.len()
    }

    fn finish(&mut self) -> InspectPart {
        InspectPart::Groups(std::mem::take(&mut self.rows))
    }
}

#[derive(Debug)]
struct CursorSurvey {
    query: CursorQuery,
    rows: First<(i64, String, String, String), CursorRow>,
}

pub(super) fn cursors<B: IoBuf>(shard: &Shard<B>, query: CursorQuery) -> Box<dyn Work<B>> {
    let scope = Scope { queue: query.queue.clone(), partition: None };
    let rows = First::new(query.page.reach());
    Walk::begin(shard, scope, CursorSurvey { query, rows })
}

impl CursorSurvey {
    fn look(
        &mut self,
        id: PartitionId,
        now: Now,
        place: Place<'_>,
        group: &super::group::Group,
    ) -> Option<()> {
        let cursor = group.cursors.get(&place.slot).filter(|c| c.segment.is_some())?;
        let behind = place.behind(cursor.next);
        let oldest_us = if behind > 0 { place.oldest_us(cursor.next) } else { None };
        if let CursorOrder::Lag { seconds } = self.query.order {
            let age_us = now.wall_us.saturating_sub(oldest_us?).max(0).cast_unsigned();
            if age_us <= seconds.saturating_mul(1_000_000) {
                return None;
            }
        }
        let row = CursorRow {
            group: group.name.to_string(),
            queue: place.queue.image.name.clone(),
            partition: place.partition.name.to_string(),
            partition_id: id,
            next: cursor.next,
            behind,
            oldest_us,
            consumed_at_us: cursor.released.as_ref().map(|released| released.at_us),
            leased: cursor.is_leased(now),
            conflation: group.conflates(),
        };
        self.rows.put(row.key(self.query.order), row);
        Some(())
    }
}

impl Survey for CursorSurvey {
    fn enter(&mut self, _state: &State, queue: &Queue) -> bool {
        let wanted = |name: &str| self.query.group.as_ref().is_none_or(|group| group == name);
        queue.groups.iter().flatten().any(|g| wanted(&g.name) && !g.cursors.is_empty())
    }

    fn visit(&mut self, state: &State, now: Now, place: Place<'_>) -> usize {
        let id = state.id_of(place.slot);
        match self.query.group.clone() {
            Some(name) => {
                let slot = place.queue.group_slot(&name);
                if let Some(group) = slot.and_then(|slot| place.queue.group(slot)) {
                    self.look(id, now, place, group);
                }
            }
            None => {
                for group in place.queue.groups.iter().flatten() {
                    if !group.cursors.is_empty() {
                        self.look(id, now, place, group);
                    }
                }
            }
        }
        1 + place.queue.groups.len()
    }

    fn finish(&mut self) -> InspectPart {
        let rows = self.rows.take();
        InspectPart::Cursors { rows, truncated: self.rows.over }
    }
}

//! How much a pop takes where its client leaves that to the broker.
//!
//! Nothing here is stored, and nothing depends on it but speed. All of it is counted while
//! things happen, so a choice costs the same with ten million partitions.

use super::group::Group;
use super::queue::Catalog;
use crate::base::limits;
use crate::model::peer::Name;
use crate::model::reply::Autopilot;

/// A batch should keep a consumer busy this part of a second.
const BATCHES_PER_SECOND: u32 = 5;

/// What a pop's client has said.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub batch: Option<u32>,
    pub partitions: Option<u32>,
    pub autopilot: bool,
    pub pinned: bool,
}

/// What the pop gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    pub batch: u32,
    pub partitions: u32,
    /// The client left something to us and wants to know.
    pub told: Option<Autopilot>,
}

impl Catalog {
    /// Chooses for a pop of these queues, and counts it as under way with the group it is of.
    pub fn begin_pop(
        &mut self,
        asked: Asked,
        queues: &[Name],
        group: &str,
    ) -> (Chosen, Option<(u32, u32)>) {
        let mut conflates = false;
        let mut known = None;
        for queue in queues {
            let Some(slot) = self.find(queue) else { continue };
            let Some(place) = self.get(slot).and_then(|q| q.group_slot(group)) else { continue };
            conflates |= self.get(slot).and_then(|q| q.group(place)).is_some_and(Group::conflates);
            known = Some((slot, place));
        }
        let known = known.filter(|_| queues.len() == 1);
        let Some((slot, place)) = known else { return (choose(asked, conflates, None), None) };
        let Some(queue) = self.get_mut(slot) else { return (choose(asked, conflates, None), None) };
        let partitions = queue.partitions.len();
        let Some(group) = queue.group_mut(place) else {
            return (choose(asked, conflates, None), None);
        };
        group.pops += 1;
        // Connections and partitions are spread evenly over the shards, so what is ready here
        // and what was asked for here stand to each other as they do on all shards together.
        let unseen = if group.start.is_some() { partitions.saturating_sub(group.scan) } else { 0 };
        let measured = Measured {
            ready: u32::try_from(group.ready_count + unseen).unwrap_or(u32::MAX),
            pops: group.pops,
            ack_rate: group.ack_rate,
        };
        (choose(asked, conflates, Some(measured)), Some((slot, place)))
    }

    /// The pop has ended.
    pub fn end_pop(&mut self, (queue, group): (u32, u32)) {
        if let Some(group) = self.get_mut(queue).and_then(|q| q.group_mut(group)) {
            group.pops = group.pops.saturating_sub(1);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    ready: u32,
    pops: u32,
    ack_rate: u32,
}

fn choose(asked: Asked, conflates: bool, measured: Option<Measured>) -> Chosen {
    let batch = asked.batch.map(|n| n.clamp(1, limits::POP_BATCH_MAX));
    let partitions = asked.partitions.map(|n| n.clamp(1, limits::POP_PARTITIONS_MAX));
    let chosen_batch = match measured {
        Some(measured) if measured.ack_rate > 0 => (measured.ack_rate / BATCHES_PER_SECOND)
            .clamp(limits::AUTOPILOT_BATCH_MIN, limits::AUTOPILOT_BATCH_MAX),
        _ => limits::AUTOPILOT_BATCH_MIN,
    };
    let batch_or = if asked.autopilot { chosen_batch } else { limits::POP_BATCH_DEFAULT };
    let mut out = Chosen { batch: batch.unwrap_or(batch_or), partitions: 1, told: None };
    let width_is_open = partitions.is_none() && !asked.pinned && !conflates;
    if conflates {
        // One message each: the width is the budget.
        out.batch = out.batch.min(limits::POP_PARTITIONS_MAX);
    }
    out.partitions = match partitions {
        _ if asked.pinned => 1,
        Some(n) => n,
        None if conflates => out.batch,
        None if asked.autopilot => {
            let share = measured.map_or(1, |m| m.ready.div_ceil(m.pops.max(1)));
            share.clamp(1, limits::POP_PARTITIONS_MAX)
        }
        None => 1,
    };
    if asked.autopilot && (batch.is_none() || width_is_open) {
        out.told = Some(Autopilot { partitions: out.partitions, batch: out.batch });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Asked = Asked { batch: None, partitions: None, autopilot: true, pinned: false };

    fn measured(ready: u32, pops: u32, ack_rate: u32) -> Option<Measured> {
        Some(Measured { ready, pops, ack_rate })
    }

    #[test]
    fn ready_partitions_are_shared_by_the_pops_under_way() {
        let width = |ready, pops| choose(OPEN, false, measured(ready, pops, 0)).partitions;
        assert_eq!(width(0, 1), 1);
        assert_eq!(width(10, 1), 10);
        assert_eq!(width(10, 3), 4);
        assert_eq!(width(1_000_000, 2), 64);
    }

    #[test]
    fn a_batch_is_a_fifth_of_a_second_of_acks() {
        let batch = |rate| choose(OPEN, false, measured(1, 1, rate)).batch;
        assert_eq!((batch(0), batch(3), batch(2_500), batch(1_000_000)), (100, 100, 500, 1_000));
    }

    #[test]
    fn what_is_given_stays_and_only_what_was_chosen_is_told() {
        let given = Asked { batch: Some(7), partitions: Some(1), ..OPEN };
        let chosen = choose(given, false, measured(50, 1, 0));
        assert_eq!(chosen, Chosen { batch: 7, partitions: 1, told: None });
        let one = choose(Asked { batch: Some(7), ..OPEN }, false, measured(5, 1, 0));
        assert_eq!(one.told, Some(Autopilot { partitions: 5, batch: 7 }));
        let pinned = choose(Asked { pinned: true, ..OPEN }, false, measured(5, 1, 0));
        assert_eq!(pinned.told, Some(Autopilot { partitions: 1, batch: 100 }));
    }

    #[test]
    fn without_autopilot_the_defaults_hold() {
        let asked = Asked { autopilot: false, ..OPEN };
        let chosen = choose(asked, false, measured(50, 1, 9_000));
        assert_eq!(chosen, Chosen { batch: 200, partitions: 1, told: None });
    }

    #[test]
    fn a_conflating_group_is_as_wide_as_its_budget() {
        let asked = Asked { autopilot: false, batch: Some(10), ..OPEN };
        let chosen = choose(asked, true, measured(50, 1, 0));
        assert_eq!((chosen.batch, chosen.partitions), (10, 10));
        let chosen = choose(Asked { batch: Some(500), ..asked }, true, None);
        assert_eq!((chosen.batch, chosen.partitions), (64, 64));
        let narrow = choose(Asked { partitions: Some(2), ..OPEN }, true, None);
        assert_eq!((narrow.batch, narrow.partitions), (64, 2));
        assert_eq!(choose(OPEN, true, None).told.map(|told| told.batch), Some(64));
    }
}

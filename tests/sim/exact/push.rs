//! Pushes of the exact world, as items or as groups of frames: what each item must be answered,
//! and what the model stores then.

use super::{Exact, Waiter};
use crate::model::{Expected, Message};
use crate::workload::{Group, Item};
use crate::world::Step;
use bytes::Bytes;
use lanemq::base::ids::MessageId;
use lanemq::base::uuid;
use lanemq::model::command::{Command, PopTarget, PushItem};
use lanemq::model::reply::{PushResult, Reply};
use std::collections::BTreeMap;

/// Items that are appended together, and their compressed form where the client made one.
type Piece = (Vec<usize>, Option<Bytes>);

/// Places of the items by partition, in first-seen order.
fn parts(items: &[Item]) -> Vec<(&str, &str, Vec<usize>)> {
    let mut parts: Vec<(&str, &str, Vec<usize>)> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match parts.iter_mut().find(|(q, p, _)| *q == item.queue && *p == item.partition) {
            Some((_, _, places)) => places.push(at),
            None => parts.push((&item.queue, &item.partition, vec![at])),
        }
    }
    parts
}

impl Exact {
    pub(super) fn push(&mut self) -> Step {
        let mut items = self.work.push();
        let groups = self.work.framed(self.world.now.wall_us, &mut items);
        if self.is_push_race(&items) {
            return Ok(());
        }
        self.say(|| {
            let show = |i: &Item| format!("{}/{} {:?}", i.queue, i.partition, i.transaction_id);
            let cuts: Option<Vec<_>> =
                groups.as_ref().map(|groups| groups.iter().map(|g| g.places.clone()).collect());
            format!("push {cuts:?} {:?}", items.iter().map(show).collect::<Vec<_>>())
        });
        self.push_items(&items, groups.as_deref())?;
        self.rest()
    }

    /// Messages for a discovery pop, and a queue for it to register on: which of the two reaches it
    /// first is nobody's business.
    fn is_push_race(&self, items: &[Item]) -> bool {
        let is_known = |item: &&Item| self.model.queues.contains_key(&item.queue);
        let discovers = |w: &Waiter| matches!(w.request.target, PopTarget::Labels { .. });
        items.iter().any(|item| is_known(&item))
            && !items.iter().all(|item| is_known(&item))
            && self.waiters.values().any(discovers)
    }

    fn push_items(&mut self, items: &[Item], groups: Option<&[Group]>) -> Step {
        let known: Vec<String> = self.model.queues.keys().cloned().collect();
        let parts = parts(items);
        let mut expected: BTreeMap<usize, Expected> = BTreeMap::new();
        for (queue, partition, places) in &parts {
            let ids: Vec<(usize, Option<&str>)> =
                places.iter().map(|at| (*at, items[*at].transaction_id.as_deref())).collect();
            let judged = self.model.push(self.now_us(), queue, partition, &ids);
            expected.extend(places.iter().copied().zip(judged));
        }
        let borrowed: Vec<PushItem<'_>> = items.iter().map(Item::borrowed).collect();
        let command = match groups {
            None => Command::Push { items: &borrowed, producer: None },
            Some(groups) => Command::PushFrames(groups.iter().map(|g| g.borrowed(items)).collect()),
        };
        let results = match self.command(command)? {
            Reply::Push(results) => results,
            other => return Err(format!("a push is answered {other:?}")),
        };
        check(items, &expected, &results)?;
        let pieces: Vec<Piece> = match groups {
            None => parts.iter().map(|(_, _, places)| (places.clone(), None)).collect(),
            Some(groups) => {
                let piece = |g: &Group| (g.places.clone().collect(), Some(g.packed.clone()));
                groups.iter().map(piece).collect()
            }
        };
        for piece in pieces {
            self.append(items, &expected, &results, piece);
        }
        for (queue, ..) in parts {
            if !known.iter().any(|name| *name == queue) {
                self.appeared();
            }
        }
        Ok(())
    }

    /// What is new of a piece is stored, and as the client compressed it if that is all of it.
    fn append(
        &mut self,
        items: &[Item],
        expected: &BTreeMap<usize, Expected>,
        results: &[PushResult],
        (places, packed): Piece,
    ) {
        let new = places.iter().filter(|at| matches!(expected[at], Expected::Queued(_)));
        let new: Vec<Message> = new.map(|at| message_of(&items[*at], results[*at].id())).collect();
        if new.is_empty() {
            return;
        }
        let packed = packed.filter(|_| new.len() == places.len());
        let first = &items[places[0]];
        self.model.append(self.now_us(), &first.queue, &first.partition, new, packed);
        self.looked();
    }
}

fn check(items: &[Item], expected: &BTreeMap<usize, Expected>, results: &[PushResult]) -> Step {
    if results.len() != items.len() {
        return Err(format!("{} results for {} items", results.len(), items.len()));
    }
    for (at, result) in results.iter().enumerate() {
        let right = match (&expected[&at], result) {
            (Expected::Queued(wanted), PushResult::Queued { id, offset }) => {
                *wanted == offset.0 && items[at].id.is_none_or(|own| own == *id)
            }
            (Expected::Duplicate(wanted, original), PushResult::Duplicate { id, offset }) => {
                let known = *original != MessageId::default();
                *wanted == offset.0 && (!known || original == id)
            }
            (Expected::DuplicateOf(first), PushResult::Duplicate { id, offset }) => {
                match &results[*first] {
                    PushResult::Queued { id: i, offset: o }
                    | PushResult::Duplicate { id: i, offset: o } => i == id && o == offset,
                    PushResult::Error { .. } => false,
                }
            }
            _ => false,
        };
        if !right {
            return Err(format!("item {at} {:?}: {result:?}, not {:?}", items[at], expected[&at]));
        }
    }
    Ok(())
}

fn message_of(item: &Item, id: MessageId) -> Message {
    let minted = || uuid::to_string(&id.0);
    Message {
        id,
        transaction_id: item.transaction_id.clone().unwrap_or_else(minted),
        payload: item.payload.clone(),
        created_us: 0,
        base: 0,
        sealed: false,
        framed: item.id.is_some(),
        kept: None,
    }
}

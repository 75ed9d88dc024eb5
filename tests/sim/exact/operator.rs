//! What an operator does in the exact world: lists messages with their status, deletes the dead
//! letters of a message or of a group. What is deleted must stay so, whatever crash comes.

use super::Exact;
use crate::model::{Queue, Start};
use crate::world::Step;
use lanemq::base::ids::Offset;
use lanemq::model::command::{Command, QUEUE_MODE};
use lanemq::model::inspect::{
    InspectRequest, Inspected, MessageQuery, MessageStatus, Page, StatusFilter,
};
use lanemq::model::reply::Reply;

/// First offset that the slowest reader of a partition has not settled.
fn slowest(queue: &Queue, partition: &str) -> u64 {
    let messages = &queue.partitions[partition].messages;
    let cursor = |group: &str| queue.groups[group].cursors.get(partition).map(|c| c.next);
    let named = || queue.groups.iter().filter(|(name, _)| *name != QUEUE_MODE);
    let registered = named().filter_map(|(name, group)| {
        let start = match group.start? {
            Start::Oldest => 0,
            Start::From(us) => messages.iter().take_while(|m| m.created_us < us).count() as u64,
        };
        Some(cursor(name).unwrap_or(start))
    });
    let pinned = || named().filter_map(|(name, _)| cursor(name)).min();
    registered.min().or_else(pinned).or_else(|| cursor(QUEUE_MODE)).unwrap_or(0)
}

impl Exact {
    pub(super) fn operate(&mut self) -> Step {
        match self.work.prng.below(3) {
            0 => self.list_messages(),
            1 => self.delete_dead_letters(),
            _ => self.purge_dead_letters(),
        }?;
        self.rest()
    }

    fn inspect(&mut self, request: InspectRequest) -> Result<Inspected, String> {
        match self.command(Command::Inspect(request))? {
            Reply::Inspected(answer) => Ok(*answer),
            other => Err(format!("an operator is answered {other:?}")),
        }
    }

    fn list_messages(&mut self) -> Step {
        let name = self.work.queue();
        let (offset, limit) =
            (self.work.prng.below(5) as usize, 1 + self.work.prng.below(20) as usize);
        let status = match self.work.prng.below(5) {
            0 => StatusFilter::Only(MessageStatus::Pending),
            1 => StatusFilter::Only(MessageStatus::Processing),
            2 => StatusFilter::Only(MessageStatus::Completed),
            3 => StatusFilter::Only(MessageStatus::DeadLetter),
            _ => StatusFilter::Any,
        };
        let query = MessageQuery {
            queue: Some(name.clone()),
            partition: None,
            namespace: None,
            task: None,
            status,
            from_us: Some(i64::MIN),
            to_us: Some(i64::MAX),
            page: Page { limit, offset },
        };
        let Inspected::Messages { rows, truncated: false, .. } =
            self.inspect(InspectRequest::Messages(query))?
        else {
            return Err("a listing of messages is something else, or cut".into());
        };
        let shown: Vec<(i64, Offset, String, MessageStatus)> = rows
            .into_iter()
            .map(|row| (row.key.created_at_us, row.key.offset, row.partition, row.status))
            .collect();
        let mut wanted = self.messages_of(&name);
        wanted.retain(|row| status == StatusFilter::Any || status == StatusFilter::Only(row.3));
        // Messages of the same microsecond and offset may stand in any order.
        wanted.sort_by_key(|row| std::cmp::Reverse((row.0, row.1)));
        let order = |rows: &[(i64, Offset, String, MessageStatus)]| -> Vec<(i64, Offset)> {
            rows.iter().map(|row| (row.0, row.1)).collect()
        };
        let page: Vec<_> = wanted.iter().skip(offset).take(limit).cloned().collect();
        if order(&shown) != order(&page) {
            return Err(format!("messages {status:?} are listed as {shown:?}, not {page:?}"));
        }
        match shown.iter().find(|row| !wanted.contains(row)) {
            Some(row) => Err(format!("{row:?} is listed, of {wanted:?}")),
            None => Ok(()),
        }
    }

    fn messages_of(&self, name: &str) -> Vec<(i64, Offset, String, MessageStatus)> {
        let mut all = Vec::new();
        let Some(queue) = self.model.queues.get(name) else { return all };
        for (partition, stored) in &queue.partitions {
            let settled = slowest(queue, partition);
            let leased = queue.groups.values().any(|group| {
                let lease = group.cursors.get(partition).and_then(|c| c.lease.as_ref());
                lease.is_some_and(|lease| lease.expires_us > self.now_us())
            });
            for (offset, message) in stored.messages.iter().enumerate() {
                let offset = offset as u64;
                let dead =
                    queue.dead.iter().any(|d| d.partition == *partition && d.offset == offset);
                let status = if dead {
                    MessageStatus::DeadLetter
                } else if offset < settled {
                    MessageStatus::Completed
                } else if leased {
                    MessageStatus::Processing
                } else {
                    MessageStatus::Pending
                };
                all.push((message.created_us, Offset(offset), partition.clone(), status));
            }
        }
        all
    }

    /// All groups' rows of one address go, and no others.
    fn delete_dead_letters(&mut self) -> Step {
        let name = self.work.queue();
        let Some(queue) = self.model.queues.get(&name) else { return Ok(()) };
        let known: Vec<_> = queue.dead.iter().map(|d| (d.partition.clone(), d.offset)).collect();
        if known.is_empty() {
            return Ok(());
        }
        let at = self.work.prng.below(known.len() as u64) as usize;
        let (partition, offset) = &known[at];
        let stored = &queue.partitions[partition];
        let transaction_id = stored.messages[*offset as usize].transaction_id.clone();
        let Some(id) = stored.id else { return Ok(()) };
        let gone = |d: &crate::model::Dead| {
            // Of another partition the offset says nothing about these messages.
            d.partition == *partition
                && stored.messages[d.offset as usize].transaction_id == transaction_id
        };
        let left: Vec<_> = queue.dead.iter().filter(|d| !gone(d)).cloned().collect();
        let wanted = (queue.dead.len() - left.len()) as u64;
        let request = InspectRequest::DeleteDeadLetters {
            partition: id,
            transaction_id: transaction_id.clone(),
        };
        let answer = self.inspect(request)?;
        if answer != Inspected::Deleted(wanted) {
            return Err(format!("{wanted} dead letters to delete, answered {answer:?}"));
        }
        self.model.queues.get_mut(&name).ok_or("a queue of the model")?.dead = left;
        Ok(())
    }

    fn purge_dead_letters(&mut self) -> Step {
        let queue = self.work.queue();
        let group = (self.work.prng.below(3) > 0).then(|| QUEUE_MODE.to_owned());
        let mut wanted = 0;
        if let Some(q) = self.model.queues.get_mut(&queue) {
            let before = q.dead.len();
            q.dead.retain(|d| group.as_ref().is_some_and(|group| *group != d.group));
            wanted = (before - q.dead.len()) as u64;
        }
        match self.inspect(InspectRequest::PurgeDeadLetters { queue, group })? {
            Inspected::Deleted(deleted) if deleted == wanted => Ok(()),
            other => Err(format!("{wanted} dead letters to purge, answered {other:?}")),
        }
    }
}

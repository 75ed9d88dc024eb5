//! Transactions among everything else: all of one happens or nothing of it, and an answer says
//! which.

use super::{Chaos, Sent, Step};
use crate::workload::Item;
use lanemq::base::buf::HeapBuf;
use lanemq::base::ids::PartitionId;
use lanemq::model::command::{AckStatus, Command};
use lanemq::model::error::ErrorCode;
use lanemq::model::reply::Reply;
use lanemq::model::transaction::{Committed, TransactionAck, TransactionItem, TransactionRequest};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Unknown,
    Committed,
    Nothing,
}

struct Transaction {
    items: Vec<Item>,
    numbers: Vec<u64>,
    acks: Vec<TransactionAck<'static>>,
    outcome: Outcome,
}

/// All transactions of a run.
#[derive(Default)]
pub struct Book(Vec<Transaction>);

impl Transaction {
    /// Messages that are stored if it commits: a repeat inside it is not.
    fn firsts(&self) -> Vec<u64> {
        let mut seen = BTreeSet::new();
        let first = |item: &Item| match &item.transaction_id {
            Some(id) => seen.insert((item.queue.clone(), item.partition.clone(), id.clone())),
            None => true,
        };
        let firsts: Vec<bool> = self.items.iter().map(first).collect();
        self.numbers.iter().zip(firsts).filter(|(_, first)| *first).map(|(n, _)| *n).collect()
    }
}

impl Chaos {
    pub fn transact(&mut self) -> Step {
        let mut items = Vec::new();
        let mut acks: Vec<TransactionAck<'static>> = Vec::new();
        let again = self.transactions.0.iter().rev().take(6).collect::<Vec<_>>();
        if !again.is_empty() && self.work.prng.chance(20) {
            // As a client that had no answer, or did not like the one it had.
            let old = again[self.work.prng.below(again.len() as u64) as usize];
            (items, acks) = (old.items.clone(), old.acks.clone());
            items = items.into_iter().map(|item| self.work.renewed(item)).collect();
        } else {
            for _ in 0..self.work.prng.below(3) {
                let Some((group, some)) = self.work.ack() else { break };
                let ack = |item| TransactionAck { group: group.clone().into(), item };
                acks.extend(some.into_iter().map(ack));
            }
            if acks.is_empty() || self.work.prng.chance(80) {
                for _ in 0..1 + self.work.prng.below(3) {
                    items.extend(self.work.push().into_iter().take(3));
                }
            }
        }
        self.send_transaction(items, acks)
    }

    fn send_transaction(&mut self, items: Vec<Item>, acks: Vec<TransactionAck<'static>>) -> Step {
        let numbers = self.ledger.push(&items, None);
        for TransactionAck { group, item } in &acks {
            if let Some(partition) = item.partition_id {
                self.ledger.ack_opens(self.step, group, partition, &item.lease_id);
            }
        }
        let request = TransactionRequest {
            acks: acks.clone(),
            items: items
                .iter()
                .map(|item| TransactionItem { item: item.borrowed(), trace_id: None })
                .collect(),
            ..TransactionRequest::default()
        };
        let shard = self.shard();
        let token = self.world.command(shard, Command::Transact(request))?;
        self.say(|| {
            let show = |i: &Item| format!("{}/{} {:?}", i.queue, i.partition, i.transaction_id);
            let pushed: Vec<_> = items.iter().map(show).collect();
            format!("{token} at {shard}: transaction {numbers:?} {pushed:?} {acks:?}")
        });
        let number = self.transactions.0.len();
        let outcome = Outcome::Unknown;
        self.transactions.0.push(Transaction { items, numbers, acks, outcome });
        self.open.insert(token, Sent::Transaction { number });
        Ok(())
    }

    pub fn transacted(&mut self, number: usize, reply: Reply<HeapBuf>) -> Step {
        let outcome = match reply {
            Reply::Transaction(reply) => match reply.outcome {
                Ok(committed) => {
                    self.transactions.0[number].outcome = Outcome::Committed;
                    return self.transaction_committed(number, &committed);
                }
                Err(_) => Outcome::Nothing,
            },
            Reply::Refused(refusal) if refusal.code == ErrorCode::OutcomeUnknown => {
                Outcome::Unknown
            }
            Reply::Refused(_) => Outcome::Nothing,
            other => return Err(format!("a transaction is answered {other:?}")),
        };
        self.transactions.0[number].outcome = outcome;
        self.acks_end(number, outcome == Outcome::Nothing);
        Ok(())
    }

    /// A crash took the answer.
    pub fn transaction_lost(&mut self, number: usize) {
        self.acks_end(number, false);
    }

    /// `kept`: for sure the leases of its acks go on.
    fn acks_end(&mut self, number: usize, kept: bool) {
        for TransactionAck { group, item } in &self.transactions.0[number].acks {
            if let Some(partition) = item.partition_id {
                self.ledger.ack_ended(self.step, group, partition, &item.lease_id, kept);
            }
        }
    }

    fn transaction_committed(&mut self, number: usize, committed: &Committed) -> Step {
        let transaction = &self.transactions.0[number];
        let numbers = transaction.numbers.clone();
        if committed.acks.len() != transaction.acks.len() {
            return Err("a transaction answers another number of acks".into());
        }
        let filed = transaction.acks.iter().zip(&committed.acks).filter(|(_, filed)| **filed);
        for (TransactionAck { group, item }, _) in filed {
            let partition = item.partition_id.ok_or("an ack of nothing is committed")?;
            self.ledger.filed(partition, group, &item.transaction_id);
        }
        self.settled(number);
        let durable = self.ledger.push_answered(&numbers, &committed.pushes)?;
        self.acks_end(number, false);
        for (id, _) in durable {
            if self.work.prng.chance(self.flavor.looks * 4) {
                self.look_message(id)?;
            }
        }
        Ok(())
    }

    /// Its acks have happened.
    fn settled(&mut self, number: usize) {
        let mut targets: BTreeMap<(PartitionId, String, String), Vec<_>> = BTreeMap::new();
        for TransactionAck { group, item } in &self.transactions.0[number].acks {
            let Some(partition) = item.partition_id else { continue };
            self.ledger.may_settle(group, partition, &item.transaction_id);
            let target = (partition, group.to_string(), item.lease_id.to_string());
            // Whether an ack without a lease came late is not told.
            let noop = item.lease_id.is_empty();
            let settled = (item.transaction_id.to_string(), item.status, noop);
            targets.entry(target).or_default().push(settled);
        }
        // Two leases of one cursor: the second may have ended what the first began.
        let mut cursors: BTreeMap<(PartitionId, String), usize> = BTreeMap::new();
        for (partition, group, _) in targets.keys() {
            *cursors.entry((*partition, group.clone())).or_default() += 1;
        }
        for ((partition, group, lease), items) in targets {
            let once = cursors[&(partition, group.clone())] == 1;
            let completes = items.iter().all(|(_, status, _)| *status == AckStatus::Completed);
            if once && completes {
                self.ledger.acked(self.step, &group, partition, &lease, &items);
            }
        }
    }

    /// Everything that is stored was read: what did not happen has left nothing behind, and of
    /// what nobody was told either all has happened or nothing.
    pub fn judge_transactions(&mut self) -> Step {
        for at in 0..self.transactions.0.len() {
            let transaction = &self.transactions.0[at];
            let (firsts, outcome) = (transaction.firsts(), transaction.outcome);
            let stored: Vec<bool> =
                firsts.iter().filter_map(|number| self.ledger.is_stored(*number)).collect();
            let any = stored.contains(&true);
            let told = format!("transaction {:?} ({outcome:?})", transaction.numbers);
            if outcome == Outcome::Nothing && any {
                return Err(format!("{told} was rolled back and is there"));
            }
            if outcome != Outcome::Nothing && any && stored.contains(&false) {
                return Err(format!("{told} is there in part: {firsts:?} {stored:?}"));
            }
            if outcome == Outcome::Unknown {
                if any {
                    self.settled(at);
                } else if stored.is_empty() {
                    // Nobody can say.
                    for TransactionAck { group, item } in &self.transactions.0[at].acks {
                        if let Some(partition) = item.partition_id {
                            let id = &item.transaction_id;
                            self.ledger.may_settle(group, partition, id);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

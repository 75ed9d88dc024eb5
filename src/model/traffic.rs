//! What was done, counted: since the start, for one minute, for one queue. And the walks over
//! all shards that bring such numbers together, step by step.

use crate::base::ids::{PartitionId, ShardId};

macro_rules! traffic {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one shard or of one queue on it, since the start or over a span.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Traffic {
            $($(#[$doc])* pub $name: u64,)*
            /// Longest time from the push of a message to its delivery: of the span, or of the
            /// minute that runs.
            pub lag_us_max: u64,
        }

        impl Traffic {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.lag_us_max = self.lag_us_max.max(other.lag_us_max);
            }

            /// What has come since `before`, which is an earlier state of the same counts.
            pub fn since(&self, before: &Self) -> Self {
                Self {
                    $($name: self.$name.saturating_sub(before.$name),)*
                    lag_us_max: self.lag_us_max,
                }
            }
        }
    };
}

traffic! {
    push_requests,
    push_messages,
    pop_requests,
    pop_messages,
    /// Pops that were answered without a message.
    pop_empty,
    /// Of a queue: once for each shard whose partitions the request names.
    ack_requests,
    /// Acks that settled their message as done.
    ack_success,
    /// Acks that were refused, or that said the work on the message failed.
    ack_failed,
    dead_letters,
    transactions,
    /// Messages of a conflating group that were settled without being delivered.
    conflated,
    partitions_created,
    partitions_deleted,
    /// Messages dropped because they were too old, because every reader was through with them,
    /// because they had waited too long; and steps that dropped any.
    retention_messages,
    completed_retention_messages,
    evicted_messages,
    retention_steps,
    /// Time from push to delivery, summed over the delivered messages.
    lag_us_sum,
}

impl Traffic {
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// Mean time from push to delivery; `None` where nothing was delivered.
    pub fn lag_us_mean(&self) -> Option<u64> {
        self.lag_us_sum.checked_div(self.pop_messages)
    }
}

/// The queue's name in the rows of those that have none of their own.
pub const OTHER_QUEUES: &str = "_other";

/// What one shard counted in one minute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MinuteRow {
    /// Minutes of wall time since 1970.
    pub minute: u64,
    pub total: Traffic,
    /// Queues that something was done with.
    pub queues: Vec<QueueMinute>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueMinute {
    pub queue: String,
    pub traffic: Traffic,
    /// Pops that waited when the minute ended.
    pub parked: u64,
}

/// Counts of one queue on one shard since the start, and what it holds now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueTotals {
    pub queue: String,
    pub traffic: Traffic,
    pub partitions: u64,
    pub messages: u64,
    pub unconsumed: u64,
    pub processing: u64,
    pub retained_bytes: u64,
    pub dead_letters: u64,
    pub parked: u64,
    /// Registered groups; the same on every shard.
    pub groups: u64,
}

impl QueueTotals {
    pub fn add(&mut self, other: &Self) {
        self.traffic.add(&other.traffic);
        self.partitions += other.partitions;
        self.messages += other.messages;
        self.unconsumed += other.unconsumed;
        self.processing += other.processing;
        self.retained_bytes += other.retained_bytes;
        self.dead_letters += other.dead_letters;
        self.parked += other.parked;
        self.groups = self.groups.max(other.groups);
    }
}

/// When the partitions of one queue were written to, as far as a walk has come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueLiveness {
    pub queue: String,
    pub partitions: u64,
    /// Written to within an hour, a day, a week.
    pub live_1h: u64,
    pub live_24h: u64,
    pub live_7d: u64,
    /// Made within a day.
    pub created_24h: u64,
    /// Last write to the partition that was left alone for longest / to the newest.
    pub oldest_write_us: Option<i64>,
    pub newest_write_us: Option<i64>,
    /// Push of the oldest message that the slowest reader still owes.
    pub oldest_owed_us: Option<i64>,
}

impl QueueLiveness {
    pub fn add(&mut self, other: &Self) {
        let least = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        self.partitions += other.partitions;
        self.live_1h += other.live_1h;
        self.live_24h += other.live_24h;
        self.live_7d += other.live_7d;
        self.created_24h += other.created_24h;
        self.oldest_write_us = least(self.oldest_write_us, other.oldest_write_us);
        self.newest_write_us = self.newest_write_us.max(other.newest_write_us);
        self.oldest_owed_us = least(self.oldest_owed_us, other.oldest_owed_us);
    }
}

/// A dead letter without its message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub queue: String,
    pub group: String,
    pub partition: PartitionId,
    /// The beginning of its error text.
    pub error: String,
    pub retry_count: u32,
    pub failed_at_us: i64,
    /// Length of the stored batch that it lies in, shared by its messages.
    pub bytes: u64,
}

/// A look at much of the state, in steps that each shard keeps short: the answer to a step says
/// where that shard stands, and goes into the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walk {
    pub over: WalkOver,
    /// Where each shard stands; empty at the start.
    pub at: Vec<WalkAt>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WalkOver {
    /// Minutes `from..=to`, with the rows of all queues, of one, or of none.
    Minutes { from: u64, to: u64, queues: QueueRows },
    /// Queues in the order they were made. Behind the first `limit` they are summed up.
    Totals { limit: usize },
    /// Partitions of all queues.
    Liveness,
    /// Dead letters, newest first; of one queue, or of all.
    Failures { queue: Option<String> },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueueRows {
    None,
    One(String),
    All,
}

/// Where a shard stands in a walk. The parts mean something to that walk only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkAt {
    Start,
    At(u64, u128),
    End,
}

/// One shard's answer to one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalkStep {
    pub shard: ShardId,
    pub next: WalkAt,
    pub found: WalkFound,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WalkFound {
    Minutes(Vec<MinuteRow>),
    /// The named ones, and the sum of those behind the limit where there are any.
    Totals {
        named: Vec<QueueTotals>,
        other: Option<Box<QueueTotals>>,
    },
    Liveness(Vec<QueueLiveness>),
    Failures(Vec<Failure>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_adds_up_and_is_taken_apart_again() {
        let before = Traffic { push_messages: 3, lag_us_max: 9, ..Traffic::default() };
        let mut now = before;
        now.add(&Traffic {
            push_messages: 2,
            pop_messages: 4,
            lag_us_sum: 80,
            lag_us_max: 30,
            ..Traffic::default()
        });
        let grown = now.since(&before);
        assert_eq!((grown.push_messages, grown.pop_messages, grown.lag_us_max), (2, 4, 30));
        assert_eq!(grown.lag_us_mean(), Some(20));
        assert_eq!(before.lag_us_mean(), None);
        assert!(Traffic::default().is_idle() && !grown.is_idle());
    }
}

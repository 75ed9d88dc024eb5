//! Minutes of all shards put together: by bucket of the window, and by queue.

use std::collections::BTreeMap;

use super::window::Window;
use crate::base::ids::ShardId;
use crate::base::limits;
use crate::model::options::QueueOptions;
use crate::model::reply::QueueRow;
use crate::model::traffic::{MinuteRow, OTHER_QUEUES, Traffic};

/// Counts of one queue in one bucket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Point {
    pub traffic: Traffic,
    /// Most pops that were seen waiting, by shard.
    pub parked: BTreeMap<u16, u64>,
}

impl Point {
    pub fn parked(&self) -> u64 {
        self.parked.values().sum()
    }

    fn add(&mut self, other: &Self) {
        self.traffic.add(&other.traffic);
        for (shard, parked) in &other.parked {
            *self.parked.entry(*shard).or_default() += parked;
        }
    }
}

/// The points of one queue, or of several, by the first minute of their bucket.
pub type Points = BTreeMap<u64, Point>;

/// What came of one window.
#[derive(Clone, Debug)]
pub struct Series {
    pub window: Window,
    /// Over everything that is looked at.
    pub total: BTreeMap<u64, Traffic>,
    pub queues: BTreeMap<String, Points>,
    /// Which queues count, where not all do.
    filter: Option<Labels>,
}

/// Filters of a series; an absent one matches all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    pub queue: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
}

impl Filter {
    pub fn matches(&self, queue: &str, options: &QueueOptions) -> bool {
        let is =
            |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|w| w == value);
        is(&self.queue, queue)
            && is(&self.namespace, &options.namespace)
            && is(&self.task, &options.task)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Labels of the queues there are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Labels(BTreeMap<String, (String, String)>);

impl Labels {
    pub fn of(rows: &[QueueRow]) -> Self {
        let labels = |row: &QueueRow| (row.options.namespace.clone(), row.options.task.clone());
        Self(rows.iter().map(|row| (row.name.clone(), labels(row))).collect())
    }

    /// One queue, whether it still is there or not.
    pub fn only(queue: &str) -> Self {
        Self(BTreeMap::from([(queue.to_owned(), Default::default())]))
    }

    /// Namespace and task; empty for queues that are gone.
    pub fn get(&self, queue: &str) -> (&str, &str) {
        self.0.get(queue).map_or(("", ""), |(namespace, task)| (namespace, task))
    }

    fn knows(&self, queue: &str) -> bool {
        self.0.contains_key(queue)
    }
}

impl Series {
    pub fn new(window: Window) -> Self {
        Self { window, total: BTreeMap::new(), queues: BTreeMap::new(), filter: None }
    }

    /// Only these queues count.
    pub fn of(window: Window, queues: Labels) -> Self {
        Self { filter: Some(queues), ..Self::new(window) }
    }

    pub fn take(&mut self, shard: ShardId, row: MinuteRow) {
        let bucket = self.window.bucket_of(row.minute);
        if self.filter.is_none() {
            self.total.entry(bucket).or_default().add(&row.total);
        }
        for seen in row.queues {
            if let Some(filter) = &self.filter {
                if !filter.knows(&seen.queue) {
                    continue;
                }
                self.total.entry(bucket).or_default().add(&seen.traffic);
            }
            let point = self.queues.entry(seen.queue).or_default().entry(bucket).or_default();
            point.traffic.add(&seen.traffic);
            if seen.parked > 0 {
                let parked = point.parked.entry(shard.0).or_default();
                *parked = seen.parked.max(*parked);
            }
        }
    }

    /// Keeps the busiest queues apart and sums up the rest.
    pub fn limit_queues(&mut self) {
        let limit = limits::SERIES_QUEUES_MAX;
        if self.queues.len() <= limit {
            return;
        }
        let busy = |points: &Points| -> u64 {
            points.values().map(|p| p.traffic.push_messages + p.traffic.pop_messages).sum()
        };
        let mut order: Vec<(u64, String)> =
            self.queues.iter().map(|(name, points)| (busy(points), name.clone())).collect();
        order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let mut other = self.queues.remove(OTHER_QUEUES).unwrap_or_default();
        for (_, name) in order.into_iter().filter(|(_, n)| n != OTHER_QUEUES).skip(limit) {
            for (bucket, point) in self.queues.remove(&name).unwrap_or_default() {
                other.entry(bucket).or_default().add(&point);
            }
        }
        self.queues.insert(OTHER_QUEUES.to_owned(), other);
    }

    /// Over the whole window.
    pub fn sum(&self) -> Traffic {
        self.total.values().fold(Traffic::default(), |mut sum, traffic| {
            sum.add(traffic);
            sum
        })
    }

    /// Every bucket since minute `began`, oldest first, with what it holds.
    pub fn filled_since(&self, began: u64) -> Vec<(u64, Traffic)> {
        let buckets = self.window.buckets_since(began);
        buckets.map(|at| (at, self.total.get(&at).copied().unwrap_or_default())).collect()
    }

    /// Points of all queues, by bucket and then by name.
    pub fn points(&self) -> Vec<(u64, &str, &Point)> {
        let mut points: Vec<(u64, &str, &Point)> = self
            .queues
            .iter()
            .flat_map(|(queue, points)| points.iter().map(|(at, p)| (*at, queue.as_str(), p)))
            .collect();
        points.sort_by_key(|(at, _, _)| *at);
        points
    }

    /// The queues' points put together by a key of theirs, with how many queues each has.
    pub fn by_key<'s>(
        &'s self,
        key: impl Fn(&'s str) -> &'s str,
    ) -> BTreeMap<&'s str, (u64, Points)> {
        let mut groups: BTreeMap<&str, (u64, Points)> = BTreeMap::new();
        for (queue, points) in &self.queues {
            let (count, sum) = groups.entry(key(queue)).or_default();
            *count += 1;
            for (at, point) in points {
                sum.entry(*at).or_default().add(point);
            }
        }
        groups
    }
}

pub fn sum_of(points: &Points) -> Traffic {
    points.values().fold(Traffic::default(), |mut sum, point| {
        sum.add(&point.traffic);
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::traffic::QueueMinute;
    use crate::proto::query::query;

    fn window() -> Window {
        let text = "from=1970-01-01T01:40:00Z&to=1970-01-01T03:00:00Z";
        Window::decode(&query(text), i64::MAX).unwrap()
    }

    fn pushed(n: u64) -> Traffic {
        Traffic { push_messages: n, ..Traffic::default() }
    }

    fn minute(minute: u64, queue: &str, n: u64, parked: u64) -> MinuteRow {
        let seen = QueueMinute { queue: queue.to_owned(), traffic: pushed(n), parked };
        MinuteRow { minute, total: pushed(n), queues: vec![seen] }
    }

    #[test]
    fn shards_and_minutes_meet_in_their_bucket() {
        let mut series = Series::new(window());
        for (shard, row) in [
            (0, minute(101, "a", 1, 3)),
            (0, minute(102, "a", 2, 1)),
            (1, minute(102, "a", 4, 5)),
            (1, minute(106, "b", 8, 0)),
        ] {
            series.take(ShardId(shard), row);
        }
        assert_eq!(series.window.bucket_minutes, 5);
        assert_eq!(series.sum().push_messages, 15);
        let points = series.points();
        let seen: Vec<_> = points
            .iter()
            .map(|(at, queue, p)| (*at, *queue, p.traffic.push_messages, p.parked()))
            .collect();
        assert_eq!(seen, [(100, "a", 7, 8), (105, "b", 8, 0)]);
        let filled = series.filled_since(104);
        assert_eq!(filled.len(), 17);
        assert_eq!((filled[0].1, filled[1].1), (pushed(7), pushed(8)));
        let groups = series.by_key(|_| "all");
        assert_eq!((groups["all"].0, sum_of(&groups["all"].1)), (2, pushed(15)));
    }

    #[test]
    fn only_the_queues_of_a_filter_count() {
        let mut series = Series::of(window(), Labels::only("a"));
        series.take(ShardId(0), minute(101, "a", 1, 0));
        series.take(ShardId(0), minute(101, "b", 5, 0));
        assert_eq!((series.sum().push_messages, series.queues.len()), (1, 1));
    }

    #[test]
    fn the_busiest_queues_stay_and_the_sum_with_them() {
        let mut series = Series::new(window());
        let queues = limits::SERIES_QUEUES_MAX as u64 + 50;
        for n in 0..queues {
            series.take(ShardId(0), minute(101, &format!("q{n}"), n, 0));
        }
        series.take(ShardId(0), minute(101, OTHER_QUEUES, 1_000, 0));
        let before: u64 = series.sum().push_messages;
        series.limit_queues();
        assert_eq!(series.queues.len(), limits::SERIES_QUEUES_MAX + 1);
        assert!(!series.queues.contains_key("q7") && series.queues.contains_key("q249"));
        let after: u64 = series.queues.values().map(|p| sum_of(p).push_messages).sum();
        assert_eq!(after, before);
    }
}

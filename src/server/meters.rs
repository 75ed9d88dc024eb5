//! Counters of one executor that other threads read: requests by route, its reactor's delay.
//!
//! Each is written by its own executor only, so counting is a load and a store, without a locked
//! instruction; who reads may see a count a moment late.

use std::sync::atomic::{AtomicU64, Ordering};

use super::route::{Observe, Route};
use crate::base::histogram::{self, BUCKETS, Histogram};
use crate::proto::metrics::{ANSWER_CODES, RouteStats};

/// Written by one thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.store(self.get() + n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram, as [`Histogram`] has it.
#[derive(Debug, Default)]
pub struct Recorder<const LEAST: u32> {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl<const LEAST: u32> Recorder<LEAST> {
    pub fn record(&self, value: u64) {
        self.counts[histogram::bucket(LEAST, value)].add(1);
        self.sum.add(value);
    }

    pub fn read(&self) -> Histogram<LEAST> {
        Histogram { counts: std::array::from_fn(|at| self.counts[at].get()), sum: self.sum.get() }
    }
}

/// Routes as they are told apart in the metrics: few, so that the labels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Push,
    Pop,
    /// A pop that had to wait for its answer.
    ParkedPop,
    Ack,
    Transact,
    Lease,
    Configure,
    Delete,
    /// Reads of the state and other administration.
    Admin,
    /// Health and metrics.
    Probe,
    /// Unknown routes and requests that were refused unread.
    Other,
}

const KINDS: [(Kind, &str); 11] = [
    (Kind::Push, "push"),
    (Kind::Pop, "pop"),
    (Kind::ParkedPop, "parked_pop"),
    (Kind::Ack, "ack"),
    (Kind::Transact, "transact"),
    (Kind::Lease, "lease"),
    (Kind::Configure, "configure"),
    (Kind::Delete, "delete"),
    (Kind::Admin, "admin"),
    (Kind::Probe, "probe"),
    (Kind::Other, "other"),
];

impl Kind {
    pub fn of(route: &Route<'_>) -> Self {
        match route {
            Route::Push => Self::Push,
            Route::Transact => Self::Transact,
            Route::Pop(_) | Route::PopByLabels => Self::Pop,
            Route::Ack | Route::AckBatch => Self::Ack,
            Route::ExtendLease(_) => Self::Lease,
            Route::Configure => Self::Configure,
            Route::DeleteQueue(_) => Self::Delete,
            Route::Observe(Observe::Health | Observe::Metrics | Observe::Exposition) => Self::Probe,
            Route::Front | Route::Unbuilt(_) | Route::Unknown => Self::Other,
            _ => Self::Admin,
        }
    }
}

/// Place of a status in [`ANSWER_CODES`].
fn code_of(status: u16) -> usize {
    match status {
        204 => 1,
        429 => 3,
        503 => 5,
        507 => 6,
        500.. => 4,
        400.. => 2,
        _ => 0,
    }
}

#[derive(Debug, Default)]
struct RouteMeters {
    answers: [Counter; ANSWER_CODES.len()],
    us: Recorder<4>,
}

/// All counters of one executor.
#[derive(Debug, Default)]
pub struct Meters {
    routes: [RouteMeters; KINDS.len()],
    /// The longest turn of its tasks in each 10 ms with work.
    pub reactor_us: Recorder<4>,
    /// The longest since it was last taken.
    reactor_us_max: AtomicU64,
    /// What recovering this executor's shards took.
    pub recovery_us: Counter,
}

impl Meters {
    /// Counts an answer that goes out.
    pub fn answered(&self, kind: Kind, status: u16, us: u64) {
        let route = &self.routes[kind as usize];
        route.answers[code_of(status)].add(1);
        route.us.record(us);
    }

    pub fn reactor_delayed(&self, us: u64) {
        self.reactor_us.record(us);
        self.reactor_us_max.fetch_max(us, Ordering::Relaxed);
    }

    pub fn take_reactor_us_max(&self) -> u64 {
        self.reactor_us_max.swap(0, Ordering::Relaxed)
    }
}

/// The routes' counters, summed over executors.
pub fn routes<'a>(all: impl Iterator<Item = &'a Meters>) -> Vec<RouteStats> {
    let mut routes: Vec<RouteStats> =
        KINDS.iter().map(|(_, route)| RouteStats { route, ..RouteStats::default() }).collect();
    for meters in all {
        for (sum, route) in routes.iter_mut().zip(&meters.routes) {
            sum.answers.iter_mut().zip(&route.answers).for_each(|(sum, n)| *sum += n.get());
            sum.us.add(&route.us.read());
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_route_and_code() {
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
        let codes = [200, 201, 302, 204, 404, 429, 500, 501, 503, 507].map(code_of);
        let names = codes.map(|code| ANSWER_CODES[code]);
        let want = ["ok", "ok", "ok", "204", "4xx", "429", "5xx", "5xx", "503", "507"];
        assert_eq!(names, want);
        let (a, b) = (Meters::default(), Meters::default());
        a.answered(Kind::Push, 201, 100);
        b.answered(Kind::Push, 429, 20);
        b.answered(Kind::Probe, 200, 1);
        let seen = routes([&a, &b].into_iter());
        assert_eq!((seen[0].route, seen[0].us.count(), seen[0].us.sum), ("push", 2, 120));
        assert_eq!(seen[0].answers, [1, 0, 0, 1, 0, 0, 0]);
        assert_eq!(seen[9].answers[0], 1);
    }

    #[test]
    fn the_longest_delay_is_taken_once() {
        let meters = Meters::default();
        [5, 90, 7].into_iter().for_each(|us| meters.reactor_delayed(us));
        assert_eq!((meters.take_reactor_us_max(), meters.take_reactor_us_max()), (90, 0));
        assert_eq!(meters.reactor_us.read().count(), 3);
    }
}

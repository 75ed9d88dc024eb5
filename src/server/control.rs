//! What the executors and the main thread know of each other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::meters::Meters;
use crate::proto::system::Vitals;

/// Shared by the main thread, the accepting thread and all executors.
#[derive(Debug, Default)]
pub struct Control {
    progress: Mutex<Progress>,
    changed: Condvar,
    draining: AtomicBool,
    /// What the main thread has seen of the process and its disk.
    pub vitals: Mutex<Vitals>,
    /// For each executor.
    pub gauges: Vec<Gauges>,
}

/// Counters of one executor that other threads read.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Open now; counted up by the accepting thread, down by the executor.
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    /// Requests without a complete answer.
    pub open_requests: AtomicUsize,
    pub requests: AtomicU64,
    pub meters: Meters,
}

/// How far the executors are, each counted once a step.
#[derive(Clone, Default, Debug)]
pub struct Progress {
    /// All of its shards are recovered.
    pub opened: usize,
    /// The exchange between the shards is over.
    pub ready: usize,
    /// All of its shards have their final marker.
    pub stopped: usize,
    /// Why an executor or a shard could not be opened.
    pub refused: Option<String>,
    /// Why a shard takes no writes.
    pub fault: Option<String>,
    /// The signal that asked for the end.
    pub signal: Option<&'static str>,
    pub signals: usize,
}

impl Control {
    pub fn new(executors: usize) -> Self {
        Self { gauges: (0..executors).map(|_| Gauges::default()).collect(), ..Self::default() }
    }

    pub fn report(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Sleeps until `enough` says so, and returns what it then saw; `None` when `limit` is over
    /// before.
    pub fn wait(
        &self,
        limit: Option<Duration>,
        mut enough: impl FnMut(&Progress) -> bool,
    ) -> Option<Progress> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        while !enough(&progress) {
            progress = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.changed
                        .wait_timeout(progress, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        Some(progress.clone())
    }

    /// `/health` says so from this moment on.
    pub fn begin_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub fn sum(&self, of: impl Fn(&Gauges) -> u64) -> u64 {
        self.gauges.iter().map(of).sum()
    }

    pub fn open_requests(&self) -> u64 {
        self.sum(|gauges| gauges.open_requests.load(Ordering::Acquire) as u64)
    }

    pub fn connections(&self) -> u64 {
        self.sum(|gauges| gauges.connections.load(Ordering::Acquire) as u64)
    }
}

//! Looking at the process and its disk every few seconds, from the main thread: procfs and the
//! file system may keep a caller waiting, and an executor must not.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::control::Control;
use super::process::{self, Usage};
use super::sys;
use crate::base::histogram::Micros;
use crate::proto::system::{Delay, Sample};

const EACH: Duration = Duration::from_secs(5);
const MINUTE_US: i64 = 60_000_000;

pub struct Sampler {
    control: Arc<Control>,
    clock: Arc<Clock>,
    folder: PathBuf,
    taken: Option<Instant>,
    usage: Usage,
    /// Of each executor, at the last sample.
    delays: Vec<Micros>,
}

impl Sampler {
    pub fn new(control: Arc<Control>, clock: Arc<Clock>, folder: PathBuf) -> Self {
        let delays = vec![Micros::default(); control.gauges.len()];
        Self { control, clock, folder, taken: None, usage: process::usage(), delays }
    }

    /// Takes a sample if the last one is old enough.
    pub fn look(&mut self) {
        let now = Instant::now();
        let passed = self.taken.map(|taken| now - taken);
        if passed.is_some_and(|passed| passed < EACH) {
            return;
        }
        self.taken = Some(now);
        let usage = process::usage();
        let before = std::mem::replace(&mut self.usage, usage);
        let share = |now_us: u64, before_us: u64| {
            let passed_us = passed.map_or(0, |passed| passed.as_micros() as u64);
            // Hundredths of a percent of one core.
            (now_us.saturating_sub(before_us) * 10_000).checked_div(passed_us).unwrap_or(0)
        };
        let sample = Sample {
            cpu_user: share(usage.cpu_user_us, before.cpu_user_us),
            cpu_system: share(usage.cpu_system_us, before.cpu_system_us),
            rss_bytes: usage.rss_bytes,
            virtual_bytes: usage.virtual_bytes,
            connections: self.control.connections(),
            open_requests: self.control.open_requests(),
            delays: self.delays(),
        };
        let disk = match sys::disk_usage(&self.folder) {
            Ok((used, all)) => (used * 100).checked_div(all),
            Err(error) => {
                tracing::debug!(%error, "the use of the file system is not known");
                None
            }
        };
        let minute = u64::try_from(self.clock.now().wall_us.div_euclid(MINUTE_US)).unwrap_or(0);
        let mut vitals = self.control.vitals.lock().unwrap_or_else(PoisonError::into_inner);
        vitals.note(minute, &sample);
        vitals.disk_used_pct = disk;
    }

    /// Each executor's reactor delay since the last sample.
    fn delays(&mut self) -> Vec<Delay> {
        let each = self.control.gauges.iter().zip(&mut self.delays);
        each.map(|(gauges, before)| {
            let now = gauges.meters.reactor_us.read();
            let seen = Delay {
                count: now.count() - before.count(),
                sum_us: now.sum - before.sum,
                max_us: gauges.meters.take_reactor_us_max(),
                requests: gauges.requests.load(Ordering::Relaxed),
            };
            *before = now;
            seen
        })
        .collect()
    }
}

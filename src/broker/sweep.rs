//! Work that a step leaves behind because it grows with the partitions of a queue: done in
//! slices of less than a millisecond, each on an event of its own.

use super::effect::Effects;
use super::shard::{Event, Shard};
use crate::base::buf::IoBuf;
use crate::base::limits;
use crate::base::time::Now;

/// Between two slices others get the core.
const PAUSE_US: u64 = 1_000;

impl<B: IoBuf> Shard<B> {
    /// Does a slice, and sees to it that the rest follows.
    pub(super) fn sweep(&mut self, now: Now, fx: &mut Effects<B>) {
        let done = self.state.empty_graves(limits::SWEEP_SLICE);
        self.state.count_passed_over(limits::SWEEP_SLICE - done);
        let waiting = self.serve_due(now, fx);
        let left = waiting || !self.state.graves.is_empty() || !self.state.uncounted.is_empty();
        if left && !self.state.sweeping {
            self.state.sweeping = true;
            self.state.deadlines.insert(now.after_us(PAUSE_US), Event::Sweep);
        }
    }

    pub(super) fn sweep_on(&mut self, now: Now, fx: &mut Effects<B>) {
        self.state.sweeping = false;
        self.sweep(now, fx);
    }
}

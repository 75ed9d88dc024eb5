//! appended ≥ written ≥ durable: the three positions of the log, moved only here.

use crate::base::ids::LogPosition;

#[derive(Clone, Copy, Debug)]
pub struct Positions {
    appended: LogPosition,
    written: LogPosition,
    durable: LogPosition,
}

impl Positions {
    /// After recovery all that was found is durable.
    pub fn new(end: LogPosition) -> Self {
        Self { appended: end, written: end, durable: end }
    }

    /// Just past the newest record in memory.
    pub fn appended(&self) -> LogPosition {
        self.appended
    }

    /// Everything before it survives a power cut.
    pub fn durable(&self) -> LogPosition {
        self.durable
    }

    pub fn set_appended(&mut self, to: LogPosition) {
        assert!(to >= self.appended, "appended goes back");
        self.set(to, self.written, self.durable);
    }

    pub fn set_written(&mut self, to: LogPosition) {
        assert!(to >= self.written, "written goes back");
        self.set(self.appended, to, self.durable);
    }

    pub fn set_durable(&mut self, to: LogPosition) {
        assert!(to >= self.durable, "durable goes back");
        self.set(self.appended, self.written, to);
    }

    fn set(&mut self, appended: LogPosition, written: LogPosition, durable: LogPosition) {
        assert!(appended >= written && written >= durable, "positions out of order");
        *self = Self { appended, written, durable };
    }
}

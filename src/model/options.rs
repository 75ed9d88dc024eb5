//! Options of a queue, with the defaults of the wire.

use serde::{Deserialize, Serialize};

use crate::base::limits;

/// Everything `configure` can set. Units are in the names. Serialized as it stands into the
/// log's queue records; a field that an older record lacks takes its default.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueOptions {
    pub lease_seconds: u32,
    pub retry_limit: u32,
    pub dead_letter_queue: bool,
    pub dlq_after_max_retries: bool,
    pub dedup_window_seconds: u64,
    pub delayed_processing_seconds: u64,
    pub window_buffer_seconds: u64,
    pub retention_enabled: bool,
    /// 0 keeps messages for ever.
    pub retention_seconds: u64,
    /// 0 keeps messages for ever.
    pub completed_retention_seconds: u64,
    /// 0 is off.
    pub max_wait_seconds: u64,
    pub encryption_enabled: bool,
    pub namespace: String,
    pub task: String,
    // Stored and echoed, without effect, as on every broker of this wire.
    pub priority: i64,
    pub retry_delay_ms: i64,
    pub ttl_seconds: i64,
    pub max_size: i64,
    pub min_pop_wait_ms: u32,
    pub retention_sink_hold: String,
    pub retention_sink_hold_max_seconds: u64,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            lease_seconds: limits::LEASE_SECONDS_DEFAULT,
            retry_limit: 3,
            dead_letter_queue: true,
            dlq_after_max_retries: true,
            dedup_window_seconds: 3_600,
            delayed_processing_seconds: 0,
            window_buffer_seconds: 0,
            retention_enabled: false,
            retention_seconds: 0,
            completed_retention_seconds: 0,
            max_wait_seconds: 0,
            encryption_enabled: false,
            namespace: String::new(),
            task: String::new(),
            priority: 0,
            retry_delay_ms: 1_000,
            ttl_seconds: 3_600,
            max_size: 0,
            min_pop_wait_ms: 0,
            retention_sink_hold: String::new(),
            retention_sink_hold_max_seconds: 604_800,
        }
    }
}

impl QueueOptions {
    /// Options of a queue made by a push or a pop: a shorter lease, and labels from the dotted
    /// name (`orders.billing.eu` is namespace `orders`, task `billing`).
    pub fn implicit(queue: &str) -> Self {
        let mut labels = queue.splitn(3, '.');
        Self {
            lease_seconds: limits::LEASE_SECONDS_IMPLICIT,
            namespace: labels.next().unwrap_or_default().to_owned(),
            task: labels.next().unwrap_or_default().to_owned(),
            ..Self::default()
        }
    }

    /// A spent message is filed unless both switches are off.
    pub fn files_dead_letters(&self) -> bool {
        self.dead_letter_queue || self.dlq_after_max_retries
    }
}

/// One option of a `configure` body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting<T> {
    /// Absent: keeps what is stored.
    Keep,
    /// `null`: back to the default.
    Reset,
    Set(T),
}

impl<T> Setting<T> {
    pub fn apply(self, stored: &mut T, default: T) {
        match self {
            Self::Keep => {}
            Self::Reset => *stored = default,
            Self::Set(value) => *stored = value,
        }
    }
}

/// A checked `configure` body: what to do to each option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionsPatch {
    /// `mode: "replace"`: start from the defaults instead of what is stored.
    pub replace: bool,
    pub lease_seconds: Setting<u32>,
    pub retry_limit: Setting<u32>,
    pub dead_letter_queue: Setting<bool>,
    pub dlq_after_max_retries: Setting<bool>,
    pub dedup_window_seconds: Setting<u64>,
    pub delayed_processing_seconds: Setting<u64>,
    pub window_buffer_seconds: Setting<u64>,
    pub retention_enabled: Setting<bool>,
    pub retention_seconds: Setting<u64>,
    pub completed_retention_seconds: Setting<u64>,
    pub max_wait_seconds: Setting<u64>,
    pub encryption_enabled: Setting<bool>,
    pub namespace: Setting<String>,
    pub task: Setting<String>,
    pub priority: Setting<i64>,
    pub retry_delay_ms: Setting<i64>,
    pub ttl_seconds: Setting<i64>,
    pub max_size: Setting<i64>,
    pub min_pop_wait_ms: Setting<u32>,
    pub retention_sink_hold: Setting<String>,
    pub retention_sink_hold_max_seconds: Setting<u64>,
}

impl OptionsPatch {
    /// The patch that changes nothing.
    pub fn keep() -> Self {
        Self {
            replace: false,
            lease_seconds: Setting::Keep,
            retry_limit: Setting::Keep,
            dead_letter_queue: Setting::Keep,
            dlq_after_max_retries: Setting::Keep,
            dedup_window_seconds: Setting::Keep,
            delayed_processing_seconds: Setting::Keep,
            window_buffer_seconds: Setting::Keep,
            retention_enabled: Setting::Keep,
            retention_seconds: Setting::Keep,
            completed_retention_seconds: Setting::Keep,
            max_wait_seconds: Setting::Keep,
            encryption_enabled: Setting::Keep,
            namespace: Setting::Keep,
            task: Setting::Keep,
            priority: Setting::Keep,
            retry_delay_ms: Setting::Keep,
            ttl_seconds: Setting::Keep,
            max_size: Setting::Keep,
            min_pop_wait_ms: Setting::Keep,
            retention_sink_hold: Setting::Keep,
            retention_sink_hold_max_seconds: Setting::Keep,
        }
    }

    /// The options after this patch. `stored` is `None` for a queue that does not exist yet.
    pub fn apply(self, stored: Option<&QueueOptions>) -> QueueOptions {
        let default = QueueOptions::default();
        let mut o = match stored {
            Some(stored) if !self.replace => stored.clone(),
            _ => default.clone(),
        };
        self.lease_seconds.apply(&mut o.lease_seconds, default.lease_seconds);
        self.retry_limit.apply(&mut o.retry_limit, default.retry_limit);
        self.dead_letter_queue.apply(&mut o.dead_letter_queue, default.dead_letter_queue);
        self.dlq_after_max_retries
            .apply(&mut o.dlq_after_max_retries, default.dlq_after_max_retries);
        self.dedup_window_seconds.apply(&mut o.dedup_window_seconds, default.dedup_window_seconds);
        self.delayed_processing_seconds
            .apply(&mut o.delayed_processing_seconds, default.delayed_processing_seconds);
        self.window_buffer_seconds
            .apply(&mut o.window_buffer_seconds, default.window_buffer_seconds);
        self.retention_enabled.apply(&mut o.retention_enabled, default.retention_enabled);
        self.retention_seconds.apply(&mut o.retention_seconds, default.retention_seconds);
        self.completed_retention_seconds
            .apply(&mut o.completed_retention_seconds, default.completed_retention_seconds);
        self.max_wait_seconds.apply(&mut o.max_wait_seconds, default.max_wait_seconds);
        self.encryption_enabled.apply(&mut o.encryption_enabled, default.encryption_enabled);
        self.namespace.apply(&mut o.namespace, default.namespace);
        self.task.apply(&mut o.task, default.task);
        self.priority.apply(&mut o.priority, default.priority);
        self.retry_delay_ms.apply(&mut o.retry_delay_ms, default.retry_delay_ms);
        self.ttl_seconds.apply(&mut o.ttl_seconds, default.ttl_seconds);
        self.max_size.apply(&mut o.max_size, default.max_size);
        self.min_pop_wait_ms.apply(&mut o.min_pop_wait_ms, default.min_pop_wait_ms);
        self.retention_sink_hold.apply(&mut o.retention_sink_hold, default.retention_sink_hold);
        self.retention_sink_hold_max_seconds
            .apply(&mut o.retention_sink_hold_max_seconds, default.retention_sink_hold_max_seconds);
        o
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_keeps_resets_and_sets() {
        let stored = QueueOptions { retry_limit: 9, lease_seconds: 60, ..Default::default() };
        let patch = OptionsPatch {
            retry_limit: Setting::Reset,
            priority: Setting::Set(5),
            ..OptionsPatch::keep()
        };
        let merged = patch.clone().apply(Some(&stored));
        assert_eq!((merged.retry_limit, merged.lease_seconds, merged.priority), (3, 60, 5));
        let replaced = OptionsPatch { replace: true, ..patch }.apply(Some(&stored));
        assert_eq!((replaced.lease_seconds, replaced.priority), (300, 5));
    }

    #[test]
    fn implicit_queues_take_labels_from_a_dotted_name() {
        let o = QueueOptions::implicit("X.taskA.q");
        assert_eq!((o.namespace.as_str(), o.task.as_str(), o.lease_seconds), ("X", "taskA", 60));
        let o = QueueOptions::implicit("plain");
        assert_eq!((o.namespace.as_str(), o.task.as_str()), ("plain", ""));
    }
}

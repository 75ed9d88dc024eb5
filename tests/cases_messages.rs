//! Faults that users of brokers have met on the message path, tried from outside: repeats of a
//! push, leases and late acks, order under churn, dead letters, odd payloads and odd names.
//!
//! Each test names the symptom; what is asserted is what must hold instead.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "cases_messages/dedup.rs"]
mod dedup;
#[path = "cases_messages/leases.rs"]
mod leases;
#[path = "cases_messages/names.rs"]
mod names;
#[path = "cases_messages/order.rs"]
mod order;
#[path = "cases_messages/payloads.rs"]
mod payloads;
mod support;

use std::time::Duration;

use support::{Broker, Options};

fn broker() -> Broker {
    Broker::start(Options::default())
}

fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

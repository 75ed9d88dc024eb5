//! Pushes and pops in the binary forms of the wire, from outside: what is taken, what is refused
//! with nothing stored, what is stored byte for byte, and that every form gives the same messages.

#![allow(clippy::unwrap_used, reason = "a test ends at its first surprise")]

#[path = "binary_push/bodies.rs"]
mod bodies;
#[path = "binary_push/forms.rs"]
mod forms;
#[path = "binary_push/sealed.rs"]
mod sealed;
#[path = "binary_push/stored.rs"]
mod stored;
mod support;
#[path = "binary_push/vectors.rs"]
mod vectors;

use support::{Broker, Options};

fn broker() -> Broker {
    Broker::start(Options::default())
}

//! Layer 2: bodies and query parameters of the wire, to and from the model's plain data.
//!
//! One file per operation, each with what it reads and what it writes. Nothing here knows HTTP,
//! the log or the broker: bytes come in, a checked command or a [`Refusal`] goes out, and back.
//! Decoders borrow from the request wherever the text needs no unescaping; a payload is never
//! copied and never written anew.
//!
//! [`Refusal`]: crate::model::error::Refusal

pub mod ack;
pub mod analytics;
pub mod configure;
pub mod dlq;
pub mod error;
pub mod exposition;
pub mod group_listing;
pub mod groups;
pub mod health;
pub mod json;
mod json_check;
mod json_scan;
pub mod lease;
pub mod loads;
pub mod messages;
pub mod metrics;
mod opener;
pub mod pop;
mod pop_frames;
pub mod push;
pub mod push_binary;
pub mod query;
pub mod queues;
pub mod resources;
pub mod series;
pub mod status;
pub mod system;
pub mod traces;
pub mod transact;
pub mod why;
pub mod window;

use crate::base::limits;
use crate::model::error::{ErrorCode, Refusal};

/// The rule of names: a queue has one, and with its longest companion (partition or group) it
/// stays within the budget.
fn check_names(queue: &str, others: [&str; 2]) -> Result<(), Refusal> {
    if queue.is_empty() {
        return Err(Refusal::new(ErrorCode::BadRequest, "the queue name is empty"));
    }
    check_budget(queue, others)
}

fn check_budget(queue: &str, others: [&str; 2]) -> Result<(), Refusal> {
    let bytes = queue.len() + others[0].len().max(others[1].len());
    if bytes > limits::NAMES_BYTES_MAX {
        let text = format!("names take {bytes} bytes, the limit is {}", limits::NAMES_BYTES_MAX);
        return Err(Refusal::new(ErrorCode::NameTooLong, text));
    }
    Ok(())
}

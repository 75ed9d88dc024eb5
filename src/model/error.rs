//! Refusals, named by whose fault they are. `server::route` maps them to HTTP statuses.

use std::borrow::Cow;

/// One word for each kind of refusal; the wire's `code` is [`ErrorCode::word`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorCode {
    // The client's fault.
    BadBody,
    BadRequest,
    NameTooLong,
    PayloadTooLarge,
    NotFound,
    NoSuchRoute,
    /// A route or option of the wire that this build does not have yet.
    NotImplemented,
    // Load.
    Overloaded,
    // Storage.
    StorageFull,
    /// The disk failed under the write: whether it happened is not known.
    OutcomeUnknown,
    /// Nothing happened; the same request may succeed now or soon.
    Retry,
    Draining,
    // A bug or a failed read.
    Internal,
    /// A payload was encrypted with a key that is not here, or is damaged.
    CannotDecrypt,
}

impl ErrorCode {
    /// The `code` of the error body.
    pub fn word(self) -> &'static str {
        match self {
            Self::BadBody => "bad_body",
            Self::BadRequest => "bad_request",
            Self::NameTooLong => "name_too_long",
            Self::PayloadTooLarge => "payload_too_large",
            Self::NotFound => "not_found",
            Self::NoSuchRoute => "no_such_route",
            Self::NotImplemented => "not_implemented",
            Self::Overloaded => "overloaded",
            Self::StorageFull => "storage_full",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Retry => "retry",
            Self::Draining => "draining",
            Self::Internal => "internal",
            Self::CannotDecrypt => "cannot_decrypt",
        }
    }
}

/// A refusal with a text for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub code: ErrorCode,
    pub text: Cow<'static, str>,
}

impl Refusal {
    pub fn new(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into() }
    }
}

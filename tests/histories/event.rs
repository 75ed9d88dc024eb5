//! What the clients of a run saw, as plain data: every request with the moments it was sent and
//! answered. Nothing in here knows how a broker works.

use std::fmt;

/// Microseconds since the start of the run, by a clock that only goes forward.
pub type Micros = u64;

/// From the moment a request was sent to its answer, or to the moment it was known to get none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub sent: Micros,
    pub ended: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    Completed,
    Retry,
    Failed,
    DeadLetter,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Retry => "retry",
            Self::Failed => "failed",
            Self::DeadLetter => "dlq",
        }
    }
}

/// One push request.
#[derive(Clone, Debug)]
pub struct Push {
    pub span: Span,
    /// It was sent before, without an answer.
    pub again: bool,
    pub items: Vec<Pushed>,
}

#[derive(Clone, Debug)]
pub struct Pushed {
    pub partition: u32,
    pub id: String,
    /// `queued` (true) or `duplicate`, and the offset; `None`: no answer.
    pub answer: Option<(bool, u64)>,
}

/// One pop of a group, named by its number for what follows from it.
#[derive(Clone, Debug)]
pub struct Pop {
    pub span: Span,
    pub number: u64,
    pub group: usize,
    pub batch: u64,
    pub partitions: u64,
    /// Committed at delivery: no lease.
    pub auto: bool,
    pub length: Micros,
    /// `None`: no answer; what it claimed, if anything, nobody knows.
    pub claims: Option<Vec<Claim>>,
}

/// What a pop got of one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    pub partition: u32,
    pub first: u64,
    pub ids: Vec<String>,
    pub attempt: u64,
}

impl Claim {
    pub fn last(&self) -> u64 {
        self.first + self.ids.len() as u64 - 1
    }
}

/// One partition's part of an ack request or of a transaction.
#[derive(Clone, Debug)]
pub struct Settle {
    pub span: Span,
    pub pop: u64,
    pub partition: u32,
    pub items: Vec<(u64, Status)>,
    pub answer: Answer,
    /// The transaction it is a part of.
    pub transaction: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// One verdict an item.
    Judged(Vec<Verdict>),
    /// The transaction around it did not happen.
    RolledBack,
    Unknown,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Verdict {
    pub success: bool,
    /// The error names the lease.
    pub lease_refused: bool,
    pub dead_lettered: bool,
    /// Not said in a transaction.
    pub released: Option<bool>,
}

impl fmt::Debug for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match (self.success, self.lease_refused, self.dead_lettered) {
            (true, false, false) => "taken",
            (true, false, true) => "filed",
            (false, true, false) => "lease refused",
            (false, false, false) => "refused",
            _ => "contradictory",
        };
        let released = match self.released {
            Some(true) => ", released",
            Some(false) => "",
            None => ", release not told",
        };
        write!(out, "{word}{released}")
    }
}

#[derive(Clone, Debug)]
pub struct Extend {
    pub span: Span,
    pub pop: u64,
    pub length: Micros,
    /// How many partitions' leases it renewed; `None`: no answer.
    pub renewed: Option<u64>,
}

/// A transaction of acks (`Settle`, with its number) and one push a completed message.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub span: Span,
    pub number: u64,
    pub pop: u64,
    pub outcome: Outcome,
    /// One of its acks names a message that nobody pushed: it may not happen.
    pub spoiled: bool,
    pub results: Vec<Product>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Committed,
    /// With the reason.
    RolledBack(String),
    Unknown,
}

/// A result, and the message it was made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Product {
    pub id: String,
    pub source: (u32, u64),
    /// Where the broker said it is.
    pub offset: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Event {
    Push(Push),
    Pop(Pop),
    Settle(Settle),
    Extend(Extend),
    Transaction(Transaction),
    /// The broker was dead from one moment to the other.
    Kill(Span),
}

impl Event {
    pub fn span(&self) -> Span {
        match self {
            Self::Push(e) => e.span,
            Self::Pop(e) => e.span,
            Self::Settle(e) => e.span,
            Self::Extend(e) => e.span,
            Self::Transaction(e) => e.span,
            Self::Kill(span) => *span,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { sent, ended } = self.span();
        write!(out, "{:>10.3} ..{:>10.3} ms  ", sent as f64 / 1e3, ended as f64 / 1e3)?;
        match self {
            Self::Push(e) => write!(out, "push {:?}", e.items),
            Self::Pop(e) => {
                let kind = if e.auto { "commits" } else { "leases" };
                write!(out, "pop {} {kind} {} us: {:?}", e.number, e.length, e.claims)
            }
            Self::Settle(e) => {
                write!(out, "ack of pop {} p{}: {:?}", e.pop, e.partition, e.items)?;
                write!(out, " in {:?} -> {:?}", e.transaction, e.answer)
            }
            Self::Extend(e) => {
                write!(out, "extend of pop {} by {} us -> {:?}", e.pop, e.length, e.renewed)
            }
            Self::Transaction(e) => {
                write!(out, "transaction {} -> {:?}: {:?}", e.number, e.outcome, e.results)
            }
            Self::Kill(_) => write!(out, "the broker is dead"),
        }
    }
}

/// What is there at the end, read after everything has come to rest.
#[derive(Clone, Default, Debug)]
pub struct Remains {
    /// The ids of each partition in the order of their offsets.
    pub log: Vec<Vec<String>>,
    /// The second queue: id, offset.
    pub products: Vec<(String, u64)>,
    /// Group, partition, offset.
    pub dead_letters: Vec<(usize, u32, u64)>,
}

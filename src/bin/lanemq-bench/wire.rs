//! What the load needs of a server's protocol: requests as bytes, answers checked.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Why there is no figure: an answer that is not right, a connection that broke.
#[derive(Debug)]
pub struct Fault(pub String);

impl Fault {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// What one push carries. Everything else about its messages follows from these numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// 0 for the run's first push, then one more for each.
    pub index: u64,
    pub first_seq: u64,
    pub count: u32,
    /// The first of the partitions it is for, by number.
    pub partition: u32,
}

/// A popped message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    pub seq: u64,
    pub place: Option<Place>,
}

/// Where the server says that a message lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub partition_id: u64,
    pub offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Push,
    Pop,
    Ack,
}

/// What a consumer does after an answered pop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Ack,
    /// Nothing was there, but its next pop looks elsewhere.
    Again,
    /// Nothing is free now. What other consumers hold may be followed by more.
    Park,
    /// There is nothing more for this consumer.
    Done,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Pushes, and in `jobs` pops and acks, too.
    Producer,
    Consumer,
}

/// A connection by its role and its number among those of that role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    pub role: Role,
    pub number: u32,
}

/// Whether a pop waits at the server for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    Yes,
    No,
}

pub trait Wire {
    /// Does what must be done before the clock starts. `pushes`: how many there will be, if that
    /// is known.
    fn prepare(&mut self, pushes: Option<u64>) -> Result<(), Fault>;

    /// Sent as the first thing on a connection.
    fn greeting(&self, _name: Name) -> Vec<u8> {
        Vec::new()
    }

    /// Begins a connection. What it waits for is no part of what is measured.
    fn open(&mut self, name: Name, stream: &mut TcpStream) -> Result<(), Fault> {
        stream.write_all(&self.greeting(name))?;
        Ok(())
    }

    /// Whether a connection can still push.
    fn has_more(&self, _name: Name) -> bool {
        true
    }

    /// Makes `out` the request that pushes `batch`. `out` is empty or holds that connection's
    /// last push, which may be made into this one.
    fn push(&mut self, name: Name, batch: &Batch, out: &mut Vec<u8>);

    /// Makes `out` a pop.
    fn pop(&mut self, name: Name, wait: Wait, out: &mut Vec<u8>);

    /// The length of the whole answer to that connection's call which `bytes` begin with; `None`
    /// while it is not all there.
    fn answer_len(&mut self, name: Name, call: Call, bytes: &[u8]) -> Result<Option<usize>, Fault>;

    /// Fails unless each message of the push was stored, and as a new one.
    fn check_push(&mut self, batch: &Batch, answer: &[u8]) -> Result<(), Fault>;

    /// Adds what a pop brought to `messages`, and makes `ack` the request that acks all of it.
    fn read_pop(
        &mut self,
        name: Name,
        answer: &[u8],
        messages: &mut Vec<Message>,
        ack: &mut Vec<u8>,
    ) -> Result<Next, Fault>;

    /// Fails unless all `count` messages were acked.
    fn check_ack(&mut self, count: usize, answer: &[u8]) -> Result<(), Fault>;

    /// Fails unless the server holds what so many answered transactions leave.
    fn settle(&mut self, _transactions: u64) -> Result<(), Fault> {
        Ok(())
    }
}

/// Appends what comes next on a blocking connection, before or after what is measured.
pub fn read_more(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<(), Fault> {
    let mut part = [0; 16 << 10];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return Err(Fault::new("the server closed a connection")),
            Ok(count) => {
                answer.extend_from_slice(&part[..count]);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Some text of an answer, for an error.
pub fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 300;
    let text = bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string();
    if bytes.len() > SHOWN { format!("{text} …") } else { text }
}

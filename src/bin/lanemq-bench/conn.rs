//! One nonblocking connection: a request out, its answer in.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::wire::{Batch, Call, Fault, Name, Wire};

const INPUT_BYTES: usize = 64 << 10;

pub struct Conn {
    pub stream: TcpStream,
    pub name: Name,
    /// The last push, from which the next is made.
    pub push: Vec<u8>,
    /// The last pop or ack.
    pub request: Vec<u8>,
    /// What is under way.
    pub call: Option<Call>,
    pub batch: Batch,
    /// Messages popped and not acked yet.
    pub held: usize,
    /// When the call under way was sent, or meant to be.
    pub sent_ns: u64,
    /// When this connection's job or last pop began.
    pub begun_ns: u64,
    written: usize,
    input: Vec<u8>,
    filled: usize,
}

impl Conn {
    pub fn open(address: SocketAddr, name: Name, wire: &mut dyn Wire) -> Result<Self, Fault> {
        let mut stream = TcpStream::connect(address)
            .map_err(|error| Fault::new(format!("no connection to {address}: {error}")))?;
        stream.set_nodelay(true)?;
        wire.open(name, &mut stream)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            name,
            push: Vec::new(),
            request: Vec::new(),
            call: None,
            batch: Batch { index: 0, first_seq: 0, count: 0, partition: 0 },
            held: 0,
            sent_ns: 0,
            begun_ns: 0,
            written: 0,
            input: vec![0; INPUT_BYTES],
            filled: 0,
        })
    }

    /// Sends what was put into `push` or `request`, as much as the socket takes now.
    pub fn begin(&mut self, call: Call, sent_ns: u64) -> Result<(), Fault> {
        assert!(self.call.is_none(), "one call at a time");
        self.call = Some(call);
        self.sent_ns = sent_ns;
        self.written = 0;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let bytes = match self.call {
            Some(Call::Push) => &self.push,
            Some(Call::Pop | Call::Ack) => &self.request,
            None => return Ok(()),
        };
        while self.written < bytes.len() {
            match self.stream.write(&bytes[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Goes on with writing and reading. Returns the length of the answer once it is whole.
    /// While this returns `None` it has left nothing unread, so the next edge wakes it.
    pub fn advance(&mut self, wire: &mut dyn Wire) -> Result<Option<usize>, Fault> {
        self.flush()?;
        loop {
            if let Some(call) = self.call
                && self.filled > 0
                && let Some(len) = wire.answer_len(self.name, call, &self.input[..self.filled])?
            {
                return Ok(Some(len));
            }
            if self.filled == self.input.len() {
                self.input.resize(2 * self.filled, 0);
            }
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(Fault::new("the server closed a connection")),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub fn answer(&self, len: usize) -> &[u8] {
        &self.input[..len]
    }

    /// The answer was dealt with.
    pub fn finish(&mut self, len: usize) {
        self.input.copy_within(len..self.filled, 0);
        self.filled -= len;
        self.call = None;
    }
}

//! What the measured part of a run cost: the server's process and its own counters, and this
//! driver.

use crate::args::{Args, Peer};
use crate::http;
use crate::usage::{SyscallCounter, Usage, listener};
use crate::wire::Fault;

pub struct Meter {
    /// `None` where the server is not on this machine or not ours to look into.
    pid: Option<u32>,
    args: Args,
    syscall_counter: Option<SyscallCounter>,
    server: Usage,
    driver: Usage,
    log: Log,
    pub used: Used,
}

#[derive(Clone, Debug, Default)]
pub struct Used {
    pub server: Option<Usage>,
    pub driver: Usage,
    /// What the server says that it appended and synced, where it says so.
    pub log: Option<Log>,
    pub syscalls: Option<u64>,
    /// Why a figure that was asked for is not there.
    pub remarks: Vec<String>,
}

/// The log's own counters, all shards together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log {
    pub appended_bytes: u64,
    pub syncs: u64,
}

impl Meter {
    pub fn new(args: &Args) -> Self {
        let pid = args.pid.or_else(|| listener(args.address));
        let mut used = Used::default();
        if pid.is_none() {
            let text = format!("no process found that listens on {}: no cost", args.address);
            used.remarks.push(text);
        }
        Self {
            pid,
            args: args.clone(),
            syscall_counter: None,
            server: Usage::default(),
            driver: Usage::default(),
            log: Log::default(),
            used,
        }
    }

    pub fn begin(&mut self) -> Result<(), Fault> {
        if self.args.peer == Peer::Lanemq {
            self.log = read_log(&self.args)?;
        }
        if let (Some(pid), true) = (self.pid, self.args.syscalls) {
            match SyscallCounter::start(pid) {
                Ok(counter) => self.syscall_counter = Some(counter),
                Err(fault) => self.used.remarks.push(format!("no system calls: {fault}")),
            }
        }
        self.driver = Usage::of(std::process::id())?;
        if let Some(pid) = self.pid {
            self.server = self.look(pid)?;
        }
        Ok(())
    }

    /// PostgreSQL works in a process for each connection, and some more.
    fn look(&self, pid: u32) -> Result<Usage, Fault> {
        match self.args.peer {
            Peer::Postgres => Usage::of_family(pid),
            Peer::Lanemq | Peer::Redis | Peer::Nats => Usage::of(pid),
        }
    }

    pub fn end(&mut self) -> Result<(), Fault> {
        if let Some(pid) = self.pid {
            self.used.server = Some(self.look(pid)?.since(&self.server));
        }
        self.used.driver = Usage::of(std::process::id())?.since(&self.driver);
        if let Some(counter) = self.syscall_counter.take() {
            match counter.finish() {
                Ok(count) => self.used.syscalls = Some(count),
                Err(fault) => self.used.remarks.push(format!("no system calls: {fault}")),
            }
        }
        if self.args.peer == Peer::Lanemq {
            let now = read_log(&self.args)?;
            self.used.log = Some(Log {
                appended_bytes: now.appended_bytes.saturating_sub(self.log.appended_bytes),
                syncs: now.syncs.saturating_sub(self.log.syncs),
            });
        }
        Ok(())
    }
}

fn read_log(args: &Args) -> Result<Log, Fault> {
    let body = http::get(args.address, "/metrics")?;
    let value: serde_json::Value = serde_json::from_slice(&body)
        .map_err(|error| Fault::new(format!("the server's /metrics cannot be read: {error}")))?;
    let shards = value["shards"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |key: &str| shards.iter().filter_map(|shard| shard[key].as_u64()).sum();
    Ok(Log { appended_bytes: sum("appendedBytes"), syncs: sum("syncs") })
}

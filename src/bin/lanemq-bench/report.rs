//! The figures, for people and for scripts.

use std::fmt::Write as _;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::{Args, Workload};
use crate::drive::Outcome;
use crate::meter::Used;

#[derive(Serialize)]
pub struct Report {
    workload: String,
    peer: String,
    form: String,
    counts: bool,
    connections: u32,
    batch: u32,
    size: u32,
    partitions: u32,
    rate_wanted: Option<f64>,
    queue: String,
    pub messages: u64,
    requests: u64,
    seconds: f64,
    messages_per_second: f64,
    megabytes_per_second: f64,
    latencies: Vec<Latency>,
    server: Option<Cost>,
    /// Of this driver, in cores.
    driver_cores: f64,
    /// Of the run's time; above 0 the other figures are not to be kept.
    seconds_stood_still: f64,
    remarks: Vec<String>,
}

/// Milliseconds.
#[derive(Serialize)]
struct Latency {
    what: &'static str,
    count: u64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Serialize)]
struct Cost {
    /// Processor seconds for a million messages.
    user_per_million: f64,
    system_per_million: f64,
    cores: f64,
    rss_mib: f64,
    /// To the disk as the kernel counts it, and to the log as the server does, for each byte of
    /// payload that was pushed.
    written_per_byte: Option<f64>,
    appended_per_byte: Option<f64>,
    /// Of all requests, pops and acks included.
    messages_per_sync: Option<f64>,
    switches_per_request: f64,
    syscalls_per_request: Option<f64>,
}

impl Report {
    pub fn new(args: &Args, queue: &str, outcome: &Outcome, used: Used) -> Self {
        let counts = &outcome.counts;
        let messages = match args.workload {
            Workload::Push | Workload::Txn => counts.pushed,
            Workload::Pop | Workload::PushPop | Workload::Jobs => counts.acked,
        };
        let seconds = outcome.elapsed.as_secs_f64();
        let per_second = messages as f64 / seconds;
        Self {
            workload: name(args.workload),
            peer: name(args.peer),
            form: name(args.form),
            counts: args.counts,
            connections: args.connections,
            batch: args.batch,
            size: args.size,
            partitions: args.partitions,
            rate_wanted: args.rate,
            queue: queue.to_owned(),
            messages,
            requests: counts.requests,
            seconds,
            messages_per_second: per_second,
            megabytes_per_second: per_second * f64::from(args.size) / 1e6,
            latencies: latencies(args, outcome),
            server: cost(args, outcome, &used, messages),
            driver_cores: used.driver.cpu().as_secs_f64() / seconds,
            seconds_stood_still: outcome.stood_still.as_secs_f64(),
            remarks: used.remarks,
        }
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text make JSON")
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("a string takes all text");
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{} {} {}: {} messages in {:.2} s: {:.0} msg/s, {:.1} MB/s",
            self.peer,
            self.workload,
            self.form,
            self.messages,
            self.seconds,
            self.messages_per_second,
            self.megabytes_per_second
        )?;
        writeln!(out, "{:<12} {:>9} {:>9} {:>9} {:>9}  ms", "", "p50", "p99", "p99.9", "max")?;
        for row in &self.latencies {
            let Latency { what, p50, p99, p999, max, .. } = row;
            writeln!(out, "{what:<12} {p50:>9.3} {p99:>9.3} {p999:>9.3} {max:>9.3}")?;
        }
        if let Some(cost) = &self.server {
            cost.write(out)?;
        }
        writeln!(out, "driver: {:.2} cores", self.driver_cores)?;
        if self.seconds_stood_still > 0.0 {
            let seconds = self.seconds_stood_still;
            writeln!(out, "the machine stood still for {seconds:.1} s: not figures to keep")?;
        }
        for remark in &self.remarks {
            writeln!(out, "{remark}")?;
        }
        Ok(())
    }
}

impl Cost {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "server: {:.2} CPU-s a million messages ({:.2} user, {:.2} system), {:.2} cores, \
             RSS {:.0} MiB",
            self.user_per_million + self.system_per_million,
            self.user_per_million,
            self.system_per_million,
            self.cores,
            self.rss_mib
        )?;
        let mut parts = vec![format!("{:.2} context switches", self.switches_per_request)];
        parts.extend(self.syscalls_per_request.map(|n| format!("{n:.2} system calls")));
        writeln!(out, "server: a request: {}", parts.join(", "))?;
        let mut parts = Vec::new();
        let written = self.written_per_byte;
        parts.extend(written.map(|n| format!("{n:.2} bytes written to disk")));
        let appended = self.appended_per_byte;
        parts.extend(appended.map(|n| format!("{n:.2} appended to the log")));
        if !parts.is_empty() {
            writeln!(out, "server: a byte of payload: {}", parts.join(", "))?;
        }
        if let Some(messages) = self.messages_per_sync {
            writeln!(out, "server: a sync for {messages:.0} messages")?;
        }
        Ok(())
    }
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn latencies(args: &Args, outcome: &Outcome) -> Vec<Latency> {
    let all = &outcome.latencies;
    let push = if args.workload == Workload::Txn { "transaction" } else { "push" };
    let rows = [
        (push, &all.push),
        ("pop", &all.pop),
        ("ack", &all.ack),
        ("pop to ack", &all.pop_ack),
        ("end to end", &all.end_to_end),
        ("job", &all.job),
    ];
    rows.into_iter().filter(|(_, h)| !h.is_empty()).map(|(what, h)| latency(what, h)).collect()
}

fn latency(what: &'static str, histogram: &Histogram<u64>) -> Latency {
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |quantile: f64| ms(histogram.value_at_quantile(quantile));
    Latency {
        what,
        count: histogram.len(),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: ms(histogram.max()),
    }
}

fn cost(args: &Args, outcome: &Outcome, used: &Used, messages: u64) -> Option<Cost> {
    let server = used.server?;
    let millions = messages as f64 / 1e6;
    let requests = outcome.counts.requests as f64;
    let payload = outcome.counts.pushed as f64 * f64::from(args.size);
    let per_byte = |bytes: u64| (payload > 0.0).then(|| bytes as f64 / payload);
    let syncs = used.log.map(|log| log.syncs).filter(|syncs| *syncs > 0);
    Some(Cost {
        user_per_million: server.user.as_secs_f64() / millions,
        system_per_million: server.system.as_secs_f64() / millions,
        cores: server.cpu().as_secs_f64() / outcome.elapsed.as_secs_f64(),
        rss_mib: server.rss_bytes as f64 / f64::from(1 << 20),
        written_per_byte: per_byte(server.written_bytes),
        appended_per_byte: used.log.and_then(|log| per_byte(log.appended_bytes)),
        messages_per_sync: syncs.map(|syncs| messages as f64 / syncs as f64),
        switches_per_request: server.context_switches as f64 / requests,
        syscalls_per_request: used.syscalls.map(|count| count as f64 / requests),
    })
}

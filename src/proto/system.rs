//! The process and its executors over time, and the answers of a cluster of one.

use std::collections::VecDeque;

use super::health::{ENGINE, WIRE_VERSION};
use super::json::{self, Fields};
use super::metrics::ServerStats;
use super::window::Window;
use crate::base::limits;
use crate::model::reply::ShardStats;

/// One look at the process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Hundredths of a percent of one core, since the sample before.
    pub cpu_user: u64,
    pub cpu_system: u64,
    pub rss_bytes: u64,
    pub virtual_bytes: u64,
    pub connections: u64,
    pub open_requests: u64,
    /// Of each executor.
    pub delays: Vec<Delay>,
}

/// How long tasks of one executor waited for their turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delay {
    pub count: u64,
    pub sum_us: u64,
    pub max_us: u64,
    /// Requests since the start.
    pub requests: u64,
}

impl Delay {
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
        self.requests = self.requests.max(other.requests);
    }

    /// In milliseconds.
    pub fn avg_ms(&self) -> f64 {
        self.sum_us as f64 / self.count.max(1) as f64 / 1_000.0
    }

    pub fn max_ms(&self) -> f64 {
        self.max_us as f64 / 1_000.0
    }
}

/// A gauge over the samples of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    sum: u64,
    count: u64,
    min: u64,
    max: u64,
    pub last: u64,
}

impl Spread {
    fn note(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.sum += value;
        self.count += 1;
        self.last = value;
    }

    fn add(&mut self, later: &Self) {
        if later.count == 0 {
            return;
        }
        self.min = if self.count == 0 { later.min } else { self.min.min(later.min) };
        self.max = self.max.max(later.max);
        self.sum += later.sum;
        self.count += later.count;
        self.last = later.last;
    }

    pub fn avg(&self) -> u64 {
        self.sum / self.count.max(1)
    }

    fn write(&self, fields: &mut Fields<'_>) {
        fields
            .integer("avg", self.avg())
            .integer("min", self.min)
            .integer("max", self.max)
            .integer("last", self.last);
    }
}

/// The samples of one minute, or of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VitalsMinute {
    pub minute: u64,
    pub cpu_user: Spread,
    pub cpu_system: Spread,
    pub rss_bytes: Spread,
    pub virtual_bytes: Spread,
    pub connections: Spread,
    pub open_requests: Spread,
    pub delays: Vec<Delay>,
}

impl VitalsMinute {
    fn note(&mut self, sample: &Sample) {
        self.cpu_user.note(sample.cpu_user);
        self.cpu_system.note(sample.cpu_system);
        self.rss_bytes.note(sample.rss_bytes);
        self.virtual_bytes.note(sample.virtual_bytes);
        self.connections.note(sample.connections);
        self.open_requests.note(sample.open_requests);
        self.add_delays(&sample.delays);
    }

    pub fn add(&mut self, later: &Self) {
        self.cpu_user.add(&later.cpu_user);
        self.cpu_system.add(&later.cpu_system);
        self.rss_bytes.add(&later.rss_bytes);
        self.virtual_bytes.add(&later.virtual_bytes);
        self.connections.add(&later.connections);
        self.open_requests.add(&later.open_requests);
        self.add_delays(&later.delays);
    }

    fn add_delays(&mut self, delays: &[Delay]) {
        self.delays.resize(delays.len().max(self.delays.len()), Delay::default());
        self.delays.iter_mut().zip(delays).for_each(|(sum, delay)| sum.add(delay));
    }

    /// Over all executors.
    pub fn delay(&self) -> Delay {
        self.delays.iter().fold(Delay::default(), |mut sum, delay| {
            sum.add(delay);
            sum
        })
    }
}

/// The samples of the last day, by the minute, and how full the disk is.
#[derive(Clone, Debug, Default)]
pub struct Vitals {
    minutes: VecDeque<VitalsMinute>,
    /// The minute of the first sample.
    began: Option<u64>,
    pub disk_used_pct: Option<u64>,
}

impl Vitals {
    pub fn note(&mut self, minute: u64, sample: &Sample) {
        let minute = self.minutes.back().map_or(minute, |newest| newest.minute.max(minute));
        self.began.get_or_insert(minute);
        match self.minutes.back_mut().filter(|newest| newest.minute == minute) {
            Some(newest) => newest.note(sample),
            None => {
                let mut new = VitalsMinute { minute, ..VitalsMinute::default() };
                new.note(sample);
                self.minutes.push_back(new);
            }
        }
        let oldest = minute.saturating_sub(limits::HISTORY_MINUTES);
        while self.minutes.front().is_some_and(|first| first.minute < oldest) {
            self.minutes.pop_front();
        }
    }

    /// The minutes of a window.
    pub fn within(&self, window: &Window) -> Vec<VitalsMinute> {
        let (from, to) = window.minutes();
        let inside = |minute: &&VitalsMinute| (from..=to).contains(&minute.minute);
        self.minutes.iter().filter(inside).cloned().collect()
    }

    /// The first minute that is known of at all.
    pub fn began(&self) -> Option<u64> {
        self.began
    }
}

/// Minutes put together by the window's buckets, oldest first.
pub fn by_bucket(minutes: &[VitalsMinute], window: &Window) -> Vec<VitalsMinute> {
    let mut buckets: Vec<VitalsMinute> = Vec::new();
    for minute in minutes {
        let bucket = window.bucket_of(minute.minute);
        match buckets.last_mut().filter(|last| last.minute == bucket) {
            Some(last) => last.add(minute),
            None => buckets.push(VitalsMinute { minute: bucket, ..minute.clone() }),
        }
    }
    buckets
}

/// Where and as what this broker runs.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub hostname: &'a str,
    pub port: u16,
}

/// Writes the series of the process.
pub fn encode_system_metrics(
    minutes: &[VitalsMinute],
    window: &Window,
    identity: Identity<'_>,
    out: &mut Vec<u8>,
) {
    let buckets = by_bucket(minutes, window);
    let mut fields = Fields::begin(out);
    window.write_range(&mut fields);
    fields.integer("replicaCount", 1).objects("replicas", [()], |(), f| {
        f.text("hostname", identity.hostname)
            .integer("port", identity.port)
            .text("workerId", "all")
            .objects("timeSeries", &buckets, write_bucket);
    });
    window.write_buckets(buckets.len(), &mut fields);
    fields.end();
}

fn write_bucket(bucket: &VitalsMinute, fields: &mut Fields<'_>) {
    json::write_seconds(fields.key("timestamp"), Window::minute_us(bucket.minute));
    fields.integer("sampleCount", bucket.rss_bytes.count).object("metrics", |f| {
        f.object("cpu", |f| {
            f.object("user_us", |f| bucket.cpu_user.write(f));
            f.object("system_us", |f| bucket.cpu_system.write(f));
        });
        f.object("memory", |f| {
            f.object("rss_bytes", |f| bucket.rss_bytes.write(f));
            f.object("virtual_bytes", |f| bucket.virtual_bytes.write(f));
        });
        f.object("connections", |f| {
            f.object("open", |f| bucket.connections.write(f));
            f.object("requests", |f| bucket.open_requests.write(f));
        });
        f.object("event_loop", |f| {
            let delay = bucket.delay();
            json::write_decimal(f.key("avg_ms"), delay.avg_ms());
            json::write_decimal(f.key("max_ms"), delay.max_ms());
        });
    });
}

/// The node that this broker is, in the words of a cluster.
pub fn encode_cluster_status(
    cluster: &str,
    shards: &[ShardStats],
    server: &ServerStats,
    cpu: u64,
    out: &mut Vec<u8>,
) {
    let appended: u64 = shards.iter().map(|shard| shard.traffic.push_messages).sum();
    Fields::begin(out)
        .text("engine", ENGINE)
        .text("clusterId", cluster)
        .integer("self", 1)
        .integer("voters", 1)
        .boolean("singleNode", true)
        .integer("nodeId", 1)
        .text("role", "voter")
        .text("state", "leader")
        .integer("leaderId", 1)
        .integer("term", 1)
        .integer("lastLogIndex", appended)
        .integer("applied", appended)
        .integer("commit", appended)
        .integer("lag", 0)
        .boolean("storageReady", shards.iter().all(|shard| shard.fault.is_none()))
        .text("clusterVersion", WIRE_VERSION)
        .object("host", |f| {
            json::write_decimal(f.key("cpuPct"), cpu as f64 / 100.0);
            f.integer("rssBytes", server.rss_bytes).integer("anonBytes", server.rss_bytes);
        })
        .end();
}

pub fn encode_cluster_members(cluster: &str, address: &str, out: &mut Vec<u8>) {
    Fields::begin(out)
        .text("engine", ENGINE)
        .text("clusterId", cluster)
        .integer("leaderId", 1)
        .integer("term", 1)
        .integer("self", 1)
        .integer("voters", 1)
        .objects("members", [()], |(), f| {
            f.integer("nodeId", 1)
                .text("role", "voter")
                .text("state", "leader")
                .text("http", address)
                .null("raft");
        })
        .end();
}

pub fn encode_cluster_liveness(address: &str, out: &mut Vec<u8>) {
    Fields::begin(out)
        .integer("nodeId", 1)
        .integer("viewAgeMs", 0)
        .objects("members", [()], |(), f| {
            f.integer("nodeId", 1)
                .text("role", "voter")
                .text("state", "leader")
                .text("http", address)
                .null("raft")
                .integer("lastAckMs", 0);
        })
        .end();
}

/// Who asks, where that is told by a token and not by a session.
pub fn encode_no_me(out: &mut Vec<u8>) {
    let word = "auth_required";
    Fields::begin(out).text("error", word).text("code", word).end();
}

/// Who asks, where nobody has to say who he is.
pub fn encode_me(hostname: &str, out: &mut Vec<u8>) {
    const TENANT: &str = "00000000-0000-0000-0000-000000000001";
    Fields::begin(out)
        .text("user_id", "standalone")
        .null("email")
        .text("tenant_slug", "local")
        .boolean("is_operator", true)
        .boolean("operator_enabled", true)
        .boolean("operator_live", true)
        .object("acting_cluster", |f| {
            f.text("id", "local").text("slug", "local");
        })
        .objects("clusters", [()], |(), f| {
            f.text("id", "local")
                .text("slug", "local")
                .text("role", "admin")
                .text("tenant_slug", "local")
                .text("tenant_id", TENANT)
                .text("status", "active")
                .text("cell_slug", hostname);
        })
        .text("act_cluster_header", "x-queen-act-cluster")
        .text("role", "admin")
        .null("cluster")
        .boolean("standalone", true)
        .end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::query::query;

    fn sample(rss_bytes: u64, max_us: u64) -> Sample {
        let delay = Delay { count: 2, sum_us: 2 * max_us, max_us, requests: 1 };
        Sample { rss_bytes, delays: vec![delay; 2], ..Sample::default() }
    }

    #[test]
    fn samples_become_minutes_and_minutes_buckets() {
        let mut vitals = Vitals::default();
        vitals.note(100, &sample(10, 500));
        vitals.note(100, &sample(30, 100));
        vitals.note(99, &sample(20, 100));
        vitals.note(101, &sample(5, 7));
        let text = "from=1970-01-01T00:00:00Z&to=1970-01-01T06:00:00Z";
        let window = Window::decode(&query(text), 0).unwrap();
        let minutes = vitals.within(&window);
        assert_eq!(minutes.len(), 2);
        let first = minutes[0].rss_bytes;
        assert_eq!(
            (first.avg(), first.min, first.max, first.last, first.count),
            (20, 10, 30, 20, 3)
        );
        let buckets = by_bucket(&minutes, &window);
        assert_eq!((buckets.len(), buckets[0].minute), (1, 100));
        assert_eq!((buckets[0].rss_bytes.min, buckets[0].rss_bytes.last), (5, 5));
        assert_eq!((buckets[0].delay().max_us, buckets[0].delay().count), (500, 16));
        for minute in 200..200 + 2 * limits::HISTORY_MINUTES {
            vitals.note(minute, &sample(1, 1));
        }
        assert_eq!(vitals.minutes.len() as u64, limits::HISTORY_MINUTES + 1);
        assert_eq!(vitals.began(), Some(100));
    }

    #[test]
    fn system_metrics_have_the_wires_shape() {
        let mut vitals = Vitals::default();
        vitals.note(0, &sample(10, 1_500));
        let window = Window::decode(&query(""), 0).unwrap();
        let mut out = Vec::new();
        let identity = Identity { hostname: "h", port: 7 };
        encode_system_metrics(&vitals.within(&window), &window, identity, &mut out);
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let point = &v["replicas"][0]["timeSeries"][0];
        assert_eq!((&v["pointCount"], &v["bucketMinutes"]), (&1.into(), &1.into()));
        assert_eq!(point["timestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(point["metrics"]["memory"]["rss_bytes"]["last"], 10);
        assert_eq!(point["metrics"]["event_loop"]["max_ms"], 1.5);
    }

    #[test]
    fn a_cluster_of_one_answers_for_itself() {
        let mut out = Vec::new();
        encode_me("h", &mut out);
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&v["standalone"], &v["clusters"][0]["cell_slug"]), (&true.into(), &"h".into()));
        out.clear();
        encode_cluster_liveness("1:2", &mut out);
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(v["members"][0]["lastAckMs"], 0);
    }
}

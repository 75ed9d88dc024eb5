//! Watching the broker: health, metrics, status and analytics. They read counters and take walks;
//! nothing here touches the disk.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::answer::{Answer, TEXT};
use super::meters;
use super::node::Node;
use super::operate::{query, queue_rows, unexpected};
use super::process;
use super::route::Observe;
use super::shard::ShardHandle;
use crate::base::limits;
use crate::http::Target;
use crate::model::command::{Command, ReadRequest};
use crate::model::error::{ErrorCode, Refusal};
use crate::model::reply::{QueueRow, Reply, ShardStats};
use crate::model::traffic::{
    OTHER_QUEUES, QueueLiveness, QueueRows, QueueTotals, Traffic, Walk, WalkAt, WalkFound,
    WalkOver, WalkStep,
};
use crate::proto::analytics::{self, Failures, GroupBy};
use crate::proto::exposition::{self, Aliases, Exposed};
use crate::proto::health::{self, Condition};
use crate::proto::metrics::{self, ExecutorStats, ServerStats};
use crate::proto::query::Query;
use crate::proto::resources;
use crate::proto::series::{Filter, Labels, Series};
use crate::proto::status::{self, Status};
use crate::proto::system::{self, Identity, VitalsMinute};
use crate::proto::window::Window;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const MINUTE_US: i64 = 60_000_000;

/// What this broker says of itself, and how much it shows.
#[derive(Clone, Debug)]
pub struct About {
    pub hostname: String,
    pub listen: SocketAddr,
    /// Identity of the data directory.
    pub cluster: String,
    /// Queues with samples of their own in the text form of the metrics.
    pub metrics_queues: usize,
    /// Show the metrics under the published brokers' names too.
    pub queen_metrics: bool,
}

pub async fn answer(
    node: &Rc<Node>,
    shard: &Rc<ShardHandle>,
    wanted: Observe,
    target: &Target,
) -> Result<Answer, Refusal> {
    let watch = Watch { node, shard, query: query(target)? };
    match wanted {
        Observe::Health => watch.health().await,
        Observe::Metrics => watch.metrics().await,
        Observe::Exposition => watch.exposition().await,
        Observe::Ok => Ok(Answer::json(200, status::encode_ok)),
        Observe::StatsRefresh => Ok(Answer::json(200, status::encode_refreshed)),
        Observe::Overview => watch.overview().await,
        Observe::Status => watch.status().await,
        Observe::Hours => watch.hours().await,
        Observe::SystemMetrics => watch.system_metrics(),
        Observe::WorkerMetrics => watch.worker_metrics().await,
        Observe::QueueLag => {
            let series = watch.series(QueueRows::All).await?;
            Ok(Answer::json(200, |out| analytics::encode_queue_lag(&series, out)))
        }
        Observe::QueueOps => {
            let series = watch.series(QueueRows::All).await?;
            Ok(Answer::json(200, |out| analytics::encode_queue_ops(&series, out)))
        }
        Observe::ParkedReplicas => {
            let series = watch.series(QueueRows::All).await?;
            let hostname = &node.about.hostname;
            Ok(Answer::json(200, |out| analytics::encode_parked(&series, hostname, out)))
        }
        Observe::Retention => watch.retention().await,
        Observe::Workload => watch.workload().await,
        Observe::Signatures => watch.signatures().await,
        Observe::Liveness => watch.liveness().await,
        Observe::ClusterStatus => watch.cluster_status().await,
        Observe::ClusterMembers => {
            let address = node.about.listen.to_string();
            let cluster = &node.about.cluster;
            Ok(Answer::json(200, |out| system::encode_cluster_members(cluster, &address, out)))
        }
        Observe::ClusterLiveness => {
            let address = node.about.listen.to_string();
            Ok(Answer::json(200, |out| system::encode_cluster_liveness(&address, out)))
        }
        Observe::Me if node.auth.is_some() => Ok(Answer::json(401, system::encode_no_me)),
        Observe::Me => Ok(Answer::json(200, |out| system::encode_me(&node.about.hostname, out))),
        Observe::Login if node.auth.is_some() => {
            let text = "This broker wants a bearer token in each request.\n";
            Ok(Answer::new(200, TEXT, text.as_bytes().to_vec()))
        }
        Observe::Login => {
            let answer = Answer::new(302, TEXT, b"nobody has to sign in here\n".to_vec());
            Ok(Answer { fields: &[("location", "/")], ..answer })
        }
        Observe::Logout => Ok(Answer::json(200, |out| out.extend_from_slice(br#"{"ok":true}"#))),
    }
}

/// One request to see something.
struct Watch<'a> {
    node: &'a Rc<Node>,
    shard: &'a Rc<ShardHandle>,
    query: Query<'a>,
}

impl Watch<'_> {
    // ---- health and metrics

    async fn health(&self) -> Result<Answer, Refusal> {
        let node = self.node;
        let stats = match self.shard_stats().await {
            Ok(stats) => stats,
            // A shard that drains takes no commands; that is what is to be said.
            Err(refusal) if refusal.code == ErrorCode::Draining => Vec::new(),
            Err(refusal) => return Err(refusal),
        };
        let condition = Condition::of(&stats, node.control().is_draining());
        let status = if condition.is_healthy() { 200 } else { 503 };
        let process = health::Process {
            uptime_seconds: node.now().mono_us / 1_000_000,
            encryption_key: node.opener().can_seal(),
            disk_used_pct: self.disk_used_pct(),
        };
        let mut answer =
            Answer::json(status, |out| health::encode(condition, &stats, process, out));
        answer.retry_after = (status == 503).then_some(1);
        Ok(answer)
    }

    async fn metrics(&self) -> Result<Answer, Refusal> {
        let stats = self.shard_stats().await?;
        let server = self.server_stats();
        Ok(Answer::json(200, |out| metrics::encode_json(&stats, &server, out)))
    }

    async fn exposition(&self) -> Result<Answer, Refusal> {
        let about = &self.node.about;
        let stats = self.shard_stats().await?;
        let server = self.server_stats();
        let (queues, other) = self.totals(about.metrics_queues).await?;
        let exposed = Exposed { shards: &stats, server: &server, queues: &queues, other: &other };
        let mut body = Vec::with_capacity(64 << 10);
        exposition::encode(&exposed, &mut body);
        if about.queen_metrics {
            let minute = self.last_minute().await?;
            exposition::encode_aliases(&exposed, &Aliases { minute: &minute }, &mut body);
        }
        Ok(Answer::new(200, PROMETHEUS, body))
    }

    async fn shard_stats(&self) -> Result<Vec<ShardStats>, Refusal> {
        match self.shard.handle(Command::Read(ReadRequest::Shards)).await {
            Reply::Shards(stats) => Ok(stats),
            other => Err(unexpected(&other)),
        }
    }

    fn server_stats(&self) -> ServerStats {
        let control = self.node.control();
        let usage = process::usage();
        let executor = |gauges: &super::control::Gauges| ExecutorStats {
            reactor_us: gauges.meters.reactor_us.read(),
            recovery_us: gauges.meters.recovery_us.get(),
        };
        ServerStats {
            uptime_seconds: self.node.now().mono_us / 1_000_000,
            connections: control.connections(),
            connections_total: control.sum(|gauges| gauges.accepted.load(Ordering::Relaxed)),
            connections_refused: control.sum(|gauges| gauges.refused.load(Ordering::Relaxed)),
            requests_total: control.sum(|gauges| gauges.requests.load(Ordering::Relaxed)),
            open_requests: control.open_requests(),
            rss_bytes: usage.rss_bytes,
            virtual_bytes: usage.virtual_bytes,
            cpu_user_us: usage.cpu_user_us,
            cpu_system_us: usage.cpu_system_us,
            disk_used_pct: self.disk_used_pct(),
            routes: meters::routes(control.gauges.iter().map(|gauges| &gauges.meters)),
            executors: control.gauges.iter().map(executor).collect(),
        }
    }

    fn disk_used_pct(&self) -> Option<u64> {
        let vitals = &self.node.control().vitals;
        vitals.lock().unwrap_or_else(PoisonError::into_inner).disk_used_pct
    }

    // ---- status

    async fn overview(&self) -> Result<Answer, Refusal> {
        let (seen, cut) = self.partitions().await?;
        // Behind the walk: what it saw is durable when this is answered.
        let rows = queue_rows(self.shard).await?;
        let now_us = self.shard.now().wall_us;
        let owed = |row: &QueueRow| seen.get(&row.name).and_then(|live| live.oldest_owed_us);
        Ok(Answer::json(200, |out| resources::encode_overview(&rows, owed, cut, now_us, out)))
    }

    async fn status(&self) -> Result<Answer, Refusal> {
        let filter = self.filter();
        let (window, rows) = (self.window()?, queue_rows(self.shard).await?);
        let series = self.filtered(window, &filter, &rows, QueueRows::None).await?;
        let failures = self.failures(filter.queue.clone()).await?;
        let shards = self.shard_stats().await?;
        let (vitals, began) = self.vitals(&window);
        let status = Status {
            series: &series,
            vitals: &vitals,
            began,
            filter: &filter,
            queues: &rows,
            shards: &shards,
            executors: self.node.control().gauges.len(),
            hostname: &self.node.about.hostname,
            failures: &failures,
        };
        Ok(Answer::json(200, |out| status::encode(&status, out)))
    }

    async fn hours(&self) -> Result<Answer, Refusal> {
        let filter = self.filter();
        let window = self.window()?.in_buckets_of(60);
        let rows = if filter.is_empty() { Vec::new() } else { queue_rows(self.shard).await? };
        let series = self.filtered(window, &filter, &rows, QueueRows::None).await?;
        let (_, began) = self.vitals(&window);
        Ok(Answer::json(200, |out| status::encode_hours(&series, began, out)))
    }

    // ---- analytics

    fn system_metrics(&self) -> Result<Answer, Refusal> {
        let window = self.window()?;
        let (vitals, _) = self.vitals(&window);
        let about = &self.node.about;
        let identity = Identity { hostname: &about.hostname, port: about.listen.port() };
        Ok(Answer::json(200, |out| {
            system::encode_system_metrics(&vitals, &window, identity, out);
        }))
    }

    async fn worker_metrics(&self) -> Result<Answer, Refusal> {
        let series = self.series(QueueRows::All).await?;
        let rows = queue_rows(self.shard).await?;
        let pending = rows.iter().map(|row| row.counts.unconsumed).sum();
        let (vitals, began) = self.vitals(&series.window);
        let executors = self.node.control().gauges.len();
        let hostname = &self.node.about.hostname;
        Ok(Answer::json(200, |out| {
            let (node, spans) = ((&*vitals, executors), (began, pending));
            analytics::encode_worker_metrics(&series, node, spans, hostname, out);
        }))
    }

    async fn retention(&self) -> Result<Answer, Refusal> {
        let group_by = GroupBy::decode(&self.query)?;
        let queues = if group_by.is_some() { QueueRows::All } else { QueueRows::None };
        let series = self.series(queues).await?;
        let labels = match group_by {
            Some(_) => Labels::of(&queue_rows(self.shard).await?),
            None => Labels::default(),
        };
        Ok(Answer::json(200, |out| {
            analytics::encode_retention(&series, &labels, group_by, out);
        }))
    }

    async fn workload(&self) -> Result<Answer, Refusal> {
        let group_by = GroupBy::decode(&self.query)?.unwrap_or(GroupBy::Namespace);
        let (filter, window) = (self.exact_filter(), self.window()?);
        let rows = queue_rows(self.shard).await?;
        let series = self.filtered(window, &filter, &rows, QueueRows::All).await?;
        let limit = match group_by {
            GroupBy::Queue => limits::SERIES_QUEUES_MAX,
            GroupBy::Namespace | GroupBy::Task => limits::METRICS_QUEUES_MAX as usize,
        };
        let (mut totals, other) = self.totals(limit).await?;
        if filter.is_empty() {
            totals.extend(Some(other).filter(|other| other.partitions > 0));
        } else {
            let kept = chosen(&rows, &filter);
            totals.retain(|queue| kept.contains_key(&queue.queue));
        }
        let labels = Labels::of(&rows);
        let (_, began) = self.vitals(&window);
        Ok(Answer::json(200, |out| {
            analytics::encode_workload(&series, (&labels, group_by, began), &totals, out);
        }))
    }

    async fn signatures(&self) -> Result<Answer, Refusal> {
        let queue = self.text("queue").ok_or_else(analytics::queue_required)?;
        let seen = self.failures(Some(queue.clone())).await?;
        let rows = queue_rows(self.shard).await?;
        let row = rows.iter().find(|row| row.name == queue);
        let now = row.map_or(0, |row| row.counts.dead_lettered);
        Ok(Answer::json(200, |out| analytics::encode_signatures(&queue, now, &seen, out)))
    }

    async fn liveness(&self) -> Result<Answer, Refusal> {
        let limit = self.query.page("limit", 20, 1..=200);
        let (seen, cut) = self.partitions().await?;
        let filter = self.exact_filter();
        let mut rows = queue_rows(self.shard).await?;
        rows.retain(|row| filter.matches(&row.name, &row.options));
        let now_us = self.shard.now().wall_us;
        Ok(Answer::json(200, |out| {
            analytics::encode_liveness(&seen, &rows, (limit, cut, now_us), out);
        }))
    }

    async fn cluster_status(&self) -> Result<Answer, Refusal> {
        let shards = self.shard_stats().await?;
        let server = self.server_stats();
        let window = Window::decode(&Query::default(), self.shard.now().wall_us)?;
        let (vitals, _) = self.vitals(&window);
        let cpu = vitals.last().map_or(0, |v| v.cpu_user.last + v.cpu_system.last);
        let cluster = &self.node.about.cluster;
        Ok(Answer::json(200, |out| {
            system::encode_cluster_status(cluster, &shards, &server, cpu, out);
        }))
    }

    // ---- what they are made of

    fn text(&self, key: &str) -> Option<String> {
        self.query.text(key).map(|value| value.clone().into_owned())
    }

    fn filter(&self) -> Filter {
        Filter {
            queue: self.text("queue"),
            namespace: self.text("namespace"),
            task: self.text("task"),
        }
    }

    /// The same, but an empty label is one: queues without it.
    fn exact_filter(&self) -> Filter {
        let label = |key| self.query.given(key).map(|value| value.clone().into_owned());
        Filter { queue: self.text("queue"), namespace: label("namespace"), task: label("task") }
    }

    fn window(&self) -> Result<Window, Refusal> {
        Window::decode(&self.query, self.shard.now().wall_us)
    }

    /// The process in the window, and the first minute that is known of.
    fn vitals(&self, window: &Window) -> (Vec<VitalsMinute>, u64) {
        let vitals = &self.node.control().vitals;
        let vitals = vitals.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = self.shard.now().wall_us;
        let now = u64::try_from(now_us.div_euclid(MINUTE_US)).unwrap_or(0);
        let oldest = now.saturating_sub(limits::HISTORY_MINUTES);
        (vitals.within(window), vitals.began().unwrap_or(now).max(oldest))
    }

    /// The series of the request's window, of its queue if it names one.
    async fn series(&self, queues: QueueRows) -> Result<Series, Refusal> {
        let window = self.window()?;
        let filter = self.filter();
        if !filter.is_empty() {
            let rows = queue_rows(self.shard).await?;
            return self.filtered(window, &filter, &rows, queues).await;
        }
        self.minutes(Series::new(window), queues).await
    }

    /// The series of the queues that the filter lets through; where there is none, of everything,
    /// with `queues` apart.
    async fn filtered(
        &self,
        window: Window,
        filter: &Filter,
        rows: &[QueueRow],
        queues: QueueRows,
    ) -> Result<Series, Refusal> {
        if filter.is_empty() {
            return self.minutes(Series::new(window), queues).await;
        }
        if let Filter { queue: Some(queue), namespace: None, task: None } = filter {
            let series = Series::of(window, Labels::only(queue));
            return self.minutes(series, QueueRows::One(queue.clone())).await;
        }
        let kept: Vec<QueueRow> = chosen(rows, filter).into_values().cloned().collect();
        let queues = match &filter.queue {
            Some(queue) => QueueRows::One(queue.clone()),
            None => QueueRows::All,
        };
        self.minutes(Series::of(window, Labels::of(&kept)), queues).await
    }

    async fn minutes(&self, mut series: Series, queues: QueueRows) -> Result<Series, Refusal> {
        let (from, to) = series.window.minutes();
        self.walk(WalkOver::Minutes { from, to, queues }, |step| {
            let WalkFound::Minutes(rows) = step.found else { return false };
            rows.into_iter().for_each(|row| series.take(step.shard, row));
            true
        })
        .await?;
        series.limit_queues();
        Ok(series)
    }

    /// Queues in the minute that was over last.
    async fn last_minute(&self) -> Result<Vec<(String, Traffic)>, Refusal> {
        let now_us = self.shard.now().wall_us;
        let minute = u64::try_from(now_us.div_euclid(MINUTE_US)).unwrap_or(0).saturating_sub(1);
        let mut queues: BTreeMap<String, Traffic> = BTreeMap::new();
        let over = WalkOver::Minutes { from: minute, to: minute, queues: QueueRows::All };
        self.walk(over, |step| {
            let WalkFound::Minutes(rows) = step.found else { return false };
            for seen in rows.into_iter().flat_map(|row| row.queues) {
                queues.entry(seen.queue).or_default().add(&seen.traffic);
            }
            true
        })
        .await?;
        Ok(queues.into_iter().collect())
    }

    /// The first `limit` queues and the sum of the others. A queue has a name only where every
    /// shard gives it one, so that the same are named whichever shard is asked.
    async fn totals(&self, limit: usize) -> Result<(Vec<QueueTotals>, QueueTotals), Refusal> {
        let shards = usize::from(self.node.shards_total());
        let mut named: BTreeMap<String, (usize, QueueTotals)> = BTreeMap::new();
        let mut other = QueueTotals { queue: OTHER_QUEUES.to_owned(), ..QueueTotals::default() };
        let mut cut = false;
        self.walk(WalkOver::Totals { limit }, |step| {
            let WalkFound::Totals { named: rows, other: rest } = step.found else { return false };
            for row in rows {
                let empty = QueueTotals { queue: row.queue.clone(), ..QueueTotals::default() };
                let (seen, sum) = named.entry(row.queue.clone()).or_insert((0, empty));
                *seen += 1;
                sum.add(&row);
            }
            if let Some(rest) = rest {
                other.add(&rest);
                cut = true;
            }
            true
        })
        .await?;
        let (whole, part): (Vec<_>, Vec<_>) =
            named.into_values().partition(|(seen, _)| *seen == shards || !cut);
        part.into_iter().for_each(|(_, queue)| other.add(&queue));
        Ok((whole.into_iter().map(|(_, queue)| queue).collect(), other))
    }

    /// When partitions were written to, by queue. True where not all were looked at.
    async fn partitions(&self) -> Result<(BTreeMap<String, QueueLiveness>, bool), Refusal> {
        let mut seen: BTreeMap<String, QueueLiveness> = BTreeMap::new();
        let mut looked: BTreeMap<u16, u64> = BTreeMap::new();
        let cut = self
            .walk(WalkOver::Liveness, |step| {
                let WalkFound::Liveness(rows) = step.found else { return false };
                let partitions = looked.entry(step.shard.0).or_default();
                *partitions += rows.iter().map(|row| row.partitions).sum::<u64>();
                for row in rows {
                    let empty = QueueLiveness { queue: row.queue.clone(), ..Default::default() };
                    seen.entry(row.queue.clone()).or_insert(empty).add(&row);
                }
                *partitions < limits::WALK_PARTITIONS_MAX as u64
            })
            .await?;
        Ok((seen, cut))
    }

    /// The newest dead letters, of one queue or of all.
    async fn failures(&self, queue: Option<String>) -> Result<Failures, Refusal> {
        let mut seen = Failures::default();
        let mut steps: BTreeMap<u16, usize> = BTreeMap::new();
        self.walk(WalkOver::Failures { queue }, |step| {
            let WalkFound::Failures(rows) = step.found else { return false };
            rows.iter().for_each(|row| seen.take(row));
            let steps = steps.entry(step.shard.0).or_default();
            *steps += 1;
            *steps * limits::WALK_STEP_ROWS < limits::WALK_DEAD_LETTERS_MAX
        })
        .await?;
        Ok(seen)
    }

    /// Walks until every shard is through, or until `take` has had enough of a shard: then that
    /// shard's part is cut. Returns whether any is.
    async fn walk(
        &self,
        over: WalkOver,
        mut take: impl FnMut(WalkStep) -> bool,
    ) -> Result<bool, Refusal> {
        let mut cut = false;
        let mut at: Vec<WalkAt> = Vec::new();
        loop {
            let step = ReadRequest::Walk(Walk { over: over.clone(), at });
            let steps = match self.shard.handle(Command::Read(step)).await {
                Reply::Walked(steps) => steps,
                other => return Err(unexpected(&other)),
            };
            at = Vec::with_capacity(steps.len());
            for step in steps {
                let next = step.next;
                let enough = !take(step) && next != WalkAt::End;
                cut |= enough;
                at.push(if enough { WalkAt::End } else { next });
            }
            if at.iter().all(|at| *at == WalkAt::End) {
                return Ok(cut);
            }
            self.node.reactor.yield_if_due().await;
        }
    }
}

/// The queues that a filter lets through.
fn chosen<'r>(rows: &'r [QueueRow], filter: &Filter) -> BTreeMap<String, &'r QueueRow> {
    let kept = rows.iter().filter(|row| filter.matches(&row.name, &row.options));
    kept.map(|row| (row.name.clone(), row)).collect()
}

//! The join of HTTP and product: which method and path is which operation, and which HTTP
//! status a refusal has. The one table to look in.

use std::borrow::Cow;

use super::inspect::{self, InspectRoute};
use crate::http::Method;
use crate::model::command::PopTarget;
use crate::model::error::ErrorCode;

/// What a request asks for. Names borrow from the request's path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route<'a> {
    Push,
    Pop(PopTarget<'a>),
    /// The target is in the query.
    PopByLabels,
    Transact,
    Ack,
    AckBatch,
    ExtendLease(&'a str),
    Configure,
    DeleteQueue(&'a str),
    Queues,
    Queue(&'a str),
    Namespaces,
    Tasks,
    DeadLetters,
    /// Group, queue, and the partition if it is one alone.
    Seek(&'a str, &'a str, Option<&'a str>),
    /// Group, and the queue if it is one alone.
    DeleteGroup(&'a str, Option<&'a str>),
    MoveSubscription(&'a str),
    /// Something to see of the broker itself.
    Observe(Observe),
    Inspect(InspectRoute<'a>),
    Front,
    /// On the wire, but not built yet; by name.
    Unbuilt(&'static str),
    Unknown,
}

/// What there is to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observe {
    Health,
    /// As JSON / as text for Prometheus.
    Metrics,
    Exposition,
    /// The short status.
    Ok,
    StatsRefresh,
    Overview,
    Status,
    /// Messages by the hour.
    Hours,
    SystemMetrics,
    WorkerMetrics,
    QueueLag,
    QueueOps,
    ParkedReplicas,
    Retention,
    Workload,
    /// Causes of dead letters.
    Signatures,
    /// Of partitions.
    Liveness,
    // A cluster of one.
    ClusterStatus,
    ClusterMembers,
    ClusterLiveness,
    // Who asks.
    Me,
    Login,
    Logout,
}

/// Looks a request up. Exact; a name in the table goes before a parameter. `HEAD` asks where
/// `GET` does, except for a pop, which takes messages that a `HEAD` could not show.
pub fn find<'a>(method: Method, path: &'a [Cow<'a, str>]) -> Route<'a> {
    use Method::{Delete, Get, Head, Post};
    let mut names = [""; 10];
    if path.len() > names.len() {
        // Only a key of the store has more segments than that.
        return unbuilt(method, path);
    }
    names.iter_mut().zip(path).for_each(|(name, segment)| *name = segment);
    match (method, &names[..path.len()]) {
        (Post, ["api", "v1", "push"]) => Route::Push,
        (Get, ["api", "v1", "pop", "queue", queue]) => {
            Route::Pop(PopTarget::Queue((*queue).into()))
        }
        (Post, ["api", "v1", "ack"]) => Route::Ack,
        (Post, ["api", "v1", "ack", "batch"]) => Route::AckBatch,
        (Post, ["api", "v1", "transaction"]) => Route::Transact,
        (Get, ["api", "v1", "pop", "queue", queue, "partition", partition]) => {
            let (queue, partition) = ((*queue).into(), (*partition).into());
            Route::Pop(PopTarget::Partition { queue, partition })
        }
        (Get, ["api", "v1", "pop"]) => Route::PopByLabels,
        (Post, ["api", "v1", "lease", lease, "extend"]) => Route::ExtendLease(lease),
        (Post, ["api", "v1", "configure"]) => Route::Configure,
        (Get | Head, ["api", "v1", "resources", "queues"]) => Route::Queues,
        (Get | Head, ["api", "v1", "resources", "queues", queue]) => Route::Queue(queue),
        (Delete, ["api", "v1", "resources", "queues", queue]) => Route::DeleteQueue(queue),
        (Get | Head, ["api", "v1", "resources", "namespaces"]) => Route::Namespaces,
        (Get | Head, ["api", "v1", "resources", "tasks"]) => Route::Tasks,
        (Get | Head, ["api", "v1", "dlq"]) => Route::DeadLetters,
        (Post, ["api", "v1", "consumer-groups", group, "queues", queue, "seek"]) => {
            Route::Seek(group, queue, None)
        }
        (
            Post,
            ["api", "v1", "consumer-groups", group, "queues", queue, "partitions", name, "seek"],
        ) => Route::Seek(group, queue, Some(name)),
        (Delete, ["api", "v1", "consumer-groups", group]) => Route::DeleteGroup(group, None),
        (Delete, ["api", "v1", "consumer-groups", group, "queues", queue]) => {
            Route::DeleteGroup(group, Some(queue))
        }
        (Post, ["api", "v1", "consumer-groups", group, "subscription"]) => {
            Route::MoveSubscription(group)
        }
        (Get | Head, []) => Route::Front,
        (_, known) => match observe(method, known) {
            Some(wanted) => Route::Observe(wanted),
            None => {
                inspect::find(method, known).map_or_else(|| unbuilt(method, path), Route::Inspect)
            }
        },
    }
}

fn observe(method: Method, path: &[&str]) -> Option<Observe> {
    use Method::{Get, Head, Post};
    Some(match (method, path) {
        (Get | Head, ["health"]) => Observe::Health,
        (Get | Head, ["metrics"]) => Observe::Metrics,
        (Get | Head, ["metrics", "prometheus"]) => Observe::Exposition,
        (Get | Head, ["status"]) => Observe::Ok,
        (Post, ["api", "v1", "stats", "refresh"]) => Observe::StatsRefresh,
        (Get | Head, ["api", "v1", "resources", "overview"]) => Observe::Overview,
        (Get | Head, ["api", "v1", "status"]) => Observe::Status,
        (Get | Head, ["api", "v1", "status", "analytics"]) => Observe::Hours,
        (Get | Head, ["api", "v1", "analytics", name]) => match *name {
            "system-metrics" => Observe::SystemMetrics,
            "worker-metrics" => Observe::WorkerMetrics,
            "queue-lag" => Observe::QueueLag,
            "queue-ops" => Observe::QueueOps,
            "queue-parked-replicas" => Observe::ParkedReplicas,
            "retention" => Observe::Retention,
            "workload" => Observe::Workload,
            "dlq-signatures" => Observe::Signatures,
            "partition-liveness" => Observe::Liveness,
            _ => return None,
        },
        (Get | Head, ["api", "v1", "raft", "status"]) => Observe::ClusterStatus,
        (Get | Head, ["api", "v1", "raft", "members"]) => Observe::ClusterMembers,
        (Get | Head, ["api", "v1", "raft", "liveness"]) => Observe::ClusterLiveness,
        (Get | Head, ["auth", "me"]) => Observe::Me,
        (Get | Head, ["auth", "login"]) => Observe::Login,
        (Post, ["auth", "logout"]) => Observe::Logout,
        _ => return None,
    })
}

fn unbuilt<'a>(method: Method, path: &[Cow<'_, str>]) -> Route<'a> {
    let method = if method == Method::Head { Method::Get } else { method };
    let same = |pattern: &str| {
        let mut wanted = pattern.split('/').skip(1);
        let mut given = path.iter();
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return true,
                (Some("*"), Some(_)) => return true,
                (Some(name), Some(segment)) if name == ":" || name == &**segment => {}
                _ => return false,
            }
        }
    };
    let found = UNBUILT.iter().find(|(wanted, pattern, _)| *wanted == method && same(pattern));
    found.map_or(Route::Unknown, |(_, _, name)| Route::Unbuilt(name))
}

/// Routes of the wire that later builds serve. `:` is one segment, `*` one or more.
pub(super) const UNBUILT: &[(Method, &str, &str)] = &[
    (Method::Post, "/api/v1/fetch", "fetch"),
    (Method::Post, "/api/v1/fetch/offsets", "fetch offsets"),
    (Method::Post, "/api/v1/partitions/changed", "partitions changed"),
    (Method::Post, "/api/v1/kv", "kv"),
    (Method::Get, "/api/v1/kv/:/*", "kv"),
    (Method::Put, "/api/v1/kv/:/*", "kv"),
    (Method::Delete, "/api/v1/kv/:/*", "kv"),
    (Method::Post, "/api/v1/locks", "locks"),
    (Method::Post, "/api/v1/timers", "timers"),
    (Method::Get, "/api/v1/timers/:", "timers"),
    (Method::Get, "/api/v1/timers/:/*", "timers"),
    (Method::Delete, "/api/v1/timers/:/*", "timers"),
    (Method::Get, "/streams/v1/*", "streams"),
    (Method::Post, "/streams/v1/*", "streams"),
    (Method::Get, "/api/v1/ephemeral/*", "ephemeral queues"),
    (Method::Post, "/api/v1/ephemeral/*", "ephemeral queues"),
    (Method::Delete, "/api/v1/ephemeral/*", "ephemeral queues"),
    (Method::Get, "/api/v1/resources/kv/namespaces", "kv namespaces"),
    (Method::Post, "/api/v1/resources/kv/list", "kv list"),
    (Method::Post, "/api/v1/consumer-groups/positions", "consumer group positions"),
    (Method::Get, "/api/v1/system/kv-timers", "system switches"),
    (Method::Post, "/api/v1/system/kv-timers", "system switches"),
    (Method::Get, "/api/v1/system/ephemeral", "system switches"),
    (Method::Post, "/api/v1/system/ephemeral", "system switches"),
    (Method::Get, "/api/v1/system/shared-state", "shared state"),
];

/// The HTTP face of a refusal: status, and the seconds of `Retry-After` where it has them.
pub fn status_of(code: ErrorCode) -> (u16, Option<u32>) {
    match code {
        ErrorCode::BadBody | ErrorCode::BadRequest => (400, None),
        ErrorCode::NotFound | ErrorCode::NoSuchRoute => (404, None),
        ErrorCode::NameTooLong | ErrorCode::PayloadTooLarge => (413, None),
        ErrorCode::Overloaded => (429, Some(1)),
        ErrorCode::Internal | ErrorCode::CannotDecrypt => (500, None),
        ErrorCode::NotImplemented => (501, None),
        ErrorCode::OutcomeUnknown | ErrorCode::Retry | ErrorCode::Draining => (503, Some(1)),
        ErrorCode::StorageFull => (507, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<Cow<'_, str>> {
        text.split('/').skip(1).filter(|_| text != "/").map(Cow::Borrowed).collect()
    }

    #[test]
    fn the_table() {
        let name = |method, text| format!("{:?}", find(method, &path(text)));
        assert_eq!(name(Method::Post, "/api/v1/push"), "Push");
        assert_eq!(name(Method::Get, "/api/v1/pop"), "PopByLabels");
        assert_eq!(name(Method::Get, "/api/v1/pop/queue/q"), "Pop(Queue(\"q\"))");
        let pinned = name(Method::Get, "/api/v1/pop/queue/q/partition/p");
        assert_eq!(pinned, "Pop(Partition { queue: \"q\", partition: \"p\" })");
        assert_eq!(name(Method::Post, "/api/v1/lease/l/extend"), "ExtendLease(\"l\")");
        assert_eq!(name(Method::Head, "/api/v1/resources/queues/q"), "Queue(\"q\")");
        assert_eq!(name(Method::Delete, "/api/v1/resources/queues/q"), "DeleteQueue(\"q\")");
        let seek = "/api/v1/consumer-groups/g/queues/q/seek";
        assert_eq!(name(Method::Post, seek), "Seek(\"g\", \"q\", None)");
        let seek = "/api/v1/consumer-groups/g/queues/q/partitions/p/seek";
        assert_eq!(name(Method::Post, seek), "Seek(\"g\", \"q\", Some(\"p\"))");
        let group = "/api/v1/consumer-groups/g";
        assert_eq!(name(Method::Delete, group), "DeleteGroup(\"g\", None)");
        let one = "/api/v1/consumer-groups/g/queues/q";
        assert_eq!(name(Method::Delete, one), "DeleteGroup(\"g\", Some(\"q\"))");
        assert_eq!(name(Method::Get, "/"), "Front");
        assert_eq!(name(Method::Head, "/health"), "Observe(Health)");
        assert_eq!(name(Method::Head, "/api/v1/status"), "Observe(Status)");
        assert_eq!(name(Method::Get, "/api/v1/analytics/retention"), "Observe(Retention)");
        assert_eq!(name(Method::Post, "/auth/logout"), "Observe(Logout)");
        assert_eq!(name(Method::Post, "/api/v1/transaction"), "Transact");
        assert_eq!(name(Method::Get, "/api/v1/dlq"), "DeadLetters");
        assert_eq!(name(Method::Delete, "/api/v1/dlq"), "Inspect(PurgeDeadLetters)");
        let lagging = name(Method::Get, "/api/v1/consumer-groups/lagging");
        assert_eq!(lagging, "Inspect(LaggingGroups)");
        assert_eq!(name(Method::Head, "/api/v1/consumer-groups/g"), "Inspect(Group(\"g\"))");
        assert_eq!(name(Method::Get, "/api/v1/traces/names"), "Inspect(TraceNames)");
        let by_name = name(Method::Get, "/api/v1/traces/by-name/n");
        assert_eq!(by_name, "Inspect(TracesByName(\"n\"))");
        assert_eq!(name(Method::Get, "/api/v1/kv/ns/a/b/c"), "Unbuilt(\"kv\")");
        let deep = format!("/api/v1/kv/ns{}", "/a".repeat(40));
        assert_eq!(name(Method::Get, &deep), "Unbuilt(\"kv\")");
        assert_eq!(name(Method::Head, "/api/v1/messages"), "Inspect(Messages)");
    }

    #[test]
    fn what_is_not_in_the_table_is_unknown() {
        for (method, text) in [
            (Method::Get, "/api/v1/push"),
            (Method::Head, "/api/v1/pop/queue/q"),
            (Method::Post, "/api/v1/push/"),
            (Method::Get, "/api/v1"),
            (Method::Get, "/api/v1/kv/ns"),
            (Method::Get, "/favicon.ico"),
            (Method::Post, "/api/v1/messages/1/t/dlq"),
            (Method::Delete, "/api/v1/queues/q/clear"),
            (Method::Get, "/api/v1/status/buffers"),
            (Method::Get, "/api/v1/analytics/postgres-stats"),
            (Method::Post, "/api/v1/analytics/retention"),
            (Method::Options, "/api/v1/push"),
            (Method::Other, "/"),
            (Method::Get, "/a/b/c/d/e/f/g/h/i/j/k/l"),
        ] {
            assert_eq!(find(method, &path(text)), Route::Unknown, "{method:?} {text}");
        }
    }

    #[test]
    fn refusals_that_may_pass_say_when_to_come_back() {
        assert_eq!(status_of(ErrorCode::Overloaded), (429, Some(1)));
        assert_eq!(status_of(ErrorCode::StorageFull), (507, None));
        assert_eq!(status_of(ErrorCode::Draining).0, 503);
    }
}

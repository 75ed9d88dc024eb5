//! Who may do what: the level of every route, and which roles reach it.
//!
//! A level is a function of the method and of the same decoded path segments that the router goes
//! by, so there is no spelling of a path that one of them reads otherwise than the other. What is
//! not in the table needs `read-write`: a new route is never open by oversight.
//!
//! Levels are sets of roles, not a ladder: who may only write cannot read.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::http::Method;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// For everybody, without a token.
    Public,
    ReadOnly,
    WriteOnly,
    ReadWrite,
    Admin,
}

/// Roles that a token has, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Roles(u8);

impl Roles {
    pub const READ_ONLY: Self = Self(1);
    pub const WRITE_ONLY: Self = Self(2);
    pub const READ_WRITE: Self = Self(4);
    pub const ADMIN: Self = Self(8);

    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub fn reach(self, level: Level) -> bool {
        let enough = match level {
            Level::Public => return true,
            Level::ReadOnly => Self::READ_ONLY.0 | Self::READ_WRITE.0 | Self::ADMIN.0,
            Level::WriteOnly => Self::WRITE_ONLY.0 | Self::READ_WRITE.0 | Self::ADMIN.0,
            Level::ReadWrite => Self::READ_WRITE.0 | Self::ADMIN.0,
            Level::Admin => Self::ADMIN.0,
        };
        self.0 & enough != 0
    }
}

/// What the roles are called in this deployment's tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoleNames {
    pub admin: String,
    pub read_write: String,
    pub read_only: String,
    pub write_only: String,
}

impl RoleNames {
    pub fn of(&self, names: &[String]) -> Roles {
        let mut roles = Roles::default();
        for (known, role) in [
            (&self.admin, Roles::ADMIN),
            (&self.read_write, Roles::READ_WRITE),
            (&self.read_only, Roles::READ_ONLY),
            (&self.write_only, Roles::WRITE_ONLY),
        ] {
            if names.contains(known) {
                roles.add(role);
            }
        }
        roles
    }
}

/// The level of a request. The first match counts.
pub fn level(method: Method, path: &[Cow<'_, str>]) -> Level {
    use Method::{Delete, Get, Post};
    let method = if method == Method::Head { Get } else { method };
    let names: SmallVec<[&str; 8]> = path.iter().map(|segment| &**segment).collect();
    match (method, names.as_slice()) {
        (_, [] | ["health"] | ["metrics"] | ["metrics", "prometheus"] | ["assets", ..]) => {
            Level::Public
        }
        (_, ["auth", "me" | "login" | "logout"]) => Level::Public,
        (_, [name]) if name.starts_with("favicon") => Level::Public,

        (_, ["api", "v1", "system" | "internal", ..] | ["internal", ..]) => Level::Admin,
        (_, ["api", "v1", "stats", "refresh"] | ["stats", "refresh"]) => Level::Admin,
        (Delete, ["api", "v1", "consumer-groups", _, ..]) => Level::Admin,
        (Delete, ["api", "v1", "resources", "queues", _, ..]) => Level::Admin,
        (Delete, ["api", "v1", "dlq"]) => Level::Admin,

        (Get, ["status"]) => Level::ReadOnly,
        (
            Get,
            [
                "api",
                "v1",
                "status" | "analytics" | "resources" | "messages" | "consumer-groups" | "dlq"
                | "traces" | "why" | "kv" | "timers" | "raft",
                ..,
            ],
        ) => Level::ReadOnly,
        (Get, ["api", "v1", "ephemeral", "queues", ..]) => Level::ReadOnly,
        (Post, ["api", "v1", "fetch"] | ["api", "v1", "fetch", "offsets"]) => Level::ReadOnly,
        (Post, ["api", "v1", "partitions", "changed"]) => Level::ReadOnly,
        (Post, ["api", "v1", "resources", "kv", "list"]) => Level::ReadOnly,
        (Post, ["streams", "v1", "state", "get"]) => Level::ReadOnly,

        (Post, ["api", "v1", "push" | "timers"] | ["api", "v1", "ephemeral", "push"]) => {
            Level::WriteOnly
        }
        // Also every pop, which moves a cursor.
        _ => Level::ReadWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{Admin, Public, ReadOnly, ReadWrite, WriteOnly};
    use super::*;
    use crate::server::route::{self, Route};

    use Method::{Delete, Get, Head, Options, Other, Post, Put};

    /// Every route of the wire; `:` is one segment and `*` more than one.
    const ROUTES: &[(Method, &str, Level)] = &[
        (Post, "/api/v1/push", WriteOnly),
        (Get, "/api/v1/pop", ReadWrite),
        (Get, "/api/v1/pop/queue/:", ReadWrite),
        (Get, "/api/v1/pop/queue/:/partition/:", ReadWrite),
        (Post, "/api/v1/ack", ReadWrite),
        (Post, "/api/v1/ack/batch", ReadWrite),
        (Post, "/api/v1/transaction", ReadWrite),
        (Post, "/api/v1/lease/:/extend", ReadWrite),
        (Post, "/api/v1/configure", ReadWrite),
        (Post, "/api/v1/fetch", ReadOnly),
        (Post, "/api/v1/fetch/offsets", ReadOnly),
        (Post, "/api/v1/partitions/changed", ReadOnly),
        (Post, "/api/v1/kv", ReadWrite),
        (Get, "/api/v1/kv/:/*", ReadOnly),
        (Put, "/api/v1/kv/:/*", ReadWrite),
        (Delete, "/api/v1/kv/:/*", ReadWrite),
        (Post, "/api/v1/locks", ReadWrite),
        (Post, "/api/v1/timers", WriteOnly),
        (Get, "/api/v1/timers/:", ReadOnly),
        (Get, "/api/v1/timers/:/*", ReadOnly),
        (Delete, "/api/v1/timers/:/*", ReadWrite),
        (Get, "/streams/v1/*", ReadWrite),
        (Post, "/streams/v1/*", ReadWrite),
        (Post, "/streams/v1/queries", ReadWrite),
        (Post, "/streams/v1/cycle", ReadWrite),
        (Post, "/streams/v1/state/get", ReadOnly),
        (Get, "/api/v1/ephemeral/*", ReadWrite),
        (Post, "/api/v1/ephemeral/*", ReadWrite),
        (Delete, "/api/v1/ephemeral/*", ReadWrite),
        (Post, "/api/v1/ephemeral/push", WriteOnly),
        (Post, "/api/v1/ephemeral/ack", ReadWrite),
        (Post, "/api/v1/ephemeral/configure", ReadWrite),
        (Get, "/api/v1/ephemeral/queues", ReadOnly),
        (Get, "/api/v1/ephemeral/queues/:/depth", ReadOnly),
        (Delete, "/api/v1/ephemeral/queues/:", ReadWrite),
        (Get, "/api/v1/resources/overview", ReadOnly),
        (Get, "/api/v1/resources/namespaces", ReadOnly),
        (Get, "/api/v1/resources/tasks", ReadOnly),
        (Get, "/api/v1/resources/queues", ReadOnly),
        (Get, "/api/v1/resources/queues/:", ReadOnly),
        (Delete, "/api/v1/resources/queues/:", Admin),
        (Get, "/api/v1/resources/queues/:/depth", ReadOnly),
        (Get, "/api/v1/resources/queues/:/sizes", ReadOnly),
        (Get, "/api/v1/resources/partitions", ReadOnly),
        (Get, "/api/v1/resources/kv/namespaces", ReadOnly),
        (Post, "/api/v1/resources/kv/list", ReadOnly),
        (Get, "/api/v1/messages", ReadOnly),
        (Get, "/api/v1/messages/:/:", ReadOnly),
        (Delete, "/api/v1/messages/:/:", ReadWrite),
        (Post, "/api/v1/messages/:/:/retry", ReadWrite),
        (Get, "/api/v1/dlq", ReadOnly),
        (Delete, "/api/v1/dlq", Admin),
        (Post, "/api/v1/dlq/:/replay", ReadWrite),
        (Post, "/api/v1/traces", ReadWrite),
        (Get, "/api/v1/traces/*", ReadOnly),
        (Get, "/api/v1/traces/names", ReadOnly),
        (Get, "/api/v1/why", ReadOnly),
        (Get, "/api/v1/consumer-groups", ReadOnly),
        (Post, "/api/v1/consumer-groups/positions", ReadWrite),
        (Get, "/api/v1/consumer-groups/:", ReadOnly),
        (Delete, "/api/v1/consumer-groups/:", Admin),
        (Delete, "/api/v1/consumer-groups/:/queues/:", Admin),
        (Post, "/api/v1/consumer-groups/:/queues/:/seek", ReadWrite),
        (Post, "/api/v1/consumer-groups/:/queues/:/partitions/:/seek", ReadWrite),
        (Post, "/api/v1/consumer-groups/:/subscription", ReadWrite),
        (Post, "/api/v1/stats/refresh", Admin),
        (Get, "/status", ReadOnly),
        (Get, "/api/v1/status", ReadOnly),
        (Get, "/api/v1/status/queues", ReadOnly),
        (Get, "/api/v1/status/queues/:", ReadOnly),
        (Get, "/api/v1/status/analytics", ReadOnly),
        (Get, "/api/v1/analytics/system-metrics", ReadOnly),
        (Get, "/api/v1/analytics/worker-metrics", ReadOnly),
        (Get, "/api/v1/analytics/queue-lag", ReadOnly),
        (Get, "/api/v1/analytics/queue-ops", ReadOnly),
        (Get, "/api/v1/analytics/queue-parked-replicas", ReadOnly),
        (Get, "/api/v1/analytics/retention", ReadOnly),
        (Get, "/api/v1/analytics/workload", ReadOnly),
        (Get, "/api/v1/analytics/dlq-signatures", ReadOnly),
        (Get, "/api/v1/analytics/partition-liveness", ReadOnly),
        (Get, "/api/v1/system/kv-timers", Admin),
        (Post, "/api/v1/system/kv-timers", Admin),
        (Get, "/api/v1/system/ephemeral", Admin),
        (Post, "/api/v1/system/ephemeral", Admin),
        (Get, "/api/v1/system/shared-state", Admin),
        (Get, "/health", Public),
        (Get, "/metrics", Public),
        (Get, "/metrics/prometheus", Public),
        (Get, "/", Public),
    ];

    /// No routes here, but of a level that must not slip.
    const NO_ROUTES: &[(Method, &str, Level)] = &[
        (Get, "/api/v1/raft/status", ReadOnly),
        (Post, "/api/v1/raft/status", ReadWrite),
        (Post, "/api/v1/system/maintenance", Admin),
        (Get, "/internal/x", Admin),
        (Delete, "/internal/a/b", Admin),
        (Get, "/stats/refresh", Admin),
        (Get, "/auth/me", Public),
        (Post, "/auth/logout", Public),
        (Get, "/auth/other", ReadWrite),
        (Get, "/assets/app.js", Public),
        (Get, "/favicon.ico", Public),
        (Get, "/favicons/x", ReadWrite),
        (Get, "/api/v1/resources", ReadOnly),
        (Post, "/api/v1/resources/queues", ReadWrite),
        (Put, "/api/v1/push", ReadWrite),
        (Other, "/api/v1/dlq", ReadWrite),
        (Options, "/api/v1/push", ReadWrite),
        (Delete, "/api/v1/dlq/1", ReadWrite),
        (Delete, "/api/v1/traces", ReadWrite),
        (Get, "/api/v1", ReadWrite),
        (Get, "/anything", ReadWrite),
    ];

    fn path(text: &str) -> Vec<Cow<'_, str>> {
        let segment = |name: &'static str| Cow::Borrowed(name);
        text.split('/')
            .skip(1)
            .filter(|_| text != "/")
            .flat_map(|name| match name {
                ":" => vec![segment("x")],
                "*" => vec![segment("x"), segment("y")],
                name => vec![Cow::Owned(name.to_owned())],
            })
            .collect()
    }

    #[test]
    fn every_route_has_its_level() {
        for (method, text, wanted) in ROUTES {
            assert_eq!(level(*method, &path(text)), *wanted, "{method:?} {text}");
            assert_ne!(route::find(*method, &path(text)), Route::Unknown, "{method:?} {text}");
            if *method == Get {
                assert_eq!(level(Head, &path(text)), *wanted, "HEAD {text}");
            }
        }
        for (method, text, wanted) in NO_ROUTES {
            assert_eq!(level(*method, &path(text)), *wanted, "{method:?} {text}");
        }
    }

    #[test]
    fn no_route_that_is_still_to_come_is_missing_above() {
        for (method, pattern, name) in route::UNBUILT {
            let listed = ROUTES.iter().any(|(m, text, _)| (m, text) == (method, pattern));
            assert!(listed, "{method:?} {pattern} ({name})");
        }
    }

    #[test]
    fn what_the_router_takes_for_another_path_is_of_no_weaker_level() {
        for (method, text) in [
            (Delete, "/api/v1/DLQ"),
            (Delete, "//api/v1/dlq"),
            (Delete, "/api//v1/dlq"),
            (Delete, "/api/v1/dlq/"),
            (Get, "/API/v1/messages"),
            (Get, "//health"),
            (Get, "/health/"),
            (Get, "/Health"),
            (Get, "/metrics/prometheus/x"),
        ] {
            assert_eq!(level(method, &path(text)), ReadWrite, "{method:?} {text}");
            assert_eq!(route::find(method, &path(text)), Route::Unknown, "{method:?} {text}");
        }
    }

    #[test]
    fn levels_are_sets_of_roles() {
        let reach =
            |role: Roles| [ReadOnly, WriteOnly, ReadWrite, Admin].map(|level| role.reach(level));
        assert_eq!(reach(Roles::default()), [false; 4]);
        assert_eq!(reach(Roles::READ_ONLY), [true, false, false, false]);
        assert_eq!(reach(Roles::WRITE_ONLY), [false, true, false, false]);
        assert_eq!(reach(Roles::READ_WRITE), [true, true, true, false]);
        assert_eq!(reach(Roles::ADMIN), [true; 4]);
        let mut both = Roles::READ_ONLY;
        both.add(Roles::WRITE_ONLY);
        assert_eq!(reach(both), [true, true, false, false]);
        assert!(Roles::default().reach(Public));
    }
}

//! Lease extension: every live lease with that id, on every shard.

use std::rc::Rc;

use super::effect::Effects;
use super::group::CursorKey;
use super::shard::Shard;
use super::task::Task;
use super::turns::{Resource, Waiting};
use crate::base::buf::IoBuf;
use crate::base::ids::{LeaseId, ShardId, Token};
use crate::base::limits;
use crate::base::time::Now;
use crate::base::uuid;
use crate::model::error::Refusal;
use crate::model::peer::{PeerMsg, TaskId};
use crate::model::reply::{Extended, Reply};

/// An extension at the shard of its client.
#[derive(Debug)]
pub(super) struct ExtendTask {
    token: Token,
    left: usize,
    extended: Extended,
    refusal: Option<Refusal>,
}

impl<B: IoBuf> Shard<B> {
    pub(super) fn extend(
        &mut self,
        lease_id: &str,
        seconds: u32,
        token: Token,
        fx: &mut Effects<B>,
    ) {
        let nothing = Extended { renewed: 0, expires_at_us: None };
        let Some(lease_id) = uuid::parse(lease_id).map(LeaseId) else {
            return self.reply_durable(token, Reply::Extended(nothing));
        };
        let left = usize::from(self.config.shards);
        let extend = ExtendTask { token, left, extended: nothing, refusal: None };
        let task = self.new_task(Task::Extend(extend));
        for shard in (0..self.config.shards).map(ShardId) {
            self.send(shard, PeerMsg::Extend { task, lease_id, seconds }, fx);
        }
    }

    /// Extends what lives here. A lapsed lease cannot be revived.
    pub(super) fn extend_owned(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        lease_id: LeaseId,
        seconds: u32,
    ) {
        let keys = self.state.leases.get(&lease_id).cloned().unwrap_or_default();
        if self.must_wait(keys.iter().copied().map(Resource::Cursor)) {
            let touched = keys.into_iter().map(Resource::Cursor).collect();
            self.stand_in_line(touched, Waiting::Extend { from, task, lease_id, seconds });
            return;
        }
        self.extend_leases(now, from, task, lease_id, seconds);
    }

    pub(super) fn extend_leases(
        &mut self,
        now: Now,
        from: ShardId,
        task: TaskId,
        lease_id: LeaseId,
        seconds: u32,
    ) {
        let keys = self.state.leases.get(&lease_id).cloned().unwrap_or_default();
        let (mut renewed, mut earliest) = (0, None);
        let mut refusal = None;
        for key in keys {
            match self.extend_one(now, key, lease_id, seconds) {
                Ok(None) => {}
                Ok(Some(expires_us)) => {
                    renewed += 1;
                    earliest = Some(earliest.map_or(expires_us, |e: i64| e.min(expires_us)));
                }
                Err(error) => refusal = Some(error),
            }
        }
        let result = refusal.map_or(Ok((renewed, earliest)), Err);
        self.send_durable(from, PeerMsg::ExtendedPart { task, result });
    }

    /// The new expiry as wall time, if the lease lives.
    fn extend_one(
        &mut self,
        now: Now,
        key: CursorKey,
        lease_id: LeaseId,
        seconds: u32,
    ) -> Result<Option<i64>, Refusal> {
        let Some(mut cursor) = self.state.cursor(key).cloned() else { return Ok(None) };
        let lease = cursor.lease.as_mut().filter(|l| l.record.id == lease_id);
        let Some(lease) = lease.map(Rc::make_mut) else { return Ok(None) };
        if lease.reserved || lease.expires.passed(now) {
            return Ok(None);
        }
        let seconds = u64::from(seconds.clamp(1, limits::LEASE_SECONDS_MAX));
        let expires = now.after_us(seconds * 1_000_000).max(lease.expires);
        let (old_timer, grown) = (lease.timer, expires > lease.expires);
        if grown {
            lease.expires = expires;
            // As if granted now: a restart measures what is left from here.
            lease.record.granted_us = now.wall_us;
            lease.record.length_us = expires.0 - now.mono_us;
            let timer = self.lease_timer(key, expires);
            if let Some(lease) = cursor.lease.as_mut().map(Rc::make_mut) {
                lease.timer = Some(timer);
            }
            if let Err(refusal) = self.store_cursor(key, cursor, Vec::new()) {
                self.clear_timer(Some(timer));
                return Err(refusal);
            }
            self.clear_timer(old_timer);
        }
        Ok(Some(now.wall_at(expires)))
    }

    pub(super) fn extended(
        &mut self,
        task: TaskId,
        result: Result<(u32, Option<i64>), Refusal>,
        fx: &mut Effects<B>,
    ) {
        let Some(Task::Extend(extend)) = self.tasks.get_mut(&task) else { return };
        extend.left -= 1;
        match result {
            Ok((renewed, expires)) => {
                let total = &mut extend.extended;
                total.renewed += renewed;
                total.expires_at_us = match (total.expires_at_us, expires) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            Err(refusal) => extend.refusal = Some(refusal),
        }
        if extend.left > 0 {
            return;
        }
        let Some(Task::Extend(extend)) = self.tasks.remove(&task) else { return };
        let reply = match extend.refusal {
            Some(refusal) => Reply::Refused(refusal),
            None => Reply::Extended(extend.extended),
        };
        fx.reply(extend.token, reply);
    }
}

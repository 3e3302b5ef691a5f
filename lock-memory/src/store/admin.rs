//! Administration of the leases in the store.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{
    FencingToken, ForcedRelease, LockAdmin, LockEvent, LockEvents, LockFilter, LockInfo, LockKey, Loss, Result,
};
use distlock_engine::store::StoreEvent;

use super::{MemoryStore, Operation, State, events};

impl State {
    /// Takes the key away from its holder or minimum hold, and sends the events.
    pub(super) fn force_release(&mut self, now: Duration, key: &LockKey, reason: &str) -> Option<LockInfo> {
        let at = self.clock.wall(now);
        let record = self.records.get_mut(key)?;
        let victim = record.describe(now, key)?;
        record.force_release(now, ForcedRelease::from_info(&victim, at, reason));
        let token = FencingToken::new(record.token());
        if let Some(id) = victim.id.clone() {
            self.publish(StoreEvent::Gone { key: key.clone(), id: id.clone(), token, loss: Loss::ForceReleased });
            self.publish_lock_event(LockEvent::ForceReleased { key: key.clone(), id });
        }
        self.publish(StoreEvent::Freed { key: key.clone() });
        Some(victim)
    }

    /// Returns the locks after the key `after` that match and are not free, in no order.
    fn matching<'a>(
        &'a self,
        now: Duration,
        filter: &'a LockFilter,
        after: Option<&'a LockKey>,
    ) -> impl Iterator<Item = LockInfo> + 'a {
        let beyond = self.records.iter().filter(move |(key, _)| after.is_none_or(|after| *key > after));
        beyond
            .filter_map(move |(key, record)| record.describe(now, key))
            .filter(|info| filter.matches(&info.key, info.owner.as_deref()))
    }
}

#[async_trait]
impl LockAdmin for MemoryStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.call(Operation::Inspect, Some(key), |state, now| {
            Ok(state.records.get(key).and_then(|record| record.describe(now, key)))
        })
        .await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        self.call(Operation::ForceRelease, Some(key), |state, now| Ok(state.force_release(now, key, reason))).await
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        self.call(Operation::List, None, |state, now| {
            let mut found: Vec<_> = state.matching(now, filter, after).collect();
            found.sort_by(|a, b| a.key.cmp(&b.key));
            found.truncate(limit.get());
            Ok(found)
        })
        .await
    }

    async fn watch(&self) -> Result<LockEvents> {
        self.call(Operation::WatchLocks, None, |state, _| Ok(events::operator_stream(&state.lock_events))).await
    }

    /// Releases all of them in one step.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        filter.ensure_restricted()?;
        self.call(Operation::ReleaseMatching, None, |state, now| {
            // A minimum hold that continues after a release has no holder.
            let held: Vec<_> = state.matching(now, filter, None).filter(|info| info.id.is_some()).collect();
            Ok(held.iter().filter_map(|info| state.force_release(now, &info.key, reason)).count() as u64)
        })
        .await
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        self.call(Operation::History, Some(key), |state, _| {
            Ok(state.records.get(key).map(super::Record::history).unwrap_or_default())
        })
        .await
    }
}

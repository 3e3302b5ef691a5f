//! Administration of the leases in the store.

use std::future::ready;
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::style::yield_on_error;
use distlock_api::{AcquisitionId, ForcedRelease, LockAdmin, LockEvents, LockFilter, LockInfo, LockKey, Result};
use distlock_engine::record::ForceRelease;

use super::{MemoryStore, Operation, State, events};

impl State {
    /// Takes the key away from its holders or minimum hold, or from the holder `only`, and sends
    /// the events.
    pub(super) fn force_release(
        &mut self,
        now: Duration,
        key: &LockKey,
        only: Option<&AcquisitionId>,
        reason: &str,
    ) -> Option<LockInfo> {
        self.records.get(key)?;
        let mut request = ForceRelease::new(key.clone(), self.clock.wall(now), reason);
        request.holder = only.cloned();
        self.answer(key, |record| record.step(&request, now))
    }

    /// Takes a lock away from all of its holders that match. Returns how many there were.
    fn force_release_matching(&mut self, now: Duration, info: &LockInfo, filter: &LockFilter, reason: &str) -> u64 {
        let key = &info.key;
        // A minimum hold that continues after a release has no holder.
        let Some(id) = &info.id else { return 0 };
        if info.holders.is_empty() {
            return u64::from(self.force_release(now, key, Some(id), reason).is_some());
        }
        let matching = info.holders.iter().filter(|holder| filter.matches(key, holder.owner.as_deref()));
        matching.filter_map(|holder| self.force_release(now, key, Some(&holder.id), reason)).count() as u64
    }

    /// Returns the locks after the key `after` that match and are not free, in no order.
    fn matching<'a>(
        &'a self,
        now: Duration,
        filter: &'a LockFilter,
        after: Option<&'a LockKey>,
    ) -> impl Iterator<Item = LockInfo> + 'a {
        let beyond = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.records
            .range::<LockKey, _>(beyond)
            .filter_map(move |(key, record)| record.describe(key, now))
            .filter(|info| filter.matches_info(info))
    }
}

#[async_trait]
impl LockAdmin for MemoryStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.call(Operation::Administer, Some(key), |state, now| {
            Ok(state.records.get(key).and_then(|record| record.describe(key, now)))
        })
        .await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        self.call(Operation::Administer, Some(key), |state, now| Ok(state.force_release(now, key, None, reason))).await
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        self.call(Operation::Administer, Some(key), |state, now| Ok(state.force_release(now, key, Some(id), reason)))
            .await
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        self.call(Operation::Administer, None, |state, now| {
            Ok(state.matching(now, filter, after).take(limit.get()).collect())
        })
        .await
    }

    async fn watch(&self) -> Result<LockEvents> {
        self.call(Operation::WatchLocks, None, |state, _| Ok(events::operator_stream(&state.lock_events))).await
    }

    /// Releases all of them in one step.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        yield_on_error(ready(filter.ensure_restricted())).await?;
        self.call(Operation::Administer, None, |state, now| {
            let held: Vec<_> = state.matching(now, filter, None).collect();
            Ok(held.iter().map(|info| state.force_release_matching(now, info, filter, reason)).sum())
        })
        .await
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        self.call(Operation::Administer, Some(key), |state, _| {
            Ok(state.records.get(key).map(|record| record.history().collect()).unwrap_or_default())
        })
        .await
    }
}

//! The administration of a provider: inspects locks, and takes them away.

use std::num::NonZeroUsize;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use distlock_api::{
    FencingToken, ForcedRelease, Holder, ListOptions, LockAdmin, LockEvents, LockFilter, LockInfo, LockKey, LockList,
    Loss, Result, contained,
};
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt};

use super::MemoryProvider;
use super::entry::Entry;
use super::events::{EventSender, acquisition_id};
use super::history::History;
use super::state::Taken;
use super::turn::{TurnShard, pass_on};
use crate::store::events;

#[async_trait]
impl LockAdmin for MemoryProvider {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        Ok(self.info(key))
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let (hash, shard) = self.shared.shards.of(key);
        Ok(self.take_away(shard, hash, key, reason, |_| true))
    }

    /// The keys are found and sorted once, which a page by itself would repeat. The locks are read
    /// page by page.
    fn list(&self, options: ListOptions) -> LockList<'_> {
        let (filter, page_size) = options.into_parts();
        let pages = stream::unfold(None, move |keys: Option<std::vec::IntoIter<LockKey>>| {
            let mut keys = keys.unwrap_or_else(|| self.keys(&filter.prefix).into_iter());
            let page: Vec<LockKey> = keys.by_ref().take(page_size.get()).collect();
            let is_over = page.is_empty();
            let infos = page.iter().filter_map(|key| self.info(key));
            let infos: Vec<_> = infos.filter(|info| filter.matches(&info.key, info.owner.as_deref())).map(Ok).collect();
            ready((!is_over).then(|| (stream::iter(infos), Some(keys))))
        });
        Box::pin(pages.flatten())
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let mut found = self.matching(filter, after);
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found.truncate(limit.get());
        Ok(found)
    }

    async fn watch(&self) -> Result<LockEvents> {
        let events = self.shared.events.get_or_init(|| {
            let events = events::channel();
            let sender = EventSender {
                provider: self.shared.id,
                defaults: self.shared.defaults.clone(),
                events: events.clone(),
            };
            for shard in self.shared.shards.iter() {
                shard.lock().watch(sender.clone());
            }
            events
        });
        Ok(events::lock_events(events.subscribe()))
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        filter.ensure_restricted()?;
        let mut taken = 0;
        for LockInfo { key, .. } in self.matching(filter, None) {
            let (hash, shard) = self.shared.shards.of(&key);
            let still = |info: &LockInfo| info.id.is_some() && filter.matches(&info.key, info.owner.as_deref());
            taken += u64::from(self.take_away(shard, hash, &key, reason, still).is_some());
        }
        Ok(taken)
    }

    /// Returns the last five releases of the key, among the last 256 of all keys.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        Ok(self.history().of_key(key))
    }
}

impl MemoryProvider {
    /// Takes the key away if its present state is `meant`.
    fn take_away(
        &self,
        shard: &Arc<TurnShard>,
        hash: u64,
        key: &LockKey,
        reason: &str,
        meant: impl FnOnce(&LockInfo) -> bool,
    ) -> Option<LockInfo> {
        let (victim, taken) = {
            let mut locked = shard.lock_to_take_away();
            let victim = locked.state().find(hash, key).map(|entry| self.describe(entry)).filter(meant)?;
            // First, and under the same lock: a task that is woken by the release finds it in the
            // history, which has the order of the releases (C22).
            self.history().record(key.clone(), ForcedRelease::from_info(&victim, SystemTime::now(), reason));
            (victim, locked.force_release(hash, key)?)
        };
        let Taken { token, after } = taken;
        if let Some(signal) = after.signal {
            contained(|| {
                signal.send_replace(Some(Loss::ForceReleased));
            });
        }
        pass_on(shard, hash, token, after.next);
        Some(victim)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.shared.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn info(&self, key: &LockKey) -> Option<LockInfo> {
        let (hash, shard) = self.shared.shards.of(key);
        shard.lock().find(hash, key).map(|entry| self.describe(entry))
    }

    /// Returns the keys that are not free, in order.
    fn keys(&self, prefix: &str) -> Vec<LockKey> {
        let mut keys = Vec::new();
        for shard in self.shared.shards.iter() {
            let state = shard.lock();
            keys.extend(
                state.entries().filter(|entry| entry.key.as_str().starts_with(prefix)).map(|entry| entry.key.clone()),
            );
        }
        keys.sort_unstable();
        keys
    }

    fn matching(&self, filter: &LockFilter, after: Option<&LockKey>) -> Vec<LockInfo> {
        let of_shard = |shard: &Arc<TurnShard>| {
            let state = shard.lock();
            let beyond = state.entries().filter(|entry| after.is_none_or(|after| entry.key > *after));
            let infos = beyond.filter(|entry| entry.key.as_str().starts_with(&filter.prefix));
            let infos = infos.map(|entry| self.describe(entry));
            infos.filter(|info| filter.matches(&info.key, info.owner.as_deref())).collect::<Vec<_>>()
        };
        self.shared.shards.iter().flat_map(of_shard).collect()
    }

    fn describe(&self, entry: &Entry) -> LockInfo {
        let Entry { key, token, .. } = entry;
        let last = FencingToken::new(*token);
        if let Some(remaining) = entry.minimum_hold_left() {
            return LockInfo::new(key.clone(), None, last, remaining);
        }
        let Holder { owner, metadata, .. } = entry.holder().cloned().unwrap_or_default().or(&self.shared.defaults);
        let id = acquisition_id(self.shared.id, *token, key);
        LockInfo::new(key.clone(), Some(id), last, Duration::MAX)
            .with_holder(owner.as_deref().map(str::to_owned), metadata.as_deref().cloned().unwrap_or_default())
    }
}

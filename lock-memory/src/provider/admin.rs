//! The administration of a provider: inspects locks, and takes them away.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use distlock_api::style::yield_on_error;
use distlock_api::{
    AcquisitionId, FencingToken, ForcedRelease, Holder, ListOptions, LockAdmin, LockEvents, LockFilter, LockHolder,
    LockInfo, LockKey, LockList, Loss, Result,
};
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt};
use tokio::task::coop::consume_budget;

use super::MemoryProvider;
use super::entry::Entry;
use super::events::{EventSender, acquisition_id};
use super::history::History;
use super::holders::{HolderRef, Phase};
use super::turn::{TurnShard, settle_taken};
use crate::store::events;

/// Every call is answered without a wait, so each uses up some of its task's budget.
#[async_trait]
impl LockAdmin for MemoryProvider {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        consume_budget().await;
        Ok(self.info(key))
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        consume_budget().await;
        let (hash, shard) = self.shared.shards.of(key);
        Ok(self.take_away(shard, hash, key, reason, |_| true).map(|taken| taken.before))
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        consume_budget().await;
        let (hash, shard) = self.shared.shards.of(key);
        let is_meant = |victim: &Victim| victim.id.as_ref() == Some(id);
        Ok(self.take_away(shard, hash, key, reason, is_meant).map(|taken| taken.before))
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
            let infos: Vec<_> = infos.filter(|info| filter.matches_info(info)).map(Ok).collect();
            ready((!is_over).then(|| (stream::iter(infos), Some(keys))))
        });
        Box::pin(pages.flatten())
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        consume_budget().await;
        let mut found = self.matching(filter, after);
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found.truncate(limit.get());
        Ok(found)
    }

    async fn watch(&self) -> Result<LockEvents> {
        consume_budget().await;
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
        consume_budget().await;
        yield_on_error(ready(filter.ensure_restricted())).await?;
        let mut taken = 0;
        for LockInfo { key, .. } in self.matching(filter, None) {
            let (hash, shard) = self.shared.shards.of(&key);
            let still = |victim: &Victim| victim.id.is_some() && filter.matches(&key, victim.owner.as_deref());
            taken += self.take_away(shard, hash, &key, reason, still).map_or(0, |taken| taken.victims);
        }
        Ok(taken)
    }

    /// Returns the last five releases of the key, among the last 256 of all keys.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        consume_budget().await;
        Ok(self.history().of_key(key))
    }
}

/// A holder that a forced release may be meant for.
struct Victim {
    token: u64,
    /// `None` for the minimum hold of an exclusive guard that was released.
    id: Option<AcquisitionId>,
    owner: Option<String>,
}

/// What a forced release has taken away.
struct TakenAway {
    /// The lock as it was before.
    before: LockInfo,
    victims: u64,
}

impl MemoryProvider {
    /// Takes the key away from those of its present holders that are meant.
    fn take_away(
        &self,
        shard: &Arc<TurnShard>,
        hash: u64,
        key: &LockKey,
        reason: &str,
        is_meant: impl Fn(&Victim) -> bool,
    ) -> Option<TakenAway> {
        let (taken_away, taken) = {
            let mut locked = shard.lock();
            let (before, mut victims) = locked.find(hash, key).map(|entry| self.victims(entry))?;
            victims.retain(is_meant);
            if victims.is_empty() {
                return None;
            }
            let tokens: Vec<_> = victims.iter().map(|victim| victim.token).collect();
            let (at, count) = (SystemTime::now(), victims.len() as u64);
            // First, and under the same lock: a task that is woken by the release finds it in the
            // history, which has the order of the releases (C22).
            for Victim { id, owner, .. } in victims {
                self.history().record(key.clone(), ForcedRelease::new(id, owner, before.token, at, reason));
            }
            (TakenAway { before, victims: count }, locked.take_away(hash, key, &tokens, Loss::ForceReleased)?)
        };
        settle_taken(shard, hash, taken);
        Some(taken_away)
    }

    /// Returns the state of the key, and its holders.
    fn victims(&self, entry: &Entry) -> (LockInfo, Vec<Victim>) {
        let info = self.describe(entry);
        let victim = |grant: HolderRef<'_>| {
            let id = acquisition_id(self.shared.id, grant.token, &entry.key);
            let without_guard = grant.mode.is_exclusive() && grant.phase == Phase::MinimumHold;
            let owner = self.described(grant).0;
            let (id, owner) = if without_guard { (None, None) } else { (Some(id), owner) };
            Victim { token: grant.token, id, owner }
        };
        let victims = entry.grants().map(victim).collect();
        (info, victims)
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
            infos.filter(|info| filter.matches_info(info)).collect::<Vec<_>>()
        };
        self.shared.shards.iter().flat_map(of_shard).collect()
    }

    fn describe(&self, entry: &Entry) -> LockInfo {
        let Entry { key, token, .. } = entry;
        let (key, token) = (key.clone(), FencingToken::new(*token));
        if !entry.is_exclusive() {
            return self.describe_together(entry, key, token);
        }
        if let Some(remaining) = entry.minimum_hold_left() {
            return LockInfo::new(key, None, token, remaining);
        }
        let (owner, metadata) = entry.grants().next().map(|only| self.described(only)).unwrap_or_default();
        let id = acquisition_id(self.shared.id, token.get(), &key);
        LockInfo::new(key, Some(id), token, Duration::MAX).with_holder(owner, metadata)
    }

    /// Describes a key that is not held exclusively. A minimum hold whose guard was released counts
    /// as a holder.
    fn describe_together(&self, entry: &Entry, key: LockKey, token: FencingToken) -> LockInfo {
        let holder = |grant: HolderRef<'_>| {
            let id = acquisition_id(self.shared.id, grant.token, &entry.key);
            let remaining = grant.minimum_hold_left().unwrap_or(Duration::MAX);
            let (owner, metadata) = self.described(grant);
            LockHolder::new(id, grant.mode, FencingToken::new(grant.token), remaining).with_holder(owner, metadata)
        };
        let holders: Vec<_> = entry.grants().map(holder).collect();
        let first = holders.first().cloned();
        let remaining = holders.iter().map(|holder| holder.remaining).max().unwrap_or_default();
        let (id, owner, metadata) = match first {
            Some(LockHolder { id, owner, metadata, .. }) => (Some(id), owner, metadata),
            None => Default::default(),
        };
        LockInfo::new(key, id, token, remaining).with_holder(owner, metadata).with_holders(holders)
    }

    /// Returns the owner and the metadata of a holder.
    fn described(&self, grant: HolderRef<'_>) -> (Option<String>, BTreeMap<String, String>) {
        let holder = grant.holder().cloned().unwrap_or_default();
        let Holder { owner, metadata, .. } = holder.or(&self.shared.defaults);
        (owner.as_deref().map(str::to_owned), metadata.as_deref().cloned().unwrap_or_default())
    }
}

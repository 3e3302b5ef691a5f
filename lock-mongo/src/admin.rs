//! Looking at locks, and taking them away.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use async_trait::async_trait;
use distlock_api::store::AcquisitionId;
use distlock_api::{
    ErrorKind, FencingToken, ForcedRelease, LockAdmin, LockError, LockEvents, LockFilter, LockInfo, LockKey, Result,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::options::{ReadConcern, ReturnDocument};

use crate::calls::Budget;
use crate::error::{Effect, translate};
use crate::lease::{Forced, Keyed, Layout, Marked, State, Watcher};
use crate::store::{Change, MongoStore, millis, token};
use crate::topology::Deployment;

/// Each call, and each page of a list, is bounded by the builder's request timeout.
#[async_trait]
impl LockAdmin for MongoStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let budget = Budget::new(self.request_timeout);
        let records = self.records.clone_with_type::<Marked<State>>();
        let (filter, projection) = (self.layout.record(self.layout.identity(key)?), self.layout.state());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        let found = self.calls.run(budget, Effect::None, find).await.map_err(|error| error.with_key(key.clone()))?;
        let state = found.and_then(|found| found.answer).filter(|state| state.remaining > 0);
        state.map(|state| info(key, state)).transpose()
    }

    /// Neither opens a key that only a minimum hold keeps closed, nor says anything about one.
    ///
    /// The record keeps the last five: who lost the lease (acquisition and owner), its token, when, and up to 1,024 bytes of the reason.
    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let about = |error: LockError| error.with_key(key.clone());
        let budget = Budget::new(self.request_timeout);
        let deployment = self.topology.of(&self.database, budget.left()).await.map_err(about)?;
        let how = Change { upsert: false, returning: ReturnDocument::Before, deployment, session: None, budget };
        let before = self
            .change::<State>(
                self.layout.record(self.layout.identity(key)?),
                self.layout.force_release(reason),
                self.layout.state(),
                how,
            )
            .await
            .map_err(|failure| about(failure.into()))?;
        before.filter(|state| state.holder.is_some()).map(|state| info(key, state)).transpose()
    }

    /// One query. By owner it reads the index; without one, every record within the prefix that has not been purged.
    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let budget = Budget::new(self.request_timeout);
        let records = self.records.clone_with_type::<Keyed>();
        let (filter, projection) = (self.layout.listed(filter, after)?, self.layout.keyed_state());
        let limit = i64::try_from(limit.get()).unwrap_or(i64::MAX);
        let find = async move {
            let find = records.find(filter).projection(projection).sort(Layout::by_identity()).limit(limit);
            find.max_time(budget.on_server()).await?.try_collect().await
        };
        let found: Vec<Keyed> = self.calls.run(budget, Effect::None, find).await?;
        // A document whose `_id` no key names is locked by others.
        let known =
            found.into_iter().filter_map(|Keyed { identity, state }| Some((self.layout.key(&identity)?, state)));
        known.map(|(key, state)| info(&key, state)).collect()
    }

    /// A change stream: needs a replica set or a sharded cluster, and the privilege `changeStream`.
    ///
    /// The driver resumes it after a failure of the network or of a member. An expiry is told when another holder takes the lock over, or, of a grant
    /// that this stream has told, when the record is purged.
    async fn watch(&self) -> Result<LockEvents> {
        let budget = Budget::new(self.request_timeout);
        if self.topology.of(&self.database, budget.left()).await? == Deployment::Standalone {
            return Err(LockError::new(ErrorKind::Unsupported, "a standalone MongoDB server has no change streams"));
        }
        let (records, pipeline) = (self.records.clone(), self.layout.changes());
        let open = async move { records.watch().pipeline(pipeline).read_concern(ReadConcern::majority()).await };
        let changes = self.calls.run(budget, Effect::None, open).await?;
        let watcher = Watcher::new(self.layout.clone());
        let events =
            stream::unfold((Some(changes), watcher, VecDeque::new()), async |(changes, mut watcher, mut told)| {
                let mut changes = changes;
                loop {
                    if let Some(event) = told.pop_front() {
                        return Some((Ok(event), (changes, watcher, told)));
                    }
                    match changes.as_mut()?.next().await? {
                        Ok(change) => told.extend(watcher.events(&change)),
                        Err(error) => return Some((Err(translate(&error, Effect::None)), (None, watcher, told))),
                    }
                }
            });
        Ok(Box::pin(events))
    }

    /// One update. The records are changed one by one; each as by a forced release of it.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        filter.ensure_not_everything()?;
        let budget = Budget::new(self.request_timeout);
        let (records, filter, change) =
            (self.records.clone(), self.layout.held(filter)?, self.layout.force_release(reason));
        let update = async move { records.update_many(filter, change).await };
        Ok(self.calls.run(budget, Effect::Write, update).await?.matched_count)
    }

    /// The last five that the record remembers; none once it is purged.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let budget = Budget::new(self.request_timeout);
        let records = self.records.clone_with_type::<Marked<Forced>>();
        let (filter, projection) = (self.layout.record(self.layout.identity(key)?), self.layout.history());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        let found = self.calls.run(budget, Effect::None, find).await.map_err(|error| error.with_key(key.clone()))?;
        let entries = found.and_then(|found| found.answer).and_then(|forced| forced.entries).unwrap_or_default();
        let entry = |entry: crate::lease::ForcedEntry| {
            let (id, last) = (entry.id.map(AcquisitionId::new), FencingToken::new(token(entry.token)?));
            Ok(ForcedRelease::new(id, entry.owner, last, entry.at.to_system_time(), entry.reason))
        };
        entries.into_iter().map(entry).collect()
    }
}

fn info(key: &LockKey, state: State) -> Result<LockInfo> {
    let last = FencingToken::new(token(state.token.unwrap_or(0))?);
    let holder = state.holder.as_deref().map(AcquisitionId::new);
    let (remaining, owner, waiting) = (millis(state.remaining), state.owner.clone(), state.waiting);
    let info = LockInfo::new(key.clone(), holder, last, remaining).with_waiting(waiting);
    Ok(info.with_holder(owner, state.into_metadata()))
}

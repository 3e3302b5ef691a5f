//! Looking at locks, and taking them away.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use async_trait::async_trait;
use distlock_api::{
    AcquisitionId, ErrorKind, FencingToken, ForcedRelease, LockAdmin, LockError, LockEvents, LockFilter, LockInfo,
    LockKey, Result,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Bson, Document, from_document};
use mongodb::options::{ReadConcern, ReturnDocument};

use crate::budget::Budget;
use crate::calls::UpdateMany;
use crate::error::{Effect, not_a_record, translate};
use crate::lease::{Forced, Keyed, Layout, Marked, State, Watcher};
use crate::store::{BATCH, Change, MongoStore, millis, token};
use crate::topology::Deployment;

/// Each call, and each page of a list, is bounded by the builder's request timeout.
#[async_trait]
impl LockAdmin for MongoStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let budget = Budget::new(self.request_timeout);
        let about = |error: LockError| error.with_key(key.clone());
        let records = self.records.clone_with_type::<Marked<State>>();
        let identity = self.layout.identity(key)?;
        let (filter, projection) = (self.layout.record(identity.clone()), self.layout.state());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        let Some(found) = self.run(budget, Effect::None, find).await.map_err(about)? else {
            self.refuse_foreign(identity, budget).await.map_err(about)?;
            return Ok(None);
        };
        let state = found.answer.filter(|state| state.remaining > 0);
        state.map(|state| info(key, state)).transpose()
    }

    /// Also opens a key that only a minimum hold keeps closed.
    ///
    /// The record keeps the last five: who lost the lease (acquisition and owner), its token, when, and up to 1,024 bytes of the reason.
    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let about = |error: LockError| error.with_key(key.clone());
        let budget = Budget::new(self.request_timeout);
        let deployment = self.deployment_within(budget).await.map_err(about)?;
        let how = Change { upsert: false, returning: ReturnDocument::Before, deployment, session: None, budget };
        let identity = self.layout.identity(key)?;
        let (filter, pipeline) = (self.layout.record(identity.clone()), self.layout.force_release(reason));
        let before = self.change::<State>(filter, pipeline, self.layout.state(), how).await;
        let before = before.map_err(|failure| about(failure.into()))?;
        if before.is_none() {
            self.refuse_foreign(identity, budget).await.map_err(about)?;
        }
        before.filter(|state| state.remaining > 0).map(|state| info(key, state)).transpose()
    }

    /// One query. By owner it reads the index; without one, every record within the prefix that has not been purged.
    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let budget = Budget::new(self.request_timeout);
        let records = self.records.clone();
        let (filter, projection) = (self.layout.listed(filter, after)?, self.layout.listed_state());
        let limit = i64::try_from(limit.get()).unwrap_or(i64::MAX);
        let find = async move {
            let find = records.find(filter).projection(projection).sort(Layout::by_identity()).limit(limit);
            find.max_time(budget.on_server()).await?.try_collect().await
        };
        let found: Vec<Document> = self.run(budget, Effect::None, find).await?;
        // A document whose `_id` no key names is locked by others.
        Ok(found.into_iter().filter_map(|found| self.listed(found)).collect())
    }

    /// A change stream: needs a replica set or a sharded cluster, and the privilege `changeStream`.
    ///
    /// The driver resumes it after a failure of the network or of a member. An expiry is told when another holder takes the lock over, or, of a grant
    /// that this stream has told, when the record is purged.
    async fn watch(&self) -> Result<LockEvents> {
        let budget = Budget::new(self.request_timeout);
        if self.deployment_within(budget).await? == Deployment::Standalone {
            return Err(LockError::new(ErrorKind::Unsupported, "a standalone MongoDB server has no change streams"));
        }
        let (records, pipeline) = (self.records.clone(), self.layout.changes());
        let open = async move { records.watch().pipeline(pipeline).read_concern(ReadConcern::majority()).await };
        let changes = self.run(budget, Effect::None, open).await?;
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

    /// In batches, in the order of their identities: one query finds the next, one update releases
    /// those that match still, each as by a forced release of it. Locks that are taken meanwhile
    /// may stay.
    ///
    /// After an error the locks of the batches before are released; the error says how many. Called
    /// again it goes on with the others.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        filter.ensure_not_everything()?;
        self.change_all(self.layout.held(filter)?, self.layout.force_release(reason)).await
    }

    /// The last five that the record remembers; none once it is purged.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let budget = Budget::new(self.request_timeout);
        let records = self.records.clone_with_type::<Marked<Forced>>();
        let (filter, projection) = (self.layout.record(self.layout.identity(key)?), self.layout.history());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        let found = self.run(budget, Effect::None, find).await.map_err(|error| error.with_key(key.clone()))?;
        let entries = found.and_then(|found| found.answer).and_then(|forced| forced.entries).unwrap_or_default();
        let entry = |entry: crate::lease::ForcedEntry| {
            let (id, last) = (entry.id.map(AcquisitionId::new), FencingToken::new(token(entry.token)?));
            Ok(ForcedRelease::new(id, entry.owner, last, entry.at.to_system_time(), entry.reason))
        };
        entries.into_iter().map(entry).collect()
    }
}

impl MongoStore {
    /// Raises the tokens of all records of the collection to `floor`, and tells how many were below:
    /// the next grant of each key has a greater one. **Takes every lock away** whose tokens are below, as
    /// [`force_release`](LockAdmin::force_release) does. For data that was restored, together with
    /// [`token_floor`](crate::MongoProviderBuilder::token_floor), which also covers keys without a
    /// record: see [the runbook](crate#after-a-restore).
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a floor that leaves no room for tokens; when the
    /// store cannot be asked, or the outcome is unknown: then some records are raised. It can be called
    /// again.
    pub async fn raise_tokens(&self, floor: FencingToken) -> Result<u64> {
        let floor = crate::builder::checked_floor(floor)?;
        self.change_all(self.layout.below(floor), self.layout.raise(floor, "tokens were raised to a floor")).await
    }

    /// Changes all records that match, in batches, each only if it matches still, and tells how many.
    async fn change_all(&self, matching: Document, change: Vec<Document>) -> Result<u64> {
        let change: Bson = change.into();
        let (mut changed, mut last) = (0, None);
        loop {
            let so_far = |error: LockError| interrupted(error, changed);
            let identities = self.identities(&matching, last).await.map_err(so_far)?;
            last = identities.last().cloned();
            if last.is_none() {
                return Ok(changed);
            }
            let update = UpdateMany {
                filter: Layout::among(&matching, identities),
                change: change.clone(),
                array_filters: Vec::new(),
                hint: None,
            };
            changed += self.update_many(update, Budget::new(self.request_timeout)).await.map_err(so_far)?;
        }
    }

    /// What a list says of a document: also of one that is no record, or not what we write.
    fn listed(&self, found: Document) -> Option<LockInfo> {
        let key = self.layout.key(found.get("_id")?)?;
        let state = found.get_document("distlock").ok()?.clone();
        let read = from_document::<Keyed>(found).map_err(|error| odd(&state).unwrap_or_else(|| error.to_string()));
        let info = read.and_then(|Keyed { state, .. }| info(&key, state).map_err(|error| error.to_string()));
        let remaining = millis(state.get_i64("remaining").unwrap_or(0));
        Some(info.unwrap_or_else(|why| LockInfo::unreadable(key, remaining, why)))
    }

    /// Nothing was found: because there is nothing, or because the document there is no record.
    async fn refuse_foreign(&self, identity: Bson, budget: Budget) -> Result<()> {
        if self.layout.is_within() {
            return Ok(());
        }
        let found = self.found(identity, budget).await?;
        if found.is_some_and(|found| !found.is_record()) { Err(not_a_record()) } else { Ok(()) }
    }

    /// The identities of the next records that match, beyond `last`.
    async fn identities(&self, filter: &Document, last: Option<Bson>) -> Result<Vec<Bson>> {
        let budget = Budget::new(self.request_timeout);
        let limit = i64::try_from(BATCH.get()).unwrap_or(i64::MAX);
        let find = async {
            let find = self.records.find(Layout::beyond(filter, last)).projection(Layout::only_identity());
            find.sort(Layout::by_identity()).limit(limit).max_time(budget.on_server()).await?.try_collect().await
        };
        let found: Vec<Document> = self.run(budget, Effect::None, find).await?;
        Ok(found.into_iter().filter_map(Layout::identity_of).collect())
    }
}

/// Which field of a listed state is not what a record has there.
fn odd(state: &Document) -> Option<String> {
    if let Ok(found) = state.get_str("token") {
        return Some(format!("`fencingToken` is of type {found}, not long: the document is no lock record"));
    }
    let (holder, owner) = (("holder", "lockId"), ("owner", "owner"));
    let no_text = [holder, owner]
        .into_iter()
        .find(|(name, _)| !matches!(state.get(name), None | Some(Bson::Null | Bson::String(_))));
    no_text.map(|(_, field)| format!("`{field}` is no text"))
}

/// An error in the middle of a change of many.
fn interrupted(error: LockError, changed: u64) -> LockError {
    let message = format!("{error}; {changed} locks were changed before; call again for the others");
    let mut interrupted = LockError::new(error.kind(), message).with_disposition(error.disposition());
    if let Some(phase) = error.phase() {
        interrupted = interrupted.with_phase(phase);
    }
    interrupted.with_source(error)
}

fn info(key: &LockKey, state: State) -> Result<LockInfo> {
    let last = FencingToken::new(token(state.token.unwrap_or(0))?);
    let holder = state.holder.as_deref().map(AcquisitionId::new);
    let (remaining, owner, waiting) = (millis(state.remaining), state.owner.clone(), state.waiting);
    let info = LockInfo::new(key.clone(), holder, last, remaining).with_waiting(waiting);
    Ok(info.with_holder(owner, state.into_metadata()))
}

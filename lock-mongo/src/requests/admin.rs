//! Administration: inspection, forced releases, and raising tokens.

use std::future::ready;
use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_api::style::yield_on_error;
use distlock_api::{
    AcquisitionId, ErrorKind, FencingToken, ForcedRelease, LockError, LockFilter, LockHolder, LockInfo, LockKey, Result,
};
use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReturnDocument;

use super::foreign;
use crate::bson::from_document;
use crate::budget::Budget;
use crate::calls::{BATCH, ChangeOptions, Failure, UpdateMany};
use crate::error::Effect;
use crate::lease::plan::Step;
use crate::lease::{Forced, ForcedEntry, HolderState, Keyed, Layout, State, Victims};
use crate::numbers::{checked_floor, millis, token};
use crate::records::Records;

/// Returns the lock of a key, if it is held or kept closed.
pub(crate) async fn inspect(records: &Records, key: &LockKey) -> Result<Option<LockInfo>> {
    let layout = &records.layout;
    let budget = Budget::new(records.request_timeout);
    let with_key = |error: LockError| error.with_key(key.clone());
    let identity = layout.identity(key)?;
    let (filter, projection) = (layout.record(identity.clone()), layout.state());
    let Some(found) = records.find_one::<State>(filter, projection, budget).await.map_err(with_key)? else {
        foreign::refuse(records, identity, budget).await.map_err(with_key)?;
        return Ok(None);
    };
    let state = found.answer.filter(|state| state.remaining != 0);
    state.map(|state| info(key, state)).transpose()
}

/// Releases the lock of a key by force, and returns its state before.
pub(crate) async fn force_release(records: &Records, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
    force(records, key, Victims::All, reason).await
}

/// Takes the lock of a key from one of its holders by force, and returns its state before, if this
/// acquisition was a holder.
pub(crate) async fn force_release_holder(
    records: &Records,
    key: &LockKey,
    id: &AcquisitionId,
    reason: &str,
) -> Result<Option<LockInfo>> {
    let before = force(records, key, Victims::One(id), reason).await?;
    let held = |info: &LockInfo| info.id.as_ref() == Some(id) || info.holders.iter().any(|holder| holder.id == *id);
    Ok(before.filter(held))
}

async fn force(records: &Records, key: &LockKey, victims: Victims<'_>, reason: &str) -> Result<Option<LockInfo>> {
    let layout = &records.layout;
    let with_key = |error: LockError| error.with_key(key.clone());
    let budget = Budget::new(records.request_timeout);
    let deployment = records.deployment_within(budget).await.map_err(with_key)?;
    let identity = layout.identity(key)?;
    let (filter, pipeline) = (layout.record(identity.clone()), layout.force_release(reason, victims));
    let change = || {
        let options = ChangeOptions {
            returning: ReturnDocument::Before,
            // R31: the next holder loses nothing.
            is_bounded: true,
            ..ChangeOptions::new(deployment, None, budget)
        };
        records.change::<State>(Step::new(filter.clone(), pipeline.clone(), layout.state()), options)
    };
    let before = match change().await {
        Err(Failure::Late) => change().await,
        before => before,
    };
    let before = before.map_err(|failure| with_key(failure.into()))?;
    if before.is_none() {
        foreign::refuse(records, identity, budget).await.map_err(with_key)?;
    }
    before.filter(|state| state.remaining != 0).map(|state| info(key, state)).transpose()
}

/// Returns the next locks that match, after a key.
pub(crate) async fn page(
    records: &Records,
    filter: &LockFilter,
    after: Option<&LockKey>,
    limit: NonZeroUsize,
) -> Result<Vec<LockInfo>> {
    let layout = &records.layout;
    let (filter, projection) = (layout.listed(filter, after)?, layout.listed_state());
    let (mut page, mut last, mut missing) = (Vec::new(), None, Some(limit));
    while let Some(wanted) = missing {
        let found = match by_identity(records, Layout::beyond(&filter, last.clone()), projection.clone(), wanted).await
        {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                one_by_one(records, &filter, last, &projection, wanted).await?
            }
            found => found?,
        };
        let is_all = found.len() < wanted.get();
        last = found.last().and_then(|found| found.get("_id")).cloned();
        // A document whose `_id` no key names cannot be locked by this crate. The next one takes
        // its place, because a short page would end the list.
        page.extend(found.into_iter().filter_map(|found| listed(layout, found)));
        missing = NonZeroUsize::new(limit.get() - page.len()).filter(|_| !is_all);
    }
    Ok(page)
}

/// Releases the locks that match by force, and returns how many.
pub(crate) async fn release_matching(records: &Records, filter: &LockFilter, reason: &str) -> Result<u64> {
    yield_on_error(ready(filter.ensure_restricted())).await?;
    let victims = filter.owner.as_deref().map_or(Victims::All, Victims::Owner);
    change_all(records, records.layout.held(filter)?, records.layout.force_release(reason, victims)).await
}

/// Returns the forced releases that a record keeps.
pub(crate) async fn history(records: &Records, key: &LockKey) -> Result<Vec<ForcedRelease>> {
    let layout = &records.layout;
    let budget = Budget::new(records.request_timeout);
    let (filter, projection) = (layout.record(layout.identity(key)?), layout.history());
    let found = records.find_one::<Forced>(filter, projection, budget).await;
    let found = found.map_err(|error| error.with_key(key.clone()))?;
    let entries = found.and_then(|found| found.answer).map(Forced::into_entries).unwrap_or_default();
    let entry = |entry: ForcedEntry| {
        let (id, last) = (entry.id.map(AcquisitionId::new), token(entry.token)?);
        Ok(ForcedRelease::new(id, entry.owner, last, entry.at.to_system_time(), entry.reason))
    };
    entries.into_iter().map(entry).collect()
}

/// Raises the tokens of all records to a floor, and returns how many were below.
pub(crate) async fn raise_tokens(records: &Records, floor: FencingToken) -> Result<u64> {
    let layout = &records.layout;
    let floor = checked_floor(floor)?;
    change_all(records, layout.below(floor), layout.raise(floor, "tokens were raised to a floor")).await
}

/// Changes all records that match, in batches, and returns how many. A record is changed only if it
/// still matches, and in time (R31).
async fn change_all(records: &Records, matching: Document, change: Vec<Document>) -> Result<u64> {
    let change: Bson = change.into();
    let (mut changed, mut last) = (0, None);
    loop {
        let so_far = |error: LockError| interrupted(error, changed);
        let identities = identities(records, &matching, last).await.map_err(so_far)?;
        last = identities.last().cloned();
        if last.is_none() {
            return Ok(changed);
        }
        let budget = Budget::new(records.request_timeout);
        let bound = records.bound(budget).await.map_err(so_far)?;
        let update = UpdateMany {
            filter: Layout::among_until(&matching, identities, bound),
            change: change.clone(),
            array_filters: Vec::new(),
            hint: None,
        };
        let found = records.update_many(update, budget).await.map_err(so_far)?;
        // Others have changed all of them, or it came too late.
        if found == 0 && records.read_server_clock(budget).await.map_err(so_far)? >= bound {
            return Err(so_far(Failure::Late.into()));
        }
        changed += found;
    }
}

/// Returns the identities of the next records that match, after `last`.
async fn identities(records: &Records, matching: &Document, last: Option<Bson>) -> Result<Vec<Bson>> {
    let found = by_identity(records, Layout::beyond(matching, last), Layout::only_identity(), BATCH).await?;
    Ok(found.into_iter().filter_map(Layout::identity_of).collect())
}

/// Finds the first documents that match, in the order of their identities.
async fn by_identity(
    records: &Records,
    filter: Document,
    projection: Document,
    limit: NonZeroUsize,
) -> Result<Vec<Document>> {
    let budget = Budget::new(records.request_timeout);
    let limit = i64::try_from(limit.get()).unwrap_or(i64::MAX);
    let find = async {
        let find = records.collection.find(filter).projection(projection).sort(Layout::by_identity()).limit(limit);
        find.max_time(budget.on_server()).await?.try_collect().await
    };
    records.run(budget, Effect::None, find).await
}

/// Finds the same as [`by_identity`], with a command for each document: the server has failed to
/// compute with one of them, which is named instead (R32).
async fn one_by_one(
    records: &Records,
    filter: &Document,
    mut last: Option<Bson>,
    projection: &Document,
    limit: NonZeroUsize,
) -> Result<Vec<Document>> {
    let mut all = Vec::new();
    loop {
        let plain = Layout::beyond(&Layout::without_computation(filter), last);
        let identities = by_identity(records, plain, Layout::only_identity(), BATCH).await?;
        last = identities.last().cloned().and_then(Layout::identity_of);
        if last.is_none() {
            return Ok(all);
        }
        for identity in identities.into_iter().filter_map(Layout::identity_of) {
            let this = Layout::among(filter, vec![identity.clone()]);
            match by_identity(records, this, projection.clone(), NonZeroUsize::MIN).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    all.push(doc! { "_id": identity, "distlock": { UNCOMPUTABLE: why } });
                }
                found => all.extend(found?),
            }
            if all.len() == limit.get() {
                return Ok(all);
            }
        }
    }
}

/// The field of a listed state that the server could not compute.
const UNCOMPUTABLE: &str = "uncomputable";

/// Makes the entry of a list, also for a document that is no record, or an unreadable one.
fn listed(layout: &Layout, found: Document) -> Option<LockInfo> {
    let key = layout.key(found.get("_id")?)?;
    let state = found.get_document("distlock").ok()?.clone();
    let read = match malformed_field(&state) {
        Some(why) => Err(why),
        None => from_document::<Keyed>(found).map_err(|error| error.to_string()),
    };
    let info = read.and_then(|Keyed { state, .. }| info(&key, state).map_err(|error| error.to_string()));
    let remaining = millis(state.get_i64("remaining").unwrap_or(0));
    Some(info.unwrap_or_else(|why| LockInfo::unreadable(key, remaining, why)))
}

/// Why a key that is not free has no known end (R32).
const END_UNKNOWN: &str = "`expiresAt` or `closedUntil` is no date, or `expiresAt` is missing: another program has changed \
                           the record. No acquisition takes it; a forced release makes it usable";

/// Describes the field of a listed state that no record has in this form.
fn malformed_field(state: &Document) -> Option<String> {
    if let Ok(why) = state.get_str(UNCOMPUTABLE) {
        return Some(format!("MongoDB cannot compute with the record: {why}"));
    }
    if let Ok(found) = state.get_str("token") {
        return Some(format!("`fencingToken` is of type {found}, not long: the document is no lock record"));
    }
    let (holder, owner) = (("holder", "lockId"), ("owner", "owner"));
    let no_text = [holder, owner]
        .into_iter()
        .find(|(name, _)| !matches!(state.get(name), None | Some(Bson::Null | Bson::String(_))));
    let no_text = no_text.map(|(_, field)| format!("`{field}` is not a string"));
    no_text.or_else(|| (!has_remarks(state.get("meta"))).then(|| "`meta` is no list of names and values".to_owned()))
}

/// Returns whether remarks have the form of a record.
fn has_remarks(meta: Option<&Bson>) -> bool {
    let is_remark = |remark: &Bson| {
        remark.as_document().is_some_and(|remark| remark.get_str("k").is_ok() && remark.get_str("v").is_ok())
    };
    match meta {
        None | Some(Bson::Null) => true,
        Some(meta) => meta.as_array().is_some_and(|remarks| remarks.iter().all(is_remark)),
    }
}

/// Makes the error of a change of many records that failed in the middle.
fn interrupted(error: LockError, changed: u64) -> LockError {
    let message = format!("{error}; {changed} locks were changed before it; call again for the others");
    let mut interrupted = LockError::new(error.kind(), message).with_disposition(error.disposition());
    if let Some(phase) = error.phase() {
        interrupted = interrupted.with_phase(phase);
    }
    interrupted.with_source(error)
}

fn info(key: &LockKey, mut state: State) -> Result<LockInfo> {
    if state.remaining < 0 {
        return Ok(LockInfo::unreadable(key.clone(), Duration::ZERO, END_UNKNOWN));
    }
    let last = token(state.token.unwrap_or(0))?;
    let (remaining, waiting) = (millis(state.remaining), state.waiting);
    if let Some(holders) = state.holders.take() {
        let holders = holders.into_iter().map(holder).collect::<Result<Vec<_>>>()?;
        let id = holders.first().map(|first| first.id.clone());
        let info = LockInfo::new(key.clone(), id, last, remaining).with_waiting(waiting);
        let info = match holders.first() {
            Some(first) => info.with_holder(first.owner.clone(), first.metadata.clone()),
            None => info,
        };
        return Ok(info.with_holders(holders));
    }
    let (id, owner) = (state.holder.as_deref().map(AcquisitionId::new), state.owner.clone());
    let info = LockInfo::new(key.clone(), id, last, remaining).with_waiting(waiting);
    Ok(info.with_holder(owner, state.metadata()))
}

fn holder(state: HolderState) -> Result<LockHolder> {
    let holder =
        LockHolder::new(AcquisitionId::new(&*state.id), state.mode(), token(state.token)?, millis(state.remaining));
    let metadata = state.metadata();
    Ok(holder.with_holder(state.owner, metadata))
}

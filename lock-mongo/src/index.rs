//! The TTL index and the owner index.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use distlock_api::{ErrorKind, LockError, Result};
use futures_util::TryStreamExt;
use mongodb::bson::Document;
use mongodb::options::IndexOptions;
use mongodb::{Collection, IndexModel};
use tokio::time::timeout;

use crate::error::{Effect, is_index_conflict, lacks, translate, unanswered};
use crate::lease::Layout;

const PURGE: &str = "distlock_purge";
const OWNER: &str = "distlock_owner";
/// An index over a large collection takes long, and no operation waits for it.
const LIMIT: Duration = Duration::from_secs(60);
/// How often the indexes are created again. Records are purged an hour after their expiry at the
/// earliest, so this misses none.
const INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the indexes in place.
#[derive(Debug)]
pub(crate) struct Indexes {
    /// `None` in an application's own collection, where nothing is ever removed.
    purge_after: Option<Duration>,
    by_owner: bool,
    last_created: Mutex<Option<Instant>>,
    warned: Warned,
}

/// The warnings that have been logged. Each is logged once, although the indexes are created again
/// every [`INTERVAL`].
#[derive(Clone, Debug, Default)]
struct Warned(Arc<Mutex<HashSet<String>>>);

impl Warned {
    fn is_first(&self, warning: &str) -> bool {
        self.0.lock().expect("no code in here panics").insert(warning.to_owned())
    }
}

impl Indexes {
    pub(crate) fn new(purge_after: Option<Duration>, by_owner: bool) -> Self {
        Self { purge_after, by_owner, last_created: Mutex::new(None), warned: Warned::default() }
    }

    /// Creates the indexes in the background, after an operation that succeeded, if the last time
    /// is [`INTERVAL`] ago: a drop of the collection removes them. No operation waits for the task,
    /// and it ends by itself.
    pub(crate) fn ensure(&self, records: &Collection<Document>, layout: &Layout) {
        if self.purge_after.is_none() && !self.by_owner || !self.are_due(Instant::now()) {
            return;
        }
        let (purge, owner) = (self.purge(layout), self.owner(layout));
        let (records, warned) = (records.clone(), self.warned.clone());
        tokio::spawn(async move {
            // It logs its errors.
            let _ = create_all(&records, purge, owner, LIMIT, &warned).await;
        });
    }

    /// Creates the indexes now.
    ///
    /// # Errors
    /// If the TTL index cannot be created. One that exists with other options is left as it is, and
    /// a warning is logged.
    pub(crate) async fn create(&self, records: &Collection<Document>, layout: &Layout, limit: Duration) -> Result<()> {
        create_all(records, self.purge(layout), self.owner(layout), limit, &self.warned).await?;
        *self.last_created() = Some(Instant::now());
        Ok(())
    }

    /// Makes the indexes due, because the collection may have been dropped.
    pub(crate) fn forget(&self) {
        *self.last_created() = None;
    }

    fn are_due(&self, now: Instant) -> bool {
        let mut last_created = self.last_created();
        let are_due = last_created.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if are_due {
            *last_created = Some(now);
        }
        are_due
    }

    fn last_created(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_created.lock().expect("no code in here panics")
    }

    fn purge(&self, layout: &Layout) -> Option<IndexModel> {
        let (keys, of_records) = layout.purge_index();
        let options = IndexOptions::builder()
            .name(PURGE.to_owned())
            .expire_after(self.purge_after?)
            .partial_filter_expression(of_records)
            .build();
        Some(IndexModel::builder().keys(keys).options(options).build())
    }

    fn owner(&self, layout: &Layout) -> Option<IndexModel> {
        let (keys, of_records) = layout.owner_index();
        let options = IndexOptions::builder().name(OWNER.to_owned()).partial_filter_expression(of_records).build();
        self.by_owner.then(|| IndexModel::builder().keys(keys).options(options).build())
    }
}

async fn create_all(
    records: &Collection<Document>,
    purge: Option<IndexModel>,
    owner: Option<IndexModel>,
    limit: Duration,
    warned: &Warned,
) -> Result<()> {
    let purges = purge.is_some();
    let warn = |error: &LockError, what: &str| {
        if !warned.is_first(what) {
            return;
        }
        let (collection, source) = (records.namespace(), std::error::Error::source(error));
        tracing::warn!(%error, ?source, %collection, "{what}");
    };
    let purged = match purge {
        Some(purge) => create(records, purge, limit).await,
        None => Ok(()),
    };
    if let Some(owner) = owner
        && let Err(IndexFailure::Conflict(error) | IndexFailure::Other(error)) = create(records, owner, limit).await
    {
        warn(&error, "there is no owner index: the locks of an owner are found more slowly");
    }
    match purged {
        Ok(()) => {}
        Err(IndexFailure::Conflict(error)) => warn(&error, "the TTL index has other options than this provider"),
        Err(IndexFailure::Other(error)) => {
            warn(&error, "there is no TTL index: lock records are not purged");
            return Err(error);
        }
    }
    if purges {
        warn_of_others(records, limit, warned).await;
    }
    Ok(())
}

enum IndexFailure {
    /// An index with other options exists.
    Conflict(LockError),
    Other(LockError),
}

async fn create(records: &Collection<Document>, model: IndexModel, limit: Duration) -> Result<(), IndexFailure> {
    match timeout(limit, records.create_index(model).max_time(limit)).await {
        Err(_) => Err(IndexFailure::Other(unanswered(limit, Effect::None))),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if is_index_conflict(&error) => {
            let message = "the index exists with other options, and is left as it is. Set the same purge time in all \
                           programs, or drop the index, and it is created again. An index of an earlier version, \
                           without a partial filter, also removes documents that are no lock records";
            let source = translate(&error, Effect::None);
            Err(IndexFailure::Conflict(LockError::new(ErrorKind::Other, message).with_source(source)))
        }
        Ok(Err(error)) => Err(IndexFailure::Other(lacks("createIndex", &records.namespace().to_string(), &error))),
    }
}

/// Warns of an application's own TTL index, which may remove records whose tokens are needed (R6).
async fn warn_of_others(records: &Collection<Document>, limit: Duration, warned: &Warned) {
    let list = async { records.list_indexes().max_time(limit).await?.try_collect::<Vec<IndexModel>>().await };
    // Without the privilege listIndexes there is no warning.
    let Ok(Ok(indexes)) = timeout(limit, list).await else { return };
    for index in indexes {
        let Some(IndexOptions { name: Some(name), expire_after: Some(after), .. }) = index.options else { continue };
        if name != PURGE && warned.is_first(&name) {
            let collection = records.namespace();
            tracing::warn!(
                %collection,
                index = name,
                ?after,
                "another TTL index may remove lock records: tokens can repeat (R6), and held locks can be lost. Drop it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_created_again_after_the_interval_or_a_drop() {
        let indexes = Indexes::new(None, true);
        let start = Instant::now();
        assert!(indexes.are_due(start));
        assert!(!indexes.are_due(start + INTERVAL / 2));
        assert!(indexes.are_due(start + INTERVAL));
        assert!(!indexes.are_due(start + INTERVAL));
        indexes.forget();
        assert!(indexes.are_due(start + INTERVAL));
    }

    #[test]
    fn each_warning_is_logged_once() {
        let indexes = Indexes::new(None, true);
        let in_the_background = indexes.warned.clone();
        assert!(in_the_background.is_first("there is no owner index"));
        assert!(!indexes.warned.is_first("there is no owner index"));
        assert!(indexes.warned.is_first("another"));
    }
}

//! The TTL index and the owner indexes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, Result};
use futures_util::TryStreamExt;
use mongodb::bson::Document;
use mongodb::options::IndexOptions;
use mongodb::{Collection, IndexModel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{Effect, is_index_conflict, lacks, translate, unanswered};
use crate::lease::Layout;
use crate::pool::Pool;

/// How the names of all indexes of the library begin.
const OURS: &str = "distlock_";
const PURGE: &str = "distlock_purge";
const OWNER: &str = "distlock_owner";
/// The owners of keys that are not held exclusively.
const OWNERS: &str = "distlock_owners";
/// An index over a large collection takes long, and no operation waits for it.
const LIMIT: Duration = Duration::from_secs(60);
/// How often the indexes are created again. Records are purged an hour after their expiry at the
/// earliest, so this misses none.
const INTERVAL: Duration = Duration::from_secs(60);
/// How long the end of the creation is awaited at most, which usually takes some milliseconds. A
/// program that only ever runs for a moment should create the indexes, too.
const END: Duration = Duration::from_secs(2);

/// Keeps the indexes in place.
#[derive(Debug)]
pub(crate) struct Indexes {
    /// `None` in an application's own collection, where nothing is ever removed.
    purge_after: Option<Duration>,
    by_owner: bool,
    /// How long open records of work that is done once are kept; `None` for other records.
    keep_open: Option<Duration>,
    last_created: Mutex<Option<Instant>>,
    /// The task that creates them in the background.
    creating: Mutex<Option<JoinHandle<()>>>,
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
        Self {
            purge_after,
            by_owner,
            keep_open: None,
            last_created: Mutex::new(None),
            creating: Mutex::new(None),
            warned: Warned::default(),
        }
    }

    /// Keeps the indexes of work that is done once.
    pub(crate) fn of_once(keep_open: Duration) -> Self {
        Self { keep_open: Some(keep_open), ..Self::new(None, false) }
    }

    /// Creates the indexes in the background, after an operation that succeeded, if the last time
    /// is [`INTERVAL`] ago: a drop of the collection removes them. No operation waits for the task,
    /// and it ends by itself. Of all collections of a client, one at a time creates its indexes, on
    /// a connection that is taken from the calls.
    pub(crate) fn ensure(&self, pool: &Arc<Pool>, records: &Collection<Document>, layout: &Layout) {
        if self.purge_after.is_none() && !self.by_owner && self.keep_open.is_none() || !self.are_due(Instant::now()) {
            return;
        }
        let (purge, owners) = (self.purges(layout), self.owners(layout));
        let (records, warned, pool) = (records.clone(), self.warned.clone(), Arc::clone(pool));
        let creating = tokio::spawn(async move {
            let _turn = pool.creates_indexes.acquire().await;
            let _connection = pool.lanes.set_aside();
            // It logs its errors.
            let _ = create_all(&records, purge, owners, LIMIT, &warned).await;
        });
        *self.creating() = Some(creating);
    }

    /// Waits for the task that creates the indexes, and ends it if it takes long: half of the time
    /// that the engine gives to the end of a store. The driver panics in a task that calls it while
    /// the runtime ends.
    pub(crate) async fn close(&self, request_timeout: Duration) {
        let creating = self.creating().take();
        let Some(mut creating) = creating else { return };
        if timeout(END.min(request_timeout / 2), &mut creating).await.is_err() {
            creating.abort();
            let _ = creating.await;
            self.forget();
        }
    }

    /// Creates the indexes now.
    ///
    /// # Errors
    /// If the TTL index cannot be created. One that exists with other options is left as it is, and
    /// a warning is logged.
    pub(crate) async fn create(&self, records: &Collection<Document>, layout: &Layout, limit: Duration) -> Result<()> {
        create_all(records, self.purges(layout), self.owners(layout), limit, &self.warned).await?;
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

    fn creating(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.creating.lock().expect("no code in here panics")
    }

    /// The TTL indexes.
    fn purges(&self, layout: &Layout) -> Vec<IndexModel> {
        let purge = self.purge_after.map(|after| {
            let (keys, of_records) = layout.purge_index();
            ttl_index(PURGE, keys, of_records, after)
        });
        let once = self.keep_open.into_iter().flat_map(|keep_open| layout.once_indexes(keep_open));
        let once = once.map(|index| ttl_index(index.name, index.keys, index.of, index.expire_after));
        purge.into_iter().chain(once).collect()
    }

    /// The owner indexes.
    fn owners(&self, layout: &Layout) -> Vec<IndexModel> {
        if !self.by_owner {
            return Vec::new();
        }
        let index = |name: &str, (keys, of_records): (Document, Document)| {
            let options = IndexOptions::builder().name(name.to_owned()).partial_filter_expression(of_records).build();
            IndexModel::builder().keys(keys).options(options).build()
        };
        vec![index(OWNER, layout.owner_index()), index(OWNERS, layout.owners_index())]
    }
}

fn ttl_index(name: &str, keys: Document, of_records: Document, expire_after: Duration) -> IndexModel {
    let options = IndexOptions::builder()
        .name(name.to_owned())
        .expire_after(expire_after)
        .partial_filter_expression(of_records)
        .build();
    IndexModel::builder().keys(keys).options(options).build()
}

async fn create_all(
    records: &Collection<Document>,
    purges: Vec<IndexModel>,
    owners: Vec<IndexModel>,
    limit: Duration,
    warned: &Warned,
) -> Result<()> {
    let warn = |error: &LockError, what: &str| {
        if !warned.is_first(what) {
            return;
        }
        let (collection, source) = (records.namespace(), std::error::Error::source(error));
        contained(|| tracing::warn!(%error, ?source, %collection, "{what}"));
    };
    let ours = !purges.is_empty();
    let mut purged = Vec::new();
    for purge in purges {
        purged.push(create(records, purge, limit).await);
    }
    for owner in owners {
        if let Err(IndexFailure::Conflict(error) | IndexFailure::Other(error)) = create(records, owner, limit).await {
            warn(&error, "there is no owner index: the locks of an owner are found more slowly");
        }
    }
    for purged in purged {
        match purged {
            Ok(()) => {}
            Err(IndexFailure::Conflict(error)) => warn(&error, "the TTL index has other options than this provider"),
            Err(IndexFailure::Other(error)) => {
                warn(&error, "there is no TTL index: lock records are not purged");
                return Err(error);
            }
        }
    }
    if ours {
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
        if !name.starts_with(OURS) && warned.is_first(&name) {
            let collection = records.namespace();
            contained(|| {
                tracing::warn!(
                    %collection,
                    index = name,
                    ?after,
                    "another TTL index may remove lock records: tokens can repeat (R6), and held locks can be lost. \
                     Drop it"
                );
            });
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

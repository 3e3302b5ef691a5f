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
/// An index over a big collection takes its time, and no operation waits for it.
const LIMIT: Duration = Duration::from_secs(60);
/// Records are purged an hour after their expiry at the earliest, so nothing is missed meanwhile.
const AGAIN: Duration = Duration::from_secs(60);

/// Makes sure that the indexes are there.
#[derive(Debug)]
pub(crate) struct Indexes {
    /// None in collections of others: nothing of theirs is ever removed.
    purge_after: Option<Duration>,
    by_owner: bool,
    asked: Mutex<Option<Instant>>,
    warned: Warned,
}

/// The warnings that have been logged. Each is logged once, although the indexes are created again
/// every [`AGAIN`].
#[derive(Clone, Debug, Default)]
struct Warned(Arc<Mutex<HashSet<String>>>);

impl Warned {
    fn is_first(&self, warning: &str) -> bool {
        self.0.lock().expect("no code in here panics").insert(warning.to_owned())
    }
}

impl Indexes {
    pub(crate) fn new(purge_after: Option<Duration>, by_owner: bool) -> Self {
        Self { purge_after, by_owner, asked: Mutex::new(None), warned: Warned::default() }
    }

    /// Creates them in the background, after an operation that succeeded, if the last time is
    /// [`AGAIN`] ago: they go with a collection that is dropped. The one task of this crate: no
    /// operation waits for it, and it ends by itself.
    pub(crate) fn ensure(&self, records: &Collection<Document>, layout: &Layout) {
        if self.purge_after.is_none() && !self.by_owner || !self.are_due(Instant::now()) {
            return;
        }
        let (purge, owner) = (self.purge(layout), self.owner(layout));
        let (records, warned) = (records.clone(), self.warned.clone());
        tokio::spawn(async move {
            // It logs what goes wrong.
            let _ = create_all(&records, purge, owner, LIMIT, &warned).await;
        });
    }

    /// Creates them now.
    ///
    /// # Errors
    /// When there can be no index that purges. One that exists with other options is left as it is,
    /// and a warning is logged.
    pub(crate) async fn create(&self, records: &Collection<Document>, layout: &Layout, limit: Duration) -> Result<()> {
        create_all(records, self.purge(layout), self.owner(layout), limit, &self.warned).await?;
        *self.asked() = Some(Instant::now());
        Ok(())
    }

    /// The collection may be another one now.
    pub(crate) fn forget(&self) {
        *self.asked() = None;
    }

    fn are_due(&self, now: Instant) -> bool {
        let mut asked = self.asked();
        let are_due = asked.is_none_or(|asked| now.saturating_duration_since(asked) >= AGAIN);
        if are_due {
            *asked = Some(now);
        }
        are_due
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().expect("no code in here panics")
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
    // Without it the locks of an owner are found all the same, only slower.
    if let Some(owner) = owner
        && let Err(Failure::Conflict(error) | Failure::Other(error)) = create(records, owner, limit).await
    {
        warn(&error, "no index of the owners of locks");
    }
    match purged {
        Ok(()) => {}
        Err(Failure::Conflict(error)) => warn(&error, "the TTL index is not the one that was to be made"),
        Err(Failure::Other(error)) => {
            warn(&error, "records of locks are not purged: no TTL index");
            return Err(error);
        }
    }
    if purges {
        warn_of_others(records, limit, warned).await;
    }
    Ok(())
}

enum Failure {
    /// There is one with other options.
    Conflict(LockError),
    Other(LockError),
}

async fn create(records: &Collection<Document>, model: IndexModel, limit: Duration) -> Result<(), Failure> {
    match timeout(limit, records.create_index(model).max_time(limit)).await {
        Err(_) => Err(Failure::Other(unanswered(limit, Effect::None))),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if is_index_conflict(&error) => {
            let message = "an index for this exists with other options, and stays: set the same purge time everywhere, \
                           or drop it, and it is made again. One that an earlier version made without a partial \
                           filter also removes documents that are no lock records";
            let source = translate(&error, Effect::None);
            Err(Failure::Conflict(LockError::new(ErrorKind::Other, message).with_source(source)))
        }
        Ok(Err(error)) => Err(Failure::Other(lacks("createIndex", &records.namespace().to_string(), &error))),
    }
}

/// An application's own TTL index may remove records while their tokens must be remembered (R6).
async fn warn_of_others(records: &Collection<Document>, limit: Duration, warned: &Warned) {
    let list = async { records.list_indexes().max_time(limit).await?.try_collect::<Vec<IndexModel>>().await };
    // Without the privilege there is no warning: the locks work all the same.
    let Ok(Ok(indexes)) = timeout(limit, list).await else { return };
    for index in indexes {
        let Some(IndexOptions { name: Some(name), expire_after: Some(after), .. }) = index.options else { continue };
        if name != PURGE && warned.is_first(&name) {
            let collection = records.namespace();
            tracing::warn!(
                %collection,
                index = name,
                ?after,
                "another TTL index may remove lock records: tokens may go back (R6), and held locks be lost"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_made_once_again_after_a_while_or_a_drop() {
        let indexes = Indexes::new(None, true);
        let start = Instant::now();
        assert!(indexes.are_due(start));
        assert!(!indexes.are_due(start + AGAIN / 2));
        assert!(indexes.are_due(start + AGAIN));
        assert!(!indexes.are_due(start + AGAIN));
        indexes.forget();
        assert!(indexes.are_due(start + AGAIN));
    }

    #[test]
    fn each_warning_is_logged_once() {
        let indexes = Indexes::new(None, true);
        let in_the_background = indexes.warned.clone();
        assert!(in_the_background.is_first("no index of the owners of locks"));
        assert!(!indexes.warned.is_first("no index of the owners of locks"));
        assert!(indexes.warned.is_first("another"));
    }
}

//! The indexes: one that removes records which nobody uses any more, one that finds an owner's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::bson::Document;
use mongodb::options::IndexOptions;
use mongodb::{Collection, IndexModel};
use tokio::time::timeout;

use crate::error::{Effect, is_index_conflict, translate, unanswered};
use crate::lease::Layout;

const PURGE: &str = "distlock_purge";
const OWNER: &str = "distlock_owner";
/// An index over a big collection takes its time, and nobody waits for it.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes sure, once per process and collection, that the indexes are there.
#[derive(Debug)]
pub(crate) struct Indexes {
    /// None in collections of others: nothing of theirs is ever removed.
    purge_after: Option<Duration>,
    by_owner: bool,
    asked: AtomicBool,
}

impl Indexes {
    pub(crate) fn new(purge_after: Option<Duration>, by_owner: bool) -> Self {
        Self { purge_after, by_owner, asked: AtomicBool::new(false) }
    }

    /// Creates them in the background, after an operation that succeeded. The one task of this crate: nobody waits for it, and it ends by itself.
    pub(crate) fn ensure(&self, records: &Collection<Document>, layout: &Layout) {
        if self.asked.load(Ordering::Relaxed) || self.asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (purge, owner) = (self.purge(layout), self.owner(layout));
        let records = records.clone();
        tokio::spawn(async move {
            if let Some(purge) = purge
                && let Err(error) = create(&records, purge, LIMIT).await
            {
                let collection = records.namespace();
                tracing::warn!(%error, source = ?std::error::Error::source(&error), %collection, "records of locks are not purged: no TTL index");
            }
            create_for_owners(&records, owner, LIMIT).await;
        });
    }

    /// Creates them now. Only the one that purges is worth an error.
    pub(crate) async fn create(&self, records: &Collection<Document>, layout: &Layout, limit: Duration) -> Result<()> {
        let purge = match self.purge(layout) {
            Some(purge) => create(records, purge, limit).await,
            None => Ok(()),
        };
        create_for_owners(records, self.owner(layout), limit).await;
        purge?;
        self.asked.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn purge(&self, layout: &Layout) -> Option<IndexModel> {
        let options = IndexOptions::builder().name(PURGE.to_owned()).expire_after(self.purge_after?).build();
        Some(IndexModel::builder().keys(layout.purge_index()).options(options).build())
    }

    fn owner(&self, layout: &Layout) -> Option<IndexModel> {
        let (keys, of_records) = layout.owner_index();
        let options = IndexOptions::builder().name(OWNER.to_owned()).partial_filter_expression(of_records).build();
        self.by_owner.then(|| IndexModel::builder().keys(keys).options(options).build())
    }
}

/// Without it the locks of an owner are found all the same, only slower.
async fn create_for_owners(records: &Collection<Document>, model: Option<IndexModel>, limit: Duration) {
    let Some(model) = model else { return };
    if let Err(error) = create(records, model, limit).await {
        let collection = records.namespace();
        tracing::warn!(%error, source = ?std::error::Error::source(&error), %collection, "no index of the owners of locks");
    }
}

async fn create(records: &Collection<Document>, model: IndexModel, limit: Duration) -> Result<()> {
    match timeout(limit, records.create_index(model).max_time(limit)).await {
        Err(_) => Err(unanswered(limit, Effect::None)),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if is_index_conflict(&error) => {
            let message = "an index for this exists with other options: drop it, or set the same purge time everywhere";
            Err(LockError::new(ErrorKind::Other, message).with_source(translate(&error, Effect::None)))
        }
        Ok(Err(error)) => Err(translate(&error, Effect::None)),
    }
}

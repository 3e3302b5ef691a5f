//! The builder of work that is done once. It makes no I/O.

use std::fmt;
use std::time::Duration;

use distlock_api::{LockError, Result};
use mongodb::Database;

use super::MongoOnce;
use crate::builder::common::{Common, common_setters};
use crate::documents::DocumentLocks;
use crate::index::Indexes;
use crate::lease::{Layout, is_once, new_once};
use crate::records::IfMissing;

const DEFAULT_COLLECTION: &str = "once";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEFAULT_KEEP_INTERRUPTED: Duration = Duration::from_secs(30 * DAY.as_secs());
/// If a record is purged earlier, its tokens can repeat (R6).
const MIN_KEEP_INTERRUPTED: Duration = Duration::from_secs(60 * 60);
/// `expireAfterSeconds` is a 32-bit number.
const MAX_KEEP_INTERRUPTED: Duration = Duration::from_secs(i32::MAX as u64);

impl MongoOnce {
    /// Returns the builder of records in a database. The read and write concerns of its client are
    /// not used.
    pub fn builder(database: Database) -> MongoOnceBuilder {
        let common = Common::new(database.client().clone(), database.name(), DEFAULT_COLLECTION);
        MongoOnceBuilder { common, keep_interrupted: DEFAULT_KEEP_INTERRUPTED }
    }
}

/// The builder of a [`MongoOnce`]. Made by [`MongoOnce::builder`].
///
/// [`build`](Self::build) sends nothing; [`connect`](Self::connect) reports a wrong address,
/// credential or privilege.
#[derive(Clone)]
#[must_use = "nothing is made until `build` is called"]
pub struct MongoOnceBuilder {
    common: Common,
    keep_interrupted: Duration,
}

impl MongoOnceBuilder {
    /// Sets the collection. All processes that share the work must name the same, and nothing else
    /// belongs into it. Defaults to `once`.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.common.collection = name.into();
        self
    }

    /// Sets how long a key without an outcome is kept after its last lease, in whole seconds.
    /// Defaults to 30 days; the shortest is 1 h.
    ///
    /// After this time interrupted work counts as never begun, also for
    /// [`at_most_once`](distlock_recipes::once::BeginOnce::at_most_once). The provider that creates
    /// the TTL index of the collection decides; one with another setting logs a warning.
    pub fn keep_interrupted(mut self, time: Duration) -> Self {
        self.keep_interrupted = time;
        self
    }

    common_setters!();

    /// Makes it.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a name that MongoDB does not
    /// allow, a time for interrupted work below 1 h, a request timeout of zero, or an option that
    /// the lease engine refuses.
    pub fn build(self) -> Result<MongoOnce> {
        if self.keep_interrupted < MIN_KEEP_INTERRUPTED || self.keep_interrupted > MAX_KEEP_INTERRUPTED {
            return Err(LockError::invalid_options(format!(
                "keep_interrupted is {:?}, and must be at least {MIN_KEEP_INTERRUPTED:?}, because the tokens of a record \
                 that is purged earlier can repeat, and at most {MAX_KEEP_INTERRUPTED:?}",
                self.keep_interrupted
            )));
        }
        let indexes = Indexes::of_once(Duration::from_secs(self.keep_interrupted.as_secs()));
        let if_missing = IfMissing::InsertOwned { default: new_once(), filter: is_once() };
        let store = self.common.store(Layout::of_once(), if_missing, indexes)?;
        let (lease, name) = (self.common.engine.lease, self.common.engine.instrumented.clone());
        Ok(MongoOnce::new(DocumentLocks::new(self.common.provider(store)?), lease, name))
    }

    /// Makes it, and [prepares](MongoOnce::prepare) the deployment.
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`MongoOnce::prepare`].
    ///
    /// # Cancel safety
    /// As [`MongoOnce::prepare`].
    pub async fn connect(self) -> Result<MongoOnce> {
        let once = self.build()?;
        once.prepare().await?;
        Ok(once)
    }
}

impl fmt::Debug for MongoOnceBuilder {
    /// Without the client, whose options contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MongoOnceBuilder");
        self.common.describe(&mut shown);
        shown.field("keep_interrupted", &self.keep_interrupted).finish_non_exhaustive()
    }
}

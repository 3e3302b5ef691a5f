//! Building a provider, without I/O.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LeaseOptions, Result};
use distlock_engine::{HandOff, QueueOptions};
use mongodb::{Client, Database};

use crate::index::Indexes;
use crate::lease::Layout;
use crate::provider::MongoProvider;
use crate::records::Absent;
use crate::store::MongoStore;

pub(crate) mod common;

use common::{Common, common_setters, refuse};

const DEFAULT_DATABASE: &str = "distlock";
const DEFAULT_COLLECTION: &str = "locks";
/// Before that, tokens of a purged record could come back, and a queue be lost (R6).
const MIN_PURGE_AFTER: Duration = Duration::from_secs(60 * 60);
/// `expireAfterSeconds` is a 32-bit number.
const MAX_PURGE_AFTER: Duration = Duration::from_secs(i32::MAX as u64);

impl MongoProvider {
    /// A provider in a database. Its client's read and write concerns are not used: locks need
    /// their own.
    pub fn builder(database: Database) -> MongoProviderBuilder {
        MongoProviderBuilder::new(database.client().clone(), Some(database.name()))
    }

    /// A provider in the database `distlock` of a client, unless
    /// [another](MongoProviderBuilder::database) is named.
    pub fn builder_from_client(client: &Client) -> MongoProviderBuilder {
        MongoProviderBuilder::new(client.clone(), None)
    }
}

/// Makes a [`MongoProvider`]. Nothing is sent before the first lock is acquired, or
/// [`MongoProvider::connect`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MongoProviderBuilder {
    common: Common,
    purge_after: Duration,
    owner_index: bool,
}

impl MongoProviderBuilder {
    fn new(client: Client, database: Option<&str>) -> Self {
        let common = Common::new(client, database.unwrap_or(DEFAULT_DATABASE), DEFAULT_COLLECTION);
        Self { common, purge_after: MIN_PURGE_AFTER, owner_index: true }
    }

    /// The database. Defaults to the one that the builder was made with, or `distlock`.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.common.database = name.into();
        self
    }

    /// The lock collection; all who share locks name the same. Defaults to `locks`.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.common.collection = name.into();
        self
    }

    /// Creates no index of the owners. It makes
    /// [listing and releasing](distlock_api::LockAdmin::release_owner) by owner quick, and costs
    /// each acquisition and release a little on the server. Defaults to creating it.
    pub fn without_owner_index(mut self) -> Self {
        self.owner_index = false;
        self
    }

    /// Respects the locks of an earlier program in the same collection until they expire, and then
    /// makes them records. Such a lock is a document with the key as `_id` and an `expiresAt` that
    /// is a date; waiters ask until then. Its other fields are dropped when the key is first
    /// acquired.
    ///
    /// For a change of programs, not for both at once: stop the earlier one first, because it does
    /// not know when our locks are free. Defaults to an error
    /// ([`Corrupt`](distlock_api::ErrorKind::Corrupt)) for every document that is no lock record,
    /// and to leaving it as it is.
    pub fn adopt_foreign_locks(mut self) -> Self {
        self.common.adopts_foreign = true;
        self
    }

    /// How long after its expiry a record is removed by the server, in whole seconds. Defaults to 1
    /// h, which is also the shortest.
    ///
    /// The first to create the collection's TTL index decides; a provider that wants another time
    /// logs a warning and goes on.
    pub fn purge_after(mut self, grace: Duration) -> Self {
        self.purge_after = grace;
        self
    }

    common_setters!();

    /// The provider.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions): a name that is not one, a purge
    /// time below 1 h, a request timeout of zero, or what the lease engine refuses.
    pub fn build(self) -> Result<MongoProvider> {
        let store = self.store()?;
        self.common.provider(store)
    }

    /// The store alone, for an engine of one's own; lease terms, owner and poll interval are not
    /// its business.
    ///
    /// # Errors
    /// As [`build`](Self::build), except for what concerns the engine.
    pub fn build_store(self) -> Result<MongoStore> {
        self.store()
    }

    fn store(&self) -> Result<MongoStore> {
        if self.purge_after < MIN_PURGE_AFTER {
            return refuse(format!(
                "records must not be purged before {MIN_PURGE_AFTER:?} after their expiry, not {:?}: tokens could repeat",
                self.purge_after
            ));
        }
        if self.purge_after > MAX_PURGE_AFTER {
            return refuse(format!("a purge time of {:?} is above the longest, {MAX_PURGE_AFTER:?}", self.purge_after));
        }
        let indexes = Indexes::new(Some(Duration::from_secs(self.purge_after.as_secs())), self.owner_index);
        self.common.store(Layout::new(""), Absent::Record, indexes)
    }
}

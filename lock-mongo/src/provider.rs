//! The provider: the store under the lease engine.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::{AcquireOptions, Acquired, LockKey, LockProvider, Result, delegate_provider};
use distlock_engine::LeaseProvider;

use crate::store::MongoStore;

/// Distributed locks in a MongoDB collection. Clones are the same provider.
///
/// See the [crate's documentation](crate) for what it needs and what it promises.
#[derive(Clone)]
pub struct MongoProvider {
    store: Arc<MongoStore>,
    engine: LeaseProvider,
}

impl MongoProvider {
    pub(crate) fn new(store: Arc<MongoStore>, engine: LeaseProvider) -> Self {
        Self { store, engine }
    }

    /// Checks the connection, the deployment and the privileges `find`, `update` and `insert`, and
    /// creates the indexes, which takes the privilege `createIndex`, before the first lock is
    /// needed. Optional.
    ///
    /// # Errors
    /// As [`MongoStore::connect`].
    ///
    /// # Cancel safety
    /// Cancel safe: what was found out is kept, the index may be made nevertheless.
    pub async fn connect(&self) -> Result<()> {
        self.store.connect().await
    }

    pub(crate) fn engine(&self) -> &LeaseProvider {
        &self.engine
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<MongoStore> {
        &self.store
    }
}

impl fmt::Display for MongoProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MongoDB({})", self.store.records.collection.namespace())
    }
}

impl fmt::Debug for MongoProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoProvider").field("store", &self.store).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockProvider for MongoProvider {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        self.engine.acquire_with(key, options).await
    }

    delegate_provider!(this => this.engine; acquire_now, capabilities, accounting, admin, close);
}

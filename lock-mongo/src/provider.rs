//! The provider: the store under the lease engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{AcquireOptions, Acquired, LockKey, LockProvider, Result, delegate_provider};
use distlock_engine::LeaseProvider;

use crate::store::MongoStore;

/// Distributed locks in a MongoDB collection. Clones are the same provider.
///
/// [`connect`](Self::connect) makes one of a connection string,
/// [`builder_from_uri`](Self::builder_from_uri) also with options, and [`builder`](Self::builder)
/// with a client that the application has already. See the [crate's documentation](crate) for what
/// it needs and what it promises.
#[derive(Clone)]
pub struct MongoProvider {
    store: Arc<MongoStore>,
    engine: LeaseProvider,
}

impl MongoProvider {
    pub(crate) fn new(store: Arc<MongoStore>, engine: LeaseProvider) -> Self {
        Self { store, engine }
    }

    /// The shortest ttl that a provider accepts: 1 s. The answer of a server that is loaded, far
    /// away or in the middle of a fail-over may take longer than a shorter lease lasts, and such a
    /// lease is never held. Shorter ones are refused before any I/O, unless a test
    /// [allows](crate::MongoProviderBuilder::min_ttl) them.
    pub const MIN_TTL: Duration = Duration::from_secs(1);

    /// Connects to the deployment of a connection string, and [prepares](Self::prepare) it for
    /// locks. The options are the defaults of
    /// [`MongoProviderBuilder`](crate::MongoProviderBuilder).
    ///
    /// The database is the one in the path of the connection string, or `distlock` if the path has
    /// none. All processes that share locks must name the same. To set options, see
    /// [`builder_from_uri`](Self::builder_from_uri).
    ///
    /// ```no_run
    /// use distlock_api::{LockError, LockProviderExt};
    /// use distlock_mongo::MongoProvider;
    ///
    /// async fn nightly() -> Result<(), LockError> {
    ///     let locks = MongoProvider::connect("mongodb://db1,db2,db3/shop?replicaSet=rs0").await?;
    ///     locks.acquire("jobs/nightly").run(async |token| println!("token {token}")).await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`builder_from_uri`](Self::builder_from_uri) and [`prepare`](Self::prepare).
    ///
    /// # Cancel safety
    /// Cancel safe: the client is dropped, and the indexes may be made nevertheless.
    pub async fn connect(uri: impl AsRef<str>) -> Result<Self> {
        Self::builder_from_uri(uri).await?.connect().await
    }

    /// Connects, checks the deployment and the privileges `find`, `update` and `insert`, and
    /// creates the indexes, which needs the privilege `createIndex`. Optional: it reports early
    /// what would fail at the first lock.
    ///
    /// ```no_run
    /// use distlock_api::LockError;
    /// use distlock_mongo::MongoProvider;
    /// use distlock_mongo::mongodb::Database;
    ///
    /// async fn locks(shop: Database) -> Result<MongoProvider, LockError> {
    ///     let locks = MongoProvider::builder(shop).owner("server-3").build()?;
    ///     locks.prepare().await?;
    ///     Ok(locks)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`MongoStore::prepare`].
    ///
    /// # Cancel safety
    /// Cancel safe: what was found is kept, and the indexes may be made nevertheless.
    pub async fn prepare(&self) -> Result<()> {
        self.store.prepare().await
    }

    pub(crate) fn engine(&self) -> &LeaseProvider {
        &self.engine
    }

    /// Returns the store, for what only MongoDB has, such as
    /// [`raise_tokens`](MongoStore::raise_tokens).
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
        self.store.describe(f, "MongoProvider", Some(&self.engine))
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

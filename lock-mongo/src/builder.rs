//! The builder of the provider. It makes no I/O.

use std::fmt;
use std::time::Duration;

use distlock_api::Result;
use mongodb::{Client, Database};

use crate::error::{refused_uri, unusable_uri};
use crate::index::Indexes;
use crate::lease::Layout;
use crate::provider::MongoProvider;
use crate::records::IfMissing;
use crate::store::MongoStore;

pub(crate) mod common;

use common::{Common, common_setters, refuse};

const DEFAULT_DATABASE: &str = "distlock";
const DEFAULT_COLLECTION: &str = "locks";
/// If a record is purged earlier, its tokens can repeat, and its queue is lost (R6).
const MIN_PURGE_AFTER: Duration = Duration::from_secs(60 * 60);
/// `expireAfterSeconds` is a 32-bit number.
const MAX_PURGE_AFTER: Duration = Duration::from_secs(i32::MAX as u64);

impl MongoProvider {
    /// Returns the builder of a provider in a database. The read and write concerns of its client
    /// are not used: locks need their own.
    pub fn builder(database: Database) -> MongoProviderBuilder {
        MongoProviderBuilder::new(database.client().clone(), Some(database.name()))
    }

    /// Returns the builder of a provider in the database `distlock` of a client, unless
    /// [another](MongoProviderBuilder::database) is named.
    ///
    /// The application closes the provider and then shuts its client down:
    ///
    /// ```no_run
    /// # use std::error::Error;
    /// # async fn ship_order() {}
    /// use distlock_api::{LockProvider, LockProviderExt};
    /// use distlock_mongo::mongodb::Client;
    /// use distlock_mongo::{MongoProvider, close_all};
    ///
    /// async fn ship(client: Client) -> Result<(), Box<dyn Error>> {
    ///     let locks = MongoProvider::builder_from_client(&client).database("shop").connect().await?;
    ///     let shipped = locks.acquire("orders/4711").run(async |_token| ship_order().await).await;
    ///
    ///     close_all(client, [locks.close()]).await?;
    ///     Ok(shipped?)
    /// }
    /// ```
    pub fn builder_from_client(client: &Client) -> MongoProviderBuilder {
        MongoProviderBuilder::new(client.clone(), None)
    }

    /// Makes a client of a connection string, and returns the builder of a provider in the database
    /// of its path, or in `distlock` if the path has none. Sends nothing, but resolves
    /// `mongodb+srv` names.
    ///
    /// As with every driver, a user that was created in another database than the one in the path
    /// needs the option `authSource`.
    ///
    /// ```no_run
    /// use distlock_api::LockError;
    /// use distlock_mongo::MongoProvider;
    ///
    /// async fn locks() -> Result<MongoProvider, LockError> {
    ///     let uri = "mongodb://orders:secret@db1,db2/shop?replicaSet=rs0&authSource=admin";
    ///     MongoProvider::builder_from_uri(uri).await?.owner("server-3").connect().await
    /// }
    /// ```
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a connection string that the
    /// driver refuses, and [`Unavailable`](distlock_api::ErrorKind::Unavailable) if a name cannot
    /// be resolved. No error shows the password.
    pub async fn builder_from_uri(uri: impl AsRef<str>) -> Result<MongoProviderBuilder> {
        if cuts_a_character(uri.as_ref()) {
            return Err(refused_uri());
        }
        let client = Client::with_uri_str(uri).await.map_err(|error| unusable_uri(&error))?;
        let database = client.default_database();
        Ok(MongoProviderBuilder::new(client, database.as_ref().map(Database::name)))
    }
}

/// Returns whether the driver would panic: it reads two bytes behind each `%` as text.
fn cuts_a_character(uri: &str) -> bool {
    uri.split('%').skip(1).any(|after| after.len() >= 2 && !after.is_char_boundary(2))
}

/// The builder of a [`MongoProvider`]. Made by [`MongoProvider::builder`].
///
/// ```no_run
/// use std::time::Duration;
///
/// use distlock_api::LockError;
/// use distlock_mongo::MongoProvider;
/// use distlock_mongo::mongodb::Database;
///
/// async fn locks(shop: Database) -> Result<MongoProvider, LockError> {
///     MongoProvider::builder(shop).owner("server-3").ttl(Duration::from_secs(20)).connect().await
/// }
/// ```
///
/// [`build`](Self::build) sends nothing; [`connect`](Self::connect) reports a wrong address,
/// credential or privilege.
///
/// # Examples
/// A larger pool, in which the locks have at most 24 calls in flight:
///
/// ```no_run
/// # use std::num::NonZeroUsize;
/// # use distlock_api::LockError;
/// # use distlock_mongo::MongoProvider;
/// async fn locks() -> Result<MongoProvider, LockError> {
///     const CALLS: NonZeroUsize = NonZeroUsize::new(24).unwrap();
///     let uri = "mongodb://db1,db2,db3/shop?replicaSet=rs0&maxPoolSize=32";
///     MongoProvider::builder_from_uri(uri).await?.calls_at_once(CALLS).connect().await
/// }
/// ```
///
/// A queue of at most 100 processes per key, to which a process soon passes the lock on:
///
/// ```no_run
/// # use std::time::Duration;
/// # use distlock_api::LockError;
/// # use distlock_mongo::MongoProvider;
/// # use distlock_mongo::mongodb::Database;
/// use distlock_mongo::{HandOff, QueueOptions, WhenFull};
///
/// async fn locks(shop: Database) -> Result<MongoProvider, LockError> {
///     MongoProvider::builder(shop)
///         .queue(QueueOptions::new().capacity(100).when_full(WhenFull::Refuse)) // with `QueueFull`
///         .hand_off(HandOff::new().max_count(8).max_time(Duration::from_millis(20)))
///         .connect()
///         .await
/// }
/// ```
///
/// [After a restore](crate#after-a-restore), with the floor of step 1:
///
/// ```no_run
/// # use distlock_api::{FencingToken, LockError};
/// # use distlock_mongo::MongoProvider;
/// # use distlock_mongo::mongodb::Database;
/// async fn locks(shop: Database) -> Result<MongoProvider, LockError> {
///     // Seconds from 2025-01-01 to a time that is after the last use.
///     let floor = FencingToken::new(60_000_000 << 21);
///     MongoProvider::builder(shop).token_floor(floor).connect().await
/// }
/// ```
#[derive(Clone)]
#[must_use = "nothing is made until `build` is called"]
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

    /// Sets the database. Defaults to the one that the builder was made with, or `distlock`.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.common.database = name.into();
        self
    }

    /// Sets the lock collection. All processes that share locks must name the same. Defaults to
    /// `locks`.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.common.collection = name.into();
        self
    }

    /// Creates no owner index. The index makes
    /// [listing and releasing](distlock_api::LockAdmin::release_owner) by owner fast, and costs
    /// each acquisition and release a little on the server. Defaults to creating it.
    pub fn without_owner_index(mut self) -> Self {
        self.owner_index = false;
        self
    }

    /// Respects the locks of an earlier program in the same collection until they expire, and then
    /// makes records of them. Such a lock is a document with the key as `_id` and a date as
    /// `expiresAt`. Waiters poll until then. Its other fields are dropped when the key is first
    /// acquired.
    ///
    /// This is for a migration, not for both programs at once. Stop the earlier one first, because
    /// it cannot see when our locks are free. Defaults to an error
    /// ([`Corrupt`](distlock_api::ErrorKind::Corrupt)) for every document that is no lock record,
    /// which is left as it is.
    ///
    /// ```no_run
    /// # use distlock_api::LockError;
    /// # use distlock_mongo::MongoProvider;
    /// # use distlock_mongo::mongodb::Database;
    /// async fn locks(shop: Database) -> Result<MongoProvider, LockError> {
    ///     // The earlier program has stopped. Its last locks are respected until they expire.
    ///     MongoProvider::builder(shop).collection("order_locks").adopt_foreign_locks().connect().await
    /// }
    /// ```
    pub fn adopt_foreign_locks(mut self) -> Self {
        self.common.adopts_foreign = true;
        self
    }

    /// Sets how long after its expiry the server removes a record, in whole seconds. Defaults to 1
    /// h, which is also the shortest.
    ///
    /// The provider that creates the TTL index of the collection decides. One with another setting
    /// logs a warning, and works with the existing index.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use distlock_api::LockError;
    /// # use distlock_mongo::MongoProvider;
    /// # use distlock_mongo::mongodb::Database;
    /// async fn locks(shop: Database) -> Result<MongoProvider, LockError> {
    ///     // Operators can look at the record of a job for a week.
    ///     let a_week = Duration::from_secs(7 * 24 * 3600);
    ///     MongoProvider::builder(shop).collection("job_locks").purge_after(a_week).connect().await
    /// }
    /// ```
    pub fn purge_after(mut self, grace: Duration) -> Self {
        self.purge_after = grace;
        self
    }

    common_setters!();

    /// Makes the provider.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a name that MongoDB does not
    /// allow, a purge time below 1 h, a request timeout of zero, or an option that the lease engine
    /// refuses.
    pub fn build(self) -> Result<MongoProvider> {
        let store = self.store()?;
        self.common.provider(store)
    }

    /// Makes the provider, and [prepares](MongoProvider::prepare) the deployment.
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`MongoProvider::prepare`].
    ///
    /// # Cancel safety
    /// As [`MongoProvider::prepare`].
    pub async fn connect(self) -> Result<MongoProvider> {
        let locks = self.build()?;
        locks.prepare().await?;
        Ok(locks)
    }

    /// Makes the store alone, for an engine of your own. Lease terms, owner, queue, hand-off and
    /// poll interval belong to the engine, and are ignored.
    ///
    /// # Errors
    /// As [`build`](Self::build), except for options of the engine.
    pub fn build_store(self) -> Result<MongoStore> {
        self.store()
    }

    fn store(&self) -> Result<MongoStore> {
        if self.purge_after < MIN_PURGE_AFTER {
            return refuse(format!(
                "purge_after is {:?}, and must be at least {MIN_PURGE_AFTER:?}: the tokens of a record that is purged \
                 earlier can repeat",
                self.purge_after
            ));
        }
        if self.purge_after > MAX_PURGE_AFTER {
            return refuse(format!(
                "purge_after is {:?}, and must be at most {MAX_PURGE_AFTER:?}, the longest time of a TTL index",
                self.purge_after
            ));
        }
        let indexes = Indexes::new(Some(Duration::from_secs(self.purge_after.as_secs())), self.owner_index);
        self.common.store(Layout::new(""), IfMissing::InsertRecord, indexes)
    }
}

impl fmt::Debug for MongoProviderBuilder {
    /// Without the client, whose options contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MongoProviderBuilder");
        self.common.describe(&mut shown);
        shown.field("purge_after", &self.purge_after).field("owner_index", &self.owner_index).finish_non_exhaustive()
    }
}

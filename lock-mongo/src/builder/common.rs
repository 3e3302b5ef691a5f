//! The options that both styles share: those of the store, except its layout, and of the engine.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockError, Result};
use distlock_engine::{EngineOptions, LeaseProvider};
use mongodb::Client;
use mongodb::options::{
    CollectionOptions, DatabaseOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};

use crate::index::Indexes;
use crate::key_memory::KeyMemory;
use crate::lease::Layout;
use crate::numbers::checked_floor;
use crate::provider::MongoProvider;
use crate::records::{IfMissing, Records};
use crate::server_clock::ServerClock;
use crate::store::MongoStore;
use crate::topology::Topology;

/// The options that the builders of both styles share.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) client: Client,
    pub(crate) database: String,
    pub(crate) collection: String,
    pub(crate) engine: EngineOptions,
    pub(crate) retryable_writes: bool,
    pub(crate) token_floor: Option<FencingToken>,
    pub(crate) calls_at_once: Option<NonZeroUsize>,
    pub(crate) min_ttl: Duration,
    /// Only for a lock collection.
    pub(crate) adopts_foreign: bool,
}

impl Common {
    pub(crate) fn new(client: Client, database: &str, collection: &str) -> Self {
        Self {
            client,
            database: database.to_owned(),
            collection: collection.to_owned(),
            engine: EngineOptions::new(),
            retryable_writes: true,
            token_floor: None,
            calls_at_once: None,
            min_ttl: MongoProvider::MIN_TTL,
            adopts_foreign: false,
        }
    }

    /// Makes the store of the given records, without an engine.
    pub(crate) fn store(&self, layout: Layout, if_missing: IfMissing, indexes: Indexes) -> Result<MongoStore> {
        check_database(&self.database)?;
        check_collection(&self.collection)?;
        let request_timeout = self.engine.request_timeout;
        if request_timeout.is_zero() {
            return refuse("request_timeout is zero: no request could be answered in time. The default is 5 s".into());
        }
        let token_floor = self.token_floor.map_or(Ok(0), checked_floor)?;
        // The client's own defaults play no part (R17).
        let primary = || SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let database = self.client.database_with_options(
            &self.database,
            DatabaseOptions::builder()
                .selection_criteria(primary())
                .read_concern(ReadConcern::local())
                .write_concern(WriteConcern::majority())
                .build(),
        );
        let collection = database.collection_with_options(
            &self.collection,
            CollectionOptions::builder()
                .selection_criteria(primary())
                .read_concern(ReadConcern::local())
                .write_concern(WriteConcern::majority())
                .build(),
        );
        let records = Records {
            database,
            collection,
            layout,
            if_missing,
            adopts_foreign: self.adopts_foreign,
            topology: Topology::default(),
            indexes,
            request_timeout,
            retryable_writes: self.retryable_writes,
            token_floor,
            calls_at_once: self.calls_at_once,
            min_ttl: self.min_ttl,
            resources: OnceLock::new(),
            key_memory: KeyMemory::default(),
            server_clock: ServerClock::default(),
            document_len: AtomicUsize::default(),
        };
        Ok(MongoStore { records })
    }

    /// Makes the provider: the store under an engine.
    pub(crate) fn provider(self, store: MongoStore) -> Result<MongoProvider> {
        let store = Arc::new(store);
        let engine = LeaseProvider::builder(Arc::<MongoStore>::clone(&store)).options(self.engine).build()?;
        Ok(MongoProvider::new(store, engine))
    }
}

impl Common {
    /// Adds the options to the debug output of a builder. The client is left out, because its
    /// options contain credentials.
    pub(crate) fn describe(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let Self { database, collection, .. } = self;
        shown
            .field("collection", &format_args!("{database}.{collection}"))
            .field("engine", &self.engine)
            .field("retryable_writes", &self.retryable_writes)
            .field("token_floor", &self.token_floor)
            .field("calls_at_once", &self.calls_at_once)
            .field("min_ttl", &self.min_ttl);
    }
}

/// Defines the setters that both styles share, inside an `impl` of a builder with a field `common`.
macro_rules! common_setters {
    () => {
        distlock_engine::engine_setters!(common.engine);

        /// Sets how many calls may be in flight at once, for all providers of one client together.
        /// The setting of the provider that is used first counts. Other calls wait in line:
        /// renewals go before releases, and both before acquisitions. An acquisition whose turn
        /// would come too late fails with
        /// [`ErrorKind::Overloaded`](distlock_api::ErrorKind::Overloaded).
        ///
        /// Defaults to the client's `maxPoolSize`, less one for the application and one for each
        /// open change stream: usually 8 of the driver's default of 10. Streams use a quarter at
        /// most, and none in a pool smaller than four. A number above `maxPoolSize` only moves the
        /// line into the driver, where renewals wait behind acquisitions.
        pub fn calls_at_once(mut self, calls: std::num::NonZeroUsize) -> Self {
            self.common.calls_at_once = Some(calls);
            self
        }

        /// Sets the smallest token. For data that was restored, or moved to a deployment whose
        /// clock is behind: see [the runbook](crate#after-a-restore). All providers of a collection
        /// must set the same until the clock has passed it. A floor from 2^53 on gives tokens that
        /// readers with doubles, such as JavaScript, cannot tell apart, and logs a warning.
        /// Defaults to no floor.
        pub fn token_floor(mut self, floor: distlock_api::FencingToken) -> Self {
            self.common.token_floor = Some(floor);
            self
        }

        /// Lowers the shortest ttl that is accepted, for tests, whose server is near and idle.
        /// Where an answer may take as long as a lease lasts, no lease is ever held, and callers
        /// that wait do so for ever. Defaults to
        /// [`MongoProvider::MIN_TTL`](crate::MongoProvider::MIN_TTL).
        ///
        /// It also bounds the safety margin, the renewal interval, the request timeout and the
        /// times of the queue: see
        /// [`min_ttl`](distlock_engine::store::StoreCapabilities::min_ttl).
        pub fn min_ttl(mut self, ttl: std::time::Duration) -> Self {
            self.common.min_ttl = ttl;
            self
        }

        /// Declares that the client's options turn retryable writes off (`retryWrites=false`),
        /// which the driver does not report. Without them the server cannot refuse a call that
        /// arrives late. The engine therefore gives up the id of an acquisition after a call of
        /// unknown outcome, as on a standalone. Defaults to retryable writes.
        pub fn without_retryable_writes(mut self) -> Self {
            self.common.retryable_writes = false;
            self
        }
    };
}
pub(crate) use common_setters;

fn check_database(name: &str) -> Result<()> {
    if name == "local" {
        return refuse(
            "the database \"local\" is not replicated: a fail-over loses the locks in it. Use another database".into(),
        );
    }
    if name.is_empty() || name.len() > 63 || name.contains(['/', '\\', '.', ' ', '"', '$', '\0']) {
        return refuse(format!(
            "{name:?} cannot name a MongoDB database: a name has 1 to 63 bytes, and none of / \\ . \" $, space and NUL"
        ));
    }
    Ok(())
}

fn check_collection(name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['$', '\0']) || name.starts_with("system.") {
        return refuse(format!(
            "{name:?} cannot name a MongoDB collection: a name is not empty, does not begin with `system.`, and has \
             neither $ nor NUL"
        ));
    }
    Ok(())
}

pub(super) fn refuse<T>(message: String) -> Result<T> {
    Err(LockError::new(ErrorKind::InvalidOptions, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["", "a$b", "a\0", "system.locks"] {
            assert_eq!(check_collection(name).unwrap_err().kind(), ErrorKind::InvalidOptions, "{name:?}");
        }
        for name in ["locks", "app.locks", "Schlösser", "systematic"] {
            check_collection(name).unwrap();
        }
        assert!(check_database("").is_err() && check_database("a.b").is_err() && check_database("distlock").is_ok());
    }
}

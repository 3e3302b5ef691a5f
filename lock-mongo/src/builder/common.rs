//! What both styles configure alike: the store without its layout, and the engine over it.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, Holder, LeaseOptions, LockError, Result};
use distlock_engine::{HandOff, LeaseProvider, QueueOptions};
use mongodb::Client;
use mongodb::options::{
    CollectionOptions, DatabaseOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};

use crate::index::Indexes;
use crate::lease::Layout;
use crate::numbers::checked_floor;
use crate::provider::MongoProvider;
use crate::recent_use::RecentUse;
use crate::records::{Absent, Records};
use crate::store::MongoStore;
use crate::topology::Topology;

const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What the builders of both styles are given.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) client: Client,
    pub(crate) database: String,
    pub(crate) collection: String,
    pub(crate) request_timeout: Duration,
    pub(crate) retryable_writes: bool,
    pub(crate) token_floor: Option<FencingToken>,
    pub(crate) calls_at_once: Option<NonZeroUsize>,
    pub(crate) lease: LeaseOptions,
    pub(crate) holder: Holder,
    pub(crate) poll_interval: Option<(Duration, Duration)>,
    pub(crate) queue: Option<QueueOptions>,
    pub(crate) hand_off: Option<HandOff>,
    /// Of the lock collection alone.
    pub(crate) adopts_foreign: bool,
}

impl Common {
    pub(crate) fn new(client: Client, database: &str, collection: &str) -> Self {
        Self {
            client,
            database: database.to_owned(),
            collection: collection.to_owned(),
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            retryable_writes: true,
            token_floor: None,
            calls_at_once: None,
            lease: LeaseOptions::new(),
            holder: Holder::this_process(),
            poll_interval: None,
            queue: Some(QueueOptions::new()),
            hand_off: Some(HandOff::new()),
            adopts_foreign: false,
        }
    }

    /// The store of the given records, without an engine.
    pub(crate) fn store(&self, layout: Layout, absent: Absent, indexes: Indexes) -> Result<MongoStore> {
        check_database(&self.database)?;
        check_collection(&self.collection)?;
        if self.request_timeout.is_zero() {
            return refuse("the request timeout must not be zero".into());
        }
        let token_floor = self.token_floor.map_or(Ok(0), checked_floor)?;
        // Whatever the client's own defaults are (R17).
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
            absent,
            adopts_foreign: self.adopts_foreign,
            topology: Topology::default(),
            indexes,
            request_timeout: self.request_timeout,
            retryable_writes: self.retryable_writes,
            token_floor,
            calls_at_once: self.calls_at_once,
            shared: OnceLock::new(),
            recent_use: RecentUse::default(),
        };
        Ok(MongoStore { records })
    }

    /// The store under an engine.
    pub(crate) fn provider(self, store: MongoStore) -> Result<MongoProvider> {
        let store = Arc::new(store);
        let mut engine = LeaseProvider::builder(Arc::<MongoStore>::clone(&store))
            .lease(self.lease)
            .holder(self.holder)
            .request_timeout(self.request_timeout);
        if let Some((min, max)) = self.poll_interval {
            engine = engine.poll_interval(min, max);
        }
        engine = match self.queue {
            Some(queue) => engine.queue(queue),
            None => engine.without_queue(),
        };
        engine = match self.hand_off {
            Some(limits) => engine.hand_off(limits),
            None => engine.without_hand_off(),
        };
        Ok(MongoProvider::new(store, engine.build()?))
    }
}

impl std::fmt::Debug for Common {
    /// Without the client, whose options hold credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Common")
            .field("database", &self.database)
            .field("collection", &self.collection)
            .field("request_timeout", &self.request_timeout)
            .field("retryable_writes", &self.retryable_writes)
            .field("token_floor", &self.token_floor)
            .field("calls_at_once", &self.calls_at_once)
            .field("lease", &self.lease)
            .field("queue", &self.queue)
            .field("hand_off", &self.hand_off)
            .field("holder", &self.holder)
            .field("poll_interval", &self.poll_interval)
            .finish_non_exhaustive()
    }
}

/// The setters of what is the same in both styles: inside an `impl` of a builder with a field
/// `common`.
macro_rules! common_setters {
    () => {
        /// The terms of leases whose acquisition does not set them. Defaults to those of
        /// [`LeaseOptions`].
        pub fn lease(mut self, defaults: LeaseOptions) -> Self {
            self.common.lease = defaults;
            self
        }

        /// Who holds the locks of this provider, for people. Defaults to host name and process id.
        pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
            self.common.holder = self.common.holder.with_owner(owner);
            self
        }

        /// One named remark about all locks of this provider, for people, such as the program's
        /// version. Added to those of
        /// [`Holder::this_process`](distlock_api::Holder::this_process); an acquisition adds
        /// [its own](distlock_api::AcquireOptions::with_metadata).
        pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self.common.holder = self.common.holder.with_metadata(name, value);
            self
        }

        /// How long one request to MongoDB may take, the driver's choice of a server included.
        /// Defaults to 5 s. Each request also carries it to the server.
        pub fn request_timeout(mut self, limit: Duration) -> Self {
            self.common.request_timeout = limit;
            self
        }

        /// How many calls may be in flight at once, for all providers of one client together: the
        /// first of them that is used sets it. Other calls wait in lines: renewals go before
        /// releases, and both before acquisitions, which fail with
        /// [`ErrorKind::Overloaded`](distlock_api::ErrorKind::Overloaded) if their turn would come
        /// too late.
        ///
        /// Defaults to the client's `maxPoolSize`, less one for the application and the open
        /// streams of events, which use a quarter at most: usually 8 of the driver's default of 10.
        /// A pool smaller than four is used for calls alone. More than the pool has only moves the
        /// line into the driver, where renewals wait behind acquisitions.
        pub fn calls_at_once(mut self, calls: std::num::NonZeroUsize) -> Self {
            self.common.calls_at_once = Some(calls);
            self
        }

        /// No token is below this one. For data that was restored, or moved to a deployment whose
        /// clock is behind: see [the runbook](crate#after-a-restore). All providers of a collection
        /// set the same, until the clock has passed it. Defaults to none.
        pub fn token_floor(mut self, floor: distlock_api::FencingToken) -> Self {
            self.common.token_floor = Some(floor);
            self
        }

        /// How often a waiter asks when it hears nothing: between `min` and `max`. Defaults to the
        /// engine's.
        pub fn poll_interval(mut self, min: Duration, max: Duration) -> Self {
            self.common.poll_interval = Some((min, max));
            self
        }

        /// How waiters queue up with those of other processes, in the lock's record. Defaults to
        /// [`QueueOptions::new`].
        pub fn queue(mut self, options: QueueOptions) -> Self {
            self.common.queue = Some(options);
            self
        }

        /// No place in the queue: waiters poll, and stand back behind those who have one. Defaults
        /// to queueing.
        pub fn without_queue(mut self) -> Self {
            self.common.queue = None;
            self
        }

        /// How long a lease is handed on within the process while others wait for it. Defaults to
        /// [`HandOff::new`].
        pub fn hand_off(mut self, limits: HandOff) -> Self {
            self.common.hand_off = Some(limits);
            self
        }

        /// No handing on: every guard has a lease of its own, and every release goes to the server.
        /// Defaults to handing on.
        pub fn without_hand_off(mut self) -> Self {
            self.common.hand_off = None;
            self
        }

        /// Says that the client's options turn retryable writes off (`retryWrites=false`), which
        /// the driver does not tell. Then the server cannot refuse a call that arrives late, and
        /// the engine gives up an acquisition's id after a call of unknown outcome, as on a
        /// standalone. Defaults to on.
        pub fn without_retryable_writes(mut self) -> Self {
            self.common.retryable_writes = false;
            self
        }
    };
}
pub(crate) use common_setters;

fn check_database(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 63 || name.contains(['/', '\\', '.', ' ', '"', '$', '\0']) {
        return refuse(format!("{name:?} is not a name of a MongoDB database"));
    }
    Ok(())
}

fn check_collection(name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['$', '\0']) || name.starts_with("system.") {
        return refuse(format!("{name:?} is not a name of a MongoDB collection"));
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

//! The options that both styles share: those of the store, except its layout, and of the engine.

use std::fmt;
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
use crate::server_clock::ServerClock;
use crate::store::MongoStore;
use crate::topology::Topology;

const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The options that the builders of both styles share.
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
    /// Only for a lock collection.
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

    /// Makes the store of the given records, without an engine.
    pub(crate) fn store(&self, layout: Layout, absent: Absent, indexes: Indexes) -> Result<MongoStore> {
        check_database(&self.database)?;
        check_collection(&self.collection)?;
        if self.request_timeout.is_zero() {
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
            server_clock: ServerClock::default(),
        };
        Ok(MongoStore { records })
    }

    /// Makes the provider: the store under an engine.
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

impl Common {
    /// Adds the options to the debug output of a builder. The client is left out, because its
    /// options contain credentials.
    pub(crate) fn describe(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let Self { database, collection, .. } = self;
        shown
            .field("collection", &format_args!("{database}.{collection}"))
            .field("lease", &self.lease)
            .field("holder", &self.holder)
            .field("request_timeout", &self.request_timeout)
            .field("retryable_writes", &self.retryable_writes)
            .field("token_floor", &self.token_floor)
            .field("calls_at_once", &self.calls_at_once)
            .field("poll_interval", &self.poll_interval)
            .field("queue", &self.queue)
            .field("hand_off", &self.hand_off);
    }
}

/// Defines the setters that both styles share, inside an `impl` of a builder with a field `common`.
macro_rules! common_setters {
    () => {
        /// Replaces the lease terms of acquisitions that set none. Defaults to those of
        /// [`LeaseOptions`].
        pub fn lease(mut self, defaults: LeaseOptions) -> Self {
            self.common.lease = defaults;
            self
        }

        /// Sets how long the store keeps a lease without a renewal, in whole milliseconds. Defaults
        /// to 30 s. An acquisition can set [its own](distlock_api::Acquire::ttl).
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.common.lease = self.common.lease.ttl(ttl);
            self
        }

        /// Sets when leases are renewed. Defaults to every third of the ttl.
        pub fn renewal(mut self, renewal: RenewalPolicy) -> Self {
            self.common.lease = self.common.lease.renewal(renewal);
            self
        }

        /// Sets how much earlier than the store a guard considers itself lost. Defaults to a tenth
        /// of the ttl, 1 s at most.
        pub fn safety_margin(mut self, margin: Duration) -> Self {
            self.common.lease = self.common.lease.safety_margin(margin);
            self
        }

        /// Keeps a key closed for at least this long after a grant, even if its guard is released
        /// earlier. Defaults to no minimum.
        pub fn hold_at_least(mut self, duration: Duration) -> Self {
            self.common.lease = self.common.lease.hold_at_least(duration);
            self
        }

        /// Names the holder of the locks, for people. Defaults to host name and process id.
        pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
            self.common.holder = self.common.holder.with_owner(owner);
            self
        }

        /// Adds one named remark about all locks of this provider, for people, such as the version
        /// of the program. The remarks of
        /// [`Holder::this_process`](distlock_api::Holder::this_process) stay, and an acquisition
        /// adds [its own](distlock_api::AcquireOptions::with_metadata).
        pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self.common.holder = self.common.holder.with_metadata(name, value);
            self
        }

        /// Sets how long one request to MongoDB may take, the driver's choice of a server included.
        /// The server gets the limit, too. Defaults to 5 s.
        pub fn request_timeout(mut self, limit: Duration) -> Self {
            self.common.request_timeout = limit;
            self
        }

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

        /// Sets how often a waiter that gets no event polls: first after `min`, then less often, at
        /// least every `max`. Defaults to that of the engine.
        pub fn poll_interval(mut self, min: Duration, max: Duration) -> Self {
            self.common.poll_interval = Some((min, max));
            self
        }

        /// Sets how waiters queue with those of other processes, in the record of the lock.
        /// Defaults to [`QueueOptions::new`].
        pub fn queue(mut self, options: QueueOptions) -> Self {
            self.common.queue = Some(options);
            self
        }

        /// Takes no tickets: waiters poll, and let waiters that have a ticket go first. Defaults to
        /// tickets.
        pub fn without_queue(mut self) -> Self {
            self.common.queue = None;
            self
        }

        /// Sets how long a lease is handed on within the process while other processes wait for it.
        /// Defaults to [`HandOff::new`].
        pub fn hand_off(mut self, limits: HandOff) -> Self {
            self.common.hand_off = Some(limits);
            self
        }

        /// Hands no lease on within the process: every guard has a lease of its own, and every
        /// release goes to the server. Defaults to hand-off.
        pub fn without_hand_off(mut self) -> Self {
            self.common.hand_off = None;
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

//! The options of an engine, and their setters in the builders that pass them on.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Holder, LeaseOptions, LockError, Result};

use crate::options::{HandOff, QueueOptions};
use crate::store::StoreCapabilities;

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

/// All options of a [`LeaseProvider`](crate::LeaseProvider), whatever its store.
///
/// A backend's builder has one such value. It gets the setters by
/// [`engine_setters!`](crate::engine_setters), and passes the value to
/// [`LeaseProviderBuilder::options`](crate::LeaseProviderBuilder::options), where it is checked.
///
/// ```
/// use std::time::Duration;
///
/// use distlock_engine::{EngineOptions, QueueOptions};
///
/// let options = EngineOptions::new()
///     .ttl(Duration::from_secs(10))
///     .request_timeout(Duration::from_secs(2))
///     .queue(QueueOptions::new().capacity(100));
/// assert_eq!(options.request_timeout, Duration::from_secs(2));
/// ```
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct EngineOptions {
    /// The lease terms of acquisitions that set none of their own.
    pub lease: LeaseOptions,
    /// The owner and the remarks of the locks.
    pub holder: Holder,
    /// The time limit of one request to the store.
    pub request_timeout: Duration,
    /// The first pause of a waiter that polls, and the longest one.
    pub poll_interval: (Duration, Duration),
    /// The settings of the queue; `None` if waiters take no tickets.
    pub queue: Option<QueueOptions>,
    /// The limits of the hand-off within the process; `None` if leases are not handed on.
    pub hand_off: Option<HandOff>,
    /// The name under which acquisitions and holds are reported; `None` if they are not.
    pub instrumented: Option<Arc<str>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl EngineOptions {
    /// Creates the defaults.
    pub fn new() -> Self {
        Self {
            lease: LeaseOptions::new(),
            holder: Holder::this_process(),
            request_timeout: Duration::from_secs(5),
            poll_interval: (Duration::from_millis(10), Duration::from_millis(250)),
            queue: Some(QueueOptions::new()),
            hand_off: Some(HandOff::new()),
            instrumented: None,
        }
    }

    crate::engine_setters!();

    /// Sets the owner and all remarks of this provider's locks, for people. Replaces earlier values
    /// and the defaults.
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// Returns the time that a store gets for a request: a little less than the request timeout, so
    /// that its own error, which says more, comes before ours.
    pub(crate) fn store_timeout(&self) -> Duration {
        (self.request_timeout * 9 / 10).max(MILLISECOND)
    }

    /// Checks the options for a store, whose name is `store`.
    pub(crate) fn validate(&self, store: &str, can: &StoreCapabilities) -> Result<()> {
        can.check_terms(store, &self.lease.terms()?)?;
        self.holder.validate()?;
        self.queue.as_ref().map_or(Ok(()), QueueOptions::validate)?;
        self.hand_off.as_ref().map_or(Ok(()), HandOff::validate)?;
        if self.request_timeout < MILLISECOND || self.request_timeout > DAY {
            return Err(LockError::invalid_options(format!(
                "a request timeout of {:?} is not between 1 ms and a day",
                self.request_timeout
            )));
        }
        let least = can.min_ttl / 10;
        if self.request_timeout < least {
            return Err(LockError::invalid_options(format!(
                "a request timeout of {:?} is too short for the store {store}: set at least {least:?}; a test may \
                 lower that with `min_ttl` on the builder of the store",
                self.request_timeout
            )));
        }
        self.queue.as_ref().map_or(Ok(()), |queue| queue.check_times(store, can.min_ttl))?;
        let (first, longest) = self.poll_interval;
        if first < MILLISECOND || longest < first || longest > DAY {
            return Err(LockError::invalid_options(format!(
                "a poll interval from {first:?} to {longest:?} is below 1 ms, above a day, or shrinks: give two times \
                 from 1 ms to a day, the shorter one first"
            )));
        }
        Ok(())
    }
}

/// Defines the setters of [`EngineOptions`] inside an `impl` of a builder that has such a value in
/// the named field, or in a field of a field. They name types of `distlock-api`, on which the
/// backend must depend.
///
/// ```
/// use distlock_engine::{EngineOptions, engine_setters};
///
/// #[derive(Default)]
/// #[must_use]
/// struct MyLocksBuilder {
///     engine: EngineOptions,
/// }
///
/// impl MyLocksBuilder {
///     engine_setters!(engine);
/// }
///
/// let _ = MyLocksBuilder::default().ttl(std::time::Duration::from_secs(10)).without_queue();
/// ```
#[macro_export]
macro_rules! engine_setters {
    ($($field:ident).*) => {
        /// Replaces the lease terms of acquisitions that set none. Defaults to those of
        /// [`LeaseOptions`](distlock_api::LeaseOptions).
        pub fn lease(mut self, defaults: ::distlock_api::LeaseOptions) -> Self {
            self$(.$field)*.lease = defaults;
            self
        }

        /// Sets how long the store keeps a lease without a renewal, in whole milliseconds. Defaults
        /// to 30 s. An acquisition can set [its own](distlock_api::Acquire::ttl).
        pub fn ttl(mut self, ttl: ::std::time::Duration) -> Self {
            self$(.$field)*.lease = self$(.$field)*.lease.ttl(ttl);
            self
        }

        /// Sets when leases are renewed. Defaults to every third of the ttl.
        pub fn renewal(mut self, renewal: ::distlock_api::RenewalPolicy) -> Self {
            self$(.$field)*.lease = self$(.$field)*.lease.renewal(renewal);
            self
        }

        /// Sets how much earlier than the store a guard considers itself lost. Defaults to a tenth
        /// of the ttl, 1 s at most.
        pub fn safety_margin(mut self, margin: ::std::time::Duration) -> Self {
            self$(.$field)*.lease = self$(.$field)*.lease.safety_margin(margin);
            self
        }

        /// Keeps a key closed for at least this long after a grant, even if its guard is released
        /// earlier. Defaults to no minimum.
        pub fn hold_at_least(mut self, duration: ::std::time::Duration) -> Self {
            self$(.$field)*.lease = self$(.$field)*.lease.hold_at_least(duration);
            self
        }

        /// Names the holder of the locks, for people. Defaults to the owner of
        /// [`Holder::this_process`](distlock_api::Holder::this_process), unique per process.
        pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
            self$(.$field)*.holder = self$(.$field)*.holder.with_owner(owner);
            self
        }

        /// Adds one named remark about all locks of this provider, for people, such as the version
        /// of the program. The remarks of
        /// [`Holder::this_process`](distlock_api::Holder::this_process) stay, and an acquisition
        /// adds [its own](distlock_api::AcquireOptions::with_metadata).
        pub fn metadata(
            mut self,
            name: impl Into<String>,
            value: impl Into<String>,
        ) -> Self {
            self$(.$field)*.holder = self$(.$field)*.holder.with_metadata(name, value);
            self
        }

        /// Sets how long one request to the store may take, the driver's choice of a server
        /// included: the bound of a try, of a release, and of all background work. Defaults to 5 s.
        /// An acquisition is also bounded by its ttl less the safety margin: a later answer would
        /// be of no use.
        pub fn request_timeout(mut self, limit: ::std::time::Duration) -> Self {
            self$(.$field)*.request_timeout = limit;
            self
        }

        /// Sets how often a waiter polls that gets no event and knows of no expiry: first after
        /// `first`, then doubling up to `longest`, with jitter. Defaults to 10 ms and 250 ms.
        pub fn poll_interval(mut self, first: ::std::time::Duration, longest: ::std::time::Duration) -> Self {
            self$(.$field)*.poll_interval = (first, longest);
            self
        }

        /// Sets how waiters queue with the waiters of other processes. Defaults to
        /// `QueueOptions::new()`.
        pub fn queue(mut self, options: $crate::QueueOptions) -> Self {
            self$(.$field)*.queue = Some(options);
            self
        }

        /// Takes no tickets: waiters poll, and let waiters that have a ticket go first. Defaults to
        /// tickets.
        pub fn without_queue(mut self) -> Self {
            self$(.$field)*.queue = None;
            self
        }

        /// Sets how long a lease is handed on within the process while other processes wait for it.
        /// Defaults to `HandOff::new()`.
        pub fn hand_off(mut self, limits: $crate::HandOff) -> Self {
            self$(.$field)*.hand_off = Some(limits);
            self
        }

        /// Hands no lease on within the process: every guard has a lease of its own, and every
        /// release goes to the store. Defaults to hand-off.
        pub fn without_hand_off(mut self) -> Self {
            self$(.$field)*.hand_off = None;
            self
        }

        /// Reports each acquisition and each hold under this name, with the spans and metrics of
        /// [`Instrumented`](distlock_api::Instrumented), in every style of these locks. The name is
        /// the label `provider`: use a constant. Defaults to no reports.
        ///
        /// Do not put the provider into an `Instrumented`, too: its locks would be counted twice.
        pub fn instrumented(mut self, name: impl AsRef<str>) -> Self {
            self$(.$field)*.instrumented = Some(name.as_ref().into());
            self
        }
    };
}

//! The settings that both layers share, and their setters.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquireOptions, Wait};

use super::tally::Limits;

/// What to do with a request whose lock is lost while it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// Drops the handler and refuses with [`Reason::Lost`](crate::Reason::Lost). The default,
    /// because another request may hold the lock by now.
    #[default]
    Abort,
    /// Continues. For handlers that check [`HeldLock::lost`](crate::HeldLock::lost), or whose
    /// resource checks the fencing token.
    Continue,
}

/// How long an HTTP request holds its lock at most, unless its layer says otherwise. The usual
/// proxies give up after that time, so a request that lasts longer rarely has a client.
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) class: Option<Arc<str>>,
    pub(crate) limits: Limits,
    pub(crate) on_loss: OnLoss,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fail_open: bool,
    /// These include the layer's own wait.
    pub(crate) options: AcquireOptions,
}

impl Config {
    /// Returns how long a caller with this deadline waits for the holder.
    pub(crate) fn wait(&self, deadline: Option<Duration>) -> Wait {
        match (self.options.wait(), deadline) {
            (Wait::UpTo(wait), Some(deadline)) => Wait::UpTo(deadline.min(wait)),
            (wait, _) => wait,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            class: None,
            limits: Limits::default(),
            on_loss: OnLoss::default(),
            max_hold: None,
            fail_open: false,
            options: AcquireOptions::new().with_wait(Wait::UpTo(Duration::from_secs(5))),
        }
    }
}

/// The setters of everything in [`Config`], for a type with a field `config`.
macro_rules! common_setters {
    () => {
        /// Sets the name of the layer in spans and metrics: the class of its keys, such as
        /// `orders`. Defaults to the class of the key extractor.
        #[must_use]
        pub fn class(mut self, class: impl AsRef<str>) -> Self {
            self.config.class = Some(class.as_ref().into());
            self
        }

        /// Waits at most this long for the lock, or less if the caller's deadline is nearer.
        /// Defaults to 5 s.
        #[must_use]
        pub fn wait_up_to(mut self, wait: std::time::Duration) -> Self {
            self.config.options = self.config.options.with_wait(distlock_api::Wait::UpTo(wait));
            self
        }

        /// Refuses with [`Reason::Busy`](crate::Reason::Busy) instead of waiting. Defaults to
        /// waiting up to 5 s. A request that does not wait asks the lock service by itself: where
        /// many keys are requested at once, those that wait share their calls, and are faster.
        #[must_use]
        pub fn fail_fast(mut self) -> Self {
            self.config.options = self.config.options.with_wait(distlock_api::Wait::Try);
            self
        }

        /// Limits how many requests of this layer wait for one key. More are refused with
        /// [`Reason::Full`](crate::Reason::Full). An acquisition that is under way counts as
        /// waiting. Where the layer knows its clients, the last quarter is for those that have less
        /// than a fair share of a queue, so that one client never fills it. Defaults to 64.
        #[must_use]
        pub fn max_waiters_per_key(mut self, waiters: usize) -> Self {
            self.config.limits.per_key = waiters;
            self
        }

        /// Limits how many requests of this layer wait, for all keys together. Once so many wait,
        /// each key may still have its fair share of the number, and at least one waiter: a request
        /// for a key that no other one waits for is never refused. Others are refused with
        /// [`Reason::Full`](crate::Reason::Full). Defaults to 1024.
        #[must_use]
        pub fn max_waiters(mut self, waiters: usize) -> Self {
            self.config.limits.total = waiters;
            self
        }

        /// Sets what happens when the lock is lost while the request is served. Defaults to
        /// [`OnLoss::Abort`](crate::OnLoss::Abort).
        #[must_use]
        pub fn on_loss(mut self, on_loss: crate::OnLoss) -> Self {
            self.config.on_loss = on_loss;
            self
        }

        /// Holds the lock at most this long. Then the lock is released, and a handler that is still
        /// at work is dropped and its request refused with
        /// [`Reason::HeldTooLong`](crate::Reason::HeldTooLong). A response that is under way ends
        /// with an error, so that its reader cannot take a part for the whole. Defaults to one
        /// minute for HTTP, because a client may send and read as slowly as it likes, and to no
        /// limit for [`KeyedLockLayer`](crate::KeyedLockLayer). Needs a tokio runtime with its
        /// timer.
        #[must_use]
        pub fn max_hold(mut self, max_hold: std::time::Duration) -> Self {
            self.config.max_hold = Some(max_hold);
            self
        }

        /// Holds the lock as long as the request takes. Over HTTP, a client that sends its request
        /// or reads its answer slowly then closes the key for the others as long as it likes.
        #[must_use]
        pub fn without_max_hold(mut self) -> Self {
            self.config.max_hold = None;
            self
        }

        /// Limits how many requests of this layer hold their locks at the same time, for all keys
        /// together, at least one. More are refused with [`Reason::Full`](crate::Reason::Full).
        /// Defaults to no limit, and to 1024 for [detached](crate::LockLayer::detach) handlers.
        #[must_use]
        pub fn max_held(mut self, holds: usize) -> Self {
            self.config.limits.held = Some(holds.max(1));
            self
        }

        /// Sets the lease terms that differ from the provider's, for example the ttl. Defaults to
        /// none.
        #[must_use]
        pub fn lease(mut self, lease: distlock_api::LeaseOptions) -> Self {
            self.config.options = self.config.options.with_lease(lease);
            self
        }

        /// Keeps a lock for this long after its request, for the next request with the key at this
        /// replica: it is served without a request to the lock service. Meanwhile requests with the
        /// key at other replicas wait. If requests keep coming, others wait as long as a lease is
        /// handed on within a process. Requests that share a lock leave no lock behind. Defaults to
        /// the provider's, which defaults to zero. See
        /// [`LeaseOptions::linger`](distlock_api::LeaseOptions::linger).
        #[must_use]
        pub fn linger(mut self, duration: std::time::Duration) -> Self {
            let lease = self.config.options.lease().linger(duration);
            self.config.options = self.config.options.with_lease(lease);
            self
        }

        /// Sets the owner of this layer's locks, which operators see. Defaults to the provider's
        /// owner.
        #[must_use]
        pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
            self.config.options = self.config.options.with_owner(owner);
            self
        }

        /// Serves requests **without any lock** when the lock service cannot be reached. Every such
        /// request is logged as a warning and counted. Defaults to refusing them.
        ///
        /// An outage is noticed when the wait is over, because the acquisition is tried until then.
        /// An answer of the lock service is no outage: requests are still refused if the provider
        /// is closed, the document to lock is missing, or the credentials are refused.
        #[must_use]
        pub fn fail_open(mut self) -> Self {
            self.config.fail_open = true;
            self
        }

        /// Returns a view of what the layer has done and is doing. Get it before the layer is moved
        /// into a router.
        #[must_use]
        pub fn monitor(&self) -> crate::Monitor {
            crate::Monitor::new(self.tally.clone())
        }
    };
}
pub(crate) use common_setters;

//! What all requests at one gate share, what a request claims, and the refusals that follow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::style::{Client, Counted};
use distlock_api::{Busy, ErrorKind, LockError, LockKey, LockProvider, Loss, Mode, Wait};

use super::config::Config;
use super::record;
use super::tally::Tally;
use crate::keys::KeySet;
use crate::refusal::{KeyRejection, Reason, Refusal};

/// The keys of a request, and the mode in which it acquires them.
#[derive(Debug)]
pub(crate) struct Claims {
    pub(crate) keys: KeySet,
    pub(crate) mode: Mode,
    /// Those of the keys that layers outside hold for the request, in modes that exclude this one,
    /// each with the gate of its layer. If a key is the same lock at this layer, the request would
    /// wait for itself.
    pub(crate) outside: Vec<(LockKey, Arc<Gate>)>,
    /// The client, if the layer knows it.
    pub(crate) client: Option<Client>,
    /// The request in the share of its client.
    pub(crate) place: Option<Counted<Client>>,
}

impl Claims {
    pub(crate) fn new(keys: KeySet, mode: Mode) -> Self {
        Self { keys, mode, outside: Vec::new(), client: None, place: None }
    }

    /// Returns how many requests like this one can hold a key at the same time, as far as the wait
    /// for it depends on that.
    pub(super) fn at_once(&self) -> usize {
        match self.mode {
            Mode::Permits { take, of } => usize::try_from(of / take.max(1)).unwrap_or(usize::MAX).max(1),
            _ => 1,
        }
    }
}

/// Why a hold ended before its request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Lost(Loss),
    TooLong,
}

impl Ending {
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Lost(_) => Reason::Lost,
            Self::TooLong => Reason::HeldTooLong,
        }
    }
}

/// The suggestion when the time for which a lock is held is unknown.
const RETRY_UNKNOWN: Duration = Duration::from_secs(1);
/// The suggestion when the lock service is not available.
const RETRY_OUTAGE: Duration = Duration::from_secs(5);

/// The provider, the settings and the counters of one layer.
pub(crate) struct Gate {
    pub(super) provider: Arc<dyn LockProvider>,
    pub(super) config: Config,
    pub(super) class: Arc<str>,
    pub(super) tally: Arc<Tally>,
}

impl Gate {
    pub(crate) fn new(provider: Arc<dyn LockProvider>, config: Config, class: &str, tally: Arc<Tally>) -> Self {
        let class = config.class.clone().unwrap_or_else(|| class.into());
        Self { provider, config, class, tally }
    }

    /// The hold of a request has ended before the request was served.
    pub(crate) fn aborted(&self, ending: Ending) -> Refusal {
        let retry_after = self.tally.pace().estimate(1).unwrap_or(RETRY_UNKNOWN);
        let refusal = Refusal::new(ending.reason()).with_retry_after(Some(retry_after));
        let refusal = match ending {
            Ending::Lost(loss) => refusal.with_source(LockError::new(ErrorKind::Lost, loss.to_string())),
            Ending::TooLong => refusal,
        };
        let hint = match ending {
            Ending::Lost(_) => "",
            Ending::TooLong => ": if it acquires the lock of its own layer, it waits for itself",
        };
        tracing::warn!(lock.class = %self.class, lock.outcome = refusal.reason().as_str(), "request aborted{hint}");
        self.count(&refusal);
        refusal
    }

    /// The task that served the request was stopped from outside.
    pub(crate) fn stopped(&self) -> Refusal {
        let refusal = Refusal::new(Reason::Unavailable).with_retry_after(Some(RETRY_OUTAGE));
        self.count(&refusal);
        refusal
    }

    /// Counts a request in the share of its client.
    pub(crate) fn enter(&self, client: Client) -> Result<Counted<Client>, Refusal> {
        self.tally.clients.enter(client, self.config.limits.per_client).ok_or_else(|| {
            let retry_after = self.tally.pace().estimate(1).unwrap_or(RETRY_UNKNOWN);
            let refusal = Refusal::new(Reason::ClientLimit).with_retry_after(Some(retry_after));
            self.count(&refusal);
            refusal
        })
    }

    /// The request has no valid key.
    pub(crate) fn rejected(&self, rejection: KeyRejection) -> Refusal {
        if rejection.is_misconfigured() {
            tracing::error!(lock.class = %self.class, error = %rejection, "the lock layer is misconfigured");
        }
        let refusal = Refusal::from(rejection);
        self.count(&refusal);
        refusal
    }

    /// The key was held until the wait was over.
    pub(super) fn stayed_locked(&self, claims: &Claims, wait: Wait, busy: Busy) -> Refusal {
        let reason = match (claims.mode, wait) {
            (Mode::Permits { .. }, _) => Reason::NoPermit,
            (_, Wait::Try) => Reason::Busy,
            _ => Reason::Timeout,
        };
        Refusal::new(reason).with_retry_after(Some(self.retry_after(claims, busy)))
    }

    /// The layer of another gate holds the lock for the same request.
    pub(super) fn waits_for_itself(&self, outer: &Self) -> Refusal {
        tracing::error!(
            lock.class = %self.class,
            lock.outer_class = %outer.class,
            "two lock layers of one route lock the same key, so the request would wait for itself: \
             remove one of them, or give them different keys"
        );
        Refusal::new(Reason::Misconfigured)
    }

    /// The provider answered with an error.
    pub(super) fn failed(&self, claims: &Claims, error: LockError) -> Refusal {
        let refusal = Refusal::from(error);
        let retry_after = match refusal.reason() {
            Reason::BadKey | Reason::NotFound | Reason::Rejected | Reason::Misconfigured => None,
            Reason::Unavailable => Some(RETRY_OUTAGE),
            _ => Some(self.retry_after(claims, Busy::new())),
        };
        if refusal.reason() == Reason::Misconfigured {
            let error = refusal.lock_error().map(tracing::field::display);
            tracing::error!(lock.class = %self.class, error, "the lock layer is misconfigured");
        }
        refusal.with_retry_after(retry_after)
    }

    /// Too many requests are waiting.
    pub(super) fn full(&self, claims: &Claims) -> Refusal {
        Refusal::new(Reason::Full).with_retry_after(Some(self.retry_after(claims, Busy::new())))
    }

    /// Too many requests hold their locks.
    pub(super) fn holds_are_full(&self) -> Refusal {
        let retry_after = self.tally.pace().estimate(1).unwrap_or(RETRY_UNKNOWN);
        Refusal::new(Reason::Full).with_retry_after(Some(retry_after))
    }

    /// Returns the average hold time times the length of the queue, the holder included; of permits
    /// several are passed on in that time. Before the first hold it returns what the store
    /// suggests, or else [`RETRY_UNKNOWN`].
    fn retry_after(&self, claims: &Claims, busy: Busy) -> Duration {
        let elsewhere = busy.ahead.map_or(0, |ahead| usize::try_from(ahead).unwrap_or(usize::MAX));
        let ahead = self.tally.waiters.ahead(&claims.keys).max(elsewhere).saturating_add(1);
        self.tally.pace().estimate(ahead.div_ceil(claims.at_once())).or(busy.retry_after).unwrap_or(RETRY_UNKNOWN)
    }

    /// Reports a refusal in the counters, the metrics and the log.
    pub(super) fn count(&self, refusal: &Refusal) {
        let reason = refusal.reason().as_str();
        self.tally.refused(refusal.reason());
        record::refusal(&self.class, refusal.reason());
        let error = std::error::Error::source(refusal).map(tracing::field::display);
        tracing::debug!(lock.class = %self.class, lock.outcome = reason, error, "request refused");
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("provider", &self.provider).field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_held_together() {
        let at_once = |mode| Claims::new(KeySet::from_iter([]), mode).at_once();
        assert_eq!(at_once(Mode::Exclusive), 1);
        assert_eq!(at_once(Mode::Permits { take: 1, of: 10 }), 10);
        assert_eq!(at_once(Mode::Permits { take: 4, of: 10 }), 2);
        // Refused by the provider.
        assert_eq!(at_once(Mode::Permits { take: 0, of: 0 }), 1);
    }
}

//! The terms of a lease, with their defaults and validation.

use std::fmt;
use std::time::Duration;

use crate::error::{LockError, Result};

/// When a held lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RenewalPolicy {
    /// Every third of the ttl, so that two renewals in a row may fail. The default.
    #[default]
    Auto,
    /// Once per interval. It must be shorter than the ttl less the safety margin.
    Every(Duration),
    /// Never: the lease ends with its ttl, however long the guard lives.
    Never,
}

/// The terms of a lease: the defaults of a provider, or what one acquisition changes of them.
///
/// A value set on the acquisition takes precedence over one set on the provider, and that over the
/// default that each setter documents.
///
/// ```
/// # use std::time::Duration;
/// use distlock_api::LeaseOptions;
///
/// let options = LeaseOptions::new().ttl(Duration::from_secs(12));
/// assert_eq!(options.get_ttl(), Some(Duration::from_secs(12)));
///
/// let terms = options.terms()?;
/// assert_eq!(terms.renew_every, Some(Duration::from_secs(4)));
/// assert_eq!(terms.margin, Duration::from_secs(1));
/// # Ok::<(), distlock_api::LockError>(())
/// ```
///
/// The three times of a lease together. The store keeps it for 20 s, it is renewed every 5 s, and
/// the guard considers itself lost 2 s earlier than the store:
///
/// ```
/// # use std::time::Duration;
/// use distlock_api::{LeaseOptions, RenewalPolicy};
///
/// let lease = LeaseOptions::new()
///     .ttl(Duration::from_secs(20))
///     .renewal(RenewalPolicy::Every(Duration::from_secs(5)))
///     .safety_margin(Duration::from_secs(2));
/// let terms = lease.terms()?;
/// assert_eq!(terms.ttl - terms.margin, Duration::from_secs(18)); // without a renewal
/// assert_eq!(terms.renew_every, Some(Duration::from_secs(5))); // two in a row may fail
/// # Ok::<(), distlock_api::LockError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseOptions {
    ttl: Option<Duration>,
    renewal: Option<RenewalPolicy>,
    safety_margin: Option<Duration>,
    hold_at_least: Option<Duration>,
    linger: Option<Duration>,
    max_hold: Option<Duration>,
}

/// Shows what is set.
impl fmt::Debug for LeaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = f.debug_struct("LeaseOptions");
        self.describe(&mut options);
        options.finish()
    }
}

impl LeaseOptions {
    pub(super) fn describe(&self, f: &mut fmt::DebugStruct<'_, '_>) {
        if let Some(ttl) = &self.ttl {
            f.field("ttl", ttl);
        }
        if let Some(renewal) = &self.renewal {
            f.field("renewal", renewal);
        }
        if let Some(margin) = &self.safety_margin {
            f.field("safety_margin", margin);
        }
        if let Some(hold) = &self.hold_at_least {
            f.field("hold_at_least", hold);
        }
        if let Some(linger) = &self.linger {
            f.field("linger", linger);
        }
        if let Some(hold) = &self.max_hold {
            f.field("max_hold", hold);
        }
    }

    /// The default ttl: 30 s.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// The shortest ttl, and the resolution of all durations sent to a store: 1 ms.
    pub const MIN_TTL: Duration = Duration::from_millis(1);
    /// The longest ttl and minimum hold: `i32::MAX` ms, almost 25 days.
    pub const MAX_TTL: Duration = Duration::from_millis(i32::MAX as u64);

    /// The longest linger: a minute. 250 ms or less is recommended.
    pub const MAX_LINGER: Duration = Duration::from_secs(60);

    /// Clock steps and skew, which the margin covers, do not grow with the ttl.
    const MAX_DEFAULT_MARGIN: Duration = Duration::from_secs(1);

    /// Returns options without any value set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ttl: None, renewal: None, safety_margin: None, hold_at_least: None, linger: None, max_hold: None }
    }

    /// Sets how long the store keeps the lease without a renewal. Whole milliseconds; a fraction is
    /// cut off. Defaults to [`DEFAULT_TTL`](Self::DEFAULT_TTL).
    ///
    /// Waiters wait this long for a holder that died. So choose it by how long that is acceptable,
    /// and not by how long the work takes: the lease of a living holder is renewed.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets when the lease is renewed. Defaults to [`RenewalPolicy::Auto`].
    #[must_use]
    pub const fn renewal(mut self, renewal: RenewalPolicy) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// Sets how much earlier than the store the guard considers itself lost (contract clause [C3]).
    /// Defaults to a tenth of the ttl, 1 s at most.
    ///
    /// It must cover steps of the store's clock, and the skew between replica-set members that
    /// succeed each other as primary. Client clocks play no part.
    ///
    /// [C3]: distlock_api::contract#c3
    #[must_use]
    pub const fn safety_margin(mut self, margin: Duration) -> Self {
        self.safety_margin = Some(margin);
        self
    }

    /// Keeps the key closed for at least this long after the grant, even if the guard is released
    /// earlier ([C25]). Whole milliseconds; a fraction is cut off. Defaults to no minimum.
    ///
    /// For jobs that every server of a fleet starts "at midnight" by its own clock. The first
    /// server does the work in a second, and servers whose clocks are late find the lock busy.
    ///
    /// [C25]: distlock_api::contract#c25
    #[must_use]
    pub const fn hold_at_least(mut self, duration: Duration) -> Self {
        self.hold_at_least = Some(duration);
        self
    }

    /// Keeps the lease for this long after a release, for the next acquisition of the key by the
    /// same provider: it sends no request. At most [`MAX_LINGER`](Self::MAX_LINGER); 250 ms or less
    /// is recommended. Defaults to the provider's, which defaults to zero, that is, off.
    ///
    /// For keys that one process uses again and again, for example because a load balancer sends
    /// each user to the same replica.
    ///
    /// It costs others this time. Until it has passed, a `try_acquire` of another process is
    /// answered "busy", and a waiter of another process waits that much longer. No time is added
    /// once the process knows of such a waiter. A process that ends without
    /// [`close`](crate::LockProvider::close) keeps a lingering lease, like any other, until its ttl
    /// ends; so does a runtime that ends. When its time is over, the key seems busy, also to this
    /// process, until the store has answered.
    ///
    /// A release is answered at once. Until the lease is given back, it counts as held in the
    /// provider's [accounting](crate::Accounting) and at the store. `close` gives it back. An
    /// acquisition with other terms, another owner or on another runtime first releases it, which
    /// takes a second round trip.
    ///
    /// A lease lingers only where it could be handed on to a caller that waits. It does not linger
    /// without renewal, with a minimum or maximum hold, in a document, or in a provider whose
    /// requests cost nothing. Nor do shared leases and permits, nor the rolled-back part of an
    /// [`acquire_all`](crate::LockProviderExt::acquire_all), nor a lease that would end meanwhile.
    #[must_use]
    pub const fn linger(mut self, duration: Duration) -> Self {
        self.linger = Some(duration);
        self
    }

    /// Ends the lease this long after the request that was granted, whatever the renewals say. The
    /// guard is then lost, with [`Loss::HeldTooLong`](crate::Loss::HeldTooLong). The lock is given
    /// back when the guard is given up, or when the safety margin has passed. (In `MemoryProvider`,
    /// which has no margin, at once.) Defaults to no maximum.
    ///
    /// For work that may hang. The lease of a living process is renewed for as long as its guard
    /// exists, so a task that never ends would keep the lock for ever. The work itself must stop by
    /// the guard's [`lost`](crate::LockGuard::lost), as it does in [`run`](crate::LockGuard::run).
    /// Until it has stopped, only the fencing token keeps it from writing beside the next holder.
    ///
    /// A lease with a maximum is for one guard: it is not handed on within the process, nor shared
    /// or kept for a moment there. A wait before the grant does not count.
    #[must_use]
    pub const fn max_hold(mut self, duration: Duration) -> Self {
        self.max_hold = Some(duration);
        self
    }

    /// Returns the ttl, if one is set.
    #[must_use]
    pub const fn get_ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// Returns the renewal policy, if one is set.
    #[must_use]
    pub const fn get_renewal(&self) -> Option<RenewalPolicy> {
        self.renewal
    }

    /// Returns the safety margin, if one is set.
    #[must_use]
    pub const fn get_safety_margin(&self) -> Option<Duration> {
        self.safety_margin
    }

    /// Returns the minimum hold, if one is set.
    #[must_use]
    pub const fn get_hold_at_least(&self) -> Option<Duration> {
        self.hold_at_least
    }

    /// Returns the linger, if one is set.
    #[must_use]
    pub const fn get_linger(&self) -> Option<Duration> {
        self.linger
    }

    /// Returns the maximum hold, if one is set.
    #[must_use]
    pub const fn get_max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// Returns these options, with those of `defaults` for what is not set.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            ttl: self.ttl.or(defaults.ttl),
            renewal: self.renewal.or(defaults.renewal),
            safety_margin: self.safety_margin.or(defaults.safety_margin),
            hold_at_least: self.hold_at_least.or(defaults.hold_at_least),
            linger: self.linger.or(defaults.linger),
            max_hold: self.max_hold.or(defaults.max_hold),
        }
    }

    /// Validates the options, fills in the defaults, and returns the terms.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](crate::ErrorKind::InvalidOptions), with its own message for
    /// each of these:
    /// * a ttl that is zero, below 1 ms, or above [`MAX_TTL`](Self::MAX_TTL);
    /// * a margin that is not below the ttl;
    /// * a renewal interval that is zero, or not below the ttl less the margin;
    /// * a minimum hold above [`MAX_TTL`](Self::MAX_TTL);
    /// * a linger above [`MAX_LINGER`](Self::MAX_LINGER);
    /// * a maximum hold of zero.
    pub fn terms(self) -> Result<LeaseTerms> {
        let refuse = |message: String| Err(LockError::invalid_options(message));
        let ttl = self.ttl.unwrap_or(Self::DEFAULT_TTL);
        if ttl.is_zero() {
            return refuse(format!("the ttl must not be zero: the shortest one is {:?}", Self::MIN_TTL));
        }
        if ttl < Self::MIN_TTL {
            return refuse(format!("a ttl of {ttl:?} is below the shortest one, {:?}", Self::MIN_TTL));
        }
        if ttl > Self::MAX_TTL {
            return refuse(format!("a ttl of {ttl:?} is above the longest one, {:?}", Self::MAX_TTL));
        }
        let ttl = whole_millis(ttl);
        let margin = self.safety_margin.unwrap_or((ttl / 10).min(Self::MAX_DEFAULT_MARGIN));
        if margin >= ttl {
            return refuse(format!("the safety margin ({margin:?}) must be shorter than the ttl ({ttl:?})"));
        }
        let renew_every = match self.renewal.unwrap_or_default() {
            RenewalPolicy::Never => None,
            // A margin of two thirds or more leaves no room at a third of the ttl.
            RenewalPolicy::Auto => Some((ttl / 3).min((ttl - margin) / 2)),
            RenewalPolicy::Every(cadence) if cadence.is_zero() => {
                return refuse("the renewal interval must not be zero: `RenewalPolicy::Never` does not renew".into());
            }
            RenewalPolicy::Every(cadence) if cadence >= ttl => {
                return refuse(format!("the renewal interval ({cadence:?}) must be shorter than the ttl ({ttl:?})"));
            }
            RenewalPolicy::Every(cadence) if cadence >= ttl - margin => {
                return refuse(format!(
                    "the renewal interval ({cadence:?}) must be shorter than the ttl less the safety margin ({:?})",
                    ttl - margin
                ));
            }
            RenewalPolicy::Every(cadence) => Some(cadence),
        };
        let hold_at_least = self.hold_at_least.map(whole_millis).filter(|hold| !hold.is_zero());
        if let Some(hold) = hold_at_least.filter(|hold| *hold > Self::MAX_TTL) {
            return refuse(format!("a minimum hold of {hold:?} is above the longest one, {:?}", Self::MAX_TTL));
        }
        if let Some(linger) = self.linger.filter(|linger| *linger > Self::MAX_LINGER) {
            return refuse(format!("a linger of {linger:?} is above the longest one, {:?}", Self::MAX_LINGER));
        }
        if self.max_hold.is_some_and(|hold| hold.is_zero()) {
            return refuse("the maximum hold must not be zero: leave it out for none".into());
        }
        Ok(LeaseTerms { ttl, renew_every, margin, hold_at_least, max_hold: self.max_hold })
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Validated terms of one lease. Made by [`LeaseOptions::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseTerms {
    /// The time for which the store keeps the lease without a renewal.
    pub ttl: Duration,
    /// The renewal interval; `None` if the lease is never renewed.
    pub renew_every: Option<Duration>,
    /// The time by which the guard considers itself lost earlier than the store.
    pub margin: Duration,
    /// The time for which the key stays closed after the grant, even if the guard is released
    /// earlier.
    pub hold_at_least: Option<Duration>,
    /// The time after which the guard is lost at the latest, from the request that was granted.
    pub max_hold: Option<Duration>,
}

impl LeaseTerms {
    /// Returns whether the lease is for one guard: its time counts from the grant, so that no
    /// further guard of the process may have it.
    #[must_use]
    pub const fn is_for_one_guard(&self) -> bool {
        self.hold_at_least.is_some() || self.max_hold.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn defaults_leave_room_for_two_failed_renewals() {
        let terms = LeaseOptions::new().terms().unwrap();
        assert_eq!((terms.ttl, terms.margin), (Duration::from_secs(30), Duration::from_secs(1)));
        assert_eq!(terms.renew_every, Some(Duration::from_secs(10)));
    }

    #[test]
    fn the_acquisition_takes_precedence_over_the_provider() {
        let provider = LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(5));
        let terms = LeaseOptions::new().ttl(ms(2000)).or(provider).terms().unwrap();
        assert_eq!((terms.ttl, terms.margin), (ms(2000), ms(5)));
    }

    #[test]
    fn each_mistake_has_its_own_message() {
        let o = LeaseOptions::new().ttl(ms(100));
        let every = |d| o.renewal(RenewalPolicy::Every(d));
        let mistakes = [
            (o.ttl(Duration::ZERO), "must not be zero"),
            (o.ttl(Duration::from_micros(999)), "below the shortest"),
            (o.ttl(Duration::MAX), "above the longest"),
            (o.safety_margin(ms(100)), "margin (100ms) must be shorter than the ttl (100ms)"),
            (every(Duration::ZERO), "interval must not be zero"),
            (every(ms(100)), "interval (100ms) must be shorter than the ttl (100ms)"),
            (every(ms(95)), "shorter than the ttl less the safety margin (90ms)"),
            (o.hold_at_least(Duration::MAX), "minimum hold"),
            (o.max_hold(Duration::ZERO), "maximum hold must not be zero"),
        ];
        for (options, expected) in mistakes {
            let error = options.terms().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidOptions);
            assert!(error.to_string().contains(expected), "{error} should contain {expected:?}");
        }
        assert!(o.safety_margin(ms(99)).terms().unwrap().renew_every.unwrap() < ms(1));
    }
}

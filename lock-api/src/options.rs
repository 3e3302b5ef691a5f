//! What an acquisition may ask for, with defaults and validation.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{LockError, Result};
pub(crate) use crate::holder::Holder;

/// How long to wait for the present holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wait {
    /// Do not wait: one attempt.
    Try,
    /// Wait at most this long, measured from the call. `UpTo(Duration::ZERO)` is [`Try`](Self::Try).
    UpTo(Duration),
    /// Wait until the lock is granted. The default.
    #[default]
    Forever,
}

/// When a held lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenewalPolicy {
    /// Every third of the ttl, so that two renewals in a row may fail. The default.
    #[default]
    Auto,
    /// Once per this interval. It must be shorter than the ttl less the safety margin.
    Every(Duration),
    /// Never: the lease ends with its ttl however long the guard lives.
    Never,
}

/// The terms of a lease: for a provider as its defaults, for one acquisition as what differs from them.
///
/// What is set on the acquisition counts before what is set on the provider, and that before the defaults
/// written at each setter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseOptions {
    ttl: Option<Duration>,
    renewal: Option<RenewalPolicy>,
    safety_margin: Option<Duration>,
    hold_at_least: Option<Duration>,
}

impl LeaseOptions {
    /// The ttl when nobody sets one: 30 s.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// The shortest ttl, and the resolution of all durations sent to a store: 1 ms.
    pub const MIN_TTL: Duration = Duration::from_millis(1);
    /// The longest ttl and minimum hold: `i32::MAX` ms, almost 25 days.
    pub const MAX_TTL: Duration = Duration::from_millis(i32::MAX as u64);

    /// What a margin is for does not grow with the ttl.
    const MAX_DEFAULT_MARGIN: Duration = Duration::from_secs(1);

    /// Nothing set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ttl: None, renewal: None, safety_margin: None, hold_at_least: None }
    }

    /// How long the store keeps the lease without a renewal. Whole milliseconds, the rest is cut off.
    /// Defaults to [`DEFAULT_TTL`](Self::DEFAULT_TTL).
    ///
    /// It is also how long others wait for a holder that died, so choose it by how long that may hurt, not by how
    /// long the work takes: a living holder is renewed.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// When the lease is renewed. Defaults to [`RenewalPolicy::Auto`].
    #[must_use]
    pub const fn renewal(mut self, renewal: RenewalPolicy) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// How much earlier than the store the guard considers itself lost (contract clause C3). Defaults to a tenth of the ttl, 1 s at most.
    ///
    /// It must cover steps of the store's clock and the skew between replica-set members that follow each other as
    /// primary. Client clocks play no part.
    #[must_use]
    pub const fn safety_margin(mut self, margin: Duration) -> Self {
        self.safety_margin = Some(margin);
        self
    }

    /// Keep the key closed for at least this long after the grant, even if the guard is released earlier (C25). Whole
    /// milliseconds, the rest is cut off. Defaults to nothing.
    ///
    /// For jobs that every server of a fleet starts "at midnight" by its own clock: whoever is first does the work in a second, and
    /// those whose clocks are late still find the lock taken.
    #[must_use]
    pub const fn hold_at_least(mut self, duration: Duration) -> Self {
        self.hold_at_least = Some(duration);
        self
    }

    /// These options where they are set, `defaults` elsewhere.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            ttl: self.ttl.or(defaults.ttl),
            renewal: self.renewal.or(defaults.renewal),
            safety_margin: self.safety_margin.or(defaults.safety_margin),
            hold_at_least: self.hold_at_least.or(defaults.hold_at_least),
        }
    }

    /// The terms these options amount to.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](crate::ErrorKind::InvalidOptions), with a message of its own for each: a ttl that is zero, below one millisecond or above
    /// [`MAX_TTL`](Self::MAX_TTL); a margin not below the ttl; a renewal interval that is zero, not below the ttl, or not below the ttl less the margin;
    /// a minimum hold above [`MAX_TTL`](Self::MAX_TTL).
    pub fn terms(self) -> Result<LeaseTerms> {
        let refuse = |message: String| Err(LockError::invalid_options(message));
        let ttl = self.ttl.unwrap_or(Self::DEFAULT_TTL);
        if ttl.is_zero() {
            return refuse("the ttl must not be zero".into());
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
                return refuse("the renewal interval must not be zero".into());
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
        Ok(LeaseTerms { ttl, renew_every, margin, hold_at_least })
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Validated terms of one lease. Made by [`LeaseOptions::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseTerms {
    /// How long the store keeps the lease without a renewal.
    pub ttl: Duration,
    /// The renewal interval; none if the lease is never renewed.
    pub renew_every: Option<Duration>,
    /// How much earlier than the store the guard considers itself lost.
    pub margin: Duration,
    /// How long the key stays closed after the grant, whatever happens.
    pub hold_at_least: Option<Duration>,
}

/// Everything one acquisition may ask for. Cheap to make, to clone and to pass on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    wait: Wait,
    /// None if nothing is set, which is usual. They are large, and options are moved about in every call.
    lease: Option<Box<LeaseOptions>>,
    holder: Holder,
}

impl AcquireOptions {
    /// The defaults: wait for ever, the provider's lease terms and owner.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// One attempt, no waiting.
    #[must_use]
    #[inline]
    pub fn try_once() -> Self {
        Self::default().with_wait(Wait::Try)
    }

    /// How long to wait for the present holder. Defaults to [`Wait::Forever`].
    #[must_use]
    #[inline]
    pub fn with_wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The lease terms that differ from the provider's.
    #[must_use]
    #[inline]
    pub fn with_lease(mut self, lease: LeaseOptions) -> Self {
        self.lease = (lease != LeaseOptions::new()).then(|| Box::new(lease));
        self
    }

    /// Who is going to hold the lock, for people. Defaults to the provider's owner.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.holder.owner = Some(owner.into());
        self
    }

    /// One named remark about this acquisition, for people; it is added to the provider's, and counts before one of the same name. Defaults to
    /// those of the provider.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.holder = self.holder.with_metadata(name, value);
        self
    }

    /// The same options, with the metadata of a provider's holder added where they have metadata of
    /// their own. For providers.
    #[must_use]
    pub fn with_metadata_of(mut self, provider: &Holder) -> Self {
        if self.holder.metadata.is_some() && provider.metadata.is_some() {
            self.holder = self.holder.or(provider);
        }
        self
    }

    /// How long to wait.
    #[must_use]
    #[inline]
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// The lease terms that differ from the provider's.
    #[must_use]
    #[inline]
    pub fn lease(&self) -> LeaseOptions {
        match &self.lease {
            Some(lease) => **lease,
            None => LeaseOptions::new(),
        }
    }

    /// Who and why.
    #[must_use]
    #[inline]
    pub fn holder(&self) -> &Holder {
        &self.holder
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
    fn the_acquisition_counts_before_the_provider() {
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
        ];
        for (options, expected) in mistakes {
            let error = options.terms().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidOptions);
            assert!(error.to_string().contains(expected), "{error} should contain {expected:?}");
        }
        assert!(o.safety_margin(ms(99)).terms().unwrap().renew_every.unwrap() < ms(1));
    }

    #[test]
    fn terms_that_say_nothing_are_no_terms() {
        let set = AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ms(5)));
        assert_eq!(set.lease(), LeaseOptions::new().ttl(ms(5)));
        assert_ne!(set, AcquireOptions::new());
        assert_eq!(set.with_lease(LeaseOptions::new()), AcquireOptions::new());
    }

    #[test]
    fn people_cannot_bloat_the_record() {
        let long = AcquireOptions::new().with_owner("o".repeat(257));
        assert!(long.holder().validate().unwrap_err().to_string().contains("257"));
        let fat = AcquireOptions::new().with_metadata("n", "v".repeat(4096));
        assert!(fat.holder().validate().unwrap_err().to_string().contains("4097"));
    }
}

//! The options of an acquisition.

use std::fmt;
use std::time::Duration;

use super::lease::LeaseOptions;
use crate::holder::Holder;
use crate::mode::Mode;

/// The time to wait for the present holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wait {
    /// No wait: one attempt.
    Try,
    /// At most this long, measured from the call. `UpTo(Duration::ZERO)` is [`Try`](Self::Try).
    UpTo(Duration),
    /// Until the lock is granted. The default.
    #[default]
    Forever,
}

/// The options of one acquisition. Cheap to make, to clone and to pass on.
///
/// The setters of [`Acquire`](crate::Acquire) set the same values. Make `AcquireOptions` to keep
/// them, to call [`LockProvider::acquire_with`](crate::LockProvider::acquire_with), or to read them
/// from a configuration with the feature `serde`.
///
/// ```
/// # use std::time::Duration;
/// use distlock_api::{AcquireOptions, LeaseOptions, Wait};
///
/// let options = AcquireOptions::new()
///     .with_wait(Wait::UpTo(Duration::from_secs(5)))
///     .with_lease(LeaseOptions::new().ttl(Duration::from_secs(12)))
///     .with_owner("billing-1");
/// assert_eq!(options.lease().get_ttl(), Some(Duration::from_secs(12)));
/// assert_eq!(options.holder().owner.as_deref(), Some("billing-1"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    wait: Wait,
    /// `None` if no term is set, which is usual. Boxed, because the terms are large and every call
    /// moves its options.
    lease: Option<Box<LeaseOptions>>,
    holder: Holder,
    batched: bool,
    mode: Mode,
}

impl AcquireOptions {
    /// Returns the defaults: a wait without a limit, and the provider's lease terms and holder.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns options without a wait: one attempt.
    #[must_use]
    #[inline]
    pub fn try_once() -> Self {
        Self::default().with_wait(Wait::Try)
    }

    /// Sets how long to wait for the present holder. Defaults to [`Wait::Forever`].
    #[must_use]
    #[inline]
    pub fn with_wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Lets an attempt without a wait go to the store together with others. It may then take a
    /// second round trip. It is answered "busy" as soon as another caller of the process wants the
    /// key, so that it never overtakes one that waits, and also without a request if such attempts
    /// found the key busy lately.
    ///
    /// For callers that make several attempts at once and then ask for the busy lock itself, as
    /// [`acquire_group`](crate::style::acquire_group) does. An attempt with a wait goes together
    /// with others in any case.
    #[must_use]
    #[inline]
    pub fn batched(mut self) -> Self {
        self.batched = true;
        self
    }

    /// Sets what is claimed of the key. Defaults to [`Mode::Exclusive`].
    #[must_use]
    #[inline]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the lease terms that differ from the provider's.
    #[must_use]
    #[inline]
    pub fn with_lease(mut self, lease: LeaseOptions) -> Self {
        self.lease = (lease != LeaseOptions::new()).then(|| Box::new(lease));
        self
    }

    /// Names the holder, for people. Defaults to the provider's owner.
    #[must_use]
    pub fn with_owner(mut self, owner: impl AsRef<str>) -> Self {
        self.holder = self.holder.with_owner(owner);
        self
    }

    /// Adds one named remark about this acquisition, for people, to the provider's remarks. It
    /// replaces one of the same name.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.holder = self.holder.with_metadata(name, value);
        self
    }

    /// Merges the metadata of a provider's holder into the metadata of these options, if they have
    /// any. For providers.
    #[must_use]
    pub fn with_default_metadata(mut self, provider: &Holder) -> Self {
        if self.holder.metadata.is_some() && provider.metadata.is_some() {
            self.holder = self.holder.or(provider);
        }
        self
    }

    /// Returns how long to wait.
    #[must_use]
    #[inline]
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// Returns whether an attempt without a wait may go [together with others](Self::batched).
    #[must_use]
    #[inline]
    pub fn is_batched(&self) -> bool {
        self.batched
    }

    /// Returns what is claimed of the key.
    #[must_use]
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the lease terms that differ from the provider's.
    #[must_use]
    #[inline]
    pub fn lease(&self) -> LeaseOptions {
        match &self.lease {
            Some(lease) => **lease,
            None => LeaseOptions::new(),
        }
    }

    /// Returns the owner and the remarks.
    #[must_use]
    #[inline]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

/// Shows the wait, and what is set.
impl fmt::Debug for AcquireOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = f.debug_struct("AcquireOptions");
        options.field("wait", &self.wait);
        if !self.mode.is_exclusive() {
            options.field("mode", &self.mode);
        }
        self.lease().describe(&mut options);
        if let Some(owner) = &self.holder.owner {
            options.field("owner", owner);
        }
        if let Some(metadata) = &self.holder.metadata {
            options.field("metadata", metadata);
        }
        options.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn debug_shows_what_is_set() {
        let options = AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ms(5)));
        assert_eq!(format!("{options:?}"), "AcquireOptions { wait: Forever, ttl: 5ms }");
        assert_eq!(format!("{:?}", AcquireOptions::try_once()), "AcquireOptions { wait: Try }");
    }

    #[test]
    fn terms_without_a_value_equal_no_terms() {
        let set = AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ms(5)));
        assert_eq!(set.lease(), LeaseOptions::new().ttl(ms(5)));
        assert_ne!(set, AcquireOptions::new());
        assert_eq!(set.with_lease(LeaseOptions::new()), AcquireOptions::new());
    }

    #[test]
    fn long_owners_and_large_metadata_are_refused() {
        let long = AcquireOptions::new().with_owner("o".repeat(257));
        assert!(long.holder().validate().unwrap_err().to_string().contains("257"));
        let fat = AcquireOptions::new().with_metadata("n", "v".repeat(4096));
        assert!(fat.holder().validate().unwrap_err().to_string().contains("4097"));
    }
}

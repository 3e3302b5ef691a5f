//! Why a request was not served under its lock.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, LockError};

pub(crate) type Source = Box<dyn StdError + Send + Sync + 'static>;

/// Returns a duration in whole seconds, rounded up and at least one, for a `Retry-After` field.
fn whole_secs(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).max(1)
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Another holder has the lock, and the layer does not wait.
    Busy,
    /// Another holder had the lock until the wait, or the caller's own deadline, was over.
    Timeout,
    /// All permits of the key were in use until the wait, or the caller's own deadline, was over.
    NoPermit,
    /// Too many requests are waiting, in this layer or in the store, or hold their locks.
    Full,
    /// The client has too many requests at once, waiting or being served.
    ClientLimit,
    /// The lock service could not be reached, or is shutting down.
    Unavailable,
    /// The lock was lost while the request was served, and [`OnLoss::Abort`](crate::OnLoss::Abort)
    /// was chosen.
    Lost,
    /// The request was served for longer than the maximum hold.
    HeldTooLong,
    /// The request does not name a valid key.
    BadKey,
    /// Locks are kept in documents, and there is no such document.
    NotFound,
    /// Locks are kept in documents, and a validator or a unique index refused the new document.
    Rejected,
    /// The layer cannot work as it was set up, or the store cannot work with the data that it
    /// found. The operator must act; the caller cannot.
    Misconfigured,
}

impl Reason {
    pub(crate) const ALL: [Self; 12] = [
        Self::Busy,
        Self::Timeout,
        Self::NoPermit,
        Self::Full,
        Self::ClientLimit,
        Self::Unavailable,
        Self::Lost,
        Self::HeldTooLong,
        Self::BadKey,
        Self::NotFound,
        Self::Rejected,
        Self::Misconfigured,
    ];

    /// Returns the reason as a short lower-case word, for logs and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::NoPermit => "no-permit",
            Self::Full => "full",
            Self::ClientLimit => "client-limit",
            Self::Unavailable => "unavailable",
            Self::Lost => "lost",
            Self::HeldTooLong => "held-too-long",
            Self::BadKey => "bad-key",
            Self::NotFound => "not-found",
            Self::Rejected => "rejected",
            Self::Misconfigured => "misconfigured",
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "another holder has the lock",
            Self::Timeout => "the lock did not become free in time",
            Self::NoPermit => "all permits are in use",
            Self::Full => "too many requests are waiting for the lock",
            Self::ClientLimit => "the client has too many requests at once",
            Self::Unavailable => "the lock service is not available",
            Self::Lost => "the lock was lost while the request was served",
            Self::HeldTooLong => "the request held the lock for too long",
            Self::BadKey => "the request does not name a valid lock key",
            Self::NotFound => "there is nothing to lock",
            Self::Rejected => "the resource refused to be locked",
            Self::Misconfigured => "the lock layer is misconfigured",
        })
    }
}

/// A refused request: the [reason](Self::reason), when another try is worth it, and the cause as
/// [`source`](StdError::source).
///
/// The cause is for logs. It may name keys, which callers must not see.
#[derive(Debug)]
pub struct Refusal {
    reason: Reason,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

impl Refusal {
    pub(crate) fn new(reason: Reason) -> Self {
        Self { reason, retry_after: None, source: None }
    }

    pub(crate) fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// Returns why the request was refused.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns how long to wait before another try: the average hold time in this layer times the
    /// length of the queue, or what the store suggests. The queue of permits is divided by their
    /// number. `None` if another try is pointless.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up and at least one,
    /// for a `Retry-After` field.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(whole_secs)
    }

    /// Returns the lock error that caused the refusal, if there is one.
    #[must_use]
    pub fn lock_error(&self) -> Option<&LockError> {
        self.source.as_deref()?.downcast_ref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl StdError for Refusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        let reason = match error.kind() {
            ErrorKind::InvalidKey => Reason::BadKey,
            ErrorKind::NotFound => Reason::NotFound,
            ErrorKind::Rejected => Reason::Rejected,
            ErrorKind::QueueFull => Reason::Full,
            ErrorKind::Lost => Reason::Lost,
            ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::Closed => {
                Reason::Unavailable
            }
            ErrorKind::InvalidOptions | ErrorKind::Unsupported | ErrorKind::PermissionDenied => Reason::Misconfigured,
            ErrorKind::Corrupt => Reason::Misconfigured,
            // A permanent error needs a change, so another try is pointless.
            _ if error.disposition() == Disposition::Permanent => Reason::Misconfigured,
            _ => Reason::Unavailable,
        };
        Self::new(reason).with_source(error)
    }
}

/// Why a request has no valid key. The text goes to the log, never to the caller.
#[derive(Debug)]
pub struct KeyRejection {
    misconfigured: bool,
    message: Cow<'static, str>,
    source: Option<LockError>,
}

impl KeyRejection {
    /// Rejects a request that does not name a valid key: the caller's mistake.
    pub fn bad_key(message: impl Into<Cow<'static, str>>) -> Self {
        Self { misconfigured: false, message: message.into(), source: None }
    }

    /// Rejects a request because the extractor is in the wrong place: the operator's mistake.
    pub fn misconfigured(message: impl Into<Cow<'static, str>>) -> Self {
        Self { misconfigured: true, message: message.into(), source: None }
    }

    /// Returns whether it is the operator's mistake.
    #[must_use]
    pub fn is_misconfigured(&self) -> bool {
        self.misconfigured
    }
}

/// An invalid key is the caller's mistake, every other error the operator's.
impl From<LockError> for KeyRejection {
    fn from(error: LockError) -> Self {
        let misconfigured = error.kind() != ErrorKind::InvalidKey;
        Self { misconfigured, message: error.to_string().into(), source: Some(error) }
    }
}

impl From<KeyRejection> for Refusal {
    fn from(rejection: KeyRejection) -> Self {
        let reason = if rejection.misconfigured { Reason::Misconfigured } else { Reason::BadKey };
        Self::new(reason).with_source(rejection)
    }
}

impl fmt::Display for KeyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for KeyRejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|error| error as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_never_zero() {
        let secs = |d| Refusal::new(Reason::Busy).with_retry_after(Some(d)).retry_after_secs();
        assert_eq!(secs(Duration::ZERO), Some(1));
        assert_eq!(secs(Duration::from_millis(1000)), Some(1));
        assert_eq!(secs(Duration::from_millis(1001)), Some(2));
        assert_eq!(Refusal::new(Reason::BadKey).retry_after_secs(), None);
    }

    #[test]
    fn reasons_are_indexed_in_their_order() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }

    #[test]
    fn every_lock_error_has_a_reason() {
        let reason = |kind| Refusal::from(LockError::new(kind, "")).reason();
        assert_eq!(reason(ErrorKind::InvalidKey), Reason::BadKey);
        assert_eq!(reason(ErrorKind::NotFound), Reason::NotFound);
        assert_eq!(reason(ErrorKind::Rejected), Reason::Rejected);
        assert_eq!(reason(ErrorKind::Unsupported), Reason::Misconfigured);
        assert_eq!(reason(ErrorKind::Corrupt), Reason::Misconfigured);
        assert_eq!(reason(ErrorKind::QueueFull), Reason::Full);
        assert_eq!(reason(ErrorKind::Timeout), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::Overloaded), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::Closed), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::Other), Reason::Misconfigured, "by default it is permanent");
        let in_doubt = LockError::new(ErrorKind::Other, "").outcome_unknown();
        assert_eq!(Refusal::from(in_doubt).reason(), Reason::Unavailable);
    }
}

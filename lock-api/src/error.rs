//! The one error type of locks and stores.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::key::LockKey;

/// A result whose error is a [`LockError`].
pub type Result<T, E = LockError> = std::result::Result<T, E>;

type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// What went wrong, as far as a program can react to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not a lock key. Refused before any I/O.
    InvalidKey,
    /// A duration or a combination of options makes no sense. Refused before any I/O.
    InvalidOptions,
    /// Time ran out; [`LockError::phase`] says in which phase.
    Timeout,
    /// The store could not be reached, or it answered that it cannot serve now.
    Unavailable,
    /// More calls wait for the store than it can answer before the caller leaves. Nothing was sent;
    /// [`LockError::in_line`] says how many wait.
    Overloaded,
    /// The store refused the credentials, or these may not do what was asked.
    PermissionDenied,
    /// The store cannot do this at all: too old, the wrong deployment, a capability it does not have.
    Unsupported,
    /// The provider has been shut down.
    Closed,
    /// The queue of waiters is full.
    QueueFull,
    /// The lease was lost, so what depended on it was not done.
    Lost,
    /// What carries the lock is not there: in a style that keeps locks in documents, the document.
    NotFound,
    /// The resource refused a change that was made together with the lock: a validator, a unique index. Neither was changed.
    Rejected,
    /// The store's data or answer is not what the protocol allows.
    Corrupt,
    /// Anything else, see [`source`](StdError::source).
    Other,
}

impl ErrorKind {
    /// The kind as a short lower-case word, for logs and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidKey => "invalid_key",
            Self::InvalidOptions => "invalid_options",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
            Self::PermissionDenied => "permission_denied",
            Self::Unsupported => "unsupported",
            Self::Closed => "closed",
            Self::QueueFull => "queue_full",
            Self::Lost => "lost",
            Self::NotFound => "not_found",
            Self::Rejected => "rejected",
            Self::Corrupt => "corrupt",
            Self::Other => "other",
        }
    }

    const fn usual_disposition(self) -> Disposition {
        match self {
            Self::Timeout | Self::Unavailable | Self::Overloaded | Self::QueueFull => Disposition::Retryable,
            _ => Disposition::Permanent,
        }
    }
}

/// What the caller may do about an error: the second axis beside [`ErrorKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disposition {
    /// Nothing happened; the same call may succeed later.
    Retryable,
    /// Nothing happened; the same call will fail again until something is changed.
    Permanent,
    /// The store may or may not have done it. The engine never guesses: an acquisition is retried or withdrawn under its
    /// own id, a release is repeated in the background until the lease has expired.
    OutcomeUnknown,
}

/// Where the time went when a call timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Connecting to the store, or choosing a server.
    Connect,
    /// One request to the store that was not answered in time.
    Request,
    /// Waiting for the present holder.
    Wait,
    /// Confirming a release.
    Release,
    /// Shutting down.
    Shutdown,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "while connecting",
            Self::Request => "waiting for the store's answer",
            Self::Wait => "waiting for the present holder",
            Self::Release => "waiting for the release to be confirmed",
            Self::Shutdown => "while shutting down",
        })
    }
}

/// An error of a lock operation.
///
/// It has a [kind](Self::kind), a [disposition](Self::disposition) (may I retry? did it happen?), for timeouts a
/// [phase](Self::phase), the [key](Self::key) it is about if there is one, and the cause as its
/// [`source`](StdError::source). It never holds a connection string.
///
/// Contention is not an error: see [`Acquired::Busy`](crate::Acquired::Busy).
#[derive(Clone)]
pub struct LockError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    disposition: Disposition,
    phase: Option<Phase>,
    key: Option<LockKey>,
    message: String,
    source: Option<Source>,
    in_line: Option<usize>,
}

impl LockError {
    /// An error of the given kind. Its disposition is the kind's usual one: retryable for
    /// [`Timeout`](ErrorKind::Timeout), [`Unavailable`](ErrorKind::Unavailable),
    /// [`Overloaded`](ErrorKind::Overloaded) and [`QueueFull`](ErrorKind::QueueFull), permanent for
    /// the others.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            disposition: kind.usual_disposition(),
            phase: None,
            key: None,
            message: message.into(),
            source: None,
            in_line: None,
        }))
    }

    /// A timeout in the given phase.
    pub fn timeout(phase: Phase, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Timeout, message);
        error.0.phase = Some(phase);
        error
    }

    /// A text that is not a key, refused before any I/O.
    pub fn invalid_key(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidKey, message)
    }

    /// An option that makes no sense, refused before any I/O.
    pub fn invalid_options(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOptions, message)
    }

    /// What callers of a provider hear that has been shut down.
    #[must_use]
    pub fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the lock provider has been shut down")
    }

    /// A call that was not sent, because `in_line` others wait for the store before it.
    #[must_use]
    pub fn overloaded(in_line: usize, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Overloaded, message);
        error.0.in_line = Some(in_line);
        error
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// The same error about a key.
    #[must_use]
    pub fn with_key(mut self, key: LockKey) -> Self {
        self.0.key = Some(key);
        self
    }

    /// The same error with the phase in which time ran out, for errors that say more than that it did.
    #[must_use]
    pub fn with_phase(mut self, phase: Phase) -> Self {
        self.0.phase = Some(phase);
        self
    }

    /// The same error with another answer to "may I retry?".
    #[must_use]
    pub fn with_disposition(mut self, disposition: Disposition) -> Self {
        self.0.disposition = disposition;
        self
    }

    /// Shorthand for [`with_disposition`](Self::with_disposition)`(Disposition::OutcomeUnknown)`.
    #[must_use]
    pub fn outcome_unknown(self) -> Self {
        self.with_disposition(Disposition::OutcomeUnknown)
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the caller may do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.0.disposition
    }

    /// Whether the same call may succeed later and has done nothing so far.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.disposition == Disposition::Retryable
    }

    /// Whether the store may have done what was asked although the call failed.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.0.disposition == Disposition::OutcomeUnknown
    }

    /// Which phase ran out of time, if one did: always some for [`ErrorKind::Timeout`].
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// How many calls waited for the store before this one, for [`ErrorKind::Overloaded`].
    #[must_use]
    pub fn in_line(&self) -> Option<usize> {
        self.0.in_line
    }

    /// The key the failed call was about, if it was about one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        self.0.key.as_ref()
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(phase) = self.0.phase {
            let timed_out = if self.kind() == ErrorKind::Timeout { "timed out " } else { "" };
            write!(f, " ({timed_out}{phase})")?;
        }
        if let Some(key) = &self.0.key {
            write!(f, " [lock {key:?}]")?;
        }
        match self.0.disposition {
            Disposition::OutcomeUnknown => f.write_str(" [outcome unknown]"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, disposition, phase, key, message, source, in_line } = &*self.0;
        f.debug_struct("LockError")
            .field("kind", kind)
            .field("disposition", disposition)
            .field("phase", phase)
            .field("key", key)
            .field("message", message)
            .field("source", source)
            .field("in_line", in_line)
            .finish()
    }
}

impl StdError for LockError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_where_and_whether_it_happened() {
        let error = LockError::timeout(Phase::Release, "no answer from the store")
            .outcome_unknown()
            .with_key(LockKey::new("a").unwrap())
            .with_source("socket closed");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(error.phase(), Some(Phase::Release));
        assert!(error.is_outcome_unknown() && !error.is_retryable());
        assert_eq!(
            error.to_string(),
            "no answer from the store (timed out waiting for the release to be confirmed) [lock \"a\"] [outcome unknown]"
        );
        assert_eq!(error.source().unwrap().to_string(), "socket closed");
    }

    #[test]
    fn an_error_is_one_pointer() {
        assert_eq!(size_of::<LockError>(), size_of::<usize>());
    }
}

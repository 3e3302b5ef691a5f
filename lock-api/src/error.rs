//! The one error type of locks and stores.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::key::LockKey;
use crate::loss::Loss;
use crate::printable::Printable;

/// A result whose error is a [`LockError`].
pub type Result<T, E = LockError> = std::result::Result<T, E>;

type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// The kind of an error, for programs that react to it. See [`Disposition`] for whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not a lock key. Refused before any I/O ([C20]).
    ///
    /// [C20]: distlock_api::contract#c20
    InvalidKey,
    /// A duration or a combination of options makes no sense. Refused before any I/O.
    InvalidOptions,
    /// Time ran out; [`LockError::phase`] says in which phase. A wait that ended without the lock
    /// is
    /// [`Phase::Wait`]: see [`LockError::is_not_granted`].
    Timeout,
    /// The store could not be reached, or answered that it cannot serve now.
    Unavailable,
    /// More calls wait for the store than it can answer before the caller leaves. Nothing was sent.
    /// [`LockError::calls_ahead`] says how many wait.
    Overloaded,
    /// The store refused the credentials, or they do not permit the request.
    PermissionDenied,
    /// The store cannot do this at all: it is too old, the wrong kind of deployment, or lacks a
    /// capability.
    Unsupported,
    /// The provider has been shut down.
    Closed,
    /// The queue of waiters is full.
    QueueFull,
    /// The lease was lost, so the work that depended on it was not done, or not finished.
    Lost,
    /// The record that carries the lock does not exist: in a style that keeps locks in documents,
    /// the document.
    NotFound,
    /// The resource refused a change that was sent together with the release, for example by a
    /// validator or a unique index. Neither was changed.
    Rejected,
    /// The store's data or answer is not what the protocol allows.
    Corrupt,
    /// Any other error: see [`source`](StdError::source).
    Other,
}

impl ErrorKind {
    /// Returns the kind as a short lower-case word, for logs and metric labels.
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

/// The effect of a failed call, and whether to repeat it: the second axis beside [`ErrorKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disposition {
    /// Nothing was changed; the same call may succeed later.
    Retryable,
    /// Nothing was changed; the same call fails again until its cause is removed.
    Permanent,
    /// The store may or may not have carried it out. The engine never guesses. It retries or
    /// withdraws an acquisition under its own id, and repeats a release in the background until the
    /// lease has expired.
    OutcomeUnknown,
}

/// The step of a call in which its time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The connection to the store, or the choice of a server.
    Connect,
    /// One request to the store, which was not answered in time.
    Request,
    /// The wait for the present holder.
    Wait,
    /// The confirmation of a release.
    Release,
    /// The shutdown of the provider.
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
/// | method | question |
/// |---|---|
/// | [`kind`](Self::kind) | What went wrong? |
/// | [`disposition`](Self::disposition) | May the call be retried? Can it have been carried out? |
/// | [`phase`](Self::phase) | In which step did the time run out? |
/// | [`key`](Self::key) | Which lock is it about? |
/// | [`source`](StdError::source) | What is the cause, in the words of the store? |
///
/// It never holds a connection string.
///
/// [`LockProvider::acquire_with`](crate::LockProvider::acquire_with) answers contention with
/// [`Acquired::Busy`](crate::Acquired::Busy), which is no error. A call that waits and promises a
/// guard, such as [`acquire`](crate::LockProviderExt::acquire), turns it into an error at the end
/// of its wait: [`is_not_granted`](Self::is_not_granted).
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{ErrorKind, LockError, LockProvider, LockProviderExt};
/// async fn ship(locks: &dyn LockProvider) -> Result<&'static str, LockError> {
///     let order = locks.acquire("orders/4711").timeout(Duration::from_secs(5));
///     match order.run(async |_| "shipped").await {
///         Err(error) if error.is_not_granted() => Ok("in use, come back later"),
///         Err(error) if error.kind() == ErrorKind::Lost => Ok("stopped: the lock was lost"),
///         result => result,
///     }
/// }
/// ```
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
    calls_ahead: Option<usize>,
}

impl LockError {
    /// Makes an error of the given kind. Its disposition is the kind's usual one: retryable for
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
            calls_ahead: None,
        }))
    }

    /// Makes a timeout in the given phase.
    pub fn timeout(phase: Phase, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Timeout, message);
        error.0.phase = Some(phase);
        error
    }

    /// Makes the error of a wait that ended without the lock.
    #[must_use]
    pub fn not_granted() -> Self {
        Self::timeout(Phase::Wait, "the lock was not granted")
    }

    /// Makes the error of work that depended on a lost lock.
    #[must_use]
    pub fn lost(loss: Loss) -> Self {
        Self::new(ErrorKind::Lost, format!("the lock was lost: {loss}"))
    }

    /// Makes the error of a text that is not a key. For refusals before any I/O.
    pub fn invalid_key(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidKey, message)
    }

    /// Makes the error of an option that makes no sense. For refusals before any I/O.
    pub fn invalid_options(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOptions, message)
    }

    /// Makes the error of a call to a provider that has been shut down.
    #[must_use]
    pub fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the lock provider has been shut down: make a new one")
    }

    /// Makes the error of a call that was not sent, because `calls_ahead` others wait for the store
    /// before it.
    #[must_use]
    pub fn overloaded(calls_ahead: usize, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Overloaded, message);
        error.0.calls_ahead = Some(calls_ahead);
        error
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// Sets the key that the error is about.
    #[must_use]
    pub fn with_key(mut self, key: LockKey) -> Self {
        self.0.key = Some(key);
        self
    }

    /// Removes the key, for reports that must not name it.
    pub(crate) fn without_key(mut self) -> Self {
        self.0.key = None;
        self
    }

    /// Sets the phase in which time ran out. For errors whose kind is not
    /// [`Timeout`](ErrorKind::Timeout).
    #[must_use]
    pub fn with_phase(mut self, phase: Phase) -> Self {
        self.0.phase = Some(phase);
        self
    }

    /// Sets the disposition.
    #[must_use]
    pub fn with_disposition(mut self, disposition: Disposition) -> Self {
        self.0.disposition = disposition;
        self
    }

    /// Sets the disposition to [`OutcomeUnknown`](Disposition::OutcomeUnknown).
    #[must_use]
    pub fn outcome_unknown(self) -> Self {
        self.with_disposition(Disposition::OutcomeUnknown)
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns what the caller may do about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        self.0.disposition
    }

    /// Returns whether the call changed nothing, and may succeed when it is repeated.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.disposition == Disposition::Retryable
    }

    /// Returns whether the store may have carried out the request although the call failed.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.0.disposition == Disposition::OutcomeUnknown
    }

    /// Returns whether the wait ended without the lock: a [`Timeout`](ErrorKind::Timeout) in
    /// [`Phase::Wait`]. The lock is held by another caller. It is retryable.
    #[must_use]
    pub fn is_not_granted(&self) -> bool {
        self.kind() == ErrorKind::Timeout && self.phase() == Some(Phase::Wait)
    }

    /// Returns the phase that ran out of time, if one did. Always `Some` for
    /// [`ErrorKind::Timeout`].
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// Returns how many calls waited for the store before this one. `Some` for
    /// [`ErrorKind::Overloaded`].
    #[must_use]
    pub fn calls_ahead(&self) -> Option<usize> {
        self.0.calls_ahead
    }

    /// Returns the key that the failed call was about, if it was about one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        self.0.key.as_ref()
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0.message).fmt(f)?;
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
    /// Shows the message, each cause on a line of its own, and what the caller may do. So a `main`
    /// that returns this error prints a text for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.to_string();
        f.write_str(&shown)?;
        let mut source = self.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // A message may quote its cause.
            if !shown.contains(&text) {
                write!(f, "\ncaused by: {text}")?;
                shown.push_str(&text);
            }
            source = cause.source();
        }
        let hint = match self.0.disposition {
            Disposition::Retryable => "nothing was changed, and the same call may succeed later",
            Disposition::Permanent => "the same call fails again until its cause is removed",
            Disposition::OutcomeUnknown => "the store may have carried it out",
        };
        write!(f, "\n({}: {hint})", self.0.kind.as_str())
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
    fn debug_is_a_text_for_people() {
        let refused = LockError::new(ErrorKind::Unavailable, "no server answers: connection refused")
            .with_phase(Phase::Connect)
            .with_source(LockError::new(ErrorKind::Other, "connection refused").with_source("port 1"));
        let text = "no server answers: connection refused (while connecting)\ncaused by: port 1\n(unavailable: nothing was \
                    changed, and the same call may succeed later)";
        assert_eq!(format!("{refused:?}"), text);
        assert_eq!(format!("{refused:#?}"), text);
        let unknown = LockError::new(ErrorKind::Corrupt, "unreadable").outcome_unknown();
        assert_eq!(
            format!("{unknown:?}"),
            "unreadable [outcome unknown]\n(corrupt: the store may have carried it out)"
        );
    }

    #[test]
    fn an_error_is_one_pointer() {
        assert_eq!(size_of::<LockError>(), size_of::<usize>());
    }
}

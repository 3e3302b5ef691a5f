//! Why a commit is not known to have been carried out.

use std::fmt;

use distlock_api::LockError;

use super::DocumentGuard;

/// Why a [commit](DocumentGuard::commit) is not known to have been carried out.
#[must_use]
pub enum CommitError<T> {
    /// The lock had been lost before: the document is untouched, and somebody else may have it. The error's kind is [`Lost`](distlock_api::ErrorKind::Lost).
    AlreadyLost(LockError),
    /// Nothing was changed, and the lock is still held: the guard comes back.
    Rejected(Box<Rejected<T>>),
    /// It may or may not have been carried out; if so, once. The lock is released in the background if it was not.
    Unknown(LockError),
}

/// A commit that was not carried out. Dropping it drops the guard, which releases in the background.
pub struct Rejected<T> {
    /// The guard, with the document as it was.
    pub guard: DocumentGuard<T>,
    /// Why: [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a change that was refused before anything was sent,
    /// [`Rejected`](distlock_api::ErrorKind::Rejected) if MongoDB refused it, and otherwise what kept it from being made. A retryable one may be tried again.
    pub error: LockError,
    /// MongoDB's code, if it refused the change: 121 for a validator, 11000 for a unique index.
    pub code: Option<i32>,
}

impl<T> CommitError<T> {
    /// The error without the guard, which is dropped if there is one.
    #[must_use]
    pub fn into_error(self) -> LockError {
        match self {
            Self::AlreadyLost(error) | Self::Unknown(error) => error,
            Self::Rejected(rejected) => rejected.error,
        }
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &LockError {
        match self {
            Self::AlreadyLost(error) | Self::Unknown(error) => error,
            Self::Rejected(rejected) => &rejected.error,
        }
    }

    /// Whether the lock had been lost before.
    #[must_use]
    pub const fn is_already_lost(&self) -> bool {
        matches!(self, Self::AlreadyLost(_))
    }

    /// The guard and the reason, if the lock is still held.
    #[must_use]
    pub fn rejected(self) -> Option<Rejected<T>> {
        match self {
            Self::Rejected(rejected) => Some(*rejected),
            Self::AlreadyLost(_) | Self::Unknown(_) => None,
        }
    }
}

/// For `?`. A guard that came back is dropped, and released in the background.
impl<T> From<CommitError<T>> for LockError {
    fn from(error: CommitError<T>) -> Self {
        error.into_error()
    }
}

impl<T> fmt::Debug for CommitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyLost(error) => f.debug_tuple("AlreadyLost").field(error).finish(),
            Self::Rejected(rejected) => f.debug_tuple("Rejected").field(rejected).finish(),
            Self::Unknown(error) => f.debug_tuple("Unknown").field(error).finish(),
        }
    }
}

impl<T> fmt::Display for CommitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl<T> std::error::Error for CommitError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guard, error, code } = self;
        f.debug_struct("Rejected").field("guard", guard).field("error", error).field("code", code).finish()
    }
}

//! Why a commit is not known to have been carried out.

use std::fmt;

use distlock_api::LockError;

/// Why a [commit](super::DocumentGuard::commit) is not known to have been carried out. It holds no
/// lock.
#[derive(Debug)]
#[must_use]
pub enum CommitError {
    /// The lock had been lost before: the document is untouched, and another process may hold the
    /// lock. The error's kind is [`Lost`](distlock_api::ErrorKind::Lost).
    AlreadyLost(LockError),
    /// Nothing was changed, and the lock was still held.
    Rejected {
        /// Why: [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a change that was
        /// refused before anything was sent, [`Rejected`](distlock_api::ErrorKind::Rejected) if
        /// MongoDB refused it, and otherwise what kept it from being made. A retryable one may be
        /// tried again.
        error: LockError,
        /// MongoDB's code, if it refused the change: 121 for a validator, 11000 for a unique index.
        code: Option<i32>,
    },
    /// It may or may not have been carried out; if so, once. The lock is released in the background
    /// if it was not.
    Unknown(LockError),
}

impl CommitError {
    /// The error alone.
    #[must_use]
    pub fn into_error(self) -> LockError {
        match self {
            Self::AlreadyLost(error) | Self::Unknown(error) | Self::Rejected { error, .. } => error,
        }
    }

    /// The error.
    #[must_use]
    pub fn error(&self) -> &LockError {
        match self {
            Self::AlreadyLost(error) | Self::Unknown(error) | Self::Rejected { error, .. } => error,
        }
    }

    /// Whether the lock had been lost before.
    #[must_use]
    pub const fn is_already_lost(&self) -> bool {
        matches!(self, Self::AlreadyLost(_))
    }

    /// Whether nothing was changed although the lock was held.
    #[must_use]
    pub const fn is_rejected(&self) -> bool {
        matches!(self, Self::Rejected { .. })
    }
}

impl From<CommitError> for LockError {
    fn from(error: CommitError) -> Self {
        error.into_error()
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl std::error::Error for CommitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

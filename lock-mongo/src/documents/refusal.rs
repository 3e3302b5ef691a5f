//! The error of a commit.

use std::fmt;

use distlock_api::LockError;

/// The error of a [commit](super::DocumentGuard::commit) that has failed, or may have failed. It
/// holds no lock.
///
/// ```no_run
/// use distlock_mongo::mongodb::bson::Document;
/// use distlock_mongo::{Change, CommitError, DocumentGuard};
///
/// async fn pay(order: DocumentGuard<Document>) -> &'static str {
///     match order.commit(Change::new().set("state", "paid")).await {
///         Ok(()) => "paid",
///         Err(CommitError::AlreadyLost(_)) => "nothing was changed: lock it again",
///         Err(CommitError::Rejected { code: Some(121), .. }) => "the validator does not allow it",
///         Err(CommitError::Rejected { .. }) => "nothing was changed",
///         Err(_) => "it may have been changed: lock it again, and look",
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum CommitError {
    /// The lock had been lost before: the document is untouched, and another process may hold the
    /// lock. The error's kind is [`Lost`](distlock_api::ErrorKind::Lost).
    AlreadyLost(LockError),
    /// Nothing was changed, and the lock was still held.
    Rejected {
        /// The reason: [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a change
        /// that was refused before anything was sent,
        /// [`Rejected`](distlock_api::ErrorKind::Rejected) if MongoDB refused it, or another error.
        /// After a retryable one try again.
        error: LockError,
        /// MongoDB's code, if it refused the change: 121 for a validator, 11000 for a unique index.
        code: Option<i32>,
    },
    /// The change may or may not have been made; if so, once. It is repeated in the background
    /// until it is answered, or the lease has expired. In both cases the lock is free then.
    Unknown(LockError),
}

impl CommitError {
    /// Returns the error alone.
    #[must_use]
    pub fn into_error(self) -> LockError {
        match self {
            Self::AlreadyLost(error) | Self::Unknown(error) | Self::Rejected { error, .. } => error,
        }
    }

    /// Returns a reference to the error.
    #[must_use]
    pub fn error(&self) -> &LockError {
        match self {
            Self::AlreadyLost(error) | Self::Unknown(error) | Self::Rejected { error, .. } => error,
        }
    }

    /// Returns whether the lock had been lost before.
    #[must_use]
    pub const fn is_already_lost(&self) -> bool {
        matches!(self, Self::AlreadyLost(_))
    }

    /// Returns whether nothing was changed although the lock was held.
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

//! The errors of a call under a lock.

use std::error::Error as StdError;
use std::fmt;

use crate::refusal::Refusal;

/// A refused call, or the error of the inner service.
#[derive(Debug)]
pub enum KeyedLockError<E> {
    /// The call did not run under its lock, or was aborted.
    Refused(Refusal),
    /// The inner service failed. The lock was held until then.
    Inner(E),
}

impl<E> KeyedLockError<E> {
    /// Returns the refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Inner(_) => None,
        }
    }

    /// Returns the error of the inner service, if it is one.
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Refused(_) => None,
            Self::Inner(error) => Some(error),
        }
    }

    /// Boxes the refusal or the inner error, as tower's middleware needs it:
    /// `map_err(KeyedLockError::into_boxed)`. `downcast::<Refusal>()` returns the refusal.
    pub fn into_boxed(self) -> Box<dyn StdError + Send + Sync>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        match self {
            Self::Refused(refusal) => refusal.into(),
            Self::Inner(error) => error.into(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for KeyedLockError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => fmt::Display::fmt(refusal, f),
            Self::Inner(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl<E: StdError + 'static> StdError for KeyedLockError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Refused(refusal) => refusal.source(),
            Self::Inner(error) => error.source(),
        }
    }
}

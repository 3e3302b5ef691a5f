//! What can go wrong with a call under a lock.

use std::error::Error as StdError;
use std::fmt;

use crate::refusal::Refusal;

/// A refused call, or the error of the service inside.
#[derive(Debug)]
pub enum KeyedLockError<E> {
    /// The call did not run under its lock, or not to its end.
    Refused(Refusal),
    /// The inner service failed. The lock was held until then.
    Inner(E),
}

impl<E> KeyedLockError<E> {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Inner(_) => None,
        }
    }

    /// The error of the inner service, if it is one.
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Refused(_) => None,
            Self::Inner(error) => Some(error),
        }
    }

    /// Whichever it is, boxed, as middleware likes it: `map_err(KeyedLockError::into_boxed)`. A
    /// refusal can be found again by `downcast::<Refusal>()`.
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

//! The answer of a fenced write.

use distlock_api::FencingToken;

/// The answer to a write through a [`Fence`](super::Fence).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`FencedOff` and `NoDocument` mean that nothing was written"]
pub enum Fenced<T> {
    /// The update was applied.
    Accepted(T),
    /// Nothing was changed: a later holder of the lock has written to the document. The caller has
    /// lost the lock, even if its guard does not show it yet.
    FencedOff {
        /// The token in the document.
        newest: FencingToken,
    },
    /// No document matches.
    NoDocument,
}

impl<T> Fenced<T> {
    /// Returns whether the update was applied.
    #[must_use]
    pub const fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted(_))
    }

    /// Returns the value of an accepted write; `None` otherwise.
    #[must_use]
    pub fn accepted(self) -> Option<T> {
        match self {
            Self::Accepted(value) => Some(value),
            Self::FencedOff { .. } | Self::NoDocument => None,
        }
    }

    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Fenced<U> {
        match self {
            Self::Accepted(value) => Fenced::Accepted(change(value)),
            Self::FencedOff { newest } => Fenced::FencedOff { newest },
            Self::NoDocument => Fenced::NoDocument,
        }
    }
}

//! Events of locks.

use std::pin::Pin;

use futures_core::Stream;

use crate::acquisition::AcquisitionId;
use crate::error::Result;
use crate::key::LockKey;
use crate::mode::Mode;
use crate::token::FencingToken;

/// A stream of events. See [`LockAdmin::watch`](crate::LockAdmin::watch).
pub type LockEvents = Pin<Box<dyn Stream<Item = Result<LockEvent>> + Send + 'static>>;

/// A change of a lock. Renewals are not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// A caller holds the lock now.
    Granted {
        /// The key.
        key: LockKey,
        /// The acquisition.
        id: AcquisitionId,
        /// The token of the grant; the last one, if it carries several.
        token: FencingToken,
        /// The owner, as the holder named it; `None` if it named none, or the store does not report
        /// it.
        owner: Option<String>,
        /// The mode in which it holds the lock.
        mode: Mode,
    },
    /// The holder gave the lock back.
    Released {
        /// The key.
        key: LockKey,
        /// The acquisition. The mode is in the grant with the same id.
        id: AcquisitionId,
    },
    /// The lease expired.
    ///
    /// Nothing is written at the moment of an expiry, so this is reported later. It is reported
    /// when another caller takes the lock over, directly before [`Granted`](Self::Granted), or when
    /// the store removes the record of a lock that is no longer used.
    Expired {
        /// The key.
        key: LockKey,
        /// The acquisition.
        id: AcquisitionId,
    },
    /// The lock was taken away by force; [`history`](crate::LockAdmin::history) has the reason.
    ForceReleased {
        /// The key.
        key: LockKey,
        /// The acquisition that lost it.
        id: AcquisitionId,
    },
    /// Events may have been missed: [list](crate::LockAdmin::list) the locks that matter.
    Gap,
}

impl LockEvent {
    /// Returns the key; `None` for a gap, which may concern all.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Granted { key, .. }
            | Self::Released { key, .. }
            | Self::Expired { key, .. }
            | Self::ForceReleased { key, .. } => Some(key),
            Self::Gap => None,
        }
    }

    /// Returns the acquisition; `None` for a gap.
    #[must_use]
    pub fn id(&self) -> Option<&AcquisitionId> {
        match self {
            Self::Granted { id, .. }
            | Self::Released { id, .. }
            | Self::Expired { id, .. }
            | Self::ForceReleased { id, .. } => Some(id),
            Self::Gap => None,
        }
    }

    /// Returns the change as a short lower-case word, for logs and metric labels.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Granted { .. } => "granted",
            Self::Released { .. } => "released",
            Self::Expired { .. } => "expired",
            Self::ForceReleased { .. } => "force_released",
            Self::Gap => "gap",
        }
    }

    /// Returns the event with another key. For wrappers that translate keys.
    #[must_use]
    pub fn with_key(mut self, other: LockKey) -> Self {
        match &mut self {
            Self::Granted { key, .. }
            | Self::Released { key, .. }
            | Self::Expired { key, .. }
            | Self::ForceReleased { key, .. } => *key = other,
            Self::Gap => {}
        }
        self
    }
}

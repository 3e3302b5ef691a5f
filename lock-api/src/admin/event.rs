//! What happens to locks.

use std::pin::Pin;

use futures_core::Stream;

use crate::acquisition::AcquisitionId;
use crate::error::Result;
use crate::key::LockKey;
use crate::token::FencingToken;

/// What happens to locks, as it happens. See [`LockAdmin::watch`](crate::LockAdmin::watch).
pub type LockEvents = Pin<Box<dyn Stream<Item = Result<LockEvent>> + Send + 'static>>;

/// Something that happened to a lock. Renewals are not told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// Somebody holds the lock now.
    Granted {
        /// Which lock.
        key: LockKey,
        /// Which acquisition.
        id: AcquisitionId,
        /// The token of the grant; the last one, if it carries several.
        token: FencingToken,
        /// Who, in the holder's words, as far as the store tells.
        owner: Option<String>,
    },
    /// The holder gave the lock back.
    Released {
        /// Which lock.
        key: LockKey,
        /// Which acquisition.
        id: AcquisitionId,
    },
    /// The lease ended by itself.
    ///
    /// Nothing is written at the moment of an expiry, so this is told later: when somebody else takes the lock over, right before
    /// [`Granted`](Self::Granted), or when the store removes the record of a lock that nobody wanted any more.
    Expired {
        /// Which lock.
        key: LockKey,
        /// Which acquisition.
        id: AcquisitionId,
    },
    /// The lock was taken away; [`history`](crate::LockAdmin::history) tells why.
    ForceReleased {
        /// Which lock.
        key: LockKey,
        /// From which acquisition.
        id: AcquisitionId,
    },
    /// Something may have been missed: [list](crate::LockAdmin::list) what matters.
    Gap,
}

impl LockEvent {
    /// Which lock; none for a gap, which may concern all.
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

    /// Which acquisition; none for a gap.
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

    /// What happened as a short lower-case word, for logs and metric labels.
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

    /// The same event under another name of the lock, for wrappers that translate keys.
    #[must_use]
    pub fn with_key(mut self, name: LockKey) -> Self {
        match &mut self {
            Self::Granted { key, .. }
            | Self::Released { key, .. }
            | Self::Expired { key, .. }
            | Self::ForceReleased { key, .. } => *key = name,
            Self::Gap => {}
        }
        self
    }
}

//! What a store pushes.

use std::pin::Pin;

use futures_core::Stream;

use super::{Grant, ProviderId, StoreTime};
use distlock_api::{AcquisitionId, FencingToken, LockKey, Loss, Result};

/// The changes that a store pushes. See [`LeaseStore::subscribe`](super::LeaseStore::subscribe).
pub type EventStream = Pin<Box<dyn Stream<Item = Result<StoreEvent>> + Send + 'static>>;

/// What a watcher wants to hear about. See [`LeaseStore::subscribe`](super::LeaseStore::subscribe).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Watch {
    /// Whose grants and losses: claims whose id starts with this provider's.
    pub provider: ProviderId,
}

impl Watch {
    /// What concerns one provider.
    #[must_use]
    pub const fn provider(provider: ProviderId) -> Self {
        Self { provider }
    }
}

/// A change at the store. A store that declares [`push`](super::StoreCapabilities::push) sends:
///
/// | event | to whom | when |
/// |---|---|---|
/// | [`Granted`](Self::Granted) | the provider of the waiter | a release has passed the lease on to it |
/// | [`Gone`](Self::Gone) | the provider of the holder | its lease was taken away by force. May also be sent when another claim has taken the expired lease over |
/// | [`Freed`](Self::Freed) | every watcher | a release by force has opened the key, the record of a held lease was removed by hand, or a minimum hold without a holder has begun. The purge of a record that no one uses need not be sent. A release that finds no waiter need not be sent: waiters without a ticket poll |
/// | [`Gap`](Self::Gap) | every watcher | events may have been missed |
///
/// An event may come late or twice; it follows the change that it reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent {
    /// A key may be free: waiters ask the store. So does a holder, because its record may have been
    /// removed; an event of the release before its grant does no harm.
    Freed {
        /// Which.
        key: LockKey,
    },
    /// A releaser granted the key to a waiter.
    Granted {
        /// Which key.
        key: LockKey,
        /// To whom.
        id: AcquisitionId,
        /// What; `remaining` is meaningless here, `expires_at` counts.
        grant: Grant,
        /// The store's clock at the lease's expiry.
        expires_at: StoreTime,
    },
    /// A claim has lost its lease.
    Gone {
        /// Which key.
        key: LockKey,
        /// Whose.
        id: AcquisitionId,
        /// The key's last token after the loss. The lost lease's tokens are smaller; those of a
        /// lease that the same claim has been granted since are not, and that one is not lost
        /// (R20).
        token: FencingToken,
        /// How.
        loss: Loss,
    },
    /// Something may have been missed: everybody shall ask.
    Gap,
}

//! The events that a store pushes.

use std::pin::Pin;

use async_trait::async_trait;
use futures_core::Stream;

use super::{Grant, ProviderId, StoreTime};
use distlock_api::{AcquisitionId, FencingToken, LockKey, Loss, Result};

/// A store that pushes changes, so that waiters need not poll and losses are noticed at once. It is
/// a [`LeaseStore`](super::LeaseStore) that returns itself as
/// [`StoreExtras::events`](super::StoreExtras::events); [`StoreEvent`] lists what it sends.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Opens a stream of events.
    ///
    /// An event may come late, twice, or never, so the engine treats it as a hint and queries the
    /// store. It believes two events: a loss of its own claim, and a
    /// [`Granted`](StoreEvent::Granted) whose times it can check. After an interruption the stream
    /// sends [`StoreEvent::Gap`] or ends. The engine then wakes all its waiters once; if the stream
    /// ended, it opens a new one.
    ///
    /// The engine may leave the stream unpolled for up to 5 s, while no event is needed: a waiter
    /// whose turn is unlikely to be near needs none, nor does a lease in its first second. A store
    /// may request events only while the stream is polled. It then sends the changes since the last
    /// poll, or [`StoreEvent::Gap`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](distlock_api::ErrorKind::Unsupported) if the deployment has no
    /// push.
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream>;
}

/// The changes that a store pushes. See [`EventStore::subscribe`].
pub type EventStream = Pin<Box<dyn Stream<Item = Result<StoreEvent>> + Send + 'static>>;

/// The subject of a subscription. See [`EventStore::subscribe`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Watch {
    /// The provider whose grants and losses are sent: those of claims whose id starts with its id.
    pub provider: ProviderId,
}

impl Watch {
    /// Returns a request for the events of one provider.
    #[must_use]
    pub const fn provider(provider: ProviderId) -> Self {
        Self { provider }
    }
}

/// A change at the store. An [`EventStore`] sends:
///
/// | event | receiver | when |
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
    /// A key may be free: waiters make an attempt. A holder renews, because its record may have
    /// been removed; an event about the release before its grant does no harm.
    Freed {
        /// The key.
        key: LockKey,
    },
    /// A release granted the key to a waiter.
    Granted {
        /// Which key.
        key: LockKey,
        /// The waiter's acquisition.
        id: AcquisitionId,
        /// The grant. `remaining` is meaningless here, `expires_at` counts.
        grant: Grant,
        /// The store's clock at the lease's expiry.
        expires_at: StoreTime,
    },
    /// A claim has lost its lease.
    Gone {
        /// Which key.
        key: LockKey,
        /// The acquisition that lost its lease.
        id: AcquisitionId,
        /// The key's last token after the loss. The lost lease's tokens are smaller. If the same
        /// claim has been granted another lease since, that one's tokens are not smaller, and it is
        /// not lost.
        token: FencingToken,
        /// How it was lost.
        loss: Loss,
    },
    /// Events may have been missed: all waiters make an attempt, and all leases are renewed.
    Gap,
}

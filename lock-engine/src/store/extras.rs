//! The optional traits of a store.

use std::fmt;

use super::{BatchRenewStore, BatchStore, EventStore, QueueStore, RemoteStore};
use distlock_api::LockAdmin;

/// The traits that a store implements besides [`LeaseStore`](super::LeaseStore). By default there
/// are none, and the store works.
///
/// ```
/// # use distlock_engine::store::{Claim, QueueStore, StoreExtras};
/// # struct MyStore;
/// # #[distlock_engine::async_trait]
/// # impl QueueStore for MyStore {
/// #     async fn waiters(&self, _: &Claim, _: std::time::Duration) -> distlock_api::Result<u32> { Ok(0) }
/// # }
/// # impl MyStore {
/// fn extras(&self) -> StoreExtras<'_> {
///     let mut extras = StoreExtras::default();
///     extras.queue = Some(self);
///     extras
/// }
/// # }
/// ```
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct StoreExtras<'a> {
    /// The store keeps tickets, and grants in their order. Without it waiters poll.
    pub queue: Option<&'a dyn QueueStore>,
    /// The store pushes changes. Without it waiters poll, and a loss is noticed by a renewal.
    pub events: Option<&'a dyn EventStore>,
    /// The store renews many leases in one call. Without it each renewal is a call.
    pub batch_renew: Option<&'a dyn BatchRenewStore>,
    /// The store acquires and releases many leases in one call. Without it each is a call.
    pub batch: Option<&'a dyn BatchStore>,
    /// The store is reached over connections, of which there are few: for drivers with a pool.
    /// Without it every call is made at once, without a bound on their number.
    pub remote: Option<&'a dyn RemoteStore>,
    /// The store inspects and removes locks for operators.
    ///
    /// A [release by force](LockAdmin::force_release) is one step at the store, too:
    /// * The holder's lease ends, and so does a minimum hold. The key's token advances. The
    ///   [`Gone`](super::StoreEvent::Gone) that a store with events sends carries a token above all
    ///   those of the lease.
    /// * The tickets stay, and the step grants the lease to no waiter. Waiters learn of it by
    ///   [`Freed`](super::StoreEvent::Freed), or by polling, and the first of them takes the lease.
    /// * The victim's claim has ended: a renewal is answered [`Gone`](super::Standing::Gone), a
    ///   release [`AlreadyLost`](distlock_api::ReleaseOutcome::AlreadyLost), and another attempt of
    ///   the claim is an attempt like any other.
    pub admin: Option<&'a dyn LockAdmin>,
}

impl fmt::Debug for StoreExtras<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, events, batch_renew, batch, remote, admin } = self;
        let offered = [
            ("queue", queue.is_some()),
            ("events", events.is_some()),
            ("batch_renew", batch_renew.is_some()),
            ("batch", batch.is_some()),
            ("remote", remote.is_some()),
            ("admin", admin.is_some()),
        ];
        f.debug_set().entries(offered.iter().filter(|(_, is_offered)| *is_offered).map(|(name, _)| name)).finish()
    }
}

//! Operations of a typed style: acquisitions that bring, and releases that carry, more than a
//! lease.

use std::time::Duration;

use async_trait::async_trait;

use super::{Attempt, Claim, Reply};
use distlock_api::Result;

/// An attempt to acquire that brings more than a lease, made where the engine would call
/// [`LeaseStore::try_acquire`](super::LeaseStore::try_acquire).
///
/// It keeps what it brings, such as a document, in the claim's [`op_state`](Claim::op_state). The
/// style takes it from there when the engine has made a [`LeaseGuard`](crate::LeaseGuard) of the
/// grant. So late answers of other claims do not get mixed up with it.
///
/// # Contract
/// That of [`try_acquire`](super::LeaseStore::try_acquire), on the same leases. In addition every
/// granted answer brings everything, even to a claim that holds the lease already: the engine sends
/// one more attempt when a release has granted the lease.
///
/// A permanent error ends the wait and reaches the caller unchanged. A style uses it to report that
/// there is nothing to lock.
#[async_trait]
pub trait AcquireOp: Send + Sync + 'static {
    /// Makes one attempt.
    ///
    /// # Errors
    /// See the [store's](super::LeaseStore) *Errors*.
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply>;

    /// Returns whether the store's [`try_acquire_many`](super::BatchStore::try_acquire_many) may
    /// make this attempt, the first of its claim, together with others. Before it returns true, the
    /// operation records in the claim what the store has to bring: such a store and its operations
    /// are one package, and may share the store's [`state`](Claim::state). Defaults to false.
    fn may_gather(&self, attempt: &Attempt) -> bool {
        let _ = attempt;
        false
    }
}

/// A write that is made under a lease, in one atomic step with the check that the claim holds it
/// unexpired. For a commit, its release is part of the same step.
///
/// # Contract
/// * One value is one write. The engine repeats it when its outcome is unknown. It is then
///   recognised and applied once, even if others have held the lease meanwhile.
/// * [`Applied`](Written::Applied): this call, or an earlier one of the same value, was applied.
/// * [`AlreadyLost`](Written::AlreadyLost): the claim does not hold the lease, and nothing was
///   changed.
/// * A [permanent](distlock_api::Disposition::Permanent) error: the resource refused the write.
///   Neither it nor the lease was changed, by this call or an earlier one of the same value. The
///   kind is [`Rejected`](distlock_api::ErrorKind::Rejected) if the resource itself refused it.
///   With any other permanent kind this holds only for this call.
/// * Other errors: see the [store's](super::LeaseStore) *Errors*.
///
/// A write that arrives late must be refused by its own condition: the engine gives up on calls
/// that take too long.
#[async_trait]
pub trait WriteOp: Send + Sync + 'static {
    /// Makes one attempt.
    ///
    /// # Errors
    /// See the trait's *Contract*.
    async fn write(&self, write: &Write) -> Result<Written>;
}

/// A request to write under a lease. See [`WriteOp::write`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Write {
    /// The claim that holds the lease.
    pub claim: Claim,
    /// For a write that releases: the key stays closed until the lease's start + this.
    pub hold_at_least: Option<Duration>,
    /// The bound of this call.
    pub timeout: Duration,
}

impl Write {
    /// Creates a write without a minimum hold.
    #[must_use]
    pub const fn new(claim: Claim, timeout: Duration) -> Self {
        Self { claim, hold_at_least: None, timeout }
    }
}

/// The outcome of a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "`AlreadyLost` means that nothing was written"]
pub enum Written {
    /// It was applied, once.
    Applied,
    /// The claim does not hold the lease; nothing was changed.
    AlreadyLost,
}

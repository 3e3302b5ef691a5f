//! Operations of a typed style: a store whose answers bring, and whose releases carry, more than a
//! lease.

use std::time::Duration;

use async_trait::async_trait;

use super::{Attempt, Claim, Reply};
use distlock_api::Result;

/// An attempt to acquire that brings more than a lease, made where the engine would call
/// [`LeaseStore::try_acquire`](super::LeaseStore::try_acquire).
///
/// It keeps what it brings – a document, say – in the [claim's state](Claim::state), from where the
/// style takes it when the engine has made a [`LeaseGuard`](crate::LeaseGuard) of the grant:
/// answers of other claims, which may come late, do not get mixed up with it.
///
/// # Contract
/// That of [`try_acquire`](super::LeaseStore::try_acquire), on the same leases. In addition every
/// granted answer brings everything, also the one to a claim that holds the lease already: the
/// engine asks once more when a releaser has granted it unasked.
///
/// A permanent error ends the wait and reaches the caller as it is: so a style says that there is
/// nothing to lock.
#[async_trait]
pub trait AcquireOp: Send + Sync + 'static {
    /// One attempt.
    ///
    /// # Errors
    /// See the [store's](super::LeaseStore) *Errors*.
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply>;
}

/// A write that is made under a lease, in one atomic step with the check that the claim holds it
/// unexpired – and, for a commit, with its release.
///
/// # Contract
/// * One value is one write. The engine repeats it when its outcome is unknown: then it is applied
///   once, and recognised, also if others have held the lease meanwhile.
/// * [`Applied`](Written::Applied): this call, or an earlier one of the same value, did it.
/// * [`AlreadyLost`](Written::AlreadyLost): the claim does not hold the lease, and nothing was
///   changed.
/// * A [permanent](distlock_api::Disposition::Permanent) error: the resource refused the write.
///   Neither it nor the lease was changed, now or by an earlier call of the same value; the kind is
///   [`Rejected`](distlock_api::ErrorKind::Rejected) if the resource itself said so. Any other
///   permanent kind says so only of this call.
/// * Other errors: see the [store's](super::LeaseStore) *Errors*.
///
/// A write that arrives late must be refused by its own condition: the engine gives up on calls
/// that take too long.
#[async_trait]
pub trait WriteOp: Send + Sync + 'static {
    /// One attempt.
    ///
    /// # Errors
    /// See the trait's *Contract*.
    async fn write(&self, write: &Write) -> Result<Written>;
}

/// A request to write under a lease. See [`WriteOp::write`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Write {
    /// Who holds the lease.
    pub claim: Claim,
    /// For a write that releases: keep the key closed until the lease's start + this.
    pub hold_at_least: Option<Duration>,
    /// The bound of this call.
    pub timeout: Duration,
}

impl Write {
    /// A write without a minimum hold.
    #[must_use]
    pub const fn new(claim: Claim, timeout: Duration) -> Self {
        Self { claim, hold_at_least: None, timeout }
    }
}

/// What became of a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "`AlreadyLost` means that nothing was written"]
pub enum Written {
    /// It was applied, once.
    Applied,
    /// The claim does not hold the lease; nothing was changed.
    AlreadyLost,
}

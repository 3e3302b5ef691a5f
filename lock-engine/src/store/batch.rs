//! Many requests in one call.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;

use super::{Attempt, Claim, Release, Renewal, Reply, Standing};
use distlock_api::{ReleaseOutcome, Result};

/// A store that renews many leases and tickets in one call. It is a
/// [`LeaseStore`](super::LeaseStore) that returns itself as
/// [`StoreExtras::batch_renew`](super::StoreExtras::batch_renew).
#[async_trait]
pub trait BatchRenewStore: Send + Sync {
    /// Returns how many renewals one call may carry. Defaults to 100.
    fn renew_batch(&self) -> NonZeroUsize {
        const { NonZeroUsize::new(100).expect("not zero") }
    }

    /// Renews many leases and tickets. Returns one answer for each, in the same order; each fails
    /// on its own.
    ///
    /// The engine sends at most [`renew_batch`](Self::renew_batch) at once, all with one `timeout`.
    /// A missing answer counts as an error.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>>;
}

/// A store that acquires and releases the leases of many claims in one call. It is a
/// [`LeaseStore`](super::LeaseStore) that returns itself as
/// [`StoreExtras::batch`](super::StoreExtras::batch).
///
/// While some calls are under way, the engine lets the first requests of other claims wait for
/// company, and sends those that wait together. A batch carries attempts, releases or withdrawals,
/// never a mixture. The answers are one for each request, in the same order; each fails on its own.
///
/// The three batches are all that most stores write. The methods that begin with `may_` have
/// defaults, and are for stores whose driver sends a batch in another way than single requests: on
/// another connection, outside a session, or without a bound at the server.
#[async_trait]
pub trait BatchStore: Send + Sync {
    /// Returns how many requests one call may carry. The engine calls this at each use. With 1 it
    /// sends no batches.
    fn acquire_batch(&self) -> NonZeroUsize;

    /// Tries once to take the leases of several claims. An attempt that would need more than the
    /// common step is answered as [undecided](super::BusyReply::undecided): the engine then makes
    /// it again, by itself.
    ///
    /// # Errors
    /// An answer of unknown outcome is the last one of its claim: the engine withdraws the claim
    /// and continues with a new id. As long as the batch may still take effect, the store answers
    /// [`withdraw`](super::LeaseStore::withdraw) with a retryable error, and
    /// [`may_act_for`](Self::may_act_for) tells the engine when to send the next one.
    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>>;

    /// Gives up what several claims have. The engine repeats a release that has no answer, in a
    /// batch again. If the error is retryable and the outcome known, it does so at once, with
    /// [`release`](super::LeaseStore::release): that is the answer for a release that needs more
    /// than the common step, because the claim's key has a waiter or another holder.
    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>>;

    /// Removes everything that several claims have, all with one `timeout`. Unlike the other
    /// batches it does all that the [single withdrawal](super::LeaseStore::withdraw) does: it
    /// removes tickets, too, and grants the lease to a waiter. The engine repeats a withdrawal that
    /// has no answer.
    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>>;

    /// Returns whether an attempt, the first of its claim, may wait for company. Defaults to true.
    /// For stores that know which attempts would gain nothing.
    fn may_gather(&self, attempt: &Attempt) -> bool {
        let _ = attempt;
        true
    }

    /// Returns whether a release may wait for company, also when it is repeated. Defaults to true.
    /// A release that hands the lease to a waiter should not.
    fn may_gather_release(&self, release: &Release) -> bool {
        let _ = release;
        true
    }

    /// Returns whether a withdrawal may wait for company. Defaults to true. A withdrawal of a claim
    /// whose stragglers the store refuses only after a call of that claim alone should not
    /// ([`ordered_claims`](super::StoreCapabilities::ordered_claims)).
    fn may_gather_withdrawal(&self, claim: &Claim) -> bool {
        let _ = claim;
        true
    }

    /// Returns how much longer a batch with the claim's attempt may take effect, although it was
    /// not answered. An estimate: only a [withdrawal](super::LeaseStore::withdraw) confirms that it
    /// has ended. Defaults to zero.
    fn may_act_for(&self, claim: &Claim) -> Duration {
        let _ = claim;
        Duration::ZERO
    }
}

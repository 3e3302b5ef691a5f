//! Releasing, handing over, withdrawing (R12).

use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{LockError, ReleaseOutcome, Result};
use distlock_engine::store::{Claim, Release};

use crate::budget::Budget;
use crate::calls::{Change, ConfirmedBy, Failure};
use crate::claim::claim_state;
use crate::lease::{Layout, Released};
use crate::records::Records;

/// Releases what the claim has, and grants to the first ticket.
///
/// Its first release goes the short ways: it frees a lease that had no waiter when it was granted,
/// or passes on one that the claim still holds. If their filters find nothing, the long way tells
/// what the claim has, a ticket included. The short ways are answered as soon as the primary has
/// released the lease (R24).
pub(crate) async fn release(records: &Records, release: &Release) -> Result<ReleaseOutcome> {
    let Release { claim, hold_at_least, timeout, .. } = release;
    let layout = &records.layout;
    let about = |failure: Failure| LockError::from(failure).with_key(claim.key().clone());
    let identity = layout.identity(claim.key())?;
    let budget = Budget::new(*timeout);
    let deployment = records.deployment(claim, budget).await?;
    let how = |confirmed_by| Change { confirmed_by, ..Change::new(deployment, Some(claim), budget) };
    if !claim_state(claim).given_up.swap(true, Ordering::Relaxed) {
        let (id, answer) = (claim.id(), Layout::has_been_freed);
        // R13: a roll-back would open the key before the end of a minimum hold.
        let confirmed_by = if hold_at_least.is_none() { ConfirmedBy::Primary } else { ConfirmedBy::Majority };
        if hold_at_least.is_none() && claim_state(claim).alone.load(Ordering::Relaxed) {
            let (filter, pipeline) = (layout.alone(identity.clone(), id), layout.free(id, claim.used()));
            if records.change::<Released>(filter, pipeline, answer(), how(confirmed_by)).await.map_err(about)?.is_some()
            {
                records.recent_use.mark_free(claim.key().as_str());
                return Ok(ReleaseOutcome::Released);
            }
        }
        let filter = layout.held_record(identity.clone(), id);
        let pipeline = layout.pass(id, claim.used(), *hold_at_least, records.clock(deployment));
        if records.change::<Released>(filter, pipeline, answer(), how(confirmed_by)).await.map_err(about)?.is_some() {
            return Ok(ReleaseOutcome::Released);
        }
    }
    let pipeline = layout.release(claim.id(), claim.used(), *hold_at_least, records.clock(deployment));
    let answer = records
        .change(layout.record(identity), pipeline, layout.released(claim.id()), how(ConfirmedBy::Majority))
        .await;
    match answer.map_err(about)? {
        Some(Released { released: true }) => Ok(ReleaseOutcome::Released),
        Some(Released { released: false }) | None => Ok(ReleaseOutcome::AlreadyLost),
    }
}

/// Releases what a claim has that was given up before its attempt was answered.
pub(crate) async fn withdraw(records: &Records, claim: &Claim, timeout: Duration) -> Result<()> {
    // More likely than a lease it has a ticket.
    claim_state(claim).given_up.store(true, Ordering::Relaxed);
    release(records, &Release::new(claim.clone()).with_timeout(timeout)).await.map(|_| ())
}

//! Releases, hand-overs and withdrawals (R12).

use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use distlock_engine::store::{Claim, Release};

use super::run::run;
use crate::budget::Budget;
use crate::calls::ChangeOptions;
use crate::claim::claim_state;
use crate::lease::plan::{self, Known, ReleasePath};
use crate::lease::{NextHolders, Released};
use crate::records::Records;

/// Releases the lease and the ticket of the claim, and grants to the first waiter, and to those
/// after it that fit beside it.
pub(crate) async fn release(records: &Records, release: &Release) -> Result<ReleaseOutcome> {
    let Release { claim, timeout, .. } = release;
    let layout = &records.layout;
    let identity = layout.identity(claim.key())?;
    let budget = Budget::new(*timeout);
    let deployment = records.deployment(claim, budget).await?;
    let state = claim_state(claim);
    let is_first = !state.release_sent.swap(true, Ordering::Relaxed);
    let (was_alone, met_modes) = (state.was_alone.load(Ordering::Relaxed), state.met_modes.load(Ordering::Relaxed));
    let plan = if is_first { plan::release(release, Known { was_alone, met_modes }) } else { &[ReleasePath::Full] };
    let clock = records.clock(deployment);
    let step = |path| match path {
        ReleasePath::WithoutWaiter => layout.release_without_waiter(identity.clone(), claim),
        ReleasePath::HandOver => layout.hand_over(identity.clone(), release, NextHolders::Exclusive, clock),
        ReleasePath::HandOverToAny => layout.hand_over(identity.clone(), release, NextHolders::OfAnyMode, clock),
        ReleasePath::Leave => layout.leave(identity.clone(), release, clock),
        ReleasePath::Full => layout.release_full(identity.clone(), release, clock),
    };
    let options = ChangeOptions::new(deployment, Some(claim), budget);
    let released = run(records, plan, step, options, |released: &Released| released.released).await;
    let released = released.map_err(|failure| LockError::from(failure).with_key(claim.key().clone()))?;
    if released.as_ref().is_some_and(|released| released.is_unused) {
        records.key_memory.end_use(claim.key().as_str());
    }
    let is_released = released.is_some_and(|released| released.released);
    Ok(if is_released { ReleaseOutcome::Released } else { ReleaseOutcome::AlreadyLost })
}

/// Releases the lease and the ticket of a claim whose attempt was given up before its answer.
pub(crate) async fn withdraw(records: &Records, claim: &Claim, timeout: Duration) -> Result<()> {
    // The claim has a ticket more probably than a lease, so the fast paths are not tried.
    claim_state(claim).release_sent.store(true, Ordering::Relaxed);
    let ends = batch_ends(claim);
    let now = if ends.is_zero() { None } else { Some(records.read_server_clock(Budget::new(timeout)).await) };
    let _ = release(records, &Release::new(claim.clone()).with_timeout(timeout)).await?;
    if let Some(now) = now { has_ended(claim, ends, now?) } else { Ok(()) }
}

/// Returns from when on the batch of the claim's attempt can no longer take effect; zero if there
/// is none without an answer.
pub(super) fn batch_ends(claim: &Claim) -> Duration {
    Duration::from_millis(claim_state(claim).batch_ends.load(Ordering::Relaxed))
}

/// Fails if a batch may still take the lease of a claim that was withdrawn after `now`. The claim
/// is then withdrawn again (R24).
pub(super) fn has_ended(claim: &Claim, ends: Duration, now: Duration) -> Result<()> {
    if now >= ends {
        return Ok(());
    }
    let message = format!("a batch without an answer can take effect for {:?} more", ends - now);
    Err(LockError::new(ErrorKind::Unavailable, message).with_key(claim.key().clone()))
}

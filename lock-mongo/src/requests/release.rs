//! Releases, hand-overs and withdrawals (R12).

use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use distlock_engine::store::{Claim, Release};
use mongodb::bson::doc;

use crate::budget::Budget;
use crate::calls::{ChangeOptions, ConfirmedBy, Failure};
use crate::claim::claim_state;
use crate::error::Effect;
use crate::lease::{Layout, Leaving, NextHolders, Released};
use crate::records::Records;

/// Releases the lease and the ticket of the claim, and grants to the first waiter, and to those
/// after it that fit beside it.
///
/// The first release of an exclusive claim tries two short ways. One frees a lease that had no
/// waiter when it was granted; the other grants a lease that the claim still holds to the first
/// waiter. If their filters match nothing, the long way decides by the state of the record. The
/// first of them is answered as soon as the primary has freed the lease (R23). The second takes the
/// waiters for exclusive ones until one of the key is known to be none.
pub(crate) async fn release(records: &Records, release: &Release) -> Result<ReleaseOutcome> {
    let Release { claim, hold_at_least, timeout, .. } = release;
    let layout = &records.layout;
    let with_key = |failure: Failure| LockError::from(failure).with_key(claim.key().clone());
    let identity = layout.identity(claim.key())?;
    let budget = Budget::new(*timeout);
    let deployment = records.deployment(claim, budget).await?;
    let options = |confirmed_by| ChangeOptions { confirmed_by, ..ChangeOptions::new(deployment, Some(claim), budget) };
    let mut missed = false;
    // One of several holders goes the long way, which knows the others.
    if !claim_state(claim).release_sent.swap(true, Ordering::Relaxed) && claim.mode().is_exclusive() {
        let (id, projection) = (claim.id(), Layout::has_been_freed);
        if hold_at_least.is_none() && claim_state(claim).had_no_waiter.load(Ordering::Relaxed) {
            let (filter, pipeline) = (layout.held_without_waiters(identity.clone(), id), layout.free(id, claim.used()));
            let freed = records.change::<Released>(filter, pipeline, projection(), options(ConfirmedBy::Primary)).await;
            if freed.map_err(with_key)?.is_some() {
                records.recent_use.mark_free(claim.key().as_str());
                return Ok(ReleaseOutcome::Released);
            }
        }
        let next = match records.recent_use.had_modes(claim.key().as_str()) {
            true => NextHolders::OfAnyMode,
            false => NextHolders::Exclusive,
        };
        let filter = layout.held_before(next, identity.clone(), id);
        let pipeline = layout.pass(id, claim.used(), *hold_at_least, next, records.clock(deployment));
        // R23: the waiter's event comes when a majority has the grant. And a roll-back would open
        // the key before the end of a minimum hold (R13).
        let passed = records.change::<Released>(filter, pipeline, projection(), options(ConfirmedBy::Majority)).await;
        if passed.map_err(with_key)?.is_some() {
            return Ok(ReleaseOutcome::Released);
        }
        missed = next == NextHolders::Exclusive;
    }
    let (filter, projection) = (layout.record(identity), layout.released(claim.id()));
    let leaving = Leaving { id: claim.id(), mode: claim.mode(), used: claim.used(), hold_at_least: *hold_at_least };
    let pipeline = layout.release(leaving, records.clock(deployment));
    let answer = records.change(filter, pipeline, projection, options(ConfirmedBy::Majority)).await;
    match answer.map_err(with_key)? {
        Some(Released { released: true }) => {
            // The lease was held, so it was a waiter that the filter refused.
            if missed {
                records.recent_use.mark_modes(claim.key().as_str());
            }
            Ok(ReleaseOutcome::Released)
        }
        Some(Released { released: false }) | None => Ok(ReleaseOutcome::AlreadyLost),
    }
}

/// Releases the lease and the ticket of a claim whose attempt was given up before its answer.
pub(crate) async fn withdraw(records: &Records, claim: &Claim, timeout: Duration) -> Result<()> {
    // The claim has a ticket more probably than a lease, so the short ways are not tried.
    claim_state(claim).release_sent.store(true, Ordering::Relaxed);
    let ends = claim_state(claim).batch_ends.load(Ordering::Relaxed);
    let now = if ends == 0 { None } else { Some(server_time(records, Budget::new(timeout)).await) };
    let _ = release(records, &Release::new(claim.clone()).with_timeout(timeout)).await?;
    match now.transpose()? {
        // R24: it may still take the lease, and is withdrawn again.
        Some(now) if now < ends => {
            let message = format!("a batch without an answer can take effect for {} ms more", ends - now);
            Err(LockError::new(ErrorKind::Unavailable, message).with_key(claim.key().clone()))
        }
        _ => Ok(()),
    }
}

/// Reads the server's clock, in milliseconds since the epoch.
async fn server_time(records: &Records, budget: Budget) -> Result<u64> {
    let call = async { records.database.run_command(doc! { "hello": 1 }).await };
    let hello = records.run(budget, Effect::None, call).await?;
    let time = hello.get_datetime("localTime").ok().and_then(|time| u64::try_from(time.timestamp_millis()).ok());
    time.ok_or_else(|| LockError::new(ErrorKind::Unavailable, "MongoDB's `hello` has no `localTime`"))
}

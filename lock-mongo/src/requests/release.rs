//! Releases, hand-overs and withdrawals (R12).

use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Mode, ReleaseOutcome, Result};
use distlock_engine::store::{Claim, Release};
use mongodb::bson::{Bson, Document};

use crate::budget::Budget;
use crate::calls::{ChangeOptions, ConfirmedBy, Failure};
use crate::claim::claim_state;
use crate::lease::{Clock, Held, Layout, Leaving, NextHolders, Released};
use crate::records::Records;
use crate::topology::Deployment;

/// Releases the lease and the ticket of the claim, and grants to the first waiter, and to those
/// after it that fit beside it.
///
/// The first release of a claim tries the fast paths that its mode has. If their filters match
/// nothing, the full path decides by the state of the record.
pub(crate) async fn release(records: &Records, release: &Release) -> Result<ReleaseOutcome> {
    let claim = &release.claim;
    let identity = records.layout.identity(claim.key())?;
    let budget = Budget::new(release.timeout);
    let deployment = records.deployment(claim, budget).await?;
    let releasing = Releasing { records, release, identity, deployment, budget };
    let is_released =
        releasing.run().await.map_err(|failure| LockError::from(failure).with_key(claim.key().clone()))?;
    Ok(if is_released { ReleaseOutcome::Released } else { ReleaseOutcome::AlreadyLost })
}

/// A release under way.
struct Releasing<'a> {
    records: &'a Records,
    release: &'a Release,
    identity: Bson,
    deployment: Deployment,
    budget: Budget,
}

impl Releasing<'_> {
    /// Returns whether the claim held the lease.
    async fn run(&self) -> Result<bool, Failure> {
        let Release { claim, hold_at_least, .. } = self.release;
        if claim_state(claim).release_sent.swap(true, Ordering::Relaxed) {
            return self.decide().await;
        }
        let recent_use = &self.records.recent_use;
        match claim.mode() {
            Mode::Exclusive => {
                let was_alone = claim_state(claim).was_alone.load(Ordering::Relaxed);
                if was_alone && hold_at_least.is_none() && self.free().await? {
                    return Ok(true);
                }
                let key = claim.key().as_str();
                let had_modes = recent_use.had_modes(key);
                let next = if had_modes { NextHolders::OfAnyMode } else { NextHolders::Exclusive };
                if self.pass(next).await? {
                    return Ok(true);
                }
                let held = self.decide().await?;
                // So the filter refused a waiter.
                if held && !had_modes {
                    recent_use.mark_modes(key);
                }
                Ok(held)
            }
            mode if hold_at_least.is_none() => {
                let key = claim.key().as_str();
                if claim_state(claim).was_alone.load(Ordering::Relaxed) && !recent_use.was_crowded(key) {
                    if self.free().await? {
                        return Ok(true);
                    }
                    let held = self.decide().await?;
                    // So the filter refused another holder or a waiter.
                    if held {
                        recent_use.mark_crowded(key, true);
                    }
                    return Ok(held);
                }
                // Behind a holder of permits there are usually waiters for permits.
                Ok((mode == Mode::Shared && self.leave().await?) || self.decide().await?)
            }
            _ => self.decide().await,
        }
    }

    /// Frees a lease without waiters and other holders. The primary's word is enough (R23).
    async fn free(&self) -> Result<bool, Failure> {
        let Release { claim, .. } = self.release;
        let layout = &self.records.layout;
        let (id, used) = (claim.id(), claim.used());
        let (filter, pipeline) = if claim.mode().is_exclusive() {
            (layout.held_without_waiters(self.identity.clone(), id), layout.free(id, used))
        } else {
            let filter = layout.all_held_without_waiters(Held::Beside, vec![self.identity.clone()], &[id.as_str()]);
            (filter, layout.free_together(Held::Beside, &[(id, used)]))
        };
        let freed = self.change(filter, pipeline, Layout::has_been_freed(), ConfirmedBy::Primary).await?;
        if freed.is_some() {
            self.records.recent_use.mark_free(claim.key().as_str());
        }
        Ok(freed.is_some())
    }

    /// Grants an exclusive lease that the claim still holds to the first waiter.
    ///
    /// R23: the waiter's event comes when a majority has the grant. And a roll-back would open the
    /// key before the end of a minimum hold (R13).
    async fn pass(&self, next: NextHolders) -> Result<bool, Failure> {
        let Release { claim, hold_at_least, .. } = self.release;
        let layout = &self.records.layout;
        let filter = layout.held_before(next, self.identity.clone(), claim.id());
        let pipeline = layout.pass(claim.id(), claim.used(), *hold_at_least, next, self.clock());
        let passed = self.change(filter, pipeline, Layout::has_been_freed(), ConfirmedBy::Majority).await?;
        Ok(passed.is_some())
    }

    /// Leaves the other readers, or grants to the exclusive waiter if there are none.
    async fn leave(&self) -> Result<bool, Failure> {
        let layout = &self.records.layout;
        let filter = layout.held_beside(self.identity.clone(), self.release.claim.id());
        self.change_by(filter, NextHolders::Exclusive).await
    }

    /// The full path.
    async fn decide(&self) -> Result<bool, Failure> {
        self.change_by(self.records.layout.record(self.identity.clone()), NextHolders::OfAnyMode).await
    }

    async fn change_by(&self, filter: Document, next: NextHolders) -> Result<bool, Failure> {
        let Release { claim, hold_at_least, .. } = self.release;
        let layout = &self.records.layout;
        let leaving = Leaving::new(claim.id(), claim.mode(), claim.used(), *hold_at_least);
        let pipeline = layout.release(&leaving, next, self.clock());
        let answer = self.change(filter, pipeline, layout.released(claim.id()), ConfirmedBy::Majority).await?;
        if answer.as_ref().is_some_and(|answer| answer.is_unused) {
            self.records.recent_use.mark_free(claim.key().as_str());
        }
        Ok(answer.is_some_and(|answer| answer.released))
    }

    async fn change(
        &self,
        filter: Document,
        pipeline: Vec<Document>,
        projection: Document,
        confirmed_by: ConfirmedBy,
    ) -> Result<Option<Released>, Failure> {
        let Self { records, release, deployment, budget, .. } = self;
        let options = ChangeOptions { confirmed_by, ..ChangeOptions::new(*deployment, Some(&release.claim), *budget) };
        records.change(filter, pipeline, projection, options).await
    }

    fn clock(&self) -> Clock {
        self.records.clock(self.deployment)
    }
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

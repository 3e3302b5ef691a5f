//! What is left of attempts whose caller has gone, and of lost leases: it is withdrawn.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use distlock_api::{AcquisitionId, Disposition, LockError, Phase, Result};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::log::log;
use crate::run::call::InFlight;
use crate::run::core::Engine;
use crate::run::outbox::{CallLimits, Together, Withdraw};
use crate::run::transit::Lease;
use crate::state::backoff;
use crate::state::claim::ClaimPhase;
use crate::store::{Claim, Release, Reply, Ticket};

impl Engine {
    /// Waits until a call has ended. Then withdraws its claim until the store has confirmed that,
    /// or what it may have there has ended by itself: a lease by its ttl, a ticket by its own
    /// (R11). Withdraws nothing if there can be nothing.
    ///
    /// If the call grants a lease, and no earlier attempt is of unknown outcome, that lease is all
    /// that the claim has. To the store it is that of a guard that is dropped at once. So it is
    /// released with others, if the store makes batches.
    pub(crate) async fn settle(
        self: Arc<Self>,
        claim: Claim,
        mut call: InFlight<Reply>,
        mut phase: ClaimPhase,
        lasts: Duration,
    ) {
        let mut is_granted = false;
        if call.is_under_way() {
            // Stores end their calls themselves. A call that does not end is given up here.
            let answer = call.ended_within(2 * self.options.request_timeout).await;
            is_granted = matches!(answer, Some(Ok(Reply::Granted(_)))) && !phase.is_left_behind();
            phase.ended(answer.as_ref());
        }
        if phase.is_left_behind() {
            // A call that has failed may begin at the store until its limit, and never later (R31).
            let may_act_for = self.may_act_for(&claim).max(self.options.request_timeout);
            let last_chance = Instant::now() + may_act_for + lasts;
            if !(is_granted && self.release_unreceived(&claim, last_chance).await) {
                self.withdraw_until(&claim, last_chance).await;
            }
        }
        self.local_queues.nudge(claim.key());
    }

    /// Withdraws a claim until the store has confirmed that, or until `last_chance`.
    async fn withdraw_until(&self, claim: &Claim, last_chance: Instant) {
        let (mut failed, mut permit) = (0, None);
        while let Err(error) = self.withdraw(claim, last_chance).await {
            log!(debug, lock.key = %claim.key(), %error, "clean-up not confirmed yet");
            if error.disposition() == Disposition::Permanent || Instant::now() >= last_chance {
                break;
            }
            drop(permit);
            // A batch that may still act is withdrawn at once, and again when it has ended (R24).
            sleep(backoff::after_error(failed, fastrand::f64()).max(self.may_act_for(claim))).await;
            failed += 1;
            // Repeated withdrawals are bounded in number, a batch by the lanes, and in time by what
            // they would remove.
            permit = match self.withdrawal_together(claim) {
                Together::No => {
                    let Ok(next) = timeout_at(last_chance, self.clean_ups.acquire()).await else { break };
                    Some(next)
                }
                Together::Perhaps | Together::InGroup => None,
            };
        }
    }

    /// Returns how much longer a lost batch with the claim's attempt may take effect.
    fn may_act_for(&self, claim: &Claim) -> Duration {
        self.outbox.batch().map_or(Duration::ZERO, |batch| batch.may_act_for(claim))
    }

    /// Releases a lease that no guard has received, in a batch, if the store makes a batch of such
    /// releases. Returns whether that has ended the lease. If not, the claim is to be withdrawn.
    async fn release_unreceived(&self, claim: &Claim, until: Instant) -> bool {
        let release = Release::new(claim.clone()).with_timeout(self.options.store_timeout());
        if !self.outbox.batch().is_some_and(|batch| batch.may_gather_release(&release)) {
            return false;
        }
        let mut call = self.outbox.send(release, CallLimits::until(until, Together::Perhaps));
        matches!(call.answer(Some(until), self.options.request_timeout).await, Some(Ok(_)))
    }

    fn withdrawal_together(&self, claim: &Claim) -> Together {
        let may_gather = self.outbox.batch().is_some_and(|batch| batch.may_gather_withdrawal(claim));
        if may_gather { Together::Perhaps } else { Together::No }
    }

    /// Makes one withdrawal, if the store has room for it by `until`.
    async fn withdraw(&self, claim: &Claim, until: Instant) -> Result<()> {
        let bound = self.options.request_timeout;
        let together = self.withdrawal_together(claim);
        let request = Withdraw { claim: claim.clone(), timeout: bound };
        let mut call = self.outbox.send(request, CallLimits::until(until, together));
        call.answer(None, bound + bound / 2)
            .await
            .unwrap_or_else(|| Err(LockError::timeout(Phase::Request, "no answer to a withdrawal").outcome_unknown()))
    }

    /// Withdraws a lost lease, best effort: once, and only if not too many withdrawals are under
    /// way (R16).
    pub(crate) fn withdraw_lost(self: &Arc<Self>, lease: &Lease) {
        let Ok(permit) = self.withdrawal_permits.clone().try_acquire_owned() else { return };
        if !lease.begin_withdrawal() {
            return;
        }
        let (engine, claim) = (self.clone(), lease.claim().clone());
        self.spawn(lease.home(), async move {
            // Nothing depends on it, so the answer does not matter.
            let _ = engine.withdraw(&claim, Instant::now() + engine.options.request_timeout).await;
            drop(permit);
            // The next local caller may have found the key busy.
            engine.local_queues.nudge(claim.key());
        });
    }

    /// Withdraws a lost lease whose guard still has it, when its margin has passed. The guard does
    /// so earlier if it is given up (C3). After that the store may have the lease only because of
    /// a renewal that came late.
    pub(crate) fn withdraw_lost_later(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (id, margin) = (lease.claim().id().clone(), lease.terms().margin);
        let is_kept = self.margins().as_mut().map(|kept| kept.insert(id.clone(), Arc::downgrade(lease))).is_some();
        if !is_kept {
            return self.withdraw_lost(lease);
        }
        let (engine, closed) = (Arc::downgrade(self), self.closed.clone());
        // Not tracked: nothing is open in the store until the withdrawal begins.
        drop(lease.home().spawn(async move {
            tokio::select! {
                biased;
                // It takes all of them.
                () = closed.cancelled() => return,
                () = sleep(margin) => {}
            }
            let Some(engine) = engine.upgrade() else { return };
            let lease = engine.margins().as_mut().and_then(|kept| kept.remove(&id));
            if let Some(lease) = lease.and_then(|lease| lease.upgrade()) {
                engine.withdraw_lost(&lease);
            }
        }));
    }

    fn margins(&self) -> MutexGuard<'_, Option<HashMap<AcquisitionId, Weak<Lease>>>> {
        self.margins.lock().expect("no code in here panics")
    }

    /// Withdraws the leases that are in their margin, because the provider is closed: in the
    /// caller's future, because their own runtimes may not run any more.
    pub(crate) async fn withdraw_margins(&self, until: Instant) {
        let lost = self.margins().take().unwrap_or_default();
        let begun = lost.values().filter_map(Weak::upgrade).filter(|lease| lease.begin_withdrawal());
        join_all(begun.map(async |lease| {
            if let Err(error) = self.withdraw(lease.claim(), until).await {
                log!(debug, lock.key = %lease.key(), %error, "lost lease not withdrawn while shutting down");
            }
        }))
        .await;
    }

    /// Records that a guard has given a lost lease up. With the last one the lease is withdrawn.
    pub(crate) fn leave_lost(self: &Arc<Self>, lease: &Arc<Lease>) {
        if lease.leave_lost() {
            self.withdraw_lost(lease);
        }
    }

    /// Withdraws the claims that wait in the store's queue, because the provider is closed: until
    /// that is confirmed, or the shutdown is given up.
    pub(crate) fn withdraw_closed(self: &Arc<Self>, tickets: Vec<(Claim, Ticket)>) {
        for (claim, ticket) in tickets {
            let engine = self.clone();
            self.spawn(&Handle::current(), async move {
                let last_chance = Instant::now() + ticket.lasts(engine.options.request_timeout);
                engine.withdraw_until(&claim, last_chance).await;
            });
        }
    }
}

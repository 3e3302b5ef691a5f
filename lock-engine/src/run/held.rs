//! What is behind the guards of a lease: its loss, its hand-off, its release.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use distlock_api::style::ReportedHold;
use distlock_api::{FencingToken, LeaseHandle, LockGuard, Loss, LostSignal, ReleaseFuture, ReleaseOutcome, Result};
use tokio::time::{Instant, sleep_until};

use crate::run::clock;
use crate::run::commit::{self, CommitJob, RefusedCommit};
use crate::run::core::{Engine, current_home};
use crate::run::join::Left;
use crate::run::outbox::{CallLimits, CountWaiters, Together};
use crate::run::release::ReleaseJob;
use crate::run::transit::{InTransit, Lease, ReleaseUnclaimed, Turn};
use crate::simulation::defect;
use crate::state::hand_off::NextUse;
use crate::state::lease::{LeaseView, ReleaseStart};
use crate::state::ledger::End;
use crate::state::time::Now;
use crate::store::{Release, WriteOp, Written};

/// What the engine keeps behind a guard.
pub(crate) struct HeldLease {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    token: FencingToken,
    /// How long the lease lingers; `None` if the provider decides that.
    linger: Option<Duration>,
    /// What reports the hold, if the provider has a name for reports, until the guard gives it up.
    hold: Option<Box<ReportedHold>>,
    released: bool,
}

impl HeldLease {
    pub(crate) fn new(engine: Arc<Engine>, lease: Arc<Lease>, token: FencingToken) -> Self {
        Self { engine, lease, token, linger: None, hold: None, released: false }
    }

    /// Sets what reports the hold.
    pub(crate) fn set_hold(&mut self, hold: Option<ReportedHold>) {
        self.hold = hold.map(Box::new);
    }

    /// Reports the end of the hold.
    fn end_hold(&mut self, outcome: &'static str) {
        if let Some(mut hold) = self.hold.take() {
            hold.set_outcome(outcome);
        }
    }

    /// Sets how long the lease lingers, if the acquisition says it.
    pub(crate) fn set_linger(&mut self, linger: Option<Duration>) {
        self.linger = linger;
    }

    /// Returns the guard of a plain lock.
    pub(crate) fn into_guard(self) -> LockGuard {
        let (key, token) = (self.lease.key().clone(), self.token);
        LockGuard::new(key, token, Box::new(self))
    }

    fn check_loss(&self, now: &Now) -> Option<Loss> {
        let LeaseView::Lost { loss, fresh } = self.lease.view_for(self.token, now) else { return None };
        if fresh {
            self.engine.record_loss(&self.lease, loss);
        }
        Some(loss)
    }

    /// Gives the lease up: hands it on to the next caller of this process, or returns the job that
    /// releases it in the store.
    fn give_up(&mut self, how: GiveUp) -> GivenUp {
        self.released = true;
        let now = clock::now();
        if let LeaseView::Lost { loss, fresh } = self.lease.view_for(self.token, &now) {
            // Before the next local caller may make an attempt.
            self.engine.leave_lost(&self.lease);
            if fresh {
                self.engine.record_loss(&self.lease, loss);
            }
            return GivenUp::Lost;
        }
        if self.lease.is_joinable() {
            return self.leave(End::Released, &now);
        }
        if self.hand_on(how, &now) {
            return GivenUp::HandedOn;
        }
        let hold = self.lease.terms().hold_at_least.filter(|_| how == GiveUp::Used);
        match self.engine.begin_release(&self.lease, hold, &now) {
            Some(job) => GivenUp::Releasing(job),
            None => {
                // It may have been lost while no caller was found for it. Then its turn was not
                // with it.
                self.lease.pass_turn();
                self.engine.leave_lost(&self.lease);
                GivenUp::Lost
            }
        }
    }

    /// Leaves a shared lease to its other guards, if there are any.
    fn leave(&self, end: End, now: &Now) -> GivenUp {
        match self.engine.leave(&self.lease, (self.token, false), end, now) {
            Left::Shared => GivenUp::HandedOn,
            Left::Release(job) => GivenUp::Releasing(job),
            Left::Lost => {
                self.engine.leave_lost(&self.lease);
                GivenUp::Lost
            }
        }
    }

    /// Hands the lease on to the next caller of this process, or keeps it for one that may come.
    fn hand_on(&self, how: GiveUp, now: &Now) -> bool {
        let Some(limits) = &self.engine.options.hand_off else { return false };
        if self.engine.closed.is_cancelled() {
            return false;
        }
        let linger = self.linger.unwrap_or(limits.linger);
        // On another runtime nothing would end the linger that of the lease does.
        let lingers =
            how == GiveUp::Used && !linger.is_zero() && current_home().is_ok_and(|home| home == self.lease.home_id());
        let Some((turn, next)) = self.lease.hand_on(now, limits, lingers) else { return false };
        let handed_on = match next {
            NextUse::Guard => turn.hand_on(InTransit::new(&self.lease, self.engine.clone())),
            NextUse::Linger => Err(turn),
        };
        let Err(turn) = handed_on else {
            if defect!(HandedOnAfterRelease) {
                let (store, release) = (self.engine.outbox.store.clone(), Release::new(self.lease.claim().clone()));
                let work = async move { drop(store.release(&release).await) };
                self.engine.spawn(self.lease.home(), work);
            }
            if self.lease.should_query_waiters(now.instant(), limits) {
                self.engine.query_waiters(&self.lease);
            }
            return true;
        };
        let parked = self.park(turn, lingers.then_some(linger), now);
        parked.map_err(|turn| self.lease.reclaim(turn)).is_ok()
    }

    /// Parks the lease for this long.
    fn park(&self, turn: Turn, linger: Option<Duration>, now: &Now) -> std::result::Result<(), Turn> {
        let Some(linger) = linger else { return Err(turn) };
        let until = now.instant() + linger;
        if !self.lease.park(until, now) {
            return Err(turn);
        }
        turn.park(InTransit::new(&self.lease, self.engine.clone()), until)?;
        self.engine.watch_parked(&self.lease, until);
        Ok(())
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.lease.deadline(&clock::now())
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.token
    }

    /// Writes and keeps the lease. The call is finished even if the caller leaves.
    pub(crate) async fn write(&self, op: Arc<dyn WriteOp>) -> Result<Written> {
        commit::write(self.engine.clone(), self.lease.clone(), op).await
    }

    /// Starts a commit, which owns the lease from now on; `None` if the lease is lost.
    pub(crate) fn begin_commit(&mut self, op: Arc<dyn WriteOp>, how: GiveUp) -> Option<CommitJob> {
        let now = clock::now();
        let held = self.check_loss(&now).is_none() && self.lease.begin_commit(&now);
        if held {
            self.released = true;
            let hold = self.lease.terms().hold_at_least.filter(|_| how == GiveUp::Used);
            let reported = self.hold.take();
            return Some(CommitJob::new(self.engine.clone(), self.lease.clone(), self.token, op, hold, reported));
        }
        self.end_hold("already_lost");
        None
    }

    fn release_holding(&mut self, how: GiveUp) -> ReleaseFuture {
        let (given_up, reported) = (self.give_up(how), self.hold.take());
        let is_lost = matches!(given_up, GivenUp::Lost);
        let release = match given_up {
            GivenUp::Releasing(job) => ReleaseFuture::running(job.run()),
            GivenUp::HandedOn => ReleaseFuture::done(Ok(ReleaseOutcome::Released)),
            GivenUp::Lost => ReleaseFuture::done(Ok(ReleaseOutcome::AlreadyLost)),
        };
        let Some(mut reported) = reported else { return release };
        // Reported if the caller does not wait for the answer.
        if is_lost {
            reported.set_outcome("lost");
        }
        reported.until(release)
    }
}

impl From<RefusedCommit> for HeldLease {
    fn from(RefusedCommit { engine, lease, token, hold }: RefusedCommit) -> Self {
        let mut held = Self::new(engine, lease, token);
        held.hold = hold;
        held
    }
}

/// How a guard gives its lease up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// After the work: the minimum hold applies, and the lease may linger.
    Used,
    /// Without any work.
    Unused,
}

/// What became of a lease whose guard gave it up.
enum GivenUp {
    Releasing(ReleaseJob),
    /// The next guard has it, or the others that share it.
    HandedOn,
    Lost,
}

impl LeaseHandle for HeldLease {
    fn valid_until(&self) -> Option<Instant> {
        Some(self.valid_until())
    }

    fn loss(&self) -> Option<Loss> {
        self.check_loss(&clock::now())
    }

    fn lost(&self) -> LostSignal {
        LostSignal::new(lost(Arc::downgrade(&self.engine), self.lease.clone(), self.token))
    }

    fn release(mut self: Box<Self>) -> ReleaseFuture {
        self.release_holding(GiveUp::Used)
    }

    fn discard(mut self: Box<Self>) -> ReleaseFuture {
        self.release_holding(GiveUp::Unused)
    }

    fn abandon(mut self: Box<Self>) {
        self.released = true;
        let now = clock::now();
        if self.check_loss(&now).is_some() {
            // The timer withdraws it, as this guard sends nothing.
            let _ = self.lease.leave_lost();
            self.end_hold("lost");
            return;
        }
        self.end_hold("abandoned");
        if self.lease.is_joinable() {
            if let GivenUp::Releasing(job) = self.leave(End::Abandoned, &now) {
                job.abandon();
            }
            return;
        }
        match self.engine.begin_release(&self.lease, None, &now) {
            Some(job) => job.abandon(),
            None => self.lease.pass_turn(),
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        match self.give_up(GiveUp::Used) {
            GivenUp::Releasing(job) => job.run_in_background(),
            GivenUp::Lost => self.end_hold("lost"),
            GivenUp::HandedOn => {}
        }
    }
}

impl ReleaseUnclaimed for Engine {
    fn release_unclaimed(self: Arc<Self>, lease: &Arc<Lease>) {
        match self.release_handed_on(lease, &clock::now()) {
            Some(job) => job.run_in_background(),
            None => lease.pass_turn(),
        }
    }

    fn leave_unclaimed(self: Arc<Self>, lease: &Arc<Lease>, token: FencingToken) {
        let now = clock::now();
        if self.check_loss(lease, &now).is_some() {
            return self.leave_lost(lease);
        }
        match self.leave(lease, (token, true), End::Released, &now) {
            Left::Release(job) => job.run_in_background(),
            Left::Lost => self.leave_lost(lease),
            Left::Shared => {}
        }
    }
}

impl Engine {
    /// Ends the renewals of a lease, and returns the release that is now due; `None` if the lease
    /// was lost before.
    pub(crate) fn begin_release(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        hold: Option<Duration>,
        now: &Now,
    ) -> Option<ReleaseJob> {
        match lease.begin_release() {
            ReleaseStart::Releasing => {
                self.ledger().release_begun(lease, now);
                Some(ReleaseJob::new(self.clone(), lease.clone(), hold))
            }
            ReleaseStart::Lost => None,
        }
    }

    /// Returns the release of a lease that was handed on and that no guard takes; `None` if it was
    /// lost in transit.
    pub(crate) fn release_handed_on(self: &Arc<Self>, lease: &Arc<Lease>, now: &Now) -> Option<ReleaseJob> {
        if self.check_loss(lease, now).is_some() { None } else { self.begin_release(lease, None, now) }
    }

    /// Queries in the background whether other processes wait for a lease that is being handed on.
    pub(crate) fn query_waiters(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (engine, lease) = (self.clone(), lease.clone());
        let home = lease.home().clone();
        self.spawn(&home, async move {
            let query = CountWaiters { claim: lease.claim().clone(), timeout: engine.options.store_timeout() };
            let called = Instant::now();
            let deadline = called + engine.options.request_timeout;
            let mut call = engine.outbox.send(query, CallLimits::until(deadline, Together::No));
            let answer = call.answer(Some(deadline), engine.options.request_timeout).await;
            let sent = call.sent_at().unwrap_or(called);
            // If the query fails, assume that another process is waiting.
            let others = !matches!(answer, Some(Ok(0)));
            lease.waiters_answered(sent, others);
            if others {
                engine.unpark(&lease);
            }
        });
    }
}

/// Resolves when the lease is lost. Its own timer resolves it at the deadline, so that neither a
/// hung renewal nor a dead keeper delays it (C4).
///
/// Each poll looks at the lease, whatever its timer says: a busy runtime runs timers late.
pub(crate) async fn lost(engine: Weak<Engine>, lease: Arc<Lease>, token: FencingToken) -> Loss {
    loop {
        // Before the look, so that no change is missed.
        let mut changed = pin!(lease.changed.notified());
        changed.as_mut().enable();
        let deadline = match look(&engine, &lease, token) {
            LeaseView::Lost { loss, .. } => return loss,
            LeaseView::HeldUntil(deadline) => Some(deadline),
            LeaseView::Undecided => None,
            LeaseView::Over => break,
        };
        let mut timer = pin!(deadline.map(sleep_until));
        poll_fn(|cx| {
            let is_due = changed.as_mut().poll(cx).is_ready()
                || timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready())
                || matches!(look(&engine, &lease, token), LeaseView::Lost { .. });
            if is_due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
    drop((engine, lease));
    pending().await
}

/// Looks at the lease for the guard with this token, and records a loss that this look has noticed.
fn look(engine: &Weak<Engine>, lease: &Arc<Lease>, token: FencingToken) -> LeaseView {
    let view = lease.view_for(token, &clock::now());
    if let LeaseView::Lost { loss, fresh: true } = view
        && let Some(engine) = engine.upgrade()
    {
        engine.record_loss(lease, loss);
    }
    view
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::runtime::Handle;

    use super::*;
    use crate::state::lease::{Origin, deadline};
    use crate::store::{Claim, Grant, ProviderId};
    use distlock_api::{Holder, LeaseOptions, LockKey};

    fn granted() -> Arc<Lease> {
        let home = Handle::current();
        let origin = Origin { home_id: home.id(), home, in_group: false };
        let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
        let terms = LeaseOptions::new().terms().unwrap();
        let (sent, grant) = (Instant::now(), Grant::new(FencingToken::new(7), terms.ttl));
        let deadline = deadline(sent, grant.remaining, &terms);
        let granted =
            Lease::granted(claim, &grant, (terms, Holder::new()), (sent, deadline), &clock::now(), origin, None);
        granted.unwrap_or_else(|_| panic!("in time"))
    }

    #[test]
    fn c4_a_loss_is_signalled_whenever_it_comes() {
        use std::sync::Barrier;
        use std::task::{Context, Waker};

        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        let (lost, here, there) = (Mutex::new(None), Barrier::new(2), Barrier::new(2));
        let take_away = || {
            for _ in 0..20_000 {
                here.wait();
                let lease: Arc<Lease> = lost.lock().unwrap().take().unwrap();
                assert!(lease.lose(Loss::ForceReleased));
                drop(lease);
                there.wait();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(take_away);
            for _ in 0..20_000 {
                let lease = granted();
                *lost.lock().unwrap() = Some(lease.clone());
                let mut signal = Box::pin(super::lost(Weak::new(), lease, FencingToken::new(7)));
                let mut cx = Context::from_waker(Waker::noop());
                here.wait();
                let signalled = signal.as_mut().poll(&mut cx).is_ready();
                there.wait();
                if !signalled && signal.as_mut().poll(&mut cx).is_pending() {
                    eprintln!("a loss was not signalled");
                    std::process::abort(); // the other thread waits at a barrier
                }
            }
        });
    }
}

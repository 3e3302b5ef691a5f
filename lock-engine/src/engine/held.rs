//! What is behind the guards of a lease: whoever has it, hands it on, or gives it back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::store::{Lane, WriteOp};
use distlock_api::{FencingToken, HeldLock, LockGuard, Loss, LostSignal, ReleaseFuture, ReleaseOutcome};

use super::Engine;
use super::call::Call;
use super::commit::CommitJob;
use super::lease::{Begun, Lease, Seen};
use super::release::ReleaseJob;
use super::turns::Turn;

/// What the engine keeps behind a guard.
pub(super) struct HeldLease {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    token: FencingToken,
    released: bool,
}

impl HeldLease {
    pub(super) fn new(engine: Arc<Engine>, lease: Arc<Lease>, token: FencingToken) -> Self {
        Self { engine, lease, token, released: false }
    }

    /// As the guard of a plain lock.
    pub(super) fn into_guard(self) -> LockGuard {
        let (key, token) = (self.lease.key().clone(), self.token);
        LockGuard::new(key, token, Box::new(self))
    }

    fn loss_seen(&self) -> Option<Loss> {
        let Seen::Lost { loss, fresh } = self.lease.look_for(self.token, Instant::now()) else { return None };
        if fresh {
            self.engine.bury(&self.lease, loss);
        }
        Some(loss)
    }

    /// Gives the lease up: to the next caller of this process, or to the store by the job that comes back.
    fn give_up(&mut self, hold: Option<Duration>) -> GivenUp {
        self.released = true;
        if self.loss_seen().is_some() {
            return GivenUp::Lost;
        }
        if self.hand_on() {
            return GivenUp::HandedOn;
        }
        match self.engine.begin_release(&self.lease, hold) {
            Some(job) => GivenUp::Releasing(job),
            None => {
                // It may have been lost while nobody was found to hand it to: then its turn was not with it.
                self.lease.pass_turn();
                GivenUp::Lost
            }
        }
    }

    fn hand_on(&self) -> bool {
        let Some(limits) = &self.engine.config.hand_off else { return false };
        if self.engine.closed.is_cancelled() {
            return false;
        }
        let now = Instant::now();
        let Some(turn) = self.lease.hand_on(now, limits) else { return false };
        match turn.hand_on(Baton::new(&self.engine, &self.lease)) {
            Ok(()) => {
                if self.lease.asks_who_waits(now, limits) {
                    self.engine.ask_who_waits(&self.lease);
                }
                true
            }
            Err(turn) => {
                self.lease.take_back(turn);
                false
            }
        }
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// Makes a commit of it, which sees to the lease from now on; none if it is lost.
    pub(super) fn begin_commit(&mut self, op: Arc<dyn WriteOp>) -> Option<CommitJob> {
        let held = self.loss_seen().is_none() && self.lease.begin_commit(Instant::now());
        if held {
            self.released = true;
            return Some(CommitJob::new(self.engine.clone(), self.lease.clone(), self.token, op));
        }
        None
    }

    fn release_holding(&mut self, hold: Option<Duration>) -> ReleaseFuture {
        match self.give_up(hold) {
            GivenUp::Releasing(job) => ReleaseFuture::running(job.run()),
            GivenUp::HandedOn => ReleaseFuture::done(Ok(ReleaseOutcome::Released)),
            GivenUp::Lost => ReleaseFuture::done(Ok(ReleaseOutcome::AlreadyLost)),
        }
    }
}

/// What became of a lease whose guard let it go.
enum GivenUp {
    Releasing(ReleaseJob),
    HandedOn,
    Lost,
}

impl HeldLock for HeldLease {
    fn valid_until(&self) -> Option<Instant> {
        Some(self.lease.deadline())
    }

    fn loss(&self) -> Option<Loss> {
        self.loss_seen()
    }

    fn lost(&self) -> LostSignal {
        LostSignal::new(lost(Arc::downgrade(&self.engine), self.lease.clone(), self.token))
    }

    fn release(mut self: Box<Self>) -> ReleaseFuture {
        let hold = self.lease.terms().hold_at_least;
        self.release_holding(hold)
    }

    fn discard(mut self: Box<Self>) -> ReleaseFuture {
        self.release_holding(None)
    }

    fn abandon(mut self: Box<Self>) {
        self.released = true;
        if self.loss_seen().is_some() {
            return;
        }
        match self.engine.begin_release(&self.lease, None) {
            Some(job) => job.abandon(),
            None => self.lease.pass_turn(),
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if !self.released
            && let GivenUp::Releasing(job) = self.give_up(self.lease.terms().hold_at_least)
        {
            job.run_in_background();
        }
    }
}

/// A lease on its way from one guard of this process to the next. Dropped on the way it is released.
#[derive(Clone)]
pub(super) struct Baton {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
}

impl Baton {
    fn new(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Self {
        Self { engine: engine.clone(), lease: lease.clone() }
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Nobody takes it: it goes back to the store, and its turn to whoever comes meanwhile.
    pub(super) fn lay_down(self, turn: Turn) {
        self.lease.lay_down(turn);
        match self.release() {
            Some(job) => job.run_in_background(),
            None => self.lease.pass_turn(),
        }
    }

    /// The release that is now due; none if the lease was lost on the way.
    pub(super) fn release(&self) -> Option<ReleaseJob> {
        if self.engine.look(&self.lease).is_some() {
            return None;
        }
        self.engine.begin_release(&self.lease, None)
    }
}

impl Engine {
    /// Ends the time of a lease's renewals, and makes the release that is now due; none if the lease was lost before.
    pub(super) fn begin_release(self: &Arc<Self>, lease: &Arc<Lease>, hold: Option<Duration>) -> Option<ReleaseJob> {
        match lease.begin_release() {
            Begun::Releasing => {
                self.registry().releasing(lease);
                Some(ReleaseJob::new(self.clone(), lease.clone(), hold))
            }
            Begun::Lost => None,
        }
    }

    /// Asks in the background whether other processes wait for a lease that is being handed on.
    fn ask_who_waits(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (engine, lease) = (self.clone(), lease.clone());
        let home = lease.home().clone();
        self.spawn(&home, async move {
            let (store, claim, bound) = (engine.store.clone(), lease.claim().clone(), engine.config.store_timeout());
            let request = async move { store.waiters(&claim, bound).await };
            let deadline = Instant::now() + engine.config.request_timeout;
            let called = Instant::now();
            let (sent, answer) = match Call::new(engine.store.lanes(), Lane::Refresh, Some(deadline), false, request) {
                Ok(mut call) => {
                    let answer = call.answer(Some(deadline), engine.config.request_timeout).await;
                    (call.sent().unwrap_or(called), answer)
                }
                Err(_) => (called, None),
            };
            // If the query fails, assume that someone is waiting.
            lease.others(sent, !matches!(answer, Some(Ok(0))));
        });
    }
}

/// Resolves at the loss: by its own timer at the deadline, so that neither a hung renewal nor a dead keeper delays it (C4).
pub(super) async fn lost(engine: std::sync::Weak<Engine>, lease: Arc<Lease>, token: FencingToken) -> Loss {
    loop {
        let mut changed = std::pin::pin!(lease.changed.notified());
        changed.as_mut().enable();
        match lease.look_for(token, Instant::now()) {
            Seen::Lost { loss, fresh } => {
                if let (true, Some(engine)) = (fresh, engine.upgrade()) {
                    engine.bury(&lease, loss);
                }
                return loss;
            }
            Seen::HeldUntil(deadline) => tokio::select! {
                () = sleep_until(deadline) => {}
                () = changed => {}
            },
            Seen::Undecided => changed.await,
            Seen::Over => break,
        }
    }
    drop((engine, lease));
    std::future::pending().await
}

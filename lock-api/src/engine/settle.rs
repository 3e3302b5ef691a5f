//! Attempts, and what must be done about them when nobody waits for their answer any more.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::{Disposition, LockError, Phase, Result};
use crate::key::LockKey;
use crate::store::{AcquireOp, AcquisitionId, Attempt, Claim, QueueStanding, Reply};

use super::lease::Lease;
use super::{Engine, guarded, pace};

type Call = Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// An acquisition that has not come to its end. It owns the call in flight, not the caller's future: dropped with it,
/// the call is finished in the background and whatever it brought is withdrawn (C11, R11).
pub(super) struct Attempting<'a> {
    engine: &'a Arc<Engine>,
    home: Handle,
    claim: Claim,
    ttl: Duration,
    /// Asks in the store's place.
    via: Option<Arc<dyn AcquireOp>>,
    /// Wakes the caller when the store says something of the claim unasked.
    news: Arc<Notify>,
    /// The store may have granted this claim something.
    dirty: bool,
    /// The claim has a ticket in the queue.
    queued: bool,
    call: Option<Call>,
    /// Keeps `close` waiting as long as there is something to clean up.
    open: Option<TaskTrackerToken>,
}

impl<'a> Attempting<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, key: &LockKey, ttl: Duration, via: Option<Arc<dyn AcquireOp>>) -> Self {
        let home = Handle::current();
        let (claim, news) = engine.begin_claim(key);
        Self { engine, home, claim, ttl, via, news, dirty: false, queued: false, call: None, open: None }
    }

    pub(super) fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Asks once; waits for the answer no longer than `bound`. Returns the instant before sending with the answer (C3).
    pub(super) async fn ask(&mut self, attempt: Attempt, bound: Instant) -> Result<(Instant, Reply)> {
        if self.call.is_some() || (self.dirty && !self.engine.store.capabilities().ordered_claims) {
            self.start_afresh();
        }
        self.open.get_or_insert_with(|| self.engine.tasks.token());
        if self.engine.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        let attempt = Attempt { claim: self.claim.clone(), ..attempt };
        let (store, via) = (self.engine.store.clone(), self.via.clone());
        let sent = Instant::now();
        let call = self.call.insert(Box::pin(guarded(async move {
            match via {
                Some(op) => op.try_acquire(&attempt).await,
                None => store.try_acquire(&attempt).await,
            }
        })));
        let answer = tokio::select! {
            biased;
            answer = timeout_at(bound, call) => answer,
            () = self.engine.closed.cancelled() => return Err(LockError::closed()),
        };
        let Ok(answer) = answer else {
            return Err(LockError::timeout(Phase::Request, "the store has not answered").outcome_unknown());
        };
        self.call = None;
        match &answer {
            Ok(Reply::Granted(_)) => self.dirty = true,
            // Asked again under the same id, the store has said what became of the earlier attempts.
            Ok(Reply::Busy(busy)) => {
                self.dirty = false;
                self.queued = matches!(busy.standing, QueueStanding::Queued { .. });
            }
            Err(error) => self.dirty |= error.is_outcome_unknown(),
        }
        // A ticket keeps nobody waiting: `close` withdraws it, whether its caller is polled or not.
        if !self.dirty {
            self.open = None;
        }
        answer.map(|reply| (sent, reply))
    }

    /// Whether the last attempt was left before it was answered.
    pub(super) fn is_cut_off(&self) -> bool {
        self.call.is_some()
    }

    /// Whether asking again would say what became of the last attempt.
    pub(super) fn can_resolve(&self) -> bool {
        self.dirty && self.call.is_none() && self.engine.store.capabilities().ordered_claims
    }

    /// Gives the claim up, clean-up included; what follows is another acquisition.
    pub(super) fn start_afresh(&mut self) {
        self.give_up();
        (self.claim, self.news) = self.engine.begin_claim(self.claim.key());
    }

    /// The lease is somebody's: there is nothing to clean up.
    pub(super) fn keep(mut self) {
        self.dirty = false;
        self.queued = false;
    }

    fn give_up(&mut self) {
        self.engine.end_claim(&self.claim);
        let (call, open) = (self.call.take(), self.open.take());
        let dirty = std::mem::take(&mut self.dirty) | std::mem::take(&mut self.queued);
        if dirty || call.is_some() {
            let work = settle(self.engine.clone(), self.claim.clone(), call, dirty, self.ttl);
            // Without its runtime, what is left ends by its ttl.
            self.engine.spawn(&self.home, async move {
                work.await;
                drop(open);
            });
        }
    }
}

impl Drop for Attempting<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Engine {
    fn begin_claim(&self, key: &LockKey) -> (Claim, Arc<Notify>) {
        let claim = Claim::new(key.clone(), AcquisitionId::random(self.id));
        // Always: what the store can do it may know only after its first answer.
        let news = self.registry().begins(claim.id().clone());
        (claim, news)
    }

    fn end_claim(&self, claim: &Claim) {
        self.registry().ends(claim.id());
    }

    /// Best effort for a lease that has been lost: one withdrawal, if not too many are under way (R16).
    pub(super) fn withdraw_lost(self: &Arc<Self>, lease: &Lease) {
        let Ok(permit) = self.farewells.clone().try_acquire_owned() else { return };
        let (engine, claim) = (self.clone(), lease.claim().clone());
        self.spawn(lease.home(), async move {
            // Nobody depends on it, so the answer does not matter.
            let _ = engine.withdraw(&claim).await;
            drop(permit);
        });
    }

    /// Withdraws what waits in the store's queue, because the provider is closed.
    pub(super) fn withdraw_closed(self: &Arc<Self>, claims: Vec<Claim>) {
        for claim in claims {
            let engine = self.clone();
            self.spawn(&Handle::current(), async move {
                if let Err(error) = engine.withdraw(&claim).await {
                    tracing::debug!(lock.key = %claim.key(), %error, "ticket not withdrawn while shutting down");
                }
            });
        }
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let bound = self.config.request_timeout;
        let call = guarded(self.store.withdraw(claim, bound));
        let silent = |_| Err(LockError::timeout(Phase::Request, "no answer to a withdrawal").outcome_unknown());
        timeout(bound + bound / 2, call).await.unwrap_or_else(silent)
    }
}

/// Lets a call end, then withdraws its claim until the store has confirmed that, or a lease that it might have got has expired. Nothing
/// is withdrawn where nothing can have been granted.
async fn settle(engine: Arc<Engine>, claim: Claim, call: Option<Call>, mut dirty: bool, ttl: Duration) {
    if let Some(call) = call {
        // Stores end their calls by themselves; one that does not is given up here.
        dirty |= match timeout(2 * engine.config.request_timeout, call).await {
            Ok(Ok(Reply::Busy(busy))) => matches!(busy.standing, QueueStanding::Queued { .. }),
            Ok(Err(error)) => error.is_outcome_unknown(),
            Ok(Ok(Reply::Granted(_))) | Err(_) => true,
        };
    }
    if !dirty {
        return engine.turns.nudge(claim.key());
    }
    let last_chance = Instant::now() + ttl;
    let mut failed = 0;
    while let Err(error) = engine.withdraw(&claim).await {
        tracing::debug!(lock.key = %claim.key(), %error, "clean-up not confirmed yet");
        if error.disposition() == Disposition::Permanent || Instant::now() >= last_chance {
            break;
        }
        sleep(pace::after_error(failed, fastrand::f64())).await;
        failed += 1;
        // What is made again is bounded in number, and in time by the lease that there may be.
        let Ok(_permit) = timeout_at(last_chance, engine.clean_ups.acquire()).await else { break };
    }
    engine.turns.nudge(claim.key());
}

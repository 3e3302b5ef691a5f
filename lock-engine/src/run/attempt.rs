//! Attempts, and the clean-up of those whose caller has left.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use distlock_api::{AcquisitionId, Disposition, ErrorKind, LockError, LockKey, Mode, Phase, Result};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::log::log;
use crate::run::call::{Answered, Call, InFlight, guarded};
use crate::run::core::Engine;
use crate::run::gather::Acquiring;
use crate::run::transit::Lease;
use crate::simulation::defect;
use crate::state::backoff;
use crate::state::gather::Company;
use crate::store::{AcquireOp, Attempt, Claim, Lane, QueueStanding, Release, Reply, Ticket};

/// An acquisition that is not complete. It owns the call in flight; the caller's future does not.
/// If the acquisition is dropped, the call is finished in the background, and what it brought is
/// withdrawn (C11, rule R11 of distlock-mongo's PROTOCOL).
pub(crate) struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    home: Handle,
    claim: Claim,
    /// How long what the claim may have at the store lasts by itself.
    lasts: Duration,
    /// Makes the attempts instead of the store.
    via: Option<Arc<dyn AcquireOp>>,
    /// Notified when the store has pushed something about the claim.
    updates: Arc<Notify>,
    /// Whether the store may have granted this claim a lease.
    dirty: bool,
    /// Whether the claim has a ticket in the queue.
    queued: bool,
    /// Whether the claim has made an attempt.
    attempted: bool,
    /// Whether the attempt in flight, or the last one, went in a batch.
    in_batch: bool,
    /// Whether the attempts were made with others.
    company: Company,
    call: InFlight<Reply>,
    /// How many calls in a row were not answered in time.
    unanswered: u32,
    /// Keeps `close` waiting as long as there is something to clean up.
    open: Option<TaskTrackerToken>,
}

/// How long an acquisition waits for one answer.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// When the caller leaves.
    pub(crate) limit: Option<Instant>,
    /// How long to wait for the answer after sending.
    pub(crate) answer: Duration,
    /// Whether to fail at once if the call would wait too long in line for the store.
    pub(crate) admission: bool,
    /// Whether the first call of the claim may wait for others, and go in a batch.
    pub(crate) batched: Option<Company>,
}

/// After this many unanswered calls in a row the claim is given up. Its session, or the server's
/// work for it, may hang; another claim depends on neither.
const UNANSWERED: u32 = 2;

impl<'a> Acquisition<'a> {
    pub(crate) fn new(
        engine: &'a Arc<Engine>,
        (key, mode): (&LockKey, Mode),
        ttl: Duration,
        via: Option<Arc<dyn AcquireOp>>,
    ) -> Self {
        let home = Handle::current();
        let (claim, updates) = engine.begin_claim(key, mode);
        Self {
            engine,
            home,
            claim,
            lasts: ttl,
            via,
            updates,
            dirty: false,
            queued: false,
            attempted: false,
            in_batch: false,
            company: Company::Unknown,
            call: InFlight::none(),
            unanswered: 0,
            open: None,
        }
    }

    /// Returns what is notified when there may be updates about the claim.
    pub(crate) fn updates(&self) -> Arc<Notify> {
        self.updates.clone()
    }

    pub(crate) fn company(&self) -> Company {
        self.company
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Makes one attempt. Returns the answer with the instant before it was sent (C3).
    pub(crate) async fn attempt(&mut self, mut attempt: Attempt, patience: Patience) -> Result<(Instant, Reply)> {
        // Only the first attempt of a claim goes in a batch, and only a batch leaves it undecided.
        let mut again = patience.batched.is_some().then(|| attempt.clone());
        loop {
            let answered = self.attempt_once(attempt, patience).await?;
            match (&answered, again.take()) {
                ((_, Reply::Busy(busy)), Some(again)) if busy.undecided => attempt = again,
                _ => return Ok(answered),
            }
        }
    }

    async fn attempt_once(&mut self, attempt: Attempt, patience: Patience) -> Result<(Instant, Reply)> {
        self.call.leave_line();
        let hangs = self.dirty && self.unanswered >= UNANSWERED;
        let unordered = self.dirty && !self.is_ordered();
        if self.call.is_under_way() || hangs || unordered {
            self.start_new_claim();
        }
        self.open.get_or_insert_with(|| self.engine.tasks.token());
        if self.engine.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        connected(self.engine, patience.limit).await?;
        let attempt = Attempt { claim: self.claim.clone(), ..attempt };
        if let Some(ticket) = &attempt.ticket {
            self.lasts = self.lasts.max(ticket.lasts(self.engine.options.request_timeout));
        }
        let call = self.send(attempt, patience)?;
        self.in_batch = call.is_part();
        self.call.begin(call);
        let Patience { limit, answer: patience, .. } = patience;
        let answered = tokio::select! {
            biased;
            answered = self.call.answer(limit, patience) => answered,
            () = self.engine.closed.cancelled() => return Err(LockError::closed()),
        };
        let Some(Answered { sent, answer }) = answered else {
            return Err(self.call.leave_unanswered(&*self.engine.store));
        };
        match &answer {
            Ok(Reply::Granted(_)) => self.dirty = true,
            // The answer to a repeated attempt under the same id also resolves the earlier
            // attempts.
            Ok(Reply::Busy(busy)) => {
                self.dirty = false;
                self.queued = matches!(busy.standing, QueueStanding::Queued { .. });
            }
            Err(error) => self.dirty |= error.is_outcome_unknown(),
        }
        self.unanswered = match &answer {
            Err(error) if error.is_outcome_unknown() && error.kind() == ErrorKind::Timeout => self.unanswered + 1,
            _ => 0,
        };
        // A ticket does not delay `close`, which withdraws it whether or not its caller is polled.
        if !self.dirty {
            self.open = None;
        }
        answer.map(|reply| (sent, reply))
    }

    /// Starts the call of an attempt. The first attempt of a claim may go in a batch.
    fn send(&mut self, attempt: Attempt, patience: Patience) -> Result<Call<Reply>> {
        let store = self.engine.store.clone();
        let is_first = !std::mem::replace(&mut self.attempted, true);
        let Patience { limit, admission, batched, .. } = patience;
        let via = self.via.clone();
        let may_gather = || match &via {
            Some(op) => op.may_gather(&attempt),
            None => store.may_gather(&attempt),
        };
        let company = batched.filter(|_| is_first && may_gather());
        self.company = company.unwrap_or(self.company);
        self.engine.acquisitions.call(&store, Acquiring { attempt, via }, company, limit, admission)
    }

    /// Returns whether a call that was given up has no effect once a later one of the claim is
    /// answered. A batch is in no order with other calls (R24).
    fn is_ordered(&self) -> bool {
        !self.in_batch && self.engine.store.capabilities().ordered_claims
    }

    /// Returns whether the last attempt was abandoned before it was answered.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.call.is_under_way()
    }

    /// Returns whether another attempt would resolve the outcome of the last one.
    pub(crate) fn can_resolve(&self) -> bool {
        self.dirty && !self.call.is_under_way() && self.is_ordered()
    }

    /// Gives the claim up, clean-up included, and starts a new one.
    pub(crate) fn start_new_claim(&mut self) {
        self.give_up();
        self.unanswered = 0;
        self.attempted = false;
        if defect!(IdReused) {
            self.updates = self.engine.ledger().add_pending(self.claim.id().clone());
            return;
        }
        (self.claim, self.updates) = self.engine.begin_claim(self.claim.key(), self.claim.mode());
    }

    /// Ends the acquisition without clean-up, because a guard has the lease.
    pub(crate) fn complete(mut self) {
        self.dirty = false;
        self.queued = false;
    }

    fn give_up(&mut self) {
        self.engine.end_claim(&self.claim);
        // A call in line has sent nothing; it leaves the line.
        self.call.leave_line();
        let call = self.call.take();
        let open = self.open.take();
        let dirty = std::mem::take(&mut self.dirty) | std::mem::take(&mut self.queued);
        if (dirty || call.is_under_way()) && !defect!(NotWithdrawn) {
            let work = settle(self.engine.clone(), self.claim.clone(), call, dirty, self.lasts);
            // If the runtime has ended, what is left ends by its ttl.
            self.engine.spawn(&self.home, work);
        }
        // Only now: the task is counted already, so `close` waits for it.
        drop(open);
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Engine {
    fn begin_claim(&self, key: &LockKey, mode: Mode) -> (Claim, Arc<Notify>) {
        let claim = Claim::accounted(key.clone(), self.id.acquisition_id()).with_mode(mode);
        // Even if the store declares no push: it may know its capabilities only after its first
        // answer.
        let updates = self.ledger().add_pending(claim.id().clone());
        (claim, updates)
    }

    fn end_claim(&self, claim: &Claim) {
        self.ledger().remove_pending(claim.id());
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
            sleep(backoff::after_error(failed, fastrand::f64()).max(self.store.may_act_for(claim))).await;
            failed += 1;
            // Repeated withdrawals are bounded in number, and in time by what they would remove.
            let Ok(next) = timeout_at(last_chance, self.clean_ups.acquire()).await else { break };
            permit = Some(next);
        }
    }

    /// Releases a lease that no guard has received, in a batch, if the store makes a batch of such
    /// releases. Returns whether that has ended the lease. If not, the claim is to be withdrawn.
    async fn release_unreceived(&self, claim: &Claim, until: Instant) -> bool {
        let release = Release::new(claim.clone()).with_timeout(self.options.store_timeout());
        if self.store.capabilities().acquire_batch.get() == 1 || !self.store.may_gather_release(&release) {
            return false;
        }
        let call = self.releases.call(&self.store, release, Some(Company::Unknown), Some(until), false);
        let Ok(mut call) = call else { return false };
        matches!(call.answer(Some(until), self.options.request_timeout).await, Some(Ok(_)))
    }

    /// Makes one withdrawal, if the store has room for it by `until`.
    async fn withdraw(&self, claim: &Claim, until: Instant) -> Result<()> {
        let bound = self.options.request_timeout;
        let (store, claim) = (self.store.clone(), claim.clone());
        let request = async move { store.withdraw(&claim, bound).await };
        let mut call = Call::new(self.store.lanes(), Lane::Release, Some(until), false, request)?;
        call.answer(None, bound + bound / 2)
            .await
            .unwrap_or_else(|| Err(LockError::timeout(Phase::Request, "no answer to a withdrawal").outcome_unknown()))
    }
}

/// Waits until the store can send requests. Nothing has been sent if it fails.
async fn connected(engine: &Engine, limit: Option<Instant>) -> Result<()> {
    let bound = engine.options.store_timeout();
    let left = limit.map_or(bound, |limit| limit.saturating_duration_since(Instant::now()).min(bound));
    // A little less, so that the store's own error comes before the caller leaves.
    let Some(connecting) = engine.store.ensure_connected(left * 9 / 10) else { return Ok(()) };
    let not_yet = || {
        let message = "the store is not connected yet: allow the call more time";
        LockError::new(ErrorKind::Unavailable, message).with_phase(Phase::Connect)
    };
    tokio::select! {
        biased;
        connected = timeout(left, guarded(connecting)) => connected.map_err(|_| not_yet())?,
        () = engine.closed.cancelled() => Err(LockError::closed()),
    }
}

/// Waits until a call has ended. Then withdraws its claim until the store has confirmed that, or
/// what it may have there has ended by itself: a lease by its ttl, a ticket by its own (R11).
/// Withdraws nothing if there can be nothing.
///
/// If the call grants a lease, and no earlier attempt is of unknown outcome, that lease is all that
/// the claim has. To the store it is that of a guard that is dropped at once. So it is released
/// with others, if the store makes batches.
async fn settle(engine: Arc<Engine>, claim: Claim, mut call: InFlight<Reply>, mut dirty: bool, lasts: Duration) {
    let mut granted = false;
    if call.is_under_way() {
        // Stores end their calls themselves. A call that does not end is given up here.
        let left = match call.ended_within(2 * engine.options.request_timeout).await {
            Some(Ok(Reply::Busy(busy))) => matches!(busy.standing, QueueStanding::Queued { .. }),
            Some(Err(error)) => error.is_outcome_unknown(),
            Some(Ok(Reply::Granted(_))) => {
                granted = !dirty;
                true
            }
            None => true,
        };
        dirty |= left;
    }
    if !dirty {
        return engine.local_queues.nudge(claim.key());
    }
    // A call that has failed may begin at the store until its limit, and never later (R31).
    let may_act_for = engine.store.may_act_for(&claim).max(engine.options.request_timeout);
    let last_chance = Instant::now() + may_act_for + lasts;
    if granted && engine.release_unreceived(&claim, last_chance).await {
        return engine.local_queues.nudge(claim.key());
    }
    engine.withdraw_until(&claim, last_chance).await;
    engine.local_queues.nudge(claim.key());
}

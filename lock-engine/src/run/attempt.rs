//! The attempts of one acquisition. What becomes of those whose caller has left is in `cleanup`.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::run::call::{Answered, InFlight, guarded};
use crate::run::core::Engine;
use crate::run::outbox::{Acquire, CallLimits, Together};
use crate::run::transit::Wanted;
use crate::simulation::defect;
use crate::state::claim::ClaimPhase;
use crate::store::answer_timeout::answered_within;
use crate::store::{Attempt, Claim, Reply};

/// An acquisition that is not complete. It owns the call in flight; the caller's future does not.
/// If the acquisition is dropped, the call is finished in the background, and what it brought is
/// withdrawn (C11, rule R11 of distlock-mongo's PROTOCOL).
pub(crate) struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    wanted: &'a Wanted,
    home: Handle,
    claim: Claim,
    phase: ClaimPhase,
    /// How long what the claim may have at the store lasts by itself.
    lasts: Duration,
    /// Notified when the store has pushed something about the claim.
    updates: Arc<Notify>,
    /// Whether an attempt was made with others of its caller.
    in_group: bool,
    call: InFlight<Reply>,
    /// How many calls in a row were not answered in time.
    unanswered: u32,
    /// Keeps `close` waiting as long as there is something to clean up.
    open: Option<TaskTrackerToken>,
}

/// How long an acquisition waits for one answer.
#[derive(Clone, Copy)]
pub(crate) struct AttemptLimits {
    /// When the caller leaves.
    pub(crate) leaves: Option<Instant>,
    /// How long to wait for the answer after sending.
    pub(crate) answer: Duration,
    /// Whether to fail at once if the call would wait too long in line for the store.
    pub(crate) is_refusable: bool,
    /// Whether the first attempt of the claim may go with others.
    pub(crate) together: Together,
}

/// After this many unanswered calls in a row the claim is given up. Its session, or the server's
/// work for it, may hang; another claim depends on neither.
const UNANSWERED: u32 = 2;

impl<'a> Acquisition<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, wanted: &'a Wanted) -> Self {
        let (claim, updates) = engine.begin_claim(wanted);
        Self {
            engine,
            wanted,
            home: Handle::current(),
            claim,
            phase: ClaimPhase::New,
            lasts: wanted.terms.ttl,
            updates,
            in_group: false,
            call: InFlight::none(),
            unanswered: 0,
            open: None,
        }
    }

    /// Returns what is notified when there may be updates about the claim.
    pub(crate) fn updates(&self) -> Arc<Notify> {
        self.updates.clone()
    }

    pub(crate) fn in_group(&self) -> bool {
        self.in_group
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Makes one attempt. Returns the answer with the instant before it was sent (C3).
    pub(crate) async fn attempt(&mut self, mut attempt: Attempt, limits: AttemptLimits) -> Result<(Instant, Reply)> {
        // Only the first attempt of a claim goes in a batch, and only a batch leaves it undecided.
        let mut again = (limits.together != Together::No).then(|| attempt.clone());
        loop {
            let answered = self.attempt_once(attempt, limits).await?;
            match (&answered, again.take()) {
                ((_, Reply::Busy(busy)), Some(again)) if busy.undecided => attempt = again,
                _ => return Ok(answered),
            }
        }
    }

    async fn attempt_once(&mut self, attempt: Attempt, limits: AttemptLimits) -> Result<(Instant, Reply)> {
        self.call.leave_line();
        let is_undecided = self.phase.may_hold_lease();
        if self.call.is_under_way() || (is_undecided && (self.unanswered >= UNANSWERED || !self.is_ordered())) {
            self.start_new_claim();
        }
        self.open.get_or_insert_with(|| self.engine.tasks.token());
        if self.engine.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        connected(self.engine, limits.leaves).await?;
        let attempt = Attempt { claim: self.claim.clone(), ..attempt };
        if let Some(ticket) = &attempt.ticket {
            self.lasts = self.lasts.max(ticket.lasts(self.engine.options.request_timeout));
        }
        self.send(attempt, limits);
        let answered = tokio::select! {
            biased;
            answered = self.call.answer(limits.leaves, limits.answer) => answered,
            () = self.engine.closed.cancelled() => return Err(LockError::closed()),
        };
        let Some(Answered { sent, answer }) = answered else {
            return Err(self.call.leave_unanswered(&*self.engine.outbox.store));
        };
        self.phase.answered(&answer);
        self.unanswered = match &answer {
            Err(error) if error.is_outcome_unknown() && error.kind() == ErrorKind::Timeout => self.unanswered + 1,
            _ => 0,
        };
        if sent.is_batch && answer.is_err() && self.phase.may_hold_lease() {
            // A batch is in no order with later calls of its claims (R24).
            self.start_new_claim();
        }
        // A ticket does not delay `close`, which withdraws it whether or not its caller is polled.
        if !self.phase.may_hold_lease() {
            self.open = None;
        }
        answer.map(|reply| (sent.at, reply))
    }

    /// Starts the call of an attempt. The first attempt of a claim may go with others.
    fn send(&mut self, attempt: Attempt, limits: AttemptLimits) {
        let AttemptLimits { leaves, is_refusable, mut together, .. } = limits;
        let outbox = &self.engine.outbox;
        let via = self.wanted.via.clone();
        let may_gather = || match &via {
            Some(op) => op.may_gather(&attempt),
            None => outbox.batch().is_some_and(|batch| batch.may_gather(&attempt)),
        };
        if together != Together::No && !(self.phase == ClaimPhase::New && may_gather()) {
            together = Together::No;
        }
        self.in_group |= together == Together::InGroup;
        self.phase.sent();
        let limits = CallLimits { deadline: leaves, is_refusable, together };
        self.call.begin(outbox.send(Acquire { attempt, via }, limits));
    }

    /// Returns whether a call that was given up has no effect once a later one of the claim is
    /// answered.
    fn is_ordered(&self) -> bool {
        self.engine.outbox.store.capabilities().ordered_claims
    }

    /// Returns whether the last attempt was abandoned before it was answered.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.call.is_under_way()
    }

    /// Returns whether another attempt would resolve the outcome of the last one.
    pub(crate) fn can_resolve(&self) -> bool {
        self.phase.may_hold_lease() && !self.call.is_under_way() && self.is_ordered()
    }

    /// Gives the claim up, clean-up included, and starts a new one.
    pub(crate) fn start_new_claim(&mut self) {
        self.give_up();
        (self.unanswered, self.phase) = (0, ClaimPhase::New);
        if defect!(IdReused) {
            self.updates = self.engine.ledger().add_pending(self.claim.id().clone());
            return;
        }
        (self.claim, self.updates) = self.engine.begin_claim(self.wanted);
    }

    /// Ends the acquisition without clean-up, because a guard has the lease.
    pub(crate) fn complete(mut self) {
        self.phase = ClaimPhase::Settled;
    }

    fn give_up(&mut self) {
        self.engine.end_claim(&self.claim);
        // A call in line has sent nothing; it leaves the line.
        self.call.leave_line();
        let call = self.call.take();
        let open = self.open.take();
        let phase = std::mem::replace(&mut self.phase, ClaimPhase::Settled);
        if (phase.is_left_behind() || call.is_under_way()) && !defect!(NotWithdrawn) {
            let work = self.engine.clone().settle(self.claim.clone(), call, phase, self.lasts);
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
    fn begin_claim(&self, wanted: &Wanted) -> (Claim, Arc<Notify>) {
        let claim = Claim::accounted(wanted.key.clone(), self.id.acquisition_id()).with_mode(wanted.mode);
        // Even if the store declares no push: it may know its capabilities only after its first
        // answer.
        let updates = self.ledger().add_pending(claim.id().clone());
        (claim, updates)
    }

    fn end_claim(&self, claim: &Claim) {
        self.ledger().remove_pending(claim.id());
    }
}

/// Waits until the store can send requests. Nothing has been sent if it fails.
async fn connected(engine: &Engine, leaves: Option<Instant>) -> Result<()> {
    let bound = engine.options.store_timeout();
    let left = leaves.map_or(bound, |leaves| leaves.saturating_duration_since(Instant::now()).min(bound));
    // A little less, so that the store's own error comes before the caller leaves.
    let connecting = engine.outbox.store.extras().remote.and_then(|remote| remote.ensure_connected(left * 9 / 10));
    let Some(connecting) = connecting else { return Ok(()) };
    let not_yet = || {
        let message = "the store is not connected yet: allow the call more time";
        LockError::new(ErrorKind::Unavailable, message).with_phase(Phase::Connect)
    };
    tokio::select! {
        biased;
        connected = answered_within(left, guarded(connecting)) => connected.ok_or_else(not_yet)?,
        () = engine.closed.cancelled() => Err(LockError::closed()),
    }
}

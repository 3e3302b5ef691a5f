//! The life of one lease.
//!
//! The combinations that occur:
//!
//! | phase | whereabouts | turn | hand-off state | what has the lease |
//! |---|---|---|---|---|
//! | held | in hand | with the lease, or none: acquired without one, by a `try` | counts hand-overs | a guard |
//! | held | in transit | carries the lease | decides whether it may be handed on | the turn (R21) |
//! | held | parked | carries the lease, and is with the local queue | decides whether it may linger | the local queue |
//! | held | in transit or parked | returned to the lease | – | nothing: the engine is about to release it |
//! | committing, with or without a reported loss | in hand | with the lease | – | a commit; the loss counts if it is refused |
//! | releasing | any | with the lease until the first answer, which may be an error | – | a release |
//! | lost | in hand | with the lease until the loss is recorded, which passes it on | – | a guard, which no longer affects it |
//! | lost by `close` | any | with the lease until the first answer | – | a release |
//! | lost | in transit or parked | carries the lease; its next caller passes it on, or keeps it for an attempt | – | the turn |
//! | ended | any | none | – | nothing |
//!
//! Whether a guard is the present one is decided by its token: each hand-over has the next one.
//!
//! A lease of another mode than exclusive has no turn, and is not handed on. A shared lease may
//! have several guards at once, each with a token of its own (`state::sharing`):
//!
//! | phase | guards | what happens next |
//! |---|---|---|
//! | held | some in hand | others may join; it is renewed, once for all of them |
//! | held | all in transit to their callers | it is not renewed, and ends by its ttl if none arrives |
//! | releasing | none: the last one has left, and that step began the release | nothing joins |
//! | lost | all of them have lost it, each with the same loss | nothing joins |

mod joining;
mod transit;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::options::HandOff;
use crate::simulation::defect;
use crate::state::hand_off::HandOffState;
use crate::state::local_queue::{CarriedLease, Turn};
use crate::state::schedule::HomeId;
use crate::state::sharing::{Sharing, may_be_shared};
use crate::state::time::Now;
use crate::store::{Claim, Grant, Renewal, Standing};
use distlock_api::style::contained;
use distlock_api::{FencingToken, Holder, LeaseTerms, LockKey, Loss};

/// A granted lease, from the grant until nothing of it is left. It may be held by several guards of
/// this process in turn, each with a token of its own (rule R21 of distlock-mongo's PROTOCOL).
pub(crate) struct Lease<C: CarriedLease> {
    claim: Claim,
    first_token: FencingToken,
    last_token: FencingToken,
    /// Whether it is shared, and other readers of this process may join it.
    joinable: bool,
    terms: LeaseTerms,
    holder: Holder,
    /// See [`Origin`].
    home: C::Home,
    home_id: HomeId,
    in_group: bool,
    state: Mutex<State<C>>,
    /// Notified when the lease is lost or is no longer held.
    pub(crate) changed: Notify,
}

struct State<C: CarriedLease> {
    phase: Phase,
    deadline: Instant,
    /// When the lease ends whatever its renewals say, if the caller has limited its hold.
    ends: Option<Instant>,
    /// When the request was sent from which the deadline counts. For a pushed grant: when it
    /// arrived.
    sent: Instant,
    turn: Option<Turn<C>>,
    /// The token of the present guard; in transit, that of the last guard.
    token: FencingToken,
    whereabouts: Whereabouts,
    hand_off: HandOffState,
    /// The guards, if they may be several. Then the lease is always in hand, and `token` is the
    /// last one that a guard has got.
    sharing: Option<Box<Sharing>>,
    /// Whether a withdrawal of the lost lease has begun.
    is_withdrawn: bool,
    /// When a task looks whether the lease has been parked for long enough; `None` without one.
    watched_until: Option<Instant>,
}

/// Where a lease is between its grant and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    /// A guard has it. One that has another token, or has handed the lease on, no longer affects
    /// it.
    InHand,
    /// On its way from one guard to the next.
    InTransit,
    /// With the local queue, for a while.
    Parked,
}

/// `Held → Releasing → Ended`, or `Held → Lost`. There is no way back (C4, C12), except from a
/// commit that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// A write that also releases is under way. The lease is renewed, because the write may be
    /// refused. A report that the lease is gone is not a loss yet, because the write may have been
    /// applied; `reported_loss` keeps the report.
    Committing {
        reported_loss: Option<Loss>,
    },
    Releasing,
    Ended,
    Lost(Loss),
}

/// The state of a lease, as one reading shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseView {
    HeldUntil(Instant),
    /// Lost. If `fresh`, this reading noticed it, and the caller must call `record_loss`.
    Lost {
        loss: Loss,
        fresh: bool,
    },
    /// A commit is under way, and its outcome is not known yet.
    Undecided,
    /// In a release, or past it.
    Over,
}

/// How a release starts.
pub(crate) enum ReleaseStart {
    Releasing,
    Lost,
}

/// What the answer to a renewal changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// Held until the new deadline.
    Extended,
    /// Lost just now.
    Lost(Loss),
    /// The answer came after the lease had ended, and changes nothing.
    TooLate,
}

/// Where a lease comes from.
pub(crate) struct Origin<H> {
    /// The runtime that acquired it: there it is renewed, and released in the background.
    pub(crate) home: H,
    pub(crate) home_id: HomeId,
    /// Whether it was acquired with others, and so will presumably be released with them.
    pub(crate) in_group: bool,
}

impl<C: CarriedLease> Lease<C> {
    /// Creates the lease of a grant. Returns the turn instead if the deadline has passed already
    /// (C3, R1, R10).
    pub(crate) fn granted(
        claim: Claim,
        grant: &Grant,
        (terms, holder): (LeaseTerms, Holder),
        (sent, deadline): (Instant, Instant),
        now: &Now,
        Origin { home, home_id, in_group }: Origin<C::Home>,
        turn: Option<Turn<C>>,
    ) -> Result<Arc<Self>, Option<Turn<C>>> {
        if now.instant() >= now.awake_until(sent, deadline) && !defect!(LateGrantReturned) {
            return Err(turn);
        }
        if let Some(turn) = &turn {
            turn.mark_held(claim.id());
        }
        let ends = terms.max_hold.and_then(|hold| sent.checked_add(hold));
        let (token, hand_off) = (grant.token, HandOffState::new(now.instant()));
        let joinable = may_be_shared(&claim, grant.tokens, &terms);
        claim.uses(token);
        Ok(Arc::new(Self {
            claim,
            first_token: token,
            joinable,
            last_token: FencingToken::new(token.get().saturating_add(u64::from(grant.tokens.get()) - 1)),
            terms,
            holder,
            home,
            home_id,
            in_group,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline,
                ends,
                sent,
                turn,
                token,
                whereabouts: Whereabouts::InHand,
                is_withdrawn: false,
                hand_off,
                sharing: joinable.then(|| Box::new(Sharing::new(now.instant(), token))),
                watched_until: None,
            }),
            changed: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().expect("no code in here panics")
    }

    pub(crate) fn key(&self) -> &LockKey {
        self.claim.key()
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn last_token(&self) -> FencingToken {
        self.last_token
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.state().token
    }

    /// Returns how many tokens guards have had; `None` if there are not several.
    pub(crate) fn used_tokens(&self) -> Option<u64> {
        (self.first_token < self.last_token).then(|| self.token().get() - self.first_token.get() + 1)
    }

    pub(crate) fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    pub(crate) fn renewal(&self, timeout: Duration) -> Renewal {
        Renewal::lease(self.claim.clone(), self.last_token, self.terms.ttl).with_timeout(timeout)
    }

    /// Returns whether it was acquired with others.
    pub(crate) fn in_group(&self) -> bool {
        self.in_group
    }

    pub(crate) fn home(&self) -> &C::Home {
        &self.home
    }

    pub(crate) fn home_id(&self) -> HomeId {
        self.home_id
    }

    pub(crate) fn deadline(&self, now: &Now) -> Instant {
        self.state().effective_deadline(now)
    }

    /// Returns when the store frees the lease unless it is renewed.
    pub(crate) fn expiry(&self, now: &Now) -> Instant {
        self.state().renewed_until(now) + self.terms.margin
    }

    /// Returns whether the lease lasts to its maximum hold without another renewal.
    pub(crate) fn reaches_max_hold(&self, now: &Now) -> bool {
        let state = self.state();
        state.ends.is_some_and(|ends| ends <= state.renewed_until(now))
    }

    /// Returns the deadline, while the lease is held or committing.
    pub(crate) fn held_until(&self, now: &Now) -> Option<Instant> {
        let state = self.state();
        state.is_renewed().then(|| state.effective_deadline(now))
    }

    /// Returns whether the store may still have the lease: a guard has it in time, or its commit or
    /// release has no answer yet.
    pub(crate) fn may_be_held(&self, now: &Now) -> bool {
        let state = self.state();
        match state.phase {
            Phase::Held => now.instant() < state.effective_deadline(now),
            Phase::Committing { .. } | Phase::Releasing => true,
            Phase::Ended | Phase::Lost(_) => false,
        }
    }

    /// Returns the state of the lease, in one reading: with two, a loss between them could be
    /// missed by both (C4).
    pub(crate) fn view(&self, now: &Now) -> LeaseView {
        self.view_locked(self.state(), now)
    }

    /// Returns the state of the lease for the guard with this token.
    pub(crate) fn view_for(&self, token: FencingToken, now: &Now) -> LeaseView {
        let state = self.state();
        let is_present = match &state.sharing {
            Some(sharing) => sharing.is_open(token),
            None => state.token == token && state.is_in_hand(),
        };
        if is_present { self.view_locked(state, now) } else { LeaseView::Over }
    }

    fn view_locked(&self, state: MutexGuard<'_, State<C>>, now: &Now) -> LeaseView {
        match state.phase {
            Phase::Held if now.instant() >= state.effective_deadline(now) && defect!(NoDeadline) => {
                LeaseView::Undecided
            }
            Phase::Held if now.instant() >= state.effective_deadline(now) => {
                let loss = state.end_by_time(now);
                self.change_phase(state, Phase::Lost(loss));
                LeaseView::Lost { loss, fresh: true }
            }
            Phase::Held => LeaseView::HeldUntil(state.effective_deadline(now)),
            Phase::Lost(loss) => LeaseView::Lost { loss, fresh: false },
            Phase::Committing { .. } => LeaseView::Undecided,
            Phase::Releasing | Phase::Ended => LeaseView::Over,
        }
    }

    /// Marks a held lease as lost. Returns whether it was held; then the caller must call
    /// `record_loss`.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        let mut state = self.state();
        state.note_loss(loss);
        let fresh = state.phase == Phase::Held;
        if fresh {
            self.change_phase(state, Phase::Lost(loss));
        }
        fresh
    }

    /// Applies the answer to a renewal. The clock is read under the lock and the deadline checked
    /// by that reading, so a lease once seen lost is not revived (C4).
    pub(crate) fn renewed(&self, sent: Instant, standing: Standing, clock: impl FnOnce() -> Now) -> Renewed {
        let mut state = self.state();
        if defect!(Revived) && matches!((state.phase, &standing), (Phase::Lost(_), Standing::Held { .. })) {
            state.phase = Phase::Held;
        }
        if !state.is_renewed() {
            return Renewed::TooLate;
        }
        let now = clock();
        let sent = if defect!(DeadlineFromReply) { now.instant() } else { sent };
        let is_over = now.instant() >= state.effective_deadline(&now);
        let is_ignored = defect!(NoDeadline | Revived);
        let loss = match standing {
            _ if is_over && !is_ignored => state.end_by_time(&now),
            Standing::Held { remaining } => {
                let deadline = deadline(sent, remaining, &self.terms);
                if now.awake_until(sent, deadline) > state.renewed_until(&now) {
                    (state.deadline, state.sent) = (deadline, sent);
                }
                return Renewed::Extended;
            }
            Standing::Gone(loss) => loss,
            Standing::Waiting(_) => Loss::Gone,
        };
        if state.phase != Phase::Held {
            state.note_loss(loss);
            return Renewed::TooLate;
        }
        self.change_phase(state, Phase::Lost(loss));
        Renewed::Lost(loss)
    }

    /// Starts the release. From here on, nothing renews the lease or hands it on (C12). A commit
    /// that is under way is given up.
    pub(crate) fn begin_release(&self) -> ReleaseStart {
        let state = self.state();
        match state.phase {
            Phase::Held | Phase::Committing { .. } => {
                self.change_phase(state, Phase::Releasing);
                ReleaseStart::Releasing
            }
            Phase::Lost(_) => ReleaseStart::Lost,
            Phase::Releasing | Phase::Ended => unreachable!("a guard is released once"),
        }
    }

    /// Records that a lost lease is withdrawn. Returns whether this was the first time.
    pub(crate) fn begin_withdrawal(&self) -> bool {
        !std::mem::replace(&mut self.state().is_withdrawn, true)
    }

    /// Returns whether a guard may still work under the lost lease, and it has not been withdrawn.
    pub(crate) fn may_be_withdrawn_later(&self) -> bool {
        let state = self.state();
        state.is_lost_by_time() && state.is_in_hand() && !state.is_withdrawn
    }

    /// Records that a guard has given the lease up, if it is lost. Returns whether no guard has it
    /// any more, and it was lost at a time that only this process knows: then it is to be
    /// withdrawn.
    pub(crate) fn leave_lost(&self) -> bool {
        let mut state = self.state();
        state.is_lost_by_time() && state.sharing.as_mut().is_none_or(|sharing| sharing.leave_lost())
    }

    /// Ends the lease: its release was answered or given up, or its commit was applied.
    pub(crate) fn end(&self) {
        let state = self.state();
        if matches!(state.phase, Phase::Releasing | Phase::Committing { .. }) {
            self.change_phase(state, Phase::Ended);
        }
    }

    /// Starts a commit, a write that also releases. Returns `false` if the lease is no longer held.
    pub(crate) fn begin_commit(&self, now: &Now) -> bool {
        let mut state = self.state();
        let may = state.phase == Phase::Held && now.instant() < state.effective_deadline(now);
        if may {
            state.phase = Phase::Committing { reported_loss: None };
        }
        may
    }

    /// Ends a commit that was not applied. The lease is then what it would be without the commit.
    /// Returns the loss that the commit found or the store reported meanwhile; then the caller must
    /// call `record_loss`.
    pub(crate) fn end_commit(&self, found: Option<Loss>) -> Option<Loss> {
        let state = self.state();
        let Phase::Committing { reported_loss } = state.phase else { return None };
        // Both are final, whichever came first: a claim that has lost its lease never gets it
        // again.
        let loss = reported_loss.or(found);
        self.change_phase(state, loss.map_or(Phase::Held, Phase::Lost));
        loss
    }

    /// Returns whether the lease is to be renewed: a guard has it, or it is parked, and it is held
    /// or committing.
    pub(crate) fn needs_renewal(&self) -> bool {
        let state = self.state();
        let is_in_hand = state.sharing.as_ref().map_or(state.is_in_hand(), |sharing| sharing.is_in_hand());
        state.is_renewed() && (is_in_hand || state.whereabouts == Whereabouts::Parked)
    }

    /// Returns whether to query the store now for waiters of other processes.
    pub(crate) fn should_query_waiters(&self, now: Instant, limits: &HandOff) -> bool {
        let mut state = self.state();
        match &mut state.sharing {
            Some(sharing) => sharing.should_query(now, limits),
            None => state.hand_off.should_query(now, limits),
        }
    }

    /// Records whether other processes wait, from the answer to a query that was sent at `sent`.
    pub(crate) fn waiters_answered(&self, sent: Instant, any: bool) {
        let mut state = self.state();
        match &mut state.sharing {
            Some(sharing) => sharing.query_answered(sent, any),
            None => state.hand_off.query_answered(sent, any),
        }
    }

    /// Passes the turn to the next caller of this process.
    pub(crate) fn pass_turn(&self) {
        drop(self.take_turn());
    }

    pub(crate) fn take_turn(&self) -> Option<Turn<C>> {
        self.state().turn.take()
    }

    /// Changes the phase. Notifies outside of the lock, because a waker runs foreign code.
    fn change_phase(&self, mut state: MutexGuard<'_, State<C>>, phase: Phase) {
        state.phase = phase;
        drop(state);
        contained(|| self.changed.notify_waiters());
    }
}

impl<C: CarriedLease> State<C> {
    fn is_in_hand(&self) -> bool {
        self.whereabouts == Whereabouts::InHand
    }

    /// Returns the deadline by the last renewal, less what the machine has slept.
    fn renewed_until(&self, now: &Now) -> Instant {
        now.awake_until(self.sent, self.deadline)
    }

    /// Returns the deadline: that by the last renewal, or the end of the maximum hold.
    fn effective_deadline(&self, now: &Now) -> Instant {
        let until = self.renewed_until(now);
        self.ends.map_or(until, |ends| ends.min(until))
    }

    /// Returns how the lease is lost whose deadline has passed.
    fn end_by_time(&self, now: &Now) -> Loss {
        if now.instant() < self.renewed_until(now) { Loss::HeldTooLong } else { Loss::Expired }
    }

    fn is_lost_by_time(&self) -> bool {
        matches!(self.phase, Phase::Lost(Loss::Expired | Loss::HeldTooLong))
    }

    fn is_renewed(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Committing { .. })
    }

    /// Keeps a reported loss while a commit is under way; it counts only if the commit is refused.
    fn note_loss(&mut self, loss: Loss) {
        if let Phase::Committing { reported_loss } = &mut self.phase
            && loss != Loss::Closed
        {
            reported_loss.get_or_insert(loss);
        }
    }
}

/// Returns the instant until which a lease is certainly held (C3, R1). It counts from before the
/// request was sent, by a difference of two readings of the store's clock, less the margin. A
/// remaining time above the ttl is cut to the ttl.
pub(crate) fn deadline(sent: Instant, remaining: Duration, terms: &LeaseTerms) -> Instant {
    let margin = if defect!(NoMargin) { Duration::ZERO } else { terms.margin };
    sent + remaining.min(terms.ttl).saturating_sub(margin)
}

#[cfg(test)]
mod tests;

//! The life of one lease.
//!
//! The combinations that occur:
//!
//! | phase | in hand | turn | hand-off state | what has the lease |
//! |---|---|---|---|---|
//! | held | yes | with the lease, or none: acquired without one, by a `try` | counts hand-overs | a guard |
//! | held | no | in transit | decides whether it may be handed on | the turn that carries it (R21) |
//! | held | no | parked with the key | decides whether it may linger | the local queue |
//! | held | no | returned to the lease | – | nothing: the engine is about to release it |
//! | committing, with or without a reported loss | yes | with the lease | – | a commit; the loss counts if it is refused |
//! | releasing | either | with the lease until the first answer, which may be an error | – | a release |
//! | ended, lost | either | none | – | nothing |
//!
//! Whether a guard is the present one is decided by its token: each hand-over has the next one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::options::HandOff;
use crate::simulation::defect;
use crate::state::gather::Company;
use crate::state::hand_off::{HandOffState, NextUse};
use crate::state::line::{CarriedLease, Turn};
use crate::state::schedule::HomeId;
use crate::state::time::Now;
use crate::store::{Claim, Grant, Renewal, Standing};
use distlock_api::{FencingToken, Holder, LeaseTerms, LockKey, Loss, contained};

/// A granted lease, from the grant until nothing of it is left. It may be held by several guards of
/// this process in turn, each with a token of its own (R21).
pub(crate) struct Lease<C: CarriedLease> {
    claim: Claim,
    last_token: FencingToken,
    terms: LeaseTerms,
    holder: Holder,
    /// See [`Origin`].
    home: C::Home,
    home_id: HomeId,
    company: Company,
    state: Mutex<State<C>>,
    /// Notified when the lease is lost or is no longer held.
    pub(crate) changed: Notify,
}

struct State<C: CarriedLease> {
    phase: Phase,
    deadline: Instant,
    /// When the request was sent from which the deadline counts. For a pushed grant: when it
    /// arrived.
    sent: Instant,
    turn: Option<Turn<C>>,
    /// The token of the present guard; in transit, that of the last guard.
    token: FencingToken,
    /// Whether a guard has the lease. A guard that has another token, or has handed the lease on,
    /// no longer affects it.
    in_hand: bool,
    /// Whether it is with the local queue, in transit for a while.
    is_parked: bool,
    hand_off: HandOffState,
    /// When a task looks whether the lease has been parked for long enough; `None` without one.
    watched_until: Option<Instant>,
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
    pub(crate) company: Company,
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
        Origin { home, home_id, company }: Origin<C::Home>,
        turn: Option<Turn<C>>,
    ) -> Result<Arc<Self>, Option<Turn<C>>> {
        if now.instant() >= now.awake_until(sent, deadline) && !defect!(LateGrantReturned) {
            return Err(turn);
        }
        if let Some(turn) = &turn {
            turn.mark_held(claim.id());
        }
        let (token, hand_off) = (grant.token, HandOffState::new(now.instant()));
        claim.uses(token);
        Ok(Arc::new(Self {
            claim,
            last_token: FencingToken::new(token.get().saturating_add(u64::from(grant.tokens.get()) - 1)),
            terms,
            holder,
            home,
            home_id,
            company,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline,
                sent,
                turn,
                token,
                in_hand: true,
                is_parked: false,
                hand_off,
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

    pub(crate) fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    pub(crate) fn renewal(&self, timeout: Duration) -> Renewal {
        Renewal::lease(self.claim.clone(), self.last_token, self.terms.ttl).with_timeout(timeout)
    }

    pub(crate) fn company(&self) -> Company {
        self.company
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
        self.deadline(now) + self.terms.margin
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
        if state.token == token && state.in_hand { self.view_locked(state, now) } else { LeaseView::Over }
    }

    fn view_locked(&self, state: MutexGuard<'_, State<C>>, now: &Now) -> LeaseView {
        match state.phase {
            Phase::Held if now.instant() >= state.effective_deadline(now) && defect!(NoDeadline) => {
                LeaseView::Undecided
            }
            Phase::Held if now.instant() >= state.effective_deadline(now) => {
                self.change_phase(state, Phase::Lost(Loss::Expired));
                LeaseView::Lost { loss: Loss::Expired, fresh: true }
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
            _ if is_over && !is_ignored => Loss::Expired,
            Standing::Held { remaining } => {
                let deadline = deadline(sent, remaining, &self.terms);
                if now.awake_until(sent, deadline) > state.effective_deadline(&now) {
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

    /// Takes the lease from its guard, with its turn, for the next caller of this process. Returns
    /// `None` if it must be released instead: it is no longer held, has no token left, or is due to
    /// other processes (R21). The lease may be handed on, or only linger, if it `lingers`.
    pub(crate) fn hand_on(&self, now: &Now, limits: &HandOff, lingers: bool) -> Option<(Turn<C>, NextUse)> {
        let mut state = self.state();
        let next = state.hand_off.next_use(now.instant(), limits, lingers)?;
        // A lease that is never renewed lasts one ttl, and the next caller requires a whole one.
        let may = self.terms.hold_at_least.is_none()
            && self.terms.renew_every.is_some()
            && state.phase == Phase::Held
            && now.instant() < state.effective_deadline(now)
            && state.token < self.last_token;
        let turn = state.turn.take_if(|_| may)?;
        state.in_hand = false;
        drop(state);
        contained(|| self.changed.notify_waiters());
        Some((turn, next))
    }

    /// Takes the turn back because no caller takes the lease. The guard that gave the lease up
    /// releases it.
    pub(crate) fn reclaim(&self, turn: Turn<C>) {
        let mut state = self.state();
        (state.in_hand, state.is_parked) = (true, false);
        state.turn = Some(turn);
    }

    /// Takes the turn back because the lease was dropped in transit. The engine releases it; no
    /// guard has it.
    pub(crate) fn return_turn(&self, turn: Turn<C>) {
        self.state().turn = Some(turn);
    }

    /// Returns whether the lease is in transit from one guard to the next.
    pub(crate) fn is_in_transit(&self) -> bool {
        !self.state().in_hand
    }

    /// Returns whether the lease is to be renewed: a guard has it, or it is parked, and it is held
    /// or committing.
    pub(crate) fn is_kept(&self) -> bool {
        let state = self.state();
        state.is_renewed() && (state.in_hand || state.is_parked)
    }

    /// Returns whether the lease can pass, as it is, to a guard with these terms, this holder and
    /// this runtime.
    pub(crate) fn meets(&self, terms: &LeaseTerms, holder: &Holder, home: HomeId) -> bool {
        let meets = self.terms == *terms && self.holder == *holder && self.home_id == home;
        meets || defect!(TermsIgnored)
    }

    /// Gives the lease in transit to its next guard, with the next token. Returns the token, and
    /// whether the lease was parked; the turn if the lease was lost in transit.
    pub(crate) fn receive(&self, turn: Turn<C>, now: &Now) -> Result<(FencingToken, bool), Turn<C>> {
        let mut state = self.state();
        if state.phase != Phase::Held || now.instant() >= state.effective_deadline(now) {
            return Err(turn);
        }
        turn.mark_held(self.claim.id());
        state.token = FencingToken::new(state.token.get() + u64::from(!defect!(SameToken)));
        self.claim.uses(state.token);
        let was_parked = std::mem::take(&mut state.is_parked);
        state.in_hand = true;
        state.turn = Some(turn);
        state.hand_off.handed_on();
        Ok((state.token, was_parked))
    }

    /// Records that the lease in transit is parked until then. Returns whether it may be: no other
    /// process is known to wait, and it is held for longer.
    pub(crate) fn park(&self, until: Instant, now: &Now) -> bool {
        let mut state = self.state();
        state.is_parked = state.hand_off.may_linger() && until < state.effective_deadline(now);
        state.is_parked
    }

    /// Records that the lease is in transit again, and no longer parked.
    pub(crate) fn unpark(&self) {
        self.state().is_parked = false;
    }

    /// Returns whether the lease may stay parked: no other process has been found to wait.
    pub(crate) fn may_linger_on(&self) -> bool {
        self.state().hand_off.may_linger()
    }

    /// Returns whether a task must watch the parked lease: `true` if none looks at it by then.
    pub(crate) fn needs_watch(&self, until: Instant) -> bool {
        let mut state = self.state();
        let needed = state.watched_until.is_none_or(|watched| until < watched);
        if needed {
            state.watched_until = Some(until);
        }
        needed
    }

    /// Records when the watching task looks again.
    pub(crate) fn watched(&self, until: Instant) {
        self.state().watched_until = Some(until);
    }

    /// Records that a task no longer watches the lease.
    pub(crate) fn unwatched(&self) {
        self.state().watched_until = None;
    }

    /// Returns whether to query the store now for waiters of other processes.
    pub(crate) fn should_query_waiters(&self, now: Instant, limits: &HandOff) -> bool {
        self.state().hand_off.should_query(now, limits)
    }

    /// Records whether other processes wait, from the answer to a query that was sent at `sent`.
    pub(crate) fn waiters_answered(&self, sent: Instant, any: bool) {
        self.state().hand_off.query_answered(sent, any);
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
    /// Returns the deadline, less what the machine has slept.
    fn effective_deadline(&self, now: &Now) -> Instant {
        now.awake_until(self.sent, self.deadline)
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
mod tests {
    use super::*;
    use crate::state::line::tests::NoLease;
    use crate::state::time::Sleep;
    use crate::store::ProviderId;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn lease(remaining: Duration, sent: Instant, now: Instant) -> Option<Arc<Lease<NoLease>>> {
        let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
        let terms = distlock_api::LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).terms().unwrap();
        let deadline = deadline(sent, remaining, &terms);
        let grant = Grant::new(FencingToken::new(7), remaining);
        let home_id = tokio::runtime::Handle::current().id();
        let origin = Origin { home: (), home_id, company: Company::Unknown };
        Lease::granted(claim, &grant, (terms, Holder::new()), (sent, deadline), &now.into(), origin, None).ok()
    }

    #[tokio::test(start_paused = true)]
    async fn c3_the_deadline_counts_from_the_sending_and_ends_before_the_margin() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent + ms(300)).expect("in time");
        assert_eq!(lease.deadline(&sent.into()), sent + ms(900));
        assert_eq!(lease.view(&(sent + ms(899)).into()), LeaseView::HeldUntil(sent + ms(900)));
        assert_eq!(lease.view(&(sent + ms(900)).into()), LeaseView::Lost { loss: Loss::Expired, fresh: true });
        assert_eq!(
            lease.view(&(sent).into()),
            LeaseView::Lost { loss: Loss::Expired, fresh: false },
            "final, and noticed once"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn c4_a_machine_that_slept_beyond_the_deadline_finds_the_lease_lost_when_it_wakes() {
        let sent = Instant::now();
        let after = |slept: u64| {
            let sleep = Sleep { noticed: sent + ms(5), slept: ms(slept) };
            Now::new(sent + ms(10), Some(vec![sleep].into()))
        };
        let [viewed, renewed, committed, handed] = [(); 4].map(|()| lease(ms(1000), sent, sent).unwrap());
        assert_eq!(viewed.view(&after(500)), LeaseView::HeldUntil(sent + ms(400)), "half of it has passed");
        let now = after(1000);
        assert_eq!(viewed.view(&now), LeaseView::Lost { loss: Loss::Expired, fresh: true });
        assert!(viewed.deadline(&now) <= now.instant());
        assert!(renewed.held_until(&now).is_some_and(|end| end <= now.instant()));
        // The answer to a request sent before the sleep.
        let answer = Standing::Held { remaining: ms(1000) };
        assert_eq!(renewed.renewed(sent, answer, || now.clone()), Renewed::Lost(Loss::Expired));
        assert!(!committed.begin_commit(&now));
        assert!(handed.hand_on(&now, &HandOff::new(), true).is_none());
        let again = lease(ms(1000), now.instant(), now.instant()).unwrap();
        assert_eq!(again.view(&now), LeaseView::HeldUntil(now.instant() + ms(900)), "sent after the sleep");
    }

    #[tokio::test(start_paused = true)]
    async fn r10_a_grant_that_arrives_after_its_deadline_is_no_lease() {
        let sent = Instant::now();
        assert!(lease(ms(1000), sent, sent + ms(900)).is_none());
        assert!(lease(ms(50), sent, sent).is_none());
        assert!(lease(Duration::MAX, sent, sent).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn c4_no_answer_revives_a_lease_whose_deadline_has_passed() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent).unwrap();
        tokio::time::advance(ms(900)).await;
        assert_eq!(
            lease.renewed(sent + ms(800), Standing::Held { remaining: ms(1000) }, || Instant::now().into()),
            Renewed::Lost(Loss::Expired)
        );
        assert_eq!(
            lease.renewed(sent + ms(800), Standing::Held { remaining: ms(1000) }, || Instant::now().into()),
            Renewed::TooLate
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_never_shortens() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent).unwrap();
        assert_eq!(
            lease.renewed(sent, Standing::Held { remaining: ms(200) }, || Instant::now().into()),
            Renewed::Extended
        );
        assert_eq!(lease.deadline(&sent.into()), sent + ms(900));
    }

    #[tokio::test(start_paused = true)]
    async fn c12_a_releasing_lease_is_neither_renewed_nor_lost() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent).unwrap();
        assert!(matches!(lease.begin_release(), ReleaseStart::Releasing));
        assert_eq!(lease.renewed(sent, Standing::Gone(Loss::Gone), || Instant::now().into()), Renewed::TooLate);
        assert!(!lease.lose(Loss::Gone));
        assert_eq!(lease.view(&(sent + ms(5000)).into()), LeaseView::Over);
    }
}

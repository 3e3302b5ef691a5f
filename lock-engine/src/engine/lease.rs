//! The life of one lease.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::contention::HandOff;
use crate::store::{Claim, Grant, Renewal, Standing};
use distlock_api::{FencingToken, Holder, LeaseTerms, LockKey, Loss, contained};

use super::pace::Relay;
use super::slept;
use super::turns::Turn;

/// A granted lease, from the grant until nothing of it is left. It may be held by several guards of this process in turn, each with a token
/// of its own (R21).
pub(super) struct Lease {
    claim: Claim,
    last_token: FencingToken,
    terms: LeaseTerms,
    holder: Holder,
    /// The runtime that acquired it: there it is renewed, and released in the background.
    home: Handle,
    state: Mutex<State>,
    /// Wakes whoever awaits the loss, when the lease is lost or is not held any more.
    pub(super) changed: Notify,
}

struct State {
    phase: Phase,
    deadline: Instant,
    /// When the request was sent from which the deadline counts.
    sent: Instant,
    turn: Option<Turn>,
    /// The token of the present guard, or of the last one while the lease is on its way to the next.
    token: FencingToken,
    /// Whether a guard has it; a guard with another token, or one that has handed it on, has nothing to do with it any more.
    in_hand: bool,
    relay: Relay,
}

/// `Held → Releasing → Ended`, or `Held → Lost`. There is no way back (C4, C12), except from a commit that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// A write that also releases is under way: the lease is renewed, because the write may be refused; but that the store says it is gone is no
    /// loss, because the write may have been carried out. `heard` is what it said.
    Committing {
        heard: Option<Loss>,
    },
    Releasing,
    Ended,
    Lost(Loss),
}

/// What somebody who looks at a lease sees.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    HeldUntil(Instant),
    /// Lost; `fresh` if that was noticed only now: then the caller buries it.
    Lost {
        loss: Loss,
        fresh: bool,
    },
    /// A commit is under way, and nobody knows yet how it ends.
    Undecided,
    /// In a release, or past it.
    Over,
}

/// What a release finds.
pub(super) enum Begun {
    Releasing,
    Lost,
}

/// What a renewal's answer changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Renewed {
    /// Held until the new deadline.
    Extended,
    /// Lost just now.
    Lost(Loss),
    /// The answer came after the end and changes nothing.
    TooLate,
}

impl Lease {
    /// A lease as granted, unless its deadline has passed already (C3, R1, R10).
    pub(super) fn granted(
        claim: Claim,
        grant: &Grant,
        (terms, holder): (LeaseTerms, Holder),
        (sent, deadline): (Instant, Instant),
        now: Instant,
        turn: Option<Turn>,
    ) -> Result<Arc<Self>, Option<Turn>> {
        slept::notice(now);
        if now >= awake_until(sent, deadline) {
            return Err(turn);
        }
        if let Some(turn) = &turn {
            turn.hold(claim.id());
        }
        let (token, relay) = (grant.token, Relay::new(now));
        claim.uses(token);
        Ok(Arc::new(Self {
            claim,
            last_token: FencingToken::new(token.get().saturating_add(u64::from(grant.tokens.get()) - 1)),
            terms,
            holder,
            home: Handle::current(),
            state: Mutex::new(State { phase: Phase::Held, deadline, sent, turn, token, in_hand: true, relay }),
            changed: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code in here panics")
    }

    pub(super) fn key(&self) -> &LockKey {
        self.claim.key()
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(super) fn last_token(&self) -> FencingToken {
        self.last_token
    }

    pub(super) fn token(&self) -> FencingToken {
        self.state().token
    }

    pub(super) fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    pub(super) fn renewal(&self, timeout: Duration) -> Renewal {
        Renewal::lease(self.claim.clone(), self.last_token, self.terms.ttl).with_timeout(timeout)
    }

    pub(super) fn home(&self) -> &Handle {
        &self.home
    }

    pub(super) fn deadline(&self) -> Instant {
        self.state().end()
    }

    /// When the store frees the lease if nobody renews it any more.
    pub(super) fn expiry(&self) -> Instant {
        self.deadline() + self.terms.margin
    }

    /// The deadline, while the lease is held or committed.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let state = self.state();
        state.is_renewed().then(|| state.end())
    }

    /// How the lease stands, in one reading: asked in two, a loss between them would be seen by neither (C4).
    pub(super) fn look(&self, now: Instant) -> Seen {
        slept::notice(now);
        self.see(self.state(), now)
    }

    /// How the lease stands for the guard with this token.
    pub(super) fn look_for(&self, token: FencingToken, now: Instant) -> Seen {
        slept::notice(now);
        let state = self.state();
        if state.token == token && state.in_hand { self.see(state, now) } else { Seen::Over }
    }

    fn see(&self, state: MutexGuard<'_, State>, now: Instant) -> Seen {
        match state.phase {
            Phase::Held if now >= state.end() => {
                self.turn_to(state, Phase::Lost(Loss::Expired));
                Seen::Lost { loss: Loss::Expired, fresh: true }
            }
            Phase::Held => Seen::HeldUntil(state.end()),
            Phase::Lost(loss) => Seen::Lost { loss, fresh: false },
            Phase::Committing { .. } => Seen::Undecided,
            Phase::Releasing | Phase::Ended => Seen::Over,
        }
    }

    /// Takes note that the lease is gone; false if it was not held any more. On true the caller buries it.
    pub(super) fn lose(&self, loss: Loss) -> bool {
        let mut state = self.state();
        state.hear(loss);
        let fresh = state.phase == Phase::Held;
        if fresh {
            self.turn_to(state, Phase::Lost(loss));
        }
        fresh
    }

    /// Takes note of a renewal's answer. The deadline is checked under the same lock and by a clock read inside it, so a
    /// lease that anybody has seen lost is not revived (C4).
    pub(super) fn renewed(&self, sent: Instant, standing: Standing) -> Renewed {
        slept::notice(Instant::now());
        let mut state = self.state();
        if !state.is_renewed() {
            return Renewed::TooLate;
        }
        let loss = match standing {
            _ if Instant::now() >= state.end() => Loss::Expired,
            Standing::Held { remaining } => {
                let deadline = deadline(sent, remaining, &self.terms);
                if awake_until(sent, deadline) > state.end() {
                    (state.deadline, state.sent) = (deadline, sent);
                }
                return Renewed::Extended;
            }
            Standing::Gone(loss) => loss,
            Standing::Waiting(_) => Loss::Gone,
        };
        if state.phase != Phase::Held {
            state.hear(loss);
            return Renewed::TooLate;
        }
        self.turn_to(state, Phase::Lost(loss));
        Renewed::Lost(loss)
    }

    /// Ends the time of renewals (C12). Nothing may extend or hand on the lease from here. Of a commit: it has been given up.
    pub(super) fn begin_release(&self) -> Begun {
        let state = self.state();
        match state.phase {
            Phase::Held | Phase::Committing { .. } => {
                self.turn_to(state, Phase::Releasing);
                Begun::Releasing
            }
            Phase::Lost(_) => Begun::Lost,
            Phase::Releasing | Phase::Ended => unreachable!("a guard is released once"),
        }
    }

    /// The release has an answer, or is given up; or the commit has been carried out.
    pub(super) fn end(&self) {
        let state = self.state();
        if matches!(state.phase, Phase::Releasing | Phase::Committing { .. }) {
            self.turn_to(state, Phase::Ended);
        }
    }

    /// A write that also releases is about to be sent; false if the lease is not held any more.
    pub(super) fn begin_commit(&self, now: Instant) -> bool {
        let mut state = self.state();
        let may = state.phase == Phase::Held && now < state.end();
        if may {
            state.phase = Phase::Committing { heard: None };
        }
        may
    }

    /// The commit has been answered without having been carried out: the lease is what it would be without it. The loss that the commit found
    /// or the store has told meanwhile comes back; then the caller buries the lease.
    pub(super) fn end_commit(&self, found: Option<Loss>) -> Option<Loss> {
        let state = self.state();
        let Phase::Committing { heard } = state.phase else { return None };
        // Both are final, whichever came first: an acquisition that does not hold its lease any more never gets it again.
        let loss = heard.or(found);
        self.turn_to(state, loss.map_or(Phase::Held, Phase::Lost));
        loss
    }

    /// Takes the lease out of its guard's hand, with its turn, to go to the next caller of this process; none if it must be released: it is not held
    /// any more, has no token left, or others shall have it now (R21).
    pub(super) fn hand_on(&self, now: Instant, limits: &HandOff) -> Option<Turn> {
        let mut state = self.state();
        // What is never renewed lasts one ttl, and whoever comes next has asked for a whole one.
        let may = self.terms.hold_at_least.is_none()
            && self.terms.renew_every.is_some()
            && state.phase == Phase::Held
            && now < state.end()
            && state.token < self.last_token
            && state.relay.may_go_on(now, limits);
        let turn = state.turn.take_if(|_| may)?;
        state.in_hand = false;
        drop(state);
        contained(|| self.changed.notify_waiters());
        Some(turn)
    }

    /// Nobody wanted it: the guard that let it go releases it.
    pub(super) fn take_back(&self, turn: Turn) {
        let mut state = self.state();
        state.in_hand = true;
        state.turn = Some(turn);
    }

    /// Nobody took it: it is released, and no guard has to do with that.
    pub(super) fn lay_down(&self, turn: Turn) {
        self.state().turn = Some(turn);
    }

    /// Whether the last guard has handed it on, and the next has not got it yet.
    pub(super) fn is_on_its_way(&self) -> bool {
        !self.state().in_hand
    }

    /// Whether a guard has the lease, and it is held or committed.
    pub(super) fn is_in_hand(&self) -> bool {
        let state = self.state();
        state.is_renewed() && state.in_hand
    }

    /// Whether a guard with these terms, on the current runtime, can have the lease as it is.
    pub(super) fn suits(&self, terms: &LeaseTerms, holder: &Holder) -> bool {
        self.terms == *terms && self.holder == *holder && self.home.id() == Handle::current().id()
    }

    /// Takes the lease that was handed on, with its next token; the turn comes back if it has been lost on the way.
    pub(super) fn receive(&self, turn: Turn, now: Instant) -> Result<FencingToken, Turn> {
        let mut state = self.state();
        if state.phase != Phase::Held || now >= state.end() {
            return Err(turn);
        }
        turn.hold(self.claim.id());
        state.token = FencingToken::new(state.token.get() + 1);
        self.claim.uses(state.token);
        state.in_hand = true;
        state.turn = Some(turn);
        state.relay.went_on();
        Ok(state.token)
    }

    /// Whether the store is to be asked now who else waits.
    pub(super) fn asks_who_waits(&self, now: Instant, limits: &HandOff) -> bool {
        self.state().relay.asks(now, limits)
    }

    /// Who else waits, as a question that was sent then was answered.
    pub(super) fn others(&self, sent: Instant, others: bool) {
        self.state().relay.told(sent, others);
    }

    /// Lets the next caller of this process ask for the key.
    pub(super) fn pass_turn(&self) {
        drop(self.take_turn());
    }

    pub(super) fn take_turn(&self) -> Option<Turn> {
        self.state().turn.take()
    }

    /// Ends a phase; wakes outside of the lock, because a waker is somebody else's code.
    fn turn_to(&self, mut state: MutexGuard<'_, State>, phase: Phase) {
        state.phase = phase;
        drop(state);
        contained(|| self.changed.notify_waiters());
    }
}

impl State {
    /// The deadline, less what the machine has slept.
    fn end(&self) -> Instant {
        awake_until(self.sent, self.deadline)
    }

    fn is_renewed(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Committing { .. })
    }

    /// Takes note of a loss that is none yet, while a commit is under way.
    fn hear(&mut self, loss: Loss) {
        if let Phase::Committing { heard } = &mut self.phase
            && loss != Loss::Closed
        {
            heard.get_or_insert(loss);
        }
    }
}

/// The instant until which a lease is surely held (C3, R1): counted from before the request was sent, by a difference of
/// two readings of the store's clock, less the margin. A store that promises more than the ttl is not believed.
pub(super) fn deadline(sent: Instant, remaining: Duration, terms: &LeaseTerms) -> Instant {
    sent + remaining.min(terms.ttl).saturating_sub(terms.margin)
}

/// A deadline that counts from a request, less what the machine has slept since.
pub(super) fn awake_until(sent: Instant, deadline: Instant) -> Instant {
    let slept = slept::since(sent);
    if slept.is_zero() { deadline } else { deadline.checked_sub(slept).unwrap_or(sent) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ProviderId;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn lease(remaining: Duration, sent: Instant, now: Instant) -> Option<Arc<Lease>> {
        let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
        let terms = distlock_api::LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).terms().unwrap();
        let deadline = deadline(sent, remaining, &terms);
        Lease::granted(
            claim,
            &Grant::new(FencingToken::new(7), remaining),
            (terms, Holder::new()),
            (sent, deadline),
            now,
            None,
        )
        .ok()
    }

    #[tokio::test(start_paused = true)]
    async fn c3_the_deadline_counts_from_the_sending_and_ends_before_the_margin() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent + ms(300)).expect("in time");
        assert_eq!(lease.deadline(), sent + ms(900));
        assert_eq!(lease.look(sent + ms(899)), Seen::HeldUntil(sent + ms(900)));
        assert_eq!(lease.look(sent + ms(900)), Seen::Lost { loss: Loss::Expired, fresh: true });
        assert_eq!(lease.look(sent), Seen::Lost { loss: Loss::Expired, fresh: false }, "final, and noticed once");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test(start_paused = true)]
    async fn c4_a_machine_that_slept_beyond_the_deadline_finds_the_lease_lost_when_it_wakes() {
        let sent = slept::sending();
        let [looked_at, renewed, committed, handed, late] = [(); 5].map(|()| lease(ms(1000), sent, sent).unwrap());
        tokio::time::advance(ms(10)).await;
        slept::tests::sleep(ms(500));
        let seen = looked_at.look(sent + ms(10));
        let Seen::HeldUntil(end) = seen else { panic!("{seen:?}") };
        assert!(end < sent + ms(450) && end > sent + ms(300), "half of it has passed");
        slept::tests::sleep(ms(500));
        let now = Instant::now();
        assert_eq!(looked_at.look(now), Seen::Lost { loss: Loss::Expired, fresh: true });
        assert!(looked_at.deadline() <= now && renewed.held_until().is_some_and(|end| end <= now));
        // An answer to a question from before the sleep.
        assert_eq!(renewed.renewed(sent, Standing::Held { remaining: ms(1000) }), Renewed::Lost(Loss::Expired));
        assert!(!committed.begin_commit(now));
        assert!(handed.hand_on(now, &HandOff::new()).is_none());
        assert_eq!(late.look(now), Seen::Lost { loss: Loss::Expired, fresh: true });
        assert!(lease(ms(1000), sent, now).is_none(), "a grant that slept on its way");
        let again = slept::sending();
        assert_eq!(lease(ms(1000), again, again).unwrap().look(again), Seen::HeldUntil(again + ms(900)));
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
        assert_eq!(lease.renewed(sent + ms(800), Standing::Held { remaining: ms(1000) }), Renewed::Lost(Loss::Expired));
        assert_eq!(lease.renewed(sent + ms(800), Standing::Held { remaining: ms(1000) }), Renewed::TooLate);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_never_shortens() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent).unwrap();
        assert_eq!(lease.renewed(sent, Standing::Held { remaining: ms(200) }), Renewed::Extended);
        assert_eq!(lease.deadline(), sent + ms(900));
    }

    #[tokio::test(start_paused = true)]
    async fn c12_a_releasing_lease_is_neither_renewed_nor_lost() {
        let sent = Instant::now();
        let lease = lease(ms(1000), sent, sent).unwrap();
        assert!(matches!(lease.begin_release(), Begun::Releasing));
        assert_eq!(lease.renewed(sent, Standing::Gone(Loss::Gone)), Renewed::TooLate);
        assert!(!lease.lose(Loss::Gone));
        assert_eq!(lease.look(sent + ms(5000)), Seen::Over);
    }

    #[test]
    fn c4_a_loss_is_heard_whenever_it_comes() {
        use std::future::Future;
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
                let lease = lease(ms(60_000), Instant::now(), Instant::now()).unwrap();
                *lost.lock().unwrap() = Some(lease.clone());
                let mut signal =
                    Box::pin(crate::engine::held::lost(std::sync::Weak::new(), lease, FencingToken::new(7)));
                let mut cx = Context::from_waker(Waker::noop());
                here.wait();
                let heard = signal.as_mut().poll(&mut cx).is_ready();
                there.wait();
                if !heard && signal.as_mut().poll(&mut cx).is_pending() {
                    eprintln!("a loss was not heard");
                    std::process::abort(); // the other thread waits at a barrier
                }
            }
        });
    }
}

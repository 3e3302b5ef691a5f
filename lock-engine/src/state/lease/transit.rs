//! A lease on its way from one guard to the next: handed on with the turn (rule R21 of
//! distlock-mongo's PROTOCOL), or parked for a while.

use tokio::time::Instant;

use crate::options::HandOff;
use crate::simulation::defect;
use crate::state::hand_off::NextUse;
use crate::state::lease::{Lease, Phase, Whereabouts};
use crate::state::local_queue::{CarriedLease, Turn};
use crate::state::schedule::HomeId;
use crate::state::time::Now;
use distlock_api::style::contained;
use distlock_api::{FencingToken, Holder, LeaseTerms, Mode};

impl<C: CarriedLease> Lease<C> {
    /// Takes the lease from its guard, with its turn, for the next caller of this process. Returns
    /// `None` if it must be released instead: it is no longer held, has no token left, or is due to
    /// other processes (R21). The lease may be handed on, or only linger, if it `lingers`.
    pub(crate) fn hand_on(&self, now: &Now, limits: &HandOff, lingers: bool) -> Option<(Turn<C>, NextUse)> {
        let mut state = self.state();
        let next = state.hand_off.next_use(now.instant(), limits, lingers)?;
        // A lease that is never renewed lasts one ttl, and the next caller requires a whole one.
        let may = !self.terms.is_for_one_guard()
            && self.terms.renew_every.is_some()
            && state.phase == Phase::Held
            && now.instant() < state.effective_deadline(now)
            && state.token < self.last_token;
        let turn = state.turn.take_if(|_| may)?;
        state.whereabouts = Whereabouts::InTransit;
        drop(state);
        contained(|| self.changed.notify_waiters());
        Some((turn, next))
    }

    /// Takes the turn back because no caller takes the lease. The guard that gave the lease up
    /// releases it.
    pub(crate) fn reclaim(&self, turn: Turn<C>) {
        let mut state = self.state();
        state.whereabouts = Whereabouts::InHand;
        state.turn = Some(turn);
    }

    /// Takes the turn back because the lease was dropped in transit. The engine releases it; no
    /// guard has it.
    pub(crate) fn return_turn(&self, turn: Turn<C>) {
        self.state().turn = Some(turn);
    }

    /// Returns whether the lease can pass, as it is, to a guard of this mode, with these terms,
    /// this holder and this runtime.
    pub(crate) fn meets(&self, mode: Mode, terms: &LeaseTerms, holder: &Holder, home: HomeId) -> bool {
        let meets = self.terms == *terms && self.holder == *holder && self.home_id == home;
        self.claim.mode() == mode && (meets || defect!(TermsIgnored))
    }

    /// Gives the lease in transit to its next guard, with the next token. Returns the token, and
    /// whether the lease was parked; the turn if the lease was lost in transit.
    pub(crate) fn receive(&self, turn: Turn<C>, now: &Now) -> Result<(FencingToken, bool), Turn<C>> {
        let mut state = self.state();
        if state.phase != Phase::Held || now.instant() >= state.effective_deadline(now) {
            return Err(turn);
        }
        state.token = FencingToken::new(state.token.get() + u64::from(!defect!(SameToken)));
        self.claim.uses(state.token);
        let was_parked = std::mem::replace(&mut state.whereabouts, Whereabouts::InHand) == Whereabouts::Parked;
        state.turn = Some(turn);
        state.hand_off.handed_on();
        Ok((state.token, was_parked))
    }

    /// Records that the lease in transit is parked until then. Returns whether it may be: no other
    /// process is known to wait, and it is held for longer.
    pub(crate) fn park(&self, until: Instant, now: &Now) -> bool {
        let mut state = self.state();
        let may_park = state.hand_off.may_linger() && until < state.effective_deadline(now);
        state.whereabouts = if may_park { Whereabouts::Parked } else { Whereabouts::InTransit };
        may_park
    }

    /// Records that the lease is in transit again, and no longer parked.
    pub(crate) fn unpark(&self) {
        let mut state = self.state();
        if state.whereabouts == Whereabouts::Parked {
            state.whereabouts = Whereabouts::InTransit;
        }
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
}

//! Several guards of this process share one lease (C26).

use crate::options::HandOff;
use crate::simulation::defect;
use crate::state::lease::{Lease, Phase};
use crate::state::local_queue::CarriedLease;
use crate::state::sharing::{Leaving, Refusal};
use crate::state::time::Now;
use distlock_api::FencingToken;
use distlock_api::style::contained;

impl<C: CarriedLease> Lease<C> {
    /// Returns whether other readers may join the lease.
    pub(crate) fn is_joinable(&self) -> bool {
        self.joinable
    }

    /// Continues the queries for waiters of the lease that readers could join before.
    pub(crate) fn continue_queries_of(&self, before: &Self) {
        let queries = before.state().sharing.as_ref().and_then(|sharing| sharing.queries());
        if let (Some(sharing), Some(queries)) = (&mut self.state().sharing, queries) {
            sharing.continue_queries(queries);
        }
    }

    /// Lets one more guard have the lease, with the next token. In transit, it has not reached its
    /// caller.
    pub(crate) fn join(&self, now: &Now, limits: &HandOff, in_transit: bool) -> Result<FencingToken, Refusal> {
        let mut state = self.state();
        let held = state.phase == Phase::Held && now.instant() < state.effective_deadline(now);
        let last = state.token;
        let Some(sharing) = &mut state.sharing else { return Err(Refusal::NotNow) };
        if !held || !sharing.may_join(now.instant(), limits) {
            return Err(Refusal::NotNow);
        }
        if last >= self.last_token {
            return Err(Refusal::NoTokens);
        }
        let token = FencingToken::new(last.get() + u64::from(!defect!(SameToken)));
        sharing.join(token, in_transit);
        state.token = token;
        self.claim.uses(token);
        Ok(token)
    }

    /// Records that a guard in transit has reached its caller. Returns `false` if the lease is no
    /// longer held.
    pub(crate) fn arrive(&self, now: &Now) -> bool {
        let mut state = self.state();
        let held = state.phase == Phase::Held && now.instant() < state.effective_deadline(now);
        if held && let Some(sharing) = &mut state.sharing {
            sharing.arrive();
        }
        held
    }

    /// Takes the lease from one of its guards. With the last one its release begins, in the same
    /// step, so that no guard joins in between. The caller must call
    /// [`notify_changed`](Self::notify_changed) then, outside of all locks.
    pub(crate) fn leave(&self, token: FencingToken, in_transit: bool) -> Leaving {
        let mut state = self.state();
        if state.phase != Phase::Held {
            return Leaving::Lost;
        }
        let is_last = state.sharing.as_mut().is_none_or(|sharing| sharing.leave(token, in_transit));
        if !is_last && !defect!(ReleasedWithFirst) {
            return Leaving::Left;
        }
        state.phase = Phase::Releasing;
        Leaving::Last
    }

    /// Notifies the tasks that wait for a change of the lease.
    pub(crate) fn notify_changed(&self) {
        contained(|| self.changed.notify_waiters());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::state::lease::{LeaseView, Origin, deadline};
    use crate::state::local_queue::tests::NoLease;
    use crate::store::{Claim, Grant, ProviderId};
    use crate::test_kit::{ms, token};
    use distlock_api::{Holder, LeaseOptions, LockKey, Loss, Mode, RenewalPolicy};

    fn lease_of(mode: Mode, tokens: u32, options: LeaseOptions) -> Arc<Lease<NoLease>> {
        let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id()).with_mode(mode);
        let terms = options.ttl(ms(1000)).safety_margin(ms(100)).terms().unwrap();
        let now = Instant::now();
        let grant = Grant::new(token(7), ms(1000)).with_tokens(NonZeroU32::new(tokens).unwrap());
        let origin = Origin { home: (), home_id: tokio::runtime::Handle::current().id(), in_group: false };
        let deadline = deadline(now, ms(1000), &terms);
        let lease = Lease::granted(claim, &grant, (terms, Holder::new()), (now, deadline), &now.into(), origin, None);
        lease.unwrap_or_else(|_| panic!("in time"))
    }

    fn shared() -> Arc<Lease<NoLease>> {
        lease_of(Mode::Shared, 3, LeaseOptions::new())
    }

    fn join(lease: &Lease<NoLease>, now: Instant) -> Result<FencingToken, Refusal> {
        lease.join(&now.into(), &HandOff::new(), false)
    }

    #[tokio::test(start_paused = true)]
    async fn c5_each_guard_has_the_next_token_of_the_block() {
        let (lease, now) = (shared(), Instant::now());
        assert_eq!((join(&lease, now), join(&lease, now)), (Ok(token(8)), Ok(token(9))));
        assert_eq!((join(&lease, now), lease.used_tokens()), (Err(Refusal::NoTokens), Some(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn c26_only_a_shared_lease_that_lasts_is_joined() {
        let never = LeaseOptions::new().renewal(RenewalPolicy::Never);
        let hold = LeaseOptions::new().hold_at_least(ms(500));
        let max = LeaseOptions::new().max_hold(ms(500));
        let permits = Mode::Permits { take: 1, of: 2 };
        for lease in [
            lease_of(Mode::Exclusive, 3, LeaseOptions::new()),
            lease_of(permits, 3, LeaseOptions::new()),
            lease_of(Mode::Shared, 1, LeaseOptions::new()),
            lease_of(Mode::Shared, 3, never),
            lease_of(Mode::Shared, 3, hold),
            lease_of(Mode::Shared, 3, max),
        ] {
            assert_eq!(join(&lease, Instant::now()), Err(Refusal::NotNow));
            assert!(!lease.is_joinable());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c3_a_lease_past_its_deadline_is_neither_joined_nor_reached() {
        let (lease, now) = (shared(), Instant::now());
        assert!(lease.join(&now.into(), &HandOff::new(), true).is_ok());
        assert!(join(&lease, now + ms(899)).is_ok());
        assert_eq!(join(&lease, now + ms(900)), Err(Refusal::NotNow));
        assert!(!lease.arrive(&(now + ms(900)).into()));
    }

    #[tokio::test(start_paused = true)]
    async fn c12_the_last_guard_that_leaves_ends_the_joins_in_the_same_step() {
        let (lease, now) = (shared(), Instant::now());
        let second = join(&lease, now).unwrap();
        assert_eq!(lease.leave(token(7), false), Leaving::Left);
        assert_eq!(lease.view_for(token(7), &now.into()), LeaseView::Over, "its own guard is gone");
        assert_eq!(lease.view_for(second, &now.into()), LeaseView::HeldUntil(now + ms(900)));
        assert_eq!(lease.leave(second, false), Leaving::Last);
        assert_eq!(join(&lease, now), Err(Refusal::NotNow));
        assert_eq!(lease.view_for(second, &now.into()), LeaseView::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn c4_a_loss_is_one_for_every_guard() {
        let (lease, now) = (shared(), Instant::now());
        let second = join(&lease, now).unwrap();
        assert!(lease.lose(Loss::ForceReleased) && !lease.lose(Loss::Gone));
        for token in [token(7), second] {
            let lost = LeaseView::Lost { loss: Loss::ForceReleased, fresh: false };
            assert_eq!(lease.view_for(token, &now.into()), lost);
            assert_eq!(lease.leave(token, false), Leaving::Lost);
        }
        assert_eq!(join(&lease, now), Err(Refusal::NotNow));
    }

    #[tokio::test(start_paused = true)]
    async fn c15_a_lease_with_guards_in_transit_only_is_not_renewed() {
        let (lease, now) = (shared(), Instant::now());
        let second = lease.join(&now.into(), &HandOff::new(), true).unwrap();
        assert!(lease.needs_renewal());
        assert_eq!(lease.leave(token(7), false), Leaving::Left);
        assert!(!lease.needs_renewal(), "its caller may never be polled");
        assert!(lease.arrive(&now.into()) && lease.needs_renewal());
        assert_eq!(lease.leave(second, false), Leaving::Last);
    }
}

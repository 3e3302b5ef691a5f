//! Which leases are alive and which tickets wait, when each is due, and what became of the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::sync::Notify;
use tokio::time::Instant;

use distlock_api::{Accounting, AcquisitionId, FencingToken, ReleaseOutcome};

use crate::state::batch::{Ready, patience};
use crate::state::claim::{News, PendingClaim, Pushed, Seat, Told};
use crate::state::lease::Lease;
use crate::state::line::Cargo;
use crate::state::schedule::{Beat, HomeId, Schedule};
use crate::state::time::Now;
use crate::store::Claim;

/// By ids, which are random already: a fixed hash invites no collisions, and what is done for all
/// of them is done in the same order when a simulation repeats.
type ById<T> = HashMap<AcquisitionId, T, FixedState>;

/// The books of one engine, under one lock: a lease is entered once and leaves once (C23).
pub(crate) struct Ledger<C: Cargo> {
    closed: bool,
    leases: ById<Entry<C>>,
    /// What the keeper of each runtime has to do.
    homes: HashMap<HomeId, Home<C>, FixedState>,
    counts: Accounting,
    /// Claims that ask, and what the store has said about them unasked.
    asking: ById<PendingClaim>,
    /// When a call that renews or refreshes was last answered.
    answered: Option<Instant>,
}

/// What the keeper of one runtime works from.
struct Home<C: Cargo> {
    schedule: Schedule,
    /// When the keeper is going to look again by itself; `None` if it knows of nothing to do.
    planned: Option<Instant>,
    /// What found no room when the keeper looked.
    ready: Option<Ready<C>>,
    wake: Arc<Notify>,
    /// Whether there is a keeper.
    kept: bool,
}

/// An event that is told of a lease so soon after its grant may be of the release before.
const EVENTS_ARE_LATE: Duration = Duration::from_secs(1);

struct Entry<C: Cargo> {
    lease: Arc<Lease<C>>,
    since: Instant,
    beat: Beat,
    /// Whether nothing has been heard of it since it was granted.
    is_new: bool,
}

/// How a lease leaves the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost,
    Abandoned,
}

impl From<ReleaseOutcome> for End {
    fn from(outcome: ReleaseOutcome) -> Self {
        match outcome {
            ReleaseOutcome::Released => Self::Released,
            ReleaseOutcome::AlreadyLost => Self::Lost,
        }
    }
}

/// What a new lease or ticket needs.
pub(crate) enum Entered {
    /// The keeper knows when to look.
    Kept,
    /// There must be a keeper; it waits for this.
    Unkept(Arc<Notify>),
    /// The provider is closed.
    Closed,
    /// The lease has been lost already, or the claim is not known any more.
    Refused,
}

impl<C: Cargo> Default for Ledger<C> {
    fn default() -> Self {
        Self {
            closed: false,
            leases: HashMap::default(),
            homes: HashMap::default(),
            counts: Accounting::new(),
            asking: HashMap::default(),
            answered: None,
        }
    }
}

impl<C: Cargo> Default for Home<C> {
    fn default() -> Self {
        Self { schedule: Schedule::default(), planned: None, ready: None, wake: Arc::default(), kept: false }
    }
}

impl<C: Cargo> Ledger<C> {
    /// Enters a new lease.
    pub(crate) fn enter(&mut self, lease: &Arc<Lease<C>>, sent: Instant, now: &Now) -> Entered {
        let id = lease.claim().id();
        if self.closed {
            return Entered::Closed;
        }
        let asking = self.asking.get(id);
        if asking.is_some_and(|asking| asking.has_lost(lease.last_token())) {
            return Entered::Refused;
        }
        // The answer was on its way during a gap: it is as old as the other leases (R20).
        let is_doubtful = asking.is_some_and(PendingClaim::has_missed) && lease.terms().renew_every.is_some();
        self.leave(id);
        self.counts.acquired += 1;
        self.leases
            .insert(id.clone(), Entry { lease: lease.clone(), since: sent, beat: Beat::new(sent), is_new: true });
        self.homes.entry(lease.home_id()).or_default();
        self.settled(lease, sent, now);
        if is_doubtful {
            self.schedule_at(id, Some(now.instant()));
        }
        self.kept(lease.home_id())
    }

    fn kept(&mut self, home: HomeId) -> Entered {
        let home = self.homes.entry(home).or_default();
        if !std::mem::replace(&mut home.kept, true) {
            return Entered::Unkept(home.wake.clone());
        }
        home.remind();
        Entered::Kept
    }

    /// Takes note that the lease goes on under another guard, with another token (R21).
    pub(crate) fn handed_on(&mut self) {
        self.counts.released += 1;
        self.counts.acquired += 1;
    }

    /// Takes a lease out; does nothing if it is out already.
    pub(crate) fn end(&mut self, lease: &Lease<C>, end: End) {
        self.schedule_at(lease.claim().id(), None);
        if self.leases.remove(lease.claim().id()).is_none() {
            return;
        }
        match end {
            End::Released => self.counts.released += 1,
            End::Lost => self.counts.lost += 1,
            End::Abandoned => self.counts.abandoned += 1,
        }
    }

    /// The lease is renewed no more. It stays in the books until it has ended, and is due once more
    /// when it expires by itself.
    pub(crate) fn releasing(&mut self, lease: &Lease<C>, now: &Now) {
        let expiry = lease.expiry(now);
        if let Some(entry) = self.leases.get_mut(lease.claim().id()) {
            entry.beat.early = expiry;
            self.schedule_at(lease.claim().id(), Some(expiry));
        }
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// The claims whose tickets are refreshed; from now on they are not.
    pub(crate) fn take_seats(&mut self) -> Vec<Claim> {
        let seated = self.asking.values().filter_map(|asking| Some(asking.seated()?.0.claim.clone()));
        let claims: Vec<_> = seated.collect();
        claims.iter().for_each(|claim| self.leave(claim.id()));
        claims
    }

    pub(crate) fn leases(&self) -> Vec<Arc<Lease<C>>> {
        self.leases.values().map(|entry| entry.lease.clone()).collect()
    }

    /// Since when the oldest lease has been held.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.leases.values().map(|entry| entry.since).min()
    }

    /// Whether there are neither leases nor claims that wait for one.
    pub(crate) fn is_idle(&self) -> bool {
        self.leases.is_empty() && self.asking.is_empty()
    }

    pub(crate) fn accounting(&self) -> Accounting {
        let mut accounting = self.counts;
        accounting.held = self.leases.len() as u64;
        accounting
    }

    /// A claim begins to ask. Wakes its caller when there is news of it.
    pub(crate) fn begins(&mut self, id: AcquisitionId) -> Arc<Notify> {
        self.asking.entry(id).or_default().wake()
    }

    /// A claim does not ask any more.
    pub(crate) fn ends(&mut self, id: &AcquisitionId) {
        self.leave(id);
        self.asking.remove(id);
    }

    /// A claim waits in the store's queue, as it was told by a request that was sent then: from now
    /// on its ticket is refreshed.
    pub(crate) fn waits(&mut self, seat: &Seat, sent: Instant, ahead: u32) -> Entered {
        let id = seat.claim.id();
        if self.asking.get(id).is_some_and(|asking| asking.sits_elsewhere(seat.home)) {
            self.leave(id);
        }
        let Some(asking) = self.asking.get_mut(id) else { return Entered::Refused };
        asking.sit(seat.clone(), sent);
        self.homes.entry(seat.home).or_default();
        self.refreshed(id, sent, ahead);
        self.kept(seat.home)
    }

    /// A claim has no ticket to be refreshed any more.
    pub(crate) fn leave(&mut self, id: &AcquisitionId) {
        if self.asking.get(id).is_some_and(PendingClaim::is_seated) {
            self.schedule_at(id, None);
            self.asking.get_mut(id).into_iter().for_each(PendingClaim::leave);
        }
    }

    /// What has been said about a claim since the last look.
    pub(crate) fn news(&mut self, id: &AcquisitionId) -> News {
        self.asking.get_mut(id).map(PendingClaim::news).unwrap_or_default()
    }

    /// A releaser has granted the lease to a claim, says the store (R19: perhaps before it has
    /// answered). Whoever is to be woken comes back.
    pub(crate) fn pushed(&mut self, id: &AcquisitionId, pushed: Pushed) -> Option<Arc<Notify>> {
        let asking = self.asking.get_mut(id)?;
        asking.push(pushed);
        Some(asking.wake())
    }

    /// A refreshed ticket has been answered. Whoever is to be woken comes back.
    pub(crate) fn told(&mut self, seat: &Seat, told: Told) -> Option<Arc<Notify>> {
        let id = seat.claim.id();
        match told.ahead() {
            Some(ahead) => self.refreshed(id, told.sent, ahead),
            None => self.leave(id),
        }
        let asking = self.asking.get_mut(id)?;
        asking.tell(told);
        Some(asking.wake())
    }

    /// Every claim that asks, or sleeps between two questions, shall ask again. Whoever is to be
    /// woken comes back.
    pub(crate) fn ask_again(&mut self) -> Vec<Arc<Notify>> {
        self.asking.values_mut().for_each(PendingClaim::miss);
        self.asking.values().map(PendingClaim::wake).collect()
    }

    fn refreshed(&mut self, id: &AcquisitionId, sent: Instant, ahead: u32) {
        let Some((seat, beat)) = self.asking.get_mut(id).and_then(PendingClaim::seat) else { return };
        let cadence = seat.cadence(ahead);
        beat.succeeded(sent, sent + cadence / 2);
        self.schedule_at(id, Some(sent + cadence));
    }

    /// A ticket could not be refreshed: try again soon.
    pub(crate) fn not_told(&mut self, seat: &Seat, now: Instant) {
        let id = seat.claim.id();
        let Some((_, beat)) = self.asking.get_mut(id).and_then(PendingClaim::seat) else { return };
        let again = now + seat.patience();
        beat.early = again;
        let due = beat.due().map_or(again, |due| due.min(again));
        self.schedule_at(id, Some(due));
    }

    /// A lease of a claim was lost, says the store, whose token is this since: the lease, if it is
    /// that one, and whoever is to be woken.
    pub(crate) fn gone(
        &mut self,
        id: &AcquisitionId,
        token: FencingToken,
    ) -> (Option<Arc<Lease<C>>>, Option<Arc<Notify>>) {
        let wake = self.asking.get_mut(id).map(|asking| {
            asking.lose(token);
            asking.wake()
        });
        let lease = self.leases.get(id).map(|entry| &entry.lease).filter(|lease| lease.last_token() < token);
        (lease.cloned(), wake)
    }

    /// When the keeper has something to do next, as it is told before it goes to sleep.
    pub(crate) fn plan(&mut self, home: HomeId) -> Option<Instant> {
        let home = self.homes.get_mut(&home)?;
        home.planned = home.next_due();
        home.planned
    }

    /// The keeper has ended, with its runtime or with the provider.
    pub(crate) fn unkept(&mut self, home: HomeId) {
        self.homes.remove(&home);
    }

    /// Something may have been missed: every lease is asked for now (R20). One that is never
    /// renewed is due at its deadline, which is earlier after a sleep of the machine.
    pub(crate) fn all_due(&mut self, now: &Now) {
        for lease in self.leases() {
            let Some(deadline) = lease.held_until(now) else { continue };
            let id = lease.claim().id();
            if lease.terms().renew_every.is_some() || deadline <= now.instant() {
                self.schedule_at(id, Some(now.instant()));
            } else if self.leases.get(id).and_then(|entry| entry.beat.due()).is_some_and(|due| due > deadline) {
                self.schedule_at(id, Some(deadline));
            }
        }
        let waiting: Vec<_> =
            self.asking.iter().filter(|(_, asking)| asking.is_seated()).map(|(id, _)| id.clone()).collect();
        for id in waiting {
            self.schedule_at(&id, Some(now.instant()));
        }
        for home in self.homes.values_mut() {
            home.look_again();
        }
    }

    /// An event says that the lease's key is free. The lease is renewed now, which brings the truth
    /// (R20), or as soon as the event cannot be that of the release before its grant.
    pub(crate) fn doubt(&mut self, id: &AcquisitionId, now: &Now) {
        let Some(entry) = self.leases.get(id) else { return };
        if entry.lease.held_until(now).is_none() || entry.lease.terms().renew_every.is_none() {
            return;
        }
        let at = now.instant().max(entry.since + EVENTS_ARE_LATE);
        if entry.beat.due().is_some_and(|due| due <= at) {
            return;
        }
        let home = entry.lease.home_id();
        self.schedule_at(id, Some(at));
        if let Some(home) = self.homes.get_mut(&home) {
            home.look_again();
        }
    }

    /// A renewal that was sent then has succeeded (or the lease is new): the next one is a cadence
    /// later.
    pub(crate) fn settled(&mut self, lease: &Lease<C>, sent: Instant, now: &Now) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        // A released lease is in the books, but its time of renewals is over.
        let Some(deadline) = lease.held_until(now) else { return };
        let left = deadline.saturating_duration_since(sent);
        let is_new = std::mem::take(&mut entry.is_new);
        // Such as the short claim of a waiter to whom the lease was handed over: it is renewed to
        // its full ttl soon, once also if never again.
        let is_short = left < lease.terms().ttl.saturating_sub(lease.terms().margin);
        let cadence = match lease.terms().renew_every {
            Some(cadence) if is_short => Some(cadence.min(left / 2)),
            None if is_short && is_new => Some(left / 2),
            cadence => cadence,
        };
        let (due, early) = match cadence {
            Some(cadence) => (sent + cadence, sent + cadence * 3 / 4),
            None => (deadline, deadline),
        };
        entry.beat.succeeded(sent, early);
        self.schedule_at(lease.claim().id(), Some(due));
    }

    /// A call of renewals or refreshes was answered.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    /// A renewal has failed: try again soon. Sending it has already put it into smaller company.
    pub(crate) fn failed(&mut self, lease: &Lease<C>, now: &Now) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        let (Some(due), Some(_)) = (entry.beat.due(), lease.held_until(now)) else { return };
        let patience = patience(lease, now);
        entry.beat.early = now.instant() + patience;
        self.schedule_at(lease.claim().id(), Some(due.min(now.instant() + patience)));
    }

    /// When a lease or a ticket is due; at no time if none.
    fn schedule_at(&mut self, id: &AcquisitionId, due: Option<Instant>) {
        let (home, beat) = match (self.leases.get_mut(id), self.asking.get_mut(id)) {
            (Some(entry), _) => (entry.lease.home_id(), &mut entry.beat),
            (None, Some(asking)) => match asking.seat() {
                Some((seat, beat)) => (seat.home, beat),
                None => return,
            },
            (None, None) => return,
        };
        // Without a home the runtime has ended, and its keeper with it.
        let schedule = self.homes.get_mut(&home).map(|home| &mut home.schedule);
        Schedule::set(schedule, id, beat, due);
    }
}

impl<C: Cargo> Home<C> {
    fn next_due(&self) -> Option<Instant> {
        self.schedule.next_due()
    }

    /// Forgets what was ready, because something has become due earlier since.
    fn look_again(&mut self) {
        self.ready = None;
        self.remind();
    }

    /// Wakes the keeper if something is due before it would look by itself.
    fn remind(&self) {
        if self.next_due().is_some_and(|due| self.planned.is_none_or(|planned| due < planned)) {
            self.wake.notify_one();
        }
    }
}

mod due;
#[cfg(test)]
mod tests;

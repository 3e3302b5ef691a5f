//! Which leases are alive and which tickets wait, when each is due, and what became of the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::key::LockKey;
use crate::provider::Accounting;
use crate::store::{AcquisitionId, Claim, Renewal};
use crate::token::FencingToken;

use super::lease::Lease;
use super::pace;
use super::places::{Asking, News, Pushed, Seat, Told};

/// The books of one engine, under one lock: a lease is entered once and leaves once (C23).
#[derive(Default)]
pub(super) struct Registry {
    closed: bool,
    leases: HashMap<AcquisitionId, Entry>,
    /// What the keeper of each runtime has to do.
    homes: HashMap<runtime::Id, Home>,
    counts: Accounting,
    /// Claims that ask, and what the store has said about them unasked.
    asking: HashMap<AcquisitionId, Asking>,
}

/// One runtime's leases and tickets, by when they are due; each once, if at all.
#[derive(Default)]
struct Home {
    schedule: BTreeSet<(Instant, AcquisitionId)>,
    /// When the keeper is going to look again by itself; none if it does not know of anything to do.
    planned: Option<Instant>,
    wake: Arc<Notify>,
    /// Whether there is a keeper.
    kept: bool,
}

struct Entry {
    lease: Arc<Lease>,
    since: Instant,
    beat: Beat,
    /// Whether nothing has been heard of it since it was granted.
    is_new: bool,
}

/// When something is to be renewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beat {
    due: Option<Instant>,
    /// When it may be renewed, if others are renewed then anyway.
    early: Instant,
    /// Renewals that failed or were not answered in time, in a row.
    failures: u32,
}

impl Beat {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: None, early: now, failures: 0 }
    }

    fn is_ready(&self, due: Instant, now: Instant) -> bool {
        due <= now || self.early <= now
    }
}

/// How a lease leaves the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    Lost,
    Abandoned,
}

/// What a new lease or ticket needs.
pub(super) enum Entered {
    /// The keeper knows when to look.
    Kept,
    /// There must be a keeper; it waits for this.
    Unkept(Arc<Notify>),
    /// The provider is closed.
    Closed,
    /// The lease has been lost already, or the claim is not known any more.
    Refused,
}

/// What is renewed: leases in calls of their own, so that tickets never delay them.
pub(super) enum Item {
    Lease(Arc<Lease>),
    Ticket(Seat),
}

impl Item {
    pub(super) fn key(&self) -> &LockKey {
        match self {
            Self::Lease(lease) => lease.key(),
            Self::Ticket(seat) => seat.claim.key(),
        }
    }

    pub(super) fn renewal(&self, timeout: Duration) -> Renewal {
        match self {
            Self::Lease(lease) => lease.renewal(timeout),
            Self::Ticket(seat) => Renewal::ticket(seat.claim.clone(), seat.ticket).with_timeout(timeout),
        }
    }

    /// How long an answer is waited for before it is put into another call.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        match self {
            Self::Lease(lease) => patience(lease, now),
            Self::Ticket(seat) => seat.patience(),
        }
    }
}

/// What is to be renewed in one call.
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    /// Whether they have failed before: then an answer is not waited for longer than there is time for more attempts.
    pub(super) again: bool,
}

/// What a keeper shall do now.
#[derive(Default)]
pub(super) struct Due {
    /// Held past their deadline, or in a release that takes longer than the lease.
    pub(super) over: Vec<Arc<Lease>>,
    pub(super) batches: Vec<Batch>,
}

/// When a renewal that found no room is tried again.
const NO_ROOM: Duration = Duration::from_millis(20);

impl Registry {
    /// Enters a new lease.
    pub(super) fn enter(&mut self, lease: &Arc<Lease>, sent: Instant) -> Entered {
        let id = lease.claim().id();
        if self.closed {
            return Entered::Closed;
        }
        let asking = self.asking.get(id);
        if asking.is_some_and(|asking| asking.has_lost(lease.last_token())) {
            return Entered::Refused;
        }
        // The answer was on its way during a gap: it is as old as the other leases (R20).
        let is_doubtful = asking.is_some_and(Asking::has_missed) && lease.terms().renew_every.is_some();
        self.leave(id);
        self.counts.acquired += 1;
        self.leases
            .insert(id.clone(), Entry { lease: lease.clone(), since: sent, beat: Beat::new(sent), is_new: true });
        self.settled(lease, sent);
        if is_doubtful {
            self.schedule_at(id, Some(Instant::now()));
        }
        self.kept(lease.home().id())
    }

    fn kept(&mut self, home: runtime::Id) -> Entered {
        let home = self.homes.entry(home).or_default();
        if !std::mem::replace(&mut home.kept, true) {
            return Entered::Unkept(home.wake.clone());
        }
        home.remind();
        Entered::Kept
    }

    /// Takes note that the lease goes on under another guard, with another token (R21).
    pub(super) fn handed_on(&mut self) {
        self.counts.released += 1;
        self.counts.acquired += 1;
    }

    /// Takes a lease out; does nothing if it is out already.
    pub(super) fn end(&mut self, lease: &Lease, end: End) {
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

    /// The lease is renewed no more. It stays in the books until it has ended, and is due once more when it expires by itself.
    pub(super) fn releasing(&mut self, lease: &Lease) {
        let expiry = lease.expiry();
        if let Some(entry) = self.leases.get_mut(lease.claim().id()) {
            entry.beat.early = expiry;
            self.schedule_at(lease.claim().id(), Some(expiry));
        }
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// The claims whose tickets are refreshed; from now on they are not.
    pub(super) fn take_seats(&mut self) -> Vec<Claim> {
        let seated = self.asking.values().filter_map(|asking| Some(asking.seated()?.0.claim.clone()));
        let claims: Vec<_> = seated.collect();
        claims.iter().for_each(|claim| self.leave(claim.id()));
        claims
    }

    pub(super) fn leases(&self) -> Vec<Arc<Lease>> {
        self.leases.values().map(|entry| entry.lease.clone()).collect()
    }

    /// Since when the oldest lease has been held.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.leases.values().map(|entry| entry.since).min()
    }

    pub(super) fn accounting(&self) -> Accounting {
        Accounting { held: self.leases.len() as u64, ..self.counts }
    }

    /// A claim begins to ask. Wakes its caller when there is news of it.
    pub(super) fn begins(&mut self, id: AcquisitionId) -> Arc<Notify> {
        self.asking.entry(id).or_default().wake()
    }

    /// A claim does not ask any more.
    pub(super) fn ends(&mut self, id: &AcquisitionId) {
        self.leave(id);
        self.asking.remove(id);
    }

    /// A claim waits in the store's queue, as it was told by a request that was sent then: from now on its ticket is refreshed.
    pub(super) fn waits(&mut self, seat: &Seat, sent: Instant, ahead: u32) -> Entered {
        let id = seat.claim.id();
        if self.asking.get(id).is_some_and(|asking| asking.sits_elsewhere(seat.home)) {
            self.leave(id);
        }
        let Some(asking) = self.asking.get_mut(id) else { return Entered::Refused };
        asking.sit(seat.clone(), sent);
        self.refreshed(id, sent, ahead);
        self.kept(seat.home)
    }

    /// A claim has no ticket to be refreshed any more.
    pub(super) fn leave(&mut self, id: &AcquisitionId) {
        if self.asking.get(id).is_some_and(Asking::is_seated) {
            self.schedule_at(id, None);
            self.asking.get_mut(id).into_iter().for_each(Asking::leave);
        }
    }

    /// What has been said about a claim since the last look.
    pub(super) fn news(&mut self, id: &AcquisitionId) -> News {
        self.asking.get_mut(id).map(Asking::news).unwrap_or_default()
    }

    /// A releaser has granted the lease to a claim, says the store (R19: perhaps before it has answered). Whoever is to be woken comes back.
    pub(super) fn pushed(&mut self, id: &AcquisitionId, pushed: Pushed) -> Option<Arc<Notify>> {
        let asking = self.asking.get_mut(id)?;
        asking.push(pushed);
        Some(asking.wake())
    }

    /// A refreshed ticket has been answered. Whoever is to be woken comes back.
    pub(super) fn told(&mut self, seat: &Seat, told: Told) -> Option<Arc<Notify>> {
        let id = seat.claim.id();
        match told.ahead() {
            Some(ahead) => self.refreshed(id, told.sent, ahead),
            None => self.leave(id),
        }
        let asking = self.asking.get_mut(id)?;
        asking.tell(told);
        Some(asking.wake())
    }

    /// Every claim that asks, or sleeps between two questions, shall ask again. Whoever is to be woken comes back.
    pub(super) fn ask_again(&mut self) -> Vec<Arc<Notify>> {
        self.asking.values_mut().for_each(Asking::miss);
        self.asking.values().map(Asking::wake).collect()
    }

    fn refreshed(&mut self, id: &AcquisitionId, sent: Instant, ahead: u32) {
        let Some((seat, beat)) = self.asking.get_mut(id).and_then(Asking::seat) else { return };
        let cadence = seat.cadence(ahead);
        *beat = Beat { due: beat.due, early: sent + cadence / 2, failures: 0 };
        self.schedule_at(id, Some(sent + cadence));
    }

    /// A ticket could not be refreshed: try again soon.
    pub(super) fn not_told(&mut self, seat: &Seat, now: Instant) {
        let id = seat.claim.id();
        let Some((_, beat)) = self.asking.get_mut(id).and_then(Asking::seat) else { return };
        let again = now + seat.patience();
        beat.early = again;
        let due = beat.due.map_or(again, |due| due.min(again));
        self.schedule_at(id, Some(due));
    }

    /// A lease of a claim was lost, says the store, whose token is this since: the lease, if it is that one, and whoever is to be woken.
    pub(super) fn gone(
        &mut self,
        id: &AcquisitionId,
        token: FencingToken,
    ) -> (Option<Arc<Lease>>, Option<Arc<Notify>>) {
        let wake = self.asking.get_mut(id).map(|asking| {
            asking.lose(token);
            asking.wake()
        });
        let lease = self.leases.get(id).map(|entry| &entry.lease).filter(|lease| lease.last_token() < token);
        (lease.cloned(), wake)
    }

    /// When the keeper has something to do next, as it is told before it goes to sleep.
    pub(super) fn plan(&mut self, home: runtime::Id) -> Option<Instant> {
        let home = self.homes.get_mut(&home)?;
        home.planned = home.next_due();
        home.planned
    }

    /// The keeper has ended, with its runtime or with the provider.
    pub(super) fn unkept(&mut self, home: runtime::Id) {
        self.homes.remove(&home);
    }

    /// Something may have been missed: every lease is asked for now (R20).
    pub(super) fn all_due(&mut self, now: Instant) {
        for lease in self.leases() {
            if lease.held_until().is_some() && lease.terms().renew_every.is_some() {
                self.schedule_at(lease.claim().id(), Some(now));
            }
        }
        let waiting: Vec<_> =
            self.asking.iter().filter(|(_, asking)| asking.is_seated()).map(|(id, _)| id.clone()).collect();
        for id in waiting {
            self.schedule_at(&id, Some(now));
        }
        self.homes.values().for_each(Home::remind);
    }

    /// A renewal that was sent then has succeeded (or the lease is new): the next one is a cadence later.
    pub(super) fn settled(&mut self, lease: &Lease, sent: Instant) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        // A released lease is in the books, but its time of renewals is over.
        let Some(deadline) = lease.held_until() else { return };
        let left = deadline.saturating_duration_since(sent);
        let is_new = std::mem::take(&mut entry.is_new);
        // Such as the short claim of a waiter to whom the lease was handed over: it is renewed to its full ttl soon, once also if never again.
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
        entry.beat.failures = 0;
        entry.beat.early = early;
        self.schedule_at(lease.claim().id(), Some(due));
    }

    /// A renewal has failed: try again soon. Sending it has already put it into smaller company.
    pub(super) fn failed(&mut self, lease: &Lease, now: Instant) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        let (Some(due), Some(_)) = (entry.beat.due, lease.held_until()) else { return };
        let patience = patience(lease, now);
        entry.beat.early = now + patience;
        self.schedule_at(lease.claim().id(), Some(due.min(now + patience)));
    }

    /// When a lease or a ticket is due; at no time if none.
    fn schedule_at(&mut self, id: &AcquisitionId, due: Option<Instant>) {
        let (home, beat) = match (self.leases.get_mut(id), self.asking.get_mut(id)) {
            (Some(entry), _) => (entry.lease.home().id(), &mut entry.beat),
            (None, Some(asking)) => match asking.seat() {
                Some((seat, beat)) => (seat.home, beat),
                None => return,
            },
            (None, None) => return,
        };
        let old = std::mem::replace(&mut beat.due, due);
        let home = self.homes.entry(home).or_default();
        if let Some(old) = old {
            home.schedule.remove(&(old, id.clone()));
        }
        if let Some(due) = due {
            home.schedule.insert((due, id.clone()));
        }
    }

    /// What the keeper of a runtime shall do now.
    ///
    /// Whoever may be renewed already goes along with those who must, so that leases of one cadence gather in common
    /// beats. A lease that is sent is due again after some patience, whether an answer has come or not: a hung call
    /// delays nobody, not even its own leases (C14). Of calls that are made again, at most `room` are: a store that is
    /// down is not buried in them, and those that fail soon make room for the others.
    pub(super) fn take_due(&mut self, home: runtime::Id, now: Instant, batch: usize, mut room: usize) -> Due {
        let mut result = Due::default();
        let Some(schedule) = self.homes.get(&home).filter(|home| home.next_due().is_some_and(|due| due <= now)) else {
            return result;
        };
        let (mut leases, mut seats) = (Vec::new(), Vec::new());
        for (due, id) in &schedule.schedule {
            if let Some(Entry { lease, beat, .. }) = self.leases.get(id) {
                if beat.is_ready(*due, now) {
                    leases.push((lease.clone(), beat.failures));
                }
            } else if let Some((seat, beat)) = self.asking.get(id).and_then(Asking::seated)
                && beat.is_ready(*due, now)
            {
                seats.push((seat.clone(), beat.failures));
            }
        }
        let mut levels = BTreeMap::<(bool, u32), Vec<Item>>::new();
        for (lease, failures) in leases {
            if lease.held_until().is_some_and(|deadline| deadline > now) {
                levels.entry((false, failures)).or_default().push(Item::Lease(lease));
            } else {
                self.schedule_at(lease.claim().id(), None);
                result.over.push(lease);
            }
        }
        for (seat, failures) in seats {
            levels.entry((true, failures)).or_default().push(Item::Ticket(seat));
        }
        for ((_, level), mut group) in levels {
            while !group.is_empty() {
                let rest = group.split_off(pace::chunk(level, batch).min(group.len()));
                let items = std::mem::replace(&mut group, rest);
                let again = level > 0;
                let sent = !again || room > 0;
                room -= usize::from(again && sent);
                items.iter().for_each(|item| self.sent(item, now, sent));
                if sent {
                    result.batches.push(Batch { items, again });
                }
            }
        }
        result
    }

    /// When something is due again that goes into a call now, or has found no room in one.
    fn sent(&mut self, item: &Item, now: Instant, sent: bool) {
        let again = now + if sent { item.patience(now) } else { NO_ROOM };
        let (id, beat, again) = match item {
            Item::Lease(lease) => {
                let id = lease.claim().id();
                (id, self.leases.get_mut(id).map(|entry| &mut entry.beat), again.min(lease.deadline()))
            }
            Item::Ticket(seat) => {
                let id = seat.claim.id();
                (id, self.asking.get_mut(id).and_then(Asking::seat).map(|(_, beat)| beat), again)
            }
        };
        let Some(beat) = beat else { return };
        beat.failures += u32::from(sent); // until the answer says otherwise
        beat.early = again;
        self.schedule_at(id, Some(again));
    }
}

impl Home {
    fn next_due(&self) -> Option<Instant> {
        self.schedule.first().map(|(due, _)| *due)
    }

    /// Wakes the keeper if something is due before it would look by itself.
    fn remind(&self) {
        if self.next_due().is_some_and(|due| self.planned.is_none_or(|planned| due < planned)) {
            self.wake.notify_one();
        }
    }
}

/// How long an answer is waited for before the lease is put into another call.
pub(super) fn patience(lease: &Lease, now: Instant) -> Duration {
    let left = lease.deadline().saturating_duration_since(now);
    pace::renewal_patience(left, lease.terms().renew_every.unwrap_or(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Grant, ProviderId};
    use crate::{FencingToken, LeaseOptions, LockKey, RenewalPolicy};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn home() -> runtime::Id {
        runtime::Handle::current().id()
    }

    fn sizes(due: &Due) -> Vec<usize> {
        due.batches.iter().map(|batch| batch.items.len()).collect()
    }

    fn lease(name: &str, ttl: u64, renewal: RenewalPolicy, now: Instant) -> Arc<Lease> {
        let claim = Claim::new(LockKey::new(name).unwrap(), AcquisitionId::random(ProviderId::random()));
        let terms = LeaseOptions::new().ttl(ms(ttl)).renewal(renewal).terms().unwrap();
        let deadline = crate::engine::lease::deadline(now, ms(ttl), &terms);
        let grant = Grant::new(FencingToken::new(1), ms(ttl));
        Lease::granted(claim, &grant, (terms, crate::Holder::new()), deadline, now, None).unwrap_or_else(|_| panic!())
    }

    #[tokio::test(start_paused = true)]
    async fn leases_of_one_cadence_gather_in_one_beat() {
        let (start, mut registry) = (Instant::now(), Registry::default());
        for n in 0..10 {
            let at = start + ms(n * 20);
            let entered = registry.enter(&lease(&n.to_string(), 3000, RenewalPolicy::Auto, at), at);
            assert_eq!(matches!(entered, Entered::Unkept(_)), n == 0, "one keeper for all");
        }
        assert_eq!(registry.plan(home()), Some(start + ms(1000)));
        let due = registry.take_due(home(), start + ms(1000), 100, 0);
        assert!(due.over.is_empty());
        assert_eq!(sizes(&due), [10], "all of them may go after 750 ms");
        let due = registry.take_due(home(), start + ms(1000), 100, 0);
        assert!(due.batches.is_empty(), "sent ones are not due at once");
    }

    #[tokio::test(start_paused = true)]
    async fn c14_an_unanswered_batch_is_sent_again_in_smaller_ones() {
        let (start, mut registry) = (Instant::now(), Registry::default());
        for n in 0..100 {
            registry.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start);
        }
        let mut largest = Vec::new();
        while let Some(at) = registry.plan(home()).filter(|at| *at < start + ms(26_000)) {
            let due = registry.take_due(home(), at, 100, 64);
            assert!(due.over.is_empty() && due.batches.len() <= 64);
            largest.extend(sizes(&due).into_iter().max());
        }
        assert_eq!(largest[..4], [100, 25, 6, 1], "{largest:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_without_renewal_is_due_at_its_deadline() {
        let (start, mut registry) = (Instant::now(), Registry::default());
        registry.enter(&lease("a", 1000, RenewalPolicy::Never, start), start);
        assert_eq!(registry.plan(home()), Some(start + ms(900)));
        let due = registry.take_due(home(), start + ms(900), 100, 0);
        assert_eq!((due.over.len(), due.batches.len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn c23_a_lease_leaves_the_books_once() {
        let (start, mut registry) = (Instant::now(), Registry::default());
        let lease = lease("a", 1000, RenewalPolicy::Auto, start);
        registry.enter(&lease, start);
        assert_eq!(registry.accounting().held, 1);
        registry.end(&lease, End::Lost);
        registry.end(&lease, End::Released);
        let books = registry.accounting();
        assert_eq!((books.acquired, books.lost, books.released, books.held), (1, 1, 0, 0));
        assert!(books.balances() && registry.plan(home()).is_none());
        registry.close();
        assert!(matches!(registry.enter(&lease, start), Entered::Closed));
    }
}

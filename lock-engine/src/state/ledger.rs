//! Which leases are alive and which tickets wait, when each is due, and what became of the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use distlock_api::{Accounting, AcquisitionId, FencingToken};

use crate::state::backoff;
use crate::state::batch::{Batch, Due, Group, Item, Room, patience};
use crate::state::claim::{News, PendingClaim, Pushed, Seat, Told};
use crate::state::lease::Lease;
use crate::state::line::Cargo;
use crate::state::schedule::{Beat, HomeId};
use crate::state::time::Now;
use crate::store::{Claim, Lane};

/// By ids, which are random already: a fixed hash invites no collisions, and what is done for all of
/// them is done in the same order when a simulation repeats.
type ById<T> = HashMap<AcquisitionId, T, BuildHasherDefault<DefaultHasher>>;

/// The books of one engine, under one lock: a lease is entered once and leaves once (C23).
pub(crate) struct Ledger<C: Cargo> {
    closed: bool,
    leases: ById<Entry<C>>,
    /// What the keeper of each runtime has to do.
    homes: HashMap<HomeId, Home<C>, BuildHasherDefault<DefaultHasher>>,
    counts: Accounting,
    /// Claims that ask, and what the store has said about them unasked.
    asking: ById<PendingClaim>,
    /// When a call that renews or refreshes was last answered.
    answered: Option<Instant>,
}

/// One runtime's leases and tickets, by when they are due; each once, if at all.
struct Home<C: Cargo> {
    schedule: BTreeSet<(Instant, AcquisitionId)>,
    /// When the keeper is going to look again by itself; none if it does not know of anything to do.
    planned: Option<Instant>,
    /// What found no room when the keeper looked.
    ready: Option<Ready<C>>,
    wake: Arc<Notify>,
    /// Whether there is a keeper.
    kept: bool,
}

/// An event that is told of a lease so soon after its grant may be of the release before.
const EVENTS_ARE_LATE: Duration = Duration::from_secs(1);

/// The most urgent first.
type Waiting<C> = BTreeMap<(Instant, AcquisitionId), Item<C>>;

/// What may be renewed, by the calls it goes into.
struct Ready<C: Cargo> {
    groups: BTreeMap<Group, Waiting<C>>,
    few_failed: bool,
    /// What became due until then is included.
    looked: Instant,
    /// When the keeper looks through all again.
    until: Instant,
}

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

/// Up to this many that have failed are divided down to single calls, whatever the store does.
const FEW: usize = 512;

/// How long what found no room is kept ready, and how much longer for each lease and ticket:
/// looking through all of them then takes a few percent of a core at most.
const KEPT_READY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_micros(20);

/// When a renewal that found no room is tried again.
const NO_ROOM: Duration = Duration::from_millis(20);

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
        Self { schedule: BTreeSet::new(), planned: None, ready: None, wake: Arc::default(), kept: false }
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

    /// The lease is renewed no more. It stays in the books until it has ended, and is due once more when it expires by itself.
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

    /// A claim waits in the store's queue, as it was told by a request that was sent then: from now on its ticket is refreshed.
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

    /// A releaser has granted the lease to a claim, says the store (R19: perhaps before it has answered). Whoever is to be woken comes back.
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

    /// Every claim that asks, or sleeps between two questions, shall ask again. Whoever is to be woken comes back.
    pub(crate) fn ask_again(&mut self) -> Vec<Arc<Notify>> {
        self.asking.values_mut().for_each(PendingClaim::miss);
        self.asking.values().map(PendingClaim::wake).collect()
    }

    fn refreshed(&mut self, id: &AcquisitionId, sent: Instant, ahead: u32) {
        let Some((seat, beat)) = self.asking.get_mut(id).and_then(PendingClaim::seat) else { return };
        let cadence = seat.cadence(ahead);
        *beat = Beat { due: beat.due, early: sent + cadence / 2, ..Beat::new(sent) };
        self.schedule_at(id, Some(sent + cadence));
    }

    /// A ticket could not be refreshed: try again soon.
    pub(crate) fn not_told(&mut self, seat: &Seat, now: Instant) {
        let id = seat.claim.id();
        let Some((_, beat)) = self.asking.get_mut(id).and_then(PendingClaim::seat) else { return };
        let again = now + seat.patience();
        beat.early = again;
        let due = beat.due.map_or(again, |due| due.min(again));
        self.schedule_at(id, Some(due));
    }

    /// A lease of a claim was lost, says the store, whose token is this since: the lease, if it is that one, and whoever is to be woken.
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

    /// Something may have been missed: every lease is asked for now (R20).
    pub(crate) fn all_due(&mut self, now: &Now) {
        for lease in self.leases() {
            if lease.held_until(now).is_some() && lease.terms().renew_every.is_some() {
                self.schedule_at(lease.claim().id(), Some(now.instant()));
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
        if entry.beat.due.is_some_and(|due| due <= at) {
            return;
        }
        let home = entry.lease.home_id();
        self.schedule_at(id, Some(at));
        if let Some(home) = self.homes.get_mut(&home) {
            home.look_again();
        }
    }

    /// A renewal that was sent then has succeeded (or the lease is new): the next one is a cadence later.
    pub(crate) fn settled(&mut self, lease: &Lease<C>, sent: Instant, now: &Now) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        // A released lease is in the books, but its time of renewals is over.
        let Some(deadline) = lease.held_until(now) else { return };
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
        entry.beat = Beat { due: entry.beat.due, early, ..Beat::new(sent) };
        self.schedule_at(lease.claim().id(), Some(due));
    }

    /// A call of renewals or refreshes was answered.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    /// A renewal has failed: try again soon. Sending it has already put it into smaller company.
    pub(crate) fn failed(&mut self, lease: &Lease<C>, now: &Now) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        let (Some(due), Some(_)) = (entry.beat.due, lease.held_until(now)) else { return };
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
        let old = std::mem::replace(&mut beat.due, due);
        // Without a home the runtime has ended, and its keeper with it.
        let Some(home) = self.homes.get_mut(&home) else { return };
        if let Some(old) = old {
            home.schedule.remove(&(old, id.clone()));
        }
        if let Some(due) = due {
            home.schedule.insert((due, id.clone()));
        }
    }

    /// What the keeper of a runtime shall do now.
    ///
    /// What may be renewed goes along with what must be, so that leases of one cadence gather in
    /// common beats. A lease that is sent is due again after some patience, whether or not an
    /// answer has come: a hung call delays no lease, not even its own (C14). At most `again` calls
    /// are made again: a store that is down is not flooded with them, and calls that fail soon make
    /// room for the others.
    ///
    /// `room` returns the room for one call in a lane. What finds none stays due.
    pub(crate) fn take_due(
        &mut self,
        home: HomeId,
        now: &Now,
        batch: usize,
        mut again: usize,
        mut room: impl FnMut(Lane) -> Option<Room>,
    ) -> Due<C> {
        let mut result = Due::default();
        let Some(mut ready) = self.ready(home, now) else { return result };
        for (group, waiting) in &mut ready.groups {
            while self.any_next(waiting, now, &mut result.over) {
                if group.is_again && again == 0 {
                    std::mem::take(waiting).values().for_each(|item| self.put_off(item, now));
                    break;
                }
                let Some(room) = room(group.lane) else {
                    result.full.push(group.lane);
                    break;
                };
                again -= usize::from(group.is_again);
                let mut items = Vec::new();
                while items.len() < backoff::chunk(group.level, batch) && self.any_next(waiting, now, &mut result.over)
                {
                    items.extend(waiting.pop_first().map(|(_, item)| item));
                }
                items.iter().for_each(|item| self.sent(item, now, group.level));
                result.batches.push(Batch { items, again: group.is_again, room });
            }
        }
        result.full.dedup();
        result.over.iter().for_each(|lease| self.schedule_at(lease.claim().id(), None));
        ready.groups.retain(|_, waiting| !waiting.is_empty());
        if let Some(home) = self.homes.get_mut(&home).filter(|_| !ready.groups.is_empty()) {
            home.ready = Some(ready);
        }
        result
    }

    /// What may be renewed: what found no room before and what has become due since; or else, if
    /// anything is due, all that may go along. With many leases, looking through all of them for
    /// each call would take longer than the calls.
    fn ready(&mut self, home: HomeId, now: &Now) -> Option<Ready<C>> {
        let kept = self.homes.get_mut(&home)?.ready.take().filter(|ready| now.instant() < ready.until);
        let home = self.homes.get(&home)?;
        if let Some(mut ready) = kept {
            let after = ready.looked + Duration::from_nanos(1);
            let since = home.schedule.range((after, AcquisitionId::new(""))..);
            let new: Vec<_> = since.take_while(|(due, _)| *due <= now.instant()).collect();
            for (item, beat) in new.into_iter().filter_map(|(due, id)| self.if_ready(*due, id, now)) {
                let group = item.group(&beat, self.answered, ready.few_failed);
                // A second entry of an item is skipped: once sent, the item is no longer ready.
                ready.groups.entry(group).or_default().insert(item.urgency(&beat, now), item);
            }
            ready.looked = now.instant();
            return Some(ready);
        }
        home.next_due().filter(|due| *due <= now.instant())?;
        let beats: Vec<_> = home.schedule.iter().filter_map(|(due, id)| self.if_ready(*due, id, now)).collect();
        let few_failed = beats.iter().filter(|(_, beat)| beat.failures > 0).count() <= FEW;
        let looked_through = u32::try_from(home.schedule.len()).unwrap_or(u32::MAX);
        let mut groups = BTreeMap::<Group, Waiting<C>>::new();
        for (item, beat) in beats {
            groups
                .entry(item.group(&beat, self.answered, few_failed))
                .or_default()
                .insert(item.urgency(&beat, now), item);
        }
        let until = now.instant() + KEPT_READY + LOOK.saturating_mul(looked_through);
        Some(Ready { groups, few_failed, looked: now.instant(), until })
    }

    fn if_ready(&self, due: Instant, id: &AcquisitionId, now: &Now) -> Option<(Item<C>, Beat)> {
        if let Some(Entry { lease, beat, .. }) = self.leases.get(id) {
            return beat.is_ready(due, now.instant()).then(|| (Item::Lease(lease.clone()), *beat));
        }
        let (seat, beat) = self.asking.get(id).and_then(PendingClaim::seated)?;
        beat.is_ready(due, now.instant()).then(|| (Item::Ticket(seat.clone()), *beat))
    }

    /// Whether there is a next item. Removes those before it that an answer has settled, and moves
    /// those past their deadline to `over`.
    fn any_next(&mut self, waiting: &mut Waiting<C>, now: &Now, over: &mut Vec<Arc<Lease<C>>>) -> bool {
        while let Some(first) = waiting.first_entry() {
            let is_ready = |beat: &mut Beat| beat.due.is_some_and(|due| beat.is_ready(due, now.instant()));
            if self.beat(first.get()).is_some_and(is_ready) {
                match first.get() {
                    Item::Lease(lease) if lease.held_until(now).is_none_or(|deadline| deadline <= now.instant()) => {
                        over.push(lease.clone());
                    }
                    _ => return true,
                }
            }
            first.remove();
        }
        false
    }

    /// Something goes into a call now; it is due again if that is not answered in time.
    fn sent(&mut self, item: &Item<C>, now: &Now, level: u32) {
        self.due_again(item, now.instant() + item.patience(now), now, |beat| {
            // Until the answer says otherwise.
            beat.failures += 1;
            beat.level = level;
            beat.sent = now.instant();
        });
    }

    /// Something has found no room among the calls that are made again.
    fn put_off(&mut self, item: &Item<C>, now: &Now) {
        self.due_again(item, now.instant() + NO_ROOM, now, |_| {});
    }

    fn due_again(&mut self, item: &Item<C>, again: Instant, now: &Now, change: impl FnOnce(&mut Beat)) {
        let again = match item {
            Item::Lease(lease) => again.min(lease.deadline(now)),
            Item::Ticket(_) => again,
        };
        if let Some(beat) = self.beat(item) {
            change(beat);
            beat.early = again;
            self.schedule_at(item.id(), Some(again));
        }
    }

    fn beat(&mut self, item: &Item<C>) -> Option<&mut Beat> {
        match item {
            Item::Lease(lease) => self.leases.get_mut(lease.claim().id()).map(|entry| &mut entry.beat),
            Item::Ticket(seat) => {
                self.asking.get_mut(seat.claim.id()).and_then(PendingClaim::seat).map(|(_, beat)| beat)
            }
        }
    }
}

impl<C: Cargo> Home<C> {
    fn next_due(&self) -> Option<Instant> {
        self.schedule.first().map(|(due, _)| *due)
    }

    /// Wakes the keeper if something is due before it would look by itself.
    /// What is ready was found before something became due earlier.
    fn look_again(&mut self) {
        self.ready = None;
        self.remind();
    }

    fn remind(&self) {
        if self.next_due().is_some_and(|due| self.planned.is_none_or(|planned| due < planned)) {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;

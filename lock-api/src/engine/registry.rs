//! Which leases are alive, when each is due, and what became of the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::guard::Loss;
use crate::provider::Accounting;
use crate::store::AcquisitionId;

use super::lease::Lease;
use super::pace;

/// The books of one engine, under one lock: a lease is entered once and leaves once (C23).
#[derive(Default)]
pub(super) struct Registry {
    closed: bool,
    leases: HashMap<AcquisitionId, Entry>,
    /// What the keeper of each runtime has to do.
    homes: HashMap<runtime::Id, Home>,
    counts: Accounting,
    /// Claims that ask, and how they were lost if the store has pushed that before its answer. Kept only for stores that push.
    asking: HashMap<AcquisitionId, Option<Loss>>,
}

/// One runtime's leases, by when they are due; each once, if at all.
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
    due: Option<Instant>,
    /// When the lease may be renewed, if others are renewed then anyway.
    early: Instant,
    /// Renewals that failed or were not answered in time, in a row.
    failures: u32,
}

/// How a lease leaves the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    Lost,
    Abandoned,
}

/// What a new lease needs.
pub(super) enum Entered {
    /// The keeper knows when to look.
    Kept,
    /// There must be a keeper; it waits for this.
    Unkept(Arc<Notify>),
    /// The provider is closed, or the lease has been lost already.
    Refused,
}

/// Leases to be renewed in one call.
pub(super) struct Batch {
    pub(super) leases: Vec<Arc<Lease>>,
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
        if self.closed || self.asking.get(id).is_some_and(Option::is_some) {
            return Entered::Refused;
        }
        self.counts.acquired += 1;
        let entry = Entry { lease: lease.clone(), due: None, early: sent, failures: 0 };
        self.leases.insert(id.clone(), entry);
        self.settled(lease, sent);
        let home = self.homes.entry(lease.home().id()).or_default();
        if !std::mem::replace(&mut home.kept, true) {
            return Entered::Unkept(home.wake.clone());
        }
        home.remind();
        Entered::Kept
    }

    /// Takes a lease out; does nothing if it is out already.
    pub(super) fn end(&mut self, lease: &Lease, end: End) {
        self.schedule_at(lease, None);
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
            entry.early = expiry;
            self.schedule_at(lease, Some(expiry));
        }
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn leases(&self) -> Vec<Arc<Lease>> {
        self.leases.values().map(|entry| entry.lease.clone()).collect()
    }

    pub(super) fn accounting(&self) -> Accounting {
        Accounting { held: self.leases.len() as u64, ..self.counts }
    }

    /// A claim begins to ask a store that pushes.
    pub(super) fn begins(&mut self, id: AcquisitionId) {
        self.asking.insert(id, None);
    }

    /// A claim does not ask any more.
    pub(super) fn ends(&mut self, id: &AcquisitionId) {
        self.asking.remove(id);
    }

    /// A claim was lost, says the store: the lease, if it is one by now.
    pub(super) fn gone(&mut self, id: &AcquisitionId, loss: Loss) -> Option<Arc<Lease>> {
        if let Some(early) = self.asking.get_mut(id) {
            *early = Some(loss);
        }
        self.leases.get(id).map(|entry| entry.lease.clone())
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
                self.schedule_at(&lease, Some(now));
            }
        }
        self.homes.values().for_each(Home::remind);
    }

    /// A renewal that was sent then has succeeded (or the lease is new): the next one is a cadence later.
    pub(super) fn settled(&mut self, lease: &Lease, sent: Instant) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        // A released lease is in the books, but its time of renewals is over.
        let Some(deadline) = lease.held_until() else { return };
        entry.failures = 0;
        let due = match lease.terms().renew_every {
            // A store may grant less than the ttl, such as a short claim.
            Some(cadence) if sent + cadence >= deadline => sent + deadline.saturating_duration_since(sent) / 2,
            Some(cadence) => sent + cadence,
            None => deadline,
        };
        entry.early = match lease.terms().renew_every {
            Some(_) => due - due.saturating_duration_since(sent) / 4,
            None => deadline,
        };
        self.schedule_at(lease, Some(due));
    }

    /// A renewal has failed: try again soon. Sending it has already put it into smaller company.
    pub(super) fn failed(&mut self, lease: &Lease, now: Instant) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        let (Some(due), Some(_)) = (entry.due, lease.held_until()) else { return };
        let patience = patience(lease, now);
        entry.early = now + patience;
        self.schedule_at(lease, Some(due.min(now + patience)));
    }

    fn schedule_at(&mut self, lease: &Lease, due: Option<Instant>) {
        let id = lease.claim().id();
        let Some(entry) = self.leases.get_mut(id) else { return };
        let home = self.homes.entry(lease.home().id()).or_default();
        if let Some(old) = std::mem::replace(&mut entry.due, due) {
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
        let taken: Vec<Arc<Lease>> = schedule
            .schedule
            .iter()
            .filter_map(|(due, id)| self.leases.get(id).filter(|entry| *due <= now || entry.early <= now))
            .map(|entry| entry.lease.clone())
            .collect();
        let mut levels = BTreeMap::<u32, Vec<Arc<Lease>>>::new();
        for lease in taken {
            if lease.held_until().is_some_and(|deadline| deadline > now) {
                let level = self.leases.get(lease.claim().id()).map_or(0, |entry| entry.failures);
                levels.entry(level).or_default().push(lease);
            } else {
                self.schedule_at(&lease, None);
                result.over.push(lease);
            }
        }
        for (level, group) in levels {
            for leases in group.chunks(pace::chunk(level, batch)) {
                let again = level > 0;
                let sent = !again || room > 0;
                room -= usize::from(again && sent);
                leases.iter().for_each(|lease| self.sent(lease, now, sent));
                if sent {
                    result.batches.push(Batch { leases: leases.to_vec(), again });
                }
            }
        }
        result
    }

    /// When a lease is due again that goes into a call now, or has found no room in one.
    fn sent(&mut self, lease: &Lease, now: Instant, sent: bool) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        entry.failures += u32::from(sent); // until the answer says otherwise
        let again = now + if sent { patience(lease, now) } else { NO_ROOM };
        entry.early = again;
        self.schedule_at(lease, Some(again.min(lease.deadline())));
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
    use crate::store::{Claim, Grant, ProviderId};
    use crate::{FencingToken, LeaseOptions, LockKey, RenewalPolicy};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn home() -> runtime::Id {
        runtime::Handle::current().id()
    }

    fn sizes(due: &Due) -> Vec<usize> {
        due.batches.iter().map(|batch| batch.leases.len()).collect()
    }

    fn lease(name: &str, ttl: u64, renewal: RenewalPolicy, now: Instant) -> Arc<Lease> {
        let claim = Claim::new(LockKey::new(name).unwrap(), AcquisitionId::random(ProviderId::random()));
        let terms = LeaseOptions::new().ttl(ms(ttl)).renewal(renewal).terms().unwrap();
        Lease::granted(claim, &Grant::new(FencingToken::new(1), ms(ttl)), terms, now, now, None)
            .unwrap_or_else(|_| panic!())
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
        assert!(matches!(registry.enter(&lease, start), Entered::Refused));
    }
}

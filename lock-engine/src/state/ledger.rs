//! The ledger: which leases are alive, which claims are pending, when each is due, and the counts
//! of what became of them.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use tokio::sync::Notify;
use tokio::time::Instant;

use distlock_api::{Accounting, AcquisitionId, FencingToken, LockKey, Mode, ReleaseOutcome};

use crate::state::batch::{Ready, retry_after};
use crate::state::blocks::Blocks;
use crate::state::claim::{PendingClaim, PushedGrant, QueuedTicket, RefreshAnswer, Updates};
use crate::state::lease::Lease;
use crate::state::local_queue::CarriedLease;
use crate::state::reading_pause::TurnTimes;
use crate::state::schedule::{HomeId, Pacing, Schedule};
use crate::state::time::Now;
use crate::store::{Claim, Ticket};

/// A map by ids. These are random already, so a fixed hash invites no collisions, and a simulation
/// iterates in the same order when it repeats.
type ById<T> = HashMap<AcquisitionId, T, FixedState>;

/// A lease that was handed over is renewed after this share of its claim. What is done before sends
/// no renewal; a pause or an outage after it costs no lease (R19).
const SHARE_OF_CLAIM: u32 = 20;

/// The ledger of one engine, under one lock: a lease enters once and leaves once (C23).
pub(crate) struct Ledger<C: CarriedLease> {
    closed: bool,
    leases: ById<LeaseRecord<C>>,
    /// The shared leases that were granted last, for the readers that come.
    joinable: HashMap<LockKey, Arc<Lease<C>>, RandomState>,
    /// How many guards there are beyond one per lease.
    further_guards: u64,
    /// The work of the keeper of each runtime.
    keepers: HashMap<HomeId, KeeperWork<C>, FixedState>,
    counts: Accounting,
    blocks: Blocks,
    turn_times: TurnTimes,
    /// The claims without a lease yet, and what the store has pushed about them.
    pending: ById<PendingClaim>,
    /// When a call that renews or refreshes was last answered.
    answered: Option<Instant>,
}

/// The work of one runtime's keeper.
struct KeeperWork<C: CarriedLease> {
    schedule: Schedule,
    /// When the keeper looks again by itself; `None` if nothing is due.
    planned: Option<Instant>,
    /// What found no permit when the keeper looked.
    ready: Option<Ready<C>>,
    wake: Arc<Notify>,
    /// Whether the keeper has been started.
    running: bool,
}

/// An event that comes so soon after the grant of a lease may be about the release before it.
const EVENTS_ARE_LATE: Duration = Duration::from_secs(1);

/// With more leases and pending claims than this, events are needed at any time.
const FEW_TO_PAUSE: usize = 16;

struct LeaseRecord<C: CarriedLease> {
    lease: Arc<Lease<C>>,
    /// How many guards have the lease; a shared one may have several.
    guards: u64,
    since: Instant,
    pacing: Pacing,
    /// Whether no renewal has been answered since the grant.
    is_new: bool,
}

/// How a lease leaves the ledger.
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

/// Counts guards that have ended.
fn count(counts: &mut Accounting, end: End, guards: u64) {
    match end {
        End::Released => counts.released += guards,
        End::Lost => counts.lost += guards,
        End::Abandoned => counts.abandoned += guards,
    }
}

/// What became of a new lease or ticket.
pub(crate) enum Registration {
    /// It is in the ledger, and the runtime has a keeper.
    Registered,
    /// It is in the ledger. The caller must start a keeper, which waits for this notification.
    NeedsKeeper(Arc<Notify>),
    /// The provider is closed.
    Closed,
    /// The lease has been lost already, or the claim is no longer known.
    Refused,
}

impl<C: CarriedLease> Default for Ledger<C> {
    fn default() -> Self {
        Self {
            closed: false,
            leases: HashMap::default(),
            joinable: HashMap::default(),
            further_guards: 0,
            keepers: HashMap::default(),
            counts: Accounting::new(),
            blocks: Blocks::default(),
            turn_times: TurnTimes::default(),
            pending: HashMap::default(),
            answered: None,
        }
    }
}

impl<C: CarriedLease> Default for KeeperWork<C> {
    fn default() -> Self {
        Self { schedule: Schedule::default(), planned: None, ready: None, wake: Arc::default(), running: false }
    }
}

impl<C: CarriedLease> Ledger<C> {
    /// Enters a new lease.
    pub(crate) fn enter(&mut self, lease: &Arc<Lease<C>>, sent: Instant, now: &Now) -> Registration {
        let id = lease.claim().id();
        if self.closed {
            return Registration::Closed;
        }
        let mut pending = self.pending.get_mut(id);
        if pending.as_ref().is_some_and(|pending| pending.has_lost(lease.last_token())) {
            return Registration::Refused;
        }
        // The answer was in transit during a gap: renew the lease at once, like the others (R20).
        let has_missed = pending.as_ref().is_some_and(|pending| pending.has_missed());
        let is_doubtful = has_missed && lease.terms().renew_every.is_some();
        if let Some(progress) = pending.as_mut().and_then(|pending| pending.take_progress()) {
            self.turn_times.granted(&progress, now.instant());
        }
        self.remove_ticket(id);
        self.counts.acquired += 1;
        self.leases.insert(
            id.clone(),
            LeaseRecord { lease: lease.clone(), guards: 1, since: sent, pacing: Pacing::new(sent), is_new: true },
        );
        if lease.is_joinable() {
            let before = self.joinable.insert(lease.key().clone(), lease.clone());
            before.into_iter().for_each(|before| lease.continue_queries_of(&before));
        }
        self.keepers.entry(lease.home_id()).or_default();
        self.renewal_succeeded(lease, sent, now);
        if is_doubtful {
            self.schedule_at(id, Some(now.instant()));
        }
        self.ensure_keeper(lease.home_id())
    }

    fn ensure_keeper(&mut self, home: HomeId) -> Registration {
        let home = self.keepers.entry(home).or_default();
        if !std::mem::replace(&mut home.running, true) {
            return Registration::NeedsKeeper(home.wake.clone());
        }
        home.wake_if_due_earlier();
        Registration::Registered
    }

    /// Counts a hand-over of a lease to another guard, with another token (rule R21 of
    /// distlock-mongo's PROTOCOL).
    pub(crate) fn count_hand_over(&mut self) {
        self.counts.released += 1;
        self.counts.acquired += 1;
    }

    /// Removes a lease, with the guards that it still has. Does nothing if it has left already.
    pub(crate) fn end(&mut self, lease: &Lease<C>, end: End) {
        self.schedule_at(lease.claim().id(), None);
        self.end_joining(lease);
        let Some(record) = self.leases.remove(lease.claim().id()) else { return };
        if end == End::Lost {
            self.used_tokens(lease);
        }
        self.further_guards -= record.guards - 1;
        count(&mut self.counts, end, record.guards);
    }

    /// Records that the release of a lease has begun: it is no longer renewed. It stays in the
    /// ledger until it has ended, and is due once more at its own expiry.
    pub(crate) fn release_begun(&mut self, lease: &Lease<C>, now: &Now) {
        let expiry = lease.expiry(now);
        self.end_joining(lease);
        self.used_tokens(lease);
        if let Some(entry) = self.leases.get_mut(lease.claim().id()) {
            entry.pacing.early = expiry;
            self.schedule_at(lease.claim().id(), Some(expiry));
        }
    }

    /// Returns how many tokens a lease of the key in this mode asks for.
    pub(crate) fn next_block(&self, key: &LockKey, mode: Mode) -> NonZeroU32 {
        self.blocks.next(key, mode)
    }

    /// Records how many of its tokens a lease has used.
    fn used_tokens(&mut self, lease: &Lease<C>) {
        if let Some(used) = lease.used_tokens() {
            self.blocks.used(lease.key(), used);
        }
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Removes all tickets and returns them with their claims.
    pub(crate) fn take_tickets(&mut self) -> Vec<(Claim, Ticket)> {
        let queued = self.pending.values().filter_map(|pending| Some(pending.ticket()?.0));
        let tickets: Vec<_> = queued.map(|queued| (queued.claim.clone(), queued.ticket)).collect();
        tickets.iter().for_each(|(claim, _)| self.remove_ticket(claim.id()));
        tickets
    }

    /// Returns the lease of an acquisition, until it has ended.
    pub(crate) fn lease(&self, id: &AcquisitionId) -> Option<Arc<Lease<C>>> {
        self.leases.get(id).map(|entry| entry.lease.clone())
    }

    pub(crate) fn leases(&self) -> Vec<Arc<Lease<C>>> {
        self.leases.values().map(|entry| entry.lease.clone()).collect()
    }

    /// Returns since when the oldest lease has been held.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.leases.values().map(|entry| entry.since).min()
    }

    /// Returns the instant from which events are needed; `None` if no lease and no waiting claim
    /// needs them.
    ///
    /// A lease needs them when it is old enough for a stream to be opened for it, and a claim when
    /// its caller waits and its pause is over. With more than [`FEW_TO_PAUSE`] of both together,
    /// some need them at any time.
    pub(crate) fn events_needed(&self, now: Instant, old: Duration) -> Option<Instant> {
        if self.leases.len() + self.pending.len() > FEW_TO_PAUSE {
            return Some(now);
        }
        let waiting = self.pending.values().filter_map(PendingClaim::needs_events);
        waiting.chain(self.oldest().map(|since| since + old)).min()
    }

    /// Returns whether a caller waits that needs no events yet.
    pub(crate) fn a_waiter_pauses(&self, now: Instant) -> bool {
        let mut waiting = self.pending.values().filter_map(PendingClaim::needs_events);
        self.pending.len() <= FEW_TO_PAUSE && waiting.any(|needed| needed > now)
    }

    /// Records that the caller of a claim waits for events.
    pub(crate) fn claim_waits(&mut self, id: &AcquisitionId, now: Instant) {
        self.pending.get_mut(id).into_iter().for_each(|pending| pending.waits(now));
    }

    /// Returns whether there are neither leases nor pending claims.
    pub(crate) fn is_idle(&self) -> bool {
        self.leases.is_empty() && self.pending.is_empty()
    }

    pub(crate) fn accounting(&self) -> Accounting {
        let mut accounting = self.counts;
        accounting.held = self.leases.len() as u64 + self.further_guards;
        accounting
    }

    /// Adds a pending claim. The returned value is notified when there are updates about it.
    pub(crate) fn add_pending(&mut self, id: AcquisitionId) -> Arc<Notify> {
        self.pending.entry(id).or_default().wake()
    }

    /// Removes a pending claim, with its ticket.
    pub(crate) fn remove_pending(&mut self, id: &AcquisitionId) {
        self.remove_ticket(id);
        let progress = self.pending.remove(id).and_then(|mut pending| pending.take_progress());
        progress.iter().for_each(|progress| self.turn_times.left(progress));
    }

    /// Adds a claim's ticket in the store's queue, from the answer to a request that was sent at
    /// `sent`. The keeper refreshes it from now on.
    pub(crate) fn add_ticket(&mut self, queued: &QueuedTicket, sent: Instant, ahead: u32) -> Registration {
        let id = queued.claim.id();
        if self.pending.get(id).is_some_and(|pending| pending.has_ticket_elsewhere(queued.home)) {
            self.remove_ticket(id);
        }
        let Some(pending) = self.pending.get_mut(id) else { return Registration::Refused };
        pending.add_ticket(queued.clone(), sent);
        self.keepers.entry(queued.home).or_default();
        self.refreshed(id, sent, ahead);
        self.ensure_keeper(queued.home)
    }

    /// Removes the ticket of a claim, if it has one.
    pub(crate) fn remove_ticket(&mut self, id: &AcquisitionId) {
        if self.pending.get(id).is_some_and(PendingClaim::has_ticket) {
            self.schedule_at(id, None);
            self.pending.get_mut(id).into_iter().for_each(PendingClaim::remove_ticket);
        }
    }

    /// Returns what the store has reported about a claim since the last call.
    pub(crate) fn take_updates(&mut self, id: &AcquisitionId) -> Updates {
        self.pending.get_mut(id).map(PendingClaim::take_updates).unwrap_or_default()
    }

    /// Records a pushed grant of a lease to a claim (R19: it may come before the answer of the
    /// attempt). Returns the caller to notify.
    pub(crate) fn grant_pushed(&mut self, id: &AcquisitionId, pushed: PushedGrant) -> Option<Arc<Notify>> {
        let pending = self.pending.get_mut(id)?;
        pending.grant_pushed(pushed);
        Some(pending.wake())
    }

    /// Records the answer to the refresh of a ticket. Returns the caller to notify.
    pub(crate) fn refresh_answered(&mut self, queued: &QueuedTicket, answer: RefreshAnswer) -> Option<Arc<Notify>> {
        let id = queued.claim.id();
        match answer.ahead() {
            Some(ahead) => self.refreshed(id, answer.sent, ahead),
            None => self.remove_ticket(id),
        }
        let pending = self.pending.get_mut(id)?;
        pending.refresh_answered(answer);
        Some(pending.wake())
    }

    /// Records that events may have been missed, so that every pending claim makes another attempt.
    /// Returns the callers to notify.
    pub(crate) fn mark_all_missed(&mut self) -> Vec<Arc<Notify>> {
        self.pending.values_mut().for_each(PendingClaim::events_missed);
        self.pending.values().map(PendingClaim::wake).collect()
    }

    fn refreshed(&mut self, id: &AcquisitionId, sent: Instant, ahead: u32) {
        let Some(pending) = self.pending.get_mut(id) else { return };
        pending.advanced(&mut self.turn_times, sent, ahead);
        let Some((queued, pacing)) = pending.ticket_mut() else { return };
        let cadence = queued.cadence(ahead);
        pacing.succeeded(sent, sent + cadence / 2);
        self.schedule_at(id, Some(sent + cadence));
    }

    /// Records that a ticket could not be refreshed, so that it is tried again soon.
    pub(crate) fn refresh_failed(&mut self, queued: &QueuedTicket, now: Instant) {
        let id = queued.claim.id();
        let Some((_, pacing)) = self.pending.get_mut(id).and_then(PendingClaim::ticket_mut) else { return };
        let again = now + queued.retry_after();
        pacing.early = again;
        let due = pacing.due().map_or(again, |due| due.min(again));
        self.schedule_at(id, Some(due));
    }

    /// Records a pushed loss of a lease of this claim; the key's token is now `token`. Returns the
    /// lease if it predates that token, and the caller to notify.
    pub(crate) fn loss_pushed(
        &mut self,
        id: &AcquisitionId,
        token: FencingToken,
    ) -> (Option<Arc<Lease<C>>>, Option<Arc<Notify>>) {
        let wake = self.pending.get_mut(id).map(|pending| {
            pending.lease_lost(token);
            pending.wake()
        });
        let lease = self.leases.get(id).map(|entry| &entry.lease).filter(|lease| lease.last_token() < token);
        (lease.cloned(), wake)
    }

    /// Returns when the keeper has something to do next. Called before it goes to sleep.
    pub(crate) fn plan(&mut self, home: HomeId) -> Option<Instant> {
        let home = self.keepers.get_mut(&home)?;
        home.planned = home.next_due();
        home.planned
    }

    /// Records that a keeper has ended, with its runtime or with the provider.
    pub(crate) fn keeper_ended(&mut self, home: HomeId) {
        self.keepers.remove(&home);
    }

    /// Makes every lease and ticket due now, because events may have been missed (R20). A lease
    /// that is never renewed becomes due at its deadline, which is earlier after a sleep of the
    /// machine.
    pub(crate) fn make_all_due(&mut self, now: &Now) {
        for lease in self.leases() {
            let Some(deadline) = lease.held_until(now) else { continue };
            let id = lease.claim().id();
            if lease.terms().renew_every.is_some() || deadline <= now.instant() {
                self.schedule_at(id, Some(now.instant()));
            } else if self.leases.get(id).and_then(|entry| entry.pacing.due()).is_some_and(|due| due > deadline) {
                self.schedule_at(id, Some(deadline));
            }
        }
        let waiting: Vec<_> =
            self.pending.iter().filter(|(_, pending)| pending.has_ticket()).map(|(id, _)| id.clone()).collect();
        for id in waiting {
            self.schedule_at(&id, Some(now.instant()));
        }
        for keeper in self.keepers.values_mut() {
            keeper.discard_ready();
        }
    }

    /// Renews a lease soon, because an event reported its key as free. The answer to the renewal
    /// decides (R20). It is sent at once, or as soon as the event cannot be about the release
    /// before the lease's grant.
    pub(crate) fn renew_soon(&mut self, id: &AcquisitionId, now: &Now) {
        let Some(entry) = self.leases.get(id) else { return };
        if entry.lease.held_until(now).is_none() || entry.lease.terms().renew_every.is_none() {
            return;
        }
        let at = now.instant().max(entry.since + EVENTS_ARE_LATE);
        if entry.pacing.due().is_some_and(|due| due <= at) {
            return;
        }
        let home = entry.lease.home_id();
        self.schedule_at(id, Some(at));
        if let Some(keeper) = self.keepers.get_mut(&home) {
            keeper.discard_ready();
        }
    }

    /// Schedules the next renewal, a cadence after `sent`: a renewal sent then has succeeded, or
    /// the lease is new.
    pub(crate) fn renewal_succeeded(&mut self, lease: &Lease<C>, sent: Instant, now: &Now) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        // A lease in a release is in the ledger, but is no longer renewed.
        let Some(deadline) = lease.held_until(now) else { return };
        let left = deadline.saturating_duration_since(sent);
        let is_new = std::mem::take(&mut entry.is_new);
        // The claim of a waiter to which the lease was handed over (R19). It is renewed to its full
        // ttl soon, once even if it is never renewed afterwards.
        let is_short = left < lease.terms().ttl.saturating_sub(lease.terms().margin);
        let cadence = match lease.terms().renew_every {
            _ if lease.reaches_max_hold(now) => None,
            Some(cadence) if is_short => Some(cadence.min(left / SHARE_OF_CLAIM)),
            None if is_short && is_new => Some(left / SHARE_OF_CLAIM),
            cadence => cadence,
        };
        let (due, early) = match cadence {
            Some(cadence) => (sent + cadence, sent + cadence * 3 / 4),
            None => (deadline, deadline),
        };
        entry.pacing.succeeded(sent, early);
        self.schedule_at(lease.claim().id(), Some(due));
    }

    /// Records that a call of renewals or refreshes was answered.
    pub(crate) fn call_answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    /// Records that a renewal has failed, so that it is tried again soon. Its batch was already
    /// divided when it was sent.
    pub(crate) fn renewal_failed(&mut self, lease: &Lease<C>, now: &Now) {
        let Some(entry) = self.leases.get_mut(lease.claim().id()) else { return };
        let (Some(due), Some(_)) = (entry.pacing.due(), lease.held_until(now)) else { return };
        let retry_after = retry_after(lease, now);
        entry.pacing.early = now.instant() + retry_after;
        self.schedule_at(lease.claim().id(), Some(due.min(now.instant() + retry_after)));
    }

    /// Sets when a lease or a ticket is due; `None` for never.
    fn schedule_at(&mut self, id: &AcquisitionId, due: Option<Instant>) {
        let (home, pacing) = match (self.leases.get_mut(id), self.pending.get_mut(id)) {
            (Some(entry), _) => (entry.lease.home_id(), &mut entry.pacing),
            (None, Some(pending)) => match pending.ticket_mut() {
                Some((queued, pacing)) => (queued.home, pacing),
                None => return,
            },
            (None, None) => return,
        };
        // Without a keeper the runtime has ended.
        let schedule = self.keepers.get_mut(&home).map(|keeper| &mut keeper.schedule);
        Schedule::set(schedule, id, pacing, due);
    }
}

impl<C: CarriedLease> KeeperWork<C> {
    fn next_due(&self) -> Option<Instant> {
        self.schedule.next_due()
    }

    /// Discards what was ready, because something has become due earlier.
    fn discard_ready(&mut self) {
        self.ready = None;
        self.wake_if_due_earlier();
    }

    /// Wakes the keeper if something is due before its next look.
    fn wake_if_due_earlier(&self) {
        if self.next_due().is_some_and(|due| self.planned.is_none_or(|planned| due < planned)) {
            self.wake.notify_one();
        }
    }
}

mod due;
mod joining;

#[cfg(test)]
mod tests;

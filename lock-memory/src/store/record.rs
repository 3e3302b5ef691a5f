//! The lease record of one key and its transitions: no clock, no lock, no I/O.

mod holders;
mod queue;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken, ForcedRelease, Holder, LockInfo, LockKey, Loss, Mode, ReleaseOutcome};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Grant, QueueStanding, Release, Renewal, RenewalSubject, Reply, Standing, StoreTime,
    Ticket,
};

use self::holders::{Holders, Lease};
use self::queue::{Queue, Waiter};

/// How many ended leases a record remembers, so that a repeated release gets the answer of the
/// first one (C10).
const REMEMBERED: usize = 64;
/// How many releases by force a record remembers.
const HISTORY: usize = 5;

/// The record of one key. Every `now` is the store's clock: the time since its origin.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The last token granted, or skipped by a force-release.
    token: u64,
    holders: Holders,
    /// The end of a minimum hold (C25) of an exclusive lease, or when the last lease was given up,
    /// taken away or dropped. Without a lease, the key is free from then on.
    closed_until: Duration,
    queue: Queue,
    /// Leases that a step has found expired and dropped, until they are reported.
    expired: Vec<AcquisitionId>,
    ended: VecDeque<(AcquisitionId, Ending)>,
    history: VecDeque<ForcedRelease>,
}

/// The effect of a release or withdrawal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseEffect {
    pub(crate) outcome: ReleaseOutcome,
    /// Whether the claim had a lease until now.
    pub(crate) ended: bool,
    /// The waiters that have a lease now, in the order of their grants (C28).
    pub(crate) granted: Vec<NextHolder>,
}

/// A waiter to which a release has granted a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextHolder {
    pub(crate) id: AcquisitionId,
    pub(crate) mode: Mode,
    pub(crate) holder: Holder,
    pub(crate) grant: Grant,
    pub(crate) last_token: FencingToken,
    pub(crate) expires_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Released,
    ForceReleased,
}

impl Record {
    /// Creates a record whose tokens start above `floor`: the highest token of any record that was
    /// removed (C5).
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            token: floor,
            holders: Holders::default(),
            closed_until: Duration::ZERO,
            queue: Queue::default(),
            expired: Vec::new(),
            ended: VecDeque::new(),
            history: VecDeque::new(),
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Whether no claim holds the key now.
    pub(crate) fn is_free(&self, now: Duration) -> bool {
        self.holders.is_free(now)
    }

    /// Returns the acquisitions that have a lease, expired or not.
    pub(crate) fn lease_ids(&self) -> Vec<AcquisitionId> {
        self.holders.ids().cloned().collect()
    }

    /// Returns the expired leases that were dropped since the last call.
    pub(crate) fn take_expired(&mut self) -> Vec<AcquisitionId> {
        std::mem::take(&mut self.expired)
    }

    pub(crate) fn history(&self) -> Vec<ForcedRelease> {
        self.history.iter().cloned().collect()
    }

    /// Returns the waiters, in the order of the queue.
    pub(crate) fn waiting(&self, now: Duration) -> impl Iterator<Item = &AcquisitionId> {
        self.queue.live(now)
    }

    pub(crate) fn drop_tickets(&mut self) {
        self.queue.drop_all();
    }

    /// R8: every waiter takes a free key at its position, newcomers behind the waiters. Beside
    /// holders, only the first in the queue has its turn, if its mode fits (C28).
    pub(crate) fn try_acquire(&mut self, now: Duration, attempt: &Attempt) -> Reply {
        let (id, mode) = (attempt.claim.id(), attempt.claim.mode());
        if let Some(lease) = self.holders.held_by(now, id) {
            lease.expires_at = lease.expires_at.max(now.saturating_add(attempt.ttl));
            return Reply::Granted(lease.grant(now));
        }
        self.queue.drop_expired(now);
        let turn = self.turn(now, mode, queue::windows(self.queue.position(id), attempt.turn_window));
        if now < turn {
            let standing = self.queue.enqueue(now, attempt);
            return Reply::Busy(self.busy_reply(now, turn, standing));
        }
        self.queue.remove(id);
        self.drop_expired(now);
        let (tokens, holder) = (attempt.tokens, attempt.holder.clone());
        Reply::Granted(self.start(now, attempt.ttl, (id.clone(), mode), tokens, holder).grant(now))
    }

    /// Extends a lease, never revives it (C12): an expired lease stays expired even while no claim
    /// has taken the key. The other holders are not affected (C29).
    pub(crate) fn renew(&mut self, now: Duration, renewal: &Renewal) -> Standing {
        match renewal.subject {
            RenewalSubject::Lease { token, ttl } => match self.holders.held_by(now, renewal.claim.id()) {
                Some(lease) if lease.last_token() == token.get() => {
                    lease.expires_at = lease.expires_at.max(now.saturating_add(ttl));
                    Standing::Held { remaining: lease.expires_at - now }
                }
                _ => Standing::Gone(self.loss_of(renewal.claim.id())),
            },
            RenewalSubject::Ticket(ticket) => self.refresh(now, &renewal.claim, ticket),
            _ => Standing::Gone(Loss::Gone),
        }
    }

    /// A ticket that is not there is not added again (R15): its claim may have been granted the
    /// lease and lost it.
    fn refresh(&mut self, now: Duration, claim: &Claim, ticket: Ticket) -> Standing {
        if let Some(lease) = self.holders.held_by(now, claim.id()) {
            return Standing::Held { remaining: lease.expires_at - now };
        }
        self.queue.drop_expired(now);
        match self.queue.refresh(now, claim.id(), ticket) {
            Some((standing, later)) => {
                Standing::Waiting(self.busy_reply(now, self.turn(now, claim.mode(), later), standing))
            }
            None => Standing::Gone(self.loss_of(claim.id())),
        }
    }

    /// R12: removes the claim's own ticket first, so that a claim never hands a lease over to
    /// itself. Grants the key to all at the head of the queue that fit together, if the claim held
    /// it or others hold it still (C28). Without `hands_over`, the key is left to the first claim
    /// that comes.
    pub(crate) fn release(&mut self, now: Duration, release: &Release, hands_over: bool) -> ReleaseEffect {
        let id = release.claim.id();
        self.queue.remove(id);
        let ended = self.end_lease(now, release);
        let outcome = match self.ending(id) {
            Some(Ending::Released) => ReleaseOutcome::Released,
            _ => ReleaseOutcome::AlreadyLost,
        };
        // R13: no claim is granted before the end of a minimum hold.
        let may_grant = (ended || !self.holders.is_free(now)) && now >= self.closed_until;
        let granted = if hands_over && may_grant { self.grant_waiters(now) } else { Vec::new() };
        ReleaseEffect { outcome, ended, granted }
    }

    /// Ends the claim's lease, if it has one. With a minimum hold the key stays closed, or, if it
    /// is held together with others, the lease stays without its claim (C25).
    fn end_lease(&mut self, now: Duration, release: &Release) -> bool {
        let Some(lease) = self.holders.held_by(now, release.claim.id()) else { return false };
        let hold = release.hold_at_least.map_or(now, |hold| lease.granted_at.saturating_add(hold)).max(now);
        let stays = hold > now && !lease.mode.is_exclusive();
        if stays {
            (lease.expires_at, lease.released) = (hold, true);
        } else {
            self.closed_until = hold;
            self.holders.remove(release.claim.id());
        }
        self.remember(release.claim.id().clone(), Ending::Released);
        true
    }

    fn grant_waiters(&mut self, now: Duration) -> Vec<NextHolder> {
        self.queue.drop_expired(now);
        self.drop_expired(now);
        let mut granted = Vec::new();
        while let Some(head) = self.queue.take_head_if(|head| self.holders.admit(now, head.mode)) {
            granted.push(self.hand_over(now, head));
        }
        granted
    }

    fn hand_over(&mut self, now: Duration, head: Waiter) -> NextHolder {
        let Waiter { id, mode, ticket, tokens, holder, .. } = head;
        let lease = self.start(now, ticket.claim_ttl, (id, mode), tokens, holder);
        let last_token = FencingToken::new(lease.last_token());
        let Lease { id, mode, holder, expires_at, .. } = lease.clone();
        NextHolder { id, mode, holder, grant: lease.grant(now), last_token, expires_at }
    }

    fn start(
        &mut self,
        now: Duration,
        ttl: Duration,
        (id, mode): (AcquisitionId, Mode),
        tokens: NonZeroU32,
        holder: Holder,
    ) -> &Lease {
        let (first_token, expires_at) = (self.token + 1, now.saturating_add(ttl));
        let lease = Lease { id, mode, first_token, tokens, granted_at: now, expires_at, holder, released: false };
        self.token = lease.last_token();
        self.holders.add(lease)
    }

    fn busy_reply(&self, now: Duration, turn: Duration, standing: QueueStanding) -> BusyReply {
        BusyReply::new()
            .with_holder_remaining(turn.saturating_sub(now))
            .with_standing(standing)
            .with_anchor(StoreTime::since_origin(now), FencingToken::new(self.token))
    }

    /// Opens the key, whichever claims hold it and even during a minimum hold, and skips a token
    /// (C22). With `only`, takes the lease of this acquisition alone away. Returns the acquisitions
    /// that have lost their lease. `entry` is for the history, once for each of them.
    pub(crate) fn force_release(
        &mut self,
        now: Duration,
        only: Option<&AcquisitionId>,
        entry: &ForcedRelease,
    ) -> Vec<AcquisitionId> {
        let victims = self.holders.live(now).filter(|lease| only.is_none_or(|only| lease.id == *only));
        let victims: Vec<_> = victims.map(|lease| (lease.id.clone(), lease.holder.owner.clone())).collect();
        if victims.is_empty() && (only.is_some() || now >= self.opens_at()) {
            return Vec::new();
        }
        self.token += 1;
        self.closed_until = now;
        if victims.is_empty() {
            self.note_in_history(entry.clone());
        }
        let mut lost = Vec::new();
        for (id, owner) in victims {
            let mut entry = entry.clone();
            (entry.id, entry.owner) = (Some(id.clone()), owner.as_deref().map(str::to_owned));
            self.note_in_history(entry);
            self.holders.remove(&id);
            self.remember(id.clone(), Ending::ForceReleased);
            lost.push(id);
        }
        lost
    }

    fn note_in_history(&mut self, entry: ForcedRelease) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(entry);
    }

    /// Ends leases and minimum hold as if their time had passed.
    pub(crate) fn expire(&mut self, now: Duration) {
        self.closed_until = self.closed_until.min(now);
        self.holders.expire(now);
    }

    /// Returns what holds the key or keeps it closed; `None` if it is free.
    pub(crate) fn describe(&self, now: Duration, key: &LockKey) -> Option<LockInfo> {
        let remaining = self.opens_at().checked_sub(now).filter(|remaining| !remaining.is_zero())?;
        let first = self.holders.live(now).next();
        let info =
            LockInfo::new(key.clone(), first.map(|lease| lease.id.clone()), FencingToken::new(self.token), remaining)
                .with_waiting(u32::try_from(self.waiting(now).count()).unwrap_or(u32::MAX))
                .with_holders(self.holders.describe(now).unwrap_or_default());
        Some(match first {
            Some(Lease { holder, .. }) => info.with_holder(
                holder.owner.as_deref().map(str::to_owned),
                holder.metadata.as_deref().cloned().unwrap_or_default(),
            ),
            None => info,
        })
    }

    /// Returns when the key opens.
    fn opens_at(&self) -> Duration {
        self.holders.last_end().map_or(self.closed_until, |end| end.max(self.closed_until))
    }

    /// Returns when a claim may take the key that must wait `later` after it has become free, or
    /// after there is room beside the holders.
    fn turn(&self, now: Duration, mode: Mode, later: Duration) -> Duration {
        let opens = match self.holders.next_room(now) {
            None => self.opens_at(),
            Some(_) if self.holders.admit(now, mode) => now,
            Some(room) => room,
        };
        opens.saturating_add(later)
    }

    fn loss_of(&self, id: &AcquisitionId) -> Loss {
        match self.ending(id) {
            Some(Ending::ForceReleased) => Loss::ForceReleased,
            _ => Loss::Gone,
        }
    }

    fn ending(&self, id: &AcquisitionId) -> Option<Ending> {
        self.ended.iter().rev().find(|(ended, _)| ended == id).map(|(_, ending)| *ending)
    }

    /// Drops the expired leases. When the last one ended stays known: the turns count from then.
    fn drop_expired(&mut self, now: Duration) {
        if self.holders.is_free(now) {
            self.closed_until = self.opens_at();
        }
        self.expired.extend(self.holders.drop_expired(now));
    }

    fn remember(&mut self, id: AcquisitionId, ending: Ending) {
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((id, ending));
    }
}

#[cfg(test)]
mod tests;

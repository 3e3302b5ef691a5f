//! The lease record of one key and its transitions: no clock, no lock, no I/O.

mod queue;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken, ForcedRelease, Holder, LockInfo, LockKey, Loss, ReleaseOutcome};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Grant, QueueStanding, Release, Renewal, RenewalSubject, Reply, Standing, StoreTime,
    Ticket,
};

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
    lease: Option<Lease>,
    /// The end of a minimum hold (C25), or when the last lease was given up or taken away. Without
    /// a lease, the key is free from then on.
    closed_until: Duration,
    queue: Queue,
    ended: VecDeque<(AcquisitionId, Ending)>,
    history: VecDeque<ForcedRelease>,
}

#[derive(Clone, Debug)]
struct Lease {
    id: AcquisitionId,
    first_token: u64,
    tokens: NonZeroU32,
    granted_at: Duration,
    expires_at: Duration,
    holder: Holder,
}

/// The effect of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseEffect {
    /// The claim had no lease.
    Nothing(ReleaseOutcome),
    /// The key is free, or will be after a minimum hold.
    Freed,
    /// The first in the queue has the lease now.
    HandedOver(NextHolder),
}

/// A waiter to which a release has granted the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextHolder {
    pub(crate) id: AcquisitionId,
    pub(crate) holder: Holder,
    pub(crate) grant: Grant,
    pub(crate) expires_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Released,
    ForceReleased,
}

impl Lease {
    fn last_token(&self) -> u64 {
        self.first_token + u64::from(self.tokens.get() - 1)
    }

    fn grant(&self, now: Duration) -> Grant {
        Grant::new(FencingToken::new(self.first_token), self.expires_at - now).with_tokens(self.tokens)
    }
}

impl Record {
    /// Creates a record whose tokens start above `floor`: the highest token of any record that was
    /// removed (C5).
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            token: floor,
            lease: None,
            closed_until: Duration::ZERO,
            queue: Queue::default(),
            ended: VecDeque::new(),
            history: VecDeque::new(),
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Returns the acquisition that has the lease, expired or not.
    pub(crate) fn lease_of(&self) -> Option<&AcquisitionId> {
        self.lease.as_ref().map(|lease| &lease.id)
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

    /// R8: every waiter takes the lease at its position, newcomers behind the waiters.
    pub(crate) fn try_acquire(&mut self, now: Duration, attempt: &Attempt) -> Reply {
        if let Some(lease) = self.held_by(now, &attempt.claim) {
            lease.expires_at = lease.expires_at.max(now.saturating_add(attempt.ttl));
            return Reply::Granted(lease.grant(now));
        }
        self.queue.drop_expired(now);
        let id = attempt.claim.id();
        let turn = self.turn(queue::windows(self.queue.position(id), attempt.turn_window));
        if now < turn {
            let standing = self.queue.enqueue(now, attempt);
            return Reply::Busy(self.busy_reply(now, turn, standing));
        }
        self.queue.remove(id);
        Reply::Granted(self.start(now, attempt.ttl, id.clone(), attempt.tokens, attempt.holder.clone()).grant(now))
    }

    /// Extends a lease, never revives it (C12): an expired lease stays expired even while no claim
    /// has taken the key.
    pub(crate) fn renew(&mut self, now: Duration, renewal: &Renewal) -> Standing {
        match renewal.subject {
            RenewalSubject::Lease { token, ttl } => match self.held_by(now, &renewal.claim) {
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
        if let Some(lease) = self.held_by(now, claim) {
            return Standing::Held { remaining: lease.expires_at - now };
        }
        self.queue.drop_expired(now);
        match self.queue.refresh(now, claim.id(), ticket) {
            Some((standing, later)) => Standing::Waiting(self.busy_reply(now, self.turn(later), standing)),
            None => Standing::Gone(self.loss_of(claim.id())),
        }
    }

    /// R12: removes the claim's own ticket first, so that a claim never hands a lease over to
    /// itself. Without `hands_over`, the key is left to the first claim that comes.
    pub(crate) fn release(&mut self, now: Duration, release: &Release, hands_over: bool) -> ReleaseEffect {
        self.queue.remove(release.claim.id());
        let Some(lease) = self.held_by(now, &release.claim) else {
            return ReleaseEffect::Nothing(match self.ending(release.claim.id()) {
                Some(Ending::Released) => ReleaseOutcome::Released,
                _ => ReleaseOutcome::AlreadyLost,
            });
        };
        let hold = release.hold_at_least.map_or(now, |hold| lease.granted_at.saturating_add(hold));
        self.closed_until = hold.max(now);
        self.end(Ending::Released);
        // R13: no claim is granted before the end of a minimum hold.
        if !hands_over || now < self.closed_until {
            return ReleaseEffect::Freed;
        }
        self.queue.drop_expired(now);
        self.queue.take_head().map_or(ReleaseEffect::Freed, |head| ReleaseEffect::HandedOver(self.hand_over(now, head)))
    }

    fn hand_over(&mut self, now: Duration, head: Waiter) -> NextHolder {
        let Waiter { id, ticket, tokens, holder, .. } = head;
        let lease = self.start(now, ticket.claim_ttl, id, tokens, holder);
        let Lease { id, holder, expires_at, .. } = lease.clone();
        NextHolder { id, holder, grant: lease.grant(now), expires_at }
    }

    fn start(&mut self, now: Duration, ttl: Duration, id: AcquisitionId, tokens: NonZeroU32, holder: Holder) -> &Lease {
        let (first_token, expires_at) = (self.token + 1, now.saturating_add(ttl));
        let lease = Lease { id, first_token, tokens, granted_at: now, expires_at, holder };
        self.token = lease.last_token();
        self.lease.insert(lease)
    }

    fn busy_reply(&self, now: Duration, turn: Duration, standing: QueueStanding) -> BusyReply {
        BusyReply::new()
            .with_holder_remaining(turn.saturating_sub(now))
            .with_standing(standing)
            .with_anchor(StoreTime::since_origin(now), FencingToken::new(self.token))
    }

    /// Opens the key, whichever claim holds it and even during a minimum hold, and skips a token
    /// (C22).
    pub(crate) fn force_release(&mut self, now: Duration, entry: ForcedRelease) {
        if now < self.opens_at() {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(entry);
            self.token += 1;
            self.closed_until = now;
            self.end(Ending::ForceReleased);
        }
    }

    /// Ends lease and minimum hold as if their time had passed.
    pub(crate) fn expire(&mut self, now: Duration) {
        self.closed_until = self.closed_until.min(now);
        if let Some(lease) = &mut self.lease {
            lease.expires_at = lease.expires_at.min(now);
        }
    }

    /// Returns what holds the key or keeps it closed; `None` if it is free.
    pub(crate) fn describe(&self, now: Duration, key: &LockKey) -> Option<LockInfo> {
        let remaining = self.opens_at().checked_sub(now).filter(|remaining| !remaining.is_zero())?;
        let lease = self.lease.as_ref().filter(|lease| now < lease.expires_at);
        let info =
            LockInfo::new(key.clone(), lease.map(|lease| lease.id.clone()), FencingToken::new(self.token), remaining)
                .with_waiting(u32::try_from(self.waiting(now).count()).unwrap_or(u32::MAX));
        Some(match lease {
            Some(Lease { holder, .. }) => info.with_holder(
                holder.owner.as_deref().map(str::to_owned),
                holder.metadata.as_deref().cloned().unwrap_or_default(),
            ),
            None => info,
        })
    }

    /// Returns when the key opens. A lease is held while `now < expires_at`, and free from
    /// `expires_at` on.
    fn opens_at(&self) -> Duration {
        self.lease.as_ref().map_or(self.closed_until, |lease| lease.expires_at.max(self.closed_until))
    }

    /// Returns when a claim may take the lease that must wait `later` after it has become free.
    fn turn(&self, later: Duration) -> Duration {
        self.opens_at().saturating_add(later)
    }

    fn held_by(&mut self, now: Duration, claim: &Claim) -> Option<&mut Lease> {
        self.lease.as_mut().filter(|lease| lease.id == *claim.id() && now < lease.expires_at)
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

    fn end(&mut self, ending: Ending) {
        if let Some(lease) = self.lease.take() {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back((lease.id, ending));
        }
    }
}

#[cfg(test)]
mod tests;

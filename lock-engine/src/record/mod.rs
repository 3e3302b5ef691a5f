//! The record of one key as a value, and what a request does to it: no clock, no lock, no I/O.
//!
//! A store that can load a value and save it in one atomic step needs nothing else:
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::Mutex;
//! use std::time::Instant;
//!
//! use distlock_api::LockKey;
//! use distlock_engine::record::{Record, Request};
//!
//! struct Records {
//!     of_keys: Mutex<HashMap<LockKey, Record>>,
//!     origin: Instant,
//! }
//!
//! impl Records {
//!     fn answer<R: Request>(&self, request: &R) -> R::Answer {
//!         let mut of_keys = self.of_keys.lock().unwrap();
//!         of_keys.entry(request.key().clone()).or_default().step(request, self.origin.elapsed())
//!     }
//! }
//! ```
//!
//! With the feature `serde` a record is serializable, so it can be a column of a table or a file.

mod holders;
mod queue;
mod request;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use distlock_api::{AcquisitionId, FencingToken, ForcedRelease, Holder, LockInfo, LockKey, Loss, Mode, ReleaseOutcome};

use self::holders::{Holders, Lease};
use self::queue::{Queue, Waiter};
pub use self::request::{Change, ForceRelease};
use crate::store::{
    Attempt, BusyReply, Claim, QueueStanding, Release, Renewal, RenewalSubject, Reply, Standing, StoreTime, Ticket,
};

/// How many ended leases a record remembers, so that a repeated release gets the answer of the
/// first one (C10).
const REMEMBERED: usize = 64;
/// How many releases by force a record remembers.
const HISTORY: usize = 5;

/// The record of one key: its holders, its queue, its last token, its minimum hold, and what was
/// released of late.
///
/// Every `now` is a reading of the store's clock, as the time since an origin of the store's
/// choice. Each is taken in the atomic step that loads the record and saves it.
///
/// A record is kept as long as its key may be used: its token must grow ([C5]). To remove one, keep
/// its [`token`](Self::token), and begin the next record of the key [above](Self::above) it.
///
/// [C5]: distlock_api::contract#c5
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Record {
    /// The last token granted, or skipped by a force-release.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "holders::plausible_token"))]
    token: u64,
    holders: Holders,
    /// The end of a minimum hold (C25) of an exclusive lease, or when the last lease was given up,
    /// taken away or dropped. Without a lease, the key is free from then on.
    closed_until: Duration,
    queue: Queue,
    ended: VecDeque<(AcquisitionId, Ending)>,
    history: VecDeque<Forced>,
    /// What the last step has changed.
    #[cfg_attr(feature = "serde", serde(skip))]
    changes: Vec<Change>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Ending {
    Released,
    ForceReleased,
}

/// A release by force, as [`ForcedRelease`] describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Forced {
    id: Option<AcquisitionId>,
    owner: Option<String>,
    token: FencingToken,
    at: SystemTime,
    reason: String,
}

/// A request that a record answers: an [`Attempt`], a [`Renewal`], a [`Release`] or a
/// [`ForceRelease`]. A withdrawal is a release without a minimum hold.
pub trait Request: private::Sealed {
    /// The answer of the store.
    type Answer;

    /// Returns the key.
    fn key(&self) -> &LockKey;

    /// Answers the request, for [`Record::step`].
    fn apply(&self, record: &mut Record, now: Duration) -> Self::Answer;
}

mod private {
    /// Other crates add no requests.
    pub trait Sealed {}
    impl Sealed for super::Attempt {}
    impl Sealed for super::Renewal {}
    impl Sealed for super::Release {}
    impl Sealed for super::ForceRelease {}
}

impl Request for Attempt {
    type Answer = Reply;

    fn key(&self) -> &LockKey {
        self.claim.key()
    }

    fn apply(&self, record: &mut Record, now: Duration) -> Reply {
        record.try_acquire(now, self)
    }
}

impl Request for Renewal {
    type Answer = Standing;

    fn key(&self) -> &LockKey {
        self.claim.key()
    }

    fn apply(&self, record: &mut Record, now: Duration) -> Standing {
        record.renew(now, self)
    }
}

impl Request for Release {
    type Answer = ReleaseOutcome;

    fn key(&self) -> &LockKey {
        self.claim.key()
    }

    fn apply(&self, record: &mut Record, now: Duration) -> ReleaseOutcome {
        record.release(now, self, true)
    }
}

impl Request for ForceRelease {
    /// What held the key or kept it closed; `None` if nothing was taken away.
    type Answer = Option<LockInfo>;

    fn key(&self) -> &LockKey {
        &self.key
    }

    fn apply(&self, record: &mut Record, now: Duration) -> Option<LockInfo> {
        record.force_release(now, self)
    }
}

impl Record {
    /// Creates the record of a key whose tokens start above `token`: the highest one of any record
    /// that was removed ([C5]).
    ///
    /// # Panics
    /// If the token is above `i64::MAX`.
    ///
    /// [C5]: distlock_api::contract#c5
    #[must_use]
    pub fn above(token: u64) -> Self {
        assert!(holders::is_plausible(token), "{token} is the token of a foreign hand: they end at {}", i64::MAX);
        Self { token, ..Self::default() }
    }

    /// Answers a request, and changes the record accordingly. **This is the meaning of a request**:
    /// [`LeaseStore`](crate::LeaseStore) describes it in words, and each store gives the same
    /// answers. The conformance suite compares them, in the check
    /// `C1_exclusion::store_answers_as_the_record`.
    ///
    /// A store may differ in:
    /// * The tokens, which may be higher than those of the record. Their order is the same.
    /// * What a [`BusyReply`] or a [`Loss`] contains beyond the position in the queue, which is
    ///   optional.
    /// * How many releases and forced releases are remembered; [`LeaseStore::release`] names a
    ///   minimum.
    ///
    /// [`LeaseStore::release`]: crate::LeaseStore::release
    pub fn step<R: Request>(&mut self, request: &R, now: Duration) -> R::Answer {
        self.changes.clear();
        request.apply(self, now)
    }

    /// Answers a release as a store without a queue does: no waiter is granted the key. The tickets
    /// stay.
    pub fn release_to_none(&mut self, release: &Release, now: Duration) -> ReleaseOutcome {
        self.changes.clear();
        self.release(now, release, false)
    }

    /// Returns what the last step has changed, for events. Each change is returned once.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the last token that was granted, or skipped by a release by force.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the acquisitions that have a lease, expired or not.
    pub fn lease_ids(&self) -> impl Iterator<Item = &AcquisitionId> {
        self.holders.ids()
    }

    /// Returns the last releases by force, the oldest first.
    pub fn history(&self) -> impl Iterator<Item = ForcedRelease> {
        self.history
            .iter()
            .cloned()
            .map(|Forced { id, owner, token, at, reason }| ForcedRelease::new(id, owner, token, at, reason))
    }

    /// Returns the waiters, in the order of the queue.
    pub fn waiting(&self, now: Duration) -> impl Iterator<Item = &AcquisitionId> {
        self.queue.live(now)
    }

    /// Drops all tickets, as if none had been refreshed in time. For tests.
    pub fn drop_tickets(&mut self) {
        self.queue.drop_all();
    }

    /// Ends leases and minimum hold as if their time had passed. For tests.
    pub fn expire(&mut self, now: Duration) {
        self.closed_until = self.closed_until.min(now);
        self.holders.expire(now);
    }

    /// Returns what holds the key or keeps it closed; `None` if it is free.
    #[must_use]
    pub fn describe(&self, key: &LockKey, now: Duration) -> Option<LockInfo> {
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
}

/// The transitions.
impl Record {
    /// R8: every waiter takes a free key at its position, newcomers behind the waiters. Beside
    /// holders, only the first in the queue has its turn, if its mode fits (C28).
    fn try_acquire(&mut self, now: Duration, attempt: &Attempt) -> Reply {
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
        let start = self.start(now, attempt.ttl, (id.clone(), mode), tokens, holder, false);
        Reply::Granted(start.grant(now))
    }

    /// Extends a lease, never revives it (C12): an expired lease stays expired even while no claim
    /// has taken the key. The other holders are not affected (C29).
    fn renew(&mut self, now: Duration, renewal: &Renewal) -> Standing {
        match renewal.subject {
            RenewalSubject::Lease { token, ttl } => match self.holders.held_by(now, renewal.claim.id()) {
                Some(lease) if lease.last_token() == token.get() => {
                    lease.expires_at = lease.expires_at.max(now.saturating_add(ttl));
                    Standing::Held { remaining: lease.expires_at - now }
                }
                _ => Standing::Gone(self.loss_of(renewal.claim.id())),
            },
            RenewalSubject::Ticket(ticket) => self.refresh(now, &renewal.claim, ticket),
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
    fn release(&mut self, now: Duration, release: &Release, hands_over: bool) -> ReleaseOutcome {
        let id = release.claim.id();
        self.queue.remove(id);
        let ended = self.end_lease(now, release);
        // R13: no claim is granted before the end of a minimum hold.
        let may_grant = (ended || !self.holders.is_free(now)) && now >= self.closed_until;
        let granted = hands_over && may_grant && self.grant_waiters(now);
        // Beside holders, waiters with a ticket need no event: the release would have granted.
        let may_be_free = self.holders.is_free(now) || self.queue.live(now).next().is_none() || !hands_over;
        if ended && !granted && may_be_free {
            self.changes.push(Change::Freed);
        }
        match self.ending(id) {
            Some(Ending::Released) => ReleaseOutcome::Released,
            _ => ReleaseOutcome::AlreadyLost,
        }
    }

    /// Ends the claim's lease, if it has one. With a minimum hold the key stays closed, or, if it
    /// may be held together with others, the lease stays without its claim (C25).
    fn end_lease(&mut self, now: Duration, release: &Release) -> bool {
        let Some(lease) = self.holders.held_by(now, release.claim.id()) else { return false };
        let hold = release.hold_at_least.map_or(now, |hold| lease.granted_at.saturating_add(hold)).max(now);
        let kept = Lease { expires_at: hold, released: true, ..lease.clone() };
        self.holders.remove(release.claim.id());
        if hold > now && !kept.mode.is_exclusive() {
            // Behind the claims that hold the key.
            self.holders.add(kept);
        } else {
            self.closed_until = hold;
        }
        self.remember(release.claim.id().clone(), Ending::Released);
        self.changes.push(Change::Released { id: release.claim.id().clone() });
        true
    }

    /// Returns whether a waiter was granted the key.
    fn grant_waiters(&mut self, now: Duration) -> bool {
        self.queue.drop_expired(now);
        self.drop_expired(now);
        let mut granted = false;
        while let Some(head) = self.queue.take_head_if(|head| self.holders.admit(now, head.mode)) {
            let Waiter { id, mode, ticket, tokens, holder, .. } = head;
            self.start(now, ticket.claim_ttl, (id, mode), tokens, holder, true);
            granted = true;
        }
        granted
    }

    fn start(
        &mut self,
        now: Duration,
        ttl: Duration,
        (id, mode): (AcquisitionId, Mode),
        tokens: NonZeroU32,
        holder: Holder,
        handed_over: bool,
    ) -> &Lease {
        let (first_token, expires_at) = (self.token + 1, now.saturating_add(ttl));
        let lease = Lease { id, mode, first_token, tokens, granted_at: now, expires_at, holder, released: false };
        self.token = lease.last_token();
        self.changes.push(Change::Granted {
            id: lease.id.clone(),
            mode,
            holder: lease.holder.clone(),
            grant: lease.grant(now),
            expires_at: StoreTime::since_origin(expires_at),
            handed_over,
        });
        self.holders.add(lease)
    }

    fn busy_reply(&self, now: Duration, turn: Duration, standing: QueueStanding) -> BusyReply {
        BusyReply::new()
            .with_holder_remaining(turn.saturating_sub(now))
            .with_standing(standing)
            .with_anchor(StoreTime::since_origin(now), FencingToken::new(self.token))
    }

    /// Opens the key, whichever claims hold it and even during a minimum hold, and skips a token
    /// (C22). With `holder`, takes the lease of this acquisition alone away. The history gets an
    /// entry for each lease that was lost.
    fn force_release(&mut self, now: Duration, request: &ForceRelease) -> Option<LockInfo> {
        let before = self.describe(&request.key, now)?;
        let is_victim = |lease: &&Lease| request.holder.as_ref().is_none_or(|only| lease.id == *only);
        let victims: Vec<_> = self
            .holders
            .live(now)
            .filter(is_victim)
            .map(|lease| (lease.id.clone(), lease.holder.owner.clone(), lease.released))
            .collect();
        if victims.is_empty() && request.holder.is_some() {
            return None;
        }
        self.token += 1;
        self.closed_until = now;
        let (token, at, reason) = (before.token, request.at, request.reason.clone());
        let forced = |id, owner| Forced { id, owner, token, at, reason: reason.clone() };
        if victims.is_empty() {
            self.note_in_history(forced(before.id.clone(), before.owner.clone()));
        }
        for (id, owner, was_released) in victims {
            self.note_in_history(forced(Some(id.clone()), owner.as_deref().map(str::to_owned)));
            self.holders.remove(&id);
            // C10: a repeated release of a lease that was kept gets the answer of the first one.
            if !was_released {
                self.remember(id.clone(), Ending::ForceReleased);
            }
            self.changes.push(Change::ForceReleased { id, token: FencingToken::new(self.token) });
        }
        self.changes.push(Change::Freed);
        Some(before)
    }

    fn note_in_history(&mut self, entry: Forced) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(entry);
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
        let expired = self.holders.drop_expired(now).into_iter();
        self.changes.extend(expired.map(|id| Change::Expired { id }));
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

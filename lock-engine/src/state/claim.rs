//! What is known of a claim that is pending, and of its ticket in the store's queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store::{BusyReply, Claim, Grant, QueueStanding, Reply, Standing, StoreTime, Ticket};
use distlock_api::{FencingToken, Result};

use crate::state::reading_pause::{Bounds, QueueProgress, TurnTimes};
use crate::state::schedule::{HomeId, Pacing};
use crate::state::time::Now;

/// A claim without a lease yet: what the store has reported about it, and its ticket.
#[derive(Default)]
pub(crate) struct PendingClaim {
    /// The key's token after a lease of the claim was lost, if the store pushed the loss before its
    /// answer.
    lost: Option<FencingToken>,
    pushed: Option<PushedGrant>,
    refreshed: Option<RefreshAnswer>,
    /// Whether events may have been missed: an answer in transit may be out of date.
    missed: bool,
    wake: Arc<Notify>,
    ticket: Option<(QueuedTicket, Pacing)>,
    progress: Option<QueueProgress>,
    /// From when the caller needs events; `None` while it does not wait for any.
    needs_events: Option<Instant>,
}

/// What the store may have of a claim, by the answers to its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimPhase {
    /// Nothing: no attempt has been made.
    New,
    /// An attempt has been made. If `unknown`, the store may have granted the claim a lease.
    Sent { unknown: bool },
    /// A ticket in the queue.
    Queued,
    /// Nothing that would have to be withdrawn: a guard has the lease, or the claim is given up.
    Settled,
}

impl ClaimPhase {
    /// An attempt is sent now.
    pub(crate) fn sent(&mut self) {
        if *self == Self::New {
            *self = Self::Sent { unknown: false };
        }
    }

    /// Records the answer to an attempt. "Busy" also resolves the earlier attempts of the claim.
    pub(crate) fn answered(&mut self, answer: &Result<Reply>) {
        match answer {
            Ok(Reply::Granted(_)) => *self = Self::Sent { unknown: true },
            Ok(Reply::Busy(BusyReply { standing: QueueStanding::Queued { .. }, .. })) => *self = Self::Queued,
            Ok(Reply::Busy(_)) => *self = Self::Sent { unknown: false },
            Err(error) if error.is_outcome_unknown() => *self = Self::Sent { unknown: true },
            Err(_) => {}
        }
    }

    /// Records how the last call of a claim has ended whose caller has left; `None` without an
    /// answer. An earlier one may still take effect.
    pub(crate) fn ended(&mut self, answer: Option<&Result<Reply>>) {
        if self.is_left_behind() {
            return;
        }
        match answer {
            Some(answer) => self.answered(answer),
            None => *self = Self::Sent { unknown: true },
        }
    }

    /// Returns whether the store may have granted the claim a lease.
    pub(crate) fn may_hold_lease(self) -> bool {
        self == Self::Sent { unknown: true }
    }

    /// Returns whether the claim is withdrawn when it is given up.
    pub(crate) fn is_left_behind(self) -> bool {
        self.may_hold_lease() || self == Self::Queued
    }
}

/// The ticket of a waiting claim, which a keeper refreshes.
#[derive(Clone, Debug)]
pub(crate) struct QueuedTicket {
    pub(crate) claim: Claim,
    pub(crate) ticket: Ticket,
    /// The runtime whose keeper refreshes it.
    pub(crate) home: HomeId,
    /// When the caller leaves the queue.
    pub(crate) leaves: Option<Instant>,
}

/// A grant that the store has pushed.
#[derive(Clone, Debug)]
pub(crate) struct PushedGrant {
    pub(crate) grant: Grant,
    pub(crate) expires_at: StoreTime,
}

/// The store's answer to the refresh of a ticket.
#[derive(Debug)]
pub(crate) struct RefreshAnswer {
    pub(crate) sent: Instant,
    pub(crate) standing: Standing,
}

/// What the store has reported about a claim since its caller looked last.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    pub(crate) lost: bool,
    pub(crate) missed: bool,
    pub(crate) pushed: Option<PushedGrant>,
    pub(crate) refreshed: Option<RefreshAnswer>,
}

/// An answer of "busy", from which the deadline of a later grant is counted (rule R18 of
/// distlock-mongo's PROTOCOL). It does not age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    sent: Instant,
    now: StoreTime,
    token: FencingToken,
}

/// Waiters with at most this many tickets ahead refresh within one claim window.
const NEAR_THE_HEAD: u32 = 8;

impl QueuedTicket {
    /// Returns how often the ticket is refreshed. The first in the queue thereby learns that the
    /// holder is alive. The next eight learn that a waiter ahead of them was granted the lease: if
    /// that waiter is dead, its claim is short.
    pub(crate) fn cadence(&self, ahead: u32) -> Duration {
        let rarely = self.ticket.ttl / 3;
        if (1..=NEAR_THE_HEAD).contains(&ahead) { rarely.min(self.ticket.claim_ttl) } else { rarely }
    }

    /// Returns how long to wait for the answer to a refresh before it is sent again.
    pub(crate) fn retry_after(&self) -> Duration {
        (self.ticket.ttl / 9).max(Duration::from_millis(10))
    }
}

impl RefreshAnswer {
    /// Returns the number of tickets ahead; `None` if the ticket is gone.
    pub(crate) fn ahead(&self) -> Option<u32> {
        match &self.standing {
            Standing::Waiting(busy) => Some(tickets_ahead(busy).unwrap_or(0)),
            Standing::Held { .. } | Standing::Gone(_) => None,
        }
    }
}

/// Returns the number of tickets ahead, if the claim is queued.
pub(crate) fn tickets_ahead(reply: &BusyReply) -> Option<u32> {
    match reply.standing {
        QueueStanding::Queued { ahead } => Some(ahead),
        QueueStanding::NotQueued | QueueStanding::Full => None,
    }
}

impl Anchor {
    pub(crate) fn new(sent: Instant, busy: &BusyReply) -> Option<Self> {
        Some(Self { sent, now: busy.now?, token: busy.token? })
    }

    /// Returns the expiry of a lease that was handed over, before the margin is subtracted. `None`
    /// if the grant is older than the anchor's answer.
    pub(crate) fn end_of(&self, pushed: &PushedGrant, now: &Now) -> Option<Instant> {
        let left = pushed.expires_at.saturating_since(self.now);
        let end = self.sent.checked_add(left).filter(|_| pushed.grant.token > self.token)?;
        Some(now.awake_until(self.sent, end))
    }
}

/// After a change, the code that made it wakes the claim's caller, outside of all locks.
impl PendingClaim {
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Returns whether a lease with this last token was lost.
    pub(crate) fn has_lost(&self, last_token: FencingToken) -> bool {
        self.lost.is_some_and(|lost| lost > last_token)
    }

    pub(crate) fn has_missed(&self) -> bool {
        self.missed
    }

    pub(crate) fn lease_lost(&mut self, token: FencingToken) {
        self.lost = self.lost.max(Some(token));
    }

    pub(crate) fn grant_pushed(&mut self, pushed: PushedGrant) {
        // Events of one claim come in order; a repeated one changes nothing.
        self.pushed = Some(pushed);
        self.needs_events = None;
    }

    pub(crate) fn refresh_answered(&mut self, answer: RefreshAnswer) {
        self.refreshed = Some(answer);
    }

    pub(crate) fn events_missed(&mut self) {
        self.missed = true;
    }

    pub(crate) fn take_updates(&mut self) -> Updates {
        let missed = std::mem::take(&mut self.missed);
        Updates { lost: self.lost.is_some(), missed, pushed: self.pushed.take(), refreshed: self.refreshed.take() }
    }

    pub(crate) fn add_ticket(&mut self, queued: QueuedTicket, now: Instant) {
        let pacing = self.ticket.take().map_or_else(|| Pacing::new(now), |(_, pacing)| pacing);
        self.ticket = Some((queued, pacing));
    }

    /// Records that the caller waits. With a ticket it may pause first, without one it needs events
    /// now.
    pub(crate) fn waits(&mut self, now: Instant) {
        let pauses_until = self.progress.as_ref().filter(|_| self.has_ticket()).map(QueueProgress::pauses_until);
        self.needs_events = Some(pauses_until.unwrap_or(now));
    }

    pub(crate) fn needs_events(&self) -> Option<Instant> {
        self.needs_events
    }

    /// Takes the progress in the queue, because the wait is over.
    pub(crate) fn take_progress(&mut self) -> Option<QueueProgress> {
        self.progress.take()
    }

    /// Records how many tickets are ahead, by an answer that was requested at `sent`. Only a waiter
    /// for an exclusive lease pauses, because many readers may be granted in one turn.
    pub(crate) fn advanced(&mut self, times: &mut TurnTimes, sent: Instant, ahead: u32) {
        let Some((queued, _)) = self.ticket.as_ref().filter(|(queued, _)| queued.claim.mode().is_exclusive()) else {
            return;
        };
        let new = || QueueProgress::new(queued.claim.key().clone(), sent, ahead);
        let bounds = Bounds { claim: queued.ticket.claim_ttl, leaves: queued.leaves };
        times.advanced(self.progress.get_or_insert_with(new), (sent, ahead), bounds);
    }

    /// Removes the ticket. Call this only after it has left its schedule.
    pub(crate) fn remove_ticket(&mut self) {
        self.ticket = None;
    }

    pub(crate) fn has_ticket(&self) -> bool {
        self.ticket.is_some()
    }

    /// Returns whether the keeper of another runtime refreshes the claim's ticket.
    pub(crate) fn has_ticket_elsewhere(&self, home: HomeId) -> bool {
        self.ticket.as_ref().is_some_and(|(queued, _)| queued.home != home)
    }

    pub(crate) fn ticket_mut(&mut self) -> Option<(&QueuedTicket, &mut Pacing)> {
        self.ticket.as_mut().map(|(queued, pacing)| (&*queued, pacing))
    }

    pub(crate) fn ticket(&self) -> Option<(&QueuedTicket, &Pacing)> {
        self.ticket.as_ref().map(|(queued, pacing)| (queued, pacing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ProviderId;
    use crate::test_kit::ms;
    use distlock_api::LockKey;

    fn at(millis: u64) -> StoreTime {
        StoreTime::since_origin(ms(millis))
    }

    fn pushed(token: u64, expires_at: u64) -> PushedGrant {
        PushedGrant { grant: Grant::new(FencingToken::new(token), ms(0)), expires_at: at(expires_at) }
    }

    #[tokio::test(start_paused = true)]
    async fn r18_the_deadline_counts_from_the_sending_of_an_answer_older_than_the_grant() {
        let sent = Instant::now();
        let busy = BusyReply::new().with_anchor(at(5000), FencingToken::new(7));
        let (anchor, now) = (Anchor::new(sent, &busy).unwrap(), Now::from(sent));
        assert_eq!(anchor.end_of(&pushed(8, 65_000), &now), Some(sent + ms(60_000)), "an anchor does not age");
        assert_eq!(anchor.end_of(&pushed(7, 65_000), &now), None, "an older grant of the same id");
        assert_eq!(anchor.end_of(&pushed(8, 4000), &now), Some(sent), "a release that stalled carries an older clock");
        assert!(Anchor::new(sent, &BusyReply::new()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn c15_those_behind_the_head_look_once_per_claim_window() {
        let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
        let queued = QueuedTicket {
            claim,
            ticket: Ticket::new(ms(15_000), ms(1100), 64),
            home: tokio::runtime::Handle::current().id(),
            leaves: None,
        };
        assert_eq!([0, 1, 8, 9].map(|ahead| queued.cadence(ahead)), [ms(5000), ms(1100), ms(1100), ms(5000)]);
    }
}

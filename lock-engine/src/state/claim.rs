//! What is known of a claim that asks, and of its place in the store's queue. Pure.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store::{BusyReply, Claim, Grant, QueueStanding, Standing, StoreTime, Ticket};
use distlock_api::FencingToken;

use crate::state::schedule::{Beat, HomeId};
use crate::state::time::Now;

/// A claim that asks, or waits in the queue: its mailbox, and its ticket.
#[derive(Default)]
pub(crate) struct PendingClaim {
    /// The key's token after a lease of the claim was lost, if the store has pushed that before its
    /// answer.
    lost: Option<FencingToken>,
    pushed: Option<Pushed>,
    told: Option<Told>,
    /// Something may have been missed: an answer that is on its way is too old.
    missed: bool,
    wake: Arc<Notify>,
    seat: Option<(Seat, Beat)>,
}

/// A ticket that is refreshed as long as its claim waits.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) claim: Claim,
    pub(crate) ticket: Ticket,
    /// The runtime whose keeper refreshes it.
    pub(crate) home: HomeId,
}

/// A grant that the store has pushed.
#[derive(Clone, Debug)]
pub(crate) struct Pushed {
    pub(crate) grant: Grant,
    pub(crate) expires_at: StoreTime,
}

/// What a refreshed ticket was told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) sent: Instant,
    pub(crate) standing: Standing,
}

/// What has been said about a claim since its caller looked last.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) lost: bool,
    pub(crate) missed: bool,
    pub(crate) pushed: Option<Pushed>,
    pub(crate) told: Option<Told>,
}

/// An answer of "not yet", from which the deadline of a later grant can be counted (R18). It does
/// not age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    sent: Instant,
    now: StoreTime,
    token: FencingToken,
}

/// Waiters with at most so many before them look after themselves in time for the next claim
/// window.
const NEAR_THE_HEAD: u32 = 8;

impl Seat {
    /// How often the ticket is refreshed, and with that the waiter's knowledge: for the first in
    /// the queue that the holder is alive; for those right behind, that a waiter before them has
    /// been granted the lease – it may be dead, and then its claim is short.
    pub(crate) fn cadence(&self, ahead: u32) -> Duration {
        let rarely = self.ticket.ttl / 3;
        if (1..=NEAR_THE_HEAD).contains(&ahead) { rarely.min(self.ticket.claim_ttl) } else { rarely }
    }

    /// How long a refresh is waited for before it is sent again.
    pub(crate) fn patience(&self) -> Duration {
        (self.ticket.ttl / 9).max(Duration::from_millis(10))
    }
}

impl Told {
    /// The tickets ahead; none if there is no ticket any more.
    pub(crate) fn ahead(&self) -> Option<u32> {
        match &self.standing {
            Standing::Waiting(busy) => Some(ahead(busy)),
            Standing::Held { .. } | Standing::Gone(_) => None,
        }
    }
}

pub(crate) fn ahead(busy: &BusyReply) -> u32 {
    match busy.standing {
        QueueStanding::Queued { ahead } => ahead,
        QueueStanding::NotQueued | QueueStanding::Full => 0,
    }
}

impl Anchor {
    pub(crate) fn new(sent: Instant, busy: &BusyReply) -> Option<Self> {
        Some(Self { sent, now: busy.now?, token: busy.token? })
    }

    /// Until when a lease that was handed over is held, the margin not yet taken off; none if it is
    /// an older grant than the answer.
    pub(crate) fn end_of(&self, pushed: &Pushed, now: &Now) -> Option<Instant> {
        let left = pushed.expires_at.saturating_since(self.now);
        let end = self.sent.checked_add(left).filter(|_| pushed.grant.token > self.token)?;
        Some(now.awake_until(self.sent, end))
    }
}

/// Whoever changes one of these wakes its caller afterwards, outside of all locks.
impl PendingClaim {
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Whether a lease with this last token was lost.
    pub(crate) fn has_lost(&self, last_token: FencingToken) -> bool {
        self.lost.is_some_and(|lost| lost > last_token)
    }

    pub(crate) fn has_missed(&self) -> bool {
        self.missed
    }

    pub(crate) fn lose(&mut self, token: FencingToken) {
        self.lost = self.lost.max(Some(token));
    }

    pub(crate) fn push(&mut self, pushed: Pushed) {
        // Events of one claim come in order; a repeated one changes nothing.
        self.pushed = Some(pushed);
    }

    pub(crate) fn tell(&mut self, told: Told) {
        self.told = Some(told);
    }

    pub(crate) fn miss(&mut self) {
        self.missed = true;
    }

    pub(crate) fn news(&mut self) -> News {
        let missed = std::mem::take(&mut self.missed);
        News { lost: self.lost.is_some(), missed, pushed: self.pushed.take(), told: self.told.take() }
    }

    pub(crate) fn sit(&mut self, seat: Seat, now: Instant) {
        let beat = self.seat.take().map_or_else(|| Beat::new(now), |(_, beat)| beat);
        self.seat = Some((seat, beat));
    }

    /// To be called when the ticket is not in a schedule any more.
    pub(crate) fn leave(&mut self) {
        self.seat = None;
    }

    pub(crate) fn is_seated(&self) -> bool {
        self.seat.is_some()
    }

    /// Whether the claim has a seat with the keeper of another runtime than this.
    pub(crate) fn sits_elsewhere(&self, home: HomeId) -> bool {
        self.seat.as_ref().is_some_and(|(seat, _)| seat.home != home)
    }

    pub(crate) fn seat(&mut self) -> Option<(&Seat, &mut Beat)> {
        self.seat.as_mut().map(|(seat, beat)| (&*seat, beat))
    }

    pub(crate) fn seated(&self) -> Option<(&Seat, &Beat)> {
        self.seat.as_ref().map(|(seat, beat)| (seat, beat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ProviderId;
    use distlock_api::LockKey;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> StoreTime {
        StoreTime::since_origin(ms(millis))
    }

    fn pushed(token: u64, expires_at: u64) -> Pushed {
        Pushed { grant: Grant::new(FencingToken::new(token), ms(0)), expires_at: at(expires_at) }
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
        let seat =
            Seat { claim, ticket: Ticket::new(ms(15_000), ms(1100), 64), home: tokio::runtime::Handle::current().id() };
        assert_eq!([0, 1, 8, 9].map(|ahead| seat.cadence(ahead)), [ms(5000), ms(1100), ms(1100), ms(5000)]);
    }
}

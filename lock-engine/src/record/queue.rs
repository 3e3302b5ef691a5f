//! The tickets of one key, in their order. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::store::{Attempt, QueueStanding, Ticket};
use distlock_api::{AcquisitionId, Holder, Mode};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Queue {
    /// The first to be served comes first. Expired tickets are dropped by the next step that uses
    /// the order.
    waiters: Vec<Waiter>,
}

/// A claim that waits, with what its grant will contain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Waiter {
    pub(super) id: AcquisitionId,
    pub(super) mode: Mode,
    /// When the ticket was last refreshed.
    seen: Duration,
    pub(super) ticket: Ticket,
    pub(super) turn_window: Duration,
    pub(super) tokens: NonZeroU32,
    pub(super) holder: Holder,
}

impl Waiter {
    fn new(now: Duration, attempt: &Attempt, ticket: Ticket) -> Self {
        Self {
            id: attempt.claim.id().clone(),
            mode: attempt.claim.mode(),
            seen: now,
            ticket,
            turn_window: attempt.turn_window,
            tokens: attempt.tokens,
            holder: attempt.holder.clone(),
        }
    }

    fn is_live(&self, now: Duration) -> bool {
        now < self.seen.saturating_add(self.ticket.ttl)
    }
}

impl Queue {
    pub(super) fn live(&self, now: Duration) -> impl Iterator<Item = &AcquisitionId> {
        self.waiters.iter().filter(move |waiter| waiter.is_live(now)).map(|waiter| &waiter.id)
    }

    pub(super) fn drop_expired(&mut self, now: Duration) {
        self.waiters.retain(|waiter| waiter.is_live(now));
    }

    pub(super) fn drop_all(&mut self) {
        self.waiters.clear();
    }

    pub(super) fn remove(&mut self, id: &AcquisitionId) {
        self.waiters.retain(|waiter| waiter.id != *id);
    }

    /// Takes the first waiter, if it may be granted the key.
    pub(super) fn take_head_if(&mut self, may: impl FnOnce(&Waiter) -> bool) -> Option<Waiter> {
        self.waiters.first().is_some_and(may).then(|| self.waiters.remove(0))
    }

    /// Returns the number of tickets before the claim's own, or of all if it has none.
    pub(super) fn position(&self, id: &AcquisitionId) -> usize {
        self.waiters.iter().position(|waiter| waiter.id == *id).unwrap_or(self.waiters.len())
    }

    /// Adds the ticket that a refused attempt requests, or refreshes it where it is.
    pub(super) fn enqueue(&mut self, now: Duration, attempt: &Attempt) -> QueueStanding {
        let position = self.position(attempt.claim.id());
        let is_queued = position < self.waiters.len();
        match attempt.ticket {
            Some(ticket) if is_queued => self.waiters[position] = Waiter::new(now, attempt, ticket),
            Some(ticket) if position >= ticket.capacity as usize => return QueueStanding::Full,
            Some(ticket) => self.waiters.push(Waiter::new(now, attempt, ticket)),
            None if is_queued => {}
            None => return QueueStanding::NotQueued,
        }
        queued(position)
    }

    /// Refreshes a ticket that is there. Returns its position, and how much later than the first it
    /// may take a free lease (R15).
    pub(super) fn refresh(
        &mut self,
        now: Duration,
        id: &AcquisitionId,
        ticket: Ticket,
    ) -> Option<(QueueStanding, Duration)> {
        let position = self.position(id);
        let waiter = self.waiters.get_mut(position)?;
        (waiter.seen, waiter.ticket) = (now, ticket);
        Some((queued(position), windows(position, waiter.turn_window)))
    }
}

fn queued(position: usize) -> QueueStanding {
    QueueStanding::Queued { ahead: position.try_into().unwrap_or(u32::MAX) }
}

/// Returns how much later than the first the waiter at this position may take a free lease.
pub(super) fn windows(position: usize, window: Duration) -> Duration {
    window.saturating_mul(position.try_into().unwrap_or(u32::MAX))
}

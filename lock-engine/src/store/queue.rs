//! A queue of waiters at the store.

use std::time::Duration;

use async_trait::async_trait;

use super::Claim;
use distlock_api::Result;

/// A store that keeps tickets, and grants in their order ([C15]). It is a
/// [`LeaseStore`](super::LeaseStore) that returns itself as
/// [`StoreExtras::queue`](super::StoreExtras::queue), and does more in the three requests.
///
/// # Attempts
/// An attempt that is answered busy adds the claim's ticket at the end, or refreshes it where it
/// is. It does so only if [`Attempt::ticket`](super::Attempt::ticket) is set and there is room.
///
/// Tickets that were not refreshed for their own ttl are dropped first. The claim's *position* is
/// the number of tickets before its own, or of all tickets if it has none. Its turn comes position
/// × [`turn_window`](super::Attempt::turn_window) after the lease became free. Before that the
/// answer is busy. So no claim overtakes the queue, and a dead waiter at its head costs the others
/// one window, not a ttl. A key without a record has been free for ever. A grant removes the
/// claim's ticket.
///
/// An attempt without a ticket, by a claim that has one, has the position of that ticket. If it is
/// not granted, the ticket stays as it is: neither refreshed, nor moved, nor removed.
///
/// A ticket keeps what a release needs to grant the lease to it: the attempt's
/// [`tokens`](super::Attempt::tokens) and [`holder`](super::Attempt::holder), and the ticket's
/// [`claim_ttl`](super::Ticket::claim_ttl). It also keeps the attempt's `turn_window`, for the
/// answers to its refreshes.
///
/// # Renewals
/// A ticket is refreshed only if it is there, and never added again: its waiter may have left since
/// the refresh was sent. An expired ticket that was not dropped yet may count as either. If it is
/// there, the answer is [`Standing::Waiting`](super::Standing::Waiting), with the same turn as an
/// attempt would get. A refresh carries no turn window: that of the claim's last attempt with a
/// ticket counts. Otherwise the answer is
/// [`Standing::Gone`](super::Standing::Gone), or [`Standing::Held`](super::Standing::Held) if the
/// claim was granted meanwhile. After either, the engine sends an attempt.
///
/// # Releases
/// A release removes the claim's own ticket. If the claim held the lease, it then grants it to the
/// first live ticket **in the same step** and removes that ticket. The grant has a new token,
/// as many tokens as that ticket's attempt requested, and lasts `claim_ttl` from now. Without a
/// waiter the lease becomes free. So a hand-over is one write, and no other claim can come between.
///
/// [C15]: distlock_api::contract#c15
#[async_trait]
pub trait QueueStore: Send + Sync {
    /// Returns the number of live tickets for the claim's key. The engine queries it while it hands
    /// a lease on within its process, which has no limit only while no other process waits. After
    /// an error the engine assumes that another process waits.
    ///
    /// # Errors
    /// See the *Errors* of [`LeaseStore`](super::LeaseStore).
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32>;
}

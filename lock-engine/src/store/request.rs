//! The requests to a store.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Claim;
use distlock_api::{FencingToken, Holder};

/// The default bound of a request: 5 s.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to take a lease. See [`LeaseStore::try_acquire`](super::LeaseStore::try_acquire).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// The acquisition and its key.
    pub claim: Claim,
    /// The time for which the lease lasts without a renewal; whole milliseconds, at least one.
    pub ttl: Duration,
    /// The lease's safety margin. The guard counts its lease as lost this much before the store's
    /// expiry. So steps of the store's clock must stay below it, and so must the difference between
    /// the clocks of servers that succeed each other. Most stores need not read it. One that bounds
    /// a request by a time of the server's clock adds it, because the server that carries the
    /// request out may have another clock. Defaults to the ttl, which is above every margin.
    pub margin: Duration,
    /// The number of tokens of the grant, exactly; 1 unless the store declares
    /// [`token_blocks`](super::StoreCapabilities::token_blocks). The engine requests up to
    /// 16,777,216 at once, so tokens need 64 bits: a counter of 32 bits overflows after 127 grants.
    pub tokens: NonZeroU32,
    /// The ticket to queue with if the key is busy. `None` if the caller does not wait, or the
    /// store is no [`QueueStore`](super::QueueStore). A ticket that the claim has then stays as it
    /// is.
    pub ticket: Option<Ticket>,
    /// The time by which each further position in the queue may take a free lease later. A ticket
    /// keeps it: the answers to its refreshes count by it. Defaults to [`Attempt::TURN_WINDOW`].
    pub turn_window: Duration,
    /// The holder's owner and metadata, for people; to be stored with the lease.
    pub holder: Holder,
    /// The bound of this call.
    pub timeout: Duration,
}

impl Attempt {
    /// The default [`turn_window`](Self::turn_window): 200 ms.
    pub const TURN_WINDOW: Duration = Duration::from_millis(200);

    /// Creates an attempt for one token, without a ticket.
    #[must_use]
    pub fn new(claim: Claim, ttl: Duration) -> Self {
        Self {
            claim,
            ttl,
            margin: ttl,
            tokens: NonZeroU32::MIN,
            ticket: None,
            turn_window: Self::TURN_WINDOW,
            holder: Holder::default(),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Sets a ticket.
    #[must_use]
    pub fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Sets another window between the positions of the queue.
    #[must_use]
    pub fn with_turn_window(mut self, window: Duration) -> Self {
        self.turn_window = window;
        self
    }

    /// Sets another safety margin.
    #[must_use]
    pub fn with_margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the length of the block of tokens.
    #[must_use]
    pub fn with_tokens(mut self, tokens: NonZeroU32) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the holder's owner and metadata.
    #[must_use]
    pub fn with_holder(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// Sets another bound.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// A position in a store's queue, as an attempt requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Ticket {
    /// A ticket that has not been refreshed for this long is dropped.
    pub ttl: Duration,
    /// The ttl of a lease that a release grants to this waiter, until the waiter's first renewal.
    pub claim_ttl: Duration,
    /// The number of live tickets that the queue may hold; one more is refused with
    /// [`QueueStanding::Full`](super::QueueStanding::Full).
    pub capacity: u32,
}

impl Ticket {
    /// Creates a ticket.
    #[must_use]
    pub const fn new(ttl: Duration, claim_ttl: Duration, capacity: u32) -> Self {
        Self { ttl, claim_ttl, capacity }
    }

    /// Returns how long a ticket that is no longer refreshed, and the lease that a release may
    /// grant to it, last by themselves, if a refresh may take this long.
    pub(crate) const fn lasts(&self, refresh: Duration) -> Duration {
        refresh.saturating_add(self.ttl).saturating_add(self.claim_ttl)
    }
}

/// A request to extend a lease or to refresh a ticket. See
/// [`LeaseStore::renew`](super::LeaseStore::renew).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The acquisition that has the lease or ticket.
    pub claim: Claim,
    /// The lease or ticket.
    pub subject: RenewalSubject,
    /// The bound of this call.
    pub timeout: Duration,
}

/// The subject of a [`Renewal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewalSubject {
    /// A held lease.
    Lease {
        /// The **last** token of the grant's block; a lease with another one is not this one.
        token: FencingToken,
        /// The lease lasts at least this long from now on.
        ttl: Duration,
    },
    /// A ticket in the queue.
    Ticket(Ticket),
}

impl Renewal {
    /// Creates a renewal of a lease.
    #[must_use]
    pub fn lease(claim: Claim, token: FencingToken, ttl: Duration) -> Self {
        Self { claim, subject: RenewalSubject::Lease { token, ttl }, timeout: DEFAULT_TIMEOUT }
    }

    /// Creates a refresh of a ticket. It carries no turn window: the ticket has kept that of its
    /// attempt.
    #[must_use]
    pub fn ticket(claim: Claim, ticket: Ticket) -> Self {
        Self { claim, subject: RenewalSubject::Ticket(ticket), timeout: DEFAULT_TIMEOUT }
    }

    /// Sets another bound.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// A request to give a lease up. See [`LeaseStore::release`](super::LeaseStore::release).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// The acquisition that has the lease.
    pub claim: Claim,
    /// The key stays closed until the lease's start + this.
    pub hold_at_least: Option<Duration>,
    /// The bound of this call.
    pub timeout: Duration,
}

impl Release {
    /// Creates a release without a minimum hold.
    #[must_use]
    pub fn new(claim: Claim) -> Self {
        Self { claim, hold_at_least: None, timeout: DEFAULT_TIMEOUT }
    }

    /// Sets a minimum hold.
    #[must_use]
    pub fn with_hold_at_least(mut self, duration: Duration) -> Self {
        self.hold_at_least = Some(duration);
        self
    }

    /// Sets another bound.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

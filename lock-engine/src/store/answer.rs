//! The answers of a store.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{FencingToken, Loss};

/// The answer to an [`Attempt`](super::Attempt).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The claim holds the lease.
    Granted(Grant),
    /// Another claim does, or it is another claim's turn.
    Busy(BusyReply),
}

/// A granted lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The first token of the block.
    pub token: FencingToken,
    /// The length of the block.
    pub tokens: NonZeroU32,
    /// Expiry minus now, both by the store's clock, both in the granting step.
    pub remaining: Duration,
}

impl Grant {
    /// Creates a grant of one token.
    #[must_use]
    pub const fn new(token: FencingToken, remaining: Duration) -> Self {
        Self { token, tokens: NonZeroU32::MIN, remaining }
    }

    /// Sets the length of the block, which starts with [`token`](Self::token).
    #[must_use]
    pub const fn with_tokens(mut self, tokens: NonZeroU32) -> Self {
        self.tokens = tokens;
        self
    }
}

/// Why an attempt was not granted. All of it is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusyReply {
    /// The time until the claim's turn if the lease is neither renewed nor released, by the store's
    /// clock. It is the time until the key opens, and one turn window for each ticket ahead.
    pub holder_remaining: Option<Duration>,
    /// The state of the ticket.
    pub standing: QueueStanding,
    /// The store's clock in this step. The engine takes a pushed grant without another request, and
    /// counts its deadline from this answer: the instant before the request of this answer, plus
    /// the grant's `expires_at` minus this, minus the margin.
    pub now: Option<StoreTime>,
    /// A token below those of all grants that come after this answer. A pushed grant is believed
    /// only with a greater token. It is the last token of the key. Where a release gives back the
    /// unused tokens of its block, it is the first token of the present block.
    pub token: Option<FencingToken>,
    /// Nothing was decided, because a batch could not: the engine makes the attempt again at once,
    /// by itself. Only in an answer of [`try_acquire_many`](super::BatchStore::try_acquire_many).
    pub undecided: bool,
}

impl BusyReply {
    /// Returns an answer of "busy" without further information.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the answer to an attempt that a batch could not decide.
    #[must_use]
    pub fn undecided() -> Self {
        Self { undecided: true, ..Self::default() }
    }

    /// Sets the time until the key opens at the latest.
    #[must_use]
    pub fn with_holder_remaining(mut self, remaining: Duration) -> Self {
        self.holder_remaining = Some(remaining);
        self
    }

    /// Sets what became of the ticket.
    #[must_use]
    pub fn with_standing(mut self, standing: QueueStanding) -> Self {
        self.standing = standing;
        self
    }

    /// Sets the store's clock and the last granted token.
    #[must_use]
    pub fn with_anchor(mut self, now: StoreTime, token: FencingToken) -> Self {
        self.now = Some(now);
        self.token = Some(token);
        self
    }
}

/// A waiter's position in the store's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueStanding {
    /// Not in the queue: no ticket was requested, or the store has no queue.
    #[default]
    NotQueued,
    /// Waiting, with this many live tickets before it.
    Queued {
        /// Tickets ahead.
        ahead: u32,
    },
    /// The queue has no room.
    Full,
}

/// A reading of the store's clock. Opaque: only the difference of two readings of one store means
/// something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTime(Duration);

impl StoreTime {
    /// Creates a reading, as the time since an origin of the store's choice.
    #[must_use]
    pub const fn since_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Returns how much later this is than the other reading; zero if it is not.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where a claim stands after a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It holds the lease for at least this long, counted from the step by the store's clock.
    Held {
        /// Expiry minus now; a lower bound will do.
        remaining: Duration,
    },
    /// Its ticket is in the queue. The reply is the one that its last attempt would get now.
    Waiting(BusyReply),
    /// It has neither a lease nor a ticket. [`Loss::Gone`], unless the store knows the reason.
    Gone(Loss),
}

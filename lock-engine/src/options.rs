//! What a provider does when many callers want the same key.

use std::time::Duration;

use crate::store::{Attempt, Ticket};
use distlock_api::{LeaseTerms, LockError, Result};

/// The queue in which the waiters of all processes stand, one place per process and key, first
/// come, first served ([C15]).
///
/// For providers whose store keeps one; others poll.
///
/// [C15]: distlock_api::contract#c15
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct QueueOptions {
    pub(crate) capacity: u32,
    pub(crate) when_full: WhenFull,
    pub(crate) ticket_ttl: Duration,
    pub(crate) claim: Duration,
    pub(crate) turn_window: Duration,
}

/// What becomes of a waiter for whom the queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// It asks again and again, without a place, until there is room or the lock is free. The
    /// default.
    #[default]
    Poll,
    /// It hears [`ErrorKind::QueueFull`](distlock_api::ErrorKind::QueueFull) at once.
    Refuse,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            capacity: 64,
            when_full: WhenFull::Poll,
            ticket_ttl: Duration::from_secs(15),
            claim: Duration::from_secs(1),
            turn_window: Attempt::TURN_WINDOW,
        }
    }

    /// How many processes may wait for one key, which bounds the size of its record. At least 1;
    /// defaults to 64.
    pub const fn capacity(mut self, tickets: u32) -> Self {
        self.capacity = tickets;
        self
    }

    /// What becomes of one more. Defaults to [`WhenFull::Poll`].
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// How long the place of a process that is not heard of any more is kept; three times as often
    /// it is refreshed, all keys of a process in one go. Whole milliseconds. Defaults to 15 s, 100
    /// ms at least.
    pub const fn ticket_ttl(mut self, ttl: Duration) -> Self {
        self.ticket_ttl = ttl;
        self
    }

    /// How long a waiter to whom a lease was handed over may take to hear of it, before the next
    /// one gets its chance: what a waiter that died just then costs the others. The lease's safety
    /// margin comes on top. Whole milliseconds. Defaults to 1 s.
    pub const fn claim(mut self, window: Duration) -> Self {
        self.claim = window;
        self
    }

    /// How much later than the one before it each waiter may take a lease that nobody handed over,
    /// because its holder died: long enough for one question. Whole milliseconds. Defaults to 200
    /// ms.
    pub const fn turn_window(mut self, window: Duration) -> Self {
        self.turn_window = window;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let day = Duration::from_secs(86_400);
        if self.capacity == 0 {
            return Err(LockError::invalid_options("a queue without room for anybody"));
        }
        if self.ticket_ttl < Duration::from_millis(100) || self.ticket_ttl > day {
            let message = format!("a ticket ttl of {:?} is not between 100 ms and a day", self.ticket_ttl);
            return Err(LockError::invalid_options(message));
        }
        for (name, window) in [("claim", self.claim), ("turn", self.turn_window)] {
            if window < Duration::from_millis(1) || window > day {
                let message = format!("a {name} window of {window:?} is not between 1 ms and a day");
                return Err(LockError::invalid_options(message));
            }
        }
        Ok(())
    }

    /// The ticket of an acquisition with these terms.
    pub(crate) fn ticket(&self, terms: &LeaseTerms) -> Ticket {
        Ticket::new(self.ticket_ttl, self.claim.saturating_add(terms.margin).min(terms.ttl), self.capacity)
    }
}

/// Handing a lease on within one process, without asking the store: the next waiter gets the next
/// token of a block (R21).
///
/// As long as nobody else has a place in the queue that goes on without end; otherwise until the
/// first of the two limits. Who polls without a place – a provider
/// [without queue](crate::LeaseProviderBuilder::without_queue), or one for whom the queue has no
/// room – is not seen, and can wait long while a process hands on a lease without end. For
/// providers whose store grants tokens in blocks. Nothing is handed on to a caller with other lease
/// terms, another owner or metadata, or on another runtime, nor with a minimum hold or without
/// renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct HandOff {
    pub(crate) max_count: u32,
    pub(crate) max_time: Duration,
}

impl Default for HandOff {
    fn default() -> Self {
        Self::new()
    }
}

impl HandOff {
    /// The defaults.
    pub const fn new() -> Self {
        Self { max_count: 64, max_time: Duration::from_millis(100) }
    }

    /// How often a lease is handed on while another process waits. Defaults to 64.
    pub const fn max_count(mut self, count: u32) -> Self {
        self.max_count = count;
        self
    }

    /// For how long a lease is handed on while another process waits. Defaults to 100 ms.
    pub const fn max_time(mut self, time: Duration) -> Self {
        self.max_time = time;
        self
    }
}

//! Options for keys that many callers want: the queue, and hand-off. Those of an engine are in
//! `options/engine.rs`.

mod engine;

use std::time::Duration;

pub use engine::EngineOptions;

use crate::store::{Attempt, Ticket};
use distlock_api::{LeaseOptions, LeaseTerms, LockError, Result};

/// The queue of the waiters of all processes: one ticket per process and key, first come, first
/// served ([C15]).
///
/// For providers whose store keeps a queue. Other providers poll.
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

/// The action of a waiter that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// It polls without a ticket, until there is room or the lock is free. The default.
    #[default]
    Poll,
    /// It gets [`ErrorKind::QueueFull`](distlock_api::ErrorKind::QueueFull) at once.
    Refuse,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueOptions {
    /// The largest capacity.
    pub const MAX_CAPACITY: u32 = 10_000;

    /// Creates the defaults.
    pub const fn new() -> Self {
        Self {
            capacity: 4_000,
            when_full: WhenFull::Poll,
            ticket_ttl: Duration::from_secs(15),
            claim: Duration::from_secs(1),
            turn_window: Attempt::TURN_WINDOW,
        }
    }

    /// Sets the number of processes that may wait for one key. It bounds the size of the key's
    /// record, by some 165 bytes for each that waits. At least 1, and at most
    /// [`MAX_CAPACITY`](Self::MAX_CAPACITY); defaults to 4,000.
    ///
    /// Others poll without a place, or are [refused](Self::when_full). They are served only when
    /// fewer wait, because the first attempt takes a place that becomes free.
    pub const fn capacity(mut self, tickets: u32) -> Self {
        self.capacity = tickets;
        self
    }

    /// Sets what a further waiter does. Defaults to [`WhenFull::Poll`].
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Sets how long the store keeps a ticket without a refresh. Tickets are refreshed three times
    /// per ttl, all keys of a process together. Whole milliseconds. Defaults to 15 s, 100 ms at
    /// least.
    pub const fn ticket_ttl(mut self, ttl: Duration) -> Self {
        self.ticket_ttl = ttl;
        self
    }

    /// Sets how long a waiter to which a lease was handed over may take to confirm it, before the
    /// next waiter gets its chance. A waiter that died just then costs the others this time. The
    /// lease's safety margin is added. Whole milliseconds. Defaults to 1 s.
    pub const fn claim(mut self, window: Duration) -> Self {
        self.claim = window;
        self
    }

    /// Sets how much later than the waiter before it each waiter may take the lease of a holder
    /// that died. Make it long enough for one request. Whole milliseconds. Defaults to 200 ms.
    pub const fn turn_window(mut self, window: Duration) -> Self {
        self.turn_window = window;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let day = Duration::from_secs(86_400);
        if self.capacity == 0 {
            return Err(LockError::invalid_options("a queue capacity of 0: set at least 1, or use `without_queue`"));
        }
        if self.capacity > Self::MAX_CAPACITY {
            let message =
                format!("a queue capacity of {} is above the largest one, {}", self.capacity, Self::MAX_CAPACITY);
            return Err(LockError::invalid_options(message));
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

    /// Checks the times by the shortest ttl that is of use with the store.
    pub(crate) fn check_times(&self, store: &str, floor: Duration) -> Result<()> {
        let times = [("claim window", self.claim, floor / 10), ("ticket ttl", self.ticket_ttl, floor)];
        match times.into_iter().find(|(_, time, least)| time < least) {
            None => Ok(()),
            Some((name, time, least)) => Err(LockError::invalid_options(format!(
                "a {name} of {time:?} is too short for the store {store}, which may take longer to answer: set at \
                 least {least:?}; a test may lower that with `min_ttl` on the builder of the store"
            ))),
        }
    }

    /// Returns the ticket of an acquisition with these terms.
    pub(crate) fn ticket(&self, terms: &LeaseTerms) -> Ticket {
        Ticket::new(self.ticket_ttl, self.claim.saturating_add(terms.margin).min(terms.ttl), self.capacity)
    }
}

/// Limits of the hand-off (rule R21 of distlock-mongo's PROTOCOL). Within one process a lease
/// passes to the next waiter without a request to the store, with the next token of its block.
///
/// While no other process has a ticket in the queue, the hand-off continues without limit.
/// Otherwise it ends at the first of the two limits.
///
/// A waiter without a ticket is not seen, and can wait long while a process hands a lease on. Such
/// a waiter belongs to a provider [without queue](crate::LeaseProviderBuilder::without_queue), or
/// found the queue full.
///
/// Hand-off needs a store that grants tokens in blocks. A lease is not handed on to a caller with
/// other lease terms, another owner or other metadata, or on another runtime. Nor is a lease with a
/// minimum hold or without renewal handed on.
///
/// With a [`linger`](Self::linger), the process keeps a lease for a moment even if none of its
/// callers waits.
///
/// # Shared locks
/// Readers of one process share one lease: while it is held, the next reader joins it without a
/// request, with the next token of its block. The same limits apply while another process waits,
/// and then readers request leases of their own, behind it in the queue. The process queries for
/// waiters rarely, at most once a second when none waits. So a writer of another process can wait
/// about a second longer than the readers before it. A shared lease is neither handed on nor does
/// it linger. Permits are not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct HandOff {
    pub(crate) max_count: u32,
    pub(crate) max_time: Duration,
    pub(crate) linger: Duration,
}

impl Default for HandOff {
    fn default() -> Self {
        Self::new()
    }
}

impl HandOff {
    /// Creates the defaults.
    pub const fn new() -> Self {
        Self { max_count: 64, max_time: Duration::from_millis(100), linger: Duration::ZERO }
    }

    /// Sets the number of times that a lease is handed on while another process waits. Defaults to
    /// 64.
    pub const fn max_count(mut self, count: u32) -> Self {
        self.max_count = count;
        self
    }

    /// Sets how long a lease is handed on while another process waits. Defaults to 100 ms.
    pub const fn max_time(mut self, time: Duration) -> Self {
        self.max_time = time;
        self
    }

    /// Sets how long the process keeps a lease after a release with no caller waiting, for the next
    /// acquisition of the key. See [`LeaseOptions::linger`](distlock_api::LeaseOptions::linger),
    /// which takes precedence. Defaults to zero, that is, off.
    pub const fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        LeaseOptions::new().linger(self.linger).terms().map(drop)
    }
}

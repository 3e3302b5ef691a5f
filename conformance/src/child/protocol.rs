//! What parent and child say to each other: one JSON value per line.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The job in the environment variable.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) fixture: String,
    pub(super) address: String,
}

/// What the parent asks. The child answers each before it reads the next.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Acquire, wait at most so long (0: one attempt), and keep the guard.
    Acquire { key: String, ttl_ms: u64, renew: bool, wait_ms: u64 },
    /// How is the guard doing?
    Look,
    /// Release the guard.
    Release,
    /// What time is it?
    Clock,
    /// What does the provider account for?
    Accounting,
}

/// What the child answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The first line: connected.
    Ready,
    Granted {
        token: u64,
        remaining_ms: u64,
    },
    Busy,
    Standing {
        lost: bool,
        remaining_ms: u64,
    },
    Released {
        in_time: bool,
    },
    /// Milliseconds since 1970 by the child's wall clock.
    Clock {
        unix_ms: u64,
    },
    /// Whether nothing is held and nobody waits, and the books balance; if not, what they say.
    Accounting {
        idle: bool,
        books: String,
    },
    Failed {
        error: String,
        /// Whether it may have been carried out all the same.
        unknown: bool,
    },
}

/// Why an order was not obeyed: the backend failed in a child.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) error: String,
    /// Whether it may have been carried out all the same.
    pub(crate) unknown: bool,
}

impl Refusal {
    #[track_caller]
    pub(super) fn failure(self) -> Failure {
        Failure::new(format!("a child process says: {}", self.error))
    }
}

//! The protocol between parent and child: one JSON value per line.

use distlock_api::Mode;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The job in the environment variable.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) fixture: String,
    pub(super) address: String,
}

/// A request of the parent. The child answers each before it reads the next.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Acquire, wait for at most `wait_ms` (0: one attempt), and keep the guard.
    Acquire { key: String, mode: Mode, ttl_ms: u64, renew: bool, wait_ms: u64 },
    /// Return the state of the guard.
    GuardState,
    /// Release the guard.
    Release,
    /// Return the wall clock's time.
    Clock,
    /// Return the provider's accounting.
    Accounting,
}

/// An answer of the child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The first line: connected.
    Ready,
    Granted {
        token: u64,
        remaining_ms: u64,
    },
    Busy,
    GuardState {
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
    /// `idle`: no lock is held, no caller waits, and the accounting balances. `accounting` is its
    /// text.
    Accounting {
        idle: bool,
        accounting: String,
    },
    Failed {
        error: String,
        /// Whether the request may have been carried out.
        unknown: bool,
    },
}

/// An error of the backend in a child.
#[derive(Clone, Debug)]
pub(crate) struct ChildError {
    pub(crate) error: String,
    /// Whether the request may have been carried out.
    pub(crate) unknown: bool,
}

impl ChildError {
    #[track_caller]
    pub(super) fn failure(self) -> Failure {
        Failure::new(format!("a child process failed: {}", self.error))
    }
}

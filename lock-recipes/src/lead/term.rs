//! What a task gets, and what a candidate returns.

use distlock_api::{FencingToken, HasFencingToken, LockKey};
use std::fmt;

/// One term of a leader. Its number is the fencing token of its grant ([L2]).
///
/// Pass it to every write, so that the resource can refuse a leader that was paused beyond its
/// lease. It is accepted wherever a guard's token is, through [`HasFencingToken`].
///
/// [L2]: crate::contract#l2
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    key: LockKey,
    token: FencingToken,
}

impl Term {
    pub(super) fn new(key: LockKey, token: FencingToken) -> Self {
        Self { key, token }
    }

    /// Returns the key of the leadership.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Returns the fencing token, which is the number of the term.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }
}

impl HasFencingToken for Term {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

/// Writes the number alone.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.token, f)
    }
}

/// How a candidate ended without an error. Returned by [`Lead::run`](super::Lead::run).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Stopped` means that the task has not finished"]
pub enum Led<T> {
    /// The task has finished with this value, and the candidate has resigned.
    Finished(T),
    /// The future of [`until`](super::Lead::until) has resolved. If the candidate was leading, the
    /// task was dropped, and the candidate has resigned.
    Stopped,
}

impl<T> Led<T> {
    /// Returns the value of a task that has finished.
    #[must_use]
    pub fn finished(self) -> Option<T> {
        match self {
            Self::Finished(value) => Some(value),
            Self::Stopped => None,
        }
    }
}

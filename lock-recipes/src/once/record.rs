//! What is known of a key.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use distlock_api::FencingToken;

use super::Fingerprint;

/// One run of the work of a key: which holder began it, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnceRun {
    /// The token of the run's lease.
    pub token: FencingToken,
    /// The name of the holder, for people.
    pub owner: Option<Arc<str>>,
    /// When it began, by the clock of the store.
    pub since: SystemTime,
}

impl OnceRun {
    /// Makes a run. For backends.
    #[must_use]
    pub fn new(token: FencingToken, owner: Option<Arc<str>>, since: SystemTime) -> Self {
        Self { token, owner, since }
    }
}

/// The remembered outcome of a key's work. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    value: Arc<[u8]>,
    run: OnceRun,
    at: SystemTime,
}

impl Outcome {
    /// Makes an outcome. For backends.
    #[must_use]
    pub fn new(value: Arc<[u8]>, run: OnceRun, at: SystemTime) -> Self {
        Self { value, run, at }
    }

    /// Returns the remembered value, as it was given to
    /// [`complete`](super::OnceGuard::complete).
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the run that was completed.
    #[must_use]
    pub fn run(&self) -> &OnceRun {
        &self.run
    }

    /// Returns when the run was completed, by the clock of the store.
    #[must_use]
    pub fn at(&self) -> SystemTime {
        self.at
    }
}

/// Without the value, which may be confidential.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("bytes", &self.value.len())
            .field("run", &self.run)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// The state of a key's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnceState {
    /// Never begun, discarded, or forgotten.
    #[default]
    New,
    /// A holder works, and its lease has not ended.
    UnderWay(OnceRun),
    /// Completed, and still remembered.
    Done(Outcome),
    /// Begun, and neither completed nor discarded: the holder died, dropped its guard, or lost its
    /// lease.
    Interrupted(OnceRun),
}

/// What is known of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnceRecord {
    /// The state of the work.
    pub state: OnceState,
    /// The fingerprint of the request that began it, if it had one.
    pub fingerprint: Option<Fingerprint>,
}

impl OnceRecord {
    /// Makes a record. For backends.
    #[must_use]
    pub fn new(state: OnceState, fingerprint: Option<Fingerprint>) -> Self {
        Self { state, fingerprint }
    }
}

//! Why a check failed.

use std::fmt;
use std::future::Future;
use std::panic::Location;

use crate::history::Call;

/// Why a check failed, and which line of the suite found it.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    location: &'static Location<'static>,
    calls: Vec<Call>,
    excuse: Option<Excuse>,
}

/// Why a correct store may fail a check once, so that the check is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// The promise holds only where the store answers in time.
    Slow,
    /// A stream of events had a gap. A store may report one at any time, for example because the
    /// checks beside this one cause more events than it keeps for a watcher.
    Gap,
}

/// Whether a failure is a verdict on the promise, or prevented one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The check observed that the promise is broken.
    Verdict,
    /// The event that the message names did not happen within a generous bound. For a promise that
    /// something happens, this is the verdict.
    Overdue,
    /// The backend answered with an error where the check does not expect one.
    Error,
    /// The fixture failed, or does not fit what its profile declares.
    Fixture,
    /// The check itself failed.
    Check,
    /// The check panicked, or a task of it did.
    Panic,
    /// The check did not end, and it is unknown what it waited for.
    Limit,
}

impl FailureKind {
    /// Whether the promise was judged. The other kinds report a problem that prevented this.
    #[must_use]
    pub const fn is_judgement(self) -> bool {
        matches!(self, Self::Verdict | Self::Overdue)
    }
}

/// Any error of a fixture. Strings convert into it: `Err("no server".into())`.
pub type FixtureError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The result of a check.
pub(crate) type Verdict = Result<(), Failure>;

impl Failure {
    #[track_caller]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::of(FailureKind::Verdict, message)
    }

    #[track_caller]
    pub(crate) fn of(kind: FailureKind, message: impl Into<String>) -> Self {
        let (message, location) = (message.into(), Location::caller());
        Self { kind, message, location, calls: Vec::new(), excuse: None }
    }

    /// Makes a failure from a gap in a stream of events.
    #[track_caller]
    pub(crate) fn of_gap() -> Self {
        Self { excuse: Some(Excuse::Gap), ..Self::new("the stream reported a gap, in each of several tries") }
    }

    pub(crate) fn excuse(&self) -> Option<Excuse> {
        self.excuse
    }

    /// Makes a failure from a task of the check that panicked or was cancelled.
    #[track_caller]
    pub(crate) fn of_task(what: &str, error: &tokio::task::JoinError) -> Self {
        Self::of(FailureKind::Panic, format!("{what} ended: {error}"))
    }

    /// Marks a failure that a correct store may cause if it answers too late for the lease of the
    /// check, such as the loss of a lease that is renewed. If that was so, the check is repeated
    /// with a longer one.
    pub(crate) fn if_in_time(mut self) -> Self {
        self.excuse = Some(Excuse::Slow);
        self
    }

    /// Returns whether the failure is a verdict on the promise.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Replaces the message.
    pub(crate) fn reworded(mut self, words: impl FnOnce(&str) -> String) -> Self {
        self.message = words(&self.message);
        self
    }

    /// Makes the failure a verdict, where the promise is that nothing fails.
    pub(crate) fn judged(mut self) -> Self {
        self.kind = FailureKind::Verdict;
        self
    }

    /// Returns what was expected and what was seen.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the calls that show the failure: which client held which lock when. Empty if no
    /// history was judged.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Returns the line of the suite, as `file:line`.
    #[must_use]
    pub fn location(&self) -> String {
        format!("{}:{}", self.location.file(), self.location.line())
    }

    pub(crate) fn shown_by(mut self, calls: Vec<Call>) -> Self {
        self.calls = calls;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.location())
    }
}

impl From<distlock_api::LockError> for Failure {
    #[track_caller]
    fn from(error: distlock_api::LockError) -> Self {
        Self::of(FailureKind::Error, format!("unexpected error of kind {:?}: {}", error.kind(), chain(&error)))
    }
}

impl From<FixtureError> for Failure {
    #[track_caller]
    fn from(error: FixtureError) -> Self {
        Self::of(FailureKind::Fixture, format!("the fixture failed: {}", chain(&*error)))
    }
}

impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::of(FailureKind::Check, format!("the check itself failed: {error}"))
    }
}

/// Runs a helper's work so that its failures name the line that called the helper. If helpers call
/// each other, this is the line in the check.
#[track_caller]
pub(crate) fn located_at_caller<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, Failure>> {
    let location = Location::caller();
    async move { work.await.map_err(|failure| Failure { location, ..failure }) }
}

/// Returns an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Returns a failure from the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// As `ensure!`, for what a correct store keeps only if it [answers in
/// time](Failure::if_in_time).
macro_rules! ensure_in_time {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(format!($($message)+)).if_in_time());
        }
    };
}
pub(crate) use ensure_in_time;

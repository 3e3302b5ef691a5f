//! Why a check failed.

use std::fmt;
use std::future::Future;
use std::panic::Location;

use crate::history::Call;

/// Why a check failed, and which line of the suite says so.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    location: &'static Location<'static>,
    calls: Vec<Call>,
}

/// Whether a failure says something about the promise that was checked, or that it could not be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// What the check saw breaks the promise.
    Verdict,
    /// What the check waited for, and what its message names, did not come within a generous bound. For a promise that something happens that is the verdict.
    Overdue,
    /// The backend answered with an error where the check does not expect one.
    Error,
    /// The fixture failed, or does not fit what its profile declares.
    Fixture,
    /// The check itself failed.
    Check,
    /// The check panicked, or a task of it did.
    Panic,
    /// The check did not come to an end, and nobody knows what it waited for.
    Limit,
}

impl FailureKind {
    /// Whether the promise was judged: the other kinds tell of accidents on the way there.
    #[must_use]
    pub const fn is_judgement(self) -> bool {
        matches!(self, Self::Verdict | Self::Overdue)
    }
}

/// Any error of a fixture.
pub type FixtureError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What a check answers.
pub(crate) type Verdict = Result<(), Failure>;

impl Failure {
    #[track_caller]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::of(FailureKind::Verdict, message)
    }

    #[track_caller]
    pub(crate) fn of(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), location: Location::caller(), calls: Vec::new() }
    }

    /// A task of the check that did not come to its end.
    #[track_caller]
    pub(crate) fn of_task(what: &str, error: &tokio::task::JoinError) -> Self {
        Self::of(FailureKind::Panic, format!("{what} ended: {error}"))
    }

    /// Whether it is about the promise.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The same failure, with another message.
    pub(crate) fn reworded(mut self, words: impl FnOnce(&str) -> String) -> Self {
        self.message = words(&self.message);
        self
    }

    /// The same failure as a verdict: that nothing fails there is the promise.
    pub(crate) fn judged(mut self) -> Self {
        self.kind = FailureKind::Verdict;
        self
    }

    /// What was expected and what was seen.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The calls that show it: who held what when. None if no history was judged.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The line of the suite, as `file:line`.
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

/// A helper's work, whose failures name the line that called the helper: it knows what the check had
/// come to. Of helpers that call each other it is the line in the check.
#[track_caller]
pub(crate) fn said_by_caller<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, Failure>> {
    let location = Location::caller();
    async move { work.await.map_err(|failure| Failure { location, ..failure }) }
}

/// An error and its causes in one line.
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

/// Ends the check with a failure unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

//! Why a check failed.

use std::fmt;
use std::panic::Location;

use crate::history::Call;

/// Why a check failed, and which line of the suite says so.
#[derive(Debug)]
pub struct Failure {
    message: String,
    location: &'static Location<'static>,
    calls: Vec<Call>,
}

/// What a check answers.
pub(crate) type Verdict = Result<(), Failure>;

impl Failure {
    #[track_caller]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), location: Location::caller(), calls: Vec::new() }
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
        Self::new(format!("unexpected error of kind {:?}: {}", error.kind(), chain(&error)))
    }
}

impl From<crate::FixtureError> for Failure {
    #[track_caller]
    fn from(error: crate::FixtureError) -> Self {
        Self::new(format!("the fixture failed: {}", chain(&*error)))
    }
}

impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("the check itself failed: {error}"))
    }
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

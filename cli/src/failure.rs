//! The error that ends the program: an exit code, and a message for standard error.

use std::error::Error;

use distlock::LockError;

use crate::exit;

/// Why the program ends without success. An empty message prints nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Ends the program without a message, because all has been said.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::new(exit::of_error(&error), chain(&error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            // The reader of the output has gone, such as `head`. Other programs die by SIGPIPE.
            return Self::silent(exit::of_signal(13));
        }
        Self::new(exit::IO, format!("the output failed: {error}"))
    }
}

/// Returns the text of an error with its causes, each of them once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_shown_once() {
        let error = LockError::invalid_options("the port is wrong").with_source("port 99999");
        assert_eq!(chain(&error), "the port is wrong: port 99999");
        let twice = LockError::invalid_options("wrong: port 99999").with_source("port 99999");
        assert_eq!(chain(&twice), "wrong: port 99999");
    }
}

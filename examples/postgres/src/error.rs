//! PostgreSQL's errors as errors for the engine: above all, whether the request may have happened.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, LockError, Phase};
use tokio_postgres::Error;

/// What a failed request may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it reads.
    None,
    /// Records.
    Write,
}

/// The cause of an error. Unlike `Debug` of the driver's error, it omits the server's details,
/// which may quote a row.
#[derive(Debug)]
struct Cause(String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Cause {}

impl Cause {
    fn of(error: &Error) -> Self {
        if let Some(refusal) = error.as_db_error() {
            return Self(format!("{} {}: {}", refusal.severity(), refusal.code().code(), refusal.message()));
        }
        let cause = error.source().map(|source| source.to_string()).unwrap_or_default();
        let error = error.to_string();
        Self(if error.contains(&cause) { error } else { format!("{error}: {cause}") })
    }
}

/// The error of a request that was sent.
pub(crate) fn of_request(error: &Error, effect: Effect) -> LockError {
    let verdict = match error.as_db_error() {
        // The server has rolled the statement back, and said so. A server process that ends may
        // have committed before.
        Some(refusal) if refusal.severity() == "ERROR" => Verdict::of_state(refusal.code().code()),
        Some(_) => Verdict::unknown("the server process of the connection has ended"),
        None => Verdict::of_driver(error),
    };
    verdict.into_error(effect).with_source(Cause::of(error))
}

/// The error of an attempt to connect, before any request was sent.
pub(crate) fn of_connecting(error: &Error) -> LockError {
    let verdict = match error.as_db_error() {
        Some(refusal) => Verdict::of_state(refusal.code().code()),
        None if error.to_string().starts_with("authentication error") => Verdict::of_state("28000"),
        None if error.to_string().starts_with("invalid configuration") => {
            Verdict::new(ErrorKind::InvalidOptions, Disposition::Permanent, "the driver refused its configuration")
        }
        None => Verdict::new(ErrorKind::Unavailable, Disposition::Retryable, "PostgreSQL cannot be reached"),
    };
    verdict.into_error(Effect::None).with_phase(Phase::Connect).with_source(Cause::of(error))
}

/// The error of a request whose time ran out before it was sent.
pub(crate) fn not_connected(limit: Duration) -> LockError {
    LockError::timeout(Phase::Connect, format!("no connection to PostgreSQL was free within {limit:?}"))
}

/// The error of a request whose time ran out before its answer came.
pub(crate) fn unanswered(limit: Duration, effect: Effect) -> LockError {
    let error = LockError::timeout(Phase::Request, format!("PostgreSQL did not answer within {limit:?}"));
    match effect {
        Effect::None => error,
        Effect::Write => error.outcome_unknown(),
    }
}

/// The error of a commit with a warning.
pub(crate) fn not_replicated() -> LockError {
    let message = "the wait for a synchronous standby was cancelled; it may not have the change";
    LockError::new(ErrorKind::Unavailable, message).outcome_unknown()
}

/// The error of a request that was not sent, because an earlier one of its claim may still take
/// effect.
pub(crate) fn not_fenced(cause: LockError) -> LockError {
    let message = "an earlier request of this acquisition is not known to have ended";
    LockError::new(ErrorKind::Unavailable, message).with_source(cause)
}

/// The error for an answer that this store's functions do not give.
pub(crate) fn unreadable(what: impl Into<String>) -> LockError {
    let message = format!("PostgreSQL's answer cannot be read: {}", what.into());
    LockError::new(ErrorKind::Corrupt, message).outcome_unknown()
}

/// Whether the connection is as good as before, after the server has refused a statement with this
/// state.
pub(crate) fn leaves_connection_usable(error: &Error) -> bool {
    let Some(refusal) = error.as_db_error() else { return false };
    refusal.severity() == "ERROR" && matches!(refusal.code().code(), "57014" | "55P03" | "40001" | "40P01")
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    kind: ErrorKind,
    disposition: Disposition,
    message: &'static str,
}

impl Verdict {
    const fn new(kind: ErrorKind, disposition: Disposition, message: &'static str) -> Self {
        Self { kind, disposition, message }
    }

    const fn unknown(message: &'static str) -> Self {
        Self::new(ErrorKind::Unavailable, Disposition::OutcomeUnknown, message)
    }

    fn of_driver(error: &Error) -> Self {
        let text = error.to_string();
        // Raised before anything is sent.
        if text.starts_with("error serializing parameter") || text.starts_with("error encoding message") {
            return Self::new(ErrorKind::Other, Disposition::Permanent, "the driver refused the request");
        }
        Self::unknown("the connection to PostgreSQL failed")
    }

    /// The verdict on a statement that was rolled back with this SQLSTATE. 57014 is no exception:
    /// `statement_timeout` ends with the statement, and does not apply to its commit.
    fn of_state(state: &str) -> Self {
        use Disposition::{Permanent, Retryable};
        use ErrorKind::{Corrupt, Other, PermissionDenied, Timeout, Unavailable, Unsupported};

        let (kind, disposition, message) = match (state, state.get(..2).unwrap_or_default()) {
            ("57014", _) => (Timeout, Retryable, "PostgreSQL cancelled the request after its time"),
            ("55P03", _) => (Timeout, Retryable, "another transaction had locked the record for too long"),
            ("40003", _) | (_, "08") => return Self::unknown("the connection to PostgreSQL failed"),
            ("57P01" | "57P02", _) => return Self::unknown("PostgreSQL is shutting down"),
            (_, "40") => (Unavailable, Retryable, "PostgreSQL rolled the request back"),
            ("25006", _) => (Unavailable, Retryable, "the PostgreSQL server is a standby, or read-only"),
            (_, "53" | "54" | "57" | "58") => (Unavailable, Retryable, "PostgreSQL cannot serve now"),
            ("42501", _) | (_, "28") => (PermissionDenied, Permanent, "PostgreSQL refused the credentials"),
            ("42883" | "42P01" | "42703" | "3F000", _) => {
                (Corrupt, Permanent, "the schema of the locks is missing, or is not what the store installed")
            }
            ("23514" | "22003", _) => (Corrupt, Permanent, "the record does not permit another token"),
            (_, "3D") => (Other, Permanent, "the database does not exist"),
            (_, "0A") => (Unsupported, Permanent, "this PostgreSQL server is not supported"),
            _ => (Other, Permanent, "PostgreSQL refused the request"),
        };
        Self::new(kind, disposition, message)
    }

    fn into_error(self, effect: Effect) -> LockError {
        let disposition = match (self.disposition, effect) {
            (Disposition::OutcomeUnknown, Effect::None) => Disposition::Retryable,
            (disposition, _) => disposition,
        };
        let error = match self.kind {
            ErrorKind::Timeout => LockError::timeout(Phase::Request, self.message),
            kind => LockError::new(kind, self.message),
        };
        error.with_disposition(disposition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_was_rolled_back_did_not_happen() {
        for state in ["57014", "55P03", "40001", "40P01", "25006", "53300", "53100", "57P03"] {
            assert_eq!(Verdict::of_state(state).disposition, Disposition::Retryable, "{state}");
        }
        for state in ["28P01", "42501", "3D000", "42P01", "23514", "99999", ""] {
            assert_eq!(Verdict::of_state(state).disposition, Disposition::Permanent, "{state}");
        }
    }

    #[test]
    fn what_may_have_been_committed_is_unknown_unless_it_only_reads() {
        for state in ["08006", "08003", "57P01", "40003"] {
            let error = |effect| Verdict::of_state(state).into_error(effect);
            assert!(error(Effect::Write).is_outcome_unknown(), "{state}");
            assert!(error(Effect::None).is_retryable(), "{state}");
        }
        assert!(unanswered(Duration::from_secs(1), Effect::Write).is_outcome_unknown());
        assert!(unanswered(Duration::from_secs(1), Effect::None).is_retryable());
        assert!(not_connected(Duration::from_secs(1)).is_retryable());
    }
}

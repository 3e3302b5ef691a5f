//! What the driver's errors mean for a lock.

use std::fmt;

use distlock_api::{Disposition, ErrorKind, LockError, Phase};
use mongodb::error::{CommandError, Error, ErrorKind as DriverKind, NO_WRITES_PERFORMED, WriteFailure};
use serde::Deserialize;

/// What the failed operation may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing, ever: it reads, or the same again does no harm and nobody believes it was done.
    None,
    /// A record.
    Write,
}

/// The cause of an error, without what the driver's own one shows: the raw answer of the server, in
/// which the refused command may be quoted.
#[derive(Debug)]
struct Cause(String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

/// Kind and disposition of a driver's error. In doubt the outcome of a write is unknown.
pub(crate) fn translate(error: &Error, effect: Effect) -> LockError {
    let verdict = Verdict::of(error);
    let disposition = match (verdict.disposition, effect) {
        (Disposition::OutcomeUnknown, Effect::None) => Disposition::Retryable,
        (disposition, _) => disposition,
    };
    let locked = Verdict { disposition, ..verdict }.into_error();
    match &*error.kind {
        DriverKind::ServerSelection { .. } | DriverKind::DnsResolve { .. } => locked.with_phase(Phase::Connect),
        _ => locked,
    }
}

/// A document in the lock collection that is none of ours (R22).
pub(crate) fn not_a_record() -> LockError {
    let message = "the document with this `_id` is no lock record: `fencingToken` is missing or no long. It is left as \
                   it is. Name a collection of its own for the locks (`MongoProviderBuilder::collection`); if it is \
                   a lock of an earlier program, see `MongoProviderBuilder::adopt_foreign_locks`";
    LockError::new(ErrorKind::Corrupt, message)
}

/// The client's own limit ran out while an operation was under way.
pub(crate) fn unanswered(limit: std::time::Duration, effect: Effect) -> LockError {
    unanswered_because(limit, effect, "")
}

/// The same with a reason, which follows the message.
pub(crate) fn unanswered_because(limit: std::time::Duration, effect: Effect, because: &str) -> LockError {
    let error = LockError::timeout(Phase::Request, format!("MongoDB did not answer within {limit:?}{because}"));
    match effect {
        Effect::None => error,
        Effect::Write => error.outcome_unknown(),
    }
}

/// The server answered without the marker (R9).
pub(crate) fn unmarked() -> LockError {
    let message = "the server repeated an earlier answer in a form that does not tell what it was";
    LockError::new(ErrorKind::Unavailable, message).outcome_unknown()
}

/// An answer that is not what the server's documentation says.
pub(crate) fn unreadable(error: mongodb::bson::de::Error) -> LockError {
    LockError::new(ErrorKind::Corrupt, "MongoDB's answer cannot be read").outcome_unknown().with_source(error)
}

/// What the reply to a command says of a write that was not done, or not acknowledged.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Refusal {
    code: i32,
    #[serde(default)]
    code_name: String,
    #[serde(default)]
    errmsg: String,
}

/// The error for it. If the primary has done the write, whether it lasts is open.
pub(crate) fn refused(refusal: &Refusal, is_done: bool) -> LockError {
    let Refusal { code, code_name, errmsg } = refusal;
    let verdict = if is_done {
        Verdict::of_write_concern(*code, code_name, errmsg)
    } else {
        Verdict::of_code(*code, code_name, errmsg)
    };
    verdict.into_error()
}

/// Whether the error is a server's answer.
pub(crate) fn is_answer(error: &Error) -> bool {
    !matches!(
        &*error.kind,
        DriverKind::Io(_)
            | DriverKind::ConnectionPoolCleared { .. }
            | DriverKind::ServerSelection { .. }
            | DriverKind::DnsResolve { .. }
            | DriverKind::Authentication { .. }
            | DriverKind::Shutdown
    )
}

/// Whether an upsert lost a race for a fresh record.
pub(crate) fn is_lost_race(error: &Error) -> bool {
    let DriverKind::Command(command) = &*error.kind else { return false };
    let on_id = || {
        let pattern = error.server_response()?.get_document("keyPattern").ok()?;
        let mut fields = pattern.iter();
        let (name, _) = fields.next()?.ok()?;
        (fields.next().is_none() && AsRef::<str>::as_ref(name) == "_id").then_some(())
    };
    command.code == 11000 && on_id().is_some()
}

/// Whether the server refused a pipeline that was made to fail with these words.
pub(crate) fn says(error: &Error, words: &str) -> bool {
    // A refusal for a missing privilege quotes the whole command, the words included.
    let is_said = |command: &CommandError| command.code != UNAUTHORIZED && command.message.contains(words);
    matches!(&*error.kind, DriverKind::Command(command) if is_said(command))
}

/// The code and meaning of a server's refusal of a change that an application made: a validator, a
/// unique index, a value that the change could not be calculated with. None for everything that is
/// not the document's doing.
pub(crate) fn rejection(error: &Error) -> Option<(i32, LockError)> {
    let DriverKind::Command(refused) = &*error.kind else { return None };
    let known = matches!(
        refused.code,
        2 | 9 | 14 | 15 | 28 | 40 | 51 | 52 | 55 | 56 | 57 | 59 | 66 | 72 | 121 | 168 | 241 | 10334 | 11000 | 17280
    );
    // An assertion with a number and no name is raised while the change is parsed or calculated,
    // before anything is written.
    if !known && !refused.code_name.starts_with("Location") {
        return None;
    }
    let message = match refused.code {
        121 => "the validator of the collection refused the change",
        11000 => "the change violates a unique index",
        _ => "MongoDB refused the change",
    };
    let cause = Cause(named(refused.code, &refused.code_name, &refused.message));
    Some((refused.code, LockError::new(ErrorKind::Rejected, message).with_source(cause)))
}

/// The code of a command that the server refused.
pub(crate) fn command_code(error: &Error) -> Option<i32> {
    match &*error.kind {
        DriverKind::Command(refused) => Some(refused.code),
        _ => None,
    }
}

/// The error for a privilege that a probe has found missing.
pub(crate) fn lacks(privilege: &str, namespace: &str, error: &Error) -> LockError {
    let refused = translate(error, Effect::None);
    if refused.kind() != ErrorKind::PermissionDenied || is_unauthenticated(error) {
        return refused;
    }
    let message = format!("the MongoDB user lacks the privilege {privilege} on the collection {namespace}");
    LockError::new(ErrorKind::PermissionDenied, message).with_source(refused)
}

/// Whether a command was refused for want of a privilege, or of a user.
pub(crate) fn is_unauthorized(error: &Error) -> bool {
    command_code(error) == Some(UNAUTHORIZED)
}

/// Whether the server has said that the client has not logged in.
pub(crate) fn is_unauthenticated(error: &Error) -> bool {
    matches!(&*error.kind, DriverKind::Command(refused) if refused.message.contains(UNAUTHENTICATED))
}

/// Whether an index exists already, with other options or under another name.
pub(crate) fn is_index_conflict(error: &Error) -> bool {
    matches!(&*error.kind, DriverKind::Command(command) if matches!(command.code, 85 | 86))
}

/// The server's code for a missing privilege.
pub(crate) const UNAUTHORIZED: i32 = 13;
/// The server's code for a collection that does not exist.
pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;
/// The server's code for a condition that an upsert cannot have.
pub(crate) const NOT_IN_AN_UPSERT: i32 = 224;
/// What the server says to a client that has not logged in, with the code of a missing privilege.
const UNAUTHENTICATED: &str = "requires authentication";

struct Verdict {
    kind: ErrorKind,
    disposition: Disposition,
    message: &'static str,
    cause: String,
}

impl Verdict {
    fn of(error: &Error) -> Self {
        use Disposition::{OutcomeUnknown, Permanent, Retryable};

        let verdict = |kind, disposition, message| Self { kind, disposition, message, cause: error.kind.to_string() };
        match &*error.kind {
            // The driver answers so only if no earlier try of the same operation reached a server.
            DriverKind::ServerSelection { .. } | DriverKind::DnsResolve { .. } => {
                verdict(ErrorKind::Unavailable, Retryable, "no MongoDB server can be reached")
            }
            DriverKind::Authentication { .. } => {
                verdict(ErrorKind::PermissionDenied, Permanent, "MongoDB refused the credentials")
            }
            DriverKind::IncompatibleServer { .. } | DriverKind::SessionsNotSupported => {
                verdict(ErrorKind::Unsupported, Permanent, "this MongoDB server is not supported")
            }
            DriverKind::Shutdown => verdict(ErrorKind::Unavailable, Permanent, "the MongoDB client has been shut down"),
            DriverKind::InvalidArgument { .. } | DriverKind::InvalidTlsConfig { .. } => {
                verdict(ErrorKind::Other, Permanent, "the MongoDB driver refused the operation")
            }
            DriverKind::Io(_) | DriverKind::ConnectionPoolCleared { .. } => {
                verdict(ErrorKind::Unavailable, OutcomeUnknown, "the connection to MongoDB failed")
            }
            DriverKind::BsonDeserialization(_) | DriverKind::InvalidResponse { .. } => {
                verdict(ErrorKind::Corrupt, OutcomeUnknown, "MongoDB's answer cannot be read")
            }
            DriverKind::Command(failed) => {
                Self::of_code(failed.code, &failed.code_name, &failed.message).unless_nothing_written(error)
            }
            DriverKind::Write(WriteFailure::WriteError(failed)) => {
                let name = failed.code_name.as_deref().unwrap_or_default();
                Self::of_code(failed.code, name, &failed.message).unless_nothing_written(error)
            }
            // It was applied by the primary; whether it lasts is open.
            DriverKind::Write(WriteFailure::WriteConcernError(failed)) => {
                Self::of_write_concern(failed.code, &failed.code_name, &failed.message)
            }
            _ => verdict(ErrorKind::Other, OutcomeUnknown, "MongoDB failed"),
        }
    }

    fn into_error(self) -> LockError {
        let error = match self.kind {
            ErrorKind::Timeout => LockError::timeout(Phase::Request, self.message),
            kind => LockError::new(kind, self.message),
        };
        error.with_disposition(self.disposition).with_source(Cause(self.cause))
    }

    fn of_write_concern(code: i32, name: &str, message: &str) -> Self {
        let kind = if matches!(code, 50 | 64) { ErrorKind::Timeout } else { ErrorKind::Unavailable };
        let (disposition, cause) = (Disposition::OutcomeUnknown, named(code, name, message));
        Self { kind, disposition, message: "no majority acknowledged the write", cause }
    }

    /// What a server means by an error code. One that stands in no group says nothing about what
    /// was done.
    fn of_code(code: i32, name: &str, message: &str) -> Self {
        use Disposition::{OutcomeUnknown, Permanent, Retryable};

        let (kind, disposition, summary) = match code {
            UNAUTHORIZED if message.contains(UNAUTHENTICATED) => {
                let summary = "MongoDB requires authentication, and the connection string names no user";
                (ErrorKind::PermissionDenied, Permanent, summary)
            }
            // The text of these quotes the command, with keys and owners.
            UNAUTHORIZED => {
                let summary = "the MongoDB user may not do what locks need on this collection";
                return Self {
                    kind: ErrorKind::PermissionDenied,
                    disposition: Permanent,
                    message: summary,
                    cause: named(code, name, "needed: find, insert, update and createIndex; to watch, changeStream"),
                };
            }
            18 | 8000 => (ErrorKind::PermissionDenied, Permanent, "MongoDB refused the credentials"),
            50 => (ErrorKind::Timeout, OutcomeUnknown, "MongoDB gave up at the time limit"),
            112 | 225 => (ErrorKind::Unavailable, Retryable, "MongoDB gave way to another write"),
            // Stepping down, shutting down, recovering, not primary; and, between the members of a
            // cluster, a host that cannot be reached.
            6 | 7 | 89 | 91 | 134 | 189 | 262 | 9001 | 10058 | 10107 | 11600 | 11602 | 13435 | 13436 => {
                (ErrorKind::Unavailable, OutcomeUnknown, "MongoDB cannot serve now")
            }
            20 | 40573 | 51144 => {
                (ErrorKind::Unsupported, Permanent, "this MongoDB deployment cannot do what was asked")
            }
            14 | 15 | 241 | 16554 => (ErrorKind::Corrupt, Permanent, "a lock record is not what the protocol allows"),
            2 | 9 | 26 | 59 | 66 | 67 | 72 | 73 | 115 | 121 | 166 | 303 | 323 | 10334 | 11000 | 13297 | 17280 => {
                (ErrorKind::Other, Permanent, "MongoDB refused the operation")
            }
            _ => (ErrorKind::Other, OutcomeUnknown, "MongoDB failed"),
        };
        Self { kind, disposition, message: summary, cause: named(code, name, message) }
    }

    /// The server says so itself for some errors of a state change.
    fn unless_nothing_written(mut self, error: &Error) -> Self {
        if self.disposition == Disposition::OutcomeUnknown && error.contains_label(NO_WRITES_PERFORMED) {
            self.disposition = Disposition::Retryable;
        }
        self
    }
}

fn named(code: i32, name: &str, message: &str) -> String {
    format!("error {code} {name}: {message}")
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn an_unknown_code_leaves_the_outcome_open() {
        for code in [0, 1, 8, 24, 11601, 99999] {
            assert_eq!(Verdict::of_code(code, "", "").disposition, Disposition::OutcomeUnknown, "{code}");
        }
    }

    #[test]
    fn what_an_index_or_a_database_name_prevents_is_permanent() {
        for (code, name) in [(67, "CannotCreateIndex"), (13297, "DatabaseDifferCase")] {
            let reply = doc! { "code": code, "codeName": name, "errmsg": "no" };
            let error = Error::from(DriverKind::Command(mongodb::bson::from_document(reply).unwrap()));
            for effect in [Effect::None, Effect::Write] {
                let error = translate(&error, effect);
                assert_eq!((error.kind(), error.disposition()), (ErrorKind::Other, Disposition::Permanent), "{error}");
                let cause = std::error::Error::source(&error).unwrap().to_string();
                assert_eq!(cause, format!("error {code} {name}: no"));
            }
        }
    }

    #[test]
    fn a_refusal_does_not_quote_the_command() {
        let verdict = Verdict::of_code(13, "Unauthorized", "not authorized to execute { owner: \"secret\" }");
        assert!(!verdict.cause.contains("secret"));
        assert_eq!(verdict.kind, ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_missing_privilege_is_not_what_its_quoted_command_says() {
        let answer = |code: i32| {
            let reply = doc! { "code": code, "errmsg": "not authorized to execute { $concat: [ \"not a lock\" ] }" };
            Error::from(DriverKind::Command(mongodb::bson::from_document::<CommandError>(reply).unwrap()))
        };
        assert!(says(&answer(241), "not a lock"));
        assert!(!says(&answer(13), "not a lock"));
        assert_eq!(translate(&answer(13), Effect::Write).kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn reading_changes_nothing() {
        let error = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert!(translate(&error, Effect::Write).is_outcome_unknown());
        assert!(translate(&error, Effect::None).is_retryable());
    }
}

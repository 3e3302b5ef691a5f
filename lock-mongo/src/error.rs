//! The translation of the driver's errors.

use std::fmt;

use distlock_api::{Disposition, ErrorKind, LockError, Phase};
use mongodb::error::{CommandError, Error, ErrorKind as DriverKind, NO_WRITES_PERFORMED, WriteFailure};
use serde::Deserialize;

/// What a failed operation may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it only reads, or it can be repeated and no decision depends on its outcome.
    None,
    /// A record.
    Write,
}

/// The cause of an error. The driver's own error is not used, because it shows the raw answer of
/// the server, which may quote the refused command.
#[derive(Debug)]
struct Cause(String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

/// Translates a driver's error. In doubt the outcome of a write is unknown.
pub(crate) fn translate(error: &Error, effect: Effect) -> LockError {
    let verdict = Verdict::of(error);
    let disposition = match (verdict.disposition, effect) {
        // What the server cannot compute, it cannot compute again.
        (Disposition::OutcomeUnknown, Effect::None) if is_uncomputable(command_code(error)) => Disposition::Permanent,
        (Disposition::OutcomeUnknown, Effect::None) => Disposition::Retryable,
        (disposition, _) => disposition,
    };
    let locked = Verdict { disposition, ..verdict }.into_error();
    match &*error.kind {
        DriverKind::ServerSelection { .. } | DriverKind::DnsResolve { .. } => locked.with_phase(Phase::Connect),
        _ => locked,
    }
}

/// Makes the error of a connection string whose form is wrong. The driver's text may quote any part
/// of it: a password with a slash is taken for a port.
pub(crate) fn refused_uri() -> LockError {
    let message = "the MongoDB driver refused the connection string: its form is \
                   `mongodb://user:password@host:port/database?option=value`, percent-encoded; or an option, or a \
                   combination of options, is not valid. The driver's text may quote a password, and is not shown";
    LockError::new(ErrorKind::InvalidOptions, message)
}

/// Makes the error of a connection string that the driver refuses, or whose hosts it cannot find.
pub(crate) fn unusable_uri(error: &Error) -> LockError {
    match &*error.kind {
        DriverKind::InvalidArgument { .. } => refused_uri(),
        DriverKind::InvalidTlsConfig { .. } => {
            let message = "the MongoDB driver refused the connection string: its TLS options cannot be used";
            LockError::new(ErrorKind::InvalidOptions, message).with_source(Cause(error.kind.to_string()))
        }
        _ => translate(error, Effect::None),
    }
}

/// Makes the error of a document that is to be locked and does not exist.
pub(crate) fn no_document() -> LockError {
    let message = "there is no document with this `_id`: insert it, or give a default (`or_insert`, \
                   `DocumentLocksBuilder::default_document`)";
    LockError::new(ErrorKind::NotFound, message)
}

/// Makes the error of a document in the lock collection that is no lock record (R22).
pub(crate) fn not_a_record() -> LockError {
    let message = "the document with this `_id` is no lock record: `fencingToken` is missing or no long. It is left as \
                   it is. Give the locks a collection of their own (`MongoProviderBuilder::collection`). If it is a \
                   lock of an earlier program, see `MongoProviderBuilder::adopt_foreign_locks`";
    LockError::new(ErrorKind::Corrupt, message)
}

/// Makes the error of a record with a list that is longer than any operation makes it (R32).
pub(crate) fn too_long(list: &str) -> LockError {
    let message = format!(
        "another program has changed the lock record: `{list}` is longer than any operation makes it. It is left as it \
         is, because each command on it would delay those on other keys: delete the document once no process works \
         under its lock"
    );
    LockError::new(ErrorKind::Corrupt, message)
}

/// Makes the error of a record that no operation can have left so (R32).
pub(crate) fn garbled(what: &str) -> LockError {
    let message = format!(
        "another program has changed the lock record: {what}. It is left as it is: release it by force (`force_release`), \
         or delete the document once no process works under its lock"
    );
    LockError::new(ErrorKind::Corrupt, message)
}

/// Makes the error of an operation that the client's own limit ended.
pub(crate) fn unanswered(limit: std::time::Duration, effect: Effect) -> LockError {
    unanswered_because(limit, effect, ": look at its load, or allow the call more time")
}

/// Makes the error of [`unanswered`], with a reason that follows the message.
pub(crate) fn unanswered_because(limit: std::time::Duration, effect: Effect, because: &str) -> LockError {
    let error = LockError::timeout(Phase::Request, format!("MongoDB did not answer within {limit:?}{because}"));
    match effect {
        Effect::None => error,
        Effect::Write => error.outcome_unknown(),
    }
}

/// Makes the error of a call whose server is no longer the primary.
pub(crate) fn replaced(after: std::time::Duration, effect: Effect) -> LockError {
    let after = std::time::Duration::from_millis(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    unanswered_because(after, effect, ", and another server has become the primary meanwhile")
}

/// Makes the error of an answer without the marker (R9).
pub(crate) fn unmarked() -> LockError {
    let message = "MongoDB repeated the answer to an earlier try without the fields that were requested, so the \
                   outcome cannot be read from it";
    LockError::new(ErrorKind::Unavailable, message).outcome_unknown()
}

/// Makes the error of an answer in another form than the server's documentation has.
pub(crate) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> LockError {
    LockError::new(ErrorKind::Corrupt, UNREADABLE).outcome_unknown().with_source(error)
}

/// An insertion, or the insertion of an upsert, has found a document.
pub(crate) const DUPLICATE_KEY: i32 = 11000;

/// The part of a reply that reports a write that was not done, or not acknowledged.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Refusal {
    /// The number of the statement, of a command with several.
    #[serde(default)]
    pub(crate) index: usize,
    pub(crate) code: i32,
    #[serde(default)]
    code_name: String,
    #[serde(default)]
    errmsg: String,
}

/// Makes the error of a refusal. If the primary has done the write, it may still be rolled back.
pub(crate) fn refused(refusal: &Refusal, is_done: bool) -> LockError {
    let Refusal { code, code_name, errmsg, .. } = refusal;
    let verdict = if is_done {
        Verdict::of_write_concern(*code, code_name, errmsg)
    } else {
        Verdict::of_code(*code, code_name, errmsg)
    };
    verdict.into_error()
}

/// Returns whether the error is an answer of a server.
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

/// Returns whether the driver found no server within its own limit. One that the driver does not
/// support is another error.
pub(crate) fn is_unselected(error: &Error) -> bool {
    matches!(&*error.kind, DriverKind::ServerSelection { .. })
        && translate(error, Effect::None).kind() == ErrorKind::Unavailable
}

/// Returns whether an upsert lost a race for a new record.
pub(crate) fn is_lost_race(error: &Error) -> bool {
    let DriverKind::Command(command) = &*error.kind else { return false };
    let on_id = || {
        let pattern = error.server_response()?.get_document("keyPattern").ok()?;
        let mut fields = pattern.iter();
        let (name, _) = fields.next()?.ok()?;
        (fields.next().is_none() && AsRef::<str>::as_ref(name) == "_id").then_some(())
    };
    command.code == DUPLICATE_KEY && on_id().is_some()
}

/// Returns whether a pipeline failed with this text, which one of its stages puts into the error by
/// a conversion that fails.
pub(crate) fn failed_with(error: &Error, text: &str) -> bool {
    // Other errors quote keys, or the whole command, and may contain the text.
    let has_text = |command: &CommandError| command.code == CONVERSION_FAILURE && command.message.contains(text);
    matches!(&*error.kind, DriverKind::Command(command) if has_text(command))
}

/// Returns the code and the error of a server's refusal of an application's change. The reason is a
/// validator, a unique index, or a value that the change could not be computed with. `None` if the
/// refusal has nothing to do with the document.
pub(crate) fn rejection(error: &Error) -> Option<(i32, LockError)> {
    let DriverKind::Command(refused) = &*error.kind else { return None };
    let known = matches!(
        refused.code,
        2 | 9 | 14 | 15 | 28 | 40 | 51 | 52 | 55 | 56 | 57 | 59 | 66 | 72 | 121 | 168 | 241 | 10334 | 11000 | 17280
    );
    // An assertion that has a number and no name is raised while the change is parsed or computed,
    // before any write.
    if !known && !refused.code_name.starts_with("Location") {
        return None;
    }
    let message = match refused.code {
        121 => "the validator of the collection refused the change: the new document does not meet its rules",
        11000 => "the change violates a unique index: another document has the value that the cause names",
        _ => "MongoDB refused the change: the cause names the reason",
    };
    let cause = Cause(named(refused.code, &refused.code_name, &refused.message));
    Some((refused.code, LockError::new(ErrorKind::Rejected, message).with_source(cause)))
}

/// Returns whether the server has failed to compute with the values of a record.
fn is_uncomputable(code: Option<i32>) -> bool {
    matches!(code, Some(14 | 15 | CONVERSION_FAILURE | 16554))
}

/// Returns the code of a command that the server refused.
pub(crate) fn command_code(error: &Error) -> Option<i32> {
    match &*error.kind {
        DriverKind::Command(refused) => Some(refused.code),
        _ => None,
    }
}

/// Makes the error of a privilege that a probe found missing.
pub(crate) fn lacks(privilege: &str, namespace: &str, error: &Error) -> LockError {
    let refused = translate(error, Effect::None);
    if refused.kind() != ErrorKind::PermissionDenied || is_unauthenticated(error) {
        return refused;
    }
    let message = format!(
        "the MongoDB user lacks the privilege {privilege} on the collection {namespace}: grant it by a role of the user"
    );
    LockError::new(ErrorKind::PermissionDenied, message).with_source(refused)
}

/// Makes the error of a change stream that the server has none of. `None` for another error.
pub(crate) fn without_streams(error: &Error) -> Option<LockError> {
    let DriverKind::Command(refused) = &*error.kind else { return None };
    // An unknown stage or command, and Atlas Flex, which also has its code for other refusals.
    let is_unknown = matches!(refused.code, 59 | 115 | 168 | 238 | 303 | 40_324)
        || (refused.code == ATLAS && refused.message.contains("not allowed or the syntax is incorrect"));
    if !is_unknown {
        return None;
    }
    let message = "this server has no change streams: waiters poll, and operators cannot watch";
    let cause = Cause(named(refused.code, &refused.code_name, &refused.message));
    Some(LockError::new(ErrorKind::Unsupported, message).with_source(cause))
}

/// Returns whether a command was refused because a privilege, or a user, is missing.
pub(crate) fn is_unauthorized(error: &Error) -> bool {
    command_code(error) == Some(UNAUTHORIZED)
}

/// Returns whether a command was refused because the client has not authenticated.
pub(crate) fn is_unauthenticated(error: &Error) -> bool {
    matches!(&*error.kind, DriverKind::Command(refused) if refused.message.contains(UNAUTHENTICATED))
}

/// Returns whether an index exists already, with other options or under another name.
pub(crate) fn is_index_conflict(error: &Error) -> bool {
    matches!(&*error.kind, DriverKind::Command(command) if matches!(command.code, 85 | 86))
}

/// The server's code for a missing privilege.
pub(crate) const UNAUTHORIZED: i32 = 13;
/// The code of MongoDB Atlas.
pub(crate) const ATLAS: i32 = 8000;
const CONVERSION_FAILURE: i32 = 241;
/// The server's code for a collection that does not exist.
pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;
/// The server's code for a condition that an upsert cannot have.
pub(crate) const NOT_IN_AN_UPSERT: i32 = 224;
/// The server's text for a client that has not authenticated. The code is that of a missing
/// privilege.
const UNAUTHENTICATED: &str = "requires authentication";

const UNREADABLE: &str = "MongoDB's answer cannot be read: it has another form than the answers of MongoDB 6.0 to 8.0";
const UNSUPPORTED_SERVER: &str = "this MongoDB server is not supported: 6.0 or later is needed";
const DISCONNECTED: &str = "the connection to MongoDB failed";
/// The server's text for credentials that it refuses.
const AUTHENTICATION_FAILED: &str = "Authentication failed";
const REFUSED_CREDENTIALS: &str = "MongoDB refused the credentials: check user, password and authSource";

/// The translation of one error.
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
            DriverKind::ServerSelection { message: cause, .. } if cause.contains("wire version") => {
                verdict(ErrorKind::Unsupported, Permanent, UNSUPPORTED_SERVER)
            }
            // The driver reports this only if no earlier try of the operation reached a server.
            DriverKind::ServerSelection { .. } | DriverKind::DnsResolve { .. } => {
                let message =
                    "no MongoDB server can be reached: check the hosts of the connection string, and the network";
                let verdict = verdict(ErrorKind::Unavailable, Retryable, message);
                // The driver's state, which follows, is for its developers.
                let cause = verdict.cause.split(" Topology: ").next().unwrap_or_default().to_owned();
                Self { cause, ..verdict }
            }
            DriverKind::Authentication { .. } => verdict(ErrorKind::PermissionDenied, Permanent, REFUSED_CREDENTIALS),
            DriverKind::IncompatibleServer { .. } | DriverKind::SessionsNotSupported => {
                verdict(ErrorKind::Unsupported, Permanent, UNSUPPORTED_SERVER)
            }
            DriverKind::Shutdown => {
                let message = "the MongoDB client has been shut down: close the lock provider before the client";
                verdict(ErrorKind::Unavailable, Permanent, message)
            }
            DriverKind::InvalidArgument { .. } | DriverKind::InvalidTlsConfig { .. } => {
                verdict(ErrorKind::Other, Permanent, "the MongoDB driver refused the operation")
            }
            DriverKind::Io(_) => verdict(ErrorKind::Unavailable, OutcomeUnknown, DISCONNECTED),
            // Another operation has failed, and its error is quoted as the driver's developers see
            // it.
            DriverKind::ConnectionPoolCleared { message: cause, .. } => {
                let verdict = if cause.contains(AUTHENTICATION_FAILED) {
                    verdict(ErrorKind::PermissionDenied, OutcomeUnknown, REFUSED_CREDENTIALS)
                } else {
                    verdict(ErrorKind::Unavailable, OutcomeUnknown, DISCONNECTED)
                };
                let cause = verdict.cause.split(", labels: ").next().unwrap_or_default().to_owned();
                Self { cause, ..verdict }
            }
            DriverKind::BsonDeserialization(_) | DriverKind::InvalidResponse { .. } => {
                verdict(ErrorKind::Corrupt, OutcomeUnknown, UNREADABLE)
            }
            DriverKind::Command(failed) => {
                Self::of_code(failed.code, &failed.code_name, &failed.message).unless_nothing_written(error)
            }
            DriverKind::Write(WriteFailure::WriteError(failed)) => {
                let name = failed.code_name.as_deref().unwrap_or_default();
                Self::of_code(failed.code, name, &failed.message).unless_nothing_written(error)
            }
            // The primary has applied it; it may still be rolled back.
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
        let message = "no majority of the replica set acknowledged the write";
        Self { kind, disposition, message, cause }
    }

    /// Translates an error code of a server. The guide to errors has the reason of each group, and
    /// the tests read the codes from there. After a code that is not listed here the outcome is
    /// unknown.
    fn of_code(code: i32, name: &str, message: &str) -> Self {
        use Disposition::{OutcomeUnknown, Permanent, Retryable};

        let (kind, disposition, summary) = match code {
            UNAUTHORIZED if message.contains(UNAUTHENTICATED) => {
                let summary = "MongoDB requires authentication, and the client has no user: name one in the connection \
                               string";
                (ErrorKind::PermissionDenied, Permanent, summary)
            }
            // The server's text quotes the command, with keys and owners.
            UNAUTHORIZED => {
                let summary = "the MongoDB user lacks a privilege that locks need on this collection";
                return Self {
                    kind: ErrorKind::PermissionDenied,
                    disposition: Permanent,
                    message: summary,
                    cause: named(code, name, "needed: find, insert, update and createIndex; to watch, changeStream"),
                };
            }
            18 => (ErrorKind::PermissionDenied, Permanent, REFUSED_CREDENTIALS),
            // Atlas has one code for all that it refuses itself.
            ATLAS if message.contains("bad auth") => (ErrorKind::PermissionDenied, Permanent, REFUSED_CREDENTIALS),
            ATLAS if message.contains("not allowed to do action") => {
                (ErrorKind::PermissionDenied, Permanent, "the MongoDB user lacks a privilege that locks need")
            }
            ATLAS => (ErrorKind::Unsupported, Permanent, "this Atlas cluster does not allow the operation"),
            50 => {
                let summary = "MongoDB ended the operation at its time limit: it is slow, or an open transaction has \
                               changed the same document";
                (ErrorKind::Timeout, OutcomeUnknown, summary)
            }
            112 | 225 => (ErrorKind::Unavailable, Retryable, "MongoDB refused the write because of a concurrent one"),
            // They end the storage transaction of the write. A driver's second try gets them only
            // if the first one was not carried out.
            365 | 371 => {
                let summary = "MongoDB takes no writes now: an operator has blocked them, or its cache is full";
                (ErrorKind::Unavailable, Retryable, summary)
            }
            // Stepping down, shutting down, recovering, not primary; and, between the members of a
            // cluster, a host that cannot be reached.
            6 | 7 | 89 | 91 | 133 | 134 | 189 | 202 | 262 | 402 | 406 | 407 | 412 | 453 | 9001 | 10058 | 10107
            | 11600 | 11602 | 13435 | 13436 | 50915 | 91331 | 10_045_600 => {
                (ErrorKind::Unavailable, OutcomeUnknown, "MongoDB cannot serve now: the primary changes or shuts down")
            }
            // Refused before the command begins; but the first try of a driver may have been
            // carried out.
            433 | 449 | 450 | 462 => (ErrorKind::Unavailable, OutcomeUnknown, "MongoDB is overloaded"),
            20 | 40573 | 51144 => {
                (ErrorKind::Unsupported, Permanent, "this MongoDB deployment does not support the operation")
            }
            // The projection of a `findAndModify` is computed after the change, and an update of
            // several records may have changed some.
            _ if is_uncomputable(Some(code)) => {
                let summary =
                    "a lock record has a form that the protocol does not allow: another program has changed it";
                (ErrorKind::Corrupt, OutcomeUnknown, summary)
            }
            2 | 9 | 26 | 59 | 61 | 66 | 67 | 72 | 73 | 115 | 121 | 166 | 168 | 224 | 238 | 263 | 303 | 322 | 323
            | 324 | 347 | 352 | 378 | 411 | 10334 | 11000 | 13297 | 17280 | 40413 | 40414 | 40415 | 50768 => {
                (ErrorKind::Other, Permanent, "MongoDB refused the operation")
            }
            _ => (ErrorKind::Other, OutcomeUnknown, "MongoDB failed"),
        };
        Self { kind, disposition, message: summary, cause: named(code, name, message) }
    }

    /// Makes the error retryable if the server has labelled it as one without any write.
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
    fn a_refused_index_or_database_name_is_permanent() {
        for (code, name) in [(67, "CannotCreateIndex"), (13297, "DatabaseDifferCase")] {
            let reply = doc! { "code": code, "codeName": name, "errmsg": "no" };
            let error = Error::from(DriverKind::Command(crate::bson::from_document(reply).unwrap()));
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
    fn the_command_that_a_missing_privilege_quotes_is_not_read() {
        let answer = |code: i32| {
            let reply = doc! { "code": code, "errmsg": "not authorized to execute { $concat: [ \"not a lock\" ] }" };
            Error::from(DriverKind::Command(crate::bson::from_document::<CommandError>(reply).unwrap()))
        };
        assert!(failed_with(&answer(241), "not a lock"));
        assert!(!failed_with(&answer(13), "not a lock"));
        assert_eq!(translate(&answer(13), Effect::Write).kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_failed_read_is_retryable() {
        let error = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert!(translate(&error, Effect::Write).is_outcome_unknown());
        assert!(translate(&error, Effect::None).is_retryable());
    }
}

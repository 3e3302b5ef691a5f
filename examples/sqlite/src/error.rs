//! SQLite's failures as errors for the engine: above all, whether the step may have happened.

use distlock_api::{ErrorKind, LockError, Phase};
use rusqlite::ErrorCode;

/// The error of a step that did not happen: SQLite rolls back what was not committed.
pub(crate) fn undone(error: rusqlite::Error) -> LockError {
    let kind = match error.sqlite_error_code() {
        _ if is_busy(&error) => return in_use().with_source(error),
        Some(ErrorCode::CannotOpen | ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => ErrorKind::Unavailable,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => ErrorKind::PermissionDenied,
        _ if is_unreadable(&error) => ErrorKind::Corrupt,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => ErrorKind::Corrupt,
        _ => ErrorKind::Other,
    };
    LockError::new(kind, "SQLite refused a step").with_source(error)
}

/// The error of a step whose commit failed: it may have happened.
pub(crate) fn unknown(error: rusqlite::Error) -> LockError {
    undone(error).outcome_unknown()
}

/// Whether another connection has the write lock of the file.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether a record is not one of this store.
pub(crate) fn is_unreadable(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
    matches!(error, FromSqlConversionFailure(..) | InvalidColumnType(..) | IntegralValueOutOfRange(..))
}

/// The error of a step that did not begin in time.
pub(crate) fn in_use() -> LockError {
    LockError::timeout(Phase::Request, "other connections were using the file")
}

/// The error of a step whose thread ended early.
pub(crate) fn cut_off(error: tokio::task::JoinError) -> LockError {
    LockError::new(ErrorKind::Other, "a step was cut off").with_source(error).outcome_unknown()
}

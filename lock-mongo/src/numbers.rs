//! Tokens and times as the numbers that MongoDB stores: signed, of 64 bits.

use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockError, Result};

/// A stored token.
pub(crate) fn token(value: i64) -> Result<FencingToken> {
    u64::try_from(value).map(FencingToken::new).map_err(|_| corrupt())
}

/// Stored milliseconds; zero if they are negative.
pub(crate) fn millis(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

/// A floor that leaves room for tokens above it.
pub(crate) fn checked_floor(floor: FencingToken) -> Result<i64> {
    match i64::try_from(floor.get()) {
        Ok(floor) if floor <= i64::MAX / 2 => Ok(floor),
        _ => {
            let greatest = i64::MAX / 2;
            let message = format!("a token floor of {floor} leaves no room for tokens: the greatest is {greatest}");
            Err(LockError::new(ErrorKind::InvalidOptions, message))
        }
    }
}

/// The error for a token that no grant can have made.
pub(crate) fn corrupt() -> LockError {
    LockError::new(ErrorKind::Corrupt, "a lock record holds a token that no grant can have made").outcome_unknown()
}

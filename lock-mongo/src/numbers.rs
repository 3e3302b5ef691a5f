//! Tokens and times as MongoDB stores them: signed numbers of 64 bits.

use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockError, Result, contained};

/// Reads a stored token.
pub(crate) fn token(value: i64) -> Result<FencingToken> {
    u64::try_from(value).map(FencingToken::new).map_err(|_| corrupt())
}

/// Reads stored milliseconds; negative ones become zero.
pub(crate) fn millis(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

/// From here on a double, such as a number of JavaScript, cannot tell consecutive tokens apart.
const BEYOND_DOUBLES: i64 = 1 << 53;

/// Checks that a floor leaves room for tokens above it.
pub(crate) fn checked_floor(floor: FencingToken) -> Result<i64> {
    match i64::try_from(floor.get()) {
        Ok(floor) if floor <= i64::MAX / 2 => {
            if floor >= BEYOND_DOUBLES {
                contained(|| {
                    tracing::warn!(
                        floor,
                        "the token floor is 2^53 or more: a resource that reads tokens as doubles takes consecutive \
                         ones for equal"
                    );
                });
            }
            Ok(floor)
        }
        _ => {
            let greatest = i64::MAX / 2;
            let message = format!(
                "a token floor of {floor} leaves no room for tokens above it: a floor can be {greatest} at most"
            );
            Err(LockError::new(ErrorKind::InvalidOptions, message))
        }
    }
}

/// Makes the error of a token that no grant can have made.
pub(crate) fn corrupt() -> LockError {
    let message = "a lock record has a token that no grant can have made: another program has changed it";
    LockError::new(ErrorKind::Corrupt, message).outcome_unknown()
}

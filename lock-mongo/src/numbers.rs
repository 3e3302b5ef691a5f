//! Tokens and times as MongoDB stores them: signed numbers of 64 bits.

use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, FencingToken, LockError, Result};

/// Reads a stored token.
pub(crate) fn token(value: i64) -> Result<FencingToken> {
    u64::try_from(value).map(FencingToken::new).map_err(|_| corrupt())
}

/// Reads stored milliseconds; negative ones become zero.
pub(crate) fn millis(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

/// The beginning of 2025, in seconds of Unix time. With this epoch and 2²¹ tokens per second,
/// tokens stay below 2⁵³ until the year 2161, so that a double holds each of them exactly.
pub(crate) const EPOCH: i64 = 1_735_689_600;
/// Tokens per second. A second of the logical clock has fewer writes.
pub(crate) const SECOND: i64 = 1 << 21;
/// The end of the year 9999, in milliseconds of Unix time. Other drivers cannot decode later dates
/// (R32).
pub(crate) const LATEST: i64 = 253_402_300_799_999;
/// An end from here on never comes. That of one of several holders counts as this one, which is
/// still a date at which the key is held (R32).
pub(crate) const NEVER: i64 = LATEST - 1;
/// The greatest floor: the token of that time, until which the records of smaller ones are kept.
pub(crate) const GREATEST_FLOOR: i64 = (LATEST / 1000 - EPOCH) * SECOND;

/// From here on a double, such as a number of JavaScript, cannot tell consecutive tokens apart.
const BEYOND_DOUBLES: i64 = 1 << 53;

/// Checks that a floor leaves room for tokens above it.
pub(crate) fn checked_floor(floor: FencingToken) -> Result<i64> {
    match i64::try_from(floor.get()) {
        Ok(floor) if floor <= GREATEST_FLOOR => {
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
            let message = format!(
                "a token floor of {floor} is above the greatest one, {GREATEST_FLOOR}: the clock of tokens reaches it \
                 after the year 9999, and no date says until when records of such tokens must be kept"
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

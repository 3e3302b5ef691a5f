//! Fencing tokens.

use std::fmt;
use std::num::TryFromIntError;

/// A number that grows with every grant of a key, so that a resource can refuse writes of earlier
/// holders.
///
/// Tokens strictly increase per key: across release, expiry, take-over, force-release, purge of the
/// store's record, fail-over and restart (contract clause [C5]). They are opaque otherwise: gaps
/// are normal, and tokens of different keys must not be compared.
///
/// # Why
/// A lease alone cannot stop a process that was paused beyond its lease and then writes. The
/// resource can: it keeps the greatest token it has seen and refuses a smaller one. The idea is
/// Martin Kleppmann's ("How to do distributed locking", 2016), after Chubby's sequencers.
/// [`FencedRegister`](crate::FencedRegister) does this in memory.
///
/// # The condition
/// The store's data and clock must not go back. Tokens can go back when the store is restored from
/// a backup. With MongoDB they also can when a replica set becomes a standalone after its cluster
/// time had run ahead of the wall clock. Then a resource refuses every legitimate holder, and a
/// late one with a greater token passes. The runbook is *After a restore* in the documentation of
/// `distlock-mongo`.
///
/// # As a number
/// The tokens of `distlock-mongo` and of the in-memory backend stay below 2^53. Readers that turn
/// numbers into doubles (JavaScript, Redis' Lua, many JSON libraries) compare them exactly. Pass
/// tokens of other backends on as text or as 64-bit integers.
///
/// Columns of databases are signed. `i64::try_from(token)` fails only for a token of 2^63 or more,
/// which no backend of this project grants.
///
/// ```
/// use distlock_api::FencingToken;
///
/// let (old, new) = (FencingToken::new(33), FencingToken::new(34));
/// assert!(old < new);
/// assert_eq!(new.get(), 34);
///
/// // To a signed column, and back.
/// let column = i64::try_from(new)?;
/// assert_eq!(FencingToken::try_from(column)?, new);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
///
/// [C5]: distlock_api::contract#c5
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Makes a token of the given value. For backends, and for tokens that a resource has stored;
    /// applications get tokens from guards.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the value, to be stored beside the data that it protects.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.0
    }
}

impl TryFrom<FencingToken> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: FencingToken) -> Result<i64, TryFromIntError> {
        token.0.try_into()
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = TryFromIntError;

    fn try_from(value: i64) -> Result<Self, TryFromIntError> {
        value.try_into().map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_numbers_are_exact_or_refused() {
        let largest = FencingToken::new(i64::MAX as u64);
        assert_eq!(i64::try_from(largest), Ok(i64::MAX));
        assert_eq!(FencingToken::try_from(i64::MAX), Ok(largest));
        assert!(i64::try_from(FencingToken::new(1 << 63)).is_err());
        assert!(FencingToken::try_from(-1).is_err());
    }
}

//! Fencing tokens.

use std::fmt;

/// A number that grows with every grant of a key, so that a resource can refuse writers of the past.
///
/// Tokens strictly increase per key: across release, expiry, take-over, force-release, purge of the store's
/// record, fail-over and restart (contract clause C5). They are opaque otherwise: gaps are normal, and tokens of
/// different keys must not be compared.
///
/// The condition: the store's data and clock do not go back. Tokens can go back when the store is
/// restored from a backup. With MongoDB they also can when a replica set becomes a standalone after
/// its cluster time had run ahead of the wall clock. Then a resource refuses every legitimate holder,
/// and a late one with a greater token passes. The runbook is [*After a
/// restore*](../distlock_mongo/index.html#after-a-restore) in the documentation of `distlock-mongo`.
///
/// The tokens of `distlock-mongo` and of the in-memory backend stay below 2^53, so that readers that
/// turn numbers into doubles (JavaScript, Redis' Lua, many JSON libraries) compare them exactly. Of
/// another backend pass them on as text or as 64-bit integers.
///
/// A lease alone cannot stop a process that was paused beyond its lease and then writes. The resource can: it keeps the
/// highest token it has seen and refuses a smaller one. The idea is Martin Kleppmann's
/// ("How to do distributed locking", 2016), after Chubby's sequencers.
///
/// ```
/// use distlock_api::FencingToken;
///
/// let (old, new) = (FencingToken::new(33), FencingToken::new(34));
/// assert!(old < new);
/// assert_eq!(u64::from(new), 34);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token of the given value. Applications get tokens from guards; this is for backends and for tokens
    /// that come back from where a resource stored them.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The value, to be stored beside the data it protects.
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

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

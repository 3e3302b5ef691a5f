//! What a store knows about a lock.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::acquisition::AcquisitionId;
use crate::key::LockKey;
use crate::token::FencingToken;

/// What a store knows about a held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Which lock.
    pub key: LockKey,
    /// Which acquisition holds it; none while only a minimum hold keeps it closed.
    pub id: Option<AcquisitionId>,
    /// The last token granted.
    pub token: FencingToken,
    /// Time until it opens if nobody renews, by the store's clock.
    pub remaining: Duration,
    /// How many wait for it in the store's queue, one per process; none if the backend keeps no queue.
    pub waiting: Option<u32>,
    /// Who holds it, in the holder's words.
    pub owner: Option<String>,
    /// Anything else the holder said.
    pub metadata: BTreeMap<String, String>,
    /// Why the record is not what the backend writes, if it is not: changed by hand, or written by
    /// another program. Then everything else but the key may be missing.
    pub unreadable: Option<String>,
}

impl LockInfo {
    /// What is known about a key at the least.
    #[must_use]
    pub fn new(key: LockKey, id: Option<AcquisitionId>, token: FencingToken, remaining: Duration) -> Self {
        let metadata = BTreeMap::new();
        Self { key, id, token, remaining, waiting: None, owner: None, metadata, unreadable: None }
    }

    /// What is known about a key whose record is not what the backend writes.
    #[must_use]
    pub fn unreadable(key: LockKey, remaining: Duration, why: impl Into<String>) -> Self {
        let info = Self::new(key, None, FencingToken::new(0), remaining);
        Self { unreadable: Some(why.into()), ..info }
    }

    /// With the number of those who wait.
    #[must_use]
    pub fn with_waiting(mut self, waiting: u32) -> Self {
        self.waiting = Some(waiting);
        self
    }

    /// With the holder's own words.
    #[must_use]
    pub fn with_holder(mut self, owner: Option<String>, metadata: BTreeMap<String, String>) -> Self {
        self.owner = owner;
        self.metadata = metadata;
        self
    }
}

/// One time that a lock was taken away by force. See [`LockAdmin::history`](crate::LockAdmin::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForcedRelease {
    /// Which acquisition lost it; none if only a minimum hold kept it closed.
    pub id: Option<AcquisitionId>,
    /// Who lost it, in the holder's words.
    pub owner: Option<String>,
    /// The last token granted until then.
    pub token: FencingToken,
    /// When, by the store's clock: for people.
    pub at: SystemTime,
    /// Why, in the words of whoever took it away; a store may cut long ones.
    pub reason: String,
}

impl ForcedRelease {
    /// An entry, as it follows from what the victim was.
    #[must_use]
    pub fn of(victim: &LockInfo, at: SystemTime, reason: impl Into<String>) -> Self {
        Self::new(victim.id.clone(), victim.owner.clone(), victim.token, at, reason)
    }

    /// An entry.
    #[must_use]
    pub fn new(
        id: Option<AcquisitionId>,
        owner: Option<String>,
        token: FencingToken,
        at: SystemTime,
        reason: impl Into<String>,
    ) -> Self {
        Self { id, owner, token, at, reason: reason.into() }
    }
}

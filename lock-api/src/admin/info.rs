//! The state of a lock, for operators.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::acquisition::AcquisitionId;
use crate::key::LockKey;
use crate::mode::Mode;
use crate::token::FencingToken;

/// The state of a lock that is not free, as the store reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The key.
    pub key: LockKey,
    /// The acquisition that holds the lock, of several the one that was granted first; `None` while
    /// only a minimum hold keeps the key closed.
    pub id: Option<AcquisitionId>,
    /// The last token that was granted.
    pub token: FencingToken,
    /// The time until the key is free unless a lease is renewed, by the store's clock.
    pub remaining: Duration,
    /// The number of tickets in the store's queue, one per waiting process; `None` if the backend
    /// keeps no queue.
    pub waiting: Option<u32>,
    /// The owner of the acquisition in [`id`](Self::id), as the holder named it.
    pub owner: Option<String>,
    /// The holder's remarks, by name.
    pub metadata: BTreeMap<String, String>,
    /// All that hold the lock, in the order of their grants, if it is shared or held by permits;
    /// empty if it is held exclusively.
    pub holders: Vec<LockHolder>,
    /// Why the backend cannot read the record, if it cannot: it was changed by hand, or written by
    /// another program. Then all other fields but the key may be empty.
    pub unreadable: Option<String>,
}

impl LockInfo {
    /// Makes the state of a key from what every backend has.
    #[must_use]
    pub fn new(key: LockKey, id: Option<AcquisitionId>, token: FencingToken, remaining: Duration) -> Self {
        let metadata = BTreeMap::new();
        let holders = Vec::new();
        Self { key, id, token, remaining, waiting: None, owner: None, metadata, holders, unreadable: None }
    }

    /// Makes the state of a key whose record the backend cannot read.
    #[must_use]
    pub fn unreadable(key: LockKey, remaining: Duration, why: impl Into<String>) -> Self {
        let info = Self::new(key, None, FencingToken::new(0), remaining);
        Self { unreadable: Some(why.into()), ..info }
    }

    /// Sets the number of tickets in the queue.
    #[must_use]
    pub fn with_waiting(mut self, waiting: u32) -> Self {
        self.waiting = Some(waiting);
        self
    }

    /// Sets all holders of a lock that is not held exclusively.
    #[must_use]
    pub fn with_holders(mut self, holders: Vec<LockHolder>) -> Self {
        self.holders = holders;
        self
    }

    /// Returns how the lock is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.holders.first().map_or(Mode::Exclusive, |holder| holder.mode)
    }

    /// Sets the owner and the remarks.
    #[must_use]
    pub fn with_holder(mut self, owner: Option<String>, metadata: BTreeMap<String, String>) -> Self {
        self.owner = owner;
        self.metadata = metadata;
        self
    }
}

/// One of several that hold a lock. See [`LockInfo::holders`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The acquisition.
    pub id: AcquisitionId,
    /// The mode in which it holds the lock.
    pub mode: Mode,
    /// The last token of its grant.
    pub token: FencingToken,
    /// The time until its lease ends unless it is renewed, by the store's clock.
    pub remaining: Duration,
    /// The owner, as the holder named it.
    pub owner: Option<String>,
    /// The holder's remarks, by name.
    pub metadata: BTreeMap<String, String>,
}

impl LockHolder {
    /// Makes a holder.
    #[must_use]
    pub fn new(id: AcquisitionId, mode: Mode, token: FencingToken, remaining: Duration) -> Self {
        Self { id, mode, token, remaining, owner: None, metadata: BTreeMap::new() }
    }

    /// Sets the owner and the remarks.
    #[must_use]
    pub fn with_holder(mut self, owner: Option<String>, metadata: BTreeMap<String, String>) -> Self {
        self.owner = owner;
        self.metadata = metadata;
        self
    }
}

/// One forced release of a lock. See
/// [`LockAdmin::history`](crate::LockAdmin::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForcedRelease {
    /// The acquisition that lost the lock; `None` if only a minimum hold kept the key closed.
    pub id: Option<AcquisitionId>,
    /// The owner that lost the lock, as the holder named it.
    pub owner: Option<String>,
    /// The last token that was granted until then.
    pub token: FencingToken,
    /// The time, by the store's clock: for people.
    pub at: SystemTime,
    /// The reason, as the operator gave it; a store may cut a long one.
    pub reason: String,
}

impl ForcedRelease {
    /// Makes an entry from the state of the lock before its forced release.
    #[must_use]
    pub fn from_info(before: &LockInfo, at: SystemTime, reason: impl Into<String>) -> Self {
        Self::new(before.id.clone(), before.owner.clone(), before.token, at, reason)
    }

    /// Makes an entry.
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

//! The holders of one key, in the order of their grants. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::store::Grant;
use distlock_api::{AcquisitionId, FencingToken, Holder, LockHolder, Mode};

/// One lease of the key. Several hold it together if their modes fit (C26, C27); each has its own
/// expiry (C29).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Lease {
    pub(super) id: AcquisitionId,
    pub(super) mode: Mode,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "plausible_token"))]
    pub(super) first_token: u64,
    pub(super) tokens: NonZeroU32,
    pub(super) granted_at: Duration,
    pub(super) expires_at: Duration,
    pub(super) holder: Holder,
    /// Whether it was released, and stays until the end of its minimum hold (C25). Only a lease
    /// that is not exclusive does.
    pub(super) released: bool,
}

/// Leaves so many tokens that no step can come to the end of the numbers.
pub(super) fn is_plausible(token: u64) -> bool {
    i64::try_from(token).is_ok()
}

#[cfg(feature = "serde")]
pub(super) fn plausible_token<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let token: u64 = serde::Deserialize::deserialize(deserializer)?;
    if is_plausible(token) {
        return Ok(token);
    }
    Err(serde::de::Error::custom(format_args!("{token} is the token of a foreign hand: they end at {}", i64::MAX)))
}

impl Lease {
    pub(super) fn last_token(&self) -> u64 {
        self.first_token + u64::from(self.tokens.get() - 1)
    }

    pub(super) fn grant(&self, now: Duration) -> Grant {
        Grant::new(FencingToken::new(self.first_token), self.expires_at - now).with_tokens(self.tokens)
    }

    /// A lease is held while `now < expires_at`, and free from `expires_at` on.
    fn is_live(&self, now: Duration) -> bool {
        now < self.expires_at
    }

    fn describe(&self, now: Duration) -> LockHolder {
        let Self { id, mode, expires_at, holder, .. } = self;
        let token = FencingToken::new(self.last_token());
        LockHolder::new(id.clone(), *mode, token, expires_at.saturating_sub(now)).with_holder(
            holder.owner.as_deref().map(str::to_owned),
            holder.metadata.as_deref().cloned().unwrap_or_default(),
        )
    }
}

/// All leases of the key. Expired ones stay until a step drops them, but do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Holders(Vec<Lease>);

impl Holders {
    /// Returns the leases that hold the key, the first granted first.
    pub(super) fn live(&self, now: Duration) -> impl Iterator<Item = &Lease> {
        self.0.iter().filter(move |lease| lease.is_live(now))
    }

    /// Returns the ids of all leases, expired or not.
    pub(super) fn ids(&self) -> impl Iterator<Item = &AcquisitionId> {
        self.0.iter().map(|lease| &lease.id)
    }

    pub(super) fn is_free(&self, now: Duration) -> bool {
        self.live(now).next().is_none()
    }

    /// Returns the lease of this acquisition, if it holds the key.
    pub(super) fn held_by(&mut self, now: Duration, id: &AcquisitionId) -> Option<&mut Lease> {
        self.0.iter_mut().find(|lease| lease.id == *id && lease.is_live(now) && !lease.released)
    }

    /// Returns whether a request of this mode fits beside the holders (C26, C27).
    pub(super) fn admit(&self, now: Duration, mode: Mode) -> bool {
        mode.fits(self.live(now).map(|lease| lease.mode))
    }

    /// Returns when the last of the leases ends, expired ones included.
    pub(super) fn last_end(&self) -> Option<Duration> {
        self.0.iter().map(|lease| lease.expires_at).max()
    }

    /// Returns when there may be room for a request that does not fit now: when the first lease
    /// ends. The others may have been given up by then.
    pub(super) fn next_room(&self, now: Duration) -> Option<Duration> {
        self.live(now).map(|lease| lease.expires_at).min()
    }

    pub(super) fn add(&mut self, lease: Lease) -> &Lease {
        self.0.push(lease);
        self.0.last().expect("it was just added")
    }

    /// Removes the leases of this acquisition.
    pub(super) fn remove(&mut self, id: &AcquisitionId) {
        self.0.retain(|lease| lease.id != *id);
    }

    /// Removes the expired leases, and returns their ids, without those that were released.
    pub(super) fn drop_expired(&mut self, now: Duration) -> Vec<AcquisitionId> {
        let expired = self.0.iter().filter(|lease| !lease.is_live(now) && !lease.released);
        let expired = expired.map(|lease| lease.id.clone()).collect();
        self.0.retain(|lease| lease.is_live(now));
        expired
    }

    /// Ends all leases as if their time had passed.
    pub(super) fn expire(&mut self, now: Duration) {
        for lease in &mut self.0 {
            lease.expires_at = lease.expires_at.min(now);
        }
    }

    /// Describes the holders; `None` if the key is held exclusively.
    pub(super) fn describe(&self, now: Duration) -> Option<Vec<LockHolder>> {
        let is_shared = self.live(now).any(|lease| !lease.mode.is_exclusive());
        is_shared.then(|| self.live(now).map(|lease| lease.describe(now)).collect())
    }
}

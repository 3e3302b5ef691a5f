//! The lease record of one key and its transitions: no clock, no lock, no I/O.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::store::{
    AcquisitionId, Attempt, BusyReply, Claim, Grant, Release, Renewal, RenewalSubject, Reply, Standing, StoreTime,
};
use distlock_api::{FencingToken, ForcedRelease, Holder, LockInfo, LockKey, Loss, ReleaseOutcome};

/// How many ended leases a record remembers, so that a repeated release hears what the first one did (C10).
const REMEMBERED: usize = 64;
/// How many releases by force a record remembers.
const HISTORY: usize = 5;

/// What the store knows about one key. Every `now` is the store's clock: the time since its origin.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The last token granted, or skipped by a force-release.
    token: u64,
    lease: Option<Lease>,
    /// The end of a minimum hold (C25).
    closed_until: Duration,
    ended: VecDeque<(AcquisitionId, Ending)>,
    history: VecDeque<ForcedRelease>,
}

#[derive(Clone, Debug)]
struct Lease {
    id: AcquisitionId,
    first_token: u64,
    tokens: NonZeroU32,
    granted_at: Duration,
    expires_at: Duration,
    holder: Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Released,
    ForceReleased,
}

impl Lease {
    fn last_token(&self) -> u64 {
        self.first_token + u64::from(self.tokens.get() - 1)
    }

    fn grant(&self, now: Duration) -> Grant {
        Grant::new(FencingToken::new(self.first_token), self.expires_at - now).with_tokens(self.tokens)
    }
}

impl Record {
    /// A record whose tokens start above `floor`: the highest token of any record that was removed (C5).
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            token: floor,
            lease: None,
            closed_until: Duration::ZERO,
            ended: VecDeque::new(),
            history: VecDeque::new(),
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Whose lease stands here, expired or not.
    pub(crate) fn lease_of(&self) -> Option<&AcquisitionId> {
        self.lease.as_ref().map(|lease| &lease.id)
    }

    pub(crate) fn history(&self) -> Vec<ForcedRelease> {
        self.history.iter().cloned().collect()
    }

    pub(crate) fn try_acquire(&mut self, now: Duration, attempt: &Attempt) -> Reply {
        let expires_at = now.saturating_add(attempt.ttl);
        if let Some(lease) = self.held_by(now, &attempt.claim) {
            lease.expires_at = lease.expires_at.max(expires_at);
            return Reply::Granted(lease.grant(now));
        }
        let opens_at = self.opens_at();
        if now < opens_at {
            let busy = BusyReply::new()
                .with_holder_remaining(opens_at - now)
                .with_anchor(StoreTime::since_origin(now), FencingToken::new(self.token));
            return Reply::Busy(busy);
        }
        let lease = Lease {
            id: attempt.claim.id().clone(),
            first_token: self.token + 1,
            tokens: attempt.tokens,
            granted_at: now,
            expires_at,
            holder: attempt.holder.clone(),
        };
        self.token = lease.last_token();
        let grant = lease.grant(now);
        self.lease = Some(lease);
        Reply::Granted(grant)
    }

    /// Extends, never revives (C12): an expired lease stays expired even while nobody has taken the key.
    pub(crate) fn renew(&mut self, now: Duration, renewal: &Renewal) -> Standing {
        let RenewalSubject::Lease { token, ttl } = renewal.subject else { return Standing::Gone(Loss::Gone) };
        match self.held_by(now, &renewal.claim) {
            Some(lease) if lease.last_token() == token.get() => {
                lease.expires_at = lease.expires_at.max(now.saturating_add(ttl));
                Standing::Held { remaining: lease.expires_at - now }
            }
            _ => Standing::Gone(self.how_lost(renewal.claim.id())),
        }
    }

    pub(crate) fn release(&mut self, now: Duration, release: &Release) -> ReleaseOutcome {
        let Some(lease) = self.held_by(now, &release.claim) else {
            return match self.ending(release.claim.id()) {
                Some(Ending::Released) => ReleaseOutcome::Released,
                _ => ReleaseOutcome::AlreadyLost,
            };
        };
        if let Some(hold) = release.hold_at_least {
            self.closed_until = lease.granted_at.saturating_add(hold);
        }
        self.end(Ending::Released);
        ReleaseOutcome::Released
    }

    /// Opens the key whoever holds it, a minimum hold included, and skips a token (C22).
    pub(crate) fn force_release(&mut self, now: Duration, entry: ForcedRelease) {
        if now < self.opens_at() {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(entry);
            self.token += 1;
            self.closed_until = now;
            self.end(Ending::ForceReleased);
        }
    }

    /// As if the time until the key opens had passed.
    pub(crate) fn expire(&mut self, now: Duration) {
        self.closed_until = self.closed_until.min(now);
        if let Some(lease) = &mut self.lease {
            lease.expires_at = lease.expires_at.min(now);
        }
    }

    /// Who holds the key, or what keeps it closed; none if it is free.
    pub(crate) fn describe(&self, now: Duration, key: &LockKey) -> Option<LockInfo> {
        let remaining = self.opens_at().checked_sub(now).filter(|remaining| !remaining.is_zero())?;
        let lease = self.lease.as_ref().filter(|lease| now < lease.expires_at);
        let info =
            LockInfo::new(key.clone(), lease.map(|lease| lease.id.clone()), FencingToken::new(self.token), remaining);
        Some(match lease {
            Some(Lease { holder, .. }) => info.with_holder(
                holder.owner.as_deref().map(str::to_owned),
                holder.metadata.as_deref().cloned().unwrap_or_default(),
            ),
            None => info,
        })
    }

    /// Held while `now < expires_at`, free from `expires_at` on.
    fn opens_at(&self) -> Duration {
        self.lease.as_ref().map_or(self.closed_until, |lease| lease.expires_at.max(self.closed_until))
    }

    fn held_by(&mut self, now: Duration, claim: &Claim) -> Option<&mut Lease> {
        self.lease.as_mut().filter(|lease| lease.id == *claim.id() && now < lease.expires_at)
    }

    fn how_lost(&self, id: &AcquisitionId) -> Loss {
        match self.ending(id) {
            Some(Ending::ForceReleased) => Loss::ForceReleased,
            _ => Loss::Gone,
        }
    }

    fn ending(&self, id: &AcquisitionId) -> Option<Ending> {
        self.ended.iter().rev().find(|(ended, _)| ended == id).map(|(_, ending)| *ending)
    }

    fn end(&mut self, ending: Ending) {
        if let Some(lease) = self.lease.take() {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back((lease.id, ending));
        }
    }
}

#[cfg(test)]
mod tests;

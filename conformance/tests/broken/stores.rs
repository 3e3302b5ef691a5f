//! Stores that break a rule of [`LeaseStore`].

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use distlock_api::store::{
    AcquisitionId, Attempt, Claim, Grant, Release, Renewal, RenewalSubject, Reply, Standing, StoreCapabilities,
};
use distlock_api::{
    Disposition, FencingToken, LeaseStore, LockAdmin, LockError, LockKey, ReleaseOutcome, Result, async_trait,
};
use distlock_memory::MemoryStore;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// Nothing is wrong with it: it is slow.
    Slow,
    /// Every grant has the same token.
    ConstantToken,
    /// Each client counts for itself.
    TokenPerClient,
    /// The record expires after half of what the answer says.
    HalfTheTtl,
    /// A release frees the key, whoever holds it.
    ReleaseByKey,
    /// A release says that it was done, and was not.
    ReleaseLies,
    /// A release says `Released` even if there was nothing to release.
    AlwaysReleased,
    /// A renewal of a lease that is gone takes it again.
    RenewalGrants,
    /// A renewal prolongs whatever lease the key has.
    RenewalByKey,
    /// A renewal that fails says that the lease is gone.
    ErrorIsLoss,
    /// No error may be retried.
    ErrorsArePermanent,
    /// A minimum hold is not kept.
    NoMinimumHold,
}

/// How long a request takes for [`Store::Slow`].
const SLOW: Duration = Duration::from_millis(40);

impl Store {
    pub(crate) fn around(self, inner: MemoryStore) -> BrokenStore {
        BrokenStore { inner, broken: self, seen: Mutex::default() }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenStore {
    inner: MemoryStore,
    broken: Store,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The token that the inner store gave to an acquisition.
    tokens: HashMap<AcquisitionId, FencingToken>,
    grants: HashMap<LockKey, u64>,
}

impl BrokenStore {
    fn disguise(&self, claim: &Claim, grant: Grant) -> Grant {
        let mut seen = self.seen.lock().unwrap();
        let again = seen.tokens.insert(claim.id().clone(), grant.token).is_some();
        let count = seen.grants.entry(claim.key().clone()).or_default();
        *count += u64::from(!again);
        let token = match self.broken {
            Store::ConstantToken => 7,
            Store::TokenPerClient => *count,
            _ => return grant,
        };
        Grant::new(FencingToken::new(token), grant.remaining).with_tokens(NonZeroU32::MIN)
    }

    /// The renewal as the inner store knows the lease.
    fn undisguise(&self, renewal: &Renewal) -> Renewal {
        let mut renewal = renewal.clone();
        if let RenewalSubject::Lease { token, .. } = &mut renewal.subject
            && let Some(known) = self.seen.lock().unwrap().tokens.get(renewal.claim.id())
        {
            *token = *known;
        }
        renewal
    }
}

fn permanent(error: LockError) -> LockError {
    error.with_disposition(Disposition::Permanent)
}

#[async_trait]
impl LeaseStore for BrokenStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn name(&self) -> &str {
        "broken"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let mut attempt = attempt.clone();
        if self.broken == Store::Slow {
            tokio::time::sleep(SLOW).await;
        }
        if self.broken == Store::HalfTheTtl {
            attempt.ttl /= 2;
        }
        let reply = match self.inner.try_acquire(&attempt).await {
            Err(error) if self.broken == Store::ErrorsArePermanent => return Err(permanent(error)),
            reply => reply?,
        };
        Ok(match reply {
            Reply::Granted(mut grant) => {
                if self.broken == Store::HalfTheTtl {
                    grant.remaining *= 2;
                }
                Reply::Granted(self.disguise(&attempt.claim, grant))
            }
            busy => busy,
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let renewal = self.undisguise(renewal);
        let mut answer = self.inner.renew_many(std::slice::from_ref(&renewal)).await;
        let standing = answer.pop().expect("one answer for one renewal");
        let RenewalSubject::Lease { ttl, .. } = renewal.subject else { return standing };
        match (self.broken, standing) {
            (Store::ErrorIsLoss, Err(_)) => Ok(Standing::Gone(distlock_api::Loss::Gone)),
            (Store::RenewalGrants, Ok(Standing::Gone(_))) => {
                self.inner.try_acquire(&Attempt::new(renewal.claim, ttl)).await?;
                Ok(Standing::Held { remaining: ttl })
            }
            (Store::RenewalByKey, Ok(Standing::Gone(_))) => {
                if let Some(holder) = self.inner.peek(renewal.claim.key())
                    && let Some(id) = holder.id
                {
                    let theirs = Claim::new(holder.key, id);
                    let _ = self.inner.renew(&Renewal::lease(theirs, holder.token, ttl)).await?;
                }
                Ok(Standing::Held { remaining: ttl })
            }
            (_, standing) => standing,
        }
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let mut release = release.clone();
        match self.broken {
            Store::ReleaseLies => return Ok(ReleaseOutcome::Released),
            Store::NoMinimumHold => release.hold_at_least = None,
            _ => {}
        }
        let outcome = self.inner.release(&release).await?;
        if self.broken == Store::ReleaseByKey {
            self.inner.force_release(release.claim.key());
        }
        Ok(if self.broken == Store::AlwaysReleased { ReleaseOutcome::Released } else { outcome })
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        LeaseStore::admin(&self.inner)
    }
}

//! Stores that break a rule of [`LeaseStore`].

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{
    AcquisitionId, Disposition, ErrorKind, FencingToken, LockError, LockKey, ReleaseOutcome, Result, async_trait,
};
use distlock_conformance::DisturbedStore;
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, Claim, Grant, Release, Renewal, RenewalSubject, Reply, Standing, StoreCapabilities, StoreExtras,
};
use distlock_memory::MemoryStore;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// Every grant has the same token.
    ConstantToken,
    /// Each client counts tokens by itself.
    TokenPerClient,
    /// The record expires after half of the reported time.
    HalfTheTtl,
    /// A release frees the key, whichever claim holds it.
    ReleaseByKey,
    /// A release returns `Released` and does nothing.
    ReleaseDoesNothing,
    /// A release returns `Released` even if there was nothing to release.
    AlwaysReleased,
    /// A renewal of a lease that is gone takes it again.
    RenewalGrants,
    /// A renewal prolongs whatever lease the key has.
    RenewalByKey,
    /// A renewal that fails reports the lease as gone.
    ErrorIsLoss,
    /// Every error is permanent.
    ErrorsArePermanent,
    /// Every error of an attempt is reported as a missing capability.
    ErrorsAreUnsupported,
    /// A minimum hold is not kept.
    NoMinimumHold,
    /// Tokens restart after the record was removed.
    TokenResets,
    /// All acquisitions of a client have one id for each key.
    OwnerPerProcess,
    /// A renewal is sent after the release, and takes the lease again.
    RenewsAfterRelease,
    /// A release that fails returns `Released`.
    SwallowsErrors,
    /// The record outlives the reported time.
    Overstays,
}

/// How long after the release [`Store::RenewsAfterRelease`] sends the renewal.
const LATE: Duration = Duration::from_millis(30);
/// By how much the record of [`Store::Overstays`] outlives its lease.
const OVERSTAY: Duration = Duration::from_secs(20);

impl Store {
    /// A store on the way from a client to the memory behind `inner`.
    pub(crate) fn around(self, inner: &DisturbedStore, memory: &MemoryStore, removed: &Arc<Removed>) -> BrokenStore {
        let (inner, memory, removed) = (inner.clone(), memory.clone(), Arc::clone(removed));
        BrokenStore { inner, memory, broken: self, removed, seen: Mutex::default() }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenStore {
    inner: DisturbedStore,
    memory: MemoryStore,
    broken: Store,
    removed: Arc<Removed>,
    seen: Mutex<Seen>,
}

/// The keys whose records were removed. The value is the last forgotten token, or `None` until the
/// next grant shows it.
#[derive(Debug, Default)]
pub(crate) struct Removed(Mutex<HashMap<LockKey, Option<u64>>>);

impl Removed {
    pub(crate) fn add(&self, key: LockKey) {
        self.0.lock().unwrap().insert(key, None);
    }

    /// Returns a token as it is counted after the removal.
    fn since(&self, key: &LockKey, token: u64) -> u64 {
        match self.0.lock().unwrap().get_mut(key) {
            Some(forgotten) => token - *forgotten.get_or_insert(token - 1),
            None => token,
        }
    }
}

#[derive(Debug, Default)]
struct Seen {
    /// The token that the inner store granted to an acquisition.
    tokens: HashMap<AcquisitionId, FencingToken>,
    grants: HashMap<LockKey, u64>,
    claims: HashMap<LockKey, Claim>,
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
            Store::TokenResets => self.removed.since(claim.key(), grant.token.get()),
            _ => return grant,
        };
        Grant::new(FencingToken::new(token), grant.remaining).with_tokens(NonZeroU32::MIN)
    }

    /// Returns the claim that the inner store sees.
    fn claim(&self, claim: &Claim) -> Claim {
        if self.broken != Store::OwnerPerProcess {
            return claim.clone();
        }
        self.seen.lock().unwrap().claims.entry(claim.key().clone()).or_insert_with(|| claim.clone()).clone()
    }

    /// Returns the renewal with the claim and the token of the inner store.
    fn undisguise(&self, renewal: &Renewal) -> Renewal {
        let mut renewal = renewal.clone();
        renewal.claim = self.claim(&renewal.claim);
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
        attempt.claim = self.claim(&attempt.claim);
        if self.broken == Store::HalfTheTtl {
            attempt.ttl /= 2;
        }
        if self.broken == Store::Overstays {
            attempt.ttl += OVERSTAY;
        }
        let reply = match self.inner.try_acquire(&attempt).await {
            Err(error) if self.broken == Store::ErrorsArePermanent => return Err(permanent(error)),
            Err(error) if self.broken == Store::ErrorsAreUnsupported => {
                return Err(LockError::new(ErrorKind::Unsupported, error.to_string()));
            }
            reply => reply?,
        };
        Ok(match reply {
            Reply::Granted(mut grant) => {
                if self.broken == Store::HalfTheTtl {
                    grant.remaining *= 2;
                }
                if self.broken == Store::Overstays {
                    grant.remaining = grant.remaining.saturating_sub(OVERSTAY);
                }
                Reply::Granted(self.disguise(&attempt.claim, grant))
            }
            busy => busy,
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let renewal = self.undisguise(renewal);
        let standing = self.inner.renew(&renewal).await;
        let RenewalSubject::Lease { ttl, .. } = renewal.subject else { return standing };
        match (self.broken, standing) {
            (Store::ErrorIsLoss, Err(_)) => Ok(Standing::Gone(distlock_api::Loss::Gone)),
            (Store::RenewalGrants, Ok(Standing::Gone(_))) => {
                self.inner.try_acquire(&Attempt::new(renewal.claim, ttl)).await?;
                Ok(Standing::Held { remaining: ttl })
            }
            (Store::RenewalByKey, Ok(Standing::Gone(_))) => {
                if let Some(holder) = self.memory.peek(renewal.claim.key())
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
        release.claim = self.claim(&release.claim);
        match self.broken {
            Store::ReleaseDoesNothing => return Ok(ReleaseOutcome::Released),
            Store::NoMinimumHold => release.hold_at_least = None,
            _ => {}
        }
        let outcome = match self.inner.release(&release).await {
            Err(_) if self.broken == Store::SwallowsErrors => ReleaseOutcome::Released,
            outcome => outcome?,
        };
        if self.broken == Store::ReleaseByKey {
            self.memory.force_release(release.claim.key());
        }
        if self.broken == Store::RenewsAfterRelease {
            let (inner, claim) = (self.inner.clone(), release.claim.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LATE).await;
                inner.try_acquire(&Attempt::new(claim, Duration::from_secs(1))).await
            });
        }
        Ok(if self.broken == Store::AlwaysReleased { ReleaseOutcome::Released } else { outcome })
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.admin = self.inner.extras().admin;
        extras
    }
}

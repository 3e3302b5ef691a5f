//! Providers that break a rule of [`LockProvider`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Busy, Capabilities, ErrorKind, FencingToken, LeaseHandle, LeaseOptions,
    LockAdmin, LockError, LockGuard, LockKey, LockProvider, Loss, LostSignal, Mode, ReleaseFuture, ReleaseOutcome,
    Result, Wait, async_trait,
};
use distlock_engine::store::{Attempt, Claim, ProviderId, Release, Reply};
use distlock_engine::{LeaseProvider, LeaseStore};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// `acquire_now` grants every key.
    GrantsNow,
    /// `acquire_now` reports every key as busy, even to calls that may wait.
    BusyNow,
    /// A holder is granted its lock again.
    ReEntrant,
    /// A single attempt on a free lock is answered busy.
    AttemptsAreBusy,
    /// An acquisition continues after its future was dropped, and its lock is never released.
    CancelLeaks,
    /// A wait has no end.
    NoTimeout,
    /// Options that make no sense are replaced by the defaults.
    CorrectsOptions,
    /// `A` is `a`.
    FoldsCase,
    /// Only the beginning of a key counts.
    FoldsPrefix,
    /// The token is read from the store after the grant.
    ReReadsToken,
    /// A grant is returned even after its own deadline.
    ReturnsLateGrants,
    /// A timeout is checked only between attempts.
    TimesOutBetweenAttempts,
    /// A timeout forgets the attempt in flight.
    TimeoutForgetsAttempt,
    /// Every call fails: no promise can be judged.
    Fails,
    /// Every call panics: no promise can be judged.
    Panics,
    /// Releases are not counted.
    MiscountsReleases,
    /// `close` returns at once and does nothing.
    NoClose,
    /// A maximum hold is ignored.
    NoMaximumHold,
    /// Modes that the backend does not have are taken as exclusive.
    IgnoresModes,
    /// The end of a wait for a busy key is reported as an error of the store.
    BusyIsAnError,
}

/// The number of characters that count for [`Provider::FoldsPrefix`].
const PREFIX: usize = 64;
/// How much later than a detached acquisition its caller gets the result.
const AFTERWARDS: Duration = Duration::from_millis(10);
/// How long the query of [`Provider::ReReadsToken`] takes.
const SECOND_QUERY: Duration = Duration::from_millis(30);

impl Provider {
    pub(crate) fn around(self, engine: LeaseProvider) -> BrokenProvider {
        BrokenProvider { engine, broken: self, granted: Mutex::default() }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenProvider {
    engine: LeaseProvider,
    broken: Provider,
    granted: Mutex<HashMap<LockKey, FencingToken>>,
}

/// A second guard of a lock that is held by the first one.
struct Shared;

impl LeaseHandle for Shared {
    fn valid_until(&self) -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    fn loss(&self) -> Option<Loss> {
        None
    }

    fn lost(&self) -> LostSignal {
        LostSignal::never()
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        ReleaseFuture::done(Ok(ReleaseOutcome::Released))
    }
}

/// A lease of a naive client without the engine.
struct Naive {
    store: Arc<dyn LeaseStore>,
    claim: Claim,
    valid_until: Instant,
}

impl LeaseHandle for Naive {
    fn valid_until(&self) -> Option<Instant> {
        Some(self.valid_until)
    }

    fn loss(&self) -> Option<Loss> {
        (Instant::now() >= self.valid_until).then_some(Loss::Expired)
    }

    fn lost(&self) -> LostSignal {
        let valid_until = self.valid_until;
        LostSignal::new(async move {
            tokio::time::sleep_until(valid_until).await;
            Loss::Expired
        })
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        ReleaseFuture::running(async move { self.store.release(&Release::new(self.claim.clone())).await })
    }
}

/// A guard with another token.
struct Renumbered(LockGuard);

impl LeaseHandle for Renumbered {
    fn valid_until(&self) -> Option<Instant> {
        self.0.remaining().map(|remaining| Instant::now() + remaining)
    }

    fn loss(&self) -> Option<Loss> {
        self.0.loss()
    }

    fn lost(&self) -> LostSignal {
        self.0.lost()
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        self.0.release()
    }
}

impl BrokenProvider {
    async fn acquire_and_read_token(&self, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        let Acquired::Held(guard) = self.engine.acquire_with(key.clone(), options).await? else {
            return Ok(Acquired::Busy(Busy::new()));
        };
        tokio::time::sleep(SECOND_QUERY).await;
        let admin = self.engine.admin().expect("a store with administration");
        let token = admin.inspect(key).await?.map_or(guard.fencing_token(), |info| info.token);
        Ok(Acquired::Held(LockGuard::new(key.clone(), token, Box::new(Renumbered(guard)))))
    }

    /// Repeats attempts until one is granted, or until the time is up after an attempt.
    async fn acquire_naively(&self, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        let (store, terms, start) = (self.engine.store(), options.lease().terms()?, Instant::now());
        loop {
            let claim = Claim::new(key.clone(), ProviderId::random().acquisition_id());
            let sent = Instant::now();
            if let Reply::Granted(grant) = store.try_acquire(&Attempt::new(claim.clone(), terms.ttl)).await? {
                // As the answer of a store in another process, which takes its time.
                tokio::time::sleep(SECOND_QUERY).await;
                let valid_until = sent + grant.remaining.saturating_sub(terms.margin);
                if self.broken == Provider::ReturnsLateGrants || Instant::now() < valid_until {
                    let naive = Naive { store: store.clone(), claim, valid_until };
                    return Ok(Acquired::Held(LockGuard::new(key.clone(), grant.token, Box::new(naive))));
                }
                store.withdraw(&claim, Duration::from_secs(1)).await?;
            }
            let is_over = match options.wait() {
                Wait::Try => true,
                Wait::UpTo(limit) => start.elapsed() >= limit,
                Wait::Forever => false,
            };
            if is_over {
                return Ok(Acquired::Busy(Busy::new()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn acquire_under(&self, key: LockKey, other_key: String, options: AcquireOptions) -> Result<Acquired> {
        Ok(match self.engine.acquire_with(LockKey::new(other_key)?, options).await? {
            Acquired::Held(guard) => Acquired::Held(guard.with_key(key)),
            busy => busy,
        })
    }

    async fn acquire_again(&self, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        let mut acquired = self.engine.acquire_with(key.clone(), options.clone().with_wait(Wait::Try)).await?;
        if matches!(acquired, Acquired::Busy(_)) {
            if let Some(token) = self.granted.lock().unwrap().get(key) {
                return Ok(Acquired::Held(LockGuard::new(key.clone(), *token, Box::new(Shared))));
            }
            acquired = self.engine.acquire_with(key.clone(), options).await?;
        }
        if let Acquired::Held(guard) = &acquired {
            self.granted.lock().unwrap().insert(key.clone(), guard.fencing_token());
        }
        Ok(acquired)
    }

    async fn acquire_detached(&self, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        let (engine, key) = (self.engine.clone(), key.clone());
        let acquiring = tokio::spawn(async move { engine.acquire_with(key.clone(), options).await });
        let (sender, receiver) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let acquired = acquiring.await;
            // A caller that gives up has left by now.
            tokio::time::sleep(AFTERWARDS).await;
            if let Ok(acquired) = acquired
                && let Err(unclaimed) = sender.send(acquired)
            {
                std::mem::forget(unclaimed);
            }
        });
        receiver.await.expect("the task sends before it ends")
    }
}

impl fmt::Display for BrokenProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.broken, self.engine)
    }
}

#[async_trait]
impl LockProvider for BrokenProvider {
    async fn acquire_with(&self, key: LockKey, mut options: AcquireOptions) -> Result<Acquired> {
        match self.broken {
            Provider::ReEntrant => return self.acquire_again(&key, options).await,
            Provider::AttemptsAreBusy if options.wait() == Wait::Try => {
                if let Acquired::Held(guard) = self.engine.acquire_with(key, options).await? {
                    guard.release().await?;
                }
                return Ok(Acquired::Busy(Busy::new()));
            }
            Provider::CancelLeaks => return self.acquire_detached(&key, options).await,
            Provider::NoTimeout if options.wait() != Wait::Try => options = options.with_wait(Wait::Forever),
            Provider::CorrectsOptions if options.lease().terms().is_err() => {
                options = options.with_lease(LeaseOptions::new());
            }
            Provider::NoMaximumHold if options.lease().get_max_hold().is_some() => {
                options = options.with_lease(LeaseOptions::new());
            }
            Provider::IgnoresModes => options = options.with_mode(Mode::Exclusive),
            Provider::FoldsCase => {
                let folded = key.as_str().to_ascii_lowercase();
                return self.acquire_under(key, folded, options).await;
            }
            Provider::FoldsPrefix => {
                let prefix = key.as_str().chars().take(PREFIX).collect();
                return self.acquire_under(key, prefix, options).await;
            }
            Provider::BusyIsAnError if options.wait() != Wait::Try => {
                return match self.engine.acquire_with(key, options).await? {
                    Acquired::Busy(_) => Err(LockError::new(ErrorKind::Unavailable, "the lock was not granted")),
                    held => Ok(held),
                };
            }
            Provider::Fails => return Err(LockError::new(ErrorKind::Other, "nothing works")),
            Provider::Panics => panic!("nothing works"),
            Provider::ReReadsToken => return self.acquire_and_read_token(&key, options).await,
            Provider::ReturnsLateGrants | Provider::TimesOutBetweenAttempts => {
                return self.acquire_naively(&key, options).await;
            }
            Provider::TimeoutForgetsAttempt => {
                if let Wait::UpTo(limit) = options.wait() {
                    let acquiring = self.acquire_detached(&key, options.with_wait(Wait::Forever));
                    return tokio::time::timeout(limit, acquiring).await.unwrap_or(Ok(Acquired::Busy(Busy::new())));
                }
            }
            _ => {}
        }
        self.engine.acquire_with(key, options).await
    }

    fn acquire_now(&self, key: &LockKey, _: &AcquireOptions) -> Option<Result<Acquired>> {
        match self.broken {
            Provider::GrantsNow => {
                let token = FencingToken::new(u64::MAX);
                Some(Ok(Acquired::Held(LockGuard::new(key.clone(), token, Box::new(Shared)))))
            }
            Provider::BusyNow => Some(Ok(Acquired::Busy(Busy::new()))),
            _ => None,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn accounting(&self) -> Accounting {
        let mut accounting = self.engine.accounting();
        if self.broken == Provider::MiscountsReleases {
            accounting.released = 0;
        }
        accounting
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.engine.admin()
    }

    async fn close(&self) -> Result<()> {
        if self.broken == Provider::NoClose { Ok(()) } else { self.engine.close().await }
    }
}

/// Takes several locks in the order in which they are named, with one timeout for all.
pub(crate) async fn acquire_as_named(
    provider: Arc<dyn LockProvider>,
    keys: Vec<LockKey>,
    options: AcquireOptions,
) -> Result<Option<Vec<LockGuard>>> {
    let (start, mut guards) = (Instant::now(), Vec::<LockGuard>::new());
    for key in keys {
        if guards.iter().any(|guard| *guard.key() == key) {
            continue;
        }
        let wait = match options.wait() {
            Wait::UpTo(limit) => Wait::UpTo(limit.saturating_sub(start.elapsed())),
            wait => wait,
        };
        match provider.acquire_with(key, options.clone().with_wait(wait)).await? {
            Acquired::Held(guard) => guards.push(guard),
            Acquired::Busy(_) => return Ok(None),
        }
        tokio::task::yield_now().await;
    }
    Ok(Some(guards))
}

//! Providers that break a rule of [`LockProvider`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Busy, Capabilities, FencingToken, HeldLock, LeaseOptions, LeaseProvider,
    LockAdmin, LockGuard, LockKey, LockProvider, Loss, LostSignal, ReleaseFuture, ReleaseOutcome, Result, Wait,
    async_trait,
};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// Whoever holds a lock gets it again.
    ReEntrant,
    /// A single attempt is told that a free lock is busy.
    LiesToAttempts,
    /// An acquisition goes on after its future was dropped, and nobody releases what it gets.
    CancelLeaks,
    /// A wait has no end.
    NoTimeout,
    /// Options that make no sense are replaced by the defaults.
    CorrectsOptions,
    /// `A` is `a`.
    FoldsCase,
    /// Releases are not counted.
    MiscountsReleases,
    /// `close` returns at once and does nothing.
    NoClose,
}

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

/// A second guard of a lock that the first one holds.
struct Shared;

impl HeldLock for Shared {
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

impl BrokenProvider {
    async fn acquire_again(&self, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        let tried = self.engine.acquire_with(key.clone(), options.clone().with_wait(Wait::Try)).await?;
        let mut granted = self.granted.lock().unwrap();
        Ok(match tried {
            Acquired::Held(guard) => {
                granted.insert(key.clone(), guard.fencing_token());
                Acquired::Held(guard)
            }
            Acquired::Busy(busy) => match granted.get(key) {
                Some(token) => Acquired::Held(LockGuard::new(key.clone(), *token, Box::new(Shared))),
                None => Acquired::Busy(busy),
            },
        })
    }

    async fn acquire_detached(&self, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        let (engine, key) = (self.engine.clone(), key.clone());
        let acquiring = tokio::spawn(async move { engine.acquire_with(key.clone(), options).await });
        let (tell, told) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            if let Ok(acquired) = acquiring.await
                && let Err(nobody) = tell.send(acquired)
            {
                std::mem::forget(nobody);
            }
        });
        told.await.expect("the task ends after it has told")
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
            Provider::LiesToAttempts if options.wait() == Wait::Try => {
                if let Acquired::Held(guard) = self.engine.acquire_with(key, options).await? {
                    let _ = guard.release().await?;
                }
                return Ok(Acquired::Busy(Busy::new()));
            }
            Provider::CancelLeaks => return self.acquire_detached(&key, options).await,
            Provider::NoTimeout if options.wait() != Wait::Try => options = options.with_wait(Wait::Forever),
            Provider::CorrectsOptions if options.lease().terms().is_err() => {
                options = options.with_lease(LeaseOptions::new());
            }
            Provider::FoldsCase => {
                let folded = LockKey::new(key.as_str().to_ascii_lowercase())?;
                return Ok(match self.engine.acquire_with(folded, options).await? {
                    Acquired::Held(guard) => Acquired::Held(guard.with_key(key.clone())),
                    busy => busy,
                });
            }
            _ => {}
        }
        self.engine.acquire_with(key, options).await
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

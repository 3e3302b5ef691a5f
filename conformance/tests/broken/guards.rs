//! Guards that break a rule of [`HeldLock`].

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, FencingToken, HeldLock, LockAdmin, LockKey, LockProvider, Loss,
    LostSignal, ReleaseFuture, Result, async_trait,
};
use distlock_engine::store::{Claim, ProviderId, Renewal};
use distlock_engine::{LeaseProvider, LeaseStore};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guards {
    /// The guard never says that it is lost, by no means.
    NeverLost,
    /// `is_lost` is right, but nobody is told.
    NoSignal,
    /// The deadline is later by what the request took.
    CountsFromTheReply,
    /// The guard is valid as long as the store's lease.
    NoMargin,
    /// A drop does not release.
    NoDrop,
    /// A release stops when its future is dropped.
    ReleaseStops,
    /// Before a loss is signalled, a last renewal must have returned.
    AfterTheRenewal,
    /// A task of the runtime notes the loss: while the runtime stands still nobody does.
    NotedByTask,
    /// Only the first signal that is asked for ever completes.
    SignalsOnce,
}

impl Guards {
    pub(crate) fn around(self, engine: LeaseProvider) -> BrokenGuards {
        BrokenGuards { engine, broken: self }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenGuards {
    engine: LeaseProvider,
    broken: Guards,
}

struct Held {
    inner: ManuallyDrop<Box<dyn HeldLock>>,
    broken: Guards,
    margin: Duration,
    /// How long the acquisition took.
    took: Duration,
    store: Arc<dyn LeaseStore>,
    key: LockKey,
    noted: Arc<OnceLock<Loss>>,
    asked: AtomicBool,
}

/// What a careful client sends before it gives up.
async fn last_renewal(store: Arc<dyn LeaseStore>, key: LockKey) {
    let claim = Claim::new(key, ProviderId::random().acquisition_id());
    let _ = store.renew(&Renewal::lease(claim, FencingToken::new(0), Duration::from_secs(1))).await;
}

impl HeldLock for Held {
    fn valid_until(&self) -> Option<Instant> {
        let until = self.inner.valid_until()?;
        Some(match self.broken {
            Guards::CountsFromTheReply => until + self.took,
            Guards::NoMargin => until + self.margin,
            Guards::NeverLost => until + Duration::from_secs(3600),
            _ => until,
        })
    }

    fn loss(&self) -> Option<Loss> {
        match self.broken {
            Guards::NeverLost => None,
            Guards::NotedByTask => self.noted.get().copied(),
            _ => self.inner.loss(),
        }
    }

    fn lost(&self) -> LostSignal {
        match self.broken {
            Guards::NeverLost | Guards::NoSignal => LostSignal::never(),
            Guards::SignalsOnce if self.asked.swap(true, Ordering::Relaxed) => LostSignal::never(),
            Guards::AfterTheRenewal => {
                let (lost, renewal) = (self.inner.lost(), last_renewal(self.store.clone(), self.key.clone()));
                LostSignal::new(async move {
                    let loss = lost.await;
                    renewal.await;
                    loss
                })
            }
            _ => self.inner.lost(),
        }
    }

    fn release(mut self: Box<Self>) -> ReleaseFuture {
        let stops = self.broken == Guards::ReleaseStops;
        // The box is not dropped by us after this: `taken` says so.
        let inner = self.take();
        if stops {
            // Nothing happens before the first poll, and the lease is forgotten with the future.
            let inner = ManuallyDrop::new(inner);
            return ReleaseFuture::running(async move {
                tokio::task::yield_now().await;
                ManuallyDrop::into_inner(inner).release().await
            });
        }
        inner.release()
    }
}

impl Held {
    fn take(&mut self) -> Box<dyn HeldLock> {
        std::mem::replace(&mut *self.inner, Box::new(Nothing))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.broken != Guards::NoDrop {
            drop(self.take());
        }
    }
}

/// What is left when the lock was taken out.
struct Nothing;

impl HeldLock for Nothing {
    fn valid_until(&self) -> Option<Instant> {
        None
    }

    fn loss(&self) -> Option<Loss> {
        None
    }

    fn lost(&self) -> LostSignal {
        LostSignal::never()
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        ReleaseFuture::done(Ok(distlock_api::ReleaseOutcome::AlreadyLost))
    }
}

impl fmt::Display for BrokenGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.broken, self.engine)
    }
}

#[async_trait]
impl LockProvider for BrokenGuards {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let margin = options.lease().terms().map(|terms| terms.margin).unwrap_or_default();
        let (broken, asked) = (self.broken, Instant::now());
        Ok(match self.engine.acquire_with(key.clone(), options).await? {
            Acquired::Held(guard) => {
                let (took, store) = (asked.elapsed(), self.engine.store().clone());
                let noted = Arc::<OnceLock<Loss>>::default();
                if broken == Guards::NotedByTask {
                    let (lost, noted) = (guard.lost(), Arc::clone(&noted));
                    tokio::spawn(async move { noted.set(lost.await) });
                }
                let asked = AtomicBool::new(false);
                let held =
                    |inner| Held { inner: ManuallyDrop::new(inner), broken, margin, took, store, key, noted, asked };
                Acquired::Held(guard.map_held(|inner| Box::new(held(inner))))
            }
            busy => busy,
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn accounting(&self) -> Accounting {
        self.engine.accounting()
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.engine.admin()
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}

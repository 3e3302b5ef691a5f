//! Guards that break a rule of [`LeaseHandle`].

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, FencingToken, LeaseHandle, LockAdmin, LockKey, LockProvider,
    Loss, LostSignal, ReleaseFuture, Result, async_trait,
};
use distlock_engine::store::{Claim, ProviderId, Renewal};
use distlock_engine::{LeaseProvider, LeaseStore};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guards {
    /// The guard never reports a loss, in any way.
    NeverLost,
    /// `is_lost` is right, but `lost()` never completes.
    NoSignal,
    /// The deadline is later by the duration of the request.
    CountsFromTheReply,
    /// The guard is valid for as long as the store's lease.
    NoMargin,
    /// A drop does not release.
    NoDrop,
    /// A release stops when its future is dropped.
    ReleaseStops,
    /// A loss is signalled only after a last renewal has returned.
    AfterTheRenewal,
    /// A task of the runtime records the loss, so nothing is recorded while the runtime stands
    /// still.
    RecordedByTask,
    /// Only the first `lost()` completes.
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
    inner: ManuallyDrop<Box<dyn LeaseHandle>>,
    broken: Guards,
    margin: Duration,
    /// How long the acquisition took.
    took: Duration,
    store: Arc<dyn LeaseStore>,
    key: LockKey,
    recorded: Arc<OnceLock<Loss>>,
    signalled: AtomicBool,
}

/// Sends a last renewal before the loss is signalled.
async fn last_renewal(store: Arc<dyn LeaseStore>, key: LockKey) {
    let claim = Claim::new(key, ProviderId::random().acquisition_id());
    let _ = store.renew(&Renewal::lease(claim, FencingToken::new(0), Duration::from_secs(1))).await;
}

impl LeaseHandle for Held {
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
            Guards::RecordedByTask => self.recorded.get().copied(),
            _ => self.inner.loss(),
        }
    }

    fn lost(&self) -> LostSignal {
        match self.broken {
            Guards::NeverLost | Guards::NoSignal => LostSignal::never(),
            Guards::SignalsOnce if self.signalled.swap(true, Ordering::Relaxed) => LostSignal::never(),
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
        // After this the box holds [`Nothing`], so its drop has no effect.
        let inner = self.take();
        if stops {
            // Nothing happens before the first poll, and dropping the future forgets the lease.
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
    fn take(&mut self) -> Box<dyn LeaseHandle> {
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

/// What is left after the lock was taken out.
struct Nothing;

impl LeaseHandle for Nothing {
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
        let (broken, started) = (self.broken, Instant::now());
        Ok(match self.engine.acquire_with(key.clone(), options).await? {
            Acquired::Held(guard) => {
                let (took, store) = (started.elapsed(), self.engine.store().clone());
                let recorded = Arc::<OnceLock<Loss>>::default();
                if broken == Guards::RecordedByTask {
                    let (lost, recorded) = (guard.lost(), Arc::clone(&recorded));
                    tokio::spawn(async move { recorded.set(lost.await) });
                }
                let signalled = AtomicBool::new(false);
                let held = |inner| Held {
                    inner: ManuallyDrop::new(inner),
                    broken,
                    margin,
                    took,
                    store,
                    key,
                    recorded,
                    signalled,
                };
                Acquired::Held(guard.map_handle(|inner| Box::new(held(inner))))
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

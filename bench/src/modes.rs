//! Shared locks and permits, beside tokio's locks without keys.

use std::future::Future;
use std::sync::Arc;

use distlock_api::{LockKey, LockProvider, LockProviderExt, Mode};
use distlock_memory::MemoryProvider;
use tokio::sync::{RwLock, Semaphore};

use crate::Contender;

/// As many permits as the semaphores here have.
const PERMITS: u32 = 1_000;

/// One tokio lock for readers, whatever the key: the cost without keys.
#[derive(Default)]
pub struct BareRead(RwLock<()>);

impl Contender for BareRead {
    const NAME: &'static str = "tokio RwLock, read, no key";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, _key: &LockKey, work: W) -> W::Output {
        let guard = self.0.read().await;
        let done = work.await;
        drop(guard);
        done
    }
}

/// One tokio semaphore, whatever the key.
pub struct BarePermit(Semaphore);

impl Default for BarePermit {
    fn default() -> Self {
        Self(Semaphore::new(PERMITS as usize))
    }
}

impl Contender for BarePermit {
    const NAME: &'static str = "tokio Semaphore, no key";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, _key: &LockKey, work: W) -> W::Output {
        let permit = self.0.acquire().await.expect("it is never closed");
        let done = work.await;
        drop(permit);
        done
    }
}

/// `MemoryProvider` in a mode that is not exclusive.
struct InMode(Arc<dyn LockProvider>);

impl Default for InMode {
    fn default() -> Self {
        Self(Arc::new(MemoryProvider::new()))
    }
}

impl InMode {
    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, mode: Mode, work: W) -> W::Output {
        let guard = self.0.acquire(key).mode(mode).await.expect("a wait without end ends with a guard");
        let done = work.await;
        assert!(guard.release().await.is_ok_and(|outcome| outcome.is_released()));
        done
    }
}

/// `MemoryProvider`, shared.
#[derive(Default)]
pub struct Shared(InMode);

impl Contender for Shared {
    const NAME: &'static str = "distlock acquire(key).shared()";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, work: W) -> W::Output {
        self.0.locked_during(key, Mode::Shared, work).await
    }
}

/// `MemoryProvider`, one of many permits.
#[derive(Default)]
pub struct Permit(InMode);

impl Contender for Permit {
    const NAME: &'static str = "distlock acquire(key).permits(1, n)";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, work: W) -> W::Output {
        self.0.locked_during(key, Mode::Permits { take: 1, of: PERMITS }, work).await
    }
}

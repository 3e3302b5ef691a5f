//! The crates compared, behind one shape: how to take and give back the lock of a key.

pub mod modes;
pub mod tower;

use std::future::Future;
use std::sync::Arc;

use distlock_api::{AcquireOptions, LockKey, LockProvider, LockProviderExt};
use distlock_memory::MemoryProvider;
use keyed_lock::r#async::KeyedLock;
use lockable::LockPool;

/// Something that locks keys. Every contender gets the same [`LockKey`], and those that want to own
/// it get a clone.
pub trait Contender: Default + Send + Sync + 'static {
    /// Its name in the tables.
    const NAME: &'static str;

    /// Acquires the lock of a key, waits for `work` under it and releases.
    fn locked_during<W: Future<Output: Send> + Send>(
        &self,
        key: &LockKey,
        work: W,
    ) -> impl Future<Output = W::Output> + Send;

    /// Acquires the lock of a key, runs `work` under it and releases.
    fn locked<T: Send>(&self, key: &LockKey, work: impl FnOnce() -> T + Send) -> impl Future<Output = T> + Send {
        self.locked_during(key, async { work() })
    }
}

/// One tokio mutex, whatever the key: the cost without keys.
#[derive(Default)]
pub struct Bare(tokio::sync::Mutex<()>);

impl Contender for Bare {
    const NAME: &'static str = "tokio Mutex, no key";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, _key: &LockKey, work: W) -> W::Output {
        let guard = self.0.lock().await;
        let done = work.await;
        drop(guard);
        done
    }
}

/// Crate `keyed-lock`.
pub struct Keyed(KeyedLock<LockKey>);

impl Default for Keyed {
    fn default() -> Self {
        Self(KeyedLock::new())
    }
}

impl Contender for Keyed {
    const NAME: &'static str = "keyed-lock";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, work: W) -> W::Output {
        let guard = self.0.lock(key.clone()).await;
        let done = work.await;
        drop(guard);
        done
    }
}

/// Crate `lockable`.
pub struct Lockable(LockPool<LockKey>);

impl Default for Lockable {
    fn default() -> Self {
        Self(LockPool::new())
    }
}

impl Contender for Lockable {
    const NAME: &'static str = "lockable";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, work: W) -> W::Output {
        let guard = self.0.async_lock(key.clone()).await;
        let done = work.await;
        drop(guard);
        done
    }
}

/// `MemoryProvider` as applications hold it, through the trait's one method.
pub struct Plain(Arc<dyn LockProvider>);

impl Default for Plain {
    fn default() -> Self {
        Self(Arc::new(MemoryProvider::new()))
    }
}

impl Contender for Plain {
    const NAME: &'static str = "distlock acquire_with";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, work: W) -> W::Output {
        let acquired = self.0.acquire_with(key.clone(), AcquireOptions::new()).await;
        let guard = acquired.ok().and_then(|acquired| acquired.held()).expect("a wait without end ends with a guard");
        let done = work.await;
        assert!(guard.release().await.is_ok_and(|outcome| outcome.is_released()));
        done
    }
}

/// `MemoryProvider` as applications hold and call it.
pub struct Fluent(Arc<dyn LockProvider>);

impl Default for Fluent {
    fn default() -> Self {
        Self(Arc::new(MemoryProvider::new()))
    }
}

impl Contender for Fluent {
    const NAME: &'static str = "distlock acquire(key)";

    async fn locked_during<W: Future<Output: Send> + Send>(&self, key: &LockKey, work: W) -> W::Output {
        let guard = self.0.acquire(key).await.expect("a wait without end ends with a guard");
        let done = work.await;
        assert!(guard.release().await.is_ok_and(|outcome| outcome.is_released()));
        done
    }
}

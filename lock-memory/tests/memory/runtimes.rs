//! Providers in a `static`, as tests share them: each `#[tokio::test]` has a runtime of its own.

use std::sync::LazyLock;
use std::time::Duration;

use distlock_api::{LockProvider, LockProviderExt};
use distlock_engine::LeaseProvider;
use distlock_memory::{MemoryProvider, MemoryStore};
use tokio::runtime::Builder;
use tokio::time::sleep;

static DIRECT: LazyLock<MemoryProvider> = LazyLock::new(MemoryProvider::new);
static STORE: LazyLock<MemoryStore> = LazyLock::new(MemoryStore::new);
static ONE: LazyLock<LeaseProvider> = LazyLock::new(|| STORE.provider());
static OTHER: LazyLock<LeaseProvider> = LazyLock::new(|| STORE.provider());

/// A hand-over, a minimum hold, a lease that is renewed, and a guard that outlives the test.
async fn uses(one: &'static dyn LockProvider, other: &'static dyn LockProvider) {
    let first = one.acquire("k").await.unwrap();
    let next = tokio::spawn(async { other.acquire("k").await.unwrap().release().await.unwrap() });
    sleep(Duration::from_millis(50)).await;
    assert!(first.release().await.unwrap().is_released() && next.await.unwrap().is_released());
    let held = one.acquire("held").hold_at_least(Duration::from_secs(5)).await.unwrap();
    assert!(held.release().await.unwrap().is_released());
    let kept = other.acquire("held").await.unwrap();
    sleep(Duration::from_secs(90)).await;
    assert_eq!(kept.loss(), None);
    drop(kept);
}

#[test]
fn c16_static_providers_serve_one_runtime_after_another() {
    for _ in 0..3 {
        for (one, other) in [(&*DIRECT as &dyn LockProvider, &*DIRECT as &dyn LockProvider), (&*ONE, &*OTHER)] {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(uses(one, other));
        }
    }
}

//! The fluent calls: keys, `run`, and the answer at the end of a wait.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use distlock_api::{
    AcquireOptions, Acquired, ErrorKind, Instrumented, LockGuard, LockKey, LockProvider, LockProviderExt, Mode,
    Namespaced, Result, Wait, async_trait, delegate_provider,
};
use distlock_memory::{MemoryProvider, MemoryStore};

const SHORT: Duration = Duration::from_millis(20);

#[tokio::test]
async fn each_wait_ends_with_the_same_error() {
    let locks = MemoryProvider::new();
    let held = locks.acquire("b").await.unwrap();
    let one = locks.acquire("b").timeout(SHORT).await.map(drop).unwrap_err();
    let all = locks.acquire_all(["a", "b"]).timeout(SHORT).await.map(drop).unwrap_err();
    let once = locks.acquire_all(["a", "b"]).options(AcquireOptions::try_once()).await.map(drop).unwrap_err();
    for error in [one, all, once] {
        assert!(error.is_not_granted() && error.is_retryable(), "{error:?}");
        assert_eq!(error.key().map(LockKey::as_str), Some("b"), "{error:?}");
        assert_eq!(
            error.to_string(),
            r#"the lock was not granted (timed out waiting for the present holder) [lock "b"]"#
        );
    }
    assert!(locks.try_acquire("b").within(SHORT).await.unwrap().is_none());
    assert!(locks.try_acquire_all(["a", "b"]).within(SHORT).await.unwrap().is_none());
    // A wait without an end stays an attempt.
    let forever = AcquireOptions::new().with_wait(Wait::Forever);
    assert!(locks.try_acquire_all(["a", "b"]).options(forever).await.unwrap().is_none());
    assert!(locks.try_acquire("a").await.unwrap().is_some(), "all or nothing");
    drop(held);
}

#[tokio::test]
async fn work_runs_under_one_or_several_locks() {
    let locks = MemoryProvider::new();
    let token = locks.acquire(("orders", 7)).run(async |token| token).await.unwrap();
    let next = locks.try_acquire(("orders", 7)).run(async |token| token).await.unwrap().unwrap();
    assert!(next > token);
    let tokens = locks.acquire_all(["b", "a", "b"]).run(async |tokens| tokens).await.unwrap();
    assert_eq!(tokens.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((tokens.get("a"), tokens.get("c"), tokens.len()), (Some(tokens["a"]), None, 2));

    let held = locks.acquire("b").await.unwrap();
    assert!(locks.try_acquire("b").run(async |_| panic!("the lock is busy")).await.unwrap().is_none());
    let all = locks.try_acquire_all(["a", "b"]).run(async |_| panic!("a lock is busy")).await.unwrap();
    assert!(all.is_none());
    assert!(held.release().await.unwrap().is_released());
    assert_eq!(locks.try_acquire_all(["a", "b"]).run(async |tokens| tokens.len()).await.unwrap(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn work_under_several_locks_ends_when_one_is_lost() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let work = locks.acquire_all(["a", "b"]).run(async |_| {
        store.force_release("b");
        std::future::pending::<()>().await;
    });
    assert_eq!(work.await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn both_guards_say_how_long_they_are_valid() {
    let locks = MemoryStore::new().provider();
    let ttl = Duration::from_secs(10);
    let all = locks.acquire_all([1, 2]).ttl(ttl).await.unwrap();
    let second = all.get(2).expect("the lock of the key 2");
    assert!(all.get("1").is_some() && all.get("").is_none() && all.get(3).is_none());
    assert_eq!(all.valid_until(), all.guards().iter().filter_map(LockGuard::valid_until).min());
    assert!(all.remaining() <= second.remaining() && all.remaining() > Some(ttl / 2));
    assert!(!all.is_lost() && all.loss().is_none());
    // Locks of one process do not expire.
    let one = MemoryProvider::new().acquire("k").await.unwrap();
    assert_eq!((one.valid_until(), one.remaining()), (None, None));
}

/// Counts the calls that make a future.
#[derive(Debug, Default)]
struct Counted {
    inner: MemoryProvider,
    futures: AtomicU64,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

#[async_trait]
impl LockProvider for Counted {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        self.futures.fetch_add(1, Relaxed);
        self.inner.acquire_with(key, options).await
    }
    delegate_provider!(this => this.inner; acquire_now, capabilities, accounting, admin, close);
}

#[tokio::test]
async fn c21_free_keys_are_acquired_in_one_pass() {
    let counted = Arc::new(Counted::default());
    let locks: Arc<dyn LockProvider> = Arc::new(Namespaced::new(counted.clone(), "n").unwrap());
    let keys = || (0..100).rev().map(|number| format!("{number:02}")).chain(["07".to_owned()]);
    let all = locks.acquire_all(keys()).mode_of("50", Mode::Shared).await.unwrap();
    let of_guards: Vec<&str> = all.guards().iter().map(|guard| guard.key().as_str()).collect();
    assert!(of_guards.len() == 100 && of_guards.is_sorted(), "{of_guards:?}");
    assert!(all.release().await.unwrap().is_released());
    assert!(locks.try_acquire_all(keys()).await.unwrap().is_some());
    assert_eq!(counted.futures.load(Relaxed), 0);
    let all = locks.acquire_all(keys()).mode_of("50", Mode::Shared).await.unwrap();
    assert!(locks.try_acquire("50").shared().await.unwrap().is_some());
    assert!(locks.try_acquire("51").shared().await.unwrap().is_none());
    drop(all);
    assert_eq!(counted.inner.keys_in_use(), 0);
}

#[tokio::test]
async fn c21_the_pass_ends_at_the_first_key_that_is_busy() {
    let locks = Counted::default();
    let holder = locks.acquire("b").await.unwrap();
    let before = locks.futures.load(Relaxed);
    {
        let mut all = std::pin::pin!(locks.acquire_all(["c", "b", "a"]).into_future());
        assert!(futures_util::poll!(&mut all).is_pending());
        // The call that waits for b: the provider refused a try of b at once.
        assert_eq!(locks.futures.load(Relaxed), before + 1);
        assert!(locks.try_acquire("a").await.unwrap().is_none(), "a smaller key is held meanwhile");
        assert!(locks.try_acquire("c").await.unwrap().is_some(), "a greater one is not");
        assert!(holder.release().await.unwrap().is_released());
        assert_eq!(all.await.unwrap().guards().len(), 3);
    }
    let holder = locks.acquire("b").await.unwrap();
    let before = locks.futures.load(Relaxed);
    assert!(locks.try_acquire_all(["c", "b", "a"]).await.unwrap().is_none());
    assert_eq!((locks.inner.keys_in_use(), locks.futures.load(Relaxed)), (1, before), "all or nothing");
    let invalid = locks.acquire_all(["a", "c"]).permits(3, 2).await.map(drop).unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::InvalidOptions);
    drop(holder);
    locks.close().await.unwrap();
    assert_eq!(locks.acquire_all(["a", "c"]).await.map(drop).unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn names_are_given_as_any_kind_of_text() {
    let (name, shared): (String, Arc<str>) = ("web-1".into(), "web-1".into());
    let locks = Instrumented::new(MemoryProvider::builder().owner(&name).build().unwrap()).named(&name);
    for guard in [
        locks.acquire("a").owner(&name).await.unwrap(),
        locks.acquire("b").owner("web-1").await.unwrap(),
        locks.acquire("c").owner(shared).await.unwrap(),
        locks.acquire("d").owner(name).await.unwrap(),
    ] {
        let info = locks.admin().unwrap().inspect(guard.key()).await.unwrap().unwrap();
        assert_eq!(info.owner.as_deref(), Some("web-1"));
    }
}

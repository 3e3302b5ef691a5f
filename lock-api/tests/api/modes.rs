//! Modes through the fluent calls and wrappers.

use distlock_api::{
    AcquireOptions, Capabilities, ErrorKind, Instrumented, LockKey, LockProvider, LockProviderExt, Mode, Namespaced,
};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};

const MODES: [Mode; 2] = [Mode::Shared, Mode::Permits { take: 1, of: 2 }];

#[tokio::test]
async fn a_mode_of_a_key_that_is_not_acquired_is_refused_before_any_request() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let wait = locks.acquire_all(["a", "b"]).mode_of("c", Mode::Shared).await.map(drop).unwrap_err();
    let attempt = locks.try_acquire_all(["a", "b"]).mode_of("c", Mode::Exclusive).await.map(drop).unwrap_err();
    for error in [wait, attempt] {
        assert_eq!((error.kind(), error.key().map(LockKey::as_str)), (ErrorKind::InvalidOptions, Some("c")));
    }
    let invalid = locks.acquire_all(["a"]).mode_of("", Mode::Shared).await.map(drop).unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::InvalidKey);
    assert_eq!(store.calls(Operation::TryAcquire), 0);
}

#[tokio::test]
async fn several_keys_have_the_modes_that_are_set() {
    let locks = MemoryProvider::new();
    let all = || locks.acquire_all(["a", "b", "c"]).shared().mode_of("b", Mode::Exclusive).mode_of("c", MODES[1]);
    let guards = all().await.unwrap();
    assert!(locks.try_acquire("a").shared().await.unwrap().is_some());
    assert!(locks.try_acquire("b").shared().await.unwrap().is_none());
    assert!(locks.try_acquire("c").permits(2, 2).await.unwrap().is_none());
    assert!(locks.try_acquire("c").mode(MODES[1]).await.unwrap().is_some());
    assert!(locks.try_acquire_all(["a", "c"]).shared().mode_of("c", MODES[1]).await.unwrap().is_some());
    assert!(locks.try_acquire_all(["a", "b"]).shared().await.unwrap().is_none());
    assert!(guards.release().await.unwrap().is_released());
    assert!(locks.try_acquire_all(["a", "b", "c"]).await.unwrap().is_some());
    assert_eq!(locks.keys_in_use(), 0);
}

#[tokio::test]
async fn wrappers_pass_modes_on() {
    async fn check(locks: impl LockProvider) {
        let Capabilities { shared, permits, .. } = locks.capabilities();
        assert!(shared && permits, "{locks}");
        for mode in MODES {
            let options = AcquireOptions::try_once().with_mode(mode);
            let first = locks.try_acquire("k").mode(mode).await.unwrap().expect("free");
            let now = locks.acquire_now(&LockKey::new("k").unwrap(), &options);
            let second = match now {
                Some(answer) => answer.unwrap().held().expect("beside the first"),
                None => locks.acquire("k").options(options).await.unwrap(),
            };
            assert!(locks.try_acquire("k").await.unwrap().is_none(), "{locks}: exclusive beside {mode}");
            assert!(first.release().await.unwrap().is_released() && second.release().await.unwrap().is_released());
        }
        assert!(locks.accounting().balances());
    }
    check(Instrumented::new(MemoryProvider::new())).await;
    check(Namespaced::new(MemoryProvider::new(), "n").unwrap()).await;
    check(Instrumented::new(Namespaced::new(Box::new(MemoryProvider::new()), "n").unwrap())).await;
}

#[tokio::test]
async fn a_mode_that_makes_no_sense_is_refused_through_wrappers_too() {
    let locks = Namespaced::new(MemoryProvider::new(), "n").unwrap();
    let error = locks.acquire("k").permits(3, 2).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.key().map(LockKey::as_str)), (ErrorKind::InvalidOptions, Some("k")));
}

//! The blocking interface: on plain threads, and in the async contexts that its documentation
//! lists.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::blocking::Provider;
use distlock::memory::{MemoryProvider, MemoryStore, Operation};
use distlock::{ErrorKind, LockAdmin, LockError, LockKey, ReleaseOutcome};
use tokio::runtime::{Builder, Runtime};

const SOON: Duration = Duration::from_secs(30);

fn memory() -> Provider {
    Provider::new(MemoryProvider::new()).unwrap()
}

/// Polls until the condition holds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn one_thread_at_a_time_holds_the_lock() {
    let (locks, inside, total) = (memory(), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let work = locks.acquire(("orders", 7)).timeout(SOON).run(|guard| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(!guard.is_lost() && guard.ensure_held().is_ok());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        total.fetch_add(1, Ordering::SeqCst);
                    });
                    work.unwrap();
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 200);
    assert!(locks.provider().accounting().balances());
}

#[test]
fn a_busy_lock_is_none_or_an_error_at_the_end_of_the_wait() {
    let locks = memory();
    let guard = locks.acquire("k").call().unwrap();
    assert!(locks.try_acquire("k").call().unwrap().is_none());
    assert!(locks.try_acquire("k").run(|_| panic!("the lock is busy")).unwrap().is_none());
    let error = locks.acquire("k").timeout(Duration::from_millis(5)).call().unwrap_err();
    assert!(error.is_not_granted(), "{error:?}");
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    assert_eq!(locks.try_acquire("k").run(|_| 7).unwrap(), Some(7));
    assert_eq!(locks.acquire("").call().unwrap_err().kind(), ErrorKind::InvalidKey);
}

#[test]
fn threads_read_together_and_write_alone() {
    let (locks, readers) = (memory(), Barrier::new(3));
    thread::scope(|scope| {
        for _ in 0..3 {
            // Each waits inside for the others.
            scope.spawn(|| locks.acquire("k").shared().timeout(SOON).run(|_| readers.wait()).unwrap());
        }
    });
    let guard = locks.try_acquire("k").permits(2, 3).call().unwrap().expect("free");
    assert!(locks.try_acquire("k").permits(2, 3).call().unwrap().is_none());
    let key = LockKey::new("k").unwrap();
    let admin = locks.provider().admin().unwrap();
    let info = locks.block_on(admin.inspect(&key)).unwrap().unwrap().unwrap();
    let taken = admin.force_release_holder(&key, &info.holders[0].id, "test");
    assert_eq!(locks.block_on(taken).unwrap().unwrap(), Some(info));
    assert!(guard.is_lost());
    assert_eq!(locks.acquire("k").permits(4, 3).call().unwrap_err().kind(), ErrorKind::InvalidOptions);
}

#[test]
fn a_lease_is_renewed_while_no_call_is_made() {
    let store = MemoryStore::new();
    let locks = Provider::new(store.provider()).unwrap();
    let ttl = Duration::from_secs(3);
    let guard = locks.acquire("k").ttl(ttl).call().unwrap();
    // One per third of the ttl, so the first ttl is over by then.
    eventually("the lease is renewed", || store.calls(Operation::Renew) > 4);
    guard.ensure_held().unwrap();
    assert!(guard.remaining().unwrap() <= ttl);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    locks.close().unwrap();
    assert_eq!(locks.acquire("k").call().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_dropped_guard_is_released_in_the_background() {
    let store = MemoryStore::new();
    let [locks, others] = [store.provider(), store.provider()].map(|provider| Provider::new(provider).unwrap());
    // The ttl ends long after the wait.
    drop(locks.acquire("k").ttl(4 * SOON).call().unwrap());
    let guard = others.acquire("k").timeout(SOON).call().unwrap();
    assert!(guard.fencing_token().get() > 0);
}

#[test]
fn a_loss_is_an_error_of_the_next_check() {
    let provider = MemoryProvider::new();
    let locks = Provider::new(provider.clone()).unwrap();
    let guard = locks.acquire("k").call().unwrap();
    let key = LockKey::new("k").unwrap();
    locks.block_on(provider.force_release(&key, "test")).unwrap().unwrap();
    eventually("the guard is lost", || guard.is_lost());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::AlreadyLost);
}

#[test]
fn in_a_current_thread_runtime_it_is_an_error_and_no_panic() {
    let locks = memory();
    let guard = locks.acquire("held").call().unwrap();
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        assert_eq!(locks.acquire("k").call().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Unsupported);
        let made = Provider::connect(async { Ok::<_, LockError>(MemoryProvider::new()) });
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Unsupported);
        // Its runtime ends here, in an async context.
        drop(memory());
    });
    // The release that could not be waited for was carried out.
    assert!(locks.acquire("held").timeout(SOON).call().is_ok());
}

#[test]
fn in_a_multi_thread_runtime_it_blocks() {
    let locks = memory();
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let guard = locks.acquire("k").call().unwrap();
        let waiting = locks.clone();
        let waits = tokio::spawn(async move { waiting.acquire("k").timeout(SOON).run(|_| 1).unwrap() });
        let tried = locks.clone();
        let busy = tokio::task::spawn_blocking(move || tried.try_acquire("k").call().unwrap().is_none());
        assert!(busy.await.unwrap());
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
        assert_eq!(waits.await.unwrap(), 1);
    });
}

#[test]
fn a_borrowed_runtime_must_run_by_itself() {
    let runtime = Runtime::new().unwrap();
    let locks = Provider::with_handle(MemoryProvider::new(), runtime.handle().clone()).unwrap();
    assert!(locks.try_acquire("k").call().unwrap().is_some());
    let idle = Builder::new_current_thread().build().unwrap();
    let error = Provider::with_handle(MemoryProvider::new(), idle.handle().clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
}

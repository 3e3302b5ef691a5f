//! Calls that are polled by hand.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use distlock_api::{LockError, LockGuard, LockKey, LockProvider, LockProviderExt, Mode};
use distlock_memory::MemoryProvider;
use futures_util::FutureExt;

pub(crate) use Mode::{Exclusive, Shared};

pub(crate) type Waiting<'a> = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send + 'a>>;

pub(crate) const KEY: &str = "k";

pub(crate) const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

pub(crate) fn key() -> LockKey {
    LockKey::new(KEY).unwrap()
}

pub(crate) fn poll(waiting: &mut Waiting<'_>, waker: &Waker) -> Poll<LockGuard> {
    waiting.as_mut().poll(&mut Context::from_waker(waker)).map(Result::unwrap)
}

/// A call that has not been polled.
pub(crate) fn call(locks: &MemoryProvider, mode: Mode) -> Waiting<'_> {
    Box::pin(locks.acquire(KEY).mode(mode).into_future())
}

/// A guard that is granted at once.
pub(crate) fn held(locks: &MemoryProvider, mode: Mode) -> LockGuard {
    match poll(&mut call(locks, mode), Waker::noop()) {
        Poll::Ready(guard) => guard,
        Poll::Pending => panic!("{mode} should be granted at once"),
    }
}

/// A call that waits.
pub(crate) fn waiter(locks: &MemoryProvider, mode: Mode) -> Waiting<'_> {
    waiter_with(locks, mode, Waker::noop())
}

/// A call that waits, to be woken by this waker.
pub(crate) fn waiter_with<'a>(locks: &'a MemoryProvider, mode: Mode, waker: &Waker) -> Waiting<'a> {
    let mut waiting = call(locks, mode);
    assert!(poll(&mut waiting, waker).is_pending(), "{mode} should wait");
    waiting
}

/// The guard of a call whose turn has come.
pub(crate) fn ready(waiting: &mut Waiting<'_>) -> LockGuard {
    match poll(waiting, Waker::noop()) {
        Poll::Ready(guard) => guard,
        Poll::Pending => panic!("the turn should have come"),
    }
}

pub(crate) fn waits(waiting: &mut Waiting<'_>) -> bool {
    poll(waiting, Waker::noop()).is_pending()
}

/// Whether one attempt in this mode finds the key busy.
pub(crate) fn is_busy(locks: &MemoryProvider, mode: Mode) -> bool {
    refusal(locks.try_acquire(KEY).mode(mode).into_future()).unwrap().is_none()
}

/// Returns the answer of a call that does not wait. A refusal lets other tasks run once.
pub(crate) fn refusal<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    call.as_mut().now_or_never().or_else(|| call.now_or_never()).expect("it does not wait")
}

pub(crate) fn release(guard: LockGuard) -> bool {
    guard.release().now_or_never().expect("a release does not wait").unwrap().is_released()
}

/// Asserts that nothing is held or waited for, and every acquisition is accounted for.
pub(crate) fn assert_idle(locks: &MemoryProvider) {
    let accounting = locks.accounting();
    assert!(accounting.balances() && accounting.held == 0 && accounting.waiting == 0, "{accounting:?}");
    assert_eq!(locks.keys_in_use(), 0);
}

/// A waker that counts. It calls the provider, as foreign code may: it would wait for itself under
/// a lock of the provider.
pub(crate) struct Counting(MemoryProvider, AtomicUsize);

impl Counting {
    pub(crate) fn new(locks: &MemoryProvider) -> Arc<Self> {
        Arc::new(Self(locks.clone(), AtomicUsize::new(0)))
    }

    pub(crate) fn count(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        assert!(self.0.accounting().balances());
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

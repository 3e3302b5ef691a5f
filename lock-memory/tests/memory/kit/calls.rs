//! Helpers of the tests of `MemoryProvider`: calls that are polled by hand, outside of any runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use distlock_api::{LockError, LockGuard, LockProvider, LockProviderExt};
use distlock_memory::MemoryProvider;

pub(crate) type Waiting<'a> = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send + 'a>>;

pub(crate) fn poll_with<F: Future + ?Sized>(future: &mut Pin<Box<F>>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

/// Runs a future outside of any runtime. A refusal lets other tasks run once.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (mut future, mut context) = (pin!(future), Context::from_waker(Waker::noop()));
    match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => match future.poll(&mut context) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("nothing to wait for"),
        },
    }
}

/// A waiter that has been polled once, and so is in the queue, to be woken by this waker.
pub(crate) fn waiter_with<'a>(locks: &'a MemoryProvider, key: &'a str, waker: &Waker) -> Waiting<'a> {
    let mut waiting: Waiting<'a> = Box::pin(locks.acquire(key).into_future());
    assert!(poll_with(&mut waiting, waker).is_pending());
    waiting
}

pub(crate) fn ready(waiting: &mut Waiting<'_>) -> LockGuard {
    match poll_with(waiting, Waker::noop()) {
        Poll::Ready(guard) => guard.unwrap(),
        Poll::Pending => panic!("the turn should have come"),
    }
}

/// Asserts that nothing is held or waited for, and every acquisition is accounted for.
pub(crate) fn assert_idle(locks: &MemoryProvider) {
    let accounting = locks.accounting();
    assert!(accounting.balances() && accounting.held == 0 && accounting.waiting == 0, "{accounting:?}");
    assert_eq!(locks.keys_in_use(), 0);
}

//! What is held together, what is refused, and how it ends.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use distlock_api::{AcquireOptions, Acquired, ErrorKind, LockProvider, LockProviderExt, Loss, ReleaseOutcome, Wait};
use distlock_memory::MemoryProvider;
use futures_util::FutureExt;

use super::kit::{
    Counting, Exclusive, Shared, assert_idle, call, held, is_busy, key, permits, ready, refusal, release, waiter,
    waiter_with, waits,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn c26_readers_hold_a_key_together_and_a_writer_alone() {
    let locks = MemoryProvider::new();
    let readers: Vec<_> = (0..5).map(|_| held(&locks, Shared)).collect();
    assert!(readers.windows(2).all(|pair| pair[0].fencing_token() < pair[1].fencing_token()));
    assert!(is_busy(&locks, Exclusive) && is_busy(&locks, permits(1, 10)));
    assert_eq!((locks.accounting().held, locks.keys_in_use()), (5, 1));
    let last = readers.last().unwrap().fencing_token();
    for reader in readers {
        assert!(is_busy(&locks, Exclusive));
        assert!(release(reader));
    }
    let writer = held(&locks, Exclusive);
    assert!(writer.fencing_token() > last);
    assert!(is_busy(&locks, Shared) && is_busy(&locks, Exclusive));
    drop(writer);
    assert_idle(&locks);
}

#[test]
fn c26_more_readers_than_a_store_has_leases() {
    const MANY: usize = 10_000;
    let locks = MemoryProvider::new();
    let mut readers: Vec<_> = (0..MANY).map(|_| held(&locks, Shared)).collect();
    // From the middle outwards, so that neither end leaves first.
    while !readers.is_empty() {
        drop(readers.remove(readers.len() / 2));
        assert_eq!(is_busy(&locks, Exclusive), !readers.is_empty());
    }
    assert_idle(&locks);
}

#[test]
fn c27_permits_are_granted_up_to_the_number() {
    let locks = MemoryProvider::new();
    let mut guards = vec![held(&locks, permits(2, 4)), held(&locks, permits(1, 4)), held(&locks, permits(1, 4))];
    assert!(is_busy(&locks, permits(1, 4)) && is_busy(&locks, Shared) && is_busy(&locks, Exclusive));
    drop(guards.remove(0));
    // Each request is judged by its own number.
    assert!(is_busy(&locks, permits(3, 4)) && is_busy(&locks, permits(1, 2)));
    guards.push(held(&locks, permits(3, 5)));
    assert!(is_busy(&locks, permits(1, 5)));
    drop(guards);
    assert_idle(&locks);
    drop(held(&locks, permits(u32::MAX, u32::MAX)));
    assert_idle(&locks);
}

#[test]
fn c30_what_makes_no_sense_is_refused() {
    let locks = MemoryProvider::new();
    assert!(locks.capabilities().shared && locks.capabilities().permits);
    for mode in [permits(0, 3), permits(1, 0), permits(4, 3)] {
        for wait in [Wait::Forever, Wait::Try] {
            let options = AcquireOptions::new().with_wait(wait).with_mode(mode);
            let now = locks.acquire_now(&key(), &options).expect("a refusal").map(drop).unwrap_err();
            let later = refusal(locks.acquire_with(key(), options)).map(drop).unwrap_err();
            assert_eq!((now.kind(), later.kind()), (ErrorKind::InvalidOptions, ErrorKind::InvalidOptions));
        }
    }
    assert_idle(&locks);
}

#[test]
fn c31_there_is_no_upgrade() {
    let locks = MemoryProvider::new();
    let reader = held(&locks, Shared);
    let mut upgrade = waiter(&locks, Exclusive);
    let again = waiter(&locks, Shared);
    assert!(waits(&mut upgrade));
    drop(reader);
    let writer = ready(&mut upgrade);
    // Nor is there a downgrade.
    assert!(is_busy(&locks, Shared));
    drop((writer, again, upgrade));
    assert_idle(&locks);
}

#[test]
fn an_answer_at_once_is_the_same_as_that_of_a_call() {
    let locks = MemoryProvider::new();
    let now = |mode| locks.acquire_now(&key(), &AcquireOptions::new().with_mode(mode)).map(Result::unwrap);
    let Some(Acquired::Held(first)) = now(Shared) else { panic!("free") };
    let Some(Acquired::Held(second)) = now(Shared) else { panic!("shared") };
    assert!(now(Exclusive).is_none(), "it has to wait");
    let writer = waiter(&locks, Exclusive);
    assert!(now(Shared).is_none(), "it has to wait behind the writer");
    drop((writer, first, second));
    assert_idle(&locks);
}

#[test]
fn c24_close_takes_every_share_away() {
    let locks = MemoryProvider::new();
    let counting = Counting::new(&locks);
    let waker = Waker::from(counting.clone());
    let guards = [held(&locks, Shared), held(&locks, Shared), held(&locks, Shared)];
    let mut signals = guards.each_ref().map(|guard| Box::pin(guard.lost()));
    let mut waiting = [waiter_with(&locks, Exclusive, &waker), waiter_with(&locks, Shared, &waker)];
    for signal in &mut signals {
        assert!(signal.as_mut().now_or_never().is_none());
    }
    locks.close().now_or_never().unwrap().unwrap();
    assert_eq!(counting.count(), 2);
    for signal in signals {
        assert_eq!(signal.now_or_never(), Some(Loss::Closed));
    }
    for waiting in &mut waiting {
        let error = waiting.now_or_never().expect("it was woken").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    for guard in guards {
        assert_eq!(guard.loss(), Some(Loss::Closed));
        assert_eq!(guard.release().now_or_never().unwrap().unwrap(), ReleaseOutcome::AlreadyLost);
    }
    drop(waiting);
    assert_eq!((locks.accounting().acquired, locks.accounting().released), (3, 3));
    assert_idle(&locks);
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_keeps_the_share_of_its_guard() {
    let locks = MemoryProvider::new();
    let short = locks.acquire("k").shared().hold_at_least(MS(1_000)).await.unwrap();
    let long = locks.acquire("k").shared().await.unwrap();
    assert!(release(short));
    assert_eq!(locks.accounting().held, 1);
    // Readers come beside it, and a writer waits for it.
    drop(held(&locks, Shared));
    let mut writer = waiter(&locks, Exclusive);
    drop(long);
    assert!(waits(&mut writer));
    tokio::time::sleep(MS(1_001)).await;
    drop(ready(&mut writer));
    drop(writer);
    assert_idle(&locks);

    // Permits: two of three stay taken.
    drop(locks.acquire("k").permits(2, 3).hold_at_least(MS(1_000)).await.unwrap());
    let one = held(&locks, permits(1, 3));
    assert!(is_busy(&locks, permits(1, 3)));
    drop(one);
    let Acquired::Busy(busy) = locks.acquire_with(key(), AcquireOptions::try_once()).await.unwrap() else {
        panic!("kept closed")
    };
    assert_eq!(busy.retry_after, Some(MS(1_000)));
    tokio::time::sleep(MS(1_001)).await;
    assert_idle(&locks);

    // A discarded guard has none, one of several included.
    let other = held(&locks, Shared);
    let discarded = locks.acquire("k").shared().hold_at_least(MS(1_000)).await.unwrap();
    assert!(discarded.discard().await.unwrap().is_released());
    drop(other);
    assert_idle(&locks);
}

#[tokio::test(start_paused = true)]
async fn c18_a_bounded_wait_for_a_share_ends_on_time() {
    let locks = MemoryProvider::new();
    let writer = held(&locks, Exclusive);
    let start = tokio::time::Instant::now();
    assert!(locks.try_acquire("k").shared().within(MS(70)).await.unwrap().is_none());
    assert!(start.elapsed() >= MS(70) && start.elapsed() <= MS(72));
    drop(writer);
    let reader = held(&locks, Shared);
    assert!(locks.try_acquire("k").within(MS(70)).await.unwrap().is_none());
    // The writer whose time was up no longer keeps readers out.
    drop(held(&locks, Shared));
    drop(reader);
    assert_idle(&locks);
}

#[tokio::test(start_paused = true)]
async fn c28_the_end_of_a_writers_wait_lets_the_readers_behind_it_in() {
    let locks = MemoryProvider::new();
    let first = held(&locks, Shared);
    let writer = async { locks.try_acquire("k").within(MS(50)).await.unwrap().is_none() };
    let reader = async {
        tokio::time::sleep(MS(10)).await;
        let asked = tokio::time::Instant::now();
        drop(locks.acquire("k").shared().await.unwrap());
        asked.elapsed()
    };
    let (given_up, waited) = tokio::join!(writer, reader);
    assert!(given_up && waited >= MS(39) && waited <= MS(42), "{waited:?}");
    drop(first);
    assert_idle(&locks);
}

/// Panics each time.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

#[test]
fn c14_a_waker_that_panics_costs_no_other_reader_its_wake_up() {
    let locks = MemoryProvider::new();
    let (counting, panicking) = (Counting::new(&locks), Waker::from(Arc::new(Panicking)));
    let counts = Waker::from(counting.clone());
    let writer = held(&locks, Exclusive);
    let mut readers: Vec<_> =
        [&panicking, &counts, &panicking, &counts].map(|waker| waiter_with(&locks, Shared, waker)).into();
    assert!(release(writer));
    assert_eq!(counting.count(), 2);
    drop(readers.iter_mut().map(ready).collect::<Vec<_>>());
    drop(readers);
    assert_idle(&locks);
}

#[test]
fn c11_a_call_may_leave_at_every_stage() {
    let locks = MemoryProvider::new();
    for mode in [Exclusive, Shared, permits(1, 2)] {
        for behind in [Exclusive, Shared, permits(1, 2)] {
            // Before it was polled.
            drop(call(&locks, mode));
            assert_idle(&locks);
            // In the queue, and granted without a look.
            for granted in [false, true] {
                let holder = held(&locks, Exclusive);
                let (leaves, mut next) = (waiter(&locks, mode), waiter(&locks, behind));
                if granted {
                    drop(holder);
                    drop(leaves);
                } else {
                    drop(leaves);
                    drop(holder);
                }
                drop(ready(&mut next));
                drop(next);
                assert_idle(&locks);
            }
        }
    }
}

//! A client that gets CPU only now and then. The time that an answer lies unread is the client's,
//! and not the server's: nothing is sent again because of it, and only a lease whose clock has run
//! out is lost (C14).

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LockGuard, LockProviderExt};
use distlock_engine::LeaseProvider;
use distlock_memory::Operation;
use futures_util::future::join_all;
use tokio::time::{Instant, advance, sleep};

use crate::kit::{in_task, ms, process, secs};
use crate::store::{Fate, ScriptedStore};

/// Lets this process stand still for `still`, then run for `runs`, and so on.
async fn runs_now_and_then(still: Duration, runs: Duration, until: Instant) {
    while Instant::now() < until {
        advance(still).await;
        sleep(runs).await;
    }
}

/// A store whose requests of this kind take a while. Their answers pass through tasks, as those of
/// a driver do, so a caller finds none when its time is over.
fn takes(slow: Operation, time: Duration) -> Arc<ScriptedStore> {
    let store =
        ScriptedStore::new(move |operation, _, _| if operation == slow { Fate::After(time) } else { Fate::Serve });
    store.with(|store| store.yields = 3)
}

async fn hold(provider: &LeaseProvider, keys: usize) -> Vec<LockGuard> {
    let held = join_all((0..keys).map(|key| provider.acquire(key.to_string()).into_future())).await;
    held.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn c14_at_half_of_the_cpu_no_lease_is_lost_and_no_renewal_is_repeated() {
    for (still, runs) in [(ms(20), ms(20)), (ms(100), ms(100)), (ms(400), ms(400)), (ms(450), ms(50))] {
        let store = takes(Operation::Renew, ms(30));
        let provider = process(&store);
        let guards = hold(&provider, 400).await;
        runs_now_and_then(still, runs, Instant::now() + secs(60)).await;
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        assert_eq!(lost, 0, "of 400 leases of 3 s, {still:?} still, {runs:?} running");
        // Four calls in each of 60 beats, and some more because beats come late.
        let calls = store.renewal_calls();
        assert!(calls <= 500, "{calls} calls, {still:?} still, {runs:?} running");
    }
}

/// The clock of each lease runs out while the process stands still, and of no other one.
#[tokio::test(start_paused = true)]
async fn c14_only_a_lease_whose_clock_ran_out_is_lost() {
    let store = takes(Operation::Renew, ms(30));
    let provider = process(&store);
    let short = hold(&provider, 10).await;
    let long = join_all((10..20).map(|key| provider.acquire(key.to_string()).ttl(secs(60)).into_future())).await;
    advance(secs(10)).await;
    sleep(secs(120)).await;
    assert!(short.iter().all(LockGuard::is_lost));
    assert!(long.iter().flatten().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn c18_an_answer_that_lay_unread_is_taken() {
    let store = takes(Operation::TryAcquire, ms(100));
    let provider = process(&store);
    let acquiring = in_task(&provider, "k");
    store.called(Operation::TryAcquire, 1).await;
    // The answer comes after 100 ms, and the request timeout is 500 ms.
    advance(ms(700)).await;
    let guard = acquiring.await.unwrap().unwrap();
    assert_eq!((store.count(Operation::TryAcquire), store.count(Operation::Withdraw)), (1, 0));
    drop(guard);
}

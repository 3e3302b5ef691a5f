//! A batch whose answer is lost, at a store that takes a few calls at once. Each of its keys is
//! free, or with its caller, two request timeouts after the batch was sent.

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::sync::Arc;

use distlock_api::{LockGuard, LockProvider, LockProviderExt};
use distlock_engine::LeaseProvider;
use distlock_engine::store::Lanes;
use distlock_memory::Operation;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{in_task, ms, process, secs};
use crate::store::{Abilities, Fate, ScriptedStore};

/// Twice the request timeout of [`process`].
const BOUND: std::time::Duration = ms(1000);

/// A store that loses the answer to the first such request about each key, shortly before the
/// request timeout.
fn loses(lost: Operation, batch: usize) -> Arc<ScriptedStore> {
    let script = move |operation: Operation, _: &str, nth| match operation {
        _ if operation == lost && nth == 1 => Fate::LoseReplyAfter(ms(450)),
        // A five-hundredth of the request timeout.
        _ => Fate::After(ms(1)),
    };
    ScriptedStore::new(script).with(|store| {
        store.capabilities = Abilities::all();
        store.capabilities.acquire_batch = NonZeroUsize::new(batch).unwrap();
        store.lanes = Some(Lanes::new(NonZeroUsize::new(9).unwrap()));
    })
}

async fn hold(provider: &LeaseProvider, keys: usize) -> Vec<LockGuard> {
    let tasks: Vec<_> = (0..keys).map(|key| in_task(provider, key.to_string())).collect();
    join_all(tasks).await.into_iter().map(|task| task.unwrap().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn c11_the_keys_of_a_lost_batch_of_acquisitions_are_granted_in_time() {
    for keys in [400, 2000] {
        let store = loses(Operation::TryAcquire, keys);
        let provider = process(&store);
        let started = Instant::now();
        let guards = hold(&provider, keys).await;
        assert!(started.elapsed() <= BOUND, "{keys} keys after {:?}", started.elapsed());
        assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 0);
        let calls = store.batches.lock().unwrap().len();
        assert!(calls <= 12, "{calls} batches for {keys} keys");
        drop(guards);
        provider.close().await.unwrap();
    }
}

/// The callers of the batch have left before it was answered.
#[tokio::test(start_paused = true)]
async fn c11_the_keys_of_a_lost_batch_whose_callers_have_left_are_free_in_time() {
    for keys in [400, 2000] {
        let store = loses(Operation::TryAcquire, keys);
        let provider = process(&store);
        let started = Instant::now();
        let tasks: Vec<_> = (0..keys).map(|key| in_task(&provider, key.to_string())).collect();
        store.called(Operation::TryAcquire, keys).await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let free = async {
            while provider.accounting().unsettled > 0 {
                sleep(ms(1)).await;
            }
        };
        timeout(secs(60), free).await.unwrap();
        assert!(started.elapsed() <= BOUND, "{keys} keys after {:?}", started.elapsed());
        assert!((0..keys).all(|key| store.is_free(&key.to_string())));
    }
}

#[tokio::test(start_paused = true)]
async fn c9_the_keys_of_a_lost_batch_of_releases_are_released_in_time() {
    for keys in [400, 2000] {
        let store = loses(Operation::Release, keys);
        let provider = process(&store);
        let guards = hold(&provider, keys).await;
        let started = Instant::now();
        drop(guards);
        let released = async {
            while provider.accounting().held > 0 {
                sleep(ms(1)).await;
            }
        };
        timeout(secs(60), released).await.unwrap();
        assert!(started.elapsed() <= BOUND, "{keys} keys after {:?}", started.elapsed());
        let accounting = provider.accounting();
        assert_eq!((accounting.released, accounting.lost, accounting.abandoned), (keys as u64, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn c13_a_lost_batch_of_renewals_costs_no_lease() {
    for keys in [400, 2000] {
        let store = loses(Operation::Renew, keys);
        let provider = process(&store);
        let guards = hold(&provider, keys).await;
        sleep(secs(30)).await;
        assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 0, "of {keys}");
    }
}

#[tokio::test(start_paused = true)]
async fn c21_a_lost_batch_of_a_group_delays_it_by_one_call() {
    let store = loses(Operation::TryAcquire, 400);
    let provider = process(&store);
    let started = Instant::now();
    let all = timeout(secs(60), provider.acquire_all(0..60).into_future()).await.unwrap().unwrap();
    assert!(started.elapsed() <= BOUND, "after {:?}", started.elapsed());
    assert!(all.release().await.unwrap().is_released());
}

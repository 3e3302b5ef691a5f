//! The engine over a store that takes the requests of several keys in one call.

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context, Wake};

use distlock_api::{ErrorKind, Instrumented, LockError, LockGuard, LockProvider, LockProviderExt, Namespaced, Result};
use distlock_engine::LeaseProvider;
use distlock_engine::store::Lanes;
use distlock_memory::Operation;
use futures_util::future::join_all;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{Deployment, acquire, ends_within, in_task, ms, one_thread, process, quiet, secs};
use crate::store::{Abilities, Fate, Gate, ScriptedStore};

/// As many calls as are made before others wait for company.
const AT_ONCE: usize = 2;

/// A store that takes batches of `batch`, and holds such requests of `busy-…` keys at the gate.
fn store(
    batch: usize,
    held: Operation,
    gate: &Gate,
    script: impl Fn(Operation, &str, usize) -> Fate + Send + Sync + 'static,
) -> Arc<ScriptedStore> {
    store_with(batch, held, gate, script, |_| {})
}

fn store_with(
    batch: usize,
    held: Operation,
    gate: &Gate,
    script: impl Fn(Operation, &str, usize) -> Fate + Send + Sync + 'static,
    change: impl FnOnce(&mut ScriptedStore),
) -> Arc<ScriptedStore> {
    let gate = gate.clone();
    let script = move |operation: Operation, key: &str, nth| match operation {
        _ if operation == held && key.starts_with("busy") => Fate::Hold(gate.clone()),
        _ => script(operation, key, nth),
    };
    ScriptedStore::new(script).with(|store| {
        store.capabilities = Abilities::all();
        store.capabilities.acquire_batch = NonZeroUsize::new(batch).unwrap();
        change(store);
    })
}

fn tasks(provider: &LeaseProvider, name: &str, count: usize) -> Vec<JoinHandle<Result<LockGuard>>> {
    (0..count).map(|n| in_task(provider, format!("{name}-{n}"))).collect()
}

/// Makes as many calls as are made before others wait for company.
async fn keep_busy(store: &ScriptedStore, provider: &LeaseProvider) -> Vec<JoinHandle<Result<LockGuard>>> {
    let busy = tasks(provider, "busy", AT_ONCE);
    store.called(Operation::TryAcquire, AT_ONCE).await;
    busy
}

async fn granted(tasks: Vec<JoinHandle<Result<LockGuard>>>) -> Vec<LockGuard> {
    join_all(tasks).await.into_iter().map(|task| task.unwrap().unwrap()).collect()
}

fn batches(store: &ScriptedStore) -> Vec<usize> {
    std::mem::take(&mut store.batches.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn c18_attempts_go_together_before_their_company_takes_long() {
    let gate = Gate::default();
    let store = store(8, Operation::TryAcquire, &gate, |_, _, _| Fate::Serve);
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    // The calls before hang, and nothing waits for them.
    let guards = granted(tasks(&provider, "other", 5)).await;
    assert_eq!(batches(&store), [5]);
    gate.open();
    drop((guards, granted(busy).await));
}

/// A caller that has time for one call does not spend it on company.
#[tokio::test(start_paused = true)]
async fn c18_a_caller_with_little_time_does_not_wait_for_company() {
    for has_lanes in [false, true] {
        let gate = Gate::default();
        let slow = |operation, _: &str, _| match operation {
            Operation::TryAcquire => Fate::After(ms(40)),
            _ => Fate::Serve,
        };
        let store = store_with(8, Operation::TryAcquire, &gate, slow, |store| {
            store.lanes = has_lanes.then(|| Lanes::new(NonZeroUsize::new(16).unwrap()));
        });
        let provider = process(&store);
        for n in 0..40 {
            drop(acquire(&provider, &format!("before-{n}")).await);
        }
        let busy = tasks(&provider, "busy", AT_ONCE);
        quiet().await;
        let waiting = tasks(&provider, "other", 2);
        drop(provider.acquire("in a hurry").timeout(ms(70)).await.unwrap());
        assert_eq!(batches(&store), [3], "lanes: {has_lanes}");
        gate.open();
        drop((granted(busy).await, granted(waiting).await));
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_go_alone_while_few_are_under_way() {
    let store = store(8, Operation::TryAcquire, &Gate::default(), |_, _, _| Fate::After(ms(5)));
    let provider = process(&store);
    for round in 0..3 {
        let guards = granted(tasks(&provider, &format!("round {round}"), AT_ONCE)).await;
        join_all(guards.into_iter().map(LockGuard::release)).await;
    }
    let no_wait = acquire(&provider, "k").await;
    assert!(no_wait.release().await.unwrap().is_released());
    assert!(batches(&store).is_empty());
}

#[tokio::test(start_paused = true)]
async fn c21_several_free_locks_go_together_and_are_released_together() {
    let store = store(8, Operation::TryAcquire, &Gate::default(), |_, _, _| Fate::After(ms(5)));
    let provider = process(&store);
    for count in [2, 5, 8] {
        let all = provider.acquire_all(0..count).await.unwrap();
        assert_eq!(batches(&store), [count]);
        assert!(all.release().await.unwrap().is_released());
        assert_eq!(batches(&store), [count]);
        let read = provider.acquire_all(0..count).shared().await.unwrap();
        assert_eq!(batches(&store), [count], "shared");
        assert!(read.release().await.unwrap().is_released());
        assert_eq!(batches(&store), [count], "shared");
    }
    let locks: Arc<dyn LockProvider> = Arc::new(Instrumented::new(Namespaced::new(provider, "n").unwrap()));
    let all = locks.acquire_all(0..6).await.unwrap();
    assert_eq!(batches(&store), [6], "through wrappers");
    assert!(all.release().await.unwrap().is_released());
    assert_eq!(batches(&store), [6], "through wrappers");
}

/// A waiter must not wait for a pause between two tries.
#[tokio::test(start_paused = true)]
async fn what_a_batch_does_not_release_is_released_at_once() {
    let left = || Fate::Fail(LockError::new(ErrorKind::Unavailable, "it has a waiter"));
    let store = store(8, Operation::TryAcquire, &Gate::default(), move |operation, key, nth| {
        if operation == Operation::Release && key == "1" && nth == 1 { left() } else { Fate::Serve }
    });
    let provider = process(&store);
    let (all, since) = (provider.acquire_all(0..4).await.unwrap(), Instant::now());
    batches(&store);
    assert!(all.release().await.unwrap().is_released());
    assert_eq!((batches(&store), store.count(Operation::Release)), (vec![4], 5));
    assert_eq!(since.elapsed(), ms(0), "without a pause");
}

/// Another thread would run a sender before all have arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn c21_several_locks_go_together_on_several_threads() {
    let store = store(64, Operation::TryAcquire, &Gate::default(), |_, _, _| Fate::Serve);
    let provider = process(&store);
    for _ in 0..200 {
        for count in [2, 5, 40] {
            let all = provider.acquire_all(0..count).await.unwrap();
            assert_eq!(batches(&store), [count]);
            assert!(all.release().await.unwrap().is_released());
            assert_eq!(batches(&store), [count]);
        }
    }
}

/// How long calls take is seen in their answers only, so it must be possible to ask.
#[tokio::test(start_paused = true)]
async fn c18_several_locks_are_asked_for_again_after_the_store_was_slow() {
    for has_lanes in [false, true] {
        let store = store_with(
            8,
            Operation::TryAcquire,
            &Gate::default(),
            |_, _, nth| if nth <= 8 { Fate::After(ms(4500)) } else { Fate::Serve },
            |store| store.lanes = has_lanes.then(|| Lanes::new(NonZeroUsize::new(8).unwrap())),
        );
        let provider = LeaseProvider::new(store.clone());
        for round in 0..8 {
            drop(provider.try_acquire_all(["a", "b"]).await);
            sleep(secs(60)).await;
            assert!(store.count(Operation::TryAcquire) >= 2 * (round + 1), "lanes: {has_lanes}, round {round}");
        }
        assert!(provider.try_acquire_all(["a", "b"]).await.unwrap().is_some());
    }
}

#[cfg(feature = "metrics")]
#[test]
fn batches_and_lines_are_seen_in_metrics_and_in_debug() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let store = store_with(
        8,
        Operation::TryAcquire,
        &Gate::default(),
        |_, _, _| Fate::After(ms(5)),
        |store| store.lanes = Some(Lanes::new(NonZeroUsize::new(1).unwrap())),
    );
    let provider = process(&store);
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        one_thread().block_on(async {
            // The batch is in line behind it.
            let (one, all) = tokio::join!(acquire(&provider, "a"), provider.acquire_all(["b", "c", "d"]).into_future());
            assert!(all.unwrap().release().await.unwrap().is_released());
            drop(one);
        });
    });
    let seen = recorder.snapshotter().snapshot().into_vec();
    let value = |name: &str, label: &str| {
        let is_meant = |key: &metrics::Key| key.name() == name && key.labels().any(|of| of.value() == label);
        let found = seen.iter().find(|(key, ..)| is_meant(key.key()));
        &found.unwrap_or_else(|| panic!("{name} of {label}: {seen:?}")).3
    };
    let count = |name, label| match value(name, label) {
        DebugValue::Histogram(values) => values.len(),
        other => panic!("{other:?}"),
    };
    assert!(count("distlock_batch_size", "acquisitions") >= 1 && count("distlock_batch_size", "releases") >= 1);
    assert_eq!(count("distlock_gather_seconds", "acquisitions"), 3);
    assert_eq!(*value("distlock_calls_in_line", "acquire"), DebugValue::Gauge(0.0.into()));
    let shown = format!("{provider:?}");
    let of_acquisitions = shown.split("acquisitions: ").nth(1).and_then(|rest| rest.split(", releases: ").next());
    let of_acquisitions = of_acquisitions.unwrap_or_else(|| panic!("{shown}"));
    let waited = of_acquisitions.strip_prefix("0 wait; 1 batches of 3 in all, 3 at most; a request waited ");
    // The call before them takes 5 ms.
    let is_long = |time: &str| time.ends_with("ms") || (time.ends_with('s') && !time.ends_with("µs"));
    let times = waited.and_then(|waited| waited.strip_suffix(" at most")?.split_once(" on average, "));
    assert!(times.is_some_and(|(mean, longest)| is_long(mean) && is_long(longest)), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_as_many_as_the_store_takes() {
    let gate = Gate::default();
    let store = store(3, Operation::TryAcquire, &gate, |_, _, _| Fate::Serve);
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let others = tasks(&provider, "other", 7);
    while store.count(Operation::TryAcquire) < AT_ONCE + 7 {
        sleep(ms(1)).await;
    }
    assert_eq!(batches(&store), [3, 3], "and the last one goes alone");
    gate.open();
    drop((granted(others).await, granted(busy).await));
}

#[tokio::test(start_paused = true)]
async fn c11_a_caller_that_leaves_before_its_batch_sends_nothing() {
    let gate = Gate::default();
    let store = store(8, Operation::TryAcquire, &gate, |_, _, _| Fate::Serve);
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let mut others = tasks(&provider, "other", 5);
    for _ in 0..20 {
        yield_now().await;
    }
    let left = others.remove(2);
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    let guards = granted(others).await;
    assert_eq!(batches(&store), [4]);
    assert!(store.requests().iter().all(|(_, key)| key != "other-2"), "{:?}", store.requests());
    gate.open();
    drop((guards, granted(busy).await));
}

/// Clients that go away leave as many grants behind as others take.
#[tokio::test(start_paused = true)]
async fn c11_grants_whose_callers_have_left_are_released_together() {
    let (gate, late) = (Gate::default(), Gate::default());
    let held = late.clone();
    let store = store(8, Operation::TryAcquire, &gate, move |operation, key, nth| match (operation, key) {
        (Operation::TryAcquire, _) => Fate::Hold(held.clone()),
        (Operation::Release, "other-3") if nth == 1 => {
            Fate::Fail(LockError::new(ErrorKind::Unavailable, "it has a waiter"))
        }
        (Operation::Release, "other-4") if nth == 1 => Fate::LoseReply,
        (Operation::Release, _) => Fate::After(ms(5)),
        _ => Fate::Serve,
    });
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let others = tasks(&provider, "other", 7);
    store.called(Operation::TryAcquire, AT_ONCE + 7).await;
    assert_eq!(batches(&store), [7]);
    for left in others {
        left.abort();
        assert!(left.await.unwrap_err().is_cancelled());
    }
    late.open();
    timeout(secs(60), store.called(Operation::Release, 7)).await.expect("no grant is left");
    assert_eq!(batches(&store), [7 - AT_ONCE], "the first ones go alone");
    gate.open();
    drop(granted(busy).await);
    provider.close().await.unwrap();
    let withdrawn: Vec<_> = store
        .requests()
        .into_iter()
        .filter(|(operation, _)| *operation == Operation::Withdraw)
        .map(|(_, key)| key)
        .collect();
    assert_eq!(withdrawn, ["other-3", "other-4"], "those that the batch has left, or not answered");
    assert!((0..7).all(|n| store.is_free(&format!("other-{n}"))));
}

/// R24: a batch is in no order with later calls of its claims.
#[tokio::test(start_paused = true)]
async fn c10_a_claim_whose_batch_has_no_answer_is_given_up() {
    let gate = Gate::default();
    let store = store(8, Operation::TryAcquire, &gate, |operation, key, nth| match operation {
        Operation::TryAcquire if key == "other-0" && nth == 1 => Fate::LoseReply,
        _ => Fate::Serve,
    });
    assert!(store.capabilities.ordered_claims, "alone it would be asked again under its id");
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let guards = granted(tasks(&provider, "other", 2)).await;
    let withdrawn = |(operation, key): &(Operation, String)| *operation == Operation::Withdraw && key == "other-0";
    assert_eq!(store.requests().iter().filter(|request| withdrawn(request)).count(), 1);
    gate.open();
    drop((guards, granted(busy).await));
}

/// R24: at once, and when the batch has ended. Everything in between would only load the store.
#[tokio::test(start_paused = true)]
async fn c11_a_batch_without_an_answer_is_withdrawn_twice() {
    let (gate, acts_for) = (Gate::default(), ms(7_000));
    let lose_first = |operation, _: &str, nth| match operation {
        Operation::TryAcquire if nth == 1 => Fate::LoseReply,
        _ => Fate::Serve,
    };
    let store = store_with(8, Operation::TryAcquire, &gate, lose_first, |store| store.first_batch_acts_for = acts_for);
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let started = Instant::now();
    let guards = granted(tasks(&provider, "other", 3)).await;
    assert!(started.elapsed() < acts_for, "callers do not wait for the clean-up");
    gate.open();
    drop(granted(busy).await);
    store.called(Operation::Withdraw, 6).await;
    assert!(started.elapsed() >= acts_for, "{:?}", started.elapsed());
    sleep(acts_for).await;
    assert_eq!(store.count(Operation::Withdraw), 6);
    assert_eq!(provider.accounting().unsettled, 0);
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_panics_is_of_unknown_outcome() {
    let gate = Gate::default();
    let store = store(8, Operation::TryAcquire, &gate, |operation, key, nth| match operation {
        Operation::TryAcquire if key == "other-0" && nth == 1 => Fate::Panic,
        _ => Fate::Serve,
    });
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let guards = granted(tasks(&provider, "other", 3)).await;
    assert_eq!(store.count(Operation::Withdraw), 3);
    gate.open();
    drop((guards, granted(busy).await));
}

#[tokio::test(start_paused = true)]
async fn c9_releases_go_together_and_each_has_its_answer() {
    let gate = Gate::default();
    let store = store(8, Operation::Release, &gate, |operation, key, nth| match operation {
        Operation::Release if key == "other-1" && nth == 1 => Fate::LoseReply,
        _ => Fate::Serve,
    });
    let provider = process(&store);
    let busy = granted(tasks(&provider, "busy", AT_ONCE)).await;
    let guards = granted(tasks(&provider, "other", 4)).await;
    batches(&store);
    let busy: Vec<_> = busy.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    store.called(Operation::Release, AT_ONCE).await;
    store.take_away("other-3");
    let outcomes = join_all(guards.into_iter().map(LockGuard::release)).await;
    let released: Vec<bool> = outcomes.into_iter().map(|outcome| outcome.unwrap().is_released()).collect();
    assert_eq!(released, [true, true, true, false], "the second one was repeated by itself");
    assert_eq!(batches(&store), [4]);
    gate.open();
    join_all(busy).await;
}

/// As before any other call: a caller learns at once that its turn would come too late.
#[tokio::test(start_paused = true)]
async fn c18_an_attempt_that_would_come_too_late_is_refused_at_once() {
    let gate = Gate::default();
    let slow = |operation, _: &str, _| match operation {
        Operation::TryAcquire => Fate::After(secs(1)),
        _ => Fate::Serve,
    };
    // Six permits are for acquisitions.
    let lanes = Lanes::new(NonZeroUsize::new(8).unwrap());
    let store = store_with(2, Operation::TryAcquire, &gate, slow, |store| store.lanes = Some(lanes));
    let provider = store.provider_builder().request_timeout(secs(20)).build().unwrap();
    drop(acquire(&provider, "first").await);
    let busy = tasks(&provider, "busy", AT_ONCE + 4 * 2);
    store.called(Operation::TryAcquire, 1 + AT_ONCE + 4 * 2).await;
    let started = Instant::now();
    let error = provider.acquire("late").timeout(ms(1_200)).await.unwrap_err();
    assert_eq!((error.kind(), started.elapsed()), (ErrorKind::Overloaded, ms(0)), "{error}");
    // A caller that has the time waits for the next call.
    let patient = in_task(&provider, "patient");
    sleep(secs(1)).await;
    gate.open();
    drop((granted(busy).await, granted(vec![patient]).await));
}

/// Each runtime gathers by itself. This one is not driven any more after its first call.
#[test]
fn c16_a_request_depends_on_no_other_runtime() {
    assert!(ends_within(secs(30), || {
        let gate = Gate::default();
        let store = store(8, Operation::TryAcquire, &gate, |_, _, _| Fate::Serve);
        let provider = process(&store);
        let (here, other) = (one_thread(), one_thread());
        let mut busy = here.block_on(keep_busy(&store, &provider));
        let waiting: Vec<_> = {
            let _on = other.enter();
            tasks(&provider, "other", 5)
        };
        let waiting = std::thread::spawn(move || other.block_on(granted(waiting)).len());
        gate.open();
        here.block_on(async { drop(busy.remove(0).await) });
        // From here on only the other runtime is driven.
        assert_eq!(waiting.join().unwrap(), 5);
        drop(here);
    }));
}

/// C14: a panic in a caller's waker costs no other caller its answer.
#[tokio::test(start_paused = true)]
async fn c14_a_waker_that_panics_costs_no_other_answer() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the application");
        }
    }
    let gate = Gate::default();
    let store = store(8, Operation::TryAcquire, &gate, |_, _, _| Fate::Serve);
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let mut first = Box::pin(provider.acquire("other-first").into_future());
    let waker = Arc::new(Panics).into();
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let others = tasks(&provider, "other", 3);
    quiet().await;
    let started = Instant::now();
    gate.open();
    let guards = granted(others).await;
    assert_eq!((store.count(Operation::Withdraw), started.elapsed()), (0, ms(0)));
    // Its waker would panic in the runtime's timer as well.
    drop(first);
    drop((guards, granted(busy).await));
}

/// C9: "busy" would be wrong, because nothing was decided.
#[tokio::test(start_paused = true)]
async fn c9_what_a_batch_does_not_decide_is_decided_alone_and_at_once() {
    let gate = Gate::default();
    let serve = |_: Operation, _: &str, _| Fate::Serve;
    let store = store_with(8, Operation::TryAcquire, &gate, serve, |store| store.undecided = true);
    let provider = process(&store);
    let busy = keep_busy(&store, &provider).await;
    let others = tasks(&provider, "other", 3);
    quiet().await;
    gate.open();
    let started = Instant::now();
    let guards = granted(others).await;
    assert_eq!((batches(&store), started.elapsed()), (vec![3], ms(0)));
    assert_eq!(store.count(Operation::TryAcquire), AT_ONCE + 3);
    drop((guards, granted(busy).await));
}

/// The release waited for company on a runtime that ends.
#[test]
fn c11_a_release_leaves_a_runtime_that_ends() {
    assert!(ends_within(secs(30), || {
        let gate = Gate::default();
        let store = store(8, Operation::Release, &gate, |_, _, _| Fate::Serve);
        let provider = store.provider_builder().build().unwrap();
        let (home, ends) = (one_thread(), one_thread());
        // On a slow machine the release would wait no longer for company.
        ends.block_on(async { tokio::time::pause() });
        let (busy, other) = home.block_on(async {
            let busy = granted(tasks(&provider, "busy", AT_ONCE)).await;
            (busy, acquire(&provider, "other").await)
        });
        ends.block_on(async {
            for guard in busy {
                tokio::spawn(guard.release());
            }
            store.called(Operation::Release, AT_ONCE).await;
            tokio::spawn(other.release());
            quiet().await;
        });
        assert!(!store.is_free("other"));
        drop(ends);
        // Its lease lasts for longer than this test.
        home.block_on(async {
            while !store.is_free("other") {
                sleep(ms(5)).await;
            }
        });
        gate.open();
    }));
}

/// A single try gets one round trip (C18), so it does not wait for company.
#[tokio::test(start_paused = true)]
async fn c21_several_locks_go_together_and_a_single_try_alone() {
    let gate = Gate::default();
    let store = store(64, Operation::TryAcquire, &gate, |_, _, _| Fate::After(ms(20)));
    let provider = process(&store);
    let others = provider.try_acquire_all(20..40).await.unwrap();
    assert!(others.is_some());
    assert_eq!(batches(&store), [20]);
    let busy = keep_busy(&store, &provider).await;
    let single = provider.try_acquire("single").await.unwrap();
    assert!(single.is_some() && batches(&store).is_empty());
    gate.open();
    drop((others, granted(busy).await));
}

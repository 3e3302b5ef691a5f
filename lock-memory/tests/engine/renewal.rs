//! Held leases are renewed, and released ones are not (C12). Neither errors nor other keys end that
//! (C13, C14).

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use distlock_api::{
    ErrorKind, LeaseOptions, LockGuard, LockKey, LockProvider, LockProviderExt, ReleaseOutcome, RenewalPolicy,
};
use distlock_engine::store::{Lanes, Standing};
use distlock_memory::{MemoryStore, Operation};
use futures_util::future::join_all;
use tokio::time::{Instant, advance, sleep};

use crate::kit::{
    acquire, assert_pending, holder_and_waiter, in_task, ms, process, provider, queued, quick_setup, secs,
};
use crate::store::{Fate, Gate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn a_held_lease_is_renewed_for_as_long_as_it_takes() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    let token = guard.fencing_token();
    assert_pending(&mut guard.lost(), ms(60_000)).await;
    assert!(!guard.is_lost() && guard.fencing_token() == token);
    assert!(guard.remaining().unwrap() <= ms(900));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let renewals = store.calls(Operation::Renew);
    assert!((150..=250).contains(&renewals), "one per cadence: {renewals}");
    sleep(ms(5000)).await;
    assert_eq!(store.calls(Operation::Renew), renewals, "C12: none after the release");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_leases_are_renewed_in_batches_without_a_task_each() {
    let (store, [provider]) = quick_setup();
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(acquire(&provider, &format!("k{n}")).await);
        advance(ms(u64::from(n % 7 == 0))).await;
    }
    let before = store.calls(Operation::Renew);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks <= 3, "{tasks}");
    sleep(ms(3000)).await;
    let renewals = store.calls(Operation::Renew) - before;
    assert!((80..=150).contains(&renewals), "10 calls of 100 in each of 10 rounds, {renewals}");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn c10_a_lease_granted_or_renewed_for_less_than_a_cadence_is_renewed_before_it_ends() {
    // `Standing::Held` allows a lower bound.
    let store = ScriptedStore::honest().with(|store| store.bend_renewals(secs(12)));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(30)).await.unwrap();
    sleep(secs(120)).await;
    assert_eq!(guard.loss(), None, "renewed {} times", store.count(Operation::Renew));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_never_renewed_ends_although_the_store_reports_lower_bounds() {
    let store = MemoryStore::new();
    let careful = ScriptedStore::over(&store).with(|store| {
        store.standing = Box::new(|standing| match standing {
            Standing::Held { remaining } => Standing::Held { remaining: remaining.saturating_sub(ms(1)) },
            other => other,
        });
    });
    let (a, b) = (process(&store), process(&careful));
    let first = a.acquire("k").await.unwrap();
    let other = b.clone();
    let next = tokio::spawn(async move { other.acquire("k").renewal(RenewalPolicy::Never).await });
    queued(&store, 1).await;
    sleep(ms(100)).await;
    drop(first);
    let next = next.await.unwrap().unwrap();
    sleep(secs(20)).await;
    assert!(next.is_lost(), "{} renewals", store.calls(Operation::Renew));
}

#[tokio::test(start_paused = true)]
async fn c12_a_lease_is_not_renewed_once_its_release_has_begun() {
    let store =
        Arc::new(ScriptedStore::new(|op, _, _| if op == Operation::Release { Fate::Never } else { Fate::Serve }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    store.called(Operation::Renew, 2).await;
    let renewed = store.count(Operation::Renew);
    drop(guard);
    sleep(secs(30)).await;
    assert_eq!(store.count(Operation::Renew), renewed);
}

#[tokio::test(start_paused = true)]
async fn c12_a_renewal_answered_after_the_release_revives_nothing() {
    let gate = Gate::default();
    let late = gate.clone();
    let store = Arc::new(ScriptedStore::new(move |op, _, nth| match (op, nth) {
        (Operation::Renew, 1) => Fate::HoldReply(late.clone()),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    store.called(Operation::Renew, 1).await;
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    gate.open();
    sleep(secs(30)).await;
    let accounting = provider.accounting();
    assert!(store.is_free("k") && accounting.balances() && accounting.released == 1 && accounting.held == 0);
    assert_eq!(store.count(Operation::Renew), 1);
}

#[tokio::test(start_paused = true)]
async fn c12_a_batch_that_was_planned_before_a_release_does_not_renew_after_it() {
    // A store that does real work uses up the keeper's budget: the batch is interrupted.
    let store = ScriptedStore::new(|operation, _, _| match operation {
        Operation::Renew => Fate::DrainBudget,
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities.renew_batch = NonZeroUsize::MIN);
    let provider = provider(&store);
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(provider.acquire(name).ttl(secs(3)).await.unwrap());
    }
    store.called(Operation::Renew, 1).await;
    join_all(guards.into_iter().map(LockGuard::release)).await;
    sleep(secs(10)).await;
    let log = store.requests();
    let renewed_late: Vec<_> = log
        .iter()
        .enumerate()
        .filter(|(at, (op, key))| *op == Operation::Renew && log[..*at].contains(&(Operation::Release, key.clone())))
        .collect();
    assert!(renewed_late.is_empty(), "{renewed_late:?}");
}

#[tokio::test(start_paused = true)]
async fn c13_a_transient_error_neither_ends_the_renewal_nor_the_wait() {
    let (store, [here, there]) = quick_setup();
    let guard = acquire(&here, "k").await;
    let waiting = in_task(&there, "k");
    for _ in 0..5 {
        store.fail_next(Operation::Renew, ErrorKind::Unavailable);
        store.fail_next(Operation::TryAcquire, ErrorKind::Unavailable);
        assert_pending(&mut guard.lost(), ms(1000)).await;
    }
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn c13_transient_errors_neither_end_renewal_nor_waiting() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth % 3) {
        (Operation::Renew | Operation::TryAcquire, 1 | 2) => Fate::fail(),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).timeout(secs(5)).await.unwrap();
    sleep(secs(60)).await;
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c13_a_keeper_asleep_wakes_for_a_newer_lease_that_is_due_earlier() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let mut guards = Vec::new();
    for ttl in [30_000, 3_000, 300, 60_000, 30] {
        guards.push(provider.acquire(ttl.to_string()).ttl(ms(ttl)).await.unwrap());
        sleep(ms(5)).await;
    }
    sleep(secs(120)).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn c13_tiny_terms_with_a_queue_cause_no_busy_loop_and_no_loss() {
    let edges = [
        LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(900)),
        LeaseOptions::new().ttl(ms(40)).safety_margin(ms(4)),
        LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(0)),
        LeaseOptions::new().ttl(ms(1100)).safety_margin(ms(100)).renewal(RenewalPolicy::Every(ms(999))),
        LeaseOptions::new().ttl(secs(60)).safety_margin(secs(50)),
    ];
    for (n, terms) in edges.into_iter().enumerate() {
        let store = MemoryStore::new();
        let make = || store.builder().lease(terms).request_timeout(ms(500)).build().unwrap();
        let (a, b) = (make(), make());
        let (first, next) = holder_and_waiter(&store, &a, &b).await;
        sleep(secs(3)).await;
        assert!(!first.is_lost(), "{n}");
        let start = Instant::now();
        drop(first);
        let guard = next.await.unwrap().unwrap();
        assert!(start.elapsed() <= ms(1), "{n} {:?}", start.elapsed());
        sleep(secs(3)).await;
        assert!(!guard.is_lost(), "{n}");
        let calls = store.calls(Operation::Renew) + store.calls(Operation::TryAcquire);
        assert!(calls < 1500, "{n} {calls}");
    }
}

#[tokio::test(start_paused = true)]
async fn c14_one_hanging_key_does_not_take_its_batch_with_it() {
    let (store, [provider]) = quick_setup();
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(acquire(&provider, &format!("k{n}")).await);
    }
    let hangs: Vec<_> = (0..1000).map(|_| store.hang_next(Operation::Renew.of("k42"))).collect();
    sleep(ms(5000)).await;
    let lost: Vec<_> = guards.iter().filter(|guard| guard.is_lost()).map(|guard| guard.key().to_string()).collect();
    assert_eq!(lost, ["k42"]);
    drop(hangs);
}

#[tokio::test(start_paused = true)]
async fn c14_one_hung_key_costs_no_other_lease() {
    let store = Arc::new(ScriptedStore::new(|op, key, _| match (op, key) {
        (Operation::Renew, "7") => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guards = join_all((0..500).map(|n| provider.acquire(n.to_string()).into_future())).await;
    sleep(secs(60)).await;
    let lost: Vec<_> = guards.iter().flatten().filter(|g| g.is_lost()).map(|g| g.key().clone()).collect();
    assert_eq!(lost, [LockKey::new("7").unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn c14_many_hung_keys_cost_no_other_lease() {
    // For example because one shard of two is down.
    let store = Arc::new(ScriptedStore::new(|op, key, _| match op {
        Operation::Renew | Operation::Withdraw if key.ends_with("hung") => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let names = (0..400).map(|n| if n % 2 == 0 { format!("{n}") } else { format!("{n} hung") });
    let guards = join_all(names.map(|name| provider.acquire(name).into_future())).await;
    sleep(secs(60)).await;
    let lost = guards.iter().flatten().filter(|g| g.is_lost() && !g.key().as_str().ends_with("hung")).count();
    assert_eq!(lost, 0, "of 200 healthy ones");
}

#[tokio::test(start_paused = true)]
async fn c14_hung_keys_that_take_all_calls_cost_no_other_lease_of_their_batch() {
    let mut store = ScriptedStore::new(|op, key, _| match op {
        Operation::Renew | Operation::Withdraw if key.starts_with("hung") => Fate::Never,
        _ => Fate::Serve,
    });
    store.lanes = Some(Lanes::new(NonZeroUsize::new(8).unwrap()));
    let provider = provider(&Arc::new(store));
    let names = (0..100).map(|n| if n % 10 == 0 { format!("hung {n}") } else { n.to_string() });
    let guards = join_all(names.map(|name| provider.acquire(name).into_future())).await;
    sleep(secs(60)).await;
    let lost = guards.iter().flatten().filter(|g| g.is_lost() && !g.key().as_str().starts_with("hung")).count();
    assert_eq!(lost, 0, "of 90 healthy ones");
}

#[tokio::test(start_paused = true)]
async fn c14_a_store_that_panics_on_one_renewal_does_not_stop_all_others() {
    let store = Arc::new(ScriptedStore::new(|op, key, nth| match (op, key, nth) {
        (Operation::Renew, "bad", 1) => Fate::Panic,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let _bad = provider.acquire("bad").ttl(secs(3)).await.unwrap();
    let good = provider.acquire("good").ttl(secs(30)).await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(good.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn c14_a_store_that_panics_when_asked_what_it_can_is_still_sent_renewals() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    store.panics_when_asked.store(true, Ordering::Relaxed);
    sleep(secs(60)).await;
    assert_eq!(guard.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn c14_a_batch_with_too_few_answers_does_not_stop_renewal() {
    let store = Arc::new(ScriptedStore::new(|operation, _, nth| match (operation, nth) {
        (Operation::Renew, 1) => Fate::Forget,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(guard.loss(), None);
}

//! Random runs of several callers, with and without faults: exclusion, growing tokens and the
//! accounting (C1, C5, C23). Time is real in the runs without faults.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LeaseOptions, LockGuard, LockKey, LockProvider, LockProviderExt, Wait};
use distlock_engine::store::StoreEvent;
use distlock_engine::{LeaseProvider, QueueOptions};
use distlock_memory::{MemoryStore, Operation};
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::kit::{ms, secs, terms};
use crate::store::{Abilities, Fate, ScriptedStore};

/// Asserts that no other guard has the lock meanwhile (C1), and that tokens grow (C5).
async fn critical_section(guard: &LockGuard, last: &Mutex<u64>) {
    let token = guard.fencing_token().get();
    let before = std::mem::replace(&mut *last.lock().unwrap(), token);
    assert!(token > before, "C5");
    yield_now().await;
    assert_eq!(*last.lock().unwrap(), token, "C1");
}

#[tokio::test]
async fn wild_waiters_of_four_processes_keep_exclusion_order_and_accounting() {
    let store = MemoryStore::new();
    let providers: Vec<_> = (0..4)
        .map(|n| {
            // Time is real here: nothing may expire because the machine has stalled.
            let queue = QueueOptions::new().claim(ms(30_000));
            let builder = store.builder().lease(terms().ttl(ms(60_000))).queue(queue);
            if n % 2 == 0 { builder.build().unwrap() } else { builder.without_hand_off().build().unwrap() }
        })
        .collect();
    let last = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..16usize)
        .map(|n| {
            let (provider, last) = (providers[n % 4].clone(), last.clone());
            tokio::spawn(async move {
                for round in 0..100 {
                    if fastrand::u8(..) < 40 {
                        let limit = Duration::from_micros(fastrand::u64(0..2000));
                        if let Ok(guard) = provider.acquire("k").timeout(limit).await {
                            assert!(!guard.is_lost());
                        }
                        continue;
                    }
                    let guard = provider.acquire("k").await.unwrap();
                    critical_section(&guard, &last).await;
                    if round % 2 == 0 { drop(guard) } else { assert!(guard.release().await.unwrap().is_released()) }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for provider in &providers {
        provider.close().await.unwrap();
        let accounting = provider.accounting();
        assert!(
            accounting.balances() && (accounting.held, accounting.waiting, accounting.abandoned) == (0, 0, 0),
            "{accounting:?}"
        );
    }
    assert!(store.waiting("k").is_empty() && store.peek("k").is_none_or(|info| info.id.is_none()), "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wild_hand_overs_keep_order_and_accounting() {
    let store = MemoryStore::new();
    // Time is real here: nothing may expire because the machine has stalled.
    let provider = store.builder().lease(LeaseOptions::new().ttl(ms(60_000))).build().unwrap();
    let last = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (provider, last) = (provider.clone(), last.clone());
            tokio::spawn(async move {
                for round in 0..200 {
                    if (n + round) % 7 == 0 {
                        let limit = Duration::from_micros(u64::from(fastrand::u8(..)));
                        let _ = timeout(limit, provider.acquire("k").into_future()).await;
                        continue;
                    }
                    let guard = provider.acquire("k").await.unwrap();
                    critical_section(&guard, &last).await;
                    assert!(provider.accounting().balances(), "C23");
                    if round % 2 == 0 { drop(guard) } else { assert!(guard.release().await.unwrap().is_released()) }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    provider.close().await.unwrap();
    let accounting = provider.accounting();
    assert!(
        accounting.balances()
            && (accounting.held, accounting.waiting, accounting.lost, accounting.abandoned) == (0, 0, 0, 0),
        "{accounting:?}"
    );
    assert!(store.peek("k").is_none_or(|info| info.remaining.is_zero()), "nothing is left behind");
}

async fn wild(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let store = MemoryStore::new();
    let providers: Vec<_> = (0..3)
        .map(|n| {
            let mut can = Abilities::all();
            match random.u8(..6) {
                0 => can.push = false,
                1 => can.queue = false,
                2 => can.token_blocks = false,
                3 => can.ordered_claims = false,
                _ => {}
            }
            let handle = can.limit(&store);
            let builder = handle.builder().lease(terms()).request_timeout(ms(500));
            if n == 2 { builder.without_hand_off() } else { builder }.build().unwrap()
        })
        .collect();
    let held: Arc<Mutex<Vec<Option<LockGuard>>>> = Arc::new(Mutex::new((0..9).map(|_| None).collect()));
    let last = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..9usize)
        .map(|n| {
            let (provider, held, last) = (providers[n % 3].clone(), held.clone(), last.clone());
            let mut random = random.fork();
            tokio::spawn(async move {
                for _ in 0..12 {
                    sleep(ms(random.u64(..300))).await;
                    let limit = ms(random.u64(1..4000));
                    let Ok(Ok(guard)) = timeout(limit, provider.acquire("k").into_future()).await else { continue };
                    {
                        let mut held = held.lock().unwrap();
                        let others = held.iter().flatten().filter(|other| !other.is_lost()).count();
                        if !guard.is_lost() {
                            assert_eq!(others, 0, "C1 {seed}");
                        }
                        let before = std::mem::replace(&mut *last.lock().unwrap(), guard.fencing_token().get());
                        assert!(before < guard.fencing_token().get() || guard.is_lost(), "C5 {seed}");
                        held[n] = Some(guard);
                    }
                    sleep(ms(random.u64(..150) * u64::from(random.u8(..10) == 0) * 20 + random.u64(..5))).await;
                    let guard = held.lock().unwrap()[n].take().unwrap();
                    if random.bool() {
                        let _ = guard.release().await;
                    } else {
                        drop(guard);
                    }
                    assert!(provider.accounting().balances(), "C23 {seed}");
                }
            })
        })
        .collect();
    let faults = {
        let store = store.clone();
        tokio::spawn(async move {
            let operations = [
                Operation::TryAcquire,
                Operation::Renew,
                Operation::Release,
                Operation::Withdraw,
                Operation::Waiters,
                Operation::Watch,
            ];
            for _ in 0..60 {
                sleep(ms(random.u64(..200))).await;
                let operation = operations[random.usize(..operations.len())];
                match random.u8(..9) {
                    0 => store.fail_next(operation, ErrorKind::Unavailable),
                    1 => store.drop_reply_next(operation),
                    2 | 3 => {
                        let hang =
                            if random.bool() { store.hang_next(operation) } else { store.hang_reply_next(operation) };
                        let late = ms(random.u64(..2000));
                        tokio::spawn(async move {
                            sleep(late).await;
                            hang.proceed();
                        });
                    }
                    4 => store.cut_watchers(),
                    5 => store.lose_events(random.bool()),
                    6 => store.delay_events(ms(random.u64(..1500) * u64::from(random.bool()))),
                    7 => store.push(StoreEvent::Gap),
                    _ => {
                        store.drop_tickets("k");
                    }
                }
            }
            store.clear_faults();
            store.lose_events(false);
            store.delay_events(ms(0));
        })
    };
    faults.await.unwrap();
    for task in tasks {
        timeout(secs(300), task).await.unwrap_or_else(|_| panic!("stuck {seed}")).unwrap();
    }
    for provider in &providers {
        let _ = provider.close().await;
        let accounting = provider.accounting();
        assert!(accounting.balances() && (accounting.held, accounting.waiting) == (0, 0), "{seed} {accounting:?}");
    }
    sleep(secs(20)).await;
    assert!(store.waiting("k").is_empty() && store.peek("k").is_none(), "{seed}");
}

#[tokio::test(start_paused = true)]
async fn c1_c5_c23_wild_processes_at_a_wild_store() {
    for seed in 0..150 {
        wild(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn c23_the_accounting_balances_at_every_moment_of_a_wild_run() {
    let store = Arc::new(ScriptedStore::new(|_, _, _| match fastrand::u8(0..12) {
        0 => Fate::fail(),
        1 => Fate::LoseReply,
        2 => Fate::Late(ms(fastrand::u64(0..400))),
        3 => Fate::After(ms(fastrand::u64(0..400))),
        4 => Fate::Never,
        _ => Fate::Serve,
    }));
    let built = LeaseProvider::builder(store.clone()).request_timeout(ms(200));
    let provider = built.lease(LeaseOptions::new().ttl(ms(500))).build().unwrap();
    let users = (0..30).map(|n| {
        let provider = provider.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let key = LockKey::new((n % 4).to_string()).unwrap();
                let options = AcquireOptions::new().with_wait(Wait::UpTo(ms(300)));
                let acquiring = timeout(ms(fastrand::u64(1..400)), provider.acquire_with(key.clone(), options));
                if let Ok(Ok(acquired)) = acquiring.await
                    && let Some(guard) = acquired.held()
                {
                    sleep(ms(fastrand::u64(0..300))).await;
                    if fastrand::bool() {
                        drop(timeout(ms(fastrand::u64(0..100)), guard.release()).await);
                    }
                }
                assert!(provider.accounting().balances());
            }
        })
    });
    for user in join_all(users).await {
        user.unwrap();
    }
    let _ = provider.close().await;
    sleep(secs(10)).await;
    let accounting = provider.accounting();
    assert!(accounting.balances() && accounting.held == 0 && accounting.waiting == 0, "{accounting:?}");
}

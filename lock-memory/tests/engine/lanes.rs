//! The engine over a store that is slow, and takes a limited number of requests at once.

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, Phase, Result};
use distlock_engine::LeaseProvider;
use distlock_engine::store::Lanes;
use distlock_memory::Operation;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tracing::{Dispatch, Instrument, Span};

use crate::kit::{Deployment, in_task, ms, provider, secs};
use crate::store::{Abilities, Fate, ScriptedStore};

/// How long each kind of request takes.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    acquire: Duration,
    release: Duration,
    renew: Duration,
}

/// The server behind a store: its pace may change while requests are under way.
#[derive(Clone, Default)]
struct Server {
    acquire: watch::Sender<Duration>,
    release: watch::Sender<Duration>,
    renew: watch::Sender<Duration>,
}

impl Server {
    fn is_now(&self, pace: Pace) {
        self.acquire.send_replace(pace.acquire);
        self.release.send_replace(pace.release);
        self.renew.send_replace(pace.renew);
    }

    fn fate(&self, operation: Operation) -> Fate {
        match operation {
            Operation::TryAcquire => Fate::Paced(self.acquire.subscribe()),
            Operation::Release | Operation::Withdraw => Fate::Paced(self.release.subscribe()),
            Operation::Renew => Fate::Paced(self.renew.subscribe()),
            _ => Fate::Serve,
        }
    }
}

/// Returns a store that takes `at_once` requests at once, and the server that it is a client of.
fn slow(at_once: usize) -> (Arc<ScriptedStore>, Server) {
    let server = Server::default();
    let pace = server.clone();
    let store = ScriptedStore::new(move |operation, _, _| pace.fate(operation)).with(|store| {
        store.capabilities = Abilities::all();
        store.lanes = Some(Lanes::new(NonZeroUsize::new(at_once).unwrap()));
    });
    (store, server)
}

/// Acquires and releases a key of its own repeatedly. Counts the acquisitions, and the errors that
/// are not those of an overloaded store.
async fn works(provider: &LeaseProvider, key: String, until: Instant, done: &AtomicUsize, errors: &AtomicUsize) {
    while Instant::now() < until {
        match provider.acquire(&key).timeout(secs(3)).await {
            Ok(guard) => {
                done.fetch_add(1, Ordering::Relaxed);
                let _ = guard.release().await;
            }
            Err(error) => {
                let known = matches!(error.kind(), ErrorKind::Overloaded | ErrorKind::Timeout);
                errors.fetch_add(usize::from(!known), Ordering::Relaxed);
                sleep(ms(50 + fastrand::u64(..50))).await;
            }
        }
    }
}

/// A call is a task, whose span would otherwise be none: what a driver traces would belong nowhere.
#[tokio::test(start_paused = true)]
async fn a_call_runs_in_the_span_of_its_request() {
    // While there is a single subscriber, a span that is first met on a thread without it stays
    // disabled everywhere.
    let (_other, subscriber) =
        (Dispatch::new(tracing_subscriber::registry()), Dispatch::new(tracing_subscriber::registry()));
    let _log = tracing::dispatcher::set_default(&subscriber);
    let (called, calls) = std::sync::mpsc::channel();
    let store = ScriptedStore::new(move |operation, _, _| {
        let span = Span::current().metadata().map(|metadata| metadata.name());
        // The test may be over.
        let _ = called.send((operation, span));
        Fate::Serve
    });
    let locks = provider(&store.with(|store| {
        store.capabilities = Abilities::all();
        store.lanes = Some(Lanes::new(NonZeroUsize::MIN));
    }));
    let work = async {
        let guards = join_all(["a", "b", "c"].map(|key| locks.acquire(key).into_future())).await;
        join_all(guards.into_iter().map(|guard| guard.unwrap().release())).await;
    };
    work.instrument(tracing::info_span!("request")).await;
    let calls: Vec<_> = calls.try_iter().collect();
    assert!(calls.len() >= 6, "{calls:?}");
    assert!(calls.iter().all(|(_, span)| *span == Some("request")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn c14_leases_are_kept_and_goodput_holds_while_acquisitions_are_slow() {
    for (tasks, pace, capacity) in [
        // Six of eight calls are acquisitions, 500 ms each.
        (60, Pace { acquire: ms(500), ..Pace::default() }, 12.0),
        (600, Pace { acquire: ms(500), ..Pace::default() }, 12.0),
        // Each acquisition has a release, and these share eight.
        (600, Pace { acquire: ms(500), release: ms(500), renew: ms(500) }, 8.0),
    ] {
        let (store, server) = slow(8);
        let provider = provider(&store);
        let held = provider.acquire("held").ttl(secs(15)).await.unwrap();
        server.is_now(pace);
        let (done, errors) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let busy = secs(12);
        let until = Instant::now() + busy;
        join_all((0..tasks).map(|n| works(&provider, format!("key {n}"), until, &done, &errors))).await;
        assert_eq!(held.loss(), None, "{tasks} {pace:?}");
        assert!(store.take_most_in_flight() <= 8);
        let goodput = done.load(Ordering::Relaxed) as f64 / busy.as_secs_f64();
        assert!(goodput >= 0.8 * capacity, "{goodput} of {capacity} /s with {tasks} tasks, {pace:?}");
        assert_eq!(errors.load(Ordering::Relaxed), 0);

        // They recover as soon as the server does.
        server.is_now(Pace { acquire: ms(2), release: ms(2), renew: ms(2) });
        let begun = Instant::now();
        done.store(0, Ordering::Relaxed);
        works(&provider, "afterwards".into(), begun + secs(1), &done, &errors).await;
        assert!(done.load(Ordering::Relaxed) > 0 && begun.elapsed() < secs(2));
        assert!(held.release().await.unwrap().is_released());
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_for_a_caller_that_has_left() {
    let (store, server) = slow(1);
    server.is_now(Pace { acquire: secs(2), ..Pace::default() });
    let provider = provider(&store);
    let first = in_task(&provider, "first");
    yield_now().await;
    let leaves = join_all((0..100).map(|n| {
        let provider = provider.clone();
        async move { timeout(secs(1), provider.acquire(format!("{n}")).into_future()).await }
    }));
    assert!(leaves.await.iter().all(|left| left.is_err()));
    drop(first.await.unwrap().unwrap());
    sleep(secs(60)).await;
    assert_eq!(store.count(Operation::TryAcquire), 1);
    assert!(provider.accounting().balances());
    provider.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn overload_is_an_error_at_once_that_can_be_retried() {
    let (store, server) = slow(2);
    server.is_now(Pace { acquire: secs(1), ..Pace::default() });
    let provider = provider(&store);
    // One acquisition at once, a second each.
    let mut warm = provider.acquire("warm").await.unwrap();
    for n in 0..3 {
        warm = provider.acquire(format!("warm {n}")).await.unwrap();
    }
    let patient: Vec<_> = (0..5).map(|n| in_task(&provider, format!("{n}"))).collect();
    yield_now().await;
    let begun = Instant::now();
    let error = provider.acquire("hasty").timeout(secs(3)).await.unwrap_err();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(
        (error.kind(), error.is_retryable(), error.calls_ahead()),
        (ErrorKind::Overloaded, true, Some(4)),
        "{error}"
    );
    assert!(error.to_string().contains("4 calls wait before it"), "{error}");
    let error = provider.try_acquire("hasty").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    for patient in patient {
        drop(patient.await.unwrap().unwrap());
    }
    assert!(provider.acquire("hasty").timeout(secs(3)).await.is_ok());
    drop(warm);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_does_not_poll_keeps_no_permit_from_others() {
    let (store, server) = slow(1);
    server.is_now(Pace { acquire: ms(100), ..Pace::default() });
    let provider = provider(&store);
    let mut stalls = pin!(provider.acquire("stalls").into_future());
    let mut stands = pin!(provider.acquire("stands in line").into_future());
    assert!(timeout(ms(1), &mut stalls).await.is_err());
    assert!(timeout(ms(1), &mut stands).await.is_err());
    // Neither of the two is polled while this one waits.
    let others = timeout(secs(2), provider.acquire("other").into_future()).await;
    assert!(others.expect("not kept out").is_ok());
    assert!(stalls.await.is_ok() && stands.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_before_the_acquisitions_in_line() {
    let (store, server) = slow(1);
    let provider = provider(&store);
    let guard = provider.acquire("mine").await.unwrap();
    server.is_now(Pace { acquire: secs(1), release: secs(1), ..Pace::default() });
    let _line: Vec<_> = (0..10).map(|n| in_task(&provider, format!("{n}"))).collect();
    yield_now().await;
    let begun = Instant::now();
    assert!(guard.release().await.unwrap().is_released());
    assert!(begun.elapsed() <= ms(2010), "behind one acquisition: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_knows_the_lock_is_busy_gets_busy_at_its_limit() {
    let (store, server) = slow(1);
    let (here, there) = (provider(&store), provider(&store.memory));
    let _held = there.acquire("k").ttl(secs(60)).await.unwrap();
    let waits = tokio::spawn({
        let here = here.clone();
        async move { here.acquire("k").timeout(secs(8)).await.map(|_| ()) }
    });
    sleep(secs(1)).await;
    server.is_now(Pace { acquire: secs(4), ..Pace::default() });
    let _line: Vec<_> = (0..50).map(|n| in_task(&here, format!("{n}"))).collect();
    let error = waits.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Wait)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn c14_many_leases_pass_through_a_stall_and_a_slow_server() {
    let (store, server) = slow(8);
    let provider = provider(&store);
    let acquired = (0..5_000).map(|n| provider.acquire(format!("{n}")).ttl(secs(60)).into_future());
    let guards: Vec<_> = join_all(acquired).await.into_iter().map(Result::unwrap).collect();
    let calls_before = AtomicUsize::new(0);
    let calls = || {
        let calls = store.renewal_calls();
        calls - calls_before.swap(calls, Ordering::Relaxed)
    };
    sleep(secs(60)).await;
    let usual = calls();
    // Nothing is answered for 20 s, and then ten times as slowly as a batch of 100 takes.
    server.is_now(Pace { acquire: secs(99), release: secs(99), renew: secs(99) });
    sleep(secs(20)).await;
    let stalled = calls();
    server.is_now(Pace { acquire: ms(100), release: ms(100), renew: ms(100) });
    sleep(secs(60)).await;
    let slow = calls();
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "calls per minute: {usual}, stalled {stalled}, slow {slow}");
    assert!(stalled <= 100 && slow <= 2 * usual + 200, "{usual}, stalled {stalled}, slow {slow}");
    server.is_now(Pace::default());
    drop(guards);
    provider.close().await.unwrap();
}

/// Withdrawals are repeated 64 at a time, however many a slow server has left open.
#[tokio::test(start_paused = true)]
async fn repeated_clean_ups_are_bounded() {
    let (store, server) = slow(1000);
    let provider = store.provider_builder().request_timeout(secs(1)).build().unwrap();
    server.is_now(Pace { acquire: ms(50), release: secs(3600), renew: Duration::ZERO });
    let leaving: Vec<_> = (0..300)
        .map(|n| {
            let provider = provider.clone();
            tokio::spawn(async move { provider.acquire(format!("key {n}")).await.map(drop) })
        })
        .collect();
    sleep(ms(20)).await;
    leaving.iter().for_each(JoinHandle::abort);
    // The first withdrawal of each waits for no other.
    sleep(ms(500)).await;
    assert_eq!(store.in_flight(), 300);
    sleep(secs(2)).await;
    store.take_most_in_flight();
    sleep(secs(10)).await;
    let most = store.take_most_in_flight();
    assert!((1..=64).contains(&most), "{most} at once");
    server.is_now(Pace::default());
    sleep(secs(20)).await;
    for n in 0..300 {
        assert!(store.memory.peek(format!("key {n}")).is_none(), "{n}");
    }
}

//! What dashboards are built on: names of spans, fields and metrics, and when they appear.

#![cfg(feature = "metrics")]

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_api::{ErrorKind, Instrumented, LockProvider, LockProviderExt, ReleaseOutcome};
use distlock_memory::{MemoryStore, Operation};
use futures_util::FutureExt;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing::Instrument;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// One test at a time: while there is a single subscriber, a span that is first met on a thread
/// without it stays disabled everywhere.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self, wanted: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(wanted)).map(str::to_owned).collect()
    }
}

/// The counters, gauges and numbers of histogram samples, as `name{label=value,…} = number`.
fn measured(snapshotter: &Snapshotter) -> Vec<String> {
    let mut lines: Vec<_> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(gauge) => gauge.into_inner(),
                DebugValue::Histogram(samples) => samples.len() as f64,
            };
            format!("{}{{{}}} = {value}", key.key().name(), labels.join(","))
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn every_acquisition_and_every_hold_is_reported_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        metrics::with_local_recorder(&recorder, || {
            runtime.block_on(async {
                let store = MemoryStore::new();
                let locks = Instrumented::new(store.provider()).named("orders");
                let guard = locks.acquire("k").await.unwrap();
                assert!(locks.try_acquire("k").await.unwrap().is_none());
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
                drop(locks.acquire("k").await.unwrap());
                let lost = locks.acquire("k").await.unwrap();
                store.force_release("k");
                lost.lost().await;
                assert_eq!(lost.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
                // Lost is lost, whether or not anybody waits to hear so.
                let (guard_dropped, release_dropped) = ("l", "m");
                for key in [guard_dropped, release_dropped] {
                    let lost = locks.acquire(key).await.unwrap();
                    store.force_release(key);
                    lost.lost().await;
                    if key == release_dropped { drop(lost.release()) } else { drop(lost) }
                }
            });
        });
    });
    assert_eq!(
        measured(&snapshotter),
        [
            "distlock_acquisitions_total{provider=orders,outcome=busy} = 1",
            "distlock_acquisitions_total{provider=orders,outcome=held} = 5",
            "distlock_held{provider=orders} = 0",
            "distlock_hold_seconds{provider=orders,outcome=already_lost} = 1",
            "distlock_hold_seconds{provider=orders,outcome=dropped} = 1",
            "distlock_hold_seconds{provider=orders,outcome=lost} = 2",
            "distlock_hold_seconds{provider=orders,outcome=released} = 1",
            "distlock_holds_total{provider=orders,outcome=already_lost} = 1",
            "distlock_holds_total{provider=orders,outcome=dropped} = 1",
            "distlock_holds_total{provider=orders,outcome=lost} = 2",
            "distlock_holds_total{provider=orders,outcome=released} = 1",
            "distlock_wait_seconds{provider=orders,outcome=busy} = 1",
            "distlock_wait_seconds{provider=orders,outcome=held} = 5",
        ]
    );
    let ended = log.lines("lock acquisition ended");
    assert_eq!(ended.len(), 6, "{ended:#?}");
    assert!(ended[0].contains("distlock.acquire{lock.provider=orders lock.token="), "{}", ended[0]);
    assert!(ended[0].contains("lock.key=k"), "{}", ended[0]);
    assert!(ended[0].contains("lock.outcome=\"held\"") && ended[0].contains("lock.token="), "{}", ended[0]);
    let holds = log.lines("lock hold ended");
    assert_eq!(holds.len(), 5, "{holds:#?}");
    assert!(holds[0].contains("lock.outcome=\"released\"") && holds[0].contains("lock.hold_ms=0"), "{}", holds[0]);
}

/// Runs work whose spans are shown at their end, without keys unless the filter says so.
fn traced(filter: &str, work: impl AsyncFnOnce(MemoryStore, Arc<dyn LockProvider>)) -> Log {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            let store = MemoryStore::new();
            let locks = Instrumented::new(store.provider()).named("orders");
            work(store, Arc::new(locks)).await;
        });
    });
    log
}

#[test]
fn a_hold_is_a_span_beside_that_of_its_wait() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let log = traced("info", async |_, locks| {
        let request = tracing::info_span!("request");
        let guard = async { locks.acquire("k").await.unwrap() }.instrument(request.clone()).await;
        drop(request);
        tokio::time::sleep(Duration::from_millis(30)).await;
        guard.release().await.unwrap();
    });
    for name in ["distlock.acquire", "distlock.hold"] {
        let spans = log.lines(name);
        let [span] = &*spans else { panic!("{name}: {spans:#?}") };
        assert!(span.contains(&format!("request:{name}{{lock.provider=orders")), "{span}");
        assert!(!span.contains("lock.key") && !span.contains("otel.status_code"), "{span}");
    }
    let hold = &log.lines("distlock.hold")[0];
    assert!(hold.contains("lock.outcome=\"released\"") && hold.contains("lock.hold_ms=30"), "{hold}");
}

#[test]
fn failed_spans_have_a_status_and_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let log = traced("info", async |store, locks| {
        let lost = locks.acquire("k").await.unwrap();
        store.force_release("k");
        lost.lost().await;
        drop(lost);
        let held = locks.acquire("k").await.unwrap();
        assert!(locks.try_acquire("k").await.unwrap().is_none(), "busy, which is no failure");
        store.fail_always(Operation::Release, ErrorKind::PermissionDenied);
        store.fail_always(Operation::TryAcquire, ErrorKind::PermissionDenied);
        assert!(held.release().await.is_err());
        assert!(locks.try_acquire("other").await.is_err());
    });
    let failed = log.lines("otel.status_code=\"ERROR\"");
    let [lost, hold, wait] = &*failed else { panic!("{failed:#?}") };
    assert!(lost.contains("distlock.hold{") && lost.contains("error=the lock was lost"), "{lost}");
    assert!(hold.contains("distlock.hold{") && hold.contains("lock.outcome=\"permission_denied\""), "{hold}");
    assert!(wait.contains("distlock.acquire{") && wait.contains("error="), "{wait}");
    assert!(!failed.iter().any(|span| span.contains("[lock")), "an error names its key: {failed:#?}");
}

#[test]
fn keys_are_in_spans_if_asked_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (filter, shown) in [("info", false), ("info,distlock::keys=trace", true)] {
        let log = traced(filter, async |_, locks| drop(locks.acquire("k").await.unwrap()));
        let spans = log.lines("distlock.");
        assert!(spans.len() == 2 && spans.iter().all(|span| span.contains("lock.key=k") == shown), "{spans:#?}");
    }
}

/// Panics whenever something is to be counted.
struct Panicking;

impl metrics::Recorder for Panicking {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        panic!("a recorder that panics")
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        panic!("a recorder that panics")
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("a recorder that panics")
    }
}

#[test]
fn a_recorder_that_panics_costs_no_lock() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&Panicking, || {
        runtime.block_on(async {
            let locks = Instrumented::new(MemoryStore::new().provider());
            let guard = locks.acquire("k").await.unwrap();
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            // A second panic while the first one unwinds would end the process.
            let guard = locks.acquire("k").await.unwrap();
            let work = AssertUnwindSafe(async {
                let _guard = guard;
                panic!("work that panics");
            });
            assert!(work.catch_unwind().await.is_err());
            drop(locks.acquire("k").await.unwrap());
            locks.close().await.unwrap();
            assert!(locks.accounting().balances(), "{:?}", locks.accounting());
        });
    });
}

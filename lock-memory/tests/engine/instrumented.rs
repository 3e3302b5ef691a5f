//! What a provider with a name for reports tells, of plain locks and of typed styles.

use std::sync::Arc;

use distlock_api::{AcquireOptions, Acquired, ErrorKind, LockKey, LockProvider, LockProviderExt, ReleaseOutcome, Wait};
use distlock_engine::{AcquiredLease, LeaseGuard, LeaseProvider};
use distlock_memory::Operation;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tracing::Level;

use crate::commit::resource::{Style, rejected, unavailable, unknown};
use crate::kit::{Lines, ms, quick_terms};
use crate::store::{Fate, Gate};

fn reporting(style: &Style) -> LeaseProvider {
    let builder = style.store.builder().lease(quick_terms()).request_timeout(ms(500));
    builder.instrumented("orders").build().unwrap()
}

/// Runs `work` in a runtime of one thread, whose metrics are recorded.
fn recorded(work: impl AsyncFnOnce(Style, LeaseProvider)) -> Vec<String> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let style = Style::new();
            let provider = reporting(&style);
            work(style, provider.clone()).await;
            assert!(provider.accounting().balances(), "{:?}", provider.accounting());
        });
    });
    measured(&snapshotter)
}

/// The metrics of acquisitions and holds, as `name{outcome} = number`; of a histogram the number of
/// samples.
fn measured(snapshotter: &Snapshotter) -> Vec<String> {
    let metrics = snapshotter.snapshot().into_vec().into_iter();
    let line = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let label = |name: &str| key.key().labels().find(|label| label.key() == name).map(|label| label.value());
        assert_eq!(label("provider")?, "orders");
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(samples) => samples.len() as f64,
        };
        Some(format!("{}{{{}}} = {value}", key.key().name(), label("outcome").unwrap_or_default()))
    };
    let mut lines: Vec<_> = metrics.filter_map(line).collect();
    lines.sort();
    lines
}

/// Asserts that one lock was acquired, and that its hold has ended so.
#[track_caller]
fn ended_as(outcome: &str, seen: &[String]) {
    let expected = [
        "distlock_acquisitions_total{held} = 1".to_owned(),
        "distlock_held{} = 0".to_owned(),
        format!("distlock_hold_seconds{{{outcome}}} = 1"),
        format!("distlock_holds_total{{{outcome}}} = 1"),
        "distlock_wait_seconds{held} = 1".to_owned(),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_typed_style_reports_the_same_as_a_plain_lock() {
    let seen = recorded(async |style, provider| {
        let lease = style.lock(&provider).await;
        let (key, once) = (LockKey::new("k").unwrap(), AcquireOptions::new().with_wait(Wait::Try));
        let busy = provider.acquire_via(key.clone(), once.clone(), Arc::new(style.clone())).await.unwrap();
        assert!(matches!(busy, AcquiredLease::Busy(_)));
        assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::Released);
        style.store.fail_next(Operation::TryAcquire, ErrorKind::Corrupt);
        assert!(provider.acquire_via(key, once, Arc::new(style.clone())).await.is_err());
    });
    let plain = recorded(async |style, provider| {
        let guard = provider.acquire("k").await.unwrap();
        assert!(provider.try_acquire("k").await.unwrap().is_none());
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        style.store.fail_next(Operation::TryAcquire, ErrorKind::Corrupt);
        assert!(provider.try_acquire("k").await.is_err());
    });
    let expected = [
        "distlock_acquisitions_total{busy} = 1",
        "distlock_acquisitions_total{corrupt} = 1",
        "distlock_acquisitions_total{held} = 1",
        "distlock_held{} = 0",
        "distlock_hold_seconds{released} = 1",
        "distlock_holds_total{released} = 1",
        "distlock_wait_seconds{busy} = 1",
        "distlock_wait_seconds{corrupt} = 1",
        "distlock_wait_seconds{held} = 1",
    ];
    assert_eq!(seen, expected);
    assert_eq!(plain, expected);
}

#[test]
fn a_commit_that_is_refused_ends_no_hold() {
    let seen = recorded(async |style, provider| {
        let lease = style.lock(&provider).await;
        let not = lease.release_via(style.adds(true, [rejected()])).await.unwrap_err();
        let lease = not.guard.expect("held");
        sleep(ms(50)).await;
        assert_eq!(lease.release_via(style.adds(true, [unavailable()])).await.unwrap(), ReleaseOutcome::Released);
    });
    ended_as("released", &seen);
}

#[test]
fn each_end_of_a_typed_lease_has_its_outcome() {
    ended_as(
        "unavailable",
        &recorded(async |style, provider| {
            let calls = std::iter::repeat_with(unknown).take(100);
            let not = style.lock(&provider).await.release_via(style.adds(true, calls)).await.unwrap_err();
            assert!(not.error.is_outcome_unknown() && not.guard.is_none(), "{not:?}");
            drop(provider.close().await);
        }),
    );
    for is_noticed in [false, true] {
        ended_as(
            "already_lost",
            &recorded(async |style, provider| {
                let lease = style.lock(&provider).await;
                style.store.lose_events(!is_noticed);
                style.store.force_release("k");
                if is_noticed {
                    timeout(ms(2000), lease.lost()).await.unwrap();
                }
                let ended = lease.release_via(style.adds(true, [])).await.unwrap();
                assert_eq!(ended, ReleaseOutcome::AlreadyLost);
            }),
        );
    }
    ended_as(
        "released",
        &recorded(async |style, provider| {
            assert!(style.lock(&provider).await.discard().await.unwrap().is_released());
        }),
    );
    ended_as("abandoned", &recorded(async |style, provider| style.lock(&provider).await.abandon()));
    ended_as(
        "dropped",
        &recorded(async |style, provider| {
            drop(style.lock(&provider).await);
            provider.close().await.unwrap();
        }),
    );
    // Lost is lost, whether or not the caller asks.
    let ends: [fn(LeaseGuard); 3] = [|lease| drop(lease.release()), drop, LeaseGuard::abandon];
    for end in ends {
        ended_as(
            "lost",
            &recorded(async |style, provider| {
                let lease = style.lock(&provider).await;
                style.store.force_release("k");
                timeout(ms(2000), lease.lost()).await.unwrap();
                end(lease);
            }),
        );
    }
}

#[test]
fn a_commit_that_is_dropped_ends_its_hold_when_it_is_settled() {
    for (polled, outcome) in [(false, "dropped"), (true, "released")] {
        let seen = recorded(async |style, provider| {
            let go_on = Gate::default();
            let op = style.adds(true, [Fate::Hold(go_on.clone())]);
            let mut commit = Box::pin(style.lock(&provider).await.release_via(op));
            if polled {
                assert!(timeout(ms(10), &mut commit).await.is_err());
            }
            drop(commit);
            go_on.open();
            provider.close().await.unwrap();
        });
        ended_as(outcome, &seen);
    }
}

/// A key that was busy is refused without a request only where nothing is reported.
#[tokio::test(start_paused = true)]
async fn no_try_is_answered_without_a_report() {
    let style = Style::new();
    for (provider, is_reported) in [(reporting(&style), true), (style.provider(), false)] {
        let held = style.provider();
        let guard = held.acquire("k").await.unwrap();
        let (key, tries) = (LockKey::new("k").unwrap(), AcquireOptions::try_once().batched());
        let busy = provider.acquire_with(key.clone(), tries.clone()).await.unwrap();
        assert!(matches!(busy, Acquired::Busy(_)));
        assert_eq!(provider.acquire_now(&key, &tries).is_none(), is_reported);
        assert!(guard.release().await.unwrap().is_released());
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_typed_hold_is_logged() {
    let lines = Lines::collect(Level::DEBUG);
    let style = Style::new();
    let (silent, provider) = (style.provider(), reporting(&style));
    assert!(style.lock(&silent).await.release().await.unwrap().is_released());
    assert_eq!(lines.with("lock hold ended"), [""; 0], "without a name nothing is reported");
    let lease = style.lock(&provider).await;
    let token = lease.fencing_token();
    assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(lines.with("lock acquisition ended").len(), 1);
    let [ended] = &lines.with("lock hold ended")[..] else { panic!("{:?}", lines.with("")) };
    for part in ["lock.provider=orders", "lock.key=k", "lock.outcome=\"released\"", &format!("lock.token={token}")] {
        assert!(ended.contains(part), "{part}: {ended}");
    }
}

//! Tasks that take turns on one key.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use super::protocol::{Contend, Report, Turn, Waiter, Window};
use crate::Outcome;
use crate::clock::{self, Nanos};
use crate::locks::Locks;
use crate::stats::Thinned;

/// The pause after an error that an application would see, before the next attempt.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Opens connections, so that the first turn is like every other.
pub(super) async fn warm_up(locks: &dyn Locks) -> Outcome<()> {
    let key = format!("warm-up-{}-{}", std::process::id(), clock::now());
    for _ in 0..3 {
        locks.acquire(&key).await?.release().await?;
    }
    Ok(())
}

#[derive(Default)]
struct Log {
    waiter: Waiter,
    waits: Thinned,
    /// Since when it has been waiting.
    requested: Option<Nanos>,
}

/// Takes turns from `begin` to the end of the window, by as many waiters at each of `locks`. Turns
/// before the window are not reported.
pub(super) async fn run(locks: Vec<Arc<dyn Locks>>, task: Contend, window: Window, begin: Nanos) -> Outcome<Report> {
    let mut logs: Vec<Arc<Mutex<Log>>> = Vec::new();
    let mut waiters = JoinSet::new();
    for locks in locks.iter().flat_map(|locks| std::iter::repeat_n(locks, task.waiters)) {
        let (locks, task, log) = (Arc::clone(locks), task.clone(), Arc::<Mutex<Log>>::default());
        logs.push(Arc::clone(&log));
        waiters.spawn(async move {
            clock::sleep_until(begin).await;
            while clock::now() < window.stop {
                turn(&*locks, &task, &log, window.start).await;
            }
        });
    }
    clock::sleep_until(window.stop).await;
    waiters.shutdown().await;
    let waiters = logs.iter().map(|log| finished(&log.lock().unwrap_or_else(PoisonError::into_inner), window));
    Ok(Report { waiters: waiters.collect(), ..Report::default() })
}

async fn turn(locks: &dyn Locks, task: &Contend, log: &Mutex<Log>, from: Nanos) {
    let log = || log.lock().unwrap_or_else(PoisonError::into_inner);
    let requested = clock::now();
    log().requested = Some(requested);
    let held = match locks.acquire(&task.key).await {
        Ok(held) => held,
        Err(error) => {
            {
                let mut log = log();
                log.waiter.errors += 1;
                log.waiter.first_error.get_or_insert_with(|| error.to_string());
            }
            tokio::time::sleep(AFTER_ERROR).await;
            return;
        }
    };
    let acquired = clock::now();
    if task.yields {
        tokio::task::yield_now().await;
    }
    if task.hold_ms > 0 {
        tokio::time::sleep(Duration::from_millis(task.hold_ms)).await;
    }
    let release = clock::now();
    {
        // Before the release: the next holder may be there before it returns.
        let mut log = log();
        log.requested = None;
        if acquired >= from {
            log.waiter.acquired += 1;
            log.waits.push(acquired - requested);
            if task.every_turn {
                log.waiter.turns.push(Turn { requested, acquired, release, token: held.token() });
            }
        }
    }
    if held.release().await.is_err() {
        log().waiter.release_errors += 1;
    }
    if task.pause_ms > 0 {
        tokio::time::sleep(Duration::from_millis(task.pause_ms)).await;
    }
}

/// A wait that was cut off counts with the time until then: a waiter that never got the lock must
/// not be missing among the waits.
fn finished(log: &Log, window: Window) -> Waiter {
    let mut waits_ns = log.waits.kept().to_vec();
    waits_ns.extend(log.requested.map(|requested| window.stop.saturating_sub(requested)));
    Waiter { waits_ns, ..log.waiter.clone() }
}

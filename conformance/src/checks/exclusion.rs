//! C1: one holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_api::{LockKey, ReleaseOutcome};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::check::checks;
use crate::child::Clock;
use crate::context::{Context, GRAIN, LIVENESS, LONG, all_passed, random_key, renewed, unrenewed, validity};
use crate::failure::{Failure, Verdict, ensure};
use crate::fixture::Client;
use crate::history::{History, Hold};

checks! {
    C1 counter_under_contention [] "tasks of several clients that count under the lock miss no count, and their holds do not overlap";
    C1 across_processes [Processes] "holds of clients in different processes do not overlap, and their tokens increase";
    C1 takeover_only_after_loss [Expiry] "a lease that is neither renewed nor released keeps the key closed until its guard is lost";
    C1 closed_while_renewed [Expiry] "a lease that is renewed keeps the key closed beyond its ttl";
}

const ROUNDS: usize = 10;

async fn counter_under_contention(cx: Context) -> Verdict {
    const TASKS: usize = 12;
    let clients: [Client; 3] = cx.clients().await?;
    let (key, history, counter) = (random_key(), History::default(), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = clients[task % clients.len()].clone();
        tasks.spawn(count(task, client, key.clone(), history.clone(), Arc::clone(&counter)));
    }
    all_passed(tasks).await?;
    history.verdict(TASKS * ROUNDS)?;
    let (counted, expected) = (counter.load(Ordering::SeqCst), (TASKS * ROUNDS) as u64);
    ensure!(counted == expected, "{expected} increments under the lock counted to {counted}");
    Ok(())
}

async fn count(task: usize, client: Client, key: LockKey, history: History, counter: Arc<AtomicU64>) -> Verdict {
    for _ in 0..ROUNDS {
        let guard = client.take(&key, renewed(LONG)).await?;
        let from = Instant::now();
        let seen = counter.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        counter.store(seen + 1, Ordering::SeqCst);
        let until = Instant::now();
        ensure!(!guard.is_lost(), "a lease of {LONG:?} was lost: {:?}", guard.loss());
        history.record(Hold { client: task, key: key.clone(), token: guard.fencing_token().get(), from, until });
        let outcome = guard.release().await?;
        ensure!(outcome == ReleaseOutcome::Released, "the release of a held lock said {outcome:?}");
    }
    Ok(())
}

async fn across_processes(cx: Context) -> Verdict {
    const CHILDREN: usize = 3;
    let (key, history) = (random_key(), History::default());
    let mut tasks = JoinSet::new();
    for client in 0..CHILDREN {
        let (cx, key, history) = (cx.clone(), key.clone(), history.clone());
        tasks.spawn(async move {
            let mut child = cx.child(Clock::True).await?;
            for _ in 0..ROUNDS {
                let Some(grant) = child.acquire(&key, LONG, true, LIVENESS).await? else {
                    return Err(Failure::new(format!("a child process was not granted {key:?} within {LIVENESS:?}")));
                };
                // Between the child's answer and the next order it certainly holds the lock.
                let from = Instant::now();
                tokio::time::sleep(Duration::from_millis(1)).await;
                let until = Instant::now();
                history.record(Hold { client, key: key.clone(), token: grant.token, from, until });
                ensure!(child.release().await?, "a child process lost a lease of {LONG:?}");
            }
            Ok(())
        });
    }
    all_passed(tasks).await?;
    history.verdict(CHILDREN * ROUNDS)
}

/// The whole ttl is the matter of C19: a living holder may give the lease back when its guard is lost.
async fn takeover_only_after_loss(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (random_key(), cx.short());
    let asked = Instant::now();
    let held = a.take(&key, unrenewed(ttl)).await?;
    let (_taken, at) = b.spawn_take(&key, renewed(LONG)).guard().await?;
    let after = at - asked;
    ensure!(after + GRAIN >= validity(ttl), "a lease of {ttl:?} was taken over after {after:?}");
    ensure!(held.is_lost(), "the lock was granted while its holder's guard was not lost");
    Ok(())
}

async fn closed_while_renewed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (random_key(), cx.short());
    let held = a.take(&key, renewed(ttl)).await?;
    let until = Instant::now() + ttl * 3;
    while Instant::now() < until {
        let busy = b.ensure_busy(&key, "its holder renews").await;
        // What the holder knows tells a broken exclusion from a renewal that came too late.
        ensure!(!held.is_lost(), "a renewed lease was lost: {:?} ({busy:?})", held.loss());
        busy?;
        tokio::time::sleep(ttl / 20).await;
    }
    Ok(())
}

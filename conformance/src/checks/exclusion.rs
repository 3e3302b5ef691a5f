//! C1: one holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_api::{Acquired, ErrorKind, LockKey, ReleaseOutcome, Wait};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, within};
use crate::check::checks;
use crate::child::Clock;
use crate::client::Client;
use crate::context::{Context, all_passed, nothing_left};
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed, unrenewed, validity};
use crate::recorder::Recorder;

checks! {
    C1 counter_under_contention Smoke [] "tasks of several clients that count under the lock miss no count, and their holds do not overlap";
    C1 mixed_calls Smoke [] "what clients are answered – to waits, attempts, leases that run out, calls that are given up – a single lock could have answered";
    C1 answered_now Smoke [] "a short cut grants a free lock as any call does, refuses as any call does, says busy to attempts only – or nothing, and then nothing has happened";
    C1 across_processes [Processes] "holds of clients in different processes do not overlap, and their tokens increase";
    C1 takeover_only_after_loss [Expiry] "a lease that is neither renewed nor released keeps the key closed until its guard is lost";
    C1 closed_while_renewed [Expiry] "a lease that is renewed keeps the key closed beyond its ttl";
}

async fn counter_under_contention(cx: Context) -> Verdict {
    const TASKS: usize = 12;
    let clients: [Client; 3] = cx.clients().await?;
    let (key, counter, rounds) = (cx.key(), Arc::new(AtomicU64::new(0)), cx.rounds(10));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = clients[task % clients.len()].clone();
        tasks.spawn(count(client, key.clone(), cx.recorder().clone(), Arc::clone(&counter), rounds));
    }
    all_passed(tasks).await?;
    let grants = TASKS * rounds;
    cx.verdict(&[key], Expected { grants, contended: grants / 2 })?;
    let (counted, expected) = (counter.load(Ordering::SeqCst), grants as u64);
    ensure!(counted == expected, "{expected} increments under the lock counted to {counted}");
    Ok(())
}

#[track_caller]
fn count(
    client: Client,
    key: LockKey,
    history: Recorder,
    counter: Arc<AtomicU64>,
    rounds: usize,
) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        for _ in 0..rounds {
            let guard = client.take(&key, renewed(LONG)).await?;
            let (asked, seen) = (history.now(), counter.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(1)).await;
            counter.store(seen + 1, Ordering::SeqCst);
            history.wrote(client.number(), &key, guard.fencing_token().get(), asked);
            ensure!(!guard.is_lost(), "a lease of {LONG:?} was lost: {:?}", guard.loss());
            let outcome = guard.release().await?;
            ensure!(outcome == ReleaseOutcome::Released, "the release of a held lock said {outcome:?}");
        }
        Ok(())
    })
}

/// What callers do to two locks, each as its own chance has it. Calls are given up on the first one only: whoever may have been granted it explains much, and
/// of the second one more is known.
async fn mixed_calls(cx: Context) -> Verdict {
    const TASKS: usize = 9;
    let clients: [Client; 3] = cx.clients().await?;
    let (keys, rounds) = ([cx.key(), cx.key()], cx.rounds(25));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, keys, mut chance) = (clients[task % clients.len()].clone(), keys.clone(), cx.chance());
        let ttl = cx.profile().capabilities().expiry.then(|| cx.short() / 5);
        tasks.spawn(async move {
            for _ in 0..rounds {
                let number = chance.usize(..keys.len());
                mixed_call(&client, &keys[number], number == 0, ttl, &mut chance).await?;
            }
            Ok(())
        });
    }
    all_passed(tasks).await?;
    for (client, key) in clients.iter().zip(&keys) {
        nothing_left(&cx, client, key).await?;
        // Nobody is there to be busy with.
        drop(client.attempt(key, renewed(LONG)).await?);
        nothing_left(&cx, client, key).await?;
    }
    let calls = TASKS * rounds;
    cx.verdict(&keys, Expected { grants: calls / 3, contended: calls / 5 })
}

#[track_caller]
fn mixed_call(
    client: &Client,
    key: &LockKey,
    may_give_up: bool,
    ttl: Option<Duration>,
    chance: &mut fastrand::Rng,
) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let moment = Duration::from_micros(chance.u64(0..4000));
        match (chance.u8(..8), ttl) {
            (0 | 1, _) => drop(client.attempt(key, renewed(LONG)).await?),
            (2, _) if may_give_up => drop(tokio::time::timeout(moment, client.take(key, renewed(LONG))).await),
            // Held until it is lost, or nearly so.
            (3, Some(ttl)) if chance.u8(..4) == 0 => {
                let guard = client.take(key, unrenewed(ttl)).await?;
                tokio::time::sleep(ttl.mul_f64(0.7 + chance.f64())).await;
                let _ = guard.release().await?;
            }
            // A short cut, where there is one.
            (4, _) => drop(client.acquire_now(key, &renewed(LONG)).transpose()?),
            _ => {
                let guard = client.take(key, renewed(LONG)).await?;
                tokio::time::sleep(moment).await;
                let outcome = guard.release().await?;
                ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
            }
        }
        Ok(())
    })
}

/// [`LockProvider::acquire_now`](distlock_api::LockProvider::acquire_now) is another way to what [`acquire_with`](distlock_api::LockProvider::acquire_with) answers.
async fn answered_now(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, waits) = (cx.key(), renewed(LONG));
    let attempt = waits.clone().with_wait(Wait::Try);
    for options in [&waits, &attempt] {
        match a.acquire_now(&key, options).transpose()? {
            None => {}
            Some(Acquired::Busy(_)) => return Err(Failure::new("a short cut said that a free lock is busy")),
            Some(Acquired::Held(guard)) => {
                ensure!(*guard.key() == key && !guard.is_lost(), "a short cut granted {guard:?} for {key:?}");
                b.ensure_busy(&key, "a short cut had granted it before").await?;
                let outcome = guard.release().await?;
                ensure!(outcome.is_released(), "the release of what a short cut had granted said {outcome:?}");
            }
        }
    }
    let held = b.take(&key, waits.clone()).await?;
    let before = [&a, &b].map(|client| client.counts());
    for client in [&a, &b] {
        for options in [&waits, &attempt] {
            match client.acquire_now(&key, options).transpose()? {
                None => {}
                Some(Acquired::Held(guard)) => {
                    let token = guard.fencing_token();
                    return Err(Failure::new(format!("a short cut granted a held lock, token {token}")));
                }
                Some(Acquired::Busy(_)) => {
                    ensure!(*options == attempt, "a short cut said busy to a call that would have waited");
                }
            }
        }
    }
    let after = [&a, &b].map(|client| client.counts());
    ensure!(before == after, "nothing was granted, and yet {before:?} became {after:?}");
    ensure!(held.release().await?.is_released(), "short cuts to a held lock have taken it from its holder");
    let free = cx.key();
    let error = a.acquire_now(&free, &renewed(Duration::ZERO)).map(|answer| answer.map_err(|error| error.kind()));
    ensure!(
        matches!(error, None | Some(Err(ErrorKind::InvalidOptions))),
        "a short cut with invalid options was answered {error:?}"
    );
    nothing_left(&cx, &b, &key).await?;
    within(LIVENESS, "close() to return", a.close()).await??;
    let closed = a.acquire_now(&free, &waits).map(|answer| answer.map_err(|error| error.kind()));
    ensure!(matches!(closed, None | Some(Err(ErrorKind::Closed))), "a short cut after close() was answered {closed:?}");
    cx.verdict(&[key], Expected { grants: 1, contended: 0 })
}

async fn across_processes(cx: Context) -> Verdict {
    const CHILDREN: usize = 3;
    let (key, rounds) = (cx.key(), cx.rounds(10));
    let mut tasks = JoinSet::new();
    for _ in 0..CHILDREN {
        let (cx, key) = (cx.clone(), key.clone());
        tasks.spawn(async move {
            let mut child = cx.child(Clock::True).await?;
            for _ in 0..rounds {
                let Some(_) = child.acquire(&key, LONG, true, LIVENESS).await? else {
                    return Err(Failure::new(format!("a child process was not granted {key:?} within {LIVENESS:?}")));
                };
                // Between the child's answer and the next order it certainly holds the lock.
                tokio::time::sleep(Duration::from_millis(1)).await;
                ensure!(child.release().await?, "a child process lost a lease of {LONG:?}");
            }
            Ok(())
        });
    }
    all_passed(tasks).await?;
    let grants = CHILDREN * rounds;
    cx.verdict(&[key], Expected { grants, contended: 1 })
}

/// The whole ttl is the matter of C19: a living holder may give the lease back when its guard is lost.
async fn takeover_only_after_loss(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
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
    let (key, ttl) = (cx.key(), cx.short());
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

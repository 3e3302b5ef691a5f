//! C1: one holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_api::{Acquired, ErrorKind, LockKey, ReleaseOutcome, Wait};
use futures_util::future::try_join_all;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, within};
use crate::check::checks;
use crate::child::Clock;
use crate::client::Client;
use crate::context::{Context, all_passed, nothing_left};
use crate::failure::{Failure, Verdict, ensure, ensure_in_time, located_at_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed, unrenewed, validity};
use crate::recorder::Recorder;

checks! {
    C1 counter_under_contention Smoke []
        "Tasks of several clients that increment a counter under one lock lose no increment, and \
         their holds do not overlap. A failure means that two callers held the lock at the same \
         time.";
    C1 mixed_calls Smoke []
        "One lock could have given all the answers that the clients got to waits, single attempts, \
         expired leases and cancelled calls. A failure means that no order of the calls explains \
         the answers.";
    C1 acquire_now Smoke []
        "`acquire_now` grants a free lock or gives no answer. On a held lock it gives no answer, \
         or reports it busy to a single attempt. No answer means that nothing has happened. A \
         failure means that the fast path contradicts `acquire_with`.";
    C1 across_processes [Processes]
        "Holds of clients in different processes do not overlap, and their tokens increase. A \
         failure means that two processes held the lock at the same time, or that tokens do not \
         fence.";
    C1 takeover_only_after_loss [Expiry]
        "A lease that is neither renewed nor released keeps the key held until its guard is lost. \
         A failure means that the key was taken over while its holder still worked.";
    C1 held_while_renewed [Expiry]
        "A lease that is renewed keeps the key held beyond its ttl. A failure means that renewals \
         do not extend the lease, or come too late.";
}

async fn counter_under_contention(cx: Context) -> Verdict {
    const TASKS: usize = 12;
    let clients: [Client; 3] = cx.clients().await?;
    let (key, counter, rounds) = (cx.key(), Arc::new(AtomicU64::new(0)), cx.rounds(10));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = clients[task % clients.len()].clone();
        tasks.spawn(increment(client, key.clone(), cx.recorder().clone(), Arc::clone(&counter), rounds));
    }
    all_passed(tasks).await?;
    let grants = TASKS * rounds;
    cx.verdict(&[key], Expected { grants, contended: grants / 2 })?;
    let (counted, expected) = (counter.load(Ordering::SeqCst), grants as u64);
    ensure!(counted == expected, "{expected} increments under the lock left the counter at {counted}");
    Ok(())
}

#[track_caller]
fn increment(
    client: Client,
    key: LockKey,
    history: Recorder,
    counter: Arc<AtomicU64>,
    rounds: usize,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        for _ in 0..rounds {
            let guard = client.take(&key, renewed(LONG)).await?;
            let (started, seen) = (history.now(), counter.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(1)).await;
            counter.store(seen + 1, Ordering::SeqCst);
            history.wrote(client.number(), &key, guard.fencing_token().get(), started);
            ensure!(!guard.is_lost(), "a lease of {LONG:?} was lost: {:?}", guard.loss());
            let outcome = guard.release().await?;
            ensure!(outcome == ReleaseOutcome::Released, "the release of a held lock returned {outcome:?}");
        }
        Ok(())
    })
}

/// Each task makes random calls on two locks. Only calls on the first one are cancelled: a
/// cancelled call may have held the lock, which explains many answers, so the second lock proves
/// more.
async fn mixed_calls(cx: Context) -> Verdict {
    const TASKS: usize = 9;
    let clients: [Client; 3] = cx.clients().await?;
    let (keys, rounds) = ([cx.key(), cx.key()], cx.rounds(25));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, keys, mut rng) = (clients[task % clients.len()].clone(), keys.clone(), cx.rng());
        let ttl = cx.profile().capabilities().expiry.then(|| cx.short() / 5);
        tasks.spawn(async move {
            for _ in 0..rounds {
                let number = rng.usize(..keys.len());
                mixed_call(&client, &keys[number], number == 0, ttl, &mut rng).await?;
            }
            Ok(())
        });
    }
    all_passed(tasks).await?;
    for (client, key) in clients.iter().zip(&keys) {
        nothing_left(&cx, client, key).await?;
        // No client is left that could hold the key.
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
    may_cancel: bool,
    ttl: Option<Duration>,
    rng: &mut fastrand::Rng,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let moment = Duration::from_micros(rng.u64(0..4000));
        match (rng.u8(..8), ttl) {
            (0 | 1, _) => drop(client.attempt(key, renewed(LONG)).await?),
            (2, _) if may_cancel => drop(tokio::time::timeout(moment, client.take(key, renewed(LONG))).await),
            // Held until shortly before or after its loss.
            (3, Some(ttl)) if rng.u8(..4) == 0 => {
                let guard = client.take(key, unrenewed(ttl)).await?;
                tokio::time::sleep(ttl.mul_f64(0.7 + rng.f64())).await;
                guard.release().await?;
            }
            // The fast path, where the provider has one.
            (4, _) => drop(client.acquire_now(key, &renewed(LONG)).transpose()?),
            _ => {
                let guard = client.take(key, renewed(LONG)).await?;
                tokio::time::sleep(moment).await;
                let outcome = guard.release().await?;
                ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
            }
        }
        Ok(())
    })
}

/// [`LockProvider::acquire_now`](distlock_api::LockProvider::acquire_now) must agree with
/// [`acquire_with`](distlock_api::LockProvider::acquire_with).
async fn acquire_now(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, waits) = (cx.key(), renewed(LONG));
    let attempt = waits.clone().with_wait(Wait::Try);
    for options in [&waits, &attempt] {
        match a.acquire_now(&key, options).transpose()? {
            None => {}
            Some(Acquired::Busy(_)) => return Err(Failure::new("acquire_now reported a free lock as busy")),
            Some(Acquired::Held(guard)) => {
                ensure!(*guard.key() == key && !guard.is_lost(), "acquire_now for {key:?} returned {guard:?}");
                b.ensure_busy(&key, "acquire_now granted it before").await?;
                let outcome = guard.release().await?;
                ensure!(outcome.is_released(), "the release of a lock that acquire_now granted returned {outcome:?}");
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
                    return Err(Failure::new(format!("acquire_now granted a held lock, token {token}")));
                }
                Some(Acquired::Busy(_)) => {
                    ensure!(*options == attempt, "acquire_now reported busy to a call that may wait");
                }
            }
        }
    }
    let after = [&a, &b].map(|client| client.counts());
    ensure!(before == after, "acquire_now granted nothing, and the accounting changed from {before:?} to {after:?}");
    ensure!(held.release().await?.is_released(), "acquire_now on a held lock took it from its holder");
    let free = cx.key();
    let error = a.acquire_now(&free, &renewed(Duration::ZERO)).map(|answer| answer.map_err(|error| error.kind()));
    ensure!(
        matches!(error, None | Some(Err(ErrorKind::InvalidOptions))),
        "acquire_now with invalid options returned {error:?}"
    );
    nothing_left(&cx, &b, &key).await?;
    within(LIVENESS, "close() to return", a.close()).await??;
    let closed = a.acquire_now(&free, &waits).map(|answer| answer.map_err(|error| error.kind()));
    ensure!(matches!(closed, None | Some(Err(ErrorKind::Closed))), "acquire_now after close() returned {closed:?}");
    cx.verdict(&[key], Expected { grants: 1, contended: 0 })
}

async fn across_processes(cx: Context) -> Verdict {
    const CHILDREN: usize = 3;
    let [client] = cx.clients().await?;
    let (key, rounds) = (cx.key(), cx.rounds(10));
    // All of them meet this holder at first, however long each of them takes to start.
    let held = client.take(&key, renewed(LONG)).await?;
    let children = try_join_all((0..CHILDREN).map(|_| cx.child(Clock::True))).await?;
    let mut tasks = JoinSet::new();
    for mut child in children {
        let key = key.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let Some(_) = child.acquire(&key, LONG, true, LIVENESS).await? else {
                    return Err(Failure::new(format!("a child process was not granted {key:?} within {LIVENESS:?}")));
                };
                // Between the child's answer and the next command it certainly holds the lock.
                tokio::time::sleep(Duration::from_millis(1)).await;
                ensure!(child.release().await?, "a child process lost a lease of {LONG:?}");
            }
            Ok(())
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    ensure!(held.release().await?.is_released(), "a client lost a lease of {LONG:?}");
    all_passed(tasks).await?;
    let grants = CHILDREN * rounds + 1;
    cx.verdict(&[key], Expected { grants, contended: 1 })
}

/// C19 checks the whole ttl. This holder is alive, and may release its lease when its guard is
/// lost.
async fn takeover_only_after_loss(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let started = Instant::now();
    let held = a.take(&key, unrenewed(ttl)).await?;
    let (_taken, at) = b.spawn_take(&key, renewed(LONG)).guard().await?;
    let after = at - started;
    ensure!(after + GRAIN >= validity(ttl), "a lease of {ttl:?} was taken over after only {after:?}");
    ensure!(held.is_lost(), "the lock was granted while its holder's guard was not lost");
    Ok(())
}

async fn held_while_renewed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let held = a.take(&key, renewed(ttl)).await?;
    let until = Instant::now() + ttl * 3;
    while Instant::now() < until {
        let busy = b.ensure_busy(&key, "its holder renews").await;
        // The holder's guard distinguishes a broken exclusion from a late renewal.
        ensure_in_time!(!held.is_lost(), "a renewed lease was lost: {:?} ({busy:?})", held.loss());
        busy?;
        tokio::time::sleep(ttl / 20).await;
    }
    Ok(())
}

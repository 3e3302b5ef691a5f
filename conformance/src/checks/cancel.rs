//! C11: a call that is dropped at any await leaves nothing behind.
//!
//! Each call is started many times, and dropped before its first poll, after the first, after the
//! second, and so on, until it completes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock_api::{AcquireOptions, Acquired, LockKey, LockProviderExt, Wait};
use tokio::time::{Instant, timeout_at};

use super::fairness::until_queued;
use crate::bounded::{LIVENESS, SOON, late_as_none, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, on_a_runtime_of_its_own};
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C11 dropped_acquisition Smoke []
        "An acquisition that is dropped at any await leaves no lease behind. A failure means that \
         the key stays held without a holder.";
    C11 dropped_waiter []
        "A waiter that is dropped at any await leaves no ticket behind and is granted nothing. A \
         failure means that the others wait for a waiter that has left.";
    C11 dropped_timed_wait []
        "A wait with a timeout that is dropped at any await, even after its time has run out, \
         leaves nothing behind. A failure means that a ticket or a lease of the waiter is left.";
    C11 dropped_acquire_all []
        "An acquisition of several locks that is dropped at any await leaves none of them held, \
         whether or not one of them is busy. A failure means that a key stays held without a \
         holder.";
    C11 dropped_run []
        "Work under a lock that is dropped at any await releases the lock. A failure means that \
         the key stays held without a holder.";
    C11 dropped_unanswered [Faults]
        "An acquisition or a release that is dropped after the store has carried it out, and \
         before the store has answered, leaves nothing behind. A failure means that the key stays \
         held without a holder.";
    C11 dropped_guard Smoke []
        "A dropped guard releases its lock in the background. A failure means that the key stays \
         held until the lease expires.";
    C11 dropped_release []
        "A release that is dropped at any await continues in the background. A failure means that \
         the key stays held until the lease expires.";
    C11 dropped_signal [Expiry]
        "Dropping `lost()` at any await does not affect the guard, and the next `lost()` \
         completes. A failure means that a holder can miss the loss of its lock.";
    C11 dropped_close [SeparateClients]
        "A `close()` that is dropped at any await continues, or is completed by the next one: \
         every lock is free then. A failure means that locks of a closed client stay held.";
    C11 aborted_task []
        "A task that is aborted while it owns a guard releases the lock. A failure means that the \
         key stays held until the lease expires.";
    C11 runtime_ends [Expiry, SeparateClients]
        "When a runtime shuts down while guards exist in its tasks and outside, every lock is free \
         at its lease's expiry at the latest. The accounting balances. A failure means that leases \
         are renewed without a holder, or are not counted.";
}

/// The largest number of polls after which a call is dropped.
const MOST_POLLS: usize = 40;
/// A future that is not woken for this long has reached the point where it waits.
const IDLE: Duration = Duration::from_millis(250);
/// How long the store may take to carry out a request, at most. Clients wait longer for an answer.
const CARRIED_OUT: Duration = Duration::from_secs(3);

/// The end of a call that was to be dropped.
enum Ended<T> {
    Completed(T),
    /// After as many polls as it was allowed.
    Dropped,
    /// Before that, because it was no longer woken.
    Idle,
}

impl<T> Ended<T> {
    fn completed(self) -> Option<T> {
        match self {
            Self::Completed(output) => Some(output),
            Self::Dropped | Self::Idle => None,
        }
    }
}

/// Polls a future whenever it is woken, but no more than `polls` times, and drops it.
async fn dropped_after<F: Future>(polls: usize, future: F) -> Ended<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    let polling = poll_fn(|task| {
        let Some(rest) = left.checked_sub(1) else { return Poll::Ready(Ended::Dropped) };
        left = rest;
        match future.as_mut().poll(task) {
            Poll::Ready(output) => Poll::Ready(Ended::Completed(output)),
            Poll::Pending if left == 0 => Poll::Ready(Ended::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(IDLE, polling).await.unwrap_or(Ended::Idle)
}

/// Runs `case` for 0, 1, 2 … polls, and repeats that `rounds` times, because what happens between
/// two polls is random. `case` drops its call after the given number of polls and examines what is
/// left. It returns whether the call completed, or waits and is no longer woken.
#[track_caller]
fn at_every_poll(
    what: &str,
    rounds: usize,
    mut case: impl AsyncFnMut(usize) -> Result<bool, Failure>,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        for _ in 0..rounds {
            for polls in 0..=MOST_POLLS {
                let ended = case(polls).await;
                let dropped = |message: &str| format!("after {what} was dropped after {polls} polls: {message}");
                if ended.map_err(|failure| failure.reworded(dropped))? {
                    break;
                }
            }
        }
        Ok(())
    })
}

/// Ensures that another client can acquire the lock soon, and release it.
#[track_caller]
fn ensure_free(client: &Client, key: &LockKey) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let guard = client.take_within(SOON, key, renewed(LONG)).await?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        Ok(())
    })
}

/// Ensures that at the end no client holds or waits for a lock, and that no two holds overlapped.
#[track_caller]
fn nothing_is_left(cx: &Context, what: &str, clients: &[&Client], keys: &[LockKey]) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        for client in clients {
            let idle = client.until_idle().await;
            idle.map_err(|failure| failure.reworded(|message| format!("after {what} was dropped: {message}")))?;
        }
        cx.verdict(keys, Expected { grants: keys.len(), contended: 0 })
    })
}

async fn dropped_acquisition(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let mut keys = Vec::new();
    at_every_poll("an acquisition", cx.rounds(5), async |polls| {
        let key = cx.key();
        keys.push(key.clone());
        let ended = dropped_after(polls, a.acquire_with(key.clone(), renewed(LONG))).await.completed();
        let completed = ended.is_some();
        if let Some(acquired) = ended {
            let Some(guard) = acquired?.held() else {
                return Err(Failure::new("an acquisition without a timeout was answered busy"));
            };
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
        ensure_free(&b, &key).await?;
        Ok(completed)
    })
    .await?;
    nothing_is_left(&cx, "an acquisition", &[&a, &b], &keys).await
}

async fn dropped_waiter(cx: Context) -> Verdict {
    dropped_wait(&cx, "a waiter", renewed(LONG).with_wait(Wait::Forever)).await
}

async fn dropped_timed_wait(cx: Context) -> Verdict {
    // Short enough to end before the call counts as idle.
    dropped_wait(&cx, "a wait with a timeout", renewed(LONG).with_wait(Wait::UpTo(IDLE / 3))).await
}

#[track_caller]
fn dropped_wait(cx: &Context, what: &str, options: AcquireOptions) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let [a, b, c] = cx.clients().await?;
        let mut keys = Vec::new();
        at_every_poll(what, cx.rounds(5), async |polls| {
            let key = cx.key();
            keys.push(key.clone());
            let held = a.take(&key, renewed(LONG)).await?;
            let ended = match dropped_after(polls, b.acquire_with(key.clone(), options.clone())).await {
                Ended::Completed(answer) => {
                    let granted = late_as_none(answer)?.and_then(Acquired::held);
                    ensure!(granted.is_none(), "a held lock was granted: {granted:?}");
                    true
                }
                Ended::Idle => true,
                Ended::Dropped => false,
            };
            if cx.profile().capabilities().fair && cx.profile().has_admin() {
                until_queued(cx, &a, &key, 0).await?;
            }
            let outcome = held.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
            ensure_free(&c, &key).await?;
            Ok(ended)
        })
        .await?;
        nothing_is_left(cx, what, &[&a, &b, &c], &keys).await
    })
}

async fn dropped_acquire_all(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let mut all_keys = Vec::new();
    for busy in [None, Some(1)] {
        let what = if busy.is_some() { "an acquisition of busy locks" } else { "an acquisition of free locks" };
        at_every_poll(what, cx.rounds(5), async |polls| {
            let mut keys = [cx.key(), cx.key(), cx.key()];
            keys.sort();
            all_keys.extend(keys.clone());
            let held = match busy {
                Some(busy) => Some(a.take(&keys[busy], renewed(LONG)).await?),
                None => None,
            };
            let taking = b.take_all(&keys, renewed(LONG).with_wait(Wait::UpTo(IDLE / 3)));
            let ended = dropped_after(polls, taking).await.completed();
            let completed = ended.is_some();
            drop(ended.map(late_as_none).transpose()?);
            drop(held);
            for key in &keys {
                ensure_free(&c, key).await?;
            }
            Ok(completed)
        })
        .await?;
    }
    nothing_is_left(&cx, "an acquisition of several locks", &[&a, &b, &c], &all_keys).await
}

async fn dropped_run(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let mut keys = Vec::new();
    at_every_poll("work under a lock", cx.rounds(5), async |polls| {
        let key = cx.key();
        keys.push(key.clone());
        let working = a.acquire(&key).ttl(LONG).run(async |_| tokio::task::yield_now().await);
        let ended = dropped_after(polls, working).await.completed();
        let completed = ended.is_some();
        ended.transpose()?;
        ensure_free(&b, &key).await?;
        Ok(completed)
    })
    .await?;
    nothing_is_left(&cx, "work under a lock", &[&a, &b], &keys).await
}

async fn dropped_unanswered(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (acquired, released) = (cx.key(), cx.key());
    let guard = a.take(&released, renewed(LONG)).await?;
    let faults = a.disturbed()?;
    for operation in [Operation::Acquire, Operation::Release] {
        faults.delay_replies(operation, u32::MAX, LONG);
    }
    let (acquiring, releasing) = (a.acquire_with(acquired.clone(), renewed(LONG)), guard.release());
    let until = Instant::now() + cx.short().clamp(IDLE, CARRIED_OUT);
    let (acquiring, releasing) = tokio::join!(timeout_at(until, acquiring), timeout_at(until, releasing));
    ensure!(acquiring.is_err() && releasing.is_err(), "calls that the store has not answered completed");
    faults.ensure_hit(2, "the replies were not late")?;
    for key in [&acquired, &released] {
        ensure_free(&b, key).await?;
    }
    nothing_is_left(&cx, "a call without an answer", &[&a, &b], &[acquired, released]).await?;
    let end = a.accounting();
    ensure!(end.released == 1 && end.lost == 0, "a release that was dropped and carried out is counted as {end:?}");
    Ok(())
}

async fn dropped_guard(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    drop(a.take(&key, renewed(LONG)).await?);
    let next = b.take_within(SOON, &key, renewed(LONG)).await?;
    drop(next);
    // The client that dropped the guard can acquire the lock again, too.
    let again = a.take_within(SOON, &key, renewed(LONG)).await?;
    drop(again);
    a.until_idle().await?;
    b.until_idle().await
}

async fn dropped_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let mut keys = Vec::new();
    at_every_poll("a release", cx.rounds(5), async |polls| {
        let key = cx.key();
        keys.push(key.clone());
        let guard = a.take(&key, renewed(LONG)).await?;
        let ended = dropped_after(polls, guard.release()).await.completed();
        let completed = ended.is_some();
        if let Some(outcome) = ended {
            ensure!(outcome?.is_released(), "the release of a held lock did not return `Released`");
        }
        ensure_free(&b, &key).await?;
        Ok(completed)
    })
    .await?;
    nothing_is_left(&cx, "a release", &[&a, &b], &keys).await
}

async fn dropped_signal(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guard = client.take(&cx.key(), unrenewed(cx.short())).await?;
    at_every_poll("lost()", 1, async |polls| Ok(matches!(dropped_after(polls, guard.lost()).await, Ended::Idle)))
        .await?;
    within(cx.short() + SOON, "the next lost() of a lease that is not renewed", guard.lost()).await.map(drop)
}

/// The guards are kept, so that only the close can release their locks.
async fn dropped_close(cx: Context) -> Verdict {
    let mut keys = Vec::new();
    at_every_poll("a close", 1, async |polls| {
        let [a, b] = cx.clients().await?;
        let held = [cx.key(), cx.key()];
        keys.extend(held.clone());
        let mut guards = Vec::new();
        for key in &held {
            guards.push(a.take(key, renewed(LONG)).await?);
        }
        let ended = dropped_after(polls, a.close()).await.completed();
        let completed = ended.is_some();
        ended.transpose()?;
        within(LIVENESS, "the next close() to return", a.close()).await??;
        for key in &held {
            ensure_free(&b, key).await?;
        }
        let end = a.accounting();
        ensure!(end.held == 0 && end.waiting == 0 && end.balances(), "after close() the accounting is {end:?}");
        Ok(completed)
    })
    .await?;
    cx.verdict(&keys, Expected { grants: keys.len(), contended: 0 })
}

async fn aborted_task(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let (holds, held) = tokio::sync::oneshot::channel();
    let task = tokio::spawn({
        let (a, key) = (a.clone(), key.clone());
        async move {
            let guard = a.take(&key, renewed(LONG)).await;
            let _ = holds.send(guard.is_ok());
            std::future::pending::<()>().await;
            drop(guard);
        }
    });
    ensure!(held.await.unwrap_or_default(), "a free lock was not granted");
    task.abort();
    let next = b.take_within(SOON, &key, renewed(LONG)).await?;
    drop(next);
    a.until_idle().await?;
    b.until_idle().await
}

async fn runtime_ends(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (inside, outside, kept, ttl) = (cx.key(), cx.key(), cx.key(), cx.short());
    let (dropped, guard) = on_a_runtime_of_its_own({
        let (a, inside, outside, kept) = (a.clone(), inside.clone(), outside.clone(), kept.clone());
        move |runtime| {
            let guards = runtime.block_on(async {
                let guard = a.take(&inside, renewed(ttl)).await?;
                tokio::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
                let dropped = a.take(&outside, renewed(ttl)).await?;
                Ok::<_, Failure>((dropped, a.take(&kept, renewed(ttl)).await?))
            });
            drop(runtime);
            guards
        }
    })
    .await?;
    drop(dropped);
    // The lease is no longer renewed, and the guard knows its deadline.
    within(ttl + SOON, "lost() of a guard whose runtime has ended", guard.lost()).await?;
    for key in [&inside, &outside, &kept] {
        drop(b.take_within(ttl + SOON, key, renewed(LONG)).await?);
    }
    ensure!(guard.is_lost(), "another client was granted the lock, and its last holder's guard is not lost");
    drop(guard);
    nothing_is_left(&cx, "a runtime", &[&a, &b], &[inside, outside, kept]).await
}

//! C11: whatever is dropped, wherever it is dropped, nothing stays behind.
//!
//! The matrix: each call is begun again and again, and dropped after none of its polls, after the first, after the second …, until it comes to its end.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock_api::{AcquireOptions, Acquired, ErrorKind, LockKey, LockProviderExt, Wait};

use super::fairness::until_queued;
use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, on_a_runtime_of_its_own};
use crate::controls::Operation;
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C11 dropped_acquisition Smoke [] "an acquisition dropped at any await leaves no lease behind";
    C11 dropped_waiter [] "a waiter dropped at any await leaves no waiter behind and is granted nothing";
    C11 dropped_timed_wait [] "a wait with a timeout that is dropped at any await, also after its time has run out, leaves nothing behind";
    C11 dropped_acquire_all [] "an acquisition of several locks dropped at any await leaves none of them behind, be one of them busy or not";
    C11 dropped_run [] "work under a lock dropped at any await releases the lock";
    C11 dropped_unanswered [DelayedReplies] "an acquisition, and a release, dropped after the store has done what they ask and before it has said so, leave nothing behind";
    C11 dropped_guard Smoke [] "a dropped guard releases in the background";
    C11 dropped_release [] "a release dropped at any await goes on in the background";
    C11 dropped_signal [Expiry] "lost() dropped at any await costs the guard nothing, and the next one completes";
    C11 dropped_close [SeparateClients] "a close dropped at any await goes on, or is made up for by the next one: every lock is free then";
    C11 aborted_task [] "a task that is aborted with a guard inside releases it";
    C11 runtime_ends [Expiry, SeparateClients] "when a runtime ends while guards live on it, in its tasks and outside, every lock is free at its lease's expiry at the latest, and the books balance";
}

/// No call is dropped later than after so many polls.
const MOST_POLLS: usize = 40;
/// A future that does not want to be polled for this long has arrived where it waits.
const IDLE: Duration = Duration::from_millis(250);

/// What became of a call that was to be dropped.
enum Ended<T> {
    Completed(T),
    /// After as many polls as it was given.
    Dropped,
    /// Before: it did not want to be polled any more.
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

/// Polls a future as often as it asks for it, but no more than `polls` times, and drops it.
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

/// One row of the matrix, so many times: `case` drops its call after so many polls, looks at what is left, and says whether the call had come to where it ends or waits for
/// ever. More than once, because what else happens between two polls is chance.
#[track_caller]
fn at_every_poll(
    what: &str,
    rounds: usize,
    mut case: impl AsyncFnMut(usize) -> Result<bool, Failure>,
) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        for _ in 0..rounds {
            for polls in 0..=MOST_POLLS {
                let ended = case(polls).await;
                let dropped = |said: &str| format!("after {what} was dropped after {polls} polls: {said}");
                if ended.map_err(|failure| failure.reworded(dropped))? {
                    break;
                }
            }
        }
        Ok(())
    })
}

/// A wait may be shorter than the store's answer takes.
fn or_too_late<T>(answer: distlock_api::Result<T>) -> distlock_api::Result<Option<T>> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
        answer => answer.map(Some),
    }
}

/// The lock can be had by another client at once, and given back.
#[track_caller]
fn ensure_free(client: &Client, key: &LockKey) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let guard = client.take_within(SOON, key, renewed(LONG)).await?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        Ok(())
    })
}

/// In the end nothing is left of it anywhere, and nobody has held a lock together with somebody else.
#[track_caller]
fn nothing_is_left(cx: &Context, what: &str, clients: &[&Client], keys: &[LockKey]) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        for client in clients {
            let idle = client.until_idle().await;
            idle.map_err(|failure| failure.reworded(|said| format!("after {what} was dropped: {said}")))?;
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
            let Some(guard) = acquired?.held() else { return Err(Failure::new("a wait for ever ended with busy")) };
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
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
    // Soon enough to come to its end before it is taken to wait for ever.
    dropped_wait(&cx, "a wait with a timeout", renewed(LONG).with_wait(Wait::UpTo(IDLE / 3))).await
}

#[track_caller]
fn dropped_wait(cx: &Context, what: &str, options: AcquireOptions) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let [a, b, c] = cx.clients().await?;
        let mut keys = Vec::new();
        at_every_poll(what, cx.rounds(5), async |polls| {
            let key = cx.key();
            keys.push(key.clone());
            let held = a.take(&key, renewed(LONG)).await?;
            let ended = match dropped_after(polls, b.acquire_with(key.clone(), options.clone())).await {
                Ended::Completed(answer) => {
                    let granted = or_too_late(answer)?.and_then(Acquired::held);
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
            ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
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
            drop(ended.map(or_too_late).transpose()?);
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
    let controls = a.disturbed()?;
    for operation in [Operation::Acquire, Operation::Release] {
        controls.delay_replies(operation, u32::MAX, LONG).await?;
    }
    let (acquiring, releasing) = (a.acquire_with(acquired.clone(), renewed(LONG)), guard.release());
    let both = tokio::join!(dropped_after(MOST_POLLS, acquiring), dropped_after(MOST_POLLS, releasing));
    ensure!(matches!(both, (Ended::Idle, Ended::Idle)), "calls that the store has not answered came to an end");
    ensure!(controls.end_faults().await? > 1, "the replies were not late: the check proves nothing");
    for key in [&acquired, &released] {
        ensure_free(&b, key).await?;
    }
    nothing_is_left(&cx, "a call without an answer", &[&a, &b], &[acquired, released]).await?;
    let books = a.accounting();
    ensure!(
        books.released == 1 && books.lost == 0,
        "a release that was dropped and carried out is counted as {books:?}"
    );
    Ok(())
}

async fn dropped_guard(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    drop(a.take(&key, renewed(LONG)).await?);
    let next = b.take_within(SOON, &key, renewed(LONG)).await?;
    drop(next);
    // The client that dropped it is not in its own way, either.
    let again = b.take_within(SOON, &key, renewed(LONG)).await?;
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
            ensure!(outcome?.is_released(), "the release of a held lock did not say `Released`");
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

/// The guards stay: it is the close that gives their locks back.
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
        ensure!(end.held == 0 && end.waiting == 0 && end.balances(), "after close(): {end:?}");
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
    // Nobody renews it any more, and it knows when it ends.
    within(ttl + SOON, "lost() of a guard whose runtime has ended", guard.lost()).await?;
    for key in [&inside, &outside, &kept] {
        drop(b.take_within(ttl + SOON, key, renewed(LONG)).await?);
    }
    ensure!(guard.is_lost(), "the lock was granted to somebody else, and its guard is not lost");
    drop(guard);
    nothing_is_left(&cx, "a runtime", &[&a, &b], &[inside, outside, kept]).await
}

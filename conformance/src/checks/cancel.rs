//! C11: whatever is dropped, wherever it is dropped, nothing stays behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock_api::Wait;
use futures_util::future::try_join_all;

use super::fairness::until_queued;
use crate::check::checks;
use crate::context::{Context, LONG, SOON, renewed};
use crate::failure::{Failure, Verdict, ensure};

checks! {
    C11 dropped_acquisition Smoke [] "an acquisition dropped at any await leaves no lease behind";
    C11 dropped_waiter [] "a waiter dropped at any await leaves no waiter behind and is granted nothing";
    C11 dropped_guard Smoke [] "a dropped guard releases in the background";
    C11 dropped_release [] "a release whose future is dropped, polled or not, goes on in the background";
    C11 aborted_task [] "a task that is aborted with a guard inside releases it";
}

/// An acquisition is dropped after each number of polls up to this.
const POLLS: usize = 12;
/// A future that does not want to be polled for this long has arrived where it waits.
const IDLE: Duration = Duration::from_millis(250);

/// Polls a future as often as it asks for it, but no more than `polls` times, and drops it. Its output, if it got that far.
async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    let polling = poll_fn(|task| {
        let Some(rest) = left.checked_sub(1) else { return Poll::Ready(None) };
        left = rest;
        match future.as_mut().poll(task) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(IDLE, polling).await.unwrap_or_default()
}

async fn dropped_acquisition(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    try_join_all((0..=POLLS).map(async |polls| {
        let key = cx.key();
        if let Some(acquired) = dropped_after(polls, a.acquire_with(key.clone(), renewed(LONG))).await {
            let Some(guard) = acquired?.held() else { return Err(Failure::new("a wait for ever ended with busy")) };
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        }
        let guard = b.take_within(SOON, &key, renewed(LONG)).await;
        guard.map(drop).map_err(|failure| dropped(polls, &failure))
    }))
    .await?;
    a.until_idle().await?;
    b.until_idle().await
}

async fn dropped_waiter(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    try_join_all((0..=POLLS).map(async |polls| {
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let waiting = b.acquire_with(key.clone(), renewed(LONG).with_wait(Wait::Forever));
        let granted = dropped_after(polls, waiting).await;
        ensure!(granted.is_none(), "a waiter for a held lock was answered after {polls} polls: {granted:?}");
        if cx.profile().capabilities().fair && cx.profile().has_admin() {
            until_queued(&cx, &a, &key, 0).await.map_err(|failure| dropped(polls, &failure))?;
        }
        let outcome = held.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        let guard = c.take_within(SOON, &key, renewed(LONG)).await;
        guard.map(drop).map_err(|failure| dropped(polls, &failure))
    }))
    .await?;
    for client in [&a, &b, &c] {
        client.until_idle().await?;
    }
    Ok(())
}

fn dropped(polls: usize, failure: &Failure) -> Failure {
    Failure::new(format!("after an acquisition was dropped after {polls} polls: {}", failure.message()))
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
    try_join_all((0..4).map(async |polls| {
        let key = cx.key();
        let guard = a.take(&key, renewed(LONG)).await?;
        if let Some(outcome) = dropped_after(polls, guard.release()).await {
            ensure!(outcome?.is_released(), "the release of a held lock did not say `Released`");
        }
        b.take_within(SOON, &key, renewed(LONG)).await.map(drop)
    }))
    .await?;
    a.until_idle().await?;
    b.until_idle().await
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

//! C10: what was done counts, also if nobody heard of it.

use distlock_api::{LockGuard, Wait};
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, throughout, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::controls::Operation;
use crate::failure::{Verdict, ensure, said_by_caller};
use crate::leases::{LONG, renewed, renewed_every};

checks! {
    C10 acquisition Smoke [LostReplies] "a grant whose reply was lost is found again: the caller gets the lock soon, and does not wait for itself";
    C10 single_attempt [LostReplies] "a single attempt whose reply was lost leaves no lease behind, whatever it says";
    C10 release Smoke [LostReplies] "a release whose reply was lost has released once: the next holder keeps the lock";
    C10 hand_over [LostReplies] "so it has if somebody waits";
    C10 renewal [LostReplies, Expiry] "renewals whose replies were lost are no loss";
}

async fn acquisition(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let controls = a.disturbed()?;
    controls.lose_replies(Operation::Acquire, 2).await?;
    let guard = a.take_within(SOON, &key, renewed(LONG)).await?;
    ensure!(controls.end_faults().await? > 0, "no reply was lost: the check proves nothing");
    b.ensure_busy(&key, "it is held by an acquisition that was asked for twice").await?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    drop(b.take_within(SOON, &key, renewed(LONG)).await?);
    a.until_idle().await
}

async fn single_attempt(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let controls = a.disturbed()?;
    controls.lose_replies(Operation::Acquire, 100).await?;
    let attempt = a.acquire_with(key.clone(), renewed(LONG).with_wait(Wait::Try));
    let attempt = within(LIVENESS, "a single attempt to return", attempt).await?;
    ensure!(controls.end_faults().await? > 0, "no reply was lost: the check proves nothing");
    match attempt {
        Ok(acquired) => drop(acquired.held()),
        Err(error) => ensure!(error.is_outcome_unknown(), "an attempt whose reply was lost says {error:?}"),
    }
    drop(b.take_within(SOON, &key, renewed(LONG)).await?);
    a.until_idle().await
}

async fn release(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    release_unheard(&a, guard).await?;
    let next = b.take_within(SOON, &key, renewed(LONG)).await?;
    ensure_kept([&a, &c], &next).await
}

async fn hand_over(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    b.until_waiting(1).await?;
    release_unheard(&a, guard).await?;
    let (next, _) = waiter.guard().await?;
    ensure_kept([&a, &c], &next).await
}

/// Gives a client's lock back, while the replies get lost.
#[track_caller]
fn release_unheard(client: &Client, guard: LockGuard) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let controls = client.disturbed()?;
        controls.lose_replies(Operation::Release, 2).await?;
        let outcome = guard.release().await;
        ensure!(controls.end_faults().await? > 0, "no reply was lost: the check proves nothing");
        match outcome {
            Ok(outcome) => ensure!(outcome.is_released(), "a release that happened said {outcome:?}"),
            Err(error) => ensure!(error.is_outcome_unknown(), "a release that happened said {error:?}"),
        }
        Ok(())
    })
}

/// When the one who released has come to rest, whoever got the lock after that still has it.
#[track_caller]
fn ensure_kept([released, other]: [&Client; 2], next: &LockGuard) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        released.until_idle().await?;
        other.ensure_busy(next.key(), "its last holder's release was repeated").await?;
        ensure!(!next.is_lost(), "the next holder lost the lock to a repeated release: {:?}", next.loss());
        Ok(())
    })
}

/// The lease is long enough for a client that looks for its server anew after each error.
async fn renewal(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() * 2);
    let guard = a.take(&key, renewed_every(ttl, ttl / 20)).await?;
    let controls = a.disturbed()?;
    controls.lose_replies(Operation::Renew, 2).await?;
    throughout(Instant::now() + ttl * 3 / 2, async || {
        b.ensure_busy(&key, "the replies to two of its holder's renewals were lost").await?;
        ensure!(!guard.is_lost(), "two lost replies lost the lease: {:?}", guard.loss());
        tokio::time::sleep(ttl / 20).await;
        Ok(())
    })
    .await?;
    ensure!(controls.end_faults().await? > 0, "no reply was lost: the check proves nothing");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a lock whose renewals were not heard of said {outcome:?}");
    Ok(())
}

//! C10: a request that was carried out counts, even if its reply was lost.

use distlock_api::{LockGuard, Wait};
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, throughout, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, ensure_in_time, located_at_caller};
use crate::leases::{LONG, renewed, renewed_every};

checks! {
    C10 acquisition Smoke [Faults]
        "A grant whose reply was lost is found again: the caller gets the lock soon and does not \
         wait for itself. A failure means that the repeated attempt is not recognised as the same \
         claim.";
    C10 single_attempt [Faults]
        "A single attempt whose reply was lost leaves no lease behind, whatever it returns. A \
         failure means that the key stays held without a holder.";
    C10 release Smoke [Faults]
        "A release whose reply was lost is carried out once: the next holder keeps the lock. A \
         failure means that the repeated release is not recognised, or frees the next holder's \
         lock.";
    C10 hand_over [Faults]
        "A release whose reply was lost hands the lock to a waiter once, and that waiter keeps it. \
         A failure means that the repeated release is not recognised, or frees the next holder's \
         lock.";
    C10 several_keys [Faults]
        "An acquisition of several keys, some of whose replies were lost, gets them all, and one \
         release of each ends it. A failure means that a part of the keys is given up, or stays \
         held.";
    C10 renewal [Faults, Expiry]
        "Renewals whose replies were lost do not lose the lease. A failure means that an unknown \
         outcome is taken for a loss.";
}

async fn acquisition(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let faults = a.disturbed()?;
    faults.lose_replies(Operation::Acquire, 2);
    let guard = a.take_within(SOON, &key, renewed(LONG)).await?;
    faults.ensure_hit(1, "no reply was lost")?;
    b.ensure_busy(&key, "an acquisition that was sent twice holds it").await?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    drop(b.take_within(SOON, &key, renewed(LONG)).await?);
    a.until_idle().await
}

async fn single_attempt(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let faults = a.disturbed()?;
    faults.lose_replies(Operation::Acquire, 100);
    let attempt = a.acquire_with(key.clone(), renewed(LONG).with_wait(Wait::Try));
    let attempt = within(LIVENESS, "a single attempt to return", attempt).await?;
    faults.ensure_hit(1, "no reply was lost")?;
    match attempt {
        Ok(acquired) => drop(acquired.held()),
        Err(error) => ensure!(
            error.is_outcome_unknown(),
            "an attempt whose reply was lost failed with {error:?}, which is no unknown outcome"
        ),
    }
    drop(b.take_within(SOON, &key, renewed(LONG)).await?);
    a.until_idle().await
}

async fn several_keys(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    for lost in [1, 3] {
        let keys = [cx.key(), cx.key(), cx.key()];
        let controls = a.disturbed()?;
        controls.lose_replies(Operation::Acquire, lost);
        let all = a.take_all(&keys, renewed(LONG).with_wait(Wait::UpTo(SOON)));
        let all = within(LIVENESS, "an acquisition of three keys to return", all).await??;
        ensure!(
            controls.end_faults() > 0,
            "no reply was lost, so the check proves nothing: see the controls of the client"
        );
        let Some(all) = all else {
            return Err(Failure::new(format!(
                "replies were lost, and three free keys were not granted within {SOON:?}"
            )));
        };
        for guard in &all {
            b.ensure_busy(guard.key(), "an acquisition of three keys holds it").await?;
        }
        for guard in all {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
        for key in &keys {
            drop(b.take_within(SOON, key, renewed(LONG)).await?);
        }
    }
    a.until_idle().await
}

async fn release(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    release_without_reply(&a, guard).await?;
    let next = b.take_within(SOON, &key, renewed(LONG)).await?;
    ensure_kept([&a, &c], &next).await
}

async fn hand_over(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    b.until_waiting(1).await?;
    release_without_reply(&a, guard).await?;
    let (next, _) = waiter.guard().await?;
    ensure_kept([&a, &c], &next).await
}

/// Releases a client's lock while the replies to releases are lost.
#[track_caller]
fn release_without_reply(client: &Client, guard: LockGuard) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let faults = client.disturbed()?;
        faults.lose_replies(Operation::Release, 2);
        let outcome = guard.release().await;
        faults.ensure_hit(1, "no reply was lost")?;
        match outcome {
            Ok(outcome) => ensure!(outcome.is_released(), "a release that was carried out returned {outcome:?}"),
            Err(error) => ensure!(
                error.is_outcome_unknown(),
                "a release that was carried out failed with {error:?}, which is no unknown outcome"
            ),
        }
        Ok(())
    })
}

/// Ensures that the next holder still has the lock once the client that released is idle.
#[track_caller]
fn ensure_kept([released, other]: [&Client; 2], next: &LockGuard) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        released.until_idle().await?;
        other.ensure_busy(next.key(), "its last holder's release was repeated").await?;
        ensure!(!next.is_lost(), "the next holder lost the lock to a repeated release: {:?}", next.loss());
        Ok(())
    })
}

/// The lease is long enough for a client that looks up its server again after each error, and
/// renewed no more often than a slow store answers.
async fn renewal(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() * 2);
    let guard = a.take(&key, renewed_every(ttl, ttl / 8)).await?;
    let faults = a.disturbed()?;
    faults.lose_replies(Operation::Renew, 2);
    throughout(Instant::now() + ttl * 3 / 2, async || {
        let busy = b.ensure_busy(&key, "the replies to two of its holder's renewals were lost").await;
        let loss = guard.loss();
        ensure_in_time!(loss.is_none(), "two lost replies made the holder lose its lease: {loss:?} ({busy:?})");
        busy?;
        tokio::time::sleep(ttl / 20).await;
        Ok(())
    })
    .await?;
    faults.ensure_hit(1, "no reply was lost")?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "after lost replies to renewals the release of a held lock returned {outcome:?}");
    Ok(())
}

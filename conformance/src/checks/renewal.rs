//! C12: no renewal after the end. C13: one transient error is no end.

use std::time::Duration;

use distlock_api::ReleaseOutcome;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, eventually, throughout, within};
use crate::check::checks;
use crate::context::{Context, ensure_not_prolonged};
use crate::controls::Operation;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed, renewed_every, unrenewed};

checks! {
    C12 none_after_release [Admin, Expiry] "the renewals of a released lease do not prolong the next one";
    C12 id_is_gone_after_release Smoke [Admin, Expiry] "a released lease never shows up again at the store";
    C12 none_after_loss [Admin, Expiry] "a lease that expired comes not back, even if nobody took it over";
    C12 none_revives_what_was_taken [Admin, Expiry] "the renewals of a lease that was taken away do not bring it back, even if nobody else wants the lock";
    C13 renewal_survives [Faults, Expiry] "transient renewal errors neither stop the renewal nor signal loss";
    C13 waiting_survives Smoke [Faults] "a transient error of an attempt does not end the wait";
    C13 a_single_attempt_reports [Faults] "a transient error of a single attempt is returned as retryable or of unknown outcome, and nothing is held";
}

async fn none_after_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    tokio::time::sleep(ttl / 10).await;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    let _next = b.take(&key, unrenewed(ttl)).await?;
    ensure_not_prolonged(cx.admin(&b)?, &key, Instant::now() + ttl).await
}

async fn id_is_gone_after_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    let admin = cx.admin(&b)?;
    let id = admin.inspect(&key).await?.and_then(|info| info.id);
    ensure!(id.is_some(), "a held lock has no id");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    throughout(Instant::now() + ttl / 3, async || {
        let now = admin.inspect(&key).await?.and_then(|info| info.id);
        ensure!(now.is_none(), "after its release the lock is held by {now:?}, it was {id:?}");
        Ok(())
    })
    .await
}

async fn none_after_loss(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let asked = Instant::now();
    let guard = a.take(&key, unrenewed(ttl)).await?;
    within(LIVENESS, "lost() of a lease that is not renewed", guard.lost()).await?;
    tokio::time::sleep_until(asked + ttl + ttl / 5).await;
    let admin = cx.admin(&b)?;
    throughout(Instant::now() + ttl / 3, async || {
        let held = admin.inspect(&key).await?.filter(|info| info.id.is_some());
        ensure!(held.is_none(), "an expired lease of {ttl:?} is held {:?} later: {held:?}", asked.elapsed());
        Ok(())
    })
    .await?;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease said {outcome:?}");
    Ok(())
}

async fn none_revives_what_was_taken(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let _victim = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    let admin = cx.admin(&b)?;
    admin.force_release(&key, "conformance").await?;
    throughout(Instant::now() + ttl / 2, async || {
        let held = admin.inspect(&key).await?.filter(|info| info.id.is_some());
        ensure!(held.is_none(), "a lease that was taken away came back: {held:?}");
        Ok(())
    })
    .await
}

/// The lease is long enough for a client that looks for its server anew after each error.
async fn renewal_survives(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() * 2);
    let guard = a.take(&key, renewed_every(ttl, ttl / 20)).await?;
    let controls = a.disturbed()?;
    controls.fail_next(Operation::Renew, 2).await?;
    throughout(Instant::now() + ttl * 3 / 2, async || {
        b.ensure_busy(&key, "two of its holder's renewals failed").await?;
        ensure!(!guard.is_lost(), "two failed renewals lost the lease: {:?}", guard.loss());
        tokio::time::sleep(ttl / 20).await;
        Ok(())
    })
    .await?;
    let hit = controls.end_faults().await?;
    ensure!(hit > 0, "no renewal was made to fail: the check proves nothing");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    Ok(())
}

async fn waiting_survives(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    let controls = b.disturbed()?;
    controls.fail_next(Operation::Acquire, 2).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    let waits = async || Ok(waiter.is_finished() || b.accounting().waiting == 1);
    eventually(SOON, "a failed attempt to become a wait", waits).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(
        !waiter.is_finished(),
        "a transient error ended a wait: {:?}",
        waiter.guard().await.map(|(guard, _)| guard)
    );
    let hit = controls.end_faults().await?;
    ensure!(hit > 0, "no attempt was made to fail: the check proves nothing");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    waiter.guard().await.map(|_| ())
}

async fn a_single_attempt_reports(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let controls = a.disturbed()?;
    // More than a driver retries by itself.
    controls.fail_next(Operation::Acquire, 100).await?;
    let attempt = a.acquire_with(key.clone(), renewed(LONG).with_wait(distlock_api::Wait::Try));
    let attempt = within(LIVENESS, "a single attempt to return", attempt).await?;
    let hit = controls.end_faults().await?;
    ensure!(hit > 0, "no attempt was made to fail: the check proves nothing");
    match attempt {
        Err(error) if error.is_retryable() || error.is_outcome_unknown() => {}
        other => return Err(Failure::new(format!("a failed attempt was answered with {other:?}"))),
    }
    let guard = b.take_within(SOON, &key, renewed(LONG)).await?;
    drop(guard);
    a.until_idle().await
}

//! C12: no renewal after a release or a loss. C13: one transient error ends neither a lease nor a
//! wait.

use std::time::Duration;

use distlock_api::ReleaseOutcome;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, eventually, throughout, within};
use crate::check::checks;
use crate::context::{Context, ensure_not_prolonged};
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, ensure_in_time};
use crate::leases::{LONG, renewed, renewed_every, unrenewed};

checks! {
    C12 none_after_release [Admin, Expiry]
        "Renewals of a released lease do not prolong the next lease. A failure means that a \
         renewal was sent after the release and took effect.";
    C12 id_is_gone_after_release Smoke [Admin, Expiry]
        "A released lease never shows up in the store again. A failure means that a renewal was \
         sent after the release and took the lease again.";
    C12 none_after_loss [Admin, Expiry]
        "An expired lease does not come back, even if no client has taken the key over. A failure \
         means that a late renewal revived it.";
    C12 none_after_force_release [Admin, Expiry]
        "Renewals of a lease that was released by force do not bring it back, even if no other \
         client wants the lock. A failure means that a renewal grants the lease again.";
    C13 renewal_survives [Faults, Expiry]
        "Transient renewal errors neither stop the renewal nor signal a loss. A failure means that \
         a holder loses its lock to a short disturbance.";
    C13 waiting_survives Smoke [Faults]
        "A transient error of an attempt does not end the wait. A failure means that a waiter \
         gives up because of a short disturbance.";
    C13 a_single_attempt_reports [Faults]
        "A transient error of a single attempt is returned as retryable or of unknown outcome, and \
         nothing is held. A failure means that the caller cannot decide whether to try again, or \
         that the key stays held.";
}

async fn none_after_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    tokio::time::sleep(ttl / 10).await;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let _next = b.take(&key, unrenewed(ttl)).await?;
    ensure_not_prolonged(cx.admin(&b)?, &key, Instant::now() + ttl).await
}

async fn id_is_gone_after_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    let admin = cx.admin(&b)?;
    let id = admin.inspect(&key).await?.and_then(|info| info.id);
    ensure!(id.is_some(), "inspect shows a held lock without an id");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    throughout(Instant::now() + ttl / 3, async || {
        let now = admin.inspect(&key).await?.and_then(|info| info.id);
        ensure!(now.is_none(), "after its release the lock is held by {now:?}; the released lease was {id:?}");
        Ok(())
    })
    .await
}

async fn none_after_loss(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, unrenewed(ttl)).await?;
    // The grant was made before, by however slow a store.
    let granted = Instant::now();
    within(LIVENESS, "lost() of a lease that is not renewed", guard.lost()).await?;
    tokio::time::sleep_until(granted + ttl + ttl / 5).await;
    let admin = cx.admin(&b)?;
    throughout(Instant::now() + ttl / 3, async || {
        let held = admin.inspect(&key).await?.filter(|info| info.id.is_some());
        ensure!(
            held.is_none(),
            "an expired lease of {ttl:?} is held {:?} after its grant: {held:?}",
            granted.elapsed()
        );
        Ok(())
    })
    .await?;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease returned {outcome:?}");
    Ok(())
}

async fn none_after_force_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let _victim = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    let admin = cx.admin(&b)?;
    admin.force_release(&key, "conformance").await?;
    throughout(Instant::now() + ttl / 2, async || {
        let held = admin.inspect(&key).await?.filter(|info| info.id.is_some());
        ensure!(held.is_none(), "a force-released lease came back: {held:?}");
        Ok(())
    })
    .await
}

/// The lease is long enough for a client that looks up its server again after each error, and
/// renewed no more often than a slow store answers.
async fn renewal_survives(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() * 2);
    let guard = a.take(&key, renewed_every(ttl, ttl / 8)).await?;
    let faults = a.disturbed()?;
    faults.fail_next(Operation::Renew, 2);
    throughout(Instant::now() + ttl * 3 / 2, async || {
        let busy = b.ensure_busy(&key, "two of its holder's renewals failed").await;
        let loss = guard.loss();
        ensure_in_time!(loss.is_none(), "two failed renewals made the holder lose its lease: {loss:?} ({busy:?})");
        busy?;
        tokio::time::sleep(ttl / 20).await;
        Ok(())
    })
    .await?;
    faults.ensure_hit(1, "no renewal was made to fail")?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    Ok(())
}

async fn waiting_survives(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    let faults = b.disturbed()?;
    faults.fail_next(Operation::Acquire, 2);
    let waiter = b.spawn_take(&key, renewed(LONG));
    let waits = async || Ok(waiter.is_finished() || b.accounting().waiting == 1);
    eventually(SOON, "a failed attempt to become a wait", waits).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(
        !waiter.is_finished(),
        "a transient error ended a wait: {:?}",
        waiter.guard().await.map(|(guard, _)| guard)
    );
    faults.ensure_hit(1, "no attempt was made to fail")?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    waiter.guard().await.map(|_| ())
}

async fn a_single_attempt_reports(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let faults = a.disturbed()?;
    faults.fail_next(Operation::Acquire, 100);
    let attempt = a.acquire_with(key.clone(), renewed(LONG).with_wait(distlock_api::Wait::Try));
    let attempt = within(LIVENESS, "a single attempt to return", attempt).await?;
    faults.ensure_hit(1, "no attempt was made to fail")?;
    match attempt {
        Err(error) if error.is_retryable() || error.is_outcome_unknown() => {}
        other => {
            return Err(Failure::new(format!(
                "a failed attempt returned {other:?} instead of a retryable error or an unknown outcome"
            )));
        }
    }
    let guard = b.take_within(SOON, &key, renewed(LONG)).await?;
    drop(guard);
    a.until_idle().await
}

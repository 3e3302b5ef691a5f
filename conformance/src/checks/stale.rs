//! C8: what past holders do harms nobody. C9: a release tells the truth.

use std::time::Duration;

use distlock_api::ReleaseOutcome;
use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, SOON, throughout, within};
use crate::check::checks;
use crate::context::{Context, ensure_not_prolonged};
use crate::controls::Operation;
use crate::failure::{Verdict, ensure};
use crate::leases::{LONG, renewed, renewed_every, unrenewed};

checks! {
    C8 stale_release [Expiry] "the release of a lost guard does not free the lock of its present holder";
    C8 stale_drop [Expiry] "the drop of a lost guard does not free the lock of its present holder";
    C8 stale_release_of_the_same_client [Expiry] "a client's lost guard does not free the lock that the same client holds again";
    C8 stale_release_after_force Smoke [Admin] "a holder that was force-released and has not heard of it does not free the lock of its successor";
    C8 stale_renewal [Admin, Expiry] "the renewals of a force-released holder do not prolong the lease of the present one";
    C9 released_means_free Smoke [] "after `Released` the lock can be had at once";
    C9 already_lost_by_expiry [Expiry] "the release of an expired lease says `AlreadyLost`, even if nobody took it over";
    C9 failed_release_is_told [Faults] "a release that the store refuses to carry out never says `Released`, and is carried out later";
    C9 already_lost_by_force Smoke [Admin] "the release of a force-released lock says `AlreadyLost`";
}

async fn stale_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let stale = a.take(&key, unrenewed(cx.short())).await?;
    let present = b.take(&key, renewed(LONG)).await?;
    let outcome = stale.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard said {outcome:?}");
    a.ensure_busy(&key, "a stale release freed it").await?;
    ensure!(!present.is_lost(), "a stale release made the present holder lose: {:?}", present.loss());
    let outcome = present.release().await?;
    ensure!(outcome.is_released(), "after a stale release the present holder's release said {outcome:?}");
    Ok(())
}

async fn stale_drop(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let stale = a.take(&key, unrenewed(cx.short())).await?;
    let present = b.take(&key, renewed(LONG)).await?;
    drop(stale);
    // A release in the background has no end to wait for.
    throughout(Instant::now() + Duration::from_millis(300), async || {
        a.ensure_busy(&key, "the drop of a lost guard freed it").await?;
        ensure!(!present.is_lost(), "a stale drop made the present holder lose: {:?}", present.loss());
        Ok(())
    })
    .await?;
    let outcome = present.release().await?;
    ensure!(outcome.is_released(), "after a stale drop the present holder's release said {outcome:?}");
    Ok(())
}

async fn stale_release_of_the_same_client(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let stale = a.take(&key, unrenewed(cx.short())).await?;
    let present = a.take(&key, renewed(LONG)).await?;
    let outcome = stale.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard said {outcome:?}");
    b.ensure_busy(&key, "a stale release freed it").await?;
    ensure!(!present.is_lost(), "a stale release made the present holder lose: {:?}", present.loss());
    Ok(())
}

async fn stale_release_after_force(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    for by_drop in [false, true] {
        let key = cx.key();
        let stale = a.take(&key, renewed(LONG)).await?;
        cx.admin(&b)?.force_release(&key, "conformance").await?;
        let present = b.take(&key, renewed(LONG)).await?;
        if by_drop {
            drop(stale);
        } else {
            let outcome = stale.release().await?;
            ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a force-released lock said {outcome:?}");
        }
        throughout(Instant::now() + Duration::from_millis(200), async || {
            a.ensure_busy(&key, "the end of a past holder freed it").await?;
            ensure!(!present.is_lost(), "a past holder made the present one lose: {:?}", present.loss());
            Ok(())
        })
        .await?;
        let outcome = present.release().await?;
        ensure!(outcome.is_released(), "the present holder's release said {outcome:?}");
    }
    Ok(())
}

async fn stale_renewal(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let admin = cx.admin(&b)?;
    let _stale = a.take(&key, renewed_every(ttl, ttl / 30)).await?;
    admin.force_release(&key, "conformance").await?;
    let _present = b.take(&key, unrenewed(ttl)).await?;
    ensure_not_prolonged(admin, &key, Instant::now() + ttl).await
}

async fn released_means_free(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    for turn in 0..cx.rounds(10) {
        let (releasing, next) = if turn % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let guard = releasing.take(&key, renewed(LONG)).await?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        let guard = next.attempt(&key, renewed(LONG)).await?;
        ensure!(guard.is_some(), "a lock whose release said `Released` is busy");
        if let Some(guard) = guard {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        }
    }
    Ok(())
}

async fn already_lost_by_expiry(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let asked = Instant::now();
    let guard = client.take(&key, unrenewed(ttl)).await?;
    within(LIVENESS, "lost() of a lease that is not renewed", guard.lost()).await?;
    tokio::time::sleep_until(asked + ttl + GRAIN).await;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease said {outcome:?}");
    let again = client.attempt(&key, renewed(LONG)).await?;
    ensure!(again.is_some() || asked.elapsed() < ttl * 2, "an expired and released lock is busy");
    Ok(())
}

async fn failed_release_is_told(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    let controls = a.disturbed()?;
    // More than anybody tries again.
    controls.fail_next(Operation::Release, 1000).await?;
    match within(LIVENESS, "a release that fails to return", guard.release()).await? {
        Ok(outcome) => {
            let free = b.attempt(&key, renewed(LONG)).await?;
            ensure!(free.is_some(), "a release that was not carried out said {outcome:?}, and the lock is busy");
        }
        Err(error) => {
            ensure!(error.is_outcome_unknown(), "a release that failed, and goes on, is answered with {error:?}");
        }
    }
    let hit = controls.end_faults().await?;
    ensure!(hit > 0, "no release was made to fail: the check proves nothing");
    drop(b.take_within(SOON, &key, renewed(LONG)).await?);
    a.until_idle().await
}

async fn already_lost_by_force(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    cx.admin(&b)?.force_release(&key, "conformance").await?;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a force-released lock said {outcome:?}");
    Ok(())
}

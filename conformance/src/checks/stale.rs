//! C8: calls of past holders change nothing. C9: a release reports what it has done.

use std::time::Duration;

use distlock_api::ReleaseOutcome;
use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, SOON, throughout, within};
use crate::check::checks;
use crate::context::{Context, ensure_not_prolonged};
use crate::disturbed::Operation;
use crate::failure::{Verdict, ensure};
use crate::leases::{LONG, renewed, renewed_every, unrenewed};

checks! {
    C8 stale_release [Expiry]
        "The release of a lost guard does not free the lock of its present holder. A failure means \
         that a release is not bound to its own lease.";
    C8 stale_drop [Expiry]
        "The drop of a lost guard does not free the lock of its present holder. A failure means \
         that the release in the background is not bound to its own lease.";
    C8 stale_release_of_the_same_client [Expiry]
        "A client's lost guard does not free the lock that the same client holds again. A failure \
         means that a release is bound to the client, not to its own lease.";
    C8 stale_release_after_force Smoke [Admin]
        "A holder that lost its lock to a force-release, and has not noticed, does not free the \
         lock of its successor. A failure means that a release is bound to the key, not to its own \
         lease.";
    C8 stale_renewal [Admin, Expiry]
        "The renewals of a force-released holder do not prolong the present holder's lease. A \
         failure means that a renewal is bound to the key, not to its own lease.";
    C9 released_means_free Smoke []
        "After `Released` the lock can be acquired at once. A failure means that the release was \
         reported, but not carried out.";
    C9 already_lost_by_expiry [Expiry]
        "The release of an expired lease returns `AlreadyLost`, even if no other client has taken \
         the key over. A failure means that the caller does not learn that its lease had expired.";
    C9 failed_release_is_reported [Faults]
        "A release that the store refuses to carry out never returns `Released`, and is carried \
         out later. A failure means that the error was swallowed, or that the lock stays held.";
    C9 already_lost_by_force Smoke [Admin]
        "The release of a force-released lock returns `AlreadyLost`. A failure means that the \
         victim does not learn that it had lost the lock.";
}

async fn stale_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let stale = a.take(&key, unrenewed(cx.short())).await?;
    let present = b.take(&key, renewed(LONG)).await?;
    let outcome = stale.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard returned {outcome:?}");
    a.ensure_busy(&key, "a stale release freed it").await?;
    ensure!(!present.is_lost(), "a stale release ended the present holder's lease: {:?}", present.loss());
    let outcome = present.release().await?;
    ensure!(outcome.is_released(), "after a stale release the present holder's release returned {outcome:?}");
    Ok(())
}

async fn stale_drop(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let stale = a.take(&key, unrenewed(cx.short())).await?;
    let present = b.take(&key, renewed(LONG)).await?;
    drop(stale);
    // Nothing reports the end of a release in the background.
    throughout(Instant::now() + Duration::from_millis(300), async || {
        a.ensure_busy(&key, "the drop of a lost guard freed it").await?;
        ensure!(!present.is_lost(), "a stale drop ended the present holder's lease: {:?}", present.loss());
        Ok(())
    })
    .await?;
    let outcome = present.release().await?;
    ensure!(outcome.is_released(), "after a stale drop the present holder's release returned {outcome:?}");
    Ok(())
}

async fn stale_release_of_the_same_client(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let stale = a.take(&key, unrenewed(cx.short())).await?;
    let present = a.take(&key, renewed(LONG)).await?;
    let outcome = stale.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard returned {outcome:?}");
    b.ensure_busy(&key, "a stale release freed it").await?;
    ensure!(!present.is_lost(), "a stale release ended the present holder's lease: {:?}", present.loss());
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
            ensure!(
                outcome == ReleaseOutcome::AlreadyLost,
                "the release of a force-released lock returned {outcome:?}"
            );
        }
        throughout(Instant::now() + Duration::from_millis(200), async || {
            a.ensure_busy(&key, "a past holder's release or drop freed it").await?;
            ensure!(
                !present.is_lost(),
                "a past holder's release or drop ended the present holder's lease: {:?}",
                present.loss()
            );
            Ok(())
        })
        .await?;
        let outcome = present.release().await?;
        ensure!(outcome.is_released(), "the present holder's release returned {outcome:?}");
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
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        let guard = next.attempt(&key, renewed(LONG)).await?;
        ensure!(guard.is_some(), "a lock whose release returned `Released` is busy");
        if let Some(guard) = guard {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
    }
    Ok(())
}

async fn already_lost_by_expiry(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = client.take(&key, unrenewed(ttl)).await?;
    // Its lease began before, however slow the store is.
    let granted = Instant::now();
    within(LIVENESS, "lost() of a lease that is not renewed", guard.lost()).await?;
    tokio::time::sleep_until(granted + ttl + GRAIN).await;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease returned {outcome:?}");
    let again = client.attempt(&key, renewed(LONG)).await?;
    ensure!(again.is_some(), "an expired and released lock is busy");
    Ok(())
}

async fn failed_release_is_reported(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    let faults = a.disturbed()?;
    // More often than any client retries.
    faults.fail_next(Operation::Release, 1000);
    match within(LIVENESS, "a failing release to return", guard.release()).await? {
        Ok(outcome) => {
            let free = b.attempt(&key, renewed(LONG)).await?;
            ensure!(free.is_some(), "a release that was not carried out returned {outcome:?}, and the lock is busy");
        }
        Err(error) => {
            ensure!(
                error.is_outcome_unknown(),
                "a release that failed, and continues, returned {error:?}, which is no unknown outcome"
            );
        }
    }
    faults.ensure_hit(1, "no release was made to fail")?;
    drop(b.take_within(SOON, &key, renewed(LONG)).await?);
    a.until_idle().await
}

async fn already_lost_by_force(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed(LONG)).await?;
    cx.admin(&b)?.force_release(&key, "conformance").await?;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a force-released lock returned {outcome:?}");
    Ok(())
}

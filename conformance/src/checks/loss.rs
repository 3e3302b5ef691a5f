//! C4: loss is noticed in time, and is final.

use std::time::Duration;

use distlock_api::{ErrorKind, Loss, ReleaseOutcome};
use tokio::time::Instant;

use crate::check::checks;
use crate::context::{Context, GRAIN, LONG, SOON, renewed, renewed_every, throughout, unrenewed, validity, within};
use crate::failure::{Failure, Verdict, ensure};

checks! {
    C4 signalled_by_the_deadline [Expiry] "lost() of a lease that is not renewed completes at the guard's deadline: not later, and not much earlier";
    C4 loss_is_final [Expiry] "a lost guard stays lost, whatever happens to the key";
    C4 silent_while_renewed [Expiry] "lost() does not complete while renewals succeed";
    C4 run_stops_on_loss [Expiry] "work under a guard is dropped when the guard is lost";
    C4 force_release_is_heard Smoke [Admin] "lost() completes soon after a force-release: with the next renewal or a pushed event";
    C4 never_signalled_after_release [] "lost() never completes after a release";
}

async fn signalled_by_the_deadline(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    let asked = Instant::now();
    let guard = client.take(&cx.key(), unrenewed(ttl)).await?;
    let remaining = guard.remaining().ok_or_else(|| Failure::new("a guard of an expiring lease has no deadline"))?;
    let deadline = Instant::now() + remaining;
    let loss = within(cx.short() + SOON, "lost() of a lease that is not renewed", guard.lost()).await?;
    let now = Instant::now();
    ensure!(loss == Loss::Expired, "a lease that was not renewed was lost by {loss:?}");
    ensure!(guard.is_lost(), "lost() completed, but is_lost() is false");
    let late = now.saturating_duration_since(deadline);
    ensure!(late < SOON, "lost() completed {late:?} after the deadline");
    let (after, least) = (now - asked, validity(ttl));
    ensure!(after + GRAIN >= least, "a lease of {ttl:?} with a margin of {:?} was lost after {after:?}", ttl / 10);
    Ok(())
}

async fn loss_is_final(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, unrenewed(ttl)).await?;
    let loss = within(cx.short() + SOON, "lost() of a lease that is not renewed", guard.lost()).await?;
    let next = b.take(&key, renewed(LONG)).await?;
    let outcome = next.release().await?;
    ensure!(outcome.is_released(), "the next holder's release said {outcome:?}");
    let again = a.take(&key, renewed(LONG)).await?;
    throughout(Instant::now() + ttl, async || {
        ensure!(guard.loss() == Some(loss), "a guard lost by {loss:?} says later: {:?}", guard.loss());
        ensure!(guard.remaining() == Some(Duration::ZERO), "a lost guard has {:?} left", guard.remaining());
        Ok(())
    })
    .await?;
    ensure!(!again.is_lost(), "the present guard of the same client and key was lost: {:?}", again.loss());
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard said {outcome:?}");
    Ok(())
}

async fn silent_while_renewed(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    let guard = client.take(&cx.key(), renewed(ttl)).await?;
    if let Ok(loss) = tokio::time::timeout(ttl * 3, guard.lost()).await {
        return Err(Failure::new(format!("a renewed lease was lost by {loss:?}")));
    }
    ensure!(!guard.is_lost(), "is_lost() is true, but lost() did not complete");
    let remaining = guard.remaining().unwrap_or_default();
    ensure!(!remaining.is_zero() && remaining <= ttl, "{remaining:?} remain of a renewed lease of {ttl:?}");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a renewed lease said {outcome:?}");
    Ok(())
}

async fn run_stops_on_loss(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guard = client.take(&cx.key(), unrenewed(cx.short())).await?;
    let ran = within(cx.short() + SOON, "run() to end with the loss", guard.run(std::future::pending::<()>())).await?;
    let kind = ran.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Lost), "work under a lost guard ended with {kind:?}");
    Ok(())
}

async fn force_release_is_heard(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed_every(LONG, Duration::from_millis(250))).await?;
    let lost = guard.lost();
    let victim = cx.admin(&b)?.force_release(&key, "conformance").await?;
    ensure!(victim.is_some(), "nobody held a held lock");
    let loss = within(SOON, "lost() after a force-release", lost).await?;
    ensure!(matches!(loss, Loss::ForceReleased | Loss::Gone), "a force-released lease was lost by {loss:?}");
    ensure!(guard.is_lost(), "lost() completed, but is_lost() is false");
    Ok(())
}

async fn never_signalled_after_release(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guard = client.take(&cx.key(), unrenewed(cx.short())).await?;
    let lost = guard.lost();
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    match tokio::time::timeout(cx.short() + cx.short() / 4, lost).await {
        Err(_) => Ok(()),
        Ok(loss) => Err(Failure::new(format!("a released lease was lost by {loss:?}"))),
    }
}

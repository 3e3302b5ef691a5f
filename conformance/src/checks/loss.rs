//! C4: a loss is signalled in time, and is final.

use std::time::Duration;

use distlock_api::{ErrorKind, Loss, ReleaseOutcome, Wait};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use crate::bounded::{GRAIN, SOON, throughout, within};
use crate::check::checks;
use crate::context::{Context, on_a_runtime_of_its_own};
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed, renewed_every, unrenewed, validity};

checks! {
    C4 signalled_by_the_deadline [Expiry]
        "`lost()` of a lease that is not renewed completes at the guard's deadline: not later, and \
         not much earlier. A failure means that a holder works on after its lease, or stops too \
         early.";
    C4 signalled_while_renewals_hang [Faults, Expiry]
        "`lost()` completes at the guard's deadline even if no renewal is ever answered, and a \
         later answer does not revive the guard. A failure means that the signal depends on the \
         store's answer.";
    C4 stalled_runtime [Expiry, SeparateClients]
        "A guard whose runtime stood still beyond its deadline reports the loss on the next query. \
         A failure means that it can claim a lock that another client was granted.";
    C4 loss_is_final [Expiry]
        "A lost guard stays lost, whatever happens to the key. A failure means that a later event \
         revived it.";
    C4 silent_while_renewed [Expiry]
        "`lost()` does not complete while renewals succeed. A failure means that a holder stops \
         working although it holds the lock.";
    C4 run_stops_on_loss [Expiry]
        "Work that runs under a guard is dropped when the guard is lost. A failure means that the \
         work continues without the lock.";
    C4 force_release_is_signalled Smoke [Admin]
        "`lost()` completes soon after a force-release: with the next renewal or a pushed event. A \
         failure means that the victim works on without the lock.";
    C4 never_signalled_after_release []
        "`lost()` never completes after a release. A failure means that a normal end is reported \
         as a loss.";
}

async fn signalled_by_the_deadline(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    let started = Instant::now();
    let guard = client.take(&cx.key(), unrenewed(ttl)).await?;
    let remaining = guard.remaining().ok_or_else(|| Failure::new("a guard of an expiring lease has no deadline"))?;
    let deadline = Instant::now() + remaining;
    let loss = within(cx.short() + SOON, "lost() of a lease that is not renewed", guard.lost()).await?;
    let now = Instant::now();
    ensure!(loss == Loss::Expired, "a lease that was not renewed was lost with {loss:?}");
    ensure!(guard.is_lost(), "lost() completed, but is_lost() is false");
    let late = now.saturating_duration_since(deadline);
    ensure!(late < SOON, "lost() completed {late:?} after the deadline");
    let (after, least) = (now - started, validity(ttl));
    ensure!(after + GRAIN >= least, "a lease of {ttl:?} with a margin of {:?} was lost after only {after:?}", ttl / 10);
    Ok(())
}

async fn signalled_while_renewals_hang(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    let guard = client.take(&cx.key(), renewed(ttl)).await?;
    let faults = client.disturbed()?;
    faults.delay_replies(Operation::Renew, u32::MAX, LONG);
    let loss = within(ttl + SOON, "lost() while no renewal is answered", guard.lost()).await?;
    ensure!(loss == Loss::Expired, "a lease whose renewals were not answered was lost with {loss:?}");
    faults.ensure_hit(1, "no renewal was in flight")?;
    throughout(Instant::now() + ttl / 2, async || {
        ensure!(guard.is_lost(), "a renewal that was answered late revived a lost guard");
        Ok(())
    })
    .await
}

/// A blocking call occupies the only thread of a runtime: neither renewals nor timers run there.
async fn stalled_runtime(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let (holds, held) = tokio::sync::oneshot::channel();
    let (woke, waking) = tokio::sync::oneshot::channel::<()>();
    let stalled = on_a_runtime_of_its_own({
        let key = key.clone();
        move |runtime| {
            runtime.block_on(async {
                let guard = a.take(&key, renewed(ttl)).await?;
                let _ = holds.send(());
                // Until another client was granted the lock, or the time is up.
                stand_still(waking, ttl * 2 + SOON);
                let (loss, remaining) = (guard.loss(), guard.remaining());
                let lost = within(SOON, "lost() after its runtime stood still", guard.lost()).await.map(|_| ());
                Ok((loss, remaining, lost, guard))
            })
        }
    });
    let taking = async {
        let _ = held.await;
        let next = b.acquire_with(key.clone(), renewed(LONG).with_wait(Wait::UpTo(ttl + SOON))).await;
        drop(woke);
        next
    };
    let (stalled, next) = tokio::join!(stalled, taking);
    let (loss, remaining, signalled, guard) = stalled?;
    // A lease that was renewed outside that runtime is still the guard's.
    let Some(next) = next?.held() else { return Ok(()) };
    ensure!(
        loss.is_some() && remaining == Some(Duration::ZERO),
        "another client was granted the lock while its guard's runtime stood still, and the guard reports {loss:?}, {remaining:?} left"
    );
    signalled?;
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard returned {outcome:?}");
    ensure!(!next.is_lost(), "the release of a lost guard ended its successor's lease: {:?}", next.loss());
    Ok(())
}

/// Blocks the thread until the other end is dropped.
fn stand_still(mut until: tokio::sync::oneshot::Receiver<()>, at_most: Duration) {
    let start = std::time::Instant::now();
    while start.elapsed() < at_most && until.try_recv() == Err(TryRecvError::Empty) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn loss_is_final(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, unrenewed(ttl)).await?;
    let loss = within(cx.short() + SOON, "lost() of a lease that is not renewed", guard.lost()).await?;
    let next = b.take(&key, renewed(LONG)).await?;
    let outcome = next.release().await?;
    ensure!(outcome.is_released(), "the next holder's release returned {outcome:?}");
    let again = a.take(&key, renewed(LONG)).await?;
    throughout(Instant::now() + ttl, async || {
        ensure!(guard.loss() == Some(loss), "a guard that was lost with {loss:?} reports {:?} later", guard.loss());
        ensure!(guard.remaining() == Some(Duration::ZERO), "a lost guard has {:?} left", guard.remaining());
        Ok(())
    })
    .await?;
    ensure!(!again.is_lost(), "the present guard of the same client and key was lost: {:?}", again.loss());
    let outcome = guard.release().await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lost guard returned {outcome:?}");
    Ok(())
}

async fn silent_while_renewed(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    let guard = client.take(&cx.key(), renewed(ttl)).await?;
    if let Ok(loss) = tokio::time::timeout(ttl * 3, guard.lost()).await {
        return Err(Failure::new(format!("a renewed lease was lost with {loss:?}")).if_in_time());
    }
    ensure!(!guard.is_lost(), "is_lost() is true, but lost() did not complete");
    let remaining = guard.remaining().unwrap_or_default();
    ensure!(!remaining.is_zero() && remaining <= ttl, "{remaining:?} remain of a renewed lease of {ttl:?}");
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a renewed lease returned {outcome:?}");
    Ok(())
}

async fn run_stops_on_loss(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guard = client.take(&cx.key(), unrenewed(cx.short())).await?;
    let ran = within(cx.short() + SOON, "run() to end with the loss", guard.run(std::future::pending::<()>())).await?;
    let kind = ran.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Lost), "work under a lost guard ended with {kind:?} instead of Lost");
    Ok(())
}

async fn force_release_is_signalled(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, renewed_every(LONG, Duration::from_millis(250))).await?;
    let lost = guard.lost();
    let victim = cx.admin(&b)?.force_release(&key, "conformance").await?;
    ensure!(victim.is_some(), "the force-release of a held lock returned None");
    let loss = within(SOON, "lost() after a force-release", lost).await?;
    ensure!(matches!(loss, Loss::ForceReleased | Loss::Gone), "a force-released lease was lost with {loss:?}");
    ensure!(guard.is_lost(), "lost() completed, but is_lost() is false");
    Ok(())
}

async fn never_signalled_after_release(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guard = client.take(&cx.key(), unrenewed(cx.short())).await?;
    let lost = guard.lost();
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    match tokio::time::timeout(cx.short() + cx.short() / 4, lost).await {
        Err(_) => Ok(()),
        Ok(loss) => Err(Failure::new(format!("a released lease was lost with {loss:?}"))),
    }
}

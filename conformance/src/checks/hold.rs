//! C25: the minimum hold; and C4: the maximum hold.

use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LockKey, Loss, Wait};
use tokio::time::Instant;

use crate::bounded::{GRAIN, SOON};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed};

checks! {
    C25 early_release_keeps_it_closed [MinimumHold]
        "A lock that is released early stays closed until the minimum hold has passed, counted \
         from the grant, and not much longer. A failure means that a job can run twice, or that \
         the key stays closed.";
    C25 early_drop_keeps_it_closed [MinimumHold]
        "A lock whose guard is dropped early stays closed until the minimum hold has passed. A \
         failure means that a job can run twice.";
    C25 late_release_frees_it Smoke [MinimumHold]
        "A lock that was held for longer than its minimum hold is free after its release. A \
         failure means that the minimum hold counts from the release, not from the grant.";
    C25 force_release_opens_it [MinimumHold, Admin]
        "A force-release opens a lock that only its minimum hold keeps closed. A failure means \
         that an operator cannot open the key.";
    C25 release_without_reply_keeps_it_closed [MinimumHold, Faults]
        "A release with a minimum hold whose replies were lost keeps the lock closed until the hold \
         has passed since the grant. A failure means that the repeated release opens the key, or \
         begins the hold again.";
    C25 refused_without_the_capability [NoMinimumHold]
        "A backend without the capability refuses a minimum hold, and counts nothing. A failure \
         means that a caller relies on a hold that is not kept.";
    C4 maximum_hold_ends_it []
        "A guard is lost when its maximum hold has passed, although its lease is renewed, and the \
         lock passes on. A failure means that work that hangs keeps the lock for ever, or that it \
         loses the lock too early.";
}

const HOLD: Duration = Duration::from_millis(1500);

fn held_at_least(duration: Duration) -> AcquireOptions {
    let options = renewed(LONG);
    let lease = options.lease().hold_at_least(duration);
    options.with_lease(lease)
}

/// Waits for the key, and compares the wait with the minimum hold.
#[track_caller]
fn ensure_opens(waiter: &Client, key: &LockKey, started: Instant, granted: Instant) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let (_guard, at) = waiter.spawn_take(key, renewed(LONG)).guard().await?;
        let after = at - started;
        ensure!(after + GRAIN >= HOLD, "with a minimum hold of {HOLD:?} the lock was granted again after {after:?}");
        let after = at - granted;
        ensure!(after < HOLD + SOON, "with a minimum hold of {HOLD:?} the lock was closed for {after:?}");
        Ok(())
    })
}

async fn early_release_keeps_it_closed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, mine) = (cx.key(), cx.key());
    let started = Instant::now();
    let guards = [a.take(&key, held_at_least(HOLD)).await?, a.take(&mine, held_at_least(HOLD)).await?];
    let granted = Instant::now();
    for guard in guards {
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    let early = b.attempt(&key, renewed(LONG)).await?;
    ensure!(
        early.is_none() || started.elapsed() + GRAIN >= HOLD,
        "the lock was granted at once after an early release"
    );
    drop(early);
    // Another client and the last holder must both wait.
    let (other, own) =
        tokio::join!(ensure_opens(&b, &key, started, granted), ensure_opens(&a, &mine, started, granted));
    other.and(own)
}

async fn early_drop_keeps_it_closed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let started = Instant::now();
    let guard = a.take(&key, held_at_least(HOLD)).await?;
    let granted = Instant::now();
    drop(guard);
    ensure_opens(&b, &key, started, granted).await
}

async fn late_release_frees_it(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, held_at_least(HOLD / 5)).await?;
    tokio::time::sleep(HOLD / 5 + GRAIN).await;
    b.ensure_busy(&key, "it is held longer than the minimum").await?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let next = b.attempt(&key, renewed(LONG)).await?;
    ensure!(next.is_some(), "a lock whose minimum hold has passed is busy after its release");
    Ok(())
}

async fn release_without_reply_keeps_it_closed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let controls = a.disturbed()?;
    let started = Instant::now();
    let guard = a.take(&key, held_at_least(HOLD)).await?;
    let granted = Instant::now();
    controls.lose_replies(Operation::Release, 2);
    let outcome = guard.release().await;
    ensure!(
        controls.end_faults() > 0,
        "no reply was lost, so the check proves nothing: see the controls of the client"
    );
    match outcome {
        Ok(outcome) => ensure!(outcome.is_released(), "a release that was carried out returned {outcome:?}"),
        Err(error) => ensure!(error.is_outcome_unknown(), "a release that was carried out failed with {error:?}"),
    }
    ensure_opens(&b, &key, started, granted).await
}

async fn force_release_opens_it(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let guard = a.take(&key, held_at_least(LONG)).await?;
    let token = guard.fencing_token();
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    b.ensure_busy(&key, "its minimum hold has not passed").await?;
    let opened = admin.force_release(&key, "it is needed now").await?;
    ensure!(opened.is_some(), "the force-release of a lock that its minimum hold keeps closed returned None");
    let next = b.attempt(&key, renewed(LONG)).await?;
    let Some(next) = next else {
        return Err(Failure::new("after a force-release the minimum hold still keeps the lock closed"));
    };
    ensure!(next.fencing_token() > token, "token {} follows token {token} (C5)", next.fencing_token());
    Ok(())
}

async fn refused_without_the_capability(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let before = client.counts();
    for wait in [Wait::Try, Wait::UpTo(SOON)] {
        let answer = client.acquire_with(cx.key(), held_at_least(HOLD).with_wait(wait)).await;
        let kind = answer.err().map(|error| error.kind());
        ensure!(kind == Some(ErrorKind::Unsupported), "a minimum hold ended with {kind:?} instead of Unsupported");
    }
    let after = client.counts();
    ensure!(before == after, "refused acquisitions were counted: {before:?} became {after:?}");
    Ok(())
}

async fn maximum_hold_ends_it(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let options = renewed(LONG);
    let lease = options.lease().max_hold(HOLD);
    let started = Instant::now();
    let guard = a.take(&key, options.with_lease(lease)).await?;
    let granted = Instant::now();
    ensure!(guard.loss().is_none() || granted - started >= HOLD, "a guard with a maximum hold was lost at once");
    let (next, at) = b.spawn_take(&key, renewed(LONG)).guard().await?;
    let after = at - started;
    ensure!(after + GRAIN >= HOLD, "with a maximum hold of {HOLD:?} another caller got the lock after {after:?}");
    let after = at - granted;
    ensure!(after < HOLD + SOON, "with a maximum hold of {HOLD:?} the lock was held for {after:?}");
    ensure!(guard.loss() == Some(Loss::HeldTooLong), "after its maximum hold the guard reports {:?}", guard.loss());
    drop(next);
    Ok(())
}

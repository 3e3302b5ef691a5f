//! C25: the minimum hold.

use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LockKey, Wait};
use tokio::time::Instant;

use crate::bounded::{GRAIN, SOON};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::leases::{LONG, renewed};

checks! {
    C25 early_release_keeps_it_closed [MinimumHold] "a lock that is released early stays closed until the minimum hold has passed, counted from the grant, and not much longer";
    C25 early_drop_keeps_it_closed [MinimumHold] "a lock whose guard is dropped early stays closed until the minimum hold has passed";
    C25 late_release_frees_it Smoke [MinimumHold] "a lock that is held longer than the minimum is free with its release";
    C25 force_release_opens_it [MinimumHold, Admin] "a release by force opens a lock that only its minimum hold keeps closed";
    C25 refused_without_the_capability [NoMinimumHold] "a backend without the capability refuses a minimum hold, and counts nothing";
}

const HOLD: Duration = Duration::from_millis(1500);

fn held_at_least(duration: Duration) -> AcquireOptions {
    let options = renewed(LONG);
    let lease = options.lease().hold_at_least(duration);
    options.with_lease(lease)
}

/// Waits for the key in two ways, and compares with the minimum hold.
#[track_caller]
fn ensure_opens(waiter: &Client, key: &LockKey, asked: Instant, granted: Instant) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let (_guard, at) = waiter.spawn_take(key, renewed(LONG)).guard().await?;
        let after = at - asked;
        ensure!(after + GRAIN >= HOLD, "with a minimum hold of {HOLD:?} the lock was granted again after {after:?}");
        let after = at - granted;
        ensure!(after < HOLD + SOON, "with a minimum hold of {HOLD:?} the lock was closed for {after:?}");
        Ok(())
    })
}

async fn early_release_keeps_it_closed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, mine) = (cx.key(), cx.key());
    let asked = Instant::now();
    let guards = [a.take(&key, held_at_least(HOLD)).await?, a.take(&mine, held_at_least(HOLD)).await?];
    let granted = Instant::now();
    for guard in guards {
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    }
    let early = b.attempt(&key, renewed(LONG)).await?;
    ensure!(early.is_none() || asked.elapsed() + GRAIN >= HOLD, "the lock was granted at once after an early release");
    drop(early);
    // To another client and to its last holder alike.
    let (other, own) = tokio::join!(ensure_opens(&b, &key, asked, granted), ensure_opens(&a, &mine, asked, granted));
    other.and(own)
}

async fn early_drop_keeps_it_closed(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let asked = Instant::now();
    let guard = a.take(&key, held_at_least(HOLD)).await?;
    let granted = Instant::now();
    drop(guard);
    ensure_opens(&b, &key, asked, granted).await
}

async fn late_release_frees_it(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = a.take(&key, held_at_least(HOLD / 5)).await?;
    tokio::time::sleep(HOLD / 5 + GRAIN).await;
    b.ensure_busy(&key, "it is held longer than the minimum").await?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    let next = b.attempt(&key, renewed(LONG)).await?;
    ensure!(next.is_some(), "a lock is busy after its release, its minimum hold having passed");
    Ok(())
}

async fn force_release_opens_it(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let guard = a.take(&key, held_at_least(LONG)).await?;
    let token = guard.fencing_token();
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    b.ensure_busy(&key, "its minimum hold has not passed").await?;
    let opened = admin.force_release(&key, "it is needed now").await?;
    ensure!(opened.is_some(), "a release by force of a lock that its minimum hold keeps closed found nothing");
    let next = b.attempt(&key, renewed(LONG)).await?;
    let Some(next) = next else {
        return Err(Failure::new("after a release by force its minimum hold still keeps the lock closed"));
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
        ensure!(kind == Some(ErrorKind::Unsupported), "a minimum hold was answered with {kind:?}");
    }
    let after = client.counts();
    ensure!(before == after, "refused acquisitions were counted: {before:?} became {after:?}");
    Ok(())
}

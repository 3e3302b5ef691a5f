//! C22: taking a lock away.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounded::{SOON, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed, renewed_every};

checks! {
    C22 frees_the_lock [Admin] "after a force-release the lock can be had at once, with a greater token, and the victim's guard is lost";
    C22 names_the_victim Smoke [Admin] "a force-release says who held the lock, and says nobody if nobody did";
    C22 wakes_waiters [Admin] "a force-release lets a waiter in soon";
    C22 inspect_tells_the_state Smoke [Admin] "inspect shows a held lock with its token and the time it has left, and nothing for a free one";
}

async fn frees_the_lock(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let victim = a.take(&key, renewed_every(LONG, Duration::from_millis(250))).await?;
    cx.admin(&b)?.force_release(&key, "conformance").await?;
    let next = b.attempt(&key, renewed(LONG)).await?;
    let next = next.ok_or_else(|| Failure::new("a force-released lock is busy"))?;
    let (old, new) = (victim.fencing_token(), next.fencing_token());
    ensure!(new > old, "token {new} follows token {old} of the same key");
    within(SOON, "the victim's lost()", victim.lost()).await?;
    ensure!(!next.is_lost(), "the next holder was lost, too: {:?}", next.loss());
    Ok(())
}

async fn names_the_victim(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let nobody = admin.force_release(&key, "conformance").await?;
    ensure!(nobody.is_none(), "a lock that was never held was taken from {nobody:?}");
    let guard = a.take(&key, renewed(LONG).with_owner("the victim").with_metadata("job", "sleep")).await?;
    let id = admin.inspect(&key).await?.and_then(|info| info.id);
    let victim = admin.force_release(&key, "conformance").await?;
    let victim = victim.ok_or_else(|| Failure::new("nobody held a held lock"))?;
    ensure!(victim.key == key && victim.id == id && id.is_some(), "the victim {id:?} of {key:?} is {victim:?}");
    ensure!(victim.owner.as_deref() == Some("the victim"), "the victim's owner is {:?}", victim.owner);
    let again = admin.force_release(&key, "conformance").await?;
    ensure!(again.is_none(), "a lock that is free was taken from {again:?}");
    drop(guard);
    let outcome = a.take(&key, renewed(LONG)).await?.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    let nobody = admin.force_release(&key, "conformance").await?;
    ensure!(nobody.is_none(), "a released lock was taken from {nobody:?}");
    Ok(())
}

async fn wakes_waiters(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let victim = a.take(&key, renewed(LONG)).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    b.until_waiting(1).await?;
    let start = Instant::now();
    cx.admin(&c)?.force_release(&key, "conformance").await?;
    let (guard, at) = waiter.guard().await?;
    let after = at - start;
    ensure!(after < SOON, "a waiter was let in {after:?} after a force-release");
    ensure!(guard.fencing_token() > victim.fencing_token(), "the waiter's token is not greater than the victim's");
    Ok(())
}

async fn inspect_tells_the_state(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let free = admin.inspect(&key).await?;
    ensure!(free.is_none(), "a lock that was never held is shown as {free:?}");
    let guard = a.take(&key, renewed(LONG).with_owner("me")).await?;
    let info = admin.inspect(&key).await?.ok_or_else(|| Failure::new("a held lock is not shown"))?;
    ensure!(info.key == key && info.id.is_some(), "a held lock is shown as {info:?}");
    ensure!(
        info.token >= guard.fencing_token(),
        "the store's last token is {}, a guard's {}",
        info.token,
        guard.fencing_token()
    );
    ensure!(info.owner.as_deref() == Some("me"), "the owner is shown as {:?}", info.owner);
    if cx.profile().capabilities().expiry {
        ensure!(info.remaining <= LONG && info.remaining > LONG / 2, "{:?} of {LONG:?} remain", info.remaining);
    }
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    let free = admin.inspect(&key).await?;
    ensure!(free.is_none(), "a released lock is shown as {free:?}");
    Ok(())
}

//! C22: force-release.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounded::{SOON, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed, renewed_every};

checks! {
    C22 frees_the_lock [Admin]
        "After a force-release the lock can be acquired at once, with a greater token, and the \
         victim's guard is lost. A failure means that the lock stays held, or that the victim \
         works on.";
    C22 names_the_victim Smoke [Admin]
        "A force-release returns the holder that it took the lock from, and `None` if the lock was \
         free. A failure means that an operator cannot see what the call has done.";
    C22 wakes_waiters [Admin]
        "A waiter gets the lock soon after a force-release. A failure means that waiters are not \
         woken by it.";
    C22 inspect_shows_the_state Smoke [Admin]
        "`inspect` shows a held lock with its token and its remaining time, and nothing for a free \
         lock. A failure means that an operator sees a wrong state.";
}

async fn frees_the_lock(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let victim = a.take(&key, renewed_every(LONG, Duration::from_millis(250))).await?;
    cx.admin(&b)?.force_release(&key, "conformance").await?;
    let next = b.attempt(&key, renewed(LONG)).await?;
    let next = next.ok_or_else(|| Failure::new("a force-released lock is busy"))?;
    let (old, new) = (victim.fencing_token(), next.fencing_token());
    ensure!(new > old, "token {new} follows token {old} of the same key, and must be greater");
    within(SOON, "the victim's lost()", victim.lost()).await?;
    ensure!(!next.is_lost(), "the force-release also ended the next holder's lease: {:?}", next.loss());
    Ok(())
}

async fn names_the_victim(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let none = admin.force_release(&key, "conformance").await?;
    ensure!(none.is_none(), "the force-release of a lock that was never held returned {none:?}");
    let guard = a.take(&key, renewed(LONG).with_owner("the victim").with_metadata("job", "sleep")).await?;
    let id = admin.inspect(&key).await?.and_then(|info| info.id);
    let victim = admin.force_release(&key, "conformance").await?;
    let victim = victim.ok_or_else(|| Failure::new("the force-release of a held lock returned None"))?;
    ensure!(
        victim.key == key && victim.id == id && id.is_some(),
        "the force-release of {key:?}, held by {id:?}, returned {victim:?}"
    );
    ensure!(
        victim.owner.as_deref() == Some("the victim"),
        "the force-release returned the owner {:?} instead of \"the victim\"",
        victim.owner
    );
    let again = admin.force_release(&key, "conformance").await?;
    ensure!(again.is_none(), "the force-release of a free lock returned {again:?}");
    drop(guard);
    let outcome = a.take(&key, renewed(LONG)).await?.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let none = admin.force_release(&key, "conformance").await?;
    ensure!(none.is_none(), "the force-release of a released lock returned {none:?}");
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
    ensure!(after < SOON, "a waiter was granted the lock only {after:?} after a force-release");
    ensure!(guard.fencing_token() > victim.fencing_token(), "the waiter's token is not greater than the victim's");
    Ok(())
}

async fn inspect_shows_the_state(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let free = admin.inspect(&key).await?;
    ensure!(free.is_none(), "a lock that was never held is shown as {free:?}");
    let guard = a.take(&key, renewed(LONG).with_owner("me")).await?;
    let info = admin.inspect(&key).await?.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))?;
    ensure!(info.key == key && info.id.is_some(), "a held lock is shown as {info:?}");
    ensure!(
        info.token >= guard.fencing_token(),
        "inspect shows the token {}, which is below the guard's token {}",
        info.token,
        guard.fencing_token()
    );
    ensure!(info.owner.as_deref() == Some("me"), "inspect shows the owner {:?} instead of \"me\"", info.owner);
    if cx.profile().capabilities().expiry {
        ensure!(
            info.remaining <= LONG && info.remaining > LONG / 2,
            "inspect shows {:?} remaining of {LONG:?}",
            info.remaining
        );
    }
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let free = admin.inspect(&key).await?;
    ensure!(free.is_none(), "a released lock is shown as {free:?}");
    Ok(())
}

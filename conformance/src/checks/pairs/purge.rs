//! The purge of records beside the minimum hold, the queue, and expiry.

use distlock_api::LockGuard;

use crate::bounded::{SOON, eventually, within};
use crate::check::checks;
use crate::checks::fairness::until_queued;
use crate::checks::modes::give_back;
use crate::context::Context;
use crate::failure::{Verdict, ensure};
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C25 purge_opens_nothing [MinimumHold, Purge]
        "A purge leaves the record of a key that its minimum hold keeps closed. A failure means \
         that a purge opens the key.";
    C15 purge_leaves_what_is_used [Fair, Admin, Purge]
        "A purge leaves the record of a key that is held and waited for: the holder keeps its \
         lease, and the waiter its place. A failure means that a purge takes locks away.";
    C5 across_purge_of_the_expired [Purge, Expiry, Faults, SeparateClients]
        "A grant after the store has forgotten a key whose last holder died has a greater token. A \
         failure means that only the tokens of released locks outlive their records.";
}

async fn purge_opens_nothing(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let options = renewed(LONG);
    let lease = options.lease().hold_at_least(LONG);
    give_back(a.take(&key, options.with_lease(lease)).await?).await?;
    // It may report that the record is in use.
    let purged = b.disturbed()?.purge(&key).await;
    b.ensure_busy(&key, &format!("its minimum hold has not passed, and the answer of a purge was {purged:?}")).await
}

async fn purge_leaves_what_is_used(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let guard: LockGuard = a.take(&key, renewed(LONG)).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    until_queued(&cx, &b, &key, 1).await?;
    let purged = c.disturbed()?.purge(&key).await;
    c.ensure_busy(&key, &format!("it is held, and the answer of a purge was {purged:?}")).await?;
    until_queued(&cx, &b, &key, 1).await?;
    let token = guard.fencing_token();
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "after a purge the release of a held lock returned {outcome:?}");
    let (next, _) = within(SOON, "the waiter of a key that was purged to get it", waiter.guard()).await??;
    ensure!(next.fencing_token() > token, "token {} follows token {token} (C5)", next.fencing_token());
    Ok(())
}

async fn across_purge_of_the_expired(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() / 2);
    let dead = a.take(&key, unrenewed(ttl)).await?;
    // Otherwise it would give its lease back.
    a.disturbed()?.cut_off().await?;
    let controls = b.disturbed()?;
    let purged = async || Ok(controls.purge(&key).await.is_ok());
    eventually(ttl + SOON, "the record of a dead holder to be purged", purged).await?;
    let next = b.take(&key, renewed(LONG)).await?;
    let (before, token) = (dead.fencing_token(), next.fencing_token());
    ensure!(token > before, "token {token} follows token {before} of a holder that died before a purge");
    a.disturbed()?.end_faults();
    Ok(())
}

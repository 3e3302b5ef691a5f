//! C19: the lock of a holder that died or was cut off.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, SOON, throughout};
use crate::check::checks;
use crate::child::Clock;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, ensure_in_time};
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C19 killed_holder [Expiry, Processes]
        "The lock of a killed process is free at its lease's expiry: not earlier, and soon after. \
         A failure means that a live lease was taken over, or that a dead one blocks the key.";
    C19 killed_before_any_renewal [Expiry, Processes]
        "The lock of a process that was killed right after the grant stays held for the whole ttl, \
         and is free soon after. A failure means that a live lease was taken over, or that a dead \
         one blocks the key.";
    C19 killed_waiter [Expiry, Processes]
        "A killed waiter does not keep the lock from live clients for long. A failure means that \
         its ticket or its lease outlives it by more than a ttl.";
    C19 cut_off_holder [Expiry, Faults, SeparateClients]
        "The lock of a client that is cut off is free at its lease's expiry: not before its guard \
         is lost, and soon after. A failure means that a live lease was taken over, or that a dead \
         one blocks the key.";
    C19 free_soon_after_expiry [Expiry]
        "A lease that is not renewed can be acquired soon after its ttl, by waiters and by new \
         attempts. A failure means that an expired lease blocks the key.";
    C19 held_for_ever_without_expiry [NoExpiry]
        "A backend without expiry keeps a lock held beyond its ttl, and its guards report that \
         they do not expire. A failure means that the declared capability is wrong.";
}

async fn killed_holder(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let mut child = cx.child(Clock::True).await?;
    let (key, ttl) = (cx.key(), cx.short());
    let Some(_) = child.acquire(&key, ttl, true, LIVENESS).await? else {
        return Err(Failure::new("a child process was not granted a free lock"));
    };
    // It waits while the process lives and for one more lease, however long these are here.
    let waiter = client.spawn_take_within(ttl * 3 + LIVENESS, &key, renewed(LONG));
    // The process is alive, so the lock stays held beyond its ttl.
    let granted = Instant::now();
    throughout(granted + ttl + ttl / 2, async || {
        let after = granted.elapsed();
        ensure_in_time!(!waiter.is_finished(), "the lock of a living process was granted after {after:?}");
        Ok(())
    })
    .await?;

    // What is left of the lease before the kill. A renewal in between only prolongs it.
    let looked = Instant::now();
    let remaining = match client.admin() {
        Some(admin) => admin.inspect(&key).await?.map(|info| info.remaining).unwrap_or_default(),
        None => Duration::ZERO,
    };
    child.kill().await?;
    let killed = Instant::now();
    let (_guard, at) = waiter.guard().await?;
    let after = at - looked;
    ensure!(after + GRAIN >= remaining, "a lease with {remaining:?} left was taken over after only {after:?}");
    let after = at.saturating_duration_since(killed);
    ensure!(after < ttl + SOON, "the lock of a killed process was free only {after:?} later, with a ttl of {ttl:?}");
    Ok(())
}

async fn killed_before_any_renewal(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let mut child = cx.child(Clock::True).await?;
    let (key, ttl) = (cx.key(), cx.short());
    let started = Instant::now();
    let Some(_) = child.acquire(&key, ttl, false, LIVENESS).await? else {
        return Err(Failure::new("a child process was not granted a free lock"));
    };
    child.kill().await?;
    let killed = Instant::now();
    let (_guard, at) = client.spawn_take(&key, renewed(LONG)).guard().await?;
    let after = at - started;
    ensure!(after + GRAIN >= ttl, "a lease of {ttl:?} was taken over after only {after:?}");
    let after = at.saturating_duration_since(killed);
    ensure!(after < ttl + SOON, "the lock of a killed process was free only {after:?} later, with a ttl of {ttl:?}");
    Ok(())
}

async fn killed_waiter(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let held = client.take(&key, renewed(LONG)).await?;
    let mut child = cx.child(Clock::True).await?;
    let waiting = child.acquire(&key, ttl, true, LIVENESS);
    if let Ok(answer) = tokio::time::timeout(Duration::from_millis(700), waiting).await {
        return Err(Failure::new(format!("a child process that waits for a held lock got {answer:?}")));
    }
    child.kill().await?;
    let outcome = held.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    client.take_within(ttl + SOON, &key, renewed(LONG)).await.map(drop)
}

async fn cut_off_holder(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, renewed(ttl)).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    let faults = a.disturbed()?;
    let (cut, remaining) = (Instant::now(), guard.remaining().unwrap_or_default());
    faults.cut_off().await?;
    // A renewal that was under way may have been carried out until now.
    let is_cut = Instant::now();
    let (_next, at) = waiter.guard().await?;
    let after = at.saturating_duration_since(cut);
    ensure!(
        guard.is_lost(),
        "the lock was granted {after:?} after its holder was cut off, and the holder's guard is not lost"
    );
    ensure!(after + GRAIN >= remaining, "a lease with {remaining:?} left was taken over after only {after:?}");
    let after = at.saturating_duration_since(is_cut);
    ensure!(
        after < ttl + SOON,
        "the lock of a holder that was cut off was free only {after:?} later, with a ttl of {ttl:?}"
    );
    faults.end_faults();
    Ok(())
}

async fn free_soon_after_expiry(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (waited, tried, ttl) = (cx.key(), cx.key(), cx.short());
    let _guards = [a.take(&waited, unrenewed(ttl)).await?, a.take(&tried, unrenewed(ttl)).await?];
    let granted = Instant::now();
    let waiter = b.spawn_take(&waited, renewed(LONG));
    tokio::time::sleep_until(granted + ttl + GRAIN).await;
    let attempt = b.attempt(&tried, renewed(LONG)).await?;
    ensure!(attempt.is_some(), "a lock is busy {:?} after a grant for {ttl:?}", granted.elapsed());
    let (_guard, at) = waiter.guard().await?;
    let after = at - granted;
    ensure!(after < ttl + SOON, "a waiter was granted an expired lease of {ttl:?} after {after:?}");
    Ok(())
}

async fn held_for_ever_without_expiry(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() / 3);
    let guard = a.take(&key, unrenewed(ttl)).await?;
    ensure!(guard.remaining().is_none(), "a guard that does not expire has {:?} remaining", guard.remaining());
    throughout(Instant::now() + ttl * 3, async || {
        ensure!(!guard.is_lost(), "a guard that does not expire was lost: {:?}", guard.loss());
        b.ensure_busy(&key, "it does not expire").await
    })
    .await?;
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    Ok(())
}

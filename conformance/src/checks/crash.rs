//! C19: what a holder leaves behind that is no more.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, SOON, throughout};
use crate::check::checks;
use crate::child::Clock;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C19 killed_holder [Expiry, Processes] "the lock of a killed process is free at its lease's expiry: not earlier, and soon after";
    C19 killed_before_any_renewal [Expiry, Processes] "the lock of a process that was killed right after the grant is closed for the whole ttl, and free soon after";
    C19 killed_waiter [Expiry, Processes] "a killed waiter does not keep the lock from the living for long";
    C19 cut_off_holder [Expiry, CutOff, SeparateClients] "the lock of a client that is cut off from the store is free at its lease's expiry: not before its guard is lost, and soon after";
    C19 free_soon_after_expiry [Expiry] "a lease that is not renewed can be had soon after its ttl, by waiters and by new attempts";
    C19 held_for_ever_without_expiry [NoExpiry] "a backend without expiry keeps a lock closed beyond its ttl, and its guards say that they do not expire";
}

async fn killed_holder(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let mut child = cx.child(Clock::True).await?;
    let (key, ttl) = (cx.key(), cx.short());
    let Some(_) = child.acquire(&key, ttl, true, LIVENESS).await? else {
        return Err(Failure::new("a child process was not granted a free lock"));
    };
    let waiter = client.spawn_take(&key, renewed(LONG));
    // Beyond its ttl it is held because the process is alive.
    let granted = Instant::now();
    throughout(granted + ttl + ttl / 2, async || {
        ensure!(!waiter.is_finished(), "the lock of a living process was granted after {:?}", granted.elapsed());
        Ok(())
    })
    .await?;

    // The last that is known of the lease. A renewal between this and the end only makes it longer.
    let looked = Instant::now();
    let remaining = match client.admin() {
        Some(admin) => admin.inspect(&key).await?.map(|info| info.remaining).unwrap_or_default(),
        None => Duration::ZERO,
    };
    child.kill().await?;
    let killed = Instant::now();
    let (_guard, at) = waiter.guard().await?;
    let after = at - looked;
    ensure!(after + GRAIN >= remaining, "a lease with {remaining:?} left was taken over after {after:?}");
    let after = at.saturating_duration_since(killed);
    ensure!(after < ttl + SOON, "the lock of a killed process was free {after:?} later, its ttl being {ttl:?}");
    Ok(())
}

async fn killed_before_any_renewal(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let mut child = cx.child(Clock::True).await?;
    let (key, ttl) = (cx.key(), cx.short());
    let asked = Instant::now();
    let Some(_) = child.acquire(&key, ttl, false, LIVENESS).await? else {
        return Err(Failure::new("a child process was not granted a free lock"));
    };
    child.kill().await?;
    let killed = Instant::now();
    let (_guard, at) = client.spawn_take(&key, renewed(LONG)).guard().await?;
    let after = at - asked;
    ensure!(after + GRAIN >= ttl, "a lease of {ttl:?} was taken over after {after:?}");
    let after = at.saturating_duration_since(killed);
    ensure!(after < ttl + SOON, "the lock of a killed process was free {after:?} later, its ttl being {ttl:?}");
    Ok(())
}

async fn killed_waiter(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let held = client.take(&key, renewed(LONG)).await?;
    let mut child = cx.child(Clock::True).await?;
    let waiting = child.acquire(&key, ttl, true, LIVENESS);
    if let Ok(answer) = tokio::time::timeout(Duration::from_millis(700), waiting).await {
        return Err(Failure::new(format!("a child process that waits for a held lock was answered: {answer:?}")));
    }
    child.kill().await?;
    let outcome = held.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    client.take_within(ttl + SOON, &key, renewed(LONG)).await.map(drop)
}

async fn cut_off_holder(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let guard = a.take(&key, renewed(ttl)).await?;
    let waiter = b.spawn_take(&key, renewed(LONG));
    let controls = a.disturbed()?;
    let (cut, remaining) = (Instant::now(), guard.remaining().unwrap_or_default());
    controls.cut_off().await?;
    let (_next, at) = waiter.guard().await?;
    let after = at.saturating_duration_since(cut);
    ensure!(guard.is_lost(), "the lock was granted {after:?} after its holder was cut off, whose guard is not lost");
    ensure!(after + GRAIN >= remaining, "a lease with {remaining:?} left was taken over after {after:?}");
    ensure!(
        after < ttl + SOON,
        "the lock of a holder that was cut off was free {after:?} later, its ttl being {ttl:?}"
    );
    controls.end_faults().await?;
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
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    Ok(())
}

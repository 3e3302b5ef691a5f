//! C2: only the store's clock decides expiry.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, POLLED};
use crate::check::checks;
use crate::child::{ChildGrant, Clock};
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, ensure_in_time, located_at_caller};
use crate::leases::{LONG, renewed};

checks! {
    C2 client_one_hour_ahead [Expiry, Processes]
        "A client whose clock is one hour fast takes no lease early and keeps its own, and other \
         clients respect its lease. A failure means that a client's clock decides expiry.";
    C2 client_one_hour_behind [Expiry, Processes]
        "A client whose clock is one hour slow takes no lease early and keeps its own, and other \
         clients respect its lease. A failure means that a client's clock decides expiry.";
}

async fn client_one_hour_ahead(cx: Context) -> Verdict {
    wrong_by_an_hour(cx.clone(), Clock::Fast).await?;
    renews(cx, Clock::Fast).await
}

async fn client_one_hour_behind(cx: Context) -> Verdict {
    wrong_by_an_hour(cx.clone(), Clock::Slow).await?;
    renews(cx, Clock::Slow).await
}

/// Kills the holders, so that nothing but the expiry frees their locks.
#[track_caller]
fn wrong_by_an_hour(cx: Context, clock: Clock) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let [client] = cx.clients().await?;
        let (mut child, mut victim) = (cx.child(clock).await?, cx.child(Clock::True).await?);
        let (key, ttl) = (cx.key(), cx.short());
        // The child connects to its server before the lease begins that it is to observe.
        granted(child.acquire(&cx.key(), LONG, false, LIVENESS).await?)?;

        // Another process's lease, as the child sees it.
        let started = Instant::now();
        granted(victim.acquire(&key, ttl, false, LIVENESS).await?)?;
        let early = child.acquire(&key, LONG, true, Duration::ZERO).await?;
        let after = started.elapsed();
        ensure!(early.is_none() || after + GRAIN >= ttl, "the child was granted a held lock at once");
        ensure_in_time!(early.is_none(), "a lease of {ttl:?} had ended when its grant was answered, after {after:?}");
        victim.kill().await?;
        let grant = granted(child.acquire(&key, ttl, false, ttl + POLLED).await?)?;
        let after = started.elapsed();
        ensure!(after + GRAIN >= ttl, "the child took over a lease of {ttl:?} after only {after:?}");

        // The child's lease, as the child and this process see it.
        ensure!(grant.remaining <= ttl, "the child's guard has {:?} remaining of a ttl of {ttl:?}", grant.remaining);
        ensure_in_time!(
            grant.remaining > ttl / 10,
            "the child's guard has only {:?} remaining of a ttl of {ttl:?}",
            grant.remaining
        );
        let state = child.guard_state().await?;
        ensure_in_time!(!state.lost, "the child lost its lease at once: {state:?}");
        child.kill().await?;
        let _taken = client.take(&key, renewed(LONG)).await?;
        let after = started.elapsed();
        ensure!(after + GRAIN * 2 >= ttl * 2, "two leases of {ttl:?}, one after the other, ended after only {after:?}");
        Ok(())
    })
}

#[track_caller]
fn renews(cx: Context, clock: Clock) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let [client] = cx.clients().await?;
        let mut child = cx.child(clock).await?;
        let (key, ttl) = (cx.key(), cx.short());
        granted(child.acquire(&key, ttl, true, LIVENESS).await?)?;
        let until = Instant::now() + ttl * 2;
        while Instant::now() < until {
            client.ensure_busy(&key, "the child renews it").await?;
            tokio::time::sleep(ttl / 10).await;
        }
        let state = child.guard_state().await?;
        ensure!(
            !state.lost && state.remaining <= ttl,
            "after two ttls the child's guard is lost or valid for too long: {state:?}"
        );
        ensure!(child.release().await?, "the child lost a renewed lease");
        Ok(())
    })
}

#[track_caller]
fn granted(grant: Option<ChildGrant>) -> Result<ChildGrant, Failure> {
    grant.ok_or_else(|| Failure::new("a child process was not granted the lock within its wait"))
}

//! C2: only the store's clock decides.

use std::time::Duration;

use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS};
use crate::check::checks;
use crate::child::{ChildGrant, Clock};
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::leases::{LONG, renewed};

checks! {
    C2 client_one_hour_ahead [Expiry, Processes] "a client whose clock is an hour fast takes nothing early, keeps what it holds, and is respected";
    C2 client_one_hour_behind [Expiry, Processes] "a client whose clock is an hour slow takes nothing early, keeps what it holds, and is respected";
}

async fn client_one_hour_ahead(cx: Context) -> Verdict {
    wrong_by_an_hour(cx.clone(), Clock::Fast).await?;
    renews(cx, Clock::Fast).await
}

async fn client_one_hour_behind(cx: Context) -> Verdict {
    wrong_by_an_hour(cx.clone(), Clock::Slow).await?;
    renews(cx, Clock::Slow).await
}

/// Holders are killed, so that nothing but the expiry frees their locks.
#[track_caller]
fn wrong_by_an_hour(cx: Context, clock: Clock) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let [client] = cx.clients().await?;
        let (mut child, mut victim) = (cx.child(clock).await?, cx.child(Clock::True).await?);
        let (key, ttl) = (cx.key(), cx.short());
        // So that the child has met its server before the lease begins that it is to see.
        granted(child.acquire(&cx.key(), LONG, false, LIVENESS).await?)?;

        // A lease of another, seen by the child.
        let asked = Instant::now();
        granted(victim.acquire(&key, ttl, false, LIVENESS).await?)?;
        let early = child.acquire(&key, LONG, true, Duration::ZERO).await?;
        ensure!(early.is_none(), "the child was granted a held lock at once");
        victim.kill().await?;
        let grant = granted(child.acquire(&key, ttl, false, LIVENESS).await?)?;
        let after = asked.elapsed();
        ensure!(after + GRAIN >= ttl, "the child took a lease of {ttl:?} over after {after:?}");

        // The child's lease, seen by the child and by us.
        ensure!(grant.remaining <= ttl, "the child believes in {:?} of a ttl of {ttl:?}", grant.remaining);
        ensure!(grant.remaining > ttl / 10, "the child believes in no more than {:?} of {ttl:?}", grant.remaining);
        let standing = child.look().await?;
        ensure!(!standing.lost, "the child lost its lease at once: {standing:?}");
        child.kill().await?;
        let _taken = client.take(&key, renewed(LONG)).await?;
        let after = asked.elapsed();
        ensure!(after + GRAIN * 2 >= ttl * 2, "two leases of {ttl:?}, one after the other, ended after {after:?}");
        Ok(())
    })
}

#[track_caller]
fn renews(cx: Context, clock: Clock) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let [client] = cx.clients().await?;
        let mut child = cx.child(clock).await?;
        let (key, ttl) = (cx.key(), cx.short());
        granted(child.acquire(&key, ttl, true, LIVENESS).await?)?;
        let until = Instant::now() + ttl * 2;
        while Instant::now() < until {
            client.ensure_busy(&key, "the child renews it").await?;
            tokio::time::sleep(ttl / 10).await;
        }
        let standing = child.look().await?;
        ensure!(!standing.lost && standing.remaining <= ttl, "the child's guard after two ttls: {standing:?}");
        ensure!(child.release().await?, "the child lost a renewed lease");
        Ok(())
    })
}

#[track_caller]
fn granted(grant: Option<ChildGrant>) -> Result<ChildGrant, Failure> {
    grant.ok_or_else(|| Failure::new(format!("a child process was not granted the lock within {LIVENESS:?}")))
}

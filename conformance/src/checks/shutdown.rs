//! C24: the end of a provider.

use distlock_api::{ErrorKind, LockKey, Loss, Wait};
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed};

checks! {
    C24 releases_every_lease Smoke [SeparateClients] "after close() every lock that the client held can be had by others";
    C24 guards_are_lost [] "guards of a closed client are lost, and say that it was closed";
    C24 refuses_and_wakes Smoke [] "close() wakes waiters with `Closed` and refuses later calls, and a second close is harmless";
    C24 leaves_others_alone [SeparateClients] "close() of one client changes nothing for another";
}

async fn releases_every_lease(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let keys: [LockKey; 8] = std::array::from_fn(|_| cx.key());
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(a.take(key, renewed(LONG)).await?);
    }
    let waiter = b.spawn_take(&keys[0], renewed(LONG));
    b.until_waiting(1).await?;
    let start = Instant::now();
    within(LIVENESS, "close() to return", a.close()).await??;
    for key in &keys[1..] {
        drop(b.take_within(SOON, key, renewed(LONG)).await?);
    }
    let (_guard, at) = waiter.guard().await?;
    let after = at - start;
    ensure!(after < SOON, "a waiter was let in {after:?} after the close of the holder");
    let end = a.accounting();
    ensure!(end.held == 0 && end.waiting == 0 && end.balances(), "after close(): {end:?}");
    Ok(())
}

async fn guards_are_lost(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guards = [client.take(&cx.key(), renewed(LONG)).await?, client.take(&cx.key(), renewed(LONG)).await?];
    let lost = guards.each_ref().map(|guard| guard.lost());
    within(LIVENESS, "close() to return", client.close()).await??;
    for (guard, lost) in guards.into_iter().zip(lost) {
        let loss = within(SOON, "lost() after close()", lost).await?;
        ensure!(loss == Loss::Closed && guard.loss() == Some(Loss::Closed), "close() lost a lease by {loss:?}");
        let outcome = within(SOON, "a release after close()", guard.release()).await??;
        ensure!(!outcome.is_released(), "the release of a guard that close() had ended said {outcome:?}");
    }
    let end = client.accounting();
    ensure!(end.held == 0 && end.balances(), "after close(): {end:?}");
    ensure!((end.released, end.lost) == (2, 0), "what close() gave back counts as released, not {end:?}");
    Ok(())
}

async fn refuses_and_wakes(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let key = cx.key();
    let _held = client.take(&key, renewed(LONG)).await?;
    let waiter = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move { client.acquire_with(key.clone(), renewed(LONG).with_wait(Wait::Forever)).await }
    });
    client.until_waiting(1).await?;
    within(LIVENESS, "close() to return", client.close()).await??;
    let waited = within(SOON, "close() to wake a waiter", waiter).await?;
    let waited = waited.map_err(|error| Failure::of_task("a waiter", &error))?;
    let kind = waited.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Closed), "close() ended a wait with {kind:?}");
    for wait in [Wait::Try, Wait::UpTo(SOON), Wait::Forever] {
        let free = cx.key();
        let later = client.acquire_with(free.clone(), renewed(LONG).with_wait(wait));
        let kind = within(SOON, "an acquisition after close()", later).await?.err().map(|error| error.kind());
        ensure!(kind == Some(ErrorKind::Closed), "an acquisition after close() ended with {kind:?}");
    }
    within(SOON, "a second close()", client.close()).await??;
    let end = client.accounting();
    ensure!(end.waiting == 0, "after close() {} callers wait", end.waiting);
    Ok(())
}

async fn leaves_others_alone(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = b.take(&key, renewed(LONG)).await?;
    within(LIVENESS, "close() to return", a.close()).await??;
    ensure!(!guard.is_lost(), "the close of one client lost the lease of another: {:?}", guard.loss());
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    b.take_within(SOON, &cx.key(), renewed(LONG)).await.map(drop)
}

//! C24: closing a provider.

use distlock_api::{ErrorKind, LockKey, Loss, Wait};
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed};

checks! {
    C24 releases_every_lease Smoke [SeparateClients]
        "After `close()` every lock that the client held can be acquired by others. A failure \
         means that a lock of a closed client stays held.";
    C24 guards_are_lost []
        "Guards of a closed client are lost, and report `Closed` as the reason. A failure means \
         that a holder works on after its lock was given back.";
    C24 refuses_and_wakes Smoke []
        "`close()` wakes waiters with `Closed` and refuses later calls, and a second close is \
         harmless. A failure means that a caller waits for a client that is closed.";
    C24 leaves_others_alone [SeparateClients]
        "`close()` of one client changes nothing for another. A failure means that clients share \
         state that the close ends.";
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
    ensure!(after < SOON, "a waiter was granted the lock only {after:?} after its holder's close()");
    let end = a.accounting();
    ensure!(end.held == 0 && end.waiting == 0 && end.balances(), "after close() the accounting is {end:?}");
    Ok(())
}

async fn guards_are_lost(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let guards = [client.take(&cx.key(), renewed(LONG)).await?, client.take(&cx.key(), renewed(LONG)).await?];
    let lost = guards.each_ref().map(|guard| guard.lost());
    within(LIVENESS, "close() to return", client.close()).await??;
    for (guard, lost) in guards.into_iter().zip(lost) {
        let loss = within(SOON, "lost() after close()", lost).await?;
        ensure!(
            loss == Loss::Closed && guard.loss() == Some(Loss::Closed),
            "close() ended a lease with {loss:?} instead of Closed"
        );
        let outcome = within(SOON, "a release after close()", guard.release()).await??;
        ensure!(!outcome.is_released(), "the release of a guard that close() had ended returned {outcome:?}");
    }
    let end = client.accounting();
    ensure!(end.held == 0 && end.balances(), "after close() the accounting is {end:?}");
    ensure!((end.released, end.lost) == (2, 0), "close() released two leases, which are counted as {end:?}");
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
    ensure!(kind == Some(ErrorKind::Closed), "close() ended a wait with {kind:?} instead of Closed");
    for wait in [Wait::Try, Wait::UpTo(SOON), Wait::Forever] {
        let free = cx.key();
        let later = client.acquire_with(free.clone(), renewed(LONG).with_wait(wait));
        let kind = within(SOON, "an acquisition after close()", later).await?.err().map(|error| error.kind());
        ensure!(kind == Some(ErrorKind::Closed), "an acquisition after close() ended with {kind:?} instead of Closed");
    }
    within(SOON, "a second close()", client.close()).await??;
    let end = client.accounting();
    ensure!(end.waiting == 0, "after close() {} callers still wait", end.waiting);
    Ok(())
}

async fn leaves_others_alone(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let guard = b.take(&key, renewed(LONG)).await?;
    within(LIVENESS, "close() to return", a.close()).await??;
    ensure!(!guard.is_lost(), "close() of one client ended the lease of another: {:?}", guard.loss());
    let outcome = guard.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    b.take_within(SOON, &cx.key(), renewed(LONG)).await.map(drop)
}

//! C7: every acquisition has an owner id of its own.

use std::sync::Arc;

use distlock_api::{DistributedLock, DistributedLockExt, LockProviderExt};

use crate::bounded::{SOON, eventually};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed};

checks! {
    C7 not_re_entrant Smoke []
        "A held lock is busy for the task, the provider and the lock object that hold it. A \
         failure means that two critical sections can share one hold.";
    C7 second_waiter_waits_for_the_release []
        "An acquisition by the client that holds the lock waits until the lock is released. A \
         failure means that two critical sections of one client can overlap.";
    C7 an_id_per_acquisition [Admin]
        "No two acquisitions of a client have the same id. A failure means that one acquisition \
         can release or renew the lease of another.";
}

async fn not_re_entrant(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let key = cx.key();
    let lock: Arc<dyn DistributedLock> = Arc::new(client.provider().lock(&key)?);
    let held = lock.acquire().ttl(LONG).await?;
    ensure!(lock.try_acquire().await?.is_none(), "the lock object that holds the lock was granted it again");
    client.ensure_busy(&key, "the same task holds it").await?;
    let other = client.clone();
    let elsewhere = tokio::spawn({
        let key = key.clone();
        async move { other.ensure_busy(&key, "another task of the same client holds it").await }
    });
    elsewhere.await.map_err(|error| Failure::of_task("a task of the check", &error))??;
    let outcome = held.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    Ok(())
}

async fn second_waiter_waits_for_the_release(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let key = cx.key();
    let held = client.take(&key, renewed(LONG)).await?;
    let waiter = client.spawn_take(&key, renewed(LONG));
    let begun = async || Ok(waiter.is_finished() || client.accounting().waiting == 1);
    eventually(SOON, "a second acquisition of a held lock to wait", begun).await?;
    for _ in 0..20 {
        ensure!(!waiter.is_finished(), "the second acquisition of a held lock did not wait");
        tokio::task::yield_now().await;
        client.ensure_busy(&key, "it is held and waited for").await?;
    }
    let outcome = held.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    waiter.guard().await.map(|_| ())
}

async fn an_id_per_acquisition(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, other) = (cx.key(), cx.key());
    let mut seen = Vec::new();
    let _other = client.take(&other, renewed(LONG)).await?;
    let info = cx.admin(&client)?.inspect(&other).await?;
    seen.extend(info.and_then(|info| info.id));
    for _ in 0..3 {
        let guard = client.take(&key, renewed(LONG)).await?;
        let info = cx.admin(&client)?.inspect(&key).await?;
        let id =
            info.and_then(|info| info.id).ok_or_else(|| Failure::new("inspect shows a held lock without an id"))?;
        ensure!(!seen.contains(&id), "two acquisitions have the id {id}");
        seen.push(id);
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    ensure!(seen.len() == 4, "inspect shows a held lock without an id");
    Ok(())
}

//! C23: every acquisition is accounted for.

use std::time::Duration;

use distlock_api::{ErrorKind, LockKey, LockProviderExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, throughout, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, all_passed};
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C23 counts_what_happens Smoke [] "acquired, released, held and waiting follow what a client does";
    C23 counts_losses [Expiry] "a lost lease is counted as lost, once";
    C23 balances_throughout [] "acquired = released + lost + abandoned + held at every moment of a mixed load, and in the end nothing is held";
}

async fn counts_what_happens(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let fresh = client.accounting();
    ensure!(fresh == distlock_api::Accounting::new(), "a new client's accounting is {fresh:?}");
    let keys: [LockKey; 3] = std::array::from_fn(|_| cx.key());
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(client.take(key, renewed(LONG)).await?);
    }
    client.ensure_busy(&keys[0], "it is held").await?;
    let waiter = client.spawn_take(&keys[0], renewed(LONG));
    client.until_waiting(1).await?;
    let now = client.accounting();
    ensure!((now.acquired, now.held, now.released) == (3, 3, 0), "with three locks held: {now:?}");
    for guard in guards {
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
    }
    let (guard, _) = waiter.guard().await?;
    let now = client.accounting();
    let seen = (now.acquired, now.held, now.released, now.waiting);
    ensure!(seen == (4, 1, 3, 0), "with one of four locks held: {now:?}");
    drop(guard);
    client.until_idle().await?;
    let end = client.accounting();
    ensure!((end.acquired, end.released, end.lost, end.abandoned) == (4, 4, 0, 0), "in the end: {end:?}");
    Ok(())
}

async fn counts_losses(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let kept = client.take(&cx.key(), unrenewed(cx.short())).await?;
    let dropped = client.take(&cx.key(), unrenewed(cx.short())).await?;
    for guard in [&kept, &dropped] {
        within(LIVENESS, "lost() of a lease that is not renewed", guard.lost()).await?;
    }
    drop(dropped);
    let outcome = kept.release().await?;
    ensure!(!outcome.is_released(), "the release of a lost guard said {outcome:?}");
    client.until_idle().await?;
    let end = client.accounting();
    ensure!((end.acquired, end.released, end.lost) == (2, 0, 2), "after two losses: {end:?}");
    Ok(())
}

async fn balances_throughout(cx: Context) -> Verdict {
    const LOAD: Duration = Duration::from_secs(2);
    let clients: [Client; 2] = cx.clients().await?;
    let (keys, ttl) = ([cx.key(), cx.key(), cx.key()], cx.short() / 5);
    let mut tasks = JoinSet::new();
    let until = Instant::now() + LOAD;
    for task in 0..10 {
        let (client, keys, mut chance) = (clients[task % 2].clone(), keys.clone(), cx.chance());
        tasks.spawn(async move {
            while Instant::now() < until {
                mixed_load(&client, &keys, ttl, &mut chance).await?;
            }
            Ok(())
        });
    }
    throughout(until, async || {
        for client in &clients {
            let now = client.accounting();
            ensure!(now.balances(), "it does not balance: {now:?}");
        }
        Ok(())
    })
    .await?;
    all_passed(tasks).await?;
    for client in &clients {
        client.until_idle().await?;
        let end = client.accounting();
        ensure!(end.acquired > 0, "nothing was acquired: the check proves nothing");
    }
    Ok(())
}

/// A wait may be shorter than the store's answer takes.
fn or_too_late<T>(answer: distlock_api::Result<Option<T>>) -> distlock_api::Result<Option<T>> {
    match answer {
        Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Overloaded) => {
            Ok(None)
        }
        answer => answer,
    }
}

/// One of the things that callers do.
#[track_caller]
fn mixed_load(
    client: &Client,
    keys: &[LockKey; 3],
    ttl: Duration,
    chance: &mut fastrand::Rng,
) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let key = &keys[chance.usize(..keys.len())];
        let some_time = Duration::from_millis(chance.u64(0..20));
        match chance.u8(..6) {
            0 => drop(client.attempt(key, renewed(LONG)).await?),
            1 => drop(or_too_late(client.try_acquire(key).ttl(LONG).within(some_time).await)?),
            2 => {
                // Given up in the middle.
                let acquiring = client.take(key, renewed(LONG));
                let _ = tokio::time::timeout(some_time, acquiring).await;
            }
            3 => {
                // May be lost before it is released.
                let guard = client.take(key, unrenewed(ttl)).await?;
                tokio::time::sleep(if chance.u8(..4) == 0 { ttl } else { some_time }).await;
                let _ = guard.release().await?;
            }
            4 => {
                let all = client.acquire_all(keys).ttl(LONG).timeout(some_time);
                drop(or_too_late(all.await)?);
            }
            _ => {
                let guard = client.take(key, renewed(LONG)).await?;
                let outcome = guard.release().await?;
                if !outcome.is_released() {
                    return Err(Failure::new(format!("the release of a held lock said {outcome:?}")));
                }
            }
        }
        Ok(())
    })
}

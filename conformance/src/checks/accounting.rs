//! C23: every acquisition is accounted for.

use std::time::Duration;

use distlock_api::{LockKey, LockProviderExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, late_as_none, throughout, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, all_passed};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C23 counts_what_happens Smoke []
        "The counts of acquired, released, held and waiting follow what a client does. A failure \
         means that its accounting cannot be trusted.";
    C23 counts_losses [Expiry]
        "A lost lease is counted as lost, once. A failure means that losses are missed, or counted \
         twice.";
    C23 balances_throughout []
        "acquired = released + lost + abandoned + held at every moment of a mixed load, and \
         nothing is held at the end. A failure means that an acquisition is not counted, or \
         counted twice.";
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
    ensure!((now.acquired, now.held, now.released) == (3, 3, 0), "with three locks held the accounting is {now:?}");
    for guard in guards {
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    let (guard, _) = waiter.guard().await?;
    let now = client.accounting();
    let seen = (now.acquired, now.held, now.released, now.waiting);
    ensure!(seen == (4, 1, 3, 0), "with one of four locks held the accounting is {now:?}");
    drop(guard);
    client.until_idle().await?;
    let end = client.accounting();
    ensure!(
        (end.acquired, end.released, end.lost, end.abandoned) == (4, 4, 0, 0),
        "after four releases the accounting is {end:?}"
    );
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
    ensure!(!outcome.is_released(), "the release of a lost guard returned {outcome:?}");
    client.until_idle().await?;
    let end = client.accounting();
    ensure!((end.acquired, end.released, end.lost) == (2, 0, 2), "after two losses the accounting is {end:?}");
    Ok(())
}

async fn balances_throughout(cx: Context) -> Verdict {
    const LOAD: Duration = Duration::from_secs(2);
    let clients: [Client; 2] = cx.clients().await?;
    let (keys, ttl) = ([cx.key(), cx.key(), cx.key()], cx.short() / 5);
    let mut tasks = JoinSet::new();
    let until = Instant::now() + LOAD;
    for task in 0..10 {
        let (client, keys, mut rng) = (clients[task % 2].clone(), keys.clone(), cx.rng());
        tasks.spawn(async move {
            // A slow store may have granted nothing until then.
            while Instant::now() < until || client.accounting().acquired == 0 {
                mixed_load(&client, &keys, ttl, &mut rng).await?;
            }
            Ok(())
        });
    }
    ensure_balanced(&clients, until, tasks).await
}

/// Ensures that the accounting balances while these tasks use the clients, and afterwards.
#[track_caller]
pub(in crate::checks) fn ensure_balanced(
    clients: &[Client],
    until: Instant,
    tasks: JoinSet<Verdict>,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        throughout(until, async || {
            for client in clients {
                let now = client.accounting();
                ensure!(now.balances(), "the accounting does not balance: {now:?}");
            }
            Ok(())
        })
        .await?;
        all_passed(tasks).await?;
        for client in clients {
            client.until_idle().await?;
            let end = client.accounting();
            ensure!(end.acquired > 0, "nothing was acquired, so the check proves nothing");
        }
        Ok(())
    })
}

/// Makes one random call.
#[track_caller]
fn mixed_load(
    client: &Client,
    keys: &[LockKey; 3],
    ttl: Duration,
    rng: &mut fastrand::Rng,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let key = &keys[rng.usize(..keys.len())];
        let some_time = Duration::from_millis(rng.u64(0..20));
        match rng.u8(..6) {
            0 => drop(client.attempt(key, renewed(LONG)).await?),
            1 => drop(late_as_none(client.try_acquire(key).ttl(LONG).within(some_time).await)?),
            2 => {
                // Cancelled while it waits.
                let acquiring = client.take(key, renewed(LONG));
                let _ = tokio::time::timeout(some_time, acquiring).await;
            }
            3 => {
                // May be lost before it is released.
                let guard = client.take(key, unrenewed(ttl)).await?;
                tokio::time::sleep(if rng.u8(..4) == 0 { ttl } else { some_time }).await;
                guard.release().await?;
            }
            4 => {
                let all = client.try_acquire_all(keys).ttl(LONG).within(some_time);
                drop(late_as_none(all.await)?);
            }
            _ => {
                let guard = client.take(key, renewed(LONG)).await?;
                let outcome = guard.release().await?;
                if !outcome.is_released() {
                    return Err(Failure::new(format!("the release of a held lock returned {outcome:?}")));
                }
            }
        }
        Ok(())
    })
}

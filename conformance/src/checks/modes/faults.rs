//! C10: lost replies to shared acquisitions. C21: a mode for each key. C23: the accounting of all
//! modes.

use std::time::Duration;

use distlock_api::{LockKey, LockProviderExt, Mode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{ensure_kept, give_back, granted, lasting, permits, refused};
use crate::bounded::{LIVENESS, SOON, late_as_none, within};
use crate::check::checks;
use crate::checks::accounting::ensure_balanced;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Verdict, ensure, located_at_caller};
use crate::leases::LONG;

checks! {
    C10 shared_acquisition [Shared, Faults]
        "A shared grant whose reply was lost is found again, and one release ends it. A failure \
         means that the repeated attempt is counted as another reader, which never leaves.";
    C10 shared_release [Shared, Faults]
        "The release of a reader whose reply was lost is carried out once: the other readers keep \
         the key, and a writer gets it after them. A failure means that the repeated release frees \
         another reader's lock, or is not recognised.";
    C21 mode_of_each_key [Shared]
        "`acquire_all` acquires each key in its own mode. A failure means that a key is closed to \
         others that may share it, or is shared with others.";
    C23 balances_in_all_modes [Shared]
        "acquired = released + lost + abandoned + held at every moment of a load in all modes, and \
         nothing is held at the end. A failure means that a guard that shares a key is not \
         counted, or counted twice.";
}

async fn shared_acquisition(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let other = b.take(&key, lasting(Mode::Shared)).await?;
    let faults = a.disturbed()?;
    faults.lose_replies(Operation::Acquire, 2);
    let guard = a.take_within(SOON, &key, lasting(Mode::Shared)).await?;
    faults.ensure_hit(1, "no reply was lost")?;
    give_back(other).await?;
    refused(&b, &key, Mode::Exclusive, "a shared acquisition that was sent twice holds the key").await?;
    give_back(guard).await?;
    drop(b.take_within(SOON, &key, lasting(Mode::Exclusive)).await?);
    a.until_idle().await
}

async fn shared_release(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let (leaving, staying) = (a.take(&key, lasting(Mode::Shared)).await?, b.take(&key, lasting(Mode::Shared)).await?);
    let faults = a.disturbed()?;
    faults.lose_replies(Operation::Release, 2);
    let outcome = leaving.release().await;
    faults.ensure_hit(1, "no reply was lost")?;
    match outcome {
        Ok(outcome) => ensure!(outcome.is_released(), "a release that was carried out returned {outcome:?}"),
        Err(error) => ensure!(
            error.is_outcome_unknown(),
            "a release that was carried out failed with {error:?}, which is no unknown outcome"
        ),
    }
    a.until_idle().await?;
    refused(&c, &key, Mode::Exclusive, "another reader's release was repeated").await?;
    ensure_kept([&staying], "another reader's release was repeated")?;
    give_back(staying).await?;
    drop(c.take_within(SOON, &key, lasting(Mode::Exclusive)).await?);
    Ok(())
}

async fn mode_of_each_key(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (read, written) = (cx.key(), cx.key());
    let acquire = |client: &Client| {
        let client = client.clone();
        let all = [read.clone(), written.clone()];
        let read = read.clone();
        async move { client.try_acquire_all(all).mode_of(read, Mode::Shared).ttl(LONG).await }
    };
    let both = within(SOON, "an acquisition of two keys to return", acquire(&a)).await??;
    ensure!(both.is_some(), "two free keys were answered busy");
    drop(granted(&b, &read, Mode::Shared, "the key is held by a reader").await?);
    refused(&b, &read, Mode::Exclusive, "the key is held by a reader").await?;
    refused(&b, &written, Mode::Shared, "the key is held exclusively").await?;
    let again = within(SOON, "an acquisition of two keys to return", acquire(&b)).await??;
    ensure!(again.is_none(), "a key that is held exclusively was granted again, with one that is shared");
    if let Some(both) = both {
        let outcome = both.release().await?;
        ensure!(outcome.is_released(), "the release of two held locks returned {outcome:?}");
    }
    for key in [&read, &written] {
        drop(b.take_within(SOON, key, lasting(Mode::Exclusive)).await?);
    }
    Ok(())
}

async fn balances_in_all_modes(cx: Context) -> Verdict {
    const LOAD: Duration = Duration::from_secs(2);
    let clients: [Client; 2] = cx.clients().await?;
    let keys = [cx.key(), cx.key()];
    let has_permits = cx.profile().capabilities().permits;
    let mut tasks = JoinSet::new();
    let until = Instant::now() + LOAD;
    for task in 0..10 {
        let (client, keys, mut rng) = (clients[task % 2].clone(), keys.clone(), cx.rng());
        tasks.spawn(async move {
            // A slow store may have granted nothing until then.
            while Instant::now() < until || client.accounting().acquired == 0 {
                mixed_load(&client, &keys, has_permits, &mut rng).await?;
            }
            Ok(())
        });
    }
    ensure_balanced(&clients, until, tasks).await?;
    for client in &clients {
        let end = client.accounting();
        ensure!(end.lost == 0, "of leases that are renewed some were lost: {end:?}");
    }
    Ok(())
}

/// Makes one random call.
#[track_caller]
fn mixed_load(
    client: &Client,
    keys: &[LockKey; 2],
    has_permits: bool,
    rng: &mut fastrand::Rng,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let key = &keys[rng.usize(..keys.len())];
        let mode = match rng.u8(..5) {
            0 => Mode::Exclusive,
            1 if has_permits => permits(1, 2),
            _ => Mode::Shared,
        };
        let some_time = Duration::from_millis(rng.u64(0..20));
        match rng.u8(..4) {
            0 => drop(client.attempt(key, lasting(mode)).await?),
            1 => {
                // Cancelled while it waits.
                let _ = tokio::time::timeout(some_time, client.take(key, lasting(mode))).await;
            }
            2 => drop(late_as_none(client.try_acquire(key).mode(mode).ttl(LONG).within(some_time).await)?),
            _ => {
                let guard = client.take_within(LIVENESS, key, lasting(mode)).await?;
                tokio::time::sleep(some_time / 4).await;
                give_back(guard).await?;
            }
        }
        Ok(())
    })
}

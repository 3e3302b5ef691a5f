//! C21: several locks at once.

use std::time::Duration;

use distlock_api::{LockGuard, LockKey, LockProviderExt, Wait};
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, all_passed};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed};

checks! {
    C21 opposite_orders Smoke []
        "Callers that name the same keys in opposite orders do not deadlock. A failure means that \
         the keys are not taken in one common order.";
    C21 duplicates_count_once Smoke []
        "A key that is named twice is taken once, and the guards are in the order of their keys. A \
         failure means that a caller can wait for itself, or that the guards do not match the \
         keys.";
    C21 all_or_nothing []
        "If one key is busy, none is taken, and the keys that were free are free again. A failure \
         means that a part of the keys stays held.";
    C21 no_keys_hold_nothing []
        "An empty list of keys gives an empty guard, and nothing is counted. A failure means that \
         an empty list is an error, or counts as an acquisition.";
}

async fn opposite_orders(cx: Context) -> Verdict {
    let rounds = cx.rounds(15);
    let clients: [Client; 2] = cx.clients().await?;
    let keys: Vec<LockKey> = (0..3).map(|_| cx.key()).collect();
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let (client, mut keys) = (clients[task % 2].clone(), keys.clone());
        if task >= 2 {
            keys.reverse();
        }
        tasks.spawn(async move {
            for _ in 0..rounds {
                let all = client.take_all(&keys, renewed(LONG).with_wait(Wait::UpTo(LIVENESS)));
                let Some(all) = within(LIVENESS + SOON, "an acquisition of three keys to return", all).await?? else {
                    let message =
                        format!("callers of the same three keys in opposite orders got none within {LIVENESS:?}");
                    return Err(Failure::new(message));
                };
                ensure!(
                    all.len() == 3 && !all.iter().any(LockGuard::is_lost),
                    "the acquisition of three keys returned {all:?}"
                );
                // The other callers arrive meanwhile, however fast the store is.
                tokio::time::sleep(Duration::from_millis(1)).await;
                release_all(all).await?;
            }
            Ok(())
        });
    }
    all_passed(tasks).await?;
    cx.verdict(&keys, Expected { grants: 12 * rounds, contended: rounds })
}

#[track_caller]
fn release_all(all: Vec<LockGuard>) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        for outcome in try_join_all(all.into_iter().map(LockGuard::release)).await? {
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
        Ok(())
    })
}

async fn duplicates_count_once(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let mut keys = vec![cx.key(), cx.key(), cx.key()];
    let named = [&keys[2], &keys[0], &keys[2], &keys[1], &keys[0]];
    let named = named.map(LockKey::clone);
    let all = within(SOON, "an acquisition of three keys to return", client.take_all(&named, renewed(LONG))).await??;
    let Some(all) = all else { return Err(Failure::new("the acquisition of three free keys was answered busy")) };
    keys.sort();
    let got: Vec<&LockKey> = all.iter().map(LockGuard::key).collect();
    ensure!(got.iter().copied().eq(&keys), "the guards have the keys {got:?} instead of {keys:?}");
    release_all(all).await?;
    for key in &keys {
        let free = client.attempt(key, renewed(LONG)).await?;
        ensure!(free.is_some(), "{key:?} is busy after its release");
    }
    Ok(())
}

async fn all_or_nothing(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let mut keys = [cx.key(), cx.key(), cx.key()];
    keys.sort();
    for busy in 0..keys.len() {
        let held = a.take(&keys[busy], renewed(LONG)).await?;
        // Longer than the store takes for the free keys: the wait must end because of the held key,
        // not because of a slow store.
        let wait = cx.short();
        let all = b.take_all(&keys, renewed(LONG).with_wait(Wait::UpTo(wait)));
        let all = within(wait + SOON, "an acquisition of three keys to time out", all).await??;
        ensure!(all.is_none(), "{all:?} was granted though {:?} is held", keys[busy]);
        ensure!(!held.is_lost(), "a failed acquisition of three keys ended the lease of a holder: {:?}", held.loss());
        for free in (0..keys.len()).filter(|at| *at != busy) {
            let guard = c.take_within(SOON, &keys[free], renewed(LONG)).await?;
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
        let outcome = held.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    b.until_idle().await
}

async fn no_keys_hold_nothing(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let all = within(SOON, "acquire_all to return", client.acquire_all(Vec::<LockKey>::new())).await??;
    ensure!(all.guards().is_empty() && !all.is_lost(), "an empty list of keys returned {all:?}");
    let acquired = client.accounting().acquired;
    ensure!(acquired == 0, "an empty list of keys was counted as {acquired} acquisitions");
    let outcome = all.release().await?;
    ensure!(outcome.is_released(), "the release of an empty guard returned {outcome:?}");
    Ok(())
}

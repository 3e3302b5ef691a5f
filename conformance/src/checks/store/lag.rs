//! Requests over a slow network. Each request of a store is held before it arrives, so a call of
//! more than one is held in the middle: what another claim does then comes between its requests.

use std::time::Duration;

use distlock_engine::store::{Release, Renewal, Standing};
use tokio::time::{Instant, sleep, sleep_until};

use super::races::{self, Racer};
use crate::arena::{Hook, LAG};
use crate::bare::{BareStore, LEASE, last};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};

checks! {
    C1 store_grants_once_over_a_slow_network [Store, Arena, Lag, Expiry]
        "When several processes attempt to take a key over a slow network, exactly one is granted \
         it, whether the key is free or its lease has expired. A failure means that an attempt \
         reads and writes in two requests.";
    C8 store_releases_its_own_over_a_slow_network [Store, Arena, Lag, Expiry]
        "A release over a slow network ends no lease that was granted while it was under way. A \
         failure means that a release compares and deletes in two requests.";
    C2 store_reads_the_clock_in_its_step [Store, Arena, Lag, Expiry, Admin]
        "A renewal over a slow network extends no lease that was seen to have expired meanwhile. A \
         failure means that the clock is read by a request before the one that writes.";
}

/// The ttl of leases that expire while a request is under way: longer than a few requests take.
const BRIEF: Duration = Duration::from_millis(700);
const STORES: usize = 4;

/// Opens the connections of the stores, which takes more requests than later calls.
async fn warmed(cx: &Context, stores: &[BareStore]) -> Verdict {
    for store in stores {
        let claim = store.claim(&cx.key());
        store.take(&claim, LEASE).await?;
        store.give_back(&claim).await?;
    }
    Ok(())
}

async fn store_grants_once_over_a_slow_network(cx: Context) -> Verdict {
    let (hooks, stores) = cx.hooked::<STORES>().await?;
    warmed(&cx, &stores).await?;
    let lagging = hooks.begin(Hook::Lag, &cx.key()).await?;
    for expired in [false, true] {
        for _ in 0..cx.rounds(10) {
            let key = cx.key();
            if expired {
                stores[0].take(&stores[0].claim(&key), Duration::from_millis(1)).await?;
                sleep(GRAIN * 5).await;
            }
            let racers = stores.iter().flat_map(|store| (0..2).map(|_| races::attempt(store, &store.claim(&key))));
            let what =
                if expired { "an expired lease, over a slow network" } else { "a free key, over a slow network" };
            races::one_winner(races::race(&cx, racers.collect()).await?, what).await?;
        }
    }
    lagging.end().await
}

/// The release arrives while its lease lasts, if the store is fast, and would end it half of a lag
/// after its expiry if that is another request. Attempts arrive in between.
async fn store_releases_its_own_over_a_slow_network(cx: Context) -> Verdict {
    let (hooks, stores) = cx.hooked::<STORES>().await?;
    warmed(&cx, &stores).await?;
    let lagging = hooks.begin(Hook::Lag, &cx.key()).await?;
    for _ in 0..cx.rounds(10) {
        let key = cx.key();
        let old = stores[0].claim(&key);
        stores[0].take(&old, BRIEF).await?;
        let expires = Instant::now() + BRIEF;
        let attempts = stores.iter().zip([6, 7, 8, 9]).map(|(store, tenths)| -> Racer<_> {
            let attempt = races::attempt(store, &store.claim(&key));
            Box::pin(async move {
                sleep_until(expires - LAG * tenths / 10).await;
                attempt.await
            })
        });
        let mut racers: Vec<Racer<_>> = attempts.collect();
        let (store, release) = (stores[0].clone(), Release::new(old));
        racers.push(Box::pin(async move {
            sleep_until(expires - LAG * 3 / 2).await;
            store.release_as(&release).await.map(|_| None)
        }));
        let results = races::race(&cx, racers).await?;
        let what = "a key whose lease was released, and expired, over a slow network";
        if results.iter().any(Option::is_some) {
            races::one_winner(results, what).await?;
        }
    }
    lagging.end().await
}

/// As for the release. The lease is inspected in between.
async fn store_reads_the_clock_in_its_step(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    warmed(&cx, &[a.clone(), b.clone()]).await?;
    let lagging = hooks.begin(Hook::Lag, &cx.key()).await?;
    for _ in 0..cx.rounds(10) {
        let claim = a.claim(&cx.key());
        let grant = a.take(&claim, BRIEF).await?;
        let expires = Instant::now() + BRIEF;
        let renewal = Renewal::lease(claim.clone(), last(&grant), LEASE);
        let (renewed, seen) = tokio::join!(
            async {
                sleep_until(expires - LAG * 3 / 2).await;
                a.renew(&renewal).await
            },
            async {
                sleep_until(expires - LAG * 8 / 10).await;
                Ok::<_, Failure>(b.admin()?.inspect(claim.key()).await?)
            }
        );
        let (renewed, seen) = (renewed?, seen?);
        ensure!(
            seen.is_some() || !matches!(renewed, Standing::Held { .. }),
            "the lease was seen to have expired while its renewal was under way, which was answered {renewed:?}"
        );
    }
    lagging.end().await
}

//! Requests that reach one key at the same moment.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_engine::store::{Attempt, Claim, Grant, Renewal, Reply, Ticket};
use tokio::sync::Barrier;
use tokio::time::sleep;

use crate::bare::{BareStore, LEASE, last};
use crate::bounded::{SOON, eventually};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C1 store_grants_a_free_key_once Smoke [Store]
        "When several processes attempt to take a free key at the same moment, exactly one is \
         granted it, and the others are answered busy. A failure means that the store reads and \
         writes in two steps, or returns contention as an error.";
    C1 store_grants_an_expired_key_once [Store, Expiry]
        "When several processes take over an expired lease at the same moment, exactly one is \
         granted it. A failure means that the store reads and writes in two steps.";
    C1 store_grants_a_released_key_once [Store]
        "A release and attempts at the same moment grant the key to one claim at most, which keeps \
         it. A failure means that the release reads and writes in two steps.";
    C8 store_release_against_take_over [Store, Expiry]
        "The release of an expired lease at the moment of a take-over takes nothing from the new \
         holder. A failure means that the release reads and writes in two steps.";
    C22 store_force_release_against_renewal [Store, Admin]
        "After a force-release at the moment of a renewal the lease has ended, and the next one \
         has greater tokens. A failure means that the renewal reads and writes in two steps.";
    C15 store_grant_against_leave [Store, Fair]
        "A waiter that leaves at the moment at which the lease is handed to it does not keep it \
         from the others. A failure means that the withdrawal misses a lease that was just \
         granted.";
}

const STORES: usize = 4;
/// The claims of each store.
const CLAIMS: usize = 2;
/// The ttl of a lease that is to expire at once, and how long after that it is examined.
const MOMENT: Duration = Duration::from_millis(1);
const AFTER: Duration = Duration::from_millis(10);

pub(super) type Racer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Starts all racers at the same moment, each in a task of its own. The results are in no order.
///
/// The racer that is ready last runs first, on a busy machine by far. The shuffle makes that a
/// different one in each race.
#[track_caller]
pub(super) fn race<T: Send + 'static>(
    cx: &Context,
    mut racers: Vec<Racer<T>>,
) -> impl Future<Output = Result<Vec<T>, Failure>> {
    cx.rng().shuffle(&mut racers);
    located_at_caller(async move {
        let barrier = Arc::new(Barrier::new(racers.len()));
        let tasks: Vec<_> = racers
            .into_iter()
            .map(|racer| {
                let barrier = Arc::clone(&barrier);
                tokio::spawn(async move {
                    barrier.wait().await;
                    racer.await
                })
            })
            .collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.map_err(|error| Failure::of_task("a task of a race", &error))?);
        }
        results.into_iter().collect()
    })
}

/// Makes one attempt. Contention must be answered busy, so an error is the store's fault.
pub(super) fn attempt(store: &BareStore, claim: &Claim) -> Racer<Option<(BareStore, Claim, Grant)>> {
    let (store, attempt) = (store.clone(), store.attempt(claim, LEASE));
    Box::pin(async move {
        match store.ask(&attempt).await? {
            Ok(Reply::Granted(grant)) => Ok(Some((store, attempt.claim, grant))),
            Ok(_) => Ok(None),
            Err(error) => {
                Err(Failure::new(format!("contention must be answered busy, and the store failed with {error:?}")))
            }
        }
    })
}

fn release(store: &BareStore, claim: &Claim) -> Racer<Option<(BareStore, Claim, Grant)>> {
    let (store, claim) = (store.clone(), claim.clone());
    Box::pin(async move { store.release(&claim).await.map(|_| None) })
}

/// Ensures that exactly one attempt was granted, and that it holds the lease.
#[track_caller]
pub(super) fn one_winner(
    results: Vec<Option<(BareStore, Claim, Grant)>>,
    what: &str,
) -> impl Future<Output = Result<(BareStore, Claim, Grant), Failure>> {
    located_at_caller(async move {
        let attempts = results.len();
        let mut winners: Vec<_> = results.into_iter().flatten().collect();
        let granted: Vec<_> = winners.iter().map(|(_, claim, grant)| (claim.id().clone(), grant.clone())).collect();
        let (Some(winner), true) = (winners.pop(), winners.is_empty()) else {
            return Err(Failure::new(format!(
                "{attempts} attempts for {what} had these grants instead of one: {granted:?}"
            )));
        };
        let (store, claim, grant) = &winner;
        store.ensure_held(claim, grant, &format!("it alone was granted {what}")).await?;
        Ok(winner)
    })
}

async fn store_grants_a_free_key_once(cx: Context) -> Verdict {
    let stores = cx.stores::<STORES>().await?;
    for _ in 0..cx.rounds(60) {
        let key = cx.key();
        let racers = stores.iter().flat_map(|store| (0..CLAIMS).map(|_| attempt(store, &store.claim(&key))));
        one_winner(race(&cx, racers.collect()).await?, "a free key").await?;
    }
    Ok(())
}

async fn store_grants_an_expired_key_once(cx: Context) -> Verdict {
    let stores = cx.stores::<STORES>().await?;
    for _ in 0..cx.rounds(30) {
        let key = cx.key();
        let expired = stores[0].take(&stores[0].claim(&key), MOMENT).await?;
        sleep(AFTER).await;
        let racers = stores.iter().flat_map(|store| (0..CLAIMS).map(|_| attempt(store, &store.claim(&key))));
        let (_, _, grant) = one_winner(race(&cx, racers.collect()).await?, "an expired lease").await?;
        ensure!(
            grant.token > last(&expired),
            "after {expired:?} had expired the next grant was {grant:?}, whose token is not greater"
        );
    }
    Ok(())
}

async fn store_grants_a_released_key_once(cx: Context) -> Verdict {
    let stores = cx.stores::<STORES>().await?;
    for _ in 0..cx.rounds(30) {
        let key = cx.key();
        let old = stores[0].claim(&key);
        let released = stores[0].take(&old, LEASE).await?;
        let mut racers: Vec<_> = stores.iter().map(|store| attempt(store, &store.claim(&key))).collect();
        racers.push(release(&stores[0], &old));
        let results = race(&cx, racers).await?;
        let winner = if results.iter().any(Option::is_some) {
            one_winner(results, "a key that was released at that moment").await?
        } else {
            one_winner(race(&cx, vec![attempt(&stores[1], &stores[1].claim(&key))]).await?, "a released key").await?
        };
        ensure!(
            winner.2.token > last(&released),
            "after {released:?} the next grant was {:?}, whose token is not greater",
            winner.2
        );
    }
    Ok(())
}

async fn store_release_against_take_over(cx: Context) -> Verdict {
    let stores = cx.stores::<STORES>().await?;
    for _ in 0..cx.rounds(30) {
        let key = cx.key();
        let old = stores[0].claim(&key);
        stores[0].take(&old, MOMENT).await?;
        sleep(AFTER).await;
        let mut racers: Vec<_> = stores.iter().map(|store| attempt(store, &store.claim(&key))).collect();
        racers.push(release(&stores[0], &old));
        one_winner(race(&cx, racers).await?, "a key whose expired lease was released at that moment").await?;
    }
    Ok(())
}

async fn store_force_release_against_renewal(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    b.admin()?;
    for _ in 0..cx.rounds(30) {
        let key = cx.key();
        let victim = a.claim(&key);
        let grant = a.take(&victim, LEASE).await?;
        let renewal = Renewal::lease(victim.clone(), last(&grant), LEASE);
        let renewing = {
            let (a, renewal) = (a.clone(), renewal.clone());
            Box::pin(async move { a.renew(&renewal).await.map(|_| false) }) as Racer<bool>
        };
        let forcing = {
            let (b, key) = (b.clone(), key.clone());
            Box::pin(async move { Ok(b.admin()?.force_release(&key, "conformance").await?.is_some()) }) as Racer<bool>
        };
        let was_held = race(&cx, vec![renewing, forcing]).await?.contains(&true);
        ensure!(was_held, "a force-release at the moment of a renewal found no holder");
        a.ensure_gone(&renewal, "the lock was force-released at the moment of a renewal").await?;
        let attempt = b.attempt(&b.claim(&key), LEASE);
        let next = b.granted(&attempt, "the lock was force-released").await?;
        ensure!(
            next.token > last(&grant),
            "after {grant:?} was force-released the next grant was {next:?}, whose token is not greater"
        );
    }
    Ok(())
}

async fn store_grant_against_leave(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.stores().await?;
    let ticket = Ticket::new(LEASE, LEASE, 10);
    for _ in 0..cx.rounds(30) {
        let key = cx.key();
        let (holder, leaver, waiter) = (a.claim(&key), b.claim(&key), c.claim(&key));
        a.take(&holder, LEASE).await?;
        b.queued(&leaver, ticket, 0).await?;
        c.queued(&waiter, ticket, 1).await?;
        let leaving = {
            let (b, leaver) = (b.clone(), leaver.clone());
            Box::pin(async move { b.withdraw(&leaver).await.map(|()| None) }) as Racer<Option<_>>
        };
        race(&cx, vec![release(&a, &holder), leaving]).await?;
        b.ensure_gone(&Renewal::ticket(leaver, ticket), "the waiter has left").await?;
        let retry = c.attempt(&waiter, LEASE).with_ticket(ticket);
        eventually(SOON, "the only waiter that is left to get the lease", async || {
            Ok(matches!(c.ask(&retry).await??, Reply::Granted(_)))
        })
        .await?;
        d.busy(&Attempt::new(d.claim(&key), LEASE), "the waiter that stayed holds the lease").await?;
    }
    Ok(())
}

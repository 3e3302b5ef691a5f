//! C16: nobody who waits is forgotten. C17: and they are not all woken for one to win.

use std::time::Duration;

use tokio::task::JoinSet;

use super::fairness::until_queued;
use crate::bounded::{SOON, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::controls::Pushes;
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::leases::{LONG, renewed};

checks! {
    C16 release_racing_arrival Smoke [] "a waiter that comes while the lock is being released gets it soon, and no later than its holder's lease would end";
    C16 pushes_refused [PushFaults, SeparateClients] "every waiter gets the lock soon although nothing can be pushed to it";
    C16 pushes_broken [PushFaults, SeparateClients] "every waiter gets the lock soon although what is pushed breaks while it waits";
    C16 pushes_delayed [PushFaults, SeparateClients] "every waiter gets the lock although what is pushed to it comes seconds late, and what is late is not believed";
    C17 one_hand_over_costs_the_same_for_many [Requests, Admin, Fair, Push, SeparateClients] "a release with many waiters costs their clients no more requests than one with a few";
}

async fn release_racing_arrival(cx: Context) -> Verdict {
    let last = cx.rounds(20) as u64;
    let [a, b] = cx.clients().await?;
    for round in 0..=last {
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let waiter = b.spawn_take(&key, renewed(LONG));
        // At any point of its way into the queue, and at last when it is there.
        if round < last {
            tokio::time::sleep(Duration::from_micros(round * 400)).await;
        } else {
            b.until_waiting(1).await?;
        }
        let outcome = held.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        let what = format!("a waiter to get a lock that is free, in round {round}");
        drop(within(SOON, &what, waiter.guard()).await??);
    }
    Ok(())
}

async fn pushes_refused(cx: Context) -> Verdict {
    disturbed(&cx, Pushes::Refused, SOON).await
}

async fn pushes_broken(cx: Context) -> Verdict {
    disturbed(&cx, Pushes::Broken, SOON).await
}

/// Later than a claim may last: whoever hears so late of its grant has lost it, and must not believe that it holds the lock.
async fn pushes_delayed(cx: Context) -> Verdict {
    // Yet sooner than the first in the queue looks by itself: it would not be waiting for the push any more.
    disturbed(&cx, Pushes::Delayed(Duration::from_millis(4500)), SOON * 2).await
}

/// Three clients wait while a fourth one holds the lock, pushes are disturbed, and then it is passed around.
#[track_caller]
fn disturbed(cx: &Context, pushes: Pushes, bound: Duration) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let [a, others @ ..] = cx.clients::<4>().await?;
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let running = others.iter().map(|client| pass_through(client.clone(), key.clone()));
        let mut running: JoinSet<_> = running.collect();
        for client in &others {
            client.until_waiting(1).await?;
            client.disturbed()?.disturb_pushes(pushes).await?;
        }
        let outcome = held.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
        let what = format!("the next of three waiters to have had the lock, with pushes {pushes:?}");
        while let Some(ended) = within(bound, &what, running.join_next()).await? {
            ended.map_err(|error| Failure::of_task("a waiter", &error))??;
        }
        Ok(())
    })
}

/// Holds the lock for a moment, and writes as if nobody else did.
#[track_caller]
fn pass_through(client: Client, key: distlock_api::LockKey) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let guard = client.take(&key, renewed(LONG)).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure!(!guard.is_lost(), "a lock that was just granted is lost: {:?}", guard.loss());
        let outcome = guard.release().await?;
        ensure!(
            outcome.is_released(),
            "a waiter believed in a lock that it did not hold: its release said {outcome:?}"
        );
        Ok(())
    })
}

/// What a hand-over costs all clients, with a few waiters and with three times as many.
async fn one_hand_over_costs_the_same_for_many(cx: Context) -> Verdict {
    let few = cost_of_hand_over(&cx, cx.clients::<4>().await?).await?;
    let many = cost_of_hand_over(&cx, cx.clients::<10>().await?).await?;
    // A refresh of tickets may fall into the moment.
    ensure!(many <= few + 3, "a hand-over takes {few} requests with 3 waiters and {many} with 9");
    Ok(())
}

#[track_caller]
fn cost_of_hand_over<const N: usize>(cx: &Context, clients: [Client; N]) -> impl Future<Output = Result<u64, Failure>> {
    said_by_caller(async move {
        let key = cx.key();
        let held = clients[0].take(&key, renewed(LONG)).await?;
        let mut waiters = Vec::new();
        for (client, place) in clients[1..].iter().zip(1..) {
            waiters.push(client.spawn_take(&key, renewed(LONG)));
            until_queued(cx, client, &key, place).await?;
        }
        // The clients have just come and still ask; the quietest of a few moments is what a hand-over costs.
        let mut cheapest = u64::MAX;
        let mut held = held;
        for waiter in waiters.drain(..2) {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let before = requests(&clients).await?;
            let outcome = held.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
            held = waiter.guard().await?.0;
            // Whoever was woken in vain asks now.
            tokio::time::sleep(Duration::from_millis(100)).await;
            cheapest = cheapest.min(requests(&clients).await? - before);
        }
        ensure!(cheapest >= 1, "a hand-over without a request: they are not counted");
        Ok(cheapest)
    })
}

#[track_caller]
fn requests(clients: &[Client]) -> impl Future<Output = Result<u64, Failure>> {
    said_by_caller(async move {
        let mut sum = 0;
        for client in clients {
            sum += client.disturbed()?.requests().await?;
        }
        Ok(sum)
    })
}

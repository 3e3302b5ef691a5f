//! C16: no wake-up is lost. C17: a release does not wake all waiters.

use std::time::Duration;

use tokio::task::JoinSet;

use super::fairness::until_queued;
use crate::bounded::{POLLED, SOON, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::{DisturbedStore, Pushes};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed};

checks! {
    C16 release_racing_arrival Smoke []
        "A waiter that arrives while the lock is being released gets it soon, and no later than \
         its holder's lease would end. A failure means that a wake-up between the query and the \
         ticket was lost.";
    C16 pushes_refused [Faults, SeparateClients]
        "Every waiter gets the lock soon although no events can be pushed to it. A failure means \
         that a waiter depends on pushed events.";
    C16 pushes_broken [Faults, SeparateClients]
        "Every waiter gets the lock soon although its event stream breaks while it waits. A \
         failure means that a waiter does not notice the break.";
    C16 pushes_delayed [Faults, SeparateClients]
        "Every waiter gets the lock although its events arrive seconds late, and a late event is \
         not believed. A failure means that a waiter is stuck, or believes that it holds a lock \
         that it has lost.";
    C17 hand_over_cost_is_constant [Faults, Admin, Fair, Push, SeparateClients]
        "A release with many waiters costs their clients no more requests than a release with a \
         few. A failure means that all waiters are woken for one to win.";
}

async fn release_racing_arrival(cx: Context) -> Verdict {
    let last = cx.rounds(20) as u64;
    let [a, b] = cx.clients().await?;
    for round in 0..=last {
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let waiter = b.spawn_take(&key, renewed(LONG));
        // The release hits the waiter at different points on its way into the queue, and in the
        // last round after it.
        if round < last {
            tokio::time::sleep(Duration::from_micros(round * 400)).await;
        } else {
            b.until_waiting(1).await?;
        }
        let outcome = held.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        let what = format!("a waiter to get a lock that is free, in round {round}");
        drop(within(SOON, &what, waiter.guard()).await??);
    }
    Ok(())
}

async fn pushes_refused(cx: Context) -> Verdict {
    disturbed(&cx, Pushes::Refused, POLLED).await
}

async fn pushes_broken(cx: Context) -> Verdict {
    disturbed(&cx, Pushes::Broken, POLLED).await
}

/// The delay is longer than a claim window: a waiter whose event is so late has lost the grant, and
/// must not believe that it holds the lock.
async fn pushes_delayed(cx: Context) -> Verdict {
    // But the delay is shorter than the poll interval of the head of the queue, which would
    // otherwise no longer wait for the event.
    disturbed(&cx, Pushes::Delayed(Duration::from_millis(4500)), SOON * 2).await
}

/// Three clients wait while a fourth one holds the lock, pushes are disturbed, and then the lock is
/// passed around.
#[track_caller]
fn disturbed(cx: &Context, pushes: Pushes, bound: Duration) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let [a, others @ ..] = cx.clients::<4>().await?;
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let running = others.iter().map(|client| pass_through(client.clone(), key.clone()));
        let mut running: JoinSet<_> = running.collect();
        for client in &others {
            client.until_waiting(1).await?;
            client.disturbed()?.disturb_pushes(pushes);
        }
        let outcome = held.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        let what = format!("the next of three waiters to have had the lock, with pushes {pushes:?}");
        while let Some(ended) = within(bound, &what, running.join_next()).await? {
            ended.map_err(|error| Failure::of_task("a waiter", &error))??;
        }
        Ok(())
    })
}

/// Holds the lock for a moment, and ensures that its release finds it still held.
#[track_caller]
fn pass_through(client: Client, key: distlock_api::LockKey) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let guard = client.take(&key, renewed(LONG)).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure!(
            !guard.is_lost(),
            "a waiter was given a lock that it did not hold: it was just granted, and is lost with {:?}",
            guard.loss()
        );
        let outcome = guard.release().await?;
        ensure!(
            outcome.is_released(),
            "a waiter was given a lock that it did not hold: its release returned {outcome:?}"
        );
        Ok(())
    })
}

/// Counts the requests of all clients for one hand-over, with three waiters and with nine.
async fn hand_over_cost_is_constant(cx: Context) -> Verdict {
    let few = cost_of_hand_over(&cx, cx.clients::<4>().await?).await?;
    let many = cost_of_hand_over(&cx, cx.clients::<10>().await?).await?;
    // A refresh of tickets may fall into the measured time.
    ensure!(many <= few + 3, "a hand-over takes {few} requests with 3 waiters and {many} with 9");
    Ok(())
}

#[track_caller]
fn cost_of_hand_over<const N: usize>(cx: &Context, clients: [Client; N]) -> impl Future<Output = Result<u64, Failure>> {
    located_at_caller(async move {
        let key = cx.key();
        let held = clients[0].take(&key, renewed(LONG)).await?;
        let mut waiters = Vec::new();
        for (client, place) in clients[1..].iter().zip(1..) {
            waiters.push(client.spawn_take(&key, renewed(LONG)));
            until_queued(cx, client, &key, place).await?;
        }
        // Clients that have just joined still send requests, and tickets are refreshed, so the
        // cheapest of the first hand-overs counts. Six of nine still wait after the last of them.
        let mut cheapest = u64::MAX;
        let mut held = held;
        for waiter in waiters.drain(..(N / 2).min(3)) {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let before = requests(&clients)?;
            let outcome = held.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
            held = waiter.guard().await?.0;
            // Waiters that were woken without a grant send their requests now.
            tokio::time::sleep(Duration::from_millis(100)).await;
            cheapest = cheapest.min(requests(&clients)? - before);
        }
        ensure!(cheapest >= 1, "a hand-over took no request: the `DisturbedStore` counts none");
        Ok(cheapest)
    })
}

fn requests(clients: &[Client]) -> Result<u64, Failure> {
    clients.iter().map(|client| client.disturbed().map(DisturbedStore::requests)).sum()
}

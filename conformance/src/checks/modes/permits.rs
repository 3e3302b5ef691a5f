//! C27: permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock_api::Mode;
use tokio::task::JoinSet;

use super::{ensure_kept, give_back, granted, lasting, permits, refused};
use crate::check::checks;
use crate::client::Client;
use crate::context::{Context, all_passed};
use crate::failure::{Verdict, ensure, located_at_caller};
use crate::history::Expected;

checks! {
    C27 as_many_as_there_are Smoke [Permits]
        "Exactly as many permits of a key are granted as there are, to several clients at once, \
         and one that is released can be granted again. A failure means that the number is not \
         reached, or exceeded.";
    C27 several_at_once [Permits]
        "A guard with several permits counts as many. A failure means that guards are counted, not \
         permits.";
    C27 each_by_its_own_number [Permits]
        "Each request is judged by its own number of permits. A failure means that the number of \
         an earlier request decides, and a changed setting does not count.";
    C27 beside_no_other_mode Smoke [Permits]
        "No guard of another mode holds a key beside permits, whichever comes first. A failure \
         means that modes exclude each other only in one order, or not at all.";
    C27 never_above_the_number Smoke [Permits]
        "Tasks of several clients that take random numbers of permits never hold more than there \
         are, and sometimes all. A failure means that permits are granted in two steps, or wasted.";
}

async fn as_many_as_there_are(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, mut guards) = (cx.key(), Vec::new());
    for client in [&a, &b, &c] {
        guards.push(granted(client, &key, permits(1, 3), "a permit is left").await?);
    }
    for client in [&a, &b] {
        refused(client, &key, permits(1, 3), "all three permits are held").await?;
    }
    give_back(guards.remove(1)).await?;
    ensure_kept(&guards, "another permit was released")?;
    guards.push(granted(&a, &key, permits(1, 3), "a permit was released").await?);
    refused(&b, &key, permits(1, 3), "all three permits are held").await?;
    drop(guards);
    cx.verdict(&[key], Expected { grants: 4, contended: 3 })
}

async fn several_at_once(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let two = granted(&a, &key, permits(2, 3), "the key is free").await?;
    refused(&b, &key, permits(2, 3), "two of three permits are held").await?;
    let one = granted(&b, &key, permits(1, 3), "one permit is left").await?;
    refused(&a, &key, permits(1, 3), "all three permits are held").await?;
    give_back(two).await?;
    let two = granted(&b, &key, permits(2, 3), "two permits were released at once").await?;
    give_back(one).await?;
    refused(&a, &key, permits(3, 3), "two of three permits are held").await?;
    give_back(two).await?;
    drop(granted(&a, &key, permits(3, 3), "all permits were released").await?);
    cx.verdict(&[key], Expected { grants: 4, contended: 3 })
}

async fn each_by_its_own_number(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let two = granted(&a, &key, permits(2, 10), "the key is free").await?;
    refused(&b, &key, permits(1, 2), "two permits are held, and this request allows two").await?;
    let third = granted(&b, &key, permits(1, 3), "two permits are held, and this request allows three").await?;
    let more = granted(&a, &key, permits(7, 10), "three permits are held, and this request allows ten").await?;
    refused(&b, &key, permits(1, 10), "ten permits are held").await?;
    for guard in [two, third, more] {
        give_back(guard).await?;
    }
    cx.verdict(&[key], Expected { grants: 3, contended: 2 })
}

async fn beside_no_other_mode(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let mut others = vec![Mode::Exclusive];
    others.extend(cx.profile().capabilities().shared.then_some(Mode::Shared));
    for other in others {
        for (first, second) in [(permits(1, 9), other), (other, permits(1, 9))] {
            let key = cx.key();
            let held = granted(&a, &key, first, "the key is free").await?;
            for client in [&a, &b] {
                refused(client, &key, second, &format!("the key is held ({first})")).await?;
            }
            give_back(held).await?;
            drop(granted(&b, &key, second, &format!("the key ({first}) was released")).await?);
            cx.verdict(&[key], Expected { grants: 2, contended: 2 })?;
        }
    }
    Ok(())
}

const NUMBER: u32 = 4;

/// The permits that are held, counted outside of the lock.
#[derive(Default)]
struct Pool {
    held: AtomicU32,
}

impl Pool {
    #[track_caller]
    fn visit(&self, take: u32) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            let held = self.held.fetch_add(take, Ordering::SeqCst) + take;
            tokio::time::sleep(Duration::from_millis(2)).await;
            self.held.fetch_sub(take, Ordering::SeqCst);
            ensure!(held <= NUMBER, "{held} of {NUMBER} permits were held at once");
            Ok(())
        })
    }
}

async fn never_above_the_number(cx: Context) -> Verdict {
    const TASKS: usize = 9;
    let clients: [Client; 3] = cx.clients().await?;
    let (key, pool, rounds) = (cx.key(), Arc::new(Pool::default()), cx.rounds(12));
    // The number is reached: with few rounds the tasks may miss each other.
    let mut all = Vec::new();
    for number in 0..NUMBER as usize {
        all.push(clients[number % clients.len()].take(&key, lasting(permits(1, NUMBER))).await?);
    }
    for guard in all {
        give_back(guard).await?;
    }
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, key, pool) = (clients[task % clients.len()].clone(), key.clone(), Arc::clone(&pool));
        let mut rng = cx.rng();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let take = rng.u32(1..=2);
                let guard = client.take(&key, lasting(permits(take, NUMBER))).await?;
                pool.visit(take).await?;
                give_back(guard).await?;
            }
            Ok(())
        });
    }
    let worked = all_passed(tasks).await;
    // The verdict on the history shows the calls.
    cx.verdict(&[key], Expected::default())?;
    worked
}

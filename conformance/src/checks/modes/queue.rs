//! C28: all modes wait in one queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_api::{LockGuard, LockKey, Mode, Wait};
use tokio::task::JoinSet;

use super::super::fairness::until_queued;
use super::{ensure_kept, ensure_waits, give_back, lasting, permits, refused};
use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::client::{Client, Waiter};
use crate::context::{Context, all_passed};
use crate::disturbed::Pushes;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::history::Expected;

checks! {
    C28 reader_waits_behind_a_writer Smoke [Shared, Fair, Admin]
        "A reader that arrives after a waiting writer waits behind it, although only readers hold \
         the key. The writer gets the key when they leave, and the reader after the writer. A \
         failure means that readers can overtake a writer, and starve it.";
    C28 readers_are_granted_together Smoke [Shared, Fair, Admin]
        "One release grants the key to all readers at the head of the queue. A failure means that \
         waiting readers get the key one after the other.";
    C28 run_ends_at_the_writer [Shared, Fair, Admin]
        "A release grants the key to the readers before the next waiting writer, and to none \
         behind it. A failure means that the queue is not kept over the modes.";
    C28 writer_that_leaves_lets_readers_in [Shared, Fair, Admin]
        "A waiting writer that gives up, or is dropped, lets the readers behind it in, beside the \
         readers that hold the key. A failure means that its ticket blocks the key until the last \
         reader leaves.";
    C28 large_request_is_not_overtaken [Permits, Fair, Admin]
        "A request for many permits waits ahead of a later one for fewer, although only the latter \
         fits. A failure means that small requests can starve a large one.";
    C28 release_grants_all_permits_that_fit [Permits, Fair, Admin]
        "One release grants the key to all waiters at the head of the queue whose permits fit \
         together, and to no other. A failure means that permits stay unused, or are exceeded.";
    C28 no_mode_starves [Shared, Fair]
        "A writer gets the key among readers that overlap without a gap, and a reader among \
         writers. A failure means that one mode can starve another.";
    C16 readers_without_pushes [Shared, Faults, SeparateClients]
        "Readers and writers get the lock soon although no events can be pushed to them. A failure \
         means that a waiter depends on pushed events.";
}

/// Makes the clients wait for the key in these modes, one after the other.
#[track_caller]
fn queue_up<const N: usize>(
    cx: &Context,
    key: &LockKey,
    callers: [(&Client, Mode); N],
) -> impl Future<Output = Result<[Waiter; N], Failure>> {
    located_at_caller(async move {
        let mut waiters = Vec::new();
        for ((client, mode), place) in callers.into_iter().zip(1..) {
            waiters.push(client.spawn_take(key, lasting(mode)));
            until_queued(cx, client, key, place).await?;
            cx.recorder().queued(client.number(), key);
        }
        Ok(waiters.try_into().unwrap_or_else(|_| unreachable!("as many as callers")))
    })
}

/// Waits for a grant that must come soon.
#[track_caller]
fn soon(waiter: Waiter, what: &str) -> impl Future<Output = Result<LockGuard, Failure>> {
    located_at_caller(async move { Ok(within(SOON, what, waiter.guard()).await??.0) })
}

async fn reader_waits_behind_a_writer(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.clients().await?;
    let key = cx.key();
    let reader = a.take(&key, lasting(Mode::Shared)).await?;
    let [writer, later] = queue_up(&cx, &key, [(&b, Mode::Exclusive), (&c, Mode::Shared)]).await?;
    refused(&d, &key, Mode::Shared, "a writer waits for the key").await?;
    ensure_waits(&later, "a writer waits ahead of this reader").await?;
    ensure_waits(&writer, "a reader holds the key").await?;
    give_back(reader).await?;
    let writer = soon(writer, "a writer to get the key from the last reader").await?;
    ensure_waits(&later, "a writer holds the key").await?;
    give_back(writer).await?;
    let later = soon(later, "a reader to get the key from a writer").await?;
    drop(later);
    cx.verdict(&[key], Expected { grants: 3, contended: 2 })
}

async fn readers_are_granted_together(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.clients().await?;
    let key = cx.key();
    let writer = a.take(&key, lasting(Mode::Exclusive)).await?;
    let waiters = queue_up(&cx, &key, [(&b, Mode::Shared), (&c, Mode::Shared), (&d, Mode::Shared)]).await?;
    give_back(writer).await?;
    let mut readers = Vec::new();
    for waiter in waiters {
        readers.push(soon(waiter, "a reader to get the key that a writer released, beside others").await?);
    }
    ensure_kept(&readers, "one release granted the key to all of them")?;
    for reader in readers {
        give_back(reader).await?;
    }
    cx.verdict(&[key], Expected { grants: 4, contended: 1 })
}

async fn run_ends_at_the_writer(cx: Context) -> Verdict {
    let [a, b, c, d, e] = cx.clients().await?;
    let key = cx.key();
    let held = a.take(&key, lasting(Mode::Exclusive)).await?;
    let callers = [(&b, Mode::Shared), (&c, Mode::Shared), (&d, Mode::Exclusive), (&e, Mode::Shared)];
    let [first, second, writer, last] = queue_up(&cx, &key, callers).await?;
    give_back(held).await?;
    let first = soon(first, "the first of two readers to get the key").await?;
    let second = soon(second, "the second of two readers to get the key").await?;
    ensure_waits(&last, "a writer waits ahead of this reader").await?;
    give_back(first).await?;
    ensure_waits(&writer, "a reader holds the key").await?;
    give_back(second).await?;
    give_back(soon(writer, "a writer to get the key from the last reader").await?).await?;
    give_back(soon(last, "a reader to get the key from a writer").await?).await?;
    cx.verdict(&[key], Expected { grants: 5, contended: 3 })
}

async fn writer_that_leaves_lets_readers_in(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    for drops in [true, false] {
        let key = cx.key();
        let holder = a.take(&key, lasting(Mode::Shared)).await?;
        let wait = if drops { LIVENESS } else { cx.short() };
        let (client, of_writer) = (b.clone(), key.clone());
        let writer = tokio::spawn(async move {
            client.acquire_with(of_writer, lasting(Mode::Exclusive).with_wait(Wait::UpTo(wait))).await
        });
        until_queued(&cx, &b, &key, 1).await?;
        let reader = c.spawn_take(&key, lasting(Mode::Shared));
        until_queued(&cx, &c, &key, 2).await?;
        if drops {
            writer.abort();
        }
        // Whether it was dropped or has timed out.
        let left = within(wait + SOON, "a writer to leave the queue", writer).await?;
        let is_granted = left.is_ok_and(|answer| answer.is_ok_and(|acquired| acquired.held().is_some()));
        ensure!(!is_granted, "a writer was granted the key beside a reader");
        let how = if drops { "was dropped" } else { "has timed out" };
        let reader = soon(reader, &format!("a reader to get the key after the writer ahead of it {how}")).await?;
        ensure_kept([&holder], "a waiting writer left")?;
        give_back(reader).await?;
        give_back(holder).await?;
    }
    Ok(())
}

async fn large_request_is_not_overtaken(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.clients().await?;
    let key = cx.key();
    let held = [a.take(&key, lasting(permits(1, 3))).await?, d.take(&key, lasting(permits(1, 3))).await?];
    let [large, small] = queue_up(&cx, &key, [(&b, permits(3, 3)), (&c, permits(1, 3))]).await?;
    refused(&d, &key, permits(1, 3), "a request for three permits waits").await?;
    ensure_waits(&small, "a request for three permits waits ahead of this one").await?;
    for guard in held {
        give_back(guard).await?;
    }
    let large = soon(large, "a request for three permits to be granted when all are released").await?;
    ensure_waits(&small, "all permits are held").await?;
    give_back(large).await?;
    drop(soon(small, "a request for one permit to be granted after one for three").await?);
    cx.verdict(&[key], Expected { grants: 4, contended: 1 })
}

async fn release_grants_all_permits_that_fit(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.clients().await?;
    let key = cx.key();
    let held = a.take(&key, lasting(permits(3, 3))).await?;
    let callers = [(&b, permits(1, 3)), (&c, permits(2, 3)), (&d, permits(1, 3))];
    let [one, two, more] = queue_up(&cx, &key, callers).await?;
    give_back(held).await?;
    let one = soon(one, "the first of two waiters whose permits fit to get them").await?;
    let two = soon(two, "the second of two waiters whose permits fit to get them").await?;
    ensure_waits(&more, "all three permits are held").await?;
    give_back(two).await?;
    let more = soon(more, "a permit to be granted when two are released").await?;
    ensure_kept([&one], "another guard's permits were released")?;
    give_back(one).await?;
    give_back(more).await?;
    cx.verdict(&[key], Expected { grants: 4, contended: 0 })
}

/// Holds the key again and again until the other has had it.
async fn hold_on(client: Client, key: LockKey, mode: Mode, over: Arc<AtomicBool>) -> Verdict {
    while !over.load(Ordering::SeqCst) {
        let guard = client.take(&key, lasting(mode)).await?;
        tokio::time::sleep(Duration::from_millis(15)).await;
        give_back(guard).await?;
    }
    Ok(())
}

async fn no_mode_starves(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    for (many, one) in [(Mode::Shared, Mode::Exclusive), (Mode::Exclusive, Mode::Shared)] {
        let (key, over) = (cx.key(), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for task in 0..8 {
            let client = if task % 2 == 0 { a.clone() } else { b.clone() };
            tasks.spawn(hold_on(client, key.clone(), many, Arc::clone(&over)));
            // They do not come and go together.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        for _ in 0..cx.rounds(5) {
            let what = format!("a caller ({one}) to get the key among others ({many})");
            give_back(within(SOON, &what, c.take(&key, lasting(one))).await??).await?;
        }
        over.store(true, Ordering::SeqCst);
        all_passed(tasks).await?;
        cx.verdict(&[key], Expected { grants: 10, contended: 0 })?;
    }
    Ok(())
}

async fn readers_without_pushes(cx: Context) -> Verdict {
    let [a, others @ ..] = cx.clients::<4>().await?;
    let key = cx.key();
    let held = a.take(&key, lasting(Mode::Exclusive)).await?;
    let mut running = JoinSet::new();
    for (place, client) in others.iter().enumerate() {
        let mode = if place == 1 { Mode::Exclusive } else { Mode::Shared };
        let (passing, key) = (client.clone(), key.clone());
        running.spawn(async move { give_back(passing.take(&key, lasting(mode)).await?).await });
        client.until_waiting(1).await?;
        client.disturbed()?.disturb_pushes(Pushes::Refused);
    }
    give_back(held).await?;
    while let Some(ended) = within(SOON, "the next of three waiters to have had the lock", running.join_next()).await? {
        ended.map_err(|error| Failure::of_task("a waiter", &error))??;
    }
    Ok(())
}

//! C18: calls are bounded, and invalid keys and options are refused before any I/O.

use std::collections::HashSet;
use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LeaseOptions, LockKey, LockProviderExt, Phase, RenewalPolicy, Wait};
use futures_util::future::{try_join, try_join_all};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use crate::bounded::{GRAIN, LIVENESS, SOON, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed};

checks! {
    C18 wait_is_bounded []
        "`acquire` with a timeout waits that long and returns soon after, with the phase in which \
         the time ran out. A failure means that a caller waits too long, gives up too early, or \
         gets the wrong error.";
    C18 bounded_while_replies_hang [Faults]
        "Calls return in time although the store does not answer, and leave nothing behind once it \
         does. A failure means that a timeout waits for the store, or forgets the attempt in \
         flight.";
    C18 attempt_is_prompt Smoke []
        "A single attempt on a held lock answers at once, and so does a wait of zero. A failure \
         means that a single attempt waits for the holder.";
    C18 timed_out_waiters_leave []
        "A waiter whose time ran out is not granted the lock later. A failure means that its \
         ticket or its lease is left behind.";
    C18 short_waits_leave_nothing []
        "A wait that ends before the store has answered leaves no lease behind. A failure means \
         that the attempt in flight was forgotten, and the key stays held.";
    C18 invalid_options Smoke []
        "Invalid options are refused, each with a message of its own, and nothing is counted. A \
         failure means that a mistake goes unnoticed, or is explained by the wrong message.";
    C18 invalid_keys Smoke []
        "Empty and too long keys are refused, and nothing is counted. A failure means that an \
         invalid key reaches the store.";
}

/// Makes one attempt of another key, so that the client is connected: a short wait may end before.
#[track_caller]
fn connected(cx: &Context, client: &Client) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        if let Some(guard) = client.attempt(&cx.key(), renewed(LONG)).await? {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
        Ok(())
    })
}

async fn wait_is_bounded(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let keys = [cx.key(), cx.key()];
    let _held = [a.take(&keys[0], renewed(LONG)).await?, a.take(&keys[1], renewed(LONG)).await?];
    connected(&cx, &b).await?;
    // Longer than the store takes to answer, so that the call waits for the lock, not for the
    // store.
    for wait in [cx.short(), cx.short() * 2] {
        try_join(times_out(&a, &keys, wait), times_out(&b, &keys, wait)).await?;
    }
    Ok(())
}

/// Ensures that waits for two held locks, at the same time and by one call each, end in time.
#[track_caller]
fn times_out(client: &Client, keys: &[LockKey; 2], wait: Duration) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let acquiring = async {
            let start = Instant::now();
            let result = within(wait + SOON, "acquire to time out", client.acquire(&keys[0]).timeout(wait)).await?;
            let took = start.elapsed();
            let error = result.err().map(|error| (error.kind(), error.phase()));
            let expected = Some((ErrorKind::Timeout, Some(Phase::Wait)));
            ensure!(error == expected, "acquire on a held lock ended with {error:?} instead of {expected:?}");
            ensure!(took + GRAIN >= wait, "acquire with a timeout of {wait:?} gave up after only {took:?}");
            Ok(())
        };
        let trying = async {
            let start = Instant::now();
            let trying = client.try_acquire(&keys[1]).within(wait);
            let answer = within(wait + SOON, "try_acquire to time out", trying).await??;
            let took = start.elapsed();
            ensure!(answer.is_none(), "a held lock was granted");
            ensure!(took + GRAIN >= wait, "try_acquire within {wait:?} gave up after only {took:?}");
            Ok(())
        };
        try_join(acquiring, trying).await.map(drop)
    })
}

async fn bounded_while_replies_hang(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (waited, tried, wait) = (cx.key(), cx.key(), cx.short());
    // The store must carry a call out within the wait.
    connected(&cx, &a).await?;
    let faults = a.disturbed()?;
    faults.delay_replies(Operation::Acquire, u32::MAX, LONG);
    let waiting = a.acquire(&waited).ttl(LONG).timeout(wait).into_future();
    let waiting = within(wait + SOON, "acquire to time out while the store does not answer", waiting);
    let trying = a.try_acquire(&tried).ttl(LONG).into_future();
    let trying = within(LIVENESS, "a single attempt to return while the store does not answer", trying);
    let (waiting, trying) = try_join(waiting, trying).await?;
    faults.ensure_hit(1, "no reply was late")?;
    let kinds = (waiting.map(drop).map_err(|error| error.kind()), trying.map(drop).map_err(|error| error.kind()));
    let expected = (Err(ErrorKind::Timeout), Err(ErrorKind::Timeout));
    ensure!(kinds == expected, "calls that the store did not answer ended with {kinds:?} instead of {expected:?}");
    let nothing_left = async {
        for key in [&waited, &tried] {
            drop(b.take_within(SOON, key, renewed(LONG)).await?);
        }
        a.until_idle().await
    };
    let left = |failure: Failure| {
        failure.reworded(|message| format!("after a call had ended before the store answered it: {message}"))
    };
    nothing_left.await.map_err(left)
}

async fn attempt_is_prompt(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let _held = a.take(&key, renewed(LONG)).await?;
    for client in [&a, &b] {
        for wait in [Wait::Try, Wait::UpTo(Duration::ZERO)] {
            let attempt = client.acquire_with(key.clone(), renewed(LONG).with_wait(wait));
            let answer = within(SOON, "a single attempt to answer", attempt).await??;
            ensure!(answer.held().is_none(), "a held lock was granted");
        }
        let waiting = client.accounting().waiting;
        ensure!(waiting == 0, "after single attempts {waiting} callers still wait");
    }
    Ok(())
}

async fn timed_out_waiters_leave(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let held = a.take(&key, renewed(LONG)).await?;
    connected(&cx, &b).await?;
    let wait = cx.short();
    let waits = (0..3).map(|_| async { b.try_acquire(&key).within(wait).await });
    for answer in within(wait + SOON, "waiters to time out", try_join_all(waits)).await?? {
        ensure!(answer.is_none(), "a held lock was granted");
    }
    let outcome = held.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let next = c.take_within(SOON, &key, renewed(LONG)).await?;
    drop(next);
    b.until_idle().await
}

/// The timeouts are about as long as a request takes, so that some end before it is sent, some
/// while it is in flight, and some after its reply.
async fn short_waits_leave_nothing(cx: Context) -> Verdict {
    const KEYS: u32 = 60;
    // All at once would wait for each other where a client has a few connections.
    const AT_ONCE: usize = 12;
    let [a, b] = cx.clients().await?;
    let warm = Instant::now();
    drop(a.take(&cx.key(), renewed(LONG)).await?);
    let call = Instant::now();
    drop(a.take(&cx.key(), renewed(LONG)).await?);
    let usual = call.elapsed().max(Duration::from_micros(50)).min(warm.elapsed());
    let leaving = (0..KEYS).map(async |turn| {
        let key = cx.key();
        let wait = usual * turn / 30;
        let answer = a.acquire_with(key.clone(), renewed(LONG).with_wait(Wait::UpTo(wait))).await;
        drop(answer);
        let next = b.take(&key, renewed(LONG)).await.map(drop);
        next.map_err(|failure| failure.reworded(|said| format!("after a wait of {wait:?} had ended: {said}")))
    });
    let mut leaving = stream::iter(leaving).buffer_unordered(AT_ONCE);
    while let Some(left) = leaving.next().await {
        let held = |said: &str| format!("keys are still held, for example {said}");
        left.map_err(|failure| failure.reworded(held))?;
    }
    a.until_idle().await?;
    b.until_idle().await
}

async fn invalid_options(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let _held = a.take(&key, renewed(LONG)).await?;
    let (ms, base) = (Duration::from_millis, LeaseOptions::new().ttl(Duration::from_millis(100)));
    let every = |interval| base.renewal(RenewalPolicy::Every(interval));
    let leases = [
        ("a ttl of zero", base.ttl(Duration::ZERO)),
        ("a ttl below a millisecond", base.ttl(Duration::from_micros(999))),
        ("a ttl without end", base.ttl(Duration::MAX)),
        ("a margin as long as the ttl", base.safety_margin(ms(100))),
        ("renewal without pause", every(Duration::ZERO)),
        ("renewal after the ttl", every(ms(100))),
        ("renewal within the margin", every(ms(95))),
    ];
    let mut invalid: Vec<(&str, AcquireOptions)> =
        leases.map(|(what, lease)| (what, AcquireOptions::new().with_lease(lease))).into();
    invalid.push(("a long owner", AcquireOptions::new().with_owner("o".repeat(257))));
    invalid.push(("long metadata", AcquireOptions::new().with_metadata("name", "v".repeat(4096))));

    let before = b.counts();
    let mut messages = HashSet::new();
    for (what, options) in invalid {
        for (key, state) in [(&key, "held"), (&cx.key(), "free")] {
            for wait in [Wait::Try, Wait::UpTo(ms(500))] {
                let answer = b.acquire_with(key.clone(), options.clone().with_wait(wait)).await;
                let kind = answer.as_ref().err().map(|error| error.kind());
                ensure!(kind == Some(ErrorKind::InvalidOptions), "{what}, on a {state} lock, returned {answer:?}");
                messages.extend(answer.err().filter(|_| state == "held").map(|error| (what, bare(&error))));
            }
        }
    }
    let distinct: HashSet<_> = messages.iter().map(|(_, message)| message).collect();
    ensure!(distinct.len() == 9, "nine mistakes need nine messages, and have these: {messages:#?}");
    // A shared accounting also counts the holder, which does not change.
    let after = b.counts();
    ensure!(before == after, "refused acquisitions were counted: {before:?} became {after:?}");
    Ok(())
}

/// Returns an error's message without its key.
fn bare(error: &distlock_api::LockError) -> String {
    let message = error.to_string();
    message.split(" [lock ").next().unwrap_or_default().to_owned()
}

async fn invalid_keys(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let before = client.counts();
    for (what, key) in [("an empty key", String::new()), ("a long key", "k".repeat(LockKey::MAX_LEN + 1))] {
        let acquired = client.acquire(&key).await;
        let tried = client.try_acquire(&key).await;
        let all = client.acquire_all([&key, "good"]).await;
        let kinds = [acquired.err(), tried.err(), all.err()].map(|error| error.map(|error| error.kind()));
        let expected = [Some(ErrorKind::InvalidKey); 3];
        ensure!(kinds == expected, "{what} was refused with {kinds:?} instead of InvalidKey");
    }
    let after = client.counts();
    ensure!(before == after, "refused keys were counted: {before:?} became {after:?}");
    Ok(())
}

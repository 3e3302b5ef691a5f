//! C29: each holder's lease ends by itself. C11: nothing is left of a shared acquisition. C25: the
//! minimum hold of a reader.

use std::time::Duration;

use distlock_api::{LockKey, Mode};
use tokio::time::{Instant, sleep};

use super::{ensure_kept, give_back, granted, lasting, refused};
use crate::bounded::{GRAIN, LIVENESS, SOON, throughout, within};
use crate::check::checks;
use crate::child::Clock;
use crate::client::Client;
use crate::context::{Context, nothing_left};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed, unrenewed};

checks! {
    C29 killed_reader [Shared, Expiry, Processes]
        "A killed reader delays a writer until its own lease's expiry, not less and not much \
         longer, and a living reader keeps the key beyond that. A failure means that a live lease \
         was taken over, that a dead one blocks the key, or that it takes others with it.";
    C29 cut_off_reader [Shared, Expiry, Faults, SeparateClients]
        "A reader that is cut off delays a writer until its own lease's expiry, not less and not \
         much longer. A failure means that a live lease was taken over, or that a dead one blocks \
         the key.";
    C29 end_of_one_leaves_the_others [Shared, Expiry, Faults, SeparateClients]
        "The expiry of one reader's lease does not affect the lease of another, which keeps the \
         key. A failure means that the holders of a key have one expiry.";
    C29 renewal_extends_its_own [Shared, Expiry, Faults, SeparateClients]
        "The renewals of one reader do not extend the lease of another, which has ended when the \
         first one leaves. A failure means that a living reader keeps a dead one alive.";
    C11 dropped_readers [Shared]
        "Readers that are cancelled while they wait, at any moment, leave neither a lease nor a \
         ticket. A failure means that a writer waits for a reader that has left.";
    C25 early_release_of_a_reader [Shared, MinimumHold]
        "A shared lock that is released early keeps writers out until its minimum hold has passed. \
         A failure means that the minimum hold is ignored in this mode.";
}

async fn killed_reader(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let mut child = cx.child(Clock::True).await?;
    let (key, ttl) = (cx.key(), cx.short());
    let started = Instant::now();
    if child.acquire_result(&key, Mode::Shared, ttl, false, LIVENESS).await?.ok().flatten().is_none() {
        return Err(Failure::new("a child process was not granted a free lock (shared)"));
    }
    let reader = a.take(&key, renewed(ttl).with_mode(Mode::Shared)).await?;
    let writer = b.spawn_take_within(ttl * 3 + LIVENESS, &key, lasting(Mode::Exclusive));
    child.kill().await?;
    throughout(started + ttl + ttl / 2, async || {
        // A reader whose lease has ended for lack of time keeps no writer out.
        ensure_kept([&reader], "another reader was killed").map_err(Failure::if_in_time)?;
        ensure!(!writer.is_finished(), "a writer was granted the key beside a living reader");
        Ok(())
    })
    .await?;
    give_back(reader).await?;
    drop(within(SOON, "a writer to get the key after the last living reader", writer.guard()).await??);

    // Without a living reader.
    let mut child = cx.child(Clock::True).await?;
    let started = Instant::now();
    if child.acquire_result(&key, Mode::Shared, ttl, false, LIVENESS).await?.ok().flatten().is_none() {
        return Err(Failure::new("a child process was not granted a free lock (shared)"));
    }
    child.kill().await?;
    let killed = Instant::now();
    let (_writer, at) = b.spawn_take(&key, lasting(Mode::Exclusive)).guard().await?;
    let after = at - started;
    ensure!(after + GRAIN >= ttl, "the lease of a killed reader, of {ttl:?}, was taken over after only {after:?}");
    let after = at.saturating_duration_since(killed);
    ensure!(after < ttl + SOON, "a killed reader blocked the key for {after:?}, with a ttl of {ttl:?}");
    Ok(())
}

async fn cut_off_reader(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let dead = a.take(&key, renewed(ttl).with_mode(Mode::Shared)).await?;
    let alive = b.take(&key, lasting(Mode::Shared)).await?;
    let writer = c.spawn_take(&key, lasting(Mode::Exclusive));
    c.until_waiting(1).await?;
    let faults = a.disturbed()?;
    let (cut, remaining) = (Instant::now(), dead.remaining().unwrap_or_default());
    faults.cut_off().await?;
    give_back(alive).await?;
    // A renewal that was under way may have been carried out, and the other reader was there.
    let alone = Instant::now();
    let (_writer, at) = writer.guard().await?;
    let after = at.saturating_duration_since(cut);
    ensure!(
        dead.is_lost(),
        "a writer was granted the key {after:?} after a reader was cut off, whose guard is not lost"
    );
    ensure!(after + GRAIN >= remaining, "a lease with {remaining:?} left was taken over after only {after:?}");
    let after = at.saturating_duration_since(alone);
    ensure!(after < ttl + SOON, "a reader that was cut off blocked the key for {after:?}, with a ttl of {ttl:?}");
    faults.end_faults();
    Ok(())
}

async fn end_of_one_leaves_the_others(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let dead = a.take(&key, unrenewed(ttl).with_mode(Mode::Shared)).await?;
    let alive = b.take(&key, renewed(ttl).with_mode(Mode::Shared)).await?;
    let granted_at = Instant::now();
    // Otherwise it would give its lease back.
    a.disturbed()?.cut_off().await?;
    within(LIVENESS, "lost() of a shared lease that is not renewed", dead.lost()).await?;
    throughout(granted_at + ttl + ttl / 2, async || {
        ensure_kept([&alive], "another reader's lease has expired").map_err(Failure::if_in_time)?;
        refused(&c, &key, Mode::Exclusive, "another reader's lease has expired, and one is renewed").await
    })
    .await?;
    give_back(alive).await?;
    drop(granted(&c, &key, Mode::Exclusive, "of two readers one has expired, and one has left").await?);
    a.disturbed()?.end_faults();
    Ok(())
}

async fn renewal_extends_its_own(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let dead = a.take(&key, unrenewed(ttl).with_mode(Mode::Shared)).await?;
    let alive = b.take(&key, renewed(ttl).with_mode(Mode::Shared)).await?;
    let granted_at = Instant::now();
    // Otherwise it would give its lease back.
    let faults = a.disturbed()?;
    faults.cut_off().await?;
    sleep(ttl + ttl / 4).await;
    give_back(alive).await?;
    let passed = granted_at.elapsed();
    let next = c.attempt(&key, lasting(Mode::Exclusive)).await?;
    ensure!(
        next.is_some(),
        "{passed:?} after its grant for {ttl:?} a reader blocks the key that was not renewed, as another one was"
    );
    drop(dead);
    faults.end_faults();
    Ok(())
}

/// Cancels a reader that waits behind a writer, after some time.
#[track_caller]
fn cancelled(client: &Client, key: &LockKey, after: Duration) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let acquiring = client.take(key, lasting(Mode::Shared));
        match tokio::time::timeout(after, acquiring).await {
            Ok(granted) => Err(Failure::new(format!("a reader was granted a key that a writer holds: {:?}", granted?))),
            Err(_) => Ok(()),
        }
    })
}

async fn dropped_readers(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, mut rng) = (cx.key(), cx.rng());
    let writer = a.take(&key, lasting(Mode::Exclusive)).await?;
    for _ in 0..cx.rounds(20) {
        let times = [(); 4].map(|()| Duration::from_micros(rng.u64(0..15_000)));
        let all = times.iter().zip([&b, &c, &b, &c]).map(|(time, client)| cancelled(client, &key, *time));
        futures_util::future::try_join_all(all).await?;
    }
    // Some are dropped at the moment of the grant.
    let waiting = [&b, &c, &b].map(|client| client.spawn_take(&key, lasting(Mode::Shared)));
    let (of_b, of_c) = if cx.profile().is_one_provider() { (3, 3) } else { (2, 1) };
    b.until_waiting(of_b).await?;
    c.until_waiting(of_c).await?;
    give_back(writer).await?;
    drop(waiting);
    let next = a.take_within(SOON, &key, lasting(Mode::Exclusive)).await?;
    give_back(next).await?;
    for client in [&a, &b, &c] {
        client.until_idle().await?;
    }
    nothing_left(&cx, &a, &key).await?;
    cx.verdict(&[key], Expected { grants: 2, contended: 0 })
}

async fn early_release_of_a_reader(cx: Context) -> Verdict {
    const HOLD: Duration = Duration::from_millis(1500);
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let options = lasting(Mode::Shared);
    let lease = options.lease().hold_at_least(HOLD);
    let started = Instant::now();
    let reader = a.take(&key, options.with_lease(lease)).await?;
    let granted_at = Instant::now();
    give_back(reader).await?;
    let (_writer, at) = b.spawn_take(&key, renewed(LONG)).guard().await?;
    let after = at - started;
    ensure!(after + GRAIN >= HOLD, "a reader's minimum hold was {HOLD:?}, and a writer got the key after {after:?}");
    let after = at - granted_at;
    ensure!(after < HOLD + SOON, "with a reader's minimum hold of {HOLD:?} the key was closed for {after:?}");
    Ok(())
}

//! C5: tokens increase per key. C6: a guard's token never changes.

use std::time::Duration;

use distlock_api::{FencedRegister, FencedWrite, LockGuard, Mode};
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, eventually, throughout, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, ensure_in_time};
use crate::leases::{LONG, renewed, renewed_every, unrenewed};

checks! {
    C5 across_release Smoke []
        "Each grant of a key has a greater token than the grant before, whichever client gets it. \
         A failure means that a resource cannot refuse a past holder.";
    C5 across_takeover [Expiry]
        "The take-over of an expired lease has a greater token than that lease. A failure means \
         that a resource cannot refuse the expired holder.";
    C5 across_unnoticed_expiry [Expiry]
        "A grant long after an expiry that no client noticed has a greater token. A failure means \
         that the store forgets the token with the lease.";
    C5 across_force_release Smoke [Admin]
        "A grant after a force-release has a greater token than its victim. A failure means that a \
         resource cannot refuse the victim.";
    C5 across_purge [Purge]
        "A grant after the store has forgotten the key has a greater token. A failure means that \
         tokens restart when the record is removed.";
    C5 handed_over []
        "Waiters of one client and of several are granted increasing tokens. A failure means that \
         a hand-over repeats a token or goes back.";
    C5 keeps_late_writers_out [Expiry]
        "A resource that remembers the greatest token refuses a holder whose lease has expired, \
         once the next holder has written. A failure means that tokens do not protect the resource \
         from late writes.";
    C5 keeps_victims_out Smoke [Admin]
        "A resource that remembers the greatest token refuses the victim of a force-release, once \
         the next holder has written. A failure means that tokens do not protect the resource from \
         late writes.";
    C6 of_its_own_grant [Admin]
        "A guard has the token of its own grant, even if another client was granted the lock \
         before the guard existed. A failure means that the token was read from the store after \
         the grant.";
    C6 through_renewals_and_contention []
        "A guard's token is the same for the guard's whole life. A failure means that a renewal or \
         another claim changed it.";
}

#[track_caller]
fn increased(before: u64, guard: &LockGuard) -> Result<u64, Failure> {
    let token = guard.fencing_token().get();
    ensure!(token > before, "token {token} follows token {before} of the same key, and must be greater");
    Ok(token)
}

async fn across_release(cx: Context) -> Verdict {
    let clients: [Client; 2] = cx.clients().await?;
    let (key, mut last) = (cx.key(), 0);
    for turn in 0..cx.rounds(20) {
        // Two grants in a row to each client, so that both orders of clients occur.
        let guard = clients[turn / 2 % 2].take(&key, renewed(LONG)).await?;
        last = increased(last, &guard)?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    Ok(())
}

async fn across_takeover(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let first = a.take(&key, unrenewed(ttl)).await?;
    let second = b.take(&key, unrenewed(ttl)).await?;
    let third = a.take(&key, unrenewed(ttl)).await?;
    let mut last = 0;
    for guard in [&first, &second, &third] {
        last = increased(last, guard)?;
    }
    Ok(())
}

async fn across_unnoticed_expiry(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short() / 3);
    let first = a.take(&key, unrenewed(ttl)).await?;
    tokio::time::sleep(ttl * 3).await;
    increased(first.fencing_token().get(), &b.take(&key, renewed(LONG)).await?).map(|_| ())
}

async fn across_force_release(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, mut last) = (cx.key(), 0);
    for client in [&a, &b, &a] {
        let guard = client.take(&key, renewed(LONG)).await?;
        last = increased(last, &guard)?;
        cx.admin(&b)?.force_release(&key, "conformance").await?;
    }
    let next = b.take(&key, renewed(LONG)).await?;
    increased(last, &next).map(|_| ())
}

async fn across_purge(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, mut last) = (cx.key(), 0);
    let capabilities = cx.profile().capabilities();
    let mut modes = vec![Mode::Exclusive];
    modes.extend(capabilities.shared.then_some(Mode::Shared));
    modes.extend(capabilities.permits.then_some(Mode::Permits { take: 1, of: 3 }));
    for (turn, client) in [&a, &b, &a, &a, &b, &a].into_iter().enumerate() {
        let guard = client.take(&key, renewed(LONG).with_mode(modes[turn % modes.len()])).await?;
        last = increased(last, &guard)?;
        if turn % 4 == 2 && cx.profile().has_admin() {
            cx.admin(&b)?.force_release(&key, "conformance").await?;
        } else {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        }
        client.disturbed()?.purge(&key).await?;
    }
    Ok(())
}

async fn handed_over(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let first = a.take(&key, renewed(LONG)).await?;
    let mut last = first.fencing_token().get();
    let waiters = [&a, &b, &a, &b].map(|client| client.spawn_take(&key, renewed(LONG)));
    let outcome = first.release().await?;
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let mut waiters: Vec<_> = waiters.into_iter().map(|waiter| Box::pin(waiter.guard())).collect();
    while !waiters.is_empty() {
        // The order of the waiters is checked by C15.
        let next = futures_util::future::select_all(waiters);
        let (granted, _, rest) = within(LIVENESS * 2, "the next waiter to get the lock", next).await?;
        waiters = rest;
        let (guard, _) = granted?;
        last = increased(last, &guard)?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    Ok(())
}

async fn keeps_late_writers_out(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let late = a.take(&key, unrenewed(cx.short())).await?;
    let next = b.take(&key, renewed(LONG)).await?;
    fenced_off(&late, &next)
}

async fn keeps_victims_out(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let victim = a.take(&key, renewed(LONG)).await?;
    cx.admin(&b)?.force_release(&key, "conformance").await?;
    let next = b.take(&key, renewed(LONG)).await?;
    fenced_off(&victim, &next)
}

/// Both holders write, and then the first one again, which must be refused.
#[track_caller]
fn fenced_off(late: &LockGuard, next: &LockGuard) -> Verdict {
    let (register, late, next) = (FencedRegister::new("initial"), late.fencing_token(), next.fencing_token());
    ensure!(register.write(late, "late").is_accepted(), "the first write was refused");
    ensure!(register.write(next, "next").is_accepted(), "token {next} was refused after token {late}");
    let again = register.write(late, "late");
    ensure!(
        again == FencedWrite::FencedOff { newest: next },
        "the write with token {late} after token {next} returned {again:?}"
    );
    ensure!(register.get() == "next", "the resource was overwritten");
    Ok(())
}

/// The lock is force-released as soon as the store shows it as held, which may be before the holder
/// has its guard.
async fn of_its_own_grant(cx: Context) -> Verdict {
    /// How long the next holder keeps the lock, unless the first one gets its guard before.
    const A_WHILE: Duration = Duration::from_millis(300);
    let [a, b, c] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    for _ in 0..cx.rounds(15) {
        let key = cx.key();
        let taking = a.spawn_take(&key, renewed(LONG));
        let mut seen = None;
        eventually(SOON, "a grant to be seen in the store", async || {
            seen = admin.inspect(&key).await?.filter(|info| info.id.is_some()).map(|info| info.token);
            Ok(seen.is_some())
        })
        .await?;
        admin.force_release(&key, "conformance").await?;
        let next = c.spawn_take(&key, renewed(LONG));
        while !taking.is_finished() && !next.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if !next.is_finished() {
            // The answer to the force-release was slow, and the first client may have the lock
            // again. Then the next one waits for it.
            let token = taking.guard().await?.0.fencing_token();
            let later = next.guard().await?.0.fencing_token();
            ensure!(token != later, "a guard has the token {token} of the grant after its own");
            continue;
        }
        let (next, _) = next.guard().await?;
        let until = Instant::now() + A_WHILE;
        while !taking.is_finished() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let later = next.fencing_token();
        // If its first grant was lost, it is granted the lock once more.
        drop(next);
        let (guard, _) = taking.guard().await?;
        let token = guard.fencing_token();
        ensure!(token != later, "a guard has the token {token} of the grant after its own");
        if Some(token) > seen {
            ensure!(token > later, "a guard has the token {token}, which is between two grants, {seen:?} and {later}");
            b.ensure_busy(&key, "a guard has the token of a second grant").await?;
        }
    }
    Ok(())
}

async fn through_renewals_and_contention(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, ttl) = (cx.key(), cx.short());
    // No more often than a slow store answers.
    let guard = a.take(&key, renewed_every(ttl, ttl / 4)).await?;
    let token = guard.fencing_token();
    let _waiter = b.spawn_take(&key, renewed(LONG));
    throughout(Instant::now() + ttl * 2, async || {
        let busy = b.ensure_busy(&key, "its holder renews").await;
        ensure_in_time!(!guard.is_lost(), "a renewed lease was lost: {:?} ({busy:?})", guard.loss());
        busy?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = guard.fencing_token();
        ensure!(now == token, "a guard's token was {token}, and is {now}");
        Ok(())
    })
    .await
}

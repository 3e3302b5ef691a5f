//! The numbers that a store reports, each with an upper and a lower bound.

use std::time::Duration;

use distlock_api::{FencingToken, LockAdmin, LockInfo, LockKey, Mode};
use distlock_engine::store::{Attempt, BusyReply, Grant, Ticket};
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE, last};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::need::Need;

checks! {
    C5 store_tells_true_anchors [Store]
        "The clock and the token of a busy answer are those of the store at that moment: the \
         clock counts the time between two answers, and the token is neither below that of the \
         present grant nor above that of the next. A failure means that a pushed grant is not \
         believed, or that an old one is.";
    C15 store_tells_waiters_their_turn [Store, Fair]
        "A waiter is told the time until its turn: what is left of the lease, and one turn window \
         for each ticket ahead. A failure means that waiters poll too early, or sleep through \
         their turn.";
    C22 store_shows_true_numbers [Store, Admin]
        "An inspection shows the token, the time that is left and the number of waiters as they \
         are, for each holder its own. A failure means that an operator acts on wrong numbers.";
}

/// A busy answer, and the moments between which the store gave it.
struct Told {
    asked: Instant,
    answered: Instant,
    busy: BusyReply,
}

#[track_caller]
fn told(store: &BareStore, attempt: &Attempt) -> impl Future<Output = Result<Told, Failure>> {
    located_at_caller(async move {
        let asked = Instant::now();
        let busy = store.busy(attempt, "another claim holds the key").await?;
        Ok(Told { asked, answered: Instant::now(), busy })
    })
}

async fn store_tells_true_anchors(cx: Context) -> Verdict {
    const BETWEEN: Duration = Duration::from_millis(300);
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    // Not the first grant of the key.
    for _ in 0..2 {
        let holder = a.claim(&key);
        let grant = a.take(&holder, LEASE).await?;
        let first = told(&b, &Attempt::new(b.claim(&key), LEASE)).await?;
        sleep(BETWEEN).await;
        let second = told(&a, &Attempt::new(a.claim(&key), LEASE)).await?;
        if let (Some(before), Some(after)) = (first.busy.now, second.busy.now) {
            let seen = after.saturating_since(before);
            let (least, most) = (second.asked - first.answered, second.answered - first.asked);
            ensure!(
                seen + GRAIN >= least && seen <= most + GRAIN,
                "between two answers the store's clock has counted {seen:?} instead of {least:?} to {most:?}"
            );
        }
        a.give_back(&holder).await?;
        let next = b.claim(&key);
        let later = b.take(&next, LEASE).await?;
        for token in [first.busy.token, second.busy.token].into_iter().flatten() {
            ensure!(
                grant.token <= token && token < later.token,
                "beside {grant:?}, and before {later:?}, a busy answer has the token {token}"
            );
        }
        b.give_back(&next).await?;
    }
    Ok(())
}

async fn store_tells_waiters_their_turn(cx: Context) -> Verdict {
    const WINDOW: Duration = Duration::from_millis(7_500);
    let [a, b] = cx.stores().await?;
    let (key, ticket) = (cx.key(), Ticket::new(LEASE, LEASE, 10));
    let begun = Instant::now();
    a.take(&a.claim(&key), LEASE).await?;
    for ahead in 0..3 {
        let attempt = b.attempt(&b.claim(&key), LEASE).with_turn_window(WINDOW).with_ticket(ticket);
        let Told { answered, busy, .. } = told(&b, &attempt).await?;
        let Some(left) = busy.holder_remaining else { continue };
        let (turn, passed) = (LEASE + WINDOW * ahead, answered - begun);
        ensure!(
            left <= turn && left + passed + GRAIN >= turn,
            "{passed:?} after a grant for {LEASE:?} a waiter with {ahead} before it, a turn window of {WINDOW:?} each, \
             was told to wait {left:?}"
        );
    }
    Ok(())
}

#[track_caller]
fn inspected(admin: &dyn LockAdmin, key: &LockKey) -> impl Future<Output = Result<LockInfo, Failure>> {
    located_at_caller(async move {
        admin.inspect(key).await?.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))
    })
}

/// Whether a time that is shown may be left of a lease that was granted since then.
fn is_left(left: Duration, ttl: Duration, since: Instant) -> bool {
    left <= ttl && left + since.elapsed() + GRAIN >= ttl
}

async fn store_shows_true_numbers(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let admin = b.admin()?;
    let (key, since) = (cx.key(), Instant::now());
    let holder = a.claim(&key);
    let grant = a.take(&holder, LEASE).await?;
    let is_token = |token: FencingToken, grant: &Grant| grant.token <= token && token <= last(grant);
    for waiting in 0..3 {
        let info = inspected(admin, &key).await?;
        ensure!(
            is_left(info.remaining, LEASE, since) && is_token(info.token, &grant),
            "{grant:?} of {:?} ago, for {LEASE:?}, is shown as {info:?}",
            since.elapsed()
        );
        if !cx.profile().has(Need::Fair) {
            break;
        }
        ensure!(info.waiting.is_none_or(|seen| seen == waiting), "{waiting} claims wait for what is shown as {info:?}");
        b.queued(&b.claim(&key), Ticket::new(LEASE, LEASE, 10), waiting).await?;
    }
    if !cx.profile().has(Need::Shared) {
        return Ok(());
    }
    let key = cx.key();
    let mut grants = Vec::new();
    for ttl in [LEASE / 2, LEASE] {
        let since = Instant::now();
        let claim = a.claim_as(&key, Mode::Shared);
        grants.push((claim.clone(), a.take(&claim, ttl).await?, ttl, since));
    }
    let info = inspected(admin, &key).await?;
    ensure!(info.holders.len() == grants.len(), "a key with two holders is shown as {info:?}");
    for (holder, (claim, grant, ttl, since)) in info.holders.iter().zip(&grants) {
        let is_right =
            holder.id == *claim.id() && is_left(holder.remaining, *ttl, *since) && is_token(holder.token, grant);
        ensure!(is_right, "{grant:?} of {:?} ago, for {ttl:?}, is shown as {holder:?}", since.elapsed());
    }
    Ok(())
}

//! Tickets, and the lease that a release passes on.

use std::time::Duration;

use distlock_engine::store::{QueueStanding, Renewal, Reply, Standing, Ticket};
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE};
use crate::bounded::{GRAIN, SOON};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Verdict, ensure, said_by_caller};

checks! {
    C15 store_queues_in_order Smoke [Store, Fair] "waiters stand in the order of their first attempts, keep their places when they ask again, and are granted in that order by the releases";
    C15 store_passes_on_what_was_asked [Store, Fair] "the lease that a release passes on lasts for the ticket's claim, and has the tokens that the waiter asked for";
    C15 store_bounds_its_queue [Store, Fair] "a queue takes as many tickets as its capacity, refuses the next, and keeps those that it has";
    C15 store_refreshes_no_ticket_into_being [Store, Fair] "a refresh finds a ticket that is there, and never adds one";
    C15 store_drops_dead_tickets [Store, Fair] "a ticket that was not refreshed for its ttl stands in the way of no other";
    C11 store_lets_waiters_leave [Store, Fair] "a waiter that is withdrawn leaves no ticket, and those behind it move up";
}

const TICKET: Ticket = Ticket::new(LEASE, CLAIM, 100);
/// How long a lease lasts that was passed on: far above what a busy machine needs to look at it.
const CLAIM: Duration = Duration::from_millis(20_250);

/// This many wait for the key, if the store can tell.
#[track_caller]
fn ensure_waiting(
    store: &BareStore,
    claim: &distlock_engine::store::Claim,
    count: u32,
    why: &str,
) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        let waiters = store.waiters(claim).await?;
        ensure!(waiters.is_none_or(|seen| seen == count), "{why}, and the store counts {waiters:?} instead of {count}");
        Ok(())
    })
}

async fn store_queues_in_order(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.stores().await?;
    let key = cx.key();
    let holder = a.claim(&key);
    a.take(&holder, LEASE).await?;
    let waiters = [&b, &c, &d, &b].map(|store| (store, store.claim(&key)));
    for _ in 0..2 {
        for (ahead, (store, claim)) in (0..).zip(&waiters) {
            store.queued(claim, TICKET, ahead).await?;
        }
    }
    ensure_waiting(&a, &holder, 4, "four claims wait").await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease said {outcome:?}");
    for (turn, (store, claim)) in waiters.iter().enumerate() {
        let newcomer = a.attempt(&a.claim(&key), LEASE);
        a.busy(&newcomer, "the lease was passed on to a waiter").await?;
        for (other, later) in &waiters[turn + 1..] {
            other.busy(&other.attempt(later, LEASE).with_ticket(TICKET), "another waiter came before").await?;
        }
        let asks = store.attempt(claim, LEASE).with_ticket(TICKET);
        store.granted(&asks, "a release has passed the lease on to this waiter").await?;
        let outcome = store.release(claim).await?;
        ensure!(outcome.is_released(), "the release of a lease that was passed on said {outcome:?}");
    }
    a.take(&a.claim(&key), LEASE).await.map(drop)
}

async fn store_passes_on_what_was_asked(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (holder, waiter) = (a.claim(&key), b.claim(&key));
    let before = a.take(&holder, LEASE).await?;
    b.queued(&waiter, TICKET, 0).await?;
    let since = Instant::now();
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease said {outcome:?}");
    match b.renew(&Renewal::ticket(waiter.clone(), TICKET)).await? {
        Standing::Held { remaining } => ensure!(remaining <= CLAIM, "a claim of {CLAIM:?} has {remaining:?} left"),
        Standing::Gone(_) => {}
        other => ensure!(false, "the ticket of a waiter that was granted the lease was answered {other:?}"),
    }
    if let Some(left) = a.left(&key).await? {
        let passed = since.elapsed();
        ensure!(left <= CLAIM, "a claim of {CLAIM:?} has {left:?} left");
        ensure!(left + passed + GRAIN >= CLAIM, "a claim of {CLAIM:?} has {left:?} left after {passed:?}");
    }
    let asks = b.attempt(&waiter, LEASE).with_ticket(TICKET);
    let grant = b.granted(&asks, "a release has passed the lease on to this waiter").await?;
    ensure!(grant.tokens == asks.tokens, "{} tokens were asked for, and granted: {grant:?}", asks.tokens);
    ensure!(grant.token > crate::bare::last(&before), "after {before:?} was granted {grant:?}");
    b.ensure_held(&waiter, &grant, "a release has passed the lease on").await
}

async fn store_bounds_its_queue(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let holder = a.claim(&key);
    a.take(&holder, LEASE).await?;
    let ticket = Ticket::new(LEASE, CLAIM, 2);
    let (first, second) = (b.claim(&key), a.claim(&key));
    b.queued(&first, ticket, 0).await?;
    a.queued(&second, ticket, 1).await?;
    for store in [&a, &b] {
        let refused = store.attempt(&store.claim(&key), LEASE).with_ticket(ticket);
        let busy = store.busy(&refused, "the key is held").await?;
        ensure!(busy.standing == QueueStanding::Full, "the third ticket of two was answered {:?}", busy.standing);
    }
    ensure_waiting(&a, &holder, 2, "a queue for two is full").await?;
    b.queued(&first, ticket, 0).await?;
    a.queued(&second, ticket, 1).await.map(drop)
}

async fn store_refreshes_no_ticket_into_being(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (holder, waiter) = (a.claim(&key), b.claim(&key));
    a.take(&holder, LEASE).await?;
    let refresh = Renewal::ticket(waiter.clone(), TICKET);
    b.ensure_gone(&refresh, "the claim has no ticket").await?;
    ensure_waiting(&a, &holder, 0, "only a refresh was sent").await?;
    b.queued(&waiter, TICKET, 0).await?;
    let standing = b.renew(&refresh).await?;
    ensure!(matches!(standing, Standing::Waiting(_)), "the refresh of a live ticket was answered {standing:?}");
    b.withdraw(&waiter).await?;
    b.ensure_gone(&refresh, "the ticket was withdrawn").await?;
    ensure_waiting(&a, &holder, 0, "the only ticket was withdrawn").await
}

async fn store_drops_dead_tickets(cx: Context) -> Verdict {
    const BRIEF: Duration = Duration::from_millis(100);
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (holder, dead, alive) = (a.claim(&key), b.claim(&key), a.claim(&key));
    a.take(&holder, LEASE).await?;
    b.queued(&dead, Ticket::new(BRIEF, CLAIM, 100), 0).await?;
    sleep(BRIEF * 2).await;
    a.queued(&alive, TICKET, 0).await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease said {outcome:?}");
    let asks = a.attempt(&alive, LEASE).with_ticket(TICKET);
    a.granted(&asks, "the ticket before was not refreshed for twice its ttl").await.map(drop)
}

async fn store_lets_waiters_leave(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let (holder, leaver, waiter) = (a.claim(&key), b.claim(&key), c.claim(&key));
    a.take(&holder, LEASE).await?;
    b.queued(&leaver, TICKET, 0).await?;
    c.queued(&waiter, TICKET, 1).await?;
    b.withdraw(&leaver).await?;
    c.queued(&waiter, TICKET, 0).await?;
    ensure_waiting(&a, &holder, 1, "one of two waiters has left").await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease said {outcome:?}");
    b.ensure_gone(&Renewal::ticket(leaver, TICKET), "the waiter has left").await?;
    let asks = c.attempt(&waiter, LEASE).with_ticket(TICKET);
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        if let Reply::Granted(_) = c.ask(&asks).await?? {
            return Ok(());
        }
        sleep(GRAIN * 5).await;
    }
    ensure!(false, "the waiter behind one that left has not been granted the lease");
    Ok(())
}

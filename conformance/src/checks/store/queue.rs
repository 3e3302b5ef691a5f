//! Tickets, and the lease that a release hands over.

use std::time::Duration;

use distlock_engine::store::{QueueStanding, Renewal, Reply, Standing, Ticket};
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE};
use crate::bounded::{GRAIN, SOON};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C15 store_queues_in_order Smoke [Store, Fair]
        "Waiters stand in the order of their first attempts, keep their places when they repeat \
         them, and are granted the lease in that order. A failure means that a waiter can be \
         overtaken.";
    C15 store_hands_over_what_was_requested [Store, Fair]
        "A lease that a release hands over lasts for the ticket's claim window, and has the tokens \
         that the waiter requested. A failure means that a dead waiter blocks the queue, or that a \
         live one gets wrong tokens.";
    C15 store_bounds_its_queue [Store, Fair]
        "A queue takes as many tickets as its capacity, refuses the next, and keeps those that it \
         has. A failure means that a queue can grow without limit, or loses waiters.";
    C15 store_refresh_adds_no_ticket [Store, Fair]
        "A refresh finds an existing ticket, and never adds one. A failure means that a waiter \
         that has left comes back into the queue.";
    C15 store_keeps_the_ticket_of_a_mere_attempt [Store, Fair]
        "An attempt without a ticket, by a claim that has one, has the place of that ticket, and \
         leaves it there. A failure means that a waiter that looks once loses its place, or stands \
         in the queue twice.";
    C15 store_drops_dead_tickets [Store, Fair]
        "A ticket that was not refreshed for its ttl delays no other waiter. A failure means that \
         dead waiters block the queue.";
    C11 store_lets_waiters_leave [Store, Fair]
        "A withdrawn waiter leaves no ticket, and those behind it move up. A failure means that \
         the others wait for a waiter that has left.";
}

const TICKET: Ticket = Ticket::new(LEASE, CLAIM, 100);
/// The claim window of a lease that was handed over: far longer than a busy machine needs to
/// examine it.
const CLAIM: Duration = Duration::from_millis(20_250);

/// Ensures that `count` claims wait for the key, if the store can count them.
#[track_caller]
fn ensure_waiting(
    store: &BareStore,
    claim: &distlock_engine::store::Claim,
    count: u32,
    why: &str,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
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
    for (ahead, (store, claim)) in (0..).zip(&waiters) {
        let standing = match store.renew(&Renewal::ticket(claim.clone(), TICKET)).await? {
            Standing::Waiting(busy) => busy.standing,
            other => return Err(Failure::new(format!("the refresh of a live ticket was answered {other:?}"))),
        };
        ensure!(
            standing == QueueStanding::Queued { ahead },
            "the refresh of a ticket with {ahead} before it was answered {standing:?}"
        );
    }
    ensure_waiting(&a, &holder, 4, "four claims wait").await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
    for (turn, (store, claim)) in waiters.iter().enumerate() {
        let newcomer = a.attempt(&a.claim(&key), LEASE);
        a.busy(&newcomer, "the lease was handed to a waiter").await?;
        for (other, later) in &waiters[turn + 1..] {
            other.busy(&other.attempt(later, LEASE).with_ticket(TICKET), "another waiter arrived before").await?;
        }
        let attempt = store.attempt(claim, LEASE).with_ticket(TICKET);
        store.granted(&attempt, "a release has handed the lease to this waiter").await?;
        let outcome = store.release(claim).await?;
        ensure!(outcome.is_released(), "the release of a lease that was handed over returned {outcome:?}");
    }
    a.take(&a.claim(&key), LEASE).await.map(drop)
}

async fn store_hands_over_what_was_requested(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (holder, waiter) = (a.claim(&key), b.claim(&key));
    let before = a.take(&holder, LEASE).await?;
    b.queued(&waiter, TICKET, 0).await?;
    let since = Instant::now();
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
    match b.renew(&Renewal::ticket(waiter.clone(), TICKET)).await? {
        Standing::Held { remaining } => {
            ensure!(remaining <= CLAIM, "a claim window of {CLAIM:?} has {remaining:?} left");
        }
        Standing::Gone(_) => {}
        other => ensure!(false, "the refresh of a waiter that was granted the lease was answered {other:?}"),
    }
    if let Some(left) = a.left(&key).await? {
        let passed = since.elapsed();
        ensure!(left <= CLAIM, "a claim window of {CLAIM:?} has {left:?} left");
        ensure!(left + passed + GRAIN >= CLAIM, "a claim window of {CLAIM:?} has {left:?} left after {passed:?}");
    }
    let attempt = b.attempt(&waiter, LEASE).with_ticket(TICKET);
    let grant = b.granted(&attempt, "a release has handed the lease to this waiter").await?;
    ensure!(
        grant.tokens == attempt.tokens,
        "{} tokens were requested, and the store granted {grant:?}",
        attempt.tokens
    );
    ensure!(
        grant.token > crate::bare::last(&before),
        "after {before:?} the store granted {grant:?}, whose token is not greater"
    );
    b.ensure_held(&waiter, &grant, "a release has handed the lease over").await
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
        ensure!(
            busy.standing == QueueStanding::Full,
            "the third ticket of a queue for two was answered {:?}",
            busy.standing
        );
    }
    ensure_waiting(&a, &holder, 2, "a queue for two is full").await?;
    b.queued(&first, ticket, 0).await?;
    a.queued(&second, ticket, 1).await.map(drop)
}

async fn store_refresh_adds_no_ticket(cx: Context) -> Verdict {
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

async fn store_keeps_the_ticket_of_a_mere_attempt(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let (holder, first, second) = (a.claim(&key), b.claim(&key), c.claim(&key));
    a.take(&holder, LEASE).await?;
    b.queued(&first, TICKET, 0).await?;
    c.queued(&second, TICKET, 1).await?;
    for (store, claim, ahead) in [(&b, &first, 0), (&c, &second, 1)] {
        let standing = store.busy(&store.attempt(claim, LEASE), "another claim holds the key").await?.standing;
        ensure!(
            matches!(standing, QueueStanding::NotQueued) || standing == QueueStanding::Queued { ahead },
            "an attempt without a ticket, by a claim that has one with {ahead} before it, was answered {standing:?}"
        );
    }
    for (store, claim, ahead) in [(&b, &first, 0), (&c, &second, 1)] {
        let standing = store.renew(&Renewal::ticket(claim.clone(), TICKET)).await?;
        let is_there = matches!(&standing, Standing::Waiting(busy) if busy.standing == QueueStanding::Queued { ahead });
        ensure!(
            is_there,
            "after an attempt without a ticket the refresh of one with {ahead} before it was answered {standing:?}"
        );
    }
    ensure_waiting(&a, &holder, 2, "two claims wait, and have made further attempts").await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
    c.busy(&c.attempt(&second, LEASE), "a release has handed the lease to the waiter before").await?;
    b.granted(&b.attempt(&first, LEASE), "a release has handed the lease to this waiter").await?;
    ensure_waiting(&a, &holder, 1, "one of two waiters was granted the lease").await
}

async fn store_drops_dead_tickets(cx: Context) -> Verdict {
    const BRIEF: Duration = Duration::from_millis(100);
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (holder, dead, alive) = (a.claim(&key), b.claim(&key), a.claim(&key));
    a.take(&holder, LEASE).await?;
    b.queued(&dead, Ticket::new(BRIEF, CLAIM, 100), 0).await?;
    sleep(BRIEF * 2).await;
    ensure_waiting(&a, &holder, 0, "the only ticket was not refreshed for twice its ttl").await?;
    a.queued(&alive, TICKET, 0).await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
    let attempt = a.attempt(&alive, LEASE).with_ticket(TICKET);
    a.granted(&attempt, "the ticket before was not refreshed for twice its ttl").await.map(drop)
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
    ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
    b.ensure_gone(&Renewal::ticket(leaver, TICKET), "the waiter has left").await?;
    let attempt = c.attempt(&waiter, LEASE).with_ticket(TICKET);
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        if let Reply::Granted(_) = c.ask(&attempt).await?? {
            return Ok(());
        }
        sleep(GRAIN * 5).await;
    }
    ensure!(false, "the waiter behind one that left was not granted the lease");
    Ok(())
}

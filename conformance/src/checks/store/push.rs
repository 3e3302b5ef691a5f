//! Events that a store pushes.

use std::time::Duration;

use distlock_engine::store::{StoreEvent, Ticket};
use tokio::time::Instant;

use crate::bare::{LEASE, event, last};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Verdict, ensure};

checks! {
    C16 store_pushes_grants [Store, Fair, Push]
        "A waiter to which a release hands the lease receives an event with the tokens and the \
         expiry that the store has. A failure means that waiters depend on polling, or get a wrong \
         deadline.";
    C4 store_pushes_losses [Store, Push, Admin]
        "A holder whose lock is taken away by force receives an event with a token above its own, \
         and not above that of its claim's next lease. A failure means that the victim notices \
         only at its next renewal, or that the event ends a later lease.";
    C16 store_pushes_openings [Store, Push, Admin]
        "A key that a force-release opens is reported to the claims that do not hold it. A failure \
         means that waiters notice only at their next poll.";
}

/// A claim window that is not the ttl.
const CLAIM: Duration = Duration::from_millis(60_125);

async fn store_pushes_grants(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let (key, ticket) = (cx.key(), Ticket::new(LEASE, CLAIM, 10));
    let (holder, waiter) = (a.claim(&key), b.claim(&key));
    let mut events = b.watch().await?;
    a.take(&holder, LEASE).await?;
    let asked = Instant::now();
    let busy = b.queued(&waiter, ticket, 0).await?;
    let outcome = a.release(&holder).await?;
    ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
    let passed = asked.elapsed();
    let (pushed, expires_at) = event(&mut events, "the event of the grant", |event| match event {
        StoreEvent::Granted { key: of, id, grant, expires_at } if of == key && id == *waiter.id() => {
            Some((grant, expires_at))
        }
        _ => None,
    })
    .await?;
    if let Some(now) = busy.now {
        // From the waiter's attempt to the grant, and from there to its expiry.
        let lasts = expires_at.saturating_since(now);
        let (least, most) = (CLAIM.saturating_sub(GRAIN), CLAIM + passed + GRAIN);
        ensure!(
            (least..=most).contains(&lasts),
            "the event of a lease of {CLAIM:?} has an expiry {lasts:?} after the waiter's attempt, and the release was \
             answered {passed:?} after it"
        );
    }
    let attempt = b.attempt(&waiter, LEASE).with_ticket(ticket);
    let grant = b.granted(&attempt, "the grant was pushed").await?;
    let is_it = (pushed.token, pushed.tokens) == (grant.token, grant.tokens);
    ensure!(is_it, "the event has {pushed:?}, and the store granted {grant:?}");
    Ok(())
}

async fn store_pushes_losses(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let victim = b.claim(&key);
    let mut events = b.watch().await?;
    let grant = b.take(&victim, LEASE).await?;
    a.admin()?.force_release(&key, "conformance").await?;
    let token = event(&mut events, "the event of the loss", |event| match event {
        StoreEvent::Gone { key: of, id, token, .. } if of == key && id == *victim.id() => Some(token),
        _ => None,
    })
    .await?;
    ensure!(token > last(&grant), "the loss of {grant:?} was pushed with the token {token}, which is not above it");
    // The engine takes a lease of this claim with a smaller token for the lost one.
    let next = b.granted(&b.attempt(&victim, LEASE), "the lock was force-released").await?;
    ensure!(token <= next.token, "the loss of {grant:?} was pushed with the token {token}, which is above {next:?}");
    Ok(())
}

async fn store_pushes_openings(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let mut events = b.watch().await?;
    a.take(&a.claim(&key), LEASE).await?;
    a.admin()?.force_release(&key, "conformance").await?;
    event(&mut events, "the event of the opened key", |event| match event {
        StoreEvent::Freed { key: of } if of == key => Some(()),
        _ => None,
    })
    .await
}

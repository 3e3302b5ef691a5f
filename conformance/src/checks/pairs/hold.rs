//! C25: the minimum hold beside the queue, expiry, permits, batches, and pushes.

use std::time::Duration;

use distlock_api::{LockKey, Mode};
use distlock_engine::store::{Release, Renewal, Standing, StoreEvent};
use tokio::time::{Instant, sleep};

use super::{Due, NEVER, TICKET, granted_when_due, permits};
use crate::bare::{BareStore, LEASE, event};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C25 store_keeps_it_closed_to_waiters [Store, MinimumHold, Fair]
        "A release with a minimum hold grants the key to no waiter, keeps the tickets, and opens \
         it when the hold has passed since the grant. A failure means that a waiter shortens a \
         minimum hold, or that it counts from the release.";
    C25 store_keeps_it_closed_beyond_the_ttl [Store, MinimumHold, Expiry]
        "A minimum hold that is longer than the ttl keeps the key closed for as long as it says. \
         A failure means that the key opens when the released lease would have expired.";
    C25 store_keeps_permits [Store, MinimumHold, Permits]
        "The permits of a claim that was released stay taken until its minimum hold has passed, \
         and the others can be taken meanwhile. A failure means that the minimum hold of permits \
         is ignored, or closes the whole key.";
    C25 store_keeps_closed_what_a_batch_releases [Store, MinimumHold]
        "Each release of a batch keeps its own minimum hold. A failure means that a batch ignores \
         minimum holds, or closes keys that have none.";
    C16 store_pushes_minimum_holds [Store, MinimumHold, Push]
        "The start of a minimum hold without a holder is reported to the claims that want the key. \
         A failure means that they do not learn when it opens.";
}

const HOLD: Duration = Duration::from_millis(600);

/// Takes the key, waits, and releases it with a minimum hold. Returns when the key is to open.
#[track_caller]
fn held(store: &BareStore, mode: Mode, key: &LockKey) -> impl Future<Output = Result<Due, Failure>> {
    located_at_caller(async move {
        let claim = store.claim_as(key, mode);
        let begun = Instant::now();
        store.take(&claim, LEASE).await?;
        let ended = Instant::now();
        let outcome = store.release_as(&Release::new(claim).with_hold_at_least(HOLD)).await?;
        ensure!(outcome.is_released(), "a release with a minimum hold returned {outcome:?}");
        Ok(Due { begun, ended, after: HOLD })
    })
}

const CLOSED: &str = "since its grant the minimum hold keeps the key closed";

async fn store_keeps_it_closed_to_waiters(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let (holder, first, second) = (a.claim(&key), b.claim(&key), c.claim(&key));
    let begun = Instant::now();
    a.take(&holder, LEASE).await?;
    let ended = Instant::now();
    let attempt = b.attempt(&first, LEASE).with_ticket(TICKET);
    super::queued(&b, &attempt, TICKET, 0).await?;
    super::queued(&c, &c.attempt(&second, LEASE).with_turn_window(NEVER), TICKET, 1).await?;
    // So that the time since the release is another one.
    sleep(HOLD / 2).await;
    let outcome = a.release_as(&Release::new(holder).with_hold_at_least(HOLD)).await?;
    ensure!(outcome.is_released(), "a release with a minimum hold returned {outcome:?}");
    let refreshed = b.renew(&Renewal::ticket(first.clone(), TICKET)).await?;
    ensure!(
        matches!(refreshed, Standing::Waiting(_)) || begun.elapsed() + GRAIN >= HOLD,
        "a minimum hold keeps the key closed, and the refresh of a waiter's ticket was answered {refreshed:?}"
    );
    granted_when_due(&b, &attempt, Due { begun, ended, after: HOLD }, CLOSED).await?;
    super::ensure_waits(&c, &second, 0, "a minimum hold has passed, and the waiter before has the key").await?;
    b.give_back(&first).await?;
    let attempt = c.attempt(&second, LEASE).with_ticket(TICKET);
    c.granted(&attempt, "a release has handed the lease to this waiter").await.map(drop)
}

async fn store_keeps_it_closed_beyond_the_ttl(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let (key, ttl) = (cx.key(), cx.short());
    let (claim, after) = (a.claim(&key), ttl + HOLD);
    let begun = Instant::now();
    a.take(&claim, ttl).await?;
    let ended = Instant::now();
    let outcome = a.release_as(&Release::new(claim).with_hold_at_least(after)).await?;
    if !outcome.is_released() {
        return Err(Failure::new(format!("a release with a minimum hold returned {outcome:?}")).if_in_time());
    }
    granted_when_due(&b, &b.attempt(&b.claim(&key), LEASE), Due { begun, ended, after }, CLOSED).await
}

async fn store_keeps_permits(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let due = held(&a, permits(2, 3), &key).await?;
    let other = b.claim_as(&key, permits(1, 3));
    let why = "a minimum hold keeps two of three permits";
    let grant = b.granted(&b.attempt(&other, LEASE), why).await?;
    let two = c.attempt(&c.claim_as(&key, permits(2, 3)), LEASE);
    granted_when_due(&c, &two, due, "since their grant the minimum hold keeps two of three permits").await?;
    b.ensure_held(&other, &grant, "the minimum hold of another claim has passed").await
}

async fn store_keeps_closed_what_a_batch_releases(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let mut releases = Vec::new();
    let begun = Instant::now();
    for holds in [true, false, true] {
        let claim = a.claim(&cx.key());
        a.take(&claim, LEASE).await?;
        let release = Release::new(claim);
        releases.push(if holds { release.with_hold_at_least(HOLD) } else { release });
    }
    let ended = Instant::now();
    for (outcome, release) in a.release_all(&releases).await?.into_iter().zip(&releases) {
        let outcome = match outcome {
            Err(error) if error.is_retryable() => a.release_as(release).await?,
            outcome => outcome?,
        };
        ensure!(outcome.is_released(), "in a batch the release of a held lease returned {outcome:?}");
    }
    let attempts: Vec<_> = releases.iter().map(|of| b.attempt(&b.claim(of.claim.key()), LEASE)).collect();
    b.granted(&attempts[1], "a batch has released the key without a minimum hold").await?;
    let due = Due { begun, ended, after: HOLD };
    let (first, last) =
        tokio::join!(granted_when_due(&b, &attempts[0], due, CLOSED), granted_when_due(&b, &attempts[2], due, CLOSED));
    first.and(last)
}

async fn store_pushes_minimum_holds(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let mut events = b.watch().await?;
    held(&a, Mode::Exclusive, &key).await?;
    event(&mut events, "the event of a minimum hold that has begun", |event| match event {
        StoreEvent::Freed { key: of } if of == key => Some(()),
        _ => None,
    })
    .await
}

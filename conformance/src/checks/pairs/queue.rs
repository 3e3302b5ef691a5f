//! C15, C22: the queue beside expiry, releases by force, owners, and batches.

use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_api::{Holder, LockAdmin, LockFilter, LockKey, Mode};
use distlock_engine::store::{Renewal, Reply, Standing, Ticket};
use tokio::time::{Instant, sleep};

use super::{AFTER, CLAIM, Due, NEVER, TICKET, ensure_waits, granted_when_due, modes, patient, queued};
use crate::bare::{BareStore, LEASE, last};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::need::Need;

checks! {
    C15 store_keeps_the_order_after_an_expiry [Store, Fair, Expiry]
        "When a lease has expired, only the first waiter takes the key: one that a release has \
         granted and that was not claimed, and one that was not renewed. A failure means that \
         the death of a holder ends the order of the queue.";
    C15 store_passes_over_a_dead_head [Store, Fair, Expiry]
        "A dead waiter at the head costs those behind it one claim window after a release, and one \
         turn window after an expiry, neither less nor more. A failure means that a dead waiter \
         blocks the queue for its ticket's ttl, or that a live one is overtaken.";
    C22 store_force_keeps_the_queue [Store, Fair, Admin]
        "A force-release keeps the tickets and their order, and grants the key to none of them: \
         the first takes it by its next attempt. A failure means that waiters lose their places, \
         or hold a lease that they do not know of.";
    Admin store_shows_whom_a_release_has_granted [Store, Fair, Admin]
        "A lease that a release hands over has the owner and the metadata of the waiter. A failure \
         means that an operator sees, or takes the lock from, the wrong owner.";
    C15 store_batches_do_not_barge [Store, Fair, Admin]
        "An attempt in a batch gets no key that is free and waited for. A failure means that a \
         batch overtakes the queue.";
}

/// The claim window of a waiter that is dead.
const UNCLAIMED: Duration = Duration::from_millis(300);
/// More than there are locks of one owner.
const PAGE: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");

async fn store_keeps_the_order_after_an_expiry(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    for claimed in [false, true] {
        let key = cx.key();
        let (first, second) = (patient(&b, &b.claim(&key)), patient(&c, &c.claim(&key)));
        let holder = a.claim(&key);
        let expires = if claimed {
            let ttl = cx.short();
            a.take(&holder, ttl).await?;
            let expires = Instant::now() + ttl;
            queued(&b, &first, TICKET, 0).await.map_err(Failure::if_in_time)?;
            queued(&c, &second, TICKET, 1).await.map_err(Failure::if_in_time)?;
            expires
        } else {
            a.take(&holder, LEASE).await?;
            let dead = a.attempt(&a.claim(&key), LEASE);
            queued(&a, &dead, Ticket::new(LEASE, UNCLAIMED, 100), 0).await?;
            queued(&b, &first, TICKET, 1).await?;
            queued(&c, &second, TICKET, 2).await?;
            a.give_back(&holder).await?;
            Instant::now() + UNCLAIMED
        };
        tokio::time::sleep_until(expires + AFTER).await;
        let why = "the lease has expired, and two claims wait for the key";
        a.busy(&patient(&a, &a.claim(&key)), why).await?;
        let why = "the lease has expired, and this claim has one before it";
        c.busy(&second.clone().with_ticket(TICKET), why).await?;
        let why = "the lease has expired, and this claim is the first of the queue";
        b.granted(&first.clone().with_ticket(TICKET), why).await?;
        b.give_back(&first.claim).await?;
        c.granted(&second.with_ticket(TICKET), "the first of the queue has released the key").await?;
    }
    Ok(())
}

async fn store_passes_over_a_dead_head(cx: Context) -> Verdict {
    const WINDOW: Duration = Duration::from_millis(400);
    let [a, b, c] = cx.stores().await?;
    for by_release in [true, false] {
        let key = cx.key();
        let (holder, dead, alive) = (a.claim(&key), b.claim(&key), c.claim(&key));
        let window = if by_release { NEVER } else { WINDOW };
        let attempt = c.attempt(&alive, LEASE).with_turn_window(window).with_ticket(TICKET);
        let ttl = if by_release { LEASE } else { cx.short() };
        let begun = Instant::now();
        a.take(&holder, ttl).await?;
        let ended = Instant::now();
        let dead = b.attempt(&dead, LEASE);
        queued(&b, &dead, Ticket::new(LEASE, UNCLAIMED, 100), 0).await.map_err(Failure::if_in_time)?;
        queued(&c, &attempt, TICKET, 1).await.map_err(Failure::if_in_time)?;
        if by_release {
            let begun = Instant::now();
            a.give_back(&holder).await?;
            let due = Due { begun, ended: Instant::now(), after: UNCLAIMED };
            granted_when_due(&c, &attempt, due, "a release has granted the key to a dead waiter").await?;
        } else {
            // What is asked before would only be told to wait.
            sleep((ended + ttl).saturating_duration_since(Instant::now())).await;
            let due = Due { begun, ended, after: ttl + WINDOW };
            granted_when_due(&c, &attempt, due, "the lease and the turn of a dead waiter last").await?;
        }
    }
    Ok(())
}

async fn store_force_keeps_the_queue(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    for mode in modes(&cx) {
        let key = cx.key();
        let (first, second) = (patient(&b, &b.claim(&key)), patient(&c, &c.claim(&key)));
        let before = a.take(&a.claim_as(&key, mode), LEASE).await?;
        queued(&b, &first, TICKET, 0).await?;
        queued(&c, &second, TICKET, 1).await?;
        let taken = a.admin()?.force_release(&key, "conformance").await?;
        ensure!(taken.is_some(), "the force-release of a held lock ({mode}) returned None");
        let why = format!("the lock ({mode}) was released by force");
        ensure_waits(&b, &first.claim, 0, &why).await?;
        ensure_waits(&c, &second.claim, 1, &why).await?;
        let waiters = a.waiters(&first.claim).await?;
        ensure!(waiters.is_none_or(|seen| seen == 2), "{why}, and the store counts {waiters:?} waiters instead of 2");
        a.busy(&patient(&a, &a.claim(&key)), &format!("{why}, and two claims wait for it")).await?;
        c.busy(&second.clone().with_ticket(TICKET), &format!("{why}, and this claim has one before it")).await?;
        let grant =
            b.granted(&first.clone().with_ticket(TICKET), &format!("{why}, and this claim is the first")).await?;
        ensure!(
            grant.token > last(&before),
            "after {before:?} the next grant was {grant:?}, whose token is not greater"
        );
        b.give_back(&first.claim).await?;
        c.granted(&second.with_ticket(TICKET), "the first of the queue has released the key").await?;
    }
    if cx.profile().has(Need::Shared) {
        force_of_one_reader(&cx, [&a, &b, &c]).await?;
    }
    Ok(())
}

/// One of two readers is released by force: the writer that waits still waits for the other.
#[track_caller]
fn force_of_one_reader(cx: &Context, [a, b, c]: [&BareStore; 3]) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let key = cx.key();
        let [victim, other] = [a, b].map(|store| store.claim_as(&key, Mode::Shared));
        a.take(&victim, LEASE).await?;
        let grant = b.take(&other, LEASE).await?;
        let writer = patient(c, &c.claim(&key));
        queued(c, &writer, TICKET, 0).await?;
        a.admin()?.force_release_holder(&key, victim.id(), "conformance").await?;
        let why = "one of two readers was released by force";
        ensure_waits(c, &writer.claim, 0, why).await?;
        b.ensure_held(&other, &grant, why).await?;
        a.busy(&patient(a, &a.claim_as(&key, Mode::Shared)), "a writer waits for the key").await?;
        b.give_back(&other).await?;
        c.granted(&writer.with_ticket(TICKET), "the last reader has released the key").await.map(drop)
    })
}

fn named(owner: &str) -> Holder {
    Holder::new().with_owner(owner).with_metadata("job", format!("job of {owner}"))
}

/// Fails unless the administration shows this holder of the key, and no other.
#[track_caller]
fn ensure_shown(
    admin: &dyn LockAdmin,
    key: &LockKey,
    owner: Option<&str>,
    lists: bool,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let info = admin.inspect(key).await?.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))?;
        let job = info.metadata.get("job").cloned();
        ensure!(
            info.owner.as_deref() == owner && job == owner.map(|owner| format!("job of {owner}")),
            "a release has granted the key to {owner:?}, and it is shown with the owner {:?} and the job {job:?}",
            info.owner
        );
        for name in ["one", "two"].iter().filter(|_| lists) {
            let name = format!("{name} of {key}");
            let filter = LockFilter::new().owner(name.clone());
            let list = admin.page(&filter, None, PAGE).await?;
            let listed = list.iter().any(|info| info.key == *key);
            let should = owner == Some(&*name);
            ensure!(listed == should, "the key is held by {owner:?}, and the list of {name:?} is {list:?}");
        }
        Ok(())
    })
}

async fn store_shows_whom_a_release_has_granted(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let (key, lists) = (cx.key(), cx.profile().has(Need::Owners));
    let [one, two] = ["one", "two"].map(|name| format!("{name} of {key}"));
    let (holder, waiter, last) = (a.claim(&key), b.claim(&key), c.claim(&key));
    a.granted(&a.attempt(&holder, LEASE).with_holder(named(&one)), "the key is free").await?;
    let waiting = b.attempt(&waiter, LEASE).with_holder(named(&two));
    queued(&b, &waiting, TICKET, 0).await?;
    queued(&c, &c.attempt(&last, LEASE), TICKET, 1).await?;
    ensure_shown(a.admin()?, &key, Some(&one), lists).await?;
    a.give_back(&holder).await?;
    ensure_shown(a.admin()?, &key, Some(&two), lists).await?;
    b.granted(&waiting.with_ticket(TICKET), "a release has handed the lease to this waiter").await?;
    ensure_shown(a.admin()?, &key, Some(&two), lists).await?;
    b.give_back(&waiter).await?;
    // This one has neither an owner nor metadata.
    ensure_shown(a.admin()?, &key, None, lists).await?;
    let Some(info) = a.admin()?.inspect(&key).await? else { return Ok(()) };
    ensure!(info.id.as_ref() == Some(last.id()), "a release has handed the lease to {last:?}, and the key is {info:?}");
    let left = info.remaining;
    ensure!(left <= CLAIM, "a claim window of {CLAIM:?} is shown with {left:?} left");
    Ok(())
}

async fn store_batches_do_not_barge(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let is_free = [true, false, true, false, true];
    let (mut attempts, mut waiters) = (Vec::new(), Vec::new());
    for is_free in is_free {
        let key = cx.key();
        if !is_free {
            a.take(&a.claim(&key), LEASE).await?;
            let waiter = patient(&b, &b.claim(&key));
            queued(&b, &waiter, TICKET, 0).await?;
            a.admin()?.force_release(&key, "conformance").await?;
            waiters.push(waiter.with_ticket(TICKET));
        }
        attempts.push(patient(&a, &a.claim(&key)));
    }
    for ((answer, attempt), is_free) in a.ask_all(&attempts).await?.into_iter().zip(&attempts).zip(is_free) {
        let answer = match answer? {
            // What a batch leaves undecided is asked again, alone.
            Reply::Busy(busy) if busy.undecided => a.ask(attempt).await??,
            answer => answer,
        };
        let granted = matches!(answer, Reply::Granted(_));
        ensure!(granted == is_free, "in a batch a key, without waiters: {is_free}, was answered {answer:?}");
    }
    for waiter in &waiters {
        match b.renew(&Renewal::ticket(waiter.claim.clone(), TICKET)).await? {
            Standing::Waiting(_) => {}
            other => return Err(Failure::new(format!("a batch came by, and a waiter was answered {other:?}"))),
        }
        b.granted(waiter, "a batch came by, and this claim is the first of the queue").await?;
    }
    Ok(())
}

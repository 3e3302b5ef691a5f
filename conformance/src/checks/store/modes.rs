//! Claims of different modes at one key: who holds it together, and what a release grants.

use std::time::Duration;

use distlock_api::Mode;
use distlock_engine::store::{Claim, Grant, QueueStanding, Renewal, Standing, StoreEvent, Ticket};

use super::races::{attempt, race};
use crate::bare::{BareStore, LEASE, event, last};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C26 store_shares_a_key Smoke [Store, Shared]
        "Shared claims of several processes are granted a key together, and no exclusive claim \
         beside them. A failure means that the store ignores the mode of a claim.";
    C26 store_keeps_readers_and_writers_apart [Store, Shared]
        "When shared and exclusive claims attempt to take a free key at the same moment, either \
         one exclusive claim is granted it or all shared ones may be. A failure means that the \
         store reads and writes in two steps.";
    C27 store_counts_permits Smoke [Store, Permits]
        "Claims are granted as many permits as there are, each by its own number. A failure means \
         that the store counts holders, or by the number of another claim.";
    C27 store_grants_no_permit_twice [Store, Permits]
        "When more claims attempt to take permits at the same moment than there are, exactly as \
         many are granted. A failure means that the store reads and writes in two steps.";
    C28 store_lets_no_reader_overtake Smoke [Store, Shared, Fair]
        "A shared claim is not granted beside readers while an exclusive one waits ahead of it. A \
         failure means that readers can starve a writer.";
    C28 store_grants_the_run_at_its_head [Store, Shared, Fair]
        "A release grants the key, in one step, to all shared claims at the head of the queue, \
         with the tokens and the claim window of each, and to none behind the next exclusive one. \
         A failure means that readers wait for each other, or that one of them is overtaken.";
    C28 store_grants_what_a_leaver_kept_back [Store, Shared, Fair]
        "The withdrawal of an exclusive claim grants the key, in the same step, to the shared \
         claims behind it, beside the readers that hold it. A failure means that they wait without \
         a reason.";
    C28 store_pushes_each_grant_of_a_run [Store, Shared, Fair, Push]
        "Each waiter of a run that one release grants the key to receives an event with its own \
         tokens. A failure means that only the first of them gets an event.";
}

const TICKET: Ticket = Ticket::new(LEASE, CLAIM, 100);
const CLAIM: Duration = Duration::from_millis(20_250);

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// Takes the key by a new claim.
#[track_caller]
fn take(store: &BareStore, claim: &Claim, why: &str) -> impl Future<Output = Result<Grant, Failure>> {
    located_at_caller(async move { store.granted(&store.attempt(claim, LEASE), why).await })
}

/// Fails unless a claim is not granted.
#[track_caller]
fn ensure_busy(store: &BareStore, claim: &Claim, why: &str) -> impl Future<Output = Verdict> {
    located_at_caller(async move { store.busy(&store.attempt(claim, LEASE), why).await.map(drop) })
}

async fn store_shares_a_key(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let mut held: Vec<(&BareStore, Claim, Grant)> = Vec::new();
    for store in [&a, &b, &a] {
        let claim = store.claim_as(&key, Mode::Shared);
        let grant = take(store, &claim, "only shared claims hold the key").await?;
        if let Some((.., before)) = held.last() {
            ensure!(
                grant.token > last(before),
                "beside {before:?} the store granted {grant:?}, whose token is not greater"
            );
        }
        held.push((store, claim, grant));
    }
    for (store, claim, grant) in &held {
        store.ensure_held(claim, grant, "shared claims hold the key together").await?;
    }
    let writer = c.claim(&key);
    while let Some((store, claim, _)) = held.pop() {
        ensure_busy(&c, &writer, "shared claims hold the key").await?;
        store.give_back(&claim).await?;
        for (store, claim, grant) in &held {
            store.ensure_held(claim, grant, "another shared claim was released").await?;
        }
    }
    let grant = take(&c, &writer, "all shared claims were released").await?;
    for mode in [Mode::Shared, Mode::Exclusive] {
        ensure_busy(&a, &a.claim_as(&key, mode), "an exclusive claim holds the key").await?;
    }
    c.ensure_held(&writer, &grant, "no other claim was granted the key").await
}

async fn store_keeps_readers_and_writers_apart(cx: Context) -> Verdict {
    let stores = cx.stores::<4>().await?;
    for _ in 0..cx.rounds(40) {
        let key = cx.key();
        let modes = [Mode::Shared, Mode::Exclusive];
        let racers = stores.iter().flat_map(|store| modes.map(|mode| attempt(store, &store.claim_as(&key, mode))));
        let granted: Vec<_> = race(&cx, racers.collect()).await?.into_iter().flatten().collect();
        let writers = granted.iter().filter(|(_, claim, _)| claim.mode().is_exclusive()).count();
        let all: Vec<_> = granted.iter().map(|(_, claim, grant)| (claim.mode(), grant)).collect();
        ensure!(!all.is_empty(), "a free key was granted to none of several claims");
        ensure!(writers == 0 || all.len() == 1, "claims for a free key had these grants at the same moment: {all:?}");
        for (store, claim, grant) in &granted {
            store.ensure_held(claim, grant, "it was granted a free key").await?;
        }
    }
    Ok(())
}

async fn store_counts_permits(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let claim = |store: &BareStore, take, of| store.claim_as(&key, permits(take, of));
    let (two, one) = (claim(&a, 2, 3), claim(&b, 1, 3));
    let of_two = take(&a, &two, "the key is free").await?;
    ensure_busy(&b, &claim(&b, 2, 3), "two of three permits are held").await?;
    ensure_busy(&b, &claim(&b, 1, 2), "two permits are held, and this claim allows two").await?;
    let of_one = take(&b, &one, "one of three permits is left").await?;
    ensure!(of_one.token > last(&of_two), "beside {of_two:?} the store granted {of_one:?}, whose token is not greater");
    ensure_busy(&a, &claim(&a, 1, 3), "all three permits are held").await?;
    for mode in [Mode::Exclusive, Mode::Shared] {
        if mode.is_exclusive() || cx.profile().capabilities().shared {
            ensure_busy(&a, &a.claim_as(&key, mode), "permits of the key are held").await?;
        }
    }
    let more = claim(&a, 7, 10);
    take(&a, &more, "three permits are held, and this claim allows ten").await?;
    a.give_back(&more).await?;
    a.give_back(&two).await?;
    b.ensure_held(&one, &of_one, "the permits of another claim were released").await?;
    take(&a, &claim(&a, 2, 3), "two of three permits were released").await.map(drop)
}

async fn store_grants_no_permit_twice(cx: Context) -> Verdict {
    const OF: u32 = 3;
    let stores = cx.stores::<4>().await?;
    for _ in 0..cx.rounds(40) {
        let key = cx.key();
        let two = |store: &BareStore| [(); 2].map(|()| attempt(store, &store.claim_as(&key, permits(1, OF))));
        let granted: Vec<_> = race(&cx, stores.iter().flat_map(two).collect()).await?.into_iter().flatten().collect();
        let grants: Vec<_> = granted.iter().map(|(.., grant)| grant).collect();
        ensure!(grants.len() == OF as usize, "of {OF} permits these were granted at the same moment: {grants:?}");
        for (store, claim, grant) in &granted {
            store.ensure_held(claim, grant, "it was granted a permit").await?;
        }
    }
    Ok(())
}

async fn store_lets_no_reader_overtake(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let (reader, writer, later) = (a.claim_as(&key, Mode::Shared), b.claim(&key), c.claim_as(&key, Mode::Shared));
    take(&a, &reader, "the key is free").await?;
    b.queued(&writer, TICKET, 0).await?;
    for _ in 0..2 {
        ensure_busy(&c, &c.claim_as(&key, Mode::Shared), "an exclusive claim waits for the key").await?;
        let attempt = c.attempt(&later, LEASE).with_ticket(TICKET);
        let busy = c.busy(&attempt, "an exclusive claim waits ahead of this one").await?;
        let is_behind = busy.standing == QueueStanding::Queued { ahead: 1 };
        ensure!(is_behind, "a shared claim behind an exclusive one was answered {:?}", busy.standing);
        b.queued(&writer, TICKET, 0).await?;
    }
    a.give_back(&reader).await?;
    take(&b, &writer, "the last reader has released the key to this claim").await?;
    ensure_busy(&c, &later, "an exclusive claim holds the key").await?;
    b.give_back(&writer).await?;
    take(&c, &later, "a writer has released the key to this claim").await.map(drop)
}

/// Fails unless a waiter has been granted the key already.
#[track_caller]
fn ensure_granted(store: &BareStore, claim: &Claim, why: &str) -> impl Future<Output = Result<Grant, Failure>> {
    located_at_caller(async move {
        match store.renew(&Renewal::ticket(claim.clone(), TICKET)).await? {
            Standing::Held { remaining } => {
                ensure!(remaining <= CLAIM, "{why}, and of its claim window of {CLAIM:?} {remaining:?} are left");
            }
            // It has no ticket, so it was granted the key, or has lost its place.
            Standing::Gone(_) => {}
            other => return Err(Failure::new(format!("{why}, and the refresh of its ticket was answered {other:?}"))),
        }
        let attempt = store.attempt(claim, LEASE).with_ticket(TICKET);
        let grant = store.granted(&attempt, why).await?;
        let requested = attempt.tokens;
        ensure!(grant.tokens == requested, "{requested} tokens were requested, and the store granted {grant:?}");
        Ok(grant)
    })
}

async fn store_grants_the_run_at_its_head(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.stores().await?;
    let key = cx.key();
    let holder = a.claim(&key);
    let mut before = a.take(&holder, LEASE).await?;
    let readers = [&b, &c, &b].map(|store| (store, store.claim_as(&key, Mode::Shared)));
    for (ahead, (store, claim)) in (0..).zip(&readers) {
        store.queued(claim, TICKET, ahead).await?;
    }
    let (writer, later) = (d.claim(&key), c.claim_as(&key, Mode::Shared));
    d.queued(&writer, TICKET, 3).await?;
    c.queued(&later, TICKET, 4).await?;
    a.give_back(&holder).await?;
    let mut granted = Vec::new();
    // From behind: no attempt of an earlier one may be needed.
    for (store, claim) in readers.iter().rev() {
        granted.push(ensure_granted(store, claim, "a release has granted the key to this claim, and to others").await?);
    }
    for grant in granted.iter().rev() {
        ensure!(
            grant.token > last(&before),
            "after {before:?} the store granted {grant:?}, whose token is not greater"
        );
        before = grant.clone();
    }
    for (store, claim, ahead) in [(&d, &writer, 0), (&c, &later, 1)] {
        let busy = store.busy(&store.attempt(claim, LEASE).with_ticket(TICKET), "readers hold the key").await?;
        ensure!(
            busy.standing == QueueStanding::Queued { ahead },
            "a waiter behind readers was answered {:?}",
            busy.standing
        );
    }
    for (store, claim) in &readers {
        ensure_busy(&a, &a.claim_as(&key, Mode::Shared), "an exclusive claim waits for the key").await?;
        store.give_back(claim).await?;
    }
    ensure_granted(&d, &writer, "the last reader has released the key to this claim").await?;
    d.give_back(&writer).await?;
    ensure_granted(&c, &later, "a writer has released the key to this claim").await.map(drop)
}

async fn store_grants_what_a_leaver_kept_back(cx: Context) -> Verdict {
    let [a, b, c, d] = cx.stores().await?;
    let key = cx.key();
    let holder = a.claim_as(&key, Mode::Shared);
    let grant = take(&a, &holder, "the key is free").await?;
    let writer = b.claim(&key);
    b.queued(&writer, TICKET, 0).await?;
    let readers = [&c, &d].map(|store| (store, store.claim_as(&key, Mode::Shared)));
    for (ahead, (store, claim)) in (1..).zip(&readers) {
        store.queued(claim, TICKET, ahead).await?;
    }
    b.withdraw(&writer).await?;
    for (store, claim) in readers.iter().rev() {
        ensure_granted(store, claim, "the withdrawal of a writer has granted the key to this claim").await?;
    }
    a.ensure_held(&holder, &grant, "a waiter was withdrawn").await?;
    b.ensure_gone(&Renewal::ticket(writer, TICKET), "the writer was withdrawn").await
}

async fn store_pushes_each_grant_of_a_run(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let mut modes = vec![Mode::Shared];
    modes.extend(cx.profile().capabilities().permits.then_some(permits(1, 3)));
    for mode in modes {
        let key = cx.key();
        let holder = a.claim(&key);
        a.take(&holder, LEASE).await?;
        let mut events = b.watch().await?;
        let waiters = [(); 3].map(|()| b.claim_as(&key, mode));
        for (ahead, waiter) in (0..).zip(&waiters) {
            b.queued(waiter, TICKET, ahead).await?;
        }
        a.give_back(&holder).await?;
        let mut pushed = Vec::new();
        while pushed.len() < waiters.len() {
            let what = format!("the event of grant {} of 3 in a run", pushed.len() + 1);
            let granted = event(&mut events, &what, |event| match event {
                StoreEvent::Granted { key: of, id, grant, .. } if of == key => Some((id, grant)),
                _ => None,
            });
            let (id, grant) = granted.await?;
            if !pushed.iter().any(|(known, _)| *known == id) {
                pushed.push((id, grant));
            }
        }
        for waiter in &waiters {
            let found = pushed.iter().find(|(id, _)| id == waiter.id()).map(|(_, grant)| grant);
            let grant = b.granted(&b.attempt(waiter, LEASE).with_ticket(TICKET), "the grant was pushed").await?;
            let is_it = found.is_some_and(|pushed| (pushed.token, pushed.tokens) == (grant.token, grant.tokens));
            ensure!(is_it, "the event has {found:?}, and the store granted {grant:?}");
        }
    }
    Ok(())
}

//! Each of several holders of a key: its expiry, its renewals, its release, and its end by force.

use std::time::Duration;

use distlock_api::{FencingToken, LockKey, Mode, ReleaseOutcome};
use distlock_engine::store::{Claim, Grant, Release, Renewal, Reply, Standing};
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE, last};
use crate::bounded::{GRAIN, SOON};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};

checks! {
    C29 store_expires_each_holder [Store, Shared, Expiry]
        "The lease of one of several holders expires by itself: its claim has nothing left, the \
         others keep the key, and it is free when the last of them is released. A failure means \
         that the holders of a key have one expiry.";
    C29 store_renews_each_holder [Store, Shared, Expiry]
        "A renewal extends the lease of its own claim only, by the last token of its block. A \
         failure means that a renewal extends the lease of another holder, or that a past one is \
         accepted.";
    C10 store_repeats_a_shared_grant [Store, Shared]
        "A repeated attempt of a claim that holds a key together with others is granted the same \
         tokens, and one release ends it. A failure means that the claim holds the key twice.";
    C10 store_remembers_shared_releases [Store, Shared]
        "The repeated releases of several readers are answered like the first ones, and leave the \
         present holders alone. A failure means that a retry reports a false loss, or frees the \
         lock of another reader.";
    C5 store_tokens_grow_over_modes [Store, Shared]
        "The tokens of each grant are greater than all those granted before, whatever the modes. A \
         failure means that a fence cannot tell a stale reader or writer from its successor.";
    C14 store_answers_batches_of_all_modes [Store, Shared]
        "Each renewal of a batch of all modes has its own answer, also several of one key. A \
         failure means that a lease is reported lost, or held, by the answer for another.";
    C22 store_takes_holders_by_force [Store, Shared, Admin]
        "A force-release ends the leases of all holders of a key, or of the one that it names. A \
         failure means that a holder keeps a lock that an operator took away, or loses one that \
         was not.";
    C25 store_keeps_a_reader [Store, Shared, MinimumHold]
        "After the release of a reader with a minimum hold no exclusive claim is granted the key \
         until that has passed since the grant, and other readers are. A failure means that the store ignores the minimum \
         hold of a reader.";
}

/// A ttl that the check outlives.
const BRIEF: Duration = Duration::from_millis(200);
/// How long after its expiry a lease is examined.
const AFTER: Duration = Duration::from_millis(50);

const ENDED: &str = "the lease of this holder has expired";

async fn store_expires_each_holder(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    for brief_first in [true, false] {
        let key = cx.key();
        let (brief, long) = (a.claim_as(&key, Mode::Shared), b.claim_as(&key, Mode::Shared));
        let (of_brief, of_long) = if brief_first {
            (a.take(&brief, BRIEF).await?, b.take(&long, LEASE).await?)
        } else {
            let of_long = b.take(&long, LEASE).await?;
            (a.take(&brief, BRIEF).await?, of_long)
        };
        sleep(BRIEF + AFTER).await;
        a.ensure_gone(&Renewal::lease(brief.clone(), last(&of_brief), LEASE), ENDED).await?;
        b.ensure_held(&long, &of_long, "the lease of another holder has expired").await?;
        let outcome = a.release(&brief).await?;
        ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease returned {outcome:?}");
        let writer = a.attempt(&a.claim(&key), LEASE);
        a.busy(&writer, "of two holders one has expired").await?;
        b.give_back(&long).await?;
        let grant = a.granted(&writer, "of two holders one has expired, and one was released").await?;
        let before = last(&of_brief).max(last(&of_long));
        ensure!(grant.token > before, "after token {before} the store granted {grant:?}, whose token is not greater");
    }
    Ok(())
}

async fn store_renews_each_holder(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (renewed, other) = (a.claim_as(&key, Mode::Shared), b.claim_as(&key, Mode::Shared));
    let of_renewed = a.take(&renewed, LEASE).await?;
    let of_other = b.take(&other, BRIEF * 3).await?;
    // Its lease began before, however slow the store is.
    let granted = Instant::now();
    for wrong in [last(&of_renewed).get() + 1, last(&of_other).get() + 1, last(&of_other).get()] {
        let renewal = Renewal::lease(renewed.clone(), FencingToken::new(wrong), LEASE);
        a.ensure_gone(&renewal, &format!("the lease's last token is {}, the renewal's {wrong}", last(&of_renewed)))
            .await?;
    }
    let stranger = Renewal::lease(b.claim_as(&key, Mode::Shared), last(&of_renewed), LEASE);
    b.ensure_gone(&stranger, "another claim has this lease").await?;
    while granted.elapsed() < BRIEF * 3 + AFTER {
        match a.extend(&renewed, &of_renewed, LEASE).await? {
            Standing::Held { .. } => {}
            answer => return Err(Failure::new(format!("the renewal of one of two holders was answered {answer:?}"))),
        }
        sleep(AFTER).await;
    }
    b.ensure_gone(&Renewal::lease(other, last(&of_other), LEASE), "only the other of two holders was renewed").await?;
    a.give_back(&renewed).await?;
    let writer = b.attempt(&b.claim(&key), LEASE);
    b.granted(&writer, "the renewed holder was released, and the other one has expired").await.map(drop)
}

async fn store_repeats_a_shared_grant(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (first, second) = (a.claim_as(&key, Mode::Shared), b.claim_as(&key, Mode::Shared));
    let granted = [(&a, &first, a.take(&first, LEASE).await?), (&b, &second, b.take(&second, LEASE).await?)];
    for (store, claim, grant) in &granted {
        // The same claim, sent by another process.
        let elsewhere = || Claim::new(key.clone(), claim.id().clone()).with_mode(claim.mode());
        let sent = [(*store, (*claim).clone()), (&a, elsewhere()), (&b, elsewhere())];
        for (sender, claim) in sent {
            let again = sender.granted(&sender.attempt(&claim, LEASE), "the claim holds the key").await?;
            let is_same = (again.token, again.tokens) == (grant.token, grant.tokens);
            ensure!(is_same, "a repeated attempt was granted {again:?} instead of {grant:?}");
        }
    }
    for (store, claim, _) in &granted {
        store.give_back(claim).await?;
    }
    a.granted(&a.attempt(&a.claim(&key), LEASE), "each of two readers was released once").await.map(drop)
}

async fn store_remembers_shared_releases(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let claims = [&a, &b, &a].map(|store| (store, store.claim_as(&key, Mode::Shared)));
    for (store, claim) in &claims {
        store.take(claim, LEASE).await?;
    }
    let present = b.claim_as(&key, Mode::Shared);
    let grant = b.take(&present, LEASE).await?;
    for time in ["first", "repeated"] {
        for (store, claim) in &claims {
            let outcome = store.release(claim).await?;
            ensure!(outcome.is_released(), "the {time} release of a reader returned {outcome:?}");
        }
        b.ensure_held(&present, &grant, &format!("other readers sent their {time} releases")).await?;
    }
    b.give_back(&present).await?;
    let writer = a.claim(&key);
    let grant = a.granted(&a.attempt(&writer, LEASE), "all readers were released").await?;
    let outcome = b.release(&present).await?;
    ensure!(outcome.is_released(), "the repeated release of a reader after a writer's grant returned {outcome:?}");
    a.ensure_held(&writer, &grant, "a reader before it repeated its release").await
}

async fn store_tokens_grow_over_modes(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let mut modes = vec![Mode::Exclusive, Mode::Shared];
    modes.extend(cx.profile().capabilities().permits.then_some(Mode::Permits { take: 1, of: 3 }));
    let mut before: Option<Grant> = None;
    for (round, mode) in modes.iter().cycle().take(modes.len() * 3).enumerate() {
        let mut claims: Vec<(&BareStore, Claim)> = Vec::new();
        for store in [&a, &b, &a].into_iter().take(if mode.is_exclusive() { 1 } else { 3 }) {
            let claim = store.claim_as(&key, *mode);
            let grant = store.take(&claim, LEASE).await?;
            if let Some(before) = before.replace(grant.clone()) {
                let is_greater = grant.token > last(&before);
                ensure!(
                    is_greater,
                    "after {before:?} the next grant ({mode}) was {grant:?}, whose token is not greater"
                );
            }
            claims.push((store, claim));
        }
        // Not always the first one first.
        if round % 2 == 1 {
            claims.reverse();
        }
        for (store, claim) in &claims {
            store.give_back(claim).await?;
        }
    }
    Ok(())
}

async fn store_answers_batches_of_all_modes(cx: Context) -> Verdict {
    let [a] = cx.stores().await?;
    let base = cx.key();
    let key = |name: &str| LockKey::new(format!("{base}/{name}")).expect("a valid key");
    let mut modes = vec![("b", Mode::Shared), ("a", Mode::Exclusive), ("b", Mode::Shared), ("d", Mode::Exclusive)];
    modes.extend([("b", Mode::Shared), ("e", Mode::Shared)]);
    if cx.profile().capabilities().permits {
        modes.extend([("c", Mode::Permits { take: 1, of: 5 }), ("c", Mode::Permits { take: 2, of: 5 })]);
    }
    let mut renewals = Vec::new();
    for (place, (name, mode)) in modes.iter().enumerate() {
        let claim = a.claim_as(&key(name), *mode);
        let grant = a.take(&claim, LEASE).await?;
        let is_held = place % 3 != 1;
        // One of those that are not held has been released, another has another token.
        let mut token = last(&grant);
        match place % 3 {
            1 if place % 2 == 0 => a.give_back(&claim).await?,
            1 => token = FencingToken::new(token.get() + 1000),
            _ => {}
        }
        renewals.push((Renewal::lease(claim, token, LEASE * 2), is_held));
    }
    for _ in 0..2 {
        renewals.reverse();
        let sent: Vec<Renewal> = renewals.iter().map(|(renewal, _)| renewal.clone()).collect();
        let standings = a.extend_all(&sent).await?;
        ensure!(standings.len() == sent.len(), "{} renewals had {} answers", sent.len(), standings.len());
        for (standing, (renewal, is_held)) in standings.iter().zip(&renewals) {
            let is_right = match standing {
                Ok(Standing::Held { .. }) => *is_held,
                Ok(Standing::Gone(_)) => !is_held,
                _ => false,
            };
            let (key, mode) = (renewal.claim.key(), renewal.claim.mode());
            ensure!(
                is_right,
                "in a batch {key:?} ({mode}), held: {is_held}, was answered {standing:?}; all: {standings:?}"
            );
        }
    }
    Ok(())
}

async fn store_takes_holders_by_force(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let claims = [&a, &b, &a].map(|store| (store, store.claim_as(&key, Mode::Shared)));
    let mut grants = Vec::new();
    for (store, claim) in &claims {
        grants.push(store.take(claim, LEASE).await?);
    }
    let renewal = |at: usize| Renewal::lease(claims[at].1.clone(), last(&grants[at]), LEASE);
    let taken = b.admin()?.force_release_holder(&key, claims[1].1.id(), "conformance").await?;
    ensure!(taken.is_some(), "the force-release of one of three holders returned None");
    b.ensure_gone(&renewal(1), "this holder was released by force").await?;
    for at in [0, 2] {
        let (store, claim) = &claims[at];
        store.ensure_held(claim, &grants[at], "another holder was released by force").await?;
    }
    let outcome = b.release(&claims[1].1).await?;
    ensure!(
        outcome == ReleaseOutcome::AlreadyLost,
        "the release of a holder that was released by force returned {outcome:?}"
    );
    let taken = b.admin()?.force_release(&key, "conformance").await?;
    ensure!(taken.is_some(), "the force-release of two holders returned None");
    for at in [0, 2] {
        a.ensure_gone(&renewal(at), "all holders were released by force").await?;
    }
    let grant = b.granted(&b.attempt(&b.claim(&key), LEASE), "all holders were released by force").await?;
    let before = grants.iter().map(last).max();
    ensure!(Some(grant.token) > before, "after {before:?} the next grant was {grant:?}, whose token is not greater");
    Ok(())
}

async fn store_keeps_a_reader(cx: Context) -> Verdict {
    const HOLD: Duration = Duration::from_millis(600);
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let reader = a.claim_as(&key, Mode::Shared);
    let sent = Instant::now();
    a.take(&reader, LEASE).await?;
    let outcome = a.release_as(&Release::new(reader.clone()).with_hold_at_least(HOLD)).await?;
    ensure!(outcome.is_released(), "a release with a minimum hold returned {outcome:?}");
    let beside = b.claim_as(&key, Mode::Shared);
    b.granted(&b.attempt(&beside, LEASE), "only the minimum hold of a reader keeps the key").await?;
    b.give_back(&beside).await?;
    let writer = b.attempt(&b.claim(&key), LEASE);
    let reply = b.ask(&writer).await??;
    let passed = sent.elapsed();
    let is_early = matches!(reply, Reply::Granted(_)) && passed + GRAIN < HOLD;
    ensure!(
        !is_early,
        "{passed:?} after a reader's grant, with a minimum hold of {HOLD:?}, a writer was answered {reply:?}"
    );
    sleep((sent + HOLD + AFTER).saturating_duration_since(Instant::now())).await;
    // The store's clock started a little later.
    let late = Instant::now();
    while late.elapsed() < SOON {
        if let Reply::Granted(_) = b.ask(&writer).await?? {
            return Ok(());
        }
        sleep(GRAIN * 5).await;
    }
    Err(Failure::new(format!("a key was closed for {:?} by a reader's minimum hold of {HOLD:?}", sent.elapsed())))
}

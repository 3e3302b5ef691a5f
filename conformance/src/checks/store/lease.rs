//! Grants, renewals and releases.

use std::time::Duration;

use distlock_api::{FencingToken, LockKey, ReleaseOutcome};
use distlock_engine::store::{Claim, Grant, Release, Renewal, Standing};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE, last};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::checks::pairs::{Due, granted_when_due};
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C3 store_reports_remaining_time Smoke [Store]
        "The remaining time that a store reports for a lease is true: never more than its ttl, and \
         not less than what is left. A failure means that guards get wrong deadlines.";
    C10 store_repeats_a_grant Smoke [Store]
        "A repeated attempt of the holder is granted the same tokens, and the lease lasts at least \
         for the attempt's ttl from then on. A failure means that a retry after a lost reply \
         changes the token, or gets an old expiry.";
    C12 store_renews_from_now Smoke [Store]
        "A renewal makes a lease last for its ttl from now, not from the old expiry, and never \
         shortens it. A failure means that the store and the guard disagree about the expiry.";
    C12 store_renews_by_claim_and_token [Store]
        "Only a renewal by the claim and the last token of its block extends a lease. A failure \
         means that a past or foreign renewal can extend it.";
    C12 store_revives_nothing [Store, Expiry]
        "A renewal of an expired lease finds it gone, whether or not the key was taken over. A \
         failure means that a late renewal revives a lease that others may have seen expire.";
    C9 store_releases_by_claim Smoke [Store]
        "A release ends the lease of its own claim, reports that, and leaves every other lease \
         alone. A failure means that a release frees another holder's lock, or reports a wrong \
         outcome.";
    C9 store_release_of_the_expired [Store, Expiry]
        "The release of an expired lease returns `AlreadyLost`, and leaves its successor alone. A \
         failure means that the store ends a lease without comparing the clock.";
    C10 store_remembers_releases [Store]
        "A repeated release is answered like the first one, even after three others have held and \
         released the key, and leaves the present holder alone. A failure means that a retry \
         reports a false loss, or frees another holder's lock.";
    C5 store_tokens_grow Smoke [Store]
        "The tokens of each grant are greater than all those granted before, after a release, a \
         withdrawal and an expiry. A failure means that blocks of tokens overlap or restart.";
    C5 store_tokens_grow_after_force [Store, Admin]
        "The tokens granted after a force-release are greater than those of its victim. A failure \
         means that a resource cannot refuse the victim.";
    C11 store_withdraws_all [Store]
        "A withdrawal leaves nothing of its claim, and the withdrawal of an unknown claim affects \
         no other. A failure means that a cancelled acquisition leaves a lease behind.";
    C14 store_answers_batches_in_order [Store]
        "Each renewal of a batch has its own answer, in the order of the batch. A lease that has \
         ended does not affect the others. A failure means that a lease is reported lost, or held, \
         by the answer for another.";
    C20 store_keys_are_bytes [Store]
        "Keys that differ in a single byte are different locks, whatever a collation makes of \
         them. A failure means that the store compares keys as text.";
    C25 store_keeps_it_closed [Store, MinimumHold]
        "After a release with a minimum hold the key stays closed until that has passed since the \
         grant, and not longer. A failure means that the store ignores the minimum hold, or counts \
         it from the release.";
}

/// A ttl that the check outlives.
const BRIEF: Duration = Duration::from_millis(100);
/// How long after its expiry a lease is examined.
const AFTER: Duration = Duration::from_millis(50);

/// Ensures what is left of a lease whose ttl began at `since`, or soon after.
#[track_caller]
fn ensure_left(what: &str, left: Duration, ttl: Duration, since: Instant) -> Verdict {
    ensure!(left <= ttl, "{what} reports {left:?} left of a ttl of {ttl:?}");
    let passed = since.elapsed();
    ensure!(left + passed + GRAIN >= ttl, "{what} reports {left:?} left of a ttl of {ttl:?} after {passed:?}");
    Ok(())
}

/// Ensures the same for what the store reports to other claims, if it does.
#[track_caller]
fn ensure_seen_left(
    other: &BareStore,
    key: &LockKey,
    what: &str,
    ttl: Duration,
    since: Instant,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        match other.left(key).await? {
            Some(left) => ensure_left(what, left, ttl, since),
            None => Ok(()),
        }
    })
}

async fn store_reports_remaining_time(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    for ttl in [LEASE, Duration::from_millis(30_999), Duration::from_millis(20_001)] {
        let key = cx.key();
        let since = Instant::now();
        let grant = a.take(&a.claim(&key), ttl).await?;
        ensure_left("a grant", grant.remaining, ttl, since)?;
        ensure_seen_left(&b, &key, "an attempt of another claim", ttl, since).await?;
    }
    Ok(())
}

async fn store_repeats_a_grant(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let claim = a.claim(&key);
    let since = Instant::now();
    let first = a.take(&claim, LEASE).await?;
    for (ttl, lasts) in [(LEASE / 2, LEASE), (LEASE * 2, LEASE * 2)] {
        let since = if lasts > LEASE { Instant::now() } else { since };
        let again = a.granted(&a.attempt(&claim, ttl), "the claim holds the lease").await?;
        let tokens = |grant: &Grant| (grant.token, grant.tokens);
        ensure!(tokens(&again) == tokens(&first), "a repeated attempt was granted {again:?} instead of {first:?}");
        ensure_left("a repeated grant", again.remaining, lasts, since)?;
        ensure_seen_left(&b, &key, "an attempt of another claim after a repeated grant", lasts, since).await?;
    }
    // The same claim, sent by another process.
    let elsewhere = Claim::new(key.clone(), claim.id().clone());
    let again = b.granted(&b.attempt(&elsewhere, LEASE), "the claim holds the lease").await?;
    ensure!(
        again.token == first.token,
        "through another store a repeated attempt was granted {again:?}, not {first:?}"
    );
    Ok(())
}

async fn store_renews_from_now(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let claim = a.claim(&key);
    let granted = Instant::now();
    let grant = a.take(&claim, LEASE).await?;
    for (ttl, lasts) in [(LEASE, LEASE), (LEASE, LEASE), (LEASE / 4, LEASE), (LEASE * 2, LEASE * 2)] {
        let sent = Instant::now();
        let since = if ttl < LEASE { granted } else { sent };
        match a.extend(&claim, &grant, ttl).await? {
            Standing::Held { remaining } => {
                ensure!(
                    remaining <= lasts,
                    "a renewal for {ttl:?} reports {remaining:?} left instead of at most {lasts:?}"
                );
                let passed = sent.elapsed();
                ensure!(
                    remaining + passed + GRAIN >= ttl,
                    "a renewal for {ttl:?} reports only {remaining:?} left after {passed:?}"
                );
            }
            other => ensure!(false, "the renewal of a held lease was answered {other:?}"),
        }
        ensure_seen_left(&b, &key, "an attempt of another claim after a renewal", lasts, since).await?;
    }
    Ok(())
}

async fn store_renews_by_claim_and_token(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let claim = a.claim(&key);
    let since = Instant::now();
    let grant = a.take(&claim, LEASE).await?;
    let right = last(&grant).get();
    for wrong in [right - 1, right + 1] {
        let renewal = Renewal::lease(claim.clone(), FencingToken::new(wrong), LEASE * 2);
        let why = format!("the lease's last token is {right}, the renewal's {wrong}");
        a.ensure_gone(&renewal, &why).await?;
    }
    let renewal = Renewal::lease(b.claim(&key), last(&grant), LEASE * 2);
    b.ensure_gone(&renewal, "another claim holds the lease").await?;
    ensure_seen_left(&b, &key, "an attempt of another claim after renewals that are not the holder's", LEASE, since)
        .await?;
    a.ensure_held(&claim, &grant, "renewals that were not the holder's came before").await
}

async fn store_revives_nothing(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (old, next) = (a.claim(&key), b.claim(&key));
    let expired = a.take(&old, BRIEF).await?;
    sleep(BRIEF + AFTER).await;
    let renewal = Renewal::lease(old.clone(), last(&expired), LEASE);
    a.ensure_gone(&renewal, "the lease has expired").await?;
    let attempt = b.attempt(&next, LEASE);
    let grant = b.granted(&attempt, "the lease has expired, a renewal came too late").await?;
    ensure!(
        grant.token > last(&expired),
        "after {expired:?} had expired the next grant was {grant:?}, whose token is not greater"
    );
    a.ensure_gone(&renewal, "another claim has taken the expired lease over").await?;
    b.ensure_held(&next, &grant, "its predecessor was renewed too late").await
}

async fn store_releases_by_claim(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (claim, other) = (a.claim(&key), b.claim(&key));
    let outcome = a.release(&claim).await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lease that never existed returned {outcome:?}");
    let grant = a.take(&claim, LEASE).await?;
    let outcome = b.release(&other).await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a claim without a lease returned {outcome:?}");
    a.ensure_held(&claim, &grant, "only another claim was released").await?;
    for time in ["first", "repeated"] {
        let outcome = a.release(&claim).await?;
        ensure!(outcome == ReleaseOutcome::Released, "the {time} release of a held lease returned {outcome:?}");
    }
    a.ensure_gone(&Renewal::lease(claim, last(&grant), LEASE), "the lease was released").await?;
    b.granted(&b.attempt(&other, LEASE), "the lease was released").await.map(drop)
}

async fn store_release_of_the_expired(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    for taken_over in [false, true] {
        let key = cx.key();
        let (old, next) = (a.claim(&key), b.claim(&key));
        a.take(&old, BRIEF).await?;
        sleep(BRIEF + AFTER).await;
        let attempt = b.attempt(&next, LEASE);
        let grant = if taken_over { Some(b.granted(&attempt, "the lease before has expired").await?) } else { None };
        let outcome = a.release(&old).await?;
        ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease returned {outcome:?}");
        match grant {
            Some(grant) => b.ensure_held(&next, &grant, "its predecessor was released after it had expired").await?,
            None => b.granted(&attempt, "the lease before has expired and was released").await.map(drop)?,
        }
    }
    Ok(())
}

async fn store_remembers_releases(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let mut past = Vec::new();
    for store in [&a, &b, &a, &b] {
        let claim = store.claim(&key);
        store.take(&claim, LEASE).await?;
        let outcome = store.release(&claim).await?;
        ensure!(outcome.is_released(), "the release of a held lease returned {outcome:?}");
        past.push((store, claim));
    }
    let present = a.claim(&key);
    let grant = a.take(&present, LEASE).await?;
    for (later, (store, claim)) in past.iter().rev().enumerate() {
        let outcome = store.release(claim).await?;
        ensure!(
            outcome.is_released(),
            "a release that was repeated after {later} other holders, while another claim holds the key, returned {outcome:?}"
        );
    }
    a.ensure_held(&present, &grant, "its predecessors repeated their releases").await
}

async fn store_tokens_grow(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let mut previous: Option<Grant> = None;
    for (round, store) in [&a, &b, &b, &a, &a, &b].into_iter().enumerate() {
        let claim = store.claim(&key);
        let (by_release, ttl) = match round % 3 {
            0 if cx.profile().capabilities().expiry => (false, BRIEF),
            1 => (false, LEASE),
            _ => (true, LEASE),
        };
        let grant = store.take(&claim, ttl).await?;
        let requested = store.attempt(&claim, ttl).tokens;
        ensure!(grant.tokens == requested, "{requested} tokens were requested, and the store granted {grant:?}");
        if let Some(before) = previous.replace(grant.clone()) {
            ensure!(
                grant.token > last(&before),
                "after {before:?} the next grant was {grant:?}, whose token is not greater"
            );
        }
        match (ttl == BRIEF, by_release) {
            (true, _) => sleep(BRIEF + AFTER).await,
            (false, true) => drop(store.release(&claim).await?),
            (false, false) => store.withdraw(&claim).await?,
        }
    }
    Ok(())
}

async fn store_tokens_grow_after_force(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let victim = a.claim(&key);
    let grant = a.take(&victim, LEASE).await?;
    let taken = b.admin()?.force_release(&key, "conformance").await?;
    let known = taken.as_ref().and_then(|info| info.id.as_ref());
    ensure!(known == Some(victim.id()), "a force-release took the lock from {taken:?}, not from {victim:?}");
    a.ensure_gone(&Renewal::lease(victim.clone(), last(&grant), LEASE), "the lock was force-released").await?;
    let again = a.granted(&a.attempt(&victim, LEASE), "the lock was force-released").await?;
    ensure!(
        again.token > last(&grant),
        "after {grant:?} was force-released the next grant was {again:?}, whose token is not greater"
    );
    Ok(())
}

async fn store_withdraws_all(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (held, unknown) = (a.claim(&key), b.claim(&key));
    let grant = a.take(&held, LEASE).await?;
    b.withdraw(&unknown).await?;
    a.ensure_held(&held, &grant, "only another claim was withdrawn").await?;
    for _ in 0..2 {
        a.withdraw(&held).await?;
    }
    a.ensure_gone(&Renewal::lease(held, last(&grant), LEASE), "the claim was withdrawn").await?;
    b.granted(&b.attempt(&unknown, LEASE), "the holder's claim was withdrawn").await.map(drop)
}

async fn store_answers_batches_in_order(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    // Neither the order of the keys nor its reverse.
    let names = ["d", "a", "f", "c", "b", "e", "g"];
    let is_held = [true, false, true, true, false, false, true];
    let mut renewals = Vec::new();
    let mut leases = Vec::new();
    for (name, is_held) in names.into_iter().zip(is_held) {
        let key = LockKey::new(format!("{base}/{name}")).expect("a valid key");
        let claim = a.claim(&key);
        let grant = a.take(&claim, LEASE).await?;
        let mut token = last(&grant);
        match (is_held, renewals.len() % 3) {
            (true, _) => {}
            (false, 1) => drop(a.release(&claim).await?),
            (false, _) => token = FencingToken::new(token.get() + 1),
        }
        renewals.push(Renewal::lease(claim.clone(), token, LEASE * 2));
        leases.push((key, claim, grant));
    }
    for reversed in [false, true] {
        let mut expected = is_held.to_vec();
        if reversed {
            renewals.reverse();
            expected.reverse();
        }
        let since = Instant::now();
        let standings = a.extend_all(&renewals).await?;
        let sent = renewals.len();
        ensure!(standings.len() == sent, "{sent} renewals had {} answers: {standings:?}", standings.len());
        for ((standing, is_held), renewal) in standings.iter().zip(&expected).zip(&renewals) {
            let is_right = match standing {
                Ok(Standing::Held { .. }) => *is_held,
                Ok(Standing::Gone(_)) => !is_held,
                _ => false,
            };
            let place = renewal.claim.key();
            ensure!(is_right, "in a batch {place:?}, held: {is_held}, was answered {standing:?}; all: {standings:?}");
        }
        for ((key, ..), _) in leases.iter().zip(is_held).filter(|(_, is_held)| *is_held) {
            ensure_seen_left(&b, key, "an attempt of another claim after a batch", LEASE * 2, since).await?;
        }
    }
    Ok(())
}

async fn store_keys_are_bytes(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let base = cx.key();
    let names = [
        "a", "A", "a ", " a", "a\t", "i", "I", "\u{131}", "\u{130}", "ss", "SS", "\u{df}", "\u{1e9e}", "\u{e9}",
        "e\u{301}", "e", "\u{ff41}", "%", "_", "1", "01", "1.0", "+", "%2B", "%2b", "a+b", "a b", "a%20b", "%25", "%%",
    ];
    let taking = names.map(async |name| {
        let key = LockKey::new(format!("{base}/{name}")).expect("a valid key");
        let claim = a.claim(&key);
        let grant = a.granted(&a.attempt(&claim, LEASE), &format!("{key:?} was never locked")).await?;
        Ok::<_, Failure>((key, claim, grant))
    });
    let held = try_join_all(taking).await?;
    let (key, first, _) = &held[0];
    let outcome = a.release(first).await?;
    ensure!(outcome.is_released(), "the release of {key:?} returned {outcome:?}");
    let looking = held[1..].iter().map(async |(key, claim, grant)| {
        let other = format!("{key:?} is held, only {:?} was released", held[0].0);
        a.ensure_held(claim, grant, &other).await?;
        b.busy(&b.attempt(&b.claim(key), LEASE), &other).await
    });
    try_join_all(looking).await.map(drop)
}

async fn store_keeps_it_closed(cx: Context) -> Verdict {
    const HOLD: Duration = Duration::from_millis(600);
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (first, next) = (a.claim(&key), b.claim(&key));
    let begun = Instant::now();
    a.take(&first, LEASE).await?;
    let due = Due { begun, ended: Instant::now(), after: HOLD };
    let outcome = a.release_as(&Release::new(first.clone()).with_hold_at_least(HOLD)).await?;
    ensure!(outcome.is_released(), "a release with a minimum hold returned {outcome:?}");
    a.ensure_gone(
        &Renewal::lease(first.clone(), FencingToken::new(1), LEASE),
        "the lease was released, and its minimum hold has not passed",
    )
    .await?;
    granted_when_due(&b, &b.attempt(&next, LEASE), due, "since the grant a minimum hold keeps the key closed").await
}

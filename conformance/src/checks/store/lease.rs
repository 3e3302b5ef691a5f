//! Grants, renewals and releases.

use std::time::Duration;

use distlock_api::{FencingToken, LockKey, ReleaseOutcome};
use distlock_engine::store::{Claim, Grant, Release, Renewal, Standing};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE, last};
use crate::bounded::GRAIN;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, said_by_caller};

checks! {
    C3 store_says_what_is_left Smoke [Store] "what a store says is left of a lease is what is left: never more than its ttl, and not less";
    C10 store_repeats_a_grant Smoke [Store] "a repeated attempt of the holder is granted the same tokens, and the lease lasts for the attempt's ttl from then on, or longer";
    C12 store_renews_from_now Smoke [Store] "a renewal makes a lease last for its ttl from now on, not from the old expiry, and never shortens it";
    C12 store_renews_by_claim_and_token [Store] "only a renewal by the claim and the last token of its block extends a lease";
    C12 store_revives_nothing [Store, Expiry] "a renewal of an expired lease finds it gone, taken over or not";
    C9 store_releases_by_claim Smoke [Store] "a release ends its own claim's lease, says so, and touches no other";
    C9 store_release_of_the_expired [Store, Expiry] "the release of an expired lease says `AlreadyLost`, and leaves its successor alone";
    C10 store_remembers_releases [Store] "a repeated release is answered as the first one, also after three others have held and released the key, and leaves the present holder alone";
    C5 store_tokens_grow Smoke [Store] "each grant's tokens are greater than all those of the grants before, after a release, a withdrawal and an expiry";
    C5 store_tokens_grow_after_force [Store, Admin] "the tokens after a release by force are greater than those of its victim";
    C11 store_withdraws_all [Store] "after a withdrawal nothing of the claim is left, and a withdrawal of what is not there harms no one";
    C14 store_answers_batches_in_order [Store] "a batch of renewals is answered one by one, in its order, and what has ended spoils nothing for the others";
    C20 store_keys_are_bytes [Store] "keys that differ in a single byte are different locks, whatever a collation says of them";
    C25 store_keeps_it_closed [Store, MinimumHold] "after a release with a minimum hold the key stays closed until that has passed since the grant, and not longer";
}

/// A ttl that the check outlives.
const BRIEF: Duration = Duration::from_millis(100);
/// How much later than its expiry a lease is looked at.
const AFTER: Duration = Duration::from_millis(50);

/// What is left of a lease that was made to last for `ttl` at `since`, or soon after.
#[track_caller]
fn ensure_left(what: &str, left: Duration, ttl: Duration, since: Instant) -> Verdict {
    ensure!(left <= ttl, "{what}: {left:?} are left of {ttl:?}");
    let passed = since.elapsed();
    ensure!(left + passed + GRAIN >= ttl, "{what}: {left:?} are left of {ttl:?} after {passed:?}");
    Ok(())
}

/// The same, as others see it, if the store tells them.
#[track_caller]
fn ensure_seen_left(
    other: &BareStore,
    key: &LockKey,
    what: &str,
    ttl: Duration,
    since: Instant,
) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        match other.left(key).await? {
            Some(left) => ensure_left(what, left, ttl, since),
            None => Ok(()),
        }
    })
}

async fn store_says_what_is_left(cx: Context) -> Verdict {
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
    // From another process, which the claim does not know.
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
                ensure!(remaining <= lasts, "a renewal for {ttl:?} was answered: {remaining:?} are left");
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
    ensure!(grant.token > last(&expired), "after {expired:?} had expired the next grant was {grant:?}");
    a.ensure_gone(&renewal, "another claim has taken the expired lease over").await?;
    b.ensure_held(&next, &grant, "its predecessor was renewed too late").await
}

async fn store_releases_by_claim(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (claim, other) = (a.claim(&key), b.claim(&key));
    let outcome = a.release(&claim).await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of a lease that never was said {outcome:?}");
    let grant = a.take(&claim, LEASE).await?;
    let outcome = b.release(&other).await?;
    ensure!(outcome == ReleaseOutcome::AlreadyLost, "a release of another claim said {outcome:?}");
    a.ensure_held(&claim, &grant, "only another claim was released").await?;
    for time in ["first", "repeated"] {
        let outcome = a.release(&claim).await?;
        ensure!(outcome == ReleaseOutcome::Released, "the {time} release of a held lease said {outcome:?}");
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
        ensure!(outcome == ReleaseOutcome::AlreadyLost, "the release of an expired lease said {outcome:?}");
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
        ensure!(outcome.is_released(), "the release of a held lease said {outcome:?}");
        past.push((store, claim));
    }
    let present = a.claim(&key);
    let grant = a.take(&present, LEASE).await?;
    for (later, (store, claim)) in past.iter().rev().enumerate() {
        let outcome = store.release(claim).await?;
        ensure!(
            outcome.is_released(),
            "a release was repeated after {later} others had held the key and released it, and one holds it: {outcome:?}"
        );
    }
    a.ensure_held(&present, &grant, "its predecessors repeated their releases").await
}

async fn store_tokens_grow(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let mut so_far: Option<Grant> = None;
    for (round, store) in [&a, &b, &b, &a, &a, &b].into_iter().enumerate() {
        let claim = store.claim(&key);
        let (is_last_way, ttl) = match round % 3 {
            0 if cx.profile().capabilities().expiry => (false, BRIEF),
            1 => (false, LEASE),
            _ => (true, LEASE),
        };
        let grant = store.take(&claim, ttl).await?;
        let asked = store.attempt(&claim, ttl).tokens;
        ensure!(grant.tokens == asked, "a grant of {asked} tokens was asked for, it was {grant:?}");
        if let Some(before) = so_far.replace(grant.clone()) {
            ensure!(grant.token > last(&before), "after {before:?} the next grant was {grant:?}");
        }
        match (ttl == BRIEF, is_last_way) {
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
    ensure!(known == Some(victim.id()), "a release by force took the lock from {taken:?}, not from {victim:?}");
    a.ensure_gone(&Renewal::lease(victim.clone(), last(&grant), LEASE), "the lock was taken away by force").await?;
    let again = a.granted(&a.attempt(&victim, LEASE), "the lock was taken away by force").await?;
    ensure!(again.token > last(&grant), "after {grant:?} was taken away by force the next grant was {again:?}");
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
        let asked = renewals.len();
        ensure!(standings.len() == asked, "{asked} renewals had {} answers: {standings:?}", standings.len());
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
        "e\u{301}", "e", "\u{ff41}", "%", "_", "1", "01", "1.0",
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
    ensure!(outcome.is_released(), "the release of {key:?} said {outcome:?}");
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
    let sent = Instant::now();
    a.take(&first, LEASE).await?;
    let outcome = a.release_as(&Release::new(first.clone()).with_hold_at_least(HOLD)).await?;
    ensure!(outcome.is_released(), "a release with a minimum hold said {outcome:?}");
    let attempt = b.attempt(&next, LEASE);
    let reply = b.ask(&attempt).await??;
    let passed = sent.elapsed();
    match &reply {
        distlock_engine::store::Reply::Busy(busy) => {
            let left = busy.holder_remaining.unwrap_or_default();
            ensure!(left <= HOLD, "a key that stays closed for {HOLD:?} was said to open in {left:?}");
        }
        granted => ensure!(passed + GRAIN >= HOLD, "{passed:?} after the grant a closed key was answered {granted:?}"),
    }
    a.ensure_gone(
        &Renewal::lease(first.clone(), FencingToken::new(1), LEASE),
        "the lease was released, its minimum hold goes on",
    )
    .await?;
    sleep((sent + HOLD + AFTER).saturating_duration_since(Instant::now())).await;
    // Its own clock started a little later.
    let late = Instant::now();
    while late.elapsed() < crate::bounded::SOON {
        if let distlock_engine::store::Reply::Granted(_) = b.ask(&attempt).await?? {
            return Ok(());
        }
        sleep(GRAIN * 5).await;
    }
    ensure!(false, "a key was closed for {:?} by a minimum hold of {HOLD:?}", sent.elapsed());
    Ok(())
}

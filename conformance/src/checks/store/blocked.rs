//! Batches in which one key is blocked at the server, so that its request fails.
//!
//! Of a store without batches, `store_isolates_a_blocked_key` examines the same.

use distlock_api::{Disposition, LockError};
use distlock_engine::store::{Attempt, Claim, Release, Renewal, Reply, Standing};
use tokio::time::sleep;

use super::hooks::{BOUND, CALM, Reported, TIMEOUT, ensure_hook, ensure_true, reported};
use crate::arena::Hook;
use crate::bare::{BareStore, LEASE, last};
use crate::bounded::within;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C14 store_renews_beside_a_blocked_key [Store, Arena, Block]
        "If one key of a batch of renewals is blocked at the server, the other leases are extended, \
         and its own renewal ends with a true error. A failure means that one locked record costs \
         the leases of others.";
    C14 store_batches_beside_a_blocked_key [Store, Arena, Block]
        "If one key of a batch of attempts, releases or withdrawals is blocked at the server, the \
         others are carried out, or can be at once, alone. Its own ends with a true error, and \
         leaves nothing behind that the error does not report. A failure means that one locked \
         record fails the requests of others.";
}

const LEN: usize = 5;
/// The place of the blocked key in a batch.
const BLOCKED: usize = 2;

/// Makes claims for keys that have records.
#[track_caller]
fn known(cx: &Context, store: &BareStore) -> impl Future<Output = Result<Vec<Claim>, Failure>> {
    located_at_caller(async move {
        let mut claims = Vec::new();
        for _ in 0..LEN {
            let before = store.claim(&cx.key());
            store.take(&before, LEASE).await?;
            store.give_back(&before).await?;
            claims.push(store.claim(before.key()));
        }
        Ok(claims)
    })
}

/// Makes claims that hold their keys.
#[track_caller]
fn held(cx: &Context, store: &BareStore) -> impl Future<Output = Result<Vec<Claim>, Failure>> {
    located_at_caller(async move {
        let claims: Vec<Claim> = (0..LEN).map(|_| store.claim(&cx.key())).collect();
        for claim in &claims {
            store.take(claim, LEASE).await?;
        }
        Ok(claims)
    })
}

/// Returns whether a request of a batch is to be made again, alone. Fails if it was not carried out
/// because of another key.
#[track_caller]
fn is_left(what: &str, error: &LockError) -> Result<(), Failure> {
    match error.disposition() {
        Disposition::Retryable => Ok(()),
        _ => Err(Failure::new(format!("beside a blocked key {what} of a batch for another one failed with {error:?}"))),
    }
}

async fn store_renews_beside_a_blocked_key(cx: Context) -> Verdict {
    let (hooks, [a]) = cx.hooked().await?;
    if a.inner().extras().batch_renew.is_none() {
        return Ok(());
    }
    let claims: Vec<Claim> = (0..LEN).map(|_| a.claim(&cx.key())).collect();
    let (mut grants, mut renewals) = (Vec::new(), Vec::new());
    for claim in &claims {
        let grant = a.take(claim, LEASE).await?;
        renewals.push(Renewal::lease(claim.clone(), last(&grant), LEASE * 2).with_timeout(TIMEOUT));
        grants.push(grant);
    }
    let blocked = hooks.begin(Hook::Block, claims[BLOCKED].key()).await?;
    let what = format!("a batch of renewals with a timeout of {TIMEOUT:?} and a blocked key to end");
    let standings = within(BOUND, &what, a.extend_all(&renewals)).await??;
    blocked.end().await?;
    ensure!(standings.len() == LEN, "{LEN} renewals had {} answers", standings.len());
    for (at, standing) in standings.iter().enumerate() {
        if at != BLOCKED {
            let is_held = matches!(standing, Ok(Standing::Held { .. }));
            ensure!(is_held, "in a batch with the blocked key {BLOCKED}, renewal {at} was answered {standing:?}");
        }
    }
    match &standings[BLOCKED] {
        Ok(standing) => ensure_hook(false, &format!("a renewal of a blocked key was answered {standing:?}"))?,
        Err(error) => {
            reported(error, true)?;
        }
    }
    sleep(CALM).await;
    for (claim, grant) in claims.iter().zip(&grants) {
        a.ensure_held(claim, grant, "it was renewed in a batch with a blocked key").await?;
    }
    Ok(())
}

async fn store_batches_beside_a_blocked_key(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    if a.inner().extras().batch.is_none() {
        return Ok(());
    }

    let claims = known(&cx, &a).await?;
    let attempts: Vec<Attempt> = claims.iter().map(|claim| a.attempt(claim, LEASE).with_timeout(TIMEOUT)).collect();
    let blocked = hooks.begin(Hook::Block, claims[BLOCKED].key()).await?;
    let answers = within(BOUND, "a batch of attempts with a blocked key to end", a.ask_all(&attempts)).await??;
    ensure!(answers.len() == LEN, "{LEN} attempts had {} answers", answers.len());
    let mut outcome = Reported::Unknown;
    for (at, (answer, attempt)) in answers.into_iter().zip(&attempts).enumerate() {
        match answer {
            Err(error) if at == BLOCKED => outcome = reported(&error, false)?,
            Ok(Reply::Busy(busy)) if at == BLOCKED && busy.undecided => {}
            Ok(answer) if at == BLOCKED => {
                ensure_hook(false, &format!("an attempt for a blocked key was answered {answer:?}"))?;
            }
            Ok(Reply::Granted(_)) => {}
            Ok(Reply::Busy(busy)) if busy.undecided => {
                a.granted(attempt, "the key is free, and a batch has not decided").await?;
            }
            Err(error) => {
                is_left("an attempt", &error)?;
                a.granted(attempt, "the key is free, and a batch has not taken it").await?;
            }
            answer => ensure!(false, "in a batch with the blocked key {BLOCKED}, attempt {at} was answered {answer:?}"),
        }
    }
    blocked.end().await?;
    sleep(CALM).await;
    ensure_true(&b, claims[BLOCKED].key(), &outcome, "an attempt in a batch").await?;
    a.withdraw(&claims[BLOCKED]).await?;
    b.take(&b.claim(claims[BLOCKED].key()), LEASE).await?;

    let claims = held(&cx, &a).await?;
    let releases: Vec<Release> = claims.iter().map(|claim| Release::new(claim.clone()).with_timeout(TIMEOUT)).collect();
    let blocked = hooks.begin(Hook::Block, claims[BLOCKED].key()).await?;
    let answers = within(BOUND, "a batch of releases with a blocked key to end", a.release_all(&releases)).await??;
    ensure!(answers.len() == LEN, "{LEN} releases had {} answers", answers.len());
    for (at, (answer, release)) in answers.into_iter().zip(&releases).enumerate() {
        let ended = match answer {
            Err(error) if at == BLOCKED => {
                outcome = reported(&error, true)?;
                continue;
            }
            Ok(ended) if at == BLOCKED => {
                ensure_hook(false, &format!("a release of a blocked key returned {ended:?}"))?;
                continue;
            }
            Ok(ended) => ended,
            Err(error) => {
                is_left("a release", &error)?;
                a.release_as(release).await?
            }
        };
        ensure!(ended.is_released(), "in a batch with the blocked key {BLOCKED}, release {at} returned {ended:?}");
    }
    blocked.end().await?;
    sleep(CALM).await;
    ensure_true(&b, claims[BLOCKED].key(), &outcome, "a release in a batch").await?;

    let claims = held(&cx, &a).await?;
    let blocked = hooks.begin(Hook::Block, claims[BLOCKED].key()).await?;
    let withdrawing = a.withdraw_all(&claims, TIMEOUT);
    let answers = within(BOUND, "a batch of withdrawals with a blocked key to end", withdrawing).await??;
    ensure!(answers.len() == LEN, "{LEN} withdrawals had {} answers", answers.len());
    for (at, (answer, claim)) in answers.into_iter().zip(&claims).enumerate() {
        match answer {
            Err(error) if at == BLOCKED => outcome = reported(&error, true)?,
            Ok(()) if at == BLOCKED => ensure_hook(false, "a withdrawal from a blocked key was answered")?,
            Ok(()) => {}
            Err(error) => {
                is_left("a withdrawal", &error)?;
                a.withdraw(claim).await?;
            }
        }
        if at != BLOCKED {
            b.take(&b.claim(claim.key()), LEASE).await?;
        }
    }
    blocked.end().await?;
    sleep(CALM).await;
    ensure_true(&b, claims[BLOCKED].key(), &outcome, "a withdrawal in a batch").await
}

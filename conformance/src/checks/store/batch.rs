//! Several attempts, or several releases, in one call.
//!
//! Stores without batches of their own answer these checks by the trait's default.

use std::future::Future;

use distlock_api::{LockKey, Mode, ReleaseOutcome};
use distlock_engine::store::{Attempt, BusyReply, Claim, Grant, Release, Renewal, Reply, Ticket};

use crate::bare::{BareStore, LEASE, last};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C14 store_answers_a_batch_of_attempts [Store]
        "Each attempt of a batch has its own answer, in the order of the batch: a key that is free \
         is granted, and one that is in use is not, whatever becomes of the others. A failure \
         means that a caller gets the answer for another key, or holds a lease unknowingly.";
    C14 store_answers_a_batch_of_releases [Store]
        "Each release of a batch has its own outcome, in the order of the batch, and ends the lease \
         of its own claim only. A failure means that a lock stays held after its release, or that \
         another holder's lock is freed.";
    C15 store_releases_a_batch_to_its_waiters [Store, Fair]
        "A release in a batch grants the key to its first waiter, or says that it must be repeated \
         alone. A failure means that a newcomer overtakes the queue.";
}

/// Neither the order of the keys nor its reverse.
const NAMES: [&str; 7] = ["d", "a", "f", "c", "b", "e", "g"];
/// Which of them are free, or held by the claim that releases them. Not the same from behind.
const MINE: [bool; 7] = [true, false, true, true, false, false, true];

fn keys(cx: &Context) -> Vec<LockKey> {
    let base = cx.key();
    NAMES.iter().map(|name| LockKey::new(format!("{base}/{name}")).expect("a valid key")).collect()
}

/// Takes the lease of each key that is not [`MINE`].
async fn take_others(store: &BareStore, keys: &[LockKey]) -> Result<Vec<Option<(Claim, Grant)>>, Failure> {
    let mut others = Vec::new();
    for (key, is_mine) in keys.iter().zip(MINE) {
        let claim = store.claim(key);
        others.push(if is_mine { None } else { Some((claim.clone(), store.take(&claim, LEASE).await?)) });
    }
    Ok(others)
}

#[track_caller]
fn ensure_untouched(store: &BareStore, others: &[Option<(Claim, Grant)>]) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        for (claim, grant) in others.iter().flatten() {
            store.ensure_held(claim, grant, "a batch of another store had this key in it").await?;
        }
        Ok(())
    })
}

async fn store_answers_a_batch_of_attempts(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let keys = keys(&cx);
    let others = take_others(&b, &keys).await?;
    // Every second one shares its key, if the store can.
    let can_share = cx.profile().capabilities().shared;
    let mode = |at: usize| if can_share && at % 2 == 1 { Mode::Shared } else { Mode::Exclusive };
    let claims = keys.iter().enumerate().map(|(at, key)| a.claim(key).with_mode(mode(at)));
    let attempts: Vec<Attempt> = claims.map(|claim| a.attempt(&claim, LEASE)).collect();
    let answers = a.ask_all(&attempts).await?;
    ensure!(answers.len() == attempts.len(), "{} attempts had {} answers", attempts.len(), answers.len());
    for ((attempt, answer), is_free) in attempts.iter().zip(answers).zip(MINE) {
        let key = attempt.claim.key();
        // What a batch leaves undecided is asked again, alone.
        let answer = match answer? {
            Reply::Busy(BusyReply { undecided: true, .. }) => a.ask(attempt).await??,
            answer => answer,
        };
        match answer {
            Reply::Granted(grant) if is_free => {
                a.ensure_held(&attempt.claim, &grant, "a batch was granted this key").await?;
                b.busy(&b.attempt(&b.claim(key), LEASE), "a batch of another store was granted this key").await?;
            }
            Reply::Busy(_) if !is_free => {}
            answer => {
                return Err(Failure::new(format!("in a batch {key:?}, free: {is_free}, was answered {answer:?}")));
            }
        }
    }
    ensure_untouched(&b, &others).await
}

async fn store_answers_a_batch_of_releases(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let keys = keys(&cx);
    let others = take_others(&b, &keys).await?;
    // Every second one shares its key, if the store can.
    let can_share = cx.profile().capabilities().shared;
    let mut held = Vec::new();
    for (key, is_mine) in keys.iter().zip(MINE) {
        let mode = if can_share && held.len() % 2 == 0 { Mode::Shared } else { Mode::Exclusive };
        let claim = a.claim(key).with_mode(mode);
        let grant = if is_mine { Some(a.take(&claim, LEASE).await?) } else { None };
        held.push((claim, grant));
    }
    let releases: Vec<Release> = held.iter().map(|(claim, _)| Release::new(claim.clone())).collect();
    let outcomes = a.release_all(&releases).await?;
    ensure!(outcomes.len() == releases.len(), "{} releases had {} outcomes", releases.len(), outcomes.len());
    for (((claim, grant), outcome), release) in held.iter().zip(outcomes).zip(&releases) {
        let key = claim.key();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            // What a batch does not release is released alone.
            Err(error) if error.is_retryable() => a.release_as(release).await?,
            Err(error) => return Err(error.into()),
        };
        match (outcome, grant) {
            (ReleaseOutcome::Released, Some(grant)) => {
                let late = Renewal::lease(claim.clone(), last(grant), LEASE);
                a.ensure_gone(&late, "a batch has released the lease").await?;
                b.take(&b.claim(key), LEASE).await?;
            }
            (ReleaseOutcome::AlreadyLost, None) => {}
            (outcome, grant) => {
                let is_held = grant.is_some();
                return Err(Failure::new(format!("in a batch {key:?}, held: {is_held}, was released as {outcome:?}")));
            }
        }
    }
    ensure_untouched(&b, &others).await
}

async fn store_releases_a_batch_to_its_waiters(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let keys = keys(&cx);
    let ticket = Ticket::new(LEASE, LEASE, 100);
    let (mut releases, mut waiters) = (Vec::new(), Vec::new());
    for (key, has_waiter) in keys.iter().zip(MINE) {
        let claim = a.claim(key);
        a.take(&claim, LEASE).await?;
        if has_waiter {
            let waiter = b.claim(key);
            b.queued(&waiter, ticket, 0).await?;
            waiters.push(waiter);
        }
        releases.push(Release::new(claim));
    }
    for (outcome, release) in a.release_all(&releases).await?.into_iter().zip(&releases) {
        let outcome = match outcome {
            Err(error) if error.is_retryable() => a.release_as(release).await?,
            outcome => outcome?,
        };
        ensure!(outcome.is_released(), "{:?} was held, and its release returned {outcome:?}", release.claim.key());
    }
    for waiter in &waiters {
        let newcomer = a.attempt(&a.claim(waiter.key()), LEASE);
        a.busy(&newcomer, "a batch has released a key that had a waiter").await?;
        let attempt = b.attempt(waiter, LEASE).with_ticket(ticket);
        b.granted(&attempt, "a batch has released the key that this waiter was the first for").await?;
    }
    Ok(())
}

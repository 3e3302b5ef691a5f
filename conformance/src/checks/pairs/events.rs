//! Events beside the queue, several holders, the minimum hold, and releases by owner.

use std::time::Duration;

use distlock_api::{Holder, LockEvent, LockFilter};
use distlock_engine::store::{Release, StoreEvent};

use super::modes;
use crate::bare::{LEASE, event, last};
use crate::check::checks;
use crate::checks::events::{holder, next, watch};
use crate::checks::fairness::until_queued;
use crate::checks::modes::{give_back, lasting};
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed};

checks! {
    Admin events_report_hand_overs [Admin, LockEvents, Fair]
        "A watcher receives the release and the grant of a hand-over, with the waiter's owner. A \
         failure means that it takes the key for free, or the wrong client for its holder.";
    Admin events_report_each_holder [Admin, LockEvents, Shared]
        "A watcher receives the grant and the end of each of several holders. A failure means that \
         it takes a key for free that others hold, or misses a holder.";
    Admin events_report_minimum_holds [Admin, LockEvents, MinimumHold]
        "A watcher receives the release of a lock that its minimum hold keeps closed, and the next \
         grant. A failure means that the end of the lease is not reported, or reported again when \
         the hold ends.";
    Admin events_report_batches [Store, Admin, LockEvents]
        "A watcher receives the grant and the release of each key of a batch. A failure means that \
         a batch is reported as one change, or not at all.";
    C4 store_pushes_losses_of_an_owner [Store, Push, Admin, Owners]
        "The holders that lose their locks to a release by owner receive events with tokens above \
         their own, and others receive none. A failure means that the victims notice only at their \
         next renewal.";
}

async fn events_report_hand_overs(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&c)?);
    let mut events = watch(admin).await?;
    let first = a.take(&key, renewed(LONG).with_owner("the first")).await?;
    let id = holder(admin, &key).await?;
    let granted = next(&mut events, &key).await?;
    ensure!(matches!(granted, LockEvent::Granted { .. }), "a grant was reported as {granted:?}");
    let waiter = b.spawn_take(&key, renewed(LONG).with_owner("the second"));
    until_queued(&cx, &b, &key, 1).await?;
    give_back(first).await?;
    let (second, _) = waiter.guard().await?;
    let ended = next(&mut events, &key).await?;
    ensure!(ended == LockEvent::Released { key: key.clone(), id }, "a hand-over was reported as {ended:?}");
    let granted = next(&mut events, &key).await?;
    let id = holder(admin, &key).await?;
    let is_right = match &granted {
        LockEvent::Granted { id: reported, token, owner, .. } => {
            *reported == id && *token >= second.fencing_token() && owner.as_deref() == Some("the second")
        }
        _ => false,
    };
    ensure!(is_right, "the grant to {id} by a release was reported as {granted:?}");
    Ok(())
}

async fn events_report_each_holder(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let admin = cx.admin(&c)?;
    for mode in modes(&cx).into_iter().filter(|mode| !mode.is_exclusive()) {
        let key = cx.key();
        let mut events = watch(admin).await?;
        let guards = [a.take(&key, lasting(mode)).await?, b.take(&key, lasting(mode)).await?];
        let info = admin.inspect(&key).await?.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))?;
        for (holder, guard) in info.holders.iter().zip(&guards) {
            let granted = next(&mut events, &key).await?;
            let is_right = match &granted {
                LockEvent::Granted { id, token, mode: reported, .. } => {
                    *id == holder.id && *token >= guard.fencing_token() && *reported == mode
                }
                _ => false,
            };
            ensure!(is_right, "the grant ({mode}) to {} was reported as {granted:?}", holder.id);
        }
        let [first, second] = guards;
        give_back(first).await?;
        let (ended, id) = (next(&mut events, &key).await?, info.holders[0].id.clone());
        let expected = LockEvent::Released { key: key.clone(), id };
        ensure!(
            ended == expected,
            "the release of one of two holders was reported as {ended:?} instead of {expected:?}"
        );
        admin.force_release(&key, "conformance").await?;
        let (ended, id) = (next(&mut events, &key).await?, info.holders[1].id.clone());
        let expected = LockEvent::ForceReleased { key: key.clone(), id };
        ensure!(ended == expected, "the force-release of a holder was reported as {ended:?} instead of {expected:?}");
        drop(second);
    }
    Ok(())
}

async fn events_report_minimum_holds(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&b)?);
    let mut events = watch(admin).await?;
    let options = renewed(LONG);
    let lease = options.lease().hold_at_least(Duration::from_millis(600));
    let guard = a.take(&key, options.with_lease(lease)).await?;
    let id = holder(admin, &key).await?;
    let granted = next(&mut events, &key).await?;
    ensure!(matches!(granted, LockEvent::Granted { .. }), "a grant was reported as {granted:?}");
    give_back(guard).await?;
    let ended = next(&mut events, &key).await?;
    ensure!(
        ended == LockEvent::Released { key: key.clone(), id },
        "the release of a lock that its minimum hold keeps closed was reported as {ended:?}"
    );
    let later = b.take(&key, renewed(LONG)).await?;
    let granted = next(&mut events, &key).await?;
    let is_right = matches!(&granted, LockEvent::Granted { token, .. } if *token >= later.fencing_token());
    ensure!(is_right, "the first grant after a minimum hold was reported as {granted:?}");
    Ok(())
}

async fn events_report_batches(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let mut watched = Vec::new();
    for _ in 0..3 {
        // Of each key alone the events are in order.
        watched.push((a.claim(&cx.key()), watch(b.admin()?).await?));
    }
    let attempts: Vec<_> = watched.iter().map(|(claim, _)| a.attempt(claim, LEASE)).collect();
    for (answer, attempt) in a.ask_all(&attempts).await?.into_iter().zip(&attempts) {
        super::batch::decided(&a, attempt, answer).await?;
    }
    let releases: Vec<_> = watched.iter().map(|(claim, _)| Release::new(claim.clone())).collect();
    for (outcome, release) in a.release_all(&releases).await?.into_iter().zip(&releases) {
        match outcome {
            Err(error) if error.is_retryable() => drop(a.release_as(release).await?),
            outcome => drop(outcome?),
        }
    }
    for (claim, events) in &mut watched {
        let granted = next(events, claim.key()).await?;
        let is_right = matches!(&granted, LockEvent::Granted { id, .. } if id == claim.id());
        ensure!(is_right, "a grant by a batch to {claim:?} was reported as {granted:?}");
        let ended = next(events, claim.key()).await?;
        let expected = LockEvent::Released { key: claim.key().clone(), id: claim.id().clone() };
        ensure!(ended == expected, "a release by a batch was reported as {ended:?} instead of {expected:?}");
    }
    Ok(())
}

async fn store_pushes_losses_of_an_owner(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let owner = format!("owner of {}", cx.key());
    let mut events = b.watch().await?;
    let other = b.claim(&cx.key());
    let attempt = b.attempt(&other, LEASE).with_holder(Holder::new().with_owner("another"));
    let kept = b.granted(&attempt, "the key is free").await?;
    let mut victims = Vec::new();
    for _ in 0..2 {
        let claim = b.claim(&cx.key());
        let attempt = b.attempt(&claim, LEASE).with_holder(Holder::new().with_owner(owner.as_str()));
        victims.push((claim, b.granted(&attempt, "the key is free").await?));
    }
    let released = a.admin()?.release_matching(&LockFilter::new().owner(owner.as_str()), "conformance").await?;
    ensure!(released == 2, "two locks have this owner, and {released} were released");
    let mut lost = Vec::new();
    while lost.len() < victims.len() {
        let what = format!("the event of loss {} of 2 by a release by owner", lost.len() + 1);
        let gone = event(&mut events, &what, |event| match event {
            StoreEvent::Gone { id, token, .. } => Some((id, token)),
            _ => None,
        });
        let (id, token) = gone.await?;
        let Some((claim, grant)) = victims.iter().find(|(claim, _)| *claim.id() == id) else {
            return Err(Failure::new(format!(
                "a release by owner has pushed the loss of {id}, which has another owner"
            )));
        };
        ensure!(token > last(grant), "the loss of {grant:?} was pushed with the token {token}, which is not above it");
        if !lost.contains(claim.id()) {
            lost.push(claim.id().clone());
        }
    }
    b.ensure_held(&other, &kept, "the locks of another owner were released").await
}

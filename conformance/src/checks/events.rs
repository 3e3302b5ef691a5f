//! Administration: the events that it reports.

use distlock_api::{AcquisitionId, ErrorKind, LockAdmin, LockEvent, LockEvents, LockKey};
use futures_util::TryStreamExt;

use crate::bare::read_at_once;
use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::child::Clock;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed};

checks! {
    Admin events_report_what_happens [Admin, LockEvents]
        "A watcher receives the grants, releases and force-releases of every client in their \
         order, and no renewals. A failure means that an event is missing, out of order, or of the \
         wrong kind.";
    Admin events_report_release_by_owner [Admin, LockEvents, Owners]
        "A watcher receives an event for each lock that is released by owner. A failure means that \
         a release by owner is not reported, or reported as a normal release.";
    Admin events_report_take_overs [Admin, LockEvents, Expiry, Processes]
        "A watcher receives an event for the expiry of a dead holder's lease when another client \
         takes the lock over. A failure means that the end of a lease is not reported.";
    Admin events_are_refused [Admin, NoLockEvents]
        "A backend that cannot report events refuses to with `Unsupported`. A failure means that a \
         watcher waits for events that never arrive.";
}

pub(super) async fn watch(admin: &dyn LockAdmin) -> Result<LockEvents, Failure> {
    Ok(read_at_once(admin.watch().await?))
}

/// The next event of a key. A gap proves nothing, so the check is repeated.
#[track_caller]
pub(super) fn next(events: &mut LockEvents, key: &LockKey) -> impl Future<Output = Result<LockEvent, Failure>> {
    located_at_caller(async move {
        within(SOON, "the next event of a key", async {
            while let Some(event) = events.try_next().await? {
                if event.key() == Some(key) {
                    return Ok(event);
                }
                if event.key().is_none() {
                    return Err(Failure::of_gap());
                }
            }
            Err(Failure::new("the stream of events has ended"))
        })
        .await?
    })
}

#[track_caller]
pub(super) fn holder(admin: &dyn LockAdmin, key: &LockKey) -> impl Future<Output = Result<AcquisitionId, Failure>> {
    located_at_caller(async move {
        let info = admin.inspect(key).await?;
        info.and_then(|info| info.id).ok_or_else(|| Failure::new("inspect shows a held lock without an id"))
    })
}

async fn events_report_what_happens(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&c)?);
    let mut events = watch(admin).await?;
    for (round, client) in [&a, &b, &a, &b].into_iter().enumerate() {
        let guard = client.take(&key, renewed(LONG).with_owner("the holder")).await?;
        let id = holder(admin, &key).await?;
        let granted = next(&mut events, &key).await?;
        // The event has the last token of the lease's block, the guard the first.
        let is_right = match &granted {
            LockEvent::Granted { id: reported, token, owner, .. } => {
                *reported == id && *token >= guard.fencing_token() && owner.as_deref() == Some("the holder")
            }
            _ => false,
        };
        ensure!(is_right, "the grant to {id}, token {}, was reported as {granted:?}", guard.fencing_token());
        let (ended, expected) = if round % 2 == 0 {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
            (next(&mut events, &key).await?, LockEvent::Released { key: key.clone(), id })
        } else {
            admin.force_release(&key, "conformance").await?;
            (next(&mut events, &key).await?, LockEvent::ForceReleased { key: key.clone(), id })
        };
        ensure!(ended == expected, "the end was reported as {ended:?} instead of {expected:?}");
    }
    Ok(())
}

async fn events_report_release_by_owner(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    let owner = cx.key().to_string();
    let keys = [cx.key(), cx.key()];
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(a.take(key, renewed(LONG).with_owner(&owner)).await?);
    }
    let (mut first, mut second) = (watch(admin).await?, watch(admin).await?);
    admin.release_owner(&owner, "conformance").await?;
    for (key, events) in keys.iter().zip([&mut first, &mut second]) {
        let reported = next(events, key).await?;
        ensure!(matches!(reported, LockEvent::ForceReleased { .. }), "a release by owner was reported as {reported:?}");
    }
    Ok(())
}

async fn events_report_take_overs(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&client)?);
    let mut child = cx.child(Clock::True).await?;
    let Some(_) = child.acquire(&key, cx.short(), false, LIVENESS).await? else {
        return Err(Failure::new("a child process was not granted a free lock"));
    };
    let dead = holder(admin, &key).await?;
    child.kill().await?;
    // This watcher has not seen the grant.
    let mut events = watch(admin).await?;
    let guard = client.take(&key, renewed(LONG)).await?;
    let expired = next(&mut events, &key).await?;
    ensure!(expired == LockEvent::Expired { key: key.clone(), id: dead }, "an expiry was reported as {expired:?}");
    let granted = next(&mut events, &key).await?;
    let LockEvent::Granted { token, .. } = granted else {
        return Err(Failure::new(format!("a take-over was reported as {granted:?}")));
    };
    ensure!(
        token >= guard.fencing_token(),
        "the event has the token {token}, which is below the guard's token {}",
        guard.fencing_token()
    );
    Ok(())
}

async fn events_are_refused(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    match cx.admin(&client)?.watch().await {
        Err(error) => {
            ensure!(
                error.kind() == ErrorKind::Unsupported,
                "watch() was refused with {error:?} instead of Unsupported"
            );
        }
        Ok(_) => return Err(Failure::new("watch() returned a stream that the profile does not declare")),
    }
    Ok(())
}

//! Administration: what it tells of locks as it happens.
use distlock_api::{AcquisitionId, ErrorKind, LockAdmin, LockEvent, LockEvents, LockKey};
use futures_util::TryStreamExt;

use crate::bounded::{LIVENESS, SOON, within};
use crate::check::checks;
use crate::child::Clock;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, said_by_caller};
use crate::leases::{LONG, renewed};

checks! {
    Admin events_tell_what_happens [Admin, LockEvents] "a watcher hears of grants, releases and releases by force, of every client and in their order, and of no renewal";
    Admin events_tell_of_owners_released [Admin, LockEvents, Owners] "a watcher hears of each lock that is released by owner";
    Admin events_tell_of_take_overs [Admin, LockEvents, Expiry, Processes] "a watcher hears that a dead holder's lease has expired when somebody takes the lock over";
    Admin events_are_refused [Admin, NoLockEvents] "a backend that does not tell what happens says so";
}

/// The next event of a key. A gap proves nothing, so it fails the check.
#[track_caller]
fn next(events: &mut LockEvents, key: &LockKey) -> impl Future<Output = Result<LockEvent, Failure>> {
    said_by_caller(async move {
        within(SOON, "the next event of a key", async {
            while let Some(event) = events.try_next().await? {
                if event.key() == Some(key) {
                    return Ok(event);
                }
                if event.key().is_none() {
                    return Err(Failure::new("the watcher may have missed something"));
                }
            }
            Err(Failure::new("the stream has ended"))
        })
        .await?
    })
}

#[track_caller]
fn holder(admin: &dyn LockAdmin, key: &LockKey) -> impl Future<Output = Result<AcquisitionId, Failure>> {
    said_by_caller(async move {
        let info = admin.inspect(key).await?;
        info.and_then(|info| info.id).ok_or_else(|| Failure::new("a held lock has no id"))
    })
}

async fn events_tell_what_happens(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&c)?);
    let mut events = admin.watch().await?;
    for (round, client) in [&a, &b, &a, &b].into_iter().enumerate() {
        let guard = client.take(&key, renewed(LONG).with_owner("the holder")).await?;
        let id = holder(admin, &key).await?;
        let granted = next(&mut events, &key).await?;
        // The token is the last of the lease's, of which the guard has the first.
        let is_told = match &granted {
            LockEvent::Granted { id: told, token, owner, .. } => {
                *told == id && *token >= guard.fencing_token() && owner.as_deref() == Some("the holder")
            }
            _ => false,
        };
        ensure!(is_told, "the grant to {id}, token {}, was told as {granted:?}", guard.fencing_token());
        let (ended, expected) = if round % 2 == 0 {
            let outcome = guard.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock said {outcome:?}");
            (next(&mut events, &key).await?, LockEvent::Released { key: key.clone(), id })
        } else {
            admin.force_release(&key, "conformance").await?;
            (next(&mut events, &key).await?, LockEvent::ForceReleased { key: key.clone(), id })
        };
        ensure!(ended == expected, "the end was told as {ended:?} instead of {expected:?}");
    }
    Ok(())
}

async fn events_tell_of_owners_released(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    let owner = cx.key().to_string();
    let keys = [cx.key(), cx.key()];
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(a.take(key, renewed(LONG).with_owner(&*owner)).await?);
    }
    let (mut first, mut second) = (admin.watch().await?, admin.watch().await?);
    admin.release_owner(&owner, "conformance").await?;
    for (key, events) in keys.iter().zip([&mut first, &mut second]) {
        let told = next(events, key).await?;
        ensure!(matches!(told, LockEvent::ForceReleased { .. }), "a release by owner was told as {told:?}");
    }
    Ok(())
}

async fn events_tell_of_take_overs(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let (key, admin) = (cx.key(), cx.admin(&client)?);
    let mut child = cx.child(Clock::True).await?;
    let Some(_) = child.acquire(&key, cx.short(), false, LIVENESS).await? else {
        return Err(Failure::new("a child process was not granted a free lock"));
    };
    let dead = holder(admin, &key).await?;
    child.kill().await?;
    // It has not seen the grant.
    let mut events = admin.watch().await?;
    let guard = client.take(&key, renewed(LONG)).await?;
    let expired = next(&mut events, &key).await?;
    ensure!(expired == LockEvent::Expired { key: key.clone(), id: dead }, "an expiry was told as {expired:?}");
    let granted = next(&mut events, &key).await?;
    let LockEvent::Granted { token, .. } = granted else {
        return Err(Failure::new(format!("a take-over was told as {granted:?}")));
    };
    ensure!(token >= guard.fencing_token(), "the guard's token is {}, the event's {token}", guard.fencing_token());
    Ok(())
}

async fn events_are_refused(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    match cx.admin(&client)?.watch().await {
        Err(error) => ensure!(error.kind() == ErrorKind::Unsupported, "the refusal is {error:?}"),
        Ok(_) => return Err(Failure::new("what is not promised was answered")),
    }
    Ok(())
}

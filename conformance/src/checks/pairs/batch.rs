//! C14: batches beside expiry, releases by force, owners, and pushes.

use distlock_api::Holder;
use distlock_engine::store::{Attempt, Claim, Grant, Release, Renewal, Reply, Standing, StoreEvent, Ticket};
use tokio::time::sleep;

use super::{AFTER, BRIEF, queued};
use crate::bare::{BareStore, LEASE, event, last};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::need::Need;

checks! {
    C14 store_batches_know_each_end [Store, Expiry]
        "In a batch of renewals and of attempts each lease has its own end: one that has expired, \
         that was released, or taken by force, is gone and free, and the others are held. A \
         failure means that one end decides for all, or that a batch revives a lease.";
    Admin store_batches_keep_each_owner [Store, Admin]
        "Each attempt of a batch keeps its own owner, metadata and number of tokens. A failure \
         means that a lock is shown, or taken away, as that of another owner.";
    C16 store_pushes_grants_of_a_batch [Store, Fair, Push]
        "The waiters to which the releases of a batch hand their keys receive the events of their \
         grants. A failure means that they depend on polling.";
}

/// What becomes of a lease before the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    None,
    Expired,
    Released,
    Forced,
}

/// Neither the same from behind nor sorted.
const ENDS: [End; 7] = [End::None, End::Expired, End::Forced, End::None, End::Released, End::Expired, End::None];

async fn store_batches_know_each_end(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let has_admin = cx.profile().has(Need::Admin);
    let mut leases: Vec<(End, Claim, Grant)> = Vec::new();
    for end in ENDS.into_iter().filter(|end| has_admin || *end != End::Forced) {
        let claim = a.claim(&cx.key());
        let grant = a.take(&claim, if end == End::Expired { BRIEF } else { LEASE }).await?;
        leases.push((end, claim, grant));
    }
    for (end, claim, _) in &leases {
        match end {
            End::Released => a.give_back(claim).await?,
            End::Forced => drop(b.admin()?.force_release(claim.key(), "conformance").await?),
            _ => {}
        }
    }
    sleep(BRIEF + AFTER).await;
    let renewals: Vec<Renewal> =
        leases.iter().map(|(_, claim, grant)| Renewal::lease(claim.clone(), last(grant), LEASE)).collect();
    let standings = a.extend_all(&renewals).await?;
    ensure!(standings.len() == leases.len(), "{} renewals had {} answers", leases.len(), standings.len());
    for (standing, (end, ..)) in standings.iter().zip(&leases) {
        let is_right = match standing {
            Ok(Standing::Held { .. }) => *end == End::None,
            Ok(Standing::Gone(_)) => *end != End::None,
            _ => false,
        };
        ensure!(is_right, "in a batch the renewal of a lease (end: {end:?}) was answered {standing:?}: {standings:?}");
    }
    let attempts: Vec<Attempt> = leases.iter().map(|(_, claim, _)| b.attempt(&b.claim(claim.key()), LEASE)).collect();
    for ((answer, attempt), (end, claim, grant)) in b.ask_all(&attempts).await?.into_iter().zip(&attempts).zip(&leases)
    {
        match decided(&b, attempt, answer).await? {
            Reply::Granted(next) if *end != End::None => {
                ensure!(
                    next.token > last(grant),
                    "after {grant:?} the next grant was {next:?}, whose token is not greater"
                );
            }
            Reply::Busy(_) if *end == End::None => a.ensure_held(claim, grant, "a batch had its key in it").await?,
            answer => {
                return Err(Failure::new(format!(
                    "in a batch the key of a lease (end: {end:?}) was answered {answer:?}"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the answer. What a batch leaves undecided is asked again, alone.
pub(super) async fn decided(
    store: &BareStore,
    attempt: &Attempt,
    answer: distlock_api::Result<Reply>,
) -> Result<Reply, Failure> {
    match answer? {
        Reply::Busy(busy) if busy.undecided => Ok(store.ask(attempt).await??),
        answer => Ok(answer),
    }
}

async fn store_batches_keep_each_owner(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let names = [Some("one"), None, Some("two"), Some("three")];
    let holder = |name: &str| Holder::new().with_owner(name).with_metadata("job", format!("job of {name}"));
    let attempts: Vec<Attempt> = names
        .iter()
        .map(|name| a.attempt(&a.claim(&cx.key()), LEASE).with_holder(name.map(holder).unwrap_or_default()))
        .collect();
    for ((answer, attempt), name) in a.ask_all(&attempts).await?.into_iter().zip(&attempts).zip(names) {
        let key = attempt.claim.key();
        let reply = decided(&a, attempt, answer).await?;
        let Reply::Granted(grant) = reply else {
            return Err(Failure::new(format!("in a batch the free key {key:?} was answered {reply:?}")));
        };
        let requested = attempt.tokens;
        ensure!(
            grant.tokens == requested,
            "{requested} tokens were requested in a batch, and the store granted {grant:?}"
        );
        let info = b.admin()?.inspect(key).await?;
        let info = info.ok_or_else(|| Failure::new("inspect shows nothing for a lock that a batch has taken"))?;
        let job = info.metadata.get("job").map(String::as_str);
        let is_right = info.owner.as_deref() == name && job == name.map(|name| format!("job of {name}")).as_deref();
        ensure!(is_right, "in a batch {name:?} has taken a key, which is shown as {info:?}");
    }
    Ok(())
}

async fn store_pushes_grants_of_a_batch(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let ticket = Ticket::new(LEASE, LEASE, 100);
    let mut events = b.watch().await?;
    let (mut releases, mut waiters) = (Vec::new(), Vec::new());
    for has_waiter in [true, false, true] {
        let holder = a.claim(&cx.key());
        a.take(&holder, LEASE).await?;
        if has_waiter {
            let waiter = b.attempt(&b.claim(holder.key()), LEASE);
            queued(&b, &waiter, ticket, 0).await?;
            waiters.push(waiter.with_ticket(ticket));
        }
        releases.push(Release::new(holder));
    }
    for (outcome, release) in a.release_all(&releases).await?.into_iter().zip(&releases) {
        let outcome = match outcome {
            Err(error) if error.is_retryable() => a.release_as(release).await?,
            outcome => outcome?,
        };
        ensure!(outcome.is_released(), "in a batch the release of a held lease returned {outcome:?}");
    }
    let mut pushed = Vec::new();
    while pushed.len() < waiters.len() {
        let what = format!("the event of grant {} of {} by a batch", pushed.len() + 1, waiters.len());
        let granted = event(&mut events, &what, |event| match event {
            StoreEvent::Granted { id, grant, .. } if waiters.iter().any(|of| *of.claim.id() == id) => Some((id, grant)),
            _ => None,
        });
        let (id, grant) = granted.await?;
        if !pushed.iter().any(|(known, _)| *known == id) {
            pushed.push((id, grant));
        }
    }
    for waiter in &waiters {
        let found = pushed.iter().find(|(id, _)| id == waiter.claim.id()).map(|(_, grant)| grant);
        let grant = b.granted(waiter, "a batch has released the key that this waiter was the first for").await?;
        let is_it = found.is_some_and(|pushed| (pushed.token, pushed.tokens) == (grant.token, grant.tokens));
        ensure!(is_it, "the event has {found:?}, and the store granted {grant:?}");
    }
    Ok(())
}

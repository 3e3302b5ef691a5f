//! Requests that are repeated because their replies were lost, beside releases by force, owners and
//! lock events.

use std::num::NonZeroUsize;

use distlock_api::{Holder, LockEvent, LockFilter};
use distlock_engine::store::{Claim, Renewal};

use crate::bare::{LEASE, last};
use crate::check::checks;
use crate::checks::events::{next, watch};
use crate::context::Context;
use crate::failure::{Verdict, ensure};

checks! {
    C10 store_repeats_after_force [Store, Admin]
        "A claim whose lease was taken by force, and which repeats its attempt, is busy while \
         another claim holds the key, and is then granted new tokens. A release from before is \
         still known. A failure means that a retry after a lost reply brings back what was taken.";
    Admin store_lists_a_repeated_grant_once [Store, Admin, Owners]
        "A lock whose holder has repeated its attempt is listed once, with its owner, and is one \
         lock to a release by owner. A failure means that a lost reply changes what an operator \
         sees and takes away.";
    Admin events_report_repetitions_once [Store, Admin, LockEvents]
        "A watcher receives one grant and one release of a claim, however often it has repeated its \
         requests. A failure means that a lost reply is reported as another acquisition.";
}

/// How often a request is made whose replies are lost.
const TIMES: usize = 3;
/// More locks than an owner of a check has.
const PAGE: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");

async fn store_repeats_after_force(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (first, victim, next) = (a.claim(&key), a.claim(&key), b.claim(&key));
    a.take(&first, LEASE).await?;
    a.give_back(&first).await?;
    let lost = a.take(&victim, LEASE).await?;
    b.admin()?.force_release(&key, "conformance").await?;
    let outcome = a.release(&first).await?;
    ensure!(
        outcome.is_released(),
        "a release that was repeated after the next lease was taken by force returned {outcome:?}"
    );
    let present = b.take(&next, LEASE).await?;
    let attempt = a.attempt(&victim, LEASE);
    a.busy(&attempt, "the lease of this claim was taken by force, and another one holds the key").await?;
    b.ensure_held(&next, &present, "the victim of a force-release has repeated its attempt").await?;
    b.give_back(&next).await?;
    let again = a.granted(&attempt, "the lease of this claim was taken by force, and the key is free").await?;
    ensure!(
        again.token > last(&present),
        "after {lost:?} was taken by force, and {present:?} released, a repeated attempt was granted {again:?}, whose \
         token is not greater"
    );
    Ok(())
}

async fn store_lists_a_repeated_grant_once(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let owner = format!("owner of {}", cx.key());
    let claim = a.claim(&cx.key());
    let holder = Holder::new().with_owner(owner.as_str()).with_metadata("job", "7");
    let attempt = a.attempt(&claim, LEASE).with_holder(holder);
    let mut grant = a.granted(&attempt, "the key is free").await?;
    for _ in 1..TIMES {
        grant = a.granted(&attempt, "the claim holds the lease").await?;
    }
    // Through another connection, as after a lost one.
    let mut elsewhere = attempt.clone();
    elsewhere.claim = Claim::new(claim.key().clone(), claim.id().clone());
    b.granted(&elsewhere, "the claim holds the lease").await?;
    let (admin, filter) = (b.admin()?, LockFilter::new().owner(owner.as_str()));
    let listed = admin.page(&filter, None, PAGE).await?;
    let is_right = match &listed[..] {
        [info] => {
            let job = info.metadata.get("job").map(String::as_str);
            info.key == *claim.key() && info.id.as_ref() == Some(claim.id()) && job == Some("7")
        }
        _ => false,
    };
    ensure!(is_right, "the lock of a claim that has repeated its attempt is listed as {listed:?}");
    let released = admin.release_matching(&filter, "conformance").await?;
    ensure!(released == 1, "of a claim that has repeated its attempt {released} locks were released by owner");
    a.ensure_gone(&Renewal::lease(claim, last(&grant), LEASE), "the locks of its owner were released").await
}

async fn events_report_repetitions_once(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let key = cx.key();
    let (claim, later) = (a.claim(&key), b.claim(&key));
    let mut events = watch(b.admin()?).await?;
    let attempt = a.attempt(&claim, LEASE);
    for _ in 0..TIMES {
        a.granted(&attempt, "no other claim holds the key").await?;
    }
    for _ in 0..TIMES {
        let outcome = a.release(&claim).await?;
        ensure!(outcome.is_released(), "a release, or its repetition, returned {outcome:?}");
    }
    // Its grant is the end of what is reported of the other.
    b.take(&later, LEASE).await?;
    let granted = next(&mut events, &key).await?;
    let is_right = matches!(&granted, LockEvent::Granted { id, .. } if id == claim.id());
    ensure!(is_right, "the grant to {claim:?} was reported as {granted:?}");
    let ended = next(&mut events, &key).await?;
    let expected = LockEvent::Released { key: key.clone(), id: claim.id().clone() };
    ensure!(ended == expected, "after {TIMES} attempts of its claim a release was reported as {ended:?}");
    let granted = next(&mut events, &key).await?;
    let is_right = matches!(&granted, LockEvent::Granted { id, .. } if id == later.id());
    ensure!(
        is_right,
        "after {TIMES} releases of the claim before it the grant to {later:?} was reported as {granted:?}"
    );
    Ok(())
}

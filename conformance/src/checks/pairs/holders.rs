//! Permits beside expiry, releases by force, and lost replies.

use distlock_engine::store::Renewal;
use tokio::time::sleep;

use super::{AFTER, BRIEF, permits};
use crate::bare::{LEASE, last};
use crate::bounded::SOON;
use crate::check::checks;
use crate::checks::modes::{give_back, granted, lasting, refused};
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Verdict, ensure};

checks! {
    C29 store_expires_permits_of_each [Store, Permits, Expiry]
        "The permits of a lease that has expired are free, and those of the other holders are \
         not. A failure means that a dead holder's permits are lost, or that its end frees those \
         of others.";
    C22 store_force_frees_permits [Store, Permits, Admin]
        "A force-release of one holder frees the permits of that one, and a force-release of the \
         key frees all. A failure means that permits stay taken, or are taken from others.";
    C10 permits_are_taken_once [Permits, Faults]
        "An acquisition of permits whose replies were lost takes its permits once. A failure means \
         that a repeated attempt takes further permits, which stay taken.";
}

async fn store_expires_permits_of_each(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let (brief, long) = (a.claim_as(&key, permits(2, 3)), b.claim_as(&key, permits(1, 3)));
    let expired = a.take(&brief, BRIEF).await?;
    let kept = b.take(&long, LEASE).await?;
    sleep(BRIEF + AFTER).await;
    let all = c.attempt(&c.claim_as(&key, permits(3, 3)), LEASE);
    c.busy(&all, "two of three permits have expired, and one is held").await?;
    let two = c.claim_as(&key, permits(2, 3));
    let grant = c.granted(&c.attempt(&two, LEASE), "two of three permits have expired").await?;
    let before = last(&expired).max(last(&kept));
    ensure!(grant.token > before, "after token {before} the store granted {grant:?}, whose token is not greater");
    a.ensure_gone(&Renewal::lease(brief, last(&expired), LEASE), "the lease of this holder has expired").await?;
    b.ensure_held(&long, &kept, "the lease of another holder has expired").await
}

async fn store_force_frees_permits(cx: Context) -> Verdict {
    let [a, b, c] = cx.stores().await?;
    let key = cx.key();
    let (victim, other) = (a.claim_as(&key, permits(2, 3)), b.claim_as(&key, permits(1, 3)));
    a.take(&victim, LEASE).await?;
    let kept = b.take(&other, LEASE).await?;
    c.busy(&c.attempt(&c.claim_as(&key, permits(1, 3)), LEASE), "all three permits are held").await?;
    let taken = c.admin()?.force_release_holder(&key, victim.id(), "conformance").await?;
    ensure!(taken.is_some(), "the force-release of one of two holders returned None");
    b.ensure_held(&other, &kept, "another holder was released by force").await?;
    let all = c.attempt(&c.claim_as(&key, permits(3, 3)), LEASE);
    c.busy(&all, "two of three permits were released by force, and one is held").await?;
    let two = c.attempt(&c.claim_as(&key, permits(2, 3)), LEASE);
    c.granted(&two, "two of three permits were released by force").await?;
    c.admin()?.force_release(&key, "conformance").await?;
    b.ensure_gone(&Renewal::lease(other, last(&kept), LEASE), "all holders were released by force").await?;
    c.granted(&all, "all holders were released by force").await.map(drop)
}

async fn permits_are_taken_once(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let controls = a.disturbed()?;
    controls.lose_replies(Operation::Acquire, 2);
    let guard = a.take_within(SOON, &key, lasting(permits(1, 3))).await?;
    ensure!(
        controls.end_faults() > 0,
        "no reply was lost, so the check proves nothing: see the controls of the client"
    );
    // A store that does not order the requests of a claim has a claim of its own for each attempt,
    // whose permits are given back in the background.
    a.until_cleaned_up().await?;
    let why = "one of three permits was taken, by an acquisition that was sent more than once";
    let other = granted(&b, &key, permits(2, 3), why).await?;
    refused(&b, &key, permits(1, 3), "all three permits are held").await?;
    give_back(guard).await?;
    give_back(other).await?;
    drop(b.take_within(SOON, &key, lasting(permits(3, 3))).await?);
    a.until_idle().await
}

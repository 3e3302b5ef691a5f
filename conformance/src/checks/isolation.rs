//! C14: a stalled key delays no other key.

use tokio::time::Instant;

use crate::bounded::throughout;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::renewed;

checks! {
    C14 a_stalled_key_delays_no_other [Faults, Expiry]
        "While every operation on one key stalls, the client's other locks are renewed in time, \
         and new ones are granted. A failure means that requests for different keys wait for each \
         other.";
}

async fn a_stalled_key_delays_no_other(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let ttl = cx.short();
    let keys: Vec<_> = (0..20).map(|_| cx.key()).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(a.take(key, renewed(ttl)).await?);
    }
    let stalled = cx.key();
    let victim = a.take(&stalled, renewed(ttl)).await?;
    let faults = a.disturbed()?;
    faults.stall(&stalled);
    throughout(Instant::now() + ttl * 3, async || {
        for guard in &guards {
            ensure!(!guard.is_lost(), "{} was lost, while another key stalled: {:?}", guard.key(), guard.loss());
        }
        let fresh = b.attempt(&cx.key(), renewed(ttl)).await?;
        ensure!(fresh.is_some(), "a free lock was busy while another key stalled");
        Ok(())
    })
    .await?;
    ensure!(victim.is_lost(), "the stalled key was renewed, so the check proves nothing");
    faults.end_faults();
    for guard in guards {
        let outcome = guard.release().await.map_err(|error| Failure::new(format!("a release failed: {error}")))?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    }
    Ok(())
}

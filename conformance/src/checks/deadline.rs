//! C3: a guard's deadline is earlier than the store's.

use std::time::Duration;

use distlock_api::{Acquired, ErrorKind, LeaseOptions, LockProviderExt, Loss, RenewalPolicy, Wait};
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, each_paused, is_too_slow, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed, unrenewed, validity};

checks! {
    C3 margin_is_kept Smoke [Expiry]
        "A guard is valid for at most its ttl minus the safety margin. A failure means that a \
         guard can outlive its lease.";
    C3 counted_from_before_the_request Smoke [Expiry]
        "The time that the request took does not extend the guard's deadline. A failure means that \
         the deadline counts from the reply, and is later than the store's.";
    C3 late_grant_is_not_returned [Faults, Expiry]
        "A grant whose reply arrives after the lease's own deadline is not returned, and is given \
         back. A failure means that a caller can get a lock that it no longer holds.";
    C3 paused_calls_return_no_lost_guard [Expiry]
        "An acquisition of one lock or of several that is paused until its lease has ended \
         does not return a lost guard. A failure means that a caller can get a lock that it no \
         longer holds.";
    C3 lost_before_taken_over [Expiry]
        "When another client is granted the lock, its last holder's guard is already lost. A \
         failure means that two guards of one lock are valid at the same time.";
}

async fn margin_is_kept(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    for margin in [Duration::ZERO, ttl / 10, ttl / 2, ttl * 9 / 10] {
        let lease = LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Never).safety_margin(margin);
        let guard = client.take(&cx.key(), unrenewed(ttl).with_lease(lease)).await?;
        let remaining =
            guard.remaining().ok_or_else(|| Failure::new("a guard of an expiring lease has no deadline"))?;
        ensure!(remaining <= ttl - margin, "{remaining:?} remain of a ttl of {ttl:?} with a margin of {margin:?}");
    }
    Ok(())
}

/// A deadline that counts from the reply is later by the whole duration of the call. The best of
/// many calls is compared, because the check cannot see when the client sends: the time before that
/// does not count.
async fn counted_from_before_the_request(cx: Context) -> Verdict {
    const CALLS: usize = 20;
    let [client] = cx.clients().await?;
    let (ttl, margin) = (LONG, LONG - validity(LONG));
    let mut seen = Vec::new();
    for _ in 0..CALLS {
        let before = Instant::now();
        let guard = client.take(&cx.key(), unrenewed(ttl)).await?;
        let call = before.elapsed();
        let remaining =
            guard.remaining().ok_or_else(|| Failure::new("a guard of an expiring lease has no deadline"))?;
        let excess = (before.elapsed() + remaining).saturating_sub(ttl - margin);
        if excess <= Duration::from_millis(1).max(call / 2) {
            return Ok(());
        }
        seen.push((call, excess));
    }
    seen.truncate(3);
    Err(Failure::new(format!("{CALLS} deadlines were too late; (duration of the call, too late by): {seen:?}, …")))
}

async fn late_grant_is_not_returned(cx: Context) -> Verdict {
    let [a, b, other] = cx.clients().await?;
    let ttl = cx.short() * 2;
    let attempt = after_a_late_reply(&cx, [&a, &other], ttl, Wait::Try);
    futures_util::future::try_join(attempt, after_a_late_reply(&cx, [&b, &other], ttl, Wait::UpTo(ttl * 4))).await?;
    Ok(())
}

/// However the acquisition ends, its caller does not get the late grant.
#[track_caller]
fn after_a_late_reply(
    cx: &Context,
    [client, other]: [&Client; 2],
    ttl: Duration,
    wait: Wait,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let key = cx.key();
        let faults = client.disturbed()?;
        faults.delay_replies(Operation::Acquire, 1, ttl + ttl / 4);
        let acquiring = client.acquire_with(key.clone(), unrenewed(ttl).with_wait(wait));
        match within(ttl * 4 + SOON, "an acquisition whose reply comes late to return", acquiring).await? {
            Ok(Acquired::Held(guard)) => {
                ensure!(
                    !guard.is_lost(),
                    "a grant was returned after its own deadline, its guard is lost with {:?}",
                    guard.loss()
                );
                let still = other.attempt(&key, renewed(LONG)).await?;
                // If the lock can be granted now, the guard must have been lost meanwhile.
                ensure!(still.is_none() || guard.is_lost(), "a late grant was returned as if it were held");
            }
            Ok(Acquired::Busy(_)) => {}
            Err(error) => {
                let is_true = error.is_outcome_unknown() || error.is_retryable();
                ensure!(
                    is_true,
                    "an attempt whose reply came late failed with {error:?}, which is neither retryable nor an unknown outcome"
                );
            }
        }
        faults.ensure_hit(1, "no reply was late")?;
        drop(other.take_within(ttl + SOON, &key, renewed(LONG)).await?);
        client.until_idle().await
    })
}

async fn paused_calls_return_no_lost_guard(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    let ttl = cx.short();
    let options = || unrenewed(ttl).with_wait(Wait::UpTo(LIVENESS));
    let one = each_paused(ttl, async || {
        let answer = client.acquire_with(cx.key(), options()).await;
        answer.map(|acquired| acquired.held().and_then(|guard| guard.loss()))
    });
    let all = each_paused(ttl, async || {
        let answer = client.acquire_all([cx.key(), cx.key(), cx.key()]).options(options()).await;
        answer.map(|all| all.loss())
    });
    for loss in one.await.into_iter().chain(all.await) {
        match loss {
            Ok(loss) => ensure!(loss.is_none(), "after a pause a guard is returned that is lost with {loss:?}"),
            // Too slow for leases that are this short, or for as many calls. Of several locks, one
            // may be lost while the others are acquired.
            Err(error) if is_too_slow(&error) || error.kind() == ErrorKind::Lost => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn lost_before_taken_over(cx: Context) -> Verdict {
    const KEYS: usize = 8;
    let [a, b] = cx.clients().await?;
    let ttl = cx.short();
    let takeovers = (0..KEYS).map(async |_| {
        let key = cx.key();
        let first = a.take(&key, unrenewed(ttl)).await?;
        let lost = first.lost();
        let waiter = b.spawn_take(&key, renewed(LONG));
        let second = waiter.guard().await?;
        ensure!(
            first.is_lost(),
            "{key:?} was granted, token {}, while the guard before it was not lost",
            second.0.fencing_token()
        );
        ensure!(first.loss() == Some(Loss::Expired), "a lease that was not renewed was lost with {:?}", first.loss());
        ensure!(first.remaining() == Some(Duration::ZERO), "a lost guard has {:?} remaining", first.remaining());
        let signalled = tokio::time::timeout(SOON, lost).await;
        ensure!(signalled.is_ok(), "lost() of a lost guard did not complete");
        Ok(())
    });
    futures_util::future::try_join_all(takeovers).await.map(|_: Vec<()>| ())
}

//! The modes of an acquisition: C26–C31, and what the other clauses say of them.

pub(super) mod admin;
pub(super) mod ends;
pub(super) mod faults;
pub(super) mod permits;
pub(super) mod queue;
pub(super) mod refusals;
pub(super) mod shared;

use std::time::Duration;

use distlock_api::{AcquireOptions, LockGuard, LockKey, Mode};
use tokio::time::Instant;

use crate::bounded::throughout;
use crate::client::{Client, Waiter};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed};

/// How long a waiter is watched that must not be granted the lock.
const WATCHED: Duration = Duration::from_millis(60);

/// Returns options for a lease that is longer than the check, in this mode.
pub(super) fn lasting(mode: Mode) -> AcquireOptions {
    renewed(LONG).with_mode(mode)
}

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// Makes one attempt, which must be granted.
#[track_caller]
pub(super) fn granted(
    client: &Client,
    key: &LockKey,
    mode: Mode,
    why: &str,
) -> impl Future<Output = Result<LockGuard, Failure>> {
    located_at_caller(async move {
        let guard = client.attempt(key, lasting(mode)).await?;
        guard.ok_or_else(|| Failure::new(format!("{why}, and an attempt ({mode}) was answered busy")))
    })
}

/// Makes one attempt, which must be answered busy.
#[track_caller]
pub(super) fn refused(client: &Client, key: &LockKey, mode: Mode, why: &str) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        match client.attempt(key, lasting(mode)).await? {
            None => Ok(()),
            Some(guard) => {
                let token = guard.fencing_token();
                Err(Failure::new(format!("{why}, and an attempt ({mode}) was granted, token {token}")))
            }
        }
    })
}

/// Releases a lock that must be held.
#[track_caller]
pub(super) fn give_back(guard: LockGuard) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        Ok(())
    })
}

/// Watches a waiter that must not be granted the lock.
#[track_caller]
fn ensure_waits(waiter: &Waiter, why: &str) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        throughout(Instant::now() + WATCHED, async || {
            ensure!(!waiter.is_finished(), "a waiter was granted the lock: {why}");
            Ok(())
        })
        .await
    })
}

/// Ensures that none of these guards is lost.
#[track_caller]
fn ensure_kept<'a>(guards: impl IntoIterator<Item = &'a LockGuard>, why: &str) -> Verdict {
    for guard in guards {
        ensure!(!guard.is_lost(), "{why}, and a guard is lost: {:?}", guard.loss());
    }
    Ok(())
}

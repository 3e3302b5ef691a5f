//! What a task of this process does.

use std::time::Duration;

use distlock_api::{
    AcquireOptions, Acquired, ErrorKind, FencedWrite, LeaseOptions, LockError, LockGuard, LockKey, ReleaseOutcome, Wait,
};
use fastrand::Rng;

use super::field::{WAIT, Work};
use crate::bounded::{SOON, within};
use crate::client::Client;
use crate::failure::{Failure, Verdict, ensure};

/// How long a release may take while the store does not answer.
const RELEASE: Duration = Duration::from_secs(30);

/// Acquires and releases until the round is over.
pub(super) async fn work(work: Work, client: Client, mut chance: Rng) -> Verdict {
    while !work.is_over() {
        let (key, wait) = work.choose(&mut chance);
        match chance.u8(..20) {
            // Given up while it waits, or while the grant is on its way.
            0..=1 => {
                let moment = Duration::from_micros(chance.u64(0..20_000));
                let acquiring = acquire(&work, &client, &work.keys[key], Wait::UpTo(wait));
                if let Ok(granted) = tokio::time::timeout(moment, acquiring).await {
                    drop(granted?);
                }
            }
            choice => {
                let wait = if choice < 5 { Wait::Try } else { Wait::UpTo(wait) };
                if let Some(guard) = acquire(&work, &client, &work.keys[key], wait).await? {
                    section(&work, &client, key, guard, &mut chance).await?;
                }
            }
        }
        tokio::time::sleep(Duration::from_micros(chance.u64(0..10_000))).await;
    }
    Ok(())
}

async fn acquire(work: &Work, client: &Client, key: &LockKey, wait: Wait) -> Result<Option<LockGuard>, Failure> {
    let options = AcquireOptions::new().with_lease(LeaseOptions::new().ttl(work.cx.short())).with_wait(wait);
    let acquiring = client.acquire_with(key.clone(), options);
    match within(WAIT + SOON, "an acquisition to return (C18)", acquiring).await? {
        Ok(Acquired::Held(guard)) => Ok(Some(guard)),
        Ok(Acquired::Busy(_)) => Ok(None),
        Err(error) => failed(work, &error).await.map(|()| None),
    }
}

/// A critical section: a fenced write, a while, and the release.
async fn section(work: &Work, client: &Client, key: usize, guard: LockGuard, chance: &mut Rng) -> Verdict {
    tokio::time::sleep(work.hold(key, chance)).await;
    write(work, client, key, &guard)?;
    if chance.u8(..10) == 0 {
        drop(guard);
        return Ok(());
    }
    match within(RELEASE, "a release to return", guard.release()).await? {
        Ok(ReleaseOutcome::Released) => Ok(()),
        Ok(_) => {
            work.tally.lost();
            Ok(())
        }
        Err(error) => failed(work, &error).await,
    }
}

/// Whoever is kept out by a later holder's write must have lost the lock.
fn write(work: &Work, client: &Client, key: usize, guard: &LockGuard) -> Verdict {
    let (asked, token) = (work.recorder.now(), guard.fencing_token());
    match work.registers[key].write(token, ()) {
        FencedWrite::Accepted => work.recorder.wrote(client.number(), &work.keys[key], token.get(), asked),
        FencedWrite::FencedOff { newest } => {
            work.tally.fenced_off();
            ensure!(guard.is_lost(), "token {token} was refused after token {newest}, and its guard is not lost");
        }
    }
    Ok(())
}

/// An error is counted if it is one that faults can bring.
async fn failed(work: &Work, error: &LockError) -> Verdict {
    let is_possible = matches!(
        error.kind(),
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::Lost | ErrorKind::Other
    );
    ensure!(
        is_possible || error.is_outcome_unknown(),
        "no fault explains this error: {}",
        crate::failure::chain(error)
    );
    work.tally.failed(error);
    // A store that is down is not asked in a busy loop.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

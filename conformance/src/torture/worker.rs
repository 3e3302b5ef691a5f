//! The work of a task of this process.

use std::time::Duration;

use distlock_api::{
    AcquireOptions, Acquired, ErrorKind, FencedWrite, LeaseOptions, LockError, LockGuard, LockKey, Mode,
    ReleaseOutcome, Wait,
};
use fastrand::Rng;

use super::participants::{WAIT, Work};
use crate::bounded::{SOON, within};
use crate::client::Client;
use crate::failure::{Failure, Verdict, ensure};

/// How long a release may take while the store does not answer.
const RELEASE: Duration = Duration::from_secs(30);

/// Acquires and releases until the round is over.
pub(super) async fn work(work: Work, client: Client, mut rng: Rng) -> Verdict {
    while !work.is_over() {
        let (key, wait) = work.choose(&mut rng);
        let mode = work.mode(key, &mut rng);
        match rng.u8(..20) {
            // Cancelled while it waits, or while the grant is in flight.
            0..=1 => {
                let moment = Duration::from_micros(rng.u64(0..20_000));
                let acquiring = acquire(&work, &client, &work.keys[key], mode, Wait::UpTo(wait));
                if let Ok(granted) = tokio::time::timeout(moment, acquiring).await {
                    drop(granted?);
                }
            }
            choice => {
                let wait = if choice < 5 { Wait::Try } else { Wait::UpTo(wait) };
                if let Some(guard) = acquire(&work, &client, &work.keys[key], mode, wait).await? {
                    section(&work, &client, key, mode, guard, &mut rng).await?;
                }
            }
        }
        tokio::time::sleep(Duration::from_micros(rng.u64(0..10_000))).await;
    }
    Ok(())
}

async fn acquire(
    work: &Work,
    client: &Client,
    key: &LockKey,
    mode: Mode,
    wait: Wait,
) -> Result<Option<LockGuard>, Failure> {
    let lease = LeaseOptions::new().ttl(work.cx.short());
    let options = AcquireOptions::new().with_lease(lease).with_wait(wait).with_mode(mode);
    let acquiring = client.acquire_with(key.clone(), options);
    match within(WAIT + SOON, "an acquisition to return (C18)", acquiring).await? {
        Ok(Acquired::Held(guard)) => Ok(Some(guard)),
        Ok(Acquired::Busy(_)) => Ok(None),
        Err(error) => failed(work, &error).await.map(|()| None),
    }
}

/// Runs a critical section: a pause, a fenced write of an exclusive holder, and the release.
async fn section(work: &Work, client: &Client, key: usize, mode: Mode, guard: LockGuard, rng: &mut Rng) -> Verdict {
    tokio::time::sleep(work.hold(key, rng)).await;
    // Several that hold a key together fence each other off.
    if mode.is_exclusive() {
        write(work, client, key, &guard)?;
    }
    if rng.u8(..10) == 0 {
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

/// Makes a fenced write. A holder that is fenced off by a later holder's write must have lost the
/// lock.
fn write(work: &Work, client: &Client, key: usize, guard: &LockGuard) -> Verdict {
    let (started, token) = (work.recorder.now(), guard.fencing_token());
    match work.registers[key].write(token, ()) {
        FencedWrite::Accepted => work.recorder.wrote(client.number(), &work.keys[key], token.get(), started),
        FencedWrite::FencedOff { newest } => {
            work.tally.fenced_off();
            ensure!(
                guard.is_lost(),
                "token {token} was refused after token {newest}, and the guard of token {token} is not lost"
            );
        }
    }
    Ok(())
}

/// Counts an error that faults can cause. Any other error is a failure.
async fn failed(work: &Work, error: &LockError) -> Verdict {
    let is_possible = matches!(
        error.kind(),
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::Lost | ErrorKind::Other
    );
    ensure!(
        is_possible || error.is_outcome_unknown(),
        "no fault can cause this error: {}",
        crate::failure::chain(error)
    );
    work.tally.failed(error);
    // Do not retry in a busy loop while the store is down.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

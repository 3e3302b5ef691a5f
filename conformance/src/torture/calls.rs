//! The calls of a child process: it acquires a lock, makes a fenced write, and releases.

use std::time::Duration;

use distlock_api::{FencedWrite, FencingToken, Mode};

use super::participants::{ChildClient, Work};
use crate::child::{ChildError, ChildGrant};
use crate::failure::Failure;

pub(super) async fn acquire(
    work: &Work,
    child: &mut ChildClient,
    key: usize,
    mode: Mode,
    wait: Duration,
) -> Result<Option<ChildGrant>, Failure> {
    match child.process.acquire_result(&work.keys[key], mode, work.cx.short(), true, wait).await? {
        Ok(granted) => Ok(granted),
        Err(error) => {
            record_error(work, &error).await;
            Ok(None)
        }
    }
}

/// Writes to the fenced register, if the child holds the lock exclusively: several that hold a key
/// together fence each other off. The child may have been stopped since its grant, so a refused
/// write is counted, not a failure.
pub(super) fn write(work: &Work, child: &ChildClient, key: usize, mode: Mode, granted: ChildGrant) {
    if !mode.is_exclusive() {
        return;
    }
    let started = work.recorder.now();
    match work.registers[key].write(FencingToken::new(granted.token), ()) {
        FencedWrite::Accepted => work.recorder.wrote(child.process.number(), &work.keys[key], granted.token, started),
        FencedWrite::FencedOff { .. } => work.tally.fenced_off(),
    }
}

pub(super) async fn release(work: &Work, child: &mut ChildClient) -> Result<(), Failure> {
    match child.process.release_result().await? {
        Ok(true) => {}
        Ok(false) => work.tally.lost(),
        Err(error) => record_error(work, &error).await,
    }
    Ok(())
}

async fn record_error(work: &Work, error: &ChildError) {
    work.tally.child_failed(error);
    tokio::time::sleep(Duration::from_millis(20)).await;
}

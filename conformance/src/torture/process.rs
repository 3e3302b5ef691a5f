//! The work of a child process, which a task of this process controls.

use std::time::Duration;

use fastrand::Rng;

use super::calls::{acquire, release, write};
use super::participants::{ChildClient, Work};
use super::process_faults::{self, FaultRequests};
use crate::failure::Failure;

/// Acquires and releases until the round is over, and injects the requested faults in between.
pub(super) async fn work(
    work: Work,
    mut child: ChildClient,
    mut requests: FaultRequests,
    mut rng: Rng,
) -> Result<ChildClient, Failure> {
    child.process.record_in(&work.recorder);
    loop {
        // A requested fault is injected even if the round ends in the meantime.
        if let Ok(request) = requests.try_recv() {
            child = process_faults::inject(&work, child, request, &mut rng).await?;
        } else if work.is_over() {
            return Ok(child);
        } else {
            section(&work, &mut child, &mut rng).await?;
        }
    }
}

async fn section(work: &Work, child: &mut ChildClient, rng: &mut Rng) -> Result<(), Failure> {
    let (key, wait) = work.choose(rng);
    let wait = if rng.u8(..6) == 0 { Duration::ZERO } else { wait };
    let mode = work.mode(key, rng);
    if let Some(granted) = acquire(work, child, key, mode, wait).await? {
        tokio::time::sleep(work.hold(key, rng)).await;
        write(work, child, key, mode, granted);
        release(work, child).await?;
    }
    tokio::time::sleep(Duration::from_micros(rng.u64(0..10_000))).await;
    Ok(())
}

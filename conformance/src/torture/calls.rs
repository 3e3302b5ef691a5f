//! The calls of a child process: it acquires a lock, makes a fenced write, and releases.

use std::time::Duration;

use distlock_api::{FencedWrite, FencingToken};

use super::field::{Player, Work};
use crate::child::{ChildGrant, Refusal};
use crate::failure::Failure;

pub(super) async fn acquire(
    work: &Work,
    player: &mut Player,
    key: usize,
    wait: Duration,
) -> Result<Option<ChildGrant>, Failure> {
    match player.child.ask_for(&work.keys[key], work.cx.short(), true, wait).await? {
        Ok(granted) => Ok(granted),
        Err(refusal) => {
            refused(work, &refusal).await;
            Ok(None)
        }
    }
}

/// The register decides: the child may have been stopped since it was granted the lock.
pub(super) fn write(work: &Work, player: &Player, key: usize, granted: ChildGrant) {
    let asked = work.recorder.now();
    match work.registers[key].write(FencingToken::new(granted.token), ()) {
        FencedWrite::Accepted => work.recorder.wrote(player.child.number(), &work.keys[key], granted.token, asked),
        FencedWrite::FencedOff { .. } => work.tally.fenced_off(),
    }
}

pub(super) async fn give_back(work: &Work, player: &mut Player) -> Result<(), Failure> {
    match player.child.give_back().await? {
        Ok(true) => {}
        Ok(false) => work.tally.lost(),
        Err(refusal) => refused(work, &refusal).await,
    }
    Ok(())
}

async fn refused(work: &Work, refusal: &Refusal) {
    work.tally.refused(refusal);
    tokio::time::sleep(Duration::from_millis(20)).await;
}

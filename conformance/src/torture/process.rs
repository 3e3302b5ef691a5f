//! What a child process does, by order of a task of this process.

use std::time::Duration;

use distlock_api::{FencedWrite, FencingToken};
use fastrand::Rng;

use super::acts;
use super::field::{Acts, Player, Work};
use crate::child::{ChildGrant, Refusal};
use crate::failure::Failure;

/// Acquires and releases until the round is over; whatever is to happen to the process happens meanwhile.
pub(super) async fn work(work: Work, mut player: Player, mut acts: Acts, mut chance: Rng) -> Result<Player, Failure> {
    player.child.record_in(&work.recorder);
    loop {
        // What was promised to happen happens, even if the round is over meanwhile.
        if let Ok(told) = acts.try_recv() {
            player = acts::happen(&work, player, told, &mut chance).await?;
        } else if work.is_over() {
            return Ok(player);
        } else {
            section(&work, &mut player, &mut chance).await?;
        }
    }
}

async fn section(work: &Work, player: &mut Player, chance: &mut Rng) -> Result<(), Failure> {
    let (key, wait) = work.choose(chance);
    let wait = if chance.u8(..6) == 0 { Duration::ZERO } else { wait };
    if let Some(granted) = acquire(work, player, key, wait).await? {
        tokio::time::sleep(work.hold(key, chance)).await;
        write(work, player, key, granted);
        give_back(work, player).await?;
    }
    tokio::time::sleep(Duration::from_micros(chance.u64(0..10_000))).await;
    Ok(())
}

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

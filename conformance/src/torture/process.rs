//! What a child process does, by order of a task of this process.

use std::time::Duration;

use fastrand::Rng;

use super::acts::{self, Acts};
use super::calls::{acquire, give_back, write};
use super::field::{Player, Work};
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

//! The replicas as processes, and the end of one of them.

use std::time::Duration;

use distlock_examples::{Children, Failure, Message};
use tokio::time::{Instant, sleep};

use crate::board::Board;
use crate::replica::{MOMENT, Part};
use crate::{Arguments, REPLICAS};

/// The replica that is killed.
const VICTIM: &str = REPLICAS[1];
/// How long to look for a moment in which the victim has read a counter and will not write it soon.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts all replicas, and returns their addresses.
pub(crate) async fn start(
    fleet: &mut Children<String>,
    uri: &str,
    warehouse: &str,
    arguments: &Arguments,
) -> Result<Vec<String>, Failure> {
    let mut addresses = Vec::new();
    for name in REPLICAS {
        let part = Part {
            name: name.to_owned(),
            warehouse: warehouse.to_owned(),
            mongodb: uri.to_owned(),
            database: arguments.database.clone(),
            locked: arguments.locked,
        };
        fleet.start(name, &part).await?;
        match fleet.next().await? {
            Some((_, Message::Report(address))) => addresses.push(address),
            _ => return Err(format!("replica {name} did not start").into()),
        }
    }
    Ok(addresses)
}

/// Kills one replica in the middle of an order, so that its lock stays behind.
pub(crate) async fn kill_one_at_work(fleet: &mut Children<String>, board: &Board) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        let is_late = Instant::now() >= end;
        // In one step, so that nothing is written in between.
        let killed = board.change(|state, now| {
            let is_at_work = state.has_begun(VICTIM, now, MOMENT / 2);
            if !is_at_work && !is_late {
                return Ok(None);
            }
            state.killed(VICTIM, now);
            fleet.start_kill(VICTIM).map(|()| Some(is_at_work))
        })?;
        if let Some(is_at_work) = killed {
            let how = if is_at_work { "in the middle of an order" } else { "while it is idle" };
            println!("         replica {VICTIM} is killed {how}");
            break;
        }
        sleep(Duration::from_millis(2)).await;
    }
    fleet.kill(VICTIM).await
}

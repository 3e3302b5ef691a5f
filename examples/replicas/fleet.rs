//! The replicas as processes, and the end of one of them.

use std::process::Stdio;
use std::time::Duration;

use distlock_examples::Failure;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::board::Board;
use crate::replica::MOMENT;

const START: Duration = Duration::from_secs(20);
/// How long to look for a moment in which the victim has read a counter and is not about to write
/// it.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Fleet {
    children: Vec<(String, Child)>,
}

impl Fleet {
    pub(crate) fn none() -> Self {
        Self { children: Vec::new() }
    }

    /// Starts them all; returns where they listen.
    pub(crate) async fn start(warehouse: &str, names: &[&str]) -> Result<(Self, Vec<String>), Failure> {
        let (mut fleet, mut addresses) = (Self::none(), Vec::new());
        for (index, name) in names.iter().enumerate() {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).args(["--replica", &index.to_string(), warehouse]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            // Ctrl-C is for the parent, which ends them in order.
            #[cfg(unix)]
            command.process_group(0);
            let mut child = command.spawn()?;
            let output = child.stdout.take().ok_or("no standard output")?;
            fleet.children.push(((*name).to_owned(), child));
            let first = timeout(START, BufReader::new(output).lines().next_line()).await;
            addresses.push(first.map_err(|_| "a replica does not start")??.ok_or("a replica did not start")?);
        }
        Ok((fleet, addresses))
    }

    /// Kills the last replica the hard way, in the middle of an order, so that its lock stays
    /// behind.
    pub(crate) async fn kill_one_at_work(&mut self, board: &Board) -> Result<(), Failure> {
        let Some((name, child)) = self.children.last_mut() else { return Ok(()) };
        let number = child.id().unwrap_or(0);
        let end = Instant::now() + PATIENCE;
        loop {
            let late = Instant::now() >= end;
            // In one step, so that nothing is written in between.
            let killed = board.change(|state, now| {
                let at_work = state.has_begun(name, now, MOMENT / 2);
                if !at_work && !late {
                    return Ok(None);
                }
                state.killed(name, now);
                child.start_kill().map(|()| Some(at_work))
            })?;
            if let Some(at_work) = killed {
                let how = if at_work { "with an order in its hands" } else { "while it is idle" };
                println!("         replica {name} (process {number}) is killed {how}");
                break;
            }
            sleep(Duration::from_millis(2)).await;
        }
        child.wait().await?;
        Ok(())
    }

    /// Ends the others in order.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        for (_, child) in &mut self.children {
            drop(child.stdin.take());
        }
        for (name, child) in &mut self.children {
            if timeout(Duration::from_secs(10), child.wait()).await.is_err() {
                return Err(format!("replica {name} does not end").into());
            }
        }
        Ok(())
    }
}

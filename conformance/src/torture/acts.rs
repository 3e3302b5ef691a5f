//! What happens to child processes, while they hold a lock if they can get one.

use std::time::Duration;

use fastrand::Rng;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::calls::{acquire, give_back, write};
use super::field::{Player, WAIT, Work};
use crate::child::Handle;
use crate::failure::{Failure, ensure};
use crate::process;

const HOUR: i64 = 3600;
/// How often a lock is asked for before something happens to the process without one.
const TRIES: usize = 3;
/// How long a signal may take to show.
const SHOWS: Duration = Duration::from_secs(5);

/// What can happen to a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// SIGKILL; another process takes its place.
    Kill,
    /// SIGSTOP for longer than its lease's ttl, then SIGCONT.
    Stop,
    /// Its wall clock goes ahead by an hour.
    Ahead,
    /// Its wall clock goes back by an hour.
    Back,
}

impl Act {
    pub(super) const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Ahead, Self::Back];

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Kill => "kill-client",
            Self::Stop => "stop-client",
            Self::Ahead => "clock-ahead",
            Self::Back => "clock-back",
        }
    }
}

/// An act, and whom to tell how it can be known that it happened.
pub(super) struct Told {
    pub(super) act: Act,
    pub(super) done: oneshot::Sender<String>,
}

/// How a worker of a child process learns what is to happen to the process.
pub(super) type Acts = mpsc::UnboundedReceiver<Told>;

/// Makes it happen.
pub(super) async fn happen(work: &Work, mut player: Player, told: Told, chance: &mut Rng) -> Result<Player, Failure> {
    let key = chance.usize(1..work.keys.len());
    let mut granted = None;
    for _ in 0..TRIES {
        granted = acquire(work, &mut player, key, WAIT).await?;
        if granted.is_some() {
            break;
        }
    }
    let with = if granted.is_some() { "with a lock" } else { "without a lock" };
    let handle = player.child.handle().ok_or_else(|| Failure::new("a child process ended by itself"))?;
    let evidence = match told.act {
        Act::Kill => {
            player.child.kill().await?;
            ensure!(is_soon(&handle, process::is_end).await, "a killed process lives on");
            let (address, shift) = (&work.address, player.shift);
            player = Player::start(&work.cx, address, shift, &work.recorder).await?;
            format!("a process was killed {with}")
        }
        Act::Stop => {
            let lasts = work.cx.short() + Duration::from_secs(2);
            handle.signal("STOP").await?;
            let stopped = is_soon(&handle, |state| state == Some('T')).await;
            sleep(lasts).await;
            handle.signal("CONT").await?;
            ensure!(stopped, "a process got SIGSTOP, and went on");
            if let Some(granted) = granted {
                let standing = player.child.look().await?;
                ensure!(standing.lost, "after {lasts:?} the guard of a stopped process is not lost (C4): {standing:?}");
                // The late write of a holder that believed to hold it.
                write(work, &player, key, granted);
                give_back(work, &mut player).await?;
            }
            format!("a process was stopped for {lasts:?} {with}")
        }
        Act::Ahead | Act::Back => {
            player.shift += if told.act == Act::Ahead { HOUR } else { -HOUR };
            handle.set_clock(player.shift)?;
            player.child.ensure_clock(player.shift).await?;
            if granted.is_some() {
                let standing = player.child.look().await?;
                let sane = standing.lost || standing.remaining <= work.cx.short();
                ensure!(sane, "a clock that was set changed what is left of a lease (C2): {standing:?}");
                give_back(work, &mut player).await?;
            }
            format!("a clock was set to {:+} s {with}", player.shift)
        }
    };
    let _ = told.done.send(evidence);
    Ok(player)
}

async fn is_soon(handle: &Handle, is: impl Fn(Option<char>) -> bool) -> bool {
    let deadline = Instant::now() + SHOWS;
    while !is(handle.state()) {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}

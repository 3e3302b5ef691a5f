//! The faults of child processes, injected while they hold a lock if they can get one.

use std::time::Duration;

use fastrand::Rng;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::calls::{acquire, release, write};
use super::participants::{ChildClient, WAIT, Work};
use crate::child::Handle;
use crate::failure::{Failure, ensure};
use crate::process;

const HOUR: i64 = 3600;
/// How often a child tries to acquire a lock before the fault is injected without one.
const TRIES: usize = 3;
/// How long a signal may take to have an effect.
const SIGNAL_EFFECT: Duration = Duration::from_secs(5);

/// A fault of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessFault {
    /// SIGKILL; another process takes its place.
    Kill,
    /// SIGSTOP for longer than its lease's ttl, then SIGCONT.
    Stop,
    /// Its wall clock goes ahead by an hour.
    Ahead,
    /// Its wall clock goes back by an hour.
    Back,
}

impl ProcessFault {
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

/// A request to inject a fault. `done` receives the evidence that it happened.
pub(super) struct FaultRequest {
    pub(super) fault: ProcessFault,
    pub(super) done: oneshot::Sender<String>,
}

/// The requests that the worker of a child process receives.
pub(super) type FaultRequests = mpsc::UnboundedReceiver<FaultRequest>;

/// Injects the fault.
pub(super) async fn inject(
    work: &Work,
    mut child: ChildClient,
    request: FaultRequest,
    rng: &mut Rng,
) -> Result<ChildClient, Failure> {
    let key = rng.usize(1..work.keys.len());
    let mode = work.mode(key, rng);
    let mut granted = None;
    for _ in 0..TRIES {
        granted = acquire(work, &mut child, key, mode, WAIT).await?;
        if granted.is_some() {
            break;
        }
    }
    let with = if granted.is_some() { "with a lock" } else { "without a lock" };
    let handle = child.process.handle().ok_or_else(|| Failure::new("a child process ended without a fault"))?;
    let evidence = match request.fault {
        ProcessFault::Kill => {
            child.process.kill().await?;
            ensure!(soon_reaches(&handle, process::is_end).await, "a process is still alive after SIGKILL");
            let (address, shift) = (&work.address, child.shift);
            child = ChildClient::start(&work.cx, address, shift, &work.recorder).await?;
            format!("a process was killed {with}")
        }
        ProcessFault::Stop => {
            let lasts = work.cx.short() + Duration::from_secs(2);
            handle.signal("STOP").await?;
            let stopped = soon_reaches(&handle, |state| state == Some('T')).await;
            sleep(lasts).await;
            handle.signal("CONT").await?;
            ensure!(stopped, "a process continued after SIGSTOP");
            if let Some(granted) = granted {
                let state = child.process.guard_state().await?;
                ensure!(
                    state.lost,
                    "the guard of a process that was stopped for {lasts:?} is not lost (C4): {state:?}"
                );
                // The late write of a holder that has not noticed its loss.
                write(work, &child, key, mode, granted);
                release(work, &mut child).await?;
            }
            format!("a process was stopped for {lasts:?} {with}")
        }
        ProcessFault::Ahead | ProcessFault::Back => {
            child.shift += if request.fault == ProcessFault::Ahead { HOUR } else { -HOUR };
            handle.set_clock(child.shift)?;
            child.process.ensure_clock(child.shift).await?;
            if granted.is_some() {
                let state = child.process.guard_state().await?;
                let is_right = state.lost || state.remaining <= work.cx.short();
                ensure!(is_right, "setting a clock changed the remaining time of a lease (C2): {state:?}");
                release(work, &mut child).await?;
            }
            format!("a clock was set to {:+} s {with}", child.shift)
        }
    };
    let _ = request.done.send(evidence);
    Ok(child)
}

async fn soon_reaches(handle: &Handle, is: impl Fn(Option<char>) -> bool) -> bool {
    let deadline = Instant::now() + SIGNAL_EFFECT;
    while !is(handle.state()) {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}

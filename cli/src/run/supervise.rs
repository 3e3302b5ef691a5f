//! Watches a running command and its locks.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::ending::{Action, Ending, Limits};
use super::group::{Change, END_LIMIT, Group};
use super::held::Held;
use crate::exit;
use crate::failure::Failure;
use crate::output::say;
use crate::signals::{Event, Signals, ends};

/// How long a lock that is lost is released, and then the client closed: both are best effort.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_millis(800);
const KILLED: &str = "the lock was lost, or about to be, and the command was killed";
const STOPPED: &str =
    "the command was stopped (SIGSTOP, or by a terminal) until the lock was about to end, and was ended";
const HELD_TOO_LONG: &str = "the lock was held for --max-hold, and the command was ended";

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its exit code.
    pub(crate) code: u8,
    /// Why it was ended, if it did not end by itself.
    pub(crate) ended_because: Option<String>,
    /// Whether all processes of its group are gone.
    pub(crate) group_is_gone: bool,
}

impl Outcome {
    /// Warns if processes of the group are left.
    pub(super) fn warn_of_survivors(&self) {
        if !self.group_is_gone {
            say("processes of the command are still there after SIGKILL: they belong to another user, or wait for a \
                 device or a mount that hangs");
        }
    }
}

/// Returns when the leash kills the group: later than this process would, and before the deadline
/// of the lease.
pub(crate) fn leash_deadline(valid_until: Option<Instant>, limits: Limits) -> Option<Instant> {
    valid_until.and_then(|until| until.checked_sub(limits.lead / 2))
}

/// Waits for the end of the command. Passes signals on to it, and ends it before the locks are
/// lost. A stopped command keeps the locks no longer than until the deadline at which it stopped:
/// renewals are not for it. When this returns, its group is gone, and the locks are not yet
/// released.
pub(crate) async fn supervise(granted: &impl Held, mut group: Group, limits: Limits, signals: &mut Signals) -> Outcome {
    let started = Instant::now();
    let mut ending = Ending::new(limits);
    let mut lost = granted.lost();
    let mut loss = granted.loss();
    let mut deadline = granted.valid_until();
    let mut ended_because = None;
    let mut sent = None;
    let mut is_stopped = false;
    let status = loop {
        // The signal alone may be late after the machine has slept.
        loss = loss.or_else(|| granted.loss());
        // A lost guard has no deadline of its own: the last one counts.
        deadline = if loss.is_none() && !is_stopped { granted.valid_until() } else { deadline };
        let leash = leash_deadline(deadline, limits);
        if leash != sent {
            sent = leash;
            if let Some(leash) = leash {
                group.hold_until(leash).await;
            }
        }
        let wake = match ending.look(Instant::now(), deadline, loss.is_some()) {
            Action::Wait(until) => until.min(Instant::now() + look_again(limits)),
            Action::Leave => far(),
            Action::Terminate(kill_at) => {
                let reason = match loss {
                    Some(loss) => format!("the lock was lost while the command ran, and the command was ended: {loss}"),
                    None if limits.is_over(started.elapsed()) => HELD_TOO_LONG.to_owned(),
                    None if is_stopped => STOPPED.to_owned(),
                    None => {
                        "the lock could not be renewed, and the command was ended before the lease's deadline".into()
                    }
                };
                ended_because.get_or_insert(reason);
                group.signal(Signal::TERM);
                // A stopped process gets the signal when it continues.
                group.signal(Signal::CONT);
                kill_at
            }
            Action::Kill => {
                ended_because.get_or_insert_with(|| KILLED.to_owned());
                break None;
            }
        };
        if !is_stopped {
            // The shell may have put the job into the foreground, which it does not report.
            group.give_terminal();
        }
        let event = tokio::select! {
            event = signals.next_for_command() => event,
            how = &mut lost, if loss.is_none() => {
                loss = Some(how);
                continue;
            }
            () = sleep_until(wake) => continue,
        };
        match event {
            Event::Signal(Signal::TSTP) if is_stopped => group.stop_too(),
            Event::Signal(signal) => {
                group.signal(signal);
                if ends(signal) {
                    group.signal(Signal::CONT);
                }
            }
            Event::Child(child, status) => match group.change(child, status) {
                Change::Ended(status) => break Some(status),
                Change::Stopped(by) => {
                    is_stopped = true;
                    group.on_stop(by).await;
                }
                Change::Continued => is_stopped = false,
                Change::LeashEnded => {
                    say("the leash has been killed: if distlock is killed, too, the command continues");
                }
                Change::Other => {}
            },
        }
    };
    // The user has typed it for the whole job.
    let typed = status.and_then(|status| Signal::from_named_raw(status.signal()?));
    let typed = typed.filter(|signal| [Signal::INT, Signal::QUIT].contains(signal) && group.has_terminal());
    // If the command has not ended, it is killed no later than the leash would do it.
    let limit = if status.is_some() { END_LIMIT } else { limits.lead / 2 };
    let (group_is_gone, after) = group.end(limit).await;
    if let Some(signal) = typed {
        signals.send_to_own_group(signal).await;
    }
    let is_lost = loss.or_else(|| granted.loss()).is_some();
    if ended_because.is_none() && ending.look(Instant::now(), deadline, is_lost) == Action::Kill {
        // This process was stopped or starved, and the leash has killed the group.
        ended_because = Some(KILLED.to_owned());
    }
    let code = status.or(after).map_or(exit::SOFTWARE, exit::of_command);
    Outcome { code, ended_because, group_is_gone }
}

/// Closes the client, which tells what it could not give back. A signal ends that: the user does
/// not want to wait, and what is left ends with its ttl. What is lost needs no release, and the
/// server may be what is lost.
pub(super) async fn close(
    closing: impl Future<Output = Result<(), Failure>>,
    code: &Result<u8, Failure>,
    signals: &mut Signals,
) {
    let is_lost = code.as_ref().is_err_and(|failure| failure.code == exit::LOST);
    tokio::select! {
        closed = closing => {
            if let Err(failure) = closed {
                say(failure.message);
            }
        }
        () = sleep(CLOSE_LIMIT), if is_lost => {}
        _ = signals.next() => {}
    }
}

/// How often the deadline is read: it moves with each renewal.
fn look_again(limits: Limits) -> Duration {
    (limits.at_start / 20).clamp(Duration::from_millis(5), Duration::from_secs(1))
}

/// Returns an instant that does not come.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(86_400 * 365)
}

//! The process group of the command: the leash is its first process, and the command its second.
//!
//! The group has the leash's id, which stays valid until the leash is reaped. So a signal to the
//! group never hits others, whatever the command does.

use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::{boot_clock, leash};

/// How long the leash may take to start, on a machine that is busy.
const START_LIMIT: Duration = Duration::from_secs(10);
/// A line to the leash fits into its pipe, unless the leash is stopped.
const WRITE_LIMIT: Duration = Duration::from_millis(50);
/// How long the kernel may take to remove killed processes.
const END_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);

/// The group of one command.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    leash: Child,
    deadlines: ChildStdin,
    leash_has_ended: bool,
}

impl Group {
    /// Starts the leash, and returns when it is ready.
    ///
    /// # Errors
    /// This program cannot be started once more.
    pub(crate) async fn start() -> Result<Self> {
        let mut command = std::process::Command::new(this_program()?);
        std::os::unix::process::CommandExt::arg0(&mut command, "distlock");
        command.arg(leash::ARGUMENT).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut leash = Command::from(command).process_group(0).kill_on_drop(true).spawn()?;
        let ended = || Error::new(ErrorKind::BrokenPipe, "the leash ended before it was ready");
        let id = leash.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or_else(ended)?;
        let (Some(deadlines), Some(output)) = (leash.stdin.take(), leash.stdout.take()) else { return Err(ended()) };
        let mut output = BufReader::new(output).lines();
        match timeout(START_LIMIT, output.next_line()).await {
            Ok(Ok(Some(line))) if line == leash::READY => Ok(Self { id, leash, deadlines, leash_has_ended: false }),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) => Err(ended()),
            Err(_) => Err(Error::new(ErrorKind::TimedOut, "the leash does not start")),
        }
    }

    /// Starts the command in the group.
    ///
    /// # Errors
    /// The command cannot be started.
    pub(crate) fn spawn(&self, mut command: Command) -> Result<Child> {
        command.process_group(self.id.as_raw_nonzero().get()).spawn()
    }

    /// Lets the leash kill the group at this instant, unless it is moved.
    pub(crate) async fn hold_until(&mut self, deadline: Instant) {
        // The shared clock first: if this process is stopped in between, the deadline is too early.
        let now = boot_clock::now();
        let line = leash::line(now + deadline.saturating_duration_since(Instant::now()));
        // If the leash has ended, `leash_ended` reports it.
        let _ = timeout(WRITE_LIMIT, self.deadlines.write_all(line.as_bytes())).await;
    }

    /// Resolves when the leash has ended, once. It should not.
    pub(crate) async fn leash_ended(&mut self) {
        if self.leash_has_ended {
            return std::future::pending().await;
        }
        let _ = self.leash.wait().await;
        self.leash_has_ended = true;
    }

    /// Sends a signal to all processes of the group. The leash survives it, unless it is SIGKILL.
    pub(crate) fn signal(&self, signal: Signal) {
        // The group is empty if both have ended.
        let _ = kill_process_group(self.id, signal);
    }

    /// Kills what is left in the group, and returns when it is gone; `false` if it is not after a
    /// moment.
    pub(crate) async fn end(mut self, command: &mut Child) -> (bool, Option<ExitStatus>) {
        self.signal(Signal::KILL);
        let _ = self.leash.wait().await;
        let status = command.wait().await.ok();
        let empty = async {
            while test_kill_process_group(self.id).is_ok() {
                sleep(POLL).await;
            }
        };
        (timeout(END_LIMIT, empty).await.is_ok(), status)
    }
}

/// Returns the path of this program. Linux finds it even after an update has replaced the file.
fn this_program() -> Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { Ok(link) } else { std::env::current_exe() }
}

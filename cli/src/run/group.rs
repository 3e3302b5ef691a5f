//! The process group of the command: the leash is its first process, and the command its second.
//!
//! The group has the leash's id, which stays valid until the leash is reaped. So a signal to the
//! group never hits others, whatever the command does.

use std::io::{Error, ErrorKind, IsTerminal, Result, stdin, stdout};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitStatus, getpgid, kill_current_process_group, kill_process, kill_process_group,
    test_kill_process_group,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout};

use super::terminal::{OnStop, Terminal, own_group};
use super::{boot_clock, leash, processes};
use crate::signals;

/// How long the leash may take to start, on a machine that is busy.
const START_LIMIT: Duration = Duration::from_secs(10);
/// A line to the leash fits into its pipe, unless the leash is stopped.
const WRITE_LIMIT: Duration = Duration::from_millis(50);
/// How long the kernel may take to remove killed processes, and the leash to give the terminal
/// back.
pub(super) const END_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);

/// The group of one command.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    /// Its handle stays, and nothing waits for it: `signals` waits for all children.
    _leash: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    command: Option<Child>,
    terminal: Option<Terminal>,
    /// Whether the group is to be in the terminal's foreground when this process can put it there.
    needs_terminal: bool,
}

/// What has become of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The command has ended.
    Ended(ExitStatus),
    /// The command was stopped by the signal with this number.
    Stopped(i32),
    /// The command continues.
    Continued,
    /// The leash has ended. It should not.
    LeashEnded,
    /// Nothing that matters: most likely the end of a process that this one has adopted.
    Other,
}

impl Group {
    /// Starts the leash, and returns when it is ready.
    ///
    /// # Errors
    /// This program cannot be started once more.
    pub(crate) async fn start() -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command
            .arg0("distlock")
            .arg(leash::ARGUMENT)
            .args(own_group().map(|group| group.to_string()))
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut leash = command.process_group(0).spawn()?;
        let ended = || Error::new(ErrorKind::BrokenPipe, "the leash ended before it was ready");
        let id = id(&leash).ok_or_else(ended)?;
        let (Some(input), Some(output)) = (leash.stdin.take(), leash.stdout.take()) else { return Err(ended()) };
        let input = ChildStdin::from_std(input)?;
        let mut output = BufReader::new(ChildStdout::from_std(output)?).lines();
        match timeout(START_LIMIT, output.next_line()).await {
            Ok(Ok(Some(line))) if line == leash::READY => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) => return Err(ended()),
            Err(_) => return Err(Error::new(ErrorKind::TimedOut, "the leash does not start")),
        }
        // In a pipeline another program may read the terminal, such as `less`.
        let needs_terminal = stdin().is_terminal() && stdout().is_terminal();
        let terminal = Terminal::open();
        Ok(Self { id, _leash: leash, input, output, command: None, terminal, needs_terminal })
    }

    /// Starts the command in the group, with the terminal if this process is in its foreground.
    ///
    /// # Errors
    /// The command cannot be started.
    pub(crate) fn spawn(&mut self, mut command: Command) -> Result<()> {
        self.give_terminal();
        self.command = Some(command.process_group(self.id.as_raw_nonzero().get()).spawn()?);
        Ok(())
    }

    /// Lets the leash kill the group at this instant, unless it is moved.
    pub(crate) async fn hold_until(&mut self, deadline: Instant) {
        // The shared clock first: if this process is stopped in between, the deadline is too early.
        let now = boot_clock::now();
        let line = leash::line(now + deadline.saturating_duration_since(Instant::now()));
        // If the leash has ended, its end is reported.
        let _ = timeout(WRITE_LIMIT, self.input.write_all(line.as_bytes())).await;
    }

    /// Sends a signal to all processes of the group, and to the command, which may have left it.
    /// The leash survives it, unless it is SIGKILL or SIGSTOP.
    pub(crate) fn signal(&self, signal: Signal) {
        // The group is empty if both have ended.
        let _ = kill_process_group(self.id, signal);
        if let Some(command) = self.command_elsewhere() {
            let _ = kill_process(command, signal);
        }
    }

    /// Returns the command if it has left the group, as an interactive shell does.
    fn command_elsewhere(&self) -> Option<Pid> {
        self.command.as_ref().and_then(id).filter(|command| getpgid(Some(*command)) != Ok(self.id))
    }

    /// Returns what a change of a child means.
    pub(crate) fn change(&mut self, child: Pid, status: WaitStatus) -> Change {
        let has_ended = status.exited() || status.signaled();
        if child == self.id && has_ended {
            Change::LeashEnded
        } else if self.command.as_ref().and_then(id) != Some(child) {
            Change::Other
        } else if has_ended {
            self.command = None;
            Change::Ended(ExitStatus::from_raw(status.as_raw()))
        } else {
            status.stopping_signal().map_or(Change::Continued, Change::Stopped)
        }
    }

    /// Gives the terminal to the group if it is to have it, and this process can give it.
    pub(crate) fn give_terminal(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.needs_terminal) {
            terminal.give(self.id);
        }
    }

    /// Returns whether the group is in the terminal's foreground.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(self.id))
    }

    /// Puts this process into the terminal's foreground if the group is in it.
    async fn take_terminal_back(&mut self, limit: Duration) {
        let taken = async {
            if self.has_terminal() && self.input.write_all(leash::GIVE_TERMINAL_BACK.as_bytes()).await.is_ok() {
                while self.has_terminal() && matches!(self.output.next_line().await, Ok(Some(_))) {}
            }
        };
        let _ = timeout(limit, taken).await;
    }

    /// Does what is to be done when the command was stopped by the signal with this number.
    pub(crate) async fn on_stop(&mut self, by: i32) {
        // If it has stopped its whole group, there must still be a leash.
        let _ = kill_process(self.id, Signal::CONT);
        // What the user types concerns this process now.
        self.take_terminal_back(END_LIMIT).await;
        let is_ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        match OnStop::decide(by, self.has_shell(), is_ours && self.command_elsewhere().is_none()) {
            OnStop::StopToo => self.stop_too(),
            OnStop::Continue => {
                self.needs_terminal |= by != Signal::TSTP.as_raw();
                self.resume();
            }
            OnStop::Wait => {}
        }
    }

    /// Stops this process, with the others of its job, until the shell continues it. Then the
    /// command continues. Meanwhile the leash watches the deadline.
    pub(crate) fn stop_too(&self) {
        if self.has_shell() {
            // Unlike SIGSTOP, this stops nothing if the shell has gone. SIGTSTP has a handler.
            let _ = kill_current_process_group(Signal::TTIN);
        }
        self.resume();
    }

    fn resume(&self) {
        self.give_terminal();
        self.signal(Signal::CONT);
    }

    /// Returns whether a shell can continue this process when it has stopped.
    fn has_shell(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::has_shell)
    }

    /// Takes the terminal back, kills what is left in the group, and returns when it is gone;
    /// `false` if it is not after a moment. Returns the status of the command if it has ended now.
    /// The terminal may take `limit` until the group is killed.
    pub(crate) async fn end(mut self, limit: Duration) -> (bool, Option<ExitStatus>) {
        self.take_terminal_back(limit).await;
        self.signal(Signal::KILL);
        let mut status = None;
        let gone = timeout(END_LIMIT, async {
            loop {
                while let Some((child, changed)) = signals::change() {
                    if let Change::Ended(ended) = self.change(child, changed) {
                        status = Some(ended);
                    }
                }
                if self.command.is_none() && self.is_gone() {
                    return;
                }
                sleep(POLL).await;
            }
        });
        let gone = gone.await.is_ok();
        (gone, status)
    }

    /// Returns whether all processes of the group have ended. Some may wait for a parent that does
    /// not collect them, such as a process 1 that is no init.
    fn is_gone(&self) -> bool {
        test_kill_process_group(self.id) == Err(Errno::SRCH) || processes::have_ended(self.id)
    }
}

fn id(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Returns the path of this program. Linux finds it even after an update has replaced the file.
fn this_program() -> Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { Ok(link) } else { std::env::current_exe() }
}

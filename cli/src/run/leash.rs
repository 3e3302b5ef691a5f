//! The leash: a small process that ends the command when `distlock` no longer can.
//!
//! It is this program once more, the first process of the command's process group, and lives until
//! the group is killed. It kills the whole group, itself included, in two cases:
//!
//! * Its standard input ends: `distlock` was killed.
//! * A deadline passes that `distlock` has not moved: `distlock` is stopped, or starved.
//!
//! The deadlines come through its standard input, one per line, as milliseconds of the
//! [`boot_clock`]. It owns nothing else, and needs no connection. Signals that are sent to the
//! group, except SIGKILL and SIGSTOP, neither end nor stop it.
//!
//! As a member of the group it can also give the terminal back to `distlock`, which cannot take it.

use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_current_process_group};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::signal::unix::signal;
use tokio::time::sleep;

use super::boot_clock;
use super::terminal::Terminal;
use crate::signals::kind;
use crate::{exit, output};

/// The first argument of a leash. It is not for people. The second one is the process group of
/// `distlock`.
pub(crate) const ARGUMENT: &str = "__leash";
/// What a leash writes when it is ready, and when it has given the terminal back.
pub(crate) const READY: &str = "ready";
/// The line at which the leash gives the terminal back.
pub(crate) const GIVE_TERMINAL_BACK: &str = "terminal\n";
/// Signals of which the default action ends or stops a process, and which a command or a terminal
/// may send to its group.
const SURVIVED: [Signal; 11] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::PIPE,
    Signal::ALARM,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
];
/// How long the reason may take to be written: the reader of standard error may have stopped.
const WRITE_LIMIT: Duration = Duration::from_millis(10);
/// Timers stand still while the machine sleeps, so the clock is read at least this often.
const LOOK: Duration = Duration::from_millis(100);

/// Why the group is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    DistlockEnded,
    DeadlinePassed,
}

impl Why {
    const fn text(self) -> &'static str {
        match self {
            Self::DistlockEnded => "distlock was killed: its command is killed, too",
            Self::DeadlinePassed => "distlock does not respond, and the lock is about to end: its command is killed",
        }
    }
}

/// Runs the leash. It returns only if it cannot do its job.
pub(crate) fn main() -> ExitCode {
    if getpgrp() != getpid() {
        eprintln!("distlock: {ARGUMENT} is for distlock itself, see `distlock run --help`");
        return ExitCode::from(exit::USAGE);
    }
    let above = std::env::args().nth(2).and_then(|group| Pid::from_raw(group.parse().ok()?));
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        // The end of the runtime would wait for the read of standard input.
        Ok(runtime) => runtime.block_on(async { kill(watch(above).await, above) }),
        Err(error) => kill(Err(error), above),
    }
    ExitCode::from(exit::SOFTWARE)
}

/// Kills the group, this process included, after it has given the terminal back.
fn kill(why: std::io::Result<Why>, above: Option<Pid>) {
    let text = match why {
        Ok(why) => why.text().to_owned(),
        Err(error) => format!("the leash of distlock failed, and the command is killed: {error}"),
    };
    give_terminal_back(above);
    let (written, is_written) = channel();
    let write = move || {
        let _ = writeln!(std::io::stderr(), "{text}");
        let _ = written.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = is_written.recv_timeout(WRITE_LIMIT);
    }
    let _ = kill_current_process_group(Signal::KILL);
}

/// Gives the terminal to the process group of `distlock` if this one has it.
fn give_terminal_back(above: Option<Pid>) {
    if let (Some(terminal), Some(above)) = (Terminal::open(), above) {
        terminal.give(above);
    }
}

async fn watch(above: Option<Pid>) -> std::io::Result<Why> {
    // A handler, even one that does nothing, replaces the default action.
    let handlers: std::io::Result<Vec<_>> = SURVIVED.into_iter().map(|number| signal(kind(number))).collect();
    let _handlers = handlers?;
    // If nothing reads it, standard input ends, too.
    let say_ready = || {
        let _ = output::line(READY);
    };
    say_ready();
    let mut lines = BufReader::new(stdin()).lines();
    let mut deadline = None;
    loop {
        if has_passed(deadline, boot_clock::now()) {
            return Ok(Why::DeadlinePassed);
        }
        let left = deadline.map_or(LOOK, |deadline: Duration| deadline.saturating_sub(boot_clock::now()).min(LOOK));
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) if line == GIVE_TERMINAL_BACK.trim_end() => {
                    give_terminal_back(above);
                    say_ready();
                }
                Some(line) => deadline = parse(&line).or(deadline),
                None => return Ok(Why::DistlockEnded),
            },
            () = sleep(left) => {}
        }
    }
}

fn has_passed(deadline: Option<Duration>, now: Duration) -> bool {
    deadline.is_some_and(|deadline| deadline <= now)
}

/// Reads a deadline; `None` if the text is none.
fn parse(line: &str) -> Option<Duration> {
    line.trim().parse().ok().map(Duration::from_millis)
}

/// Writes a deadline, rounded down.
pub(crate) fn line(deadline: Duration) -> String {
    format!("{}\n", deadline.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_read_as_it_was_written() {
        let deadline = Duration::from_millis(86_400_123);
        assert_eq!(parse(&line(deadline)), Some(deadline));
        assert_eq!(parse(&line(deadline + Duration::from_micros(999))), Some(deadline), "rounded down");
        for text in ["", "x", "-1", "1.5"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_deadline_passes() {
        let now = Duration::from_secs(100);
        for (deadline, passed) in [(None, false), (Some(101), false), (Some(100), true), (Some(99), true)] {
            assert_eq!(has_passed(deadline.map(Duration::from_secs), now), passed, "{deadline:?}");
        }
    }
}

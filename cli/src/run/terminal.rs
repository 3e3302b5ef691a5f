//! The terminal of a run, and what is done when its command stops.
//!
//! The command has a process group of its own, and only the group in the foreground of a terminal
//! may read it. So `distlock` gives the terminal to that group while it is in the foreground
//! itself. Only a process in the foreground can pass the terminal on: the leash gives it back.
//! Without `/proc`, the command stays in the background.

use std::fs::{File, read_to_string};

use rustix::process::{Pid, Signal};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    device: File,
    own_group: Pid,
}

impl Terminal {
    /// Opens it; `None` if this process has none, or cannot name its own process group.
    pub(crate) fn open() -> Option<Self> {
        let own_group = own_group()?;
        Some(Self { device: File::open("/dev/tty").ok()?, own_group })
    }

    /// Returns whether a process group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.device).ok() == Some(group)
    }

    /// Returns whether the process group of this process is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_of(self.own_group)
    }

    /// Gives it to a process group if this process is in the foreground. From the background, the
    /// system would stop this process instead.
    pub(crate) fn give(&self, group: Pid) {
        if self.is_ours() {
            let _ = tcsetpgrp(&self.device, group);
        }
    }

    /// Returns whether a shell above has made a job of this process, which it can stop and
    /// continue. The group of a session's first process has no shell above: that of process 1 of a
    /// container, or of `ssh -t HOST distlock …`.
    pub(crate) fn has_shell(&self) -> bool {
        of_status("NSsid:") != Some(self.own_group)
    }
}

/// Returns the process group of this process; `None` without `/proc`, or if the group is outside of
/// the PID namespace, where it has no number.
pub(crate) fn own_group() -> Option<Pid> {
    of_status("NSpgid:")
}

/// Returns an id as it is in the PID namespace of this process. It is 0 if there is none.
fn of_status(name: &str) -> Option<Pid> {
    let status = read_to_string("/proc/self/status").ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
    Pid::from_raw(ids.split_whitespace().last()?.parse().ok()?)
}

/// What is done about a command that has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnStop {
    /// Continue it: nothing else could, or it has only waited for the terminal.
    Continue,
    /// Stop with it, until the shell continues the job.
    StopToo,
    /// Wait. It can be continued until it has to be ended.
    Wait,
}

impl OnStop {
    /// Decides about a stop by the signal `by`. `has_shell`: a shell can continue this process.
    /// `in_foreground`: this process can give the terminal to the command.
    pub(crate) fn decide(by: i32, has_shell: bool, in_foreground: bool) -> Self {
        let by_key = by == Signal::TSTP.as_raw();
        let by_use = by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw();
        match (has_shell, in_foreground) {
            (_, true) if by_use => Self::Continue,
            (true, _) if by_use || by_key => Self::StopToo,
            (false, _) if by_key => Self::Continue,
            _ => Self::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_passed_on_to_a_shell_only() {
        use OnStop::{Continue, StopToo, Wait};
        // signal; with a shell in the foreground and in the background, and the same without one
        for (by, expected) in [
            (Signal::TSTP, [StopToo, StopToo, Continue, Continue]),
            (Signal::TTIN, [Continue, StopToo, Continue, Wait]),
            (Signal::TTOU, [Continue, StopToo, Continue, Wait]),
            (Signal::STOP, [Wait, Wait, Wait, Wait]),
        ] {
            let cases = [(true, true), (true, false), (false, true), (false, false)];
            let decided = cases.map(|(has_shell, foreground)| OnStop::decide(by.as_raw(), has_shell, foreground));
            assert_eq!(decided, expected, "{by:?}");
        }
    }
}

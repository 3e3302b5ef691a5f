//! The signals that end a program, those that are meant for its command, and what becomes of its
//! children.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use rustix::process::{Pid, Signal as Number, WaitOptions, WaitStatus, kill_current_process_group, wait};
use tokio::signal::unix::{Signal, SignalKind, signal};

const ENDING: [Number; 4] = [Number::HUP, Number::INT, Number::QUIT, Number::TERM];
/// They do nothing to `distlock` itself, whose command may need them.
const PASSED: [Number; 3] = [Number::USR1, Number::USR2, Number::WINCH];

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM from now on. They no longer end this process. Those that its
/// parent has made it ignore, as `nohup` does, stay ignored, and so they are for its command.
#[derive(Debug)]
pub(crate) struct Signals {
    ending: Vec<(Number, Signal)>,
    passed: Vec<(Number, Signal)>,
    /// SIGCHLD, of a process that has children.
    children: Option<Signal>,
}

/// What concerns a command.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// This process has got a signal.
    Signal(Number),
    /// A child of this process has ended, stopped or continued.
    Child(Pid, WaitStatus),
}

impl Signals {
    /// Begins to receive the signals.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self { ending: streams(&ENDING)?, passed: Vec::new(), children: None })
    }

    /// Receives those for a command as well: SIGUSR1, SIGUSR2 and SIGWINCH. From now on, all
    /// children are waited for here, also those that this process adopts as process 1 of a
    /// container.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub(crate) fn listen_for_command() -> std::io::Result<Self> {
        let children = Some(signal(SignalKind::child())?);
        Ok(Self { passed: streams(&PASSED)?, children, ..Self::listen()? })
    }

    /// Waits for the next of those that end a program. Cancel safe: no signal is lost.
    pub(crate) async fn next(&mut self) -> Number {
        poll_fn(|context| {
            if let Some(children) = &mut self.children {
                while poll_change(children, context).is_ready() {}
            }
            poll_signal(&mut [&mut self.ending], context)
        })
        .await
    }

    /// Begins to receive SIGTSTP for a command that is about to start. Forgets the signals for the
    /// command that have come before: they meant another one.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub(crate) fn begin_command(&mut self) -> std::io::Result<()> {
        let forget = |context: &mut Context<'_>| {
            while poll_signal(&mut [&mut self.passed], context).is_ready() {}
            Poll::Ready(())
        };
        let _ = poll_fn(forget).now_or_never();
        // A process that waits for a lock stops by it, as others do.
        self.passed.extend(streams(&[Number::TSTP])?);
        Ok(())
    }

    /// Waits for the next event for the command. Cancel safe: none is lost.
    pub(crate) async fn next_for_command(&mut self) -> Event {
        poll_fn(|context| {
            if let Some(children) = &mut self.children
                && let Poll::Ready((child, status)) = poll_change(children, context)
            {
                return Poll::Ready(Event::Child(child, status));
            }
            poll_signal(&mut [&mut self.ending, &mut self.passed], context).map(Event::Signal)
        })
        .await
    }

    /// Sends a signal that ends a program to the process group of this process, which survives it.
    pub(crate) async fn send_to_own_group(&mut self, number: Number) {
        if self.ending.iter().any(|(received, _)| *received == number) {
            let _ = kill_current_process_group(number);
            self.next().await;
        }
    }
}

/// Returns whether a signal ends a program.
pub(crate) fn ends(number: Number) -> bool {
    ENDING.contains(&number)
}

/// Returns what has become of a child, once for each change. A child that has ended is gone then.
pub(crate) fn change() -> Option<(Pid, WaitStatus)> {
    wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED).ok().flatten()
}

fn poll_change(children: &mut Signal, context: &mut Context<'_>) -> Poll<(Pid, WaitStatus)> {
    loop {
        if let Some(change) = change() {
            return Poll::Ready(change);
        }
        ready!(children.poll_recv(context));
    }
}

fn streams(numbers: &[Number]) -> std::io::Result<Vec<(Number, Signal)>> {
    let ignored = ignored();
    let received = numbers.iter().filter(|number| ignored >> (number.as_raw() - 1) & 1 == 0);
    received.map(|number| Ok((*number, signal(kind(*number))?))).collect()
}

fn poll_signal(streams: &mut [&mut Vec<(Number, Signal)>], context: &mut Context<'_>) -> Poll<Number> {
    for (number, stream) in streams.iter_mut().flat_map(|streams| streams.iter_mut()) {
        if let Poll::Ready(Some(())) = stream.poll_recv(context) {
            return Poll::Ready(*number);
        }
    }
    Poll::Pending
}

/// Returns the signals that this process ignores, one bit each. Where there is no `/proc`, none is
/// known to be ignored.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns the number as tokio names it.
pub(crate) fn kind(number: Number) -> SignalKind {
    SignalKind::from_raw(number.as_raw())
}

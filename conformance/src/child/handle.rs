//! Signals and clock changes for a child, its history, and its accounting.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::process::{Child, TOLERANCE, unexpected};
use super::protocol::{Answer, Request};
use crate::bounded::LIVENESS;
use crate::failure::{Failure, Verdict, ensure};
use crate::process;
use crate::recorder::Recorder;

/// The process and the clock of a child, for faults while the child is in use.
#[derive(Clone)]
pub(crate) struct Handle {
    pid: u32,
    clock: Option<Arc<PathBuf>>,
}

impl Handle {
    /// Sends a signal by its name without `SIG`.
    pub(crate) async fn signal(&self, name: &str) -> Verdict {
        Ok(process::send(name, self.pid).await?)
    }

    /// Returns the state of the process, as in `/proc`.
    pub(crate) fn state(&self) -> Option<char> {
        process::state(self.pid)
    }

    /// Sets its clock `shift` seconds ahead of the machine's, or behind if negative. The child
    /// notices within about a second.
    pub(crate) fn set_clock(&self, shift: i64) -> Verdict {
        let Some(file) = &self.clock else { return Err(Failure::new("this child's clock cannot be set")) };
        Ok(clock::set(file, shift)?)
    }
}

impl Child {
    /// Returns `None` if the process has ended.
    pub(crate) fn handle(&self) -> Option<Handle> {
        let clock = self.clock.as_ref().map(|file| file.shared());
        self.process.id().map(|pid| Handle { pid, clock })
    }

    /// Records its calls from now on in another history, as those of a client of its own.
    pub(crate) fn record_in(&mut self, recorder: &Recorder) {
        self.recorder = recorder.clone();
        self.number = recorder.client();
    }

    /// Returns its number in the history.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Waits until its clock is shifted by `shift` seconds.
    pub(crate) async fn ensure_clock(&mut self, shift: i64) -> Verdict {
        let deadline = tokio::time::Instant::now() + LIVENESS;
        loop {
            let error = self.clock_error(shift).await?;
            if error < TOLERANCE {
                return Ok(());
            }
            let over = tokio::time::Instant::now() > deadline;
            ensure!(!over, "a child's clock was shifted by {shift} s, and is still wrong by {error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns its accounting if that is not settled: a lock is held, a caller waits, or it does
    /// not balance.
    pub(crate) async fn unsettled_accounting(&mut self) -> Result<Option<String>, Failure> {
        match self.send(Request::Accounting).await? {
            Answer::Accounting { idle, accounting } => Ok((!idle).then_some(accounting)),
            other => Err(unexpected(&other)),
        }
    }
}

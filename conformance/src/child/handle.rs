//! What can be done to a child.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::process::{Child, TOLERANCE, unexpected};
use super::protocol::{Answer, Order};
use crate::bounded::LIVENESS;
use crate::failure::{Failure, Verdict, ensure};
use crate::process;
use crate::recorder::Recorder;

/// A child as others see it: a process to which signals can be sent, and its clock, while it is at work.
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

    /// What it does, as `/proc` has it.
    pub(crate) fn state(&self) -> Option<char> {
        process::state(self.pid)
    }

    /// Sets its clock so many seconds ahead of the machine's, or behind. It sees that within about a second.
    pub(crate) fn set_clock(&self, shift: i64) -> Verdict {
        let Some(file) = &self.clock else { return Err(Failure::new("this child's clock cannot be set")) };
        Ok(clock::set(file, shift)?)
    }
}

impl Child {
    /// None if it is no more.
    pub(crate) fn handle(&self) -> Option<Handle> {
        let clock = self.clock.as_ref().map(|file| file.shared());
        self.process.id().map(|pid| Handle { pid, clock })
    }

    /// What it does from now on belongs to another history, as the calls of a client of its own.
    pub(crate) fn record_in(&mut self, recorder: &Recorder) {
        self.recorder = recorder.clone();
        self.number = recorder.client();
    }

    /// Its number in the history.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Makes sure that its clock is shifted by so much, before long.
    pub(crate) async fn ensure_clock(&mut self, shift: i64) -> Verdict {
        let deadline = tokio::time::Instant::now() + LIVENESS;
        loop {
            let error = self.clock_error(shift).await?;
            if error < TOLERANCE {
                return Ok(());
            }
            let over = tokio::time::Instant::now() > deadline;
            ensure!(!over, "a child's clock was set by {shift} s, and is wrong by {error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// None if nothing is held and nobody waits, and its books balance; else what they say.
    pub(crate) async fn unbalanced(&mut self) -> Result<Option<String>, Failure> {
        match self.ask(Order::Accounting).await? {
            Answer::Accounting { idle, books } => Ok((!idle).then_some(books)),
            other => Err(unexpected(&other)),
        }
    }
}

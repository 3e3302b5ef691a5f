//! The parent's side.

use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock_api::{LockKey, Mode};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::VARIABLE;
use super::clock::ClockFile;
use super::protocol::{Answer, ChildError, Job, Request};
use crate::bounded::{LIVENESS, within};
use crate::failure::{Failure, FailureKind};
use crate::history::CallKind;
use crate::recorder::{Holding, Recorder};

/// The wall clock that a child sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The machine's clock.
    True,
    /// An hour ahead.
    Fast,
    /// An hour behind.
    Slow,
    /// The machine's, until it is [set](super::Handle::set_clock).
    Adjustable,
}

const SHIFT_SECONDS: i64 = 3600;
/// The largest error of a shifted clock that is accepted.
pub(super) const TOLERANCE: Duration = Duration::from_secs(120);

/// A child process that is a client, with at most one guard. Killed when dropped.
pub(crate) struct Child {
    pub(super) process: tokio::process::Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    pub(super) recorder: Recorder,
    pub(super) number: usize,
    /// What it holds, and until when that is certain, whatever happens to the process.
    holding: Option<(Holding, Duration)>,
    /// The file from which it reads the shift of its clock.
    pub(super) clock: Option<ClockFile>,
}

/// A grant in a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildGrant {
    pub(crate) token: u64,
    pub(crate) remaining: Duration,
}

/// The guard of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardState {
    pub(crate) lost: bool,
    pub(crate) remaining: Duration,
}

impl Child {
    pub(crate) async fn start(
        fixture: &str,
        address: &str,
        clock: Clock,
        recorder: &Recorder,
    ) -> Result<Self, Failure> {
        let job = Job { fixture: fixture.to_owned(), address: address.to_owned() };
        let job = serde_json::to_string(&job).expect("a job is plain data");
        let mut command = Command::new(std::env::current_exe()?);
        command.env(VARIABLE, job).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        if clock != Clock::True {
            let library = tokio::task::spawn_blocking(faketime_library).await.expect("it does not panic")?;
            command.env("LD_PRELOAD", library).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let file = (clock == Clock::Adjustable).then(ClockFile::new).transpose()?;
        match (clock, &file) {
            (_, Some(file)) => command.env("FAKETIME_TIMESTAMP_FILE", file.path()).env("FAKETIME_CACHE_DURATION", "1"),
            (Clock::Fast, _) => command.env("FAKETIME", "+3600s"),
            (Clock::Slow, _) => command.env("FAKETIME", "-3600s"),
            _ => &mut command,
        };
        let mut process = command.spawn()?;
        let requests = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (recorder, number) = (recorder.clone(), recorder.client());
        let mut child = Self { process, requests, answers, recorder, number, holding: None, clock: file };
        match child.answer().await? {
            Answer::Ready => child.verify(clock).await.map(|()| child),
            other => Err(unexpected(&other)),
        }
    }

    /// Ensures that the clock is as wrong as it should be: otherwise a check proves nothing.
    async fn verify(&mut self, clock: Clock) -> Result<(), Failure> {
        let shift = match clock {
            Clock::True | Clock::Adjustable => 0,
            Clock::Fast => SHIFT_SECONDS,
            Clock::Slow => -SHIFT_SECONDS,
        };
        let error = self.clock_error(shift).await?;
        if error < TOLERANCE {
            return Ok(());
        }
        let message = format!("the child's clock should be {clock:?}, and differs from that by {error:?}");
        Err(Failure::of(FailureKind::Check, message))
    }

    /// Returns how far its clock is from the machine's clock plus `shift`.
    pub(super) async fn clock_error(&mut self, shift: i64) -> Result<Duration, Failure> {
        let Answer::Clock { unix_ms } = self.send(Request::Clock).await? else {
            return Err(Failure::of(FailureKind::Check, "the child did not return the time"));
        };
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let by = Duration::from_secs(shift.unsigned_abs());
        let expected = if shift < 0 { here.saturating_sub(by) } else { here + by };
        Ok(expected.abs_diff(Duration::from_millis(unix_ms)))
    }

    /// Acquires a lock. Returns `None` if it was not granted within `wait`; a `wait` of zero is a
    /// single attempt.
    pub(crate) async fn acquire(
        &mut self,
        key: &LockKey,
        ttl: Duration,
        renew: bool,
        wait: Duration,
    ) -> Result<Option<ChildGrant>, Failure> {
        self.acquire_result(key, Mode::Exclusive, ttl, renew, wait).await?.map_err(|error| error.failure())
    }

    /// Acquires as [`acquire`](Self::acquire) does, in any mode, and returns errors of the backend
    /// instead of failing.
    pub(crate) async fn acquire_result(
        &mut self,
        key: &LockKey,
        mode: Mode,
        ttl: Duration,
        renew: bool,
        wait: Duration,
    ) -> Result<Result<Option<ChildGrant>, ChildError>, Failure> {
        let [ttl_ms, wait_ms] = [ttl, wait].map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let request = Request::Acquire { key: key.as_str().to_owned(), mode, ttl_ms, renew, wait_ms };
        let (started, acquisition) = (self.recorder.now(), self.recorder.acquisition(self.number, key, mode));
        match self.send(request).await? {
            Answer::Granted { token, remaining_ms } => {
                let remaining = Duration::from_millis(remaining_ms);
                self.holding = Some((acquisition.granted(token), started.saturating_add(remaining)));
                Ok(Ok(Some(ChildGrant { token, remaining })))
            }
            Answer::Busy => {
                if wait.is_zero() {
                    acquisition.busy(CallKind::Busy);
                }
                Ok(Ok(None))
            }
            Answer::Failed { error, unknown } => Ok(Err(ChildError { error, unknown })),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the state of its guard.
    pub(crate) async fn guard_state(&mut self) -> Result<GuardState, Failure> {
        match self.send(Request::GuardState).await? {
            Answer::GuardState { lost, remaining_ms } => {
                Ok(GuardState { lost, remaining: Duration::from_millis(remaining_ms) })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Releases the lock. Returns whether the lease was still held.
    pub(crate) async fn release(&mut self) -> Result<bool, Failure> {
        self.release_result().await?.map_err(|error| error.failure())
    }

    /// Releases as [`release`](Self::release) does, and returns errors of the backend instead of
    /// failing.
    pub(crate) async fn release_result(&mut self) -> Result<Result<bool, ChildError>, Failure> {
        let (holding, started) = (self.take_holding(), self.recorder.now());
        match self.send(Request::Release).await? {
            Answer::Released { in_time } => {
                match holding {
                    Some(holding) if in_time => {
                        // It was renewed until then.
                        holding.until(started);
                        holding.released(started);
                    }
                    Some(holding) => holding.lost(),
                    None => {}
                }
                Ok(Ok(in_time))
            }
            Answer::Failed { error, unknown } => Ok(Err(ChildError { error, unknown })),
            other => Err(unexpected(&other)),
        }
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        // What it holds ends at an unknown time.
        drop(self.take_holding());
        Ok(self.process.kill().await?)
    }

    /// Takes out what it holds, with the end of the time that is certain so far.
    fn take_holding(&mut self) -> Option<Holding> {
        let (holding, valid_until) = self.holding.take()?;
        holding.until(holding.now().min(valid_until));
        Some(holding)
    }

    pub(super) async fn send(&mut self, request: Request) -> Result<Answer, Failure> {
        let mut line = serde_json::to_string(&request).expect("requests are plain data");
        line.push('\n');
        self.requests.write_all(line.as_bytes()).await?;
        self.requests.flush().await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Answer, Failure> {
        within(LIVENESS * 2, "a child process to answer", async {
            loop {
                let Some(line) = self.answers.next_line().await? else {
                    return Err(Failure::of(FailureKind::Check, "a child process ended before it answered"));
                };
                // Skip what a library prints in the child.
                if let Ok(answer) = serde_json::from_str(&line) {
                    return Ok(answer);
                }
            }
        })
        .await?
    }
}

pub(super) fn unexpected(answer: &Answer) -> Failure {
    let (kind, message) = match answer {
        Answer::Failed { error, .. } => (FailureKind::Error, format!("a child process failed: {error}")),
        other => (FailureKind::Check, format!("a child process sent an unexpected answer: {other:?}")),
    };
    Failure::of(kind, message)
}

#[cfg(feature = "faketime")]
fn faketime_library() -> Result<std::path::PathBuf, Failure> {
    crate::faketime::faketime_library().map_err(|error| Failure::of(FailureKind::Check, crate::failure::chain(&error)))
}

/// Without the feature `faketime`, the environment must name the library.
#[cfg(not(feature = "faketime"))]
fn faketime_library() -> Result<std::path::PathBuf, Failure> {
    let named = std::env::var_os("DISTLOCK_FAKETIME_LIB").filter(|name| !name.is_empty());
    let message = "there is no libfaketime: set DISTLOCK_FAKETIME_LIB to its path, or enable the feature `faketime`";
    named.map(Into::into).ok_or_else(|| Failure::of(FailureKind::Check, message))
}

//! The parent's side.

use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock_api::LockKey;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::VARIABLE;
use super::clock::ClockFile;
use super::protocol::{Answer, Job, Order, Refusal};
use crate::bounded::{LIVENESS, within};
use crate::failure::{Failure, FailureKind};
use crate::recorder::{Holding, Recorder};

/// The wall clock that a child sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The machine's.
    True,
    /// An hour ahead.
    Fast,
    /// An hour behind.
    Slow,
    /// The machine's, until it is [set](Child::set_clock).
    Adjustable,
}

const SHIFT_SECONDS: i64 = 3600;
/// How exactly a shifted clock must be shifted, to be believed.
pub(super) const TOLERANCE: Duration = Duration::from_secs(120);

/// A child process that is a client, with at most one guard. Killed when dropped.
pub(crate) struct Child {
    pub(super) process: tokio::process::Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    pub(super) recorder: Recorder,
    pub(super) number: usize,
    /// What it holds, and until when for certain, whatever becomes of the process.
    holding: Option<(Holding, Duration)>,
    /// The file from which it reads how wrong its clock is.
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
pub(crate) struct ChildStanding {
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
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (recorder, number) = (recorder.clone(), recorder.client());
        let mut child = Self { process, orders, answers, recorder, number, holding: None, clock: file };
        match child.answer().await? {
            Answer::Ready => child.verify(clock).await.map(|()| child),
            other => Err(unexpected(&other)),
        }
    }

    /// A check with a wrong clock proves nothing if the clock is right.
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
        let message = format!("the child's clock ought to be {clock:?}, and is wrong by {error:?}");
        Err(Failure::of(FailureKind::Check, message))
    }

    /// How far its clock is from the machine's with this shift.
    pub(super) async fn clock_error(&mut self, shift: i64) -> Result<Duration, Failure> {
        let Answer::Clock { unix_ms } = self.ask(Order::Clock).await? else {
            return Err(Failure::of(FailureKind::Check, "the child does not know the time"));
        };
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let by = Duration::from_secs(shift.unsigned_abs());
        let expected = if shift < 0 { here.saturating_sub(by) } else { here + by };
        Ok(expected.abs_diff(Duration::from_millis(unix_ms)))
    }

    /// Acquires; none if that took longer than `wait`, zero being a single attempt.
    pub(crate) async fn acquire(
        &mut self,
        key: &LockKey,
        ttl: Duration,
        renew: bool,
        wait: Duration,
    ) -> Result<Option<ChildGrant>, Failure> {
        self.ask_for(key, ttl, renew, wait).await?.map_err(|refusal| refusal.failure())
    }

    /// The same, where the backend may fail.
    pub(crate) async fn ask_for(
        &mut self,
        key: &LockKey,
        ttl: Duration,
        renew: bool,
        wait: Duration,
    ) -> Result<Result<Option<ChildGrant>, Refusal>, Failure> {
        let [ttl_ms, wait_ms] = [ttl, wait].map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let order = Order::Acquire { key: key.as_str().to_owned(), ttl_ms, renew, wait_ms };
        let (asked, acquisition) = (self.recorder.now(), self.recorder.acquisition(self.number, key));
        match self.ask(order).await? {
            Answer::Granted { token, remaining_ms } => {
                let remaining = Duration::from_millis(remaining_ms);
                self.holding = Some((acquisition.granted(token), asked.saturating_add(remaining)));
                Ok(Ok(Some(ChildGrant { token, remaining })))
            }
            Answer::Busy => {
                if wait.is_zero() {
                    acquisition.busy();
                }
                Ok(Ok(None))
            }
            Answer::Failed { error, unknown } => Ok(Err(Refusal { error, unknown })),
            other => Err(unexpected(&other)),
        }
    }

    /// How its guard is doing.
    pub(crate) async fn look(&mut self) -> Result<ChildStanding, Failure> {
        match self.ask(Order::Look).await? {
            Answer::Standing { lost, remaining_ms } => {
                Ok(ChildStanding { lost, remaining: Duration::from_millis(remaining_ms) })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Releases; whether that was in time.
    pub(crate) async fn release(&mut self) -> Result<bool, Failure> {
        self.give_back().await?.map_err(|refusal| refusal.failure())
    }

    /// The same, where the backend may fail.
    pub(crate) async fn give_back(&mut self) -> Result<Result<bool, Refusal>, Failure> {
        let (holding, asked) = (self.let_go(), self.recorder.now());
        match self.ask(Order::Release).await? {
            Answer::Released { in_time } => {
                match holding {
                    Some(holding) if in_time => {
                        // It was renewed as long as it had to be.
                        holding.until(asked);
                        holding.released(asked);
                    }
                    Some(holding) => holding.lost(),
                    None => {}
                }
                Ok(Ok(in_time))
            }
            Answer::Failed { error, unknown } => Ok(Err(Refusal { error, unknown })),
            other => Err(unexpected(&other)),
        }
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        // Whatever it holds ends at an unknown time.
        drop(self.let_go());
        Ok(self.process.kill().await?)
    }

    /// What it holds now and will not hold much longer.
    fn let_go(&mut self) -> Option<Holding> {
        let (holding, valid_until) = self.holding.take()?;
        holding.until(holding.now().min(valid_until));
        Some(holding)
    }

    pub(super) async fn ask(&mut self, order: Order) -> Result<Answer, Failure> {
        let mut line = serde_json::to_string(&order).expect("orders are plain data");
        line.push('\n');
        self.orders.write_all(line.as_bytes()).await?;
        self.orders.flush().await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Answer, Failure> {
        within(LIVENESS * 2, "a child process to answer", async {
            loop {
                let Some(line) = self.answers.next_line().await? else {
                    return Err(Failure::of(FailureKind::Check, "a child process ended before it had answered"));
                };
                // Whatever else a library prints in the child is not for us.
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
        Answer::Failed { error, .. } => (FailureKind::Error, format!("a child process says: {error}")),
        other => (FailureKind::Check, format!("a child process gave an answer that does not fit: {other:?}")),
    };
    Failure::of(kind, message)
}

#[cfg(feature = "faketime")]
fn faketime_library() -> Result<std::path::PathBuf, Failure> {
    crate::faketime::faketime_library().map_err(|error| Failure::of(FailureKind::Check, crate::failure::chain(&error)))
}

/// Without the feature that knows where to find one, the library must be named.
#[cfg(not(feature = "faketime"))]
fn faketime_library() -> Result<std::path::PathBuf, Failure> {
    let named = std::env::var_os("DISTLOCK_FAKETIME_LIB").filter(|name| !name.is_empty());
    let message = "no libfaketime: name one by DISTLOCK_FAKETIME_LIB";
    named.map(Into::into).ok_or_else(|| Failure::of(FailureKind::Check, message))
}

//! The parent's side.

use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock_api::LockKey;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::VARIABLE;
use super::protocol::{Answer, Job, Order};
use crate::context::{LIVENESS, within};
use crate::failure::{Failure, ensure};
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
}

const SHIFT: Duration = Duration::from_secs(3600);
/// How exactly a shifted clock must be shifted, to be believed.
const TOLERANCE: Duration = Duration::from_secs(120);

/// A child process that is a client, with at most one guard. Killed when dropped.
pub(crate) struct Child {
    process: tokio::process::Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    recorder: Recorder,
    number: usize,
    /// What it holds, and until when for certain, whatever becomes of the process.
    holding: Option<(Holding, Duration)>,
}

/// A grant in a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildGrant {
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
            let shift = if clock == Clock::Fast { "+3600s" } else { "-3600s" };
            command.env("LD_PRELOAD", library).env("FAKETIME", shift).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let mut process = command.spawn()?;
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (recorder, number) = (recorder.clone(), recorder.client());
        let mut child = Self { process, orders, answers, recorder, number, holding: None };
        match child.answer().await? {
            Answer::Ready => child.verify(clock).await.map(|()| child),
            other => Err(unexpected(&other)),
        }
    }

    /// A check with a wrong clock proves nothing if the clock is right.
    async fn verify(&mut self, clock: Clock) -> Result<(), Failure> {
        let Answer::Clock { unix_ms } = self.ask(Order::Clock).await? else {
            return Err(Failure::new("the child does not know the time"));
        };
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expected = match clock {
            Clock::True => here,
            Clock::Fast => here + SHIFT,
            Clock::Slow => here.saturating_sub(SHIFT),
        };
        let error = expected.abs_diff(Duration::from_millis(unix_ms));
        ensure!(error < TOLERANCE, "the child's clock ought to be {clock:?}, and is wrong by {error:?}");
        Ok(())
    }

    /// Acquires; none if that took longer than `wait`, zero being a single attempt.
    pub(crate) async fn acquire(
        &mut self,
        key: &LockKey,
        ttl: Duration,
        renew: bool,
        wait: Duration,
    ) -> Result<Option<ChildGrant>, Failure> {
        let [ttl_ms, wait_ms] = [ttl, wait].map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let order = Order::Acquire { key: key.as_str().to_owned(), ttl_ms, renew, wait_ms };
        let (asked, acquisition) = (self.recorder.now(), self.recorder.acquisition(self.number, key));
        match self.ask(order).await? {
            Answer::Granted { token, remaining_ms } => {
                let remaining = Duration::from_millis(remaining_ms);
                self.holding = Some((acquisition.granted(token), asked.saturating_add(remaining)));
                Ok(Some(ChildGrant { remaining }))
            }
            Answer::Busy => {
                if wait.is_zero() {
                    acquisition.busy();
                }
                Ok(None)
            }
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
                Ok(in_time)
            }
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

    async fn ask(&mut self, order: Order) -> Result<Answer, Failure> {
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
                    return Err(Failure::new("a child process ended before it had answered"));
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

fn unexpected(answer: &Answer) -> Failure {
    match answer {
        Answer::Failed { error } => Failure::new(format!("a child process says: {error}")),
        other => Failure::new(format!("a child process gave an answer that does not fit: {other:?}")),
    }
}

#[cfg(feature = "mongodb")]
fn faketime_library() -> Result<std::path::PathBuf, Failure> {
    crate::server::faketime_library().map_err(|error| Failure::new(crate::failure::chain(&error)))
}

/// Without the feature that knows where to find one, the library must be named.
#[cfg(not(feature = "mongodb"))]
fn faketime_library() -> Result<std::path::PathBuf, Failure> {
    let named = std::env::var_os("DISTLOCK_FAKETIME_LIB").filter(|name| !name.is_empty());
    named.map(Into::into).ok_or_else(|| Failure::new("no libfaketime: name one by DISTLOCK_FAKETIME_LIB"))
}

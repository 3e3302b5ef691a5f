//! `distlock run --once`: a command that is run until it has ended with 0, and then no longer.

use std::ffi::OsString;
use std::time::Duration;

use distlock::LockKey;
use distlock::mongodb::MongoOnce;
use distlock::once::{NotCompleted, Once, OnceGuard, OnceOptions, OnceProvider};
use tokio::time::{Instant, sleep};

use super::request::Request;
use super::start::{start, until_ready};
use super::supervise::{Outcome, close, supervise};
use crate::connect::ConnectionArgs;
use crate::exit;
use crate::failure::{Failure, chain};
use crate::outcomes::Outcomes;
use crate::output::say;
use crate::signals::Signals;

/// What is remembered: the exit code of the command.
const OUTCOME: &str = "0";
/// How long the outcome of a write is asked for.
const ASK_FOR: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Runs the command unless that was done, and returns the exit code.
///
/// # Errors
/// Another caller runs it, it could not be started, or the lease was lost.
pub(super) async fn run(
    request: &Request,
    keep: Option<Duration>,
    command: &[OsString],
    connection: &ConnectionArgs,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let [key] = &request.keys[..] else {
        return Err(Failure::new(exit::USAGE, "--once needs exactly one key: its outcome is remembered under it"));
    };
    let outcomes = tokio::select! {
        opened = Outcomes::open(connection) => opened?,
        signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
    };
    let mut options = OnceOptions::new().with_acquire(request.options.clone());
    if let Some(keep) = keep {
        options = options.with_keep(keep);
    }
    let code = begin_and_run(&outcomes.jobs, key, options, request, command, signals).await;
    close(async { Ok(outcomes.close().await?) }, &code, signals).await;
    code
}

async fn begin_and_run(
    jobs: &MongoOnce,
    key: &LockKey,
    options: OnceOptions,
    request: &Request,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<u8, Failure> {
    request.log();
    let begun = tokio::select! {
        begun = begin(jobs, key, options) => begun?,
        // The call is withdrawn in the background, and `close` waits for that.
        signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
    };
    let Some(guard) = begun else { return Ok(0) };
    let ready = tokio::select! {
        ready = until_ready(&guard, request.limits) => ready,
        signal = signals.next() => {
            discard(guard).await;
            return Ok(exit::of_signal(signal.as_raw()));
        }
    };
    let started = match ready.and_then(|()| Ok(signals.begin_command()?)) {
        Ok(()) => start(&guard, request, command).await,
        Err(failure) => Err(failure),
    };
    match started {
        Ok(group) => {
            let outcome = supervise(&guard, group, request.limits, signals).await;
            conclude(guard, outcome).await
        }
        Err(failure) => {
            discard(guard).await;
            Err(failure)
        }
    }
}

/// Begins the work. Returns `None` if it is done.
async fn begin(jobs: &MongoOnce, key: &LockKey, options: OnceOptions) -> Result<Option<OnceGuard>, Failure> {
    // A call that waits repeats what may succeed later. A deployment that cannot be reached at the
    // beginning is more likely a mistake.
    jobs.inspect(key).await?;
    match jobs.once_with(key.clone(), options).await? {
        Once::Begun(guard) => {
            if let Some(run) = guard.interrupted() {
                let owner = run.owner.as_deref().unwrap_or("a run without an owner");
                say(format_args!("{owner} has begun {:?} before, and has not completed it", key.as_str()));
            }
            Ok(Some(guard))
        }
        Once::Done(outcome) => {
            let owner = outcome.run().owner.as_deref().unwrap_or("a run without an owner");
            say(format_args!("{owner} has done {:?}, and the command is not run", key.as_str()));
            Ok(None)
        }
        Once::Busy(_) => Err(Failure::new(
            exit::BUSY,
            format!("the work {:?} is busy: another caller does it. Try again later", key.as_str()),
        )),
        other => Err(Failure::new(exit::SOFTWARE, format!("an unexpected answer, please report it: {other:?}"))),
    }
}

/// Gives the work back as if it had not been begun, because nothing was done.
async fn discard(guard: OnceGuard) {
    if let Err(error) = guard.discard().await {
        say(format_args!("the work may count as begun: {}", chain(&error)));
    }
}

/// Remembers that the command has ended with 0, and returns its exit code. Otherwise the work stays
/// interrupted: a later run does it again.
async fn conclude(mut guard: OnceGuard, outcome: Outcome) -> Result<u8, Failure> {
    outcome.warn_of_survivors();
    if let Some(reason) = outcome.ended_because {
        return Err(Failure::new(exit::LOST, reason));
    }
    if outcome.code != 0 {
        return Ok(outcome.code);
    }
    let asked = Instant::now();
    loop {
        let error = match guard.complete(OUTCOME).await {
            Ok(()) => return Ok(0),
            Err(error) => error,
        };
        if let NotCompleted::Lost(_) = error {
            let message = "the command has ended, but the lock had been lost before that was remembered: another \
                           run may do the work again";
            return Err(Failure::new(exit::LOST, message));
        }
        if asked.elapsed() >= ASK_FOR {
            let message = format!(
                "the command has ended with 0, and that may not be remembered, so another run may do the work again: {}",
                chain(&error)
            );
            return Err(Failure::new(exit::UNAVAILABLE, message));
        }
        sleep(PAUSE).await;
    }
}

//! `distlock run`: runs a command while locks are held.

mod args;
mod boot_clock;
mod ending;
mod environment;
mod group;
mod held;
pub(crate) mod leash;
mod once;
mod processes;
mod request;
mod start;
mod supervise;
mod terminal;
mod waiting;

use std::ffi::OsString;

use distlock::mongodb::MongoProvider;
use distlock::{AllGuard, LockProviderExt, Mode};
use tokio::time::timeout;

pub(crate) use self::args::RunArgs;
use self::request::Request;
use self::start::{start, until_ready};
use self::supervise::{CLOSE_LIMIT, Outcome, close, supervise};
use crate::connect::{ConnectionArgs, Locks};
use crate::exit;
use crate::failure::{Failure, chain};
use crate::output::say;
use crate::signals::Signals;

/// Runs the command, and returns the exit code.
///
/// # Errors
/// The lock was not granted, the command could not be started, or the lock was lost.
pub(crate) async fn run(args: RunArgs, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let request = Request::new(&args)?;
    let mut signals = Signals::listen_for_command()?;
    if args.once {
        return once::run(&request, args.keep, &args.command, connection, &mut signals).await;
    }
    let locks = tokio::select! {
        locks = Locks::open(connection) => locks?,
        signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
    };
    let code = hold_and_run(&locks.provider, &request, &args.command, &mut signals).await;
    close(locks.close(), &code, &mut signals).await;
    code
}

async fn hold_and_run(
    provider: &MongoProvider,
    request: &Request,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<u8, Failure> {
    request.log();
    let granted = tokio::select! {
        granted = acquire(provider, request) => granted?,
        // The acquisition is withdrawn in the background, and `close` waits for that.
        signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
    };
    let ready = tokio::select! {
        ready = until_ready(&granted, request.limits) => ready,
        signal = signals.next() => {
            discard(granted).await;
            return Ok(exit::of_signal(signal.as_raw()));
        }
    };
    let started = match ready.and_then(|()| Ok(signals.begin_command()?)) {
        Ok(()) => start(&granted, request, command).await,
        Err(failure) => Err(failure),
    };
    let group = match started {
        Ok(started) => started,
        Err(failure) => {
            discard(granted).await;
            return Err(failure);
        }
    };
    let outcome = supervise(&granted, group, request.limits, signals).await;
    conclude(granted, outcome).await
}

/// Acquires all locks.
async fn acquire(provider: &MongoProvider, request: &Request) -> Result<AllGuard, Failure> {
    // A waiting acquisition repeats what may succeed later. A deployment that cannot be reached at
    // the beginning is more likely a mistake.
    if let Some(admin) = distlock::LockProvider::admin(provider) {
        admin.inspect(&request.keys[0]).await?;
    }
    let all = provider.acquire_all(request.keys.clone()).options(request.options.clone());
    let granted = tokio::select! {
        granted = all => granted,
        never = waiting::tell(provider, &request.keys), if !request.quiet => match never {},
    };
    match granted {
        Ok(granted) => Ok(granted),
        Err(error) if error.is_not_granted() => {
            let holders = waiting::holders(provider, &request.keys).await;
            let why = match (request.options.mode(), holders.is_empty()) {
                (_, false) => holders.join("; "),
                (Mode::Permits { .. }, true) => "others hold too many of its permits, or wait ahead".to_owned(),
                (_, true) => "another caller held it".to_owned(),
            };
            let key = error.key().map_or_else(String::new, |key| format!(" {:?}", key.as_str()));
            Err(Failure::new(exit::BUSY, format!("the lock{key} is busy: {why}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Gives the locks back without the minimum hold, because no work was done.
async fn discard(granted: AllGuard) {
    for guard in granted.into_guards().into_iter().rev() {
        // The engine repeats a release that failed, and `close` reports it.
        let _ = guard.discard().await;
    }
}

/// Releases the locks after the command, and returns the exit code.
async fn conclude(granted: AllGuard, outcome: Outcome) -> Result<u8, Failure> {
    outcome.warn_of_survivors();
    if let Some(reason) = outcome.ended_because {
        let _ = timeout(CLOSE_LIMIT, granted.release()).await;
        return Err(Failure::new(exit::LOST, reason));
    }
    match granted.release().await {
        Ok(released) if !released.is_released() => {
            let message = "the command has ended, but the lock had been lost before its release: another holder may \
                           have worked at the same time. Check the results of both";
            return Err(Failure::new(exit::LOST, message));
        }
        Ok(_) => {}
        Err(error) => {
            say(format_args!("the release is not confirmed, the lock ends with its ttl: {}", chain(&error)));
        }
    }
    Ok(outcome.code)
}

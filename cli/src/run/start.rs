//! Starts the command when enough of the leases is left.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::info;

use super::ending::Limits;
use super::environment;
use super::group::{END_LIMIT, Group};
use super::held::Held;
use super::request::Request;
use super::supervise::leash_deadline;
use crate::exit;
use crate::failure::Failure;

/// Waits until enough of the leases is left. A lease that another process has handed over begins
/// short, and is renewed to its full ttl after about half a second.
pub(super) async fn until_ready(granted: &impl Held, limits: Limits) -> Result<(), Failure> {
    const POLL: Duration = Duration::from_millis(10);
    loop {
        ensure_held(granted)?;
        let is_short = |until: Instant| until.saturating_duration_since(Instant::now()) < limits.at_start;
        if !granted.valid_until().is_some_and(is_short) {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

fn ensure_held(granted: &impl Held) -> Result<(), Failure> {
    let Some(loss) = granted.loss() else { return Ok(()) };
    let message = format!("the lock was lost before the command was started: {loss}. Run it again");
    Err(Failure::new(exit::LOST, message))
}

/// Starts the command in a group of its own, which the leash kills before the deadline.
pub(super) async fn start(granted: &impl Held, request: &Request, command: &[OsString]) -> Result<Group, Failure> {
    let (program, arguments) = command.split_first().expect("clap requires a command");
    let tokens: Vec<_> = request.keys.iter().map(|key| (key.as_str().to_owned(), granted.token(key))).collect();
    for (key, token) in request.keys.iter().zip(tokens.iter().map(|(_, token)| token)) {
        info!(lock.key = %key, lock.token = %token, "granted, the command is started");
    }
    let mut child = Command::new(program);
    child.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| environment::is_removed(name, request.keep_uri)) {
            child.env_remove(name);
        }
    }
    child.envs(environment::variables(&tokens, &request.owner));
    let leash = Group::start().await;
    let mut group =
        leash.map_err(|error| Failure::new(exit::SOFTWARE, format!("the leash cannot be started: {error}")))?;
    if let Some(deadline) = leash_deadline(granted.valid_until(), request.limits) {
        group.hold_until(deadline).await;
    }
    // The leash takes its time to start, and a lost lock has no deadline.
    let started = ensure_held(granted).and_then(|()| {
        group.spawn(child).map_err(|error| {
            let program = program.to_string_lossy();
            Failure::new(exit::of_start(&error), format!("{program:?} cannot be started: {error}"))
        })
    });
    match started {
        Ok(()) => Ok(group),
        Err(failure) => {
            group.end(END_LIMIT).await;
            Err(failure)
        }
    }
}

//! Starts the command when enough of the leases is left.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::ending::Limits;
use super::environment;
use super::group::Group;
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
pub(super) async fn start(
    granted: &impl Held,
    request: &Request,
    command: &[OsString],
) -> Result<(Group, Child), Failure> {
    let (program, arguments) = command.split_first().expect("clap requires a command");
    let tokens: Vec<_> = request.keys.iter().map(|key| (key.as_str().to_owned(), granted.token(key))).collect();
    let mut child = Command::new(program);
    child.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(environment::is_of_a_lock) {
            child.env_remove(name);
        }
    }
    child.envs(environment::variables(&tokens, &request.owner));
    if std::io::stdin().is_terminal() {
        child.stdin(Stdio::null());
    }
    let leash = Group::start().await;
    let mut group =
        leash.map_err(|error| Failure::new(exit::SOFTWARE, format!("the leash cannot be started: {error}")))?;
    if let Some(deadline) = leash_deadline(granted.valid_until(), request.limits) {
        group.hold_until(deadline).await;
    }
    // The leash takes its time to start, and a lost lock has no deadline.
    if let Err(lost) = ensure_held(granted) {
        group.signal(Signal::KILL);
        return Err(lost);
    }
    match group.spawn(child) {
        Ok(child) => Ok((group, child)),
        Err(error) => {
            group.signal(Signal::KILL);
            let program = program.to_string_lossy();
            Err(Failure::new(exit::of_start(&error), format!("{program:?} cannot be started: {error}")))
        }
    }
}

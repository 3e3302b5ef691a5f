//! `distlock run`: runs a command while locks are held.

mod boot_clock;
mod ending;
mod environment;
mod group;
mod held;
pub(crate) mod leash;
mod once;
mod supervise;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use distlock::mongodb::MongoProvider;
use distlock::{AcquireOptions, AllGuard, Holder, LeaseOptions, LockKey, LockProviderExt, Mode, Wait};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use self::ending::Limits;
use self::group::Group;
use self::held::Held;
use self::supervise::{Outcome, supervise};
use crate::connect::{ConnectionArgs, Locks};
use crate::failure::{Failure, chain};
use crate::signals::Signals;
use crate::{duration, exit, mode};

const LONG_ABOUT: &str = "\
Run a command while one or several locks are held

Waits for the locks, runs the command, releases the locks, and exits with the command's exit code. \
Several locks are granted all or none, in an order that cannot deadlock.

The locks are exclusive. With --shared, they exclude only runs without --shared. With --permits, \
several runs hold permits of one lock together; give every run of a key the same number of permits.

With --once, the work of a key is done once, such as that of a date on a fleet: the first run that \
ends with 0 is remembered, and later runs exit with 0 without running the command. Runs at the same \
time wait for the first one. If the command fails or dies, a later run does the work again. The \
outcomes are in a collection of their own, and no lock of the same key is taken.

While it waits, SIGHUP, SIGINT, SIGQUIT and SIGTERM end the wait, and nothing is left behind. While \
the command runs, they are passed on to the command and all that it has started.

The lease is renewed while the command runs. If renewals fail, the command gets SIGTERM a grace \
(--grace) before the deadline, and SIGKILL just before the deadline, so that it is gone before \
another holder can get the lock. After a forced release, which frees the lock at once, it gets \
SIGTERM when that is noticed, at the next renewal, and SIGKILL at most a second later: let the \
resource check the fencing token. With --max-hold, the command is ended in the same way before it \
has held the lock for that time, although the lease is renewed. In all these cases the exit code is \
79.

The command and what it starts are one process group. What is left of the group is killed when the \
command ends. If distlock itself is killed by SIGKILL, or does not respond until the deadline, a \
small process of its own kills the group, and the key is free when the ttl has passed. What leaves \
the group (setsid) is on its own.

The group is not the terminal's foreground group: if standard input is a terminal, the command reads \
from /dev/null.";

/// Run a command while one or several locks are held
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT, after_long_help = after_help())]
pub(crate) struct RunArgs {
    /// Key of a lock, such as orders/4711; several keys are locked together
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// The command and its arguments, which are not changed
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Share the locks with other runs that have this option
    #[arg(long, conflicts_with = "permits")]
    shared: bool,
    /// Take K of N permits of each lock, such as 1/10: at most ten such runs at the same time
    #[arg(long, value_name = "K/N", value_parser = mode::parse_permits)]
    permits: Option<Mode>,
    /// Do not wait: exit with 75 if a lock is held
    #[arg(long = "try", conflicts_with = "timeout")]
    no_wait: bool,
    /// Do the work of the key once: remember that the command has ended with 0, and do not run it
    /// again. --collection names the collection of the outcomes [default: once]
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    once: bool,
    /// How long --once remembers that the work is done [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "once")]
    keep: Option<Duration>,
    /// How long to wait for all locks together; then exit with 75 [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How long the lease lives without a renewal: how long others wait if this machine dies
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    ttl: Duration,
    /// Keep the keys closed for at least this long, even if the command ends earlier: for jobs that
    /// several machines start "at midnight" by their own clocks
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    hold_at_least: Option<Duration>,
    /// End the command before this time has passed since the grant, and give the locks back: for
    /// work that may hang. Longer than the grace
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    max_hold: Option<Duration>,
    /// How long before the deadline the command gets SIGTERM. At most a third of the ttl [default:
    /// a sixth of the ttl, 10s at most, and a quarter of --max-hold at most]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The owner that `ls` and `show` name [default: host and process id]
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
}

fn after_help() -> String {
    format!("{}\n\n{}", environment::HELP, exit::HELP)
}

/// The validated request.
struct Request {
    keys: Vec<LockKey>,
    options: AcquireOptions,
    owner: String,
    limits: Limits,
}

impl Request {
    /// Checks everything that can be checked before any I/O.
    fn new(args: &RunArgs) -> Result<Self, Failure> {
        let mut keys: Vec<LockKey> = Vec::new();
        for key in &args.keys {
            let key = LockKey::new(key.as_str())?;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut lease = LeaseOptions::new().ttl(args.ttl);
        if let Some(minimum) = args.hold_at_least {
            lease = lease.hold_at_least(minimum);
        }
        if let Some(maximum) = args.max_hold {
            lease = lease.max_hold(maximum);
        }
        let limits = Limits::new(&lease.terms()?, args.grace)?;
        let default_owner = || Holder::this_process().owner.map(|owner| owner.to_string()).unwrap_or_default();
        let owner = args.owner.clone().unwrap_or_else(default_owner);
        let wait = match (args.no_wait, args.timeout) {
            (true, _) => Wait::Try,
            (false, Some(limit)) => Wait::UpTo(limit),
            (false, None) => Wait::Forever,
        };
        // Its arguments may contain secrets.
        let command: String = args.command[0].to_string_lossy().chars().take(200).collect();
        let options = AcquireOptions::new()
            .with_wait(wait)
            .with_mode(args.permits.unwrap_or(if args.shared { Mode::Shared } else { Mode::Exclusive }))
            .with_lease(lease)
            .with_owner(owner.as_str())
            .with_metadata("command", command);
        Ok(Self { keys, options, owner, limits })
    }
}

/// Runs the command, and returns the exit code.
///
/// # Errors
/// The lock was not granted, the command could not be started, or the lock was lost.
pub(crate) async fn run(args: RunArgs, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let request = Request::new(&args)?;
    let mut signals = Signals::listen()?;
    if args.once {
        return once::run(&request, args.keep, &args.command, connection, &mut signals).await;
    }
    let locks = tokio::select! {
        locks = Locks::open(connection) => locks?,
        signal = signals.next() => return Ok(exit::of_signal(signal.as_raw())),
    };
    let code = hold_and_run(&locks.provider, &request, &args.command, &mut signals).await;
    tokio::select! {
        closed = locks.close() => {
            if let Err(failure) = closed {
                eprintln!("distlock: {}", failure.message);
            }
        }
        // The user does not want to wait for the clean-up: what is left ends with its ttl.
        _ = signals.next() => {}
    }
    code
}

async fn hold_and_run(
    provider: &MongoProvider,
    request: &Request,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<u8, Failure> {
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
    let started = match ready {
        Ok(()) => start(&granted, request, command).await,
        Err(failure) => Err(failure),
    };
    let (group, child) = match started {
        Ok(started) => started,
        Err(failure) => {
            discard(granted).await;
            return Err(failure);
        }
    };
    let outcome = supervise(&granted, group, child, request.limits, signals).await;
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
    match all.await {
        Ok(granted) => Ok(granted),
        Err(error) if error.is_not_granted() => {
            let key = error.key().map_or_else(String::new, |key| format!(" {:?}", key.as_str()));
            let why = match request.options.mode() {
                Mode::Permits { .. } => "others hold too many of its permits, or wait ahead",
                _ => "another caller holds it",
            };
            Err(Failure::new(exit::BUSY, format!("the lock{key} is busy: {why}. `distlock show` names the holders")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until enough of the leases is left. A lease that another process has handed over begins
/// short, and is renewed to its full ttl after about half a second.
async fn until_ready(granted: &impl Held, limits: Limits) -> Result<(), Failure> {
    const POLL: Duration = Duration::from_millis(10);
    loop {
        if let Some(loss) = granted.loss() {
            let message = format!("the lock was lost before the command was started: {loss}. Run it again");
            return Err(Failure::new(exit::LOST, message));
        }
        let is_short = |until: Instant| until.saturating_duration_since(Instant::now()) < limits.at_start;
        if !granted.valid_until().is_some_and(is_short) {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

async fn start(
    granted: &impl Held,
    request: &Request,
    command: &[OsString],
) -> Result<(Group, tokio::process::Child), Failure> {
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
    if let Some(deadline) = supervise::leash_deadline(granted.valid_until(), request.limits) {
        group.hold_until(deadline).await;
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

/// Gives the locks back without the minimum hold, because no work was done.
async fn discard(granted: AllGuard) {
    for guard in granted.into_guards().into_iter().rev() {
        // The engine repeats a release that failed, and `close` reports it.
        let _ = guard.discard().await;
    }
}

fn warn_of_survivors(outcome: &Outcome) {
    if !outcome.group_is_gone {
        eprintln!(
            "distlock: processes of the command are still there after SIGKILL: the kernel does not end them. Look for \
             a device or a mount that hangs"
        );
    }
}

/// Releases the locks after the command, and returns the exit code.
async fn conclude(granted: AllGuard, outcome: Outcome) -> Result<u8, Failure> {
    warn_of_survivors(&outcome);
    let released = granted.release().await;
    if let Some(reason) = outcome.ended_because {
        return Err(Failure::new(exit::LOST, reason));
    }
    match released {
        Ok(released) if !released.is_released() => {
            let message = "the command has ended, but the lock had been lost before its release: another holder may \
                           have worked at the same time. Check the results of both";
            return Err(Failure::new(exit::LOST, message));
        }
        Ok(_) => {}
        Err(error) => {
            eprintln!("distlock: the release is not confirmed, the lock ends with its ttl: {}", chain(&error));
        }
    }
    Ok(outcome.code)
}

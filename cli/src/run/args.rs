//! The arguments of `distlock run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use distlock::Mode;

use super::environment;
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

A command that is stopped keeps the locks no longer than until the deadline at which it stopped; then \
it is continued and ended. On a terminal, the command can read it, and Ctrl-Z stops both the command \
and distlock until the shell continues them. Nothing renews the lease meanwhile, and the command is \
killed at the deadline. As process 1 of a container, distlock collects the processes that it adopts.";

/// Run a command while one or several locks are held
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT, after_long_help = after_help())]
pub(crate) struct RunArgs {
    /// Key of a lock, such as orders/4711; several keys are locked together
    #[arg(required = true, value_name = "KEY")]
    pub(super) keys: Vec<String>,
    /// The command and its arguments, which are not changed
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
    /// Share the locks with other runs that have this option
    #[arg(long, conflicts_with = "permits")]
    pub(super) shared: bool,
    /// Take K of N permits of each lock, such as 1/10: at most ten such runs at the same time
    #[arg(long, value_name = "K/N", value_parser = mode::parse_permits)]
    pub(super) permits: Option<Mode>,
    /// Do not wait: exit with 75 if a lock is held
    #[arg(long = "try", conflicts_with = "timeout")]
    pub(super) no_wait: bool,
    /// Do the work of the key once: remember that the command has ended with 0, and do not run it
    /// again. --collection names the collection of the outcomes [default: once]
    #[arg(long, conflicts_with_all = ["shared", "permits"])]
    pub(super) once: bool,
    /// How long --once remembers that the work is done [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "once")]
    pub(super) keep: Option<Duration>,
    /// How long to wait for all locks together; then exit with 75 [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) timeout: Option<Duration>,
    /// How long the lease lives without a renewal: how long others wait if this machine dies
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    pub(super) ttl: Duration,
    /// Keep the keys closed for at least this long, even if the command ends earlier: for jobs that
    /// several machines start "at midnight" by their own clocks
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) hold_at_least: Option<Duration>,
    /// End the command before this time has passed since the grant, and give the locks back: for
    /// work that may hang. Longer than the grace
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) max_hold: Option<Duration>,
    /// How long before the deadline the command gets SIGTERM. At most a third of the ttl [default:
    /// a sixth of the ttl, 10s at most, and a quarter of --max-hold at most]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(super) grace: Option<Duration>,
    /// Say nothing while it waits. Otherwise a line after a second names the holder
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Pass DISTLOCK_MONGODB_URI on to the command, which otherwise does not get it
    #[arg(long)]
    pub(super) keep_uri: bool,
    /// The owner that `ls` and `show` name [default: host, process id and a
    /// random number]
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
}

fn after_help() -> String {
    format!("{}\n\n{}", environment::HELP, exit::HELP)
}

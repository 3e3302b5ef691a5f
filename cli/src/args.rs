//! The command line: the options of all commands, and the commands.

use clap::{Parser, Subcommand};

use crate::connect::ConnectionArgs;
use crate::output::OutputArgs;
use crate::{bench, doctor, exit, force_release, generate, history, ls, release_owner, run, show, watch};

const LONG_ABOUT: &str = "\
Distributed locks on MongoDB, for scripts, cron jobs and operators.

`distlock run` waits for a lock, runs a command while it is held, and passes the command's exit code \
on. The lock is a lease: it is renewed while the command runs, and ends by itself if this machine \
dies. The other commands show, watch and take away locks, and check the deployment.

Name the deployment by DISTLOCK_MONGODB_URI, --uri-file, or a credential of the service manager, and \
only for a try by --uri: the command line of a process is visible to other users of the machine. No \
output shows the password, and a command that is run does not get it.

Output is a table on a terminal, and one JSON object per line elsewhere.";

/// Distributed locks on MongoDB, for scripts, cron jobs and operators
#[derive(Debug, Parser)]
#[command(name = "distlock", version, long_about = LONG_ABOUT, after_long_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::RunArgs),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Watch(watch::WatchArgs),
    History(history::HistoryArgs),
    ForceRelease(force_release::ForceReleaseArgs),
    ReleaseOwner(release_owner::ReleaseOwnerArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_of_run_stands_after_two_dashes() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for (line, accepted) in [
            ("distlock run a -- true", true),
            ("distlock run a b --try -- sh -c x --ttl", true),
            ("distlock run a true", false),
            ("distlock run -- true", false),
            ("distlock run a --try --timeout 5s -- true", false),
            ("distlock run a --ttl 5 -- true", false),
            ("distlock ls --json --human", false),
            ("distlock force-release a", false),
            ("distlock force-release a --reason x --holder y", true),
            ("distlock run a --shared -- true", true),
            ("distlock run a --permits 1/10 -- true", true),
            ("distlock run a --permits 1/10 --shared -- true", false),
            ("distlock run a --permits 11/10 -- true", false),
            ("distlock run a --once --keep 168h --try -- true", true),
            ("distlock run a --once --shared -- true", false),
            ("distlock show a --once", true),
            ("distlock doctor --once", true),
            ("distlock doctor --once=jobs", true),
            ("distlock doctor --once jobs", false),
            ("distlock run a --keep 1h -- true", false),
        ] {
            assert_eq!(parse(line).is_ok(), accepted, "{line}");
        }
    }
}

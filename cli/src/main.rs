//! The command `distlock`: distributed locks on MongoDB for scripts, cron jobs and operators.
//!
//! One file per command. Decisions that need no I/O are apart from it: `exit` (codes), `secret`
//! (redaction), `output` (tables) and `mode` (how locks are held). So are `run/ending` (when the
//! command gets SIGTERM and SIGKILL) and `doctor/judge` (what the examination means).

#[cfg(not(unix))]
compile_error!("distlock needs Unix signals and process groups");

mod args;
mod bench;
mod connect;
mod doctor;
mod duration;
mod exit;
mod failure;
mod force_release;
mod generate;
mod history;
mod ls;
mod mode;
mod outcomes;
mod output;
mod release_owner;
mod run;
mod scratch;
mod secret;
mod show;
mod signals;
mod state;
mod stats;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use failure::Failure;
use output::Format;
use secret::Secrets;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == run::leash::ARGUMENT) {
        return run::leash::main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let secrets = cli.connection.uri.as_deref().map(Secrets::of).unwrap_or_default();
    match execute(cli, &secrets) {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            if !message.is_empty() {
                eprintln!("distlock: {}", secrets.redact(&message));
            }
            ExitCode::from(code)
        }
    }
}

fn execute(cli: Cli, secrets: &Secrets) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let failed = |error: std::io::Error| {
        format!("the runtime cannot be started, check the limits of threads and of open files: {error}")
    };
    let runtime = runtime.map_err(|error| Failure::new(exit::SOFTWARE, failed(error)))?;
    let (connection, format) = (cli.connection, Format::choose(&cli.output));
    runtime.block_on(async {
        match cli.command {
            Command::Run(args) => return run::run(args, &connection).await,
            Command::Watch(args) => return watch::run(args, &connection, format).await,
            Command::Doctor(args) => return doctor::run(args, &connection, format, secrets).await,
            Command::Ls(args) => ls::run(args, &connection, format).await?,
            Command::Show(args) => show::run(args, &connection, format).await?,
            Command::History(args) => history::run(args, &connection, format).await?,
            Command::ForceRelease(args) => force_release::run(args, &connection, format).await?,
            Command::ReleaseOwner(args) => release_owner::run(args, &connection, format).await?,
            Command::Bench(args) => return bench::run(args, &connection, format).await,
            Command::Completions(args) => generate::completions(&args, Cli::command())?,
            Command::Man(args) => generate::man(&args, Cli::command())?,
        }
        Ok(0)
    })
}

/// Prints the help, the version, or what is wrong with the command line. An argument in the wrong
/// place may be a connection string.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    eprint!("{}", secret::redact_uris(&error.render().to_string()));
    ExitCode::from(exit::USAGE)
}

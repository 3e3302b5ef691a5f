//! The command `distlock`: distributed locks on MongoDB for scripts, cron jobs and operators.
//!
//! One file per command. Decisions that need no I/O are apart from it: `exit` (codes), `uri` (the
//! form of a connection string), `output` (tables) and `mode` (how locks are held). So are
//! `run/ending` (when the command gets SIGTERM and SIGKILL) and `doctor/judge` (what the
//! examination means).

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
mod show;
mod signals;
mod state;
mod stats;
mod uri;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use failure::Failure;
use output::Format;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == run::leash::ARGUMENT) {
        return run::leash::main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(error),
    };
    let json = cli.output.json;
    output::log(cli.output.verbose);
    match execute(cli) {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            if !message.is_empty() {
                tell(json, code, &message);
            }
            ExitCode::from(code)
        }
    }
}

/// Prints an error for a person, or with `--json` for a program.
fn tell(json: bool, code: u8, message: &str) {
    if json {
        let _ = writeln!(std::io::stderr(), "{}", serde_json::json!({ "error": message, "exit": code }));
    } else {
        output::say(message);
    }
}

fn execute(cli: Cli) -> Result<u8, Failure> {
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
            Command::Doctor(args) => return doctor::run(args, &connection, format).await,
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
/// place may be a part of a connection string, so it is not quoted unless it is a plain word.
fn usage(mut error: clap::Error) -> ExitCode {
    const NOT_SHOWN: &str = "(an argument that is not shown: it may be a secret)";
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let line: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let is_of_user = |kind| match kind {
        ContextKind::InvalidValue | ContextKind::InvalidSubcommand => true,
        ContextKind::InvalidArg => error.kind() == clap::error::ErrorKind::UnknownArgument,
        _ => false,
    };
    let is_shown = |word: &String| uri::may_be_shown(word, line.iter().map(String::as_str));
    let is_secret = |value: &ContextValue| match value {
        ContextValue::String(word) => !is_shown(word),
        ContextValue::Strings(words) => !words.iter().all(is_shown),
        _ => false,
    };
    let secret = error.context().filter(|(kind, value)| is_of_user(*kind) && is_secret(value));
    let secret: Vec<ContextKind> = secret.map(|(kind, _)| kind).collect();
    if !secret.is_empty() {
        // It may quote the argument.
        error.remove(ContextKind::Suggested);
    }
    for kind in secret {
        error.insert(kind, ContextValue::String(NOT_SHOWN.to_owned()));
    }
    if line.iter().take_while(|word| *word != "--").any(|word| word == "--json") {
        tell(true, exit::USAGE, error.render().to_string().trim_end());
    } else {
        let _ = error.print();
    }
    ExitCode::from(exit::USAGE)
}

//! Locks under contention, beside other crates, on a real replica set: the figures B1 to B17, under
//! faults B18 to B22, in great numbers B23 to B26; shared locks and permits: S2 to S8; and the
//! middleware: T1 to T4. B1 to B6 also compare with PostgreSQL.
//!
//! Run with `cargo run --release --bin contention`; `-- --help` lists the options, `README.md` says
//! what each figure is.

mod clock;
mod commands;
mod deployment;
mod faults;
mod figures;
mod fleet;
mod locks;
mod options;
mod postgres;
mod report;
mod stats;
mod trace;
mod web;
mod worker;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

use crate::deployment::Deployment;
use crate::figures::Bench;
use crate::options::Options;
use crate::postgres::Postgres;
use crate::report::machine::Machine;
use crate::report::{Results, markdown, plot};

/// Errors are only shown.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A thread for each of B8's waiters on `mongo-lock`, which blocks, and some to spare.
const BLOCKING_THREADS: usize = 1_200;

fn main() -> ExitCode {
    // B23 opens thousands of connections. Children and servers inherit the limit.
    allow_open_files();
    let mut arguments = std::env::args().skip(1).peekable();
    let done = if arguments.next_if(|argument| argument == fleet::WORKER).is_some() {
        // From inside the runtime: its end would wait for the thread that reads standard input, and
        // for blocking waits of peers.
        runtime().map(|runtime| runtime.block_on(async { std::process::exit(i32::from(worker::run().await.is_err())) }))
    } else {
        Options::parse(arguments).and_then(parent)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Raises the number of files that this process may open to what the system permits.
fn allow_open_files() {
    let limits = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    if let Err(error) = raised {
        eprintln!("the limit of open files stays {:?}: {error}", limits.current);
    }
}

fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?)
}

fn parent(options: Options) -> Outcome<()> {
    if options.help {
        print!("{}", options::HELP);
        return Ok(());
    }
    let environment = deployment::ENVIRONMENT;
    if environment.iter().any(|(name, value)| std::env::var(name).as_deref() != Ok(value)) {
        // A process may not change its environment once it has threads, and dependencies start
        // some: start again.
        let mut again = Command::new(std::env::current_exe()?);
        return Err(again.args(std::env::args_os().skip(1)).envs(environment).exec().into());
    }
    runtime()?.block_on(measure(options))
}

async fn measure(options: Options) -> Outcome<()> {
    let deployment = match &options.uri {
        Some(uri) => Deployment::given(uri.clone()),
        None => Deployment::start().await?,
    };
    // Servers of our own end in order, whether or not all went well, and on Ctrl-C.
    let mut postgres = None;
    let done = tokio::select! {
        done = measure_on(&options, &deployment, &mut postgres) => done,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    if let Some(postgres) = postgres {
        postgres.stop();
    }
    deployment.stop().await;
    done
}

/// Starts PostgreSQL as well if a figure uses it.
async fn measure_on(options: &Options, deployment: &Deployment, postgres: &mut Option<Postgres>) -> Outcome<()> {
    if !options.trace && options.figures.iter().any(|figure| figure.uses_postgres()) {
        *postgres = Some(Postgres::start().await?);
    }
    write_all(options, deployment, postgres.as_ref()).await
}

async fn write_all(options: &Options, deployment: &Deployment, postgres: Option<&Postgres>) -> Outcome<()> {
    let out = &options.out;
    std::fs::create_dir_all(out)?;
    if options.trace {
        let trace = trace::run(deployment).await?;
        print!("{trace}");
        return written(&out.join("trace.txt"), trace.as_bytes());
    }
    let (version, members) = deployment.describe().await?;
    let bench = Bench { deployment, postgres, quick: options.quick };
    let figures = figures::run(&bench, &options.figures).await;
    let results = Results {
        machine: Machine::look(version, members, postgres.map(|server| server.description().to_owned())),
        quick: options.quick,
        figures,
    };

    let (table, measured) = (markdown::page(&results), markdown::measured(&results));
    print!("{table}\n{measured}");
    written(&out.join("results.json"), &serde_json::to_vec_pretty(&results)?)?;
    written(&out.join("results.md"), table.as_bytes())?;
    written(&out.join("measured.md"), measured.as_bytes())?;
    for file in plot::draw(&results, out)? {
        eprintln!("wrote {file}");
    }
    Ok(())
}

fn written(file: &Path, content: &[u8]) -> Outcome<()> {
    std::fs::write(file, content)?;
    eprintln!("wrote {}", file.file_name().unwrap_or_default().to_string_lossy());
    Ok(())
}

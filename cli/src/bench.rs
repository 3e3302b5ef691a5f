//! `distlock bench`: how fast locks are on one's own deployment.

use std::time::Duration;

use clap::Args;
use distlock::mongodb::MongoProvider;
use distlock::{LockError, LockProvider, LockProviderExt};
use futures_util::future::{join_all, try_join_all};
use serde_json::json;
use tokio::time::Instant;

use crate::connect::{Connection, ConnectionArgs};
use crate::duration::{fractional_millis, show};
use crate::exit;
use crate::failure::Failure;
use crate::output::{self, Format, Table, say};
use crate::scratch::{self, Scratch};
use crate::signals::Signals;
use crate::stats::percentile;

/// How many providers want the hot key. Each has its own ticket, as processes have.
const CONTENDERS: usize = 8;
/// How many keys are locked at the same time.
const KEYS: usize = 64;
/// How long a waiter waits beyond the end of a run.
const PATIENCE: Duration = Duration::from_secs(30);

const LONG_ABOUT: &str = "\
Measure locks on this deployment

Takes and gives back locks for the given time, one third of it each: of one key without contention; \
of one hot key that eight waiters want, as eight processes would; and of 64 keys at the same time. \
A time is that of acquire and release together, the wait included.

It writes as fast as the deployment permits: do not run it where that disturbs others. Its keys are \
its own, and are removed afterwards.";

/// Measure locks on this deployment
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT)]
pub(crate) struct BenchArgs {
    /// How long to measure, altogether
    #[arg(long, value_name = "NUMBER", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// One way to use locks.
#[derive(Clone, Copy, Debug)]
enum Workload {
    Uncontended,
    HotKey,
    ManyKeys,
}

impl Workload {
    const ALL: [Self; 3] = [Self::Uncontended, Self::HotKey, Self::ManyKeys];

    const fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::HotKey => "hot_key",
            Self::ManyKeys => "many_keys",
        }
    }

    /// Returns the number of providers, and of tasks of each.
    const fn size(self) -> (usize, usize) {
        match self {
            Self::Uncontended => (1, 1),
            Self::HotKey => (CONTENDERS, 1),
            Self::ManyKeys => (1, KEYS),
        }
    }
}

/// Measures, prints the figures, and returns the exit code.
///
/// # Errors
/// A lock could not be taken, or the output fails.
pub(crate) async fn run(args: BenchArgs, connection: &ConnectionArgs, format: Format) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let connection = Connection::open(connection).await?;
    let providers: Result<Vec<MongoProvider>, LockError> =
        (0..CONTENDERS).map(|_| connection.builder().build()).collect();
    let providers = providers?;
    let scratch = Scratch::new("bench");
    let measured = tokio::select! {
        measured = measure_all(&providers, &scratch, Duration::from_secs(args.seconds), format) => measured.map(|()| 0),
        signal = signals.next() => Ok(exit::of_signal(signal.as_raw())),
    };
    // Gives back what a signal or an error has interrupted, so that the records can be removed.
    let closed = join_all(providers.iter().map(MongoProvider::close)).await;
    drop(providers);
    if let Err(error) = scratch::remove(&connection, &scratch).await {
        say(format_args!("the records of the benchmark stay until they are purged, in an hour: {}", error.kind));
    }
    connection.close().await;
    let code = measured?;
    closed.into_iter().collect::<Result<Vec<()>, LockError>>()?;
    Ok(code)
}

async fn measure_all(
    providers: &[MongoProvider],
    scratch: &Scratch,
    total: Duration,
    format: Format,
) -> Result<(), Failure> {
    let mut table = Table::new(["WORKLOAD", "PER SECOND", "P50", "P99", "LOCKS"]);
    for workload in Workload::ALL {
        let limit = total / u32::try_from(Workload::ALL.len()).unwrap_or(1);
        let start = Instant::now();
        let mut durations = measure(providers, scratch, workload, start + limit).await?;
        let rate = f64::from(u32::try_from(durations.len()).unwrap_or(u32::MAX)) / start.elapsed().as_secs_f64();
        let (median, slowest) = (percentile(&mut durations, 50), percentile(&mut durations, 99));
        match format {
            Format::Json => output::json(&json!({
                "workload": workload.name(),
                "per_second": rate.round(),
                "p50_ms": fractional_millis(median),
                "p99_ms": fractional_millis(slowest),
                "locks": durations.len(),
            }))?,
            Format::Human => table.row([
                workload.name().to_owned(),
                format!("{rate:.0}"),
                show(median),
                show(slowest),
                durations.len().to_string(),
            ]),
        }
    }
    if format == Format::Human {
        output::line(&table.render())?;
    }
    Ok(())
}

/// Takes and gives back locks until a deadline, and returns how long each took. Cancel safe: what
/// is interrupted is given back when the providers are closed.
async fn measure(
    providers: &[MongoProvider],
    scratch: &Scratch,
    workload: Workload,
    deadline: Instant,
) -> Result<Vec<Duration>, LockError> {
    let (count, tasks) = workload.size();
    let each = providers.iter().take(count).flat_map(|provider| {
        (0..tasks).map(move |task| {
            let key = scratch.key(format_args!("{}/{task}", workload.name()));
            repeat(provider, key, deadline)
        })
    });
    Ok(try_join_all(each).await?.concat())
}

async fn repeat(provider: &MongoProvider, key: String, deadline: Instant) -> Result<Vec<Duration>, LockError> {
    let mut durations = Vec::new();
    while Instant::now() < deadline {
        let start = Instant::now();
        let guard = provider.acquire(key.as_str()).timeout(PATIENCE).await?;
        guard.release().await?;
        durations.push(start.elapsed());
    }
    Ok(durations)
}

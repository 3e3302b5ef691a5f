//! B22: 100,000 leases of one process through a server that stops, and through a slow one.

use std::time::Duration;

use distlock_api::{LockGuard, LockProvider, LockProviderExt};
use distlock_mongo::MongoProvider;
use mongodb::Client;
use mongodb::bson::doc;
use rustix::process::Pid;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Bench, isolated};
use crate::Outcome;
use crate::clock;
use crate::deployment;
use crate::faults::Frozen;
use crate::locks::{Contender, Settings, ours};
use crate::report::machine::resident_bytes;
use crate::report::{Bound, Figure};

const LEASES: usize = 100_000;
const FEW_LEASES: usize = 10_000;
const TTL: Duration = Duration::from_secs(60);
/// Tasks that acquire.
const TASKS: usize = 64;
/// The owner of all leases.
pub(super) const OWNER: &str = "bench-many-leases";
const QUIET: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(20);
const SLOW: Duration = Duration::from_secs(60);
/// Of each cycle the servers run a tenth.
const STOPPED: Duration = Duration::from_millis(90);
const RUNNING: Duration = Duration::from_millis(10);
/// After this a lease that was not renewed during a fault is lost.
const AFTER: Duration = Duration::from_secs(65);

const LOST: &str = "leases lost";
const BYTES: &str = "memory per lease";
const RATE: &str = "acquisitions";
const RELEASED: &str = "records released by `release_owner`";
const RELEASE_TIME: &str = "`release_owner`: time";

/// One after the other.
#[derive(Clone, Copy)]
enum Phase {
    Quiet,
    /// The primary takes no write: `fsyncLock`.
    Stalled,
    AfterStall,
    /// All members run a tenth of the time.
    Slow,
    AfterSlow,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Quiet, Self::Stalled, Self::AfterStall, Self::Slow, Self::AfterSlow];

    fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Stalled => "20 s of `fsyncLock`",
            Self::AfterStall => "65 s after it",
            Self::Slow => "60 s at a tenth of the speed",
            Self::AfterSlow => "65 s after that",
        }
    }

    async fn pass(self, uri: &str) -> Outcome<()> {
        match self {
            Self::Quiet => sleep(QUIET).await,
            Self::Stalled => stall(uri).await?,
            Self::Slow => slow(&deployment::processes(uri).await?).await?,
            Self::AfterStall | Self::AfterSlow => sleep(AFTER).await,
        }
        Ok(())
    }
}

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(22, "100,000 leases through a stalled and a slow server");
    let leases = bench.choose(FEW_LEASES, LEASES);
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    let uri = bench.deployment.uri().to_owned();
    let seen = isolated(async move { observe(&uri, leases).await }).await?;
    bench.deployment.drop_database(Contender::Ours.database()).await?;

    let who = Contender::Ours;
    figure.push(who, RATE, "/s", leases as f64 / seen.acquiring.as_secs_f64());
    figure.push(who, BYTES, "bytes", seen.bytes as f64 / leases as f64);
    for (phase, observed) in Phase::ALL.into_iter().zip(&seen.phases) {
        let (lost, cpu) = (format!("{}: {LOST}", phase.name()), format!("{}: processor time", phase.name()));
        figure.push(who, &lost, "", observed.lost as f64);
        figure.push(who, &cpu, "cores", observed.cores);
        figure.judge(cpu, observed.cores, "cores", Bound::Most(0.5));
    }
    let lost = seen.phases.iter().map(|phase| phase.lost).sum::<usize>() as f64;
    figure.judge(LOST, lost, "", Bound::Most(0.0));
    figure.judge(BYTES, seen.bytes as f64 / leases as f64, "bytes", Bound::Most(8_000.0));
    figure.push(who, RELEASED, "", seen.released as f64);
    figure.push(who, RELEASE_TIME, "s", seen.releasing.as_secs_f64());
    let missing = (leases as u64).abs_diff(seen.released + lost as u64);
    figure.judge("records that `release_owner` missed", missing as f64, "", Bound::Most(0.0));
    figure.note(format!(
        "{leases} leases with a ttl of {} s, acquired by {TASKS} tasks. At a tenth of the speed, all members are \
         stopped by `SIGSTOP` for {} ms of every {} ms. Processor time and memory are those of the client.",
        TTL.as_secs(),
        STOPPED.as_millis(),
        (STOPPED + RUNNING).as_millis()
    ));
    Ok(figure)
}

/// What was observed in a phase.
struct Observed {
    lost: usize,
    cores: f64,
}

struct Seen {
    acquiring: Duration,
    bytes: i64,
    phases: Vec<Observed>,
    released: u64,
    releasing: Duration,
}

async fn observe(uri: &str, leases: usize) -> Outcome<Seen> {
    let client = Client::with_uri_str(uri).await?;
    let provider = ours::provider(&client, Contender::Ours.database(), Settings::new(true)).await?;
    let (before, start) = (resident_bytes()?, Instant::now());
    let guards = acquire(&provider, leases, TTL).await?;
    let (acquiring, bytes) = (start.elapsed(), resident_bytes()? - before);
    eprintln!("    {leases} leases after {acquiring:.0?}");

    let mut phases: Vec<Observed> = Vec::new();
    for phase in Phase::ALL {
        let (start, cpu) = (clock::now(), clock::cpu());
        phase.pass(uri).await?;
        let cores = (clock::cpu() - cpu) as f64 / (clock::now() - start) as f64;
        let already: usize = phases.iter().map(|phase| phase.lost).sum();
        let lost = guards.iter().filter(|guard| guard.is_lost()).count() - already;
        eprintln!("    {}: {lost} leases lost, {cores:.2} cores", phase.name());
        phases.push(Observed { lost, cores });
    }

    let start = Instant::now();
    let admin = provider.admin().ok_or("the provider has no administration")?;
    let released = admin.release_owner(OWNER, "the benchmark is over").await?;
    let releasing = start.elapsed();
    guards.into_iter().for_each(LockGuard::abandon);
    provider.close().await?;
    Ok(Seen { acquiring, bytes, phases, released, releasing })
}

/// Acquires as many keys.
pub(super) async fn acquire(provider: &MongoProvider, leases: usize, ttl: Duration) -> Outcome<Vec<LockGuard>> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let provider = provider.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for number in (task..leases).step_by(TASKS) {
                guards.push(provider.acquire(format!("many-{number}")).ttl(ttl).owner(OWNER).await?);
            }
            Outcome::Ok(guards)
        });
    }
    let mut guards = Vec::new();
    while let Some(acquired) = tasks.join_next().await {
        guards.extend(acquired??);
    }
    Ok(guards)
}

/// Stops the primary's writes for a while.
async fn stall(uri: &str) -> Outcome<()> {
    let server = deployment::primary(uri).await?.client;
    let admin = server.database("admin");
    admin.run_command(doc! { "fsync": 1, "lock": true }).await?;
    sleep(STALL).await;
    admin.run_command(doc! { "fsyncUnlock": 1 }).await?;
    Ok(())
}

/// Lets the servers run for a part of the time.
async fn slow(servers: &[Pid]) -> Outcome<()> {
    let end = Instant::now() + SLOW;
    while Instant::now() < end {
        let frozen = servers.iter().map(|&server| Frozen::new(server)).collect::<Outcome<Vec<_>>>()?;
        sleep(STOPPED).await;
        drop(frozen);
        sleep(RUNNING).await;
    }
    Ok(())
}

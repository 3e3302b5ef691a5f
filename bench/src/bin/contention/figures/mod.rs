//! The figures of the benchmark, one per file.

mod churn;
mod closing;
mod crowd;
mod failover;
mod frozen_primary;
mod half_open;
mod hand_over;
mod held;
mod keys_once;
mod killed;
mod linger;
mod many_keys;
mod many_leases;
mod many_waiters;
mod memory;
mod middleware;
mod own_finds;
mod queues;
mod reader_writer;
mod several;
mod sharing;
mod slow_server;
mod uncontended;
mod waiting;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::Outcome;
use crate::deployment::Deployment;
use crate::locks::{Contender, Settings};
use crate::postgres::Postgres;
use crate::report::Figure;
use crate::worker::protocol::{Contend, Report, Spec, Task};

/// A figure's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Id {
    /// Of locks: `B1` to `B26`.
    B(u8),
    /// Of shared locks and permits: `S2` to `S8`. S1 is a set of others.
    S(u8),
    /// Of the middleware: `T1` to `T4`.
    T(u8),
}

impl Id {
    /// All figures.
    pub const ALL: [Self; 37] = {
        let mut all = [Self::B(0); 37];
        let mut place = 0;
        while place < all.len() {
            let number = place as u8 + 1;
            all[place] = match number {
                1..=26 => Self::B(number),
                27..=33 => Self::S(number - 25),
                _ => Self::T(number - 33),
            };
            place += 1;
        }
        all
    };

    /// Whether contenders on PostgreSQL are among those that it compares.
    pub const fn uses_postgres(self) -> bool {
        matches!(self, Self::B(1..=6))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::B(number) => write!(f, "B{number}"),
            Self::S(number) => write!(f, "S{number}"),
            Self::T(number) => write!(f, "T{number}"),
        }
    }
}

impl FromStr for Id {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(name: &str) -> Outcome<Self> {
        let named = |id: &&Self| id.to_string().eq_ignore_ascii_case(name);
        Self::ALL.iter().find(named).copied().ok_or_else(|| format!("there is no figure {name}").into())
    }
}

/// What a figure needs.
pub struct Bench<'a> {
    /// The replica set.
    pub deployment: &'a Deployment,
    /// The other server, if a figure uses it.
    pub postgres: Option<&'a Postgres>,
    /// Fewer and shorter rounds.
    pub quick: bool,
}

impl Bench<'_> {
    /// One of two values.
    fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    fn figure(&self, id: u8, title: &'static str) -> Figure {
        Figure::new(Id::B(id), title, self.quick)
    }

    /// The address of a contender's server.
    fn uri(&self, who: Contender) -> &str {
        if who.is_on_postgres() {
            self.postgres.expect("it is started for the figures that use it").uri()
        } else {
            self.deployment.uri()
        }
    }

    fn spec(&self, who: Contender, settings: Settings, task: Task) -> Spec {
        Spec { who, uri: self.uri(who).to_owned(), settings, task }
    }

    /// Specs of `processes` equal children that contend for one key.
    fn contenders(&self, who: Contender, settings: Settings, processes: usize, task: &Contend) -> Vec<Spec> {
        vec![self.spec(who, settings, Task::Contend(task.clone())); processes]
    }

    /// Reports what is being done.
    fn progress(&self, what: impl fmt::Display) {
        eprintln!("    {what}");
    }
}

/// Longer than any figure takes as a rule; what hangs must not keep the others from being measured.
const LIMIT: Duration = Duration::from_secs(1_800);

/// Makes the figures that were named, in order. One that fails reports why; the others continue.
pub async fn run(bench: &Bench<'_>, wanted: &[Id]) -> Vec<Figure> {
    let mut made: Vec<Figure> = Vec::new();
    for &id in wanted {
        // B2, B3 and B4 are seen in the same run, and so are S4 and S5.
        if made.iter().any(|figure| figure.id == id.to_string()) {
            continue;
        }
        eprintln!("{id}");
        let figures = timeout(LIMIT, one(bench, id)).await;
        let figures = match figures.unwrap_or_else(|_| Err(format!("no end after {} s", LIMIT.as_secs()).into())) {
            Ok(figures) => figures,
            Err(error) => {
                vec![Figure { failure: Some(error.to_string()), ..Figure::new(id, "not measured", bench.quick) }]
            }
        };
        for figure in figures {
            summarize(&figure);
            // Those that were not named are made all the same, and not shown.
            if wanted.iter().any(|id| id.to_string() == figure.id) {
                made.push(figure);
            }
        }
    }
    made
}

async fn one(bench: &Bench<'_>, id: Id) -> Outcome<Vec<Figure>> {
    Ok(match id {
        Id::B(1) => vec![uncontended::run(bench).await?],
        Id::B(2..=4) => hand_over::run(bench).await?,
        Id::B(5) => vec![queues::one_process(bench).await?],
        Id::B(6) => vec![queues::four_processes(bench).await?],
        Id::B(7) => vec![held::run(bench).await?],
        Id::B(8) => vec![waiting::run(bench).await?],
        Id::B(9) => vec![killed::run(bench).await?],
        Id::B(10) => vec![failover::run(bench).await?],
        Id::B(11) => vec![memory::uncontended(bench).await?],
        Id::B(12) => vec![memory::contended(bench).await?],
        Id::B(13) => vec![keys_once::run(bench).await?],
        Id::B(14) => vec![many_keys::run(bench).await?],
        Id::B(15) => vec![several::run(bench).await?],
        Id::B(16) => vec![middleware::over_mongo::run(bench).await?],
        Id::B(17) => vec![linger::run(bench).await?],
        Id::B(18) => vec![slow_server::run(bench).await?],
        Id::B(19) => vec![frozen_primary::run(bench).await?],
        Id::B(20) => vec![half_open::run(bench).await?],
        Id::B(21) => vec![own_finds::run(bench).await?],
        Id::B(22) => vec![many_leases::run(bench).await?],
        Id::B(23) => vec![crowd::run(bench).await?],
        Id::B(24) => vec![many_waiters::run(bench).await?],
        Id::B(25) => vec![churn::run(bench).await?],
        Id::B(26) => vec![closing::run(bench).await?],
        Id::S(2) => vec![sharing::one_process(bench).await?],
        Id::S(3) => vec![sharing::four_processes(bench).await?],
        Id::S(4..=5) => reader_writer::run(bench).await?,
        Id::S(6) => vec![sharing::permits(bench).await?],
        Id::S(7) => vec![memory::modes(bench).await?],
        Id::S(8) => vec![many_keys::readers(bench).await?],
        Id::T(1) => vec![middleware::latency::run(bench).await?],
        Id::T(2) => vec![middleware::throughput::run(bench).await?],
        Id::T(3) => vec![middleware::hot_key::run(bench).await?],
        Id::T(4) => vec![middleware::disconnects::run(bench).await?],
        _ => return Err(format!("there is no figure {id}").into()),
    })
}

/// Runs work on a runtime of its own, so that tasks which the work leaves behind end with it. The
/// work ends early if the returned future is dropped.
async fn isolated<T: Send + 'static>(work: impl Future<Output = Outcome<T>> + Send + 'static) -> Outcome<T> {
    let (_wanted, dropped) = oneshot::channel::<()>();
    let outcome = spawn_blocking(move || {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            tokio::select! {
                outcome = work => outcome,
                _ = dropped => Err("interrupted".into()),
            }
        });
        runtime.shutdown_background();
        outcome
    });
    outcome.await?
}

fn summarize(figure: &Figure) {
    if let Some(failure) = &figure.failure {
        eprintln!("  {}: not measured: {failure}", figure.id);
    }
    for verdict in &figure.verdicts {
        let target = match (&verdict.target, verdict.reached) {
            (Some(target), Some(true)) => format!("{target}: reached"),
            (Some(target), _) => format!("{target}: missed"),
            (None, _) => "no target".to_owned(),
        };
        let ratio = verdict.ratio.map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}"));
        eprintln!("  {}: {}: {:.3} {}{ratio} ({target})", figure.id, verdict.what, verdict.ours, verdict.unit);
    }
}

/// The contenders in another order each round, so that none always comes after the same one.
fn rotated<T: Copy>(contenders: &[T], round: usize) -> Vec<T> {
    let mut order = contenders.to_vec();
    order.rotate_left(round % contenders.len());
    order
}

/// Notes acquisitions that ended with an error, with which their callers would have to deal.
fn note_errors(figure: &mut Figure, who: Contender, reports: &[Report]) {
    let waiters = || reports.iter().flat_map(|report| &report.waiters);
    let errors: u64 = waiters().map(|waiter| waiter.errors).sum();
    if errors > 0 {
        let first = waiters().find_map(|waiter| waiter.first_error.as_deref()).unwrap_or_default();
        let first: String = first.chars().take(160).collect();
        figure.push(who, "acquisitions that failed", "", errors as f64);
        let told = format!("{who} returned errors to waiters, such as: ");
        if !figure.notes.iter().any(|note| note.starts_with(&told)) {
            figure.note(format!("{told}{first}"));
        }
    }
}

/// The peer with the greatest, or the least, of the medians of a quantity; those without one do not
/// count.
fn best_peer(figure: &Figure, what: &str, greatest: bool) -> (String, f64) {
    let medians = Contender::PEERS.map(|who| (who.to_string(), figure.median(who, what)));
    let finite = medians.into_iter().filter(|(_, value)| value.is_finite());
    let order = |a: &(String, f64), b: &(String, f64)| a.1.total_cmp(&b.1);
    let best = if greatest { finite.max_by(order) } else { finite.min_by(order) };
    best.unwrap_or_else(|| ("no peer".to_owned(), f64::NAN))
}

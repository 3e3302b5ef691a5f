//! B23: hundreds of processes want one key.

use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Bson, doc};

use super::{Bench, note_errors};
use crate::Outcome;
use crate::clock;
use crate::commands::{self, Counts};
use crate::deployment;
use crate::fleet::{self, Worker};
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::stats::{evenness, quantile};
use crate::worker::protocol::{Contend, Crowd, Report, Spec, Task, Window};

const HOLD_MS: u64 = 5;
/// Operating system processes, which share the providers.
const PROCESSES: usize = 4;
/// The least pool with a connection for a change stream; two connections are used as a rule. The
/// driver's streaming monitors would need two more connections per server and client.
const OPTIONS: &str = "maxPoolSize=4&serverMonitoringMode=poll&heartbeatFrequencyMS=30000";
/// For connecting and preparing a thousand clients.
const READY_LIMIT: Duration = Duration::from_secs(300);
/// For the reports of processes that share two cores with everything else.
const REPORT_LIMIT: Duration = Duration::from_secs(120);

const COMMANDS: &str = "commands per acquisition";
const EVENNESS: &str = "fewest / most turns";
const RATE: &str = "acquisitions";

/// So many providers, for so long.
#[derive(Clone, Copy)]
struct Size {
    providers: usize,
    /// From the first attempts to the window.
    settle: Duration,
    length: Duration,
}

const fn size(providers: usize, settle: u64, length: u64) -> Size {
    Size { providers, settle: Duration::from_secs(settle), length: Duration::from_secs(length) }
}

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(23, "100 and 1,000 providers, one key, hold 5 ms");
    let sizes = bench.choose(
        [size(16, 1, 5), size(100, 5, 15), size(1_000, 15, 45)],
        [size(16, 2, 15), size(100, 5, 30), size(1_000, 30, 180)],
    );
    for size in sizes {
        bench.progress(format_args!("{} providers", size.providers));
        // The others are figures all the same. One without a measurement reaches no target.
        if let Err(error) = measure(bench, &mut figure, size).await {
            figure.note(format!("{} providers were not measured: {error}", size.providers));
            break;
        }
    }
    let [few, many @ ..] = sizes.map(|size| size.providers);
    let reference = figure.median(Contender::Ours, &what(few, RATE));
    for providers in many {
        let [commands, evenness, rate] = [COMMANDS, EVENNESS, RATE].map(|quantity| what(providers, quantity));
        let ours = |figure: &Figure, what: &str| figure.median(Contender::Ours, what);
        let value = ours(&figure, &commands);
        figure.judge(commands, value, "", Bound::Most(2.2));
        let value = ours(&figure, &evenness);
        figure.judge(evenness, value, "", Bound::Least(0.9));
        let value = ours(&figure, &rate);
        figure.judge_ratio(rate, value, "/s", (format!("{few} providers"), reference), Bound::Least(0.8));
    }
    figure.note(format!(
        "Each provider has a client of its own and one task, and so acts as a process; {PROCESSES} processes run them. \
         The clients' options: `{OPTIONS}`."
    ));
    figure.note(
        "All providers take turns for a while before the window, so that it shows none of their arrival. Commands are \
         those of all clients, without `getMore`. Connections are those that the members count in the window, less \
         those before the clients existed.",
    );
    Ok(figure)
}

fn what(providers: usize, quantity: &str) -> String {
    format!("{providers} providers: {quantity}")
}

async fn measure(bench: &Bench<'_>, figure: &mut Figure, size: Size) -> Outcome<()> {
    let who = Contender::Ours;
    bench.deployment.drop_database(who.database()).await?;
    let members = members(bench.deployment.uri()).await?;
    let before = connections(&members).await?;

    let mut workers = Vec::new();
    for process in 0..PROCESSES {
        workers.push(Worker::start(&spec(bench, size, process)).await?);
    }
    for worker in &mut workers {
        worker.ready_within(READY_LIMIT).await?;
    }
    let window = fleet::window_after(size.settle, size.length);
    for worker in &mut workers {
        worker.measure(window).await?;
    }
    clock::sleep_until(window.start + (window.stop - window.start) / 2).await;
    let used = connections(&members).await? - before;
    clock::sleep_until(window.stop).await;
    let mut reports = Vec::new();
    for worker in workers {
        reports.push(worker.report_within(REPORT_LIMIT).await?);
    }

    describe(figure, size, window, &reports);
    figure.push(who, what(size.providers, "connections used, all members"), "", used as f64);
    note_errors(figure, who, &reports);
    Ok(())
}

fn describe(figure: &mut Figure, size: Size, window: Window, reports: &[Report]) {
    let who = Contender::Ours;
    let what = |quantity: &str| what(size.providers, quantity);
    let waiters = || reports.iter().flat_map(|report| &report.waiters);
    let turns: Vec<u64> = waiters().map(|waiter| waiter.acquired).collect();
    let acquired = turns.iter().sum::<u64>() as f64;
    let waits: Vec<f64> = waiters().flat_map(|waiter| &waiter.waits_ns).map(|&wait| clock::millis(wait)).collect();
    let mut sent = Counts::new();
    reports.iter().for_each(|report| commands::add(&mut sent, &report.commands));
    // Without an acquisition there is no such number, and no target is reached.
    let per_acquisition = |count: u64| if acquired > 0.0 { count as f64 / acquired } else { f64::NAN };
    figure.push(who, what(RATE), "/s", acquired / window.seconds());
    figure.push(who, what(COMMANDS), "", per_acquisition(commands::without_get_more(&sent)));
    for (name, count) in sent {
        figure.push(who, what(&format!("{name} per acquisition")), "", per_acquisition(count));
    }
    figure.push(who, what(EVENNESS), "", evenness(&turns));
    figure.push(who, what("fewest turns"), "", turns.iter().min().map_or(f64::NAN, |&least| least as f64));
    figure.push(who, what("most turns"), "", turns.iter().max().map_or(f64::NAN, |&most| most as f64));
    let without = turns.iter().filter(|&&turns| turns == 0).count();
    figure.push(who, what("providers without a turn"), "", without as f64);
    figure.push(who, what("wait, p50"), "ms", quantile(&waits, 0.5));
    figure.push(who, what("wait, p99"), "ms", quantile(&waits, 0.99));
    let cpu = reports.iter().map(|report| report.cpu_ns).sum::<u64>() as f64 / 1e9;
    figure.push(who, what("the clients' processor time"), "cores", cpu / window.seconds());
}

fn spec(bench: &Bench<'_>, size: Size, process: usize) -> Spec {
    let providers = size.providers / PROCESSES + usize::from(process < size.providers % PROCESSES);
    let key = format!("crowd-{}", size.providers);
    let contend = Contend { key, waiters: 1, hold_ms: HOLD_MS, ..Contend::default() };
    let settle_ms = size.settle.as_millis() as u64;
    let task = Task::Crowd(Crowd { providers, contend, settle_ms });
    let mut spec = bench.spec(Contender::Ours, Settings::new(true), task);
    spec.uri = deployment::with_options(&spec.uri, OPTIONS);
    spec
}

/// Clients of each member alone.
async fn members(uri: &str) -> Outcome<Vec<Client>> {
    let primary = deployment::primary(uri).await?;
    Ok(std::iter::once(primary.client).chain(primary.others).collect())
}

/// The connections of all members.
async fn connections(members: &[Client]) -> Outcome<i64> {
    let mut all = 0;
    for member in members {
        let status = member.database("admin").run_command(doc! { "serverStatus": 1 }).await?;
        let current = status.get_document("connections")?.get("current");
        let count = current.and_then(|count| count.as_i64().or_else(|| count.as_i32().map(i64::from)));
        all += count.ok_or_else(|| format!("a server counts {:?} connections", current.map(Bson::element_type)))?;
    }
    Ok(all)
}
